/* SPDX-License-Identifier: MIT */
/* tests/unit/test_pool.c - the pool's promises, one by one, on a make-believe device.
 *
 * Purpose   Order of preference, fences, failure order, limits and the ledger of memory/pool.h. The
 *           device (tests/support/pool_device.h) knows which bytes are in use by what, and judges
 *           every block handed out; `end` checks its verdict and the ledger in every case.
 * Rows      Of the failure table: 2 (pairs and triples of lanes), 6 (fragmentation), 7 (an upstream
 *           failure that a retry overcomes), 8 (no upstream calls in a steady state).
 */
#include "../support/pool_device.h"
#include "../support/test.h"

#include <stdio.h>
#include <string.h>

#define MIB  (1024ull * 1024)
#define SLAB (64 * 1024ull)

enum {
    RECORDS = 32, /* where they are to run out */
    STEP_BLOCKS = 40,
    STEPS = 1000,
    TRACE_SLOTS = 1024,
    TRACE_EVENTS = 100000,
    SWEEP_SLOTS = 24,
    SWEEP_EVENTS = 400
};

typedef struct fixture {
    pool_device device;
    ren__pool *pool;
} fixture;

static void begin_sized(fixture *f, uint64_t limit, uint64_t slab_bytes, uint32_t max_blocks)
{
    ren__pool_config config = {REN__POOL_LANES, limit, slab_bytes, max_blocks};
    ren__host_allocator host = ren__host_allocator_make(NULL);
    pool_device_init(&f->device);
    ren__pool_upstream upstream = pool_device_upstream(&f->device);
    CU_ASSERT_EQUAL_FATAL(ren__pool_create(&config, &upstream, &host, &f->pool), REN_OK);
}

static void begin(fixture *f, uint64_t limit)
{
    begin_sized(f, limit, SLAB, 256);
}

static ren__pool_stats stats_of(fixture *f)
{
    ren__pool_stats stats;
    ren__pool_get_stats(f->pool, &stats);
    return stats;
}

/* The ledger equals what the device knows. */
static void check_ledger(fixture *f)
{
    ren__pool_stats stats = stats_of(f);
    CU_ASSERT_EQUAL(stats.reserved_bytes, f->device.held_bytes);
    CU_ASSERT_EQUAL(stats.driver_allocs, f->device.allocs);
    CU_ASSERT_EQUAL(stats.driver_frees, f->device.frees);
    CU_ASSERT_EQUAL(f->device.errors, 0);
}

/* Everything was freed: the ledger says so, and destroy gives all slabs back. */
static void end(fixture *f)
{
    check_ledger(f);
    CU_ASSERT_EQUAL(stats_of(f).in_use_bytes, 0);
    pool_device_complete_all(&f->device);
    ren__pool_destroy(f->pool);
    CU_ASSERT_EQUAL(f->device.held_bytes, 0);
    CU_ASSERT_EQUAL(f->device.errors, 0);
    pool_device_deinit(&f->device);
}

static ren_status take(fixture *f, uint32_t lane, uint64_t bytes, int grow, ren__block *out)
{
    ren_status status = ren__pool_alloc(f->pool, lane, bytes, grow, out);
    if (status == REN_OK) {
        pool_device_claim(&f->device, out);
    }
    return status;
}

static ren__block must_take(fixture *f, uint32_t lane, uint64_t bytes)
{
    ren__block block;
    memset(&block, 0, sizeof block);
    CU_ASSERT_EQUAL_FATAL(take(f, lane, bytes, 1, &block), REN_OK);
    CU_ASSERT(block.bytes >= bytes);
    return block;
}

/* Use the block on every lane of the mask, and free it to `lane`. */
static ren__fence give(fixture *f, const ren__block *block, uint32_t lane, uint32_t use_mask)
{
    ren__fence uses = {{0}};
    for (uint32_t m = 0; m < REN__POOL_LANES; m++) {
        if (use_mask & (1u << m)) {
            uses.seq[m] = pool_device_use(&f->device, block, m);
        }
    }
    pool_device_disown(&f->device, block);
    ren__pool_free(f->pool, block, lane, &uses);
    return uses;
}

/* ------------------------------------------------------------------ create */

/* Proves that sizes out of range are refused; fails if one is let in to index past an array. */
static void test_create_bad_config(void)
{
    static const ren__pool_config bad[] = {
        {0, 0, 0, 8},          {REN__POOL_LANES + 1, 0, 0, 8}, {1, 0, 0, 0},
        {1, 0, 0, UINT32_MAX}, {1, 0, UINT64_MAX, 8},
    };
    pool_device device;
    pool_device_init(&device);
    ren__pool_upstream upstream = pool_device_upstream(&device);
    ren__host_allocator host = ren__host_allocator_make(NULL);
    for (size_t i = 0; i < REN_TEST_COUNT(bad); i++) {
        ren__pool *pool = (ren__pool *)&device;
        CU_ASSERT_EQUAL(ren__pool_create(&bad[i], &upstream, &host, &pool),
                        REN_ERR_INVALID_ARGUMENT);
        CU_ASSERT_PTR_NULL(pool);
    }
    ren__pool_destroy(NULL);
    pool_device_deinit(&device);
}

typedef struct counting_host {
    ren__host_allocator real;
    unsigned calls, fail_nth;
    size_t held;
} counting_host;

static void *counting_alloc(void *user, size_t bytes, size_t align)
{
    counting_host *h = user;
    if (++h->calls == h->fail_nth) {
        return NULL;
    }
    h->held += bytes;
    return h->real.alloc(h->real.user, bytes, align);
}

static void counting_free(void *user, void *ptr, size_t bytes)
{
    counting_host *h = user;
    h->held -= bytes;
    h->real.free(h->real.user, ptr, bytes);
}

/* Proves that create survives the failure of each host allocation and gives back the others, and
 * that a pool in use takes none; fails on a leak, a crash or a hidden allocation. */
static void test_create_host_failures(void)
{
    pool_device device;
    pool_device_init(&device);
    ren__pool_upstream upstream = pool_device_upstream(&device);
    ren__pool_config config = {REN__POOL_LANES, 0, SLAB, 64};
    unsigned failures = 0;
    for (unsigned nth = 1;; nth++) {
        counting_host counting = {ren__host_allocator_make(NULL), 0, nth, 0};
        ren__host_allocator host = {counting_alloc, counting_free, &counting};
        ren__pool *pool = NULL;
        ren_status status = ren__pool_create(&config, &upstream, &host, &pool);
        if (status == REN_OK) {
            unsigned calls = counting.calls;
            ren__block block;
            ren__fence uses = {{0}};
            CU_ASSERT_EQUAL(ren__pool_alloc(pool, 0, 1000, 1, &block), REN_OK);
            ren__pool_free(pool, &block, 0, &uses);
            ren__pool_trim(pool);
            CU_ASSERT_EQUAL(counting.calls, calls);
            ren__pool_destroy(pool);
            CU_ASSERT_EQUAL(counting.held, 0);
            break;
        }
        failures++;
        CU_ASSERT_EQUAL(status, REN_ERR_NO_MEMORY);
        CU_ASSERT_PTR_NULL(pool);
        CU_ASSERT_EQUAL(counting.held, 0);
    }
    CU_ASSERT(failures >= 2);
    CU_ASSERT_EQUAL(device.held_bytes, 0);
    pool_device_deinit(&device);
}

/* ------------------------------------------------------------------ preference and fences */

/* Proves that fresh memory is aligned, large enough and waits for nothing, also for sizes at the
 * edges of the size classes. Fails on a rounding error. */
static void test_alloc_fresh(void)
{
    static const uint64_t sizes[] = {0,    1,     255,   256,   257,     2047,   2048,
                                     2049, 65535, 65536, 65537, 1000003, 7 * MIB};
    fixture f;
    begin(&f, 0);
    for (size_t i = 0; i < REN_TEST_COUNT(sizes); i++) {
        ren__block block = must_take(&f, (uint32_t)(i % REN__POOL_LANES), sizes[i]);
        CU_ASSERT(block.bytes - sizes[i] <= 256 + sizes[i] / 16);
        for (uint32_t lane = 0; lane < REN__POOL_LANES; lane++) {
            CU_ASSERT_EQUAL(block.fence.seq[lane], 0);
        }
        give(&f, &block, 0, 0);
    }
    end(&f);
}

/* Proves that a lane gets back what it has just freed, with its own work still under way, and that
 * the fence names that work and nothing else. Fails if own order is taken for a wait (another block
 * would be cut) or if the entry is dropped too early. */
static void test_alloc_reuses_own_lane(void)
{
    fixture f;
    begin(&f, 0);
    ren__block a = must_take(&f, 1, 4096);
    ren__fence uses = give(&f, &a, 1, 1u << 1);
    ren__block b = must_take(&f, 1, 4096);
    CU_ASSERT_PTR_EQUAL(b.ptr, a.ptr);
    CU_ASSERT_EQUAL(b.fence.seq[1], uses.seq[1]);
    CU_ASSERT_EQUAL(b.fence.seq[0] | b.fence.seq[2] | b.fence.seq[3] | b.fence.seq[4], 0);
    uses = give(&f, &b, 1, 1u << 1);
    pool_device_complete(&f.device, 1, uses.seq[1]);
    b = must_take(&f, 1, 4096);
    CU_ASSERT_PTR_EQUAL(b.ptr, a.ptr);
    CU_ASSERT_EQUAL(b.fence.seq[1], 0);
    give(&f, &b, 1, 0);
    end(&f);
}

/* Proves step 1 before step 2: with one block of the own lane behind another lane's work, and one
 * of another lane that is complete, the complete one is taken. Fails if the own list
 * always wins. */
static void test_alloc_prefers_no_wait(void)
{
    fixture f;
    begin(&f, 0);
    ren__block waits = must_take(&f, 1, SLAB);
    ren__block ready = must_take(&f, 2, SLAB);
    give(&f, &ready, 2, 1u << 2);
    give(&f, &waits, 1, 1u << 3);
    pool_device_complete(&f.device, 2, 1);
    ren__block got = must_take(&f, 1, SLAB);
    CU_ASSERT_PTR_EQUAL(got.ptr, ready.ptr);
    CU_ASSERT_EQUAL(got.fence.seq[2], 0);
    ren__block second = must_take(&f, 1, SLAB);
    CU_ASSERT_PTR_EQUAL(second.ptr, waits.ptr);
    CU_ASSERT_EQUAL(second.fence.seq[3], 1);
    give(&f, &got, 1, 0);
    give(&f, &second, 1, 0);
    end(&f);
}

/* Proves step 2 before step 4: a block that another lane still works on is handed out behind its
 * fence, the oldest of equals first, and the upstream is not asked. Fails if the pool grows. */
static void test_alloc_behind_fence(void)
{
    fixture f;
    begin(&f, 0);
    ren__block a = must_take(&f, 2, SLAB);
    ren__block b = must_take(&f, 2, SLAB);
    give(&f, &a, 2, 1u << 2);
    give(&f, &b, 2, 1u << 2);
    uint64_t calls = f.device.alloc_calls;
    ren__block got;
    CU_ASSERT_EQUAL_FATAL(take(&f, 4, SLAB, 0, &got), REN_OK);
    CU_ASSERT_PTR_EQUAL(got.ptr, a.ptr);
    CU_ASSERT_EQUAL(got.fence.seq[2], 1);
    CU_ASSERT_EQUAL(f.device.alloc_calls, calls);
    give(&f, &got, 4, 0);
    end(&f);
}

/* Proves that a block freed without a use keeps the fence it came with: its first user's work is
 * under way still. Fails (and the device's judge with it) if free() takes the caller's
 * word alone. */
static void test_free_unused_keeps_fence(void)
{
    fixture f;
    begin(&f, SLAB);
    ren__block a = must_take(&f, 2, SLAB);
    give(&f, &a, 2, 1u << 2);
    ren__block b = must_take(&f, 3, SLAB);
    CU_ASSERT_EQUAL(b.fence.seq[2], 1);
    give(&f, &b, 3, 0);
    ren__block c = must_take(&f, 3, SLAB);
    CU_ASSERT_EQUAL(c.fence.seq[2], 1);
    CU_ASSERT_EQUAL(c.fence.seq[3], 0);
    give(&f, &c, 4, 1u << 4);
    ren__block d = must_take(&f, 0, SLAB);
    CU_ASSERT_EQUAL(d.fence.seq[2], 1);
    CU_ASSERT_EQUAL(d.fence.seq[4], 1);
    give(&f, &d, 0, 0);
    end(&f);
}

/* Row 2. Proves that, whatever lanes took, used and freed a block, the next owner's fence names
 * every use that is incomplete: all 25 pairs (taken on, used on), all 60 triples of distinct (taken
 * on, used on, used on), each freed to either lane and taken again on every lane. Fails if a use on
 * any lane is lost. */
static void test_fence_pairs_and_triples(void)
{
    unsigned checked = 0;
    for (uint32_t a = 0; a < REN__POOL_LANES; a++) {
        for (uint32_t u = 0; u < REN__POOL_LANES; u++) {
            for (uint32_t v = 0; v < REN__POOL_LANES; v++) {
                /* v == u is the pair; a triple has three distinct lanes. */
                if (v != u && (u == a || v == a)) {
                    continue;
                }
                for (uint32_t again = 0; again < 2 * REN__POOL_LANES; again++) {
                    fixture f;
                    begin(&f, SLAB);
                    ren__block block = must_take(&f, a, SLAB);
                    give(&f, &block, again & 1u ? u : a, 1u << u | 1u << v);
                    ren__block next = must_take(&f, again / 2, SLAB);
                    CU_ASSERT_PTR_EQUAL(next.ptr, block.ptr);
                    CU_ASSERT_EQUAL(next.fence.seq[u], 1);
                    CU_ASSERT_EQUAL(next.fence.seq[v], 1);
                    give(&f, &next, again / 2, 0);
                    end(&f);
                }
                checked++;
            }
        }
    }
    CU_ASSERT_EQUAL(checked, 25 + 60);
}

/* ------------------------------------------------------------------ merging */

/* Proves step 3: two neighbours freed on different lanes are merged when, and only when, that is
 * what the request needs, behind both fences, without the upstream. Fails if either fence
 * is lost. */
static void test_merge_joins_fences(void)
{
    fixture f;
    begin(&f, SLAB);
    ren__block low = must_take(&f, 1, SLAB / 2);
    ren__block high = must_take(&f, 2, SLAB / 2);
    give(&f, &low, 1, 1u << 1);
    give(&f, &high, 2, 1u << 2 | 1u << 3);
    ren__block half = must_take(&f, 1, SLAB / 2);
    CU_ASSERT_EQUAL(half.fence.seq[2], 0);
    give(&f, &half, 1, 1u << 1);
    ren__block whole = must_take(&f, 1, SLAB);
    CU_ASSERT_EQUAL(whole.fence.seq[1], 2);
    CU_ASSERT_EQUAL(whole.fence.seq[2], 1);
    CU_ASSERT_EQUAL(whole.fence.seq[3], 1);
    CU_ASSERT_EQUAL(f.device.allocs, 1);
    give(&f, &whole, 1, 0);
    end(&f);
}

/* Proves that a merge that waits for nothing is preferred to one that waits. Fails if the smallest
 * run is taken without a look at its fences. */
static void test_merge_prefers_no_wait(void)
{
    fixture f;
    ren__block quarter[8];
    begin(&f, 2 * SLAB);
    for (uint32_t i = 0; i < 8; i++) {
        quarter[i] = must_take(&f, 0, SLAB / 4);
    }
    /* The newer slab's quarters wait for lane 4, the older one's for lane 0 only, and are more. */
    for (uint32_t i = 0; i < 8; i++) {
        if (i != 7) {
            give(&f, &quarter[i], 0, i < 4 ? 1u << 0 : 1u << 4);
        }
    }
    ren__block got = must_take(&f, 0, SLAB / 4 * 3);
    CU_ASSERT_EQUAL(got.fence.seq[4], 0);
    CU_ASSERT(got.fence.seq[0] != 0);
    give(&f, &got, 0, 0);
    give(&f, &quarter[7], 0, 0);
    end(&f);
}

/* Row 6. Proves that many small blocks freed over two lanes under a limit do not stand in the way
 * of one large block, complete or not: before it is refused, all lists are merged. Fails if lists
 * of different lanes are never joined, as in the reports. */
static void test_merge_before_out_of_memory(void)
{
    for (int complete = 0; complete < 2; complete++) {
        fixture f;
        ren__block small[64];
        begin(&f, SLAB);
        for (uint32_t i = 0; i < 64; i++) {
            small[i] = must_take(&f, 1 + i % 2, SLAB / 64);
        }
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t k = i * 37 % 64; /* in an order that is not the blocks' */
            give(&f, &small[k], 1 + k % 2, 1u << (1 + k % 2));
        }
        if (complete) {
            pool_device_complete_all(&f.device);
        }
        ren__block whole = must_take(&f, 3, SLAB);
        CU_ASSERT_EQUAL(whole.fence.seq[1] == 0, complete);
        CU_ASSERT_EQUAL(whole.fence.seq[2] == 0, complete);
        give(&f, &whole, 3, 0);
        end(&f);
    }
}

/* ------------------------------------------------------------------ limits and failures */

/* Proves that sizes near 2^64 are refused, with and without a limit, and change nothing. Fails if a
 * rounding or a sum wraps. */
static void test_alloc_overflow(void)
{
    static const uint64_t sizes[] = {UINT64_MAX,       UINT64_MAX - 1,   UINT64_MAX - 255,
                                     UINT64_MAX - 256, UINT64_MAX - 511, 1ull << 63};
    for (int limited = 0; limited < 2; limited++) {
        fixture f;
        begin(&f, limited ? UINT64_MAX - 1000 : 0);
        ren__block live = must_take(&f, 0, 100);
        for (size_t i = 0; i < REN_TEST_COUNT(sizes); i++) {
            ren__block block;
            CU_ASSERT_EQUAL(take(&f, 0, sizes[i], 1, &block), REN_ERR_NO_DEVICE_MEMORY);
            ren_status status = take(&f, 0, sizes[i], 0, &block);
            CU_ASSERT(status == REN_ERR_NO_DEVICE_MEMORY || status == REN_ERR_WOULD_GROW);
            CU_ASSERT_EQUAL(ren__pool_reserve(f.pool, sizes[i]), REN_ERR_NO_DEVICE_MEMORY);
            check_ledger(&f);
        }
        give(&f, &live, 0, 0);
        end(&f);
    }
}

/* Proves that without `grow` the upstream is never asked, and that the refusal says whether asking
 * could help. Fails if a pool at its limit sends the caller to a slow call in vain. */
static void test_alloc_would_grow(void)
{
    fixture f;
    ren__block block, second;
    begin(&f, SLAB + SLAB / 2);
    CU_ASSERT_EQUAL(take(&f, 0, 1000, 0, &block), REN_ERR_WOULD_GROW);
    CU_ASSERT_EQUAL(take(&f, 0, 2 * SLAB, 0, &block), REN_ERR_NO_DEVICE_MEMORY);
    CU_ASSERT_EQUAL(f.device.alloc_calls, 0);
    block = must_take(&f, 0, SLAB);
    CU_ASSERT_EQUAL(take(&f, 0, SLAB, 0, &second), REN_ERR_NO_DEVICE_MEMORY);
    CU_ASSERT_EQUAL(take(&f, 0, SLAB / 2, 0, &second), REN_ERR_WOULD_GROW);
    give(&f, &block, 0, 1u << 0);
    CU_ASSERT_EQUAL(take(&f, 0, SLAB + 1, 0, &second), REN_ERR_WOULD_GROW);
    CU_ASSERT_EQUAL(f.device.alloc_calls, 1);
    end(&f);
}

/* Proves step 5 and the promise about REN_ERR_NO_DEVICE_MEMORY: a request that fits only after two
 * slabs are given back is answered REN_ERR_WOULD_GROW while work in them is under way, and granted
 * once it is done; one that would never fit is refused at once, and no slab is lost over it. */
static void test_alloc_trims_for_room(void)
{
    fixture f;
    ren__block got;
    begin(&f, 2 * SLAB);
    ren__block a = must_take(&f, 0, SLAB);
    ren__block b = must_take(&f, 1, SLAB);
    CU_ASSERT_EQUAL(take(&f, 2, 2 * SLAB, 1, &got), REN_ERR_NO_DEVICE_MEMORY);
    give(&f, &a, 0, 1u << 0);
    CU_ASSERT_EQUAL(take(&f, 2, 2 * SLAB, 1, &got), REN_ERR_NO_DEVICE_MEMORY);
    give(&f, &b, 1, 1u << 1);
    CU_ASSERT_EQUAL(take(&f, 2, 2 * SLAB, 1, &got), REN_ERR_WOULD_GROW);
    pool_device_complete(&f.device, 0, 1);
    CU_ASSERT_EQUAL(take(&f, 2, 2 * SLAB, 1, &got), REN_ERR_WOULD_GROW);
    CU_ASSERT_EQUAL(f.device.frees, 0);
    CU_ASSERT_EQUAL(take(&f, 2, 2 * SLAB + 1, 1, &got), REN_ERR_NO_DEVICE_MEMORY);
    pool_device_complete(&f.device, 1, 1);
    CU_ASSERT_EQUAL(take(&f, 2, 2 * SLAB, 1, &got), REN_OK);
    CU_ASSERT_EQUAL(f.device.frees, 2);
    CU_ASSERT_EQUAL(f.device.most_bytes, 2 * SLAB);
    give(&f, &got, 2, 0);
    end(&f);
}

/* Row 7. Proves that an upstream failure is overcome where it can be: by asking for less than a
 * slab, and by giving back an idle slab, before anything is refused. Fails if the first no is taken
 * for the last. */
static void test_alloc_upstream_failure(void)
{
    fixture f;
    ren__block got;
    begin(&f, 0);
    f.device.fail_nth = 1;
    ren__block a = must_take(&f, 0, 1000);
    CU_ASSERT_EQUAL(f.device.alloc_calls, 2);
    CU_ASSERT_EQUAL(stats_of(&f).reserved_bytes, 1024);
    give(&f, &a, 0, 0);
    f.device.capacity = 4096;
    ren__block b = must_take(&f, 0, 4096);
    CU_ASSERT_EQUAL(f.device.frees, 1);
    CU_ASSERT_EQUAL(take(&f, 0, 4096, 1, &got), REN_ERR_NO_DEVICE_MEMORY);
    check_ledger(&f);
    give(&f, &b, 0, 1u << 3);
    CU_ASSERT_EQUAL(take(&f, 0, 4096 + 256, 1, &got), REN_ERR_WOULD_GROW);
    pool_device_complete_all(&f.device);
    CU_ASSERT_EQUAL(take(&f, 0, 4096 + 256, 1, &got), REN_ERR_NO_DEVICE_MEMORY);
    end(&f);
}

/* Proves that a lost device is reported as such, after one call and without giving slabs back.
 * Fails if the loss is taken for a shortage that a smaller slab or a trim could help. */
static void test_alloc_device_lost(void)
{
    fixture f;
    ren__block got;
    begin(&f, 0);
    ren__block a = must_take(&f, 0, SLAB / 4);
    ren__block b = must_take(&f, 0, SLAB / 4 * 3);
    give(&f, &a, 0, 0);
    f.device.fail_nth = f.device.alloc_calls + 1;
    f.device.fail_forever = 1;
    f.device.fail_status = REN_ERR_DEVICE_LOST;
    CU_ASSERT_EQUAL(take(&f, 0, SLAB / 2, 1, &got), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(f.device.alloc_calls, 2);
    give(&f, &b, 0, 0);
    CU_ASSERT_EQUAL(take(&f, 0, SLAB + 1, 1, &got), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(f.device.alloc_calls, 3);
    CU_ASSERT_EQUAL(f.device.frees, 0);
    end(&f);
}

/* Proves that running out of block records is REN_ERR_QUEUE_FULL, that (max_blocks - slabs) / 2
 * live blocks always fit, and that the pool goes on after frees. Fails on a lost record. */
static void test_alloc_max_blocks(void)
{
    fixture f;
    ren__block live[RECORDS], got;
    begin_sized(&f, 0, SLAB, RECORDS);
    for (int round = 0; round < 3; round++) {
        uint32_t count = 0;
        ren_status status = REN_OK;
        while (count < RECORDS && (status = take(&f, 0, 256, 1, &live[count])) == REN_OK) {
            count++;
        }
        CU_ASSERT_EQUAL(count, RECORDS - 1); /* the last record is the rest of the slab */
        CU_ASSERT_EQUAL(status, REN_ERR_QUEUE_FULL);
        /* Every second one: the worst pattern, no two free blocks are neighbours. */
        for (uint32_t i = 0; i < count; i += 2) {
            give(&f, &live[i], 1, 1u << 1);
        }
        CU_ASSERT_EQUAL(take(&f, 0, SLAB, 1, &got), REN_ERR_QUEUE_FULL);
        for (uint32_t i = 1; i < count; i += 2) {
            give(&f, &live[i], 2, 1u << 2);
        }
        got = must_take(&f, 0, SLAB);
        give(&f, &got, 0, 0);
        check_ledger(&f);
    }
    end(&f);
}

/* Proves that a cut that finds no spare record gets one by merging other free blocks, be they
 * behind fences, and that those fences are kept. Fails if the request is refused for want of a
 * record. */
static void test_alloc_merges_for_a_record(void)
{
    fixture f;
    begin_sized(&f, SLAB, SLAB, 4);
    ren__block a = must_take(&f, 0, SLAB / 4);
    ren__block b = must_take(&f, 0, SLAB / 4);
    ren__block c = must_take(&f, 0, SLAB / 4);
    give(&f, &a, 1, 1u << 1);
    give(&f, &b, 2, 1u << 2);
    ren__block cut = must_take(&f, 0, 256);
    CU_ASSERT_EQUAL(cut.fence.seq[1] | cut.fence.seq[2], 0);
    ren__block merged = must_take(&f, 0, SLAB / 2);
    CU_ASSERT_PTR_EQUAL(merged.ptr, a.ptr);
    CU_ASSERT_EQUAL(merged.fence.seq[1], 1);
    CU_ASSERT_EQUAL(merged.fence.seq[2], 1);
    give(&f, &merged, 0, 0);
    give(&f, &cut, 0, 0);
    give(&f, &c, 0, 0);
    end(&f);
}

/* Proves that reserve makes a later alloc without growth succeed, that it grows once only, and that
 * trim gives back idle slabs and keeps those with work under way. */
static void test_reserve_and_trim(void)
{
    fixture f;
    ren__block got;
    begin(&f, 4 * SLAB);
    CU_ASSERT_EQUAL(ren__pool_reserve(f.pool, 3 * SLAB), REN_OK);
    CU_ASSERT_EQUAL(ren__pool_reserve(f.pool, 3 * SLAB), REN_OK);
    CU_ASSERT_EQUAL(f.device.allocs, 1);
    CU_ASSERT_EQUAL(ren__pool_reserve(f.pool, 5 * SLAB), REN_ERR_NO_DEVICE_MEMORY);
    CU_ASSERT_EQUAL(take(&f, 4, 3 * SLAB, 0, &got), REN_OK);
    CU_ASSERT_EQUAL(ren__pool_reserve(f.pool, 3 * SLAB), REN_ERR_NO_DEVICE_MEMORY);
    give(&f, &got, 4, 1u << 2);
    ren__pool_trim(f.pool);
    CU_ASSERT_EQUAL(f.device.frees, 0);
    pool_device_complete_all(&f.device);
    ren__pool_trim(f.pool);
    CU_ASSERT_EQUAL(f.device.frees, 1);
    CU_ASSERT_EQUAL(stats_of(&f).reserved_bytes, 0);
    CU_ASSERT_EQUAL(stats_of(&f).peak_bytes, 3 * SLAB);
    end(&f);
}

/* ------------------------------------------------------------------ steady state, fragmentation */

/* Row 8. Proves that a repeated step (a mix of sizes, blocks that cross lanes, completions that lag
 * two steps behind) makes no upstream call after the second step. Fails if memory is given back and
 * asked for again, or if reuse depends on luck. */
static void test_steady_state_no_upstream_calls(void)
{
    fixture f;
    begin_sized(&f, 0, 1 * MIB, 1024);
    f.device.blind = 1;
    uint64_t calls = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        ren__block live[STEP_BLOCKS];
        for (uint32_t i = 0; i < STEP_BLOCKS; i++) {
            live[i] = must_take(&f, i % 5, (uint64_t)1000 << (i * 7 % 11));
            if (i % 3 == 2) {
                give(&f, &live[i - 1], (i - 1) % 5, 1u << (i % 5) | 1u << ((i + 2) % 5));
            }
        }
        for (uint32_t i = 0; i < STEP_BLOCKS; i++) {
            if (i % 3 != 1 || i == STEP_BLOCKS - 1) {
                give(&f, &live[i], i % 5, 1u << (i % 5));
            }
        }
        for (uint32_t lane = 0; lane < 5 && step >= 2; lane++) {
            uint64_t posted = f.device.posted[lane];
            pool_device_complete(&f.device, lane, posted / (step + 1) * (step - 1));
        }
        if (step == 1) {
            calls = f.device.alloc_calls + f.device.frees;
        }
    }
    CU_ASSERT_EQUAL(f.device.alloc_calls + f.device.frees, calls);
    end(&f);
}

/* Sizes of the trace: log-uniform from 256 bytes to 4 MiB, and now and then the one before it. */
static uint64_t trace_size(unsigned long long *random)
{
    uint64_t r = ren_test_random(random);
    return (256ull << (r % 14)) + (r >> 32) % (256ull << (r % 14)) + 1;
}

/* Row 6. Proves the declared bound: a trace of 100,000 events (random sizes, lives; up to 500 MiB
 * live, on 2 and 5 lanes, completions up to 64 batches late, swelling and shrinking) never reserves
 * more than 1.5 times the peak of live bytes. Prints the factor. */
static void test_fragmentation_bound(void)
{
    static const uint32_t lane_counts[] = {2, 5};
    for (size_t v = 0; v < REN_TEST_COUNT(lane_counts); v++) {
        static ren__block live[TRACE_SLOTS];
        static uint64_t asked[TRACE_SLOTS];
        uint32_t lanes = lane_counts[v];
        unsigned long long random = 12345 + v;
        uint64_t live_bytes = 0, peak = 0;
        fixture f;
        memset(asked, 0, sizeof asked);
        begin_sized(&f, 0, 0, 8192);
        f.device.blind = 1;
        for (unsigned event = 0; event < TRACE_EVENTS; event++) {
            uint32_t phase = event / 5000 % 4;
            uint32_t slots = phase == 0   ? TRACE_SLOTS
                             : phase == 2 ? TRACE_SLOTS / 4
                                          : TRACE_SLOTS / 2;
            uint32_t slot = (uint32_t)(ren_test_random(&random) % TRACE_SLOTS);
            uint32_t lane = (uint32_t)(ren_test_random(&random) % lanes);
            if (asked[slot]) {
                uint32_t other = (uint32_t)(ren_test_random(&random) % lanes);
                give(&f, &live[slot], lane, 1u << lane | 1u << other);
                live_bytes -= asked[slot];
                asked[slot] = 0;
                uint64_t posted = f.device.posted[other];
                uint64_t late = ren_test_random(&random) % 64;
                pool_device_complete(&f.device, other, posted > late ? posted - late : 0);
            }
            if (slot < slots) {
                asked[slot] = trace_size(&random);
                live[slot] = must_take(&f, lane, asked[slot]);
                live_bytes += asked[slot];
                peak = live_bytes > peak ? live_bytes : peak;
            }
        }
        double factor = (double)f.device.most_bytes / (double)peak;
        printf("  %u lanes: peak live %.1f MiB, peak reserved %.1f MiB, factor %.3f\n", lanes,
               (double)peak / (double)MIB, (double)f.device.most_bytes / (double)MIB, factor);
        CU_ASSERT(factor <= 1.5);
        for (uint32_t slot = 0; slot < TRACE_SLOTS; slot++) {
            if (asked[slot]) {
                give(&f, &live[slot], 0, 0);
            }
        }
        end(&f);
    }
}

/* ------------------------------------------------------------------ sweep */

/* One scenario of about 40 upstream calls: growth, reserve, trims for room, merges. Every refusal
 * is checked to have changed nothing that is live; returns the refusals. */
static unsigned sweep_scenario(fixture *f)
{
    ren__block live[SWEEP_SLOTS];
    int is_live[SWEEP_SLOTS] = {0};
    unsigned long long random = 99;
    unsigned refusals = 0;
    for (unsigned event = 0; event < SWEEP_EVENTS; event++) {
        uint32_t slot = (uint32_t)(ren_test_random(&random) % SWEEP_SLOTS);
        uint32_t lane = (uint32_t)(ren_test_random(&random) % REN__POOL_LANES);
        uint64_t bytes = trace_size(&random) / 16 + 1;
        if (is_live[slot]) {
            give(f, &live[slot], lane, (uint32_t)(ren_test_random(&random) % 32));
            is_live[slot] = 0;
        } else {
            uint64_t in_use = stats_of(f).in_use_bytes;
            is_live[slot] = take(f, lane, bytes, 1, &live[slot]) == REN_OK;
            refusals += !is_live[slot];
            CU_ASSERT(is_live[slot] || stats_of(f).in_use_bytes == in_use);
        }
        if (event % 50 == 49) {
            pool_device_complete_all(&f->device);
            (void)ren__pool_reserve(f->pool, bytes * 2);
            ren__pool_trim(f->pool);
        }
        check_ledger(f);
    }
    for (uint32_t slot = 0; slot < SWEEP_SLOTS; slot++) {
        if (is_live[slot]) {
            give(f, &live[slot], 0, 0);
        }
    }
    return refusals;
}

/* Proves that the scenario survives the failure of its Nth upstream call, for every N, once and for
 * ever, by shortage and by loss: the ledger stays exact, nothing live is touched, all slabs come
 * back, and after a passing fault the pool serves again. */
static void test_upstream_failure_sweep(void)
{
    static const ren_status statuses[] = {REN_ERR_NO_DEVICE_MEMORY, REN_ERR_DEVICE,
                                          REN_ERR_DEVICE_LOST};
    unsigned faults = 0;
    for (size_t s = 0; s < REN_TEST_COUNT(statuses); s++) {
        for (int forever = 0; forever < 2; forever++) {
            for (uint64_t nth = 1;; nth++) {
                fixture f;
                begin(&f, 40 * SLAB);
                f.device.fail_nth = nth;
                f.device.fail_forever = forever;
                f.device.fail_status = statuses[s];
                (void)sweep_scenario(&f);
                int reached = f.device.alloc_calls >= nth;
                f.device.fail_nth = 0;
                pool_device_complete_all(&f.device);
                ren__block block = must_take(&f, 1, 10 * SLAB);
                give(&f, &block, 1, 0);
                end(&f);
                if (!reached) {
                    break;
                }
                faults++;
            }
        }
    }
    printf("  %u faults\n", faults);
    CU_ASSERT(faults >= 60);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_create_bad_config", test_create_bad_config},
        {"test_create_host_failures", test_create_host_failures},
        {"test_alloc_fresh", test_alloc_fresh},
        {"test_alloc_reuses_own_lane", test_alloc_reuses_own_lane},
        {"test_alloc_prefers_no_wait", test_alloc_prefers_no_wait},
        {"test_alloc_behind_fence", test_alloc_behind_fence},
        {"test_free_unused_keeps_fence", test_free_unused_keeps_fence},
        {"test_fence_pairs_and_triples", test_fence_pairs_and_triples},
        {"test_merge_joins_fences", test_merge_joins_fences},
        {"test_merge_prefers_no_wait", test_merge_prefers_no_wait},
        {"test_merge_before_out_of_memory", test_merge_before_out_of_memory},
        {"test_alloc_overflow", test_alloc_overflow},
        {"test_alloc_would_grow", test_alloc_would_grow},
        {"test_alloc_trims_for_room", test_alloc_trims_for_room},
        {"test_alloc_upstream_failure", test_alloc_upstream_failure},
        {"test_alloc_device_lost", test_alloc_device_lost},
        {"test_alloc_max_blocks", test_alloc_max_blocks},
        {"test_alloc_merges_for_a_record", test_alloc_merges_for_a_record},
        {"test_reserve_and_trim", test_reserve_and_trim},
        {"test_steady_state_no_upstream_calls", test_steady_state_no_upstream_calls},
        {"test_fragmentation_bound", test_fragmentation_bound},
        {"test_upstream_failure_sweep", test_upstream_failure_sweep},
    };
    return ren_test_main(argc, argv, "test_pool", cases, REN_TEST_COUNT(cases), 120);
}
