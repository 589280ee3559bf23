/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_device.c - what every device promises its caller: order, events, memory.
 *
 * Purpose   The device table's contract, entry by entry, without a runtime above it.
 * Threads   the main thread is the submitter.
 */
#include "../support/test.h"
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const ren__device_api *api;

/* ------------------------------------------------------------------ helpers */

static ren_status ignored;

/* Notes whether a gate had been left when this ran. */
typedef struct witness {
    gate *of;
    _Atomic int saw; /* -1: has not run */
} witness;

static void look(void *user)
{
    witness *w = user;
    atomic_store(&w->saw, gate_left(w->of));
}

static ren__event *new_event(rig *r)
{
    ren__event *e = NULL;
    RIG_OK(api->event_create(r->dev, 1, &e));
    return e;
}

/* A chance for what must not happen to happen; never a proof that something did. */
static void breathe(void)
{
    struct timespec t = {0, 5000000};
    nanosleep(&t, NULL);
}

/* ------------------------------------------------------------------ order and events */

/* Stamps of one lane, and of a lane behind another by an event, never go back. Fails if a stamp is
 * taken by a clock of the lane's own, before the lane has waited, or not at all. */
static void test_stamps_follow_the_lanes(void)
{
    enum {
        ROUNDS = 100
    };
    rig r;
    rig_open(&r, api, 0, 0);
    const uint32_t lanes = r.config.lanes;
    void *pinned = NULL;
    RIG_OK(api->host_alloc(r.dev, ROUNDS * REN__LANES * sizeof(uint64_t), &pinned));
    uint64_t *at = pinned;
    memset(at, 0, ROUNDS * REN__LANES * sizeof *at);
    ren__event *event = new_event(&r);
    for (uint32_t i = 0; i < ROUNDS * lanes; i++) {
        if (i) {
            RIG_OK(api->event_wait(r.dev, i % lanes, event));
        }
        RIG_OK(api->stamp(r.dev, i % lanes, &at[i]));
        RIG_OK(api->event_record(r.dev, i % lanes, event));
    }
    RIG_OK(api->event_sync(r.dev, event));
    uint32_t back = 0;
    for (uint32_t i = 1; i < ROUNDS * lanes; i++) {
        back += at[i] < at[i - 1u];
    }
    CU_ASSERT(at[0] != 0);
    CU_ASSERT_EQUAL(back, 0);
    api->event_destroy(r.dev, event);
    api->host_free(r.dev, pinned, ROUNDS * REN__LANES * sizeof(uint64_t));
    rig_close(&r);
}

/* A stamp is taken when the lane comes to it: behind a lane that is held, not when it is enqueued.
 */
static void test_stamp_waits_for_its_lane(void)
{
    rig r;
    gate g = GATE;
    void *pinned = NULL;
    rig_open(&r, api, 0, 0);
    RIG_OK(api->host_alloc(r.dev, 2 * sizeof(uint64_t), &pinned));
    uint64_t *at = pinned;
    at[0] = at[1] = 0;
    rig_put_gate(&r, 1, &g);
    gate_wait_entered(&g);
    RIG_OK(api->stamp(r.dev, 1, &at[0]));
    RIG_OK(api->stamp(r.dev, 2, &at[1]));
    rig_finish(&r, 2);
    breathe(); /* longer than the coarsest clock's tick */
    gate_open(&g);
    rig_finish(&r, 1);
    CU_ASSERT(at[1] != 0);
    CU_ASSERT(at[0] > at[1]);
    api->host_free(r.dev, pinned, 2 * sizeof(uint64_t));
    rig_close(&r);
}

/* Commands of one lane run in the order enqueued: each fill overwrites what the one before it wrote
 * and each copy takes what is there at its turn. */
static void test_lane_order(void)
{
    enum {
        ROUNDS = 200
    };
    rig r;
    rig_open(&r, api, 0, 0);
    for (uint32_t lane = 0; lane < r.config.lanes; lane++) {
        unsigned char *cell = rig_alloc(&r, 64);
        unsigned char *log = rig_alloc(&r, ROUNDS * 64);
        unsigned char host[ROUNDS * 64];
        for (uint32_t i = 0; i < ROUNDS; i++) {
            RIG_OK(api->fill(r.dev, lane, cell, i & 0xffu, 64));
            RIG_OK(api->copy(r.dev, lane, log + i * 64, cell, 64));
        }
        rig_finish(&r, lane);
        rig_download(&r, host, log, sizeof host);
        for (uint32_t i = 0; i < ROUNDS; i++) {
            CU_ASSERT_EQUAL(host[i * 64], i & 0xffu);
            CU_ASSERT_EQUAL(host[i * 64 + 63], i & 0xffu);
        }
        api->mem_free(r.dev, cell, 64);
        api->mem_free(r.dev, log, ROUNDS * 64);
    }
    rig_close(&r);
}

/* A chain over all lanes by events: a value goes from lane to lane. Fails if a wait is lost. */
static void test_event_chain(void)
{
    enum {
        ROUNDS = 300
    };
    rig r;
    rig_open(&r, api, 0, 0);
    const uint32_t lanes = r.config.lanes;
    unsigned char *cells = rig_alloc(&r, 256 * (REN__LANES + 1u));
    ren__event *event[REN__LANES];
    for (uint32_t i = 0; i < lanes; i++) {
        event[i] = new_event(&r);
    }
    int wrong = 0;
    for (uint32_t round = 0; round < ROUNDS / ren_test_slowdown(); round++) {
        unsigned char got[256];
        RIG_OK(api->fill(r.dev, 0, cells, round & 0xffu, 256));
        RIG_OK(api->event_record(r.dev, 0, event[0]));
        for (uint32_t i = 1; i < lanes; i++) {
            RIG_OK(api->event_wait(r.dev, i, event[i - 1u]));
            RIG_OK(api->copy(r.dev, i, cells + 256 * i, cells + 256 * (i - 1u), 256));
            RIG_OK(api->event_record(r.dev, i, event[i]));
        }
        RIG_OK(api->event_sync(r.dev, event[lanes - 1u]));
        rig_download(&r, got, cells + 256 * (lanes - 1u), sizeof got);
        wrong += got[0] != (round & 0xffu) || got[255] != (round & 0xffu);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    for (uint32_t i = 0; i < lanes; i++) {
        api->event_destroy(r.dev, event[i]);
    }
    api->mem_free(r.dev, cells, 256 * (REN__LANES + 1u));
    rig_close(&r);
}

/* A wait holds the record that was the latest when it was enqueued, though the event is recorded
 * anew elsewhere and that record completes first. Fails if the wait looks at the event when it
 * runs, or counts completions of the event without saying whose. */
static void test_event_wait_keeps_its_record(void)
{
    rig r;
    rig_open(&r, api, 0, 0);
    gate g = GATE;
    witness w = {&g, -1};
    on_lane looks = {look, &w};
    ren__event *e = new_event(&r);
    rig_put_gate(&r, 0, &g);
    RIG_OK(api->event_record(r.dev, 0, e));
    RIG_OK(api->event_wait(r.dev, 2, e));
    rig_put(&r, 2, &looks);
    RIG_OK(api->event_record(r.dev, 1, e)); /* the newer record, on an idle lane */
    RIG_OK(api->event_sync(r.dev, e));
    breathe();
    gate_open(&g);
    rig_finish(&r, 2);
    CU_ASSERT_EQUAL(atomic_load(&w.saw), 1);
    rig_finish(&r, 0);
    api->event_destroy(r.dev, e);
    rig_close(&r);
}

/* ... and does not wait for a later record of it. Hangs if it does. */
static void test_event_wait_ignores_later_records(void)
{
    rig r;
    rig_open(&r, api, 0, 0);
    gate first = GATE, second = GATE;
    ren__event *e = new_event(&r);
    rig_put_gate(&r, 0, &first);
    RIG_OK(api->event_record(r.dev, 0, e));
    RIG_OK(api->event_wait(r.dev, 2, e));
    rig_put_gate(&r, 1, &second);
    RIG_OK(api->event_record(r.dev, 1, e));
    gate_open(&first);
    rig_finish(&r, 2); /* while `second` is closed */
    CU_ASSERT_EQUAL(gate_left(&second), 0);
    gate_open(&second);
    RIG_OK(api->event_sync(r.dev, e));
    CU_ASSERT_EQUAL(gate_left(&second), 1);
    api->event_destroy(r.dev, e);
    rig_close(&r);
}

/* Waiting for an event that was never recorded, on a lane or on the host, is no wait; nor is a
 * lane's wait for its own record. An event may be destroyed while a command that came from it is
 * still queued, which holds the lane all the same. */
static void test_event_trivial_waits(void)
{
    rig r;
    rig_open(&r, api, 0, 0);
    ren__event *e = new_event(&r);
    RIG_OK(api->event_wait(r.dev, 1, e));
    RIG_OK(api->event_sync(r.dev, e));
    rig_finish(&r, 1);
    RIG_OK(api->event_record(r.dev, 1, e));
    RIG_OK(api->event_wait(r.dev, 1, e));
    rig_finish(&r, 1);
    gate g = GATE;
    witness w = {&g, -1};
    on_lane looks = {look, &w};
    rig_put_gate(&r, 0, &g);
    RIG_OK(api->event_record(r.dev, 0, e));
    RIG_OK(api->event_wait(r.dev, 1, e));
    rig_put(&r, 1, &looks);
    api->event_destroy(r.dev, e);
    gate_open(&g);
    rig_finish(&r, 1);
    CU_ASSERT_EQUAL(atomic_load(&w.saw), 1);
    rig_close(&r);
}

typedef struct syncer {
    rig *r;
    ren__event *event;
    gate *of;
    int saw;
    ren_status status;
    pthread_t thread;
} syncer;

static void *sync_main(void *arg)
{
    syncer *s = arg;
    s->status = s->r->api->event_sync(s->r->dev, s->event);
    s->saw = s->of ? gate_left(s->of) : 0;
    return NULL;
}

/* One sleeping waiter a lane, and several for one event, all at once; each wakes after its own
 * record and not before. Fails by hanging (a lost wake-up) or by an early return. */
static void test_event_sync_from_many_threads(void)
{
    enum {
        PER_LANE = 3,
        ROUNDS = 50
    };
    rig r;
    rig_open(&r, api, 0, 0);
    ren__event *event[REN__LANES];
    for (uint32_t i = 0; i < REN__LANES; i++) {
        event[i] = new_event(&r);
    }
    int early = 0;
    for (uint32_t round = 0; round < ROUNDS / ren_test_slowdown() + 1u; round++) {
        gate gates[REN__LANES];
        syncer s[REN__LANES * PER_LANE];
        for (uint32_t i = 0; i < REN__LANES; i++) {
            gates[i] = (gate)GATE;
            rig_put_gate(&r, i, &gates[i]);
            RIG_OK(api->event_record(r.dev, i, event[i]));
        }
        for (uint32_t i = 0; i < REN_TEST_COUNT(s); i++) {
            s[i] = (syncer){.r = &r, .event = event[i % REN__LANES], .of = &gates[i % REN__LANES]};
            pthread_create(&s[i].thread, NULL, sync_main, &s[i]);
        }
        for (uint32_t i = 0; i < REN__LANES; i++) {
            gate_open(&gates[REN__LANES - 1u - i]);
        }
        for (uint32_t i = 0; i < REN_TEST_COUNT(s); i++) {
            pthread_join(s[i].thread, NULL);
            early += s[i].status != REN_OK || !s[i].saw;
        }
    }
    CU_ASSERT_EQUAL(early, 0);
    for (uint32_t i = 0; i < REN__LANES; i++) {
        api->event_destroy(r.dev, event[i]);
    }
    rig_close(&r);
}

/* ------------------------------------------------------------------ room for commands */

enum {
    ROOM_BYTES = 4096,
    ROOM_RECORDS = 62 /* of waiters' events: as many batches as the core leaves open on a lane */
};

/* What the lane is filled with, and who opens its gate should a call wait for that. */
typedef struct room {
    rig r;
    gate held, elsewhere;
    ren__event *pending; /* behind `elsewhere`, on another lane */
    ren__event *records[ROOM_RECORDS];
    unsigned char *memory;
    unsigned char *host;
    _Atomic uint32_t accepted;
    _Atomic int done;
    int late; /* the calls did not come back before the gate was opened */
} room;

static ren_status room_fill(room *m, uint32_t i)
{
    return api->fill(m->r.dev, 3, m->memory, i & 0xffu, ROOM_BYTES);
}

static ren_status room_copy(room *m, uint32_t i)
{
    (void)i;
    return api->copy(m->r.dev, 3, m->memory, m->host, ROOM_BYTES);
}

static ren_status room_small_copy(room *m, uint32_t i)
{
    (void)i;
    return api->copy(m->r.dev, 3, m->memory, m->host, 64);
}

static ren_status room_stamp(room *m, uint32_t i)
{
    (void)i;
    return api->stamp(m->r.dev, 3, (uint64_t *)(void *)m->host);
}

static ren_status room_wait(room *m, uint32_t i)
{
    (void)i;
    return api->event_wait(m->r.dev, 3, m->pending);
}

/* Batches of fills, each ended by its waiter's event. */
static ren_status room_batches(room *m, uint32_t i)
{
    const uint32_t each = m->r.caps.lane_commands / ROOM_RECORDS;
    const uint32_t batch = i / each;
    return i % each == each - 1u && batch < ROOM_RECORDS
               ? api->event_record(m->r.dev, 3, m->records[batch])
               : room_fill(m, i);
}

static void *open_when_late(void *arg)
{
    room *m = arg;
    for (unsigned i = 0; i < 5000u * ren_test_slowdown() && !atomic_load(&m->done); i++) {
        const struct timespec ms = {0, 1000000};
        (void)nanosleep(&ms, NULL);
    }
    m->late = !atomic_load(&m->done);
    gate_open(&m->held);
    gate_open(&m->elsewhere);
    return NULL;
}

static void *open_soon(void *arg)
{
    const struct timespec ms = {0, 2000000};
    (void)nanosleep(&ms, NULL);
    gate_open(arg);
    return NULL;
}

/* One long wait for lane 3: a device may record otherwise on a lane whose waits are long. */
static void wait_long(room *m)
{
    static gate slow;
    pthread_t opener;
    slow = (gate)GATE;
    rig_put_gate(&m->r, 3, &slow);
    RIG_OK(api->event_record(m->r.dev, 3, m->records[0]));
    CU_ASSERT_EQUAL_FATAL(pthread_create(&opener, NULL, open_soon, &slow), 0);
    RIG_OK(api->event_sync(m->r.dev, m->records[0]));
    CU_ASSERT_EQUAL(pthread_join(opener, NULL), 0);
}

static void fill_the_lane(const char *name, ren_status (*enqueue)(room *m, uint32_t i))
{
    static room m;
    pthread_t watch;
    void *pinned = NULL;
    memset(&m, 0, sizeof m);
    m.held = m.elsewhere = (gate)GATE;
    rig_open(&m.r, api, 0, 0);
    m.memory = rig_alloc(&m.r, ROOM_BYTES);
    RIG_OK(api->host_alloc(m.r.dev, ROOM_BYTES, &pinned));
    m.host = pinned;
    memset(m.host, 0, ROOM_BYTES);
    m.pending = new_event(&m.r);
    for (uint32_t i = 0; i < ROOM_RECORDS; i++) {
        m.records[i] = new_event(&m.r);
    }
    wait_long(&m);
    rig_put_gate(&m.r, 3, &m.held);
    rig_put_gate(&m.r, 1, &m.elsewhere);
    RIG_OK(api->event_record(m.r.dev, 1, m.pending));
    gate_wait_entered(&m.held);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&watch, NULL, open_when_late, &m), 0);
    for (uint32_t i = 1; i < m.r.caps.lane_commands && enqueue(&m, i - 1u) == REN_OK; i++) {
        atomic_fetch_add(&m.accepted, 1);
    }
    atomic_store(&m.done, 1);
    CU_ASSERT_EQUAL(pthread_join(watch, NULL), 0);
    if (m.late || atomic_load(&m.accepted) != m.r.caps.lane_commands - 1u) {
        printf("       %s: %u of %u accepted%s\n", name, atomic_load(&m.accepted),
               m.r.caps.lane_commands - 1u, m.late ? ", and a call waited" : "");
    }
    CU_ASSERT_EQUAL(m.late, 0);
    CU_ASSERT_EQUAL(atomic_load(&m.accepted), m.r.caps.lane_commands - 1u);
    rig_finish(&m.r, 1);
    rig_finish(&m.r, 3);
    for (uint32_t i = 0; i < ROOM_RECORDS; i++) {
        api->event_destroy(m.r.dev, m.records[i]);
    }
    api->event_destroy(m.r.dev, m.pending);
    api->host_free(m.r.dev, m.host, ROOM_BYTES);
    api->mem_free(m.r.dev, m.memory, ROOM_BYTES);
    rig_close(&m.r);
}

/* No enqueueing call waits: as many commands of each kind as caps.lane_commands go onto a lane that
 * is stuck at its first. Fails if a call comes back only when the lane is let go. */
static void test_enqueue_never_waits(void)
{
    fill_the_lane("fill", room_fill);
    fill_the_lane("copy", room_copy);
    fill_the_lane("small copy", room_small_copy);
    fill_the_lane("stamp", room_stamp);
    fill_the_lane("event_wait", room_wait);
    fill_the_lane("fill and event_record", room_batches);
}

static void count_call(void *user)
{
    atomic_fetch_add((_Atomic uint32_t *)user, 1);
}

/* A command that was accepted runs, also where the lane then is full: beyond caps.lane_commands the
 * CPU device refuses one, which fails if a full ring is written over. */
static void test_accepted_commands_run(void)
{
    rig r;
    rig_open(&r, api, 0, 0);
    gate g = GATE;
    _Atomic uint32_t count = 0;
    on_lane counts = {count_call, &count};
    uint32_t accepted = 0;
    rig_put_gate(&r, 3, &g);
    if (api->kind == REN_DEVICE_CPU) {
        while (accepted < 10u * r.caps.lane_commands &&
               api->call(r.dev, 3, on_lane_pass, &counts, &ignored) == REN_OK) {
            accepted++;
        }
        CU_ASSERT(accepted >= r.caps.lane_commands - 1u);
    } else { /* a host function is none of libren's commands: it may take more room than one */
        for (; accepted < 100; accepted++) {
            rig_put(&r, 3, &counts);
        }
    }
    CU_ASSERT_EQUAL(atomic_load(&count), 0);
    gate_open(&g);
    ren__event *e = new_event(&r);
    while (api->event_record(r.dev, 3, e) != REN_OK) {
    }
    RIG_OK(api->event_sync(r.dev, e));
    CU_ASSERT_EQUAL(atomic_load(&count), accepted);
    api->event_destroy(r.dev, e);
    rig_close(&r);
}

/* The result of a host function is there before the lane's next event completes. */
static ren_status fails(void *user, void *native_stream)
{
    (void)user;
    (void)native_stream;
    return REN_ERR_CALLBACK;
}

static void test_call_status(void)
{
    rig r;
    rig_open(&r, api, 0, 0);
    ren_status bad = REN_OK;
    RIG_OK(api->call(r.dev, 1, fails, NULL, &bad));
    rig_finish(&r, 1);
    CU_ASSERT_EQUAL(bad, REN_ERR_CALLBACK);
    CU_ASSERT_EQUAL(api->status(r.dev, NULL), REN_OK); /* the device is fine */
    rig_close(&r);
}

/* A source may be overwritten only after the copy's event, however late the lane is. */
static void test_copy_under_delay(void)
{
    rig r;
    rig_open(&r, api, 0, 0);
    gate g = GATE;
    unsigned char *dst = rig_alloc(&r, 4096);
    unsigned char got[4096];
    void *src = NULL; /* pinned: any device copies it when the lane comes to it */
    ren__event *e = new_event(&r);
    RIG_OK(api->host_alloc(r.dev, 4096, &src));
    memset(src, 1, 4096);
    rig_put_gate(&r, 0, &g);
    RIG_OK(api->copy(r.dev, 0, dst, src, 4096));
    RIG_OK(api->event_record(r.dev, 0, e));
    breathe();
    memset(src, 2, 4096); /* before the copy: it must see this */
    gate_open(&g);
    RIG_OK(api->event_sync(r.dev, e));
    memset(src, 3, 4096); /* after its event: it must not */
    rig_download(&r, got, dst, sizeof got);
    CU_ASSERT_EQUAL(got[0], 2);
    CU_ASSERT_EQUAL(got[4095], 2);
    api->host_free(r.dev, src, 4096);
    api->event_destroy(r.dev, e);
    api->mem_free(r.dev, dst, 4096);
    rig_close(&r);
}

/* ------------------------------------------------------------------ a random program */

enum {
    CELLS = 12,
    CELL_BYTES = 512
};

typedef struct program_step {
    uint32_t lane;
    int copy; /* else fill */
    uint32_t dst, src;
    uint32_t value;
} program_step;

/* Events are inserted for every read after write, write after read and write after write across
 * lanes, so the result must be that of running the steps one by one. */
static void run_program(rig *r, const program_step *steps, uint32_t count, unsigned char *cells)
{
    ren__event **event = calloc(count, sizeof *event);
    uint32_t writer[CELLS], reader[CELLS][REN__LANES];
    memset(writer, 0xff, sizeof writer);
    memset(reader, 0xff, sizeof reader);
    for (uint32_t i = 0; i < count; i++) {
        const program_step *s = &steps[i];
        unsigned char *dst = cells + s->dst * CELL_BYTES;
        uint32_t waits[REN__LANES + 2u], n = 0;
        waits[n++] = writer[s->dst];
        waits[n++] = s->copy ? writer[s->src] : UINT32_MAX;
        for (uint32_t lane = 0; lane < r->config.lanes; lane++) {
            waits[n++] = reader[s->dst][lane];
        }
        for (uint32_t k = 0; k < n; k++) {
            if (waits[k] != UINT32_MAX && steps[waits[k]].lane != s->lane) {
                RIG_OK(api->event_wait(r->dev, s->lane, event[waits[k]]));
            }
        }
        if (s->copy) {
            RIG_OK(api->copy(r->dev, s->lane, dst, cells + s->src * CELL_BYTES, CELL_BYTES));
            reader[s->src][s->lane] = i;
        } else {
            RIG_OK(api->fill(r->dev, s->lane, dst, s->value, CELL_BYTES));
        }
        writer[s->dst] = i;
        memset(reader[s->dst], 0xff, sizeof reader[s->dst]);
        event[i] = new_event(r);
        RIG_OK(api->event_record(r->dev, s->lane, event[i]));
    }
    for (uint32_t lane = 0; lane < r->config.lanes; lane++) {
        rig_finish(r, lane);
    }
    for (uint32_t i = 0; i < count; i++) {
        api->event_destroy(r->dev, event[i]);
    }
    free(event);
}

static void make_program(program_step *steps, uint32_t count, uint32_t lanes,
                         unsigned long long seed)
{
    for (uint32_t i = 0; i < count; i++) {
        steps[i].lane = (uint32_t)(ren_test_random(&seed) % lanes);
        steps[i].copy = ren_test_random(&seed) % 3u != 0;
        steps[i].dst = (uint32_t)(ren_test_random(&seed) % CELLS);
        steps[i].src = (uint32_t)(ren_test_random(&seed) % (CELLS - 1u));
        steps[i].src += steps[i].src >= steps[i].dst ? 1u : 0u;
        steps[i].value = (uint32_t)(ren_test_random(&seed) & 0xffu);
    }
}

static void random_programs(uint64_t device_seed, uint32_t programs)
{
    enum {
        STEPS = 150
    };
    program_step steps[STEPS];
    unsigned char wanted[CELLS * CELL_BYTES], got[CELLS * CELL_BYTES];
    rig r;
    rig_open(&r, api, 0, device_seed);
    unsigned char *cells = rig_alloc(&r, sizeof got);
    int wrong = 0;
    for (uint32_t p = 0; p < programs; p++) {
        make_program(steps, STEPS, r.config.lanes, 1000u + p);
        memset(wanted, 0, sizeof wanted);
        rig_upload(&r, cells, wanted, sizeof wanted);
        for (uint32_t i = 0; i < STEPS; i++) {
            unsigned char *dst = wanted + steps[i].dst * CELL_BYTES;
            if (steps[i].copy) {
                memcpy(dst, wanted + steps[i].src * CELL_BYTES, CELL_BYTES);
            } else {
                memset(dst, (int)steps[i].value, CELL_BYTES);
            }
        }
        run_program(&r, steps, STEPS, cells);
        rig_download(&r, got, cells, sizeof got);
        wrong += memcmp(got, wanted, sizeof got) != 0;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    api->mem_free(r.dev, cells, sizeof got);
    rig_close(&r);
}

/* Random programs over all lanes with only the events that they need. Fails if lanes run a command
 * before what it waits for, or if an event's completion does not make memory visible. */
static void test_random_programs(void)
{
    random_programs(0, 60u / ren_test_slowdown());
}

static void test_random_programs_seeded(void)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        random_programs(seed, 5);
    }
}

/* ------------------------------------------------------------------ open, close, memory */

static long process_threads(void)
{
    char line[128];
    long threads = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Threads: %ld", &threads) == 1) {
            break;
        }
    }
    if (f) {
        fclose(f);
    }
    return threads;
}

/* A thousand devices one after another: no thread, no block of host memory is left. */
static void test_open_close_many(void)
{
    const long before = process_threads();
    const unsigned rounds = api->kind == REN_DEVICE_CPU ? 1000u : 10u;
    for (unsigned i = 0; i < rounds / ren_test_slowdown(); i++) {
        rig r;
        rig_open(&r, api, 1u + i % REN__LANES, i % 7u == 0 ? i + 1u : 0);
        if (i % 3u == 0) {
            unsigned char *cell = rig_alloc(&r, 64);
            RIG_OK(api->fill(r.dev, 0, cell, 7, 64));
            rig_finish(&r, 0);
            api->mem_free(r.dev, cell, 64);
        }
        rig_close(&r);
    }
    CU_ASSERT_EQUAL(rig_blocks(), 0);
    CU_ASSERT_EQUAL(rig_threads(), 0);
    if (api->kind == REN_DEVICE_CPU) {
        CU_ASSERT_EQUAL(process_threads(), before);
    }
    api->close(NULL);
}

/* The nth allocation or thread start of an open fails, for every n: an error with words, nothing
 * left, and the next open works. */
static void test_open_fails_at_every_step(void)
{
    ren__device_config config = {.struct_size = (uint32_t)sizeof config, .lanes = 3};
    config.cpu_threads = 1;
    for (int what = 0; what < 2; what++) {
        int failures = 0;
        for (long n = 1; n < 100; n++) {
            rig r;
            ren_error err = {0};
            what ? rig_fail_thread(n) : rig_fail_alloc(n);
            ren_status status = rig_try_open(&r, api, &config, &err);
            what ? rig_fail_thread(0) : rig_fail_alloc(0);
            if (status == REN_OK) {
                rig_close(&r);
                break;
            }
            failures++;
            CU_ASSERT_EQUAL(status, what ? REN_ERR_THREAD : REN_ERR_NO_MEMORY);
            CU_ASSERT(err.text[0] != '\0');
            CU_ASSERT_PTR_NULL(r.dev);
            CU_ASSERT_EQUAL(rig_blocks(), 0);
            CU_ASSERT_EQUAL(rig_threads(), 0);
        }
        if (api->kind == REN_DEVICE_CPU) {
            CU_ASSERT(failures >= 3);
        }
    }
}

static void test_open_refusals(void)
{
    rig r;
    ren_error err = {0};
    ren__device_config config = {.struct_size = (uint32_t)sizeof config, .lanes = 1};
    config.device_index = 1000;
    CU_ASSERT_EQUAL(rig_try_open(&r, api, &config, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "device_index is 1000"));
    config.device_index = 0;
    config.lanes = 0;
    CU_ASSERT_EQUAL(rig_try_open(&r, api, &config, &err), REN_ERR_INVALID_ARGUMENT);
    config.lanes = REN__LANES + 1u;
    CU_ASSERT_EQUAL(rig_try_open(&r, api, &config, &err), REN_ERR_INVALID_ARGUMENT);
}

/* Addresses are aligned; the limit is kept, and what was given back can be taken again. */
static void test_memory(void)
{
    rig r;
    ren__device_config config = {.struct_size = (uint32_t)sizeof config,
                                 .lanes = 1,
                                 .cpu_threads = 1,
                                 .memory_limit_bytes = 1u << 20};
    RIG_OK(rig_try_open(&r, api, &config, NULL));
    void *a = NULL, *b = NULL, *pinned = NULL;
    CU_ASSERT_EQUAL(api->mem_alloc(r.dev, 700000, &a), REN_OK);
    CU_ASSERT_EQUAL((uintptr_t)a % REN__ALIGN, 0);
    CU_ASSERT_EQUAL(api->mem_alloc(r.dev, 700000, &b), REN_ERR_NO_DEVICE_MEMORY);
    CU_ASSERT_PTR_NULL(b);
    CU_ASSERT_EQUAL(api->mem_alloc(r.dev, UINT64_MAX, &b), REN_ERR_NO_DEVICE_MEMORY);
    CU_ASSERT_EQUAL(api->host_alloc(r.dev, 2u << 20, &pinned), REN_OK);
    api->host_free(r.dev, pinned, 2u << 20);
    api->mem_free(r.dev, a, 700000);
    CU_ASSERT_EQUAL(api->mem_alloc(r.dev, 1000001, &b), REN_OK);
    CU_ASSERT_EQUAL((uintptr_t)b % REN__ALIGN, 0);
    api->mem_free(r.dev, b, 1000001);
    api->mem_free(r.dev, NULL, 0);
    rig_close(&r);
}

/* ------------------------------------------------------------------ the seeded schedule */

typedef struct order_log {
    _Atomic uint32_t count;
    unsigned char lane[512];
} order_log;

typedef struct order_entry {
    order_log *log;
    unsigned char lane;
} order_entry;

static ren_status note(void *user, void *native_stream)
{
    const order_entry *e = user;
    (void)native_stream;
    e->log->lane[atomic_fetch_add(&e->log->count, 1)] = e->lane;
    return REN_OK;
}

/* The order in which 5 x 40 commands run under a seed, while the first holds all back until the
 * rest is enqueued. */
static void seeded_order(uint64_t seed, order_log *log)
{
    enum {
        EACH = 40
    };
    rig r;
    gate g = GATE;
    order_entry entry[REN__LANES];
    rig_open(&r, api, 0, seed);
    memset(log, 0, sizeof *log);
    rig_put_gate(&r, 0, &g);
    gate_wait_entered(&g);
    for (uint32_t i = 0; i < EACH; i++) {
        for (uint32_t lane = 0; lane < REN__LANES; lane++) {
            entry[lane] = (order_entry){log, (unsigned char)lane};
            RIG_OK(api->call(r.dev, lane, note, &entry[lane], &ignored));
        }
    }
    ren__event *e[REN__LANES];
    for (uint32_t lane = 0; lane < REN__LANES; lane++) {
        e[lane] = new_event(&r);
        RIG_OK(api->event_record(r.dev, lane, e[lane]));
    }
    gate_open(&g);
    for (uint32_t lane = 0; lane < REN__LANES; lane++) {
        RIG_OK(api->event_sync(r.dev, e[lane]));
        api->event_destroy(r.dev, e[lane]);
    }
    rig_close(&r);
}

/* One seed, one order; other seeds, other orders; and lanes do interleave. */
static void test_seeded_schedule(void)
{
    static order_log a, b;
    if (api->kind != REN_DEVICE_CPU) {
        ren_test_skip("only the CPU device has a seeded schedule");
        return;
    }
    int same_as_first = 0, switches = 0;
    static order_log first;
    seeded_order(1, &first);
    for (uint64_t seed = 1; seed <= 8; seed++) {
        seeded_order(seed, &a);
        seeded_order(seed, &b);
        CU_ASSERT_EQUAL(atomic_load(&a.count), 200);
        CU_ASSERT_EQUAL(memcmp(a.lane, b.lane, sizeof a.lane), 0);
        same_as_first += memcmp(a.lane, first.lane, sizeof a.lane) == 0;
        for (int i = 1; i < 200; i++) {
            switches += a.lane[i] != a.lane[i - 1];
        }
    }
    CU_ASSERT_EQUAL(same_as_first, 1);
    CU_ASSERT(switches > 8 * 100);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_lane_order", test_lane_order},
        {"test_stamps_follow_the_lanes", test_stamps_follow_the_lanes},
        {"test_stamp_waits_for_its_lane", test_stamp_waits_for_its_lane},
        {"test_event_chain", test_event_chain},
        {"test_event_wait_keeps_its_record", test_event_wait_keeps_its_record},
        {"test_event_wait_ignores_later_records", test_event_wait_ignores_later_records},
        {"test_event_trivial_waits", test_event_trivial_waits},
        {"test_event_sync_from_many_threads", test_event_sync_from_many_threads},
        {"test_enqueue_never_waits", test_enqueue_never_waits},
        {"test_accepted_commands_run", test_accepted_commands_run},
        {"test_call_status", test_call_status},
        {"test_copy_under_delay", test_copy_under_delay},
        {"test_random_programs", test_random_programs},
        {"test_random_programs_seeded", test_random_programs_seeded},
        {"test_open_close_many", test_open_close_many},
        {"test_open_fails_at_every_step", test_open_fails_at_every_step},
        {"test_open_refusals", test_open_refusals},
        {"test_memory", test_memory},
        {"test_seeded_schedule", test_seeded_schedule},
    };
    api = rig_table();
    return ren_test_main(argc, argv, "conformance/test_device", cases, REN_TEST_COUNT(cases), 120);
}
