/* SPDX-License-Identifier: MIT */
/* tests/unit/test_spsc.c - the one-producer ring: sizes, exactness, wrap, hand-over.
 *
 * Rows of the failure table: 45 (addresses, then contents), 47 (counts that wrap), 49 (wrong
 * sizes).
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "queues/spsc.h"
#include "tests/support/test.h"

#define NEAR_WRAP 0xFFFFFF00u

static const uint32_t starts[] = {0, NEAR_WRAP};

static ren__host_allocator heap(void)
{
    return ren__host_allocator_make(NULL);
}

/* Proves: sizes that a ring cannot have are refused and leave nothing behind. Fails if a bound is
 * off by one, or if a refused ring holds memory (the leak checker sees it). */
static void test_init_refuses_wrong_sizes(void)
{
    static const uint32_t wrong[] = {0, (1u << 20) + 1, 1u << 21, 1u << 31, UINT32_MAX};
    ren__host_allocator a = heap();
    for (size_t i = 0; i < REN_TEST_COUNT(wrong); i++) {
        ren__spsc q;
        CU_ASSERT_EQUAL(ren__spsc_init(&q, wrong[i], 0, &a), REN_ERR_INVALID_ARGUMENT);
        CU_ASSERT_PTR_NULL(q.ring.slots);
        ren__spsc_deinit(&q, &a);
    }
}

static void *refuse_alloc(void *user, size_t bytes, size_t align)
{
    (void)bytes;
    (void)align;
    ++*(int *)user;
    return NULL;
}

static void refuse_free(void *user, void *ptr, size_t bytes)
{
    (void)ptr;
    (void)bytes;
    *(int *)user += 100;
}

/* Proves: a host allocator that gives nothing is reported, and deinit does not free what was never
 * given. */
static void test_init_without_memory(void)
{
    int calls = 0;
    ren__host_allocator a = {refuse_alloc, refuse_free, &calls};
    ren__spsc q;
    CU_ASSERT_EQUAL(ren__spsc_init(&q, 8, 0, &a), REN_ERR_NO_MEMORY);
    ren__spsc_deinit(&q, &a);
    CU_ASSERT_EQUAL(calls, 1);
}

/* Proves (row 49): every capacity, power of two or not, takes exactly that many entries and gives
 * the same ones back in order, several times round. Fails if a slot is lost, an entry is
 * overwritten, or a full ring accepts one. */
static void test_push_until_full_is_exact(void)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 6, 100, 1000, 4096, 5000};
    static char objects[5001];
    static void *got[5001];
    ren__host_allocator a = heap();
    for (size_t s = 0; s < REN_TEST_COUNT(starts); s++) {
        for (size_t i = 0; i < REN_TEST_COUNT(sizes); i++) {
            uint32_t size = sizes[i];
            ren__spsc q;
            CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&q, size, starts[s], &a), REN_OK);
            for (int round = 0; round < 5; round++) {
                uint32_t wrong = 0;
                for (uint32_t n = 0; n < size; n++) {
                    wrong += !ren__spsc_push(&q, &objects[n]);
                }
                CU_ASSERT_EQUAL(wrong, 0);
                CU_ASSERT_FALSE(ren__spsc_push(&q, &objects[size]));
                CU_ASSERT_FALSE(ren__spsc_push(&q, &objects[size]));
                CU_ASSERT_EQUAL(ren__spsc_size(&q), size);
                CU_ASSERT_EQUAL(ren__spsc_pop(&q, got, 5001), size);
                for (uint32_t n = 0; n < size; n++) {
                    wrong += got[n] != &objects[n];
                }
                CU_ASSERT_EQUAL(wrong, 0);
                CU_ASSERT_EQUAL(ren__spsc_size(&q), 0);
                CU_ASSERT_EQUAL(ren__spsc_pop(&q, got, 5001), 0);
            }
            ren__spsc_deinit(&q, &a);
        }
    }
}

/* Proves: the largest capacity works to its last entry. */
static void test_push_largest_capacity(void)
{
    ren__host_allocator a = heap();
    ren__spsc q;
    CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&q, REN__RING_MAX_ENTRIES, NEAR_WRAP, &a), REN_OK);
    uintptr_t pushed = 0;
    while (ren__spsc_push(&q, (void *)(pushed + 1))) {
        pushed++;
    }
    CU_ASSERT_EQUAL(pushed, REN__RING_MAX_ENTRIES);
    uintptr_t popped = 0;
    uintptr_t wrong = 0;
    void *got[256];
    for (uint32_t n; (n = ren__spsc_pop(&q, got, 256)) != 0;) {
        for (uint32_t i = 0; i < n; i++) {
            wrong += (uintptr_t)got[i] != ++popped;
        }
    }
    CU_ASSERT_EQUAL(popped, REN__RING_MAX_ENTRIES);
    CU_ASSERT_EQUAL(wrong, 0);
    ren__spsc_deinit(&q, &a);
}

/* Proves: pop takes no more than asked, keeps the rest, and takes nothing for 0. Fails if the
 * remembered producer index is used past its end or forgotten. */
static void test_pop_in_parts(void)
{
    ren__host_allocator a = heap();
    ren__spsc q;
    char objects[10];
    void *got[10];
    CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&q, 10, 0xFFFFFFFBu, &a), REN_OK);
    for (int i = 0; i < 7; i++) {
        CU_ASSERT_TRUE(ren__spsc_push(&q, &objects[i]));
    }
    CU_ASSERT_EQUAL(ren__spsc_pop(&q, got, 0), 0);
    CU_ASSERT_EQUAL(ren__spsc_pop(&q, got, 3), 3);
    CU_ASSERT_PTR_EQUAL(got[2], &objects[2]);
    for (int i = 7; i < 10; i++) {
        CU_ASSERT_TRUE(ren__spsc_push(&q, &objects[i]));
    }
    CU_ASSERT_EQUAL(ren__spsc_size(&q), 7);
    CU_ASSERT_EQUAL(ren__spsc_pop(&q, got, 4), 4);
    CU_ASSERT_PTR_EQUAL(got[0], &objects[3]);
    CU_ASSERT_EQUAL(ren__spsc_pop(&q, got, 10), 3);
    CU_ASSERT_PTR_EQUAL(got[2], &objects[9]);
    CU_ASSERT_TRUE(ren__spsc_is_empty(&q));
    ren__spsc_deinit(&q, &a);
}

/* Proves: any sequence of pushes and pops agrees with a counting model about full, empty, size and
 * contents, across the wrap of the counts. Fails if full is reported with room left or entries are
 * lost when it is not. */
static void test_random_calls_agree_with_model(void)
{
    unsigned long long seed = 20240611;
    ren__host_allocator a = heap();
    for (uint32_t size = 1; size <= 9; size++) {
        ren__spsc q;
        CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&q, size, NEAR_WRAP, &a), REN_OK);
        uintptr_t pushed = 0;
        uintptr_t popped = 0;
        uint32_t wrong = 0;
        void *got[12];
        for (int call = 0; call < 20000; call++) {
            unsigned long long r = ren_test_random(&seed);
            if (r & 1) {
                bool room = pushed - popped < size;
                wrong += ren__spsc_push(&q, (void *)(pushed + 1)) != room;
                pushed += room;
            } else {
                uint32_t max = (uint32_t)(r >> 8) % 12;
                uint32_t n = ren__spsc_pop(&q, got, max);
                wrong += n != (pushed - popped < max ? pushed - popped : max);
                for (uint32_t i = 0; i < n; i++) {
                    wrong += (uintptr_t)got[i] != ++popped;
                }
            }
            wrong += ren__spsc_size(&q) != pushed - popped;
            wrong += ren__spsc_is_empty(&q) != (pushed == popped);
        }
        CU_ASSERT_EQUAL(wrong, 0);
        ren__spsc_deinit(&q, &a);
    }
}

/* Proves (row 45): the pointers come back, not copies of what they point to; contents are compared
 * after the addresses. */
static void test_pop_gives_addresses(void)
{
    struct object {
        uint64_t a, b;
    } objects[3] = {{1, 2}, {1, 2}, {3, 4}};
    void *got[3];
    ren__host_allocator a = heap();
    ren__spsc q;
    CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&q, 3, 0, &a), REN_OK);
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_TRUE(ren__spsc_push(&q, &objects[i]));
    }
    objects[1].b = 7;
    CU_ASSERT_EQUAL(ren__spsc_pop(&q, got, 3), 3);
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_PTR_EQUAL(got[i], &objects[i]);
    }
    CU_ASSERT_EQUAL(((struct object *)got[1])->b, 7);
    ren__spsc_deinit(&q, &a);
}

typedef struct record {
    uint64_t sequence;
    uint64_t check;
} record;

#define RING  64u
#define BATCH 16u
#define RECORDS                                                                                    \
    (RING + BATCH + 1) /* one that is rewritten has been read: see test_queue_stress.c */

typedef struct pair {
    ren__spsc q;
    uint64_t posts;
    record records[RECORDS];
    atomic_int over;
    uint64_t oversize;
} pair;

static void *produce(void *arg)
{
    pair *p = arg;
    for (uint64_t i = 0; i < p->posts; i++) {
        record *r = &p->records[i % RECORDS];
        r->sequence = i;
        r->check = ~i;
        while (!ren__spsc_push(&p->q, r)) {
            sched_yield();
        }
    }
    return NULL;
}

static void *observe(void *arg)
{
    pair *p = arg;
    while (!atomic_load_explicit(&p->over, memory_order_relaxed)) {
        p->oversize += ren__spsc_size(&p->q) > RING;
    }
    return NULL;
}

/* Proves: what a producer wrote before a push is what the consumer reads after the pop, and an
 * entry is not overwritten before it is read. Under ThreadSanitizer fails if either hand-over loses
 * its order; natively if entries are lost, doubled or swapped, or if a third thread, which may be
 * overtaken between its two reads, is told a size above the capacity. */
static void test_two_threads_hand_over(void)
{
    static pair p;
    ren__host_allocator a = heap();
    CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&p.q, RING, NEAR_WRAP, &a), REN_OK);
    p.posts = 300000 / ren_test_slowdown();
    pthread_t thread;
    pthread_t observer;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, produce, &p), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&observer, NULL, observe, &p), 0);
    uint64_t next = 0;
    uint64_t wrong = 0;
    while (next < p.posts) {
        void *got[BATCH];
        uint32_t n = ren__spsc_pop(&p.q, got, BATCH);
        for (uint32_t i = 0; i < n; i++, next++) {
            record *r = got[i];
            wrong += r->sequence != next || r->check != ~next;
        }
        if (n == 0) {
            sched_yield();
        }
    }
    atomic_store(&p.over, 1);
    CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    CU_ASSERT_EQUAL(pthread_join(observer, NULL), 0);
    CU_ASSERT_EQUAL(p.oversize, 0);
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_EQUAL(ren__spsc_size(&p.q), 0);
    ren__spsc_deinit(&p.q, &a);
}

static const ren_test_case cases[] = {
    {"test_init_refuses_wrong_sizes", test_init_refuses_wrong_sizes},
    {"test_init_without_memory", test_init_without_memory},
    {"test_push_until_full_is_exact", test_push_until_full_is_exact},
    {"test_push_largest_capacity", test_push_largest_capacity},
    {"test_pop_in_parts", test_pop_in_parts},
    {"test_random_calls_agree_with_model", test_random_calls_agree_with_model},
    {"test_pop_gives_addresses", test_pop_gives_addresses},
    {"test_two_threads_hand_over", test_two_threads_hand_over},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_spsc", cases, REN_TEST_COUNT(cases), 60);
}
