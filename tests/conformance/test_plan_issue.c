/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_plan_issue.c - plans on a real device give what program order gives.
 *
 * Purpose   Random programs of sums, copies and fills over shared memory, spread over the lanes by
 *           the planner, run through the runtime and compared bit for bit with the same program run
 *           from top to bottom on the host.
 * Order     The device's own choice comes from delays, and on the CPU device from seeds; memory is
 *           poisoned with NaN, so a read that overtakes its write shows in the result.
 */
#include "../../libren/core/core.h"
#include "../../libren/graph/plan.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOATS 512u
#define BYTES  (FLOATS * 4u)
#define HALF   (BYTES / 2u)
#define FIXED  3u /* values 0..2 live outside of the plan, in device memory */
#define LOCALS 6u /* values 3..8 */
#define ROOTS  (FIXED + LOCALS)
#define OUTPUT (3u * ROOTS) /* value: the EXTERNAL result, behind two aliases a root */
#define VALUES (OUTPUT + 1u)
#define TASKS  60u
#define ISSUES 3u
#define SECOND UINT64_C(1000000000)

typedef struct program {
    unsigned long long state;
    ren__task_graph *graph;
    uint32_t tasks;
    float host[ROOTS][FLOATS]; /* the reference */
    uint8_t written[ROOTS];
} program;

typedef struct item {
    ren__work work;
    void *output;            /* pinned host memory, ROOTS * BYTES */
    _Atomic ren_status done; /* of its completion; REN_PENDING before */
} item;

typedef struct bench {
    ren_runtime *rt;
    ren__plan *plan;
    ren__region fixed;
    void *external[VALUES];
    item items[ISSUES];
    uint32_t use_graph, sync;
    ren__graph *graph[REN__PLAN_SEGMENTS];
} bench;

static program p;
static bench b;

/* ------------------------------------------------------------------ programs */

static uint32_t below(uint32_t n)
{
    return (uint32_t)(ren_test_random(&p.state) % n);
}

/* Root r, or its first or second half: values ROOTS + 2 r and ROOTS + 2 r + 1. */
static uint32_t part_of(uint32_t root, uint32_t part)
{
    return part == 0 ? root : ROOTS + 2u * root + part - 1u;
}

static void make_values(void)
{
    for (uint32_t r = 0; r < ROOTS; r++) {
        ren__value_kind kind = r < FIXED ? REN__VALUE_FIXED : REN__VALUE_LOCAL;
        CU_ASSERT_EQUAL(ren__task_graph_value(p.graph, "value", kind, BYTES), r);
    }
    for (uint32_t r = 0; r < ROOTS; r++) {
        (void)ren__task_graph_alias(p.graph, "front", r, 0, HALF);
        (void)ren__task_graph_alias(p.graph, "back", r, HALF, HALF);
    }
    CU_ASSERT_EQUAL(
        ren__task_graph_value(p.graph, "output", REN__VALUE_EXTERNAL, (uint64_t)ROOTS * BYTES),
        OUTPUT);
}

/* Thirteen tasks in a row have one. */
static const char *const labels[] = {"one", "two", "three"};

static ren__task new_task(ren__task_kind kind, ren_stream stream)
{
    ren__task t;
    memset(&t, 0, sizeof t);
    t.name = "task";
    t.segment = labels[p.tasks++ / 13u % REN_TEST_COUNT(labels)];
    t.kind = kind;
    t.stream = stream;
    t.free_stream = 1;
    t.cost = below(2) ? 10000000 : 0;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        t.operand[i] = REN__NO_VALUE;
    }
    return t;
}

static ren_stream any_stream(void)
{
    return (ren_stream)below(REN_STREAM_COUNT);
}

static void add_fill(uint32_t root, uint32_t part)
{
    ren__task t = new_task(REN__TASK_FILL, any_stream());
    t.operand[0] = part_of(root, part);
    t.writes = 1;
    t.bytes = part ? HALF : BYTES;
    t.fill_value = 0x3bu + below(4); /* floats of about 0.003 to 0.5 */
    (void)ren__task_graph_add(p.graph, &t);
    memset((unsigned char *)p.host[root] + (part == 2 ? HALF : 0), (int)t.fill_value, t.bytes);
    p.written[root] = 1;
}

static uint32_t any_root(void)
{
    uint32_t root = below(ROOTS);
    if (!p.written[root]) {
        add_fill(root, 0);
    }
    return root;
}

static void add_copy(void)
{
    uint32_t dst = any_root();
    uint32_t src = any_root();
    uint32_t part = 1u + below(2);
    ren__task t = new_task(REN__TASK_COPY, any_stream());
    t.operand[0] = part_of(dst, part);
    t.operand[1] = part_of(src, 3u - part);
    t.writes = 1;
    t.reads = 2;
    t.bytes = HALF;
    (void)ren__task_graph_add(p.graph, &t);
    memmove((unsigned char *)p.host[dst] + (part == 2 ? HALF : 0),
            (unsigned char *)p.host[src] + (part == 1 ? HALF : 0), HALF);
}

/* y = a + b, in place now and then. */
static void add_sum(void)
{
    uint32_t a = any_root();
    uint32_t second = any_root();
    uint32_t y = below(3) == 0 ? a : any_root();
    if (y == second) {
        second = a;
    }
    ren__task t = new_task(REN__TASK_OP, any_stream());
    t.op.struct_size = (uint32_t)sizeof t.op;
    t.op.kind = REN__OP_ADD;
    t.op.groups = 1;
    uint32_t operands[3] = {a, second, y};
    for (uint32_t i = 0; i < 3; i++) {
        t.operand[i] = operands[i];
        t.op.operand[i] = (ren__tensor_desc){.dtype = REN_F32, .rank = 2, .dims = {8, FLOATS / 8u}};
    }
    t.reads = 3;
    t.writes = 4;
    (void)ren__task_graph_add(p.graph, &t);
    for (uint32_t i = 0; i < FLOATS; i++) {
        p.host[y][i] = p.host[a][i] + p.host[second][i];
    }
}

static void add_output(uint32_t root)
{
    ren__task t = new_task(REN__TASK_COPY, any_stream());
    t.operand[0] = OUTPUT;
    t.operand[1] = root;
    t.operand_offset[0] = (uint64_t)root * BYTES;
    t.writes = 1;
    t.reads = 2;
    t.bytes = BYTES;
    (void)ren__task_graph_add(p.graph, &t);
}

static void make_program(unsigned long long seed)
{
    memset(&p, 0, sizeof p);
    p.state = seed;
    ren__host_allocator a = ren__host_allocator_make(NULL);
    CU_ASSERT_EQUAL_FATAL(ren__task_graph_create(&a, &p.graph), REN_OK);
    make_values();
    for (uint32_t r = 0; r < FIXED; r++) {
        add_fill(r, 0); /* so that each issue gives the same result */
    }
    for (uint32_t i = 0; i < TASKS; i++) {
        uint32_t kind = below(6);
        if (kind == 0) {
            add_fill(any_root(), below(3));
        } else if (kind == 1) {
            add_copy();
        } else {
            add_sum();
        }
    }
    for (uint32_t r = 0; r < ROOTS; r++) {
        (void)any_root();
        if (p.written[r]) {
            add_output(r);
        }
    }
}

/* ------------------------------------------------------------------ running */

/* Cut 1: into segments. */
static void open_cut(uint32_t lanes, ren__plan_policy policy, uint64_t seed, uint32_t cut)
{
    memset(&b, 0, sizeof b);
    ren_runtime_config config = ren_test_config();
    config.streams = lanes;
    ren_test_seed(NULL, seed);
    ren_test_poison(NULL, 1);
    b.rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(b.rt);

    ren__plan_config plan = {.policy = policy,
                             .lanes = ren__runtime_lanes(b.rt),
                             .origin = REN_STREAM_UPDATE,
                             .segments = cut,
                             .reuse = 1};
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        plan.lane_of[s] = ren__runtime_lane(b.rt, (ren_stream)s);
    }
    ren_error err = {0};
    CU_ASSERT_EQUAL_FATAL(
        ren__plan_build(p.graph, &plan, ren__runtime_allocator(b.rt), &b.plan, &err), REN_OK);
    ren__task_graph_destroy(p.graph);

    CU_ASSERT_EQUAL_FATAL(ren__region_alloc(b.rt, (uint64_t)FIXED * BYTES, &b.fixed), REN_OK);
    void *fixed[VALUES] = {NULL};
    for (uint32_t r = 0; r < FIXED; r++) {
        fixed[r] = (unsigned char *)b.fixed.ptr + (size_t)r * BYTES;
    }
    ren_status status = ren__plan_resolve(b.plan, b.rt, fixed, &err);
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    for (uint32_t i = 0; i < ISSUES; i++) {
        CU_ASSERT_EQUAL_FATAL(ren__runtime_api(b.rt)->host_alloc(ren__runtime_device(b.rt),
                                                                 (uint64_t)ROOTS * BYTES,
                                                                 &b.items[i].output),
                              REN_OK);
        memset(b.items[i].output, 0, (size_t)ROOTS * BYTES);
    }
}

static void open_bench(uint32_t lanes, ren__plan_policy policy, uint64_t seed)
{
    open_cut(lanes, policy, seed, 0);
}

static void close_bench(void)
{
    CU_ASSERT_EQUAL(ren_runtime_drain(b.rt, 20 * SECOND), REN_OK);
    const ren__device_api *api = ren__runtime_api(b.rt);
    for (uint32_t i = 0; i < REN__PLAN_SEGMENTS; i++) {
        api->graph_destroy(ren__runtime_device(b.rt), b.graph[i]);
    }
    ren__plan_destroy(b.plan);
    ren__region_free(b.rt, &b.fixed);
    for (uint32_t i = 0; i < ISSUES; i++) {
        api->host_free(ren__runtime_device(b.rt), b.items[i].output, (uint64_t)ROOTS * BYTES);
    }
    ren_test_shutdown(b.rt);
}

/* The first time under use_graph the plan is captured, a segment at a time; then, and from then on,
 * it is replayed. */
static ren_status issue_graph(ren__submit *s)
{
    const ren__device_api *api = ren__submit_api(s);
    uint32_t lane = ren__submit_lane(s, REN_STREAM_UPDATE);
    uint32_t segments = ren__plan_segment_count(b.plan);
    const ren__plan_spares none = {0};
    ren_status status = REN_OK;
    for (uint32_t i = 0; i < segments && status == REN_OK; i++) {
        if (!b.graph[i]) {
            status = ren__plan_capture(b.plan, s, b.external, i, &none, &b.graph[i], NULL);
        }
    }
    for (uint32_t i = 0; i < segments && status == REN_OK; i++) {
        status = api->graph_launch(ren__submit_device(s), lane, b.graph[i]);
    }
    return status;
}

static ren_status issue(void *self, ren__submit *s)
{
    const item *it = self;
    b.external[OUTPUT] = b.use_graph ? b.items[0].output : it->output;
    return b.use_graph ? issue_graph(s) : ren__plan_issue(b.plan, s, b.external, 1, b.sync);
}

static void finish(void *self, ren_completion *c)
{
    atomic_store(&((item *)self)->done, c->status);
}

static void post(uint32_t i)
{
    item *it = &b.items[i];
    it->work =
        (ren__work){.issue = issue, .finish = finish, .self = it, .stream = REN_STREAM_UPDATE};
    ren__plan_need(b.plan, it->work.need);
    atomic_store(&it->done, REN_PENDING);
    CU_ASSERT_EQUAL(ren__work_post(b.rt, &it->work, NULL, NULL, REN_DELIVER_NONE, 0, NULL), REN_OK);
}

/* Wait for all that was posted; the status of one of them. */
static ren_status result_of(uint32_t i)
{
    CU_ASSERT_EQUAL(ren_runtime_drain(b.rt, 20 * SECOND), REN_OK);
    return atomic_load(&b.items[i].done);
}

static uint32_t differs(uint32_t i)
{
    uint32_t wrong = 0;
    const unsigned char *out = b.items[i].output;
    for (uint32_t r = 0; r < ROOTS; r++) {
        wrong += p.written[r] && memcmp(out + (size_t)r * BYTES, p.host[r], BYTES) != 0;
    }
    return wrong;
}

/* All issues posted at once; the results of each are the reference's. */
static uint32_t run_issues(void)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < ISSUES; i++) {
        post(i);
    }
    for (uint32_t i = 0; i < ISSUES; i++) {
        wrong += result_of(i) != REN_OK;
    }
    for (uint32_t i = 0; i < (b.use_graph ? 1u : ISSUES); i++) {
        wrong += differs(i);
    }
    return wrong;
}

/* ------------------------------------------------------------------ cases */

/* One to five lanes, both policies, streams held back at random. Fails if a wait, the fork or the
 * join is missing, or if an issue overtakes the one before. */
static void test_issue_any_lanes_any_policy(void)
{
    uint32_t wrong = 0;
    for (uint32_t lanes = 1; lanes <= REN__LANES; lanes++) {
        for (uint32_t policy = REN__POLICY_STATIC; policy <= REN__POLICY_GREEDY; policy++) {
            make_program(100u * lanes + policy);
            open_bench(lanes, (ren__plan_policy)policy, 0);
            ren_test_delay(b.rt, below(REN_STREAM_COUNT), 2);
            wrong += run_issues();
            close_bench();
        }
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

/* Five lanes under many drawn schedules. */
static void test_issue_under_seeds(void)
{
    uint32_t wrong = 0;
    for (uint64_t seed = 1; seed <= (ren_test_slowdown() > 1 ? 10u : 40u); seed++) {
        make_program(seed);
        open_bench(5, (ren__plan_policy)(seed % 2u), seed);
        wrong += run_issues();
        close_bench();
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

/* An issue is captured whole on one to five lanes, origin's last, and each replay gives the same.
 * Fails if a lane is not forked from origin or not joined to it: the capture breaks, or runs. */
static void test_issue_captured(void)
{
    uint32_t wrong = 0;
    for (uint32_t lanes = 1; lanes <= REN__LANES; lanes++) {
        make_program(700u + lanes);
        open_bench(lanes, REN__POLICY_STATIC, 0);
        if (ren__runtime_caps(b.rt)->graphs) {
            b.use_graph = 1;
            wrong += run_issues();
        }
        close_bench();
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

/* The same a segment at a time, under both policies and drawn schedules: each is closed in itself,
 * and they follow each other. Fails if a lane of a segment is not forked or joined, if a wait for
 * an earlier segment is recorded or one inside a segment is not, or if an order of issue mixes
 * segments. */
static void test_issue_captured_in_segments(void)
{
    uint32_t wrong = 0;
    for (uint64_t seed = 0; seed < (ren_test_slowdown() > 1 ? 10u : 60u); seed++) {
        uint32_t lanes = 1u + (uint32_t)seed % REN__LANES;
        make_program(2000u + seed);
        uint32_t runs = (p.tasks + 12u) / 13u;
        open_cut(lanes, (ren__plan_policy)(seed / REN__LANES % 2u), seed % 3u ? seed : 0, 1);
        CU_ASSERT_EQUAL(ren__plan_segment_count(b.plan), runs);
        for (uint32_t i = 0, at = 0; i < runs; i++) {
            const ren__plan_segment *row = ren__plan_segment_at(b.plan, i);
            CU_ASSERT_STRING_EQUAL(row->name, labels[i % REN_TEST_COUNT(labels)]);
            CU_ASSERT_EQUAL(row->first, at);
            at += i + 1u < runs ? 13u : p.tasks - at;
            CU_ASSERT_EQUAL(row->end, at);
            CU_ASSERT_EQUAL(row->forks & ~row->lanes, 0);
            CU_ASSERT_EQUAL(row->joins & ~row->lanes, 0);
        }
        if (ren__runtime_caps(b.rt)->graphs) {
            b.use_graph = 1;
            wrong += run_issues();
        }
        close_bench();
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

/* With the host waiting behind every task the results are the same. */
static void test_issue_sync(void)
{
    make_program(900);
    open_bench(5, REN__POLICY_STATIC, 0);
    b.sync = 1;
    CU_ASSERT_EQUAL(run_issues(), 0);
    close_bench();
}

/* A device call fails in the middle of an issue: that job fails with the error, and the next issue
 * gives the right result although part of the failed one may still be running. */
static void test_issue_after_a_failed_call(void)
{
    static const char *const calls[5] = {"op_launch", "copy", "fill", "event_record", "event_wait"};
    uint32_t wrong = 0;
    for (uint32_t c = 0; c < 5; c++) {
        for (uint32_t nth = 1; nth <= 9; nth += 4) {
            make_program(1000u + c * 10u + nth);
            open_bench(5, REN__POLICY_STATIC, 0);
            ren_test_delay(b.rt, below(REN_STREAM_COUNT), 2);
            ren_test_fault(b.rt, calls[c], nth, REN_ERR_DEVICE, 0);
            post(0);
            ren_status status = result_of(0);
            ren_test_fault_clear(b.rt);
            wrong += status != REN_OK && status != REN_ERR_DEVICE;
            wrong += nth == 1 && c < 3 && status != REN_ERR_DEVICE;
            post(1);
            wrong += result_of(1) != REN_OK || differs(1) != 0;
            close_bench();
        }
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_issue_any_lanes_any_policy", test_issue_any_lanes_any_policy},
        {"test_issue_under_seeds", test_issue_under_seeds},
        {"test_issue_captured", test_issue_captured},
        {"test_issue_captured_in_segments", test_issue_captured_in_segments},
        {"test_issue_sync", test_issue_sync},
        {"test_issue_after_a_failed_call", test_issue_after_a_failed_call}};
    return ren_test_main(argc, argv, "test_plan_issue", cases, REN_TEST_COUNT(cases), 240);
}
