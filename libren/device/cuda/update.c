/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/update.c - the check of the gradients and the optimizers, as operations.
 *
 * Purpose   Maps descriptor and operands to the launchers of train.cu.
 * Threads   create: any, serialised; launch: the submitter.
 */
#include <string.h>

#include "internal.h"
#include "kernels.h"

static ren__update update_of(const ren__op *op, void *const o[REN__OPERANDS])
{
    ren__update u;
    memset(&u, 0, sizeof u);
    u.kind = op->desc.kind;
    u.dynamic_scale = op->desc.dynamic_scale;
    u.gradient = o[0];
    u.control = o[1];
    u.state = o[2];
    u.n = ren__tensor_elements(&op->desc.operand[0]);
    u.parameter = o[3];
    u.ticket = op->ticket;
    switch (op->desc.kind) {
    case REN__OP_ADVANCE:
        u.gradient = NULL;
        u.control = o[0];
        u.state = o[1];
        u.parameter = NULL;
        break;
    case REN__OP_CHECK:
        u.parameter = NULL;
        break;
    case REN__OP_SGD:
        u.first = op->desc.operand[4].rank ? o[4] : NULL;
        break;
    case REN__OP_LARS:
        u.first = o[4];
        break;
    case REN__OP_ADAM:
    case REN__OP_ADAMW:
        u.first = o[4];
        u.second = o[5];
        u.count = op->desc.operand[6].rank ? o[6] : NULL;
        break;
    case REN__OP_COMMIT:
        u.control = NULL;
        u.state = o[1];
        u.parameter = o[2];
        break;
    default:
        break;
    }
    return u;
}

static ren_status launch(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                         void *const operands[REN__OPERANDS], void *workspace)
{
    ren__update u = update_of(op, operands);
    switch (op->desc.kind) {
    case REN__OP_CHECK:
        return REN__CUDA(dev, NULL, ren__cuda_k_check(lane->stream, &u, workspace));
    case REN__OP_ADVANCE:
        return REN__CUDA(dev, NULL, ren__cuda_k_advance(lane->stream, &u));
    case REN__OP_LARS:
        return REN__CUDA(dev, NULL, ren__cuda_k_lars(lane->stream, &u, workspace));
    default:
        return REN__CUDA(dev, NULL, ren__cuda_k_update(lane->stream, &u));
    }
}

ren_status ren__cuda_train_create(ren__device *dev, ren__op *op, ren__op_needs *needs,
                                  ren_error *err)
{
    uint64_t n = ren__tensor_elements(&op->desc.operand[0]);
    (void)err;
    op->launch = launch;
    if (op->desc.kind == REN__OP_CHECK) {
        op->ticket = ren__cuda_ticket_take(dev);
        needs->workspace_bytes = ren__cuda_k_check_scratch(n);
        needs->commands = 2;
    } else if (op->desc.kind == REN__OP_LARS) {
        needs->workspace_bytes = ren__cuda_k_lars_scratch(n);
        needs->commands = 2;
    } else if (op->desc.operand[6].rank) {
        op->ticket = ren__cuda_ticket_take(dev);
        needs->commands = 2;
    }
    return REN_OK;
}
