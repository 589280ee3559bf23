/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/lanes.c - events, copies, fills and host calls on the device's streams.
 *
 * Purpose   The plain entries of the device table: each is one CUDA call on the lane's stream.
 * Threads   as device.h says: enqueueing calls on the submitter, event_sync on a waiter per lane.
 * Events    A ren__event is a cudaEvent_t under another name. Timing is off, which makes recording
 *           cheaper; an event for a waiter blocks the thread, after a short look for itself.
 * Memory    nothing is allocated on the host.
 */
#include <sys/prctl.h>
#include <time.h>

#include "internal.h"
#include "kernels.h"

/* Waking a thread that sleeps in cudaEventSynchronize takes an interrupt: 15 us after an empty
 * kernel, but 90 us after one of 100 us (H200 in a virtual machine). So a waiter looks for itself
 * at first, and sleeps there only when the work is long enough for that not to matter. */
#define LOOK_NS  UINT64_C(20000)  /* look again and again for this long */
#define NAP_NS   10000L           /* then look once in this long */
#define BLOCK_NS UINT64_C(300000) /* from here on sleep until woken */
#define SLACK_NS 1000ul           /* of a nap; the kernel's default would make it 60 us */

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

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* cudaErrorNotReady when the event is still not reached after BLOCK_NS. */
static cudaError_t look_for(ren__device *dev, cudaEvent_t event)
{
    const struct timespec nap = {0, NAP_NS};
    uint64_t start = now_ns();
    uint64_t spent = 0;
    int slack = -1; /* the thread's own, once it was changed */
    cudaError_t code;
    while ((code = cudaEventQuery(event)) == cudaErrorNotReady && spent < BLOCK_NS &&
           !atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        if (spent >= LOOK_NS) {
            if (slack < 0) {
                slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
                (void)prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
            }
            (void)nanosleep(&nap, NULL);
        }
        spent = now_ns() - start;
    }
    if (slack > 0) {
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)slack, 0, 0, 0);
    }
    return code;
}

ren_status ren__cuda_event_sync(ren__device *dev, ren__event *event)
{
    ren__cuda_scope scope;
    cudaError_t code;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    (void)atomic_fetch_add_explicit(&dev->syncing, 1, memory_order_relaxed);
    code = look_for(dev, event_of(event));
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* no error, but kept as one */
        if (!atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
            code = cudaEventSynchronize(event_of(event));
        }
    }
    if (atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        status = REN_ERR_DEVICE_LOST; /* by a fault, or given up while this thread waited */
    } else {
        status = REN__CUDA(dev, NULL, code);
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

ren_status ren__cuda_stamp(ren__device *dev, uint32_t lane, uint64_t *out)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(dev, NULL, ren__cuda_k_stamp(dev->lane[lane].stream, out));
    ren__cuda_leave(dev, &scope);
    return status;
}
