/* SPDX-License-Identifier: MIT */
/* queues/mpsc.c - making and unmaking the many-producer ring. See mpsc.h. */
#include "mpsc.h"

ren_status ren__mpsc_init(ren__mpsc *q, uint32_t capacity, uint32_t start_index,
                          const ren__host_allocator *a)
{
    return ren__ring_init(&q->ring, capacity, start_index, a);
}

void ren__mpsc_deinit(ren__mpsc *q, const ren__host_allocator *a)
{
    ren__ring_deinit(&q->ring, a);
}
