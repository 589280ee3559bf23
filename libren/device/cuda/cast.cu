/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/cast.cu - conversion between element types.
 *
 * Purpose   Any dtype to f32, f16 or bf16, through f32. Conversions round to nearest even;
 *           an i32 beyond 2^24 rounds on its way to f32.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.cuh"

typedef struct cast_params {
    const void *x;
    void *y;
    uint64_t n;
    ren_dtype from, to;
} cast_params;

static __device__ __forceinline__ float load(const void *x, ren_dtype dtype, uint64_t i)
{
    switch (dtype) {
    case REN_F32:
        return ((const float *)x)[i];
    case REN_F16:
        return __half2float(((const __half *)x)[i]);
    case REN_BF16:
        return __bfloat162float(((const __nv_bfloat16 *)x)[i]);
    case REN_I32:
        return (float)((const int32_t *)x)[i];
    default:
        return (float)((const uint8_t *)x)[i];
    }
}

static __device__ __forceinline__ void store(void *y, ren_dtype dtype, uint64_t i, float v)
{
    switch (dtype) {
    case REN_F16:
        ((__half *)y)[i] = __float2half_rn(v);
        break;
    case REN_BF16:
        ((__nv_bfloat16 *)y)[i] = __float2bfloat16_rn(v);
        break;
    default:
        ((float *)y)[i] = v;
        break;
    }
}

static __global__ void cast_kernel(cast_params p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        store(p.y, p.to, i, load(p.x, p.from, i));
    }
}

cudaError_t ren__cuda_k_cast(cudaStream_t stream, ren_dtype from, const void *x, ren_dtype to,
                             void *y, uint64_t n)
{
    cast_params p = {x, y, n, from, to};
    return REN_LAUNCH(cast_kernel, ren__blocks(n, REN_THREADS, REN_MAX_BLOCKS), REN_THREADS, stream,
                      p);
}
