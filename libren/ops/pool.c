/* SPDX-License-Identifier: MIT */
/* libren/ops/pool.c - maximum, average and global average pooling over [N, H, W, C].
 *
 * Shapes    y [N, H', W', C], H' = (H + 2 ph - kh) / sh + 1 rounded down; global: y [N, C].
 * Backward  maximum: from the places that the forward pass saved (a size only the device knows);
 *           ties go to the first. Averages: dy spread over the window; padding never counts.
 * Streams   COMP_2.
 */
#include "ops.h"

static ren_status pool_shape(const ren__node *n, const ren__shape_in *in, ren__tensor_desc *out,
                             ren__shape_error *err)
{
    ren_status status = ren__shape_expect(n, &in[0], 4, err);
    if (status != REN_OK) {
        return status;
    }
    *out = in[0].desc;
    for (uint32_t i = 0; i < 2; i++) {
        if (n->kernel[i] < 1 || n->kernel[i] > INT32_MAX || n->stride[i] > INT32_MAX ||
            n->padding[i] > n->kernel[i] / 2) {
            return ren__shape_fail(
                err, REN_ERR_INVALID_ARGUMENT,
                "%s: kernel %u, stride %u, padding %u: the kernel is at least 1, "
                "the padding at most half of it",
                n->name, n->kernel[i], n->stride[i], n->padding[i]);
        }
        int64_t padded = in[0].desc.dims[1 + i] + 2 * (int64_t)n->padding[i];
        if ((int64_t)n->kernel[i] > padded) {
            return ren__shape_fail(
                err, REN_ERR_SHAPE, "%s: the kernel spans %u, more than the padded %s of %s: %lld",
                n->name, n->kernel[i], i ? "width" : "height", in[0].name, (long long)padded);
        }
        out->dims[1 + i] = (padded - (int64_t)n->kernel[i]) / n->stride[i] + 1;
    }
    return REN_OK;
}

static ren_status global_shape(const ren__node *n, const ren__shape_in *in, ren__tensor_desc *out,
                               ren__shape_error *err)
{
    ren_status status = ren__shape_expect(n, &in[0], 4, err);
    if (status != REN_OK) {
        return status;
    }
    out->dtype = REN_F32;
    out->rank = 2;
    out->dims[0] = in[0].desc.dims[0];
    out->dims[1] = in[0].desc.dims[3];
    return REN_OK;
}

static void max_pool_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc x = ren__emit_desc(e, n->inputs[0]);
    ren__tensor_desc y = ren__emit_desc(e, index);
    ren__task t =
        ren__emit_op(e, n, REN__OP_MAX_POOL_FWD, REN_STREAM_COMP_2, ren__tensor_bytes(&x));
    /* What must be kept is kept only where a backward pass will ask for it. */
    uint32_t keep = e->training && e->wants_grad[index];
    t.op.training = keep;
    ren__emit_window(&t, n);
    ren__emit_read(&t, 0, ren__emit_value(e, n->inputs[0]), &x);
    ren__emit_write(&t, 1, ren__emit_output(e, index), &y);
    if (!keep) {
        ren__emit_task(e, &t);
        return;
    }
    uint32_t saved = ren__emit_local(e, n, 0);
    ren__tensor_desc unsized = ren__emit_bytes_desc(1);
    ren__emit_write(&t, 2, saved, &unsized);
    ren__task_graph_saved(e->graph, saved, ren__emit_task(e, &t));
    e->saved[index][0] = saved;
}

static void max_pool_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    uint32_t input = n->inputs[0];
    ren__tensor_desc x = ren__emit_desc(e, input);
    ren__tensor_desc y = ren__emit_desc(e, index);
    ren__tensor_desc unsized = ren__emit_bytes_desc(1);
    uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&x));
    ren__task t =
        ren__emit_op(e, n, REN__OP_MAX_POOL_BWD, REN_STREAM_COMP_2, ren__tensor_bytes(&x));
    ren__emit_window(&t, n);
    ren__emit_read(&t, 0, e->grads[index], &y);
    ren__emit_read(&t, 1, ren__emit_value(e, input), &x);
    ren__emit_read(&t, 2, e->values[index], &y);
    ren__emit_read(&t, 3, e->saved[index][0], &unsized);
    ren__emit_write(&t, 4, dx, &x);
    ren__emit_task(e, &t);
    ren__emit_grad(e, n, input, dx);
}

/* Both averages: one operand in, one out. */
static void average_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__op_kind kind =
        n->kind == REN__NODE_AVG_POOL ? REN__OP_AVG_POOL_FWD : REN__OP_GLOBAL_AVG_FWD;
    ren__tensor_desc x = ren__emit_desc(e, n->inputs[0]);
    ren__tensor_desc y = ren__emit_desc(e, index);
    ren__task t = ren__emit_op(e, n, kind, REN_STREAM_COMP_2, ren__tensor_bytes(&x));
    if (n->kind == REN__NODE_AVG_POOL) {
        ren__emit_window(&t, n);
    }
    ren__emit_read(&t, 0, ren__emit_value(e, n->inputs[0]), &x);
    ren__emit_write(&t, 1, ren__emit_output(e, index), &y);
    ren__emit_task(e, &t);
}

static void average_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__op_kind kind =
        n->kind == REN__NODE_AVG_POOL ? REN__OP_AVG_POOL_BWD : REN__OP_GLOBAL_AVG_BWD;
    uint32_t input = n->inputs[0];
    ren__tensor_desc x = ren__emit_desc(e, input);
    ren__tensor_desc y = ren__emit_desc(e, index);
    uint32_t dx = ren__emit_local(e, n, ren__tensor_bytes(&x));
    ren__task t = ren__emit_op(e, n, kind, REN_STREAM_COMP_2, ren__tensor_bytes(&x));
    if (n->kind == REN__NODE_AVG_POOL) {
        ren__emit_window(&t, n);
    }
    ren__emit_read(&t, 0, e->grads[index], &y);
    ren__emit_write(&t, 1, dx, &x);
    ren__emit_task(e, &t);
    ren__emit_grad(e, n, input, dx);
}

const ren__op_family ren__family_max_pool = {.name = "max_pool2d",
                                             .shape = pool_shape,
                                             .forward = max_pool_forward,
                                             .backward = max_pool_backward};
const ren__op_family ren__family_avg_pool = {.name = "avg_pool2d",
                                             .shape = pool_shape,
                                             .forward = average_forward,
                                             .backward = average_backward};
const ren__op_family ren__family_global_avg_pool = {.name = "global_avg_pool",
                                                    .shape = global_shape,
                                                    .forward = average_forward,
                                                    .backward = average_backward};
