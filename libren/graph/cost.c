/* SPDX-License-Identifier: MIT */
/* libren/graph/cost.c - how long a task is expected to take.
 *
 * Purpose   GREEDY compares plans by the time that they would take. This file turns the work of a
 *           task into nanoseconds, by the figures that a device gives in its caps.
 * Threads   any.
 * Units     ns; work in flops or bytes.
 *
 * An operation takes as long as its arithmetic or its traffic, whichever is longer, and on top of
 * it the time that passes between two operations of a lane however small they are: twice where all
 * of the input must be seen before the output can be finished, as in batch norms and in gradients
 * of weights. Products and convolutions count flops, by the type that they multiply; a unit that
 * multiplies tiles is full only with so many channels. Everything else counts the bytes of its
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

static uint32_t is_weight_gradient(ren__op_kind kind)
{
    return kind == REN__OP_LINEAR_BWD_WEIGHT || kind == REN__OP_CONV_BWD_WEIGHT;
}

static uint32_t multiplies(ren__op_kind kind)
{
    return kind == REN__OP_LINEAR_FWD || kind == REN__OP_LINEAR_BWD_DATA ||
           kind == REN__OP_CONV_FWD || kind == REN__OP_CONV_BWD_DATA || is_weight_gradient(kind);
}

static uint32_t passes_of(const ren__task *t)
{
    uint32_t twice = is_weight_gradient(t->op.kind) || t->op.kind == REN__OP_BATCH_NORM_TRAIN ||
                     t->op.kind == REN__OP_BATCH_NORM_BWD;
    return t->kind == REN__TASK_OP && twice ? 2 : 1;
}

/* Flops that the device spends on those that are asked for. The weights are [O, I, ...]. */
static double spent(const ren__device_costs *c, const ren__task *t)
{
    const ren__tensor_desc *w = &t->op.operand[is_weight_gradient(t->op.kind) ? 2 : 1];
    double outputs = w->rank ? (double)w->dims[0] : 1.0;
    double inputs = w->rank ? (double)ren__tensor_elements(w) / outputs : 1.0;
    double channels = outputs < inputs ? outputs : inputs;
    double full = (double)c->channels_full;
    return (double)t->cost * (channels < full ? full / channels : 1.0);
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
    ren__task_work w = {.passes = passes_of(t)};
    uint64_t bytes = bytes_moved(t);
    if (t->kind == REN__TASK_OP && multiplies(t->op.kind)) {
        double rate = (double)flops_per_ns(&m->costs, &t->op);
        w.flops_ns = (uint64_t)(spent(&m->costs, t) / rate);
        w.full_ns = (uint64_t)((double)t->cost / rate);
    } else if (t->cost > bytes) {
        bytes = t->cost;
    }
    w.bytes_ns = (uint64_t)((double)bytes / (double)m->costs.bytes_per_ns);
    return w;
}
