/* SPDX-License-Identifier: MIT */
/* libren/core/buffers.c - buffer handles over the ordered pool.
 *
 * Purpose   ren_buffer_alloc and ren_buffer_free in stream order, without waiting and without the
 * driver.
 * Threads   alloc, free, pin: any. The fences inside an entry belong to the submitter, from the
 *           moment the entry is live to the moment its last pin is gone.
 *
 * How a free is ordered   A job pins its buffers when it is posted and drops the pins when it is
 *           issued; at that moment the submitter has written the job's point into the buffer's
 *           fences. So when a freed buffer has no pins left, every accepted use is a known point,
 *           and the block can go back to the pool at once, behind those points: work still under
 *           way keeps the memory, and nobody waits. Whoever brings "freed and no pins" about does
 *           the release, exactly once: the word's read-modify-write decides.
 *
 * What alloc may answer   A freed buffer that a job not yet issued still pins is a pending
 *           release. While one exists, running out is REN_ERR_BUSY rather than
 *           REN_ERR_NO_DEVICE_MEMORY or REN_ERR_WOULD_GROW, since the same call may succeed once
 *           the submitter has issued that job.
 */
#include "runtime.h"

static uint64_t word_make(uint32_t generation, uint32_t low)
{
    return ((uint64_t)generation << 32) | low;
}

static ren_status upstream_alloc(void *user, uint64_t bytes, void **out)
{
    ren_runtime *rt = user;
    return ren__runtime_seen(rt, rt->api->mem_alloc(rt->dev, bytes, out));
}

static void upstream_free(void *user, void *ptr, uint64_t bytes)
{
    ren_runtime *rt = user;
    rt->api->mem_free(rt->dev, ptr, bytes);
}

static uint64_t upstream_completed(void *user, uint32_t lane)
{
    ren_runtime *rt = user;
    /* acquire: pairs with the completion thread's release; the lane's work has left the memory. */
    return atomic_load_explicit(&rt->lanes[lane].completed, memory_order_acquire);
}

ren_status ren__buffers_init(ren_runtime *rt)
{
    ren__pool_upstream upstream = {upstream_alloc, upstream_free, upstream_completed, rt};
    ren__pool_config config;
    uint32_t count = rt->config.max_buffers;
    memset(&config, 0, sizeof config);
    config.lanes = rt->lanes_count;
    config.limit_bytes = rt->config.device_memory_limit_bytes;
    config.max_blocks = 2u * count + 1024u;
    rt->buffers = ren__host_calloc(&rt->allocator, count, sizeof *rt->buffers);
    rt->buffer_next = ren__host_calloc(&rt->allocator, count, sizeof *rt->buffer_next);
    rt->buffer_count = count;
    if (!rt->buffers || !rt->buffer_next) {
        return REN_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        atomic_init(&rt->buffers[i].word, word_make(rt->first_generation, 0));
    }
    ren__index_stack_init(&rt->buffer_free, rt->buffer_next, count, true);
    return ren__pool_create(&config, &upstream, &rt->allocator, &rt->pool);
}

void ren__buffers_deinit(ren_runtime *rt)
{
    ren__pool_destroy(rt->pool);
    rt->pool = NULL;
    ren__host_free(&rt->allocator, rt->buffers, rt->buffer_count, sizeof *rt->buffers);
    ren__host_free(&rt->allocator, rt->buffer_next, rt->buffer_count, sizeof *rt->buffer_next);
    rt->buffers = NULL;
    rt->buffer_next = NULL;
}

/* The entry that a handle names, whatever its state; NULL for a handle of another runtime. */
static ren__buffer_entry *entry_of(ren_runtime *rt, ren_buffer buffer, uint32_t *out_index)
{
    uint32_t index = (uint32_t)buffer.id & 0x3fffffu;
    uint32_t tag = (uint32_t)(buffer.id >> 22) & 0x3ffu;
    if (!buffer.id || tag != rt->tag || index >= rt->buffer_count) {
        return NULL;
    }
    *out_index = index;
    return &rt->buffers[index];
}

ren_status ren__buffer_pin(ren_runtime *rt, ren_buffer buffer, uint32_t *out_index)
{
    uint32_t generation = (uint32_t)(buffer.id >> 32);
    ren__buffer_entry *entry = entry_of(rt, buffer, out_index);
    uint64_t word;
    if (!entry) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    word = atomic_load_explicit(&entry->word, memory_order_relaxed);
    do {
        uint32_t low = (uint32_t)word;
        if ((uint32_t)(word >> 32) != generation || !(low & REN__BUFFER_LIVE) ||
            (low & REN__BUFFER_FREED)) {
            return REN_ERR_STALE;
        }
        if ((low & REN__BUFFER_PINS) == REN__BUFFER_PINS) {
            return REN_ERR_QUEUE_FULL;
        }
        /* acquire: pairs with alloc's release; the entry is filled. */
    } while (!atomic_compare_exchange_weak_explicit(&entry->word, &word, word + 1,
                                                    memory_order_acquire, memory_order_relaxed));
    return REN_OK;
}

static void release_entry(ren_runtime *rt, uint32_t index)
{
    ren__buffer_entry *entry = &rt->buffers[index];
    uint32_t generation =
        (uint32_t)(atomic_load_explicit(&entry->word, memory_order_relaxed) >> 32);
    ren__fence uses;
    for (uint32_t l = 0; l < REN__LANES; l++) {
        uint64_t w = entry->writes.seq[l];
        uint64_t r = entry->reads.seq[l];
        uses.seq[l] = w > r ? w : r;
    }
    ren__pool_free(rt->pool, &entry->block, entry->lane, &uses);
    /* release: pairs with the next alloc through the free list. */
    atomic_store_explicit(&entry->word, word_make(generation, 0), memory_order_release);
    ren__index_stack_push(&rt->buffer_free, index);
}

void ren__buffer_unpin(ren_runtime *rt, uint32_t index)
{
    /* acq_rel: the release half hands the fences over to whoever frees, the acquire half takes
     * them. */
    uint64_t after =
        atomic_fetch_sub_explicit(&rt->buffers[index].word, 1, memory_order_acq_rel) - 1;
    uint32_t low = (uint32_t)after;
    if ((low & REN__BUFFER_FREED) && !(low & REN__BUFFER_PINS)) {
        release_entry(rt, index);
        atomic_fetch_sub_explicit(&rt->deferred_frees, 1, memory_order_release);
    }
}

void *ren__buffer_address(ren_runtime *rt, uint32_t index)
{
    return rt->buffers[index].block.ptr;
}

/* The pool's answer, where a pending release may change it. */
static ren_status pool_alloc(ren_runtime *rt, uint32_t lane, uint64_t bytes, int grow,
                             ren__block *out)
{
    /* Before the attempt: a release that lands in between must not make the answer final. */
    uint32_t deferred = atomic_load_explicit(&rt->deferred_frees, memory_order_acquire);
    ren_status status = ren__pool_alloc(rt->pool, lane, bytes, grow, out);
    if ((status == REN_ERR_NO_DEVICE_MEMORY || status == REN_ERR_WOULD_GROW) && deferred) {
        return REN_ERR_BUSY;
    }
    return status;
}

ren_status ren__buffer_alloc(ren_runtime *rt, ren_stream stream, uint64_t bytes, ren_buffer *out)
{
    ren_status status = ren__runtime_check_open(rt);
    ren__buffer_entry *entry;
    uint32_t index;
    uint32_t generation;
    out->id = 0;
    if (status != REN_OK) {
        return status;
    }
    index = ren__index_stack_pop(&rt->buffer_free);
    if (index == REN__INDEX_NONE) {
        return REN_ERR_QUEUE_FULL;
    }
    entry = &rt->buffers[index];
    entry->lane = rt->lane_of[stream];
    status = pool_alloc(rt, entry->lane, bytes, rt->config.allow_growth != 0, &entry->block);
    if (status != REN_OK) {
        ren__index_stack_push(&rt->buffer_free, index);
        return status;
    }
    entry->bytes = bytes;
    entry->writes = entry->block.fence;
    memset(&entry->reads, 0, sizeof entry->reads);
    entry->host.id = 0;
    generation = (uint32_t)(atomic_load_explicit(&entry->word, memory_order_relaxed) >> 32) + 1u;
    /* release: pairs with pin's acquire; the entry is filled. */
    atomic_store_explicit(&entry->word, word_make(generation, REN__BUFFER_LIVE),
                          memory_order_release);
    out->id = ((uint64_t)generation << 32) | ((uint64_t)rt->tag << 22) | index;
    return REN_OK;
}

ren_status ren__buffer_free(ren_runtime *rt, ren_buffer buffer)
{
    uint32_t generation = (uint32_t)(buffer.id >> 32);
    uint32_t index;
    ren__buffer_entry *entry;
    uint64_t word;
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    if (!buffer.id) {
        return REN_OK;
    }
    entry = entry_of(rt, buffer, &index);
    if (!entry) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    word = atomic_load_explicit(&entry->word, memory_order_relaxed);
    for (;;) {
        uint32_t low = (uint32_t)word;
        uint32_t pending = (low & REN__BUFFER_PINS) != 0;
        if ((uint32_t)(word >> 32) != generation || !(low & REN__BUFFER_LIVE) ||
            (low & REN__BUFFER_FREED)) {
            return REN_ERR_STALE;
        }
        /* Raised before the exchange, so that no alloc meets the freed buffer without it. */
        atomic_fetch_add_explicit(&rt->deferred_frees, pending, memory_order_relaxed);
        /* acquire: pairs with unpin's release; the submitter's fences are visible. */
        if (atomic_compare_exchange_weak_explicit(&entry->word, &word, word | REN__BUFFER_FREED,
                                                  memory_order_acq_rel, memory_order_relaxed)) {
            if (!pending) {
                release_entry(rt, index);
            }
            return REN_OK;
        }
        atomic_fetch_sub_explicit(&rt->deferred_frees, pending, memory_order_relaxed);
    }
}

/* ------------------------------------------------------------------ slow calls */

/* Sleep until any batch completes. False when nothing is outstanding, so that nothing will. */
static bool wait_for_a_completion(ren_runtime *rt)
{
    ren__deadline never = {UINT64_MAX};
    uint64_t done = ren__jobs_done(rt);
    uint32_t key = ren__wait_begin(&rt->done_bell);
    if (ren__jobs_done(rt) != done) {
        ren__wait_end(&rt->done_bell);
        return true;
    }
    if (ren__runtime_is_idle(rt) || atomic_load_explicit(&rt->lost, memory_order_acquire)) {
        ren__wait_end(&rt->done_bell);
        return false;
    }
    return ren__wait_sleep(rt, &rt->done_bell, key, &never);
}

/* A slow call may wait: memory behind work under way is given back to the driver once that work is
 * complete, and freed buffers go to the pool once the submitter has issued their jobs. With nothing
 * outstanding it tries once more, for what completed since it asked. */
static bool should_retry(ren_runtime *rt, ren_status status, bool *last_try)
{
    if ((status != REN_ERR_WOULD_GROW && status != REN_ERR_BUSY) || *last_try) {
        return false;
    }
    *last_try = !wait_for_a_completion(rt);
    return true;
}

ren_status ren__memory_reserve(ren_runtime *rt, uint64_t bytes)
{
    ren_status status = ren__runtime_check_blocking(rt);
    bool last_try = false;
    if (status != REN_OK) {
        return status;
    }
    do {
        if (atomic_load_explicit(&rt->lost, memory_order_relaxed)) {
            return REN_ERR_DEVICE_LOST;
        }
        status = ren__pool_reserve(rt->pool, bytes);
    } while (should_retry(rt, status, &last_try));
    return status == REN_ERR_WOULD_GROW ? REN_ERR_NO_DEVICE_MEMORY : status;
}

/* ------------------------------------------------------------------ regions */

/* Until the lanes are past the fence, or the device is lost. */
static void wait_for_fence(ren_runtime *rt, const ren__fence *fence)
{
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        while (upstream_completed(rt, l) < fence->seq[l] &&
               !atomic_load_explicit(&rt->lost, memory_order_relaxed)) {
            ren__deadline never = {UINT64_MAX};
            uint32_t key = ren__wait_begin(&rt->done_bell);
            if (upstream_completed(rt, l) >= fence->seq[l]) {
                ren__wait_end(&rt->done_bell);
                break;
            }
            (void)ren__wait_sleep(rt, &rt->done_bell, key, &never);
        }
    }
}

static bool is_past_fence(ren_runtime *rt, const ren__fence *fence)
{
    bool past = true;
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        past = past && upstream_completed(rt, l) >= fence->seq[l];
    }
    return past;
}

/* A callback must not wait: what it would wait for may come behind it, on its own thread. */
static ren_status alloc_in_callback(ren_runtime *rt, uint64_t bytes, ren__block *block)
{
    ren_status status = pool_alloc(rt, 0, bytes, 1, block);
    if (status == REN_OK && !is_past_fence(rt, &block->fence)) {
        ren__fence none;
        memset(&none, 0, sizeof none);
        ren__pool_free(rt->pool, block, 0, &none);
        return REN_ERR_QUEUE_FULL;
    }
    if ((status == REN_ERR_WOULD_GROW || status == REN_ERR_BUSY) && !ren__runtime_is_idle(rt)) {
        return REN_ERR_QUEUE_FULL;
    }
    return status;
}

ren_status ren__region_alloc(ren_runtime *rt, uint64_t bytes, ren__region *out)
{
    ren__block block;
    bool last_try = false;
    ren_status status = ren__runtime_check_open(rt);
    memset(out, 0, sizeof *out);
    if (status != REN_OK) {
        return status;
    }
    if (ren__runtime_on_callback_thread(rt)) {
        status = alloc_in_callback(rt, bytes, &block);
    } else {
        do {
            status = pool_alloc(rt, 0, bytes, 1, &block);
        } while (should_retry(rt, status, &last_try));
    }
    if (status != REN_OK) {
        return status == REN_ERR_WOULD_GROW ? REN_ERR_NO_DEVICE_MEMORY : status;
    }
    /* A region is used without points, so its memory must be quiet already. */
    wait_for_fence(rt, &block.fence);
    out->ptr = block.ptr;
    out->bytes = block.bytes;
    out->index = block.index;
    return REN_OK;
}

void ren__region_free(ren_runtime *rt, ren__region *region)
{
    ren__block block;
    ren__fence none;
    if (!region->ptr) {
        return;
    }
    memset(&block, 0, sizeof block);
    memset(&none, 0, sizeof none);
    block.ptr = region->ptr;
    block.bytes = region->bytes;
    block.index = region->index;
    ren__pool_free(rt->pool, &block, 0, &none);
    memset(region, 0, sizeof *region);
}
