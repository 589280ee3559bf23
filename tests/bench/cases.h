/* SPDX-License-Identifier: MIT */
/* tests/bench/cases.h - which models are measured, at which batch size and in which precision.
 *
 * Purpose   One list for step_bench, plan_bench and the PyTorch peer, so that their figures stand
 *           side by side: the peer is given what `step_bench --list 1` prints.
 * Words     case: "<model>/<batch>/<precision>".
 * Threads   one.
 */
#ifndef REN_TESTS_BENCH_CASES_H
#define REN_TESTS_BENCH_CASES_H

#include "models/models.h"

#define BENCH_MOST_CASES 64u

typedef enum bench_precision {
    BENCH_F32 = 0,
    BENCH_TF32, /* f32 whose products and convolutions may round to TF32 */
    BENCH_F16,
    BENCH_BF16,
    BENCH_PRECISIONS
} bench_precision;

extern const char *const bench_precision_names[BENCH_PRECISIONS];
ren_precision bench_precision_of(bench_precision p); /* as the trainer knows it */

typedef struct bench_model_case {
    const bench_model *model;
    uint32_t batch;
    bench_precision precision;
} bench_model_case;

/* What asks for cases: lists are separated by commas, NULL or 0 = not said. */
typedef struct bench_choice {
    const char *cases; /* all of them, by name; the rest then says nothing */
    const char *models, *precisions;
    uint32_t batch;
} bench_choice;

/* The standard cases of the device where nothing is said. A model, batch size or precision that is
 * said makes all pairs, the others by default: the model's batch size; f32, on CUDA f32 and f16.
 * Ends the program when a name is not known. Returns the number, at most BENCH_MOST_CASES. */
uint32_t bench_choose(const bench_choice *choice, ren_device_kind device,
                      bench_model_case out[BENCH_MOST_CASES]);

/* "<model>/<batch>/<precision>" */
void bench_model_case_name(const bench_model_case *c, char *out, size_t bytes);

/* Whether a comma-separated list holds a word. */
int bench_lists(const char *list, const char *word);

#endif
