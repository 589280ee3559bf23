/* SPDX-License-Identifier: MIT */
/* libren/train/weights.h - the copies of a model's weights that inferences read.
 *
 * Purpose   A training step changes the weights in place, on UPDATE and beside everything else. An
 *           inference that is to run at the same time needs weights that stand still. So there are
 *           two sets of them in device memory, A and B, each holding the parameters as they were
 *           behind one step, in the form in which inference uses them.
 * Threads   prepare, free: under the model's lock. All else: the submitter, in a work's renew_need
 *           and issue, which is why nothing here is atomic.
 * Progress  never waits for the device.
 * Order     see weights.c.
 * Memory    twice the model's parameters, and weights with batch norms in, taken by prepare.
 */
#ifndef REN_TRAIN_WEIGHTS_H
#define REN_TRAIN_WEIGHTS_H

#include "../graph/plan.h"

#define REN__WEIGHT_SETS 2u

typedef struct ren__weight_set {
    unsigned char *at;                  /* [placed] */
    uint64_t stamp;                     /* [sub] the model's when it was made; 0 = holds nothing */
    uint64_t version;                   /* [sub] training steps that it has seen */
    uint64_t made;                      /* [sub] the point on UPDATE behind which it is whole */
    uint64_t readers[REN_STREAM_COUNT]; /* [sub] points of its newest readers, by stream */
} ren__weight_set;

/* A batch norm behind a linear layer or a convolution, and where a set holds the layer's weights
 * and bias with the norm in: norm(layer(x)) = layer with these(x). */
typedef struct ren__weight_fold {
    uint32_t layer, norm; /* nodes */
    uint64_t weight, weight_bytes;
    uint64_t bias, bias_bytes;
} ren__weight_fold;

/* A set begins as the model's region is, parameters at the same offsets; then come the folds. */
typedef struct ren__weights {
    ren__region region; /* [placed] both sets */
    uint64_t bytes;     /* [placed] of one; 0 = the model has no parameters */
    ren__weight_fold *folds;
    uint32_t fold_count;    /* [placed] 0 where the device does not fold */
    uint32_t fold_capacity; /* of the array */
    ren__plan *plan;        /* [placed] makes a set, on UPDATE */
    void **externals;       /* [sub] */
    uint32_t external_count;
    uint32_t set_value;
    uint32_t commands; /* [placed] of the plan, on UPDATE */
    uint32_t prepared; /* [lock] */
    ren__weight_set sets[REN__WEIGHT_SETS];
    uint32_t newest; /* [sub] index */
} ren__weights;

/* A placed model gets its sets; nothing when it has them. */
ren_status ren__weights_prepare(ren_model *m, ren_error *err);
void ren__weights_free(ren_model *m); /* nothing may be in flight; zeroed is fine */

/* The parameters are about to be other ones from here on in UPDATE's order, or may be. `by_host`: a
 * call of the host's has set them, so no older ones serve any more. */
void ren__weights_changed(ren_model *m, uint32_t by_host);

/* Add to `need` what take will enqueue. */
void ren__weights_need(ren_model *m, ren__submit *s, uint32_t any, uint32_t need[REN_STREAM_COUNT]);

/* The set for an inference on `stream`, which is now behind the making of it; makes it first where
 * that is due. any = 0: the parameters as they are behind all that was issued; any = 1: the newest
 * that are whole already, if there are some. NULL for a model without parameters. */
ren_status ren__weights_take(ren_model *m, ren__submit *s, ren_stream stream, uint32_t any,
                             ren__weight_set **out);

/* What reads the set has been enqueued on `stream`, all of it or a part. */
void ren__weights_read(ren__weight_set *set, ren__submit *s, ren_stream stream);

#endif
