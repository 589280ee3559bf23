/* SPDX-License-Identifier: MIT */
/* tests/unit/test_trace.c - the trace recorder: its file, its limits, its hand-over.
 *
 * Purpose   Shows that what is recorded is in the file once, that the file is JSON, and that ending
 *           a trace under writers neither waits, nor frees what they hold, nor leaks.
 * How       A counting allocator sees every byte. Files are read back line by line: the writer puts
 *           one event on a line.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../libren/train/json.h"
#include "../../libren/trace/trace.h"
#include "../support/test.h"

/* ------------------------------------------------------------------ support */

typedef struct counter {
    size_t live;
    long long fail_at; /* the Nth request from here fails; below 0 = none */
} counter;

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    counter *c = user;
    if (c->fail_at >= 0 && c->fail_at-- == 0) {
        return NULL;
    }
    c->live += bytes;
    return aligned_alloc(align, (bytes + align - 1) & ~(align - 1));
}

static void counted_free(void *user, void *ptr, size_t bytes)
{
    counter *c = user;
    c->live -= bytes;
    free(ptr);
}

/* One trace in one temporary file. */
typedef struct scene {
    counter count;
    ren__host_allocator allocator;
    ren__trace_slot slot;
    char path[64];
} scene;

static void scene_open(scene *s)
{
    memset(s, 0, sizeof *s);
    s->count.fail_at = -1;
    s->allocator = (ren__host_allocator){counted_alloc, counted_free, &s->count};
    (void)snprintf(s->path, sizeof s->path, "/tmp/ren-test-trace-%ld.json", (long)getpid());
    ren__trace_slot_init(&s->slot);
}

static void scene_close(scene *s)
{
    ren__trace_slot_deinit(&s->slot);
    CU_ASSERT_EQUAL(s->count.live, 0);
    (void)unlink(s->path);
}

static void scene_begin(scene *s, uint32_t records)
{
    ren_error err = {0};
    CU_ASSERT_EQUAL_FATAL(ren__trace_begin(&s->slot, s->path, records, &s->allocator, &err),
                          REN_OK);
}

/* The whole file, NUL-terminated; the caller frees it. */
static char *read_file(const char *path)
{
    FILE *stream = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    (void)fseek(stream, 0, SEEK_END);
    size_t bytes = (size_t)ftell(stream);
    rewind(stream);
    char *text = malloc(bytes + 1);
    CU_ASSERT_EQUAL(fread(text, 1, bytes, stream), bytes);
    text[bytes] = '\0';
    (void)fclose(stream);
    return text;
}

static unsigned count_of(const char *text, const char *word)
{
    unsigned n = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        n++;
    }
    return n;
}

static bool any_event(void *user, ren__json_event event, const char *text, size_t bytes)
{
    (void)user;
    (void)event;
    (void)text;
    (void)bytes;
    return true;
}

static bool is_json(const char *text)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    size_t position;
    return ren__json_parse(&a, text, strlen(text), any_event, NULL, &position) == REN__JSON_OK;
}

/* ------------------------------------------------------------------ the file */

/* Proves: while no trace is open recording does nothing and end says so. */
static void test_record_while_closed(void)
{
    scene s;
    scene_open(&s);
    CU_ASSERT_FALSE(ren__trace_on(&s.slot));
    ren__trace_span(&s.slot, REN__TRACK_PUMP, "nothing", 1, 2, 3);
    const ren__trace_event event = {.name = "nothing"};
    ren__trace_put(&s.slot, &event);
    CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(atomic_load(&s.slot.writers), 0);
    scene_close(&s);
}

/* Proves: spans, instants and flows are in the file with their track, times in microseconds from
 * begin, and argument; the file is JSON whatever the names hold; what began before the trace is cut
 * at its begin. Fails on a wrong unit, a wrong row, or a name that is not escaped. */
static void test_end_writes_file(void)
{
    scene s;
    scene_open(&s);
    scene_begin(&s, 16);
    CU_ASSERT_TRUE(ren__trace_on(&s.slot));
    uint64_t later = ren__now_ns() + 3600ull * 1000000000ull;
    ren__trace_span(&s.slot, REN__TRACK_SUBMITTER, "early", 0, later, 7);
    ren__trace_span(&s.slot, REN__TRACK_STREAM + REN_STREAM_COMP_1, "work", later, later + 12345,
                    8);
    ren__trace_span(&s.slot, REN__TRACK_COMPLETION + REN_STREAM_UPDATE, "reversed", later, 0, 9);
    ren__trace_instant(&s.slot, REN__TRACK_POST, "quote\" back\\ tab\t \xc3\xa9", later, 10);
    ren__trace_flow(&s.slot, "event", REN__TRACK_POST, later, REN__TRACK_PUMP + 15, later + 5000,
                    0);
    ren__trace_instant(&s.slot, REN__TRACK_PUMP + 3,
                       "a name that is longer than a record has room for, and is cut", later, 12);
    ren__trace_instant(&s.slot, REN__TRACK_PUMP + 3, NULL, later, UINT64_MAX);
    CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_OK);
    CU_ASSERT_FALSE(ren__trace_on(&s.slot));
    char *text = read_file(s.path);
    CU_ASSERT_TRUE(is_json(text));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "\"tid\":2,\"cat\":\"ren\",\"name\":\"early\",\"ts\":0.000,"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"tid\":5,\"cat\":\"ren\",\"name\":\"work\",\"ts\":"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"dur\":12.345,\"args\":{\"value\":8}"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"dur\":0.000,\"args\":{\"value\":9}"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"name\":\"quote\\\" back\\\\ tab? ??\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"ph\":\"s\",\"pid\":1,\"tid\":1,"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"ph\":\"f\",\"bp\":\"e\",\"pid\":1,\"tid\":34,"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"name\":\"a name that is longer than a record has\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"value\":\"0xffffffffffffffff\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"lost_records\":\"0\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "{\"name\":\"stream COMP_1\"}"));
    free(text);
    scene_close(&s);
}

/* A trace whose device clock read `device` ns when the host's read the trace's begin, and `rate`
 * device ns for a host ns since. */
static void scene_clock(scene *s, uint64_t begin_ns, uint64_t device_ns, uint64_t rate)
{
    ren__trace_clock *clock = &s->slot.clock;
    clock->first = (ren__clock_pair){device_ns, begin_ns, 0};
    clock->last = (ren__clock_pair){device_ns + 1000000 * rate, begin_ns + 1000000, 0};
    clock->known = true;
}

static void put_span(scene *s, uint32_t device, uint64_t begin_ns, uint64_t end_ns, uint64_t value)
{
    const ren__trace_event event = {.kind = REN__TRACE_SPAN,
                                    .track = REN__TRACK_STREAM,
                                    .device = device,
                                    .begin_ns = begin_ns,
                                    .end_ns = end_ns,
                                    .value = value,
                                    .name = "conv",
                                    .detail = "fwd"};
    ren__trace_put(&s->slot, &event);
}

/* Proves: device times are put on the line through the two readings of the clock, each end by
 * itself; what ended before the trace began is left out; without a reading all device times are.
 * Fails on a wrong slope or origin, or if host times are converted too. */
static void test_end_converts_device_times(void)
{
    scene s;
    scene_open(&s);
    scene_begin(&s, 16);
    uint64_t begin = atomic_load(&s.slot.current) ? ren__now_ns() : 0;
    scene_clock(&s, begin, 7000000000, 2);
    put_span(&s, REN__TRACE_DEVICE, 7000000000 + 2000000, 7000000000 + 2000000 + 500, 1);
    put_span(&s, 0, begin + 1000000, begin + 1000000 + 777, 2);
    put_span(&s, REN__TRACE_DEVICE_END, begin, 7000000000 + 6000, 3);
    put_span(&s, REN__TRACE_DEVICE, 7000000000 - 2000000000, 7000000000 - 1000000000, 4);
    CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_OK);
    char *text = read_file(s.path);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"name\":\"conv fwd\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"dur\":0.250,\"args\":{\"value\":1}"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"dur\":0.777,\"args\":{\"value\":2}"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"dur\":3.000,\"args\":{\"value\":3}"));
    CU_ASSERT_PTR_NULL(strstr(text, "\"value\":4}"));
    const char *one = strstr(text, "\"ts\":"), *two = one ? strstr(one + 1, "\"ts\":") : NULL;
    CU_ASSERT_FATAL(one && two);
    CU_ASSERT_EQUAL(atof(one + 5), atof(two + 5)); /* both at 1 ms */
    free(text);
    scene_begin(&s, 16);
    s.slot.clock.known = false;
    put_span(&s, REN__TRACE_DEVICE, 1, 2, 5);
    put_span(&s, 0, ren__now_ns(), ren__now_ns() + 1, 6);
    CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_OK);
    text = read_file(s.path);
    CU_ASSERT_PTR_NULL(strstr(text, "\"value\":5}"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"value\":6}"));
    free(text);
    scene_close(&s);
}

/* Proves: a change of the offset that two readings' errors can explain is no drift: both get the
 * offset that lies within both, however far the device's clock is from the host's; a greater change
 * stays as it is. Fails if a short trace takes the errors of its readings for a rate, as it would
 * at 5 us over 10 ms. */
static void test_clock_reconcile(void)
{
    const uint64_t host = 5000000000, device = 1700000000000000000;
    ren__clock_pair first = {device, host, 6000}, last = {device + 10000000, host + 10005000, 2000};
    ren__clock_reconcile(&first, &last);
    CU_ASSERT_EQUAL(last.host_ns - first.host_ns, 10000000);
    CU_ASSERT(first.host_ns >= host + 3000 && first.host_ns <= host + 6000);
    first = (ren__clock_pair){device, host, 1000};
    last = (ren__clock_pair){device + 10000000, host + 10005000, 2000};
    ren__clock_reconcile(&first, &last);
    CU_ASSERT_EQUAL(first.host_ns, host);
    CU_ASSERT_EQUAL(last.host_ns, host + 10005000);
    first = (ren__clock_pair){host, host, 0};
    last = (ren__clock_pair){host + 7, host + 7, 0};
    ren__clock_reconcile(&first, &last);
    CU_ASSERT(first.host_ns == host && last.host_ns == host + 7);
}

/* ------------------------------------------------------------------ memory for stamps */

static ren_status pinned_alloc(ren__device *dev, uint64_t bytes, void **out)
{
    (void)dev;
    *out = malloc(bytes);
    return *out ? REN_OK : REN_ERR_NO_DEVICE_MEMORY;
}

static void pinned_free(ren__device *dev, void *ptr, uint64_t bytes)
{
    (void)dev;
    (void)bytes;
    free(ptr);
}

/* Proves: blocks are zeroed and do not overlap, also round the ring's end; what is given back in
 * any order is taken again; while the oldest is under way and the ring is full nothing is given;
 * before the first trace nothing is. Fails if a block is handed out twice, or lost for good. */
static void test_stamps_ring(void)
{
    enum {
        UNDER_WAY = 8
    };
    const ren__device_api api = {.host_alloc = pinned_alloc, .host_free = pinned_free};
    static ren__stamps ring;
    uint64_t *block[UNDER_WAY] = {NULL};
    uint32_t size[UNDER_WAY] = {0};
    unsigned long long seed = 7;
    unsigned dirty = 0, shared = 0, refused = 0;
    CU_ASSERT_PTR_NULL(ren__stamps_take(&ring, 1));
    CU_ASSERT_EQUAL_FATAL(ren__stamps_open(&ring, &api, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren__stamps_open(&ring, &api, NULL), REN_OK);
    for (uint64_t i = 1; i < 20000; i++) {
        uint32_t k = (uint32_t)(ren_test_random(&seed) % UNDER_WAY);
        for (uint32_t n = 0; n < size[k] && block[k]; n++) {
            shared += block[k][n] != (block[k][0] >> 32 << 32 | n);
        }
        ren__stamps_give(block[k]);
        size[k] = 1u + (uint32_t)(ren_test_random(&seed) % 10000u);
        block[k] = ren__stamps_take(&ring, size[k]);
        refused += !block[k];
        for (uint32_t n = 0; n < size[k] && block[k]; n++) {
            dirty += block[k][n] != 0;
            block[k][n] = i << 32 | n;
        }
    }
    CU_ASSERT_EQUAL(dirty, 0);
    CU_ASSERT_EQUAL(shared, 0);
    CU_ASSERT(refused < 10000);
    for (uint32_t k = 0; k < UNDER_WAY; k++) {
        ren__stamps_give(block[k]);
    }
    uint64_t *oldest = ren__stamps_take(&ring, 10);
    uint64_t *rest = ren__stamps_take(&ring, REN__STAMP_ENTRIES / 2);
    CU_ASSERT_PTR_NOT_NULL(oldest);
    CU_ASSERT_PTR_NOT_NULL(rest);
    ren__stamps_give(rest);
    CU_ASSERT_PTR_NULL(ren__stamps_take(&ring, REN__STAMP_ENTRIES / 2));
    ren__stamps_give(oldest);
    rest = ren__stamps_take(&ring, REN__STAMP_ENTRIES / 2);
    CU_ASSERT_PTR_NOT_NULL(rest);
    ren__stamps_give(rest);
    ren__stamps_deinit(&ring, &api, NULL);
}

/* Proves: a full buffer keeps the oldest records, counts the rest, and the file is still good. */
static void test_record_when_full(void)
{
    scene s;
    scene_open(&s);
    scene_begin(&s, 100);
    for (uint64_t i = 0; i < 1000; i++) {
        ren__trace_instant(&s.slot, REN__TRACK_POST, "post", ren__now_ns(), i);
    }
    CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_OK);
    char *text = read_file(s.path);
    CU_ASSERT_TRUE(is_json(text));
    CU_ASSERT_EQUAL(count_of(text, "\"ph\":\"i\""), 100);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"value\":99}"));
    CU_ASSERT_PTR_NULL(strstr(text, "\"value\":100}"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"lost_records\":\"900\""));
    free(text);
    scene_close(&s);
}

/* Proves: one trace at a time; an ended slot can begin again, and each file holds its own records;
 * a slot that goes away with an open trace writes it. */
static void test_begin_again(void)
{
    scene s;
    scene_open(&s);
    ren_error err = {0};
    for (uint64_t round = 0; round < 3; round++) {
        scene_begin(&s, 10);
        CU_ASSERT_EQUAL(ren__trace_begin(&s.slot, "/tmp/x", 10, &s.allocator, &err), REN_ERR_BUSY);
        ren__trace_instant(&s.slot, REN__TRACK_POST, "round", ren__now_ns(), 1000 + round);
        CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_OK);
        CU_ASSERT_EQUAL(s.count.live, 0);
        char *text = read_file(s.path);
        CU_ASSERT_EQUAL(count_of(text, "\"round\""), 1);
        char value[32];
        (void)snprintf(value, sizeof value, "\"value\":%llu}", 1000ull + round);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, value));
        free(text);
    }
    scene_begin(&s, 10);
    ren__trace_instant(&s.slot, REN__TRACK_POST, "open to the end", ren__now_ns(), 0);
    ren__trace_slot_deinit(&s.slot);
    CU_ASSERT_EQUAL(s.count.live, 0);
    char *text = read_file(s.path);
    CU_ASSERT_TRUE(is_json(text) && strstr(text, "open to the end"));
    free(text);
    (void)unlink(s.path);
}

/* Proves: a path that cannot be opened, a full disk, and a refused allocation are errors which
 * leave the slot closed and nothing allocated. */
static void test_begin_and_end_fail(void)
{
    scene s;
    scene_open(&s);
    ren_error err = {0};
    CU_ASSERT_EQUAL(ren__trace_begin(&s.slot, "/no/such/folder/x", 0, &s.allocator, &err),
                    REN_ERR_IO);
    CU_ASSERT_EQUAL(err.status, REN_ERR_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "/no/such/folder/x"));
    for (long long n = 0; n < 2; n++) {
        s.count.fail_at = n;
        CU_ASSERT_EQUAL(ren__trace_begin(&s.slot, s.path, 0, &s.allocator, &err),
                        REN_ERR_NO_MEMORY);
        CU_ASSERT_EQUAL(s.count.live, 0);
    }
    s.count.fail_at = -1;
    if (access("/dev/full", W_OK) == 0) {
        CU_ASSERT_EQUAL(ren__trace_begin(&s.slot, "/dev/full", 10, &s.allocator, &err), REN_OK);
        CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_ERR_IO);
    }
    CU_ASSERT_EQUAL(s.count.live, 0);
    scene_begin(&s, 10);
    CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_OK);
    scene_close(&s);
}

/* ------------------------------------------------------------------ the hand-over */

/* Proves: a writer that stands between its look at the trace and its write keeps the buffer alive,
 * end and begin return meanwhile, and the buffer goes once the writer has left. A test stands for
 * the writer by being counted as one. Fails if end frees under a writer, waits for it, or forgets
 * it. */
static void test_end_under_a_writer(void)
{
    scene s;
    scene_open(&s);
    scene_begin(&s, 10);
    size_t one = s.count.live;
    ren__trace *held = atomic_load(&s.slot.current);
    atomic_fetch_add(&s.slot.writers, 1);
    CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_OK);
    CU_ASSERT_EQUAL(s.count.live, one);
    CU_ASSERT_PTR_EQUAL(s.slot.retired, held);
    scene_begin(&s, 10);
    CU_ASSERT_PTR_NOT_EQUAL(atomic_load(&s.slot.current), held);
    CU_ASSERT_EQUAL(ren__trace_end(&s.slot), REN_OK);
    CU_ASSERT_EQUAL(s.count.live, 2 * one);
    atomic_fetch_sub(&s.slot.writers, 1);
    scene_begin(&s, 10);
    CU_ASSERT_EQUAL(s.count.live, one);
    CU_ASSERT_PTR_NULL(s.slot.retired);
    scene_close(&s);
}

enum {
    WRITERS = 4,
    ROUNDS = 200
};

typedef struct crowd {
    scene s;
    _Atomic int stop;
    _Atomic uint64_t written[WRITERS];
} crowd;

typedef struct writer {
    crowd *c;
    uint64_t number;
} writer;

static void *write_spans(void *arg)
{
    const writer *w = arg;
    crowd *c = w->c;
    uint64_t i = 0;
    while (!atomic_load_explicit(&c->stop, memory_order_relaxed)) {
        uint64_t now = ren__now_ns();
        ren__trace_span(&c->s.slot, REN__TRACK_STREAM + (uint32_t)w->number, "span", now, now + 1,
                        (i << 8) | w->number);
        i++;
        atomic_store_explicit(&c->written[w->number], i, memory_order_relaxed);
        if (i % 64 == 0) {
            (void)sched_yield();
        }
    }
    return NULL;
}

/* The values of one writer in a file only grow: no record is there twice or of an older round. */
static bool values_grow(const char *text, long long last[WRITERS])
{
    for (const char *at = strstr(text, "\"ph\":\"X\""); at; at = strstr(at + 1, "\"ph\":\"X\"")) {
        const char *value = strstr(at, "\"value\":");
        long long v = value ? atoll(value + 8) : -1;
        if (v < 0 || (v & 255) >= WRITERS || last[v & 255] >= v) {
            return false;
        }
        last[v & 255] = v;
    }
    return true;
}

/* Proves: with four threads recording all the time, 200 traces begin and end; each file is JSON,
 * each writer's records are there once and in order, and none strays into a later file. Under a
 * sanitizer it also proves that no record is read while written, or written after its buffer is
 * freed. */
static void test_begin_end_under_load(void)
{
    static crowd c;
    pthread_t threads[WRITERS];
    writer writers[WRITERS];
    long long last[WRITERS] = {-1, -1, -1, -1};
    unsigned rounds = ROUNDS / ren_test_slowdown();
    scene_open(&c.s);
    for (uint64_t i = 0; i < WRITERS; i++) {
        writers[i] = (writer){&c, i};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, write_spans, &writers[i]), 0);
    }
    unsigned good = 0, records = 0;
    for (unsigned round = 0; round < rounds; round++) {
        scene_begin(&c.s, 1000);
        uint64_t before = atomic_load(&c.written[round % WRITERS]);
        while (atomic_load(&c.written[round % WRITERS]) < before + 20) {
            (void)sched_yield();
        }
        CU_ASSERT_EQUAL(ren__trace_end(&c.s.slot), REN_OK);
        char *text = read_file(c.s.path);
        good += is_json(text) && values_grow(text, last);
        records += count_of(text, "\"ph\":\"X\"");
        free(text);
    }
    atomic_store(&c.stop, 1);
    for (int i = 0; i < WRITERS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    CU_ASSERT_EQUAL(good, rounds);
    CU_ASSERT(records >= rounds);
    scene_close(&c.s);
}

/* ------------------------------------------------------------------ a runtime's trace */

static void count_done(const ren_completion *c, void *user)
{
    *(unsigned *)user += c->status == REN_OK;
}

/* Proves: ren_trace_begin and ren_trace_end check their arguments, one trace is open at a time, and
 * the file tells of each job its post, its time on its stream and its callback. */
static void test_trace_of_a_runtime(void)
{
    scene s;
    ren_runtime *rt = NULL;
    ren_runtime_config config = ren_runtime_config_default();
    ren_job_desc desc = ren_job_desc_default();
    ren_error err = {0};
    unsigned done = 0;
    scene_open(&s);
    config.device = REN_DEVICE_CPU;
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&config, &rt, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_trace_begin(NULL, s.path, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_trace_begin(rt, NULL, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_trace_begin(rt, "", NULL), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_trace_end(NULL), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_trace_end(rt), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_trace_begin(rt, s.path, &err), REN_OK);
    CU_ASSERT_EQUAL(ren_trace_begin(rt, s.path, &err), REN_ERR_BUSY);
    desc.kind = REN_JOB_BARRIER;
    desc.stream = REN_STREAM_COMP_2;
    desc.channel = 3;
    desc.done = count_done;
    desc.user = &done;
    for (int i = 0; i < 5; i++) {
        CU_ASSERT_EQUAL(ren_post(rt, &desc, NULL), REN_OK);
    }
    while (done < 5) {
        CU_ASSERT_EQUAL_FATAL(ren_wait_any(rt, REN_TIMEOUT_INFINITE), REN_OK);
        CU_ASSERT_EQUAL_FATAL(ren_pump(rt, 3, 0, 0, NULL), REN_OK);
    }
    CU_ASSERT_EQUAL(ren_trace_end(rt), REN_OK);
    char *text = read_file(s.path);
    CU_ASSERT_TRUE(is_json(text));
    CU_ASSERT_EQUAL(count_of(text, "\"tid\":1,\"cat\":\"ren\",\"name\":\"post\""), 5);
    CU_ASSERT_EQUAL(count_of(text, "\"tid\":11,\"cat\":\"ren\",\"name\":\"barrier\""), 5);
    CU_ASSERT_EQUAL(count_of(text, "\"tid\":22,\"cat\":\"ren\",\"name\":\"callback\""), 5);
    free(text);
    /* A runtime that ends with its trace open writes it. */
    CU_ASSERT_EQUAL(ren_trace_begin(rt, s.path, &err), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(rt, 5000000000u), REN_OK);
    text = read_file(s.path);
    CU_ASSERT_TRUE(is_json(text));
    free(text);
    scene_close(&s);
}

static const ren_test_case cases[] = {
    {"test_record_while_closed", test_record_while_closed},
    {"test_end_writes_file", test_end_writes_file},
    {"test_end_converts_device_times", test_end_converts_device_times},
    {"test_clock_reconcile", test_clock_reconcile},
    {"test_stamps_ring", test_stamps_ring},
    {"test_record_when_full", test_record_when_full},
    {"test_begin_again", test_begin_again},
    {"test_begin_and_end_fail", test_begin_and_end_fail},
    {"test_end_under_a_writer", test_end_under_a_writer},
    {"test_begin_end_under_load", test_begin_end_under_load},
    {"test_trace_of_a_runtime", test_trace_of_a_runtime},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_trace", cases, REN_TEST_COUNT(cases), 120);
}
