/* SPDX-License-Identifier: MIT */
/* libren/graph/dump.c - plans as a picture.
 *
 * Purpose   Graphviz DOT text. A box for each task, coloured by stream: its name and what it does,
 *           with what is fused into it, its segment, stream and lane. Dotted arrows for a lane's
 *           own order, bold ones for events, thin grey ones for the data that flows; the point at
 *           the end is the join at the origin. Frames are segments that are graphs of their own.
 * Threads   any, while the plans are not being resolved.
 * Memory    the caller's buffer; cut at its end, the length needed is counted on.
 */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct writer {
    char *out;
    size_t bytes;
    size_t length; /* needed so far */
    char task[16]; /* how the names of a plan's boxes begin */
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(writer *w, const char *format, ...)
{
    size_t room = w->length < w->bytes ? w->bytes - w->length : 0;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(room ? w->out + w->length : NULL, room, format, args);
    va_end(args);
    w->length += n > 0 ? (size_t)n : 0u;
}

/* A name inside a quoted DOT string. */
static void put_name(writer *w, const char *name)
{
    for (; *name; name++) {
        if (*name == '"' || *name == '\\') {
            put(w, "\\");
        }
        put(w, "%c", *name);
    }
}

static const char *colour(ren_stream stream)
{
    static const char *const colours[REN_STREAM_COUNT] = {"lightgrey", "lightblue", "palegreen",
                                                          "khaki", "lightsalmon"};
    return colours[stream];
}

static const char *stream_name(ren_stream stream)
{
    static const char *const names[REN_STREAM_COUNT] = {"TRANS", "COMP_1", "COMP_2", "COMP_3",
                                                        "UPDATE"};
    return names[stream];
}

static const char *activation_name(ren__activation activation)
{
    static const char *const names[] = {
        [REN__ACT_RELU] = "relu",          [REN__ACT_LEAKY_RELU] = "leaky_relu",
        [REN__ACT_TANH] = "tanh",          [REN__ACT_SIGMOID] = "sigmoid",
        [REN__ACT_SILU] = "silu",          [REN__ACT_GELU_ERF] = "gelu_erf",
        [REN__ACT_GELU_TANH] = "gelu_tanh"};
    return names[activation];
}

static const char *dtype_name(ren_dtype dtype)
{
    switch (dtype) {
    case REN_F32:
        return "f32";
    case REN_F16:
        return "f16";
    case REN_BF16:
        return "bf16";
    case REN_I32:
        return "i32";
    case REN_U8:
        return "u8";
    }
    return "";
}

/* What an operation does beside what its kind says: see ren__fusion. */
static void put_fused(writer *w, const ren__op_desc *d)
{
    uint32_t norm = d->kind == REN__OP_BATCH_NORM_TRAIN || d->kind == REN__OP_BATCH_NORM_EVAL;
    uint32_t bias =
        ((d->kind == REN__OP_LINEAR_FWD || d->kind == REN__OP_CONV_FWD) && d->operand[2].rank) ||
        (d->kind == REN__OP_BATCH_NORM_FOLD && d->operand[5].rank);
    uint32_t bias_grad = (d->kind == REN__OP_LINEAR_BWD_WEIGHT && d->operand[3].rank) ||
                         (d->kind == REN__OP_ACT_BWD && d->operand[4].rank);
    uint32_t sum =
        (norm && d->operand[10].rank) || (d->kind == REN__OP_BATCH_NORM_BWD && d->operand[9].rank);
    put(w, "%s%s%s", bias ? " + bias" : "", sum ? " + add" : "", bias_grad ? " + bias_grad" : "");
    if (d->fused_activation) {
        put(w, " + %s", activation_name(d->activation));
    }
}

static void put_task(writer *w, const ren__plan *plan, uint32_t t)
{
    const ren__task *task = &plan->tasks[t];
    const ren__plan_node *node = &plan->nodes[t];
    put(w, "    %s%u [group=%u fillcolor=%s label=\"", w->task, t, node->lane,
        colour(node->stream));
    put_name(w, task->name);
    put(w, "\\n%s", ren__task_verb(task));
    if (task->kind == REN__TASK_OP) {
        put_fused(w, &task->op);
        put(w, " %s", dtype_name(task->op.operand[0].dtype));
    }
    put(w, "\\n");
    put_name(w, task->segment);
    put(w, ", %s, lane %u\"];\n", stream_name(node->stream), node->lane);
}

/* A frame around the tasks of each segment that is a graph of its own. */
static void put_segment(writer *w, const ren__plan *plan, uint32_t number, uint32_t segment)
{
    const ren__plan_segment *s = &plan->segments[segment];
    uint32_t framed = plan->segment_count > 1;
    if (framed) {
        uint32_t lanes = 0;
        for (uint32_t l = 0; l < REN__LANES; l++) {
            lanes += s->lanes >> l & 1u;
        }
        put(w, "    subgraph cluster_%u_%u {\n    label=\"", number, segment);
        put_name(w, s->name);
        put(w, ": %u tasks on %u lanes\";\n", s->end - s->first, lanes);
    }
    for (uint32_t t = s->first; t < s->end; t++) {
        put_task(w, plan, t);
    }
    if (framed) {
        put(w, "    }\n");
    }
}

static void put_edges(writer *w, const ren__plan *plan)
{
    for (uint32_t t = 0; t <= plan->task_count; t++) {
        const ren__plan_node *node = &plan->nodes[t];
        uint32_t before = plan->known[t].after[node->lane];
        if (before) {
            put(w, "    %s%u -> %s%u [style=dotted];\n", w->task, before - 1u, w->task, t);
        }
        for (uint32_t i = 0; i < node->wait_count; i++) {
            uint32_t producer = ren__plan_producer(plan, node->wait_first + i);
            put(w, "    %s%u -> %s%u [style=bold label=\"e%u\"];\n", w->task, producer, w->task, t,
                plan->nodes[producer].event);
        }
    }
    for (uint32_t i = 0; i < plan->data.count; i++) {
        const ren__edge *edge = &ren__plan_edges(&plan->data)[i];
        put(w, "    %s%u -> %s%u [color=grey constraint=false tooltip=\"", w->task, edge->from,
            w->task, edge->to);
        put_name(w, plan->values[edge->value].name);
        put(w, "\"];\n");
    }
}

static void put_plan(writer *w, const ren__plan *plan, const char *title, uint32_t number)
{
    const ren__plan_counts *c = &plan->counts;
    put(w, "  subgraph cluster_%u {\n    label=\"", number);
    put_name(w, title);
    put(w, "\\n%u tasks on %u lanes, %u events, %u waits, %llu bytes of values\";\n", c->tasks,
        c->lanes_used, c->events, c->waits, (unsigned long long)c->local_bytes);
    for (uint32_t i = 0; i < plan->segment_count; i++) {
        put_segment(w, plan, number, i);
    }
    put(w, "    %s%u [group=%u shape=point label=\"join\"];\n", w->task, plan->task_count,
        plan->origin_lane);
    put_edges(w, plan);
    put(w, "  }\n");
}

size_t ren__plan_dump(const ren__plan *const *plans, const char *const *titles, uint32_t count,
                      char *out, size_t bytes)
{
    writer w = {.out = out, .bytes = bytes};
    put(&w, "digraph plan {\n  node [shape=box style=filled];\n");
    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(w.task, sizeof w.task, count > 1 ? "p%ut" : "t", i);
        put_plan(&w, plans[i], titles[i], i);
    }
    put(&w, "}\n");
    return w.length;
}
