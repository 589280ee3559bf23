/* SPDX-License-Identifier: MIT */
/* memory/pool.c - device memory in stream order: the lock, the ledger and the upstream.
 *
 * Purpose   See pool.h for the ordering argument and the failure order.
 * Threads   `lock` guards the book (pool_blocks.h) and the ledger and is held for bookkeeping only.
 *           `slow` makes growers and trimmers queue for each other; it is taken before `lock`, and
 *           `lock` is dropped around every upstream call that may take long.
 *
 * The ledger
 *   reserved_bytes is charged before the upstream is asked and credited after it has taken memory
 *   back, so at no time does the upstream hold more than the limit for us; `unsettled_bytes` is the
 *   part of it that an upstream call under way will decide. A slab leaves the book before it goes
 *   back: the upstream may give the same address to another thread before its free returns here,
 *   and by then nothing of ours knows the address.
 */
#include "pool_blocks.h"

#include <pthread.h>

enum {
    DEFAULT_SLAB_BYTES = 8 << 20
};

struct ren__pool {
    pthread_mutex_t lock;
    uint64_t reserved_bytes;
    uint64_t unsettled_bytes;
    ren__pool_stats stats; /* all but reserved_bytes */
    ren__pool_blocks blocks;
    uint64_t limit_bytes;
    uint64_t slab_bytes;
    pthread_mutex_t slow;
    ren__host_allocator host;
};

/* ------------------------------------------------------------------ create, destroy */

/* A real-time thread that meets the lock in the hands of a preempted background thread must not
 * wait for every thread in between, so the holder inherits its priority where the system can do
 * that. Measured on two cores of an EPYC server: 42 ns instead of 36 ns for an alloc and a free. */
static void lock_init(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) == 0) {
        int failed = pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) ||
                     pthread_mutex_init(lock, &attributes);
        (void)pthread_mutexattr_destroy(&attributes);
        if (!failed) {
            return;
        }
    }
    /* Default attributes: on the C libraries that libren supports this cannot fail. */
    (void)pthread_mutex_init(lock, NULL);
}

ren_status ren__pool_create(const ren__pool_config *config, const ren__pool_upstream *upstream,
                            const ren__host_allocator *a, ren__pool **out)
{
    *out = NULL;
    if (config->lanes == 0 || config->lanes > REN__POOL_LANES || config->max_blocks == 0 ||
        config->max_blocks == UINT32_MAX || config->slab_bytes > UINT64_MAX / 2) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    ren__pool *pool = ren__host_calloc(a, 1, sizeof *pool);
    ren__pool_record *records = ren__host_calloc(a, config->max_blocks, sizeof(ren__pool_record));
    if (!pool || !records) {
        ren__host_free(a, records, config->max_blocks, sizeof(ren__pool_record));
        ren__host_free(a, pool, 1, sizeof *pool);
        return REN_ERR_NO_MEMORY;
    }
    uint64_t slab_bytes = config->slab_bytes ? config->slab_bytes : DEFAULT_SLAB_BYTES;
    pool->slab_bytes = (slab_bytes + REN__POOL_GRAIN - 1) / REN__POOL_GRAIN * REN__POOL_GRAIN;
    pool->limit_bytes = config->limit_bytes ? config->limit_bytes : UINT64_MAX;
    pool->host = *a;
    ren__pool_blocks_init(&pool->blocks, config->lanes, records, config->max_blocks, upstream);
    lock_init(&pool->lock);
    (void)pthread_mutex_init(&pool->slow, NULL);
    *out = pool;
    return REN_OK;
}

void ren__pool_destroy(ren__pool *pool)
{
    if (!pool) {
        return;
    }
    ren__pool_blocks *b = &pool->blocks;
    for (uint32_t slab = b->slabs; slab != REN__POOL_NONE; slab = b->records[slab].slab_next) {
        uint64_t bytes = 0;
        for (uint32_t i = slab; i != REN__POOL_NONE; i = b->records[i].above) {
            bytes += b->records[i].bytes;
        }
        b->upstream.free(b->upstream.user, b->records[slab].ptr, bytes);
    }
    (void)pthread_mutex_destroy(&pool->slow);
    (void)pthread_mutex_destroy(&pool->lock);
    ren__host_allocator host = pool->host;
    ren__host_free(&host, b->records, b->max_blocks, sizeof(ren__pool_record));
    ren__host_free(&host, pool, 1, sizeof *pool);
}

/* ------------------------------------------------------------------ growth; `slow` is held */

/* Would `need` more bytes fit the limit, if `leaving` of the reserved ones were not there? */
static int fits(const ren__pool *pool, uint64_t need, uint64_t leaving)
{
    return need <= pool->limit_bytes - (pool->reserved_bytes - leaving);
}

/* Give back one slab that is wholly free and complete; 0 when there is none. The lock is dropped
 * during the upstream's free. */
static int trim_one(ren__pool *pool)
{
    void *ptr = NULL;
    uint64_t bytes = 0;
    if (!ren__pool_slab_remove(&pool->blocks, &ptr, &bytes)) {
        return 0;
    }
    pool->unsettled_bytes += bytes;
    pthread_mutex_unlock(&pool->lock);
    pool->blocks.upstream.free(pool->blocks.upstream.user, ptr, bytes);
    pthread_mutex_lock(&pool->lock);
    pool->unsettled_bytes -= bytes;
    pool->reserved_bytes -= bytes;
    pool->stats.driver_frees++;
    return 1;
}

/* Ask the upstream for one slab of `bytes`, recorded under `index` as LIVE. The lock is dropped
 * during the call. */
static ren_status add_slab(ren__pool *pool, uint32_t index, uint64_t bytes, uint32_t lane)
{
    void *ptr = NULL;
    pool->reserved_bytes += bytes;
    pool->unsettled_bytes += bytes;
    pthread_mutex_unlock(&pool->lock);
    ren_status status = pool->blocks.upstream.alloc(pool->blocks.upstream.user, bytes, &ptr);
    pthread_mutex_lock(&pool->lock);
    pool->unsettled_bytes -= bytes;
    if (status != REN_OK) {
        pool->reserved_bytes -= bytes;
        return status;
    }
    pool->stats.driver_allocs++;
    ren__pool_slab_add(&pool->blocks, index, ptr, bytes, lane);
    return REN_OK;
}

/* Make room for `need` bytes under the limit, by a trim if that is enough; 0 when it is not. */
static int make_room(ren__pool *pool, uint64_t need)
{
    uint64_t complete = 0, pending = 0;
    ren__pool_slab_idle(&pool->blocks, &complete, &pending);
    if (!fits(pool, need, complete)) {
        return 0; /* and nothing is given back in vain */
    }
    while (!fits(pool, need, 0)) {
        if (!trim_one(pool)) {
            return 0; /* their blocks were taken while the lock was dropped */
        }
    }
    return 1;
}

/* A slab of the usual size, if there is a record for its rest, or of `need` bytes. Any error but a
 * lost device means that the upstream is short of memory. */
static ren_status add_slab_for(ren__pool *pool, uint32_t index, uint64_t need, uint32_t lane)
{
    uint64_t room = pool->limit_bytes - pool->reserved_bytes;
    uint64_t bytes = pool->slab_bytes < room ? pool->slab_bytes : room - room % REN__POOL_GRAIN;
    if (bytes > need && pool->blocks.spare != REN__POOL_NONE) {
        ren_status status = add_slab(pool, index, bytes, lane);
        if (status == REN_OK || status == REN_ERR_DEVICE_LOST) {
            return status;
        }
    }
    return add_slab(pool, index, need, lane);
}

/* Steps 4 and 5: REN_OK when the record `index` is a new slab, LIVE. Every upstream call drops the
 * lock, so after each the lists are searched again before the next, more costly, thing is tried:
 * after another status *out_index is what that found, or REN__POOL_NONE. */
static ren_status grow_with(ren__pool *pool, uint32_t index, uint32_t lane, uint64_t need,
                            uint32_t *out_index)
{
    *out_index = REN__POOL_NONE;
    int has_room = make_room(pool, need);
    ren_status status = has_room ? add_slab_for(pool, index, need, lane) : REN_ERR_NO_DEVICE_MEMORY;
    if (status == REN_OK || status == REN_ERR_DEVICE_LOST) {
        return status;
    }
    *out_index = ren__pool_search(&pool->blocks, lane, need);
    if (*out_index != REN__POOL_NONE || !has_room || !trim_one(pool)) {
        return status;
    }
    while (trim_one(pool)) {
    }
    status = add_slab(pool, index, need, lane);
    if (status != REN_OK && status != REN_ERR_DEVICE_LOST) {
        *out_index = ren__pool_search(&pool->blocks, lane, need);
    }
    return status;
}

/* A LIVE block of at least `need` bytes, not split. */
static ren_status take_growing(ren__pool *pool, uint32_t lane, uint64_t need, uint32_t *out_index)
{
    /* Another grower may have been faster. */
    *out_index = ren__pool_search(&pool->blocks, lane, need);
    if (*out_index != REN__POOL_NONE) {
        return REN_OK;
    }
    uint32_t index = ren__pool_record_take(&pool->blocks);
    if (index == REN__POOL_NONE) {
        return REN_ERR_QUEUE_FULL;
    }
    ren_status status = grow_with(pool, index, lane, need, out_index);
    if (status == REN_OK) {
        *out_index = index;
        return REN_OK;
    }
    ren__pool_record_give(&pool->blocks, index);
    if (*out_index != REN__POOL_NONE) {
        return REN_OK;
    }
    if (status == REN_ERR_DEVICE_LOST) {
        return status;
    }
    uint64_t complete = 0, pending = 0;
    ren__pool_slab_idle(&pool->blocks, &complete, &pending);
    return complete + pending != 0 && fits(pool, need, complete + pending)
               ? REN_ERR_WOULD_GROW
               : REN_ERR_NO_DEVICE_MEMORY;
}

/* What to say when the pool has nothing and may not grow: might asking help? */
static ren_status refuse_growth(ren__pool *pool, uint64_t need)
{
    uint64_t complete = 0, pending = 0;
    ren__pool_slab_idle(&pool->blocks, &complete, &pending);
    return fits(pool, need, complete + pending + pool->unsettled_bytes) ? REN_ERR_WOULD_GROW
                                                                        : REN_ERR_NO_DEVICE_MEMORY;
}

/* ------------------------------------------------------------------ alloc, free */

/* Bytes to take for `bytes` asked; 0 when no pool could hold them. */
static uint64_t round_request(const ren__pool *pool, uint64_t bytes)
{
    if (bytes > UINT64_MAX - REN__POOL_GRAIN) {
        return 0;
    }
    uint64_t need = (bytes + REN__POOL_GRAIN - 1) / REN__POOL_GRAIN * REN__POOL_GRAIN;
    need = need ? need : REN__POOL_GRAIN;
    return need <= pool->limit_bytes ? need : 0;
}

/* Split a LIVE block and fill *out; on REN_ERR_QUEUE_FULL the block is free again. */
static ren_status hand_out(ren__pool *pool, uint32_t index, uint64_t need, ren__block *out)
{
    ren__pool_record *r = &pool->blocks.records[index];
    if (!ren__pool_split(&pool->blocks, index, need)) {
        ren__pool_put(&pool->blocks, index, r->lane, NULL);
        return REN_ERR_QUEUE_FULL;
    }
    ren__pool_prune(&pool->blocks, r);
    out->ptr = r->ptr;
    out->bytes = r->bytes;
    out->index = index;
    out->fence = r->fence;
    pool->stats.in_use_bytes += r->bytes;
    if (pool->stats.in_use_bytes > pool->stats.peak_bytes) {
        pool->stats.peak_bytes = pool->stats.in_use_bytes;
    }
    return REN_OK;
}

ren_status ren__pool_alloc(ren__pool *pool, uint32_t lane, uint64_t bytes, int grow,
                           ren__block *out)
{
    uint64_t need = round_request(pool, bytes);
    if (need == 0) {
        return REN_ERR_NO_DEVICE_MEMORY;
    }
    ren_status status = REN_OK;
    pthread_mutex_lock(&pool->lock);
    uint32_t index = ren__pool_search(&pool->blocks, lane, need);
    if (index != REN__POOL_NONE) {
        status = hand_out(pool, index, need, out);
    } else if (!grow) {
        status = refuse_growth(pool, need);
    }
    pthread_mutex_unlock(&pool->lock);
    if (index != REN__POOL_NONE || !grow) {
        return status;
    }
    pthread_mutex_lock(&pool->slow);
    pthread_mutex_lock(&pool->lock);
    status = take_growing(pool, lane, need, &index);
    if (status == REN_OK) {
        status = hand_out(pool, index, need, out);
    }
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->slow);
    return status;
}

void ren__pool_free(ren__pool *pool, const ren__block *block, uint32_t lane, const ren__fence *uses)
{
    pthread_mutex_lock(&pool->lock);
    pool->stats.in_use_bytes -= pool->blocks.records[block->index].bytes;
    ren__pool_put(&pool->blocks, block->index, lane, uses);
    pthread_mutex_unlock(&pool->lock);
}

ren_status ren__pool_reserve(ren__pool *pool, uint64_t bytes)
{
    uint64_t need = round_request(pool, bytes);
    if (need == 0) {
        return REN_ERR_NO_DEVICE_MEMORY;
    }
    uint32_t index = REN__POOL_NONE;
    pthread_mutex_lock(&pool->slow);
    pthread_mutex_lock(&pool->lock);
    ren_status status = take_growing(pool, 0, need, &index);
    if (status == REN_OK) {
        ren__pool_put(&pool->blocks, index, pool->blocks.records[index].lane, NULL);
    }
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->slow);
    return status;
}

void ren__pool_trim(ren__pool *pool)
{
    pthread_mutex_lock(&pool->slow);
    pthread_mutex_lock(&pool->lock);
    uint64_t complete = 0, pending = 0;
    ren__pool_slab_idle(&pool->blocks, &complete, &pending); /* also learns what is complete */
    while (trim_one(pool)) {
    }
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->slow);
}

void ren__pool_get_stats(ren__pool *pool, ren__pool_stats *out)
{
    pthread_mutex_lock(&pool->lock);
    *out = pool->stats;
    out->reserved_bytes = pool->reserved_bytes;
    pthread_mutex_unlock(&pool->lock);
}
