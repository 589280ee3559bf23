/* SPDX-License-Identifier: MIT */
/* tests/bench/pool_bench.c - what device memory costs the host's thread.
 *
 * Question  What do taking and freeing a block cost while nothing is asked of the driver: in the
 *           steady state of a training loop, across lanes, under contention, and at the worst?
 * Cases     pool/same/1        one size, one lane, freed behind work that is under way pool/step/5
 *           a step of 64 blocks of 8 sizes on 5 lanes, which completes a step late pool/cross/2
 *           every block is taken on one lane and was freed on another pool/cut/1         a large
 *           block is cut into 16, which are freed and merged again pool/threads/<n>   pool/same on
 *           n threads, each with its own lane pool/worst/4096    4,096 free blocks, all behind
 *           other lanes' work; the request fits one malloc/same/1      the C library's malloc and
 *           free of that size, for scale
 * Metrics   pair_ns    one alloc and one free; processor time of the thread, but on n threads wall
 *                      time per pair of all of them
 *           alloc_us   one alloc; processor time
 * Device    None: the upstream hands out addresses that are never touched.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory/pool.h"
#include "tests/bench/bench.h"

#define LANES      REN__POOL_LANES
#define SAME_BYTES 65536u

/* ------------------------------------------------------------------ an upstream of nothing */

typedef struct nothing {
    uint64_t next;
    _Atomic uint64_t completed[LANES];
} nothing;

static ren_status nothing_alloc(void *user, uint64_t bytes, void **out)
{
    nothing *n = user;
    n->next += (bytes + 0xffffu) & ~0xffffull;
    *out = (void *)(uintptr_t)((1ull << 44) + n->next);
    return REN_OK;
}

static void nothing_free(void *user, void *ptr, uint64_t bytes)
{
    (void)user;
    (void)ptr;
    (void)bytes;
}

static uint64_t nothing_completed(void *user, uint32_t lane)
{
    nothing *n = user;
    return atomic_load_explicit(&n->completed[lane], memory_order_acquire);
}

static ren__pool *pool_make(nothing *n)
{
    ren__pool_config config = {LANES, 0, 0, 16384};
    ren__pool_upstream upstream = {nothing_alloc, nothing_free, nothing_completed, n};
    ren__host_allocator host = ren__host_allocator_make(NULL);
    ren__pool *pool = NULL;
    memset(n, 0, sizeof *n);
    if (ren__pool_create(&config, &upstream, &host, &pool) != REN_OK) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return pool;
}

static ren__block take(ren__pool *pool, uint32_t lane, uint64_t bytes)
{
    ren__block block;
    if (ren__pool_alloc(pool, lane, bytes, 1, &block) != REN_OK) {
        fprintf(stderr, "alloc of %llu bytes failed\n", (unsigned long long)bytes);
        exit(1);
    }
    return block;
}

static void give(ren__pool *pool, const ren__block *block, uint32_t lane, uint64_t seq)
{
    ren__fence uses = {{0}};
    uses.seq[lane] = seq;
    ren__pool_free(pool, block, lane, &uses);
}

/* ------------------------------------------------------------------ one thread */

/* Processor time, so that other programs on the machine disturb the figure less. */
static uint64_t thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double same_size(const bench_case *c, const bench *b)
{
    nothing n;
    ren__pool *pool = pool_make(&n);
    uint64_t pairs = b->quick ? 100000 : 1000000;
    (void)c;
    uint64_t begin = thread_ns();
    for (uint64_t i = 1; i <= pairs; i++) {
        ren__block block = take(pool, 1, SAME_BYTES);
        give(pool, &block, 1, i);
        atomic_store_explicit(&n.completed[1], i - i % 4, memory_order_release);
    }
    uint64_t ns = thread_ns() - begin;
    ren__pool_destroy(pool);
    return (double)ns / (double)pairs;
}

static double step_of_blocks(const bench_case *c, const bench *b)
{
    enum {
        BLOCKS = 64
    };
    nothing n;
    ren__block live[BLOCKS];
    ren__pool *pool = pool_make(&n);
    uint64_t steps = b->quick ? 1000 : 10000;
    (void)c;
    uint64_t begin = thread_ns();
    for (uint64_t step = 1; step <= steps; step++) {
        for (uint32_t i = 0; i < BLOCKS; i++) {
            live[i] = take(pool, i % LANES, 4000ull << (i % 8));
        }
        for (uint32_t i = 0; i < BLOCKS; i++) {
            give(pool, &live[i], i % LANES, step);
        }
        for (uint32_t lane = 0; lane < LANES; lane++) {
            atomic_store_explicit(&n.completed[lane], step - 1, memory_order_release);
        }
    }
    uint64_t ns = thread_ns() - begin;
    ren__pool_destroy(pool);
    return (double)ns / (double)(steps * BLOCKS);
}

static double cross_lanes(const bench_case *c, const bench *b)
{
    nothing n;
    ren__pool *pool = pool_make(&n);
    uint64_t pairs = b->quick ? 100000 : 1000000;
    (void)c;
    uint64_t begin = thread_ns();
    for (uint64_t i = 1; i <= pairs; i++) {
        ren__block block = take(pool, (uint32_t)(i % 2), SAME_BYTES);
        give(pool, &block, (uint32_t)(i % 2), i);
    }
    uint64_t ns = thread_ns() - begin;
    ren__pool_destroy(pool);
    return (double)ns / (double)pairs;
}

static double cut_and_merge(const bench_case *c, const bench *b)
{
    enum {
        PARTS = 16
    };
    nothing n;
    ren__block parts[PARTS];
    ren__pool *pool = pool_make(&n);
    uint64_t rounds = b->quick ? 1000 : 20000;
    (void)c;
    uint64_t begin = thread_ns();
    for (uint64_t round = 1; round <= rounds; round++) {
        ren__block whole = take(pool, 0, 8u << 20);
        give(pool, &whole, 0, 2 * round);
        for (uint32_t i = 0; i < PARTS; i++) {
            parts[i] = take(pool, 0, (8u << 20) / PARTS);
        }
        for (uint32_t i = 0; i < PARTS; i++) {
            give(pool, &parts[i], 0, 2 * round + 1);
        }
    }
    uint64_t ns = thread_ns() - begin;
    ren__pool_destroy(pool);
    return (double)ns / (double)(rounds * (PARTS + 1));
}

/* Every list is walked twice over: nothing is ready, and the last block looked at is the one. */
static double worst_search(const bench_case *c, const bench *b)
{
    enum {
        BLOCKS = 4096
    };
    static ren__block live[BLOCKS];
    nothing n;
    ren__pool *pool = pool_make(&n);
    unsigned rounds = b->quick ? 10 : 200;
    (void)c;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        live[i] = take(pool, 0, 4096);
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        give(pool, &live[i], 1 + i % (LANES - 1), 1000000);
    }
    uint64_t ns = 0;
    for (unsigned round = 0; round < rounds; round++) {
        uint64_t begin = thread_ns();
        ren__block block = take(pool, 0, 4096);
        ns += thread_ns() - begin;
        give(pool, &block, 1, 1000000);
    }
    ren__pool_destroy(pool);
    return (double)ns / rounds / 1000.0;
}

static double malloc_same_size(const bench_case *c, const bench *b)
{
    uint64_t pairs = b->quick ? 100000 : 1000000;
    (void)c;
    uint64_t begin = thread_ns();
    for (uint64_t i = 0; i < pairs; i++) {
        void *volatile ptr = malloc(SAME_BYTES);
        free(ptr);
    }
    return (double)(thread_ns() - begin) / (double)pairs;
}

/* ------------------------------------------------------------------ several threads */

typedef struct worker {
    ren__pool *pool;
    uint32_t lane;
    uint64_t pairs;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    for (uint64_t i = 1; i <= w->pairs; i++) {
        ren__block block = take(w->pool, w->lane, SAME_BYTES);
        give(w->pool, &block, w->lane, i);
    }
    return NULL;
}

static double on_threads(const bench_case *c, const bench *b)
{
    nothing n;
    pthread_t threads[LANES];
    worker workers[LANES];
    ren__pool *pool = pool_make(&n);
    uint64_t pairs = b->quick ? 50000 : 500000;
    uint64_t begin = bench_now_ns();
    for (uint32_t i = 0; i < c->number; i++) {
        workers[i].pool = pool;
        workers[i].lane = i;
        workers[i].pairs = pairs;
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) {
            fprintf(stderr, "no thread\n");
            exit(1);
        }
    }
    for (uint32_t i = 0; i < c->number; i++) {
        pthread_join(threads[i], NULL);
    }
    uint64_t ns = bench_now_ns() - begin;
    ren__pool_destroy(pool);
    return (double)ns / (double)(pairs * c->number);
}

int main(int argc, char **argv)
{
    static const bench_case cases[] = {
        {"pool/same/1", "pair_ns", "ns", same_size, NULL, 1},
        {"pool/step/5", "pair_ns", "ns", step_of_blocks, NULL, 5},
        {"pool/cross/2", "pair_ns", "ns", cross_lanes, NULL, 2},
        {"pool/cut/1", "pair_ns", "ns", cut_and_merge, NULL, 1},
        {"pool/threads/2", "pair_ns", "ns", on_threads, NULL, 2},
        {"pool/threads/4", "pair_ns", "ns", on_threads, NULL, 4},
        {"pool/worst/4096", "alloc_us", "us", worst_search, NULL, 4096},
        {"malloc/same/1", "pair_ns", "ns", malloc_same_size, NULL, 1},
    };
    bench b;
    bench_init(&b, argc, argv, "pool", NULL, 0);
    bench_run(&b, cases, sizeof cases / sizeof cases[0]);
    return 0;
}
