/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/lanes.c - events, copies, fills and host calls on the device's streams.
 *
 * Purpose   The plain entries of the device table: each is one CUDA call on the lane's stream.
 * Threads   as device.h says: enqueueing calls on the submitter, event_sync on a waiter per lane.
 * Events    A ren__event is a cudaEvent_t under another name. Timing is off, which makes recording
 *           cheaper; an event for a waiter blocks the thread instead of spinning.
 * Memory    nothing is allocated on the host.
 */
#include "internal.h"

static cudaEvent_t event_of(ren__event *event)
{
    return (cudaEvent_t)event;
}

ren_status ren__cuda_event_create(ren__device *dev, uint32_t for_host_wait, ren__event **out)
{
    cudaEvent_t event = NULL;
    ren__cuda_scope scope;
    unsigned flags = cudaEventDisableTiming | (for_host_wait ? cudaEventBlockingSync : 0u);
    ren_status status = ren__cuda_enter(dev, &scope);
    *out = NULL;
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(dev, NULL, cudaEventCreateWithFlags(&event, flags));
    ren__cuda_leave(dev, &scope);
    *out = (ren__event *)event;
    return status;
}

void ren__cuda_event_destroy(ren__device *dev, ren__event *event)
{
    ren__cuda_scope scope;
    if (!event) {
        return;
    }
    ren__cuda_enter_always(dev, &scope);
    (void)REN__CUDA(dev, NULL, cudaEventDestroy(event_of(event)));
    ren__cuda_leave(dev, &scope);
}

ren_status ren__cuda_event_record(ren__device *dev, uint32_t lane, ren__event *event)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(dev, NULL, cudaEventRecord(event_of(event), dev->lane[lane].stream));
    ren__cuda_leave(dev, &scope);
    return status;
}

ren_status ren__cuda_event_wait(ren__device *dev, uint32_t lane, ren__event *event)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(
        dev, NULL,
        cudaStreamWaitEvent(dev->lane[lane].stream, event_of(event), cudaEventWaitDefault));
    ren__cuda_leave(dev, &scope);
    return status;
}

ren_status ren__cuda_event_sync(ren__device *dev, ren__event *event)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    (void)atomic_fetch_add_explicit(&dev->syncing, 1, memory_order_relaxed);
    status = REN__CUDA(dev, NULL, cudaEventSynchronize(event_of(event)));
    if (status == REN_OK && atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        status = REN_ERR_DEVICE_LOST; /* abandoned while it slept */
    }
    ren__cuda_leave(dev, &scope);
    /* Release: partner of the acquire in ren__cuda_close, which frees what this thread used. */
    (void)atomic_fetch_sub_explicit(&dev->syncing, 1, memory_order_release);
    return status;
}

ren_status ren__cuda_copy(ren__device *dev, uint32_t lane, void *dst, const void *src,
                          uint64_t bytes)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(
        dev, NULL,
        cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDefault, dev->lane[lane].stream));
    ren__cuda_leave(dev, &scope);
    return status;
}

ren_status ren__cuda_fill(ren__device *dev, uint32_t lane, void *dst, uint32_t byte_value,
                          uint64_t bytes)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(
        dev, NULL,
        cudaMemsetAsync(dst, (int)(byte_value & 0xffu), (size_t)bytes, dev->lane[lane].stream));
    ren__cuda_leave(dev, &scope);
    return status;
}

ren_status ren__cuda_call(ren__device *dev, uint32_t lane, ren__call_fn fn, void *user,
                          ren_status *out_status)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = fn(user, (void *)dev->lane[lane].stream);
    if (status != REN_OK) {
        *out_status = status;
    }
    ren__cuda_leave(dev, &scope);
    return REN_OK;
}
