/* SPDX-License-Identifier: MIT */
/* memory/staging.c - pinned slots that a host thread fills and a copy empties.
 *
 * Purpose   See staging.h.
 * Threads   `next` and the step FREE -> LENT -> POSTED belong to the filling side; POSTED -> FREE
 *           is the releasing thread's. At any time one side alone may move a slot on, so plain
 *           atomic stores are enough, and no read-modify-write is needed.
 */
#include "staging.h"

enum {
    SLOT_FREE = 0,
    SLOT_LENT = 1,
    SLOT_POSTED = 2,
    SLOT_ALIGN = 256
};

ren_status ren__staging_init(ren__staging *s, uint32_t slots, uint64_t slot_bytes,
                             const ren__staging_upstream *upstream)
{
    memset(s, 0, sizeof *s);
    if (slots == 0 || slots > REN__STAGING_SLOTS || slot_bytes == 0) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    if (slot_bytes > UINT64_MAX / REN__STAGING_SLOTS - SLOT_ALIGN) {
        return REN_ERR_NO_MEMORY;
    }
    uint64_t stride = (slot_bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
    void *memory = NULL;
    ren_status status = upstream->alloc(upstream->user, stride * slots, &memory);
    if (status != REN_OK) {
        return status;
    }
    s->upstream = *upstream;
    s->memory = memory;
    s->slot_bytes = slot_bytes;
    s->stride = stride;
    s->slots = slots;
    return REN_OK;
}

void ren__staging_deinit(ren__staging *s)
{
    if (s->memory) {
        s->upstream.free(s->upstream.user, s->memory, s->stride * s->slots);
    }
    memset(s, 0, sizeof *s);
}

ren_status ren__staging_acquire(ren__staging *s, uint32_t *out_slot, void **out_ptr)
{
    uint32_t slot = s->next;
    /* Acquire, pairs with the release store in ren__staging_release: the copy's reads of the slot
     * come before the host's writes of the next batch. Without it a weakly ordered host could write
     * early, into a copy that is still under way. */
    uint32_t state = atomic_load_explicit(&s->state[slot], memory_order_acquire);
    if (state == SLOT_POSTED) {
        return REN_ERR_BUSY;
    }
    /* Relaxed: only the filling side reads LENT. */
    atomic_store_explicit(&s->state[slot], SLOT_LENT, memory_order_relaxed);
    *out_slot = slot;
    *out_ptr = ren__staging_slot(s, slot);
    return REN_OK;
}

void ren__staging_commit(ren__staging *s, uint32_t slot)
{
    s->next = slot + 1 == s->slots ? 0 : slot + 1;
    /* Relaxed: the batch, and this store before the releasing thread's, are published by the post
     * that follows (its ring's release), which is the only road by which a release can come. */
    atomic_store_explicit(&s->state[slot], SLOT_POSTED, memory_order_relaxed);
}

void ren__staging_uncommit(ren__staging *s, uint32_t slot)
{
    s->next = slot;
    /* Relaxed: the post was refused, so no other thread knows of the slot. */
    atomic_store_explicit(&s->state[slot], SLOT_LENT, memory_order_relaxed);
}

void ren__staging_release(ren__staging *s, uint32_t slot)
{
    /* Release, pairs with the acquire load in ren__staging_acquire (the hazard is said there). */
    atomic_store_explicit(&s->state[slot], SLOT_FREE, memory_order_release);
}

void *ren__staging_slot(ren__staging *s, uint32_t slot)
{
    return s->memory + s->stride * slot;
}
