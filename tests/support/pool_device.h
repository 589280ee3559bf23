/* SPDX-License-Identifier: MIT */
/* tests/support/pool_device.h - a make-believe device under the pool, which knows the truth.
 *
 * Purpose   The pool's upstream in tests. It hands out addresses that are never touched, numbers
 *           the batches of five lanes, completes them when a test says so, and remembers for every
 *           256 bytes who owns them and which batch of each lane used them last. From that it
 *           judges the pool: no two live blocks overlap, no block is handed out whose fence leaves
 *           out an incomplete use, no slab goes back with a live or unfinished block in it.
 * Threads   Any, but init, deinit and the plain members, which one thread sets before others start.
 * Progress  One lock; with `sleep_after_free` an upstream free sleeps after the address is free for
 *           others again, so that a ledger that is updated too late is caught.
 * Not here  Memory: the addresses lead nowhere.
 */
#ifndef REN_TEST_SUPPORT_POOL_DEVICE_H
#define REN_TEST_SUPPORT_POOL_DEVICE_H

#include "../../memory/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#define POOL_DEVICE_SLABS 256u
#define POOL_DEVICE_GRAIN 256u

typedef struct pool_device_grain {
    uint64_t last[REN__POOL_LANES]; /* batch of each lane that used these bytes last */
    uint32_t owner;                 /* 1 + index of the live block, or 0 */
} pool_device_grain;

typedef struct pool_device_slab {
    uint64_t bytes; /* 0 = not given out */
    pool_device_grain *grains;
} pool_device_slab;

typedef struct pool_device {
    /* Set by the test. */
    uint64_t capacity;      /* bytes that alloc may hand out in all; 0 = no bound */
    uint64_t fail_nth;      /* this alloc call fails, counted from 1; 0 = none */
    int fail_forever;       /* and all after it */
    ren_status fail_status; /* with this; 0 = REN_ERR_NO_DEVICE_MEMORY */
    int blind;              /* 1 = keep no truth by grain (long traces) */
    unsigned sleep_after_free_us;

    /* What happened. */
    pthread_mutex_t lock;
    uint64_t held_bytes, most_bytes;
    uint64_t alloc_calls, allocs, frees;
    uint64_t errors;
    char first_error[128];
    pool_device_slab slabs[POOL_DEVICE_SLABS];
    _Atomic uint64_t posted[REN__POOL_LANES];
    _Atomic uint64_t completed[REN__POOL_LANES];
} pool_device;

void pool_device_init(pool_device *d);
void pool_device_deinit(pool_device *d);
ren__pool_upstream pool_device_upstream(pool_device *d);

/* A block has been handed out: judge it, and own its bytes. */
void pool_device_claim(pool_device *d, const ren__block *block);

/* The next batch of `lane` uses the block; returns its number. */
uint64_t pool_device_use(pool_device *d, const ren__block *block, uint32_t lane);

/* The block is about to be freed: its bytes are nobody's. */
void pool_device_disown(pool_device *d, const ren__block *block);

/* `lane` has completed its batches up to `seq`, or all of them. */
void pool_device_complete(pool_device *d, uint32_t lane, uint64_t seq);
void pool_device_complete_all(pool_device *d);

#endif
