/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/op_norm.c - batch normalization: training, backward, evaluation, folding.
 *
 * Purpose   y = (x - mean) rstd weight + bias per channel (Ioffe and Szegedy 2015), with the
 *           running statistics as PyTorch keeps them: r = (1 - momentum) r + momentum value, the
 *           running variance from the unbiased batch variance.
 * Layout    x of rank 4 (NHWC) or 2 ([N, C]).
 * Fusion    Sum and ReLU are a pass of ours over what oneDNN wrote. Backward, a pass of ours before
 *           it writes the gradient that counts: where the contract wants that, or into the
 *           workspace.
 * Accuracy  the backward pass of a few rows is our own, see backward_of_few.
 * Memory    oneDNN works with the biased variance; the contract's operand is rstd = 1 / sqrt(var +
 *           eps). The variance is a workspace vector, turned into rstd after the forward pass and
 *           back before the backward pass. Behind it there may be the gradient that counts.
 */
#include "op.h"

#include <math.h>
#include <string.h>

/* Batches of at most this many rows go through backward_of_few. */
#define FEW_ROWS 32u

static size_t channels_of(const ren__op *op)
{
    const ren__tensor_desc *x = &op->desc.operand[0];
    return (size_t)x->dims[x->rank - 1u];
}

/* ------------------------------------------------------------------ sum and ReLU */

/* The passes go over RUN elements at a time and load all of them before they choose: what has a
 * constant count and no branch becomes vectors. */
#define RUN 16u

static float relu(float v)
{
    return v < 0.0f ? 0.0f : v; /* a NaN stays one */
}

static void apply_relu(float *y, size_t n)
{
    size_t i = 0;
    for (; i + RUN <= n; i += RUN) {
        for (size_t k = 0; k < RUN; k++) {
            y[i + k] = relu(y[i + k]);
        }
    }
    for (; i < n; i++) {
        y[i] = relu(y[i]);
    }
}

static void apply_sum(float *restrict y, const float *restrict other, size_t n)
{
    size_t i = 0;
    for (; i + RUN <= n; i += RUN) {
        for (size_t k = 0; k < RUN; k++) {
            y[i + k] += other[i + k];
        }
    }
    for (; i < n; i++) {
        y[i] += other[i];
    }
}

static void apply_sum_and_relu(float *restrict y, const float *restrict other, size_t n)
{
    size_t i = 0;
    for (; i + RUN <= n; i += RUN) {
        for (size_t k = 0; k < RUN; k++) {
            y[i + k] = relu(y[i + k] + other[i + k]);
        }
    }
    for (; i < n; i++) {
        y[i] = relu(y[i] + other[i]);
    }
}

/* y = act(y + other), behind the normalisation. */
static void finish_output(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t n = (size_t)ren__tensor_elements(&op->desc.operand[5]);
    (void)workspace;
    if (ren__cpu_has(&op->desc, 10)) {
        (op->desc.fused_activation ? apply_sum_and_relu : apply_sum)(operands[5], operands[10], n);
    } else if (op->desc.fused_activation) {
        apply_relu(operands[5], n);
    }
}

/* Up to RUN elements of the gradient, which comes in one piece or two. */
static void load_gradient(float g[RUN], const float *dy, const float *more, size_t count)
{
    memcpy(g, dy, count * sizeof g[0]);
    if (more && count == RUN) {
        for (size_t k = 0; k < RUN; k++) {
            g[k] += more[k];
        }
        return;
    }
    for (size_t k = 0; more && k < count; k++) {
        g[k] += more[k];
    }
}

static void gate_by_output(float *restrict out, const float *restrict dy,
                           const float *restrict more, const float *restrict y, size_t n)
{
    float g[RUN];
    size_t i = 0;
    for (; i + RUN <= n; i += RUN) {
        load_gradient(g, dy + i, more ? more + i : NULL, RUN);
        for (size_t k = 0; k < RUN; k++) {
            const float v = y[i + k];
            out[i + k] = v > 0.0f ? g[k] : 0.0f;
        }
    }
    load_gradient(g, dy + i, more ? more + i : NULL, n - i);
    for (size_t k = 0; k < n - i; k++) {
        out[i + k] = y[i + k] > 0.0f ? g[k] : 0.0f;
    }
}

/* One row: the output is computed again, which costs less than reading it. */
static void gate_row(float *restrict out, const float *restrict dy, const float *restrict more,
                     const float *restrict x, const float *restrict mean,
                     const float *restrict scale, const float *restrict bias, size_t channels)
{
    float g[RUN];
    size_t c = 0;
    for (; c + RUN <= channels; c += RUN) {
        load_gradient(g, dy + c, more ? more + c : NULL, RUN);
        for (size_t k = 0; k < RUN; k++) {
            const float v = (x[c + k] - mean[c + k]) * scale[c + k] + bias[c + k];
            out[c + k] = v > 0.0f ? g[k] : 0.0f;
        }
    }
    load_gradient(g, dy + c, more ? more + c : NULL, channels - c);
    for (size_t k = 0; k < channels - c; k++) {
        const float v = (x[c + k] - mean[c + k]) * scale[c + k] + bias[c + k];
        out[c + k] = v > 0.0f ? g[k] : 0.0f;
    }
}

static uint64_t vector_bytes(size_t channels)
{
    return (channels * sizeof(float) + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
}

/* Where the backward pass finds the gradient of the normalised x. */
static const float *gradient(const ren__op *op, void *const *operands,
                             const unsigned char *workspace)
{
    const void *behind = workspace + vector_bytes(channels_of(op));
    return !op->desc.fused_activation   ? operands[0]
           : ren__cpu_has(&op->desc, 9) ? operands[9]
                                        : behind;
}

/* The vector at the workspace's beginning is free until then. */
static void gate(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t n = (size_t)ren__tensor_elements(&op->desc.operand[0]);
    const size_t channels = channels_of(op);
    float *out =
        ren__cpu_has(&op->desc, 9) ? operands[9] : (void *)(workspace + vector_bytes(channels));
    const float *dy = operands[0];
    const float *more = ren__cpu_has(&op->desc, 11) ? operands[11] : NULL;
    if (ren__cpu_has(&op->desc, 8)) {
        gate_by_output(out, dy, more, operands[8], n);
        return;
    }
    const float *x = operands[1];
    const float *weight = operands[2];
    const float *rstd = operands[4];
    float *scale = (float *)(void *)workspace;
    for (size_t c = 0; c < channels; c++) {
        scale[c] = weight[c] * rstd[c];
    }
    for (size_t i = 0; i < n; i += channels) {
        gate_row(out + i, dy + i, more ? more + i : NULL, x + i, operands[3], scale, operands[10],
                 channels);
    }
}

/* ------------------------------------------------------------------ statistics */

static void finish_training(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t channels = channels_of(op);
    const double rows = (double)(ren__tensor_elements(&op->desc.operand[0]) / channels);
    const double unbiased = rows > 1.0 ? rows / (rows - 1.0) : 1.0;
    const double momentum = (double)op->desc.alpha;
    const float *running_mean = operands[3];
    const float *running_var = operands[4];
    const float *mean = operands[6];
    const float *var = (const float *)(void *)workspace;
    float *rstd = operands[7];
    float *new_mean = operands[8];
    float *new_var = operands[9];
    for (size_t c = 0; c < channels; c++) {
        double v = (double)var[c];
        rstd[c] = (float)(1.0 / sqrt(v + (double)op->desc.eps));
        new_mean[c] =
            (float)((1.0 - momentum) * (double)running_mean[c] + momentum * (double)mean[c]);
        new_var[c] = (float)((1.0 - momentum) * (double)running_var[c] + momentum * unbiased * v);
    }
    finish_output(op, operands, workspace);
}

static void prepare_backward(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t channels = channels_of(op);
    const float *rstd = operands[4];
    float *var = (float *)(void *)workspace;
    if (op->desc.fused_activation) {
        gate(op, operands, workspace);
    }
    for (size_t c = 0; c < channels; c++) {
        double r = (double)rstd[c];
        var[c] = (float)(1.0 / (r * r) - (double)op->desc.eps);
    }
}

/* The backward pass of a batch of few rows, from x itself and in double.
 *   dx = weight rstd (dy - mean(dy) - xhat mean(dy xhat))
 * With few rows xhat is close to 1 in size and the bracket is what cancellation leaves: for two
 * rows it is proportional to 1 - xhat^2 = eps / (var + eps). A mean and an rstd that were rounded
 * to f32 on the way here would spoil it. */
static void backward_of_few(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t channels = channels_of(op);
    const size_t rows = (size_t)ren__tensor_elements(&op->desc.operand[0]) / channels;
    const double count = (double)rows;
    const float *x = operands[1];
    const float *weight = operands[2];
    float *dx = operands[5];
    if (op->desc.fused_activation) {
        gate(op, operands, workspace);
    }
    const float *dy = gradient(op, operands, workspace);
    for (size_t c = 0; c < channels; c++) {
        double mean = 0.0, var = 0.0, sum_dy = 0.0, sum_dot = 0.0;
        for (size_t r = 0; r < rows; r++) {
            mean += (double)x[r * channels + c] / count;
        }
        for (size_t r = 0; r < rows; r++) {
            double d = (double)x[r * channels + c] - mean;
            var += d * d / count;
        }
        const double rstd = 1.0 / sqrt(var + (double)op->desc.eps);
        for (size_t r = 0; r < rows; r++) {
            double g = (double)dy[r * channels + c];
            sum_dy += g;
            sum_dot += g * ((double)x[r * channels + c] - mean) * rstd;
        }
        for (size_t r = 0; r < rows; r++) {
            double xhat = ((double)x[r * channels + c] - mean) * rstd;
            double g = (double)dy[r * channels + c];
            dx[r * channels + c] =
                (float)((double)weight[c] * rstd * (g - sum_dy / count - xhat * sum_dot / count));
        }
        ((float *)operands[6])[c] = (float)sum_dot;
        ((float *)operands[7])[c] = (float)sum_dy;
    }
}

static ren_status make_pd(ren__cpu_build *b, ren__dnnl_pass pass, const ren__dnnl_md *x,
                          bool global_stats, dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_desc_t *slot = ren__cpu_pd_slot(b);
    REN__DNNL(b->err, ren__dnnl_batch_norm(slot, b->dev->engine, pass, x, b->desc->eps,
                                           global_stats, hint));
    *out = *slot;
    return REN_OK;
}

static ren_status vector(ren__cpu_build *b, const ren__dnnl_md *md, uint32_t operand,
                         int64_t channels, uint32_t *out)
{
    REN__TRY(ren__cpu_expect(b, operand, REN_F32, 1, &channels));
    return ren__cpu_memory(b, md, (int)operand, out);
}

static ren_status build_training(ren__cpu_build *b, const ren__dnnl_md *x_md,
                                 const ren__dnnl_md *c_md, int64_t channels)
{
    dnnl_primitive_desc_t pd = NULL;
    uint32_t x = 0, y = 0, weight = 0, bias = 0, mean = 0, var = 0;
    REN__TRY(make_pd(b, REN__DNNL_FORWARD, x_md, false, NULL, &pd));
    REN__TRY(ren__cpu_memory(b, x_md, 0, &x));
    REN__TRY(ren__cpu_memory(b, x_md, 5, &y));
    REN__TRY(vector(b, c_md, 1, channels, &weight));
    REN__TRY(vector(b, c_md, 2, channels, &bias));
    REN__TRY(vector(b, c_md, 6, channels, &mean));
    for (uint32_t i = 3; i <= 9; i++) {
        if (i != 5) {
            REN__TRY(ren__cpu_expect(b, i, REN_F32, 1, &channels));
        }
    }
    REN__TRY(ren__cpu_memory(b, c_md, -1, &var));
    b->op->own_offset = b->op->memories[var].offset;
    b->op->after = finish_training;
    const int args[][2] = {{DNNL_ARG_SRC, (int)x},        {DNNL_ARG_DST, (int)y},
                           {DNNL_ARG_SCALE, (int)weight}, {DNNL_ARG_SHIFT, (int)bias},
                           {DNNL_ARG_MEAN, (int)mean},    {DNNL_ARG_VARIANCE, (int)var}};
    return ren__cpu_step(b, pd, args, 6);
}

static ren_status build_backward(ren__cpu_build *b, const ren__dnnl_md *x_md,
                                 const ren__dnnl_md *c_md, int64_t channels)
{
    for (uint32_t i = 2; i <= 7; i++) {
        if (i != 5) {
            REN__TRY(ren__cpu_expect(b, i, REN_F32, 1, &channels));
        }
    }
    const bool fused = b->desc->fused_activation != 0;
    const bool needs_place = fused && !ren__cpu_has(b->desc, 9);
    if (ren__tensor_elements(&b->desc->operand[0]) <= FEW_ROWS * (uint64_t)channels) {
        b->op->after = backward_of_few;
        if (fused) {
            uint64_t place = needs_place ? ren__tensor_bytes(&b->desc->operand[0]) : 0u;
            ren__cpu_own_workspace(b, vector_bytes((size_t)channels) + place);
        }
        return REN_OK;
    }
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_desc_t pd = NULL;
    uint32_t dy = 0, x = 0, dx = 0, weight = 0, mean = 0, var = 0, dweight = 0, dbias = 0;
    REN__TRY(make_pd(b, REN__DNNL_FORWARD, x_md, false, NULL, &hint));
    REN__TRY(make_pd(b, REN__DNNL_BACKWARD_DATA, x_md, false, hint, &pd));
    /* The gated gradient's place is right behind the variance. */
    REN__TRY(ren__cpu_memory(b, c_md, -1, &var));
    REN__TRY(ren__cpu_memory(b, x_md, needs_place ? -1 : fused ? 9 : 0, &dy));
    REN__TRY(ren__cpu_memory(b, x_md, 1, &x));
    REN__TRY(ren__cpu_memory(b, x_md, 5, &dx));
    REN__TRY(vector(b, c_md, 2, channels, &weight));
    REN__TRY(vector(b, c_md, 3, channels, &mean));
    REN__TRY(vector(b, c_md, 6, channels, &dweight));
    REN__TRY(vector(b, c_md, 7, channels, &dbias));
    b->op->own_offset = b->op->memories[var].offset;
    b->op->before = prepare_backward;
    /* Any vector does for the shift. */
    const int args[][2] = {{DNNL_ARG_DIFF_DST, (int)dy},        {DNNL_ARG_SRC, (int)x},
                           {DNNL_ARG_DIFF_SRC, (int)dx},        {DNNL_ARG_SCALE, (int)weight},
                           {DNNL_ARG_MEAN, (int)mean},          {DNNL_ARG_VARIANCE, (int)var},
                           {DNNL_ARG_DIFF_SCALE, (int)dweight}, {DNNL_ARG_DIFF_SHIFT, (int)dbias},
                           {DNNL_ARG_SHIFT, (int)weight}};
    return ren__cpu_step(b, pd, args, 8u + REN__DNNL_BATCH_NORM_BACKWARD_SHIFTS);
}

static ren_status build_evaluation(ren__cpu_build *b, const ren__dnnl_md *x_md,
                                   const ren__dnnl_md *c_md, int64_t channels)
{
    dnnl_primitive_desc_t pd = NULL;
    uint32_t x = 0, y = 0, weight = 0, bias = 0, mean = 0, var = 0;
    REN__TRY(make_pd(b, REN__DNNL_INFERENCE, x_md, true, NULL, &pd));
    REN__TRY(ren__cpu_memory(b, x_md, 0, &x));
    REN__TRY(ren__cpu_memory(b, x_md, 5, &y));
    REN__TRY(vector(b, c_md, 1, channels, &weight));
    REN__TRY(vector(b, c_md, 2, channels, &bias));
    REN__TRY(vector(b, c_md, 3, channels, &mean));
    REN__TRY(vector(b, c_md, 4, channels, &var));
    const int args[][2] = {{DNNL_ARG_SRC, (int)x},        {DNNL_ARG_DST, (int)y},
                           {DNNL_ARG_SCALE, (int)weight}, {DNNL_ARG_SHIFT, (int)bias},
                           {DNNL_ARG_MEAN, (int)mean},    {DNNL_ARG_VARIANCE, (int)var}};
    b->op->after = finish_output;
    return ren__cpu_step(b, pd, args, 6);
}

/* What a fused operation needs beside the others' operands. */
static ren_status check_fusion(ren__cpu_build *b, int64_t channels)
{
    const ren__op_desc *d = b->desc;
    dnnl_alg_kind_t ignored;
    REN__TRY(ren__cpu_fused_algorithm(b, &ignored)); /* ReLU or nothing */
    if (d->kind != REN__OP_BATCH_NORM_BWD) {
        return ren__cpu_has(d, 10) ? ren__cpu_expect_same(b, 10, 0) : REN_OK;
    }
    if (!d->fused_activation) {
        return ren__cpu_has(d, 11)
                   ? REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "operand 11 needs a fused activation")
                   : REN_OK;
    }
    if (ren__cpu_has(d, 8) == ren__cpu_has(d, 10)) {
        return REN__CPU_FAIL(b->err, REN_ERR_SHAPE,
                             "the gate is operand 8 or 10, just one of them");
    }
    for (uint32_t i = 9; i <= 11; i += 2) {
        if (ren__cpu_has(d, i)) {
            REN__TRY(ren__cpu_expect_same(b, i, 0));
        }
    }
    return ren__cpu_has(d, 8) ? ren__cpu_expect_same(b, 8, 0)
                              : ren__cpu_expect(b, 10, REN_F32, 1, &channels);
}

ren_status ren__cpu_build_batch_norm(ren__cpu_build *b)
{
    const ren__op_desc *d = b->desc;
    const ren__tensor_desc *x = &d->operand[0];
    const ren__dnnl_md *x_md = NULL;
    const ren__dnnl_md *c_md = NULL;
    REN__TRY(ren__cpu_md_nhwc(b, 0, &x_md));
    REN__TRY(ren__cpu_expect(b, 0, REN_F32, x->rank, x->dims));
    REN__TRY(ren__cpu_expect_same(b, 5, 0));
    const int64_t channels = x->dims[x->rank - 1u];
    REN__TRY(ren__cpu_md(b, 1, &channels, dnnl_a, &c_md));
    REN__TRY(check_fusion(b, channels));
    switch (d->kind) {
    case REN__OP_BATCH_NORM_TRAIN:
        return build_training(b, x_md, c_md, channels);
    case REN__OP_BATCH_NORM_BWD:
        REN__TRY(ren__cpu_expect_same(b, 1, 0));
        return build_backward(b, x_md, c_md, channels);
    default:
        return build_evaluation(b, x_md, c_md, channels);
    }
}

/* ------------------------------------------------------------------ folding */

/* With s = weight / sqrt(rvar + eps): w' = s w, b' = s (b - rmean) + bias, for each output. */
static void fold(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t outputs = (size_t)op->desc.operand[0].dims[0];
    const size_t each = (size_t)ren__tensor_elements(&op->desc.operand[0]) / outputs;
    const float *w = operands[0];
    const float *weight = operands[1];
    const float *bias = operands[2];
    const float *mean = operands[3];
    const float *var = operands[4];
    const float *b = ren__cpu_has(&op->desc, 5) ? operands[5] : NULL;
    float *folded = operands[6];
    float *shift = operands[7];
    (void)workspace;
    for (size_t o = 0; o < outputs; o++) {
        const double s = (double)weight[o] / sqrt((double)var[o] + (double)op->desc.eps);
        const double from = b ? (double)b[o] : 0.0;
        for (size_t i = o * each; i < (o + 1u) * each; i++) {
            folded[i] = (float)(s * (double)w[i]);
        }
        shift[o] = (float)(s * (from - (double)mean[o]) + (double)bias[o]);
    }
}

ren_status ren__cpu_build_fold(ren__cpu_build *b)
{
    const ren__op_desc *d = b->desc;
    const int64_t any[4] = {-1, -1, -1, -1};
    REN__TRY(ren__cpu_expect(b, 0, REN_F32, 4, any));
    REN__TRY(ren__cpu_expect_same(b, 6, 0));
    for (uint32_t i = 1; i <= 7; i++) {
        if (i != 6 && (i != 5 || ren__cpu_has(d, 5))) {
            REN__TRY(ren__cpu_expect(b, i, REN_F32, 1, &d->operand[0].dims[0]));
        }
    }
    b->op->after = fold;
    return REN_OK;
}
