/* SPDX-License-Identifier: MIT */
/* libren/graph/cost.c - how long a task is expected to take.
 *
 * Purpose   GREEDY compares plans by the time that they would take. This file turns the work of a
 *           task into nanoseconds, by the figures that a device gives in its caps.
 * Threads   any.
 * Units     ns; work in flops or bytes.
 *
 * An operation takes as long as its arithmetic or its traffic, whichever is longer, and on top of
 * it the time that passes between two operations of a lane however small they are. Products and
 * convolutions count flops, by the type that they multiply; everything else counts the bytes of its
 * operands. The figures are of orders of magnitude: they decide whether a branch is worth an event,
 * not more.
 */
#include "internal.h"

/* A device that says nothing: slow enough that events are cheap, and as wide as it has lanes. */
static const ren__device_costs unknown = {.launch_ns = 1000,
                                          .event_ns = 5000,
                                          .graph_launch_ns = 1000,
                                          .graph_event_ns = 5000,
                                          .processors = REN__LANES,
                                          .flops_per_ns = 10.0f,
                                          .tf32_flops_per_ns = 10.0f,
                                          .half_flops_per_ns = 10.0f,
                                          .bytes_per_ns = 10.0f};

ren__cost_model ren__cost_model_of(const ren__plan_config *config)
{
    const ren__device_costs *c = config->costs.bytes_per_ns > 0.0f ? &config->costs : &unknown;
    ren__cost_model m = {
        .costs = *c, .launch_ns = c->launch_ns, .event_ns = c->event_ns, .root_ns = c->event_ns};
    if (config->replayed) { /* the host launches one graph, whatever is in it */
        m.launch_ns = c->graph_launch_ns;
        m.event_ns = c->graph_event_ns;
        m.root_ns = c->graph_root_ns;
        m.costs.host_launch_ns = 0;
        m.costs.host_event_ns = 0;
    }
    return m;
}

static uint32_t multiplies(ren__op_kind kind)
{
    switch (kind) {
    case REN__OP_LINEAR_FWD:
    case REN__OP_LINEAR_BWD_DATA:
    case REN__OP_LINEAR_BWD_WEIGHT:
    case REN__OP_CONV_FWD:
    case REN__OP_CONV_BWD_DATA:
    case REN__OP_CONV_BWD_WEIGHT:
        return 1;
    default:
        return 0;
    }
}

static float flops_per_ns(const ren__device_costs *c, const ren__op_desc *op)
{
    ren_dtype dtype = op->operand[0].dtype;
    if (dtype == REN_F16 || dtype == REN_BF16) {
        return c->half_flops_per_ns;
    }
    return op->allow_tf32 ? c->tf32_flops_per_ns : c->flops_per_ns;
}

static uint64_t bytes_moved(const ren__task *t)
{
    if (t->kind != REN__TASK_OP) {
        return t->kind == REN__TASK_COPY ? 2u * t->bytes : t->bytes;
    }
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        bytes += t->operand[i] == REN__NO_VALUE ? 0u : ren__tensor_bytes(&t->op.operand[i]);
    }
    return bytes;
}

ren__task_work ren__cost_of(const ren__cost_model *m, const ren__task *t)
{
    ren__task_work w = {0, 0};
    uint64_t bytes = bytes_moved(t);
    if (t->kind == REN__TASK_OP && multiplies(t->op.kind)) {
        w.flops_ns = (uint64_t)((double)t->cost / (double)flops_per_ns(&m->costs, &t->op));
    } else if (t->cost > bytes) {
        bytes = t->cost;
    }
    w.bytes_ns = (uint64_t)((double)bytes / (double)m->costs.bytes_per_ns);
    return w;
}
