/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/dnn_engine.c - the engines that may compute an operation graph; see dnn.h.
 *
 * Purpose   The library's heuristics rank engines, each with its settings. What its notes say of
 *           an engine decides whether it may serve; whether it can, shows when a plan is finalised.
 * Failure   A question that the library does not answer means that it has nothing for the graph;
 *           there is another form, or the direct kernels.
 * Memory    Descriptors are the library's. A plan's engine settings are kept as long as the plan.
 */
#include <string.h>

#include "dnn.h"

#define RANKED    24           /* asked of the library at most */
#define WORKSPACE (256u << 20) /* bytes, at most */
#define SHARE     32u          /* of the device's memory, at most one such part */

/* All operations of a lane share one workspace, of the largest need; there are five lanes. In
 * strict f32 the fast engines change the layout in it: within 64 MiB instead of 256 the data
 * gradients of resnet18-cifar, batch 128, take 81 ms instead of 7 (H200). */
uint64_t ren__cuda_dnn_workspace_limit(ren__device *dev)
{
    uint64_t memory = dev->caps.memory_bytes;
    uint64_t share = (dev->memory_limit && dev->memory_limit < memory ? dev->memory_limit : memory);
    return share / SHARE < WORKSPACE ? share / SHARE : WORKSPACE;
}

/* May an engine with these notes serve? */
static int may_serve(ren__device *dev, const ren__cuda_dnn_signature *s,
                     const cudnnBackendNumericalNote_t *notes, int64_t count)
{
    int strict = s->type == REN_F32 && !s->tf32;
    for (int64_t i = 0; i < count; i++) {
        switch (notes[i]) {
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
            return 0;
        case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
            if (dev->deterministic) {
                return 0;
            }
            break;
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        case CUDNN_NUMERICAL_NOTE_FFT:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
            if (strict) {
                return 0;
            }
            break;
        default:
            break;
        }
    }
    return 1;
}

/* Reads the engine's number, too. */
static int config_may_serve(ren__device *dev, const ren__cuda_dnn_signature *s,
                            cudnnBackendDescriptor_t config, int64_t *out_engine)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine = NULL;
    int64_t count = 0;
    int usable = 0;
    *out_engine = -1;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    if (cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &count, &engine) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                                 notes) == CUDNN_STATUS_SUCCESS) {
        usable = may_serve(dev, s, notes, count);
        (void)cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                       &count, out_engine);
    }
    (void)cudnnBackendDestroyDescriptor(engine);
    return usable;
}

/* The ranking of one mode: how many, each a descriptor that the caller frees. */
static int64_t rank(cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                    cudnnBackendDescriptor_t out[RANKED])
{
    cudnnBackendDescriptor_t ranking = NULL;
    int64_t made = 0;
    int64_t found = 0;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &ranking) !=
        CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    if (cudnnBackendSetAttribute(ranking, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                 &graph) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendSetAttribute(ranking, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1,
                                 &mode) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendFinalize(ranking) == CUDNN_STATUS_SUCCESS) {
        while (made < RANKED && cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                                             &out[made]) == CUDNN_STATUS_SUCCESS) {
            made++;
        }
        if (cudnnBackendGetAttribute(ranking, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &found,
                                     out) != CUDNN_STATUS_SUCCESS) {
            found = 0;
        }
        found = found < made ? found : made;
        while (made > found) {
            (void)cudnnBackendDestroyDescriptor(out[--made]);
        }
    }
    (void)cudnnBackendDestroyDescriptor(ranking);
    return found;
}

/* A plan of an engine's settings; 1 when it can be had within the workspace. */
static int finalise(ren__device *dev, cudnnBackendDescriptor_t config, ren__cuda_dnn_choice *out)
{
    cudnnHandle_t handle = dev->dnn->handle;
    cudnnBackendDescriptor_t plan = NULL;
    int64_t count = 0;
    int64_t bytes = 0;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) !=
        CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    if (cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                 &handle) != CUDNN_STATUS_SUCCESS ||
        cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                 &config) != CUDNN_STATUS_SUCCESS ||
        cudnnBackendFinalize(plan) != CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                 1, &count, &bytes) != CUDNN_STATUS_SUCCESS ||
        bytes < 0 || (uint64_t)bytes > ren__cuda_dnn_workspace_limit(dev)) {
        (void)cudnnBackendDestroyDescriptor(plan);
        return 0;
    }
    out->config = config;
    out->plan = plan;
    out->library_bytes = ((uint64_t)bytes + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
    return 1;
}

static uint64_t weight_elements(const ren__cuda_dnn_signature *s)
{
    return (uint64_t)s->w[0] * (uint64_t)s->w[1] * (uint64_t)s->w[2] * (uint64_t)s->w[3];
}

uint32_t ren__cuda_dnn_engines(ren__device *dev, const ren__cuda_dnn_signature *s,
                               ren__cuda_dnn_form form, ren__cuda_dnn_choice *out, uint32_t most)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    ren__cuda_dnn_graph graph;
    uint32_t usable = 0;
    if (ren__cuda_dnn_graph_make(dev->dnn->handle, s, form, &graph) != CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    for (size_t mode = 0; mode < sizeof modes / sizeof modes[0] && !usable; mode++) {
        cudnnBackendDescriptor_t configs[RANKED];
        int64_t count = rank(graph.graph, modes[mode], configs);
        for (int64_t i = 0; i < count; i++) {
            ren__cuda_dnn_choice *c = &out[usable];
            memset(c, 0, sizeof *c);
            if (usable == most || !config_may_serve(dev, s, configs[i], &c->engine) ||
                !finalise(dev, configs[i], c)) {
                (void)cudnnBackendDestroyDescriptor(configs[i]);
                continue;
            }
            c->form = form;
            c->workspace_bytes = c->library_bytes;
            if (form.out != s->out) {
                c->workspace_bytes += weight_elements(s) * ren__dtype_bytes(form.out);
            }
            usable++;
        }
    }
    ren__cuda_dnn_graph_free(&graph);
    return usable;
}

void ren__cuda_dnn_choice_free(ren__cuda_dnn_choice *choice)
{
    if (choice->plan) {
        (void)cudnnBackendDestroyDescriptor(choice->plan);
    }
    if (choice->config) {
        (void)cudnnBackendDestroyDescriptor(choice->config);
    }
    memset(choice, 0, sizeof *choice);
}
