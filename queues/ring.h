/* SPDX-License-Identifier: MIT */
/* queues/ring.h - the bounded ring under spsc.h and mpsc.h: storage, indices, the consumer's side.
 *
 * Purpose   Both rings differ only in how producers take a place. What they share is here: ck's
 *           ring layout, the slots, and a pop that takes a batch.
 * Threads   init/deinit: no concurrent use.  pop: one consumer.  size: any thread.
 * Progress  pop and size are wait-free.
 * Order     FIFO in the order of publication.
 * Memory    the slots are taken at init; nothing else allocates.
 * Units     capacity in entries; all of them are usable.
 * Not here  pushing, see spsc.h and mpsc.h; sleeping, see doorbell.h.
 *
 * Layout and indices
 *   The struct begins with ck_ring_t, which keeps the consumer's index, the producers' indices and
 *   the read-only size on separate cache lines. Indices are free-running 32-bit counts; a slot is
 *   index & mask. ck's own enqueue leaves one slot empty, accepts any size and corrupts entries if
 *   it is no power of two, so libren has its own: the number of slots is the capacity rounded up to
 *   a power of two, and "full" is  producer - consumer >= capacity  in modular arithmetic. That is
 *   exact for every capacity up to 2^20, uses all slots, and holds across the wrap of the counts
 *   since two live indices never differ by more than the capacity. ck_ring_size, ck_ring_capacity
 *   and ck_ring_valid assume ck's rule and must not be used on it.
 *
 * Hand-over (the only orders that matter)
 *   1. A producer writes the slot, then release-publishes p_tail. The consumer acquire-reads it,
 *      then reads the slot. Without the pair the consumer could read the slot's former value.
 *   2. The consumer reads the slot, then release-publishes c_head. A producer acquire-reads c_head,
 *      then overwrites the slot. Without the pair a producer could overwrite an entry not yet read;
 *      ck 0.7.1 has only a store fence here, which does not order the slot's load on ARM64, so pop
 *      uses a release fence (it orders earlier loads as well as stores before the index).
 *   3. The consumer keeps the last p_tail it read, and reads the shared one again only when that
 *      one does not satisfy `max`. A batch therefore costs at most one load of the producers' line
 *      and exactly one store to the line that producers read. Entries below the remembered p_tail
 *      were acquired when it was read, so the later pops need no new acquire.
 */
#ifndef REN_QUEUES_RING_H
#define REN_QUEUES_RING_H

#include "../memory/host.h"
#include "ck_shim.h"

#define REN__RING_MAX_ENTRIES (UINT32_C(1) << 20)

typedef struct ren__ring {
    _Alignas(64) ck_ring_t ck; /* c_head | p_tail, p_head | size, mask: three cache lines */
    uint32_t capacity;         /* usable entries; beside ck's read-only size and mask */
    ck_ring_buffer_t *slots;   /* ck.size of them */
    _Alignas(64) uint32_t producer_seen; /* consumer only: the newest p_tail it has read */
} ren__ring;

/* Returns REN_OK; REN_ERR_INVALID_ARGUMENT when capacity is not 1..REN__RING_MAX_ENTRIES;
 * REN_ERR_NO_MEMORY. After an error the ring is zeroed, and deinit accepts it. Both counts begin at
 * start_index: 0 in libren, near the wrap in tests. */
ren_status ren__ring_init(ren__ring *r, uint32_t capacity, uint32_t start_index,
                          const ren__host_allocator *a);
void ren__ring_deinit(ren__ring *r, const ren__host_allocator *a);

/* Entries published and not yet popped. An instant's value, never above the capacity; exact when no
 * other thread pushes or pops. The consumer's index is read first: the other way round an overtaken
 * snapshot would underflow (the producers' count only grows past the consumer's). */
static inline uint32_t ren__ring_size(const ren__ring *r)
{
    uint32_t consumer = ck_pr_load_uint(&r->ck.c_head);
    ck_pr_fence_load();
    uint32_t size = ck_pr_load_uint(&r->ck.p_tail) - consumer;
    return size < r->capacity ? size : r->capacity;
}

/* True when nothing is published. The consumer only: it reads its own index, and the producers'
 * line only when all that it knows of has been popped. */
static inline bool ren__ring_is_empty(const ren__ring *r)
{
    uint32_t consumer = r->ck.c_head;
    return r->producer_seen == consumer && ck_pr_load_uint(&r->ck.p_tail) == consumer;
}

/* Take up to `max` entries, oldest first. Fewer than `max` means that no more were published when
 * p_tail was read. The consumer only. */
static inline uint32_t ren__ring_pop(ren__ring *r, void **items, uint32_t max)
{
    const uint32_t mask = r->ck.mask;
    const uint32_t consumer = r->ck.c_head; /* only this thread writes it */
    uint32_t count = r->producer_seen - consumer;
    if (count < max) {
        r->producer_seen = ck_pr_load_uint(&r->ck.p_tail);
        ck_pr_fence_acquire(); /* hand-over 1: pairs with the release before p_tail in push */
        count = r->producer_seen - consumer;
        if (count == 0) {
            return 0;
        }
    }
    if (count > max) {
        count = max;
    }
    for (uint32_t i = 0; i < count; i++) {
        items[i] = r->slots[(consumer + i) & mask].value;
    }
    ck_pr_fence_release(); /* hand-over 2: pairs with the acquire after c_head in push */
    ck_pr_store_uint(&r->ck.c_head, consumer + count);
    return count;
}

#endif
