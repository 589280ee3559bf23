/* SPDX-License-Identifier: MIT */
/* memory/plan.h - static placement: offsets for values that never live at the same time.
 *
 * Purpose   A step's local values live in one region. Two values whose tasks are ordered anyway may
 *           share memory; the planner of libren/graph knows which ones may not (they conflict), and
 *           this gives every value an offset so that conflicting ones do not overlap.
 * Threads   Pure: no state, any thread.
 * Progress  count^2 / 2 calls of `conflict`, and as many steps. Run once per plan, never per step.
 * Order     Deterministic: it depends on sizes, item numbers and conflicts alone, so that a plan
 *           made twice has the same addresses, as bit-exact replay needs.
 * Memory    Scratch of 8 bytes an item, from the host allocator, returned before the call ends.
 * Units     Sizes and offsets in bytes; offsets are multiples of 256.
 * Not here  What conflicts: with five streams, lifetimes are not intervals of one order (two values
 *           conflict unless every use of the one is ordered before the first write of the other),
 *           so the caller answers by pairs and nothing here assumes a timeline.
 *
 * The method
 *   Colouring with weights is NP-hard already for intervals, so this is a greedy rule: largest
 *   first (ties by number), each at the lowest offset where it fits between the conflicting items
 *   placed before it. Large items first, since a small one fits into the gaps of large ones and not
 *   the other way round. A lower bound is the heaviest set of items that all conflict with each
 *   other; for interval lifetimes that is the most that lives at any one time. The unit test holds
 *   random intervals to 1.05 times that bound on average, and prints the figure.
 */
#ifndef REN_MEMORY_PLAN_H
#define REN_MEMORY_PLAN_H

#include "host.h"

/* Non-zero when items a and b may not share memory. Symmetric. */
typedef int (*ren__plan_conflict_fn)(void *user, uint32_t a, uint32_t b);

/* Place `count` items of `bytes[i]` (0 = takes no room) at 256-byte aligned offsets so that
 * conflicting items do not overlap; largest first, lowest fitting offset. Deterministic.
 * Returns   REN_OK; REN_ERR_NO_MEMORY (scratch); REN_ERR_NO_DEVICE_MEMORY (the region would not fit
 *           64 bits). After an error the outputs are undefined. */
ren_status ren__memory_plan(const uint64_t *bytes, uint32_t count, ren__plan_conflict_fn conflict,
                            void *user, const ren__host_allocator *a, uint64_t *out_offsets,
                            uint64_t *out_total);

#endif
