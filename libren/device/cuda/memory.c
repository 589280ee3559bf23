/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/memory.c - slabs of device memory, and pinned host memory.
 *
 * Purpose   The pool above asks for few, large slabs, so plain cudaMalloc serves: it works beside
 *           captures and in contexts that graphics shares. cudaFree may wait for the whole device;
 *           the pool calls it only when it trims or closes, never in the steady state.
 * Threads   any.
 * Errors    An allocation that fails clears CUDA's last error, so the next call is not blamed.
 */
#include "internal.h"

ren_status ren__cuda_account(ren__device *dev, uint64_t bytes)
{
    ren_status status = REN_OK;
    (void)pthread_mutex_lock(&dev->lock);
    if (dev->memory_limit &&
        (bytes > dev->memory_limit || dev->memory_used > dev->memory_limit - bytes)) {
        status = REN_ERR_NO_DEVICE_MEMORY;
    } else {
        dev->memory_used += bytes;
    }
    (void)pthread_mutex_unlock(&dev->lock);
    return status;
}

void ren__cuda_unaccount(ren__device *dev, uint64_t bytes)
{
    (void)pthread_mutex_lock(&dev->lock);
    dev->memory_used -= bytes;
    (void)pthread_mutex_unlock(&dev->lock);
}

ren_status ren__cuda_mem_alloc(ren__device *dev, uint64_t bytes, void **out)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    *out = NULL;
    if (status != REN_OK) {
        return status;
    }
    status = ren__cuda_account(dev, bytes);
    if (status == REN_OK) {
        status = REN__CUDA(dev, NULL, cudaMalloc(out, (size_t)bytes));
        if (status != REN_OK) {
            *out = NULL;
            ren__cuda_unaccount(dev, bytes);
        }
    }
    ren__cuda_leave(dev, &scope);
    return status;
}

void ren__cuda_mem_free(ren__device *dev, void *ptr, uint64_t bytes)
{
    ren__cuda_scope scope;
    if (!ptr || ren__cuda_is_abandoned(dev)) {
        return;
    }
    ren__cuda_enter_always(dev, &scope);
    (void)REN__CUDA(dev, NULL, cudaFree(ptr));
    ren__cuda_leave(dev, &scope);
    ren__cuda_unaccount(dev, bytes);
}

ren_status ren__cuda_host_alloc(ren__device *dev, uint64_t bytes, void **out)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    *out = NULL;
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(dev, NULL, cudaHostAlloc(out, (size_t)bytes, cudaHostAllocPortable));
    if (status == REN_ERR_NO_DEVICE_MEMORY) {
        status = REN_ERR_NO_MEMORY;
    }
    if (status != REN_OK) {
        *out = NULL;
    }
    ren__cuda_leave(dev, &scope);
    return status;
}

void ren__cuda_host_free(ren__device *dev, void *ptr, uint64_t bytes)
{
    ren__cuda_scope scope;
    (void)bytes;
    if (!ptr || ren__cuda_is_abandoned(dev)) {
        return;
    }
    ren__cuda_enter_always(dev, &scope);
    (void)REN__CUDA(dev, NULL, cudaFreeHost(ptr));
    ren__cuda_leave(dev, &scope);
}
