/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_fused.c - whole models with fused operations and without.
 *
 * The same training twice, once on the device as it is and once on one that announces no fusion:
 * losses of all steps, weights at the end and an inference with them stay together within what
 * rounding explains. A gradient that goes to the wrong tensor, is left out or is added twice where
 * operations are fused drives the two apart. What each operation computes is the business of
 * test_fused_ops.
 */
#include "../golden/nets.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#include "../../libren/core/core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS    8u
#define STEPS   20u
#define CLASSES 10u

typedef struct outcome {
    float losses[STEPS];
    float logits[ROWS * CLASSES];
    float *params;
    size_t count;
} outcome;

/* Images of a few kinds with noise, so that there is something to learn. */
static void make_batch(const net *n, uint32_t index, float *x, int32_t *labels)
{
    unsigned long long seed = 100 + index;
    for (uint32_t r = 0; r < ROWS; r++) {
        labels[r] = (int32_t)(ren_test_random(&seed) % CLASSES);
        for (size_t i = 0; i < n->row; i++) {
            float noise = (float)(ren_test_random(&seed) % 2001u) / 1000.0f - 1.0f;
            x[r * n->row + i] = noise + ((int32_t)(i % CLASSES) == labels[r] ? 1.0f : 0.0f);
        }
    }
}

static void infer(net *n, ren_runtime *rt, const float *x, outcome *out)
{
    ren_binding binding = {"x", x, n->row * ROWS * sizeof(float)};
    ren_infer_desc desc = ren_infer_desc_default();
    ren_job job;
    desc.bindings = &binding;
    desc.binding_count = 1;
    desc.output = n->logits;
    desc.out_data = out->logits;
    desc.out_bytes = sizeof out->logits;
    desc.deliver = REN_DELIVER_NONE;
    CU_ASSERT_EQUAL_FATAL(ren_infer(n->model, &desc, &job), REN_OK);
    net_wait(rt, job);
}

/* `frozen`: a layer whose parameters stay, or NULL. */
static void train(net_kind kind, ren_precision precision, const char *frozen, int unfused,
                  outcome *out)
{
    ren_trainer_config how = ren_trainer_config_default();
    ren_trainer *t = NULL;
    net n;
    if (unfused) {
        ren_test_unfused_next();
    }
    ren_runtime *rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    CU_ASSERT_EQUAL(unfused && ren__runtime_caps(rt)->fusions, 0);
    net_build(&n, rt, kind, ROWS, 3);
    how.momentum = 0.9f;
    how.learning_rate = 0.01f;
    how.precision = precision;
    how.loss_scale = 1024.0f;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(n.model, n.loss, &how, &t, NULL), REN_OK);
    if (frozen) {
        CU_ASSERT_EQUAL_FATAL(ren_param_set_frozen(n.model, frozen, 1), REN_OK);
    }
    float *x = malloc(ROWS * n.row * sizeof *x);
    CU_ASSERT_PTR_NOT_NULL_FATAL(x);
    for (uint32_t s = 0; s < STEPS; s++) {
        int32_t labels[ROWS];
        net_result result;
        make_batch(&n, s % 4, x, labels);
        net_step(&n, rt, t, x, labels, &result);
        CU_ASSERT_EQUAL(result.status, REN_OK);
        CU_ASSERT_EQUAL(result.step.skipped, 0);
        out->losses[s] = result.step.loss;
    }
    infer(&n, rt, x, out);
    out->params = net_params(&n, &out->count);
    free(x);
    ren_trainer_destroy(t);
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
}

static double apart(const float *a, const float *b, size_t count)
{
    double difference = 0.0;
    double size = 0.0;
    for (size_t i = 0; i < count; i++) {
        difference += pow((double)a[i] - (double)b[i], 2.0);
        size += pow((double)b[i], 2.0);
    }
    return sqrt(difference / size);
}

static void compare(net_kind kind, ren_precision precision, const char *frozen)
{
    static const double tolerances[] = {
        [REN_PRECISION_F32] = 1e-4,
        [REN_PRECISION_MIXED_F16] = 1e-2,
        [REN_PRECISION_MIXED_BF16] = 5e-2,
    };
    double tolerance = tolerances[precision];
    outcome fused, parts;
    train(kind, precision, frozen, 0, &fused);
    train(kind, precision, frozen, 1, &parts);
    double of_losses = apart(fused.losses, parts.losses, STEPS);
    double of_params = apart(fused.params, parts.params, parts.count);
    double of_logits = apart(fused.logits, parts.logits, ROWS * CLASSES);
    if (!(of_losses <= tolerance && of_params <= tolerance && of_logits <= 4.0 * tolerance)) {
        printf("    net %d, precision %d: losses %.3g apart, parameters %.3g, logits %.3g\n",
               (int)kind, (int)precision, of_losses, of_params, of_logits);
    }
    CU_ASSERT(of_losses <= tolerance);
    CU_ASSERT(of_params <= tolerance);
    CU_ASSERT(of_logits <= 4.0 * tolerance);
    CU_ASSERT(parts.losses[STEPS - 1] < parts.losses[0]);
    free(fused.params);
    free(parts.params);
}

static void compare_all(ren_precision precision)
{
    compare(NET_MLP, precision, NULL);
    compare(NET_LENET, precision, NULL);
    compare(NET_TINYRES, precision, NULL);
    compare(NET_BRANCH, precision, NULL);
}

static void test_fused_f32(void)
{
    compare_all(REN_PRECISION_F32);
}

static void test_fused_f16(void)
{
    compare_all(REN_PRECISION_MIXED_F16);
}

static void test_fused_bf16(void)
{
    compare_all(REN_PRECISION_MIXED_BF16);
}

static void test_fused_frozen(void)
{
    compare(NET_MLP, REN_PRECISION_F32, "l2.bias");
    compare(NET_MLP, REN_PRECISION_F32, "l1");
    compare(NET_LENET, REN_PRECISION_F32, "c2.weight");
    compare(NET_TINYRES, REN_PRECISION_F32, "b2.dbn");
    compare(NET_TINYRES, REN_PRECISION_F32, "b1.bn2");
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_fused_f32", test_fused_f32},
        {"test_fused_f16", test_fused_f16},
        {"test_fused_bf16", test_fused_bf16},
        {"test_fused_frozen", test_fused_frozen},
    };
    return ren_test_main(argc, argv, "conformance/test_fused", cases, REN_TEST_COUNT(cases), 120);
}
