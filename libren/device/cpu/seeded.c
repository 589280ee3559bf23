/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/seeded.c - the lanes' commands in an order drawn from a seed.
 *
 * Purpose   Make a race repeatable: under a seed one thread runs the commands of all lanes, one at
 *           a time, and draws the next lane from a generator among those whose front command can
 *           run. Every order that it can produce is one that free lanes could produce too.
 * Threads   lane 0's thread; the other lanes have none. restart: any thread while lanes are idle.
 * Progress  a command that blocks in a host call blocks all lanes.
 *
 * The drawn order is a function of the seed and of what is on the rings at each draw. So that this
 * is the program's doing and not the clock's, a draw is put off until nothing has been enqueued for
 * a while; a program that enqueues a burst and then waits, or holds the first command until it has
 * enqueued the rest, sees the same order every time.
 */
#include "cpu.h"

#include <time.h>

#define QUIET_NS 200000u

static uint64_t draw(ren__device *dev)
{
    uint64_t z = atomic_fetch_add(&dev->seed_state, UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void ren__cpu_seeded_restart(ren__device *dev, uint64_t seed)
{
    atomic_store(&dev->seed_state, seed);
}

static bool is_empty(ren__cpu_lane *lane)
{
    return atomic_load(&lane->head) == atomic_load_explicit(&lane->tail, memory_order_relaxed);
}

static const ren__cpu_command *front(ren__cpu_lane *lane)
{
    return &lane->ring[atomic_load_explicit(&lane->tail, memory_order_relaxed) % REN__CPU_RING];
}

static bool is_runnable(ren__cpu_lane *lane)
{
    if (is_empty(lane)) {
        return false;
    }
    const ren__cpu_command *command = front(lane);
    ren__cpu_command step;
    if (command->kind == REN__CPU_SEGMENT &&
        ren__cpu_segment_command(command, lane->cursor, &step)) {
        command = &step;
    }
    return command->kind != REN__CPU_WAIT ||
           ren__cpu_point_is_reached(&lane->dev->lane[command->as.point.lane],
                                     command->as.point.seq);
}

static void pop(ren__cpu_lane *lane)
{
    lane->cursor = 0;
    /* Release: as in lane_main. */
    atomic_fetch_add_explicit(&lane->tail, 1u, memory_order_release);
}

static void run_front(ren__cpu_lane *lane)
{
    const ren__cpu_command *command = front(lane);
    if (command->kind != REN__CPU_SEGMENT) {
        ren__cpu_execute(lane, command);
        pop(lane);
        return;
    }
    ren__cpu_command step;
    if (ren__cpu_segment_command(command, lane->cursor, &step)) {
        ren__cpu_execute(lane, &step);
        lane->cursor++;
    } else {
        pop(lane);
    }
}

/* Sleep until something is enqueued, the device is lost, or it is to end. */
static void sleep_for_work(ren__device *dev, const uint64_t seen[REN__LANES])
{
    ren__cpu_lane *self = &dev->lane[0];
    pthread_mutex_lock(&self->mutex);
    atomic_store(&self->asleep, 1);
    bool news = atomic_load(&dev->stop) != 0 || ren__cpu_is_lost(dev);
    for (uint32_t i = 0; i < dev->lanes; i++) {
        news = news || atomic_load(&dev->lane[i].head) != seen[i];
    }
    if (!news) {
        pthread_cond_wait(&self->work, &self->mutex);
    }
    atomic_store(&self->asleep, 0);
    pthread_mutex_unlock(&self->mutex);
}

static bool is_quiet(ren__device *dev)
{
    uint64_t last = atomic_load_explicit(&dev->last_enqueue_ns, memory_order_relaxed);
    uint64_t now = ren__cpu_now_ns();
    return now >= last + QUIET_NS;
}

/* Drop what is queued; true when the thread is to end. */
static bool drain_lost(ren__device *dev)
{
    for (uint32_t i = 0; i < dev->lanes; i++) {
        while (!is_empty(&dev->lane[i])) {
            pop(&dev->lane[i]);
        }
    }
    return atomic_load(&dev->stop) != 0;
}

void ren__cpu_seeded_run(ren__device *dev)
{
    for (;;) {
        uint64_t seen[REN__LANES] = {0};
        uint32_t runnable[REN__LANES];
        uint32_t count = 0;
        uint32_t waiting = 0;
        for (uint32_t i = 0; i < dev->lanes; i++) {
            seen[i] = atomic_load(&dev->lane[i].head);
        }
        if (ren__cpu_is_lost(dev)) {
            if (drain_lost(dev)) {
                return;
            }
            while (atomic_load(&dev->stop) == 0) {
                /* Nothing is enqueued any more; only the end wakes this thread. */
                pthread_mutex_lock(&dev->lane[0].mutex);
                if (atomic_load(&dev->stop) == 0) {
                    pthread_cond_wait(&dev->lane[0].work, &dev->lane[0].mutex);
                }
                pthread_mutex_unlock(&dev->lane[0].mutex);
            }
            continue;
        }
        for (uint32_t i = 0; i < dev->lanes; i++) {
            waiting += is_empty(&dev->lane[i]) ? 0u : 1u;
            if (is_runnable(&dev->lane[i])) {
                runnable[count++] = i;
            }
        }
        if (count == 0) {
            if (waiting == 0 && atomic_load(&dev->stop) != 0) {
                return;
            }
            sleep_for_work(dev, seen);
        } else if (!is_quiet(dev) && atomic_load(&dev->stop) == 0) {
            struct timespec pause = {0, QUIET_NS / 4};
            nanosleep(&pause, NULL);
        } else {
            run_front(&dev->lane[runnable[draw(dev) % count]]);
        }
    }
}
