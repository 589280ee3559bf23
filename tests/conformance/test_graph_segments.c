/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_graph_segments.c - a step as several graphs is the step that it was.
 *
 * Purpose   With ren_trainer_config.graph_segments a replayed step is a graph for each segment of
 *           its plan. What is compared is bits, with the queued path and with one graph for all.
 *           Faults are in fault/test_graph.c, random plans in test_plan_issue.c.
 */
#include "../../libren/graph/internal.h"
#include "../../libren/train/trainer_state.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "runs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SEGMENTS 3u /* forward, backward, optimizer; in mixed precision casts come before */

/* Queued as a base; then segments: graphs after one step and three, one stream and five, and both
 * policies; then back to one graph. Steady, and with ten batch sizes in turn, so that each goes
 * from queued to graphs and its plan is dropped. */
static void compare(const run_spec *like)
{
    static const struct {
        uint32_t after, streams, segments;
        ren_stream_policy policy;
    } others[] = {{1, 5, 1, REN_POLICY_GREEDY}, {3, 5, 1, REN_POLICY_GREEDY},
                  {3, 1, 1, REN_POLICY_GREEDY}, {3, 5, 1, REN_POLICY_STATIC},
                  {3, 2, 1, REN_POLICY_STATIC}, {3, 5, 0, REN_POLICY_GREEDY}};
    static run_result base, other;
    uint32_t window = like->window ? like->window : 1;
    uint32_t places = window % 2 ? 2 : 1; /* in an even window a step has always the same one */
    uint32_t rows = SEGMENTS + (like->precision != REN_PRECISION_F32);
    for (uint32_t switching = 0; switching < 2; switching++) {
        run_spec spec = *like;
        uint32_t sizes = switching ? 10 : 1;
        spec.steps = (switching ? 120 : 40) * window;
        spec.block = switching ? spec.steps / sizes : 0;
        spec.sizes = sizes;
        spec.queued = 1;
        run_alone(&spec, &base);
        CU_ASSERT_EQUAL(base.graph_steps, 0);
        spec.queued = 0;
        for (size_t i = 0; i < REN_TEST_COUNT(others); i++) {
            spec.after = others[i].after;
            spec.streams = others[i].streams;
            spec.segments = others[i].segments;
            spec.policy = others[i].policy;
            run_alone(&spec, &other);
            CU_ASSERT_EQUAL(other.graph_steps, spec.steps - spec.after * sizes * window);
            CU_ASSERT_EQUAL(other.stats.graph_captures,
                            places * sizes * window * (spec.segments ? rows : 1));
            CU_ASSERT_EQUAL(other.stats.graph_fallbacks, 0);
            CU_ASSERT_EQUAL(other.stats.steps_graph, other.graph_steps);
            run_same(&base, &other);
        }
        run_free(&base);
    }
}

static void test_segments_agree_mlp(void)
{
    run_spec spec = run_default(NET_MLP);
    spec.vary = 1;
    compare(&spec);
}

static void test_segments_agree_lenet(void)
{
    run_spec spec = run_default(NET_LENET);
    compare(&spec);
}

static void test_segments_agree_batch_norm(void)
{
    run_spec spec = run_default(NET_TINYRES);
    compare(&spec);
}

static void test_segments_agree_branches(void)
{
    run_spec spec = run_default(NET_BRANCH);
    spec.optimizer = REN_OPTIMIZER_LARS;
    compare(&spec);
}

/* Sums and running statistics go from step to step and from place to place; the middle of a window
 * ends without an update. */
static void test_segments_agree_windows(void)
{
    for (uint32_t window = 1; window <= 3; window++) {
        run_spec spec = run_default(NET_TINYRES);
        spec.optimizer = REN_OPTIMIZER_ADAM;
        spec.window = window;
        compare(&spec);
    }
}

static void test_segments_agree_mixed(void)
{
    run_spec spec = run_default(NET_BRANCH);
    spec.precision = REN_PRECISION_MIXED_BF16;
    compare(&spec);
}

/* More batch sizes in turn than plans are kept: segments take over the executables of their like,
 * and of nothing else. */
static void test_segments_are_updated(void)
{
    static run_result base, other;
    run_spec spec = run_default(NET_MLP);
    spec.block = 3;
    spec.sizes = 10;
    spec.steps = 90;
    spec.after = 1;
    spec.queued = 1;
    run_alone(&spec, &base);
    spec.queued = 0;
    spec.segments = 1;
    run_alone(&spec, &other);
    CU_ASSERT_EQUAL(other.stats.graph_captures, 2 * SEGMENTS * 30);
    CU_ASSERT(other.stats.graph_updates > 0);
    (void)printf("       %llu of %llu captures were updates\n",
                 (unsigned long long)other.stats.graph_updates,
                 (unsigned long long)other.stats.graph_captures);
    run_same(&base, &other);
    run_free(&base);
}

/* The table of a plan: rows that follow each other, a label each, an executable for A and one for
 * B in each; no task that is lasting before the last row. */
static void test_rows(void)
{
    static const char *const labels[] = {"cast", "forward", "backward", "optimizer"};
    static run_result out;
    for (uint32_t mixed = 0; mixed < 2; mixed++) {
        run_spec spec = run_default(NET_BRANCH);
        spec.precision = mixed ? REN_PRECISION_MIXED_BF16 : REN_PRECISION_F32;
        spec.segments = 1;
        spec.one_by_one = 1;
        ren_runtime *rt = run_runtime(&spec);
        ren__step_plan *sp = NULL;
        run r;
        run_begin(&r, rt, &spec, &out);
        while (r.next < 6) {
            run_step(&r);
        }
        CU_ASSERT_EQUAL_FATAL(ren__trainer_plan(r.t, r.n.batch, &sp, NULL), REN_OK);
        const ren__plan *plan = sp->phase[REN__STEP_PHASES - 1].plan;
        const ren__replay *replay = &sp->phase[REN__STEP_PHASES - 1].replay;
        CU_ASSERT_EQUAL_FATAL(ren__plan_segment_count(plan), SEGMENTS + mixed);
        for (uint32_t i = 0, at = 0; i < SEGMENTS + mixed; i++) {
            const ren__plan_segment *row = ren__plan_segment_at(plan, i);
            CU_ASSERT_STRING_EQUAL(row->name, labels[i + 1 - mixed]);
            CU_ASSERT_EQUAL(row->first, at);
            for (; at < row->end; at++) {
                CU_ASSERT_STRING_EQUAL(plan->tasks[at].segment, row->name);
                CU_ASSERT((row->lanes >> plan->nodes[at].lane & 1u) == 1);
                CU_ASSERT(!plan->tasks[at].lasting || i + 1 == SEGMENTS + mixed);
            }
            CU_ASSERT_PTR_NOT_NULL(replay->graph[0][0][i]);
            CU_ASSERT_PTR_NOT_NULL(replay->graph[0][1][i]);
            CU_ASSERT_PTR_NOT_EQUAL(replay->graph[0][0][i], replay->graph[0][1][i]);
        }
        run_end(&r);
        run_free(&out);
        ren_test_shutdown(rt);
    }
}

/* Under a trace the graphs have stamps, segment by segment; the bits stay. */
static void test_segments_under_a_trace(void)
{
    static run_result base, other;
    char path[64];
    run_spec spec = run_default(NET_BRANCH);
    ren_stats stats = ren_stats_default();
    run r;
    (void)snprintf(path, sizeof path, "/tmp/ren-test-segments-%ld", (long)getpid());
    spec.steps = 40;
    run_alone(&spec, &base);
    spec.segments = 1;
    spec.one_by_one = 1;
    ren_runtime *rt = run_runtime(&spec);
    run_begin(&r, rt, &spec, &other);
    while (r.next < spec.steps) {
        if (r.next == 10) {
            CU_ASSERT_EQUAL(ren_trace_begin(rt, path, NULL), REN_OK);
        } else if (r.next == 30) {
            CU_ASSERT_EQUAL(ren_trace_end(rt), REN_OK);
        }
        run_step(&r);
    }
    run_end(&r);
    CU_ASSERT_EQUAL(other.graph_steps, spec.steps - spec.after);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.timed_steps, 20);
    CU_ASSERT(stats.timed_device_ns > 0);
    CU_ASSERT_EQUAL(stats.graph_captures, 4 * SEGMENTS);
    run_same(&base, &other);
    run_free(&base);
    ren_test_shutdown(rt);
    (void)unlink(path);
}

/* What is neither 0 nor 1 is refused, with words. */
static void test_config(void)
{
    run_spec spec = run_default(NET_MLP);
    ren_runtime *rt = run_runtime(&spec);
    ren_trainer_config config = ren_trainer_config_default();
    ren_trainer *t = NULL;
    ren_error err = {0};
    net n;
    net_build(&n, rt, NET_MLP, 4, 1);
    CU_ASSERT_EQUAL(config.graph_segments, 0);
    config.graph_segments = 2;
    CU_ASSERT_EQUAL(ren_trainer_create(n.model, n.loss, &config, &t, &err),
                    REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "graph_segments"));
    config.graph_segments = 1;
    CU_ASSERT_EQUAL(ren_trainer_create(n.model, n.loss, &config, &t, &err), REN_OK);
    ren_trainer_destroy(t);
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_segments_agree_mlp", test_segments_agree_mlp},
        {"test_segments_agree_lenet", test_segments_agree_lenet},
        {"test_segments_agree_batch_norm", test_segments_agree_batch_norm},
        {"test_segments_agree_branches", test_segments_agree_branches},
        {"test_segments_agree_windows", test_segments_agree_windows},
        {"test_segments_agree_mixed", test_segments_agree_mixed},
        {"test_segments_are_updated", test_segments_are_updated},
        {"test_rows", test_rows},
        {"test_segments_under_a_trace", test_segments_under_a_trace},
        {"test_config", test_config},
    };
    return ren_test_main(argc, argv, "conformance/test_graph_segments", cases,
                         REN_TEST_COUNT(cases), 240);
}
