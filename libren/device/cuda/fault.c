/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/fault.c - what a failed library call means.
 *
 * Purpose   One place that turns CUDA, cuBLAS and cuDNN codes into libren's statuses, keeps the
 *           first sticky fault with its file and line, and clears the last error when the device
 *           still works, so that a failure that was handled is not found again by the next call.
 * Threads   any.
 * Sticky    Codes after which the context cannot be used: faults of a kernel, a lost or reset
 *           device, a destroyed context, uncorrectable memory errors, and "unknown", which is what
 *           a device that fell off its bus answers. Anything else is taken as sticky too when the
 *           last error survives its clearing.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

ren_status ren__cuda_error(ren_error *err, ren_status status, int32_t code, const char *file,
                           int32_t line, const char *format, ...)
{
    if (err) {
        va_list args;
        err->status = status;
        err->backend_code = code;
        err->file = file;
        err->line = line;
        va_start(args, format);
        (void)vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return status;
}

/* Codes that toolkits older than 12.8 have no name for, but drivers answer all the same. */
#define ERROR_CONTAINED          226
#define ERROR_TENSOR_MEMORY_LEAK 721

static int is_sticky(cudaError_t code)
{
    switch ((int)code) {
    case cudaErrorCudartUnloading:      /* 4 */
    case cudaErrorDevicesUnavailable:   /* 46 */
    case cudaErrorDeviceUninitialized:  /* 201 */
    case cudaErrorECCUncorrectable:     /* 214 */
    case cudaErrorNvlinkUncorrectable:  /* 220 */
    case ERROR_CONTAINED:               /* 226 */
    case cudaErrorIllegalAddress:       /* 700 */
    case cudaErrorLaunchTimeout:        /* 702 */
    case cudaErrorContextIsDestroyed:   /* 709 */
    case cudaErrorAssert:               /* 710 */
    case cudaErrorHardwareStackError:   /* 714 */
    case cudaErrorIllegalInstruction:   /* 715 */
    case cudaErrorMisalignedAddress:    /* 716 */
    case cudaErrorInvalidAddressSpace:  /* 717 */
    case cudaErrorInvalidPc:            /* 718 */
    case cudaErrorLaunchFailure:        /* 719 */
    case ERROR_TENSOR_MEMORY_LEAK:      /* 721 */
    case cudaErrorMpsConnectionFailed:  /* 805 */
    case cudaErrorMpsRpcFailure:        /* 806 */
    case cudaErrorMpsServerNotReady:    /* 807 */
    case cudaErrorMpsMaxClientsReached: /* 808 */
    case cudaErrorMpsClientTerminated:  /* 810 */
    case cudaErrorExternalDevice:       /* 911 */
    case cudaErrorUnknown:              /* 999 */
        return 1;
    default:
        return 0;
    }
}

ren_status ren__cuda_convert(cudaError_t code)
{
    if (code == cudaSuccess) {
        return REN_OK;
    }
    if (is_sticky(code)) {
        return REN_ERR_DEVICE_LOST;
    }
    switch ((int)code) {
    case cudaErrorMemoryAllocation:
        return REN_ERR_NO_DEVICE_MEMORY;
    case cudaErrorNotSupported:
        return REN_ERR_UNSUPPORTED;
    default:
        return REN_ERR_DEVICE;
    }
}

void ren__cuda_set_lost(ren__device *dev, int32_t code, const char *file, int32_t line,
                        const char *text)
{
    (void)pthread_mutex_lock(&dev->lock);
    if (!atomic_load_explicit(&dev->lost, memory_order_relaxed)) {
        (void)ren__cuda_error(&dev->fault, REN_ERR_DEVICE_LOST, code, file, line, "%s", text);
        /* Relaxed: readers use it only to leave early; who reads the text takes the lock. */
        atomic_store_explicit(&dev->lost, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&dev->lock);
}

ren_status ren__cuda_fault(ren__device *dev, cudaError_t code, const char *call, const char *file,
                           int32_t line, ren_error *err)
{
    char text[256];
    ren_status status = ren__cuda_convert(code);
    (void)snprintf(text, sizeof text, "%.120s: %.60s (CUDA error %d)", call,
                   cudaGetErrorString(code), (int)code);
    (void)cudaGetLastError();
    if (status != REN_ERR_DEVICE_LOST && is_sticky(cudaPeekAtLastError())) {
        status = REN_ERR_DEVICE_LOST;
    }
    if (status == REN_ERR_DEVICE_LOST && dev) {
        ren__cuda_set_lost(dev, (int32_t)code, file, line, text);
    }
    if (dev && dev->host.log) {
        dev->host.log(dev->host.user, status == REN_ERR_DEVICE_LOST ? REN_LOG_ERROR : REN_LOG_INFO,
                      text);
    }
    return ren__cuda_error(err, status, (int32_t)code, file, line, "%s", text);
}

/* A library's failure, told where it is none of the answers that a choice of algorithms expects. */
static ren_status tell(ren__device *dev, ren_error *err, ren_status status, int32_t code,
                       const char *file, int32_t line, const char *call, const char *what)
{
    char text[256];
    (void)snprintf(text, sizeof text, "%.120s: %.60s (error %d)", call, what, (int)code);
    if (status == REN_ERR_DEVICE_LOST) {
        ren__cuda_set_lost(dev, code, file, line, text);
    }
    if (dev->host.log && (status == REN_ERR_DEVICE_LOST || status == REN_ERR_DEVICE)) {
        dev->host.log(dev->host.user, status == REN_ERR_DEVICE_LOST ? REN_LOG_ERROR : REN_LOG_INFO,
                      text);
    }
    return ren__cuda_error(err, status, code, file, line, "%s", text);
}

/* A library that failed inside CUDA reports a code of its own; whether the device is lost shows in
 * CUDA's last error, which the library leaves behind in its own copy of the runtime: the next call
 * of ours meets the same fault. */
ren_status ren__cuda_fault_blas(ren__device *dev, cublasStatus_t code, const char *call,
                                const char *file, int32_t line, ren_error *err)
{
    ren_status status = REN_ERR_DEVICE;
    if (code == CUBLAS_STATUS_ALLOC_FAILED) {
        status = REN_ERR_NO_DEVICE_MEMORY;
    } else if (code == CUBLAS_STATUS_NOT_SUPPORTED) {
        status = REN_ERR_UNSUPPORTED;
    }
    if (is_sticky(cudaGetLastError())) {
        status = REN_ERR_DEVICE_LOST;
    }
    return tell(dev, err, status, (int32_t)code, file, line, call, cublasLtGetStatusName(code));
}

ren_status ren__cuda_fault_dnn(ren__device *dev, cudnnStatus_t code, const char *call,
                               const char *file, int32_t line, ren_error *err)
{
    ren_status status = REN_ERR_DEVICE;
    int group = (int)code / 1000 * 1000; /* cuDNN 9 numbers its codes by thousands */
    if (code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) {
        status = REN_ERR_NO_DEVICE_MEMORY;
    } else if (group == (int)CUDNN_STATUS_NOT_SUPPORTED / 1000 * 1000) {
        status = REN_ERR_UNSUPPORTED;
    }
    if (is_sticky(cudaGetLastError())) {
        status = REN_ERR_DEVICE_LOST;
    }
    return tell(dev, err, status, (int32_t)code, file, line, call, cudnnGetErrorString(code));
}
