/* SPDX-License-Identifier: MIT */
/* tests/unit/test_cuda_codes.c - what a code of CUDA's means to a job (failure row 61).
 *
 * Proves    every code after which CUDA answers nothing else any more, or that a GPU gives which
 *           fell off its bus, loses the device; every other one does not; the first fault's text is
 *           kept; a harmless failure is cleared, and one that survives its clearing is none.
 * Fails if  a code is added to or taken from the table, or the CUDA runtime's last error is not
 *           read or not cleared.
 * How       the module's own object is linked with a CUDA runtime of this file's, so no GPU is
 *           needed; without a toolkit's headers the cases are skipped.
 */
#include "../support/test.h"

#include <string.h>

#if defined(REN_TEST_CUDA_HEADERS)

#include "../../libren/device/cuda/internal.h"

/* ------------------------------------------------------------------ a CUDA runtime */

static cudaError_t last_error;
static int survives; /* 1 = the last error is sticky: reading it does not clear it */

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = survives ? code : cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorString(cudaError_t code)
{
    return code == cudaSuccess ? "no error" : "an error";
}

const char *cublasLtGetStatusName(cublasStatus_t code)
{
    return code == CUBLAS_STATUS_SUCCESS ? "no error" : "an error of cuBLAS";
}

const char *cudnnGetErrorString(cudnnStatus_t code)
{
    return code == CUDNN_STATUS_SUCCESS ? "no error" : "an error of cuDNN";
}

/* ------------------------------------------------------------------ a device */

static int errors_logged;

static void count_log(void *user, ren_log_level level, const char *text)
{
    (void)user;
    (void)text;
    errors_logged += level == REN_LOG_ERROR;
}

static ren__device *fresh(cudaError_t last, int sticky)
{
    static ren__device dev;
    memset(&dev, 0, sizeof dev);
    CU_ASSERT_EQUAL(pthread_mutex_init(&dev.lock, NULL), 0);
    dev.host.log = count_log;
    errors_logged = 0;
    last_error = last;
    survives = sticky;
    return &dev;
}

/* ------------------------------------------------------------------ cases */

static const int lost[] = {
    4,   /* the driver is shutting down */
    46,  /* the device is busy or unavailable */
    201, /* no context, or one that is no more */
    214, /* ECC error that cannot be corrected */
    220, /* NVLink error that cannot be corrected */
    226, /* exception contained on the device */
    700, /* illegal address */
    702, /* a kernel ran past the driver's limit */
    709, /* the context is destroyed */
    710, /* assertion in a kernel */
    714, /* hardware stack error */
    715, /* illegal instruction */
    716, /* misaligned address */
    717, /* invalid address space */
    718, /* invalid program counter */
    719, /* launch failure */
    721, /* tensor memory not given back */
    805, /* MPS: no connection */
    806, /* MPS: server call failed */
    807, /* MPS: server not ready */
    808, /* MPS: too many clients */
    810, /* MPS: client terminated */
    911, /* external device */
    999, /* unknown: what a GPU answers that fell off its bus */
};

static ren_status meaning(int code)
{
    for (size_t i = 0; i < REN_TEST_COUNT(lost); i++) {
        if (lost[i] == code) {
            return REN_ERR_DEVICE_LOST;
        }
    }
    return code == 0     ? REN_OK
           : code == 2   ? REN_ERR_NO_DEVICE_MEMORY
           : code == 801 ? REN_ERR_UNSUPPORTED
                         : REN_ERR_DEVICE;
}

/* All that a later version of CUDA may answer as well. */
static void test_convert_every_code(void)
{
    for (int code = 0; code < 11000; code++) {
        CU_ASSERT_EQUAL(ren__cuda_convert((cudaError_t)code), meaning(code));
    }
    CU_ASSERT_EQUAL(ren__cuda_convert((cudaError_t)-1), REN_ERR_DEVICE);
}

static void test_fault_that_loses_the_device(void)
{
    for (size_t i = 0; i < REN_TEST_COUNT(lost); i++) {
        ren_error err;
        ren__device *dev = fresh((cudaError_t)lost[i], 1);
        memset(&err, 0, sizeof err);
        CU_ASSERT_EQUAL(ren__cuda_fault(dev, (cudaError_t)lost[i], "first()", "f.c", 7, &err),
                        REN_ERR_DEVICE_LOST);
        CU_ASSERT_EQUAL(err.status, REN_ERR_DEVICE_LOST);
        CU_ASSERT_EQUAL(err.backend_code, lost[i]);
        CU_ASSERT_EQUAL(err.line, 7);
        CU_ASSERT_STRING_EQUAL(err.file, "f.c");
        CU_ASSERT_EQUAL(atomic_load(&dev->lost), 1);
        CU_ASSERT_EQUAL(errors_logged, 1);
        /* What comes after it does not take its place. */
        CU_ASSERT_EQUAL(ren__cuda_fault(dev, cudaErrorUnknown, "second()", "g.c", 9, NULL),
                        REN_ERR_DEVICE_LOST);
        CU_ASSERT_EQUAL(dev->fault.backend_code, lost[i]);
        CU_ASSERT_PTR_NOT_NULL(strstr(dev->fault.text, "first()"));
    }
}

static void test_fault_that_does_not(void)
{
    static const cudaError_t harmless[] = {
        cudaErrorInvalidValue,
        cudaErrorMemoryAllocation,
        cudaErrorInvalidConfiguration,
        cudaErrorInvalidResourceHandle,
        cudaErrorNotReady,
        cudaErrorLaunchOutOfResources,
        cudaErrorNotSupported,
        cudaErrorStreamCaptureInvalidated,
        cudaErrorStreamCaptureImplicit,
        cudaErrorGraphExecUpdateFailure,
    };
    for (size_t i = 0; i < REN_TEST_COUNT(harmless); i++) {
        ren_error err;
        ren__device *dev = fresh(harmless[i], 0);
        memset(&err, 0, sizeof err);
        CU_ASSERT_EQUAL(ren__cuda_fault(dev, harmless[i], "call()", "f.c", 7, &err),
                        meaning((int)harmless[i]));
        CU_ASSERT_EQUAL(err.backend_code, (int)harmless[i]);
        CU_ASSERT_EQUAL(atomic_load(&dev->lost), 0);
        CU_ASSERT_EQUAL(last_error, cudaSuccess); /* the next call is not blamed (row 7) */
        CU_ASSERT_EQUAL(errors_logged, 0);
        /* The same code, but the last error stays what it is: there is a fault behind it. */
        dev = fresh(cudaErrorIllegalAddress, 1);
        CU_ASSERT_EQUAL(ren__cuda_fault(dev, harmless[i], "call()", "f.c", 7, &err),
                        REN_ERR_DEVICE_LOST);
        CU_ASSERT_EQUAL(atomic_load(&dev->lost), 1);
    }
}

/* A library's code says nothing of the device; CUDA's last error does. */
static void test_fault_of_a_library(void)
{
    ren__device *dev = fresh(cudaSuccess, 0);
    CU_ASSERT_EQUAL(
        ren__cuda_fault_blas(dev, CUBLAS_STATUS_EXECUTION_FAILED, "blas()", "f.c", 7, NULL),
        REN_ERR_DEVICE);
    CU_ASSERT_EQUAL(ren__cuda_fault_blas(dev, CUBLAS_STATUS_ALLOC_FAILED, "blas()", "f.c", 7, NULL),
                    REN_ERR_NO_DEVICE_MEMORY);
    CU_ASSERT_EQUAL(
        ren__cuda_fault_blas(dev, CUBLAS_STATUS_NOT_SUPPORTED, "blas()", "f.c", 7, NULL),
        REN_ERR_UNSUPPORTED);
    CU_ASSERT_EQUAL(
        ren__cuda_fault_dnn(dev, CUDNN_STATUS_EXECUTION_FAILED, "dnn()", "f.c", 7, NULL),
        REN_ERR_DEVICE);
    CU_ASSERT_EQUAL(ren__cuda_fault_dnn(dev, CUDNN_STATUS_NOT_SUPPORTED, "dnn()", "f.c", 7, NULL),
                    REN_ERR_UNSUPPORTED);
    CU_ASSERT_EQUAL(atomic_load(&dev->lost), 0);
    for (size_t i = 0; i < REN_TEST_COUNT(lost); i++) {
        dev = fresh((cudaError_t)lost[i], 1);
        CU_ASSERT_EQUAL(
            ren__cuda_fault_blas(dev, CUBLAS_STATUS_EXECUTION_FAILED, "blas()", "f.c", 7, NULL),
            REN_ERR_DEVICE_LOST);
        CU_ASSERT_EQUAL(atomic_load(&dev->lost), 1);
        dev = fresh((cudaError_t)lost[i], 1);
        CU_ASSERT_EQUAL(
            ren__cuda_fault_dnn(dev, CUDNN_STATUS_EXECUTION_FAILED, "dnn()", "f.c", 7, NULL),
            REN_ERR_DEVICE_LOST);
        CU_ASSERT_EQUAL(atomic_load(&dev->lost), 1);
    }
}

#else

static void skip(void)
{
    ren_test_skip("there are no CUDA headers");
}

#define test_convert_every_code          skip
#define test_fault_that_loses_the_device skip
#define test_fault_that_does_not         skip
#define test_fault_of_a_library          skip

#endif

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_convert_every_code", test_convert_every_code},
        {"test_fault_that_loses_the_device", test_fault_that_loses_the_device},
        {"test_fault_that_does_not", test_fault_that_does_not},
        {"test_fault_of_a_library", test_fault_of_a_library},
    };
    return ren_test_main(argc, argv, "unit/test_cuda_codes", cases, REN_TEST_COUNT(cases), 30);
}
