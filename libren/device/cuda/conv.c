/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/conv.c - convolutions through cuDNN, with kernels of our own behind it.
 *
 * Purpose   Forward, data gradient and weight gradient in NHWC with weights OHWI. cuDNN's classic
 *           convolution calls take that layout for f32, f16 and bf16, are capturable, and report
 *           for every algorithm whether it is deterministic.
 * Choice    The library's heuristics rank the algorithms; taken is the first that sums in a fixed
 *           order, is a matrix product (Winograd and FFT lose digits that f32 should keep), fits
 *           into CONV_WORKSPACE, and whose workspace the library can name. Without `deterministic`
 *           a sum in any order will do when there is no other.
 * Fallback  Where cuDNN has no such algorithm for a shape, the direct kernels of conv.cu compute
 *           it: slower, for any shape, with no workspace. A call that is refused only at its first
 *           launch changes the operation over for good; a refusal enqueues nothing, so the launch
 *           is still done once, and it depends on the shape alone.
 * Numbers   f32 is computed in f32 (CUDNN_FMA_MATH, never TF32); f16 and bf16 accumulate in f32.
 */
#include <string.h>

#include "internal.h"
#include "kernels.h"

#define CONV_WORKSPACE  (256u << 20) /* bytes */
#define CONV_ALGORITHMS 8

/* What the operands are, for each of the three kinds. */
typedef struct roles {
    uint32_t x, w, y;
} roles;

static roles roles_of(ren__op_kind kind)
{
    roles r = {0, 1, 3};
    if (kind == REN__OP_CONV_BWD_DATA) {
        r = (roles){2, 1, 0};
    } else if (kind == REN__OP_CONV_BWD_WEIGHT) {
        r = (roles){1, 2, 0};
    }
    return r;
}

static ren__conv_shape shape_of(const ren__op_desc *desc)
{
    roles r = roles_of(desc->kind);
    const int64_t *x = desc->operand[r.x].dims;
    const int64_t *y = desc->operand[r.y].dims;
    ren__conv_shape s;
    s.n = (int)x[0];
    s.h = (int)x[1];
    s.w = (int)x[2];
    s.c = (int)x[3];
    s.ho = (int)y[1];
    s.wo = (int)y[2];
    s.o = (int)y[3];
    s.kh = (int)desc->kernel[0];
    s.kw = (int)desc->kernel[1];
    s.sh = (int)desc->stride[0];
    s.sw = (int)desc->stride[1];
    s.ph = (int)desc->padding[0];
    s.pw = (int)desc->padding[1];
    s.dh = (int)desc->dilation[0];
    s.dw = (int)desc->dilation[1];
    s.groups = (int)desc->groups;
    return s;
}

/* ------------------------------------------------------------------ launch */

static cudnnStatus_t call_library(ren__cuda_lane *lane, ren__op *op,
                                  void *const operands[REN__OPERANDS], void *workspace)
{
    const float one = 1.0f;
    const float zero = 0.0f;
    const ren__cuda_conv *conv = &op->u.conv;
    size_t bytes = (size_t)conv->workspace;
    switch (op->desc.kind) {
    case REN__OP_CONV_FWD:
        return cudnnConvolutionForward(
            lane->cudnn, &one, conv->x, operands[0], conv->w, operands[1], conv->conv,
            (cudnnConvolutionFwdAlgo_t)conv->algo, workspace, bytes, &zero, conv->y, operands[3]);
    case REN__OP_CONV_BWD_DATA:
        return cudnnConvolutionBackwardData(lane->cudnn, &one, conv->w, operands[1], conv->y,
                                            operands[0], conv->conv,
                                            (cudnnConvolutionBwdDataAlgo_t)conv->algo, workspace,
                                            bytes, &zero, conv->x, operands[2]);
    default:
        return cudnnConvolutionBackwardFilter(lane->cudnn, &one, conv->x, operands[1], conv->y,
                                              operands[0], conv->conv,
                                              (cudnnConvolutionBwdFilterAlgo_t)conv->algo,
                                              workspace, bytes, &zero, conv->w, operands[2]);
    }
}

static cudaError_t call_direct(cudaStream_t stream, const ren__op_desc *desc,
                               void *const operands[REN__OPERANDS])
{
    ren__conv_shape shape = shape_of(desc);
    switch (desc->kind) {
    case REN__OP_CONV_FWD:
        return ren__cuda_k_conv_forward(stream, &shape, operands[0], operands[1], operands[3]);
    case REN__OP_CONV_BWD_DATA:
        return ren__cuda_k_conv_data(stream, &shape, operands[0], operands[1], operands[2]);
    default:
        return ren__cuda_k_conv_weight(stream, &shape, operands[0], operands[1], operands[2]);
    }
}

static int refused(cudnnStatus_t code)
{
    int group = (int)code / 1000; /* 2: bad parameter, 3: not supported */
    return group == 2 || group == 3;
}

static ren_status conv_launch(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                              void *const operands[REN__OPERANDS], void *workspace)
{
    ren__cuda_conv *conv = &op->u.conv;
    ren_status status = REN_OK;
    if (!conv->direct) {
        cudnnStatus_t code = call_library(lane, op, operands, workspace);
        if (refused(code) && op->desc.operand[0].dtype == REN_F32) {
            conv->direct = 1;
            if (dev->host.log) {
                dev->host.log(dev->host.user, REN_LOG_INFO,
                              "cuDNN refused a convolution: the direct kernels compute it");
            }
        } else {
            status = REN__DNN(dev, NULL, code);
        }
    }
    if (status == REN_OK && conv->direct) {
        status = REN__CUDA(dev, NULL, call_direct(lane->stream, &op->desc, operands));
    }
    if (status == REN_OK && op->desc.kind == REN__OP_CONV_FWD && op->desc.operand[2].rank) {
        uint64_t channels = (uint64_t)op->desc.operand[3].dims[3];
        status =
            REN__CUDA(dev, NULL,
                      ren__cuda_k_bias_add(lane->stream, operands[3], operands[2],
                                           ren__tensor_elements(&op->desc.operand[3]), channels));
    }
    return status;
}

static void conv_destroy(ren__op *op)
{
    ren__cuda_conv *conv = &op->u.conv;
    if (conv->x) {
        (void)cudnnDestroyTensorDescriptor(conv->x);
    }
    if (conv->y) {
        (void)cudnnDestroyTensorDescriptor(conv->y);
    }
    if (conv->w) {
        (void)cudnnDestroyFilterDescriptor(conv->w);
    }
    if (conv->conv) {
        (void)cudnnDestroyConvolutionDescriptor(conv->conv);
    }
}

/* ------------------------------------------------------------------ create */

static ren_status open_handles(ren__device *dev, ren__cuda_lane *lane, ren_error *err)
{
    ren_status status = REN_OK;
    if (!dev->planner) {
        status = REN__DNN(dev, err, cudnnCreate(&dev->planner));
    }
    if (status == REN_OK && !lane->cudnn) {
        cudnnHandle_t handle = NULL;
        status = REN__DNN(dev, err, cudnnCreate(&handle));
        if (status == REN_OK) {
            status = REN__DNN(dev, err, cudnnSetStream(handle, lane->stream));
        }
        if (status == REN_OK) {
            lane->cudnn = handle;
        } else if (handle) {
            (void)cudnnDestroy(handle);
        }
    }
    return status;
}

static ren_status tensor(ren__device *dev, cudnnTensorDescriptor_t *out, cudnnDataType_t type,
                         const ren__tensor_desc *t, ren_error *err)
{
    ren_status status = REN__DNN(dev, err, cudnnCreateTensorDescriptor(out));
    if (status == REN_OK) {
        status =
            REN__DNN(dev, err,
                     cudnnSetTensor4dDescriptor(*out, CUDNN_TENSOR_NHWC, type, (int)t->dims[0],
                                                (int)t->dims[3], (int)t->dims[1], (int)t->dims[2]));
    }
    return status;
}

static ren_status describe(ren__device *dev, ren__op *op, cudnnDataType_t type, ren_error *err)
{
    ren__cuda_conv *conv = &op->u.conv;
    const ren__op_desc *desc = &op->desc;
    roles r = roles_of(desc->kind);
    ren__conv_shape s = shape_of(desc);
    ren_status status = tensor(dev, &conv->x, type, &desc->operand[r.x], err);
    if (status == REN_OK) {
        status = tensor(dev, &conv->y, type, &desc->operand[r.y], err);
    }
    if (status == REN_OK) {
        status = REN__DNN(dev, err, cudnnCreateFilterDescriptor(&conv->w));
    }
    if (status == REN_OK) {
        status = REN__DNN(dev, err,
                          cudnnSetFilter4dDescriptor(conv->w, type, CUDNN_TENSOR_NHWC, s.o,
                                                     s.c / s.groups, s.kh, s.kw));
    }
    if (status == REN_OK) {
        status = REN__DNN(dev, err, cudnnCreateConvolutionDescriptor(&conv->conv));
    }
    if (status == REN_OK) {
        status =
            REN__DNN(dev, err,
                     cudnnSetConvolution2dDescriptor(conv->conv, s.ph, s.pw, s.sh, s.sw, s.dh, s.dw,
                                                     CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    }
    if (status == REN_OK) {
        status = REN__DNN(dev, err, cudnnSetConvolutionGroupCount(conv->conv, s.groups));
    }
    if (status == REN_OK) {
        status = REN__DNN(dev, err,
                          cudnnSetConvolutionMathType(conv->conv, type == CUDNN_DATA_FLOAT
                                                                      ? CUDNN_FMA_MATH
                                                                      : CUDNN_TENSOR_OP_MATH));
    }
    return status;
}

/* The three kinds have three structs of one shape; this is what is read of them. */
typedef struct candidate {
    int algo;
    int usable;
    int deterministic;
    size_t bytes;
} candidate;

static int is_product(ren__op_kind kind, int algo)
{
    switch (kind) {
    case REN__OP_CONV_FWD:
        return algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ||
               algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ||
               algo == CUDNN_CONVOLUTION_FWD_ALGO_GEMM;
    case REN__OP_CONV_BWD_DATA:
        return algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 ||
               algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    default:
        return algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 ||
               algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 ||
               algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3;
    }
}

/* The library's ranking; its failure means that it has nothing for this shape. */
static int rank_algorithms(cudnnHandle_t handle, const ren__op *op, candidate out[CONV_ALGORITHMS])
{
    const ren__cuda_conv *c = &op->u.conv;
    union {
        cudnnConvolutionFwdAlgoPerf_t forward[CONV_ALGORITHMS];
        cudnnConvolutionBwdDataAlgoPerf_t data[CONV_ALGORITHMS];
        cudnnConvolutionBwdFilterAlgoPerf_t weight[CONV_ALGORITHMS];
    } u;
    int count = 0;
    cudnnStatus_t code;
    memset(&u, 0, sizeof u);
    if (op->desc.kind == REN__OP_CONV_FWD) {
        code = cudnnGetConvolutionForwardAlgorithm_v7(handle, c->x, c->w, c->conv, c->y,
                                                      CONV_ALGORITHMS, &count, u.forward);
    } else if (op->desc.kind == REN__OP_CONV_BWD_DATA) {
        code = cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, c->w, c->y, c->conv, c->x,
                                                           CONV_ALGORITHMS, &count, u.data);
    } else {
        code = cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, c->x, c->y, c->conv, c->w,
                                                             CONV_ALGORITHMS, &count, u.weight);
    }
    if (code != CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        candidate *to = &out[i];
        if (op->desc.kind == REN__OP_CONV_FWD) {
            *to = (candidate){(int)u.forward[i].algo, u.forward[i].status == CUDNN_STATUS_SUCCESS,
                              u.forward[i].determinism == CUDNN_DETERMINISTIC, 0};
        } else if (op->desc.kind == REN__OP_CONV_BWD_DATA) {
            *to = (candidate){(int)u.data[i].algo, u.data[i].status == CUDNN_STATUS_SUCCESS,
                              u.data[i].determinism == CUDNN_DETERMINISTIC, 0};
        } else {
            *to = (candidate){(int)u.weight[i].algo, u.weight[i].status == CUDNN_STATUS_SUCCESS,
                              u.weight[i].determinism == CUDNN_DETERMINISTIC, 0};
        }
    }
    return count;
}

static cudnnStatus_t workspace_of(cudnnHandle_t handle, const ren__op *op, candidate *which)
{
    const ren__cuda_conv *c = &op->u.conv;
    switch (op->desc.kind) {
    case REN__OP_CONV_FWD:
        return cudnnGetConvolutionForwardWorkspaceSize(handle, c->x, c->w, c->conv, c->y,
                                                       (cudnnConvolutionFwdAlgo_t)which->algo,
                                                       &which->bytes);
    case REN__OP_CONV_BWD_DATA:
        return cudnnGetConvolutionBackwardDataWorkspaceSize(
            handle, c->w, c->y, c->conv, c->x, (cudnnConvolutionBwdDataAlgo_t)which->algo,
            &which->bytes);
    default:
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(
            handle, c->x, c->y, c->conv, c->w, (cudnnConvolutionBwdFilterAlgo_t)which->algo,
            &which->bytes);
    }
}

static void choose(ren__device *dev, ren__op *op)
{
    ren__cuda_conv *conv = &op->u.conv;
    candidate found[CONV_ALGORITHMS];
    int count = rank_algorithms(dev->planner, op, found);
    for (int pass = 0; pass < (dev->deterministic ? 1 : 2); pass++) {
        for (int i = 0; i < count; i++) {
            if (!found[i].usable || !is_product(op->desc.kind, found[i].algo) ||
                found[i].deterministic == pass ||
                workspace_of(dev->planner, op, &found[i]) != CUDNN_STATUS_SUCCESS ||
                found[i].bytes > CONV_WORKSPACE) {
                continue;
            }
            conv->algo = found[i].algo;
            conv->workspace = found[i].bytes;
            return;
        }
    }
    conv->direct = 1;
}

ren_status ren__cuda_conv_create(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                 ren__op_needs *needs, ren_error *err)
{
    ren_dtype dtype = op->desc.operand[0].dtype;
    cudnnDataType_t type = dtype == REN_F16    ? CUDNN_DATA_HALF
                           : dtype == REN_BF16 ? CUDNN_DATA_BFLOAT16
                                               : CUDNN_DATA_FLOAT;
    ren_status status;
    op->launch = conv_launch;
    op->destroy = conv_destroy;
    if (dtype != REN_F32 && op->desc.kind == REN__OP_CONV_FWD && op->desc.operand[2].rank) {
        return ren__cuda_error(err, REN_ERR_UNSUPPORTED, 0, __FILE__, __LINE__,
                               "a convolution's bias is added in f32 only");
    }
    status = open_handles(dev, lane, err);
    if (status == REN_OK) {
        status = describe(dev, op, type, err);
    }
    if (status != REN_OK) {
        return status;
    }
    choose(dev, op);
    if (op->u.conv.direct && dtype != REN_F32) {
        return ren__cuda_error(err, REN_ERR_UNSUPPORTED, 0, __FILE__, __LINE__,
                               "cuDNN has no algorithm for this convolution in half precision");
    }
    if (op->u.conv.direct && dev->host.log) {
        dev->host.log(dev->host.user, REN_LOG_INFO,
                      "cuDNN has no algorithm for a convolution: the direct kernels compute it");
    }
    needs->workspace_bytes = op->u.conv.workspace;
    needs->commands = 8;
    return REN_OK;
}
