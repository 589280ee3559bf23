/* SPDX-License-Identifier: MIT */
/* libren/trace/trace.h - a bounded recorder of what happened when, written as a trace file.
 *
 * Purpose   The core, the pump and the planner say what they did as spans, instants and flows; the
 *           file can be looked at in Perfetto or chrome://tracing ("Trace Event Format", JSON).
 * Threads   span, instant, flow: any thread, at the same time as begin and end.  begin, end: any
 *           thread; of two at a time one wins.  init, deinit: no concurrent use.
 * Progress  Recording is lock-free: a counter says which record is one's own. While no trace is
 *           open it is one relaxed load. Nothing waits: end skips a record that is being written.
 * Order     Records are claimed in order; the file names times, so readers need no order.
 * Memory    begin takes the whole buffer, end gives it back; recording never allocates. A buffer
 *           that a descheduled writer may still hold is kept until a later begin, end or deinit
 *           finds no writer inside. A full buffer drops what comes later and counts it.
 * Units     Nanoseconds in, on ren__now_ns' clock or on the device's; microseconds since begin in
 *           the file.
 * Not here  Counters that are always on: ren_runtime_stats.
 */
#ifndef REN_TRACE_TRACE_H
#define REN_TRACE_TRACE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../core/core.h"
#include "stamps.h"

/* The rows of the picture. Host times, but for steps, streams and jobs. */
enum {
    REN__TRACK_POST = 0,      /* host threads: instants, since several may post at once */
    REN__TRACK_SUBMITTER = 1, /* what the submitter did */
    REN__TRACK_STEP = 2,      /* training steps, from their first task to their last */
    REN__TRACK_STREAM = 3,    /* + ren_stream: what training steps ran on it */
    REN__TRACK_JOB = 8,       /* + ren_stream: other jobs. On CUDA they may run beside the tasks of
                                   a graph that are the stream's by the plan */
    REN__TRACK_COMPLETION = 13, /* + lane: what its completion thread did */
    REN__TRACK_PUMP = 18,       /* + channel: callbacks run by ren_pump */
    REN__TRACK_COUNT = 34
};

enum {
    REN__TRACE_NAME_BYTES = 40,          /* longer names are cut, the NUL included */
    REN__TRACE_DEFAULT_RECORDS = 1 << 17 /* 10 MiB */
};

/* The host's time of a device time: on the line through two moments read on both clocks. */
typedef struct ren__trace_clock {
    ren__clock_pair first, last;
    bool known; /* `first` was read; else device times are left out of the file */
} ren__trace_clock;

typedef enum ren__trace_kind {
    REN__TRACE_SPAN = 0,
    REN__TRACE_INSTANT = 1, /* at begin_ns */
    REN__TRACE_FLOW = 2     /* an arrow, from the span of `track` that covers begin_ns to that of
                               `to_track` that covers end_ns */
} ren__trace_kind;

enum { /* bits of ren__trace_event.device */
    REN__TRACE_DEVICE_BEGIN = 1,
    REN__TRACE_DEVICE_END = 2,
    REN__TRACE_DEVICE = 3
};

typedef struct ren__trace_event {
    ren__trace_kind kind;
    uint32_t track;
    uint32_t to_track; /* flows */
    uint32_t device;   /* which of the times are on the device's clock */
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t value;     /* shown with it: a job's id, a step's index, a count; not with flows */
    const char *name;   /* copied */
    const char *detail; /* static, shown behind the name; may be NULL */
} ren__trace_event;

typedef struct ren__trace ren__trace;

/* Where a runtime keeps its trace. Zeroed is closed. */
typedef struct ren__trace_slot {
    _Atomic(ren__trace *) current; /* the open trace, or NULL: recording is off */
    _Atomic uint32_t writers; /* threads between their look at `current` and their last write */
    _Atomic uint32_t state;   /* closed, changing or open: who may begin and end */
    ren__trace *retired;      /* ended, perhaps still held; owned by who holds `state` */
    ren__trace_clock clock;   /* of the open trace; written by who begins and ends traces */
} ren__trace_slot;

void ren__trace_slot_init(ren__trace_slot *slot);

/* Ends an open trace (its file is written) and frees all. Nobody records any more. */
void ren__trace_slot_deinit(ren__trace_slot *slot);

/* Open the file and record from now on.
 * records   room for this many; 0 = REN__TRACE_DEFAULT_RECORDS
 * Returns   REN_OK; REN_ERR_BUSY (a trace is open); REN_ERR_IO; REN_ERR_NO_MEMORY */
ren_status ren__trace_begin(ren__trace_slot *slot, const char *path, uint32_t records,
                            const ren__host_allocator *a, ren_error *err);

/* Stop recording, write the file and close it.
 * Returns   REN_OK; REN_ERR_IO (what could be written is there); REN_ERR_INVALID_ARGUMENT (none is
 *           open) */
ren_status ren__trace_end(ren__trace_slot *slot);

/* The two halves of end: stop recording (NULL: no trace is open), then write. Between them the slot
 * can neither begin nor end, and its clock may be set. */
ren__trace *ren__trace_close(ren__trace_slot *slot);
ren_status ren__trace_write(ren__trace_slot *slot, ren__trace *t);

/* A guess, for callers who would have to read a clock first. */
static inline bool ren__trace_on(const ren__trace_slot *slot)
{
    return atomic_load_explicit(&slot->current, memory_order_relaxed) != NULL;
}

/* What the calls below are short for. */
void ren__trace_put(ren__trace_slot *slot, const ren__trace_event *event);

/* Spans of one track should nest or follow one another. */
static inline void ren__trace_span(ren__trace_slot *slot, uint32_t track, const char *name,
                                   uint64_t begin_ns, uint64_t end_ns, uint64_t value)
{
    if (ren__trace_on(slot)) {
        const ren__trace_event event = {.kind = REN__TRACE_SPAN,
                                        .track = track,
                                        .begin_ns = begin_ns,
                                        .end_ns = end_ns,
                                        .value = value,
                                        .name = name};
        ren__trace_put(slot, &event);
    }
}

static inline void ren__trace_instant(ren__trace_slot *slot, uint32_t track, const char *name,
                                      uint64_t at_ns, uint64_t value)
{
    if (ren__trace_on(slot)) {
        const ren__trace_event event = {.kind = REN__TRACE_INSTANT,
                                        .track = track,
                                        .begin_ns = at_ns,
                                        .end_ns = at_ns,
                                        .value = value,
                                        .name = name};
        ren__trace_put(slot, &event);
    }
}

/* `device`: REN__TRACE_DEVICE_*, which of the two times are the device's. */
static inline void ren__trace_flow(ren__trace_slot *slot, const char *name, uint32_t from_track,
                                   uint64_t from_ns, uint32_t to_track, uint64_t to_ns,
                                   uint32_t device)
{
    if (ren__trace_on(slot)) {
        const ren__trace_event event = {.kind = REN__TRACE_FLOW,
                                        .track = from_track,
                                        .to_track = to_track,
                                        .device = device,
                                        .begin_ns = from_ns,
                                        .end_ns = to_ns,
                                        .name = name};
        ren__trace_put(slot, &event);
    }
}

/* A time inside a span, and near its end: where an arrow leaves it. Two ns before the end, since
 * one may be lost when the times are turned into the host's. */
static inline uint64_t ren__trace_inside(uint64_t begin_ns, uint64_t end_ns)
{
    return end_ns > begin_ns + 1u ? end_ns - 2u : begin_ns;
}

/* Of a runtime; defined by the core. The lock is held by who begins or ends its trace. */
ren__trace_slot *ren__runtime_trace(ren_runtime *rt);
ren__stamps *ren__runtime_stamps(ren_runtime *rt);
pthread_mutex_t *ren__runtime_trace_lock(ren_runtime *rt);

/* session.c: begin and end a runtime's trace, with its device's clock read at both. */
ren_status ren__trace_session_begin(ren_runtime *rt, const char *path, ren_error *err);
ren_status ren__trace_session_end(ren_runtime *rt);

#endif
