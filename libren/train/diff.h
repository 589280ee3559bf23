/* SPDX-License-Identifier: MIT */
/* libren/train/diff.h - the tasks of a model's forward and backward pass.
 *
 * Purpose   From one target tensor back: which nodes it needs, which tensors need a gradient, which
 *           nodes share an operation (fuse.h), and the tasks that compute all of it, in an order
 *           that is right on one stream. trainer.c adds the update, infer.c the copy of the output.
 * Gradients A parameter belongs to one layer, whose backward pass writes its gradient whole: no
 *           task zeroes it before, which saves a launch and a pass over memory, and none casts it,
 *           since it comes out in f32. Only those of frozen parameters are cleared, see update.c.
 * Threads   one at a time per model (its lock is held).
 * Memory    one block of host memory a diff, freed by ren__diff_deinit.
 */
#ifndef REN_TRAIN_DIFF_H
#define REN_TRAIN_DIFF_H

#include "model_state.h"

/* Where a step stands among those whose gradients are summed before an update. */
typedef enum ren__phase {
    REN__PHASE_ONLY = 0, /* each step updates */
    REN__PHASE_FIRST,
    REN__PHASE_MIDDLE,
    REN__PHASE_LAST
} ren__phase;

typedef struct ren__diff {
    ren_model *model;
    uint32_t target;
    uint32_t training;
    ren__phase phase; /* the caller's, before emit; so the next two */
    ren_dtype precision;
    uint32_t dynamic_scale;
    uint32_t fusions; /* bits of ren__fusion: the device's, or what the caller leaves of them */
    const uint8_t *frozen; /* by parameter; the caller's; NULL = none */
    uint8_t *needed;       /* by node: the target depends on it */
    uint8_t *wants_grad;   /* by node: needed, and depends on a trained parameter */
    uint8_t *param_used;   /* by parameter: of a needed node */
    ren__fused *fused;     /* by node, once emitted */
    uint32_t *readers;     /* by node, likewise */
    uint8_t *foldable;     /* by node, likewise; so the next */
    uint32_t (*folded)[2]; /* by node: values of the weights and the bias with a batch norm in */
    uint32_t *values;      /* by node: the value of its output; an input's is EXTERNAL */
    uint32_t *casts;       /* by node */
    uint32_t *grads;       /* by node */
    uint32_t *more;        /* by node */
    uint32_t (*saved)[REN__NODE_SAVED];
    uint32_t *param_values; /* by parameter */
    uint32_t *param_casts;  /* by parameter: in `precision` */
    uint32_t *param_grads;  /* by parameter: its gradient, or a statistic's new value */
    ren__tensor_desc *param_descs;
    /* Roots. FIXED, except where said; control is EXTERNAL. In inference only `params`. */
    uint32_t params;    /* the whole region; in inference EXTERNAL, a set as in weights.h */
    uint32_t grad_root; /* parallel to the trained part */
    /* Parallel to the statistics: their new values; and what they come from behind the first step
     * of a window. EXTERNAL where steps accumulate. */
    uint32_t statistics;
    uint32_t statistics_in;
    uint32_t control;
    uint32_t state;
    void *block;
    size_t block_bytes;
} ren__diff;

/* Mark what `target` needs. Nothing is emitted yet. REN_ERR_NO_MEMORY; REN_ERR_UNSUPPORTED (a loss
 * whose target depends on parameters, or one that a sum counts twice). */
ren_status ren__diff_init(ren__diff *d, ren_model *m, uint32_t target, uint32_t training,
                          ren_error *err);
/* Parameters with frozen[i] get no gradient, and no tensor needs one for their sake. Before emit;
 * the array, model->param_count long, lives as long as the diff. */
void ren__diff_freeze(ren__diff *d, const uint8_t *frozen);
void ren__diff_deinit(ren__diff *d); /* zeroed is fine */

/* Add the values and tasks of both passes (of the first alone without `training`) for `batch`
 * rows. */
void ren__diff_emit(ren__diff *d, ren__task_graph *g, int64_t batch);

#endif
