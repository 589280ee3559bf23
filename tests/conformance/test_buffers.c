/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_buffers.c - device memory in stream order, through ren.h alone.
 *
 * Proves    memory freed under running work is not handed out unordered, whatever streams
 *           allocate, use and reuse it (failures A1 rows 1, 2, 3, 8); a double buffer keeps its
 *           stamps (row 37); a stream that is stuck is in nobody's way (row 59); running out is
 *           reported as the kind that it is.
 * Oracle    every buffer is filled with a value of its own on one stream, read back on another,
 *           freed at once, and its memory is soon another buffer's. A reuse that is not ordered
 *           behind the read shows as another buffer's value in the copy. Streams are held by
 *           injected delays.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define SECOND UINT64_C(1000000000)
#define BYTES  4096u

static ren_runtime *rt;

static void post_ok(const ren_job_desc *desc)
{
    ren_status status;
    while ((status = ren_post(rt, desc, NULL)) == REN_ERR_QUEUE_FULL) {
        (void)sched_yield();
    }
    CU_ASSERT_EQUAL(status, REN_OK);
}

static ren_buffer take(ren_stream stream, uint64_t bytes)
{
    ren_buffer buffer = {0};
    ren_status status;
    while ((status = ren_buffer_alloc(rt, stream, bytes, &buffer)) == REN_ERR_BUSY) {
        (void)sched_yield(); /* a freed buffer's job is not issued yet */
    }
    CU_ASSERT_EQUAL(status, REN_OK);
    return buffer;
}

static void fill(ren_stream stream, ren_buffer buffer, uint32_t value)
{
    ren_job_desc d = ren_job_desc_default();
    d.kind = REN_JOB_FILL;
    d.stream = stream;
    d.fill.dst.buffer = buffer;
    d.fill.value = value;
    d.fill.bytes = BYTES;
    post_ok(&d);
}

static void copy(ren_stream stream, ren_buffer from, ren_buffer to, void *host)
{
    ren_job_desc d = ren_job_desc_default();
    d.kind = REN_JOB_COPY;
    d.stream = stream;
    d.copy.src.buffer = from;
    d.copy.dst.buffer = to;
    d.copy.dst.host = host;
    d.copy.bytes = BYTES;
    post_ok(&d);
}

static int wrong_bytes(const unsigned char *p, uint32_t value)
{
    int wrong = 0;
    for (uint32_t i = 0; i < BYTES; i++) {
        wrong += p[i] != value;
    }
    return wrong;
}

static int unpinned;

/* Pool memory for four buffers only, so that every allocation reuses what was just freed. */
static void open_small(void)
{
    ren_runtime_config config = ren_test_config();
    config.device_memory_limit_bytes = 8u << 20;
    ren_error err;
    if (unpinned) {
        ren_test_unpinned_next();
    }
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&config, &rt, &err), REN_OK);
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 4 * BYTES), REN_OK);
}

/* Row 1: a copy out under delay; the memory is freed and overwritten at once on its own stream. */
static void test_reuse_waits_for_a_delayed_copy(void)
{
    ren_buffer none = {0};
    unsigned char *out = malloc(BYTES);
    open_small();
    ren_test_delay(rt, REN_STREAM_TRANS, 50);
    ren_buffer first = take(REN_STREAM_COMP_1, BYTES);
    fill(REN_STREAM_COMP_1, first, 11);
    copy(REN_STREAM_TRANS, first, none, out);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, first), REN_OK);
    for (uint32_t i = 0; i < 8; i++) {
        ren_buffer next = take(REN_STREAM_COMP_1, BYTES);
        fill(REN_STREAM_COMP_1, next, 200 + i);
        CU_ASSERT_EQUAL(ren_buffer_free(rt, next), REN_OK);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 30 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(wrong_bytes(out, 11), 0);
    ren_test_shutdown(rt);
    free(out);
}

/* Row 2: all pairs (allocated on, used on) and all triples with a third stream that takes
 * it next. */
static void test_reuse_over_all_streams(void)
{
    enum {
        CASES = REN_STREAM_COUNT * REN_STREAM_COUNT * REN_STREAM_COUNT
    };
    unsigned char *out = malloc((size_t)CASES * BYTES);
    ren_buffer none = {0};
    int bad = 0;
    int n = 0;
    open_small();
    ren_test_poison(rt, 1);
    for (int s = 0; s < REN_STREAM_COUNT; s++) {
        ren_test_delay(rt, (uint32_t)s, s % 2 ? 2 : 1);
    }
    for (int a = 0; a < REN_STREAM_COUNT; a++) {
        for (int b = 0; b < REN_STREAM_COUNT; b++) {
            for (int c = 0; c < REN_STREAM_COUNT; c++, n++) {
                ren_buffer one = take((ren_stream)a, BYTES);
                fill((ren_stream)a, one, (uint32_t)n);
                copy((ren_stream)b, one, none, out + (size_t)n * BYTES);
                CU_ASSERT_EQUAL(ren_buffer_free(rt, one), REN_OK);
                ren_buffer two = take((ren_stream)c, BYTES);
                fill((ren_stream)c, two, 255);
                CU_ASSERT_EQUAL(ren_buffer_free(rt, two), REN_OK);
            }
        }
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 60 * SECOND), REN_OK);
    for (int i = 0; i < n; i++) {
        bad += wrong_bytes(out + (size_t)i * BYTES, (uint32_t)i);
    }
    CU_ASSERT_EQUAL(bad, 0);
    ren_test_shutdown(rt);
    free(out);
}

/* Random programs over eight buffers, replayed by a serial model. */
static void test_random_programs_equal_a_serial_run(void)
{
    enum {
        BUFFERS = 8,
        OPS = 400
    };
    unsigned programs = 20 / ren_test_slowdown() + 2;
    unsigned long long seed = 99;
    ren_buffer none = {0};
    unsigned char *out = malloc((size_t)OPS * BYTES);
    for (unsigned p = 0; p < programs; p++) {
        ren_buffer buffers[BUFFERS];
        uint32_t model[BUFFERS];
        uint32_t want[OPS];
        int reads = 0;
        int bad = 0;
        open_small();
        for (int s = 0; s < REN_STREAM_COUNT; s++) {
            ren_test_delay(rt, (uint32_t)s, ren_test_random(&seed) % 4 == 0);
        }
        for (int i = 0; i < BUFFERS; i++) {
            buffers[i] = take((ren_stream)(i % REN_STREAM_COUNT), BYTES);
            model[i] = (uint32_t)i;
            fill((ren_stream)(i % REN_STREAM_COUNT), buffers[i], model[i]);
        }
        for (int op = 0; op < OPS; op++) {
            ren_stream stream = (ren_stream)(ren_test_random(&seed) % REN_STREAM_COUNT);
            int i = (int)(ren_test_random(&seed) % BUFFERS);
            int k = (int)(ren_test_random(&seed) % BUFFERS);
            switch (ren_test_random(&seed) % 4) {
            case 0:
                model[i] = (uint32_t)(ren_test_random(&seed) % 256);
                fill(stream, buffers[i], model[i]);
                break;
            case 1:
                if (i != k) {
                    model[k] = model[i];
                    copy(stream, buffers[i], buffers[k], NULL);
                }
                break;
            case 2:
                want[reads] = model[i];
                copy(stream, buffers[i], none, out + (size_t)reads * BYTES);
                reads++;
                break;
            default:
                CU_ASSERT_EQUAL(ren_buffer_free(rt, buffers[i]), REN_OK);
                buffers[i] = take(stream, BYTES);
                model[i] = (uint32_t)(ren_test_random(&seed) % 256);
                fill((ren_stream)(ren_test_random(&seed) % REN_STREAM_COUNT), buffers[i], model[i]);
                break;
            }
        }
        CU_ASSERT_EQUAL(ren_runtime_drain(rt, 60 * SECOND), REN_OK);
        for (int r = 0; r < reads; r++) {
            bad += wrong_bytes(out + (size_t)r * BYTES, want[r]);
        }
        CU_ASSERT_EQUAL(bad, 0);
        ren_test_shutdown(rt);
    }
    free(out);
}

/* The three cases above where a copy from or to host memory is made by a completion thread. */
static void test_host_copies_keep_every_order(void)
{
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_skip("the memory of these tests is not pinned on this device in any case");
        return;
    }
    unpinned = 1;
    test_reuse_waits_for_a_delayed_copy();
    test_reuse_over_all_streams();
    test_random_programs_equal_a_serial_run();
    unpinned = 0;
}

/* Row 8: in steady state the driver is not asked. */
static void test_steady_state_asks_the_driver_nothing(void)
{
    ren_stats before = ren_stats_default();
    ren_stats after = ren_stats_default();
    rt = ren_test_runtime(NULL);
    for (int round = 0; round < 1000; round++) {
        ren_buffer a = take(REN_STREAM_COMP_1, 100000);
        ren_buffer b = take(REN_STREAM_COMP_2, 5000);
        fill(REN_STREAM_COMP_1, a, 1);
        fill(REN_STREAM_COMP_3, b, 2);
        CU_ASSERT_EQUAL(ren_buffer_free(rt, a), REN_OK);
        CU_ASSERT_EQUAL(ren_buffer_free(rt, b), REN_OK);
        if (round == 2) {
            (void)ren_runtime_stats(rt, &before);
        }
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 30 * SECOND), REN_OK);
    (void)ren_runtime_stats(rt, &after);
    CU_ASSERT_EQUAL(before.pool_driver_allocs, after.pool_driver_allocs);
    CU_ASSERT_EQUAL(before.pool_driver_frees, after.pool_driver_frees);
    CU_ASSERT_EQUAL(after.pool_bytes_in_use, 0);
    ren_test_shutdown(rt);
}

/* Row 59: a stream is stuck, and buffers are taken, used and freed all the while, also those that
 * the stuck stream uses and its own. Hangs if a call waits for the device, as a driver's free
 * would. */
static void test_alloc_and_free_beside_a_stuck_stream(void)
{
    enum {
        ROUNDS = 200
    };
    ren_stats before = ren_stats_default();
    ren_stats after = ren_stats_default();
    ren_job_desc d = ren_job_desc_default();
    ren_buffer none = {0};
    ren_buffer used[8];
    ren_job stuck = {0};
    unsigned char *out = malloc((size_t)ROUNDS * BYTES);
    CU_ASSERT_PTR_NOT_NULL_FATAL(out);
    int bad = 0;
    rt = ren_test_runtime(NULL);
    /* Once without: what the device does when it does it first may wait for all of it. */
    for (int s = 0; s < REN_STREAM_COUNT; s++) {
        used[0] = take((ren_stream)s, BYTES);
        used[1] = take((ren_stream)s, BYTES);
        fill((ren_stream)s, used[0], 1);
        copy((ren_stream)s, used[0], used[1], NULL);
        copy((ren_stream)s, used[0], none, out + (size_t)s * BYTES);
        CU_ASSERT_EQUAL(ren_buffer_free(rt, used[0]), REN_OK);
        CU_ASSERT_EQUAL(ren_buffer_free(rt, used[1]), REN_OK);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 30 * SECOND), REN_OK);
    (void)ren_runtime_stats(rt, &before);
    ren_test_hold(rt, REN_STREAM_COMP_3);
    for (size_t i = 0; i < REN_TEST_COUNT(used); i++) {
        used[i] = take(REN_STREAM_COMP_3, BYTES);
        fill(REN_STREAM_COMP_3, used[i], 3);
    }
    d.kind = REN_JOB_BARRIER;
    d.stream = REN_STREAM_COMP_3;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &stuck), REN_OK);
    for (int round = 0; round < ROUNDS; round++) {
        static const ren_stream others[] = {REN_STREAM_COMP_1, REN_STREAM_COMP_2, REN_STREAM_UPDATE,
                                            REN_STREAM_TRANS};
        ren_stream first = others[round % 4];
        ren_stream second = others[round / 4 % 4];
        ren_buffer a = take(first, BYTES);
        ren_buffer b = take(second, BYTES);
        ren_buffer own = take(REN_STREAM_COMP_3, BYTES);
        fill(first, a, (uint32_t)round);
        copy(second, a, b, NULL);
        copy(first, b, none, out + (size_t)round * BYTES);
        fill(REN_STREAM_COMP_3, own, 4);
        CU_ASSERT_EQUAL(ren_buffer_free(rt, a), REN_OK);
        CU_ASSERT_EQUAL(ren_buffer_free(rt, b), REN_OK);
        CU_ASSERT_EQUAL(ren_buffer_free(rt, own), REN_OK);
        if (round < (int)REN_TEST_COUNT(used)) {
            CU_ASSERT_EQUAL(ren_buffer_free(rt, used[round]), REN_OK);
        }
    }
    for (int s = 0; s < REN_STREAM_COUNT; s++) { /* all but the stuck one come to their ends */
        ren_job last = {0};
        d.stream = (ren_stream)s;
        if (s != REN_STREAM_COMP_3) {
            CU_ASSERT_EQUAL(ren_post(rt, &d, &last), REN_OK);
            CU_ASSERT_EQUAL(ren_wait(rt, last, 30 * SECOND), REN_OK);
        }
    }
    CU_ASSERT_EQUAL(ren_job_status(rt, stuck), REN_PENDING);
    for (int round = 0; round < ROUNDS; round++) {
        bad += wrong_bytes(out + (size_t)round * BYTES, (uint32_t)round) != 0;
    }
    CU_ASSERT_EQUAL(bad, 0);
    (void)ren_runtime_stats(rt, &after);
    CU_ASSERT_EQUAL(before.pool_driver_allocs, after.pool_driver_allocs);
    CU_ASSERT_EQUAL(before.pool_driver_frees, after.pool_driver_frees);
    ren_test_release(rt, REN_STREAM_COMP_3);
    CU_ASSERT_EQUAL(ren_wait(rt, stuck, 30 * SECOND), REN_OK);
    ren_test_shutdown(rt);
    free(out);
}

static void test_alloc_says_what_is_missing(void)
{
    ren_runtime_config config = ren_test_config();
    ren_buffer buffer = {5};
    ren_buffer held[8];
    int n = 0;
    config.device_memory_limit_bytes = 8u << 20;
    config.max_buffers = 4;
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&config, &rt, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &buffer), REN_ERR_WOULD_GROW);
    CU_ASSERT_EQUAL(buffer.id, 0);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_TRANS, 0, &buffer), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COUNT, 64, &buffer), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 64u << 20), REN_ERR_NO_DEVICE_MEMORY);
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 4u << 20), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_TRANS, 16u << 20, &buffer),
                    REN_ERR_NO_DEVICE_MEMORY);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_TRANS, UINT64_MAX, &buffer),
                    REN_ERR_NO_DEVICE_MEMORY);
    while (n < 8 && ren_buffer_alloc(rt, REN_STREAM_COMP_1, 64, &held[n]) == REN_OK) {
        n++;
    }
    CU_ASSERT_EQUAL(n, 4);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COMP_1, 64, &buffer), REN_ERR_QUEUE_FULL);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, held[0]), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COMP_1, 64, &buffer), REN_OK);
    buffer.id ^= UINT64_C(1) << 22;
    CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_ERR_INVALID_ARGUMENT);
    ren_test_shutdown(rt); /* live buffers go with the runtime */
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_reuse_waits_for_a_delayed_copy", test_reuse_waits_for_a_delayed_copy},
        {"test_reuse_over_all_streams", test_reuse_over_all_streams},
        {"test_random_programs_equal_a_serial_run", test_random_programs_equal_a_serial_run},
        {"test_host_copies_keep_every_order", test_host_copies_keep_every_order},
        {"test_steady_state_asks_the_driver_nothing", test_steady_state_asks_the_driver_nothing},
        {"test_alloc_and_free_beside_a_stuck_stream", test_alloc_and_free_beside_a_stuck_stream},
        {"test_alloc_says_what_is_missing", test_alloc_says_what_is_missing},
    };
    return ren_test_main(argc, argv, "test_buffers", cases, REN_TEST_COUNT(cases), 180);
}
