/* SPDX-License-Identifier: MIT */
/* libren/train/infer.c - one output of a model for a batch of inputs.
 *
 * Purpose   An output has plans by batch size and a few contexts, each with its own input memory,
 *           so several inferences may be under way. An inference is a work on the model's chain:
 *           behind the last step posted before it, before the next one posted after it, so it
 *           reads one version of the weights, and says which.
 * Threads   post: any thread. issue: the submitter. finish: UPDATE's completion thread. Outputs are
 *           made under the model's lock and never removed before the model is; contexts and plans
 *           are taken under the chain's short lock.
 * Progress  a post never waits once its output and batch size are planned.
 * Memory    the first call for an output or batch size allocates. LOCAL values are per plan, not
 *           per context: plans of one model run one after the other on the device, since each
 *           forks from UPDATE and joins it again. Inputs are copied on TRANS meanwhile.
 */
#include "infer.h"

#include <sched.h>

#include "diff.h"
#include "stage.h"
#include "trainer.h"

#define CONTEXTS 4u /* inferences of one output under way at most */
#define PLANS    8u /* batch sizes whose plans are kept, per output */

typedef struct infer_plan {
    uint32_t batch; /* 0 = empty; the members below change only while it is and in_flight is 0 */
    ren__plan *plan;
    void **externals; /* the submitter's; filled anew for each issue */
    uint32_t external_count;
    uint32_t *input_values;
    uint32_t output_value;
    uint32_t need[REN_STREAM_COUNT];
    uint64_t last_used; /* under the chain's lock */
    uint32_t in_flight; /* under the chain's lock */
} infer_plan;

typedef struct infer_input {
    uint32_t node;
    uint64_t row_bytes;
    uint64_t bytes;
} infer_input;

typedef struct infer_context {
    ren__infer_output *output;
    uint64_t seq;
    infer_plan *plan;
    uint32_t batch;
    uint32_t in_use; /* under the chain's lock */
    void **device;   /* by input */
    const void **source;
    ren__stage stage;
    uint32_t uses_stage;
    unsigned char *stage_memory;
    unsigned char *bounce; /* pinned output, where the device cannot copy to any host memory */
    void *out;
    uint64_t out_bytes;
    ren__event *copied;
    uint64_t version;
} infer_context;

struct ren__infer_output {
    ren__infer_output *next;
    ren_model *model;
    uint32_t node;
    uint32_t batch; /* the full one */
    uint64_t bytes; /* of the full batch */
    uint32_t is_loss;
    uint32_t pageable;
    infer_input *inputs;
    uint32_t input_count;
    ren__region region; /* inputs of all contexts */
    unsigned char *pinned;
    uint64_t pinned_bytes;
    void **device;
    const void **source;
    ren__stage_copy *copies;
    uint64_t uses; /* under the chain's lock */
    infer_context contexts[CONTEXTS];
    infer_plan plans[PLANS];
};

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + REN__ALIGN - 1) / REN__ALIGN * REN__ALIGN;
}

static uint64_t output_bytes(const ren__infer_output *o, uint32_t batch)
{
    return o->is_loss ? o->bytes : o->bytes / o->batch * batch;
}

/* ------------------------------------------------------------------ plans */

static void drop_plan(ren__infer_output *o, infer_plan *ip)
{
    const ren__host_allocator *a = o->model->allocator;
    ren__plan_destroy(ip->plan);
    ren__host_free(a, ip->externals, ip->external_count, sizeof ip->externals[0]);
    ren__host_free(a, ip->input_values, o->input_count, sizeof ip->input_values[0]);
    memset(ip, 0, sizeof *ip);
}

/* The copy of the output to the host, the plan's last task. */
static uint32_t add_output(ren__task_graph *g, uint32_t from, uint64_t bytes)
{
    ren__task t;
    memset(&t, 0, sizeof t);
    t.name = "output";
    t.segment = "output";
    t.kind = REN__TASK_COPY;
    t.stream = REN_STREAM_UPDATE;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        t.operand[i] = REN__NO_VALUE;
    }
    t.operand[0] = ren__task_graph_value(g, "output", REN__VALUE_EXTERNAL, bytes);
    t.operand[1] = from;
    t.writes = 1u;
    t.reads = 2u;
    t.bytes = bytes;
    ren__task_graph_add(g, &t);
    return t.operand[0];
}

static ren_status build_plan(ren__infer_output *o, infer_plan *ip, uint32_t batch, ren__diff *d,
                             ren__task_graph *g, ren_error *err)
{
    ren_model *m = o->model;
    ren__plan_config config = {.policy = REN__POLICY_GREEDY,
                               .lanes = ren__runtime_lanes(m->rt),
                               .origin = REN_STREAM_UPDATE,
                               .reuse = 1,
                               .costs = ren__runtime_caps(m->rt)->costs};
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        config.lane_of[i] = ren__runtime_lane(m->rt, (ren_stream)i);
    }
    ren__diff_emit(d, g, batch);
    ip->output_value = add_output(g, d->values[o->node], output_bytes(o, batch));
    ren_status status = ren__plan_build(g, &config, m->allocator, &ip->plan, err);
    if (status != REN_OK) {
        return status;
    }
    ip->external_count = ip->output_value + 1; /* the newest value: ids count up */
    ip->externals = ren__host_calloc(m->allocator, ip->external_count, sizeof ip->externals[0]);
    ip->input_values = ren__host_calloc(m->allocator, o->input_count, sizeof ip->input_values[0]);
    if (!ip->externals || !ip->input_values) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan");
    }
    for (uint32_t i = 0; i < o->input_count; i++) {
        ip->input_values[i] = d->values[o->inputs[i].node];
    }
    if (d->params != REN__NO_VALUE) {
        ip->externals[d->params] = m->region.ptr; /* as fixed[], for the call below */
    }
    status = ren__plan_resolve(ip->plan, m->rt, ip->externals, err);
    ren__plan_need(ip->plan, ip->need);
    return status;
}

/* The model's lock is held; *ip is empty and nobody else fills it. */
static ren_status make_plan(ren__infer_output *o, infer_plan *ip, uint32_t batch, ren_error *err)
{
    ren__diff d;
    ren__task_graph *g = NULL;
    ren_status status = ren__diff_init(&d, o->model, o->node, 0, err);
    if (status != REN_OK) {
        return status;
    }
    status = ren__task_graph_create(o->model->allocator, &g);
    if (status == REN_OK) {
        status = build_plan(o, ip, batch, &d, g, err);
    } else {
        (void)REN__FAIL(err, status, "no host memory for a task graph");
    }
    ren__task_graph_destroy(g);
    ren__diff_deinit(&d);
    if (status != REN_OK) {
        drop_plan(o, ip);
    }
    return status;
}

/* Under the chain's lock: the plan of a batch size, or NULL. */
static infer_plan *find_plan(ren__infer_output *o, uint32_t batch)
{
    for (uint32_t i = 0; i < PLANS; i++) {
        if (o->plans[i].batch == batch) {
            o->plans[i].last_used = ++o->uses;
            return &o->plans[i];
        }
    }
    return NULL;
}

/* Under the chain's lock: a place that nobody uses, made unfindable; NULL when all are
 * in flight. */
static infer_plan *claim_place(ren__infer_output *o)
{
    infer_plan *place = NULL;
    for (uint32_t i = 0; i < PLANS; i++) {
        infer_plan *ip = &o->plans[i];
        if (ip->in_flight == 0 && (!place || ip->last_used < place->last_used)) {
            place = ip;
        }
    }
    if (place) {
        place->batch = 0;
    }
    return place;
}

/* The model's lock is held. */
static ren_status ensure_plan(ren__infer_output *o, uint32_t batch, ren_error *err)
{
    ren__chain *chain = &o->model->chain;
    ren__chain_lock(chain);
    infer_plan *ip = find_plan(o, batch);
    infer_plan *place = ip ? NULL : claim_place(o);
    ren__chain_unlock(chain);
    if (ip) {
        return REN_OK;
    }
    if (!place) {
        return REN_ERR_QUEUE_FULL;
    }
    drop_plan(o, place);
    ren_status status = make_plan(o, place, batch, err);
    if (status == REN_OK) {
        ren__chain_lock(chain);
        place->batch = batch;
        place->last_used = ++o->uses;
        ren__chain_unlock(chain);
    }
    return status;
}

/* ------------------------------------------------------------------ outputs */

static void free_output(ren__infer_output *o)
{
    ren_model *m = o->model;
    const ren__device_api *api = ren__runtime_api(m->rt);
    ren__device *dev = ren__runtime_device(m->rt);
    size_t pairs = (size_t)CONTEXTS * o->input_count;
    for (uint32_t i = 0; i < PLANS; i++) {
        drop_plan(o, &o->plans[i]);
    }
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        if (!ren__stage_is_idle(&o->contexts[i].stage)) {
            ren__chain_await(&m->chain, o->contexts[i].stage.job);
        }
        if (o->contexts[i].copied) {
            api->event_destroy(dev, o->contexts[i].copied);
        }
    }
    if (o->pinned) {
        api->host_free(dev, o->pinned, o->pinned_bytes);
    }
    ren__region_free(m->rt, &o->region);
    ren__host_free(m->allocator, o->device, pairs, sizeof o->device[0]);
    ren__host_free(m->allocator, o->source, pairs, sizeof o->source[0]);
    ren__host_free(m->allocator, o->copies, pairs, sizeof o->copies[0]);
    ren__host_free(m->allocator, o->inputs, o->input_count, sizeof o->inputs[0]);
    ren__host_free(m->allocator, o, 1, sizeof *o);
}

void ren__infer_free_all(ren_model *m)
{
    ren__infer_output *o = atomic_load_explicit(&m->infers, memory_order_relaxed);
    while (o) {
        ren__infer_output *next = o->next;
        free_output(o);
        o = next;
    }
    atomic_store_explicit(&m->infers, NULL, memory_order_relaxed);
}

static ren_status find_inputs(ren__infer_output *o, ren_error *err)
{
    ren_model *m = o->model;
    ren__diff d;
    ren_status status = ren__diff_init(&d, m, o->node, 0, err);
    if (status != REN_OK) {
        return status;
    }
    for (uint32_t i = 0; i <= o->node; i++) {
        o->input_count += d.needed[i] && m->nodes[i]->kind == REN__NODE_INPUT;
    }
    if (o->input_count == 0 || o->input_count > 64) {
        status = REN__FAIL(err, REN_ERR_UNSUPPORTED, "the output needs %u inputs, not 1 to 64",
                           o->input_count);
        o->input_count = 0;
    } else {
        o->inputs = ren__host_calloc(m->allocator, o->input_count, sizeof o->inputs[0]);
        status = o->inputs ? REN_OK : REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory");
    }
    for (uint32_t i = 0, k = 0; status == REN_OK && i <= o->node; i++) {
        if (d.needed[i] && m->nodes[i]->kind == REN__NODE_INPUT) {
            const ren__tensor_desc *desc = &m->nodes[i]->out;
            o->inputs[k].node = i;
            o->inputs[k].bytes = ren__tensor_bytes(desc);
            o->inputs[k].row_bytes = o->inputs[k].bytes / (uint64_t)desc->dims[0];
            o->batch = (uint32_t)desc->dims[0];
            k++;
        }
    }
    ren__diff_deinit(&d);
    return status;
}

static ren_status take_memory(ren__infer_output *o)
{
    ren_model *m = o->model;
    const ren__device_api *api = ren__runtime_api(m->rt);
    ren__device *dev = ren__runtime_device(m->rt);
    size_t pairs = (size_t)CONTEXTS * o->input_count;
    uint64_t inputs = 0;
    for (uint32_t i = 0; i < o->input_count; i++) {
        inputs += align_up(o->inputs[i].bytes);
    }
    o->device = ren__host_calloc(m->allocator, pairs, sizeof o->device[0]);
    o->source = ren__host_calloc(m->allocator, pairs, sizeof o->source[0]);
    o->copies = ren__host_calloc(m->allocator, pairs, sizeof o->copies[0]);
    ren_status status = o->device && o->source && o->copies ? REN_OK : REN_ERR_NO_MEMORY;
    if (status == REN_OK) {
        status = ren__region_alloc(m->rt, CONTEXTS * inputs, &o->region);
    }
    if (status == REN_OK && !o->pageable) {
        void *pinned = NULL;
        o->pinned_bytes = CONTEXTS * (inputs + align_up(o->bytes));
        status = api->host_alloc(dev, o->pinned_bytes, &pinned);
        o->pinned = pinned;
    }
    for (uint32_t c = 0; c < CONTEXTS && status == REN_OK; c++) {
        infer_context *x = &o->contexts[c];
        unsigned char *at = (unsigned char *)o->region.ptr + c * inputs;
        x->output = o;
        x->device = o->device + (size_t)c * o->input_count;
        x->source = o->source + (size_t)c * o->input_count;
        x->stage.copies = o->copies + (size_t)c * o->input_count;
        x->stage.count = o->input_count;
        for (uint32_t i = 0; i < o->input_count; i++) {
            x->device[i] = at;
            at += align_up(o->inputs[i].bytes);
        }
        if (!o->pageable) {
            x->stage_memory = o->pinned + c * (inputs + align_up(o->bytes));
            x->bounce = x->stage_memory + inputs;
        }
        status = api->event_create(dev, 0, &x->copied);
    }
    return status;
}

static ren__infer_output *find_output(ren_model *m, uint32_t node)
{
    /* acquire: pairs with ensure_output's release; the output is complete. */
    ren__infer_output *o = atomic_load_explicit(&m->infers, memory_order_acquire);
    while (o && o->node != node) {
        o = o->next;
    }
    return o;
}

/* The model's lock is held. */
static ren_status ensure_output(ren_model *m, uint32_t node, ren__infer_output **out,
                                ren_error *err)
{
    *out = find_output(m, node);
    if (*out) {
        return REN_OK;
    }
    ren_status status = ren__model_place(m, err);
    if (status != REN_OK) {
        return status;
    }
    ren__infer_output *o = ren__host_calloc(m->allocator, 1, sizeof *o);
    if (!o) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for an inference");
    }
    o->model = m;
    o->node = node;
    o->bytes = ren__tensor_bytes(&m->nodes[node]->out);
    o->is_loss = m->nodes[node]->is_loss;
    o->pageable = m->caps.pageable_copies;
    status = find_inputs(o, err);
    if (status == REN_OK) {
        status = take_memory(o);
        if (status != REN_OK) {
            (void)REN__FAIL(err, status, "no memory for inferences of %s", m->nodes[node]->name);
        }
    }
    if (status != REN_OK) {
        free_output(o);
        return status;
    }
    o->next = atomic_load_explicit(&m->infers, memory_order_relaxed);
    /* release: pairs with find_output's acquire. */
    atomic_store_explicit(&m->infers, o, memory_order_release);
    *out = o;
    return REN_OK;
}

/* The slow way: both the output and the plan for `batch` rows (0 = the full batch). */
static ren_status prepare(ren_model *m, uint32_t node, uint32_t batch, ren__infer_output **out,
                          ren_error *err)
{
    ren_status status = ren__runtime_check_blocking(m->rt);
    if (status != REN_OK) {
        return REN__FAIL(err, status, "an output cannot be planned here");
    }
    pthread_mutex_lock(&m->lock);
    status = m->status;
    if (status == REN_OK) {
        status = ensure_output(m, node, out, err);
    } else if (err) {
        *err = m->error;
    }
    if (status == REN_OK) {
        status = batch <= (*out)->batch ? ensure_plan(*out, batch ? batch : (*out)->batch, err)
                                        : REN_ERR_SHAPE;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

ren_status ren__infer_prepare(ren_model *m, ren_tensor output, ren_error *err)
{
    ren__infer_output *o;
    pthread_mutex_lock(&m->lock);
    uint32_t node = ren__model_node_of(m, output);
    pthread_mutex_unlock(&m->lock);
    if (node == UINT32_MAX) {
        ren_status status = ren__model_status(m, err);
        return status != REN_OK ? status : REN__FAIL(err, REN_ERR_SHAPE, "no tensor of this model");
    }
    return prepare(m, node, 0, &o, err);
}

/* ------------------------------------------------------------------ issue and finish */

static void let_go(infer_context *x)
{
    ren__chain *chain = &x->output->model->chain;
    ren__chain_lock(chain);
    x->plan->in_flight--;
    x->in_use = 0;
    ren__chain_unlock(chain);
}

static ren_status infer_transfer(infer_context *x, ren__submit *s, uint32_t trans, uint32_t update)
{
    const ren__device_api *api = ren__submit_api(s);
    ren__device *dev = ren__submit_device(s);
    const ren__infer_output *o = x->output;
    ren_status status = REN_OK;
    for (uint32_t i = 0; i < o->input_count && status == REN_OK; i++) {
        status =
            api->copy(dev, trans, x->device[i], x->source[i], o->inputs[i].row_bytes * x->batch);
    }
    if (status == REN_OK && trans != update) {
        status = api->event_record(dev, trans, x->copied);
        if (status == REN_OK) {
            status = api->event_wait(dev, update, x->copied);
        }
        ren__submit_count_events(s, 1, 1);
    }
    return status;
}

static ren_status infer_issue(void *self, ren__submit *s)
{
    infer_context *x = self;
    ren__infer_output *o = x->output;
    ren_model *m = o->model;
    ren_status status = REN_OK;
    if (x->uses_stage && !ren__stage_is_done(&x->stage)) {
        status = REN_ERR_ABORTED; /* the job that copies its input was given up */
    }
    if (status == REN_OK) {
        status = ren__model_rejoin(m, s);
    }
    if (status == REN_OK) {
        status = infer_transfer(x, s, ren__submit_lane(s, REN_STREAM_TRANS),
                                ren__submit_lane(s, REN_STREAM_UPDATE));
        for (uint32_t i = 0; i < o->input_count; i++) {
            x->plan->externals[x->plan->input_values[i]] = x->device[i];
        }
        x->plan->externals[x->plan->output_value] = x->bounce ? (void *)x->bounce : x->out;
        if (status == REN_OK) {
            status = ren__plan_issue(x->plan->plan, s, x->plan->externals, 1, 0);
        }
        m->torn |= status != REN_OK;
    }
    x->version = m->steps_issued;
    ren__chain_issued(&m->chain, x->seq);
    return status;
}

static void infer_finish(void *self, ren_completion *c)
{
    infer_context *x = self;
    ren__chain *chain = &x->output->model->chain;
    if (c->status == REN_OK) {
        c->weight_version = x->version;
        if (x->bounce) {
            memcpy(x->out, x->bounce, (size_t)x->out_bytes);
        }
    }
    let_go(x);
    ren__chain_finished(chain);
}

/* ------------------------------------------------------------------ post */

/* A free context with the plan for `batch`, both held; REN_ERR_QUEUE_FULL; REN_ERR_NAME when there
 * is no such plan yet. */
static ren_status take_context(ren__infer_output *o, uint32_t batch, infer_context **out)
{
    ren__chain *chain = &o->model->chain;
    ren_status status = REN_ERR_QUEUE_FULL;
    ren__chain_lock(chain);
    infer_plan *ip = find_plan(o, batch);
    for (uint32_t i = 0; i < CONTEXTS && ip; i++) {
        infer_context *x = &o->contexts[i];
        if (!x->in_use && ren__stage_is_idle(&x->stage)) {
            x->in_use = 1;
            x->plan = ip;
            x->batch = batch;
            ip->in_flight++;
            *out = x;
            status = REN_OK;
            break;
        }
    }
    ren__chain_unlock(chain);
    return ip ? status : REN_ERR_NAME;
}

static uint32_t find_input(const ren__infer_output *o, const char *name)
{
    for (uint32_t i = 0; i < o->input_count; i++) {
        if (strcmp(o->model->nodes[o->inputs[i].node]->name, name) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

static ren_status bind(infer_context *x, const ren_infer_desc *desc)
{
    ren__infer_output *o = x->output;
    unsigned char *at = x->stage_memory;
    uint64_t seen = 0;
    if (desc->binding_count != o->input_count) {
        return REN_ERR_NAME;
    }
    for (uint32_t k = 0; k < desc->binding_count; k++) {
        const ren_binding *b = &desc->bindings[k];
        uint32_t i = find_input(o, b->input);
        if (i == UINT32_MAX || (seen & (UINT64_C(1) << i))) {
            return REN_ERR_NAME;
        }
        seen |= UINT64_C(1) << i;
        if (!b->data) {
            return REN_ERR_INVALID_ARGUMENT;
        }
        if (b->bytes != o->inputs[i].row_bytes * x->batch) {
            return REN_ERR_SHAPE;
        }
        x->source[i] = b->data;
        x->stage.copies[i].from = b->data;
        x->stage.copies[i].bytes = b->bytes;
    }
    x->uses_stage = !o->pageable;
    for (uint32_t i = 0; i < o->input_count && x->uses_stage; i++) {
        x->stage.copies[i].to = at;
        x->source[i] = at;
        at += align_up(o->inputs[i].bytes);
    }
    return REN_OK;
}

static ren_status submit(infer_context *x, const ren_infer_desc *desc, ren_job *out_job)
{
    ren__infer_output *o = x->output;
    ren__chain_post post = {.seq = &x->seq,
                            .done = desc->done,
                            .user = desc->user,
                            .deliver = desc->deliver,
                            .channel = desc->channel};
    post.work.issue = infer_issue;
    post.work.finish = infer_finish;
    post.work.self = x;
    post.work.stream = REN_STREAM_UPDATE;
    post.work.priority = desc->priority;
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        post.work.need[i] = x->plan->need[i] + REN__REJOIN_NEED;
    }
    post.work.need[REN_STREAM_TRANS] += o->input_count + 1;
    post.work.need[REN_STREAM_UPDATE] += 1;
    if (x->uses_stage) {
        post.stage = ren__stage_run;
        post.stage_user = &x->stage;
        post.stage_job = &x->stage.job;
        ren__stage_arm(&x->stage);
    }
    ren_status status = ren__chain_submit(&o->model->chain, &post, out_job);
    if (status != REN_OK && x->uses_stage) {
        if (x->stage.job.id) {
            ren__stage_void(&x->stage);
        } else {
            ren__stage_disarm(&x->stage);
        }
    }
    return status;
}

ren_status ren__infer(ren_model *m, const ren_infer_desc *desc, ren_job *out_job)
{
    infer_context *x = NULL;
    if (out_job) {
        out_job->id = 0;
    }
    ren_status status = ren__runtime_status(m->rt, NULL);
    if (status != REN_OK) {
        return status;
    }
    uint32_t node = ren__model_node_of(m, desc->output);
    if (node == UINT32_MAX) {
        return REN_ERR_SHAPE;
    }
    ren__infer_output *o = find_output(m, node);
    status = o ? REN_OK : prepare(m, node, desc->batch, &o, NULL);
    if (status != REN_OK) {
        return status;
    }
    uint32_t batch = desc->batch ? desc->batch : o->batch;
    if (batch > o->batch || desc->out_bytes != output_bytes(o, batch)) {
        return REN_ERR_SHAPE;
    }
    status = take_context(o, batch, &x);
    if (status == REN_ERR_NAME) {
        status = prepare(m, node, batch, &o, NULL);
        status = status == REN_OK ? take_context(o, batch, &x) : status;
        status = status == REN_ERR_NAME ? REN_ERR_QUEUE_FULL : status;
    }
    if (status != REN_OK) {
        return status;
    }
    x->out = desc->out_data;
    x->out_bytes = desc->out_bytes;
    status = bind(x, desc);
    if (status == REN_OK) {
        status = submit(x, desc, out_job);
    }
    if (status != REN_OK) {
        let_go(x);
    }
    return status;
}
