/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/simple.c - operations that the module's own kernels compute.
 *
 * Purpose   Maps an operation's descriptor and operands to a launcher of kernels.h. Pooling, batch
 *           norm and softmax are kernels of ours rather than cuDNN's because libren's rules are
 *           part of their contract: ties of a maximum, padding left out of averages, running
 *           statistics that may be written elsewhere, a fixed order of every sum. bench_ops times
 *           both for the same tensors.
 * Threads   create: any, serialised; launch: the submitter.
 */
#include "internal.h"
#include "kernels.h"

typedef ren_status (*launch_fn)(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                void *const operands[REN__OPERANDS], void *workspace);

static uint64_t count_of(const ren__op *op, uint32_t operand)
{
    return ren__tensor_elements(&op->desc.operand[operand]);
}

static uint64_t channels_of(const ren__op *op, uint32_t operand)
{
    const ren__tensor_desc *t = &op->desc.operand[operand];
    return (uint64_t)t->dims[t->rank - 1u];
}

static uint64_t rows_of(const ren__op *op, uint32_t operand)
{
    return count_of(op, operand) / channels_of(op, operand);
}

/* What the tensors of the operation are stored in. */
static ren_dtype dtype_of(const ren__op *op)
{
    return op->desc.operand[0].dtype;
}

/* Present only if its descriptor says so. */
static void *optional(const ren__op *op, void *const operands[REN__OPERANDS], uint32_t operand)
{
    return op->desc.operand[operand].rank ? operands[operand] : NULL;
}

/* ------------------------------------------------------------------ element by element */

static ren_status act_forward(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                              void *const o[REN__OPERANDS], void *workspace)
{
    (void)workspace;
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_act_forward(lane->stream, dtype_of(op), op->desc.activation,
                                             op->desc.alpha, o[0], o[1], count_of(op, 0)));
}

static ren_status act_backward(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                               void *const o[REN__OPERANDS], void *workspace)
{
    if (op->desc.operand[4].rank) {
        ren__column_sum c = {.dtype = dtype_of(op),
                             .dy = o[0],
                             .sums = o[4],
                             .rows = rows_of(op, 3),
                             .channels = channels_of(op, 3),
                             .dx = o[3],
                             .x = o[1],
                             .y = o[2],
                             .activation = op->desc.activation,
                             .alpha = op->desc.alpha};
        return REN__CUDA(dev, NULL, ren__cuda_k_column_sum(lane->stream, &c, workspace));
    }
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_act_backward(lane->stream, dtype_of(op), op->desc.activation,
                                              op->desc.alpha, o[0], o[1], o[2], o[3],
                                              count_of(op, 0)));
}

static ren_status dropout(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                          void *const o[REN__OPERANDS], void *workspace)
{
    (void)workspace;
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_dropout(lane->stream, dtype_of(op), op->desc.alpha, op->desc.layer,
                                         o[1], o[0], o[2], count_of(op, 0)));
}

static ren_status add(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                      void *const o[REN__OPERANDS], void *workspace)
{
    (void)workspace;
    return REN__CUDA(
        dev, NULL, ren__cuda_k_add(lane->stream, dtype_of(op), o[0], o[1], o[2], count_of(op, 0)));
}

static ren_status cast(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                       void *const o[REN__OPERANDS], void *workspace)
{
    (void)workspace;
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_cast(lane->stream, op->desc.operand[0].dtype, o[0],
                                      op->desc.operand[1].dtype, o[1], count_of(op, 0)));
}

static ren_status concat(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                         void *const o[REN__OPERANDS], void *workspace)
{
    int split = op->desc.kind == REN__OP_SPLIT;
    uint32_t first = split ? 1u : 0u;
    uint32_t joined = split ? 0u : REN__OPERANDS - 1u;
    uint64_t bytes[REN__OPERANDS];
    (void)workspace;
    for (uint32_t i = 0; i < op->desc.count; i++) {
        bytes[i] = channels_of(op, first + i) * ren__dtype_bytes(op->desc.operand[joined].dtype);
    }
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_concat(lane->stream, o + first, bytes, op->desc.count, o[joined],
                                        rows_of(op, joined), split));
}

/* ------------------------------------------------------------------ pooling */

static ren__pool_shape pool_shape(const ren__op_desc *desc, const ren__tensor_desc *x,
                                  const ren__tensor_desc *y)
{
    ren__pool_shape s;
    s.n = (int)x->dims[0];
    s.h = (int)x->dims[1];
    s.w = (int)x->dims[2];
    s.c = (int)x->dims[3];
    s.ho = (int)y->dims[1];
    s.wo = (int)y->dims[2];
    s.kh = (int)desc->kernel[0];
    s.kw = (int)desc->kernel[1];
    s.sh = (int)desc->stride[0];
    s.sw = (int)desc->stride[1];
    s.ph = (int)desc->padding[0];
    s.pw = (int)desc->padding[1];
    return s;
}

static ren_status max_forward(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                              void *const o[REN__OPERANDS], void *workspace)
{
    ren__pool_shape s = pool_shape(&op->desc, &op->desc.operand[0], &op->desc.operand[1]);
    (void)workspace;
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_max_pool_forward(lane->stream, dtype_of(op), &s, o[0], o[1],
                                                  op->desc.training ? o[2] : NULL));
}

static ren_status max_backward(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                               void *const o[REN__OPERANDS], void *workspace)
{
    ren__pool_shape s = pool_shape(&op->desc, &op->desc.operand[4], &op->desc.operand[0]);
    (void)workspace;
    return REN__CUDA(
        dev, NULL, ren__cuda_k_max_pool_backward(lane->stream, dtype_of(op), &s, o[0], o[3], o[4]));
}

static ren_status avg_forward(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                              void *const o[REN__OPERANDS], void *workspace)
{
    ren__pool_shape s = pool_shape(&op->desc, &op->desc.operand[0], &op->desc.operand[1]);
    (void)workspace;
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_avg_pool_forward(lane->stream, dtype_of(op), &s, o[0], o[1]));
}

static ren_status avg_backward(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                               void *const o[REN__OPERANDS], void *workspace)
{
    ren__pool_shape s = pool_shape(&op->desc, &op->desc.operand[1], &op->desc.operand[0]);
    (void)workspace;
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_avg_pool_backward(lane->stream, dtype_of(op), &s, o[0], o[1]));
}

static ren_status global_average(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                 void *const o[REN__OPERANDS], void *workspace)
{
    int forward = op->desc.kind == REN__OP_GLOBAL_AVG_FWD;
    const int64_t *x = op->desc.operand[forward ? 0 : 1].dims;
    uint64_t batch = (uint64_t)x[0];
    uint64_t pixels = (uint64_t)x[1] * (uint64_t)x[2];
    uint64_t channels = (uint64_t)x[3];
    (void)workspace;
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_global_avg(lane->stream, dtype_of(op), forward, o[0], o[1], batch,
                                            pixels, channels));
}

/* ------------------------------------------------------------------ columns */

static ren_status bias_gradient(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                void *const o[REN__OPERANDS], void *workspace)
{
    ren__column_sum c = {.dtype = dtype_of(op),
                         .dy = o[0],
                         .sums = o[1],
                         .rows = rows_of(op, 0),
                         .channels = channels_of(op, 0)};
    return REN__CUDA(dev, NULL, ren__cuda_k_column_sum(lane->stream, &c, workspace));
}

static ren_status norm_train(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                             void *const o[REN__OPERANDS], void *workspace)
{
    ren__norm_train p = {.dtype = dtype_of(op),
                         .relu = op->desc.fused_activation != 0,
                         .x = o[0],
                         .other = optional(op, o, 10),
                         .weight = o[1],
                         .bias = o[2],
                         .running_mean = o[3],
                         .running_var = o[4],
                         .y = o[5],
                         .mean = o[6],
                         .rstd = o[7],
                         .new_running_mean = o[8],
                         .new_running_var = o[9],
                         .rows = rows_of(op, 0),
                         .channels = channels_of(op, 0),
                         .momentum = op->desc.alpha,
                         .eps = op->desc.eps};
    return REN__CUDA(dev, NULL, ren__cuda_k_norm_train(lane->stream, &p, workspace));
}

static ren_status norm_backward(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                void *const o[REN__OPERANDS], void *workspace)
{
    ren__norm_backward p = {.dtype = dtype_of(op),
                            .dy = o[0],
                            .x = o[1],
                            .y = optional(op, o, 8),
                            .more = optional(op, o, 11),
                            .weight = o[2],
                            .bias = optional(op, o, 10),
                            .mean = o[3],
                            .rstd = o[4],
                            .dx = o[5],
                            .dother = optional(op, o, 9),
                            .dweight = o[6],
                            .dbias = o[7],
                            .rows = rows_of(op, 0),
                            .channels = channels_of(op, 0),
                            .eps = op->desc.eps};
    return REN__CUDA(dev, NULL, ren__cuda_k_norm_backward(lane->stream, &p, workspace));
}

static ren_status norm_eval(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                            void *const o[REN__OPERANDS], void *workspace)
{
    ren__norm_eval p = {.dtype = dtype_of(op),
                        .relu = op->desc.fused_activation != 0,
                        .x = o[0],
                        .other = optional(op, o, 10),
                        .y = o[5],
                        .weight = o[1],
                        .bias = o[2],
                        .running_mean = o[3],
                        .running_var = o[4],
                        .rows = rows_of(op, 0),
                        .channels = channels_of(op, 0),
                        .eps = op->desc.eps};
    (void)workspace;
    return REN__CUDA(dev, NULL, ren__cuda_k_norm_eval(lane->stream, &p));
}

static ren_status norm_fold(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                            void *const o[REN__OPERANDS], void *workspace)
{
    uint64_t outputs = (uint64_t)op->desc.operand[0].dims[0];
    ren__norm_fold p = {.w = o[0],
                        .weight = o[1],
                        .bias = o[2],
                        .running_mean = o[3],
                        .running_var = o[4],
                        .b = optional(op, o, 5),
                        .out = o[6],
                        .out_bias = o[7],
                        .outputs = outputs,
                        .inner = count_of(op, 0) / outputs,
                        .eps = op->desc.eps};
    (void)workspace;
    return REN__CUDA(dev, NULL, ren__cuda_k_norm_fold(lane->stream, &p));
}

/* ------------------------------------------------------------------ losses */

/* The state whose loss_scale a loss's gradient is multiplied with, or NULL. */
static const ren__state *scaled_by(const ren__op *op, void *const o[REN__OPERANDS])
{
    return op->desc.dynamic_scale ? o[4] : NULL;
}

static ren_status xent(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                       void *const o[REN__OPERANDS], void *workspace)
{
    int forward = op->desc.kind == REN__OP_XENT_FWD;
    ren__xent x = {.dtype = op->desc.operand[forward ? 0 : 3].dtype,
                   .logits = forward ? o[0] : NULL,
                   .labels = o[1],
                   .probability = o[forward ? 3 : 0],
                   .loss = forward ? o[2] : NULL,
                   .gradient = forward ? NULL : o[3],
                   .state = forward ? NULL : scaled_by(op, o),
                   .rows = rows_of(op, 0),
                   .classes = channels_of(op, 0),
                   .smoothing = op->desc.alpha,
                   .ticket = op->ticket};
    return REN__CUDA(dev, NULL,
                     forward ? ren__cuda_k_xent_forward(lane->stream, &x, workspace)
                             : ren__cuda_k_xent_backward(lane->stream, &x));
}

static ren_status distance(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                           void *const o[REN__OPERANDS], void *workspace)
{
    ren__op_kind kind = op->desc.kind;
    int forward = kind == REN__OP_MSE_FWD || kind == REN__OP_HUBER_FWD;
    ren__distance d = {.dtype = op->desc.operand[0].dtype,
                       .target_dtype = op->desc.operand[1].dtype,
                       .huber = kind == REN__OP_HUBER_FWD || kind == REN__OP_HUBER_BWD,
                       .delta = op->desc.alpha,
                       .x = o[0],
                       .target = o[1],
                       .loss = forward ? o[2] : NULL,
                       .gradient = forward ? NULL : o[3],
                       .state = forward ? NULL : scaled_by(op, o),
                       .n = count_of(op, 0),
                       .ticket = op->ticket};
    return REN__CUDA(dev, NULL, ren__cuda_k_distance(lane->stream, &d, workspace));
}

/* ------------------------------------------------------------------ create */

/* By kind: the launcher, and how many commands it enqueues. */
static const struct {
    launch_fn launch;
    uint32_t commands;
} table[REN__OP_KINDS] = {
    [REN__OP_BIAS_GRAD] = {bias_gradient, 2},
    [REN__OP_MAX_POOL_FWD] = {max_forward, 1},
    [REN__OP_MAX_POOL_BWD] = {max_backward, 1},
    [REN__OP_AVG_POOL_FWD] = {avg_forward, 1},
    [REN__OP_AVG_POOL_BWD] = {avg_backward, 1},
    [REN__OP_GLOBAL_AVG_FWD] = {global_average, 1},
    [REN__OP_GLOBAL_AVG_BWD] = {global_average, 1},
    [REN__OP_BATCH_NORM_TRAIN] = {norm_train, 2},
    [REN__OP_BATCH_NORM_BWD] = {norm_backward, 2},
    [REN__OP_BATCH_NORM_EVAL] = {norm_eval, 1},
    [REN__OP_BATCH_NORM_FOLD] = {norm_fold, 1},
    [REN__OP_ACT_FWD] = {act_forward, 1},
    [REN__OP_ACT_BWD] = {act_backward, 2},
    [REN__OP_DROPOUT_FWD] = {dropout, 1},
    [REN__OP_DROPOUT_BWD] = {dropout, 1},
    [REN__OP_ADD] = {add, 1},
    [REN__OP_CONCAT] = {concat, 1},
    [REN__OP_SPLIT] = {concat, 1},
    [REN__OP_XENT_FWD] = {xent, 2},
    [REN__OP_XENT_BWD] = {xent, 1},
    [REN__OP_MSE_FWD] = {distance, 2},
    [REN__OP_MSE_BWD] = {distance, 1},
    [REN__OP_HUBER_FWD] = {distance, 2},
    [REN__OP_HUBER_BWD] = {distance, 1},
    [REN__OP_CAST] = {cast, 1},
};

static uint64_t workspace_of(const ren__op *op)
{
    switch (op->desc.kind) {
    case REN__OP_BIAS_GRAD:
        return ren__cuda_k_column_sum_scratch(dtype_of(op), rows_of(op, 0), channels_of(op, 0));
    case REN__OP_ACT_BWD:
        return op->desc.operand[4].rank ? ren__cuda_k_column_sum_scratch(
                                              dtype_of(op), rows_of(op, 3), channels_of(op, 3))
                                        : 0u;
    case REN__OP_BATCH_NORM_TRAIN:
    case REN__OP_BATCH_NORM_BWD:
        return ren__cuda_k_norm_scratch(dtype_of(op), rows_of(op, 0), channels_of(op, 0));
    case REN__OP_XENT_FWD:
        return ren__cuda_k_xent_scratch(rows_of(op, 0), channels_of(op, 0));
    case REN__OP_MSE_FWD:
    case REN__OP_HUBER_FWD:
        return ren__cuda_k_distance_scratch(count_of(op, 0));
    default:
        return 0;
    }
}

ren_status ren__cuda_simple_create(ren__device *dev, ren__op *op, ren__op_needs *needs,
                                   ren_error *err)
{
    const ren__op_desc *desc = &op->desc;
    (void)err;
    if (desc->kind == REN__OP_XENT_FWD || desc->kind == REN__OP_MSE_FWD ||
        desc->kind == REN__OP_HUBER_FWD) {
        op->ticket = ren__cuda_ticket_take(dev);
    }
    op->launch = table[desc->kind].launch;
    needs->commands = table[desc->kind].commands;
    needs->workspace_bytes = workspace_of(op);
    if (desc->kind == REN__OP_ACT_BWD && !desc->operand[4].rank) {
        needs->commands = 1;
    }
    if (desc->kind == REN__OP_MAX_POOL_FWD && desc->training) {
        ren__pool_shape shape = pool_shape(desc, &desc->operand[0], &desc->operand[1]);
        needs->saved_bytes = ren__cuda_k_max_pool_saved(&shape);
    } else if (desc->kind == REN__OP_MAX_POOL_BWD) {
        ren__pool_shape shape = pool_shape(desc, &desc->operand[4], &desc->operand[0]);
        needs->saved_bytes = ren__cuda_k_max_pool_saved(&shape);
    }
    return REN_OK;
}
