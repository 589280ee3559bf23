/* SPDX-License-Identifier: MIT */
/* tests/unit/plan_random.h - random task lists, and what they require, found the slow way.
 *
 * Purpose   A program of a seed: values of all kinds, aliases that overlap and that do not, tasks
 *           of all kinds on all streams, control edges, any mapping of streams to lanes. Next to
 *           the task graph it keeps its own list of byte ranges, from which the required pairs
 *           follow by comparing every task with every other.
 */
#ifndef REN_TEST_PLAN_RANDOM_H
#define REN_TEST_PLAN_RANDOM_H

#include "plan_fake.h"

#define RANDOM_TASKS  48u
#define RANDOM_VALUES 24u
#define RANDOM_BYTES  4096u

typedef struct random_access {
    uint32_t root;
    uint64_t begin, end;
    int reads, writes;
} random_access;

typedef struct random_program {
    unsigned long long state;
    ren__task_graph *graph;
    ren__plan_config config;
    uint32_t value_count, task_count;
    ren__value_kind kinds[RANDOM_VALUES];
    uint32_t roots[RANDOM_VALUES];
    uint64_t offsets[RANDOM_VALUES], sizes[RANDOM_VALUES];
    random_access accesses[RANDOM_TASKS][REN__OPERANDS];
    uint32_t access_count[RANDOM_TASKS];
    uint32_t commands[RANDOM_TASKS]; /* that the task's launch takes */
    uint8_t movable[RANDOM_TASKS];   /* by GREEDY */
    uint8_t filled[RANDOM_VALUES];   /* the root was written once, so it may be read */
    uint8_t control[RANDOM_TASKS][RANDOM_TASKS];
    void *addresses[RANDOM_VALUES]; /* of FIXED and EXTERNAL values */
} random_program;

static unsigned char random_memory[RANDOM_VALUES][RANDOM_BYTES];

static inline uint32_t random_below(random_program *p, uint32_t n)
{
    return (uint32_t)(ren_test_random(&p->state) % n);
}

static inline void random_values(random_program *p)
{
    uint32_t count = 3u + random_below(p, RANDOM_VALUES - 3u);
    for (uint32_t v = 0; v < count; v++) {
        p->addresses[v] = random_memory[v];
        if (v && random_below(p, 3) == 0) {
            uint32_t parent = random_below(p, v);
            uint64_t unit = p->sizes[parent] / 8u;
            uint64_t first = random_below(p, 8);
            uint64_t units = 1u + random_below(p, 8u - (uint32_t)first);
            if (unit) {
                p->kinds[v] = p->kinds[parent];
                p->roots[v] = p->roots[parent];
                p->offsets[v] = p->offsets[parent] + first * unit;
                p->sizes[v] = units * unit;
                ren__task_graph_alias(p->graph, "alias", parent, first * unit, p->sizes[v]);
                continue;
            }
        }
        p->kinds[v] = (ren__value_kind)random_below(p, 3);
        p->roots[v] = v;
        p->offsets[v] = 0;
        p->sizes[v] = 1u + random_below(p, RANDOM_BYTES);
        ren__task_graph_value(p->graph, "value", p->kinds[v], p->sizes[v]);
    }
    p->value_count = count;
}

static inline void random_note(random_program *p, uint32_t value, uint64_t offset, uint64_t bytes,
                               int reads, int writes)
{
    random_access *a = &p->accesses[p->task_count][p->access_count[p->task_count]++];
    a->root = p->roots[value];
    a->begin = p->offsets[value] + offset;
    a->end = bytes ? a->begin + bytes : p->offsets[value] + p->sizes[value];
    a->reads = reads;
    a->writes = writes;
}

static inline ren__task random_task(random_program *p)
{
    static const uint64_t costs[4] = {0, 1000, 2000000, 50000000};
    ren_stream stream = (ren_stream)random_below(p, REN_STREAM_COUNT);
    ren__task t = fake_task("task", stream, costs[random_below(p, 4)]);
    t.free_stream = random_below(p, 2);
    t.op.layer = random_below(p, 1000);
    t.op.training = random_below(p, 2);
    return t;
}

static inline void random_add(random_program *p, const ren__task *t)
{
    p->commands[p->task_count] = t->kind == REN__TASK_OP ? 1u + t->op.training : 1u;
    p->movable[p->task_count] =
        t->free_stream && t->stream >= REN_STREAM_COMP_1 && t->stream <= REN_STREAM_COMP_3;
    CU_ASSERT_EQUAL(ren__task_graph_add(p->graph, t), p->task_count);
    p->task_count++;
}

static inline void random_fill(random_program *p, uint32_t value, uint64_t offset, uint64_t bytes)
{
    ren__task t = random_task(p);
    t.kind = REN__TASK_FILL;
    t.bytes = bytes;
    t.operand_offset[0] = offset;
    fake_writes(&t, 0, value);
    random_note(p, value, offset, bytes, 0, 1);
    random_add(p, &t);
}

/* A LOCAL value is written as a whole before its first other use. */
static inline uint32_t random_value(random_program *p)
{
    uint32_t value = random_below(p, p->value_count);
    uint32_t root = p->roots[value];
    if (p->kinds[value] == REN__VALUE_LOCAL && !p->filled[root]) {
        p->filled[root] = 1;
        random_fill(p, root, 0, p->sizes[root]);
    }
    return value;
}

static inline void random_op(random_program *p)
{
    ren__task t = random_task(p);
    uint32_t operands = 1u + random_below(p, 3);
    uint32_t values[3];
    for (uint32_t i = 0; i < operands; i++) {
        values[i] = random_value(p);
    }
    for (uint32_t i = 0; i < operands; i++) {
        uint32_t value = values[i];
        uint32_t how = random_below(p, 5); /* 0-2 read, 3 write, 4 both */
        int reads = how != 3;
        int writes = how >= 3;
        t.operand[i] = value;
        t.reads |= (uint32_t)reads << i;
        t.writes |= (uint32_t)writes << i;
        random_note(p, value, 0, 0, reads, writes);
    }
    random_add(p, &t);
}

static inline void random_copy(random_program *p)
{
    uint32_t dst = random_value(p);
    uint32_t src = random_value(p);
    uint64_t bytes = p->sizes[dst] < p->sizes[src] ? p->sizes[dst] : p->sizes[src];
    bytes = 1u + random_below(p, (uint32_t)bytes);
    if (p->roots[dst] == p->roots[src]) {
        return;
    }
    ren__task t = random_task(p);
    t.kind = REN__TASK_COPY;
    t.bytes = bytes;
    fake_writes(&t, 0, dst);
    fake_reads(&t, 1, src);
    random_note(p, dst, 0, bytes, 0, 1);
    random_note(p, src, 0, bytes, 1, 0);
    random_add(p, &t);
}

static inline void random_tasks(random_program *p)
{
    uint32_t count = 2u + random_below(p, RANDOM_TASKS - 6u); /* a task may add three fills */
    while (p->task_count < count) {
        uint32_t kind = random_below(p, 6);
        if (kind == 0) {
            uint32_t v = random_value(p);
            uint64_t offset = random_below(p, (uint32_t)p->sizes[v]);
            random_fill(p, v, offset, 1u + random_below(p, (uint32_t)(p->sizes[v] - offset)));
        } else if (kind == 1) {
            random_copy(p);
        } else {
            random_op(p);
        }
        if (p->task_count > 1 && random_below(p, 8) == 0) {
            uint32_t after = 1u + random_below(p, p->task_count - 1u);
            uint32_t before = random_below(p, after);
            p->control[before][after] = 1;
            ren__task_graph_control(p->graph, before, after);
        }
    }
}

static inline void random_make(random_program *p, unsigned long long seed)
{
    memset(p, 0, sizeof *p);
    p->state = seed;
    p->graph = fake_graph();
    random_values(p);
    random_tasks(p);
    p->config.policy = (ren__plan_policy)random_below(p, 2);
    p->config.lanes = 1u + random_below(p, REN__LANES);
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        p->config.lane_of[s] = random_below(p, p->config.lanes);
    }
    p->config.origin = (ren_stream)random_below(p, REN_STREAM_COUNT);
    p->config.reuse = random_below(p, 4) != 0;
    p->config.replayed = random_below(p, 2);
    if (random_below(p, 2)) {
        p->config.costs = (ren__device_costs){.launch_ns = random_below(p, 5000),
                                              .event_ns = random_below(p, 5000),
                                              .host_launch_ns = random_below(p, 5000),
                                              .host_event_ns = random_below(p, 5000),
                                              .processors = random_below(p, 6),
                                              .bytes_per_ns = 100.0f};
    }
}

/* Must task i be complete before task j > i starts? By definition, not by any shortcut. */
static inline int random_required(const random_program *p, uint32_t i, uint32_t j)
{
    for (uint32_t a = 0; a < p->access_count[i]; a++) {
        for (uint32_t b = 0; b < p->access_count[j]; b++) {
            const random_access *x = &p->accesses[i][a];
            const random_access *y = &p->accesses[j][b];
            if (x->root == y->root && x->begin < y->end && y->begin < x->end &&
                (x->writes || y->writes)) {
                return 1;
            }
        }
    }
    return p->control[i][j];
}

#endif
