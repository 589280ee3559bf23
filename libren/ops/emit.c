/* SPDX-License-Identifier: MIT */
/* libren/ops/emit.c - what the families share: tasks, values, gradients, shape texts.
 *
 * Purpose   Families describe a task as a sequence of reads and writes; the bookkeeping that every
 *           one of them needs is here once.
 * Threads   one per emitter.
 * Memory    none of its own: values and tasks belong to the task graph.
 */
#include "ops.h"

#include <stdarg.h>
#include <stdio.h>

#define MAX_TENSOR_BYTES (UINT64_C(1) << 40)

static const ren__op_family *const families[REN__NODE_KINDS] = {
    [REN__NODE_LINEAR] = &ren__family_linear,
    [REN__NODE_CONV2D] = &ren__family_conv2d,
    [REN__NODE_BATCH_NORM] = &ren__family_batch_norm,
    [REN__NODE_MAX_POOL] = &ren__family_max_pool,
    [REN__NODE_AVG_POOL] = &ren__family_avg_pool,
    [REN__NODE_GLOBAL_AVG_POOL] = &ren__family_global_avg_pool,
    [REN__NODE_ACTIVATION] = &ren__family_activation,
    [REN__NODE_DROPOUT] = &ren__family_dropout,
    [REN__NODE_ADD] = &ren__family_add,
    [REN__NODE_CONCAT] = &ren__family_concat,
    [REN__NODE_FLATTEN] = &ren__family_flatten,
    [REN__NODE_CROSS_ENTROPY] = &ren__family_cross_entropy,
    [REN__NODE_MSE] = &ren__family_mse,
    [REN__NODE_HUBER] = &ren__family_huber,
};

/* NULL for REN__NODE_INPUT. */
const ren__op_family *ren__op_family_of(ren__node_kind kind)
{
    return families[kind];
}

/* ------------------------------------------------------------------ tasks */

ren__tensor_desc ren__emit_full_desc(const ren__emitter *e, uint32_t index)
{
    const ren__node *n = e->nodes[index];
    ren__tensor_desc desc = n->out;
    if (!n->is_loss) {
        desc.dims[0] = e->batch;
    }
    return desc;
}

ren__tensor_desc ren__emit_desc(const ren__emitter *e, uint32_t index)
{
    ren__tensor_desc desc = ren__emit_full_desc(e, index);
    if (desc.dtype == REN_F32 && !e->nodes[index]->is_loss) {
        desc.dtype = e->precision;
    }
    return desc;
}

ren__tensor_desc ren__emit_bytes_desc(uint64_t bytes)
{
    ren__tensor_desc desc = {.dtype = REN_U8, .rank = 1};
    desc.dims[0] = (int64_t)bytes;
    return desc;
}

ren__tensor_desc ren__emit_vector_desc(uint64_t elements)
{
    ren__tensor_desc desc = {.dtype = REN_F32, .rank = 1};
    desc.dims[0] = (int64_t)elements;
    return desc;
}

ren__task ren__emit_op(const ren__emitter *e, const ren__node *n, ren__op_kind kind,
                       ren_stream stream, uint64_t cost)
{
    ren__task t;
    memset(&t, 0, sizeof t);
    t.name = n->name;
    t.segment = e->segment;
    t.kind = REN__TASK_OP;
    t.stream = stream;
    t.free_stream = 1;
    t.cost = cost;
    t.op.struct_size = (uint32_t)sizeof t.op;
    t.op.kind = kind;
    t.op.groups = 1;
    for (uint32_t i = 0; i < 2; i++) {
        t.op.kernel[i] = 1;
        t.op.stride[i] = 1;
        t.op.dilation[i] = 1;
    }
    t.op.training = e->training;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        t.operand[i] = REN__NO_VALUE;
    }
    return t;
}

void ren__emit_read(ren__task *t, uint32_t operand, uint32_t value, const ren__tensor_desc *desc)
{
    t->operand[operand] = value;
    t->op.operand[operand] = *desc;
    t->reads |= 1u << operand;
}

void ren__emit_write(ren__task *t, uint32_t operand, uint32_t value, const ren__tensor_desc *desc)
{
    t->operand[operand] = value;
    t->op.operand[operand] = *desc;
    t->writes |= 1u << operand;
}

void ren__emit_read_param(const ren__emitter *e, ren__task *t, uint32_t operand, uint32_t param)
{
    ren__emit_read(t, operand, e->param_values[param], &e->param_descs[param]);
}

void ren__emit_read_weight(const ren__emitter *e, ren__task *t, uint32_t operand, uint32_t param)
{
    ren__tensor_desc desc = e->param_descs[param];
    desc.dtype = e->precision;
    ren__emit_read(t, operand, e->param_casts[param], &desc);
}

uint32_t ren__emit_task(ren__emitter *e, const ren__task *t)
{
    return ren__task_graph_add(e->graph, t);
}

void ren__emit_window(ren__task *t, const ren__node *n)
{
    memcpy(t->op.kernel, n->kernel, sizeof t->op.kernel);
    memcpy(t->op.stride, n->stride, sizeof t->op.stride);
    memcpy(t->op.padding, n->padding, sizeof t->op.padding);
    memcpy(t->op.dilation, n->dilation, sizeof t->op.dilation);
    t->op.groups = n->groups;
}

/* ------------------------------------------------------------------ values and gradients */

uint32_t ren__emit_local(ren__emitter *e, const ren__node *n, uint64_t bytes)
{
    return ren__task_graph_value(e->graph, n->name, REN__VALUE_LOCAL, bytes);
}

uint32_t ren__emit_output(ren__emitter *e, uint32_t index)
{
    ren__tensor_desc desc = ren__emit_desc(e, index);
    e->values[index] = ren__emit_local(e, e->nodes[index], ren__tensor_bytes(&desc));
    return e->values[index];
}

void ren__emit_cast(ren__emitter *e, const ren__node *n, uint32_t from,
                    const ren__tensor_desc *from_desc, uint32_t to, const ren__tensor_desc *to_desc)
{
    ren__task t = ren__emit_op(e, n, REN__OP_CAST, REN_STREAM_COMP_3,
                               ren__tensor_bytes(from_desc) + ren__tensor_bytes(to_desc));
    ren__emit_read(&t, 0, from, from_desc);
    ren__emit_write(&t, 1, to, to_desc);
    ren__emit_task(e, &t);
}

/* The tensor's value in the dtype that it is not stored in. */
static uint32_t cast_of(ren__emitter *e, uint32_t index, const ren__tensor_desc *from,
                        const ren__tensor_desc *to)
{
    if (e->casts[index] == REN__NO_VALUE) {
        e->casts[index] = ren__emit_local(e, e->nodes[index], ren__tensor_bytes(to));
        ren__emit_cast(e, e->nodes[index], e->values[index], from, e->casts[index], to);
    }
    return e->casts[index];
}

uint32_t ren__emit_value(ren__emitter *e, uint32_t index)
{
    ren__tensor_desc stored = ren__emit_full_desc(e, index);
    ren__tensor_desc wanted = ren__emit_desc(e, index);
    uint32_t is_input = e->nodes[index]->kind == REN__NODE_INPUT;
    return is_input && stored.dtype != wanted.dtype ? cast_of(e, index, &stored, &wanted)
                                                    : e->values[index];
}

uint32_t ren__emit_full_value(ren__emitter *e, uint32_t index)
{
    ren__tensor_desc stored = ren__emit_desc(e, index);
    ren__tensor_desc wanted = ren__emit_full_desc(e, index);
    uint32_t is_input = e->nodes[index]->kind == REN__NODE_INPUT;
    return !is_input && stored.dtype != wanted.dtype ? cast_of(e, index, &stored, &wanted)
                                                     : e->values[index];
}

uint32_t ren__emit_loss_input(ren__emitter *e, uint32_t index, ren__tensor_desc *out_desc)
{
    if (!(e->fusions & REN__FUSE_HALF_LOSS) || e->nodes[index]->kind == REN__NODE_INPUT) {
        *out_desc = ren__emit_full_desc(e, index);
        return ren__emit_full_value(e, index);
    }
    *out_desc = ren__emit_desc(e, index);
    return e->values[index];
}

uint32_t ren__emit_trains(const ren__emitter *e, uint32_t param)
{
    return param != REN__NO_PARAM && e->param_grads[param] != REN__NO_VALUE;
}

void ren__emit_loss_grad(ren__emitter *e, const ren__node *n, uint32_t index, uint32_t value,
                         const ren__tensor_desc *value_desc)
{
    ren__tensor_desc desc = ren__emit_desc(e, index);
    if (e->wants_grad[index] && value_desc->dtype != desc.dtype) {
        uint32_t rounded = ren__emit_local(e, n, ren__tensor_bytes(&desc));
        ren__emit_cast(e, n, value, value_desc, rounded, &desc);
        value = rounded;
    }
    ren__emit_grad(e, n, index, value);
}

/* The backward pass of this tensor's node adds a second gradient by itself. */
static uint32_t takes_two(const ren__emitter *e, uint32_t index)
{
    const ren__fused *group = &e->fused[e->fused[index].head];
    return e->fusions & REN__FUSE_NORM_GRADS && group->act == index &&
           e->nodes[e->fused[index].head]->kind == REN__NODE_BATCH_NORM;
}

void ren__emit_grad(ren__emitter *e, const ren__node *n, uint32_t index, uint32_t value)
{
    if (!e->wants_grad[index]) {
        return;
    }
    uint32_t *into = &e->grads[index];
    if (*into != REN__NO_VALUE && takes_two(e, index)) {
        into = &e->more[index];
    }
    if (*into == REN__NO_VALUE) {
        *into = value;
        return;
    }
    ren__tensor_desc desc = ren__emit_desc(e, index);
    uint64_t bytes = ren__tensor_bytes(&desc);
    uint32_t sum = ren__emit_local(e, n, bytes);
    ren__task t = ren__emit_op(e, n, REN__OP_ADD, REN_STREAM_COMP_3, 3 * bytes);
    ren__emit_read(&t, 0, *into, &desc);
    ren__emit_read(&t, 1, value, &desc);
    ren__emit_write(&t, 2, sum, &desc);
    ren__emit_task(e, &t);
    *into = sum;
}

/* ------------------------------------------------------------------ shapes */

ren_status ren__shape_fail(ren__shape_error *err, ren_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return status;
}

void ren__shape_text(const ren__tensor_desc *desc, char out[80])
{
    static const char *const dtypes[] = {"f32", "f16", "bf16", "i32", "u8"};
    int at = snprintf(out, 80, "%s [", dtypes[desc->dtype]);
    for (uint32_t i = 0; i < desc->rank && at < 70; i++) {
        at += snprintf(out + at, (size_t)(80 - at), "%s%lld", i ? ", " : "",
                       (long long)desc->dims[i]);
    }
    if (at < 79) {
        out[at] = ']';
        out[at + 1] = '\0';
    }
}

ren_status ren__shape_expect(const ren__node *n, const ren__shape_in *in, uint32_t rank,
                             ren__shape_error *err)
{
    char shape[80];
    ren__shape_text(&in->desc, shape);
    if (in->is_loss) {
        return ren__shape_fail(err, REN_ERR_SHAPE,
                               "%s: input %s is a loss, which only ren_add joins to another",
                               n->name, in->name);
    }
    if (in->desc.dtype != REN_F32) {
        return ren__shape_fail(err, REN_ERR_SHAPE, "%s: input %s is %s, not f32", n->name, in->name,
                               shape);
    }
    if (rank && in->desc.rank != rank) {
        return ren__shape_fail(err, REN_ERR_SHAPE, "%s: input %s is %s, not of rank %u%s", n->name,
                               in->name, shape, rank,
                               rank == 2 && in->desc.rank == 4 ? "; ren_flatten makes it so" : "");
    }
    return REN_OK;
}

ren_status ren__shape_check_size(const char *name, const ren__tensor_desc *desc,
                                 ren__shape_error *err)
{
    uint64_t bytes = ren__dtype_bytes(desc->dtype);
    for (uint32_t i = 0; i < desc->rank; i++) {
        if (desc->dims[i] < 1 || desc->dims[i] > INT32_MAX) {
            return ren__shape_fail(err, REN_ERR_SHAPE, "%s: dimension %u is %lld, not 1..%ld", name,
                                   i, (long long)desc->dims[i], (long)INT32_MAX);
        }
        if (__builtin_mul_overflow(bytes, (uint64_t)desc->dims[i], &bytes) ||
            bytes > MAX_TENSOR_BYTES) {
            return ren__shape_fail(err, REN_ERR_SHAPE, "%s: larger than 2^40 bytes", name);
        }
    }
    return REN_OK;
}
