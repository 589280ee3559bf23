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

static void usage(FILE *to, const char *program, const bench_flag *own, size_t own_count)
{
    fprintf(to,
            "usage: %s [--machine NAME] [--commit ID] [--driver TEXT] [--repeats N] [--case TEXT]\n"
            "       [--dir FOLDER] [--no-csv] [--quick]",
            program);
    for (size_t i = 0; i < own_count; i++) {
        fprintf(to, "%s[%s %s]", i % 5 ? " " : "\n       ", own[i].flag, own[i].value);
    }
    fputs("\nThe program's source and tests/bench/bench.h begin with what each means.\n", to);
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

/* The number after flag i, or a usage error. */
static uint32_t number_of(int argc, char **argv, int i, uint32_t least, uint32_t most)
{
    const char *text = value_of(argc, argv, i);
    char *end = NULL;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || n < least || n > most) {
        fprintf(stderr, "%s: %s takes a number from %u to %u, not '%s'\n", argv[0], argv[i],
                (unsigned)least, (unsigned)most, text);
        exit(2);
    }
    return (uint32_t)n;
}

static ren_device_kind device_of(int argc, char **argv, int i)
{
    const char *text = value_of(argc, argv, i);
    if (strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0) {
        fprintf(stderr, "%s: %s is cpu or cuda, not '%s'\n", argv[0], argv[i], text);
        exit(2);
    }
    return strcmp(text, "cuda") == 0 ? REN_DEVICE_CUDA : REN_DEVICE_CPU;
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
    if (strcmp(flag, "--repeats") == 0) {
        b->repeats = number_of(argc, argv, i, 1, 10000);
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

/* Reads flag i of the program's own; the arguments taken, 0 when it is none. */
static int read_own(const bench_flag *own, size_t own_count, int argc, char **argv, int i)
{
    for (size_t k = 0; k < own_count; k++) {
        if (strcmp(argv[i], own[k].flag) != 0) {
            continue;
        }
        if (own[k].text) {
            *own[k].text = value_of(argc, argv, i);
        } else if (own[k].number) {
            *own[k].number = number_of(argc, argv, i, own[k].least, own[k].most);
        } else {
            *own[k].device = device_of(argc, argv, i);
        }
        return 2;
    }
    return 0;
}

void bench_init(bench *b, int argc, char **argv, const char *name, const bench_flag *own,
                size_t own_count)
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
        if (taken == 0) {
            taken = read_own(own, own_count, argc, argv, i);
        }
        if (taken == 0) {
            int help = strcmp(argv[i], "--help") == 0;
            if (!help) {
                fprintf(stderr, "%s: unknown flag %s\n", argv[0], argv[i]);
            }
            usage(help ? stdout : stderr, argv[0], own, own_count);
            exit(help ? 0 : 2);
        }
        i += taken;
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
