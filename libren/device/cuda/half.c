/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/half.c - operations on f16 and bf16 that are computed in another dtype.
 *
 * Purpose   Matrix products and convolutions go to the libraries in 16 bits, and kernels of ours
 *           read and write what dtype the tensors have, if it is one for all. What is left is
 *           computed in f32: operands are widened into the workspace, and what the operation wrote
 *           there is rounded. The gradient of a weight is wanted in f32: the libraries write it so,
 *           or what they write is widened (dnn.h).
 * Fallback  A convolution that cuDNN refuses in 16 bits is computed in f32 as well.
 * Threads   create: any, serialised; launch: the submitter.
 * Memory    copies of the operands in the workspace, then the inner operation's own.
 */
#include "internal.h"
#include "kernels.h"

static int is_product(ren__op_kind kind)
{
    return kind == REN__OP_LINEAR_FWD || kind == REN__OP_LINEAR_BWD_DATA ||
           kind == REN__OP_LINEAR_BWD_WEIGHT || kind == REN__OP_CONV_FWD ||
           kind == REN__OP_CONV_BWD_DATA || kind == REN__OP_CONV_BWD_WEIGHT;
}

/* A convolution whose bias and whose weight gradient are of any dtype. */
static int conv_is_native(const ren__op_desc *desc, uint32_t halves)
{
    uint32_t others = desc->kind == REN__OP_CONV_FWD          ? 1u << 3
                      : desc->kind == REN__OP_CONV_BWD_DATA   ? 1u << 2
                      : desc->kind == REN__OP_CONV_BWD_WEIGHT ? 0u
                                                              : ~0u;
    return (halves & (3u | others)) == (3u | others);
}

int ren__cuda_half_inner(const ren__op_desc *desc, int refused, ren__op_desc *out)
{
    uint32_t halves = ren__op_halves(desc);
    uint32_t all = 0;
    if (!halves || desc->kind > REN__OP_SPLIT) {
        return 0;
    }
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        all |= desc->operand[i].rank ? 1u << i : 0u;
    }
    *out = *desc;
    if (!is_product(desc->kind) && !refused) {
        return 0; /* kernels of ours take one dtype for all tensors, whichever it is */
    }
    if (desc->kind == REN__OP_LINEAR_BWD_WEIGHT && !refused && (halves & 3u) == 3u) {
        return 0;
    }
    if (conv_is_native(desc, halves) && !refused) {
        return 0;
    }
    if (is_product(desc->kind) && !refused) {
        for (uint32_t i = 0; i < REN__OPERANDS; i++) {
            int sum = desc->kind == REN__OP_LINEAR_BWD_WEIGHT && i == 3u;
            out->operand[i].dtype = sum ? REN_F32 : desc->operand[0].dtype;
        }
        return halves != all && (halves & 1u);
    }
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (halves >> i & 1u) {
            out->operand[i].dtype = REN_F32;
        }
    }
    return 1;
}

static ren_status cast(ren__device *dev, ren__cuda_lane *lane, const ren__tensor_desc *from,
                       const void *x, const ren__tensor_desc *to, void *y)
{
    return REN__CUDA(
        dev, NULL,
        ren__cuda_k_cast(lane->stream, from->dtype, x, to->dtype, y, ren__tensor_elements(from)));
}

static ren_status launch(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                         void *const operands[REN__OPERANDS], void *workspace)
{
    const ren__cuda_half *half = &op->u.half;
    const ren__op_desc *inner = &op->inner->desc;
    unsigned char *bytes = workspace;
    void *full[REN__OPERANDS];
    ren_status status = REN_OK;
    for (uint32_t i = 0; i < REN__OPERANDS && status == REN_OK; i++) {
        full[i] = half->casts >> i & 1u ? bytes + half->offset[i] : operands[i];
        if ((half->casts & ~half->written) >> i & 1u) {
            status =
                cast(dev, lane, &op->desc.operand[i], operands[i], &inner->operand[i], full[i]);
        }
    }
    if (status == REN_OK) {
        status = op->inner->launch(dev, lane, op->inner, full, bytes + half->own);
    }
    for (uint32_t i = 0; i < REN__OPERANDS && status == REN_OK; i++) {
        if ((half->casts & half->written) >> i & 1u) {
            status =
                cast(dev, lane, &inner->operand[i], full[i], &op->desc.operand[i], operands[i]);
        }
    }
    return status;
}

void ren__cuda_half_wrap(ren__op *op, ren__op_needs *needs)
{
    ren__cuda_half *half = &op->u.half;
    const ren__op_desc *inner = &op->inner->desc;
    uint64_t at = 0;
    half->written = ren__op_written(&op->desc);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (op->desc.operand[i].rank && op->desc.operand[i].dtype != inner->operand[i].dtype) {
            half->casts |= 1u << i;
            half->offset[i] = at;
            at +=
                (ren__tensor_bytes(&inner->operand[i]) + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
            needs->commands++;
        }
    }
    half->own = at;
    needs->workspace_bytes += at;
    op->launch = launch;
}
