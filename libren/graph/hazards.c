/* SPDX-License-Identifier: MIT */
/* libren/graph/hazards.c - the order that a task list asks for, as edges.
 *
 * Purpose   The tasks are right in program order on one stream. Two tasks must keep that order if
 *           they touch a byte in common and at least one writes it, or if the caller says so. This
 *           file finds those pairs.
 * Threads   one.
 * Memory    scratch for the time of the call; the edges stay in the plan.
 * Not here  which edges need an event, see events.c.
 *
 * Ranges. Every access is a range of bytes of a root value; aliases are ranges of their root, so
 * two aliases conflict exactly where they overlap. Different roots are different memory.
 *
 * Shadowing. Per root a list holds the accesses that later tasks may still collide with. A write
 * removes the entries that lie wholly inside its range: whoever collides with such an entry later
 * collides with the write too, and the write is ordered behind the entry, so that edge follows from
 * two others. The lists stay short, and the edges left out are all implied.
 *
 * Reading what nobody wrote. A LOCAL value holds whatever an earlier task or step left in its
 * memory, so a read must be covered by writes of this very list. Gaps shorter than REN__ALIGN
 * between the written ranges are padding between aligned parts and are let pass.
 */
#include "internal.h"

#include <string.h>

typedef struct access {
    uint32_t task;
    uint32_t writes;
    uint64_t begin, end;
    uint32_t next; /* index + 1 in the same root's list, 0 = end */
} access;

typedef struct finder {
    ren__plan *plan;
    uint32_t *heads;      /* by root: index + 1 of the newest access, 0 = none */
    ren__array accesses;  /* access */
    uint32_t *controls;   /* by task: index + 1 of the first control edge into it */
    ren__array edge_next; /* ren__control_edge, chained */
} finder;

/* ------------------------------------------------------------------ edges */

static int has_edge(const ren__array *edges, uint32_t first, uint32_t from)
{
    for (uint32_t i = first; i < edges->count; i++) {
        if (ren__plan_edges(edges)[i].from == from) {
            return 1;
        }
    }
    return 0;
}

/* One edge a pair and list; an order edge beside a data edge says nothing new. */
static ren_status add_edge(ren__plan *plan, uint32_t from, uint32_t to, ren__edge_kind kind,
                           uint32_t value)
{
    const ren__plan_node *node = &plan->nodes[to];
    ren__array *edges = kind == REN__EDGE_DATA ? &plan->data : &plan->order;
    if (has_edge(&plan->data, node->data_first, from) ||
        (kind != REN__EDGE_DATA && has_edge(&plan->order, node->order_first, from))) {
        return REN_OK;
    }
    ren__edge *edge = ren__array_push(edges, sizeof *edge, &plan->allocator);
    if (!edge) {
        return REN_ERR_NO_MEMORY;
    }
    edge->from = from;
    edge->to = to;
    edge->kind = kind;
    edge->value = value;
    return REN_OK;
}

/* Edges of one kind from everyone in the root's list who collides with this access. */
static ren_status collide(finder *f, uint32_t task, uint32_t root, const access *mine,
                          uint32_t reads, ren__edge_kind kind)
{
    const access *all = f->accesses.items;
    for (uint32_t i = f->heads[root]; i; i = all[i - 1].next) {
        const access *theirs = &all[i - 1];
        uint32_t ordered = kind == REN__EDGE_DATA ? theirs->writes && reads : mine->writes;
        if (theirs->begin >= mine->end || mine->begin >= theirs->end || !ordered) {
            continue;
        }
        ren_status status = add_edge(f->plan, theirs->task, task, kind, root);
        if (status != REN_OK) {
            return status;
        }
    }
    return REN_OK;
}

/* ------------------------------------------------------------------ accesses */

/* How far from `at` the root's written bytes reach without a gap of REN__ALIGN or more. */
static uint64_t covered_until(const finder *f, uint32_t root, uint64_t at)
{
    const access *all = f->accesses.items;
    uint64_t until = at;
    for (int grown = 1; grown;) {
        grown = 0;
        for (uint32_t i = f->heads[root]; i; i = all[i - 1].next) {
            const access *a = &all[i - 1];
            int joins = a->begin <= until || (until > at && a->begin - until < REN__ALIGN);
            if (a->writes && joins && a->end > until) {
                until = a->end;
                grown = 1;
            }
        }
    }
    return until;
}

static ren_status check_written(const finder *f, uint32_t task, uint32_t i, const access *mine,
                                ren_error *err)
{
    const ren__plan *plan = f->plan;
    const ren__task *t = &plan->tasks[task];
    const ren__graph_value *v = &plan->values[t->operand[i]];
    if (v->kind != REN__VALUE_LOCAL || !(t->reads & (1u << i))) {
        return REN_OK;
    }
    uint64_t until = covered_until(f, v->root, mine->begin);
    if (until >= mine->end || (until > mine->begin && mine->end - until < REN__ALIGN)) {
        return REN_OK;
    }
    return REN__FAIL(err, REN_ERR_INTERNAL, "task %s reads the local value %s before it is written",
                     t->name, v->name);
}

static void shadow(finder *f, uint32_t root, const access *write)
{
    access *all = f->accesses.items;
    uint32_t *link = &f->heads[root];
    while (*link) {
        access *a = &all[*link - 1];
        if (a->begin >= write->begin && a->end <= write->end) {
            *link = a->next;
        } else {
            link = &a->next;
        }
    }
}

static ren_status remember(finder *f, uint32_t root, const access *mine)
{
    if (mine->writes) {
        shadow(f, root, mine);
    }
    access *slot = ren__array_push(&f->accesses, sizeof *slot, &f->plan->allocator);
    if (!slot) {
        return REN_ERR_NO_MEMORY;
    }
    *slot = *mine;
    slot->next = f->heads[root];
    f->heads[root] = f->accesses.count;
    return REN_OK;
}

static access access_of(const ren__plan *plan, uint32_t task, uint32_t i)
{
    const ren__task *t = &plan->tasks[task];
    access a = {.task = task, .writes = (t->writes >> i) & 1u};
    ren__plan_access(plan->values, t, i, &a.begin, &a.end);
    return a;
}

static uint32_t root_of(const ren__plan *plan, uint32_t task, uint32_t i)
{
    uint32_t value = plan->tasks[task].operand[i];
    return value == REN__NO_VALUE ? REN__NO_VALUE : plan->values[value].root;
}

/* ------------------------------------------------------------------ one task */

static ren_status scan_operands(finder *f, uint32_t task, ren__edge_kind kind, ren_error *err)
{
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        uint32_t root = root_of(f->plan, task, i);
        if (root == REN__NO_VALUE) {
            continue;
        }
        access mine = access_of(f->plan, task, i);
        uint32_t reads = (f->plan->tasks[task].reads >> i) & 1u;
        ren_status status = collide(f, task, root, &mine, reads, kind);
        if (status == REN_OK && kind == REN__EDGE_DATA) {
            status = check_written(f, task, i, &mine, err);
        }
        if (status != REN_OK) {
            return status;
        }
    }
    return REN_OK;
}

static ren_status remember_operands(finder *f, uint32_t task)
{
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        uint32_t root = root_of(f->plan, task, i);
        if (root != REN__NO_VALUE) {
            access mine = access_of(f->plan, task, i);
            ren_status status = remember(f, root, &mine);
            if (status != REN_OK) {
                return status;
            }
        }
    }
    return REN_OK;
}

static ren_status scan_controls(finder *f, uint32_t task)
{
    const ren__control_edge *edges = f->edge_next.items;
    for (uint32_t i = f->controls[task]; i; i = edges[i - 1].next) {
        ren_status status =
            add_edge(f->plan, edges[i - 1].before, task, REN__EDGE_CONTROL, REN__NO_VALUE);
        if (status != REN_OK) {
            return status;
        }
    }
    return REN_OK;
}

/* Data edges first, so that a pair which is both counts as data. */
static ren_status scan_task(finder *f, uint32_t task, ren_error *err)
{
    ren__plan *plan = f->plan;
    ren__plan_node *node = &plan->nodes[task];
    node->data_first = plan->data.count;
    node->order_first = plan->order.count;
    ren_status status = scan_operands(f, task, REN__EDGE_DATA, err);
    if (status == REN_OK) {
        status = scan_operands(f, task, REN__EDGE_HAZARD, err);
    }
    if (status == REN_OK) {
        status = scan_controls(f, task);
    }
    node->data_count = plan->data.count - node->data_first;
    node->order_count = plan->order.count - node->order_first;
    return status == REN_OK ? remember_operands(f, task) : status;
}

/* ------------------------------------------------------------------ all tasks */

static ren_status chain_controls(finder *f, const ren__task_graph *g)
{
    const ren__control_edge *given = g->controls.items;
    for (uint32_t i = 0; i < g->controls.count; i++) {
        ren__control_edge *edge = ren__array_push(&f->edge_next, sizeof *edge, &f->plan->allocator);
        if (!edge) {
            return REN_ERR_NO_MEMORY;
        }
        *edge = given[i];
        edge->next = f->controls[edge->after];
        f->controls[edge->after] = f->edge_next.count;
    }
    return REN_OK;
}

ren_status ren__plan_find_edges(ren__plan *plan, const ren__task_graph *g, ren_error *err)
{
    const ren__host_allocator *a = &plan->allocator;
    finder f = {.plan = plan};
    size_t heads = (size_t)plan->value_count + 1u;
    size_t tasks = (size_t)plan->task_count + 1u;
    f.heads = ren__host_calloc(a, heads, sizeof *f.heads);
    f.controls = ren__host_calloc(a, tasks, sizeof *f.controls);
    ren_status status = f.heads && f.controls ? chain_controls(&f, g) : REN_ERR_NO_MEMORY;
    for (uint32_t t = 0; t < plan->task_count && status == REN_OK; t++) {
        status = scan_task(&f, t, err);
    }
    ren__array_free(&f.edge_next, sizeof(ren__control_edge), a);
    ren__array_free(&f.accesses, sizeof(access), a);
    ren__host_free(a, f.controls, tasks, sizeof *f.controls);
    ren__host_free(a, f.heads, heads, sizeof *f.heads);
    return status;
}
