/* SPDX-License-Identifier: MIT */
/* queues/ring.h - the bounded ring under spsc.h and mpsc.h: storage, indices, and the hand-over
 * rules.
 *
 * Purpose   Both rings stand on the same memory and the same two rules; they differ in how a
 *           producer takes a place and how it says that the place is filled.
 * Threads   init/deinit: no concurrent use.
 * Memory    the slots are taken at init; nothing else allocates.
 * Units     capacity in entries; all of them are usable.
 * Not here  push and pop, see spsc.h and mpsc.h; sleeping, see doorbell.h.
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
 * Hand-over
 *   1. A producer writes its slot, then release-publishes it; the consumer acquire-reads the
 *      publication, then uses the slot. Without the pair the consumer could see the former value,
 *      or a job not yet written. The publication is p_tail in spsc.h, and the slot itself in
 *      mpsc.h.
 *   2. The consumer reads (and in mpsc.h clears) its slots, then release-stores c_head; a producer
 *      acquire-reads c_head, then writes a slot anew. Without the pair a producer could overwrite
 *      an entry not yet read. ck 0.7.1 has only a store fence here, which does not order the slot's
 *      load on ARM64, so pop uses a release fence: it orders earlier loads as well as stores.
 */
#ifndef REN_QUEUES_RING_H
#define REN_QUEUES_RING_H

#include "../memory/host.h"
#include "ck_shim.h"

#define REN__RING_MAX_ENTRIES (UINT32_C(1) << 20)

typedef struct ren__ring {
    _Alignas(64) ck_ring_t ck; /* c_head | p_tail, p_head | size, mask: three cache lines */
    uint32_t capacity;         /* usable entries; beside ck's read-only size and mask */
    ck_ring_buffer_t *slots;   /* ck.size of them, NULL at first */
    _Alignas(64) uint32_t producer_seen; /* spsc.h's consumer only: the newest p_tail it has read */
} ren__ring;

/* Returns REN_OK; REN_ERR_INVALID_ARGUMENT when capacity is not 1..REN__RING_MAX_ENTRIES;
 * REN_ERR_NO_MEMORY. After an error the ring is zeroed, and deinit accepts it. All counts begin at
 * start_index: 0 in libren, near the wrap in tests. */
ren_status ren__ring_init(ren__ring *r, uint32_t capacity, uint32_t start_index,
                          const ren__host_allocator *a);
void ren__ring_deinit(ren__ring *r, const ren__host_allocator *a);

#endif
