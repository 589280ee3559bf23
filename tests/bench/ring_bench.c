/* SPDX-License-Identifier: MIT */
/* tests/bench/ring_bench.c - what a job costs on its way through a ring.
 *
 * Question  What does a post cost the host's thread, and a hand-over both sides, with libren's
 *           rings, with the rings of the library they stand on, and with a C++ queue of good
 *           repute?
 * Cases     ring/<road>/<producers>, of bench "post":
 *             libren-spsc    a ring a producer, popped in batches, one after the other
 *             libren-drain   the same, chosen by the submitter's drain
 *             libren-mpsc    one ring for all, popped in batches
 *             ck-spsc        ck_ring, a ring a producer; ck pops one at a time
 *             ck-mpsc        ck_ring, one ring for all
 *             moodycamel     concurrentqueue 1.0, tokens, bulk dequeue
 *           ring/bell/<how>: a push and the look whether the consumer sleeps, by kind of fence
 * Metrics   push_ns    one thread pushes 4,096 items into an empty ring; per item
 *           item_ns    producers push and a consumer pops batches of 64 until all are through; wall
 *                      time per item. Who finds a ring full or empty yields, on every road but
 *                      moodycamel, which grows.
 * Items     4,000,000 a repeat; 40,000 on ck-mpsc, whose waiting producers spin: with more threads
 *           than processors each stall lasts until the scheduler ends it.
 * Reading   With more threads than processors, item_ns is about the scheduler as much as the ring.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "queues/doorbell.h"
#include "queues/drain.h"
#include "tests/bench/bench.h"
#include "tests/bench/peer_moodycamel.h"

#define CAPACITY  8192u
#define BATCH     64u
#define PUSHES    4096u
#define PRODUCERS 4u

/* ------------------------------------------------------------------ the roads */

typedef struct road {
    void *(*make)(unsigned producers, uint32_t capacity);
    void (*drop)(void *q);
    void (*push_many)(void *q, unsigned producer, uint64_t count);
    uint32_t (*pop)(void *q, void **items, uint32_t max);
    uint64_t items; /* of one end-to-end repeat */
} road;

static void *must(void *ptr)
{
    if (ptr == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return ptr;
}

typedef struct rings {
    ren__spsc spsc[PRODUCERS];
    ren__mpsc mpsc;
    ren__drain drain;
    ck_ring_t ck[PRODUCERS];
    ck_ring_buffer_t *slots[PRODUCERS];
    unsigned producers;
    unsigned turn;
} rings;

static void *rings_make(unsigned producers, uint32_t capacity)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    rings *q = must(ren__host_calloc(&a, 1, sizeof *q));
    q->producers = producers;
    ren__drain_init(&q->drain);
    int failed = ren__mpsc_init(&q->mpsc, capacity, 0, &a) != REN_OK;
    for (unsigned p = 0; p < producers; p++) {
        failed |= ren__spsc_init(&q->spsc[p], capacity, 0, &a) != REN_OK;
        ren__spsc *of_class[REN__CLASS_COUNT] = {NULL, &q->spsc[p], NULL};
        ren__drain_attach(&q->drain, p, of_class);
        ck_ring_init(&q->ck[p], capacity);
        q->slots[p] = must(ren__host_calloc(&a, capacity, sizeof *q->slots[p]));
    }
    if (failed) {
        must(NULL);
    }
    return q;
}

static void rings_drop(void *ptr)
{
    rings *q = ptr;
    ren__host_allocator a = ren__host_allocator_make(NULL);
    ren__mpsc_deinit(&q->mpsc, &a);
    for (unsigned p = 0; p < q->producers; p++) {
        ren__host_free(&a, q->slots[p], q->ck[p].size, sizeof *q->slots[p]);
        ren__spsc_deinit(&q->spsc[p], &a);
    }
    ren__host_free(&a, q, 1, sizeof *q);
}

/* A push loop for each road, so that its push is inlined as it is in use. */
#define PUSH_MANY(NAME, PUSH)                                                                      \
    static void NAME(void *ptr, unsigned producer, uint64_t count)                                 \
    {                                                                                              \
        rings *q = ptr;                                                                            \
        (void)producer;                                                                            \
        for (uint64_t i = 1; i <= count; i++) {                                                    \
            void *item = (void *)(uintptr_t)i;                                                     \
            while (!(PUSH)) {                                                                      \
                sched_yield();                                                                     \
            }                                                                                      \
        }                                                                                          \
    }

PUSH_MANY(spsc_push_many, ren__spsc_push(&q->spsc[producer], item))
PUSH_MANY(mpsc_push_many, ren__mpsc_push(&q->mpsc, item))
PUSH_MANY(ck_spsc_push_many, ck_ring_enqueue_spsc(&q->ck[producer], q->slots[producer], item))
PUSH_MANY(ck_mpsc_push_many, ck_ring_enqueue_mpsc(&q->ck[0], q->slots[0], item))

static uint32_t spsc_pop(void *ptr, void **items, uint32_t max)
{
    rings *q = ptr;
    q->turn = (q->turn + 1) % q->producers;
    return ren__spsc_pop(&q->spsc[q->turn], items, max);
}

static uint32_t drain_pop(void *ptr, void **items, uint32_t max)
{
    rings *q = ptr;
    uint32_t job_class;
    uint32_t source;
    return ren__drain_pop(&q->drain, items, max, &job_class, &source);
}

static uint32_t mpsc_pop(void *ptr, void **items, uint32_t max)
{
    rings *q = ptr;
    return ren__mpsc_pop(&q->mpsc, items, max);
}

static uint32_t ck_spsc_pop(void *ptr, void **items, uint32_t max)
{
    rings *q = ptr;
    uint32_t n = 0;
    q->turn = (q->turn + 1) % q->producers;
    while (n < max && ck_ring_dequeue_spsc(&q->ck[q->turn], q->slots[q->turn], &items[n])) {
        n++;
    }
    return n;
}

static uint32_t ck_mpsc_pop(void *ptr, void **items, uint32_t max)
{
    rings *q = ptr;
    uint32_t n = 0;
    while (n < max && ck_ring_dequeue_mpsc(&q->ck[0], q->slots[0], &items[n])) {
        n++;
    }
    return n;
}

static const road libren_spsc = {rings_make, rings_drop, spsc_push_many, spsc_pop, 4000000};
static const road libren_drain = {rings_make, rings_drop, spsc_push_many, drain_pop, 4000000};
static const road libren_mpsc = {rings_make, rings_drop, mpsc_push_many, mpsc_pop, 4000000};
static const road ck_spsc = {rings_make, rings_drop, ck_spsc_push_many, ck_spsc_pop, 4000000};
static const road ck_mpsc = {rings_make, rings_drop, ck_mpsc_push_many, ck_mpsc_pop, 40000};
static const road moodycamel = {peer_moodycamel_make, peer_moodycamel_drop,
                                peer_moodycamel_push_many, peer_moodycamel_pop, 4000000};

/* ------------------------------------------------------------------ the measurements */

static double push_alone(const bench_case *c, const bench *b)
{
    const road *r = c->arg;
    unsigned rounds = b->quick ? 20 : 200;
    void *items[BATCH];
    uint64_t ns = 0;
    void *q = r->make(1, CAPACITY);
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t begin = bench_now_ns();
        r->push_many(q, 0, PUSHES);
        ns += bench_now_ns() - begin;
        while (r->pop(q, items, BATCH) != 0) {
        }
    }
    r->drop(q);
    return (double)ns / rounds / PUSHES;
}

typedef struct pusher {
    const road *r;
    void *q;
    unsigned number;
    uint64_t count;
} pusher;

static void *push_thread(void *arg)
{
    pusher *p = arg;
    p->r->push_many(p->q, p->number, p->count);
    return NULL;
}

static double end_to_end(const bench_case *c, const bench *b)
{
    const road *r = c->arg;
    pthread_t threads[PRODUCERS];
    pusher pushers[PRODUCERS];
    uint64_t each = (b->quick ? r->items / 10 : r->items) / c->number;
    uint64_t left = each * c->number;
    uint64_t total = left;
    void *q = r->make(c->number, CAPACITY);
    uint64_t begin = bench_now_ns();
    for (unsigned p = 0; p < c->number; p++) {
        pushers[p] = (pusher){r, q, p, each};
        if (pthread_create(&threads[p], NULL, push_thread, &pushers[p]) != 0) {
            must(NULL);
        }
    }
    for (unsigned idle = 0; left != 0;) {
        void *items[BATCH];
        uint32_t n = r->pop(q, items, BATCH);
        left -= n;
        idle = n != 0 ? 0 : idle + 1;
        if (idle >= c->number) { /* one look at each ring, where there are several */
            sched_yield();
            idle = 0;
        }
    }
    uint64_t ns = bench_now_ns() - begin;
    for (unsigned p = 0; p < c->number; p++) {
        pthread_join(threads[p], NULL);
    }
    r->drop(q);
    return (double)ns / (double)total;
}

/* Kinds of fence between the publication and the look at the doorbell. */
enum {
    FENCE_NONE,
    FENCE_LIBREN,
    FENCE_MFENCE,
    FENCE_RING
};

static double push_and_look(const bench_case *c, const bench *b)
{
    static ren__doorbell bell;
    unsigned rounds = b->quick ? 20 : 200;
    void *items[BATCH];
    uint64_t ns = 0;
    rings *q = rings_make(1, CAPACITY);
    ren__doorbell_init(&bell);
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t begin = bench_now_ns();
        for (uintptr_t n = 1; n <= PUSHES; n++) {
            (void)ren__spsc_push(&q->spsc[0], (void *)n);
            switch (c->number) {
            case FENCE_LIBREN:
                ren__doorbell_ring_if_asleep(&bell);
                break;
            case FENCE_RING:
                ren__doorbell_ring(&bell);
                break;
            default:
                if (c->number == FENCE_MFENCE) {
                    ck_pr_fence_memory();
                }
                if (ck_pr_load_32(&bell.sleepers) != 0) {
                    ren__doorbell_ring(&bell);
                }
                break;
            }
        }
        ns += bench_now_ns() - begin;
        while (ren__spsc_pop(&q->spsc[0], items, BATCH) != 0) {
        }
    }
    rings_drop(q);
    return (double)ns / rounds / PUSHES;
}

#define ALONE(NAME, ROAD)                                                                          \
    {                                                                                              \
        "ring/" NAME "/1", "push_ns", "ns", push_alone, &ROAD, 1                                   \
    }
#define THROUGH(NAME, ROAD)                                                                        \
    {"ring/" NAME "/1", "item_ns", "ns", end_to_end, &ROAD, 1},                                    \
        {"ring/" NAME "/2", "item_ns", "ns", end_to_end, &ROAD, 2},                                \
    {                                                                                              \
        "ring/" NAME "/4", "item_ns", "ns", end_to_end, &ROAD, 4                                   \
    }
#define LOOK(NAME, FENCE)                                                                          \
    {                                                                                              \
        "ring/bell/" NAME, "push_ns", "ns", push_and_look, NULL, FENCE                             \
    }

static const bench_case cases[] = {
    ALONE("libren-spsc", libren_spsc),
    ALONE("libren-mpsc", libren_mpsc),
    ALONE("ck-spsc", ck_spsc),
    ALONE("ck-mpsc", ck_mpsc),
    ALONE("moodycamel", moodycamel),
    LOOK("no-fence", FENCE_NONE),
    LOOK("libren", FENCE_LIBREN),
    LOOK("mfence", FENCE_MFENCE),
    LOOK("always-ring", FENCE_RING),
    THROUGH("libren-spsc", libren_spsc),
    THROUGH("libren-drain", libren_drain),
    THROUGH("libren-mpsc", libren_mpsc),
    THROUGH("ck-spsc", ck_spsc),
    THROUGH("ck-mpsc", ck_mpsc),
    THROUGH("moodycamel", moodycamel),
};

int main(int argc, char **argv)
{
    bench b;
    bench_init(&b, argc, argv, "post", NULL, 0);
    bench_run(&b, cases, sizeof cases / sizeof cases[0]);
    return 0;
}
