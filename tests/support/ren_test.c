/* SPDX-License-Identifier: MIT */
/* tests/support/ren_test.c - the hooks, as a device table around another device table.
 *
 * Purpose   See ren_test.h. Every entry counts the call, asks whether it is to fail, puts the
 *           commands around it that a delay, a hold or a trace needs, and passes it on.
 * Threads   hook state that calls look at is atomic, or under the hook's mutex when something is
 *           armed.
 * Memory    plain malloc. A hook outlives its device (a thread that is stuck in a hold may be left
 *           behind by the device) and stays reachable through `all` to the end of the process.
 */
#include "ren_test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../libren/core/core.h"
#include "../../libren/device/cpu/cpu.h"

enum {
    CALL_OPEN = 0,
    CALL_MEM_ALLOC,
    CALL_HOST_ALLOC,
    CALL_EVENT_CREATE,
    CALL_EVENT_RECORD,
    CALL_EVENT_WAIT,
    CALL_EVENT_SYNC,
    CALL_COPY,
    CALL_FILL,
    CALL_CALL,
    CALL_OP_CREATE,
    CALL_OP_LAUNCH,
    CALL_GRAPH_BEGIN,
    CALL_GRAPH_END,
    CALL_GRAPH_LAUNCH,
    CALL_ANY,
    CALLS
};

static const char *const call_names[CALLS] = {
    "open",        "mem_alloc", "host_alloc",   "event_create", "event_record", "event_wait",
    "event_sync",  "copy",      "fill",         "call",         "op_create",    "op_launch",
    "graph_begin", "graph_end", "graph_launch", "any"};

#define MOST_FAULTS 8
#define MOST_TABLES 4
/* Commands that one command may become: poison, delay, hold, two reports, itself. */
#define COMMANDS_PER_COMMAND 6u

typedef struct fault {
    int call; /* CALLS = unused */
    uint64_t nth;
    ren_status status;
    int forever;
} fault;

typedef struct hook hook;

typedef struct report {
    struct report *next; /* under the hook's mutex */
    hook *of;
    ren_test_command command;
} report;

typedef struct hold {
    hook *of;
    int held; /* under the hook's mutex */
} hold;

struct hook {
    hook *next; /* under the global mutex */
    const ren__device_api *api;
    ren__device *dev; /* NULL once closed */
    int host_reads_device;
    pthread_mutex_t mutex;
    pthread_cond_t released;
    _Atomic int armed;
    fault faults[MOST_FAULTS];
    _Atomic int lost;
    _Atomic uint64_t calls[CALLS];
    _Atomic uint32_t delay_ms[REN__LANES];
    _Atomic int hold_next[REN__LANES];
    hold holds[REN__LANES];
    int capturing; /* submitter */
    ren_status ignored;
    _Atomic int poison;
    _Atomic int tracing;
    ren_test_trace_fn trace_fn; /* under the mutex */
    void *trace_user;
    uint64_t orders;   /* under the mutex */
    uint64_t commands; /* submitter */
    report *reports;
};

/* What waits for the next device. */
static struct {
    pthread_mutex_t mutex;
    hook *all;
    fault faults[MOST_FAULTS];
    int poison;
    uint64_t seed;
    ren_test_trace_fn trace_fn;
    void *trace_user;
    ren__device_api tables[MOST_TABLES];
    const ren__device_api *inner[MOST_TABLES];
} global = {.mutex = PTHREAD_MUTEX_INITIALIZER,
            .faults = {{CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0},
                       {CALLS, 0, 0, 0}}};

static hook *hook_of_device(ren__device *dev)
{
    return (hook *)(void *)dev;
}

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

/* Count the call; REN_OK, or the status that it is to fail with. */
static ren_status enter(hook *h, int call)
{
    ren_status status = REN_OK;
    atomic_fetch_add(&h->calls[call], 1);
    if (atomic_load(&h->lost)) {
        return REN_ERR_DEVICE_LOST;
    }
    if (atomic_load(&h->armed)) {
        pthread_mutex_lock(&h->mutex);
        status = armed_status(h->faults, call);
        pthread_mutex_unlock(&h->mutex);
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

/* On the CPU device the function runs on the lane. Elsewhere `call` runs at once on the submitter
 * and gives a CUDA stream, where the function is put as a host function. */
typedef struct on_stream {
    void (*fn)(void *user);
    void *user;
} on_stream;

static ren_status run_on_stream(void *user, void *native_stream)
{
    const on_stream *o = user;
    if (!native_stream) {
        o->fn(o->user);
        return REN_OK;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    union {
        void *ptr;
        int (*fn)(void *stream, void (*fn)(void *user), void *user);
    } launch = {driver ? dlsym(driver, "cuLaunchHostFunc") : NULL};
    if (!launch.ptr || launch.fn(native_stream, o->fn, o->user) != 0) {
        return REN_ERR_DEVICE;
    }
    return REN_OK;
}

static void put_on_lane(hook *h, uint32_t lane, const on_stream *what)
{
    /* `what` outlives the command: it is part of something that the hook keeps. */
    h->api->call(h->dev, lane, run_on_stream, (void *)(uintptr_t)what, &h->ignored);
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

/* An on_stream that lives as long as the hook. */
static const on_stream *keep(hook *h, void (*fn)(void *user), void *user)
{
    struct kept {
        report head;
        on_stream what;
    } *k = calloc(1, sizeof *k);
    if (!k) {
        abort();
    }
    k->what = (on_stream){fn, user};
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

/* What goes before a command: a delay or hold that is due, and its begin report. The report, or
 * NULL without a trace. */
static report *before(hook *h, uint32_t lane, const ren_test_command *command)
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

static void after(hook *h, uint32_t lane, report *r)
{
    if (r) {
        put_on_lane(h, lane, keep(h, deliver_end, r));
    }
}

/* ------------------------------------------------------------------ operations */

typedef struct hook_op {
    ren__op *op;
    ren__op_desc desc;
    ren__op_needs needs;
} hook_op;

/* Bit i: the operation writes operand i. */
static uint32_t written(const ren__op_desc *d)
{
    switch (d->kind) {
    case REN__OP_LINEAR_FWD:
    case REN__OP_CONV_FWD:
    case REN__OP_ACT_BWD:
    case REN__OP_XENT_BWD:
    case REN__OP_MSE_BWD:
    case REN__OP_HUBER_BWD:
    case REN__OP_EMA:
        return 1u << 3;
    case REN__OP_BIAS_GRAD:
    case REN__OP_AVG_POOL_FWD:
    case REN__OP_AVG_POOL_BWD:
    case REN__OP_GLOBAL_AVG_FWD:
    case REN__OP_GLOBAL_AVG_BWD:
    case REN__OP_ACT_FWD:
    case REN__OP_ADVANCE:
    case REN__OP_CAST:
        return 1u << 1;
    case REN__OP_MAX_POOL_FWD:
        return (1u << 1) | (1u << 2);
    case REN__OP_MAX_POOL_BWD:
        return 1u << 4;
    case REN__OP_BATCH_NORM_TRAIN:
        return 0x1fu << 5;
    case REN__OP_BATCH_NORM_BWD:
        return 0x7u << 5;
    case REN__OP_BATCH_NORM_EVAL:
        return 1u << 5;
    case REN__OP_CONCAT:
        return 1u << 11;
    case REN__OP_SPLIT:
        return ((1u << d->count) - 1u) << 1;
    case REN__OP_XENT_FWD:
        return (1u << 2) | (1u << 3);
    case REN__OP_SGD:
    case REN__OP_LARS:
        return (1u << 3) | (1u << 4);
    case REN__OP_ADAM:
    case REN__OP_ADAMW:
        return 0x7u << 3;
    default:
        return 1u << 2;
    }
}

static int is_in_place(ren__op_kind kind)
{
    return kind == REN__OP_SGD || kind == REN__OP_LARS || kind == REN__OP_ADAM ||
           kind == REN__OP_ADAMW || kind == REN__OP_EMA || kind == REN__OP_ADVANCE;
}

static void describe_op(const hook_op *o, void *const *operands, ren_test_command *c)
{
    const uint32_t writes = written(&o->desc);
    c->call = "op_launch";
    c->op = o->desc.kind;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (!operands[i]) {
            continue;
        }
        /* Operands without a shape are the control block, the state block and `saved`. */
        uint64_t bytes =
            o->desc.operand[i].rank ? ren__tensor_bytes(&o->desc.operand[i]) : sizeof(ren__state);
        if (o->needs.saved_bytes && ((o->desc.kind == REN__OP_MAX_POOL_FWD && i == 2) ||
                                     (o->desc.kind == REN__OP_MAX_POOL_BWD && i == 3))) {
            bytes = o->needs.saved_bytes;
        }
        if (writes & (1u << i)) {
            c->writes[c->write_count++] = (ren_test_access){operands[i], bytes};
        }
        if (!(writes & (1u << i)) || is_in_place(o->desc.kind)) {
            c->reads[c->read_count++] = (ren_test_access){operands[i], bytes};
        }
    }
}

static ren_status hook_op_create(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                                 ren__op **out, ren__op_needs *needs, ren_error *err)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_OP_CREATE);
    *out = NULL;
    if (status != REN_OK) {
        return ren__error_set(err, status, 0, __FILE__, __LINE__, "injected by a test");
    }
    hook_op *o = calloc(1, sizeof *o);
    if (!o) {
        return REN_ERR_NO_MEMORY;
    }
    status = h->api->op_create(h->dev, lane, desc, &o->op, needs, err);
    if (status != REN_OK) {
        free(o);
        return status;
    }
    o->desc = *desc;
    o->needs = *needs;
    *out = (ren__op *)(void *)o;
    return REN_OK;
}

static void hook_op_destroy(ren__device *dev, ren__op *op)
{
    hook *h = hook_of_device(dev);
    hook_op *o = (hook_op *)(void *)op;
    if (o) {
        h->api->op_destroy(h->dev, o->op);
        free(o);
    }
}

static ren_status hook_op_launch(ren__device *dev, uint32_t lane, ren__op *op,
                                 void *const operands[REN__OPERANDS], void *workspace)
{
    hook *h = hook_of_device(dev);
    hook_op *o = (hook_op *)(void *)op;
    ren_status status = enter(h, CALL_OP_LAUNCH);
    if (status != REN_OK) {
        return status;
    }
    ren_test_command c = {0};
    describe_op(o, operands, &c);
    report *r = before(h, lane, &c);
    if (atomic_load(&h->poison) && o->needs.workspace_bytes) {
        status = h->api->fill(h->dev, lane, workspace, 0xffu, o->needs.workspace_bytes);
    }
    if (status == REN_OK) {
        status = h->api->op_launch(h->dev, lane, o->op, operands, workspace);
    }
    after(h, lane, r);
    return status;
}

/* ------------------------------------------------------------------ memory */

static void poison(hook *h, void *ptr, uint64_t bytes)
{
    if (ptr && h->host_reads_device && atomic_load(&h->poison)) {
        memset(ptr, 0xff, (size_t)bytes);
    }
}

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

static ren_status hook_mem_alloc(ren__device *dev, uint64_t bytes, void **out)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_MEM_ALLOC);
    *out = NULL;
    if (status == REN_OK) {
        status = h->api->mem_alloc(h->dev, bytes, out);
        poison(h, *out, bytes);
    }
    return status;
}

static void hook_mem_free(ren__device *dev, void *ptr, uint64_t bytes)
{
    hook *h = hook_of_device(dev);
    poison(h, ptr, bytes);
    h->api->mem_free(h->dev, ptr, bytes);
}

static ren_status hook_host_alloc(ren__device *dev, uint64_t bytes, void **out)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_HOST_ALLOC);
    *out = NULL;
    if (status == REN_OK) {
        status = h->api->host_alloc(h->dev, bytes, out);
        poison(h, *out, bytes);
    }
    return status;
}

static void hook_host_free(ren__device *dev, void *ptr, uint64_t bytes)
{
    hook *h = hook_of_device(dev);
    poison(h, ptr, bytes);
    h->api->host_free(h->dev, ptr, bytes);
}

/* ------------------------------------------------------------------ events and commands */

static ren_status hook_event_create(ren__device *dev, uint32_t for_host_wait, ren__event **out)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_EVENT_CREATE);
    *out = NULL;
    return status == REN_OK ? h->api->event_create(h->dev, for_host_wait, out) : status;
}

static void hook_event_destroy(ren__device *dev, ren__event *event)
{
    hook *h = hook_of_device(dev);
    h->api->event_destroy(h->dev, event);
}

static ren_status hook_event_record(ren__device *dev, uint32_t lane, ren__event *event)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_EVENT_RECORD);
    if (status == REN_OK) {
        ren_test_command c = {.call = "event_record", .event = event};
        /* Both reports go before the record: who waits for it may look at them. */
        after(h, lane, before(h, lane, &c));
        status = h->api->event_record(h->dev, lane, event);
    }
    return status;
}

static ren_status hook_event_wait(ren__device *dev, uint32_t lane, ren__event *event)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_EVENT_WAIT);
    if (status == REN_OK && h->capturing) {
        return h->api->event_wait(h->dev, lane, event); /* it may be what joins the lane */
    }
    if (status == REN_OK) {
        ren_test_command c = {.call = "event_wait", .event = event};
        report *r = before(h, lane, &c);
        status = h->api->event_wait(h->dev, lane, event);
        after(h, lane, r);
    }
    return status;
}

static ren_status hook_event_sync(ren__device *dev, ren__event *event)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_EVENT_SYNC);
    return status == REN_OK ? h->api->event_sync(h->dev, event) : status;
}

static ren_status hook_copy(ren__device *dev, uint32_t lane, void *dst, const void *src,
                            uint64_t bytes)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_COPY);
    if (status == REN_OK) {
        ren_test_command c = {.call = "copy", .read_count = 1, .write_count = 1};
        c.reads[0] = (ren_test_access){src, bytes};
        c.writes[0] = (ren_test_access){dst, bytes};
        report *r = before(h, lane, &c);
        status = h->api->copy(h->dev, lane, dst, src, bytes);
        after(h, lane, r);
    }
    return status;
}

static ren_status hook_fill(ren__device *dev, uint32_t lane, void *dst, uint32_t byte_value,
                            uint64_t bytes)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_FILL);
    if (status == REN_OK) {
        ren_test_command c = {.call = "fill", .write_count = 1};
        c.writes[0] = (ren_test_access){dst, bytes};
        report *r = before(h, lane, &c);
        status = h->api->fill(h->dev, lane, dst, byte_value, bytes);
        after(h, lane, r);
    }
    return status;
}

static ren_status hook_call(ren__device *dev, uint32_t lane, ren__call_fn fn, void *user,
                            ren_status *out_status)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_CALL);
    if (status == REN_OK) {
        ren_test_command c = {.call = "call"};
        report *r = before(h, lane, &c);
        status = h->api->call(h->dev, lane, fn, user, out_status);
        after(h, lane, r);
    }
    return status;
}

/* ------------------------------------------------------------------ graphs */

static ren_status hook_graph_begin(ren__device *dev, uint32_t origin)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_GRAPH_BEGIN);
    if (status == REN_OK) {
        status = h->api->graph_begin(h->dev, origin);
        h->capturing = status == REN_OK;
    }
    return status;
}

static ren_status hook_graph_end(ren__device *dev, uint32_t origin, ren__graph **out,
                                 ren_error *err)
{
    hook *h = hook_of_device(dev);
    ren_status injected = enter(h, CALL_GRAPH_END);
    /* The capture has to be ended in any case. */
    ren_status status = h->api->graph_end(h->dev, origin, out, err);
    h->capturing = 0;
    if (injected != REN_OK) {
        if (status == REN_OK) {
            h->api->graph_destroy(h->dev, *out);
        }
        *out = NULL;
        return ren__error_set(err, injected, 0, __FILE__, __LINE__, "injected by a test");
    }
    return status;
}

static ren_status hook_graph_launch(ren__device *dev, uint32_t lane, ren__graph *graph)
{
    hook *h = hook_of_device(dev);
    ren_status status = enter(h, CALL_GRAPH_LAUNCH);
    if (status == REN_OK) {
        ren_test_command c = {.call = "graph_launch"};
        report *r = before(h, lane, &c);
        status = h->api->graph_launch(h->dev, lane, graph);
        after(h, lane, r);
    }
    return status;
}

static void hook_graph_destroy(ren__device *dev, ren__graph *graph)
{
    hook *h = hook_of_device(dev);
    h->api->graph_destroy(h->dev, graph);
}

/* ------------------------------------------------------------------ the device */

static void free_reports(hook *h)
{
    while (h->reports) {
        report *r = h->reports;
        h->reports = r->next;
        free(r);
    }
}

static void hook_close(ren__device *dev)
{
    hook *h = hook_of_device(dev);
    if (!h) {
        return;
    }
    h->api->close(h->dev);
    h->dev = NULL;
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

static void hook_caps(ren__device *dev, ren__device_caps *out)
{
    hook *h = hook_of_device(dev);
    h->api->caps(h->dev, out);
    out->lane_commands /= COMMANDS_PER_COMMAND;
}

static ren_status hook_status(ren__device *dev, ren_error *err)
{
    hook *h = hook_of_device(dev);
    if (atomic_load(&h->lost)) {
        return ren__error_set(err, REN_ERR_DEVICE_LOST, 0, __FILE__, __LINE__,
                              "injected by a test");
    }
    return h->api->status(h->dev, err);
}

static void hook_abandon(ren__device *dev)
{
    hook *h = hook_of_device(dev);
    h->api->abandon(h->dev);
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

/* Hand over what waits for the next device. */
static void take_pending(hook *h, ren__device_config *config)
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
    set_trace(h, global.trace_fn, global.trace_user);
    if (global.seed) {
        config->seed = global.seed;
    }
    global.poison = 0;
    global.seed = 0;
    global.trace_fn = NULL;
    pthread_mutex_unlock(&global.mutex);
}

static ren_status open_through(const ren__device_api *inner, const ren__device_config *config,
                               const ren__host_services *host, ren__device **out, ren_error *err)
{
    *out = NULL;
    hook *h = calloc(1, sizeof *h);
    if (!h) {
        return REN_ERR_NO_MEMORY;
    }
    h->api = inner;
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->released, NULL);
    for (uint32_t i = 0; i < REN__LANES; i++) {
        h->holds[i].of = h;
    }
    ren__device_config changed = *config;
    take_pending(h, &changed);
    pthread_mutex_lock(&h->mutex);
    ren_status status = armed_status(h->faults, CALL_OPEN);
    pthread_mutex_unlock(&h->mutex);
    if (status != REN_OK) {
        status = ren__error_set(err, status, 0, __FILE__, __LINE__, "injected by a test");
    } else {
        status = inner->open(&changed, host, &h->dev, err);
    }
    if (status != REN_OK) {
        free(h);
        return status;
    }
    ren__device_caps caps;
    inner->caps(h->dev, &caps);
    h->host_reads_device = (int)caps.host_reads_device;
    pthread_mutex_lock(&global.mutex);
    h->next = global.all;
    global.all = h;
    pthread_mutex_unlock(&global.mutex);
    *out = (ren__device *)(void *)h;
    return REN_OK;
}

/* The table's open gets no pointer of ours, so each wrapped table has an open of its own. */
#define DEFINE_OPEN(n)                                                                             \
    static ren_status open_##n(const ren__device_config *config, const ren__host_services *host,   \
                               ren__device **out, ren_error *err)                                  \
    {                                                                                              \
        return open_through(global.inner[n], config, host, out, err);                              \
    }
DEFINE_OPEN(0)
DEFINE_OPEN(1)
DEFINE_OPEN(2)
DEFINE_OPEN(3)

static void fill_table(ren__device_api *table, const ren__device_api *inner)
{
    *table = (ren__device_api){
        .struct_size = (uint32_t)sizeof *table,
        .abi = inner->abi,
        .kind = inner->kind,
        .close = hook_close,
        .caps = hook_caps,
        .status = hook_status,
        .abandon = hook_abandon,
        .mem_alloc = hook_mem_alloc,
        .mem_free = hook_mem_free,
        .host_alloc = hook_host_alloc,
        .host_free = hook_host_free,
        .event_create = hook_event_create,
        .event_destroy = hook_event_destroy,
        .event_record = hook_event_record,
        .event_wait = hook_event_wait,
        .event_sync = hook_event_sync,
        .copy = hook_copy,
        .fill = hook_fill,
        .call = hook_call,
        .op_create = hook_op_create,
        .op_destroy = hook_op_destroy,
        .op_launch = hook_op_launch,
        .graph_begin = hook_graph_begin,
        .graph_end = hook_graph_end,
        .graph_launch = hook_graph_launch,
        .graph_destroy = hook_graph_destroy,
    };
}

const ren__device_api *ren__test_wrap(const ren__device_api *inner)
{
    static ren_status (*const opens[MOST_TABLES])(const ren__device_config *,
                                                  const ren__host_services *, ren__device **,
                                                  ren_error *) = {open_0, open_1, open_2, open_3};
    const ren__device_api *result = NULL;
    pthread_mutex_lock(&global.mutex);
    for (int i = 0; i < MOST_TABLES && !result; i++) {
        if (!global.inner[i]) {
            global.inner[i] = inner;
            fill_table(&global.tables[i], inner);
            global.tables[i].open = opens[i];
        }
        if (global.inner[i] == inner) {
            result = &global.tables[i];
        }
    }
    pthread_mutex_unlock(&global.mutex);
    return result ? result : inner;
}
