/* SPDX-License-Identifier: MIT */
/* libren/ops/shape_ops.c - sum of two tensors, join along the last axis, flatten.
 *
 * Sum       a + b of equal shape. Backward: both inputs share the output's gradient, no copy. The
 *           sum of two losses is a loss; its gradient with respect to each is 1, which losses begin
 *           with by themselves.
 * Concat    [.., C_1] .. [.., C_n] to [.., C_1 + .. + C_n]. Backward: a split; inputs that need no
 *           gradient get theirs into memory that nobody reads.
 * Flatten   [N, H, W, C] to [N, H W C]: the same memory under another shape, in both passes.
 * Streams   COMP_3.
 */
#include "ops.h"

/* The device's CONCAT has operands 0..10 for inputs and 11 for the output, its SPLIT 1..11 for
 * outputs; what has more is joined and split in two levels. */
#define CONCAT_OPERANDS 11u

/* ------------------------------------------------------------------ add */

static ren_status add_shape(const ren__node *n, const ren__shape_in *in, ren__tensor_desc *out,
                            ren__shape_error *err)
{
    if (in[0].is_loss && in[1].is_loss) {
        *out = in[0].desc;
        return REN_OK;
    }
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
        return ren__shape_fail(err, REN_ERR_SHAPE, "%s: %s is %s but %s is %s", n->name, in[0].name,
                               a, in[1].name, b);
    }
    *out = in[0].desc;
    return REN_OK;
}

static void add_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc x = ren__emit_desc(e, index);
    ren__task t = ren__emit_op(e, n, REN__OP_ADD, REN_STREAM_COMP_3, 3 * ren__tensor_bytes(&x));
    ren__emit_read(&t, 0, ren__emit_value(e, n->inputs[0]), &x);
    ren__emit_read(&t, 1, ren__emit_value(e, n->inputs[1]), &x);
    ren__emit_write(&t, 2, ren__emit_output(e, index), &x);
    ren__emit_task(e, &t);
}

static void add_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    if (!n->is_loss) {
        ren__emit_grad(e, n, n->inputs[0], e->grads[index]);
        ren__emit_grad(e, n, n->inputs[1], e->grads[index]);
    }
}

/* ------------------------------------------------------------------ concat */

static ren_status concat_shape(const ren__node *n, const ren__shape_in *in, ren__tensor_desc *out,
                               ren__shape_error *err)
{
    uint32_t last = in[0].desc.rank - 1;
    int64_t channels = 0;
    if (last == 0) {
        return ren__shape_fail(err, REN_ERR_SHAPE, "%s: %s has rank 1; its last axis is the batch",
                               n->name, in[0].name);
    }
    for (uint32_t i = 0; i < n->input_count; i++) {
        ren_status status = ren__shape_expect(n, &in[i], in[0].desc.rank, err);
        if (status != REN_OK) {
            return status;
        }
        for (uint32_t d = 0; d < last; d++) {
            if (in[i].desc.dims[d] != in[0].desc.dims[d]) {
                char a[80];
                char b[80];
                ren__shape_text(&in[0].desc, a);
                ren__shape_text(&in[i].desc, b);
                return ren__shape_fail(
                    err, REN_ERR_SHAPE,
                    "%s: %s is %s but %s is %s; only the last dimension may differ", n->name,
                    in[0].name, a, in[i].name, b);
            }
        }
        channels += in[i].desc.dims[last];
    }
    *out = in[0].desc;
    out->dims[last] = channels;
    return REN_OK;
}

/* Joins values[0..count) along the last axis into `out`. */
static void concat_emit(ren__emitter *e, const ren__node *n, const uint32_t *values,
                        const ren__tensor_desc *descs, uint32_t count, uint32_t out,
                        const ren__tensor_desc *desc)
{
    ren__task t =
        ren__emit_op(e, n, REN__OP_CONCAT, REN_STREAM_COMP_3, 2 * ren__tensor_bytes(desc));
    t.op.count = count;
    for (uint32_t i = 0; i < count; i++) {
        ren__emit_read(&t, i, values[i], &descs[i]);
    }
    ren__emit_write(&t, 11, out, desc);
    ren__emit_task(e, &t);
}

static void split_emit(ren__emitter *e, const ren__node *n, uint32_t value,
                       const ren__tensor_desc *desc, const uint32_t *outs,
                       const ren__tensor_desc *descs, uint32_t count)
{
    ren__task t = ren__emit_op(e, n, REN__OP_SPLIT, REN_STREAM_COMP_3, 2 * ren__tensor_bytes(desc));
    t.op.count = count;
    ren__emit_read(&t, 0, value, desc);
    for (uint32_t i = 0; i < count; i++) {
        ren__emit_write(&t, 1 + i, outs[i], &descs[i]);
    }
    ren__emit_task(e, &t);
}

/* The shape of the join of all inputs from `first` on. */
static ren__tensor_desc concat_tail(const ren__emitter *e, const ren__node *n, uint32_t first)
{
    ren__tensor_desc tail = ren__emit_desc(e, n->inputs[first]);
    for (uint32_t i = first + 1; i < n->input_count; i++) {
        tail.dims[tail.rank - 1] += e->nodes[n->inputs[i]]->out.dims[tail.rank - 1];
    }
    return tail;
}

static void concat_forward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    uint32_t values[REN__NODE_INPUTS];
    ren__tensor_desc descs[REN__NODE_INPUTS];
    uint32_t count = n->input_count;
    for (uint32_t i = 0; i < count; i++) {
        values[i] = ren__emit_value(e, n->inputs[i]);
        descs[i] = ren__emit_desc(e, n->inputs[i]);
    }
    if (count > CONCAT_OPERANDS) {
        uint32_t first = CONCAT_OPERANDS - 1;
        ren__tensor_desc tail = concat_tail(e, n, first);
        uint32_t value = ren__emit_local(e, n, ren__tensor_bytes(&tail));
        concat_emit(e, n, values + first, descs + first, count - first, value, &tail);
        values[first] = value;
        descs[first] = tail;
        count = CONCAT_OPERANDS;
    }
    ren__tensor_desc out = ren__emit_desc(e, index);
    concat_emit(e, n, values, descs, count, ren__emit_output(e, index), &out);
}

static void concat_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    uint32_t values[REN__NODE_INPUTS];
    ren__tensor_desc descs[REN__NODE_INPUTS];
    uint32_t count = n->input_count;
    for (uint32_t i = 0; i < count; i++) {
        descs[i] = ren__emit_desc(e, n->inputs[i]);
        values[i] = ren__emit_local(e, n, ren__tensor_bytes(&descs[i]));
    }
    ren__tensor_desc out = ren__emit_desc(e, index);
    if (count > CONCAT_OPERANDS) {
        uint32_t first = CONCAT_OPERANDS - 1;
        ren__tensor_desc tail = concat_tail(e, n, first);
        uint32_t heads[CONCAT_OPERANDS];
        ren__tensor_desc head_descs[CONCAT_OPERANDS];
        memcpy(heads, values, first * sizeof heads[0]);
        memcpy(head_descs, descs, first * sizeof head_descs[0]);
        heads[first] = ren__emit_local(e, n, ren__tensor_bytes(&tail));
        head_descs[first] = tail;
        split_emit(e, n, e->grads[index], &out, heads, head_descs, CONCAT_OPERANDS);
        split_emit(e, n, heads[first], &tail, values + first, descs + first, count - first);
    } else {
        split_emit(e, n, e->grads[index], &out, values, descs, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        ren__emit_grad(e, n, n->inputs[i], values[i]);
    }
}

/* ------------------------------------------------------------------ flatten */

static ren_status flatten_shape(const ren__node *n, const ren__shape_in *in, ren__tensor_desc *out,
                                ren__shape_error *err)
{
    ren_status status = ren__shape_expect(n, &in[0], 0, err);
    if (status != REN_OK) {
        return status;
    }
    out->dtype = REN_F32;
    out->rank = 2;
    out->dims[0] = in[0].desc.dims[0];
    out->dims[1] = 1;
    /* The bytes of the input are bounded, so the product of its dims is as well. */
    for (uint32_t i = 1; i < in[0].desc.rank; i++) {
        out->dims[1] *= in[0].desc.dims[i];
    }
    return REN_OK;
}

static void flatten_forward(ren__emitter *e, uint32_t index)
{
    e->values[index] = ren__emit_value(e, e->nodes[index]->inputs[0]);
}

static void flatten_backward(ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__emit_grad(e, n, n->inputs[0], e->grads[index]);
}

const ren__op_family ren__family_add = {
    .name = "add", .shape = add_shape, .forward = add_forward, .backward = add_backward};
const ren__op_family ren__family_concat = {.name = "concat",
                                           .shape = concat_shape,
                                           .forward = concat_forward,
                                           .backward = concat_backward};
const ren__op_family ren__family_flatten = {.name = "flatten",
                                            .shape = flatten_shape,
                                            .forward = flatten_forward,
                                            .backward = flatten_backward};
