/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/op_loss.c - losses and their gradients.
 *
 * Purpose   Cross entropy over integer labels (mean over the batch, label smoothing as PyTorch
 *           defines it), mean squared error and Huber loss (means over all elements).
 * Order     sums run over the elements in order, in double.
 *
 * Cross entropy. oneDNN makes the probabilities p. The loss must not go through log p, which loses
 * a confident label's digits (p near 1) and overflows for a hopeless one (p = 0). With m the
 * largest logit and S the sum of all other probabilities, log sum exp(x) = m + log1p(S / p_m), and
 * p_m is at least 1 / C, so -log softmax(x)[j] = (m - x_j) + log1p(S / p_m) is accurate at both
 * ends. A row whose label is outside 0..C-1 adds nothing to loss or gradient, but counts in N.
 */
#include "op.h"

#include <math.h>
#include <string.h>

static bool is_label(int32_t label, size_t classes)
{
    return label >= 0 && (size_t)label < classes;
}

static double row_loss(const float *logits, const float *prob, size_t classes, size_t label,
                       double smoothing)
{
    size_t top = 0;
    for (size_t c = 1; c < classes; c++) {
        if (logits[c] > logits[top]) {
            top = c;
        }
    }
    double others = 0.0;
    double below = 0.0; /* sum of m - x_j */
    for (size_t c = 0; c < classes; c++) {
        others += c == top ? 0.0 : (double)prob[c];
        below += (double)logits[top] - (double)logits[c];
    }
    double rest = log1p(others / (double)prob[top]);
    double loss = (double)logits[top] - (double)logits[label] + rest;
    if (smoothing > 0.0) {
        loss = (1.0 - smoothing) * loss + smoothing * (below / (double)classes + rest);
    }
    return loss;
}

static void cross_entropy_loss(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t rows = (size_t)op->desc.operand[0].dims[0];
    const size_t classes = (size_t)op->desc.operand[0].dims[1];
    const float *logits = operands[0];
    const int32_t *labels = operands[1];
    float *loss = operands[2];
    const float *prob = operands[3];
    double sum = 0.0;
    (void)workspace;
    for (size_t r = 0; r < rows; r++) {
        if (is_label(labels[r], classes)) {
            sum += row_loss(logits + r * classes, prob + r * classes, classes, (size_t)labels[r],
                            (double)op->desc.alpha);
        }
    }
    *loss = (float)(sum / (double)rows);
}

/* What a backward pass begins with in place of 1. */
static float loss_scale(const ren__op *op, void *const *operands)
{
    const ren__state *state = operands[4];
    return op->desc.dynamic_scale ? state->loss_scale : 1.0f;
}

static void cross_entropy_gradient(const ren__op *op, void *const *operands,
                                   unsigned char *workspace)
{
    const size_t rows = (size_t)op->desc.operand[0].dims[0];
    const size_t classes = (size_t)op->desc.operand[0].dims[1];
    const float *prob = operands[0];
    const int32_t *labels = operands[1];
    float *dlogits = operands[3];
    const float smoothing = op->desc.alpha;
    const float spread = smoothing / (float)classes;
    const float scale = loss_scale(op, operands) / (float)rows;
    (void)workspace;
    for (size_t r = 0; r < rows; r++) {
        const float *p = prob + r * classes;
        float *d = dlogits + r * classes;
        if (!is_label(labels[r], classes)) {
            memset(d, 0, classes * sizeof *d);
            continue;
        }
        for (size_t c = 0; c < classes; c++) {
            float target = spread + ((size_t)labels[r] == c ? 1.0f - smoothing : 0.0f);
            d[c] = (p[c] - target) * scale;
        }
    }
}

ren_status ren__cpu_build_cross_entropy(ren__cpu_build *b)
{
    const ren__op_desc *d = b->desc;
    const int64_t any[2] = {-1, -1};
    REN__TRY(ren__cpu_expect(b, 0, REN_F32, 2, any));
    REN__TRY(ren__cpu_expect(b, 1, REN_I32, 1, &d->operand[0].dims[0]));
    REN__TRY(ren__cpu_expect_same(b, 3, 0));
    if (!(d->alpha >= 0.0f && d->alpha < 1.0f)) {
        return REN__CPU_FAIL(b->err, REN_ERR_INVALID_ARGUMENT,
                             "label smoothing must be at least 0 and below 1");
    }
    if (d->kind == REN__OP_XENT_BWD) {
        b->op->after = cross_entropy_gradient;
        return REN_OK;
    }
    REN__TRY(ren__cpu_expect_elements(b, 2, 1));
    const ren__dnnl_md *md = NULL;
    REN__TRY(ren__cpu_md(b, 2, d->operand[0].dims, dnnl_ab, &md));
    ren__cpu_set_work(b, 20.0 * (double)ren__tensor_elements(&d->operand[0]));
    dnnl_primitive_desc_t *pd = ren__cpu_pd_slot(b);
    REN__DNNL(b->err, ren__dnnl_softmax(pd, b->dev->engine, md));
    uint32_t x = 0;
    uint32_t prob = 0;
    REN__TRY(ren__cpu_memory(b, md, 0, &x));
    REN__TRY(ren__cpu_memory(b, md, 3, &prob));
    const int args[][2] = {{DNNL_ARG_SRC, (int)x}, {DNNL_ARG_DST, (int)prob}};
    b->op->after = cross_entropy_loss;
    return ren__cpu_step(b, *pd, args, 2);
}

/* ------------------------------------------------------------------ regression */

static bool is_huber(const ren__op *op)
{
    return op->desc.kind == REN__OP_HUBER_FWD || op->desc.kind == REN__OP_HUBER_BWD;
}

static void regression_loss(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t n = (size_t)ren__tensor_elements(&op->desc.operand[0]);
    const float *x = operands[0];
    const float *target = operands[1];
    const double delta = (double)op->desc.alpha;
    double sum = 0.0;
    (void)workspace;
    for (size_t i = 0; i < n; i++) {
        double e = (double)x[i] - (double)target[i];
        double size = fabs(e);
        if (!is_huber(op)) {
            sum += e * e;
        } else {
            sum += size <= delta ? 0.5 * e * e : delta * (size - 0.5 * delta);
        }
    }
    *(float *)operands[2] = (float)(sum / (double)n);
}

static void regression_gradient(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t n = (size_t)ren__tensor_elements(&op->desc.operand[0]);
    const float *x = operands[0];
    const float *target = operands[1];
    float *dx = operands[3];
    const float delta = op->desc.alpha;
    const float scale = (is_huber(op) ? 1.0f : 2.0f) * loss_scale(op, operands) / (float)n;
    (void)workspace;
    for (size_t i = 0; i < n; i++) {
        float e = x[i] - target[i];
        if (is_huber(op)) {
            e = e > delta ? delta : e < -delta ? -delta : e;
        }
        dx[i] = e * scale;
    }
}

ren_status ren__cpu_build_regression(ren__cpu_build *b)
{
    const ren__op_desc *d = b->desc;
    const bool backward = d->kind == REN__OP_MSE_BWD || d->kind == REN__OP_HUBER_BWD;
    const uint64_t elements = ren__tensor_elements(&d->operand[0]);
    REN__TRY(ren__cpu_expect_elements(b, 0, elements));
    REN__TRY(ren__cpu_expect_elements(b, 1, elements));
    REN__TRY(ren__cpu_expect_elements(b, backward ? 3u : 2u, backward ? elements : 1u));
    if (is_huber(b->op) && !(d->alpha > 0.0f)) {
        return REN__CPU_FAIL(b->err, REN_ERR_INVALID_ARGUMENT, "huber's delta must be above 0");
    }
    b->op->after = backward ? regression_gradient : regression_loss;
    return REN_OK;
}
