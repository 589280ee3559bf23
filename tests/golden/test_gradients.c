/* SPDX-License-Identifier: MIT */
/* tests/golden/test_gradients.c - gradients of every layer against finite differences.
 *
 * One SGD step at rate 1 without momentum moves each parameter by its gradient. The same gradient
 * is taken from central differences of the training loss, for a sample of the elements. A backward
 * rule that is wrong, missing or applied twice, or a gradient that is not summed over several
 * readers, makes a case fail. f32 losses limit the comparison: 1e-3 of the gradient's size, or
 * 4e-4.
 */
#include "../support/runtime.h"
#include "../support/test.h"
#include "nets.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS    4u
#define SIDE    6u
#define PLANES  3u
#define INPUT   (ROWS * SIDE * SIDE * PLANES)
#define SAMPLES 10u
#define NUDGE   5e-4f

typedef enum head {
    HEAD_CROSS_ENTROPY,
    HEAD_SMOOTHED,
    HEAD_MSE,
    HEAD_HUBER
} head;

typedef struct subject {
    const char *name;
    ren_tensor (*body)(ren_model *m, ren_tensor x); /* between two layers with parameters */
    head loss;
} subject;

/* ------------------------------------------------------------------ bodies */

static ren_tensor conv(ren_model *m, const char *name, ren_tensor x, uint32_t filters,
                       uint32_t stride, uint32_t dilation, uint32_t groups)
{
    ren_conv2d_options o = ren_conv2d_options_default();
    o.filters = filters;
    o.groups = groups;
    for (int i = 0; i < 2; i++) {
        o.kernel[i] = 3;
        o.padding[i] = 1;
        o.stride[i] = stride;
        o.dilation[i] = dilation;
    }
    return ren_conv2d(m, name, x, &o);
}

static ren_pool2d_options window(uint32_t kernel, uint32_t stride, uint32_t padding)
{
    ren_pool2d_options o = ren_pool2d_options_default();
    for (int i = 0; i < 2; i++) {
        o.kernel[i] = kernel;
        o.stride[i] = stride;
        o.padding[i] = padding;
    }
    return o;
}

static ren_tensor plain(ren_model *m, ren_tensor x)
{
    (void)m;
    return x;
}

static ren_tensor conv_strided(ren_model *m, ren_tensor x)
{
    return conv(m, "body", x, 6, 2, 1, 2);
}

static ren_tensor conv_dilated(ren_model *m, ren_tensor x)
{
    return conv(m, "body", x, 4, 1, 2, 1);
}

static ren_tensor relu(ren_model *m, ren_tensor x)
{
    return ren_relu(m, "body", x);
}

static ren_tensor leaky(ren_model *m, ren_tensor x)
{
    ren_leaky_relu_options o = ren_leaky_relu_options_default();
    o.negative_slope = 0.3f;
    return ren_leaky_relu(m, "body", x, &o);
}

static ren_tensor tanh_body(ren_model *m, ren_tensor x)
{
    return ren_tanh(m, "body", x);
}

static ren_tensor sigmoid(ren_model *m, ren_tensor x)
{
    return ren_sigmoid(m, "body", x);
}

static ren_tensor silu(ren_model *m, ren_tensor x)
{
    return ren_silu(m, "body", x);
}

static ren_tensor gelu_erf(ren_model *m, ren_tensor x)
{
    return ren_gelu(m, "body", x, NULL);
}

static ren_tensor gelu_tanh(ren_model *m, ren_tensor x)
{
    ren_gelu_options o = ren_gelu_options_default();
    o.kind = REN_GELU_TANH;
    return ren_gelu(m, "body", x, &o);
}

static ren_tensor max_pool(ren_model *m, ren_tensor x)
{
    ren_pool2d_options o = window(2, 2, 0);
    return ren_max_pool2d(m, "body", x, &o);
}

static ren_tensor avg_pool(ren_model *m, ren_tensor x)
{
    ren_pool2d_options o = window(3, 2, 1);
    return ren_avg_pool2d(m, "body", x, &o);
}

static ren_tensor batch_norm(ren_model *m, ren_tensor x)
{
    return ren_batch_norm(m, "body", x, NULL);
}

/* One tensor with three readers, joined again in two ways. */
static ren_tensor diamond(ren_model *m, ren_tensor x)
{
    ren_tensor a = ren_tanh(m, "a", x);
    ren_tensor b = ren_sigmoid(m, "b", x);
    ren_tensor parts[3] = {ren_add(m, "sum", a, b), x, a};
    return ren_concat(m, "body", parts, 3);
}

/* The same tensor twice in one sum. */
static ren_tensor doubled(ren_model *m, ren_tensor x)
{
    ren_tensor h = ren_tanh(m, "h", x);
    return ren_add(m, "body", h, h);
}

/* ------------------------------------------------------------------ the check */

typedef struct bench {
    ren_runtime *rt;
    net n;
    ren_trainer *t;
    float x[INPUT];
    int32_t labels[ROWS];
    float goal[ROWS * 5];
    head loss;
} bench;

static void build(bench *b, const subject *s)
{
    int64_t dims[4] = {ROWS, SIDE, SIDE, PLANES};
    int64_t goal_dims[2] = {ROWS, 5};
    ren_linear_options o = ren_linear_options_default();
    ren_trainer_config how = ren_trainer_config_default();
    ren_error err;
    unsigned long long state = 98;
    b->rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(b->rt);
    b->loss = s->loss;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(b->rt, NULL, &b->n.model, NULL), REN_OK);
    ren_model *m = b->n.model;
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 4);
    ren_tensor h = s->body(m, conv(m, "first", x, 4, 1, 1, 1));
    o.units = 5;
    h = ren_linear(m, "last", ren_flatten(m, "flat", h), &o);
    ren_cross_entropy_options smooth = ren_cross_entropy_options_default();
    smooth.label_smoothing = s->loss == HEAD_SMOOTHED ? 0.2f : 0.0f;
    ren_huber_options huber = ren_huber_options_default();
    huber.delta = 0.4f;
    if (s->loss == HEAD_MSE || s->loss == HEAD_HUBER) {
        ren_tensor goal = ren_input(m, "labels", REN_F32, goal_dims, 2);
        b->n.loss = s->loss == HEAD_MSE ? ren_mse(m, "loss", h, goal)
                                        : ren_huber(m, "loss", h, goal, &huber);
    } else {
        ren_tensor labels = ren_input(m, "labels", REN_I32, dims, 1);
        b->n.loss = ren_softmax_cross_entropy(m, "loss", h, labels, &smooth);
    }
    how.learning_rate = 0.0f;
    how.momentum = 0.0f;
    if (ren_trainer_create(m, b->n.loss, &how, &b->t, &err) != REN_OK) {
        (void)fprintf(stderr, "%s: %s\n", s->name, err.text);
        CU_FAIL_FATAL("the trainer could not be made");
    }
    for (uint32_t i = 0; i < INPUT; i++) {
        b->x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (uint32_t i = 0; i < ROWS * 5; i++) {
        b->goal[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
        b->labels[i % ROWS] = (int32_t)(ren_test_random(&state) % 5u);
    }
}

static void on_loss(const ren_completion *c, void *user)
{
    *(float *)user = c->status == REN_OK ? c->step->loss : NAN;
}

static double step(bench *b, float rate)
{
    uint32_t regression = b->loss == HEAD_MSE || b->loss == HEAD_HUBER;
    ren_binding bindings[2] = {{"x", b->x, sizeof b->x}, {"labels", b->labels, sizeof b->labels}};
    ren_step_desc desc = ren_step_desc_default();
    ren_job job;
    float loss = NAN;
    if (regression) {
        bindings[1].data = b->goal;
        bindings[1].bytes = sizeof b->goal;
    }
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.done = on_loss;
    desc.user = &loss;
    CU_ASSERT_EQUAL(ren_trainer_set_scalar(b->t, REN_SCALAR_LEARNING_RATE, rate), REN_OK);
    CU_ASSERT_EQUAL_FATAL(ren_trainer_step(b->t, &desc, &job), REN_OK);
    net_wait(b->rt, job);
    uint32_t delivered = 0;
    while (delivered == 0) {
        CU_ASSERT_EQUAL_FATAL(ren_pump(b->rt, 0, 0, 0, &delivered), REN_OK);
    }
    return (double)loss;
}

static void check_param(bench *b, const char *subject_name, const char *name, size_t bytes)
{
    static float before[8192], after[8192], moved[8192];
    size_t count = bytes / sizeof(float);
    unsigned long long state = count;
    CU_ASSERT_EQUAL(ren_param_get(b->n.model, name, before, bytes), REN_OK);
    size_t total;
    float *all = net_params(&b->n, &total);
    (void)step(b, 1.0f);
    CU_ASSERT_EQUAL(ren_param_get(b->n.model, name, after, bytes), REN_OK);
    CU_ASSERT_EQUAL(net_restore(&b->n, all, total), REN_OK);
    double error = 0.0, size = 0.0;
    for (uint32_t k = 0; k < SAMPLES; k++) {
        size_t i = (size_t)(ren_test_random(&state) % count);
        double slope = 0.0;
        for (int side = -1; side <= 1; side += 2) {
            memcpy(moved, before, bytes);
            moved[i] += (float)side * NUDGE;
            CU_ASSERT_EQUAL(ren_param_set(b->n.model, name, moved, bytes), REN_OK);
            slope += side * step(b, 0.0f) / (2.0 * (double)NUDGE);
        }
        double gradient = (double)before[i] - (double)after[i];
        error += (gradient - slope) * (gradient - slope);
        size += slope * slope;
        CU_ASSERT_EQUAL(ren_param_set(b->n.model, name, before, bytes), REN_OK);
    }
    error = sqrt(error);
    size = sqrt(size);
    if (!(error <= 2e-3 * size + 4e-4)) {
        (void)fprintf(stderr, "%s: %s: gradients %g apart, of size %g\n", subject_name, name, error,
                      size);
        CU_FAIL("a gradient is wrong");
    }
    free(all);
}

static void check_subject(const subject *s)
{
    static bench b;
    memset(&b, 0, sizeof b);
    build(&b, s);
    for (uint32_t i = 0; i < ren_param_count(b.n.model); i++) {
        const char *name = ren_param_name(b.n.model, i);
        if (!strstr(name, ".running_")) {
            check_param(&b, s->name, name, net_param_bytes(&b.n, i));
        }
    }
    ren_trainer_destroy(b.t);
    ren_model_destroy(b.n.model);
    ren_test_shutdown(b.rt);
}

static void check_all(const subject *subjects, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        check_subject(&subjects[i]);
    }
}

static void test_gradients_of_losses(void)
{
    static const subject subjects[] = {{"cross entropy", plain, HEAD_CROSS_ENTROPY},
                                       {"smoothed", plain, HEAD_SMOOTHED},
                                       {"mse", plain, HEAD_MSE},
                                       {"huber", plain, HEAD_HUBER}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

static void test_gradients_of_activations(void)
{
    static const subject subjects[] = {
        {"relu", relu, HEAD_MSE},           {"leaky relu", leaky, HEAD_MSE},
        {"tanh", tanh_body, HEAD_MSE},      {"sigmoid", sigmoid, HEAD_CROSS_ENTROPY},
        {"silu", silu, HEAD_CROSS_ENTROPY}, {"gelu erf", gelu_erf, HEAD_MSE},
        {"gelu tanh", gelu_tanh, HEAD_MSE}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

static void test_gradients_of_windows(void)
{
    static const subject subjects[] = {{"strided, grouped", conv_strided, HEAD_CROSS_ENTROPY},
                                       {"dilated", conv_dilated, HEAD_CROSS_ENTROPY},
                                       {"max pool", max_pool, HEAD_MSE},
                                       {"average pool", avg_pool, HEAD_MSE}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

static void test_gradients_of_batch_norm(void)
{
    static const subject subjects[] = {{"batch norm", batch_norm, HEAD_MSE}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

static void test_gradients_of_shared_tensors(void)
{
    static const subject subjects[] = {{"diamond", diamond, HEAD_MSE},
                                       {"doubled", doubled, HEAD_CROSS_ENTROPY}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_gradients_of_losses", test_gradients_of_losses},
        {"test_gradients_of_activations", test_gradients_of_activations},
        {"test_gradients_of_windows", test_gradients_of_windows},
        {"test_gradients_of_batch_norm", test_gradients_of_batch_norm},
        {"test_gradients_of_shared_tensors", test_gradients_of_shared_tensors},
    };
    return ren_test_main(argc, argv, "golden/test_gradients", cases, REN_TEST_COUNT(cases), 200);
}
