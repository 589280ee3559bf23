/* SPDX-License-Identifier: MIT */
/* tests/gpu/values.h - random inputs, and holding an operation's outputs to its reference. */
#ifndef REN_TEST_GPU_VALUES_H
#define REN_TEST_GPU_VALUES_H

#include "table.h"

/* Of a result in f32, in the 2-norm, relative; on the CPU device half of it. */
#define TEST_TOLERANCE 2e-5

/* Memory that values_free gives back all at once. */
void *values_take(uint64_t bytes);
void values_free(void);

/* n floats, normally distributed by sums of uniforms, mean 0 and deviation 1. */
float *values_random(uint64_t n);
float *values_filled(uint64_t n, float value);
int64_t values_between(int64_t least, int64_t most);

/* One output of an operation. */
typedef struct expected {
    uint32_t operand;
    const double *values;
} expected;

/* Run desc on the CUDA table, and on the CPU table where that accepts it. Each output must be
 * within tolerance of its reference on the CUDA table; and both tables within it of each other.
 * `operands` holds the inputs; outputs are added here from `outputs`, which ends with a row
 * whose values are NULL. */
void values_check(const char *what, const ren__op_desc *desc, test_operand *operands,
                  const expected *outputs, uint32_t misalign, double tolerance);

#endif
