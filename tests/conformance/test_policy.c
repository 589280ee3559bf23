/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_policy.c - training by the table of streams, and by what pays.
 *
 * The policies put the same tasks on other streams, and so order them by other events and pack
 * their values otherwise. A run of each must end with the same bits, on both paths: what differs is
 * an edge that one of them lost, or memory that two tasks under way at once share.
 */
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Waits inside a plan: UPDATE's for the copies are not among them. */
static uint64_t waits_of(const run_result *r)
{
    return r->stats.events_waited / r->steps;
}

static void compare_policies(const run_spec *how)
{
    static const struct {
        uint32_t streams, queued;
    } others[] = {{5, 1}, {5, 0}, {3, 0}, {1, 0}};
    static run_result base, other;
    run_spec spec = *how;
    spec.queued = 1;
    spec.policy = REN_POLICY_GREEDY;
    run_alone(&spec, &base);
    CU_ASSERT(base.results[spec.steps - 1].step.loss < base.results[0].step.loss);
    spec.policy = REN_POLICY_STATIC;
    for (size_t i = 0; i < REN_TEST_COUNT(others); i++) {
        spec.streams = others[i].streams;
        spec.queued = others[i].queued;
        run_alone(&spec, &other);
        CU_ASSERT_EQUAL(other.graph_steps != 0, !spec.queued);
        /* It went over several streams: on the queued path that takes events. */
        CU_ASSERT(i != 0 || waits_of(&other) > 4);
        run_same(&base, &other);
    }
    run_free(&base);
}

static void compare_net(net_kind kind)
{
    run_spec spec = run_default(kind);
    spec.steps = 60;
    spec.block = 20;
    compare_policies(&spec);
}

static void test_policies_agree_mlp(void)
{
    compare_net(NET_MLP);
}

static void test_policies_agree_lenet(void)
{
    compare_net(NET_LENET);
}

static void test_policies_agree_batch_norm(void)
{
    compare_net(NET_TINYRES);
}

static void test_policies_agree_branches(void)
{
    compare_net(NET_BRANCH);
}

/* With LARS on three streams, gradients summed over steps, clipping and an average. */
static void test_policies_agree_windows(void)
{
    run_spec spec = run_default(NET_TINYRES);
    spec.optimizer = REN_OPTIMIZER_LARS;
    spec.window = 3;
    spec.steps = 60;
    compare_policies(&spec);
}

/* The lanes of the CPU device run in an order made by seeds, and memory is full of NaN when it is
 * taken: a wait that the table's plan lacks changes the weights. */
static void test_static_seeded(void)
{
    static const net_kind kinds[] = {NET_LENET, NET_TINYRES, NET_BRANCH};
    static run_result base, other;
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_skip("seeds order the CPU device's commands");
        return;
    }
    for (size_t k = 0; k < REN_TEST_COUNT(kinds); k++) {
        run_spec spec = run_default(kinds[k]);
        spec.steps = 4;
        spec.queued = 1;
        spec.streams = 1;
        run_alone(&spec, &base);
        spec.streams = 5;
        spec.policy = REN_POLICY_STATIC;
        for (uint32_t seed = 1; seed <= 8 / ren_test_slowdown() + 1; seed++) {
            ren_test_seed(NULL, seed);
            ren_test_poison(NULL, 1);
            run_alone(&spec, &other);
            run_same(&base, &other);
        }
        run_free(&base);
    }
}

/* A policy that there is not is refused with a text. */
static void test_policy_is_checked(void)
{
    ren_trainer_config how = ren_trainer_config_default();
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_trainer *t = NULL;
    ren_error err = {0};
    net n;
    net_build(&n, rt, NET_MLP, 4, 1);
    CU_ASSERT_EQUAL(how.stream_policy, REN_POLICY_GREEDY);
    how.stream_policy = (ren_stream_policy)2;
    CU_ASSERT_EQUAL(ren_trainer_create(n.model, n.loss, &how, &t, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NULL(t);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "stream_policy"));
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_policies_agree_mlp", test_policies_agree_mlp},
        {"test_policies_agree_lenet", test_policies_agree_lenet},
        {"test_policies_agree_batch_norm", test_policies_agree_batch_norm},
        {"test_policies_agree_branches", test_policies_agree_branches},
        {"test_policies_agree_windows", test_policies_agree_windows},
        {"test_static_seeded", test_static_seeded},
        {"test_policy_is_checked", test_policy_is_checked},
    };
    return ren_test_main(argc, argv, "conformance/test_policy", cases, REN_TEST_COUNT(cases), 180);
}
