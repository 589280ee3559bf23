/* SPDX-License-Identifier: MIT */
/* libren/train/trainer.c - a trainer's life: memory, plans by batch size, first values.
 *
 * Purpose   Everything that is slow about training: find the inputs that the loss needs, take all
 *           memory, plan the step for the full batch, zero gradients and moments. After it a step
 *           is a post.
 * Threads   create and destroy: the builder's. ren__trainer_plan: the thread that posts steps.
 * Memory    one region of device memory, one pinned block, and what plans take. A plan per batch
 *           size is kept, up to REN__STEP_PLANS; the one unused for longest goes first.
 *
 * Flat memory. Gradients and moments are parallel to the trained part of the model's region, so one
 * optimizer launch covers every run of neighbouring parameters that the loss depends on (usually
 * all). The padding between parameters is zero in all of them and stays zero under every rule.
 *
 * The end of a plan is ordered so that a step is applied whole or not at all, whichever device call
 * fails: the loss goes into the state, ADVANCE counts, and only then do the optimizer and the new
 * running statistics change what later steps see. The state goes to the host behind the plan, not
 * in it: its destination differs from step to step, and a captured plan is the same for all.
 */
#include "trainer_state.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>

#include "diff.h"

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + REN__ALIGN - 1) / REN__ALIGN * REN__ALIGN;
}

/* ------------------------------------------------------------------ the update's tasks */

typedef struct update {
    ren_trainer *t;
    ren__diff *d;
    ren__task_graph *g;
    uint32_t state, moment[2];
} update;

static ren__task update_task(const char *name)
{
    ren__task t;
    memset(&t, 0, sizeof t);
    t.name = name;
    t.segment = "optimizer";
    t.stream = REN_STREAM_UPDATE;
    t.op.struct_size = (uint32_t)sizeof t.op;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        t.operand[i] = REN__NO_VALUE;
    }
    return t;
}

static void add_copy(update *u, const char *name, uint32_t to, uint64_t to_offset, uint32_t from,
                     uint64_t from_offset, uint64_t bytes)
{
    ren__task t = update_task(name);
    t.kind = REN__TASK_COPY;
    t.operand[0] = to;
    t.operand_offset[0] = to_offset;
    t.operand[1] = from;
    t.operand_offset[1] = from_offset;
    t.writes = 1u;
    t.reads = 2u;
    t.bytes = bytes;
    ren__task_graph_add(u->g, &t);
}

static void add_check(update *u)
{
    ren__tensor_desc state = ren__emit_bytes_desc(sizeof(ren__state));
    ren__tensor_desc control = ren__emit_bytes_desc(sizeof(ren__control));
    ren__tensor_desc grads = ren__emit_vector_desc(u->t->model->trained_bytes / sizeof(float));
    ren__task t = update_task("check");
    t.op.kind = REN__OP_CHECK;
    ren__emit_read(&t, 0, u->d->grad_root, &grads);
    ren__emit_read(&t, 1, u->d->control, &control);
    ren__emit_read(&t, 2, u->state, &state);
    ren__emit_write(&t, 2, u->state, &state);
    ren__task_graph_add(u->g, &t);
}

static void add_advance(update *u)
{
    ren__tensor_desc state = ren__emit_bytes_desc(sizeof(ren__state));
    ren__tensor_desc control = ren__emit_bytes_desc(sizeof(ren__control));
    ren__task t = update_task("advance");
    t.op.kind = REN__OP_ADVANCE;
    ren__emit_read(&t, 0, u->d->control, &control);
    ren__emit_read(&t, 1, u->state, &state);
    ren__emit_write(&t, 1, u->state, &state);
    ren__task_graph_add(u->g, &t);
}

/* One optimizer launch over [from, from + bytes) of the flat memories. */
static void add_optimizer(update *u, uint64_t from, uint64_t bytes)
{
    static const ren__op_kind kinds[] = {[REN_OPTIMIZER_SGD] = REN__OP_SGD,
                                         [REN_OPTIMIZER_ADAM] = REN__OP_ADAM,
                                         [REN_OPTIMIZER_ADAMW] = REN__OP_ADAMW};
    uint32_t moments = u->t->optimizer == REN_OPTIMIZER_SGD ? 1 : 2;
    ren__tensor_desc flat = ren__emit_vector_desc(bytes / sizeof(float));
    ren__tensor_desc state = ren__emit_bytes_desc(sizeof(ren__state));
    ren__tensor_desc control = ren__emit_bytes_desc(sizeof(ren__control));
    ren__task t = update_task("update");
    t.op.kind = kinds[u->t->optimizer];
    t.cost = 4 * bytes;
    ren__emit_read(&t, 0, u->d->grad_root, &flat);
    ren__emit_read(&t, 1, u->d->control, &control);
    ren__emit_read(&t, 2, u->state, &state);
    ren__emit_read(&t, 3, u->d->params, &flat);
    ren__emit_write(&t, 3, u->d->params, &flat);
    for (uint32_t i = 0; i < moments; i++) {
        ren__emit_read(&t, 4 + i, u->moment[i], &flat);
        ren__emit_write(&t, 4 + i, u->moment[i], &flat);
        t.operand_offset[4 + i] = from;
    }
    t.operand_offset[0] = from;
    t.operand_offset[3] = from;
    ren__task_graph_add(u->g, &t);
}

/* Runs of neighbouring parameters that the loss depends on: optimizer launches for the trained
 * ones, copies for the statistics. Index order is region order inside each of the two. */
static void add_runs(update *u, uint32_t statistics)
{
    const ren_model *m = u->t->model;
    uint64_t from = 0;
    uint64_t end = 0;
    for (uint32_t i = 0; i <= m->param_count; i++) {
        const ren__param *p = i < m->param_count ? m->params[i] : NULL;
        if (p && p->is_statistic != statistics) {
            continue;
        }
        uint32_t used = p && u->d->param_used[i];
        if (used && end > from && p->offset == end) {
            end += align_up(p->bytes);
            continue;
        }
        if (end > from && statistics) {
            add_copy(u, "statistics", u->d->params, from, u->d->statistics, from - m->trained_bytes,
                     end - from);
        } else if (end > from) {
            add_optimizer(u, from, end - from);
        }
        from = used ? p->offset : 0;
        end = used ? from + align_up(p->bytes) : 0;
    }
}

static void add_update(update *u)
{
    const ren_model *m = u->t->model;
    u->state = ren__task_graph_value(u->g, "state", REN__VALUE_FIXED, sizeof(ren__state));
    for (uint32_t i = 0; i < 2; i++) {
        u->moment[i] = REN__NO_VALUE;
        if (u->t->moment[i]) {
            u->moment[i] =
                ren__task_graph_value(u->g, "moment", REN__VALUE_FIXED, m->trained_bytes);
        }
    }
    add_copy(u, "loss", u->state, offsetof(ren__state, loss), u->d->values[u->t->loss], 0,
             sizeof(float));
    if (u->t->clips && m->trained_bytes) {
        add_check(u);
    }
    add_advance(u);
    add_runs(u, 0);
    add_runs(u, 1);
}

/* ------------------------------------------------------------------ plans */

static void drop_plan(ren_trainer *t, ren__step_plan *sp)
{
    const ren__host_allocator *a = t->model->allocator;
    ren__replay_deinit(&sp->replay); /* graphs hold the plan's operations */
    ren__plan_destroy(sp->plan);
    ren__host_free(a, sp->externals, sp->external_count, sizeof sp->externals[0]);
    ren__host_free(a, sp->input_values, t->input_count, sizeof sp->input_values[0]);
    memset(sp, 0, sizeof *sp);
}

static ren_status resolve_plan(ren_trainer *t, ren__step_plan *sp, const update *u, ren_error *err)
{
    const ren_model *m = t->model;
    /* fixed[] has the shape of externals[], which is not in use yet. */
    void **fixed = sp->externals;
    if (u->d->params != REN__NO_VALUE) {
        fixed[u->d->params] = m->region.ptr;
    }
    if (u->d->grad_root != REN__NO_VALUE) {
        fixed[u->d->grad_root] = t->grads;
    }
    if (u->d->statistics != REN__NO_VALUE) {
        fixed[u->d->statistics] = t->statistics;
    }
    fixed[u->state] = t->state;
    for (uint32_t i = 0; i < 2; i++) {
        if (u->moment[i] != REN__NO_VALUE) {
            fixed[u->moment[i]] = t->moment[i];
        }
    }
    ren_status status = ren__plan_resolve(sp->plan, t->rt, fixed, err);
    memset(fixed, 0, sp->external_count * sizeof fixed[0]);
    ren__plan_need(sp->plan, sp->need);
    return status;
}

static ren_status build_plan(ren_trainer *t, ren__step_plan *sp, uint32_t batch, ren__diff *d,
                             ren__task_graph *g, ren_error *err)
{
    const ren__host_allocator *a = t->model->allocator;
    ren__plan_config config = {.policy = REN__POLICY_GREEDY,
                               .lanes = ren__runtime_lanes(t->rt),
                               .origin = REN_STREAM_UPDATE,
                               .reuse = 1};
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        config.lane_of[i] = ren__runtime_lane(t->rt, (ren_stream)i);
    }
    update u = {.t = t, .d = d, .g = g};
    ren__diff_emit(d, g, batch);
    add_update(&u);
    ren_status status = ren__plan_build(g, &config, a, &sp->plan, err);
    if (status != REN_OK) {
        return status;
    }
    ren__plan_counts counts;
    ren__plan_get_counts(sp->plan, &counts);
    sp->external_count = counts.values;
    sp->externals = ren__host_calloc(a, sp->external_count, sizeof sp->externals[0]);
    sp->input_values = ren__host_calloc(a, t->input_count, sizeof sp->input_values[0]);
    if (!sp->externals || !sp->input_values) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan");
    }
    for (uint32_t i = 0; i < t->input_count; i++) {
        sp->input_values[i] = d->values[t->inputs[i].node];
    }
    sp->control_value = d->control;
    ren__replay_init(&sp->replay, t->rt, sp->plan);
    return resolve_plan(t, sp, &u, err);
}

static ren_status make_plan(ren_trainer *t, ren__step_plan *sp, uint32_t batch, ren_error *err)
{
    ren__diff d;
    ren__task_graph *g = NULL;
    ren_status status = ren__diff_init(&d, t->model, t->loss, 1, err);
    if (status != REN_OK) {
        return status;
    }
    status = ren__task_graph_create(t->model->allocator, &g);
    if (status != REN_OK) {
        ren__diff_deinit(&d);
        return REN__FAIL(err, status, "no host memory for a task graph");
    }
    status = build_plan(t, sp, batch, &d, g, err);
    ren__task_graph_destroy(g);
    ren__diff_deinit(&d);
    if (status != REN_OK) {
        drop_plan(t, sp);
        return status;
    }
    sp->batch = batch;
    return REN_OK;
}

ren_status ren__trainer_plan(ren_trainer *t, uint32_t batch, ren__step_plan **out, ren_error *err)
{
    ren__step_plan *victim = NULL;
    for (uint32_t i = 0; i < REN__STEP_PLANS; i++) {
        ren__step_plan *sp = &t->plans[i];
        if (sp->batch == batch) {
            *out = sp;
            return REN_OK;
        }
        /* acquire: pairs with finish's release; the device is past the plan's last issue. */
        if (atomic_load_explicit(&sp->in_flight, memory_order_acquire) == 0 &&
            (!victim || (victim->batch && (!sp->batch || sp->last_used < victim->last_used)))) {
            victim = sp;
        }
    }
    if (!victim) {
        return REN_ERR_QUEUE_FULL; /* each plan has a step under way */
    }
    drop_plan(t, victim);
    ren_status status = make_plan(t, victim, batch, err);
    *out = status == REN_OK ? victim : NULL;
    return status;
}

/* ------------------------------------------------------------------ memory */

static ren_status pinned_alloc(void *user, uint64_t bytes, void **out)
{
    ren_trainer *t = user;
    return ren__runtime_api(t->rt)->host_alloc(ren__runtime_device(t->rt), bytes, out);
}

static void pinned_free(void *user, void *ptr, uint64_t bytes)
{
    ren_trainer *t = user;
    ren__runtime_api(t->rt)->host_free(ren__runtime_device(t->rt), ptr, bytes);
}

static ren_status find_inputs(ren_trainer *t, const ren__diff *d, ren_error *err)
{
    const ren_model *m = t->model;
    for (uint32_t i = 0; i <= t->loss; i++) {
        t->input_count += d->needed[i] && m->nodes[i]->kind == REN__NODE_INPUT;
    }
    if (t->input_count == 0 || t->input_count > REN__MAX_INPUTS) {
        return REN__FAIL(err, REN_ERR_UNSUPPORTED, "the loss needs %u inputs, not 1 to %u",
                         t->input_count, REN__MAX_INPUTS);
    }
    t->inputs = ren__host_calloc(m->allocator, t->input_count, sizeof t->inputs[0]);
    if (!t->inputs) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a trainer");
    }
    for (uint32_t i = 0, k = 0; i <= t->loss; i++) {
        if (d->needed[i] && m->nodes[i]->kind == REN__NODE_INPUT) {
            const ren__tensor_desc *desc = &m->nodes[i]->out;
            t->inputs[k].node = i;
            t->inputs[k].bytes = ren__tensor_bytes(desc);
            t->inputs[k].row_bytes = t->inputs[k].bytes / (uint64_t)desc->dims[0];
            t->batch = (uint32_t)desc->dims[0];
            k++;
        }
    }
    return REN_OK;
}

static unsigned char *take(unsigned char **at, uint64_t bytes)
{
    unsigned char *here = *at;
    *at += align_up(bytes);
    return here;
}

static ren_status take_device_memory(ren_trainer *t, ren_error *err)
{
    const ren_model *m = t->model;
    uint64_t statistics_bytes = m->region_bytes - m->trained_bytes;
    uint32_t moments = t->optimizer == REN_OPTIMIZER_SGD ? 1 : 2;
    uint64_t inputs = 0;
    for (uint32_t i = 0; i < t->input_count; i++) {
        inputs += REN__INPUT_SLOTS * align_up(t->inputs[i].bytes);
    }
    t->zeroed_bytes = align_up(sizeof(ren__state)) + (1 + moments) * m->trained_bytes +
                      align_up(statistics_bytes);
    uint64_t bytes = inputs + REN__INPUT_SLOTS * align_up(sizeof(ren__control)) + t->zeroed_bytes;
    ren_status status = ren__region_alloc(t->rt, bytes, &t->region);
    if (status != REN_OK) {
        return REN__FAIL(err, status, "no %llu bytes of device memory for a trainer",
                         (unsigned long long)bytes);
    }
    unsigned char *at = t->region.ptr;
    for (uint32_t p = 0; p < REN__INPUT_SLOTS; p++) {
        for (uint32_t i = 0; i < t->input_count; i++) {
            t->inputs[i].device[p] = take(&at, t->inputs[i].bytes);
        }
        t->control_device[p] = take(&at, sizeof(ren__control));
    }
    t->state = take(&at, sizeof(ren__state));
    t->grads = take(&at, m->trained_bytes);
    t->statistics = take(&at, statistics_bytes);
    for (uint32_t i = 0; i < moments && m->trained_bytes; i++) {
        t->moment[i] = take(&at, m->trained_bytes);
    }
    return REN_OK;
}

static ren_status take_host_memory(ren_trainer *t, ren_error *err)
{
    const ren__host_allocator *a = t->model->allocator;
    const ren__staging_upstream upstream = {pinned_alloc, pinned_free, t};
    size_t pairs = (size_t)REN__STEPS * t->input_count;
    uint64_t block = 3 * REN__ALIGN; /* control, result, applied */
    void *pinned = NULL;
    for (uint32_t i = 0; !t->model->caps.pageable_copies && i < t->input_count; i++) {
        t->stage_bytes += align_up(t->inputs[i].bytes);
    }
    t->sources = ren__host_calloc(a, pairs, sizeof t->sources[0]);
    t->staged = ren__host_calloc(a, pairs, sizeof t->staged[0]);
    t->stage_copies = ren__host_calloc(a, pairs, sizeof t->stage_copies[0]);
    t->pinned_bytes = REN__STEPS * (block + t->stage_bytes);
    ren_status status = t->sources && t->staged && t->stage_copies ? REN_OK : REN_ERR_NO_MEMORY;
    if (status == REN_OK) {
        status = pinned_alloc(t, t->pinned_bytes, &pinned);
        t->pinned = pinned;
    }
    for (uint32_t i = 0; i < t->input_count && status == REN_OK; i++) {
        status = ren__staging_init(&t->inputs[i].staging, REN__INPUT_SLOTS, t->inputs[i].bytes,
                                   &upstream);
    }
    if (status != REN_OK) {
        return REN__FAIL(err, status, "no host memory for a trainer");
    }
    for (uint32_t i = 0; i < REN__STEPS; i++) {
        ren__step *step = &t->steps[i];
        unsigned char *at = t->pinned + i * (block + t->stage_bytes);
        step->trainer = t;
        step->control = (ren__control *)(void *)at;
        step->result = (ren__state *)(void *)(at + REN__ALIGN);
        step->applied = (uint64_t *)(void *)(at + 2 * REN__ALIGN);
        step->stage_memory = at + block;
        step->source = t->sources + (size_t)i * t->input_count;
        step->staged = t->staged + (size_t)i * t->input_count;
        step->stage.copies = t->stage_copies + (size_t)i * t->input_count;
        step->stage.count = t->input_count;
    }
    return REN_OK;
}

static ren_status make_events(ren_trainer *t, ren_error *err)
{
    const ren__device_api *api = ren__runtime_api(t->rt);
    ren__device *dev = ren__runtime_device(t->rt);
    for (uint32_t p = 0; p < REN__INPUT_SLOTS; p++) {
        ren_status status = api->event_create(dev, 0, &t->copied[p]);
        if (status == REN_OK) {
            status = api->event_create(dev, 0, &t->end[p]);
        }
        if (status != REN_OK) {
            return REN__FAIL(err, status, "an event of a trainer could not be made");
        }
    }
    return REN_OK;
}

/* ------------------------------------------------------------------ setup */

typedef struct setup {
    ren_trainer *t;
    uint64_t seq;
    ren_status status;
    _Atomic uint32_t done;
} setup;

static ren_status setup_issue(void *self, ren__submit *s)
{
    setup *v = self;
    ren_trainer *t = v->t;
    const ren__device_api *api = ren__submit_api(s);
    ren__device *dev = ren__submit_device(s);
    uint32_t lane = ren__submit_lane(s, REN_STREAM_UPDATE);
    ren_status status = api->fill(dev, lane, t->state, 0, t->zeroed_bytes);
    if (status == REN_OK) {
        status = api->copy(dev, lane, t->state, t->steps[0].result, sizeof(ren__state));
    }
    ren__chain_issued(&t->model->chain, v->seq);
    return status;
}

static void setup_finish(void *self, ren_completion *c)
{
    setup *v = self;
    ren__chain *chain = &v->t->model->chain;
    v->status = c->status;
    /* release: pairs with run_setup's acquire; after it *v may be gone. */
    atomic_store_explicit(&v->done, 1, memory_order_release);
    ren__chain_finished(chain);
}

static ren_status run_setup(ren_trainer *t, ren_error *err)
{
    ren_job job;
    setup v = {.t = t};
    ren__chain_post post = {.seq = &v.seq, .deliver = REN_DELIVER_NONE};
    memset(t->steps[0].result, 0, sizeof(ren__state));
    t->steps[0].result->loss_scale = 1.0f;
    post.work.issue = setup_issue;
    post.work.finish = setup_finish;
    post.work.self = &v;
    post.work.stream = REN_STREAM_UPDATE;
    post.work.need[REN_STREAM_UPDATE] = 2;
    ren_status status = ren__chain_submit(&t->model->chain, &post, &job);
    if (status == REN_OK) {
        /* acquire: pairs with setup_finish. */
        while (!atomic_load_explicit(&v.done, memory_order_acquire)) {
            ren__chain_await(&t->model->chain, job);
        }
        status = v.status;
    }
    return status == REN_OK ? REN_OK
                            : REN__FAIL(err, status, "the trainer's memory could not be prepared");
}

/* ------------------------------------------------------------------ life */

/* What this version does not do yet, by name. */
static ren_status check_supported(const ren_trainer_config *c, ren_error *err)
{
    if (c->optimizer == REN_OPTIMIZER_LARS) {
        return REN__FAIL(err, REN_ERR_UNSUPPORTED, "optimizer LARS is not there yet");
    }
    if (c->precision != REN_PRECISION_F32) {
        return REN__FAIL(err, REN_ERR_UNSUPPORTED, "mixed precision is not there yet");
    }
    if (c->ema_decay != 0.0f) {
        return REN__FAIL(err, REN_ERR_UNSUPPORTED, "ema_decay is not there yet");
    }
    if (c->accumulate_steps > 1) {
        return REN__FAIL(err, REN_ERR_UNSUPPORTED, "accumulate_steps is not there yet");
    }
    return REN_OK;
}

static ren_status check_scalars(const ren_trainer_config *c, ren_error *err)
{
    const struct {
        const char *name;
        float value;
    } scalars[] = {{"learning_rate", c->learning_rate},
                   {"momentum", c->momentum},
                   {"beta1", c->beta1},
                   {"beta2", c->beta2},
                   {"eps", c->eps},
                   {"weight_decay", c->weight_decay},
                   {"lars_eta", c->lars_eta},
                   {"loss_scale", c->loss_scale},
                   {"clip_norm", c->clip_norm},
                   {"ema_decay", c->ema_decay}};
    for (uint32_t i = 0; i < sizeof scalars / sizeof scalars[0]; i++) {
        if (!isfinite(scalars[i].value)) {
            return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "%s is not finite", scalars[i].name);
        }
    }
    if (c->clip_norm < 0.0f) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "clip_norm is negative");
    }
    return REN_OK;
}

static void set_scalars(ren_trainer *t, const ren_trainer_config *c)
{
    t->scalars.seed = t->model->seed;
    t->scalars.learning_rate = c->learning_rate;
    t->scalars.momentum = c->momentum;
    t->scalars.beta1 = c->beta1;
    t->scalars.beta2 = c->beta2;
    t->scalars.eps = c->eps;
    t->scalars.weight_decay = c->weight_decay;
    t->scalars.lars_eta = c->lars_eta;
    t->scalars.clip_norm = c->clip_norm;
    t->scalars.ema_decay = c->ema_decay;
    t->scalars.grad_divisor = 1.0f;
    t->scalars.nesterov = c->nesterov ? 1 : 0;
}

static void free_trainer(ren_trainer *t)
{
    const ren__host_allocator *a = t->model->allocator;
    const ren__device_api *api = ren__runtime_api(t->rt);
    ren__device *dev = ren__runtime_device(t->rt);
    size_t pairs = (size_t)REN__STEPS * t->input_count;
    for (uint32_t i = 0; i < REN__STEP_PLANS; i++) {
        drop_plan(t, &t->plans[i]);
    }
    for (uint32_t p = 0; p < REN__INPUT_SLOTS; p++) {
        if (t->copied[p]) {
            api->event_destroy(dev, t->copied[p]);
        }
        if (t->end[p]) {
            api->event_destroy(dev, t->end[p]);
        }
    }
    for (uint32_t i = 0; t->inputs && i < t->input_count; i++) {
        ren__staging_deinit(&t->inputs[i].staging);
    }
    if (t->pinned) {
        pinned_free(t, t->pinned, t->pinned_bytes);
    }
    ren__region_free(t->rt, &t->region);
    ren__host_free(a, t->stage_copies, pairs, sizeof t->stage_copies[0]);
    ren__host_free(a, t->staged, pairs, sizeof t->staged[0]);
    ren__host_free(a, t->sources, pairs, sizeof t->sources[0]);
    ren__host_free(a, t->inputs, t->input_count, sizeof t->inputs[0]);
    ren__host_free(a, t, 1, sizeof *t);
}

static ren_status fill_trainer(ren_trainer *t, ren_error *err)
{
    ren__diff d;
    ren__step_plan *plan;
    ren_status status = ren__diff_init(&d, t->model, t->loss, 1, err);
    if (status == REN_OK) {
        status = find_inputs(t, &d, err);
        ren__diff_deinit(&d);
    }
    if (status == REN_OK) {
        status = ren__model_place(t->model, err);
    }
    if (status == REN_OK) {
        status = take_device_memory(t, err);
    }
    if (status == REN_OK) {
        status = take_host_memory(t, err);
    }
    if (status == REN_OK) {
        status = make_events(t, err);
    }
    if (status == REN_OK) {
        status = run_setup(t, err);
    }
    if (status == REN_OK) {
        status = ren__trainer_plan(t, t->batch, &plan, err);
    }
    return status;
}

/* The model's lock is held. */
static ren_status create_locked(ren_model *m, ren_tensor loss, const ren_trainer_config *config,
                                ren_trainer **out, ren_error *err)
{
    uint32_t node = ren__model_node_of(m, loss);
    const ren__op_family *family =
        node == UINT32_MAX ? NULL : ren__op_family_of(m->nodes[node]->kind);
    if (m->status != REN_OK) {
        if (err) {
            *err = m->error;
        }
        return m->status;
    }
    if (!family || !family->is_loss) {
        return REN__FAIL(err, REN_ERR_SHAPE, "%s is not a loss of this model",
                         node == UINT32_MAX ? "the tensor" : m->nodes[node]->name);
    }
    if (m->trainer) {
        return REN__FAIL(err, REN_ERR_BUSY, "the model has a trainer");
    }
    ren_trainer *t = ren__host_calloc(m->allocator, 1, sizeof *t);
    if (!t) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a trainer");
    }
    t->model = m;
    t->rt = m->rt;
    t->loss = node;
    t->optimizer = config->optimizer;
    t->clips = config->clip_norm > 0.0f;
    t->next_index = 1;
    set_scalars(t, config);
    ren_status status = fill_trainer(t, err);
    if (status != REN_OK) {
        free_trainer(t);
        return status;
    }
    m->trainer = t;
    *out = t;
    return REN_OK;
}

ren_status ren__trainer_create(ren_model *m, ren_tensor loss, const ren_trainer_config *config,
                               ren_trainer **out, ren_error *err)
{
    *out = NULL;
    ren_status status = ren__runtime_check_blocking(m->rt);
    if (status != REN_OK) {
        return REN__FAIL(err, status, "a trainer cannot be made here");
    }
    status = check_scalars(config, err);
    if (status == REN_OK) {
        status = check_supported(config, err);
    }
    if (status != REN_OK) {
        return status;
    }
    pthread_mutex_lock(&m->lock);
    status = create_locked(m, loss, config, out, err);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* Until nobody holds the step: its finish and the core behind it, its notification, or a voided
 * stage job. */
static void await_step(ren_trainer *t, ren__step *step)
{
    ren_job none = {0};
    /* acquire: pairs with the release of the last holder. */
    while (atomic_load_explicit(&step->holders, memory_order_acquire) != 0) {
        ren__chain_help(&t->model->chain, none);
    }
    ren__chain_await(&t->model->chain, step->job);
    if (!ren__stage_is_idle(&step->stage)) {
        ren__chain_await(&t->model->chain, step->stage.job);
    }
}

void ren__trainer_destroy(ren_trainer *t)
{
    ren_model *m = t->model;
    ren_status status = ren__runtime_check_blocking(t->rt);
    if (status == REN_ERR_REENTRANT) {
        ren__runtime_log(t->rt, REN_LOG_ERROR, "ren_trainer_destroy: refused inside a callback");
        return;
    }
    if (status == REN_ERR_FORKED) {
        /* No device, and perhaps no holder to open the lock again: the memory goes with the
         * process. */
        m->trainer = NULL;
        return;
    }
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < REN__STEPS; i++) {
        await_step(t, &t->steps[i]);
    }
    for (uint32_t i = 0; i < REN__NOTICES; i++) {
        /* acquire: pairs with step_transferred; it is done with the trainer. */
        while (atomic_load_explicit(&t->notices[i].busy, memory_order_acquire)) {
            ren__chain_help(&m->chain, (ren_job){0});
        }
    }
    free_trainer(t);
    m->trainer = NULL;
    pthread_mutex_unlock(&m->lock);
}
