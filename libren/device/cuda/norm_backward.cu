/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/norm_backward.cu - batch norm: the backward pass.
 *
 * Purpose   With g the dy that counts and h = (x - mean) rstd: dbias = sum g, dweight = sum g h,
 *           dx = weight rstd (g - dbias / rows - h dweight / rows). With a fused activation g is dy
 *           where the output was positive, else 0; the output is read, or without it computed
 *           again from x and bias (norm.cuh). `dother` is g itself. dy may come in two parts.
 * Shape     Two launches, as in norm.cu: sums of each split, then each block joins the sums of its
 *           channels and writes dx. A batch of few rows takes one launch.
 * Kept g    Where g is wanted, or costs more to compute twice than to write and read, the first
 *           launch writes it, rounded, into dother or else into dx, and the second reads it there
 *           in place of all that it comes from.
 * Aliasing  A thread reads its elements of dy, more, x and y before it writes them, so dx or dother
 *           may be dy.
 */
#include "norm.cuh"

#define FEW_ROWS  32u /* batches of at most this many rows: see few_kernel */
#define FEW_LANES 8u
#define FEW_OWN   (FEW_ROWS / FEW_LANES)
#define UNROLL    2 /* packs of each tensor that a thread has under way */

/* What is in shared memory is to be read again, and not kept in registers from before. */
#define RELOAD() asm volatile("" ::: "memory")

template <typename T> struct backward_params {
    const T *dy, *more, *x, *y;
    T *dx, *dother, *kept;
    const float *weight, *bias, *mean, *rstd;
    float *dweight, *dbias;
    float *partial; /* [splits][channels] sums of g, then as many of g (x - mean) */
    uint64_t rows, channels;
    ren__tiles sums, apply; /* of the two kernels; the same side */
    float eps;
};

/* How a kernel learns where the output was positive. */
enum gate_by {
    GATE_NONE,
    GATE_Y,   /* the output is given */
    GATE_BIAS /* it is computed again */
};

/* Does the first launch keep g, and is dy one tensor or two? */
enum keep {
    KEEP_NONE,
    KEEP_ONE,
    KEEP_TWO
};

/* Constants of a block's channels, in shared memory: a thread of eight channels has no registers to
 * spare for them. */
enum constant {
    MEAN,
    SCALE,
    SHIFT,
    BY_X, /* dx = SCALE g + BY_X x + PLUS */
    PLUS,
    CONSTANTS
};

typedef float constants[CONSTANTS][REN_TILE];

/* What a thread has read and not used yet. */
template <typename T, int W, int N> struct window {
    ren__pack<T, W> g[N], more[N], x[N], y[N];
};

template <typename T, int W, gate_by BY, keep KEEP, int N>
static __device__ __forceinline__ void read_window(const backward_params<T> &p, const ren__stand &s,
                                                   uint32_t i, window<T, W, N> *w)
{
    ren__read_some<T, W, N>(p.dy, s, i, w->g);
    if (KEEP == KEEP_TWO) {
        ren__read_some<T, W, N>(p.more, s, i, w->more);
    }
    ren__read_some<T, W, N>(p.x, s, i, w->x);
    if (BY == GATE_Y) {
        ren__read_some<T, W, N>(p.y, s, i, w->y);
    }
}

/* The pack u of a window: x, and the dy that counts. */
template <typename T, int W, gate_by BY, keep KEEP, int N>
static __device__ __forceinline__ void counted(const window<T, W, N> &w, int u, uint32_t pack,
                                               const constants &of_channel, float x[W], float g[W])
{
    float out[W];
    ren__unpack<T, W>(w.g[u], g);
    if (KEEP == KEEP_TWO) {
        ren__unpack<T, W>(w.more[u], out);
#pragma unroll
        for (int k = 0; k < W; k++) {
            g[k] += out[k];
        }
    }
    ren__unpack<T, W>(w.x[u], x);
    if (BY == GATE_Y) {
        ren__unpack<T, W>(w.y[u], out);
    } else if (BY == GATE_BIAS) {
        float scale[W];
        ren__channel_values<W>(of_channel[SCALE], pack, scale);
        ren__channel_values<W>(of_channel[SHIFT], pack, out);
#pragma unroll
        for (int k = 0; k < W; k++) {
            out[k] = ren__rounded<T>(ren__normal(x[k], scale[k], out[k]));
        }
    }
    if (BY != GATE_NONE) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            g[k] = out[k] > 0.0f ? g[k] : 0.0f;
        }
    }
    if (KEEP != KEEP_NONE) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            g[k] = ren__rounded<T>(g[k]);
        }
    }
}

template <typename T, gate_by BY>
static __device__ __forceinline__ void set_gate(const backward_params<T> &p, uint64_t own,
                                                constants &of_channel)
{
    float scale = p.weight[own] * p.rstd[own];
    of_channel[MEAN][threadIdx.x] = p.mean[own];
    of_channel[SCALE][threadIdx.x] = scale;
    if (BY == GATE_BIAS) {
        of_channel[SHIFT][threadIdx.x] = ren__shift(p.mean[own], scale, p.bias[own]);
    }
}

template <typename T, int W, gate_by BY, keep KEEP>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS, 2)
    backward_sum_kernel(backward_params<T> p)
{
    __shared__ float shared[REN_COLUMN_SHARED(2)];
    alignas(16) __shared__ constants of_channel;
    ren__stand s = ren__stand_of<W>(p.sums, p.rows, p.channels);
    float sum[2 * W] = {0.0f};                    /* of g, then of g (x - mean) */
    const int N = KEEP == KEEP_NONE ? UNROLL : 1; /* what is kept takes registers */
    window<T, W, N> w;
    uint64_t own;
    read_window<T, W, BY, KEEP, N>(p, s, 0, &w);
    if (ren__owns(p.sums.side * (uint32_t)W, p.channels, &own)) {
        set_gate<T, BY>(p, own, of_channel);
    }
    __syncthreads();
    for (uint32_t i = 0; i < s.count; i += N) {
        float mean[W];
        if (i > 0) {
            read_window<T, W, BY, KEEP, N>(p, s, i, &w);
        }
        RELOAD();
        ren__channel_values<W>(of_channel[MEAN], s.pack, mean);
#pragma unroll
        for (int u = 0; u < N; u++) {
            if (i + (uint32_t)u < s.count) {
                float g[W];
                float x[W];
                counted<T, W, BY, KEEP, N>(w, u, s.pack, of_channel, x, g);
                if (KEEP != KEEP_NONE) {
                    ren__write<T, W>(p.kept, ren__place(s, i + (uint32_t)u), g);
                }
#pragma unroll
                for (int k = 0; k < W; k++) {
                    sum[k] += g[k];
                    sum[W + k] = fmaf(g[k], x[k] - mean[k], sum[W + k]);
                }
            }
        }
    }
    ren__column_sums<2 * W>(sum, p.sums.side, shared);
    if (s.lane == 0 && s.channel < p.channels) {
        uint64_t at = blockIdx.y * p.channels + s.channel;
#pragma unroll
        for (int k = 0; k < W; k++) {
            p.partial[at + (uint64_t)k] = sum[k];
            p.partial[p.sums.splits * p.channels + at + (uint64_t)k] = sum[W + k];
        }
    }
}

/* Join the splits of this block's channels; thread i < side W gets those of channel i. */
template <typename T, int W>
static __device__ __forceinline__ void join_sums(const backward_params<T> &p, float *shared,
                                                 float out[2])
{
    uint32_t width = p.sums.side * (uint32_t)W;
    uint64_t channel = (uint64_t)blockIdx.x * width + (threadIdx.x & (width - 1u));
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

/* The constants of dx, and the gradients of weight and bias, from the joined sums. */
template <typename T>
static __device__ __forceinline__ void set_slopes(const backward_params<T> &p, uint64_t own,
                                                  const float sums[2], constants &of_channel)
{
    float rstd = p.rstd[own];
    float dweight = sums[1] * rstd;
    float scale = of_channel[SCALE][threadIdx.x];
    float by_x = -scale * (dweight * rstd / (float)p.rows);
    of_channel[BY_X][threadIdx.x] = by_x;
    of_channel[PLUS][threadIdx.x] =
        -fmaf(by_x, of_channel[MEAN][threadIdx.x], scale * (sums[0] / (float)p.rows));
    if (blockIdx.y == 0) {
        p.dbias[own] = sums[0];
        p.dweight[own] = dweight;
    }
}

template <typename T, int W, gate_by BY>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS, 2)
    backward_data_kernel(backward_params<T> p)
{
    __shared__ float shared[REN_COLUMN_SHARED(2)];
    alignas(16) __shared__ constants of_channel;
    ren__stand s = ren__stand_of<W>(p.apply, p.rows, p.channels);
    window<T, W, UNROLL> w;
    float sums[2];
    uint64_t own;
    ren__turn(&s);
    read_window<T, W, BY, KEEP_NONE, UNROLL>(p, s, 0, &w);
    join_sums<T, W>(p, shared, sums);
    if (ren__owns(p.sums.side * (uint32_t)W, p.channels, &own)) {
        set_gate<T, BY>(p, own, of_channel);
        set_slopes<T>(p, own, sums, of_channel);
    }
    __syncthreads();
    for (uint32_t i = 0; i < s.count; i += UNROLL) {
        if (i > 0) {
            read_window<T, W, BY, KEEP_NONE, UNROLL>(p, s, i, &w);
        }
        RELOAD();
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (i + (uint32_t)u < s.count) {
                float g[W];
                float x[W];
                float c[W];
                uint64_t at = ren__place(s, i + (uint32_t)u);
                counted<T, W, BY, KEEP_NONE, UNROLL>(w, u, s.pack, of_channel, x, g);
                ren__channel_values<W>(of_channel[SCALE], s.pack, c);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    g[k] *= c[k];
                }
                ren__channel_values<W>(of_channel[BY_X], s.pack, c);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    g[k] = fmaf(c[k], x[k], g[k]);
                }
                ren__channel_values<W>(of_channel[PLUS], s.pack, c);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    g[k] += c[k];
                }
                ren__write<T, W>(p.dx, at, g);
            }
        }
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
        float in = ren__widen(p.x[i]);
        float scale = p.weight[c] * p.rstd[c];
        float out = 1.0f;
        if (p.y) {
            out = ren__widen(p.y[i]);
        } else if (p.bias) {
            out = ren__rounded<T>(ren__normal(in, scale, ren__shift(p.mean[c], scale, p.bias[c])));
        }
        float dy = ren__widen(p.dy[i]) + (p.more ? ren__widen(p.more[i]) : 0.0f);
        x[own] = (double)in;
        g[own] = out > 0.0f ? (double)dy : 0.0;
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

template <typename T, int W, gate_by BY, keep KEEP>
static cudaError_t backward_by(cudaStream_t stream, const backward_params<T> &p)
{
    dim3 sums(p.sums.tiles, p.sums.splits, 1u);
    dim3 apply(p.apply.tiles, p.apply.splits, 1u);
    cudaError_t code =
        REN_LAUNCH((backward_sum_kernel<T, W, BY, KEEP>), sums, REN_COLUMN_THREADS, stream, p);
    if (code != cudaSuccess) {
        return code;
    }
    if (KEEP == KEEP_NONE) {
        return REN_LAUNCH((backward_data_kernel<T, W, BY>), apply, REN_COLUMN_THREADS, stream, p);
    }
    backward_params<T> rest = p;
    rest.dy = p.kept;
    return REN_LAUNCH((backward_data_kernel<T, W, GATE_NONE>), apply, REN_COLUMN_THREADS, stream,
                      rest);
}

template <typename T, int W, gate_by BY>
static cudaError_t backward_kept(cudaStream_t stream, const backward_params<T> &p)
{
    return p.more     ? backward_by<T, W, BY, KEEP_TWO>(stream, p)
           : p.dother ? backward_by<T, W, BY, KEEP_ONE>(stream, p)
                      : backward_by<T, W, BY, KEEP_NONE>(stream, p);
}

template <typename T, int W>
static cudaError_t backward_any(cudaStream_t stream, const backward_params<T> &p)
{
    return p.y      ? backward_kept<T, W, GATE_Y>(stream, p)
           : p.bias ? backward_kept<T, W, GATE_BIAS>(stream, p)
                    : backward_by<T, W, GATE_NONE, KEEP_NONE>(stream, p);
}

template <typename T>
static cudaError_t backward(cudaStream_t stream, const ren__norm_backward *b, void *partial)
{
    const int W = ren__wide<T>::width;
    int wide = b->channels % (uint64_t)W == 0 && ren__aligned16(b->dy) && ren__aligned16(b->x) &&
               ren__aligned16(b->dx) && ren__aligned16(b->y) && ren__aligned16(b->dother) &&
               ren__aligned16(b->more);
    uint32_t width = wide ? (uint32_t)W : 1u;
    backward_params<T> p;
    p.dy = (const T *)b->dy;
    p.more = (const T *)b->more;
    p.x = (const T *)b->x;
    p.y = (const T *)b->y;
    p.dx = (T *)b->dx;
    p.dother = (T *)b->dother;
    p.kept = p.dother ? p.dother : p.dx;
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
    if (b->rows <= FEW_ROWS) {
        return REN_LAUNCH(few_kernel<T>, ren__blocks(b->channels, REN_WARP, UINT32_MAX),
                          FEW_LANES * REN_WARP, stream, p);
    }
    return wide ? backward_any<T, W>(stream, p) : backward_any<T, 1>(stream, p);
}

cudaError_t ren__cuda_k_norm_backward(cudaStream_t stream, const ren__norm_backward *b,
                                      void *partial)
{
    return REN_DISPATCH(b->dtype, backward, stream, b, partial);
}
