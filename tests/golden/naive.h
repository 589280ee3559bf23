/* SPDX-License-Identifier: MIT */
/* tests/golden/naive.h - the definitions of linear, convolution and pooling, written as loops.
 *
 * Purpose   A second opinion in double for shapes that the reference files do not have. Slow and
 *           independent of the library: each sums by the formula in ren.h.
 * Layout    x, y NHWC; w OIHW or [out, in]. Gradients are added up from zero by the callee.
 */
#ifndef REN_TEST_NAIVE_H
#define REN_TEST_NAIVE_H

#include <stdint.h>

typedef struct naive_shape {
    int64_t n, h, w, c; /* x */
    int64_t filters, oh, ow;
    int64_t kernel[2], stride[2], padding[2], dilation[2], groups;
} naive_shape;

/* Fills in oh and ow. */
void naive_output_size(naive_shape *s);

/* One pass computes y (NULL: skip) or, from dy, the gradients dx and dw (NULL: skip). */
void naive_conv(const naive_shape *s, const float *x, const float *w, const float *b, float *y,
                const float *dy, float *dx, float *dw);

void naive_linear(int64_t n, int64_t in, int64_t out, const float *x, const float *w,
                  const float *b, float *y, const float *dy, float *dx, float *dw);

/* max 1: the maximum, the first of equals; 0: the mean over what is inside the input. */
void naive_pool(const naive_shape *s, int max, const float *x, float *y, const float *dy,
                float *dx);

#endif
