/* SPDX-License-Identifier: MIT */
/* memory/staging.h - pinned slots that a host thread fills and a copy empties.
 *
 * (Essay to be completed by the implementation.)
 * States of a slot: FREE -> LENT (acquire) -> POSTED (commit) -> FREE (release, by the copy's
 * completion).
 */
#ifndef REN_MEMORY_STAGING_H
#define REN_MEMORY_STAGING_H

#include "host.h"

#define REN__STAGING_SLOTS 8u /* most slots of one staging ring */

typedef struct ren__staging_upstream {
    ren_status (*alloc)(void *user, uint64_t bytes, void **out); /* pinned host memory */
    void (*free)(void *user, void *ptr, uint64_t bytes);
    void *user;
} ren__staging_upstream;

typedef struct ren__staging {
    ren__staging_upstream upstream;
    unsigned char *memory;
    uint64_t slot_bytes;
    uint32_t slots;
    uint32_t next;                      /* acquire's cursor: the one acquiring thread only */
    uint32_t state[REN__STAGING_SLOTS]; /* atomic */
} ren__staging;

ren_status ren__staging_init(ren__staging *s, uint32_t slots, uint64_t slot_bytes,
                             const ren__staging_upstream *upstream);
void ren__staging_deinit(ren__staging *s); /* zeroed or half-built is fine */

/* REN_OK and the slot's index; REN_ERR_BUSY when the next slot in turn is not free. Slots go round
 * in order, so that slot i's copy is enqueued before slot i+1's. A slot that is LENT already is
 * returned again (same index), so acquire is idempotent until commit. One thread at a time. */
ren_status ren__staging_acquire(ren__staging *s, uint32_t *out_slot, void **out_ptr);

/* LENT -> POSTED; the posting thread. uncommit: POSTED -> LENT, when the post was refused after
 * all. */
void ren__staging_commit(ren__staging *s, uint32_t slot);
void ren__staging_uncommit(ren__staging *s, uint32_t slot);

/* POSTED -> FREE; any thread, after the copy out of the slot has completed. */
void ren__staging_release(ren__staging *s, uint32_t slot);

void *ren__staging_slot(ren__staging *s, uint32_t slot);

#endif
