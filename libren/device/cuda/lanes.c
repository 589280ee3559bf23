/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/lanes.c - events, copies, fills and host calls on the device's streams.
 *
 * Purpose   The plain entries of the device table: each is one CUDA call on the lane's stream.
 * Threads   as device.h says: enqueueing calls on the submitter, event_sync on a waiter per lane.
 * Events    A ren__event is a cudaEvent_t, without timing, which makes recording cheaper, and for a
 *           waiter the place of its record in the lane's counter.
 * Memory    an event from the host's allocator.
 *
 * How a waiter learns that its event is reached. Both ways are late (figures: an H200 in a virtual
 * machine, driver 580):
 *   the event    A thread asleep in cudaEventSynchronize is woken by an interrupt, 40 to 90 us
 *                behind it. cudaEventQuery answers at once, but takes 3 us while the submitter is
 *                inside the driver too, and holds the submitter up as long.
 *   the counter  Before each record for a waiter the stream is told to write the next number into
 *                pinned memory (cuStreamWriteValue64, 1.5 us of the submitter's time). It is there
 *                3 us after the work, and looking at it costs one load and no driver call.
 * So the waiter looks at the counter: all the time for WATCH_NS, then between naps, which end up to
 * 17 us late, and sleeps on the event from BLOCK_NS on, when the lateness of an interrupt is small
 * beside the work.
 *   The processor's share: 20 us of looking, then a third of the time up to 0.3 ms, then nothing. A
 * stream of 1 ms jobs, each awaited by the host, takes a fifth of one processor in all of libren's
 * threads together; a job of 0.3 s takes 0.25% of one.
 *
 * Why the counter may be believed. The write is a command of the stream, behind the work, and is
 * preceded by a fence over the system (the driver promises it unless told otherwise): who reads the
 * number sees what the work wrote, copies to the host included. A fault ends the stream's commands,
 * so the number never comes. That it has come proves that the work is done; that it has not proves
 * nothing, and the event decides. It stands before the record, not behind it, because the device
 * can begin with it 1.5 us earlier; nothing lies between the two.
 *   Such an event is never recorded in a capture, whose launches would write an old number again:
 * the core records them between the issues, a plan only where it waits for each task.
 *   A device without 64-bit memory operations has no counters. Then the waiter asks the event in
 * the same rhythm.
 */
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "internal.h"
#include "kernels.h"

#define SMALL_COPY 1024u /* bytes, most of a copy by a kernel */

#define WATCH_NS UINT64_C(20000)  /* look again and again for this long */
#define NAP_NS   10000L           /* then once in this long */
#define BLOCK_NS UINT64_C(300000) /* from here on sleep until woken */
#define SLACK_NS 1000ul           /* of a nap; the kernel's default would make it 60 us */

ren_status ren__cuda_event_create(ren__device *dev, uint32_t for_host_wait, ren__event **out)
{
    ren__event *event;
    ren__cuda_scope scope;
    unsigned flags = cudaEventDisableTiming | (for_host_wait ? cudaEventBlockingSync : 0u);
    ren_status status = ren__cuda_enter(dev, &scope);
    *out = NULL;
    if (status != REN_OK) {
        return status;
    }
    event = dev->host.alloc(dev->host.user, sizeof *event, _Alignof(ren__event));
    if (event) {
        memset(event, 0, sizeof *event);
        event->for_host_wait = for_host_wait;
        status = REN__CUDA(dev, NULL, cudaEventCreateWithFlags(&event->event, flags));
    } else {
        status = REN_ERR_NO_MEMORY;
    }
    ren__cuda_leave(dev, &scope);
    if (event && status != REN_OK) {
        dev->host.free(dev->host.user, event, sizeof *event);
        event = NULL;
    }
    *out = event;
    return status;
}

void ren__cuda_event_destroy(ren__device *dev, ren__event *event)
{
    ren__cuda_scope scope;
    if (!event) {
        return;
    }
    ren__cuda_enter_always(dev, &scope);
    (void)REN__CUDA(dev, NULL, cudaEventDestroy(event->event));
    ren__cuda_leave(dev, &scope);
    dev->host.free(dev->host.user, event, sizeof *event);
}

/* Let the lane's counter tell when the lane has come here. Without it the event tells, later. */
static void count(ren__device *dev, uint32_t l, ren__event *event)
{
    ren__cuda_lane *lane = &dev->lane[l];
    CUdeviceptr at = dev->counters_at + l * sizeof *dev->counters;
    event->count = 0;
    if (event->for_host_wait && dev->counters &&
        dev->driver.write_value(lane->stream, at, lane->counted + 1u,
                                CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS) {
        event->lane = l;
        event->count = ++lane->counted;
    }
}

ren_status ren__cuda_event_record(ren__device *dev, uint32_t lane, ren__event *event)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    count(dev, lane, event);
    status = REN__CUDA(dev, NULL, cudaEventRecord(event->event, dev->lane[lane].stream));
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
        dev, NULL, cudaStreamWaitEvent(dev->lane[lane].stream, event->event, cudaEventWaitDefault));
    ren__cuda_leave(dev, &scope);
    return status;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A moment of rest for the processor's other thread. */
static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* cudaErrorNotReady when the event is not reached, as far as can be told without waiting. */
static cudaError_t look(ren__device *dev, const ren__event *event)
{
    if (event->count) {
        /* Acquire: pairs with the fence before the stream's write; the work's own are visible. */
        uint64_t now =
            atomic_load_explicit(&dev->counters[event->lane].value, memory_order_acquire);
        return now >= event->count ? cudaSuccess : cudaErrorNotReady;
    }
    return cudaEventQuery(event->event);
}

/* cudaErrorNotReady when the event is still not reached after BLOCK_NS. */
static cudaError_t look_for(ren__device *dev, const ren__event *event)
{
    const struct timespec nap = {0, NAP_NS};
    uint64_t start = now_ns();
    uint64_t spent = 0;
    int slack = -1; /* the thread's own, once it was changed */
    cudaError_t code;
    while ((code = look(dev, event)) == cudaErrorNotReady && spent < BLOCK_NS &&
           !atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        if (spent < WATCH_NS) {
            relax();
        } else {
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
    code = look_for(dev, event);
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* no error, but kept as one */
        if (!atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
            code = cudaEventSynchronize(event->event);
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

/* May a kernel read and write this address? */
static int is_reached(const void *ptr)
{
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, ptr) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return attributes.type == cudaMemoryTypeDevice ||
           (attributes.type == cudaMemoryTypeHost && attributes.devicePointer == ptr);
}

/* A few bytes of another lane than the one for transfers, which is the first where there are
 * several: there a kernel could have to wait for room on the device, while a copy engine runs
 * beside everything. */
static int copies_by_kernel(const ren__device *dev, uint32_t lane, const void *dst, const void *src,
                            uint64_t bytes)
{
    return bytes <= SMALL_COPY && (lane != 0 || dev->lanes == 1) && is_reached(dst) &&
           is_reached(src);
}

ren_status ren__cuda_copy(ren__device *dev, uint32_t lane, void *dst, const void *src,
                          uint64_t bytes)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    if (copies_by_kernel(dev, lane, dst, src, bytes)) {
        status = REN__CUDA(
            dev, NULL, ren__cuda_k_small_copy(dev->lane[lane].stream, dst, src, (uint32_t)bytes));
    } else {
        status = REN__CUDA(
            dev, NULL,
            cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDefault, dev->lane[lane].stream));
    }
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
