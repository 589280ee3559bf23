/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/conv.cu - what stands behind and beside cuDNN's convolutions.
 *
 * Purpose   Convolutions computed directly, for shapes that cuDNN refuses: any stride, padding,
 *           dilation and grouping, f32, NHWC with weights OHWI, no workspace. Written to be right
 *           for every shape, not to be fast: cuDNN computes the usual ones. Bias and ReLU in place,
 *           for engines that do not add them themselves.
 * Order     Every output element is summed by one thread, or by one block in a fixed order.
 */
#include "pack.cuh"

#define WEIGHT_THREADS 128u

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
    int bias_is_f32, relu;
} bias_act_params;

/* W elements of a row to a thread; W divides the channels. */
template <typename T, int W> static __global__ void bias_act_kernel(bias_act_params p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x * (uint64_t)W;
    uint64_t i = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * (uint64_t)W;
    for (; i < p.n; i += stride) {
        uint64_t channel = i % p.channels;
        float v[W];
        ren__unpack<T, W>(ren__read<T, W>((const T *)p.y, i), v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            if (p.bias) {
                v[k] += p.bias_is_f32 ? ((const float *)p.bias)[channel + (uint64_t)k]
                                      : ren__widen(((const T *)p.bias)[channel + (uint64_t)k]);
            }
            v[k] = p.relu && v[k] < 0.0f ? 0.0f : v[k]; /* a NaN stays one */
        }
        ren__write<T, W>((T *)p.y, i, v);
    }
}

template <typename T>
static cudaError_t launch_bias_act(cudaStream_t stream, const bias_act_params &p)
{
    const int W = ren__wide<T>::width;
    if (p.channels % (uint64_t)W == 0 && ren__aligned16(p.y)) {
        return REN_LAUNCH((bias_act_kernel<T, W>), ren__flat_blocks<T>(p.n), REN_THREADS, stream,
                          p);
    }
    return REN_LAUNCH((bias_act_kernel<T, 1>), ren__blocks(p.n, REN_THREADS, REN_FLAT_BLOCKS),
                      REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_bias_act(cudaStream_t stream, ren_dtype type, void *y, ren_dtype bias_type,
                                 const void *bias, int relu, uint64_t n, uint64_t channels)
{
    bias_act_params p = {y, bias, n, channels, bias_type == REN_F32, relu};
    return REN_DISPATCH(type, launch_bias_act, stream, p);
}
