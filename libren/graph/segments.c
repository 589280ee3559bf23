/* SPDX-License-Identifier: MIT */
/* libren/graph/segments.c - a plan cut into segments, each of which can be a graph by itself.
 *
 * Purpose   Find the runs of tasks with one label in the order of issue, and for each the lanes
 *           that begin behind the origin and those that the origin must be joined to at its end.
 * Threads   one.
 * Memory    the rows, in the plan.
 * Not here  the order, which schedule.c keeps together by segments; capturing one, see issue.c.
 *
 * Order. A segment begins behind the origin and ends joined to it, and segments are launched one
 * behind the other on the origin's lane. So whatever a task waits for in an earlier segment is
 * complete when its own begins, and that wait is left out. The other waits, those for tasks of the
 * same segment, are enough: a task that needs p and waits neither for p nor for anything else
 * behind p comes behind a chain of waits and lanes that begins at p (events.c), and all of that
 * chain lies between the two in the order of issue, hence inside the segment. A lane is forked
 * where its first task waits for nothing of the segment; otherwise its wait leads, in the end, to
 * one that is. The join is found as the one of a whole plan is.
 *   Values share memory by the order that the uncut plan has anyway; cutting only adds to it.
 *
 * Where it is cut. Between two tasks of different labels, but never behind a task that is lasting:
 * a launch is all or nothing, and so must be what the lasting tasks of an issue do. So they all
 * are in the last segment, and a launch that fails before it leaves a step that did not take place.
 */
#include "internal.h"

#include <string.h>

static void find_ends(const ren__plan *plan, ren__plan_segment *s)
{
    const ren__plan_node *origin = NULL;
    ren__clock now = {{0}}, needed = {{0}}, known;
    uint32_t producers[REN__LANES];
    for (uint32_t t = s->first; t < s->end; t++) {
        const ren__plan_node *node = &plan->nodes[t];
        uint32_t bit = 1u << node->lane, inside = 0;
        for (uint32_t i = 0; i < node->wait_count; i++) {
            inside += ren__plan_producer(plan, node->wait_first + i) >= s->first;
        }
        if (!(s->lanes & bit) && !inside && node->lane != plan->origin_lane) {
            s->forks |= bit;
        }
        s->lanes |= bit;
        needed.after[node->lane] = t + 1u;
        if (node->lane == plan->origin_lane) {
            origin = node;
            now = plan->known[t];
            now.after[plan->origin_lane] = t + 1u;
        }
    }
    for (uint32_t l = 0; l < REN__LANES && !origin; l++) {
        now.after[l] = s->first; /* it is behind all segments before */
    }
    uint32_t count = ren__clock_waits(&now, plan->known, &needed, producers, &known);
    for (uint32_t i = 0; i < count; i++) {
        s->joins |= 1u << plan->nodes[producers[i]].lane;
    }
}

uint32_t ren__task_is_cut(const ren__plan *plan, uint32_t task)
{
    const char *before = task ? plan->tasks[task - 1u].segment : NULL;
    const char *name = plan->tasks[task].segment;
    return plan->config.segments && before && name && strcmp(before, name) != 0;
}

void ren__plan_cut(ren__plan *plan)
{
    uint32_t lasting = 0, count = 0;
    for (uint32_t t = 0; t < plan->task_count; t++) {
        uint32_t cut = ren__task_is_cut(plan, t) && !lasting && count < REN__PLAN_SEGMENTS;
        if (t == 0 || cut) {
            plan->segments[count].name = plan->tasks[t].segment;
            plan->segments[count++].first = t;
        }
        plan->segments[count - 1u].end = t + 1u;
        lasting |= plan->tasks[t].lasting;
    }
    for (uint32_t i = 0; i < count; i++) {
        find_ends(plan, &plan->segments[i]);
    }
    plan->segment_count = count;
}

uint32_t ren__plan_segment_count(const ren__plan *plan)
{
    return plan->segment_count;
}

const ren__plan_segment *ren__plan_segment_at(const ren__plan *plan, uint32_t segment)
{
    return &plan->segments[segment];
}

static uint64_t mix(uint64_t hash, uint64_t number)
{
    return (hash ^ number) * UINT64_C(1099511628211); /* FNV-1a, a number at a time */
}

/* What the commands are and which wait for which; not how much they work on. */
uint64_t ren__plan_shape(const ren__plan *plan, uint32_t segment)
{
    const ren__plan_segment *s = &plan->segments[segment];
    uint64_t hash = mix(UINT64_C(14695981039346656037), plan->origin_lane);
    hash = mix(mix(hash, s->forks), s->joins);
    for (uint32_t t = s->first; t < s->end; t++) {
        const ren__plan_node *node = &plan->nodes[t];
        const ren__task *task = &plan->tasks[t];
        hash = mix(hash, task->kind);
        hash = mix(hash, task->kind == REN__TASK_OP ? task->op.kind : REN__OP_NONE);
        hash = mix(hash, node->lane);
        for (uint32_t i = 0; i < node->wait_count; i++) {
            uint32_t producer = ren__plan_producer(plan, node->wait_first + i);
            hash = producer < s->first ? hash : mix(hash, producer - s->first);
        }
        hash = mix(hash, node->event != REN__NO_EVENT);
    }
    return hash;
}
