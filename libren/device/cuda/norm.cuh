/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/norm.cuh - what the two passes of batch norm must agree on.
 *
 * Purpose   The backward pass may have to tell from x whether the forward pass gave a positive
 *           output. It does so by the very same operations in the same order: a channel's mean,
 *           scale and bias, one subtraction, one fused multiply and add, and the rounding of a
 *           store. Contracting them differently in two places would flip a gate now and then.
 */
#ifndef REN_DEVICE_CUDA_NORM_CUH
#define REN_DEVICE_CUDA_NORM_CUH

#include "columns.cuh"

#define REN_NORM_BLOCKS 264u /* of a pass, by aim: two for each multiprocessor of an H200 */
#define REN_NORM_LEAST  4u   /* packs of a thread, when the rows are split */

static __device__ __forceinline__ float ren__normal(float x, float mean, float scale, float bias)
{
    return fmaf(x - mean, scale, bias);
}

/* Per-channel values of a thread's pack; 0 past the end. */
template <int W>
static __device__ __forceinline__ void ren__channel_values(const float *p, uint64_t channel,
                                                           uint64_t channels, float out[W])
{
#pragma unroll
    for (int k = 0; k < W; k++) {
        out[k] = channel + (uint64_t)k < channels ? p[channel + (uint64_t)k] : 0.0f;
    }
}

#endif
