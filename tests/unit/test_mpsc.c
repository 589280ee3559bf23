/* SPDX-License-Identifier: MIT */
/* tests/unit/test_mpsc.c - the many-producer ring: sizes, FULL, and producers held inside a push.
 *
 * Rows of the failure table: 45, 46 (spurious FULL), 47, 49, 50 (a producer stopped inside a post).
 * The program gives the ring's inline functions its own REN__POINT, so that "other threads" can act
 * at a named place on the same thread (exactly, without luck) or hold a real one there.
 */
static void at_point(const char *name);
#define REN__POINT(name) at_point(name)

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "queues/mpsc.h"
#include "queues/spsc.h"
#include "tests/support/test.h"

#define NEAR_WRAP 0xFFFFFF00u

static const char *hook_point;   /* where the hook runs, once */
static void (*hook)(void);       /* what it does */
static _Thread_local bool armed; /* only in the thread under test */

static void at_point(const char *name)
{
    if (armed && hook_point != NULL && strcmp(name, hook_point) == 0) {
        armed = false;
        hook();
    }
}

static void arm(const char *point, void (*fn)(void))
{
    hook_point = point;
    hook = fn;
    armed = true;
}

static ren__mpsc ring;
static char objects[4096];

static void make_ring(uint32_t capacity, uint32_t start)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    CU_ASSERT_EQUAL_FATAL(ren__mpsc_init(&ring, capacity, start, &a), REN_OK);
}

static void drop_ring(void)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    ren__mpsc_deinit(&ring, &a);
}

/* Proves (row 49): wrong sizes are refused. */
static void test_init_refuses_wrong_sizes(void)
{
    static const uint32_t wrong[] = {0, (1u << 20) + 1, 1u << 31, UINT32_MAX};
    ren__host_allocator a = ren__host_allocator_make(NULL);
    for (size_t i = 0; i < REN_TEST_COUNT(wrong); i++) {
        CU_ASSERT_EQUAL(ren__mpsc_init(&ring, wrong[i], 0, &a), REN_ERR_INVALID_ARGUMENT);
        ren__mpsc_deinit(&ring, &a);
    }
}

/* Proves (rows 45, 47, 49): each capacity takes exactly that many entries, gives back the same
 * addresses in order, and keeps doing so while the counts wrap. */
static void test_push_until_full_is_exact(void)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 6, 100, 1000};
    for (size_t i = 0; i < REN_TEST_COUNT(sizes); i++) {
        uint32_t size = sizes[i];
        uint32_t wrong = 0;
        void *got[1001];
        make_ring(size, NEAR_WRAP);
        for (uint32_t posts = 0; posts < 2000; posts += size) {
            for (uint32_t n = 0; n < size; n++) {
                wrong += !ren__mpsc_push(&ring, &objects[n]);
            }
            wrong += ren__mpsc_push(&ring, &objects[size]);
            wrong += ren__mpsc_size(&ring) != size;
            wrong += ren__mpsc_pop(&ring, got, 1001) != size;
            for (uint32_t n = 0; n < size; n++) {
                wrong += got[n] != &objects[n];
            }
        }
        CU_ASSERT_EQUAL(wrong, 0);
        drop_ring();
    }
}

static void others_go_round(void)
{
    void *got[4];
    for (int i = 0; i < 4000; i++) {
        CU_ASSERT_TRUE(ren__mpsc_push(&ring, &objects[0]));
        CU_ASSERT_EQUAL(ren__mpsc_pop(&ring, got, 4), 1);
    }
}

/* Proves (row 46): a producer whose first read is 4,000 posts old finds the room that there is.
 * Fails if a stale snapshot is taken for a full ring. */
static void test_push_with_stale_snapshot_is_not_full(void)
{
    void *got[4];
    for (uint32_t before = 0; before < 4; before++) {
        make_ring(4, NEAR_WRAP);
        for (uint32_t i = 0; i < before; i++) {
            CU_ASSERT_TRUE(ren__mpsc_push(&ring, &objects[1]));
        }
        CU_ASSERT_EQUAL(ren__mpsc_pop(&ring, got, 4), before);
        arm("producer.snapshot", others_go_round);
        CU_ASSERT_TRUE(ren__mpsc_push(&ring, &objects[2]));
        CU_ASSERT_FALSE(armed);
        CU_ASSERT_EQUAL(ren__mpsc_pop(&ring, got, 4), 1);
        CU_ASSERT_PTR_EQUAL(got[0], &objects[2]);
        drop_ring();
    }
}

static void others_fill(void)
{
    while (ren__mpsc_push(&ring, &objects[3])) {
    }
}

/* Proves: a producer overtaken by others that fill the ring is told FULL and keeps nothing. Fails
 * if an entry is written over one that was not read. */
static void test_push_overtaken_until_full(void)
{
    void *got[8];
    make_ring(4, NEAR_WRAP);
    arm("producer.snapshot", others_fill);
    CU_ASSERT_FALSE(ren__mpsc_push(&ring, &objects[4]));
    CU_ASSERT_EQUAL(ren__mpsc_pop(&ring, got, 8), 4);
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_PTR_EQUAL(got[i], &objects[3]);
    }
    drop_ring();
}

static atomic_int held;   /* a thread stands at the point */
static atomic_int let_go; /* it may leave */
static atomic_int pushed; /* pushes that have returned true */

static void hold_here(void)
{
    atomic_store(&held, 1);
    while (!atomic_load(&let_go)) {
        sched_yield();
    }
}

static void *push_held(void *arg)
{
    armed = true;
    atomic_fetch_add(&pushed, ren__mpsc_push(&ring, arg));
    return NULL;
}

/* Proves (row 50): while a producer is held between taking its place and filling it, the consumer
 * sees a ring without holes (entries before it, none after), other producers' pushes return at
 * once, with FULL when no place is left, and another producer's own ring is not affected. Once it
 * goes on, all entries arrive in the order of their places. Fails if a later entry is shown early,
 * an unfilled slot is read, or a push waits (a hang: nobody else could end it). */
static void test_push_held_after_reserve(void)
{
    void *got[8];
    ren__host_allocator a = ren__host_allocator_make(NULL);
    ren__spsc own;
    pthread_t stuck;
    atomic_store(&held, 0);
    atomic_store(&let_go, 0);
    atomic_store(&pushed, 0);
    make_ring(4, NEAR_WRAP);
    CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&own, 4, 0, &a), REN_OK);
    CU_ASSERT_TRUE(ren__mpsc_push(&ring, &objects[0]));

    hook_point = "producer.reserved";
    hook = hold_here;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&stuck, NULL, push_held, &objects[1]), 0);
    while (!atomic_load(&held)) {
        sched_yield();
    }
    CU_ASSERT_TRUE(ren__mpsc_push(&ring, &objects[2]));
    CU_ASSERT_TRUE(ren__mpsc_push(&ring, &objects[3]));
    CU_ASSERT_FALSE(ren__mpsc_push(&ring, &objects[5]));
    CU_ASSERT_EQUAL(ren__mpsc_size(&ring), 4);
    CU_ASSERT_TRUE(ren__spsc_push(&own, &objects[6]));
    CU_ASSERT_EQUAL(ren__spsc_pop(&own, got, 4), 1);
    CU_ASSERT_EQUAL(ren__mpsc_pop(&ring, got, 8), 1);
    CU_ASSERT_PTR_EQUAL(got[0], &objects[0]);
    for (int i = 0; i < 1000; i++) {
        CU_ASSERT_EQUAL(ren__mpsc_pop(&ring, got, 8), 0);
        CU_ASSERT_TRUE(ren__mpsc_is_empty(&ring));
    }
    CU_ASSERT_TRUE(ren__mpsc_push(&ring, &objects[4])); /* the place that was popped */
    CU_ASSERT_FALSE(ren__mpsc_push(&ring, &objects[5]));
    CU_ASSERT_EQUAL(atomic_load(&pushed), 0);

    atomic_store(&let_go, 1);
    CU_ASSERT_EQUAL(pthread_join(stuck, NULL), 0);
    CU_ASSERT_EQUAL(atomic_load(&pushed), 1);
    CU_ASSERT_FALSE(ren__mpsc_is_empty(&ring));
    CU_ASSERT_EQUAL(ren__mpsc_pop(&ring, got, 8), 4);
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_PTR_EQUAL(got[i], &objects[i + 1]);
    }
    ren__spsc_deinit(&own, &a);
    drop_ring();
}

#define FILLERS 8

static void *push_until_full(void *arg)
{
    uint32_t *count = arg;
    while (ren__mpsc_push(&ring, count)) {
        ++*count;
    }
    return NULL;
}

/* Proves: eight producers that push until FULL, with nobody popping, keep exactly the capacity
 * between them, and each the number it was told. Fails if FULL comes early, or late, or a place is
 * given out twice. */
static void test_many_producers_fill_exactly(void)
{
    static const uint32_t sizes[] = {1, 3, 64, 1000};
    static void *got[1001];
    for (size_t i = 0; i < REN_TEST_COUNT(sizes); i++) {
        pthread_t threads[FILLERS];
        uint32_t counts[FILLERS] = {0};
        uint32_t seen[FILLERS] = {0};
        uint32_t sum = 0;
        make_ring(sizes[i], UINT32_MAX - sizes[i] / 2);
        for (int t = 0; t < FILLERS; t++) {
            CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[t], NULL, push_until_full, &counts[t]),
                                  0);
        }
        for (int t = 0; t < FILLERS; t++) {
            CU_ASSERT_EQUAL(pthread_join(threads[t], NULL), 0);
            sum += counts[t];
        }
        CU_ASSERT_EQUAL(sum, sizes[i]);
        uint32_t n = ren__mpsc_pop(&ring, got, 1001);
        CU_ASSERT_EQUAL(n, sizes[i]);
        for (uint32_t k = 0; k < n; k++) {
            seen[(uint32_t *)got[k] - counts]++;
        }
        CU_ASSERT_EQUAL(memcmp(seen, counts, sizeof seen), 0);
        drop_ring();
    }
}

#define POSTERS 3u
#define RING    16u
#define BATCH   4u
#define RECORDS                                                                                    \
    (RING + BATCH + 1) /* one that is rewritten has been read: see test_queue_stress.c */

typedef struct record {
    uint32_t poster;
    uint32_t sequence;
} record;

static record records[POSTERS][RECORDS];
static uint32_t posts_each;

static void *post_records(void *arg)
{
    uint32_t me = (uint32_t)(uintptr_t)arg;
    for (uint32_t i = 0; i < posts_each; i++) {
        record *r = &records[me][i % RECORDS];
        *r = (record){me, i};
        while (!ren__mpsc_push(&ring, r)) {
            sched_yield();
        }
    }
    return NULL;
}

/* Proves: what a producer wrote before a push is what the consumer reads after the pop, in each
 * producer's order, and no record is rewritten before it is read. Natively fails on loss or
 * disorder; under ThreadSanitizer also if either hand-over has no order. */
static void test_many_threads_hand_over(void)
{
    pthread_t threads[POSTERS];
    uint32_t next[POSTERS] = {0};
    uint32_t wrong = 0;
    posts_each = 200000 / ren_test_slowdown();
    make_ring(RING, NEAR_WRAP);
    for (uintptr_t t = 0; t < POSTERS; t++) {
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[t], NULL, post_records, (void *)t), 0);
    }
    for (uint32_t taken = 0; taken < POSTERS * posts_each;) {
        void *got[BATCH];
        uint32_t n = ren__mpsc_pop(&ring, got, BATCH);
        for (uint32_t i = 0; i < n; i++) {
            const record *r = got[i];
            wrong += r->sequence != next[r->poster]++;
        }
        taken += n;
        if (n == 0) {
            sched_yield();
        }
    }
    for (int t = 0; t < (int)POSTERS; t++) {
        CU_ASSERT_EQUAL(pthread_join(threads[t], NULL), 0);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(ren__mpsc_size(&ring), 0);
    drop_ring();
}

static const ren_test_case cases[] = {
    {"test_init_refuses_wrong_sizes", test_init_refuses_wrong_sizes},
    {"test_push_until_full_is_exact", test_push_until_full_is_exact},
    {"test_push_with_stale_snapshot_is_not_full", test_push_with_stale_snapshot_is_not_full},
    {"test_push_overtaken_until_full", test_push_overtaken_until_full},
    {"test_push_held_after_reserve", test_push_held_after_reserve},
    {"test_many_producers_fill_exactly", test_many_producers_fill_exactly},
    {"test_many_threads_hand_over", test_many_threads_hand_over},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_mpsc", cases, REN_TEST_COUNT(cases), 60);
}
