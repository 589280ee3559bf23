/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/kernels.h - the launchers of the module's own kernels.
 *
 * Purpose   What no library computes in the layout or with the rule that libren promises. A
 *           launcher picks grid and block, enqueues on `stream`, and returns the launch's error.
 * Order     No kernel adds floats with atomics: every sum has an order that depends on the shape
 *           alone, so results repeat bit for bit.
 * Memory    Where a sum is done in two passes, `partial` is scratch of the size that the function
 *           ..._scratch(shape) tells, in bytes.
 * Units     n counts elements; pointers are device addresses of f32 unless said otherwise.
 */
#ifndef REN_DEVICE_CUDA_KERNELS_H
#define REN_DEVICE_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "../device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ elementwise.cu */

cudaError_t ren__cuda_k_act_forward(cudaStream_t stream, ren_dtype dtype,
                                    ren__activation activation, float alpha, const void *x, void *y,
                                    uint64_t n);
cudaError_t ren__cuda_k_act_backward(cudaStream_t stream, ren_dtype dtype,
                                     ren__activation activation, float alpha, const void *dy,
                                     const void *x, const void *y, void *dx, uint64_t n);
/* Forward and backward alike: y = x * mask / (1 - probability). */
cudaError_t ren__cuda_k_dropout(cudaStream_t stream, ren_dtype dtype, float probability,
                                uint32_t layer, const ren__control *control, const void *x, void *y,
                                uint64_t n);
cudaError_t ren__cuda_k_add(cudaStream_t stream, ren_dtype dtype, const void *a, const void *b,
                            void *y, uint64_t n);
/* joined[r, :] holds count parts side by side; split copies the other way. Of any dtype: `bytes`
 * are those of a row of each part. */
cudaError_t ren__cuda_k_concat(cudaStream_t stream, void *const *parts, const uint64_t *bytes,
                               uint32_t count, void *joined, uint64_t rows, int split);

/* ------------------------------------------------------------------ clock.cu */

/* out: device or pinned host memory, 8-byte aligned. */
cudaError_t ren__cuda_k_stamp(cudaStream_t stream, uint64_t *out);

/* ------------------------------------------------------------------ small.cu */

/* Device memory, or pinned host memory that the device reaches by the same address. */
cudaError_t ren__cuda_k_small_copy(cudaStream_t stream, void *to, const void *from, uint32_t bytes);

/* ------------------------------------------------------------------ cast.cu */

/* Any dtype to F32, F16 or BF16; rounds to nearest even. */
cudaError_t ren__cuda_k_cast(cudaStream_t stream, ren_dtype from, const void *x, ren_dtype to,
                             void *y, uint64_t n);

/* ------------------------------------------------------------------ pool.cu */

typedef struct ren__pool_shape {
    int n, h, w, c;     /* input */
    int ho, wo;         /* output */
    int kh, kw, sh, sw; /* kernel, stride */
    int ph, pw;         /* padding */
} ren__pool_shape;

/* Bytes of `saved`; a window has at most 65,536 places. */
uint64_t ren__cuda_k_max_pool_saved(const ren__pool_shape *shape);
/* saved: which place of its window each output came from; may be NULL. */
cudaError_t ren__cuda_k_max_pool_forward(cudaStream_t stream, ren_dtype dtype,
                                         const ren__pool_shape *shape, const void *x, void *y,
                                         void *saved);
cudaError_t ren__cuda_k_max_pool_backward(cudaStream_t stream, ren_dtype dtype,
                                          const ren__pool_shape *shape, const void *dy,
                                          const void *saved, void *dx);
cudaError_t ren__cuda_k_avg_pool_forward(cudaStream_t stream, ren_dtype dtype,
                                         const ren__pool_shape *shape, const void *x, void *y);
cudaError_t ren__cuda_k_avg_pool_backward(cudaStream_t stream, ren_dtype dtype,
                                          const ren__pool_shape *shape, const void *dy, void *dx);
/* forward: [batch, pixels, channels] to [batch, channels]; else the gradient the other way. */
cudaError_t ren__cuda_k_global_avg(cudaStream_t stream, ren_dtype dtype, int forward,
                                   const void *in, void *out, uint64_t batch, uint64_t pixels,
                                   uint64_t channels);

/* ------------------------------------------------------------------ columns.cu */

/* Of a matrix [rows, channels]. */
typedef struct ren__column_sum {
    ren_dtype dtype; /* of dy, x, y and dx */
    const void *dy;
    float *sums;
    uint64_t rows, channels;
    /* NULL, and the sums are those of dy; or the gradient through an activation, from dy and from x
     * or y, and the sums are its own. */
    void *dx;
    const void *x, *y;
    ren__activation activation;
    float alpha;
} ren__column_sum;

uint64_t ren__cuda_k_column_sum_scratch(ren_dtype dtype, uint64_t rows, uint64_t channels);
cudaError_t ren__cuda_k_column_sum(cudaStream_t stream, const ren__column_sum *c, void *partial);

/* ------------------------------------------------------------------ norm.cu: [rows, channels];
 * `dtype` is that of x, y, other and their gradients */

typedef struct ren__norm_train {
    ren_dtype dtype;
    int relu;
    const void *x, *other; /* other may be NULL */
    void *y;
    const float *weight, *bias, *running_mean, *running_var;
    float *mean, *rstd, *new_running_mean, *new_running_var;
    uint64_t rows, channels;
    float momentum, eps;
} ren__norm_train;

/* Of training and of backward alike. */
uint64_t ren__cuda_k_norm_scratch(ren_dtype dtype, uint64_t rows, uint64_t channels);
cudaError_t ren__cuda_k_norm_train(cudaStream_t stream, const ren__norm_train *t, void *partial);

typedef struct ren__norm_eval {
    ren_dtype dtype;
    int relu;
    const void *x, *other; /* other may be NULL */
    void *y;
    const float *weight, *bias, *running_mean, *running_var;
    uint64_t rows, channels;
    float eps;
} ren__norm_eval;

cudaError_t ren__cuda_k_norm_eval(cudaStream_t stream, const ren__norm_eval *e);

/* out[o, :] = w[o, :] scale[o], out_bias = (b - mean) scale + bias; f32, b may be NULL. */
typedef struct ren__norm_fold {
    const float *w, *b, *weight, *bias, *running_mean, *running_var;
    float *out, *out_bias;
    uint64_t outputs, inner;
    float eps;
} ren__norm_fold;

cudaError_t ren__cuda_k_norm_fold(cudaStream_t stream, const ren__norm_fold *f);

/* ------------------------------------------------------------------ norm_backward.cu */

typedef struct ren__norm_backward {
    ren_dtype dtype;
    const void *dy, *x;
    /* dy counts where the output was positive: which y says, or bias, from which it is computed
     * again; at most one of them is there, and without one all of dy counts. */
    const void *y;
    const void *more; /* added to dy, where y or bias is there; may be NULL */
    const float *weight, *bias, *mean, *rstd;
    void *dx, *dother; /* dother may be NULL */
    float *dweight, *dbias;
    uint64_t rows, channels;
    float eps;
} ren__norm_backward;

cudaError_t ren__cuda_k_norm_backward(cudaStream_t stream, const ren__norm_backward *b,
                                      void *partial);

/* ------------------------------------------------------------------ loss.cu */

typedef struct ren__xent {
    ren_dtype dtype; /* of logits and gradient */
    const void *logits;
    const int32_t *labels;
    float *probability; /* written by the forward pass, read by the backward pass */
    float *loss;
    void *gradient;
    const ren__state *state; /* NULL, or its loss_scale multiplies the gradient */
    uint64_t rows, classes;
    float smoothing;
    uint32_t *ticket; /* see ticket.c; may be NULL, and a second launch joins the parts */
} ren__xent;

uint64_t ren__cuda_k_xent_scratch(uint64_t rows, uint64_t classes);
cudaError_t ren__cuda_k_xent_forward(cudaStream_t stream, const ren__xent *x, void *partial);
cudaError_t ren__cuda_k_xent_backward(cudaStream_t stream, const ren__xent *x);

/* The mean of a function of x - target: its square, or with `huber` the Huber function. */
typedef struct ren__distance {
    ren_dtype dtype; /* of x and gradient */
    ren_dtype target_dtype;
    int huber;
    float delta;
    const void *x, *target;
    float *loss;    /* the forward pass, where gradient is NULL */
    void *gradient; /* the backward pass */
    const ren__state *state;
    uint64_t n;
    uint32_t *ticket; /* as above */
} ren__distance;

uint64_t ren__cuda_k_distance_scratch(uint64_t n);
cudaError_t ren__cuda_k_distance(cudaStream_t stream, const ren__distance *d, void *partial);

/* ------------------------------------------------------------------ slim.cu */

#define SLIM_MOST 16u /* outputs */

typedef struct ren__slim {
    ren_dtype dtype; /* of dy[rows, outputs] and x[rows, inputs] */
    const void *dy, *x;
    float *dw, *db; /* db may be NULL */
    uint64_t rows, inputs, outputs;
    uint32_t *ticket; /* see ticket.c; may be NULL */
} ren__slim;

/* Is it for a layer of this size? */
int ren__cuda_k_slim_takes(uint64_t inputs, uint64_t outputs);
uint64_t ren__cuda_k_slim_scratch(const ren__slim *n);
cudaError_t ren__cuda_k_slim(cudaStream_t stream, const ren__slim *n, void *partial);

/* ------------------------------------------------------------------ train.cu */

typedef struct ren__update {
    ren__op_kind kind;
    uint32_t dynamic_scale;
    const float *gradient;
    const ren__control *control;
    ren__state *state;
    float *parameter; /* EMA: the average; its `gradient` is the parameter. COMMIT: the same */
    float *first;     /* velocity or first moment */
    float *second;    /* second moment */
    uint64_t *count;  /* Adam's own count of updates; may be NULL */
    uint32_t *ticket; /* CHECK: see ticket.c; may be NULL, and a second launch joins the parts */
    uint64_t n;
} ren__update;

uint64_t ren__cuda_k_check_scratch(uint64_t n);
cudaError_t ren__cuda_k_check(cudaStream_t stream, const ren__update *p, void *partial);
cudaError_t ren__cuda_k_advance(cudaStream_t stream, const ren__update *p);
/* SGD, ADAM, ADAMW, EMA, COMMIT in one launch, with a count in two; LARS in two, with scratch. */
cudaError_t ren__cuda_k_update(cudaStream_t stream, const ren__update *p);
uint64_t ren__cuda_k_lars_scratch(uint64_t n);
cudaError_t ren__cuda_k_lars(cudaStream_t stream, const ren__update *p, void *partial);

/* ------------------------------------------------------------------ conv.cu */

typedef struct ren__conv_shape {
    int n, h, w, c; /* input */
    int ho, wo, o;  /* output */
    int kh, kw, sh, sw, ph, pw, dh, dw, groups;
} ren__conv_shape;

/* Weights are OHWI: [o][kh][kw][c / groups]. */
cudaError_t ren__cuda_k_conv_forward(cudaStream_t stream, const ren__conv_shape *shape,
                                     const float *x, const float *w, float *y);
cudaError_t ren__cuda_k_conv_data(cudaStream_t stream, const ren__conv_shape *shape,
                                  const float *dy, const float *w, float *dx);
cudaError_t ren__cuda_k_conv_weight(cudaStream_t stream, const ren__conv_shape *shape,
                                    const float *dy, const float *x, float *dw);

/* In place: y[r, c] = y[r, c] + bias[c], then the positive part if relu; n = rows * channels. y is
 * f32, f16 or bf16, the bias as y or f32; there may be none (NULL). */
cudaError_t ren__cuda_k_bias_act(cudaStream_t stream, ren_dtype type, void *y, ren_dtype bias_type,
                                 const void *bias, int relu, uint64_t n, uint64_t channels);

/* ------------------------------------------------------------------ conv_thin.cu */

/* Few input channels, no groups, and tensors that an int can index. */
int ren__cuda_k_thin_takes(const ren__conv_shape *shape);
/* bias may be NULL. */
cudaError_t ren__cuda_k_thin_forward(cudaStream_t stream, const ren__conv_shape *shape,
                                     const float *x, const float *w, const float *bias, int relu,
                                     float *y);
/* dy and x of any float. */
uint64_t ren__cuda_k_thin_scratch(const ren__conv_shape *shape);
cudaError_t ren__cuda_k_thin_weight(cudaStream_t stream, const ren__conv_shape *shape,
                                    ren_dtype type, const void *dy, const void *x, float *dw,
                                    void *partial);

/* ------------------------------------------------------------------ conv_rows.cu: f16, bf16 */

/* Channels of the image that holds the taps of kernel rows; 0 = not for this shape. */
uint32_t ren__cuda_k_rows_channels(const ren__conv_shape *shape);
/* to_x [N, H, WO, channels], and with w to_w [O, KH, channels]. */
cudaError_t ren__cuda_k_rows_pack(cudaStream_t stream, const ren__conv_shape *shape,
                                  uint32_t channels, const void *x, void *to_x, const void *w,
                                  void *to_w);
/* dw [O, KH, KW, C] from [O, KH, channels] of any float. */
cudaError_t ren__cuda_k_rows_unpack(cudaStream_t stream, const ren__conv_shape *shape,
                                    uint32_t channels, ren_dtype type, const void *from, float *dw);

#ifdef __cplusplus
}
#endif

#endif
