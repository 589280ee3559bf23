/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/conv.c - convolutions through cuDNN, with kernels of our own behind it.
 *
 * Purpose   Forward with bias and ReLU, data gradient and weight gradient, in NHWC with weights
 *           OHWI: an operation is a plan of the library (dnn.h) and the addresses of its launch.
 * Fallback  Where cuDNN has no engine for a shape, the direct kernels of conv.cu compute it in f32:
 *           slower, for any shape, with no workspace. In half precision the operation is refused,
 *           and half.c casts around one in f32.
 * Numbers   f32 is computed in f32, or with allow_tf32 from factors rounded to TF32; f16 and bf16
 *           accumulate in f32.
 */
#include <string.h>

#include "dnn.h"

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

static int has_bias(const ren__op_desc *desc)
{
    return desc->kind == REN__OP_CONV_FWD && desc->operand[2].rank != 0;
}

static int has_relu(const ren__op_desc *desc)
{
    return desc->kind == REN__OP_CONV_FWD && desc->fused_activation;
}

/* ------------------------------------------------------------------ launch */

static ren_status launch_plan(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                              void *const operands[REN__OPERANDS], void *workspace)
{
    ren__cuda_dnn_plan *plan = op->u.conv.plan;
    ren_status status = ren__cuda_graph_hold(dev, plan);
    if (status != REN_OK) {
        return status;
    }
    roles r = roles_of(op->desc.kind);
    void *bound[REN__DNN_OPERANDS] = {operands[r.x], operands[r.w], operands[r.y],
                                      has_bias(&op->desc) ? operands[2] : NULL};
    return ren__cuda_dnn_execute(dev, lane->cudnn, lane->stream, &plan->signature, &plan->choice,
                                 &op->u.conv.pack, bound, workspace);
}

static ren_status launch_direct(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                void *const operands[REN__OPERANDS], void *workspace)
{
    const ren__op_desc *desc = &op->desc;
    ren__conv_shape shape = ren__cuda_dnn_shape(&op->u.conv.plan->signature);
    cudaStream_t stream = lane->stream;
    ren_status status;
    (void)workspace;
    switch (desc->kind) {
    case REN__OP_CONV_FWD:
        status = REN__CUDA(
            dev, NULL,
            ren__cuda_k_conv_forward(stream, &shape, operands[0], operands[1], operands[3]));
        break;
    case REN__OP_CONV_BWD_DATA:
        return REN__CUDA(
            dev, NULL,
            ren__cuda_k_conv_data(stream, &shape, operands[0], operands[1], operands[2]));
    default:
        return REN__CUDA(
            dev, NULL,
            ren__cuda_k_conv_weight(stream, &shape, operands[0], operands[1], operands[2]));
    }
    if (status == REN_OK && (has_bias(desc) || has_relu(desc))) {
        status = REN__CUDA(dev, NULL,
                           ren__cuda_k_bias_act(stream, REN_F32, operands[3], REN_F32,
                                                has_bias(desc) ? operands[2] : NULL, has_relu(desc),
                                                ren__tensor_elements(&desc->operand[3]),
                                                (uint64_t)desc->operand[3].dims[3]));
    }
    return status;
}

static void conv_destroy(ren__op *op)
{
    ren__cuda_dnn_pack_free(&op->u.conv.pack);
    ren__cuda_dnn_give(op->u.conv.plan);
}

/* ------------------------------------------------------------------ create */

static ren_status open_handle(ren__device *dev, ren__cuda_lane *lane, ren_error *err)
{
    cudnnHandle_t handle = NULL;
    ren_status status;
    if (lane->cudnn) {
        return REN_OK;
    }
    status = REN__DNN(dev, err, cudnnCreate(&handle));
    if (status == REN_OK) {
        status = REN__DNN(dev, err, cudnnSetStream(handle, lane->stream));
    }
    if (status == REN_OK) {
        lane->cudnn = handle;
    } else if (handle) {
        (void)cudnnDestroy(handle);
    }
    return status;
}

static ren__cuda_dnn_signature signature_of(const ren__op_desc *desc)
{
    roles r = roles_of(desc->kind);
    uint32_t written = desc->kind == REN__OP_CONV_FWD ? 3u : 2u;
    ren__cuda_dnn_signature s;
    memset(&s, 0, sizeof s);
    s.kind = desc->kind;
    s.type = desc->operand[0].dtype;
    s.out = desc->operand[written].dtype;
    s.has_bias = has_bias(desc) ? 1u : 0u;
    s.bias = s.has_bias ? desc->operand[2].dtype : REN_F32;
    s.has_relu = has_relu(desc) ? 1u : 0u;
    s.tf32 = s.type == REN_F32 && desc->allow_tf32 ? 1u : 0u;
    for (uint32_t i = 0; i < 2; i++) {
        s.stride[i] = desc->stride[i];
        s.padding[i] = desc->padding[i];
        s.dilation[i] = desc->dilation[i];
    }
    for (uint32_t i = 0; i < 4; i++) {
        s.x[i] = desc->operand[r.x].dims[i];
        s.w[i] = desc->operand[r.w].dims[i];
        s.y[i] = desc->operand[r.y].dims[i];
    }
    return s;
}

ren_status ren__cuda_conv_create(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                 ren__op_needs *needs, ren_error *err)
{
    ren__cuda_dnn_signature s = signature_of(&op->desc);
    ren_status status = open_handle(dev, lane, err);
    op->destroy = conv_destroy;
    if (status == REN_OK) {
        status = ren__cuda_dnn_take(dev, &s, &op->u.conv.plan, err);
    }
    if (status != REN_OK) {
        return status;
    }
    if (ren__cuda_dnn_is_served(&op->u.conv.plan->choice)) {
        op->launch = launch_plan;
        needs->workspace_bytes = op->u.conv.plan->choice.workspace_bytes;
        needs->commands = 10; /* layout changes, the product, its reduction, what follows */
        return REN_OK;
    }
    if (s.type != REN_F32) {
        return ren__cuda_error(err, REN_ERR_UNSUPPORTED, 0, __FILE__, __LINE__,
                               "cuDNN has no engine for this convolution in half precision");
    }
    op->launch = launch_direct;
    needs->commands = 2;
    return REN_OK;
}
