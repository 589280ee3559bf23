/* SPDX-License-Identifier: MIT */
/* memory/plan.h - static placement: offsets for values that never live at the same time.
 *
 * (Essay to be completed by the implementation.)
 */
#ifndef REN_MEMORY_PLAN_H
#define REN_MEMORY_PLAN_H

#include "host.h"

/* Non-zero when items a and b may not share memory. Symmetric. */
typedef int (*ren__plan_conflict_fn)(void *user, uint32_t a, uint32_t b);

/* Place `count` items of `bytes[i]` (0 = takes no room) at 256-byte aligned offsets so that
 * conflicting items do not overlap; largest first, lowest fitting offset. Deterministic. Returns
 * REN_OK; REN_ERR_NO_MEMORY (scratch). */
ren_status ren__memory_plan(const uint64_t *bytes, uint32_t count, ren__plan_conflict_fn conflict,
                            void *user, const ren__host_allocator *a, uint64_t *out_offsets,
                            uint64_t *out_total);

#endif
