/* SPDX-License-Identifier: MIT */
/* tests/unit/test_drain.c - the submitter's choice: shares, turns, starvation, attach and detach.
 *
 * Row 53 of the failure table (strict priority starves), and the bounds that drain.h states.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "queues/drain.h"
#include "tests/support/test.h"

#define R REN__CLASS_REALTIME
#define N REN__CLASS_NORMAL
#define B REN__CLASS_BACKGROUND

#define CLASSES   REN__CLASS_COUNT
#define PRODUCERS REN__DRAIN_PRODUCERS
#define CAPACITY  64u

static ren__drain drain;
static ren__mpsc shared[CLASSES];
static ren__spsc own[PRODUCERS][CLASSES];
static uint32_t made;  /* producers with rings */
static uintptr_t next; /* item number, from 1 */

/* A drain with `producers` attached producers and all three shared rings. */
static void make(uint32_t producers)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    ren__drain_init(&drain);
    next = 0;
    made = producers;
    for (uint32_t c = 0; c < CLASSES; c++) {
        CU_ASSERT_EQUAL_FATAL(ren__mpsc_init(&shared[c], CAPACITY, 0xFFFFFFF0u, &a), REN_OK);
        ren__drain_set_shared(&drain, c, &shared[c]);
    }
    for (uint32_t p = 0; p < producers; p++) {
        ren__spsc *rings[CLASSES];
        for (uint32_t c = 0; c < CLASSES; c++) {
            CU_ASSERT_EQUAL_FATAL(ren__spsc_init(&own[p][c], CAPACITY, 0xFFFFFFF0u, &a), REN_OK);
            rings[c] = &own[p][c];
        }
        ren__drain_attach(&drain, p, rings);
    }
}

static void drop(void)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    for (uint32_t c = 0; c < CLASSES; c++) {
        ren__mpsc_deinit(&shared[c], &a);
        for (uint32_t p = 0; p < made; p++) {
            ren__spsc_deinit(&own[p][c], &a);
        }
    }
}

static bool push(uint32_t job_class, uint32_t source)
{
    void *item = (void *)(next + 1);
    bool kept = source == 0 ? ren__mpsc_push(&shared[job_class], item)
                            : ren__spsc_push(&own[source - 1][job_class], item);
    next += kept;
    return kept;
}

static void fill(uint32_t job_class, uint32_t sources)
{
    for (uint32_t s = 0; s < sources; s++) {
        while (push(job_class, s)) {
        }
    }
}

/* Proves: nothing comes out of an empty or ringless drain, and each source is found and named. */
static void test_pop_names_class_and_source(void)
{
    void *items[4];
    uint32_t job_class = 9;
    uint32_t source = 99;
    ren__drain_init(&drain);
    CU_ASSERT_TRUE(ren__drain_is_empty(&drain));
    CU_ASSERT_EQUAL(ren__drain_pop(&drain, items, 4, &job_class, &source), 0);
    make(PRODUCERS);
    CU_ASSERT_TRUE(ren__drain_is_empty(&drain));
    CU_ASSERT_EQUAL(ren__drain_pop(&drain, items, 4, &job_class, &source), 0);
    for (uint32_t c = 0; c < CLASSES; c++) {
        for (uint32_t s = 0; s <= PRODUCERS; s++) {
            CU_ASSERT_TRUE(push(c, s));
            CU_ASSERT_FALSE(ren__drain_is_empty(&drain));
            CU_ASSERT_EQUAL(ren__drain_pop(&drain, items, 0, &job_class, &source), 0);
            CU_ASSERT_EQUAL(ren__drain_pop(&drain, items, 4, &job_class, &source), 1);
            CU_ASSERT_EQUAL(job_class, c);
            CU_ASSERT_EQUAL(source, s);
            CU_ASSERT_EQUAL((uintptr_t)items[0], next);
            CU_ASSERT_TRUE(ren__drain_is_empty(&drain));
        }
    }
    drop();
}

/* Drains `total` jobs in batches of `max` from classes that are kept full, and writes down the
 * class of each. */
static void record(uint8_t *classes, uint32_t total, uint32_t max, uint32_t sources)
{
    void *items[CAPACITY];
    for (uint32_t n = 0; n < total;) {
        uint32_t job_class;
        uint32_t source;
        for (uint32_t c = 0; c < CLASSES; c++) {
            fill(c, sources);
        }
        uint32_t left = total - n < max ? total - n : max;
        uint32_t got = ren__drain_pop(&drain, items, left, &job_class, &source);
        CU_ASSERT_NOT_EQUAL_FATAL(got, 0);
        memset(classes + n, (int)job_class, got);
        n += got;
    }
}

/* Proves (row 53): while all classes have work, any 32 jobs in a row hold at least 6 NORMAL and 2
 * BACKGROUND, the rest REALTIME, whatever the batch size and whatever was drained before. Fails if
 * a batch crosses its row or a class can spend its share while it is alone. */
static void test_shares_hold_in_every_window(void)
{
    static const uint32_t batches[] = {1, 3, 4, 64};
    static uint8_t classes[3200];
    unsigned long long seed = 7;
    for (size_t b = 0; b < REN_TEST_COUNT(batches); b++) {
        for (int before = 0; before < 40; before++) {
            make(2);
            /* A random past: some classes alone, some jobs drained. */
            for (int i = 0; i < before; i++) {
                void *items[CAPACITY];
                uint32_t c;
                uint32_t s;
                (void)push((uint32_t)(ren_test_random(&seed) % CLASSES),
                           (uint32_t)(ren_test_random(&seed) % 3));
                if (ren_test_random(&seed) % 2 != 0) {
                    (void)ren__drain_pop(&drain, items, 1 + (uint32_t)ren_test_random(&seed) % 9,
                                         &c, &s);
                }
            }
            record(classes, REN_TEST_COUNT(classes), batches[b], 3);
            uint32_t wrong = 0;
            for (size_t start = 0; start + 32 <= REN_TEST_COUNT(classes); start++) {
                uint32_t count[CLASSES] = {0};
                for (size_t i = start; i < start + 32; i++) {
                    count[classes[i]]++;
                }
                wrong += count[N] < 6 || count[B] < 2 || count[R] != 24;
            }
            CU_ASSERT_EQUAL(wrong, 0);
            drop();
        }
    }
}

/* Jobs taken until `item` is, while `keep_full` says which classes are refilled. */
static uint32_t jobs_until(uintptr_t item, const bool *keep_full, uint32_t sources, uint32_t max)
{
    void *items[CAPACITY];
    uint32_t taken = 0;
    for (;;) {
        uint32_t job_class;
        uint32_t source;
        for (uint32_t c = 0; c < CLASSES; c++) {
            if (keep_full[c]) {
                fill(c, sources);
            }
        }
        uint32_t got = ren__drain_pop(&drain, items, max, &job_class, &source);
        for (uint32_t i = 0; i < got; i++) {
            taken++;
            if ((uintptr_t)items[i] == item) {
                return taken;
            }
        }
        if (got == 0 || taken > 1000000) {
            return UINT32_MAX;
        }
    }
}

/* Proves (row 53): with REALTIME, or REALTIME and NORMAL, saturated, a single BACKGROUND job is
 * taken within 16 jobs of its post. Fails under strict priority. */
static void test_one_low_job_is_not_starved(void)
{
    static const bool full[2][CLASSES] = {{true, false, false}, {true, true, false}};
    for (int mix = 0; mix < 2; mix++) {
        make(1);
        for (int n = 0; n < 200; n++) {
            for (uint32_t c = 0; c < CLASSES; c++) {
                if (full[mix][c]) {
                    fill(c, 2);
                }
            }
            CU_ASSERT_TRUE(push(B, 0));
            uintptr_t item = next;
            CU_ASSERT(jobs_until(item, full[mix], 2, 1 + (uint32_t)n % 16) <= 16);
        }
        drop();
    }
}

/* Proves: with all rings of all 64 sources full, a job behind k others in its own ring is taken
 * within 16 * S * (k + 1) jobs, in each class. */
static void test_bound_with_many_producers(void)
{
    static const bool full[CLASSES] = {true, true, true};
    for (uint32_t c = 0; c < CLASSES; c++) {
        for (uint32_t k = 0; k < 3; k++) {
            make(PRODUCERS);
            for (uint32_t other = 0; other < CLASSES; other++) {
                for (uint32_t s = 0; s <= PRODUCERS; s++) {
                    if (other != c || s != 40) {
                        while (push(other, s)) {
                        }
                    }
                }
            }
            for (uint32_t i = 0; i <= k; i++) {
                CU_ASSERT_TRUE(push(c, 40));
            }
            CU_ASSERT(jobs_until(next, full, PRODUCERS + 1, 8) <=
                      REN__DRAIN_WHEEL * (PRODUCERS + 1) * (k + 1));
            drop();
        }
    }
}

/* Proves: sources of one class take turns: over whole rounds of a saturated class each of five gets
 * the same number of batches. Fails if the search always begins at the first. */
static void test_sources_take_turns(void)
{
    void *items[CAPACITY];
    make(4);
    uint32_t turns[5] = {0};
    for (int n = 0; n < 500; n++) {
        uint32_t job_class;
        uint32_t source;
        fill(N, 5);
        CU_ASSERT_EQUAL(ren__drain_pop(&drain, items, 8, &job_class, &source), 8);
        turns[source]++;
    }
    for (int s = 0; s < 5; s++) {
        CU_ASSERT_EQUAL(turns[s], 100);
    }
    drop();
}

/* Proves: a REALTIME job that comes while the others are saturated waits for at most two of their
 * jobs, and a class that is alone is drained in batches as long as asked. */
static void test_realtime_waits_for_two(void)
{
    void *items[CAPACITY];
    static const bool full[CLASSES] = {false, true, true};
    make(2);
    for (int n = 0; n < 500; n++) {
        uint32_t job_class;
        uint32_t source;
        fill(N, 3);
        fill(B, 3);
        for (int i = 0; i < n % 7; i++) {
            (void)ren__drain_pop(&drain, items, 4, &job_class, &source);
        }
        CU_ASSERT_TRUE(push(R, (uint32_t)n % 3));
        CU_ASSERT(jobs_until(next, full, 3, 8) <= 3);
    }
    drop();
    make(0);
    fill(B, 1);
    uint32_t job_class;
    uint32_t source;
    CU_ASSERT_EQUAL(ren__drain_pop(&drain, items, CAPACITY, &job_class, &source), CAPACITY);
    drop();
}

/* Proves: a named source can be drained out of turn, and an absent one gives nothing. */
static void test_pop_source_out_of_turn(void)
{
    void *items[CAPACITY];
    make(2);
    fill(R, 3);
    CU_ASSERT_TRUE(push(B, 2));
    CU_ASSERT_EQUAL(ren__drain_pop_source(&drain, B, 2, items, 8), 1);
    CU_ASSERT_EQUAL((uintptr_t)items[0], next);
    CU_ASSERT_EQUAL(ren__drain_pop_source(&drain, B, 2, items, 8), 0);
    CU_ASSERT_EQUAL(ren__drain_pop_source(&drain, R, 0, items, 8), 8);
    CU_ASSERT_EQUAL(ren__drain_pop_source(&drain, R, 3, items, 8), 0);
    drop();
}

/* Proves: a producer may lack a ring of some class, and a detached producer's rings are not looked
 * at. */
static void test_attach_in_part_and_detach(void)
{
    void *items[CAPACITY];
    uint32_t job_class;
    uint32_t source;
    make(2);
    ren__drain_detach(&drain, 0);
    ren__spsc *rings[CLASSES] = {NULL, &own[0][N], NULL};
    ren__drain_attach(&drain, 0, rings);
    CU_ASSERT_TRUE(push(R, 1));
    CU_ASSERT_TRUE(ren__drain_is_empty(&drain));
    CU_ASSERT_TRUE(push(N, 1));
    CU_ASSERT_EQUAL(ren__drain_pop(&drain, items, 8, &job_class, &source), 1);
    CU_ASSERT_EQUAL(source, 1);
    ren__drain_detach(&drain, 0);
    CU_ASSERT_TRUE(push(N, 1));
    CU_ASSERT_TRUE(ren__drain_is_empty(&drain));
    drop();
}

static atomic_int stopping;
static atomic_ulong posted;

/* Attaches fresh rings in a slot, posts, waits until they are drained, detaches; again and again.
 * The rings of all rounds live until the end, as drain.h asks. */
static void *come_and_go(void *arg)
{
    uint32_t p = (uint32_t)(uintptr_t)arg;
    while (!atomic_load(&stopping)) {
        ren__spsc *rings[CLASSES] = {&own[p][R], &own[p][N], &own[p][B]};
        ren__drain_attach(&drain, p, rings);
        unsigned long kept = 0;
        for (uint32_t i = 0; i < 10; i++) {
            kept += ren__spsc_push(&own[p][i % CLASSES], (void *)(uintptr_t)1);
        }
        atomic_fetch_add(&posted, kept);
        for (uint32_t c = 0; c < CLASSES; c++) {
            while (ren__spsc_size(&own[p][c]) != 0) {
                sched_yield();
            }
        }
        ren__drain_detach(&drain, p);
    }
    return NULL;
}

/* Proves: producers may be attached and detached by another thread while the submitter drains; no
 * job is lost. Under ThreadSanitizer fails if a pointer is published without its ring. */
static void test_attach_while_draining(void)
{
    void *items[CAPACITY];
    make(1);
    ren__drain_detach(&drain, 0);
    atomic_store(&stopping, 0);
    atomic_store(&posted, 0);
    pthread_t thread;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, come_and_go, (void *)0), 0);
    unsigned long wanted = 100000 / ren_test_slowdown();
    unsigned long drained = 0;
    do {
        uint32_t job_class;
        uint32_t source;
        uint32_t got = ren__drain_pop(&drain, items, CAPACITY, &job_class, &source);
        drained += got;
        if (got == 0) {
            sched_yield();
        }
        atomic_store(&stopping, drained >= wanted);
    } while (pthread_tryjoin_np(thread, NULL) != 0);
    CU_ASSERT_EQUAL(drained, atomic_load(&posted));
    drop();
}

static const ren_test_case cases[] = {
    {"test_pop_names_class_and_source", test_pop_names_class_and_source},
    {"test_shares_hold_in_every_window", test_shares_hold_in_every_window},
    {"test_one_low_job_is_not_starved", test_one_low_job_is_not_starved},
    {"test_bound_with_many_producers", test_bound_with_many_producers},
    {"test_sources_take_turns", test_sources_take_turns},
    {"test_realtime_waits_for_two", test_realtime_waits_for_two},
    {"test_pop_source_out_of_turn", test_pop_source_out_of_turn},
    {"test_attach_in_part_and_detach", test_attach_in_part_and_detach},
    {"test_attach_while_draining", test_attach_while_draining},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_drain", cases, REN_TEST_COUNT(cases), 60);
}
