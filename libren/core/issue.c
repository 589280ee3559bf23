/* SPDX-License-Identifier: MIT */
/* libren/core/issue.c - one job's commands, onto its lane.
 *
 * Purpose   Order the lane behind what the job names (jobs, buffers), enqueue the job's own
 *           command, and note the job's point in the buffers that it used.
 * Threads   the submitter.
 * Order     The lane waits for points of other lanes only; its own earlier work comes first
 *           anyway. A buffer that is read waits for its last write, one that is written waits for
 *           the last write and all reads since; afterwards the job's own point replaces them. A
 *           fresh buffer starts with its block's fence as "writes", so memory that other work
 *           still uses is safe by the same rule.
 */
#include "runtime.h"

struct ren__submit {
    ren_runtime *rt;
    ren__slot *slot;
};

static ren_status wait_for_jobs(ren_runtime *rt, ren__lane *lane, const ren__slot *slot)
{
    for (uint32_t i = 0; i + slot->after_count < slot->wait_count; i++) {
        ren_status status = REN_OK;
        ren_job job = slot->u.waits[i];
        ren__slot *awaited = job.id ? ren__job_slot(rt, job, &status) : NULL;
        uint64_t word;
        if (!awaited) {
            continue;
        }
        word = atomic_load_explicit(&awaited->word, memory_order_acquire);
        if (ren__word_generation(word) != (uint32_t)(job.id >> 32) ||
            ren__word_state(word) != REN__SLOT_ISSUED || !awaited->batch_seq) {
            continue;
        }
        status = ren__lane_wait_point(rt, lane, awaited->lane, awaited->batch_seq);
        if (status != REN_OK) {
            return status;
        }
    }
    return REN_OK;
}

static ren_status wait_for_fence(ren_runtime *rt, ren__lane *lane, const ren__fence *fence)
{
    ren_status status = REN_OK;
    for (uint32_t l = 0; l < rt->lanes_count && status == REN_OK; l++) {
        status = ren__lane_wait_point(rt, lane, l, fence->seq[l]);
    }
    return status;
}

static ren_status wait_for_buffers(ren_runtime *rt, ren__lane *lane, const ren__slot *slot)
{
    ren_status status = REN_OK;
    for (uint32_t i = 0; i < slot->use_count && status == REN_OK; i++) {
        const ren__buffer_entry *entry = &rt->buffers[slot->uses[i].buffer];
        status = wait_for_fence(rt, lane, &entry->writes);
        if (status == REN_OK && (slot->uses[i].access & REN_ACCESS_WRITE)) {
            status = wait_for_fence(rt, lane, &entry->reads);
        }
    }
    return status;
}

/* The pins go. The job's point becomes the buffers' last use, unless the device refused the job:
 * then the uses before it are still the last, and no later command stands for them. */
static void note_uses(ren_runtime *rt, ren__lane *lane, const ren__slot *slot, bool refused)
{
    for (uint32_t i = 0; i < slot->use_count; i++) {
        ren__buffer_entry *entry = &rt->buffers[slot->uses[i].buffer];
        if (refused) {
            ren__buffer_unpin(rt, slot->uses[i].buffer);
            continue;
        }
        if (slot->on_host) {
            entry->host = ren__slot_job(slot);
        }
        if (slot->uses[i].access & REN_ACCESS_WRITE) {
            memset(&entry->writes, 0, sizeof entry->writes);
            memset(&entry->reads, 0, sizeof entry->reads);
            entry->writes.seq[lane->index] = lane->open_seq;
        } else {
            entry->reads.seq[lane->index] = lane->open_seq;
        }
        ren__buffer_unpin(rt, slot->uses[i].buffer);
    }
}

static void *address(ren_runtime *rt, const ren_location *location)
{
    if (location->buffer.id) {
        uint32_t index = (uint32_t)location->buffer.id & 0x3fffffu;
        return (unsigned char *)ren__buffer_address(rt, index) + location->offset;
    }
    return location->host;
}

/* A DEVICE job, where the device wants it run. */
static ren_status call_enqueue(void *user, void *native_stream)
{
    ren__slot *slot = user;
    slot->as.device.io.native_stream = native_stream;
    return slot->as.device.fn(slot->as.device.user, &slot->as.device.io);
}

static ren_status enqueue_device(ren_runtime *rt, ren__lane *lane, ren__slot *slot)
{
    ren_device_io *io = &slot->as.device.io;
    memset(io, 0, sizeof *io);
    io->struct_size = (uint32_t)sizeof *io;
    io->device = rt->api->kind;
    io->stream = (ren_stream)slot->stream;
    for (uint32_t i = 0; i < slot->use_count; i++) {
        slot->u.pointers[i] = ren__buffer_address(rt, slot->uses[i].buffer);
    }
    io->pointers = slot->u.pointers;
    io->pointer_count = slot->use_count;
    return rt->api->call(rt->dev, lane->index, call_enqueue, slot, &slot->call_status);
}

/* The lanes that a work names have commands, whatever it enqueues. */
static void mark_commands(ren_runtime *rt, const ren__work *work, bool count)
{
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        ren__lane *lane = &rt->lanes[rt->lane_of[s]];
        lane->commands += count ? work->need[s] : 0;
        lane->open_has_commands = lane->open_has_commands || work->need[s];
    }
}

static ren_status enqueue_work(ren_runtime *rt, ren__slot *slot)
{
    ren__submit submit = {rt, slot};
    const ren__work *work = &slot->as.work;
    ren_status status;
    mark_commands(rt, work, true);
    status = work->issue(work->self, &submit);
    mark_commands(rt, work, false); /* a notification may have closed a batch in between */
    return status;
}

void ren__issue_renew_need(ren_runtime *rt, ren__slot *slot)
{
    ren__submit submit = {rt, slot};
    ren__work *work = &slot->as.work;
    if (work->renew_need) {
        work->renew_need(work->self, &submit, work->need);
    }
}

/* The address now: once the pins are gone, a freed buffer's entry may be another buffer's. */
static void settle_location(ren_runtime *rt, ren_location *location)
{
    location->host = address(rt, location);
    location->buffer.id = 0;
}

static ren_status enqueue(ren_runtime *rt, ren__lane *lane, ren__slot *slot)
{
    if (slot->on_host) {
        if (slot->kind == REN_JOB_COPY) {
            settle_location(rt, &slot->as.copy.dst);
            settle_location(rt, &slot->as.copy.src);
        }
        return REN_OK; /* nothing for the lane */
    }
    switch (slot->kind) {
    case REN_JOB_COPY:
        return rt->api->copy(rt->dev, lane->index, address(rt, &slot->as.copy.dst),
                             address(rt, &slot->as.copy.src), slot->as.copy.bytes);
    case REN_JOB_FILL:
        return rt->api->fill(rt->dev, lane->index, address(rt, &slot->as.fill.dst),
                             slot->as.fill.value, slot->as.fill.bytes);
    case REN_JOB_DEVICE:
        return enqueue_device(rt, lane, slot);
    case REN__JOB_WORK:
        return enqueue_work(rt, slot);
    default:
        return REN_OK; /* BARRIER has no command */
    }
}

/* With the job's own times on the device, while a trace is open. A stamp that is refused leaves its
 * time unknown; that is no reason for a job to fail. */
static ren_status enqueue_timed(ren_runtime *rt, ren__lane *lane, ren__slot *slot)
{
    bool works =
        slot->kind <= REN_JOB_DEVICE || (slot->kind == REN__JOB_WORK && !slot->as.work.timed);
    slot->stamps = works && !slot->on_host ? ren__stamps_take(&rt->stamps, 2) : NULL;
    if (!slot->stamps) {
        return enqueue(rt, lane, slot);
    }
    (void)rt->api->stamp(rt->dev, lane->index, &slot->stamps[0]);
    ren_status status = enqueue(rt, lane, slot);
    (void)rt->api->stamp(rt->dev, lane->index, &slot->stamps[1]);
    lane->commands += 2;
    return status;
}

ren_status ren__issue_commands(ren_runtime *rt, ren__lane *lane, ren__slot *slot)
{
    ren_status status = REN_OK;
    slot->batch_seq = 0;
    if (slot->wait_count) {
        status = wait_for_jobs(rt, lane, slot);
    }
    if (status == REN_OK && slot->use_count) {
        status = wait_for_buffers(rt, lane, slot);
    }
    if (status == REN_OK) {
        status =
            ren__trace_on(&rt->trace) ? enqueue_timed(rt, lane, slot) : enqueue(rt, lane, slot);
        if (!slot->on_host && slot->kind <= REN_JOB_DEVICE) {
            lane->commands++;
            lane->open_has_commands = true;
        }
    }
    note_uses(rt, lane, slot, status != REN_OK);
    return status;
}

/* ------------------------------------------------------------------ inside a work's issue */

const ren__device_api *ren__submit_api(ren__submit *s)
{
    return s->rt->api;
}

ren__device *ren__submit_device(ren__submit *s)
{
    return s->rt->dev;
}

uint32_t ren__submit_lane(ren__submit *s, ren_stream stream)
{
    return s->rt->lane_of[stream];
}

void ren__submit_count_events(ren__submit *s, uint32_t recorded, uint32_t waited)
{
    atomic_fetch_add_explicit(&s->rt->events_recorded, recorded, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->rt->events_waited, waited, memory_order_relaxed);
}

void ren__submit_count_commands(ren__submit *s, const uint32_t more[REN_STREAM_COUNT])
{
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        s->rt->lanes[s->rt->lane_of[i]].commands += more[i];
    }
}

void ren__submit_count_step(ren__submit *s, ren_path path)
{
    atomic_fetch_add_explicit(&s->rt->steps[path], 1, memory_order_relaxed);
}

void ren__submit_count_graph(ren__submit *s, uint32_t captures, uint32_t updates,
                             uint32_t fallbacks)
{
    atomic_fetch_add_explicit(&s->rt->graph_captures, captures, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->rt->graph_updates, updates, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->rt->graph_fallbacks, fallbacks, memory_order_relaxed);
}

uint64_t *ren__submit_stamps(ren__submit *s, uint32_t count)
{
    return ren__stamps_take(&s->rt->stamps, count);
}

void *ren__submit_buffer(ren__submit *s)
{
    return (unsigned char *)ren__buffer_address(s->rt, s->slot->uses[0].buffer) +
           s->slot->as.work.buffer_offset;
}

static ren__lane *lane_of(ren__submit *s, ren_stream stream)
{
    return &s->rt->lanes[s->rt->lane_of[stream]];
}

uint64_t ren__submit_point(ren__submit *s, ren_stream stream)
{
    return lane_of(s, stream)->open_seq;
}

ren_status ren__submit_seal(ren__submit *s, ren_stream stream, uint64_t *out_point)
{
    ren__lane *lane = lane_of(s, stream);
    *out_point = lane->open_seq;
    lane->open_has_commands = true;
    return ren__lane_close_batch(s->rt, lane);
}

ren_status ren__submit_wait(ren__submit *s, ren_stream stream, ren_stream other, uint64_t point)
{
    return ren__lane_wait_point(s->rt, lane_of(s, stream), s->rt->lane_of[other], point);
}

bool ren__submit_is_past(ren__submit *s, ren_stream stream, uint64_t point)
{
    /* acquire: pairs with the completion thread's release. */
    return atomic_load_explicit(&lane_of(s, stream)->completed, memory_order_acquire) >= point;
}

bool ren__submit_has_room(ren__submit *s, ren_stream stream, uint32_t commands)
{
    return ren__lane_has_credit(s->rt, lane_of(s, stream), commands + REN__JOB_COMMANDS);
}

void ren__submit_notify(ren__submit *s, ren_stream stream,
                        void (*fn)(void *user, ren_status status), void *user)
{
    ren__lane *lane = lane_of(s, stream);
    ren__batch *batch = &lane->batches[lane->open_seq % REN__BATCHES];
    batch->notify[batch->notify_count].fn = fn;
    batch->notify[batch->notify_count].user = user;
    batch->notify_count++;
    /* A batch may carry the notifications of this work's rest (at most 4 a work) and no more. */
    if (batch->notify_count >= REN__BATCH_NOTIFIES - 3u) {
        (void)ren__lane_close_batch(s->rt, lane);
    }
}
