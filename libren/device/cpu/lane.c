/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/lane.c - one lane: a bounded ring of commands and the thread that runs them.
 *
 * Purpose   What a stream is on a GPU. The submitter appends without ever waiting; the lane's
 *           thread runs commands strictly in order, sleeps while there are none, and sleeps inside
 *           a wait command until another lane has got far enough.
 * Threads   enqueue: the submitter.  execute: the lane's thread (lane 0's under a seed).
 * Progress  enqueue is wait-free unless the lane sleeps; then it makes one system call to wake it.
 * Order     commands of a lane: the order of enqueue.
 * Memory    the ring is taken at open; a command is copied in, nothing is allocated later.
 * Not here  waiting for points, see point.c; the order of lanes under a seed, see seeded.c.
 *
 * A slot belongs to the submitter while it is outside [tail, head) and to the lane inside. `head`
 * is stored after the slot is written and `tail` after the command has run, so each side sees what
 * the other wrote. The wake-up argument is in cpu.h.
 *
 * After a fault a lane goes on taking commands off its ring but runs none, so it becomes idle as
 * soon as the command that it is inside returns.
 */
#include "cpu.h"

#include <stdio.h>
#include <string.h>

/* Looks at an empty ring before going to sleep. A wake-up costs the submitter a system call, some
 * microseconds; a look costs about a nanosecond. */
#define SPINS 1000

ren_status ren__cpu_lane_init(ren__device *dev, uint32_t index)
{
    ren__cpu_lane *lane = &dev->lane[index];
    lane->dev = dev;
    lane->index = index;
    atomic_init(&lane->wake_at, UINT64_MAX);
    /* Not zeroed: a slot is written before it is read, and untouched pages cost nothing. */
    lane->ring =
        dev->host.alloc(dev->host.user, REN__CPU_RING * sizeof *lane->ring, REN__CPU_CACHE_LINE);
    if (!lane->ring) {
        return REN_ERR_NO_MEMORY;
    }
    if (pthread_mutex_init(&lane->mutex, NULL) != 0) {
        ren__cpu_free(dev, lane->ring, REN__CPU_RING * sizeof *lane->ring);
        lane->ring = NULL;
        return REN_ERR_NO_MEMORY;
    }
    if (pthread_cond_init(&lane->work, NULL) != 0) {
        pthread_mutex_destroy(&lane->mutex);
        ren__cpu_free(dev, lane->ring, REN__CPU_RING * sizeof *lane->ring);
        lane->ring = NULL;
        return REN_ERR_NO_MEMORY;
    }
    return REN_OK;
}

void ren__cpu_lane_deinit(ren__cpu_lane *lane)
{
    if (lane->dnnl) {
        dnnl_stream_destroy(lane->dnnl);
    }
    pthread_cond_destroy(&lane->work);
    pthread_mutex_destroy(&lane->mutex);
    ren__cpu_free(lane->dev, lane->ring, REN__CPU_RING * sizeof *lane->ring);
}

void ren__cpu_lane_wake(ren__cpu_lane *lane)
{
    /* The mutex orders the signal after the sleeper's last look at the ring. */
    pthread_mutex_lock(&lane->mutex);
    pthread_cond_signal(&lane->work);
    pthread_mutex_unlock(&lane->mutex);
}

ren_status ren__cpu_enqueue(ren__device *dev, uint32_t lane_index, const ren__cpu_command *command)
{
    if (ren__cpu_is_lost(dev)) {
        return REN_ERR_DEVICE_LOST;
    }
    ren__cpu_lane *lane = &dev->lane[lane_index];
    uint64_t head = atomic_load_explicit(&lane->head, memory_order_relaxed);
    if (head - lane->tail_known >= REN__CPU_RING) {
        /* Acquire: pairs with the lane's store of tail; it has read the slot that is reused. */
        lane->tail_known = atomic_load_explicit(&lane->tail, memory_order_acquire);
        if (head - lane->tail_known >= REN__CPU_RING) {
            return REN_ERR_QUEUE_FULL;
        }
    }
    lane->ring[head % REN__CPU_RING] = *command;
    /* Sequentially consistent, with the lane's store of `asleep` and load of `head`: either the
     * lane sees this command before it sleeps, or we see that it sleeps. It publishes the slot. */
    atomic_store(&lane->head, head + 1u);
    ren__cpu_lane *runner = lane;
    if (dev->config.seed != 0) {
        atomic_store_explicit(&dev->last_enqueue_ns, ren__cpu_now_ns(), memory_order_relaxed);
        runner = &dev->lane[0];
    }
    if (atomic_load(&runner->asleep) != 0 && atomic_exchange(&runner->asleep, 0) != 0) {
        ren__cpu_lane_wake(runner);
    }
    return REN_OK;
}

/* True when a command is there, false when the lane is to end. */
static bool wait_for_command(ren__cpu_lane *lane, uint64_t tail)
{
    for (int i = 0; i < SPINS; i++) {
        /* Acquire: pairs with the submitter's store of head; the slot is written. */
        if (atomic_load_explicit(&lane->head, memory_order_acquire) != tail) {
            return true;
        }
    }
    pthread_mutex_lock(&lane->mutex);
    for (;;) {
        atomic_store(&lane->asleep, 1);
        if (atomic_load(&lane->head) != tail || atomic_load(&lane->dev->stop) != 0) {
            break;
        }
        pthread_cond_wait(&lane->work, &lane->mutex);
    }
    atomic_store(&lane->asleep, 0);
    pthread_mutex_unlock(&lane->mutex);
    return atomic_load(&lane->head) != tail;
}

static void run_segment(ren__cpu_lane *lane, const ren__cpu_command *launch)
{
    ren__cpu_command command;
    for (uint32_t i = 0; ren__cpu_segment_command(launch, i, &command); i++) {
        if (ren__cpu_is_lost(lane->dev)) {
            return;
        }
        ren__cpu_execute(lane, &command);
    }
}

void ren__cpu_execute(ren__cpu_lane *lane, const ren__cpu_command *command)
{
    ren__device *dev = lane->dev;
    switch (command->kind) {
    case REN__CPU_RECORD:
        ren__cpu_point_reach(lane, command->as.point.seq);
        break;
    case REN__CPU_WAIT:
        ren__cpu_point_wait(&dev->lane[command->as.point.lane], command->as.point.seq);
        break;
    case REN__CPU_COPY:
        memcpy(command->as.copy.dst, command->as.copy.src, (size_t)command->as.copy.bytes);
        break;
    case REN__CPU_FILL:
        memset(command->as.fill.dst, (int)command->as.fill.value, (size_t)command->as.fill.bytes);
        break;
    case REN__CPU_CALL: {
        ren_status status = command->as.call.fn(command->as.call.user, NULL);
        if (status != REN_OK) {
            *command->as.call.out_status = status;
        }
        break;
    }
    case REN__CPU_OP: {
        ren_status status = ren__cpu_op_run(command->as.op.op, lane->dnnl, command->as.op.operands,
                                            command->as.op.workspace);
        if (status != REN_OK) {
            ren__cpu_lose(dev, "an operation failed while it ran", status);
        }
        break;
    }
    case REN__CPU_STAMP:
        /* Relaxed, and atomic for who looks before an event says that it is there. */
        atomic_store_explicit((_Atomic uint64_t *)(void *)command->as.stamp.out, ren__cpu_now_ns(),
                              memory_order_relaxed);
        break;
    case REN__CPU_SEGMENT:
        run_segment(lane, command);
        break;
    }
}

static void lane_main(void *arg)
{
    ren__cpu_lane *lane = arg;
    ren__device *dev = lane->dev;
    if (dev->config.seed != 0) {
        ren__cpu_seeded_run(dev);
    } else {
        uint64_t tail = 0;
        while (wait_for_command(lane, tail)) {
            if (!ren__cpu_is_lost(dev)) {
                ren__cpu_execute(lane, &lane->ring[tail % REN__CPU_RING]);
            }
            tail++;
            /* Release: pairs with the loads in enqueue (the slot may be overwritten) and in settle
             * (the command's memory may be freed). */
            atomic_store_explicit(&lane->tail, tail, memory_order_release);
        }
    }
    /* Release: pairs with close's acquire; the thread is done with the device. */
    atomic_store_explicit(&lane->exited, 1, memory_order_release);
}

ren_status ren__cpu_lane_start(ren__cpu_lane *lane)
{
    ren__device *dev = lane->dev;
    char name[16];
    snprintf(name, sizeof name, "ren-cpu-%u", (unsigned)lane->index);
    ren_status status =
        dev->host.thread_start(dev->host.user, name, lane_main, lane, &lane->thread);
    if (status != REN_OK) {
        lane->thread = NULL;
    }
    return status;
}
