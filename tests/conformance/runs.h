/* SPDX-License-Identifier: MIT */
/* tests/conformance/runs.h - training runs that are compared with one another.
 *
 * Purpose   A run is a function of its spec: same network, data, batch sizes and learning rates, so
 *           two runs that differ in path, streams or faults alone must end with the same bits.
 * Threads   one test thread per run; runs in one runtime may go at the same time.
 */
#ifndef REN_TEST_RUNS_H
#define REN_TEST_RUNS_H

#include "../golden/nets.h"

#define RUN_MOST_STEPS 1536u

typedef struct run_spec {
    net_kind kind;
    const char *model; /* NULL, or one of the standard models in place of `kind` */
    uint32_t batch;
    ren_optimizer optimizer;
    uint32_t steps;
    uint32_t block;      /* batch sizes change after so many steps; 0 = the full batch always */
    uint32_t sizes;      /* of batches in turn, with `block`: full, full - 1, ... */
    uint32_t window;     /* steps of an update; with it clipping and an average; 0 = none of it */
    uint32_t vary;       /* 1 = another learning rate each step */
    uint64_t left_out;   /* bit i: step i is not posted (i < 64) */
    uint32_t one_by_one; /* 1 = wait for each step */
    uint32_t plan_cache; /* as ren_trainer_config has it; so the next */
    ren_stream_policy policy;
    ren_precision precision;
    uint32_t segments; /* 1 = a graph for each segment of a plan */
    uint32_t streams;  /* of run_alone */
    uint32_t after;    /* likewise */
    uint32_t queued;   /* likewise: 1 = graphs are disabled */
} run_spec;

typedef struct run_result {
    float *params;
    size_t count;
    uint32_t steps; /* posted; results[] are by step of the spec */
    net_result results[RUN_MOST_STEPS];
    uint32_t graph_steps;
    ren_stats stats; /* run_alone: after the last step */
} run_result;

/* A run under way, for tests that do things between its steps. */
typedef struct run {
    const run_spec *spec;
    ren_runtime *rt;
    net n;
    ren_trainer *t;
    float *x;
    int32_t *labels;
    uint32_t next;
    run_result *out;
} run;

run_spec run_default(net_kind kind);

void run_begin(run *r, ren_runtime *rt, const run_spec *spec, run_result *out);
void run_step(run *r); /* post the next step; wait for it where the spec says so */
/* All completions, weights; what is not left out has completed once, with the right index. */
void run_end(run *r);
/* The last part of it, for a run whose trainer is gone. */
void run_end_model(run *r);

ren_runtime *run_runtime(const run_spec *spec);
void run_in(ren_runtime *rt, const run_spec *spec, run_result *out);
void run_alone(const run_spec *spec, run_result *out);

/* Same weights, and same losses where both have a step that is done; frees `other`'s weights. */
void run_same(const run_result *base, run_result *other);
void run_free(run_result *r);

#endif
