/* SPDX-License-Identifier: MIT */
/* tests/support/trace_file.c - see trace_file.h. */
#include "trace_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libren/train/json.h"

/* One object of "traceEvents" under way. */
typedef struct event {
    char ph[4], name[128], label[128]; /* label: args.name */
    double ts, dur;
    uint64_t tid, id, value;
} event;

typedef struct reader {
    trace_file *f;
    size_t span_room, arrow_room;
    int depth, failed;
    char key[64];
    event now;
} reader;

static void *grow(void *items, size_t count, size_t *room, size_t size)
{
    if (count < *room) {
        return items;
    }
    *room = *room ? 2 * *room : 1024;
    return realloc(items, *room * size);
}

/* Microseconds with three decimals. */
static uint64_t ns_of(double us)
{
    return (uint64_t)(us * 1000.0 + 0.5);
}

static void add_span(reader *r, int instant)
{
    trace_file *f = r->f;
    f->spans = grow(f->spans, f->span_count, &r->span_room, sizeof *f->spans);
    trace_span *s = &f->spans[f->span_count++];
    memset(s, 0, sizeof *s);
    (void)snprintf(s->name, sizeof s->name, "%s", r->now.name);
    s->track = (uint32_t)r->now.tid;
    s->begin_ns = ns_of(r->now.ts);
    s->end_ns = s->begin_ns + (instant ? 0 : ns_of(r->now.dur));
    s->value = r->now.value;
    s->instant = instant;
}

static void add_arrow(reader *r, int ends)
{
    trace_file *f = r->f;
    trace_arrow *a = NULL;
    /* The writer puts both ends one after the other. */
    if (f->arrow_count && f->arrows[f->arrow_count - 1].id == r->now.id) {
        a = &f->arrows[f->arrow_count - 1];
    } else {
        f->arrows = grow(f->arrows, f->arrow_count, &r->arrow_room, sizeof *f->arrows);
        a = &f->arrows[f->arrow_count++];
        memset(a, 0, sizeof *a);
        a->id = r->now.id;
    }
    (void)snprintf(a->name, sizeof a->name, "%.60s", r->now.name);
    if (ends) {
        a->ends++;
        a->to_track = (uint32_t)r->now.tid;
        a->to_ns = ns_of(r->now.ts);
    } else {
        a->begins++;
        a->from_track = (uint32_t)r->now.tid;
        a->from_ns = ns_of(r->now.ts);
    }
}

static void end_of_event(reader *r)
{
    const event *e = &r->now;
    if (strcmp(e->ph, "X") == 0) {
        add_span(r, 0);
    } else if (strcmp(e->ph, "i") == 0) {
        add_span(r, 1);
    } else if (strcmp(e->ph, "s") == 0 || strcmp(e->ph, "f") == 0) {
        add_arrow(r, e->ph[0] == 'f');
    } else if (strcmp(e->ph, "M") == 0) {
        if (strcmp(e->name, "thread_name") == 0 && e->tid < 64) {
            (void)snprintf(r->f->tracks[e->tid], sizeof r->f->tracks[0], "%.31s", e->label);
        }
    } else {
        r->failed = 1;
    }
    memset(&r->now, 0, sizeof r->now);
}

static void take_scalar(reader *r, const char *text)
{
    event *e = &r->now;
    if (r->depth == 2 && strcmp(r->key, "lost_records") == 0) {
        r->f->lost = strtoull(text, NULL, 10);
    } else if (r->depth == 3 && strcmp(r->key, "ph") == 0) {
        (void)snprintf(e->ph, sizeof e->ph, "%.3s", text);
    } else if (r->depth == 3 && strcmp(r->key, "name") == 0) {
        (void)snprintf(e->name, sizeof e->name, "%.127s", text);
    } else if (r->depth == 4 && strcmp(r->key, "name") == 0) {
        (void)snprintf(e->label, sizeof e->label, "%.127s", text);
    } else if (r->depth == 3 && strcmp(r->key, "ts") == 0) {
        e->ts = atof(text);
    } else if (r->depth == 3 && strcmp(r->key, "dur") == 0) {
        e->dur = atof(text);
    } else if (r->depth == 3 && strcmp(r->key, "tid") == 0) {
        e->tid = strtoull(text, NULL, 10);
    } else if (r->depth == 3 && strcmp(r->key, "id") == 0) {
        e->id = strtoull(text, NULL, 0);
    } else if (r->depth == 4 && strcmp(r->key, "value") == 0) {
        e->value = strtoull(text, NULL, 0);
    }
}

/* Depth: 1 the file, 2 the list (or otherData), 3 an event, 4 its args. */
static bool on_json(void *user, ren__json_event what, const char *text, size_t bytes)
{
    reader *r = user;
    char copy[256];
    (void)snprintf(copy, sizeof copy, "%.*s", (int)(bytes < 255 ? bytes : 255), text ? text : "");
    switch (what) {
    case REN__JSON_OBJECT_BEGIN:
    case REN__JSON_ARRAY_BEGIN:
        r->depth++;
        break;
    case REN__JSON_OBJECT_END:
    case REN__JSON_ARRAY_END:
        if (what == REN__JSON_OBJECT_END && r->depth == 3) {
            end_of_event(r);
        }
        r->depth--;
        break;
    case REN__JSON_KEY:
        (void)snprintf(r->key, sizeof r->key, "%.63s", copy);
        break;
    default:
        take_scalar(r, copy);
    }
    return !r->failed;
}

static int by_time(const void *a, const void *b)
{
    const trace_span *x = a, *y = b;
    if (x->track != y->track) {
        return x->track < y->track ? -1 : 1;
    }
    if (x->begin_ns != y->begin_ns) {
        return x->begin_ns < y->begin_ns ? -1 : 1;
    }
    return x->end_ns == y->end_ns ? 0 : x->end_ns > y->end_ns ? -1 : 1;
}

int trace_file_read(const char *path, trace_file *out)
{
    ren__host_allocator a = ren__host_allocator_make(NULL);
    reader r = {.f = out};
    size_t position = 0;
    memset(out, 0, sizeof *out);
    FILE *stream = fopen(path, "rb");
    if (!stream) {
        printf("    cannot open %s\n", path);
        return 0;
    }
    (void)fseek(stream, 0, SEEK_END);
    size_t bytes = (size_t)ftell(stream);
    rewind(stream);
    char *text = malloc(bytes + 1);
    size_t got = fread(text, 1, bytes, stream);
    (void)fclose(stream);
    ren__json_result result = ren__json_parse(&a, text, got, on_json, &r, &position);
    free(text);
    if (result != REN__JSON_OK) {
        printf("    %s is no trace: result %d at byte %zu\n", path, (int)result, position);
        return 0;
    }
    if (out->span_count) {
        qsort(out->spans, out->span_count, sizeof *out->spans, by_time);
    }
    return 1;
}

void trace_file_free(trace_file *f)
{
    free(f->spans);
    free(f->arrows);
    memset(f, 0, sizeof *f);
}

uint32_t trace_file_track(const trace_file *f, const char *name)
{
    for (uint32_t i = 0; i < 64; i++) {
        if (strcmp(f->tracks[i], name) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

static size_t conflicts(const trace_file *f, uint32_t track, int nesting_is_fine)
{
    size_t n = 0;
    for (size_t i = 0; i < f->span_count; i++) {
        const trace_span *s = &f->spans[i];
        for (size_t k = i + 1; s->track == track && !s->instant && k < f->span_count; k++) {
            const trace_span *next = &f->spans[k];
            if (next->track != track || next->begin_ns >= s->end_ns) {
                break;
            }
            n += !next->instant && !(nesting_is_fine && next->end_ns <= s->end_ns);
        }
    }
    return n;
}

size_t trace_file_crossings(const trace_file *f, uint32_t track)
{
    return conflicts(f, track, 1);
}

size_t trace_file_overlaps(const trace_file *f, uint32_t track)
{
    return conflicts(f, track, 0);
}

const trace_span *trace_file_at(const trace_file *f, uint32_t track, uint64_t ns)
{
    const trace_span *found = NULL;
    for (size_t i = 0; i < f->span_count; i++) {
        const trace_span *s = &f->spans[i];
        uint64_t end = s->end_ns > s->begin_ns ? s->end_ns : s->begin_ns + 1;
        if (s->track == track && !s->instant && s->begin_ns <= ns && ns < end) {
            found = s; /* the innermost comes last */
        }
    }
    return found;
}
