/* SPDX-License-Identifier: MIT */
/* tests/golden/test_ops.c - each operation of a device against reference values.
 *
 * Purpose   For every operation that has a reference file: outputs and all gradients within the
 *           tolerance of the relative 2-norm. Outputs, workspace and unused memory are NaN before
 *           each launch. For the operations with shapes to vary, also random inputs against plain
 *           loops in double (naive.c). A wrong formula or layout, an element left unwritten or read
 *           from scratch memory makes these fail.
 */
#include "../support/test.h"
#include "naive.h"
#include "ops_rig.h"
#include "reader.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rig r;

/* The distance, with a line of text when it is too large. */
static int close_to(const char *what, const float *got, const float *wanted, size_t count)
{
    double distance = golden_distance(got, wanted, count);
    if (!(distance <= ops_tolerance(&r))) {
        printf("    %s: relative distance %.3g\n", what, distance);
        return 0;
    }
    return 1;
}

static float *buffer(size_t count)
{
    float *p = malloc((count ? count : 1) * sizeof *p);
    if (!p) {
        abort();
    }
    return p;
}

static float *noise(size_t count, unsigned long long seed)
{
    float *p = buffer(count);
    for (size_t i = 0; i < count; i++) {
        p[i] = (float)((double)(ren_test_random(&seed) >> 40) / 8388608.0 - 1.0);
    }
    return p;
}

static size_t elements(const ren__op_desc *d, uint32_t operand)
{
    return (size_t)ren__tensor_elements(&d->operand[operand]);
}

/* Run with the given inputs; compare operand `out` with `wanted`. */
static void check(const char *what, const ren__op_desc *d, op_io io[REN__OPERANDS], uint32_t out,
                  const float *wanted, void **saved)
{
    const size_t count = elements(d, out);
    float *got = buffer(count);
    io[out].out = got;
    ren_status status = ops_run(&r, d, io, saved);
    CU_ASSERT_EQUAL(status, REN_OK);
    CU_ASSERT(status == REN_OK && close_to(what, got, wanted, count));
    io[out].out = NULL;
    free(got);
}

/* ------------------------------------------------------------------ linear and convolution */

typedef struct layer_values {
    const float *x, *w, *b, *y, *dy, *dx, *dw, *db;
} layer_values;

/* Weights in the device's layout: OIHW as they are, or OHWI. A copy to free. */
static float *weights_for_device(const ren__op_desc *d, const float *w)
{
    const int64_t *dims = d->operand[1].dims;
    const int64_t inner = dims[1], taps = d->kind == REN__OP_CONV_FWD ? dims[2] * dims[3] : 1;
    float *out = buffer((size_t)(dims[0] * inner * taps));
    for (int64_t i = 0; i < dims[0] * inner * taps; i++) {
        int64_t other = i;
        if (d->kind == REN__OP_CONV_FWD && r.caps.conv_weights_ohwi) {
            const int64_t o = i / (inner * taps), c = i / taps % inner, t = i % taps;
            other = (o * taps + t) * inner + c;
        }
        out[other] = w[i];
    }
    return out;
}

/* All passes of a layer whose shapes are those of the forward descriptor (x 0, w 1, b 2, y 3). */
static void check_layer(const char *what, const ren__op_desc *forward, const layer_values *v)
{
    const bool conv = forward->kind == REN__OP_CONV_FWD;
    ren__op_desc d = *forward;
    char text[96];
    float *w = weights_for_device(forward, v->w);
    float *dw = weights_for_device(forward, v->dw);
    op_io io[REN__OPERANDS] = {{.in = v->x}, {.in = w}, {.in = v->b}};
    snprintf(text, sizeof text, "%s y", what);
    check(text, &d, io, 3, v->y, NULL);

    d.kind = conv ? REN__OP_CONV_BWD_DATA : REN__OP_LINEAR_BWD_DATA;
    d.operand[0] = forward->operand[3];
    d.operand[1] = forward->operand[1];
    d.operand[2] = forward->operand[0];
    d.operand[3].rank = 0;
    op_io back[REN__OPERANDS] = {{.in = v->dy}, {.in = w}};
    snprintf(text, sizeof text, "%s dx", what);
    check(text, &d, back, 2, v->dx, NULL);

    d.kind = conv ? REN__OP_CONV_BWD_WEIGHT : REN__OP_LINEAR_BWD_WEIGHT;
    d.operand[1] = forward->operand[0];
    d.operand[2] = forward->operand[1];
    back[1].in = v->x;
    snprintf(text, sizeof text, "%s dw", what);
    check(text, &d, back, 2, dw, NULL);
    free(w);
    free(dw);

    if (v->db) {
        ren__op_desc bias = ops_desc(REN__OP_BIAS_GRAD);
        bias.operand[0] = forward->operand[3];
        bias.operand[1] = forward->operand[2];
        op_io sum[REN__OPERANDS] = {{.in = v->dy}};
        snprintf(text, sizeof text, "%s db", what);
        check(text, &bias, sum, 1, v->db, NULL);
    }
}

static void shape_from(ren__op_desc *d, uint32_t operand, const golden_case *g, const char *tensor)
{
    int64_t dims[GOLDEN_MAX_RANK];
    uint32_t rank = 0;
    golden_tensor(g, tensor, dims, &rank, NULL);
    ops_shape(d, operand, rank, dims);
}

static const float *values(const golden_case *g, const char *tensor)
{
    return golden_has(g, tensor) ? golden_tensor(g, tensor, NULL, NULL, NULL) : NULL;
}

static void window_from(ren__op_desc *d, const golden_case *g)
{
    for (int i = 0; i < 2; i++) {
        d->kernel[i] = (uint32_t)golden_number(g, "kernel", 1);
        d->stride[i] = (uint32_t)golden_number(g, "stride", 1);
        d->padding[i] = (uint32_t)golden_number(g, "padding", 0);
        d->dilation[i] = (uint32_t)golden_number(g, "dilation", 1);
    }
    d->groups = (uint32_t)golden_number(g, "groups", 1);
}

static void golden_layer(const char *name, ren__op_kind kind)
{
    golden_case *g = golden_open(name);
    ren__op_desc d = ops_desc(kind);
    window_from(&d, g);
    shape_from(&d, 0, g, "x");
    shape_from(&d, 1, g, "w");
    if (golden_has(g, "b")) {
        shape_from(&d, 2, g, "b");
    }
    shape_from(&d, 3, g, "y");
    const layer_values v = {values(g, "x"),  values(g, "w"),  values(g, "b"),  values(g, "y"),
                            values(g, "dy"), values(g, "dx"), values(g, "dw"), values(g, "db")};
    check_layer(name, &d, &v);
    golden_close(g);
}

static void test_linear_golden(void)
{
    golden_layer("linear_0", REN__OP_LINEAR_FWD);
    golden_layer("linear_1", REN__OP_LINEAR_FWD);
    golden_layer("linear_2", REN__OP_LINEAR_FWD);
}

static void test_conv_golden(void)
{
    char name[32];
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "conv2d_%d", i);
        golden_layer(name, REN__OP_CONV_FWD);
    }
}

static void test_linear_random(void)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {3, 17, 5}, {32, 200, 64}, {7, 64, 129}};
    for (size_t i = 0; i < REN_TEST_COUNT(shapes); i++) {
        const int64_t n = shapes[i][0], in = shapes[i][1], out = shapes[i][2];
        ren__op_desc d = ops_desc(REN__OP_LINEAR_FWD);
        ops_shape(&d, 0, 2, (const int64_t[]){n, in});
        ops_shape(&d, 1, 2, (const int64_t[]){out, in});
        ops_shape(&d, 2, 1, &out);
        ops_shape(&d, 3, 2, (const int64_t[]){n, out});
        float *x = noise((size_t)(n * in), 1 + i), *w = noise((size_t)(out * in), 2 + i);
        float *b = noise((size_t)out, 3 + i), *dy = noise((size_t)(n * out), 4 + i);
        float *y = buffer((size_t)(n * out)), *dx = buffer((size_t)(n * in));
        float *dw = buffer((size_t)(out * in));
        naive_linear(n, in, out, x, w, b, y, dy, dx, dw);
        const layer_values v = {x, w, b, y, dy, dx, dw, NULL};
        check_layer("random linear", &d, &v);
        float *all[] = {x, w, b, dy, y, dx, dw};
        for (size_t k = 0; k < REN_TEST_COUNT(all); k++) {
            free(all[k]);
        }
    }
}

static void random_conv(naive_shape s, unsigned long long seed)
{
    naive_output_size(&s);
    ren__op_desc d = ops_desc(REN__OP_CONV_FWD);
    for (int i = 0; i < 2; i++) {
        d.kernel[i] = (uint32_t)s.kernel[i];
        d.stride[i] = (uint32_t)s.stride[i];
        d.padding[i] = (uint32_t)s.padding[i];
        d.dilation[i] = (uint32_t)s.dilation[i];
    }
    d.groups = (uint32_t)s.groups;
    ops_shape(&d, 0, 4, (const int64_t[]){s.n, s.h, s.w, s.c});
    ops_shape(&d, 1, 4, (const int64_t[]){s.filters, s.c / s.groups, s.kernel[0], s.kernel[1]});
    ops_shape(&d, 2, 1, &s.filters);
    ops_shape(&d, 3, 4, (const int64_t[]){s.n, s.oh, s.ow, s.filters});
    float *x = noise(elements(&d, 0), seed), *w = noise(elements(&d, 1), seed + 1);
    float *b = noise(elements(&d, 2), seed + 2), *dy = noise(elements(&d, 3), seed + 3);
    float *y = buffer(elements(&d, 3)), *dx = buffer(elements(&d, 0));
    float *dw = buffer(elements(&d, 1));
    naive_conv(&s, x, w, b, y, dy, dx, dw);
    const layer_values v = {x, w, b, y, dy, dx, dw, NULL};
    char text[64];
    snprintf(text, sizeof text, "random conv %llu", seed);
    check_layer(text, &d, &v);
    float *all[] = {x, w, b, dy, y, dx, dw};
    for (size_t k = 0; k < REN_TEST_COUNT(all); k++) {
        free(all[k]);
    }
}

/* Shapes without a reference file: oblong kernels, strides and dilations that differ by axis,
 * groups that are neither 1 nor the channels, sizes that leave a remainder, one input channel. */
static void test_conv_random(void)
{
    const naive_shape shapes[] = {
        {.n = 2,
         .h = 9,
         .w = 7,
         .c = 3,
         .filters = 5,
         .kernel = {3, 2},
         .stride = {2, 1},
         .padding = {1, 0},
         .dilation = {1, 2},
         .groups = 1},
        {.n = 1,
         .h = 12,
         .w = 11,
         .c = 16,
         .filters = 32,
         .kernel = {3, 3},
         .stride = {1, 1},
         .padding = {2, 2},
         .dilation = {2, 2},
         .groups = 1},
        {.n = 3,
         .h = 8,
         .w = 8,
         .c = 6,
         .filters = 4,
         .kernel = {3, 3},
         .stride = {1, 1},
         .padding = {1, 1},
         .dilation = {1, 1},
         .groups = 2},
        {.n = 4,
         .h = 8,
         .w = 8,
         .c = 1,
         .filters = 8,
         .kernel = {5, 5},
         .stride = {1, 1},
         .padding = {2, 2},
         .dilation = {1, 1},
         .groups = 1},
        {.n = 2,
         .h = 6,
         .w = 6,
         .c = 64,
         .filters = 64,
         .kernel = {3, 3},
         .stride = {2, 2},
         .padding = {1, 1},
         .dilation = {1, 1},
         .groups = 1},
        {.n = 2,
         .h = 5,
         .w = 5,
         .c = 17,
         .filters = 19,
         .kernel = {1, 1},
         .stride = {1, 1},
         .padding = {0, 0},
         .dilation = {1, 1},
         .groups = 1},
        {.n = 2,
         .h = 7,
         .w = 5,
         .c = 12,
         .filters = 12,
         .kernel = {3, 3},
         .stride = {2, 2},
         .padding = {1, 1},
         .dilation = {1, 1},
         .groups = 12},
    };
    for (size_t i = 0; i < REN_TEST_COUNT(shapes); i++) {
        random_conv(shapes[i], 100 + 10 * i);
    }
}

/* ------------------------------------------------------------------ pooling */

static void check_pool(const char *what, int max, const ren__op_desc *window, const int64_t *x_dims,
                       const int64_t *y_dims, const layer_values *v)
{
    char text[64];
    void *saved = NULL;
    ren__op_desc d = *window;
    d.kind = max ? REN__OP_MAX_POOL_FWD : REN__OP_AVG_POOL_FWD;
    ops_shape(&d, 0, 4, x_dims);
    ops_shape(&d, 1, 4, y_dims);
    op_io io[REN__OPERANDS] = {{.in = v->x}};
    snprintf(text, sizeof text, "%s y, not training", what);
    check(text, &d, io, 1, v->y, NULL);
    d.training = 1;
    snprintf(text, sizeof text, "%s y", what);
    check(text, &d, io, 1, v->y, &saved);

    ren__op_desc b = *window;
    b.training = 1;
    b.kind = max ? REN__OP_MAX_POOL_BWD : REN__OP_AVG_POOL_BWD;
    const uint32_t dx = max ? 4u : 1u;
    ops_shape(&b, 0, 4, y_dims);
    ops_shape(&b, dx, 4, x_dims);
    op_io back[REN__OPERANDS] = {{.in = v->dy}};
    if (max) {
        ops_shape(&b, 1, 4, x_dims);
        ops_shape(&b, 2, 4, y_dims);
        back[1].in = v->x;
        back[2].in = v->y;
    }
    snprintf(text, sizeof text, "%s dx", what);
    check(text, &b, back, dx, v->dx, &saved);
    free(saved);
}

static void golden_pool(const char *name, int max)
{
    golden_case *g = golden_open(name);
    ren__op_desc d = ops_desc(REN__OP_NONE);
    int64_t x[GOLDEN_MAX_RANK], y[GOLDEN_MAX_RANK];
    window_from(&d, g);
    const layer_values v = {.x = golden_tensor(g, "x", x, NULL, NULL),
                            .y = golden_tensor(g, "y", y, NULL, NULL),
                            .dy = values(g, "dy"),
                            .dx = values(g, "dx")};
    check_pool(name, max, &d, x, y, &v);
    golden_close(g);
}

static void test_pool_golden(void)
{
    golden_pool("pool_max_0", 1);
    golden_pool("pool_max_1", 1);
    golden_pool("pool_avg_2", 0);
}

static void test_global_avg_golden(void)
{
    golden_case *g = golden_open("pool_global_3");
    int64_t x[GOLDEN_MAX_RANK];
    golden_tensor(g, "x", x, NULL, NULL);
    const int64_t y[2] = {x[0], x[3]};
    ren__op_desc d = ops_desc(REN__OP_GLOBAL_AVG_FWD);
    ops_shape(&d, 0, 4, x);
    ops_shape(&d, 1, 2, y);
    op_io io[REN__OPERANDS] = {{.in = values(g, "x")}};
    check("global y", &d, io, 1, values(g, "y"), NULL);
    d = ops_desc(REN__OP_GLOBAL_AVG_BWD);
    ops_shape(&d, 0, 2, y);
    ops_shape(&d, 1, 4, x);
    op_io back[REN__OPERANDS] = {{.in = values(g, "dy")}};
    check("global dx", &d, back, 1, values(g, "dx"), NULL);
    golden_close(g);
}

/* Windows that overlap, leave a remainder, and hang over the edge; and ties, since values are drawn
 * from five: the gradient must go to the first of equals. */
static void test_pool_random(void)
{
    const naive_shape shapes[] = {
        {.n = 2, .h = 7, .w = 9, .c = 5, .kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 0}},
        {.n = 1, .h = 8, .w = 8, .c = 16, .kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}},
        {.n = 3, .h = 5, .w = 5, .c = 3, .kernel = {2, 2}, .stride = {2, 2}, .padding = {0, 0}},
    };
    for (size_t i = 0; i < 2 * REN_TEST_COUNT(shapes); i++) {
        naive_shape s = shapes[i / 2];
        const int max = (int)(i % 2);
        s.dilation[0] = s.dilation[1] = 1;
        s.filters = s.c;
        naive_output_size(&s);
        const int64_t x_dims[4] = {s.n, s.h, s.w, s.c}, y_dims[4] = {s.n, s.oh, s.ow, s.c};
        const size_t xs = (size_t)(s.n * s.h * s.w * s.c), ys = (size_t)(s.n * s.oh * s.ow * s.c);
        ren__op_desc d = ops_desc(REN__OP_NONE);
        for (int k = 0; k < 2; k++) {
            d.kernel[k] = (uint32_t)s.kernel[k];
            d.stride[k] = (uint32_t)s.stride[k];
            d.padding[k] = (uint32_t)s.padding[k];
        }
        float *x = noise(xs, 40 + i), *dy = noise(ys, 50 + i);
        float *y = buffer(ys), *dx = buffer(xs);
        for (size_t k = 0; k < xs; k++) {
            x[k] = rintf(x[k] * 2.0f) - 0.25f;
        }
        naive_pool(&s, max, x, y, dy, dx);
        const layer_values v = {.x = x, .y = y, .dy = dy, .dx = dx};
        check_pool(max ? "random max" : "random avg", max, &d, x_dims, y_dims, &v);
        free(x);
        free(dy);
        free(y);
        free(dx);
    }
}

/* ------------------------------------------------------------------ batch norm */

static void golden_batch_norm(const char *name)
{
    golden_case *g = golden_open(name);
    ren__op_desc d = ops_desc(REN__OP_BATCH_NORM_TRAIN);
    d.alpha = (float)golden_number(g, "momentum", 0.1);
    d.eps = (float)golden_number(g, "eps", 1e-5);
    shape_from(&d, 0, g, "x");
    shape_from(&d, 5, g, "x");
    static const uint32_t vectors[] = {1, 2, 3, 4, 6, 7, 8, 9};
    for (size_t i = 0; i < REN_TEST_COUNT(vectors); i++) {
        shape_from(&d, vectors[i], g, "gamma");
    }
    const size_t channels = elements(&d, 1);
    float *mean = buffer(channels), *rstd = buffer(channels);
    float *running_mean = buffer(channels), *running_var = buffer(channels);
    op_io io[REN__OPERANDS] = {{.in = values(g, "x")},
                               {.in = values(g, "gamma")},
                               {.in = values(g, "beta")},
                               {.in = values(g, "running_mean_in")},
                               {.in = values(g, "running_var_in")}};
    io[6].out = mean;
    io[7].out = rstd;
    io[8].out = running_mean;
    io[9].out = running_var;
    check("batch norm y", &d, io, 5, values(g, "y"), NULL);
    CU_ASSERT(close_to("running mean", running_mean, values(g, "running_mean_out"), channels));
    CU_ASSERT(close_to("running var", running_var, values(g, "running_var_out"), channels));

    ren__op_desc b = ops_desc(REN__OP_BATCH_NORM_BWD);
    b.eps = d.eps;
    b.alpha = d.alpha;
    for (uint32_t i = 0; i <= 7; i++) {
        b.operand[i] = d.operand[i < 2 || i == 5 ? 0 : 1];
    }
    float *dweight = buffer(channels), *dbias = buffer(channels);
    op_io back[REN__OPERANDS] = {{.in = values(g, "dy")},
                                 {.in = values(g, "x")},
                                 {.in = values(g, "gamma")},
                                 {.in = mean},
                                 {.in = rstd}};
    back[6].out = dweight;
    back[7].out = dbias;
    check("batch norm dx", &b, back, 5, values(g, "dx"), NULL);
    CU_ASSERT(close_to("dgamma", dweight, values(g, "dgamma"), channels));
    CU_ASSERT(close_to("dbeta", dbias, values(g, "dbeta"), channels));

    d.kind = REN__OP_BATCH_NORM_EVAL;
    for (uint32_t i = 6; i <= 9; i++) {
        d.operand[i].rank = 0;
    }
    /* The reference's evaluation follows its training pass, so it uses the updated statistics. */
    op_io eval[REN__OPERANDS] = {{.in = values(g, "x")},
                                 {.in = values(g, "gamma")},
                                 {.in = values(g, "beta")},
                                 {.in = values(g, "running_mean_out")},
                                 {.in = values(g, "running_var_out")}};
    check("batch norm y_eval", &d, eval, 5, values(g, "y_eval"), NULL);
    float *all[] = {mean, rstd, running_mean, running_var, dweight, dbias};
    for (size_t k = 0; k < REN_TEST_COUNT(all); k++) {
        free(all[k]);
    }
    golden_close(g);
}

static void test_batch_norm_golden(void)
{
    golden_batch_norm("batchnorm_0");
    golden_batch_norm("batchnorm_1");
}

/* ------------------------------------------------------------------ activations */

static void check_activation(const char *what, ren__activation activation, float alpha,
                             uint32_t rank, const int64_t *dims, const layer_values *v)
{
    char text[64];
    ren__op_desc d = ops_desc(REN__OP_ACT_FWD);
    d.activation = activation;
    d.alpha = alpha;
    ops_shape(&d, 0, rank, dims);
    ops_shape(&d, 1, rank, dims);
    op_io io[REN__OPERANDS] = {{.in = v->x}};
    snprintf(text, sizeof text, "%s y", what);
    check(text, &d, io, 1, v->y, NULL);
    d.kind = REN__OP_ACT_BWD;
    ops_shape(&d, 2, rank, dims);
    ops_shape(&d, 3, rank, dims);
    op_io back[REN__OPERANDS] = {{.in = v->dy}, {.in = v->x}, {.in = v->y}};
    if (activation == REN__ACT_RELU) {
        back[1].in = NULL; /* relu reads the output only */
    }
    snprintf(text, sizeof text, "%s dx", what);
    check(text, &d, back, 3, v->dx, NULL);
}

static void test_activation_golden(void)
{
    static const struct {
        const char *name;
        ren__activation activation;
    } cases[] = {{"act_relu", REN__ACT_RELU}, {"act_leaky_relu", REN__ACT_LEAKY_RELU},
                 {"act_tanh", REN__ACT_TANH}, {"act_sigmoid", REN__ACT_SIGMOID},
                 {"act_silu", REN__ACT_SILU}, {"act_gelu", REN__ACT_GELU_ERF}};
    for (size_t i = 0; i < REN_TEST_COUNT(cases); i++) {
        golden_case *g = golden_open(cases[i].name);
        int64_t dims[GOLDEN_MAX_RANK];
        uint32_t rank = 0;
        const layer_values v = {.x = golden_tensor(g, "x", dims, &rank, NULL),
                                .y = values(g, "y"),
                                .dy = values(g, "dy"),
                                .dx = values(g, "dx")};
        check_activation(cases[i].name, cases[i].activation, 0.01f, rank, dims, &v);
        golden_close(g);
    }
}

static double activate(ren__activation activation, double x, double slope)
{
    switch (activation) {
    case REN__ACT_RELU:
        return x > 0.0 ? x : 0.0;
    case REN__ACT_LEAKY_RELU:
        return x > 0.0 ? x : slope * x;
    case REN__ACT_TANH:
        return tanh(x);
    case REN__ACT_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case REN__ACT_SILU:
        return x / (1.0 + exp(-x));
    case REN__ACT_GELU_ERF:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    default:
        return 0.5 * x *
               (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
}

/* Every kind over a wide range and an odd count, the derivative by a central difference. */
static void test_activation_random(void)
{
    const int64_t count = 1237;
    for (int kind = REN__ACT_RELU; kind <= REN__ACT_GELU_TANH; kind++) {
        const ren__activation activation = (ren__activation)kind;
        float *x = noise((size_t)count, 60), *dy = noise((size_t)count, 61);
        float *y = buffer((size_t)count), *dx = buffer((size_t)count);
        for (int64_t i = 0; i < count; i++) {
            const double h = 1e-5;
            x[i] = x[i] * 6.0f + (fabsf(x[i]) < 1e-4f ? 0.01f : 0.0f);
            const double at = (double)x[i];
            y[i] = (float)activate(activation, at, 0.2);
            dx[i] =
                (float)((activate(activation, at + h, 0.2) - activate(activation, at - h, 0.2)) /
                        (2.0 * h) * (double)dy[i]);
        }
        const layer_values v = {.x = x, .y = y, .dy = dy, .dx = dx};
        char text[32];
        snprintf(text, sizeof text, "activation %d", kind);
        check_activation(text, activation, 0.2f, 1, &count, &v);
        free(x);
        free(dy);
        free(y);
        free(dx);
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_linear_golden", test_linear_golden},
        {"test_linear_random", test_linear_random},
        {"test_conv_golden", test_conv_golden},
        {"test_conv_random", test_conv_random},
        {"test_pool_golden", test_pool_golden},
        {"test_pool_random", test_pool_random},
        {"test_global_avg_golden", test_global_avg_golden},
        {"test_batch_norm_golden", test_batch_norm_golden},
        {"test_activation_golden", test_activation_golden},
        {"test_activation_random", test_activation_random},
    };
    rig_open(&r, rig_table(), 0, 0);
    int result = ren_test_main(argc, argv, "golden/test_ops", cases, REN_TEST_COUNT(cases), 120);
    rig_close(&r);
    return result;
}
