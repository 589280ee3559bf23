/* SPDX-License-Identifier: MIT */
/* libren/ops/activation.c - functions of one element: ReLU, leaky ReLU, tanh, sigmoid, SiLU, GELU.
 *
 * Shapes    y as x, any rank, f32.
 * Formulas  those of ren.h; the device computes the function and its derivative by kind.
 * Streams   COMP_3. Out of place: x stays for whoever else reads it.
 * Fusion    A ReLU may be part of the layer before it, and is then emitted by that one.
 */
#include "ops.h"

#include <math.h>

static ren_status activation_shape(const ren__node *n, const ren__shape_in *in,
                                   ren__tensor_desc *out, ren__shape_error *err)
{
    ren_status status = ren__shape_expect(n, &in[0], 0, err);
    if (status != REN_OK) {
        return status;
    }
    if (!isfinite(n->alpha)) {
        return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT, "%s: the slope is not finite",
                               n->name);
    }
    *out = in[0].desc;
    return REN_OK;
}

static void activation_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc x = ren__emit_desc(e, index);
    ren__task t = ren__emit_op(e, n, REN__OP_ACT_FWD, REN_STREAM_COMP_3, 2 * ren__tensor_bytes(&x));
    t.op.activation = n->activation;
    t.op.alpha = n->alpha;
    ren__emit_read(&t, 0, ren__emit_value(e, n->inputs[0]), &x);
    ren__emit_write(&t, 1, ren__emit_output(e, index), &x);
    ren__emit_task(e, &t);
}

uint32_t ren__emit_gate(ren__emitter *e, uint32_t act, uint32_t dy)
{
    const ren__node *n = e->nodes[act];
    const ren__node *layer = e->nodes[n->inputs[0]];
    ren__tensor_desc x = ren__emit_desc(e, act);
    uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&x));
    uint32_t touched = n->activation == REN__ACT_RELU ? 3 : 4;
    ren__task t =
        ren__emit_op(e, n, REN__OP_ACT_BWD, REN_STREAM_COMP_3, touched * ren__tensor_bytes(&x));
    t.op.activation = n->activation;
    t.op.alpha = n->alpha;
    ren__emit_read(&t, 0, dy, &x);
    if (n->activation != REN__ACT_RELU) { /* whose derivative the output tells */
        ren__emit_read(&t, 1, ren__emit_value(e, n->inputs[0]), &x);
    }
    ren__emit_read(&t, 2, e->values[act], &x);
    ren__emit_write(&t, 3, dx, &x);
    if (e->fused[n->inputs[0]].bias_by_act && ren__emit_trains(e, layer->params[1])) {
        ren__emit_write(&t, 4, e->param_grads[layer->params[1]], &e->param_descs[layer->params[1]]);
    }
    ren__emit_task(e, &t);
    return dx;
}

static void activation_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__emit_grad(e, n, n->inputs[0], ren__emit_gate(e, index, e->grads[index]));
}

const ren__op_family ren__family_activation = {.name = "activation",
                                               .shape = activation_shape,
                                               .forward = activation_forward,
                                               .backward = activation_backward};
