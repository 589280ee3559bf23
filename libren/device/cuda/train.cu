/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/train.cu - the check of the gradients, and the optimizers.
 *
 * Purpose   Everything that changes from step to step is read from the control block and the state
 *           in device memory, never from a kernel's parameters, so a captured step follows a new
 *           learning rate, step count or skip without being captured again.
 * Formula   As ren.h and ren.h's sources: SGD with momentum and Nesterov, Adam and AdamW with bias
 *           correction by the number of applied steps, LARS, exponential moving average.
 * Skip      When the state says found_inf, an optimizer writes nothing at all.
 * Order     Sums are done in two passes with an order that depends on the count alone.
 */
#include "launch.cuh"

#define PART_FLOATS 4096u
#define MOST_PARTS  256u
#define JOIN        256u
#define CLIP_EPS    1e-6f /* as PyTorch's clip_grad_norm_ */

#define SCALE_GROWTH_STEPS 2000u
#define SCALE_MOST         16777216.0f /* 2^24 */
#define SCALE_LEAST        1.0f

static uint32_t parts_of(uint64_t n)
{
    return ren__blocks(n, PART_FLOATS, MOST_PARTS);
}

/* ------------------------------------------------------------------ check */

typedef struct check_params {
    ren__update u;
    float *parts; /* sums of squares, then as many flags */
    uint32_t count;
    int vector;
} check_params;

static __global__ void check_kernel(check_params p)
{
    __shared__ float shared[32];
    float sum = 0.0f;
    float bad = 0.0f;
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float g[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, g);
        for (int k = 0; k < 4; k++) {
            sum += g[k] * g[k];
            bad = isfinite(g[k]) ? bad : 1.0f;
        }
    }
    sum = ren__block_sum(sum, shared);
    bad = ren__block_sum(bad, shared);
    if (threadIdx.x == 0) {
        p.parts[blockIdx.x] = sum;
        p.parts[p.count + blockIdx.x] = bad;
    }
}

static __device__ __forceinline__ float divisor_of(const ren__update *u)
{
    return u->control->grad_divisor * (u->dynamic_scale ? u->state->loss_scale : 1.0f);
}

static __global__ void check_join_kernel(check_params p)
{
    __shared__ float shared[32];
    float sum = threadIdx.x < p.count ? p.parts[threadIdx.x] : 0.0f;
    float bad = threadIdx.x < p.count ? p.parts[p.count + threadIdx.x] : 0.0f;
    sum = ren__block_sum(sum, shared);
    bad = ren__block_sum(bad, shared);
    if (threadIdx.x == 0) {
        p.u.state->found_inf = bad > 0.0f ? 1u : 0u;
        p.u.state->grad_norm = sqrtf(sum) / divisor_of(&p.u);
    }
}

uint64_t ren__cuda_k_check_scratch(uint64_t n)
{
    return 2u * parts_of(n) * sizeof(float);
}

cudaError_t ren__cuda_k_check(cudaStream_t stream, const ren__update *u, void *partial)
{
    check_params p = {*u, (float *)partial, parts_of(u->n), ren__aligned16(u->gradient)};
    cudaError_t code = REN_LAUNCH(check_kernel, p.count, REN_THREADS, stream, p);
    if (code == cudaSuccess) {
        code = REN_LAUNCH(check_join_kernel, 1u, JOIN, stream, p);
    }
    return code;
}

/* ------------------------------------------------------------------ advance */

static __global__ void advance_kernel(ren__update u)
{
    ren__state *s = u.state;
    if (s->found_inf) {
        s->skipped_total++;
        s->good_steps = 0;
        if (u.dynamic_scale) {
            s->loss_scale = fmaxf(s->loss_scale * 0.5f, SCALE_LEAST);
        }
        return;
    }
    s->applied++;
    s->good_steps++;
    if (u.dynamic_scale && s->good_steps >= SCALE_GROWTH_STEPS) {
        s->loss_scale = fminf(s->loss_scale * 2.0f, SCALE_MOST);
        s->good_steps = 0;
    }
}

cudaError_t ren__cuda_k_advance(cudaStream_t stream, const ren__update *u)
{
    return REN_LAUNCH(advance_kernel, 1u, 1u, stream, *u);
}

/* ------------------------------------------------------------------ updates */

typedef struct update_params {
    ren__update u;
    int vector;
} update_params;

/* What a gradient is multiplied with before an optimizer sees it: unscaling, then clipping. */
static __device__ __forceinline__ float factor_of(const ren__update *u)
{
    float factor = 1.0f / divisor_of(u);
    float clip = u->control->clip_norm;
    float norm = u->state->grad_norm;
    if (clip > 0.0f && norm > clip) {
        factor *= clip / (norm + CLIP_EPS);
    }
    return factor;
}

static __global__ void sgd_kernel(update_params p)
{
    const ren__control c = *p.u.control;
    float factor = factor_of(&p.u);
    if (p.u.state->found_inf) {
        return;
    }
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float g[4];
        float w[4];
        float v[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, g);
        ren__load4(p.u.parameter, i, p.u.n, p.vector, w);
        ren__load4(p.u.first, i, p.u.n, p.vector, v);
        for (int k = 0; k < 4; k++) {
            float gradient = g[k] * factor + c.weight_decay * w[k];
            v[k] = c.momentum * v[k] + gradient;
            w[k] -= c.learning_rate * (c.nesterov ? gradient + c.momentum * v[k] : v[k]);
        }
        ren__store4(p.u.first, i, p.u.n, p.vector, v);
        ren__store4(p.u.parameter, i, p.u.n, p.vector, w);
    }
}

static __global__ void adam_kernel(update_params p)
{
    __shared__ float correction[2];
    const ren__control c = *p.u.control;
    float factor = factor_of(&p.u);
    float decayed = p.u.kind == REN__OP_ADAMW ? c.learning_rate * c.weight_decay : 0.0f;
    float decay = p.u.kind == REN__OP_ADAMW ? 0.0f : c.weight_decay;
    float step_size;
    float root;
    if (p.u.state->found_inf) {
        return;
    }
    if (threadIdx.x == 0) { /* in f64: near 1 the powers would lose their digits */
        double t = (double)p.u.state->applied;
        correction[0] = (float)(1.0 - pow((double)c.beta1, t));
        correction[1] = (float)sqrt(1.0 - pow((double)c.beta2, t));
    }
    __syncthreads();
    step_size = c.learning_rate / correction[0];
    root = correction[1];
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float g[4];
        float w[4];
        float m[4];
        float v[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, g);
        ren__load4(p.u.parameter, i, p.u.n, p.vector, w);
        ren__load4(p.u.first, i, p.u.n, p.vector, m);
        ren__load4(p.u.second, i, p.u.n, p.vector, v);
        for (int k = 0; k < 4; k++) {
            float gradient = g[k] * factor + decay * w[k];
            m[k] = c.beta1 * m[k] + (1.0f - c.beta1) * gradient;
            v[k] = c.beta2 * v[k] + (1.0f - c.beta2) * gradient * gradient;
            w[k] -= decayed * w[k];
            w[k] -= step_size * m[k] / (sqrtf(v[k]) / root + c.eps);
        }
        ren__store4(p.u.first, i, p.u.n, p.vector, m);
        ren__store4(p.u.second, i, p.u.n, p.vector, v);
        ren__store4(p.u.parameter, i, p.u.n, p.vector, w);
    }
}

static __global__ void ema_kernel(update_params p)
{
    float decay = p.u.control->ema_decay;
    if (p.u.state->found_inf) {
        return;
    }
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float w[4];
        float a[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, w);
        ren__load4(p.u.parameter, i, p.u.n, p.vector, a);
        for (int k = 0; k < 4; k++) {
            a[k] = decay * a[k] + (1.0f - decay) * w[k];
        }
        ren__store4(p.u.parameter, i, p.u.n, p.vector, a);
    }
}

static int aligned(const ren__update *u)
{
    return ren__aligned16(u->gradient) && ren__aligned16(u->parameter) &&
           ren__aligned16(u->first) && ren__aligned16(u->second);
}

cudaError_t ren__cuda_k_update(cudaStream_t stream, const ren__update *u)
{
    update_params p = {*u, aligned(u)};
    uint32_t blocks = ren__blocks(u->n, REN_THREADS * 4u, REN_MAX_BLOCKS);
    switch (u->kind) {
    case REN__OP_SGD:
        return REN_LAUNCH(sgd_kernel, blocks, REN_THREADS, stream, p);
    case REN__OP_EMA:
        return REN_LAUNCH(ema_kernel, blocks, REN_THREADS, stream, p);
    default:
        return REN_LAUNCH(adam_kernel, blocks, REN_THREADS, stream, p);
    }
}

/* ------------------------------------------------------------------ LARS */

typedef struct lars_params {
    ren__update u;
    float *parts; /* sums of squares of the parameter, then of the gradient */
    uint32_t count;
    int vector;
} lars_params;

static __global__ void lars_norm_kernel(lars_params p)
{
    __shared__ float shared[32];
    float factor = factor_of(&p.u);
    float of_w = 0.0f;
    float of_g = 0.0f;
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float g[4];
        float w[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, g);
        ren__load4(p.u.parameter, i, p.u.n, p.vector, w);
        for (int k = 0; k < 4; k++) {
            of_w += w[k] * w[k];
            of_g += g[k] * factor * (g[k] * factor);
        }
    }
    of_w = ren__block_sum(of_w, shared);
    of_g = ren__block_sum(of_g, shared);
    if (threadIdx.x == 0) {
        p.parts[blockIdx.x] = of_w;
        p.parts[p.count + blockIdx.x] = of_g;
    }
}

static __global__ void lars_update_kernel(lars_params p)
{
    __shared__ float shared[32];
    const ren__control c = *p.u.control;
    float factor = factor_of(&p.u);
    float of_w = threadIdx.x < p.count ? p.parts[threadIdx.x] : 0.0f;
    float of_g = threadIdx.x < p.count ? p.parts[p.count + threadIdx.x] : 0.0f;
    float rate;
    of_w = sqrtf(ren__block_sum(of_w, shared)); /* each block joins the parts in the same order */
    of_g = sqrtf(ren__block_sum(of_g, shared));
    if (p.u.state->found_inf) {
        return;
    }
    rate = of_w > 0.0f && of_g > 0.0f ? c.lars_eta * of_w / (of_g + c.weight_decay * of_w + c.eps)
                                      : 1.0f;
    rate *= c.learning_rate;
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float g[4];
        float w[4];
        float v[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, g);
        ren__load4(p.u.parameter, i, p.u.n, p.vector, w);
        ren__load4(p.u.first, i, p.u.n, p.vector, v);
        for (int k = 0; k < 4; k++) {
            v[k] = c.momentum * v[k] + rate * (g[k] * factor + c.weight_decay * w[k]);
            w[k] -= v[k];
        }
        ren__store4(p.u.first, i, p.u.n, p.vector, v);
        ren__store4(p.u.parameter, i, p.u.n, p.vector, w);
    }
}

uint64_t ren__cuda_k_lars_scratch(uint64_t n)
{
    return 2u * parts_of(n) * sizeof(float);
}

cudaError_t ren__cuda_k_lars(cudaStream_t stream, const ren__update *u, void *partial)
{
    lars_params p = {*u, (float *)partial, parts_of(u->n), aligned(u)};
    cudaError_t code = REN_LAUNCH(lars_norm_kernel, p.count, REN_THREADS, stream, p);
    if (code == cudaSuccess) {
        code = REN_LAUNCH(lars_update_kernel, ren__blocks(u->n, REN_THREADS * 4u, REN_MAX_BLOCKS),
                          REN_THREADS, stream, p);
    }
    return code;
}
