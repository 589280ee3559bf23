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
 * Two copies keep the threads off each other's lines. The producer keeps the last c_head that it
 * read and reads the shared one only when by the old one the ring is full; the copy lives in ck's
 * p_head, which single-producer rings leave unused, on the line that push writes anyway. The
 * consumer keeps the last p_tail it read (producer_seen) and reads the shared one only when that
 * one does not satisfy `max`. So a batch costs at most one load of the producer's line and exactly
 * one store to the line that the producer reads. What lies below a remembered index was acquired
 * when it was read, so later calls that rely on the copy need no new acquire.
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

/* Up to `max` entries, oldest first; fewer means that no more were there when p_tail was read. */
static inline uint32_t ren__spsc_pop(ren__spsc *q, void **items, uint32_t max)
{
    ren__ring *r = &q->ring;
    const uint32_t mask = r->ck.mask;
    const uint32_t consumer = r->ck.c_head; /* only this thread writes it */
    uint32_t count = r->producer_seen - consumer;
    if (count < max) {
        r->producer_seen = ck_pr_load_uint(&r->ck.p_tail);
        ck_pr_fence_acquire(); /* hand-over 1: pairs with the release before p_tail in push */
        count = r->producer_seen - consumer;
    }
    if (count > max) {
        count = max;
    }
    if (count == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        items[i] = r->slots[(consumer + i) & mask].value;
    }
    ck_pr_fence_release(); /* hand-over 2: pairs with the acquire after c_head in push */
    ck_pr_store_uint(&r->ck.c_head, consumer + count);
    return count;
}

/* True when nothing waits. The consumer only: it reads its own index, and the producer's line only
 * when all that it knows of has been popped. */
static inline bool ren__spsc_is_empty(const ren__spsc *q)
{
    const ren__ring *r = &q->ring;
    return r->producer_seen == r->ck.c_head && ck_pr_load_uint(&r->ck.p_tail) == r->ck.c_head;
}

/* Entries waiting. An instant's value, never above the capacity; exact when no other thread pushes
 * or pops. The consumer's index is read first: the other way round, a consumer that overtakes the
 * reader would make the difference negative. */
static inline uint32_t ren__spsc_size(const ren__spsc *q)
{
    const ren__ring *r = &q->ring;
    uint32_t consumer = ck_pr_load_uint(&r->ck.c_head);
    ck_pr_fence_load();
    uint32_t size = ck_pr_load_uint(&r->ck.p_tail) - consumer;
    return size < r->capacity ? size : r->capacity;
}

#endif
