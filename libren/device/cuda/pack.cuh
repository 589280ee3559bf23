/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/pack.cuh - reading and writing f32, f16 and bf16 through 16-byte packs.
 *
 * Purpose   Kernels store tensors in one of three dtypes and compute in f32. A pack is what one
 *           thread reads at once: 16 bytes, so 8 halves or 4 floats, or a single element where an
 *           address or a channel count does not allow more. Narrowing rounds to nearest even.
 * Dispatch  A kernel is a template of the storage type, and where it walks over channels of the
 *           pack's width too; REN_DISPATCH picks the instance for a dtype.
 */
#ifndef REN_DEVICE_CUDA_PACK_CUH
#define REN_DEVICE_CUDA_PACK_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.cuh"

#define REN_DISPATCH(dtype, function, ...)                                                         \
    ((dtype) == REN_F16    ? function<__half>(__VA_ARGS__)                                         \
     : (dtype) == REN_BF16 ? function<__nv_bfloat16>(__VA_ARGS__)                                  \
                           : function<float>(__VA_ARGS__))

/* Elements of a 16-byte pack. */
template <typename T> struct ren__wide {
    static const int width = 16 / (int)sizeof(T);
};

template <typename T, int W> struct alignas(sizeof(T) * W) ren__pack {
    T v[W];
};

static __device__ __forceinline__ float ren__widen(float v)
{
    return v;
}

static __device__ __forceinline__ float ren__widen(__half v)
{
    return __half2float(v);
}

static __device__ __forceinline__ float ren__widen(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

static __device__ __forceinline__ float ren__widen(int32_t v)
{
    return (float)v;
}

static __device__ __forceinline__ float ren__widen(uint8_t v)
{
    return (float)v;
}

static __device__ __forceinline__ void ren__narrow(float v, float *out)
{
    *out = v;
}

static __device__ __forceinline__ void ren__narrow(float v, __half *out)
{
    *out = __float2half_rn(v);
}

static __device__ __forceinline__ void ren__narrow(float v, __nv_bfloat16 *out)
{
    *out = __float2bfloat16_rn(v);
}

/* Two at a time, which is one instruction for halves. */
static __device__ __forceinline__ void ren__narrow2(float a, float b, float out[2])
{
    out[0] = a;
    out[1] = b;
}

static __device__ __forceinline__ void ren__narrow2(float a, float b, __half out[2])
{
    __half2 both = __floats2half2_rn(a, b);
    out[0] = __low2half(both);
    out[1] = __high2half(both);
}

static __device__ __forceinline__ void ren__narrow2(float a, float b, __nv_bfloat16 out[2])
{
    __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    out[0] = __low2bfloat16(both);
    out[1] = __high2bfloat16(both);
}

template <typename T, int W>
static __device__ __forceinline__ ren__pack<T, W> ren__read(const T *p, uint64_t i)
{
    return *(const ren__pack<T, W> *)(const void *)(p + i);
}

template <typename T, int W>
static __device__ __forceinline__ void ren__unpack(const ren__pack<T, W> &pack, float out[W])
{
#pragma unroll
    for (int k = 0; k < W; k++) {
        out[k] = ren__widen(pack.v[k]);
    }
}

template <typename T, int W>
static __device__ __forceinline__ void ren__write(T *p, uint64_t i, const float in[W])
{
    ren__pack<T, W> pack;
#pragma unroll
    for (int k = 0; k < W; k++) {
        if (W == 1) {
            ren__narrow(in[k], &pack.v[k]);
        } else if (k % 2 == 0) {
            ren__narrow2(in[k], in[k + 1], &pack.v[k]);
        }
    }
    *(ren__pack<T, W> *)(void *)(p + i) = pack;
}

/* v as it reads back after a store. */
template <typename T> static __device__ __forceinline__ float ren__rounded(float v)
{
    T stored;
    ren__narrow(v, &stored);
    return ren__widen(stored);
}

/* ------------------------------------------------------------------ flat: n elements in a row */

/* Elements i.. of n as one pack, where `vector` says that p is aligned; 0 past the end. */
template <typename T>
static __device__ __forceinline__ void ren__load(const T *p, uint64_t i, uint64_t n, int vector,
                                                 float out[ren__wide<T>::width])
{
    const int W = ren__wide<T>::width;
    if (vector && i + (uint64_t)W <= n) {
        ren__unpack<T, W>(ren__read<T, W>(p, i), out);
        return;
    }
#pragma unroll
    for (int k = 0; k < W; k++) {
        out[k] = i + (uint64_t)k < n ? ren__widen(p[i + (uint64_t)k]) : 0.0f;
    }
}

template <typename T>
static __device__ __forceinline__ void ren__store(T *p, uint64_t i, uint64_t n, int vector,
                                                  const float in[ren__wide<T>::width])
{
    const int W = ren__wide<T>::width;
    if (vector && i + (uint64_t)W <= n) {
        ren__write<T, W>(p, i, in);
        return;
    }
#pragma unroll
    for (int k = 0; k < W; k++) {
        if (i + (uint64_t)k < n) {
            ren__narrow(in[k], &p[i + (uint64_t)k]);
        }
    }
}

/* This thread's first element, a pack to a thread, and the stride between its packs. */
template <typename T> static __device__ __forceinline__ uint64_t ren__first(void)
{
    return ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * (uint64_t)ren__wide<T>::width;
}

template <typename T> static __device__ __forceinline__ uint64_t ren__stride(void)
{
    return (uint64_t)gridDim.x * blockDim.x * (uint64_t)ren__wide<T>::width;
}

template <typename T> static inline uint32_t ren__flat_blocks(uint64_t n)
{
    return ren__blocks(n, REN_THREADS * (uint32_t)ren__wide<T>::width, REN_FLAT_BLOCKS);
}

#endif
