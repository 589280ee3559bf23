/* SPDX-License-Identifier: MIT */
/* queues/index_stack.h - a free list of slot numbers.
 *
 * Purpose   Job slots, completion records and the like are arrays; this hands out and takes back
 *           their indices without a lock.
 * Threads   push, push_chain, pop, take_all: any.  init: no concurrent use.
 * Progress  lock-free: an attempt fails only when another thread's succeeded.
 * Order     last in, first out. What a thread wrote into slot i before it pushed i is visible to
 *           the thread that pops i.
 * Memory    the caller's array `next`, one word a slot; none is allocated.
 * Not here  the slots.
 *
 * The ABA hazard, and why it is closed
 *   pop reads the head (first = A), then next[A] (= B), then swaps A for B. In between another
 *   thread may pop A and B and push A back: the head is A again, but B is in use, and the swap
 *   would hand B out twice. So the head is 64 bits, an index and a tag; every successful swap, push
 *   or pop, adds one to the tag, and the swap compares both. Each attempt starts from the head, tag
 *   included, that the failed swap saw, so the next[] that it uses was read after that head. A
 *   stale success needs 2^32 swaps between one thread's read and its swap. next[A] may be read
 *   while another thread that popped A writes it; the access is atomic, and the value is dropped
 *   because the swap then fails.
 */
#ifndef REN_QUEUES_INDEX_STACK_H
#define REN_QUEUES_INDEX_STACK_H

#include "ck_shim.h"
#include "point.h"

#define REN__INDEX_NONE UINT32_MAX

typedef struct ren__index_stack {
    _Alignas(64) uint64_t head; /* tag << 32 | first index */
    uint32_t *next;             /* next[i]: the index under i, or REN__INDEX_NONE */
    char pad[64 - sizeof(uint64_t) - sizeof(uint32_t *)];
} ren__index_stack;

/* `next` has `count` words and stays the caller's. With fill, 0 .. count - 1 are in the stack and 0
 * is popped first; without, it is empty. */
static inline void ren__index_stack_init(ren__index_stack *s, uint32_t *next, uint32_t count,
                                         bool fill)
{
    s->next = next;
    s->head = fill && count > 0 ? 0 : REN__INDEX_NONE;
    for (uint32_t i = 0; i < count; i++) {
        next[i] = fill && i + 1 < count ? i + 1 : REN__INDEX_NONE;
    }
}

/* The head that follows `seen`: its tag and one more, and `index`. Private. */
static inline uint64_t ren__index_stack_head_pvt(uint64_t seen, uint32_t index)
{
    return (((seen >> 32) + 1) << 32) | index;
}

/* Link an index that is the caller's over another, for a chain. A pop that lost its race may
 * still read the word, so it is written as one. */
static inline void ren__index_stack_link(ren__index_stack *s, uint32_t index, uint32_t under)
{
    ck_pr_store_32(&s->next[index], under);
}

/* Push first -> next[first] -> ... -> last in one swap; the caller has linked them with link.
 * `first` is popped first. */
static inline void ren__index_stack_push_chain(ren__index_stack *s, uint32_t first, uint32_t last)
{
    uint64_t head = ck_pr_load_64(&s->head);
    do {
        ck_pr_store_32(&s->next[last], (uint32_t)head);
        ck_pr_fence_release(); /* pairs with the acquires in pop and take_all: the next owner
                                  sees the links and the slots' contents */
    } while (!ck_pr_cas_64_value(&s->head, head, ren__index_stack_head_pvt(head, first), &head));
}

static inline void ren__index_stack_push(ren__index_stack *s, uint32_t index)
{
    ren__index_stack_push_chain(s, index, index);
}

/* An index that is the caller's from now on, or REN__INDEX_NONE when the stack is empty. */
static inline uint32_t ren__index_stack_pop(ren__index_stack *s)
{
    uint64_t head = ck_pr_load_64(&s->head);
    for (;;) {
        uint32_t first = (uint32_t)head;
        if (first == REN__INDEX_NONE) {
            return REN__INDEX_NONE;
        }
        ck_pr_fence_acquire(); /* pairs with push_chain's release: next[first] is this head's */
        uint32_t under = ck_pr_load_32(&s->next[first]);
        REN__POINT("stack.before_cas");
        if (ck_pr_cas_64_value(&s->head, head, ren__index_stack_head_pvt(head, under), &head)) {
            /* The slot was acquired with the head above: the swap succeeded, so the head that was
             * read is the one that its last push released. */
            ck_pr_fence_acquire();
            return first;
        }
    }
}

/* Empty the stack in one swap. The first index of what it held, linked through next[] up to
 * REN__INDEX_NONE, which is now the caller's alone; REN__INDEX_NONE when it was empty. */
static inline uint32_t ren__index_stack_take_all(ren__index_stack *s)
{
    uint64_t head = ck_pr_load_64(&s->head);
    while ((uint32_t)head != REN__INDEX_NONE) {
        if (ck_pr_cas_64_value(&s->head, head, ren__index_stack_head_pvt(head, REN__INDEX_NONE),
                               &head)) {
            ck_pr_fence_acquire(); /* pairs with push_chain's release */
            return (uint32_t)head;
        }
    }
    return REN__INDEX_NONE;
}

#endif
