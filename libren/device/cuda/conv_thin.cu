/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/conv_thin.cu - convolutions over few input channels.
 *
 * Purpose   A network's first layer has one or three channels, so an output is a sum of few
 *           products: kernel area times channels, its taps, at most THIN_TAPS. The library pads
 *           such a layer to what tensor cores take. Here it is computed in f32: forward from f32,
 *           and a gradient of weights from any of the three dtypes. H200, against the library's
 *           best engine, us:  lenet28's conv1, batch 128: forward 11 against 14 (TF32), gradient 21
 *           against 38 (TF32), 25 against 34 (f16). From halves the library's forward engines are
 *           faster.
 * Tiles     A block goes over tiles of TILE output pixels, gathers a tile's taps into shared memory
 *           while it computes the one before, and a thread keeps a few sums in registers.
 *             forward  4 pixels by 4 outputs in a thread; weights stay in shared memory
 *             weight   4 outputs by TAPS / 4 taps in a thread, over a fourth of the tile's pixels
 * Order     A weight's gradient is summed over a block's pixels, then over the blocks, whose number
 *           depends on the shape alone; so results repeat bit for bit.
 * Memory    weight: a partial sum for each block, of ren__cuda_k_thin_scratch bytes.
 */
#include "pack.cuh"

#define THIN_TAPS   32
#define TILE        64 /* pixels, and outputs */
#define PITCH       (TILE + 4)
#define PARTS       4  /* of a tile's pixels, in the weight kernel */
#define SLICES      16 /* of the blocks, in their sum */
#define SUMMED      16 /* weights to a block of it */
#define MOST_BLOCKS 264u

typedef struct thin_params {
    ren__conv_shape s;
    const void *x, *dy;
    const float *w, *bias;
    float *y, *partial, *dw;
    int taps, pixels, tiles;
    int relu;
    int vector; /* outputs can be read and written four at a time */
    int blocks; /* of the weight kernel */
} thin_params;

/* Taps as offsets from an output pixel's place in the input; in shared memory. */
typedef struct tap_table {
    int h[THIN_TAPS], w[THIN_TAPS], at[THIN_TAPS];
} tap_table;

static __device__ __forceinline__ void fill_taps(const thin_params *p, tap_table *table)
{
    const ren__conv_shape *s = &p->s;
    int k = (int)threadIdx.x;
    if (k < p->taps) {
        int area = k / s->c;
        int h = area / s->kw * s->dh - s->ph;
        int w = area % s->kw * s->dw - s->pw;
        table->h[k] = h;
        table->w[k] = w;
        table->at[k] = (h * s->w + w) * s->c + k % s->c;
    }
}

/* A thread gathers taps first, first + 4, .. of one pixel, where first = thread / TILE. Those that
 * lie in the padding, or behind the last pixel, are 0. */
template <typename T>
static __device__ __forceinline__ void gather(const thin_params *p, const tap_table *table,
                                              int tile, T out[THIN_TAPS / PARTS])
{
    const ren__conv_shape *s = &p->s;
    uint32_t pixel = (uint32_t)(tile * TILE) + threadIdx.x % TILE;
    uint32_t row = pixel / (uint32_t)s->wo;
    uint32_t n = row / (uint32_t)s->ho;
    int h = (int)(row - n * (uint32_t)s->ho) * s->sh;
    int w = (int)(pixel - row * (uint32_t)s->wo) * s->sw;
    int base = (((int)n * s->h + h) * s->w + w) * s->c;
#pragma unroll
    for (int i = 0; i < THIN_TAPS / PARTS; i++) {
        int k = (int)threadIdx.x / TILE + i * PARTS;
        out[i] = T(0.0f);
        if (k < p->taps && (int)pixel < p->pixels && (uint32_t)(h + table->h[k]) < (uint32_t)s->h &&
            (uint32_t)(w + table->w[k]) < (uint32_t)s->w) {
            out[i] = ((const T *)p->x)[base + table->at[k]];
        }
    }
}

/* Widened only here, so that nothing waits for the reads before. */
template <typename T>
static __device__ __forceinline__ void put_taps(const T in[THIN_TAPS / PARTS],
                                                float patch[THIN_TAPS][PITCH])
{
#pragma unroll
    for (int i = 0; i < THIN_TAPS / PARTS; i++) {
        patch[threadIdx.x / TILE + i * PARTS][threadIdx.x % TILE] = ren__widen(in[i]);
    }
}

/* ------------------------------------------------------------------ forward */

static __device__ __forceinline__ void store_pixel(const thin_params *p, int pixel, int o,
                                                   const float sums[4], const float bias[4])
{
    float *at = p->y + (size_t)pixel * (size_t)p->s.o + o;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = sums[i] + bias[i];
        v[i] = p->relu && v[i] < 0.0f ? 0.0f : v[i];
    }
    if (p->vector && o + 4 <= p->s.o) {
        ren__write<float, 4>(at, 0, v);
        return;
    }
    for (int i = 0; i < 4 && o + i < p->s.o; i++) {
        at[i] = v[i];
    }
}

static __global__ void __launch_bounds__(256) forward_kernel(thin_params p)
{
    __shared__ __align__(16) float weights[THIN_TAPS][TILE];
    __shared__ __align__(16) float patch[THIN_TAPS][PITCH];
    __shared__ tap_table table;
    int first = (int)blockIdx.y * TILE;
    int o = (int)threadIdx.x % 16 * 4;
    int px = (int)threadIdx.x / 16 * 4;
    float ahead[THIN_TAPS / PARTS];
    float bias[4];
    fill_taps(&p, &table);
    for (int i = (int)threadIdx.x; i < p.taps * TILE; i += (int)blockDim.x) {
        int of = i / p.taps;
        weights[i - of * p.taps][of] = first + of < p.s.o ? p.w[first * p.taps + i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = first + o + i;
        bias[i] = p.bias && at < p.s.o ? p.bias[at] : 0.0f;
    }
    __syncthreads();
    gather<float>(&p, &table, (int)blockIdx.x, ahead);
    for (int tile = (int)blockIdx.x; tile < p.tiles; tile += (int)gridDim.x) {
        float sums[4][4] = {};
        __syncthreads(); /* the tile before is read */
        put_taps<float>(ahead, patch);
        __syncthreads();
        if (tile + (int)gridDim.x < p.tiles) {
            gather<float>(&p, &table, tile + (int)gridDim.x, ahead);
        }
#pragma unroll 3
        for (int k = 0; k < p.taps; k++) {
            float4 x = *(const float4 *)&patch[k][px];
            float4 w = *(const float4 *)&weights[k][o];
            const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[i][0] += xs[i] * w.x;
                sums[i][1] += xs[i] * w.y;
                sums[i][2] += xs[i] * w.z;
                sums[i][3] += xs[i] * w.w;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int pixel = tile * TILE + px + i;
            if (pixel < p.pixels) {
                store_pixel(&p, pixel, first + o, sums[i], bias);
            }
        }
    }
}

/* ------------------------------------------------------------------ weight gradient */

/* Outputs first..first+3 of one pixel's gradient. */
template <typename T>
static __device__ __forceinline__ ren__pack<T, 4> load_gradient(const thin_params *p, int pixel,
                                                                int first)
{
    const T *at = (const T *)p->dy + (size_t)pixel * (size_t)p->s.o + first;
    ren__pack<T, 4> out;
    if (pixel < p->pixels && first + 4 <= p->s.o && p->vector) {
        return ren__read<T, 4>(at, 0);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out.v[i] = T(0.0f);
        if (pixel < p->pixels && first + i < p->s.o) {
            out.v[i] = at[i];
        }
    }
    return out;
}

/* TAPS: 16 or 32, at least p.taps. Four pixels at a time, so that every read of shared memory is of
 * 16 bytes. */
template <typename T, int TAPS>
static __global__ void __launch_bounds__(256, 2) weight_kernel(thin_params p)
{
    __shared__ __align__(16) float gradient[TILE][TILE];
    __shared__ __align__(16) float patch[THIN_TAPS][PITCH];
    __shared__ tap_table table;
    float(*total)[TAPS] = (float(*)[TAPS])gradient; /* of the parts, at the end */
    int first = (int)blockIdx.y * TILE;
    int o = (int)threadIdx.x % 16 * 4;
    int k = (int)threadIdx.x / 16 % 4; /* and k + 4, ..: two of a warp read different banks */
    int part = (int)threadIdx.x / TILE;
    int row = (int)threadIdx.x / 16;
    float sums[4][TAPS / 4] = {};
    T ahead[THIN_TAPS / PARTS];
    ren__pack<T, 4> rows[4];
    fill_taps(&p, &table);
    __syncthreads();
    gather<T>(&p, &table, (int)blockIdx.x, ahead);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        rows[i] = load_gradient<T>(&p, (int)blockIdx.x * TILE + row + 16 * i, first + o);
    }
    for (int tile = (int)blockIdx.x; tile < p.tiles; tile += p.blocks) {
        __syncthreads(); /* the tile before is read */
        put_taps<T>(ahead, patch);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v[4];
            ren__unpack<T, 4>(rows[i], v);
            ren__write<float, 4>(gradient[row + 16 * i], (uint64_t)o, v);
        }
        __syncthreads();
        if (tile + p.blocks < p.tiles) {
            gather<T>(&p, &table, tile + p.blocks, ahead);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                rows[i] = load_gradient<T>(&p, (tile + p.blocks) * TILE + row + 16 * i, first + o);
            }
        }
#pragma unroll 1
        for (int px = part * (TILE / PARTS); px < (part + 1) * (TILE / PARTS); px += 4) {
            float4 dy[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dy[i] = *(const float4 *)&gradient[px + i][o];
            }
#pragma unroll
            for (int j = 0; j < TAPS / 4; j++) {
                float4 x = *(const float4 *)&patch[k + 4 * j][px];
                const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sums[0][j] += dy[i].x * xs[i];
                    sums[1][j] += dy[i].y * xs[i];
                    sums[2][j] += dy[i].z * xs[i];
                    sums[3][j] += dy[i].w * xs[i];
                }
            }
        }
    }
    for (int turn = 0; turn < PARTS; turn++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < TAPS / 4; j++) {
                if (part == turn) {
                    total[o + i][k + 4 * j] = sums[i][j] + (turn ? total[o + i][k + 4 * j] : 0.0f);
                }
            }
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < TILE * p.taps; i += (int)blockDim.x) {
        int of = i / p.taps;
        if (first + of < p.s.o) {
            p.partial[((size_t)blockIdx.x * (size_t)p.s.o + (size_t)(first + of)) * (size_t)p.taps +
                      (size_t)(i - of * p.taps)] = total[of][i - of * p.taps];
        }
    }
}

/* The sum over the blocks. */
static __global__ void sum_kernel(thin_params p)
{
    __shared__ float sums[SLICES][SUMMED];
    int weights = p.s.o * p.taps;
    int lane = (int)threadIdx.x % SUMMED;
    int slice = (int)threadIdx.x / SUMMED;
    int at = (int)blockIdx.x * SUMMED + lane;
    float sum = 0.0f;
    if (at < weights) {
#pragma unroll 8
        for (int b = slice; b < p.blocks; b += SLICES) {
            sum += p.partial[(size_t)b * (size_t)weights + (size_t)at];
        }
    }
    sums[slice][lane] = sum;
    __syncthreads();
    if (slice == 0 && at < weights) {
        for (int i = 1; i < SLICES; i++) {
            sum += sums[i][lane];
        }
        p.dw[at] = sum;
    }
}

/* ------------------------------------------------------------------ launchers */

static thin_params params_of(const ren__conv_shape *s)
{
    thin_params p = {};
    p.s = *s;
    p.taps = s->kh * s->kw * s->c;
    p.pixels = s->n * s->ho * s->wo;
    p.tiles = (p.pixels + TILE - 1) / TILE;
    p.vector = s->o % 4 == 0;
    p.blocks = p.tiles < (int)MOST_BLOCKS ? p.tiles : (int)MOST_BLOCKS;
    return p;
}

int ren__cuda_k_thin_takes(const ren__conv_shape *s)
{
    const int64_t most = INT32_MAX - TILE;
    return s->groups == 1 && (int64_t)s->kh * s->kw * s->c <= THIN_TAPS &&
           (int64_t)s->n * s->ho * s->wo <= most && (int64_t)s->n * s->h * s->w * s->c <= most;
}

uint64_t ren__cuda_k_thin_scratch(const ren__conv_shape *s)
{
    thin_params p = params_of(s);
    return (uint64_t)p.blocks * (uint64_t)s->o * (uint64_t)p.taps * sizeof(float);
}

cudaError_t ren__cuda_k_thin_forward(cudaStream_t stream, const ren__conv_shape *s, const float *x,
                                     const float *w, const float *bias, int relu, float *y)
{
    thin_params p = params_of(s);
    dim3 grid(ren__blocks((uint64_t)p.tiles, 1u, 2u * MOST_BLOCKS),
              (uint32_t)(s->o + TILE - 1) / TILE);
    p.x = x;
    p.w = w;
    p.bias = bias;
    p.relu = relu;
    p.y = y;
    p.vector = p.vector && ren__aligned16(y);
    return REN_LAUNCH(forward_kernel, grid, REN_THREADS, stream, p);
}

template <typename T> static cudaError_t launch_weight(cudaStream_t stream, const thin_params &p)
{
    dim3 grid((uint32_t)p.blocks, (uint32_t)(p.s.o + TILE - 1) / TILE);
    if (p.taps <= 16) {
        return REN_LAUNCH((weight_kernel<T, 16>), grid, REN_THREADS, stream, p);
    }
    return REN_LAUNCH((weight_kernel<T, 32>), grid, REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_thin_weight(cudaStream_t stream, const ren__conv_shape *s, ren_dtype type,
                                    const void *dy, const void *x, float *dw, void *partial)
{
    thin_params p = params_of(s);
    cudaError_t code;
    p.x = x;
    p.dy = dy;
    p.dw = dw;
    p.partial = (float *)partial;
    p.vector = p.vector && ren__aligned16(dy);
    code = REN_DISPATCH(type, launch_weight, stream, p);
    if (code == cudaSuccess) {
        code = REN_LAUNCH(sum_kernel, (uint32_t)(s->o * p.taps + SUMMED - 1) / SUMMED,
                          SLICES * SUMMED, stream, p);
    }
    return code;
}
