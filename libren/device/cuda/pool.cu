/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/pool.cu - pooling over [N, H, W, C].
 *
 * Purpose   Maximum, average and global average, forward and backward. Padding is outside of every
 *           maximum and is not counted by an average; ties of the maximum go to the first in row
 *           order; a NaN in the window is its maximum.
 * Order     Backward passes gather: a thread owns one input element and adds what the windows that
 *           hold it give, in row order, so nothing is added by two threads.
 */
#include "launch.cuh"

typedef struct pool_params {
    ren__pool_shape s;
    const float *in;
    float *out;
    int32_t *saved;
    uint64_t n; /* elements that the kernel writes */
} pool_params;

typedef struct place {
    int n, h, w, c;
} place;

static __device__ __forceinline__ place place_of(uint64_t i, int h, int w, int c)
{
    place p;
    p.c = (int)(i % (uint64_t)c);
    i /= (uint64_t)c;
    p.w = (int)(i % (uint64_t)w);
    i /= (uint64_t)w;
    p.h = (int)(i % (uint64_t)h);
    p.n = (int)(i / (uint64_t)h);
    return p;
}

/* The part of a window that lies inside the input, and the windows that hold an input position. */
static __device__ __forceinline__ int begin_of(int o, int stride, int padding)
{
    int begin = o * stride - padding;
    return begin < 0 ? 0 : begin;
}

static __device__ __forceinline__ int end_of(int o, int stride, int padding, int kernel, int size)
{
    int end = o * stride - padding + kernel;
    return end > size ? size : end;
}

static __device__ __forceinline__ int first_window(int i, int stride, int padding, int kernel)
{
    int reach = i + padding - kernel;
    return reach < 0 ? 0 : reach / stride + 1;
}

static __device__ __forceinline__ int last_window(int i, int stride, int padding, int windows)
{
    int last = (i + padding) / stride;
    return last >= windows ? windows - 1 : last;
}

static __global__ void max_forward_kernel(pool_params p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        place o = place_of(i, p.s.ho, p.s.wo, p.s.c);
        const float *plane = p.in + (uint64_t)o.n * p.s.h * p.s.w * p.s.c + o.c;
        int h0 = begin_of(o.h, p.s.sh, p.s.ph);
        int w0 = begin_of(o.w, p.s.sw, p.s.pw);
        int h1 = end_of(o.h, p.s.sh, p.s.ph, p.s.kh, p.s.h);
        int w1 = end_of(o.w, p.s.sw, p.s.pw, p.s.kw, p.s.w);
        int best = h0 * p.s.w + w0;
        float most = plane[(uint64_t)best * p.s.c];
        for (int h = h0; h < h1; h++) {
            for (int w = w0; w < w1; w++) {
                int at = h * p.s.w + w;
                float v = plane[(uint64_t)at * p.s.c];
                if (v > most || (v != v && most == most)) {
                    most = v;
                    best = at;
                }
            }
        }
        p.out[i] = most;
        if (p.saved) {
            p.saved[i] = best;
        }
    }
}

static __global__ void max_backward_kernel(pool_params p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        place x = place_of(i, p.s.h, p.s.w, p.s.c);
        uint64_t plane = (uint64_t)x.n * p.s.ho * p.s.wo * p.s.c + x.c;
        int own = x.h * p.s.w + x.w;
        int h1 = last_window(x.h, p.s.sh, p.s.ph, p.s.ho);
        int w1 = last_window(x.w, p.s.sw, p.s.pw, p.s.wo);
        float sum = 0.0f;
        for (int h = first_window(x.h, p.s.sh, p.s.ph, p.s.kh); h <= h1; h++) {
            for (int w = first_window(x.w, p.s.sw, p.s.pw, p.s.kw); w <= w1; w++) {
                uint64_t at = plane + (uint64_t)(h * p.s.wo + w) * p.s.c;
                if (p.saved[at] == own) {
                    sum += p.in[at];
                }
            }
        }
        p.out[i] = sum;
    }
}

static __global__ void avg_forward_kernel(pool_params p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        place o = place_of(i, p.s.ho, p.s.wo, p.s.c);
        const float *plane = p.in + (uint64_t)o.n * p.s.h * p.s.w * p.s.c + o.c;
        int h0 = begin_of(o.h, p.s.sh, p.s.ph);
        int w0 = begin_of(o.w, p.s.sw, p.s.pw);
        int h1 = end_of(o.h, p.s.sh, p.s.ph, p.s.kh, p.s.h);
        int w1 = end_of(o.w, p.s.sw, p.s.pw, p.s.kw, p.s.w);
        float sum = 0.0f;
        for (int h = h0; h < h1; h++) {
            for (int w = w0; w < w1; w++) {
                sum += plane[(uint64_t)(h * p.s.w + w) * p.s.c];
            }
        }
        p.out[i] = sum / (float)((h1 - h0) * (w1 - w0));
    }
}

static __global__ void avg_backward_kernel(pool_params p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        place x = place_of(i, p.s.h, p.s.w, p.s.c);
        const float *plane = p.in + (uint64_t)x.n * p.s.ho * p.s.wo * p.s.c + x.c;
        int h1 = last_window(x.h, p.s.sh, p.s.ph, p.s.ho);
        int w1 = last_window(x.w, p.s.sw, p.s.pw, p.s.wo);
        float sum = 0.0f;
        for (int h = first_window(x.h, p.s.sh, p.s.ph, p.s.kh); h <= h1; h++) {
            int height = end_of(h, p.s.sh, p.s.ph, p.s.kh, p.s.h) - begin_of(h, p.s.sh, p.s.ph);
            for (int w = first_window(x.w, p.s.sw, p.s.pw, p.s.kw); w <= w1; w++) {
                int width = end_of(w, p.s.sw, p.s.pw, p.s.kw, p.s.w) - begin_of(w, p.s.sw, p.s.pw);
                sum += plane[(uint64_t)(h * p.s.wo + w) * p.s.c] / (float)(height * width);
            }
        }
        p.out[i] = sum;
    }
}

static uint64_t inputs(const ren__pool_shape *s)
{
    return (uint64_t)s->n * (uint64_t)s->h * (uint64_t)s->w * (uint64_t)s->c;
}

static uint64_t outputs(const ren__pool_shape *s)
{
    return (uint64_t)s->n * (uint64_t)s->ho * (uint64_t)s->wo * (uint64_t)s->c;
}

cudaError_t ren__cuda_k_max_pool_forward(cudaStream_t stream, const ren__pool_shape *shape,
                                         const float *x, float *y, int32_t *saved)
{
    pool_params p = {*shape, x, y, saved, outputs(shape)};
    return REN_LAUNCH(max_forward_kernel, ren__blocks(p.n, REN_THREADS, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_max_pool_backward(cudaStream_t stream, const ren__pool_shape *shape,
                                          const float *dy, const int32_t *saved, float *dx)
{
    pool_params p = {*shape, dy, dx, (int32_t *)saved, inputs(shape)};
    return REN_LAUNCH(max_backward_kernel, ren__blocks(p.n, REN_THREADS, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_avg_pool_forward(cudaStream_t stream, const ren__pool_shape *shape,
                                         const float *x, float *y)
{
    pool_params p = {*shape, x, y, NULL, outputs(shape)};
    return REN_LAUNCH(avg_forward_kernel, ren__blocks(p.n, REN_THREADS, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_avg_pool_backward(cudaStream_t stream, const ren__pool_shape *shape,
                                          const float *dy, float *dx)
{
    pool_params p = {*shape, dy, dx, NULL, inputs(shape)};
    return REN_LAUNCH(avg_backward_kernel, ren__blocks(p.n, REN_THREADS, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}

/* ------------------------------------------------------------------ global average */

typedef struct global_params {
    const float *in;
    float *out;
    uint64_t batch, pixels, channels;
} global_params;

#define COLUMNS 32u /* channels of a block, one to a thread of a warp, so that loads coalesce */
#define LANES   8u  /* pixels that a block adds side by side */

static __global__ void global_forward_kernel(global_params p)
{
    __shared__ float sums[LANES][COLUMNS];
    uint32_t column = threadIdx.x % COLUMNS;
    uint32_t lane = threadIdx.x / COLUMNS;
    uint64_t channel = (uint64_t)blockIdx.x * COLUMNS + column;
    uint64_t image = blockIdx.y;
    float sum = 0.0f;
    if (channel < p.channels) {
        for (uint64_t i = lane; i < p.pixels; i += LANES) {
            sum += p.in[(image * p.pixels + i) * p.channels + channel];
        }
    }
    sums[lane][column] = sum;
    __syncthreads();
    if (lane == 0 && channel < p.channels) {
        for (uint32_t k = 1; k < LANES; k++) {
            sum += sums[k][column];
        }
        p.out[image * p.channels + channel] = sum / (float)p.pixels;
    }
}

static __global__ void global_backward_kernel(global_params p)
{
    uint64_t n = p.batch * p.pixels * p.channels;
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint64_t image = i / (p.pixels * p.channels);
        p.out[i] = p.in[image * p.channels + i % p.channels] / (float)p.pixels;
    }
}

cudaError_t ren__cuda_k_global_avg_forward(cudaStream_t stream, const float *x, float *y,
                                           uint64_t batch, uint64_t pixels, uint64_t channels)
{
    global_params p = {x, y, batch, pixels, channels};
    dim3 blocks((uint32_t)((channels + COLUMNS - 1u) / COLUMNS), (uint32_t)batch, 1u);
    return REN_LAUNCH(global_forward_kernel, blocks, COLUMNS * LANES, stream, p);
}

cudaError_t ren__cuda_k_global_avg_backward(cudaStream_t stream, const float *dy, float *dx,
                                            uint64_t batch, uint64_t pixels, uint64_t channels)
{
    global_params p = {dy, dx, batch, pixels, channels};
    return REN_LAUNCH(global_backward_kernel,
                      ren__blocks(batch * pixels * channels, REN_THREADS, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}
