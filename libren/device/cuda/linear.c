/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/linear.c - the three matrix products of a linear layer, through cuBLASLt.
 *
 * Purpose   y[N,O] = x[N,I] W[O,I]^T + b,  dx[N,I] = dy[N,O] W[O,I],  dW[O,I] = dy[N,O]^T x[N,I].
 * Layout    cuBLASLt counts columns first, so a row-major matrix [R,C] is to it a matrix of C rows
 *           and R columns: each product is computed transposed, with its factors exchanged.
 *             forward      y^T[O,N]  = W[O,I]     x^T[I,N]    a = W transposed, b = x
 *             data         dx^T[I,N] = W^T[I,O]   dy^T[O,N]   a = W,            b = dy
 *             weight       dW^T[I,O] = x^T[I,N]   dy[N,O]     a = x,            b = dy transposed
 * Numbers   f32 is computed in f32 (CUBLAS_COMPUTE_32F, never TF32); f16 and bf16 accumulate in
 *           f32.
 * Order     the algorithm is the library's first choice for the shape; with `deterministic` only
 *           those that do not split the sum over blocks.
 * Memory    the workspace that the algorithm wants, at most LINEAR_WORKSPACE.
 */
#include <string.h>

#include "internal.h"

#define LINEAR_WORKSPACE (8u << 20) /* bytes */

/* Operand 1 is always the library's first factor and operand 0 its second one. */
typedef struct product {
    uint32_t d;    /* the operand that is written */
    int ta, tb;    /* transposed? */
    uint32_t bias; /* operand, or REN__OPERANDS for none */
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
    p.bias = forward && desc->operand[2].rank ? 2u : REN__OPERANDS;
    p.rows_a = last_dim(&desc->operand[1]);
    p.columns_a = ren__tensor_elements(&desc->operand[1]) / p.rows_a;
    p.rows_b = last_dim(&desc->operand[0]);
    p.columns_b = ren__tensor_elements(&desc->operand[0]) / p.rows_b;
    p.rows_d = last_dim(&desc->operand[p.d]);
    p.columns_d = ren__tensor_elements(&desc->operand[p.d]) / p.rows_d;
    return p;
}

static ren_status linear_launch(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                void *const operands[REN__OPERANDS], void *workspace)
{
    ren__cuda_linear *linear = &op->u.linear;
    product p = product_of(&op->desc);
    const float one = 1.0f;
    const float zero = 0.0f;
    if (p.bias < REN__OPERANDS) {
        const void *bias = operands[p.bias];
        ren_status status =
            REN__BLAS(dev, NULL,
                      cublasLtMatmulDescSetAttribute(
                          linear->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
        if (status != REN_OK) {
            return status;
        }
    }
    return REN__BLAS(dev, NULL,
                     cublasLtMatmul(lane->blas, linear->matmul, &one, operands[1], linear->a,
                                    operands[0], linear->b, &zero, operands[p.d], linear->d,
                                    operands[p.d], linear->d, &linear->algo, workspace,
                                    (size_t)linear->workspace, lane->stream));
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

static ren_status describe(ren__device *dev, ren__cuda_linear *linear, const ren__op_desc *desc,
                           const product *p, cudaDataType_t type, cudaDataType_t of_d,
                           ren_error *err)
{
    const int32_t transposed = CUBLAS_OP_T;
    ren_status status = REN__BLAS(
        dev, err, cublasLtMatmulDescCreate(&linear->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    if (status == REN_OK && p->ta) {
        status =
            REN__BLAS(dev, err,
                      cublasLtMatmulDescSetAttribute(linear->matmul, CUBLASLT_MATMUL_DESC_TRANSA,
                                                     &transposed, sizeof transposed));
    }
    if (status == REN_OK && p->tb) {
        status =
            REN__BLAS(dev, err,
                      cublasLtMatmulDescSetAttribute(linear->matmul, CUBLASLT_MATMUL_DESC_TRANSB,
                                                     &transposed, sizeof transposed));
    }
    if (status == REN_OK && p->bias < REN__OPERANDS) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        cudaDataType_t bias_type;
        status = data_type(desc->operand[p->bias].dtype, &bias_type);
        if (status == REN_OK) {
            int32_t value = (int32_t)bias_type;
            status = REN__BLAS(dev, err,
                               cublasLtMatmulDescSetAttribute(linear->matmul,
                                                              CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                              &value, sizeof value));
        }
        if (status == REN_OK) {
            status = REN__BLAS(dev, err,
                               cublasLtMatmulDescSetAttribute(linear->matmul,
                                                              CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                              &epilogue, sizeof epilogue));
        }
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

static ren_status choose(ren__device *dev, ren__cuda_lane *lane, ren__cuda_linear *linear,
                         ren_error *err)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result;
    const uint64_t limit = LINEAR_WORKSPACE;
    const uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE;
    int found = 0;
    ren_status status = REN__BLAS(dev, err, cublasLtMatmulPreferenceCreate(&preference));
    if (status == REN_OK) {
        status = REN__BLAS(
            dev, err,
            cublasLtMatmulPreferenceSetAttribute(
                preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
    }
    if (status == REN_OK && dev->deterministic) {
        status = REN__BLAS(dev, err,
                           cublasLtMatmulPreferenceSetAttribute(
                               preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_split,
                               sizeof no_split));
    }
    memset(&result, 0, sizeof result);
    if (status == REN_OK) {
        status = REN__BLAS(dev, err,
                           cublasLtMatmulAlgoGetHeuristic(lane->blas, linear->matmul, linear->a,
                                                          linear->b, linear->d, linear->d,
                                                          preference, 1, &result, &found));
    }
    if (preference) {
        (void)cublasLtMatmulPreferenceDestroy(preference);
    }
    if (status == REN_OK && found < 1) {
        status = ren__cuda_error(err, REN_ERR_UNSUPPORTED, 0, __FILE__, __LINE__,
                                 "cuBLASLt has no algorithm for this matrix product");
    }
    linear->algo = result.algo;
    linear->workspace = result.workspaceSize;
    return status;
}

ren_status ren__cuda_linear_create(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                   ren__op_needs *needs, ren_error *err)
{
    ren__cuda_linear *linear = &op->u.linear;
    product p = product_of(&op->desc);
    cudaDataType_t type;
    cudaDataType_t of_d = CUDA_R_32F;
    ren_status status = data_type(op->desc.operand[0].dtype, &type);
    if (status == REN_OK) {
        status = data_type(op->desc.operand[p.d].dtype, &of_d);
    }
    op->launch = linear_launch;
    op->destroy = linear_destroy;
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
        status = choose(dev, lane, linear, err);
    }
    needs->workspace_bytes = linear->workspace;
    needs->commands = 3;
    return status;
}
