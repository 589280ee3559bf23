/* SPDX-License-Identifier: MIT */
/* tests/gpu/lost.c - breaking a GPU, and going on; see lost.h. */
#include "lost.h"

#include <CUnit/CUnit.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "../golden/nets.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "spin.h"

#define SECOND UINT64_C(1000000000)
#define JOBS   64
#define BYTES  4096u

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

ren_runtime_config lost_config(void)
{
    ren_runtime_config config = ren_test_config();
    config.device = REN_DEVICE_CUDA;
    if (!config.module_path) {
        config.module_path = "build/test/libren_cuda.so";
    }
    return config;
}

void lost_break(ren_runtime *rt)
{
    ren_error err;
    ren_job fault = {0};
    ren_job_desc d = ren_job_desc_default();
    ren_status status;
    int accepted = 0;
    atomic_store(&lost, 0);
    atomic_store(&other, 0);
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
}

static void use_buffers(ren_runtime *rt)
{
    static unsigned char out[BYTES];
    memset(out, 0, sizeof out);
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 1u << 20), REN_OK);
    ren_test_round_trip(rt, out, BYTES, 5, REN_STREAM_COMP_1, REN_STREAM_COMP_1);
}

void lost_work(ren_runtime *rt)
{
    use_buffers(rt);
    net_learn(rt, NET_LENET, 30);
}

ren_status lost_again(const ren_runtime_config *config, const char *what)
{
    ren_runtime_config again = *config;
    ren_runtime *rt = (ren_runtime *)&again;
    ren_error err;
    memset(&err, 0, sizeof err);
    ren_status status = ren_runtime_create(&again, &rt, &err);
    (void)printf("       a new runtime %s: %s%s%s (%d)\n", what, ren_status_name(status),
                 status == REN_OK ? "" : ": ", err.text, (int)err.backend_code);
    if (status == REN_OK) {
        lost_work(rt);
        CU_ASSERT_EQUAL(ren_runtime_shutdown(rt, 20 * SECOND), REN_OK);
    } else {
        CU_ASSERT_TRUE(status == REN_ERR_DEVICE_LOST || status == REN_ERR_NO_GPU);
        CU_ASSERT_PTR_NULL(rt);
        CU_ASSERT_EQUAL(err.status, status);
        CU_ASSERT_TRUE(err.text[0] != '\0');
        CU_ASSERT_NOT_EQUAL(err.backend_code, 0);
    }
    again.device = REN_DEVICE_AUTO;
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&again, &rt, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_device_kind(rt),
                    status == REN_OK ? REN_DEVICE_CUDA : REN_DEVICE_CPU);
    lost_work(rt);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(rt, 20 * SECOND), REN_OK);
    return status;
}
