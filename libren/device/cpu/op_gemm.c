/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/op_gemm.c - linear and convolution layers, forward and both backward passes,
 * and the bias gradient.
 *
 * Purpose   The operations that have weights. All arithmetic is oneDNN's, but for sums of biases.
 * Fusion    An activation behind a forward pass is oneDNN's post operation. The bias gradient of a
 *           linear layer is summed behind its weight gradient, as the operation by itself does it.
 * Layout    x, y NHWC or [N, features]; weights OIHW or [out, in] in device memory.
 * Memory    oneDNN's fast convolutions want weights in a blocked layout of their own. They get it
 *           in the workspace: one reorder before (for the weight gradient: after) the primitive.
 *           Weights change at every training step, so there is nothing to keep.
 */
#include "op.h"

/* A linear layer's weights are reordered from this many rows on: the reorder costs one pass over
 * the weights, its gain grows with the rows. Forward on one core (oneDNN 2.6.3, AVX-512 EPYC), as
 * they are / reordered: 1 x 256 x 256 4.7 / 14 us, 64 x 784 x 256 251 / 270 us, 128 x 512 x 512
 * 1007 / 676 us. Convolutions always reorder: with OIHW weights oneDNN has only its reference
 * loops for NHWC data, hundreds of times slower. */
#define ROWS_WORTH_A_REORDER 96

/* ------------------------------------------------------------------ bias gradient */

void ren__cpu_sum_rows(const float *dy, const ren__tensor_desc *shape, float *db, double *sum)
{
    const size_t channels = (size_t)shape->dims[shape->rank - 1u];
    const size_t rows = (size_t)ren__tensor_elements(shape) / channels;
    for (size_t c = 0; c < channels; c++) {
        sum[c] = 0.0;
    }
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < channels; c++) {
            sum[c] += (double)dy[r * channels + c];
        }
    }
    for (size_t c = 0; c < channels; c++) {
        db[c] = (float)sum[c];
    }
}

static void bias_grad(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    ren__cpu_sum_rows(operands[0], &op->desc.operand[0], operands[1], (double *)(void *)workspace);
}

static void weight_bias(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    ren__cpu_sum_rows(operands[0], &op->desc.operand[0], operands[3], (double *)(void *)workspace);
}

ren_status ren__cpu_build_bias_grad(ren__cpu_build *b)
{
    const ren__tensor_desc *dy = &b->desc->operand[0];
    if (dy->rank < 1) {
        return REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "operand 0 is missing");
    }
    const int64_t channels = dy->dims[dy->rank - 1u];
    REN__TRY(ren__cpu_expect_same(b, 0, 0));
    REN__TRY(ren__cpu_expect_elements(b, 0, ren__tensor_elements(dy)));
    REN__TRY(ren__cpu_expect(b, 1, REN_F32, 1, &channels));
    ren__cpu_own_workspace(b, (uint64_t)channels * sizeof(double));
    b->op->after = bias_grad;
    return REN_OK;
}

/* ------------------------------------------------------------------ layers */

typedef struct layer {
    bool conv;
    ren__dnnl_window window;
    int weight_rank;
    dnnl_dim_t weight_dims[5];
    dnnl_format_tag_t weight_tag;
    const ren__dnnl_md *x;
    const ren__dnnl_md *y;
    const ren__dnnl_md *bias;  /* NULL: none */
    const ren__dnnl_md *plain; /* weights as device memory has them */
    const ren__dnnl_md *free;  /* weights in the layout that oneDNN likes best */
    dnnl_alg_kind_t act;       /* of the forward pass */
} layer;

static ren_status make_pd(ren__cpu_build *b, const layer *l, ren__dnnl_pass pass,
                          dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_desc_t *slot = ren__cpu_pd_slot(b);
    const ren__dnnl_md *bias =
        pass == REN__DNNL_FORWARD || pass == REN__DNNL_INFERENCE ? l->bias : NULL;
    if (l->conv) {
        REN__DNNL(b->err, ren__dnnl_conv(slot, b->dev->engine, pass, l->x, l->free, bias, l->y,
                                         &l->window, l->act, hint));
    } else {
        REN__DNNL(b->err, ren__dnnl_linear(slot, b->dev->engine, pass, l->x, l->free, bias, l->y,
                                           l->act, hint));
    }
    *out = *slot;
    return REN_OK;
}

static ren_status add_reorder(ren__cpu_build *b, const ren__dnnl_md *from_md, uint32_t from,
                              const ren__dnnl_md *to_md, uint32_t to)
{
    dnnl_primitive_desc_t *pd = ren__cpu_pd_slot(b);
    REN__DNNL(b->err, ren__dnnl_reorder(pd, b->dev->engine, from_md, to_md));
    const int args[][2] = {{DNNL_ARG_FROM, (int)from}, {DNNL_ARG_TO, (int)to}};
    return ren__cpu_step(b, *pd, args, 2);
}

/* The memory object that the primitive reads weights from; with the reorder before it. */
static ren_status weights_in(ren__cpu_build *b, const layer *l, dnnl_primitive_desc_t pd,
                             int operand, uint32_t *out)
{
    const ren__dnnl_md *liked = NULL;
    REN__TRY(ren__cpu_md_query(b, pd, dnnl_query_weights_md, &liked));
    REN__TRY(ren__cpu_memory(b, l->plain, operand, out));
    if (!ren__dnnl_md_equal(liked, l->plain)) {
        uint32_t given = *out;
        REN__TRY(ren__cpu_memory(b, liked, -1, out));
        REN__TRY(add_reorder(b, l->plain, given, liked, *out));
    }
    return REN_OK;
}

static ren_status build_forward(ren__cpu_build *b, const layer *l)
{
    dnnl_primitive_desc_t pd = NULL;
    REN__TRY(make_pd(b, l, REN__DNNL_FORWARD, NULL, &pd));
    uint32_t x = 0;
    uint32_t w = 0;
    uint32_t bias = 0;
    uint32_t y = 0;
    REN__TRY(weights_in(b, l, pd, 1, &w));
    REN__TRY(ren__cpu_memory(b, l->x, 0, &x));
    REN__TRY(ren__cpu_memory(b, l->y, 3, &y));
    if (l->bias) {
        REN__TRY(ren__cpu_memory(b, l->bias, 2, &bias));
    }
    const int args[][2] = {{DNNL_ARG_SRC, (int)x},
                           {DNNL_ARG_WEIGHTS, (int)w},
                           {DNNL_ARG_DST, (int)y},
                           {DNNL_ARG_BIAS, (int)bias}};
    return ren__cpu_step(b, pd, args, l->bias ? 4 : 3);
}

static ren_status build_backward_data(ren__cpu_build *b, const layer *l)
{
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_desc_t pd = NULL;
    REN__TRY(make_pd(b, l, REN__DNNL_FORWARD, NULL, &hint));
    REN__TRY(make_pd(b, l, REN__DNNL_BACKWARD_DATA, hint, &pd));
    uint32_t dx = 0;
    uint32_t w = 0;
    uint32_t dy = 0;
    REN__TRY(weights_in(b, l, pd, 1, &w));
    REN__TRY(ren__cpu_memory(b, l->y, 0, &dy));
    REN__TRY(ren__cpu_memory(b, l->x, 2, &dx));
    const int args[][2] = {
        {DNNL_ARG_DIFF_DST, (int)dy}, {DNNL_ARG_WEIGHTS, (int)w}, {DNNL_ARG_DIFF_SRC, (int)dx}};
    return ren__cpu_step(b, pd, args, 3);
}

static ren_status build_backward_weight(ren__cpu_build *b, const layer *l)
{
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_desc_t pd = NULL;
    REN__TRY(make_pd(b, l, REN__DNNL_FORWARD, NULL, &hint));
    REN__TRY(make_pd(b, l, REN__DNNL_BACKWARD_WEIGHTS, hint, &pd));
    const ren__dnnl_md *liked = NULL;
    REN__TRY(ren__cpu_md_query(b, pd, dnnl_query_diff_weights_md, &liked));
    uint32_t dy = 0;
    uint32_t x = 0;
    uint32_t dw = 0;
    REN__TRY(ren__cpu_memory(b, l->y, 0, &dy));
    REN__TRY(ren__cpu_memory(b, l->x, 1, &x));
    REN__TRY(ren__cpu_memory(b, l->plain, 2, &dw));
    bool plain = ren__dnnl_md_equal(liked, l->plain);
    uint32_t made = dw;
    if (!plain) {
        REN__TRY(ren__cpu_memory(b, liked, -1, &made));
    }
    const int args[][2] = {
        {DNNL_ARG_DIFF_DST, (int)dy}, {DNNL_ARG_SRC, (int)x}, {DNNL_ARG_DIFF_WEIGHTS, (int)made}};
    REN__TRY(ren__cpu_step(b, pd, args, 3));
    return plain ? REN_OK : add_reorder(b, liked, made, l->plain, dw);
}

/* Operand numbers of x, weights and y by kind. */
typedef struct places {
    uint32_t x, w, y;
} places;

static places places_of(ren__op_kind kind)
{
    switch (kind) {
    case REN__OP_LINEAR_BWD_DATA:
    case REN__OP_CONV_BWD_DATA:
        return (places){2, 1, 0};
    case REN__OP_LINEAR_BWD_WEIGHT:
    case REN__OP_CONV_BWD_WEIGHT:
        return (places){1, 2, 0};
    default:
        return (places){0, 1, 3};
    }
}

static bool is_forward(const ren__op_desc *desc)
{
    return desc->kind == REN__OP_LINEAR_FWD || desc->kind == REN__OP_CONV_FWD;
}

static ren_status finish(ren__cpu_build *b, layer *l, int64_t rows, int64_t outputs)
{
    REN__TRY(ren__cpu_md(b, l->weight_rank, l->weight_dims, l->weight_tag, &l->plain));
    l->free = l->plain;
    if (l->conv || rows >= ROWS_WORTH_A_REORDER) {
        REN__TRY(ren__cpu_md(b, l->weight_rank, l->weight_dims, dnnl_format_tag_any, &l->free));
    }
    l->act = dnnl_alg_kind_undef;
    if (is_forward(b->desc)) {
        REN__TRY(ren__cpu_fused_algorithm(b, &l->act));
        if (ren__cpu_has(b->desc, 2)) {
            REN__TRY(ren__cpu_expect(b, 2, REN_F32, 1, &outputs));
            REN__TRY(ren__cpu_md(b, 1, &outputs, dnnl_a, &l->bias));
        }
        return build_forward(b, l);
    }
    bool data = b->desc->kind == REN__OP_LINEAR_BWD_DATA || b->desc->kind == REN__OP_CONV_BWD_DATA;
    if (data) {
        return build_backward_data(b, l);
    }
    if (b->desc->kind == REN__OP_LINEAR_BWD_WEIGHT && ren__cpu_has(b->desc, 3)) {
        REN__TRY(ren__cpu_expect(b, 3, REN_F32, 1, &outputs));
        ren__cpu_own_workspace(b, (uint64_t)outputs * sizeof(double));
        b->op->after = weight_bias;
    }
    return build_backward_weight(b, l);
}

ren_status ren__cpu_build_linear(ren__cpu_build *b)
{
    const ren__op_desc *d = b->desc;
    const places at = places_of(d->kind);
    const int64_t any[2] = {-1, -1};
    REN__TRY(ren__cpu_expect(b, at.x, REN_F32, 2, any));
    REN__TRY(ren__cpu_expect(b, at.w, REN_F32, 2, any));
    const int64_t n = d->operand[at.x].dims[0];
    const int64_t in = d->operand[at.x].dims[1];
    const int64_t out = d->operand[at.w].dims[0];
    REN__TRY(ren__cpu_expect(b, at.w, REN_F32, 2, (const int64_t[]){out, in}));
    REN__TRY(ren__cpu_expect(b, at.y, REN_F32, 2, (const int64_t[]){n, out}));
    ren__cpu_set_work(b, 2.0 * (double)n * (double)in * (double)out);
    layer l = {.weight_rank = 2, .weight_dims = {out, in}, .weight_tag = dnnl_ab};
    const dnnl_dim_t x[2] = {n, in};
    const dnnl_dim_t y[2] = {n, out};
    REN__TRY(ren__cpu_md(b, 2, x, dnnl_ab, &l.x));
    REN__TRY(ren__cpu_md(b, 2, y, dnnl_ab, &l.y));
    return finish(b, &l, n, out);
}

ren_status ren__cpu_build_conv(ren__cpu_build *b)
{
    const ren__op_desc *d = b->desc;
    const places at = places_of(d->kind);
    const int64_t any[4] = {-1, -1, -1, -1};
    const int64_t groups = d->groups;
    REN__TRY(ren__cpu_expect(b, at.x, REN_F32, 4, any));
    REN__TRY(ren__cpu_expect(b, at.w, REN_F32, 4, any));
    const int64_t *x = d->operand[at.x].dims;
    const int64_t *w = d->operand[at.w].dims;
    if (groups < 1 || x[3] % groups != 0 || w[0] % groups != 0) {
        return REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "%lld groups do not divide %lld and %lld",
                             (long long)groups, (long long)x[3], (long long)w[0]);
    }
    REN__TRY(ren__cpu_expect(b, at.w, REN_F32, 4,
                             (const int64_t[]){-1, x[3] / groups, d->kernel[0], d->kernel[1]}));
    int64_t size[2];
    layer l = {.conv = true};
    for (int i = 0; i < 2; i++) {
        if (d->stride[i] < 1 || d->dilation[i] < 1) {
            return REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "stride and dilation must be at least 1");
        }
        int64_t room = x[1 + i] + 2 * (int64_t)d->padding[i] -
                       (int64_t)d->dilation[i] * ((int64_t)d->kernel[i] - 1) - 1;
        if (room < 0) {
            return REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "the kernel is larger than its input");
        }
        size[i] = room / d->stride[i] + 1;
        l.window.kernel[i] = d->kernel[i];
        l.window.stride[i] = d->stride[i];
        l.window.padding[i] = d->padding[i];
        l.window.dilation[i] = d->dilation[i];
    }
    REN__TRY(ren__cpu_expect(b, at.y, REN_F32, 4, (const int64_t[]){x[0], size[0], size[1], w[0]}));
    ren__cpu_set_work(b, 2.0 * (double)(x[0] * size[0] * size[1]) *
                             (double)(w[0] * w[1] * w[2] * w[3]));
    if (groups == 1) {
        l.weight_rank = 4;
        l.weight_tag = dnnl_oihw;
        for (int i = 0; i < 4; i++) {
            l.weight_dims[i] = w[i];
        }
    } else {
        const dnnl_dim_t dims[5] = {groups, w[0] / groups, w[1], w[2], w[3]};
        l.weight_rank = 5;
        l.weight_tag = dnnl_goihw;
        for (int i = 0; i < 5; i++) {
            l.weight_dims[i] = dims[i];
        }
    }
    REN__TRY(ren__cpu_md_nhwc(b, at.x, &l.x));
    REN__TRY(ren__cpu_md_nhwc(b, at.y, &l.y));
    return finish(b, &l, x[0], w[0]);
}
