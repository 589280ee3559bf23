/* SPDX-License-Identifier: MIT */
/* tests/support/runtime.h - making the runtime that a test talks to.
 *
 * Purpose   One source for all devices: the device comes from REN_TEST_DEVICE (cpu, cuda; cpu
 * without it).
 */
#ifndef REN_TEST_SUPPORT_RUNTIME_H
#define REN_TEST_SUPPORT_RUNTIME_H

#include "../../host_api/ren.h"

ren_device_kind ren_test_device(void);

/* Defaults for the device under test: 64 MiB reserved, so that buffers need no driver call. */
ren_runtime_config ren_test_config(void);

/* NULL after a failed CUnit assertion that prints the text. `config` NULL = ren_test_config(). */
ren_runtime *ren_test_runtime(const ren_runtime_config *config);

/* 1 for what ren_runtime_create returns where there is no CUDA device to test. */
int ren_test_no_gpu(ren_status status);

/* Shut down and assert that it worked. */
void ren_test_shutdown(ren_runtime *rt);

/* Fill a new buffer with `value` on one stream, copy it to `out` on another, and assert that it is
 * there. */
void ren_test_round_trip(ren_runtime *rt, unsigned char *out, size_t bytes, uint32_t value,
                         ren_stream first, ren_stream second);

/* Threads of this process. */
int ren_test_thread_count(void);

/* Open file descriptors of this process. */
int ren_test_fd_count(void);

#endif
