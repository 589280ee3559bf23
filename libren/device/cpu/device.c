/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/device.c - the CPU device's table: open and close, memory, faults, commands.
 *
 * Purpose   Fill a ren__device_api with the parts that cpu.h lists.
 * Threads   as device.h says.
 * Memory    "device" memory is ordinary memory, aligned for vector units and counted against the
 *           configured limit; it comes from the C library, since the host's allocator must not be
 *           called outside create and destroy calls. The device's own structures come from the
 *           host's allocator.
 *
 * Faults. `lost` is set once, with the first reason, and never cleared. Setting it wakes every
 * sleeper of every lane. A lane that is inside a host function cannot be stopped: everything that
 * it might still touch stays where it is. So what is freed after a loss first waits (once, up to a
 * second) for the lanes to leave their commands, and close gives up a lane that does not: its
 * thread, and the device with it, are left behind on purpose and logged.
 */
#include "cpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SETTLE_NS      UINT64_C(1000000000)
#define SETTLE_LOOK_NS 1000000

uint64_t ren__cpu_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void *ren__cpu_alloc(ren__device *dev, size_t bytes)
{
    void *ptr = dev->host.alloc(dev->host.user, bytes, REN__CPU_CACHE_LINE);
    if (ptr) {
        memset(ptr, 0, bytes);
    }
    return ptr;
}

void ren__cpu_free(ren__device *dev, void *ptr, size_t bytes)
{
    if (ptr) {
        dev->host.free(dev->host.user, ptr, bytes);
    }
}

void ren__cpu_log(ren__device *dev, ren_log_level level, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (dev->host.log) {
        dev->host.log(dev->host.user, level, text);
    }
}

ren_status ren__cpu_fail(ren_error *err, ren_status status, int32_t code, const char *file,
                         int32_t line, const char *format, ...)
{
    if (err) {
        va_list args;
        err->status = status;
        err->backend_code = code;
        err->file = file;
        err->line = line;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return status;
}

/* ------------------------------------------------------------------ faults */

void ren__cpu_lose(ren__device *dev, const char *text, int32_t code)
{
    pthread_mutex_lock(&dev->mutex);
    bool first = atomic_load_explicit(&dev->lost, memory_order_relaxed) == 0;
    if (first) {
        ren__cpu_fail(&dev->fault, REN_ERR_DEVICE_LOST, code, __FILE__, __LINE__, "%s", text);
        /* Release: pairs with ren__cpu_is_lost; `fault` is written. */
        atomic_store_explicit(&dev->lost, 1, memory_order_release);
    }
    pthread_mutex_unlock(&dev->mutex);
    if (first) {
        ren__cpu_log(dev, REN_LOG_ERROR, "cpu device lost: %s", text);
        for (uint32_t i = 0; i < dev->lanes; i++) {
            ren__cpu_point_wake_all(&dev->lane[i]);
        }
    }
}

static ren_status cpu_status(ren__device *dev, ren_error *err)
{
    if (!ren__cpu_is_lost(dev)) {
        return REN_OK;
    }
    if (err) {
        pthread_mutex_lock(&dev->mutex);
        *err = dev->fault;
        pthread_mutex_unlock(&dev->mutex);
    }
    return REN_ERR_DEVICE_LOST;
}

static void cpu_abandon(ren__device *dev)
{
    ren__cpu_lose(dev, "given up by the runtime", 0);
}

static bool lane_is_idle(ren__cpu_lane *lane)
{
    /* Acquire: pairs with the lane's store of tail; its last command has let go of its memory. */
    uint64_t tail = atomic_load_explicit(&lane->tail, memory_order_acquire);
    return tail == atomic_load_explicit(&lane->head, memory_order_relaxed);
}

static bool lane_has_exited(ren__cpu_lane *lane)
{
    return !lane->thread || atomic_load_explicit(&lane->exited, memory_order_acquire) != 0;
}

/* Look every millisecond, up to a second: a lane cannot tell us that it is stuck. */
static bool all_lanes(ren__device *dev, bool (*ready)(ren__cpu_lane *lane))
{
    uint64_t end = ren__cpu_now_ns() + SETTLE_NS;
    for (;;) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < dev->lanes_ready; i++) {
            count += ready(&dev->lane[i]) ? 1u : 0u;
        }
        if (count == dev->lanes_ready) {
            return true;
        }
        if (ren__cpu_now_ns() >= end) {
            return false;
        }
        struct timespec pause = {0, SETTLE_LOOK_NS};
        nanosleep(&pause, NULL);
    }
}

bool ren__cpu_settle(ren__device *dev)
{
    pthread_mutex_lock(&dev->mutex);
    if (!dev->settled) {
        dev->stuck = !all_lanes(dev, lane_is_idle);
        dev->settled = true;
        if (dev->stuck) {
            ren__cpu_log(dev, REN_LOG_ERROR,
                         "cpu device: a lane does not return from a host function; what it may "
                         "use is not freed");
        }
    }
    bool stuck = dev->stuck;
    pthread_mutex_unlock(&dev->mutex);
    return !stuck;
}

/* ------------------------------------------------------------------ open, close */

static void free_device(ren__device *dev)
{
    ren__host_services host = dev->host;
    ren__cpu_capture_drop(dev);
    for (uint32_t i = 0; i < dev->lanes_ready; i++) {
        ren__cpu_lane_deinit(&dev->lane[i]);
    }
    ren__cpu_free(dev, dev->lane, dev->lanes * sizeof *dev->lane);
    if (dev->engine) {
        dnnl_engine_destroy(dev->engine);
    }
    if (dev->mutex_ready) {
        pthread_mutex_destroy(&dev->mutex);
    }
    host.free(host.user, dev, sizeof *dev);
}

static void cpu_close(ren__device *dev)
{
    if (!dev) {
        return;
    }
    atomic_store(&dev->stop, 1);
    for (uint32_t i = 0; i < dev->lanes_ready; i++) {
        ren__cpu_point_wake_all(&dev->lane[i]);
    }
    bool left_behind = ren__cpu_is_lost(dev) && !all_lanes(dev, lane_has_exited);
    for (uint32_t i = 0; i < dev->lanes_ready; i++) {
        ren__cpu_lane *lane = &dev->lane[i];
        if (lane->thread && (!left_behind || lane_has_exited(lane))) {
            dev->host.thread_join(dev->host.user, lane->thread);
        }
    }
    if (left_behind) {
        ren__cpu_log(
            dev, REN_LOG_ERROR,
            "cpu device: a lane never returned; its thread and the device are left behind");
        return;
    }
    free_device(dev);
}

static uint32_t cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1u;
}

static ren_status open_lanes(ren__device *dev, ren_error *err)
{
    dev->lane = ren__cpu_alloc(dev, dev->lanes * sizeof *dev->lane);
    if (!dev->lane) {
        return REN__CPU_FAIL(err, REN_ERR_NO_MEMORY, "out of memory for the lanes");
    }
    for (uint32_t i = 0; i < dev->lanes; i++) {
        ren_status status = ren__cpu_lane_init(dev, i);
        if (status != REN_OK) {
            return REN__CPU_FAIL(err, status, "out of memory for lane %u", (unsigned)i);
        }
        dev->lanes_ready = i + 1u;
        REN__DNNL(err,
                  dnnl_stream_create(&dev->lane[i].dnnl, dev->engine, dnnl_stream_default_flags));
    }
    /* Under a seed lane 0's thread runs all lanes. */
    uint32_t threads = dev->config.seed != 0 ? 1u : dev->lanes;
    for (uint32_t i = 0; i < threads; i++) {
        ren_status status = ren__cpu_lane_start(&dev->lane[i]);
        if (status != REN_OK) {
            return REN__CPU_FAIL(err, status, "cannot start the thread of lane %u", (unsigned)i);
        }
    }
    return REN_OK;
}

static ren_status cpu_open(const ren__device_config *config, const ren__host_services *host,
                           ren__device **out, ren_error *err)
{
    *out = NULL;
    if (config->device_index != 0) {
        return REN__CPU_FAIL(err, REN_ERR_INVALID_ARGUMENT,
                             "device_index is %u; there is one CPU device, number 0",
                             config->device_index);
    }
    if (config->lanes < 1 || config->lanes > REN__LANES) {
        return REN__CPU_FAIL(err, REN_ERR_INVALID_ARGUMENT, "lanes must be 1 to %u", REN__LANES);
    }
    ren__device *dev = host->alloc(host->user, sizeof *dev, REN__CPU_CACHE_LINE);
    if (!dev) {
        return REN__CPU_FAIL(err, REN_ERR_NO_MEMORY, "out of memory for the device");
    }
    memset(dev, 0, sizeof *dev);
    dev->host = *host;
    dev->config = *config;
    dev->config.cpu_threads = config->cpu_threads ? config->cpu_threads : 1u;
    dev->lanes = config->lanes;
    atomic_init(&dev->seed_state, config->seed);
    const dnnl_version_t *v = dnnl_version();
    snprintf(dev->name, sizeof dev->name, "CPU (oneDNN %d.%d.%d, %u cores)", v->major, v->minor,
             v->patch, (unsigned)cores());
    ren_status status = REN_OK;
    if (pthread_mutex_init(&dev->mutex, NULL) != 0) {
        status = REN__CPU_FAIL(err, REN_ERR_NO_MEMORY, "cannot make a mutex");
        goto fail;
    }
    dev->mutex_ready = true;
    status = ren__dnnl_check(dnnl_engine_create(&dev->engine, dnnl_cpu, 0), err, __FILE__, __LINE__,
                             "dnnl_engine_create");
    if (status != REN_OK) {
        goto fail;
    }
    status = open_lanes(dev, err);
    if (status != REN_OK) {
        goto fail;
    }
    *out = dev;
    return REN_OK;
fail:
    cpu_close(dev);
    return status;
}

/* By a step of mlp-64x4 on two processors (step_bench, EPYC): 32 tasks of 0.35 ms on one lane, of
 * which 0.23 ms are arithmetic by the rate of mlp-256x4; 0.18 ms more with nine waits between
 * lanes, since a lane that waits sleeps, and waking a thread takes a system call on both sides. */
static ren__device_costs costs_of(const ren__device *dev)
{
    ren__device_costs c;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    memset(&c, 0, sizeof c);
    c.launch_ns = c.graph_launch_ns = 3000;
    c.event_ns = c.graph_event_ns = c.graph_root_ns = 15000;
    c.host_launch_ns = 300;
    c.host_event_ns = 300;
    c.wait_ns = 15000;
    c.processors = processors > 0 ? (uint32_t)processors / dev->config.cpu_threads : 1u;
    c.processors = c.processors ? c.processors : 1u;
    c.flops_per_ns = c.tf32_flops_per_ns = c.half_flops_per_ns = 90.0f;
    c.bytes_per_ns = 15.0f;
    return c;
}

static void cpu_caps(ren__device *dev, ren__device_caps *out)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    memset(out, 0, sizeof *out);
    out->struct_size = (uint32_t)sizeof *out;
    memcpy(out->name, dev->name, sizeof out->name);
    out->lane_commands = REN__CPU_LANE_COMMANDS;
    out->host_reads_device = 1;
    out->pageable_copies = 1;
    out->conv_weights_ohwi = 0;
    out->graphs = 1;
    out->fusions = REN__FUSE_LINEAR_ACT | REN__FUSE_CONV_ACT | REN__FUSE_NORM_ACT |
                   REN__FUSE_NORM_ADD | REN__FUSE_WEIGHT_BIAS | REN__FUSE_ACT_BIAS |
                   REN__FUSE_HALF_LOSS | REN__FUSE_GELU | REN__FUSE_NORM_GRADS;
    out->memory_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0u;
    out->costs = costs_of(dev);
}

/* ------------------------------------------------------------------ memory */

static ren_status take(ren__device *dev, uint64_t bytes, bool limited, void **out)
{
    *out = NULL;
    if (ren__cpu_is_lost(dev)) {
        return REN_ERR_DEVICE_LOST;
    }
    if (bytes == 0 || bytes > SIZE_MAX - REN__ALIGN) {
        return REN_ERR_NO_DEVICE_MEMORY;
    }
    uint64_t limit = dev->config.memory_limit_bytes;
    bool fits = true;
    pthread_mutex_lock(&dev->mutex);
    if (limited) {
        fits = limit == 0 || (bytes <= limit && dev->memory_bytes <= limit - bytes);
        dev->memory_bytes += fits ? bytes : 0u;
    }
    pthread_mutex_unlock(&dev->mutex);
    if (fits) {
        size_t rounded = ((size_t)bytes + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
        *out = aligned_alloc(REN__ALIGN, rounded);
        if (!*out && limited) {
            pthread_mutex_lock(&dev->mutex);
            dev->memory_bytes -= bytes;
            pthread_mutex_unlock(&dev->mutex);
        }
    }
    return *out ? REN_OK : REN_ERR_NO_DEVICE_MEMORY;
}

static ren_status cpu_mem_alloc(ren__device *dev, uint64_t bytes, void **out)
{
    return take(dev, bytes, true, out);
}

static ren_status cpu_host_alloc(ren__device *dev, uint64_t bytes, void **out)
{
    return take(dev, bytes, false, out);
}

static void cpu_host_free(ren__device *dev, void *ptr, uint64_t bytes)
{
    (void)bytes;
    if (ptr && (!ren__cpu_is_lost(dev) || ren__cpu_settle(dev))) {
        free(ptr);
    }
}

static void cpu_mem_free(ren__device *dev, void *ptr, uint64_t bytes)
{
    if (ptr) {
        pthread_mutex_lock(&dev->mutex);
        dev->memory_bytes -= bytes;
        pthread_mutex_unlock(&dev->mutex);
        cpu_host_free(dev, ptr, bytes);
    }
}

/* ------------------------------------------------------------------ commands */

static ren_status submit(ren__device *dev, uint32_t lane, const ren__cpu_command *command)
{
    if (ren__cpu_is_lost(dev)) {
        return REN_ERR_DEVICE_LOST;
    }
    switch (ren__cpu_capture_command(dev, lane, command)) {
    case REN__CPU_CAPTURED:
        return REN_OK;
    case REN__CPU_CAPTURE_FAILED:
        return REN_ERR_INVALID_ARGUMENT;
    case REN__CPU_NOT_CAPTURED:
        break;
    }
    return ren__cpu_enqueue(dev, lane, command);
}

static ren_status cpu_copy(ren__device *dev, uint32_t lane, void *dst, const void *src,
                           uint64_t bytes)
{
    ren__cpu_command command = {.kind = REN__CPU_COPY};
    command.as.copy.dst = dst;
    command.as.copy.src = src;
    command.as.copy.bytes = bytes;
    return submit(dev, lane, &command);
}

static ren_status cpu_fill(ren__device *dev, uint32_t lane, void *dst, uint32_t byte_value,
                           uint64_t bytes)
{
    ren__cpu_command command = {.kind = REN__CPU_FILL};
    command.as.fill.dst = dst;
    command.as.fill.value = byte_value & 0xffu;
    command.as.fill.bytes = bytes;
    return submit(dev, lane, &command);
}

static ren_status cpu_call(ren__device *dev, uint32_t lane, ren__call_fn fn, void *user,
                           ren_status *out_status)
{
    ren__cpu_command command = {.kind = REN__CPU_CALL};
    command.as.call.fn = fn;
    command.as.call.user = user;
    command.as.call.out_status = out_status;
    return submit(dev, lane, &command);
}

static ren_status cpu_op_launch(ren__device *dev, uint32_t lane, ren__op *op,
                                void *const operands[REN__OPERANDS], void *workspace)
{
    ren__cpu_command command = {.kind = REN__CPU_OP};
    command.as.op.op = op;
    command.as.op.workspace = workspace;
    memcpy(command.as.op.operands, operands, sizeof command.as.op.operands);
    return submit(dev, lane, &command);
}

static ren_status cpu_stamp(ren__device *dev, uint32_t lane, uint64_t *out)
{
    ren__cpu_command command = {.kind = REN__CPU_STAMP};
    command.as.stamp.out = out;
    return submit(dev, lane, &command);
}

const ren__device_api *ren__device_cpu(void)
{
    static const ren__device_api api = {
        .struct_size = (uint32_t)sizeof api,
        .abi = REN__DEVICE_ABI,
        .kind = REN_DEVICE_CPU,
        .open = cpu_open,
        .close = cpu_close,
        .caps = cpu_caps,
        .status = cpu_status,
        .abandon = cpu_abandon,
        .mem_alloc = cpu_mem_alloc,
        .mem_free = cpu_mem_free,
        .host_alloc = cpu_host_alloc,
        .host_free = cpu_host_free,
        .event_create = ren__cpu_event_create,
        .event_destroy = ren__cpu_event_destroy,
        .event_record = ren__cpu_event_record,
        .event_wait = ren__cpu_event_wait,
        .event_sync = ren__cpu_event_sync,
        .copy = cpu_copy,
        .fill = cpu_fill,
        .call = cpu_call,
        .op_create = ren__cpu_op_create,
        .op_destroy = ren__cpu_op_destroy,
        .op_launch = cpu_op_launch,
        .graph_begin = ren__cpu_graph_begin,
        .graph_update = ren__cpu_graph_update,
        .graph_end = ren__cpu_graph_end,
        .graph_launch = ren__cpu_graph_launch,
        .graph_destroy = ren__cpu_graph_destroy,
        .stamp = cpu_stamp,
    };
    return &api;
}
