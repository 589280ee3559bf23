/* SPDX-License-Identifier: MIT */
/* host_api/jobs.c - posting, completion and buffers: check the arguments, call the core.
 *
 * Threads   as ren.h says for each call; nothing is kept here.
 */
#include "ren.h"
#include "../libren/core/core.h"

#include <stdbool.h>

static bool location_is_good(const ren_location *l)
{
    return l->buffer.id ? l->host == NULL : l->host != NULL;
}

/* Both sides lie in one buffer, or both in host memory, and share bytes. */
static bool copy_overlaps(const ren_copy *c)
{
    uint64_t a = c->dst.buffer.id ? c->dst.offset : (uint64_t)(uintptr_t)c->dst.host;
    uint64_t b = c->src.buffer.id ? c->src.offset : (uint64_t)(uintptr_t)c->src.host;
    return c->dst.buffer.id == c->src.buffer.id && (a > b ? a - b : b - a) < c->bytes;
}

/* What is wrong with a job's own members, or NULL. */
static const char *wrong_payload(const ren_job_desc *d)
{
    switch (d->kind) {
    case REN_JOB_COPY:
        return !d->copy.bytes ? "copy.bytes (it is 0)"
               : !location_is_good(&d->copy.dst)
                   ? "copy.dst (must be a buffer, or else host memory)"
               : !location_is_good(&d->copy.src)
                   ? "copy.src (must be a buffer, or else host memory)"
               : copy_overlaps(&d->copy) ? "copy (its two sides overlap)"
                                         : NULL;
    case REN_JOB_FILL:
        return !d->fill.bytes         ? "fill.bytes (it is 0)"
               : d->fill.value > 255u ? "fill.value (it is more than 255)"
               : !d->fill.dst.buffer.id || !location_is_good(&d->fill.dst)
                   ? "fill.dst (must be a buffer, without host memory)"
                   : NULL;
    case REN_JOB_DEVICE:
        return d->enqueue ? NULL : "enqueue (it is NULL)";
    case REN_JOB_HOST:
        return d->host_fn ? NULL : "host_fn (it is NULL)";
    case REN_JOB_BARRIER:
        return NULL;
    }
    return "kind (it is no ren_job_kind)";
}

/* The first member that is wrong, and what it should be; NULL when the buffers and jobs that are
 * named are all that is left to look at. Behind struct_size. */
static const char *wrong_member(const ren_job_desc *d)
{
    if ((uint32_t)d->stream >= REN_STREAM_COUNT) {
        return "stream (it is no ren_stream)";
    }
    if ((uint32_t)d->priority > REN_PRIORITY_BACKGROUND) {
        return "priority (it is no ren_priority)";
    }
    if ((uint32_t)d->deliver > REN_DELIVER_NONE) {
        return "deliver (it is no ren_deliver)";
    }
    if (d->channel >= REN_CHANNELS) {
        return "channel (it is not below REN_CHANNELS)";
    }
    if (d->wait_count > REN_MAX_WAITS || (d->wait_count && !d->wait)) {
        return "wait or wait_count (NULL, or more than REN_MAX_WAITS)";
    }
    if (d->use_count > REN_MAX_USES || (d->use_count && !d->uses)) {
        return "uses or use_count (NULL, or more than REN_MAX_USES)";
    }
    for (uint32_t i = 0; i < d->use_count; i++) {
        uint32_t access = (uint32_t)d->uses[i].access;
        if (access < REN_ACCESS_READ || access > REN_ACCESS_READ_WRITE) {
            return "uses[].access (it is no ren_access)";
        }
    }
    return wrong_payload(d);
}

static ren_status check_desc(const ren_job_desc *d)
{
    if (!d) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    if (d->struct_size != sizeof *d) {
        return REN_ERR_BAD_STRUCT;
    }
    return wrong_member(d) ? REN_ERR_INVALID_ARGUMENT : REN_OK;
}

/* config.validate: say in the log why a post was refused. */
static void explain(ren_runtime *rt, const ren_job_desc *desc, ren_status status)
{
    if (!desc) {
        (void)ren__runtime_refuse(rt, status, "desc is NULL");
    } else if (status == REN_ERR_BAD_STRUCT) {
        (void)ren__runtime_refuse(rt, status,
                                  "look at struct_size (start from ren_job_desc_default())");
    } else if (status == REN_ERR_INVALID_ARGUMENT) {
        const char *wrong = wrong_member(desc);
        (void)ren__runtime_refuse(rt, status, "look at %s",
                                  wrong ? wrong
                                        : "the buffers it names (one is none of this runtime, or "
                                          "the bytes reach beyond its end)");
    } else if (status == REN_ERR_STALE) {
        (void)ren__runtime_refuse(rt, status,
                                  "a buffer was freed, or a job of wait[] is done and "
                                  "its slot was reused");
    } else {
        (void)ren__runtime_refuse(rt, status, "%s", ren__status_text(status));
    }
}

ren_status ren_post(ren_runtime *rt, const ren_job_desc *desc, ren_job *out_job)
{
    ren_status status = rt ? check_desc(desc) : REN_ERR_INVALID_ARGUMENT;
    if (out_job) {
        out_job->id = 0;
    }
    if (status == REN_OK) {
        status = ren__post(rt, desc, out_job);
    }
    if (status != REN_OK && rt) {
        explain(rt, desc, status);
    }
    return status;
}

ren_status ren_producer_register(ren_runtime *rt, ren_producer **out_producer)
{
    if (!rt || !out_producer) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    return ren__producer_register(rt, out_producer);
}

ren_status ren_producer_post(ren_producer *producer, const ren_job_desc *desc, ren_job *out_job)
{
    ren_status status = producer ? check_desc(desc) : REN_ERR_INVALID_ARGUMENT;
    if (out_job) {
        out_job->id = 0;
    }
    if (status == REN_OK) {
        status = ren__producer_post(producer, desc, out_job);
    }
    if (status != REN_OK && producer) {
        explain(ren__producer_runtime(producer), desc, status);
    }
    return status;
}

ren_status ren_producer_release(ren_producer *producer)
{
    return producer ? ren__producer_release(producer) : REN_OK;
}

ren_status ren_wait(ren_runtime *rt, ren_job job, uint64_t timeout_ns)
{
    return rt ? ren__wait(rt, job, timeout_ns) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_cancel(ren_runtime *rt, ren_job job)
{
    return rt ? ren__cancel(rt, job) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_job_status(ren_runtime *rt, ren_job job)
{
    return rt ? ren__job_status(rt, job) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_pump(ren_runtime *rt, uint32_t channel, uint32_t max_callbacks, uint64_t budget_ns,
                    uint32_t *out_delivered)
{
    if (!rt || channel >= REN_CHANNELS) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    return ren__pump(rt, channel, max_callbacks, budget_ns, out_delivered);
}

ren_status ren_wait_any(ren_runtime *rt, uint64_t timeout_ns)
{
    return rt ? ren__wait_any(rt, timeout_ns) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_wake(ren_runtime *rt)
{
    return rt ? ren__wake(rt) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_timeline_value(ren_runtime *rt, ren_stream stream, uint64_t *out_value)
{
    if (!rt || (uint32_t)stream >= REN_STREAM_COUNT || !out_value) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    return ren__timeline_value(rt, stream, out_value);
}

ren_status ren_timeline_wait(ren_runtime *rt, ren_stream stream, uint64_t value,
                             uint64_t timeout_ns)
{
    if (!rt || (uint32_t)stream >= REN_STREAM_COUNT) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    return ren__timeline_wait(rt, stream, value, timeout_ns);
}

ren_status ren_buffer_alloc(ren_runtime *rt, ren_stream stream, uint64_t bytes,
                            ren_buffer *out_buffer)
{
    if (!rt || (uint32_t)stream >= REN_STREAM_COUNT || !bytes || !out_buffer) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    return ren__buffer_alloc(rt, stream, bytes, out_buffer);
}

ren_status ren_buffer_free(ren_runtime *rt, ren_buffer buffer)
{
    return rt ? ren__buffer_free(rt, buffer) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_memory_reserve(ren_runtime *rt, uint64_t bytes)
{
    return rt && bytes ? ren__memory_reserve(rt, bytes) : REN_ERR_INVALID_ARGUMENT;
}
