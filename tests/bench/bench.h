/* SPDX-License-Identifier: MIT */
/* tests/bench/bench.h - what the benchmark programs share.
 *
 * Purpose   Flags, clock, interleaved repeats, order statistics, a printed table, and rows appended
 *           to tests/bench/results/<machine>.csv (RFC 4180) with the columns
 *           date,commit,machine,driver,bench,case,metric,unit,value.
 * Threads   one; a case may start threads of its own.
 * Flags     --machine NAME    the file's name and the column; default from uname
 *           --commit ID       default: the macro REN_COMMIT, else "unknown"
 *           --driver TEXT     device driver version; default empty
 *           --repeats N       of every case, interleaved; default 9
 *           --case TEXT       only cases whose name contains TEXT
 *           --dir FOLDER      for the file; default tests/bench/results
 *           --no-csv          only print
 *           --quick           a tenth of the work, to see that it runs; implies --no-csv
 *
 * Repeats are interleaved (every case once, then again) so that a change of the machine's speed
 * hits all cases alike; the median of the repeats is the value that is kept.
 */
#ifndef REN_TESTS_BENCH_H
#define REN_TESTS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../host_api/ren.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bench {
    const char *name; /* the column "bench" */
    const char *machine;
    const char *commit;
    const char *driver;
    const char *filter; /* NULL = all cases */
    const char *folder; /* NULL = no file */
    unsigned repeats;
    bool quick;
    char machine_text[160];
} bench;

/* A flag of one program's own: where its value goes, one of the three. */
typedef struct bench_flag {
    const char *flag;  /* "--steps" */
    const char *value; /* what --help calls it, "N" */
    const char **text;
    uint32_t *number; /* decimal, least to most */
    uint32_t least, most;
    ren_device_kind *device; /* cpu or cuda */
} bench_flag;

/* Reads the flags above and the program's own; prints all of them and exits on --help (0), and on
 * an unknown flag, a missing value, or a value that is none (2). */
void bench_init(bench *b, int argc, char **argv, const char *name, const bench_flag *own,
                size_t own_count);

/* What ren_runtime_create returns where there is no CUDA device to measure. */
static inline bool bench_is_no_gpu(ren_status status)
{
    return status == REN_ERR_NO_DEVICE || status == REN_ERR_DRIVER_TOO_OLD ||
           status == REN_ERR_NO_GPU;
}

uint64_t bench_now_ns(void);

/* Of n > 0 values, in any order; the array is sorted. `share` of 0.99 gives p99 (nearest rank). */
double bench_median(double *values, size_t n);
double bench_percentile(double *values, size_t n, double share);

/* One case: fn returns the value of one repeat, in `unit`. */
typedef struct bench_case {
    const char *name; /* the column "case" */
    const char *metric;
    const char *unit;
    double (*fn)(const struct bench_case *c, const bench *b);
    const void *arg;
    unsigned number; /* for fn */
} bench_case;

/* Runs all cases that the filter lets through, interleaved; prints median, lowest and highest;
 * appends the median of each to the file. */
void bench_run(const bench *b, const bench_case *cases, size_t count);

/* For programs with a shape of their own: the filter's answer, a line of the table, a row. */
bool bench_wants(const bench *b, const char *case_name);
void bench_print(const char *case_name, const char *metric, const char *unit, double value);
void bench_row(const bench *b, const char *case_name, const char *metric, const char *unit,
               double value);

#ifdef __cplusplus
}
#endif

#endif
