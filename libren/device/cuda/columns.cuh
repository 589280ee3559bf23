/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/columns.cuh - walking over a matrix [rows, channels] and summing its columns.
 *
 * Purpose   The bias gradient and batch norm see an NHWC tensor as a matrix of N H W rows. What
 *           they share is here: which thread reads what, and sums down the columns.
 * Shape     A block covers `side` packs of a row (see pack.cuh), at most 64 channels, and reads
 *           REN_COLUMN_THREADS / side rows at once. `side` is a power of two, so that a thread's
 *           column is fixed and a warp holds whole rows, or half of one. The grid is [tiles,
 *           splits]: tiles lie side by side, and each split has its own range of rows.
 * Order     All of it depends on the shape and the alignment of addresses alone. A sum over the
 *           rows of a block adds a thread's own rows in order, then the threads of a warp by
 *           halving distances, then the warps in order; sums of splits are joined the same way.
 */
#ifndef REN_DEVICE_CUDA_COLUMNS_CUH
#define REN_DEVICE_CUDA_COLUMNS_CUH

#include "pack.cuh"

#define REN_COLUMN_THREADS 512u
#define REN_COLUMN_WARPS   (REN_COLUMN_THREADS / REN_WARP)
#define REN_TILE           64u /* most channels of a block */
#define REN_UNROLL         4   /* packs that a thread has under way */

#define REN_NARROW 32u /* fewest bytes of a row, in 16-bit floats, that a tile should take */

/* Floats of shared memory that sums need, for each value of a channel. */
#define REN_COLUMN_SHARED(values) (REN_COLUMN_WARPS * REN_TILE * (values))

typedef struct ren__tiles {
    uint32_t side;   /* packs of a row that a block covers */
    uint32_t tiles;  /* blocks side by side */
    uint32_t splits; /* blocks one below the other */
    uint64_t rows;   /* of each split but the last */
} ren__tiles;

/* Blocks of all rows, so that no second kernel need join splits: as wide as leaves a thread at most
 * `most` packs. 0 when only tiles too narrow to read well do that. */
static inline int ren__tiles_whole(uint64_t rows, uint64_t channels, uint32_t width, uint32_t most,
                                   ren__tiles *out)
{
    uint64_t packs = (channels + width - 1u) / width;
    uint32_t side = REN_TILE / width;
    while (side > 1u && (side / 2u >= packs || rows * side > (uint64_t)REN_COLUMN_THREADS * most)) {
        side /= 2u;
    }
    out->side = side;
    out->tiles = (uint32_t)((packs + side - 1u) / side);
    out->splits = 1u;
    out->rows = rows;
    return side * width * 2u >= REN_NARROW && rows * side <= (uint64_t)REN_COLUMN_THREADS * most;
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
    uint32_t widest = REN_TILE / width;
    t.side = 1u;
    while (t.side < widest && t.side < packs) {
        t.side *= 2u;
    }
    t.tiles = (uint32_t)((packs + t.side - 1u) / t.side);
    most = blocks / (t.tiles < blocks ? t.tiles : blocks);
    splits = rows / ((uint64_t)(REN_COLUMN_THREADS / t.side) * least);
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

template <int W>
static __device__ __forceinline__ ren__stand ren__stand_of(const ren__tiles &t, uint64_t rows,
                                                           uint64_t channels)
{
    ren__stand s;
    uint64_t begin = blockIdx.y * t.rows;
    uint32_t step = blockDim.x / t.side;
    s.pack = threadIdx.x & (t.side - 1u);
    s.lane = threadIdx.x / t.side;
    s.channel = ((uint64_t)blockIdx.x * t.side + s.pack) * (uint64_t)W;
    s.rows = (uint32_t)(rows - begin < t.rows ? rows - begin : t.rows);
    s.first = (begin + s.lane) * channels + s.channel;
    s.stride = (int64_t)(step * channels);
    s.count = s.channel < channels && s.lane < s.rows ? (s.rows - s.lane - 1u) / step + 1u : 0u;
    return s;
}

/* The same packs from the last one up. A kernel that reads again what the one before it has read
 * finds the end of it in the L2 cache rather than the beginning. */
static __device__ __forceinline__ void ren__turn(ren__stand *s)
{
    s->first += (uint64_t)((int64_t)(s->count ? s->count - 1u : 0u) * s->stride);
    s->stride = -s->stride;
}

/* Where the pack i of a thread lies. */
static __device__ __forceinline__ uint64_t ren__place(const ren__stand &s, uint32_t i)
{
    return s.first + (uint64_t)((int64_t)i * s.stride);
}

/* U packs from the i-th on, as many as there are. */
template <typename T, int W, int U>
static __device__ __forceinline__ void ren__read_some(const T *p, const ren__stand &s, uint32_t i,
                                                      ren__pack<T, W> out[U])
{
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (i + (uint32_t)u < s.count) {
            out[u] = ren__read<T, W>(p, ren__place(s, i + (uint32_t)u));
        }
    }
}

/* Values of a thread's channels out of shared memory that holds those of the block. */
template <int W>
static __device__ __forceinline__ void ren__channel_values(const float *shared, uint32_t pack,
                                                           float out[W])
{
    if (W % 4 == 0) {
#pragma unroll
        for (int k = 0; k < W / 4; k++) {
            float4 v = *(const float4 *)(const void *)(shared + pack * W + (uint32_t)k * 4u);
            out[k * 4] = v.x;
            out[k * 4 + 1] = v.y;
            out[k * 4 + 2] = v.z;
            out[k * 4 + 3] = v.w;
        }
    } else {
        out[0] = shared[pack];
    }
}

/* Sum v[k] over the threads that stand in one column (equal threadIdx.x modulo side), for each k
 * < N; every thread gets its column's sums. shared: REN_COLUMN_SHARED(N / W) floats. All threads of
 * the block must call. */
template <int N>
static __device__ __forceinline__ void ren__column_sums(float v[N], uint32_t side, float *shared)
{
    uint32_t span = side < REN_WARP ? REN_WARP : side; /* threads that cover whole rows */
    uint32_t place = threadIdx.x & (span - 1u);
    uint32_t width = side * (uint32_t)N;
    uint32_t groups = blockDim.x / span;
    for (uint32_t distance = side; distance < REN_WARP; distance *= 2u) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            v[k] += __shfl_xor_sync(0xffffffffu, v[k], distance);
        }
    }
    __syncthreads(); /* `shared` may still be read from the sum before */
    if (place < side) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            shared[threadIdx.x / span * width + (uint32_t)k * side + place] = v[k];
        }
    }
    __syncthreads();
    for (uint32_t at = threadIdx.x; at < width; at += blockDim.x) {
        float sum = shared[at];
#pragma unroll 8
        for (uint32_t g = 1; g < groups; g++) {
            sum += shared[g * width + at];
        }
        shared[at] = sum; /* a word that no other thread of this loop reads */
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) {
        v[k] = shared[(uint32_t)k * side + (threadIdx.x & (side - 1u))];
    }
}

#endif
