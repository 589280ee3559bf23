/* SPDX-License-Identifier: MIT */
/* tests/golden/test_ops_rest.c - losses, optimizers, dropout, joins and casts of a device.
 *
 * Purpose   The operations that test_ops.c leaves: against the reference files where there are any,
 *           else against the formula in ren.h or device.h. Also what an operation must refuse.
 */
#include "../support/test.h"
#include "ops_rig.h"
#include "reader.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH 40

static rig r;

static int close_to(const char *what, const float *got, const float *wanted, size_t count)
{
    double distance = golden_distance(got, wanted, count);
    if (!(distance <= ops_tolerance(&r))) {
        printf("    %s: relative distance %.3g\n", what, distance);
        return 0;
    }
    return 1;
}

static const float *values(const golden_case *g, const char *tensor)
{
    return golden_tensor(g, tensor, NULL, NULL, NULL);
}

/* ------------------------------------------------------------------ losses */

typedef struct loss_case {
    int64_t rows, classes;
    const float *x;
    const int32_t *labels;
    float smoothing;
} loss_case;

static void cross_entropy(const loss_case *c, float *loss, float *dx)
{
    const int64_t dims[2] = {c->rows, c->classes};
    const int64_t one = 1;
    float *prob = malloc((size_t)(c->rows * c->classes) * sizeof *prob);
    ren__control control = ops_control();
    ren__op_desc d = ops_desc(REN__OP_XENT_FWD);
    d.alpha = c->smoothing;
    ops_shape(&d, 0, 2, dims);
    ops_shape(&d, 1, 1, dims);
    d.operand[1].dtype = REN_I32;
    ops_shape(&d, 2, 1, &one);
    ops_shape(&d, 3, 2, dims);
    op_io io[REN__OPERANDS] = {{.in = c->x}, {.in = c->labels}, {.out = loss}, {.out = prob}};
    CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
    d.kind = REN__OP_XENT_BWD;
    d.operand[2].rank = 0;
    op_io back[REN__OPERANDS] = {
        {.in = prob}, {.in = c->labels}, {.in = &control, .bytes = sizeof control}, {.out = dx}};
    CU_ASSERT_EQUAL(ops_run(&r, &d, back, NULL), REN_OK);
    free(prob);
}

static void test_cross_entropy_golden(void)
{
    char name[32];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "softmax_ce_%d", i);
        golden_case *g = golden_open(name);
        int64_t dims[GOLDEN_MAX_RANK];
        size_t count = 0;
        const float *x = golden_tensor(g, "x", dims, NULL, &count);
        const loss_case c = {dims[0], dims[1], x, golden_tensor_i32(g, "labels", NULL, NULL, NULL),
                             (float)golden_number(g, "label_smoothing", 0.0)};
        float *dx = malloc(count * sizeof *dx);
        float loss = NAN;
        cross_entropy(&c, &loss, dx);
        CU_ASSERT(close_to(name, &loss, values(g, "loss"), 1));
        CU_ASSERT(close_to(name, dx, values(g, "dx"), count));
        free(dx);
        golden_close(g);
    }
}

/* A row whose label is no class adds neither loss nor gradient, and still counts in the mean: what
 * partial batches rely on. Fails if the label is used as an index, or if N shrinks. */
static void test_cross_entropy_foreign_labels(void)
{
    const float x[3 * 4] = {1, 2, 3, 4, 0, 0, 0, 0, -1, 5, 2, 0};
    const int32_t labels[3] = {-1, 2, 4};
    const loss_case c = {3, 4, x, labels, 0.0f};
    float loss = NAN;
    float dx[12];
    cross_entropy(&c, &loss, dx);
    CU_ASSERT_DOUBLE_EQUAL(loss, log(4.0) / 3.0, 1e-6);
    for (int i = 0; i < 12; i++) {
        double wanted = i / 4 != 1 ? 0.0 : (0.25 - (i == 6 ? 1.0 : 0.0)) / 3.0;
        CU_ASSERT_DOUBLE_EQUAL(dx[i], wanted, 1e-7);
    }
}

/* Far ends: a hopeless label's loss is the gap of the logits, not infinity; a confident one's keeps
 * its digits. Fails if the loss is taken as the logarithm of the f32 probability. */
static void test_cross_entropy_extremes(void)
{
    const float x[2] = {0.0f, 200.0f};
    const int32_t hopeless = 0, confident = 1;
    loss_case c = {1, 2, x, &hopeless, 0.0f};
    float loss = NAN, dx[2];
    cross_entropy(&c, &loss, dx);
    CU_ASSERT_DOUBLE_EQUAL(loss, 200.0, 1e-3);
    const float near[2] = {0.0f, 12.0f};
    c.x = near;
    c.labels = &confident;
    cross_entropy(&c, &loss, dx);
    CU_ASSERT_DOUBLE_EQUAL(loss / log1p(exp(-12.0)), 1.0, 1e-4);
}

static void test_regression_golden(void)
{
    static const struct {
        const char *name;
        ren__op_kind forward, backward;
    } cases[] = {{"mse", REN__OP_MSE_FWD, REN__OP_MSE_BWD},
                 {"huber", REN__OP_HUBER_FWD, REN__OP_HUBER_BWD}};
    for (size_t i = 0; i < REN_TEST_COUNT(cases); i++) {
        golden_case *g = golden_open(cases[i].name);
        int64_t dims[GOLDEN_MAX_RANK];
        size_t count = 0;
        const int64_t one = 1;
        const float *x = golden_tensor(g, "x", dims, NULL, &count);
        ren__control control = ops_control();
        float loss = NAN;
        float *dx = malloc(count * sizeof *dx);
        ren__op_desc d = ops_desc(cases[i].forward);
        d.alpha = (float)golden_number(g, "delta", 1.0);
        ops_shape(&d, 0, 2, dims);
        ops_shape(&d, 1, 2, dims);
        ops_shape(&d, 2, 1, &one);
        op_io io[REN__OPERANDS] = {{.in = x}, {.in = values(g, "target")}, {.out = &loss}};
        CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
        d.kind = cases[i].backward;
        d.operand[2].rank = 0;
        ops_shape(&d, 3, 2, dims);
        io[2] = (op_io){.in = &control, .bytes = sizeof control};
        io[3] = (op_io){.out = dx};
        CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
        CU_ASSERT(close_to(cases[i].name, &loss, values(g, "loss"), 1));
        CU_ASSERT(close_to(cases[i].name, dx, values(g, "dx"), count));
        free(dx);
        golden_close(g);
    }
}

/* ------------------------------------------------------------------ optimizers */

/* The device memory that a step's update works on, kept from step to step on the host side. */
typedef struct update {
    ren__op_kind kind;
    ren__control control;
    ren__state state;
    int64_t count;
    float p[LENGTH], a[LENGTH], b[LENGTH];
} update;

static void advance(update *u)
{
    ren__op_desc d = ops_desc(REN__OP_ADVANCE);
    op_io io[REN__OPERANDS] = {{.in = &u->control, .bytes = sizeof u->control},
                               {.in = &u->state, .out = &u->state, .bytes = sizeof u->state}};
    CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
}

static void apply(update *u, const float *g)
{
    const bool adam = u->kind == REN__OP_ADAM || u->kind == REN__OP_ADAMW;
    ren__op_desc d = ops_desc(u->kind);
    ops_shape(&d, 0, 1, &u->count);
    ops_shape(&d, 3, 1, &u->count);
    ops_shape(&d, 4, 1, &u->count);
    op_io io[REN__OPERANDS] = {{.in = g},
                               {.in = &u->control, .bytes = sizeof u->control},
                               {.in = &u->state, .bytes = sizeof u->state},
                               {.in = u->p, .out = u->p},
                               {.in = u->a, .out = u->a}};
    if (adam) {
        ops_shape(&d, 5, 1, &u->count);
        io[5] = (op_io){.in = u->b, .out = u->b};
    }
    CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
}

static update start(ren__op_kind kind, const golden_case *g, const char *first)
{
    update u;
    memset(&u, 0, sizeof u);
    u.kind = kind;
    u.count = LENGTH;
    u.control = ops_control();
    u.state.loss_scale = 1.0f;
    u.control.learning_rate = (float)golden_number(g, "lr", 0.1);
    u.control.momentum = (float)golden_number(g, "momentum", 0.0);
    u.control.weight_decay = (float)golden_number(g, "weight_decay", 0.0);
    u.control.eps = (float)golden_number(g, "eps", 0.0);
    u.control.lars_eta = (float)golden_number(g, "eta", 0.0);
    u.control.nesterov = (uint32_t)golden_number(g, "nesterov", 0.0);
    u.control.beta1 = 0.9f;
    u.control.beta2 = kind == REN__OP_ADAMW ? 0.99f : 0.999f; /* the files' second betas */
    memcpy(u.p, values(g, first), sizeof u.p);
    return u;
}

static void test_optimizers_golden(void)
{
    static const struct {
        const char *name;
        ren__op_kind kind;
    } cases[] = {{"opt_sgd", REN__OP_SGD},          {"opt_sgd_momentum", REN__OP_SGD},
                 {"opt_sgd_nesterov", REN__OP_SGD}, {"opt_adam", REN__OP_ADAM},
                 {"opt_adamw", REN__OP_ADAMW},      {"opt_lars", REN__OP_LARS}};
    for (size_t i = 0; i < REN_TEST_COUNT(cases); i++) {
        golden_case *g = golden_open(cases[i].name);
        int64_t dims[GOLDEN_MAX_RANK];
        const float *grads = golden_tensor(g, "grads", dims, NULL, NULL);
        CU_ASSERT_EQUAL_FATAL(dims[1], LENGTH);
        update u = start(cases[i].kind, g, "p0");
        for (int64_t step = 0; step < dims[0]; step++) {
            u.control.step = (uint64_t)step + 1;
            advance(&u);
            apply(&u, grads + step * LENGTH);
        }
        CU_ASSERT_EQUAL(u.state.applied, (uint64_t)dims[0]);
        CU_ASSERT(close_to(cases[i].name, u.p, values(g, "p"), LENGTH));
        golden_close(g);
    }
}

/* Without a velocity operand SGD is plain gradient descent. */
static void test_sgd_without_velocity(void)
{
    golden_case *g = golden_open("opt_sgd");
    update u = start(REN__OP_SGD, g, "p0");
    int64_t dims[GOLDEN_MAX_RANK];
    const float *grads = golden_tensor(g, "grads", dims, NULL, NULL);
    for (int64_t step = 0; step < dims[0]; step++) {
        ren__op_desc d = ops_desc(REN__OP_SGD);
        ops_shape(&d, 0, 1, &u.count);
        ops_shape(&d, 3, 1, &u.count);
        op_io io[REN__OPERANDS] = {{.in = grads + step * LENGTH},
                                   {.in = &u.control, .bytes = sizeof u.control},
                                   {.in = &u.state, .bytes = sizeof u.state},
                                   {.in = u.p, .out = u.p}};
        CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
    }
    CU_ASSERT(close_to("sgd", u.p, values(g, "p"), LENGTH));
    golden_close(g);
}

static void test_ema_golden(void)
{
    golden_case *g = golden_open("ema");
    int64_t dims[GOLDEN_MAX_RANK];
    const float *xs = golden_tensor(g, "xs", dims, NULL, NULL);
    update u = start(REN__OP_EMA, g, "e0");
    u.control.ema_decay = (float)golden_number(g, "decay", 0.0);
    ren__op_desc d = ops_desc(REN__OP_EMA);
    ops_shape(&d, 0, 1, &u.count);
    ops_shape(&d, 3, 1, &u.count);
    for (int64_t step = 0; step < dims[0]; step++) {
        op_io io[REN__OPERANDS] = {{.in = xs + step * LENGTH},
                                   {.in = &u.control, .bytes = sizeof u.control},
                                   {.in = &u.state, .bytes = sizeof u.state},
                                   {.in = u.p, .out = u.p}};
        CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
    }
    CU_ASSERT(close_to("ema", u.p, values(g, "e"), LENGTH));
    golden_close(g);
}

static void run_check(update *u, const float *g, int64_t count)
{
    ren__op_desc d = ops_desc(REN__OP_CHECK);
    ops_shape(&d, 0, 1, &count);
    op_io io[REN__OPERANDS] = {{.in = g},
                               {.in = &u->control, .bytes = sizeof u->control},
                               {.in = &u->state, .out = &u->state, .bytes = sizeof u->state}};
    CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
}

/* CHECK's norm and the clipping that the optimizers do with it: with lr 1 and p = 0, p is the
 * negative clipped gradient. */
static void test_check_and_clip_golden(void)
{
    golden_case *g = golden_open("clip_global_norm");
    size_t count = 0;
    const float *grads = golden_tensor(g, "grads", NULL, NULL, &count);
    const float *clipped = values(g, "clipped");
    update u;
    memset(&u, 0, sizeof u);
    u.kind = REN__OP_SGD;
    u.count = LENGTH;
    u.control = ops_control();
    u.control.learning_rate = 1.0f;
    u.control.clip_norm = (float)golden_number(g, "max_norm", 0.0);
    u.state.loss_scale = 1.0f;
    run_check(&u, grads, (int64_t)count);
    CU_ASSERT_EQUAL(u.state.found_inf, 0);
    CU_ASSERT(close_to("norm", &u.state.grad_norm, values(g, "norm"), 1));
    for (size_t row = 0; row < count / LENGTH; row++) {
        memset(u.p, 0, sizeof u.p);
        memset(u.a, 0, sizeof u.a);
        apply(&u, grads + row * LENGTH);
        for (int i = 0; i < LENGTH; i++) {
            u.p[i] = -u.p[i];
        }
        CU_ASSERT(close_to("clipped", u.p, clipped + row * LENGTH, LENGTH));
    }
    golden_close(g);
}

/* grad_divisor divides what the optimizers and CHECK see. */
static void test_grad_divisor(void)
{
    float g[LENGTH];
    update u;
    memset(&u, 0, sizeof u);
    u.kind = REN__OP_SGD;
    u.count = LENGTH;
    u.control = ops_control();
    u.control.learning_rate = 1.0f;
    u.control.grad_divisor = 4.0f;
    for (int i = 0; i < LENGTH; i++) {
        g[i] = 8.0f;
    }
    run_check(&u, g, LENGTH);
    CU_ASSERT_DOUBLE_EQUAL(u.state.grad_norm, 2.0 * sqrt((double)LENGTH), 1e-4);
    apply(&u, g);
    CU_ASSERT_EQUAL(u.p[7], -2.0f);
}

/* One inf or NaN anywhere: found_inf, nothing changes in any optimizer, the step is not counted,
 * and the next clean step is. Fails if the check misses the last element, or if one optimizer
 * ignores the flag. */
static void test_found_inf_changes_nothing(void)
{
    static const ren__op_kind kinds[] = {REN__OP_SGD, REN__OP_ADAM, REN__OP_ADAMW, REN__OP_LARS,
                                         REN__OP_EMA};
    for (size_t k = 0; k < REN_TEST_COUNT(kinds); k++) {
        update u;
        float g[LENGTH];
        memset(&u, 0, sizeof u);
        u.kind = kinds[k];
        u.count = LENGTH;
        u.control = ops_control();
        u.control.learning_rate = 0.1f;
        for (int i = 0; i < LENGTH; i++) {
            u.p[i] = u.a[i] = u.b[i] = 1.0f + (float)i;
            g[i] = 1.0f;
        }
        g[k % 2 ? LENGTH - 1 : 0] = k % 2 ? NAN : -INFINITY;
        const update before = u;
        run_check(&u, g, LENGTH);
        CU_ASSERT_EQUAL(u.state.found_inf, 1);
        advance(&u);
        CU_ASSERT_EQUAL(u.state.applied, 0);
        CU_ASSERT_EQUAL(u.state.skipped_total, 1);
        apply(&u, g); /* for EMA g stands for the parameters */
        CU_ASSERT_EQUAL(memcmp(u.p, before.p, sizeof u.p), 0);
        CU_ASSERT_EQUAL(memcmp(u.a, before.a, sizeof u.a), 0);
        CU_ASSERT_EQUAL(memcmp(u.b, before.b, sizeof u.b), 0);
        g[0] = g[LENGTH - 1] = 1.0f;
        run_check(&u, g, LENGTH);
        CU_ASSERT_EQUAL(u.state.found_inf, 0);
        advance(&u);
        CU_ASSERT_EQUAL(u.state.applied, 1);
    }
}

/* LARS: where the weights' or the gradient's norm is 0 the ratio is 1. */
static void test_lars_zero_norms(void)
{
    update u;
    float g[LENGTH];
    memset(&u, 0, sizeof u);
    u.kind = REN__OP_LARS;
    u.count = LENGTH;
    u.control = ops_control();
    u.control.learning_rate = 0.5f;
    u.control.lars_eta = 0.01f;
    for (int i = 0; i < LENGTH; i++) {
        g[i] = 2.0f;
    }
    apply(&u, g); /* p = 0 */
    CU_ASSERT_EQUAL(u.p[3], -1.0f);
    memset(u.a, 0, sizeof u.a);
    memset(g, 0, sizeof g);
    u.control.weight_decay = 0.5f;
    apply(&u, g); /* g = 0, so only the decay, at ratio 1 */
    CU_ASSERT_DOUBLE_EQUAL(u.p[3], -0.75, 1e-6);
}

/* ------------------------------------------------------------------ dropout */

static void dropout(ren__op_kind kind, const ren__control *control, uint32_t layer, float p,
                    const float *x, float *y, int64_t count)
{
    ren__op_desc d = ops_desc(kind);
    d.alpha = p;
    d.layer = layer;
    ops_shape(&d, 0, 1, &count);
    ops_shape(&d, 2, 1, &count);
    op_io io[REN__OPERANDS] = {{.in = x}, {.in = control, .bytes = sizeof *control}, {.out = y}};
    CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
}

/* The mask is a function of seed, layer, step and element, the same in both passes, with the right
 * share of zeros; another seed, layer or step gives another mask. Fails if any of them is left out
 * of the counter, or if the backward pass draws afresh. */
static void test_dropout_mask(void)
{
    enum {
        COUNT = 4001
    };
    static float x[COUNT], y[5][COUNT];
    ren__control control = ops_control();
    control.seed = 42;
    for (int i = 0; i < COUNT; i++) {
        x[i] = 1.0f;
    }
    dropout(REN__OP_DROPOUT_FWD, &control, 3, 0.3f, x, y[0], COUNT);
    dropout(REN__OP_DROPOUT_BWD, &control, 3, 0.3f, x, y[1], COUNT);
    CU_ASSERT_EQUAL(memcmp(y[0], y[1], sizeof y[0]), 0);
    int zeros = 0;
    for (int i = 0; i < COUNT; i++) {
        zeros += y[0][i] == 0.0f;
        CU_ASSERT(y[0][i] == 0.0f || fabsf(y[0][i] - 1.0f / 0.7f) < 1e-6f);
    }
    CU_ASSERT(zeros > 1050 && zeros < 1350); /* 1200 expected, deviation 29 */
    dropout(REN__OP_DROPOUT_FWD, &control, 4, 0.3f, x, y[2], COUNT);
    control.step = 2;
    dropout(REN__OP_DROPOUT_FWD, &control, 3, 0.3f, x, y[3], COUNT);
    control.step = 1;
    control.seed = 43;
    dropout(REN__OP_DROPOUT_FWD, &control, 3, 0.3f, x, y[4], COUNT);
    for (int a = 1; a < 5; a++) {
        for (int b = a + 1; b < 5; b++) {
            CU_ASSERT_NOT_EQUAL(memcmp(y[a], y[b], sizeof y[a]), 0);
        }
    }
}

/* The generator is Philox4x32-10: the published answer for counter and key all ones and for zero.
 * The first four elements with seed 0, layer 0, step 0 use the block for zero. */
static void test_dropout_generator(void)
{
    static const uint32_t known[4] = {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
    ren__control control = ops_control();
    control.step = 0;
    const float x[4] = {1, 1, 1, 1};
    for (int i = 0; i < 4; i++) {
        double uniform = (double)(known[i] >> 8) / 16777216.0;
        float y[4];
        dropout(REN__OP_DROPOUT_FWD, &control, 0, (float)uniform - 1e-4f, x, y, 4);
        CU_ASSERT(y[i] != 0.0f);
        dropout(REN__OP_DROPOUT_FWD, &control, 0, (float)uniform + 1e-4f, x, y, 4);
        CU_ASSERT(y[i] == 0.0f);
    }
}

/* ------------------------------------------------------------------ joins, sum, casts */

static void test_concat_and_split(void)
{
    enum {
        ROWS = 6
    };
    static const int64_t widths[3] = {2, 1, 3};
    float part[3][ROWS * 3], whole[ROWS * 6], back[3][ROWS * 3];
    ren__op_desc c = ops_desc(REN__OP_CONCAT), s = ops_desc(REN__OP_SPLIT);
    op_io in[REN__OPERANDS] = {{0}}, out[REN__OPERANDS] = {{0}};
    c.count = s.count = 3;
    const int64_t all[4] = {1, 2, 3, 6};
    ops_shape(&c, 11, 4, all);
    ops_shape(&s, 0, 4, all);
    for (uint32_t p = 0; p < 3; p++) {
        const int64_t dims[4] = {1, 2, 3, widths[p]};
        for (int i = 0; i < ROWS * 3; i++) {
            part[p][i] = (float)(100 * p) + (float)i;
        }
        ops_shape(&c, p, 4, dims);
        ops_shape(&s, p + 1, 4, dims);
        in[p].in = part[p];
        out[p + 1].out = back[p];
    }
    in[11].out = whole;
    CU_ASSERT_EQUAL(ops_run(&r, &c, in, NULL), REN_OK);
    for (int row = 0; row < ROWS; row++) {
        CU_ASSERT_EQUAL(whole[row * 6 + 1], (float)(row * 2 + 1));
        CU_ASSERT_EQUAL(whole[row * 6 + 2], 100.0f + (float)row);
        CU_ASSERT_EQUAL(whole[row * 6 + 5], 200.0f + (float)(row * 3 + 2));
    }
    out[0].in = whole;
    CU_ASSERT_EQUAL(ops_run(&r, &s, out, NULL), REN_OK);
    for (uint32_t p = 0; p < 3; p++) {
        CU_ASSERT_EQUAL(memcmp(part[p], back[p], (size_t)(ROWS * widths[p]) * sizeof(float)), 0);
    }
}

static void test_add(void)
{
    const int64_t dims[2] = {3, 7};
    float a[21], b[21], y[21];
    for (int i = 0; i < 21; i++) {
        a[i] = (float)i;
        b[i] = 0.5f * (float)i;
    }
    ren__op_desc d = ops_desc(REN__OP_ADD);
    op_io io[REN__OPERANDS] = {{.in = a}, {.in = b}, {.out = y}};
    for (uint32_t i = 0; i < 3; i++) {
        ops_shape(&d, i, 2, dims);
    }
    CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
    for (int i = 0; i < 21; i++) {
        CU_ASSERT_EQUAL(y[i], 1.5f * (float)i);
    }
}

static void cast(ren_dtype from, ren_dtype to, int64_t count, const void *in, void *out)
{
    ren__op_desc d = ops_desc(REN__OP_CAST);
    ops_shape(&d, 0, 1, &count);
    ops_shape(&d, 1, 1, &count);
    d.operand[0].dtype = from;
    d.operand[1].dtype = to;
    op_io io[REN__OPERANDS] = {{.in = in}, {.out = out}};
    CU_ASSERT_EQUAL(ops_run(&r, &d, io, NULL), REN_OK);
}

/* Every half and bfloat16 goes to f32 and back unchanged; and f32 values round to nearest even,
 * through subnormals, to infinity above the largest, with NaN kept. */
static void test_cast(void)
{
    enum {
        ALL = 65536
    };
    static uint16_t halves[ALL], again[ALL];
    static float wide[ALL];
    for (int i = 0; i < ALL; i++) {
        halves[i] = (uint16_t)i;
    }
    static const ren_dtype kinds[] = {REN_F16, REN_BF16};
    for (int k = 0; k < 2; k++) {
        int wrong = 0;
        cast(kinds[k], REN_F32, ALL, halves, wide);
        cast(REN_F32, kinds[k], ALL, wide, again);
        for (int i = 0; i < ALL; i++) {
            wrong += isnan(wide[i]) ? 0 : halves[i] != again[i];
        }
        CU_ASSERT_EQUAL(wrong, 0);
    }
    cast(REN_F16, REN_F32, ALL, halves, wide);
    CU_ASSERT_EQUAL(wide[0x3c00], 1.0f);
    CU_ASSERT_EQUAL(wide[0x0001], 0x1p-24f);
    CU_ASSERT_EQUAL(wide[0xfbff], -65504.0f);
    const float in[] = {65519.0f,        65520.0f,        0x1p-25f,  0x1.8p-25f, 0x1.8p-24f,
                        1.0f + 0x1p-11f, 1.0f + 0x3p-11f, -INFINITY, NAN,        -0.0f};
    const uint16_t wanted[] = {0x7bff, 0x7c00, 0x0000, 0x0001, 0x0002,
                               0x3c00, 0x3c02, 0xfc00, 0,      0x8000};
    uint16_t out[REN_TEST_COUNT(in)];
    cast(REN_F32, REN_F16, (int64_t)REN_TEST_COUNT(in), in, out);
    for (size_t i = 0; i < REN_TEST_COUNT(in); i++) {
        if (isnan(in[i])) {
            CU_ASSERT((out[i] & 0x7c00) == 0x7c00 && (out[i] & 0x3ff) != 0);
        } else {
            CU_ASSERT_EQUAL(out[i], wanted[i]);
        }
    }
}

/* ------------------------------------------------------------------ refusals */

static ren_status try_create(const ren__op_desc *d, ren_error *err)
{
    ren__op *op = NULL;
    ren__op_needs needs;
    memset(err, 0, sizeof *err);
    ren_status status = r.api->op_create(r.dev, 0, d, &op, &needs, err);
    CU_ASSERT(status == REN_OK || op == NULL);
    if (status == REN_OK) {
        r.api->op_destroy(r.dev, op);
    }
    return status;
}

/* Shapes that do not fit are refused with words, and a refusal leaves no host memory behind. */
static void test_op_create_refusals(void)
{
    const long blocks = rig_blocks();
    ren_error err;
    ren__op_desc d = ops_desc(REN__OP_LINEAR_FWD);
    ops_shape(&d, 0, 2, (const int64_t[]){4, 5});
    ops_shape(&d, 1, 2, (const int64_t[]){3, 6}); /* 6 inputs, x has 5 */
    ops_shape(&d, 3, 2, (const int64_t[]){4, 3});
    CU_ASSERT_EQUAL(try_create(&d, &err), REN_ERR_SHAPE);
    CU_ASSERT(strlen(err.text) > 10);
    ops_shape(&d, 1, 2, (const int64_t[]){3, 5});
    CU_ASSERT_EQUAL(try_create(&d, &err), REN_OK);
    ops_shape(&d, 3, 2, (const int64_t[]){4, 2});
    CU_ASSERT_EQUAL(try_create(&d, &err), REN_ERR_SHAPE);
    d.operand[0].dtype = REN_U8;
    CU_ASSERT_EQUAL(try_create(&d, &err), REN_ERR_UNSUPPORTED);

    d = ops_desc(REN__OP_CONV_FWD);
    d.kernel[0] = d.kernel[1] = 3;
    ops_shape(&d, 0, 4, (const int64_t[]){1, 8, 8, 4});
    ops_shape(&d, 1, 4, (const int64_t[]){6, 4, 3, 3});
    ops_shape(&d, 3, 4, (const int64_t[]){1, 8, 8, 6}); /* without padding it is 6 x 6 */
    CU_ASSERT_EQUAL(try_create(&d, &err), REN_ERR_SHAPE);
    d.groups = 3; /* does not divide 4 */
    CU_ASSERT_EQUAL(try_create(&d, &err), REN_ERR_SHAPE);
    d.kind = (ren__op_kind)REN__OP_KINDS;
    CU_ASSERT_EQUAL(try_create(&d, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(rig_blocks(), blocks);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_cross_entropy_golden", test_cross_entropy_golden},
        {"test_cross_entropy_foreign_labels", test_cross_entropy_foreign_labels},
        {"test_cross_entropy_extremes", test_cross_entropy_extremes},
        {"test_regression_golden", test_regression_golden},
        {"test_optimizers_golden", test_optimizers_golden},
        {"test_sgd_without_velocity", test_sgd_without_velocity},
        {"test_ema_golden", test_ema_golden},
        {"test_check_and_clip_golden", test_check_and_clip_golden},
        {"test_grad_divisor", test_grad_divisor},
        {"test_found_inf_changes_nothing", test_found_inf_changes_nothing},
        {"test_lars_zero_norms", test_lars_zero_norms},
        {"test_dropout_mask", test_dropout_mask},
        {"test_dropout_generator", test_dropout_generator},
        {"test_concat_and_split", test_concat_and_split},
        {"test_add", test_add},
        {"test_cast", test_cast},
        {"test_op_create_refusals", test_op_create_refusals},
    };
    rig_open(&r, rig_table(), 0, 0);
    int result =
        ren_test_main(argc, argv, "golden/test_ops_rest", cases, REN_TEST_COUNT(cases), 120);
    rig_close(&r);
    return result;
}
