/* SPDX-License-Identifier: MIT */
/* libren/ops/linear.c - fully connected layer, y[n, o] = sum_i x[n, i] W[o, i] + b[o].
 *
 * Shapes    x [batch, in], W [units, in], b [units], y [batch, units].
 * Backward  db = column sums of dy on COMP_2; dW = dy^T x on COMP_1; dx = dy W on COMP_3: three
 *           tasks that write apart from each other, so they run side by side.
 * Semantics PyTorch's Linear: W and b start uniform in +-1/sqrt(in).
 */
#include "ops.h"

#include <math.h>

static ren_status linear_shape(const ren__node *n, const ren__shape_in *in, ren__tensor_desc *out,
                               ren__shape_error *err)
{
    ren_status status = ren__shape_expect(n, &in[0], 2, err);
    if (status != REN_OK) {
        return status;
    }
    if (n->units < 1) {
        return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT, "%s: units is 0", n->name);
    }
    out->dtype = REN_F32;
    out->rank = 2;
    out->dims[0] = in[0].desc.dims[0];
    out->dims[1] = n->units;
    return REN_OK;
}

static uint32_t linear_params(const ren__node *n, const ren__shape_in *in, ren__param_spec *out)
{
    float bound = (float)(1.0 / sqrt((double)in[0].desc.dims[1]));
    out[0] = (ren__param_spec){.suffix = ".weight",
                               .slot = 0,
                               .rank = 2,
                               .dims = {n->units, in[0].desc.dims[1]},
                               .init = REN__INIT_UNIFORM,
                               .bound = bound};
    if (n->disable_bias) {
        return 1;
    }
    out[1] = (ren__param_spec){.suffix = ".bias",
                               .slot = 1,
                               .rank = 1,
                               .dims = {n->units},
                               .init = REN__INIT_UNIFORM,
                               .bound = bound};
    return 2;
}

static uint64_t linear_cost(const ren__tensor_desc *x, const ren__tensor_desc *y)
{
    return 2u * (uint64_t)x->dims[0] * (uint64_t)x->dims[1] * (uint64_t)y->dims[1];
}

static void linear_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc x = ren__emit_desc(e, n->inputs[0]);
    ren__tensor_desc y = ren__emit_desc(e, index);
    ren__task t = ren__emit_op(e, n, REN__OP_LINEAR_FWD, REN_STREAM_COMP_1, linear_cost(&x, &y));
    ren__emit_read(&t, 0, ren__emit_value(e, n->inputs[0]), &x);
    ren__emit_read_weight(e, &t, 1, n->params[0]);
    if (n->params[1] != REN__NO_PARAM) {
        ren__emit_read_weight(e, &t, 2, n->params[1]);
    }
    ren__emit_write(&t, 3, ren__emit_output(e, index), &y);
    ren__emit_task(e, &t);
}

static void linear_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    uint32_t input = n->inputs[0];
    uint32_t dy = e->grads[index];
    ren__tensor_desc x = ren__emit_desc(e, input);
    ren__tensor_desc y = ren__emit_desc(e, index);
    uint64_t cost = linear_cost(&x, &y);

    ren__emit_bias_grad(e, n, n->params[1], dy, &y);
    if (e->param_grads[n->params[0]] != REN__NO_VALUE) {
        ren__task t = ren__emit_op(e, n, REN__OP_LINEAR_BWD_WEIGHT, REN_STREAM_COMP_1, cost);
        ren__emit_read(&t, 0, dy, &y);
        ren__emit_read(&t, 1, ren__emit_value(e, input), &x);
        ren__emit_write(&t, 2, e->param_grads[n->params[0]], &e->param_descs[n->params[0]]);
        ren__emit_task(e, &t);
    }
    if (e->wants_grad[input]) {
        uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&x));
        ren__task t = ren__emit_op(e, n, REN__OP_LINEAR_BWD_DATA, REN_STREAM_COMP_3, cost);
        ren__emit_read(&t, 0, dy, &y);
        ren__emit_read_weight(e, &t, 1, n->params[0]);
        ren__emit_write(&t, 2, dx, &x);
        ren__emit_task(e, &t);
        ren__emit_grad(e, n, input, dx);
    }
}

const ren__op_family ren__family_linear = {.name = "linear",
                                           .shape = linear_shape,
                                           .params = linear_params,
                                           .forward = linear_forward,
                                           .backward = linear_backward};
