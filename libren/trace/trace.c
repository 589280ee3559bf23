/* SPDX-License-Identifier: MIT */
/* libren/trace/trace.c - the recorder of trace.h and the writer of its file.
 *
 * Purpose   See trace.h.
 * Threads   See trace.h.
 *
 * The hand-over between writers and end
 *   A writer must not be left with a buffer that end has freed, and end must not wait for a writer
 *   that the scheduler has put aside. So a writer announces itself before it looks:
 *       writer: writers += 1;  t = current;  if (t) write one record of t;  writers -= 1
 *       end:    current = NULL;  if (writers == 0) free, else keep for later
 *   Both sides store first and load then, and all four accesses are sequentially consistent, so one
 *   of the two sees the other: either the writer finds NULL, or end finds the writer counted and
 *   keeps the buffer. A kept buffer is freed by the next begin, end or deinit that finds writers ==
 *   0 after `current` became NULL; a writer that comes later finds NULL or the next trace. So no
 *   one waits, and the buffers kept are at most one for each end that met a writer.
 *
 * The hand-over of one record
 *   A writer claims an index (relaxed: it only has to be its own), fills the record and sets
 *   `ready` (release). The writer of the file reads `ready` (acquire, its partner) and skips
 *   records that are not: the hazard is a half-written name or time. A record is written once, so a
 *   ready one stays as it is.
 *
 * Device times
 *   A record keeps them as they are. Only when the trace ends is the device's clock known at two
 *   moments, and the line through them turns all device times into the host's. It is the same line
 *   for all, so what was in order on the device is in order in the file.
 *
 * Format    Trace Event Format as Perfetto and chrome://tracing read it: one process, a thread per
 *           track; "X" complete events, "i" instants, "s"/"f" flow arrows, "M" names. Times are
 *           microseconds with three decimals, from begin; what began earlier is cut there.
 */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../core/error.h"

enum {
    TRACE_CLOSED = 0,
    TRACE_CHANGING = 1,
    TRACE_OPEN = 2
};

enum {
    OUTPUT_BYTES = 8192,
    LINE_BYTES = 512 /* the longest event: a name, each character escaped, and five numbers */
};

typedef struct trace_record {
    _Atomic uint32_t ready;
    uint8_t kind;
    uint8_t track;
    uint8_t to_track;
    uint8_t device;
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t value;
    const char *detail;
    char name[REN__TRACE_NAME_BYTES];
} trace_record;

struct ren__trace {
    _Alignas(64) _Atomic uint64_t claimed; /* may exceed capacity: the excess was dropped */
    _Alignas(64) trace_record *records;
    uint32_t capacity;
    int fd;
    uint64_t begin_ns;
    ren__host_allocator allocator;
    ren__trace *next; /* retired */
};

/* ------------------------------------------------------------------ recording */

/* Announce a writer and lend it a record of the open trace. NULL: off, or full. Each call is
 * followed by leave, whatever it gave. */
static trace_record *enter(ren__trace_slot *slot)
{
    atomic_fetch_add(&slot->writers, 1); /* partner: collect's load, see the file header */
    ren__trace *t = atomic_load(&slot->current);
    if (!t) {
        return NULL;
    }
    uint64_t index = atomic_fetch_add_explicit(&t->claimed, 1, memory_order_relaxed);
    return index < t->capacity ? &t->records[index] : NULL;
}

static void leave(ren__trace_slot *slot)
{
    atomic_fetch_sub(&slot->writers, 1);
}

static void copy_name(char *out, const char *name)
{
    size_t length = 0;
    while (name && name[length] && length < REN__TRACE_NAME_BYTES - 1u) {
        out[length] = name[length];
        length++;
    }
    out[length] = '\0';
}

void ren__trace_put(ren__trace_slot *slot, const ren__trace_event *event)
{
    trace_record *r = enter(slot);
    if (r) {
        r->kind = (uint8_t)event->kind;
        r->track = (uint8_t)event->track;
        r->to_track = (uint8_t)event->to_track;
        r->device = (uint8_t)event->device;
        r->begin_ns = event->begin_ns;
        r->end_ns = event->end_ns;
        r->value = event->value;
        r->detail = event->detail;
        copy_name(r->name, event->name);
        atomic_store_explicit(&r->ready, 1, memory_order_release); /* partner: write_file's load */
    }
    leave(slot);
}

/* ------------------------------------------------------------------ the file */

typedef struct output {
    int fd;
    int error; /* the first errno */
    size_t used;
    char bytes[OUTPUT_BYTES];
} output;

static void flush(output *out)
{
    size_t done = 0;
    while (done < out->used && !out->error) {
        ssize_t n = write(out->fd, out->bytes + done, out->used - done);
        if (n >= 0) {
            done += (size_t)n;
        } else if (errno != EINTR) {
            out->error = errno;
        }
    }
    out->used = 0;
}

static void emit(output *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void emit(output *out, const char *format, ...)
{
    if (OUTPUT_BYTES - out->used < LINE_BYTES) {
        flush(out);
    }
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(out->bytes + out->used, OUTPUT_BYTES - out->used, format, arguments);
    va_end(arguments);
    if (n > 0 && (size_t)n < OUTPUT_BYTES - out->used) {
        out->used += (size_t)n;
    }
}

/* The inside of a JSON string. Bytes that are no printable ASCII become '?': a cut name may end
 * inside a character. */
static const char *escaped(const char *name, char out[2 * REN__TRACE_NAME_BYTES])
{
    size_t n = 0;
    for (const char *c = name; *c; c++) {
        if (*c == '"' || *c == '\\') {
            out[n++] = '\\';
        }
        out[n++] = *c >= ' ' && *c < 127 ? *c : '?';
    }
    out[n] = '\0';
    return out;
}

static const char *track_name(uint32_t track, char out[32])
{
    static const char *const stream_names[REN_STREAM_COUNT] = {"TRANS", "COMP_1", "COMP_2",
                                                               "COMP_3", "UPDATE"};
    if (track == REN__TRACK_POST) {
        return "host posts";
    }
    if (track == REN__TRACK_SUBMITTER) {
        return "submitter";
    }
    if (track == REN__TRACK_STEP) {
        return "steps";
    }
    if (track < REN__TRACK_JOB) {
        (void)snprintf(out, 32, "stream %s", stream_names[track - REN__TRACK_STREAM]);
    } else if (track < REN__TRACK_COMPLETION) {
        (void)snprintf(out, 32, "jobs %s", stream_names[track - REN__TRACK_JOB]);
    } else if (track < REN__TRACK_PUMP) {
        (void)snprintf(out, 32, "completion %s", stream_names[track - REN__TRACK_COMPLETION]);
    } else {
        (void)snprintf(out, 32, "pump %u", track - REN__TRACK_PUMP);
    }
    return out;
}

static void write_tracks(output *out)
{
    char text[32];
    for (uint32_t track = 0; track < REN__TRACK_COUNT; track++) {
        emit(out,
             "{\"ph\":\"M\",\"pid\":1,\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":\"%"
             "s\"}},\n"
             "{\"ph\":\"M\",\"pid\":1,\"tid\":%u,\"name\":\"thread_sort_index\","
             "\"args\":{\"sort_index\":%u}},\n",
             track + 1u, track_name(track, text), track + 1u, track);
    }
}

/* "12.345": microseconds from nanoseconds. */
static const char *micros(uint64_t ns, char out[32])
{
    (void)snprintf(out, 32, "%" PRIu64 ".%03u", ns / 1000u, (unsigned)(ns % 1000u));
    return out;
}

/* A number, or text for those that a reader's floating point would round. */
static const char *argument(uint64_t value, char out[32])
{
    (void)snprintf(out, 32, value >> 53 ? "\"0x%016" PRIx64 "\"" : "%" PRIu64, value);
    return out;
}

/* The line through the two readings. Only what the clocks have drifted apart is a fraction: where
 * they have not, times are exact, and everywhere they keep their order. */
static uint64_t host_time(const ren__trace_clock *c, uint64_t device_ns)
{
    int64_t since = (int64_t)(device_ns - c->first.device_ns);
    int64_t whole = (int64_t)(c->last.device_ns - c->first.device_ns);
    int64_t drift = (int64_t)(c->last.host_ns - c->first.host_ns) - whole;
    if (whole > 0 && drift != 0) {
        since += (int64_t)((double)since * (double)drift / (double)whole);
    }
    return c->first.host_ns + (uint64_t)since;
}

/* The times since begin. False: the record has no place in this file. */
static bool place_record(const trace_record *r, const ren__trace_clock *c, uint64_t base_ns,
                         uint64_t *begin, uint64_t *end)
{
    *begin = r->begin_ns;
    *end = r->end_ns;
    if (r->device && !c->known) {
        return false;
    }
    *begin = r->device & REN__TRACE_DEVICE_BEGIN ? host_time(c, *begin) : *begin;
    *end = r->device & REN__TRACE_DEVICE_END ? host_time(c, *end) : *end;
    if (r->device && *end < base_ns) {
        return false; /* issued under an earlier trace */
    }
    *begin = *begin > base_ns ? *begin - base_ns : 0;
    *end = *end > base_ns ? *end - base_ns : 0;
    *end = *end > *begin ? *end : *begin;
    return true;
}

/* `id` tells arrows apart. */
static void write_record(output *out, const trace_record *r, uint64_t id, uint64_t begin,
                         uint64_t end)
{
    char name[2 * REN__TRACE_NAME_BYTES], from[32], length[32], value[32];
    const char *gap = r->detail ? " " : "", *detail = r->detail ? r->detail : "";
    (void)escaped(r->name, name);
    (void)micros(begin, from);
    (void)argument(r->value, value);
    if (r->kind == REN__TRACE_SPAN) {
        emit(out,
             "{\"ph\":\"X\",\"pid\":1,\"tid\":%u,\"cat\":\"ren\",\"name\":\"%s%s%s\",\"ts\":%s,"
             "\"dur\":%s,\"args\":{\"value\":%s}},\n",
             r->track + 1u, name, gap, detail, from, micros(end - begin, length), value);
    } else if (r->kind == REN__TRACE_INSTANT) {
        emit(out,
             "{\"ph\":\"i\",\"s\":\"t\",\"pid\":1,\"tid\":%u,\"cat\":\"ren\",\"name\":\"%s%s%s\","
             "\"ts\":%s,\"args\":{\"value\":%s}},\n",
             r->track + 1u, name, gap, detail, from, value);
    } else {
        emit(out,
             "{\"ph\":\"s\",\"pid\":1,\"tid\":%u,\"cat\":\"flow\",\"name\":\"%s\",\"id\":%" PRIu64
             ",\"ts\":%s},\n",
             r->track + 1u, name, id, from);
        emit(out,
             "{\"ph\":\"f\",\"bp\":\"e\",\"pid\":1,\"tid\":%u,\"cat\":\"flow\",\"name\":\"%s\","
             "\"id\":%" PRIu64 ",\"ts\":%s},\n",
             r->to_track + 1u, name, id, micros(end, length));
    }
}

static int write_file(ren__trace *t, const ren__trace_clock *clock)
{
    output out = {.fd = t->fd};
    uint64_t claimed = atomic_load_explicit(&t->claimed, memory_order_relaxed);
    uint64_t count = claimed < t->capacity ? claimed : t->capacity;
    uint64_t lost = claimed - count;
    emit(&out, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    write_tracks(&out);
    for (uint64_t i = 0; i < count; i++) {
        const trace_record *r = &t->records[i];
        uint64_t begin, end;
        /* acquire; partner: ren__trace_put */
        if (!atomic_load_explicit(&r->ready, memory_order_acquire)) {
            lost++;
        } else if (place_record(r, clock, t->begin_ns, &begin, &end)) {
            write_record(&out, r, i, begin, end);
        }
    }
    /* The list ends with an event, so that every other line may end with a comma. */
    emit(&out,
         "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"libren\"}}\n],\n"
         "\"otherData\":{\"lost_records\":\"%" PRIu64 "\"}}\n",
         lost);
    flush(&out);
    return out.error;
}

/* ------------------------------------------------------------------ begin and end */

static void free_trace(ren__trace *t)
{
    ren__host_allocator a = t->allocator;
    ren__host_free(&a, t->records, t->capacity, sizeof *t->records);
    ren__host_free(&a, t, 1, sizeof *t);
}

/* Free what no writer can hold. The caller owns `state`, and `current` has been NULL since the
 * retired traces left it; so writers == 0 now means that no writer found one of them (partner:
 * enter). */
static void collect(ren__trace_slot *slot)
{
    if (atomic_load(&slot->writers) != 0) {
        return;
    }
    while (slot->retired) {
        ren__trace *t = slot->retired;
        slot->retired = t->next;
        free_trace(t);
    }
}

/* Of several threads one gets the right to begin or end. Acquire and release pair with set_state,
 * so that the winner sees `retired` as the last owner left it. */
static bool take_state(ren__trace_slot *slot, uint32_t from)
{
    return atomic_compare_exchange_strong_explicit(&slot->state, &from, TRACE_CHANGING,
                                                   memory_order_acquire, memory_order_relaxed);
}

static void set_state(ren__trace_slot *slot, uint32_t to)
{
    atomic_store_explicit(&slot->state, to, memory_order_release);
}

void ren__trace_slot_init(ren__trace_slot *slot)
{
    atomic_init(&slot->current, NULL);
    atomic_init(&slot->writers, 0);
    atomic_init(&slot->state, TRACE_CLOSED);
    slot->retired = NULL;
    memset(&slot->clock, 0, sizeof slot->clock);
}

void ren__trace_slot_deinit(ren__trace_slot *slot)
{
    (void)ren__trace_end(slot);
    collect(slot);
}

static ren_status open_trace(ren__trace **out, const char *path, uint32_t records,
                             const ren__host_allocator *a, ren_error *err)
{
    ren__trace *t = ren__host_calloc(a, 1, sizeof *t);
    if (!t) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory for a trace");
    }
    t->allocator = *a;
    t->capacity = records ? records : REN__TRACE_DEFAULT_RECORDS;
    t->records = ren__host_calloc(a, t->capacity, sizeof *t->records);
    if (!t->records) {
        free_trace(t);
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory for the records of a trace");
    }
    do {
        t->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    } while (t->fd < 0 && errno == EINTR);
    if (t->fd < 0) {
        int code = errno;
        free_trace(t);
        return REN__IO_FAIL(err, code, "cannot open the trace file %.160s", path);
    }
    t->begin_ns = ren__now_ns();
    *out = t;
    return REN_OK;
}

ren_status ren__trace_begin(ren__trace_slot *slot, const char *path, uint32_t records,
                            const ren__host_allocator *a, ren_error *err)
{
    if (!take_state(slot, TRACE_CLOSED)) {
        return REN__FAIL(err, REN_ERR_BUSY, "a trace is open already; end it first");
    }
    ren__trace *t = NULL;
    collect(slot);
    ren_status status = open_trace(&t, path, records, a, err);
    if (status == REN_OK) {
        atomic_store(&slot->current,
                     t); /* partner: enter's load, which must see the records zeroed */
    }
    set_state(slot, status == REN_OK ? TRACE_OPEN : TRACE_CLOSED);
    return status;
}

ren__trace *ren__trace_close(ren__trace_slot *slot)
{
    return take_state(slot, TRACE_OPEN) ? atomic_exchange(&slot->current, NULL) : NULL;
}

ren_status ren__trace_write(ren__trace_slot *slot, ren__trace *t)
{
    int error = write_file(t, &slot->clock);
    if (close(t->fd) != 0 && error == 0 && errno != EINTR) {
        error = errno;
    }
    t->next = slot->retired;
    slot->retired = t;
    collect(slot);
    set_state(slot, TRACE_CLOSED);
    return error ? REN_ERR_IO : REN_OK;
}

ren_status ren__trace_end(ren__trace_slot *slot)
{
    ren__trace *t = ren__trace_close(slot);
    return t ? ren__trace_write(slot, t) : REN_ERR_INVALID_ARGUMENT;
}
