/* SPDX-License-Identifier: MIT */
/* libren/train/trainer.c - a trainer's life: memory, plans by batch size, first values.
 *
 * Purpose   Everything that is slow about training: find the inputs that the loss needs, take all
 *           memory, plan the step for the full batch, zero gradients and moments. After it a step
 *           is a post.
 * Threads   create and destroy: the builder's. ren__trainer_plan: the thread that posts steps.
 * Memory    one region of device memory, one pinned block, and what plans take. A plan per batch
 *           size and set of frozen parameters is kept, up to the host's plan_cache; the one unused
 *           for longest goes first, unless a step under way uses it, and its graphs become spares
 *           (replay.h).
 *
 * A plan is a forward and a backward pass, see diff.h, and an update, see update.h. Where steps
 * accumulate there are three for each batch size, told apart by the place of a step in its window.
 * The state goes to the host behind the plan, not in it: its destination differs from step to step,
 * and a captured plan is the same for all.
 */
#include "trainer_state.h"

#include <sched.h>
#include <stdio.h>

#include "diff.h"
#include "update.h"

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + REN__ALIGN - 1) / REN__ALIGN * REN__ALIGN;
}

/* ------------------------------------------------------------------ plans */

static void drop_plan(ren_trainer *t, ren__step_plan *sp)
{
    const ren__host_allocator *a = t->model->allocator;
    for (uint32_t i = 0; i < REN__STEP_PHASES; i++) {
        ren__phase_plan *pp = &sp->phase[i];
        ren__replay_deinit(&pp->replay); /* its graphs become spares */
        ren__plan_destroy(pp->plan);
        ren__host_free(a, pp->externals, pp->external_count, sizeof pp->externals[0]);
        ren__host_free(a, pp->input_values, t->input_count, sizeof pp->input_values[0]);
    }
    ren__host_free(a, sp->frozen, t->param_count, 1);
    memset(sp, 0, sizeof *sp);
}

static void fix(void **fixed, uint32_t value, void *address)
{
    if (value != REN__NO_VALUE) {
        fixed[value] = address;
    }
}

static ren_status resolve_plan(ren_trainer *t, ren__phase_plan *pp, const ren__step_update *u,
                               ren_error *err)
{
    const ren_model *m = t->model;
    /* fixed[] has the shape of externals[], which is not in use yet. */
    void **fixed = pp->externals;
    fix(fixed, u->d->params, m->region.ptr);
    fix(fixed, u->d->grad_root, t->grads);
    if (t->window == 1) {
        fix(fixed, u->d->statistics, t->statistics[0]);
    }
    fix(fixed, u->state, t->state);
    fix(fixed, u->moment[0], t->moment[0]);
    fix(fixed, u->moment[1], t->moment[1]);
    fix(fixed, u->average, m->averages.ptr);
    fix(fixed, u->counts, t->counts);
    ren_status status = ren__plan_resolve(pp->plan, t->rt, fixed, err);
    memset(fixed, 0, pp->external_count * sizeof fixed[0]);
    return status;
}

static ren_status build_plan(ren_trainer *t, const ren__step_plan *sp, ren__phase_plan *pp,
                             ren__diff *d, ren__task_graph *g, ren_error *err)
{
    const ren__host_allocator *a = t->model->allocator;
    ren__plan_config config = {.policy = t->policy,
                               .lanes = ren__runtime_lanes(t->rt),
                               .origin = REN_STREAM_UPDATE,
                               .reuse = 1,
                               .stamp_blocks = REN__REPLAY_PLACES,
                               .replayed = ren__replay_is_on(t->rt),
                               .segments = t->segments,
                               .costs = ren__runtime_caps(t->rt)->costs};
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        config.lane_of[i] = ren__runtime_lane(t->rt, (ren_stream)i);
    }
    ren__step_update u = {.t = t, .d = d, .g = g, .counted = sp->counted};
    ren__diff_emit(d, g, sp->batch);
    ren__update_emit(&u);
    ren_status status = ren__plan_build(g, &config, a, &pp->plan, err);
    if (status != REN_OK) {
        return status;
    }
    ren__plan_counts counts;
    ren__plan_get_counts(pp->plan, &counts);
    pp->external_count = counts.values;
    pp->externals = ren__host_calloc(a, pp->external_count, sizeof pp->externals[0]);
    pp->input_values = ren__host_calloc(a, t->input_count, sizeof pp->input_values[0]);
    if (!pp->externals || !pp->input_values) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan");
    }
    for (uint32_t i = 0; i < t->input_count; i++) {
        pp->input_values[i] = d->values[t->inputs[i].node];
    }
    pp->control_value = d->control;
    pp->sum_in = u.sum_in;
    pp->sum_out = u.sum_out;
    pp->statistics_in = d->statistics_in;
    pp->statistics_out = t->window == 1 ? REN__NO_VALUE : d->statistics;
    ren__replay_init(&pp->replay, t->rt, pp->plan, REN_STREAM_UPDATE, &t->spares);
    return resolve_plan(t, pp, &u, err);
}

static ren_status make_phase(ren_trainer *t, ren__step_plan *sp, ren__phase_plan *pp,
                             ren__phase phase, ren_error *err)
{
    ren__diff d;
    ren__task_graph *g = NULL;
    ren_status status = ren__diff_init(&d, t->model, t->loss, 1, err);
    if (status != REN_OK) {
        return status;
    }
    d.phase = phase;
    d.precision = t->precision;
    d.dynamic_scale = t->dynamic_scale;
    ren__diff_freeze(&d, sp->frozen);
    status = ren__task_graph_create(t->model->allocator, &g);
    if (status == REN_OK) {
        status = build_plan(t, sp, pp, &d, g, err);
    } else {
        (void)REN__FAIL(err, status, "no host memory for a task graph");
    }
    ren__task_graph_destroy(g);
    ren__diff_deinit(&d);
    return status;
}

static ren_status make_plan(ren_trainer *t, ren__step_plan *sp, uint32_t batch, ren_error *err)
{
    static const ren__phase phases[REN__STEP_PHASES] = {REN__PHASE_FIRST, REN__PHASE_MIDDLE,
                                                        REN__PHASE_LAST};
    ren_status status = REN_OK;
    sp->counted = t->counts_wanted;
    sp->frozen = ren__host_calloc(t->model->allocator, t->param_count, 1);
    if (t->param_count && !sp->frozen) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan");
    }
    if (t->param_count) {
        memcpy(sp->frozen, t->frozen, t->param_count);
    }
    sp->batch = batch;
    for (uint32_t i = 0; i < REN__STEP_PHASES && status == REN_OK; i++) {
        uint32_t exists =
            phases[i] == REN__PHASE_LAST || t->window > (phases[i] == REN__PHASE_FIRST ? 1u : 2u);
        if (exists) {
            uint32_t need[REN_STREAM_COUNT];
            status =
                make_phase(t, sp, &sp->phase[i], t->window == 1 ? REN__PHASE_ONLY : phases[i], err);
            if (status == REN_OK) {
                ren__plan_counts counts;
                ren__plan_need(sp->phase[i].plan, need);
                ren__plan_get_counts(sp->phase[i].plan, &counts);
                sp->most_tasks = counts.tasks > sp->most_tasks ? counts.tasks : sp->most_tasks;
            }
            for (uint32_t k = 0; k < REN_STREAM_COUNT && status == REN_OK; k++) {
                sp->need[k] = need[k] > sp->need[k] ? need[k] : sp->need[k];
            }
        }
    }
    if (status != REN_OK) {
        drop_plan(t, sp);
    }
    return status;
}

/* What is frozen now, when that has changed. */
static void look_at_frozen(ren_trainer *t)
{
    ren_model *m = t->model;
    /* acquire: pairs with ren__model_set_frozen. */
    uint64_t version = atomic_load_explicit(&m->frozen_version, memory_order_acquire);
    if (version == t->frozen_seen) {
        return;
    }
    uint32_t any = 0;
    ren__chain_lock(&m->chain);
    t->frozen_seen = atomic_load_explicit(&m->frozen_version, memory_order_relaxed);
    for (uint32_t i = 0; i < t->param_count; i++) {
        t->frozen[i] = (uint8_t)m->params[i]->frozen;
        any |= m->params[i]->frozen;
    }
    ren__chain_unlock(&m->chain);
    t->counts_wanted |= any && t->counts;
}

ren_status ren__trainer_plan(ren_trainer *t, uint32_t batch, ren__step_plan **out, ren_error *err)
{
    ren__step_plan *victim = NULL;
    look_at_frozen(t);
    for (uint32_t i = 0; i < t->plan_count; i++) {
        ren__step_plan *sp = &t->plans[i];
        if (sp->batch == batch && sp->counted == t->counts_wanted &&
            (t->param_count == 0 || memcmp(sp->frozen, t->frozen, t->param_count) == 0)) {
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
    return ren__runtime_seen(
        t->rt, ren__runtime_api(t->rt)->host_alloc(ren__runtime_device(t->rt), bytes, out));
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
    uint32_t is_adam = t->optimizer == REN_OPTIMIZER_ADAM || t->optimizer == REN_OPTIMIZER_ADAMW;
    uint32_t moments = is_adam ? 2 : 1;
    uint64_t counts_bytes = is_adam ? t->param_count * sizeof(uint64_t) : 0;
    uint32_t places = t->window > 1 ? REN__INPUT_SLOTS : 1;
    uint32_t sums = t->window > 1 ? REN__INPUT_SLOTS : 0;
    uint64_t inputs = 0;
    for (uint32_t i = 0; i < t->input_count; i++) {
        inputs += REN__INPUT_SLOTS * align_up(t->inputs[i].bytes);
    }
    t->zeroed_bytes = align_up(sizeof(ren__state)) + (1 + moments + sums) * m->trained_bytes +
                      align_up(counts_bytes) + places * align_up(statistics_bytes);
    uint64_t bytes = inputs + REN__INPUT_SLOTS * align_up(sizeof(ren__control)) + t->zeroed_bytes;
    ren_status status = ren__region_alloc(t->rt, bytes, &t->region);
    if (status != REN_OK) {
        return REN__FAIL(err, status, "a trainer's %llu bytes of device memory: %s",
                         (unsigned long long)bytes, ren__status_text(status));
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
    for (uint32_t i = 0; i < moments && m->trained_bytes; i++) {
        t->moment[i] = take(&at, m->trained_bytes);
    }
    if (counts_bytes) {
        t->counts = take(&at, counts_bytes);
    }
    for (uint32_t i = 0; i < places; i++) {
        t->statistics[i] = take(&at, statistics_bytes);
    }
    for (uint32_t i = 0; i < sums; i++) {
        t->sum[i] = take(&at, m->trained_bytes);
    }
    return REN_OK;
}

static ren_status take_host_memory(ren_trainer *t, ren_error *err)
{
    const ren__host_allocator *a = t->model->allocator;
    const ren__staging_upstream upstream = {pinned_alloc, pinned_free, t};
    size_t pairs = (size_t)REN__STEPS * t->input_count;
    uint64_t block = 2 * REN__ALIGN; /* control, result */
    void *pinned = NULL;
    for (uint32_t i = 0; !t->model->caps.pageable_copies && i < t->input_count; i++) {
        t->stage_bytes += align_up(t->inputs[i].bytes);
    }
    t->sources = ren__host_calloc(a, pairs, sizeof t->sources[0]);
    t->staged = ren__host_calloc(a, pairs, sizeof t->staged[0]);
    t->stage_copies = ren__host_calloc(a, pairs, sizeof t->stage_copies[0]);
    t->frozen = ren__host_calloc(a, t->param_count, 1);
    t->plans = ren__host_calloc(a, t->plan_count, sizeof t->plans[0]);
    t->pinned_bytes = REN__ALIGN + REN__STEPS * (block + t->stage_bytes);
    uint32_t all =
        t->sources && t->staged && t->stage_copies && t->plans && (t->frozen || !t->param_count);
    ren_status status = all ? REN_OK : REN_ERR_NO_MEMORY;
    if (status == REN_OK) {
        status = pinned_alloc(t, t->pinned_bytes, &pinned);
        t->pinned = pinned;
    }
    for (uint32_t i = 0; i < t->input_count && status == REN_OK; i++) {
        status = ren__staging_init(&t->inputs[i].staging, REN__INPUT_SLOTS, t->inputs[i].bytes,
                                   &upstream);
    }
    if (status != REN_OK) {
        return REN__FAIL(err, status, "no memory of the host for a trainer (%s)",
                         ren__status_name(status));
    }
    t->spare = (ren__state *)(void *)t->pinned;
    t->known = t->spare;
    for (uint32_t i = 0; i < REN__STEPS; i++) {
        ren__step *step = &t->steps[i];
        unsigned char *at = t->pinned + REN__ALIGN + i * (block + t->stage_bytes);
        step->trainer = t;
        step->control = (ren__control *)(void *)at;
        step->result = (ren__state *)(void *)(at + REN__ALIGN);
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
        if (ren__runtime_seen(t->rt, status) != REN_OK) {
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
        status = api->copy(dev, lane, t->state, t->spare, sizeof(ren__state));
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
    memset(t->spare, 0, sizeof *t->spare);
    t->spare->loss_scale = t->first_scale;
    post.work.issue = setup_issue;
    post.work.name = "setup";
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
    return status == REN_OK
               ? REN_OK
               : REN__FAIL(err, status, "the trainer's memory could not be prepared: %s",
                           ren__status_text(status));
}

/* ------------------------------------------------------------------ life */

static void free_trainer(ren_trainer *t)
{
    const ren__host_allocator *a = t->model->allocator;
    const ren__device_api *api = ren__runtime_api(t->rt);
    ren__device *dev = ren__runtime_device(t->rt);
    size_t pairs = (size_t)REN__STEPS * t->input_count;
    for (uint32_t i = 0; t->plans && i < t->plan_count; i++) {
        drop_plan(t, &t->plans[i]);
    }
    ren__spares_deinit(&t->spares);
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
    ren__host_free(a, t->plans, t->plan_count, sizeof t->plans[0]);
    ren__host_free(a, t->frozen, t->param_count, 1);
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
    if (status == REN_OK && t->averages) {
        status = ren__model_average(t->model, err);
    }
    t->param_count = t->model->param_count;
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
                                const ren__control *scalars, ren_trainer **out, ren_error *err)
{
    uint32_t node = ren__model_node_of(m, loss);
    if (m->status != REN_OK) {
        if (err) {
            *err = m->error;
        }
        return m->status;
    }
    if (node == UINT32_MAX || !m->nodes[node]->is_loss) {
        return REN__FAIL(err, REN_ERR_SHAPE, "%s is not a loss of this model",
                         node == UINT32_MAX ? "the tensor" : m->nodes[node]->name);
    }
    if (m->trainer) {
        return REN__FAIL(err, REN_ERR_BUSY, "the model has a trainer already; destroy that first");
    }
    ren_trainer *t = ren__host_calloc(m->allocator, 1, sizeof *t);
    if (!t) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a trainer");
    }
    t->model = m;
    t->rt = m->rt;
    ren__spares_init(&t->spares, m->rt);
    t->loss = node;
    t->optimizer = config->optimizer;
    t->clips = config->clip_norm > 0.0f;
    t->checks = t->clips || config->precision != REN_PRECISION_F32;
    t->precision = config->precision == REN_PRECISION_MIXED_F16    ? REN_F16
                   : config->precision == REN_PRECISION_MIXED_BF16 ? REN_BF16
                                                                   : REN_F32;
    t->dynamic_scale = t->precision == REN_F16;
    t->first_scale = t->dynamic_scale ? config->loss_scale : 1.0f;
    t->averages = config->ema_decay > 0.0f;
    t->window = config->accumulate_steps ? config->accumulate_steps : 1;
    t->policy =
        config->stream_policy == REN_POLICY_STATIC ? REN__POLICY_STATIC : REN__POLICY_GREEDY;
    t->segments = config->graph_segments;
    t->plan_count = config->plan_cache ? config->plan_cache : REN__STEP_PLANS;
    t->next_index = 1;
    t->scalars = *scalars;
    t->scalars.seed = m->seed;
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
        return REN__FAIL(err, status, "a trainer cannot be made here: %s",
                         ren__status_text(status));
    }
    ren__control scalars;
    memset(&scalars, 0, sizeof scalars);
    status = ren__scalars_take(&scalars, config, err);
    if (status != REN_OK) {
        return status;
    }
    pthread_mutex_lock(&m->lock);
    status = create_locked(m, loss, config, &scalars, out, err);
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

ren_runtime *ren__trainer_runtime(ren_trainer *t)
{
    return t->rt;
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
    for (uint32_t i = 0; i < t->plan_count; i++) {
        /* acquire: pairs with finish and with ren__model_rejoin. */
        if (atomic_load_explicit(&t->plans[i].in_flight, memory_order_acquire) != 0) {
            ren__model_settle(m); /* no step is under way: an unfinished one holds the plan */
        }
    }
    free_trainer(t);
    m->trainer = NULL;
    pthread_mutex_unlock(&m->lock);
}
