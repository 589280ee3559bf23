/* SPDX-License-Identifier: MIT */
/* memory/plan.c - static placement: largest first, at the lowest offset that fits.
 *
 * Purpose   See plan.h.
 * Memory    Two index arrays: `order`, the items by size, and `placed`, those with an offset, by
 *           offset. The sort is a heap sort of ours, since the C library's may allocate.
 */
#include "plan.h"

enum {
    PLAN_ALIGN = 256
};

/* a goes before b: larger first, then the lower number. A total order, hence one result. */
static int before(const uint64_t *bytes, uint32_t a, uint32_t b)
{
    return bytes[a] != bytes[b] ? bytes[a] > bytes[b] : a < b;
}

/* Restore the heap below `root`: a parent comes after its children, so that the root is last. */
static void sift_down(const uint64_t *bytes, uint32_t *order, uint64_t root, uint64_t count)
{
    for (;;) {
        uint64_t child = 2 * root + 1;
        if (child >= count) {
            return;
        }
        if (child + 1 < count && before(bytes, order[child], order[child + 1])) {
            child++;
        }
        if (before(bytes, order[child], order[root])) {
            return;
        }
        uint32_t swap = order[root];
        order[root] = order[child];
        order[child] = swap;
        root = child;
    }
}

static void sort_by_size(const uint64_t *bytes, uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (uint32_t i = count / 2; i-- > 0;) {
        sift_down(bytes, order, i, count);
    }
    for (uint32_t end = count; end-- > 1;) {
        uint32_t swap = order[0];
        order[0] = order[end];
        order[end] = swap;
        sift_down(bytes, order, 0, end);
    }
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

/* Lowest offset with `need` free bytes, among the conflicting ones of the items placed so far. */
static uint64_t lowest_offset(const uint64_t *bytes, const uint64_t *offsets,
                              const uint32_t *placed, uint32_t placed_count, uint32_t item,
                              ren__plan_conflict_fn conflict, void *user)
{
    uint64_t need = round_up(bytes[item]);
    uint64_t low = 0; /* every conflicting item seen so far ends at or below it */
    for (uint32_t k = 0; k < placed_count; k++) {
        uint32_t other = placed[k];
        uint64_t begin = offsets[other];
        uint64_t end = begin + round_up(bytes[other]);
        if (end <= low || !conflict(user, item, other)) {
            continue;
        }
        if (begin >= low && begin - low >= need) {
            break; /* the gap below `other` is wide enough; those after it begin no lower */
        }
        low = end;
    }
    return low;
}

ren_status ren__memory_plan(const uint64_t *bytes, uint32_t count, ren__plan_conflict_fn conflict,
                            void *user, const ren__host_allocator *a, uint64_t *out_offsets,
                            uint64_t *out_total)
{
    *out_total = 0;
    if (count == 0) {
        return REN_OK;
    }
    uint32_t *order = ren__host_calloc(a, count, 2 * sizeof *order);
    if (!order) {
        return REN_ERR_NO_MEMORY;
    }
    uint32_t *placed = order + count;
    uint32_t placed_count = 0;
    uint64_t total = 0;
    ren_status status = REN_OK;
    sort_by_size(bytes, order, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t item = order[i];
        out_offsets[item] = 0;
        if (bytes[item] == 0) {
            continue;
        }
        if (bytes[item] > UINT64_MAX - (PLAN_ALIGN - 1)) {
            status = REN_ERR_NO_DEVICE_MEMORY;
            break;
        }
        uint64_t low =
            lowest_offset(bytes, out_offsets, placed, placed_count, item, conflict, user);
        uint64_t need = round_up(bytes[item]);
        if (low > UINT64_MAX - need) {
            status = REN_ERR_NO_DEVICE_MEMORY;
            break;
        }
        out_offsets[item] = low;
        total = low + need > total ? low + need : total;
        uint32_t at = placed_count++;
        for (; at > 0 && out_offsets[placed[at - 1]] > low; at--) {
            placed[at] = placed[at - 1];
        }
        placed[at] = item;
    }
    ren__host_free(a, order, count, 2 * sizeof *order);
    *out_total = total;
    return status;
}
