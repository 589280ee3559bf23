/* SPDX-License-Identifier: MIT */
/* memory/pool.h - device memory in stream order: slabs, carved into blocks that are freed behind
 * points.
 *
 * Purpose   Buffers come and go while the device works, and neither the driver nor the host may be
 *           made to wait for that. A block is freed when the last job that uses it has been issued,
 *           not when it is done; what is not done yet goes with the block as its fence.
 * Threads   alloc, free, reserve, trim, get_stats: any thread. create, destroy: no concurrent use.
 * Progress  alloc without growth, and free, take one lock (with priority inheritance) that is held
 *           for bookkeeping only: a few tens of nanoseconds in a steady state, tens of microseconds
 *           for a search that finds 4,096 free blocks and all of them behind other lanes
 *           (tests/bench/pool_bench.c). No call waits for the device. The upstream is never called
 *           with that lock held (but for `completed`, which does not wait); growers and trimmers
 *           queue for each other, and only for each other.
 * Order     See below.
 * Memory    The book of blocks is one array made at create; no call after that takes host memory.
 *           Addresses are aligned to 256 bytes, if the upstream's are.
 * Units     Sizes in bytes. A lane's batches are numbered from 1 in the order it runs them.
 * Not here  Waiting for a fence: the caller makes its streams wait, or knows that they need not.
 *
 * Why a block is never used too early
 *   1. A use of a block is a batch on a lane. Batches of one lane complete in order, so the last
 *      batch by lane stands for all uses: the fence {seq per lane}.
 *   2. free() joins (maximum per lane) the uses it is told with the fence under which the block was
 *      handed out. The second part matters when a block is freed unused, or used on some lanes
 *      only: its former users' work may be under way still, and nobody else remembers it.
 *   3. Splitting copies the fence to both parts; merging joins the fences. So at any time a block's
 *      fence covers every use of each of its bytes that may be incomplete.
 *   4. alloc() returns that fence, less what `completed` has reported as complete. An entry of the
 *      lane that will use the block needs no wait, since the lane runs in order; every other entry
 *      is a wait that the caller enqueues before the first use. `completed` must be an acquire load
 *      of what a completion thread stored with release, since on a device whose memory the host can
 *      touch the new owner's writes must come after the old owner's reads.
 *   5. A slab goes back upstream only when all its blocks are free and their fences are complete.
 *
 * Failure order of alloc for lane L
 *   1. a free block that waits for no lane but L: one of L's own list that need not be cut, else
 *      the best fit of all lists, L's own among equals;
 *   2. the best fit of all free blocks, behind its fence;
 *   3. merging neighbours: complete ones, which costs nothing; then the smallest run that is large
 *      enough and waits for no lane but L; then the smallest run at all, behind the joined fence;
 *   4. a new slab, if `grow`; else REN_ERR_WOULD_GROW, if the limit leaves room for one;
 *   5. slabs that are wholly free and complete are given back to make room under the limit, or
 *      after the upstream has refused, and 4 is tried again with the bytes asked for alone.
 *   Then REN_ERR_NO_DEVICE_MEMORY, and the pool is as before, but for what was merged or trimmed.
 *   One case is neither: slabs that are wholly free behind a fence cannot be given back yet, and
 *   would make room once they can. alloc and reserve answer REN_ERR_WOULD_GROW to it, even with
 *   `grow`: the same call after those batches have completed succeeds, or says
 *   REN_ERR_NO_DEVICE_MEMORY.
 *
 * A cut of a large block where an exact fit lies on another lane's list is what fragments: taking
 * the own list in any case made the factor below 1.41 at worst over 11 seeds; as it is, 1.33.
 * Merging is put off until it is needed, because a step asks for the same sizes again and again,
 * and blocks that kept their size and their own fence are found at once and wait for nothing.
 *
 * Fragmentation
 *   Blocks are cut to multiples of 256 bytes, and a rest below a sixteenth stays with its block.
 *   Best fit, with all free neighbours joined before any growth, has no useful worst-case bound (no
 *   allocator that cannot move blocks has: Robson's bound is logarithmic in the ratio of sizes).
 *   The bound that is promised is on a trace: over 100,000 events of mixed sizes (256 bytes to
 *   4 MiB) on 2 and on 5 lanes, peak reserved is at most 1.5 times peak live. The unit test replays
 *   it and prints the figure.
 */
#ifndef REN_MEMORY_POOL_H
#define REN_MEMORY_POOL_H

#include "host.h"

#define REN__POOL_LANES 5u

/* "When every lane has completed its batch seq[lane]": seq 0 = that lane does not matter. */
typedef struct ren__fence {
    uint64_t seq[REN__POOL_LANES];
} ren__fence;

/* The device, as the pool knows it. None of these may call the pool. `alloc` fails with
 * REN_ERR_DEVICE_LOST when asking again is pointless, with anything else when it is short of
 * memory; it leaves no error state behind that a later device call would report. */
typedef struct ren__pool_upstream {
    ren_status (*alloc)(void *user, uint64_t bytes, void **out);
    void (*free)(void *user, void *ptr, uint64_t bytes);
    /* Newest completed batch of a lane; never waits. Called with the pool's lock held. */
    uint64_t (*completed)(void *user, uint32_t lane);
    void *user;
} ren__pool_upstream;

typedef struct ren__pool_config {
    uint32_t lanes;       /* 1..REN__POOL_LANES */
    uint64_t limit_bytes; /* of slabs; 0 = none */
    uint64_t slab_bytes;  /* smallest slab; 0 = 8 MiB; less where the limit leaves less room */
    uint32_t max_blocks;  /* blocks, live and free together; fixed at init. With S slabs,
                             (max_blocks - S) / 2 live blocks always fit */
} ren__pool_config;

typedef struct ren__pool_stats {
    uint64_t in_use_bytes;   /* of live blocks */
    uint64_t reserved_bytes; /* of slabs; while an upstream call is under way, with its bytes */
    uint64_t peak_bytes;     /* the most in_use_bytes ever was */
    uint64_t driver_allocs;  /* slabs got */
    uint64_t driver_frees;   /* slabs given back */
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

/* Returns   REN_OK; REN_ERR_INVALID_ARGUMENT (lanes, max_blocks or slab_bytes out of range);
 *           REN_ERR_NO_MEMORY. */
ren_status ren__pool_create(const ren__pool_config *config, const ren__pool_upstream *upstream,
                            const ren__host_allocator *a, ren__pool **out);
void ren__pool_destroy(ren__pool *pool); /* NULL is fine; returns all slabs, whatever is live */

/* A block for work that begins on `lane`. bytes 0 counts as 1. grow 0: REN_ERR_WOULD_GROW instead
 * of asking the upstream, when asking might help.
 * Returns   REN_OK; REN_ERR_WOULD_GROW; REN_ERR_NO_DEVICE_MEMORY; REN_ERR_QUEUE_FULL (max_blocks);
 *           REN_ERR_DEVICE_LOST (the upstream said so). *out is written on REN_OK only. */
ren_status ren__pool_alloc(ren__pool *pool, uint32_t lane, uint64_t bytes, int grow,
                           ren__block *out);

/* `uses`: the last batch of each lane that touches the block; `lane`: whose free list it goes to.
 * The fence that came with the block need not be in `uses`. */
void ren__pool_free(ren__pool *pool, const ren__block *block, uint32_t lane,
                    const ren__fence *uses);

/* One free piece of at least `bytes` exists afterwards, perhaps behind a fence.
 * Returns   as ren__pool_alloc with grow 1. */
ren_status ren__pool_reserve(ren__pool *pool, uint64_t bytes);

/* Give slabs that are wholly free and complete back to the upstream. */
void ren__pool_trim(ren__pool *pool);

void ren__pool_get_stats(ren__pool *pool, ren__pool_stats *out);

#endif
