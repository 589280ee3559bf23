/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/driver.c - is there an NVIDIA driver, is it new enough, does it see a GPU?
 *
 * Purpose   Put these questions to libcuda.so.1 itself, before the first call of the CUDA runtime:
 *           that one gives several of the answers the same code, and is not made for a libcuda that
 *           is a stub. Each answer has a status and a text of its own.
 * Threads   any.
 * Lifetime  the driver's library stays loaded; it does not survive being unloaded.
 */
#include <dlfcn.h>
#include <string.h>

#include "internal.h"

#define LIBRARY          "libcuda.so.1"
#define TOO_OLD_FOR_THIS 35 /* cudaErrorInsufficientDriver; CUresult has no name for it */

typedef struct questions {
    CUresult (*version)(int *out);
    CUresult (*init)(unsigned flags);
    CUresult (*count)(int *out);
    CUresult (*text)(CUresult code, const char **out); /* may be NULL */
} questions;

static ren_status load(questions *ask, ren_error *err)
{
    const struct {
        const char *name;
        void *out;
        int needed;
    } wanted[] = {
        {"cuInit", &ask->init, 1},
        {"cuDriverGetVersion", &ask->version, 1},
        {"cuDeviceGetCount", &ask->count, 1},
        {"cuGetErrorString", &ask->text, 0},
    };
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        return ren__cuda_error(err, REN_ERR_NO_DEVICE, 0, __FILE__, __LINE__,
                               "no NVIDIA driver: " LIBRARY " is not installed or does not load "
                               "(%.120s)",
                               reason ? reason : "no reason given");
    }
    memset(ask, 0, sizeof *ask);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *address = dlsym(library, wanted[i].name);
        if (!address && wanted[i].needed) {
            return ren__cuda_error(err, REN_ERR_NO_DEVICE, 0, __FILE__, __LINE__,
                                   "no NVIDIA driver: the " LIBRARY " that is found is none, it "
                                   "has no function %s",
                                   wanted[i].name);
        }
        memcpy(wanted[i].out, &address, sizeof address);
    }
    return REN_OK;
}

static ren_status sees_no_gpu(ren_error *err, int code)
{
    return ren__cuda_error(err, REN_ERR_NO_GPU, code, __FILE__, __LINE__,
                           "the NVIDIA driver sees no GPU; CUDA_VISIBLE_DEVICES may hide it");
}

/* What a driver that does not start says. `text` may be NULL. */
static ren_status refused(ren_error *err, int code, const char *text)
{
    switch (code) {
    case CUDA_ERROR_NO_DEVICE:
        return sees_no_gpu(err, code);
    case TOO_OLD_FOR_THIS:
        return ren__cuda_error(err, REN_ERR_DRIVER_TOO_OLD, code, __FILE__, __LINE__,
                               "the NVIDIA driver is too old (CUDA error %d)", code);
    case CUDA_ERROR_STUB_LIBRARY:
        return ren__cuda_error(err, REN_ERR_NO_DEVICE, code, __FILE__, __LINE__,
                               "no NVIDIA driver: the " LIBRARY " that is found is the CUDA "
                               "toolkit's stub for linking (CUDA error %d)",
                               code);
    default:
        return ren__cuda_error(err, REN_ERR_NO_DEVICE, code, __FILE__, __LINE__,
                               "the NVIDIA driver does not start: %.120s (CUDA error %d)",
                               text ? text : "no reason given", code);
    }
}

static ren_status ask_driver(const questions *ask, int *out_count, ren_error *err)
{
    const int needed = CUDART_VERSION / 1000 * 1000; /* any driver of the same major version */
    const char *text = NULL;
    int version = 0;
    CUresult code = ask->version(&version); /* answers before cuInit, too */
    if (code == CUDA_SUCCESS && version < needed) {
        return ren__cuda_error(err, REN_ERR_DRIVER_TOO_OLD, version, __FILE__, __LINE__,
                               "the NVIDIA driver is too old: it supports CUDA %d.%d, this module "
                               "needs %d.%d or later",
                               version / 1000, version % 1000 / 10, needed / 1000,
                               needed % 1000 / 10);
    }
    code = code == CUDA_SUCCESS ? ask->init(0) : code;
    code = code == CUDA_SUCCESS ? ask->count(out_count) : code;
    if (code == CUDA_SUCCESS) {
        return *out_count > 0 ? REN_OK : sees_no_gpu(err, 0);
    }
    if (ask->text) {
        (void)ask->text(code, &text);
    }
    return refused(err, (int)code, text);
}

ren_status ren__cuda_look_for_driver(int *out_count, ren_error *err)
{
    questions ask;
    ren_status status = load(&ask, err);
    if (status == REN_OK) {
        status = ask_driver(&ask, out_count, err);
    }
    if (status == REN_OK) {
        cudaError_t code = cudaGetDeviceCount(out_count);
        if (code != cudaSuccess) {
            (void)cudaGetLastError();
            return refused(err, (int)code, cudaGetErrorString(code));
        }
        status = *out_count > 0 ? REN_OK : sees_no_gpu(err, 0);
    }
    return status;
}
