/* SPDX-License-Identifier: MIT */
/* memory/host.c - host memory through the host application's allocator.
 *
 * Purpose   See host.h. The default allocator is the C library's aligned_alloc and free.
 * Threads   The default allocator is safe from any thread.
 * Memory    Zeroing happens here and not in the allocator: a host's alloc need not zero.
 */
#include "host.h"

#include <stdlib.h>

enum {
    HOST_ALIGN = 64 /* a cache line on the machines that libren runs on */
};

static void *default_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    /* aligned_alloc wants a multiple of the alignment. */
    if (bytes > SIZE_MAX - (align - 1)) {
        return NULL;
    }
    return aligned_alloc(align, (bytes + align - 1) & ~(align - 1));
}

static void default_free(void *user, void *ptr, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(ptr);
}

ren__host_allocator ren__host_allocator_make(const ren_allocator *allocator)
{
    ren__host_allocator made = {default_alloc, default_free, NULL};
    if (allocator) {
        made.alloc = allocator->alloc;
        made.free = allocator->free;
        made.user = allocator->user;
    }
    return made;
}

void *ren__host_calloc(const ren__host_allocator *a, size_t count, size_t size)
{
    if (count == 0 || size == 0 || count > SIZE_MAX / size) {
        return NULL;
    }
    void *ptr = a->alloc(a->user, count * size, HOST_ALIGN);
    if (ptr) {
        memset(ptr, 0, count * size);
    }
    return ptr;
}

void ren__host_free(const ren__host_allocator *a, void *ptr, size_t count, size_t size)
{
    if (ptr) {
        a->free(a->user, ptr, count * size);
    }
}
