/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_infer_fold.c - batch norms folded into the weights before them.
 *
 * Proves    A model whose batch norms are folded gives the values of the same model computed norm
 *           by norm, for linear layers and convolutions with and without bias, grouped and strided,
 *           with ReLU, another activation or nothing behind, and for each tensor that may be asked
 *           for on the way; that the norms are really gone; and that a norm whose layer somebody
 *           else reads, and one behind something else, is computed as before.
 * How       The device is made to refuse to fold for the second run of each case.
 * Fails     when scale, shift or bias are derived wrongly or from old parameters, or when a tensor
 *           is taken for the normalised one.
 */
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS    3u
#define TENSORS 8u
#define MOST    (ROWS * 8u * 8u * 16u)

typedef struct chain {
    ren_model *m;
    ren_tensor asked[TENSORS]; /* tensors to compare */
    uint32_t floats[TENSORS];  /* of each, per row */
    uint32_t count;
    uint32_t row; /* floats of one row of x */
} chain;

typedef struct counts {
    uint32_t eval, fold;
} counts;

static void count(void *user, const ren_test_command *c)
{
    counts *n = user;
    if (c->begin) {
        __atomic_fetch_add(&n->eval, c->op == REN__OP_BATCH_NORM_EVAL, __ATOMIC_RELAXED);
        __atomic_fetch_add(&n->fold, c->op == REN__OP_BATCH_NORM_FOLD, __ATOMIC_RELAXED);
    }
}

/* ------------------------------------------------------------------ models */

static ren_tensor convolution(ren_model *m, const char *name, ren_tensor x, uint32_t filters,
                              uint32_t groups, uint32_t stride, uint32_t disable_bias)
{
    ren_conv2d_options o = ren_conv2d_options_default();
    o.filters = filters;
    o.kernel[0] = o.kernel[1] = 3;
    o.padding[0] = o.padding[1] = 1;
    o.stride[0] = o.stride[1] = stride;
    o.groups = groups;
    o.disable_bias = disable_bias;
    return ren_conv2d(m, name, x, &o);
}

static void keep(chain *c, ren_tensor t, uint32_t floats)
{
    c->asked[c->count] = t;
    c->floats[c->count++] = floats;
}

static void open_model(chain *c, ren_runtime *rt)
{
    ren_model_config config = ren_model_config_default();
    memset(c, 0, sizeof *c);
    config.seed = 4;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, &config, &c->m, NULL), REN_OK);
}

/* Convolutions: with bias and ReLU; without bias, grouped, with tanh; strided with nothing. Every
 * tensor is asked for on its own, too, as it ends a group then. */
static void build_convolutions(chain *c, ren_runtime *rt)
{
    const int64_t dims[4] = {ROWS, 8, 8, 4};
    open_model(c, rt);
    c->row = 8 * 8 * 4;
    ren_tensor x = ren_input(c->m, "x", REN_F32, dims, 4);
    ren_tensor a = convolution(c->m, "a", x, 8, 1, 1, 0);
    ren_tensor an = ren_batch_norm(c->m, "an", a, NULL);
    ren_tensor ar = ren_relu(c->m, "ar", an);
    ren_tensor b = convolution(c->m, "b", ar, 8, 4, 1, 1);
    ren_tensor bt = ren_tanh(c->m, "bt", ren_batch_norm(c->m, "bn", b, NULL));
    ren_tensor d = ren_batch_norm(c->m, "dn", convolution(c->m, "d", bt, 16, 1, 2, 0), NULL);
    keep(c, d, 4 * 4 * 16);
    keep(c, a, 8 * 8 * 8);
    keep(c, an, 8 * 8 * 8);
    keep(c, ar, 8 * 8 * 8);
    keep(c, b, 8 * 8 * 8);
    keep(c, bt, 8 * 8 * 8);
}

/* Linear layers: with ReLU, without bias, and with GELU behind. */
static void build_linears(chain *c, ren_runtime *rt)
{
    const int64_t dims[2] = {ROWS, 20};
    ren_linear_options with = ren_linear_options_default(), without = with;
    ren_gelu_options gelu = ren_gelu_options_default();
    with.units = without.units = 24;
    without.disable_bias = 1;
    gelu.kind = REN_GELU_TANH;
    open_model(c, rt);
    c->row = 20;
    ren_tensor h = ren_input(c->m, "x", REN_F32, dims, 2);
    h = ren_relu(c->m, "ar", ren_batch_norm(c->m, "an", ren_linear(c->m, "a", h, &with), NULL));
    keep(c, h, 24);
    h = ren_batch_norm(c->m, "bn", ren_linear(c->m, "b", h, &without), NULL);
    keep(c, h, 24);
    h = ren_batch_norm(c->m, "dn", ren_linear(c->m, "d", h, &with), NULL);
    keep(c, ren_gelu(c->m, "dg", h, &gelu), 24);
}

/* Norms that stay: one whose layer is read by a sum as well, and one behind a pooling. */
static void build_kept(chain *c, ren_runtime *rt)
{
    const int64_t dims[4] = {ROWS, 8, 8, 4};
    ren_pool2d_options pool = ren_pool2d_options_default();
    pool.kernel[0] = pool.kernel[1] = 2;
    pool.stride[0] = pool.stride[1] = 2;
    open_model(c, rt);
    c->row = 8 * 8 * 4;
    ren_tensor x = ren_input(c->m, "x", REN_F32, dims, 4);
    ren_tensor a = convolution(c->m, "a", x, 8, 1, 1, 0);
    ren_tensor an = ren_relu(c->m, "ar", ren_batch_norm(c->m, "an", a, NULL));
    ren_tensor p = ren_max_pool2d(c->m, "p", ren_add(c->m, "s", an, a), &pool);
    keep(c, ren_batch_norm(c->m, "pn", p, NULL), 4 * 4 * 8);
}

/* ------------------------------------------------------------------ runs */

static void set_params(chain *c, uint64_t seed)
{
    unsigned long long state = seed;
    for (uint32_t i = 0; i < ren_param_count(c->m); i++) {
        const char *name = ren_param_name(c->m, i);
        float values[3 * 3 * 16 * 16];
        uint32_t positive = strstr(name, "running_var") != NULL;
        size_t bytes = 0;
        for (size_t k = 0; k < REN_TEST_COUNT(values); k++) {
            float v = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
            values[k] = positive ? 0.3f + v * v : v;
        }
        for (size_t n = 1; n <= REN_TEST_COUNT(values) && !bytes; n++) { /* its size */
            bytes = ren_param_set(c->m, name, values, n * sizeof(float)) == REN_OK ? n : 0;
        }
        CU_ASSERT(bytes > 0);
    }
}

static void ask(chain *c, ren_runtime *rt, uint32_t k, const float *x, float *y)
{
    ren_binding binding = {"x", x, ROWS * c->row * sizeof(float)};
    ren_infer_desc desc = ren_infer_desc_default();
    ren_job job;
    desc.bindings = &binding;
    desc.binding_count = 1;
    desc.output = c->asked[k];
    desc.out_data = y;
    desc.out_bytes = ROWS * c->floats[k] * sizeof(float);
    desc.deliver = REN_DELIVER_NONE;
    CU_ASSERT_EQUAL_FATAL(ren_infer(c->m, &desc, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, job, 10 * SECOND), REN_OK);
}

/* All tensors of the model for two sets of parameters, with folding or without; what the first
 * tensor's inference launched. */
static void run(void (*build)(chain *, ren_runtime *), uint32_t folds, float (*out)[MOST],
                counts *launched)
{
    ren_runtime *rt = ren_test_runtime(NULL);
    unsigned long long state = 1;
    float x[ROWS * 8 * 8 * 4];
    chain c;
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    build(&c, rt);
    CU_ASSERT_EQUAL_FATAL(ren_model_status(c.m, NULL), REN_OK);
    for (size_t i = 0; i < REN_TEST_COUNT(x); i++) {
        x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    if (!folds) { /* the first operation that is made is a fold */
        ren_test_fault(rt, "op_create", 1, REN_ERR_UNSUPPORTED, 0);
    }
    CU_ASSERT_EQUAL_FATAL(ren_infer_prepare(c.m, c.asked[0], NULL), REN_OK);
    ren_test_fault_clear(rt);
    for (uint32_t round = 0; round < 2; round++) {
        set_params(&c, 100 + round);
        for (uint32_t k = 0; k < c.count; k++) {
            if (k == 0 && round == 1) {
                CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
                ren_test_trace(rt, count, launched);
            }
            ask(&c, rt, k, x, out[round * TENSORS + k]);
            if (k == 0 && round == 1) {
                CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
                ren_test_trace(rt, NULL, NULL);
            }
        }
    }
    ren_model_destroy(c.m);
    ren_test_shutdown(rt);
}

static void compare(void (*build)(chain *, ren_runtime *), uint32_t norms, uint32_t kept)
{
    static float with[2 * TENSORS][MOST], without[2 * TENSORS][MOST];
    counts folded, plain;
    memset(&folded, 0, sizeof folded);
    memset(&plain, 0, sizeof plain);
    memset(with, 0, sizeof with);
    memset(without, 0, sizeof without);
    run(build, 1, with, &folded);
    run(build, 0, without, &plain);
    for (uint32_t i = 0; i < 2 * TENSORS; i++) {
        double distance = golden_distance(with[i], without[i], MOST);
        CU_ASSERT(distance <= 1e-5);
    }
    CU_ASSERT_NOT_EQUAL(memcmp(with[0], with[TENSORS], sizeof with[0]), 0);
    CU_ASSERT_EQUAL(plain.eval, norms);
    CU_ASSERT_EQUAL(plain.fold, 0);
    CU_ASSERT_EQUAL(folded.eval, kept);
    CU_ASSERT(folded.fold >= norms - kept);
}

static void test_fold_convolutions(void)
{
    compare(build_convolutions, 3, 0);
}

static void test_fold_linears(void)
{
    compare(build_linears, 1, 0);
}

static void test_fold_keeps(void)
{
    compare(build_kept, 2, 2);
}

/* Residual blocks, while training moves weights and running statistics: answers with and without
 * folding agree after each step. */
static void test_fold_beside_training(void)
{
    enum {
        STEPS = 6
    };
    static float out[2][STEPS + 1][BATCH * 10];
    for (uint32_t folds = 0; folds < 2; folds++) {
        ren_runtime_config config = ren_test_config();
        ren_trainer_config how = sgd(0.02f);
        unsigned long long state = 6;
        static float x[BATCH * 8 * 8 * 4];
        int32_t labels[BATCH];
        ren_trainer *t = NULL;
        net n;
        config.deterministic = 1;
        ren_runtime *rt = ren_test_runtime(&config);
        CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
        net_build(&n, rt, NET_TINYRES, BATCH, 3);
        if (!folds) {
            ren_test_fault(rt, "op_create", 1, REN_ERR_UNSUPPORTED, 0);
        }
        CU_ASSERT_EQUAL_FATAL(ren_infer_prepare(n.model, n.logits, NULL), REN_OK);
        ren_test_fault_clear(rt);
        CU_ASSERT_EQUAL_FATAL(ren_trainer_create(n.model, n.loss, &how, &t, NULL), REN_OK);
        for (size_t i = 0; i < REN_TEST_COUNT(x); i++) {
            x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
        }
        for (uint32_t i = 0; i < BATCH; i++) {
            labels[i] = (int32_t)(ren_test_random(&state) % 10u);
        }
        for (uint32_t step = 0; step <= STEPS; step++) {
            ren_binding binding = {"x", x, sizeof x};
            ren_infer_desc desc = ren_infer_desc_default();
            net_result r;
            ren_job job;
            desc.bindings = &binding;
            desc.binding_count = 1;
            desc.output = n.logits;
            desc.out_data = out[folds][step];
            desc.out_bytes = sizeof out[folds][step];
            desc.deliver = REN_DELIVER_NONE;
            CU_ASSERT_EQUAL_FATAL(ren_infer(n.model, &desc, &job), REN_OK);
            CU_ASSERT_EQUAL(ren_wait(rt, job, 10 * SECOND), REN_OK);
            net_step(&n, rt, t, x, labels, &r);
            CU_ASSERT_EQUAL(r.status, REN_OK);
        }
        ren_trainer_destroy(t);
        ren_model_destroy(n.model);
        ren_test_shutdown(rt);
    }
    for (uint32_t step = 0; step <= STEPS; step++) {
        double distance = golden_distance(out[1][step], out[0][step], BATCH * 10);
        CU_ASSERT(distance <= 1e-4);
        CU_ASSERT(step == 0 || memcmp(out[1][step], out[1][step - 1], sizeof out[1][0]) != 0);
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_fold_convolutions", test_fold_convolutions},
        {"test_fold_linears", test_fold_linears},
        {"test_fold_keeps", test_fold_keeps},
        {"test_fold_beside_training", test_fold_beside_training},
    };
    return ren_test_main(argc, argv, "conformance/test_infer_fold", cases, REN_TEST_COUNT(cases),
                         120);
}
