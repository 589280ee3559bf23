/* SPDX-License-Identifier: MIT */
/* libren/graph/reorder.c - put a plan's tasks into the order in which they are issued.
 *
 * Purpose   After GREEDY has chosen an order, tasks, nodes and edges are renumbered by it. From
 *           then on a task's number is its place, edges run forward again and are grouped by the
 *           task they lead to: what events.c, place.c and issue.c rely on.
 * Threads   one.
 * Memory    new arrays for tasks, nodes and edges; the old ones go.
 * Not here  callers' numbers of tasks: plan->place translates them.
 */
#include "internal.h"

#include <string.h>

static uint32_t is_identity(const uint32_t *order, uint32_t count)
{
    uint32_t same = 1;
    for (uint32_t i = 0; i < count; i++) {
        same &= order[i] == i;
    }
    return same;
}

/* The edges into one task, renumbered, behind those that are there. */
static ren_status move_edges(ren__plan *plan, ren__array *to, const ren__array *from,
                             uint32_t first, uint32_t count, uint32_t place)
{
    for (uint32_t i = 0; i < count; i++) {
        ren__edge *edge = ren__array_push(to, sizeof *edge, &plan->allocator);
        if (!edge) {
            return REN_ERR_NO_MEMORY;
        }
        *edge = ren__plan_edges(from)[first + i];
        edge->from = plan->place[edge->from];
        edge->to = place;
    }
    return REN_OK;
}

typedef struct renumbered {
    ren__task *tasks;
    ren__plan_node *nodes;
    ren__array data, order;
} renumbered;

static ren_status fill(ren__plan *plan, const uint32_t *order, renumbered *r)
{
    ren_status status = REN_OK;
    for (uint32_t i = 0; i < plan->task_count && status == REN_OK; i++) {
        const ren__plan_node *node = &plan->nodes[order[i]];
        r->tasks[i] = plan->tasks[order[i]];
        r->nodes[i] = *node;
        r->nodes[i].data_first = r->data.count;
        r->nodes[i].order_first = r->order.count;
        status = move_edges(plan, &r->data, &plan->data, node->data_first, node->data_count, i);
        if (status == REN_OK) {
            status =
                move_edges(plan, &r->order, &plan->order, node->order_first, node->order_count, i);
        }
    }
    return status;
}

/* Takes r's arrays into the plan, the plan's into r. */
static void exchange(ren__plan *plan, renumbered *r)
{
    renumbered was = {plan->tasks, plan->nodes, plan->data, plan->order};
    plan->tasks = r->tasks;
    plan->nodes = r->nodes;
    plan->data = r->data;
    plan->order = r->order;
    *r = was;
}

ren_status ren__plan_reorder(ren__plan *plan, const uint32_t *order)
{
    const ren__host_allocator *a = &plan->allocator;
    size_t tasks = (size_t)plan->task_count + 1u;
    renumbered r;
    if (is_identity(order, plan->task_count)) {
        return REN_OK;
    }
    memset(&r, 0, sizeof r);
    for (uint32_t i = 0; i < plan->task_count; i++) {
        plan->place[order[i]] = i;
    }
    r.tasks = ren__host_calloc(a, tasks, sizeof *r.tasks);
    r.nodes = ren__host_calloc(a, tasks, sizeof *r.nodes);
    ren_status status = r.tasks && r.nodes ? fill(plan, order, &r) : REN_ERR_NO_MEMORY;
    if (status == REN_OK) {
        for (uint32_t v = 0; v < plan->value_count; v++) {
            uint32_t *saved = &plan->values[v].saved_task;
            *saved = *saved == REN__NO_TASK ? *saved : plan->place[*saved];
        }
        exchange(plan, &r);
    }
    ren__array_free(&r.order, sizeof(ren__edge), a);
    ren__array_free(&r.data, sizeof(ren__edge), a);
    ren__host_free(a, r.nodes, tasks, sizeof *r.nodes);
    ren__host_free(a, r.tasks, tasks, sizeof *r.tasks);
    return status;
}
