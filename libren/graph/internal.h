/* SPDX-License-Identifier: MIT */
/* libren/graph/internal.h - what the files of the planner share.
 *
 * Purpose   One home for the task graph's and the plan's structs, and for the steps of the
 *           pipeline: edges (hazards.c), streams and order (assign.c, with schedule.c, cost.c and
 *           reorder.c), waits (events.c), segments (segments.c), memory (place.c), device objects
 *           (resolve.c), commands (issue.c), pictures (dump.c).
 * Threads   as plan.h says.
 * Memory    arrays come from the allocator given at creation; issue allocates nothing.
 * Units     bytes, nanoseconds.
 */
#ifndef REN_GRAPH_INTERNAL_H
#define REN_GRAPH_INTERNAL_H

#include "plan.h"

#define REN__NO_TASK   UINT32_MAX
#define REN__NO_EVENT  UINT32_MAX
#define REN__NO_OFFSET UINT64_MAX

typedef struct ren__graph_value {
    const char *name;
    ren__value_kind kind;
    uint32_t root;       /* the value whose memory this is: itself, unless an alias */
    uint64_t offset;     /* into the root */
    uint64_t bytes;      /* 0 until resolve for a value whose size its op decides */
    uint32_t saved_task; /* the task whose op decides the size, or REN__NO_TASK */
} ren__graph_value;

typedef struct ren__control_edge {
    uint32_t before, after;
    uint32_t next; /* of the same `after`, in the plan's lists */
} ren__control_edge;

/* A growing array of elements of one size. */
typedef struct ren__array {
    void *items;
    uint32_t count;
    uint32_t capacity;
} ren__array;

struct ren__task_graph {
    ren__host_allocator allocator;
    ren__array values;   /* ren__graph_value */
    ren__array tasks;    /* ren__task */
    ren__array controls; /* ren__control_edge */
    ren_status status;   /* the first error */
    char text[160];
};

typedef enum ren__edge_kind {
    REN__EDGE_DATA = 0,   /* `to` reads what `from` wrote */
    REN__EDGE_HAZARD = 1, /* `to` writes over what `from` read or wrote */
    REN__EDGE_CONTROL = 2 /* the caller says so */
} ren__edge_kind;

typedef struct ren__edge {
    uint32_t from, to;
    ren__edge_kind kind;
    uint32_t value; /* the root that both touch, or REN__NO_VALUE for CONTROL */
} ren__edge;

/* What one point knows of each lane: known.after[l] = 1 + the latest task of lane l that is
 * certainly complete there, 0 for none. Task numbers grow along a lane, so one number a lane is the
 * whole truth. */
typedef struct ren__clock {
    uint32_t after[REN__LANES];
} ren__clock;

/* One task in the plan. The node after the last task is the join at origin's end: no command. */
typedef struct ren__plan_node {
    ren_stream stream;
    uint32_t lane;
    uint32_t data_first, data_count;   /* edges into this task, in plan->data */
    uint32_t order_first, order_count; /* and in plan->order */
    uint32_t wait_first, wait_count;   /* producers waited for, in plan->waits */
    uint32_t event;                    /* event recorded behind the task, or REN__NO_EVENT */
    /* After resolve. */
    ren__op *op;
    ren__op_needs needs;
    uint32_t externals; /* bit i: operand i is EXTERNAL, args[i] is its offset */
    void *args[REN__OPERANDS];
} ren__plan_node;

typedef struct ren__lane_state {
    uint32_t used;       /* 1 = a task runs here */
    uint32_t first;      /* its first task */
    uint32_t last;       /* its newest task so far */
    uint32_t fork;       /* 1 = waits for the start event when an issue forks */
    ren__clock known;    /* now */
    uint64_t workspace;  /* bytes, after resolve */
    void *workspace_ptr; /* after resolve */
} ren__lane_state;

struct ren__plan {
    ren__host_allocator allocator;
    ren__plan_config config;
    uint32_t origin_lane;

    uint32_t value_count, task_count;
    ren__graph_value *values;
    ren__task *tasks;      /* in the order of issue */
    ren__plan_node *nodes; /* task_count + 1 */
    ren__clock *known;     /* by task, task_count + 1: when it starts */
    uint32_t *place;       /* by number in the task graph: the task */

    /* Data edges say what flows, order edges only what must not overtake: kept apart, so that a
     * later pass may move a value (and with it its hazards) without touching the flow. */
    ren__array data, order; /* ren__edge, grouped by `to`, which grows */
    ren__array waits;       /* uint32_t: the producer's task */
    ren__lane_state lanes[REN__LANES];
    ren__plan_segment segments[REN__PLAN_SEGMENTS];
    uint32_t segment_count;
    uint32_t event_count; /* events recorded behind tasks */
    uint32_t forks;       /* lanes that wait for the start event, a bit each */
    ren__plan_counts counts;
    uint32_t saved_count;  /* values whose size comes with resolve */
    uint64_t *offsets;     /* of LOCAL roots in use, in the region */
    uint64_t packed_bytes; /* of all LOCAL values */

    /* After resolve. */
    ren_runtime *rt; /* NULL before */
    const ren__device_api *api;
    ren__device *dev;
    ren__event **events;     /* event_count */
    ren__event *start_event; /* origin's start; also the rejoin after a failed issue */
    ren__event *host_event;  /* `sync` */
    ren__region region;
    void **addresses;     /* by value; NULL for EXTERNAL */
    ren__array externals; /* uint32_t: the EXTERNAL roots that tasks touch */
    uint32_t need[REN_STREAM_COUNT];
    unsigned char *stamp_blocks; /* config.stamp_blocks of them, in the region */
    uint64_t *stamps;            /* [sub] where an issue puts them; NULL = nowhere */
    uint32_t torn;               /* 1 = an issue failed half way: the lanes are not joined */
    /* [sub] An unfinished issue: the task that it has come to, 1 = which is enqueued but for its
     * event, and the addresses (a block made by resolve). */
    uint32_t unfinished;
    uint32_t left_task, left_launched;
    void **left_external;
};

/* task_graph.c */
void *ren__array_push(ren__array *array, size_t size, const ren__host_allocator *a);
void ren__array_free(ren__array *array, size_t size, const ren__host_allocator *a);

static inline const ren__edge *ren__plan_edges(const ren__array *edges)
{
    return (const ren__edge *)edges->items;
}

static inline uint32_t ren__plan_producer(const ren__plan *plan, uint32_t wait)
{
    return ((const uint32_t *)plan->waits.items)[wait];
}

/* hazards.c: fill plan->data and plan->order from the tasks' accesses and the graph's controls. */
ren_status ren__plan_find_edges(ren__plan *plan, const ren__task_graph *g, ren_error *err);

/* The bytes of its root that operand `i` of a task touches. */
void ren__plan_access(const ren__graph_value *values, const ren__task *task, uint32_t i,
                      uint64_t *out_begin, uint64_t *out_end);

/* events.c. The producers that a task with these needs must wait for, were it to run now on a lane
 * that knows `now`; returns their number. needed[l] = 1 + the latest task of lane l that must be
 * complete, 0 = none; known[t] is what task t knew when it started. */
uint32_t ren__clock_waits(const ren__clock *now, const ren__clock *known, const ren__clock *needed,
                          uint32_t out_producers[REN__LANES], ren__clock *out_known);
/* Put the task on its node's lane and insert its waits. */
ren_status ren__plan_place_task(ren__plan *plan, uint32_t task);
/* After the last task: the join at origin's end, the forks, the numbers of the events. */
ren_status ren__plan_close(ren__plan *plan);

/* assign.c: choose streams, lanes and the order of issue; calls ren__plan_place_task in it. */
ren_status ren__plan_assign(ren__plan *plan);
/* May GREEDY choose the task's lane and place? */
uint32_t ren__task_moves(const ren__task *t);

/* cost.c */
typedef struct ren__cost_model {
    ren__device_costs costs;
    uint32_t launch_ns, event_ns, root_ns; /* of the path that the plan takes */
} ren__cost_model;
/* An operation takes the longer of flops_ns and bytes_ns, and `passes` times launch_ns. */
typedef struct ren__task_work {
    uint64_t flops_ns, bytes_ns;
    uint64_t full_ns; /* its arithmetic, were the device full with it */
    uint32_t passes;
} ren__task_work;
ren__cost_model ren__cost_model_of(const ren__plan_config *config);
ren__task_work ren__cost_of(const ren__cost_model *m, const ren__task *t);

/* schedule.c */
typedef struct ren__lane_set {
    uint32_t lanes[REN__LANES];
    uint32_t count;
} ren__lane_set;
typedef struct ren__schedule {
    uint32_t *order; /* tasks, by place */
    uint32_t *lane;  /* by task */
    uint32_t waits;
    uint64_t expected_ns;
} ren__schedule;
ren_status ren__schedule_play(const ren__plan *plan, const ren__cost_model *model,
                              const ren__lane_set *set, ren__schedule *out);

/* reorder.c: order[i] becomes task i. */
ren_status ren__plan_reorder(ren__plan *plan, const uint32_t *order);

/* segments.c: fill plan->segments. */
void ren__plan_cut(ren__plan *plan);
/* 1 = the task before it, by number, has another label, and segments are asked for. */
uint32_t ren__task_is_cut(const ren__plan *plan, uint32_t task);

/* place.c: offsets of LOCAL roots by the sizes known now. */
ren_status ren__plan_place(ren__plan *plan, ren_error *err);

/* resolve.c */
/* Credits are kept by lane, and so are times: each lane's go to the first stream that it runs. */
ren_stream ren__plan_spokesman(const ren__plan *plan, uint32_t lane);
void ren__plan_unresolve(ren__plan *plan);

#endif
