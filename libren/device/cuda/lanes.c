/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/lanes.c - copies, fills, host calls and stamps on the device's streams.
 *
 * Purpose   The plain entries of the device table: each is one CUDA call on the lane's stream.
 * Threads   the submitter.
 * Memory    nothing is allocated.
 * Not here  events, see events.c.
 */
#include "internal.h"
#include "kernels.h"

#define SMALL_COPY 1024u /* bytes, most of a copy by a kernel */

/* May a kernel read and write this address? */
static int is_reached(const void *ptr)
{
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, ptr) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return attributes.type == cudaMemoryTypeDevice ||
           (attributes.type == cudaMemoryTypeHost && attributes.devicePointer == ptr);
}

/* A few bytes of another lane than the one for transfers, which is the first where there are
 * several: there a kernel could have to wait for room on the device, while a copy engine runs
 * beside everything. */
static int copies_by_kernel(const ren__device *dev, uint32_t lane, const void *dst, const void *src,
                            uint64_t bytes)
{
    return bytes <= SMALL_COPY && (lane != 0 || dev->lanes == 1) && is_reached(dst) &&
           is_reached(src);
}

ren_status ren__cuda_copy(ren__device *dev, uint32_t lane, void *dst, const void *src,
                          uint64_t bytes)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    if (copies_by_kernel(dev, lane, dst, src, bytes)) {
        status = REN__CUDA(
            dev, NULL, ren__cuda_k_small_copy(dev->lane[lane].stream, dst, src, (uint32_t)bytes));
    } else {
        status = REN__CUDA(
            dev, NULL,
            cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDefault, dev->lane[lane].stream));
    }
    ren__cuda_leave(dev, &scope);
    return status;
}

ren_status ren__cuda_fill(ren__device *dev, uint32_t lane, void *dst, uint32_t byte_value,
                          uint64_t bytes)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(
        dev, NULL,
        cudaMemsetAsync(dst, (int)(byte_value & 0xffu), (size_t)bytes, dev->lane[lane].stream));
    ren__cuda_leave(dev, &scope);
    return status;
}

ren_status ren__cuda_call(ren__device *dev, uint32_t lane, ren__call_fn fn, void *user,
                          ren_status *out_status)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = fn(user, (void *)dev->lane[lane].stream);
    if (status != REN_OK) {
        *out_status = status;
    }
    ren__cuda_leave(dev, &scope);
    return REN_OK;
}

ren_status ren__cuda_stamp(ren__device *dev, uint32_t lane, uint64_t *out)
{
    ren__cuda_scope scope;
    ren_status status = ren__cuda_enter(dev, &scope);
    if (status != REN_OK) {
        return status;
    }
    status = REN__CUDA(dev, NULL, ren__cuda_k_stamp(dev->lane[lane].stream, out));
    ren__cuda_leave(dev, &scope);
    return status;
}
