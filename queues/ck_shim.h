/* SPDX-License-Identifier: MIT */
/* queues/ck_shim.h - the one door to Concurrency Kit, and what replaces it under ThreadSanitizer.
 *
 * Purpose   queues/ stands on ck's ring layout, its atomic primitives (ck_pr) and its event count.
 *           Those primitives are assembly, which ThreadSanitizer cannot see: it would report races
 *           that are none and miss races that are. Under REN_TSAN the same names are given here by
 *           compiler atomics, so that the sanitizer checks how libren uses the rings. It does not
 *           check ck's own fences; the model in tests/model does that part.
 * Order     In the real build a ck_pr load or store is relaxed and a ck_pr fence orders it. Under
 *           REN_TSAN every load is an acquire, every store a release, every read-modify-write
 *           sequentially consistent, and the fences between them are empty. That is at least as
 *           strong wherever queues/ pairs a fence with the access beside it. The one fence that
 *           stands alone, ren__full_fence, becomes a read-modify-write of one shared word, which
 *           has the same strength between all threads that use it.
 * Threads   any.
 * Not here  any policy; see ring.h, doorbell.h, index_stack.h and list.h for who pairs with whom.
 */
#ifndef REN_QUEUES_CK_SHIM_H
#define REN_QUEUES_CK_SHIM_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#if !defined(REN_TSAN)
#if defined(__SANITIZE_THREAD__)
#define REN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define REN_TSAN 1
#endif
#endif
#endif

#if defined(REN_TSAN)

#define CK_PR_H /* ck_ring.h and ck_ec.h find their primitives here instead */

static inline void ck_pr_stall(void)
{
}

static inline void ck_pr_fence_load(void)
{
}

static inline void ck_pr_fence_store(void)
{
}

static inline void ck_pr_fence_store_atomic(void)
{
}

static inline void ck_pr_fence_acquire(void)
{
}

static inline void ck_pr_fence_release(void)
{
}

static inline unsigned int ck_pr_load_uint(const unsigned int *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void ck_pr_store_uint(unsigned int *p, unsigned int v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline bool ck_pr_cas_uint(unsigned int *p, unsigned int old, unsigned int v)
{
    return __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline bool ck_pr_cas_uint_value(unsigned int *p, unsigned int old, unsigned int v,
                                        unsigned int *out_seen)
{
    *out_seen = old;
    return __atomic_compare_exchange_n(p, out_seen, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline uint32_t ck_pr_load_32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void ck_pr_store_32(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline uint32_t ck_pr_faa_32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}

static inline uint64_t ck_pr_load_64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void ck_pr_store_64(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline bool ck_pr_cas_64_value(uint64_t *p, uint64_t old, uint64_t v, uint64_t *out_seen)
{
    *out_seen = old;
    return __atomic_compare_exchange_n(p, out_seen, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline void *ck_pr_load_ptr(const void *p)
{
    return __atomic_load_n((void *const *)p, __ATOMIC_ACQUIRE);
}

static inline void ck_pr_store_ptr(void *p, const void *v)
{
    __atomic_store_n((const void **)p, v, __ATOMIC_RELEASE);
}

static inline bool ck_pr_cas_ptr_value(void *p, void *old, void *v, void *out_seen)
{
    void *seen = old;
    bool done = __atomic_compare_exchange_n((void **)p, &seen, v, false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST);
    *(void **)out_seen = seen;
    return done;
}

static inline void *ck_pr_fas_ptr(void *p, void *v)
{
    return __atomic_exchange_n((void **)p, v, __ATOMIC_SEQ_CST);
}

#else

#include <ck_pr.h>

#endif /* REN_TSAN */

#include <ck_ec.h>
#include <ck_ring.h>

/* Everything before it, loads and stores, is ordered before everything after it, at all threads.
 * `word` is any 32-bit word that both sides of the pairing name: the sanitizer's build has no
 * fences and makes the pairing visible there. On x86-64 a locked instruction on the thread's own
 * stack does the work of mfence in less time (see doorbell.h for figures). */
static inline void ren__full_fence(uint32_t *word)
{
#if defined(REN_TSAN)
    (void)__atomic_fetch_add(word, 0u, __ATOMIC_SEQ_CST);
#elif defined(__x86_64__)
    (void)word;
    __asm__ __volatile__("lock; orq $0, (%%rsp)" ::: "memory", "cc");
#else
    (void)word;
    ck_pr_fence_memory();
#endif
}

#endif
