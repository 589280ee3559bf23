/* SPDX-License-Identifier: MIT */
/* tests/stress/test_queue_stress.c - many producers, one sleeping consumer, millions of posts.
 *
 * Bar B1: eight producers post through rings of 2, 4, 64 and 4,096 entries whose counts begin just
 * before the wrap; delays are put into the windows between taking a place and publishing it, and
 * between the consumer's look and its sleep. Each post must arrive once, in its producer's order,
 * with the contents it was posted with. Both roads are driven: one SPSC ring a producer through the
 * drain, and one MPSC ring for all.
 * Bar B2, in part: a frame thread posts beside posters of low priority; all posts must go through,
 * and the times are printed, not judged.
 *
 * Reuse of records  A producer rewrites a record after it has posted K others behind it. Once the
 * ring has accepted post i, the consumer has taken at least i + 1 - capacity, and all but its
 * present batch is checked; so with K = capacity + BATCH the record is out of use, and the
 * consumer's store of its index, which the producer read to know that there is room, orders the
 * check before the rewrite.
 */
static void at_point(void);
#define REN__POINT(name) at_point()

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "queues/doorbell.h"
#include "queues/drain.h"
#include "tests/support/test.h"

#define PRODUCERS 8u
#define BATCH     64u
#define NEAR_WRAP 0xFFFFFF00u
#define POSTS     10000000u /* of the whole program's exactness cases */

typedef struct record {
    uint32_t producer;
    uint32_t sequence;
    uint64_t check;
} record;

typedef enum road {
    ROAD_OWN_RINGS,
    ROAD_SHARED_RING
} road;

typedef struct producer {
    uint32_t index;
    road way;
    uint32_t posts;
    uint32_t record_count;
    record *records;
    ren__spsc rings[REN__CLASS_COUNT];
    uint32_t full; /* answers of FULL */
} producer;

static producer producers[PRODUCERS];
static ren__mpsc shared[REN__CLASS_COUNT];
static ren__drain drain;
static ren__doorbell bell;
static uint32_t next_sequence[PRODUCERS][REN__CLASS_COUNT];
static uint64_t wrong;
static uint32_t naps;

static _Thread_local unsigned long long delay_seed;

/* 1 in 1,000: let another thread run. 1 in 100,000: be away for a millisecond. */
static void at_point(void)
{
    if (delay_seed == 0) {
        return;
    }
    unsigned long long r = ren_test_random(&delay_seed);
    if (r % 100000 == 0) {
        struct timespec away = {0, 1000000};
        nanosleep(&away, NULL);
    } else if (r % 1000 == 0) {
        sched_yield();
    }
}

static uint64_t check_of(uint32_t index, uint32_t sequence)
{
    return ((uint64_t)index << 32 | sequence) * UINT64_C(0x9E3779B97F4A7C15) ^ 0x5555;
}

static bool push(producer *p, uint32_t job_class, record *r)
{
    return p->way == ROAD_OWN_RINGS ? ren__spsc_push(&p->rings[job_class], r)
                                    : ren__mpsc_push(&shared[job_class], r);
}

/* The class is a function of the sequence, so the consumer knows what to expect from each ring. */
static uint32_t class_of(uint32_t sequence)
{
    return sequence % REN__CLASS_COUNT;
}

static void *produce(void *arg)
{
    producer *p = arg;
    delay_seed = p->index + 1;
    for (uint32_t i = 0; i < p->posts; i++) {
        record *r = &p->records[i % p->record_count];
        *r = (record){p->index, i, check_of(p->index, i)};
        while (!push(p, class_of(i), r)) {
            p->full++;
            sched_yield();
        }
        ren__doorbell_ring_if_asleep(&bell);
    }
    return NULL;
}

static void check(const record *r, uint32_t job_class, uint32_t source)
{
    if (r->producer >= PRODUCERS || r->check != check_of(r->producer, r->sequence) ||
        class_of(r->sequence) != job_class || (source != 0 && source != r->producer + 1) ||
        r->sequence != next_sequence[r->producer][job_class]) {
        wrong++;
        return;
    }
    next_sequence[r->producer][job_class] += REN__CLASS_COUNT;
}

/* The submitter's loop in small. */
static void consume(uint64_t total)
{
    unsigned long long seed = 99;
    for (uint64_t taken = 0; taken < total && wrong == 0;) {
        void *items[BATCH];
        uint32_t job_class;
        uint32_t source;
        uint32_t n = ren__drain_pop(&drain, items, BATCH, &job_class, &source);
        for (uint32_t i = 0; i < n; i++) {
            check(items[i], job_class, source);
        }
        taken += n;
        if (n != 0) {
            continue;
        }
        uint32_t snapshot = ren__doorbell_prepare(&bell);
        ren__doorbell_sleep_begin(&bell);
        if (ren__drain_is_empty(&drain)) {
            delay_seed = seed;
            at_point();
            seed = delay_seed;
            delay_seed = 0;
            naps++;
            (void)ren__doorbell_wait(&bell, snapshot, UINT64_MAX);
        }
        ren__doorbell_sleep_end(&bell);
    }
}

static void make(road way, uint32_t capacity, uint32_t posts)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    ren__doorbell_init(&bell);
    ren__drain_init(&drain);
    memset(producers, 0, sizeof producers);
    wrong = 0;
    naps = 0;
    for (uint32_t c = 0; c < REN__CLASS_COUNT; c++) {
        CU_ASSERT_EQUAL_FATAL(ren__mpsc_init(&shared[c], capacity, NEAR_WRAP, &a), REN_OK);
        ren__drain_set_shared(&drain, c, &shared[c]);
    }
    for (uint32_t p = 0; p < PRODUCERS; p++) {
        producer *q = &producers[p];
        q->index = p;
        q->way = way;
        q->posts = posts;
        /* Posts go round three rings: K for each. */
        q->record_count = REN__CLASS_COUNT * (capacity + BATCH + 1);
        q->records = calloc(q->record_count, sizeof *q->records);
        CU_ASSERT_PTR_NOT_NULL_FATAL(q->records);
        ren__spsc *rings[REN__CLASS_COUNT];
        for (uint32_t c = 0; c < REN__CLASS_COUNT; c++) {
            next_sequence[p][c] = c;
            CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&q->rings[c], capacity, NEAR_WRAP, &a), REN_OK);
            rings[c] = &q->rings[c];
        }
        if (way == ROAD_OWN_RINGS) {
            ren__drain_attach(&drain, p, rings);
        }
    }
}

static void drop(void)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    for (uint32_t c = 0; c < REN__CLASS_COUNT; c++) {
        ren__mpsc_deinit(&shared[c], &a);
        for (uint32_t p = 0; p < PRODUCERS; p++) {
            ren__spsc_deinit(&producers[p].rings[c], &a);
        }
    }
    for (uint32_t p = 0; p < PRODUCERS; p++) {
        free(producers[p].records);
    }
}

static void drive(road way)
{
    static const uint32_t capacities[] = {2, 4, 64, 4096};
    uint32_t posts = POSTS / 2 / (uint32_t)REN_TEST_COUNT(capacities) / PRODUCERS;
    posts /= ren_test_slowdown();
    for (size_t i = 0; i < REN_TEST_COUNT(capacities); i++) {
        pthread_t threads[PRODUCERS];
        make(way, capacities[i], posts);
        for (uint32_t p = 0; p < PRODUCERS; p++) {
            CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[p], NULL, produce, &producers[p]), 0);
        }
        consume((uint64_t)posts * PRODUCERS);
        uint64_t full = 0;
        for (uint32_t p = 0; p < PRODUCERS; p++) {
            if (wrong == 0) {
                CU_ASSERT_EQUAL(pthread_join(threads[p], NULL), 0);
            }
            full += producers[p].full;
        }
        printf("       ring of %u: %u posts, %llu times full, %u sleeps\n", capacities[i],
               posts * PRODUCERS, (unsigned long long)full, naps);
        CU_ASSERT_EQUAL_FATAL(wrong, 0); /* fatal: producers may wait for ever */
        CU_ASSERT_TRUE(ren__drain_is_empty(&drain));
        drop();
    }
}

/* Proves (B1): five million posts through a ring of each producer's own are exact. Fails on any
 * loss, duplicate, reordering, torn payload or lost wake-up (a hang). */
static void test_own_rings_are_exact(void)
{
    drive(ROAD_OWN_RINGS);
}

/* Proves (B1): the same for five million posts through shared rings, with producers held between
 * taking a place and publishing it. */
static void test_shared_ring_is_exact(void)
{
    drive(ROAD_SHARED_RING);
}

/* ------------------------------------------------------------------ a frame thread under load */

#define POSTERS 4u
#define FRAMES  2000u

static atomic_int frame_done;
static atomic_ulong consumed[2]; /* of the posters, of the frame thread */
static atomic_ulong accepted[2];

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *post_at_low_priority(void *arg)
{
    producer *p = arg;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
    while (!atomic_load(&frame_done)) {
        if (push(p, REN__CLASS_BACKGROUND, &p->records[0])) {
            atomic_fetch_add(&accepted[0], 1);
            ren__doorbell_ring_if_asleep(&bell);
        } else {
            sched_yield();
        }
    }
    return NULL;
}

static void *consume_until_done(void *arg)
{
    (void)arg;
    for (;;) {
        void *items[BATCH];
        uint32_t job_class;
        uint32_t source;
        bool done = atomic_load(&frame_done) == 2;
        uint32_t n = ren__drain_pop(&drain, items, BATCH, &job_class, &source);
        for (uint32_t i = 0; i < n; i++) {
            atomic_fetch_add(&consumed[((record *)items[i])->producer], 1);
        }
        if (n != 0) {
            continue;
        }
        if (done) {
            return NULL;
        }
        uint32_t snapshot = ren__doorbell_prepare(&bell);
        ren__doorbell_sleep_begin(&bell);
        if (ren__drain_is_empty(&drain) && atomic_load(&frame_done) != 2) {
            (void)ren__doorbell_wait(&bell, snapshot, UINT64_MAX);
        }
        ren__doorbell_sleep_end(&bell);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The frame thread posts every 0.5 ms. Its ring is large, so FULL is retried only when the consumer
 * did not run for long. */
static void run_frames(producer *p)
{
    static uint64_t times[FRAMES];
    uint32_t frames = FRAMES / ren_test_slowdown();
    uint64_t due = now_ns();
    for (uint32_t i = 0; i < frames; i++) {
        due += 500000;
        uint64_t begin = now_ns();
        while (!push(p, REN__CLASS_REALTIME, &p->records[0])) {
            sched_yield();
        }
        ren__doorbell_ring_if_asleep(&bell);
        times[i] = now_ns() - begin;
        atomic_fetch_add(&accepted[1], 1);
        uint64_t now = now_ns();
        if (now < due) {
            struct timespec rest = {0, (long)(due - now)};
            nanosleep(&rest, NULL);
        }
    }
    qsort(times, frames, sizeof times[0], by_value);
    printf("       %u posts of the frame thread: median %llu ns, p99 %llu ns, longest %llu ns\n",
           frames, (unsigned long long)times[frames / 2],
           (unsigned long long)times[frames - 1 - frames / 100],
           (unsigned long long)times[frames - 1]);
}

static void frame_beside_posters(road way)
{
    pthread_t consumer;
    pthread_t posters[POSTERS];
    make(way, 4096, 0);
    atomic_store(&frame_done, 0);
    for (int i = 0; i < 2; i++) {
        atomic_store(&consumed[i], 0);
        atomic_store(&accepted[i], 0);
    }
    producers[PRODUCERS - 1].records[0].producer = 1; /* who is counted: see consumed */
    CU_ASSERT_EQUAL_FATAL(pthread_create(&consumer, NULL, consume_until_done, NULL), 0);
    for (uint32_t i = 0; i < POSTERS; i++) {
        CU_ASSERT_EQUAL_FATAL(
            pthread_create(&posters[i], NULL, post_at_low_priority, &producers[i]), 0);
    }
    run_frames(&producers[PRODUCERS - 1]);
    atomic_store(&frame_done, 1);
    for (uint32_t i = 0; i < POSTERS; i++) {
        CU_ASSERT_EQUAL(pthread_join(posters[i], NULL), 0);
    }
    atomic_store(&frame_done, 2);
    ren__doorbell_ring_if_asleep(&bell);
    CU_ASSERT_EQUAL(pthread_join(consumer, NULL), 0);
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(atomic_load(&consumed[i]), atomic_load(&accepted[i]));
    }
    drop();
}

/* Proves: beside posters of lower priority in tight loops, every post of a frame thread with a ring
 * of its own goes through. The times are reported only. */
static void test_frame_thread_with_own_ring(void)
{
    frame_beside_posters(ROAD_OWN_RINGS);
}

/* Proves: the same on the shared ring, where posts compete for places. */
static void test_frame_thread_on_shared_ring(void)
{
    frame_beside_posters(ROAD_SHARED_RING);
}

static const ren_test_case cases[] = {
    {"test_own_rings_are_exact", test_own_rings_are_exact},
    {"test_shared_ring_is_exact", test_shared_ring_is_exact},
    {"test_frame_thread_with_own_ring", test_frame_thread_with_own_ring},
    {"test_frame_thread_on_shared_ring", test_frame_thread_on_shared_ring},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_queue_stress", cases, REN_TEST_COUNT(cases), 240);
}
