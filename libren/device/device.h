/* SPDX-License-Identifier: MIT */
/* libren/device/device.h - the one table through which everything else sees a device.
 *
 * Purpose   A device is five lanes (ordered queues), events that order lanes, plain memory, copies,
 *           resolved operations and graphs. `cpu` is linked in; `cuda` is a module opened at run
 *           time. Both fill a `ren__device_api`; core, graph, ops and train call nothing else of a
 *           device.
 * Module    A module exports one symbol, `ren__device_module_open`, has no undefined `ren_` symbol,
 *           and reaches libren only through `ren__host_services`.
 * Lanes     A lane is a physical ordered queue, 0..lanes-1; the core maps the five streams to
 *           lanes. Commands of one lane run in the order enqueued; lanes run at the same time.
 * Threads   Enqueueing calls (copy, fill, call, op_launch, event_record, event_wait, graph_*): the
 *           submitter only.
 *           event_sync: one waiter per lane, at the same time as everything else.
 *           mem_*, host_*, event_create and _destroy, op_create and _destroy: any thread,
 *           serialised inside.
 *           No enqueueing call waits for the device; the caller keeps within caps.lane_commands.
 * Events    An event holds the point of its latest record. event_wait orders the lane behind the
 *           latest record enqueued before the wait (CUDA's rule); waiting for a never recorded
 *           event is no wait. The caller re-records an event only when its last point has completed
 *           or when everyone who must wait for the older point has enqueued that wait already.
 * Faults    A call returns REN_OK or an error; REN_ERR_DEVICE_LOST is sticky: from then on every
 *           call returns it at once, event_sync included, and close still works.
 * Order     of destruction: ops and graphs before memory before close; the lanes must be idle or
 *           lost.
 */
#ifndef REN_DEVICE_H
#define REN_DEVICE_H

#include "../../host_api/ren.h"

#define REN__DEVICE_ABI 4u
#define REN__LANES      5u   /* most lanes of a device */
#define REN__OPERANDS   12u  /* most operands of an operation */
#define REN__ALIGN      256u /* of every device address, in bytes */

/* ------------------------------------------------------------------ what the core lends */

typedef struct ren__host_services {
    uint32_t struct_size;
    uint32_t abi;
    void *user;
    void *(*alloc)(void *user, size_t bytes, size_t align); /* create and destroy calls only */
    void (*free)(void *user, void *ptr, size_t bytes);
    void (*log)(void *user, ren_log_level level, const char *text); /* any thread */
    /* Starts a named thread; REN_ERR_THREAD if it cannot. join returns when entry has returned. */
    ren_status (*thread_start)(void *user, const char *name, void (*entry)(void *), void *arg,
                               void **out);
    void (*thread_join)(void *user, void *thread);
} ren__host_services;

typedef struct ren__device_config {
    uint32_t struct_size;
    uint32_t device_index;
    uint32_t lanes;       /* 1..REN__LANES */
    uint32_t cpu_threads; /* threads of a large operation, at least 1 */
    uint32_t deterministic;
    uint32_t autotune; /* 1 = op_create may time what a library offers; not if deterministic */
    uint64_t seed;     /* ren_test_seed: schedule of the CPU lanes; 0 = free running */
    uint64_t memory_limit_bytes; /* 0 = none */
    void *cuda_context;
    int32_t cuda_stream_priority;
} ren__device_config;

/* What the planner reckons with, see graph/cost.c: rough figures. ns; 0 = nothing. */
typedef struct ren__device_costs {
    uint32_t launch_ns;       /* device: an operation takes this long beside its work */
    uint32_t event_ns;        /* device: from the end of an operation to the start of one that waits
                                 for it in another lane */
    uint32_t graph_launch_ns; /* the same two inside a graph */
    uint32_t graph_event_ns;
    uint32_t graph_root_ns;  /* from the start of a graph to an operation that waits for none, in
                               another lane than the origin's */
    uint32_t host_launch_ns; /* the submitter: to enqueue an operation */
    uint32_t host_event_ns;  /* to enqueue a record and a wait */
    uint32_t wait_ns;        /* what a wait costs beside, wherever it is */
    uint32_t processors;     /* operations at a time that reach these rates; 0 = all share them */
    uint32_t channels_full;  /* fewer take a product as long as so many; 0 = they do not */
    float flops_per_ns;      /* f32 */
    float tf32_flops_per_ns;
    float half_flops_per_ns; /* f16, bf16 */
    float bytes_per_ns;
} ren__device_costs;

typedef struct ren__device_caps {
    uint32_t struct_size;
    char name[128];             /* for people */
    uint32_t lane_commands;     /* commands one lane may hold before enqueueing could block */
    uint32_t host_reads_device; /* 1 = host code may dereference device addresses (CPU device) */
    uint32_t pageable_copies;   /* 1 = copy() takes any host memory at once; 0 = pinned only */
    uint32_t conv_weights_ohwi; /* layout of convolution weights in device memory: 0 OIHW, 1 OHWI */
    uint32_t graphs;            /* 1 = graph_* work */
    uint32_t fusions;           /* bits of ren__fusion */
    uint64_t memory_bytes;      /* of the device */
    ren__device_costs costs;
} ren__device_caps;

/* ------------------------------------------------------------------ operations */

/* A tensor in device memory: dense, row-major, NHWC for rank 4. rank 0 = operand absent. */
typedef struct ren__tensor_desc {
    ren_dtype dtype;
    uint32_t rank;
    int64_t dims[REN_MAX_RANK];
} ren__tensor_desc;

typedef enum ren__activation {
    REN__ACT_RELU = 0,
    REN__ACT_LEAKY_RELU,
    REN__ACT_TANH,
    REN__ACT_SIGMOID,
    REN__ACT_SILU,
    REN__ACT_GELU_ERF,
    REN__ACT_GELU_TANH
} ren__activation;

/* What an operation may do in the same launch. A device that sets a bit takes every shape and dtype
 * of it, if need be in several launches; without the bit the planner emits the parts one by one. */
typedef enum ren__fusion {
    REN__FUSE_LINEAR_ACT = 1 << 0,  /* LINEAR_FWD, fused_activation: RELU */
    REN__FUSE_CONV_ACT = 1 << 1,    /* CONV_FWD, fused_activation: RELU */
    REN__FUSE_NORM_ACT = 1 << 2,    /* BATCH_NORM_*, fused_activation: RELU */
    REN__FUSE_NORM_ADD = 1 << 3,    /* BATCH_NORM_*, operand `other`, with fused RELU or without */
    REN__FUSE_WEIGHT_BIAS = 1 << 4, /* LINEAR_BWD_WEIGHT, operand `db` */
    REN__FUSE_ACT_BIAS = 1 << 5,    /* ACT_BWD, operand `db` */
    REN__FUSE_HALF_LOSS = 1 << 6, /* XENT, MSE, HUBER read and write 16-bit floats by themselves */
    REN__FUSE_GELU = 1 << 7,      /* LINEAR_FWD, fused_activation: GELU_TANH; inference only */
    REN__FUSE_NORM_GRADS = 1 << 8 /* BATCH_NORM_BWD, operand `more` */
} ren__fusion;

/* Operation kinds. The operand order is part of the contract: inputs, then ">", then outputs; "?"
 * may be absent (rank 0, NULL pointer). The formulas are those of ren.h. f32 unless said otherwise.
 * Up to HUBER_BWD tensors may also be f16 or bf16; loss, prob, the gradients of weights and biases,
 * and all that batch norm keeps or reads beside x, dy, y and other, stay f32. `act` stands for the
 * activation where fused_activation is 1, and for nothing where it is 0. The last operands of some
 * kinds, those with a star, need the device's REN__FUSE_ bit.
 *
 * LINEAR_FWD         0 x[N,I]  1 w[O,I]  2 b[O]?           > 3 y[N,O]     y = act(x w^T + b)
 * LINEAR_BWD_DATA    0 dy[N,O]  1 w[O,I]                   > 2 dx[N,I]
 * LINEAR_BWD_WEIGHT  0 dy[N,O]  1 x[N,I]                   > 2 dw[O,I]  3 db[O]?*
 * BIAS_GRAD          0 dy[..,C]                            > 1 db[C]     sum over all rows
 * CONV_FWD           0 x[N,H,W,C]  1 w (OIHW dims)  2 b[O]?  > 3 y       y = act(conv + b)
 * CONV_BWD_DATA      0 dy  1 w                             > 2 dx
 * CONV_BWD_WEIGHT    0 dy  1 x                             > 2 dw
 * MAX_POOL_FWD       0 x                                   > 1 y  2 saved?
 *                      saved: in training, of the op's saved_bytes
 * MAX_POOL_BWD       0 dy  1 x  2 y  3 saved               > 4 dx
 * AVG_POOL_FWD       0 x                                   > 1 y
 * AVG_POOL_BWD       0 dy                                  > 1 dx
 * GLOBAL_AVG_FWD     0 x[N,H,W,C]                          > 1 y[N,C]
 * GLOBAL_AVG_BWD     0 dy[N,C]                             > 1 dx[N,H,W,C]
 * BATCH_NORM_TRAIN   0 x  1 weight[C]  2 bias[C]  3 rmean[C]  4 rvar[C]
 *                      10 other?*
 *                      > 5 y  6 mean[C]  7 rstd[C]  8 new_rmean[C]  9 new_rvar[C]
 *                      3 and 8, 4 and 9 may be the same memory; y = act(norm(x) + other)
 * BATCH_NORM_BWD     0 dy  1 x  2 weight  3 mean  4 rstd  8 y?*  10 bias?*  11 more?*
 *                      > 5 dx  6 dweight  7 dbias  9 dother?*
 *                      fused_activation 1: dy counts where the output was positive, which y says
 *                      or, without an `other`, bias; just one of the two is there. dother: the dy
 *                      that counts, only with fused_activation (else it is dy itself); so is more:
 *                      dy + more stands for dy
 * BATCH_NORM_EVAL    0 x  1 weight  2 bias  3 rmean  4 rvar  10 other?*  > 5 y
 * BATCH_NORM_FOLD    0 w (OIHW dims)  1 weight[O]  2 bias[O]  3 rmean[O]  4 rvar[O]  5 b[O]?
 *                      > 6 w (as 0)  7 b[O]
 *                      norm(conv(x, w, b)) = conv(x, w', b') with the running statistics
 * ACT_FWD            0 x                                   > 1 y         in place for RELU
 * ACT_BWD            0 dy  1 x  2 y                        > 3 dx  4 db[C]?*  RELU reads y only
 *                      db: the sum of dx over all rows
 * DROPOUT_FWD        0 x  1 control                        > 2 y
 *                      the mask is a function of (seed, layer, step, element)
 * DROPOUT_BWD        0 dy  1 control                       > 2 dx
 * ADD                0 a  1 b                              > 2 y         2 may be 0 or 1
 * CONCAT             0..n-1 x_i[..,C_i]                    > 11 y[..,sum C_i]   n = desc.count
 * SPLIT              0 x[..,sum C_i]                       > 1..n y_i[..,C_i]   n = desc.count
 * XENT_FWD           0 logits[N,C]  1 labels i32[N]        > 2 loss[1]  3 prob[N,C]
 * XENT_BWD           0 prob[N,C]  1 labels  2 control      > 3 dlogits[N,C]
 *                      times 1 / N, and with 4 state? its loss_scale; so MSE_BWD and HUBER_BWD
 * MSE_FWD            0 x  1 target                         > 2 loss[1]
 *                      x and target each have a dtype of their own (a target that comes in is f32)
 * MSE_BWD            0 x  1 target  2 control              > 3 dx
 * HUBER_FWD          0 x  1 target                         > 2 loss[1]
 * HUBER_BWD          0 x  1 target  2 control              > 3 dx
 * CHECK              0 grads[n]  1 control                 > 2 state
 *                      sets found_inf, grad_norm and step_scale
 * ADVANCE            0 control                             > 1 state
 *                      counts the step unless it is skipped; adjusts loss_scale
 * SGD                0 g[n]  1 control  2 state            > 3 p[n]  4 velocity[n]   in place
 * ADAM               0 g[n]  1 control  2 state            > 3 p[n]  4 m[n]  5 v[n]  in place
 *                      6 count?  u64, in place: updates of p, counted here, for t; else state's
 * ADAMW              as ADAM
 * LARS               0 g[n]  1 control  2 state            > 3 p[n]  4 velocity[n]
 *                      one tensor a call
 * EMA                0 p[n]  1 control  2 state            > 3 average[n]            in place
 * CAST               0 x[n] of one dtype                   > 1 y[n] of another
 * COMMIT             0 new[n]  1 state                     > 2 value[n]
 *                      copies, unless found_inf
 */
typedef enum ren__op_kind {
    REN__OP_NONE = 0,
    REN__OP_LINEAR_FWD,
    REN__OP_LINEAR_BWD_DATA,
    REN__OP_LINEAR_BWD_WEIGHT,
    REN__OP_BIAS_GRAD,
    REN__OP_CONV_FWD,
    REN__OP_CONV_BWD_DATA,
    REN__OP_CONV_BWD_WEIGHT,
    REN__OP_MAX_POOL_FWD,
    REN__OP_MAX_POOL_BWD,
    REN__OP_AVG_POOL_FWD,
    REN__OP_AVG_POOL_BWD,
    REN__OP_GLOBAL_AVG_FWD,
    REN__OP_GLOBAL_AVG_BWD,
    REN__OP_BATCH_NORM_TRAIN,
    REN__OP_BATCH_NORM_BWD,
    REN__OP_BATCH_NORM_EVAL,
    REN__OP_BATCH_NORM_FOLD,
    REN__OP_ACT_FWD,
    REN__OP_ACT_BWD,
    REN__OP_DROPOUT_FWD,
    REN__OP_DROPOUT_BWD,
    REN__OP_ADD,
    REN__OP_CONCAT,
    REN__OP_SPLIT,
    REN__OP_XENT_FWD,
    REN__OP_XENT_BWD,
    REN__OP_MSE_FWD,
    REN__OP_MSE_BWD,
    REN__OP_HUBER_FWD,
    REN__OP_HUBER_BWD,
    REN__OP_CHECK,
    REN__OP_ADVANCE,
    REN__OP_SGD,
    REN__OP_ADAM,
    REN__OP_ADAMW,
    REN__OP_LARS,
    REN__OP_EMA,
    REN__OP_CAST,
    REN__OP_COMMIT,
    REN__OP_KINDS
} ren__op_kind;

/* Per-step values, one copy in device memory per step under way; written by the host into pinned
 * memory and copied on TRANS. Offsets are part of the device ABI. */
typedef struct ren__control {
    uint64_t step; /* index of the posted step, from 1 */
    uint64_t seed; /* of dropout */
    float learning_rate;
    float momentum;
    float beta1;
    float beta2;
    float eps;
    float weight_decay;
    float lars_eta;
    float clip_norm;
    float ema_decay;
    float grad_divisor; /* gradients are divided by this (batch sums, accumulation); 1 */
    uint32_t nesterov;
    uint32_t reserved[5];
} ren__control;

/* What the device itself carries from step to step; lives in device memory, zeroed at creation
 * except loss_scale. */
typedef struct ren__state {
    uint64_t applied;    /* updates applied; Adam's t is this after ADVANCE */
    uint32_t found_inf;  /* this step's gradients held inf or NaN: optimizers change nothing */
    uint32_t good_steps; /* since the last skip or growth */
    float loss_scale;
    float grad_norm; /* of the unscaled gradients; 0 when CHECK is not in the plan */
    float loss;      /* copied here for the host's sake by the plan's last task */
    uint32_t skipped_total;
    float step_scale; /* the loss_scale that this step's gradients were multiplied with */
    uint32_t reserved[7];
} ren__state;

typedef struct ren__op_desc {
    uint32_t struct_size;
    ren__op_kind kind;
    ren__tensor_desc operand[REN__OPERANDS];
    /* All set; dilation and groups at least 1. */
    uint32_t kernel[2], stride[2], padding[2], dilation[2], groups;
    ren__activation activation;
    uint32_t fused_activation; /* 1 = `activation` belongs to the operation; see ren__fusion */
    uint32_t allow_tf32;       /* 1 = products and convolutions of f32 may round to TF32 */
    float alpha; /* leaky slope; dropout probability; huber delta; label smoothing; bn momentum */
    float eps;   /* batch norm */
    uint32_t layer;    /* dropout: which layer, part of the counter */
    uint32_t count;    /* concat, split */
    uint32_t training; /* pooling: keep what the backward pass needs */
    /* 1 = ADVANCE adjusts loss_scale; losses multiply by it (operand 4); CHECK and the optimizers
     * divide by step_scale. */
    uint32_t dynamic_scale;
} ren__op_desc;

typedef struct ren__op ren__op; /* resolved: library primitives made, nothing left to decide */
typedef struct ren__event ren__event;
typedef struct ren__graph ren__graph;
typedef struct ren__device ren__device;

typedef struct ren__op_needs {
    uint64_t workspace_bytes; /* scratch during the launch; shared by all ops of a lane */
    uint64_t saved_bytes;     /* max pool: size of operand `saved`; the same for its backward op */
    uint32_t commands;        /* lane commands one launch takes */
} ren__op_needs;

/* Host work on a lane. On the CPU device it runs on the lane's thread; on CUDA at once, on the
 * submitter, with native_stream set. A result other than REN_OK is written to *out_status (never
 * NULL) before the next event of the lane completes. */
typedef ren_status (*ren__call_fn)(void *user, void *native_stream);

/* ------------------------------------------------------------------ the table */

typedef struct ren__device_api {
    uint32_t struct_size;
    uint32_t abi;
    ren_device_kind kind;

    ren_status (*open)(const ren__device_config *config, const ren__host_services *host,
                       ren__device **out, ren_error *err);
    void (*close)(ren__device *dev); /* NULL is fine; joins the device's threads */
    void (*caps)(ren__device *dev, ren__device_caps *out);
    ren_status (*status)(ren__device *dev, ren_error *err); /* REN_OK or the sticky fault */
    /* Give up: from now on event_sync and every other call return REN_ERR_DEVICE_LOST at once. */
    void (*abandon)(ren__device *dev);

    ren_status (*mem_alloc)(ren__device *dev, uint64_t bytes, void **out);
    void (*mem_free)(ren__device *dev, void *ptr, uint64_t bytes);
    ren_status (*host_alloc)(ren__device *dev, uint64_t bytes, void **out); /* pinned */
    void (*host_free)(ren__device *dev, void *ptr, uint64_t bytes);

    ren_status (*event_create)(ren__device *dev, uint32_t for_host_wait, ren__event **out);
    void (*event_destroy)(ren__device *dev, ren__event *event);
    ren_status (*event_record)(ren__device *dev, uint32_t lane, ren__event *event);
    ren_status (*event_wait)(ren__device *dev, uint32_t lane, ren__event *event);
    /* Sleep until the event's latest record has completed. The caller knows that there is one. */
    ren_status (*event_sync)(ren__device *dev, ren__event *event);

    /* Either side may be device or host memory (pinned unless caps.pageable_copies). No overlap. */
    ren_status (*copy)(ren__device *dev, uint32_t lane, void *dst, const void *src, uint64_t bytes);
    ren_status (*fill)(ren__device *dev, uint32_t lane, void *dst, uint32_t byte_value,
                       uint64_t bytes);
    ren_status (*call)(ren__device *dev, uint32_t lane, ren__call_fn fn, void *user,
                       ren_status *out_status);

    /* Resolve an operation for one lane. The result depends on desc, device and library only. */
    ren_status (*op_create)(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                            ren__op **out, ren__op_needs *needs, ren_error *err);
    void (*op_destroy)(ren__device *dev, ren__op *op);
    /* operands: device addresses by the kind's operand order; they must stay valid until the lane
     * is past the launch. */
    ren_status (*op_launch)(ren__device *dev, uint32_t lane, ren__op *op,
                            void *const operands[REN__OPERANDS], void *workspace);

    /* Graphs. Between graph_begin and graph_end, enqueueing calls on `origin` and on lanes that
     * wait for captured events are recorded and not run. Every forked lane must be joined to origin
     * before graph_end. A failed capture leaves the lanes usable.
     *   graph_update, in place of graph_end: make `graph`, of whose launches none is under way, do
     * what was captured. REN_OK: the capture has ended. REN_ERR_UNSUPPORTED: its commands, or what
     * orders them, are too unlike what the graph held. After this and any other error graph_end
     * must follow, or graph_update with another graph, before all other enqueueing; the graph may
     * be offered again or destroyed, but not be launched. */
    ren_status (*graph_begin)(ren__device *dev, uint32_t origin);
    ren_status (*graph_update)(ren__device *dev, uint32_t origin, ren__graph *graph,
                               ren_error *err);
    ren_status (*graph_end)(ren__device *dev, uint32_t origin, ren__graph **out, ren_error *err);
    ren_status (*graph_launch)(ren__device *dev, uint32_t lane, ren__graph *graph);
    void (*graph_destroy)(ren__device *dev, ren__graph *graph);

    /* Host memory where !caps.pageable_copies. host_is_pinned: may copy() take it? copy_now: any
     * memory, now, on the calling thread, which sleeps until the bytes are there; beside the lanes
     * and in no order with them. Any thread but the submitter. NULL where pageable_copies is 1. */
    uint32_t (*host_is_pinned)(ren__device *dev, const void *ptr);
    ren_status (*copy_now)(ren__device *dev, void *dst, const void *src, uint64_t bytes);

    /* Write the device's clock, in ns, into *out (device or pinned host memory, 8-byte aligned)
     * when the lane has come here. The clock never goes back, and the lanes of a device share it.
     * Enqueues, and may be captured. */
    ren_status (*stamp)(ren__device *dev, uint32_t lane, uint64_t *out);
} ren__device_api;

/* The CPU device, always there. */
const ren__device_api *ren__device_cpu(void);

/* What a module exports under the name REN__DEVICE_MODULE_SYMBOL. NULL if `abi` is not its own. */
typedef const ren__device_api *(*ren__device_module_open_fn)(uint32_t abi);
#define REN__DEVICE_MODULE_SYMBOL "ren__device_module_open"

static inline uint64_t ren__dtype_bytes(ren_dtype dtype)
{
    return dtype == REN_F16 || dtype == REN_BF16 ? 2u : dtype == REN_U8 ? 1u : 4u;
}

static inline uint64_t ren__tensor_elements(const ren__tensor_desc *t)
{
    uint64_t n = t->rank ? 1u : 0u;
    for (uint32_t i = 0; i < t->rank; i++) {
        n *= (uint64_t)t->dims[i];
    }
    return n;
}

static inline uint64_t ren__tensor_bytes(const ren__tensor_desc *t)
{
    return ren__tensor_elements(t) * ren__dtype_bytes(t->dtype);
}

/* Operands of 16-bit floats, a bit each. */
static inline uint32_t ren__op_halves(const ren__op_desc *d)
{
    uint32_t halves = 0;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        uint32_t is_half = d->operand[i].dtype == REN_F16 || d->operand[i].dtype == REN_BF16;
        halves |= (d->operand[i].rank != 0 && is_half) ? 1u << i : 0u;
    }
    return halves;
}

/* Tensors that an operation of the two passes, up to REN__OP_SPLIT, writes, a bit each; not what
 * batch norm keeps and what is saved. */
static inline uint32_t ren__op_written(const ren__op_desc *d)
{
    switch (d->kind) {
    case REN__OP_BATCH_NORM_FOLD:
        return 3u << 6;
    case REN__OP_LINEAR_FWD:
    case REN__OP_CONV_FWD:
    case REN__OP_ACT_BWD:
        return 1u << 3;
    case REN__OP_BIAS_GRAD:
    case REN__OP_AVG_POOL_FWD:
    case REN__OP_AVG_POOL_BWD:
    case REN__OP_GLOBAL_AVG_FWD:
    case REN__OP_GLOBAL_AVG_BWD:
    case REN__OP_ACT_FWD:
    case REN__OP_MAX_POOL_FWD:
        return 1u << 1;
    case REN__OP_MAX_POOL_BWD:
        return 1u << 4;
    case REN__OP_BATCH_NORM_BWD:
        return 1u << 5 | 1u << 9;
    case REN__OP_BATCH_NORM_TRAIN:
    case REN__OP_BATCH_NORM_EVAL:
        return 1u << 5;
    case REN__OP_XENT_BWD:
    case REN__OP_MSE_BWD:
    case REN__OP_HUBER_BWD:
        return 1u << 3;
    case REN__OP_CONCAT:
        return 1u << 11;
    case REN__OP_SPLIT:
        return ((1u << d->count) - 1u) << 1;
    default: /* gradients of weights and of data, dropout, sum */
        return 1u << 2;
    }
}

#endif
