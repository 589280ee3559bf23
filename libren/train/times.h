/* SPDX-License-Identifier: MIT */
/* libren/train/times.h - when the commands of one step ran, for the trace.
 *
 * Purpose   step.c marks what it enqueues; when the step is done its stamps become rows of the
 *           trace, and sums in the stats. Without a trace each of these calls is a look at one
 *           member.
 * Threads   begin, stamp, issued: the submitter.  finish: the thread that completes the step.
 * Memory    the runtime's ring of stamps; a step that finds no room there goes without times.
 *
 * Stamps of a step, by index: before the transfer; behind each input's copy, and behind that of the
 * control block; around the copy of the result; two for each task of the plan. Transfer and result
 * are outside the graph, so their stamps go straight into the step's memory on both paths.
 */
#ifndef REN_TRAIN_TIMES_H
#define REN_TRAIN_TIMES_H

#include "../graph/plan.h"

enum {
    REN__STAMP_RESULT = 0,
    REN__STAMP_RESULT_END = 1,
    REN__STAMP_TRANSFER = 2,
    REN__STAMP_INPUTS = 3 /* + input; the control block's comes last, then those of the tasks */
};

typedef struct ren__step ren__step;

typedef struct ren__step_clock {
    uint64_t *stamps; /* NULL = the step is not timed */
    uint64_t *tasks;  /* among them; NULL likewise */
    const ren__plan *plan;
    uint64_t issue_ns, issued_ns; /* the host's clock */
} ren__step_clock;

void ren__step_clock_begin(ren__step *step, ren__submit *s);
void ren__step_stamp(ren__step *step, ren__submit *s, ren_stream stream, uint32_t index);
void ren__step_clock_issued(ren__step *step);
void ren__step_clock_finish(ren__step *step, const ren_completion *c);

#endif
