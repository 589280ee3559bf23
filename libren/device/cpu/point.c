/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/point.c - events as points on a lane, and the threads that wait for them.
 *
 * Purpose   Say "when lane L has completed its record number s", let lanes and host threads sleep
 *           until then, and wake exactly those that are due.
 * Threads   reach: the lane's own thread.  wait, sync: any thread, many at once.  record, wait
 *           commands: the submitter.
 * Progress  a record that nobody sleeps for costs two atomic operations and no system call.
 * Memory    a sleeper is a struct on the sleeping thread's stack.
 *
 * The lane stores `done` and then loads `wake_at`; a sleeper stores `wake_at` and then loads
 * `done`. All four are sequentially consistent, so one of them sees the other: a sleeper cannot
 * miss its point. `wake_at` is the smallest count any sleeper waits for, so records before it stay
 * cheap even while somebody sleeps for a far one. Sleepers are linked and unlinked under the lane's
 * mutex, by which the lane hands over `due`.
 *
 * The order that an event stands for is carried by `done`: it is stored with release by the lane
 * after the commands before the record, and loaded with acquire by whoever waits, so their memory
 * effects are visible to all that comes after the wait.
 */
#include "cpu.h"

/* Looks before going to sleep: most waits between lanes are met within a microsecond or two. */
#define SPINS 1000

static void refresh_wake_at(ren__cpu_lane *lane)
{
    uint64_t least = UINT64_MAX;
    for (const ren__cpu_sleeper *s = lane->sleepers; s; s = s->next) {
        if (s->seq < least) {
            least = s->seq;
        }
    }
    atomic_store(&lane->wake_at, least);
}

void ren__cpu_point_reach(ren__cpu_lane *lane, uint64_t seq)
{
    atomic_store(&lane->done, seq);
    if (atomic_load(&lane->wake_at) > seq) {
        return;
    }
    pthread_mutex_lock(&lane->mutex);
    ren__cpu_sleeper **link = &lane->sleepers;
    while (*link) {
        ren__cpu_sleeper *s = *link;
        if (s->seq <= seq) {
            *link = s->next;
            s->due = true;
            pthread_cond_signal(&s->wake);
        } else {
            link = &s->next;
        }
    }
    refresh_wake_at(lane);
    pthread_mutex_unlock(&lane->mutex);
}

void ren__cpu_point_wake_all(ren__cpu_lane *lane)
{
    pthread_mutex_lock(&lane->mutex);
    for (ren__cpu_sleeper *s = lane->sleepers; s; s = s->next) {
        pthread_cond_signal(&s->wake);
    }
    pthread_cond_broadcast(&lane->work);
    pthread_mutex_unlock(&lane->mutex);
}

bool ren__cpu_point_is_reached(ren__cpu_lane *lane, uint64_t seq)
{
    /* Acquire: pairs with the store of done in reach; what came before the record is visible. */
    return atomic_load_explicit(&lane->done, memory_order_acquire) >= seq;
}

static void unlink_sleeper(ren__cpu_lane *lane, ren__cpu_sleeper *sleeper)
{
    ren__cpu_sleeper **link = &lane->sleepers;
    while (*link && *link != sleeper) {
        link = &(*link)->next;
    }
    if (*link) {
        *link = sleeper->next;
    }
    refresh_wake_at(lane);
}

bool ren__cpu_point_wait(ren__cpu_lane *lane, uint64_t seq)
{
    for (int i = 0; i < SPINS; i++) {
        if (ren__cpu_point_is_reached(lane, seq)) {
            return true;
        }
    }
    ren__cpu_sleeper sleeper = {NULL, seq, false, PTHREAD_COND_INITIALIZER};
    pthread_mutex_lock(&lane->mutex);
    sleeper.next = lane->sleepers;
    lane->sleepers = &sleeper;
    refresh_wake_at(lane);
    /* The look that pairs with reach's look at wake_at. */
    sleeper.due = atomic_load(&lane->done) >= seq;
    if (sleeper.due) {
        unlink_sleeper(lane, &sleeper);
    } else {
        /* A loss is stored before the losing thread takes this mutex to wake the sleepers. */
        while (!sleeper.due && !ren__cpu_is_lost(lane->dev)) {
            pthread_cond_wait(&sleeper.wake, &lane->mutex);
        }
        if (!sleeper.due) {
            unlink_sleeper(lane, &sleeper);
        }
    }
    pthread_mutex_unlock(&lane->mutex);
    pthread_cond_destroy(&sleeper.wake);
    return sleeper.due;
}

/* ------------------------------------------------------------------ events */

ren_status ren__cpu_event_create(ren__device *dev, uint32_t for_host_wait, ren__event **out)
{
    (void)for_host_wait; /* every event can be waited for by the host */
    *out = NULL;
    if (ren__cpu_is_lost(dev)) {
        return REN_ERR_DEVICE_LOST;
    }
    *out = ren__cpu_alloc(dev, sizeof **out);
    return *out ? REN_OK : REN_ERR_NO_MEMORY;
}

void ren__cpu_event_destroy(ren__device *dev, ren__event *event)
{
    ren__cpu_free(dev, event, sizeof *event);
}

ren_status ren__cpu_event_record(ren__device *dev, uint32_t lane, ren__event *event)
{
    if (ren__cpu_is_lost(dev)) {
        return REN_ERR_DEVICE_LOST;
    }
    switch (ren__cpu_capture_record(dev, lane, event)) {
    case REN__CPU_CAPTURED:
        return REN_OK;
    case REN__CPU_CAPTURE_FAILED:
        return REN_ERR_INVALID_ARGUMENT;
    case REN__CPU_NOT_CAPTURED:
        break;
    }
    ren__cpu_command command = {.kind = REN__CPU_RECORD};
    uint64_t seq = dev->lane[lane].records + 1u;
    command.as.point.lane = lane;
    command.as.point.seq = seq;
    ren_status status = ren__cpu_enqueue(dev, lane, &command);
    if (status == REN_OK) {
        dev->lane[lane].records = seq;
        event->capture = 0;
        /* Release: pairs with event_sync's load; nothing of the lane is needed by the reader but
         * the number itself. */
        atomic_store_explicit(&event->point, ((uint64_t)lane << 56) | seq, memory_order_release);
    }
    return status;
}

ren_status ren__cpu_event_wait(ren__device *dev, uint32_t lane, ren__event *event)
{
    if (ren__cpu_is_lost(dev)) {
        return REN_ERR_DEVICE_LOST;
    }
    switch (ren__cpu_capture_wait(dev, lane, event)) {
    case REN__CPU_CAPTURED:
        return REN_OK;
    case REN__CPU_CAPTURE_FAILED:
        return REN_ERR_INVALID_ARGUMENT;
    case REN__CPU_NOT_CAPTURED:
        break;
    }
    uint64_t point = atomic_load_explicit(&event->point, memory_order_relaxed);
    uint64_t seq = REN__CPU_POINT_SEQ(point);
    uint32_t of = REN__CPU_POINT_LANE(point);
    if (of == lane || ren__cpu_point_is_reached(&dev->lane[of], seq)) {
        /* Never recorded, earlier on this lane, or complete: then this thread has acquired what the
         * point stands for, and hands it on with the lane's next command. */
        return REN_OK;
    }
    ren__cpu_command command = {.kind = REN__CPU_WAIT};
    command.as.point.lane = of;
    command.as.point.seq = seq;
    return ren__cpu_enqueue(dev, lane, &command);
}

ren_status ren__cpu_event_sync(ren__device *dev, ren__event *event)
{
    if (ren__cpu_is_lost(dev)) {
        return REN_ERR_DEVICE_LOST;
    }
    uint64_t point = atomic_load_explicit(&event->point, memory_order_acquire);
    bool reached =
        ren__cpu_point_wait(&dev->lane[REN__CPU_POINT_LANE(point)], REN__CPU_POINT_SEQ(point));
    return reached ? REN_OK : REN_ERR_DEVICE_LOST;
}
