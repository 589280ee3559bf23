/* SPDX-License-Identifier: MIT */
/* tests/unit/plan_fake.h - a device and a runtime that only write down what they are asked.
 *
 * Purpose   The planner's tests look at the commands that an issue enqueues: from them, and from
 *           nothing the planner says about itself, `fake_order` derives what happens before what.
 *           Any call can be made to fail; what is alive is counted.
 * Threads   one.
 * Memory    fixed arrays; device memory is one block of real memory, so that addresses are real.
 * Use       include in one .c file only: it defines the functions of core.h that libren/graph uses.
 */
#ifndef REN_TEST_PLAN_FAKE_H
#define REN_TEST_PLAN_FAKE_H

#include "../../libren/graph/plan.h"
#include "../support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAKE_COMMANDS 1024u
#define FAKE_WORDS    (FAKE_COMMANDS / 64u)
#define FAKE_OBJECTS  512u

typedef enum fake_kind {
    FAKE_LAUNCH,
    FAKE_COPY,
    FAKE_FILL,
    FAKE_MARK, /* put in by a test: a command of the lane that stands for all before or after it */
    FAKE_RECORD,
    FAKE_WAIT,
    FAKE_SYNC
} fake_kind;

typedef struct fake_command {
    fake_kind kind;
    uint32_t lane;
    const void *event; /* RECORD, WAIT, SYNC */
    void *args[REN__OPERANDS];
    void *workspace;
} fake_command;

struct ren__op {
    uint32_t lane;
    ren__op_desc desc;
};

struct ren__event {
    uint32_t for_host_wait;
};

typedef struct fake_state {
    fake_command commands[FAKE_COMMANDS];
    uint32_t count;
    uint32_t calls;                /* that may fail, so far */
    uint32_t fail_at;              /* this one fails, from 1; 0 = none */
    uint32_t ops, events, regions; /* alive */
    uint32_t recorded, waited;     /* as counted by ren__submit_count_events */
    uint64_t region_bytes;
    uint64_t in_use; /* host bytes */
} fake_state;

static fake_state fake;

static inline ren_status fake_call(void)
{
    return ++fake.calls == fake.fail_at ? REN_ERR_DEVICE : REN_OK;
}

static inline ren_status fake_push(fake_kind kind, uint32_t lane, const void *event,
                                   void *const *args, void *workspace)
{
    ren_status status = kind == FAKE_MARK ? REN_OK : fake_call();
    if (status != REN_OK || fake.count == FAKE_COMMANDS) {
        return REN_ERR_DEVICE;
    }
    fake_command *c = &fake.commands[fake.count++];
    memset(c, 0, sizeof *c);
    c->kind = kind;
    c->lane = lane;
    c->event = event;
    c->workspace = workspace;
    if (args) {
        memcpy(c->args, args, sizeof c->args);
    }
    return REN_OK;
}

/* ------------------------------------------------------------------ the device's table */

static inline ren_status fake_event_create(ren__device *dev, uint32_t host, ren__event **out)
{
    (void)dev;
    if (fake_call() != REN_OK) {
        return REN_ERR_DEVICE;
    }
    *out = calloc(1, sizeof **out);
    (*out)->for_host_wait = host;
    fake.events++;
    return REN_OK;
}

static inline void fake_event_destroy(ren__device *dev, ren__event *event)
{
    (void)dev;
    fake.events--;
    free(event);
}

static inline ren_status fake_event_record(ren__device *dev, uint32_t lane, ren__event *event)
{
    (void)dev;
    return fake_push(FAKE_RECORD, lane, event, NULL, NULL);
}

static inline ren_status fake_event_wait(ren__device *dev, uint32_t lane, ren__event *event)
{
    (void)dev;
    return fake_push(FAKE_WAIT, lane, event, NULL, NULL);
}

static inline ren_status fake_event_sync(ren__device *dev, ren__event *event)
{
    (void)dev;
    return event->for_host_wait ? fake_push(FAKE_SYNC, 0, event, NULL, NULL) : REN_ERR_DEVICE;
}

static inline ren_status fake_copy(ren__device *dev, uint32_t lane, void *dst, const void *src,
                                   uint64_t bytes)
{
    (void)dev;
    (void)bytes;
    void *args[REN__OPERANDS] = {dst, (void *)(uintptr_t)src};
    return fake_push(FAKE_COPY, lane, NULL, args, NULL);
}

static inline ren_status fake_fill(ren__device *dev, uint32_t lane, void *dst, uint32_t byte_value,
                                   uint64_t bytes)
{
    (void)dev;
    (void)byte_value;
    (void)bytes;
    void *args[REN__OPERANDS] = {dst};
    return fake_push(FAKE_FILL, lane, NULL, args, NULL);
}

/* The fake reads its needs from members that its ops have no other use for: `layer` is the
 * workspace, `count` the saved bytes, `training` the commands beyond one. */
static inline ren_status fake_op_create(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                                        ren__op **out, ren__op_needs *needs, ren_error *err)
{
    (void)dev;
    if (fake_call() != REN_OK) {
        return REN__FAIL(err, REN_ERR_DEVICE, "made to fail");
    }
    *out = calloc(1, sizeof **out);
    (*out)->lane = lane;
    (*out)->desc = *desc;
    needs->workspace_bytes = desc->layer;
    needs->saved_bytes = desc->count;
    needs->commands = 1u + desc->training;
    fake.ops++;
    return REN_OK;
}

static inline void fake_op_destroy(ren__device *dev, ren__op *op)
{
    (void)dev;
    fake.ops--;
    free(op);
}

static inline ren_status fake_op_launch(ren__device *dev, uint32_t lane, ren__op *op,
                                        void *const operands[REN__OPERANDS], void *workspace)
{
    (void)dev;
    return op->lane == lane ? fake_push(FAKE_LAUNCH, lane, NULL, operands, workspace)
                            : REN_ERR_DEVICE;
}

static const ren__device_api fake_api = {.struct_size = sizeof(ren__device_api),
                                         .abi = REN__DEVICE_ABI,
                                         .kind = REN_DEVICE_CPU,
                                         .event_create = fake_event_create,
                                         .event_destroy = fake_event_destroy,
                                         .event_record = fake_event_record,
                                         .event_wait = fake_event_wait,
                                         .event_sync = fake_event_sync,
                                         .copy = fake_copy,
                                         .fill = fake_fill,
                                         .op_create = fake_op_create,
                                         .op_destroy = fake_op_destroy,
                                         .op_launch = fake_op_launch};

/* ---------------------------------------------------------- the runtime, as graph/ knows it */

#define FAKE_RUNTIME ((ren_runtime *)&fake)
#define FAKE_SUBMIT  ((ren__submit *)&fake)
#define FAKE_DEVICE  ((ren__device *)&fake)

const ren__device_api *ren__runtime_api(ren_runtime *rt)
{
    (void)rt;
    return &fake_api;
}

ren__device *ren__runtime_device(ren_runtime *rt)
{
    (void)rt;
    return FAKE_DEVICE;
}

ren_status ren__runtime_seen(ren_runtime *rt, ren_status status)
{
    (void)rt;
    return status;
}

uint32_t ren__runtime_lanes(ren_runtime *rt)
{
    (void)rt;
    return REN__LANES;
}

ren_status ren__region_alloc(ren_runtime *rt, uint64_t bytes, ren__region *out)
{
    (void)rt;
    if (fake_call() != REN_OK) {
        return REN_ERR_NO_DEVICE_MEMORY;
    }
    out->bytes = bytes;
    out->ptr = aligned_alloc(REN__ALIGN, (bytes + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN);
    fake.region_bytes = bytes;
    fake.regions++;
    return REN_OK;
}

void ren__region_free(ren_runtime *rt, ren__region *region)
{
    (void)rt;
    if (region->ptr) {
        free(region->ptr);
        fake.regions--;
    }
}

const ren__device_api *ren__submit_api(ren__submit *s)
{
    (void)s;
    return &fake_api;
}

ren__device *ren__submit_device(ren__submit *s)
{
    (void)s;
    return FAKE_DEVICE;
}

void ren__submit_count_events(ren__submit *s, uint32_t recorded, uint32_t waited)
{
    (void)s;
    fake.recorded += recorded;
    fake.waited += waited;
}

/* ------------------------------------------------------------------ host memory that can fail */

static inline void *fake_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    (void)align;
    if (fake_call() != REN_OK) {
        return NULL;
    }
    fake.in_use += bytes;
    return aligned_alloc(64, (bytes + 63u) / 64u * 64u);
}

static inline void fake_free(void *user, void *ptr, size_t bytes)
{
    (void)user;
    fake.in_use -= bytes;
    free(ptr);
}

static const ren__host_allocator fake_host = {.alloc = fake_alloc, .free = fake_free};

/* ------------------------------------------------------------------ what happens before what */

typedef struct fake_order {
    uint64_t before[FAKE_COMMANDS][FAKE_WORDS]; /* by command: those surely complete first */
} fake_order;

static inline int fake_is_before(const fake_order *o, uint32_t first, uint32_t second)
{
    return (int)(o->before[second][first / 64u] >> (first % 64u) & 1u);
}

static inline void fake_merge(uint64_t *to, const uint64_t *from)
{
    for (uint32_t w = 0; w < FAKE_WORDS; w++) {
        to[w] |= from[w];
    }
}

/* The device's rules and no others: a lane runs in order; a wait orders the lane behind the latest
 * record of the event that was enqueued before. The command `without` is taken to be absent. */
static inline void fake_derive(fake_order *o, uint32_t without)
{
    static uint64_t lanes[REN__LANES][FAKE_WORDS];
    static const void *events[FAKE_OBJECTS];
    static uint64_t points[FAKE_OBJECTS][FAKE_WORDS];
    uint32_t event_count = 0;
    memset(lanes, 0, sizeof lanes);
    memset(o, 0, sizeof *o);
    for (uint32_t c = 0; c < fake.count; c++) {
        const fake_command *command = &fake.commands[c];
        uint32_t e = 0;
        while (e < event_count && events[e] != command->event) {
            e++;
        }
        if (c == without || command->kind == FAKE_SYNC) {
            continue;
        }
        uint64_t *lane = lanes[command->lane];
        if (command->kind == FAKE_WAIT) {
            if (e < event_count) {
                fake_merge(lane, points[e]);
            }
        } else if (command->kind == FAKE_RECORD) {
            if (e == event_count) {
                events[event_count++] = command->event;
            }
            memcpy(points[e], lane, sizeof points[e]);
        } else {
            memcpy(o->before[c], lane, sizeof o->before[c]);
            lane[c / 64u] |= (uint64_t)1 << (c % 64u);
        }
    }
}

/* The command of the nth task of the issue that began at `first`: an issue enqueues one command a
 * task, in program order, besides records, waits and syncs. */
static inline uint32_t fake_task_command(uint32_t first, uint32_t task)
{
    for (uint32_t c = first; c < fake.count; c++) {
        if (fake.commands[c].kind <= FAKE_FILL && task-- == 0) {
            return c;
        }
    }
    return UINT32_MAX;
}

static inline uint32_t fake_count(fake_kind kind)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < fake.count; c++) {
        n += fake.commands[c].kind == kind;
    }
    return n;
}

static inline void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
}

/* ------------------------------------------------------------------ short forms for building */

static inline ren__task_graph *fake_graph(void)
{
    ren__task_graph *g = NULL;
    CU_ASSERT_EQUAL(ren__task_graph_create(&fake_host, &g), REN_OK);
    return g;
}

static inline ren__task fake_task(const char *name, ren_stream stream, uint64_t cost)
{
    ren__task t;
    memset(&t, 0, sizeof t);
    t.name = name;
    t.segment = "test";
    t.stream = stream;
    t.free_stream = 1;
    t.cost = cost;
    t.op.struct_size = (uint32_t)sizeof t.op;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        t.operand[i] = REN__NO_VALUE;
    }
    return t;
}

static inline void fake_reads(ren__task *t, uint32_t operand, uint32_t value)
{
    t->operand[operand] = value;
    t->reads |= 1u << operand;
}

static inline void fake_writes(ren__task *t, uint32_t operand, uint32_t value)
{
    t->operand[operand] = value;
    t->writes |= 1u << operand;
}

/* An op that reads up to two values and writes one. */
static inline uint32_t fake_op(ren__task_graph *g, const char *name, ren_stream stream,
                               uint64_t cost, uint32_t in0, uint32_t in1, uint32_t out)
{
    ren__task t = fake_task(name, stream, cost);
    if (in0 != REN__NO_VALUE) {
        fake_reads(&t, 0, in0);
    }
    if (in1 != REN__NO_VALUE) {
        fake_reads(&t, 1, in1);
    }
    fake_writes(&t, 2, out);
    return ren__task_graph_add(g, &t);
}

/* The mapping of five streams to fewer lanes that the core uses is not the planner's business; this
 * one gives each lane count a different shape. */
static inline ren__plan_config fake_config(ren__plan_policy policy, uint32_t lanes)
{
    static const uint32_t maps[6][REN_STREAM_COUNT] = {
        {0}, {0, 0, 0, 0, 0}, {0, 1, 1, 1, 1}, {0, 1, 2, 1, 1}, {0, 1, 2, 3, 0}, {0, 1, 2, 3, 4}};
    ren__plan_config config = {.policy = policy, .lanes = lanes, .origin = REN_STREAM_UPDATE};
    memcpy(config.lane_of, maps[lanes], sizeof config.lane_of);
    config.reuse = 1;
    return config;
}

static inline ren__plan *fake_build(ren__task_graph *g, const ren__plan_config *config)
{
    ren__plan *plan = NULL;
    ren_error err = {0};
    ren_status status = ren__plan_build(g, config, &fake_host, &plan, &err);
    if (status != REN_OK) {
        printf("  build: %s\n", err.text);
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    return plan;
}

static inline ren__plan_counts fake_counts(const ren__plan *plan)
{
    ren__plan_counts counts;
    ren__plan_get_counts(plan, &counts);
    return counts;
}

#endif
