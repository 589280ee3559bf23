/* SPDX-License-Identifier: MIT */
/* tests/unit/test_index_stack.c - the free list of slot numbers.
 *
 * Row 54 of the failure table: ABA. The program gives index_stack.h its own REN__POINT, which
 * stands between a pop's read and its swap: once to let "other threads" act there exactly, once to
 * yield there at random.
 */
static void at_point(void);
#define REN__POINT(name) at_point()

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "queues/index_stack.h"
#include "tests/support/test.h"

static _Thread_local void (*hook)(void);
static _Thread_local unsigned long long yield_seed; /* 0: do not yield */

static void at_point(void)
{
    if (hook != NULL) {
        void (*fn)(void) = hook;
        hook = NULL;
        fn();
    }
    if (yield_seed != 0 && ren_test_random(&yield_seed) % 1000 == 0) {
        sched_yield();
    }
}

static ren__index_stack stack;
static uint32_t links[64];

/* Proves: a filled stack gives each index once, 0 first; an empty one gives none. */
static void test_init_filled_and_empty(void)
{
    ren__index_stack_init(&stack, links, 5, true);
    for (uint32_t i = 0; i < 5; i++) {
        CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), i);
    }
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), REN__INDEX_NONE);
    ren__index_stack_init(&stack, links, 5, false);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), REN__INDEX_NONE);
    CU_ASSERT_EQUAL(ren__index_stack_take_all(&stack), REN__INDEX_NONE);
    ren__index_stack_init(&stack, links, 0, true);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), REN__INDEX_NONE);
}

/* Proves: push and pop are last in, first out; a chain goes in whole and comes out in its order, on
 * top of what was there. */
static void test_push_and_chain_order(void)
{
    ren__index_stack_init(&stack, links, 8, false);
    ren__index_stack_push(&stack, 6);
    ren__index_stack_push(&stack, 2);
    links[3] = 5;
    links[5] = 1;
    ren__index_stack_push_chain(&stack, 3, 1);
    static const uint32_t want[] = {3, 5, 1, 2, 6, REN__INDEX_NONE};
    for (size_t i = 0; i < REN_TEST_COUNT(want); i++) {
        CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), want[i]);
    }
}

/* Proves: take_all empties the stack and returns a chain that the taker can walk. */
static void test_take_all_gives_chain(void)
{
    ren__index_stack_init(&stack, links, 8, true);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), 0);
    uint32_t i = ren__index_stack_take_all(&stack);
    for (uint32_t want = 1; want < 8; want++) {
        CU_ASSERT_EQUAL_FATAL(i, want);
        i = links[i];
    }
    CU_ASSERT_EQUAL(i, REN__INDEX_NONE);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), REN__INDEX_NONE);
    ren__index_stack_push(&stack, 4);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), 4);
}

static void pop_two_push_first(void)
{
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), 0);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), 1);
    ren__index_stack_push(&stack, 0);
}

/* Proves (row 54): a pop that read head 0 and next 1, and was overtaken by pop, pop, push(0), does
 * not put 1, which is in use, on top. Fails if the head has no tag or the swap ignores it. */
static void test_pop_survives_aba(void)
{
    ren__index_stack_init(&stack, links, 3, true);
    hook = pop_two_push_first;
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), 0);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), 2);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), REN__INDEX_NONE);
}

static void take_and_put_back(void)
{
    CU_ASSERT_EQUAL(ren__index_stack_take_all(&stack), 0);
    links[0] = 2;
    ren__index_stack_push_chain(&stack, 0, 2);
}

/* Proves: the same when the stack was taken whole and put back in another order. */
static void test_pop_survives_take_all(void)
{
    ren__index_stack_init(&stack, links, 3, true);
    hook = take_and_put_back;
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), 0);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), 2);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), REN__INDEX_NONE);
}

#define THREADS 8
#define NODES   4

static atomic_int owned[NODES];
static unsigned long long payload[NODES]; /* plain: the stack hands its visibility on */
static atomic_ulong doubled;
static unsigned pops_per_thread;

static void *pop_and_push(void *arg)
{
    unsigned long long seed = (uintptr_t)arg + 17;
    yield_seed = seed;
    for (unsigned n = 0; n < pops_per_thread;) {
        uint32_t i = ren__index_stack_pop(&stack);
        if (i == REN__INDEX_NONE) {
            sched_yield();
            continue;
        }
        n++;
        if (i >= NODES || atomic_exchange_explicit(&owned[i], 1, memory_order_relaxed) != 0) {
            atomic_fetch_add(&doubled, 1);
            return NULL;
        }
        payload[i]++;
        atomic_store_explicit(&owned[i], 0, memory_order_relaxed);
        ren__index_stack_push(&stack, i);
    }
    return NULL;
}

/* Proves (row 54): eight threads that pop and push four nodes ten million times, with yields
 * between read and swap, never own one node twice, and what an owner wrote is seen by the next.
 * Fails if the tag is not refreshed at every attempt; under ThreadSanitizer also if an order is
 * missing. */
static void test_many_threads_own_nodes_once(void)
{
    pthread_t threads[THREADS];
    pops_per_thread = 10000000 / THREADS / ren_test_slowdown();
    atomic_store(&doubled, 0);
    for (int i = 0; i < NODES; i++) {
        payload[i] = 0;
    }
    ren__index_stack_init(&stack, links, NODES, true);
    for (uintptr_t t = 0; t < THREADS; t++) {
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[t], NULL, pop_and_push, (void *)t), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        CU_ASSERT_EQUAL(pthread_join(threads[t], NULL), 0);
    }
    CU_ASSERT_EQUAL(atomic_load(&doubled), 0);
    unsigned long long sum = 0;
    for (int i = 0; i < NODES; i++) {
        sum += payload[i];
        CU_ASSERT_NOT_EQUAL(ren__index_stack_pop(&stack), REN__INDEX_NONE);
    }
    CU_ASSERT_EQUAL(sum, (unsigned long long)pops_per_thread * THREADS);
    CU_ASSERT_EQUAL(ren__index_stack_pop(&stack), REN__INDEX_NONE);
}

static const ren_test_case cases[] = {
    {"test_init_filled_and_empty", test_init_filled_and_empty},
    {"test_push_and_chain_order", test_push_and_chain_order},
    {"test_take_all_gives_chain", test_take_all_gives_chain},
    {"test_pop_survives_aba", test_pop_survives_aba},
    {"test_pop_survives_take_all", test_pop_survives_take_all},
    {"test_many_threads_own_nodes_once", test_many_threads_own_nodes_once},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_index_stack", cases, REN_TEST_COUNT(cases), 120);
}
