/* SPDX-License-Identifier: MIT */
/* libren/graph/events.c - from edges to waits: the fewest events that keep the order.
 *
 * Purpose   Put each task on its lane and decide for which tasks of other lanes it must wait.
 * Threads   one.
 * Memory    the list of waits, in the plan; nothing else.
 * Not here  which lane a task runs on, see assign.c; recording and waiting, see issue.c.
 *
 * What is known. A lane runs its tasks in order, so "lane l is complete up to task t" is one
 * number, and five numbers, a clock, say all that a point of the plan can be sure of. A task starts
 * with the clock of the task before it on its lane. A wait for task p merges p's clock and p
 * itself, since the event behind p completes after all that p came after. So knowledge travels with
 * every wait, through any number of lanes.
 *
 * The rule. For task t on lane L, needed[l] is the latest task of lane l that has an edge into t:
 * to know it is to know the earlier ones. The needed tasks are looked at from the latest in program
 * order to the earliest, and t waits for one only if the clock, waits just made included, does not
 * cover it.
 *
 * Why no smaller set does. Let R be the order that lanes and edges force: the transitive closure of
 * "next on the same lane" and "has an edge into". (1) The clocks are exact: x is known at t if and
 * only if x R t. That is so by induction on program order, as all clocks of earlier tasks are exact
 * and t's clock is the union over its predecessor on the lane and its waits, which reach every
 * edge. (2) Each wait (p, t) is a covering pair of R: nothing lies between. Suppose p R q and q R
 * t. If the last step from q to t is the lane's, then t's predecessor on L knows p by (1), and no
 * wait was made. If it is an edge from some q' with p R q' (or q' = q), then q' is later than p in
 * program order; it, or the latest needed task of its lane, which is at or behind q', was looked at
 * first and brought p along. Either way the wait (p, t) was not made. (3) The covering pairs of a
 * finite order are in every relation whose closure it is (its transitive reduction is unique). So
 * every set of point-to-point waits that forces exactly R contains all waits made here; and taking
 * any one of them away loses the very edge that asked for it. A set with fewer waits must force
 * order that no edge asks for, which is lost overlap.
 *
 * Fork and join. The join is a task of its own behind the last one, on origin's lane, that needs
 * the last task of every lane; the rule above gives its waits. At the start a lane waits for
 * origin's start event only if its first task waits for nothing: otherwise that wait leads, in the
 * end, to a task on origin's lane or on a lane that waits for the start.
 */
#include "internal.h"

static void learn(ren__clock *clock, const ren__clock *other)
{
    for (uint32_t l = 0; l < REN__LANES; l++) {
        if (other->after[l] > clock->after[l]) {
            clock->after[l] = other->after[l];
        }
    }
}

static void raise_to(const ren__plan *plan, ren__clock *clock, uint32_t task)
{
    uint32_t lane = plan->nodes[task].lane;
    if (clock->after[lane] < task + 1u) {
        clock->after[lane] = task + 1u;
    }
}

static ren__clock needed_by(const ren__plan *plan, uint32_t task)
{
    const ren__plan_node *node = &plan->nodes[task];
    ren__clock needed = {{0}};
    for (uint32_t i = 0; i < node->data_count; i++) {
        raise_to(plan, &needed, ren__plan_edges(&plan->data)[node->data_first + i].from);
    }
    for (uint32_t i = 0; i < node->order_count; i++) {
        raise_to(plan, &needed, ren__plan_edges(&plan->order)[node->order_first + i].from);
    }
    return needed;
}

/* The lane with the latest needed task that is not known; REN__LANES when all are. */
static uint32_t latest_unknown(const ren__clock *needed, const ren__clock *known)
{
    uint32_t best = REN__LANES;
    for (uint32_t l = 0; l < REN__LANES; l++) {
        if (needed->after[l] > known->after[l] &&
            (best == REN__LANES || needed->after[l] > needed->after[best])) {
            best = l;
        }
    }
    return best;
}

uint32_t ren__clock_waits(const ren__clock *now, const ren__clock *known, const ren__clock *needed,
                          uint32_t out_producers[REN__LANES], ren__clock *out_known)
{
    uint32_t count = 0;
    *out_known = *now; /* holds the lane's own past, so it never waits for it */
    for (uint32_t l = latest_unknown(needed, out_known); l < REN__LANES;
         l = latest_unknown(needed, out_known)) {
        uint32_t producer = needed->after[l] - 1u;
        out_producers[count++] = producer;
        learn(out_known, &known[producer]);
        out_known->after[l] = producer + 1u;
    }
    return count;
}

static ren_status add_waits(ren__plan *plan, uint32_t task, const ren__clock *needed)
{
    ren__plan_node *node = &plan->nodes[task];
    uint32_t producers[REN__LANES];
    node->wait_first = plan->waits.count;
    node->wait_count = ren__clock_waits(&plan->lanes[node->lane].known, plan->known, needed,
                                        producers, &plan->known[task]);
    node->event = REN__NO_EVENT;
    for (uint32_t i = 0; i < node->wait_count; i++) {
        uint32_t *slot = ren__array_push(&plan->waits, sizeof *slot, &plan->allocator);
        if (!slot) {
            return REN_ERR_NO_MEMORY;
        }
        *slot = producers[i];
    }
    return REN_OK;
}

ren_status ren__plan_place_task(ren__plan *plan, uint32_t task)
{
    ren__lane_state *lane = &plan->lanes[plan->nodes[task].lane];
    ren__clock needed = needed_by(plan, task);
    ren_status status = add_waits(plan, task, &needed);
    if (status != REN_OK) {
        return status;
    }
    if (!lane->used) {
        lane->used = 1;
        lane->first = task;
    }
    lane->last = task;
    lane->known = plan->known[task];
    lane->known.after[plan->nodes[task].lane] = task + 1u;
    return REN_OK;
}

static void number_events(ren__plan *plan)
{
    for (uint32_t i = 0; i < plan->waits.count; i++) {
        ren__plan_node *producer = &plan->nodes[ren__plan_producer(plan, i)];
        if (producer->event == REN__NO_EVENT) {
            producer->event = plan->event_count++;
        }
    }
}

ren_status ren__plan_close(ren__plan *plan)
{
    ren__clock needed = {{0}};
    for (uint32_t l = 0; l < REN__LANES; l++) {
        ren__lane_state *lane = &plan->lanes[l];
        if (!lane->used) {
            continue;
        }
        needed.after[l] = lane->last + 1u;
        lane->fork = l != plan->origin_lane && plan->nodes[lane->first].wait_count == 0;
        plan->forks |= lane->fork << l;
        plan->counts.lanes_used++;
    }
    plan->counts.waits = plan->waits.count;
    for (uint32_t t = 0; t < plan->task_count; t++) {
        plan->nodes[t].event = REN__NO_EVENT;
    }
    number_events(plan);
    plan->counts.events = plan->event_count;

    ren__plan_node *join = &plan->nodes[plan->task_count];
    join->lane = plan->origin_lane;
    join->stream = plan->config.origin;
    ren_status status = add_waits(plan, plan->task_count, &needed);
    number_events(plan);
    return status;
}
