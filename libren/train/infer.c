/* SPDX-License-Identifier: MIT */
/* libren/train/infer.c - requests for one output of a model: posted and let go.
 *
 * Purpose   The fast path of ren_infer. A post finds the output and the shape, takes a free record,
 *           notes where the data come from and where the answer goes, and posts one work.
 * Threads   any, many at once.
 * Progress  a post never waits once its output and number of rows are planned. Records, shapes and
 *           the choice of a stream are lock-free. A request in the model's order holds the chain's
 *           lock for the length of one post; one that takes any version holds no lock.
 * Order     requests on one stream complete in the order of their issue.
 * Memory    none, but for what ren__infer_make takes.
 *
 * Streams. A request that names none goes to the compute stream that has least to do for this
 * model: requests count, and each step under way counts on the streams that its plan uses, since a
 * request would stand behind its commands there. The search begins one further each time, so equal
 * streams take turns.
 *
 * Input on a device that copies from pinned memory alone. What a HOST job on TRANS would do costs
 * two threads' wake-ups, and waits for the copies of training steps before it. So the post itself
 * copies inputs that are small together (INLINE_BYTES: about 5 us); larger ones go by the job.
 */
#include "infer.h"

#include <inttypes.h>

#include "bindings.h"
#include "trainer.h"

#define INLINE_BYTES 65536u

/* ------------------------------------------------------------------ records */

static ren__infer_request *take_request(ren__infer_output *o)
{
    uint32_t index = ren__index_stack_pop(&o->free);
    return index == REN__INDEX_NONE ? NULL : &o->requests[index];
}

static void give_request_back(ren__infer_request *x)
{
    ren__index_stack_push(&x->output->free, x->index);
}

void ren__infer_let_go(ren__infer_request *x, uint32_t staging)
{
    /* relaxed: only a hint for pick_lane. */
    atomic_fetch_sub_explicit(&x->output->model->infer_load[x->lane_index], 1,
                              memory_order_relaxed);
    ren__infer_leave_shape(x->shape);
    if (!staging) {
        give_request_back(x);
    }
}

/* The job that copies the inputs. Where its request was refused or cancelled meanwhile, it gives
 * the record back, since until now it might have looked at it. */
static void run_stage(void *self)
{
    ren__infer_request *x = self;
    if (!ren__stage_copy_all(&x->stage)) {
        give_request_back(x);
    }
}

/* ------------------------------------------------------------------ binding */

static uint32_t find_input(const ren__infer_output *o, const char *name)
{
    for (uint32_t i = 0; i < o->input_count; i++) {
        if (strcmp(o->model->nodes[o->inputs[i].node]->name, name) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

static ren_status refuse_names(const ren__infer_output *o, const ren_infer_desc *desc)
{
    const char *names[REN__INFER_INPUTS];
    for (uint32_t i = 0; i < o->input_count; i++) {
        names[i] = o->model->nodes[o->inputs[i].node]->name;
    }
    return ren__bindings_refuse(o->model->rt, "inference", desc->bindings, desc->binding_count,
                                names, o->input_count);
}

static ren_status bind(ren__infer_request *x, const ren_infer_desc *desc)
{
    const ren__infer_output *o = x->output;
    uint64_t seen = 0;
    if (desc->binding_count != o->input_count) {
        return refuse_names(o, desc);
    }
    for (uint32_t k = 0; k < desc->binding_count; k++) {
        const ren_binding *b = &desc->bindings[k];
        uint32_t i = find_input(o, b->input);
        if (i == UINT32_MAX || (seen & (UINT64_C(1) << i))) {
            return refuse_names(o, desc);
        }
        seen |= UINT64_C(1) << i;
        if (!b->data) {
            return ren__runtime_refuse(o->model->rt, REN_ERR_INVALID_ARGUMENT,
                                       "inference: input \"%s\" has no data", b->input);
        }
        uint64_t bytes = o->inputs[i].row_bytes * x->batch;
        if (b->bytes != bytes) {
            return ren__runtime_refuse(o->model->rt, REN_ERR_SHAPE,
                                       "inference: input \"%s\" has %zu bytes, not %" PRIu64
                                       " for %u rows",
                                       b->input, b->bytes, bytes, x->batch);
        }
        x->source[i] = b->data;
    }
    return REN_OK;
}

/* Where the lane cannot copy from the host's memory: by way of pinned memory. */
static void stage_inputs(ren__infer_request *x)
{
    const ren__infer_output *o = x->output;
    unsigned char *at = x->staged;
    uint64_t total = 0;
    x->uses_stage = 0;
    for (uint32_t i = 0; i < o->input_count && at; i++) {
        ren__stage_copy *copy = &x->stage.copies[i];
        copy->from = x->source[i];
        copy->to = at;
        copy->bytes = o->inputs[i].row_bytes * x->batch;
        x->source[i] = at;
        total += copy->bytes;
        at += (o->inputs[i].bytes + REN__ALIGN - 1) / REN__ALIGN * REN__ALIGN;
    }
    if (total > INLINE_BYTES) {
        x->uses_stage = 1;
        return;
    }
    for (uint32_t i = 0; i < o->input_count && x->staged; i++) {
        const ren__stage_copy *copy = &x->stage.copies[i];
        memcpy(copy->to, copy->from, (size_t)copy->bytes);
    }
}

/* ------------------------------------------------------------------ posting */

static void pick_lane(ren__infer_request *x, ren_stream wanted)
{
    ren_model *m = x->output->model;
    uint32_t count = m->infer_lanes;
    uint32_t best = m->infer_lane_of[wanted];
    if (wanted == REN_STREAM_TRANS) {
        uint32_t start = atomic_fetch_add_explicit(&m->infer_turn, 1, memory_order_relaxed);
        uint32_t least = UINT32_MAX;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t lane = (start + i) % count;
            uint32_t load = atomic_load_explicit(&m->infer_load[lane], memory_order_relaxed);
            if (load < least) {
                least = load;
                best = lane;
            }
        }
    }
    atomic_fetch_add_explicit(&m->infer_load[best], 1, memory_order_relaxed);
    x->lane_index = best;
    x->lane = &x->shape->lanes[best];
    x->stream = wanted == REN_STREAM_TRANS ? m->infer_stream[best] : wanted;
}

static ren_status submit(ren__infer_request *x, const ren_infer_desc *desc, ren_job *out_job)
{
    ren__chain_post post = {.seq = &x->seq,
                            .loose = x->any_version,
                            .done = desc->done,
                            .user = desc->user,
                            .deliver = desc->deliver,
                            .channel = desc->channel};
    ren__infer_work(x, &post.work);
    post.work.priority = desc->priority;
    if (x->to_buffer) {
        post.work.buffer = desc->out_buffer;
        post.work.buffer_offset = desc->out_offset;
        post.work.buffer_bytes = desc->out_bytes;
    }
    if (x->uses_stage) {
        post.stage = run_stage;
        post.stage_user = x;
        post.stage_job = &x->stage.job;
        ren__stage_arm(&x->stage);
    }
    /* From here on an accepted request may be done, and another call's. */
    ren_status status = ren__chain_submit(&x->output->model->chain, &post, out_job);
    if (!desc->out_data && (status == REN_ERR_INVALID_ARGUMENT || status == REN_ERR_STALE)) {
        (void)ren__runtime_refuse(x->output->model->rt, status, "inference: out_buffer %s",
                                  status == REN_ERR_STALE
                                      ? "was freed"
                                      : "is none of this runtime, or out_offset and out_bytes "
                                        "reach beyond its end");
    }
    return status;
}

/* After a refusal. The job that copies the inputs may have been accepted all the same. */
static void take_back(ren__infer_request *x)
{
    uint32_t staging = 0;
    if (x->uses_stage && x->stage.job.id) {
        staging = ren__stage_void(&x->stage);
    } else if (x->uses_stage) {
        ren__stage_disarm(&x->stage);
    }
    ren__infer_let_go(x, staging);
}

/* The shape is the caller's, and goes to the request or back. */
static ren_status post(ren__infer_output *o, ren__infer_shape *shape, uint32_t batch,
                       const ren_infer_desc *desc, ren_job *out_job)
{
    ren__infer_request *x = take_request(o);
    if (!x) {
        ren__infer_leave_shape(shape);
        return REN_ERR_QUEUE_FULL;
    }
    x->shape = shape;
    x->batch = batch;
    x->any_version = desc->any_version != 0;
    x->to_buffer = desc->out_data == NULL;
    x->out = desc->out_data;
    x->out_bytes = desc->out_bytes;
    ren_status status = bind(x, desc);
    if (status != REN_OK) {
        ren__infer_leave_shape(shape);
        give_request_back(x);
        return status;
    }
    stage_inputs(x);
    pick_lane(x, desc->stream);
    status = submit(x, desc, out_job);
    if (status != REN_OK) {
        take_back(x);
    }
    return status;
}

ren_status ren__infer(ren_model *m, const ren_infer_desc *desc, ren_job *out_job)
{
    if (out_job) {
        out_job->id = 0;
    }
    ren_status status = ren__runtime_status(m->rt, NULL);
    if (status != REN_OK) {
        return status;
    }
    uint32_t node = ren__model_node_of(m, desc->output);
    if (node == UINT32_MAX) {
        return ren__runtime_refuse(m->rt, REN_ERR_SHAPE,
                                   "inference: output is no tensor of this model");
    }
    ren__infer_output *o = ren__infer_find(m, node);
    status = o ? REN_OK : ren__infer_make(m, node, desc->batch, &o, NULL);
    if (status != REN_OK) {
        return status;
    }
    uint32_t batch = desc->batch ? desc->batch : o->batch;
    if (batch > o->batch) {
        return ren__runtime_refuse(m->rt, REN_ERR_SHAPE, "inference: batch is %u, more than %u",
                                   batch, o->batch);
    }
    uint64_t bytes = ren__infer_output_bytes(o, batch);
    if (desc->out_bytes != bytes) {
        return ren__runtime_refuse(m->rt, REN_ERR_SHAPE,
                                   "inference: out_bytes is %zu, not %" PRIu64 " for %u rows",
                                   desc->out_bytes, bytes, batch);
    }
    if (m->infer_lane_of[desc->stream] == UINT32_MAX) {
        return ren__runtime_refuse(m->rt, REN_ERR_UNSUPPORTED,
                                   "inference: stream %d is beyond config.infer_streams",
                                   (int)desc->stream);
    }
    ren__infer_shape *shape = ren__infer_take_shape(o, batch);
    if (!shape) {
        status = ren__infer_make(m, node, batch, &o, NULL);
        shape = status == REN_OK ? ren__infer_take_shape(o, batch) : NULL;
        status = status == REN_OK && !shape ? REN_ERR_QUEUE_FULL : status;
    }
    return shape ? post(o, shape, batch, desc, out_job) : status;
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
    return ren__infer_make(m, node, 0, &o, err);
}
