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
 * Memory    A ren__graph is a cudaGraphExec_t under another name; the template it was made from is
 *           destroyed at once.
 */
#include "internal.h"

ren_status ren__cuda_graph_begin(ren__device *dev, uint32_t origin)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(
        dev, NULL, cudaStreamBeginCapture(dev->lane[origin].stream, cudaStreamCaptureModeRelaxed));
    ren__cuda_leave(dev, &scope);
    return status;
}

ren_status ren__cuda_graph_end(ren__device *dev, uint32_t origin, ren__graph **out, ren_error *err)
{
    cudaGraph_t captured = NULL;
    cudaGraphExec_t executable = NULL;
    ren__cuda_scope scope;
    ren_status status;
    *out = NULL;
    if (atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        return ren__cuda_error(err, REN_ERR_DEVICE_LOST, 0, __FILE__, __LINE__,
                               "the device is lost");
    }
    ren__cuda_enter_always(dev, &scope);
    status = REN__CUDA(dev, err, cudaStreamEndCapture(dev->lane[origin].stream, &captured));
    if (status == REN_OK) {
        status = REN__CUDA(dev, err, cudaGraphInstantiate(&executable, captured, 0));
    }
    if (captured) {
        (void)cudaGraphDestroy(captured);
    }
    ren__cuda_leave(dev, &scope);
    if (status == REN_OK) {
        *out = (ren__graph *)executable;
    }
    return status;
}

ren_status ren__cuda_graph_launch(ren__device *dev, uint32_t lane, ren__graph *graph)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(dev, NULL, cudaGraphLaunch((cudaGraphExec_t)graph, dev->lane[lane].stream));
    ren__cuda_leave(dev, &scope);
    return status;
}

void ren__cuda_graph_destroy(ren__device *dev, ren__graph *graph)
{
    ren__cuda_scope scope;
    if (!graph || ren__cuda_is_abandoned(dev)) {
        return;
    }
    ren__cuda_enter_always(dev, &scope);
    (void)REN__CUDA(dev, NULL, cudaGraphExecDestroy((cudaGraphExec_t)graph));
    ren__cuda_leave(dev, &scope);
}
