/* SPDX-License-Identifier: MIT */
/* tests/fault/test_misuse.c - every bad argument of the calls on runtimes, jobs and buffers.
 *
 * Proves    each call answers each misuse with the error that ren.h names, wherever it is made:
 *           on a working runtime, on one that is closed, on one whose device is lost, in a forked
 *           child, and from inside callbacks; nothing is posted by it and no callback runs.
 * Fails by  a row whose answer is another one; the row is printed.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../libren/core/runtime.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define SECOND UINT64_C(1000000000)
#define NEVER  REN_TIMEOUT_INFINITE

static ren_runtime *rt;
static atomic_int callbacks;
static atomic_int wrong_rows;

static void row(int line, const char *what, ren_status got, ren_status want)
{
    if (got != want) {
        (void)fprintf(stderr, "line %d: %s: %s, not %s\n", line, what, ren_status_name(got),
                      ren_status_name(want));
        atomic_fetch_add(&wrong_rows, 1);
    }
}

#define ROW(call, want) row(__LINE__, #call, (call), (want))
#define BAD             REN_ERR_INVALID_ARGUMENT

static void finish_rows(void)
{
    CU_ASSERT_EQUAL(atomic_exchange(&wrong_rows, 0), 0);
}

static void count_callback(const ren_completion *completion, void *user)
{
    (void)completion;
    (void)user;
    atomic_fetch_add(&callbacks, 1);
}

static void do_nothing(void *user)
{
    (void)user;
}

static ren_status enqueue_nothing(void *user, const ren_device_io *io)
{
    (void)user;
    (void)io;
    return REN_OK;
}

static void wait_for_gate(void *user)
{
    while (sem_wait(user) != 0) {
    }
}

/* ------------------------------------------------------------------ NULL */

static void test_every_call_with_null(void)
{
    ren_job_desc d = ren_job_desc_default();
    ren_stats stats = ren_stats_default();
    ren_producer *out = NULL;
    ren_producer *mine = NULL;
    ren_buffer buffer = {0};
    ren_job job = {0};
    ren_error err;
    uint64_t value = 0;
    rt = ren_test_runtime(NULL);
    d.kind = REN_JOB_BARRIER;
    ROW(ren_runtime_create(NULL, NULL, &err), BAD);
    ROW(ren_runtime_create(NULL, NULL, NULL), BAD);
    ROW(ren_runtime_close(NULL), BAD);
    ROW(ren_runtime_drain(NULL, 0), BAD);
    ROW(ren_runtime_abort(NULL), BAD);
    ROW(ren_runtime_destroy(NULL), REN_OK);
    ROW(ren_runtime_shutdown(NULL, 0), REN_OK);
    ROW(ren_runtime_status(NULL, &err), BAD);
    ROW(ren_runtime_status(NULL, NULL), BAD);
    ROW(ren_runtime_status(rt, NULL), REN_OK);
    ROW(ren_runtime_stats(NULL, &stats), BAD);
    ROW(ren_runtime_stats(rt, NULL), BAD);
    ROW(ren_runtime_tick(NULL, 0, NULL), BAD);
    ROW(ren_post(NULL, &d, &job), BAD);
    ROW(ren_post(rt, NULL, &job), BAD);
    ROW(ren_post(NULL, NULL, NULL), BAD);
    ROW(ren_producer_register(NULL, &out), BAD);
    ROW(ren_producer_register(rt, NULL), BAD);
    ROW(ren_producer_register(rt, &mine), REN_OK);
    ROW(ren_producer_post(NULL, &d, &job), BAD);
    ROW(ren_producer_post(mine, NULL, &job), BAD);
    ROW(ren_producer_release(NULL), REN_OK);
    ROW(ren_producer_release(mine), REN_OK);
    ROW(ren_producer_release(mine), REN_ERR_STALE); /* and the runtime can still be destroyed */
    ROW(ren_wait(NULL, job, 0), BAD);
    ROW(ren_cancel(NULL, job), BAD);
    ROW(ren_job_status(NULL, job), BAD);
    ROW(ren_pump(NULL, 0, 0, 0, NULL), BAD);
    ROW(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    ROW(ren_wait_any(NULL, 0), BAD);
    ROW(ren_wake(NULL), BAD);
    ROW(ren_timeline_value(NULL, REN_STREAM_TRANS, &value), BAD);
    ROW(ren_timeline_value(rt, REN_STREAM_TRANS, NULL), BAD);
    ROW(ren_timeline_wait(NULL, REN_STREAM_TRANS, 0, 0), BAD);
    ROW(ren_buffer_alloc(NULL, REN_STREAM_TRANS, 1, &buffer), BAD);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 1, NULL), BAD);
    ROW(ren_buffer_free(NULL, buffer), BAD);
    ROW(ren_buffer_free(rt, buffer), REN_OK);
    ROW(ren_memory_reserve(NULL, 1), BAD);
    CU_ASSERT_STRING_EQUAL(ren_runtime_device_name(NULL), "");
    CU_ASSERT_EQUAL(ren_runtime_device_kind(NULL), REN_DEVICE_AUTO);
    CU_ASSERT_STRING_EQUAL(ren_status_name(1000), "REN_STATUS_?");
    CU_ASSERT_PTR_NOT_NULL(ren_status_text(-1000));
    CU_ASSERT_PTR_NULL(out);
    finish_rows();
    ren_test_shutdown(rt);
}

/* ------------------------------------------------------------------ configurations */

static ren_status try_config(const ren_runtime_config *config)
{
    ren_runtime *out = (ren_runtime *)(void *)&callbacks;
    ren_error err;
    ren_status status;
    memset(&err, 0, sizeof err);
    status = ren_runtime_create(config, &out, &err);
    CU_ASSERT_PTR_NULL(out);
    CU_ASSERT_EQUAL(err.status, status);
    CU_ASSERT(err.text[0] != 0 && memchr(err.text, 0, sizeof err.text) != NULL);
    CU_ASSERT_EQUAL(ren_runtime_create(config, &out, NULL), status);
    return status;
}

static void *no_alloc(void *user, size_t bytes, size_t align)
{
    (void)user, (void)bytes, (void)align;
    return NULL;
}

static void no_free(void *user, void *ptr, size_t bytes)
{
    (void)user, (void)ptr, (void)bytes;
}

static int no_start(void *user, const char *name, void (*entry)(void *), void *arg, void **out)
{
    (void)user, (void)name, (void)entry, (void)arg, (void)out;
    return -1;
}

static void no_join(void *user, void *thread)
{
    (void)user, (void)thread;
}

#define CONFIG(change, want)                                                                       \
    do {                                                                                           \
        ren_runtime_config c = ren_test_config();                                                  \
        change;                                                                                    \
        row(__LINE__, #change, try_config(&c), (want));                                            \
    } while (0)

static void test_create_every_bad_member(void)
{
    ren_allocator a = {sizeof a, no_alloc, no_free, NULL};
    ren_threads t = {sizeof t, no_start, no_join, NULL};
    ren_log l;
    ren_cuda_options cuda;
    memset(&l, 0, sizeof l);
    memset(&cuda, 0, sizeof cuda);
    CONFIG(c.struct_size = 0, REN_ERR_BAD_STRUCT);
    CONFIG(c.struct_size--, REN_ERR_BAD_STRUCT);
    CONFIG(c.struct_size += 8, REN_ERR_BAD_STRUCT);
    CONFIG(c.struct_size = UINT32_MAX, REN_ERR_BAD_STRUCT);
    CONFIG(c.device = (ren_device_kind)3, BAD);
    CONFIG(c.device = (ren_device_kind)-1, BAD);
    CONFIG(c.streams = 6, BAD);
    CONFIG(c.streams = UINT32_MAX, BAD);
    CONFIG(c.ring_entries = 65537, BAD);
    CONFIG(c.ring_entries = UINT32_MAX, BAD);
    CONFIG(c.cpu_threads = 1025, BAD);
    CONFIG(c.cpu_threads = UINT32_MAX, BAD);
    CONFIG(c.max_buffers = 65537, BAD);
    CONFIG(c.max_buffers = UINT32_MAX, BAD);
    CONFIG((c.device = REN_DEVICE_CPU, c.device_index = 1), REN_ERR_INVALID_ARGUMENT);
    CONFIG((c.device = REN_DEVICE_CPU, c.device_index = UINT32_MAX), REN_ERR_INVALID_ARGUMENT);
    CONFIG((c.device = REN_DEVICE_CUDA, c.module_path = "/nowhere"), REN_ERR_NO_DEVICE);
    CONFIG((c.device = REN_DEVICE_CUDA, c.module_path = ""), REN_ERR_NO_DEVICE);
    CONFIG((c.allocator = &a), REN_ERR_NO_MEMORY);
    CONFIG((c.allocator = &a, a.struct_size = 0), REN_ERR_BAD_STRUCT);
    CONFIG((c.allocator = &a, a.struct_size = UINT32_MAX), REN_ERR_BAD_STRUCT);
    a = (ren_allocator){sizeof a, NULL, no_free, NULL};
    CONFIG((c.allocator = &a), BAD);
    a = (ren_allocator){sizeof a, no_alloc, NULL, NULL};
    CONFIG((c.allocator = &a), BAD);
    CONFIG((c.threads = &t), REN_ERR_THREAD);
    CONFIG((c.threads = &t, t.struct_size = 1), REN_ERR_BAD_STRUCT);
    t = (ren_threads){sizeof t, NULL, no_join, NULL};
    CONFIG((c.threads = &t), BAD);
    t = (ren_threads){sizeof t, no_start, NULL, NULL};
    CONFIG((c.threads = &t), BAD);
    CONFIG((c.log = &l), REN_ERR_BAD_STRUCT);
    CONFIG((c.cuda = &cuda), REN_ERR_BAD_STRUCT);
    finish_rows();
}

/* The smallest and the largest of everything that may be chosen. */
static void test_create_every_limit(void)
{
    static const uint32_t rings[] = {1, 2, 65536};
    static const uint32_t buffers[] = {1, 2, 65536};
    for (size_t i = 0; i < REN_TEST_COUNT(rings); i++) {
        for (uint32_t streams = 1; streams <= REN_STREAM_COUNT; streams += 4) {
            ren_runtime_config config = ren_test_config();
            ren_job_desc d = ren_job_desc_default();
            ren_buffer buffer;
            ren_buffer second;
            ren_job job;
            config.ring_entries = rings[i];
            config.max_buffers = buffers[i];
            config.streams = streams;
            rt = ren_test_runtime(&config);
            ROW(ren_buffer_alloc(rt, REN_STREAM_UPDATE, 64, &buffer), REN_OK);
            ROW(ren_buffer_alloc(rt, REN_STREAM_UPDATE, 64, &second),
                buffers[i] == 1 ? REN_ERR_QUEUE_FULL : REN_OK);
            d.kind = REN_JOB_FILL;
            d.fill.dst.buffer = buffer;
            d.fill.bytes = 64;
            ROW(ren_post(rt, &d, &job), REN_OK);
            ROW(ren_buffer_free(rt, buffer), REN_OK);
            ROW(ren_wait(rt, job, 10 * SECOND), REN_OK);
            ren_test_shutdown(rt);
        }
    }
    finish_rows();
}

/* ------------------------------------------------------------------ jobs */

static ren_producer *producer;

/* By both roads; a refused post gives no handle. */
static ren_status try_post(const ren_job_desc *d)
{
    ren_job job = {1};
    ren_job other = {1};
    ren_status status = ren_post(rt, d, &job);
    CU_ASSERT_EQUAL(ren_producer_post(producer, d, &other), status);
    CU_ASSERT_EQUAL(ren_post(rt, d, NULL), status);
    CU_ASSERT(status == REN_OK || (job.id == 0 && other.id == 0));
    return status;
}

#define POST(from, change, want)                                                                   \
    do {                                                                                           \
        ren_job_desc d = (from);                                                                   \
        change;                                                                                    \
        row(__LINE__, #from ": " #change, try_post(&d), (want));                                   \
    } while (0)

static void post_rows(ren_buffer buffer, ren_buffer freed, ren_buffer foreign)
{
    static unsigned char memory[256];
    ren_use use = {buffer, REN_ACCESS_READ};
    ren_use bad = {{0}, REN_ACCESS_READ};
    ren_job waits[REN_MAX_WAITS + 1];
    ren_job_desc barrier = ren_job_desc_default();
    barrier.kind = REN_JOB_BARRIER;
    barrier.done = count_callback;
    ren_job_desc copy = barrier, fill = barrier, device = barrier, host = barrier;
    copy.kind = REN_JOB_COPY, fill.kind = REN_JOB_FILL;
    device.kind = REN_JOB_DEVICE, host.kind = REN_JOB_HOST;
    copy.copy.dst.buffer = buffer, copy.copy.src.host = memory, copy.copy.bytes = 64;
    fill.fill.dst.buffer = buffer, fill.fill.bytes = 64;
    device.enqueue = enqueue_nothing, host.host_fn = do_nothing;
    memset(waits, 0, sizeof waits);
    /* The descriptor */
    POST(barrier, d.struct_size = 0, REN_ERR_BAD_STRUCT);
    POST(barrier, d.struct_size -= 4, REN_ERR_BAD_STRUCT);
    POST(barrier, d.struct_size += 4, REN_ERR_BAD_STRUCT);
    POST(barrier, d.struct_size = UINT32_MAX, REN_ERR_BAD_STRUCT);
    POST(barrier, d.kind = (ren_job_kind)5, BAD);
    POST(barrier, d.kind = (ren_job_kind)-1, BAD);
    POST(barrier, d.stream = REN_STREAM_COUNT, BAD);
    POST(barrier, d.stream = (ren_stream)-1, BAD);
    POST(barrier, d.priority = (ren_priority)3, BAD);
    POST(barrier, d.priority = (ren_priority)-1, BAD);
    POST(barrier, d.deliver = (ren_deliver)3, BAD);
    POST(barrier, d.deliver = (ren_deliver)-1, BAD);
    POST(barrier, d.channel = REN_CHANNELS, BAD);
    POST(barrier, d.channel = UINT32_MAX, BAD);
    /* Waits */
    POST(barrier, d.wait_count = 1, BAD);
    POST(barrier, (d.wait = waits, d.wait_count = REN_MAX_WAITS + 1), BAD);
    POST(barrier, (d.wait = waits, d.wait_count = UINT32_MAX), BAD);
    waits[15].id = 1;
    POST(barrier, (d.wait = waits, d.wait_count = 16), REN_ERR_UNKNOWN_JOB);
    waits[15].id = UINT64_MAX;
    POST(barrier, (d.wait = waits, d.wait_count = 16), REN_ERR_UNKNOWN_JOB);
    /* Uses */
    POST(barrier, d.use_count = 1, BAD);
    POST(barrier, (d.uses = &use, d.use_count = REN_MAX_USES + 1), BAD);
    POST(barrier, (d.uses = &use, d.use_count = UINT32_MAX), BAD);
    POST(barrier, (d.uses = &bad, d.use_count = 1), BAD);
    bad.buffer = foreign;
    POST(barrier, (d.uses = &bad, d.use_count = 1), BAD);
    bad.buffer = freed;
    POST(barrier, (d.uses = &bad, d.use_count = 1), REN_ERR_STALE);
    bad.buffer = buffer, bad.access = (ren_access)0;
    POST(barrier, (d.uses = &bad, d.use_count = 1), BAD);
    bad.access = (ren_access)4;
    POST(barrier, (d.uses = &bad, d.use_count = 1), BAD);
    /* COPY, of 256 bytes of buffer */
    POST(copy, d.copy.bytes = 0, BAD);
    POST(copy, d.copy.bytes = 257, BAD);
    POST(copy, d.copy.bytes = UINT64_MAX, BAD);
    POST(copy, d.copy.dst.offset = 193, BAD);
    POST(copy, d.copy.dst.offset = UINT64_MAX, BAD);
    POST(copy, d.copy.dst.offset = UINT64_MAX - 63, BAD);
    POST(copy, d.copy.dst.host = memory, BAD);
    POST(copy, d.copy.src.host = NULL, BAD);
    POST(copy, d.copy.dst.buffer.id = 0, BAD);
    POST(copy, d.copy.dst.buffer = freed, REN_ERR_STALE);
    POST(copy, d.copy.dst.buffer = foreign, BAD);
    POST(copy, (d.copy.src.host = NULL, d.copy.src.buffer = freed), REN_ERR_STALE);
    POST(copy, (d.copy.src.host = NULL, d.copy.src.buffer = buffer), BAD);
    POST(copy, (d.copy.src.host = NULL, d.copy.src.buffer = buffer, d.copy.src.offset = 63), BAD);
    POST(copy, (d.copy.src.host = NULL, d.copy.src.buffer = buffer, d.copy.src.offset = 193), BAD);
    POST(copy, (d.copy.dst.buffer.id = 0, d.copy.dst.host = memory + 63), BAD);
    POST(copy, (d.copy.dst.buffer.id = 0, d.copy.dst.host = memory), BAD);
    /* FILL */
    POST(fill, d.fill.bytes = 0, BAD);
    POST(fill, d.fill.bytes = 257, BAD);
    POST(fill, d.fill.dst.offset = 193, BAD);
    POST(fill, d.fill.dst.offset = UINT64_MAX, BAD);
    POST(fill, d.fill.value = 256, BAD);
    POST(fill, d.fill.dst.host = memory, BAD);
    POST(fill, (d.fill.dst.buffer.id = 0, d.fill.dst.host = memory), BAD);
    POST(fill, d.fill.dst.buffer = freed, REN_ERR_STALE);
    POST(fill, d.fill.dst.buffer = foreign, BAD);
    /* Functions */
    POST(device, d.enqueue = NULL, BAD);
    POST(host, d.host_fn = NULL, BAD);
}

static void test_post_every_bad_member(void)
{
    ren_stats before = ren_stats_default();
    ren_stats after = ren_stats_default();
    ren_runtime *other = ren_test_runtime(NULL);
    ren_buffer buffer;
    ren_buffer freed;
    ren_buffer foreign;
    rt = ren_test_runtime(NULL);
    atomic_store(&callbacks, 0);
    ROW(ren_producer_register(rt, &producer), REN_OK);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 256, &buffer), REN_OK);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 256, &freed), REN_OK);
    ROW(ren_buffer_alloc(other, REN_STREAM_TRANS, 256, &foreign), REN_OK);
    if (other->tag == rt->tag) { /* one in a thousand */
        foreign.id ^= UINT64_C(1) << 22;
    }
    ROW(ren_buffer_free(rt, freed), REN_OK);
    ROW(ren_runtime_stats(rt, &before), REN_OK);
    post_rows(buffer, freed, foreign);
    ROW(ren_buffer_free(rt, foreign), BAD);
    ROW(ren_buffer_free(rt, freed), REN_ERR_STALE);
    ROW(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    ROW(ren_runtime_stats(rt, &after), REN_OK);
    CU_ASSERT_EQUAL(before.jobs_posted, after.jobs_posted);
    CU_ASSERT_EQUAL(after.completions_waiting, 0);
    CU_ASSERT_EQUAL(callbacks, 0);
    /* A refused post keeps no pin: the buffer's memory is free at once. */
    ROW(ren_buffer_free(rt, buffer), REN_OK);
    CU_ASSERT_EQUAL(atomic_load(&rt->deferred_frees), 0u);
    ROW(ren_producer_release(producer), REN_OK);
    finish_rows();
    ren_test_shutdown(rt);
    ren_test_shutdown(other);
}

/* ------------------------------------------------------------------ handles, channels, bounds */

static ren_status look(ren_job job)
{
    ren_status status = ren_job_status(rt, job);
    CU_ASSERT_EQUAL(ren_wait(rt, job, NEVER), status);
    CU_ASSERT_EQUAL(ren_cancel(rt, job), status);
    return status;
}

static void test_every_bad_handle_and_bound(void)
{
    ren_runtime_config config = ren_test_config();
    ren_job_desc d = ren_job_desc_default();
    ren_stats stats = ren_stats_default();
    ren_buffer buffer = {7};
    ren_buffer made_up;
    ren_job job = {0};
    ren_job old;
    uint64_t value = 0;
    config.ring_entries = 1;
    rt = ren_test_runtime(&config);
    d.kind = REN_JOB_BARRIER;
    ROW(look(job), REN_ERR_UNKNOWN_JOB);
    ROW(ren_post(rt, &d, &old), REN_OK);
    ROW(ren_wait(rt, old, NEVER), REN_OK);
    ROW(ren_cancel(rt, old), REN_TOO_LATE);
    while (ren_post(rt, &d, &job) == REN_ERR_QUEUE_FULL) {
        (void)sched_yield();
    }
    ROW(ren_wait(rt, job, NEVER), REN_OK);
    ROW(look(old), REN_ERR_STALE);
    ROW(look((ren_job){job.id + 1}), REN_ERR_UNKNOWN_JOB);                    /* slot 1 of 1 */
    ROW(look((ren_job){job.id + (UINT64_C(63) << 16)}), REN_ERR_UNKNOWN_JOB); /* no such road */
    ROW(look((ren_job){job.id ^ (UINT64_C(1) << 22)}), REN_ERR_UNKNOWN_JOB);  /* a runtime's */
    ROW(look((ren_job){job.id + (UINT64_C(1) << 32)}), REN_ERR_UNKNOWN_JOB);  /* not yet */
    ROW(look((ren_job){job.id - (UINT64_C(2) << 32)}), REN_ERR_UNKNOWN_JOB);  /* never was */
    ROW(look((ren_job){UINT64_MAX}), REN_ERR_UNKNOWN_JOB);
    ROW(ren_pump(rt, REN_CHANNELS, 0, 0, NULL), BAD);
    ROW(ren_pump(rt, UINT32_MAX, 0, 0, NULL), BAD);
    ROW(ren_pump(rt, REN_CHANNELS - 1, UINT32_MAX, UINT64_MAX, NULL), REN_OK);
    ROW(ren_pump(rt, 0, 1, 1, NULL), REN_OK);
    ROW(ren_runtime_tick(rt, 0, NULL), BAD);
    ROW(ren_wait_any(rt, 0), REN_TIMEOUT);
    ROW(ren_wait_any(rt, 1), REN_TIMEOUT);
    ROW(ren_wake(rt), REN_OK);
    ROW(ren_wait_any(rt, NEVER), REN_WOKEN);
    ROW(ren_timeline_value(rt, REN_STREAM_COUNT, &value), BAD);
    ROW(ren_timeline_value(rt, (ren_stream)-1, &value), BAD);
    ROW(ren_timeline_wait(rt, REN_STREAM_COUNT, 0, 0), BAD);
    ROW(ren_timeline_wait(rt, (ren_stream)-1, 0, 0), BAD);
    ROW(ren_timeline_wait(rt, REN_STREAM_TRANS, 0, 0), REN_OK);
    ROW(ren_timeline_wait(rt, REN_STREAM_TRANS, 2, NEVER), REN_OK);
    ROW(ren_timeline_wait(rt, REN_STREAM_TRANS, UINT64_MAX, 1), REN_TIMEOUT);
    ROW(ren_runtime_drain(rt, 0), REN_OK);
    ROW(ren_runtime_drain(rt, NEVER), REN_OK);
    ROW(ren_buffer_alloc(rt, REN_STREAM_COUNT, 1, &buffer), BAD);
    ROW(ren_buffer_alloc(rt, (ren_stream)-1, 1, &buffer), BAD);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 0, &buffer), BAD);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, UINT64_MAX, &buffer), REN_ERR_NO_DEVICE_MEMORY);
    CU_ASSERT_EQUAL(buffer.id, 0);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, UINT64_MAX - 254, &buffer),
        REN_ERR_NO_DEVICE_MEMORY);
    ROW(ren_memory_reserve(rt, 0), BAD);
    ROW(ren_memory_reserve(rt, UINT64_MAX), REN_ERR_NO_DEVICE_MEMORY);
    ROW(ren_memory_reserve(rt, UINT64_MAX - 254), REN_ERR_NO_DEVICE_MEMORY);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 1, &buffer), REN_OK);
    made_up.id = buffer.id + 65536;
    ROW(ren_buffer_free(rt, made_up), BAD); /* past the last entry */
    made_up.id = buffer.id + (UINT64_C(1) << 32);
    ROW(ren_buffer_free(rt, made_up), REN_ERR_STALE);
    made_up.id = buffer.id ^ (UINT64_C(1) << 22);
    ROW(ren_buffer_free(rt, made_up), BAD);
    ROW(ren_buffer_free(rt, buffer), REN_OK);
    stats.struct_size = 0, ROW(ren_runtime_stats(rt, &stats), REN_ERR_BAD_STRUCT);
    stats.struct_size = 4, ROW(ren_runtime_stats(rt, &stats), REN_ERR_BAD_STRUCT);
    stats.struct_size = 16, ROW(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT(stats.struct_size == 16 && stats.jobs_posted == 2 && stats.jobs_completed == 0);
    stats.struct_size = sizeof stats + 8, ROW(ren_runtime_stats(rt, &stats), REN_ERR_BAD_STRUCT);
    stats.struct_size = UINT32_MAX, ROW(ren_runtime_stats(rt, &stats), REN_ERR_BAD_STRUCT);
    finish_rows();
    ren_test_shutdown(rt);
}

/* ------------------------------------------------------------------ from callbacks */

static void reentrant_rows(void)
{
    ren_job none = {0};
    ROW(ren_wait(rt, none, NEVER), REN_ERR_REENTRANT);
    ROW(ren_wait(rt, none, 0), REN_ERR_REENTRANT);
    ROW(ren_wait_any(rt, NEVER), REN_ERR_REENTRANT);
    ROW(ren_timeline_wait(rt, REN_STREAM_TRANS, 1000, NEVER), REN_ERR_REENTRANT);
    ROW(ren_runtime_drain(rt, NEVER), REN_ERR_REENTRANT);
    ROW(ren_runtime_abort(rt), REN_ERR_REENTRANT);
    ROW(ren_runtime_destroy(rt), REN_ERR_REENTRANT);
    ROW(ren_runtime_shutdown(rt, NEVER), REN_ERR_REENTRANT);
    ROW(ren_memory_reserve(rt, 1), REN_ERR_REENTRANT);
    ROW(ren_pump(rt, 5, 0, 0, NULL), REN_ERR_REENTRANT);
    ROW(ren_runtime_tick(rt, 0, NULL), rt->config.host_drives_submitter ? REN_ERR_REENTRANT : BAD);
    ROW(ren_wake(rt), REN_OK);
    ROW(ren_runtime_status(rt, NULL), REN_OK);
    atomic_fetch_add(&callbacks, 1);
}

static void reentrant_done(const ren_completion *completion, void *user)
{
    (void)completion;
    (void)user;
    reentrant_rows();
}

static void reentrant_host(void *user)
{
    (void)user;
    reentrant_rows();
}

static void test_no_blocking_call_from_a_callback(void)
{
    for (uint32_t host_driven = 0; host_driven < 2; host_driven++) {
        ren_runtime_config config = ren_test_config();
        ren_job_desc d = ren_job_desc_default();
        config.host_drives_submitter = host_driven;
        rt = ren_test_runtime(&config);
        atomic_store(&callbacks, 0);
        d.kind = REN_JOB_BARRIER;
        d.done = reentrant_done;
        ROW(ren_post(rt, &d, NULL), REN_OK); /* on this thread */
        d.deliver = REN_DELIVER_ANY_THREAD;
        ROW(ren_post(rt, &d, NULL), REN_OK); /* on a completion thread */
        d.deadline_ns = 1;
        ROW(ren_post(rt, &d, NULL), REN_OK); /* on the submitter */
        d = ren_job_desc_default();
        d.kind = REN_JOB_HOST;
        d.host_fn = reentrant_host;
        ROW(ren_post(rt, &d, NULL), REN_OK);
        ROW(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
        ROW(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
        CU_ASSERT_EQUAL(callbacks, 4);
        /* The very same calls are good again outside. */
        ROW(ren_memory_reserve(rt, 1), REN_OK);
        ROW(ren_pump(rt, 5, 0, 0, NULL), REN_OK);
        finish_rows();
        ren_test_shutdown(rt);
    }
}

/* ------------------------------------------------------------------ ends */

static void test_every_call_after_close(void)
{
    ren_job_desc d = ren_job_desc_default();
    ren_producer *mine;
    ren_producer *late = NULL;
    ren_buffer buffer;
    ren_buffer kept;
    ren_job job;
    rt = ren_test_runtime(NULL);
    d.kind = REN_JOB_BARRIER;
    ROW(ren_producer_register(rt, &mine), REN_OK);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &kept), REN_OK);
    ROW(ren_post(rt, &d, &job), REN_OK);
    ROW(ren_runtime_close(rt), REN_OK);
    ROW(ren_runtime_close(rt), REN_OK);
    ROW(ren_post(rt, &d, NULL), REN_ERR_CLOSED);
    ROW(ren_producer_post(mine, &d, NULL), REN_ERR_CLOSED);
    ROW(ren_producer_register(rt, &late), REN_ERR_CLOSED);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &buffer), REN_ERR_CLOSED);
    ROW(ren_post(rt, NULL, NULL), BAD);
    ROW(ren_wait(rt, job, 10 * SECOND), REN_OK);
    ROW(ren_cancel(rt, job), REN_TOO_LATE);
    ROW(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    ROW(ren_wait_any(rt, 0), REN_TIMEOUT);
    ROW(ren_buffer_free(rt, kept), REN_OK);
    ROW(ren_runtime_drain(rt, 0), REN_OK);
    ROW(ren_runtime_destroy(rt), REN_ERR_BUSY); /* a producer is registered */
    ROW(ren_producer_release(mine), REN_OK);
    finish_rows();
    ren_test_shutdown(rt);
}

/* Destroy refuses while there is a reason, changes nothing by it, and works once there is none. */
static void test_destroy_while_something_is_outstanding(void)
{
    ren_job_desc d = ren_job_desc_default();
    ren_job job;
    sem_t gate;
    rt = ren_test_runtime(NULL);
    (void)sem_init(&gate, 0, 0);
    atomic_store(&callbacks, 0);
    d.kind = REN_JOB_HOST;
    d.host_fn = wait_for_gate;
    d.host_user = &gate;
    d.done = count_callback;
    ROW(ren_post(rt, &d, &job), REN_OK);
    ROW(ren_runtime_destroy(rt), REN_ERR_BUSY); /* work */
    (void)sem_post(&gate);
    ROW(ren_wait(rt, job, 10 * SECOND), REN_OK);
    ROW(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    ROW(ren_runtime_destroy(rt), REN_ERR_BUSY); /* a callback */
    d.kind = REN_JOB_BARRIER;
    ROW(ren_post(rt, &d, &job), REN_OK); /* it is not even closed */
    ROW(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    ROW(ren_pump(rt, 0, 1, 0, NULL), REN_OK);
    ROW(ren_runtime_destroy(rt), REN_ERR_BUSY);
    ROW(ren_pump(rt, 0, 1, 0, NULL), REN_OK);
    ROW(ren_runtime_destroy(rt), REN_OK);
    CU_ASSERT_EQUAL(callbacks, 2);
    finish_rows();
    (void)sem_destroy(&gate);
}

static void test_every_call_after_the_device_is_lost(void)
{
    ren_job_desc d = ren_job_desc_default();
    ren_producer *mine;
    ren_producer *late = NULL;
    ren_buffer kept;
    ren_buffer buffer;
    ren_error err;
    ren_job job;
    uint64_t value;
    rt = ren_test_runtime(NULL);
    ROW(ren_producer_register(rt, &mine), REN_OK);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &kept), REN_OK);
    ren_test_fault(rt, "fill", 1, REN_ERR_DEVICE_LOST, 0);
    d.kind = REN_JOB_FILL;
    d.fill.dst.buffer = kept;
    d.fill.bytes = 64;
    ROW(ren_post(rt, &d, &job), REN_OK);
    ROW(ren_wait(rt, job, 10 * SECOND), REN_ERR_DEVICE_LOST);
    ROW(ren_runtime_drain(rt, NEVER), REN_ERR_DEVICE_LOST);
    ROW(ren_runtime_status(rt, &err), REN_ERR_DEVICE_LOST);
    CU_ASSERT(err.status == REN_ERR_DEVICE_LOST && err.text[0]);
    ROW(ren_post(rt, &d, NULL), REN_ERR_DEVICE_LOST);
    ROW(ren_producer_post(mine, &d, NULL), REN_ERR_DEVICE_LOST);
    ROW(ren_producer_register(rt, &late), REN_ERR_DEVICE_LOST);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &buffer), REN_ERR_DEVICE_LOST);
    ROW(ren_memory_reserve(rt, 64), REN_ERR_DEVICE_LOST);
    ROW(ren_timeline_wait(rt, REN_STREAM_TRANS, UINT64_MAX, NEVER), REN_ERR_DEVICE_LOST);
    ROW(ren_timeline_value(rt, REN_STREAM_TRANS, &value), REN_OK);
    ROW(ren_wait_any(rt, NEVER), REN_ERR_DEVICE_LOST);
    ROW(ren_job_status(rt, job), REN_ERR_DEVICE_LOST);
    ROW(ren_cancel(rt, job), REN_TOO_LATE);
    ROW(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    ROW(ren_buffer_free(rt, kept), REN_OK);
    ROW(ren_producer_release(mine), REN_OK);
    ROW(ren_runtime_abort(rt), REN_OK);
    ROW(ren_runtime_close(rt), REN_OK);
    ROW(ren_runtime_destroy(rt), REN_OK);
    finish_rows();
}

/* ------------------------------------------------------------------ children, signals */

/* In the child. Its rows are counted in its exit code. */
static void child_rows(ren_producer *mine, ren_job job, ren_buffer buffer)
{
    ren_job_desc d = ren_job_desc_default();
    ren_stats stats = ren_stats_default();
    ren_producer *late = NULL;
    ren_buffer other;
    uint64_t value;
    d.kind = REN_JOB_BARRIER;
    ROW(ren_post(rt, &d, NULL), REN_ERR_FORKED);
    ROW(ren_producer_post(mine, &d, NULL), REN_ERR_FORKED);
    ROW(ren_producer_register(rt, &late), REN_ERR_FORKED);
    ROW(ren_producer_release(mine), REN_ERR_FORKED);
    ROW(ren_wait(rt, job, NEVER), REN_ERR_FORKED);
    ROW(ren_cancel(rt, job), REN_ERR_FORKED);
    ROW(ren_job_status(rt, job), REN_ERR_FORKED);
    ROW(ren_pump(rt, 0, 0, 0, NULL), REN_ERR_FORKED);
    ROW(ren_wait_any(rt, NEVER), REN_ERR_FORKED);
    ROW(ren_wake(rt), REN_ERR_FORKED);
    ROW(ren_timeline_value(rt, REN_STREAM_TRANS, &value), REN_ERR_FORKED);
    ROW(ren_timeline_wait(rt, REN_STREAM_TRANS, 9, NEVER), REN_ERR_FORKED);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 1, &other), REN_ERR_FORKED);
    ROW(ren_buffer_free(rt, buffer), REN_ERR_FORKED);
    ROW(ren_memory_reserve(rt, 1), REN_ERR_FORKED);
    ROW(ren_runtime_close(rt), REN_ERR_FORKED);
    ROW(ren_runtime_drain(rt, NEVER), REN_ERR_FORKED);
    ROW(ren_runtime_abort(rt), REN_ERR_FORKED);
    ROW(ren_runtime_status(rt, NULL), REN_ERR_FORKED);
    ROW(ren_runtime_stats(rt, &stats), REN_ERR_FORKED);
    ROW(ren_runtime_tick(rt, 0, NULL), REN_ERR_FORKED);
    ROW(ren_runtime_destroy(rt), REN_OK);
    ROW(ren_runtime_shutdown(rt, NEVER), REN_OK);
}

static void fork_and_check(ren_producer *mine, ren_job job, ren_buffer buffer)
{
    int result = 0;
    pid_t child = fork();
    if (child == 0) {
        child_rows(mine, job, buffer);
        _exit(wrong_rows ? 1 : 0);
    }
    CU_ASSERT(child > 0);
    CU_ASSERT_EQUAL(waitpid(child, &result, 0), child);
    CU_ASSERT(WIFEXITED(result) && WEXITSTATUS(result) == 0);
}

static void fork_in_callback(const ren_completion *completion, void *user)
{
    ren_buffer buffer = {0};
    fork_and_check(user, completion->job, buffer);
    atomic_fetch_add(&callbacks, 1);
}

/* A child made while threads are inside every kind of call, also by a callback on a thread of
 * libren's. */
static void test_every_call_in_a_child(void)
{
    ren_job_desc d = ren_job_desc_default();
    ren_producer *mine;
    ren_buffer buffer;
    ren_job job;
    rt = ren_test_runtime(NULL);
    atomic_store(&callbacks, 0);
    ROW(ren_producer_register(rt, &mine), REN_OK);
    ROW(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &buffer), REN_OK);
    ren_test_hold(rt, REN_STREAM_COMP_1);
    d.kind = REN_JOB_FILL;
    d.stream = REN_STREAM_COMP_1;
    d.fill.dst.buffer = buffer;
    d.fill.bytes = 64;
    ROW(ren_post(rt, &d, &job), REN_OK);
    fork_and_check(mine, job, buffer);
    ren_test_release(rt, REN_STREAM_COMP_1);
    ROW(ren_wait(rt, job, 10 * SECOND), REN_OK);
    d = ren_job_desc_default();
    d.kind = REN_JOB_BARRIER;
    d.done = fork_in_callback;
    d.user = mine;
    ROW(ren_post(rt, &d, NULL), REN_OK);
    d.deliver = REN_DELIVER_ANY_THREAD;
    ROW(ren_post(rt, &d, NULL), REN_OK);
    ROW(ren_runtime_drain(rt, 60 * SECOND), REN_OK);
    ROW(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(callbacks, 2);
    ROW(ren_producer_release(mine), REN_OK);
    finish_rows();
    ren_test_shutdown(rt);
}

typedef struct sleeper {
    pthread_t thread;
    int kind;
    ren_job job;
    ren_status status;
    atomic_int ended;
} sleeper;

static void *sleep_in_call(void *user)
{
    sleeper *s = user;
    s->status = s->kind == 0   ? ren_wait(rt, s->job, NEVER)
                : s->kind == 1 ? ren_wait_any(rt, NEVER)
                : s->kind == 2 ? ren_timeline_wait(rt, REN_STREAM_TRANS, 1, NEVER)
                               : ren_runtime_drain(rt, NEVER);
    atomic_store(&s->ended, 1);
    return NULL;
}

static void on_signal(int number)
{
    (void)number;
}

/* Signals that interrupt a sleeping call end no wait. */
static void test_waits_go_on_after_signals(void)
{
    struct sigaction action;
    struct sigaction before;
    ren_job_desc d = ren_job_desc_default();
    sleeper sleepers[4];
    sem_t gate;
    rt = ren_test_runtime(NULL);
    (void)sem_init(&gate, 0, 0);
    memset(&action, 0, sizeof action);
    memset(sleepers, 0, sizeof sleepers);
    action.sa_handler = on_signal; /* no SA_RESTART */
    (void)sigaction(SIGUSR1, &action, &before);
    d.kind = REN_JOB_HOST;
    d.host_fn = wait_for_gate;
    d.host_user = &gate;
    d.done = count_callback;
    ROW(ren_post(rt, &d, &sleepers[0].job), REN_OK);
    for (int i = 0; i < 4; i++) {
        sleepers[i].kind = i;
        CU_ASSERT_EQUAL_FATAL(
            pthread_create(&sleepers[i].thread, NULL, sleep_in_call, &sleepers[i]), 0);
    }
    for (int k = 0; k < 200; k++) {
        for (int i = 0; i < 4; i++) {
            (void)pthread_kill(sleepers[i].thread, SIGUSR1);
        }
        (void)sched_yield();
    }
    for (int i = 0; i < 4; i++) {
        sleepers[i].job = sleepers[0].job;
        CU_ASSERT_EQUAL(atomic_load(&sleepers[i].ended), 0);
    }
    (void)sem_post(&gate);
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL(pthread_join(sleepers[i].thread, NULL), 0);
        CU_ASSERT_EQUAL(sleepers[i].status, REN_OK);
    }
    (void)sigaction(SIGUSR1, &before, NULL);
    finish_rows();
    ren_test_shutdown(rt);
    (void)sem_destroy(&gate);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_every_call_with_null", test_every_call_with_null},
        {"test_create_every_bad_member", test_create_every_bad_member},
        {"test_create_every_limit", test_create_every_limit},
        {"test_post_every_bad_member", test_post_every_bad_member},
        {"test_every_bad_handle_and_bound", test_every_bad_handle_and_bound},
        {"test_no_blocking_call_from_a_callback", test_no_blocking_call_from_a_callback},
        {"test_every_call_after_close", test_every_call_after_close},
        {"test_destroy_while_something_is_outstanding",
         test_destroy_while_something_is_outstanding},
        {"test_every_call_after_the_device_is_lost", test_every_call_after_the_device_is_lost},
        {"test_every_call_in_a_child", test_every_call_in_a_child},
        {"test_waits_go_on_after_signals", test_waits_go_on_after_signals},
    };
    return ren_test_main(argc, argv, "fault/test_misuse", cases, REN_TEST_COUNT(cases), 120);
}
