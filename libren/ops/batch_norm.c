/* SPDX-License-Identifier: MIT */
/* libren/ops/batch_norm.c - normalisation of each channel over batch, height and width.
 *
 * Training  y = weight (x - mean) / sqrt(var + eps) + bias with the batch's biased variance (Ioffe
 *           and Szegedy 2015); the running statistics move towards the batch's, the variance
 *           unbiased, as in PyTorch's BatchNorm2d. They are parameters that no gradient reaches;
 *           the new ones go beside the old, and the update puts them in place with the weights.
 * Inference the running statistics in place of the batch's.
 * Shapes    x [N, C] or [N, H, W, C]; weight, bias, running_mean, running_var [C].
 * Fusion    An addition behind it and a ReLU at the end may be part of both tasks.
 * Streams   COMP_2.
 */
#include "ops.h"

#include <math.h>

enum {
    WEIGHT = 0,
    BIAS = 1,
    MEAN = 2,
    VARIANCE = 3
};

static ren_status batch_norm_shape(const ren__node *n, const ren__shape_in *in,
                                   ren__tensor_desc *out, ren__shape_error *err)
{
    ren_status status = ren__shape_expect(n, &in[0], 0, err);
    if (status != REN_OK) {
        return status;
    }
    if (in[0].desc.rank != 2 && in[0].desc.rank != 4) {
        return ren__shape_fail(err, REN_ERR_SHAPE, "%s: %s has rank %u, not 2 or 4", n->name,
                               in[0].name, in[0].desc.rank);
    }
    if (!(n->alpha >= 0.0f && n->alpha <= 1.0f)) {
        return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT, "%s: momentum %g is not in [0, 1]",
                               n->name, (double)n->alpha);
    }
    if (!(n->eps > 0.0f) || !isfinite(n->eps)) {
        return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT,
                               "%s: eps %g is not positive and finite", n->name, (double)n->eps);
    }
    *out = in[0].desc;
    return REN_OK;
}

static uint32_t batch_norm_params(const ren__node *n, const ren__shape_in *in, ren__param_spec *out)
{
    static const char *const suffixes[] = {".weight", ".bias", ".running_mean", ".running_var"};
    (void)n;
    for (uint32_t i = 0; i < 4; i++) {
        out[i] =
            (ren__param_spec){.suffix = suffixes[i],
                              .slot = i,
                              .rank = 1,
                              .dims = {in[0].desc.dims[in[0].desc.rank - 1]},
                              .init = i == WEIGHT || i == VARIANCE ? REN__INIT_ONE : REN__INIT_ZERO,
                              .is_statistic = i >= MEAN};
    }
    return 4;
}

static ren__task batch_norm_op(ren__emitter *e, uint32_t index, ren__op_kind kind, uint64_t cost)
{
    const ren__node *n = e->nodes[index];
    ren__task t = ren__emit_op(e, n, kind, REN_STREAM_COMP_2, cost);
    t.op.alpha = n->alpha;
    t.op.eps = n->eps;
    if (e->fused[index].act != REN__NO_NODE) {
        t.op.activation = e->nodes[e->fused[index].act]->activation;
        t.op.fused_activation = 1;
    }
    return t;
}

static void batch_norm_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    const ren__fused *fused = &e->fused[index];
    uint32_t with_other = fused->other != REN__NO_NODE;
    ren__tensor_desc x = ren__emit_desc(e, index);
    ren__tensor_desc channel = e->param_descs[n->params[WEIGHT]];
    ren__op_kind kind = e->training ? REN__OP_BATCH_NORM_TRAIN : REN__OP_BATCH_NORM_EVAL;
    ren__task t = batch_norm_op(e, index, kind, (4 + with_other) * ren__tensor_bytes(&x));
    ren__emit_read(&t, 0, ren__emit_value(e, n->inputs[0]), &x);
    for (uint32_t i = 0; i < 4; i++) {
        ren__emit_read_param(e, &t, 1 + i, n->params[i]);
    }
    if (with_other) {
        ren__emit_read(&t, 10, ren__emit_value(e, fused->other), &x);
    }
    ren__emit_write(&t, 5, ren__emit_output(e, fused->tail), &x);
    if (e->training) {
        for (uint32_t i = 0; i < 2; i++) {
            e->saved[index][i] = ren__emit_local(e, n, ren__tensor_bytes(&channel));
            ren__emit_write(&t, 6 + i, e->saved[index][i], &channel);
            ren__emit_write(&t, 8 + i, e->param_grads[n->params[MEAN + i]], &channel);
        }
    }
    ren__emit_task(e, &t);
}

/* What passed a fused ReLU: the output tells, or without an addition the normalised x itself, which
 * the pass reads anyway. What is added takes the gradient of the sum. Gives the value of that. */
static uint32_t read_gate(ren__emitter *e, ren__task *t, uint32_t index, uint32_t dy)
{
    const ren__node *n = e->nodes[index];
    const ren__fused *fused = &e->fused[index];
    ren__tensor_desc x = ren__emit_desc(e, index);
    if (fused->act == REN__NO_NODE) {
        return dy;
    }
    if (fused->other == REN__NO_NODE) {
        ren__emit_read_param(e, t, 10, n->params[BIAS]);
        return dy;
    }
    ren__emit_read(t, 8, e->values[fused->tail], &x);
    if (!e->wants_grad[fused->other]) {
        return dy;
    }
    uint32_t dother = ren__emit_local(e, n, ren__tensor_bytes(&x));
    ren__emit_write(t, 9, dother, &x);
    return dother;
}

static void batch_norm_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    const ren__fused *fused = &e->fused[index];
    uint32_t dy = e->grads[fused->tail];
    ren__tensor_desc x = ren__emit_desc(e, index);
    ren__tensor_desc channel = e->param_descs[n->params[WEIGHT]];
    uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&x));
    uint32_t more = e->more[fused->tail];
    uint32_t touched = 6 + (fused->act != REN__NO_NODE && fused->other != REN__NO_NODE ? 2u : 0u) +
                       (more != REN__NO_VALUE ? 1u : 0u);
    ren__task t = batch_norm_op(e, index, REN__OP_BATCH_NORM_BWD, touched * ren__tensor_bytes(&x));
    ren__emit_read(&t, 0, dy, &x);
    ren__emit_read(&t, 1, ren__emit_value(e, n->inputs[0]), &x);
    ren__emit_read_param(e, &t, 2, n->params[WEIGHT]);
    ren__emit_read(&t, 3, e->saved[index][0], &channel);
    ren__emit_read(&t, 4, e->saved[index][1], &channel);
    ren__emit_write(&t, 5, dx, &x);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t grad = e->param_grads[n->params[WEIGHT + i]];
        if (grad == REN__NO_VALUE) { /* frozen; the operation computes it anyway */
            grad = ren__emit_local(e, n, ren__tensor_bytes(&channel));
        }
        ren__emit_write(&t, 6 + i, grad, &channel);
    }
    if (more != REN__NO_VALUE) {
        ren__emit_read(&t, 11, more, &x);
    }
    uint32_t dother = read_gate(e, &t, index, dy);
    ren__emit_task(e, &t);
    ren__emit_grad(e, n, n->inputs[0], dx);
    if (fused->other != REN__NO_NODE) {
        ren__emit_grad(e, n, fused->other, dother);
    }
}

const ren__op_family ren__family_batch_norm = {.name = "batch_norm",
                                               .shape = batch_norm_shape,
                                               .params = batch_norm_params,
                                               .forward = batch_norm_forward,
                                               .backward = batch_norm_backward};
