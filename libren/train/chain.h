/* SPDX-License-Identifier: MIT */
/* libren/train/chain.h - a model's works are issued in the order in which they were posted.
 *
 * Purpose   Steps, inferences and parameter moves of one model use the same weights. What each
 *           finds is settled on the submitter, in the order of issue: steps and moves put their
 *           commands on UPDATE, and inferences choose, and if need be make, the copy of the weights
 *           that they read (weights.h). What is left to ensure is that issue order is post order,
 *           although the submitter may park one job and go on with the next. Each work therefore
 *           goes after its predecessor, unless that is known to be issued. No lane waits for it:
 *           an inference may run while the step posted before or after it runs.
 * Threads   post: any thread; a short lock covers reading the tail, the post, and writing the tail.
 *           Whoever finds it taken yields the processor. A work that is `loose` takes no lock.
 *           issued: the submitter. finished: a completion thread.
 * Progress  the lock is held for one or two posts, never across a wait for the device.
 * Order     total over all posters, in the order of taking the lock; loose works are outside it.
 * Memory    none.
 *
 * Why a predecessor and not a queue of our own: a job may be cancelled, refused or fail at any
 * time, and the core already knows how to order jobs through all of that. A cancelled work is
 * finished when its predecessor is issued, not before; so behind a finished work, whatever its
 * status, there is none that is still to be issued. A predecessor whose slot was reused is
 * finished, so a stale id means "no need to wait".
 *
 * Input that the device cannot copy by itself (no pageable copies) takes a job before the work: a
 * HOST job on TRANS that copies it into pinned memory, for which the work waits. The submitter
 * never copies and never blocks.
 */
#ifndef REN_TRAIN_CHAIN_H
#define REN_TRAIN_CHAIN_H

#include <stdatomic.h>

#include "../core/core.h"

typedef struct ren__chain {
    ren_runtime *rt;
    atomic_flag lock;
    ren_job tail;      /* under lock: the newest work accepted */
    uint64_t tail_seq; /* under lock: its number, from 1; 0 = none yet */
    /* Number of the newest work issued. Written with release by the submitter, read with acquire
     * under the lock: who sees a number knows that this work's commands are in the lanes, so that a
     * later one cannot overtake it. */
    _Atomic uint64_t issued;
    /* Works accepted whose finish has not ended. finished's release pairs with the acquire of
     * drain, which frees what finish used. */
    _Atomic uint32_t outstanding;
} ren__chain;

typedef struct ren__chain_post {
    ren__work work;
    uint64_t *seq;  /* written before the post; issue hands it to ren__chain_issued */
    uint32_t loose; /* 1 = in no order with others; seq becomes 0 */
    ren_done_fn done;
    void *user;
    ren_deliver deliver;
    uint32_t channel;
    ren_host_fn stage; /* NULL, or what must run before the work is issued, on TRANS' thread */
    void *stage_user;
    ren_job *stage_job; /* out, with stage: its job; {0} = it was not accepted and never runs */
} ren__chain_post;

void ren__chain_init(ren__chain *c, ren_runtime *rt);

/* For the short sections of others that belong to the same order (tables of plans). */
void ren__chain_lock(ren__chain *c);
void ren__chain_unlock(ren__chain *c);

/* Returns as ren__work_post. After an error `stage` may still run, once, if *stage_job says so: the
 * caller guards its data. */
ren_status ren__chain_submit(ren__chain *c, ren__chain_post *p, ren_job *out_job);

/* In issue, at its end, also on an error; nothing for 0. */
void ren__chain_issued(ren__chain *c, uint64_t seq);
void ren__chain_finished(ren__chain *c); /* the last thing finish does */

/* Wait for one job, or for all works, ticking a runtime without a submitter thread; help is one
 * round of such a wait. Never inside a callback. */
void ren__chain_help(ren__chain *c, ren_job job);
void ren__chain_await(ren__chain *c, ren_job job);
void ren__chain_drain(ren__chain *c);

#endif
