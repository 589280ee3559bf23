/* SPDX-License-Identifier: MIT */
/* libren/graph/issue.c - enqueue a resolved plan, again and again, or capture it.
 *
 * Purpose   Walk the tasks in program order: waits, command, record. Nothing is decided, looked up
 *           or allocated here.
 * Threads   the submitter.
 * Progress  never waits for the device, except with `sync`, which only benchmarks use.
 * Order     all lanes start behind origin's present end (`fork`), and origin ends behind all lanes.
 * Memory    none.
 * Not here  what waits for what, see events.c.
 *
 * Issuing while the last issue still runs. The same events are recorded again and the same LOCAL
 * memory and workspaces are written again, though the device may not have begun with the issue
 * before. Both are safe:
 *   events   A wait is tied to the latest record enqueued before it. Every wait for an event of the
 *            plan is enqueued in the same issue as its record and behind it, so when an event is
 *            recorded again everyone who must wait for the older point has enqueued that wait.
 *   memory   The issue before ended with the join: origin's lane is behind all its tasks. With
 *            `fork` every lane now starts behind origin's end, hence behind all tasks that touched
 *            the memory. A caller that passes 0 vouches for the same by other means.
 *
 * A failed issue. The first error ends it, with lanes that may hold commands which origin is not
 * behind. They still run if the device works, and a later issue must not overtake them. So the plan
 * remembers that it is torn, and the next issue begins with a join of all its lanes.
 *
 * An unfinished issue. Behind a lasting task there is no way back: its command runs, and later
 * issues see what it wrote. So the error does not end the issue. What is left is tried once more at
 * once, and then by ren__plan_finish, until it is enqueued: the same commands with the same
 * addresses, from where the issue stopped. A command that failed was not enqueued and is given
 * again; waits and records are repeated freely, since no wait for the event came in between.
 *
 * A capture walks the same tasks with the device recording. Everything begins behind origin (fork)
 * and ends before it (join), so each lane enters the capture by an event of the capture and leaves
 * it joined; work of before, on whatever lane, is ordered by origin's place when the graph is
 * launched. A capture that breaks off leaves nothing in the lanes, so it tears nothing. A plan that
 * is cut is captured a segment at a time, each with a fork and a join of its own (segments.c).
 */
#include "internal.h"

#include <string.h>

typedef struct issue {
    ren__plan *plan;
    const ren__device_api *api;
    ren__device *dev;
    void *const *external;
    uint32_t sync;
    uint32_t first;          /* tasks before it are complete when this begins */
    uint32_t task, launched; /* where the issue is: this task's command is enqueued or not */
    uint32_t lasting;        /* a lasting task is enqueued */
    uint32_t recorded, waited;
} issue;

static ren_status record(issue *is, uint32_t lane, ren__event *event)
{
    is->recorded++;
    return is->api->event_record(is->dev, lane, event);
}

static ren_status wait(issue *is, uint32_t lane, ren__event *event)
{
    is->waited++;
    return is->api->event_wait(is->dev, lane, event);
}

/* The origin behind what is now on these lanes, a bit each. One event serves all of them in turn:
 * its wait is enqueued before it is recorded again. */
static ren_status join_lanes(issue *is, uint32_t lanes)
{
    ren__plan *plan = is->plan;
    ren_status status = REN_OK;
    for (uint32_t l = 0; l < REN__LANES && status == REN_OK; l++) {
        if (lanes & (1u << l)) {
            status = record(is, l, plan->start_event);
            if (status == REN_OK) {
                status = wait(is, plan->origin_lane, plan->start_event);
            }
        }
    }
    return status;
}

static ren_status rejoin(issue *is)
{
    uint32_t lanes = 0;
    for (uint32_t l = 0; l < REN__LANES; l++) {
        lanes |= is->plan->lanes[l].used && l != is->plan->origin_lane ? 1u << l : 0u;
    }
    return join_lanes(is, lanes);
}

/* These lanes behind the origin's present end. */
static ren_status fork_lanes(issue *is, uint32_t lanes)
{
    ren__plan *plan = is->plan;
    ren_status status = lanes ? record(is, plan->origin_lane, plan->start_event) : REN_OK;
    for (uint32_t l = 0; l < REN__LANES && status == REN_OK; l++) {
        if (lanes & (1u << l)) {
            status = wait(is, l, plan->start_event);
        }
    }
    return status;
}

static ren_status launch(issue *is, uint32_t t)
{
    const ren__task *task = &is->plan->tasks[t];
    const ren__plan_node *node = &is->plan->nodes[t];
    void *patched[REN__OPERANDS];
    void *const *args = node->args;
    if (node->externals) {
        memcpy(patched, node->args, sizeof patched);
        for (uint32_t i = 0; i < REN__OPERANDS; i++) {
            if (node->externals & (1u << i)) {
                uint32_t root = is->plan->values[task->operand[i]].root;
                patched[i] = (unsigned char *)is->external[root] + (uintptr_t)node->args[i];
            }
        }
        args = patched;
    }
    switch (task->kind) {
    case REN__TASK_OP:
        return is->api->op_launch(is->dev, node->lane, node->op, args,
                                  is->plan->lanes[node->lane].workspace_ptr);
    case REN__TASK_COPY:
        return is->api->copy(is->dev, node->lane, args[0], args[1], task->bytes);
    case REN__TASK_FILL:
        return is->api->fill(is->dev, node->lane, args[0], task->fill_value, task->bytes);
    }
    return REN_ERR_INTERNAL;
}

static ren_status wait_for_producers(issue *is, const ren__plan_node *node)
{
    const ren__plan *plan = is->plan;
    ren_status status = REN_OK;
    for (uint32_t i = 0; i < node->wait_count && status == REN_OK; i++) {
        uint32_t producer = ren__plan_producer(plan, node->wait_first + i);
        if (producer >= is->first) {
            status = wait(is, node->lane, plan->events[plan->nodes[producer].event]);
        }
    }
    return status;
}

/* For the trace. A stamp that is refused leaves its time unknown: no reason for a step to fail. */
static ren_status stamp(issue *is, uint32_t lane, uint32_t index)
{
    if (!is->plan->stamps) {
        return REN_OK;
    }
    ren_status status = is->api->stamp(is->dev, lane, &is->plan->stamps[index]);
    return status == REN_ERR_DEVICE_LOST ? status : REN_OK;
}

static ren_status issue_task(issue *is, uint32_t t)
{
    const ren__plan_node *node = &is->plan->nodes[t];
    ren_status status = REN_OK;
    if (!is->launched) {
        status = wait_for_producers(is, node);
        if (status == REN_OK) {
            status = stamp(is, node->lane, 2 * t);
        }
        if (status == REN_OK) {
            status = launch(is, t);
        }
        is->launched = status == REN_OK;
        is->lasting |= is->launched && is->plan->tasks[t].lasting;
    }
    if (status == REN_OK) {
        status = stamp(is, node->lane, 2 * t + 1);
    }
    if (status == REN_OK && node->event != REN__NO_EVENT) {
        status = record(is, node->lane, is->plan->events[node->event]);
    }
    if (status == REN_OK && is->sync) {
        status = record(is, node->lane, is->plan->host_event);
        if (status == REN_OK) {
            status = is->api->event_sync(is->dev, is->plan->host_event);
        }
    }
    return status;
}

static ren_status issue_tasks(issue *is, uint32_t end)
{
    ren_status status = REN_OK;
    while (is->task < end && status == REN_OK) {
        status = issue_task(is, is->task);
        if (status == REN_OK) {
            is->task++;
            is->launched = 0;
        }
    }
    return status;
}

/* From where the issue is to its end. */
static ren_status go_on(issue *is)
{
    ren__plan *plan = is->plan;
    ren_status status = issue_tasks(is, plan->task_count);
    if (status == REN_OK) {
        status = wait_for_producers(is, &plan->nodes[plan->task_count]);
    }
    if (status == REN_OK) {
        plan->torn = 0;
    }
    return status;
}

static ren_status issue_all(issue *is, uint32_t fork)
{
    ren__plan *plan = is->plan;
    ren_status status = plan->torn ? rejoin(is) : REN_OK;
    plan->torn = 1;
    if (status == REN_OK && fork) {
        status = fork_lanes(is, plan->forks);
    }
    return status == REN_OK ? go_on(is) : status;
}

/* The issue stops here for now. */
static void leave(const issue *is)
{
    ren__plan *plan = is->plan;
    const uint32_t *roots = plan->externals.items;
    plan->unfinished = 1;
    plan->left_task = is->task;
    plan->left_launched = is->launched;
    plan->stamps = NULL; /* the step may have given them back by then */
    for (uint32_t i = 0; i < plan->externals.count; i++) {
        plan->left_external[roots[i]] = is->external[roots[i]];
    }
}

/* Before anything is enqueued. */
static ren_status check(const ren__plan *plan, void *const *external)
{
    if (!plan->rt || plan->unfinished) {
        return REN_ERR_INTERNAL;
    }
    const uint32_t *roots = plan->externals.items;
    for (uint32_t i = 0; i < plan->externals.count; i++) {
        if (!external || !external[roots[i]]) {
            return REN_ERR_INTERNAL;
        }
    }
    return REN_OK;
}

void ren__plan_set_stamps(ren__plan *plan, uint64_t *stamps)
{
    plan->stamps = stamps;
}

ren_status ren__plan_issue(ren__plan *plan, ren__submit *s, void *const *external, uint32_t fork,
                           uint32_t sync)
{
    ren_status status = check(plan, external);
    if (status != REN_OK) {
        return status;
    }
    issue is = {.plan = plan,
                .api = ren__submit_api(s),
                .dev = ren__submit_device(s),
                .external = external,
                .sync = sync};
    status = issue_all(&is, fork);
    if (status != REN_OK && status != REN_ERR_DEVICE_LOST && is.lasting) {
        status = go_on(&is);
        if (status != REN_OK && status != REN_ERR_DEVICE_LOST) {
            leave(&is);
            status = REN_PENDING;
        }
    }
    ren__submit_count_events(s, is.recorded, is.waited);
    return status;
}

ren_status ren__plan_finish(ren__plan *plan, ren__submit *s)
{
    issue is = {.plan = plan,
                .api = ren__submit_api(s),
                .dev = ren__submit_device(s),
                .external = plan->left_external,
                .task = plan->left_task,
                .launched = plan->left_launched};
    if (!plan->unfinished) {
        return REN_OK;
    }
    ren_status status = go_on(&is);
    if (status == REN_OK) {
        plan->unfinished = 0;
    } else {
        leave(&is);
    }
    ren__submit_count_events(s, is.recorded, is.waited);
    return status;
}

/* The graph in which the capture has ended, or NULL. */
static ren__graph *update_one(issue *is, const ren__plan_spares *spares)
{
    uint32_t origin = is->plan->origin_lane;
    for (uint32_t i = 0; i < spares->count; i++) {
        ren_status status = is->api->graph_update(is->dev, origin, spares->graphs[i], NULL);
        if (status == REN_OK) {
            return spares->graphs[i];
        }
        if (status == REN_ERR_DEVICE_LOST) {
            break;
        }
    }
    return NULL;
}

/* Fork, tasks, join; the whole plan's as an issue has them. */
static ren_status issue_segment(issue *is, uint32_t segment)
{
    const ren__plan *plan = is->plan;
    const ren__plan_segment *s = &plan->segments[segment];
    if (plan->segment_count < 2) {
        return issue_all(is, 1);
    }
    is->first = is->task = s->first;
    ren_status status = fork_lanes(is, s->forks);
    if (status == REN_OK) {
        status = issue_tasks(is, s->end);
    }
    return status == REN_OK ? join_lanes(is, s->joins) : status;
}

/* Begin, walk the tasks, end. The end is called whatever came before: it is what takes the lanes
 * out of the capture. */
static ren_status capture_segment(issue *is, uint32_t segment, const ren__plan_spares *spares,
                                  ren__graph **out, ren_error *err)
{
    ren__plan *plan = is->plan;
    ren__graph *graph = NULL;
    ren_status status = is->api->graph_begin(is->dev, plan->origin_lane);
    if (status != REN_OK) {
        return REN__FAIL(err, status, "a capture could not begin");
    }
    status = issue_segment(is, segment);
    plan->torn = 0; /* what was recorded is not in the lanes */
    *out = status == REN_OK ? update_one(is, spares) : NULL;
    if (*out) {
        return REN_OK;
    }
    ren_status ended =
        is->api->graph_end(is->dev, plan->origin_lane, &graph, status == REN_OK ? err : NULL);
    if (status != REN_OK) {
        if (ended == REN_OK) {
            is->api->graph_destroy(is->dev, graph);
        }
        return REN__FAIL(err, status, "a command could not be captured");
    }
    *out = graph;
    return ended;
}

ren_status ren__plan_capture(ren__plan *plan, ren__submit *s, void *const *external,
                             uint32_t segment, const ren__plan_spares *spares, ren__graph **out,
                             ren_error *err)
{
    *out = NULL;
    ren_status status = segment < plan->segment_count ? check(plan, external) : REN_ERR_INTERNAL;
    if (status != REN_OK) {
        return REN__FAIL(err, status, "the plan cannot be issued");
    }
    issue is = {.plan = plan,
                .api = ren__submit_api(s),
                .dev = ren__submit_device(s),
                .external = external};
    if (plan->torn) {
        /* For real, and so before the capture: a captured lane must not wait for what is not. */
        status = rejoin(&is);
        ren__submit_count_events(s, is.recorded, is.waited);
        if (status != REN_OK) {
            return REN__FAIL(err, status, "the lanes could not be joined before a capture");
        }
        plan->torn = 0;
    }
    return capture_segment(&is, segment, spares, out, err);
}
