/* SPDX-License-Identifier: MIT */
/* tests/gpu/table.c - opening device tables and running single operations on them; see table.h. */
#include "table.h"

#include <CUnit/CUnit.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/test.h"

#define GUARD  256u  /* bytes behind every allocation that must keep their poison */
#define POISON 0xffu /* as f32 a NaN, as an index a negative number */

/* ------------------------------------------------------------------ host services */

static void *host_alloc(void *user, size_t bytes, size_t align)
{
    void *out = NULL;
    (void)user;
    return posix_memalign(&out, align < sizeof(void *) ? sizeof(void *) : align, bytes) ? NULL
                                                                                        : out;
}

static void host_free(void *user, void *ptr, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(ptr);
}

static void host_log(void *user, ren_log_level level, const char *text)
{
    (void)user;
    if (level == REN_LOG_ERROR) {
        (void)fprintf(stderr, "device: %s\n", text);
    }
}

typedef struct thread {
    pthread_t id;
    void (*entry)(void *);
    void *arg;
} thread;

static void *thread_body(void *arg)
{
    thread *t = arg;
    t->entry(t->arg);
    return NULL;
}

static ren_status thread_start(void *user, const char *name, void (*entry)(void *), void *arg,
                               void **out)
{
    thread *t = malloc(sizeof *t);
    (void)user;
    (void)name;
    if (!t) {
        return REN_ERR_THREAD;
    }
    t->entry = entry;
    t->arg = arg;
    if (pthread_create(&t->id, NULL, thread_body, t)) {
        free(t);
        return REN_ERR_THREAD;
    }
    *out = t;
    return REN_OK;
}

static void thread_join(void *user, void *handle)
{
    thread *t = handle;
    (void)user;
    (void)pthread_join(t->id, NULL);
    free(t);
}

const ren__host_services *test_host_services(void)
{
    static const ren__host_services services = {
        .struct_size = (uint32_t)sizeof(ren__host_services),
        .abi = REN__DEVICE_ABI,
        .alloc = host_alloc,
        .free = host_free,
        .log = host_log,
        .thread_start = thread_start,
        .thread_join = thread_join,
    };
    return &services;
}

/* ------------------------------------------------------------------ tables */

const ren__device_api *test_cuda_api(const char **why)
{
    static char reason[512];
    const char *path = getenv("REN_TEST_MODULE");
    ren__device_module_open_fn open = NULL;
    void *module;
    void *symbol;
    *why = reason;
    path = path && path[0] ? path : "build/test/libren_cuda.so";
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        const char *text = dlerror();
        (void)snprintf(reason, sizeof reason, "no CUDA module: %s", text ? text : path);
        return NULL;
    }
    symbol = dlsym(module, REN__DEVICE_MODULE_SYMBOL);
    if (!symbol) {
        (void)snprintf(reason, sizeof reason, "%s has no " REN__DEVICE_MODULE_SYMBOL, path);
        return NULL;
    }
    memcpy(&open, &symbol, sizeof open);
    return open(REN__DEVICE_ABI);
}

int test_table_open(test_table *t, const ren__device_api *api, uint32_t lanes,
                    uint32_t deterministic, ren_error *err)
{
    ren__device_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    config.lanes = lanes;
    config.cpu_threads = 1;
    config.deterministic = deterministic;
    return test_table_open_as(t, api, &config, test_host_services(), err);
}

int test_table_open_as(test_table *t, const ren__device_api *api, const ren__device_config *config,
                       const ren__host_services *host, ren_error *err)
{
    memset(t, 0, sizeof *t);
    memset(err, 0, sizeof *err);
    t->api = api;
    t->repeats = config->deterministic;
    if (api->open(config, host, &t->dev, err) != REN_OK) {
        return 0;
    }
    api->caps(t->dev, &t->caps);
    return 1;
}

void test_table_close(test_table *t)
{
    if (t->dev) {
        t->api->close(t->dev);
    }
    memset(t, 0, sizeof *t);
}

static test_table cuda_table;
static test_table cpu_table;

test_table *test_cuda(void)
{
    const char *why = NULL;
    const ren__device_api *api;
    static ren_error err;
    if (cuda_table.dev) {
        return &cuda_table;
    }
    api = test_cuda_api(&why);
    if (!api) {
        ren_test_skip(why);
        return NULL;
    }
    if (!test_table_open(&cuda_table, api, REN__LANES, 1, &err)) {
        ren_test_skip(err.text);
        return NULL;
    }
    return &cuda_table;
}

test_table *test_cpu(void)
{
    ren_error err;
    if (cpu_table.dev || test_table_open(&cpu_table, ren__device_cpu(), REN__LANES, 1, &err)) {
        return &cpu_table;
    }
    return NULL;
}

void test_tables_close(void)
{
    test_table_close(&cuda_table);
    test_table_close(&cpu_table);
}

/* ------------------------------------------------------------------ running */

ren__op_desc test_desc(ren__op_kind kind)
{
    ren__op_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    desc.kind = kind;
    for (int i = 0; i < 2; i++) {
        desc.kernel[i] = 1;
        desc.stride[i] = 1;
        desc.dilation[i] = 1;
    }
    desc.groups = 1;
    return desc;
}

ren__tensor_desc test_tensor(ren_dtype dtype, uint32_t rank, int64_t a, int64_t b, int64_t c,
                             int64_t d)
{
    ren__tensor_desc t = {dtype, rank, {a, b, c, d}};
    return t;
}

double test_distance(const float *a, const double *b, uint64_t n)
{
    double difference = 0.0;
    double norm = 0.0;
    for (uint64_t i = 0; i < n; i++) {
        if (isnan(a[i])) {
            return INFINITY;
        }
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return norm > 0.0 ? sqrt(difference / norm) : sqrt(difference);
}

/* OIHW to OHWI (or back) of a weight tensor whose dims are given as OIHW. */
static void permute(const ren__tensor_desc *t, const float *from, float *to, int back)
{
    int64_t inner = t->dims[1];
    int64_t pixels = t->dims[2] * t->dims[3];
    for (int64_t o = 0; o < t->dims[0]; o++) {
        for (int64_t i = 0; i < inner; i++) {
            for (int64_t p = 0; p < pixels; p++) {
                int64_t oihw = (o * inner + i) * pixels + p;
                int64_t ohwi = (o * pixels + p) * inner + i;
                to[back ? oihw : ohwi] = from[back ? ohwi : oihw];
            }
        }
    }
}

typedef struct memory {
    unsigned char *base; /* device */
    unsigned char *host; /* pinned; what is copied down */
    uint64_t bytes;      /* without guard */
    uint64_t offset;
} memory;

static void wait_lane(test_table *t, ren__event *event)
{
    CU_ASSERT_EQUAL(t->api->event_record(t->dev, 0, event), REN_OK);
    CU_ASSERT_EQUAL(t->api->event_sync(t->dev, event), REN_OK);
}

static int take(test_table *t, memory *m, uint64_t bytes, uint64_t offset)
{
    void *device = NULL;
    void *host = NULL;
    m->bytes = bytes;
    m->offset = offset;
    if (t->api->mem_alloc(t->dev, offset + bytes + GUARD, &device) != REN_OK ||
        t->api->host_alloc(t->dev, offset + bytes + GUARD, &host) != REN_OK) {
        CU_FAIL("no memory for an operand");
        return 0;
    }
    m->base = device;
    m->host = host;
    return 1;
}

static void give(test_table *t, memory *m)
{
    t->api->mem_free(t->dev, m->base, m->offset + m->bytes + GUARD);
    t->api->host_free(t->dev, m->host, m->offset + m->bytes + GUARD);
    memset(m, 0, sizeof *m);
}

static void upload(test_table *t, memory *m, const ren__tensor_desc *desc, const test_operand *o)
{
    memset(m->host, (int)POISON, m->offset + m->bytes + GUARD);
    if (o && (o->role == TEST_IN || o->role == TEST_INOUT || o->role == TEST_SAVED) && o->in) {
        if (o->weights && t->caps.conv_weights_ohwi) {
            permute(desc, o->in, (float *)(void *)(m->host + m->offset), 0);
        } else {
            memcpy(m->host + m->offset, o->in, m->bytes);
        }
    }
    CU_ASSERT_EQUAL(t->api->copy(t->dev, 0, m->base, m->host, m->offset + m->bytes + GUARD),
                    REN_OK);
}

/* Copy down, look at the guards, and hand the contents over or compare them with those of the
 * first run. */
static void download(test_table *t, memory *m, const ren__tensor_desc *desc, const test_operand *o,
                     ren__event *event, int first)
{
    int intact = 1;
    CU_ASSERT_EQUAL(t->api->copy(t->dev, 0, m->host, m->base, m->offset + m->bytes + GUARD),
                    REN_OK);
    wait_lane(t, event);
    for (uint64_t i = 0; i < m->offset; i++) {
        intact = intact && m->host[i] == POISON;
    }
    for (uint64_t i = 0; i < GUARD; i++) {
        intact = intact && m->host[m->offset + m->bytes + i] == POISON;
    }
    CU_ASSERT_TRUE(intact);
    if (o && o->out) {
        unsigned char *data = m->host + m->offset;
        if (o->weights && t->caps.conv_weights_ohwi) {
            float *turned = malloc(m->bytes);
            permute(desc, (const float *)(const void *)data, turned, 1);
            memcpy(data, turned, m->bytes);
            free(turned);
        }
        if (first || !t->repeats) {
            memcpy(o->out, data, m->bytes);
        } else {
            CU_ASSERT_EQUAL(memcmp(o->out, data, m->bytes), 0);
        }
    }
}

typedef struct run {
    test_table *t;
    const ren__op_desc *desc;
    const test_operand *operands;
    ren__op *op;
    memory m[REN__OPERANDS];
    memory workspace;
    void *pointers[REN__OPERANDS];
    ren__event *event;
} run;

static void launch(run *r, int captured)
{
    const ren__device_api *api = r->t->api;
    void *workspace = r->workspace.base;
    ren__graph *graph = NULL;
    ren_error err;
    if (!captured) {
        CU_ASSERT_EQUAL(api->op_launch(r->t->dev, 0, r->op, r->pointers, workspace), REN_OK);
        return;
    }
    if (api->graph_begin(r->t->dev, 0) != REN_OK) {
        CU_FAIL("graph_begin");
        return;
    }
    CU_ASSERT_EQUAL(api->op_launch(r->t->dev, 0, r->op, r->pointers, workspace), REN_OK);
    if (api->graph_end(r->t->dev, 0, &graph, &err) != REN_OK) {
        (void)fprintf(stderr, "graph_end: %s\n", err.text);
        CU_FAIL("graph_end");
        return;
    }
    CU_ASSERT_EQUAL(api->graph_launch(r->t->dev, 0, graph), REN_OK);
    wait_lane(r->t, r->event);
    api->graph_destroy(r->t->dev, graph);
}

static void pass(run *r, int first, int captured)
{
    test_table *t = r->t;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (r->m[i].base) {
            upload(t, &r->m[i], &r->desc->operand[i], &r->operands[i]);
        }
    }
    if (r->workspace.base) {
        upload(t, &r->workspace, NULL, NULL);
    }
    wait_lane(t, r->event);
    launch(r, captured);
    wait_lane(t, r->event);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (r->m[i].base) {
            download(t, &r->m[i], &r->desc->operand[i], &r->operands[i], r->event, first);
        }
    }
    if (r->workspace.base) {
        download(t, &r->workspace, NULL, NULL, r->event, 0);
    }
}

static uint64_t bytes_of(const ren__op_desc *desc, const test_operand *o, uint32_t i,
                         const ren__op_needs *needs)
{
    return o->role == TEST_SAVED ? needs->saved_bytes : ren__tensor_bytes(&desc->operand[i]);
}

ren_status test_run(test_table *t, const ren__op_desc *desc, const test_operand *operands,
                    uint32_t misalign)
{
    ren__op_needs needs;
    ren_error err;
    run r;
    int ready = 1;
    ren_status status;
    memset(&r, 0, sizeof r);
    memset(&err, 0, sizeof err);
    r.t = t;
    r.desc = desc;
    r.operands = operands;
    status = t->api->op_create(t->dev, 0, desc, &r.op, &needs, &err);
    if (status != REN_OK) {
        (void)fprintf(stderr, "op_create, kind %d: %s\n", (int)desc->kind, err.text);
        return status;
    }
    CU_ASSERT_EQUAL(t->api->event_create(t->dev, 1, &r.event), REN_OK);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (operands[i].role != TEST_ABSENT && !operands[i].alias) {
            /* Control and state, which travel as bytes, hold 64-bit words. */
            uint32_t by = desc->operand[i].dtype == REN_U8 ? 0 : misalign;
            ready = ready && take(t, &r.m[i], bytes_of(desc, &operands[i], i, &needs), by);
            r.pointers[i] = r.m[i].base + r.m[i].offset;
        }
    }
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (operands[i].alias) {
            r.pointers[i] = r.pointers[operands[i].alias - 1];
        }
    }
    if (needs.workspace_bytes) {
        ready = ready && take(t, &r.workspace, needs.workspace_bytes, 0);
    }
    if (ready) {
        pass(&r, 1, 0);
        pass(&r, 0, 0);
        if (t->caps.graphs) {
            pass(&r, 0, 1);
        }
    }
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (r.m[i].base) {
            give(t, &r.m[i]);
        }
    }
    if (r.workspace.base) {
        give(t, &r.workspace);
    }
    t->api->event_destroy(t->dev, r.event);
    t->api->op_destroy(t->dev, r.op);
    return REN_OK;
}
