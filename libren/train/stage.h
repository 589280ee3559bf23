/* SPDX-License-Identifier: MIT */
/* libren/train/stage.h - host memory into pinned memory, off the posting thread and the submitter.
 *
 * Purpose   A device without pageable copies can only copy from pinned memory, and a post neither
 *           copies tensors nor blocks. So a HOST job copies what the bindings name into a pinned
 *           block before the step or inference is issued.
 * Threads   arm and void: the posting thread. run: TRANS' completion thread. is_idle: any.
 * Order     IDLE -arm-> ARMED -run-> COPYING -run-> DONE; ARMED -void-> VOID -run-> IDLE; DONE
 *           counts as idle for the next arm.
 * Memory    fixed at init.
 *
 * void is what makes a refused post harmless, and a cancelled work: the HOST job was accepted
 * before, and the host may free its memory at once. Either void wins and run copies nothing, or
 * run is copying and void yields until it is done: the length of one copy at most.
 */
#ifndef REN_TRAIN_STAGE_H
#define REN_TRAIN_STAGE_H

#include <stdatomic.h>

#include "../core/core.h"

typedef struct ren__stage_copy {
    void *to;
    const void *from;
    uint64_t bytes; /* 0 = nothing to copy for this input */
} ren__stage_copy;

typedef struct ren__stage {
    ren__stage_copy *copies; /* the owner's, count of them */
    uint32_t count;
    _Atomic uint32_t state;
    ren_job job;
} ren__stage;

void ren__stage_arm(ren__stage *g);
void ren__stage_run(void *stage);            /* a ren_host_fn */
uint32_t ren__stage_copy_all(ren__stage *g); /* what it does; 0 = it was void, and is idle now */
uint32_t ren__stage_void(ren__stage *g); /* 1 = it will copy nothing; 0 = it has, or never runs */
void ren__stage_disarm(ren__stage *g);   /* its job was not accepted */
uint32_t ren__stage_is_done(const ren__stage *g);
uint32_t ren__stage_is_idle(const ren__stage *g);

#endif
