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
