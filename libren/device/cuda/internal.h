/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/internal.h - what the files of the CUDA module share.
 *
 * Purpose   The module is a shared object of its own: it exports `ren__device_module_open`, has no
 *           undefined `ren_` symbol, links the CUDA runtime statically and fetches driver calls at
 *           run time, so that a machine without a driver can still load and question it.
 * Context   Every call that reaches CUDA sits between ren__cuda_enter and ren__cuda_leave: the
 *           device's context (the primary one, or the host's own) is pushed if it is not current,
 *           the thread is put into relaxed capture mode, and both are put back on the way out. So a
 *           host thread finds its context, and a capture of its own, as it left them.
 * Errors    The runtime's last-error variable belongs to this module's own static copy of the CUDA
 *           runtime. A host that uses CUDA too has another copy, so neither is blamed for the
 *           other. Within the module a failed call clears it, unless the error is sticky.
 * Threads   `lost` is the only member that is written while the device is open and read without
 *           the lock.
 */
#ifndef REN_DEVICE_CUDA_INTERNAL_H
#define REN_DEVICE_CUDA_INTERNAL_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cublasLt.h>
#include <cudnn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "../device.h"

/* Driver calls, fetched at run time. */
typedef struct ren__cuda_driver {
    CUresult (*ctx_push)(CUcontext ctx);
    CUresult (*ctx_pop)(CUcontext *ctx);
    CUresult (*ctx_get)(CUcontext *ctx);
    CUresult (*ctx_get_device)(CUdevice *device);
    CUresult (*device_get)(CUdevice *device, int ordinal);
    CUresult (*primary_retain)(CUcontext *ctx, CUdevice device);
    CUresult (*primary_release)(CUdevice device);
    CUresult (*device_attribute)(int *value, CUdevice_attribute attribute, CUdevice device);
    CUresult (*write_value)(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
} ren__cuda_driver;

/* How far a lane has come, in pinned memory that its stream writes; a cache line for each lane. */
typedef struct ren__cuda_counter {
    _Alignas(64) _Atomic uint64_t value;
} ren__cuda_counter;

/* Written by event_record and read by event_sync, whose caller knows of the record. */
struct ren__event {
    cudaEvent_t quiet;
    cudaEvent_t loud;   /* for waiters: interrupts a processor when it is reached; else NULL */
    cudaEvent_t latest; /* the one of the two that was recorded */
    uint32_t lane;      /* of waiters' events: where */
    uint64_t count;     /* likewise: what the lane's counter is then; 0 = it does not tell */
    uint64_t loud_seq;  /* likewise: which of the lane's loud records it is; 0 = it is quiet */
};

/* A stream and the library handles bound to it. Handles are made by the first operation that needs
 * them, under op_lock, and only used by launches afterwards: a cuDNN handle serves one thread at a
 * time, so questions are put to the handle of `dnn` instead. */
typedef struct ren__cuda_lane {
    cudaStream_t stream;
    uint64_t counted;              /* the submitter's: the newest value for the stream to write */
    uint64_t loud_records;         /* the submitter's: of loud events */
    _Atomic uint64_t loud_reached; /* the newest of them that a waiter has seen reached */
    atomic_uint loud;              /* waits until its records for waiters need not interrupt */
    cudnnHandle_t cudnn;
    cublasLtHandle_t blas;
} ren__cuda_lane;

typedef struct ren__cuda_dnn_plan ren__cuda_dnn_plan;

/* Plans of cuDNN that a graph refers to: see graph.c. */
typedef struct ren__cuda_held {
    ren__cuda_dnn_plan **plans;
    uint32_t count, capacity;
} ren__cuda_held;

/* The submitter's. */
typedef struct ren__cuda_capture {
    int open; /* from graph_begin to graph_end, or to an update that was made */
    uint32_t origin;
    int ended;         /* by graph_update: no stream is captured any more */
    ren_status status; /* of that, and its text */
    ren_error error;
    cudaGraph_t captured; /* the template */
    ren__cuda_held held;
} ren__cuda_capture;

struct ren__device {
    ren__host_services host;
    ren__cuda_driver driver;
    CUcontext context;
    CUdevice ordinal;
    int retained; /* the primary context, to be released at close */
    uint32_t lanes;
    uint32_t deterministic;
    uint32_t autotune; /* never with `deterministic` */
    ren__cuda_lane lane[REN__LANES];
    ren__cuda_capture capture;
    cudaStream_t aside;        /* of copy_now: beside the lanes */
    struct ren__cuda_dnn *dnn; /* under op_lock: plans of cuDNN, made when first needed (dnn.h) */
    ren__device_caps caps;
    uint64_t memory_limit;
    ren__cuda_counter
        *counters;           /* by lane; NULL where the device cannot write them, see events.c */
    CUdeviceptr counters_at; /* the same for the device */
    cudaStream_t tuning;     /* under op_lock, as is `tuned`; see tune.h */
    struct ren__cuda_tuned *tuned; /* a list */
    uint32_t *tickets;             /* device memory; made under op_lock; see ticket.c */
    uint64_t tickets_taken[16];    /* a bit for each, under `lock` */

    pthread_mutex_t lock;    /* memory accounts and the fault; nothing is called under it */
    pthread_mutex_t op_lock; /* op_create, and with it the making of library handles */
    uint64_t memory_used;
    ren_error fault;

    atomic_int lost;      /* written under `lock` once; read relaxed as an early way out, no data
                           hangs on it, since the text is read under `lock` */
    atomic_int abandoned; /* lost because the host gave up, with work that may never end: nothing
                             that waits for the GPU is called any more; set with `lost` */
    atomic_int syncing;   /* threads inside cudaEventSynchronize */
};

/* The state that ren__cuda_leave restores. */
typedef struct ren__cuda_scope {
    int pushed;
    enum cudaStreamCaptureMode mode;
} ren__cuda_scope;

/* REN_ERR_DEVICE_LOST when the device is lost (then leave must not be called), else REN_OK. */
ren_status ren__cuda_enter(ren__device *dev, ren__cuda_scope *scope);
/* 1 when the host gave the device up: then memory and executables are left to the process' end,
 * because freeing them would wait for the GPU. */
int ren__cuda_is_abandoned(ren__device *dev);
/* The same without the check, for the ways out: destroy, free, close. */
void ren__cuda_enter_always(ren__device *dev, ren__cuda_scope *scope);
void ren__cuda_leave(ren__device *dev, ren__cuda_scope *scope);

/* How many GPUs the driver sees, at least one; or which way the machine has none (driver.c). */
ren_status ren__cuda_look_for_driver(int *out_count, ren_error *err);

/* ------------------------------------------------------------------ faults (fault.c) */

/* Fill *err (may be NULL), return status. */
ren_status ren__cuda_error(ren_error *err, ren_status status, int32_t code, const char *file,
                           int32_t line, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* Convert a failed call: make the device lost if the error is sticky, clear the last error if not.
 * err may be NULL. */
ren_status ren__cuda_fault(ren__device *dev, cudaError_t code, const char *call, const char *file,
                           int32_t line, ren_error *err);
ren_status ren__cuda_fault_blas(ren__device *dev, cublasStatus_t code, const char *call,
                                const char *file, int32_t line, ren_error *err);
ren_status ren__cuda_fault_dnn(ren__device *dev, cudnnStatus_t code, const char *call,
                               const char *file, int32_t line, ren_error *err);
/* The status that a CUDA error stands for. */
ren_status ren__cuda_convert(cudaError_t code);
void ren__cuda_set_lost(ren__device *dev, int32_t code, const char *file, int32_t line,
                        const char *text);

/* One macro for each library: the value is a ren_status. */
#define REN__CUDA(dev, err, call) ren__cuda_checked((dev), (call), #call, __FILE__, __LINE__, (err))
#define REN__BLAS(dev, err, call)                                                                  \
    ren__cuda_checked_blas((dev), (call), #call, __FILE__, __LINE__, (err))
#define REN__DNN(dev, err, call)                                                                   \
    ren__cuda_checked_dnn((dev), (call), #call, __FILE__, __LINE__, (err))

static inline ren_status ren__cuda_checked(ren__device *dev, cudaError_t code, const char *call,
                                           const char *file, int32_t line, ren_error *err)
{
    return code == cudaSuccess ? REN_OK : ren__cuda_fault(dev, code, call, file, line, err);
}

static inline ren_status ren__cuda_checked_blas(ren__device *dev, cublasStatus_t code,
                                                const char *call, const char *file, int32_t line,
                                                ren_error *err)
{
    return code == CUBLAS_STATUS_SUCCESS ? REN_OK
                                         : ren__cuda_fault_blas(dev, code, call, file, line, err);
}

static inline ren_status ren__cuda_checked_dnn(ren__device *dev, cudnnStatus_t code,
                                               const char *call, const char *file, int32_t line,
                                               ren_error *err)
{
    return code == CUDNN_STATUS_SUCCESS ? REN_OK
                                        : ren__cuda_fault_dnn(dev, code, call, file, line, err);
}

/* ------------------------------------------------------------------ operations */

typedef struct ren__cuda_linear {
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    uint64_t workspace;
    const void *bias; /* what `matmul` points to */
    uint32_t bias_operand, d_operand;
    uint32_t then_bias, then_act; /* 1 = by a kernel behind the product */
} ren__cuda_linear;

#define REN__DNN_OPERANDS 4 /* x, w, y, bias */

/* The addresses of one execution of a plan (dnn.h). */
typedef struct ren__cuda_dnn_pack {
    cudnnBackendDescriptor_t pack;
    void *operands[REN__DNN_OPERANDS];
    void *workspace;
} ren__cuda_dnn_pack;

typedef struct ren__cuda_conv {
    ren__cuda_dnn_plan *plan;
    ren__cuda_dnn_pack pack; /* of the latest launch; the next one mostly has the same addresses */
} ren__cuda_conv;

/* An operation with casts around it (half.c). */
typedef struct ren__cuda_half {
    uint32_t casts, written;        /* operands, a bit each */
    uint64_t offset[REN__OPERANDS]; /* of the copies, in the workspace */
    uint64_t own;                   /* where the inner operation's workspace begins */
} ren__cuda_half;

struct ren__op {
    ren__op_desc desc;
    uint32_t lane;
    /* Enqueue, and nothing else: no allocation, query or wait, so that it can be captured. */
    ren_status (*launch)(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                         void *const operands[REN__OPERANDS], void *workspace);
    void (*destroy)(ren__op *op);
    uint32_t *ticket; /* a word of device memory, or NULL: see ticket.c */
    ren__op *inner;   /* half.c: what computes; linear.c: what sums dy's rows; else NULL */
    union {
        ren__cuda_half half;
        ren__cuda_linear linear;
        ren__cuda_conv conv;
    } u;
};

/* REN_OK when the description's kind, dtypes and shapes fit together (check.c). */
ren_status ren__cuda_check_desc(const ren__op_desc *desc, ren_error *err);

/* Fill in launch, destroy, u and the needs of an operation whose desc and lane are set. */
ren_status ren__cuda_linear_create(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                   ren__op_needs *needs, ren_error *err);
ren_status ren__cuda_conv_create(ren__device *dev, ren__cuda_lane *lane, ren__op *op,
                                 ren__op_needs *needs, ren_error *err);
ren_status ren__cuda_simple_create(ren__device *dev, ren__op *op, ren__op_needs *needs,
                                   ren_error *err);
ren_status ren__cuda_train_create(ren__device *dev, ren__op *op, ren__op_needs *needs,
                                  ren_error *err);

/* op_create for whoever is in it: op_lock is held, ren__cuda_enter done. */
ren_status ren__cuda_op_create_within(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                                      ren__op **out, ren__op_needs *needs, ren_error *err);

/* Count bytes of device memory against the limit, and give them back (memory.c). */
ren_status ren__cuda_account(ren__device *dev, uint64_t bytes);
void ren__cuda_unaccount(ren__device *dev, uint64_t bytes);

/* A word of device memory that is 0 between launches; NULL when there is none (ticket.c). */
uint32_t *ren__cuda_ticket_take(ren__device *dev);
void ren__cuda_ticket_give(ren__device *dev, uint32_t *ticket); /* NULL is fine */
void ren__cuda_tickets_free(ren__device *dev);                  /* at close */

/* What computes an operation that no library and no kernel takes with the dtypes that it has: 0
 * when one does, else 1 with the description for it in *out. `refused` 1: the first choice was
 * refused. */
int ren__cuda_half_inner(const ren__op_desc *desc, int refused, ren__op_desc *out);
/* Put casts around op->inner, whose needs are in *needs. */
void ren__cuda_half_wrap(ren__op *op, ren__op_needs *needs);

/* graph.c. Submitter: a plan that an operation holds is executed, perhaps inside a capture. */
ren_status ren__cuda_graph_hold(ren__device *dev, ren__cuda_dnn_plan *plan);
/* Free what an open capture has so far; its streams are not taken out of it. */
void ren__cuda_capture_drop(ren__device *dev);

/* costs.c */
ren__device_costs ren__cuda_costs(const struct cudaDeviceProp *p, int ordinal);

/* The table's entries (device.c, memory.c, lanes.c, events.c, graph.c, op.c). */
ren_status ren__cuda_open(const ren__device_config *config, const ren__host_services *host,
                          ren__device **out, ren_error *err);
void ren__cuda_close(ren__device *dev);
void ren__cuda_caps(ren__device *dev, ren__device_caps *out);
ren_status ren__cuda_status(ren__device *dev, ren_error *err);
void ren__cuda_abandon(ren__device *dev);
ren_status ren__cuda_mem_alloc(ren__device *dev, uint64_t bytes, void **out);
void ren__cuda_mem_free(ren__device *dev, void *ptr, uint64_t bytes);
ren_status ren__cuda_host_alloc(ren__device *dev, uint64_t bytes, void **out);
void ren__cuda_host_free(ren__device *dev, void *ptr, uint64_t bytes);
ren_status ren__cuda_event_create(ren__device *dev, uint32_t for_host_wait, ren__event **out);
void ren__cuda_event_destroy(ren__device *dev, ren__event *event);
ren_status ren__cuda_event_record(ren__device *dev, uint32_t lane, ren__event *event);
ren_status ren__cuda_event_wait(ren__device *dev, uint32_t lane, ren__event *event);
ren_status ren__cuda_event_sync(ren__device *dev, ren__event *event);
ren_status ren__cuda_copy(ren__device *dev, uint32_t lane, void *dst, const void *src,
                          uint64_t bytes);
ren_status ren__cuda_fill(ren__device *dev, uint32_t lane, void *dst, uint32_t byte_value,
                          uint64_t bytes);
ren_status ren__cuda_call(ren__device *dev, uint32_t lane, ren__call_fn fn, void *user,
                          ren_status *out_status);
ren_status ren__cuda_stamp(ren__device *dev, uint32_t lane, uint64_t *out);
ren_status ren__cuda_op_create(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                               ren__op **out, ren__op_needs *needs, ren_error *err);
void ren__cuda_op_destroy(ren__device *dev, ren__op *op);
ren_status ren__cuda_op_launch(ren__device *dev, uint32_t lane, ren__op *op,
                               void *const operands[REN__OPERANDS], void *workspace);
uint32_t ren__cuda_host_is_pinned(ren__device *dev, const void *ptr);
ren_status ren__cuda_copy_now(ren__device *dev, void *dst, const void *src, uint64_t bytes);
ren_status ren__cuda_graph_begin(ren__device *dev, uint32_t origin);
ren_status ren__cuda_graph_update(ren__device *dev, uint32_t origin, ren__graph *graph,
                                  ren_error *err);
ren_status ren__cuda_graph_end(ren__device *dev, uint32_t origin, ren__graph **out, ren_error *err);
ren_status ren__cuda_graph_launch(ren__device *dev, uint32_t lane, ren__graph *graph);
void ren__cuda_graph_destroy(ren__device *dev, ren__graph *graph);

#endif
