/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_linear.c - fused linear layers and 16-bit losses against float64.
 *
 * Proves    bias and activation, and the bias gradient, come out of one operation as they would
 *           out of several, for f32, TF32, f16 and bf16, odd sizes included, on a deterministic
 *           device, a free one and a tuned one; two runs and a captured run give the same bits
 *           (table.h); losses take 16-bit logits and give 16-bit gradients, computed in f32.
 * Fails     when an epilogue adds the bias along the wrong axis, applies another GELU, sums the
 *           gradient in 16 bits, or a choice of algorithm breaks a shape.
 */
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../support/test.h"
#include "reference.h"
#include "values.h"

/* ------------------------------------------------------------------ numbers of 16 bits */

static float to_float(ren_dtype dtype, uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float sign = bits >> 15 ? -1.0f : 1.0f;
    int exponent = bits >> 10 & 31;
    float fraction = (float)(bits & 1023u);
    float out;
    if (dtype == REN_BF16) {
        memcpy(&out, &wide, sizeof out);
        return out;
    }
    if (exponent == 31) {
        return fraction == 0.0f ? sign * INFINITY : NAN;
    }
    return sign * (exponent ? ldexpf(1024.0f + fraction, exponent - 25) : ldexpf(fraction, -24));
}

/* To nearest even; of values that f16 holds. */
static uint16_t to_half(ren_dtype dtype, float value)
{
    uint32_t bits;
    int exponent;
    long units;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == REN_BF16) {
        return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
    (void)frexpf(value, &exponent);
    exponent = exponent < -13 ? -13 : exponent;          /* below: subnormal */
    units = lrintf(ldexpf(fabsf(value), 11 - exponent)); /* 1024..2048, below if subnormal */
    units += (long)(exponent + 13) * 1024;               /* a carry moves to the next exponent */
    return (uint16_t)((bits >> 16 & 0x8000u) | (uint32_t)units);
}

/* n normal values; in 16 bits where dtype says so, with *out_exact holding what they stand for. */
static void *random_of(ren_dtype dtype, int64_t n, float **out_exact)
{
    float *values = values_random((uint64_t)n);
    uint16_t *halves;
    *out_exact = values;
    if (dtype == REN_F32) {
        return values;
    }
    halves = values_take((uint64_t)n * sizeof *halves);
    for (int64_t i = 0; i < n; i++) {
        halves[i] = to_half(dtype, values[i]);
        values[i] = to_float(dtype, halves[i]);
    }
    return halves;
}

static const float *widened(ren_dtype dtype, const void *data, int64_t n)
{
    const uint16_t *halves = data;
    float *out;
    if (dtype == REN_F32) {
        return data;
    }
    out = values_take((uint64_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        out[i] = to_float(dtype, halves[i]);
    }
    return out;
}

/* ------------------------------------------------------------------ devices */

/* Beside the deterministic one that test_cuda has: free to choose, and timing what there is. */
static test_table others[2];

static int open_other(test_table *t, uint32_t autotune)
{
    ren__device_config config;
    const char *why;
    ren_error err;
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    config.lanes = 1;
    config.cpu_threads = 1;
    config.autotune = autotune;
    t->api = test_cuda_api(&why);
    if (t->api->open(&config, test_host_services(), &t->dev, &err) != REN_OK) {
        return 0;
    }
    t->api->caps(t->dev, &t->caps);
    return 1;
}

static test_table *device(int which)
{
    if (which == 0 || !test_cuda()) {
        return test_cuda();
    }
    return others[which - 1].dev || open_other(&others[which - 1], which == 2) ? &others[which - 1]
                                                                               : NULL;
}

/* ------------------------------------------------------------------ linear */

typedef struct kind_of_number {
    const char *name;
    ren_dtype dtype;
    uint32_t tf32;
    double tolerance, of_sums; /* of outputs in dtype; of gradients in f32 */
} kind_of_number;

static const kind_of_number numbers[] = {{"f32", REN_F32, 0, 2e-5, 2e-5},
                                         {"tf32", REN_F32, 1, 1e-3, 1e-3},
                                         {"f16", REN_F16, 0, 2e-3, 2e-5},
                                         {"bf16", REN_BF16, 0, 8e-3, 2e-5}};

static ren__tensor_desc matrix(ren_dtype dtype, int64_t rows, int64_t columns)
{
    return test_tensor(dtype, 2, rows, columns, 0, 0);
}

static test_operand in(const void *data)
{
    test_operand o = {TEST_IN, 0, 0, data, NULL};
    return o;
}

static test_operand out(ren_dtype dtype, int64_t n)
{
    test_operand o = {TEST_OUT, 0, 0, NULL, values_take((uint64_t)n * ren__dtype_bytes(dtype))};
    return o;
}

static void near(const char *what, const kind_of_number *number, const int64_t *shape, int which,
                 double distance, double tolerance)
{
    CU_ASSERT_TRUE(distance <= tolerance);
    if (!(distance <= tolerance)) {
        (void)fprintf(stderr, "%s %s, %lld x %lld -> %lld, device %d: off by %.3g\n", what,
                      number->name, (long long)shape[0], (long long)shape[1], (long long)shape[2],
                      which, distance);
    }
}

static double norm(const double *v, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += v[i] * v[i];
    }
    return sqrt(sum);
}

/* activation: -1 none. shape: rows, inputs, outputs. The distance is relative to the values before
 * the activation: a library may round those first, as the unfused operations do, and of a GELU
 * near 0 that takes away digits. */
static void forward_case(const kind_of_number *number, const int64_t *shape, int activation,
                         int bias, int which)
{
    int64_t n = shape[0] * shape[2];
    ren__op_desc desc = test_desc(REN__OP_LINEAR_FWD);
    float *x;
    float *w;
    float *b;
    double before;
    double after;
    double *y = values_take((uint64_t)n * sizeof *y);
    test_operand o[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    o[0] = in(random_of(number->dtype, shape[0] * shape[1], &x));
    o[1] = in(random_of(number->dtype, shape[1] * shape[2], &w));
    o[3] = out(number->dtype, n);
    desc.operand[0] = matrix(number->dtype, shape[0], shape[1]);
    desc.operand[1] = matrix(number->dtype, shape[2], shape[1]);
    desc.operand[3] = matrix(number->dtype, shape[0], shape[2]);
    desc.allow_tf32 = number->tf32;
    if (bias) {
        o[2] = in(random_of(number->dtype, shape[2], &b));
        desc.operand[2] = test_tensor(number->dtype, 1, shape[2], 0, 0, 0);
    }
    if (activation >= 0) {
        desc.fused_activation = 1;
        desc.activation = (ren__activation)activation;
    }
    ref_linear(x, w, bias ? b : NULL, y, shape[0], shape[1], shape[2]);
    before = norm(y, n);
    for (int64_t i = 0; i < n && activation >= 0; i++) {
        y[i] = ref_act((ren__activation)activation, 0.0, y[i]);
    }
    after = norm(y, n);
    CU_ASSERT_EQUAL(test_run(device(which), &desc, o, 0), REN_OK);
    near(activation < 0                ? "forward"
         : activation == REN__ACT_RELU ? "forward, relu"
                                       : "forward, gelu",
         number, shape, which,
         test_distance(widened(number->dtype, o[3].out, n), y, (uint64_t)n) *
             (after > 0.0 ? after : 1.0) / before,
         number->tolerance);
}

static void backward_case(const kind_of_number *number, const int64_t *shape, int bias, int which)
{
    int64_t weights = shape[1] * shape[2];
    ren__op_desc data = test_desc(REN__OP_LINEAR_BWD_DATA);
    ren__op_desc weight = test_desc(REN__OP_LINEAR_BWD_WEIGHT);
    float *dy;
    float *w;
    float *x;
    double *dx = values_take((uint64_t)(shape[0] * shape[1]) * sizeof *dx);
    double *dw = values_take((uint64_t)weights * sizeof *dw);
    double *db = values_take((uint64_t)shape[2] * sizeof *db);
    test_operand of_data[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    test_operand of_weight[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    of_data[0] = of_weight[0] = in(random_of(number->dtype, shape[0] * shape[2], &dy));
    of_data[1] = in(random_of(number->dtype, weights, &w));
    of_data[2] = out(number->dtype, shape[0] * shape[1]);
    of_weight[1] = in(random_of(number->dtype, shape[0] * shape[1], &x));
    of_weight[2] = out(REN_F32, weights);
    data.operand[0] = weight.operand[0] = matrix(number->dtype, shape[0], shape[2]);
    data.operand[1] = matrix(number->dtype, shape[2], shape[1]);
    data.operand[2] = weight.operand[1] = matrix(number->dtype, shape[0], shape[1]);
    weight.operand[2] = matrix(REN_F32, shape[2], shape[1]);
    data.allow_tf32 = weight.allow_tf32 = number->tf32;
    if (bias) {
        weight.operand[3] = test_tensor(REN_F32, 1, shape[2], 0, 0, 0);
        of_weight[3] = out(REN_F32, shape[2]);
    }
    ref_linear_data(dy, w, dx, shape[0], shape[1], shape[2]);
    ref_linear_weight(dy, x, dw, shape[0], shape[1], shape[2]);
    ref_column_sum(dy, db, shape[0], shape[2]);
    CU_ASSERT_EQUAL(test_run(device(which), &data, of_data, 0), REN_OK);
    CU_ASSERT_EQUAL(test_run(device(which), &weight, of_weight, 0), REN_OK);
    near("data", number, shape, which,
         test_distance(widened(number->dtype, of_data[2].out, shape[0] * shape[1]), dx,
                       (uint64_t)(shape[0] * shape[1])),
         number->tolerance);
    near("weight", number, shape, which, test_distance(of_weight[2].out, dw, (uint64_t)weights),
         number->of_sums);
    if (bias) {
        near("bias gradient", number, shape, which,
             test_distance(of_weight[3].out, db, (uint64_t)shape[2]), 2e-5);
    }
}

/* Of some the sum over the rows is long enough to be split over blocks; of those with up to 16
 * outputs it is joined by the last block or by a second launch. */
static const int64_t shapes[][3] = {{1, 1, 1},      {3, 7, 10},     {17, 64, 10},   {64, 64, 64},
                                    {255, 17, 3},   {10, 255, 255}, {257, 129, 65}, {1, 64, 17},
                                    {2048, 64, 64}, {2048, 32, 10}, {300, 200, 10}, {5000, 64, 16}};

static void each_shape(int which, uint32_t light_of)
{
    for (uint32_t k = 0; k < REN_TEST_COUNT(numbers) && device(which); k++) {
        for (uint32_t s = 0; s < REN_TEST_COUNT(shapes); s++) {
            for (int bias = 0; bias < 2; bias++) {
                if (test_left_out(s + k + (uint32_t)(bias + which), light_of)) {
                    continue;
                }
                forward_case(&numbers[k], shapes[s], -1, bias, which);
                forward_case(&numbers[k], shapes[s], REN__ACT_RELU, bias, which);
                forward_case(&numbers[k], shapes[s], REN__ACT_GELU_TANH, bias, which);
                backward_case(&numbers[k], shapes[s], bias, which);
                values_free();
            }
        }
    }
}

static void test_linear_fused_deterministic(void)
{
    each_shape(0, 4);
}

static void test_linear_fused_free(void)
{
    each_shape(1, 5);
}

static void test_linear_fused_tuned(void)
{
    each_shape(2, 7);
}

/* What is no part of the contract is refused with words, not computed without the activation. */
static void test_linear_refuses_other_activations(void)
{
    ren__op_desc desc = test_desc(REN__OP_LINEAR_FWD);
    ren__op_needs needs;
    ren__op *op = NULL;
    ren_error err;
    test_table *t = device(0);
    if (!t) {
        return;
    }
    desc.operand[0] = matrix(REN_F32, 4, 8);
    desc.operand[1] = matrix(REN_F32, 2, 8);
    desc.operand[3] = matrix(REN_F32, 4, 2);
    desc.fused_activation = 1;
    desc.activation = REN__ACT_TANH;
    CU_ASSERT_EQUAL(t->api->op_create(t->dev, 0, &desc, &op, &needs, &err), REN_ERR_UNSUPPORTED);
    CU_ASSERT_PTR_NULL(op);
    desc.kind = REN__OP_LINEAR_BWD_WEIGHT;
    desc.fused_activation = 0;
    desc.operand[0] = matrix(REN_F32, 4, 2);
    desc.operand[1] = matrix(REN_F32, 4, 8);
    desc.operand[2] = matrix(REN_F32, 2, 8);
    desc.operand[3] = test_tensor(REN_F32, 1, 8, 0, 0, 0); /* dy has 2 columns */
    CU_ASSERT_EQUAL(t->api->op_create(t->dev, 0, &desc, &op, &needs, &err), REN_ERR_SHAPE);
    CU_ASSERT_PTR_NULL(op);
}

/* ------------------------------------------------------------------ losses in 16 bits */

static ren__tensor_desc bytes_of(size_t bytes)
{
    return test_tensor(REN_U8, 1, (int64_t)bytes, 0, 0, 0);
}

/* A loss scale of 1024 on top, as mixed precision has it: small gradients do not vanish. */
static void scaled(ren__op_desc *desc, test_operand *o, ren__control *control, ren__state *state)
{
    memset(control, 0, sizeof *control);
    memset(state, 0, sizeof *state);
    state->loss_scale = 1024.0f;
    desc->dynamic_scale = 1;
    desc->operand[2] = bytes_of(sizeof *control);
    desc->operand[4] = bytes_of(sizeof *state);
    o[2] = in(control);
    o[4] = in(state);
}

static void xent_case(const kind_of_number *number, int64_t rows, int64_t classes, float smoothing)
{
    int64_t shape[3] = {rows, classes, 0};
    int64_t n = rows * classes;
    ren__op_desc forward = test_desc(REN__OP_XENT_FWD);
    ren__op_desc backward = test_desc(REN__OP_XENT_BWD);
    float *logits;
    int32_t *labels = values_take((uint64_t)rows * sizeof *labels);
    double *prob = values_take((uint64_t)n * sizeof *prob);
    double *dx = values_take((uint64_t)n * sizeof *dx);
    double loss;
    ren__control control;
    ren__state state;
    test_operand f[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    test_operand b[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    for (int64_t i = 0; i < rows; i++) {
        labels[i] = (int32_t)values_between(0, classes - 1);
    }
    f[0] = in(random_of(number->dtype, n, &logits));
    f[1] = b[1] = in(labels);
    f[2] = out(REN_F32, 1);
    f[3] = out(REN_F32, n);
    forward.alpha = backward.alpha = smoothing;
    forward.operand[0] = matrix(number->dtype, rows, classes);
    forward.operand[1] = backward.operand[1] = test_tensor(REN_I32, 1, rows, 0, 0, 0);
    forward.operand[2] = test_tensor(REN_F32, 1, 1, 0, 0, 0);
    forward.operand[3] = backward.operand[0] = matrix(REN_F32, rows, classes);
    backward.operand[3] = matrix(number->dtype, rows, classes);
    loss = ref_xent(logits, labels, (double)smoothing, prob, rows, classes);
    CU_ASSERT_EQUAL(test_run(device(0), &forward, f, 0), REN_OK);
    near("cross entropy", number, shape, 0, test_distance(f[2].out, &loss, 1), 2e-5);
    near("probabilities", number, shape, 0, test_distance(f[3].out, prob, (uint64_t)n), 2e-5);
    b[0] = in(f[3].out);
    b[3] = out(number->dtype, n);
    scaled(&backward, b, &control, &state);
    ref_xent_backward(f[3].out, labels, (double)smoothing, dx, rows, classes);
    for (int64_t i = 0; i < n; i++) {
        dx[i] *= 1024.0;
    }
    CU_ASSERT_EQUAL(test_run(device(0), &backward, b, 0), REN_OK);
    near("cross entropy gradient", number, shape, 0,
         test_distance(widened(number->dtype, b[3].out, n), dx, (uint64_t)n), number->tolerance);
}

static void distance_case(const kind_of_number *number, int64_t n, int huber)
{
    int64_t shape[3] = {1, n, huber};
    ren__op_desc forward = test_desc(huber ? REN__OP_HUBER_FWD : REN__OP_MSE_FWD);
    ren__op_desc backward = test_desc(huber ? REN__OP_HUBER_BWD : REN__OP_MSE_BWD);
    float *x;
    float *t;
    double *dx = values_take((uint64_t)n * sizeof *dx);
    double loss;
    ren__control control;
    ren__state state;
    test_operand f[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    test_operand b[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    f[0] = b[0] = in(random_of(number->dtype, n, &x));
    f[1] = b[1] = in(random_of(number->dtype, n, &t));
    f[2] = out(REN_F32, 1);
    b[3] = out(number->dtype, n);
    forward.alpha = backward.alpha = 0.75f;
    forward.operand[0] = backward.operand[0] = test_tensor(number->dtype, 1, n, 0, 0, 0);
    forward.operand[1] = backward.operand[1] = test_tensor(number->dtype, 1, n, 0, 0, 0);
    forward.operand[2] = test_tensor(REN_F32, 1, 1, 0, 0, 0);
    backward.operand[3] = test_tensor(number->dtype, 1, n, 0, 0, 0);
    scaled(&backward, b, &control, &state);
    loss = ref_distance(huber, 0.75, x, t, n);
    ref_distance_backward(huber, 0.75, x, t, dx, n);
    for (int64_t i = 0; i < n; i++) {
        dx[i] *= 1024.0;
    }
    CU_ASSERT_EQUAL(test_run(device(0), &forward, f, 0), REN_OK);
    near("distance", number, shape, 0, test_distance(f[2].out, &loss, 1), 2e-5);
    CU_ASSERT_EQUAL(test_run(device(0), &backward, b, 0), REN_OK);
    near("distance gradient", number, shape, 0,
         test_distance(widened(number->dtype, b[3].out, n), dx, (uint64_t)n), number->tolerance);
}

/* Rows for one block and for many, classes within a warp and beyond. */
static void test_losses_in_16_bits(void)
{
    for (size_t k = 0; k < REN_TEST_COUNT(numbers) && device(0); k++) {
        xent_case(&numbers[k], 1, 1, 0.0f);
        xent_case(&numbers[k], 33, 10, 0.1f);
        xent_case(&numbers[k], 1030, 10, 0.0f);
        xent_case(&numbers[k], 5000, 3, 0.2f);
        xent_case(&numbers[k], 257, 1000, 0.1f);
        for (int huber = 0; huber < 2; huber++) {
            distance_case(&numbers[k], 1, huber);
            distance_case(&numbers[k], 1023, huber);
            distance_case(&numbers[k], 40003, huber);
        }
        values_free();
    }
}

static const ren_test_case cases[] = {
    {"test_linear_fused_deterministic", test_linear_fused_deterministic},
    {"test_linear_fused_free", test_linear_fused_free},
    {"test_linear_fused_tuned", test_linear_fused_tuned},
    {"test_linear_refuses_other_activations", test_linear_refuses_other_activations},
    {"test_losses_in_16_bits", test_losses_in_16_bits},
};

int main(int argc, char **argv)
{
    int code = ren_test_main(argc, argv, "gpu/test_cuda_linear", cases, REN_TEST_COUNT(cases), 240);
    for (int i = 0; i < 2; i++) {
        test_table_close(&others[i]);
    }
    test_tables_close();
    return code;
}
