/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_train.c - losses, dropout, gradient check and optimizers of the CUDA device.
 *
 * Proves    each equals a plain float64 computation within 2e-5 and the CPU device; dropout's mask
 *           is the CPU device's bit for bit, follows step and seed, and is the same in the backward
 *           pass; a step with an inf or NaN anywhere changes nothing; scalars are read from the
 *           control block at run time.
 * Fails     when a tail element is not looked at, a scalar is frozen into an operation, or the step
 *           count moves on a skipped step.
 */
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../support/test.h"
#include "reference.h"
#include "values.h"

static ren__tensor_desc flat(ren_dtype dtype, int64_t n)
{
    return test_tensor(dtype, 1, n, 0, 0, 0);
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

/* Control and state travel as bytes. */
static ren__tensor_desc bytes_of(size_t bytes)
{
    return flat(REN_U8, (int64_t)bytes);
}

static ren__control control_default(void)
{
    ren__control c;
    memset(&c, 0, sizeof c);
    c.step = 1;
    c.seed = 1234;
    c.learning_rate = 0.03f;
    c.momentum = 0.9f;
    c.beta1 = 0.9f;
    c.beta2 = 0.99f;
    c.eps = 1e-6f;
    c.weight_decay = 0.01f;
    c.lars_eta = 0.02f;
    c.ema_decay = 0.95f;
    c.grad_divisor = 1.0f;
    return c;
}

/* ------------------------------------------------------------------ losses */

static void xent_case(int64_t rows, int64_t classes, float smoothing, float spread)
{
    float *logits = values_random((uint64_t)(rows * classes));
    int32_t *labels = values_take((uint64_t)rows * sizeof *labels);
    float *prob_f32 = values_take((uint64_t)(rows * classes) * sizeof *prob_f32);
    double *prob = doubles(rows * classes);
    double *dx = doubles(rows * classes);
    double loss;
    ren__control c = control_default();
    ren__op_desc forward = test_desc(REN__OP_XENT_FWD);
    ren__op_desc backward = test_desc(REN__OP_XENT_BWD);
    for (int64_t i = 0; i < rows * classes; i++) {
        logits[i] *= spread;
    }
    for (int64_t r = 0; r < rows; r++) {
        labels[r] = (int32_t)values_between(0, classes - 1);
    }
    if (rows > 2) { /* labels out of range add nothing */
        labels[0] = -1;
        labels[rows - 1] = (int32_t)classes;
    }
    loss = ref_xent(logits, labels, (double)smoothing, prob, rows, classes);
    for (int64_t i = 0; i < rows * classes; i++) {
        prob_f32[i] = (float)prob[i];
    }
    ref_xent_backward(prob_f32, labels, (double)smoothing, dx, rows, classes);
    forward.alpha = backward.alpha = smoothing;
    forward.operand[0] = forward.operand[3] = test_tensor(REN_F32, 2, rows, classes, 0, 0);
    forward.operand[1] = backward.operand[1] = flat(REN_I32, rows);
    forward.operand[2] = flat(REN_F32, 1);
    backward.operand[0] = backward.operand[3] = forward.operand[0];
    backward.operand[2] = bytes_of(sizeof c);
    {
        test_operand o[REN__OPERANDS] = {in(logits), in(labels)};
        values_check("cross entropy", &forward, o, (expected[]){{2, &loss}, {3, prob}, {0, NULL}},
                     0, TEST_TOLERANCE);
    }
    {
        test_operand o[REN__OPERANDS] = {in(prob_f32), in(labels), in(&c)};
        values_check("cross entropy data", &backward, o, (expected[]){{3, dx}, {0, NULL}}, 0,
                     TEST_TOLERANCE);
    }
    values_free();
}

static void test_xent_random_shapes(void)
{
    xent_case(1, 2, 0.0f, 1.0f);
    xent_case(64, 10, 0.0f, 1.0f);
    xent_case(33, 100, 0.1f, 1.0f);
    xent_case(7, 1000, 0.2f, 3.0f);
    xent_case(16, 10, 0.0f, 40.0f); /* confident and hopeless rows */
    for (int i = 0; i < 8 && test_cuda(); i++) {
        xent_case(values_between(1, 70), values_between(1, 70), i & 1 ? 0.1f : 0.0f, 2.0f);
    }
}

static void distance_case(int huber, int64_t n, uint32_t misalign)
{
    float *x = values_random((uint64_t)n);
    float *t = values_random((uint64_t)n);
    double *dx = doubles(n);
    double loss = ref_distance(huber, 0.75, x, t, n);
    ren__control c = control_default();
    ren__op_desc forward = test_desc(huber ? REN__OP_HUBER_FWD : REN__OP_MSE_FWD);
    ren__op_desc backward = test_desc(huber ? REN__OP_HUBER_BWD : REN__OP_MSE_BWD);
    ref_distance_backward(huber, 0.75, x, t, dx, n);
    forward.alpha = backward.alpha = 0.75f;
    forward.operand[0] = forward.operand[1] = flat(REN_F32, n);
    forward.operand[2] = flat(REN_F32, 1);
    backward.operand[0] = backward.operand[1] = backward.operand[3] = flat(REN_F32, n);
    backward.operand[2] = bytes_of(sizeof c);
    {
        test_operand o[REN__OPERANDS] = {in(x), in(t)};
        values_check("distance", &forward, o, (expected[]){{2, &loss}, {0, NULL}}, misalign,
                     TEST_TOLERANCE);
    }
    if (!misalign) {
        test_operand o[REN__OPERANDS] = {in(x), in(t), in(&c)};
        values_check("distance data", &backward, o, (expected[]){{3, dx}, {0, NULL}}, 0,
                     TEST_TOLERANCE);
    }
    values_free();
}

static void test_mse_and_huber_random_sizes(void)
{
    for (int i = 0; i < 10 && test_cuda(); i++) {
        distance_case(i & 1, i < 2 ? 1 : values_between(1, 30000), i > 7 ? 4u : 0u);
    }
}

/* ------------------------------------------------------------------ dropout */

static void run_dropout(test_table *t, ren__op_kind kind, const ren__control *c, const float *x,
                        float *y, int64_t n, uint32_t layer)
{
    ren__op_desc desc = test_desc(kind);
    test_operand o[REN__OPERANDS] = {in(x), in(c), {TEST_OUT, 0, 0, NULL, y}};
    desc.alpha = 0.3f;
    desc.layer = layer;
    desc.operand[0] = desc.operand[2] = flat(REN_F32, n);
    desc.operand[1] = bytes_of(sizeof *c);
    CU_ASSERT_EQUAL(test_run(t, &desc, o, 0), REN_OK);
}

static void test_dropout_mask(void)
{
    enum {
        N = 20001
    };
    test_table *cuda = test_cuda();
    ren__control c = control_default();
    float *x = values_random(N);
    float *y = values_take(N * sizeof(float));
    float *other = values_take(N * sizeof(float));
    int kept = 0;
    if (!cuda) {
        return;
    }
    run_dropout(cuda, REN__OP_DROPOUT_FWD, &c, x, y, N, 3);
    for (int i = 0; i < N; i++) {
        CU_ASSERT_TRUE(y[i] == 0.0f || fabsf(y[i] - x[i] / 0.7f) <= 1e-6f * fabsf(y[i]));
        kept += y[i] != 0.0f;
    }
    /* Four deviations of a binomial count. */
    CU_ASSERT_TRUE(fabs(kept - 0.7 * N) < 4.0 * sqrt(0.7 * 0.3 * N));
    run_dropout(cuda, REN__OP_DROPOUT_BWD, &c, x, other, N, 3);
    CU_ASSERT_EQUAL(memcmp(y, other, N * sizeof(float)), 0);
    if (test_cpu()) {
        run_dropout(test_cpu(), REN__OP_DROPOUT_FWD, &c, x, other, N, 3);
        CU_ASSERT_EQUAL(memcmp(y, other, N * sizeof(float)), 0);
    }
    for (int change = 0; change < 4; change++) { /* layer, step, its high half, seed */
        ren__control d = c;
        d.step += change == 1;
        d.step += change == 2 ? UINT64_C(1) << 32 : 0u;
        d.seed += change == 3 ? UINT64_C(1) << 32 : 0u;
        run_dropout(cuda, REN__OP_DROPOUT_FWD, &d, x, other, N, change == 0 ? 4u : 3u);
        CU_ASSERT_NOT_EQUAL(memcmp(y, other, N * sizeof(float)), 0);
    }
    values_free();
}

/* ------------------------------------------------------------------ check and advance */

static void run_check(test_table *t, const float *g, int64_t n, const ren__control *c,
                      ren__state *state, uint32_t dynamic)
{
    ren__op_desc desc = test_desc(REN__OP_CHECK);
    ren__state before = *state;
    test_operand o[REN__OPERANDS] = {in(g), in(c), {TEST_INOUT, 0, 0, &before, state}};
    desc.dynamic_scale = dynamic;
    desc.operand[0] = flat(REN_F32, n);
    desc.operand[1] = bytes_of(sizeof *c);
    desc.operand[2] = bytes_of(sizeof *state);
    CU_ASSERT_EQUAL(test_run(t, &desc, o, 0), REN_OK);
}

static void run_advance(test_table *t, const ren__control *c, ren__state *state, uint32_t dynamic)
{
    ren__op_desc desc = test_desc(REN__OP_ADVANCE);
    ren__state before = *state;
    test_operand o[REN__OPERANDS] = {in(c), {TEST_INOUT, 0, 0, &before, state}};
    desc.dynamic_scale = dynamic;
    desc.operand[0] = bytes_of(sizeof *c);
    desc.operand[1] = bytes_of(sizeof *state);
    CU_ASSERT_EQUAL(test_run(t, &desc, o, 0), REN_OK);
}

static void test_check_finds_every_position(void)
{
    test_table *cuda = test_cuda();
    ren__control c = control_default();
    c.grad_divisor = 4.0f;
    for (int i = 0; i < 7 && cuda; i++) {
        /* For one block, and for several whose parts the last one joins. */
        int64_t n = i == 0 ? 1 : i % 2 ? values_between(16385, 60000) : values_between(1, 9000);
        float *g = values_random((uint64_t)n);
        const float bad[] = {INFINITY, -INFINITY, NAN};
        int64_t places[] = {0, n - 1, n / 2};
        double sum = 0.0;
        ren__state state;
        memset(&state, 0, sizeof state);
        state.found_inf = 1; /* of the step before */
        for (int64_t k = 0; k < n; k++) {
            sum += (double)g[k] * (double)g[k];
        }
        run_check(cuda, g, n, &c, &state, 0);
        CU_ASSERT_EQUAL(state.found_inf, 0u);
        CU_ASSERT_TRUE(fabs((double)state.grad_norm - sqrt(sum) / 4.0) <= 1e-6 * sqrt(sum));
        for (int k = 0; k < 3; k++) {
            float kept = g[places[k]];
            g[places[k]] = bad[(i + k) % 3];
            run_check(cuda, g, n, &c, &state, 0);
            CU_ASSERT_EQUAL(state.found_inf, 1u);
            g[places[k]] = kept;
        }
        g[n / 2] = 3e38f; /* finite, though its square is not in f32 */
        run_check(cuda, g, n, &c, &state, 0);
        CU_ASSERT_EQUAL(state.found_inf, 0u);
        CU_ASSERT_TRUE(fabsf(state.grad_norm / 0.75e38f - 1.0f) < 1e-5f);
        values_free();
    }
}

/* When many operations have taken the words by which blocks tell who is last, a sum takes a second
 * launch and gives the same bits. Fails if the two add in another order, or if an operation without
 * a word is refused. */
static void test_check_without_a_word(void)
{
    enum {
        MANY = 1100,
        N = 50000
    };
    test_table *t = test_cuda();
    ren__op *ops[MANY] = {NULL};
    ren__control c = control_default();
    ren__state with;
    ren__state without;
    ren__op_desc desc = test_desc(REN__OP_CHECK);
    float *g = values_random(N);
    if (!t) {
        return;
    }
    memset(&with, 0, sizeof with);
    without = with;
    run_check(t, g, N, &c, &with, 0);
    desc.operand[0] = flat(REN_F32, N);
    desc.operand[1] = bytes_of(sizeof c);
    desc.operand[2] = bytes_of(sizeof with);
    for (int i = 0; i < MANY; i++) {
        ren__op_needs needs;
        ren_error err;
        CU_ASSERT_EQUAL(t->api->op_create(t->dev, 0, &desc, &ops[i], &needs, &err), REN_OK);
    }
    run_check(t, g, N, &c, &without, 0);
    CU_ASSERT_EQUAL(memcmp(&with, &without, sizeof with), 0);
    CU_ASSERT_TRUE(with.grad_norm > 0.0f);
    for (int i = 0; i < MANY; i++) {
        t->api->op_destroy(t->dev, ops[i]);
    }
    values_free();
}

static void test_advance_counts_and_scales(void)
{
    test_table *cuda = test_cuda();
    ren__control c = control_default();
    ren__state state;
    memset(&state, 0, sizeof state);
    state.loss_scale = 4.0f;
    if (!cuda) {
        return;
    }
    run_advance(cuda, &c, &state, 1);
    CU_ASSERT_EQUAL(state.applied, 1u);
    CU_ASSERT_EQUAL(state.good_steps, 1u);
    state.found_inf = 1;
    for (int i = 0; i < 5; i++) {
        run_advance(cuda, &c, &state, 1);
    }
    CU_ASSERT_EQUAL(state.applied, 1u);
    CU_ASSERT_EQUAL(state.good_steps, 0u);
    CU_ASSERT_EQUAL(state.skipped_total, 5u);
    CU_ASSERT_EQUAL(state.loss_scale, 1.0f); /* the floor */
    state.found_inf = 0;
    state.good_steps = 1999;
    run_advance(cuda, &c, &state, 1);
    CU_ASSERT_EQUAL(state.loss_scale, 2.0f);
    CU_ASSERT_EQUAL(state.good_steps, 0u);
    run_advance(cuda, &c, &state, 0);
    CU_ASSERT_EQUAL(state.loss_scale, 2.0f);
    CU_ASSERT_EQUAL(state.applied, 3u);
}

/* ------------------------------------------------------------------ optimizers */

typedef struct trained {
    float *p, *first, *second;
} trained;

static void run_update(test_table *t, ren__op_kind kind, const float *g, const ren__control *c,
                       const ren__state *state, trained *w, int64_t n, uint32_t misalign)
{
    ren__op_desc desc = test_desc(kind);
    trained was = *w;
    int adam = kind == REN__OP_ADAM || kind == REN__OP_ADAMW;
    test_operand o[REN__OPERANDS] = {in(g), in(c), in(state)};
    for (uint32_t i = 0; i < 6; i++) {
        desc.operand[i] = i == 1   ? bytes_of(sizeof *c)
                          : i == 2 ? bytes_of(sizeof *state)
                                   : flat(REN_F32, n);
    }
    /* New arrays for the results, since every run starts again from the inputs. */
    w->p = values_take((uint64_t)n * sizeof(float));
    o[3] = (test_operand){TEST_INOUT, 0, 0, was.p, w->p};
    if (was.first) {
        w->first = values_take((uint64_t)n * sizeof(float));
        o[4] = (test_operand){TEST_INOUT, 0, 0, was.first, w->first};
    } else {
        desc.operand[4].rank = 0;
    }
    if (adam) {
        w->second = values_take((uint64_t)n * sizeof(float));
        o[5] = (test_operand){TEST_INOUT, 0, 0, was.second, w->second};
    } else {
        desc.operand[5].rank = 0;
    }
    CU_ASSERT_EQUAL(test_run(t, &desc, o, misalign), REN_OK);
}

static void optimizer_case(ren__op_kind kind, int64_t n, uint32_t nesterov, float clip,
                           int velocity, uint32_t misalign)
{
    ren__control c = control_default();
    trained w = {values_random((uint64_t)n), values_filled((uint64_t)n, 0.0f),
                 values_filled((uint64_t)n, 0.0f)};
    double *p = doubles(n);
    double *first = doubles(n);
    double *second = doubles(n);
    c.nesterov = nesterov;
    c.clip_norm = clip;
    if (!velocity) {
        w.first = NULL;
        c.momentum = 0.0f;
    }
    for (int64_t i = 0; i < n; i++) {
        p[i] = (double)w.p[i];
    }
    for (uint64_t step = 1; step <= 5; step++) {
        float *g = values_random((uint64_t)n);
        ren__state state;
        double norm = 0.0;
        memset(&state, 0, sizeof state);
        c.learning_rate = 0.03f / (float)step; /* a new rate each step */
        c.grad_divisor = step == 3 ? 2.0f : 1.0f;
        for (int64_t i = 0; i < n; i++) {
            norm += (double)g[i] * (double)g[i];
        }
        norm = sqrt(norm) / (double)c.grad_divisor;
        state.applied = step;
        state.grad_norm = (float)norm;
        run_update(test_cuda(), kind, g, &c, &state, &w, n, misalign);
        ref_update(kind, &c, norm, step, g, p, first, second, n);
        {
            double off = test_distance(w.p, p, (uint64_t)n);
            CU_ASSERT_TRUE(off <= TEST_TOLERANCE);
            if (!(off <= TEST_TOLERANCE)) {
                (void)fprintf(stderr, "kind %d, step %d: off by %.3g\n", (int)kind, (int)step, off);
            }
        }
        if (w.first) {
            CU_ASSERT_TRUE(test_distance(w.first, first, (uint64_t)n) <= TEST_TOLERANCE);
        }
        if (kind == REN__OP_ADAM || kind == REN__OP_ADAMW) {
            CU_ASSERT_TRUE(test_distance(w.second, second, (uint64_t)n) <= TEST_TOLERANCE);
        }
        state.found_inf = 1; /* a skipped step changes no bit */
        {
            trained same = w;
            run_update(test_cuda(), kind, g, &c, &state, &same, n, misalign);
            CU_ASSERT_EQUAL(memcmp(same.p, w.p, (size_t)n * sizeof(float)), 0);
            if (w.first) {
                CU_ASSERT_EQUAL(memcmp(same.first, w.first, (size_t)n * sizeof(float)), 0);
            }
        }
    }
    values_free();
}

static void test_optimizers_follow_reference(void)
{
    const ren__op_kind kinds[] = {REN__OP_SGD, REN__OP_ADAM, REN__OP_ADAMW, REN__OP_LARS};
    for (size_t k = 0; k < REN_TEST_COUNT(kinds) && test_cuda(); k++) {
        optimizer_case(kinds[k], 1, 0, 0.0f, 1, 0);
        optimizer_case(kinds[k], values_between(2, 9000), 0, 0.0f, 1, 0);
        optimizer_case(kinds[k], values_between(2, 9000), 0, 1.5f, 1, 4);
    }
    if (test_cuda()) {
        optimizer_case(REN__OP_SGD, 1237, 1, 0.0f, 1, 0);
        optimizer_case(REN__OP_SGD, 1237, 0, 0.0f, 0, 0);
    }
}

static void test_lars_ratio_of_zero_norms(void)
{
    enum {
        N = 100
    };
    test_table *cuda = test_cuda();
    for (int zero = 0; zero < 2 && cuda; zero++) { /* the parameter, then the gradient */
        ren__control c = control_default();
        ren__state state;
        trained w = {values_random(N), values_filled(N, 0.0f), NULL};
        float *g = values_random(N);
        double *p = doubles(N);
        double *first = doubles(N);
        memset(&state, 0, sizeof state);
        memset(zero ? g : w.p, 0, N * sizeof(float));
        for (int i = 0; i < N; i++) {
            p[i] = (double)w.p[i];
        }
        run_update(cuda, REN__OP_LARS, g, &c, &state, &w, N, 0);
        ref_update(REN__OP_LARS, &c, 0.0, 1, g, p, first, NULL, N);
        CU_ASSERT_TRUE(test_distance(w.p, p, N) <= TEST_TOLERANCE);
        values_free();
    }
}

static void test_ema_follows_reference(void)
{
    for (int i = 0; i < 4 && test_cuda(); i++) {
        int64_t n = values_between(1, 5000);
        ren__control c = control_default();
        ren__state state;
        float *p = values_random((uint64_t)n);
        float *average = values_random((uint64_t)n);
        double *out = doubles(n);
        ren__op_desc desc = test_desc(REN__OP_EMA);
        test_operand o[REN__OPERANDS] = {
            in(p), in(&c), in(&state), {TEST_INOUT, 0, 0, average, NULL}};
        memset(&state, 0, sizeof state);
        state.found_inf = i == 3;
        for (int64_t k = 0; k < n; k++) {
            double d = (double)c.ema_decay;
            out[k] =
                i == 3 ? (double)average[k] : d * (double)average[k] + (1.0 - d) * (double)p[k];
        }
        desc.operand[0] = desc.operand[3] = flat(REN_F32, n);
        desc.operand[1] = bytes_of(sizeof c);
        desc.operand[2] = bytes_of(sizeof state);
        values_check("moving average", &desc, o, (expected[]){{3, out}, {0, NULL}}, i == 2 ? 4 : 0,
                     TEST_TOLERANCE);
        values_free();
    }
}

static const ren_test_case cases[] = {
    {"test_xent_random_shapes", test_xent_random_shapes},
    {"test_mse_and_huber_random_sizes", test_mse_and_huber_random_sizes},
    {"test_dropout_mask", test_dropout_mask},
    {"test_check_finds_every_position", test_check_finds_every_position},
    {"test_check_without_a_word", test_check_without_a_word},
    {"test_advance_counts_and_scales", test_advance_counts_and_scales},
    {"test_optimizers_follow_reference", test_optimizers_follow_reference},
    {"test_lars_ratio_of_zero_norms", test_lars_ratio_of_zero_norms},
    {"test_ema_follows_reference", test_ema_follows_reference},
};

int main(int argc, char **argv)
{
    int code = ren_test_main(argc, argv, "gpu/test_cuda_train", cases, REN_TEST_COUNT(cases), 240);
    test_tables_close();
    return code;
}
