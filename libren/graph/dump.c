/* SPDX-License-Identifier: MIT */
/* libren/graph/dump.c - a plan as a picture.
 *
 * Purpose   Graphviz DOT text: tasks coloured by stream, grouped by lane; dotted arrows for the
 *           lane's own order, bold ones for events, thin grey ones for the data that flows.
 * Threads   any, while the plan is not being resolved.
 * Memory    the caller's buffer; cut at its end, the length needed is counted on.
 */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct writer {
    char *out;
    size_t bytes;
    size_t length; /* needed so far */
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

static void put_tasks(writer *w, const ren__plan *plan)
{
    for (uint32_t t = 0; t < plan->task_count; t++) {
        ren_stream stream = plan->nodes[t].stream;
        put(w, "  t%u [group=%u fillcolor=%s label=\"", t, plan->nodes[t].lane, colour(stream));
        put_name(w, plan->tasks[t].name);
        put(w, "\\n");
        put_name(w, plan->tasks[t].segment);
        put(w, " %s\"];\n", stream_name(stream));
    }
    put(w, "  t%u [group=%u shape=point label=\"join\"];\n", plan->task_count, plan->origin_lane);
}

static void put_edges(writer *w, const ren__plan *plan)
{
    for (uint32_t t = 0; t <= plan->task_count; t++) {
        const ren__plan_node *node = &plan->nodes[t];
        uint32_t before = plan->known[t].after[node->lane];
        if (before) {
            put(w, "  t%u -> t%u [style=dotted];\n", before - 1u, t);
        }
        for (uint32_t i = 0; i < node->wait_count; i++) {
            uint32_t producer = ren__plan_producer(plan, node->wait_first + i);
            put(w, "  t%u -> t%u [style=bold label=\"e%u\"];\n", producer, t,
                plan->nodes[producer].event);
        }
    }
    for (uint32_t i = 0; i < plan->data.count; i++) {
        const ren__edge *edge = &ren__plan_edges(&plan->data)[i];
        put(w, "  t%u -> t%u [color=grey constraint=false tooltip=\"", edge->from, edge->to);
        put_name(w, plan->values[edge->value].name);
        put(w, "\"];\n");
    }
}

size_t ren__plan_dump(const ren__plan *plan, char *out, size_t bytes)
{
    writer w = {.out = out, .bytes = bytes};
    put(&w, "digraph plan {\n  node [shape=box style=filled];\n");
    put_tasks(&w, plan);
    put_edges(&w, plan);
    put(&w, "}\n");
    return w.length;
}
