/* SPDX-License-Identifier: MIT */
/* tests/gpu/spin.h - a few kernels for tests and benchmarks, given as PTX text.
 *
 * Purpose   Hold a stream for a known time, launch next to nothing, or break the device, without a
 *           device compiler in the test build.
 * Threads   one at a time; the context they are used with must be current.
 * Returns   0, or a CUDA error code.
 */
#ifndef REN_TEST_GPU_SPIN_H
#define REN_TEST_GPU_SPIN_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

/* Load the kernels into the current context. */
int spin_load(void);

int spin_for(void *stream, uint64_t nanoseconds);
int spin_empty(void *stream);
/* Adds 1 to *counter (device or mapped memory). */
int spin_count(void *stream, uint64_t *counter);
/* Writes to an address that is not mapped: a sticky fault. */
int spin_fault(void *stream);
/* Let the stream write *address (mapped host memory) when it gets there. */
int spin_write_value(void *stream, uint64_t *address, uint64_t value);

/* The driver's context calls. */
CUcontext spin_current(void);
int spin_context_create(CUcontext *out, int device);
int spin_context_destroy(CUcontext context);
int spin_context_set(CUcontext context);

#endif
