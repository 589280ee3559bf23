/* SPDX-License-Identifier: MIT */
/* tests/support/ren_test.c - the hooks: what is armed, and what becomes of it.
 *
 * Purpose   See ren_test.h. What a test arms is kept here until a call of the device table comes to
 *           it (ren_test_table.c), or until the next device is opened.
 * Threads   the arming calls: any.  before and after: the submitter.  reports: the lanes.
 */
#include "ren_test_hook.h"

#include "gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../libren/core/core.h"
#include "../../libren/device/cpu/cpu.h"

static const char *const call_names[CALLS] = {
    "open",        "mem_alloc",    "host_alloc", "event_create", "event_record", "event_wait",
    "event_sync",  "copy",         "fill",       "call",         "op_create",    "op_launch",
    "graph_begin", "graph_update", "graph_end",  "graph_launch", "stamp",        "any"};

/* What waits for the next device. */
static struct {
    pthread_mutex_t mutex;
    fault faults[MOST_FAULTS];
    int poison;
    int unpinned;
    int unfused;
    uint64_t seed;
    ren_test_trace_fn trace_fn;
    void *trace_user;
} global = {.mutex = PTHREAD_MUTEX_INITIALIZER,
            .faults = {{CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0}}};

static hook *hook_of(ren_runtime *rt)
{
    return hook_of_device(ren__runtime_device(rt));
}

static int call_number(const char *name)
{
    for (int i = 0; i < CALLS; i++) {
        if (strcmp(call_names[i], name) == 0) {
            return i;
        }
    }
    fprintf(stderr, "ren_test: no device call is named %s\n", name);
    exit(1);
}

/* ------------------------------------------------------------------ faults */

static void clear_faults(fault *faults)
{
    for (int i = 0; i < MOST_FAULTS; i++) {
        faults[i].call = CALLS;
    }
}

static void arm(fault *faults, const char *call, uint64_t nth, ren_status status, int forever)
{
    for (int i = 0; i < MOST_FAULTS; i++) {
        if (faults[i].call == CALLS) {
            faults[i] = (fault){call_number(call), nth ? nth : 1, status, forever};
            return;
        }
    }
    fprintf(stderr, "ren_test: too many faults are armed\n");
    exit(1);
}

static ren_status armed_status(fault *faults, int call)
{
    for (int i = 0; i < MOST_FAULTS; i++) {
        fault *f = &faults[i];
        if (f->call != call && !(f->call == CALL_ANY && call != CALL_OPEN)) {
            continue;
        }
        if (f->nth > 1) {
            f->nth--;
            continue;
        }
        if (!f->forever) {
            f->call = CALLS;
        }
        return f->status;
    }
    return REN_OK;
}

static before_call due(hook *h, int call)
{
    before_call none = {CALLS, 0, NULL, NULL};
    before_call found = none;
    if (h->before.fn && h->before.call == call && --h->before.nth == 0) {
        found = h->before;
        h->before = none;
    }
    return found;
}

ren_status ren__hook_enter(hook *h, int call)
{
    ren_status status = REN_OK;
    before_call first = {CALLS, 0, NULL, NULL};
    atomic_fetch_add(&h->calls[call], 1);
    if (atomic_load(&h->lost)) {
        return REN_ERR_DEVICE_LOST;
    }
    if (atomic_load(&h->armed)) {
        pthread_mutex_lock(&h->mutex);
        status = armed_status(h->faults, call);
        first = due(h, call);
        pthread_mutex_unlock(&h->mutex);
        if (first.fn) {
            first.fn(first.user);
        }
        if (status == REN_ERR_DEVICE_LOST) {
            atomic_store(&h->lost, 1);
            h->api->abandon(h->dev);
        }
    }
    return status;
}

void ren_test_fault(ren_runtime *rt, const char *call, uint64_t nth, ren_status status, int forever)
{
    hook *h = hook_of(rt);
    pthread_mutex_lock(&h->mutex);
    arm(h->faults, call, nth, status, forever);
    atomic_store(&h->armed, 1);
    pthread_mutex_unlock(&h->mutex);
}

void ren_test_before(ren_runtime *rt, const char *call, uint64_t nth, void (*fn)(void *user),
                     void *user)
{
    hook *h = hook_of(rt);
    pthread_mutex_lock(&h->mutex);
    h->before = (before_call){call_number(call), nth ? nth : 1, fn, user};
    atomic_store(&h->armed, 1);
    pthread_mutex_unlock(&h->mutex);
}

void ren_test_fault_next(const char *call, uint64_t nth, ren_status status, int forever)
{
    pthread_mutex_lock(&global.mutex);
    arm(global.faults, call, nth, status, forever);
    pthread_mutex_unlock(&global.mutex);
}

void ren_test_fault_clear(ren_runtime *rt)
{
    if (!rt) {
        pthread_mutex_lock(&global.mutex);
        clear_faults(global.faults);
        global.poison = 0;
        global.seed = 0;
        global.trace_fn = NULL;
        pthread_mutex_unlock(&global.mutex);
        return;
    }
    hook *h = hook_of(rt);
    pthread_mutex_lock(&h->mutex);
    clear_faults(h->faults);
    atomic_store(&h->armed, 0);
    pthread_mutex_unlock(&h->mutex);
}

uint64_t ren_test_calls(ren_runtime *rt, const char *call)
{
    return atomic_load(&hook_of(rt)->calls[call_number(call)]);
}

/* ------------------------------------------------------------------ host functions on a lane */

static void put_on_lane(hook *h, uint32_t lane, const on_lane *what)
{
    /* `what` outlives the command: it is part of something that the hook keeps. */
    h->api->call(h->dev, lane, on_lane_pass, (void *)(uintptr_t)what, &h->ignored);
}

static void sleep_ms(void *user)
{
    uint64_t ms = (uint64_t)(uintptr_t)user;
    struct timespec time = {(time_t)(ms / 1000u), (long)(ms % 1000u) * 1000000};
    nanosleep(&time, NULL);
}

static void stay_held(void *user)
{
    hold *w = user;
    pthread_mutex_lock(&w->of->mutex);
    while (w->held) {
        pthread_cond_wait(&w->of->released, &w->of->mutex);
    }
    pthread_mutex_unlock(&w->of->mutex);
}

/* An on_lane that lives as long as the hook. */
static const on_lane *keep(hook *h, void (*fn)(void *user), void *user)
{
    struct kept {
        report head;
        on_lane what;
    } *k = calloc(1, sizeof *k);
    if (!k) {
        abort();
    }
    k->what = (on_lane){fn, user};
    pthread_mutex_lock(&h->mutex);
    k->head.next = h->reports;
    h->reports = &k->head;
    pthread_mutex_unlock(&h->mutex);
    return &k->what;
}

void ren_test_delay(ren_runtime *rt, uint32_t stream, uint32_t ms)
{
    atomic_store(&hook_of(rt)->delay_ms[ren__runtime_lane(rt, (ren_stream)stream)], ms);
}

void ren_test_hold(ren_runtime *rt, uint32_t stream)
{
    hook *h = hook_of(rt);
    uint32_t lane = ren__runtime_lane(rt, (ren_stream)stream);
    pthread_mutex_lock(&h->mutex);
    h->holds[lane].held = 1;
    pthread_mutex_unlock(&h->mutex);
    atomic_store(&h->hold_next[lane], 1);
}

void ren_test_release(ren_runtime *rt, uint32_t stream)
{
    hook *h = hook_of(rt);
    uint32_t lane = ren__runtime_lane(rt, (ren_stream)stream);
    atomic_store(&h->hold_next[lane], 0);
    pthread_mutex_lock(&h->mutex);
    h->holds[lane].held = 0;
    pthread_cond_broadcast(&h->released);
    pthread_mutex_unlock(&h->mutex);
}

void ren_test_clock(ren_runtime *rt, uint64_t offset_ns, uint32_t ppm)
{
    hook *h = hook_of(rt);
    h->clock_offset_ns = offset_ns;
    h->clock_from_ns = ren__now_ns();
    atomic_store(&h->clock_ppm, 1 + ppm);
}

typedef struct skewed {
    hook *of;
    uint64_t *out;
} skewed;

static void stamp_skewed(void *user)
{
    const skewed *s = user;
    uint64_t now = ren__now_ns();
    uint64_t ahead =
        (now - s->of->clock_from_ns) * (atomic_load(&s->of->clock_ppm) - 1) / UINT64_C(1000000);
    __atomic_store_n(s->out, now + s->of->clock_offset_ns + ahead, __ATOMIC_RELAXED);
}

void ren__hook_stamp_skewed(hook *h, uint32_t lane, uint64_t *out)
{
    /* Kept with the hook, in a report of its own. */
    struct kept {
        report head;
        skewed what;
    } *k = calloc(1, sizeof *k);
    if (!k) {
        abort();
    }
    k->what = (skewed){h, out};
    pthread_mutex_lock(&h->mutex);
    k->head.next = h->reports;
    h->reports = &k->head;
    pthread_mutex_unlock(&h->mutex);
    put_on_lane(h, lane, keep(h, stamp_skewed, &k->what));
}

/* ------------------------------------------------------------------ trace */

static void deliver(report *r, int begin)
{
    hook *h = r->of;
    pthread_mutex_lock(&h->mutex);
    if (h->trace_fn) {
        ren_test_command c = r->command;
        c.order = ++h->orders;
        c.begin = begin;
        h->trace_fn(h->trace_user, &c);
    }
    pthread_mutex_unlock(&h->mutex);
}

static void deliver_begin(void *user)
{
    deliver(user, 1);
}

static void deliver_end(void *user)
{
    deliver(user, 0);
}

static void set_trace(hook *h, ren_test_trace_fn fn, void *user)
{
    pthread_mutex_lock(&h->mutex);
    h->trace_fn = fn;
    h->trace_user = user;
    pthread_mutex_unlock(&h->mutex);
    atomic_store(&h->tracing, fn != NULL);
}

void ren_test_trace(ren_runtime *rt, ren_test_trace_fn fn, void *user)
{
    if (rt) {
        set_trace(hook_of(rt), fn, user);
        return;
    }
    pthread_mutex_lock(&global.mutex);
    global.trace_fn = fn;
    global.trace_user = user;
    pthread_mutex_unlock(&global.mutex);
}

report *ren__hook_before(hook *h, uint32_t lane, const ren_test_command *command)
{
    h->commands++;
    if (!h->capturing) {
        uint32_t ms = atomic_exchange(&h->delay_ms[lane], 0);
        if (ms) {
            put_on_lane(h, lane, keep(h, sleep_ms, (void *)(uintptr_t)ms));
        }
        if (atomic_exchange(&h->hold_next[lane], 0)) {
            put_on_lane(h, lane, keep(h, stay_held, &h->holds[lane]));
        }
    }
    if (!atomic_load(&h->tracing)) {
        return NULL;
    }
    report *r = calloc(1, sizeof *r);
    if (!r) {
        abort();
    }
    r->of = h;
    r->command = *command;
    r->command.lane = lane;
    r->command.command = h->commands;
    pthread_mutex_lock(&h->mutex);
    r->next = h->reports;
    h->reports = r;
    pthread_mutex_unlock(&h->mutex);
    put_on_lane(h, lane, keep(h, deliver_begin, r));
    return r;
}

void ren__hook_after(hook *h, uint32_t lane, report *r)
{
    if (r) {
        put_on_lane(h, lane, keep(h, deliver_end, r));
    }
}

/* ------------------------------------------------------------------ memory, schedule, opening */

void ren_test_poison(ren_runtime *rt, int on)
{
    if (rt) {
        atomic_store(&hook_of(rt)->poison, on);
        return;
    }
    pthread_mutex_lock(&global.mutex);
    global.poison = on;
    pthread_mutex_unlock(&global.mutex);
}

void ren_test_unpinned_next(void)
{
    pthread_mutex_lock(&global.mutex);
    global.unpinned = 1;
    pthread_mutex_unlock(&global.mutex);
}

void ren_test_unfused_next(void)
{
    pthread_mutex_lock(&global.mutex);
    global.unfused = 1;
    pthread_mutex_unlock(&global.mutex);
}

void ren_test_seed(ren_runtime *rt, uint64_t seed)
{
    if (rt) {
        hook *h = hook_of(rt);
        if (h->api->kind == REN_DEVICE_CPU) {
            ren__cpu_seeded_restart(h->dev, seed);
        }
        return;
    }
    pthread_mutex_lock(&global.mutex);
    global.seed = seed;
    pthread_mutex_unlock(&global.mutex);
}

ren_status ren__hook_take_pending(hook *h, ren__device_config *config)
{
    pthread_mutex_lock(&global.mutex);
    memcpy(h->faults, global.faults, sizeof h->faults);
    clear_faults(global.faults);
    for (int i = 0; i < MOST_FAULTS; i++) {
        if (h->faults[i].call != CALLS) {
            atomic_store(&h->armed, 1);
        }
    }
    atomic_store(&h->poison, global.poison);
    h->unpinned = global.unpinned;
    global.unpinned = 0;
    h->unfused = global.unfused;
    global.unfused = 0;
    set_trace(h, global.trace_fn, global.trace_user);
    if (global.seed) {
        config->seed = global.seed;
    }
    global.poison = 0;
    global.seed = 0;
    global.trace_fn = NULL;
    pthread_mutex_unlock(&global.mutex);

    pthread_mutex_lock(&h->mutex);
    ren_status status = armed_status(h->faults, CALL_OPEN);
    pthread_mutex_unlock(&h->mutex);
    return status;
}

static void free_reports(hook *h)
{
    while (h->reports) {
        report *r = h->reports;
        h->reports = r->next;
        free(r);
    }
}

void ren__hook_release_all(hook *h)
{
    int was_held = 0;
    pthread_mutex_lock(&h->mutex);
    for (uint32_t i = 0; i < REN__LANES; i++) {
        was_held |= h->holds[i].held;
        h->holds[i].held = 0;
    }
    pthread_cond_broadcast(&h->released);
    pthread_mutex_unlock(&h->mutex);
    if (!was_held && !atomic_load(&h->lost)) {
        free_reports(h); /* else a lane that was left behind may still come to them */
    }
}
