/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/elementwise.cu - activations, dropout, additions, concatenation.
 *
 * Purpose   Operations in which every output element depends on the inputs at its own place.
 *           Bound by memory: 16 bytes an access where all addresses allow it.
 * Threads   launchers: any; see kernels.h.
 * Dropout   Random words are Philox4x32-10 (Salmon et al. 2011): element i uses word i % 4 of the
 *           block with counter (i / 4, layer, step) under the key `seed`, and is kept when the
 *           word's upper 24 bits, as a fraction, are at least the probability. So the backward
 *           pass draws the same mask again, a replayed graph draws a new one each step, and the
 *           CPU device draws the same.
 */
#include "launch.cuh"

/* ------------------------------------------------------------------ activations */

typedef struct act_params {
    ren__activation activation;
    float alpha;
    int vector;
    const float *dy, *x, *y;
    float *out;
    uint64_t n;
} act_params;

#define SQRT_HALF         0.70710678118654752440f
#define INVERSE_SQRT_2_PI 0.39894228040143267794f
#define SQRT_2_OVER_PI    0.79788456080286535588f
#define GELU_CUBIC        0.044715f

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ float act_value(ren__activation activation, float alpha, float x)
{
    switch (activation) {
    case REN__ACT_RELU:
        return x > 0.0f || x != x ? x : 0.0f; /* NaN stays NaN */
    case REN__ACT_LEAKY_RELU:
        return x > 0.0f ? x : alpha * x;
    case REN__ACT_TANH:
        return tanhf(x);
    case REN__ACT_SIGMOID:
        return sigmoid(x);
    case REN__ACT_SILU:
        return x * sigmoid(x);
    case REN__ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * SQRT_HALF));
    default:
        return 0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)));
    }
}

/* The derivative, from the input x, or where that is shorter from the output y. */
static __device__ float act_slope(ren__activation activation, float alpha, float x, float y)
{
    float s;
    switch (activation) {
    case REN__ACT_RELU:
        return y > 0.0f ? 1.0f : 0.0f;
    case REN__ACT_LEAKY_RELU:
        return x > 0.0f ? 1.0f : alpha;
    case REN__ACT_TANH:
        return 1.0f - y * y;
    case REN__ACT_SIGMOID:
        return y * (1.0f - y);
    case REN__ACT_SILU:
        s = sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    case REN__ACT_GELU_ERF:
        return 0.5f * (1.0f + erff(x * SQRT_HALF)) + x * INVERSE_SQRT_2_PI * expf(-0.5f * x * x);
    default:
        s = tanhf(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
        return 0.5f * (1.0f + s) +
               0.5f * x * (1.0f - s * s) * SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * x * x);
    }
}

static __global__ void act_forward_kernel(act_params p)
{
    for (uint64_t i = ren__first4(); i < p.n; i += ren__stride4()) {
        float v[4];
        ren__load4(p.x, i, p.n, p.vector, v);
        for (int k = 0; k < 4; k++) {
            v[k] = act_value(p.activation, p.alpha, v[k]);
        }
        ren__store4(p.out, i, p.n, p.vector, v);
    }
}

static __device__ __forceinline__ int slope_reads_y(ren__activation activation)
{
    return activation == REN__ACT_RELU || activation == REN__ACT_TANH ||
           activation == REN__ACT_SIGMOID;
}

static __global__ void act_backward_kernel(act_params p)
{
    int from_y = slope_reads_y(p.activation);
    for (uint64_t i = ren__first4(); i < p.n; i += ren__stride4()) {
        float g[4];
        float v[4];
        ren__load4(p.dy, i, p.n, p.vector, g);
        ren__load4(from_y ? p.y : p.x, i, p.n, p.vector, v);
        for (int k = 0; k < 4; k++) {
            g[k] *= act_slope(p.activation, p.alpha, v[k], v[k]);
        }
        ren__store4(p.out, i, p.n, p.vector, g);
    }
}

cudaError_t ren__cuda_k_act_forward(cudaStream_t stream, ren__activation activation, float alpha,
                                    const float *x, float *y, uint64_t n)
{
    act_params p = {activation, alpha, ren__aligned16(x) && ren__aligned16(y), NULL, x, NULL, y, n};
    return REN_LAUNCH(act_forward_kernel, ren__blocks(n, REN_THREADS * 4u, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_act_backward(cudaStream_t stream, ren__activation activation, float alpha,
                                     const float *dy, const float *x, const float *y, float *dx,
                                     uint64_t n)
{
    act_params p = {activation, alpha, 0, dy, x, y, dx, n};
    p.vector = ren__aligned16(dy) && ren__aligned16(x) && ren__aligned16(y) && ren__aligned16(dx);
    return REN_LAUNCH(act_backward_kernel, ren__blocks(n, REN_THREADS * 4u, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}

/* ------------------------------------------------------------------ dropout */

typedef struct dropout_params {
    const ren__control *control;
    const float *x;
    float *y;
    uint64_t n;
    float probability, scale;
    uint32_t layer;
    int vector;
} dropout_params;

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

static __global__ void dropout_kernel(dropout_params p)
{
    uint64_t seed = p.control->seed;
    uint64_t step = p.control->step;
    for (uint64_t i = ren__first4(); i < p.n; i += ren__stride4()) {
        uint64_t block = i / 4u;
        uint32_t word[4] = {(uint32_t)block,
                            (uint32_t)(block >> 32) ^ ((uint32_t)(step >> 32) << 16), p.layer,
                            (uint32_t)step};
        float v[4];
        philox(word, (uint32_t)seed, (uint32_t)(seed >> 32));
        ren__load4(p.x, i, p.n, p.vector, v);
        for (int k = 0; k < 4; k++) {
            float uniform = (float)(word[k] >> 8) * (1.0f / 16777216.0f);
            v[k] = uniform >= p.probability ? v[k] * p.scale : 0.0f;
        }
        ren__store4(p.y, i, p.n, p.vector, v);
    }
}

cudaError_t ren__cuda_k_dropout(cudaStream_t stream, float probability, uint32_t layer,
                                const ren__control *control, const float *x, float *y, uint64_t n)
{
    dropout_params p;
    p.control = control;
    p.x = x;
    p.y = y;
    p.n = n;
    p.probability = probability;
    p.layer = layer;
    p.scale = 1.0f / (1.0f - probability);
    p.vector = ren__aligned16(x) && ren__aligned16(y);
    return REN_LAUNCH(dropout_kernel, ren__blocks(n, REN_THREADS * 4u, REN_MAX_BLOCKS), REN_THREADS,
                      stream, p);
}

/* ------------------------------------------------------------------ additions */

typedef struct add_params {
    const float *a, *b;
    float *y;
    uint64_t n;
    int vector;
} add_params;

static __global__ void add_kernel(add_params p)
{
    for (uint64_t i = ren__first4(); i < p.n; i += ren__stride4()) {
        float a[4];
        float b[4];
        ren__load4(p.a, i, p.n, p.vector, a);
        ren__load4(p.b, i, p.n, p.vector, b);
        for (int k = 0; k < 4; k++) {
            a[k] += b[k];
        }
        ren__store4(p.y, i, p.n, p.vector, a);
    }
}

cudaError_t ren__cuda_k_add(cudaStream_t stream, const float *a, const float *b, float *y,
                            uint64_t n)
{
    add_params p = {a, b, y, n, ren__aligned16(a) && ren__aligned16(b) && ren__aligned16(y)};
    return REN_LAUNCH(add_kernel, ren__blocks(n, REN_THREADS * 4u, REN_MAX_BLOCKS), REN_THREADS,
                      stream, p);
}

/* ------------------------------------------------------------------ concatenation */

typedef struct concat_params {
    float *part[REN__OPERANDS];
    uint64_t end[REN__OPERANDS]; /* first channel of the joined tensor past the part */
    float *joined;
    uint64_t n;        /* elements of the joined tensor */
    uint64_t channels; /* of the joined tensor */
    uint32_t count;
    int split;
} concat_params;

static __global__ void concat_kernel(concat_params p)
{
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += stride) {
        uint64_t row = i / p.channels;
        uint64_t channel = i % p.channels;
        uint64_t begin = 0;
        float *part = p.part[0];
        uint64_t width = p.end[0];
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

cudaError_t ren__cuda_k_concat(cudaStream_t stream, void *const *parts, const uint64_t *channels,
                               uint32_t count, float *joined, uint64_t rows, int split)
{
    concat_params p;
    uint64_t sum = 0;
    for (uint32_t k = 0; k < REN__OPERANDS; k++) {
        sum += k < count ? channels[k] : 0u;
        p.part[k] = k < count ? (float *)parts[k] : NULL;
        p.end[k] = sum;
    }
    p.joined = joined;
    p.n = rows * sum;
    p.channels = sum;
    p.count = count;
    p.split = split;
    return REN_LAUNCH(concat_kernel, ren__blocks(p.n, REN_THREADS, REN_MAX_BLOCKS), REN_THREADS,
                      stream, p);
}
