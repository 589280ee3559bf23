/* SPDX-License-Identifier: MIT */
/* tests/support/ren_test_table.c - the device table that stands around another device table.
 *
 * Purpose   Every entry counts the call, asks whether it is to fail, puts the commands around it
 *           that a delay, a hold or a trace needs, and passes it on.
 * Not here  what is armed, see ren_test.c.
 */
#include "ren_test_hook.h"

#include <stdlib.h>
#include <string.h>

#include "../../libren/core/core.h"

#define MOST_TABLES 4
/* Commands that one command may become: poison, delay, hold, two reports, itself. */
#define COMMANDS_PER_COMMAND 6u
#define LEAST_COMMANDS       800u

/* Every hook ever made, and the tables handed out. */
static struct {
    pthread_mutex_t mutex;
    hook *all;
    ren__device_api tables[MOST_TABLES];
    const ren__device_api *inner[MOST_TABLES];
} global = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------ operations */

typedef struct hook_op {
    ren__op *op;
    ren__op_desc desc;
    ren__op_needs needs;
} hook_op;

/* Bit i: the operation writes operand i. */
static uint32_t written(const ren__op_desc *d)
{
    switch (d->kind) {
    case REN__OP_LINEAR_FWD:
    case REN__OP_CONV_FWD:
    case REN__OP_XENT_BWD:
    case REN__OP_MSE_BWD:
    case REN__OP_HUBER_BWD:
    case REN__OP_EMA:
        return 1u << 3;
    case REN__OP_BIAS_GRAD:
    case REN__OP_AVG_POOL_FWD:
    case REN__OP_AVG_POOL_BWD:
    case REN__OP_GLOBAL_AVG_FWD:
    case REN__OP_GLOBAL_AVG_BWD:
    case REN__OP_ACT_FWD:
    case REN__OP_ADVANCE:
    case REN__OP_CAST:
        return 1u << 1;
    case REN__OP_MAX_POOL_FWD:
        return (1u << 1) | (1u << 2);
    case REN__OP_MAX_POOL_BWD:
        return 1u << 4;
    case REN__OP_BATCH_NORM_TRAIN:
        return 0x1fu << 5;
    case REN__OP_BATCH_NORM_BWD:
        return 0x7u << 5 | (d->operand[9].rank ? 1u << 9 : 0u);
    case REN__OP_BATCH_NORM_FOLD:
        return 0x3u << 6;
    case REN__OP_LINEAR_BWD_WEIGHT:
        return 1u << 2 | (d->operand[3].rank ? 1u << 3 : 0u);
    case REN__OP_BATCH_NORM_EVAL:
        return 1u << 5;
    case REN__OP_ACT_BWD:
        return 1u << 3 | (d->operand[4].rank ? 1u << 4 : 0u);
    case REN__OP_CONCAT:
        return 1u << 11;
    case REN__OP_SPLIT:
        return ((1u << d->count) - 1u) << 1;
    case REN__OP_XENT_FWD:
        return (1u << 2) | (1u << 3);
    case REN__OP_SGD:
    case REN__OP_LARS:
        return (1u << 3) | (1u << 4);
    case REN__OP_ADAM:
    case REN__OP_ADAMW:
        return (0x7u << 3) | (d->operand[6].rank ? 1u << 6 : 0u);
    default:
        return 1u << 2;
    }
}

static int is_in_place(ren__op_kind kind)
{
    return kind == REN__OP_SGD || kind == REN__OP_LARS || kind == REN__OP_ADAM ||
           kind == REN__OP_ADAMW || kind == REN__OP_EMA || kind == REN__OP_ADVANCE;
}

static void describe_op(const hook_op *o, void *const *operands, ren_test_command *c)
{
    const uint32_t writes = written(&o->desc);
    c->call = "op_launch";
    c->op = o->desc.kind;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (!operands[i]) {
            continue;
        }
        /* Operands without a shape are the control block, the state block and `saved`. */
        uint64_t bytes =
            o->desc.operand[i].rank ? ren__tensor_bytes(&o->desc.operand[i]) : sizeof(ren__state);
        if (o->needs.saved_bytes && ((o->desc.kind == REN__OP_MAX_POOL_FWD && i == 2) ||
                                     (o->desc.kind == REN__OP_MAX_POOL_BWD && i == 3))) {
            bytes = o->needs.saved_bytes;
        }
        if (writes & (1u << i)) {
            c->writes[c->write_count++] = (ren_test_access){operands[i], bytes};
        }
        if (!(writes & (1u << i)) || is_in_place(o->desc.kind)) {
            c->reads[c->read_count++] = (ren_test_access){operands[i], bytes};
        }
    }
}

static ren_status hook_op_create(ren__device *dev, uint32_t lane, const ren__op_desc *desc,
                                 ren__op **out, ren__op_needs *needs, ren_error *err)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_OP_CREATE);
    *out = NULL;
    if (status != REN_OK) {
        return ren__error_set(err, status, 0, __FILE__, __LINE__, "injected by a test");
    }
    hook_op *o = calloc(1, sizeof *o);
    if (!o) {
        return REN_ERR_NO_MEMORY;
    }
    status = h->api->op_create(h->dev, lane, desc, &o->op, needs, err);
    if (status != REN_OK) {
        free(o);
        return status;
    }
    o->desc = *desc;
    o->needs = *needs;
    *out = (ren__op *)(void *)o;
    return REN_OK;
}

static void hook_op_destroy(ren__device *dev, ren__op *op)
{
    hook *h = hook_of_device(dev);
    hook_op *o = (hook_op *)(void *)op;
    if (o) {
        h->api->op_destroy(h->dev, o->op);
        free(o);
    }
}

static ren_status hook_op_launch(ren__device *dev, uint32_t lane, ren__op *op,
                                 void *const operands[REN__OPERANDS], void *workspace)
{
    hook *h = hook_of_device(dev);
    hook_op *o = (hook_op *)(void *)op;
    ren_status status = ren__hook_enter(h, CALL_OP_LAUNCH);
    if (status != REN_OK) {
        return status;
    }
    ren_test_command c = {0};
    describe_op(o, operands, &c);
    if (o->needs.workspace_bytes) {
        c.writes[c.write_count++] = (ren_test_access){workspace, o->needs.workspace_bytes};
    }
    report *r = ren__hook_before(h, lane, &c);
    if (atomic_load(&h->poison) && o->needs.workspace_bytes) {
        status = h->api->fill(h->dev, lane, workspace, 0xffu, o->needs.workspace_bytes);
    }
    if (status == REN_OK) {
        status = h->api->op_launch(h->dev, lane, o->op, operands, workspace);
    }
    ren__hook_after(h, lane, r);
    return status;
}

/* ------------------------------------------------------------------ memory */

static void poison(hook *h, void *ptr, uint64_t bytes)
{
    if (ptr && h->host_reads_device && atomic_load(&h->poison)) {
        memset(ptr, 0xff, (size_t)bytes);
    }
}

static ren_status hook_mem_alloc(ren__device *dev, uint64_t bytes, void **out)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_MEM_ALLOC);
    *out = NULL;
    if (status == REN_OK) {
        status = h->api->mem_alloc(h->dev, bytes, out);
        poison(h, *out, bytes);
    }
    return status;
}

static void hook_mem_free(ren__device *dev, void *ptr, uint64_t bytes)
{
    hook *h = hook_of_device(dev);
    poison(h, ptr, bytes);
    h->api->mem_free(h->dev, ptr, bytes);
}

static ren_status hook_host_alloc(ren__device *dev, uint64_t bytes, void **out)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_HOST_ALLOC);
    *out = NULL;
    if (status == REN_OK) {
        status = h->api->host_alloc(h->dev, bytes, out);
        poison(h, *out, bytes);
    }
    return status;
}

static void hook_host_free(ren__device *dev, void *ptr, uint64_t bytes)
{
    hook *h = hook_of_device(dev);
    poison(h, ptr, bytes);
    h->api->host_free(h->dev, ptr, bytes);
}

/* ------------------------------------------------------------------ events and commands */

static ren_status hook_event_create(ren__device *dev, uint32_t for_host_wait, ren__event **out)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_EVENT_CREATE);
    *out = NULL;
    return status == REN_OK ? h->api->event_create(h->dev, for_host_wait, out) : status;
}

static void hook_event_destroy(ren__device *dev, ren__event *event)
{
    hook *h = hook_of_device(dev);
    h->api->event_destroy(h->dev, event);
}

static ren_status hook_event_record(ren__device *dev, uint32_t lane, ren__event *event)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_EVENT_RECORD);
    if (status == REN_OK) {
        ren_test_command c = {.call = "event_record", .event = event};
        /* Both reports go before the record: who waits for it may look at them. */
        ren__hook_after(h, lane, ren__hook_before(h, lane, &c));
        status = h->api->event_record(h->dev, lane, event);
    }
    return status;
}

static ren_status hook_event_wait(ren__device *dev, uint32_t lane, ren__event *event)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_EVENT_WAIT);
    if (status == REN_OK && h->capturing) {
        return h->api->event_wait(h->dev, lane, event); /* it may be what joins the lane */
    }
    if (status == REN_OK) {
        ren_test_command c = {.call = "event_wait", .event = event};
        report *r = ren__hook_before(h, lane, &c);
        status = h->api->event_wait(h->dev, lane, event);
        ren__hook_after(h, lane, r);
    }
    return status;
}

static ren_status hook_event_sync(ren__device *dev, ren__event *event)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_EVENT_SYNC);
    return status == REN_OK ? h->api->event_sync(h->dev, event) : status;
}

static ren_status hook_copy(ren__device *dev, uint32_t lane, void *dst, const void *src,
                            uint64_t bytes)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_COPY);
    if (status == REN_OK) {
        ren_test_command c = {.call = "copy", .read_count = 1, .write_count = 1};
        c.reads[0] = (ren_test_access){src, bytes};
        c.writes[0] = (ren_test_access){dst, bytes};
        report *r = ren__hook_before(h, lane, &c);
        status = h->api->copy(h->dev, lane, dst, src, bytes);
        ren__hook_after(h, lane, r);
    }
    return status;
}

static ren_status hook_fill(ren__device *dev, uint32_t lane, void *dst, uint32_t byte_value,
                            uint64_t bytes)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_FILL);
    if (status == REN_OK) {
        ren_test_command c = {.call = "fill", .write_count = 1};
        c.writes[0] = (ren_test_access){dst, bytes};
        report *r = ren__hook_before(h, lane, &c);
        status = h->api->fill(h->dev, lane, dst, byte_value, bytes);
        ren__hook_after(h, lane, r);
    }
    return status;
}

static ren_status hook_call(ren__device *dev, uint32_t lane, ren__call_fn fn, void *user,
                            ren_status *out_status)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_CALL);
    if (status == REN_OK) {
        ren_test_command c = {.call = "call"};
        report *r = ren__hook_before(h, lane, &c);
        status = h->api->call(h->dev, lane, fn, user, out_status);
        ren__hook_after(h, lane, r);
    }
    return status;
}

/* ------------------------------------------------------------------ graphs */

static ren_status hook_graph_begin(ren__device *dev, uint32_t origin)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_GRAPH_BEGIN);
    if (status == REN_OK) {
        status = h->api->graph_begin(h->dev, origin);
        h->capturing = status == REN_OK;
    }
    return status;
}

static ren_status hook_graph_update(ren__device *dev, uint32_t origin, ren__graph *graph,
                                    ren_error *err)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_GRAPH_UPDATE);
    if (status != REN_OK) {
        return ren__error_set(err, status, 0, __FILE__, __LINE__, "injected by a test");
    }
    status = h->api->graph_update(h->dev, origin, graph, err);
    h->capturing = status != REN_OK;
    return status;
}

static ren_status hook_graph_end(ren__device *dev, uint32_t origin, ren__graph **out,
                                 ren_error *err)
{
    hook *h = hook_of_device(dev);
    ren_status injected = ren__hook_enter(h, CALL_GRAPH_END);
    /* The capture has to be ended in any case. */
    ren_status status = h->api->graph_end(h->dev, origin, out, err);
    h->capturing = 0;
    if (injected != REN_OK) {
        if (status == REN_OK) {
            h->api->graph_destroy(h->dev, *out);
        }
        *out = NULL;
        return ren__error_set(err, injected, 0, __FILE__, __LINE__, "injected by a test");
    }
    return status;
}

static ren_status hook_graph_launch(ren__device *dev, uint32_t lane, ren__graph *graph)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_GRAPH_LAUNCH);
    if (status == REN_OK) {
        ren_test_command c = {.call = "graph_launch"};
        report *r = ren__hook_before(h, lane, &c);
        status = h->api->graph_launch(h->dev, lane, graph);
        ren__hook_after(h, lane, r);
    }
    return status;
}

static void hook_graph_destroy(ren__device *dev, ren__graph *graph)
{
    hook *h = hook_of_device(dev);
    h->api->graph_destroy(h->dev, graph);
}

/* ------------------------------------------------------------------ the clock */

static ren_status hook_stamp(ren__device *dev, uint32_t lane, uint64_t *out)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_STAMP);
    if (status == REN_OK) {
        ren_test_command c = {.call = "stamp", .write_count = 1};
        c.writes[0] = (ren_test_access){out, sizeof *out};
        report *r = ren__hook_before(h, lane, &c);
        if (atomic_load(&h->clock_ppm)) {
            ren__hook_stamp_skewed(h, lane, out);
        } else {
            status = h->api->stamp(h->dev, lane, out);
        }
        ren__hook_after(h, lane, r);
    }
    return status;
}

/* ------------------------------------------------------------------ host memory */

static uint32_t hook_host_is_pinned(ren__device *dev, const void *ptr)
{
    hook *h = hook_of_device(dev);
    return h->api->host_is_pinned && !h->unpinned ? h->api->host_is_pinned(h->dev, ptr) : 0;
}

static ren_status hook_copy_now(ren__device *dev, void *dst, const void *src, uint64_t bytes)
{
    hook *h = hook_of_device(dev);
    ren_status status = ren__hook_enter(h, CALL_COPY);
    if (status == REN_OK && h->unpinned) {
        memcpy(dst, src, (size_t)bytes);
    } else if (status == REN_OK) {
        status = h->api->copy_now(h->dev, dst, src, bytes);
    }
    return status;
}

/* ------------------------------------------------------------------ the device */

static void hook_close(ren__device *dev)
{
    hook *h = hook_of_device(dev);
    if (!h) {
        return;
    }
    h->api->close(h->dev);
    h->dev = NULL;
    ren__hook_release_all(h);
}

/* Tests train small networks. By a device's own figures their plans would be on one stream, and
 * nothing that tests look for in forks, joins and hazards would be there: here events cost next to
 * nothing. */
static const ren__device_costs spreading = {.launch_ns = 1000,
                                            .event_ns = 1,
                                            .graph_launch_ns = 1000,
                                            .graph_event_ns = 1,
                                            .processors = REN__LANES,
                                            .flops_per_ns = 100.0f,
                                            .tf32_flops_per_ns = 100.0f,
                                            .half_flops_per_ns = 100.0f,
                                            .bytes_per_ns = 100.0f};

static void hook_caps(ren__device *dev, ren__device_caps *out)
{
    hook *h = hook_of_device(dev);
    h->api->caps(h->dev, out);
    out->costs = spreading;
    /* Room for what the hooks add, but never so little that steps cannot overlap. */
    out->lane_commands /= COMMANDS_PER_COMMAND;
    out->lane_commands = out->lane_commands < LEAST_COMMANDS ? LEAST_COMMANDS : out->lane_commands;
    out->pageable_copies = out->pageable_copies && !h->unpinned;
    out->fusions = h->unfused ? 0 : out->fusions;
}

static ren_status hook_status(ren__device *dev, ren_error *err)
{
    hook *h = hook_of_device(dev);
    if (atomic_load(&h->lost)) {
        return ren__error_set(err, REN_ERR_DEVICE_LOST, 0, __FILE__, __LINE__,
                              "injected by a test");
    }
    return h->api->status(h->dev, err);
}

static void hook_abandon(ren__device *dev)
{
    hook *h = hook_of_device(dev);
    h->api->abandon(h->dev);
}

static ren_status open_through(const ren__device_api *inner, const ren__device_config *config,
                               const ren__host_services *host, ren__device **out, ren_error *err)
{
    *out = NULL;
    hook *h = calloc(1, sizeof *h);
    if (!h) {
        return REN_ERR_NO_MEMORY;
    }
    h->api = inner;
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->released, NULL);
    for (uint32_t i = 0; i < REN__LANES; i++) {
        h->holds[i].of = h;
    }
    ren__device_config changed = *config;
    ren_status status = ren__hook_take_pending(h, &changed);
    if (status != REN_OK) {
        status = ren__error_set(err, status, 0, __FILE__, __LINE__, "injected by a test");
    } else {
        status = inner->open(&changed, host, &h->dev, err);
    }
    if (status != REN_OK) {
        free(h);
        return status;
    }
    ren__device_caps caps;
    inner->caps(h->dev, &caps);
    h->host_reads_device = (int)caps.host_reads_device;
    pthread_mutex_lock(&global.mutex);
    h->next = global.all;
    global.all = h;
    pthread_mutex_unlock(&global.mutex);
    *out = (ren__device *)(void *)h;
    return REN_OK;
}

/* The table's open gets no pointer of ours, so each wrapped table has an open of its own. */
#define DEFINE_OPEN(n)                                                                             \
    static ren_status open_##n(const ren__device_config *config, const ren__host_services *host,   \
                               ren__device **out, ren_error *err)                                  \
    {                                                                                              \
        return open_through(global.inner[n], config, host, out, err);                              \
    }
DEFINE_OPEN(0)
DEFINE_OPEN(1)
DEFINE_OPEN(2)
DEFINE_OPEN(3)

static void fill_table(ren__device_api *table, const ren__device_api *inner)
{
    *table = (ren__device_api){
        .struct_size = (uint32_t)sizeof *table,
        .abi = inner->abi,
        .kind = inner->kind,
        .close = hook_close,
        .caps = hook_caps,
        .status = hook_status,
        .abandon = hook_abandon,
        .mem_alloc = hook_mem_alloc,
        .mem_free = hook_mem_free,
        .host_alloc = hook_host_alloc,
        .host_free = hook_host_free,
        .event_create = hook_event_create,
        .event_destroy = hook_event_destroy,
        .event_record = hook_event_record,
        .event_wait = hook_event_wait,
        .event_sync = hook_event_sync,
        .copy = hook_copy,
        .fill = hook_fill,
        .call = hook_call,
        .op_create = hook_op_create,
        .op_destroy = hook_op_destroy,
        .op_launch = hook_op_launch,
        .graph_begin = hook_graph_begin,
        .graph_update = hook_graph_update,
        .graph_end = hook_graph_end,
        .graph_launch = hook_graph_launch,
        .graph_destroy = hook_graph_destroy,
        .host_is_pinned = hook_host_is_pinned,
        .copy_now = hook_copy_now,
        .stamp = hook_stamp,
    };
}

const ren__device_api *ren__test_wrap(const ren__device_api *inner)
{
    static ren_status (*const opens[MOST_TABLES])(const ren__device_config *,
                                                  const ren__host_services *, ren__device **,
                                                  ren_error *) = {open_0, open_1, open_2, open_3};
    const ren__device_api *result = NULL;
    pthread_mutex_lock(&global.mutex);
    for (int i = 0; i < MOST_TABLES && !result; i++) {
        if (!global.inner[i]) {
            global.inner[i] = inner;
            fill_table(&global.tables[i], inner);
            global.tables[i].open = opens[i];
        }
        if (global.inner[i] == inner) {
            result = &global.tables[i];
        }
    }
    pthread_mutex_unlock(&global.mutex);
    return result ? result : inner;
}
