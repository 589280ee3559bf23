/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/activation.cuh - the value and the slope of each activation, in f32. */
#ifndef REN_DEVICE_CUDA_ACTIVATION_CUH
#define REN_DEVICE_CUDA_ACTIVATION_CUH

#include "launch.cuh"

#define REN_SQRT_HALF         0.70710678118654752440f
#define REN_INVERSE_SQRT_2_PI 0.39894228040143267794f
#define REN_SQRT_2_OVER_PI    0.79788456080286535588f
#define REN_GELU_CUBIC        0.044715f

static __device__ __forceinline__ float ren__sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* (1 + tanh(u)) / 2 is the sigmoid of 2 u, which one exponential gives. */
static __device__ __forceinline__ float ren__gelu_gate(float x)
{
    return ren__sigmoid(2.0f * REN_SQRT_2_OVER_PI * (x + REN_GELU_CUBIC * x * x * x));
}

static __device__ __forceinline__ float ren__act_value(ren__activation activation, float alpha,
                                                       float x)
{
    switch (activation) {
    case REN__ACT_RELU:
        return x > 0.0f || x != x ? x : 0.0f; /* NaN stays NaN */
    case REN__ACT_LEAKY_RELU:
        return x > 0.0f ? x : alpha * x;
    case REN__ACT_TANH:
        return tanhf(x);
    case REN__ACT_SIGMOID:
        return ren__sigmoid(x);
    case REN__ACT_SILU:
        return x * ren__sigmoid(x);
    case REN__ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * REN_SQRT_HALF));
    default:
        return x * ren__gelu_gate(x);
    }
}

/* The derivative, from the input x, or where that is shorter from the output y. */
static __device__ __forceinline__ float ren__act_slope(ren__activation activation, float alpha,
                                                       float x, float y)
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
        s = ren__sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    case REN__ACT_GELU_ERF:
        return 0.5f * (1.0f + erff(x * REN_SQRT_HALF)) +
               x * REN_INVERSE_SQRT_2_PI * expf(-0.5f * x * x);
    default:
        s = ren__gelu_gate(x);
        return s + 2.0f * x * s * (1.0f - s) * REN_SQRT_2_OVER_PI *
                       (1.0f + 3.0f * REN_GELU_CUBIC * x * x);
    }
}

/* Is the slope taken from the output? */
static inline int ren__slope_reads_y(ren__activation activation)
{
    return activation == REN__ACT_RELU || activation == REN__ACT_TANH ||
           activation == REN__ACT_SIGMOID;
}

/* n values or gradients in place; one look at the kind for all of them. */
template <int N>
static __device__ __forceinline__ void ren__act_values(ren__activation activation, float alpha,
                                                       float v[N])
{
    if (activation == REN__ACT_RELU) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            v[k] = ren__act_value(REN__ACT_RELU, alpha, v[k]);
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        v[k] = ren__act_value(activation, alpha, v[k]);
    }
}

template <int N>
static __device__ __forceinline__ void ren__act_slopes(ren__activation activation, float alpha,
                                                       const float at[N], float g[N])
{
    if (activation == REN__ACT_RELU) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            g[k] = at[k] > 0.0f ? g[k] : 0.0f;
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        g[k] *= ren__act_slope(activation, alpha, at[k], at[k]);
    }
}

#endif
