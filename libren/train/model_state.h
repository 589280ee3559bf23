/* SPDX-License-Identifier: MIT */
/* libren/train/model_state.h - the model's own structs, seen by libren/train/ only.
 *
 * Purpose   One place for what builder, parameters, trainer and inference share, and for who may
 *           touch it:
 *             [build]  builder calls, one thread at a time, under `lock`
 *             [lock]   under `lock`
 *             [placed] written when the model is placed, then only read
 *             [chain]  under the chain's short lock, which nobody holds while waiting
 *             [sub]    the submitter only
 * Life      1. Builder calls append nodes; parameters have host values.
 *           2. The first trainer or inference places the model: one region of device memory holds
 *              all parameters, the trained ones first, so that an optimizer is one launch over a
 *              flat range; the host values are freed. Builder calls that would add parameters are
 *              refused from then on.
 *           3. The first inference adds two copies of the parameters, which change as weights.h
 *              says.
 *           4. destroy waits for the chain to run empty and frees plans before memory.
 */
#ifndef REN_TRAIN_MODEL_STATE_H
#define REN_TRAIN_MODEL_STATE_H

#include <pthread.h>

#include "../ops/ops.h"
#include "chain.h"
#include "model.h"
#include "weights.h"

#define REN__PARAM_NAME_BYTES 80u /* a node's name and ".running_mean" */
#define REN__MAX_NODES        4095u

typedef enum ren__param_role {
    REN__PARAM_TRAINED = 0,
    REN__PARAM_STATISTIC, /* running mean and variance */
    REN__PARAM_AVERAGE    /* "<name>.ema": of a trained one; belongs to no node */
} ren__param_role;

typedef struct ren__param {
    char name[REN__PARAM_NAME_BYTES];
    ren__tensor_desc desc; /* boundary layout */
    uint64_t bytes;
    uint64_t host_offset; /* in the concatenation of all parameters, boundary layout */
    uint64_t offset;      /* [placed] in the region, or averages: behind it */
    ren__param_role role;
    uint32_t is_conv;
    uint32_t frozen; /* [chain] */
    float *host;     /* [lock] host value; NULL once placed */
} ren__param;

typedef struct ren__infer_output ren__infer_output;

#define REN__INFER_LANES 3u /* compute streams that inferences are spread over, at most */

struct ren_model {
    ren_runtime *rt;
    const ren__host_allocator *allocator;
    ren__device_caps caps;
    uint64_t seed;
    uint32_t allow_tf32;
    uint32_t tag; /* in every tensor handle, so that another model's is noticed */
    pthread_mutex_t lock;

    ren_status status; /* [build] the first error */
    ren_error error;

    ren__node **nodes; /* [build] */
    uint32_t node_count;
    uint32_t node_capacity;
    ren__param **params; /* [build], and [chain]: changed under both locks */
    uint32_t param_count;
    uint32_t param_capacity;
    uint64_t params_bytes; /* boundary layout, all */
    uint32_t dropout_count;

    /* Raised under the chain's lock with each change of a `frozen`; read with acquire by the thread
     * that posts steps, which looks at the flags when it has changed. */
    _Atomic uint64_t frozen_version;

    uint32_t placed;
    ren__region region;     /* [placed] */
    uint64_t trained_bytes; /* [placed] of the region: what optimizers see */
    uint64_t region_bytes;  /* [placed] trained, then statistics */
    ren__region averages;   /* [lock] parallel to the trained part; ptr NULL = none yet */
    /* [lock] pinned, parallel to region and averages: all traffic with the host goes by it */
    unsigned char *bounce;
    uint64_t bounce_bytes;

    ren__chain chain;
    uint64_t steps_issued;  /* [sub] training steps whose update is in the lanes */
    ren__event *join_event; /* [placed] */
    uint32_t torn;          /* [sub] an issue broke off: its lanes are not joined yet */
    /* [sub] The plan of a step whose last commands are still to be enqueued, and what keeps the
     * plan; NULL = none. */
    ren__plan *unfinished;
    _Atomic uint32_t *unfinished_hold;
    uint32_t spoilt; /* [sub] such a plan is gone: the weights are of no step, every work fails */
    ren_trainer *trainer;              /* [lock] */
    ren__infer_output *_Atomic infers; /* list; grows under lock, read by anyone */
    /* Set at creation: the host's wish (0 = default); the compute streams that inferences run on,
     * and the index among them of each stream, or UINT32_MAX. */
    uint32_t infer_requests;
    uint32_t infer_lanes;
    ren_stream infer_stream[REN__INFER_LANES];
    uint32_t infer_lane_of[REN_STREAM_COUNT];
    /* Requests on each, and steps under way that use it; whose turn it is. Hints, so relaxed. */
    _Atomic uint32_t infer_load[REN__INFER_LANES];
    _Atomic uint32_t infer_turn;
    ren__weights weights;
    uint64_t weights_stamp; /* [sub] changes of the parameters, from 1 */
    uint64_t weights_floor; /* [sub] inferences must not use what is older */
};

/* Under `lock`: the builder's error while it concerns the parameters. Those of a model in use are
 * all there, whatever builder call failed later: trained weights stay within reach. */
ren_status ren__model_built(const ren_model *m);

#define REN__REJOIN_NEED 12u /* commands of a rejoin on one stream */

/* chain's other half, in issue, before anything else is enqueued: finish an unfinished step, and
 * after an issue that broke off order UPDATE, and TRANS with it, behind everything in the lanes. An
 * error: the caller must not go on. The credits of an unfinished step's rest are those of the step.
 */
ren_status ren__model_rejoin(ren_model *m, ren__submit *s);
/* The plan of an unfinished step is about to go: finish the step now, as a work of its own, or mark
 * the model. Waits for that work. */
void ren__model_settle(ren_model *m);
void ren__model_give_up(ren_model *m); /* [sub] the second half of it */

/* Node index of a handle, or UINT32_MAX. */
uint32_t ren__model_node_of(const ren_model *m, ren_tensor tensor);

/* params.c. `lock` is held. */
ren_status ren__model_param_init(ren_model *m, ren__param *p, const ren__param_spec *spec);
ren_status ren__model_place(ren_model *m, ren_error *err);
void ren__model_unplace(ren_model *m); /* nothing may be in flight */
/* Give a placed model averages, which begin as the weights are now; nothing when it has them. */
ren_status ren__model_average(ren_model *m, ren_error *err);

/* model.c. `lock` is held. List the averages as parameters, behind all others. */
ren_status ren__model_list_averages(ren_model *m);

#endif
