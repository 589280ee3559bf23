/* SPDX-License-Identifier: MIT */
/* libren/graph/verbs.c - what a task does, in a word: for traces and pictures. */
#include "plan.h"

static const char *const verbs[REN__OP_KINDS] = {
    [REN__OP_NONE] = "none",
    [REN__OP_LINEAR_FWD] = "linear_fwd",
    [REN__OP_LINEAR_BWD_DATA] = "linear_bwd_data",
    [REN__OP_LINEAR_BWD_WEIGHT] = "linear_bwd_weight",
    [REN__OP_BIAS_GRAD] = "bias_grad",
    [REN__OP_CONV_FWD] = "conv_fwd",
    [REN__OP_CONV_BWD_DATA] = "conv_bwd_data",
    [REN__OP_CONV_BWD_WEIGHT] = "conv_bwd_weight",
    [REN__OP_MAX_POOL_FWD] = "max_pool_fwd",
    [REN__OP_MAX_POOL_BWD] = "max_pool_bwd",
    [REN__OP_AVG_POOL_FWD] = "avg_pool_fwd",
    [REN__OP_AVG_POOL_BWD] = "avg_pool_bwd",
    [REN__OP_GLOBAL_AVG_FWD] = "global_avg_fwd",
    [REN__OP_GLOBAL_AVG_BWD] = "global_avg_bwd",
    [REN__OP_BATCH_NORM_TRAIN] = "batch_norm_train",
    [REN__OP_BATCH_NORM_BWD] = "batch_norm_bwd",
    [REN__OP_BATCH_NORM_EVAL] = "batch_norm_eval",
    [REN__OP_BATCH_NORM_FOLD] = "batch_norm_fold",
    [REN__OP_ACT_FWD] = "act_fwd",
    [REN__OP_ACT_BWD] = "act_bwd",
    [REN__OP_DROPOUT_FWD] = "dropout_fwd",
    [REN__OP_DROPOUT_BWD] = "dropout_bwd",
    [REN__OP_ADD] = "add",
    [REN__OP_CONCAT] = "concat",
    [REN__OP_SPLIT] = "split",
    [REN__OP_XENT_FWD] = "xent_fwd",
    [REN__OP_XENT_BWD] = "xent_bwd",
    [REN__OP_MSE_FWD] = "mse_fwd",
    [REN__OP_MSE_BWD] = "mse_bwd",
    [REN__OP_HUBER_FWD] = "huber_fwd",
    [REN__OP_HUBER_BWD] = "huber_bwd",
    [REN__OP_CHECK] = "check",
    [REN__OP_ADVANCE] = "advance",
    [REN__OP_SGD] = "sgd",
    [REN__OP_ADAM] = "adam",
    [REN__OP_ADAMW] = "adamw",
    [REN__OP_LARS] = "lars",
    [REN__OP_EMA] = "ema",
    [REN__OP_CAST] = "cast",
    [REN__OP_COMMIT] = "commit",
};

const char *ren__task_verb(const ren__task *task)
{
    const char *verb = task->kind == REN__TASK_COPY   ? "copy"
                       : task->kind == REN__TASK_FILL ? "fill"
                                                      : verbs[task->op.kind];
    return verb ? verb : "op";
}
