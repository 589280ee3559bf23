/* SPDX-License-Identifier: MIT */
/* libren/train/update.c - see update.h.
 *
 * The order of the tasks is what makes a step apply whole or not at all, whichever device call
 * fails: the loss goes into the state, CHECK looks at the gradients, ADVANCE counts, and only then
 * do optimizer, average and new running statistics change what later steps see. A step whose
 * gradients CHECK found bad is skipped by the device itself: every task behind CHECK reads
 * found_inf and changes nothing. The host learns of it with the result. The tasks behind ADVANCE
 * are marked as lasting: once one is enqueued the others follow, at the latest before the next
 * thing that the model does.
 *
 * Runs. Gradients, moments and averages are parallel to the trained part of the model's region, so
 * one optimizer launch covers every run of neighbouring parameters that the loss depends on
 * (usually all). The padding between parameters is zero in all of them and stays zero under every
 * rule. A frozen parameter ends a run. Two rules need a launch for each parameter:
 *   LARS  by its norms. The launches spread over three streams: linear layers on COMP_1, the first
 *         convolution on COMP_2, all else on COMP_3.
 *   Adam  once any parameter was ever frozen: its bias correction depends on how often this very
 *         parameter was updated, so each has a count of its own, moved by the launch that moves it.
 *
 * Accumulation. Each step of a window adds its gradients to those before it and writes the sum to
 * the other of two places; its running statistics likewise go from place to place. A step that
 * breaks off has spoilt only the place that the next step writes anew. The last step of a window
 * updates from the sum.
 */
#include "update.h"

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + REN__ALIGN - 1) / REN__ALIGN * REN__ALIGN;
}

static ren__task update_task(const ren__step_update *u, const char *name, ren__op_kind kind)
{
    ren__task t;
    memset(&t, 0, sizeof t);
    t.name = name;
    t.segment = "optimizer";
    t.stream = REN_STREAM_UPDATE;
    t.op.struct_size = (uint32_t)sizeof t.op;
    t.op.kind = kind;
    t.op.dynamic_scale = u->t->dynamic_scale;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        t.operand[i] = REN__NO_VALUE;
    }
    return t;
}

static void change(ren__task *t, uint32_t operand, uint32_t value, const ren__tensor_desc *desc)
{
    ren__emit_read(t, operand, value, desc);
    ren__emit_write(t, operand, value, desc);
}

static void read_control(const ren__step_update *u, ren__task *t, uint32_t operand)
{
    ren__tensor_desc desc = ren__emit_bytes_desc(sizeof(ren__control));
    ren__emit_read(t, operand, u->d->control, &desc);
}

static void add_copy(ren__step_update *u, const char *name, uint32_t to, uint64_t to_offset,
                     uint32_t from, uint64_t from_offset, uint64_t bytes)
{
    ren__task t = update_task(u, name, REN__OP_NONE);
    t.lasting = to == u->d->params;
    t.kind = REN__TASK_COPY;
    t.operand[0] = to;
    t.operand_offset[0] = to_offset;
    t.operand[1] = from;
    t.operand_offset[1] = from_offset;
    t.writes = 1u;
    t.reads = 2u;
    t.bytes = bytes;
    ren__task_graph_add(u->g, &t);
}

/* ------------------------------------------------------------------ gradients */

/* The gradient of a frozen parameter is not computed, and what an earlier plan left there must not
 * count in the norm. These come before whatever else waits on UPDATE for the passes, so that under
 * STATIC they run beside the forward pass. */
static void clear_frozen(ren__step_update *u)
{
    const ren_model *m = u->t->model;
    for (uint32_t i = 0; i < m->param_count && u->d->frozen; i++) {
        const ren__param *p = m->params[i];
        if (p->role == REN__PARAM_TRAINED && u->d->param_used[i] && u->d->frozen[i]) {
            ren__task t = update_task(u, p->name, REN__OP_NONE);
            t.kind = REN__TASK_FILL;
            t.operand[0] = u->d->grad_root;
            t.operand_offset[0] = p->offset;
            t.writes = 1u;
            t.bytes = p->bytes;
            ren__task_graph_add(u->g, &t);
        }
    }
}

static void add_sum(ren__step_update *u)
{
    uint64_t bytes = u->t->model->trained_bytes;
    ren__tensor_desc flat = ren__emit_vector_desc(bytes / sizeof(float));
    u->sum_out = ren__task_graph_value(u->g, "sum", REN__VALUE_EXTERNAL, bytes);
    if (u->d->phase == REN__PHASE_FIRST) {
        add_copy(u, "sum", u->sum_out, 0, u->d->grad_root, 0, bytes);
        return;
    }
    u->sum_in = ren__task_graph_value(u->g, "sum so far", REN__VALUE_EXTERNAL, bytes);
    ren__task t = update_task(u, "sum", REN__OP_ADD);
    t.cost = 3 * bytes;
    ren__emit_read(&t, 0, u->sum_in, &flat);
    ren__emit_read(&t, 1, u->d->grad_root, &flat);
    ren__emit_write(&t, 2, u->sum_out, &flat);
    ren__task_graph_add(u->g, &t);
}

/* What the optimizer reads. */
static uint32_t gradients(const ren__step_update *u)
{
    return u->d->phase == REN__PHASE_ONLY ? u->d->grad_root : u->sum_out;
}

static void add_check(ren__step_update *u)
{
    ren__tensor_desc state = ren__emit_bytes_desc(sizeof(ren__state));
    ren__tensor_desc flat = ren__emit_vector_desc(u->t->model->trained_bytes / sizeof(float));
    ren__task t = update_task(u, "check", REN__OP_CHECK);
    ren__emit_read(&t, 0, gradients(u), &flat);
    read_control(u, &t, 1);
    change(&t, 2, u->state, &state);
    ren__task_graph_add(u->g, &t);
}

static void add_advance(ren__step_update *u)
{
    ren__tensor_desc state = ren__emit_bytes_desc(sizeof(ren__state));
    ren__task t = update_task(u, "advance", REN__OP_ADVANCE);
    read_control(u, &t, 0);
    change(&t, 1, u->state, &state);
    ren__task_graph_add(u->g, &t);
}

/* ------------------------------------------------------------------ optimizers */

static ren__op_kind optimizer_kind(const ren_trainer *t)
{
    static const ren__op_kind kinds[] = {[REN_OPTIMIZER_SGD] = REN__OP_SGD,
                                         [REN_OPTIMIZER_ADAM] = REN__OP_ADAM,
                                         [REN_OPTIMIZER_ADAMW] = REN__OP_ADAMW,
                                         [REN_OPTIMIZER_LARS] = REN__OP_LARS};
    return kinds[t->optimizer];
}

/* One optimizer launch over [from, from + bytes) of the flat memories. */
static ren__task optimizer_task(ren__step_update *u, const char *name, uint64_t from,
                                uint64_t bytes)
{
    ren__tensor_desc flat = ren__emit_vector_desc(bytes / sizeof(float));
    ren__tensor_desc state = ren__emit_bytes_desc(sizeof(ren__state));
    ren__task t = update_task(u, name, optimizer_kind(u->t));
    t.cost = 4 * bytes;
    t.lasting = 1;
    ren__emit_read(&t, 0, ren__task_graph_alias(u->g, name, gradients(u), from, bytes), &flat);
    read_control(u, &t, 1);
    ren__emit_read(&t, 2, u->state, &state);
    change(&t, 3, ren__task_graph_alias(u->g, name, u->d->params, from, bytes), &flat);
    for (uint32_t i = 0; i < 2 && u->moment[i] != REN__NO_VALUE; i++) {
        change(&t, 4 + i, ren__task_graph_alias(u->g, name, u->moment[i], from, bytes), &flat);
    }
    return t;
}

static uint32_t is_updated(const ren__step_update *u, uint32_t param)
{
    return u->d->param_used[param] && !(u->d->frozen && u->d->frozen[param]);
}

/* The stream of each parameter's LARS launch. */
static ren_stream lars_stream(const ren__step_update *u, uint32_t param)
{
    const ren_model *m = u->t->model;
    uint32_t convolutions = 0;
    for (uint32_t i = 0; i <= u->d->target; i++) {
        const ren__node *n = m->nodes[i];
        convolutions += u->d->needed[i] && n->kind == REN__NODE_CONV2D;
        for (uint32_t k = 0; k < REN__NODE_PARAMS; k++) {
            if (n->params[k] == param) {
                return n->kind == REN__NODE_LINEAR                        ? REN_STREAM_COMP_1
                       : n->kind == REN__NODE_CONV2D && convolutions == 1 ? REN_STREAM_COMP_2
                                                                          : REN_STREAM_COMP_3;
            }
        }
    }
    return REN_STREAM_COMP_3;
}

static void add_by_parameter(ren__step_update *u)
{
    const ren_model *m = u->t->model;
    ren__tensor_desc count = ren__emit_bytes_desc(sizeof(uint64_t));
    for (uint32_t i = 0; i < m->param_count; i++) {
        const ren__param *p = m->params[i];
        if (p->role != REN__PARAM_TRAINED || !is_updated(u, i)) {
            continue;
        }
        ren__task t = optimizer_task(u, p->name, p->offset, p->bytes);
        if (u->t->optimizer == REN_OPTIMIZER_LARS) {
            t.stream = lars_stream(u, i);
        } else {
            change(&t, 6,
                   ren__task_graph_alias(u->g, p->name, u->counts, i * sizeof(uint64_t),
                                         sizeof(uint64_t)),
                   &count);
        }
        ren__task_graph_add(u->g, &t);
    }
}

/* ------------------------------------------------------------------ runs */

static void add_average(ren__step_update *u, uint64_t from, uint64_t bytes)
{
    ren__tensor_desc flat = ren__emit_vector_desc(bytes / sizeof(float));
    ren__tensor_desc state = ren__emit_bytes_desc(sizeof(ren__state));
    ren__task t = update_task(u, "average", REN__OP_EMA);
    t.cost = 3 * bytes;
    t.lasting = 1;
    ren__emit_read(&t, 0, ren__task_graph_alias(u->g, "average", u->d->params, from, bytes), &flat);
    read_control(u, &t, 1);
    ren__emit_read(&t, 2, u->state, &state);
    change(&t, 3, ren__task_graph_alias(u->g, "average", u->average, from, bytes), &flat);
    ren__task_graph_add(u->g, &t);
}

static void add_optimizer(ren__step_update *u, uint64_t from, uint64_t bytes)
{
    ren__task t = optimizer_task(u, "update", from, bytes);
    ren__task_graph_add(u->g, &t);
}

/* New running statistics into their place, unless the step is skipped. */
static void add_commit(ren__step_update *u, uint64_t from, uint64_t bytes)
{
    uint64_t staged = from - u->t->model->trained_bytes;
    if (!u->t->checks) {
        add_copy(u, "statistics", u->d->params, from, u->d->statistics, staged, bytes);
        return;
    }
    ren__tensor_desc flat = ren__emit_vector_desc(bytes / sizeof(float));
    ren__tensor_desc state = ren__emit_bytes_desc(sizeof(ren__state));
    ren__task t = update_task(u, "statistics", REN__OP_COMMIT);
    t.lasting = 1;
    ren__emit_read(
        &t, 0, ren__task_graph_alias(u->g, "statistics", u->d->statistics, staged, bytes), &flat);
    ren__emit_read(&t, 1, u->state, &state);
    ren__emit_write(&t, 2, ren__task_graph_alias(u->g, "statistics", u->d->params, from, bytes),
                    &flat);
    ren__task_graph_add(u->g, &t);
}

/* For each run of neighbouring parameters of a role. Index order is region order inside each. */
static void for_runs(ren__step_update *u, ren__param_role role, uint32_t with_frozen,
                     void (*add)(ren__step_update *u, uint64_t from, uint64_t bytes))
{
    const ren_model *m = u->t->model;
    uint64_t from = 0;
    uint64_t end = 0;
    for (uint32_t i = 0; i <= m->param_count; i++) {
        const ren__param *p = i < m->param_count ? m->params[i] : NULL;
        if (p && p->role != role) {
            continue;
        }
        uint32_t used = p && (with_frozen ? u->d->param_used[i] : is_updated(u, i));
        if (used && end > from && p->offset == end) {
            end += align_up(p->bytes);
            continue;
        }
        if (end > from) {
            add(u, from, end - from);
        }
        from = used ? p->offset : 0;
        end = used ? from + align_up(p->bytes) : 0;
    }
}

/* ------------------------------------------------------------------ all */

static void add_values(ren__step_update *u)
{
    const ren_trainer *t = u->t;
    uint64_t bytes = t->model->trained_bytes;
    u->state = u->d->state;
    u->average = REN__NO_VALUE;
    u->counts = REN__NO_VALUE;
    u->sum_in = REN__NO_VALUE;
    u->sum_out = REN__NO_VALUE;
    for (uint32_t i = 0; i < 2; i++) {
        u->moment[i] = t->moment[i] ? ren__task_graph_value(u->g, "moment", REN__VALUE_FIXED, bytes)
                                    : REN__NO_VALUE;
    }
    if (t->averages && bytes) {
        u->average = ren__task_graph_value(u->g, "averages", REN__VALUE_FIXED, bytes);
    }
    if (u->counted) {
        u->counts = ren__task_graph_value(u->g, "counts", REN__VALUE_FIXED,
                                          t->param_count * sizeof(uint64_t));
    }
}

void ren__update_emit(ren__step_update *u)
{
    const ren_trainer *t = u->t;
    uint32_t trains = t->model->trained_bytes != 0;
    add_values(u);
    clear_frozen(u);
    add_copy(u, "loss", u->state, offsetof(ren__state, loss), u->d->values[t->loss], 0,
             sizeof(float));
    if (trains && u->d->phase != REN__PHASE_ONLY) {
        add_sum(u);
    }
    if (u->d->phase == REN__PHASE_FIRST || u->d->phase == REN__PHASE_MIDDLE) {
        return;
    }
    if (trains && t->checks) {
        add_check(u);
    }
    add_advance(u);
    if (t->optimizer == REN_OPTIMIZER_LARS || u->counted) {
        add_by_parameter(u);
    } else {
        for_runs(u, REN__PARAM_TRAINED, 0, add_optimizer);
    }
    if (u->average != REN__NO_VALUE) {
        for_runs(u, REN__PARAM_TRAINED, 1, add_average);
    }
    for_runs(u, REN__PARAM_STATISTIC, 0, add_commit);
}
