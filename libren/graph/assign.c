/* SPDX-License-Identifier: MIT */
/* libren/graph/assign.c - which stream runs a task.
 *
 * Purpose   STATIC takes the table's stream. GREEDY may move a task that allows it to another
 *           compute stream: merge where nothing would overlap, split where something would.
 * Threads   one.
 * Order     tasks are placed in program order; the choice for one never changes an earlier one.
 * Memory    none.
 * Units     costs, as ren__task.cost: flops or bytes; an event costs config.event_cost of them.
 *
 * GREEDY keeps an expected time for every lane and task. On a lane, a task would start when the
 * lane is free and its predecessors have finished, those on other lanes an event later. It takes,
 * in this order of weight:
 *   1. the earliest expected start, so independent work goes to the least loaded lane;
 *   2. the fewest new waits;
 *   3. the table's stream;
 *   4. the lowest stream.
 * A lane that would be free before the predecessors are done cannot start the task any earlier than
 * that, so the first rule speaks only where staying would queue behind unrelated work for longer
 * than an event takes. In a chain it never does: the chain stays on one lane, with no event. The
 * launch of a task counts as half an event, so branches of small tasks stay together too: for them
 * an event costs more than the overlap brings.
 *
 * A task always runs after its predecessors in program order, and the table's stream is always
 * among the candidates. Several streams may share a lane; they are one candidate.
 */
#include "internal.h"

typedef struct candidate {
    ren_stream stream;
    uint32_t lane;
    uint64_t start;
    uint32_t waits;
} candidate;

static uint64_t event_cost(const ren__plan *plan)
{
    return plan->config.event_cost ? plan->config.event_cost : REN__EVENT_COST;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t after_edges(const ren__plan *plan, const ren__array *edges, uint32_t first,
                            uint32_t count, uint32_t lane)
{
    uint64_t start = 0;
    for (uint32_t i = 0; i < count; i++) {
        const ren__plan_node *from = &plan->nodes[ren__plan_edges(edges)[first + i].from];
        uint64_t crossing = from->lane == lane ? 0 : event_cost(plan);
        start = later(start, from->finish + crossing);
    }
    return start;
}

static uint64_t expected_start(const ren__plan *plan, uint32_t task, uint32_t lane)
{
    const ren__plan_node *node = &plan->nodes[task];
    uint64_t data = after_edges(plan, &plan->data, node->data_first, node->data_count, lane);
    uint64_t order = after_edges(plan, &plan->order, node->order_first, node->order_count, lane);
    return later(plan->lanes[lane].free_at, later(data, order));
}

static candidate weigh(const ren__plan *plan, uint32_t task, const ren__clock *needed,
                       ren_stream stream)
{
    uint32_t producers[REN__LANES];
    ren__clock known;
    candidate c = {.stream = stream, .lane = plan->config.lane_of[stream]};
    c.start = expected_start(plan, task, c.lane);
    c.waits = ren__plan_waits_on(plan, c.lane, needed, producers, &known);
    return c;
}

static int better(const candidate *a, const candidate *b)
{
    if (a->start != b->start) {
        return a->start < b->start;
    }
    return a->waits < b->waits;
}

static int is_compute(ren_stream stream)
{
    return stream == REN_STREAM_COMP_1 || stream == REN_STREAM_COMP_2 ||
           stream == REN_STREAM_COMP_3;
}

static ren_stream choose(const ren__plan *plan, uint32_t task)
{
    const ren__task *t = &plan->tasks[task];
    if (plan->config.policy != REN__POLICY_GREEDY || !t->free_stream || !is_compute(t->stream)) {
        return t->stream;
    }
    ren__clock needed;
    ren__plan_needed(plan, task, &needed);
    candidate best = weigh(plan, task, &needed, t->stream); /* and so it wins a draw */
    for (uint32_t s = REN_STREAM_COMP_1; s <= REN_STREAM_COMP_3; s++) {
        candidate c = weigh(plan, task, &needed, (ren_stream)s);
        if (better(&c, &best)) {
            best = c;
        }
    }
    return best.stream;
}

ren_status ren__plan_assign(ren__plan *plan)
{
    for (uint32_t t = 0; t < plan->task_count; t++) {
        ren__plan_node *node = &plan->nodes[t];
        node->stream = choose(plan, t);
        node->lane = plan->config.lane_of[node->stream];
        uint64_t launch = event_cost(plan) / 2u;
        node->finish = expected_start(plan, t, node->lane) + launch + plan->tasks[t].cost;
        plan->lanes[node->lane].free_at = node->finish;
        ren_status status = ren__plan_place_task(plan, t);
        if (status != REN_OK) {
            return status;
        }
    }
    return REN_OK;
}
