/* SPDX-License-Identifier: MIT */
/* libren/trace/session.c - a runtime's trace, from begin to end.
 *
 * Purpose   What begin and end do beside opening and writing the file: take the memory for device
 *           times, and read the device's clock.
 * Threads   any; one at a time goes through, the others wait.
 * Progress  slow calls. A device that does not answer holds them up for a second; the file is then
 *           without device times.
 *
 * Order. The clock is first read before the trace is open, and last read when it is closed, so the
 * readings themselves are not in it. Records hold the device's times, so work that is done between
 * the two needs no clock.
 */
#include "trace.h"

static ren_status begin(ren_runtime *rt, const char *path, ren_error *err)
{
    ren__trace_slot *slot = ren__runtime_trace(rt);
    if (ren__trace_on(slot)) {
        return REN__FAIL(err, REN_ERR_BUSY, "a trace is open already; end it first");
    }
    ren__stamps *stamps = ren__runtime_stamps(rt);
    ren__trace_clock *clock = &slot->clock;
    /* Without memory for stamps, or a clock, there are no device times; all else is traced. */
    ren_status status = ren__runtime_seen(
        rt, ren__stamps_open(stamps, ren__runtime_api(rt), ren__runtime_device(rt)));
    clock->known = status == REN_OK && ren__stamps_read_clock(stamps, rt, &clock->first);
    clock->last = clock->first;
    if (clock->known) {
        ren__runtime_log(rt, REN_LOG_DEBUG, "the device's clock is known to within %llu ns",
                         (unsigned long long)clock->first.error_ns);
    }
    if (!clock->known) {
        ren__runtime_log(rt, REN_LOG_WARNING, "the trace is without device times (%s)",
                         status == REN_OK ? "the device's clock could not be read"
                                          : ren__status_name(status));
    }
    return ren__trace_begin(slot, path, 0, ren__runtime_allocator(rt), err);
}

ren_status ren__trace_session_begin(ren_runtime *rt, const char *path, ren_error *err)
{
    pthread_mutex_lock(ren__runtime_trace_lock(rt));
    ren_status status = begin(rt, path, err);
    pthread_mutex_unlock(ren__runtime_trace_lock(rt));
    return status;
}

ren_status ren__trace_session_end(ren_runtime *rt)
{
    ren__trace_slot *slot = ren__runtime_trace(rt);
    ren_status status = REN_ERR_INVALID_ARGUMENT;
    ren__clock_pair last;
    pthread_mutex_lock(ren__runtime_trace_lock(rt));
    ren__trace *t = ren__trace_close(slot);
    if (t && slot->clock.known && ren__stamps_read_clock(ren__runtime_stamps(rt), rt, &last)) {
        slot->clock.last = last;
        ren__clock_reconcile(&slot->clock.first, &slot->clock.last);
    }
    if (t) {
        status = ren__trace_write(slot, t);
    }
    pthread_mutex_unlock(ren__runtime_trace_lock(rt));
    return status;
}
