/* SPDX-License-Identifier: MIT */
/* tests/gpu/spin.c - a few kernels for tests and benchmarks, given as PTX text; see spin.h. */
#include "spin.h"

#include <stdlib.h>
#include <string.h>

static const char ptx[] = ".version 7.0\n"
                          ".target sm_75\n"
                          ".address_size 64\n"
                          ".visible .entry spin_for(.param .u64 p_ns) {\n"
                          "  .reg .u64 %a, %b, %ns;\n"
                          "  .reg .pred %more;\n"
                          "  ld.param.u64 %ns, [p_ns];\n"
                          "  mov.u64 %a, %globaltimer;\n"
                          "again:\n"
                          "  mov.u64 %b, %globaltimer;\n"
                          "  sub.u64 %b, %b, %a;\n"
                          "  setp.lt.u64 %more, %b, %ns;\n"
                          "  @%more bra again;\n"
                          "  ret;\n"
                          "}\n"
                          ".visible .entry spin_count(.param .u64 p_at) {\n"
                          "  .reg .u64 %at, %v;\n"
                          "  ld.param.u64 %at, [p_at];\n"
                          "  ld.global.u64 %v, [%at];\n"
                          "  add.u64 %v, %v, 1;\n"
                          "  st.global.u64 [%at], %v;\n"
                          "  ret;\n"
                          "}\n"
                          ".visible .entry spin_fault() {\n"
                          "  .reg .u64 %at;\n"
                          "  .reg .u32 %v;\n"
                          "  mov.u64 %at, 64;\n"
                          "  mov.u32 %v, 1;\n"
                          "  st.global.u32 [%at], %v;\n"
                          "  ret;\n"
                          "}\n"
                          ".visible .entry spin_empty() {\n"
                          "  ret;\n"
                          "}\n";

static struct {
    CUresult (*load)(CUmodule *out, const void *image);
    CUresult (*get)(CUfunction *out, CUmodule module, const char *name);
    CUresult (*launch)(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, CUstream stream, void **arguments,
                       void **extra);
    CUresult (*write_value)(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags);
    CUresult (*get_current)(CUcontext *out);
    CUresult (*set_current)(CUcontext context);
    CUresult (*create)(CUcontext *out, unsigned flags, CUdevice device);
    CUresult (*destroy)(CUcontext context);
} driver;

static struct {
    CUcontext of;
    CUmodule module;
    CUfunction spin, empty, count, fault;
} kernels;

/* `version` picks the signature: a name may have had several. */
static int fetch(const char *name, unsigned version, void *out)
{
    void *address = NULL;
    enum cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t code =
        cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
#else
    cudaError_t code = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
    (void)version;
#endif
    if (code != cudaSuccess || !address) {
        return code == cudaSuccess ? (int)cudaErrorSymbolNotFound : (int)code;
    }
    memcpy(out, &address, sizeof address);
    return 0;
}

static int open_driver(void)
{
    int code = 0;
    if (driver.launch) {
        return 0;
    }
    code = code ? code : fetch("cuModuleLoadData", 11000, &driver.load);
    code = code ? code : fetch("cuModuleGetFunction", 11000, &driver.get);
    code = code ? code : fetch("cuStreamWriteValue64", 12000, &driver.write_value);
    code = code ? code : fetch("cuCtxGetCurrent", 11000, &driver.get_current);
    code = code ? code : fetch("cuCtxSetCurrent", 11000, &driver.set_current);
    code = code ? code : fetch("cuCtxCreate", 11000, &driver.create);
    code = code ? code : fetch("cuCtxDestroy", 11000, &driver.destroy);
    code = code ? code : fetch("cuLaunchKernel", 11000, &driver.launch);
    return code;
}

int spin_load(void)
{
    int code = open_driver();
    CUcontext now = spin_current();
    if (code || (kernels.module && kernels.of == now)) {
        return code;
    }
    kernels.of = now;
    code = (int)driver.load(&kernels.module, ptx);
    code = code ? code : (int)driver.get(&kernels.spin, kernels.module, "spin_for");
    code = code ? code : (int)driver.get(&kernels.empty, kernels.module, "spin_empty");
    code = code ? code : (int)driver.get(&kernels.count, kernels.module, "spin_count");
    return code ? code : (int)driver.get(&kernels.fault, kernels.module, "spin_fault");
}

static int launch(CUfunction f, void *stream, void *argument)
{
    void *arguments[1] = {argument};
    int code = spin_load();
    return code ? code
                : (int)driver.launch(f, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream,
                                     argument ? arguments : NULL, NULL);
}

int spin_for(void *stream, uint64_t nanoseconds)
{
    int code = spin_load();
    return code ? code : launch(kernels.spin, stream, &nanoseconds);
}

int spin_empty(void *stream)
{
    int code = spin_load();
    return code ? code : launch(kernels.empty, stream, NULL);
}

int spin_count(void *stream, uint64_t *counter)
{
    int code = spin_load();
    return code ? code : launch(kernels.count, stream, &counter);
}

int spin_fault(void *stream)
{
    int code = spin_load();
    return code ? code : launch(kernels.fault, stream, NULL);
}

int spin_write_value(void *stream, uint64_t *address, uint64_t value)
{
    int code = open_driver();
    return code ? code
                : (int)driver.write_value((CUstream)stream, (CUdeviceptr)(uintptr_t)address, value,
                                          0);
}

CUcontext spin_current(void)
{
    CUcontext now = NULL;
    return open_driver() || driver.get_current(&now) != CUDA_SUCCESS ? NULL : now;
}

int spin_context_create(CUcontext *out, int device)
{
    int code = open_driver();
    return code ? code : (int)driver.create(out, 0, device);
}

int spin_context_destroy(CUcontext context)
{
    return (int)driver.destroy(context);
}

int spin_context_set(CUcontext context)
{
    int code = open_driver();
    return code ? code : (int)driver.set_current(context);
}
