/* SPDX-License-Identifier: MIT */
/* queues/doorbell.c - the event count's link to the kernel: futex and clock. See doorbell.h.
 *
 * Threads   any.
 * Memory    none.
 */
#include "doorbell.h"

#include <limits.h>
#include <linux/futex.h>
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

static const struct ck_ec_ops doorbell_ops = {
    .gettime = read_clock,
    .wait32 = futex_wait,
    .wake32 = futex_wake,
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

/* ck sleeps in steps that grow (2 ms, 16 ms, ...), without regard to the caller's deadline, because
 * in its single-producer mode the flag that asks for a wake may get lost. In the multi-producer
 * mode, the only one used here, the flag is set atomically and is not lost. So each step is made to
 * end at the caller's deadline: neither late nor with wake-ups on the way. */
static int sleep_until_deadline(const struct ck_ec_wait_state *state, struct timespec *deadline)
{
    *deadline = *(const struct timespec *)state->data;
    return 0;
}

/* A deadline too far for the clock's arithmetic is none; ck takes the largest time for "never". */
static struct timespec make_deadline(uint64_t timeout_ns)
{
    struct timespec deadline = {.tv_sec = sizeof(time_t) == 8 ? (time_t)INT64_MAX : INT32_MAX};
    struct timespec now;
    if (timeout_ns < UINT64_C(1) << 62 && clock_gettime(CLOCK_MONOTONIC, &now) == 0) {
        uint64_t ns = (uint64_t)now.tv_nsec + timeout_ns % NS_PER_S;
        deadline.tv_sec = now.tv_sec + (time_t)(timeout_ns / NS_PER_S + ns / NS_PER_S);
        deadline.tv_nsec = (long)(ns % NS_PER_S);
    }
    return deadline;
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
    struct timespec deadline = make_deadline(timeout_ns);
    (void)ck_ec32_wait_pred(&d->count, &doorbell_mode, snapshot, sleep_until_deadline, &deadline,
                            &deadline);
    return ck_ec32_value(&d->count) != snapshot; /* an acquire: pairs with ring's release */
}
