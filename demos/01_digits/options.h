/* SPDX-License-Identifier: MIT */
/* demos/01_digits/options.h - what the command line asks for.
 *
 * Purpose   One struct, filled from argv.
 */
#ifndef DEMO_OPTIONS_H
#define DEMO_OPTIONS_H

#include <stdint.h>

#include "../../host_api/ren.h"

typedef struct options {
    ren_device_kind device;
    uint32_t steps;
    int judge;         /* 1 = the accuracy decides: --steps was not given */
    uint32_t streams;  /* 0 = all five */
    uint64_t seed;     /* of the first weights and of the order of the digits */
    const char *trace; /* NULL = none */
    const char *data;  /* NULL = look for it */
    const char *out;   /* NULL = beside the program */
} options;

typedef enum options_result {
    OPTIONS_RUN,
    OPTIONS_HELP, /* the help was printed */
    OPTIONS_WRONG /* so was what is wrong, to stderr */
} options_result;

options_result options_parse(options *o, int argc, char **argv);

#endif
