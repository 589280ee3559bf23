/* SPDX-License-Identifier: MIT */
/* libren/ops/affine.c - the tasks that linear and convolution have in common.
 *
 * Purpose   Both are y = W * x + b with their own product, and differ only in the kinds of
 *           operation and in the window. Forward on COMP_1; backward forks into the weight gradient
 *           on COMP_1, the bias gradient on COMP_2 and the data gradient on COMP_3.
 * Fusion    An activation behind the layer may be part of the forward task. Backward it is a task
 *           of its own, since both gradients need its result. Where the device can, that task or
 *           the weight gradient's sums the bias gradient on its way; train/fuse.h says which.
 *           In inference a batch norm behind the layer may be folded into weights and bias, which
 *           are then values of their own, and there is always a bias.
 * Threads   the builder's.
 */
#include "ops.h"

static ren__task affine_op(ren__emitter *e, const ren__node *n, const ren__affine_kinds *kinds,
                           ren__op_kind kind, ren_stream stream, uint64_t cost)
{
    ren__task t = ren__emit_op(e, n, kind, stream, cost);
    t.op.allow_tf32 = e->allow_tf32;
    if (kinds->has_window) {
        ren__emit_window(&t, n);
    }
    return t;
}

/* The sum of dy over all rows, by itself where no other task gives it. */
static void bias_grad(ren__emitter *e, const ren__node *n, uint32_t dy,
                      const ren__tensor_desc *dy_desc)
{
    uint32_t param = n->params[1];
    ren__task t =
        ren__emit_op(e, n, REN__OP_BIAS_GRAD, REN_STREAM_COMP_2, ren__tensor_elements(dy_desc));
    ren__emit_read(&t, 0, dy, dy_desc);
    ren__emit_write(&t, 1, e->param_grads[param], &e->param_descs[param]);
    ren__emit_task(e, &t);
}

static void read_weights(const ren__emitter *e, ren__task *t, const ren__node *n, uint32_t norm)
{
    if (norm != REN__NO_NODE) {
        const ren__node *folded = e->nodes[norm];
        ren__emit_read(t, 1, e->folded[norm][0], &e->param_descs[n->params[0]]);
        ren__emit_read(t, 2, e->folded[norm][1], &e->param_descs[folded->params[0]]);
        return;
    }
    ren__emit_read_weight(e, t, 1, n->params[0]);
    if (n->params[1] != REN__NO_PARAM) {
        ren__emit_read_weight(e, t, 2, n->params[1]);
    }
}

void ren__affine_forward(ren__emitter *e, uint32_t index, const ren__affine_kinds *kinds,
                         uint64_t cost)
{
    const ren__node *n = e->nodes[index];
    const ren__fused *fused = &e->fused[index];
    ren__tensor_desc x = ren__emit_desc(e, n->inputs[0]);
    ren__tensor_desc y = ren__emit_desc(e, index);
    ren__task t = affine_op(e, n, kinds, kinds->forward, REN_STREAM_COMP_1, cost);
    if (fused->act != REN__NO_NODE) {
        t.op.activation = e->nodes[fused->act]->activation;
        t.op.fused_activation = 1;
    }
    ren__emit_read(&t, 0, ren__emit_value(e, n->inputs[0]), &x);
    read_weights(e, &t, n, fused->fold);
    ren__emit_write(&t, 3, ren__emit_output(e, fused->tail), &y);
    ren__emit_task(e, &t);
}

void ren__affine_backward(ren__emitter *e, uint32_t index, const ren__affine_kinds *kinds,
                          uint64_t cost)
{
    const ren__node *n = e->nodes[index];
    const ren__fused *fused = &e->fused[index];
    uint32_t input = n->inputs[0];
    uint32_t dy = e->grads[fused->tail];
    uint32_t with_weight = ren__emit_trains(e, n->params[0]);
    uint32_t with_bias = ren__emit_trains(e, n->params[1]) && !fused->bias_by_act;
    uint32_t beside_weight = with_bias && with_weight && kinds->forward == REN__OP_LINEAR_FWD &&
                             e->fusions & REN__FUSE_WEIGHT_BIAS;
    ren__tensor_desc x = ren__emit_desc(e, input);
    ren__tensor_desc y = ren__emit_desc(e, index);

    if (fused->act != REN__NO_NODE) {
        dy = ren__emit_gate(e, fused->act, dy);
    }
    if (with_bias && !beside_weight) {
        bias_grad(e, n, dy, &y);
    }
    if (with_weight) {
        ren__task t = affine_op(e, n, kinds, kinds->backward_weight, REN_STREAM_COMP_1, cost);
        ren__emit_read(&t, 0, dy, &y);
        ren__emit_read(&t, 1, ren__emit_value(e, input), &x);
        ren__emit_write(&t, 2, e->param_grads[n->params[0]], &e->param_descs[n->params[0]]);
        if (beside_weight) {
            ren__emit_write(&t, 3, e->param_grads[n->params[1]], &e->param_descs[n->params[1]]);
        }
        ren__emit_task(e, &t);
    }
    if (e->wants_grad[input]) {
        uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&x));
        ren__task t = affine_op(e, n, kinds, kinds->backward_data, REN_STREAM_COMP_3, cost);
        ren__emit_read(&t, 0, dy, &y);
        ren__emit_read_weight(e, &t, 1, n->params[0]);
        ren__emit_write(&t, 2, dx, &x);
        ren__emit_task(e, &t);
        ren__emit_grad(e, n, input, dx);
    }
}
