/* SPDX-License-Identifier: MIT */
/* queues/mpsc.h - bounded ring: many producers, one consumer.
 *
 * Purpose   The shared road, for threads that never registered a producer and post rarely.
 * Threads   push: any thread.  pop: the one consumer.  size: any.  init/deinit: no concurrent use.
 * Progress  pop is wait-free. push never waits for the consumer, but it may wait for producers that
 *           took their place earlier and have not published yet; it gives up the processor while it
 *           waits. At most capacity - 1 places can be ahead of it, since a further one would have
 *           found the ring full; how long each takes is the scheduler's business. A thread with a
 *           deadline uses spsc.h.
 * Order     FIFO in the order in which places were taken, so FIFO per producer.
 * Memory    fixed at init; push and pop never allocate; usable entries = capacity.
 * Units     capacity in entries.
 * Not here  blocking on an empty or full ring, see doorbell.h; the hand-over's argument, see
 *           ring.h.
 *
 * A push has three parts: take a place by advancing p_head; write the slot; publish in turn by
 * advancing p_tail. ck's enqueue spins in the third part until its turn comes. When the producer
 * ahead has been descheduled, that spin burns the very processor the other needs (milliseconds to
 * seconds on a small machine with threads of lower priority), so this one pauses a few times and
 * then yields.
 *
 * Orders beyond ring.h's
 *   4. p_head is read before c_head. Read the other way round, a stale c_head and a fresh p_head
 *      would look full when it is not. A p_head that is behind c_head makes the difference huge,
 *      which also looks full; both cases are told from a full ring by reading p_head again: if it
 *      stood still around the read of c_head, the ring was full at that moment.
 *   5. Publication is a chain: a producer acquire-reads its predecessor's p_tail and release-writes
 *      its own, so whoever acquires the newest p_tail has acquired every slot below it.
 */
#ifndef REN_QUEUES_MPSC_H
#define REN_QUEUES_MPSC_H

#include <sched.h>

#include "point.h"
#include "ring.h"

#define REN__MPSC_PAUSES 16u /* before the first yield; about one publication by a running thread */

typedef struct ren__mpsc {
    ren__ring ring;
} ren__mpsc;

/* As ren__ring_init and ren__ring_deinit. */
ren_status ren__mpsc_init(ren__mpsc *q, uint32_t capacity, uint32_t start_index,
                          const ren__host_allocator *a);
void ren__mpsc_deinit(ren__mpsc *q, const ren__host_allocator *a);

/* Take a place. False when the ring was full at some moment of the call. Private to push. */
static inline bool ren__mpsc_reserve_pvt(ren__ring *r, uint32_t *out_place)
{
    unsigned int producer = ck_pr_load_uint(&r->ck.p_head);
    for (;;) {
        REN__POINT("producer.snapshot");
        ck_pr_fence_load(); /* order 4 */
        if (producer - ck_pr_load_uint(&r->ck.c_head) < r->capacity) {
            if (ck_pr_cas_uint_value(&r->ck.p_head, producer, producer + 1, &producer)) {
                break;
            }
        } else {
            ck_pr_fence_load(); /* order 4 */
            unsigned int again = ck_pr_load_uint(&r->ck.p_head);
            if (again == producer) {
                return false;
            }
            producer = again;
        }
    }
    ck_pr_fence_acquire(); /* hand-over 2: pairs with the release before c_head in pop */
    *out_place = producer;
    return true;
}

/* False when the ring is full; then nothing was kept. */
static inline bool ren__mpsc_push(ren__mpsc *q, void *item)
{
    ren__ring *r = &q->ring;
    uint32_t place;
    if (!ren__mpsc_reserve_pvt(r, &place)) {
        return false;
    }
    REN__POINT("producer.reserved");
    r->slots[place & r->ck.mask].value = item;
    for (uint32_t tries = 0; ck_pr_load_uint(&r->ck.p_tail) != place; tries++) {
        if (tries < REN__MPSC_PAUSES) {
            ck_pr_stall();
        } else {
            (void)sched_yield();
        }
    }
    ck_pr_fence_release(); /* hand-over 1 and order 5: after the slot and the read of p_tail */
    ck_pr_store_uint(&r->ck.p_tail, place + 1);
    return true;
}

/* Up to `max` entries, oldest first; fewer means that no more were published. */
static inline uint32_t ren__mpsc_pop(ren__mpsc *q, void **items, uint32_t max)
{
    return ren__ring_pop(&q->ring, items, max);
}

/* Entries published and waiting; an instant's value. */
static inline uint32_t ren__mpsc_size(const ren__mpsc *q)
{
    return ren__ring_size(&q->ring);
}

#endif
