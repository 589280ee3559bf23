/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/norm_backward.cu - batch norm: the backward pass.
 *
 * Purpose   With g the dy that counts and h = (x - mean) rstd: dbias = sum g, dweight = sum g h,
 *           dx = weight rstd (g - dbias / rows - h dweight / rows). With a fused activation g is dy
 *           where the output was positive, else 0; the output is read, or without it computed
 *           again from x and bias (norm.cuh). `dother` is g itself.
 * Shape     Two launches, as in norm.cu: sums of each split, then each block joins the sums of its
 *           channels and writes dx. A batch of few rows takes one launch.
 * Aliasing  A thread reads its elements of dy, x and y before it writes them, so dx or dother may
 *           be dy.
 */
#include "norm.cuh"

#define FEW_ROWS  32u /* batches of at most this many rows: see few_kernel */
#define FEW_LANES 8u
#define FEW_OWN   (FEW_ROWS / FEW_LANES)

template <typename T> struct backward_params {
    const T *dy, *x, *y;
    T *dx, *dother;
    const float *weight, *bias, *mean, *rstd;
    float *dweight, *dbias;
    float *partial; /* [splits][channels] sums of g, then as many of g (x - mean) */
    uint64_t rows, channels;
    ren__tiles sums, apply; /* of the two kernels; the same side */
    float eps;
    int gate;
};

/* The dy that counts, in place. y: the output when p.y, else computed again. */
template <typename T, int W>
static __device__ __forceinline__ void gate(const backward_params<T> &p, const float x[W],
                                            const float y[W], const float mean[W],
                                            const float scale[W], const float bias[W], float g[W])
{
    if (!p.gate) {
        return;
    }
#pragma unroll
    for (int k = 0; k < W; k++) {
        float out = p.y ? y[k] : ren__rounded<T>(ren__normal(x[k], mean[k], scale[k], bias[k]));
        g[k] = out > 0.0f ? g[k] : 0.0f;
    }
}

/* Packs of one thread that are under way: dy, x and with a gate by it y. */
template <typename T, int W> struct window {
    ren__pack<T, W> g[REN_UNROLL], x[REN_UNROLL], y[REN_UNROLL];
};

template <typename T, int W>
static __device__ __forceinline__ void read_window(const backward_params<T> &p, const ren__stand &s,
                                                   uint64_t row, window<T, W> *w)
{
#pragma unroll
    for (int u = 0; u < REN_UNROLL; u++) {
        uint64_t r = row + (uint64_t)u * s.step;
        if (r < s.end) {
            w->g[u] = ren__read<T, W>(p.dy, r * p.channels + s.channel);
            w->x[u] = ren__read<T, W>(p.x, r * p.channels + s.channel);
            if (p.y) {
                w->y[u] = ren__read<T, W>(p.y, r * p.channels + s.channel);
            }
        }
    }
}

template <typename T, int W>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS)
    backward_sum_kernel(backward_params<T> p)
{
    __shared__ float shared[REN_COLUMN_SHARED(2)];
    ren__stand s = ren__stand_of<W>(p.sums, p.rows, p.channels);
    float sum[2 * W] = {0.0f}; /* of g, then of g (x - mean) */
    float mean[W];
    float scale[W];
    float bias[W] = {0.0f};
    ren__channel_values<W>(p.mean, s.channel, p.channels, mean);
    if (p.bias) {
        float rstd[W];
        ren__channel_values<W>(p.rstd, s.channel, p.channels, rstd);
        ren__channel_values<W>(p.weight, s.channel, p.channels, scale);
        ren__channel_values<W>(p.bias, s.channel, p.channels, bias);
#pragma unroll
        for (int k = 0; k < W; k++) {
            scale[k] *= rstd[k];
        }
    }
    for (uint64_t row = s.row; row < s.end; row += (uint64_t)s.step * REN_UNROLL) {
        window<T, W> w;
        read_window<T, W>(p, s, row, &w);
#pragma unroll
        for (int u = 0; u < REN_UNROLL; u++) {
            float g[W];
            float x[W];
            float y[W];
            if (row + (uint64_t)u * s.step >= s.end) {
                break;
            }
            ren__unpack<T, W>(w.g[u], g);
            ren__unpack<T, W>(w.x[u], x);
            if (p.y) {
                ren__unpack<T, W>(w.y[u], y);
            }
            gate<T, W>(p, x, y, mean, scale, bias, g);
#pragma unroll
            for (int k = 0; k < W; k++) {
                sum[k] += g[k];
                sum[W + k] = fmaf(g[k], x[k] - mean[k], sum[W + k]);
            }
        }
    }
    ren__column_sums<2 * W>(sum, p.sums.side, shared);
    if (s.lane == 0) {
        uint64_t at = blockIdx.y * p.channels + s.channel;
#pragma unroll
        for (int k = 0; k < W; k++) {
            if (s.channel + (uint64_t)k < p.channels) {
                p.partial[at + (uint64_t)k] = sum[k];
                p.partial[p.sums.splits * p.channels + at + (uint64_t)k] = sum[W + k];
            }
        }
    }
}

/* Join the splits of this block's channels; thread i < side W gets those of channel i. */
template <typename T, int W>
static __device__ __forceinline__ void join_sums(const backward_params<T> &p, float *shared,
                                                 float out[2])
{
    uint32_t width = p.sums.side * (uint32_t)W;
    uint64_t channel = (uint64_t)blockIdx.x * width + threadIdx.x % width;
    uint32_t step = blockDim.x / width;
    const float *product = p.partial + p.sums.splits * p.channels;
    out[0] = out[1] = 0.0f;
    if (channel < p.channels) {
#pragma unroll 8
        for (uint32_t k = threadIdx.x / width; k < p.sums.splits; k += step) {
            out[0] += p.partial[k * p.channels + channel];
            out[1] += product[k * p.channels + channel];
        }
    }
    ren__column_sums<2>(out, width, shared);
}

/* dx is linear in g and x: scale g + by_x (x - mean) + plus. */
template <int W> struct slopes {
    float mean[W], scale[W], bias[W], by_x[W], plus[W];
};

template <typename T, int W>
static __device__ __forceinline__ void apply_window(const backward_params<T> &p,
                                                    const ren__stand &s, uint64_t row,
                                                    const window<T, W> &w, const slopes<W> &c)
{
#pragma unroll
    for (int u = 0; u < REN_UNROLL; u++) {
        uint64_t r = row + (uint64_t)u * s.step;
        float g[W];
        float x[W];
        float y[W];
        if (r >= s.end) {
            break;
        }
        ren__unpack<T, W>(w.g[u], g);
        ren__unpack<T, W>(w.x[u], x);
        if (p.y) {
            ren__unpack<T, W>(w.y[u], y);
        }
        gate<T, W>(p, x, y, c.mean, c.scale, c.bias, g);
        if (p.dother) {
            ren__write<T, W>(p.dother, r * p.channels + s.channel, g);
        }
#pragma unroll
        for (int k = 0; k < W; k++) {
            g[k] = fmaf(c.scale[k], g[k], fmaf(c.by_x[k], x[k] - c.mean[k], c.plus[k]));
        }
        ren__write<T, W>(p.dx, r * p.channels + s.channel, g);
    }
}

template <typename T, int W>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS)
    backward_data_kernel(backward_params<T> p)
{
    __shared__ float shared[REN_COLUMN_SHARED(2)];
    __shared__ float of_channel[2][REN_TILE]; /* dbias / rows, dweight rstd / rows */
    ren__stand s = ren__stand_of<W>(p.apply, p.rows, p.channels);
    uint32_t width = p.sums.side * (uint32_t)W;
    uint64_t own = (uint64_t)blockIdx.x * width + threadIdx.x;
    float sums[2];
    slopes<W> c;
    join_sums<T, W>(p, shared, sums);
    if (threadIdx.x < width) {
        float rstd = own < p.channels ? p.rstd[own] : 0.0f;
        float dweight = sums[1] * rstd;
        of_channel[0][threadIdx.x] = sums[0] / (float)p.rows;
        of_channel[1][threadIdx.x] = dweight * rstd / (float)p.rows;
        if (blockIdx.y == 0 && own < p.channels) {
            p.dbias[own] = sums[0];
            p.dweight[own] = dweight;
        }
    }
    __syncthreads();
    ren__channel_values<W>(p.rstd, s.channel, p.channels, c.by_x);
    ren__channel_values<W>(p.mean, s.channel, p.channels, c.mean);
    ren__channel_values<W>(p.weight, s.channel, p.channels, c.scale);
    if (p.bias) {
        ren__channel_values<W>(p.bias, s.channel, p.channels, c.bias);
    }
#pragma unroll
    for (int k = 0; k < W; k++) {
        c.scale[k] *= c.by_x[k];
        c.plus[k] = -c.scale[k] * of_channel[0][s.pack * W + (uint32_t)k];
        c.by_x[k] = -c.scale[k] * of_channel[1][s.pack * W + (uint32_t)k];
    }
    for (uint64_t row = s.row; row < s.end; row += (uint64_t)s.step * REN_UNROLL) {
        window<T, W> w;
        read_window<T, W>(p, s, row, &w);
        apply_window<T, W>(p, s, row, w, c);
    }
}

/* ------------------------------------------------------------------ few rows */

/* The sum over the lanes of a block, in order; all threads must call. */
static __device__ __forceinline__ double few_sum(double v, double shared[FEW_LANES][REN_WARP])
{
    uint32_t column = threadIdx.x % REN_WARP;
    double sum = 0.0;
    __syncthreads();
    shared[threadIdx.x / REN_WARP][column] = v;
    __syncthreads();
    for (uint32_t k = 0; k < FEW_LANES; k++) {
        sum += shared[k][column];
    }
    return sum;
}

/* The backward pass of a batch of few rows, from x itself and in double, as the CPU device does it:
 * xhat is close to 1 in size there, the bracket is what cancellation leaves, and a mean or rstd
 * that was rounded to f32 on the way would spoil it. A warp's threads have a channel each, and a
 * thread keeps its few rows. */
template <typename T> static __global__ void few_kernel(backward_params<T> p)
{
    __shared__ double shared[FEW_LANES][REN_WARP];
    uint64_t c = (uint64_t)blockIdx.x * REN_WARP + threadIdx.x % REN_WARP;
    uint32_t lane = threadIdx.x / REN_WARP;
    double rows = (double)p.rows;
    double x[FEW_OWN];
    double g[FEW_OWN];
    double mean = 0.0;
    double squares = 0.0;
    double sum = 0.0;
    double product = 0.0;
    double rstd;
    int own = 0;
    for (uint64_t r = lane; c < p.channels && r < p.rows; r += FEW_LANES, own++) {
        uint64_t i = r * p.channels + c;
        float in[1] = {ren__widen(p.x[i])};
        float dy[1] = {ren__widen(p.dy[i])};
        float y[1] = {p.y ? ren__widen(p.y[i]) : 0.0f};
        float bias[1] = {p.bias ? p.bias[c] : 0.0f};
        float scale[1] = {p.weight[c] * p.rstd[c]};
        gate<T, 1>(p, in, y, &p.mean[c], scale, bias, dy);
        x[own] = in[0];
        g[own] = dy[0];
        mean += x[own];
        sum += g[own];
    }
    mean = few_sum(mean, shared) / rows;
    sum = few_sum(sum, shared);
    for (int k = 0; k < own; k++) {
        squares += (x[k] - mean) * (x[k] - mean);
        product += g[k] * (x[k] - mean);
    }
    rstd = 1.0 / sqrt(few_sum(squares, shared) / rows + (double)p.eps);
    product = few_sum(product, shared) * rstd;
    for (int k = 0; k < own; k++) {
        uint64_t i = (lane + (uint64_t)k * FEW_LANES) * p.channels + c;
        double normal = (x[k] - mean) * rstd;
        double centred = g[k] - sum / rows - normal * (product / rows);
        if (p.dother) {
            ren__narrow((float)g[k], &p.dother[i]);
        }
        ren__narrow((float)((double)p.weight[c] * rstd * centred), &p.dx[i]);
    }
    if (lane == 0 && c < p.channels) {
        p.dbias[c] = (float)sum;
        p.dweight[c] = (float)product;
    }
}

template <typename T>
static cudaError_t backward(cudaStream_t stream, const ren__norm_backward *b, void *partial)
{
    const int W = ren__wide<T>::width;
    int wide = b->channels % (uint64_t)W == 0 && ren__aligned16(b->dy) && ren__aligned16(b->x) &&
               ren__aligned16(b->dx) && ren__aligned16(b->y) && ren__aligned16(b->dother);
    uint32_t width = wide ? (uint32_t)W : 1u;
    backward_params<T> p;
    cudaError_t code;
    p.dy = (const T *)b->dy;
    p.x = (const T *)b->x;
    p.y = (const T *)b->y;
    p.dx = (T *)b->dx;
    p.dother = (T *)b->dother;
    p.weight = b->weight;
    p.bias = b->bias;
    p.mean = b->mean;
    p.rstd = b->rstd;
    p.dweight = b->dweight;
    p.dbias = b->dbias;
    p.partial = (float *)partial;
    p.rows = b->rows;
    p.channels = b->channels;
    p.sums = ren__tiles_of(b->rows, b->channels, width, REN_NORM_BLOCKS, REN_NORM_LEAST);
    p.apply = ren__tiles_of(b->rows, b->channels, width, REN_NORM_BLOCKS, REN_NORM_LEAST);
    p.eps = b->eps;
    p.gate = b->gate;
    if (b->rows <= FEW_ROWS) {
        return REN_LAUNCH(few_kernel<T>, ren__blocks(b->channels, REN_WARP, UINT32_MAX),
                          FEW_LANES * REN_WARP, stream, p);
    }
    {
        dim3 sums(p.sums.tiles, p.sums.splits, 1u);
        dim3 apply(p.apply.tiles, p.apply.splits, 1u);
        code = wide ? REN_LAUNCH((backward_sum_kernel<T, W>), sums, REN_COLUMN_THREADS, stream, p)
                    : REN_LAUNCH((backward_sum_kernel<T, 1>), sums, REN_COLUMN_THREADS, stream, p);
        if (code == cudaSuccess) {
            code = wide ? REN_LAUNCH((backward_data_kernel<T, W>), apply, REN_COLUMN_THREADS,
                                     stream, p)
                        : REN_LAUNCH((backward_data_kernel<T, 1>), apply, REN_COLUMN_THREADS,
                                     stream, p);
        }
    }
    return code;
}

cudaError_t ren__cuda_k_norm_backward(cudaStream_t stream, const ren__norm_backward *b,
                                      void *partial)
{
    return REN_DISPATCH(b->dtype, backward, stream, b, partial);
}
