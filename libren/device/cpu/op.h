/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/op.h - how the CPU device's operations are made; for op*.c only.
 *
 * Purpose   An operation is at most four oneDNN primitives run in order, with a plain function of
 *           ours before or after them. A builder turns a ren__op_desc into that; everything that
 *           can fail, fails there.
 * Threads   building: any thread.  running: the thread of the operation's lane.
 * Memory    oneDNN memory objects are made once and get their addresses at each launch. Scratch
 *           (oneDNN's scratchpads, reordered weights, our own buffers) is laid out in one workspace
 *           that the caller lends per launch, as oneDNN's user mode allows.
 *
 * Half precision. A tensor of f16 or bf16 is stored so and computed in f32: op_half.c puts casts
 * around the operation in f32, in the workspace.
 *
 * Number of threads. An operation's split over threads, and so the order of its sums, is fixed when
 * its primitives are made. It depends on the operation's amount of work and on config.cpu_threads
 * alone, never on the lane or on how many lanes there are, so results do not depend on them either.
 */
#ifndef REN_DEVICE_CPU_OP_H
#define REN_DEVICE_CPU_OP_H

#include "cpu.h"

#define REN__CPU_OP_STEPS    4u
#define REN__CPU_OP_ARGS     12u
#define REN__CPU_OP_MEMORIES 20u
#define REN__CPU_OP_MDS      16u
#define REN__CPU_OP_PDS      6u

typedef void (*ren__cpu_fn)(const ren__op *op, void *const *operands, unsigned char *workspace);

struct ren__op {
    ren__op_desc desc;
    uint32_t threads;
    ren__cpu_fn before;
    ren__cpu_fn after;
    uint64_t own_offset; /* our functions' part of the workspace */
    uint64_t workspace_bytes;
    uint64_t saved_bytes;
    uint32_t step_count;
    struct {
        dnnl_primitive_t primitive;
        int arg_count;
        dnnl_exec_arg_t args[REN__CPU_OP_ARGS];
    } steps[REN__CPU_OP_STEPS];
    uint32_t memory_count;
    struct {
        dnnl_memory_t memory;
        int operand;     /* -1: in the workspace */
        uint64_t offset; /* into the workspace */
    } memories[REN__CPU_OP_MEMORIES];
    ren__op *full;                       /* op_half.c: the operation in f32, else NULL */
    uint64_t full_offset[REN__OPERANDS]; /* of its operands that are stored in half */
    uint32_t halves;                     /* which, a bit each */
    uint32_t written;                    /* by the operation, a bit each */
};

/* What lives only while an operation is being made; op_create drops all of it. */
typedef struct ren__cpu_build {
    ren__device *dev;
    ren__op *op;
    const ren__op_desc *desc;
    ren_error *err;
    uint32_t md_count;
    ren__dnnl_md mds[REN__CPU_OP_MDS];
    uint32_t pd_count;
    dnnl_primitive_desc_t pds[REN__CPU_OP_PDS];
} ren__cpu_build;

#define REN__TRY(call)                                                                             \
    do {                                                                                           \
        ren_status tried_ = (call);                                                                \
        if (tried_ != REN_OK) {                                                                    \
            return tried_;                                                                         \
        }                                                                                          \
    } while (0)

/* An f32 descriptor that the builder owns. */
ren_status ren__cpu_md(ren__cpu_build *b, int rank, const dnnl_dim_t *dims, dnnl_format_tag_t tag,
                       const ren__dnnl_md **out);
/* What `pd` expects for one of its arguments. */
ren_status ren__cpu_md_query(ren__cpu_build *b, dnnl_primitive_desc_t pd, dnnl_query_t what,
                             const ren__dnnl_md **out);
/* An activation of rank 2 or 4 as oneDNN sees it: N, C, H, W with channels last in memory. */
ren_status ren__cpu_md_nhwc(ren__cpu_build *b, uint32_t operand, const ren__dnnl_md **out);
/* All elements of an operand as one vector. */
ren_status ren__cpu_md_flat(ren__cpu_build *b, uint32_t operand, const ren__dnnl_md **out);
/* Takes over a primitive descriptor just made: `ren__cpu_pd(b, ren__dnnl_x(&pd, ...), pd, &pd)`. */
dnnl_primitive_desc_t *ren__cpu_pd_slot(ren__cpu_build *b);

/* A memory object for an operand, or for a piece of workspace (operand -1). */
ren_status ren__cpu_memory(ren__cpu_build *b, const ren__dnnl_md *md, int operand, uint32_t *out);
/* Make the primitive and append it; args are pairs (oneDNN argument, memory index). */
ren_status ren__cpu_step(ren__cpu_build *b, dnnl_primitive_desc_t pd, const int (*args)[2],
                         uint32_t arg_count);
/* Workspace for `before` and `after`. */
void ren__cpu_own_workspace(ren__cpu_build *b, uint64_t bytes);
/* Large operations get config.cpu_threads; call before any descriptor is made. */
void ren__cpu_set_work(ren__cpu_build *b, double flops);

/* Shape checks; -1 = any size. */
ren_status ren__cpu_expect(ren__cpu_build *b, uint32_t operand, ren_dtype dtype, uint32_t rank,
                           const int64_t *dims);
ren_status ren__cpu_expect_same(ren__cpu_build *b, uint32_t operand, uint32_t as);
ren_status ren__cpu_expect_elements(ren__cpu_build *b, uint32_t operand, uint64_t elements);

static inline bool ren__cpu_has(const ren__op_desc *desc, uint32_t operand)
{
    return desc->operand[operand].rank != 0;
}

/* op_half.c. Does any operand ask for casts around the operation? Then: make it, run it. */
bool ren__cpu_is_half(const ren__op_desc *desc);
ren_status ren__cpu_half_create(ren__device *dev, ren__op *op, ren__op_needs *needs,
                                ren_error *err);
ren_status ren__cpu_half_run(ren__op *op, dnnl_stream_t stream, void *const *operands,
                             unsigned char *workspace);

/* op_pointwise.c: n elements of one dtype into another. */
void ren__cpu_cast(void *to, ren_dtype to_dtype, const void *from, ren_dtype from_dtype, size_t n);

/* op_gemm.c: db[c] = sum over rows of dy[row, c], in double, rows in order; `sum` holds a double
 * for each c. */
void ren__cpu_sum_rows(const float *dy, const ren__tensor_desc *shape, float *db, double *sum);

/* op_pointwise.c: oneDNN's name of the activation that is fused into an operation, or
 * dnnl_alg_kind_undef. */
ren_status ren__cpu_fused_algorithm(ren__cpu_build *b, dnnl_alg_kind_t *out);

/* One builder per family. */
ren_status ren__cpu_build_linear(ren__cpu_build *b);
ren_status ren__cpu_build_conv(ren__cpu_build *b);
ren_status ren__cpu_build_bias_grad(ren__cpu_build *b);
ren_status ren__cpu_build_pool(ren__cpu_build *b);
ren_status ren__cpu_build_global_avg(ren__cpu_build *b);
ren_status ren__cpu_build_batch_norm(ren__cpu_build *b);
ren_status ren__cpu_build_fold(ren__cpu_build *b);
ren_status ren__cpu_build_activation(ren__cpu_build *b);
ren_status ren__cpu_build_add(ren__cpu_build *b);
ren_status ren__cpu_build_dropout(ren__cpu_build *b);
ren_status ren__cpu_build_join(ren__cpu_build *b); /* concat and split */
ren_status ren__cpu_build_cast(ren__cpu_build *b);
ren_status ren__cpu_build_cross_entropy(ren__cpu_build *b);
ren_status ren__cpu_build_regression(ren__cpu_build *b); /* mse and huber */
ren_status ren__cpu_build_check(ren__cpu_build *b);      /* check and advance */
ren_status ren__cpu_build_optimizer(ren__cpu_build *b);  /* sgd, adam, adamw, lars, ema */
ren_status ren__cpu_build_commit(ren__cpu_build *b);

#endif
