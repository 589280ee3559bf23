/* SPDX-License-Identifier: MIT */
/* libren/train/diff.c - see diff.h.
 *
 * Nodes are in topological order by construction: a node's inputs exist before it. Marking
 * therefore takes one sweep back from the target (needed) and one forward (wants_grad), and the
 * backward pass is the needed nodes in reverse: when a node's turn comes, everyone who reads its
 * output has added to its gradient. The data gradient of a layer whose input needs none, as the
 * first one's, is never asked for; nor is one that only frozen parameters would use.
 *
 * The target of training is a loss or a sum of losses. Every loss below it begins a backward pass
 * of its own, with the gradient 1: sums have none to hand on. So none may be counted twice.
 */
#include "diff.h"

#include "fuse.h"

static size_t carve(size_t *at, size_t count, size_t size)
{
    size_t offset = *at;
    *at = (offset + count * size + 63u) / 64u * 64u;
    return offset;
}

static ren_status take_block(ren__diff *d)
{
    size_t nodes = d->model->node_count;
    size_t params = d->model->param_count;
    size_t at = 0;
    size_t needed = carve(&at, nodes, 1);
    size_t wants = carve(&at, nodes, 1);
    size_t used = carve(&at, params, 1);
    size_t fused = carve(&at, nodes, sizeof(ren__fused));
    size_t readers = carve(&at, nodes, sizeof(uint32_t));
    size_t foldable = carve(&at, nodes, 1);
    size_t folded = carve(&at, nodes, sizeof d->folded[0]);
    size_t values = carve(&at, nodes, sizeof(uint32_t));
    size_t casts = carve(&at, nodes, sizeof(uint32_t));
    size_t grads = carve(&at, nodes, sizeof(uint32_t));
    size_t more = carve(&at, nodes, sizeof(uint32_t));
    size_t saved = carve(&at, nodes, sizeof d->saved[0]);
    size_t param_values = carve(&at, params, sizeof(uint32_t));
    size_t param_casts = carve(&at, params, sizeof(uint32_t));
    size_t param_grads = carve(&at, params, sizeof(uint32_t));
    size_t descs = carve(&at, params, sizeof(ren__tensor_desc));
    unsigned char *block = ren__host_calloc(d->model->allocator, 1, at + 64u);
    if (!block) {
        return REN_ERR_NO_MEMORY;
    }
    d->block = block;
    d->block_bytes = at + 64u;
    d->needed = block + needed;
    d->wants_grad = block + wants;
    d->param_used = block + used;
    d->fused = (ren__fused *)(void *)(block + fused);
    d->readers = (uint32_t *)(void *)(block + readers);
    d->foldable = block + foldable;
    d->folded = (uint32_t(*)[2])(void *)(block + folded);
    d->values = (uint32_t *)(void *)(block + values);
    d->casts = (uint32_t *)(void *)(block + casts);
    d->grads = (uint32_t *)(void *)(block + grads);
    d->more = (uint32_t *)(void *)(block + more);
    d->saved = (uint32_t(*)[REN__NODE_SAVED])(void *)(block + saved);
    d->param_values = (uint32_t *)(void *)(block + param_values);
    d->param_casts = (uint32_t *)(void *)(block + param_casts);
    d->param_grads = (uint32_t *)(void *)(block + param_grads);
    d->param_descs = (ren__tensor_desc *)(void *)(block + descs);
    return REN_OK;
}

static void mark_needed(ren__diff *d)
{
    const ren_model *m = d->model;
    d->needed[d->target] = 1;
    for (uint32_t i = d->target + 1; i-- > 0;) {
        const ren__node *n = m->nodes[i];
        for (uint32_t k = 0; d->needed[i] && k < n->input_count; k++) {
            d->needed[n->inputs[k]] = 1;
        }
        for (uint32_t k = 0; d->needed[i] && k < REN__NODE_PARAMS; k++) {
            if (n->params[k] != REN__NO_PARAM) {
                d->param_used[n->params[k]] = 1;
            }
        }
    }
}

static uint32_t is_trained(const ren__diff *d, uint32_t param)
{
    return d->model->params[param]->role == REN__PARAM_TRAINED && !(d->frozen && d->frozen[param]);
}

static void mark_wanted(ren__diff *d)
{
    const ren_model *m = d->model;
    memset(d->wants_grad, 0, m->node_count);
    for (uint32_t i = 0; i <= d->target; i++) {
        const ren__node *n = m->nodes[i];
        for (uint32_t k = 0; d->needed[i] && k < n->input_count; k++) {
            d->wants_grad[i] |= d->wants_grad[n->inputs[k]];
        }
        for (uint32_t k = 0; d->needed[i] && k < REN__NODE_PARAMS; k++) {
            if (n->params[k] != REN__NO_PARAM && is_trained(d, n->params[k])) {
                d->wants_grad[i] = 1;
            }
        }
    }
}

/* What the losses that the target needs may not be. */
static ren_status check_losses(ren__diff *d, ren_error *err)
{
    const ren_model *m = d->model;
    for (uint32_t i = 0; i <= d->target; i++) {
        const ren__node *n = m->nodes[i];
        uint32_t is_regression = n->kind == REN__NODE_MSE || n->kind == REN__NODE_HUBER;
        if (d->needed[i] && is_regression && d->wants_grad[n->inputs[1]]) {
            return REN__FAIL(err, REN_ERR_UNSUPPORTED,
                             "%s: the target %s depends on parameters; only the prediction may",
                             n->name, m->nodes[n->inputs[1]]->name);
        }
        for (uint32_t k = 0; d->needed[i] && k < n->input_count; k++) {
            uint32_t input = n->inputs[k];
            d->readers[input]++;
            if (m->nodes[input]->is_loss && d->readers[input] > 1) {
                return REN__FAIL(err, REN_ERR_UNSUPPORTED,
                                 "the loss %s is added twice; each counts once",
                                 m->nodes[input]->name);
            }
        }
    }
    return REN_OK;
}

ren_status ren__diff_init(ren__diff *d, ren_model *m, uint32_t target, uint32_t training,
                          ren_error *err)
{
    memset(d, 0, sizeof *d);
    d->model = m;
    d->target = target;
    d->training = training;
    d->fusions = m->caps.fusions;
    if (take_block(d) != REN_OK) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory to differentiate the model");
    }
    mark_needed(d);
    if (!training) {
        return REN_OK;
    }
    mark_wanted(d);
    if (check_losses(d, err) != REN_OK) {
        ren__diff_deinit(d);
        return REN_ERR_UNSUPPORTED;
    }
    return REN_OK;
}

void ren__diff_freeze(ren__diff *d, const uint8_t *frozen)
{
    d->frozen = frozen;
    mark_wanted(d);
}

void ren__diff_deinit(ren__diff *d)
{
    if (d->block) {
        ren__host_free(d->model->allocator, d->block, 1, d->block_bytes);
    }
    memset(d, 0, sizeof *d);
}

/* ------------------------------------------------------------------ emission */

/* The trained parameters in the step's precision: half the bytes, the same order. Made anew at each
 * step's beginning, on UPDATE, so that what the host writes between two steps is in them. */
static uint32_t emit_weights(ren__diff *d, ren__task_graph *g)
{
    uint64_t bytes = d->model->trained_bytes;
    if (d->precision == REN_F32 || bytes == 0) {
        return REN__NO_VALUE;
    }
    ren__tensor_desc from = ren__emit_vector_desc(bytes / sizeof(float));
    ren__tensor_desc to = from;
    uint32_t weights = ren__task_graph_value(g, "weights", REN__VALUE_LOCAL, bytes / 2);
    ren__task t;
    memset(&t, 0, sizeof t);
    to.dtype = d->precision;
    t.name = "weights";
    t.segment = "cast";
    t.stream = REN_STREAM_UPDATE;
    t.cost = bytes + bytes / 2;
    t.op.struct_size = (uint32_t)sizeof t.op;
    t.op.kind = REN__OP_CAST;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        t.operand[i] = REN__NO_VALUE;
    }
    ren__emit_read(&t, 0, ren__task_graph_alias(g, "weights", d->params, 0, bytes), &from);
    ren__emit_write(&t, 1, weights, &to);
    ren__task_graph_add(g, &t);
    return weights;
}

static void emit_statistic(ren__diff *d, ren__task_graph *g, uint32_t param)
{
    const ren__param *p = d->model->params[param];
    uint64_t offset = p->offset - d->model->trained_bytes;
    d->param_grads[param] = ren__task_graph_alias(g, p->name, d->statistics, offset, p->bytes);
    if (d->statistics_in != REN__NO_VALUE) {
        d->param_values[param] =
            ren__task_graph_alias(g, p->name, d->statistics_in, offset, p->bytes);
    }
}

/* Values of the parameters that the target uses, as parts of flat memory, so that one optimizer
 * launch covers many. */
static void emit_params(ren__diff *d, ren__task_graph *g)
{
    const ren_model *m = d->model;
    uint64_t statistics_bytes = m->region_bytes - m->trained_bytes;
    uint32_t weights;
    d->params = REN__NO_VALUE;
    d->grad_root = REN__NO_VALUE;
    d->statistics = REN__NO_VALUE;
    d->statistics_in = REN__NO_VALUE;
    if (m->region_bytes && d->training) {
        d->params = ren__task_graph_value(g, "params", REN__VALUE_FIXED, m->region_bytes);
    } else if (m->region_bytes) { /* under the model's lock, as `weights` must be */
        uint64_t bytes = m->weights.bytes ? m->weights.bytes : m->region_bytes;
        d->params = ren__task_graph_value(g, "weights", REN__VALUE_EXTERNAL, bytes);
    }
    if (d->training && m->trained_bytes) {
        d->grad_root = ren__task_graph_value(g, "gradients", REN__VALUE_FIXED, m->trained_bytes);
    }
    if (d->training && statistics_bytes) {
        d->statistics = ren__task_graph_value(
            g, "new statistics",
            d->phase == REN__PHASE_ONLY ? REN__VALUE_FIXED : REN__VALUE_EXTERNAL, statistics_bytes);
    }
    if (d->statistics != REN__NO_VALUE &&
        (d->phase == REN__PHASE_MIDDLE || d->phase == REN__PHASE_LAST)) {
        d->statistics_in =
            ren__task_graph_value(g, "statistics so far", REN__VALUE_EXTERNAL, statistics_bytes);
    }
    weights = emit_weights(d, g);
    for (uint32_t i = 0; i < m->param_count; i++) {
        const ren__param *p = m->params[i];
        d->param_descs[i] = p->desc;
        d->param_values[i] = REN__NO_VALUE;
        d->param_grads[i] = REN__NO_VALUE;
        if (!d->param_used[i]) {
            continue;
        }
        d->param_values[i] = ren__task_graph_alias(g, p->name, d->params, p->offset, p->bytes);
        d->param_casts[i] =
            weights != REN__NO_VALUE && p->role == REN__PARAM_TRAINED
                ? ren__task_graph_alias(g, p->name, weights, p->offset / 2, p->bytes / 2)
                : d->param_values[i];
        if (d->training && p->role == REN__PARAM_STATISTIC) {
            emit_statistic(d, g, i);
        } else if (d->training && is_trained(d, i)) {
            d->param_grads[i] =
                ren__task_graph_alias(g, p->name, d->grad_root, p->offset, p->bytes);
        }
    }
}

static void emit_folded(ren__diff *d, ren__task_graph *g)
{
    const ren__weights *w = &d->model->weights;
    for (uint32_t i = 0; !d->training && i < w->fold_count; i++) {
        const ren__weight_fold *fold = &w->folds[i];
        const char *name = d->model->nodes[fold->norm]->name;
        if (fold->norm <= d->target && d->needed[fold->norm]) {
            d->foldable[fold->norm] = 1;
            d->folded[fold->norm][0] =
                ren__task_graph_alias(g, name, d->params, fold->weight, fold->weight_bytes);
            d->folded[fold->norm][1] =
                ren__task_graph_alias(g, name, d->params, fold->bias, fold->bias_bytes);
        }
    }
}

static void decide_groups(ren__diff *d, int64_t batch)
{
    const ren__fuse fuse = {.nodes = d->model->nodes,
                            .target = d->target,
                            .batch = batch,
                            .training = d->training,
                            .fusions = d->fusions,
                            .needed = d->needed,
                            .wants_grad = d->wants_grad,
                            .foldable = d->foldable,
                            .readers = d->readers};
    ren__fuse_decide(&fuse, d->fused);
}

static void emit_forward(ren__diff *d, ren__emitter *e, uint32_t i)
{
    const ren__node *n = d->model->nodes[i];
    uint32_t head = d->fused[i].head;
    if (n->kind == REN__NODE_INPUT) {
        ren__tensor_desc desc = ren__emit_full_desc(e, i);
        d->values[i] =
            ren__task_graph_value(e->graph, n->name, REN__VALUE_EXTERNAL, ren__tensor_bytes(&desc));
    } else if (d->fused[head].tail == i) {
        ren__op_family_of(d->model->nodes[head]->kind)->forward(e, head);
    }
}

static void emit_backward(ren__diff *d, ren__emitter *e, uint32_t i)
{
    const ren__node *n = d->model->nodes[i];
    uint32_t head = d->fused[i].head;
    if (d->wants_grad[i] && n->kind != REN__NODE_INPUT && d->fused[head].tail == i &&
        (n->is_loss || d->grads[i] != REN__NO_VALUE)) {
        ren__op_family_of(d->model->nodes[head]->kind)->backward(e, head);
    }
}

void ren__diff_emit(ren__diff *d, ren__task_graph *g, int64_t batch)
{
    const ren_model *m = d->model;
    ren__emitter e = {.graph = g,
                      .nodes = m->nodes,
                      .node_count = m->node_count,
                      .batch = batch,
                      .training = d->training,
                      .precision = d->precision,
                      .dynamic_scale = d->dynamic_scale,
                      .allow_tf32 = m->allow_tf32,
                      .fusions = d->fusions,
                      .fused = d->fused,
                      .folded = d->folded,
                      .segment = "forward",
                      .values = d->values,
                      .casts = d->casts,
                      .grads = d->grads,
                      .more = d->more,
                      .wants_grad = d->wants_grad,
                      .saved = d->saved,
                      .param_values = d->param_values,
                      .param_casts = d->param_casts,
                      .param_grads = d->param_grads,
                      .param_descs = d->param_descs,
                      .control = REN__NO_VALUE,
                      .state = REN__NO_VALUE};
    emit_params(d, g);
    if (d->training) {
        e.control = ren__task_graph_value(g, "control", REN__VALUE_EXTERNAL, sizeof(ren__control));
        e.state = ren__task_graph_value(g, "state", REN__VALUE_FIXED, sizeof(ren__state));
    }
    d->control = e.control;
    d->state = e.state;
    emit_folded(d, g);
    decide_groups(d, batch);
    for (uint32_t i = 0; i <= d->target; i++) {
        d->grads[i] = REN__NO_VALUE;
        d->more[i] = REN__NO_VALUE;
        d->casts[i] = REN__NO_VALUE;
        d->values[i] = REN__NO_VALUE;
        if (d->needed[i]) {
            emit_forward(d, &e, i);
        }
    }
    e.segment = "backward";
    for (uint32_t i = d->target + 1; d->training && i-- > 0;) {
        emit_backward(d, &e, i);
    }
}
