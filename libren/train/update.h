/* SPDX-License-Identifier: MIT */
/* libren/train/update.h - the end of a step's plan: sum, check, count, optimizer, average, commit.
 *
 * Purpose   trainer.c lists both passes of a step with diff.h, then the tasks here, and has the
 *           whole planned.
 * Threads   the one that makes plans.
 * Memory    none: values and tasks belong to the task graph.
 */
#ifndef REN_TRAIN_UPDATE_H
#define REN_TRAIN_UPDATE_H

#include "diff.h"
#include "trainer_state.h"

/* The values that the update adds; REN__NO_VALUE where the trainer has no such memory. */
typedef struct ren__step_update {
    ren_trainer *t;
    ren__diff *d; /* emitted */
    ren__task_graph *g;
    uint32_t counted; /* 1 = Adam counts the updates of each parameter by itself */
    /* FIXED */
    uint32_t state;
    uint32_t moment[2];
    uint32_t average;
    uint32_t counts;
    /* EXTERNAL, where steps accumulate */
    uint32_t sum_in;
    uint32_t sum_out;
} ren__step_update;

/* Add the tasks of d's phase. t, d, g and counted are set. */
void ren__update_emit(ren__step_update *u);

#endif
