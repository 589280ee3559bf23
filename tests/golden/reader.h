/* SPDX-License-Identifier: MIT */
/* tests/golden/reader.h - the reference values of tests/golden, for tests only.
 *
 * Purpose   Open one case ("conv2d_0") and look at its tensors by name. The files are our own, so a
 *           damaged one ends the program with a message instead of an error code.
 * Where     $(GOLDEN_DIR) at build time if set, else "tests/golden" below the working directory or
 *           one of its parents.
 * Layout    activations NHWC, convolution weights OIHW, linear weights [out, in].
 */
#ifndef REN_TEST_GOLDEN_READER_H
#define REN_TEST_GOLDEN_READER_H

#include <stddef.h>
#include <stdint.h>

#define GOLDEN_MAX_RANK 8u

typedef struct golden_case golden_case;

/* Never NULL: a missing case ends the program with exit status 1. */
golden_case *golden_open(const char *name);
void golden_close(golden_case *g); /* NULL is fine */

/* 1 when the case has such a tensor. */
int golden_has(const golden_case *g, const char *tensor);

/* The f32 elements of a tensor; lives until golden_close. out_dims (GOLDEN_MAX_RANK entries),
 * out_rank and out_count may be NULL. A missing tensor ends the program. */
const float *golden_tensor(const golden_case *g, const char *tensor, int64_t *out_dims,
                           uint32_t *out_rank, size_t *out_count);

/* As golden_tensor, for i32 tensors ("labels"). */
const int32_t *golden_tensor_i32(const golden_case *g, const char *tensor, int64_t *out_dims,
                                 uint32_t *out_rank, size_t *out_count);

/* A number of the case's description, as golden_number(g, "lr", 0.0); `absent` when it has none. */
double golden_number(const golden_case *g, const char *key, double absent);

/* |a - b| / |b| in the 2-norm; |a| when b is all zero; infinity when a holds a NaN. */
double golden_distance(const float *a, const float *b, size_t count);

#endif
