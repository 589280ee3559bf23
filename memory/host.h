/* SPDX-License-Identifier: MIT */
/* memory/host.h - host memory through the host application's allocator.
 *
 * Purpose   Every byte of host memory that libren takes goes through one of these, so that a host
 *           can count it, and a test can make the Nth request fail.
 * Threads   As the allocator behind it; libren calls it only in create, register, load, save and
 *           destroy calls and in those that plan, on the thread that makes the call.
 * Memory    Blocks are zeroed and 64-byte aligned, so that a structure with its own cache lines
 *           keeps them; free gets the size that alloc got, so a host needs no size header.
 * Units     Sizes and alignments in bytes.
 * Not here  Device and pinned memory: pool.h and staging.h take them from their upstreams.
 */
#ifndef REN_MEMORY_HOST_H
#define REN_MEMORY_HOST_H

#include "../host_api/ren.h"

typedef struct ren__host_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *ptr, size_t bytes);
    void *user;
} ren__host_allocator;

/* The host's allocator, or the C library's when `allocator` is NULL. */
ren__host_allocator ren__host_allocator_make(const ren_allocator *allocator);

/* `count` elements of `size` bytes, zeroed, aligned to 64 bytes; NULL when out of memory, when the
 * product overflows, or when either is 0. */
void *ren__host_calloc(const ren__host_allocator *a, size_t count, size_t size);

/* ptr may be NULL. */
void ren__host_free(const ren__host_allocator *a, void *ptr, size_t count, size_t size);

#endif
