/* SPDX-License-Identifier: MIT */
/* libren/train/fuse.h - which nodes are computed by one operation.
 *
 * Purpose   A ReLU behind a convolution reads what was just written and writes it again; on a
 *           device that can compute both in one launch that is a launch, a tensor and two passes
 *           over memory too many. Here is decided, node by node and before anything is emitted,
 *           who computes what. The families then look their group up and emit it.
 * Threads   one per diff.
 * Order     the decision depends on the model, on what is asked of it and on the device's bits
 *           alone, never on timing: every path and every number of streams has the same groups.
 * Memory    the caller's arrays.
 *
 * Groups. A group is a run of nodes of which each, but the last, is read by the next one and by
 * nobody else, neither by a node that the target needs nor by the host, which asks for the target.
 * Only then need its tensor not exist. The first node, the head, gives the operation; the last one,
 * the tail, the tensor that is written.
 *
 *   head         then             device bit        limits
 *   linear       ReLU             LINEAR_ACT
 *   linear       GELU (tanh)      GELU              inference: its derivative wants the input
 *   convolution  ReLU             CONV_ACT
 *   batch norm   ReLU             NORM_ACT
 *   batch norm   sum              NORM_ADD          see below
 *   batch norm   sum, ReLU        NORM_ADD
 *   linear or    batch norm                         inference, and it takes no sum; then ReLU or
 *   convolution                                     GELU as behind the layer alone
 *
 * All tasks of a group are emitted at the turn of its tail: forward, what a sum adds has been
 * computed by then; backward, everyone who reads the tail has run. The backward pass reads the
 * tail's tensor, or a batch norm's input, to know where a ReLU was open, and the gradients of the
 * inner tensors are never kept.
 *
 * Sums. When both sides of a sum could take it, the one that comes later in the model does: its
 * convolution is the freshest work, and the other side is ready by then on any schedule. A batch
 * norm that no gradient passes through, since all before it is frozen, does not take a sum whose
 * other side wants one: the gradient would have to come out of an operation that need not run.
 *
 * Folding. In inference a batch norm multiplies and adds the same numbers each time, so they are
 * put into the weights and the bias of the layer before it once for each version of the weights
 * (weights.h), and the norm is not computed at all. One that takes a sum stays: with it, norm, sum
 * and ReLU are one pass over memory; without it, sum and ReLU would be one of their own.
 *
 * Gradients of shared tensors. A tensor with two readers, as between two residual blocks, gets two
 * gradients. Where a batch norm with a ReLU made it, its backward task adds them as it reads them
 * (NORM_GRADS), and of three the last two are added before.
 *
 * Biases. The gradient of a linear layer's or convolution's bias is the sum of the gradient behind
 * the layer. When that comes out of an activation's backward task and out of nowhere else, the task
 * can sum it on its way (ACT_BIAS), be the activation in the layer's group or a task of its own. A
 * linear layer's weight gradient can do so, too (WEIGHT_BIAS); only what neither does is a task by
 * itself. Where both can, the size decides: the gate stands between one layer and the next, and of
 * a small tensor it takes longer with the sum than the weight gradient does, while a large one pays
 * for every pass over it. In us more than without the sum, f16 on an H200, gate / weight gradient:
 * 256 x 64 1.8 / 0.9, 1024 x 256 3.1 / 1.7, 16384 x 64 3.0 / 4.4.
 */
#ifndef REN_TRAIN_FUSE_H
#define REN_TRAIN_FUSE_H

#include "../ops/ops.h"

#define REN__FUSE_LARGE (UINT64_C(1) << 19) /* elements from which on the gate sums the bias */

typedef struct ren__fuse {
    ren__node *const *nodes;
    uint32_t target;
    int64_t batch;
    uint32_t training;
    uint32_t fusions;          /* bits of ren__fusion */
    const uint8_t *needed;     /* by node */
    const uint8_t *wants_grad; /* by node */
    const uint8_t *foldable;   /* by node: a batch norm whose layer has weights with it in */
    uint32_t *readers;         /* by node; filled: how many read it, the host among them */
} ren__fuse;

/* Fill out[0..target]. */
void ren__fuse_decide(const ren__fuse *f, ren__fused *out);

#endif
