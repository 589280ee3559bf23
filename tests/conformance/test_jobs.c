/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_jobs.c - posting, ordering and completing, through ren.h alone.
 *
 * Proves    every kind of job does its work; a refused post keeps nothing; an accepted one
 *           completes exactly once, in timeline order; waits, cancels, deadlines, budgets and
 *           reentrancy do what ren.h says.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define SECOND UINT64_C(1000000000)

static ren_runtime *rt;

static void open_rt(void)
{
    rt = ren_test_runtime(NULL);
}

static void close_rt(void)
{
    ren_test_shutdown(rt);
    rt = NULL;
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000};
    (void)nanosleep(&t, NULL);
}

static void post_ok(const ren_job_desc *desc, ren_job *out)
{
    ren_status status;
    while ((status = ren_post(rt, desc, out)) == REN_ERR_QUEUE_FULL) {
        (void)ren_pump(rt, 0, 0, 0, NULL);
        (void)sched_yield();
    }
    CU_ASSERT_EQUAL(status, REN_OK);
}

/* ------------------------------------------------------------------ kinds */

static void count_call(void *user)
{
    atomic_fetch_add((atomic_int *)user, 1);
}

/* Device work that is the same on every device: none; it only checks what it was given. */
static ren_status check_io(void *user, const ren_device_io *io)
{
    atomic_int *calls = user;
    CU_ASSERT_EQUAL(io->device, ren_runtime_device_kind(rt));
    CU_ASSERT_EQUAL(io->stream, REN_STREAM_COMP_2);
    CU_ASSERT_EQUAL(io->pointer_count, 1u);
    CU_ASSERT_PTR_NOT_NULL(io->pointers[0]);
    CU_ASSERT((io->native_stream != NULL) == (io->device == REN_DEVICE_CUDA));
    atomic_fetch_add(calls, 1);
    return REN_OK;
}

static void test_post_every_kind(void)
{
    enum {
        N = 4096
    };
    unsigned char *in = malloc(N);
    unsigned char *out = calloc(1, N);
    atomic_int calls = 0;
    atomic_int hosts = 0;
    ren_buffer buffer;
    ren_job_desc d = ren_job_desc_default();
    ren_use use;
    ren_job job;
    open_rt();
    for (int i = 0; i < N; i++) {
        in[i] = (unsigned char)(i * 7 + 3);
    }
    CU_ASSERT_EQUAL_FATAL(ren_buffer_alloc(rt, REN_STREAM_TRANS, N, &buffer), REN_OK);
    d.kind = REN_JOB_COPY;
    d.copy.dst.buffer = buffer;
    d.copy.src.host = in;
    d.copy.bytes = N;
    post_ok(&d, NULL);
    d = ren_job_desc_default();
    d.kind = REN_JOB_FILL;
    d.stream = REN_STREAM_COMP_1;
    d.fill.dst.buffer = buffer;
    d.fill.dst.offset = 100;
    d.fill.value = 0xAB;
    d.fill.bytes = 50;
    post_ok(&d, NULL);
    d = ren_job_desc_default();
    d.kind = REN_JOB_DEVICE;
    d.stream = REN_STREAM_COMP_2;
    d.enqueue = check_io;
    d.enqueue_user = &calls;
    use.buffer = buffer;
    use.access = REN_ACCESS_READ;
    d.uses = &use;
    d.use_count = 1;
    post_ok(&d, NULL);
    d = ren_job_desc_default();
    d.kind = REN_JOB_COPY;
    d.stream = REN_STREAM_COMP_3;
    d.copy.dst.host = out;
    d.copy.src.buffer = buffer;
    d.copy.bytes = N;
    post_ok(&d, &job);
    d = ren_job_desc_default();
    d.kind = REN_JOB_HOST;
    d.stream = REN_STREAM_UPDATE;
    d.host_fn = count_call;
    d.host_user = &hosts;
    d.wait = &job;
    d.wait_count = 1;
    post_ok(&d, &job);
    CU_ASSERT_EQUAL(ren_wait(rt, job, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK); /* the DEVICE job, too */
    CU_ASSERT_EQUAL(calls, 1);
    CU_ASSERT_EQUAL(hosts, 1);
    CU_ASSERT(memcmp(out, in, 100) == 0);
    CU_ASSERT(out[100] == 0xAB && out[149] == 0xAB);
    CU_ASSERT(memcmp(out + 150, in + 150, N - 150) == 0);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_ERR_STALE);
    close_rt();
    free(in);
    free(out);
}

static ren_status refuse(void *user, const ren_device_io *io)
{
    (void)user;
    (void)io;
    return REN_ERR_SHAPE;
}

static void test_device_job_error_reaches_completion(void)
{
    ren_job_desc d = ren_job_desc_default();
    ren_job job;
    ren_stats stats = ren_stats_default();
    open_rt();
    d.kind = REN_JOB_DEVICE;
    d.stream = REN_STREAM_COMP_1;
    d.enqueue = refuse;
    post_ok(&d, &job);
    CU_ASSERT_EQUAL(ren_wait(rt, job, 10 * SECOND), REN_ERR_CALLBACK);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.jobs_failed, 1u);
    close_rt();
}

/* ------------------------------------------------------------------ bad input */

static void never(const ren_completion *c, void *user)
{
    (void)c;
    (void)user;
    CU_FAIL("the callback of a refused post ran");
}

static void expect(ren_job_desc *d, ren_status want)
{
    ren_job job = {77};
    ren_stats before = ren_stats_default();
    ren_stats after = ren_stats_default();
    d->done = never;
    (void)ren_runtime_stats(rt, &before);
    CU_ASSERT_EQUAL(ren_post(rt, d, &job), want);
    CU_ASSERT_EQUAL(job.id, 0u);
    (void)ren_runtime_stats(rt, &after);
    CU_ASSERT_EQUAL(before.jobs_posted, after.jobs_posted);
}

static void test_post_bad_input_is_refused(void)
{
    static unsigned char memory[64];
    ren_job_desc barrier = ren_job_desc_default();
    ren_job_desc d;
    ren_use use = {{0}, REN_ACCESS_READ};
    ren_job waits[REN_MAX_WAITS + 1] = {{0}};
    ren_buffer buffer;
    ren_buffer freed;
    open_rt();
    barrier.kind = REN_JOB_BARRIER;
    CU_ASSERT_EQUAL(ren_post(NULL, &barrier, NULL), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_post(rt, NULL, NULL), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &buffer), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &freed), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, freed), REN_OK);
    d = barrier, d.struct_size = 0, expect(&d, REN_ERR_BAD_STRUCT);
    d = barrier, d.struct_size += 8, expect(&d, REN_ERR_BAD_STRUCT);
    d = barrier, d.kind = (ren_job_kind)9, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.stream = REN_STREAM_COUNT, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.stream = (ren_stream)-1, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.priority = (ren_priority)3, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.deliver = (ren_deliver)3, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.channel = REN_CHANNELS, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.wait_count = 1, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.wait = waits, d.wait_count = REN_MAX_WAITS + 1;
    expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.use_count = 1, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.uses = &use, d.use_count = REN_MAX_USES + 1;
    expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.uses = &use, d.use_count = 1, expect(&d, REN_ERR_INVALID_ARGUMENT);
    use.buffer = freed;
    d = barrier, d.uses = &use, d.use_count = 1, expect(&d, REN_ERR_STALE);
    use.buffer = buffer, use.access = (ren_access)4;
    d = barrier, d.uses = &use, d.use_count = 1, expect(&d, REN_ERR_INVALID_ARGUMENT);
    waits[0].id = UINT64_C(0x123456789abcdef0);
    d = barrier, d.wait = waits, d.wait_count = 1, expect(&d, REN_ERR_UNKNOWN_JOB);
    d = barrier, d.kind = REN_JOB_HOST, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.kind = REN_JOB_DEVICE, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.kind = REN_JOB_COPY, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d.copy.bytes = 65, d.copy.dst.buffer = buffer, d.copy.src.host = memory;
    expect(&d, REN_ERR_INVALID_ARGUMENT);
    d.copy.bytes = 32, d.copy.dst.offset = 33, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d.copy.dst.offset = UINT64_MAX - 8, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d.copy.dst.offset = 0, d.copy.dst.host = memory, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d = barrier, d.kind = REN_JOB_FILL, d.fill.dst.buffer = buffer, d.fill.bytes = 64;
    d.fill.value = 256, expect(&d, REN_ERR_INVALID_ARGUMENT);
    d.fill.value = 1, d.fill.dst.buffer = freed, expect(&d, REN_ERR_STALE);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_OK);
    close_rt();
}

static char last_line[512];

static void keep_line(void *user, ren_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)snprintf(last_line, sizeof last_line, "%s", text);
}

/* A descriptor with one thing wrong, and what the line about it holds. */
static ren_job_desc wrong_desc(uint32_t index, ren_buffer buffer, const char **out_text)
{
    static char bytes[64];
    static const ren_job none = {0};
    static ren_use use;
    ren_job_desc d = ren_job_desc_default();
    d.copy = (ren_copy){.dst.buffer = buffer, .src.host = bytes, .bytes = sizeof bytes};
    d.fill = (ren_fill){.dst.buffer = buffer, .bytes = sizeof bytes};
    use = (ren_use){buffer, REN_ACCESS_READ};
#define WRONG(at, change, text)                                                                    \
    case at:                                                                                       \
        change;                                                                                    \
        *out_text = text;                                                                          \
        break
    switch (index) {
        WRONG(0, d.struct_size = 4, "struct_size");
        WRONG(1, d.stream = REN_STREAM_COUNT, "look at stream");
        WRONG(2, d.priority = (ren_priority)3, "look at priority");
        WRONG(3, d.deliver = (ren_deliver)3, "look at deliver");
        WRONG(4, d.channel = REN_CHANNELS, "look at channel");
        WRONG(5, d.wait_count = 1, "look at wait");
        WRONG(6, (d.wait = &none, d.wait_count = REN_MAX_WAITS + 1), "look at wait");
        WRONG(7, d.use_count = 1, "look at uses or");
        WRONG(8, (use.access = (ren_access)0, d.uses = &use, d.use_count = 1), "uses[].access");
        WRONG(9, (use.buffer.id = 77, d.uses = &use, d.use_count = 1), "the buffers it names");
        WRONG(10, d.copy.bytes = 0, "copy.bytes");
        WRONG(11, d.copy.dst.host = bytes, "copy.dst");
        WRONG(12, d.copy.src.host = NULL, "copy.src");
        WRONG(13, (d.copy.src.host = NULL, d.copy.src.buffer = buffer), "sides overlap");
        WRONG(14, d.copy.dst.offset = 1, "beyond its end");
        WRONG(15, (d.kind = REN_JOB_FILL, d.fill.bytes = 0), "fill.bytes");
        WRONG(16, (d.kind = REN_JOB_FILL, d.fill.value = 256), "fill.value");
        WRONG(17, (d.kind = REN_JOB_FILL, d.fill.dst.buffer.id = 0), "fill.dst");
        WRONG(18, d.kind = REN_JOB_DEVICE, "look at enqueue");
        WRONG(19, d.kind = REN_JOB_HOST, "look at host_fn");
        WRONG(20, d.kind = (ren_job_kind)9, "look at kind");
    default:
        *out_text = NULL;
    }
#undef WRONG
    return d;
}

/* config.validate makes a refusal say which member was wrong; without it there is no line. */
static void test_validate_names_the_member(void)
{
    for (uint32_t validate = 0; validate < 2; validate++) {
        ren_runtime_config config = ren_test_config();
        ren_log log = ren_log_default();
        ren_producer *producer;
        ren_buffer buffer;
        const char *text;
        log.fn = keep_line;
        log.min_level = REN_LOG_WARNING;
        config.log = &log;
        config.validate = validate;
        rt = ren_test_runtime(&config);
        CU_ASSERT_EQUAL(ren_memory_reserve(rt, 64), REN_OK);
        CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &buffer), REN_OK);
        CU_ASSERT_EQUAL(ren_producer_register(rt, &producer), REN_OK);
        for (uint32_t i = 0;; i++) {
            ren_job_desc d = wrong_desc(i, buffer, &text);
            if (!text) {
                break;
            }
            last_line[0] = 0;
            CU_ASSERT_NOT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
            CU_ASSERT_EQUAL(strstr(last_line, text) != NULL, validate == 1);
            last_line[0] = 0;
            CU_ASSERT_NOT_EQUAL(ren_producer_post(producer, &d, NULL), REN_OK);
            CU_ASSERT_EQUAL(strstr(last_line, text) != NULL, validate == 1);
        }
        CU_ASSERT_EQUAL(ren_producer_release(producer), REN_OK);
        CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_OK);
        close_rt();
    }
}

static void test_handles_foreign_unknown_and_stale(void)
{
    ren_runtime_config config = ren_test_config();
    ren_runtime *other;
    ren_job_desc d = ren_job_desc_default();
    ren_job first;
    ren_job job;
    config.ring_entries = 4;
    other = ren_test_runtime(&config);
    open_rt();
    d.kind = REN_JOB_BARRIER;
    CU_ASSERT_EQUAL(ren_post(other, &d, &first), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(other, first, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_job_status(other, first), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, first, SECOND), REN_ERR_UNKNOWN_JOB);
    job.id = 0;
    CU_ASSERT_EQUAL(ren_wait(other, job, SECOND), REN_ERR_UNKNOWN_JOB);
    job.id = first.id + (UINT64_C(1) << 32);
    CU_ASSERT_EQUAL(ren_job_status(other, job), REN_ERR_UNKNOWN_JOB);
    for (int i = 0; i < 16; i++) {
        while (ren_post(other, &d, &job) == REN_ERR_QUEUE_FULL) {
            (void)sched_yield();
        }
        CU_ASSERT_EQUAL(ren_wait(other, job, 10 * SECOND), REN_OK);
    }
    CU_ASSERT_EQUAL(ren_job_status(other, first), REN_ERR_STALE);
    CU_ASSERT_EQUAL(ren_cancel(other, first), REN_ERR_STALE);
    d.wait = &first;
    d.wait_count = 1;
    CU_ASSERT_EQUAL(ren_post(other, &d, NULL), REN_ERR_STALE);
    ren_test_shutdown(other);
    close_rt();
}

/* Slots are reused oldest first: a finished job can still be named many posts later. */
static void test_finished_job_stays_known_for_a_while(void)
{
    ren_runtime_config config = ren_test_config();
    ren_job_desc d = ren_job_desc_default();
    ren_producer *producer;
    ren_job own;
    ren_job shared;
    ren_job job;
    config.ring_entries = 256;
    rt = ren_test_runtime(&config);
    d.kind = REN_JOB_BARRIER;
    CU_ASSERT_EQUAL(ren_producer_register(rt, &producer), REN_OK);
    for (int i = 0; i < 1000; i++) { /* into the steady state first */
        CU_ASSERT_EQUAL(ren_producer_post(producer, &d, &own), REN_OK);
        CU_ASSERT_EQUAL(ren_post(rt, &d, &shared), REN_OK);
        CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    }
    for (int i = 0; i < 250; i++) {
        CU_ASSERT_EQUAL(ren_producer_post(producer, &d, &job), REN_OK);
        CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
        CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    }
    CU_ASSERT_EQUAL(ren_job_status(rt, own), REN_OK);
    CU_ASSERT_EQUAL(ren_job_status(rt, shared), REN_OK);
    d.wait = &own;
    d.wait_count = 1;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_producer_release(producer), REN_OK);
    close_rt();
}

/* ------------------------------------------------------------------ order and exactly once */

typedef struct order_log {
    uint64_t last[REN_STREAM_COUNT];
    unsigned delivered;
    unsigned wrong;
    unsigned char *seen;
} order_log;

static order_log order;
static atomic_int ignored_calls;

static void log_order(const ren_completion *c, void *user)
{
    size_t index = (size_t)user;
    order.wrong += c->timeline_value <= order.last[c->stream] || c->status != REN_OK;
    order.last[c->stream] = c->timeline_value;
    order.seen[index]++;
    order.delivered++;
}

/* Would fail if completions of a stream overtook each other, or one were lost or doubled. */
static void test_completions_once_and_in_timeline_order(void)
{
    enum {
        N = 20000
    };
    unsigned long long seed = 7;
    ren_job_desc d = ren_job_desc_default();
    open_rt();
    memset(&order, 0, sizeof order);
    order.seen = calloc(N, 1);
    for (size_t i = 0; i < N; i++) {
        d = ren_job_desc_default();
        d.kind = ren_test_random(&seed) % 4 ? REN_JOB_BARRIER : REN_JOB_HOST;
        d.host_fn = count_call;
        d.host_user = &ignored_calls;
        d.stream = (ren_stream)(ren_test_random(&seed) % REN_STREAM_COUNT);
        d.priority = (ren_priority)(ren_test_random(&seed) % 3);
        d.done = log_order;
        d.user = (void *)i;
        d.channel = 0;
        post_ok(&d, NULL);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 30 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(order.delivered, N);
    CU_ASSERT_EQUAL(order.wrong, 0);
    for (size_t i = 0; i < N; i++) {
        CU_ASSERT_FATAL(order.seen[i] == 1);
    }
    for (int s = 0; s < REN_STREAM_COUNT; s++) {
        uint64_t value = 0;
        CU_ASSERT_EQUAL(ren_timeline_value(rt, (ren_stream)s, &value), REN_OK);
        CU_ASSERT_EQUAL(value, order.last[s]);
        CU_ASSERT_EQUAL(ren_timeline_wait(rt, (ren_stream)s, value, 0), REN_OK);
        CU_ASSERT_EQUAL(ren_timeline_wait(rt, (ren_stream)s, value + 1, 1000), REN_TIMEOUT);
    }
    free(order.seen);
    close_rt();
}

/* ------------------------------------------------------------------ waits */

static atomic_int sequence;

static void take_number(void *user)
{
    *(int *)user = atomic_fetch_add(&sequence, 1);
}

/* A chain over all streams; each HOST job takes the next number. Would fail if any ran early. */
static void test_waits_order_jobs_across_streams(void)
{
    enum {
        N = 200
    };
    int number[N];
    ren_job jobs[N];
    open_rt();
    atomic_store(&sequence, 0);
    for (int i = 0; i < N; i++) {
        ren_job_desc d = ren_job_desc_default();
        d.kind = REN_JOB_HOST;
        d.host_fn = take_number;
        d.host_user = &number[i];
        d.stream = (ren_stream)(i % REN_STREAM_COUNT);
        d.priority = (ren_priority)(i % 3);
        d.wait = i ? &jobs[i - 1] : NULL;
        d.wait_count = i ? 1 : 0;
        post_ok(&d, &jobs[i]);
    }
    CU_ASSERT_EQUAL(ren_wait(rt, jobs[N - 1], 30 * SECOND), REN_OK);
    for (int i = 0; i < N; i++) {
        CU_ASSERT_EQUAL(number[i], i);
    }
    close_rt();
}

/* Device writes on one stream, reads on others, ordered only by uses[] and copies' own buffers. */
static void test_buffers_order_jobs_across_streams(void)
{
    enum {
        ROUNDS = 300,
        N = 1024
    };
    ren_buffer a;
    ren_buffer b;
    static unsigned char out[ROUNDS][N];
    ren_job job = {0};
    int bad = 0;
    open_rt();
    ren_test_delay(rt, REN_STREAM_COMP_1, 5);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COMP_1, N, &a), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COMP_2, N, &b), REN_OK);
    for (int i = 0; i < ROUNDS; i++) {
        ren_job_desc d = ren_job_desc_default();
        d.kind = REN_JOB_FILL;
        d.stream = (ren_stream)(REN_STREAM_COMP_1 + i % 3);
        d.fill.dst.buffer = a;
        d.fill.value = (uint32_t)(i % 251);
        d.fill.bytes = N;
        post_ok(&d, NULL);
        d = ren_job_desc_default();
        d.kind = REN_JOB_COPY;
        d.stream = (ren_stream)((i * 3 + 1) % REN_STREAM_COUNT);
        d.copy.dst.buffer = b;
        d.copy.src.buffer = a;
        d.copy.bytes = N;
        post_ok(&d, NULL);
        d.stream = REN_STREAM_TRANS;
        d.copy.src.buffer = b;
        d.copy.dst.buffer.id = 0;
        d.copy.dst.host = out[i];
        post_ok(&d, &job);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 60 * SECOND), REN_OK);
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < N; k++) {
            bad += out[i][k] != i % 251;
        }
    }
    CU_ASSERT_EQUAL(bad, 0);
    close_rt();
}

/* A REALTIME job waits for a NORMAL one that is still in its ring behind others. */
static void test_awaited_job_inherits_class(void)
{
    ren_runtime_config config = ren_test_config();
    int number[41];
    ren_job jobs[40];
    ren_job last;
    ren_job_desc d = ren_job_desc_default();
    config.host_drives_submitter = 1;
    config.streams = 1;
    rt = ren_test_runtime(&config);
    atomic_store(&sequence, 0);
    d.kind = REN_JOB_HOST;
    d.host_fn = take_number;
    d.priority = REN_PRIORITY_BACKGROUND;
    for (int i = 0; i < 40; i++) {
        d.host_user = &number[i];
        post_ok(&d, &jobs[i]);
    }
    d.priority = REN_PRIORITY_REALTIME;
    d.host_user = &number[40];
    d.wait = &jobs[20];
    d.wait_count = 1;
    post_ok(&d, &last);
    CU_ASSERT_EQUAL(ren_wait(rt, last, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    for (int i = 0; i < 40; i++) {
        CU_ASSERT_EQUAL(number[i] - (number[i] > number[40]), i); /* the ring's own order is kept */
    }
    CU_ASSERT(number[40] > number[20]);
    close_rt();
}

/* ------------------------------------------------------------------ cancel, deadline, full */

static ren_runtime *driven(uint32_t ring_entries)
{
    ren_runtime_config config = ren_test_config();
    config.host_drives_submitter = 1;
    config.ring_entries = ring_entries;
    return ren_test_runtime(&config);
}

typedef struct seen {
    atomic_int count;
    ren_status status;
    uint64_t timeline;
} seen;

static void note(const ren_completion *c, void *user)
{
    seen *s = user;
    s->status = c->status;
    s->timeline = c->timeline_value;
    CU_ASSERT((c->status < 0) == (c->err != NULL));
    atomic_fetch_add(&s->count, 1);
}

static void test_cancel_before_and_after_issue(void)
{
    ren_job_desc d = ren_job_desc_default();
    seen cancelled = {0};
    seen done = {0};
    ren_job a;
    ren_job b;
    ren_stats stats = ren_stats_default();
    rt = driven(0);
    d.kind = REN_JOB_BARRIER;
    d.done = note;
    d.user = &cancelled;
    post_ok(&d, &a);
    d.user = &done;
    post_ok(&d, &b);
    CU_ASSERT_EQUAL(ren_job_status(rt, a), REN_PENDING);
    CU_ASSERT_EQUAL(ren_cancel(rt, a), REN_OK);
    CU_ASSERT_EQUAL(ren_cancel(rt, a), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_tick(rt, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, a, 10 * SECOND), REN_CANCELLED);
    CU_ASSERT_EQUAL(ren_wait(rt, b, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_cancel(rt, b), REN_TOO_LATE);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT(cancelled.count == 1 && cancelled.status == REN_CANCELLED && !cancelled.timeline);
    CU_ASSERT(done.count == 1 && done.status == REN_OK && done.timeline == 1);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT(stats.jobs_posted == 2 && stats.jobs_cancelled == 1 && stats.jobs_completed == 1);
    close_rt();
}

static void test_deadline_passed_is_not_run(void)
{
    ren_job_desc d = ren_job_desc_default();
    atomic_int calls = 0;
    ren_job late;
    ren_job in_time;
    rt = driven(0);
    d.kind = REN_JOB_HOST;
    d.host_fn = count_call;
    d.host_user = &calls;
    d.deadline_ns = ren_now_ns();
    post_ok(&d, &late);
    d.deadline_ns = ren_now_ns() + 60 * SECOND;
    post_ok(&d, &in_time);
    sleep_ms(1);
    CU_ASSERT_EQUAL(ren_wait(rt, late, 10 * SECOND), REN_ERR_DEADLINE);
    CU_ASSERT_EQUAL(ren_wait(rt, in_time, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(calls, 1);
    close_rt();
}

/* Row 52: nothing is lost when nobody pumps; the back-pressure is visible; later all goes on. */
static void test_full_road_refuses_and_recovers(void)
{
    ren_job_desc d = ren_job_desc_default();
    seen s = {0};
    int accepted = 0;
    int refused = 0;
    rt = driven(4);
    d.kind = REN_JOB_BARRIER;
    d.done = note;
    d.user = &s;
    for (int i = 0; i < 1000; i++) {
        ren_status status = ren_post(rt, &d, NULL);
        accepted += status == REN_OK;
        refused += status == REN_ERR_QUEUE_FULL;
        (void)ren_runtime_tick(rt, 0, NULL);
    }
    CU_ASSERT_EQUAL(accepted, 4);
    CU_ASSERT_EQUAL(accepted + refused, 1000);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(s.count, 0);
    CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_ERR_BUSY);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(s.count, 4);
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    close_rt();
    CU_ASSERT_EQUAL(s.count, 5);
}

/* ------------------------------------------------------------------ callbacks and pumps */

typedef struct reentry {
    ren_job job;
    ren_status wait, pump, destroy, drain, tick, post, full;
    int posts;
} reentry;

static void reenter(const ren_completion *c, void *user)
{
    reentry *r = user;
    ren_job_desc d = ren_job_desc_default();
    r->job = c->job;
    r->wait = ren_wait(rt, c->job, 0);
    r->pump = ren_pump(rt, 1, 0, 0, NULL);
    r->destroy = ren_runtime_destroy(rt);
    r->drain = ren_runtime_drain(rt, 0);
    r->tick = ren_runtime_tick(rt, 0, NULL);
    d.kind = REN_JOB_BARRIER;
    r->post = ren_post(rt, &d, NULL);
    while ((r->full = ren_post(rt, &d, NULL)) == REN_OK) {
        r->posts++;
    }
}

/* Row 55: from a callback, a post works and never blocks; what would block is refused. */
static void test_callback_may_post_but_not_block(void)
{
    ren_job_desc d = ren_job_desc_default();
    reentry r;
    memset(&r, 0, sizeof r);
    rt = driven(8);
    d.kind = REN_JOB_BARRIER;
    d.done = reenter;
    d.user = &r;
    post_ok(&d, NULL);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(r.wait, REN_ERR_REENTRANT);
    CU_ASSERT_EQUAL(r.pump, REN_ERR_REENTRANT);
    CU_ASSERT_EQUAL(r.destroy, REN_ERR_REENTRANT);
    CU_ASSERT_EQUAL(r.drain, REN_ERR_REENTRANT);
    CU_ASSERT_EQUAL(r.tick, REN_ERR_REENTRANT);
    CU_ASSERT_EQUAL(r.post, REN_OK);
    CU_ASSERT_EQUAL(r.full, REN_ERR_QUEUE_FULL);
    close_rt();
}

static void spend_1ms(const ren_completion *c, void *user)
{
    uint64_t start = ren_now_ns();
    (void)c;
    (void)user;
    while (ren_now_ns() - start < 1000000) {
    }
}

static void test_pump_stops_at_budget_and_count(void)
{
    ren_job_desc d = ren_job_desc_default();
    uint32_t n = 0;
    uint32_t total = 0;
    open_rt();
    d.kind = REN_JOB_BARRIER;
    d.done = spend_1ms;
    d.channel = 3;
    for (int i = 0; i < 40; i++) {
        post_ok(&d, NULL);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, &n), REN_OK);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT_EQUAL(ren_pump(rt, 3, 5, 0, &n), REN_OK);
    CU_ASSERT_EQUAL(n, 5);
    total += n;
    CU_ASSERT_EQUAL(ren_pump(rt, 3, 0, 3500000, &n), REN_OK);
    CU_ASSERT(n >= 1 && n <= 4); /* a callback takes at least 1 ms, and none starts after 3.5 ms */
    total += n;
    CU_ASSERT_EQUAL(ren_pump(rt, 3, 0, 0, &n), REN_OK);
    CU_ASSERT_EQUAL(total + n, 40);
    close_rt();
}

static atomic_int inside;

static void stay(const ren_completion *c, void *user)
{
    (void)c;
    (void)user;
    atomic_store(&inside, 1);
    while (atomic_load(&inside) != 2) {
        (void)sched_yield();
    }
}

static void *pump_thread(void *arg)
{
    *(ren_status *)arg = ren_pump(rt, 0, 0, 0, NULL);
    return NULL;
}

static void test_second_pump_of_a_channel_is_busy(void)
{
    ren_job_desc d = ren_job_desc_default();
    pthread_t thread;
    ren_status first = REN_PENDING;
    open_rt();
    atomic_store(&inside, 0);
    d.kind = REN_JOB_BARRIER;
    d.done = stay;
    post_ok(&d, NULL);
    CU_ASSERT_EQUAL(ren_wait_any(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(pthread_create(&thread, NULL, pump_thread, &first), 0);
    while (atomic_load(&inside) != 1) {
        (void)sched_yield();
    }
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_ERR_BUSY);
    CU_ASSERT_EQUAL(ren_pump(rt, 1, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_ERR_BUSY);
    atomic_store(&inside, 2);
    (void)pthread_join(thread, NULL);
    CU_ASSERT_EQUAL(first, REN_OK);
    CU_ASSERT_EQUAL(ren_pump(rt, REN_CHANNELS, 0, 0, NULL), REN_ERR_INVALID_ARGUMENT);
    close_rt();
}

static void *wake_thread(void *arg)
{
    (void)arg;
    sleep_ms(20);
    (void)ren_wake(rt);
    return NULL;
}

static void test_wait_any_timeout_wake_and_completion(void)
{
    ren_job_desc d = ren_job_desc_default();
    seen s = {0};
    pthread_t thread;
    open_rt();
    CU_ASSERT_EQUAL(ren_wait_any(rt, 1000000), REN_TIMEOUT);
    CU_ASSERT_EQUAL(ren_wake(rt), REN_OK);
    CU_ASSERT_EQUAL(ren_wait_any(rt, 10 * SECOND), REN_WOKEN);
    CU_ASSERT_EQUAL(ren_wait_any(rt, 1000000), REN_TIMEOUT);
    CU_ASSERT_EQUAL(pthread_create(&thread, NULL, wake_thread, NULL), 0);
    CU_ASSERT_EQUAL(ren_wait_any(rt, 20 * SECOND), REN_WOKEN);
    (void)pthread_join(thread, NULL);
    d.kind = REN_JOB_BARRIER;
    d.done = note;
    d.user = &s;
    post_ok(&d, NULL);
    CU_ASSERT_EQUAL(ren_wait_any(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(s.count, 1);
    close_rt();
}

static void test_any_thread_delivery_runs_at_once(void)
{
    ren_job_desc d = ren_job_desc_default();
    seen s = {0};
    open_rt();
    d.kind = REN_JOB_BARRIER;
    d.done = note;
    d.user = &s;
    d.deliver = REN_DELIVER_ANY_THREAD;
    for (int i = 0; i < 1000; i++) {
        post_ok(&d, NULL);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(s.count, 1000);
    close_rt();
}

/* ------------------------------------------------------------------ producers */

typedef struct producer_run {
    ren_producer *producer;
    int jobs;
    int wrong;
    int last;
    int delivered;
} producer_run;

typedef struct producer_item {
    producer_run *run;
    int index;
} producer_item;

static void in_order(const ren_completion *c, void *user)
{
    producer_item *item = user;
    (void)c;
    item->run->wrong += item->index != item->run->last + 1;
    item->run->last = item->index;
    item->run->delivered++;
}

static producer_item items[4][5000];

static void *producer_thread(void *arg)
{
    producer_run *run = arg;
    ren_job_desc d = ren_job_desc_default();
    size_t row = (size_t)(run->jobs % 10);
    int jobs = run->jobs / 10;
    d.kind = REN_JOB_BARRIER;
    d.stream = (ren_stream)(row % REN_STREAM_COUNT);
    d.done = in_order;
    for (int i = 0; i < jobs; i++) {
        items[row][i].run = run;
        items[row][i].index = i;
        d.user = &items[row][i];
        while (ren_producer_post(run->producer, &d, NULL) == REN_ERR_QUEUE_FULL) {
            (void)sched_yield();
        }
    }
    return NULL;
}

/* Four producers at once; each one's jobs complete in the order of its posts. */
static void test_producers_keep_their_own_order(void)
{
    producer_run runs[4];
    pthread_t threads[4];
    ren_producer *extra = NULL;
    int delivered = 0;
    open_rt();
    for (int i = 0; i < 4; i++) {
        memset(&runs[i], 0, sizeof runs[i]);
        runs[i].last = -1;
        runs[i].jobs = 50000 + i; /* count * 10 + row */
        CU_ASSERT_EQUAL(ren_producer_register(rt, &runs[i].producer), REN_OK);
        CU_ASSERT_EQUAL(pthread_create(&threads[i], NULL, producer_thread, &runs[i]), 0);
    }
    CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_ERR_BUSY);
    while (delivered < 20000) {
        uint32_t n = 0;
        (void)ren_wait_any(rt, 100000000);
        (void)ren_pump(rt, 0, 0, 0, &n);
        delivered += (int)n;
    }
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], NULL);
        CU_ASSERT_EQUAL(runs[i].wrong, 0);
        CU_ASSERT_EQUAL(runs[i].delivered, 5000);
        CU_ASSERT_EQUAL(ren_producer_release(runs[i].producer), REN_OK);
    }
    for (int i = 0; i < 200; i++) { /* the roads are reused */
        CU_ASSERT_EQUAL(ren_producer_register(rt, &extra), REN_OK);
        CU_ASSERT_EQUAL(ren_producer_release(extra), REN_OK);
    }
    close_rt();
}

/* ------------------------------------------------------------------ closing */

static void test_close_refuses_posts_and_finishes_work(void)
{
    ren_job_desc d = ren_job_desc_default();
    seen s = {0};
    ren_buffer buffer;
    open_rt();
    d.kind = REN_JOB_BARRIER;
    d.done = note;
    d.user = &s;
    post_ok(&d, NULL);
    CU_ASSERT_EQUAL(ren_runtime_close(rt), REN_OK);
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_ERR_CLOSED);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_TRANS, 64, &buffer), REN_ERR_CLOSED);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_ERR_BUSY);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(s.count, 1);
    CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_destroy(NULL), REN_OK);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_post_every_kind", test_post_every_kind},
        {"test_device_job_error_reaches_completion", test_device_job_error_reaches_completion},
        {"test_post_bad_input_is_refused", test_post_bad_input_is_refused},
        {"test_validate_names_the_member", test_validate_names_the_member},
        {"test_handles_foreign_unknown_and_stale", test_handles_foreign_unknown_and_stale},
        {"test_finished_job_stays_known_for_a_while", test_finished_job_stays_known_for_a_while},
        {"test_completions_once_and_in_timeline_order",
         test_completions_once_and_in_timeline_order},
        {"test_waits_order_jobs_across_streams", test_waits_order_jobs_across_streams},
        {"test_buffers_order_jobs_across_streams", test_buffers_order_jobs_across_streams},
        {"test_awaited_job_inherits_class", test_awaited_job_inherits_class},
        {"test_cancel_before_and_after_issue", test_cancel_before_and_after_issue},
        {"test_deadline_passed_is_not_run", test_deadline_passed_is_not_run},
        {"test_full_road_refuses_and_recovers", test_full_road_refuses_and_recovers},
        {"test_callback_may_post_but_not_block", test_callback_may_post_but_not_block},
        {"test_pump_stops_at_budget_and_count", test_pump_stops_at_budget_and_count},
        {"test_second_pump_of_a_channel_is_busy", test_second_pump_of_a_channel_is_busy},
        {"test_wait_any_timeout_wake_and_completion", test_wait_any_timeout_wake_and_completion},
        {"test_any_thread_delivery_runs_at_once", test_any_thread_delivery_runs_at_once},
        {"test_producers_keep_their_own_order", test_producers_keep_their_own_order},
        {"test_close_refuses_posts_and_finishes_work", test_close_refuses_posts_and_finishes_work},
    };
    return ren_test_main(argc, argv, "test_jobs", cases, REN_TEST_COUNT(cases), 180);
}
