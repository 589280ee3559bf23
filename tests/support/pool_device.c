/* SPDX-License-Identifier: MIT */
/* tests/support/pool_device.c - a make-believe device under the pool, which knows the truth.
 *
 * Purpose   See pool_device.h. Slab i lies at BASE + i * STRIDE; the lowest free place is given
 *           out, so an address is reused as soon as it can be.
 */
#include "pool_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BASE   (1ull << 44)
#define STRIDE (1ull << 36)

/* Called with the lock held. */
static void report(pool_device *d, const char *what, const ren__block *block, uint32_t lane)
{
    if (d->errors++ == 0) {
        snprintf(d->first_error, sizeof d->first_error, "%s (block %u at %p, %llu bytes, lane %u)",
                 what, block ? block->index : 0, block ? block->ptr : NULL,
                 block ? (unsigned long long)block->bytes : 0, lane);
        fprintf(stderr, "pool_device: %s\n", d->first_error);
    }
}

static ren_status device_alloc(void *user, uint64_t bytes, void **out)
{
    pool_device *d = user;
    ren_status status = d->fail_status ? d->fail_status : REN_ERR_NO_DEVICE_MEMORY;
    pthread_mutex_lock(&d->lock);
    d->alloc_calls++;
    int fails = d->fail_nth && (d->alloc_calls == d->fail_nth ||
                                (d->fail_forever && d->alloc_calls > d->fail_nth));
    if (!fails && bytes <= STRIDE && (!d->capacity || d->held_bytes + bytes <= d->capacity)) {
        for (uint32_t i = 0; i < POOL_DEVICE_SLABS; i++) {
            if (d->slabs[i].bytes == 0) {
                d->slabs[i].bytes = bytes;
                d->slabs[i].grains =
                    d->blind ? NULL
                             : calloc(bytes / POOL_DEVICE_GRAIN + 1, sizeof(pool_device_grain));
                *out = (void *)(uintptr_t)(BASE + i * STRIDE);
                d->held_bytes += bytes;
                d->most_bytes = d->held_bytes > d->most_bytes ? d->held_bytes : d->most_bytes;
                d->allocs++;
                status = REN_OK;
                break;
            }
        }
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

static void device_free(void *user, void *ptr, uint64_t bytes)
{
    pool_device *d = user;
    uint64_t slot = ((uint64_t)(uintptr_t)ptr - BASE) / STRIDE;
    pthread_mutex_lock(&d->lock);
    if (slot >= POOL_DEVICE_SLABS || (uint64_t)(uintptr_t)ptr != BASE + slot * STRIDE ||
        d->slabs[slot].bytes != bytes || bytes == 0) {
        report(d, "a slab given back that is none, or with a wrong size", NULL, 0);
        pthread_mutex_unlock(&d->lock);
        return;
    }
    pool_device_slab *slab = &d->slabs[slot];
    for (uint64_t g = 0; slab->grains && g < bytes / POOL_DEVICE_GRAIN; g++) {
        if (slab->grains[g].owner) {
            report(d, "a slab given back with a live block in it", NULL, 0);
        }
        for (uint32_t lane = 0; lane < REN__POOL_LANES; lane++) {
            if (slab->grains[g].last[lane] > atomic_load(&d->completed[lane])) {
                report(d, "a slab given back with work under way in it", NULL, lane);
            }
        }
    }
    free(slab->grains);
    slab->grains = NULL;
    slab->bytes = 0;
    d->held_bytes -= bytes;
    d->frees++;
    pthread_mutex_unlock(&d->lock);
    if (d->sleep_after_free_us) {
        usleep(d->sleep_after_free_us);
    }
}

static uint64_t device_completed(void *user, uint32_t lane)
{
    pool_device *d = user;
    return atomic_load_explicit(&d->completed[lane], memory_order_acquire);
}

void pool_device_init(pool_device *d)
{
    memset(d, 0, sizeof *d);
    pthread_mutex_init(&d->lock, NULL);
}

void pool_device_deinit(pool_device *d)
{
    for (uint32_t i = 0; i < POOL_DEVICE_SLABS; i++) {
        free(d->slabs[i].grains);
    }
    pthread_mutex_destroy(&d->lock);
}

ren__pool_upstream pool_device_upstream(pool_device *d)
{
    ren__pool_upstream upstream = {device_alloc, device_free, device_completed, d};
    return upstream;
}

/* The block's grains, or NULL (and an error, if `d` keeps the truth) when it lies in no slab. */
static pool_device_grain *grains_of(pool_device *d, const ren__block *block)
{
    uint64_t address = (uint64_t)(uintptr_t)block->ptr;
    uint64_t slot = (address - BASE) / STRIDE;
    uint64_t offset = (address - BASE) % STRIDE;
    if (address < BASE || slot >= POOL_DEVICE_SLABS || block->bytes == 0 ||
        offset + block->bytes > d->slabs[slot].bytes) {
        report(d, "a block outside every slab", block, 0);
        return NULL;
    }
    if (offset % POOL_DEVICE_GRAIN || block->bytes % POOL_DEVICE_GRAIN) {
        report(d, "a block that is not aligned", block, 0);
        return NULL;
    }
    return d->slabs[slot].grains ? d->slabs[slot].grains + offset / POOL_DEVICE_GRAIN : NULL;
}

void pool_device_claim(pool_device *d, const ren__block *block)
{
    pthread_mutex_lock(&d->lock);
    pool_device_grain *grains = grains_of(d, block);
    for (uint64_t g = 0; grains && g < block->bytes / POOL_DEVICE_GRAIN; g++) {
        if (grains[g].owner) {
            report(d, "two live blocks overlap", block, 0);
        }
        grains[g].owner = block->index + 1;
        for (uint32_t lane = 0; lane < REN__POOL_LANES; lane++) {
            if (grains[g].last[lane] > block->fence.seq[lane] &&
                grains[g].last[lane] > atomic_load(&d->completed[lane])) {
                report(d, "the fence leaves out an incomplete use", block, lane);
            }
        }
    }
    pthread_mutex_unlock(&d->lock);
}

uint64_t pool_device_use(pool_device *d, const ren__block *block, uint32_t lane)
{
    pthread_mutex_lock(&d->lock);
    uint64_t seq = atomic_fetch_add(&d->posted[lane], 1) + 1;
    pool_device_grain *grains = grains_of(d, block);
    for (uint64_t g = 0; grains && g < block->bytes / POOL_DEVICE_GRAIN; g++) {
        if (grains[g].owner != block->index + 1) {
            report(d, "a live block lost its bytes", block, lane);
        }
        grains[g].last[lane] = seq;
    }
    pthread_mutex_unlock(&d->lock);
    return seq;
}

void pool_device_disown(pool_device *d, const ren__block *block)
{
    pthread_mutex_lock(&d->lock);
    pool_device_grain *grains = grains_of(d, block);
    for (uint64_t g = 0; grains && g < block->bytes / POOL_DEVICE_GRAIN; g++) {
        if (grains[g].owner != block->index + 1) {
            report(d, "a block freed that another owns", block, 0);
        }
        grains[g].owner = 0;
    }
    pthread_mutex_unlock(&d->lock);
}

void pool_device_complete(pool_device *d, uint32_t lane, uint64_t seq)
{
    uint64_t now = atomic_load(&d->completed[lane]);
    while (now < seq && !atomic_compare_exchange_weak(&d->completed[lane], &now, seq)) {
    }
}

void pool_device_complete_all(pool_device *d)
{
    for (uint32_t lane = 0; lane < REN__POOL_LANES; lane++) {
        pool_device_complete(d, lane, atomic_load(&d->posted[lane]));
    }
}
