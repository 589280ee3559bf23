/* SPDX-License-Identifier: MIT */
/* libren/core/open_device.c - which device a runtime gets, and why not another.
 *
 * Purpose   Choose the table (the CPU device, or the CUDA module opened with dlopen), open the
 *           device, and say in words what was wrong where it cannot be had.
 * Threads   the creating thread.
 * Lifetime  a module stays loaded for the rest of the process: the device libraries behind it start
 *           threads and register handlers that do not survive an unload.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "runtime.h"

#if defined(REN_TESTING) && REN_TESTING
const ren__device_api *ren__test_wrap(const ren__device_api *inner);
#define WRAP(api) ren__test_wrap(api)
#else
#define WRAP(api) (api)
#endif

#define MODULE_NAME "libren_cuda.so"

/* The module beside the object that holds libren; just its name when that is not known. */
static void path_beside_libren(char *out, size_t bytes)
{
    Dl_info info;
    const char *slash = NULL;
    union {
        const ren__device_api *(*fn)(void);
        const void *ptr;
    } self = {ren__device_cpu};
    if (dladdr(self.ptr, &info) && info.dli_fname) {
        slash = strrchr(info.dli_fname, '/');
    }
    if (slash) {
        (void)snprintf(out, bytes, "%.*s/%s", (int)(slash - info.dli_fname), info.dli_fname,
                       MODULE_NAME);
    } else {
        (void)snprintf(out, bytes, "%s", MODULE_NAME);
    }
}

static ren_status load_cuda(ren_runtime *rt, const ren__device_api **out, ren_error *err)
{
    char path[1024];
    union {
        void *ptr;
        ren__device_module_open_fn fn;
    } symbol;
    if (rt->config.module_path) {
        (void)snprintf(path, sizeof path, "%s", rt->config.module_path);
    } else {
        path_beside_libren(path, sizeof path);
    }
    rt->module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!rt->module) {
        const char *reason = dlerror();
        return REN__FAIL(
            err, REN_ERR_NO_DEVICE,
            "the CUDA module cannot be loaded (%.160s); build it with `make cuda` or set "
            "config.module_path",
            reason ? reason : path);
    }
    symbol.ptr = dlsym(rt->module, REN__DEVICE_MODULE_SYMBOL);
    if (!symbol.ptr) {
        return REN__FAIL(err, REN_ERR_NO_DEVICE,
                         "%.120s is not a device module: it has no function %s", path,
                         REN__DEVICE_MODULE_SYMBOL);
    }
    *out = symbol.fn(REN__DEVICE_ABI);
    if (!*out || (*out)->abi != REN__DEVICE_ABI ||
        (*out)->struct_size != (uint32_t)sizeof(ren__device_api)) {
        return REN__FAIL(err, REN_ERR_NO_DEVICE,
                         "%.120s is a device module of another version of libren: this one's "
                         "tables have the number %u",
                         path, REN__DEVICE_ABI);
    }
    return REN_OK;
}

static ren_status open_table(ren_runtime *rt, const ren__device_api *api, ren_error *err)
{
    ren__device_config config;
    ren_status status;
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    config.device_index = rt->config.device_index;
    config.lanes = rt->lanes_count;
    config.cpu_threads = rt->config.cpu_threads;
    config.deterministic = rt->config.deterministic;
    config.memory_limit_bytes = rt->config.device_memory_limit_bytes;
    if (rt->config.cuda) {
        config.autotune = rt->config.cuda->autotune && !rt->config.deterministic;
        config.cuda_context = rt->config.cuda->context;
        config.cuda_stream_priority = rt->config.cuda->stream_priority;
    }
    rt->api = WRAP(api);
    status = rt->api->open(&config, &rt->services, &rt->dev, err);
    if (status != REN_OK) {
        rt->dev = NULL;
        return status;
    }
    memset(&rt->caps, 0, sizeof rt->caps);
    rt->caps.struct_size = (uint32_t)sizeof rt->caps;
    rt->api->caps(rt->dev, &rt->caps);
    rt->wakes_early = !rt->caps.host_reads_device;
    return REN_OK;
}

ren_status ren__device_select(ren_runtime *rt, ren_error *err)
{
    const ren__device_api *api = NULL;
    ren_error reason;
    ren_status status;
    memset(&reason, 0, sizeof reason);
    if (rt->config.device != REN_DEVICE_CPU) {
        status = load_cuda(rt, &api, &reason);
        if (status == REN_OK) {
            status = open_table(rt, api, &reason);
        }
        if (status == REN_OK) {
            return REN_OK;
        }
        if (rt->config.device == REN_DEVICE_CUDA) {
            if (err) {
                *err = reason; /* with the back end's code, file and line */
                err->status = status;
            }
            return status;
        }
        ren__runtime_log(rt, REN_LOG_INFO, "using the CPU: %s", reason.text);
        rt->config.device_index = 0;
    }
    if (rt->config.device_index != 0) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT,
                         "there is one CPU device: config.device_index must be 0, not %u",
                         rt->config.device_index);
    }
    return open_table(rt, ren__device_cpu(), err);
}
