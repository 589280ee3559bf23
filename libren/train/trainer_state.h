/* SPDX-License-Identifier: MIT */
/* libren/train/trainer_state.h - the trainer's own structs, seen by libren/train/ only.
 *
 * Purpose   One place for what trainer.c (plans, life) and step.c (posting and issuing) share, and
 *           for who may touch it:
 *             [set]  written at creation, then only read
 *             [post] the thread that posts steps
 *             [sub]  the submitter
 */
#ifndef REN_TRAIN_TRAINER_STATE_H
#define REN_TRAIN_TRAINER_STATE_H

#include "../../memory/staging.h"
#include "model_state.h"
#include "replay.h"
#include "stage.h"
#include "times.h"
#include "trainer.h"

#define REN__STEPS       8u  /* steps under way at most */
#define REN__NOTICES     32u /* notifications under way at most; beyond it, finish tells */
#define REN__MAX_INPUTS  64u /* of one trainer: a bit each */
#define REN__INPUT_SLOTS 2u  /* A and B */
#define REN__STEP_PHASES 3u  /* first, middle and last of a window */
#define REN__NO_SLOT     UINT32_MAX

/* The plan for one phase. */
typedef struct ren__phase_plan {
    ren__plan *plan;    /* NULL = the trainer's steps never have this phase */
    ren__replay replay; /* [sub] */
    void **externals;   /* [sub] by value; filled anew for each issue */
    uint32_t external_count;
    uint32_t *input_values; /* by input */
    uint32_t control_value;
    /* REN__NO_VALUE unless steps accumulate: what the step before left, and this one's. */
    uint32_t sum_in, sum_out, statistics_in, statistics_out;
} ren__phase_plan;

/* The plans of one batch size and set of frozen parameters. The phase of a step is known when it is
 * issued, so it is posted with the plans of all. */
typedef struct ren__step_plan {
    uint32_t batch;   /* 0 = empty */
    uint32_t counted; /* Adam counts by parameter */
    uint8_t *frozen;  /* by parameter */
    ren__phase_plan phase[REN__STEP_PHASES];
    uint32_t need[REN_STREAM_COUNT]; /* of the phase that needs most */
    uint32_t most_tasks;             /* likewise */
    uint64_t last_used;              /* [post] step index */
    /* Steps accepted with it and not finished. finish's release pairs with the acquire before the
     * plan is dropped. */
    _Atomic uint32_t in_flight;
} ren__step_plan;

typedef struct ren__trainer_input {
    uint32_t node;
    uint64_t row_bytes;
    uint64_t bytes;                 /* of the full batch */
    void *device[REN__INPUT_SLOTS]; /* [set] */
    ren__staging staging;           /* what ren_input_acquire lends */
    uint32_t lent;                  /* [post] 1 = lent_slot is with the host */
    uint32_t lent_slot;
} ren__trainer_input;

/* One step from its post to the end of its completion. */
typedef struct ren__step {
    ren_trainer *trainer;
    uint64_t seq;
    ren_job job; /* [post] */
    uint64_t index;
    ren__step_plan *plan;
    uint32_t batch;
    const void **source; /* by input: what TRANS copies from */
    uint32_t *staged;    /* by input: slot of its staging ring, or REN__NO_SLOT */
    ren__stage stage;    /* for data that the device cannot copy by itself */
    unsigned char *stage_memory;
    ren__control *control; /* pinned */
    ren__state *result;    /* pinned; the device writes it */
    void (*inputs_consumed)(void *user);
    void *user;
    ren_path path;           /* [sub] */
    uint32_t updates;        /* [sub] its plan ended with an update */
    uint32_t unfetched;      /* [sub] its result could not be fetched */
    ren_step_result outcome; /* written by finish, read by the core behind it */
    uint32_t uses_stage;
    uint32_t launches;     /* [sub] of graphs, when its need was asked for */
    uint32_t timed;        /* a trace was open when it was posted */
    ren__step_clock clock; /* [sub], then finish; see times.h */
    /* The step's index until its inputs are consumed, then 0; see step.c. */
    _Atomic uint64_t unconsumed;
    /* Finish, and a notification while it looks. 0 = nobody; the release of the last one pairs with
     * the acquire of the posting thread and of destroy. */
    _Atomic uint32_t holders;
} ren__step;

/* A notification that a transfer is done: which step of which record it is about. */
typedef struct ren__step_notice {
    ren__step *step; /* [sub] */
    uint64_t index;  /* [sub] */
    _Atomic uint32_t busy;
} ren__step_notice;

struct ren_trainer {
    ren_model *model;
    ren_runtime *rt;
    uint32_t loss; /* node */
    ren_optimizer optimizer;
    uint32_t clips;
    uint32_t checks;     /* the plan holds CHECK: a step may be skipped */
    uint32_t averages;   /* the plan holds EMA */
    ren_dtype precision; /* of tensors in both passes */
    uint32_t dynamic_scale;
    float first_scale;
    uint32_t window;      /* steps to an update */
    uint32_t param_count; /* [set] of the model, averages included */
    uint32_t batch;       /* the full one */
    uint32_t sync;        /* [set] see ren__trainer_set_sync */

    ren__trainer_input *inputs; /* [set] */
    uint32_t input_count;

    ren__region region; /* [set] inputs A and B, control A and B, then what setup zeroes: */
    void *control_device[REN__INPUT_SLOTS];
    unsigned char *state;     /* device */
    unsigned char *grads;     /* device, parallel to the trained parameters */
    unsigned char *moment[2]; /* device, parallel to the trained parameters; [1] for Adam */
    unsigned char *counts;    /* device, by parameter: its updates, for Adam; else NULL */
    /* device, parallel to the model's statistics, and to the gradients; in two places where steps
     * accumulate, else [0] and none */
    unsigned char *statistics[REN__INPUT_SLOTS];
    unsigned char *sum[REN__INPUT_SLOTS];
    uint64_t zeroed_bytes; /* from `state` on */

    unsigned char *pinned; /* [set] spare; control and result of each step, then stage memory */
    uint64_t pinned_bytes;
    uint64_t stage_bytes; /* of one step; 0 when the device copies from any host memory */

    ren__step steps[REN__STEPS];
    ren__step_notice notices[REN__NOTICES];
    uint32_t notice_next;  /* [sub] */
    ren__step_plan *plans; /* [set] the array */
    uint32_t plan_count;   /* [set] */
    ren__plan_policy policy;
    uint32_t segments;    /* [set] 1 = a graph for each segment of a plan */
    ren__spares spares;   /* graphs of plans that went */
    const void **sources; /* block behind the steps' arrays */
    uint32_t *staged;
    ren__stage_copy *stage_copies;

    ren__control scalars;   /* [post] of the next step */
    uint64_t next_index;    /* [post] */
    uint8_t *frozen;        /* [post] by parameter, as of frozen_seen */
    uint64_t frozen_seen;   /* [post] the model's version */
    uint32_t counts_wanted; /* [post] Adam, and some parameter was frozen once */

    ren__event *copied[REN__INPUT_SLOTS]; /* [sub] inputs are in the slot */
    ren__event *end[REN__INPUT_SLOTS];    /* [sub] the slot's last step is done */
    uint32_t end_missing;                 /* [sub] bit p: end[p] is still to be recorded */
    uint64_t issue_count;                 /* [sub] steps issued whole */
    const ren__step_plan *issued_plan;    /* [sub] of the newest issue; only compared */
    uint32_t window_at;                   /* [sub] steps of the window issued whole */
    uint32_t counts_made;                 /* [sub] `counts` holds what it should */
    uint32_t repair;                      /* [sub] a step broke off: put the state right */
    /* [sub] pinned: the state behind the newest step issued whole, once the lane has come there;
     * NULL = it could not be fetched */
    const ren__state *known;
    ren__state *spare; /* [set] pinned */
};

/* trainer.c: the plans for `batch` rows and what is frozen now; made when there are none, which is
 * slow. */
ren_status ren__trainer_plan(ren_trainer *t, uint32_t batch, ren__step_plan **out, ren_error *err);

/* scalars.c: one scalar, or all of a configuration, into a control block; a value out of its range
 * changes nothing. */
ren_status ren__scalar_put(ren__control *control, ren_scalar scalar, float value, ren_error *err);
ren_status ren__scalars_take(ren__control *control, const ren_trainer_config *config,
                             ren_error *err);

#endif
