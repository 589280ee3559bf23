/* SPDX-License-Identifier: MIT */
/* queues/drain.c - the wheel and the turns. See drain.h.
 *
 * Threads   as drain.h says.
 * Memory    none.
 */
#include "drain.h"

#include <string.h>

#define R REN__CLASS_REALTIME
#define N REN__CLASS_NORMAL
#define B REN__CLASS_BACKGROUND

static const uint8_t wheel[REN__DRAIN_WHEEL] = {R, R, R, R, N, R, R, R, R, N, R, R, R, R, N, B};

#undef R
#undef N
#undef B

void ren__drain_init(ren__drain *d)
{
    memset(d, 0, sizeof *d);
}

static void set_mask(ren__drain *d, uint32_t job_class, uint32_t source, bool attached)
{
    uint64_t bit = UINT64_C(1) << source;
    uint64_t mask = d->mask[job_class]; /* writers hold the caller's lock */
    ck_pr_fence_release(); /* pairs with the acquire in find: pointer and ring are visible */
    ck_pr_store_64(&d->mask[job_class], attached ? mask | bit : mask & ~bit);
}

void ren__drain_set_shared(ren__drain *d, uint32_t job_class, ren__mpsc *ring)
{
    d->shared[job_class] = ring;
    set_mask(d, job_class, 0, ring != NULL);
}

void ren__drain_attach(ren__drain *d, uint32_t producer, ren__spsc *const rings[REN__CLASS_COUNT])
{
    for (uint32_t c = 0; c < REN__CLASS_COUNT; c++) {
        ck_pr_fence_release(); /* pairs with the acquire in ring_of, for a find that is under way */
        ck_pr_store_ptr(&d->rings[c][producer], rings[c]);
        set_mask(d, c, producer + 1, rings[c] != NULL);
    }
}

void ren__drain_detach(ren__drain *d, uint32_t producer)
{
    for (uint32_t c = 0; c < REN__CLASS_COUNT; c++) {
        set_mask(d, c, producer + 1, false);
        ck_pr_store_ptr(&d->rings[c][producer], NULL);
    }
}

/* NULL when the producer was detached since its bit was read. */
static ren__spsc *ring_of(ren__drain *d, uint32_t job_class, uint32_t source)
{
    ren__spsc *q = ck_pr_load_ptr(&d->rings[job_class][source - 1]);
    ck_pr_fence_acquire(); /* pairs with the release in attach */
    return q;
}

static bool has_work(ren__drain *d, uint32_t job_class, uint32_t source)
{
    if (source == 0) {
        return !ren__mpsc_is_empty(d->shared[job_class]);
    }
    const ren__spsc *q = ring_of(d, job_class, source);
    return q != NULL && !ren__spsc_is_empty(q);
}

/* The first source with work at or after `start`, in a circle; REN__DRAIN_SOURCES when none has. */
static uint32_t find(ren__drain *d, uint32_t job_class, uint32_t start)
{
    uint64_t mask = ck_pr_load_64(&d->mask[job_class]);
    ck_pr_fence_acquire(); /* pairs with the release in set_mask */
    uint64_t later = mask & (UINT64_MAX << start);
    uint64_t parts[2] = {later, mask & ~later};
    for (int i = 0; i < 2; i++) {
        for (uint64_t left = parts[i]; left != 0; left &= left - 1) {
            uint32_t source = (uint32_t)__builtin_ctzll(left);
            if (has_work(d, job_class, source)) {
                return source;
            }
        }
    }
    return REN__DRAIN_SOURCES;
}

/* Places in a row, from `place` on, that belong to `job_class`. No row passes the wheel's end. */
static uint32_t row_length(uint32_t place, uint32_t job_class)
{
    uint32_t length = 0;
    while (place + length < REN__DRAIN_WHEEL && wheel[place + length] == job_class) {
        length++;
    }
    return length;
}

uint32_t ren__drain_pop_source(ren__drain *d, uint32_t job_class, uint32_t source, void **items,
                               uint32_t max)
{
    if (source == 0) {
        ren__mpsc *q = d->shared[job_class];
        return q != NULL ? ren__mpsc_pop(q, items, max) : 0;
    }
    ren__spsc *q = ring_of(d, job_class, source);
    return q != NULL ? ren__spsc_pop(q, items, max) : 0;
}

uint32_t ren__drain_pop(ren__drain *d, void **items, uint32_t max, uint32_t *out_class,
                        uint32_t *out_source)
{
    uint32_t found[REN__CLASS_COUNT];
    uint32_t classes_with_work = 0;
    for (uint32_t c = 0; c < REN__CLASS_COUNT; c++) {
        found[c] = find(d, c, d->cursor[c]);
        classes_with_work += found[c] != REN__DRAIN_SOURCES;
    }
    if (classes_with_work == 0 || max == 0) {
        return 0;
    }
    while (found[wheel[d->place]] == REN__DRAIN_SOURCES) {
        d->place = (d->place + 1) % REN__DRAIN_WHEEL;
    }
    uint32_t job_class = wheel[d->place];
    uint32_t row = row_length(d->place, job_class);
    uint32_t limit = classes_with_work > 1 && row < max ? row : max;
    uint32_t count = ren__drain_pop_source(d, job_class, found[job_class], items, limit);
    d->place = (d->place + (count < row ? count : row)) % REN__DRAIN_WHEEL;
    d->cursor[job_class] = (found[job_class] + 1) % REN__DRAIN_SOURCES;
    *out_class = job_class;
    *out_source = found[job_class];
    return count;
}

bool ren__drain_is_empty(ren__drain *d)
{
    for (uint32_t c = 0; c < REN__CLASS_COUNT; c++) {
        if (find(d, c, 0) != REN__DRAIN_SOURCES) {
            return false;
        }
    }
    return true;
}
