/* SPDX-License-Identifier: MIT */
/* tests/gpu/bench_ops.c - the module's own kernels beside the library's.
 *
 * Question  Batch norm, pooling and softmax are kernels of the module (simple.c says why). What
 *           would cuDNN's classic calls for the same tensors cost?
 * Method    Each side's operation is captured LAUNCHES times in a row into a graph on the same
 *           stream, so that the host's part is outside. Graphs of the two sides take turns; device
 *           time by events; the medians of the repeats. Operands are the same size on both sides,
 *           each with memory of its own, NHWC. cuDNN gets the mode that it recommends for NHWC
 *           (SPATIAL_PERSISTENT), and a deterministic maximum.
 * Rows      bench "op": <operation>/<shape>/<dtype>/<libren|cudnn>, metric time, unit us.
 * Flags     --module FILE, and those of bench.h.
 * Needs     a GPU; without one it prints the reason and exits 77.
 */
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libren/core/core.h"
#include "../bench/bench.h"

#define LAUNCHES 20u
#define REPEATS  9u

typedef struct shape {
    int64_t n, h, w, c;
} shape;

typedef struct side {
    const char *name;
    void (*enqueue)(void);
    cudaGraphExec_t graph;
    double us[REPEATS];
} side;

static const char *module_path;
static const bench *program;
static const ren__device_api *api;
static ren__device *device;
static cudaStream_t stream;
static cudaEvent_t begin_event, end_event;
static cudnnHandle_t dnn;

/* ------------------------------------------------------------------ plumbing */

static void check(int code, const char *what)
{
    if (code) {
        (void)fprintf(stderr, "bench_ops: %s: error %d\n", what, code);
        exit(1);
    }
}

static void *kept[64];
static uint32_t kept_count;

/* Device memory until the end of the case, zeroed. */
static void *take(uint64_t bytes)
{
    void *out = NULL;
    check(kept_count == sizeof kept / sizeof kept[0], "too many operands");
    check((int)cudaMalloc(&out, bytes ? bytes : 1u), "cudaMalloc");
    check((int)cudaMemset(out, 0, bytes), "cudaMemset");
    kept[kept_count++] = out;
    return out;
}

static void give_all_back(void)
{
    while (kept_count) {
        (void)cudaFree(kept[--kept_count]);
    }
}

static ren_status tell_stream(void *user, void *native_stream)
{
    *(cudaStream_t *)user = (cudaStream_t)native_stream;
    return REN_OK;
}

static void capture(side *s)
{
    cudaGraph_t graph = NULL;
    check((int)cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "begin of a capture");
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        s->enqueue();
    }
    check((int)cudaStreamEndCapture(stream, &graph), "end of a capture");
    check((int)cudaGraphInstantiate(&s->graph, graph, 0), "cudaGraphInstantiate");
    check((int)cudaGraphDestroy(graph), "cudaGraphDestroy");
}

static double time_us(const side *s)
{
    float ms = 0.0f;
    check((int)cudaEventRecord(begin_event, stream), "record");
    check((int)cudaGraphLaunch(s->graph, stream), "cudaGraphLaunch");
    check((int)cudaEventRecord(end_event, stream), "record");
    check((int)cudaEventSynchronize(end_event), "cudaEventSynchronize");
    check((int)cudaEventElapsedTime(&ms, begin_event, end_event), "cudaEventElapsedTime");
    return (double)ms * 1e3 / LAUNCHES;
}

/* Both sides in turn; frees the case's memory. */
static void compare(const char *what, void (*ours)(void), void (*theirs)(void))
{
    side sides[2] = {{.name = "libren", .enqueue = ours}, {.name = "cudnn", .enqueue = theirs}};
    for (uint32_t i = 0; i < 2; i++) {
        sides[i].enqueue(); /* what a first call sets up */
        check((int)cudaStreamSynchronize(stream), "a first call");
        capture(&sides[i]);
        (void)time_us(&sides[i]);
    }
    for (uint32_t r = 0; r < REPEATS; r++) {
        for (uint32_t i = 0; i < 2; i++) {
            sides[i].us[r] = time_us(&sides[i]);
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        char name[128];
        double us = bench_median(sides[i].us, REPEATS);
        (void)snprintf(name, sizeof name, "%s/%s", what, sides[i].name);
        bench_print(name, "time", "us", us);
        bench_row(program, name, "time", "us", us);
        check((int)cudaGraphExecDestroy(sides[i].graph), "cudaGraphExecDestroy");
    }
    give_all_back();
}

/* ------------------------------------------------------------------ our side */

static struct {
    ren__op_desc desc;
    ren__op *op;
    ren__op_needs needs;
    void *operands[REN__OPERANDS];
    void *workspace;
} ours;

static void operand(uint32_t i, ren_dtype dtype, const shape *s, uint32_t rank)
{
    ours.desc.operand[i] = (ren__tensor_desc){.dtype = dtype, .rank = rank};
    int64_t *dims = ours.desc.operand[i].dims;
    uint64_t elements = 1;
    if (rank == 4) {
        memcpy(dims, (int64_t[]){s->n, s->h, s->w, s->c}, 4 * sizeof *dims);
    } else if (rank == 2) {
        memcpy(dims, (int64_t[]){s->n, s->c}, 2 * sizeof *dims);
    } else {
        dims[0] = s->c;
    }
    for (uint32_t d = 0; d < rank; d++) {
        elements *= (uint64_t)dims[d];
    }
    ours.operands[i] = take(elements * ren__dtype_bytes(dtype));
}

static void begin_ours(ren__op_kind kind)
{
    memset(&ours, 0, sizeof ours);
    ours.desc.struct_size = (uint32_t)sizeof ours.desc;
    ours.desc.kind = kind;
    ours.desc.dilation[0] = ours.desc.dilation[1] = ours.desc.groups = 1;
    ours.desc.training = 1;
    ours.desc.alpha = 0.1f;
    ours.desc.eps = 1e-5f;
}

/* saved: the operand whose size the device tells, or REN__OPERANDS. */
static void create_ours(uint32_t saved)
{
    ren_error err;
    memset(&err, 0, sizeof err);
    if (api->op_create(device, 0, &ours.desc, &ours.op, &ours.needs, &err) != REN_OK) {
        (void)fprintf(stderr, "bench_ops: %s\n", err.text);
        exit(1);
    }
    ours.workspace = take(ours.needs.workspace_bytes);
    if (saved < REN__OPERANDS) {
        ours.operands[saved] = take(ours.needs.saved_bytes);
    }
}

static void run_ours(void)
{
    check(api->op_launch(device, 0, ours.op, ours.operands, ours.workspace), "op_launch");
}

static void end_ours(void)
{
    api->op_destroy(device, ours.op);
}

/* ------------------------------------------------------------------ cuDNN's side */

static const float one = 1.0f, zero = 0.0f;

static struct {
    cudnnTensorDescriptor_t x, y, vector;
    cudnnPoolingDescriptor_t pool;
    cudnnActivationDescriptor_t relu;
    cudnnBatchNormOps_t ops;
    void *x_at, *y_at, *dy_at, *dx_at, *workspace, *reserve;
    float *vectors[8];
    size_t workspace_bytes, reserve_bytes;
} theirs;

static cudnnTensorDescriptor_t nhwc(cudnnDataType_t type, const shape *s)
{
    cudnnTensorDescriptor_t out = NULL;
    check((int)cudnnCreateTensorDescriptor(&out), "a tensor descriptor");
    check((int)cudnnSetTensor4dDescriptor(out, CUDNN_TENSOR_NHWC, type, (int)s->n, (int)s->c,
                                          (int)s->h, (int)s->w),
          "cudnnSetTensor4dDescriptor");
    return out;
}

static void end_theirs(void)
{
    (void)cudnnDestroyTensorDescriptor(theirs.x);
    (void)cudnnDestroyTensorDescriptor(theirs.y);
    if (theirs.vector) {
        (void)cudnnDestroyTensorDescriptor(theirs.vector);
    }
    if (theirs.pool) {
        (void)cudnnDestroyPoolingDescriptor(theirs.pool);
    }
    if (theirs.relu) {
        (void)cudnnDestroyActivationDescriptor(theirs.relu);
    }
    memset(&theirs, 0, sizeof theirs);
}

/* ------------------------------------------------------------------ batch norm */

#define MODE CUDNN_BATCHNORM_SPATIAL_PERSISTENT

static void make_norm(const shape *s, int relu)
{
    size_t forward = 0, backward = 0;
    uint64_t bytes = (uint64_t)(s->n * s->h * s->w * s->c) * 2u;
    theirs.x = nhwc(CUDNN_DATA_HALF, s);
    theirs.y = nhwc(CUDNN_DATA_HALF, s);
    check((int)cudnnCreateTensorDescriptor(&theirs.vector), "a tensor descriptor");
    check((int)cudnnDeriveBNTensorDescriptor(theirs.vector, theirs.x, MODE), "cudnnDeriveBN");
    theirs.ops = relu ? CUDNN_BATCHNORM_OPS_BN_ACTIVATION : CUDNN_BATCHNORM_OPS_BN;
    if (relu) {
        check((int)cudnnCreateActivationDescriptor(&theirs.relu), "an activation");
        check((int)cudnnSetActivationDescriptor(theirs.relu, CUDNN_ACTIVATION_RELU,
                                                CUDNN_PROPAGATE_NAN, 0.0),
              "cudnnSetActivationDescriptor");
    }
    theirs.x_at = take(bytes);
    theirs.y_at = take(bytes);
    theirs.dy_at = take(bytes);
    theirs.dx_at = take(bytes);
    for (uint32_t i = 0; i < 8; i++) {
        theirs.vectors[i] = take((uint64_t)s->c * sizeof(float));
    }
    check(
        (int)cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
            dnn, MODE, theirs.ops, theirs.x, NULL, theirs.y, theirs.vector, theirs.relu, &forward),
        "a workspace's size");
    check((int)cudnnGetBatchNormalizationBackwardExWorkspaceSize(
              dnn, MODE, theirs.ops, theirs.x, theirs.y, theirs.y, NULL, theirs.x, theirs.vector,
              theirs.relu, &backward),
          "a workspace's size");
    check((int)cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
              dnn, MODE, theirs.ops, theirs.relu, theirs.x, &theirs.reserve_bytes),
          "a reserve's size");
    theirs.workspace_bytes = forward > backward ? forward : backward;
    theirs.workspace = take(theirs.workspace_bytes);
    theirs.reserve = take(theirs.reserve_bytes);
}

static void their_norm(void)
{
    float *const *v = theirs.vectors;
    check((int)cudnnBatchNormalizationForwardTrainingEx(
              dnn, MODE, theirs.ops, &one, &zero, theirs.x, theirs.x_at, NULL, NULL, theirs.y,
              theirs.y_at, theirs.vector, v[0], v[1], 0.1, v[2], v[3], 1e-5, v[4], v[5],
              theirs.relu, theirs.workspace, theirs.workspace_bytes, theirs.reserve,
              theirs.reserve_bytes),
          "cudnnBatchNormalizationForwardTrainingEx");
}

static void their_norm_backward(void)
{
    float *const *v = theirs.vectors;
    check((int)cudnnBatchNormalizationBackwardEx(
              dnn, MODE, theirs.ops, &one, &zero, &one, &zero, theirs.x, theirs.x_at, theirs.y,
              theirs.y_at, theirs.y, theirs.dy_at, NULL, NULL, theirs.x, theirs.dx_at,
              theirs.vector, v[0], v[1], v[6], v[7], 1e-5, v[4], v[5], theirs.relu,
              theirs.workspace, theirs.workspace_bytes, theirs.reserve, theirs.reserve_bytes),
          "cudnnBatchNormalizationBackwardEx");
}

static void norm_cases(const shape *s, int relu)
{
    for (int backward = 0; backward < 2; backward++) {
        char name[96];
        (void)snprintf(name, sizeof name, "batch_norm%s_%s/%dx%dx%dx%d/f16", relu ? "_relu" : "",
                       backward ? "bwd" : "train", (int)s->n, (int)s->h, (int)s->w, (int)s->c);
        if (!bench_wants(program, name)) {
            continue;
        }
        begin_ours(backward ? REN__OP_BATCH_NORM_BWD : REN__OP_BATCH_NORM_TRAIN);
        ours.desc.activation = REN__ACT_RELU;
        ours.desc.fused_activation = (uint32_t)relu;
        operand(0, REN_F16, s, 4);
        for (uint32_t i = 1; i < (backward ? 8u : 10u); i++) {
            int tensor = backward ? i == 1 || i == 5 : i == 5;
            operand(i, tensor ? REN_F16 : REN_F32, s, tensor ? 4 : 1);
        }
        if (backward && relu) {
            operand(10, REN_F32, s, 1);
        }
        create_ours(REN__OPERANDS);
        make_norm(s, relu);
        if (backward) {
            their_norm(); /* fills the reserve */
        }
        compare(name, run_ours, backward ? their_norm_backward : their_norm);
        end_ours();
        end_theirs();
    }
}

/* ------------------------------------------------------------------ pooling */

static void their_pool(void)
{
    check((int)cudnnPoolingForward(dnn, theirs.pool, &one, theirs.x, theirs.x_at, &zero, theirs.y,
                                   theirs.y_at),
          "cudnnPoolingForward");
}

static void their_pool_backward(void)
{
    check((int)cudnnPoolingBackward(dnn, theirs.pool, &one, theirs.y, theirs.y_at, theirs.y,
                                    theirs.dy_at, theirs.x, theirs.x_at, &zero, theirs.x,
                                    theirs.dx_at),
          "cudnnPoolingBackward");
}

static void pool_cases(const shape *x, uint32_t kernel, uint32_t stride, uint32_t padding)
{
    const shape y = {x->n, (x->h + 2 * padding - kernel) / stride + 1,
                     (x->w + 2 * padding - kernel) / stride + 1, x->c};
    for (int backward = 0; backward < 2; backward++) {
        char name[96];
        (void)snprintf(name, sizeof name, "max_pool%u_%s/%dx%dx%dx%d/f16", (unsigned)kernel,
                       backward ? "bwd" : "fwd", (int)x->n, (int)x->h, (int)x->w, (int)x->c);
        if (!bench_wants(program, name)) {
            continue;
        }
        begin_ours(backward ? REN__OP_MAX_POOL_BWD : REN__OP_MAX_POOL_FWD);
        for (uint32_t d = 0; d < 2; d++) {
            ours.desc.kernel[d] = kernel;
            ours.desc.stride[d] = stride;
            ours.desc.padding[d] = padding;
        }
        operand(0, REN_F16, backward ? &y : x, 4);
        operand(1, REN_F16, backward ? x : &y, 4);
        if (backward) {
            operand(2, REN_F16, &y, 4);
            operand(4, REN_F16, x, 4);
        }
        create_ours(backward ? 3u : 2u);
        theirs.x = nhwc(CUDNN_DATA_HALF, x);
        theirs.y = nhwc(CUDNN_DATA_HALF, &y);
        check((int)cudnnCreatePoolingDescriptor(&theirs.pool), "a pooling descriptor");
        check((int)cudnnSetPooling2dDescriptor(
                  theirs.pool, CUDNN_POOLING_MAX_DETERMINISTIC, CUDNN_PROPAGATE_NAN, (int)kernel,
                  (int)kernel, (int)padding, (int)padding, (int)stride, (int)stride),
              "cudnnSetPooling2dDescriptor");
        theirs.x_at = take((uint64_t)(x->n * x->h * x->w * x->c) * 2u);
        theirs.dx_at = take((uint64_t)(x->n * x->h * x->w * x->c) * 2u);
        theirs.y_at = take((uint64_t)(y.n * y.h * y.w * y.c) * 2u);
        theirs.dy_at = take((uint64_t)(y.n * y.h * y.w * y.c) * 2u);
        compare(name, run_ours, backward ? their_pool_backward : their_pool);
        end_ours();
        end_theirs();
    }
}

/* ------------------------------------------------------------------ softmax */

static void their_softmax(void)
{
    check((int)cudnnSoftmaxForward(dnn, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, &one,
                                   theirs.x, theirs.x_at, &zero, theirs.y, theirs.y_at),
          "cudnnSoftmaxForward");
}

/* Ours also computes the loss. */
static void softmax_case(const shape *s)
{
    const shape scalar = {1, 1, 1, 1};
    const shape rows = {1, 1, 1, s->n};
    char name[96];
    (void)snprintf(name, sizeof name, "softmax_xent/%dx%d/f32", (int)s->n, (int)s->c);
    if (!bench_wants(program, name)) {
        return;
    }
    begin_ours(REN__OP_XENT_FWD);
    ours.desc.alpha = 0.0f;
    operand(0, REN_F32, s, 2);
    operand(1, REN_I32, &rows, 1);
    operand(2, REN_F32, &scalar, 1);
    operand(3, REN_F32, s, 2);
    create_ours(REN__OPERANDS);
    theirs.x = nhwc(CUDNN_DATA_FLOAT, s);
    theirs.y = nhwc(CUDNN_DATA_FLOAT, s);
    theirs.x_at = take((uint64_t)(s->n * s->c) * sizeof(float));
    theirs.y_at = take((uint64_t)(s->n * s->c) * sizeof(float));
    compare(name, run_ours, their_softmax);
    end_ours();
    end_theirs();
}

/* ------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    static const bench_flag flags[] = {{"--module", "FILE", .text = &module_path}};
    static const shape norms[] = {
        {64, 56, 56, 256}, {64, 14, 14, 1024}, {128, 32, 32, 64}, {32, 32, 32, 16}};
    bench b;
    ren_runtime *rt = NULL;
    ren_error err;
    ren_status called = REN_OK;
    ren_runtime_config config = ren_runtime_config_default();
    bench_init(&b, argc, argv, "op", flags, 1);
    program = &b;
    config.device = REN_DEVICE_CUDA;
    config.module_path = module_path;
    ren_status status = ren_runtime_create(&config, &rt, &err);
    if (status != REN_OK) {
        (void)printf("skipped: %s\n", err.text);
        return bench_is_no_gpu(status) ? 77 : 1;
    }
    api = ren__runtime_api(rt);
    device = ren__runtime_device(rt);
    check(api->call(device, 0, tell_stream, &stream, &called), "call");
    check((int)cudaEventCreate(&begin_event), "cudaEventCreate");
    check((int)cudaEventCreate(&end_event), "cudaEventCreate");
    check((int)cudnnCreate(&dnn), "cudnnCreate");
    check((int)cudnnSetStream(dnn, stream), "cudnnSetStream");
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++) {
        norm_cases(&norms[i], 0);
    }
    norm_cases(&norms[0], 1);
    norm_cases(&norms[3], 1);
    pool_cases(&(shape){64, 112, 112, 64}, 3, 2, 1);
    pool_cases(&(shape){32, 32, 32, 64}, 3, 1, 1);
    softmax_case(&(shape){64, 1, 1, 1000});
    softmax_case(&(shape){16384, 1, 1, 10});
    (void)cudnnDestroy(dnn);
    (void)cudaEventDestroy(begin_event);
    (void)cudaEventDestroy(end_event);
    return ren_runtime_shutdown(rt, REN_TIMEOUT_INFINITE) == REN_OK ? 0 : 1;
}
