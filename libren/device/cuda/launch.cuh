/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/launch.cuh - what every kernel file needs.
 *
 * Purpose   One launch form: a kernel takes one struct by value, REN_LAUNCH passes it. Sums inside
 *           a block, and loads and stores of four floats at a time where the addresses allow it.
 * Order     ren__block_sum adds within each warp by halving distances, then over the warps in the
 *           same way: an order that depends on the block's size alone.
 */
#ifndef REN_DEVICE_CUDA_LAUNCH_CUH
#define REN_DEVICE_CUDA_LAUNCH_CUH

#include "kernels.h"

#define REN_THREADS     256u
#define REN_MAX_BLOCKS  2048u /* of a kernel that strides over its elements */
#define REN_FLAT_BLOCKS 8192u /* the same, of one that reads packs: see pack.cuh */
#define REN_WARP        32u

#ifndef REN_LAUNCH
#define REN_LAUNCH(kernel, blocks, threads, stream, params)                                        \
    ren__launch((const void *)(kernel), (blocks), (threads), (stream), &(params))

static inline cudaError_t ren__launch(const void *kernel, dim3 blocks, dim3 threads,
                                      cudaStream_t stream, const void *params)
{
    void *arguments[1] = {(void *)params};
    return cudaLaunchKernel(kernel, blocks, threads, arguments, 0, stream);
}

static __device__ __forceinline__ uint64_t ren__clock_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
#endif

static inline uint32_t ren__blocks(uint64_t items, uint32_t per_block, uint32_t most)
{
    uint64_t blocks = (items + per_block - 1u) / per_block;
    return blocks < 1u ? 1u : blocks > most ? most : (uint32_t)blocks;
}

static inline int ren__aligned16(const void *pointer)
{
    return ((uintptr_t)pointer & 15u) == 0;
}

/* The index of this thread's first element, four to a thread, and the stride between its fours. */
static __device__ __forceinline__ uint64_t ren__first4(void)
{
    return ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4u;
}

static __device__ __forceinline__ uint64_t ren__stride4(void)
{
    return (uint64_t)gridDim.x * blockDim.x * 4u;
}

/* Elements i..i+3 of p, fewer at the end of n; those past the end are 0. */
static __device__ __forceinline__ void ren__load4(const float *p, uint64_t i, uint64_t n,
                                                  int vector, float out[4])
{
    if (vector && i + 4u <= n) {
        float4 v = *(const float4 *)(p + i);
        out[0] = v.x;
        out[1] = v.y;
        out[2] = v.z;
        out[3] = v.w;
    } else {
        out[0] = p[i];
        out[1] = i + 1u < n ? p[i + 1u] : 0.0f;
        out[2] = i + 2u < n ? p[i + 2u] : 0.0f;
        out[3] = i + 3u < n ? p[i + 3u] : 0.0f;
    }
}

static __device__ __forceinline__ void ren__store4(float *p, uint64_t i, uint64_t n, int vector,
                                                   const float in[4])
{
    if (vector && i + 4u <= n) {
        float4 v;
        v.x = in[0];
        v.y = in[1];
        v.z = in[2];
        v.w = in[3];
        *(float4 *)(p + i) = v;
    } else {
        p[i] = in[0];
        if (i + 1u < n) {
            p[i + 1u] = in[1];
        }
        if (i + 2u < n) {
            p[i + 2u] = in[2];
        }
        if (i + 3u < n) {
            p[i + 3u] = in[3];
        }
    }
}

static __device__ __forceinline__ float ren__warp_sum(float v)
{
    for (uint32_t distance = REN_WARP / 2u; distance > 0; distance /= 2u) {
        v += __shfl_xor_sync(0xffffffffu, v, distance);
    }
    return v;
}

static __device__ __forceinline__ float ren__warp_max(float v)
{
    for (uint32_t distance = REN_WARP / 2u; distance > 0; distance /= 2u) {
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, distance));
    }
    return v;
}

/* The sum over a block of whole warps, in every thread. `shared` holds a float for each warp; all
 * threads of the block must call. */
static __device__ __forceinline__ float ren__block_sum(float v, float shared[32])
{
    uint32_t warps = blockDim.x / REN_WARP;
    uint32_t lane = threadIdx.x % REN_WARP;
    v = ren__warp_sum(v);
    __syncthreads(); /* `shared` may still be read from the sum before */
    if (lane == 0) {
        shared[threadIdx.x / REN_WARP] = v;
    }
    __syncthreads();
    return ren__warp_sum(lane < warps ? shared[lane] : 0.0f);
}

/* The same in f64, for sums of squares, which f32 may not be able to hold. */
static __device__ __forceinline__ double ren__warp_sum_f64(double v)
{
    for (uint32_t distance = REN_WARP / 2u; distance > 0; distance /= 2u) {
        v += __shfl_xor_sync(0xffffffffu, v, distance);
    }
    return v;
}

static __device__ __forceinline__ double ren__block_sum_f64(double v, double shared[32])
{
    uint32_t warps = blockDim.x / REN_WARP;
    uint32_t lane = threadIdx.x % REN_WARP;
    v = ren__warp_sum_f64(v);
    __syncthreads();
    if (lane == 0) {
        shared[threadIdx.x / REN_WARP] = v;
    }
    __syncthreads();
    return ren__warp_sum_f64(lane < warps ? shared[lane] : 0.0);
}

/* In every thread of a block that has written its part of a sum, with all threads calling: is this
 * the last block of the launch? Then it sees the parts of all others, and the word is 0 again.
 * The fence before the count orders this block's part ahead of it; the one behind it orders the
 * last block's reading after it: they are partners. Parts are read past the first-level cache. */
static __device__ __forceinline__ bool ren__is_last_block(uint32_t *ticket)
{
    __shared__ uint32_t before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before = atomicAdd(ticket, 1u);
        if (before == gridDim.x * gridDim.y - 1u) {
            *ticket = 0u;
        }
    }
    __syncthreads();
    if (before != gridDim.x * gridDim.y - 1u) {
        return false;
    }
    __threadfence();
    return true;
}

#endif
