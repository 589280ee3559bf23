/* SPDX-License-Identifier: MIT */
/* tests/bench/bench.c - flags, statistics and rows. See bench.h. */
#include "bench.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>

#ifndef REN_COMMIT
#define REN_COMMIT "unknown"
#endif

#define COLUMNS "date,commit,machine,driver,bench,case,metric,unit,value\r\n"

static void usage(const char *program)
{
    printf("usage: %s [--machine NAME] [--commit ID] [--driver TEXT] [--repeats N] [--case TEXT]\n"
           "       [--dir FOLDER] [--no-csv] [--quick]\n",
           program);
}

/* The value after flag i, or a usage error. */
static const char *value_of(int argc, char **argv, int i)
{
    if (i + 1 >= argc) {
        fprintf(stderr, "%s: %s needs a value\n", argv[0], argv[i]);
        exit(2);
    }
    return argv[i + 1];
}

static void default_machine(bench *b)
{
    struct utsname u;
    if (uname(&u) != 0) {
        b->machine = "unknown";
        return;
    }
    snprintf(b->machine_text, sizeof b->machine_text, "%s-%s", u.sysname, u.machine);
    for (char *c = b->machine_text; *c != '\0'; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    b->machine = b->machine_text;
}

/* Reads flag i of ours; the arguments taken, 0 when it is none of ours. */
static int read_flag(bench *b, int argc, char **argv, int i)
{
    const char *flag = argv[i];
    if (strcmp(flag, "--no-csv") == 0) {
        b->folder = NULL;
        return 1;
    }
    if (strcmp(flag, "--quick") == 0) {
        b->quick = true;
        b->folder = NULL;
        b->repeats = 1;
        return 1;
    }
    if (strcmp(flag, "--help") == 0) {
        usage(argv[0]);
        exit(0);
    }
    if (strcmp(flag, "--repeats") == 0) {
        b->repeats = (unsigned)strtoul(value_of(argc, argv, i), NULL, 10);
        return 2;
    }
    const struct {
        const char *flag;
        const char **to;
    } texts[] = {{"--machine", &b->machine},
                 {"--commit", &b->commit},
                 {"--driver", &b->driver},
                 {"--case", &b->filter},
                 {"--dir", &b->folder}};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        if (strcmp(flag, texts[t].flag) == 0) {
            *texts[t].to = value_of(argc, argv, i);
            return 2;
        }
    }
    return 0;
}

void bench_init(bench *b, int argc, char **argv, const char *name,
                int (*other)(int argc, char **argv, int i))
{
    memset(b, 0, sizeof *b);
    b->name = name;
    b->commit = REN_COMMIT;
    b->driver = "";
    b->folder = "tests/bench/results";
    b->repeats = 9;
    default_machine(b);
    for (int i = 1; i < argc;) {
        int taken = read_flag(b, argc, argv, i);
        if (taken == 0 && other != NULL) {
            taken = other(argc, argv, i);
        }
        if (taken == 0) {
            fprintf(stderr, "%s: unknown flag %s\n", argv[0], argv[i]);
            usage(argv[0]);
            exit(2);
        }
        i += taken;
    }
    if (b->repeats == 0) {
        b->repeats = 1;
    }
}

uint64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double bench_percentile(double *values, size_t n, double share)
{
    qsort(values, n, sizeof *values, by_value);
    size_t rank = (size_t)(share * (double)n + 0.9999999);
    return values[rank == 0 ? 0 : rank > n ? n - 1 : rank - 1];
}

bool bench_wants(const bench *b, const char *case_name)
{
    return b->filter == NULL || strstr(case_name, b->filter) != NULL;
}

void bench_print(const char *case_name, const char *metric, const char *unit, double value)
{
    printf("%-44s %-16s %12.3f %s\n", case_name, metric, value, unit);
}

/* One field, quoted where RFC 4180 asks for it. */
static void put_field(FILE *f, const char *text, char after)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fputs(text, f);
    } else {
        fputc('"', f);
        for (const char *c = text; *c != '\0'; c++) {
            if (*c == '"') {
                fputc('"', f);
            }
            fputc(*c, f);
        }
        fputc('"', f);
    }
    fputc(after, f);
}

void bench_row(const bench *b, const char *case_name, const char *metric, const char *unit,
               double value)
{
    if (b->folder == NULL) {
        return;
    }
    char path[512];
    char date[16];
    time_t now = time(NULL);
    struct tm utc;
    snprintf(path, sizeof path, "%s/%s.csv", b->folder, b->machine);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    if (mkdir(b->folder, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "%s: %s\n", b->folder, strerror(errno));
        exit(1);
    }
    FILE *f = fopen(path, "ab");
    if (f == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    if (ftell(f) == 0) {
        fputs(COLUMNS, f);
    }
    const char *fields[] = {date,    b->commit, b->machine, b->driver,
                            b->name, case_name, metric,     unit};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        put_field(f, fields[i], ',');
    }
    fprintf(f, "%.9g\r\n", value);
    fclose(f);
}

void bench_run(const bench *b, const bench_case *cases, size_t count)
{
    double *values = calloc(count * b->repeats, sizeof *values);
    if (values == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    for (unsigned r = 0; r < b->repeats; r++) {
        for (size_t i = 0; i < count; i++) {
            if (bench_wants(b, cases[i].name)) {
                values[i * b->repeats + r] = cases[i].fn(&cases[i], b);
            }
        }
    }
    printf("%-44s %-16s %12s %12s %12s  %s\n", "case", "metric", "median", "lowest", "highest",
           "unit");
    for (size_t i = 0; i < count; i++) {
        if (bench_wants(b, cases[i].name)) {
            double *v = values + i * b->repeats;
            double median = bench_median(v, b->repeats);
            printf("%-44s %-16s %12.2f %12.2f %12.2f  %s\n", cases[i].name, cases[i].metric, median,
                   v[0], v[b->repeats - 1], cases[i].unit);
            bench_row(b, cases[i].name, cases[i].metric, cases[i].unit, median);
        }
    }
    free(values);
}
