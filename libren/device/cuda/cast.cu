/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/cast.cu - conversion between element types.
 *
 * Purpose   Any dtype to f32, f16 or bf16, through f32. Conversions round to nearest even;
 *           an i32 beyond 2^24 rounds on its way to f32. Between floats eight at a time where both
 *           addresses are aligned.
 */
#include "pack.cuh"

#define EIGHT 8

template <typename From, typename To> struct cast_params {
    const From *x;
    To *y;
    uint64_t n;
    int vector;
};

/* Eight values as packs of 16 bytes, of which there are two for f32. */
template <typename T> static __device__ __forceinline__ void read8(const T *p, float out[EIGHT])
{
    const int W = ren__wide<T>::width < EIGHT ? ren__wide<T>::width : EIGHT;
#pragma unroll
    for (int k = 0; k < EIGHT; k += W) {
        ren__unpack<T, W>(ren__read<T, W>(p, (uint64_t)k), out + k);
    }
}

template <typename T> static __device__ __forceinline__ void write8(T *p, const float in[EIGHT])
{
    const int W = ren__wide<T>::width;
#pragma unroll
    for (int k = 0; k < EIGHT; k += W) {
        ren__write<T, W>(p, (uint64_t)k, in + k);
    }
}

template <typename From, typename To> static __global__ void cast_kernel(cast_params<From, To> p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x * EIGHT;
    for (uint64_t i = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * EIGHT; i < p.n;
         i += stride) {
        float v[EIGHT];
        if (p.vector && i + EIGHT <= p.n) {
            read8<From>(p.x + i, v);
            write8<To>(p.y + i, v);
        } else {
            for (uint64_t k = i; k < p.n && k < i + EIGHT; k++) {
                ren__narrow(ren__widen(p.x[k]), &p.y[k]);
            }
        }
    }
}

template <typename From, typename To>
static cudaError_t cast(cudaStream_t stream, const void *x, void *y, uint64_t n)
{
    cast_params<From, To> p = {(const From *)x, (To *)y, n, ren__aligned16(x) && ren__aligned16(y)};
    return REN_LAUNCH((cast_kernel<From, To>), ren__blocks(n, REN_THREADS * EIGHT, REN_FLAT_BLOCKS),
                      REN_THREADS, stream, p);
}

template <typename To>
static cudaError_t cast_from(cudaStream_t stream, ren_dtype from, const void *x, void *y,
                             uint64_t n)
{
    switch (from) {
    case REN_F32:
        return cast<float, To>(stream, x, y, n);
    case REN_F16:
        return cast<__half, To>(stream, x, y, n);
    case REN_BF16:
        return cast<__nv_bfloat16, To>(stream, x, y, n);
    case REN_I32:
        return cast<int32_t, To>(stream, x, y, n);
    default:
        return cast<uint8_t, To>(stream, x, y, n);
    }
}

cudaError_t ren__cuda_k_cast(cudaStream_t stream, ren_dtype from, const void *x, ren_dtype to,
                             void *y, uint64_t n)
{
    return REN_DISPATCH(to, cast_from, stream, from, x, y, n);
}
