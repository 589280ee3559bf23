/* SPDX-License-Identifier: MIT */
/* queues/mpsc.h - bounded ring: many producers, one consumer.
 *
 * Purpose   The shared road, for threads that never registered a producer and post rarely.
 * Threads   push: any thread.  pop, is_empty: the one consumer.  size: any.  init/deinit: no
 *           concurrent use.
 * Progress  pop is wait-free; push is lock-free: it never waits for another thread, and retries
 *           only when another push or pop has got on meanwhile. But entries behind a producer that
 *           stands between taking its place and filling it stay hidden until it goes on, so a
 *           descheduled producer delays the others' jobs, though not the others. A thread with a
 *           deadline uses spsc.h.
 * Order     FIFO in the order in which places were taken, so FIFO per producer.
 * Memory    fixed at init; push and pop never allocate; usable entries = capacity.
 * Units     capacity in entries. Entries are not NULL.
 * Not here  blocking on an empty or full ring, see doorbell.h; layout and hand-over, see ring.h.
 *
 * Why not ck's enqueue
 *   ck takes a place by advancing p_head, fills it, then waits for its turn to advance p_tail. When
 *   an earlier producer has been descheduled in between, all later ones wait for it: 8 producers on
 *   two busy processors moved an entry in 7 us or more that way, whether the wait span, yielded or
 *   slept, and a post of a frame thread took up to 48 ms. Here the slot itself says that it is
 *   filled: it is NULL until its producer stores the entry, and the consumer sets it back to NULL.
 *   A push is done when it has stored its entry, p_tail is not used, and the consumer does not
 *   touch the producers' line at all.
 *
 * Orders beyond ring.h's
 *   3. p_head is read before c_head. Read the other way round, a stale c_head and a fresh p_head
 *   would
 *      look full when it is not. A p_head that is behind c_head makes the difference huge, which
 *      looks full as well; both are told from a full ring by reading p_head again: if it stood
 *      still around the read of c_head, the ring was full at that moment.
 *   4. A slot is NULL when a producer gets it: the first time from init; later because its last
 *   entry
 *      was cleared before the c_head that the producer has acquired (hand-over 2), and the place
 *      differs from that entry's by the number of slots, which is at least the capacity.
 */
#ifndef REN_QUEUES_MPSC_H
#define REN_QUEUES_MPSC_H

#include "point.h"
#include "ring.h"

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
        ck_pr_fence_load(); /* order 3 */
        if (producer - ck_pr_load_uint(&r->ck.c_head) < r->capacity) {
            if (ck_pr_cas_uint_value(&r->ck.p_head, producer, producer + 1, &producer)) {
                break;
            }
        } else {
            ck_pr_fence_load(); /* order 3 */
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
    ck_pr_fence_release(); /* hand-over 1: pairs with the acquire after the slot in pop */
    ck_pr_store_ptr(&r->slots[place & r->ck.mask].value, item);
    return true;
}

/* Up to `max` entries, oldest first; fewer means that the next place was not filled. */
static inline uint32_t ren__mpsc_pop(ren__mpsc *q, void **items, uint32_t max)
{
    ren__ring *r = &q->ring;
    const uint32_t mask = r->ck.mask;
    const uint32_t consumer = r->ck.c_head; /* only this thread writes it */
    uint32_t count = 0;
    while (count < max) {
        void **slot = &r->slots[(consumer + count) & mask].value;
        void *item = ck_pr_load_ptr(slot);
        if (item == NULL) {
            break;
        }
        ck_pr_store_ptr(slot, NULL);
        items[count++] = item;
    }
    if (count != 0) {
        ck_pr_fence_acquire(); /* hand-over 1: pairs with the release before the slot in push */
        ck_pr_fence_release(); /* hand-over 2: pairs with the acquire after c_head in push */
        ck_pr_store_uint(&r->ck.c_head, consumer + count);
    }
    return count;
}

/* True when the next entry is not there, or not filled yet. The consumer only. */
static inline bool ren__mpsc_is_empty(const ren__mpsc *q)
{
    const ren__ring *r = &q->ring;
    return ck_pr_load_ptr(&r->slots[r->ck.c_head & r->ck.mask].value) == NULL;
}

/* Places taken and not yet popped, filled or not. An instant's value, never above the capacity; the
 * indices are read in spsc_size's order, for its reason. */
static inline uint32_t ren__mpsc_size(const ren__mpsc *q)
{
    const ren__ring *r = &q->ring;
    uint32_t consumer = ck_pr_load_uint(&r->ck.c_head);
    ck_pr_fence_load();
    uint32_t size = ck_pr_load_uint(&r->ck.p_head) - consumer;
    return size < r->capacity ? size : r->capacity;
}

#endif
