/* SPDX-License-Identifier: MIT */
/* queues/doorbell.c - the event count's link to the kernel: futex and clock. See doorbell.h.
 *
 * Threads   any.
 * Memory    none.
 */
#include "doorbell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "point.h"

#define NS_PER_S UINT64_C(1000000000)

static int read_clock(const struct ck_ec_ops *ops, struct timespec *out)
{
    (void)ops;
    return clock_gettime(CLOCK_MONOTONIC, out);
}

/* May return early for any reason; ck looks at the count again. */
static void futex_wait(const struct ck_ec_wait_state *state, const uint32_t *address,
                       uint32_t expected, const struct timespec *deadline)
{
    (void)state;
    (void)syscall(SYS_futex, address, FUTEX_WAIT_BITSET_PRIVATE, expected, deadline, NULL,
                  FUTEX_BITSET_MATCH_ANY);
}

static void futex_wake(const struct ck_ec_ops *ops, const uint32_t *address)
{
    (void)ops;
    (void)syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* In ck's multi-producer mode the flag that asks for a wake is set atomically and cannot be lost,
 * so the back-off that guards its single-producer mode is one long first wait. The short busy wait
 * is ck's default. */
static const struct ck_ec_ops doorbell_ops = {
    .gettime = read_clock,
    .wait32 = futex_wait,
    .wake32 = futex_wake,
    .busy_loop_iter = 100,
    .initial_wait_ns = 1000000000u,
};

static const struct ck_ec_mode doorbell_mode = {.ops = &doorbell_ops, .single_producer = false};

void ren__doorbell_init(ren__doorbell *d)
{
    d->sleepers = 0;
    ck_ec32_init(&d->count, 0);
}

void ren__doorbell_ring(ren__doorbell *d)
{
    /* ck fences before the add: a release that pairs with prepare's acquire and with the acquire at
     * the end of wait. */
    (void)ck_ec32_add(&d->count, &doorbell_mode, 1);
}

/* Far deadlines are no deadline: the sum must not overflow a signed 64-bit count of seconds. */
static bool make_deadline(uint64_t timeout_ns, struct timespec *out)
{
    struct timespec now;
    if (timeout_ns >= UINT64_C(1) << 62 || clock_gettime(CLOCK_MONOTONIC, &now) != 0) {
        return false;
    }
    uint64_t ns = (uint64_t)now.tv_nsec + timeout_ns % NS_PER_S;
    out->tv_sec = now.tv_sec + (time_t)(timeout_ns / NS_PER_S + ns / NS_PER_S);
    out->tv_nsec = (long)(ns % NS_PER_S);
    return true;
}

bool ren__doorbell_wait(ren__doorbell *d, uint32_t snapshot, uint64_t timeout_ns)
{
    REN__POINT("doorbell.before_wait");
    if (ck_ec32_value(&d->count) != snapshot) {
        return true;
    }
    if (timeout_ns == 0) {
        return false;
    }
    struct timespec deadline;
    bool limited = make_deadline(timeout_ns, &deadline);
    (void)ck_ec32_wait(&d->count, &doorbell_mode, snapshot, limited ? &deadline : NULL);
    return ck_ec32_value(&d->count) != snapshot; /* an acquire: pairs with ring's release */
}
