/* SPDX-License-Identifier: MIT */
/* memory/pool.h - device memory in stream order: slabs, carved into blocks that are freed behind
 * points.
 *
 * (Essay to be completed by the implementation: ordering argument, failure order, fragmentation
 * bound.)
 */
#ifndef REN_MEMORY_POOL_H
#define REN_MEMORY_POOL_H

#include "host.h"

#define REN__POOL_LANES 5u

/* "When every lane has completed its batch seq[lane]": seq 0 = that lane does not matter. */
typedef struct ren__fence {
    uint64_t seq[REN__POOL_LANES];
} ren__fence;

/* The device, as the pool knows it. */
typedef struct ren__pool_upstream {
    ren_status (*alloc)(void *user, uint64_t bytes, void **out);
    void (*free)(void *user, void *ptr, uint64_t bytes);
    uint64_t (*completed)(void *user,
                          uint32_t lane); /* newest completed batch of a lane; never waits */
    void *user;
} ren__pool_upstream;

typedef struct ren__pool_config {
    uint32_t lanes;
    uint64_t limit_bytes; /* of slabs; 0 = none */
    uint64_t slab_bytes;  /* smallest slab; 0 = 8 MiB */
    uint32_t max_blocks;  /* blocks, live and free together; fixed at init */
} ren__pool_config;

typedef struct ren__pool_stats {
    uint64_t in_use_bytes, reserved_bytes, peak_bytes, driver_allocs, driver_frees;
} ren__pool_stats;

typedef struct ren__pool ren__pool;

/* A live allocation. `fence`: what must be complete before the memory may be touched; entries of
 * lanes that are complete already are 0. Work on lane L need not wait for fence.seq[L] (its own
 * order). */
typedef struct ren__block {
    void *ptr;
    uint64_t bytes; /* usable, at least what was asked */
    uint32_t index; /* the pool's own */
    ren__fence fence;
} ren__block;

ren_status ren__pool_create(const ren__pool_config *config, const ren__pool_upstream *upstream,
                            const ren__host_allocator *a, ren__pool **out);
void ren__pool_destroy(ren__pool *pool); /* NULL is fine; returns all slabs */

/* grow 0: REN_ERR_WOULD_GROW instead of asking the upstream, when asking might help.
 * Returns REN_OK; REN_ERR_WOULD_GROW; REN_ERR_NO_DEVICE_MEMORY; REN_ERR_QUEUE_FULL (max_blocks). */
ren_status ren__pool_alloc(ren__pool *pool, uint32_t lane, uint64_t bytes, int grow,
                           ren__block *out);

/* `uses`: the last batch of each lane that touches the block; `lane`: whose free list it goes to.
 */
void ren__pool_free(ren__pool *pool, const ren__block *block, uint32_t lane,
                    const ren__fence *uses);

/* One free piece of at least `bytes` exists afterwards. */
ren_status ren__pool_reserve(ren__pool *pool, uint64_t bytes);

/* Give slabs that are wholly free and complete back to the upstream. */
void ren__pool_trim(ren__pool *pool);

void ren__pool_get_stats(ren__pool *pool, ren__pool_stats *out);

#endif
