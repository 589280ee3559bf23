/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/events.c - events, and how a waiter learns that one is reached.
 *
 * Purpose   Events order lanes and tell completion threads of the end of a batch. Timing is off,
 *           which makes recording cheaper.
 * Threads   record and wait: the submitter. sync: a waiter per lane. create, destroy: any.
 * Memory    an event from the host's allocator.
 *
 * Ways to learn of an event, each late by something (an H200 in a virtual machine, driver 580):
 *   interrupt  A thread asleep in cudaEventSynchronize is woken 40 to 90 us behind the event. For
 *              that the device interrupts a processor at each record of such an event, whether
 *              anyone sleeps or not, for about 30 us, and what that processor was about to do, a
 *              launch or a wake-up, comes as much later.
 *   query      cudaEventQuery answers at once, but takes 3 us while the submitter is inside the
 *              driver too, and holds the submitter up as long.
 *   counter    Before each record for a waiter the stream is told to write the next number into
 *              pinned memory (cuStreamWriteValue64, 1.5 us of the submitter's time). It is there
 *              3 us after the work, and looking at it costs one load and no driver call.
 *
 * So the waiter looks at the counter: all the time for WATCH_NS, then between naps, the first of
 * which end up to 17 us late. A lane on which a wait of the last LOUD_FOR lasted longer than
 * LONG_NS is loud: its records interrupt, and the waiter sleeps on the event from LONG_NS on, when
 * the lateness of that is small beside the work. On a quiet lane a long wait, the first of its
 * kind, goes on with naps of an eighth of the time so far.
 *   A stream takes 56 loud records; with as many unfinished, cudaEventRecord waits until one is
 * reached, which the submitter must never do. So beyond LOUD_MOST that no waiter has come by yet,
 * records are quiet. A quiet record takes no room in the stream's queue, the write takes one place
 * of about a thousand.
 *   The processor's share: 20 us of looking, then a third of the time up to 0.1 ms, then less and
 * less, or nothing. In all of libren's threads together a stream of 1 ms jobs, each awaited by the
 * host, takes a fifth of one processor; a job of a second takes 0.13% of one where the lane is
 * loud, and less than 0.6% where it is not.
 *
 * Why the counter may be believed. The write is a command of the stream, behind the work, and is
 * preceded by a fence over the system (the driver promises it unless told otherwise): who reads the
 * number sees what the work wrote, copies to the host included. A fault ends the stream's commands,
 * so the number never comes. That it has come proves that the work is done; that it has not proves
 * nothing, and the event decides. It stands before the record, not behind it, because the device
 * can begin with it 1.5 us earlier; nothing lies between the two.
 *   Such an event is never recorded in a capture, whose launches would write an old number again:
 * the core records them between the issues, a plan only where it waits for each task.
 *   A device without 64-bit memory operations has no counters. Then all lanes are loud, and the
 * waiter asks the event in the same rhythm.
 */
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "internal.h"

#define WATCH_NS  UINT64_C(20000)    /* look again and again for this long */
#define NAP_NS    UINT64_C(10000)    /* then once in this long at least */
#define LONG_NS   UINT64_C(300000)   /* a loud lane's waiter sleeps from here on until woken */
#define NAP_MOST  UINT64_C(20000000) /* of a quiet lane */
#define SLACK_NS  1000ul             /* of a nap; the kernel's default would make it 60 us */
#define LOUD_FOR  16u                /* waits */
#define LOUD_MOST 40u                /* unfinished loud records of one lane */

static ren_status make(ren__device *dev, unsigned flags, cudaEvent_t *out)
{
    return REN__CUDA(dev, NULL, cudaEventCreateWithFlags(out, cudaEventDisableTiming | flags));
}

static void unmake(ren__device *dev, ren__event *event)
{
    if (event->quiet) {
        (void)REN__CUDA(dev, NULL, cudaEventDestroy(event->quiet));
    }
    if (event->loud) {
        (void)REN__CUDA(dev, NULL, cudaEventDestroy(event->loud));
    }
    dev->host.free(dev->host.user, event, sizeof *event);
}

ren_status ren__cuda_event_create(ren__device *dev, uint32_t for_host_wait, ren__event **out)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    *out = NULL;
    if (status != REN_OK) {
        return status;
    }
    ren__event *event = dev->host.alloc(dev->host.user, sizeof *event, _Alignof(ren__event));
    if (!event) {
        ren__cuda_leave(dev, &scope);
        return REN_ERR_NO_MEMORY;
    }
    memset(event, 0, sizeof *event);
    status = make(dev, 0, &event->quiet);
    if (status == REN_OK && for_host_wait) {
        status = make(dev, cudaEventBlockingSync, &event->loud);
    }
    if (status == REN_OK) {
        event->latest = event->quiet;
        *out = event;
    } else {
        unmake(dev, event);
    }
    ren__cuda_leave(dev, &scope);
    return status;
}

void ren__cuda_event_destroy(ren__device *dev, ren__event *event)
{
    ren__cuda_scope scope;
    if (event) {
        ren__cuda_enter_always(dev, &scope);
        unmake(dev, event);
        ren__cuda_leave(dev, &scope);
    }
}

/* Let the lane's counter tell when the lane has come here. Without it the event tells, later. */
static void count(ren__device *dev, uint32_t l, ren__event *event)
{
    ren__cuda_lane *lane = &dev->lane[l];
    CUdeviceptr at = dev->counters_at + l * sizeof *dev->counters;
    event->lane = l;
    event->count = 0;
    event->loud_seq = 0;
    event->latest = event->quiet;
    if (dev->counters && dev->driver.write_value(lane->stream, at, lane->counted + 1u,
                                                 CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS) {
        event->count = ++lane->counted;
    }
    /* Relaxed: a guess of what is cheaper. */
    if (event->count && !atomic_load_explicit(&lane->loud, memory_order_relaxed)) {
        return;
    }
    /* Relaxed: an old value makes a record quiet that could be loud. */
    if (lane->loud_records - atomic_load_explicit(&lane->loud_reached, memory_order_relaxed) <
        LOUD_MOST) {
        event->latest = event->loud;
        event->loud_seq = ++lane->loud_records;
    }
}

ren_status ren__cuda_event_record(ren__device *dev, uint32_t lane, ren__event *event)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    if (event->loud) {
        count(dev, lane, event);
    }
    status = REN__CUDA(dev, NULL, cudaEventRecord(event->latest, dev->lane[lane].stream));
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
    status =
        REN__CUDA(dev, NULL,
                  cudaStreamWaitEvent(dev->lane[lane].stream, event->latest, cudaEventWaitDefault));
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

/* cudaErrorNotReady when the event is not reached, as far as can be told without waiting. After a
 * long time the event is asked, too: a fault shows there alone. */
static cudaError_t look(ren__device *dev, const ren__event *event, uint64_t spent)
{
    if (event->count) {
        /* Acquire: pairs with the fence before the stream's write; the work's own are visible. */
        uint64_t now =
            atomic_load_explicit(&dev->counters[event->lane].value, memory_order_acquire);
        if (now >= event->count) {
            return cudaSuccess;
        }
        if (spent < LONG_NS) {
            return cudaErrorNotReady;
        }
    }
    return cudaEventQuery(event->latest);
}

static void nap(uint64_t spent)
{
    uint64_t part = spent / 8u;
    uint64_t ns = part < NAP_NS ? NAP_NS : part > NAP_MOST ? NAP_MOST : part;
    struct timespec time = {0, (long)ns};
    (void)nanosleep(&time, NULL);
}

/* Until the event is reached, or the device lost. cudaErrorNotReady when it is time to sleep. */
static cudaError_t look_for(ren__device *dev, const ren__event *event, uint64_t *out_spent)
{
    uint64_t start = now_ns();
    uint64_t spent = 0;
    int slack = -1; /* the thread's own, once it was changed */
    cudaError_t code;
    while ((code = look(dev, event, spent)) == cudaErrorNotReady &&
           (spent < LONG_NS || event->latest != event->loud) &&
           !atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        if (spent < WATCH_NS) {
            relax();
        } else {
            if (slack < 0) {
                slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
                (void)prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
            }
            nap(spent);
        }
        spent = now_ns() - start;
    }
    if (slack > 0) {
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)slack, 0, 0, 0);
    }
    *out_spent = spent;
    return code;
}

/* The waits of a lane are in the order of its records, so what was recorded before is reached, too.
 * Relaxed: it orders no memory. */
static void note_reached(ren__cuda_lane *lane, uint64_t loud_seq)
{
    uint64_t known = atomic_load_explicit(&lane->loud_reached, memory_order_relaxed);
    while (known < loud_seq &&
           !atomic_compare_exchange_weak_explicit(&lane->loud_reached, &known, loud_seq,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* Relaxed: one waiter a lane in general; a lost count is a guess the worse. */
static void note_length(ren__cuda_lane *lane, uint64_t spent)
{
    uint32_t loud = atomic_load_explicit(&lane->loud, memory_order_relaxed);
    if (spent >= LONG_NS) {
        loud = LOUD_FOR;
    } else if (loud) {
        loud--;
    } else {
        return;
    }
    atomic_store_explicit(&lane->loud, loud, memory_order_relaxed);
}

ren_status ren__cuda_event_sync(ren__device *dev, ren__event *event)
{
    ren__cuda_scope scope;
    uint64_t spent;
    cudaError_t code;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    (void)atomic_fetch_add_explicit(&dev->syncing, 1, memory_order_relaxed);
    code = look_for(dev, event, &spent);
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* no error, but kept as one */
        if (!atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
            code = cudaEventSynchronize(event->latest);
        }
    }
    if (event->loud) {
        note_length(&dev->lane[event->lane], spent);
        note_reached(&dev->lane[event->lane], event->loud_seq);
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
