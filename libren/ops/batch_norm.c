/* SPDX-License-Identifier: MIT */
/* libren/ops/batch_norm.c - normalisation of each channel over batch, height and width.
 *
 * Training  y = weight (x - mean) / sqrt(var + eps) + bias with the batch's biased variance (Ioffe
 *           and Szegedy 2015); the running statistics move towards the batch's, the variance
 *           unbiased, as in PyTorch's BatchNorm2d. They are parameters that no gradient reaches;
 *           the new ones go beside the old, and the update puts them in place with the weights.
 * Inference the running statistics in place of the batch's.
 * Shapes    x [N, C] or [N, H, W, C]; weight, bias, running_mean, running_var [C].
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
    if (!(n->alpha >= 0.0f && n->alpha <= 1.0f) || !(n->eps > 0.0f) || !isfinite(n->eps)) {
        return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT,
                               "%s: momentum %g is not in [0, 1], or eps %g is not positive",
                               n->name, (double)n->alpha, (double)n->eps);
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

static void batch_norm_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc x = ren__emit_desc(e, index);
    ren__tensor_desc channel = e->param_descs[n->params[WEIGHT]];
    ren__op_kind kind = e->training ? REN__OP_BATCH_NORM_TRAIN : REN__OP_BATCH_NORM_EVAL;
    ren__task t = ren__emit_op(e, n, kind, REN_STREAM_COMP_2, 4 * ren__tensor_bytes(&x));
    t.op.alpha = n->alpha;
    t.op.eps = n->eps;
    ren__emit_read(&t, 0, ren__emit_value(e, n->inputs[0]), &x);
    for (uint32_t i = 0; i < 4; i++) {
        ren__emit_read_param(e, &t, 1 + i, n->params[i]);
    }
    ren__emit_write(&t, 5, ren__emit_output(e, index), &x);
    if (e->training) {
        for (uint32_t i = 0; i < 2; i++) {
            e->saved[index][i] = ren__emit_local(e, n, ren__tensor_bytes(&channel));
            ren__emit_write(&t, 6 + i, e->saved[index][i], &channel);
            ren__emit_write(&t, 8 + i, e->param_grads[n->params[MEAN + i]], &channel);
        }
    }
    ren__emit_task(e, &t);
}

static void batch_norm_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc x = ren__emit_desc(e, index);
    ren__tensor_desc channel = e->param_descs[n->params[WEIGHT]];
    uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&x));
    ren__task t =
        ren__emit_op(e, n, REN__OP_BATCH_NORM_BWD, REN_STREAM_COMP_2, 6 * ren__tensor_bytes(&x));
    t.op.alpha = n->alpha;
    t.op.eps = n->eps;
    ren__emit_read(&t, 0, e->grads[index], &x);
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
    ren__emit_task(e, &t);
    ren__emit_grad(e, n, n->inputs[0], dx);
}

const ren__op_family ren__family_batch_norm = {.name = "batch_norm",
                                               .shape = batch_norm_shape,
                                               .params = batch_norm_params,
                                               .forward = batch_norm_forward,
                                               .backward = batch_norm_backward};
