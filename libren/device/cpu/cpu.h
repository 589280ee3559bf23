/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/cpu.h - the CPU device's own structures, seen by libren/device/cpu/ only.
 *
 * Purpose   A device whose lanes are threads: what a CUDA stream does in hardware is done here by a
 *           ring of commands and a thread that runs them in order. It is the device that every
 *           machine has, and the one on which the rest of libren is tested.
 * Parts     device.c  the table: open, close, memory, faults
 *           lane.c    rings and lane threads
 *           point.c   events, and threads that wait for a lane's progress
 *           seeded.c  lanes run one at a time, in an order drawn from a seed
 *           graph.c   capture and replay
 *           op*.c     operations; dnnl_compat.c is the only file that knows oneDNN's version
 * Threads   three roles: the submitter (enqueueing calls), a lane's thread, and any other thread
 *           (event_sync, memory, op_create). Every member below says whose it is.
 *
 * Events are points. A lane counts the records it was given; an event holds the pair (lane, count)
 * of its latest record in one 64-bit word. Waiting for an event means waiting until that lane's
 * `done` count has reached that number. So a wait command holds the pair that was current when it
 * was enqueued, a later record of the same event cannot disturb it, events can be destroyed while
 * commands that came from them are still queued, and one mechanism serves lanes and host threads.
 *
 * Hand-over of a command. The submitter writes the slot, then publishes `head`; the lane reads
 * `head`, then the slot, and publishes `tail` when the slot may be reused. Both ends sleep under
 * the lane's mutex only when there is nothing to do. Lost wake-ups are excluded by the usual
 * store-then-load argument: the submitter stores `head` and then loads `asleep`; the lane stores
 * `asleep` and then loads `head`; all four are sequentially consistent, so at least one of them
 * sees the other's store.
 */
#ifndef REN_DEVICE_CPU_H
#define REN_DEVICE_CPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../device.h"
#include "dnnl_compat.h"

#define REN__CPU_LANE_COMMANDS 8192u /* announced in caps.lane_commands */
/* Slots of a ring: twice what is announced, because a graph launch puts one command into each lane
 * that the graph uses. */
#define REN__CPU_RING       16384u
#define REN__CPU_CACHE_LINE 64

/* ------------------------------------------------------------------ commands */

typedef enum ren__cpu_kind {
    REN__CPU_RECORD = 0, /* the lane's done count becomes `seq` */
    REN__CPU_WAIT,       /* until lane `lane` has done `seq` */
    REN__CPU_COPY,
    REN__CPU_FILL,
    REN__CPU_CALL,
    REN__CPU_OP,
    REN__CPU_STAMP,  /* *out becomes the clock */
    REN__CPU_SEGMENT /* one lane's part of a graph launch */
} ren__cpu_kind;

typedef struct ren__cpu_command {
    ren__cpu_kind kind;
    union {
        struct {
            uint32_t lane;
            uint64_t seq;
        } point;
        struct {
            void *dst;
            const void *src;
            uint64_t bytes;
        } copy;
        struct {
            void *dst;
            uint64_t bytes;
            uint32_t value;
        } fill;
        struct {
            ren__call_fn fn;
            void *user;
            ren_status *out_status;
        } call;
        struct {
            ren__op *op;
            void *workspace;
            void *operands[REN__OPERANDS];
        } op;
        struct {
            uint64_t *out;
        } stamp;
        struct {
            const struct ren__cpu_command *commands; /* the graph's; not read past the last one */
            uint32_t count;
            uint64_t base[REN__LANES];   /* added to the segment's record counts, by lane */
            uint8_t lane_of[REN__LANES]; /* the lane that stands for a captured one */
        } segment;
    } as;
} ren__cpu_command;

/* ------------------------------------------------------------------ lanes */

/* A thread that sleeps until a lane's done count reaches `seq`; lives on that thread's stack. */
typedef struct ren__cpu_sleeper {
    struct ren__cpu_sleeper *next; /* under the lane's mutex */
    uint64_t seq;
    bool due; /* under the lane's mutex */
    pthread_cond_t wake;
} ren__cpu_sleeper;

typedef struct ren__cpu_lane {
    ren__device *dev; /* set at open */
    uint32_t index;   /* set at open */
    ren__cpu_command *ring;
    void *thread;        /* the host's handle; NULL = not started */
    dnnl_stream_t dnnl;  /* used by the lane's thread only */
    uint64_t records;    /* submitter: records enqueued so far */
    uint64_t tail_known; /* submitter: a tail that was true once */
    uint32_t cursor;     /* seeded.c: next command of the segment at the lane's front */

    _Alignas(REN__CPU_CACHE_LINE) _Atomic uint64_t head; /* commands enqueued; submitter writes */
    _Alignas(REN__CPU_CACHE_LINE) _Atomic uint64_t tail; /* commands finished; lane writes */
    _Atomic uint64_t done;                               /* records completed; lane writes */
    _Atomic uint64_t wake_at; /* smallest `seq` any sleeper waits for, or UINT64_MAX */
    _Atomic uint32_t asleep;  /* the lane sleeps, or is about to */
    _Atomic uint32_t exited;  /* the thread touches nothing of the device any more */

    _Alignas(REN__CPU_CACHE_LINE) pthread_mutex_t mutex;
    pthread_cond_t work;        /* the lane sleeps on it */
    ren__cpu_sleeper *sleepers; /* under the mutex */
} ren__cpu_lane;

struct ren__event {
    /* (lane << 56) | count of its latest record; 0 = never recorded. Written by the submitter, read
     * by event_sync. */
    _Atomic uint64_t point;
    /* Submitter only: the latest record inside the capture number `capture`. */
    uint64_t capture;
    uint32_t capture_node;
};

#define REN__CPU_POINT_LANE(point) ((uint32_t)((point) >> 56))
#define REN__CPU_POINT_SEQ(point)  ((point) & ((UINT64_C(1) << 56) - 1u))

/* ------------------------------------------------------------------ the device */

typedef struct ren__cpu_capture ren__cpu_capture;

struct ren__device {
    ren__host_services host;
    ren__device_config config;
    uint32_t lanes;
    uint32_t lanes_ready; /* lanes whose mutex and conditions exist */
    char name[128];
    dnnl_engine_t engine;
    ren__cpu_lane *lane; /* [lanes] */

    _Atomic uint32_t stop; /* lanes end when their rings are empty */
    _Atomic uint32_t lost; /* sticky: lanes drop commands, waiters return */
    pthread_mutex_t mutex; /* fault, settled, memory_bytes */
    bool mutex_ready;
    ren_error fault;       /* valid once `lost` is set */
    bool settled;          /* after a loss: lanes were given time to stop */
    bool stuck;            /* after settling: a lane is still inside a command */
    uint64_t memory_bytes; /* device memory handed out */

    uint64_t captures;         /* submitter: captures begun so far */
    ren__cpu_capture *capture; /* submitter: the one that is open, or NULL */

    _Atomic uint64_t seed_state; /* seeded.c: state of the generator */
    _Atomic uint64_t last_enqueue_ns;
};

/* ------------------------------------------------------------------ device.c */

void *ren__cpu_alloc(ren__device *dev, size_t bytes); /* zeroed, through the host's allocator */
void ren__cpu_free(ren__device *dev, void *ptr, size_t bytes);
void ren__cpu_log(ren__device *dev, ren_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Fill *err (may be NULL) and return `status`. */
ren_status ren__cpu_fail(ren_error *err, ren_status status, int32_t code, const char *file,
                         int32_t line, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
#define REN__CPU_FAIL(err, status, ...)                                                            \
    ren__cpu_fail((err), (status), 0, __FILE__, __LINE__, __VA_ARGS__)
/* Make the device lost for the given reason (the first one is kept) and wake everyone. */
void ren__cpu_lose(ren__device *dev, const char *text, int32_t code);
/* After a loss, before memory that commands may use is freed: wait up to a second for the lanes to
 * leave their commands. False when one did not: then nothing that it may touch can be freed. */
bool ren__cpu_settle(ren__device *dev);
uint64_t ren__cpu_now_ns(void);

static inline bool ren__cpu_is_lost(ren__device *dev)
{
    /* Acquire: pairs with the release in ren__cpu_lose, so that `fault` is visible. */
    return atomic_load_explicit(&dev->lost, memory_order_acquire) != 0;
}

/* ------------------------------------------------------------------ lane.c */

ren_status ren__cpu_lane_init(ren__device *dev, uint32_t index);
void ren__cpu_lane_deinit(ren__cpu_lane *lane); /* after its thread has ended */
ren_status ren__cpu_lane_start(ren__cpu_lane *lane);
void ren__cpu_lane_wake(ren__cpu_lane *lane);
/* Append a command. Submitter only. REN_ERR_QUEUE_FULL when the caller enqueued too much. */
ren_status ren__cpu_enqueue(ren__device *dev, uint32_t lane, const ren__cpu_command *command);
/* Run one command on the calling thread, which acts for `lane`. */
void ren__cpu_execute(ren__cpu_lane *lane, const ren__cpu_command *command);

/* ------------------------------------------------------------------ point.c */

/* The lane's record number `seq` is done: publish it and wake who waits for it. Lane threads. */
void ren__cpu_point_reach(ren__cpu_lane *lane, uint64_t seq);
/* Sleep until `lane` has done `seq`; false when the device is lost. Any thread. */
bool ren__cpu_point_wait(ren__cpu_lane *lane, uint64_t seq);
bool ren__cpu_point_is_reached(ren__cpu_lane *lane, uint64_t seq);
/* Wake every sleeper of the lane: the device is lost. */
void ren__cpu_point_wake_all(ren__cpu_lane *lane);

ren_status ren__cpu_event_create(ren__device *dev, uint32_t for_host_wait, ren__event **out);
void ren__cpu_event_destroy(ren__device *dev, ren__event *event);
ren_status ren__cpu_event_record(ren__device *dev, uint32_t lane, ren__event *event);
ren_status ren__cpu_event_wait(ren__device *dev, uint32_t lane, ren__event *event);
ren_status ren__cpu_event_sync(ren__device *dev, ren__event *event);

/* ------------------------------------------------------------------ seeded.c */

/* The body of lane 0's thread under a seed: runs the commands of all lanes. */
void ren__cpu_seeded_run(ren__device *dev);
/* Start the schedule again from `seed`, for tests; the device must have been opened with one. */
void ren__cpu_seeded_restart(ren__device *dev, uint64_t seed);

/* ------------------------------------------------------------------ graph.c */

/* What became of a command offered to the open capture. */
typedef enum ren__cpu_captured {
    REN__CPU_NOT_CAPTURED = 0, /* the lane is not part of a capture: enqueue it */
    REN__CPU_CAPTURED,
    REN__CPU_CAPTURE_FAILED /* the capture is invalid: return the error */
} ren__cpu_captured;

ren__cpu_captured ren__cpu_capture_command(ren__device *dev, uint32_t lane,
                                           const ren__cpu_command *command);
ren__cpu_captured ren__cpu_capture_record(ren__device *dev, uint32_t lane, ren__event *event);
ren__cpu_captured ren__cpu_capture_wait(ren__device *dev, uint32_t lane, ren__event *event);
/* The segment's next command, with this launch's counts filled in; false at its end. */
bool ren__cpu_segment_command(const ren__cpu_command *launch, uint32_t index,
                              ren__cpu_command *out);
/* Free a capture that was never ended. */
void ren__cpu_capture_drop(ren__device *dev);

ren_status ren__cpu_graph_begin(ren__device *dev, uint32_t origin);
ren_status ren__cpu_graph_update(ren__device *dev, uint32_t origin, ren__graph *graph,
                                 ren_error *err);
ren_status ren__cpu_graph_end(ren__device *dev, uint32_t origin, ren__graph **out, ren_error *err);
ren_status ren__cpu_graph_launch(ren__device *dev, uint32_t lane, ren__graph *graph);
void ren__cpu_graph_destroy(ren__device *dev, ren__graph *graph);

/* ------------------------------------------------------------------ op.c */

ren_status ren__cpu_op_create(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                              ren__op **out, ren__op_needs *needs, ren_error *err);
void ren__cpu_op_destroy(ren__device *dev, ren__op *op);
/* Run on the lane's thread. REN_OK, or the error that makes the device lost. */
ren_status ren__cpu_op_run(ren__op *op, dnnl_stream_t stream, void *const *operands,
                           void *workspace);

#endif
