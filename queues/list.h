/* SPDX-License-Identifier: MIT */
/* queues/list.h - intrusive list: many producers, one consumer, never full.
 *
 * Purpose   For messages that must not be refused and whose records exist already: completions,
 *           returned credits, finished host jobs.
 * Threads   push_chain: any.  is_empty: any.  take_all: any one thread at a time is enough for
 *           libren; several are safe too.
 * Progress  push_chain is lock-free; take_all, take_chain and is_empty are wait-free.
 * Order     take_all gives the oldest first; FIFO per pushing thread, and a chain stays together.
 * Memory    the links inside the caller's records; a record is in one list at a time.
 * Not here  wake-up, see doorbell.h.
 *
 * Inside, the list is a stack with the newest on top: a push swaps one pointer, whatever the length
 * of the chain, and taking all swaps it for NULL. Both turn the order round in memory that nobody
 * else sees: the pusher its chain before the swap, the taker the whole after it. No pop of single
 * records exists, so the stack has no ABA hazard: a push compares the top only to know what lies
 * under its own chain, and a top that left and came back is again what lies under it.
 */
#ifndef REN_QUEUES_LIST_H
#define REN_QUEUES_LIST_H

#include <stddef.h>

#include "ck_shim.h"

typedef struct ren__link {
    struct ren__link *next;
} ren__link;

typedef struct ren__list {
    _Alignas(64) ren__link *top; /* newest record, or NULL */
} ren__list;

static inline void ren__list_init(ren__list *l)
{
    l->top = NULL;
}

/* Turn a chain that ends with NULL round; returns its former last record. Private. */
static inline ren__link *ren__list_reverse_pvt(ren__link *link)
{
    ren__link *turned = NULL;
    while (link != NULL) {
        ren__link *next = link->next;
        link->next = turned;
        turned = link;
        link = next;
    }
    return turned;
}

/* Append first -> ... -> last, linked oldest first through `next`; last->next is overwritten. */
static inline void ren__list_push_chain(ren__list *l, ren__link *first, ren__link *last)
{
    last->next = NULL;
    (void)ren__list_reverse_pvt(first); /* last is on top now, and first at the bottom */
    ren__link *top = ck_pr_load_ptr(&l->top);
    do {
        first->next = top;
        ck_pr_fence_release(); /* pairs with take_all's acquire: links and records are visible */
    } while (!ck_pr_cas_ptr_value(&l->top, top, last, &top));
}

static inline void ren__list_push(ren__list *l, ren__link *link)
{
    ren__list_push_chain(l, link, link);
}

/* An instant's value. */
static inline bool ren__list_is_empty(const ren__list *l)
{
    return ck_pr_load_ptr(&l->top) == NULL;
}

/* All records, oldest first, ended by NULL, and the last of them; NULL when there are none. */
static inline ren__link *ren__list_take_chain(ren__list *l, ren__link **out_last)
{
    *out_last = NULL;
    if (ren__list_is_empty(l)) {
        return NULL; /* without writing the line that producers write */
    }
    ren__link *top = ck_pr_fas_ptr(&l->top, NULL);
    ck_pr_fence_acquire(); /* pairs with push_chain's release */
    *out_last = top;
    return ren__list_reverse_pvt(top);
}

/* As above, for who does not ask for the last. */
static inline ren__link *ren__list_take_all(ren__list *l)
{
    ren__link *last;
    return ren__list_take_chain(l, &last);
}

#endif
