/* SPDX-License-Identifier: MIT */
/* tests/support/runtime.c - making the runtime that a test talks to. */
#include "runtime.h"

#include <CUnit/CUnit.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ren_device_kind ren_test_device(void)
{
    const char *name = getenv("REN_TEST_DEVICE");
    return name && strcmp(name, "cuda") == 0 ? REN_DEVICE_CUDA : REN_DEVICE_CPU;
}

ren_runtime_config ren_test_config(void)
{
    ren_runtime_config config = ren_runtime_config_default();
    config.device = ren_test_device();
    config.module_path = getenv("REN_TEST_MODULE");
    return config;
}

ren_runtime *ren_test_runtime(const ren_runtime_config *config)
{
    ren_runtime_config defaults = ren_test_config();
    ren_runtime *rt = NULL;
    ren_error err;
    ren_status status = ren_runtime_create(config ? config : &defaults, &rt, &err);
    CU_ASSERT_EQUAL(status, REN_OK);
    if (status != REN_OK) {
        (void)fprintf(stderr, "ren_runtime_create: %s: %s\n", ren_status_name(status), err.text);
        return NULL;
    }
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 64u << 20), REN_OK);
    return rt;
}

int ren_test_no_gpu(ren_status status)
{
    return status == REN_ERR_NO_DEVICE || status == REN_ERR_DRIVER_TOO_OLD ||
           status == REN_ERR_NO_GPU;
}

void ren_test_shutdown(ren_runtime *rt)
{
    ren_status status = ren_runtime_shutdown(rt, UINT64_C(20000000000));
    CU_ASSERT_EQUAL(status, REN_OK);
    if (status != REN_OK) {
        (void)fprintf(stderr, "ren_runtime_shutdown: %s\n", ren_status_name(status));
    }
}

void ren_test_round_trip(ren_runtime *rt, unsigned char *out, size_t bytes, uint32_t value,
                         ren_stream first, ren_stream second)
{
    ren_buffer buffer;
    ren_job job = {0};
    ren_job_desc d = ren_job_desc_default();
    CU_ASSERT_EQUAL_FATAL(ren_buffer_alloc(rt, first, bytes, &buffer), REN_OK);
    d.kind = REN_JOB_FILL;
    d.stream = first;
    d.fill.dst.buffer = buffer;
    d.fill.value = value;
    d.fill.bytes = bytes;
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    d = ren_job_desc_default();
    d.kind = REN_JOB_COPY;
    d.stream = second;
    d.copy.src.buffer = buffer;
    d.copy.dst.host = out;
    d.copy.bytes = bytes;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, job, UINT64_C(20000000000)), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_OK);
    CU_ASSERT_EQUAL(out[0], value);
    CU_ASSERT_EQUAL(out[bytes - 1u], value);
}

static int count_entries(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;
    if (!dir) {
        return -1;
    }
    while (readdir(dir)) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

int ren_test_thread_count(void)
{
    return count_entries("/proc/self/task");
}

int ren_test_fd_count(void)
{
    return count_entries("/proc/self/fd");
}
