/* SPDX-License-Identifier: MIT */
/* tests/golden/naive.c - see naive.h. */
#include "naive.h"

#include <stdlib.h>

static double *zeros(int64_t count)
{
    double *p = calloc((size_t)count, sizeof *p);
    if (!p) {
        abort();
    }
    return p;
}

static void store(float *out, double *sums, int64_t count)
{
    for (int64_t i = 0; out && i < count; i++) {
        out[i] = (float)sums[i];
    }
    free(sums);
}

void naive_output_size(naive_shape *s)
{
    s->oh = (s->h + 2 * s->padding[0] - s->dilation[0] * (s->kernel[0] - 1) - 1) / s->stride[0] + 1;
    s->ow = (s->w + 2 * s->padding[1] - s->dilation[1] * (s->kernel[1] - 1) - 1) / s->stride[1] + 1;
}

/* Index into x of tap (r, q) of output (i, j), or -1 outside. */
static int64_t tap(const naive_shape *s, int64_t n, int64_t i, int64_t j, int64_t r, int64_t q,
                   int64_t c)
{
    int64_t row = i * s->stride[0] - s->padding[0] + r * s->dilation[0];
    int64_t col = j * s->stride[1] - s->padding[1] + q * s->dilation[1];
    if (row < 0 || row >= s->h || col < 0 || col >= s->w) {
        return -1;
    }
    return ((n * s->h + row) * s->w + col) * s->c + c;
}

void naive_conv(const naive_shape *s, const float *x, const float *w, const float *b, float *y,
                const float *dy, float *dx, float *dw)
{
    const int64_t inner = s->c / s->groups;
    const int64_t outer = s->filters / s->groups;
    const int64_t taps = s->kernel[0] * s->kernel[1];
    const int64_t outputs = s->n * s->oh * s->ow * s->filters;
    double *sx = zeros(s->n * s->h * s->w * s->c);
    double *sw = zeros(s->filters * inner * taps);
    for (int64_t at = 0; at < outputs; at++) {
        const int64_t o = at % s->filters;
        const int64_t j = at / s->filters % s->ow;
        const int64_t i = at / s->filters / s->ow % s->oh;
        const int64_t n = at / s->filters / s->ow / s->oh;
        double sum = b ? (double)b[o] : 0.0;
        for (int64_t k = 0; k < inner * taps; k++) {
            const int64_t c = o / outer * inner + k / taps;
            const int64_t from = tap(s, n, i, j, k % taps / s->kernel[1], k % s->kernel[1], c);
            if (from < 0) {
                continue;
            }
            const int64_t weight = o * inner * taps + k;
            sum += (double)x[from] * (double)w[weight];
            if (dy) {
                sx[from] += (double)dy[at] * (double)w[weight];
                sw[weight] += (double)dy[at] * (double)x[from];
            }
        }
        if (y) {
            y[at] = (float)sum;
        }
    }
    store(dx, sx, s->n * s->h * s->w * s->c);
    store(dw, sw, s->filters * inner * taps);
}

void naive_linear(int64_t n, int64_t in, int64_t out, const float *x, const float *w,
                  const float *b, float *y, const float *dy, float *dx, float *dw)
{
    double *sx = zeros(n * in);
    double *sw = zeros(out * in);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = b ? (double)b[o] : 0.0;
            for (int64_t i = 0; i < in; i++) {
                sum += (double)x[r * in + i] * (double)w[o * in + i];
                if (dy) {
                    sx[r * in + i] += (double)dy[r * out + o] * (double)w[o * in + i];
                    sw[o * in + i] += (double)dy[r * out + o] * (double)x[r * in + i];
                }
            }
            if (y) {
                y[r * out + o] = (float)sum;
            }
        }
    }
    store(dx, sx, n * in);
    store(dw, sw, out * in);
}

void naive_pool(const naive_shape *s, int max, const float *x, float *y, const float *dy, float *dx)
{
    const int64_t taps = s->kernel[0] * s->kernel[1];
    const int64_t outputs = s->n * s->oh * s->ow * s->c;
    double *sx = zeros(s->n * s->h * s->w * s->c);
    for (int64_t at = 0; at < outputs; at++) {
        const int64_t c = at % s->c;
        const int64_t j = at / s->c % s->ow;
        const int64_t i = at / s->c / s->ow % s->oh;
        const int64_t n = at / s->c / s->ow / s->oh;
        int64_t best = -1;
        int64_t inside = 0;
        double sum = 0.0;
        for (int64_t k = 0; k < taps; k++) {
            const int64_t from = tap(s, n, i, j, k / s->kernel[1], k % s->kernel[1], c);
            if (from >= 0) {
                best = best < 0 || x[from] > x[best] ? from : best;
                sum += (double)x[from];
                inside++;
            }
        }
        if (y) {
            y[at] = max ? x[best] : (float)(sum / (double)inside);
        }
        for (int64_t k = 0; dy && k < taps; k++) {
            const int64_t from = tap(s, n, i, j, k / s->kernel[1], k % s->kernel[1], c);
            if (from >= 0 && (!max || from == best)) {
                sx[from] += (double)dy[at] / (max ? 1.0 : (double)inside);
            }
        }
    }
    store(dx, sx, s->n * s->h * s->w * s->c);
}
