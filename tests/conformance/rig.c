/* SPDX-License-Identifier: MIT */
/* tests/conformance/rig.c - see rig.h. */
#include "rig.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic long blocks;
static _Atomic long threads;
static _Atomic long alloc_countdown;
static _Atomic long thread_countdown;

void rig_check(ren_status status, const char *file, int line, const char *what)
{
    if (status != REN_OK) {
        fprintf(stderr, "%s:%d: %s gave %d\n", file, line, what, (int)status);
        exit(1);
    }
}

/* True for the one call that the countdown ends at. */
static int ends(_Atomic long *countdown)
{
    long left = atomic_load(countdown);
    while (left > 0 && !atomic_compare_exchange_weak(countdown, &left, left - 1)) {
    }
    return left == 1;
}

static void *host_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    void *ptr = NULL;
    if (ends(&alloc_countdown) || posix_memalign(&ptr, align < 8 ? 8 : align, bytes) != 0) {
        return NULL;
    }
    memset(ptr, 0xa5, bytes); /* nobody may count on zeros */
    atomic_fetch_add(&blocks, 1);
    return ptr;
}

static void host_free(void *user, void *ptr, size_t bytes)
{
    (void)user;
    (void)bytes;
    atomic_fetch_sub(&blocks, 1);
    free(ptr);
}

static void host_log(void *user, ren_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

typedef struct start {
    pthread_t thread;
    void (*entry)(void *);
    void *arg;
} start;

static void *thread_main(void *arg)
{
    start *s = arg;
    s->entry(s->arg);
    return NULL;
}

static ren_status thread_start(void *user, const char *name, void (*entry)(void *), void *arg,
                               void **out)
{
    (void)user;
    (void)name;
    start *s = malloc(sizeof *s);
    if (!s || ends(&thread_countdown)) {
        free(s);
        return REN_ERR_THREAD;
    }
    s->entry = entry;
    s->arg = arg;
    if (pthread_create(&s->thread, NULL, thread_main, s) != 0) {
        free(s);
        return REN_ERR_THREAD;
    }
    atomic_fetch_add(&threads, 1);
    *out = s;
    return REN_OK;
}

static void thread_join(void *user, void *thread)
{
    (void)user;
    start *s = thread;
    pthread_join(s->thread, NULL);
    free(s);
    atomic_fetch_sub(&threads, 1);
}

long rig_blocks(void)
{
    return atomic_load(&blocks);
}

long rig_threads(void)
{
    return atomic_load(&threads);
}

void rig_fail_alloc(long nth)
{
    atomic_store(&alloc_countdown, nth);
}

void rig_fail_thread(long nth)
{
    atomic_store(&thread_countdown, nth);
}

ren_status rig_try_open(rig *r, const ren__device_api *api, const ren__device_config *config,
                        ren_error *err)
{
    memset(r, 0, sizeof *r);
    r->api = api;
    r->config = *config;
    r->host = (ren__host_services){.struct_size = (uint32_t)sizeof r->host,
                                   .abi = REN__DEVICE_ABI,
                                   .alloc = host_alloc,
                                   .free = host_free,
                                   .log = host_log,
                                   .thread_start = thread_start,
                                   .thread_join = thread_join};
    ren_status status = api->open(&r->config, &r->host, &r->dev, err);
    if (status == REN_OK) {
        api->caps(r->dev, &r->caps);
    }
    return status;
}

const ren__device_api *rig_table(void)
{
    const char *device = getenv("REN_TEST_DEVICE");
    const char *path = getenv("REN_TEST_MODULE");
    if (!device || strcmp(device, "cuda") != 0) {
        return ren__device_cpu();
    }
    void *module = dlopen(path ? path : "libren_cuda.so", RTLD_NOW | RTLD_LOCAL);
    union {
        void *ptr;
        ren__device_module_open_fn fn;
    } symbol = {module ? dlsym(module, REN__DEVICE_MODULE_SYMBOL) : NULL};
    const ren__device_api *api = symbol.ptr ? symbol.fn(REN__DEVICE_ABI) : NULL;
    ren__device_config config = {.struct_size = (uint32_t)sizeof config, .lanes = 1};
    rig r;
    ren_error err = {0};
    if (!api || rig_try_open(&r, api, &config, &err) != REN_OK) {
        printf("skipped: no CUDA device: %s\n", api ? err.text : "the module cannot be loaded");
        exit(77);
    }
    rig_close(&r);
    return api;
}

void rig_open(rig *r, const ren__device_api *api, uint32_t lanes, uint64_t seed)
{
    ren_error err = {0};
    ren__device_config config = {.struct_size = (uint32_t)sizeof config,
                                 .lanes = lanes ? lanes : REN__LANES,
                                 .cpu_threads = 1,
                                 .deterministic = 1,
                                 .seed = seed};
    ren_status status = rig_try_open(r, api, &config, &err);
    if (status != REN_OK) {
        fprintf(stderr, "rig: cannot open the device: %d %s\n", (int)status, err.text);
        exit(1);
    }
    RIG_OK(api->event_create(r->dev, 1, &r->done));
}

void rig_close(rig *r)
{
    if (r->dev) {
        if (r->done) {
            r->api->event_destroy(r->dev, r->done);
        }
        if (r->words) {
            r->api->host_free(r->dev, r->words, RIG_GATES * sizeof *r->words);
        }
        r->api->close(r->dev);
    }
    memset(r, 0, sizeof *r);
}

void *rig_alloc(rig *r, uint64_t bytes)
{
    void *ptr = NULL;
    RIG_OK(r->api->mem_alloc(r->dev, bytes, &ptr));
    return ptr;
}

void rig_finish(rig *r, uint32_t lane)
{
    RIG_OK(r->api->event_record(r->dev, lane, r->done));
    RIG_OK(r->api->event_sync(r->dev, r->done));
}

static void copy(rig *r, void *dst, const void *src, uint64_t bytes)
{
    RIG_OK(r->api->copy(r->dev, 0, dst, src, bytes));
    rig_finish(r, 0);
}

void rig_upload(rig *r, void *dst, const void *src, uint64_t bytes)
{
    void *pinned = NULL;
    if (r->caps.pageable_copies) {
        copy(r, dst, src, bytes);
        return;
    }
    RIG_OK(r->api->host_alloc(r->dev, bytes, &pinned));
    memcpy(pinned, src, bytes);
    copy(r, dst, pinned, bytes);
    r->api->host_free(r->dev, pinned, bytes);
}

void rig_download(rig *r, void *dst, const void *src, uint64_t bytes)
{
    void *pinned = NULL;
    if (r->caps.pageable_copies) {
        copy(r, dst, src, bytes);
        return;
    }
    RIG_OK(r->api->host_alloc(r->dev, bytes, &pinned));
    copy(r, pinned, src, bytes);
    memcpy(dst, pinned, bytes);
    r->api->host_free(r->dev, pinned, bytes);
}

/* ------------------------------------------------------------------ what stands on a lane */

/* Every command once, and memory for gates, while nothing is held: a driver that loads a kernel
 * when it is first launched may wait for the whole device then. */
static void prepare_for_gates(rig *r)
{
    enum {
        BYTES = 8192
    };
    const uint64_t words = RIG_GATES * sizeof *r->words;
    void *pinned = NULL;
    void *host = NULL;
    unsigned char *memory = rig_alloc(r, BYTES);
    RIG_OK(r->api->host_alloc(r->dev, words, &pinned));
    RIG_OK(r->api->host_alloc(r->dev, BYTES, &host));
    memset(pinned, 0, words);
    memset(host, 0, BYTES);
    r->words = pinned;
    for (uint32_t lane = 0; lane < r->config.lanes; lane++) {
        for (uint64_t bytes = 64; bytes <= BYTES / 2; bytes *= 4) {
            RIG_OK(r->api->fill(r->dev, lane, memory, 1, bytes));
            RIG_OK(r->api->copy(r->dev, lane, memory + BYTES / 2, memory, bytes));
            RIG_OK(r->api->copy(r->dev, lane, host, memory, bytes));
            RIG_OK(r->api->copy(r->dev, lane, memory, host, bytes));
        }
        RIG_OK(r->api->stamp(r->dev, lane, host));
        rig_finish(r, lane);
    }
    r->api->host_free(r->dev, host, BYTES);
    r->api->mem_free(r->dev, memory, BYTES);
}

void rig_put_gate(rig *r, uint32_t lane, gate *g)
{
    static ren_status got; /* a gate fails only where `call` runs at once */
    if (!r->caps.host_reads_device) {
        if (!r->words) {
            prepare_for_gates(r);
        }
        g->words = &r->words[r->gates++ % RIG_GATES];
        memset(g->words, 0, sizeof *g->words);
    }
    RIG_OK(r->api->call(r->dev, lane, gate_pass, g, &got));
    if (!r->caps.host_reads_device) {
        RIG_OK(got);
    }
}

void rig_put(rig *r, uint32_t lane, on_lane *what)
{
    static ren_status got;
    RIG_OK(r->api->call(r->dev, lane, on_lane_pass, what, &got));
    if (!r->caps.host_reads_device) {
        RIG_OK(got);
    }
}
