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

#define GUARD  256u        /* bytes behind every allocation that must keep their poison */
#define POISON 0xffu       /* as f32 a NaN, as an index a negative number */
#define ARENA  (32u << 20) /* bytes of pinned memory that light runs share */

/* ------------------------------------------------------------------ light runs */

typedef enum light {
    LIGHT_NO,
    LIGHT,
    LIGHT_INIT,
    LIGHT_BARE
} light;

static uint64_t operations; /* run on the CUDA table */
static uint64_t launches;

static light how_light(void)
{
    static int known = -1;
    if (known < 0) {
        const char *text = getenv("REN_TEST_LIGHT");
        known = !text || !text[0] || strcmp(text, "0") == 0 ? LIGHT_NO
                : strcmp(text, "init") == 0                 ? LIGHT_INIT
                : strcmp(text, "bare") == 0                 ? LIGHT_BARE
                                                            : LIGHT;
    }
    return (light)known;
}

int test_light(void)
{
    return how_light() != LIGHT_NO;
}

int test_left_out(uint32_t turn, uint32_t of)
{
    return test_light() && turn % of != 0;
}

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
    if (t->dev && t->arena) {
        t->api->host_free(t->dev, t->arena, ARENA);
    }
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
    if (operations) {
        printf("%llu operations run, %llu launches%s\n", (unsigned long long)operations,
               (unsigned long long)launches, test_light() ? ", light" : "");
    }
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
    uint64_t guard;
    int of_arena;
} memory;

static void wait_lane(test_table *t, ren__event *event)
{
    CU_ASSERT_EQUAL(t->api->event_record(t->dev, 0, event), REN_OK);
    CU_ASSERT_EQUAL(t->api->event_sync(t->dev, event), REN_OK);
}

/* A part of the arena, which light runs keep: pinning memory is slow under tools. NULL when it is
 * used up. */
static void *take_arena(test_table *t, uint64_t bytes)
{
    void *arena = t->arena;
    void *out;
    if (!arena && t->api->host_alloc(t->dev, ARENA, &arena) != REN_OK) {
        return NULL;
    }
    t->arena = arena;
    bytes = (bytes + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
    if (bytes > ARENA - t->arena_used) {
        return NULL;
    }
    out = t->arena + t->arena_used;
    t->arena_used += bytes;
    return out;
}

static int take(test_table *t, memory *m, uint64_t bytes, uint64_t offset)
{
    void *device = NULL;
    void *host = test_light() ? take_arena(t, offset + bytes) : NULL;
    m->bytes = bytes;
    m->offset = offset;
    m->guard = test_light() ? 0u : GUARD; /* a tool looks behind the allocation itself */
    m->of_arena = host != NULL;
    if (t->api->mem_alloc(t->dev, offset + bytes + m->guard, &device) != REN_OK ||
        (!host && t->api->host_alloc(t->dev, offset + bytes + m->guard, &host) != REN_OK)) {
        CU_FAIL("no memory for an operand");
        return 0;
    }
    m->base = device;
    m->host = host;
    return 1;
}

/* Light runs neither fill it from the host nor look at it. */
static int take_workspace(test_table *t, memory *m, uint64_t bytes)
{
    void *device = NULL;
    if (!test_light()) {
        return take(t, m, bytes, 0);
    }
    m->bytes = bytes;
    if (t->api->mem_alloc(t->dev, bytes, &device) != REN_OK) {
        CU_FAIL("no memory for a workspace");
        return 0;
    }
    m->base = device;
    return 1;
}

static void give(test_table *t, memory *m)
{
    t->api->mem_free(t->dev, m->base, m->offset + m->bytes + m->guard);
    if (m->host && !m->of_arena) {
        t->api->host_free(t->dev, m->host, m->offset + m->bytes + m->guard);
    }
    memset(m, 0, sizeof *m);
}

static int is_input(const test_operand *o)
{
    return o && (o->role == TEST_IN || o->role == TEST_INOUT || o->role == TEST_SAVED) && o->in;
}

static void fill_in(test_table *t, memory *m, const ren__tensor_desc *desc, const test_operand *o)
{
    if (o->weights && t->caps.conv_weights_ohwi) {
        permute(desc, o->in, (float *)(void *)(m->host + m->offset), 0);
    } else {
        memcpy(m->host + m->offset, o->in, m->bytes);
    }
}

static void upload(test_table *t, memory *m, const ren__tensor_desc *desc, const test_operand *o)
{
    memset(m->host, (int)POISON, m->offset + m->bytes + m->guard);
    if (is_input(o)) {
        fill_in(t, m, desc, o);
    }
    CU_ASSERT_EQUAL(t->api->copy(t->dev, 0, m->base, m->host, m->offset + m->bytes + m->guard),
                    REN_OK);
}

/* Hand the contents over, or compare them with those of the first run. */
static void hand_over(test_table *t, memory *m, const ren__tensor_desc *desc, const test_operand *o,
                      int first)
{
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

/* Copy down, look at the guards, and hand over. */
static void download(test_table *t, memory *m, const ren__tensor_desc *desc, const test_operand *o,
                     ren__event *event, int first)
{
    int intact = 1;
    CU_ASSERT_EQUAL(t->api->copy(t->dev, 0, m->host, m->base, m->offset + m->bytes + m->guard),
                    REN_OK);
    wait_lane(t, event);
    for (uint64_t i = 0; i < m->offset; i++) {
        intact = intact && m->host[i] == POISON;
    }
    for (uint64_t i = 0; i < m->guard; i++) {
        intact = intact && m->host[m->offset + m->bytes + i] == POISON;
    }
    CU_ASSERT_TRUE(intact);
    if (o && o->out) {
        hand_over(t, m, desc, o, first);
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
    launches += r->t->api->kind == REN_DEVICE_CUDA;
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

/* Whether libraries may compute it. They write what a tool that looks at our kernels alone does
 * not see written. */
static int is_shared(const ren__op_desc *desc)
{
    switch (desc->kind) {
    case REN__OP_LINEAR_FWD:
    case REN__OP_LINEAR_BWD_DATA:
    case REN__OP_LINEAR_BWD_WEIGHT:
    case REN__OP_CONV_FWD:
    case REN__OP_CONV_BWD_DATA:
    case REN__OP_CONV_BWD_WEIGHT:
        return 1;
    default:
        return 0;
    }
}

static void blank(run *r, const memory *m)
{
    if (how_light() == LIGHT || is_shared(r->desc)) {
        CU_ASSERT_EQUAL(r->t->api->fill(r->t->dev, 0, m->base + m->offset, POISON, m->bytes),
                        REN_OK);
    }
}

/* One plain run, with as few calls as it takes. */
static void pass_light(run *r)
{
    test_table *t = r->t;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        memory *m = &r->m[i];
        if (m->base && is_input(&r->operands[i])) {
            fill_in(t, m, &r->desc->operand[i], &r->operands[i]);
            if (how_light() != LIGHT_BARE) {
                CU_ASSERT_EQUAL(
                    t->api->copy(t->dev, 0, m->base + m->offset, m->host + m->offset, m->bytes),
                    REN_OK);
            }
        } else if (m->base) {
            blank(r, m);
        }
    }
    if (r->workspace.base) {
        blank(r, &r->workspace);
    }
    launch(r, 0);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        memory *m = &r->m[i];
        if (m->base && r->operands[i].out) {
            CU_ASSERT_EQUAL(
                t->api->copy(t->dev, 0, m->host + m->offset, m->base + m->offset, m->bytes),
                REN_OK);
        }
    }
    wait_lane(t, r->event);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (r->m[i].base && r->operands[i].out) {
            hand_over(t, &r->m[i], &r->desc->operand[i], &r->operands[i], 1);
        }
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
        ready = ready && take_workspace(t, &r.workspace, needs.workspace_bytes);
    }
    operations += t->api->kind == REN_DEVICE_CUDA;
    if (ready && test_light()) {
        pass_light(&r);
    } else if (ready) {
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
    t->arena_used = 0;
    t->api->event_destroy(t->dev, r.event);
    t->api->op_destroy(t->dev, r.op);
    return REN_OK;
}
