/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/linear.c - the three matrix products of a linear layer, through cuBLASLt.
 *
 * Purpose   y[N,O] = act(x[N,I] W[O,I]^T + b),  dx[N,I] = dy[N,O] W[O,I],
 *           dW[O,I] = dy[N,O]^T x[N,I] with db[O] = the sum of dy's rows.
 * Layout    cuBLASLt counts columns first, so a row-major matrix [R,C] is to it a matrix of C rows
 *           and R columns: each product is computed transposed, with its factors exchanged.
 *             forward      y^T[O,N]  = W[O,I]     x^T[I,N]    a = W transposed, b = x
 *             data         dx^T[I,N] = W^T[I,O]   dy^T[O,N]   a = W,            b = dy
 *             weight       dW^T[I,O] = x^T[I,N]   dy[N,O]     a = x,            b = dy transposed
 *           A bias belongs to the rows of y^T, which is the library's bias epilogue. The sum of
 *           dy's rows runs over the product's inner dimension and belongs to the columns of dW^T,
 *           which is the library's BGRADB.
 * Fusion    An epilogue that the library does not take for a shape or a dtype is done by a kernel
 *           of ours behind the product: bias and activation in f32, in 16 bits by refusing, upon
 *           which op.c puts casts around an operation in f32; the sum of dy's rows by an operation
 *           of its own, `inner`. GELU is the library's, which is the tanh formula.
 *           The library's BGRADB is a second reading of dy by few blocks: good for few rows, where
 *           another launch costs more. With 16,384 rows of 64 f16 columns it adds 13 us to 6, with
 *           10 columns 719 us to 14 (H200, cuBLASLt 13.1): see sums_with_product. The gradients of
 *           a layer with few outputs are a kernel of ours altogether: slim.cu.
 * Numbers   f32 is computed in f32 (CUBLAS_COMPUTE_32F), or with allow_tf32 by factors rounded to
 *           TF32; f16 and bf16 accumulate in f32.
 * Order     the algorithm is the library's first choice for the shape, or the fastest of MOST where
 *           the device is tuned. The parts of a split sum are added by a kernel of the library's
 *           own, in order. Never in place, which is slow, though it is the library's first choice
 *           for small f32 products (13 us where 2.9 do).
 * Memory    the workspace that the algorithm wants, at most LINEAR_WORKSPACE.
 */
#include <string.h>

#include "kernels.h"
#include "tune.h"

#define LINEAR_WORKSPACE (8u << 20) /* bytes */
#define MOST             16         /* algorithms that are timed */
#define FEW_ROWS         1024u      /* of dy, that BGRADB may sum */
#define LEAST_ALIGNED    16u        /* bytes; of parameters in 16 bits: half of REN__ALIGN */

/* Operand 1 is always the library's first factor and operand 0 its second one. */
typedef struct product {
    uint32_t d;    /* the operand that is written */
    int ta, tb;    /* transposed? */
    uint32_t bias; /* operand that is added, or written: the sum; or REN__OPERANDS for none */
    uint64_t rows_a, columns_a, rows_b, columns_b, rows_d, columns_d;
} product;

static ren_status data_type(ren_dtype dtype, cudaDataType_t *out)
{
    switch (dtype) {
    case REN_F32:
        *out = CUDA_R_32F;
        return REN_OK;
    case REN_F16:
        *out = CUDA_R_16F;
        return REN_OK;
    case REN_BF16:
        *out = CUDA_R_16BF;
        return REN_OK;
    default:
        return REN_ERR_UNSUPPORTED;
    }
}

static uint64_t last_dim(const ren__tensor_desc *t)
{
    return (uint64_t)t->dims[t->rank - 1u];
}

static product product_of(const ren__op_desc *desc)
{
    product p;
    int forward = desc->kind == REN__OP_LINEAR_FWD;
    p.d = forward ? 3u : 2u;
    p.ta = forward;
    p.tb = desc->kind == REN__OP_LINEAR_BWD_WEIGHT;
    p.bias = forward && desc->operand[2].rank ? 2u
             : p.tb && desc->operand[3].rank  ? 3u
                                              : REN__OPERANDS;
    p.rows_a = last_dim(&desc->operand[1]);
    p.columns_a = ren__tensor_elements(&desc->operand[1]) / p.rows_a;
    p.rows_b = last_dim(&desc->operand[0]);
    p.columns_b = ren__tensor_elements(&desc->operand[0]) / p.rows_b;
    p.rows_d = last_dim(&desc->operand[p.d]);
    p.columns_d = ren__tensor_elements(&desc->operand[p.d]) / p.rows_d;
    return p;
}

/* ------------------------------------------------------------------ launch */

/* The description is written to only when the address differs from the last launch's. */
static ren_status point_bias(ren__device *dev, ren__cuda_linear *linear, const void *bias)
{
    ren_status status = REN_OK;
    if (linear->bias != bias) {
        status =
            REN__BLAS(dev, NULL,
                      cublasLtMatmulDescSetAttribute(
                          linear->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
        linear->bias = status == REN_OK ? bias : NULL;
    }
    return status;
}

static ren_status multiply(ren__device *dev, ren__cuda_lane *lane, ren__op *op, const void *a,
                           const void *b, void *d, void *workspace, cudaStream_t stream)
{
    ren__cuda_linear *linear = &op->u.linear;
    const float one = 1.0f;
    const float zero = 0.0f;
    return REN__BLAS(dev, NULL,
                     cublasLtMatmul(lane->blas, linear->matmul, &one, a, linear->a, b, linear->b,
                                    &zero, d, linear->d, d, linear->d, &linear->algo, workspace,
                                    (size_t)linear->workspace, stream));
}

/* What the library did not do: bias and activation of an f32 output, or the sum of dy's rows. */
static ren_status finish(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                         void *const operands[REN__OPERANDS], void *workspace)
{
    const ren__tensor_desc *y = &op->desc.operand[3];
    uint64_t n = ren__tensor_elements(y);
    ren_status status = REN_OK;
    if (op->inner) {
        void *const of_sum[REN__OPERANDS] = {operands[0], operands[3]};
        return op->inner->launch(dev, lane, op->inner, of_sum, workspace);
    }
    if (op->u.linear.then_bias) {
        status = REN__CUDA(dev, NULL,
                           ren__cuda_k_bias_act(lane->stream, REN_F32, operands[3], REN_F32,
                                                operands[2], 0, n, last_dim(y)));
    }
    if (op->u.linear.then_act && status == REN_OK) {
        status = REN__CUDA(dev, NULL,
                           ren__cuda_k_act_forward(lane->stream, REN_F32, op->desc.activation,
                                                   op->desc.alpha, operands[3], operands[3], n));
    }
    return status;
}

static ren_status linear_launch(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                void *const operands[REN__OPERANDS], void *workspace)
{
    ren__cuda_linear *linear = &op->u.linear;
    ren_status status = REN_OK;
    if (linear->bias_operand < REN__OPERANDS) {
        status = point_bias(dev, linear, operands[linear->bias_operand]);
    }
    if (status == REN_OK) {
        status = multiply(dev, lane, op, operands[1], operands[0], operands[linear->d_operand],
                          workspace, lane->stream);
    }
    return status == REN_OK ? finish(dev, lane, op, operands, workspace) : status;
}

/* Few outputs: both gradients by a kernel of ours. */
static ren__slim slim_of(const ren__op *op)
{
    const ren__tensor_desc *o = op->desc.operand;
    ren__slim n;
    memset(&n, 0, sizeof n);
    n.dtype = o[0].dtype;
    n.rows = (uint64_t)o[0].dims[0];
    n.outputs = (uint64_t)o[0].dims[1];
    n.inputs = (uint64_t)o[1].dims[1];
    n.ticket = op->ticket;
    return n;
}

static ren_status slim_launch(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                              void *const operands[REN__OPERANDS], void *workspace)
{
    ren__slim n = slim_of(op);
    n.dy = operands[0];
    n.x = operands[1];
    n.dw = operands[2];
    n.db = op->desc.operand[3].rank ? operands[3] : NULL;
    return REN__CUDA(dev, NULL, ren__cuda_k_slim(lane->stream, &n, workspace));
}

static void linear_destroy(ren__op *op)
{
    ren__cuda_linear *linear = &op->u.linear;
    if (linear->matmul) {
        (void)cublasLtMatmulDescDestroy(linear->matmul);
    }
    if (linear->a) {
        (void)cublasLtMatrixLayoutDestroy(linear->a);
    }
    if (linear->b) {
        (void)cublasLtMatrixLayoutDestroy(linear->b);
    }
    if (linear->d) {
        (void)cublasLtMatrixLayoutDestroy(linear->d);
    }
}

/* ------------------------------------------------------------------ describe */

static ren_status set(ren__device *dev, ren__cuda_linear *linear,
                      cublasLtMatmulDescAttributes_t attribute, int32_t value, ren_error *err)
{
    return REN__BLAS(
        dev, err, cublasLtMatmulDescSetAttribute(linear->matmul, attribute, &value, sizeof value));
}

static ren_status describe(ren__device *dev, ren__cuda_linear *linear, const ren__op_desc *desc,
                           const product *p, cudaDataType_t type, cudaDataType_t of_d,
                           ren_error *err)
{
    cublasComputeType_t compute =
        type == CUDA_R_32F && desc->allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    ren_status status =
        REN__BLAS(dev, err, cublasLtMatmulDescCreate(&linear->matmul, compute, CUDA_R_32F));
    if (status == REN_OK && p->ta) {
        status = set(dev, linear, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T, err);
    }
    if (status == REN_OK && p->tb) {
        status = set(dev, linear, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T, err);
    }
    if (status == REN_OK && p->bias < REN__OPERANDS) {
        cudaDataType_t bias_type = CUDA_R_32F;
        (void)data_type(desc->operand[p->bias].dtype, &bias_type);
        status = set(dev, linear, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)bias_type, err);
    }
    if (status == REN_OK) {
        status = REN__BLAS(dev, err,
                           cublasLtMatrixLayoutCreate(&linear->a, type, p->rows_a, p->columns_a,
                                                      (int64_t)p->rows_a));
    }
    if (status == REN_OK) {
        status = REN__BLAS(dev, err,
                           cublasLtMatrixLayoutCreate(&linear->b, type, p->rows_b, p->columns_b,
                                                      (int64_t)p->rows_b));
    }
    if (status == REN_OK) {
        status = REN__BLAS(dev, err,
                           cublasLtMatrixLayoutCreate(&linear->d, of_d, p->rows_d, p->columns_d,
                                                      (int64_t)p->rows_d));
    }
    return status;
}

/* The epilogue of a product with its bias and its activation, if it has them. */
static cublasLtEpilogue_t epilogue_of(const ren__op_desc *desc, int bias, int activation)
{
    if (desc->kind == REN__OP_LINEAR_BWD_WEIGHT) {
        return bias ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_DEFAULT;
    }
    if (!activation) {
        return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
    if (desc->activation == REN__ACT_RELU) {
        return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    }
    return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

/* ------------------------------------------------------------------ choose */

/* What is remembered of a tuned product. */
typedef struct choice {
    cublasLtMatmulAlgo_t algo;
    uint64_t workspace;
    uint64_t epilogue; /* of the product that the algorithm is for */
} choice;

static ren_status prefer(ren__device *dev, cublasLtMatmulPreference_t *out, ren_error *err)
{
    const uint64_t limit = LINEAR_WORKSPACE;
    const uint32_t in_order = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t aligned = LEAST_ALIGNED;
    ren_status status = REN__BLAS(dev, err, cublasLtMatmulPreferenceCreate(out));
    if (status == REN_OK) {
        status =
            REN__BLAS(dev, err,
                      cublasLtMatmulPreferenceSetAttribute(
                          *out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
    }
    if (status == REN_OK && dev->deterministic) {
        status = REN__BLAS(
            dev, err,
            cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &in_order, sizeof in_order));
    }
    for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES && status == REN_OK; i++) {
        status =
            REN__BLAS(dev, err,
                      cublasLtMatmulPreferenceSetAttribute(
                          *out, (cublasLtMatmulPreferenceAttributes_t)i, &aligned, sizeof aligned));
    }
    return status;
}

/* Not all that is listed can be run. */
static int keep_usable(cublasLtMatmulHeuristicResult_t *results, int found)
{
    int kept = 0;
    for (int i = 0; i < found; i++) {
        if (results[i].state == CUBLAS_STATUS_SUCCESS) {
            results[kept++] = results[i];
        }
    }
    return kept;
}

/* The library's first `most` algorithms for the epilogue. *found is 0 when it takes none. */
static ren_status offers(ren__device *dev, ren__cuda_lane *lane, ren__cuda_linear *linear,
                         cublasLtEpilogue_t epilogue, cublasLtMatmulHeuristicResult_t *results,
                         int most, int *found, ren_error *err)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasStatus_t code;
    /* The heuristic reads an alignment off the address. */
    const void *somewhere = (const void *)(uintptr_t)LEAST_ALIGNED;
    ren_status status = set(dev, linear, CUBLASLT_MATMUL_DESC_EPILOGUE, (int32_t)epilogue, err);
    *found = 0;
    if (status == REN_OK) {
        status = point_bias(dev, linear, linear->bias_operand < REN__OPERANDS ? somewhere : NULL);
    }
    if (status == REN_OK) {
        status = prefer(dev, &preference, err);
    }
    if (status == REN_OK) {
        code =
            cublasLtMatmulAlgoGetHeuristic(lane->blas, linear->matmul, linear->a, linear->b,
                                           linear->d, linear->d, preference, most, results, found);
        if (code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE) {
            *found = 0; /* of the combination, which is no fault */
        } else {
            status = REN__BLAS(dev, err, code);
            *found = keep_usable(results, *found);
        }
    }
    if (preference) {
        (void)cublasLtMatmulPreferenceDestroy(preference);
    }
    return status;
}

typedef struct trial {
    ren__device *dev;
    ren__cuda_lane *lane;
    ren__op *op;
    unsigned char *a, *b, *d, *bias, *workspace;
} trial;

static ren_status run_trial(void *user, cudaStream_t stream)
{
    trial *t = user;
    return multiply(t->dev, t->lane, t->op, t->a, t->b, t->d, t->workspace, stream);
}

static uint64_t room(uint64_t bytes)
{
    return (bytes + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
}

/* Keep the fastest of what is offered; the first one when nothing can be timed. */
static void time_offers(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                        const cublasLtMatmulHeuristicResult_t *results, int found)
{
    ren__cuda_linear *linear = &op->u.linear;
    const ren__tensor_desc *o = op->desc.operand;
    uint64_t of_a = room(ren__tensor_bytes(&o[1]));
    uint64_t of_b = room(ren__tensor_bytes(&o[0]));
    uint64_t of_d = room(ren__tensor_bytes(&o[linear->d_operand]));
    uint64_t of_bias = linear->bias_operand < REN__OPERANDS
                           ? room(ren__tensor_bytes(&o[linear->bias_operand]))
                           : 0u;
    ren__cuda_tuning tuning;
    float best = 0.0f;
    int chosen = 0;
    ren_status status =
        ren__cuda_tune_begin(dev, of_a + of_b + of_d + of_bias + LINEAR_WORKSPACE, &tuning);
    if (status == REN_OK) {
        trial t = {.dev = dev, .lane = lane, .op = op, .a = tuning.scratch};
        t.b = t.a + of_a;
        t.d = t.b + of_b;
        t.bias = t.d + of_d;
        t.workspace = t.bias + of_bias;
        status = linear->bias_operand < REN__OPERANDS ? point_bias(dev, linear, t.bias) : REN_OK;
        for (int i = 0; i < found && status != REN_ERR_DEVICE_LOST; i++) {
            float us = 0.0f;
            linear->algo = results[i].algo;
            linear->workspace = results[i].workspaceSize;
            status = ren__cuda_tune_time(&tuning, run_trial, &t, &us);
            if (status == REN_OK && (best == 0.0f || us < best)) {
                best = us;
                chosen = i;
            }
        }
    }
    ren__cuda_tune_end(&tuning);
    linear->algo = results[chosen].algo;
    linear->workspace = results[chosen].workspaceSize;
}

/* Settle the algorithm for one epilogue; REN_ERR_UNSUPPORTED when the library has none. */
static ren_status choose(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                         cublasLtEpilogue_t epilogue, ren_error *err)
{
    ren__cuda_linear *linear = &op->u.linear;
    cublasLtMatmulHeuristicResult_t results[MOST];
    choice kept;
    int found = 0;
    ren_status status;
    memset(results, 0, sizeof results);
    memset(&kept, 0, sizeof kept);
    status = offers(dev, lane, linear, epilogue, results, dev->autotune ? MOST : 1, &found, err);
    if (status != REN_OK) {
        return status;
    }
    if (found < 1) {
        return ren__cuda_error(err, REN_ERR_UNSUPPORTED, 0, __FILE__, __LINE__,
                               "cuBLASLt has no algorithm for this matrix product");
    }
    linear->algo = results[0].algo;
    linear->workspace = results[0].workspaceSize;
    if (!dev->autotune || found < 2) {
        return REN_OK;
    }
    if (ren__cuda_tune_recall(dev, &op->desc, &kept, sizeof kept) && kept.epilogue == epilogue) {
        linear->algo = kept.algo;
        linear->workspace = kept.workspace;
        return REN_OK;
    }
    time_offers(dev, lane, op, results, found);
    kept.algo = linear->algo;
    kept.workspace = linear->workspace;
    kept.epilogue = epilogue;
    ren__cuda_tune_remember(dev, &op->desc, &kept, sizeof kept);
    return REN_OK;
}

/* ------------------------------------------------------------------ create */

/* The sum of dy's rows, as an operation behind the product. */
static ren_status sum_apart(ren__device *dev, ren__op *op, ren__op_needs *needs, ren_error *err)
{
    ren__op_desc desc = op->desc;
    memset(desc.operand, 0, sizeof desc.operand);
    desc.kind = REN__OP_BIAS_GRAD;
    desc.operand[0] = op->desc.operand[0];
    desc.operand[1] = op->desc.operand[3];
    return ren__cuda_op_create_within(dev, op->lane, &desc, &op->inner, needs, err);
}

/* Is the library's own sum of dy's rows the faster one? */
static int sums_with_product(const ren__op_desc *desc)
{
    const ren__tensor_desc *dy = &desc->operand[0];
    return dy->dims[0] <= (int64_t)FEW_ROWS && (dy->dtype == REN_F32 || dy->dims[1] % 8 == 0);
}

/* With every epilogue that is wanted, or with the most that the library takes. */
static ren_status choose_epilogue(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                  ren__op_needs *needs, ren_error *err)
{
    ren__cuda_linear *linear = &op->u.linear;
    const ren__op_desc *desc = &op->desc;
    int forward = desc->kind == REN__OP_LINEAR_FWD;
    int bias = linear->bias_operand < REN__OPERANDS;
    int act = forward && desc->fused_activation;
    ren_status status = REN_ERR_UNSUPPORTED;
    if (forward || !bias || sums_with_product(desc)) {
        status = choose(dev, lane, op, epilogue_of(desc, bias, act), err);
    }
    if (status == REN_ERR_UNSUPPORTED && forward && ren__op_halves(desc)) {
        return status;
    }
    if (status == REN_ERR_UNSUPPORTED && act) {
        linear->then_act = 1;
        status = choose(dev, lane, op, epilogue_of(desc, bias, 0), err);
    }
    if (status == REN_ERR_UNSUPPORTED && bias) {
        linear->then_bias = forward ? 1u : 0u;
        linear->bias_operand = REN__OPERANDS;
        status = choose(dev, lane, op, CUBLASLT_EPILOGUE_DEFAULT, err);
        if (status == REN_OK && !forward) {
            status = sum_apart(dev, op, needs, err);
        }
    }
    return status;
}

static int is_slim(const ren__op_desc *desc)
{
    const ren__tensor_desc *o = desc->operand;
    return desc->kind == REN__OP_LINEAR_BWD_WEIGHT && o[2].dtype == REN_F32 &&
           o[0].dtype == o[1].dtype &&
           ren__cuda_k_slim_takes((uint64_t)o[1].dims[1], (uint64_t)o[0].dims[1]);
}

static void slim_create(ren__device *dev, ren__op *op, ren__op_needs *needs)
{
    ren__slim n = slim_of(op);
    op->ticket = ren__cuda_ticket_take(dev);
    op->launch = slim_launch;
    needs->workspace_bytes = ren__cuda_k_slim_scratch(&n);
    needs->commands = 2;
}

ren_status ren__cuda_linear_create(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                   ren__op_needs *needs, ren_error *err)
{
    ren__cuda_linear *linear = &op->u.linear;
    product p = product_of(&op->desc);
    ren__op_needs of_sum;
    cudaDataType_t type;
    cudaDataType_t of_d = CUDA_R_32F;
    ren_status status = data_type(op->desc.operand[0].dtype, &type);
    if (status == REN_OK) {
        status = data_type(op->desc.operand[p.d].dtype, &of_d);
    }
    if (status == REN_OK && is_slim(&op->desc)) {
        slim_create(dev, op, needs);
        return REN_OK;
    }
    memset(&of_sum, 0, sizeof of_sum);
    op->launch = linear_launch;
    op->destroy = linear_destroy;
    linear->bias_operand = p.bias;
    linear->d_operand = p.d;
    if (status != REN_OK) {
        return ren__cuda_error(err, status, 0, __FILE__, __LINE__,
                               "linear layers take f32, f16 or bf16");
    }
    if (!lane->blas) {
        status = REN__BLAS(dev, err, cublasLtCreate(&lane->blas));
    }
    if (status == REN_OK) {
        status = describe(dev, linear, &op->desc, &p, type, of_d, err);
    }
    if (status == REN_OK) {
        status = choose_epilogue(dev, lane, op, &of_sum, err);
    }
    /* The sum runs behind the product and may write over its workspace. */
    needs->workspace_bytes =
        linear->workspace > of_sum.workspace_bytes ? linear->workspace : of_sum.workspace_bytes;
    needs->commands = 3u + linear->then_bias + linear->then_act + of_sum.commands;
    return status;
}
