/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/columns.cu - bias gradients: sums over the rows of a matrix.
 *
 * Purpose   A bias gradient by itself, and the backward pass of an activation that gives the bias
 *           gradient of the layer before it in the same reading.
 * Shape     see columns.cuh. A matrix of few rows takes one launch of narrow tiles; with splits a
 *           second kernel joins them.
 */
#include "activation.cuh"
#include "columns.cuh"

#define BLOCKS 264u /* of the first pass, by aim: two for each multiprocessor of an H200 */
#define LEAST  4u   /* packs of a thread, when the rows are split */
#define MOST   8u   /* packs of a thread, when one split is to do */

template <typename T> struct sum_params {
    const T *dy;
    const T *at;    /* with an activation: where its slope is taken from */
    T *dx;          /* the gradient that is summed, when it is not dy itself */
    float *partial; /* [splits][channels]; the sums themselves when there is one split */
    ren__tiles tiles;
    uint64_t rows, channels;
    ren__activation activation;
    float alpha;
};

typedef struct join_params {
    const float *partial;
    float *sums;
    uint64_t channels;
    uint32_t splits;
} join_params;

template <typename T, int W, bool HAS_ACT>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS, 2) column_sum_kernel(sum_params<T> p)
{
    const int U = HAS_ACT ? REN_UNROLL / 2 : REN_UNROLL;
    __shared__ float shared[REN_COLUMN_SHARED(1)];
    ren__stand s = ren__stand_of<W>(p.tiles, p.rows, p.channels);
    float sum[W] = {0.0f};
    for (uint32_t i = 0; i < s.count; i += U) {
        ren__pack<T, W> g[U];
        ren__pack<T, W> at[U];
        ren__read_some<T, W, U>(p.dy, s, i, g);
        if (HAS_ACT) {
            ren__read_some<T, W, U>(p.at, s, i, at);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (i + (uint32_t)u < s.count) {
                float v[W];
                ren__unpack<T, W>(g[u], v);
                if (HAS_ACT) {
                    float of[W];
                    ren__unpack<T, W>(at[u], of);
                    ren__act_slopes<W>(p.activation, p.alpha, of, v);
                    ren__write<T, W>(p.dx, ren__place(s, i + (uint32_t)u), v);
                }
#pragma unroll
                for (int k = 0; k < W; k++) {
                    sum[k] += v[k];
                }
            }
        }
    }
    ren__column_sums<W>(sum, p.tiles.side, shared);
    if (s.lane == 0 && s.channel < p.channels) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            p.partial[blockIdx.y * p.channels + s.channel + (uint64_t)k] = sum[k];
        }
    }
}

/* 32 columns to a block, 8 threads to a column. */
static __global__ void column_join_kernel(join_params p)
{
    __shared__ float shared[8][REN_WARP];
    uint32_t column = threadIdx.x % REN_WARP;
    uint32_t lane = threadIdx.x / REN_WARP;
    uint64_t channel = (uint64_t)blockIdx.x * REN_WARP + column;
    float sum = 0.0f;
    if (channel < p.channels) {
        for (uint32_t k = lane; k < p.splits; k += 8u) {
            sum += p.partial[k * p.channels + channel];
        }
    }
    shared[lane][column] = sum;
    __syncthreads();
    if (lane == 0 && channel < p.channels) {
        for (uint32_t k = 1; k < 8u; k++) {
            sum += shared[k][column];
        }
        p.sums[channel] = sum;
    }
}

static int is_wide(const void *dy, const void *at, const void *dx, uint64_t channels,
                   uint32_t width)
{
    return channels % width == 0 && ren__aligned16(dy) && ren__aligned16(at) && ren__aligned16(dx);
}

static ren__tiles tiles_for(uint64_t rows, uint64_t channels, uint32_t width)
{
    ren__tiles t;
    return ren__tiles_whole(rows, channels, width, MOST, &t)
               ? t
               : ren__tiles_of(rows, channels, width, BLOCKS, LEAST);
}

/* The scratch must not depend on addresses: room for the more splits of the two walks. */
uint64_t ren__cuda_k_column_sum_scratch(ren_dtype dtype, uint64_t rows, uint64_t channels)
{
    uint32_t wide = tiles_for(rows, channels, dtype == REN_F32 ? 4u : 8u).splits;
    uint32_t narrow = tiles_for(rows, channels, 1u).splits;
    uint32_t most = wide > narrow ? wide : narrow;
    return most == 1u ? 0u : most * channels * sizeof(float);
}

template <typename T, int W>
static cudaError_t sum_any(cudaStream_t stream, dim3 grid, const sum_params<T> &p)
{
    return p.dx ? REN_LAUNCH((column_sum_kernel<T, W, true>), grid, REN_COLUMN_THREADS, stream, p)
                : REN_LAUNCH((column_sum_kernel<T, W, false>), grid, REN_COLUMN_THREADS, stream, p);
}

template <typename T>
static cudaError_t column_sum(cudaStream_t stream, const ren__column_sum *c, void *partial)
{
    const int W = ren__wide<T>::width;
    const void *at = c->dx ? (ren__slope_reads_y(c->activation) ? c->y : c->x) : NULL;
    int wide = is_wide(c->dy, at, c->dx, c->channels, (uint32_t)W);
    ren__tiles t = tiles_for(c->rows, c->channels, wide ? (uint32_t)W : 1u);
    sum_params<T> p = {(const T *)c->dy,
                       (const T *)at,
                       (T *)c->dx,
                       t.splits == 1u ? c->sums : (float *)partial,
                       t,
                       c->rows,
                       c->channels,
                       c->activation,
                       c->alpha};
    join_params join = {(const float *)partial, c->sums, c->channels, t.splits};
    dim3 grid(t.tiles, t.splits, 1u);
    cudaError_t code = wide ? sum_any<T, W>(stream, grid, p) : sum_any<T, 1>(stream, grid, p);
    if (code == cudaSuccess && t.splits > 1u) {
        code = REN_LAUNCH(column_join_kernel, ren__blocks(c->channels, REN_WARP, UINT32_MAX),
                          8u * REN_WARP, stream, join);
    }
    return code;
}

cudaError_t ren__cuda_k_column_sum(cudaStream_t stream, const ren__column_sum *c, void *partial)
{
    return REN_DISPATCH(c->dtype, column_sum, stream, c, partial);
}
