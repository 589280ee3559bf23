/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/op.c - operations: making, running and freeing them.
 *
 * Purpose   See op.h. This file holds what all families share.
 * Threads   create, destroy: any thread.  run: the lane's thread.
 * Memory    create takes the operation from the host's allocator; run takes nothing.
 */
#include "op.h"

#include <string.h>

/* Present when the program is linked with an OpenMP runtime, as oneDNN's usual build is. Without
 * one, operations run on as many threads as oneDNN decides, which is one for its serial build. */
extern void omp_set_num_threads(int threads) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));

/* Below this much work the cost of waking other threads is not won back: it is some 70 us on one
 * core (oneDNN 2.6.3, AVX-512 EPYC). */
#define LARGE_FLOPS 8e6

void ren__cpu_set_work(ren__cpu_build *b, double flops)
{
    b->op->threads = flops >= LARGE_FLOPS ? b->dev->config.cpu_threads : 1u;
    if (omp_set_num_threads) {
        omp_set_num_threads((int)b->op->threads);
    }
}

/* ------------------------------------------------------------------ descriptors */

static ren__dnnl_md *md_slot(ren__cpu_build *b)
{
    return b->md_count < REN__CPU_OP_MDS ? &b->mds[b->md_count++] : NULL;
}

ren_status ren__cpu_md(ren__cpu_build *b, int rank, const dnnl_dim_t *dims, dnnl_format_tag_t tag,
                       const ren__dnnl_md **out)
{
    ren__dnnl_md *md = md_slot(b);
    if (!md) {
        return REN__CPU_FAIL(b->err, REN_ERR_INTERNAL, "too many memory descriptors");
    }
    REN__DNNL(b->err, ren__dnnl_md_make(md, rank, dims, tag));
    *out = md;
    return REN_OK;
}

ren_status ren__cpu_md_query(ren__cpu_build *b, dnnl_primitive_desc_t pd, dnnl_query_t what,
                             const ren__dnnl_md **out)
{
    ren__dnnl_md *md = md_slot(b);
    if (!md) {
        return REN__CPU_FAIL(b->err, REN_ERR_INTERNAL, "too many memory descriptors");
    }
    REN__DNNL(b->err, ren__dnnl_md_query(md, pd, what));
    *out = md;
    return REN_OK;
}

ren_status ren__cpu_md_nhwc(ren__cpu_build *b, uint32_t operand, const ren__dnnl_md **out)
{
    const ren__tensor_desc *t = &b->desc->operand[operand];
    if (t->rank != 2 && t->rank != 4) {
        return REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "operand %u must have rank 2 or 4",
                             (unsigned)operand);
    }
    dnnl_dim_t dims[4] = {t->dims[0], t->dims[t->rank - 1u], 1, 1};
    if (t->rank == 4) {
        dims[2] = t->dims[1];
        dims[3] = t->dims[2];
    }
    return ren__cpu_md(b, 4, dims, dnnl_nhwc, out);
}

ren_status ren__cpu_md_flat(ren__cpu_build *b, uint32_t operand, const ren__dnnl_md **out)
{
    dnnl_dim_t count = (dnnl_dim_t)ren__tensor_elements(&b->desc->operand[operand]);
    return ren__cpu_md(b, 1, &count, dnnl_a, out);
}

dnnl_primitive_desc_t *ren__cpu_pd_slot(ren__cpu_build *b)
{
    /* The last slot is shared by mistakes only: no family makes this many. */
    uint32_t slot = b->pd_count < REN__CPU_OP_PDS ? b->pd_count++ : REN__CPU_OP_PDS - 1u;
    return &b->pds[slot];
}

/* ------------------------------------------------------------------ steps */

static uint64_t take_workspace(ren__op *op, uint64_t bytes)
{
    uint64_t offset = op->workspace_bytes;
    op->workspace_bytes += (bytes + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
    return offset;
}

void ren__cpu_own_workspace(ren__cpu_build *b, uint64_t bytes)
{
    b->op->own_offset = take_workspace(b->op, bytes);
}

ren_status ren__cpu_memory(ren__cpu_build *b, const ren__dnnl_md *md, int operand, uint32_t *out)
{
    ren__op *op = b->op;
    if (op->memory_count == REN__CPU_OP_MEMORIES) {
        return REN__CPU_FAIL(b->err, REN_ERR_INTERNAL, "too many memory objects");
    }
    uint32_t index = op->memory_count;
    REN__DNNL(b->err, ren__dnnl_memory_make(&op->memories[index].memory, md, b->dev->engine));
    op->memory_count++;
    op->memories[index].operand = operand;
    if (operand < 0) {
        op->memories[index].offset = take_workspace(op, ren__dnnl_md_bytes(md));
    }
    *out = index;
    return REN_OK;
}

ren_status ren__cpu_step(ren__cpu_build *b, dnnl_primitive_desc_t pd, const int (*args)[2],
                         uint32_t arg_count)
{
    ren__op *op = b->op;
    if (op->step_count == REN__CPU_OP_STEPS || arg_count >= REN__CPU_OP_ARGS) {
        return REN__CPU_FAIL(b->err, REN_ERR_INTERNAL, "too many steps or arguments");
    }
    uint32_t step = op->step_count;
    REN__DNNL(b->err, dnnl_primitive_create(&op->steps[step].primitive, pd));
    op->step_count++;
    for (uint32_t i = 0; i < arg_count; i++) {
        op->steps[step].args[i].arg = args[i][0];
        op->steps[step].args[i].memory = op->memories[args[i][1]].memory;
    }
    const ren__dnnl_md *scratch = NULL;
    REN__TRY(ren__cpu_md_query(b, pd, dnnl_query_scratchpad_md, &scratch));
    if (ren__dnnl_md_bytes(scratch) != 0) {
        uint32_t memory = 0;
        REN__TRY(ren__cpu_memory(b, scratch, -1, &memory));
        op->steps[step].args[arg_count].arg = DNNL_ARG_SCRATCHPAD;
        op->steps[step].args[arg_count].memory = op->memories[memory].memory;
        arg_count++;
    }
    op->steps[step].arg_count = (int)arg_count;
    return REN_OK;
}

/* ------------------------------------------------------------------ checks */

ren_status ren__cpu_expect(ren__cpu_build *b, uint32_t operand, ren_dtype dtype, uint32_t rank,
                           const int64_t *dims)
{
    const ren__tensor_desc *t = &b->desc->operand[operand];
    if (t->dtype != dtype) {
        return REN__CPU_FAIL(b->err, REN_ERR_UNSUPPORTED,
                             "operand %u has dtype %d, the cpu device computes this with dtype %d",
                             (unsigned)operand, (int)t->dtype, (int)dtype);
    }
    if (t->rank != rank) {
        return REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "operand %u has rank %u, expected %u",
                             (unsigned)operand, (unsigned)t->rank, (unsigned)rank);
    }
    for (uint32_t i = 0; i < rank; i++) {
        if (t->dims[i] < 1 || (dims[i] >= 0 && t->dims[i] != dims[i])) {
            return REN__CPU_FAIL(
                b->err, REN_ERR_SHAPE, "operand %u has %lld in dimension %u, expected %lld",
                (unsigned)operand, (long long)t->dims[i], (unsigned)i, (long long)dims[i]);
        }
    }
    return REN_OK;
}

ren_status ren__cpu_expect_same(ren__cpu_build *b, uint32_t operand, uint32_t as)
{
    const ren__tensor_desc *t = &b->desc->operand[as];
    return ren__cpu_expect(b, operand, t->dtype, t->rank, t->dims);
}

ren_status ren__cpu_expect_elements(ren__cpu_build *b, uint32_t operand, uint64_t elements)
{
    const ren__tensor_desc *t = &b->desc->operand[operand];
    if (t->dtype != REN_F32) {
        return REN__CPU_FAIL(b->err, REN_ERR_UNSUPPORTED,
                             "operand %u must be f32 on the cpu device", (unsigned)operand);
    }
    if (ren__tensor_elements(t) != elements || elements == 0) {
        return REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "operand %u has %llu elements, expected %llu",
                             (unsigned)operand, (unsigned long long)ren__tensor_elements(t),
                             (unsigned long long)elements);
    }
    return REN_OK;
}

/* ------------------------------------------------------------------ the table of families */

typedef ren_status (*build_fn)(ren__cpu_build *b);

static const build_fn builders[REN__OP_KINDS] = {
    [REN__OP_LINEAR_FWD] = ren__cpu_build_linear,
    [REN__OP_LINEAR_BWD_DATA] = ren__cpu_build_linear,
    [REN__OP_LINEAR_BWD_WEIGHT] = ren__cpu_build_linear,
    [REN__OP_BIAS_GRAD] = ren__cpu_build_bias_grad,
    [REN__OP_CONV_FWD] = ren__cpu_build_conv,
    [REN__OP_CONV_BWD_DATA] = ren__cpu_build_conv,
    [REN__OP_CONV_BWD_WEIGHT] = ren__cpu_build_conv,
    [REN__OP_MAX_POOL_FWD] = ren__cpu_build_pool,
    [REN__OP_MAX_POOL_BWD] = ren__cpu_build_pool,
    [REN__OP_AVG_POOL_FWD] = ren__cpu_build_pool,
    [REN__OP_AVG_POOL_BWD] = ren__cpu_build_pool,
    [REN__OP_GLOBAL_AVG_FWD] = ren__cpu_build_global_avg,
    [REN__OP_GLOBAL_AVG_BWD] = ren__cpu_build_global_avg,
    [REN__OP_BATCH_NORM_TRAIN] = ren__cpu_build_batch_norm,
    [REN__OP_BATCH_NORM_BWD] = ren__cpu_build_batch_norm,
    [REN__OP_BATCH_NORM_EVAL] = ren__cpu_build_batch_norm,
    [REN__OP_BATCH_NORM_FOLD] = ren__cpu_build_fold,
    [REN__OP_ACT_FWD] = ren__cpu_build_activation,
    [REN__OP_ACT_BWD] = ren__cpu_build_activation,
    [REN__OP_DROPOUT_FWD] = ren__cpu_build_dropout,
    [REN__OP_DROPOUT_BWD] = ren__cpu_build_dropout,
    [REN__OP_ADD] = ren__cpu_build_add,
    [REN__OP_CONCAT] = ren__cpu_build_join,
    [REN__OP_SPLIT] = ren__cpu_build_join,
    [REN__OP_XENT_FWD] = ren__cpu_build_cross_entropy,
    [REN__OP_XENT_BWD] = ren__cpu_build_cross_entropy,
    [REN__OP_MSE_FWD] = ren__cpu_build_regression,
    [REN__OP_MSE_BWD] = ren__cpu_build_regression,
    [REN__OP_HUBER_FWD] = ren__cpu_build_regression,
    [REN__OP_HUBER_BWD] = ren__cpu_build_regression,
    [REN__OP_CHECK] = ren__cpu_build_check,
    [REN__OP_ADVANCE] = ren__cpu_build_check,
    [REN__OP_SGD] = ren__cpu_build_optimizer,
    [REN__OP_ADAM] = ren__cpu_build_optimizer,
    [REN__OP_ADAMW] = ren__cpu_build_optimizer,
    [REN__OP_LARS] = ren__cpu_build_optimizer,
    [REN__OP_EMA] = ren__cpu_build_optimizer,
    [REN__OP_CAST] = ren__cpu_build_cast,
    [REN__OP_COMMIT] = ren__cpu_build_commit,
};

/* ------------------------------------------------------------------ create, run, destroy */

static void free_op(ren__device *dev, ren__op *op)
{
    if (op->full) {
        free_op(dev, op->full);
    }
    for (uint32_t i = 0; i < op->step_count; i++) {
        dnnl_primitive_destroy(op->steps[i].primitive);
    }
    for (uint32_t i = 0; i < op->memory_count; i++) {
        dnnl_memory_destroy(op->memories[i].memory);
    }
    ren__cpu_free(dev, op, sizeof *op);
}

static void drop_build(ren__cpu_build *b)
{
    for (uint32_t i = 0; i < b->md_count; i++) {
        ren__dnnl_md_drop(&b->mds[i]);
    }
    for (uint32_t i = 0; i < b->pd_count; i++) {
        if (b->pds[i]) {
            dnnl_primitive_desc_destroy(b->pds[i]);
        }
    }
}

ren_status ren__cpu_op_create(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                              ren__op **out, ren__op_needs *needs, ren_error *err)
{
    (void)lane; /* an operation runs on whatever lane launches it, one launch at a time */
    *out = NULL;
    if (ren__cpu_is_lost(dev)) {
        return REN__CPU_FAIL(err, REN_ERR_DEVICE_LOST, "the device is lost");
    }
    if (desc->kind <= REN__OP_NONE || desc->kind >= REN__OP_KINDS) {
        return REN__CPU_FAIL(err, REN_ERR_INVALID_ARGUMENT, "operation kind %d is none",
                             (int)desc->kind);
    }
    ren__op *op = ren__cpu_alloc(dev, sizeof *op);
    if (!op) {
        return REN__CPU_FAIL(err, REN_ERR_NO_MEMORY, "out of memory for an operation");
    }
    op->desc = *desc;
    op->threads = 1;
    if (ren__cpu_is_half(desc)) {
        ren_status made = ren__cpu_half_create(dev, op, needs, err);
        if (made != REN_OK) {
            free_op(dev, op);
            return made;
        }
        *out = op;
        return REN_OK;
    }
    ren__cpu_build b = {.dev = dev, .op = op, .desc = desc, .err = err};
    int threads_before = omp_get_max_threads ? omp_get_max_threads() : 1;
    ren__cpu_set_work(&b, 0.0);
    ren_status status = builders[desc->kind](&b);
    if (omp_set_num_threads) {
        omp_set_num_threads(threads_before);
    }
    drop_build(&b);
    if (status != REN_OK) {
        free_op(dev, op);
        return status;
    }
    needs->workspace_bytes = op->workspace_bytes;
    needs->saved_bytes = op->saved_bytes;
    needs->commands = 1;
    *out = op;
    return REN_OK;
}

void ren__cpu_op_destroy(ren__device *dev, ren__op *op)
{
    if (op && (!ren__cpu_is_lost(dev) || ren__cpu_settle(dev))) {
        free_op(dev, op);
    }
}

ren_status ren__cpu_op_run(ren__op *op, dnnl_stream_t stream, void *const *operands,
                           void *workspace)
{
    unsigned char *bytes = workspace;
    if (op->full) {
        return ren__cpu_half_run(op, stream, operands, bytes);
    }
    if (op->before) {
        op->before(op, operands, bytes ? bytes + op->own_offset : NULL);
    }
    if (op->step_count != 0) {
        if (omp_set_num_threads) {
            omp_set_num_threads((int)op->threads);
        }
        for (uint32_t i = 0; i < op->memory_count; i++) {
            int operand = op->memories[i].operand;
            void *address = operand >= 0 ? operands[operand] : bytes + op->memories[i].offset;
            if (dnnl_memory_set_data_handle(op->memories[i].memory, address) != dnnl_success) {
                return REN_ERR_DEVICE;
            }
        }
        for (uint32_t i = 0; i < op->step_count; i++) {
            if (dnnl_primitive_execute(op->steps[i].primitive, stream, op->steps[i].arg_count,
                                       op->steps[i].args) != dnnl_success) {
                return REN_ERR_DEVICE;
            }
        }
    }
    if (op->after) {
        op->after(op, operands, bytes ? bytes + op->own_offset : NULL);
    }
    return REN_OK;
}
