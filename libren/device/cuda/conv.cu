/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/conv.cu - what stands behind and beside cuDNN's convolutions.
 *
 * Purpose   Convolutions computed directly, for shapes that cuDNN refuses: any stride, padding,
 *           dilation and grouping, f32, NHWC with weights OHWI, no workspace. Written to be right
 *           for every shape, not to be fast: cuDNN computes the usual ones. Bias and ReLU in place,
 *           for engines that do not add them themselves.
 * Order     Every output element is summed by one thread, or by one block in a fixed order.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.cuh"

#define WEIGHT_THREADS 128u
#define WIDTH          8u /* channels that a thread of bias_act_wide takes: 16 bytes of f16 */

typedef struct conv_params {
    ren__conv_shape s;
    const float *a, *b;
    float *out;
    uint64_t n;
} conv_params;

static __global__ void forward_kernel(conv_params p)
{
    const ren__conv_shape s = p.s;
    int inner = s.c / s.groups;
    int outer = s.o / s.groups;
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        int o = (int)(i % (uint64_t)s.o);
        uint64_t pixel = i / (uint64_t)s.o;
        int wo = (int)(pixel % (uint64_t)s.wo);
        int ho = (int)(pixel / (uint64_t)s.wo % (uint64_t)s.ho);
        uint64_t n = pixel / (uint64_t)s.wo / (uint64_t)s.ho;
        int first = o / outer * inner;
        float sum = 0.0f;
        for (int kh = 0; kh < s.kh; kh++) {
            int h = ho * s.sh - s.ph + kh * s.dh;
            if (h < 0 || h >= s.h) {
                continue;
            }
            for (int kw = 0; kw < s.kw; kw++) {
                int w = wo * s.sw - s.pw + kw * s.dw;
                const float *x;
                const float *weight;
                if (w < 0 || w >= s.w) {
                    continue;
                }
                x = p.a + ((n * s.h + h) * s.w + w) * s.c + first;
                weight = p.b + (((uint64_t)o * s.kh + kh) * s.kw + kw) * inner;
                for (int c = 0; c < inner; c++) {
                    sum += x[c] * weight[c];
                }
            }
        }
        p.out[i] = sum;
    }
}

static __global__ void data_kernel(conv_params p)
{
    const ren__conv_shape s = p.s;
    int inner = s.c / s.groups;
    int outer = s.o / s.groups;
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        int c = (int)(i % (uint64_t)s.c);
        uint64_t pixel = i / (uint64_t)s.c;
        int w = (int)(pixel % (uint64_t)s.w);
        int h = (int)(pixel / (uint64_t)s.w % (uint64_t)s.h);
        uint64_t n = pixel / (uint64_t)s.w / (uint64_t)s.h;
        int first = c / inner * outer;
        float sum = 0.0f;
        for (int kh = 0; kh < s.kh; kh++) {
            int up = h + s.ph - kh * s.dh;
            if (up < 0 || up % s.sh || up / s.sh >= s.ho) {
                continue;
            }
            for (int kw = 0; kw < s.kw; kw++) {
                int left = w + s.pw - kw * s.dw;
                const float *dy;
                if (left < 0 || left % s.sw || left / s.sw >= s.wo) {
                    continue;
                }
                dy = p.a + ((n * s.ho + up / s.sh) * s.wo + left / s.sw) * s.o + first;
                for (int o = 0; o < outer; o++) {
                    uint64_t at = (((uint64_t)(first + o) * s.kh + kh) * s.kw + kw) * inner;
                    sum += dy[o] * p.b[at + c % inner];
                }
            }
        }
        p.out[i] = sum;
    }
}

/* One block to a weight: its threads share the output pixels. */
static __global__ void weight_kernel(conv_params p)
{
    __shared__ float shared[32];
    const ren__conv_shape s = p.s;
    int inner = s.c / s.groups;
    int outer = s.o / s.groups;
    for (uint64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
        int c = (int)(i % (uint64_t)inner);
        int kw = (int)(i / (uint64_t)inner % (uint64_t)s.kw);
        int kh = (int)(i / (uint64_t)inner / (uint64_t)s.kw % (uint64_t)s.kh);
        int o = (int)(i / (uint64_t)inner / (uint64_t)s.kw / (uint64_t)s.kh);
        uint64_t pixels = (uint64_t)s.n * s.ho * s.wo;
        float sum = 0.0f;
        c += o / outer * inner;
        for (uint64_t pixel = threadIdx.x; pixel < pixels; pixel += blockDim.x) {
            int w = (int)(pixel % (uint64_t)s.wo) * s.sw - s.pw + kw * s.dw;
            int h = (int)(pixel / (uint64_t)s.wo % (uint64_t)s.ho) * s.sh - s.ph + kh * s.dh;
            uint64_t n = pixel / (uint64_t)s.wo / (uint64_t)s.ho;
            if (h >= 0 && h < s.h && w >= 0 && w < s.w) {
                sum += p.a[pixel * s.o + o] * p.b[((n * s.h + h) * s.w + w) * s.c + c];
            }
        }
        sum = ren__block_sum(sum, shared);
        if (threadIdx.x == 0) {
            p.out[i] = sum;
        }
    }
}

cudaError_t ren__cuda_k_conv_forward(cudaStream_t stream, const ren__conv_shape *shape,
                                     const float *x, const float *w, float *y)
{
    conv_params p = {*shape, x, w, y, (uint64_t)shape->n * shape->ho * shape->wo * shape->o};
    return REN_LAUNCH(forward_kernel, ren__blocks(p.n, REN_THREADS, REN_MAX_BLOCKS * 4u),
                      REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_conv_data(cudaStream_t stream, const ren__conv_shape *shape,
                                  const float *dy, const float *w, float *dx)
{
    conv_params p = {*shape, dy, w, dx, (uint64_t)shape->n * shape->h * shape->w * shape->c};
    return REN_LAUNCH(data_kernel, ren__blocks(p.n, REN_THREADS, REN_MAX_BLOCKS * 4u), REN_THREADS,
                      stream, p);
}

cudaError_t ren__cuda_k_conv_weight(cudaStream_t stream, const ren__conv_shape *shape,
                                    const float *dy, const float *x, float *dw)
{
    conv_params p = {*shape, dy, x, dw,
                     (uint64_t)shape->o * shape->kh * shape->kw * (shape->c / shape->groups)};
    return REN_LAUNCH(weight_kernel, ren__blocks(p.n, 1u, REN_MAX_BLOCKS * 4u), WEIGHT_THREADS,
                      stream, p);
}

/* ------------------------------------------------------------------ bias and activation */

typedef struct bias_act_params {
    void *y;
    const void *bias; /* NULL = none */
    uint64_t n, channels;
    ren_dtype type, bias_type;
    int relu;
} bias_act_params;

static __device__ __forceinline__ float load_one(const void *x, ren_dtype type, uint64_t i)
{
    return type == REN_F16    ? __half2float(((const __half *)x)[i])
           : type == REN_BF16 ? __bfloat162float(((const __nv_bfloat16 *)x)[i])
                              : ((const float *)x)[i];
}

static __device__ __forceinline__ void store_one(void *y, ren_dtype type, uint64_t i, float v)
{
    if (type == REN_F16) {
        ((__half *)y)[i] = __float2half_rn(v);
    } else if (type == REN_BF16) {
        ((__nv_bfloat16 *)y)[i] = __float2bfloat16_rn(v);
    } else {
        ((float *)y)[i] = v;
    }
}

static __device__ __forceinline__ float bias_act(float v, float bias, int relu)
{
    v += bias;
    return relu && v < 0.0f ? 0.0f : v; /* a NaN stays one */
}

static __global__ void bias_act_kernel(bias_act_params p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        float bias = p.bias ? load_one(p.bias, p.bias_type, i % p.channels) : 0.0f;
        store_one(p.y, p.type, i, bias_act(load_one(p.y, p.type, i), bias, p.relu));
    }
}

/* Eight elements of 16 bits. */
typedef union eight {
    uint4 whole;
    __half f16[WIDTH];
    __nv_bfloat16 bf16[WIDTH];
    __device__ eight()
    {
    }
} eight;

/* Channels are a multiple of WIDTH and y is aligned, so a thread's elements are of one row. */
static __global__ void bias_act_wide_kernel(bias_act_params p)
{
    uint32_t groups = (uint32_t)(p.channels / WIDTH);
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n / WIDTH;
         i += stride) {
        uint32_t channel = (uint32_t)(i % groups) * WIDTH;
        float bias[WIDTH];
#pragma unroll
        for (uint32_t k = 0; k < WIDTH; k++) {
            bias[k] = p.bias ? load_one(p.bias, p.bias_type, channel + k) : 0.0f;
        }
        if (p.type == REN_F32) {
            float4 *at = (float4 *)p.y + 2u * i;
            float4 a = at[0];
            float4 b = at[1];
            a.x = bias_act(a.x, bias[0], p.relu);
            a.y = bias_act(a.y, bias[1], p.relu);
            a.z = bias_act(a.z, bias[2], p.relu);
            a.w = bias_act(a.w, bias[3], p.relu);
            b.x = bias_act(b.x, bias[4], p.relu);
            b.y = bias_act(b.y, bias[5], p.relu);
            b.z = bias_act(b.z, bias[6], p.relu);
            b.w = bias_act(b.w, bias[7], p.relu);
            at[0] = a;
            at[1] = b;
        } else {
            eight v;
            v.whole = ((const uint4 *)p.y)[i];
#pragma unroll
            for (uint32_t k = 0; k < WIDTH; k++) {
                if (p.type == REN_F16) {
                    v.f16[k] = __float2half_rn(bias_act(__half2float(v.f16[k]), bias[k], p.relu));
                } else {
                    v.bf16[k] =
                        __float2bfloat16_rn(bias_act(__bfloat162float(v.bf16[k]), bias[k], p.relu));
                }
            }
            ((uint4 *)p.y)[i] = v.whole;
        }
    }
}

cudaError_t ren__cuda_k_bias_act(cudaStream_t stream, ren_dtype type, void *y, ren_dtype bias_type,
                                 const void *bias, int relu, uint64_t n, uint64_t channels)
{
    bias_act_params p = {y, bias, n, channels, type, bias_type, relu};
    if (channels % WIDTH == 0 && ren__aligned16(y)) {
        return REN_LAUNCH(bias_act_wide_kernel, ren__blocks(n / WIDTH, REN_THREADS, REN_MAX_BLOCKS),
                          REN_THREADS, stream, p);
    }
    return REN_LAUNCH(bias_act_kernel, ren__blocks(n, REN_THREADS, REN_MAX_BLOCKS), REN_THREADS,
                      stream, p);
}
