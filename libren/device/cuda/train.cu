/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/train.cu - the check of the gradients, and the optimizers.
 *
 * Purpose   Everything that changes from step to step is read from the control block and the state
 *           in device memory, never from a kernel's parameters, so a captured step follows a new
 *           learning rate, step count or skip without being captured again.
 * Formula   As ren.h and ren.h's sources: SGD with momentum and Nesterov, Adam and AdamW with bias
 *           correction by the number of applied steps, LARS, exponential moving average.
 * Skip      When the state says found_inf, an optimizer writes nothing at all. It reads all the
 *           same: a branch ahead of the loads would hold them back until the state has come.
 * Order     Sums are done in two passes with an order that depends on the count alone.
 */
#include "launch.cuh"

#define PART_FLOATS   2048u /* of a small region: few for a thread, or they would come one by one */
#define MOST_PARTS    1056u /* eight for each multiprocessor of an H200 */
#define ONE_PART      16384u
#define LARGE_BLOCK   1024u
#define LARS_FLOATS   4096u
#define LARS_PARTS    256u /* that each block of the update joins */
#define UPDATE_BLOCKS 65536u
#define CLIP_EPS      1e-6f /* as PyTorch's clip_grad_norm_ */

#define SCALE_GROWTH_STEPS 2000u
#define SCALE_MOST         16777216.0f /* 2^24 */
#define SCALE_LEAST        1.0f

/* One large block, where that is enough, needs no joining. */
static uint32_t parts_of(uint64_t n)
{
    return n <= ONE_PART ? 1u : ren__blocks(n, PART_FLOATS, MOST_PARTS);
}

/* ------------------------------------------------------------------ check */

typedef struct check_params {
    ren__update u;
    double *parts; /* sums of squares */
    uint32_t count;
    int vector;
} check_params;

static __device__ __forceinline__ float divisor_of(const ren__update *u)
{
    return u->control->grad_divisor * (u->dynamic_scale ? u->state->step_scale : 1.0f);
}

/* The sum of `count` parts, in an order that depends on the count alone, in every thread. */
static __device__ __forceinline__ double join_parts(const double *parts, uint32_t count,
                                                    double shared[32])
{
    double sum = 0.0;
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        sum += __ldcg(parts + i);
    }
    return ren__block_sum_f64(sum, shared);
}

static __device__ __forceinline__ void check_end(const check_params &p, double sum)
{
    if (threadIdx.x == 0) {
        /* ADVANCE, which goes before the optimizers, may change loss_scale for the next step. */
        p.u.state->step_scale = p.u.state->loss_scale;
        p.u.state->found_inf = isfinite(sum) ? 0u : 1u;
        p.u.state->grad_norm = (float)(sqrt(sum) / (double)divisor_of(&p.u));
    }
}

/* The square of a finite f32 is finite in f64, and so is every sum of them that fits memory: a sum
 * that is not finite had an inf or NaN in it. */
static __global__ void __launch_bounds__(LARGE_BLOCK) check_kernel(check_params p)
{
    __shared__ double shared[32];
    double sum = 0.0;
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float g[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, g);
        for (int k = 0; k < 4; k++) {
            sum += (double)g[k] * (double)g[k];
        }
    }
    sum = ren__block_sum_f64(sum, shared);
    if (p.count == 1u) {
        check_end(p, sum);
        return;
    }
    if (threadIdx.x == 0) {
        p.parts[blockIdx.x] = sum;
    }
    if (p.u.ticket && ren__is_last_block(p.u.ticket)) {
        check_end(p, join_parts(p.parts, p.count, shared));
    }
}

static __global__ void check_join_kernel(check_params p)
{
    __shared__ double shared[32];
    check_end(p, join_parts(p.parts, p.count, shared));
}

uint64_t ren__cuda_k_check_scratch(uint64_t n)
{
    return parts_of(n) * sizeof(double);
}

cudaError_t ren__cuda_k_check(cudaStream_t stream, const ren__update *u, void *partial)
{
    check_params p = {*u, (double *)partial, parts_of(u->n), ren__aligned16(u->gradient)};
    uint32_t threads = p.count > 1u ? REN_THREADS : LARGE_BLOCK;
    cudaError_t code = REN_LAUNCH(check_kernel, p.count, threads, stream, p);
    if (code == cudaSuccess && p.count > 1u && !u->ticket) {
        code = REN_LAUNCH(check_join_kernel, 1u, REN_THREADS, stream, p);
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
    ren__update p = *u;
    return REN_LAUNCH(advance_kernel, 1u, 1u, stream, p);
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
    if (clip > 0.0f) {
        factor *= fminf(clip / (norm + CLIP_EPS), 1.0f);
    }
    return factor;
}

static __global__ void sgd_kernel(update_params p)
{
    const ren__control c = *p.u.control;
    const uint32_t skip = p.u.state->found_inf;
    float momentum = p.u.first ? c.momentum : 0.0f; /* no velocity is kept without momentum */
    float factor = factor_of(&p.u);
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float g[4];
        float w[4];
        float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        ren__load4(p.u.gradient, i, p.u.n, p.vector, g);
        ren__load4(p.u.parameter, i, p.u.n, p.vector, w);
        if (p.u.first) {
            ren__load4(p.u.first, i, p.u.n, p.vector, v);
        }
        for (int k = 0; k < 4; k++) {
            float gradient = g[k] * factor + c.weight_decay * w[k];
            v[k] = momentum * v[k] + gradient;
            w[k] -= c.learning_rate * (c.nesterov ? gradient + momentum * v[k] : v[k]);
        }
        if (p.u.first && !skip) {
            ren__store4(p.u.first, i, p.u.n, p.vector, v);
        }
        if (!skip) {
            ren__store4(p.u.parameter, i, p.u.n, p.vector, w);
        }
    }
}

/* Behind adam_kernel, whose blocks all read the count; its last block does it where it can. */
static __global__ void count_kernel(update_params p)
{
    if (!p.u.state->found_inf) {
        *p.u.count += 1;
    }
}

static __global__ void adam_kernel(update_params p)
{
    __shared__ float correction[2];
    const ren__control c = *p.u.control;
    const uint32_t skip = p.u.state->found_inf;
    float factor = factor_of(&p.u);
    float decayed = p.u.kind == REN__OP_ADAMW ? c.learning_rate * c.weight_decay : 0.0f;
    float decay = p.u.kind == REN__OP_ADAMW ? 0.0f : c.weight_decay;
    float step_size;
    float root;
    if (threadIdx.x == 0) { /* in f64: near 1 the powers would lose their digits */
        uint64_t updates = p.u.count ? *p.u.count + 1 : p.u.state->applied;
        double t = (double)(updates ? updates : 1u);
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
        if (!skip) {
            ren__store4(p.u.first, i, p.u.n, p.vector, m);
            ren__store4(p.u.second, i, p.u.n, p.vector, v);
            ren__store4(p.u.parameter, i, p.u.n, p.vector, w);
        }
    }
    if (p.u.count && p.u.ticket && ren__is_last_block(p.u.ticket) && threadIdx.x == 0 && !skip) {
        *p.u.count += 1;
    }
}

static __global__ void commit_kernel(update_params p)
{
    const uint32_t skip = p.u.state->found_inf;
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float v[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, v);
        if (!skip) {
            ren__store4(p.u.parameter, i, p.u.n, p.vector, v);
        }
    }
}

static __global__ void ema_kernel(update_params p)
{
    const uint32_t skip = p.u.state->found_inf;
    float decay = p.u.control->ema_decay;
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float w[4];
        float a[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, w);
        ren__load4(p.u.parameter, i, p.u.n, p.vector, a);
        for (int k = 0; k < 4; k++) {
            a[k] = decay * a[k] + (1.0f - decay) * w[k];
        }
        if (!skip) {
            ren__store4(p.u.parameter, i, p.u.n, p.vector, a);
        }
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
    uint32_t blocks = ren__blocks(u->n, REN_THREADS * 4u, UPDATE_BLOCKS);
    cudaError_t code;
    switch (u->kind) {
    case REN__OP_SGD:
        return REN_LAUNCH(sgd_kernel, blocks, REN_THREADS, stream, p);
    case REN__OP_EMA:
        return REN_LAUNCH(ema_kernel, blocks, REN_THREADS, stream, p);
    case REN__OP_COMMIT:
        return REN_LAUNCH(commit_kernel, blocks, REN_THREADS, stream, p);
    default:
        code = REN_LAUNCH(adam_kernel, blocks, REN_THREADS, stream, p);
        if (code == cudaSuccess && u->count && !u->ticket &&
            REN_LAUNCH(count_kernel, 1u, 1u, stream, p) != cudaSuccess) {
            code = cudaErrorUnknown; /* updated and not counted: nothing to be tried again */
        }
        return code;
    }
}

/* ------------------------------------------------------------------ LARS */

typedef struct lars_params {
    ren__update u;
    double *parts; /* sums of squares of the parameter, then of the gradient */
    uint32_t count;
    int vector;
} lars_params;

static __global__ void lars_norm_kernel(lars_params p)
{
    __shared__ double shared[32];
    double of_w = 0.0;
    double of_g = 0.0;
    for (uint64_t i = ren__first4(); i < p.u.n; i += ren__stride4()) {
        float g[4];
        float w[4];
        ren__load4(p.u.gradient, i, p.u.n, p.vector, g);
        ren__load4(p.u.parameter, i, p.u.n, p.vector, w);
        for (int k = 0; k < 4; k++) {
            of_w += (double)w[k] * (double)w[k];
            of_g += (double)g[k] * (double)g[k];
        }
    }
    of_w = ren__block_sum_f64(of_w, shared);
    of_g = ren__block_sum_f64(of_g, shared);
    if (threadIdx.x == 0) {
        p.parts[blockIdx.x] = of_w;
        p.parts[p.count + blockIdx.x] = of_g;
    }
}

static __global__ void lars_update_kernel(lars_params p)
{
    __shared__ double shared[32];
    const ren__control c = *p.u.control;
    float factor = factor_of(&p.u);
    float w_norm;
    float g_norm;
    float rate;
    /* Each block joins the parts, in the same order. */
    w_norm = (float)sqrt(join_parts(p.parts, p.count, shared));
    g_norm = (float)sqrt(join_parts(p.parts + p.count, p.count, shared)) * factor;
    if (p.u.state->found_inf) {
        return;
    }
    rate = 1.0f;
    if (w_norm > 0.0f && g_norm > 0.0f) {
        rate = c.lars_eta * w_norm / (g_norm + c.weight_decay * w_norm + c.eps);
    }
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

static uint32_t lars_parts_of(uint64_t n)
{
    return ren__blocks(n, LARS_FLOATS, LARS_PARTS);
}

uint64_t ren__cuda_k_lars_scratch(uint64_t n)
{
    return 2u * lars_parts_of(n) * sizeof(double);
}

cudaError_t ren__cuda_k_lars(cudaStream_t stream, const ren__update *u, void *partial)
{
    lars_params p = {*u, (double *)partial, lars_parts_of(u->n), aligned(u)};
    cudaError_t code = REN_LAUNCH(lars_norm_kernel, p.count, REN_THREADS, stream, p);
    if (code == cudaSuccess) {
        code = REN_LAUNCH(lars_update_kernel, ren__blocks(u->n, REN_THREADS * 4u, REN_MAX_BLOCKS),
                          REN_THREADS, stream, p);
    }
    return code;
}
