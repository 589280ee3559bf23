/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_ops.c - every layer operation of the CUDA device against float64.
 *
 * Proves    for random shapes, odd ones included, each output is within 2e-5 of a plain float64
 *           computation and of the CPU device; outputs are written whole; nothing beside them is;
 *           two runs and a captured run give the same bits (table.h).
 * Fails     when a kernel drops a tail, mixes up a layout or an operand, adds in an order that
 *           changes from run to run, or a library computes in TF32.
 */
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../support/test.h"
#include "reference.h"
#include "values.h"

#define ROUNDS 12

static ren__tensor_desc flat(int64_t n)
{
    return test_tensor(REN_F32, 1, n, 0, 0, 0);
}

static ren__tensor_desc matrix(int64_t rows, int64_t columns)
{
    return test_tensor(REN_F32, 2, rows, columns, 0, 0);
}

static ren__tensor_desc image(int64_t n, int64_t h, int64_t w, int64_t c)
{
    return test_tensor(REN_F32, 4, n, h, w, c);
}

static test_operand in(const void *data)
{
    test_operand o = {TEST_IN, 0, 0, data, NULL};
    return o;
}

static double *doubles(int64_t n)
{
    return values_take((uint64_t)n * sizeof(double));
}

/* ------------------------------------------------------------------ linear */

static void linear_case(int64_t n, int64_t inputs, int64_t outputs, int bias)
{
    float *x = values_random((uint64_t)(n * inputs));
    float *w = values_random((uint64_t)(outputs * inputs));
    float *b = values_random((uint64_t)outputs);
    float *dy = values_random((uint64_t)(n * outputs));
    double *y = doubles(n * outputs);
    double *dx = doubles(n * inputs);
    double *dw = doubles(outputs * inputs);
    ren__op_desc forward = test_desc(REN__OP_LINEAR_FWD);
    ren__op_desc data = test_desc(REN__OP_LINEAR_BWD_DATA);
    ren__op_desc weight = test_desc(REN__OP_LINEAR_BWD_WEIGHT);
    test_operand of_forward[REN__OPERANDS] = {in(x), in(w)};
    test_operand of_data[REN__OPERANDS] = {in(dy), in(w)};
    test_operand of_weight[REN__OPERANDS] = {in(dy), in(x)};
    ref_linear(x, w, bias ? b : NULL, y, n, inputs, outputs);
    ref_linear_data(dy, w, dx, n, inputs, outputs);
    ref_linear_weight(dy, x, dw, n, inputs, outputs);
    forward.operand[0] = matrix(n, inputs);
    forward.operand[1] = matrix(outputs, inputs);
    forward.operand[3] = matrix(n, outputs);
    if (bias) {
        forward.operand[2] = flat(outputs);
        of_forward[2] = in(b);
    }
    values_check("linear", &forward, of_forward, (expected[]){{3, y}, {0, NULL}}, 0,
                 TEST_TOLERANCE);
    data.operand[0] = matrix(n, outputs);
    data.operand[1] = matrix(outputs, inputs);
    data.operand[2] = matrix(n, inputs);
    values_check("linear data", &data, of_data, (expected[]){{2, dx}, {0, NULL}}, 0,
                 TEST_TOLERANCE);
    weight.operand[0] = matrix(n, outputs);
    weight.operand[1] = matrix(n, inputs);
    weight.operand[2] = matrix(outputs, inputs);
    values_check("linear weight", &weight, of_weight, (expected[]){{2, dw}, {0, NULL}}, 0,
                 TEST_TOLERANCE);
}

static void test_linear_random_shapes(void)
{
    linear_case(64, 64, 32, 1);
    linear_case(1, 1, 1, 1);
    linear_case(1, 257, 3, 0);
    for (int i = 0; i < ROUNDS && test_cuda(); i++) {
        linear_case(values_between(1, 150), values_between(1, 150), values_between(1, 150), i & 1);
        values_free();
    }
}

static void bias_case(int64_t rows, int64_t channels, uint32_t misalign)
{
    float *dy = values_random((uint64_t)(rows * channels));
    double *db = doubles(channels);
    ren__op_desc desc = test_desc(REN__OP_BIAS_GRAD);
    test_operand operands[REN__OPERANDS] = {in(dy)};
    ref_column_sum(dy, db, rows, channels);
    desc.operand[0] = matrix(rows, channels);
    desc.operand[1] = flat(channels);
    values_check("bias gradient", &desc, operands, (expected[]){{1, db}, {0, NULL}}, misalign,
                 TEST_TOLERANCE);
}

static void test_bias_grad_random_shapes(void)
{
    bias_case(1, 1, 0);
    bias_case(64, 10, 0);
    bias_case(5000, 3, 0);
    bias_case(777, 1100, 4);
    for (int i = 0; i < ROUNDS && test_cuda(); i++) {
        bias_case(values_between(1, 700), values_between(1, 90), (i & 1) ? 4u : 0u);
        values_free();
    }
}

/* ------------------------------------------------------------------ convolution */

static void conv_shape(ren__op_desc *desc, const ref_window *s)
{
    desc->kernel[0] = (uint32_t)s->kh;
    desc->kernel[1] = (uint32_t)s->kw;
    desc->stride[0] = (uint32_t)s->sh;
    desc->stride[1] = (uint32_t)s->sw;
    desc->padding[0] = (uint32_t)s->ph;
    desc->padding[1] = (uint32_t)s->pw;
    desc->dilation[0] = (uint32_t)s->dh;
    desc->dilation[1] = (uint32_t)s->dw;
    desc->groups = (uint32_t)s->groups;
}

static void finish_shape(ref_window *s)
{
    s->ho = (s->h + 2 * s->ph - s->dh * (s->kh - 1) - 1) / s->sh + 1;
    s->wo = (s->w + 2 * s->pw - s->dw * (s->kw - 1) - 1) / s->sw + 1;
}

static void conv_case(ref_window s, int bias)
{
    ren__op_desc forward = test_desc(REN__OP_CONV_FWD);
    ren__op_desc data = test_desc(REN__OP_CONV_BWD_DATA);
    ren__op_desc weight = test_desc(REN__OP_CONV_BWD_WEIGHT);
    int64_t weights = s.o * (s.c / s.groups) * s.kh * s.kw;
    float *x, *w, *b, *dy;
    double *y, *dx, *dw;
    finish_shape(&s);
    x = values_random((uint64_t)(s.n * s.h * s.w * s.c));
    w = values_random((uint64_t)weights);
    b = values_random((uint64_t)s.o);
    dy = values_random((uint64_t)(s.n * s.ho * s.wo * s.o));
    y = doubles(s.n * s.ho * s.wo * s.o);
    dx = doubles(s.n * s.h * s.w * s.c);
    dw = doubles(weights);
    ref_conv(&s, x, w, bias ? b : NULL, y);
    ref_conv_data(&s, dy, w, dx);
    ref_conv_weight(&s, dy, x, dw);
    {
        test_operand o[REN__OPERANDS] = {in(x), in(w)};
        o[1].weights = 1;
        conv_shape(&forward, &s);
        forward.operand[0] = image(s.n, s.h, s.w, s.c);
        forward.operand[1] = image(s.o, s.c / s.groups, s.kh, s.kw);
        forward.operand[3] = image(s.n, s.ho, s.wo, s.o);
        if (bias) {
            forward.operand[2] = flat(s.o);
            o[2] = in(b);
        }
        values_check("convolution", &forward, o, (expected[]){{3, y}, {0, NULL}}, 0,
                     TEST_TOLERANCE);
    }
    {
        test_operand o[REN__OPERANDS] = {in(dy), in(w)};
        o[1].weights = 1;
        conv_shape(&data, &s);
        data.operand[0] = image(s.n, s.ho, s.wo, s.o);
        data.operand[1] = image(s.o, s.c / s.groups, s.kh, s.kw);
        data.operand[2] = image(s.n, s.h, s.w, s.c);
        values_check("convolution data", &data, o, (expected[]){{2, dx}, {0, NULL}}, 0,
                     TEST_TOLERANCE);
    }
    {
        test_operand o[REN__OPERANDS] = {in(dy), in(x)};
        o[2].weights = 1;
        conv_shape(&weight, &s);
        weight.operand[0] = image(s.n, s.ho, s.wo, s.o);
        weight.operand[1] = image(s.n, s.h, s.w, s.c);
        weight.operand[2] = image(s.o, s.c / s.groups, s.kh, s.kw);
        values_check("convolution weight", &weight, o, (expected[]){{2, dw}, {0, NULL}}, 0,
                     TEST_TOLERANCE);
    }
    values_free();
}

static void test_conv_common_shapes(void)
{
    /*             n  h   w   c  ho wo  o  kh kw sh sw ph pw dh dw groups */
    const ref_window shapes[] = {
        {2, 8, 8, 1, 0, 0, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1},
        {4, 8, 8, 16, 0, 0, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1},
        {3, 9, 7, 5, 0, 0, 7, 3, 3, 2, 2, 1, 1, 1, 1, 1},
        {2, 14, 14, 8, 0, 0, 16, 1, 1, 1, 1, 0, 0, 1, 1, 1},
        {2, 12, 10, 4, 0, 0, 6, 5, 5, 1, 1, 2, 2, 1, 1, 1},
        {1, 17, 17, 3, 0, 0, 8, 7, 7, 2, 2, 3, 3, 1, 1, 1},
        {2, 11, 13, 8, 0, 0, 8, 3, 3, 1, 1, 1, 1, 1, 1, 8},
        {2, 11, 13, 12, 0, 0, 8, 3, 3, 1, 1, 2, 2, 2, 2, 4},
        {1, 10, 12, 4, 0, 0, 4, 3, 2, 2, 1, 0, 1, 1, 2, 1},
    };
    for (size_t i = 0; i < REN_TEST_COUNT(shapes) && test_cuda(); i++) {
        conv_case(shapes[i], (int)(i & 1u));
    }
}

static void test_conv_random_shapes(void)
{
    for (int i = 0; i < ROUNDS && test_cuda(); i++) {
        ref_window s;
        memset(&s, 0, sizeof s);
        s.groups = values_between(1, 3);
        s.n = values_between(1, 4);
        s.c = s.groups * values_between(1, 6);
        s.o = s.groups * values_between(1, 6);
        s.kh = values_between(1, 4);
        s.kw = values_between(1, 4);
        s.dh = values_between(1, 2);
        s.dw = values_between(1, 2);
        s.sh = values_between(1, 3);
        s.sw = values_between(1, 3);
        s.ph = values_between(0, s.kh - 1);
        s.pw = values_between(0, s.kw - 1);
        s.h = values_between(s.dh * (s.kh - 1) + 1, 14);
        s.w = values_between(s.dw * (s.kw - 1) + 1, 14);
        conv_case(s, i & 1);
    }
}

/* ------------------------------------------------------------------ pooling */

/* The backward pass needs what the forward pass saved in the table's own form, so both run through
 * one table at a time here. */
static void max_pool_on(test_table *t, const ref_window *s, const ren__op_desc *forward,
                        const ren__op_desc *backward, const float *x, const float *dy,
                        const double *y, const double *dx)
{
    uint64_t outputs = (uint64_t)(s->n * s->ho * s->wo * s->c);
    uint64_t inputs = (uint64_t)(s->n * s->h * s->w * s->c);
    float *got_y = values_take(outputs * sizeof(float));
    float *got_dx = values_take(inputs * sizeof(float));
    void *saved = values_take(outputs * 8u + 4096u);
    test_operand of_forward[REN__OPERANDS] = {
        in(x), {TEST_OUT, 0, 0, NULL, got_y}, {TEST_SAVED, 0, 0, NULL, saved}};
    test_operand of_backward[REN__OPERANDS] = {in(dy),
                                               in(x),
                                               {TEST_IN, 0, 0, got_y, NULL},
                                               {TEST_SAVED, 0, 0, saved, NULL},
                                               {TEST_OUT, 0, 0, NULL, got_dx}};
    CU_ASSERT_EQUAL(test_run(t, forward, of_forward, 0), REN_OK);
    CU_ASSERT_TRUE(test_distance(got_y, y, outputs) == 0.0);
    CU_ASSERT_EQUAL(test_run(t, backward, of_backward, 0), REN_OK);
    CU_ASSERT_TRUE(test_distance(got_dx, dx, inputs) <= TEST_TOLERANCE);
}

static void max_pool_case(ref_window s, int ties)
{
    ren__op_desc forward = test_desc(REN__OP_MAX_POOL_FWD);
    ren__op_desc backward = test_desc(REN__OP_MAX_POOL_BWD);
    float *x, *dy;
    double *y, *dx;
    int64_t inputs;
    s.dh = s.dw = s.groups = 1;
    finish_shape(&s);
    inputs = s.n * s.h * s.w * s.c;
    x = values_random((uint64_t)inputs);
    for (int64_t i = 0; i < inputs && ties; i++) {
        x[i] = floorf(x[i]); /* few values, so that windows hold their maximum twice */
    }
    dy = values_random((uint64_t)(s.n * s.ho * s.wo * s.c));
    y = doubles(s.n * s.ho * s.wo * s.c);
    dx = doubles(inputs);
    ref_max_pool(&s, x, y);
    ref_max_pool_backward(&s, dy, x, dx);
    conv_shape(&forward, &s);
    conv_shape(&backward, &s);
    forward.training = 1;
    backward.training = 1;
    forward.operand[0] = image(s.n, s.h, s.w, s.c);
    forward.operand[1] = image(s.n, s.ho, s.wo, s.c);
    backward.operand[0] = forward.operand[1];
    backward.operand[1] = forward.operand[0];
    backward.operand[2] = forward.operand[1];
    backward.operand[4] = forward.operand[0];
    /* The saved positions are the device's own; their descriptor only says that they are there. */
    forward.operand[2] = test_tensor(REN_U8, 1, 1, 0, 0, 0);
    backward.operand[3] = test_tensor(REN_U8, 1, 1, 0, 0, 0);
    max_pool_on(test_cuda(), &s, &forward, &backward, x, dy, y, dx);
    if (test_cpu()) {
        max_pool_on(test_cpu(), &s, &forward, &backward, x, dy, y, dx);
    }
    {
        test_operand o[REN__OPERANDS] = {in(x)};
        forward.training = 0;
        forward.operand[2] = test_tensor(REN_U8, 0, 0, 0, 0, 0);
        values_check("max pool, inference", &forward, o, (expected[]){{1, y}, {0, NULL}}, 0, 0.0);
    }
    values_free();
}

static void avg_pool_case(ref_window s)
{
    ren__op_desc forward = test_desc(REN__OP_AVG_POOL_FWD);
    ren__op_desc backward = test_desc(REN__OP_AVG_POOL_BWD);
    float *x, *dy;
    double *y, *dx;
    s.dh = s.dw = s.groups = 1;
    finish_shape(&s);
    x = values_random((uint64_t)(s.n * s.h * s.w * s.c));
    dy = values_random((uint64_t)(s.n * s.ho * s.wo * s.c));
    y = doubles(s.n * s.ho * s.wo * s.c);
    dx = doubles(s.n * s.h * s.w * s.c);
    ref_avg_pool(&s, x, y);
    ref_avg_pool_backward(&s, dy, dx);
    conv_shape(&forward, &s);
    conv_shape(&backward, &s);
    forward.operand[0] = backward.operand[1] = image(s.n, s.h, s.w, s.c);
    forward.operand[1] = backward.operand[0] = image(s.n, s.ho, s.wo, s.c);
    {
        test_operand o[REN__OPERANDS] = {in(x)};
        values_check("average pool", &forward, o, (expected[]){{1, y}, {0, NULL}}, 0,
                     TEST_TOLERANCE);
    }
    {
        test_operand o[REN__OPERANDS] = {in(dy)};
        values_check("average pool data", &backward, o, (expected[]){{1, dx}, {0, NULL}}, 0,
                     TEST_TOLERANCE);
    }
    values_free();
}

static void test_pool_random_shapes(void)
{
    for (int i = 0; i < ROUNDS && test_cuda(); i++) {
        ref_window s;
        memset(&s, 0, sizeof s);
        s.n = values_between(1, 4);
        s.c = s.o = values_between(1, 35);
        s.kh = values_between(1, 4);
        s.kw = values_between(1, 4);
        s.sh = values_between(1, 3);
        s.sw = values_between(1, 3);
        s.ph = values_between(0, s.kh / 2);
        s.pw = values_between(0, s.kw / 2);
        s.h = values_between(s.kh, 15);
        s.w = values_between(s.kw, 15);
        max_pool_case(s, i & 1);
        avg_pool_case(s);
    }
}

static void test_global_avg_random_shapes(void)
{
    for (int i = 0; i < ROUNDS && test_cuda(); i++) {
        ref_window s;
        ren__op_desc forward = test_desc(REN__OP_GLOBAL_AVG_FWD);
        ren__op_desc backward = test_desc(REN__OP_GLOBAL_AVG_BWD);
        float *x, *dy;
        double *y, *dx;
        memset(&s, 0, sizeof s);
        s.n = values_between(1, 5);
        s.h = s.kh = values_between(1, 8);
        s.w = s.kw = values_between(1, 8);
        s.c = s.o = values_between(1, 70);
        s.ho = s.wo = s.sh = s.sw = s.dh = s.dw = s.groups = 1;
        x = values_random((uint64_t)(s.n * s.h * s.w * s.c));
        dy = values_random((uint64_t)(s.n * s.c));
        y = doubles(s.n * s.c);
        dx = doubles(s.n * s.h * s.w * s.c);
        ref_avg_pool(&s, x, y);
        ref_avg_pool_backward(&s, dy, dx);
        forward.operand[0] = backward.operand[1] = image(s.n, s.h, s.w, s.c);
        forward.operand[1] = backward.operand[0] = matrix(s.n, s.c);
        {
            test_operand o[REN__OPERANDS] = {in(x)};
            values_check("global average", &forward, o, (expected[]){{1, y}, {0, NULL}}, 0,
                         TEST_TOLERANCE);
        }
        {
            test_operand o[REN__OPERANDS] = {in(dy)};
            values_check("global average data", &backward, o, (expected[]){{1, dx}, {0, NULL}}, 0,
                         TEST_TOLERANCE);
        }
        values_free();
    }
}

/* ------------------------------------------------------------------ batch norm */

static float *to_floats(const double *from, int64_t n)
{
    float *out = values_take((uint64_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        out[i] = (float)from[i];
    }
    return out;
}

static void norm_backward_case(const ref_norm *p, ren__tensor_desc x, ren__tensor_desc vector)
{
    int64_t n = p->rows * p->channels;
    float *dy = values_random((uint64_t)n);
    float *mean = to_floats(p->mean, p->channels);
    float *rstd = to_floats(p->rstd, p->channels);
    double *dx = doubles(n);
    double *dweight = doubles(p->channels);
    double *dbias = doubles(p->channels);
    ren__op_desc desc = test_desc(REN__OP_BATCH_NORM_BWD);
    test_operand o[REN__OPERANDS] = {in(dy), in(p->x), in(p->weight), in(mean), in(rstd)};
    ref_norm_backward(p, dy, mean, rstd, dx, dweight, dbias);
    desc.eps = (float)p->eps;
    desc.alpha = (float)p->momentum;
    desc.operand[0] = desc.operand[1] = desc.operand[5] = x;
    desc.operand[2] = desc.operand[3] = desc.operand[4] = vector;
    desc.operand[6] = desc.operand[7] = vector;
    values_check("batch norm data", &desc, o,
                 (expected[]){{5, dx}, {6, dweight}, {7, dbias}, {0, NULL}}, 0, TEST_TOLERANCE);
}

static void norm_case(int64_t batch, int64_t height, int64_t channels, double offset)
{
    int64_t rows = batch * height * height;
    int64_t n = rows * channels;
    float *x = values_random((uint64_t)n);
    float *var = values_random((uint64_t)channels);
    ren__tensor_desc of_x =
        height > 1 ? image(batch, height, height, channels) : matrix(batch, channels);
    ren__tensor_desc vector = flat(channels);
    ren__op_desc train = test_desc(REN__OP_BATCH_NORM_TRAIN);
    ren__op_desc eval = test_desc(REN__OP_BATCH_NORM_EVAL);
    ref_norm p = {rows,
                  channels,
                  0.0,
                  0.0,
                  x,
                  values_random((uint64_t)channels),
                  values_random((uint64_t)channels),
                  values_random((uint64_t)channels),
                  var,
                  doubles(n),
                  doubles(channels),
                  doubles(channels),
                  doubles(channels),
                  doubles(channels)};
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)((double)x[i] +
                       offset); /* a mean far from 0 costs a naive variance its digits */
    }
    for (int64_t c = 0; c < channels; c++) {
        var[c] = fabsf(var[c]) + 0.1f;
    }
    train.alpha = 0.1f;
    train.eps = 1e-5f;
    p.momentum = (double)train.alpha;
    p.eps = (double)train.eps;
    train.operand[0] = train.operand[5] = of_x;
    for (uint32_t i = 1; i < 10; i++) {
        train.operand[i] = i == 5 ? of_x : vector;
    }
    ref_norm_train(&p);
    {
        test_operand o[REN__OPERANDS] = {in(x), in(p.weight), in(p.bias), in(p.running_mean),
                                         in(var)};
        values_check(
            "batch norm", &train, o,
            (expected[]){
                {5, p.y}, {6, p.mean}, {7, p.rstd}, {8, p.new_mean}, {9, p.new_var}, {0, NULL}},
            0, TEST_TOLERANCE);
    }
    {
        /* The running statistics in place, as the contract allows. */
        test_operand o[REN__OPERANDS] = {in(x), in(p.weight), in(p.bias), in(p.running_mean),
                                         in(var)};
        o[3].role = o[4].role = TEST_INOUT;
        o[8] = (test_operand){TEST_OUT, 0, 4, NULL, NULL};
        o[9] = (test_operand){TEST_OUT, 0, 5, NULL, NULL};
        values_check(
            "batch norm in place", &train, o,
            (expected[]){
                {5, p.y}, {6, p.mean}, {7, p.rstd}, {3, p.new_mean}, {4, p.new_var}, {0, NULL}},
            0, TEST_TOLERANCE);
    }
    norm_backward_case(&p, of_x, vector);
    eval.eps = train.eps;
    eval.operand[0] = eval.operand[5] = of_x;
    for (uint32_t i = 1; i < 5; i++) {
        eval.operand[i] = vector;
    }
    ref_norm_eval(&p);
    {
        test_operand o[REN__OPERANDS] = {in(x), in(p.weight), in(p.bias), in(p.running_mean),
                                         in(var)};
        values_check("batch norm, inference", &eval, o, (expected[]){{5, p.y}, {0, NULL}}, 0,
                     TEST_TOLERANCE);
    }
    values_free();
}

static void test_batch_norm_random_shapes(void)
{
    norm_case(64, 8, 16, 0.0);
    norm_case(16, 6, 37, 3.0);
    norm_case(33, 1, 5, 0.0);
    norm_case(50, 13, 3, -2.0);
    for (int i = 0; i < ROUNDS / 2 && test_cuda(); i++) {
        norm_case(values_between(2, 40), values_between(1, 6), values_between(1, 70), 0.5);
    }
}

/* ------------------------------------------------------------------ element by element */

static void test_activations_all(void)
{
    for (int activation = 0; activation <= (int)REN__ACT_GELU_TANH && test_cuda(); activation++) {
        for (int i = 0; i < 4; i++) {
            int64_t n = i == 0 ? 5000 : values_between(1, 3000);
            uint32_t misalign = i == 3 ? 4u : 0u;
            float *x = values_random((uint64_t)n);
            float *dy = values_random((uint64_t)n);
            double *y = doubles(n);
            double *dx = doubles(n);
            float *rounded;
            ren__op_desc forward = test_desc(REN__OP_ACT_FWD);
            ren__op_desc backward = test_desc(REN__OP_ACT_BWD);
            forward.activation = backward.activation = (ren__activation)activation;
            forward.alpha = backward.alpha = 0.03125f;
            for (int64_t k = 0; k < n; k++) {
                x[k] *= 3.0f;
                y[k] = ref_act(forward.activation, 0.03125, (double)x[k]);
                dx[k] = (double)dy[k] * ref_act_slope(forward.activation, 0.03125, (double)x[k]);
            }
            rounded = to_floats(y, n);
            for (uint32_t k = 0; k < 4; k++) {
                forward.operand[k] = k < 2 ? flat(n) : forward.operand[k];
                backward.operand[k] = flat(n);
            }
            {
                test_operand o[REN__OPERANDS] = {in(x)};
                values_check("activation", &forward, o, (expected[]){{1, y}, {0, NULL}}, misalign,
                             TEST_TOLERANCE);
            }
            {
                test_operand o[REN__OPERANDS] = {in(dy), in(x), in(rounded)};
                values_check("activation data", &backward, o, (expected[]){{3, dx}, {0, NULL}},
                             misalign, TEST_TOLERANCE);
            }
            values_free();
        }
    }
}

static void test_relu_in_place(void)
{
    float *x = values_random(1001);
    double *y = doubles(1001);
    ren__op_desc desc = test_desc(REN__OP_ACT_FWD);
    test_operand o[REN__OPERANDS] = {{TEST_INOUT, 0, 0, x, NULL}, {TEST_OUT, 0, 1, NULL, NULL}};
    desc.operand[0] = desc.operand[1] = flat(1001);
    for (int i = 0; i < 1001; i++) {
        y[i] = ref_act(REN__ACT_RELU, 0.0, (double)x[i]);
    }
    values_check("relu in place", &desc, o, (expected[]){{0, y}, {0, NULL}}, 0, 0.0);
    values_free();
}

static void test_add_and_in_place(void)
{
    for (int i = 0; i < 6 && test_cuda(); i++) {
        int64_t n = values_between(1, 5000);
        float *a = values_random((uint64_t)n);
        float *b = values_random((uint64_t)n);
        double *y = doubles(n);
        uint32_t out = (uint32_t)(i % 3);
        ren__op_desc desc = test_desc(REN__OP_ADD);
        test_operand o[REN__OPERANDS] = {in(a), in(b)};
        for (uint32_t k = 0; k < 3; k++) {
            desc.operand[k] = flat(n);
        }
        for (int64_t k = 0; k < n; k++) {
            y[k] = (double)(a[k] + b[k]);
        }
        if (out < 2) { /* 2 may be 0 or 1 */
            o[out].role = TEST_INOUT;
            o[2] = (test_operand){TEST_OUT, 0, (int)out + 1, NULL, NULL};
        }
        values_check("add", &desc, o, (expected[]){{out, y}, {0, NULL}}, i > 2 ? 4u : 0u, 0.0);
        values_free();
    }
}

static void test_concat_and_split(void)
{
    for (int i = 0; i < 6 && test_cuda(); i++) {
        ren__op_desc concat = test_desc(REN__OP_CONCAT);
        ren__op_desc split = test_desc(REN__OP_SPLIT);
        test_operand of_concat[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
        test_operand of_split[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
        expected parts[REN__OPERANDS + 1] = {{0, NULL}};
        uint32_t count = i == 0 ? 11u : (uint32_t)values_between(1, 11);
        int64_t rows = values_between(1, 200);
        int64_t channels[11];
        int64_t sum = 0;
        double *joined;
        for (uint32_t k = 0; k < count; k++) {
            channels[k] = values_between(1, 40);
            sum += channels[k];
        }
        joined = doubles(rows * sum);
        concat.count = split.count = count;
        concat.operand[11] = split.operand[0] = matrix(rows, sum);
        sum = 0;
        for (uint32_t k = 0; k < count; k++) {
            float *part = values_random((uint64_t)(rows * channels[k]));
            double *same = doubles(rows * channels[k]);
            concat.operand[k] = split.operand[k + 1u] = matrix(rows, channels[k]);
            of_concat[k] = in(part);
            parts[k] = (expected){k + 1u, same};
            for (int64_t r = 0; r < rows; r++) {
                for (int64_t c = 0; c < channels[k]; c++) {
                    double v = (double)part[r * channels[k] + c];
                    same[r * channels[k] + c] = v;
                    joined[r * concat.operand[11].dims[1] + sum + c] = v;
                }
            }
            sum += channels[k];
        }
        values_check("concat", &concat, of_concat, (expected[]){{11, joined}, {0, NULL}}, 0, 0.0);
        of_split[0] = in(to_floats(joined, rows * sum));
        values_check("split", &split, of_split, parts, 0, 0.0);
        values_free();
    }
}

static uint16_t half_of(const void *data, int64_t i)
{
    uint16_t value;
    memcpy(&value, (const unsigned char *)data + 2 * i, sizeof value);
    return value;
}

/* Both devices' own conversions must agree bit for bit on every kind of value, and going down and
 * up again must give what the half type can hold. */
static void test_cast_round_trip(void)
{
    const float special[] = {0.0f,    -0.0f,   1.0f,     65504.0f, 65519.9f,  65520.0f,
                             1e-8f,   6.1e-5f, 5.9e-8f,  INFINITY, -1e30f,    0.1f,
                             2049.0f, 2051.0f, -3.1415f, 1e-40f,   3.3895e38f};
    enum {
        N = 2003
    };
    float *x = values_random(N);
    memcpy(x, special, sizeof special);
    for (int half = 0; half < 2 && test_cuda(); half++) {
        ren_dtype type = half ? REN_BF16 : REN_F16;
        ren__op_desc down = test_desc(REN__OP_CAST);
        ren__op_desc up = test_desc(REN__OP_CAST);
        void *on_cuda = values_take(N * 2u);
        void *on_cpu = values_take(N * 2u);
        float *back = values_take(N * sizeof(float));
        test_operand o[REN__OPERANDS] = {in(x), {TEST_OUT, 0, 0, NULL, on_cuda}};
        test_operand u[REN__OPERANDS] = {in(on_cuda), {TEST_OUT, 0, 0, NULL, back}};
        down.operand[0] = up.operand[1] = flat(N);
        down.operand[1] = up.operand[0] = test_tensor(type, 1, N, 0, 0, 0);
        CU_ASSERT_EQUAL(test_run(test_cuda(), &down, o, 0), REN_OK);
        o[1].out = on_cpu;
        if (test_cpu() && test_run(test_cpu(), &down, o, 0) == REN_OK) {
            for (int i = 0; i < N; i++) {
                CU_ASSERT_EQUAL(half_of(on_cuda, i), half_of(on_cpu, i));
            }
        }
        CU_ASSERT_EQUAL(test_run(test_cuda(), &up, u, 0), REN_OK);
        for (int i = (int)REN_TEST_COUNT(special); i < N; i++) {
            CU_ASSERT_TRUE(fabsf(back[i] - x[i]) <= fabsf(x[i]) * (half ? 0.004f : 0.0005f));
        }
    }
    values_free();
}

static const ren_test_case cases[] = {
    {"test_linear_random_shapes", test_linear_random_shapes},
    {"test_bias_grad_random_shapes", test_bias_grad_random_shapes},
    {"test_conv_common_shapes", test_conv_common_shapes},
    {"test_conv_random_shapes", test_conv_random_shapes},
    {"test_pool_random_shapes", test_pool_random_shapes},
    {"test_global_avg_random_shapes", test_global_avg_random_shapes},
    {"test_batch_norm_random_shapes", test_batch_norm_random_shapes},
    {"test_activations_all", test_activations_all},
    {"test_relu_in_place", test_relu_in_place},
    {"test_add_and_in_place", test_add_and_in_place},
    {"test_concat_and_split", test_concat_and_split},
    {"test_cast_round_trip", test_cast_round_trip},
};

int main(int argc, char **argv)
{
    int code = ren_test_main(argc, argv, "gpu/test_cuda_ops", cases, REN_TEST_COUNT(cases), 240);
    test_tables_close();
    return code;
}
