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

static uint64_t linear_cost(const ren__emitter *e, uint32_t index)
{
    ren__tensor_desc x = ren__emit_desc(e, e->nodes[index]->inputs[0]);
    ren__tensor_desc y = ren__emit_desc(e, index);
    return 2u * (uint64_t)x.dims[0] * (uint64_t)x.dims[1] * (uint64_t)y.dims[1];
}

static const ren__affine_kinds kinds = {REN__OP_LINEAR_FWD, REN__OP_LINEAR_BWD_WEIGHT,
                                        REN__OP_LINEAR_BWD_DATA, 0};

static void linear_forward(ren__emitter *e, uint32_t index)
{
    ren__affine_forward(e, index, &kinds, linear_cost(e, index));
}

static void linear_backward(ren__emitter *e, uint32_t index)
{
    ren__affine_backward(e, index, &kinds, linear_cost(e, index));
}

const ren__op_family ren__family_linear = {.name = "linear",
                                           .shape = linear_shape,
                                           .params = linear_params,
                                           .forward = linear_forward,
                                           .backward = linear_backward};
