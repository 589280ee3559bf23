/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/loss.cu - cross entropy, mean squared error, Huber loss.
 *
 * Purpose   Each forward pass gives one number, the mean, in two launches: parts, then their sum by
 *           one block. The backward passes give the gradient of that mean.
 * Formula   Cross entropy with smoothing s over C classes, p = softmax(x):
 *             loss = -(1 - s) log p[label] - s / C sum_j log p[j]
 *             dx_j = (p_j - (1 - s) [j = label] - s / C) / N
 *           With m the largest logit, log sum exp(x) = m + log1p(sum of exp(x_j - m) over the
 *           others), so -log p[j] = (m - x_j) + log1p(...) keeps its digits for a confident label
 *           as well as for a hopeless one.
 *           A label outside 0..C-1 adds no loss and no gradient, and counts as a row of the mean.
 */
#include "launch.cuh"

#define ROW_THREADS 128u /* a warp to a row */
#define JOIN        256u
#define MOST_PARTS  256u
#define PART_FLOATS 4096u

/* ------------------------------------------------------------------ joining parts */

typedef struct join_params {
    const float *parts;
    float *sum;
    uint64_t count;
    float divisor;
} join_params;

static __global__ void join_kernel(join_params p)
{
    __shared__ float shared[32];
    float sum = 0.0f;
    for (uint64_t i = threadIdx.x; i < p.count; i += blockDim.x) {
        sum += p.parts[i];
    }
    sum = ren__block_sum(sum, shared);
    if (threadIdx.x == 0) {
        *p.sum = sum / p.divisor;
    }
}

/* What a backward pass begins with in place of 1. */
static __device__ __forceinline__ float scale_of(const ren__state *state)
{
    return state ? state->loss_scale : 1.0f;
}

/* ------------------------------------------------------------------ cross entropy */

typedef struct xent_params {
    const float *in; /* logits, or probabilities in the backward pass */
    const int32_t *labels;
    float *out; /* probabilities, or gradients */
    float *row_loss;
    uint64_t rows, classes;
    float smoothing;
    float scale;
    const ren__state *state; /* NULL, or whose loss_scale counts too */
} xent_params;

static __global__ void xent_forward_kernel(xent_params p)
{
    uint64_t row = (uint64_t)blockIdx.x * (ROW_THREADS / REN_WARP) + threadIdx.x / REN_WARP;
    uint32_t lane = threadIdx.x % REN_WARP;
    uint64_t classes = row < p.rows ? p.classes : 0u; /* whole warps idle, none leaves early */
    const float *x = p.in + (row < p.rows ? row : 0u) * p.classes;
    float most = -INFINITY;
    float others = 0.0f;
    float below = 0.0f;
    float tops = 0.0f;
    float rest;
    for (uint64_t j = lane; j < classes; j += REN_WARP) {
        most = fmaxf(most, x[j]);
    }
    most = ren__warp_max(most);
    for (uint64_t j = lane; j < classes; j += REN_WARP) {
        if (x[j] == most) {
            tops += 1.0f;
        } else {
            others += expf(x[j] - most);
        }
        below += most - x[j];
    }
    tops = ren__warp_sum(tops);
    others = ren__warp_sum(others) + (tops - 1.0f);
    below = ren__warp_sum(below);
    if (row >= p.rows) {
        return;
    }
    for (uint64_t j = lane; j < classes; j += REN_WARP) {
        p.out[row * p.classes + j] = expf(x[j] - most) / (1.0f + others);
    }
    if (lane == 0) {
        int32_t label = p.labels[row];
        float loss = 0.0f;
        rest = log1pf(others);
        if (label >= 0 && (uint64_t)label < p.classes) {
            loss = most - x[label] + rest;
            if (p.smoothing > 0.0f) { /* 0 times an infinite distance would be NaN */
                loss =
                    (1.0f - p.smoothing) * loss + p.smoothing * (below / (float)p.classes + rest);
            }
        }
        p.row_loss[row] = loss;
    }
}

static __global__ void xent_backward_kernel(xent_params p)
{
    uint64_t n = p.rows * p.classes;
    float scale = p.scale * scale_of(p.state);
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint64_t row = i / p.classes;
        int32_t label = p.labels[row];
        float g = 0.0f;
        if (label >= 0 && (uint64_t)label < p.classes) {
            g = p.in[i] - p.smoothing / (float)p.classes;
            if ((uint64_t)label == i - row * p.classes) {
                g -= 1.0f - p.smoothing;
            }
        }
        p.out[i] = g * scale;
    }
}

uint64_t ren__cuda_k_xent_scratch(uint64_t rows)
{
    return rows * sizeof(float);
}

cudaError_t ren__cuda_k_xent_forward(cudaStream_t stream, const float *logits,
                                     const int32_t *labels, float smoothing, float *loss,
                                     float *probability, uint64_t rows, uint64_t classes,
                                     void *partial)
{
    xent_params p = {logits,    labels, probability, (float *)partial, rows, classes,
                     smoothing, 0.0f,   NULL};
    join_params join = {(const float *)partial, loss, rows, (float)rows};
    cudaError_t code =
        REN_LAUNCH(xent_forward_kernel, ren__blocks(rows, ROW_THREADS / REN_WARP, UINT32_MAX),
                   ROW_THREADS, stream, p);
    if (code == cudaSuccess) {
        code = REN_LAUNCH(join_kernel, 1u, JOIN, stream, join);
    }
    return code;
}

cudaError_t ren__cuda_k_xent_backward(cudaStream_t stream, const float *probability,
                                      const int32_t *labels, float smoothing,
                                      const ren__state *state, float *dlogits, uint64_t rows,
                                      uint64_t classes)
{
    xent_params p = {probability,        labels, dlogits, NULL, rows, classes, smoothing,
                     1.0f / (float)rows, state};
    return REN_LAUNCH(xent_backward_kernel,
                      ren__blocks(rows * classes, REN_THREADS, REN_MAX_BLOCKS), REN_THREADS, stream,
                      p);
}

/* ------------------------------------------------------------------ distances */

typedef struct distance_params {
    const float *x, *target;
    float *out; /* parts, or gradients */
    uint64_t n;
    float delta, factor;
    int huber;
    int vector;
    const ren__state *state; /* as above */
} distance_params;

static __global__ void distance_forward_kernel(distance_params p)
{
    __shared__ float shared[32];
    float sum = 0.0f;
    for (uint64_t i = ren__first4(); i < p.n; i += ren__stride4()) {
        float x[4];
        float t[4];
        ren__load4(p.x, i, p.n, p.vector, x);
        ren__load4(p.target, i, p.n, p.vector, t);
        for (int k = 0; k < 4; k++) { /* past the end both are 0 and so is their distance */
            float d = fabsf(x[k] - t[k]);
            if (!p.huber) {
                sum += d * d;
            } else if (d <= p.delta) {
                sum += 0.5f * d * d;
            } else {
                sum += p.delta * (d - 0.5f * p.delta);
            }
        }
    }
    sum = ren__block_sum(sum, shared);
    if (threadIdx.x == 0) {
        p.out[blockIdx.x] = sum;
    }
}

static __global__ void distance_backward_kernel(distance_params p)
{
    float factor = p.factor * scale_of(p.state);
    for (uint64_t i = ren__first4(); i < p.n; i += ren__stride4()) {
        float x[4];
        float t[4];
        ren__load4(p.x, i, p.n, p.vector, x);
        ren__load4(p.target, i, p.n, p.vector, t);
        for (int k = 0; k < 4; k++) {
            float d = x[k] - t[k];
            if (p.huber && fabsf(d) > p.delta) {
                d = d > 0.0f ? p.delta : -p.delta;
            }
            x[k] = d * factor;
        }
        ren__store4(p.out, i, p.n, p.vector, x);
    }
}

static uint32_t parts_of(uint64_t n)
{
    return ren__blocks(n, PART_FLOATS, MOST_PARTS);
}

uint64_t ren__cuda_k_distance_scratch(uint64_t n)
{
    return parts_of(n) * sizeof(float);
}

cudaError_t ren__cuda_k_distance_forward(cudaStream_t stream, int huber, float delta,
                                         const float *x, const float *target, float *loss,
                                         uint64_t n, void *partial)
{
    distance_params p = {x,
                         target,
                         (float *)partial,
                         n,
                         delta,
                         0.0f,
                         huber,
                         ren__aligned16(x) && ren__aligned16(target),
                         NULL};
    join_params join = {(const float *)partial, loss, parts_of(n), (float)n};
    cudaError_t code = REN_LAUNCH(distance_forward_kernel, parts_of(n), REN_THREADS, stream, p);
    if (code == cudaSuccess) {
        code = REN_LAUNCH(join_kernel, 1u, JOIN, stream, join);
    }
    return code;
}

cudaError_t ren__cuda_k_distance_backward(cudaStream_t stream, int huber, float delta,
                                          const float *x, const float *target,
                                          const ren__state *state, float *dx, uint64_t n)
{
    distance_params p = {x,     target,
                         dx,    n,
                         delta, (huber ? 1.0f : 2.0f) / (float)n,
                         huber, ren__aligned16(x) && ren__aligned16(target) && ren__aligned16(dx),
                         state};
    return REN_LAUNCH(distance_backward_kernel, ren__blocks(n, REN_THREADS * 4u, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}
