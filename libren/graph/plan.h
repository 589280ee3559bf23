/* SPDX-License-Identifier: MIT */
/* libren/graph/plan.h - from a list of tasks to a plan: streams, events, memory; and its issue.
 *
 * Purpose   train/ lists a step's tasks in an order that is right on one stream. The planner puts
 *           each on a stream, finds the fewest events that keep every read and write in that order,
 *           packs the values that live inside the step, and makes the device's operations. The
 *           submitter then issues the plan again and again.
 * Words     value: a piece of device memory that tasks read or write. root: a value that is no
 *           alias. task: one command. segment: a named run of tasks. lane: a physical ordered
 *           queue, see device.h; several streams may share one.
 * Threads   building and resolving: one thread. issue: the submitter only.
 * Progress  build and resolve are slow calls; issue only enqueues, and never allocates.
 * Order     program order, wherever two tasks touch a byte in common and one writes it.
 * Memory    host memory by the allocator given; one region of device memory, taken by resolve.
 * Units     bytes; work in flops or bytes moved; times in ns.
 * Not here  what a step consists of, and when a captured plan is launched in its place: see train/.
 *
 * Why program order. The list is run from top to bottom, so on one stream every value is written
 * before it is read and read before it is overwritten. Spreading it over lanes must lose none of
 * that. For two tasks that touch the same bytes there are three ways to lose it, and each has an
 * edge:
 *   data      a read stays behind the write whose result it wants;
 *   hazard    a write stays behind the reads and the write of what it destroys (an op that
 *             overwrites its input waits for all other readers of that input);
 *   control   the caller knows of an order that no byte shows.
 * Data edges are kept apart from the other two: they say what flows and never change, while hazards
 * depend on where values live. Edges run forward in the list, so it is a topological order already.
 * Issue keeps it, or takes another one that keeps every edge, and no lane can wait for something
 * not yet enqueued.
 *
 * Streams. STATIC takes each task's own stream and the list's order. GREEDY plays the step through
 * with the device's expected times and takes as many lanes as pay; see assign.c. Tasks that it may
 * not move keep their place among the others: everything listed before one is issued before it.
 *
 * Events. An edge needs no event if both its tasks are on one lane, or if the consumer's lane knows
 * the producer to be complete already, from earlier waits and from what their producers knew.
 * Clocks of one number a lane answer that exactly, and the waits that remain are those and only
 * those that every correct set of waits contains; the proof is in events.c. With one lane there is
 * no event.
 *
 * Memory. LOCAL values share memory where the waits that exist anyway, together with the lanes'
 * order, keep their users apart; packing adds no edge and costs no overlap; see place.c. Reuse is
 * decided after the events for that reason: the other way round, every shared byte would be a
 * hazard.
 *
 * Faults. Build refuses with REN_ERR_INTERNAL what only a fault of libren's can ask for: an operand
 * outside its value or neither read nor written, a value of no bytes, a LOCAL value read before it
 * is written, an edge against the order. Resolve undoes itself. A failed issue leaves the lanes
 * unjoined; the next one joins them first. One that breaks off behind a `lasting` task has not
 * failed: it is unfinished, and ren__plan_finish enqueues the rest.
 */
#ifndef REN_GRAPH_PLAN_H
#define REN_GRAPH_PLAN_H

#include "../core/core.h"
#include "../device/device.h"
#include "../trace/trace.h"

typedef enum ren__value_kind {
    REN__VALUE_EXTERNAL =
        0,                /* its address is given at every issue (input slots, host memory, ...) */
    REN__VALUE_FIXED = 1, /* its address is given once at resolve (parameters, gradients, state) */
    REN__VALUE_LOCAL = 2  /* lives inside the step; placed by the planner */
} ren__value_kind;

typedef enum ren__task_kind {
    REN__TASK_OP = 0,
    REN__TASK_COPY = 1,
    REN__TASK_FILL = 2
} ren__task_kind;

#define REN__NO_VALUE UINT32_MAX

typedef struct ren__task {
    const char *name;    /* static or owned by the caller until the plan is destroyed */
    const char *segment; /* likewise: "forward", "backward", "optimizer", ... */
    ren__task_kind kind;
    ren_stream stream;    /* the table's stream: the policy STATIC takes it as it is */
    uint32_t free_stream; /* 1 = the policy GREEDY may move a task of a compute stream elsewhere */
    uint64_t cost; /* work, for GREEDY: flops of a product or convolution, else bytes where they are
                      more than the operands' */
    ren__op_desc op;                 /* OP */
    uint32_t operand[REN__OPERANDS]; /* value by operand index, or REN__NO_VALUE. COPY: 0 dst, 1
                                        src. FILL: 0 dst */
    uint64_t operand_offset[REN__OPERANDS]; /* bytes into the value */
    uint32_t writes;                        /* bit i: operand i is written */
    uint32_t reads;                         /* bit i: operand i is read */
    uint64_t bytes;                         /* COPY, FILL */
    uint32_t fill_value;
    uint32_t lasting; /* 1 = it changes what later issues read, so once it is enqueued the rest of
                         the issue must follow */
} ren__task;

typedef enum ren__plan_policy {
    REN__POLICY_STATIC = 0,
    REN__POLICY_GREEDY = 1
} ren__plan_policy;

typedef struct ren__task_graph ren__task_graph;
typedef struct ren__plan ren__plan;

/* Every call after the first error does nothing; build returns the error. */
ren_status ren__task_graph_create(const ren__host_allocator *a, ren__task_graph **out);
void ren__task_graph_destroy(ren__task_graph *g); /* NULL is fine */
uint32_t ren__task_graph_value(ren__task_graph *g, const char *name, ren__value_kind kind,
                               uint64_t bytes);
/* A value that is the part of `parent` at `offset`. It shares the parent's hazards where they
 * overlap; two aliases that do not overlap share none. (flatten, gradients inside one flat region.)
 * An op touches its operand's value from operand_offset to the value's end, so give it an alias
 * where it touches less; a copy or fill touches `bytes`. */
uint32_t ren__task_graph_alias(ren__task_graph *g, const char *name, uint32_t parent,
                               uint64_t offset, uint64_t bytes);
uint32_t ren__task_graph_add(ren__task_graph *g, const ren__task *task); /* task id; copied */
void ren__task_graph_control(ren__task_graph *g, uint32_t before, uint32_t after);
/* Known only once its op is made (max pool's `saved`): the size of `value`, a LOCAL root made with
 * 0 bytes, is what the needs of `task`'s op say. */
void ren__task_graph_saved(ren__task_graph *g, uint32_t value, uint32_t task);

typedef struct ren__plan_config {
    ren__plan_policy policy;
    uint32_t lanes;
    uint32_t lane_of[REN_STREAM_COUNT];
    ren_stream
        origin; /* all lanes start behind it and are joined to it at the end: UPDATE for steps */
    uint32_t reuse;          /* 1 = LOCAL values whose tasks are ordered anyway share memory */
    uint32_t stamp_blocks;   /* blocks of device memory for stamps: see ren__plan_stamp_block */
    uint32_t replayed;       /* GREEDY: 1 = mostly as a graph, 0 = mostly task by task */
    uint32_t segments;       /* 1 = a graph for each segment, 0 = one for all; see segments.c */
    ren__device_costs costs; /* GREEDY: of the device; zeros = of a small one */
} ren__plan_config;

/* Streams, edges, events. Pure: no device. g stays the caller's and may be destroyed afterwards. */
ren_status ren__plan_build(ren__task_graph *g, const ren__plan_config *config,
                           const ren__host_allocator *a, ren__plan **out, ren_error *err);
void ren__plan_destroy(
    ren__plan *plan); /* NULL is fine; frees ops and events; nothing may be in flight */

/* Make the ops (for their lanes) and the events, place LOCAL values and workspaces, take one region
 * of device memory for them. fixed[v] = address of each FIXED value v (others ignored). On error
 * the plan is as before and may be destroyed. */
ren_status ren__plan_resolve(ren__plan *plan, ren_runtime *rt, void *const *fixed, ren_error *err);

/* The most commands that one issue without `sync` enqueues, by stream; those of a lane are given to
 * the first stream that it runs. After resolve. */
void ren__plan_need(const ren__plan *plan, uint32_t out_need[REN_STREAM_COUNT]);

/* Enqueue all tasks. external[v] = address of each EXTERNAL value v (others ignored). All lanes
 * start behind the origin's present end (`fork` = 1), and origin ends behind all lanes. `sync` = 1:
 * wait on the host after every task (the A of the A/B/C comparison; benchmarks only).
 * Returns  REN_OK; REN_PENDING: a lasting task is enqueued and the rest is left to
 *          ren__plan_finish; an error: no lasting task is enqueued, or the device is lost */
ren_status ren__plan_issue(ren__plan *plan, ren__submit *s, void *const *external, uint32_t fork,
                           uint32_t sync);

/* Enqueue what an unfinished issue left, with the addresses that it had. Until this returns REN_OK
 * nothing that touches the plan's memory may be enqueued, and the plan not be destroyed; it may be
 * called again after an error. */
ren_status ren__plan_finish(ren__plan *plan, ren__submit *s);

/* A row for each graph that the plan becomes: one, or with config.segments one for each run of
 * tasks with the same label. Tasks by place. Lanes are bits: those that tasks run on, those that
 * start behind the origin, and those that the origin waits for at the end. */
#define REN__PLAN_SEGMENTS 8u /* more runs share the last one */
typedef struct ren__plan_segment {
    const char *name; /* the label of its first task */
    uint32_t first, end;
    uint32_t lanes, forks, joins;
} ren__plan_segment;
uint32_t ren__plan_segment_count(const ren__plan *plan); /* 0 = no task */
const ren__plan_segment *ren__plan_segment_at(const ren__plan *plan, uint32_t segment);

/* Graphs that a capture may take over: no launch of theirs is under way. */
typedef struct ren__plan_spares {
    ren__graph *const *graphs;
    uint32_t count;
} ren__plan_spares;

/* What an issue with `fork` would enqueue of a segment, as a graph of the origin's lane; nothing of
 * it runs. To launch all segments' graphs in turn is to issue the plan. The addresses and
 * operations that it holds are those of now. The first of the spares that the device can make do
 * this, in place of what it did, becomes *out; without one *out is a new graph. None but *out may
 * be launched any more. After an error the lanes and the plan are as before. */
ren_status ren__plan_capture(ren__plan *plan, ren__submit *s, void *const *external,
                             uint32_t segment, const ren__plan_spares *spares, ren__graph **out,
                             ren_error *err);
/* Segments whose graphs can be made from each other's, sizes apart, have the same number here. */
uint64_t ren__plan_shape(const ren__plan *plan, uint32_t segment);

typedef struct ren__plan_times {
    uint64_t first_ns, last_ns; /* device times: the first task's start, the last one's end; 0 =
                                   nothing is known */
    ren__step_times sums;       /* tasks, events, device_ns, busy_ns and bubble_ns */
} ren__plan_times;

/* When the tasks ran. From now on an issue or capture puts a stamp before each task t, into
 * stamps[2 t], and one behind it, into stamps[2 t + 1]; NULL = no stamps. They take two commands a
 * task beside what ren__plan_need says. Submitter only. */
void ren__plan_set_stamps(ren__plan *plan, uint64_t *stamps);
/* Block `index` (of config.stamp_blocks) in device memory, of 2 stamps a task: for a capture, whose
 * launches all write to one place. */
uint64_t *ren__plan_stamp_block(const ren__plan *plan, uint32_t index);
uint64_t ren__plan_stamps_bytes(const ren__plan *plan); /* of 2 stamps a task */
/* Put what stamps say into the trace: a span for each task on its stream's row, arrows where one
 * stream waits for another, from `before` (a time inside a span of TRANS) to the first task of each
 * lane, and from the tasks that the plan's end waits for to `after`, a time on the origin's row; 0
 * = no such arrows. Fills what *out says of the tasks themselves. Any thread, while the plan lives.
 */
void ren__plan_trace(const ren__plan *plan, ren__trace_slot *trace, const uint64_t *stamps,
                     uint64_t value, uint64_t before, uint64_t after, ren__plan_times *out);

/* For tests and dumps. */
typedef struct ren__plan_counts {
    uint32_t tasks, values;
    uint32_t edges;            /* data, hazard and control, before any is found to be implied */
    uint32_t events, waits;    /* between tasks; those of the fork and the join are not counted */
    uint32_t lanes_used;       /* by tasks */
    uint64_t expected_ns;      /* GREEDY: of an issue */
    uint64_t local_bytes;      /* packed */
    uint64_t local_bytes_flat; /* without sharing */
} ren__plan_counts;
void ren__plan_get_counts(const ren__plan *plan, ren__plan_counts *out);
/* By number in the task graph: the stream, and the place in the order of issue. */
ren_stream ren__plan_task_stream(const ren__plan *plan, uint32_t task);
uint32_t ren__plan_task_place(const ren__plan *plan, uint32_t task);
/* Address of a LOCAL or FIXED value after resolve; NULL for EXTERNAL, and for a LOCAL value that no
 * task touches. */
void *ren__plan_address(const ren__plan *plan, uint32_t value);
/* Graphviz DOT: streams as colours, events as edges, a cluster for each plan. Writes at most
 * `bytes`, NUL-terminated; returns the length needed without the NUL. */
size_t ren__plan_dump(const ren__plan *const *plans, const char *const *titles, uint32_t count,
                      char *out, size_t bytes);
/* What a task does, in a word: "conv_fwd", "copy"; static. */
const char *ren__task_verb(const ren__task *task);

#endif
