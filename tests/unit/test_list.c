/* SPDX-License-Identifier: MIT */
/* tests/unit/test_list.c - the list that is never full: order, chains, many pushers. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "queues/list.h"
#include "tests/support/test.h"

typedef struct node {
    ren__link link; /* first, so that a link is its node */
    uint32_t thread;
    uint32_t sequence;
} node;

static ren__list list;
static node nodes[16];

/* Checks that the chain is nodes first, first + 1, ... and ends after `count`. */
static void check_chain(const ren__link *link, int first, int count)
{
    for (int i = 0; i < count; i++) {
        CU_ASSERT_PTR_EQUAL_FATAL(link, &nodes[first + i].link);
        link = link->next;
    }
    CU_ASSERT_PTR_NULL(link);
}

/* Links nodes first .. last oldest first. The last one's link is left wild on purpose. */
static void make_chain(int first, int last)
{
    for (int i = first; i < last; i++) {
        nodes[i].link.next = &nodes[i + 1].link;
    }
    nodes[last].link.next = (ren__link *)8;
}

/* Proves: an empty list says so and gives nothing; one record goes in and out. */
static void test_empty_and_single(void)
{
    ren__list_init(&list);
    CU_ASSERT_TRUE(ren__list_is_empty(&list));
    CU_ASSERT_PTR_NULL(ren__list_take_all(&list));
    ren__list_push(&list, &nodes[3].link);
    CU_ASSERT_FALSE(ren__list_is_empty(&list));
    check_chain(ren__list_take_all(&list), 3, 1);
    CU_ASSERT_TRUE(ren__list_is_empty(&list));
    CU_ASSERT_PTR_NULL(ren__list_take_all(&list));
}

/* Proves: records and chains come out in the order they went in, a chain's records in its own.
 * Fails if a chain is turned round once too often or its last link is believed. */
static void test_take_all_is_oldest_first(void)
{
    ren__list_init(&list);
    ren__list_push(&list, &nodes[0].link);
    make_chain(1, 4);
    ren__list_push_chain(&list, &nodes[1].link, &nodes[4].link);
    ren__list_push(&list, &nodes[5].link);
    make_chain(6, 7);
    ren__list_push_chain(&list, &nodes[6].link, &nodes[7].link);
    check_chain(ren__list_take_all(&list), 0, 8);
    make_chain(2, 9);
    ren__list_push_chain(&list, &nodes[2].link, &nodes[9].link);
    check_chain(ren__list_take_all(&list), 2, 8);
}

#define THREADS 4
#define CHAIN   7

typedef struct pusher {
    uint32_t thread;
    uint32_t count;
    node *nodes;
} pusher;

static void *push_many(void *arg)
{
    pusher *p = arg;
    uint32_t i = 0;
    while (i < p->count) {
        uint32_t length = 1 + i % CHAIN;
        if (length > p->count - i) {
            length = p->count - i;
        }
        for (uint32_t k = 0; k < length; k++) {
            node *n = &p->nodes[i + k];
            n->thread = p->thread;
            n->sequence = i + k;
            n->link.next = k + 1 < length ? &p->nodes[i + k + 1].link : NULL;
        }
        ren__list_push_chain(&list, &p->nodes[i].link, &p->nodes[i + length - 1].link);
        i += length;
        if (i % 512 < CHAIN) {
            sched_yield();
        }
    }
    return NULL;
}

/* Proves: with four threads pushing chains and one taking, no record is lost or doubled, each
 * thread's arrive in its order, and their contents are visible. Fails (also under ThreadSanitizer)
 * if the swap can drop a concurrent push or a hand-over has no order. */
static void test_many_threads_push(void)
{
    pthread_t threads[THREADS];
    pusher pushers[THREADS];
    uint32_t next[THREADS] = {0};
    uint32_t count = 200000 / ren_test_slowdown();
    uint32_t total = 0;
    uint32_t wrong = 0;
    ren__list_init(&list);
    for (uint32_t t = 0; t < THREADS; t++) {
        pushers[t] = (pusher){t, count, calloc(count, sizeof(node))};
        CU_ASSERT_PTR_NOT_NULL_FATAL(pushers[t].nodes);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[t], NULL, push_many, &pushers[t]), 0);
    }
    while (total < count * THREADS && wrong == 0) {
        ren__link *link = ren__list_take_all(&list);
        if (link == NULL) {
            sched_yield();
        }
        for (; link != NULL; link = link->next, total++) {
            node *n = (node *)link;
            wrong += n->thread >= THREADS || n->sequence != next[n->thread]++;
        }
    }
    for (int t = 0; t < THREADS; t++) {
        CU_ASSERT_EQUAL(pthread_join(threads[t], NULL), 0);
        CU_ASSERT_EQUAL(next[t], count);
        free(pushers[t].nodes);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT_TRUE(ren__list_is_empty(&list));
}

static const ren_test_case cases[] = {
    {"test_empty_and_single", test_empty_and_single},
    {"test_take_all_is_oldest_first", test_take_all_is_oldest_first},
    {"test_many_threads_push", test_many_threads_push},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_list", cases, REN_TEST_COUNT(cases), 60);
}
