/* SPDX-License-Identifier: MIT */
/* tests/unit/test_doorbell.c - sleeping and waking: no wake-up is lost, none is needed while awake.
 *
 * Row 51 of the failure table (rings coalesce) and promise 7 (a post and a stop request wake the
 * submitter even if it is about to sleep). A lost wake-up shows as a hang, which the program's time
 * limit ends; no case measures time.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "queues/doorbell.h"
#include "queues/mpsc.h"
#include "queues/spsc.h"
#include "tests/support/test.h"

static ren__doorbell bell;

/* Proves: wait looks at the count, not at luck: it returns false at its timeouts when nobody rang,
 * and true at once when somebody rang after the snapshot, however long ago. */
static void test_wait_returns_whether_rung(void)
{
    ren__doorbell_init(&bell);
    uint32_t snapshot = ren__doorbell_prepare(&bell);
    CU_ASSERT_FALSE(ren__doorbell_wait(&bell, snapshot, 0));
    CU_ASSERT_FALSE(ren__doorbell_wait(&bell, snapshot, 1));
    CU_ASSERT_FALSE(ren__doorbell_wait(&bell, snapshot, 2000000));
    ren__doorbell_ring(&bell);
    CU_ASSERT_TRUE(ren__doorbell_wait(&bell, snapshot, 0));
    CU_ASSERT_TRUE(ren__doorbell_wait(&bell, snapshot, UINT64_MAX));
    CU_ASSERT_TRUE(ren__doorbell_wait(&bell, snapshot, UINT64_MAX - 1));
    snapshot = ren__doorbell_prepare(&bell);
    CU_ASSERT_FALSE(ren__doorbell_wait(&bell, snapshot, 0));
}

/* Proves: a publisher writes nothing to the doorbell while nobody sleeps, and rings when a thread
 * has begun to. Fails if ring_if_asleep rings always, or never. */
static void test_ring_if_asleep_while_awake(void)
{
    ren__doorbell_init(&bell);
    uint32_t before = ren__doorbell_prepare(&bell);
    for (int i = 0; i < 1000; i++) {
        ren__doorbell_ring_if_asleep(&bell);
    }
    CU_ASSERT_EQUAL(ren__doorbell_prepare(&bell), before);
    ren__doorbell_sleep_begin(&bell);
    ren__doorbell_ring_if_asleep(&bell);
    CU_ASSERT_NOT_EQUAL(ren__doorbell_prepare(&bell), before);
    before = ren__doorbell_prepare(&bell);
    ren__doorbell_sleep_end(&bell);
    ren__doorbell_ring_if_asleep(&bell);
    CU_ASSERT_EQUAL(ren__doorbell_prepare(&bell), before);
}

/* Proves (promise 7): a publication at any point of the sleeper's protocol is either seen by its
 * look or ends its wait. The publisher acts on the same thread between two steps, so each window is
 * hit exactly. Fails by hanging if the snapshot is taken after the look or the flag is set after
 * it. */
static void test_publish_in_every_window(void)
{
    for (int window = 0; window < 4; window++) {
        int published = 0;
        ren__doorbell_init(&bell);
#define WINDOW(n)                                                                                  \
    if (window == (n)) {                                                                           \
        published = 1;                                                                             \
        ren__doorbell_ring_if_asleep(&bell);                                                       \
    }
        WINDOW(0)
        uint32_t snapshot = ren__doorbell_prepare(&bell);
        WINDOW(1)
        ren__doorbell_sleep_begin(&bell);
        WINDOW(2)
        int seen = published;
        WINDOW(3)
        if (!seen) {
            CU_ASSERT_TRUE(ren__doorbell_wait(&bell, snapshot, UINT64_MAX));
        }
        ren__doorbell_sleep_end(&bell);
        CU_ASSERT_EQUAL(published, 1);
#undef WINDOW
    }
}

/* Proves (row 51): one wake may stand for a thousand posts: all are drained after it, and then the
 * ring is empty. */
static void test_thousand_posts_before_one_wake(void)
{
    static char objects[1000];
    ren__host_allocator a = ren__host_allocator_make(NULL);
    ren__mpsc q;
    CU_ASSERT_EQUAL_FATAL(ren__mpsc_init(&q, 1000, 0xFFFFFF00u, &a), REN_OK);
    ren__doorbell_init(&bell);
    uint32_t snapshot = ren__doorbell_prepare(&bell);
    ren__doorbell_sleep_begin(&bell);
    for (int i = 0; i < 1000; i++) {
        CU_ASSERT_TRUE(ren__mpsc_push(&q, &objects[i]));
        ren__doorbell_ring_if_asleep(&bell);
    }
    CU_ASSERT_TRUE(ren__doorbell_wait(&bell, snapshot, UINT64_MAX));
    ren__doorbell_sleep_end(&bell);
    void *got[64];
    uint32_t total = 0;
    uint32_t wrong = 0;
    for (uint32_t n; (n = ren__mpsc_pop(&q, got, 64)) != 0;) {
        for (uint32_t i = 0; i < n; i++) {
            wrong += got[i] != &objects[total++];
        }
    }
    CU_ASSERT_EQUAL(total, 1000);
    CU_ASSERT_EQUAL(wrong, 0);
    ren__mpsc_deinit(&q, &a);
}

typedef struct side {
    ren__doorbell bell;
    ren__spsc q;
} side;

static side sides[2];
static uintptr_t rounds;
static atomic_int wrong_balls;

static void disturb(unsigned long long *seed)
{
    unsigned long long r = ren_test_random(seed);
    if (r % 4 == 0) {
        sched_yield();
    } else {
        for (unsigned i = 0; i < r % 64; i++) {
            ck_pr_stall();
        }
    }
}

/* The submitter's loop, with disturbances in the windows where a wake-up could fall through. */
static void *receive(side *mine, unsigned long long *seed)
{
    void *item;
    while (ren__spsc_pop(&mine->q, &item, 1) == 0) {
        uint32_t snapshot = ren__doorbell_prepare(&mine->bell);
        ren__doorbell_sleep_begin(&mine->bell);
        disturb(seed);
        if (ren__spsc_is_empty(&mine->q)) {
            disturb(seed);
            (void)ren__doorbell_wait(&mine->bell, snapshot, UINT64_MAX);
        }
        ren__doorbell_sleep_end(&mine->bell);
    }
    return item;
}

static void *play(void *arg)
{
    uintptr_t me = (uintptr_t)arg;
    unsigned long long seed = me + 1;
    for (uintptr_t ball = 1 + me; ball <= rounds; ball += 2) {
        if (ball > 1 && (uintptr_t)receive(&sides[me], &seed) != ball - 1) {
            atomic_fetch_add(&wrong_balls, 1);
        }
        if (!ren__spsc_push(&sides[1 - me].q, (void *)ball)) {
            atomic_fetch_add(&wrong_balls, 1);
        }
        ren__doorbell_ring_if_asleep(&sides[1 - me].bell);
    }
    return NULL;
}

/* Proves: two threads that post to each other in turn, each asleep for the other's post with no
 * timeout, never both sleep. Hangs if a wake-up can be lost in any window that 200,000 rounds with
 * random delays meet: with the look before sleep_begin, or with a ring that is not
 * always a wake. */
static void test_ping_pong_loses_no_wake(void)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    pthread_t threads[2];
    rounds = 200000 / ren_test_slowdown();
    atomic_store(&wrong_balls, 0);
    for (int i = 0; i < 2; i++) {
        ren__doorbell_init(&sides[i].bell);
        CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&sides[i].q, 1, 0xFFFFFFF0u, &a), REN_OK);
    }
    for (uintptr_t i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, play, (void *)i), 0);
    }
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(pthread_join(threads[i], NULL), 0);
    }
    CU_ASSERT_EQUAL(atomic_load(&wrong_balls), 0);
    for (int i = 0; i < 2; i++) {
        ren__spsc_deinit(&sides[i].q, &a);
    }
}

typedef struct litmus {
    ren__doorbell bell;
    _Alignas(64) uint32_t published;
    _Alignas(64) atomic_uint arrived; /* at the start of a round, or at its end */
    uint32_t rounds;
    uint32_t lost;
} litmus;

/* Both threads leave at the same moment, as far as the scheduler lets them. */
static void meet(litmus *l, unsigned *times)
{
    unsigned both = 2 * ++*times;
    atomic_fetch_add(&l->arrived, 1);
    for (unsigned tries = 0; atomic_load(&l->arrived) < both; tries++) {
        if (tries % 1024 == 1023) {
            sched_yield();
        }
    }
}

static void *publish_once_a_round(void *arg)
{
    litmus *l = arg;
    unsigned times = 0;
    for (uint32_t r = 1; r <= l->rounds; r++) {
        meet(l, &times);
        ck_pr_fence_release();
        ck_pr_store_32(&l->published, r);
        ren__doorbell_ring_if_asleep(&l->bell);
        meet(l, &times);
    }
    return NULL;
}

/* Proves: the two fences in doorbell.h's (a). In each round one thread publishes and looks at the
 * doorbell while the other begins to sleep and looks for the publication; it must see it, or the
 * doorbell must have rung. Both reading the past is what a processor's store buffer does within
 * some thousand rounds when either fence is missing. */
static void test_fences_forbid_both_blind(void)
{
    static litmus l;
    pthread_t thread;
    unsigned times = 0;
    ren__doorbell_init(&l.bell);
    l.rounds = 300000 / ren_test_slowdown();
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, publish_once_a_round, &l), 0);
    for (uint32_t r = 1; r <= l.rounds; r++) {
        uint32_t snapshot = ren__doorbell_prepare(&l.bell);
        meet(&l, &times);
        for (uint32_t i = 0; i < r % 32; i++) {
            __asm__ __volatile__("" ::: "memory"); /* vary the offset of the two by some cycles */
        }
        ren__doorbell_sleep_begin(&l.bell);
        bool seen = ck_pr_load_32(&l.published) == r;
        meet(&l, &times);
        l.lost += !seen && !ren__doorbell_wait(&l.bell, snapshot, 0);
        ren__doorbell_sleep_end(&l.bell);
    }
    CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    CU_ASSERT_EQUAL(l.lost, 0);
}

static uint32_t stop; /* accessed by ck_pr and fences, as the submitter's own flag may be */
static atomic_int asleep;
static atomic_int awake;

static void *sleep_until_stop(void *arg)
{
    (void)arg;
    atomic_fetch_add(&asleep, 1);
    for (;;) {
        uint32_t snapshot = ren__doorbell_prepare(&bell);
        ren__doorbell_sleep_begin(&bell);
        bool stopped = ck_pr_load_32(&stop) != 0;
        if (!stopped) {
            (void)ren__doorbell_wait(&bell, snapshot, UINT64_MAX);
        }
        ren__doorbell_sleep_end(&bell);
        if (stopped) {
            atomic_fetch_add(&awake, 1);
            return NULL;
        }
    }
}

/* Proves (promise 7): one ring after a stop request wakes every sleeper, also those that are only
 * about to sleep; repeated so that both are met. Fails by hanging. */
static void test_stop_wakes_all_sleepers(void)
{
    unsigned long long seed = 5;
    unsigned times = 200 / ren_test_slowdown();
    for (unsigned n = 0; n < times; n++) {
        pthread_t threads[4];
        ren__doorbell_init(&bell);
        stop = 0;
        atomic_store(&asleep, 0);
        atomic_store(&awake, 0);
        for (int i = 0; i < 4; i++) {
            CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, sleep_until_stop, NULL), 0);
        }
        while (atomic_load(&asleep) < (int)(n % 5)) {
            sched_yield();
        }
        for (unsigned i = 0; i < n % 7; i++) {
            disturb(&seed);
        }
        ck_pr_fence_release();
        ck_pr_store_32(&stop, 1);
        ren__doorbell_ring_if_asleep(&bell);
        for (int i = 0; i < 4; i++) {
            CU_ASSERT_EQUAL(pthread_join(threads[i], NULL), 0);
        }
        CU_ASSERT_EQUAL(atomic_load(&awake), 4);
        CU_ASSERT_EQUAL(bell.sleepers, 0);
    }
}

static void *ring_later(void *arg)
{
    (void)arg;
    while (ck_pr_load_32(&bell.sleepers) == 0) {
        sched_yield();
    }
    ren__doorbell_ring_if_asleep(&bell);
    return NULL;
}

/* Proves: a timeout too far for the clock's arithmetic is no timeout at all, and not one that has
 * passed already. */
static void test_wait_with_far_timeouts(void)
{
    static const uint64_t far[] = {UINT64_MAX, UINT64_MAX - 1, (UINT64_C(1) << 63) + 1,
                                   UINT64_C(1) << 62, (UINT64_C(1) << 62) - 1};
    for (size_t i = 0; i < REN_TEST_COUNT(far); i++) {
        pthread_t thread;
        ren__doorbell_init(&bell);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, ring_later, NULL), 0);
        uint32_t snapshot = ren__doorbell_prepare(&bell);
        ren__doorbell_sleep_begin(&bell);
        CU_ASSERT_TRUE(ren__doorbell_wait(&bell, snapshot, far[i]));
        ren__doorbell_sleep_end(&bell);
        CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    }
}

static const ren_test_case cases[] = {
    {"test_wait_returns_whether_rung", test_wait_returns_whether_rung},
    {"test_ring_if_asleep_while_awake", test_ring_if_asleep_while_awake},
    {"test_publish_in_every_window", test_publish_in_every_window},
    {"test_thousand_posts_before_one_wake", test_thousand_posts_before_one_wake},
    {"test_ping_pong_loses_no_wake", test_ping_pong_loses_no_wake},
    {"test_fences_forbid_both_blind", test_fences_forbid_both_blind},
    {"test_stop_wakes_all_sleepers", test_stop_wakes_all_sleepers},
    {"test_wait_with_far_timeouts", test_wait_with_far_timeouts},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_doorbell", cases, REN_TEST_COUNT(cases), 120);
}
