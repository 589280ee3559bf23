/* SPDX-License-Identifier: MIT */
/* tests/golden/test_train.c - whole trainings against PyTorch's.
 *
 * Each case proves that 25 steps from given first values over given batches give PyTorch's loss at
 * every step (1e-4 relative) and its final parameters: builder, differentiation, plan, kernels, the
 * update rule and the running statistics together. A missing edge between streams, a gradient that
 * is not added, a wrong layout or a wrong bias correction makes it fail.
 */
#include "../support/runtime.h"
#include "../support/test.h"
#include "nets.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LOSS_TOLERANCE  1e-4
#define FINAL_TOLERANCE 1e-4

static void check_final(net *n, const golden_case *g)
{
    for (uint32_t i = 0; i < ren_param_count(n->model); i++) {
        char name[128];
        size_t count;
        (void)snprintf(name, sizeof name, "final.%s", ren_param_name(n->model, i));
        const float *want = golden_tensor(g, name, NULL, NULL, &count);
        float *got = malloc(count * sizeof(float));
        CU_ASSERT_PTR_NOT_NULL_FATAL(got);
        CU_ASSERT_EQUAL(
            ren_param_get(n->model, ren_param_name(n->model, i), got, count * sizeof(float)),
            REN_OK);
        double distance = golden_distance(got, want, count);
        if (!(distance <= FINAL_TOLERANCE)) {
            (void)fprintf(stderr, "%s: distance %g\n", name, distance);
        }
        CU_ASSERT(distance <= FINAL_TOLERANCE);
        free(got);
    }
}

static void train(const char *name, net_kind kind)
{
    golden_case *g = golden_open(name);
    int64_t dims[GOLDEN_MAX_RANK];
    size_t steps;
    const float *losses = golden_tensor(g, "losses", NULL, NULL, &steps);
    const float *x = golden_tensor(g, "x", dims, NULL, NULL);
    const int32_t *labels = golden_tensor_i32(g, "labels", NULL, NULL, NULL);
    ren_runtime *rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    net n;
    net_build(&n, rt, kind, (uint32_t)dims[1], 1);
    net_load(&n, g, "init.");
    ren_trainer *t = net_trainer(&n, g);
    for (size_t i = 0; i < steps; i++) {
        net_result r;
        size_t b = i % (size_t)dims[0];
        net_step(&n, rt, t, x + b * n.row * n.batch, labels + b * n.batch, &r);
        CU_ASSERT_EQUAL(r.status, REN_OK);
        CU_ASSERT_EQUAL(r.step.index, i + 1);
        double error = fabs((double)r.step.loss - (double)losses[i]) / fabs((double)losses[i]);
        if (!(error <= LOSS_TOLERANCE)) {
            (void)fprintf(stderr, "%s: step %zu: loss %.7g, not %.7g\n", name, i,
                          (double)r.step.loss, (double)losses[i]);
        }
        CU_ASSERT(error <= LOSS_TOLERANCE);
    }
    check_final(&n, g);
    ren_trainer_destroy(t);
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
    golden_close(g);
}

static void test_train_mlp_sgd(void)
{
    train("train_mlp_sgd", NET_MLP);
}

static void test_train_mlp_adam(void)
{
    train("train_mlp_adam", NET_MLP);
}

static void test_train_lenet_sgd(void)
{
    train("train_lenet_sgd", NET_LENET);
}

static void test_train_tinyres_sgd(void)
{
    train("train_tinyres_sgd", NET_TINYRES);
}

static void test_train_branch_adam(void)
{
    train("train_branch_adam", NET_BRANCH);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_train_mlp_sgd", test_train_mlp_sgd},
        {"test_train_mlp_adam", test_train_mlp_adam},
        {"test_train_lenet_sgd", test_train_lenet_sgd},
        {"test_train_tinyres_sgd", test_train_tinyres_sgd},
        {"test_train_branch_adam", test_train_branch_adam},
    };
    return ren_test_main(argc, argv, "golden/test_train", cases, REN_TEST_COUNT(cases), 120);
}
