/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_fault.c - a real, sticky fault of the GPU.
 *
 * Proves    a kernel that writes to an unmapped address completes every outstanding job with
 *           REN_ERR_DEVICE_LOST and its text, wakes who waits, refuses later posts at once, lets
 *           the runtime be shut down, and leaves the process able to work on the CPU device.
 * Fails     when a waiter sleeps on, a job completes twice or as done, or shutting down hangs.
 * Alone     the fault makes CUDA unusable for the rest of the process, so it is the only case.
 */
#include <CUnit/CUnit.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "../support/runtime.h"
#include "../support/test.h"
#include "spin.h"

#define SECOND UINT64_C(1000000000)
#define JOBS   64

static atomic_int lost;
static atomic_int other;

static void count_done(const ren_completion *completion, void *user)
{
    (void)user;
    if (completion->status == REN_ERR_DEVICE_LOST) {
        atomic_fetch_add(&lost, 1);
    } else {
        atomic_fetch_add(&other, 1);
    }
}

static ren_status enqueue_fault(void *user, const ren_device_io *io)
{
    (void)user;
    /* Held back a little, so that the others are outstanding when it strikes. */
    if (spin_for(io->native_stream, 50000000) || spin_fault(io->native_stream)) {
        return REN_ERR_DEVICE;
    }
    return REN_OK;
}

static void work_on_the_cpu(void)
{
    ren_runtime_config config = ren_runtime_config_default();
    ren_runtime *rt = NULL;
    unsigned char out[64] = {0};
    ren_buffer buffer;
    ren_job job;
    ren_job_desc d = ren_job_desc_default();
    ren_error err;
    config.device = REN_DEVICE_CPU;
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&config, &rt, &err), REN_OK);
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 1u << 20), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COMP_1, 64, &buffer), REN_OK);
    d.kind = REN_JOB_FILL;
    d.stream = REN_STREAM_COMP_1;
    d.fill.dst.buffer = buffer;
    d.fill.value = 5;
    d.fill.bytes = 64;
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    d.kind = REN_JOB_COPY;
    d.copy.src.buffer = buffer;
    d.copy.dst.host = out;
    d.copy.bytes = 64;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, job, 20 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(out[63], 5);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(rt, 20 * SECOND), REN_OK);
}

static void test_illegal_address_loses_the_device(void)
{
    ren_runtime_config config = ren_test_config();
    ren_runtime *rt = NULL;
    static ren_error err;
    ren_job fault = {0};
    ren_job_desc d = ren_job_desc_default();
    ren_status status;
    int accepted = 0;
    config.device = REN_DEVICE_CUDA;
    if (!config.module_path) {
        config.module_path = "build/test/libren_cuda.so";
    }
    status = ren_runtime_create(&config, &rt, &err);
    if (ren_test_no_gpu(status)) {
        ren_test_skip(err.text);
        return;
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    d.kind = REN_JOB_DEVICE;
    d.enqueue = enqueue_fault;
    d.stream = REN_STREAM_COMP_1;
    d.done = count_done;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &fault), REN_OK);
    d = ren_job_desc_default();
    d.kind = REN_JOB_BARRIER;
    d.wait = &fault;
    d.wait_count = 1;
    d.done = count_done;
    for (int i = 0; i < JOBS; i++) {
        d.stream = (ren_stream)(i % REN_STREAM_COUNT);
        status = ren_post(rt, &d, NULL);
        CU_ASSERT_TRUE(status == REN_OK || status == REN_ERR_DEVICE_LOST);
        accepted += status == REN_OK;
    }
    CU_ASSERT_EQUAL(ren_wait(rt, fault, 20 * SECOND), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 20 * SECOND), REN_ERR_DEVICE_LOST);
    (void)ren_pump(rt, 0, 0, 0, NULL);
    CU_ASSERT_EQUAL(atomic_load(&lost), accepted + 1);
    CU_ASSERT_EQUAL(atomic_load(&other), 0);
    memset(&err, 0, sizeof err);
    CU_ASSERT_EQUAL(ren_runtime_status(rt, &err), REN_ERR_DEVICE_LOST);
    (void)printf("       %s (%d)\n", err.text, (int)err.backend_code);
    CU_ASSERT_TRUE(err.text[0] != '\0');
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_ERR_DEVICE_LOST);
    status = ren_runtime_shutdown(rt, 20 * SECOND);
    CU_ASSERT_TRUE(status == REN_OK || status == REN_ERR_DEVICE_LOST);
    work_on_the_cpu();
}

static const ren_test_case cases[] = {
    {"test_illegal_address_loses_the_device", test_illegal_address_loses_the_device},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "gpu/test_cuda_fault", cases, REN_TEST_COUNT(cases), 90);
}
