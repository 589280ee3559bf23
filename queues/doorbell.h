/* SPDX-License-Identifier: MIT */
/* queues/doorbell.h - how a thread sleeps until another has published something.
 *
 * Purpose   The submitter sleeps here when all rings are empty, and waiters of the host sleep on
 *           others. Whoever publishes something rings; ringing costs no system call and writes
 *           nothing while nobody sleeps.
 * Threads   any thread may ring; any number may sleep.  init: no concurrent use.
 * Progress  ring is wait-free but for the kernel's wake call; wait blocks.
 * Order     what was published before a ring is visible after the wait that it ends.
 * Memory    none.
 * Units     timeouts in nanoseconds, on the monotonic clock.
 * Not here  what is published: rings, lists and flags of the caller's.
 *
 * Use
 *   publisher:  publish (push, or a release store of a flag);  ren__doorbell_ring_if_asleep(d);
 *   sleeper:    snapshot = ren__doorbell_prepare(d);
 *               ren__doorbell_sleep_begin(d);
 *               if (nothing is published)  ren__doorbell_wait(d, snapshot, timeout);
 *               ren__doorbell_sleep_end(d);
 *               look again, whatever wait returned.
 *
 * Why no wake-up is lost
 *   (a) The publisher publishes, fences, then reads `sleepers`. The sleeper writes `sleepers`,
 *   fences, then looks for what is published. The two full fences have a total order. If the
 *   publisher's is first, the sleeper's look sees the publication and it does not wait. If the
 *   sleeper's is first, the publisher reads sleepers != 0 and rings.
 *   (b) A ring adds one to the event count; wait returns at once if the count is no longer the
 *   snapshot's, and the kernel compares it again before it blocks. The snapshot is taken before the
 *   look, so a ring after the look is a ring after the snapshot, and wait sees it.
 *   A release store instead of the fence in (a) is not enough: the processor may keep the
 *   publication in its store buffer while it reads `sleepers` as 0.
 *   Rings coalesce: one wake may stand for any number of publications, so the sleeper drains all.
 *
 * Cost of (a) for the publisher: a full fence, and a load of a line that nobody writes while the
 * sleeper is awake. One thread pushing into an SPSC ring, per item, on a two-core EPYC:
 *     push, load, no fence (wrong)      1.4 to 1.9 ns
 *     push, locked instruction, load    2.4 to 2.5 ns    what ring_if_asleep does
 *     push, mfence, load                19 to 23 ns
 * A barrier that the sleeper alone pays for (membarrier) could save about 1 ns a post, at the price
 * of an interrupt to every processor that runs a thread of the host each time the submitter goes to
 * sleep, so the fence stays.
 */
#ifndef REN_QUEUES_DOORBELL_H
#define REN_QUEUES_DOORBELL_H

#include "ck_shim.h"

typedef struct ren__doorbell {
    _Alignas(64) uint32_t sleepers; /* threads between sleep_begin and sleep_end */
    _Alignas(64) ck_ec32_t count;   /* rings, and ck's flag that a thread is in the kernel */
} ren__doorbell;

void ren__doorbell_init(ren__doorbell *d);

/* Always ring: one atomic add, and a system call when a thread sleeps in the kernel. */
void ren__doorbell_ring(ren__doorbell *d);

/* True when rung since the snapshot, false at the timeout. 0 only looks; UINT64_MAX waits
 * for ever. */
bool ren__doorbell_wait(ren__doorbell *d, uint32_t snapshot, uint64_t timeout_ns);

/* The count before the look for work; an acquire, so that the look is not done before it. */
static inline uint32_t ren__doorbell_prepare(ren__doorbell *d)
{
    return ck_ec32_value(&d->count);
}

static inline void ren__doorbell_sleep_begin(ren__doorbell *d)
{
    (void)ck_pr_faa_32(&d->sleepers, 1u);
    ren__full_fence(&d->sleepers); /* pairs with ring_if_asleep's: a thread about to sleep sees the
                                      publication, or the publisher sees the thread */
}

static inline void ren__doorbell_sleep_end(ren__doorbell *d)
{
    (void)ck_pr_faa_32(&d->sleepers, UINT32_MAX); /* minus one */
}

/* Ring, but only if a thread sleeps or is about to. */
static inline void ren__doorbell_ring_if_asleep(ren__doorbell *d)
{
    ren__full_fence(&d->sleepers); /* pairs with sleep_begin's */
    if (CK_CC_UNLIKELY(ck_pr_load_32(&d->sleepers) != 0)) {
        ren__doorbell_ring(d);
    }
}

#endif
