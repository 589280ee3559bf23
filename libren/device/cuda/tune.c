/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/tune.c - timing what a library offers, while an operation is made.
 *
 * Method    A launch costs the host several microseconds, which is more than many a kernel runs:
 *           timed one by one, all short candidates would look alike. So a short one is captured
 *           RUNS times into a graph, and the graph is timed. A long one (LONG_US) is timed launch
 *           by launch. Both give the median of a few samples, for other work of the device gets in
 *           between.
 * Limits    A candidate that took several times the best one's time on its second run is not
 *           measured any further.
 * Threads   see tune.h.
 * Memory    scratch comes from the driver's pool of the tuning stream: unlike cudaFree, giving it
 *           back waits for nothing else on the device.
 */
#include <stdlib.h>
#include <string.h>

#include "tune.h"

#define RUNS     8 /* of a short candidate in one graph */
#define SAMPLES  5 /* odd */
#define LONG_US  60.0f
#define HOPELESS 3.0f /* times the best */
#define FILLING  0x3c /* f16 1.06; bf16 and f32 0.0115 */

struct ren__cuda_tuned {
    struct ren__cuda_tuned *next;
    ren__op_desc desc;
    size_t bytes;
    unsigned char choice[REN__TUNE_CHOICE];
};

/* ------------------------------------------------------------------ what was found */

static ren__op_desc signature_of(const ren__op_desc *desc)
{
    ren__op_desc signature = *desc;
    signature.layer = 0;
    return signature;
}

/* A description has no padding bytes, and its makers zero what they do not set. */
int ren__cuda_tune_recall(ren__device *dev, const ren__op_desc *desc, void *choice, size_t bytes)
{
    ren__op_desc signature = signature_of(desc);
    for (const struct ren__cuda_tuned *t = dev->tuned; t; t = t->next) {
        if (t->bytes == bytes && memcmp(&t->desc, &signature, sizeof signature) == 0) {
            memcpy(choice, t->choice, bytes);
            return 1;
        }
    }
    return 0;
}

void ren__cuda_tune_remember(ren__device *dev, const ren__op_desc *desc, const void *choice,
                             size_t bytes)
{
    struct ren__cuda_tuned *t =
        bytes <= REN__TUNE_CHOICE
            ? dev->host.alloc(dev->host.user, sizeof *t, _Alignof(struct ren__cuda_tuned))
            : NULL;
    if (!t) {
        return;
    }
    memset(t, 0, sizeof *t);
    t->desc = signature_of(desc);
    t->bytes = bytes;
    memcpy(t->choice, choice, bytes);
    t->next = dev->tuned;
    dev->tuned = t;
}

void ren__cuda_tune_forget(ren__device *dev)
{
    while (dev->tuned) {
        struct ren__cuda_tuned *t = dev->tuned;
        dev->tuned = t->next;
        dev->host.free(dev->host.user, t, sizeof *t);
    }
    if (dev->tuning) {
        (void)cudaStreamDestroy(dev->tuning);
        dev->tuning = NULL;
    }
}

/* ------------------------------------------------------------------ begin and end */

static ren_status get_scratch(ren__cuda_tuning *t, uint64_t bytes)
{
    ren__device *dev = t->dev;
    ren_status status = ren__cuda_account(dev, bytes);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(dev, NULL, cudaMallocAsync(&t->scratch, (size_t)bytes, t->stream));
    if (status != REN_OK) {
        t->scratch = NULL;
        ren__cuda_unaccount(dev, bytes);
        return status;
    }
    t->bytes = bytes;
    return REN__CUDA(dev, NULL, cudaMemsetAsync(t->scratch, FILLING, (size_t)bytes, t->stream));
}

ren_status ren__cuda_tune_begin(ren__device *dev, uint64_t bytes, ren__cuda_tuning *out)
{
    ren_status status = REN_OK;
    memset(out, 0, sizeof *out);
    out->dev = dev;
    if (!dev->tuning) {
        status =
            REN__CUDA(dev, NULL, cudaStreamCreateWithFlags(&dev->tuning, cudaStreamNonBlocking));
    }
    out->stream = dev->tuning;
    if (status == REN_OK) {
        status = REN__CUDA(dev, NULL, cudaEventCreate(&out->from));
    }
    if (status == REN_OK) {
        status = REN__CUDA(dev, NULL, cudaEventCreate(&out->to));
    }
    if (status == REN_OK) {
        status = get_scratch(out, bytes ? bytes : 1u);
    }
    return status;
}

void ren__cuda_tune_end(ren__cuda_tuning *t)
{
    if (t->scratch) {
        (void)REN__CUDA(t->dev, NULL, cudaFreeAsync(t->scratch, t->stream));
        (void)REN__CUDA(t->dev, NULL, cudaStreamSynchronize(t->stream));
        ren__cuda_unaccount(t->dev, t->bytes);
    }
    if (t->from) {
        (void)cudaEventDestroy(t->from);
    }
    if (t->to) {
        (void)cudaEventDestroy(t->to);
    }
    memset(t, 0, sizeof *t);
}

/* ------------------------------------------------------------------ time */

/* One sample: the graph, or without one the candidate itself. */
static ren_status sample(ren__cuda_tuning *t, ren__cuda_tune_fn fn, void *user,
                         cudaGraphExec_t graph, float *out_us)
{
    ren__device *dev = t->dev;
    float ms = 0.0f;
    ren_status status = REN__CUDA(dev, NULL, cudaEventRecord(t->from, t->stream));
    if (status == REN_OK) {
        status =
            graph ? REN__CUDA(dev, NULL, cudaGraphLaunch(graph, t->stream)) : fn(user, t->stream);
    }
    if (status == REN_OK) {
        status = REN__CUDA(dev, NULL, cudaEventRecord(t->to, t->stream));
    }
    if (status == REN_OK) {
        status = REN__CUDA(dev, NULL, cudaEventSynchronize(t->to));
    }
    if (status == REN_OK) {
        status = REN__CUDA(dev, NULL, cudaEventElapsedTime(&ms, t->from, t->to));
    }
    *out_us = ms * 1000.0f / (graph ? (float)RUNS : 1.0f);
    return status;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x > y) - (x < y);
}

static ren_status median(ren__cuda_tuning *t, ren__cuda_tune_fn fn, void *user,
                         cudaGraphExec_t graph, float *out_us)
{
    float us[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        ren_status status = sample(t, fn, user, graph, &us[i]);
        if (status != REN_OK) {
            return status;
        }
    }
    qsort(us, SAMPLES, sizeof us[0], by_value);
    *out_us = us[SAMPLES / 2];
    return REN_OK;
}

/* RUNS runs as one executable; NULL when the candidate does not take part in a capture. */
static cudaGraphExec_t record_runs(ren__cuda_tuning *t, ren__cuda_tune_fn fn, void *user)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    ren_status status = REN_OK;
    if (cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    for (int i = 0; i < RUNS && status == REN_OK; i++) {
        status = fn(user, t->stream);
    }
    if (cudaStreamEndCapture(t->stream, &graph) != cudaSuccess || status != REN_OK ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
        exec = NULL;
        (void)cudaGetLastError();
    }
    if (graph) {
        (void)cudaGraphDestroy(graph);
    }
    return exec;
}

ren_status ren__cuda_tune_time(ren__cuda_tuning *t, ren__cuda_tune_fn fn, void *user, float *out_us)
{
    cudaGraphExec_t graph = NULL;
    float us = 0.0f;
    ren_status status = sample(t, fn, user, NULL, &us); /* loads the kernels */
    if (status == REN_OK) {
        status = sample(t, fn, user, NULL, &us);
    }
    if (status != REN_OK) {
        return status;
    }
    if (t->best_us > 0.0f && us > HOPELESS * t->best_us && us > LONG_US) {
        *out_us = us;
        return REN_OK;
    }
    if (us < LONG_US) {
        graph = record_runs(t, fn, user);
    }
    if (graph) {
        status = sample(t, fn, user, graph, &us); /* uploads it */
    }
    if (status == REN_OK) {
        status = median(t, fn, user, graph, &us);
    }
    if (graph) {
        (void)cudaGraphExecDestroy(graph);
    }
    if (status == REN_OK) {
        *out_us = us;
        t->best_us = t->best_us > 0.0f && t->best_us < us ? t->best_us : us;
    }
    return status;
}
