/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/norm.cu - sums over the rows of a matrix, and batch normalisation.
 *
 * Purpose   The bias gradient, and batch norm's training, backward and inference passes. An NHWC
 *           tensor is a matrix of N H W rows and C channels.
 * Shape     A block covers 32 channels, one to a thread of a warp, so that loads coalesce, with 8
 *           warps on different rows. When that makes too few blocks the rows are split, and a
 *           second kernel joins the splits. Split count and bounds depend on the shape alone.
 * Numbers   Variances are not taken as the difference of two large sums: each thread sums x - k and
 *           (x - k)^2 with k its own first value, and mean and squared deviations are merged
 *           pairwise by the rule of Chan, Golub and LeVeque (1979).
 */
#include "launch.cuh"

#define FEW_ROWS   32u /* batches of at most this many rows: see backward_of_few_kernel */
#define COLUMNS    32u
#define LANES      8u
#define SPLIT_ROWS 64u  /* fewest rows of a split */
#define MOST_SPLIT 256u /* splits, that one thread joins in order */
#define BLOCKS     512u /* of the first pass, by aim */

typedef struct row_split {
    uint32_t count;
    uint64_t rows; /* of each split but the last */
} row_split;

static row_split split_of(uint64_t rows, uint64_t channels)
{
    uint64_t columns = (channels + COLUMNS - 1u) / COLUMNS;
    uint64_t most = BLOCKS / (columns < BLOCKS ? columns : BLOCKS);
    uint64_t count = rows / SPLIT_ROWS;
    row_split s;
    count = count < 1u ? 1u : count;
    count = count > most ? most : count;
    count = count > MOST_SPLIT ? MOST_SPLIT : count;
    s.rows = (rows + count - 1u) / count;
    s.count = (uint32_t)((rows + s.rows - 1u) / s.rows);
    return s;
}

static dim3 grid_of(uint64_t channels, uint32_t splits)
{
    return dim3((uint32_t)((channels + COLUMNS - 1u) / COLUMNS), splits, 1u);
}

/* ------------------------------------------------------------------ column sums */

typedef struct sum_params {
    const float *x;
    float *sums;
    float *partial; /* [splits][channels]; the sums themselves when there is one split */
    uint64_t rows, channels;
    row_split split;
} sum_params;

static __global__ void column_sum_kernel(sum_params p)
{
    __shared__ float sums[LANES][COLUMNS];
    uint32_t column = threadIdx.x % COLUMNS;
    uint32_t lane = threadIdx.x / COLUMNS;
    uint64_t channel = (uint64_t)blockIdx.x * COLUMNS + column;
    uint64_t begin = blockIdx.y * p.split.rows;
    uint64_t end = begin + p.split.rows < p.rows ? begin + p.split.rows : p.rows;
    float sum = 0.0f;
    if (channel < p.channels) {
        for (uint64_t row = begin + lane; row < end; row += LANES) {
            sum += p.x[row * p.channels + channel];
        }
    }
    sums[lane][column] = sum;
    __syncthreads();
    if (lane == 0 && channel < p.channels) {
        for (uint32_t k = 1; k < LANES; k++) {
            sum += sums[k][column];
        }
        p.partial[blockIdx.y * p.channels + channel] = sum;
    }
}

static __global__ void column_join_kernel(sum_params p)
{
    uint64_t channel = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    if (channel >= p.channels) {
        return;
    }
    for (uint32_t k = 0; k < p.split.count; k++) {
        sum += p.partial[k * p.channels + channel];
    }
    p.sums[channel] = sum;
}

uint64_t ren__cuda_k_column_sum_scratch(uint64_t rows, uint64_t channels)
{
    row_split s = split_of(rows, channels);
    return s.count == 1u ? 0u : s.count * channels * sizeof(float);
}

cudaError_t ren__cuda_k_column_sum(cudaStream_t stream, const float *x, float *sums, uint64_t rows,
                                   uint64_t channels, void *partial)
{
    row_split s = split_of(rows, channels);
    sum_params p = {x, sums, s.count == 1u ? sums : (float *)partial, rows, channels, s};
    cudaError_t code =
        REN_LAUNCH(column_sum_kernel, grid_of(channels, s.count), COLUMNS * LANES, stream, p);
    if (code == cudaSuccess && s.count > 1u) {
        code = REN_LAUNCH(column_join_kernel, ren__blocks(channels, REN_THREADS, UINT32_MAX),
                          REN_THREADS, stream, p);
    }
    return code;
}

/* ------------------------------------------------------------------ training */

/* Count, mean and sum of squared deviations of a set of values. */
typedef struct moments {
    float count, mean, squares;
} moments;

static __device__ __forceinline__ moments merge(moments a, moments b)
{
    moments m;
    float difference = b.mean - a.mean;
    if (a.count == 0.0f) {
        return b;
    }
    if (b.count == 0.0f) {
        return a;
    }
    m.count = a.count + b.count;
    m.mean = a.mean + difference * (b.count / m.count);
    m.squares = a.squares + b.squares + difference * difference * (a.count * (b.count / m.count));
    return m;
}

typedef struct train_params {
    ren__norm_train t;
    float *partial; /* [splits][channels] means, then as many sums of squares */
    row_split split;
    int vector;
} train_params;

static __global__ void moments_kernel(train_params p)
{
    __shared__ moments parts[LANES][COLUMNS];
    uint32_t column = threadIdx.x % COLUMNS;
    uint32_t lane = threadIdx.x / COLUMNS;
    uint64_t channel = (uint64_t)blockIdx.x * COLUMNS + column;
    uint64_t begin = blockIdx.y * p.split.rows;
    uint64_t end = begin + p.split.rows < p.t.rows ? begin + p.split.rows : p.t.rows;
    moments m = {0.0f, 0.0f, 0.0f};
    if (channel < p.t.channels && begin + lane < end) {
        float origin = p.t.x[(begin + lane) * p.t.channels + channel];
        float sum = 0.0f;
        float squares = 0.0f;
        uint32_t count = 0;
        for (uint64_t row = begin + lane; row < end; row += LANES) {
            float v = p.t.x[row * p.t.channels + channel] - origin;
            sum += v;
            squares += v * v;
            count++;
        }
        m.count = (float)count;
        m.mean = origin + sum / m.count;
        m.squares = squares - sum * (sum / m.count);
        m.squares = m.squares < 0.0f ? 0.0f : m.squares;
    }
    parts[lane][column] = m;
    __syncthreads();
    if (lane == 0 && channel < p.t.channels) {
        uint64_t at = blockIdx.y * p.t.channels + channel;
        for (uint32_t k = 1; k < LANES; k++) {
            m = merge(m, parts[k][column]);
        }
        p.partial[at] = m.mean;
        p.partial[p.split.count * p.t.channels + at] = m.squares;
    }
}

static __global__ void moments_join_kernel(train_params p)
{
    uint64_t channel = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    moments m = {0.0f, 0.0f, 0.0f};
    float rows = (float)p.t.rows;
    float unbiased;
    if (channel >= p.t.channels) {
        return;
    }
    for (uint32_t k = 0; k < p.split.count; k++) {
        uint64_t begin = k * p.split.rows;
        uint64_t left = p.t.rows - begin;
        uint64_t at = k * p.t.channels + channel;
        moments part;
        part.count = (float)(left < p.split.rows ? left : p.split.rows);
        part.mean = p.partial[at];
        part.squares = p.partial[p.split.count * p.t.channels + at];
        m = merge(m, part);
    }
    p.t.mean[channel] = m.mean;
    p.t.rstd[channel] = 1.0f / sqrtf(m.squares / rows + p.t.eps);
    unbiased = m.squares / (rows > 1.0f ? rows - 1.0f : 1.0f);
    p.t.new_running_mean[channel] =
        (1.0f - p.t.momentum) * p.t.running_mean[channel] + p.t.momentum * m.mean;
    p.t.new_running_var[channel] =
        (1.0f - p.t.momentum) * p.t.running_var[channel] + p.t.momentum * unbiased;
}

static __global__ void normalise_kernel(train_params p)
{
    uint64_t n = p.t.rows * p.t.channels;
    for (uint64_t i = ren__first4(); i < n; i += ren__stride4()) {
        float v[4];
        uint64_t c = i % p.t.channels;
        ren__load4(p.t.x, i, n, p.vector, v);
        for (int k = 0; k < 4; k++) {
            v[k] = (v[k] - p.t.mean[c]) * p.t.rstd[c] * p.t.weight[c] + p.t.bias[c];
            c = c + 1u == p.t.channels ? 0u : c + 1u;
        }
        ren__store4(p.t.y, i, n, p.vector, v);
    }
}

uint64_t ren__cuda_k_norm_scratch(uint64_t rows, uint64_t channels)
{
    return 2u * split_of(rows, channels).count * channels * sizeof(float);
}

cudaError_t ren__cuda_k_norm_train(cudaStream_t stream, const ren__norm_train *t, void *partial)
{
    train_params p = {*t, (float *)partial, split_of(t->rows, t->channels),
                      ren__aligned16(t->x) && ren__aligned16(t->y)};
    cudaError_t code =
        REN_LAUNCH(moments_kernel, grid_of(t->channels, p.split.count), COLUMNS * LANES, stream, p);
    if (code == cudaSuccess) {
        code = REN_LAUNCH(moments_join_kernel, ren__blocks(t->channels, REN_THREADS, UINT32_MAX),
                          REN_THREADS, stream, p);
    }
    if (code == cudaSuccess) {
        code = REN_LAUNCH(normalise_kernel,
                          ren__blocks(t->rows * t->channels, REN_THREADS * 4u, REN_MAX_BLOCKS),
                          REN_THREADS, stream, p);
    }
    return code;
}

/* ------------------------------------------------------------------ backward */

typedef struct backward_params {
    ren__norm_backward b;
    float *partial; /* [splits][channels] sums of dy, then as many of dy * xhat */
    row_split split;
    int vector;
} backward_params;

static __global__ void backward_sum_kernel(backward_params p)
{
    __shared__ float sums[2][LANES][COLUMNS];
    uint32_t column = threadIdx.x % COLUMNS;
    uint32_t lane = threadIdx.x / COLUMNS;
    uint64_t channel = (uint64_t)blockIdx.x * COLUMNS + column;
    uint64_t begin = blockIdx.y * p.split.rows;
    uint64_t end = begin + p.split.rows < p.b.rows ? begin + p.split.rows : p.b.rows;
    float sum = 0.0f;
    float product = 0.0f;
    if (channel < p.b.channels) {
        float mean = p.b.mean[channel];
        float rstd = p.b.rstd[channel];
        for (uint64_t row = begin + lane; row < end; row += LANES) {
            float g = p.b.dy[row * p.b.channels + channel];
            sum += g;
            product += g * (p.b.x[row * p.b.channels + channel] - mean) * rstd;
        }
    }
    sums[0][lane][column] = sum;
    sums[1][lane][column] = product;
    __syncthreads();
    if (lane == 0 && channel < p.b.channels) {
        uint64_t at = blockIdx.y * p.b.channels + channel;
        for (uint32_t k = 1; k < LANES; k++) {
            sum += sums[0][k][column];
            product += sums[1][k][column];
        }
        p.partial[at] = sum;
        p.partial[p.split.count * p.b.channels + at] = product;
    }
}

static __global__ void backward_join_kernel(backward_params p)
{
    uint64_t channel = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    float product = 0.0f;
    if (channel >= p.b.channels) {
        return;
    }
    for (uint32_t k = 0; k < p.split.count; k++) {
        uint64_t at = k * p.b.channels + channel;
        sum += p.partial[at];
        product += p.partial[p.split.count * p.b.channels + at];
    }
    p.b.dbias[channel] = sum;
    p.b.dweight[channel] = product;
}

static __global__ void backward_data_kernel(backward_params p)
{
    uint64_t n = p.b.rows * p.b.channels;
    float rows = (float)p.b.rows;
    for (uint64_t i = ren__first4(); i < n; i += ren__stride4()) {
        float g[4];
        float x[4];
        uint64_t c = i % p.b.channels;
        ren__load4(p.b.dy, i, n, p.vector, g);
        ren__load4(p.b.x, i, n, p.vector, x);
        for (int k = 0; k < 4; k++) {
            float normal = (x[k] - p.b.mean[c]) * p.b.rstd[c];
            float centred = g[k] - p.b.dbias[c] / rows - normal * (p.b.dweight[c] / rows);
            g[k] = p.b.weight[c] * p.b.rstd[c] * centred;
            c = c + 1u == p.b.channels ? 0u : c + 1u;
        }
        ren__store4(p.b.dx, i, n, p.vector, g);
    }
}

/* The backward pass of a batch of few rows, from x itself and in double, as the CPU device does it:
 * xhat is close to 1 in size there, the bracket is what cancellation leaves, and a mean or rstd
 * that was rounded to f32 on the way would spoil it. One thread a channel. */
static __global__ void backward_of_few_kernel(backward_params p)
{
    uint64_t c = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    double rows = (double)p.b.rows;
    double mean = 0.0;
    double var = 0.0;
    double sum = 0.0;
    double product = 0.0;
    double rstd;
    if (c >= p.b.channels) {
        return;
    }
    for (uint64_t r = 0; r < p.b.rows; r++) {
        mean += p.b.x[r * p.b.channels + c];
    }
    mean /= rows;
    for (uint64_t r = 0; r < p.b.rows; r++) {
        double d = p.b.x[r * p.b.channels + c] - mean;
        var += d * d;
    }
    rstd = 1.0 / sqrt(var / rows + (double)p.b.eps);
    for (uint64_t r = 0; r < p.b.rows; r++) {
        double g = p.b.dy[r * p.b.channels + c];
        sum += g;
        product += g * (p.b.x[r * p.b.channels + c] - mean) * rstd;
    }
    for (uint64_t r = 0; r < p.b.rows; r++) {
        double normal = (p.b.x[r * p.b.channels + c] - mean) * rstd;
        double centred = p.b.dy[r * p.b.channels + c] - sum / rows - normal * (product / rows);
        p.b.dx[r * p.b.channels + c] = (float)(p.b.weight[c] * rstd * centred);
    }
    p.b.dbias[c] = (float)sum;
    p.b.dweight[c] = (float)product;
}

cudaError_t ren__cuda_k_norm_backward(cudaStream_t stream, const ren__norm_backward *b,
                                      void *partial)
{
    backward_params p = {*b, (float *)partial, split_of(b->rows, b->channels),
                         ren__aligned16(b->dy) && ren__aligned16(b->x) && ren__aligned16(b->dx)};
    cudaError_t code;
    if (b->rows <= FEW_ROWS) {
        return REN_LAUNCH(backward_of_few_kernel, ren__blocks(b->channels, REN_THREADS, UINT32_MAX),
                          REN_THREADS, stream, p);
    }
    code = REN_LAUNCH(backward_sum_kernel, grid_of(b->channels, p.split.count), COLUMNS * LANES,
                      stream, p);
    if (code == cudaSuccess) {
        code = REN_LAUNCH(backward_join_kernel, ren__blocks(b->channels, REN_THREADS, UINT32_MAX),
                          REN_THREADS, stream, p);
    }
    if (code == cudaSuccess) {
        code = REN_LAUNCH(backward_data_kernel,
                          ren__blocks(b->rows * b->channels, REN_THREADS * 4u, REN_MAX_BLOCKS),
                          REN_THREADS, stream, p);
    }
    return code;
}

/* ------------------------------------------------------------------ inference */

typedef struct eval_params {
    const float *x, *weight, *bias, *mean, *var;
    float *y;
    uint64_t n, channels;
    float eps;
    int vector;
} eval_params;

static __global__ void eval_kernel(eval_params p)
{
    for (uint64_t i = ren__first4(); i < p.n; i += ren__stride4()) {
        float v[4];
        uint64_t c = i % p.channels;
        ren__load4(p.x, i, p.n, p.vector, v);
        for (int k = 0; k < 4; k++) {
            float rstd = 1.0f / sqrtf(p.var[c] + p.eps);
            v[k] = (v[k] - p.mean[c]) * rstd * p.weight[c] + p.bias[c];
            c = c + 1u == p.channels ? 0u : c + 1u;
        }
        ren__store4(p.y, i, p.n, p.vector, v);
    }
}

cudaError_t ren__cuda_k_norm_eval(cudaStream_t stream, const float *x, const float *weight,
                                  const float *bias, const float *running_mean,
                                  const float *running_var, float eps, float *y, uint64_t rows,
                                  uint64_t channels)
{
    eval_params p = {
        x, weight,          bias,     running_mean, running_var,
        y, rows * channels, channels, eps,          ren__aligned16(x) && ren__aligned16(y)};
    return REN_LAUNCH(eval_kernel, ren__blocks(p.n, REN_THREADS * 4u, REN_MAX_BLOCKS), REN_THREADS,
                      stream, p);
}
