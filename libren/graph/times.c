/* SPDX-License-Identifier: MIT */
/* libren/graph/times.c - a plan's stamps as a picture and as sums.
 *
 * Purpose   When an issue of the plan is done and its stamps are there, say in the trace which task
 *           ran when, on which stream and behind which others, and add up how each lane spent its
 *           time.
 * Threads   any; the plan is only read.
 * Memory    none.
 * Units     ns on the device's clock.
 *
 * A lane's share of the step is from the start of its first task to the end of its last. Tasks of a
 * lane never overlap, so what is not inside a task is a bubble: the lane waited for another lane's
 * event, or for its next command. Before its first task and after its last a lane is not missing
 * anything: the plan gave it nothing to do.
 */
#include "internal.h"

static const char *const verbs[REN__OP_KINDS] = {
    [REN__OP_NONE] = "none",
    [REN__OP_LINEAR_FWD] = "linear_fwd",
    [REN__OP_LINEAR_BWD_DATA] = "linear_bwd_data",
    [REN__OP_LINEAR_BWD_WEIGHT] = "linear_bwd_weight",
    [REN__OP_BIAS_GRAD] = "bias_grad",
    [REN__OP_CONV_FWD] = "conv_fwd",
    [REN__OP_CONV_BWD_DATA] = "conv_bwd_data",
    [REN__OP_CONV_BWD_WEIGHT] = "conv_bwd_weight",
    [REN__OP_MAX_POOL_FWD] = "max_pool_fwd",
    [REN__OP_MAX_POOL_BWD] = "max_pool_bwd",
    [REN__OP_AVG_POOL_FWD] = "avg_pool_fwd",
    [REN__OP_AVG_POOL_BWD] = "avg_pool_bwd",
    [REN__OP_GLOBAL_AVG_FWD] = "global_avg_fwd",
    [REN__OP_GLOBAL_AVG_BWD] = "global_avg_bwd",
    [REN__OP_BATCH_NORM_TRAIN] = "batch_norm_train",
    [REN__OP_BATCH_NORM_BWD] = "batch_norm_bwd",
    [REN__OP_BATCH_NORM_EVAL] = "batch_norm_eval",
    [REN__OP_BATCH_NORM_FOLD] = "batch_norm_fold",
    [REN__OP_ACT_FWD] = "act_fwd",
    [REN__OP_ACT_BWD] = "act_bwd",
    [REN__OP_DROPOUT_FWD] = "dropout_fwd",
    [REN__OP_DROPOUT_BWD] = "dropout_bwd",
    [REN__OP_ADD] = "add",
    [REN__OP_CONCAT] = "concat",
    [REN__OP_SPLIT] = "split",
    [REN__OP_XENT_FWD] = "xent_fwd",
    [REN__OP_XENT_BWD] = "xent_bwd",
    [REN__OP_MSE_FWD] = "mse_fwd",
    [REN__OP_MSE_BWD] = "mse_bwd",
    [REN__OP_HUBER_FWD] = "huber_fwd",
    [REN__OP_HUBER_BWD] = "huber_bwd",
    [REN__OP_CHECK] = "check",
    [REN__OP_ADVANCE] = "advance",
    [REN__OP_SGD] = "sgd",
    [REN__OP_ADAM] = "adam",
    [REN__OP_ADAMW] = "adamw",
    [REN__OP_LARS] = "lars",
    [REN__OP_EMA] = "ema",
    [REN__OP_CAST] = "cast",
    [REN__OP_COMMIT] = "commit",
};

const char *ren__task_verb(const ren__task *task)
{
    const char *verb = task->kind == REN__TASK_COPY   ? "copy"
                       : task->kind == REN__TASK_FILL ? "fill"
                                                      : verbs[task->op.kind];
    return verb ? verb : "op";
}

typedef struct lane_times {
    uint64_t first_ns, last_ns, busy_ns;
} lane_times;

static bool is_known(const uint64_t *stamps, uint32_t t)
{
    return stamps[2 * t] && stamps[2 * t + 1] >= stamps[2 * t];
}

/* An arrow out of task `from`, or, for the plan's end, out of the task that it waits for. */
static void trace_wait(const ren__plan *plan, ren__trace_slot *trace, const uint64_t *stamps,
                       uint32_t from, uint32_t to_track, uint64_t to_ns)
{
    if (is_known(stamps, from)) {
        ren__trace_flow(trace, "event", REN__TRACK_STREAM + (uint32_t)plan->nodes[from].stream,
                        ren__trace_inside(stamps[2 * from], stamps[2 * from + 1]), to_track, to_ns,
                        REN__TRACE_DEVICE);
    }
}

static void trace_waits(const ren__plan *plan, ren__trace_slot *trace, const uint64_t *stamps,
                        const ren__plan_node *node, uint64_t to_ns)
{
    for (uint32_t i = 0; i < node->wait_count; i++) {
        trace_wait(plan, trace, stamps, ren__plan_producer(plan, node->wait_first + i),
                   REN__TRACK_STREAM + (uint32_t)node->stream, to_ns);
    }
}

static void trace_task(const ren__plan *plan, ren__trace_slot *trace, const uint64_t *stamps,
                       uint32_t t, uint64_t value)
{
    const ren__plan_node *node = &plan->nodes[t];
    const ren__trace_event span = {.kind = REN__TRACE_SPAN,
                                   .track = REN__TRACK_STREAM + (uint32_t)node->stream,
                                   .device = REN__TRACE_DEVICE,
                                   .begin_ns = stamps[2 * t],
                                   .end_ns = stamps[2 * t + 1],
                                   .value = value,
                                   .name = plan->tasks[t].name,
                                   .detail = ren__task_verb(&plan->tasks[t])};
    ren__trace_put(trace, &span);
    trace_waits(plan, trace, stamps, node, stamps[2 * t]);
}

static void add_task(lane_times *lane, uint64_t begin, uint64_t end)
{
    lane->first_ns = lane->first_ns ? lane->first_ns : begin;
    lane->last_ns = end;
    lane->busy_ns += end - begin;
}

static void add_lanes(const ren__plan *plan, const lane_times lanes[REN__LANES],
                      ren__plan_times *out)
{
    for (uint32_t l = 0; l < REN__LANES; l++) {
        if (!lanes[l].first_ns) {
            continue;
        }
        ren_stream s = ren__plan_spokesman(plan, l);
        out->sums.busy_ns[s] = lanes[l].busy_ns;
        out->sums.bubble_ns[s] = lanes[l].last_ns - lanes[l].first_ns - lanes[l].busy_ns;
        out->first_ns =
            !out->first_ns || lanes[l].first_ns < out->first_ns ? lanes[l].first_ns : out->first_ns;
        out->last_ns = lanes[l].last_ns > out->last_ns ? lanes[l].last_ns : out->last_ns;
    }
    out->sums.device_ns = out->last_ns - out->first_ns;
}

void ren__plan_trace(const ren__plan *plan, ren__trace_slot *trace, const uint64_t *stamps,
                     uint64_t value, uint64_t before, uint64_t after, ren__plan_times *out)
{
    lane_times lanes[REN__LANES] = {{0, 0, 0}};
    *out = (ren__plan_times){.sums.events = plan->counts.waits};
    for (uint32_t t = 0; t < plan->task_count; t++) {
        lane_times *lane = &lanes[plan->nodes[t].lane];
        if (!is_known(stamps, t)) {
            continue;
        }
        if (!lane->first_ns && before) {
            ren__trace_flow(trace, "event", REN__TRACK_STREAM + REN_STREAM_TRANS, before,
                            REN__TRACK_STREAM + (uint32_t)plan->nodes[t].stream, stamps[2 * t],
                            REN__TRACE_DEVICE);
        }
        add_task(lane, stamps[2 * t], stamps[2 * t + 1]);
        trace_task(plan, trace, stamps, t, value);
        out->sums.tasks++;
    }
    if (after) {
        trace_waits(plan, trace, stamps, &plan->nodes[plan->task_count], after);
    }
    add_lanes(plan, lanes, out);
}
