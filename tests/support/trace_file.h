/* SPDX-License-Identifier: MIT */
/* tests/support/trace_file.h - a trace file read back, for tests that ask what it says.
 *
 * Purpose   Spans, instants and arrows as arrays, with times in ns since the trace's begin.
 * Memory    the arrays are malloc'ed; trace_file_free gives them back.
 */
#ifndef REN_TEST_SUPPORT_TRACE_FILE_H
#define REN_TEST_SUPPORT_TRACE_FILE_H

#include <stddef.h>
#include <stdint.h>

typedef struct trace_span {
    char name[128];
    uint32_t track;
    uint64_t begin_ns, end_ns; /* the same for an instant */
    uint64_t value;
    int instant;
} trace_span;

typedef struct trace_arrow {
    char name[64];
    uint64_t id;
    uint32_t from_track, to_track;
    uint64_t from_ns, to_ns;
    int begins, ends; /* how many of each are in the file; 1 and 1 is right */
} trace_arrow;

typedef struct trace_file {
    trace_span *spans; /* by track, then by begin, longer ones first */
    size_t span_count;
    trace_arrow *arrows;
    size_t arrow_count;
    char tracks[64][32]; /* names */
    uint64_t lost;
} trace_file;

/* 0 when the file cannot be read or is no JSON of a trace's shape; the reason is printed. */
int trace_file_read(const char *path, trace_file *out);
void trace_file_free(trace_file *f);

/* The track of a name, or UINT32_MAX. */
uint32_t trace_file_track(const trace_file *f, const char *name);

/* Pairs of neighbouring spans of one track that overlap without one holding the other. */
size_t trace_file_crossings(const trace_file *f, uint32_t track);
/* Pairs of neighbouring spans that overlap at all. */
size_t trace_file_overlaps(const trace_file *f, uint32_t track);
/* The span of a track that covers a time (its end excluded, unless it is empty), or NULL. */
const trace_span *trace_file_at(const trace_file *f, uint32_t track, uint64_t ns);

#endif
