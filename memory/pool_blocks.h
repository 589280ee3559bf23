/* SPDX-License-Identifier: MIT */
/* memory/pool_blocks.h - the pool's book of blocks: which piece of which slab is free, behind what.
 *
 * Purpose   The half of the pool that is pure bookkeeping: block records, free lists by lane and
 *           size, search, split, merge, slabs. pool.c holds the lock, the ledger and the upstream.
 * Threads   None of its own: every call is made with the pool's lock held.
 * Progress  Taking an exact fit from the own lane, and freeing: constant time. A search that finds
 *           only blocks that wait for other lanes, and every merge: the number of blocks.
 * Memory    One array of records, made at create. Records name each other by index.
 * Units     Sizes in bytes, always multiples of REN__POOL_GRAIN.
 *
 * A block is UNUSED (its record is on the spare chain), FREE (on one free list), or LIVE (handed
 * out, or in the hands of the code that is about to). The blocks of a slab form a chain in address
 * order; the record of the lowest one stands for the slab as long as the slab lives, since merging
 * keeps the left record and splitting gives the new record to the right part.
 *
 * A free list belongs to a lane and a size class: sizes up to 15 grains have their own class,
 * larger ones share eight classes per power of two. A bitmap of classes in use makes the search for
 * the next larger one a few words of scanning.
 */
#ifndef REN_MEMORY_POOL_BLOCKS_H
#define REN_MEMORY_POOL_BLOCKS_H

#include "pool.h"

#define REN__POOL_GRAIN   256u
#define REN__POOL_CLASSES 448u /* 8 per power of two, up to 2^64 bytes */
#define REN__POOL_WORDS   (REN__POOL_CLASSES / 64u)
#define REN__POOL_NONE    UINT32_MAX
#define REN__POOL_ANY     UINT32_MAX /* in place of a lane: behind whatever fence */

typedef enum ren__pool_state {
    REN__POOL_UNUSED = 0,
    REN__POOL_FREE = 1,
    REN__POOL_LIVE = 2
} ren__pool_state;

typedef struct ren__pool_record {
    ren__fence fence; /* of FREE and LIVE blocks: what earlier users have left under way */
    unsigned char *ptr;
    uint64_t bytes;
    uint32_t above; /* next block of the slab, by address */
    uint32_t list_prev, list_next;
    uint32_t slab_next; /* of the lowest block: the next slab */
    uint16_t size_class;
    uint8_t lane;
    uint8_t state;
    uint8_t waits; /* bit m: fence.seq[m] is not 0 */
} ren__pool_record;

typedef struct ren__pool_lists {
    uint64_t used[REN__POOL_WORDS]; /* bit c: class c is not empty */
    uint32_t head[REN__POOL_CLASSES];
} ren__pool_lists;

typedef struct ren__pool_blocks {
    ren__pool_upstream upstream;
    ren__pool_record *records;
    uint64_t done[REN__POOL_LANES]; /* newest completed batch seen, by lane */
    uint32_t lanes;
    uint32_t max_blocks;
    uint32_t spare; /* chain of UNUSED records, through list_next */
    uint32_t slabs; /* chain of slabs, through slab_next */
    ren__pool_lists lists[REN__POOL_LANES];
} ren__pool_blocks;

void ren__pool_blocks_init(ren__pool_blocks *b, uint32_t lanes, ren__pool_record *records,
                           uint32_t max_blocks, const ren__pool_upstream *upstream);

/* An UNUSED record, taken off the spare chain, or REN__POOL_NONE. */
uint32_t ren__pool_record_take(ren__pool_blocks *b);
void ren__pool_record_give(ren__pool_blocks *b, uint32_t index);

/* Records a slab as one LIVE block without a fence, under a record taken before. */
void ren__pool_slab_add(ren__pool_blocks *b, uint32_t index, void *ptr, uint64_t bytes,
                        uint32_t lane);

/* Forgets a slab that is wholly free and complete, and says where it was; 0 when there is none. */
int ren__pool_slab_remove(ren__pool_blocks *b, void **out_ptr, uint64_t *out_bytes);

/* Bytes of the slabs that are wholly free: complete, and behind some fence. */
void ren__pool_slab_idle(ren__pool_blocks *b, uint64_t *out_complete, uint64_t *out_pending);

/* LIVE -> FREE, behind max(its fence, uses). uses may be NULL. */
void ren__pool_put(ren__pool_blocks *b, uint32_t index, uint32_t lane, const ren__fence *uses);

/* A block of at least `bytes`, FREE -> LIVE, not split; REN__POOL_NONE when there is none. It tries
 * steps 1 to 3 of pool.h in order. */
uint32_t ren__pool_search(ren__pool_blocks *b, uint32_t lane, uint64_t bytes);

/* Cut a LIVE block down to `bytes` and put the rest on the free lists. 0 when that needs a record
 * and there is none; nothing was changed then. */
int ren__pool_split(ren__pool_blocks *b, uint32_t index, uint64_t bytes);

/* Set entries of the fence that are complete to 0. */
void ren__pool_prune(ren__pool_blocks *b, ren__pool_record *r);

#endif
