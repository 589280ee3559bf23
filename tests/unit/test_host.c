/* SPDX-License-Identifier: MIT */
/* tests/unit/test_host.c - host memory comes from the host's hooks, zeroed, aligned and balanced.
 *
 * Purpose   memory/host.h over the default allocator and over hooks that count, dirty what they
 *           hand out, and refuse.
 */
#include "../../memory/host.h"
#include "../support/test.h"

#include <stdlib.h>
#include <string.h>

typedef struct hooks {
    unsigned allocs, frees;
    size_t held, last_bytes, last_align;
    int refuse;
} hooks;

static void *hooks_alloc(void *user, size_t bytes, size_t align)
{
    hooks *h = user;
    h->last_bytes = bytes;
    h->last_align = align;
    if (h->refuse) {
        return NULL;
    }
    void *ptr = aligned_alloc(align, (bytes + align - 1) / align * align);
    memset(ptr, 0xa5, bytes);
    h->allocs++;
    h->held += bytes;
    return ptr;
}

static void hooks_free(void *user, void *ptr, size_t bytes)
{
    hooks *h = user;
    h->frees++;
    h->held -= bytes;
    free(ptr);
}

static int is_zero(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i]) {
            return 0;
        }
    }
    return 1;
}

/* Proves that memory from the default allocator and from dirty hooks is zeroed and 64-byte aligned,
 * for sizes around the alignment. Fails if zeroing is left to the allocator. */
static void test_calloc_zeroed_and_aligned(void)
{
    static const size_t sizes[] = {1, 63, 64, 65, 4095, 100001};
    hooks h = {0, 0, 0, 0, 0, 0};
    ren_allocator hooked = {sizeof hooked, hooks_alloc, hooks_free, &h};
    for (int with_hooks = 0; with_hooks < 2; with_hooks++) {
        ren__host_allocator a = ren__host_allocator_make(with_hooks ? &hooked : NULL);
        for (size_t i = 0; i < REN_TEST_COUNT(sizes); i++) {
            unsigned char *ptr = ren__host_calloc(&a, 3, sizes[i]);
            CU_ASSERT_PTR_NOT_NULL_FATAL(ptr);
            CU_ASSERT_EQUAL((uintptr_t)ptr % 64, 0);
            CU_ASSERT(is_zero(ptr, 3 * sizes[i]));
            memset(ptr, 1, 3 * sizes[i]);
            ren__host_free(&a, ptr, 3, sizes[i]);
        }
    }
    CU_ASSERT_EQUAL(h.allocs, REN_TEST_COUNT(sizes));
    CU_ASSERT_EQUAL(h.frees, REN_TEST_COUNT(sizes));
}

/* Proves that free gets the size that alloc got, so that a host's count comes back to 0, and that
 * the alignment is one the contract allows. */
static void test_hooks_balanced(void)
{
    hooks h = {0, 0, 0, 0, 0, 0};
    ren_allocator hooked = {sizeof hooked, hooks_alloc, hooks_free, &h};
    ren__host_allocator a = ren__host_allocator_make(&hooked);
    void *first = ren__host_calloc(&a, 7, 24);
    CU_ASSERT_EQUAL(h.last_bytes, 7 * 24);
    CU_ASSERT_EQUAL(h.last_align, 64);
    void *second = ren__host_calloc(&a, 1, 1);
    ren__host_free(&a, first, 7, 24);
    CU_ASSERT_EQUAL(h.held, 1);
    ren__host_free(&a, second, 1, 1);
    CU_ASSERT_EQUAL(h.held, 0);
    ren__host_free(&a, NULL, 7, 24);
    CU_ASSERT_EQUAL(h.frees, 2);
}

/* Proves that a refusal, an empty request and a product that wraps give NULL, the last two without
 * asking the hooks. Fails if 2^63 elements of 2 bytes become a request of 0. */
static void test_calloc_refused(void)
{
    hooks h = {0, 0, 0, 0, 0, 1};
    ren_allocator hooked = {sizeof hooked, hooks_alloc, hooks_free, &h};
    ren__host_allocator a = ren__host_allocator_make(&hooked);
    CU_ASSERT_PTR_NULL(ren__host_calloc(&a, 2, 8));
    CU_ASSERT_EQUAL(h.last_bytes, 16);
    h.refuse = 0;
    CU_ASSERT_PTR_NULL(ren__host_calloc(&a, 0, 8));
    CU_ASSERT_PTR_NULL(ren__host_calloc(&a, 8, 0));
    CU_ASSERT_PTR_NULL(ren__host_calloc(&a, SIZE_MAX / 2 + 1, 2));
    CU_ASSERT_PTR_NULL(ren__host_calloc(&a, 3, SIZE_MAX / 2));
    CU_ASSERT_EQUAL(h.allocs, 0);
    ren__host_allocator standard = ren__host_allocator_make(NULL);
    CU_ASSERT_PTR_NULL(ren__host_calloc(&standard, SIZE_MAX, 1));
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_calloc_zeroed_and_aligned", test_calloc_zeroed_and_aligned},
        {"test_hooks_balanced", test_hooks_balanced},
        {"test_calloc_refused", test_calloc_refused},
    };
    return ren_test_main(argc, argv, "test_host", cases, REN_TEST_COUNT(cases), 20);
}
