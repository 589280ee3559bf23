/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/dnn.h - convolutions as execution plans of cuDNN, and the plans that a device
 * keeps.
 *
 * Purpose   cuDNN's graph API describes an operation, asks the library's heuristics for engines,
 *           and turns one into an execution plan that only has to be executed. Making a plan takes
 *           1 to 5 ms (half a second where an engine is compiled), timing its rivals 10 to 80;
 *           executing one takes the host 7 to 10 us, and twice that with a cast (H200 and its
 *           host).
 * Words     A signature is all that a plan depends on. A form is one way to come to what a
 *           signature asks for: how much of it the library computes, and how much kernels of ours
 *           add behind it, or all of it by those. A pack holds the addresses of one execution.
 * Files     dnn_graph.c    signature and form to an operation graph of the library; packs
 *           dnn_engine.c   the graph's engines, those that may not serve left out
 *           dnn_tune.c     timing them, where the device was opened for that
 *           dnn_plan.c     the device's cache of plans
 *           dnn_execute.c  executing one
 * Cache     Owned by the device, made with its first convolution, freed when it closes. Operations
 *           of one signature share a plan, whatever their lane; the next operation of a signature
 *           neither asks the library nor times anything. Plans that no operation and no graph holds
 *           stay, up to PLANS_KEPT of them.
 * Threads   Everything but ren__cuda_dnn_execute and ren__cuda_dnn_give needs the device's op_lock.
 *           A plan is executed by one thread at a time: by the submitter once an operation holds
 *           it, before that by the tuner.
 * Handles   Plans are made with a handle of their own and executed with that of a lane: a plan
 *           belongs to a device, not to a handle.
 * Numbers   Sums are f32. f32 without allow_tf32 leaves out all engines that use tensor cores, all
 *           that convert their inputs, and Winograd and FFT, which lose digits.
 */
#ifndef REN_DEVICE_CUDA_DNN_H
#define REN_DEVICE_CUDA_DNN_H

#include "internal.h"
#include "kernels.h"

typedef enum ren__cuda_dnn_operand {
    REN__DNN_X = 0,
    REN__DNN_W,
    REN__DNN_Y,
    REN__DNN_BIAS
} ren__cuda_dnn_operand;

/* Compared byte by byte, so it is zeroed before it is filled in. */
typedef struct ren__cuda_dnn_signature {
    ren__op_kind kind;
    ren_dtype type; /* of x, w and y, but for what is written */
    ren_dtype out;  /* of y forward, of dx, of dw */
    ren_dtype bias;
    uint32_t has_bias, has_relu; /* forward only */
    uint32_t tf32;
    uint32_t stride[2], padding[2], dilation[2];
    uint32_t unused;
    int64_t x[4], y[4]; /* NHWC */
    int64_t w[4];       /* OIHW dims; OHWI in memory */
} ren__cuda_dnn_signature;

typedef struct ren__cuda_dnn_form {
    uint32_t thin;  /* the kernels of conv_thin.cu compute it, and nothing below counts */
    uint32_t rows;  /* channels of the image of conv_rows.cu, which the library gets; 0 = none */
    uint32_t fused; /* bias and ReLU in the library's graph; else a kernel adds them */
    ren_dtype out;  /* what the library writes; where it is not the signature's, a cast follows */
} ren__cuda_dnn_form;

typedef struct ren__cuda_dnn_graph {
    cudnnBackendDescriptor_t parts[16];
    uint32_t count;
    cudnnBackendDescriptor_t graph; /* one of the parts */
} ren__cuda_dnn_graph;

/* An engine of a form with its settings, finalised. */
typedef struct ren__cuda_dnn_choice {
    ren__cuda_dnn_form form;
    cudnnBackendDescriptor_t config, plan; /* NULL: none, or form.thin */
    uint64_t library_bytes;                /* workspace: the library's, then what is cast */
    uint64_t workspace_bytes;              /* of both */
    int64_t engine;                        /* its number in the library, for the log */
    float us;                              /* of one execution; 0 when not timed */
} ren__cuda_dnn_choice;

struct ren__cuda_dnn_plan {
    struct ren__cuda_dnn_plan *next; /* used less lately */
    ren__cuda_dnn_signature signature;
    ren__cuda_dnn_choice choice;
    atomic_uint references; /* give releases and the dropping of unheld plans acquires it: the
                               holder's last use is over before the plan goes */
};

struct ren__cuda_dnn {
    cudnnHandle_t handle; /* what plans are made and timed with */
    ren__cuda_dnn_plan *first;
    uint32_t count;
};

/* ------------------------------------------------------------------ dnn_graph.c */

cudnnStatus_t ren__cuda_dnn_graph_make(cudnnHandle_t handle, const ren__cuda_dnn_signature *s,
                                       ren__cuda_dnn_form form, ren__cuda_dnn_graph *out);
void ren__cuda_dnn_graph_free(ren__cuda_dnn_graph *graph);
/* Make the pack hold these addresses. Does nothing when it holds them already. */
cudnnStatus_t ren__cuda_dnn_pack_bind(ren__cuda_dnn_pack *pack, uint32_t has_bias,
                                      void *const operands[REN__DNN_OPERANDS], void *workspace);
void ren__cuda_dnn_pack_free(ren__cuda_dnn_pack *pack);

/* ------------------------------------------------------------------ dnn_engine.c */

/* Bytes that an operation may ask for. */
uint64_t ren__cuda_dnn_workspace_limit(ren__device *dev);
/* Up to `most` usable engines of a form in the order of the library's ranking. */
uint32_t ren__cuda_dnn_engines(ren__device *dev, const ren__cuda_dnn_signature *s,
                               ren__cuda_dnn_form form, ren__cuda_dnn_choice *out, uint32_t most);
void ren__cuda_dnn_choice_free(ren__cuda_dnn_choice *choice);

/* ------------------------------------------------------------------ dnn_tune.c */

/* Times the choices; the index of the fastest, or 0 when they cannot be timed. */
uint32_t ren__cuda_dnn_tune(ren__device *dev, const ren__cuda_dnn_signature *s,
                            ren__cuda_dnn_choice *choices, uint32_t count);

/* ------------------------------------------------------------------ dnn_plan.c */

/* 0: no engine and no kernel serves. */
int ren__cuda_dnn_is_served(const ren__cuda_dnn_choice *choice);
/* The device's plan for a signature, made if need be; it may be one that is not served. */
ren_status ren__cuda_dnn_take(ren__device *dev, const ren__cuda_dnn_signature *s,
                              ren__cuda_dnn_plan **out, ren_error *err);
void ren__cuda_dnn_give(ren__cuda_dnn_plan *plan);
/* Once more: the caller knows that somebody holds it. Any thread. */
void ren__cuda_dnn_hold(ren__cuda_dnn_plan *plan);
void ren__cuda_dnn_close(ren__device *dev);

/* ------------------------------------------------------------------ dnn_execute.c */

ren__conv_shape ren__cuda_dnn_shape(const ren__cuda_dnn_signature *s);
/* The signature of the same convolution over an image of kernel rows. */
ren__cuda_dnn_signature ren__cuda_dnn_over_rows(const ren__cuda_dnn_signature *s, uint32_t rows);
/* Rounded up to REN__ALIGN. */
uint64_t ren__cuda_dnn_bytes(const int64_t dims[4], ren_dtype dtype);
/* Enqueue on the handle's stream, which is `stream`. */
ren_status ren__cuda_dnn_execute(ren__device *dev, cudnnHandle_t handle, cudaStream_t stream,
                                 const ren__cuda_dnn_signature *s, const ren__cuda_dnn_choice *c,
                                 ren__cuda_dnn_pack *pack, void *const operands[REN__DNN_OPERANDS],
                                 void *workspace);

#endif
