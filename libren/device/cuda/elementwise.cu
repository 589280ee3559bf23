/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/elementwise.cu - activations, dropout, additions, concatenation.
 *
 * Purpose   Operations in which every output element depends on the inputs at its own place.
 *           Bound by memory: 16 bytes an access where all addresses allow it, f32 inside.
 * Threads   launchers: any; see kernels.h.
 * Dropout   Random words are Philox4x32-10 (Salmon et al. 2011): element i uses word i % 4 of the
 *           block with counter (i / 4, layer, step) under the key `seed`, and is kept when the
 *           word's upper 24 bits, as a fraction, are at least the probability. So the backward
 *           pass draws the same mask again, a replayed graph draws a new one each step, and the
 *           CPU device draws the same.
 */
#include "activation.cuh"
#include "pack.cuh"

/* ------------------------------------------------------------------ activations */

template <typename T> struct act_params {
    ren__activation activation;
    float alpha;
    int vector;
    const T *dy, *at; /* backward: `at` is y or x, whichever the slope is taken from */
    T *out;
    uint64_t n;
};

template <typename T> static __global__ void act_forward_kernel(act_params<T> p)
{
    const int W = ren__wide<T>::width;
    for (uint64_t i = ren__first<T>(); i < p.n; i += ren__stride<T>()) {
        float v[W];
        ren__load<T>(p.at, i, p.n, p.vector, v);
        ren__act_values<W>(p.activation, p.alpha, v);
        ren__store<T>(p.out, i, p.n, p.vector, v);
    }
}

template <typename T> static __global__ void act_backward_kernel(act_params<T> p)
{
    const int W = ren__wide<T>::width;
    for (uint64_t i = ren__first<T>(); i < p.n; i += ren__stride<T>()) {
        float g[W];
        float v[W];
        ren__load<T>(p.dy, i, p.n, p.vector, g);
        ren__load<T>(p.at, i, p.n, p.vector, v);
        ren__act_slopes<W>(p.activation, p.alpha, v, g);
        ren__store<T>(p.out, i, p.n, p.vector, g);
    }
}

template <typename T>
static cudaError_t act_forward(cudaStream_t stream, ren__activation activation, float alpha,
                               const void *x, void *y, uint64_t n)
{
    act_params<T> p = {
        activation, alpha, ren__aligned16(x) && ren__aligned16(y), NULL, (const T *)x, (T *)y, n};
    return REN_LAUNCH(act_forward_kernel<T>, ren__flat_blocks<T>(n), REN_THREADS, stream, p);
}

template <typename T>
static cudaError_t act_backward(cudaStream_t stream, ren__activation activation, float alpha,
                                const void *dy, const void *at, void *dx, uint64_t n)
{
    act_params<T> p = {activation,
                       alpha,
                       ren__aligned16(dy) && ren__aligned16(at) && ren__aligned16(dx),
                       (const T *)dy,
                       (const T *)at,
                       (T *)dx,
                       n};
    return REN_LAUNCH(act_backward_kernel<T>, ren__flat_blocks<T>(n), REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_act_forward(cudaStream_t stream, ren_dtype dtype,
                                    ren__activation activation, float alpha, const void *x, void *y,
                                    uint64_t n)
{
    return REN_DISPATCH(dtype, act_forward, stream, activation, alpha, x, y, n);
}

cudaError_t ren__cuda_k_act_backward(cudaStream_t stream, ren_dtype dtype,
                                     ren__activation activation, float alpha, const void *dy,
                                     const void *x, const void *y, void *dx, uint64_t n)
{
    const void *at = ren__slope_reads_y(activation) ? y : x;
    return REN_DISPATCH(dtype, act_backward, stream, activation, alpha, dy, at, dx, n);
}

/* ------------------------------------------------------------------ dropout */

template <typename T> struct dropout_params {
    const ren__control *control;
    const T *x;
    T *y;
    uint64_t n;
    float probability, scale;
    uint32_t layer;
    int vector;
};

static __device__ __forceinline__ void philox(uint32_t counter[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint32_t high0 = __umulhi(0xD2511F53u, counter[0]);
        uint32_t low0 = 0xD2511F53u * counter[0];
        uint32_t high1 = __umulhi(0xCD9E8D57u, counter[2]);
        uint32_t low1 = 0xCD9E8D57u * counter[2];
        counter[0] = high1 ^ counter[1] ^ key0;
        counter[1] = low1;
        counter[2] = high0 ^ counter[3] ^ key1;
        counter[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

template <typename T> static __global__ void dropout_kernel(dropout_params<T> p)
{
    const int W = ren__wide<T>::width;
    uint64_t seed = p.control->seed;
    uint64_t step = p.control->step;
    for (uint64_t i = ren__first<T>(); i < p.n; i += ren__stride<T>()) {
        float v[W];
        ren__load<T>(p.x, i, p.n, p.vector, v);
#pragma unroll
        for (int four = 0; four < W; four += 4) {
            uint64_t block = i / 4u + (uint64_t)(four / 4);
            uint32_t word[4] = {(uint32_t)block,
                                (uint32_t)(block >> 32) ^ ((uint32_t)(step >> 32) << 16), p.layer,
                                (uint32_t)step};
            philox(word, (uint32_t)seed, (uint32_t)(seed >> 32));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float uniform = (float)(word[k] >> 8) * (1.0f / 16777216.0f);
                v[four + k] = uniform >= p.probability ? v[four + k] * p.scale : 0.0f;
            }
        }
        ren__store<T>(p.y, i, p.n, p.vector, v);
    }
}

template <typename T>
static cudaError_t dropout(cudaStream_t stream, float probability, uint32_t layer,
                           const ren__control *control, const void *x, void *y, uint64_t n)
{
    dropout_params<T> p;
    p.control = control;
    p.x = (const T *)x;
    p.y = (T *)y;
    p.n = n;
    p.probability = probability;
    p.layer = layer;
    p.scale = 1.0f / (1.0f - probability);
    p.vector = ren__aligned16(x) && ren__aligned16(y);
    return REN_LAUNCH(dropout_kernel<T>, ren__flat_blocks<T>(n), REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_dropout(cudaStream_t stream, ren_dtype dtype, float probability,
                                uint32_t layer, const ren__control *control, const void *x, void *y,
                                uint64_t n)
{
    return REN_DISPATCH(dtype, dropout, stream, probability, layer, control, x, y, n);
}

/* ------------------------------------------------------------------ additions */

template <typename T> struct add_params {
    const T *a, *b;
    T *y;
    uint64_t n;
    int vector;
};

template <typename T> static __global__ void add_kernel(add_params<T> p)
{
    const int W = ren__wide<T>::width;
    for (uint64_t i = ren__first<T>(); i < p.n; i += ren__stride<T>()) {
        float a[W];
        float b[W];
        ren__load<T>(p.a, i, p.n, p.vector, a);
        ren__load<T>(p.b, i, p.n, p.vector, b);
#pragma unroll
        for (int k = 0; k < W; k++) {
            a[k] += b[k];
        }
        ren__store<T>(p.y, i, p.n, p.vector, a);
    }
}

template <typename T>
static cudaError_t add(cudaStream_t stream, const void *a, const void *b, void *y, uint64_t n)
{
    add_params<T> p = {(const T *)a, (const T *)b, (T *)y, n,
                       ren__aligned16(a) && ren__aligned16(b) && ren__aligned16(y)};
    return REN_LAUNCH(add_kernel<T>, ren__flat_blocks<T>(n), REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_add(cudaStream_t stream, ren_dtype dtype, const void *a, const void *b,
                            void *y, uint64_t n)
{
    return REN_DISPATCH(dtype, add, stream, a, b, y, n);
}

/* ------------------------------------------------------------------ concatenation */

/* Copies know no dtype: they move units, the largest of 1 to 16 bytes that divides every address
 * and every part's row. Counts and widths are in units. */
template <typename U> struct concat_params {
    U *part[REN__OPERANDS];
    uint32_t end[REN__OPERANDS]; /* first column of the joined tensor past the part */
    U *joined;
    uint64_t n;        /* units of the joined tensor */
    uint32_t channels; /* of its rows */
    uint32_t count;
    int split;
};

template <typename U> static __global__ void concat_kernel(concat_params<U> p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        uint64_t row = i / p.channels;
        uint32_t channel = (uint32_t)(i - row * p.channels);
        uint32_t begin = 0;
        U *part = p.part[0];
        uint32_t width = p.end[0];
        /* The tables are indexed by constants once unrolled, so they stay in constant memory. */
#pragma unroll
        for (uint32_t k = 1; k < REN__OPERANDS; k++) {
            if (k < p.count && channel >= p.end[k - 1u]) {
                begin = p.end[k - 1u];
                part = p.part[k];
                width = p.end[k] - begin;
            }
        }
        if (p.split) {
            part[row * width + channel - begin] = p.joined[i];
        } else {
            p.joined[i] = part[row * width + channel - begin];
        }
    }
}

template <typename U>
static cudaError_t concat(cudaStream_t stream, void *const *parts, const uint64_t *bytes,
                          uint32_t count, void *joined, uint64_t rows, int split)
{
    concat_params<U> p;
    uint32_t sum = 0;
    for (uint32_t k = 0; k < REN__OPERANDS; k++) {
        sum += k < count ? (uint32_t)(bytes[k] / sizeof(U)) : 0u;
        p.part[k] = k < count ? (U *)parts[k] : NULL;
        p.end[k] = sum;
    }
    p.joined = (U *)joined;
    p.n = rows * sum;
    p.channels = sum;
    p.count = count;
    p.split = split;
    return REN_LAUNCH(concat_kernel<U>, ren__blocks(p.n, REN_THREADS, REN_FLAT_BLOCKS), REN_THREADS,
                      stream, p);
}

cudaError_t ren__cuda_k_concat(cudaStream_t stream, void *const *parts, const uint64_t *bytes,
                               uint32_t count, void *joined, uint64_t rows, int split)
{
    uint64_t all = (uint64_t)(uintptr_t)joined;
    for (uint32_t k = 0; k < count; k++) {
        all |= (uint64_t)(uintptr_t)parts[k] | bytes[k];
    }
    if (all % 16u == 0) {
        return concat<uint4>(stream, parts, bytes, count, joined, rows, split);
    }
    if (all % 4u == 0) {
        return concat<uint32_t>(stream, parts, bytes, count, joined, rows, split);
    }
    return all % 2u == 0 ? concat<uint16_t>(stream, parts, bytes, count, joined, rows, split)
                         : concat<uint8_t>(stream, parts, bytes, count, joined, rows, split);
}
