/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/columns.cu - bias gradients: sums over the rows of a matrix.
 *
 * Purpose   A bias gradient by itself, and the backward pass of an activation that gives the bias
 *           gradient of the layer before it in the same reading.
 * Shape     see columns.cuh. With more than one split a second kernel joins them.
 */
#include "activation.cuh"
#include "columns.cuh"

#define BLOCKS 264u /* of the first pass, by aim: two for each multiprocessor of an H200 */
#define LEAST  4u

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

template <typename T, int W>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS) column_sum_kernel(sum_params<T> p)
{
    __shared__ float shared[REN_COLUMN_SHARED(1)];
    ren__stand s = ren__stand_of<W>(p.tiles, p.rows, p.channels);
    float sum[W] = {0.0f};
    for (uint64_t row = s.row; row < s.end; row += (uint64_t)s.step * REN_UNROLL) {
        ren__pack<T, W> g[REN_UNROLL];
        ren__pack<T, W> at[REN_UNROLL];
#pragma unroll
        for (int u = 0; u < REN_UNROLL; u++) {
            uint64_t r = row + (uint64_t)u * s.step;
            if (r < s.end) {
                g[u] = ren__read<T, W>(p.dy, r * p.channels + s.channel);
                if (p.at) {
                    at[u] = ren__read<T, W>(p.at, r * p.channels + s.channel);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < REN_UNROLL; u++) {
            uint64_t r = row + (uint64_t)u * s.step;
            float v[W];
            if (r >= s.end) {
                break;
            }
            ren__unpack<T, W>(g[u], v);
            if (p.at) {
                float of[W];
                ren__unpack<T, W>(at[u], of);
                ren__act_slopes<W>(p.activation, p.alpha, of, v);
                ren__write<T, W>(p.dx, r * p.channels + s.channel, v);
            }
#pragma unroll
            for (int k = 0; k < W; k++) {
                sum[k] += v[k];
            }
        }
    }
    ren__column_sums<W>(sum, p.tiles.side, shared);
    if (s.lane == 0) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            if (s.channel + (uint64_t)k < p.channels) {
                p.partial[blockIdx.y * p.channels + s.channel + (uint64_t)k] = sum[k];
            }
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

/* The scratch must not depend on addresses: room for the more splits of the two walks. */
uint64_t ren__cuda_k_column_sum_scratch(ren_dtype dtype, uint64_t rows, uint64_t channels)
{
    uint32_t width = dtype == REN_F32 ? 4u : 8u;
    uint32_t wide = ren__tiles_of(rows, channels, width, BLOCKS, LEAST).splits;
    uint32_t narrow = ren__tiles_of(rows, channels, 1u, BLOCKS, LEAST).splits;
    uint32_t most = wide > narrow ? wide : narrow;
    return most == 1u ? 0u : most * channels * sizeof(float);
}

template <typename T>
static cudaError_t column_sum(cudaStream_t stream, const ren__column_sum *c, void *partial)
{
    const int W = ren__wide<T>::width;
    const void *at = c->dx ? (ren__slope_reads_y(c->activation) ? c->y : c->x) : NULL;
    int wide = is_wide(c->dy, at, c->dx, c->channels, (uint32_t)W);
    ren__tiles t = ren__tiles_of(c->rows, c->channels, wide ? (uint32_t)W : 1u, BLOCKS, LEAST);
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
    cudaError_t code =
        wide ? REN_LAUNCH((column_sum_kernel<T, W>), grid, REN_COLUMN_THREADS, stream, p)
             : REN_LAUNCH((column_sum_kernel<T, 1>), grid, REN_COLUMN_THREADS, stream, p);
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
