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
    float rows = (float)(s.end - blockIdx.y * p.sums.rows);
    float origin[W] = {0.0f};
    float mean[W] = {0.0f};
    float squares[W] = {0.0f};
    float whole[W];
    float count = 0.0f;
    if (s.row < s.end) {
        ren__unpack<T, W>(ren__read<T, W>(p.x, s.row * p.channels + s.channel), origin);
    }
    for (uint64_t row = s.row; row < s.end; row += (uint64_t)s.step * REN_UNROLL) {
        ren__pack<T, W> x[REN_UNROLL];
#pragma unroll
        for (int u = 0; u < REN_UNROLL; u++) {
            uint64_t r = row + (uint64_t)u * s.step;
            if (r < s.end) {
                x[u] = ren__read<T, W>(p.x, r * p.channels + s.channel);
            }
        }
#pragma unroll
        for (int u = 0; u < REN_UNROLL; u++) {
            float v[W];
            if (row + (uint64_t)u * s.step >= s.end) {
                break;
            }
            ren__unpack<T, W>(x[u], v);
            count += 1.0f;
#pragma unroll
            for (int k = 0; k < W; k++) {
                float d = v[k] - origin[k];
                mean[k] += d;
                squares[k] = fmaf(d, d, squares[k]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < W; k++) { /* from sums to moments */
        float sum = mean[k];
        float part = count > 0.0f ? sum / count : 0.0f;
        squares[k] = fmaxf(squares[k] - sum * part, 0.0f);
        mean[k] = origin[k] + part;
        whole[k] = count * mean[k];
    }
    ren__column_sums<W>(whole, p.sums.side, shared);
#pragma unroll
    for (int k = 0; k < W; k++) {
        float d;
        whole[k] /= rows;
        d = mean[k] - whole[k];
        squares[k] = fmaf(count * d, d, squares[k]);
    }
    ren__column_sums<W>(squares, p.sums.side, shared);
    if (s.lane == 0) {
        uint64_t at = blockIdx.y * p.channels + s.channel;
#pragma unroll
        for (int k = 0; k < W; k++) {
            if (s.channel + (uint64_t)k < p.channels) {
                p.partial[at + (uint64_t)k] = whole[k];
                p.partial[p.sums.splits * p.channels + at + (uint64_t)k] = squares[k];
            }
        }
    }
}

static __device__ __forceinline__ float rows_of_split(const ren__tiles &t, uint64_t rows,
                                                      uint32_t split)
{
    uint64_t left = rows - split * t.rows;
    return (float)(left < t.rows ? left : t.rows);
}

/* Join the splits of this block's channels; thread i < side W gets those of channel i. */
template <typename T, int W>
static __device__ __forceinline__ void join_moments(const train_params<T> &p, float *shared,
                                                    float *out_mean, float *out_squares)
{
    uint32_t width = p.sums.side * (uint32_t)W;
    uint64_t channel = (uint64_t)blockIdx.x * width + threadIdx.x % width;
    uint32_t first = threadIdx.x / width;
    uint32_t step = blockDim.x / width;
    const float *squares = p.partial + p.sums.splits * p.channels;
    float mean[1] = {0.0f};
    float sum[1] = {0.0f};
    if (channel >= p.channels) {
        first = p.sums.splits;
    }
#pragma unroll 8
    for (uint32_t k = first; k < p.sums.splits; k += step) {
        mean[0] += p.partial[k * p.channels + channel] * rows_of_split(p.sums, p.rows, k);
    }
    ren__column_sums<1>(mean, width, shared);
    mean[0] /= (float)p.rows;
#pragma unroll 8
    for (uint32_t k = first; k < p.sums.splits; k += step) {
        float d = p.partial[k * p.channels + channel] - mean[0];
        sum[0] += fmaf(rows_of_split(p.sums, p.rows, k) * d, d, squares[k * p.channels + channel]);
    }
    ren__column_sums<1>(sum, width, shared);
    *out_mean = mean[0];
    *out_squares = sum[0];
}

/* The rows of a block, once the constants of its channels are known. */
template <typename T, int W>
static __device__ __forceinline__ void
apply_rows(const T *x, const T *other, T *y, int relu, const ren__stand &s, uint64_t channels,
           const float mean[W], const float scale[W], const float bias[W])
{
    for (uint64_t row = s.row; row < s.end; row += (uint64_t)s.step * REN_UNROLL) {
        ren__pack<T, W> in[REN_UNROLL];
        ren__pack<T, W> more[REN_UNROLL];
#pragma unroll
        for (int u = 0; u < REN_UNROLL; u++) {
            uint64_t r = row + (uint64_t)u * s.step;
            if (r < s.end) {
                in[u] = ren__read<T, W>(x, r * channels + s.channel);
                if (other) {
                    more[u] = ren__read<T, W>(other, r * channels + s.channel);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < REN_UNROLL; u++) {
            uint64_t r = row + (uint64_t)u * s.step;
            float v[W];
            float plus[W];
            if (r >= s.end) {
                break;
            }
            ren__unpack<T, W>(in[u], v);
            if (other) {
                ren__unpack<T, W>(more[u], plus);
            }
#pragma unroll
            for (int k = 0; k < W; k++) {
                v[k] = ren__normal(v[k], mean[k], scale[k], bias[k]);
                v[k] = other ? v[k] + plus[k] : v[k];
                v[k] = relu ? (v[k] > 0.0f || v[k] != v[k] ? v[k] : 0.0f) : v[k];
            }
            ren__write<T, W>(y, r * channels + s.channel, v);
        }
    }
}

template <typename T, int W>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS, 2) normalise_kernel(train_params<T> p)
{
    __shared__ float shared[REN_COLUMN_SHARED(1)];
    __shared__ float of_channel[2][REN_TILE]; /* mean, rstd */
    ren__stand s = ren__stand_of<W>(p.apply, p.rows, p.channels);
    uint32_t width = p.sums.side * (uint32_t)W;
    uint64_t own = (uint64_t)blockIdx.x * width + threadIdx.x;
    float scale[W];
    float bias[W];
    float mean[W];
    float of_mean;
    float squares;
    join_moments<T, W>(p, shared, &of_mean, &squares);
    if (threadIdx.x < width) {
        float rstd = 1.0f / sqrtf(squares / (float)p.rows + p.eps);
        of_channel[0][threadIdx.x] = of_mean;
        of_channel[1][threadIdx.x] = rstd;
        if (blockIdx.y == 0 && own < p.channels) {
            float unbiased = squares / (p.rows > 1u ? (float)p.rows - 1.0f : 1.0f);
            p.mean[own] = of_mean;
            p.rstd[own] = rstd;
            p.new_running_mean[own] =
                (1.0f - p.momentum) * p.running_mean[own] + p.momentum * of_mean;
            p.new_running_var[own] =
                (1.0f - p.momentum) * p.running_var[own] + p.momentum * unbiased;
        }
    }
    __syncthreads();
    ren__channel_values<W>(p.weight, s.channel, p.channels, scale);
    ren__channel_values<W>(p.bias, s.channel, p.channels, bias);
#pragma unroll
    for (int k = 0; k < W; k++) {
        mean[k] = of_channel[0][s.pack * W + (uint32_t)k];
        scale[k] *= of_channel[1][s.pack * W + (uint32_t)k];
    }
    apply_rows<T, W>(p.x, p.other, p.y, p.relu, s, p.channels, mean, scale, bias);
}

/* The scratch must not depend on addresses: room for the more splits of the two walks. */
uint64_t ren__cuda_k_norm_scratch(ren_dtype dtype, uint64_t rows, uint64_t channels)
{
    uint32_t width = dtype == REN_F32 ? 4u : 8u;
    uint32_t wide = ren__tiles_of(rows, channels, width, REN_NORM_BLOCKS, REN_NORM_LEAST).splits;
    uint32_t narrow = ren__tiles_of(rows, channels, 1u, REN_NORM_BLOCKS, REN_NORM_LEAST).splits;
    return 2u * (wide > narrow ? wide : narrow) * channels * sizeof(float);
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
            code = wide
                       ? REN_LAUNCH((normalise_kernel<T, W>), apply, REN_COLUMN_THREADS, stream, p)
                       : REN_LAUNCH((normalise_kernel<T, 1>), apply, REN_COLUMN_THREADS, stream, p);
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

template <typename T, int W>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS, 2) eval_kernel(eval_params<T> p)
{
    ren__stand s = ren__stand_of<W>(p.tiles, p.rows, p.channels);
    float mean[W];
    float scale[W];
    float bias[W];
    float var[W];
    ren__channel_values<W>(p.mean, s.channel, p.channels, mean);
    ren__channel_values<W>(p.var, s.channel, p.channels, var);
    ren__channel_values<W>(p.weight, s.channel, p.channels, scale);
    ren__channel_values<W>(p.bias, s.channel, p.channels, bias);
#pragma unroll
    for (int k = 0; k < W; k++) {
        scale[k] *= 1.0f / sqrtf(var[k] + p.eps);
    }
    apply_rows<T, W>(p.x, p.other, p.y, p.relu, s, p.channels, mean, scale, bias);
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
    dim3 grid(t.tiles, t.splits, 1u);
    return wide ? REN_LAUNCH((eval_kernel<T, W>), grid, REN_COLUMN_THREADS, stream, p)
                : REN_LAUNCH((eval_kernel<T, 1>), grid, REN_COLUMN_THREADS, stream, p);
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
