/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/graph.c - recording the commands of several lanes and launching them at once.
 *
 * Purpose   A capture begins on one stream; others join by waiting for its events and must be
 *           joined back before it ends.
 * Hosts     The mode is relaxed: beside an open capture other threads may allocate and free, use
 *           the legacy stream, record and query events, copy and launch; nothing of that fails or
 *           breaks the capture. A wait for the whole context (cudaDeviceSynchronize) does both, in
 *           every mode: CUDA refuses it with cudaErrorStreamCaptureUnsupported, and the capture
 *           ends as invalidated. So does whatever waits for a captured stream. The step then goes
 *           task by task (replay.h), and the host calls again. About once in a hundred such
 *           meetings driver 580.159 itself crashed, in the host's cuCtxSynchronize: a host should
 *           wait for its own streams and events.
 * Threads   the submitter; destroy: any.
 * Failure   A capture that was broken is still ended, which takes all its streams out of capture,
 *           so they can be used again; what was captured is dropped.
 * Memory    A graph is an executable and the plans of cuDNN that were executed in its capture; the
 *           template it was made from is destroyed at once. Both come from the C library, as
 *           captures happen where the host's allocator must not be called.
 *
 * Update. cudaGraphExecUpdate gives an executable the parameters of a template of the same shape,
 * and says when that cannot be: then it has changed nothing (cudaErrorGraphExecUpdateFailure), and
 * the template is instantiated. CUDA promises that launches under way keep their parameters for the
 * calls that set those of one node, and promises nothing of the kind for a whole graph; so the
 * table asks for a graph of whose launches none is under way, and replay.c knows that of the ones
 * it offers.
 *
 * Plans. An engine that cuDNN compiled is code of its execution plan, and executables refer to code
 * until they are updated or destroyed. Operations may be gone by then, so a graph holds the plans
 * itself.
 */
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

struct ren__graph {
    cudaGraphExec_t executable;
    ren__cuda_held held;
};

/* ------------------------------------------------------------------ plans of cuDNN */

static void give_held(ren__cuda_held *held)
{
    for (uint32_t i = 0; i < held->count; i++) {
        ren__cuda_dnn_give(held->plans[i]);
    }
    free(held->plans);
    memset(held, 0, sizeof *held);
}

ren_status ren__cuda_graph_hold(ren__device *dev, ren__cuda_dnn_plan *plan)
{
    ren__cuda_held *held = &dev->capture.held;
    if (!dev->capture.open) {
        return REN_OK;
    }
    if (held->count == held->capacity) {
        uint32_t capacity = held->capacity ? 2u * held->capacity : 32u;
        ren__cuda_dnn_plan **grown = realloc(held->plans, capacity * sizeof *grown);
        if (!grown) {
            return REN_ERR_NO_MEMORY;
        }
        held->plans = grown;
        held->capacity = capacity;
    }
    ren__cuda_dnn_hold(plan);
    held->plans[held->count++] = plan;
    return REN_OK;
}

/* ------------------------------------------------------------------ begin */

void ren__cuda_capture_drop(ren__device *dev)
{
    if (dev->capture.captured) {
        (void)cudaGraphDestroy(dev->capture.captured);
    }
    give_held(&dev->capture.held);
    memset(&dev->capture, 0, sizeof dev->capture);
}

ren_status ren__cuda_graph_begin(ren__device *dev, uint32_t origin)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    if (dev->capture.open) {
        status = REN_ERR_BUSY;
    } else {
        status = REN__CUDA(
            dev, NULL,
            cudaStreamBeginCapture(dev->lane[origin].stream, cudaStreamCaptureModeRelaxed));
        dev->capture.open = status == REN_OK;
        dev->capture.origin = origin;
    }
    ren__cuda_leave(dev, &scope);
    return status;
}

/* ------------------------------------------------------------------ update, end */

/* Before the calls below: what may be said without a look at CUDA. */
static ren_status check_open(ren__device *dev, uint32_t origin, ren_error *err)
{
    if (atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        return ren__cuda_error(err, REN_ERR_DEVICE_LOST, 0, __FILE__, __LINE__,
                               "the device is lost");
    }
    if (!dev->capture.open || dev->capture.origin != origin) {
        return ren__cuda_error(err, REN_ERR_INVALID_ARGUMENT, 0, __FILE__, __LINE__,
                               "no capture is open on lane %u", (unsigned)origin);
    }
    return REN_OK;
}

/* The first time takes the streams out of the capture; from then on the answer is the same. */
static ren_status end_capture(ren__device *dev, ren_error *err)
{
    ren__cuda_capture *c = &dev->capture;
    if (!c->ended) {
        c->ended = 1;
        c->status = REN__CUDA(dev, &c->error,
                              cudaStreamEndCapture(dev->lane[c->origin].stream, &c->captured));
    }
    if (c->status != REN_OK && err) {
        *err = c->error;
    }
    return c->status;
}

static ren_status update(ren__device *dev, ren__graph *graph, ren_error *err)
{
    cudaGraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    cudaError_t code = cudaGraphExecUpdate(graph->executable, dev->capture.captured, &info);
    if (code == cudaErrorGraphExecUpdateFailure) {
        (void)cudaGetLastError();
        return ren__cuda_error(err, REN_ERR_UNSUPPORTED, (int32_t)code, __FILE__, __LINE__,
                               "an executable graph cannot be updated (reason %d)",
                               (int)info.result);
    }
    return REN__CUDA(dev, err, code);
}

ren_status ren__cuda_graph_update(ren__device *dev, uint32_t origin, ren__graph *graph,
                                  ren_error *err)
{
    ren__cuda_scope scope;
    ren_status status = check_open(dev, origin, err);
    if (status != REN_OK) {
        return status;
    }
    ren__cuda_enter_always(dev, &scope);
    status = end_capture(dev, err);
    if (status == REN_OK) {
        status = update(dev, graph, err);
    }
    if (status == REN_OK) {
        ren__cuda_held held = graph->held;
        graph->held = dev->capture.held;
        dev->capture.held = held; /* given back with the capture */
        ren__cuda_capture_drop(dev);
    }
    ren__cuda_leave(dev, &scope);
    return status;
}

static ren_status instantiate(ren__device *dev, ren__graph **out, ren_error *err)
{
    ren__graph *graph = calloc(1, sizeof *graph);
    if (!graph) {
        return ren__cuda_error(err, REN_ERR_NO_MEMORY, 0, __FILE__, __LINE__,
                               "no host memory for a graph");
    }
    ren_status status =
        REN__CUDA(dev, err, cudaGraphInstantiate(&graph->executable, dev->capture.captured, 0));
    if (status != REN_OK) {
        free(graph);
        return status;
    }
    graph->held = dev->capture.held;
    memset(&dev->capture.held, 0, sizeof dev->capture.held);
    *out = graph;
    return REN_OK;
}

ren_status ren__cuda_graph_end(ren__device *dev, uint32_t origin, ren__graph **out, ren_error *err)
{
    ren__cuda_scope scope;
    ren_status status = check_open(dev, origin, err);
    *out = NULL;
    if (status != REN_OK) {
        return status;
    }
    ren__cuda_enter_always(dev, &scope);
    status = end_capture(dev, err);
    if (status == REN_OK) {
        status = instantiate(dev, out, err);
    }
    ren__cuda_capture_drop(dev);
    ren__cuda_leave(dev, &scope);
    return status;
}

/* ------------------------------------------------------------------ launch, destroy */

ren_status ren__cuda_graph_launch(ren__device *dev, uint32_t lane, ren__graph *graph)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(dev, NULL, cudaGraphLaunch(graph->executable, dev->lane[lane].stream));
    ren__cuda_leave(dev, &scope);
    return status;
}

void ren__cuda_graph_destroy(ren__device *dev, ren__graph *graph)
{
    ren__cuda_scope scope;
    if (!graph) {
        return;
    }
    if (!ren__cuda_is_abandoned(dev)) {
        ren__cuda_enter_always(dev, &scope);
        (void)REN__CUDA(dev, NULL, cudaGraphExecDestroy(graph->executable));
        ren__cuda_leave(dev, &scope);
        give_held(&graph->held);
    }
    free(graph->held.plans); /* of an abandoned device: its plans stay */
    free(graph);
}
