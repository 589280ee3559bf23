/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/op_half.c - operations on tensors of f16 or bf16, computed in f32.
 *
 * Purpose   Few CPUs compute with 16-bit floats, so such tensors are only stored: operands are
 *           widened into the workspace, the operation runs on them in f32, and what it wrote is
 *           rounded to nearest even. Values are those of a device that accumulates in f32.
 * Threads   as op.h says.
 * Memory    the workspace holds an f32 copy of each such operand, then the operation's own.
 */
#include "op.h"

/* Optimizers and the like are f32 alone; their own checks say so. */
bool ren__cpu_is_half(const ren__op_desc *desc)
{
    return ren__op_halves(desc) != 0 && desc->kind <= REN__OP_HUBER_BWD;
}

ren_status ren__cpu_half_create(ren__device *dev, ren__op *op, ren__op_needs *needs, ren_error *err)
{
    ren__op_desc full = op->desc;
    uint64_t at = 0;
    op->written = ren__op_written(&op->desc);
    op->halves = ren__op_halves(&op->desc);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (op->halves & 1u << i) {
            full.operand[i].dtype = REN_F32;
            op->full_offset[i] = at;
            at += (ren__tensor_bytes(&full.operand[i]) + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
        }
    }
    REN__TRY(ren__cpu_op_create(dev, 0, &full, &op->full, needs, err));
    op->own_offset = at;
    needs->workspace_bytes += at;
    return REN_OK;
}

ren_status ren__cpu_half_run(ren__op *op, dnnl_stream_t stream, void *const *operands,
                             unsigned char *workspace)
{
    void *full[REN__OPERANDS];
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        const ren__tensor_desc *t = &op->desc.operand[i];
        full[i] = operands[i];
        if (op->halves & 1u << i) {
            full[i] = workspace + op->full_offset[i];
        }
        if (op->halves & ~op->written & 1u << i) {
            ren__cpu_cast(full[i], REN_F32, operands[i], t->dtype, (size_t)ren__tensor_elements(t));
        }
    }
    REN__TRY(ren__cpu_op_run(op->full, stream, full, workspace + op->own_offset));
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        const ren__tensor_desc *t = &op->desc.operand[i];
        if (op->halves & op->written & 1u << i) {
            ren__cpu_cast(operands[i], t->dtype, full[i], REN_F32, (size_t)ren__tensor_elements(t));
        }
    }
    return REN_OK;
}
