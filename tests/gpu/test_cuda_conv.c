/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_conv.c - convolutions of the CUDA device: dtypes, fusion, tuning, the cache.
 *
 * Proves    a bias and a ReLU in the operation give what they give behind it; f32 is f32 unless
 *           TF32 is allowed; f16 and bf16 add in f32, grouped, strided, dilated and with few
 *           channels; a deterministic device repeats itself, and so does another one; timing
 *           engines changes no result, breaks no capture, and is done once for a signature.
 * Fails     when a fused engine or a kernel of the module drops a bias, a ReLU or a tail;
 *           when an engine with tensor cores is taken for strict f32; when a signature leaves
 *           something out that the result depends on.
 */
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../support/test.h"
#include "reference.h"
#include "values.h"

#define TF32_TOLERANCE 1e-3
/* Inputs are exact; the output is rounded once, to 11 or 8 bits. */
#define F16_TOLERANCE  1e-3
#define BF16_TOLERANCE 6e-3

/*       n  h   w   c  ho wo  o  kh kw sh sw ph pw dh dw groups */
static const ref_window shapes[] = {
    {2, 8, 8, 64, 0, 0, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {4, 9, 9, 32, 0, 0, 64, 1, 1, 1, 1, 0, 0, 1, 1, 1},
    {3, 15, 15, 3, 0, 0, 32, 7, 7, 2, 2, 3, 3, 1, 1, 1},
    {5, 12, 12, 1, 0, 0, 8, 3, 3, 1, 1, 0, 0, 1, 1, 1},
    {2, 11, 13, 32, 0, 0, 16, 3, 3, 2, 2, 1, 1, 1, 1, 2},
    {2, 13, 11, 16, 0, 0, 24, 3, 3, 1, 1, 2, 2, 2, 2, 1},
    {3, 9, 7, 5, 0, 0, 7, 3, 2, 2, 1, 1, 0, 1, 2, 1},
    /* Few channels: two tiles of outputs; outputs that no four divides; more than one tile of
     * pixels to a block. */
    {4, 20, 20, 3, 0, 0, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {3, 13, 13, 1, 0, 0, 70, 5, 5, 2, 2, 2, 2, 1, 1, 1},
    {2, 17, 15, 2, 0, 0, 7, 3, 3, 1, 2, 0, 1, 2, 1, 1},
    {24, 30, 28, 1, 0, 0, 12, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    /* Kernel rows of 20 and of 18 taps. */
    {2, 16, 14, 4, 0, 0, 40, 5, 5, 1, 1, 2, 2, 1, 1, 1},
    {2, 19, 17, 2, 0, 0, 24, 9, 9, 2, 1, 4, 3, 1, 1, 1},
};

static const ren_dtype dtypes[] = {REN_F32, REN_F16, REN_BF16};
static const double tolerances[] = {TEST_TOLERANCE, F16_TOLERANCE, BF16_TOLERANCE};

static ref_window finished(ref_window s)
{
    s.ho = (s.h + 2 * s.ph - s.dh * (s.kh - 1) - 1) / s.sh + 1;
    s.wo = (s.w + 2 * s.pw - s.dw * (s.kw - 1) - 1) / s.sw + 1;
    return s;
}

/* A tensor in a dtype, and as f32 the very values that it has in that dtype. */
typedef struct tensor {
    ren__tensor_desc desc;
    void *data;
    float *exact;
} tensor;

static void cast(test_table *t, ren_dtype from, const void *x, ren_dtype to, void *y, uint64_t n)
{
    ren__op_desc desc = test_desc(REN__OP_CAST);
    test_operand o[REN__OPERANDS] = {{TEST_IN, 0, 0, x, NULL}, {TEST_OUT, 0, 0, NULL, y}};
    desc.operand[0] = test_tensor(from, 1, (int64_t)n, 0, 0, 0);
    desc.operand[1] = test_tensor(to, 1, (int64_t)n, 0, 0, 0);
    CU_ASSERT_EQUAL(test_run(t, &desc, o, 0), REN_OK);
}

static float *widened(test_table *t, ren_dtype dtype, const void *data, uint64_t n)
{
    float *out = values_take(n * sizeof *out);
    if (dtype == REN_F32) {
        memcpy(out, data, n * sizeof *out);
    } else {
        cast(t, dtype, data, REN_F32, out, n);
    }
    return out;
}

static tensor rounded(test_table *t, ren__tensor_desc desc, float *x)
{
    tensor out = {desc, x, x};
    uint64_t n = ren__tensor_elements(&desc);
    if (desc.dtype != REN_F32) {
        out.data = values_take(n * 2u);
        cast(t, REN_F32, x, desc.dtype, out.data, n);
        out.exact = widened(t, desc.dtype, out.data, n);
    }
    return out;
}

static tensor random_tensor(test_table *t, ren_dtype dtype, uint32_t rank, int64_t a, int64_t b,
                            int64_t c, int64_t d)
{
    ren__tensor_desc desc = test_tensor(dtype, rank, a, b, c, d);
    return rounded(t, desc, values_random(ren__tensor_elements(&desc)));
}

/* OHWI, as the device has it, from `exact`, which is OIHW. */
static void *device_weights(test_table *t, const tensor *w)
{
    const int64_t *d = w->desc.dims;
    uint64_t n = ren__tensor_elements(&w->desc);
    float *turned = values_take(n * sizeof *turned);
    for (int64_t o = 0; o < d[0]; o++) {
        for (int64_t i = 0; i < d[1]; i++) {
            for (int64_t p = 0; p < d[2] * d[3]; p++) {
                turned[(o * d[2] * d[3] + p) * d[1] + i] =
                    w->exact[(o * d[1] + i) * d[2] * d[3] + p];
            }
        }
    }
    return rounded(t, w->desc, turned).data;
}

/* One convolution: inputs, and what all three kinds should give. */
typedef struct problem {
    ref_window s;
    tensor x, w, b, dy;
    void *turned;
    double *y, *dx, *dw;
} problem;

static problem make_problem(test_table *t, ref_window window, ren_dtype dtype, ren_dtype of_bias)
{
    problem p;
    memset(&p, 0, sizeof p);
    p.s = finished(window);
    p.x = random_tensor(t, dtype, 4, p.s.n, p.s.h, p.s.w, p.s.c);
    p.w = random_tensor(t, dtype, 4, p.s.o, p.s.c / p.s.groups, p.s.kh, p.s.kw);
    p.b = random_tensor(t, of_bias, 1, p.s.o, 0, 0, 0);
    p.dy = random_tensor(t, dtype, 4, p.s.n, p.s.ho, p.s.wo, p.s.o);
    p.turned = device_weights(t, &p.w);
    p.y = values_take(ren__tensor_elements(&p.dy.desc) * sizeof(double));
    p.dx = values_take(ren__tensor_elements(&p.x.desc) * sizeof(double));
    p.dw = values_take(ren__tensor_elements(&p.w.desc) * sizeof(double));
    ref_conv(&p.s, p.x.exact, p.w.exact, p.b.exact, p.y);
    ref_conv_data(&p.s, p.dy.exact, p.w.exact, p.dx);
    ref_conv_weight(&p.s, p.dy.exact, p.x.exact, p.dw);
    return p;
}

static ren__op_desc describe(const problem *p, ren__op_kind kind, uint32_t tf32)
{
    ren__op_desc desc = test_desc(kind);
    const ref_window *s = &p->s;
    const int64_t values[] = {s->kh, s->kw, s->sh, s->sw, s->ph, s->pw, s->dh, s->dw};
    uint32_t *const members[] = {desc.kernel, desc.stride, desc.padding, desc.dilation};
    for (uint32_t i = 0; i < 8; i++) {
        members[i / 2u][i % 2u] = (uint32_t)values[i];
    }
    desc.groups = (uint32_t)s->groups;
    desc.allow_tf32 = tf32;
    return desc;
}

/* y in f32; `relu` fuses one. */
static float *forward(test_table *t, const problem *p, int relu, uint32_t tf32)
{
    ren__op_desc desc = describe(p, REN__OP_CONV_FWD, tf32);
    uint64_t n = ren__tensor_elements(&p->dy.desc);
    void *y = values_take(n * sizeof(float));
    test_operand o[REN__OPERANDS] = {{TEST_IN, 0, 0, p->x.data, NULL},
                                     {TEST_IN, 0, 0, p->turned, NULL},
                                     {TEST_IN, 0, 0, p->b.data, NULL},
                                     {TEST_OUT, 0, 0, NULL, y}};
    desc.operand[0] = p->x.desc;
    desc.operand[1] = p->w.desc;
    desc.operand[2] = p->b.desc;
    desc.operand[3] = p->dy.desc;
    desc.activation = REN__ACT_RELU;
    desc.fused_activation = relu ? 1u : 0u;
    CU_ASSERT_EQUAL(test_run(t, &desc, o, 0), REN_OK);
    return widened(t, p->dy.desc.dtype, y, n);
}

static float *data_gradient(test_table *t, const problem *p, uint32_t tf32)
{
    ren__op_desc desc = describe(p, REN__OP_CONV_BWD_DATA, tf32);
    uint64_t n = ren__tensor_elements(&p->x.desc);
    void *dx = values_take(n * sizeof(float));
    test_operand o[REN__OPERANDS] = {{TEST_IN, 0, 0, p->dy.data, NULL},
                                     {TEST_IN, 0, 0, p->turned, NULL},
                                     {TEST_OUT, 0, 0, NULL, dx}};
    desc.operand[0] = p->dy.desc;
    desc.operand[1] = p->w.desc;
    desc.operand[2] = p->x.desc;
    CU_ASSERT_EQUAL(test_run(t, &desc, o, 0), REN_OK);
    return widened(t, p->x.desc.dtype, dx, n);
}

/* dw is f32 whatever the others are. */
static float *weight_gradient(test_table *t, const problem *p, uint32_t tf32)
{
    ren__op_desc desc = describe(p, REN__OP_CONV_BWD_WEIGHT, tf32);
    float *dw = values_take(ren__tensor_elements(&p->w.desc) * sizeof(float));
    test_operand o[REN__OPERANDS] = {{TEST_IN, 0, 0, p->dy.data, NULL},
                                     {TEST_IN, 0, 0, p->x.data, NULL},
                                     {TEST_OUT, 1, 0, NULL, dw}};
    desc.operand[0] = p->dy.desc;
    desc.operand[1] = p->x.desc;
    desc.operand[2] = p->w.desc;
    desc.operand[2].dtype = REN_F32;
    CU_ASSERT_EQUAL(test_run(t, &desc, o, 0), REN_OK);
    return dw;
}

static void near(const char *what, const problem *p, const float *got, const double *want,
                 uint64_t n, double tolerance)
{
    double apart = test_distance(got, want, n);
    CU_ASSERT_TRUE(apart <= tolerance);
    if (!(apart <= tolerance)) {
        (void)fprintf(stderr, "%s, dtype %d, %lldx%lldx%lldx%lld: off by %.3g\n", what,
                      (int)p->x.desc.dtype, (long long)p->s.n, (long long)p->s.h, (long long)p->s.w,
                      (long long)p->s.c, apart);
    }
}

static void all_kinds(test_table *t, const problem *p, uint32_t tf32, double tolerance)
{
    uint64_t of_y = ren__tensor_elements(&p->dy.desc);
    uint64_t of_x = ren__tensor_elements(&p->x.desc);
    uint64_t of_w = ren__tensor_elements(&p->w.desc);
    near("forward", p, forward(t, p, 0, tf32), p->y, of_y, tolerance);
    near("data gradient", p, data_gradient(t, p, tf32), p->dx, of_x, tolerance);
    near("weight gradient", p, weight_gradient(t, p, tf32), p->dw, of_w, tolerance);
}

/* ------------------------------------------------------------------ cases */

static void test_conv_every_dtype(void)
{
    for (uint32_t d = 0; d < REN_TEST_COUNT(dtypes); d++) {
        for (uint32_t i = 0; i < REN_TEST_COUNT(shapes) && test_cuda(); i++) {
            if (test_left_out(i + d, 2)) {
                continue;
            }
            problem p = make_problem(test_cuda(), shapes[i], dtypes[d], dtypes[d]);
            all_kinds(test_cuda(), &p, 0, tolerances[d]);
            values_free();
        }
    }
}

static void test_conv_fused_relu_as_separate(void)
{
    for (uint32_t d = 0; d < REN_TEST_COUNT(dtypes); d++) {
        for (uint32_t i = 0; i < REN_TEST_COUNT(shapes) && test_cuda(); i++) {
            if (test_left_out(i + d + 1u, 3)) {
                continue;
            }
            /* A bias may be f32 beside halves. */
            problem p =
                make_problem(test_cuda(), shapes[i], dtypes[d], i & 1u ? REN_F32 : dtypes[d]);
            uint64_t n = ren__tensor_elements(&p.dy.desc);
            float *fused = forward(test_cuda(), &p, 1, 0);
            float *plain = forward(test_cuda(), &p, 0, 0);
            double *after = values_take(n * sizeof *after);
            for (uint64_t k = 0; k < n; k++) {
                after[k] = plain[k] > 0.0f ? (double)plain[k] : 0.0;
                p.y[k] = p.y[k] > 0.0 ? p.y[k] : 0.0;
                CU_ASSERT_TRUE(fused[k] >= 0.0f);
            }
            near("fused", &p, fused, p.y, n, tolerances[d]);
            near("fused as separate", &p, fused, after, n, tolerances[d]);
            values_free();
        }
    }
}

/* A sum of 2,304 products: TF32, with its 10 bits, is off by some 3e-4 of it. */
static void test_conv_strict_and_tf32(void)
{
    const ref_window deep = {2, 10, 10, 256, 0, 0, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1};
    problem p;
    if (!test_cuda()) {
        return;
    }
    p = make_problem(test_cuda(), deep, REN_F32, REN_F32);
    all_kinds(test_cuda(), &p, 0, TEST_TOLERANCE);
    all_kinds(test_cuda(), &p, 1, TF32_TOLERANCE);
    values_free();
}

/* Gradients of weights, summed over many pixels, are where an order may change. */
static void test_conv_deterministic_on_two_devices(void)
{
    const ref_window wide = {16, 24, 24, 16, 0, 0, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1};
    test_table other;
    ren_error err;
    if (!test_cuda()) {
        return;
    }
    CU_ASSERT_TRUE_FATAL(test_table_open(&other, test_cuda()->api, 2, 1, &err));
    for (size_t d = 0; d < REN_TEST_COUNT(dtypes); d++) {
        problem p = make_problem(test_cuda(), wide, dtypes[d], dtypes[d]);
        uint64_t bytes = ren__tensor_elements(&p.w.desc) * sizeof(float);
        float *one = weight_gradient(test_cuda(), &p, 0);
        float *two = weight_gradient(&other, &p, 0);
        CU_ASSERT_EQUAL(memcmp(one, two, bytes), 0);
        values_free();
    }
    test_table_close(&other);
}

/* ------------------------------------------------------------------ tuning and the cache */

static uint32_t searches; /* plans made; the device says so once for each */

static void count_searches(void *user, ren_log_level level, const char *text)
{
    (void)user;
    (void)level;
    searches += strncmp(text, "convolution ", 12) == 0;
}

static int open_counting(test_table *t, uint32_t autotune, uint64_t memory_limit)
{
    ren__host_services host = *test_host_services();
    ren__device_config config;
    ren_error err;
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    config.lanes = 3;
    config.cpu_threads = 1;
    config.autotune = autotune;
    config.memory_limit_bytes = memory_limit;
    host.log = count_searches;
    searches = 0;
    return test_table_open_as(t, test_cuda()->api, &config, &host, &err);
}

static void test_conv_tuned_same_values(void)
{
    test_table tuned;
    if (!test_cuda()) {
        return;
    }
    CU_ASSERT_TRUE_FATAL(open_counting(&tuned, 1, 0));
    for (uint32_t d = 0; d < REN_TEST_COUNT(dtypes); d++) {
        for (uint32_t i = 0; i < 4; i++) {
            if (test_left_out(i + d, 3)) {
                continue;
            }
            problem p = make_problem(&tuned, shapes[i], dtypes[d], dtypes[d]);
            all_kinds(&tuned, &p, 0, tolerances[d]);
            (void)forward(&tuned, &p, 1, 0);
            values_free();
        }
    }
    test_table_close(&tuned);
}

/* With no room for scratch memory the library's own ranking serves. */
static void test_conv_tuned_without_memory(void)
{
    test_table tuned;
    if (!test_cuda()) {
        return;
    }
    CU_ASSERT_TRUE_FATAL(open_counting(&tuned, 1, 1u << 20));
    {
        const ref_window big = {4, 64, 64, 32, 0, 0, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1};
        problem p = make_problem(test_cuda(), big, REN_F32, REN_F32);
        ren__op_desc desc = describe(&p, REN__OP_CONV_FWD, 0);
        ren__op *op = NULL;
        ren__op_needs needs;
        ren_error err;
        desc.operand[0] = p.x.desc;
        desc.operand[1] = p.w.desc;
        desc.operand[3] = p.dy.desc;
        CU_ASSERT_EQUAL(tuned.api->op_create(tuned.dev, 0, &desc, &op, &needs, &err), REN_OK);
        tuned.api->op_destroy(tuned.dev, op);
    }
    values_free();
    test_table_close(&tuned);
}

/* A second operation of a signature, on another lane and after the first is gone, finds the plan of
 * the first; another stride does not. All the while a lane is being captured: neither searching nor
 * timing breaks that. */
static void test_conv_plans_cached_during_capture(void)
{
    for (uint32_t autotune = 0; autotune < 2 && test_cuda(); autotune++) {
        test_table t;
        problem p = make_problem(test_cuda(), shapes[0], REN_F16, REN_F16);
        ren__op_desc desc = describe(&p, REN__OP_CONV_BWD_DATA, 0);
        ren__graph *graph = NULL;
        ren_error err;
        memset(&err, 0, sizeof err);
        desc.operand[0] = p.dy.desc;
        desc.operand[1] = p.w.desc;
        desc.operand[2] = p.x.desc;
        CU_ASSERT_TRUE_FATAL(open_counting(&t, autotune, 0));
        CU_ASSERT_EQUAL(t.api->graph_begin(t.dev, 2), REN_OK);
        for (uint32_t i = 0; i < 4; i++) {
            ren__op *op = NULL;
            ren__op_needs needs;
            if (i == 3) {
                ref_window strided = shapes[0];
                strided.sh = strided.sw = 2;
                p = make_problem(test_cuda(), strided, REN_F16, REN_F16);
                desc = describe(&p, REN__OP_CONV_BWD_DATA, 0);
                desc.operand[0] = p.dy.desc;
                desc.operand[1] = p.w.desc;
                desc.operand[2] = p.x.desc;
            }
            CU_ASSERT_EQUAL(t.api->op_create(t.dev, i % 2u, &desc, &op, &needs, &err), REN_OK);
            CU_ASSERT_EQUAL(searches, i < 3 ? 1u : 2u);
            t.api->op_destroy(t.dev, op);
        }
        CU_ASSERT_EQUAL(t.api->graph_end(t.dev, 2, &graph, &err), REN_OK);
        t.api->graph_destroy(t.dev, graph);
        test_table_close(&t);
        values_free();
    }
}

/* A fused ReLU is the only activation that the device offers here. */
static void test_conv_other_activation_refused(void)
{
    problem p;
    ren__op_desc desc;
    ren__op *op = NULL;
    ren__op_needs needs;
    ren_error err;
    if (!test_cuda()) {
        return;
    }
    p = make_problem(test_cuda(), shapes[3], REN_F32, REN_F32);
    desc = describe(&p, REN__OP_CONV_FWD, 0);
    desc.operand[0] = p.x.desc;
    desc.operand[1] = p.w.desc;
    desc.operand[3] = p.dy.desc;
    desc.activation = REN__ACT_TANH;
    desc.fused_activation = 1;
    CU_ASSERT_EQUAL(test_cuda()->api->op_create(test_cuda()->dev, 0, &desc, &op, &needs, &err),
                    REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NULL(op);
    values_free();
}

static const ren_test_case cases[] = {
    {"test_conv_every_dtype", test_conv_every_dtype},
    {"test_conv_fused_relu_as_separate", test_conv_fused_relu_as_separate},
    {"test_conv_strict_and_tf32", test_conv_strict_and_tf32},
    {"test_conv_deterministic_on_two_devices", test_conv_deterministic_on_two_devices},
    {"test_conv_tuned_same_values", test_conv_tuned_same_values},
    {"test_conv_tuned_without_memory", test_conv_tuned_without_memory},
    {"test_conv_plans_cached_during_capture", test_conv_plans_cached_during_capture},
    {"test_conv_other_activation_refused", test_conv_other_activation_refused},
};

int main(int argc, char **argv)
{
    int code = ren_test_main(argc, argv, "gpu/test_cuda_conv", cases, REN_TEST_COUNT(cases), 240);
    test_tables_close();
    return code;
}
