/* SPDX-License-Identifier: MIT */
/* demos/01_digits/poster.h - the thread that posts training steps.
 *
 * Purpose   What a host's loading thread does: fill a staging slot with the next batch, post a
 *           step, and hold back when libren says that it has enough.
 * Threads   poster_start and poster_join: the frame's thread. The atomics are for any.
 */
#ifndef DEMO_POSTER_H
#define DEMO_POSTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../../host_api/ren.h"
#include "digits.h"

typedef struct poster {
    ren_trainer *trainer;
    const digit_set *set;
    uint32_t steps;
    uint64_t seed;
    ren_done_fn done; /* of every step */
    void *user;
    pthread_t thread;
    _Atomic uint32_t posted;
    _Atomic uint32_t retries; /* posts and slots that had to wait */
    atomic_bool stop;         /* the frame's thread asks it to end early */
    atomic_bool finished;     /* posted is final */
    _Atomic ren_status status;
} poster;

/* The members above `thread` are set by the caller. 0, or an errno. */
int poster_start(poster *p);
void poster_join(poster *p);

#endif
