/* SPDX-License-Identifier: MIT */
/* memory/pool_blocks.c - the pool's book of blocks: which piece of which slab is free, behind what.
 *
 * Purpose   See pool_blocks.h. In reading order: records, fences, free lists, neighbours, search,
 *           merging, slabs.
 */
#include "pool_blocks.h"

#define NONE REN__POOL_NONE

/* ------------------------------------------------------------------ records */

void ren__pool_blocks_init(ren__pool_blocks *b, uint32_t lanes, ren__pool_record *records,
                           uint32_t max_blocks, const ren__pool_upstream *upstream)
{
    memset(b, 0, sizeof *b);
    b->upstream = *upstream;
    b->records = records;
    b->lanes = lanes;
    b->max_blocks = max_blocks;
    b->spare = NONE;
    b->slabs = NONE;
    memset(b->lists, 0xff, sizeof b->lists); /* every head is NONE */
    for (uint32_t lane = 0; lane < REN__POOL_LANES; lane++) {
        memset(b->lists[lane].used, 0, sizeof b->lists[lane].used);
    }
    for (uint32_t i = max_blocks; i-- > 0;) {
        ren__pool_record_give(b, i);
    }
}

uint32_t ren__pool_record_take(ren__pool_blocks *b)
{
    uint32_t index = b->spare;
    if (index != NONE) {
        b->spare = b->records[index].list_next;
    }
    return index;
}

void ren__pool_record_give(ren__pool_blocks *b, uint32_t index)
{
    b->records[index].state = REN__POOL_UNUSED;
    b->records[index].list_next = b->spare;
    b->spare = index;
}

/* ------------------------------------------------------------------ fences */

static void refresh(ren__pool_blocks *b)
{
    for (uint32_t lane = 0; lane < b->lanes; lane++) {
        b->done[lane] = b->upstream.completed(b->upstream.user, lane);
    }
}

/* Does the block, as far as `done` knows, need nothing from lanes other than `lane`? */
static int is_ready(const ren__pool_blocks *b, const ren__pool_record *r, uint32_t lane)
{
    if (lane == REN__POOL_ANY) {
        return 1;
    }
    uint32_t waits = r->waits & ~(1u << lane);
    while (waits) {
        uint32_t other = (uint32_t)__builtin_ctz(waits);
        if (r->fence.seq[other] > b->done[other]) {
            return 0;
        }
        waits &= waits - 1;
    }
    return 1;
}

static int is_complete(const ren__pool_blocks *b, const ren__pool_record *r)
{
    for (uint32_t waits = r->waits; waits; waits &= waits - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(waits);
        if (r->fence.seq[lane] > b->done[lane]) {
            return 0;
        }
    }
    return 1;
}

static void fence_join(ren__pool_blocks *b, ren__pool_record *r, const ren__fence *other)
{
    for (uint32_t lane = 0; lane < b->lanes; lane++) {
        if (other->seq[lane] > r->fence.seq[lane]) {
            r->fence.seq[lane] = other->seq[lane];
            r->waits |= (uint8_t)(1u << lane);
        }
    }
}

void ren__pool_prune(ren__pool_blocks *b, ren__pool_record *r)
{
    for (uint32_t waits = r->waits; waits; waits &= waits - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(waits);
        if (r->fence.seq[lane] > b->done[lane]) {
            b->done[lane] = b->upstream.completed(b->upstream.user, lane);
        }
        if (r->fence.seq[lane] <= b->done[lane]) {
            r->fence.seq[lane] = 0;
            r->waits &= (uint8_t) ~(1u << lane);
        }
    }
}

/* ------------------------------------------------------------------ free lists */

static uint32_t class_of(uint64_t bytes)
{
    uint64_t grains = bytes / REN__POOL_GRAIN;
    if (grains < 8) {
        return (uint32_t)grains;
    }
    uint32_t shift = 60u - (uint32_t)__builtin_clzll(grains);
    return (shift + 1) * 8 + (uint32_t)((grains >> shift) & 7u);
}

static void list_insert(ren__pool_blocks *b, uint32_t index)
{
    ren__pool_record *r = &b->records[index];
    ren__pool_lists *lists = &b->lists[r->lane];
    uint32_t size_class = class_of(r->bytes);
    uint32_t next = lists->head[size_class];
    r->state = REN__POOL_FREE;
    r->size_class = (uint16_t)size_class;
    r->list_prev = NONE;
    r->list_next = next;
    if (next != NONE) {
        b->records[next].list_prev = index;
    }
    lists->head[size_class] = index;
    lists->used[size_class / 64] |= 1ull << (size_class % 64);
}

static void list_remove(ren__pool_blocks *b, uint32_t index)
{
    ren__pool_record *r = &b->records[index];
    ren__pool_lists *lists = &b->lists[r->lane];
    if (r->list_next != NONE) {
        b->records[r->list_next].list_prev = r->list_prev;
    }
    if (r->list_prev != NONE) {
        b->records[r->list_prev].list_next = r->list_next;
    } else {
        lists->head[r->size_class] = r->list_next;
        if (r->list_next == NONE) {
            lists->used[r->size_class / 64] &= ~(1ull << (r->size_class % 64));
        }
    }
    r->state = REN__POOL_LIVE;
}

/* The first class in use from `from` on, or REN__POOL_CLASSES. `from` is at most one more than the
 * class of the largest size, 431. */
static uint32_t next_class(const ren__pool_lists *lists, uint32_t from)
{
    uint32_t word = from / 64;
    uint64_t bits = lists->used[word] & (~0ull << (from % 64));
    while (bits == 0) {
        if (++word == REN__POOL_WORDS) {
            return REN__POOL_CLASSES;
        }
        bits = lists->used[word];
    }
    return word * 64 + (uint32_t)__builtin_ctzll(bits);
}

/* ------------------------------------------------------------------ neighbours */

/* The rest that is worth a record of its own: less than a sixteenth stays with the block, so that
 * sizes that differ a little from step to step do not shave crumbs off each other's blocks. */
static int is_worth_splitting(uint64_t have, uint64_t want)
{
    return have - want >= REN__POOL_GRAIN && have - want > want / 16;
}

/* Append the upper neighbour to `index`; neither is on a list. */
static void absorb_above(ren__pool_blocks *b, uint32_t index)
{
    ren__pool_record *r = &b->records[index];
    uint32_t upper = r->above;
    ren__pool_record *u = &b->records[upper];
    r->bytes += u->bytes;
    r->above = u->above;
    fence_join(b, r, &u->fence);
    ren__pool_record_give(b, upper);
}

/* Merge neighbours that are both free. Complete ones lose nothing by it: the merged fence is empty.
 * `lossy`: merge all; the merged fence is the maximum per lane. Returns the merges made. */
static uint32_t merge_neighbours(ren__pool_blocks *b, int lossy)
{
    uint32_t merges = 0;
    for (uint32_t slab = b->slabs; slab != NONE; slab = b->records[slab].slab_next) {
        uint32_t index = slab;
        while (index != NONE) {
            ren__pool_record *r = &b->records[index];
            uint32_t above = r->above;
            if (above == NONE || r->state != REN__POOL_FREE ||
                b->records[above].state != REN__POOL_FREE ||
                (!lossy && !(is_complete(b, r) && is_complete(b, &b->records[above])))) {
                index = above;
                continue;
            }
            list_remove(b, index);
            list_remove(b, above);
            absorb_above(b, index);
            ren__pool_prune(b, r);
            list_insert(b, index);
            merges++;
        }
    }
    return merges;
}

int ren__pool_split(ren__pool_blocks *b, uint32_t index, uint64_t bytes)
{
    ren__pool_record *r = &b->records[index];
    if (!is_worth_splitting(r->bytes, bytes)) {
        return 1;
    }
    if (b->spare == NONE) {
        refresh(b);
        if (merge_neighbours(b, 0) == 0 && merge_neighbours(b, 1) == 0) {
            return 0;
        }
    }
    uint32_t rest = ren__pool_record_take(b);
    ren__pool_record *u = &b->records[rest];
    u->fence = r->fence;
    u->waits = r->waits;
    u->lane = r->lane;
    u->ptr = r->ptr + bytes;
    u->bytes = r->bytes - bytes;
    u->above = r->above;
    r->above = rest;
    r->bytes = bytes;
    list_insert(b, rest);
    return 1;
}

void ren__pool_put(ren__pool_blocks *b, uint32_t index, uint32_t lane, const ren__fence *uses)
{
    ren__pool_record *r = &b->records[index];
    if (uses) {
        fence_join(b, r, uses);
    }
    r->lane = (uint8_t)lane;
    list_insert(b, index);
}

/* ------------------------------------------------------------------ search */

/* The best fit on one lane's lists among the blocks ready for `lane`: the smallest that is large
 * enough, from the first class that has one. Lists are last in, first out, which a lane's own order
 * makes right and caches like; behind foreign fences (REN__POOL_ANY) the oldest of equals is taken,
 * since its fence is the nearest. */
static uint32_t find(const ren__pool_blocks *b, uint32_t list, uint32_t lane, uint64_t bytes)
{
    const ren__pool_lists *lists = &b->lists[list];
    uint32_t size_class = next_class(lists, class_of(bytes));
    while (size_class < REN__POOL_CLASSES) {
        uint32_t best = NONE;
        for (uint32_t i = lists->head[size_class]; i != NONE; i = b->records[i].list_next) {
            const ren__pool_record *r = &b->records[i];
            if (r->bytes < bytes || (best != NONE && r->bytes > b->records[best].bytes) ||
                !is_ready(b, r, lane)) {
                continue;
            }
            best = i;
            if (lane != REN__POOL_ANY && !is_worth_splitting(r->bytes, bytes)) {
                break;
            }
        }
        if (best != NONE) {
            return best;
        }
        size_class = next_class(lists, size_class + 1);
    }
    return NONE;
}

/* The smallest of the best fits of all lanes' lists; of equals, the own lane's. */
static uint32_t find_on_all(const ren__pool_blocks *b, uint32_t lane, uint64_t bytes)
{
    uint32_t best = lane < b->lanes ? find(b, lane, lane, bytes) : NONE;
    for (uint32_t list = 0; list < b->lanes; list++) {
        uint32_t found = find(b, list, lane, bytes);
        if (found != NONE && (best == NONE || b->records[found].bytes < b->records[best].bytes)) {
            best = found;
        }
    }
    return best;
}

/* Merge the smallest run of free neighbours (ready for `lane`) that is large enough. The result is
 * FREE, or NONE. */
static uint32_t merge_run(ren__pool_blocks *b, uint32_t lane, uint64_t bytes)
{
    uint64_t best_sum = UINT64_MAX;
    uint32_t best_first = NONE, best_last = NONE;
    for (uint32_t slab = b->slabs; slab != NONE; slab = b->records[slab].slab_next) {
        uint64_t sum = 0;
        uint32_t first = NONE;
        for (uint32_t i = slab; i != NONE; i = b->records[i].above) {
            const ren__pool_record *r = &b->records[i];
            if (r->state != REN__POOL_FREE || !is_ready(b, r, lane)) {
                sum = 0;
                first = NONE;
                continue;
            }
            first = first == NONE ? i : first;
            sum += r->bytes;
            while (sum - b->records[first].bytes >= bytes) {
                sum -= b->records[first].bytes;
                first = b->records[first].above;
            }
            if (sum >= bytes && sum < best_sum) {
                best_sum = sum;
                best_first = first;
                best_last = i;
            }
        }
    }
    if (best_first == NONE) {
        return NONE;
    }
    uint32_t end = b->records[best_last].above;
    list_remove(b, best_first);
    while (b->records[best_first].above != end) {
        list_remove(b, b->records[best_first].above);
        absorb_above(b, best_first);
    }
    list_insert(b, best_first);
    return best_first;
}

uint32_t ren__pool_search(ren__pool_blocks *b, uint32_t lane, uint64_t bytes)
{
    uint32_t found = find(b, lane, lane, bytes);
    if (found == NONE || is_worth_splitting(b->records[found].bytes, bytes)) {
        refresh(b);
        found = find_on_all(b, lane, bytes);
    }
    if (found == NONE) {
        found = find_on_all(b, REN__POOL_ANY, bytes);
    }
    if (found == NONE && merge_neighbours(b, 0) != 0) {
        found = find_on_all(b, lane, bytes);
    }
    if (found == NONE) {
        found = merge_run(b, lane, bytes);
    }
    if (found == NONE) {
        found = merge_run(b, REN__POOL_ANY, bytes);
    }
    if (found != NONE) {
        list_remove(b, found);
    }
    return found;
}

/* ------------------------------------------------------------------ slabs */

void ren__pool_slab_add(ren__pool_blocks *b, uint32_t index, void *ptr, uint64_t bytes,
                        uint32_t lane)
{
    ren__pool_record *r = &b->records[index];
    memset(r, 0, sizeof *r);
    r->ptr = ptr;
    r->bytes = bytes;
    r->above = NONE;
    r->lane = (uint8_t)lane;
    r->state = REN__POOL_LIVE;
    r->slab_next = b->slabs;
    b->slabs = index;
}

/* Bytes of the slab if it is wholly free, else 0. */
static uint64_t idle_bytes(const ren__pool_blocks *b, uint32_t slab, int *out_complete)
{
    uint64_t bytes = 0;
    *out_complete = 1;
    for (uint32_t i = slab; i != NONE; i = b->records[i].above) {
        if (b->records[i].state != REN__POOL_FREE) {
            return 0;
        }
        bytes += b->records[i].bytes;
        *out_complete = *out_complete && is_complete(b, &b->records[i]);
    }
    return bytes;
}

void ren__pool_slab_idle(ren__pool_blocks *b, uint64_t *out_complete, uint64_t *out_pending)
{
    refresh(b);
    *out_complete = 0;
    *out_pending = 0;
    for (uint32_t slab = b->slabs; slab != NONE; slab = b->records[slab].slab_next) {
        int complete = 0;
        uint64_t bytes = idle_bytes(b, slab, &complete);
        *(complete ? out_complete : out_pending) += bytes;
    }
}

int ren__pool_slab_remove(ren__pool_blocks *b, void **out_ptr, uint64_t *out_bytes)
{
    uint32_t *link = &b->slabs;
    for (uint32_t slab = b->slabs; slab != NONE; slab = *link) {
        int complete = 0;
        if (idle_bytes(b, slab, &complete) == 0 || !complete) {
            link = &b->records[slab].slab_next;
            continue;
        }
        *link = b->records[slab].slab_next;
        list_remove(b, slab);
        while (b->records[slab].above != NONE) {
            list_remove(b, b->records[slab].above);
            absorb_above(b, slab);
        }
        *out_ptr = b->records[slab].ptr;
        *out_bytes = b->records[slab].bytes;
        ren__pool_record_give(b, slab);
        return 1;
    }
    return 0;
}
