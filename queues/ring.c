/* SPDX-License-Identifier: MIT */
/* queues/ring.c - making and unmaking a ring.
 *
 * Purpose   The checks that ck_ring_init does not make, and the slots.
 * Threads   no concurrent use.
 * Memory    one block for the slots, through the host's allocator.
 */
#include "ring.h"

#include <string.h>

static uint32_t round_up_to_power_of_two(uint32_t n)
{
    uint32_t power = 1;
    while (power < n) {
        power <<= 1;
    }
    return power;
}

ren_status ren__ring_init(ren__ring *r, uint32_t capacity, uint32_t start_index,
                          const ren__host_allocator *a)
{
    memset(r, 0, sizeof *r);
    if (capacity == 0 || capacity > REN__RING_MAX_ENTRIES) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    uint32_t slots = round_up_to_power_of_two(capacity);
    r->slots = ren__host_calloc(a, slots, sizeof *r->slots);
    if (r->slots == NULL) {
        return REN_ERR_NO_MEMORY;
    }
    ck_ring_init(&r->ck, slots);
    r->ck.c_head = start_index;
    r->ck.p_tail = start_index;
    r->ck.p_head = start_index;
    r->capacity = capacity;
    r->producer_seen = start_index;
    return REN_OK;
}

void ren__ring_deinit(ren__ring *r, const ren__host_allocator *a)
{
    if (r->slots != NULL) {
        ren__host_free(a, r->slots, r->ck.size, sizeof *r->slots);
    }
    memset(r, 0, sizeof *r);
}
