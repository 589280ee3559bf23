/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_memory.c - what captures and runtimes leave in the memory of a GPU.
 *
 * Proves    a captured step holds no node that allocates or frees memory and none that calls the
 *           host; a hundred steps captured and dropped (rows 17 and 24), and ten runtimes opened
 *           and closed, leave the GPU's free memory as it was.
 * Fails if  a library is given no workspace and so takes one inside a capture; an executable, its
 *           template, a plan's buffers, or a stream, a handle, a workspace or a slab of a runtime
 *           is not given back.
 * Bound     The driver takes memory in pieces of 2 MiB, and may hold one more or less of them at
 *           any time for itself, so 4 MiB are allowed. A hundred executables that are not destroyed
 *           take more from 42 KiB each on, ten runtimes from 410 KiB each on; a workspace of
 *           cuBLAS has 32 MiB, a slab of libren's at least 2.
 * Alone     The figure is that of the whole GPU: no other program may use it meanwhile
 *           (tests/tools/run-tests). A round that ends above the bound is run again, twice at most,
 *           in case one did: what leaks does so in every round.
 */
#include <CUnit/CUnit.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "../conformance/runs.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define SECOND   UINT64_C(1000000000)
#define BOUND    (INT64_C(4) << 20)
#define ROUNDS   3u
#define CAPTURES 100u
#define RUNTIMES 10u
#define BLOCK    3u /* steps with one batch size: the second is captured */
#define SIZES    9u /* more than plans are kept for, so that each change drops one */

/* NULL when there is no GPU: the case has been skipped. */
static ren_runtime *gpu_runtime(const run_spec *spec)
{
    ren_runtime_config config = ren_test_config();
    ren_runtime *rt = NULL;
    static ren_error err;
    if (ren_test_device() != REN_DEVICE_CUDA) {
        ren_test_skip("REN_TEST_DEVICE is not cuda");
        return NULL;
    }
    config.streams = spec->streams;
    config.graph_after_steps = spec->after;
    config.deterministic = 1;
    ren_status status = ren_runtime_create(&config, &rt, &err);
    if (ren_test_no_gpu(status)) {
        ren_test_skip(err.text);
        return NULL;
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 64u << 20), REN_OK);
    return rt;
}

static int64_t free_bytes(void)
{
    size_t available = 0;
    size_t total = 0;
    CU_ASSERT_EQUAL(cudaMemGetInfo(&available, &total), cudaSuccess);
    return (int64_t)available;
}

/* ------------------------------------------------------------------ nodes */

typedef struct nodes {
    ren_runtime *rt;
    cudaStream_t streams[REN_STREAM_COUNT];
    uint32_t captures, count, memory, host, kernels, unread;
} nodes;

static cudaError_t graph_of(cudaStream_t stream, enum cudaStreamCaptureStatus *out_status,
                            cudaGraph_t *out_graph)
{
#if CUDART_VERSION >= 13000
    return cudaStreamGetCaptureInfo(stream, out_status, NULL, out_graph, NULL, NULL, NULL);
#else
    return cudaStreamGetCaptureInfo_v2(stream, out_status, NULL, out_graph, NULL, NULL);
#endif
}

static void count_nodes(nodes *n, cudaGraph_t graph)
{
    static cudaGraphNode_t all[4096];
    size_t count = REN_TEST_COUNT(all);
    if (cudaGraphGetNodes(graph, all, &count) != cudaSuccess) {
        n->unread++;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        enum cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
        n->unread += cudaGraphNodeGetType(all[i], &type) != cudaSuccess;
        n->memory += type == cudaGraphNodeTypeMemAlloc || type == cudaGraphNodeTypeMemFree;
        n->host += type == cudaGraphNodeTypeHost;
        n->kernels += type == cudaGraphNodeTypeKernel;
    }
    n->count += (uint32_t)count;
}

/* On the submitter, before a capture is ended. */
static void look_into_capture(void *user)
{
    nodes *n = user;
    cudaGraph_t graph = NULL;
    for (uint32_t i = 0; i < REN_STREAM_COUNT && !graph; i++) {
        enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        if (graph_of(n->streams[i], &status, &graph) != cudaSuccess ||
            status != cudaStreamCaptureStatusActive) {
            graph = NULL;
        }
    }
    if (graph) {
        count_nodes(n, graph);
    } else {
        n->unread++;
    }
    n->captures++;
    (void)cudaGetLastError();
    ren_test_before(n->rt, "graph_end", 1, look_into_capture, n);
}

static ren_status keep_stream(void *user, const ren_device_io *io)
{
    *(cudaStream_t *)user = (cudaStream_t)io->native_stream;
    return REN_OK;
}

static void look_at(net_kind kind)
{
    static run_result out;
    run_spec spec = run_default(kind);
    nodes n;
    run r;
    spec.steps = 12;
    spec.after = 2;
    memset(&n, 0, sizeof n);
    n.rt = gpu_runtime(&spec);
    if (!n.rt) {
        return;
    }
    (void)free_bytes(); /* this program's CUDA runtime starts here, not inside a capture */
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        ren_job_desc d = ren_job_desc_default();
        ren_job job = {0};
        d.kind = REN_JOB_DEVICE;
        d.stream = (ren_stream)i;
        d.enqueue = keep_stream;
        d.enqueue_user = &n.streams[i];
        CU_ASSERT_EQUAL_FATAL(ren_post(n.rt, &d, &job), REN_OK);
        CU_ASSERT_EQUAL(ren_wait(n.rt, job, 20 * SECOND), REN_OK);
    }
    run_begin(&r, n.rt, &spec, &out);
    ren_test_before(n.rt, "graph_end", 1, look_into_capture, &n);
    while (r.next < spec.steps) {
        run_step(&r);
    }
    run_end(&r);
    (void)printf("       %u captures: %u nodes, %u kernels, %u of memory, %u of the host\n",
                 n.captures, n.count, n.kernels, n.memory, n.host);
    CU_ASSERT(n.captures > 0);
    CU_ASSERT(n.kernels > 0);
    CU_ASSERT_EQUAL(n.unread, 0);
    CU_ASSERT_EQUAL(n.memory, 0);
    CU_ASSERT_EQUAL(n.host, 0);
    CU_ASSERT(out.graph_steps > 0);
    run_free(&out);
    ren_test_shutdown(n.rt);
}

static void test_captures_hold_no_allocations(void)
{
    static const net_kind kinds[] = {NET_MLP, NET_LENET, NET_TINYRES, NET_BRANCH};
    for (size_t i = 0; i < REN_TEST_COUNT(kinds); i++) {
        look_at(kinds[i]);
    }
}

/* ------------------------------------------------------------------ memory over captures */

static void more_steps(run *r, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        run_step(r);
    }
}

/* Every batch size has a plan of its own, the plan of a size that was left is dropped, and its
 * capture with it. */
static void memory_over_captures(net_kind kind)
{
    static run_result out;
    run_spec spec = run_default(kind);
    ren_stats before = ren_stats_default();
    ren_stats after = ren_stats_default();
    int64_t taken = BOUND + 1;
    run r;
    spec.steps = 2u * BLOCK * SIZES + ROUNDS * CAPTURES * BLOCK;
    spec.block = BLOCK;
    spec.sizes = SIZES;
    spec.after = 1;
    spec.one_by_one = 1;
    ren_runtime *rt = gpu_runtime(&spec);
    if (!rt) {
        return;
    }
    run_begin(&r, rt, &spec, &out);
    more_steps(&r, 2u * BLOCK * SIZES); /* every size twice: libraries have loaded their kernels */
    for (uint32_t round = 0; round < ROUNDS && taken > BOUND; round++) {
        CU_ASSERT_EQUAL(ren_runtime_stats(rt, &before), REN_OK);
        int64_t free_before = free_bytes();
        more_steps(&r, CAPTURES * BLOCK);
        taken = free_before - free_bytes();
        CU_ASSERT_EQUAL(ren_runtime_stats(rt, &after), REN_OK);
        (void)printf("       %llu captures: %lld bytes less\n",
                     (unsigned long long)(after.graph_captures - before.graph_captures),
                     (long long)taken);
        CU_ASSERT(after.graph_captures - before.graph_captures >= CAPTURES);
        CU_ASSERT_EQUAL(after.pool_bytes_reserved, before.pool_bytes_reserved);
    }
    CU_ASSERT(taken <= BOUND);
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
}

static void test_captures_leave_no_memory(void)
{
    memory_over_captures(NET_MLP);
}

static void test_captures_of_convolutions_leave_no_memory(void)
{
    memory_over_captures(NET_LENET);
}

/* ------------------------------------------------------------------ memory over runtimes */

/* 0 when there is no GPU. */
static int one_runtime(void)
{
    static run_result out;
    run_spec spec = run_default(NET_LENET);
    spec.steps = 12;
    spec.after = 2;
    ren_runtime *rt = gpu_runtime(&spec);
    if (!rt) {
        return 0;
    }
    run_in(rt, &spec, &out);
    CU_ASSERT(out.graph_steps > 0);
    run_free(&out);
    ren_test_shutdown(rt);
    return 1;
}

static void test_runtimes_leave_no_memory(void)
{
    int64_t taken = BOUND + 1;
    /* The runtime's copy that this program asks keeps the GPU's primary context, so it is the same
     * one all along. */
    for (uint32_t i = 0; i < 3; i++) {
        if (!one_runtime()) {
            return;
        }
        (void)free_bytes();
    }
    for (uint32_t round = 0; round < ROUNDS && taken > BOUND; round++) {
        int64_t before = free_bytes();
        for (uint32_t i = 0; i < RUNTIMES; i++) {
            (void)one_runtime();
        }
        taken = before - free_bytes();
        (void)printf("       %u runtimes: %lld bytes less\n", RUNTIMES, (long long)taken);
    }
    CU_ASSERT(taken <= BOUND);
}

static const ren_test_case cases[] = {
    {"test_captures_hold_no_allocations", test_captures_hold_no_allocations},
    {"test_captures_leave_no_memory", test_captures_leave_no_memory},
    {"test_captures_of_convolutions_leave_no_memory",
     test_captures_of_convolutions_leave_no_memory},
    {"test_runtimes_leave_no_memory", test_runtimes_leave_no_memory},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "gpu/test_cuda_memory", cases, REN_TEST_COUNT(cases), 240);
}
