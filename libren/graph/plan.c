/* SPDX-License-Identifier: MIT */
/* libren/graph/plan.c - the plan as an object: build, counts, destroy.
 *
 * Purpose   Run the planner's steps in turn over a copy of the task graph: edges, streams and
 *           waits, fork and join, segments, memory. Pure: no device is seen before resolve.
 * Threads   one.
 * Memory    everything comes from the allocator given to build and goes back in destroy, which
 *           accepts a half-built plan.
 * Not here  the steps themselves, see internal.h for where each lives.
 */
#include "internal.h"

#include <string.h>

static ren_status check_config(const ren__plan_config *config, ren_error *err)
{
    if (config->lanes == 0 || config->lanes > REN__LANES || config->origin >= REN_STREAM_COUNT ||
        config->policy > REN__POLICY_GREEDY) {
        return REN__FAIL(err, REN_ERR_INTERNAL, "a plan's lanes, origin or policy is out of range");
    }
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        if (config->lane_of[s] >= config->lanes) {
            return REN__FAIL(err, REN_ERR_INTERNAL, "stream %u is on no lane", s);
        }
    }
    return REN_OK;
}

static ren_status check_values(const ren__plan *plan, ren_error *err)
{
    for (uint32_t v = 0; v < plan->value_count; v++) {
        const ren__graph_value *value = &plan->values[v];
        if (value->kind > REN__VALUE_LOCAL) {
            return REN__FAIL(err, REN_ERR_INTERNAL, "value %s is of no kind", value->name);
        }
        if (value->bytes == 0 && value->saved_task == REN__NO_TASK) {
            return REN__FAIL(err, REN_ERR_INTERNAL, "value %s has no bytes", value->name);
        }
    }
    return REN_OK;
}

/* Copies of the graph's arrays; each one element longer, so that an empty one is no special case.
 */
static ren_status copy_graph(ren__plan *plan, const ren__task_graph *g)
{
    const ren__host_allocator *a = &plan->allocator;
    plan->value_count = g->values.count;
    plan->task_count = g->tasks.count;
    plan->values = ren__host_calloc(a, (size_t)plan->value_count + 1u, sizeof *plan->values);
    plan->tasks = ren__host_calloc(a, (size_t)plan->task_count + 1u, sizeof *plan->tasks);
    plan->nodes = ren__host_calloc(a, (size_t)plan->task_count + 1u, sizeof *plan->nodes);
    plan->known = ren__host_calloc(a, (size_t)plan->task_count + 1u, sizeof *plan->known);
    plan->place = ren__host_calloc(a, (size_t)plan->task_count + 1u, sizeof *plan->place);
    plan->offsets = ren__host_calloc(a, (size_t)plan->value_count + 1u, sizeof *plan->offsets);
    if (!plan->values || !plan->tasks || !plan->nodes || !plan->known || !plan->place ||
        !plan->offsets) {
        return REN_ERR_NO_MEMORY;
    }
    for (uint32_t t = 0; t < plan->task_count; t++) {
        plan->place[t] = t;
    }
    if (plan->value_count) {
        memcpy(plan->values, g->values.items, plan->value_count * sizeof *plan->values);
    }
    if (plan->task_count) {
        memcpy(plan->tasks, g->tasks.items, plan->task_count * sizeof *plan->tasks);
    }
    for (uint32_t v = 0; v < plan->value_count; v++) {
        plan->saved_count += plan->values[v].saved_task != REN__NO_TASK;
    }
    return REN_OK;
}

static ren_status run_steps(ren__plan *plan, const ren__task_graph *g, ren_error *err)
{
    ren_status status = copy_graph(plan, g);
    if (status == REN_OK) {
        status = check_values(plan, err);
    }
    if (status == REN_OK) {
        status = ren__plan_find_edges(plan, g, err);
    }
    if (status == REN_OK) {
        status = ren__plan_assign(plan);
    }
    if (status == REN_OK) {
        status = ren__plan_close(plan);
    }
    if (status == REN_OK) {
        ren__plan_cut(plan);
    }
    if (status == REN_OK) {
        status = ren__plan_place(plan, err);
    }
    if (status == REN_ERR_NO_MEMORY) {
        return REN__FAIL(err, status, "no host memory for a plan of %u tasks", g->tasks.count);
    }
    plan->counts.tasks = plan->task_count;
    plan->counts.values = plan->value_count;
    plan->counts.edges = plan->data.count + plan->order.count;
    return status;
}

ren_status ren__plan_build(ren__task_graph *g, const ren__plan_config *config,
                           const ren__host_allocator *a, ren__plan **out, ren_error *err)
{
    *out = NULL;
    if (g->status != REN_OK) {
        return REN__FAIL(err, g->status, "%s", g->text);
    }
    ren_status status = check_config(config, err);
    if (status != REN_OK) {
        return status;
    }
    ren__plan *plan = ren__host_calloc(a, 1, sizeof *plan);
    if (!plan) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan");
    }
    plan->allocator = *a;
    plan->config = *config;
    plan->origin_lane = config->lane_of[config->origin];
    status = run_steps(plan, g, err);
    if (status != REN_OK) {
        ren__plan_destroy(plan);
        return status;
    }
    *out = plan;
    return REN_OK;
}

void ren__plan_destroy(ren__plan *plan)
{
    if (!plan) {
        return;
    }
    ren__host_allocator a = plan->allocator;
    ren__plan_unresolve(plan);
    ren__array_free(&plan->waits, sizeof(uint32_t), &a);
    ren__array_free(&plan->order, sizeof(ren__edge), &a);
    ren__array_free(&plan->data, sizeof(ren__edge), &a);
    ren__host_free(&a, plan->offsets, (size_t)plan->value_count + 1u, sizeof *plan->offsets);
    ren__host_free(&a, plan->place, (size_t)plan->task_count + 1u, sizeof *plan->place);
    ren__host_free(&a, plan->known, (size_t)plan->task_count + 1u, sizeof *plan->known);
    ren__host_free(&a, plan->nodes, (size_t)plan->task_count + 1u, sizeof *plan->nodes);
    ren__host_free(&a, plan->tasks, (size_t)plan->task_count + 1u, sizeof *plan->tasks);
    ren__host_free(&a, plan->values, (size_t)plan->value_count + 1u, sizeof *plan->values);
    ren__host_free(&a, plan, 1, sizeof *plan);
}

void ren__plan_get_counts(const ren__plan *plan, ren__plan_counts *out)
{
    *out = plan->counts;
}

ren_stream ren__plan_task_stream(const ren__plan *plan, uint32_t task)
{
    return plan->nodes[plan->place[task]].stream;
}

uint32_t ren__plan_task_place(const ren__plan *plan, uint32_t task)
{
    return plan->place[task];
}

void *ren__plan_address(const ren__plan *plan, uint32_t value)
{
    return plan->addresses && value < plan->value_count ? plan->addresses[value] : NULL;
}
