/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/loss.cu - cross entropy, mean squared error, Huber loss.
 *
 * Purpose   Each forward pass gives one number, the mean: blocks sum parts, and the last of them
 *           (ticket.c), or a second launch, adds the parts up. The backward passes give the
 *           gradient of that mean. Logits, predictions and their gradients are f32, f16 or bf16;
 *           everything in between is f32.
 * Formula   Cross entropy with smoothing s over C classes, p = softmax(x):
 *             loss = -(1 - s) log p[label] - s / C sum_j log p[j]
 *             dx_j = (p_j - (1 - s) [j = label] - s / C) / N
 *           With m the largest logit, log sum exp(x) = m + log1p(sum of exp(x_j - m) over the
 *           others), so -log p[j] = (m - x_j) + log1p(...) keeps its digits for a confident label
 *           as well as for a hopeless one.
 *           A label outside 0..C-1 adds no loss and no gradient, and counts as a row of the mean.
 * Shape     A row of logits belongs to a group of threads of one warp: a power of two, so many that
 *           each holds its share of the row in registers, and at most 32.
 * Order     Which thread adds what depends on the shape alone.
 */
#include "pack.cuh"

#define MOST_PARTS   1056u /* eight blocks for each multiprocessor of an H200 */
#define PART_FLOATS  2048u
#define XENT_PARTS   264u
#define LARGE_BLOCK  1024u
#define HELD_CLASSES 8 /* of a row, by one thread */

/* ------------------------------------------------------------------ joining parts */

typedef struct join_params {
    float *parts;
    float *sum;
    uint32_t *ticket; /* NULL: join_kernel comes behind */
    uint32_t count;
    float divisor;
} join_params;

static __device__ __forceinline__ void join_all(const join_params &j, float shared[32])
{
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < j.count; i += blockDim.x) {
        sum += __ldcg(j.parts + i);
    }
    sum = ren__block_sum(sum, shared);
    if (threadIdx.x == 0) {
        *j.sum = sum / j.divisor;
    }
}

/* The end of a forward pass: this thread's share of the sum. All threads of the block call. */
static __device__ __forceinline__ void join_part(const join_params &j, float sum, float shared[32])
{
    sum = ren__block_sum(sum, shared);
    if (j.count == 1u) {
        if (threadIdx.x == 0) {
            *j.sum = sum / j.divisor;
        }
        return;
    }
    if (threadIdx.x == 0) {
        j.parts[blockIdx.x] = sum;
    }
    if (j.ticket && ren__is_last_block(j.ticket)) {
        join_all(j, shared);
    }
}

static __global__ void join_kernel(join_params j)
{
    __shared__ float shared[32];
    join_all(j, shared);
}

static cudaError_t join_apart(cudaStream_t stream, cudaError_t code, const join_params *j)
{
    join_params p = *j;
    return code == cudaSuccess && p.count > 1u && !p.ticket
               ? REN_LAUNCH(join_kernel, 1u, REN_THREADS, stream, p)
               : code;
}

/* What a backward pass begins with in place of 1. */
static __device__ __forceinline__ float scale_of(const ren__state *state)
{
    return state ? state->loss_scale : 1.0f;
}

/* ------------------------------------------------------------------ four elements */

template <typename T>
static __device__ __forceinline__ void load4(const T *p, uint64_t i, uint64_t n, int vector,
                                             float out[4])
{
    if (vector && i + 4u <= n) {
        ren__unpack<T, 4>(ren__read<T, 4>(p, i), out);
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        out[k] = i + (uint64_t)k < n ? ren__widen(p[i + (uint64_t)k]) : 0.0f;
    }
}

template <typename T>
static __device__ __forceinline__ void store4(T *p, uint64_t i, uint64_t n, int vector,
                                              const float in[4])
{
    if (vector && i + 4u <= n) {
        ren__write<T, 4>(p, i, in);
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (i + (uint64_t)k < n) {
            ren__narrow(in[k], &p[i + (uint64_t)k]);
        }
    }
}

/* ------------------------------------------------------------------ cross entropy */

template <typename T> struct xent_params {
    const T *logits;
    const int32_t *labels;
    float *probability;
    T *gradient;
    uint64_t rows, classes;
    uint32_t group; /* threads to a row: a power of two, at most a warp */
    float smoothing;
    float scale;
    int vector;
    const ren__state *state; /* NULL, or whose loss_scale counts too */
    join_params join;
};

static __device__ __forceinline__ float group_sum(float v, uint32_t group)
{
    for (uint32_t distance = group / 2u; distance > 0; distance /= 2u) {
        v += __shfl_xor_sync(0xffffffffu, v, distance);
    }
    return v;
}

static __device__ __forceinline__ float group_max(float v, uint32_t group)
{
    for (uint32_t distance = group / 2u; distance > 0; distance /= 2u) {
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, distance));
    }
    return v;
}

/* The loss of a row, in every thread of its group; 0 for groups past the last row, which take part
 * because their warp does. A thread looks at class `lane` and every group-th one from there: HELD
 * of them, loaded together into registers; or, with 0, all there are, read anew each time. */
template <typename T, int HELD>
static __device__ __forceinline__ float row_loss(const xent_params<T> &p, uint64_t row)
{
    const int rounds = HELD ? HELD : (int)((p.classes + p.group - 1u) / p.group);
    uint32_t lane = threadIdx.x % p.group;
    uint64_t classes = row < p.rows ? p.classes : 0u;
    const T *x = p.logits + (row < p.rows ? row : 0u) * p.classes;
    float *out = p.probability + (row < p.rows ? row : 0u) * p.classes;
    int32_t label = row < p.rows ? p.labels[row] : -1;
    float held[HELD ? HELD : 1];
    float most = -INFINITY;
    float others = 0.0f;
    float below = 0.0f;
    float tops = 0.0f;
    float rest;
    float loss;
#define EACH(k, j)                                                                                 \
    for (int k = 0; k < rounds; k++)                                                               \
        if (uint64_t j = lane + (uint64_t)k * p.group; j < classes)
#define LOGIT(k, j) (HELD ? held[HELD ? k : 0] : ren__widen(x[j]))
    if (HELD) {
#pragma unroll
        EACH(k, j)
        {
            held[HELD ? k : 0] = ren__widen(x[j]);
        }
    }
#pragma unroll
    EACH(k, j)
    {
        most = fmaxf(most, LOGIT(k, j));
    }
    most = group_max(most, p.group);
#pragma unroll
    EACH(k, j)
    {
        float v = LOGIT(k, j);
        if (v == most) {
            tops += 1.0f;
        } else {
            others += expf(v - most);
        }
        below += most - v;
    }
    tops = group_sum(tops, p.group);
    others = group_sum(others, p.group) + (tops - 1.0f);
    below = group_sum(below, p.group);
#pragma unroll
    EACH(k, j)
    {
        out[j] = expf(LOGIT(k, j) - most) / (1.0f + others);
    }
#undef EACH
#undef LOGIT
    if (label < 0 || (uint64_t)label >= p.classes) {
        return 0.0f;
    }
    rest = log1pf(others);
    loss = most - ren__widen(x[label]) + rest;
    if (p.smoothing > 0.0f) { /* 0 times an infinite distance would be NaN */
        loss = (1.0f - p.smoothing) * loss + p.smoothing * (below / (float)p.classes + rest);
    }
    return loss;
}

template <typename T, int HELD>
static __global__ void __launch_bounds__(LARGE_BLOCK) xent_forward_kernel(xent_params<T> p)
{
    __shared__ float shared[32];
    uint64_t at_once = blockDim.x / p.group;
    float sum = 0.0f;
    /* Whole blocks go round, so that no thread of a warp leaves early. */
    for (uint64_t first = blockIdx.x * at_once; first < p.rows; first += gridDim.x * at_once) {
        float loss = row_loss<T, HELD>(p, first + threadIdx.x / p.group);
        sum += threadIdx.x % p.group == 0 ? loss : 0.0f;
    }
    join_part(p.join, sum, shared);
}

template <typename T> static __global__ void xent_backward_kernel(xent_params<T> p)
{
    uint64_t n = p.rows * p.classes;
    float scale = p.scale * scale_of(p.state);
    float even = p.smoothing / (float)p.classes;
    for (uint64_t i = ren__first4(); i < n; i += ren__stride4()) {
        /* Division of 64 bits is slow. */
        uint64_t row = n >> 32 ? i / p.classes : (uint32_t)i / (uint32_t)p.classes;
        uint64_t column = i - row * p.classes;
        float g[4];
        load4<float>(p.probability, i, n, p.vector, g);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int32_t label = row < p.rows ? p.labels[row] : -1;
            if (label < 0 || (uint64_t)label >= p.classes) {
                g[k] = 0.0f;
            } else {
                g[k] -= even + ((uint64_t)label == column ? 1.0f - p.smoothing : 0.0f);
            }
            g[k] *= scale;
            column++;
            if (column == p.classes) {
                column = 0;
                row++;
            }
        }
        store4<T>(p.gradient, i, n, p.vector, g);
    }
}

static uint32_t group_of(uint64_t classes)
{
    uint32_t group = 1;
    while (group < REN_WARP && (uint64_t)group * HELD_CLASSES < classes) {
        group *= 2u;
    }
    return group;
}

/* The threads of a block: one large block where that is enough, for it needs no joining. */
static uint32_t xent_threads(uint64_t rows, uint64_t classes)
{
    uint64_t all = rows * group_of(classes);
    return all > LARGE_BLOCK ? REN_THREADS
                             : (uint32_t)((all + REN_WARP - 1u) / REN_WARP * REN_WARP);
}

static uint32_t xent_blocks(uint64_t rows, uint64_t classes)
{
    return ren__blocks(rows, xent_threads(rows, classes) / group_of(classes), XENT_PARTS);
}

uint64_t ren__cuda_k_xent_scratch(uint64_t rows, uint64_t classes)
{
    return xent_blocks(rows, classes) * sizeof(float);
}

template <typename T> static xent_params<T> xent_params_of(const ren__xent *x, void *partial)
{
    xent_params<T> p;
    p.logits = (const T *)x->logits;
    p.labels = x->labels;
    p.probability = x->probability;
    p.gradient = (T *)x->gradient;
    p.rows = x->rows;
    p.classes = x->classes;
    p.group = group_of(x->classes);
    p.smoothing = x->smoothing;
    p.scale = 1.0f / (float)x->rows;
    p.vector = ren__aligned16(x->probability) && ren__aligned16(x->gradient);
    p.state = x->state;
    p.join.parts = (float *)partial;
    p.join.sum = x->loss;
    p.join.ticket = x->ticket;
    p.join.count = xent_blocks(x->rows, x->classes);
    p.join.divisor = (float)x->rows;
    return p;
}

template <typename T>
static cudaError_t xent_forward(cudaStream_t stream, const ren__xent *x, void *partial)
{
    xent_params<T> p = xent_params_of<T>(x, partial);
    uint32_t threads = xent_threads(x->rows, x->classes);
    cudaError_t code =
        (uint64_t)p.group * HELD_CLASSES >= x->classes
            ? REN_LAUNCH((xent_forward_kernel<T, HELD_CLASSES>), p.join.count, threads, stream, p)
            : REN_LAUNCH((xent_forward_kernel<T, 0>), p.join.count, threads, stream, p);
    return join_apart(stream, code, &p.join);
}

template <typename T> static cudaError_t xent_backward(cudaStream_t stream, const ren__xent *x)
{
    xent_params<T> p = xent_params_of<T>(x, NULL);
    return REN_LAUNCH(xent_backward_kernel<T>,
                      ren__blocks(x->rows * x->classes, REN_THREADS * 4u, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_xent_forward(cudaStream_t stream, const ren__xent *x, void *partial)
{
    return REN_DISPATCH(x->dtype, xent_forward, stream, x, partial);
}

cudaError_t ren__cuda_k_xent_backward(cudaStream_t stream, const ren__xent *x)
{
    return REN_DISPATCH(x->dtype, xent_backward, stream, x);
}

/* ------------------------------------------------------------------ distances */

template <typename X, typename Y> struct distance_params {
    const X *x;
    const Y *target;
    X *gradient;
    uint64_t n;
    float delta, factor;
    int huber;
    int vector;
    const ren__state *state; /* as above */
    join_params join;
};

template <typename X, typename Y>
static __global__ void distance_forward_kernel(distance_params<X, Y> p)
{
    __shared__ float shared[32];
    float sum = 0.0f;
    for (uint64_t i = ren__first4(); i < p.n; i += ren__stride4()) {
        float x[4];
        float t[4];
        load4<X>(p.x, i, p.n, p.vector, x);
        load4<Y>(p.target, i, p.n, p.vector, t);
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
    join_part(p.join, sum, shared);
}

template <typename X, typename Y>
static __global__ void distance_backward_kernel(distance_params<X, Y> p)
{
    float factor = p.factor * scale_of(p.state);
    for (uint64_t i = ren__first4(); i < p.n; i += ren__stride4()) {
        float x[4];
        float t[4];
        load4<X>(p.x, i, p.n, p.vector, x);
        load4<Y>(p.target, i, p.n, p.vector, t);
        for (int k = 0; k < 4; k++) {
            float d = x[k] - t[k];
            if (p.huber && fabsf(d) > p.delta) {
                d = d > 0.0f ? p.delta : -p.delta;
            }
            x[k] = d * factor;
        }
        store4<X>(p.gradient, i, p.n, p.vector, x);
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

template <typename X, typename Y>
static cudaError_t distance(cudaStream_t stream, const ren__distance *d, void *partial)
{
    distance_params<X, Y> p;
    p.x = (const X *)d->x;
    p.target = (const Y *)d->target;
    p.gradient = (X *)d->gradient;
    p.n = d->n;
    p.delta = d->delta;
    p.factor = (d->huber ? 1.0f : 2.0f) / (float)d->n;
    p.huber = d->huber;
    p.vector = ren__aligned16(d->x) && ren__aligned16(d->target) && ren__aligned16(d->gradient);
    p.state = d->state;
    p.join.parts = (float *)partial;
    p.join.sum = d->loss;
    p.join.ticket = d->ticket;
    p.join.count = parts_of(d->n);
    p.join.divisor = (float)d->n;
    if (d->gradient) {
        return REN_LAUNCH((distance_backward_kernel<X, Y>),
                          ren__blocks(d->n, REN_THREADS * 4u, REN_MAX_BLOCKS), REN_THREADS, stream,
                          p);
    }
    return join_apart(
        stream, REN_LAUNCH((distance_forward_kernel<X, Y>), p.join.count, REN_THREADS, stream, p),
        &p.join);
}

template <typename X>
static cudaError_t distance_to(cudaStream_t stream, const ren__distance *d, void *partial)
{
    return d->target_dtype == REN_F16    ? distance<X, __half>(stream, d, partial)
           : d->target_dtype == REN_BF16 ? distance<X, __nv_bfloat16>(stream, d, partial)
                                         : distance<X, float>(stream, d, partial);
}

cudaError_t ren__cuda_k_distance(cudaStream_t stream, const ren__distance *d, void *partial)
{
    return REN_DISPATCH(d->dtype, distance_to, stream, d, partial);
}
