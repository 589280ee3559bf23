/* SPDX-License-Identifier: MIT */
/* queues/spsc.c - making and unmaking the single-producer ring. See spsc.h. */
#include "spsc.h"

ren_status ren__spsc_init(ren__spsc *q, uint32_t capacity, uint32_t start_index,
                          const ren__host_allocator *a)
{
    return ren__ring_init(&q->ring, capacity, start_index, a);
}

void ren__spsc_deinit(ren__spsc *q, const ren__host_allocator *a)
{
    ren__ring_deinit(&q->ring, a);
}
