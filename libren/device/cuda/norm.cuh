/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/norm.cuh - what the two passes of batch norm must agree on.
 *
 * Purpose   The backward pass may have to tell from x whether the forward pass gave a positive
 *           output. It does so by the very same operations in the same order: a channel's scale and
 *           shift from what is kept, one fused multiply and add, and the rounding of a store.
 *           Contracting them differently in two places would flip a gate now and then.
 * Numbers   x scale + shift, with shift = bias - mean scale: where the mean is many deviations from
 *           0 it loses what the subtraction x - mean would keep, but no more than the rounding of x
 *           itself has lost, and it takes a third of a thread's constants less.
 */
#ifndef REN_DEVICE_CUDA_NORM_CUH
#define REN_DEVICE_CUDA_NORM_CUH

#include "columns.cuh"

#define REN_NORM_BLOCKS 264u /* of a pass, by aim: two for each multiprocessor of an H200 */
#define REN_NORM_LEAST  4u   /* packs of a thread, when the rows are split */

static __device__ __forceinline__ float ren__shift(float mean, float scale, float bias)
{
    return fmaf(-mean, scale, bias);
}

static __device__ __forceinline__ float ren__normal(float x, float scale, float shift)
{
    return fmaf(x, scale, shift);
}

/* Whether a thread holds the constants of a channel, for its block: thread i < width that of the
 * channel i of the tile. */
static __device__ __forceinline__ int ren__owns(uint32_t width, uint64_t channels,
                                                uint64_t *out_channel)
{
    *out_channel = (uint64_t)blockIdx.x * width + threadIdx.x;
    return threadIdx.x < width && *out_channel < channels;
}

#endif
