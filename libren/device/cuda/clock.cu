/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/clock.cu - the device's clock, written to where the host reads it.
 *
 * Purpose   One thread stores %globaltimer, the nanosecond counter that all multiprocessors of a
 *           GPU share, into pinned host memory. Events would need a call of the host's for each
 *           time, and cannot be asked for one that a replayed graph has recorded.
 * Order     A kernel on a stream starts when all before it has ended and its stores are visible, so
 *           the counter is read between the commands around it. The fence is of system scope: its
 *           partner is the host, which reads the word after it has waited for a later event.
 * Units     ns; the step of the counter is the hardware's own.
 */
#include "launch.cuh"

typedef struct stamp_params {
    uint64_t *out;
} stamp_params;

static __global__ void stamp_kernel(stamp_params p)
{
    *(volatile uint64_t *)p.out = ren__clock_ns();
    __threadfence_system();
}

cudaError_t ren__cuda_k_stamp(cudaStream_t stream, uint64_t *out)
{
    stamp_params p = {out};
    return REN_LAUNCH(stamp_kernel, 1u, 1u, stream, p);
}
