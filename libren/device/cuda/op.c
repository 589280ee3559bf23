/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/op.c - resolving and launching operations.
 *
 * Purpose   op_create decides everything once: which library or kernel computes the operation, with
 *           which algorithm and how much workspace. op_launch only enqueues, so it can be captured.
 * Threads   op_create, op_destroy: any, serialised by the device's lock; op_launch: the submitter.
 * Memory    an operation comes from the host's allocator; scratch is the caller's workspace.
 */
#include <string.h>

#include "internal.h"

static ren_status create_locked(ren__device *dev, ren__op *op, ren__op_needs *needs, ren_error *err)
{
    ren__cuda_lane *lane = &dev->lane[op->lane];
    switch (op->desc.kind) {
    case REN__OP_LINEAR_FWD:
    case REN__OP_LINEAR_BWD_DATA:
    case REN__OP_LINEAR_BWD_WEIGHT:
        return ren__cuda_linear_create(dev, lane, op, needs, err);
    case REN__OP_CONV_FWD:
    case REN__OP_CONV_BWD_DATA:
    case REN__OP_CONV_BWD_WEIGHT:
        return ren__cuda_conv_create(dev, lane, op, needs, err);
    case REN__OP_CHECK:
    case REN__OP_ADVANCE:
    case REN__OP_SGD:
    case REN__OP_ADAM:
    case REN__OP_ADAMW:
    case REN__OP_LARS:
    case REN__OP_EMA:
    case REN__OP_COMMIT:
        return ren__cuda_train_create(dev, op, needs, err);
    default:
        return ren__cuda_simple_create(dev, op, needs, err);
    }
}

static ren__op *new_op(ren__device *dev, uint32_t lane, const ren__op_desc *desc, ren_error *err)
{
    ren__op *op = dev->host.alloc(dev->host.user, sizeof *op, _Alignof(ren__op));
    if (!op) {
        (void)ren__cuda_error(err, REN_ERR_NO_MEMORY, 0, __FILE__, __LINE__,
                              "no host memory for an operation");
        return NULL;
    }
    memset(op, 0, sizeof *op);
    op->desc = *desc;
    op->lane = lane;
    return op;
}

/* An operation that a library or a kernel takes as it is described. */
static ren_status create_plain(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                               ren__op **out, ren__op_needs *needs, ren_error *err)
{
    ren__op *op;
    ren_status status = ren__cuda_check_desc(desc, err);
    if (status != REN_OK) {
        return status;
    }
    op = new_op(dev, lane, desc, err);
    if (!op) {
        return REN_ERR_NO_MEMORY;
    }
    status = create_locked(dev, op, needs, err);
    if (status != REN_OK) {
        ren__cuda_op_destroy(dev, op);
        return status;
    }
    *out = op;
    return REN_OK;
}

/* Casts around an operation `inner` that is described in other dtypes. */
static ren_status create_half(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                              const ren__op_desc *inner, ren__op **out, ren__op_needs *needs,
                              ren_error *err)
{
    ren__op *op = new_op(dev, lane, desc, err);
    ren_status status =
        op ? create_plain(dev, lane, inner, &op->inner, needs, err) : REN_ERR_NO_MEMORY;
    if (status != REN_OK) {
        ren__cuda_op_destroy(dev, op);
        return status;
    }
    ren__cuda_half_wrap(op, needs);
    *out = op;
    return REN_OK;
}

ren_status ren__cuda_op_create_within(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                                      ren__op **out, ren__op_needs *needs, ren_error *err)
{
    ren__op_desc inner;
    ren_status status = REN_ERR_UNSUPPORTED;
    for (int refused = 0; refused < 2 && status == REN_ERR_UNSUPPORTED; refused++) {
        int wraps = ren__cuda_half_inner(desc, refused, &inner);
        if (refused && !wraps) {
            break;
        }
        memset(needs, 0, sizeof *needs);
        needs->commands = 1;
        status = wraps ? create_half(dev, lane, desc, &inner, out, needs, err)
                       : create_plain(dev, lane, desc, out, needs, err);
    }
    return status;
}

ren_status ren__cuda_op_create(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                               ren__op **out, ren__op_needs *needs, ren_error *err)
{
    ren__cuda_scope scope;
    ren_status status;
    *out = NULL;
    if (lane >= dev->lanes) {
        return ren__cuda_error(err, REN_ERR_INVALID_ARGUMENT, 0, __FILE__, __LINE__,
                               "lane %u of %u", lane, dev->lanes);
    }
    status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        (void)ren__cuda_status(dev, err);
        return status;
    }
    (void)pthread_mutex_lock(&dev->op_lock);
    status = ren__cuda_op_create_within(dev, lane, desc, out, needs, err);
    (void)pthread_mutex_unlock(&dev->op_lock);
    ren__cuda_leave(dev, &scope);
    return status;
}

void ren__cuda_op_destroy(ren__device *dev, ren__op *op)
{
    ren__cuda_scope scope;
    if (!op) {
        return;
    }
    ren__cuda_op_destroy(dev, op->inner);
    ren__cuda_ticket_give(dev, op->ticket);
    if (op->destroy) {
        ren__cuda_enter_always(dev, &scope);
        op->destroy(op);
        ren__cuda_leave(dev, &scope);
    }
    dev->host.free(dev->host.user, op, sizeof *op);
}

/* A library that was inside a capture when the host broke it keeps CUDA's error in its own copy of
 * the runtime, and answers its next call with it, once. */
static int may_answer_late(const ren__op *op)
{
    return op->desc.kind >= REN__OP_LINEAR_FWD && op->desc.kind <= REN__OP_CONV_BWD_WEIGHT &&
           op->desc.kind != REN__OP_BIAS_GRAD;
}

ren_status ren__cuda_op_launch(ren__device *dev, uint32_t lane, ren__op *op,
                               void *const operands[REN__OPERANDS], void *workspace)
{
    ren__cuda_scope scope;
    ren_status status;
    if (lane != op->lane) {
        return REN_ERR_INVALID_ARGUMENT; /* its library handle is bound to another stream */
    }
    status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = op->launch(dev, &dev->lane[lane], op, operands, workspace);
    if (status == REN_ERR_DEVICE && may_answer_late(op)) {
        /* Products and convolutions write over what they wrote: they may be launched twice. */
        status = op->launch(dev, &dev->lane[lane], op, operands, workspace);
    }
    ren__cuda_leave(dev, &scope);
    return status;
}
