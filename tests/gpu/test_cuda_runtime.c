/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_runtime.c - runtimes on a CUDA device inside a host that uses CUDA itself.
 *
 * Proves    jobs are right while host threads allocate, wait, record events and use the legacy
 *           stream; many runtimes can be made one after another and side by side; a runtime in a
 *           context of the host's leaves every thread's context as it was; a short job ends beside
 *           a long one.
 * Fails     when a call of libren's waits for the whole device, uses the legacy stream, or leaves a
 *           context behind.
 */
#include <CUnit/CUnit.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/runtime.h"
#include "../support/test.h"
#include "spin.h"

#define SECOND UINT64_C(1000000000)
#define BYTES  65536u

static ren_runtime_config cuda_config(void)
{
    ren_runtime_config config = ren_test_config();
    config.device = REN_DEVICE_CUDA;
    if (!config.module_path) {
        config.module_path = "build/test/libren_cuda.so";
    }
    return config;
}

/* NULL after a skip where there is no GPU. */
static ren_runtime *cuda_runtime(const ren_runtime_config *config)
{
    ren_runtime *rt = NULL;
    static ren_error err;
    ren_status status = ren_runtime_create(config, &rt, &err);
    if (ren_test_no_gpu(status)) {
        ren_test_skip(err.text);
        return NULL;
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 64u << 20), REN_OK);
    return rt;
}

static void some_work(ren_runtime *rt, int rounds)
{
    unsigned char *out = malloc(BYTES);
    CU_ASSERT_PTR_NOT_NULL_FATAL(out);
    for (int i = 0; i < rounds; i++) {
        memset(out, 0, BYTES);
        ren_test_round_trip(rt, out, BYTES, (uint32_t)(i % 255 + 1), (ren_stream)(i % 5),
                            (ren_stream)(i / 5 % 5));
    }
    free(out);
}

static atomic_int stop_host;

static void *host_work(void *arg)
{
    cudaStream_t own;
    long rounds = 0;
    unsigned char *pinned = NULL;
    (void)arg;
    if (cudaStreamCreate(&own) != cudaSuccess ||
        cudaMallocHost((void **)&pinned, 4096) != cudaSuccess) {
        return (void *)-1L;
    }
    while (!atomic_load(&stop_host)) {
        void *memory = NULL;
        cudaEvent_t event;
        int bad = cudaMalloc(&memory, 4096) != cudaSuccess;
        bad |= cudaMemset(memory, (int)(rounds & 0x7f), 4096) != cudaSuccess; /* legacy stream */
        bad |= cudaEventCreate(&event) != cudaSuccess;
        bad |= cudaEventRecord(event, own) != cudaSuccess;
        bad |= cudaMemcpyAsync(pinned, memory, 4096, cudaMemcpyDeviceToHost, own) != cudaSuccess;
        bad |= cudaStreamSynchronize(own) != cudaSuccess;
        bad |= pinned[4095] != (rounds & 0x7f);
        bad |= cudaEventDestroy(event) != cudaSuccess;
        bad |= cudaFree(memory) != cudaSuccess;
        if (bad) {
            return (void *)-2L;
        }
        rounds++;
    }
    (void)cudaStreamDestroy(own);
    (void)cudaFreeHost(pinned);
    return (void *)rounds;
}

static void test_jobs_beside_host_work(void)
{
    ren_runtime_config config = cuda_config();
    ren_runtime *rt = cuda_runtime(&config);
    pthread_t threads[3];
    if (!rt) {
        return;
    }
    atomic_store(&stop_host, 0);
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(pthread_create(&threads[i], NULL, host_work, NULL), 0);
    }
    some_work(rt, 500);
    atomic_store(&stop_host, 1);
    for (int i = 0; i < 3; i++) {
        void *result = NULL;
        CU_ASSERT_EQUAL(pthread_join(threads[i], &result), 0);
        CU_ASSERT_TRUE((long)result > 0);
    }
    ren_test_shutdown(rt);
}

static void test_runtimes_one_after_another(void)
{
    ren_runtime_config config = cuda_config();
    int threads = ren_test_thread_count();
    int grown = 0;
    for (int i = 0; i < 10; i++) {
        ren_runtime *rt = cuda_runtime(&config);
        if (!rt) {
            return;
        }
        some_work(rt, 25);
        ren_test_shutdown(rt);
        if (i == 0) {
            threads = ren_test_thread_count(); /* the driver keeps threads of its own */
        }
        grown = ren_test_thread_count() - threads;
    }
    CU_ASSERT_EQUAL(grown, 0);
}

static void test_runtimes_side_by_side(void)
{
    ren_runtime_config config = cuda_config();
    ren_runtime *rt[4] = {NULL};
    for (int i = 0; i < 4; i++) {
        rt[i] = cuda_runtime(&config);
        if (!rt[i]) {
            return;
        }
    }
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 4; i++) {
            some_work(rt[i], 5);
        }
    }
    for (int i = 0; i < 4; i++) {
        ren_test_shutdown(rt[i]);
    }
}

static void test_context_of_the_host(void)
{
    ren_runtime_config config = cuda_config();
    ren_cuda_options cuda = ren_cuda_options_default();
    CUcontext own = NULL;
    CUcontext before;
    ren_runtime *rt = cuda_runtime(&config);
    if (!rt) {
        return;
    }
    ren_test_shutdown(rt);
    before = spin_current();
    int code = spin_context_create(&own, 0);
    if (code) {
        (void)printf("       cuCtxCreate: CUDA error %d\n", code);
    }
    CU_ASSERT_EQUAL_FATAL(code, 0);
    CU_ASSERT_EQUAL(spin_context_set(before), 0);
    cuda.context = own;
    config.cuda = &cuda;
    rt = cuda_runtime(&config);
    if (rt) {
        CU_ASSERT_PTR_EQUAL(spin_current(), before);
        some_work(rt, 25);
        CU_ASSERT_PTR_EQUAL(spin_current(), before);
        ren_test_shutdown(rt);
        CU_ASSERT_PTR_EQUAL(spin_current(), before);
    }
    CU_ASSERT_EQUAL(spin_context_destroy(own), 0);
}

static ren_status spin(void *user, const ren_device_io *io)
{
    uint64_t ns;
    memcpy(&ns, user, sizeof ns);
    return spin_for(io->native_stream, ns) ? REN_ERR_DEVICE : REN_OK;
}

static void test_short_job_ends_beside_a_long_one(void)
{
    ren_runtime_config config = cuda_config();
    ren_runtime *rt = cuda_runtime(&config);
    static uint64_t long_ns = 500000000;
    static uint64_t short_ns = 100000;
    static uint64_t warm_ns = 1;
    ren_job warm = {0};
    ren_job slow = {0};
    ren_job quick = {0};
    ren_job_desc d = ren_job_desc_default();
    if (!rt) {
        return;
    }
    d.kind = REN_JOB_DEVICE;
    d.enqueue = spin;
    d.enqueue_user = &warm_ns;
    d.stream = REN_STREAM_COMP_3;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &warm), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, warm, 20 * SECOND), REN_OK);
    d.enqueue_user = &long_ns;
    d.stream = REN_STREAM_COMP_1;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &slow), REN_OK);
    d.enqueue_user = &short_ns;
    d.stream = REN_STREAM_COMP_3;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &quick), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, quick, 20 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_job_status(rt, slow), REN_PENDING); /* 0.5 s against 0.1 ms */
    CU_ASSERT_EQUAL(ren_wait(rt, slow, 20 * SECOND), REN_OK);
    ren_test_shutdown(rt);
}

static const ren_test_case cases[] = {
    {"test_jobs_beside_host_work", test_jobs_beside_host_work},
    {"test_runtimes_one_after_another", test_runtimes_one_after_another},
    {"test_runtimes_side_by_side", test_runtimes_side_by_side},
    {"test_context_of_the_host", test_context_of_the_host},
    {"test_short_job_ends_beside_a_long_one", test_short_job_ends_beside_a_long_one},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "gpu/test_cuda_runtime", cases, REN_TEST_COUNT(cases), 120);
}
