/* SPDX-License-Identifier: MIT */
/* libren/train/stage.c - see stage.h. */
#include "stage.h"

#include <sched.h>

enum {
    IDLE = 0,
    ARMED,
    COPYING,
    DONE,
    VOID
};

void ren__stage_arm(ren__stage *g)
{
    /* relaxed: the post of the HOST job publishes it. */
    atomic_store_explicit(&g->state, ARMED, memory_order_relaxed);
}

uint32_t ren__stage_copy_all(ren__stage *g)
{
    uint32_t expected = ARMED;
    /* acquire on success: pairs with nothing but the post; on failure the state is VOID. */
    if (!atomic_compare_exchange_strong_explicit(&g->state, &expected, COPYING,
                                                 memory_order_acquire, memory_order_relaxed)) {
        /* release: pairs with is_idle's acquire; the owner may arm again. */
        atomic_store_explicit(&g->state, IDLE, memory_order_release);
        return 0;
    }
    for (uint32_t i = 0; i < g->count; i++) {
        if (g->copies[i].bytes) {
            memcpy(g->copies[i].to, g->copies[i].from, (size_t)g->copies[i].bytes);
        }
    }
    /* release: pairs with the acquires of is_done (the pinned bytes are there) and of void (the
     * host's bytes are no longer read). */
    atomic_store_explicit(&g->state, DONE, memory_order_release);
    return 1;
}

void ren__stage_run(void *stage)
{
    (void)ren__stage_copy_all(stage);
}

uint32_t ren__stage_void(ren__stage *g)
{
    uint32_t expected = ARMED;
    if (atomic_compare_exchange_strong_explicit(&g->state, &expected, VOID, memory_order_relaxed,
                                                memory_order_relaxed)) {
        return 1;
    }
    /* acquire: pairs with run's release. */
    while (atomic_load_explicit(&g->state, memory_order_acquire) == COPYING) {
        sched_yield();
    }
    return 0;
}

void ren__stage_disarm(ren__stage *g)
{
    atomic_store_explicit(&g->state, IDLE, memory_order_relaxed);
}

uint32_t ren__stage_is_done(const ren__stage *g)
{
    /* acquire: pairs with run's release. */
    return atomic_load_explicit(&g->state, memory_order_acquire) == DONE;
}

uint32_t ren__stage_is_idle(const ren__stage *g)
{
    /* acquire: pairs with run's release. */
    uint32_t state = atomic_load_explicit(&g->state, memory_order_acquire);
    return state == IDLE || state == DONE;
}
