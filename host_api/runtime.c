/* SPDX-License-Identifier: MIT */
/* host_api/runtime.c - the runtime's public calls: check the arguments, call the core.
 *
 * Threads   as ren.h says for each call; nothing is kept here.
 */
#include "ren.h"
#include "../libren/core/core.h"

static ren_status bad(ren_error *err, const char *text)
{
    return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "%s", text);
}

static ren_status bad_size(ren_error *err, const char *what, uint32_t got, size_t want)
{
    return REN__FAIL(err, REN_ERR_BAD_STRUCT,
                     "%s has struct_size %u, not %zu: start from %s_default()", what, got, want,
                     what);
}

static ren_status check_hooks(const ren_runtime_config *c, ren_error *err)
{
    if (c->allocator && c->allocator->struct_size != sizeof *c->allocator) {
        return bad_size(err, "ren_allocator", c->allocator->struct_size, sizeof *c->allocator);
    }
    if (c->allocator && (!c->allocator->alloc || !c->allocator->free)) {
        return bad(err, "config.allocator needs both alloc and free");
    }
    if (c->log && c->log->struct_size != sizeof *c->log) {
        return bad_size(err, "ren_log", c->log->struct_size, sizeof *c->log);
    }
    if (c->threads && c->threads->struct_size != sizeof *c->threads) {
        return bad_size(err, "ren_threads", c->threads->struct_size, sizeof *c->threads);
    }
    if (c->threads && (!c->threads->start || !c->threads->join)) {
        return bad(err, "config.threads needs both start and join");
    }
    if (c->cuda && c->cuda->struct_size != sizeof *c->cuda) {
        return bad_size(err, "ren_cuda_options", c->cuda->struct_size, sizeof *c->cuda);
    }
    return REN_OK;
}

static ren_status check_config(const ren_runtime_config *c, ren_error *err)
{
    if (c->struct_size != sizeof *c) {
        return bad_size(err, "ren_runtime_config", c->struct_size, sizeof *c);
    }
    if ((uint32_t)c->device > REN_DEVICE_CUDA) {
        return bad(err, "config.device is none of REN_DEVICE_AUTO, CPU, CUDA");
    }
    if (c->streams > REN_STREAM_COUNT) {
        return bad(err, "config.streams must be 0 (= 5) or 1..5");
    }
    if (c->ring_entries > 65536) {
        return bad(err, "config.ring_entries must be 0 (= 4096) or 1..65536");
    }
    if (c->cpu_threads > 1024) {
        return bad(err, "config.cpu_threads must be 0 (= 1) or 1..1024");
    }
    if (c->max_buffers > 65536) {
        return bad(err, "config.max_buffers must be 0 (= 4096) or 1..65536");
    }
    return check_hooks(c, err);
}

ren_status ren_runtime_create(const ren_runtime_config *config, ren_runtime **out_runtime,
                              ren_error *err)
{
    ren_runtime_config defaults = ren_runtime_config_default();
    ren_status status;
    if (!out_runtime) {
        return bad(err, "out_runtime is NULL");
    }
    *out_runtime = NULL;
    config = config ? config : &defaults;
    status = check_config(config, err);
    return status == REN_OK ? ren__runtime_create(config, out_runtime, err) : status;
}

ren_status ren_runtime_close(ren_runtime *rt)
{
    return rt ? ren__runtime_close(rt) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_runtime_drain(ren_runtime *rt, uint64_t timeout_ns)
{
    return rt ? ren__runtime_drain(rt, timeout_ns) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_runtime_abort(ren_runtime *rt)
{
    return rt ? ren__runtime_abort(rt) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_runtime_destroy(ren_runtime *rt)
{
    return rt ? ren__runtime_destroy(rt) : REN_OK;
}

ren_status ren_runtime_shutdown(ren_runtime *rt, uint64_t timeout_ns)
{
    return rt ? ren__runtime_shutdown(rt, timeout_ns) : REN_OK;
}

ren_status ren_runtime_status(ren_runtime *rt, ren_error *err)
{
    return rt ? ren__runtime_status(rt, err) : bad(err, "rt is NULL");
}

const char *ren_runtime_device_name(ren_runtime *rt)
{
    return rt ? ren__runtime_device_name(rt) : "";
}

ren_device_kind ren_runtime_device_kind(ren_runtime *rt)
{
    return rt ? ren__runtime_device_kind(rt) : REN_DEVICE_AUTO;
}

ren_status ren_runtime_stats(ren_runtime *rt, ren_stats *out_stats)
{
    ren_stats stats = ren_stats_default();
    uint32_t size;
    if (!rt || !out_stats) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    size = out_stats->struct_size;
    if (size < sizeof stats.struct_size + sizeof stats.jobs_posted || size > sizeof stats) {
        return REN_ERR_BAD_STRUCT;
    }
    if (ren__runtime_status(rt, NULL) == REN_ERR_FORKED) {
        return REN_ERR_FORKED;
    }
    ren__runtime_stats(rt, &stats);
    memcpy(out_stats, &stats, size);
    out_stats->struct_size = size;
    return REN_OK;
}

ren_status ren_runtime_tick(ren_runtime *rt, uint32_t max_jobs, uint32_t *out_issued)
{
    return rt ? ren__runtime_tick(rt, max_jobs, out_issued) : REN_ERR_INVALID_ARGUMENT;
}
