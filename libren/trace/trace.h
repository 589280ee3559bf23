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
 * Units     Nanoseconds on ren_now_ns' clock in; microseconds since begin in the file.
 * Not here  Counters that are always on: ren_runtime_stats.
 */
#ifndef REN_TRACE_TRACE_H
#define REN_TRACE_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../core/core.h"

/* The rows of the picture. */
enum {
    REN__TRACK_POST = 0,       /* host threads: instants, since several may post at once */
    REN__TRACK_SUBMITTER = 1,  /* what the submitter did */
    REN__TRACK_STREAM = 2,     /* + ren_stream: what a stream ran, from launch to completion */
    REN__TRACK_COMPLETION = 7, /* + ren_stream: what its completion thread did */
    REN__TRACK_PUMP = 12,      /* + channel: callbacks run by ren_pump */
    REN__TRACK_COUNT = 28
};

enum {
    REN__TRACE_NAME_BYTES = 40,          /* longer names are cut, the NUL included */
    REN__TRACE_DEFAULT_RECORDS = 1 << 17 /* 9 MiB */
};

typedef struct ren__trace ren__trace;

/* Where a runtime keeps its trace. Zeroed is closed. */
typedef struct ren__trace_slot {
    _Atomic(ren__trace *) current; /* the open trace, or NULL: recording is off */
    _Atomic uint32_t writers; /* threads between their look at `current` and their last write */
    _Atomic uint32_t state;   /* closed, changing or open: who may begin and end */
    ren__trace *retired;      /* ended, perhaps still held; owned by who holds `state` */
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

/* A guess, for callers who would have to read a clock first. */
static inline bool ren__trace_on(const ren__trace_slot *slot)
{
    return atomic_load_explicit(&slot->current, memory_order_relaxed) != NULL;
}

/* Out-of-line halves of the calls below. */
void ren__trace_record_span(ren__trace_slot *slot, uint32_t track, const char *name,
                            uint64_t begin_ns, uint64_t end_ns, uint64_t arg);
void ren__trace_record_instant(ren__trace_slot *slot, uint32_t track, const char *name,
                               uint64_t at_ns, uint64_t arg);
void ren__trace_record_flow(ren__trace_slot *slot, uint32_t from_track, uint64_t from_ns,
                            uint32_t to_track, uint64_t to_ns, uint64_t id);

/* `name` is copied. `arg` is shown with the span: a job's id, a count, bytes. Spans of one track
 * should nest or follow one another. */
static inline void ren__trace_span(ren__trace_slot *slot, uint32_t track, const char *name,
                                   uint64_t begin_ns, uint64_t end_ns, uint64_t arg)
{
    if (ren__trace_on(slot)) {
        ren__trace_record_span(slot, track, name, begin_ns, end_ns, arg);
    }
}

static inline void ren__trace_instant(ren__trace_slot *slot, uint32_t track, const char *name,
                                      uint64_t at_ns, uint64_t arg)
{
    if (ren__trace_on(slot)) {
        ren__trace_record_instant(slot, track, name, at_ns, arg);
    }
}

/* An arrow from the span of one track that covers from_ns to that of another that covers to_ns. */
static inline void ren__trace_flow(ren__trace_slot *slot, uint32_t from_track, uint64_t from_ns,
                                   uint32_t to_track, uint64_t to_ns, uint64_t id)
{
    if (ren__trace_on(slot)) {
        ren__trace_record_flow(slot, from_track, from_ns, to_track, to_ns, id);
    }
}

/* The slot of a runtime. Defined by the core. */
ren__trace_slot *ren__runtime_trace(ren_runtime *rt);

#endif
