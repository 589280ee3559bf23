/* SPDX-License-Identifier: MIT */
/* tests/support/point.c - stopping a thread of libren's at a named place.
 *
 * Purpose   The test build calls ren__test_point at each REN__POINT. A test pauses a point; the
 *           next thread that comes there waits until the test resumes it, and the test can wait
 * for that.
 * Threads   any.
 * Memory    a fixed table of points. They are process-wide: the runtime argument of the hooks is
 *           there for the tests' sake, since a queue knows no runtime.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "ren_test.h"

#define MAX_POINTS 8

typedef struct point {
    char name[48];
    int paused;
    unsigned waiting;
} point;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_int armed; /* points that are paused: one load when there are none */
    point points[MAX_POINTS];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static point *find(const char *name, int make)
{
    point *empty = NULL;
    for (int i = 0; i < MAX_POINTS; i++) {
        if (strcmp(state.points[i].name, name) == 0) {
            return &state.points[i];
        }
        if (!empty && !state.points[i].name[0]) {
            empty = &state.points[i];
        }
    }
    if (make && empty) {
        strncpy(empty->name, name, sizeof empty->name - 1);
        return empty;
    }
    return NULL;
}

void ren__test_point(const char *name)
{
    point *p;
    if (atomic_load_explicit(&state.armed, memory_order_acquire) == 0) {
        return;
    }
    (void)pthread_mutex_lock(&state.lock);
    p = find(name, 0);
    if (p && p->paused) {
        p->waiting++;
        (void)pthread_cond_broadcast(&state.changed);
        while (p->paused) {
            (void)pthread_cond_wait(&state.changed, &state.lock);
        }
        p->waiting--;
    }
    (void)pthread_mutex_unlock(&state.lock);
}

void ren_test_pause(ren_runtime *rt, const char *name)
{
    point *p;
    (void)rt;
    (void)pthread_mutex_lock(&state.lock);
    p = find(name, 1);
    if (p && !p->paused) {
        p->paused = 1;
        atomic_fetch_add(&state.armed, 1);
    }
    (void)pthread_mutex_unlock(&state.lock);
}

void ren_test_resume(ren_runtime *rt, const char *name)
{
    point *p;
    (void)rt;
    (void)pthread_mutex_lock(&state.lock);
    p = find(name, 0);
    if (p && p->paused) {
        p->paused = 0;
        atomic_fetch_sub(&state.armed, 1);
        (void)pthread_cond_broadcast(&state.changed);
    }
    (void)pthread_mutex_unlock(&state.lock);
}

int ren_test_wait_paused(ren_runtime *rt, const char *name, uint32_t timeout_ms)
{
    struct timespec until;
    int reached;
    (void)rt;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_mutex_lock(&state.lock);
    for (;;) {
        point *p = find(name, 0);
        reached = p && p->waiting;
        if (reached || pthread_cond_timedwait(&state.changed, &state.lock, &until) != 0) {
            break;
        }
    }
    (void)pthread_mutex_unlock(&state.lock);
    return reached;
}
