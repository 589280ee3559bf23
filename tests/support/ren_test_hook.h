/* SPDX-License-Identifier: MIT */
/* tests/support/ren_test_hook.h - what the two files of the hooks share.
 *
 * Purpose   ren_test.c decides what is to happen to a call; ren_test_table.c is the device table
 *           whose entries ask it.
 * Threads   hook state that calls look at is atomic, or under the hook's mutex when something is
 *           armed.
 * Memory    plain malloc. A hook outlives its device (a thread that is stuck in a hold may be left
 *           behind by the device) and stays reachable to the end of the process.
 */
#ifndef REN_TEST_SUPPORT_REN_TEST_HOOK_H
#define REN_TEST_SUPPORT_REN_TEST_HOOK_H

#include <pthread.h>
#include <stdatomic.h>

#include "ren_test.h"

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
    CALL_GRAPH_UPDATE,
    CALL_GRAPH_END,
    CALL_GRAPH_LAUNCH,
    CALL_STAMP,
    CALL_ANY,
    CALLS
};

#define MOST_FAULTS 8
typedef struct fault {
    int call; /* CALLS = unused */
    uint64_t nth;
    ren_status status;
    int forever;
} fault;

/* What ren_test_before asked for; fn NULL = nothing. */
typedef struct before_call {
    int call;
    uint64_t nth;
    void (*fn)(void *user);
    void *user;
} before_call;

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
    int unpinned; /* set at open */
    int unfused;  /* likewise */
    pthread_mutex_t mutex;
    pthread_cond_t released;
    before_call before; /* under the mutex, looked at when armed */
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
    uint64_t clock_offset_ns; /* set before `clock_ppm`; see ren_test_clock */
    uint64_t clock_from_ns;
    _Atomic uint32_t clock_ppm; /* 1 + the rate; 0 = the device's own clock */
    _Atomic int tracing;
    ren_test_trace_fn trace_fn; /* under the mutex */
    void *trace_user;
    uint64_t orders;   /* under the mutex */
    uint64_t commands; /* submitter */
    report *reports;
};

static inline hook *hook_of_device(ren__device *dev)
{
    return (hook *)(void *)dev;
}

/* Count the call; REN_OK, or the status that it is to fail with. */
ren_status ren__hook_enter(hook *h, int call);

/* What goes before a command: a delay or hold that is due, and its begin report. The report, or
 * NULL without a trace. Then what goes after it. */
report *ren__hook_before(hook *h, uint32_t lane, const ren_test_command *command);
void ren__hook_after(hook *h, uint32_t lane, report *r);

/* A stamp by the clock that ren_test_clock made. */
void ren__hook_stamp_skewed(hook *h, uint32_t lane, uint64_t *out);

/* Hand over what waits for the next device; REN_OK, or the status that open is to fail with. */
ren_status ren__hook_take_pending(hook *h, ren__device_config *config);

/* The device is closed: let go what is held, free what no lane can come to any more. */
void ren__hook_release_all(hook *h);

#endif
