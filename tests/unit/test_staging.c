/* SPDX-License-Identifier: MIT */
/* tests/unit/test_staging.c - a staging slot is never rewritten under its copy.
 *
 * Purpose   memory/staging.h. Rows 37 and 38 of the failure table: the third fill of two slots is
 *           refused until a copy is complete; the order is the same on every path, a refused post
 *           included; and a producer with a slow copier on another thread never meets a torn batch.
 */
#include "../../memory/staging.h"
#include "../support/test.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

typedef struct pinned {
    ren_status status; /* of the next alloc */
    uint64_t held;
    unsigned calls;
} pinned;

static ren_status pinned_alloc(void *user, uint64_t bytes, void **out)
{
    pinned *p = user;
    p->calls++;
    if (p->status != REN_OK) {
        return p->status;
    }
    *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    p->held += bytes;
    return REN_OK;
}

static void pinned_free(void *user, void *ptr, uint64_t bytes)
{
    pinned *p = user;
    p->held -= bytes;
    free(ptr);
}

static void begin(ren__staging *s, pinned *p, uint32_t slots, uint64_t bytes)
{
    ren__staging_upstream upstream = {pinned_alloc, pinned_free, p};
    memset(p, 0, sizeof *p);
    CU_ASSERT_EQUAL_FATAL(ren__staging_init(s, slots, bytes, &upstream), REN_OK);
}

static void end(ren__staging *s, pinned *p)
{
    ren__staging_deinit(s);
    CU_ASSERT_EQUAL(p->held, 0);
    ren__staging_deinit(s); /* a second time is fine */
}

static uint32_t must_acquire(ren__staging *s)
{
    uint32_t slot = UINT32_MAX;
    void *ptr = NULL;
    CU_ASSERT_EQUAL_FATAL(ren__staging_acquire(s, &slot, &ptr), REN_OK);
    CU_ASSERT_PTR_EQUAL(ptr, ren__staging_slot(s, slot));
    return slot;
}

static ren_status try_acquire(ren__staging *s)
{
    uint32_t slot = 0;
    void *ptr = NULL;
    return ren__staging_acquire(s, &slot, &ptr);
}

/* Proves that bad sizes and a refusing upstream are errors that keep nothing, and that slots are
 * apart and aligned. Fails if a size wraps or a slot reaches into the next. */
static void test_init_sizes(void)
{
    ren__staging s;
    pinned p;
    memset(&p, 0, sizeof p);
    ren__staging_upstream upstream = {pinned_alloc, pinned_free, &p};
    CU_ASSERT_EQUAL(ren__staging_init(&s, 0, 100, &upstream), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren__staging_init(&s, REN__STAGING_SLOTS + 1, 100, &upstream),
                    REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren__staging_init(&s, 2, 0, &upstream), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren__staging_init(&s, 2, UINT64_MAX, &upstream), REN_ERR_NO_MEMORY);
    CU_ASSERT_EQUAL(ren__staging_init(&s, 8, UINT64_MAX / 8, &upstream), REN_ERR_NO_MEMORY);
    CU_ASSERT_EQUAL(p.calls, 0);
    p.status = REN_ERR_NO_DEVICE_MEMORY;
    CU_ASSERT_EQUAL(ren__staging_init(&s, 2, 100, &upstream), REN_ERR_NO_DEVICE_MEMORY);
    ren__staging_deinit(&s);

    begin(&s, &p, REN__STAGING_SLOTS, 1000);
    CU_ASSERT_EQUAL(s.slot_bytes, 1000);
    for (uint32_t i = 0; i < REN__STAGING_SLOTS; i++) {
        unsigned char *slot = ren__staging_slot(&s, i);
        CU_ASSERT_EQUAL((uintptr_t)slot % 256, 0);
        memset(slot, (int)i, 1000);
    }
    for (uint32_t i = 0; i < REN__STAGING_SLOTS; i++) {
        const unsigned char *slot = ren__staging_slot(&s, i);
        CU_ASSERT(slot[0] == i && slot[999] == i);
    }
    end(&s, &p);
}

/* Row 37. Proves that with two slots the third fill is REN_ERR_BUSY until the first copy is
 * complete, whatever the second does, and that the slot lent then is the first. Fails if a POSTED
 * slot is lent, or if the ring skips the slot whose turn it is. */
static void test_acquire_busy_until_release(void)
{
    ren__staging s;
    pinned p;
    begin(&s, &p, 2, 64);
    uint32_t a = must_acquire(&s);
    ren__staging_commit(&s, a);
    uint32_t b = must_acquire(&s);
    CU_ASSERT_NOT_EQUAL(a, b);
    ren__staging_commit(&s, b);
    CU_ASSERT_EQUAL(try_acquire(&s), REN_ERR_BUSY);
    CU_ASSERT_EQUAL(try_acquire(&s), REN_ERR_BUSY);
    ren__staging_release(&s, b);
    CU_ASSERT_EQUAL(try_acquire(&s), REN_ERR_BUSY);
    ren__staging_release(&s, a);
    CU_ASSERT_EQUAL(must_acquire(&s), a);
    end(&s, &p);
}

/* Proves that acquire is idempotent until commit, and that a ring of one slot works. */
static void test_acquire_again(void)
{
    ren__staging s;
    pinned p;
    begin(&s, &p, 1, 64);
    CU_ASSERT_EQUAL(must_acquire(&s), 0);
    CU_ASSERT_EQUAL(must_acquire(&s), 0);
    ren__staging_commit(&s, 0);
    CU_ASSERT_EQUAL(try_acquire(&s), REN_ERR_BUSY);
    ren__staging_release(&s, 0);
    CU_ASSERT_EQUAL(must_acquire(&s), 0);
    end(&s, &p);
}

/* Proves that slots go round in order for every ring size, and that a slot released before the next
 * acquire does not change the order. Fails if the first free slot is taken instead of the next. */
static void test_order_round_the_ring(void)
{
    for (uint32_t slots = 1; slots <= REN__STAGING_SLOTS; slots++) {
        ren__staging s;
        pinned p;
        begin(&s, &p, slots, 64);
        for (uint32_t i = 0; i < 5 * slots; i++) {
            uint32_t slot = must_acquire(&s);
            CU_ASSERT_EQUAL(slot, i % slots);
            ren__staging_commit(&s, slot);
            ren__staging_release(&s, slot);
        }
        end(&s, &p);
    }
}

/* Row 38. Proves that a refused post has the same edges as any other: its slot is lent again with
 * its contents, in its turn, and counts as filled once. Fails if uncommit leaves the turn with the
 * next slot (the copies would go out of order) or the slot POSTED (it would never come back). */
static void test_uncommit_after_refused_post(void)
{
    ren__staging s;
    pinned p;
    begin(&s, &p, 2, 64);
    uint32_t a = must_acquire(&s);
    ren__staging_commit(&s, a);
    uint32_t b = must_acquire(&s);
    memcpy(ren__staging_slot(&s, b), "batch two", 10);
    for (int refused = 0; refused < 3; refused++) {
        ren__staging_commit(&s, b);
        ren__staging_uncommit(&s, b);
        CU_ASSERT_EQUAL(must_acquire(&s), b);
        CU_ASSERT_STRING_EQUAL((const char *)ren__staging_slot(&s, b), "batch two");
    }
    ren__staging_commit(&s, b);
    CU_ASSERT_EQUAL(try_acquire(&s), REN_ERR_BUSY);
    ren__staging_release(&s, a);
    CU_ASSERT_EQUAL(must_acquire(&s), a);
    ren__staging_commit(&s, a);
    ren__staging_release(&s, b);
    CU_ASSERT_EQUAL(must_acquire(&s), b);
    end(&s, &p);
}

/* ------------------------------------------------------------------ two threads */

enum {
    SLOTS = 3,
    WORDS = 64
};

typedef struct copier {
    ren__staging *staging;
    _Atomic uint64_t posted; /* batches handed to the copier; slot = (batch - 1) % SLOTS */
    uint64_t batches;
    uint64_t torn;
} copier;

static void *copier_run(void *arg)
{
    copier *c = arg;
    for (uint64_t batch = 1; batch <= c->batches; batch++) {
        /* Acquire, pairs with the producer's release: the batch is written before it is read. */
        while (atomic_load_explicit(&c->posted, memory_order_acquire) < batch) {
            sched_yield();
        }
        uint32_t slot = (uint32_t)((batch - 1) % SLOTS);
        const uint64_t *words = ren__staging_slot(c->staging, slot);
        for (int i = 0; i < WORDS; i++) {
            c->torn += words[i] != batch;
            if (i == WORDS / 2 && batch % 64 == 0) {
                sched_yield(); /* the producer has its chance to write too early */
            }
        }
        ren__staging_release(c->staging, slot);
    }
    return NULL;
}

/* Row 37 with two threads. Proves that every batch reaches the copier whole and in order while the
 * producer refills as fast as it is let. Fails by a torn batch, or by a ThreadSanitizer report if
 * release and acquire do not pair. */
static void test_two_threads(void)
{
    static copier c;
    ren__staging s;
    pinned p;
    pthread_t thread;
    begin(&s, &p, SLOTS, WORDS * sizeof(uint64_t));
    memset(&c, 0, sizeof c);
    c.staging = &s;
    c.batches = 200000 / ren_test_slowdown();
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, copier_run, &c), 0);
    uint64_t wrong_slots = 0;
    for (uint64_t batch = 1; batch <= c.batches; batch++) {
        uint32_t slot = 0;
        void *ptr = NULL;
        while (ren__staging_acquire(&s, &slot, &ptr) == REN_ERR_BUSY) {
            sched_yield();
        }
        wrong_slots += slot != (batch - 1) % SLOTS;
        uint64_t *words = ptr;
        for (int i = 0; i < WORDS; i++) {
            words[i] = batch;
        }
        ren__staging_commit(&s, slot);
        if (batch % 1000 == 0) { /* the post is refused now and then */
            ren__staging_uncommit(&s, slot);
            ren__staging_commit(&s, slot);
        }
        atomic_store_explicit(&c.posted, batch, memory_order_release);
    }
    pthread_join(thread, NULL);
    CU_ASSERT_EQUAL(c.torn, 0);
    CU_ASSERT_EQUAL(wrong_slots, 0);
    end(&s, &p);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_init_sizes", test_init_sizes},
        {"test_acquire_busy_until_release", test_acquire_busy_until_release},
        {"test_acquire_again", test_acquire_again},
        {"test_order_round_the_ring", test_order_round_the_ring},
        {"test_uncommit_after_refused_post", test_uncommit_after_refused_post},
        {"test_two_threads", test_two_threads},
    };
    return ren_test_main(argc, argv, "test_staging", cases, REN_TEST_COUNT(cases), 60);
}
