/* SPDX-License-Identifier: MIT */
/* tests/stress/test_pool_stress.c - the pool under many threads and random completion.
 *
 * Purpose   Rows 2, 5 and 6 of the failure table at scale: the ledger under eight threads and an
 *           upstream that dawdles after each free; fences judged against the truth over random
 *           programs on five lanes; the same with real memory and real lanes, so that
 *           ThreadSanitizer judges; and the promise that no lock is held across an upstream call.
 * Threads   Other threads count what they see wrong; the thread of main() asserts on the counts.
 */
#include "../support/pool_device.h"
#include "../support/test.h"

#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB  1024ull
#define SLAB (64 * KIB)

static ren__pool *make_pool(const ren__pool_upstream *upstream, uint64_t limit, uint32_t max_blocks)
{
    ren__pool_config config = {REN__POOL_LANES, limit, SLAB, max_blocks};
    ren__host_allocator host = ren__host_allocator_make(NULL);
    ren__pool *pool = NULL;
    CU_ASSERT_EQUAL_FATAL(ren__pool_create(&config, upstream, &host, &pool), REN_OK);
    return pool;
}

/* ------------------------------------------------------------------ a random program */

enum {
    SLOTS = 16
};

/* What one thread does to the pool; its counts are read when it is done. */
typedef struct program {
    pool_device *device;
    ren__pool *pool;
    unsigned long long random;
    unsigned operations;
    unsigned trim_every;
    uint64_t granted, refused, strange; /* answers that alloc must not give */
    int is_live[SLOTS];
    ren__block live[SLOTS];
} program;

static uint32_t pick(program *p, uint32_t bound)
{
    return (uint32_t)(ren_test_random(&p->random) >> 33) % bound;
}

static void program_take(program *p, uint32_t slot)
{
    uint64_t bytes = (256ull << pick(p, 9)) + pick(p, 4096);
    ren_status status =
        ren__pool_alloc(p->pool, pick(p, REN__POOL_LANES), bytes, pick(p, 4) != 0, &p->live[slot]);
    if (status == REN_OK) {
        pool_device_claim(p->device, &p->live[slot]);
        p->strange += p->live[slot].bytes < bytes;
        p->is_live[slot] = 1;
        p->granted++;
    } else {
        p->strange += status != REN_ERR_WOULD_GROW && status != REN_ERR_NO_DEVICE_MEMORY &&
                      status != REN_ERR_QUEUE_FULL;
        p->refused++;
    }
}

static void program_give(program *p, uint32_t slot)
{
    ren__fence uses = {{0}};
    uint32_t count = pick(p, 4);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t lane = pick(p, REN__POOL_LANES);
        uses.seq[lane] = pool_device_use(p->device, &p->live[slot], lane);
    }
    pool_device_disown(p->device, &p->live[slot]);
    ren__pool_free(p->pool, &p->live[slot], pick(p, REN__POOL_LANES), &uses);
    p->is_live[slot] = 0;
}

/* A random lane completes some of what it has been given; a lane may stay behind for long. */
static void program_complete(program *p)
{
    uint32_t lane = pick(p, REN__POOL_LANES);
    uint64_t done = atomic_load(&p->device->completed[lane]);
    uint64_t posted = atomic_load(&p->device->posted[lane]);
    if (posted > done) {
        pool_device_complete(p->device, lane, done + 1 + pick(p, (uint32_t)(posted - done)));
    }
}

static void *program_run(void *arg)
{
    program *p = arg;
    for (unsigned i = 0; i < p->operations; i++) {
        uint32_t slot = pick(p, SLOTS);
        if (p->is_live[slot]) {
            program_give(p, slot);
        } else {
            program_take(p, slot);
        }
        if (pick(p, 3) == 0) {
            program_complete(p);
        }
        if (p->trim_every && pick(p, p->trim_every) == 0) {
            ren__pool_trim(p->pool);
        }
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        if (p->is_live[slot]) {
            program_give(p, slot);
        }
    }
    return NULL;
}

static void check_end(pool_device *device, ren__pool *pool)
{
    ren__pool_stats stats;
    ren__pool_get_stats(pool, &stats);
    CU_ASSERT_EQUAL(stats.in_use_bytes, 0);
    CU_ASSERT_EQUAL(stats.reserved_bytes, device->held_bytes);
    CU_ASSERT_EQUAL(stats.driver_allocs, device->allocs);
    CU_ASSERT_EQUAL(stats.driver_frees, device->frees);
    pool_device_complete_all(device);
    ren__pool_trim(pool); /* every block is free, so every slab can go, whatever was merged */
    CU_ASSERT_EQUAL(device->held_bytes, 0);
    ren__pool_destroy(pool);
    CU_ASSERT_EQUAL(device->errors, 0);
    pool_device_deinit(device);
}

/* Row 5. Proves that the ledger and the book survive eight threads and an upstream whose addresses
 * are free for others before its free returns: 100,000 operations, many trims, a limit that makes
 * them give room to each other. Fails if a slab leaves the book after it has gone back, if the
 * limit is overrun, if two live blocks overlap or if a fence is incomplete. */
static void test_eight_threads_slow_upstream(void)
{
    enum {
        THREADS = 8,
        OPERATIONS = 100000
    };
    static pool_device device;
    static program programs[THREADS];
    pthread_t threads[THREADS];
    pool_device_init(&device);
    device.sleep_after_free_us = 20;
    ren__pool_upstream upstream = pool_device_upstream(&device);
    uint64_t limit = 24 * SLAB;
    ren__pool *pool = make_pool(&upstream, limit, 512);
    uint64_t granted = 0, refused = 0, strange = 0;
    memset(programs, 0, sizeof programs);
    for (unsigned i = 0; i < THREADS; i++) {
        programs[i].device = &device;
        programs[i].pool = pool;
        programs[i].random = 1000 + i;
        programs[i].operations = OPERATIONS / THREADS / ren_test_slowdown();
        programs[i].trim_every = 50;
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, program_run, &programs[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        granted += programs[i].granted;
        refused += programs[i].refused;
        strange += programs[i].strange;
    }
    printf("  %llu granted, %llu refused, %llu slabs got, %llu given back\n",
           (unsigned long long)granted, (unsigned long long)refused,
           (unsigned long long)device.allocs, (unsigned long long)device.frees);
    CU_ASSERT_EQUAL(strange, 0);
    CU_ASSERT(device.frees > 10);
    CU_ASSERT(device.most_bytes <= limit);
    check_end(&device, pool);
}

/* Rows 2 and 6. Proves that over random programs (20 seeds, tight and wide limits, few and many
 * records) no block is handed out whose fence leaves out an incomplete use of any of its bytes,
 * however they were cut, merged and passed from lane to lane. Fails if cut, merge or free loses an
 * entry of a fence, or prunes one too early. */
static void test_fences_against_truth(void)
{
    static const uint64_t limits[] = {0, 2 * SLAB, 6 * SLAB};
    static const uint32_t records[] = {24, 512};
    uint64_t granted = 0;
    for (unsigned seed = 1; seed <= 20; seed++) {
        static pool_device device;
        static program p;
        pool_device_init(&device);
        ren__pool_upstream upstream = pool_device_upstream(&device);
        ren__pool *pool = make_pool(&upstream, limits[seed % 3], records[seed % 2]);
        memset(&p, 0, sizeof p);
        p.device = &device;
        p.pool = pool;
        p.random = seed;
        p.operations = 40000 / ren_test_slowdown();
        p.trim_every = seed % 4 ? 1000 : 0;
        program_run(&p);
        CU_ASSERT_EQUAL(p.strange, 0);
        granted += p.granted;
        check_end(&device, pool);
    }
    printf("  %llu blocks judged\n", (unsigned long long)granted);
}

/* ------------------------------------------------------------------ real lanes, real memory */

typedef struct lanes {
    ren__pool *pool;
    _Atomic uint64_t completed[REN__POOL_LANES];
    unsigned batches;
    _Atomic uint64_t broken; /* bytes that another lane wrote during a batch */
    _Atomic uint64_t waits, failures;
} lanes;

typedef struct lane_arg {
    lanes *all;
    uint32_t lane;
} lane_arg;

static ren_status real_alloc(void *user, uint64_t bytes, void **out)
{
    (void)user;
    *out = malloc(bytes);
    return *out ? REN_OK : REN_ERR_NO_DEVICE_MEMORY;
}

static void real_free(void *user, void *ptr, uint64_t bytes)
{
    (void)user;
    (void)bytes;
    free(ptr);
}

static uint64_t real_completed(void *user, uint32_t lane)
{
    lanes *all = user;
    /* Acquire, pairs with the release store at the end of a batch in lane_run. */
    return atomic_load_explicit(&all->completed[lane], memory_order_acquire);
}

/* The fence's other lanes, as a device would wait for them. */
static void lane_wait(lanes *all, uint32_t lane, const ren__fence *fence)
{
    for (uint32_t m = 0; m < REN__POOL_LANES; m++) {
        if (m != lane && fence->seq[m]) {
            atomic_fetch_add_explicit(&all->waits, 1, memory_order_relaxed);
            while (real_completed(all, m) < fence->seq[m]) {
                sched_yield();
            }
        }
    }
}

/* Each batch: take a block, free it at once behind the batch, and only then do the work in it. */
static void *lane_run(void *arg)
{
    lanes *all = ((lane_arg *)arg)->all;
    uint32_t lane = ((lane_arg *)arg)->lane;
    unsigned long long random = lane + 1;
    for (uint64_t seq = 1; seq <= all->batches; seq++) {
        ren__block block;
        ren__fence uses = {{0}};
        uint64_t bytes = 256 + ren_test_random(&random) % 8192;
        if (ren__pool_alloc(all->pool, lane, bytes, 1, &block) != REN_OK) {
            atomic_fetch_add(&all->failures, 1);
        } else {
            uses.seq[lane] = seq;
            ren__pool_free(all->pool, &block, lane, &uses);
            lane_wait(all, lane, &block.fence);
            unsigned char *memory = block.ptr;
            memset(memory, (int)lane + 1, block.bytes);
            if (seq % 4 == 0) {
                sched_yield();
            }
            for (uint64_t i = 0; i < block.bytes; i += 64) {
                if (memory[i] != lane + 1) {
                    atomic_fetch_add(&all->broken, 1);
                }
            }
        }
        /* Release, pairs with real_completed: what follows the fence comes after this batch. */
        atomic_store_explicit(&all->completed[lane], seq, memory_order_release);
    }
    return NULL;
}

/* Proves the ordering argument of pool.h on real memory: five lanes write to blocks that were freed
 * before the write, and each waits for nothing but the fence it was given. Fails, by a wrong byte
 * or a ThreadSanitizer report, if a fence leaves out a use or `completed` is taken without
 * acquire. */
static void test_five_lanes_real_memory(void)
{
    static lanes all;
    pthread_t threads[REN__POOL_LANES];
    lane_arg args[REN__POOL_LANES];
    ren__pool_upstream upstream = {real_alloc, real_free, real_completed, &all};
    memset(&all, 0, sizeof all);
    all.batches = 20000 / ren_test_slowdown();
    all.pool = make_pool(&upstream, 2 * SLAB, 256);
    for (uint32_t lane = 0; lane < REN__POOL_LANES; lane++) {
        args[lane].all = &all;
        args[lane].lane = lane;
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[lane], NULL, lane_run, &args[lane]), 0);
    }
    for (uint32_t lane = 0; lane < REN__POOL_LANES; lane++) {
        pthread_join(threads[lane], NULL);
    }
    printf("  %llu waits for other lanes\n", (unsigned long long)all.waits);
    CU_ASSERT_EQUAL(all.broken, 0);
    CU_ASSERT_EQUAL(all.failures, 0);
    ren__pool_destroy(all.pool);
}

/* ------------------------------------------------------------------ no lock across the upstream */

/* An upstream that stops inside a call until it is told to go on. */
typedef struct gate {
    pool_device device;
    ren__pool_upstream real;
    sem_t inside, go_on;
    int stop_alloc, stop_free;
    ren__pool *pool;
} gate;

static ren_status gate_alloc(void *user, uint64_t bytes, void **out)
{
    gate *g = user;
    if (g->stop_alloc) {
        sem_post(&g->inside);
        sem_wait(&g->go_on);
    }
    return g->real.alloc(g->real.user, bytes, out);
}

static void gate_free(void *user, void *ptr, uint64_t bytes)
{
    gate *g = user;
    g->real.free(g->real.user, ptr, bytes);
    if (g->stop_free) {
        sem_post(&g->inside);
        sem_wait(&g->go_on);
    }
}

static uint64_t gate_completed(void *user, uint32_t lane)
{
    gate *g = user;
    return g->real.completed(g->real.user, lane);
}

static void *gate_grow(void *arg)
{
    gate *g = arg;
    CU_BOOL granted = ren__pool_reserve(g->pool, 2 * SLAB) == REN_OK;
    return granted ? g : NULL;
}

static void *gate_trim(void *arg)
{
    gate *g = arg;
    ren__pool_trim(g->pool);
    return g;
}

/* While another thread is inside the upstream: alloc without growth and free go on, stats answer,
 * and what the upstream has not settled is not mistaken for a shortage. */
static void check_during_call(gate *g, uint64_t cached, uint64_t missing)
{
    ren__block block;
    ren__fence uses = {{0}};
    ren__pool_stats stats;
    CU_ASSERT_EQUAL(ren__pool_alloc(g->pool, 1, cached, 0, &block), REN_OK);
    ren__pool_free(g->pool, &block, 1, &uses);
    CU_ASSERT_EQUAL(ren__pool_alloc(g->pool, 1, missing, 0, &block), REN_ERR_WOULD_GROW);
    ren__pool_get_stats(g->pool, &stats);
    CU_ASSERT_EQUAL(stats.reserved_bytes, 3 * SLAB);
}

/* Proves that no lock that alloc and free need is held across upstream.alloc and upstream.free: a
 * thread is stopped inside each, and this thread's calls return. Fails by the program's time limit
 * if one is held. */
static void test_upstream_call_blocks_nobody(void)
{
    static gate g;
    pthread_t thread;
    void *result = NULL;
    memset(&g, 0, sizeof g);
    pool_device_init(&g.device);
    g.real = pool_device_upstream(&g.device);
    sem_init(&g.inside, 0, 0);
    sem_init(&g.go_on, 0, 0);
    ren__pool_upstream upstream = {gate_alloc, gate_free, gate_completed, &g};
    g.pool = make_pool(&upstream, 5 * SLAB, 64);
    CU_ASSERT_EQUAL(ren__pool_reserve(g.pool, SLAB), REN_OK);

    g.stop_alloc = 1;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, gate_grow, &g), 0);
    sem_wait(&g.inside);
    check_during_call(&g, SLAB, 4 * SLAB);
    sem_post(&g.go_on);
    pthread_join(thread, &result);
    CU_ASSERT_PTR_NOT_NULL(result);

    /* A refusal of the upstream's is not passed on without a look at what was freed meanwhile. */
    ren__block block;
    ren__fence uses = {{0}};
    CU_ASSERT_EQUAL(ren__pool_alloc(g.pool, 1, 2 * SLAB, 0, &block), REN_OK);
    g.device.capacity = 3 * SLAB;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, gate_grow, &g), 0);
    sem_wait(&g.inside);
    ren__pool_free(g.pool, &block, 1, &uses);
    sem_post(&g.go_on);
    pthread_join(thread, &result);
    CU_ASSERT_PTR_NOT_NULL(result);
    g.stop_alloc = 0;

    g.stop_free = 1;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, gate_trim, &g), 0);
    sem_wait(&g.inside);
    /* The first slab is gone from the book, the other is there still. */
    check_during_call(&g, SLAB, 5 * SLAB);
    sem_post(&g.go_on);
    sem_wait(&g.inside);
    sem_post(&g.go_on);
    pthread_join(thread, &result);
    g.stop_free = 0;
    sem_destroy(&g.inside);
    sem_destroy(&g.go_on);
    check_end(&g.device, g.pool);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_upstream_call_blocks_nobody", test_upstream_call_blocks_nobody},
        {"test_fences_against_truth", test_fences_against_truth},
        {"test_five_lanes_real_memory", test_five_lanes_real_memory},
        {"test_eight_threads_slow_upstream", test_eight_threads_slow_upstream},
    };
    return ren_test_main(argc, argv, "test_pool_stress", cases, REN_TEST_COUNT(cases), 120);
}
