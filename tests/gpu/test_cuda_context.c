/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_context.c - the context, device and priority that a host hands over or keeps.
 *
 * Proves    a network with convolutions trains in a context of the host's as it does in the primary
 *           one, bit for bit, and with timed algorithms within rounding, and brings up no primary
 *           context (failure row 40); whatever context or device is current on the host's thread
 *           is so after every call, whichever device libren uses; libren's threads keep none;
 *           cuda.stream_priority is applied to every stream and clamped.
 * Fails     when a call takes the thread's current device for its own, memory of the timing runs
 *           cannot be had in a context that is not the primary one, or a context is set and not put
 *           back.
 * Order     the first case must be the first: it asks whether libren alone makes a primary context.
 */
#include <CUnit/CUnit.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "../conformance/runs.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define SECOND UINT64_C(1000000000)

/* ------------------------------------------------------------------ the driver by itself */

static struct {
    CUresult (*init)(unsigned flags);
    CUresult (*count)(int *out);
    CUresult (*primary_state)(CUdevice device, unsigned *out_flags, int *out_active);
    CUresult (*create)(CUcontext *out, unsigned flags, CUdevice device);
    CUresult (*destroy)(CUcontext context);
    CUresult (*set_current)(CUcontext context);
    CUresult (*get_current)(CUcontext *out);
    CUresult (*get_device)(CUdevice *out);
} driver;

/* GPUs of this machine; 0 after a skip. */
static int gpus(void)
{
    static const char *const names[] = {
        "cuInit",          "cuDeviceGetCount", "cuDevicePrimaryCtxGetState",
        "cuCtxCreate_v2",  "cuCtxDestroy_v2",  "cuCtxSetCurrent",
        "cuCtxGetCurrent", "cuCtxGetDevice"};
    void *const into[] = {&driver.init,        &driver.count,     &driver.primary_state,
                          &driver.create,      &driver.destroy,   &driver.set_current,
                          &driver.get_current, &driver.get_device};
    int count = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; library && i < REN_TEST_COUNT(names); i++) {
        void *symbol = dlsym(library, names[i]);
        CU_ASSERT_PTR_NOT_NULL_FATAL(symbol);
        memcpy(into[i], &symbol, sizeof symbol);
    }
    if (!library || driver.init(0) != CUDA_SUCCESS || driver.count(&count) != CUDA_SUCCESS) {
        count = 0;
    }
    if (count == 0) {
        ren_test_skip("no GPU");
    }
    return count;
}

static CUcontext current(void)
{
    CUcontext now = NULL;
    CU_ASSERT_EQUAL(driver.get_current(&now), CUDA_SUCCESS);
    return now;
}

static int primary_is_active(int device)
{
    unsigned flags = 0;
    int active = -1;
    CU_ASSERT_EQUAL(driver.primary_state(device, &flags, &active), CUDA_SUCCESS);
    return active;
}

static ren_runtime_config cuda_config(void)
{
    ren_runtime_config config = ren_test_config();
    config.device = REN_DEVICE_CUDA;
    if (!config.module_path) {
        config.module_path = "build/test/libren_cuda.so";
    }
    return config;
}

/* A context of the host's, not current. */
static CUcontext make_context(int device)
{
    CUcontext before = current();
    CUcontext own = NULL;
    CU_ASSERT_EQUAL_FATAL(driver.create(&own, 0, device), CUDA_SUCCESS);
    CU_ASSERT_EQUAL(driver.set_current(before), CUDA_SUCCESS);
    return own;
}

/* ------------------------------------------------------------------ runs, context looked after */

/* What the log said of CUDA calls that failed. */
static atomic_int failed_calls;

static void note_failures(void *user, ren_log_level level, const char *text)
{
    (void)user;
    (void)level;
    if (strstr(text, "(CUDA error")) {
        (void)printf("       log: %s\n", text);
        atomic_fetch_add(&failed_calls, 1);
    }
}

typedef struct place {
    uint32_t device;
    CUcontext context; /* of the host's, for libren; NULL = primary */
    uint32_t autotune;
} place;

static run_spec small_spec(net_kind kind)
{
    run_spec spec = run_default(kind);
    spec.steps = 40;
    spec.block = 8;
    return spec;
}

/* A run at a place, with the thread's context looked at behind every call. */
static void run_at(const run_spec *spec, const place *at, run_result *out)
{
    const CUcontext before = current();
    int changed = 0;
    ren_runtime_config config = cuda_config();
    ren_cuda_options cuda = ren_cuda_options_default();
    ren_log log = ren_log_default();
    run r;
    cuda.context = at->context;
    cuda.autotune = at->autotune;
    log.fn = note_failures;
    log.min_level = REN_LOG_INFO;
    config.device_index = at->device;
    config.deterministic = !at->autotune;
    config.cuda = &cuda;
    config.log = &log;
    atomic_store(&failed_calls, 0);
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    changed += current() != before;
    run_begin(&r, rt, spec, out);
    changed += current() != before;
    while (r.next < spec->steps) {
        run_step(&r);
        changed += current() != before;
    }
    run_end(&r);
    changed += current() != before;
    ren_test_shutdown(rt);
    changed += current() != before;
    CU_ASSERT_EQUAL(changed, 0);
    CU_ASSERT_EQUAL(atomic_load(&failed_calls), 0);
    CU_ASSERT(out->graph_steps > 0);
}

/* Losses that differ by rounding alone. */
static void losses_agree(const run_result *base, run_result *other)
{
    double worst = 0.0;
    for (uint32_t i = 0; i < base->steps; i++) {
        double a = base->results[i].step.loss;
        double b = other->results[i].step.loss;
        CU_ASSERT_EQUAL(other->results[i].status, REN_OK);
        CU_ASSERT(isfinite(b));
        worst = fmax(worst, fabs(a - b) / fmax(fabs(a), 1e-3));
    }
    (void)printf("       timed algorithms: losses differ by %.2g at most\n", worst);
    CU_ASSERT(worst < 1e-3);
    run_free(other);
}

/* ------------------------------------------------------------------ contexts */

/* Row 40: work in a context of the host's, or on another device, brings up no primary context that
 * nobody asked for. */
static void test_no_stray_primary_context(void)
{
    static run_result out;
    const int count = gpus();
    const run_spec spec = small_spec(NET_LENET);
    place at = {0, NULL, 1};
    if (!count) {
        return;
    }
    CU_ASSERT_EQUAL_FATAL(primary_is_active(0), 0); /* else this case could see nothing */
    at.context = make_context(0);
    run_at(&spec, &at, &out);
    run_free(&out);
    CU_ASSERT_EQUAL(primary_is_active(0), 0);
    CU_ASSERT_EQUAL(driver.destroy(at.context), CUDA_SUCCESS);
    if (count > 1) {
        at.context = NULL;
        at.device = 1;
        run_at(&spec, &at, &out);
        run_free(&out);
        CU_ASSERT_EQUAL(primary_is_active(0), 0);
        CU_ASSERT_EQUAL(primary_is_active(1), 0); /* released with the runtime */
    }
}

/* In the host's context: with nothing current on its thread, with that context, with another. */
static void train_in_own_context(net_kind kind, size_t ways)
{
    static run_result base, out;
    const run_spec spec = small_spec(kind);
    place at = {0, NULL, 0};
    const CUcontext before = current();
    run_at(&spec, &at, &base);
    CUcontext own = make_context(0);
    CUcontext other = make_context(0);
    const CUcontext currents[] = {NULL, own, other};
    at.context = own;
    for (size_t i = 0; i < ways; i++) {
        CU_ASSERT_EQUAL(driver.set_current(currents[i]), CUDA_SUCCESS);
        at.autotune = 0;
        run_at(&spec, &at, &out);
        run_same(&base, &out);
        if (i == 0) {
            at.autotune = 1;
            run_at(&spec, &at, &out);
            losses_agree(&base, &out);
        }
    }
    CU_ASSERT_EQUAL(driver.set_current(before), CUDA_SUCCESS);
    CU_ASSERT_EQUAL(driver.destroy(own), CUDA_SUCCESS); /* still the host's to destroy */
    CU_ASSERT_EQUAL(driver.destroy(other), CUDA_SUCCESS);
    run_free(&base);
}

static void test_training_in_a_context_of_the_host(void)
{
    if (gpus()) {
        train_in_own_context(NET_LENET, 3);
        train_in_own_context(NET_BRANCH, 1);
    }
}

/* ------------------------------------------------------------------ devices */

typedef struct sight {
    int device;              /* in DEVICE jobs, on the submitter */
    void *pointer;           /* of the job's buffer */
    ren_status status;       /* of the DEVICE job */
    _Atomic int left_behind; /* contexts current where libren's threads call back */
    _Atomic int calls;
} sight;

static ren_status see_device(void *user, const ren_device_io *io)
{
    sight *s = user;
    CUdevice device = -1;
    s->device = driver.get_device(&device) == CUDA_SUCCESS ? (int)device : -1;
    s->pointer = io->pointers[0];
    return REN_OK;
}

static void see_context(sight *s)
{
    CUcontext now = NULL;
    if (driver.get_current(&now) != CUDA_SUCCESS || now) {
        atomic_fetch_add(&s->left_behind, 1);
    }
    atomic_fetch_add(&s->calls, 1);
}

static void see_in_host_job(void *user)
{
    see_context(user);
}

static void see_in_callback(const ren_completion *completion, void *user)
{
    sight *s = user;
    s->status = completion->status;
    see_context(s);
}

/* Which device libren's threads work on, and what they leave current. */
static void look_around(ren_runtime *rt, uint32_t device)
{
    static sight s;
    ren_job_desc d = ren_job_desc_default();
    ren_use use = {{0}, REN_ACCESS_WRITE};
    ren_job job = {0};
    struct cudaPointerAttributes attributes;
    memset(&s, 0, sizeof s);
    CU_ASSERT_EQUAL_FATAL(ren_buffer_alloc(rt, REN_STREAM_COMP_2, 4096, &use.buffer), REN_OK);
    d.kind = REN_JOB_DEVICE;
    d.stream = REN_STREAM_COMP_2;
    d.enqueue = see_device;
    d.enqueue_user = &s;
    d.uses = &use;
    d.use_count = 1;
    d.deliver = REN_DELIVER_ANY_THREAD;
    d.done = see_in_callback;
    d.user = &s;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, job, 20 * SECOND), REN_OK);
    d = ren_job_desc_default();
    d.kind = REN_JOB_HOST;
    d.stream = REN_STREAM_COMP_2;
    d.host_fn = see_in_host_job;
    d.host_user = &s;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 20 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(atomic_load(&s.calls), 2);
    CU_ASSERT_EQUAL(s.status, REN_OK);
    CU_ASSERT_EQUAL(atomic_load(&s.left_behind), 0);
    CU_ASSERT_EQUAL(s.device, (int)device);
    CU_ASSERT_EQUAL(cudaPointerGetAttributes(&attributes, s.pointer), cudaSuccess);
    CU_ASSERT_EQUAL(attributes.type, cudaMemoryTypeDevice);
    CU_ASSERT_EQUAL(attributes.device, (int)device);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, use.buffer), REN_OK);
}

/* libren on one device, the host's thread on the same or another, by the CUDA runtime's means. */
static void work_beside_current(uint32_t device, int host_device)
{
    static run_result base, out;
    const run_spec spec = small_spec(NET_LENET);
    place at = {device, NULL, 0};
    int now = -1;
    CU_ASSERT_EQUAL(driver.set_current(NULL), CUDA_SUCCESS);
    run_at(&spec, &at, &base);
    CU_ASSERT_EQUAL_FATAL(cudaSetDevice(host_device), cudaSuccess);
    CU_ASSERT_EQUAL(cudaFree(NULL), cudaSuccess); /* makes its context current */
    CU_ASSERT_PTR_NOT_NULL(current());
    run_at(&spec, &at, &out);
    run_same(&base, &out);
    run_free(&base);
    ren_runtime_config config = cuda_config();
    config.device_index = device;
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    look_around(rt, device);
    ren_test_shutdown(rt);
    CU_ASSERT_EQUAL(cudaGetDevice(&now), cudaSuccess);
    CU_ASSERT_EQUAL(now, host_device);
}

static void test_current_device_is_kept(void)
{
    if (gpus()) {
        work_beside_current(0, 0);
    }
}

/* Row 40: each on a device of its own. */
static void test_another_device_is_current(void)
{
    const int count = gpus();
    if (count == 1) {
        ren_test_skip("there is one GPU");
    }
    if (count > 1) {
        work_beside_current(0, 1);
        work_beside_current(1, 0);
    }
}

/* ------------------------------------------------------------------ priority */

static ren_status see_priority(void *user, const ren_device_io *io)
{
    return cudaStreamGetPriority((cudaStream_t)io->native_stream, user) == cudaSuccess
               ? REN_OK
               : REN_ERR_DEVICE;
}

/* 0 is the lowest, each step one higher, and what the device has not got is the nearest it has. */
static void test_stream_priority_is_applied(void)
{
    static const int32_t asked[] = {0, 1, 2, 1000, INT32_MAX, -1, INT32_MIN};
    int least = 0;
    int greatest = 0;
    if (!gpus()) {
        return;
    }
    CU_ASSERT_EQUAL_FATAL(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
    CU_ASSERT(least > greatest); /* CUDA counts downwards */
    (void)printf("       lowest %d, highest %d\n", least, greatest);
    for (size_t i = 0; i < REN_TEST_COUNT(asked); i++) {
        const int32_t range = least - greatest;
        const int32_t steps = asked[i] < 0 ? 0 : asked[i] > range ? range : asked[i];
        ren_runtime_config config = cuda_config();
        ren_cuda_options cuda = ren_cuda_options_default();
        cuda.stream_priority = asked[i];
        config.cuda = &cuda;
        ren_runtime *rt = ren_test_runtime(&config);
        CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
        for (int s = 0; s < REN_STREAM_COUNT; s++) {
            ren_job_desc d = ren_job_desc_default();
            ren_job job = {0};
            int seen = INT_MAX;
            d.kind = REN_JOB_DEVICE;
            d.stream = (ren_stream)s;
            d.enqueue = see_priority;
            d.enqueue_user = &seen;
            CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
            CU_ASSERT_EQUAL(ren_wait(rt, job, 20 * SECOND), REN_OK);
            CU_ASSERT_EQUAL(seen, least - steps);
        }
        ren_test_shutdown(rt);
    }
}

static const ren_test_case cases[] = {
    {"test_no_stray_primary_context", test_no_stray_primary_context},
    {"test_training_in_a_context_of_the_host", test_training_in_a_context_of_the_host},
    {"test_current_device_is_kept", test_current_device_is_kept},
    {"test_another_device_is_current", test_another_device_is_current},
    {"test_stream_priority_is_applied", test_stream_priority_is_applied},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "gpu/test_cuda_context", cases, REN_TEST_COUNT(cases), 120);
}
