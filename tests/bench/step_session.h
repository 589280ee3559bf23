/* SPDX-License-Identifier: MIT */
/* tests/bench/step_session.h - one model in training on one path, a run of steps at a time.
 *
 * Purpose   What step_bench.c interleaves: a runtime of its own, the model, its trainer, two
 *           batches of data, and the losses that show that the steps trained.
 * Threads   one.
 * Progress  open and run end the program with a line when something fails that should not; what
 *           this version or device cannot do is an answer, not a failure.
 */
#ifndef REN_TESTS_STEP_SESSION_H
#define REN_TESTS_STEP_SESSION_H

#include <stdbool.h>

#include "cases.h"

typedef enum step_path {
    STEP_SYNC = 0, /* one stream, the submitter waits after each task */
    STEP_ASYNC,    /* one stream */
    STEP_PLANNED,  /* several streams by plan */
    STEP_GRAPH1,   /* one stream, captured */
    STEP_GRAPH,    /* several streams, captured: libren's default */
    STEP_GRAPHSEG, /* the same, a graph for each segment of the plan */
    STEP_PATHS
} step_path;

typedef struct step_config {
    bench_model_case of;
    step_path path;
    ren_device_kind device;
    uint32_t streams; /* of STEP_PLANNED, _GRAPH and _GRAPHSEG; 0 = libren's default */
    uint32_t cpu_threads;
    uint32_t autotune; /* of the CUDA device */
    uint32_t fill;     /* 1 = every step fills its input slots */
    ren_stream_policy policy;
    const char *module_path;
} step_config;

/* Of one run. */
typedef struct step_figures {
    double step_ns;  /* wall time over steps */
    double events;   /* recorded per step */
    double cpu_ns;   /* processor time of all threads, per step */
    double switches; /* context switches of all threads, per step */
    double others;   /* processors that other processes kept busy meanwhile */
    bool on_path;    /* every step took the path that was asked for */
} step_figures;

/* Of traced steps, each: device times, with stamps between the tasks. */
typedef struct step_times {
    double bubble;  /* share of the streams' time, each from its first task of a step to its last,
                          in which they ran none */
    double step_ns; /* wall time over steps */
    double latency_ns; /* from post to completion */
    double issue_ns;   /* the submitter's time */
    double device_ns;  /* from the first task to the last */
    double events;     /* waits of one stream for another's event */
} step_times;

typedef struct step_session step_session;

/* NULL, and the reason in `why`, when the device or the precision is not there. */
step_session *step_session_open(const step_config *config, char *why, size_t why_bytes);
void step_session_close(step_session *s); /* NULL is fine */

/* Post `steps` steps, at most two under way at a time, and wait for the last. */
step_figures step_session_run(step_session *s, uint32_t steps);

/* Some more steps under a trace, which goes to `path`. */
step_times step_session_trace(step_session *s, uint32_t steps, const char *path);

uint32_t step_session_nodes(const step_session *s); /* tasks of the plan */

/* Losses of the first steps, and of the newest. */
uint32_t step_session_losses(const step_session *s, const float **out_first);
float step_session_last_loss(const step_session *s);
double step_session_mean_loss(step_session *s); /* of the steps since it was asked last */
uint64_t step_session_steps(const step_session *s);

#endif
