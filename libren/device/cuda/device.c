/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/device.c - opening and closing a CUDA device, and the context around calls.
 *
 * Purpose   open() answers each way in which a machine cannot serve with a status and a text of its
 *           own: no driver, a driver that is too old, no GPU, a wrong index, a GPU that is too old,
 *           a foreign context, no memory.
 * Threads   open: any.  close: one, with no other call running (see below for a lost device).
 * Memory    the device struct comes from the host's allocator; streams and handles from CUDA.
 * Context   With no context from the host the primary context is retained, which is the one that
 *           the CUDA runtime of the host uses too; it is released, never reset, at close.
 * Hang      No call can interrupt a thread that sleeps in cudaEventSynchronize. After abandon() it
 *           sleeps on until the GPU answers, if it ever does; the core gives the thread up.
 *           close() sees it counted in `syncing` and then leaves the device's memory and streams
 *           behind, because that thread will touch them if it wakes.
 */
#include <stdio.h>
#include <string.h>

#include "dnn.h"
#include "tune.h"

#define OLDEST_MAJOR 7 /* compute capability of the oldest machine code in the module */
#define OLDEST_MINOR 5
#define FUNCTIONS_OF 12000u /* the version whose signatures ren__cuda_driver declares */

/* Commands that one lane may hold. With 1,020 commands waiting on a stream the next one waited for
 * room in the driver's queue (H200, driver 580). What is left over is for loud records, which count
 * as one and take two (events.c). */
#define LANE_COMMANDS 900u

/* ------------------------------------------------------------------ context */

void ren__cuda_enter_always(ren__device *dev, ren__cuda_scope *scope)
{
    CUcontext current = NULL;
    scope->pushed = 0;
    scope->mode = cudaStreamCaptureModeRelaxed;
    /* The context first: the CUDA runtime's first call on a thread without one would leave the
     * primary context behind as the thread's. */
    if (dev->driver.ctx_get(&current) != CUDA_SUCCESS || current != dev->context) {
        scope->pushed = dev->driver.ctx_push(dev->context) == CUDA_SUCCESS;
    }
    (void)cudaThreadExchangeStreamCaptureMode(&scope->mode);
}

ren_status ren__cuda_enter(ren__device *dev, ren__cuda_scope *scope)
{
    /* Relaxed: only an early way out; a fault that is not seen yet is met by the call itself. */
    if (atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        return REN_ERR_DEVICE_LOST;
    }
    ren__cuda_enter_always(dev, scope);
    return REN_OK;
}

void ren__cuda_leave(ren__device *dev, ren__cuda_scope *scope)
{
    (void)cudaThreadExchangeStreamCaptureMode(&scope->mode);
    if (scope->pushed) {
        CUcontext popped;
        (void)dev->driver.ctx_pop(&popped);
    }
}

/* ------------------------------------------------------------------ open */

static ren_status fetch(const char *name, void *out_function, ren_error *err)
{
    void *address = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t code =
        cudaGetDriverEntryPointByVersion(name, &address, FUNCTIONS_OF, cudaEnableDefault, &found);
#else
    cudaError_t code = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
#endif
    if (code != cudaSuccess || found != cudaDriverEntryPointSuccess || !address) {
        return ren__cuda_error(err, REN_ERR_DRIVER_TOO_OLD, (int32_t)code, __FILE__, __LINE__,
                               "the NVIDIA driver is too old: it has no function %s", name);
    }
    memcpy(out_function, &address, sizeof address);
    return REN_OK;
}

static ren_status fetch_all(ren__cuda_driver *driver, ren_error *err)
{
    const struct {
        const char *name;
        void *out;
    } wanted[] = {
        {"cuCtxPushCurrent", &driver->ctx_push},
        {"cuCtxPopCurrent", &driver->ctx_pop},
        {"cuCtxGetCurrent", &driver->ctx_get},
        {"cuCtxGetDevice", &driver->ctx_get_device},
        {"cuDeviceGet", &driver->device_get},
        {"cuDevicePrimaryCtxRetain", &driver->primary_retain},
        {"cuDevicePrimaryCtxRelease", &driver->primary_release},
        {"cuDeviceGetAttribute", &driver->device_attribute},
        {"cuStreamWriteValue64", &driver->write_value},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        ren_status status = fetch(wanted[i].name, wanted[i].out, err);
        if (status != REN_OK) {
            return status;
        }
    }
    return REN_OK;
}

/* Does a refusal of a context mean that a fault of this process stands in the way? Three codes that
 * a running device is lost with have other reasons here: a GPU that another process has for itself,
 * a context that is none, and one that was destroyed. */
static int is_of_a_fault(CUresult code)
{
    return code != CUDA_ERROR_DEVICE_UNAVAILABLE && code != CUDA_ERROR_INVALID_CONTEXT &&
           code != CUDA_ERROR_CONTEXT_IS_DESTROYED &&
           ren__cuda_convert((cudaError_t)code) == REN_ERR_DEVICE_LOST;
}

/* Settles dev->context and dev->ordinal. */
static ren_status choose_context(ren__device *dev, const ren__device_config *config, int count,
                                 ren_error *err)
{
    CUresult code;
    if (config->cuda_context) {
        CUcontext popped;
        dev->context = (CUcontext)config->cuda_context;
        code = dev->driver.ctx_push(dev->context);
        if (code == CUDA_SUCCESS) {
            code = dev->driver.ctx_get_device(&dev->ordinal);
            (void)dev->driver.ctx_pop(&popped);
        }
        if (code != CUDA_SUCCESS) {
            return ren__cuda_error(
                err, is_of_a_fault(code) ? REN_ERR_DEVICE_LOST : REN_ERR_INVALID_ARGUMENT,
                (int32_t)code, __FILE__, __LINE__,
                "cuda.context is not a CUDA context that can be made current (CUDA error %d)",
                (int)code);
        }
        if (config->device_index && (uint32_t)dev->ordinal != config->device_index) {
            return ren__cuda_error(err, REN_ERR_INVALID_ARGUMENT, 0, __FILE__, __LINE__,
                                   "cuda.context is of device %d, device_index is %u", dev->ordinal,
                                   config->device_index);
        }
        return REN_OK;
    }
    if (config->device_index >= (uint32_t)count) {
        return ren__cuda_error(err, REN_ERR_INVALID_ARGUMENT, (int32_t)cudaErrorInvalidDevice,
                               __FILE__, __LINE__,
                               "device_index is %u; the CUDA devices here are numbered 0 to %d",
                               config->device_index, count - 1);
    }
    code = dev->driver.device_get(&dev->ordinal, (int)config->device_index);
    if (code == CUDA_SUCCESS) {
        code = dev->driver.primary_retain(&dev->context, dev->ordinal);
        dev->retained = code == CUDA_SUCCESS;
    }
    if (code != CUDA_SUCCESS) {
        return ren__cuda_error(err,
                               code == CUDA_ERROR_OUT_OF_MEMORY ? REN_ERR_NO_DEVICE_MEMORY
                               : is_of_a_fault(code)            ? REN_ERR_DEVICE_LOST
                                                                : REN_ERR_NO_GPU,
                               (int32_t)code, __FILE__, __LINE__,
                               code == CUDA_ERROR_OUT_OF_MEMORY
                                   ? "not enough memory on CUDA device %u to make a context"
                                   : "CUDA device %u cannot be used (CUDA error %d)",
                               config->device_index, (int)code);
    }
    return REN_OK;
}

static ren_status read_caps(ren__device *dev, ren_error *err)
{
    struct cudaDeviceProp properties;
    ren_status status = REN__CUDA(dev, err, cudaGetDeviceProperties(&properties, dev->ordinal));
    if (status != REN_OK) {
        return status;
    }
    if (properties.major < OLDEST_MAJOR ||
        (properties.major == OLDEST_MAJOR && properties.minor < OLDEST_MINOR)) {
        return ren__cuda_error(err, REN_ERR_NO_GPU, 0, __FILE__, __LINE__,
                               "%.100s has compute capability %d.%d, this module needs %d.%d",
                               properties.name, properties.major, properties.minor, OLDEST_MAJOR,
                               OLDEST_MINOR);
    }
    dev->caps.struct_size = (uint32_t)sizeof dev->caps;
    (void)snprintf(dev->caps.name, sizeof dev->caps.name, "%.127s", properties.name);
    dev->caps.lane_commands = LANE_COMMANDS;
    dev->caps.host_reads_device = 0;
    dev->caps.pageable_copies = 0;
    dev->caps.conv_weights_ohwi = 1;
    dev->caps.graphs = 1;
    dev->caps.fusions |=
        REN__FUSE_LINEAR_ACT | REN__FUSE_WEIGHT_BIAS | REN__FUSE_GELU | REN__FUSE_HALF_LOSS;
    dev->caps.fusions |= REN__FUSE_CONV_ACT;
    dev->caps.fusions |=
        REN__FUSE_NORM_ACT | REN__FUSE_NORM_ADD | REN__FUSE_NORM_GRADS | REN__FUSE_ACT_BIAS;
    dev->caps.memory_bytes = properties.totalGlobalMem;
    dev->caps.costs = ren__cuda_costs(&properties, dev->ordinal);
    return REN_OK;
}

static ren_status make_streams(ren__device *dev, const ren__device_config *config, ren_error *err)
{
    int least = 0;
    int greatest = 0;
    int priority;
    ren_status status = REN__CUDA(dev, err, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    /* CUDA counts downwards: the lowest priority is the greatest number. */
    priority = config->cuda_stream_priority > least - greatest ? greatest
               : config->cuda_stream_priority < 0              ? least
                                                  : least - config->cuda_stream_priority;
    for (uint32_t i = 0; i < dev->lanes && status == REN_OK; i++) {
        status = REN__CUDA(
            dev, err,
            cudaStreamCreateWithPriority(&dev->lane[i].stream, cudaStreamNonBlocking, priority));
    }
    if (status == REN_OK) {
        status = REN__CUDA(
            dev, err, cudaStreamCreateWithPriority(&dev->aside, cudaStreamNonBlocking, priority));
    }
    return status;
}

static ren_status make_counters(ren__device *dev, ren_error *err)
{
    int can = 0;
    void *host = NULL;
    void *device = NULL;
    CUresult code = dev->driver.device_attribute(
        &can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, dev->ordinal);
    if (code != CUDA_SUCCESS || !can) {
        return REN_OK; /* done without */
    }
    ren_status status = REN__CUDA(dev, err,
                                  cudaHostAlloc(&host, REN__LANES * sizeof *dev->counters,
                                                cudaHostAllocPortable | cudaHostAllocMapped));
    if (status != REN_OK) {
        return status;
    }
    dev->counters = host;
    for (uint32_t l = 0; l < REN__LANES; l++) {
        atomic_init(&dev->counters[l].value, 0);
    }
    status = REN__CUDA(dev, err, cudaHostGetDevicePointer(&device, host, 0));
    dev->counters_at = (CUdeviceptr)(uintptr_t)device;
    return status;
}

ren_status ren__cuda_open(const ren__device_config *config, const ren__host_services *host,
                          ren__device **out, ren_error *err)
{
    int count = 0;
    ren__device *dev;
    ren__cuda_scope scope;
    ren_status status = REN_OK;
    *out = NULL;
    if (config->lanes < 1 || config->lanes > REN__LANES) {
        return ren__cuda_error(err, REN_ERR_INVALID_ARGUMENT, 0, __FILE__, __LINE__,
                               "%u lanes; there are one to %u", config->lanes, REN__LANES);
    }
    status = ren__cuda_look_for_driver(&count, err);
    if (status != REN_OK) {
        return status;
    }
    dev = host->alloc(host->user, sizeof *dev, _Alignof(ren__device));
    if (!dev) {
        return ren__cuda_error(err, REN_ERR_NO_MEMORY, 0, __FILE__, __LINE__,
                               "no host memory for the CUDA device");
    }
    memset(dev, 0, sizeof *dev);
    dev->host = *host;
    dev->lanes = config->lanes;
    dev->deterministic = config->deterministic;
    dev->autotune = config->autotune && !config->deterministic;
    dev->memory_limit = config->memory_limit_bytes;
    (void)pthread_mutex_init(&dev->lock, NULL);
    (void)pthread_mutex_init(&dev->op_lock, NULL);
    atomic_init(&dev->lost, 0);
    atomic_init(&dev->abandoned, 0);
    atomic_init(&dev->syncing, 0);

    status = fetch_all(&dev->driver, err);
    if (status == REN_OK) {
        status = choose_context(dev, config, count, err);
    }
    if (status == REN_OK) {
        ren__cuda_enter_always(dev, &scope);
        status = read_caps(dev, err);
        if (status == REN_OK) {
            status = make_streams(dev, config, err);
        }
        if (status == REN_OK) {
            status = make_counters(dev, err);
        }
        ren__cuda_leave(dev, &scope);
    }
    if (status != REN_OK) {
        ren__cuda_close(dev);
        return status;
    }
    *out = dev;
    return REN_OK;
}

/* ------------------------------------------------------------------ close, caps, status */

static void close_lane(ren__cuda_lane *lane)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (lane->stream && cudaStreamIsCapturing(lane->stream, &capture) == cudaSuccess &&
        capture != cudaStreamCaptureStatusNone) {
        cudaGraph_t graph = NULL; /* of a capture that nobody ended */
        (void)cudaStreamEndCapture(lane->stream, &graph);
        if (graph) {
            (void)cudaGraphDestroy(graph);
        }
    }
    if (lane->cudnn) {
        (void)cudnnDestroy(lane->cudnn);
    }
    if (lane->blas) {
        (void)cublasLtDestroy(lane->blas);
    }
    if (lane->stream) {
        (void)cudaStreamDestroy(lane->stream);
    }
}

/* May a stream of an abandoned device still be at work? */
static int may_be_busy(ren__device *dev)
{
    int busy = 0;
    ren__cuda_scope scope;
    ren__cuda_enter_always(dev, &scope);
    for (uint32_t i = 0; i < dev->lanes; i++) {
        busy = busy || cudaStreamQuery(dev->lane[i].stream) == cudaErrorNotReady;
    }
    ren__cuda_leave(dev, &scope);
    return busy;
}

void ren__cuda_close(ren__device *dev)
{
    ren__host_services host;
    ren__cuda_scope scope;
    if (!dev) {
        return;
    }
    if (ren__cuda_is_abandoned(dev) && may_be_busy(dev)) {
        return; /* what work that never ends may touch stays for good */
    }
    /* Acquire: partner of the release in ren__cuda_event_sync; a thread that has left is past its
     * last use of the device. A thread that never leaves makes the device's memory permanent. */
    if (atomic_load_explicit(&dev->syncing, memory_order_acquire) != 0) {
        return;
    }
    if (dev->context) {
        ren__cuda_enter_always(dev, &scope);
        if (dev->aside) {
            (void)cudaStreamDestroy(dev->aside);
        }
        ren__cuda_capture_drop(dev);
        ren__cuda_dnn_close(dev);
        ren__cuda_tune_forget(dev);
        ren__cuda_tickets_free(dev);
        for (uint32_t i = 0; i < dev->lanes; i++) {
            close_lane(&dev->lane[i]);
        }
        if (dev->counters) {
            (void)cudaFreeHost(dev->counters);
        }
        (void)cudaGetLastError();
        ren__cuda_leave(dev, &scope);
    }
    if (dev->retained) {
        (void)dev->driver.primary_release(dev->ordinal);
    }
    (void)pthread_mutex_destroy(&dev->op_lock);
    (void)pthread_mutex_destroy(&dev->lock);
    host = dev->host;
    host.free(host.user, dev, sizeof *dev);
}

void ren__cuda_caps(ren__device *dev, ren__device_caps *out)
{
    *out = dev->caps;
}

ren_status ren__cuda_status(ren__device *dev, ren_error *err)
{
    ren_status status = REN_OK;
    (void)pthread_mutex_lock(&dev->lock);
    if (atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        status = REN_ERR_DEVICE_LOST;
        if (err) {
            *err = dev->fault;
        }
    }
    (void)pthread_mutex_unlock(&dev->lock);
    return status;
}

int ren__cuda_is_abandoned(ren__device *dev)
{
    /* Relaxed: the caller of free and close has seen abandon return, or races with it anyway. */
    return atomic_load_explicit(&dev->abandoned, memory_order_relaxed);
}

void ren__cuda_abandon(ren__device *dev)
{
    /* A fault that was met before has ended all work: then freeing waits for nothing. */
    if (!atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        atomic_store_explicit(&dev->abandoned, 1, memory_order_relaxed);
    }
    ren__cuda_set_lost(dev, 0, __FILE__, __LINE__, "the device was given up before it answered");
}
