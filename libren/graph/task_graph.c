/* SPDX-License-Identifier: MIT */
/* libren/graph/task_graph.c - the list of tasks and values that a plan is built from.
 *
 * Purpose   train/ names values and adds tasks in an order that is right on one stream; this file
 *           keeps them, flattens aliases to (root, offset), and refuses what cannot be right.
 * Threads   one.
 * Memory    arrays that double; names and segments stay the caller's.
 * Errors    sticky: the first one is kept with its text, later calls do nothing, build reports it.
 * Not here  edges, see hazards.c; streams and events, see assign.c and events.c.
 */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void *ren__array_push(ren__array *array, size_t size, const ren__host_allocator *a)
{
    if (array->count == array->capacity) {
        uint32_t capacity = array->capacity ? 2u * array->capacity : 64u;
        void *items = capacity > array->capacity ? ren__host_calloc(a, capacity, size) : NULL;
        if (!items) {
            return NULL;
        }
        if (array->count) {
            memcpy(items, array->items, array->count * size);
        }
        ren__host_free(a, array->items, array->capacity, size);
        array->items = items;
        array->capacity = capacity;
    }
    return (unsigned char *)array->items + (size_t)array->count++ * size;
}

void ren__array_free(ren__array *array, size_t size, const ren__host_allocator *a)
{
    ren__host_free(a, array->items, array->capacity, size);
    memset(array, 0, sizeof *array);
}

static void fail(ren__task_graph *g, ren_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(ren__task_graph *g, ren_status status, const char *format, ...)
{
    if (g->status != REN_OK) {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(g->text, sizeof g->text, format, args);
    va_end(args);
    g->status = status;
}

static const char *text_or(const char *name, const char *otherwise)
{
    return name ? name : otherwise;
}

static ren__graph_value *value_at(ren__task_graph *g, uint32_t value)
{
    return value < g->values.count ? (ren__graph_value *)g->values.items + value : NULL;
}

ren_status ren__task_graph_create(const ren__host_allocator *a, ren__task_graph **out)
{
    *out = NULL;
    ren__task_graph *g = ren__host_calloc(a, 1, sizeof *g);
    if (!g) {
        return REN_ERR_NO_MEMORY;
    }
    g->allocator = *a;
    *out = g;
    return REN_OK;
}

void ren__task_graph_destroy(ren__task_graph *g)
{
    if (!g) {
        return;
    }
    ren__host_allocator a = g->allocator;
    ren__array_free(&g->values, sizeof(ren__graph_value), &a);
    ren__array_free(&g->tasks, sizeof(ren__task), &a);
    ren__array_free(&g->controls, sizeof(ren__control_edge), &a);
    ren__host_free(&a, g, 1, sizeof *g);
}

static uint32_t push_value(ren__task_graph *g, const ren__graph_value *value)
{
    uint32_t index = g->values.count;
    ren__graph_value *slot = ren__array_push(&g->values, sizeof *slot, &g->allocator);
    if (!slot) {
        fail(g, REN_ERR_NO_MEMORY, "no host memory for value %s", text_or(value->name, "?"));
        return REN__NO_VALUE;
    }
    *slot = *value;
    return index;
}

uint32_t ren__task_graph_value(ren__task_graph *g, const char *name, ren__value_kind kind,
                               uint64_t bytes)
{
    if (g->status != REN_OK) {
        return REN__NO_VALUE;
    }
    ren__graph_value value = {.name = text_or(name, "?"),
                              .kind = kind,
                              .root = g->values.count,
                              .bytes = bytes,
                              .saved_task = REN__NO_TASK};
    return push_value(g, &value);
}

uint32_t ren__task_graph_alias(ren__task_graph *g, const char *name, uint32_t parent,
                               uint64_t offset, uint64_t bytes)
{
    if (g->status != REN_OK) {
        return REN__NO_VALUE;
    }
    const ren__graph_value *of = value_at(g, parent);
    if (!of) {
        fail(g, REN_ERR_INTERNAL, "alias %s names no value", text_or(name, "?"));
        return REN__NO_VALUE;
    }
    if (bytes == 0 || offset > of->bytes || bytes > of->bytes - offset) {
        fail(g, REN_ERR_INTERNAL, "alias %s reaches outside of %s", text_or(name, "?"), of->name);
        return REN__NO_VALUE;
    }
    ren__graph_value value = {.name = text_or(name, "?"),
                              .kind = of->kind,
                              .root = of->root,
                              .offset = of->offset + offset,
                              .bytes = bytes,
                              .saved_task = REN__NO_TASK};
    return push_value(g, &value);
}

/* An op touches its operand from the offset to the value's end; COPY and FILL touch `bytes`. */
void ren__plan_access(const ren__graph_value *values, const ren__task *task, uint32_t i,
                      uint64_t *out_begin, uint64_t *out_end)
{
    const ren__graph_value *v = &values[task->operand[i]];
    uint64_t begin = v->offset + task->operand_offset[i];
    *out_begin = begin;
    if (values[v->root].saved_task != REN__NO_TASK) {
        *out_begin = 0;
        *out_end = UINT64_MAX; /* its size is not known yet: all of it */
    } else if (task->kind == REN__TASK_OP) {
        *out_end = v->offset + v->bytes;
    } else {
        *out_end = begin + task->bytes;
    }
}

/* The operand lies inside its value, as far as sizes are known. */
static int operand_fits(const ren__graph_value *v, const ren__task *task, uint32_t i)
{
    if (v->bytes == 0) {
        return 1; /* saved: checked by build, sized by resolve */
    }
    uint64_t offset = task->operand_offset[i];
    uint64_t bytes =
        task->kind == REN__TASK_OP ? ren__tensor_bytes(&task->op.operand[i]) : task->bytes;
    return offset < v->bytes && bytes <= v->bytes - offset;
}

static int check_operand(ren__task_graph *g, const ren__task *task, uint32_t i)
{
    uint32_t bit = 1u << i;
    if (task->operand[i] == REN__NO_VALUE) {
        if ((task->reads | task->writes) & bit) {
            fail(g, REN_ERR_INTERNAL, "task %s touches its absent operand %u", task->name, i);
        }
        return g->status == REN_OK;
    }
    const ren__graph_value *v = value_at(g, task->operand[i]);
    if (!v) {
        fail(g, REN_ERR_INTERNAL, "task %s: operand %u names no value", task->name, i);
    } else if (!((task->reads | task->writes) & bit)) {
        fail(g, REN_ERR_INTERNAL, "task %s neither reads nor writes operand %u (%s)", task->name, i,
             v->name);
    } else if (!operand_fits(v, task, i)) {
        fail(g, REN_ERR_INTERNAL, "task %s: operand %u reaches outside of %s", task->name, i,
             v->name);
    }
    return g->status == REN_OK;
}

static int check_transfer(ren__task_graph *g, const ren__task *task)
{
    uint32_t reads = task->kind == REN__TASK_COPY ? 2u : 0u;
    if (task->bytes == 0 || task->writes != 1u || task->reads != reads) {
        fail(g, REN_ERR_INTERNAL, "task %s: a copy writes 0 and reads 1, a fill writes 0",
             task->name);
        return 0;
    }
    if (task->kind == REN__TASK_COPY) {
        const ren__graph_value *values = g->values.items;
        uint64_t begin[2];
        uint64_t end[2];
        ren__plan_access(values, task, 0, &begin[0], &end[0]);
        ren__plan_access(values, task, 1, &begin[1], &end[1]);
        if (values[task->operand[0]].root == values[task->operand[1]].root && begin[0] < end[1] &&
            begin[1] < end[0]) {
            fail(g, REN_ERR_INTERNAL, "task %s copies onto itself", task->name);
            return 0;
        }
    }
    return 1;
}

static int check_task(ren__task_graph *g, const ren__task *task)
{
    if (task->stream >= REN_STREAM_COUNT || task->kind > REN__TASK_FILL) {
        fail(g, REN_ERR_INTERNAL, "task %s: no such stream or kind", task->name);
        return 0;
    }
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (!check_operand(g, task, i)) {
            return 0;
        }
    }
    return task->kind == REN__TASK_OP || check_transfer(g, task);
}

uint32_t ren__task_graph_add(ren__task_graph *g, const ren__task *task)
{
    if (g->status != REN_OK) {
        return REN__NO_TASK;
    }
    ren__task copy = *task;
    copy.name = text_or(task->name, "?");
    copy.segment = text_or(task->segment, "");
    if (!check_task(g, &copy)) {
        return REN__NO_TASK;
    }
    uint32_t index = g->tasks.count;
    ren__task *slot = ren__array_push(&g->tasks, sizeof *slot, &g->allocator);
    if (!slot) {
        fail(g, REN_ERR_NO_MEMORY, "no host memory for task %s", copy.name);
        return REN__NO_TASK;
    }
    *slot = copy;
    return index;
}

void ren__task_graph_control(ren__task_graph *g, uint32_t before, uint32_t after)
{
    if (g->status != REN_OK) {
        return;
    }
    if (after >= g->tasks.count || before >= after) {
        fail(g, REN_ERR_INTERNAL, "control edge %u -> %u is against the order of the tasks", before,
             after);
        return;
    }
    ren__control_edge *edge = ren__array_push(&g->controls, sizeof *edge, &g->allocator);
    if (!edge) {
        fail(g, REN_ERR_NO_MEMORY, "no host memory for a control edge");
        return;
    }
    edge->before = before;
    edge->after = after;
}

void ren__task_graph_saved(ren__task_graph *g, uint32_t value, uint32_t task)
{
    if (g->status != REN_OK) {
        return;
    }
    ren__graph_value *v = value_at(g, value);
    const ren__task *tasks = g->tasks.items;
    if (!v || task >= g->tasks.count || tasks[task].kind != REN__TASK_OP) {
        fail(g, REN_ERR_INTERNAL, "saved value %u names no value or no op", value);
    } else if (v->kind != REN__VALUE_LOCAL || v->root != value) {
        fail(g, REN_ERR_INTERNAL, "saved value %s is not a LOCAL value of its own", v->name);
    } else {
        v->saved_task = task;
    }
}
