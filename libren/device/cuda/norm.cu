/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/norm.cu - batch norm: the training and the inference pass.
 *
 * Purpose   y = act(norm(x) + other), with the activation and `other` or without. Training takes
 *           two launches: one reads x for the statistics, one reads it again and writes y.
 * Shape     see columns.cuh. The first kernel leaves a mean and a sum of squared deviations for
 *           each split and channel; every block of the second joins those of its own channels, in
 *           the same order, so all get the same bits, and the block of the first split stores what
 *           is kept. That costs each block some microseconds' fraction of reading from the L2
 *           cache, and saves a launch of its own for a few thousand additions.
 * Numbers   Variances are not taken as the difference of two large sums. A thread sums x - k and
 *           (x - k)^2 with k its own first value, which gives its mean and squared deviations. A
 *           group of such pairs is joined in two sums: the mean of all from the means, then the
 *           squared deviations of all as those within plus count (mean - mean of all)^2 (Chan,
 *           Golub and LeVeque 1979, for many sets at once). So threads become a block, and splits
 *           become the batch.
 */
#include "norm.cuh"

template <typename T> struct train_params {
    const T *x, *other;
    T *y;
    const float *weight, *bias, *running_mean, *running_var;
    float *mean, *rstd, *new_running_mean, *new_running_var;
    float *partial; /* [splits][channels] means, then as many sums of squared deviations */
    uint64_t rows, channels;
    ren__tiles sums, apply; /* of the two kernels; the same side */
    float momentum, eps;
    int relu;
};

template <typename T, int W>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS, 2) moments_kernel(train_params<T> p)
{
    __shared__ float shared[REN_COLUMN_SHARED(1)];
    ren__stand s = ren__stand_of<W>(p.sums, p.rows, p.channels);
    float origin[W] = {0.0f};
    float mean[W] = {0.0f};
    float squares[W] = {0.0f};
    float whole[W];
    float count = (float)s.count;
    float part = s.count ? 1.0f / count : 0.0f;
    float share = 1.0f / (float)s.rows;
    for (uint32_t i = 0; i < s.count; i += REN_UNROLL) {
        ren__pack<T, W> x[REN_UNROLL];
        ren__read_some<T, W, REN_UNROLL>(p.x, s, i, x);
        if (i == 0) {
            ren__unpack<T, W>(x[0], origin);
        }
#pragma unroll
        for (int u = 0; u < REN_UNROLL; u++) {
            if (i + (uint32_t)u < s.count) {
                float v[W];
                ren__unpack<T, W>(x[u], v);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    float d = v[k] - origin[k];
                    mean[k] += d;
                    squares[k] = fmaf(d, d, squares[k]);
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < W; k++) { /* from sums to moments */
        float d = mean[k] * part;
        squares[k] = fmaxf(fmaf(-mean[k], d, squares[k]), 0.0f);
        mean[k] = origin[k] + d;
        whole[k] = count * mean[k];
    }
    ren__column_sums<W>(whole, p.sums.side, shared);
#pragma unroll
    for (int k = 0; k < W; k++) {
        float d;
        whole[k] *= share;
        d = mean[k] - whole[k];
        squares[k] = fmaf(count * d, d, squares[k]);
    }
    ren__column_sums<W>(squares, p.sums.side, shared);
    if (s.lane == 0 && s.channel < p.channels) {
        uint64_t at = blockIdx.y * p.channels + s.channel;
#pragma unroll
        for (int k = 0; k < W; k++) {
            p.partial[at + (uint64_t)k] = whole[k];
            p.partial[p.sums.splits * p.channels + at + (uint64_t)k] = squares[k];
        }
    }
}

/* Join the splits of this block's channels; thread i < side W gets those of channel i. The means
 * are taken about that of the first split, which is one of them: so what the last subtraction
 * cancels is at most as many times the result as there are splits. */
template <typename T, int W>
static __device__ __forceinline__ void join_moments(const train_params<T> &p, float *shared,
                                                    float *out_mean, float *out_squares)
{
    uint32_t width = p.sums.side * (uint32_t)W;
    uint64_t channel = (uint64_t)blockIdx.x * width + (threadIdx.x & (width - 1u));
    uint32_t step = blockDim.x / width;
    const float *squares = p.partial + p.sums.splits * p.channels;
    float origin = 0.0f;
    float usual = (float)p.sums.rows;
    float last = (float)(p.rows - (p.sums.splits - 1u) * p.sums.rows);
    float sums[2] = {0.0f, 0.0f};
    if (channel < p.channels) {
        origin = p.partial[channel];
#pragma unroll 8
        for (uint32_t k = threadIdx.x / width; k < p.sums.splits; k += step) {
            float d = p.partial[k * p.channels + channel] - origin;
            float rows = k + 1u == p.sums.splits ? last : usual;
            sums[0] = fmaf(rows, d, sums[0]);
            sums[1] += fmaf(rows * d, d, squares[k * p.channels + channel]);
        }
    }
    ren__column_sums<2>(sums, width, shared);
    *out_mean = origin + sums[0] / (float)p.rows;
    *out_squares = fmaxf(sums[1] - sums[0] * (sums[0] / (float)p.rows), 0.0f);
}

/* What a thread has read and not used yet: packs of x, and of `other` when there is one. */
template <typename T, int W, int U> struct window {
    ren__pack<T, W> x[U], other[U];
};

template <typename T, int W, int U, bool HAS_OTHER>
static __device__ __forceinline__ void read_window(const T *x, const T *other, const ren__stand &s,
                                                   uint32_t i, window<T, W, U> *w)
{
    ren__read_some<T, W, U>(x, s, i, w->x);
    if (HAS_OTHER) {
        ren__read_some<T, W, U>(other, s, i, w->other);
    }
}

/* Write the rows of a block. *w holds what read_window gave for i = 0. */
template <typename T, int W, int U, bool HAS_OTHER>
static __device__ __forceinline__ void apply(const T *x, const T *other, T *y, int relu,
                                             const ren__stand &s, window<T, W, U> *w,
                                             const float scale[W], const float shift[W])
{
    for (uint32_t i = 0; i < s.count; i += U) {
        if (i > 0) {
            read_window<T, W, U, HAS_OTHER>(x, other, s, i, w);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (i + (uint32_t)u < s.count) {
                float v[W];
                float plus[W];
                ren__unpack<T, W>(w->x[u], v);
                if (HAS_OTHER) {
                    ren__unpack<T, W>(w->other[u], plus);
                }
#pragma unroll
                for (int k = 0; k < W; k++) {
                    v[k] = ren__normal(v[k], scale[k], shift[k]);
                    v[k] = HAS_OTHER ? v[k] + plus[k] : v[k];
                    v[k] = relu && v[k] <= 0.0f ? 0.0f : v[k]; /* NaN stays NaN */
                }
                ren__write<T, W>(y, ren__place(s, i + (uint32_t)u), v);
            }
        }
    }
}

template <typename T, int W, bool HAS_OTHER>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS, 2) normalise_kernel(train_params<T> p)
{
    const int U = HAS_OTHER ? REN_UNROLL / 2 : REN_UNROLL;
    __shared__ float shared[REN_COLUMN_SHARED(1)];
    alignas(16) __shared__ float of_channel[2][REN_TILE]; /* scale, shift */
    ren__stand s = ren__stand_of<W>(p.apply, p.rows, p.channels);
    uint32_t width = p.sums.side * (uint32_t)W;
    uint64_t own;
    window<T, W, U> w;
    float scale[W];
    float shift[W];
    float mean;
    float squares;
    ren__turn(&s);
    read_window<T, W, U, HAS_OTHER>(p.x, p.other, s, 0, &w);
    join_moments<T, W>(p, shared, &mean, &squares);
    if (ren__owns(width, p.channels, &own)) {
        float rstd = 1.0f / sqrtf(squares / (float)p.rows + p.eps);
        float of_scale = p.weight[own] * rstd;
        of_channel[0][threadIdx.x] = of_scale;
        of_channel[1][threadIdx.x] = ren__shift(mean, of_scale, p.bias[own]);
        if (blockIdx.y == 0) {
            float unbiased = squares / (p.rows > 1u ? (float)p.rows - 1.0f : 1.0f);
            p.mean[own] = mean;
            p.rstd[own] = rstd;
            p.new_running_mean[own] = (1.0f - p.momentum) * p.running_mean[own] + p.momentum * mean;
            p.new_running_var[own] =
                (1.0f - p.momentum) * p.running_var[own] + p.momentum * unbiased;
        }
    }
    __syncthreads();
    ren__channel_values<W>(of_channel[0], s.pack, scale);
    ren__channel_values<W>(of_channel[1], s.pack, shift);
    apply<T, W, U, HAS_OTHER>(p.x, p.other, p.y, p.relu, s, &w, scale, shift);
}

/* The scratch must not depend on addresses: room for the more splits of the two walks. */
uint64_t ren__cuda_k_norm_scratch(ren_dtype dtype, uint64_t rows, uint64_t channels)
{
    uint32_t width = dtype == REN_F32 ? 4u : 8u;
    uint32_t wide = ren__tiles_of(rows, channels, width, REN_NORM_BLOCKS, REN_NORM_LEAST).splits;
    uint32_t narrow = ren__tiles_of(rows, channels, 1u, REN_NORM_BLOCKS, REN_NORM_LEAST).splits;
    return 2u * (wide > narrow ? wide : narrow) * channels * sizeof(float);
}

template <typename T, int W>
static cudaError_t normalise(cudaStream_t stream, dim3 grid, const train_params<T> &p)
{
    return p.other
               ? REN_LAUNCH((normalise_kernel<T, W, true>), grid, REN_COLUMN_THREADS, stream, p)
               : REN_LAUNCH((normalise_kernel<T, W, false>), grid, REN_COLUMN_THREADS, stream, p);
}

template <typename T>
static cudaError_t train(cudaStream_t stream, const ren__norm_train *t, void *partial)
{
    const int W = ren__wide<T>::width;
    int wide = t->channels % (uint64_t)W == 0 && ren__aligned16(t->x) && ren__aligned16(t->y) &&
               ren__aligned16(t->other);
    uint32_t width = wide ? (uint32_t)W : 1u;
    train_params<T> p;
    cudaError_t code;
    p.x = (const T *)t->x;
    p.other = (const T *)t->other;
    p.y = (T *)t->y;
    p.weight = t->weight;
    p.bias = t->bias;
    p.running_mean = t->running_mean;
    p.running_var = t->running_var;
    p.mean = t->mean;
    p.rstd = t->rstd;
    p.new_running_mean = t->new_running_mean;
    p.new_running_var = t->new_running_var;
    p.partial = (float *)partial;
    p.rows = t->rows;
    p.channels = t->channels;
    p.sums = ren__tiles_of(t->rows, t->channels, width, REN_NORM_BLOCKS, REN_NORM_LEAST);
    p.apply = ren__tiles_of(t->rows, t->channels, width, REN_NORM_BLOCKS, REN_NORM_LEAST);
    p.momentum = t->momentum;
    p.eps = t->eps;
    p.relu = t->relu;
    {
        dim3 sums(p.sums.tiles, p.sums.splits, 1u);
        dim3 apply(p.apply.tiles, p.apply.splits, 1u);
        code = wide ? REN_LAUNCH((moments_kernel<T, W>), sums, REN_COLUMN_THREADS, stream, p)
                    : REN_LAUNCH((moments_kernel<T, 1>), sums, REN_COLUMN_THREADS, stream, p);
        if (code == cudaSuccess) {
            code = wide ? normalise<T, W>(stream, apply, p) : normalise<T, 1>(stream, apply, p);
        }
    }
    return code;
}

cudaError_t ren__cuda_k_norm_train(cudaStream_t stream, const ren__norm_train *t, void *partial)
{
    return REN_DISPATCH(t->dtype, train, stream, t, partial);
}

/* ------------------------------------------------------------------ inference */

template <typename T> struct eval_params {
    const T *x, *other;
    T *y;
    const float *weight, *bias, *mean, *var;
    uint64_t rows, channels;
    ren__tiles tiles;
    float eps;
    int relu;
};

template <typename T, int W, bool HAS_OTHER>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS, 2) eval_kernel(eval_params<T> p)
{
    const int U = HAS_OTHER ? REN_UNROLL / 2 : REN_UNROLL;
    alignas(16) __shared__ float of_channel[2][REN_TILE]; /* scale, shift */
    ren__stand s = ren__stand_of<W>(p.tiles, p.rows, p.channels);
    window<T, W, U> w;
    float scale[W];
    float shift[W];
    uint64_t own;
    read_window<T, W, U, HAS_OTHER>(p.x, p.other, s, 0, &w);
    if (ren__owns(p.tiles.side * (uint32_t)W, p.channels, &own)) {
        float of_scale = p.weight[own] / sqrtf(p.var[own] + p.eps);
        of_channel[0][threadIdx.x] = of_scale;
        of_channel[1][threadIdx.x] = ren__shift(p.mean[own], of_scale, p.bias[own]);
    }
    __syncthreads();
    ren__channel_values<W>(of_channel[0], s.pack, scale);
    ren__channel_values<W>(of_channel[1], s.pack, shift);
    apply<T, W, U, HAS_OTHER>(p.x, p.other, p.y, p.relu, s, &w, scale, shift);
}

template <typename T, int W>
static cudaError_t eval_any(cudaStream_t stream, const eval_params<T> &p)
{
    dim3 grid(p.tiles.tiles, p.tiles.splits, 1u);
    return p.other ? REN_LAUNCH((eval_kernel<T, W, true>), grid, REN_COLUMN_THREADS, stream, p)
                   : REN_LAUNCH((eval_kernel<T, W, false>), grid, REN_COLUMN_THREADS, stream, p);
}

template <typename T> static cudaError_t eval(cudaStream_t stream, const ren__norm_eval *e)
{
    const int W = ren__wide<T>::width;
    int wide = e->channels % (uint64_t)W == 0 && ren__aligned16(e->x) && ren__aligned16(e->y) &&
               ren__aligned16(e->other);
    ren__tiles t = ren__tiles_of(e->rows, e->channels, wide ? (uint32_t)W : 1u, REN_NORM_BLOCKS,
                                 REN_NORM_LEAST);
    eval_params<T> p = {(const T *)e->x, (const T *)e->other,
                        (T *)e->y,       e->weight,
                        e->bias,         e->running_mean,
                        e->running_var,  e->rows,
                        e->channels,     t,
                        e->eps,          e->relu};
    return wide ? eval_any<T, W>(stream, p) : eval_any<T, 1>(stream, p);
}

cudaError_t ren__cuda_k_norm_eval(cudaStream_t stream, const ren__norm_eval *e)
{
    return REN_DISPATCH(e->dtype, eval, stream, e);
}

/* ------------------------------------------------------------------ folding */

typedef struct fold_params {
    ren__norm_fold f;
} fold_params;

/* A block to an output channel, whose weights lie side by side. */
static __global__ void fold_kernel(fold_params p)
{
    uint64_t o = blockIdx.x;
    float scale = p.f.weight[o] / sqrtf(p.f.running_var[o] + p.f.eps);
    for (uint64_t i = threadIdx.x; i < p.f.inner; i += blockDim.x) {
        p.f.out[o * p.f.inner + i] = p.f.w[o * p.f.inner + i] * scale;
    }
    if (threadIdx.x == 0) {
        float b = p.f.b ? p.f.b[o] : 0.0f;
        p.f.out_bias[o] = fmaf(b - p.f.running_mean[o], scale, p.f.bias[o]);
    }
}

cudaError_t ren__cuda_k_norm_fold(cudaStream_t stream, const ren__norm_fold *f)
{
    fold_params p = {*f};
    return REN_LAUNCH(fold_kernel, (uint32_t)f->outputs, REN_THREADS, stream, p);
}
