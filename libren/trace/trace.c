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
#include <unistd.h>

#include "../core/error.h"

enum {
    TRACE_CLOSED = 0,
    TRACE_CHANGING = 1,
    TRACE_OPEN = 2
};

enum {
    RECORD_SPAN = 0,
    RECORD_INSTANT = 1,
    RECORD_FLOW = 2
};

enum {
    OUTPUT_BYTES = 8192,
    LINE_BYTES = 512 /* the longest event: two names of 6 bytes a character, five numbers */
};

typedef struct trace_record {
    _Atomic uint32_t ready;
    uint8_t kind;
    uint8_t track;
    uint8_t to_track; /* flows */
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t value; /* spans and instants: the argument; flows: the arrow's id */
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

static void record(ren__trace_slot *slot, const trace_record *content, const char *name)
{
    trace_record *r = enter(slot);
    if (r) {
        r->kind = content->kind;
        r->track = content->track;
        r->to_track = content->to_track;
        r->begin_ns = content->begin_ns;
        r->end_ns = content->end_ns;
        r->value = content->value;
        copy_name(r->name, name);
        atomic_store_explicit(&r->ready, 1, memory_order_release); /* partner: write_events' load */
    }
    leave(slot);
}

void ren__trace_record_span(ren__trace_slot *slot, uint32_t track, const char *name,
                            uint64_t begin_ns, uint64_t end_ns, uint64_t arg)
{
    trace_record content = {.kind = RECORD_SPAN,
                            .track = (uint8_t)track,
                            .begin_ns = begin_ns,
                            .end_ns = end_ns,
                            .value = arg};
    record(slot, &content, name);
}

void ren__trace_record_instant(ren__trace_slot *slot, uint32_t track, const char *name,
                               uint64_t at_ns, uint64_t arg)
{
    trace_record content = {.kind = RECORD_INSTANT,
                            .track = (uint8_t)track,
                            .begin_ns = at_ns,
                            .end_ns = at_ns,
                            .value = arg};
    record(slot, &content, name);
}

void ren__trace_record_flow(ren__trace_slot *slot, uint32_t from_track, uint64_t from_ns,
                            uint32_t to_track, uint64_t to_ns, uint64_t id)
{
    trace_record content = {.kind = RECORD_FLOW,
                            .track = (uint8_t)from_track,
                            .to_track = (uint8_t)to_track,
                            .begin_ns = from_ns,
                            .end_ns = to_ns,
                            .value = id};
    record(slot, &content, "job");
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
    if (track < REN__TRACK_COMPLETION) {
        (void)snprintf(out, 32, "stream %s", stream_names[track - REN__TRACK_STREAM]);
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

/* The last span of each stream's track. */
typedef struct streams {
    uint64_t begin_ns[REN__TRACK_COUNT];
    uint64_t end_ns[REN__TRACK_COUNT];
} streams;

static bool is_stream(uint32_t track)
{
    return track >= REN__TRACK_STREAM && track < REN__TRACK_COMPLETION;
}

/* A stream runs one job at a time, so a job that was launched while an earlier one ran began, at
 * the earliest, when that one ended. Its span is cut so, since spans of one track must not cross;
 * an arrow to it follows. Records of one stream are in the order of their ends. */
static void fit_streams(streams *s, const trace_record *r, uint64_t *begin, uint64_t *end)
{
    if (r->kind == RECORD_SPAN && is_stream(r->track)) {
        uint64_t free_from = s->end_ns[r->track];
        *begin = *begin > free_from ? *begin : free_from;
        *end = *end > *begin ? *end : *begin;
        s->begin_ns[r->track] = *begin;
        s->end_ns[r->track] = *end;
    } else if (r->kind == RECORD_FLOW && is_stream(r->to_track)) {
        *end = *end > s->begin_ns[r->to_track] ? *end : s->begin_ns[r->to_track];
    }
}

/* A number, or text for those that a reader's floating point would round. */
static const char *argument(uint64_t value, char out[32])
{
    (void)snprintf(out, 32, value >> 53 ? "\"0x%016" PRIx64 "\"" : "%" PRIu64, value);
    return out;
}

static void write_record(output *out, streams *s, const trace_record *r, uint64_t base_ns)
{
    char name[2 * REN__TRACE_NAME_BYTES], from[32], length[32], value[32];
    uint64_t begin = r->begin_ns > base_ns ? r->begin_ns - base_ns : 0;
    uint64_t end = r->end_ns > base_ns ? r->end_ns - base_ns : 0;
    end = end > begin ? end : begin;
    fit_streams(s, r, &begin, &end);
    (void)escaped(r->name, name);
    (void)micros(begin, from);
    (void)argument(r->value, value);
    if (r->kind == RECORD_SPAN) {
        emit(out,
             "{\"ph\":\"X\",\"pid\":1,\"tid\":%u,\"cat\":\"ren\",\"name\":\"%s\",\"ts\":%s,"
             "\"dur\":%s,\"args\":{\"value\":%s}},\n",
             r->track + 1u, name, from, micros(end - begin, length), value);
    } else if (r->kind == RECORD_INSTANT) {
        emit(out,
             "{\"ph\":\"i\",\"s\":\"t\",\"pid\":1,\"tid\":%u,\"cat\":\"ren\",\"name\":\"%s\","
             "\"ts\":%s,\"args\":{\"value\":%s}},\n",
             r->track + 1u, name, from, value);
    } else {
        emit(out,
             "{\"ph\":\"s\",\"pid\":1,\"tid\":%u,\"cat\":\"flow\",\"name\":\"%s\",\"id\":%s,"
             "\"ts\":%s},\n",
             r->track + 1u, name, value, from);
        emit(out,
             "{\"ph\":\"f\",\"bp\":\"e\",\"pid\":1,\"tid\":%u,\"cat\":\"flow\",\"name\":\"%s\","
             "\"id\":%s,\"ts\":%s},\n",
             r->to_track + 1u, name, value, micros(end, length));
    }
}

static int write_file(ren__trace *t)
{
    output out = {.fd = t->fd};
    streams ends = {{0}, {0}};
    uint64_t claimed = atomic_load_explicit(&t->claimed, memory_order_relaxed);
    uint64_t count = claimed < t->capacity ? claimed : t->capacity;
    uint64_t lost = claimed - count;
    emit(&out, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    write_tracks(&out);
    for (uint64_t i = 0; i < count; i++) {
        if (atomic_load_explicit(&t->records[i].ready,
                                 memory_order_acquire)) { /* partner: record */
            write_record(&out, &ends, &t->records[i], t->begin_ns);
        } else {
            lost++;
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
        return ren__error_set(err, REN_ERR_IO, code, __FILE__, __LINE__,
                              "cannot open the trace file %.160s (errno %d)", path, code);
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

ren_status ren__trace_end(ren__trace_slot *slot)
{
    if (!take_state(slot, TRACE_OPEN)) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    ren__trace *t = atomic_exchange(&slot->current, NULL);
    int error = write_file(t);
    if (close(t->fd) != 0 && error == 0 && errno != EINTR) {
        error = errno;
    }
    t->next = slot->retired;
    slot->retired = t;
    collect(slot);
    set_state(slot, TRACE_CLOSED);
    return error ? REN_ERR_IO : REN_OK;
}
