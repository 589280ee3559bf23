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
    HEAD_HUBER,
    HEAD_SUM /* of cross entropy, mean squares, and a Huber loss on a head of its own */
} head;

typedef struct subject {
    const char *name;
    ren_tensor (*body)(ren_model *m, ren_tensor x); /* between two layers with parameters */
    head loss;
    double kinks; /* further error that differences across a ReLU's corner may show, relative */
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

static ren_tensor batch_norm_relu(ren_model *m, ren_tensor x)
{
    return ren_relu(m, "relu", ren_batch_norm(m, "body", x, NULL));
}

/* A norm on either side of a sum. */
static ren_tensor residual(ren_model *m, ren_tensor x)
{
    ren_tensor h = ren_batch_norm(m, "body1", conv(m, "inner", x, 4, 1, 1, 1), NULL);
    h = ren_relu(m, "relu1", ren_add(m, "sum1", h, x));
    ren_tensor n = ren_batch_norm(m, "body2", h, NULL);
    return ren_relu(m, "relu2", ren_add(m, "sum2", ren_batch_norm(m, "body3", x, NULL), n));
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
    ren_tensor trunk = s->body(m, conv(m, "first", x, 4, 1, 1, 1));
    o.units = 5;
    ren_tensor h = ren_linear(m, "last", ren_flatten(m, "flat", trunk), &o);
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
        if (s->loss == HEAD_SUM) {
            ren_tensor goal = ren_input(m, "goal", REN_F32, goal_dims, 2);
            ren_tensor other = ren_linear(m, "other", ren_flatten(m, "flat2", trunk), &o);
            ren_tensor more = ren_huber(m, "more", other, goal, &huber);
            b->n.loss = ren_add(m, "losses", ren_mse(m, "squares", h, goal), b->n.loss);
            b->n.loss = ren_add(m, "all", more, b->n.loss);
        }
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

/* The losses of a sum read x, labels and goal; one by itself leaves some out, a bit each. */
static double step_with(bench *b, float rate, uint32_t left_out)
{
    uint32_t regression = b->loss == HEAD_MSE || b->loss == HEAD_HUBER;
    ren_binding bindings[3] = {{"x", b->x, sizeof b->x},
                               {"labels", b->labels, sizeof b->labels},
                               {"goal", b->goal, sizeof b->goal}};
    ren_step_desc desc = ren_step_desc_default();
    ren_job job;
    float loss = NAN;
    if (regression) {
        bindings[1].data = b->goal;
        bindings[1].bytes = sizeof b->goal;
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (!(left_out >> i & 1u)) {
            bindings[desc.binding_count++] = bindings[i];
        }
    }
    desc.bindings = bindings;
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

static double step(bench *b, float rate)
{
    return step_with(b, rate, b->loss == HEAD_SUM ? 0u : 1u << 2);
}

static void check_param(bench *b, const subject *s, const char *name, size_t bytes)
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
    if (!(error <= (2e-3 + s->kinks) * size + 4e-4)) {
        (void)fprintf(stderr, "%s: %s: gradients %g apart, of size %g\n", s->name, name, error,
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
            check_param(&b, s, name, net_param_bytes(&b.n, i));
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
    static const subject subjects[] = {{"cross entropy", plain, HEAD_CROSS_ENTROPY, 0.0},
                                       {"smoothed", plain, HEAD_SMOOTHED, 0.0},
                                       {"mse", plain, HEAD_MSE, 0.0},
                                       {"huber", plain, HEAD_HUBER, 0.0},
                                       {"sum", plain, HEAD_SUM, 0.0},
                                       {"sum behind a norm", batch_norm, HEAD_SUM, 0.0}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

static void test_gradients_of_activations(void)
{
    static const subject subjects[] = {
        {"relu", relu, HEAD_MSE, 0.0},           {"leaky relu", leaky, HEAD_MSE, 0.0},
        {"tanh", tanh_body, HEAD_MSE, 0.0},      {"sigmoid", sigmoid, HEAD_CROSS_ENTROPY, 0.0},
        {"silu", silu, HEAD_CROSS_ENTROPY, 0.0}, {"gelu erf", gelu_erf, HEAD_MSE, 0.0},
        {"gelu tanh", gelu_tanh, HEAD_MSE, 0.0}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

static void test_gradients_of_windows(void)
{
    static const subject subjects[] = {{"strided, grouped", conv_strided, HEAD_CROSS_ENTROPY, 0.0},
                                       {"dilated", conv_dilated, HEAD_CROSS_ENTROPY, 0.0},
                                       {"max pool", max_pool, HEAD_MSE, 0.0},
                                       {"average pool", avg_pool, HEAD_MSE, 0.0}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

static void test_gradients_of_batch_norm(void)
{
    static const subject subjects[] = {{"batch norm", batch_norm, HEAD_MSE, 0.0},
                                       {"batch norm, relu", batch_norm_relu, HEAD_MSE, 2e-2},
                                       {"residual", residual, HEAD_CROSS_ENTROPY, 2e-2}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

static void test_gradients_of_shared_tensors(void)
{
    static const subject subjects[] = {{"diamond", diamond, HEAD_MSE, 0.0},
                                       {"doubled", doubled, HEAD_CROSS_ENTROPY, 0.0}};
    check_all(subjects, REN_TEST_COUNT(subjects));
}

/* ------------------------------------------------------------------ sums of losses */

/* Which losses of one trunk with three heads are trained for. */
enum {
    CLASSES = 1,
    POSE = 2,
    MASK = 4,
    EVERY_LOSS = 7
};

/* A loss joined to those so far. */
static ren_tensor joined(ren_model *m, const char *name, ren_tensor sum, ren_tensor loss)
{
    return sum.index ? ren_add(m, name, loss, sum) : loss;
}

static void build_heads(bench *b, uint32_t which, ren_precision precision)
{
    int64_t dims[4] = {ROWS, SIDE, SIDE, PLANES};
    int64_t goal_dims[2] = {ROWS, 5};
    ren_linear_options o = ren_linear_options_default();
    ren_trainer_config how = ren_trainer_config_default();
    ren_model_config config = ren_model_config_default();
    ren_tensor loss = {0};
    unsigned long long state = 77;
    memset(b, 0, sizeof *b);
    b->rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(b->rt);
    b->loss = HEAD_SUM;
    config.seed = 4;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(b->rt, &config, &b->n.model, NULL), REN_OK);
    ren_model *m = b->n.model;
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 4);
    ren_tensor labels = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor goal = ren_input(m, "goal", REN_F32, goal_dims, 2);
    ren_tensor trunk = batch_norm_relu(m, conv(m, "first", x, 4, 1, 1, 1));
    trunk = ren_flatten(m, "flat", trunk);
    o.units = 5;
    ren_tensor classes = ren_linear(m, "classes", trunk, &o);
    ren_tensor pose = ren_linear(m, "pose", trunk, &o);
    ren_tensor mask = ren_sigmoid(m, "sigmoid", ren_linear(m, "mask", trunk, &o));
    if (which & CLASSES) {
        loss = ren_softmax_cross_entropy(m, "entropy", classes, labels, NULL);
    }
    if (which & POSE) {
        loss = joined(m, "with pose", loss, ren_huber(m, "huber", pose, goal, NULL));
    }
    if (which & MASK) {
        loss = joined(m, "with mask", loss, ren_mse(m, "mse", mask, goal));
    }
    how.momentum = 0.0f;
    how.precision = precision;
    how.loss_scale = 512.0f;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(m, loss, &how, &b->t, NULL), REN_OK);
    for (uint32_t i = 0; i < INPUT; i++) {
        b->x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (uint32_t i = 0; i < ROWS * 5; i++) {
        b->goal[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
        b->labels[i % ROWS] = (int32_t)(ren_test_random(&state) % 5u);
    }
}

/* Running statistics move whatever is trained for. */
static void clear_statistics(net *n, float *params)
{
    size_t at = 0;
    for (uint32_t i = 0; i < ren_param_count(n->model); i++) {
        size_t bytes = net_param_bytes(n, i);
        if (strstr(ren_param_name(n->model, i), ".running_")) {
            memset(params + at, 0, bytes);
        }
        at += bytes / sizeof(float);
    }
}

/* The gradient of all parameters, and the loss. */
static float *gradient_of(uint32_t which, ren_precision precision, size_t *count, double *loss)
{
    static bench b;
    build_heads(&b, which, precision);
    float *before = net_params(&b.n, count);
    *loss = step_with(&b, 1.0f,
                      (which & CLASSES ? 0u : 1u << 1) | (which & (POSE | MASK) ? 0u : 1u << 2));
    float *after = net_params(&b.n, count);
    for (size_t i = 0; i < *count; i++) {
        before[i] -= after[i];
    }
    clear_statistics(&b.n, before);
    free(after);
    ren_trainer_destroy(b.t);
    ren_model_destroy(b.n.model);
    ren_test_shutdown(b.rt);
    return before;
}

/* What a sum of losses does to the parameters is what the losses do one by one, added up: trunk and
 * all heads. Fails when a summand's gradient is left out, counted twice or scaled, or does not
 * reach the trunk that all share. */
static void check_sum(ren_precision precision, double tolerance)
{
    size_t count;
    double loss, part, losses = 0.0, apart = 0.0, size = 0.0;
    float *whole = gradient_of(EVERY_LOSS, precision, &count, &loss);
    double *sum = calloc(count, sizeof *sum);
    CU_ASSERT_PTR_NOT_NULL_FATAL(sum);
    for (uint32_t which = CLASSES; which <= MASK; which *= 2) {
        float *one = gradient_of(which, precision, &count, &part);
        losses += part;
        for (size_t i = 0; i < count; i++) {
            sum[i] += (double)one[i];
        }
        free(one);
    }
    for (size_t i = 0; i < count; i++) {
        apart += pow((double)whole[i] - sum[i], 2.0);
        size += pow(sum[i], 2.0);
    }
    CU_ASSERT(fabs(loss - losses) <= tolerance * losses);
    if (!(sqrt(apart / size) <= tolerance)) {
        (void)fprintf(stderr, "precision %d: gradients %g apart\n", (int)precision,
                      sqrt(apart / size));
        CU_FAIL("the gradient of a sum is not the sum of the gradients");
    }
    free(whole);
    free(sum);
}

static void test_gradients_of_sums(void)
{
    check_sum(REN_PRECISION_F32, 1e-5);
    check_sum(REN_PRECISION_MIXED_F16, 5e-3);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_gradients_of_losses", test_gradients_of_losses},
        {"test_gradients_of_activations", test_gradients_of_activations},
        {"test_gradients_of_windows", test_gradients_of_windows},
        {"test_gradients_of_batch_norm", test_gradients_of_batch_norm},
        {"test_gradients_of_shared_tensors", test_gradients_of_shared_tensors},
        {"test_gradients_of_sums", test_gradients_of_sums},
    };
    return ren_test_main(argc, argv, "golden/test_gradients", cases, REN_TEST_COUNT(cases), 200);
}
