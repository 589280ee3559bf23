/* SPDX-License-Identifier: MIT */
/* tests/stress/test_api_random.c - random programs over jobs and buffers, from four threads.
 *
 * Proves    whatever the calls and their interleaving: an accepted job completes exactly once and
 *           a refused one never; its status is one that something in the program gives a reason
 *           for; a function runs exactly once if the job was not cancelled, late or aborted, and
 *           else never; it runs after all that the job waits for and all that its stream has
 *           before it; callbacks of one channel and stream come in timeline order; buffers of one
 *           thread and class hold what its jobs leave behind one after another; nobody is inside
 *           a shared buffer beside a writer; and the counters agree in the end.
 * Fails by  a failed check with the program's seed, or a hang, reported with the seed.
 * Again     REN_TEST_SEED=<seed> REN_TEST_PROGRAMS=1 runs one program again; REN_TEST_PROGRAMS
 *           alone says how many.
 *
 * A program makes a runtime of random shape (streams, ring, buffers, who drives the submitter);
 *           four threads make random calls, two of them by producers of their own; then the
 *           runtime ends in one of several ways, some of them while the threads still post. Every
 *           job has a record; what callbacks and functions see is noted there, and judged at the
 *           end.
 * Buffers   A private buffer belongs to one thread and one priority, so the order of its jobs is
 *           that of the posts: the thread's log is replayed on a model. Its jobs wait only for
 *           jobs that are found in their rings at any time (a shared ring may hide one behind
 *           another poster, and then the waiter may be overtaken). A shared buffer is written
 *           whole, with one byte, so a reader that sees two bytes saw two writers.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "api_program.h"

static program the_program;

static uint32_t draw(worker *w, uint32_t below)
{
    return (uint32_t)(ren_test_random(&w->random) >> 33) % below;
}

/* ------------------------------------------------------------------ what jobs run */

static void enter_shared(record *r)
{
    atomic_int *inside = &r->p->inside[r->shared];
    if (r->effect == SHARED_WRITE) {
        int free_now = 0;
        CHECK(r->p, atomic_compare_exchange_strong(inside, &free_now, -1), r);
    } else if (r->effect == SHARED_READ) {
        CHECK(r->p, atomic_fetch_add(inside, 1) >= 0, r);
    }
}

static void leave_shared(record *r)
{
    if (r->effect == SHARED_WRITE) {
        atomic_store(&r->p->inside[r->shared], 0);
    } else if (r->effect == SHARED_READ) {
        atomic_fetch_sub(&r->p->inside[r->shared], 1);
    }
}

static void run_begin(record *r)
{
    r->begin = atomic_fetch_add(&r->p->clock, 1) + 1;
    CHECK(r->p, atomic_fetch_add(&r->runs, 1) == 0, r);
    enter_shared(r);
}

static void run_end(record *r)
{
    leave_shared(r);
    r->end = atomic_fetch_add(&r->p->clock, 1) + 1;
}

static ren_status on_device(void *user, const ren_device_io *io)
{
    record *r = user;
    run_begin(r);
    CHECK(r->p, io->stream == r->desc.stream && io->pointer_count == r->desc.use_count, r);
    if (r->effect == ADD_CELLS) {
        unsigned char *bytes = io->pointers[0];
        for (uint32_t c = 0; c < CELLS; c++) {
            r->seen[c] = bytes[c * CELL];
            memset(bytes + c * CELL, bytes[c * CELL] + 1, CELL);
        }
    } else if (r->effect == SHARED_READ) {
        CHECK(r->p, api_is_uniform(io->pointers[0]), r);
    } else if (r->effect == SHARED_WRITE) {
        memset(io->pointers[0], (int)r->value, BYTES);
    }
    run_end(r);
    return r->enqueue_fails ? REN_ERR_DEVICE : REN_OK;
}

static void on_host(void *user)
{
    record *r = user;
    run_begin(r);
    run_end(r);
}

static void post_from_callback(program *p);

static void on_done(const ren_completion *c, void *user)
{
    record *r = user;
    program *p = r->p;
    uint64_t *last = r->desc.deliver == REN_DELIVER_PUMP
                         ? &p->last_pumped[r->desc.channel][r->desc.stream]
                         : &p->last_any[r->desc.stream];
    CHECK(p, atomic_fetch_add(&r->completions, 1) == 0, r);
    r->status = c->status;
    r->timeline = c->timeline_value;
    r->posted_ns = c->posted_ns;
    r->launched_ns = c->launched_ns;
    r->done_ns = c->done_ns;
    CHECK(p, c->stream == r->desc.stream && c->step == NULL, r);
    CHECK(p, (c->err != NULL) == (c->status < 0), r);
    if (c->timeline_value) {
        CHECK(p, c->timeline_value > *last, r);
        *last = c->timeline_value;
    }
    if (r->value % 16 == 0) {
        uint32_t n = 0;
        CHECK(p, ren_pump(p->rt, 0, 0, 0, &n) == REN_ERR_REENTRANT, r);
        CHECK(p, ren_wait(p->rt, c->job, REN_TIMEOUT_INFINITE) == REN_ERR_REENTRANT, r);
        CHECK(p, ren_runtime_drain(p->rt, 0) == REN_ERR_REENTRANT, r);
        CHECK(p, ren_cancel(p->rt, c->job) == REN_TOO_LATE, r);
        CHECK(p, ren_job_status(p->rt, c->job) == c->status, r);
    }
    if (r->value % 8 == 1) {
        post_from_callback(p);
    }
}

/* ------------------------------------------------------------------ posting */

static record *take_record(program *p, uint32_t thread)
{
    uint32_t n = atomic_fetch_add(&p->records_used, 1);
    record *r = n < RECORDS ? &p->records[n] : NULL;
    if (!r) {
        atomic_fetch_sub(&p->records_used, 1);
        return NULL;
    }
    r->p = p;
    r->thread = thread;
    r->status = REN_PENDING;
    r->desc = ren_job_desc_default();
    return r;
}

static bool is_refusal(const program *p, ren_status status)
{
    return status == REN_ERR_QUEUE_FULL || status == REN_ERR_STALE ||
           (status == REN_ERR_CLOSED && p->closing) ||
           (status == REN_ERR_DEVICE_LOST && p->aborting);
}

/* True when accepted. */
static bool post(program *p, ren_producer *producer, record *r)
{
    ren_job job = {1};
    ren_status status =
        producer ? ren_producer_post(producer, &r->desc, &job) : ren_post(p->rt, &r->desc, &job);
    r->desc.wait = NULL; /* the caller's array */
    if (status != REN_OK) {
        CHECK(p, is_refusal(p, status) && job.id == 0, r);
        atomic_store(&r->refused, 1);
        return false;
    }
    atomic_store(&r->id, job.id);
    return true;
}

static void post_from_callback(program *p)
{
    record *r = take_record(p, THREADS);
    if (r) {
        r->desc.kind = REN_JOB_HOST;
        r->desc.host_fn = on_host;
        r->desc.host_user = r;
        r->desc.stream = (ren_stream)((r - p->records) % REN_STREAM_COUNT);
        r->desc.deliver = REN_DELIVER_PUMP;
        r->desc.done = on_done;
        r->desc.user = r;
        r->value = 2;
        (void)post(p, NULL, r);
    }
}

/* A record that may be in any state, or NULL. */
static record *any_record(worker *w)
{
    uint32_t used = atomic_load(&w->p->records_used);
    used = used < RECORDS ? used : RECORDS;
    if (used == 0) {
        return NULL;
    }
    /* Mostly recent ones: the others are done. */
    uint32_t back = draw(w, draw(w, 4) ? (used < 24 ? used : 24) : used);
    record *r = &w->p->records[used - 1 - back];
    return atomic_load(&r->id) ? r : NULL;
}

static ren_job job_of(record *r)
{
    ren_job job = {atomic_load(&r->id)};
    return job;
}

static void choose_waits(worker *w, record *r, ren_job *jobs, bool strict_only)
{
    uint32_t count = draw(w, 3) ? draw(w, 3) : draw(w, REN_MAX_WAITS + 1);
    r->strict = w->producer != NULL;
    for (uint32_t i = 0; i < count; i++) {
        record *other = any_record(w);
        if (!other || (strict_only && !other->strict)) {
            continue;
        }
        r->strict = r->strict && other->strict;
        r->waits[r->desc.wait_count] = other;
        jobs[r->desc.wait_count++] = job_of(other);
    }
    r->desc.wait = jobs;
}

static void set_location(ren_location *l, const private_buffer *b, uint32_t cell)
{
    l->buffer = b->buffer;
    l->offset = cell * CELL;
}

/* One of the thread's buffers; its number gives the class of all its jobs. */
static bool choose_private(worker *w, record *r)
{
    uint32_t n = draw(w, PRIVATE);
    private_buffer *b = &w->buffers[n];
    private_buffer *from = &w->buffers[n];
    if (!b->buffer.id) {
        return false;
    }
    r->desc.priority = (ren_priority)n;
    r->effect = (effect)(SET_CELLS + draw(w, ADD_CELLS - SET_CELLS + 1));
    r->model = b->model;
    r->from = from->model;
    r->first = draw(w, CELLS);
    r->cells = 1 + draw(w, CELLS - r->first);
    r->desc.kind = REN_JOB_COPY;
    switch (r->effect) {
    case SET_CELLS:
        r->desc.kind = REN_JOB_FILL;
        set_location(&r->desc.fill.dst, b, r->first);
        r->desc.fill.value = r->value & 255u;
        r->desc.fill.bytes = r->cells * CELL;
        break;
    case UPLOAD:
        for (uint32_t c = 0; c < CELLS; c++) {
            memset(r->bytes + c * CELL, (int)((r->value + c) & 255u), CELL);
        }
        set_location(&r->desc.copy.dst, b, 0);
        r->desc.copy.src.host = r->bytes;
        r->desc.copy.bytes = BYTES;
        break;
    case DOWNLOAD:
        set_location(&r->desc.copy.src, b, 0);
        r->desc.copy.dst.host = r->bytes;
        r->desc.copy.bytes = BYTES;
        break;
    case COPY_CELLS: /* inside one buffer, so that the class is one */
        r->cells = 1 + draw(w, CELLS / 2);
        r->first = draw(w, 2) ? 0 : CELLS - r->cells;
        r->first_from = r->first ? 0 : CELLS - r->cells;
        set_location(&r->desc.copy.dst, b, r->first);
        set_location(&r->desc.copy.src, from, r->first_from);
        r->desc.copy.bytes = r->cells * CELL;
        break;
    default:
        r->desc.kind = REN_JOB_DEVICE;
        r->use.buffer = b->buffer;
        r->use.access = REN_ACCESS_READ_WRITE;
        r->desc.uses = &r->use;
        r->desc.use_count = 1;
        break;
    }
    return true;
}

static bool choose_shared(worker *w, record *r)
{
    r->shared = draw(w, SHARED);
    r->use.buffer = w->p->shared[r->shared];
    if (!r->use.buffer.id) {
        return false;
    }
    r->effect = (effect)(SHARED_SET + draw(w, SHARED_WRITE - SHARED_SET + 1));
    if (r->effect == SHARED_SET) {
        r->desc.kind = REN_JOB_FILL;
        r->desc.fill.dst.buffer = r->use.buffer;
        r->desc.fill.value = r->value & 255u;
        r->desc.fill.bytes = BYTES;
    } else if (r->effect == SHARED_GET) {
        r->desc.kind = REN_JOB_COPY;
        r->desc.copy.src.buffer = r->use.buffer;
        r->desc.copy.dst.host = r->bytes;
        r->desc.copy.bytes = BYTES;
    } else {
        r->desc.kind = draw(w, 2) ? REN_JOB_DEVICE : REN_JOB_HOST;
        r->use.access = r->effect == SHARED_READ ? REN_ACCESS_READ : REN_ACCESS_WRITE;
        r->desc.uses = &r->use;
        r->desc.use_count = 1;
    }
    return true;
}

static void post_random(worker *w)
{
    static const ren_job_kind plain[] = {REN_JOB_DEVICE, REN_JOB_HOST, REN_JOB_BARRIER};
    ren_job jobs[REN_MAX_WAITS];
    record *r = take_record(w->p, w->number);
    if (!r) {
        return;
    }
    r->value = draw(w, 256);
    r->desc.priority = (ren_priority)draw(w, 3);
    uint32_t what = draw(w, 8);
    bool is_private = what < 4 && choose_private(w, r);
    if (!is_private && !(what < 6 && choose_shared(w, r))) {
        r->effect = NO_EFFECT;
        r->desc.kind = plain[draw(w, 3)];
    }
    choose_waits(w, r, jobs, is_private);
    r->desc.stream = (ren_stream)draw(w, REN_STREAM_COUNT);
    r->desc.channel = draw(w, 3);
    r->desc.deliver = (ren_deliver)draw(w, is_private ? 2 : 3);
    r->desc.done = on_done;
    r->desc.user = r;
    r->desc.enqueue = on_device;
    r->desc.enqueue_user = r;
    r->desc.host_fn = on_host;
    r->desc.host_user = r;
    r->enqueue_fails = r->desc.kind == REN_JOB_DEVICE && draw(w, 16) == 0;
    if (draw(w, 16) == 0) {
        r->desc.deadline_ns = ren_now_ns() + draw(w, 200000);
    }
    if (post(w->p, w->producer, r) && is_private) {
        w->log[w->log_count++] = (uint32_t)(r - w->p->records);
    }
}

/* ------------------------------------------------------------------ other calls */

static void change_buffer(worker *w)
{
    program *p = w->p;
    private_buffer *b = &w->buffers[draw(w, PRIVATE)];
    if (b->buffer.id) {
        CHECK(p, ren_buffer_free(p->rt, b->buffer) == REN_OK, NULL);
        CHECK(p, ren_buffer_free(p->rt, b->buffer) == REN_ERR_STALE, NULL);
        b->buffer.id = 0;
        return;
    }
    if (w->models == MODELS) {
        return;
    }
    ren_status status =
        ren_buffer_alloc(p->rt, (ren_stream)draw(w, REN_STREAM_COUNT), BYTES, &b->buffer);
    if (status == REN_OK) {
        b->model = w->models++;
        return;
    }
    CHECK(p,
          status == REN_ERR_QUEUE_FULL || status == REN_ERR_BUSY || status == REN_ERR_WOULD_GROW ||
              (status == REN_ERR_CLOSED && p->closing) ||
              (status == REN_ERR_DEVICE_LOST && p->aborting),
          NULL);
}

static void drop_buffers(worker *w)
{
    for (uint32_t n = 0; n < PRIVATE; n++) {
        CHECK(w->p, ren_buffer_free(w->p->rt, w->buffers[n].buffer) == REN_OK, NULL);
        w->buffers[n].buffer.id = 0;
    }
}

static void cancel(worker *w, record *r)
{
    /* Counted before the call, so that a completion never comes before its reason. */
    atomic_fetch_add(&r->cancels, 1);
    ren_status status = ren_cancel(w->p->rt, job_of(r));
    CHECK(w->p, status == REN_OK || status == REN_TOO_LATE || status == REN_ERR_STALE, r);
    if (status != REN_OK) {
        atomic_fetch_sub(&r->cancels, 1);
    }
}

static void wait_for(worker *w, record *r)
{
    static const uint64_t timeouts[] = {0, 1, 50000, 2000000, REN_TIMEOUT_INFINITE - 1};
    ren_status status = ren_wait(w->p->rt, job_of(r), timeouts[draw(w, 5)]);
    CHECK(w->p, status != REN_PENDING, r);
    api_check_looked(w->p, status, r);
}

static void pump(worker *w)
{
    static const uint64_t budgets[] = {0, 1, 1000, 100000};
    uint32_t max = draw(w, 4);
    uint32_t n = 0;
    ren_status status = ren_pump(w->p->rt, draw(w, 3), max, budgets[draw(w, 4)], &n);
    CHECK(w->p, status == REN_OK || (status == REN_ERR_BUSY && n == 0), NULL);
    CHECK(w->p, !max || n <= max, NULL);
}

static void look_around(worker *w)
{
    program *p = w->p;
    ren_stats stats = ren_stats_default();
    uint64_t before = 0;
    uint64_t after = 0;
    ren_stream stream = (ren_stream)draw(w, REN_STREAM_COUNT);
    ren_status status;
    switch (draw(w, 7)) {
    case 0:
        CHECK(p, ren_runtime_stats(p->rt, &stats) == REN_OK, NULL);
        CHECK(p,
              stats.jobs_completed + stats.jobs_failed + stats.jobs_cancelled <= stats.jobs_posted,
              NULL);
        break;
    case 1:
        CHECK(p, ren_timeline_value(p->rt, stream, &before) == REN_OK, NULL);
        status = ren_timeline_wait(p->rt, stream, before + draw(w, 2), draw(w, 100000));
        CHECK(p,
              status == REN_OK || status == REN_TIMEOUT ||
                  (status == REN_ERR_DEVICE_LOST && p->aborting),
              NULL);
        CHECK(p, ren_timeline_value(p->rt, stream, &after) == REN_OK && after >= before, NULL);
        break;
    case 2:
        status = ren_wait_any(p->rt, draw(w, 100000));
        CHECK(p,
              status == REN_OK || status == REN_TIMEOUT || status == REN_WOKEN ||
                  (status == REN_ERR_DEVICE_LOST && p->aborting),
              NULL);
        break;
    case 3:
        CHECK(p, ren_wake(p->rt) == REN_OK, NULL);
        break;
    case 4:
        status = ren_runtime_status(p->rt, NULL);
        CHECK(p, status == REN_OK || p->aborting, NULL);
        break;
    case 5:
        if (w->producer) {
            drop_buffers(w); /* another producer is another order */
            CHECK(p, ren_producer_release(w->producer) == REN_OK, NULL);
            status = ren_producer_register(p->rt, &w->producer);
            CHECK(p, status == REN_OK || (status == REN_ERR_CLOSED && p->closing) || p->aborting,
                  NULL);
        }
        break;
    default:
        status = ren_runtime_tick(p->rt, draw(w, 3), NULL);
        CHECK(p,
              p->config.host_drives_submitter
                  ? status == REN_OK || status == REN_ERR_BUSY || p->aborting
                  : status == REN_ERR_INVALID_ARGUMENT,
              NULL);
        break;
    }
}

static void *work(void *user)
{
    worker *w = user;
    for (uint32_t i = 0; i < w->p->ops; i++) {
        record *r;
        uint32_t what = draw(w, 32);
        if (what < 18) {
            post_random(w);
        } else if (what < 20) {
            change_buffer(w);
        } else if (what < 25) {
            pump(w);
        } else if (what < 28) {
            look_around(w);
        } else if ((r = any_record(w)) != NULL) {
            if (what == 28) {
                wait_for(w, r);
            } else if (what < 31) {
                cancel(w, r);
            } else {
                api_check_looked(w->p, ren_job_status(w->p->rt, job_of(r)), r);
            }
        }
    }
    if (w->producer) {
        CHECK(w->p, ren_producer_release(w->producer) == REN_OK, NULL);
        w->producer = NULL;
    }
    atomic_fetch_sub(&w->p->working, 1);
    return NULL;
}

/* ------------------------------------------------------------------ programs */

/* One program in four has a device call that fails once, and half of those lose the device by
 * it. */
static void arm_fault(program *p, worker *dice)
{
    static const char *const calls[] = {"copy",       "fill",         "call",
                                        "event_wait", "event_record", "event_sync"};
    if (draw(dice, 4) == 0) {
        p->aborting = (int)draw(dice, 2);
        p->faulty = !p->aborting;
        ren_test_fault(p->rt, calls[draw(dice, 6)], 1 + draw(dice, 20),
                       p->faulty ? REN_ERR_DEVICE : REN_ERR_DEVICE_LOST, 0);
    }
}

static void make_program(program *p, unsigned long long seed)
{
    static const uint32_t rings[] = {1, 2, 3, 16, 64, 4096};
    static const uint32_t buffers[] = {1, 2, 5, 64, 64};
    worker dice = {.p = p, .random = seed};
    uint32_t used = p->records_used < RECORDS ? p->records_used : RECORDS;
    memset(p->records, 0, used * sizeof p->records[0]);
    memset(p, 0, offsetof(program, records)); /* no failure, or there were no next program */
    p->seed = seed;
    p->config = ren_test_config();
    p->config.streams = 1 + draw(&dice, REN_STREAM_COUNT);
    p->config.ring_entries = rings[draw(&dice, 6)];
    p->config.max_buffers = buffers[draw(&dice, 5)];
    p->config.host_drives_submitter = draw(&dice, 5) == 0;
    p->config.allow_growth = draw(&dice, 2);
    p->ops = 20 + draw(&dice, 150);
    p->ending = draw(&dice, 6);
    p->working = THREADS;
    if (ren_test_device() == REN_DEVICE_CPU && draw(&dice, 4) == 0) {
        ren_test_unpinned_next(); /* copies of host memory are made by completion threads */
    }
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&p->config, &p->rt, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_memory_reserve(p->rt, 1u << 16), REN_OK);
    for (uint32_t i = 0; i < SHARED; i++) {
        ren_job_desc d = ren_job_desc_default();
        if (ren_buffer_alloc(p->rt, REN_STREAM_COMP_1, BYTES, &p->shared[i]) == REN_OK) {
            ren_job job;
            d.kind = REN_JOB_FILL;
            d.fill.dst.buffer = p->shared[i];
            d.fill.bytes = BYTES;
            CU_ASSERT_EQUAL(ren_post(p->rt, &d, &job), REN_OK);
            CU_ASSERT_EQUAL(ren_runtime_drain(p->rt, REN_TIMEOUT_INFINITE), REN_OK);
        }
    }
    arm_fault(p, &dice);
    for (uint32_t t = 0; t < THREADS; t++) {
        worker *w = &p->workers[t];
        w->p = p;
        w->number = t;
        w->random = seed * THREADS + t;
        if (t < THREADS / 2) {
            CU_ASSERT_EQUAL(ren_producer_register(p->rt, &w->producer), REN_OK);
        }
    }
}

/* A step of the end that must not take for ever. */
static void must(program *p, const char *what, ren_status got, ren_status want)
{
    if (got != want) {
        (void)fprintf(stderr, "seed %llu: %s: %s\n", p->seed, what, ren_status_name(got));
        atomic_fetch_add(&p->failures, 1);
        if (got == REN_TIMEOUT || got == REN_ERR_BUSY) {
            abort(); /* something hangs: the rest of the run is worth nothing */
        }
    }
}

static void pump_all(program *p)
{
    for (uint32_t c = 0; c < REN_CHANNELS; c++) {
        uint32_t n = 1;
        while (n) {
            must(p, "pump", ren_pump(p->rt, c, 0, 0, &n), REN_OK);
        }
    }
}

static void join(program *p, const pthread_t *threads)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HANG_S * (time_t)ren_test_slowdown();
    for (uint32_t t = 0; t < THREADS; t++) {
        if (pthread_timedjoin_np(threads[t], NULL, &until) != 0) {
            (void)fprintf(stderr, "seed %llu: thread %u hangs\n", p->seed, t);
            abort();
        }
    }
}

static void end_program(program *p, const pthread_t *threads)
{
    const uint64_t hang_ns = (uint64_t)HANG_S * ren_test_slowdown() * UINT64_C(1000000000);
    ren_stats stats = ren_stats_default();
    if (p->ending >= 4) {
        /* While the threads are in the middle of it, as far as the scheduler lets. */
        while (p->records_used < p->ops && p->working == THREADS) {
            (void)sched_yield();
        }
        p->closing = 1;
        if (p->ending == 5) {
            p->aborting = 1;
            must(p, "abort", ren_runtime_abort(p->rt), REN_OK);
        } else {
            must(p, "close", ren_runtime_close(p->rt), REN_OK);
        }
    }
    join(p, threads);
    p->closing = 1;
    if (p->ending == 0) {
        p->aborting = 1;
        must(p, "abort", ren_runtime_abort(p->rt), REN_OK);
    }
    /* Callbacks may still post, so once is not enough. */
    do {
        ren_status status = ren_runtime_drain(p->rt, hang_ns);
        must(p, "drain", status, p->aborting && status < 0 ? REN_ERR_DEVICE_LOST : REN_OK);
        pump_all(p);
        CU_ASSERT_EQUAL(ren_runtime_stats(p->rt, &stats), REN_OK);
    } while (stats.jobs_posted != stats.jobs_completed + stats.jobs_failed + stats.jobs_cancelled ||
             stats.completions_waiting);
    if (p->ending == 1) {
        must(p, "destroy", ren_runtime_destroy(p->rt), REN_OK);
    } else {
        must(p, "shutdown", ren_runtime_shutdown(p->rt, hang_ns), REN_OK);
    }
    p->rt = NULL;
}

static void run_program(unsigned long long seed)
{
    program *p = &the_program;
    pthread_t threads[THREADS];
    make_program(p, seed);
    for (uint32_t t = 0; t < THREADS; t++) {
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[t], NULL, work, &p->workers[t]), 0);
    }
    end_program(p, threads);
    api_judge(p);
}

static unsigned long long from_environment(const char *name, unsigned long long otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void test_random_programs(void)
{
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_skip("the programs' device work is host code, which only the CPU device runs");
        return;
    }
    unsigned long long first = from_environment("REN_TEST_SEED", 1);
    unsigned long long count = from_environment("REN_TEST_PROGRAMS", 3000 / ren_test_slowdown());
    for (unsigned long long i = 0; i < count && the_program.failures == 0; i++) {
        run_program(first + i);
    }
    CU_ASSERT_EQUAL(the_program.failures, 0);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_random_programs", test_random_programs},
    };
    return ren_test_main(argc, argv, "stress/test_api_random", cases, REN_TEST_COUNT(cases),
                         getenv("REN_TEST_PROGRAMS") ? 3600 : 300);
}
