/* SPDX-License-Identifier: MIT */
/* demos/01_digits/options.c - what the command line asks for.
 *
 * Purpose   See options.h.
 */
#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_STEPS = 12000,
    MOST_STEPS = 1000000
};

static const char *const usage =
    "usage: 01_digits [options]\n"
    "  --device cpu|cuda|auto  where to train (cpu)\n"
    "  --steps N               training steps, 1 to 1000000 (12000); the accuracy is then\n"
    "                          printed and not judged\n"
    "  --streams N             device streams in use, 1 to 5 (5)\n"
    "  --seed N                of the weights and of the order of the digits (1)\n"
    "  --trace FILE            write a trace for Perfetto or chrome://tracing\n"
    "  --data DIR              the folder that holds the digits (demos/data)\n"
    "  --out FILE              where to save the weights (beside the program)\n"
    "  --help                  this text\n"
    "Exit status: 0 done, 1 failed or (without --steps) less than 97% right, 2 wrong usage.\n";

static int parse_device(const char *text, ren_device_kind *out)
{
    static const struct {
        const char *name;
        ren_device_kind kind;
    } kinds[] = {{"cpu", REN_DEVICE_CPU}, {"cuda", REN_DEVICE_CUDA}, {"auto", REN_DEVICE_AUTO}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(text, kinds[i].name) == 0) {
            *out = kinds[i].kind;
            return 1;
        }
    }
    return 0;
}

static int parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || errno || value < least || value > most) {
        return 0;
    }
    *out = value;
    return 1;
}

static int parse_u32(const char *text, uint32_t least, uint32_t most, uint32_t *out)
{
    uint64_t value = 0;
    int good = parse_number(text, least, most, &value);
    *out = (uint32_t)value;
    return good;
}

/* 0 when the value of an option is out of its range. */
static int take(options *o, int option, const char *value)
{
    switch (option) {
    case 'd':
        return parse_device(value, &o->device);
    case 'n':
        o->judge = 0;
        return parse_u32(value, 1, MOST_STEPS, &o->steps);
    case 's':
        return parse_u32(value, 1, REN_STREAM_COUNT, &o->streams);
    case 'r':
        return parse_number(value, 0, UINT64_MAX, &o->seed);
    case 't':
        o->trace = value;
        return *value != '\0';
    case 'i':
        o->data = value;
        return *value != '\0';
    default:
        o->out = value;
        return *value != '\0';
    }
}

options_result options_parse(options *o, int argc, char **argv)
{
    static const struct option long_options[] = {{"device", required_argument, NULL, 'd'},
                                                 {"steps", required_argument, NULL, 'n'},
                                                 {"streams", required_argument, NULL, 's'},
                                                 {"seed", required_argument, NULL, 'r'},
                                                 {"trace", required_argument, NULL, 't'},
                                                 {"data", required_argument, NULL, 'i'},
                                                 {"out", required_argument, NULL, 'o'},
                                                 {"help", no_argument, NULL, 'h'},
                                                 {NULL, 0, NULL, 0}};
    *o = (options){.device = REN_DEVICE_CPU, .steps = DEFAULT_STEPS, .judge = 1, .seed = 1};
    int option, index = 0;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":", long_options, &index)) != -1) {
        if (option == 'h') {
            (void)fputs(usage, stdout);
            return OPTIONS_HELP;
        }
        if (option == '?' || option == ':') {
            (void)fprintf(stderr, "01_digits: %s %s\n%s",
                          option == ':' ? "no value after" : "unknown option", argv[optind - 1],
                          usage);
            return OPTIONS_WRONG;
        }
        if (!take(o, option, optarg)) {
            (void)fprintf(stderr, "01_digits: --%s cannot be '%s'\n%s", long_options[index].name,
                          optarg, usage);
            return OPTIONS_WRONG;
        }
    }
    if (optind < argc) {
        (void)fprintf(stderr, "01_digits: unexpected '%s'\n%s", argv[optind], usage);
        return OPTIONS_WRONG;
    }
    return OPTIONS_RUN;
}
