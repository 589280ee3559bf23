/* SPDX-License-Identifier: MIT */
/* libren/ops/conv.c - two-dimensional convolution (cross-correlation), NHWC.
 *
 * Shapes    x [N, H, W, C], W [filters, C / groups, kh, kw], b [filters], y [N, H', W', filters],
 *           H' = (H + 2 ph - dh (kh - 1) - 1) / sh + 1 rounded down; W' likewise.
 * Backward  db on COMP_2, dW on COMP_1, dx on COMP_3; none writes what another reads.
 * Semantics PyTorch's Conv2d: W and b start uniform in +-1/sqrt(C / groups kh kw).
 */
#include "ops.h"

#include <math.h>

/* Windows beyond this are refused, so that the sums below cannot overflow. */
#define MAX_WINDOW 65535u

static ren_status conv_check_options(const ren__node *n, const ren__shape_in *in,
                                     ren__shape_error *err)
{
    if (n->units < 1) {
        return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT, "%s: filters is 0", n->name);
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (n->kernel[i] < 1 || n->kernel[i] > MAX_WINDOW || n->stride[i] > MAX_WINDOW ||
            n->padding[i] > MAX_WINDOW || n->dilation[i] > MAX_WINDOW) {
            return ren__shape_fail(
                err, REN_ERR_INVALID_ARGUMENT,
                "%s: kernel %u, stride %u, padding %u, dilation %u: the kernel is "
                "1..%u, the others at most that",
                n->name, n->kernel[i], n->stride[i], n->padding[i], n->dilation[i], MAX_WINDOW);
        }
    }
    if (in->desc.dims[3] % n->groups || n->units % n->groups) {
        return ren__shape_fail(err, REN_ERR_SHAPE,
                               "%s: %u groups do not divide %lld channels of %s and %u filters",
                               n->name, n->groups, (long long)in->desc.dims[3], in->name, n->units);
    }
    return REN_OK;
}

static ren_status conv_shape(const ren__node *n, const ren__shape_in *in, ren__tensor_desc *out,
                             ren__shape_error *err)
{
    ren_status status = ren__shape_expect(n, &in[0], 4, err);
    if (status == REN_OK) {
        status = conv_check_options(n, &in[0], err);
    }
    if (status != REN_OK) {
        return status;
    }
    out->dtype = REN_F32;
    out->rank = 4;
    out->dims[0] = in[0].desc.dims[0];
    for (uint32_t i = 0; i < 2; i++) {
        int64_t padded = in[0].desc.dims[1 + i] + 2 * (int64_t)n->padding[i];
        int64_t window = (int64_t)n->dilation[i] * ((int64_t)n->kernel[i] - 1) + 1;
        if (window > padded) {
            return ren__shape_fail(err, REN_ERR_SHAPE,
                                   "%s: the kernel spans %lld, more than the padded %s of %s: %lld",
                                   n->name, (long long)window, i ? "width" : "height", in[0].name,
                                   (long long)padded);
        }
        out->dims[1 + i] = (padded - window) / n->stride[i] + 1;
    }
    out->dims[3] = n->units;
    return REN_OK;
}

static uint32_t conv_params(const ren__node *n, const ren__shape_in *in, ren__param_spec *out)
{
    int64_t channels = in[0].desc.dims[3] / n->groups;
    double fan_in = (double)channels * n->kernel[0] * n->kernel[1];
    float bound = (float)(1.0 / sqrt(fan_in));
    out[0] = (ren__param_spec){.suffix = ".weight",
                               .slot = 0,
                               .rank = 4,
                               .dims = {n->units, channels, n->kernel[0], n->kernel[1]},
                               .init = REN__INIT_UNIFORM,
                               .bound = bound,
                               .is_conv = 1};
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

static uint64_t conv_cost(const ren__emitter *e, const ren__node *n, const ren__tensor_desc *y)
{
    const ren__tensor_desc *w = &e->param_descs[n->params[0]];
    return 2u * ren__tensor_elements(y) * (uint64_t)(w->dims[1] * w->dims[2] * w->dims[3]);
}

static const ren__affine_kinds kinds = {REN__OP_CONV_FWD, REN__OP_CONV_BWD_WEIGHT,
                                        REN__OP_CONV_BWD_DATA, 1};

static void conv_forward(ren__emitter *e, uint32_t index)
{
    ren__tensor_desc y = ren__emit_desc(e, index);
    ren__affine_forward(e, index, &kinds, conv_cost(e, e->nodes[index], &y));
}

static void conv_backward(ren__emitter *e, uint32_t index)
{
    ren__tensor_desc y = ren__emit_desc(e, index);
    ren__affine_backward(e, index, &kinds, conv_cost(e, e->nodes[index], &y));
}

const ren__op_family ren__family_conv2d = {.name = "conv2d",
                                           .shape = conv_shape,
                                           .params = conv_params,
                                           .forward = conv_forward,
                                           .backward = conv_backward};
