/* SPDX-License-Identifier: MIT */
/* libren/train/infer.h - inference's own structs, seen by libren/train/ only.
 *
 * Purpose   What infer.c (requests, posting), infer_plan.c (outputs, shapes, plans) and
 *           infer_issue.c (the submitter's side) share, and who may touch it:
 *             [set]  written when the thing is made, then only read
 *             [lock] under the model's lock
 *             [own]  whoever holds the request
 *             [sub]  the submitter
 * Words     output: a tensor of the model that somebody has asked for. shape: a number of rows of
 *           it. request: one inference from its post to the end of its completion.
 *
 * Who shares what. A shape has one plan, one set of input memory and of activations for each
 * compute stream in use. Requests on one stream run one after the other there, copies included, so
 * they share those; requests on different streams share nothing but the weights (weights.h), and
 * run at the same time. A request that is accepted holds a record of its own, from which the host's
 * data come and to which the answer goes, so many more may be under way than there are streams.
 */
#ifndef REN_TRAIN_INFER_H
#define REN_TRAIN_INFER_H

#include "../../queues/index_stack.h"
#include "model_state.h"
#include "replay.h"
#include "stage.h"

#define REN__INFER_SHAPES   8u  /* numbers of rows whose plans are kept, per output */
#define REN__INFER_REQUESTS 32u /* under way at most, per output, unless the host says otherwise */
#define REN__INFER_INPUTS   64u /* of one output at most: a bit each */

typedef struct ren__infer_lane {
    ren__plan *plan;    /* [set] */
    uint32_t tasks;     /* [set] 0 = the output is an input */
    uint32_t commands;  /* [set] of the plan */
    ren__replay replay; /* [sub] */
    void **externals;   /* [sub] by value; inputs are [set] */
    uint32_t external_count;
    uint32_t weights_value; /* REN__NO_VALUE = none */
    void **inputs;          /* [set] device, by input */
    void *result;           /* [set] device */
} ren__infer_lane;

typedef struct ren__infer_shape {
    /* Rows 32 | users 32; 0 = empty, or being filled under the model's lock. A request adds itself
     * as a user where the rows are its own; who empties the shape expects no user. The release of
     * the last user pairs with the acquire of who empties. */
    _Atomic uint64_t word;
    _Atomic uint64_t last_used;
    ren__region region; /* inputs of all lanes */
    void **inputs;      /* block behind the lanes' arrays */
    ren__infer_lane lanes[REN__INFER_LANES];
} ren__infer_shape;

typedef struct ren__infer_input {
    uint32_t node;
    uint64_t row_bytes;
    uint64_t bytes;
} ren__infer_input;

typedef struct ren__infer_request {
    ren__infer_output *output; /* [set] */
    uint32_t index;            /* [set] */
    unsigned char *staged;     /* [set] pinned; NULL where the device copies from any memory */
    unsigned char *bounce;     /* [set] likewise, for the output */
    const void **source;       /* [own] by input: what the lane copies from */
    ren__stage stage;
    uint32_t uses_stage;     /* [own] */
    ren__infer_shape *shape; /* [own] */
    ren__infer_lane *lane;   /* [own] */
    uint32_t lane_index;     /* [own] */
    uint32_t batch;          /* [own] */
    uint32_t any_version;    /* [own] */
    uint32_t to_buffer;      /* [own] */
    ren_stream stream;       /* [own] */
    void *out;               /* [own] */
    uint64_t out_bytes;      /* [own] */
    uint64_t seq;
    uint32_t launches; /* [sub] its need was told for a graph's launch */
    uint64_t version;  /* [sub] */
} ren__infer_request;

struct ren__infer_output {
    ren__infer_output *next;
    ren_model *model;
    uint32_t node;
    uint32_t batch; /* the full one */
    uint64_t bytes; /* of the full batch */
    uint32_t is_loss;
    uint32_t pageable;
    ren__infer_input *inputs;
    uint32_t input_count;
    unsigned char *pinned;
    uint64_t pinned_bytes;
    const void **sources; /* blocks behind the requests' arrays */
    ren__stage_copy *copies;
    ren__infer_request *requests;
    uint32_t request_count;
    uint32_t *free_next;
    ren__index_stack free; /* requests that nobody holds */
    _Atomic uint64_t uses;
    ren__infer_shape shapes[REN__INFER_SHAPES];
};

/* infer_plan.c */
/* Free all outputs; the chain has run empty. */
void ren__infer_free_all(ren_model *m);
/* The output of a node, or NULL. */
ren__infer_output *ren__infer_find(ren_model *m, uint32_t node);
/* The slow way: the output, and the shape of `batch` rows (0 = the full batch). */
ren_status ren__infer_make(ren_model *m, uint32_t node, uint32_t batch, ren__infer_output **out,
                           ren_error *err);
/* The shape of so many rows, used by the caller from now on; NULL when there is none. */
ren__infer_shape *ren__infer_take_shape(ren__infer_output *o, uint32_t batch);
void ren__infer_leave_shape(ren__infer_shape *shape);
uint64_t ren__infer_output_bytes(const ren__infer_output *o, uint32_t batch);

/* infer.c: nobody needs the request any more, but, with `staging`, the job that was to copy its
 * inputs. */
void ren__infer_let_go(ren__infer_request *x, uint32_t staging);

/* infer_issue.c: fill in the work of a request whose shape and lane are chosen. */
void ren__infer_work(ren__infer_request *x, ren__work *work);

#endif
