/* SPDX-License-Identifier: MIT */
/* queues/spsc.h - bounded ring: one producer, one consumer.
 *
 * Purpose   The road of a registered producer: a frame or control thread posts here, the submitter
 *           drains. No other thread's delay can reach it.
 * Threads   push: the one producer.  pop: the one consumer.  size: any.  init/deinit: no concurrent
 *           use.
 * Progress  push and pop are wait-free: no loop, no retry.
 * Order     FIFO.
 * Memory    fixed at init; push and pop never allocate; usable entries = capacity.
 * Units     capacity in entries.
 * Not here  blocking and wake-up, see doorbell.h; the hand-over's argument, see ring.h.
 *
 * The producer keeps the last consumer index that it read and reads the shared one only when by the
 * old one the ring is full; so in the steady state a push touches no line that the consumer writes.
 * The copy lives in ck's p_head, which ck's single-producer rings leave unused: it is on the line
 * that push writes anyway.
 */
#ifndef REN_QUEUES_SPSC_H
#define REN_QUEUES_SPSC_H

#include "ring.h"

typedef struct ren__spsc {
    ren__ring ring;
} ren__spsc;

/* As ren__ring_init and ren__ring_deinit. */
ren_status ren__spsc_init(ren__spsc *q, uint32_t capacity, uint32_t start_index,
                          const ren__host_allocator *a);
void ren__spsc_deinit(ren__spsc *q, const ren__host_allocator *a);

/* False when the ring is full at the moment the consumer's index is read; then nothing was kept. */
static inline bool ren__spsc_push(ren__spsc *q, void *item)
{
    ren__ring *r = &q->ring;
    const uint32_t producer = r->ck.p_tail; /* only this thread writes it */
    if (producer - r->ck.p_head >= r->capacity) {
        r->ck.p_head = ck_pr_load_uint(&r->ck.c_head);
        if (producer - r->ck.p_head >= r->capacity) {
            return false;
        }
        ck_pr_fence_acquire(); /* hand-over 2: pairs with the release before c_head in pop */
    }
    r->slots[producer & r->ck.mask].value = item;
    ck_pr_fence_release(); /* hand-over 1: pairs with the acquire after p_tail in pop */
    ck_pr_store_uint(&r->ck.p_tail, producer + 1);
    return true;
}

/* Up to `max` entries, oldest first; fewer means that no more were there. */
static inline uint32_t ren__spsc_pop(ren__spsc *q, void **items, uint32_t max)
{
    return ren__ring_pop(&q->ring, items, max);
}

/* Entries waiting; an instant's value. */
static inline uint32_t ren__spsc_size(const ren__spsc *q)
{
    return ren__ring_size(&q->ring);
}

#endif
