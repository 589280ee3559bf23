/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/host_copy.c - copies from and to host memory that CUDA has not pinned.
 *
 * Purpose   cudaMemcpyAsync takes such memory through the driver's own buffers and makes its caller
 *           wait for the stream, so the submitter must not call it. The core asks host_is_pinned
 *           first and has a completion thread make the copy otherwise.
 * Threads   host_is_pinned: the submitter. copy_now: completion threads, several at once.
 * Order     copy_now runs on a stream of its own, behind nothing; the core calls it when all that
 *           it depends on has completed, and lets nothing that depends on it start before it
 *           returns.
 */
#include "internal.h"

uint32_t ren__cuda_host_is_pinned(ren__device *dev, const void *ptr)
{
    struct cudaPointerAttributes attributes;
    ren__cuda_scope scope;
    uint32_t pinned = 0;
    if (ren__cuda_enter(dev, &scope) != REN_OK) {
        return 1; /* lost: no copy waits any more */
    }
    if (cudaPointerGetAttributes(&attributes, ptr) == cudaSuccess) {
        pinned = attributes.type != cudaMemoryTypeUnregistered;
    } else {
        (void)cudaGetLastError();
    }
    ren__cuda_leave(dev, &scope);
    return pinned;
}

ren_status ren__cuda_copy_now(ren__device *dev, void *dst, const void *src, uint64_t bytes)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    (void)atomic_fetch_add_explicit(&dev->syncing, 1, memory_order_relaxed);
    status = REN__CUDA(dev, NULL,
                       cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDefault, dev->aside));
    if (status == REN_OK) {
        status = REN__CUDA(dev, NULL, cudaStreamSynchronize(dev->aside));
    }
    ren__cuda_leave(dev, &scope);
    /* Release: partner of the acquire in ren__cuda_close, which frees what this thread used. */
    (void)atomic_fetch_sub_explicit(&dev->syncing, 1, memory_order_release);
    return status;
}
