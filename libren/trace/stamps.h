/* SPDX-License-Identifier: MIT */
/* libren/trace/stamps.h - device times on their way from the lanes to the trace.
 *
 * Purpose   While a trace is open, the submitter puts stamps of the device's clock around commands.
 *           They land in a ring of pinned memory, are read on the completion side when their work
 *           is done, and are turned into the host's time when the trace ends.
 * Threads   open, deinit: one at a time.  take: the submitter.  give: any thread.  read_clock: one
 *           thread at a time.
 * Progress  take and give never wait.  read_clock waits for the device, for a second at most.
 * Memory    One block of pinned memory, from the first open to deinit: stamps that were enqueued
 *           under a trace may still be written after its end. While all of it is in use, take gives
 *           nothing, and the work goes without device times.
 * Units     ns on the device's clock, or on the host's (ren__now_ns).
 */
#ifndef REN_TRACE_STAMPS_H
#define REN_TRACE_STAMPS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../core/core.h"

enum {
    REN__STAMP_ENTRIES = 1 << 17 /* 1 MiB: eight steps under way of 8,000 tasks each */
};

/* The same moment on both clocks. */
typedef struct ren__clock_pair {
    uint64_t device_ns;
    uint64_t host_ns;
    uint64_t error_ns; /* host_ns is off by this at most */
} ren__clock_pair;

/* One reading of the device's clock. */
typedef struct ren__clock_probe {
    _Atomic uint64_t *stamp; /* pinned, behind the ring; 0 until the device has written it */
    uint64_t before_ns;      /* the submitter's: before the stamp was enqueued */
    _Atomic uint32_t busy;   /* posted, and not finished; finish's release pairs with the waiter */
} ren__clock_probe;

typedef struct ren__stamps {
    _Atomic(uint64_t *) memory; /* NULL before the first open */
    uint64_t head, tail;        /* the submitter's: entries taken, and given back, so far */
    ren__clock_probe probe;
} ren__stamps;

/* Zeroed is before the first open. */
ren_status ren__stamps_open(ren__stamps *s, const ren__device_api *api, ren__device *dev);
/* The lanes are idle, or gone. */
void ren__stamps_deinit(ren__stamps *s, const ren__device_api *api, ren__device *dev);

/* `count` stamps, all 0, or NULL. Each block that was taken is given back once, when the device is
 * past the commands that write it. give(NULL) is fine. */
uint64_t *ren__stamps_take(ren__stamps *s, uint32_t count);
void ren__stamps_give(uint64_t *stamps);

/* Read both clocks at the same moment, as well as that goes. False: the device did not answer. */
bool ren__stamps_read_clock(ren__stamps *s, ren_runtime *rt, ren__clock_pair *out);

/* Where the clocks have not drifted apart by more than the readings' errors, there is no telling
 * that they have: then both readings get the one offset that fits them best. */
void ren__clock_reconcile(ren__clock_pair *first, ren__clock_pair *last);

#endif
