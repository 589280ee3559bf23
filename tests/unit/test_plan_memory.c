/* SPDX-License-Identifier: MIT */
/* tests/unit/test_plan_memory.c - values that live inside a step: where they lie, and when they may
 * share.
 *
 * Purpose   An oracle over random programs, from addresses and enqueued commands alone; the cases
 *           that a person can check by eye; sizes that only ops know; workspaces; and resolve under
 *           every failure.
 */
#include "plan_fake.h"
#include "plan_random.h"

#define NONE REN__NO_VALUE
#define KIB  1024u

static fake_order order;

static uint32_t local_value(ren__task_graph *g, uint64_t bytes)
{
    return ren__task_graph_value(g, "local", REN__VALUE_LOCAL, bytes);
}

static uint32_t fixed_value(ren__task_graph *g)
{
    return ren__task_graph_value(g, "fixed", REN__VALUE_FIXED, 64);
}

/* A chain x1 -> x2 -> ... of `links` values of 1 KiB, ending in a FIXED value. */
static ren__task_graph *chain(uint32_t links)
{
    ren__task_graph *g = fake_graph();
    uint32_t out = fixed_value(g);
    uint32_t value = NONE;
    for (uint32_t i = 0; i < links; i++) {
        uint32_t next = local_value(g, KIB);
        fake_op(g, "link", REN_STREAM_COMP_1, 0, value, NONE, next);
        value = next;
    }
    fake_op(g, "last", REN_STREAM_COMP_1, 0, value, NONE, out);
    return g;
}

/* A chain needs two values' room however long it is; with reuse = 0 it needs all. Fails if
 * lifetimes overlap too much (no sharing) or too little (a task would write over its own input: one
 * value). */
static void test_place_chain_shares(void)
{
    fake_reset();
    ren__task_graph *g = chain(10);
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    CU_ASSERT_EQUAL(fake_counts(plan).local_bytes, 2u * KIB);
    CU_ASSERT_EQUAL(fake_counts(plan).local_bytes_flat, 10u * KIB);
    ren__plan_destroy(plan);
    config.reuse = 0;
    plan = fake_build(g, &config);
    CU_ASSERT_EQUAL(fake_counts(plan).local_bytes, 10u * KIB);
    ren__plan_destroy(plan);
    ren__task_graph_destroy(g);
    CU_ASSERT_EQUAL(fake.in_use, 0);
}

/* Two chains on two streams with no edge between them must not share with each other, as that would
 * ask for an event: 2 + 2 values. On one lane the same program needs 2. Fails if program order is
 * taken for happens-before. */
static void test_place_adds_no_edges(void)
{
    for (uint32_t lanes = 1; lanes <= 5; lanes += 4) {
        fake_reset();
        ren__task_graph *g = fake_graph();
        uint32_t out = fixed_value(g);
        uint32_t out2 = fixed_value(g);
        for (uint32_t s = REN_STREAM_COMP_1; s <= REN_STREAM_COMP_2; s++) {
            uint32_t value = NONE;
            for (uint32_t i = 0; i < 5; i++) {
                uint32_t next = local_value(g, KIB);
                fake_op(g, "link", (ren_stream)s, 0, value, NONE, next);
                value = next;
            }
            fake_op(g, "last", (ren_stream)s, 0, value, NONE, s == REN_STREAM_COMP_1 ? out : out2);
        }
        ren__plan_config config = fake_config(REN__POLICY_STATIC, lanes);
        ren__plan *plan = fake_build(g, &config);
        CU_ASSERT_EQUAL(fake_counts(plan).waits, 0);
        CU_ASSERT_EQUAL(fake_counts(plan).local_bytes, (lanes == 1 ? 2u : 4u) * KIB);
        ren__plan_destroy(plan);
        ren__task_graph_destroy(g);
    }
}

/* ------------------------------------------------------------------ the oracle */

static random_program program;

static uint64_t users_of(uint32_t root)
{
    uint64_t users = 0;
    for (uint32_t i = 0; i < program.task_count; i++) {
        for (uint32_t a = 0; a < program.access_count[i]; a++) {
            if (program.accesses[i][a].root == root) {
                users |= (uint64_t)1 << i;
            }
        }
    }
    return users;
}

static uint32_t command_of(const ren__plan *plan, uint32_t task)
{
    return fake_task_command(0, ren__plan_task_place(plan, task));
}

static int all_before(const ren__plan *plan, uint64_t first, uint64_t second)
{
    for (uint32_t i = 0; i < program.task_count; i++) {
        for (uint32_t j = 0; j < program.task_count; j++) {
            if ((first >> i & 1u) && (second >> j & 1u) &&
                !fake_is_before(&order, command_of(plan, i), command_of(plan, j))) {
                return 0;
            }
        }
    }
    return 1;
}

static int overlap(const unsigned char *a, uint64_t a_bytes, const unsigned char *b,
                   uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static uint32_t judge(const ren__plan *plan, uint32_t *shared)
{
    uint32_t wrong = 0;
    for (uint32_t v = 0; v < program.value_count; v++) {
        const unsigned char *at = ren__plan_address(plan, v);
        if (program.kinds[v] != REN__VALUE_LOCAL) {
            wrong += at != (program.kinds[v] == REN__VALUE_FIXED
                                ? random_memory[program.roots[v]] + program.offsets[v]
                                : NULL);
            continue;
        }
        const unsigned char *root = ren__plan_address(plan, program.roots[v]);
        if (users_of(program.roots[v]) == 0) {
            wrong += at != NULL || root != NULL;
            continue;
        }
        wrong += at != root + program.offsets[v];
        wrong += (uintptr_t)root % REN__ALIGN != 0;
        for (uint32_t w = 0; w < v; w++) {
            const unsigned char *other = ren__plan_address(plan, w);
            if (program.kinds[w] != REN__VALUE_LOCAL || program.roots[w] != w ||
                program.roots[v] != v || !overlap(at, program.sizes[v], other, program.sizes[w])) {
                continue;
            }
            uint64_t a = users_of(v);
            uint64_t b = users_of(w);
            wrong += !program.config.reuse || !(all_before(plan, a, b) || all_before(plan, b, a));
            *shared += 1;
        }
    }
    return wrong;
}

/* 500 programs: LOCAL values whose addresses overlap have users that the commands keep apart;
 * aliases lie inside their roots; FIXED values are where the caller said. Fails if one task is
 * forgotten in a lifetime or if order is assumed that no command enforces. */
static void test_place_random_programs(void)
{
    uint32_t wrong = 0;
    uint32_t shared = 0;
    for (unsigned long long seed = 1; seed <= 500; seed++) {
        fake_reset();
        random_make(&program, seed);
        ren__plan *plan = fake_build(program.graph, &program.config);
        ren__task_graph_destroy(program.graph);
        CU_ASSERT_EQUAL_FATAL(ren__plan_resolve(plan, FAKE_RUNTIME, program.addresses, NULL),
                              REN_OK);
        CU_ASSERT_EQUAL(ren__plan_issue(plan, FAKE_SUBMIT, program.addresses, 1, 0), REN_OK);
        fake_derive(&order, UINT32_MAX);
        wrong += judge(plan, &shared);
        ren__plan_destroy(plan);
        CU_ASSERT_EQUAL(fake.in_use + fake.ops + fake.events + fake.regions, 0);
    }
    printf("  500 programs, %u pairs share memory\n", shared);
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT(shared > 50);
}

/* ------------------------------------------------------------------ resolve */

/* A value whose size its op decides gets that size at resolve, in forward and backward op alike,
 * and no room before. Fails if it overlaps what lives at the same time. */
static void test_resolve_saved_size(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t x = local_value(g, KIB);
    uint32_t y = local_value(g, KIB);
    uint32_t saved = local_value(g, 0);
    uint32_t dx = local_value(g, KIB);
    fake_op(g, "x", REN_STREAM_COMP_1, 0, NONE, NONE, x);
    ren__task t = fake_task("pool", REN_STREAM_COMP_2, 0);
    t.op.count = 5000; /* the fake's saved bytes */
    fake_reads(&t, 0, x);
    fake_writes(&t, 1, y);
    fake_writes(&t, 2, saved);
    uint32_t forward = ren__task_graph_add(g, &t);
    ren__task_graph_saved(g, saved, forward);
    fake_op(g, "back", REN_STREAM_COMP_2, 0, y, saved, dx);
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    ren__task_graph_destroy(g);
    void *fixed[4] = {NULL};
    CU_ASSERT_EQUAL(ren__plan_resolve(plan, FAKE_RUNTIME, fixed, NULL), REN_OK);
    unsigned char *at = ren__plan_address(plan, saved);
    CU_ASSERT_PTR_NOT_NULL(at);
    CU_ASSERT_FALSE(overlap(at, 5000, ren__plan_address(plan, x), KIB));
    CU_ASSERT_FALSE(overlap(at, 5000, ren__plan_address(plan, y), KIB));
    CU_ASSERT_FALSE(overlap(at, 5000, ren__plan_address(plan, dx), KIB));
    CU_ASSERT_EQUAL(fake.region_bytes, 5120 + 2u * KIB); /* dx takes x's place */
    CU_ASSERT_EQUAL(ren__plan_issue(plan, FAKE_SUBMIT, fixed, 1, 0), REN_OK);
    CU_ASSERT_PTR_EQUAL(fake.commands[fake_task_command(0, 1)].args[2], at);
    CU_ASSERT_PTR_EQUAL(fake.commands[fake_task_command(0, 2)].args[1], at);
    ren__plan_destroy(plan);
    CU_ASSERT_EQUAL(fake.in_use + fake.regions, 0);
}

/* One workspace a lane, as large as its hungriest op, apart from the others and from all values;
 * none for a lane whose ops need none. */
static void test_resolve_workspaces(void)
{
    static const uint32_t wants[3][2] = {{100, 9000}, {300, 10}, {0, 0}};
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t value = local_value(g, KIB);
    for (uint32_t i = 0; i < 6; i++) {
        ren__task t = fake_task("op", (ren_stream)(REN_STREAM_COMP_1 + i / 2u), 0);
        t.op.layer = wants[i / 2u][i % 2u];
        fake_writes(&t, 0, value);
        ren__task_graph_add(g, &t);
    }
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    ren__task_graph_destroy(g);
    void *none[1] = {NULL};
    CU_ASSERT_EQUAL(ren__plan_resolve(plan, FAKE_RUNTIME, none, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren__plan_issue(plan, FAKE_SUBMIT, none, 1, 0), REN_OK);
    const unsigned char *w[6];
    for (uint32_t i = 0; i < 6; i++) {
        w[i] = fake.commands[fake_task_command(0, i)].workspace;
    }
    const unsigned char *at = ren__plan_address(plan, value);
    CU_ASSERT_PTR_EQUAL(w[0], w[1]);
    CU_ASSERT_PTR_EQUAL(w[2], w[3]);
    CU_ASSERT_PTR_NULL(w[4]);
    CU_ASSERT_PTR_NULL(w[5]);
    CU_ASSERT_FALSE(overlap(w[0], 9000, w[2], 300));
    CU_ASSERT_FALSE(overlap(w[0], 9000, at, KIB));
    CU_ASSERT_FALSE(overlap(w[2], 300, at, KIB));
    CU_ASSERT_EQUAL(fake.region_bytes, KIB + 9216 + 512);
    CU_ASSERT_EQUAL((uintptr_t)w[0] % REN__ALIGN + (uintptr_t)w[2] % REN__ALIGN, 0);
    ren__plan_destroy(plan);
}

/* Resolve with the nth call failing; then again, and issue. Returns the first resolve's status. */
static ren_status resolve_with_failure(unsigned long long seed, uint32_t nth)
{
    fake_reset();
    random_make(&program, seed);
    ren__plan *plan = fake_build(program.graph, &program.config);
    ren__task_graph_destroy(program.graph);
    uint64_t in_use = fake.in_use;
    fake.fail_at = fake.calls + nth;
    ren_error err = {0};
    ren_status first = ren__plan_resolve(plan, FAKE_RUNTIME, program.addresses, &err);
    fake.fail_at = 0;
    if (first != REN_OK) {
        CU_ASSERT(err.status == first && err.text[0] != 0);
        CU_ASSERT_EQUAL(fake.ops + fake.events + fake.regions, 0);
        CU_ASSERT_EQUAL(fake.in_use, in_use);
        CU_ASSERT_EQUAL(ren__plan_resolve(plan, FAKE_RUNTIME, program.addresses, NULL), REN_OK);
    }
    CU_ASSERT_EQUAL(ren__plan_resolve(plan, FAKE_RUNTIME, program.addresses, NULL),
                    REN_ERR_INTERNAL);
    CU_ASSERT_EQUAL(ren__plan_issue(plan, FAKE_SUBMIT, program.addresses, 1, 0), REN_OK);
    ren__plan_destroy(plan);
    CU_ASSERT_EQUAL(fake.in_use + fake.ops + fake.events + fake.regions, 0);
    return first;
}

/* Whatever call fails in resolve, everything is released, and the plan can be resolved afterwards.
 * Fails on a leak, a double free, or a plan left half resolved. */
static void test_resolve_every_call_fails(void)
{
    uint32_t failures = 0;
    for (unsigned long long seed = 1; seed <= 8; seed++) {
        uint32_t nth = 1;
        while (resolve_with_failure(seed, nth) != REN_OK) {
            nth++;
        }
        failures += nth - 1u;
    }
    CU_ASSERT(failures > 100);
}

/* A FIXED value that a task touches must have an address. */
static void test_resolve_fixed_without_address(void)
{
    fake_reset();
    ren__task_graph *g = chain(3);
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    ren__task_graph_destroy(g);
    void *none[4] = {NULL};
    ren_error err = {0};
    CU_ASSERT_EQUAL(ren__plan_resolve(plan, FAKE_RUNTIME, none, &err), REN_ERR_INTERNAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "fixed"));
    CU_ASSERT_EQUAL(fake.ops + fake.events + fake.regions, 0);
    ren__plan_destroy(plan);
    CU_ASSERT_EQUAL(fake.in_use, 0);
}

/* Offsets of operands, aliases of every kind, and EXTERNAL addresses that change between issues. */
static void test_issue_addresses(void)
{
    fake_reset();
    ren__task_graph *g = fake_graph();
    uint32_t in = ren__task_graph_value(g, "in", REN__VALUE_EXTERNAL, 512);
    uint32_t part = ren__task_graph_alias(g, "part", in, 128, 256);
    uint32_t local = local_value(g, 512);
    ren__task t = fake_task("copy", REN_STREAM_TRANS, 0);
    t.kind = REN__TASK_COPY;
    t.bytes = 32;
    fake_writes(&t, 0, local);
    fake_reads(&t, 1, part);
    t.operand_offset[0] = 16;
    t.operand_offset[1] = 64;
    ren__task_graph_add(g, &t);
    ren__plan_config config = fake_config(REN__POLICY_STATIC, 5);
    ren__plan *plan = fake_build(g, &config);
    ren__task_graph_destroy(g);
    void *none[3] = {NULL};
    CU_ASSERT_EQUAL(ren__plan_resolve(plan, FAKE_RUNTIME, none, NULL), REN_OK);
    for (uint32_t i = 0; i < 2; i++) {
        void *external[3] = {random_memory[i], NULL, NULL};
        fake.count = 0;
        CU_ASSERT_EQUAL(ren__plan_issue(plan, FAKE_SUBMIT, external, 1, 0), REN_OK);
        const fake_command *c = &fake.commands[fake_task_command(0, 0)];
        CU_ASSERT_PTR_EQUAL(c->args[1], random_memory[i] + 128 + 64);
        CU_ASSERT_PTR_EQUAL(c->args[0], (unsigned char *)ren__plan_address(plan, local) + 16);
    }
    CU_ASSERT_PTR_NULL(ren__plan_address(plan, in));
    ren__plan_destroy(plan);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_place_chain_shares", test_place_chain_shares},
        {"test_place_adds_no_edges", test_place_adds_no_edges},
        {"test_place_random_programs", test_place_random_programs},
        {"test_resolve_saved_size", test_resolve_saved_size},
        {"test_resolve_workspaces", test_resolve_workspaces},
        {"test_resolve_every_call_fails", test_resolve_every_call_fails},
        {"test_resolve_fixed_without_address", test_resolve_fixed_without_address},
        {"test_issue_addresses", test_issue_addresses}};
    return ren_test_main(argc, argv, "test_plan_memory", cases, REN_TEST_COUNT(cases), 120);
}
