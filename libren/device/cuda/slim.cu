/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/slim.cu - weight and bias gradients of a linear layer with few outputs.
 *
 * Purpose   dW[O,I] = dy[N,O]^T x[N,I] and db[O] = the sum of dy's rows, for O up to SLIM_MOST:
 *           the last layer of most networks. The library's tiles are wider than such a matrix and
 *           its rows of 16-bit floats lie badly: N = 16,384, I = 64, O = 10 takes it 14 us in f16
 *           and 719 us more for the bias (H200, cuBLASLt 13.1).
 * Shape     A block takes 64 columns of x (32 where they cannot be read in pairs) and a range of
 *           rows, a warp takes every eighth row of it: each of its threads keeps the sums of one or
 *           two columns for all outputs, and the row of dy goes round by shuffles. Both x and dy
 *           are read once for 64 columns.
 * Order     warps of a block in turn, then the ranges of rows in turn: it depends on the shape
 *           alone. The ranges are joined by the last block (ticket.c) where they are few, else by
 *           a second launch.
 */
#include "pack.cuh"

#define WARPS     8u
#define THREADS   (WARPS * REN_WARP)
#define ROWS      16u   /* of a warp, by aim */
#define MOST      128u  /* ranges of rows */
#define AT_ONCE   4     /* rows whose loads are under way together */
#define FEW_PARTS 8192u /* numbers that one block may join */
#define JOINERS   8u    /* threads to a number in the second launch */

template <typename T> struct slim_params {
    const T *dy;
    const T *x;
    float *dw;
    float *db;        /* may be NULL */
    float *partial;   /* [ranges][outputs * inputs + outputs] */
    uint32_t *ticket; /* NULL: see join_kernel */
    uint64_t rows, range;
    uint32_t inputs, outputs, ranges;
};

typedef struct slim_join {
    const float *partial;
    float *dw, *db;
    uint32_t weights, numbers, ranges; /* numbers: of a range */
} slim_join;

static __device__ __forceinline__ void put(const slim_join &j, uint32_t i, float sum)
{
    if (i < j.weights) {
        j.dw[i] = sum;
    } else if (j.db) {
        j.db[i - j.weights] = sum;
    }
}

static __device__ __forceinline__ void join_here(const slim_join &j)
{
    for (uint32_t i = threadIdx.x; i < j.numbers; i += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < j.ranges; k++) {
            sum += __ldcg(j.partial + (uint64_t)k * j.numbers + i);
        }
        put(j, i, sum);
    }
}

/* 32 numbers to a block. */
static __global__ void join_kernel(slim_join j)
{
    __shared__ float shared[JOINERS][REN_WARP];
    uint32_t lane = threadIdx.x % REN_WARP;
    uint32_t joiner = threadIdx.x / REN_WARP;
    uint32_t i = blockIdx.x * REN_WARP + lane;
    float sum = 0.0f;
    for (uint32_t k = joiner; k < j.ranges && i < j.numbers; k += JOINERS) {
        sum += j.partial[(uint64_t)k * j.numbers + i];
    }
    shared[joiner][lane] = sum;
    __syncthreads();
    if (joiner == 0 && i < j.numbers) {
        for (uint32_t k = 1; k < JOINERS; k++) {
            sum += shared[k][lane];
        }
        put(j, i, sum);
    }
}

template <typename T> static __device__ __forceinline__ slim_join join_of(const slim_params<T> &p)
{
    slim_join j;
    j.partial = p.partial;
    j.dw = p.dw;
    j.db = p.db;
    j.weights = p.outputs * p.inputs;
    j.numbers = j.weights + p.outputs;
    j.ranges = p.ranges;
    return j;
}

/* The sums of a warp's rows: of W columns from `column` for each output, and of dy's own column
 * `lane`. */
template <typename T, int W>
static __device__ __forceinline__ void sum_rows(const slim_params<T> &p, uint32_t column,
                                                float sums[SLIM_MOST][W], float *of_dy)
{
    uint32_t lane = threadIdx.x % REN_WARP;
    uint64_t begin = blockIdx.y * p.range;
    uint64_t end = begin + p.range < p.rows ? begin + p.range : p.rows;
    bool reads = column < p.inputs;
    for (uint64_t row = begin + threadIdx.x / REN_WARP; row < end; row += AT_ONCE * WARPS) {
        float x[AT_ONCE][W];
        float dy[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            uint64_t r = row + (uint64_t)u * WARPS;
            dy[u] = r < end && lane < p.outputs ? ren__widen(p.dy[r * p.outputs + lane]) : 0.0f;
#pragma unroll
            for (int w = 0; w < W; w++) {
                x[u][w] = 0.0f;
            }
            if (r < end && reads) {
                ren__unpack<T, W>(ren__read<T, W>(p.x, r * p.inputs + column), x[u]);
            }
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            *of_dy += dy[u];
#pragma unroll
            for (uint32_t o = 0; o < SLIM_MOST; o++) {
                if (o < p.outputs) { /* the same for all threads */
                    float g = __shfl_sync(0xffffffffu, dy[u], (int)o);
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        sums[o][w] += g * x[u][w];
                    }
                }
            }
        }
    }
}

template <typename T, int W>
static __global__ void __launch_bounds__(THREADS) slim_kernel(slim_params<T> p)
{
    __shared__ float shared[WARPS][SLIM_MOST * REN_WARP * W];
    __shared__ float shared_dy[WARPS][REN_WARP];
    const uint32_t width = REN_WARP * W;
    uint32_t lane = threadIdx.x % REN_WARP;
    uint32_t warp = threadIdx.x / REN_WARP;
    uint32_t first = blockIdx.x * width;
    float sums[SLIM_MOST][W] = {{0.0f}};
    float of_dy = 0.0f;
    slim_join j = join_of<T>(p);
    /* With one range the parts are the result. */
    float *out = p.ranges == 1u ? p.dw : p.partial + (uint64_t)blockIdx.y * j.numbers;
    float *out_dy = p.ranges == 1u ? p.db : out + j.weights;
    sum_rows<T, W>(p, first + lane * W, sums, &of_dy);
#pragma unroll
    for (uint32_t o = 0; o < SLIM_MOST; o++) {
#pragma unroll
        for (int w = 0; w < W; w++) {
            shared[warp][o * width + lane * W + w] = sums[o][w];
        }
    }
    shared_dy[warp][lane] = of_dy;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.outputs * width; i += blockDim.x) {
        uint32_t column = first + i % width;
        float sum = shared[0][i];
        for (uint32_t k = 1; k < WARPS; k++) {
            sum += shared[k][i];
        }
        if (column < p.inputs) {
            out[(uint64_t)(i / width) * p.inputs + column] = sum;
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < p.outputs && out_dy) {
        float sum = shared_dy[0][threadIdx.x];
        for (uint32_t k = 1; k < WARPS; k++) {
            sum += shared_dy[k][threadIdx.x];
        }
        out_dy[threadIdx.x] = sum;
    }
    if (p.ticket && ren__is_last_block(p.ticket)) {
        join_here(j);
    }
}

/* ------------------------------------------------------------------ launch */

static uint32_t ranges_of(uint64_t rows)
{
    return ren__blocks(rows, WARPS * ROWS, MOST);
}

static uint64_t numbers_of(const ren__slim *n)
{
    return n->outputs * n->inputs + n->outputs;
}

uint64_t ren__cuda_k_slim_scratch(const ren__slim *n)
{
    uint32_t ranges = ranges_of(n->rows);
    return ranges == 1u ? 0u : ranges * numbers_of(n) * sizeof(float);
}

int ren__cuda_k_slim_takes(uint64_t inputs, uint64_t outputs)
{
    return outputs <= SLIM_MOST && inputs < UINT32_MAX / SLIM_MOST;
}

template <typename T>
static cudaError_t slim(cudaStream_t stream, const ren__slim *n, void *partial)
{
    int pairs = n->inputs % 2u == 0 && ren__aligned16(n->x);
    uint32_t width = REN_WARP * (pairs ? 2u : 1u);
    slim_params<T> p;
    slim_join j;
    cudaError_t code;
    p.dy = (const T *)n->dy;
    p.x = (const T *)n->x;
    p.dw = n->dw;
    p.db = n->db;
    p.partial = (float *)partial;
    p.rows = n->rows;
    p.inputs = (uint32_t)n->inputs;
    p.outputs = (uint32_t)n->outputs;
    p.ranges = ranges_of(n->rows);
    p.range = (n->rows + p.ranges - 1u) / p.ranges;
    p.ticket = p.ranges > 1u && p.ranges * numbers_of(n) <= FEW_PARTS ? n->ticket : NULL;
    {
        dim3 grid(ren__blocks(n->inputs, width, UINT32_MAX), p.ranges, 1u);
        code = pairs ? REN_LAUNCH((slim_kernel<T, 2>), grid, THREADS, stream, p)
                     : REN_LAUNCH((slim_kernel<T, 1>), grid, THREADS, stream, p);
    }
    if (code != cudaSuccess || p.ranges == 1u || p.ticket) {
        return code;
    }
    j.partial = p.partial;
    j.dw = p.dw;
    j.db = p.db;
    j.weights = p.outputs * p.inputs;
    j.numbers = (uint32_t)numbers_of(n);
    j.ranges = p.ranges;
    return REN_LAUNCH(join_kernel, ren__blocks(j.numbers, REN_WARP, UINT32_MAX), JOINERS * REN_WARP,
                      stream, j);
}

cudaError_t ren__cuda_k_slim(cudaStream_t stream, const ren__slim *n, void *partial)
{
    return REN_DISPATCH(n->dtype, slim, stream, n, partial);
}
