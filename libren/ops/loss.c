/* SPDX-License-Identifier: MIT */
/* libren/ops/loss.c - softmax cross entropy, mean squared error, Huber: one f32 each.
 *
 * Means     cross entropy over the batch, the others over all elements, with the batch at hand: a
 *           short last batch weighs its rows more, as in PyTorch.
 * Backward  starts the backward pass: the gradient of the loss itself is 1 (times the loss scale of
 *           the state, where one is in use).
 * Sources   label smoothing: Szegedy et al. 2016, in PyTorch's convention; Huber 1964.
 * Precision Predictions and logits of 16 bits are read as they are, and their gradients written so,
 *           where the device can; else there are casts around. All else is f32.
 * Streams   COMP_1.
 */
#include "ops.h"

#include <math.h>

static void loss_out(ren__tensor_desc *out)
{
    out->dtype = REN_F32;
    out->rank = 1;
    out->dims[0] = 1;
}

/* The loss scale of a backward task. */
static void read_scale(const ren__emitter *e, ren__task *t)
{
    if (e->dynamic_scale) {
        ren__tensor_desc state = ren__emit_bytes_desc(sizeof(ren__state));
        t->op.dynamic_scale = 1;
        ren__emit_read(t, 4, e->state, &state);
    }
}

static ren_status cross_entropy_shape(const ren__node *n, const ren__shape_in *in,
                                      ren__tensor_desc *out, ren__shape_error *err)
{
    ren_status status = ren__shape_expect(n, &in[0], 2, err);
    if (status != REN_OK) {
        return status;
    }
    const ren__tensor_desc *labels = &in[1].desc;
    if (in[1].is_loss || labels->dtype != REN_I32 || labels->rank != 1 ||
        labels->dims[0] != in[0].desc.dims[0]) {
        char a[80];
        char b[80];
        ren__shape_text(&in[0].desc, a);
        ren__shape_text(labels, b);
        return ren__shape_fail(
            err, REN_ERR_SHAPE, "%s: labels %s are %s; logits %s are %s, so i32 [%lld] is needed",
            n->name, in[1].name, b, in[0].name, a, (long long)in[0].desc.dims[0]);
    }
    if (!(n->alpha >= 0.0f && n->alpha < 1.0f)) {
        return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT,
                               "%s: label_smoothing %g is not in [0, 1)", n->name,
                               (double)n->alpha);
    }
    loss_out(out);
    return REN_OK;
}

static void cross_entropy_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc logits;
    ren__tensor_desc prob = ren__emit_full_desc(e, n->inputs[0]);
    ren__tensor_desc labels = ren__emit_full_desc(e, n->inputs[1]);
    ren__tensor_desc loss = ren__emit_desc(e, index);
    uint32_t x = ren__emit_loss_input(e, n->inputs[0], &logits);
    ren__task t =
        ren__emit_op(e, n, REN__OP_XENT_FWD, REN_STREAM_COMP_1, 8 * ren__tensor_elements(&logits));
    t.op.alpha = n->alpha;
    e->saved[index][0] = ren__emit_local(e, n, ren__tensor_bytes(&prob));
    ren__emit_read(&t, 0, x, &logits);
    ren__emit_read(&t, 1, ren__emit_full_value(e, n->inputs[1]), &labels);
    ren__emit_write(&t, 2, ren__emit_output(e, index), &loss);
    ren__emit_write(&t, 3, e->saved[index][0], &prob);
    ren__emit_task(e, &t);
}

static void cross_entropy_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    if (!e->wants_grad[n->inputs[0]]) {
        return;
    }
    ren__tensor_desc logits;
    ren__tensor_desc prob = ren__emit_full_desc(e, n->inputs[0]);
    ren__tensor_desc labels = ren__emit_full_desc(e, n->inputs[1]);
    ren__tensor_desc control = ren__emit_bytes_desc(sizeof(ren__control));
    (void)ren__emit_loss_input(e, n->inputs[0], &logits);
    uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&logits));
    ren__task t =
        ren__emit_op(e, n, REN__OP_XENT_BWD, REN_STREAM_COMP_1, 2 * ren__tensor_elements(&logits));
    t.op.alpha = n->alpha;
    ren__emit_read(&t, 0, e->saved[index][0], &prob);
    ren__emit_read(&t, 1, ren__emit_full_value(e, n->inputs[1]), &labels);
    ren__emit_read(&t, 2, e->control, &control);
    read_scale(e, &t);
    ren__emit_write(&t, 3, dx, &logits);
    ren__emit_task(e, &t);
    ren__emit_loss_grad(e, n, n->inputs[0], dx, &logits);
}

static ren_status regression_shape(const ren__node *n, const ren__shape_in *in,
                                   ren__tensor_desc *out, ren__shape_error *err)
{
    for (uint32_t i = 0; i < 2; i++) {
        ren_status status = ren__shape_expect(n, &in[i], 0, err);
        if (status != REN_OK) {
            return status;
        }
    }
    uint32_t equal = in[0].desc.rank == in[1].desc.rank;
    for (uint32_t i = 0; equal && i < in[0].desc.rank; i++) {
        equal = in[0].desc.dims[i] == in[1].desc.dims[i];
    }
    if (!equal) {
        char a[80];
        char b[80];
        ren__shape_text(&in[0].desc, a);
        ren__shape_text(&in[1].desc, b);
        return ren__shape_fail(err, REN_ERR_SHAPE, "%s: prediction %s is %s but target %s is %s",
                               n->name, in[0].name, a, in[1].name, b);
    }
    if (n->kind == REN__NODE_HUBER && (!(n->alpha > 0.0f) || !isfinite(n->alpha))) {
        return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT, "%s: delta %g is not positive",
                               n->name, (double)n->alpha);
    }
    loss_out(out);
    return REN_OK;
}

static void regression_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__op_kind kind = n->kind == REN__NODE_MSE ? REN__OP_MSE_FWD : REN__OP_HUBER_FWD;
    ren__tensor_desc x;
    ren__tensor_desc target;
    uint32_t from = ren__emit_loss_input(e, n->inputs[0], &x);
    uint32_t goal = ren__emit_loss_input(e, n->inputs[1], &target);
    ren__tensor_desc loss = ren__emit_desc(e, index);
    ren__task t = ren__emit_op(e, n, kind, REN_STREAM_COMP_1, 4 * ren__tensor_elements(&x));
    t.op.alpha = n->alpha;
    ren__emit_read(&t, 0, from, &x);
    ren__emit_read(&t, 1, goal, &target);
    ren__emit_write(&t, 2, ren__emit_output(e, index), &loss);
    ren__emit_task(e, &t);
}

/* A target is data: the gradient flows to the prediction alone. A target that depends on
 * parameters is refused when a trainer is made, see ren__diff_emit. */
static void regression_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    if (!e->wants_grad[n->inputs[0]]) {
        return;
    }
    ren__op_kind kind = n->kind == REN__NODE_MSE ? REN__OP_MSE_BWD : REN__OP_HUBER_BWD;
    ren__tensor_desc x;
    ren__tensor_desc target;
    uint32_t from = ren__emit_loss_input(e, n->inputs[0], &x);
    uint32_t goal = ren__emit_loss_input(e, n->inputs[1], &target);
    ren__tensor_desc control = ren__emit_bytes_desc(sizeof(ren__control));
    uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&x));
    ren__task t = ren__emit_op(e, n, kind, REN_STREAM_COMP_1, 4 * ren__tensor_elements(&x));
    t.op.alpha = n->alpha;
    ren__emit_read(&t, 0, from, &x);
    ren__emit_read(&t, 1, goal, &target);
    ren__emit_read(&t, 2, e->control, &control);
    read_scale(e, &t);
    ren__emit_write(&t, 3, dx, &x);
    ren__emit_task(e, &t);
    ren__emit_loss_grad(e, n, n->inputs[0], dx, &x);
}

const ren__op_family ren__family_cross_entropy = {.name = "softmax_cross_entropy",
                                                  .shape = cross_entropy_shape,
                                                  .forward = cross_entropy_forward,
                                                  .backward = cross_entropy_backward,
                                                  .is_loss = 1};
const ren__op_family ren__family_mse = {.name = "mse",
                                        .shape = regression_shape,
                                        .forward = regression_forward,
                                        .backward = regression_backward,
                                        .is_loss = 1};
const ren__op_family ren__family_huber = {.name = "huber",
                                          .shape = regression_shape,
                                          .forward = regression_forward,
                                          .backward = regression_backward,
                                          .is_loss = 1};
