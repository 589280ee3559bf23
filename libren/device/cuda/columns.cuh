/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/columns.cuh - walking over a matrix [rows, channels] and summing its columns.
 *
 * Purpose   The bias gradient and batch norm see an NHWC tensor as a matrix of N H W rows. What
 *           they share is here: which thread reads what, and sums down the columns.
 * Shape     A block covers `side` packs of a row (see pack.cuh), at most 64 channels, and reads
 *           threads / side rows at once. Both are powers of two, so that a thread's column is
 *           fixed, a warp holds whole rows, or half of one, and no division is needed. The grid is
 *           [tiles, splits]: tiles lie side by side, and each split has its own range of rows.
 * Order     All of it depends on the shape and the alignment of addresses alone. A sum over the
 *           rows of a block adds a thread's own rows in order, then the threads of a warp by
 *           halving distances, then the warps in order; sums of splits are joined the same way.
 * Size      A block of a small tensor runs through a kernel's code once, and reading the code is
 *           then most of its time: about 0.2 us for 1,000 bytes on an H200. So loops that are not
 *           over a pack stay loops, and what a division gives comes from the host.
 */
#ifndef REN_DEVICE_CUDA_COLUMNS_CUH
#define REN_DEVICE_CUDA_COLUMNS_CUH

#include "pack.cuh"

#define REN_COLUMN_THREADS 512u /* most of a block */
#define REN_COLUMN_LOG     9u
#define REN_COLUMN_FEW_LOG 8u  /* of a block, when few splits will do */
#define REN_COLUMN_FEW     32u /* such splits */
#define REN_COLUMN_WARPS   (REN_COLUMN_THREADS / REN_WARP)
#define REN_TILE           64u /* most channels of a block */
#define REN_UNROLL         4   /* packs that a thread has under way */
#define REN_NARROW         32u /* least bytes of a tile's row, in 16-bit floats */

/* Floats of shared memory that sums need, for each value of a channel. */
#define REN_COLUMN_SHARED(values) (REN_COLUMN_WARPS * REN_TILE * (values))

typedef struct ren__tiles {
    uint32_t side_log;   /* packs of a row that a block covers, as a power of two */
    uint32_t thread_log; /* threads of a block, as a power of two */
    uint32_t tiles;      /* blocks side by side */
    uint32_t splits;     /* blocks one below the other */
    uint64_t rows;       /* of each split but the last */
} ren__tiles;

/* Blocks of all rows, so that no second kernel need join splits: as wide as leaves a thread at most
 * `most` packs. 0 when only tiles too narrow to read well do that. */
static inline int ren__tiles_whole(uint64_t rows, uint64_t channels, uint32_t width, uint32_t most,
                                   ren__tiles *out)
{
    uint64_t packs = (channels + width - 1u) / width;
    uint64_t held = (uint64_t)REN_COLUMN_THREADS * most;
    uint32_t log = 0;
    while ((width << (log + 1u)) <= REN_TILE && (1u << log) < packs && rows << (log + 1u) <= held) {
        log++;
    }
    out->side_log = log;
    out->thread_log = REN_COLUMN_LOG;
    out->tiles = (uint32_t)((packs + (1u << log) - 1u) >> log);
    out->splits = 1u;
    out->rows = rows;
    return (width << (log + 1u)) >= REN_NARROW && rows << log <= held;
}

/* Blocks for a matrix: at most about `blocks`, each thread with at least `least` packs while there
 * is more than one split. width: elements of a pack. */
static inline ren__tiles ren__tiles_of(uint64_t rows, uint64_t channels, uint32_t width,
                                       uint32_t blocks, uint32_t least)
{
    ren__tiles t;
    uint64_t packs = (channels + width - 1u) / width;
    uint64_t most;
    uint64_t splits;
    t.side_log = 0;
    while ((width << (t.side_log + 1u)) <= REN_TILE && (1u << t.side_log) < packs) {
        t.side_log++;
    }
    t.tiles = (uint32_t)((packs + (1u << t.side_log) - 1u) >> t.side_log);
    t.thread_log = rows >> (REN_COLUMN_FEW_LOG - t.side_log) <= (uint64_t)REN_COLUMN_FEW * least
                       ? REN_COLUMN_FEW_LOG
                       : REN_COLUMN_LOG;
    most = blocks / (t.tiles < blocks ? t.tiles : blocks);
    splits = (rows >> (t.thread_log - t.side_log)) / least;
    splits = splits < 1u ? 1u : splits > most ? most : splits;
    t.rows = (rows + splits - 1u) / splits;
    t.splits = (uint32_t)((rows + t.rows - 1u) / t.rows);
    return t;
}

/* Where a thread stands: its packs lie at first, first + stride, ... in the tensor. */
typedef struct ren__stand {
    uint64_t channel;    /* its first */
    uint64_t first;      /* elements */
    int64_t stride;      /* elements; below 0 when it walks from the last row up */
    uint32_t count;      /* packs; 0 for a thread with nothing to do */
    uint32_t rows;       /* of the block's split */
    uint32_t lane, pack; /* which row of the block, which pack of the row */
} ren__stand;

/* In a split that begins at row `begin` and ends before row `end`. */
template <int W>
static __device__ __forceinline__ ren__stand ren__stand_in(const ren__tiles &t, uint64_t begin,
                                                           uint64_t end, uint64_t channels)
{
    ren__stand s;
    uint32_t step_log = t.thread_log - t.side_log;
    s.pack = threadIdx.x & ((1u << t.side_log) - 1u);
    s.lane = threadIdx.x >> t.side_log;
    s.channel = (((uint64_t)blockIdx.x << t.side_log) + s.pack) * (uint64_t)W;
    s.rows = (uint32_t)(end - begin);
    s.first = (begin + s.lane) * channels + s.channel;
    s.stride = (int64_t)(channels << step_log);
    s.count =
        s.channel < channels && s.lane < s.rows ? ((s.rows - s.lane - 1u) >> step_log) + 1u : 0u;
    return s;
}

template <int W>
static __device__ __forceinline__ ren__stand ren__stand_of(const ren__tiles &t, uint64_t rows,
                                                           uint64_t channels)
{
    uint64_t begin = blockIdx.y * t.rows;
    uint64_t end = begin + t.rows < rows ? begin + t.rows : rows;
    return ren__stand_in<W>(t, begin, end, channels);
}

/* The same packs from the last one up. A kernel that reads again what the one before it has read
 * finds the end of it in the L2 cache rather than the beginning. */
static __device__ __forceinline__ void ren__turn(ren__stand *s)
{
    s->first += (uint64_t)((int64_t)(s->count ? s->count - 1u : 0u) * s->stride);
    s->stride = -s->stride;
}

/* U packs from the i-th on, which lies at `at`, as many as there are. */
template <typename T, int W, int U>
static __device__ __forceinline__ void ren__read_some(const T *p, const ren__stand &s, uint32_t i,
                                                      uint64_t at, ren__pack<T, W> out[U])
{
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (i + (uint32_t)u < s.count) {
            out[u] = ren__read<T, W>(p, at);
        }
        at += (uint64_t)s.stride;
    }
}

/* W values of shared memory, and back: those of a thread's channels out of those of the block. */
template <int W>
static __device__ __forceinline__ void ren__channel_values(const float *shared, float out[W])
{
    if (W % 4 == 0) {
#pragma unroll
        for (int k = 0; k < W; k += 4) {
            float4 v = *(const float4 *)(const void *)(shared + k);
            out[k] = v.x;
            out[k + 1] = v.y;
            out[k + 2] = v.z;
            out[k + 3] = v.w;
        }
    } else {
        out[0] = shared[0];
    }
}

template <int W>
static __device__ __forceinline__ void ren__put_channel_values(const float in[W], float *shared)
{
    if (W % 4 == 0) {
#pragma unroll
        for (int k = 0; k < W; k += 4) {
            float4 v;
            v.x = in[k];
            v.y = in[k + 1];
            v.z = in[k + 2];
            v.w = in[k + 3];
            *(float4 *)(void *)(shared + k) = v;
        }
    } else {
        shared[0] = in[0];
    }
}

/* J sums for each channel of a tile, over the threads that stand in its column: v[j W + k] is the
 * thread's part of sum j of its channel k. With `width` the channels of a tile, thread i < J width
 * gets sum i / width of channel i % width; others get nothing of use. shared: REN_COLUMN_SHARED(J)
 * floats, aligned to 16 bytes. All threads of the block must call. */
template <int J, int W>
static __device__ __forceinline__ float ren__column_sums(float v[J * W], const ren__tiles &t,
                                                         uint32_t side_log, float *shared)
{
    uint32_t side = 1u << side_log;
    uint32_t span_log = side < REN_WARP ? 5u : side_log; /* threads that cover whole rows */
    uint32_t place = threadIdx.x & ((1u << span_log) - 1u);
    uint32_t groups = 1u << (t.thread_log - span_log);
    uint32_t width = side * (uint32_t)W;
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t distance = side; distance < REN_WARP; distance *= 2u) {
#pragma unroll
        for (int k = 0; k < J * W; k++) {
            v[k] += __shfl_xor_sync(0xffffffffu, v[k], distance);
        }
    }
    __syncthreads(); /* `shared` may still be read from the sum before */
    if (place < side) {
        float *row = shared + (threadIdx.x >> span_log) * (width * (uint32_t)J);
#pragma unroll
        for (int j = 0; j < J; j++) {
            ren__put_channel_values<W>(v + j * W, row + (uint32_t)j * width + place * (uint32_t)W);
        }
    }
    __syncthreads();
    if (threadIdx.x < width * (uint32_t)J) {
        const float *at = shared + threadIdx.x;
#pragma unroll 4
        for (uint32_t g = 0; g < groups; g++) {
            sum += at[g * width * (uint32_t)J];
        }
    }
    return sum;
}

#endif
