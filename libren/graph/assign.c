/* SPDX-License-Identifier: MIT */
/* libren/graph/assign.c - which stream runs a task, and in which order tasks are issued.
 *
 * Purpose   STATIC takes the table's stream and the list's order. GREEDY merges where nothing would
 *           overlap and splits where something would: it plays the plan through on one lane, two
 *           lanes and so on, and takes the fewest that are worth it.
 * Threads   one.
 * Memory    scratch for the call.
 * Units     ns.
 * Not here  how a plan is played, see schedule.c; what a task costs, see cost.c.
 *
 * Lanes. The first is the origin's: the update runs there and everything is joined there, so what
 * stays on it needs neither fork nor join, and a plan on one lane has no event at all. The compute
 * streams' lanes follow. A task that may move runs on any of them; it is then said to be on the
 * table's stream if that is one of the lane's, else on the lane's first. Several streams may share
 * a lane; they are one choice.
 *
 * How many. More lanes must save a thirty-second of the time: less than that is within the error of
 * the figures, and fewer lanes share more memory (place.c).
 */
#include "internal.h"

#define WORTH 32u /* a further lane saves at least this part of the time */

uint32_t ren__task_moves(const ren__task *t)
{
    return t->free_stream && (t->stream == REN_STREAM_COMP_1 || t->stream == REN_STREAM_COMP_2 ||
                              t->stream == REN_STREAM_COMP_3);
}

static uint32_t has_lane(const ren__lane_set *set, uint32_t lane)
{
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->lanes[i] == lane) {
            return 1;
        }
    }
    return 0;
}

static ren__lane_set all_lanes(const ren__plan *plan)
{
    ren__lane_set set = {.count = 1};
    set.lanes[0] = plan->origin_lane;
    for (uint32_t s = REN_STREAM_COMP_1; s <= REN_STREAM_COMP_3; s++) {
        uint32_t lane = plan->config.lane_of[s];
        if (!has_lane(&set, lane)) {
            set.lanes[set.count++] = lane;
        }
    }
    return set;
}

/* The stream under whose name a task runs on a lane. */
static ren_stream stream_on(const ren__plan *plan, uint32_t task, uint32_t lane)
{
    ren_stream stream = plan->tasks[task].stream;
    if (plan->config.lane_of[stream] == lane) {
        return stream;
    }
    for (uint32_t s = REN_STREAM_COMP_1; s <= REN_STREAM_COMP_3; s++) {
        if (plan->config.lane_of[s] == lane) {
            return (ren_stream)s;
        }
    }
    return plan->config.origin;
}

static ren_status place_all(ren__plan *plan)
{
    ren_status status = REN_OK;
    for (uint32_t t = 0; t < plan->task_count && status == REN_OK; t++) {
        status = ren__plan_place_task(plan, t);
    }
    return status;
}

static ren_status assign_static(ren__plan *plan)
{
    for (uint32_t t = 0; t < plan->task_count; t++) {
        plan->nodes[t].stream = plan->tasks[t].stream;
        plan->nodes[t].lane = plan->config.lane_of[plan->tasks[t].stream];
    }
    return place_all(plan);
}

/* ------------------------------------------------------------------ GREEDY */

static ren_status init_schedule(const ren__plan *plan, ren__schedule *s)
{
    size_t tasks = (size_t)plan->task_count + 1u;
    s->order = ren__host_calloc(&plan->allocator, tasks, sizeof *s->order);
    s->lane = ren__host_calloc(&plan->allocator, tasks, sizeof *s->lane);
    return s->order && s->lane ? REN_OK : REN_ERR_NO_MEMORY;
}

static void free_schedule(const ren__plan *plan, ren__schedule *s)
{
    size_t tasks = (size_t)plan->task_count + 1u;
    ren__host_free(&plan->allocator, s->lane, tasks, sizeof *s->lane);
    ren__host_free(&plan->allocator, s->order, tasks, sizeof *s->order);
}

/* Lanes beyond the processors that run them only take them from each other. */
static uint32_t most_lanes(const ren__lane_set *all, const ren__cost_model *model)
{
    uint32_t processors = model->costs.processors;
    return processors && processors < all->count ? processors : all->count;
}

/* Into best; the other is scratch. */
static ren_status find_schedule(const ren__plan *plan, ren__schedule *best, ren__schedule *other)
{
    ren__cost_model model = ren__cost_model_of(&plan->config);
    ren__lane_set all = all_lanes(plan);
    ren__lane_set set = {.count = 1};
    set.lanes[0] = all.lanes[0];
    ren_status status = ren__schedule_play(plan, &model, &set, best);
    while (status == REN_OK && set.count < most_lanes(&all, &model)) {
        set.lanes[set.count] = all.lanes[set.count];
        set.count++;
        status = ren__schedule_play(plan, &model, &set, other);
        if (status == REN_OK &&
            other->expected_ns < best->expected_ns - best->expected_ns / WORTH) {
            ren__schedule better = *other;
            *other = *best;
            *best = better;
        }
    }
    return status;
}

static ren_status assign_greedy(ren__plan *plan)
{
    ren__schedule best = {0};
    ren__schedule other = {0};
    ren_status status = init_schedule(plan, &best);
    if (status == REN_OK) {
        status = init_schedule(plan, &other);
    }
    if (status == REN_OK) {
        status = find_schedule(plan, &best, &other);
    }
    for (uint32_t t = 0; t < plan->task_count && status == REN_OK; t++) {
        plan->nodes[t].lane = best.lane[t];
        plan->nodes[t].stream = stream_on(plan, t, best.lane[t]);
    }
    if (status == REN_OK) {
        plan->counts.expected_ns = best.expected_ns;
        status = ren__plan_reorder(plan, best.order);
    }
    free_schedule(plan, &other);
    free_schedule(plan, &best);
    return status == REN_OK ? place_all(plan) : status;
}

ren_status ren__plan_assign(ren__plan *plan)
{
    return plan->config.policy == REN__POLICY_GREEDY ? assign_greedy(plan) : assign_static(plan);
}
