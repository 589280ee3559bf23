/* SPDX-License-Identifier: MIT */
/* tests/gpu/reference.h - every operation computed the plain way in float64.
 *
 * Purpose   What the devices are compared with: loops that follow the formulas of ren.h and nothing
 *           else. Inputs are the f32 values that the device gets; results are float64.
 * Layout    activations NHWC, convolution weights OIHW, linear weights [out, in].
 */
#ifndef REN_TEST_GPU_REFERENCE_H
#define REN_TEST_GPU_REFERENCE_H

#include <stdint.h>

#include "../../libren/device/device.h"

typedef struct ref_window {
    int64_t n, h, w, c; /* input */
    int64_t ho, wo, o;  /* output */
    int64_t kh, kw, sh, sw, ph, pw, dh, dw, groups;
} ref_window;

void ref_linear(const float *x, const float *w, const float *b, double *y, int64_t n, int64_t in,
                int64_t out);
void ref_linear_data(const float *dy, const float *w, double *dx, int64_t n, int64_t in,
                     int64_t out);
void ref_linear_weight(const float *dy, const float *x, double *dw, int64_t n, int64_t in,
                       int64_t out);
void ref_column_sum(const float *x, double *sums, int64_t rows, int64_t channels);
void ref_conv(const ref_window *s, const float *x, const float *w, const float *b, double *y);
void ref_conv_data(const ref_window *s, const float *dy, const float *w, double *dx);
void ref_conv_weight(const ref_window *s, const float *dy, const float *x, double *dw);
void ref_max_pool(const ref_window *s, const float *x, double *y);
void ref_max_pool_backward(const ref_window *s, const float *dy, const float *x, double *dx);
void ref_avg_pool(const ref_window *s, const float *x, double *y);
void ref_avg_pool_backward(const ref_window *s, const float *dy, double *dx);

typedef struct ref_norm {
    int64_t rows, channels;
    double momentum, eps;
    const float *x, *weight, *bias, *running_mean, *running_var;
    double *y, *mean, *rstd, *new_mean, *new_var;
} ref_norm;
void ref_norm_train(const ref_norm *p);
void ref_norm_eval(const ref_norm *p);
void ref_norm_backward(const ref_norm *p, const float *dy, const float *mean, const float *rstd,
                       double *dx, double *dweight, double *dbias);

double ref_act(ren__activation activation, double alpha, double x);
double ref_act_slope(ren__activation activation, double alpha, double x);

/* prob [rows, classes]; returns the mean loss. */
double ref_xent(const float *logits, const int32_t *labels, double smoothing, double *prob,
                int64_t rows, int64_t classes);
void ref_xent_backward(const float *prob, const int32_t *labels, double smoothing, double *dx,
                       int64_t rows, int64_t classes);
double ref_distance(int huber, double delta, const float *x, const float *t, int64_t n);
void ref_distance_backward(int huber, double delta, const float *x, const float *t, double *dx,
                           int64_t n);

/* One step of an optimizer on doubles; p, first, second are updated in place. `t` counts from 1. */
void ref_update(ren__op_kind kind, const ren__control *c, double grad_norm, uint64_t t,
                const float *g, double *p, double *first, double *second, int64_t n);

#endif
