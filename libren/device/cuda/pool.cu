/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/pool.cu - pooling over [N, H, W, C].
 *
 * Purpose   Maximum, average and global average, forward and backward. Padding is outside of every
 *           maximum and is not counted by an average; ties of the maximum go to the first in row
 *           order; a NaN in the window is its maximum.
 * Order     Backward passes gather: a thread owns one pack of channels of an input pixel and adds
 *           what the windows that hold it give, in row order, so nothing is added by two threads.
 * Saved     What the maximum's backward pass needs is which place of its window each output came
 *           from: a byte where a window has at most 256 places, else two.
 */
#include "columns.cuh"

#define ABREAST     3   /* packs that a thread has under way: the places of a window's row, often */
#define BYTE_PLACES 256 /* most places of a window that a byte can tell apart */

template <typename T> struct pool_params {
    ren__pool_shape s;
    const T *in;
    T *out;
    void *saved; /* uint8_t or uint16_t to an output element; may be NULL */
    int wide_saved;
    int packs;  /* of a pixel */
    uint64_t n; /* packs that the kernel writes */
};

typedef struct place {
    int n, h, w, c;
} place;

static __device__ __forceinline__ place place_of(uint64_t i, int h, int w, int c)
{
    place p;
    if (i >> 32 == 0) { /* three short divisions instead of three long ones */
        uint32_t left = (uint32_t)i;
        p.c = (int)(left % (uint32_t)c);
        left /= (uint32_t)c;
        p.w = (int)(left % (uint32_t)w);
        left /= (uint32_t)w;
        p.h = (int)(left % (uint32_t)h);
        p.n = (int)(left / (uint32_t)h);
        return p;
    }
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

template <int W>
static __device__ __forceinline__ void read_places(const void *saved, int wide, uint64_t i,
                                                   int place[W])
{
    if (wide) {
        ren__pack<uint16_t, W> words = ren__read<uint16_t, W>((const uint16_t *)saved, i);
#pragma unroll
        for (int k = 0; k < W; k++) {
            place[k] = (int)words.v[k];
        }
    } else {
        ren__pack<uint8_t, W> bytes = ren__read<uint8_t, W>((const uint8_t *)saved, i);
#pragma unroll
        for (int k = 0; k < W; k++) {
            place[k] = (int)bytes.v[k];
        }
    }
}

/* The places of a pack's maxima, in one store. */
template <int W>
static __device__ __forceinline__ void write_places(void *saved, int wide, uint64_t i,
                                                    const int place[W])
{
    ren__pack<uint16_t, W> words;
    ren__pack<uint8_t, W> bytes;
#pragma unroll
    for (int k = 0; k < W; k++) {
        words.v[k] = (uint16_t)place[k];
        bytes.v[k] = (uint8_t)place[k];
    }
    if (wide) {
        *(ren__pack<uint16_t, W> *)((uint16_t *)saved + i) = words;
    } else {
        *(ren__pack<uint8_t, W> *)((uint8_t *)saved + i) = bytes;
    }
}

/* Up to ABREAST packs that lie `channels` apart, `count` at most. */
template <typename T, int W>
static __device__ __forceinline__ void read_row(const T *p, int64_t at, int channels, int count,
                                                ren__pack<T, W> row[ABREAST])
{
#pragma unroll
    for (int u = 0; u < ABREAST; u++) {
        if (u < count) {
            row[u] = ren__read<T, W>(p, (uint64_t)(at + (int64_t)u * channels));
        }
    }
}

template <typename T, int W> static __global__ void max_forward_kernel(pool_params<T> p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        place o = place_of(i, p.s.ho, p.s.wo, p.packs);
        const T *plane = p.in + (uint64_t)o.n * p.s.h * p.s.w * p.s.c + (uint64_t)o.c * W;
        int top = o.h * p.s.sh - p.s.ph;
        int left = o.w * p.s.sw - p.s.pw;
        int h0 = begin_of(o.h, p.s.sh, p.s.ph);
        int w0 = begin_of(o.w, p.s.sw, p.s.pw);
        int h1 = end_of(o.h, p.s.sh, p.s.ph, p.s.kh, p.s.h);
        int w1 = end_of(o.w, p.s.sw, p.s.pw, p.s.kw, p.s.w);
        int best[W];
        float most[W];
        ren__unpack<T, W>(ren__read<T, W>(plane, (uint64_t)(h0 * p.s.w + w0) * p.s.c), most);
#pragma unroll
        for (int k = 0; k < W; k++) {
            best[k] = (h0 - top) * p.s.kw + (w0 - left);
        }
        for (int h = h0; h < h1; h++) {
            for (int w = w0; w < w1; w += ABREAST) {
                ren__pack<T, W> row[ABREAST];
                read_row<T, W>(plane, (int64_t)(h * p.s.w + w) * p.s.c, p.s.c, w1 - w, row);
#pragma unroll
                for (int u = 0; u < ABREAST; u++) {
                    float v[W];
                    int at = (h - top) * p.s.kw + (w + u - left);
                    ren__unpack<T, W>(row[u], v);
#pragma unroll
                    for (int k = 0; k < W; k++) {
                        if (w + u < w1 &&
                            (v[k] > most[k] || (v[k] != v[k] && most[k] == most[k]))) {
                            most[k] = v[k];
                            best[k] = at;
                        }
                    }
                }
            }
        }
        ren__write<T, W>(p.out, i * W, most);
        if (p.saved) {
            write_places<W>(p.saved, p.wide_saved, i * W, best);
        }
    }
}

template <typename T, int W> static __global__ void max_backward_kernel(pool_params<T> p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        place x = place_of(i, p.s.h, p.s.w, p.packs);
        uint64_t plane = (uint64_t)x.n * p.s.ho * p.s.wo * p.s.c + (uint64_t)x.c * W;
        int h1 = last_window(x.h, p.s.sh, p.s.ph, p.s.ho);
        int w0 = first_window(x.w, p.s.sw, p.s.pw, p.s.kw);
        int w1 = last_window(x.w, p.s.sw, p.s.pw, p.s.wo);
        float sum[W] = {0.0f};
        for (int h = first_window(x.h, p.s.sh, p.s.ph, p.s.kh); h <= h1; h++) {
            for (int w = w0; w <= w1; w += ABREAST) {
                ren__pack<T, W> row[ABREAST];
                int from[ABREAST][W];
                uint64_t at = plane + (uint64_t)(h * p.s.wo + w) * p.s.c;
                int own = (x.h - h * p.s.sh + p.s.ph) * p.s.kw + (x.w - w * p.s.sw + p.s.pw);
                read_row<T, W>(p.in, (int64_t)at, p.s.c, w1 + 1 - w, row);
#pragma unroll
                for (int u = 0; u < ABREAST; u++) {
                    if (w + u <= w1) {
                        read_places<W>(p.saved, p.wide_saved, at + (uint64_t)(u * p.s.c), from[u]);
                    }
                }
#pragma unroll
                for (int u = 0; u < ABREAST; u++) {
                    float g[W];
                    ren__unpack<T, W>(row[u], g);
#pragma unroll
                    for (int k = 0; k < W; k++) {
                        sum[k] += w + u <= w1 && from[u][k] == own - u * p.s.sw ? g[k] : 0.0f;
                    }
                }
            }
        }
        ren__write<T, W>(p.out, i * W, sum);
    }
}

template <typename T, int W> static __global__ void avg_forward_kernel(pool_params<T> p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        place o = place_of(i, p.s.ho, p.s.wo, p.packs);
        const T *plane = p.in + (uint64_t)o.n * p.s.h * p.s.w * p.s.c + (uint64_t)o.c * W;
        int h0 = begin_of(o.h, p.s.sh, p.s.ph);
        int w0 = begin_of(o.w, p.s.sw, p.s.pw);
        int h1 = end_of(o.h, p.s.sh, p.s.ph, p.s.kh, p.s.h);
        int w1 = end_of(o.w, p.s.sw, p.s.pw, p.s.kw, p.s.w);
        float part = 1.0f / (float)((h1 - h0) * (w1 - w0));
        float sum[W] = {0.0f};
        for (int h = h0; h < h1; h++) {
            for (int w = w0; w < w1; w += ABREAST) {
                ren__pack<T, W> row[ABREAST];
                read_row<T, W>(plane, (int64_t)(h * p.s.w + w) * p.s.c, p.s.c, w1 - w, row);
#pragma unroll
                for (int u = 0; u < ABREAST; u++) {
                    float v[W];
                    ren__unpack<T, W>(row[u], v);
#pragma unroll
                    for (int k = 0; k < W; k++) {
                        sum[k] += w + u < w1 ? v[k] : 0.0f;
                    }
                }
            }
        }
#pragma unroll
        for (int k = 0; k < W; k++) {
            sum[k] *= part;
        }
        ren__write<T, W>(p.out, i * W, sum);
    }
}

template <typename T, int W> static __global__ void avg_backward_kernel(pool_params<T> p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        place x = place_of(i, p.s.h, p.s.w, p.packs);
        const T *plane = p.in + (uint64_t)x.n * p.s.ho * p.s.wo * p.s.c + (uint64_t)x.c * W;
        int h1 = last_window(x.h, p.s.sh, p.s.ph, p.s.ho);
        int w1 = last_window(x.w, p.s.sw, p.s.pw, p.s.wo);
        float sum[W] = {0.0f};
        for (int h = first_window(x.h, p.s.sh, p.s.ph, p.s.kh); h <= h1; h++) {
            int height = end_of(h, p.s.sh, p.s.ph, p.s.kh, p.s.h) - begin_of(h, p.s.sh, p.s.ph);
            for (int w = first_window(x.w, p.s.sw, p.s.pw, p.s.kw); w <= w1; w += ABREAST) {
                ren__pack<T, W> row[ABREAST];
                read_row<T, W>(plane, (int64_t)(h * p.s.wo + w) * p.s.c, p.s.c, w1 + 1 - w, row);
#pragma unroll
                for (int u = 0; u < ABREAST; u++) {
                    int width = end_of(w + u, p.s.sw, p.s.pw, p.s.kw, p.s.w) -
                                begin_of(w + u, p.s.sw, p.s.pw);
                    float part = w + u <= w1 ? 1.0f / (float)(height * width) : 0.0f;
                    float g[W];
                    ren__unpack<T, W>(row[u], g);
#pragma unroll
                    for (int k = 0; k < W; k++) {
                        sum[k] = w + u <= w1 ? fmaf(g[k], part, sum[k]) : sum[k];
                    }
                }
            }
        }
        ren__write<T, W>(p.out, i * W, sum);
    }
}

typedef enum pool_pass {
    MAX_FORWARD,
    MAX_BACKWARD,
    AVG_FORWARD,
    AVG_BACKWARD
} pool_pass;

template <typename T, int W>
static cudaError_t launch(cudaStream_t stream, pool_pass pass, pool_params<T> p)
{
    uint32_t blocks;
    int forward = pass == MAX_FORWARD || pass == AVG_FORWARD;
    p.packs = p.s.c / W;
    p.n = (uint64_t)p.s.n * (uint64_t)(forward ? p.s.ho : p.s.h) *
          (uint64_t)(forward ? p.s.wo : p.s.w) * (uint64_t)p.packs;
    blocks = ren__blocks(p.n, REN_THREADS, REN_FLAT_BLOCKS);
    switch (pass) {
    case MAX_FORWARD:
        return REN_LAUNCH((max_forward_kernel<T, W>), blocks, REN_THREADS, stream, p);
    case MAX_BACKWARD:
        return REN_LAUNCH((max_backward_kernel<T, W>), blocks, REN_THREADS, stream, p);
    case AVG_FORWARD:
        return REN_LAUNCH((avg_forward_kernel<T, W>), blocks, REN_THREADS, stream, p);
    default:
        return REN_LAUNCH((avg_backward_kernel<T, W>), blocks, REN_THREADS, stream, p);
    }
}

static int saved_is_wide(const ren__pool_shape *s)
{
    return s->kh * s->kw > BYTE_PLACES;
}

uint64_t ren__cuda_k_max_pool_saved(const ren__pool_shape *s)
{
    return (uint64_t)s->n * (uint64_t)s->ho * (uint64_t)s->wo * (uint64_t)s->c *
           (saved_is_wide(s) ? sizeof(uint16_t) : sizeof(uint8_t));
}

template <typename T>
static cudaError_t pool(cudaStream_t stream, pool_pass pass, const ren__pool_shape *shape,
                        const void *in, void *out, void *saved)
{
    const int W = ren__wide<T>::width;
    pool_params<T> p = {*shape, (const T *)in, (T *)out, saved, saved_is_wide(shape), 0, 0};
    return shape->c % W == 0 && ren__aligned16(in) && ren__aligned16(out) && ren__aligned16(saved)
               ? launch<T, W>(stream, pass, p)
               : launch<T, 1>(stream, pass, p);
}

cudaError_t ren__cuda_k_max_pool_forward(cudaStream_t stream, ren_dtype dtype,
                                         const ren__pool_shape *shape, const void *x, void *y,
                                         void *saved)
{
    return REN_DISPATCH(dtype, pool, stream, MAX_FORWARD, shape, x, y, saved);
}

cudaError_t ren__cuda_k_max_pool_backward(cudaStream_t stream, ren_dtype dtype,
                                          const ren__pool_shape *shape, const void *dy,
                                          const void *saved, void *dx)
{
    return REN_DISPATCH(dtype, pool, stream, MAX_BACKWARD, shape, dy, dx, (void *)saved);
}

cudaError_t ren__cuda_k_avg_pool_forward(cudaStream_t stream, ren_dtype dtype,
                                         const ren__pool_shape *shape, const void *x, void *y)
{
    return REN_DISPATCH(dtype, pool, stream, AVG_FORWARD, shape, x, y, NULL);
}

cudaError_t ren__cuda_k_avg_pool_backward(cudaStream_t stream, ren_dtype dtype,
                                          const ren__pool_shape *shape, const void *dy, void *dx)
{
    return REN_DISPATCH(dtype, pool, stream, AVG_BACKWARD, shape, dy, dx, NULL);
}

/* ------------------------------------------------------------------ global average */

#define MOST_IMAGES 65535u /* side by side in a grid */

template <typename T> struct global_params {
    const T *in;
    T *out;
    uint64_t batch, pixels, channels;
    ren__tiles tiles; /* of one image; it is not split, the grid's second side is the batch */
    uint64_t n;       /* backward: packs of dx */
    uint64_t packs;   /* of a pixel */
};

template <typename T, int W>
static __global__ void __launch_bounds__(REN_COLUMN_THREADS)
    global_forward_kernel(global_params<T> p)
{
    __shared__ float shared[REN_COLUMN_SHARED(1)];
    uint32_t pack = threadIdx.x & (p.tiles.side - 1u);
    uint32_t lane = threadIdx.x / p.tiles.side;
    uint32_t step = blockDim.x / p.tiles.side;
    uint64_t channel = ((uint64_t)blockIdx.x * p.tiles.side + pack) * (uint64_t)W;
    for (uint64_t image = blockIdx.y; image < p.batch; image += gridDim.y) {
        ren__stand s;
        float sum[W] = {0.0f};
        s.first = (image * p.pixels + lane) * p.channels + channel;
        s.stride = (int64_t)(step * p.channels);
        s.count = channel < p.channels && lane < p.pixels
                      ? (uint32_t)((p.pixels - lane - 1u) / step) + 1u
                      : 0u;
        for (uint32_t i = 0; i < s.count; i += REN_UNROLL) {
            ren__pack<T, W> x[REN_UNROLL];
            ren__read_some<T, W, REN_UNROLL>(p.in, s, i, x);
#pragma unroll
            for (int u = 0; u < REN_UNROLL; u++) {
                if (i + (uint32_t)u < s.count) {
                    float v[W];
                    ren__unpack<T, W>(x[u], v);
#pragma unroll
                    for (int k = 0; k < W; k++) {
                        sum[k] += v[k];
                    }
                }
            }
        }
        ren__column_sums<W>(sum, p.tiles.side, shared);
        if (lane == 0 && channel < p.channels) {
#pragma unroll
            for (int k = 0; k < W; k++) {
                sum[k] /= (float)p.pixels;
            }
            ren__write<T, W>(p.out, image * p.channels + channel, sum);
        }
    }
}

template <typename T, int W> static __global__ void global_backward_kernel(global_params<T> p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    float part = 1.0f / (float)p.pixels;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        place x = place_of(i, 1, (int)p.pixels, (int)p.packs);
        float v[W];
        ren__unpack<T, W>(ren__read<T, W>(p.in, (uint64_t)x.n * p.channels + (uint64_t)x.c * W), v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            v[k] *= part;
        }
        ren__write<T, W>(p.out, i * W, v);
    }
}

template <typename T, int W>
static cudaError_t global(cudaStream_t stream, int forward, const void *in, void *out,
                          uint64_t batch, uint64_t pixels, uint64_t channels)
{
    global_params<T> p = {(const T *)in, (T *)out, batch, pixels, channels, {0, 0, 0, 0}, 0, 0};
    p.tiles = ren__tiles_of(pixels, channels, (uint32_t)W, 1u, 1u);
    p.packs = channels / (uint64_t)W;
    p.n = batch * pixels * p.packs;
    if (forward) {
        dim3 grid(p.tiles.tiles, batch < MOST_IMAGES ? (uint32_t)batch : MOST_IMAGES, 1u);
        uint32_t threads = REN_COLUMN_THREADS;
        while (threads > REN_WARP * 2u && threads * REN_UNROLL > p.tiles.side * pixels) {
            threads /= 2u; /* a small image has no use for more */
        }
        return REN_LAUNCH((global_forward_kernel<T, W>), grid, threads, stream, p);
    }
    return REN_LAUNCH((global_backward_kernel<T, W>),
                      ren__blocks(p.n, REN_THREADS, REN_FLAT_BLOCKS), REN_THREADS, stream, p);
}

template <typename T>
static cudaError_t global_any(cudaStream_t stream, int forward, const void *in, void *out,
                              uint64_t batch, uint64_t pixels, uint64_t channels)
{
    const int W = ren__wide<T>::width;
    return channels % (uint64_t)W == 0 && ren__aligned16(in) && ren__aligned16(out)
               ? global<T, W>(stream, forward, in, out, batch, pixels, channels)
               : global<T, 1>(stream, forward, in, out, batch, pixels, channels);
}

cudaError_t ren__cuda_k_global_avg(cudaStream_t stream, ren_dtype dtype, int forward,
                                   const void *in, void *out, uint64_t batch, uint64_t pixels,
                                   uint64_t channels)
{
    return REN_DISPATCH(dtype, global_any, stream, forward, in, out, batch, pixels, channels);
}
