/* SPDX-License-Identifier: MIT */
/* libren/train/infer_issue.c - an inference on the submitter, and its end.
 *
 * Purpose   Put one request into the lane of its stream:
 *
 *             COMP_k   wait for the weights . copy the inputs . the plan . copy the output
 *
 *           and hand the answer over when the lane is past it.
 * Threads   renew_need, issue: the submitter. finish: the stream's completion thread, or the
 *           submitter for a request that was never issued.
 * Progress  never waits for the device.
 * Memory    none is taken, but for the device's graphs.
 *
 * One lane, all of it. The copies go where the plan goes, not to TRANS, for two reasons. TRANS
 * holds the copies of training steps, which wait for the step that still reads their place: behind
 * them an inference would wait for training. And commands of one lane need no events between them,
 * which for a small network are a good part of the whole. Copies of one request overlap the work
 * of those on other streams.
 *
 * Reuse. Inputs, activations and result of a lane are used by one request after the other. Each is
 * written and read on this lane alone, so its order is enough; a request that broke off left
 * commands which the next comes behind. What leaves the lane is the answer, and the record of the
 * request, which is not used again before its job is done.
 *
 * Paths. As a step, a plan is issued task by task at first and replayed as a graph later
 * (replay.h). Its places are the two sets of weights: input memory and activations are the lane's
 * own and stay where they are. The copies of inputs and output, whose host side varies, stay
 * outside.
 *
 * Faults. A device call that fails makes this request fail. Nothing else depends on it: a set half
 * made is not used (weights.c), and the lane's memory holds nothing that the next request reads.
 */
#include "infer.h"

#define REST_COMMANDS 8u /* waits and copies besides the inputs' */

static ren_status copy_inputs(const ren__infer_request *x, ren__submit *s, uint32_t lane)
{
    const ren__infer_output *o = x->output;
    ren_status status = REN_OK;
    for (uint32_t i = 0; i < o->input_count && status == REN_OK; i++) {
        status = ren__submit_api(s)->copy(ren__submit_device(s), lane, x->lane->inputs[i],
                                          x->source[i], o->inputs[i].row_bytes * x->batch);
    }
    return status;
}

static ren_status copy_output(const ren__infer_request *x, ren__submit *s, uint32_t lane)
{
    void *to = x->to_buffer ? ren__submit_buffer(s) : x->bounce ? (void *)x->bounce : x->out;
    return ren__submit_api(s)->copy(ren__submit_device(s), lane, to, x->lane->result, x->out_bytes);
}

static ren_status enqueue(ren__infer_request *x, ren__submit *s, const ren__weight_set *set)
{
    ren__infer_lane *l = x->lane;
    uint32_t lane = ren__submit_lane(s, x->stream);
    uint32_t place = set ? (uint32_t)(set - x->output->model->weights.sets) : 0;
    ren_path path;
    ren_status status = copy_inputs(x, s, lane);
    if (set && l->weights_value != REN__NO_VALUE) {
        l->externals[l->weights_value] = set->at;
    }
    if (status == REN_OK && l->tasks) {
        status = ren__replay_issue(&l->replay, s, l->externals, place, NULL, &path);
        if (x->launches && path == REN_PATH_QUEUED) { /* another set than was expected */
            uint32_t more[REN_STREAM_COUNT] = {0};
            more[x->stream] = l->commands;
            ren__submit_count_commands(s, more);
        }
    }
    return status == REN_OK ? copy_output(x, s, lane) : status;
}

static void infer_renew_need(void *self, ren__submit *s, uint32_t need[REN_STREAM_COUNT])
{
    ren__infer_request *x = self;
    const ren__weights *w = &x->output->model->weights;
    x->launches = ren__replay_launches(&x->lane->replay, w->newest, 0);
    memset(need, 0, REN_STREAM_COUNT * sizeof need[0]);
    need[x->stream] =
        (x->launches ? 1 : x->lane->commands) + x->output->input_count + REST_COMMANDS;
    ren__weights_need(x->output->model, s, x->any_version, need);
}

static ren_status infer_issue(void *self, ren__submit *s)
{
    ren__infer_request *x = self;
    ren_model *m = x->output->model;
    ren__weight_set *set = NULL;
    ren_status status = REN_OK;
    if (x->uses_stage && !ren__stage_is_done(&x->stage)) {
        status = REN_ERR_ABORTED; /* the job that copies its input was given up */
    }
    if (status == REN_OK) {
        status = ren__weights_take(m, s, x->stream, x->any_version, &set);
    }
    if (status == REN_OK) {
        status = enqueue(x, s, set);
    }
    if (set) {
        ren__weights_read(set, s, x->stream);
    }
    x->version = set ? set->version : m->steps_issued;
    ren__chain_issued(&m->chain, x->seq);
    return status;
}

static void infer_finish(void *self, ren_completion *c)
{
    ren__infer_request *x = self;
    ren__chain *chain = &x->output->model->chain;
    if (c->status == REN_OK) {
        c->weight_version = x->version;
        if (x->bounce && !x->to_buffer) {
            memcpy(x->out, x->bounce, (size_t)x->out_bytes);
        }
    }
    /* Cancelled before its input was copied: the memory is the host's again, and the job that was
     * to copy from it keeps the record until it has seen so. */
    ren__infer_let_go(x, x->uses_stage && ren__stage_void(&x->stage));
    ren__chain_finished(chain);
}

void ren__infer_work(ren__infer_request *x, ren__work *work)
{
    work->issue = infer_issue;
    work->name = "infer";
    work->finish = infer_finish;
    work->renew_need = infer_renew_need;
    work->self = x;
    work->stream = x->stream;
    work->brief = 1;
}
