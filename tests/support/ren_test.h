/* SPDX-License-Identifier: MIT */
/* tests/support/ren_test.h - provoking failures: delays, faults, poison, traces, seeds, pauses.
 *
 * Purpose   The hooks of the design's section 13. They live in a table of their own that stands
 *           between the core and a device, so they work on every device and the library knows
 *           nothing of them but one call, ren__test_wrap, in its test build.
 * Threads   any, unless a hook says otherwise.
 * Runtime   most hooks take the runtime they act on. Where NULL is allowed it means the next device
 *           that is opened, so that creation itself can be tested.
 */
#ifndef REN_TEST_SUPPORT_REN_TEST_H
#define REN_TEST_SUPPORT_REN_TEST_H

#include "../../host_api/ren.h"
#include "../../libren/device/device.h"

/* The table that the core uses in place of `inner`. */
const ren__device_api *ren__test_wrap(const ren__device_api *inner);

/* ------------------------------------------------------------------ time */

/* The next command of this stream's lane starts `ms` later. */
void ren_test_delay(ren_runtime *rt, uint32_t stream, uint32_t ms);

/* The stream's lane gets stuck before its next command, until it is released. What is still held
 * when the device has been closed is released then. */
void ren_test_hold(ren_runtime *rt, uint32_t stream);
void ren_test_release(ren_runtime *rt, uint32_t stream);

/* The CPU device's clock, as stamps read it, is from now on `offset_ns` ahead of the host's and
 * goes `ppm` parts in a million faster, as another device's would. */
void ren_test_clock(ren_runtime *rt, uint64_t offset_ns, uint32_t ppm);

/* ------------------------------------------------------------------ faults */

/* Make the nth call (from 1) of this kind from now on fail with `status`, or with forever = 1 every
 * one from there on. `call` is the table entry's name ("copy", "mem_alloc", "event_sync", "open",
 * ...), or "any": every call but open that can fail. REN_ERR_DEVICE_LOST is sticky, as on a real
 * device: everything fails with it afterwards, and sleepers wake. A call that is made to fail does
 * nothing else. */
void ren_test_fault(ren_runtime *rt, const char *call, uint64_t nth, ren_status status,
                    int forever);
void ren_test_fault_next(const char *call, uint64_t nth, ren_status status, int forever);
/* Disarm all faults of a runtime; NULL: everything that waits for the next device. */
void ren_test_fault_clear(ren_runtime *rt);

/* Call fn(user) once, on the thread that makes the nth call of a kind from now on, before that call
 * reaches the device. A second one takes the place of the first. */
void ren_test_before(ren_runtime *rt, const char *call, uint64_t nth, void (*fn)(void *user),
                     void *user);

/* Calls of a kind made so far, failed ones included. */
uint64_t ren_test_calls(ren_runtime *rt, const char *call);

/* ------------------------------------------------------------------ memory */

/* Fill device and pinned memory with NaN (0xff bytes) when it is taken from the device and before
 * it is given back, and an operation's workspace before each launch. Memory only where the host can
 * write it; workspaces on every device. NULL: the next device. */
void ren_test_poison(ren_runtime *rt, int on);

/* The next CPU device says that it cannot copy from or to any host memory without waiting, as the
 * CUDA device says of memory that is not pinned. */
void ren_test_unpinned_next(void);

/* The next device says that it can fuse no operations, so that plans hold the parts. */
void ren_test_unfused_next(void);

/* ------------------------------------------------------------------ trace */

typedef struct ren_test_access {
    const void *ptr;
    uint64_t bytes;
} ren_test_access;

typedef struct ren_test_command {
    uint64_t order;   /* of this report among all of the device, from 1 */
    uint64_t command; /* number of the command in the order of enqueueing, from 1 */
    int begin;        /* 1 = about to run, 0 = has run */
    uint32_t lane;
    const char *call;        /* the table entry's name */
    ren__op_kind op;         /* op_launch */
    const ren__event *event; /* event_record, event_wait */
    uint32_t read_count, write_count;
    ren_test_access reads[REN__OPERANDS];
    ren_test_access writes[REN__OPERANDS + 1u]; /* an operation's workspace comes last */
} ren_test_command;

typedef void (*ren_test_trace_fn)(void *user, const ren_test_command *command);

/* Report the begin and end of every command, in order and one at a time; fn NULL = stop. Commands
 * that were enqueued before are not reported. A graph launch is one command; the commands captured
 * while a trace is on are reported at each replay, with the numbers that they got at capture. On
 * CUDA reports come from host functions on the stream. NULL runtime: the next device. */
void ren_test_trace(ren_runtime *rt, ren_test_trace_fn fn, void *user);

/* ------------------------------------------------------------------ schedule */

/* Make the CPU device's order of commands a function of the seed (not 0). NULL: the next device is
 * opened under the seed. A runtime: starts the order again from the seed; its device must have been
 * opened under one, and be idle. */
void ren_test_seed(ren_runtime *rt, uint64_t seed);

/* ------------------------------------------------------------------ points (point.c) */

/* Stop the next thread that comes to a named point, until it is resumed. */
void ren_test_pause(ren_runtime *rt, const char *point);
void ren_test_resume(ren_runtime *rt, const char *point);
/* 1 once a thread is stopped there, 0 after the timeout. */
int ren_test_wait_paused(ren_runtime *rt, const char *point, uint32_t timeout_ms);
/* Called by the library at its points. */
void ren__test_point(const char *name);

#endif
