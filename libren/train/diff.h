/* SPDX-License-Identifier: MIT */
/* libren/train/diff.h - the tasks of a model's forward and backward pass.
 *
 * Purpose   From one target tensor back: which nodes it needs, which tensors need a gradient, and
 *           the tasks that compute both, in an order that is right on one stream. trainer.c adds
 *           the update, infer.c the copy of the output.
 * Threads   one at a time per model (its lock is held).
 * Memory    one block of host memory a diff, freed by ren__diff_deinit.
 */
#ifndef REN_TRAIN_DIFF_H
#define REN_TRAIN_DIFF_H

#include "model_state.h"

typedef struct ren__diff {
    ren_model *model;
    uint32_t target;
    uint32_t training;
    uint8_t *needed;     /* by node: the target depends on it */
    uint8_t *wants_grad; /* by node: needed, and depends on a trained parameter */
    uint8_t *param_used; /* by parameter: of a needed node */
    uint32_t *values;    /* by node: the value of its output; an input's is EXTERNAL */
    uint32_t *grads;     /* by node */
    uint32_t (*saved)[REN__NODE_SAVED];
    uint32_t *param_values; /* by parameter */
    uint32_t *param_grads;  /* by parameter: its gradient, or a statistic's new value */
    ren__tensor_desc *param_descs;
    /* Roots. FIXED, except control: EXTERNAL. In inference only `params`. */
    uint32_t params;     /* the whole region */
    uint32_t grad_root;  /* parallel to the trained part */
    uint32_t statistics; /* parallel to the statistics: their new values */
    uint32_t control;
    void *block;
    size_t block_bytes;
} ren__diff;

/* Mark what `target` needs. Nothing is emitted yet. REN_ERR_NO_MEMORY; REN_ERR_UNSUPPORTED (a loss
 * whose target depends on parameters). */
ren_status ren__diff_init(ren__diff *d, ren_model *m, uint32_t target, uint32_t training,
                          ren_error *err);
void ren__diff_deinit(ren__diff *d); /* zeroed is fine */

/* Add the values and tasks of both passes (of the first alone without `training`) for `batch`
 * rows. */
void ren__diff_emit(ren__diff *d, ren__task_graph *g, int64_t batch);

#endif
