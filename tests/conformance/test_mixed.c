/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_mixed.c - steps that the device skips, and mixed precision.
 *
 * Bad gradients come from inputs that hold a NaN or an infinity. A skipped step must have changed
 * nothing: a run with bad steps in it equals, bit for bit, a run without them.
 */
#include "../golden/nets.h"
#include "../support/runtime.h"
#include "../support/test.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS  4u
#define ROW   256u /* 8 x 8 x 4 */
#define STEPS 12u

typedef struct training {
    ren_runtime *rt;
    net n;
    ren_trainer *t;
} training;

static void begin(training *r, const ren_trainer_config *how, uint32_t streams, uint32_t graphs)
{
    ren_runtime_config config = ren_test_config();
    ren_error err;
    memset(r, 0, sizeof *r);
    memset(&err, 0, sizeof err);
    config.streams = streams;
    config.disable_graphs = !graphs;
    r->rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->rt);
    net_build(&r->n, r->rt, NET_TINYRES, ROWS, 5);
    if (ren_trainer_create(r->n.model, r->n.loss, how, &r->t, &err) != REN_OK) {
        (void)fprintf(stderr, "ren_trainer_create: %s\n", err.text);
        CU_FAIL_FATAL("the trainer could not be made");
    }
}

static void end(training *r)
{
    ren_trainer_destroy(r->t);
    ren_model_destroy(r->n.model);
    ren_test_shutdown(r->rt);
}

/* Batch number `stamp`; with `bad`, one element is that value. */
static net_result step(training *r, uint64_t stamp, float bad, uint32_t where)
{
    float x[ROWS * ROW];
    int32_t labels[ROWS];
    unsigned long long seed = stamp;
    net_result result;
    for (uint32_t i = 0; i < ROWS * ROW; i++) {
        x[i] = (float)(ren_test_random(&seed) % 2001u) / 1000.0f - 1.0f;
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        labels[i] = (int32_t)(ren_test_random(&seed) % 10u);
    }
    if (bad != 0.0f) {
        x[where % (ROWS * ROW)] = bad;
    }
    net_step(&r->n, r->rt, r->t, x, labels, &result);
    CU_ASSERT_EQUAL(result.status, REN_OK);
    return result;
}

static void check_equal(training *a, training *b)
{
    size_t count_a, count_b;
    float *of_a = net_params(&a->n, &count_a);
    float *of_b = net_params(&b->n, &count_b);
    CU_ASSERT_EQUAL_FATAL(count_a, count_b);
    CU_ASSERT_EQUAL(memcmp(of_a, of_b, count_a * sizeof(float)), 0);
    free(of_a);
    free(of_b);
}

/* Failure rows 42 and 43: bad gradients at steps 3 and 7, whatever element holds them, leave
 * weights, moments, averages, running statistics and Adam's count as they were; the completion says
 * so. Fails when any of them moves, or a later step sees another step count. */
static void check_skip(ren_optimizer optimizer, uint32_t streams, uint32_t graphs)
{
    ren_trainer_config how = ren_trainer_config_default();
    training with, without;
    how.optimizer = optimizer;
    how.momentum = 0.9f;
    how.weight_decay = 0.01f;
    how.clip_norm = 0.5f;
    how.ema_decay = 0.9f;
    begin(&with, &how, streams, graphs);
    begin(&without, &how, streams, graphs);
    for (uint32_t s = 1; s <= STEPS; s++) {
        uint32_t is_bad = s == 3 || s == 7;
        net_result r = step(&with, s,
                            !is_bad  ? 0.0f
                            : s == 3 ? NAN
                                     : INFINITY,
                            s == 3 ? 0 : ROWS * ROW - 1);
        CU_ASSERT_EQUAL(r.step.skipped, is_bad);
        if (!is_bad) {
            net_result other = step(&without, s, 0.0f, 0);
            CU_ASSERT_EQUAL(other.step.skipped, 0);
            CU_ASSERT_EQUAL(memcmp(&r.step.loss, &other.step.loss, sizeof(float)), 0);
            CU_ASSERT_EQUAL(memcmp(&r.step.grad_norm, &other.step.grad_norm, sizeof(float)), 0);
        }
        check_equal(&with, &without);
    }
    end(&with);
    end(&without);
}

static void test_skip_adam(void)
{
    check_skip(REN_OPTIMIZER_ADAM, 5, 0);
    check_skip(REN_OPTIMIZER_ADAM, 1, 0);
}

static void test_skip_graph(void)
{
    check_skip(REN_OPTIMIZER_ADAM, 5, 1);
}

static void test_skip_sgd(void)
{
    check_skip(REN_OPTIMIZER_SGD, 5, 1);
}

static void test_skip_lars(void)
{
    check_skip(REN_OPTIMIZER_LARS, 5, 1);
}

/* A bad step spoils its whole window and no other, running statistics included. */
static void test_skip_window(void)
{
    ren_trainer_config how = ren_trainer_config_default();
    training with, without;
    how.optimizer = REN_OPTIMIZER_ADAM;
    how.clip_norm = 0.5f;
    how.accumulate_steps = 3;
    begin(&with, &how, 5, 1);
    begin(&without, &how, 5, 1);
    for (uint32_t s = 0; s < 6 * 3; s++) {
        uint32_t spoilt = s / 3 == 1 || s / 3 == 4;
        net_result r = step(&with, s + 1, s == 4 || s == 12 ? NAN : 0.0f, s);
        CU_ASSERT_EQUAL(r.step.skipped, spoilt && s % 3 == 2);
        if (!spoilt) {
            (void)step(&without, s + 1, 0.0f, 0);
        }
    }
    check_equal(&with, &without);
    end(&with);
    end(&without);
}

/* ------------------------------------------------------------------ mixed precision */

/* A golden training in mixed precision: each loss near that of f32, and parameters, all together,
 * that end near its.
 * Fails when a tensor is stored in one dtype and read in another, a scale is not taken out again,
 * or weights are kept in 16 bits. */
static void check_training(const char *name, net_kind kind, ren_precision precision,
                           double loss_tolerance, double final_tolerance)
{
    golden_case *g = golden_open(name);
    ren_trainer_config how = ren_trainer_config_default();
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_trainer *t = NULL;
    int64_t dims[GOLDEN_MAX_RANK];
    size_t steps;
    net n;
    const float *losses = golden_tensor(g, "losses", NULL, NULL, &steps);
    const float *x = golden_tensor(g, "x", dims, NULL, NULL);
    const int32_t *labels = golden_tensor_i32(g, "labels", NULL, NULL, NULL);
    net_build(&n, rt, kind, (uint32_t)dims[1], 1);
    net_load(&n, g, "init.");
    how.learning_rate = (float)golden_number(g, "lr", 0.0);
    how.momentum = (float)golden_number(g, "momentum", 0.0);
    how.weight_decay = (float)golden_number(g, "weight_decay", 0.0);
    if (golden_number(g, "momentum", -1.0) < 0.0) {
        how.optimizer = REN_OPTIMIZER_ADAM;
    }
    how.precision = precision;
    how.loss_scale = 1024.0f;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(n.model, n.loss, &how, &t, NULL), REN_OK);
    for (size_t i = 0; i < steps; i++) {
        net_result r;
        size_t b = i % (size_t)dims[0];
        net_step(&n, rt, t, x + b * n.row * n.batch, labels + b * n.batch, &r);
        CU_ASSERT_EQUAL(r.status, REN_OK);
        CU_ASSERT_EQUAL(r.step.skipped, 0);
        CU_ASSERT_EQUAL(r.step.loss_scale, precision == REN_PRECISION_MIXED_F16 ? 1024.0f : 1.0f);
        double error = fabs((double)r.step.loss - (double)losses[i]) / fabs((double)losses[i]);
        if (!(error <= loss_tolerance)) {
            (void)fprintf(stderr, "%s: step %zu: loss %g, not %g\n", name, i, (double)r.step.loss,
                          (double)losses[i]);
        }
        CU_ASSERT(error <= loss_tolerance);
    }
    double apart = 0.0;
    double whole = 0.0;
    for (uint32_t i = 0; i < ren_param_count(n.model); i++) {
        char final[128];
        size_t count;
        (void)snprintf(final, sizeof final, "final.%s", ren_param_name(n.model, i));
        const float *want = golden_tensor(g, final, NULL, NULL, &count);
        float *got = malloc(count * sizeof(float));
        CU_ASSERT_PTR_NOT_NULL_FATAL(got);
        CU_ASSERT_EQUAL(
            ren_param_get(n.model, ren_param_name(n.model, i), got, count * sizeof(float)), REN_OK);
        for (size_t k = 0; k < count; k++) {
            apart += pow((double)got[k] - (double)want[k], 2.0);
            whole += pow((double)want[k], 2.0);
        }
        free(got);
    }
    if (!(sqrt(apart / whole) <= final_tolerance)) {
        (void)fprintf(stderr, "%s: the parameters end %g apart\n", name, sqrt(apart / whole));
    }
    CU_ASSERT(sqrt(apart / whole) <= final_tolerance);
    ren_trainer_destroy(t);
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
    golden_close(g);
}

static void test_trainings_f16(void)
{
    check_training("train_mlp_sgd", NET_MLP, REN_PRECISION_MIXED_F16, 1e-2, 1e-2);
    check_training("train_lenet_sgd", NET_LENET, REN_PRECISION_MIXED_F16, 1e-2, 1e-2);
    check_training("train_tinyres_sgd", NET_TINYRES, REN_PRECISION_MIXED_F16, 1e-2, 3e-2);
    check_training("train_branch_adam", NET_BRANCH, REN_PRECISION_MIXED_F16, 1e-2, 1e-2);
}

static void test_trainings_bf16(void)
{
    check_training("train_mlp_sgd", NET_MLP, REN_PRECISION_MIXED_BF16, 2e-2, 2e-2);
    check_training("train_lenet_sgd", NET_LENET, REN_PRECISION_MIXED_BF16, 2e-2, 2e-2);
    check_training("train_tinyres_sgd", NET_TINYRES, REN_PRECISION_MIXED_BF16, 5e-2, 5e-2);
}

/* Bad steps in mixed precision leave everything as it was, too; with f16 the scale halves, so the
 * run without them is given the scales that the other went on with. A power of two changes no bit
 * of a gradient that is neither lost below nor above. */
static void check_mixed_skip(ren_precision precision)
{
    ren_trainer_config how = ren_trainer_config_default();
    training with, without;
    how.optimizer = REN_OPTIMIZER_ADAM;
    how.precision = precision;
    how.loss_scale = 65536.0f;
    how.ema_decay = 0.9f;
    begin(&with, &how, 5, 1);
    how.loss_scale = 16384.0f;
    begin(&without, &how, 5, 1);
    (void)step(&with, 1, NAN, 0);
    (void)step(&with, 2, -INFINITY, ROWS * ROW - 1);
    check_equal(&with, &without);
    for (uint32_t s = 0; s < 8; s++) {
        net_result a = step(&with, 3 + s, 0.0f, 0);
        net_result b = step(&without, 3 + s, 0.0f, 0);
        CU_ASSERT_EQUAL(a.step.skipped, 0);
        CU_ASSERT_EQUAL(a.step.loss_scale, b.step.loss_scale);
        CU_ASSERT(a.step.grad_norm > 0.0f);
        check_equal(&with, &without);
    }
    end(&with);
    end(&without);
}

static void test_mixed_skip(void)
{
    check_mixed_skip(REN_PRECISION_MIXED_F16);
    check_mixed_skip(REN_PRECISION_MIXED_BF16);
}

/* ------------------------------------------------------------------ the scale */

/* y = w x, one unit, under a Huber loss whose target is far below: dL/dw = x. With x of few digits
 * every gradient is exact in f16, whatever the scale. */
#define WIDTH 8

typedef struct line {
    ren_runtime *rt;
    ren_model *m;
    ren_trainer *t;
} line;

static void begin_line(line *l, ren_precision precision, float scale)
{
    const int64_t row[] = {1, WIDTH};
    const int64_t one[] = {1, 1};
    ren_trainer_config how = ren_trainer_config_default();
    ren_linear_options o = ren_linear_options_default();
    o.units = 1;
    o.disable_bias = 1;
    l->rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(l->rt);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(l->rt, NULL, &l->m, NULL), REN_OK);
    ren_tensor y = ren_linear(l->m, "l", ren_input(l->m, "x", REN_F32, row, 2), &o);
    ren_tensor loss = ren_huber(l->m, "loss", y, ren_input(l->m, "t", REN_F32, one, 2), NULL);
    how.learning_rate = 0.001f;
    how.momentum = 0.5f;
    how.precision = precision;
    how.loss_scale = scale;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(l->m, loss, &how, &l->t, NULL), REN_OK);
}

static void end_line(line *l)
{
    ren_trainer_destroy(l->t);
    ren_model_destroy(l->m);
    ren_test_shutdown(l->rt);
}

static void on_line(const ren_completion *c, void *user)
{
    net_result *r = user;
    r->status = c->status;
    if (c->step) {
        r->step = *c->step;
    }
    __atomic_fetch_add(&r->calls, 1, __ATOMIC_RELEASE);
}

static net_result line_step(line *l, uint32_t stamp, float bad)
{
    static const float far_below = -1e6f;
    float x[WIDTH];
    ren_binding bindings[2] = {{"x", x, sizeof x}, {"t", &far_below, sizeof far_below}};
    ren_step_desc desc = ren_step_desc_default();
    net_result r;
    memset(&r, 0, sizeof r);
    for (uint32_t i = 0; i < WIDTH; i++) {
        x[i] = (float)((stamp * 7u + i * 3u) % 17u) - 8.0f;
    }
    x[stamp % WIDTH] += bad;
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.done = on_line;
    desc.user = &r;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_step(l->t, &desc, NULL), REN_OK);
    while (__atomic_load_n(&r.calls, __ATOMIC_ACQUIRE) == 0) {
        sched_yield();
    }
    CU_ASSERT_EQUAL(r.status, REN_OK);
    return r;
}

/* The scale doubles after 2,000 good steps in a row, counted anew after a bad one, and the step at
 * which it does is unscaled with the scale that its gradients had: the weights stay those of f32,
 * bit for bit. */
static void test_scale_grows(void)
{
    enum {
        BAD = 100
    };
    line a, b;
    float of_a[WIDTH], of_b[WIDTH];
    begin_line(&a, REN_PRECISION_MIXED_F16, 1024.0f);
    begin_line(&b, REN_PRECISION_F32, 1024.0f);
    for (uint32_t s = 1; s <= BAD + 2010; s++) {
        net_result r = line_step(&a, s, s == BAD ? INFINITY : 0.0f);
        CU_ASSERT_EQUAL(r.step.skipped, s == BAD);
        CU_ASSERT_EQUAL(r.step.loss_scale, s < BAD || s >= BAD + 2000 ? 1024.0f : 512.0f);
        if (s != BAD) {
            net_result f32 = line_step(&b, s, 0.0f);
            CU_ASSERT_EQUAL(f32.step.loss_scale, 1.0f);
        }
    }
    CU_ASSERT_EQUAL(ren_param_get(a.m, "l.weight", of_a, sizeof of_a), REN_OK);
    CU_ASSERT_EQUAL(ren_param_get(b.m, "l.weight", of_b, sizeof of_b), REN_OK);
    CU_ASSERT_EQUAL(memcmp(of_a, of_b, sizeof of_a), 0);
    end_line(&a);
    end_line(&b);
}

/* Failure row 44: 300 overflows in a row end at the floor of 1, are all reported, and leave a
 * trainer that works; the first gradients that fit are taken at once. And a scale that is too large
 * finds its way down by itself. */
static void test_scale_falls(void)
{
    line l;
    begin_line(&l, REN_PRECISION_MIXED_F16, 65536.0f);
    for (uint32_t s = 1; s <= 300; s++) {
        net_result r = line_step(&l, s, NAN);
        CU_ASSERT_EQUAL(r.step.skipped, 1);
        CU_ASSERT_EQUAL(r.step.loss_scale, s < 16 ? ldexpf(1.0f, 16 - (int)s) : 1.0f);
    }
    CU_ASSERT_EQUAL(line_step(&l, 301, 0.0f).step.skipped, 0);
    end_line(&l);
    begin_line(&l, REN_PRECISION_MIXED_F16, 16777216.0f);
    for (uint32_t s = 1; s <= 20; s++) {
        /* dL/dy is the scale itself: 2^15 is the first that f16 holds. */
        CU_ASSERT_EQUAL(line_step(&l, s, 0.0f).step.skipped, s <= 9);
    }
    end_line(&l);
}

/* Scales that are none are refused. */
static void test_scale_refused(void)
{
    static const float bad[] = {0.0f, 0.5f, -1.0f, 33554432.0f};
    for (size_t i = 0; i < REN_TEST_COUNT(bad); i++) {
        ren_trainer_config how = ren_trainer_config_default();
        ren_runtime *rt = ren_test_runtime(NULL);
        ren_trainer *t = NULL;
        ren_error err;
        net n;
        how.precision = REN_PRECISION_MIXED_F16;
        how.loss_scale = bad[i];
        net_build(&n, rt, NET_MLP, 4, 1);
        CU_ASSERT_EQUAL(ren_trainer_create(n.model, n.loss, &how, &t, &err),
                        REN_ERR_INVALID_ARGUMENT);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "loss_scale"));
        ren_model_destroy(n.model);
        ren_test_shutdown(rt);
    }
}

/* Weights written between two steps are those of the next one. Fails when their 16-bit copies stay
 * behind. */
static void test_mixed_sees_writes(void)
{
    ren_trainer_config how = ren_trainer_config_default();
    training a;
    size_t count;
    how.precision = REN_PRECISION_MIXED_F16;
    how.loss_scale = 1024.0f;
    begin(&a, &how, 5, 1);
    float *params = net_params(&a.n, &count);
    float first = step(&a, 1, 0.0f, 0).step.loss;
    for (uint32_t s = 0; s < 8; s++) {
        CU_ASSERT_NOT_EQUAL(step(&a, 1, 0.0f, 0).step.loss, first);
    }
    CU_ASSERT_EQUAL(net_restore(&a.n, params, count), REN_OK);
    CU_ASSERT_EQUAL(step(&a, 1, 0.0f, 0).step.loss, first);
    free(params);
    end(&a);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_skip_adam", test_skip_adam},
        {"test_skip_graph", test_skip_graph},
        {"test_skip_sgd", test_skip_sgd},
        {"test_skip_lars", test_skip_lars},
        {"test_skip_window", test_skip_window},
        {"test_trainings_f16", test_trainings_f16},
        {"test_trainings_bf16", test_trainings_bf16},
        {"test_mixed_skip", test_mixed_skip},
        {"test_mixed_sees_writes", test_mixed_sees_writes},
        {"test_scale_grows", test_scale_grows},
        {"test_scale_falls", test_scale_falls},
        {"test_scale_refused", test_scale_refused},
    };
    return ren_test_main(argc, argv, "conformance/test_mixed", cases, REN_TEST_COUNT(cases), 120);
}
