/* SPDX-License-Identifier: MIT */
/* libren/train/infer_plan.c - what inference prepares once: outputs, shapes, plans.
 *
 * Purpose   An output is made when it is first asked for, with its records; a shape when a number
 *           of rows is first asked for, with a plan and memory for each compute stream in use.
 * Threads   make and free: under the model's lock. find, take_shape, leave_shape: any. Outputs are
 *           never removed before the model is. A shape that nobody uses gives way to a new one when
 *           all places are taken, the one that was used longest ago first.
 * Progress  making is slow; find, take and leave are lock-free.
 * Memory    a shape: inputs, activations and workspaces once per compute stream in use. An output:
 *           pinned room for the inputs and the output of each record, where the device cannot copy
 *           from and to any memory.
 */
#include "infer.h"

#include "diff.h"

#define PINNED_BYTES   (UINT64_C(64) << 20) /* of the records of one output, about */
#define LEAST_REQUESTS 4u

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + REN__ALIGN - 1) / REN__ALIGN * REN__ALIGN;
}

uint64_t ren__infer_output_bytes(const ren__infer_output *o, uint32_t batch)
{
    return o->is_loss ? o->bytes : o->bytes / o->batch * batch;
}

/* ------------------------------------------------------------------ a lane of a shape */

static void drop_lane(ren__infer_output *o, ren__infer_lane *l)
{
    ren__replay_deinit(&l->replay);
    ren__plan_destroy(l->plan);
    ren__host_free(o->model->allocator, l->externals, l->external_count, sizeof l->externals[0]);
}

/* A plan of which every task is on one lane. */
static ren_status build_plan(ren__infer_output *o, ren__infer_lane *l, ren_stream stream,
                             ren__task_graph *g, ren_error *err)
{
    ren_model *m = o->model;
    ren__plan_config config = {.policy = REN__POLICY_STATIC,
                               .lanes = ren__runtime_lanes(m->rt),
                               .origin = stream,
                               .reuse = 1};
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        config.lane_of[i] = ren__runtime_lane(m->rt, stream);
    }
    return ren__plan_build(g, &config, m->allocator, &l->plan, err);
}

/* The output's address: of a value of the plan, or of an input that goes through unchanged. */
static void *find_result(const ren__infer_output *o, const ren__infer_lane *l, const ren__diff *d)
{
    uint32_t value = d->values[o->node];
    for (uint32_t i = 0; i < o->input_count; i++) {
        if (d->values[o->inputs[i].node] == value) {
            return l->inputs[i];
        }
    }
    return ren__plan_address(l->plan, value);
}

static ren_status make_lane(ren__infer_output *o, ren__infer_lane *l, ren_stream stream,
                            const ren__diff *d, ren__task_graph *g, ren_error *err)
{
    ren_model *m = o->model;
    ren__plan_counts counts;
    uint32_t need[REN_STREAM_COUNT];
    ren_status status = build_plan(o, l, stream, g, err);
    if (status != REN_OK) {
        return status;
    }
    ren__plan_get_counts(l->plan, &counts);
    l->tasks = counts.tasks;
    l->external_count = counts.values + 1;
    l->externals = ren__host_calloc(m->allocator, l->external_count, sizeof l->externals[0]);
    if (!l->externals) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan");
    }
    l->weights_value = d->params;
    for (uint32_t i = 0; i < o->input_count; i++) {
        l->externals[d->values[o->inputs[i].node]] = l->inputs[i];
    }
    status = ren__plan_resolve(l->plan, m->rt, NULL, err);
    if (status != REN_OK) {
        return status;
    }
    ren__plan_need(l->plan, need);
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        l->commands += need[i];
    }
    l->result = find_result(o, l, d);
    ren__replay_init(&l->replay, m->rt, l->plan, stream, NULL);
    return l->result ? REN_OK : REN__FAIL(err, REN_ERR_INTERNAL, "an output has no place");
}

/* ------------------------------------------------------------------ shapes */

static void drop_shape(ren__infer_output *o, ren__infer_shape *shape)
{
    ren_model *m = o->model;
    for (uint32_t i = 0; i < m->infer_lanes; i++) {
        drop_lane(o, &shape->lanes[i]);
    }
    ren__region_free(m->rt, &shape->region);
    ren__host_free(m->allocator, shape->inputs, (size_t)m->infer_lanes * o->input_count,
                   sizeof shape->inputs[0]);
    memset(shape->lanes, 0, sizeof shape->lanes);
    shape->inputs = NULL;
}

static ren_status take_inputs(ren__infer_output *o, ren__infer_shape *shape, uint32_t batch,
                              ren_error *err)
{
    ren_model *m = o->model;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < o->input_count; i++) {
        bytes += align_up(o->inputs[i].row_bytes * batch);
    }
    shape->inputs = ren__host_calloc(m->allocator, (size_t)m->infer_lanes * o->input_count,
                                     sizeof shape->inputs[0]);
    ren_status status = shape->inputs
                            ? ren__region_alloc(m->rt, m->infer_lanes * bytes, &shape->region)
                            : REN_ERR_NO_MEMORY;
    if (status != REN_OK) {
        return REN__FAIL(err, status, "memory for the inputs of %s: %s", m->nodes[o->node]->name,
                         ren__status_text(status));
    }
    unsigned char *at = shape->region.ptr;
    for (uint32_t k = 0; k < m->infer_lanes; k++) {
        shape->lanes[k].inputs = shape->inputs + (size_t)k * o->input_count;
        for (uint32_t i = 0; i < o->input_count; i++) {
            shape->lanes[k].inputs[i] = at;
            at += align_up(o->inputs[i].row_bytes * batch);
        }
    }
    return REN_OK;
}

static ren_status fill_shape(ren__infer_output *o, ren__infer_shape *shape, uint32_t batch,
                             ren__diff *d, ren__task_graph *g, ren_error *err)
{
    ren_model *m = o->model;
    ren_status status = take_inputs(o, shape, batch, err);
    if (status == REN_OK) {
        ren__diff_emit(d, g, batch);
    }
    for (uint32_t i = 0; i < m->infer_lanes && status == REN_OK; i++) {
        status = make_lane(o, &shape->lanes[i], m->infer_stream[i], d, g, err);
    }
    return status;
}

/* *shape is empty and nobody else fills it. */
static ren_status make_shape(ren__infer_output *o, ren__infer_shape *shape, uint32_t batch,
                             ren_error *err)
{
    ren__diff d;
    ren__task_graph *g = NULL;
    ren_status status = ren__diff_init(&d, o->model, o->node, 0, err);
    if (status != REN_OK) {
        return status;
    }
    status = ren__task_graph_create(o->model->allocator, &g);
    if (status == REN_OK) {
        status = fill_shape(o, shape, batch, &d, g, err);
    } else {
        (void)REN__FAIL(err, status, "no host memory for a task graph");
    }
    ren__task_graph_destroy(g);
    ren__diff_deinit(&d);
    if (status != REN_OK) {
        drop_shape(o, shape);
    }
    return status;
}

ren__infer_shape *ren__infer_take_shape(ren__infer_output *o, uint32_t batch)
{
    for (uint32_t i = 0; i < REN__INFER_SHAPES; i++) {
        ren__infer_shape *shape = &o->shapes[i];
        uint64_t word = atomic_load_explicit(&shape->word, memory_order_relaxed);
        while (word >> 32 == batch) {
            /* acquire: pairs with ensure_shape's release; the shape is complete. */
            if (atomic_compare_exchange_weak_explicit(&shape->word, &word, word + 1,
                                                      memory_order_acquire, memory_order_relaxed)) {
                uint64_t now = atomic_fetch_add_explicit(&o->uses, 1, memory_order_relaxed);
                atomic_store_explicit(&shape->last_used, now, memory_order_relaxed);
                return shape;
            }
        }
    }
    return NULL;
}

void ren__infer_leave_shape(ren__infer_shape *shape)
{
    /* release: pairs with empty_place's acquire. */
    atomic_fetch_sub_explicit(&shape->word, 1, memory_order_release);
}

/* A place that nobody uses, emptied; NULL when all are in use. */
static ren__infer_shape *empty_place(ren__infer_output *o)
{
    for (;;) {
        ren__infer_shape *oldest = NULL;
        uint64_t seen = 0;
        for (uint32_t i = 0; i < REN__INFER_SHAPES; i++) {
            ren__infer_shape *shape = &o->shapes[i];
            uint64_t word = atomic_load_explicit(&shape->word, memory_order_relaxed);
            if (word == 0) {
                return shape;
            }
            if ((uint32_t)word == 0 &&
                (!oldest || atomic_load_explicit(&shape->last_used, memory_order_relaxed) <
                                atomic_load_explicit(&oldest->last_used, memory_order_relaxed))) {
                oldest = shape;
                seen = word;
            }
        }
        /* acquire: pairs with ren__infer_leave_shape; its last user is done with it. */
        if (!oldest || atomic_compare_exchange_strong_explicit(
                           &oldest->word, &seen, 0, memory_order_acquire, memory_order_relaxed)) {
            return oldest;
        }
    }
}

static ren_status ensure_shape(ren__infer_output *o, uint32_t batch, ren_error *err)
{
    ren__infer_shape *shape = ren__infer_take_shape(o, batch);
    if (shape) {
        ren__infer_leave_shape(shape);
        return REN_OK;
    }
    shape = empty_place(o);
    if (!shape) {
        return REN_ERR_QUEUE_FULL;
    }
    drop_shape(o, shape);
    ren_status status = make_shape(o, shape, batch, err);
    if (status == REN_OK) {
        atomic_store_explicit(&shape->last_used,
                              atomic_fetch_add_explicit(&o->uses, 1, memory_order_relaxed),
                              memory_order_relaxed);
        /* release: pairs with ren__infer_take_shape's acquire. */
        atomic_store_explicit(&shape->word, (uint64_t)batch << 32, memory_order_release);
    }
    return status;
}

/* ------------------------------------------------------------------ outputs */

static void free_output(ren__infer_output *o)
{
    ren_model *m = o->model;
    size_t pairs = (size_t)o->request_count * o->input_count;
    for (uint32_t i = 0; i < REN__INFER_SHAPES; i++) {
        drop_shape(o, &o->shapes[i]);
    }
    for (uint32_t i = 0; o->requests && i < o->request_count; i++) {
        if (!ren__stage_is_idle(&o->requests[i].stage)) {
            ren__chain_await(&m->chain, o->requests[i].stage.job);
        }
    }
    if (o->pinned) {
        ren__runtime_api(m->rt)->host_free(ren__runtime_device(m->rt), o->pinned, o->pinned_bytes);
    }
    ren__host_free(m->allocator, o->sources, pairs, sizeof o->sources[0]);
    ren__host_free(m->allocator, o->copies, pairs, sizeof o->copies[0]);
    ren__host_free(m->allocator, o->requests, o->request_count, sizeof o->requests[0]);
    ren__host_free(m->allocator, o->free_next, o->request_count, sizeof o->free_next[0]);
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
    if (o->input_count == 0 || o->input_count > REN__INFER_INPUTS) {
        status = REN__FAIL(err, REN_ERR_UNSUPPORTED, "the output needs %u inputs, not 1 to %u",
                           o->input_count, REN__INFER_INPUTS);
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

/* How many records: what the host said, or the default, and less where pinned memory would be
 * much. */
static uint32_t count_requests(const ren__infer_output *o, uint64_t pinned_each)
{
    uint64_t most = o->model->infer_requests ? o->model->infer_requests : REN__INFER_REQUESTS;
    if (!o->model->infer_requests && pinned_each && PINNED_BYTES / pinned_each < most) {
        most = PINNED_BYTES / pinned_each;
        most = most < LEAST_REQUESTS ? LEAST_REQUESTS : most;
    }
    return (uint32_t)most;
}

static ren_status take_requests(ren__infer_output *o)
{
    ren_model *m = o->model;
    uint64_t inputs = 0;
    for (uint32_t i = 0; i < o->input_count; i++) {
        inputs += align_up(o->inputs[i].bytes);
    }
    uint64_t each = o->pageable ? 0 : inputs + align_up(o->bytes);
    o->request_count = count_requests(o, each);
    size_t pairs = (size_t)o->request_count * o->input_count;
    o->sources = ren__host_calloc(m->allocator, pairs, sizeof o->sources[0]);
    o->copies = ren__host_calloc(m->allocator, pairs, sizeof o->copies[0]);
    o->requests = ren__host_calloc(m->allocator, o->request_count, sizeof o->requests[0]);
    o->free_next = ren__host_calloc(m->allocator, o->request_count, sizeof o->free_next[0]);
    if (!o->sources || !o->copies || !o->requests || !o->free_next) {
        return REN_ERR_NO_MEMORY;
    }
    if (each) {
        void *pinned = NULL;
        o->pinned_bytes = o->request_count * each;
        ren_status status =
            ren__runtime_seen(m->rt, ren__runtime_api(m->rt)->host_alloc(ren__runtime_device(m->rt),
                                                                         o->pinned_bytes, &pinned));
        o->pinned = pinned;
        if (status != REN_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < o->request_count; i++) {
        ren__infer_request *x = &o->requests[i];
        x->output = o;
        x->index = i;
        x->source = o->sources + (size_t)i * o->input_count;
        x->stage.copies = o->copies + (size_t)i * o->input_count;
        x->stage.count = o->input_count;
        x->staged = each ? o->pinned + i * each : NULL;
        x->bounce = each ? x->staged + inputs : NULL;
    }
    ren__index_stack_init(&o->free, o->free_next, o->request_count, true);
    return REN_OK;
}

ren__infer_output *ren__infer_find(ren_model *m, uint32_t node)
{
    /* acquire: pairs with ensure_output's release; the output is complete. */
    ren__infer_output *o = atomic_load_explicit(&m->infers, memory_order_acquire);
    while (o && o->node != node) {
        o = o->next;
    }
    return o;
}

static ren_status fill_output(ren__infer_output *o, ren_error *err)
{
    ren_model *m = o->model;
    o->bytes = ren__tensor_bytes(&m->nodes[o->node]->out);
    o->is_loss = m->nodes[o->node]->is_loss;
    o->pageable = m->caps.pageable_copies;
    ren_status status = ren__weights_prepare(m, err);
    if (status == REN_OK) {
        status = find_inputs(o, err);
    }
    if (status == REN_OK) {
        status = take_requests(o);
        if (status != REN_OK) {
            (void)REN__FAIL(err, status, "memory for inferences of %s: %s", m->nodes[o->node]->name,
                            ren__status_text(status));
        }
    }
    return status;
}

static ren_status ensure_output(ren_model *m, uint32_t node, ren__infer_output **out,
                                ren_error *err)
{
    *out = ren__infer_find(m, node);
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
    status = fill_output(o, err);
    if (status != REN_OK) {
        free_output(o);
        return status;
    }
    o->next = atomic_load_explicit(&m->infers, memory_order_relaxed);
    /* release: pairs with ren__infer_find's acquire. */
    atomic_store_explicit(&m->infers, o, memory_order_release);
    *out = o;
    return REN_OK;
}

ren_status ren__infer_make(ren_model *m, uint32_t node, uint32_t batch, ren__infer_output **out,
                           ren_error *err)
{
    ren_status status = ren__runtime_check_blocking(m->rt);
    if (status != REN_OK) {
        return REN__FAIL(err, status, "an output cannot be planned here: %s",
                         ren__status_text(status));
    }
    pthread_mutex_lock(&m->lock);
    status = ren__model_built(m);
    if (status == REN_OK) {
        status = ensure_output(m, node, out, err);
    } else if (err) {
        *err = m->error;
    }
    if (status == REN_OK) {
        status = batch <= (*out)->batch ? ensure_shape(*out, batch ? batch : (*out)->batch, err)
                                        : REN_ERR_SHAPE;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}
