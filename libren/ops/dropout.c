/* SPDX-License-Identifier: MIT */
/* libren/ops/dropout.c - in training each element is 0 with probability p, else x / (1 - p).
 *
 * Mask      a function of (seed, layer, step, element) that both passes compute again, so nothing
 *           is kept between them and a replayed step draws a new mask through the control block.
 * Inference the identity: the output is the input's own memory.
 * Streams   COMP_2.
 */
#include "ops.h"

static ren_status dropout_shape(const ren__node *n, const ren__shape_in *in, ren__tensor_desc *out,
                                ren__shape_error *err)
{
    ren_status status = ren__shape_expect(n, &in[0], 0, err);
    if (status != REN_OK) {
        return status;
    }
    if (!(n->alpha >= 0.0f && n->alpha < 1.0f)) {
        return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT,
                               "%s: the probability %g is not in [0, 1)", n->name,
                               (double)n->alpha);
    }
    *out = in[0].desc;
    return REN_OK;
}

static void dropout_emit(ren__emitter *e, uint32_t index, ren__op_kind kind, uint32_t from,
                         uint32_t to)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc x = ren__emit_desc(e, index);
    ren__tensor_desc control = ren__emit_bytes_desc(sizeof(ren__control));
    ren__task t = ren__emit_op(e, n, kind, REN_STREAM_COMP_2, 2 * ren__tensor_bytes(&x));
    t.op.alpha = n->alpha;
    t.op.layer = n->layer;
    ren__emit_read(&t, 0, from, &x);
    ren__emit_read(&t, 1, e->control, &control);
    ren__emit_write(&t, 2, to, &x);
    ren__emit_task(e, &t);
}

static void dropout_forward(ren__emitter *e, uint32_t index)
{
    uint32_t x = ren__emit_value(e, e->nodes[index]->inputs[0]);
    if (!e->training) {
        e->values[index] = x;
        return;
    }
    dropout_emit(e, index, REN__OP_DROPOUT_FWD, x, ren__emit_output(e, index));
}

static void dropout_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc x = ren__emit_desc(e, index);
    uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&x));
    dropout_emit(e, index, REN__OP_DROPOUT_BWD, e->grads[index], dx);
    ren__emit_grad(e, n, n->inputs[0], dx);
}

const ren__op_family ren__family_dropout = {.name = "dropout",
                                            .shape = dropout_shape,
                                            .forward = dropout_forward,
                                            .backward = dropout_backward};
