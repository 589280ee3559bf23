/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_mixed.c - steps that the device skips.
 *
 * Bad gradients come from inputs that hold a NaN or an infinity. A skipped step must have changed
 * nothing: a run with bad steps in it equals, bit for bit, a run without them.
 */
#include "../golden/nets.h"
#include "../support/runtime.h"
#include "../support/test.h"

#include <math.h>
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

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_skip_adam", test_skip_adam},     {"test_skip_graph", test_skip_graph},
        {"test_skip_sgd", test_skip_sgd},       {"test_skip_lars", test_skip_lars},
        {"test_skip_window", test_skip_window},
    };
    return ren_test_main(argc, argv, "conformance/test_mixed", cases, REN_TEST_COUNT(cases), 120);
}
