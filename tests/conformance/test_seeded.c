/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_seeded.c - random programs under the CPU device's seeded scheduler.
 *
 * Proves    the commands that the submitter enqueues for any program order all that must be
 *           ordered, whatever the lanes do in between: judged from the trace, not from one run's
 *           luck. Every two commands that touch the same bytes, one of them writing, are ordered
 *           by lanes and events; a job's command comes after those of the jobs that it waits for,
 *           and after all that a BARRIER stands for; every command begins and ends once, in its
 *           lane's order, and no wait ends before its record; callbacks come once; and the bytes
 *           are those of the jobs run one after another. One seed gives one schedule.
 * Fails by  a judgement with the program's seed. The judge itself is judged: it must find
 *           something when the events are left out of a trace.
 * Again     REN_TEST_SEED=<seed> REN_TEST_PROGRAMS=1; REN_TEST_PROGRAMS alone says how many.
 *
 * A gated program   10 to 500 jobs in bursts. A first job holds the device; the burst is posted
 * and issued by one tick; then the device is let go. So nothing completes while commands are
 * made: each order is there as an event in the trace, and the schedule is a function of the seed
 * alone.
 * A free program    as it comes: a submitter thread, HOST jobs that park others, completions in
 * between. Judged by what is left in memory, by the functions' order and by the trace's begins
 * and ends.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libren/core/core.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

enum {
    BUFFERS = 6,
    BYTES = 256,
    MOST_JOBS = 500,
    BURST = 50, /* fewer than a lane's unfinished batches */
    MOST_COMMANDS = 32768,
    MOST_EVENTS = 512,
    HANG_S = 60
};

typedef struct job {
    ren_job id;
    ren_job_desc desc;
    ren_use uses[2];
    uint32_t buffer, other; /* numbers: written (or read by a download), read besides */
    uint32_t first, other_first, count;
    unsigned char bytes[BYTES]; /* a host side */
    unsigned char expected[BYTES];
    uint32_t waits[4]; /* numbers of jobs */
    uint32_t wait_count;
    uint32_t begin, end; /* stamps of its function */
    const void *addresses[2];
    bool cancelled;
    atomic_int completions;
    atomic_int runs;
    ren_status status;
    uint32_t need[REN__LANES]; /* judge: job commands of each lane that are before its end */
} job;

typedef struct program {
    unsigned long long seed;
    unsigned long long random;
    bool gated;
    ren_runtime *rt;
    ren_buffer buffers[BUFFERS];
    unsigned char model[BUFFERS][BYTES];
    uint32_t job_count;
    uint32_t first_of_burst;
    atomic_uint stamp;
    sem_t gate;
    atomic_int gate_entered;
    uint32_t command_count;
    uint64_t hash;
    uint32_t violations;
    bool ignore_events; /* the judge's own test */
    job jobs[MOST_JOBS];
    ren_test_command commands[MOST_COMMANDS]; /* begins and ends, as reported */
} program;

static program the_program;

static void fail(program *p, const char *what, unsigned long long a, unsigned long long b)
{
    if (p->violations++ < 5 && !p->ignore_events) {
        (void)fprintf(stderr, "seed %llu: %s (%llu, %llu)\n", p->seed, what, a, b);
    }
}

static uint32_t draw(program *p, uint32_t below)
{
    return (uint32_t)(ren_test_random(&p->random) >> 33) % below;
}

/* ------------------------------------------------------------------ the trace */

static void mix(program *p, uint64_t value)
{
    p->hash = (p->hash ^ value) * UINT64_C(0x100000001b3);
}

/* Reports come one at a time. */
static void on_command(void *user, const ren_test_command *c)
{
    program *p = user;
    if (p->command_count < MOST_COMMANDS) {
        p->commands[p->command_count++] = *c;
    }
    mix(p, c->command);
    mix(p, (uint64_t)c->begin << 8 | c->lane);
    mix(p, (uint64_t)(unsigned char)c->call[0] << 8 | (unsigned char)c->call[6 % strlen(c->call)]);
}

/* ------------------------------------------------------------------ jobs */

static void on_done(const ren_completion *c, void *user)
{
    job *j = user;
    atomic_fetch_add(&j->completions, 1);
    j->status = c->status;
}

/* What a DEVICE job does to the bytes of its buffers. */
static void combine(unsigned char *to, const unsigned char *from)
{
    for (uint32_t i = 0; i < BYTES; i++) {
        to[i] = (unsigned char)(to[i] * 5u + from[(i + 1) % BYTES] + 1u);
    }
}

static ren_status on_device(void *user, const ren_device_io *io)
{
    job *j = user;
    j->begin = atomic_fetch_add(&the_program.stamp, 1) + 1;
    atomic_fetch_add(&j->runs, 1);
    j->addresses[0] = io->pointers[0];
    j->addresses[1] = io->pointers[1];
    combine(io->pointers[0], io->pointers[1]);
    j->end = atomic_fetch_add(&the_program.stamp, 1) + 1;
    return REN_OK;
}

static void on_host(void *user)
{
    job *j = user;
    j->begin = atomic_fetch_add(&the_program.stamp, 1) + 1;
    atomic_fetch_add(&j->runs, 1);
    j->end = atomic_fetch_add(&the_program.stamp, 1) + 1;
}

static ren_status stay_at_gate(void *user, const ren_device_io *io)
{
    program *p = user;
    (void)io;
    atomic_store(&p->gate_entered, 1);
    while (sem_wait(&p->gate) != 0) {
    }
    return REN_OK;
}

static void set_side(program *p, job *j, ren_location *l, bool host, uint32_t buffer,
                     uint32_t first)
{
    if (host) {
        l->host = j->bytes;
    } else {
        l->buffer = p->buffers[buffer];
        l->offset = first;
    }
}

static void make_payload(program *p, job *j)
{
    ren_job_desc *d = &j->desc;
    j->buffer = draw(p, BUFFERS);
    j->other = (j->buffer + 1 + draw(p, BUFFERS - 1)) % BUFFERS;
    j->count = 1 + draw(p, BYTES);
    j->first = draw(p, BYTES - j->count + 1);
    j->other_first = draw(p, BYTES - j->count + 1);
    switch (draw(p, p->gated ? 9 : 10)) {
    case 0:
    case 1:
        d->kind = REN_JOB_FILL;
        set_side(p, j, &d->fill.dst, false, j->buffer, j->first);
        d->fill.value = draw(p, 256);
        d->fill.bytes = j->count;
        break;
    case 2: /* upload */
        d->kind = REN_JOB_COPY;
        for (uint32_t i = 0; i < BYTES; i++) {
            j->bytes[i] = (unsigned char)draw(p, 256);
        }
        set_side(p, j, &d->copy.dst, false, j->buffer, j->first);
        set_side(p, j, &d->copy.src, true, 0, 0);
        d->copy.bytes = j->count;
        break;
    case 3: /* download */
        d->kind = REN_JOB_COPY;
        set_side(p, j, &d->copy.dst, true, 0, 0);
        set_side(p, j, &d->copy.src, false, j->buffer, j->first);
        d->copy.bytes = j->count;
        break;
    case 4:
    case 5:
        d->kind = REN_JOB_COPY;
        set_side(p, j, &d->copy.dst, false, j->buffer, j->first);
        set_side(p, j, &d->copy.src, false, j->other, j->other_first);
        d->copy.bytes = j->count;
        break;
    case 6:
        d->kind = REN_JOB_BARRIER;
        break;
    case 9:
        d->kind = REN_JOB_HOST;
        d->host_fn = on_host;
        d->host_user = j;
        break;
    default:
        d->kind = REN_JOB_DEVICE;
        d->enqueue = on_device;
        d->enqueue_user = j;
        j->uses[0] = (ren_use){p->buffers[j->buffer], REN_ACCESS_READ_WRITE};
        j->uses[1] = (ren_use){p->buffers[j->other], REN_ACCESS_READ};
        d->uses = j->uses;
        d->use_count = 2;
        break;
    }
}

/* The job run on the model. */
static void apply(program *p, job *j)
{
    const ren_job_desc *d = &j->desc;
    unsigned char *bytes = p->model[j->buffer];
    if (d->kind == REN_JOB_FILL) {
        memset(bytes + j->first, (int)d->fill.value, j->count);
    } else if (d->kind == REN_JOB_DEVICE) {
        combine(bytes, p->model[j->other]);
    } else if (d->kind == REN_JOB_COPY && d->copy.dst.host) {
        memcpy(j->expected, bytes + j->first, j->count);
    } else if (d->kind == REN_JOB_COPY) {
        const unsigned char *from =
            d->copy.src.host ? j->bytes : p->model[j->other] + j->other_first;
        memcpy(bytes + j->first, from, j->count);
    }
}

static void post_one(program *p)
{
    uint32_t n = p->job_count;
    job *j = &p->jobs[n];
    ren_job waits[4];
    ren_status status;
    memset(j, 0, sizeof *j);
    j->desc = ren_job_desc_default();
    make_payload(p, j);
    j->desc.stream = (ren_stream)draw(p, REN_STREAM_COUNT);
    j->desc.done = on_done;
    j->desc.user = j;
    for (uint32_t i = draw(p, 8); i < 4 && n > p->first_of_burst; i++) {
        uint32_t back = n - p->first_of_burst < 12 ? n - p->first_of_burst : 12;
        j->waits[j->wait_count] = n - 1 - draw(p, back);
        waits[j->wait_count] = p->jobs[j->waits[j->wait_count]].id;
        j->wait_count++;
    }
    j->desc.wait = waits;
    j->desc.wait_count = j->wait_count;
    while ((status = ren_post(p->rt, &j->desc, &j->id)) == REN_ERR_QUEUE_FULL) {
        (void)ren_pump(p->rt, 0, 0, 0, NULL);
        (void)sched_yield();
    }
    CU_ASSERT_EQUAL(status, REN_OK);
    p->job_count++;
    if (p->gated && draw(p, 16) == 0) {
        CU_ASSERT_EQUAL(ren_cancel(p->rt, j->id), REN_OK);
        j->cancelled = true;
    } else {
        apply(p, j);
    }
}

/* ------------------------------------------------------------------ judging the trace */

/* Begins and ends: once each, one command of a lane after another. */
static void judge_execution(program *p, uint32_t from)
{
    uint64_t last[REN__LANES] = {0};
    uint64_t open[REN__LANES] = {0};
    for (uint32_t i = from; i < p->command_count; i++) {
        const ren_test_command *c = &p->commands[i];
        if (c->begin && (open[c->lane] || c->command <= last[c->lane])) {
            fail(p, "a command began out of its lane's order", c->lane, c->command);
        }
        if (!c->begin && open[c->lane] != c->command) {
            fail(p, "a command ended that was not the one begun", c->lane, c->command);
        }
        open[c->lane] = c->begin ? c->command : 0;
        last[c->lane] = c->command;
    }
    for (uint32_t l = 0; l < REN__LANES; l++) {
        if (open[l]) {
            fail(p, "a command never ended", l, open[l]);
        }
    }
}

static int by_number(const void *a, const void *b)
{
    const ren_test_command *x = a;
    const ren_test_command *y = b;
    return x->command < y->command ? -1 : x->command > y->command;
}

typedef struct access {
    uint32_t lane;
    uint32_t index; /* which job command of its lane, from 1 */
    ren_test_access what;
    bool write;
} access;

typedef struct event_state {
    const ren__event *event;
    uint32_t clock[REN__LANES];
} event_state;

/* Happens-before, in job commands: clock[l][k] = those of lane k that lane l comes after. */
typedef struct judge {
    program *p;
    uint32_t clock[REN__LANES][REN__LANES];
    event_state events[MOST_EVENTS];
    uint32_t event_count;
    access accesses[4 * BURST];
    uint32_t access_count;
    uint32_t next_job;
} judge;

static event_state *state_of(judge *g, const ren__event *event)
{
    for (uint32_t i = 0; i < g->event_count; i++) {
        if (g->events[i].event == event) {
            return &g->events[i];
        }
    }
    CU_ASSERT_FATAL(g->event_count < MOST_EVENTS);
    memset(&g->events[g->event_count], 0, sizeof g->events[0]);
    g->events[g->event_count].event = event;
    return &g->events[g->event_count++];
}

static void join(uint32_t into[REN__LANES], const uint32_t other[REN__LANES])
{
    for (uint32_t l = 0; l < REN__LANES; l++) {
        into[l] = into[l] > other[l] ? into[l] : other[l];
    }
}

static void touch(judge *g, uint32_t lane, const ren_test_access *what, bool write)
{
    for (uint32_t i = 0; i < g->access_count; i++) {
        const access *a = &g->accesses[i];
        const unsigned char *x = what->ptr;
        const unsigned char *y = a->what.ptr;
        if ((write || a->write) && x < y + a->what.bytes && y < x + what->bytes &&
            g->clock[lane][a->lane] < a->index) {
            fail(g->p, "two commands touch the same bytes unordered", a->lane, lane);
        }
    }
    CU_ASSERT_FATAL(g->access_count < REN_TEST_COUNT(g->accesses));
    g->accesses[g->access_count++] = (access){lane, g->clock[lane][lane] + 1, *what, write};
}

/* Jobs without a command that come before the next one with a command. */
static job *next_job_with_command(judge *g)
{
    while (g->next_job < g->p->job_count) {
        job *j = &g->p->jobs[g->next_job++];
        if (j->cancelled) {
            continue;
        }
        if (j->desc.kind != REN_JOB_BARRIER) {
            return j;
        }
        uint32_t lane = ren__runtime_lane(g->p->rt, j->desc.stream);
        j->need[lane] = g->clock[lane][lane]; /* what those come after comes with them */
        for (uint32_t i = 0; i < j->wait_count; i++) {
            join(j->need, g->p->jobs[j->waits[i]].need);
        }
    }
    return NULL;
}

static void judge_job_command(judge *g, const ren_test_command *c)
{
    job *j = next_job_with_command(g);
    uint32_t lane = c->lane;
    if (!j || ren__runtime_lane(g->p->rt, j->desc.stream) != lane) {
        fail(g->p, "a command on another lane than its job's", lane, c->command);
        return;
    }
    for (uint32_t i = 0; i < j->wait_count; i++) {
        const job *awaited = &g->p->jobs[j->waits[i]];
        for (uint32_t l = 0; l < REN__LANES; l++) {
            if (g->clock[lane][l] < awaited->need[l]) {
                fail(g->p, "a job's command is not after a job that it waits for",
                     (unsigned long long)(j - g->p->jobs), j->waits[i]);
            }
        }
    }
    if (j->desc.kind == REN_JOB_DEVICE) { /* the trace does not know what a call touches */
        touch(g, lane, &(ren_test_access){j->addresses[1], BYTES}, false);
        touch(g, lane, &(ren_test_access){j->addresses[0], BYTES}, true);
    }
    for (uint32_t i = 0; i < c->read_count; i++) {
        touch(g, lane, &c->reads[i], false);
    }
    for (uint32_t i = 0; i < c->write_count; i++) {
        touch(g, lane, &c->writes[i], true);
    }
    g->clock[lane][lane]++;
    memset(j->need, 0, sizeof j->need);
    j->need[lane] = g->clock[lane][lane];
}

/* The order of the burst's commands, from their numbers: that of the enqueueing. */
static void judge_order(program *p, uint32_t from)
{
    static judge g;
    static ren_test_command sorted[MOST_COMMANDS];
    uint32_t count = 0;
    bool gate = true;
    memset(&g, 0, sizeof g);
    g.p = p;
    g.next_job = p->first_of_burst;
    for (uint32_t i = from; i < p->command_count; i++) {
        if (p->commands[i].begin) {
            sorted[count++] = p->commands[i];
        }
    }
    qsort(sorted, count, sizeof sorted[0], by_number);
    for (uint32_t i = 0; i < count; i++) {
        const ren_test_command *c = &sorted[i];
        if (c->event && p->ignore_events) {
            continue;
        }
        if (strcmp(c->call, "event_record") == 0) {
            memcpy(state_of(&g, c->event)->clock, g.clock[c->lane], sizeof g.clock[0]);
        } else if (strcmp(c->call, "event_wait") == 0) {
            join(g.clock[c->lane], state_of(&g, c->event)->clock);
        } else if (gate) {
            gate = false; /* the first command of a burst holds the device */
        } else {
            judge_job_command(&g, c);
        }
    }
    if (next_job_with_command(&g)) {
        fail(p, "a job without a command", g.next_job, p->job_count);
    }
}

/* No wait ends before the record that it waits for. */
static void judge_waits(program *p, uint32_t from)
{
    for (uint32_t i = from; i < p->command_count; i++) {
        const ren_test_command *wait = &p->commands[i];
        uint64_t record = 0;
        if (wait->begin || strcmp(wait->call, "event_wait") != 0) {
            continue;
        }
        for (uint32_t k = from; k < p->command_count; k++) {
            const ren_test_command *c = &p->commands[k];
            if (c->event == wait->event && strcmp(c->call, "event_record") == 0 &&
                c->command < wait->command && c->command > record) {
                record = c->command;
            }
        }
        for (uint32_t k = i + 1; record && k < p->command_count; k++) {
            if (p->commands[k].command == record) {
                fail(p, "a wait ended before its record", wait->command, record);
            }
        }
    }
}

static void judge_results(program *p, uint32_t first)
{
    for (uint32_t n = first; n < p->job_count; n++) {
        const job *j = &p->jobs[n];
        const bool has_function = j->desc.kind == REN_JOB_DEVICE || j->desc.kind == REN_JOB_HOST;
        if (j->completions != 1 || j->status != (j->cancelled ? REN_CANCELLED : REN_OK)) {
            fail(p, "a job did not complete once, as it should", n, (unsigned)j->completions);
        }
        if (j->runs != (has_function && !j->cancelled ? 1 : 0)) {
            fail(p, "a function did not run once", n, (unsigned)j->runs);
        }
        if (!j->cancelled && j->desc.copy.dst.host &&
            memcmp(j->bytes, j->expected, j->count) != 0) {
            fail(p, "a download differs from the serial run", n, j->buffer);
        }
        for (uint32_t i = 0; i < j->wait_count; i++) {
            const job *awaited = &p->jobs[j->waits[i]];
            if (j->runs && awaited->runs && awaited->end > j->begin) {
                fail(p, "a function ran before one that it waits for", n, j->waits[i]);
            }
        }
    }
}

/* ------------------------------------------------------------------ programs */

static void open_program(program *p, unsigned long long seed, bool gated)
{
    ren_runtime_config config = ren_test_config();
    ren_job_desc d = ren_job_desc_default();
    ren_job none;
    p->seed = seed;
    p->random = seed;
    p->gated = gated;
    p->job_count = 0;
    p->first_of_burst = 0;
    p->command_count = 0;
    p->hash = 0;
    p->violations = 0;
    atomic_store(&p->stamp, 0);
    memset(p->model, 0, sizeof p->model);
    config.ring_entries = 512;
    config.max_buffers = 64;
    config.streams = 1 + (uint32_t)(seed % REN_STREAM_COUNT);
    config.host_drives_submitter = gated;
    ren_test_seed(NULL, seed | 1u);
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&config, &p->rt, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_memory_reserve(p->rt, 1u << 16), REN_OK);
    d.kind = REN_JOB_FILL;
    d.fill.bytes = BYTES;
    for (uint32_t i = 0; i < BUFFERS; i++) {
        CU_ASSERT_EQUAL_FATAL(
            ren_buffer_alloc(p->rt, (ren_stream)draw(p, REN_STREAM_COUNT), BYTES, &p->buffers[i]),
            REN_OK);
        d.fill.dst.buffer = p->buffers[i];
        CU_ASSERT_EQUAL(ren_post(p->rt, &d, &none), REN_OK);
        CU_ASSERT_EQUAL(ren_runtime_drain(p->rt, REN_TIMEOUT_INFINITE), REN_OK);
    }
    ren_test_trace(p->rt, on_command, p);
}

static void drain(program *p)
{
    const uint64_t hang_ns = (uint64_t)HANG_S * ren_test_slowdown() * UINT64_C(1000000000);
    if (ren_runtime_drain(p->rt, hang_ns) != REN_OK) {
        (void)fprintf(stderr, "seed %llu: hangs\n", p->seed);
        abort();
    }
    CU_ASSERT_EQUAL(ren_pump(p->rt, 0, 0, 0, NULL), REN_OK);
}

static void close_program(program *p)
{
    ren_test_trace(p->rt, NULL, NULL);
    ren_test_shutdown(p->rt);
}

static void run_burst(program *p, uint32_t count)
{
    ren_job_desc d = ren_job_desc_default();
    uint32_t from = p->command_count;
    (void)sem_init(&p->gate, 0, 0);
    atomic_store(&p->gate_entered, 0);
    d.kind = REN_JOB_DEVICE;
    d.stream = (ren_stream)draw(p, REN_STREAM_COUNT);
    d.enqueue = stay_at_gate;
    d.enqueue_user = p;
    CU_ASSERT_EQUAL(ren_post(p->rt, &d, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_tick(p->rt, 0, NULL), REN_OK);
    while (!atomic_load(&p->gate_entered)) {
        (void)sched_yield();
    }
    p->first_of_burst = p->job_count;
    for (uint32_t i = 0; i < count; i++) {
        post_one(p);
    }
    CU_ASSERT_EQUAL(ren_runtime_tick(p->rt, 0, NULL), REN_OK);
    (void)sem_post(&p->gate);
    drain(p);
    judge_execution(p, from);
    judge_waits(p, from);
    judge_order(p, from);
    judge_results(p, p->first_of_burst);
    (void)sem_destroy(&p->gate);
}

/* The trace's hash. */
static uint64_t run_gated(program *p, unsigned long long seed)
{
    uint32_t count;
    uint64_t hash;
    open_program(p, seed, true);
    count = 10 + draw(p, draw(p, 4) ? 90 : MOST_JOBS - 10);
    while (p->job_count < count) {
        run_burst(p, count - p->job_count < BURST ? count - p->job_count : BURST);
    }
    hash = p->hash;
    close_program(p);
    return hash;
}

static void run_free(program *p, unsigned long long seed)
{
    uint32_t count;
    open_program(p, seed, false);
    count = 10 + draw(p, draw(p, 4) ? 90 : MOST_JOBS - 10);
    for (uint32_t i = 0; i < count; i++) {
        post_one(p);
    }
    drain(p);
    judge_execution(p, 0);
    judge_waits(p, 0);
    judge_results(p, 0);
    close_program(p);
}

/* ------------------------------------------------------------------ cases */

static unsigned long long from_environment(const char *name, unsigned long long otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static unsigned long long first_seed(void)
{
    return from_environment("REN_TEST_SEED", 1);
}

static unsigned long long program_count(unsigned long long otherwise)
{
    return from_environment("REN_TEST_PROGRAMS", 1 + otherwise / ren_test_slowdown());
}

static void run_many(void (*run)(program *p, unsigned long long seed), unsigned long long count)
{
    uint32_t violations = 0;
    the_program.ignore_events = false;
    for (unsigned long long i = 0; i < count && violations == 0; i++) {
        run(&the_program, first_seed() + i);
        violations = the_program.violations;
    }
    CU_ASSERT_EQUAL(violations, 0);
}

static void run_gated_only(program *p, unsigned long long seed)
{
    (void)run_gated(p, seed);
}

static void test_gated_programs_are_ordered(void)
{
    run_many(run_gated_only, program_count(400));
}

static void test_free_programs_equal_a_serial_run(void)
{
    run_many(run_free, program_count(400));
}

/* One seed, one trace; another seed, another schedule of the same commands. */
static void test_same_seed_same_trace(void)
{
    unsigned long long count = program_count(100);
    uint32_t different = 0;
    uint64_t before = 0;
    the_program.ignore_events = false;
    for (unsigned long long i = 0; i < count; i++) {
        uint64_t first = run_gated(&the_program, first_seed() + i);
        uint64_t second = run_gated(&the_program, first_seed() + i);
        if (first != second) {
            (void)fprintf(stderr, "seed %llu: two traces\n", first_seed() + i);
        }
        CU_ASSERT_EQUAL(first, second);
        different += first != before;
        before = first;
    }
    CU_ASSERT_EQUAL(different, count);
}

/* Without the events the judge must miss them: nearly every program needs one. */
static void test_judge_sees_missing_events(void)
{
    uint32_t seen = 0;
    the_program.ignore_events = true;
    for (unsigned long long i = 0; i < 20; i++) {
        unsigned long long seed = REN_STREAM_COUNT * (i + 1) + 4; /* five lanes */
        (void)run_gated(&the_program, seed);
        seen += the_program.violations > 0;
    }
    the_program.ignore_events = false;
    CU_ASSERT(seen >= 18);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_gated_programs_are_ordered", test_gated_programs_are_ordered},
        {"test_free_programs_equal_a_serial_run", test_free_programs_equal_a_serial_run},
        {"test_same_seed_same_trace", test_same_seed_same_trace},
        {"test_judge_sees_missing_events", test_judge_sees_missing_events},
    };
    if (ren_test_device() != REN_DEVICE_CPU) {
        (void)printf("  skip: only the CPU device has a seeded scheduler\n"
                     "conformance/test_seeded: 0 passed, 0 failed, %zu skipped\n",
                     REN_TEST_COUNT(cases));
        return 77;
    }
    return ren_test_main(argc, argv, "conformance/test_seeded", cases, REN_TEST_COUNT(cases),
                         getenv("REN_TEST_PROGRAMS") ? 3600 : 300);
}
