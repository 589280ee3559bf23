/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_small_models.c - the small standard models train alike on every path.
 *
 * The models of the step benchmark, with small batches: four layers of one width, convolutions with
 * a linear layer of a million weights, and blocks of four branches with batch norm. A run by the
 * queued path on five streams is held, bit for bit, against one that replays graphs, one that goes
 * back to the queued path ten times, and both paths on one stream. Batch sizes take turns: with
 * room for both plans a size that comes back goes on with its graphs, with room for one it is
 * planned anew.
 */
#include "../support/runtime.h"
#include "../support/test.h"
#include "runs.h"

/* Of the losses of five steps, which is each batch once. */
static float loss_from(const run_result *r, uint32_t first)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < 5; i++) {
        sum += r->results[first + i].step.loss;
    }
    return sum;
}

static void compare(const char *model, uint32_t batch, uint32_t steps)
{
    static const struct {
        uint32_t streams, queued, plan_cache;
        ren_stream_policy policy;
    } others[] = {{1, 1, 0, REN_POLICY_GREEDY},
                  {5, 0, 0, REN_POLICY_GREEDY},
                  {5, 0, 1, REN_POLICY_GREEDY},
                  {1, 0, 1, REN_POLICY_GREEDY},
                  {5, 0, 0, REN_POLICY_STATIC}};
    static run_result base, other;
    run_spec spec = run_default(NET_LENET);
    /* A turn is `after` queued steps and one or more for each of the two graphs. */
    uint32_t is_slow = ren_test_slowdown() > 1, turns = is_slow ? 4 : 10;
    spec.model = model;
    spec.batch = batch;
    spec.steps = steps;
    spec.block = steps / turns;
    spec.after = is_slow ? 1 : 3;
    spec.queued = 1;
    run_alone(&spec, &base);
    CU_ASSERT_EQUAL(base.graph_steps, 0);
    /* It learns: identical nonsense would pass the comparison as well. */
    CU_ASSERT(loss_from(&base, spec.steps - 5) < loss_from(&base, 0));
    for (size_t i = 0; i < REN_TEST_COUNT(others); i++) {
        uint32_t plans = others[i].plan_cache ? turns : spec.sizes;
        spec.streams = others[i].streams;
        spec.queued = others[i].queued;
        spec.plan_cache = others[i].plan_cache;
        spec.policy = others[i].policy;
        run_alone(&spec, &other);
        run_same(&base, &other);
        CU_ASSERT_EQUAL(other.graph_steps, spec.queued ? 0 : spec.steps - spec.after * plans);
    }
    run_free(&base);
}

/* 200 steps on a device that is made for it, and where a step takes little. */
static uint32_t steps_of(uint32_t on_cpu, uint32_t slowed_down)
{
    return ren_test_device() != REN_DEVICE_CPU ? 200
           : ren_test_slowdown() > 1           ? slowed_down
                                               : on_cpu;
}

static void test_mlp_64x4(void)
{
    compare("mlp-64x4", 16, steps_of(200, 60));
}

static void test_lenet28(void)
{
    compare("lenet28", 3, steps_of(200, 16));
}

static void test_incep32(void)
{
    compare("incep32", 2, steps_of(60, 16));
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_mlp_64x4", test_mlp_64x4},
        {"test_lenet28", test_lenet28},
        {"test_incep32", test_incep32},
    };
    return ren_test_main(argc, argv, "conformance/test_small_models", cases, REN_TEST_COUNT(cases),
                         180);
}
