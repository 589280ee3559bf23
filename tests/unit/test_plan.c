/* SPDX-License-Identifier: MIT */
/* tests/unit/test_plan.c - the planner keeps every required order, with no event too many.
 *
 * Purpose   Golden plans whose streams and events can be checked by eye, each naming its policy;
 *           and 500 random programs judged by an oracle that sees only the commands enqueued.
 */
#include "plan_fake.h"
#include "plan_random.h"

#define NONE REN__NO_VALUE
/* Bytes, of which the planner reckons 10 a ns for a device that says nothing; an event is 5 us. */
#define BIG   100000000u /* 10 ms */
#define SMALL 100u

static uint32_t fixed_value(ren__task_graph *g, const char *name)
{
    return ren__task_graph_value(g, name, REN__VALUE_FIXED, 1024);
}

static uint32_t local_value(ren__task_graph *g, const char *name)
{
    return ren__task_graph_value(g, name, REN__VALUE_LOCAL, 1024);
}

/* ------------------------------------------------------------------ golden plans */

/* GREEDY keeps a chain on one stream with no event, though the table names a different stream for
 * each link; and on the origin's, so that it needs no fork and no join. Fails if moving costs
 * nothing, or if the table's streams win over fewer events. */
static void test_build_linear_chain_greedy(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t value = fixed_value(g, "x");
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t next = local_value(g, "y");
        fake_op(g, "link", (ren_stream)(REN_STREAM_COMP_1 + i % 3u), BIG, value, NONE, next);
        value = next;
    }
    ren__plan_config config = fake_config(REN__POLICY_GREEDY, 5);
    ren__plan *plan = fake_build(g, &config);
    ren__plan_counts counts = fake_counts(plan);
    CU_ASSERT_EQUAL(counts.events, 0);
    CU_ASSERT_EQUAL(counts.waits, 0);
    CU_ASSERT_EQUAL(counts.lanes_used, 1);
    CU_ASSERT_EQUAL(counts.edges, 11);
    for (uint32_t i = 0; i < 12; i++) {
        CU_ASSERT_EQUAL(ren__plan_task_stream(plan, i), config.origin);
    }
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
    CU_ASSERT_EQUAL(fake.in_use, 0);
}

/* dy -> weight gradient, bias gradient, data gradient, as the table spreads them. */
static ren__task_graph *linear_backward(void)
{
    ren__task_graph *g = fake_graph();
    uint32_t dy = local_value(g, "dy");
    fake_op(g, "loss", REN_STREAM_COMP_1, BIG, fixed_value(g, "p"), NONE, dy);
    fake_op(g, "dw", REN_STREAM_COMP_1, BIG, dy, fixed_value(g, "x"), fixed_value(g, "gw"));
    fake_op(g, "db", REN_STREAM_COMP_2, BIG, dy, NONE, fixed_value(g, "gb"));
    fake_op(g, "dx", REN_STREAM_COMP_3, BIG, dy, fixed_value(g, "w"), local_value(g, "dx"));
    return g;
}

/* One event behind dy, two waits, three streams: STATIC by the table, and GREEDY by itself. Fails
 * if each consumer gets an event of its own, or if GREEDY queues independent gradients. */
static void test_build_linear_backward_static_and_greedy(void)
{
    for (uint32_t policy = REN__POLICY_STATIC; policy <= REN__POLICY_GREEDY; policy++) {
        fake_reset();
        ren__task_graph *g = linear_backward();
        ren__plan_config config = fake_config((ren__plan_policy)policy, 5);
        ren__plan *plan = fake_build(g, &config);
        ren__plan_counts counts = fake_counts(plan);
        uint32_t used = 0;
        CU_ASSERT_EQUAL(counts.events, 1);
        CU_ASSERT_EQUAL(counts.waits, 2);
        CU_ASSERT_EQUAL(counts.lanes_used, 3);
        for (uint32_t i = 1; i <= 3; i++) {
            used |= 1u << ren__plan_task_stream(plan, i);
            if (policy == REN__POLICY_STATIC) {
                CU_ASSERT_EQUAL(ren__plan_task_stream(plan, i),
                                (ren_stream)(REN_STREAM_COMP_1 + i - 1u));
            }
        }
        CU_ASSERT_EQUAL(__builtin_popcount(used), 3);
        ren__plan_destroy(plan);
        ren__task_graph_destroy(g);
    }
}

/* Four branches of three tasks each from one value into one join. */
static ren__task_graph *inception(uint64_t cost)
{
    ren__task_graph *g = fake_graph();
    uint32_t x = local_value(g, "x");
    fake_op(g, "stem", REN_STREAM_COMP_1, cost, fixed_value(g, "in"), NONE, x);
    ren__task join = fake_task("concat", REN_STREAM_COMP_3, cost);
    for (uint32_t b = 0; b < 4; b++) {
        uint32_t value = x;
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t next = local_value(g, "y");
            fake_op(g, "branch", REN_STREAM_COMP_1, cost, value, NONE, next);
            value = next;
        }
        fake_reads(&join, b, value);
    }
    fake_writes(&join, 11, fixed_value(g, "out"));
    ren__task_graph_add(g, &join);
    return g;
}

/* GREEDY, large tasks: each branch stays on one stream, the four are on four, and only one event
 * forks and three join. Fails if a branch is torn apart or two share a stream. */
static void test_build_inception_greedy(void)
{
    fake_reset();
    ren__task_graph *g = inception(BIG);
    ren__plan_config config = fake_config(REN__POLICY_GREEDY, 5);
    ren__plan *plan = fake_build(g, &config);
    uint32_t used = 0;
    for (uint32_t b = 0; b < 4; b++) {
        ren_stream stream = ren__plan_task_stream(plan, 1u + 3u * b);
        used |= 1u << stream;
        CU_ASSERT_EQUAL(ren__plan_task_stream(plan, 2u + 3u * b), stream);
        CU_ASSERT_EQUAL(ren__plan_task_stream(plan, 3u + 3u * b), stream);
    }
    CU_ASSERT_EQUAL(__builtin_popcount(used), 4);
    ren__plan_counts counts = fake_counts(plan);
    CU_ASSERT_EQUAL(counts.events, 4);
    CU_ASSERT_EQUAL(counts.waits, 6);
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
}

/* GREEDY, one small task a branch: an event costs more than the overlap brings, so a fork of three
 * stays on one stream. Fails if the cost of an event is left out. */
static void test_build_small_fork_greedy(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t x = local_value(g, "x");
    fake_op(g, "stem", REN_STREAM_COMP_1, SMALL, fixed_value(g, "in"), NONE, x);
    for (uint32_t b = 0; b < 3; b++) {
        fake_op(g, "branch", (ren_stream)(REN_STREAM_COMP_1 + b), 0, x, NONE, local_value(g, "y"));
    }
    ren__plan_config config = fake_config(REN__POLICY_GREEDY, 5);
    ren__plan *plan = fake_build(g, &config);
    CU_ASSERT_EQUAL(fake_counts(plan).events, 0);
    CU_ASSERT_EQUAL(fake_counts(plan).lanes_used, 1);
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
}

/* Lanes that GREEDY uses for four branches of three tasks of `task_ns`, on a device like this. */
static uint32_t lanes_for(const ren__device_costs *costs, uint32_t replayed, uint64_t task_ns)
{
    fake_reset();
    ren__task_graph *g = inception(task_ns * 10u);
    ren__plan_config config = fake_config(REN__POLICY_GREEDY, 5);
    config.costs = *costs;
    config.replayed = replayed;
    ren__plan *plan = fake_build(g, &config);
    uint32_t lanes = fake_counts(plan).lanes_used;
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
    return lanes;
}

/* GREEDY. Six times in a row two branches of one task each: every fork and join is on the way, so
 * an event longer than a task takes the gain away, and a shorter one leaves it. Fails if only what
 * a plan begins and ends with is charged for its events. */
static void test_build_events_on_the_way_greedy(void)
{
    static const uint32_t event_ns[2] = {8000, 500};
    static const uint32_t lanes[2] = {1, 2};
    for (uint32_t i = 0; i < 2; i++) {
        fake_reset();
        ren__task_graph *g = fake_graph();
        uint32_t x = fixed_value(g, "x");
        for (uint32_t k = 0; k < 6; k++) {
            uint32_t a = local_value(g, "a");
            uint32_t b = local_value(g, "b");
            uint32_t next = local_value(g, "next");
            fake_op(g, "left", REN_STREAM_COMP_1, 30000, x, NONE, a);
            fake_op(g, "right", REN_STREAM_COMP_2, 30000, x, NONE, b);
            fake_op(g, "join", REN_STREAM_COMP_3, 0, a, b, next);
            x = next;
        }
        ren__plan_config config = fake_config(REN__POLICY_GREEDY, 5);
        config.costs = (ren__device_costs){
            .launch_ns = 1000, .event_ns = event_ns[i], .processors = 8, .bytes_per_ns = 10.0f};
        ren__plan *plan = fake_build(g, &config);
        CU_ASSERT_EQUAL(fake_counts(plan).lanes_used, lanes[i]);
        ren__plan_destroy(plan);
        ren__task_graph_destroy(g);
    }
}

/* GREEDY uses as many lanes as pay. Of a lane more, each of these takes away the gain: an event as
 * long as what overlaps; a device that is full with one operation, or has one processor; a host
 * that cannot launch faster than the device works; a price on each wait. Which of them counts
 * depends on the path. Fails if one is left out, or if launches are taken for events. */
static void test_build_lanes_that_pay_greedy(void)
{
    const ren__device_costs cheap = {.launch_ns = 1000,
                                     .event_ns = 1000,
                                     .graph_launch_ns = 1000,
                                     .graph_event_ns = 1000,
                                     .processors = 8,
                                     .bytes_per_ns = 10.0f};
    ren__device_costs c = cheap;
    CU_ASSERT_EQUAL(lanes_for(&c, 0, 10000), 4);
    CU_ASSERT_EQUAL(lanes_for(&c, 1, 10000), 4);
    c.event_ns = 100000;
    CU_ASSERT_EQUAL(lanes_for(&c, 0, 10000), 1);
    CU_ASSERT_EQUAL(lanes_for(&c, 1, 10000), 4);
    c = cheap;
    c.processors = 0;
    CU_ASSERT_EQUAL(lanes_for(&c, 0, 100000), 1);
    c.processors = 1;
    CU_ASSERT_EQUAL(lanes_for(&c, 0, 100000), 1);
    c.processors = 2;
    CU_ASSERT_EQUAL(lanes_for(&c, 0, 100000), 2);
    c = cheap;
    c.host_launch_ns = 20000;
    CU_ASSERT_EQUAL(lanes_for(&c, 0, 10000), 1);
    CU_ASSERT_EQUAL(lanes_for(&c, 1, 10000), 4);
    c = cheap;
    c.wait_ns = 50000;
    CU_ASSERT_EQUAL(lanes_for(&c, 0, 10000), 1);
    c = cheap;
    c.launch_ns = 10000; /* a launch is no event: as good a reason to overlap as work */
    CU_ASSERT_EQUAL(lanes_for(&c, 0, 0), 4);
}

/* What GREEDY expects of a plan of one product y = x w^T, or of its weight gradient. */
static uint64_t expected_of(ren__op_kind kind, ren_dtype dtype, int64_t outputs, uint32_t tf32)
{
    static const ren__device_costs costs = {.launch_ns = 1000,
                                            .channels_full = 64,
                                            .flops_per_ns = 10.0f,
                                            .tf32_flops_per_ns = 20.0f,
                                            .half_flops_per_ns = 40.0f,
                                            .bytes_per_ns = 1000.0f};
    fake_reset();
    ren__task_graph *g = fake_graph();
    ren__task t = fake_task("product", REN_STREAM_COMP_1, 4000000);
    ren__tensor_desc w = {.dtype = dtype, .rank = 2, .dims = {outputs, 256}};
    ren__tensor_desc x = {.dtype = dtype, .rank = 2, .dims = {8, 256}};
    uint32_t is_forward = kind == REN__OP_LINEAR_FWD;
    t.op.kind = kind;
    t.op.allow_tf32 = tf32;
    t.op.operand[0] = x;
    t.op.operand[is_forward ? 1 : 2] = w;
    fake_reads(&t, 0, ren__task_graph_value(g, "x", REN__VALUE_FIXED, 1 << 20));
    (is_forward ? fake_reads : fake_writes)(
        &t, is_forward ? 1 : 2, ren__task_graph_value(g, "w", REN__VALUE_FIXED, 1 << 20));
    ren__task_graph_add(g, &t);
    ren__plan_config config = fake_config(REN__POLICY_GREEDY, 5);
    config.costs = costs;
    ren__plan *plan = fake_build(g, &config);
    uint64_t expected = fake_counts(plan).expected_ns;
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
    return expected;
}

/* Four million flops: at the rate of the type that is multiplied, as if there were 64 channels, and
 * with a launch, for a gradient of weights two. Fails if a rate is taken for another's. */
static void test_build_expected_times_greedy(void)
{
    CU_ASSERT_EQUAL(expected_of(REN__OP_LINEAR_FWD, REN_F32, 64, 0), 401000);
    CU_ASSERT_EQUAL(expected_of(REN__OP_LINEAR_FWD, REN_F32, 64, 1), 201000);
    CU_ASSERT_EQUAL(expected_of(REN__OP_LINEAR_FWD, REN_F16, 64, 0), 101000);
    CU_ASSERT_EQUAL(expected_of(REN__OP_LINEAR_FWD, REN_F32, 16, 0), 1601000);
    CU_ASSERT_EQUAL(expected_of(REN__OP_LINEAR_FWD, REN_F32, 512, 0), 401000);
    CU_ASSERT_EQUAL(expected_of(REN__OP_LINEAR_BWD_WEIGHT, REN_F32, 16, 0), 1602000);
}

enum {
    LAYERS = 6
};

/* GREEDY. A backward pass: a chain of data gradients, each with a weight gradient that only the
 * update waits for, which the list names first. The chain stays on one stream, is issued before the
 * weight gradients that are ready with it, and never waits; the weight gradients run beside it; and
 * the update is last. Fails if the list's order decides, or if weight gradients queue in the chain
 * while another stream is idle. */
static void test_build_chain_before_what_hangs_on_it_greedy(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t dy = local_value(g, "dy");
    uint32_t weights = ren__task_graph_value(g, "gw", REN__VALUE_FIXED, LAYERS * 1024u);
    uint32_t dw[LAYERS], dx[LAYERS];
    fake_op(g, "loss", REN_STREAM_COMP_1, BIG, fixed_value(g, "p"), NONE, dy);
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint32_t next = local_value(g, "dx");
        uint32_t gw = ren__task_graph_alias(g, "gw", weights, i * 1024u, 1024);
        dw[i] = fake_op(g, "dw", REN_STREAM_COMP_1, BIG, dy, NONE, gw);
        dx[i] = fake_op(g, "dx", REN_STREAM_COMP_3, BIG, dy, NONE, next);
        dy = next;
    }
    uint32_t update =
        fake_op(g, "update", REN_STREAM_UPDATE, BIG, weights, NONE, fixed_value(g, "w"));
    ren__plan_config config = fake_config(REN__POLICY_GREEDY, 5);
    ren__plan *plan = fake_build(g, &config);
    for (uint32_t i = 0; i + 1 < LAYERS; i++) { /* nothing hangs on the last data gradient */
        CU_ASSERT_EQUAL(ren__plan_task_stream(plan, dx[i]), config.origin);
        CU_ASSERT(ren__plan_task_place(plan, dx[i]) < ren__plan_task_place(plan, dw[i]));
        CU_ASSERT_NOT_EQUAL(ren__plan_task_stream(plan, dw[i]), config.origin);
    }
    CU_ASSERT_EQUAL(ren__plan_task_place(plan, update), 2 * LAYERS + 1);
    CU_ASSERT_EQUAL(fake_counts(plan).lanes_used, 2);
    /* loss, six layers, one more for the last weight gradient at most, the update. */
    CU_ASSERT(fake_counts(plan).expected_ns < 9u * (BIG / 10u) + 100000u);
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
}

/* GREEDY, 200 programs: what is listed before a task that may not move is issued before it, what is
 * listed behind it behind; every task has one place; a second build gives the same plan. Fails if
 * the update can be torn apart, or if a choice depends on anything but the list. */
static void test_build_keeps_what_may_not_move(void)
{
    static random_program p;
    uint32_t wrong = 0;
    uint32_t moved = 0;
    for (unsigned long long seed = 5001; seed <= 5200; seed++) {
        fake_reset();
        random_make(&p, seed);
        p.config.policy = REN__POLICY_GREEDY;
        ren__plan *plan = fake_build(p.graph, &p.config);
        ren__plan *again = fake_build(p.graph, &p.config);
        uint64_t taken = 0;
        for (uint32_t j = 0; j < p.task_count; j++) {
            uint32_t place = ren__plan_task_place(plan, j);
            taken |= (uint64_t)1 << place;
            moved += place != j;
            wrong += place != ren__plan_task_place(again, j);
            wrong += ren__plan_task_stream(plan, j) != ren__plan_task_stream(again, j);
            for (uint32_t i = 0; i < p.task_count && !p.movable[j]; i++) {
                wrong += i != j && (ren__plan_task_place(plan, i) < place) != (i < j);
            }
        }
        wrong += taken != ((uint64_t)1 << p.task_count) - 1u;
        ren__plan_destroy(again);
        ren__plan_destroy(plan);
        ren__task_graph_destroy(p.graph);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT(moved > 100);
}

/* GREEDY moves only compute tasks that allow it. Fails if TRANS or UPDATE tasks, or tasks without
 * free_stream, leave their stream. */
static void test_build_fixed_tasks_greedy(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t x = local_value(g, "x");
    fake_op(g, "copy", REN_STREAM_TRANS, BIG, fixed_value(g, "in"), NONE, x);
    uint32_t y = local_value(g, "y");
    fake_op(g, "forward", REN_STREAM_COMP_2, BIG, x, NONE, y);
    ren__task pinned = fake_task("pinned", REN_STREAM_COMP_3, BIG);
    pinned.free_stream = 0;
    uint32_t z = local_value(g, "z");
    fake_reads(&pinned, 0, y);
    fake_writes(&pinned, 1, z);
    ren__task_graph_add(g, &pinned);
    fake_op(g, "update", REN_STREAM_UPDATE, BIG, z, NONE, fixed_value(g, "w"));
    ren__plan_config config = fake_config(REN__POLICY_GREEDY, 5);
    ren__plan *plan = fake_build(g, &config);
    CU_ASSERT_EQUAL(ren__plan_task_stream(plan, 0), REN_STREAM_TRANS);
    CU_ASSERT_EQUAL(ren__plan_task_stream(plan, 2), REN_STREAM_COMP_3);
    CU_ASSERT_EQUAL(ren__plan_task_stream(plan, 3), REN_STREAM_UPDATE);
    CU_ASSERT_EQUAL(fake_counts(plan).events, 3);
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
}

/* STATIC takes every stream as given, whatever free_stream says. */
static void test_build_table_static(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        fake_op(g, "task", (ren_stream)s, BIG, NONE, NONE, fixed_value(g, "y"));
    }
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        CU_ASSERT_EQUAL(ren__plan_task_stream(plan, s), (ren_stream)s);
    }
    CU_ASSERT_EQUAL(fake_counts(plan).events, 0);
    CU_ASSERT_EQUAL(fake_counts(plan).lanes_used, 5);
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
}

/* STATIC on 1, 2, 3 and 5 lanes: streams that share a lane need no event between them. The backward
 * fork (COMP_1 to COMP_2 and COMP_3) with the maps of fake_config: all one lane; COMP_* on one
 * lane; COMP_1 and COMP_3 together; all apart. Fails if events follow streams instead of lanes. */
static void test_build_lanes_static(void)
{
    static const uint32_t lanes[4] = {1, 2, 3, 5};
    static const uint32_t waits[4] = {0, 0, 1, 2};
    static const uint32_t used[4] = {1, 1, 2, 3};
    for (uint32_t i = 0; i < 4; i++) {
        fake_reset();
        ren__task_graph *g = linear_backward();
        ren__plan_config config = fake_config(REN__POLICY_STATIC, lanes[i]);
        ren__plan *plan = fake_build(g, &config);
        CU_ASSERT_EQUAL(fake_counts(plan).waits, waits[i]);
        CU_ASSERT_EQUAL(fake_counts(plan).events, waits[i] ? 1u : 0u);
        CU_ASSERT_EQUAL(fake_counts(plan).lanes_used, used[i]);
        ren__plan_destroy(plan);
        ren__task_graph_destroy(g);
    }
}

/* ------------------------------------------------------------------ edges */

/* STATIC. Knowledge travels: A on COMP_1, B on COMP_2 behind A, C on COMP_3 behind both waits for B
 * only. Fails if waits are made per edge. */
static void test_build_transitive_edge(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t a = local_value(g, "a");
    uint32_t b = local_value(g, "b");
    fake_op(g, "A", REN_STREAM_COMP_1, BIG, NONE, NONE, a);
    fake_op(g, "B", REN_STREAM_COMP_2, BIG, a, NONE, b);
    fake_op(g, "C", REN_STREAM_COMP_3, BIG, a, b, local_value(g, "c"));
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    CU_ASSERT_EQUAL(fake_counts(plan).edges, 3);
    CU_ASSERT_EQUAL(fake_counts(plan).waits, 2);
    CU_ASSERT_EQUAL(fake_counts(plan).events, 2);
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
}

/* STATIC. An op that overwrites its input waits for the other reader of that input (the data
 * gradient in place, behind the weight gradient's read). Fails without write-after-read edges. */
static void test_build_overwrite_waits_for_readers(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t x = fixed_value(g, "x");
    fake_op(g, "dw", REN_STREAM_COMP_1, BIG, x, NONE, fixed_value(g, "gw"));
    fake_op(g, "dx", REN_STREAM_COMP_3, BIG, x, NONE, x);
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    CU_ASSERT_EQUAL(fake_counts(plan).waits, 1);
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
}

/* STATIC. Writes of two aliases conflict only where they overlap, and an alias conflicts with its
 * parent. Fails if aliases are taken as memory of their own, or as all of the parent. */
static void test_build_aliases(void)
{
    static const uint64_t offset[3] = {0, 256, 128};
    static const uint32_t waits[3] = {1, 0, 1}; /* of [0, 256) against [offset, offset + 256) */
    for (uint32_t i = 0; i < 3; i++) {
        fake_reset();
        ren__task_graph *g = fake_graph();
        uint32_t parent = fixed_value(g, "flat");
        uint32_t half = ren__task_graph_alias(g, "half", parent, 0, 512);
        uint32_t a = ren__task_graph_alias(g, "a", half, 0, 256);
        uint32_t b = ren__task_graph_alias(g, "b", parent, offset[i], 256);
        fake_op(g, "A", REN_STREAM_COMP_1, BIG, NONE, NONE, a);
        fake_op(g, "B", REN_STREAM_COMP_2, BIG, NONE, NONE, b);
        ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
        ren__plan *plan = fake_build(g, &config);
        CU_ASSERT_EQUAL(fake_counts(plan).waits, waits[i]);
        ren__plan_destroy(plan);
        fake_op(g, "all", REN_STREAM_UPDATE, BIG, parent, NONE, fixed_value(g, "out"));
        plan = fake_build(g, &config);
        CU_ASSERT_EQUAL(fake_counts(plan).waits, 2);
        ren__plan_destroy(plan);
        ren__task_graph_destroy(g);
    }
}

/* STATIC. A control edge orders tasks that share no byte. */
static void test_build_control_edge(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t a = fake_op(g, "A", REN_STREAM_COMP_1, BIG, NONE, NONE, fixed_value(g, "a"));
    uint32_t b = fake_op(g, "B", REN_STREAM_COMP_2, BIG, NONE, NONE, fixed_value(g, "b"));
    ren__task_graph_control(g, a, b);
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    CU_ASSERT_EQUAL(fake_counts(plan).edges, 1);
    CU_ASSERT_EQUAL(fake_counts(plan).waits, 1);
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
}

/* ------------------------------------------------------------------ refusals */

static void expect_refusal(ren__task_graph *g, const char *word)
{
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = NULL;
    ren_error err = {0};
    CU_ASSERT_EQUAL(ren__plan_build(g, &config, &fake_host, &plan, &err), REN_ERR_INTERNAL);
    CU_ASSERT_PTR_NULL(plan);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
    ren__task_graph_destroy(g);
    CU_ASSERT_EQUAL(fake.in_use, 0);
}

/* Each refusal names the offender. Fails if the check is gone (the build succeeds). */
static void test_build_refuses_faulty_graphs(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    fake_op(g, "early", REN_STREAM_COMP_1, 0, local_value(g, "unwritten"), NONE,
            fixed_value(g, "out"));
    expect_refusal(g, "unwritten");

    g = fake_graph(); /* half written is not written */
    uint32_t whole = ren__task_graph_value(g, "whole", REN__VALUE_LOCAL, 4096);
    fake_op(g, "half", REN_STREAM_COMP_1, 0, NONE, NONE,
            ren__task_graph_alias(g, "part", whole, 0, 2048));
    fake_op(g, "all", REN_STREAM_COMP_1, 0, whole, NONE, fixed_value(g, "out"));
    expect_refusal(g, "whole");

    g = fake_graph(); /* nor is one with a hole */
    whole = ren__task_graph_value(g, "holed", REN__VALUE_LOCAL, 4096);
    fake_op(g, "front", REN_STREAM_COMP_1, 0, NONE, NONE,
            ren__task_graph_alias(g, "part", whole, 0, 1024));
    fake_op(g, "back", REN_STREAM_COMP_1, 0, NONE, NONE,
            ren__task_graph_alias(g, "part", whole, 1280, 2816));
    fake_op(g, "all", REN_STREAM_COMP_1, 0, whole, NONE, fixed_value(g, "out"));
    expect_refusal(g, "holed");

    g = fake_graph();
    ren__task_graph_value(g, "empty", REN__VALUE_FIXED, 0);
    expect_refusal(g, "empty");

    g = fake_graph();
    ren__task_graph_alias(g, "outside", fixed_value(g, "x"), 1000, 25);
    expect_refusal(g, "outside");

    g = fake_graph();
    uint32_t a = fake_op(g, "A", REN_STREAM_COMP_1, 0, NONE, NONE, fixed_value(g, "a"));
    ren__task_graph_control(g, a, a);
    expect_refusal(g, "order");

    g = fake_graph();
    ren__task t = fake_task("idle", REN_STREAM_COMP_1, 0);
    t.operand[3] = fixed_value(g, "x");
    ren__task_graph_add(g, &t);
    expect_refusal(g, "idle");

    g = fake_graph();
    t = fake_task("long", REN_STREAM_TRANS, 0);
    t.kind = REN__TASK_FILL;
    t.bytes = 1025;
    fake_writes(&t, 0, fixed_value(g, "x"));
    ren__task_graph_add(g, &t);
    expect_refusal(g, "long");

    g = fake_graph();
    t = fake_task("self", REN_STREAM_TRANS, 0);
    t.kind = REN__TASK_COPY;
    t.bytes = 512;
    uint32_t x = fixed_value(g, "x");
    fake_writes(&t, 0, x);
    fake_reads(&t, 1, x);
    t.operand_offset[1] = 511;
    ren__task_graph_add(g, &t);
    expect_refusal(g, "self");
}

/* Gaps below the alignment between aligned parts are padding. */
static void test_build_padding_is_no_hole(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t flat = ren__task_graph_value(g, "flat", REN__VALUE_LOCAL, 600);
    fake_op(g, "a", REN_STREAM_COMP_1, 0, NONE, NONE, ren__task_graph_alias(g, "a", flat, 0, 10));
    fake_op(g, "b", REN_STREAM_COMP_1, 0, NONE, NONE,
            ren__task_graph_alias(g, "b", flat, 256, 200));
    fake_op(g, "all", REN_STREAM_COMP_1, 0, flat, NONE, fixed_value(g, "out"));
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan_destroy(fake_build(g, &config));
    ren__task_graph_destroy(g);
}

/* Every failure of the host's allocator is reported, and nothing is kept. */
static void test_build_host_memory_fails(void)
{
    uint32_t fail_at = 0;
    ren_status status = REN_ERR_NO_MEMORY;
    while (status != REN_OK) {
        fake_reset();
        fake.fail_at = ++fail_at;
        ren__task_graph *g = NULL;
        status = ren__task_graph_create(&fake_host, &g);
        ren__plan *plan = NULL;
        if (status == REN_OK) {
            uint32_t x = local_value(g, "x");
            for (uint32_t i = 0; i < 200; i++) {
                fake_op(g, "t", (ren_stream)(i % 5u), i, i ? x : NONE, NONE, x);
            }
            ren__plan_config config = fake_config(REN__POLICY_GREEDY, 5);
            status = ren__plan_build(g, &config, &fake_host, &plan, NULL);
        }
        CU_ASSERT(status == REN_OK || status == REN_ERR_NO_MEMORY);
        ren__plan_destroy(plan);
        ren__task_graph_destroy(g);
        CU_ASSERT_EQUAL(fake.in_use, 0);
    }
    CU_ASSERT(fail_at > 15);
}

/* The picture names tasks and events, is cut at the buffer's end, and says how long it is. */
static void test_dump_is_cut_at_the_buffer(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t dy = local_value(g, "dy \"quoted\"");
    fake_op(g, "loss", REN_STREAM_COMP_1, BIG, fixed_value(g, "p"), NONE, dy);
    fake_op(g, "db", REN_STREAM_COMP_2, BIG, dy, NONE, fixed_value(g, "gb"));
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    char text[4096];
    const ren__plan *plans[] = {plan, plan};
    const char *titles[] = {"first", "second"};
    size_t length = ren__plan_dump(plans, titles, 1, text, sizeof text);
    CU_ASSERT(length < sizeof text);
    CU_ASSERT_EQUAL(strlen(text), length);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "t0 -> t1 [style=bold label=\"e0\"]"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "dy \\\"quoted\\\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "label=\"first\\n2 tasks on 2 lanes, "));
    for (size_t bytes = 0; bytes <= length + 1; bytes++) {
        char cut[4096];
        memset(cut, 'x', sizeof cut);
        CU_ASSERT_EQUAL(ren__plan_dump(plans, titles, 1, cut, bytes), length);
        CU_ASSERT_EQUAL(cut[bytes], 'x');
        if (bytes) {
            CU_ASSERT_EQUAL(cut[strlen(cut) + 1] == 'x' || strlen(cut) + 1 <= bytes, 1);
            CU_ASSERT(strncmp(cut, text, strlen(cut)) == 0);
            CU_ASSERT_EQUAL(strlen(cut), bytes - 1 < length ? bytes - 1 : length);
        }
    }
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
}

/* ------------------------------------------------------------------ random programs */

static fake_order order;

typedef struct trial {
    random_program program;
    ren__plan *plan;
    uint32_t first;                  /* index of the issue's first command */
    uint32_t front, back;            /* marks on origin's lane around it */
    uint32_t at[RANDOM_TASKS];       /* commands of the tasks */
    uint32_t order[RANDOM_TASKS];    /* tasks as they are issued */
    uint64_t required[RANDOM_TASKS]; /* bit i: task i must precede; the closure, with the lanes */
} trial;

static trial t;

static void mark(uint32_t *out)
{
    *out = fake.count;
    fake_push(FAKE_MARK, t.program.config.lane_of[t.program.config.origin], NULL, NULL, NULL);
}

static void begin_trial(unsigned long long seed)
{
    fake_reset();
    memset(&t, 0, sizeof t);
    random_make(&t.program, seed);
    t.plan = fake_build(t.program.graph, &t.program.config);
    ren__task_graph_destroy(t.program.graph);
    CU_ASSERT_EQUAL_FATAL(ren__plan_resolve(t.plan, FAKE_RUNTIME, t.program.addresses, NULL),
                          REN_OK);
}

static void issue_once(void)
{
    mark(&t.front);
    t.first = fake.count;
    CU_ASSERT_EQUAL(ren__plan_issue(t.plan, FAKE_SUBMIT, t.program.addresses, 1, 0), REN_OK);
    mark(&t.back);
    for (uint32_t i = 0; i < t.program.task_count; i++) {
        uint32_t place = ren__plan_task_place(t.plan, i);
        t.at[i] = fake_task_command(t.first, place);
        t.order[place] = i;
    }
}

static void end_trial(void)
{
    ren__plan_destroy(t.plan);
    CU_ASSERT_EQUAL(fake.in_use, 0);
    CU_ASSERT_EQUAL(fake.ops + fake.events + fake.regions, 0);
}

/* What the lanes and the required pairs force, and nothing else. */
static void close_required(void)
{
    for (uint32_t b = 0; b < t.program.task_count; b++) {
        for (uint32_t a = 0; a < b; a++) {
            uint32_t i = t.order[a];
            uint32_t j = t.order[b];
            if ((i < j && random_required(&t.program, i, j)) ||
                fake.commands[t.at[i]].lane == fake.commands[t.at[j]].lane) {
                t.required[j] |= t.required[i] | (uint64_t)1 << i;
            }
        }
    }
}

/* Number of required orders that the derived order lacks: between tasks, behind the front, before
 * the back; and of required pairs that are issued the wrong way round. */
static uint32_t missing(void)
{
    uint32_t lacking = 0;
    for (uint32_t j = 0; j < t.program.task_count; j++) {
        lacking += !fake_is_before(&order, t.front, t.at[j]);
        lacking += !fake_is_before(&order, t.at[j], t.back);
        for (uint32_t i = 0; i < t.program.task_count; i++) {
            lacking += (t.required[j] >> i & 1u) && !fake_is_before(&order, t.at[i], t.at[j]);
            lacking += i < j && random_required(&t.program, i, j) && !(t.required[j] >> i & 1u);
        }
    }
    return lacking;
}

static uint32_t needless(void)
{
    uint32_t extra = 0;
    for (uint32_t j = 0; j < t.program.task_count; j++) {
        for (uint32_t i = 0; i < t.program.task_count; i++) {
            extra +=
                i != j && !(t.required[j] >> i & 1u) && fake_is_before(&order, t.at[i], t.at[j]);
        }
    }
    return extra;
}

/* For 500 programs: every hazard, data and control pair is ordered by the commands alone; nothing
 * is ordered that lanes and pairs do not force; all lies between origin's start and end; and with
 * any one wait taken away something required is lost. Fails if one edge, one merge of knowledge,
 * the fork or the join is left out, and if one wait too many is made. */
static void test_issue_random_programs(void)
{
    uint32_t wrong[3] = {0};
    uint32_t waits = 0;
    for (unsigned long long seed = 1; seed <= 500; seed++) {
        begin_trial(seed);
        issue_once();
        close_required();
        fake_derive(&order, UINT32_MAX);
        wrong[0] += missing();
        wrong[1] += needless();
        for (uint32_t c = t.first; c < t.back; c++) {
            if (fake.commands[c].kind == FAKE_WAIT) {
                fake_derive(&order, c);
                wrong[2] += missing() == 0;
                waits++;
            }
        }
        end_trial();
    }
    printf("  500 programs, %u waits\n", waits);
    CU_ASSERT_EQUAL(wrong[0], 0);
    CU_ASSERT_EQUAL(wrong[1], 0);
    CU_ASSERT_EQUAL(wrong[2], 0);
    CU_ASSERT(waits > 1000);
}

/* Issued twice in a row, with nothing complete in between: all of the first issue is before all of
 * the second, and the second keeps its order though it records the same events. Both enqueue the
 * same number of commands. */
static void test_issue_again_while_under_way(void)
{
    uint32_t wrong = 0;
    for (unsigned long long seed = 1001; seed <= 1100; seed++) {
        begin_trial(seed);
        issue_once();
        uint32_t before[RANDOM_TASKS];
        memcpy(before, t.at, sizeof before);
        uint32_t commands = t.back - t.first;
        issue_once();
        wrong += t.back - t.first != commands;
        close_required();
        fake_derive(&order, UINT32_MAX);
        wrong += missing();
        for (uint32_t i = 0; i < t.program.task_count; i++) {
            for (uint32_t j = 0; j < t.program.task_count; j++) {
                wrong += !fake_is_before(&order, before[i], t.at[j]);
            }
        }
        end_trial();
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

/* An issue that fails at any of its calls returns that error, and whatever it had enqueued is
 * before all of the next issue. Fails if a torn plan is not joined again. */
static void test_issue_after_a_failed_one(void)
{
    uint32_t wrong = 0;
    uint32_t failures = 0;
    for (unsigned long long seed = 2001; seed <= 2020; seed++) {
        for (uint32_t nth = 1; nth < 200; nth++) {
            begin_trial(seed);
            fake.fail_at = fake.calls + nth;
            ren_status status = ren__plan_issue(t.plan, FAKE_SUBMIT, t.program.addresses, 1, 0);
            CU_ASSERT_EQUAL(status, fake.calls < fake.fail_at ? REN_OK : REN_ERR_DEVICE);
            uint32_t left = fake.count;
            fake.fail_at = 0;
            issue_once();
            fake_derive(&order, UINT32_MAX);
            for (uint32_t c = 0; c < left; c++) {
                for (uint32_t j = 0; fake.commands[c].kind <= FAKE_FILL && j < t.program.task_count;
                     j++) {
                    wrong += !fake_is_before(&order, c, t.at[j]);
                }
            }
            failures += status != REN_OK;
            end_trial();
            if (status == REN_OK) {
                break;
            }
        }
    }
    CU_ASSERT(failures > 200);
    CU_ASSERT_EQUAL(wrong, 0);
}

/* With one lane no event is recorded and none is waited for, fork and join included. */
static void test_issue_one_lane_has_no_events(void)
{
    for (unsigned long long seed = 3001; seed <= 3050; seed++) {
        fake_reset();
        memset(&t, 0, sizeof t);
        random_make(&t.program, seed);
        t.program.config.lanes = 1;
        memset(t.program.config.lane_of, 0, sizeof t.program.config.lane_of);
        t.plan = fake_build(t.program.graph, &t.program.config);
        ren__task_graph_destroy(t.program.graph);
        CU_ASSERT_EQUAL(ren__plan_resolve(t.plan, FAKE_RUNTIME, t.program.addresses, NULL), REN_OK);
        issue_once();
        CU_ASSERT_EQUAL(fake_count(FAKE_RECORD) + fake_count(FAKE_WAIT), 0);
        end_trial();
    }
}

/* By lane, the need is what an issue enqueues, counting an op as the commands it takes, and room
 * for the rejoin: a record on each other lane in use and its wait on origin's. The events are
 * counted as they are enqueued. */
static void test_need_is_what_an_issue_enqueues(void)
{
    uint32_t wrong = 0;
    for (unsigned long long seed = 4001; seed <= 4100; seed++) {
        begin_trial(seed);
        issue_once();
        const uint32_t *lane_of = t.program.config.lane_of;
        uint32_t origin = lane_of[t.program.config.origin];
        uint32_t need[REN_STREAM_COUNT];
        uint32_t given[REN__LANES] = {0};
        uint32_t taken[REN__LANES] = {0};
        uint32_t used[REN__LANES] = {0};
        ren__plan_need(t.plan, need);
        for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
            given[lane_of[s]] += need[s];
        }
        for (uint32_t c = t.first; c < t.back; c++) {
            taken[fake.commands[c].lane] += 1u;
        }
        for (uint32_t i = 0; i < t.program.task_count; i++) {
            uint32_t lane = fake.commands[t.at[i]].lane;
            taken[lane] += t.program.commands[i] - 1u;
            used[lane] = 1;
        }
        for (uint32_t l = 0; l < REN__LANES; l++) {
            if (used[l] && l != origin) {
                taken[l]++;
                taken[origin]++;
            }
        }
        wrong += memcmp(given, taken, sizeof given) != 0;
        wrong += fake.recorded != fake_count(FAKE_RECORD) || fake.waited != fake_count(FAKE_WAIT);
        end_trial();
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

/* `sync`: the host waits once behind every task, for an event made for that. */
static void test_issue_sync_waits_after_each_task(void)
{
    begin_trial(7);
    CU_ASSERT_EQUAL(ren__plan_issue(t.plan, FAKE_SUBMIT, t.program.addresses, 1, 1), REN_OK);
    CU_ASSERT_EQUAL(fake_count(FAKE_SYNC), t.program.task_count);
    for (uint32_t i = 0; i < t.program.task_count; i++) {
        uint32_t c = fake_task_command(0, i) + 1u;
        uint32_t lane = fake.commands[c - 1u].lane;
        while (fake.commands[c].kind != FAKE_SYNC && c < fake.count) {
            CU_ASSERT_EQUAL(fake.commands[c].kind, FAKE_RECORD);
            CU_ASSERT_EQUAL(fake.commands[c].lane, lane);
            c++;
        }
        CU_ASSERT_PTR_EQUAL(fake.commands[c].event, fake.commands[c - 1u].event);
    }
    end_trial();
}

/* An EXTERNAL value without an address fails the issue before anything is enqueued, and so does an
 * issue before resolve. */
static void test_issue_without_addresses(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t x = ren__task_graph_value(g, "x", REN__VALUE_EXTERNAL, 64);
    fake_op(g, "first", REN_STREAM_COMP_1, 0, NONE, NONE, fixed_value(g, "y"));
    fake_op(g, "second", REN_STREAM_COMP_2, 0, x, NONE, fixed_value(g, "z"));
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    ren__task_graph_destroy(g);
    unsigned char memory[3][64];
    void *addresses[3] = {NULL, memory[1], memory[2]};
    CU_ASSERT_EQUAL(ren__plan_issue(plan, FAKE_SUBMIT, addresses, 1, 0), REN_ERR_INTERNAL);
    CU_ASSERT_EQUAL(ren__plan_resolve(plan, FAKE_RUNTIME, addresses, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren__plan_issue(plan, FAKE_SUBMIT, addresses, 1, 0), REN_ERR_INTERNAL);
    CU_ASSERT_EQUAL(fake.count, 0);
    addresses[0] = memory[0];
    CU_ASSERT_EQUAL(ren__plan_issue(plan, FAKE_SUBMIT, addresses, 1, 0), REN_OK);
    CU_ASSERT_PTR_EQUAL(fake.commands[fake_task_command(0, 1)].args[0], memory[0]);
    ren__plan_destroy(plan);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_build_linear_chain_greedy", test_build_linear_chain_greedy},
        {"test_build_linear_backward_static_and_greedy",
         test_build_linear_backward_static_and_greedy},
        {"test_build_inception_greedy", test_build_inception_greedy},
        {"test_build_small_fork_greedy", test_build_small_fork_greedy},
        {"test_build_lanes_that_pay_greedy", test_build_lanes_that_pay_greedy},
        {"test_build_events_on_the_way_greedy", test_build_events_on_the_way_greedy},
        {"test_build_expected_times_greedy", test_build_expected_times_greedy},
        {"test_build_chain_before_what_hangs_on_it_greedy",
         test_build_chain_before_what_hangs_on_it_greedy},
        {"test_build_keeps_what_may_not_move", test_build_keeps_what_may_not_move},
        {"test_build_fixed_tasks_greedy", test_build_fixed_tasks_greedy},
        {"test_build_table_static", test_build_table_static},
        {"test_build_lanes_static", test_build_lanes_static},
        {"test_build_transitive_edge", test_build_transitive_edge},
        {"test_build_overwrite_waits_for_readers", test_build_overwrite_waits_for_readers},
        {"test_build_aliases", test_build_aliases},
        {"test_build_control_edge", test_build_control_edge},
        {"test_build_refuses_faulty_graphs", test_build_refuses_faulty_graphs},
        {"test_build_padding_is_no_hole", test_build_padding_is_no_hole},
        {"test_build_host_memory_fails", test_build_host_memory_fails},
        {"test_dump_is_cut_at_the_buffer", test_dump_is_cut_at_the_buffer},
        {"test_issue_random_programs", test_issue_random_programs},
        {"test_issue_again_while_under_way", test_issue_again_while_under_way},
        {"test_issue_after_a_failed_one", test_issue_after_a_failed_one},
        {"test_issue_one_lane_has_no_events", test_issue_one_lane_has_no_events},
        {"test_need_is_what_an_issue_enqueues", test_need_is_what_an_issue_enqueues},
        {"test_issue_sync_waits_after_each_task", test_issue_sync_waits_after_each_task},
        {"test_issue_without_addresses", test_issue_without_addresses}};
    return ren_test_main(argc, argv, "test_plan", cases, REN_TEST_COUNT(cases), 120);
}
