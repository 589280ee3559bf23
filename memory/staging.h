/* SPDX-License-Identifier: MIT */
/* memory/staging.h - pinned slots that a host thread fills and a copy empties.
 *
 * Purpose   The host writes a batch into a slot of pinned memory; a copy on TRANS moves it to the
 *           device while the host fills the next slot. Two slots are the A/B double buffer.
 * States    FREE -> LENT (acquire) -> POSTED (commit) -> FREE (release, by the copy's completion);
 *           POSTED -> LENT again by uncommit, when the post was refused.
 * Threads   The filling side (acquire, commit, uncommit) is one thread at a time; the caller orders
 *           its calls. release: any thread, at the same time as everything else.
 * Progress  No call waits: a ring whose next slot is still being copied answers REN_ERR_BUSY.
 * Order     Slots are lent round the ring. A slot is committed before its job is posted, since the
 *           job may be done, and the slot released, before the post returns.
 * Memory    One pinned allocation at init; slots begin at multiples of 256 bytes.
 * Units     Sizes in bytes.
 * Not here  The copy and its event: the caller releases a slot from the completion of the job that
 *           read it, and of nothing earlier.
 *
 * Why a slot is never rewritten under its copy
 *   The only way from POSTED to anything writable is release (the copy is complete) or uncommit
 *   (there is no copy). acquire lends nothing but a FREE slot, or the one that is lent already, so
 *   the third fill of two slots is refused until the first copy is complete. Every path that fills
 *   a slot goes through these calls: there is no bulk path with edges of its own.
 */
#ifndef REN_MEMORY_STAGING_H
#define REN_MEMORY_STAGING_H

#include "host.h"

#include <stdatomic.h>

#define REN__STAGING_SLOTS 8u /* most slots of one staging ring */

typedef struct ren__staging_upstream {
    ren_status (*alloc)(void *user, uint64_t bytes, void **out); /* pinned host memory */
    void (*free)(void *user, void *ptr, uint64_t bytes);
    void *user;
} ren__staging_upstream;

typedef struct ren__staging {
    ren__staging_upstream upstream;
    unsigned char *memory;
    uint64_t slot_bytes; /* usable, as asked */
    uint64_t stride;     /* from one slot to the next */
    uint32_t slots;
    uint32_t next; /* the slot to lend next: the filling side only */
    _Atomic uint32_t state[REN__STAGING_SLOTS];
} ren__staging;

/* Returns   REN_OK; REN_ERR_INVALID_ARGUMENT (slots not in 1..REN__STAGING_SLOTS, slot_bytes 0);
 *           REN_ERR_NO_MEMORY (the total does not fit 64 bits); else what the upstream said. After
 *           an error *s is zeroed. */
ren_status ren__staging_init(ren__staging *s, uint32_t slots, uint64_t slot_bytes,
                             const ren__staging_upstream *upstream);
void ren__staging_deinit(ren__staging *s); /* zeroed or half-built is fine */

/* REN_OK and the slot's index; REN_ERR_BUSY when the next slot in turn is not free. Slots go round
 * in order, so that slot i's copy is enqueued before slot i+1's. A slot that is LENT already is
 * returned again (same index), so acquire is idempotent until commit. One thread at a time. */
ren_status ren__staging_acquire(ren__staging *s, uint32_t *out_slot, void **out_ptr);

/* LENT -> POSTED; the posting thread. uncommit: POSTED -> LENT, when the post was refused after
 * all; only for the slot committed last. */
void ren__staging_commit(ren__staging *s, uint32_t slot);
void ren__staging_uncommit(ren__staging *s, uint32_t slot);

/* POSTED -> FREE; any thread, after the copy out of the slot has completed. */
void ren__staging_release(ren__staging *s, uint32_t slot);

void *ren__staging_slot(ren__staging *s, uint32_t slot);

#endif
