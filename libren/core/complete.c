/* SPDX-License-Identifier: MIT */
/* libren/core/complete.c - from a finished batch to finished jobs.
 *
 * Purpose   One sleeping thread per lane: it waits for the lane's next batch to be closed, sleeps
 *           on that batch's event, and finishes the batch's jobs in order. One thread for all
 *           lanes could not report one stream's completion while it sleeps on another's.
 * Threads   lane_main: its own. batch_finish: the claimer of the batch, which is the lane's
 *           thread, or ren_runtime_abort when the thread never comes back from the device.
 * Order     jobs of a lane finish in the order of their issue, so a stream's timeline only grows.
 * Memory    never allocates.
 *
 * How early it is awake. Waking a thread takes 5 to 20 us, as long as an empty job takes on a GPU.
 * So where commands go to a device of their own (`wakes_early`) the thread is awake before it is
 * needed, twice: it stays awake for STAY_NS behind a batch, giving the processor away all the time;
 * and when it sleeps the submitter rings before it enqueues a job's commands, so that the wake-up
 * goes on beside the launch. It then waits awake for the batch, for EXPECT_NS at most.
 *   From launch to callback of an empty job on an H200, the median: 14 us with neither and 9 with
 * both where jobs follow at once, 30 and 14 where they come every 200 us. The price is up to 20 us
 * of one processor behind a batch that no other follows, and as long as a launch takes before it.
 * The CPU device's lanes need the processor themselves; there neither happens.
 *
 * What a finish publishes   In this order: the timeline; the slot's word (release: who reads DONE
 *           sees the job's effects); the dependants' list, closed by one exchange and sent to the
 *           submitter; the delivery. After the delivery the slot may be reused at any moment and
 *           is not touched again. A slot that nobody pumps goes to a local chain, which is given
 *           back in one push. The counters are raised last, once per batch: `done` counts a job
 *           only when its callback of the ANY_THREAD kind has returned, so an idle runtime runs no
 *           callback.
 */
#include <stdio.h>

#include "runtime.h"

#define STAY_NS   20000u
#define EXPECT_NS 50000u /* a launch with everything cold: 35 us */

typedef struct finisher {
    ren_runtime *rt;
    uint32_t worker;
    uint64_t now_ns;
    uint32_t road;  /* of the chain */
    uint32_t first; /* free slots to give back, newest first */
    uint32_t last;
    uint64_t done, failed, cancelled;
    bool told; /* bells are still to be rung */
    bool pumped;
} finisher;

static void finisher_init(finisher *f, ren_runtime *rt, uint32_t worker)
{
    memset(f, 0, sizeof *f);
    f->rt = rt;
    f->worker = worker;
    f->now_ns = ren__now_ns();
    f->first = REN__INDEX_NONE;
}

static void give_chain_back(finisher *f)
{
    if (f->first != REN__INDEX_NONE) {
        ren__road *road = atomic_load_explicit(&f->rt->roads[f->road], memory_order_acquire);
        ren__index_stack_push_chain(&road->free, f->first, f->last);
        f->first = REN__INDEX_NONE;
    }
}

static void chain_slot(finisher *f, const ren__slot *slot)
{
    uint32_t index = slot->index;
    if (f->first != REN__INDEX_NONE && f->road != slot->road) {
        give_chain_back(f);
    }
    if (f->first == REN__INDEX_NONE) {
        f->last = index;
    } else {
        ren__road *road = atomic_load_explicit(&f->rt->roads[slot->road], memory_order_relaxed);
        ren__index_stack_link(&road->free, index, f->first);
    }
    f->road = slot->road;
    f->first = index;
}

static void ring_waiters(finisher *f)
{
    if (f->told) {
        ren__doorbell_ring_if_asleep(&f->rt->done_bell);
    }
    /* On a lost device ren_wait_any waits for the last job, whatever its delivery. */
    if (f->pumped || (f->told && atomic_load_explicit(&f->rt->lost, memory_order_acquire))) {
        ren__doorbell_ring_if_asleep(&f->rt->pump_bell);
    }
    f->told = false;
    f->pumped = false;
}

static void add(_Atomic uint64_t *counter, uint64_t n)
{
    /* One writer per row: a load and a store are enough. release: pairs with ren__jobs_done. */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_release);
}

static void finisher_flush(finisher *f)
{
    ren__worker_counters *row = &f->rt->workers[f->worker];
    give_chain_back(f);
    add(&row->failed, f->failed);
    add(&row->cancelled, f->cancelled);
    add(&row->done, f->done);
    f->told = f->told || f->done;
    f->done = f->failed = f->cancelled = 0;
    ring_waiters(f);
}

/* One writer in general: the lane's thread. Two when an abort goes past a HOST job that runs, and
 * then the value must not go back. */
static void raise_to(_Atomic uint64_t *value, uint64_t to, memory_order order)
{
    uint64_t seen = atomic_load_explicit(value, memory_order_relaxed);
    while (seen < to &&
           !atomic_compare_exchange_weak_explicit(value, &seen, to, order, memory_order_relaxed)) {
    }
}

void ren__completion_fill(ren__slot *slot, ren_status status, ren_completion *out, ren_error *err)
{
    ren_runtime *rt = slot->rt;
    uint32_t generation =
        ren__word_generation(atomic_load_explicit(&slot->word, memory_order_relaxed));
    memset(out, 0, sizeof *out);
    out->struct_size = (uint32_t)sizeof *out;
    out->job.id = ren__job_id(generation, rt->tag, slot->road, slot->index);
    out->status = status;
    out->stream = (ren_stream)slot->stream;
    out->timeline_value = slot->timeline_value;
    out->posted_ns = slot->posted_ns;
    out->launched_ns = slot->launched_ns;
    out->done_ns = slot->done_ns;
    if (slot->kind == REN__JOB_WORK) {
        out->step = slot->u.result.has_step ? &slot->u.result.step : NULL;
        out->weight_version = slot->u.result.weight_version;
    }
    if (status < 0) {
        memset(err, 0, sizeof *err);
        if (status != REN_ERR_DEVICE_LOST || ren__runtime_status(rt, err) == REN_OK) {
            (void)REN__FAIL(err, status, "%s", ren__status_text(status));
        }
        out->err = err;
    }
}

/* A work's own end. What it leaves in the completion is copied into the slot. */
static void finish_work(ren__slot *slot, ren_status status)
{
    ren_completion completion;
    ren_error err;
    slot->u.result.has_step = false;
    slot->u.result.weight_version = 0;
    ren__completion_fill(slot, status, &completion, &err);
    slot->as.work.finish(slot->as.work.self, &completion);
    slot->u.result.weight_version = completion.weight_version;
    if (completion.step) {
        slot->u.result.step = *completion.step;
        slot->u.result.has_step = true;
    }
}

static void release_dependants(finisher *f, ren__slot *slot, uint32_t generation)
{
    ren__link *first;
    ren__link *last;
    /* acquire: pairs with park's release, the links are written. */
    uint64_t head = atomic_exchange_explicit(
        &slot->dependants, ((uint64_t)generation << 32) | REN__DEP_CLOSED, memory_order_acq_rel);
    first = ren__dependants_chain(f->rt, head, &last);
    if (first) {
        ren__list_push_chain(&f->rt->inbox, first, last);
        ren__doorbell_ring_if_asleep(&f->rt->submit_bell);
    }
}

void ren__release_parked(ren_runtime *rt)
{
    for (uint32_t n = 0; n < REN__ROADS; n++) {
        ren__road *road = atomic_load_explicit(&rt->roads[n], memory_order_acquire);
        for (uint32_t i = 0; road && i < road->slot_count; i++) {
            ren__slot *slot = &road->slots[i];
            uint64_t head = atomic_load_explicit(&slot->dependants, memory_order_relaxed);
            if ((uint32_t)head && (uint32_t)head != REN__DEP_CLOSED) {
                finisher f;
                finisher_init(&f, rt, REN__WORKER_ABORT);
                release_dependants(&f, slot, (uint32_t)(head >> 32));
            }
        }
    }
}

static void deliver(finisher *f, ren__slot *slot, ren_status status)
{
    if (slot->deliver == REN_DELIVER_PUMP) {
        ren__worker_counters *row = &f->rt->workers[f->worker];
        add(&row->queued_to_channels, 1);
        f->pumped = true;
        ren__list_push(&f->rt->channels[slot->channel].incoming, &slot->link);
        return;
    }
    if (slot->deliver == REN_DELIVER_ANY_THREAD) {
        ren_completion completion;
        ren_error err;
        ren__completion_fill(slot, status, &completion, &err);
        ring_waiters(f);
        REN__POINT("complete.before_callback");
        slot->done(&completion, slot->user);
    }
    chain_slot(f, slot);
}

/* Where the trace shows a job: on its stream's row of jobs, by the device's clock, with arrows from
 * the submitter and to this thread; what a thread of ours did, on that thread's row. The stamps of
 * a job that did not run are not looked at: where the device is lost, it may be writing them. */
static void trace_job(finisher *f, const ren__slot *slot, uint32_t generation, bool ran,
                      uint64_t began_ns)
{
    static const char *const names[] = {"copy", "fill", "device", "host", "barrier", "work"};
    ren__trace_slot *trace = &f->rt->trace;
    uint64_t id = ren__job_id(generation, f->rt->tag, slot->road, slot->index);
    uint32_t stream = REN__TRACK_JOB + slot->stream;
    uint32_t thread = REN__TRACK_COMPLETION + slot->lane;
    bool named = slot->kind == REN__JOB_WORK && slot->as.work.name;
    const char *name = named ? slot->as.work.name : names[slot->kind];
    if (ran && slot->stamps && slot->stamps[0] && slot->stamps[1]) {
        uint64_t begin = slot->stamps[0], end = slot->stamps[1];
        const ren__trace_event span = {.kind = REN__TRACE_SPAN,
                                       .track = stream,
                                       .device = REN__TRACE_DEVICE,
                                       .begin_ns = begin,
                                       .end_ns = end,
                                       .value = id,
                                       .name = name};
        ren__trace_put(trace, &span);
        ren__trace_flow(trace, "issue", REN__TRACK_SUBMITTER, slot->launched_ns, stream, begin,
                        REN__TRACE_DEVICE_END);
        ren__trace_flow(trace, "done", stream, ren__trace_inside(begin, end), thread, f->now_ns,
                        REN__TRACE_DEVICE_BEGIN);
    } else if (began_ns) {
        ren__trace_span(trace, thread, name, began_ns, f->now_ns, id);
    } else if (slot->launched_ns && !(slot->kind == REN__JOB_WORK && slot->as.work.timed)) {
        ren__trace_instant(trace, stream, name, slot->done_ns, id);
    }
}

/* What this thread does itself: a HOST job's function, a copy that the submitter would wait for. */
static ren_status work_on_host(ren_runtime *rt, ren__slot *slot)
{
    ren_status status;
    if (slot->kind == REN_JOB_HOST) {
        slot->as.host.fn(slot->as.host.user);
        return REN_OK;
    }
    /* Both sides are addresses by now. */
    status = rt->api->copy_now(rt->dev, slot->as.copy.dst.host, slot->as.copy.src.host,
                               slot->as.copy.bytes);
    if (status == REN_ERR_DEVICE_LOST) {
        ren__runtime_lose(rt, "the device was lost during a copy", status);
    }
    return status;
}

static void finish_one(finisher *f, ren__slot *slot, ren_status status)
{
    ren_runtime *rt = f->rt;
    uint32_t generation =
        ren__word_generation(atomic_load_explicit(&slot->word, memory_order_relaxed));
    uint64_t began_ns = 0;
    bool ran = status == REN_OK;
    if (ran && slot->on_host) {
        ring_waiters(f);
        began_ns = ren__now_ns();
        status = work_on_host(rt, slot);
        f->now_ns = ren__now_ns();
    }
    if (status == REN_OK && slot->call_status != REN_OK) {
        status = REN_ERR_CALLBACK;
    }
    slot->done_ns = f->now_ns;
    if (ren__trace_on(&rt->trace)) {
        trace_job(f, slot, generation, ran, began_ns);
    }
    ren__stamps_give(slot->stamps);
    slot->stamps = NULL;
    if (slot->kind == REN__JOB_WORK) {
        finish_work(slot, status);
    }
    f->done++;
    f->failed += status < 0;
    f->cancelled += status == REN_CANCELLED;
    f->told = true;
    /* release: pairs with ren_timeline_value's acquire. */
    raise_to(&rt->timeline[slot->stream], slot->timeline_value, memory_order_release);
    /* release: pairs with the acquire of ren_wait, ren_job_status and of the submitter. */
    atomic_store_explicit(&slot->word, ren__word_make(generation, REN__SLOT_DONE, status),
                          memory_order_release);
    release_dependants(f, slot, generation);
    deliver(f, slot, status);
}

void ren__job_finish(ren_runtime *rt, uint32_t worker, ren__slot *slot, ren_status status)
{
    finisher f;
    finisher_init(&f, rt, worker);
    finish_one(&f, slot, status);
    finisher_flush(&f);
}

void ren__batch_finish(ren_runtime *rt, ren__lane *lane, uint64_t seq, uint32_t worker,
                       ren_status status)
{
    ren__batch *batch = &lane->batches[seq % REN__BATCHES];
    ren__link *link = batch->first;
    uint64_t commands = batch->commands_end;
    uint32_t jobs = batch->jobs;
    uint64_t start_ns;
    finisher f;
    finisher_init(&f, rt, worker);
    start_ns = f.now_ns;
    for (uint32_t i = 0; i < batch->notify_count; i++) {
        batch->notify[i].fn(batch->notify[i].user, status);
    }
    while (link) {
        ren__slot *slot = (ren__slot *)(void *)link;
        link = link->next;
        finish_one(&f, slot, status);
    }
    batch->first = NULL;
    batch->last = NULL;
    batch->jobs = 0;
    batch->notify_count = 0;
    atomic_store_explicit(&lane->completed_commands, commands, memory_order_relaxed);
    /* seq_cst: release for the submitter, which may now reuse the batch and the memory it touched;
     * and ordered before the load of wants_credit, see blocked_push. */
    raise_to(&lane->completed, seq, memory_order_seq_cst);
    if (atomic_load_explicit(&rt->wants_credit, memory_order_seq_cst)) {
        ren__doorbell_ring_if_asleep(&rt->submit_bell);
    }
    f.told = true; /* whoever waits for the lane rather than a job */
    finisher_flush(&f);
    if (ren__trace_on(&rt->trace)) {
        ren__trace_span(&rt->trace, REN__TRACK_COMPLETION + lane->index, "finish", start_ns,
                        ren__now_ns(), jobs);
    }
}

typedef struct next_place {
    const ren__lane *lane;
    uint64_t seq;
} next_place;

static bool is_published(void *arg)
{
    const next_place *next = arg;
    /* acquire: pairs with the submitter's release; the batch is complete as written. */
    return atomic_load_explicit(&next->lane->published, memory_order_acquire) >= next->seq;
}

/* The next closed batch's number, or 0 when the lane is to end. */
static uint64_t next_batch(ren_runtime *rt, ren__lane *lane, uint64_t seq)
{
    next_place next = {lane, seq};
    uint64_t awake_ns = rt->wakes_early ? STAY_NS : 0;
    for (;;) {
        uint32_t key;
        if (is_published(&next) || ren__yield_for(is_published, &next, awake_ns)) {
            return seq;
        }
        awake_ns = rt->wakes_early ? EXPECT_NS : 0;
        key = ren__doorbell_prepare(&lane->bell);
        ren__doorbell_sleep_begin(&lane->bell);
        if (!is_published(&next)) {
            if (atomic_load_explicit(&rt->stop_lanes, memory_order_acquire)) {
                ren__doorbell_sleep_end(&lane->bell);
                return 0;
            }
            (void)ren__doorbell_wait(&lane->bell, key, REN_TIMEOUT_INFINITE);
        }
        ren__doorbell_sleep_end(&lane->bell);
    }
}

static ren_status sync_batch(ren_runtime *rt, ren__batch *batch)
{
    ren_status status = REN_OK;
    if (!batch->has_event) {
        /* Earlier batches of the lane are complete, and this one has no commands. */
        return atomic_load_explicit(&rt->lost, memory_order_acquire) ? REN_ERR_DEVICE_LOST : REN_OK;
    }
    for (int attempt = 0; attempt < 3; attempt++) {
        status = rt->api->event_sync(rt->dev, batch->event);
        if (status == REN_OK || status == REN_ERR_DEVICE_LOST) {
            break;
        }
    }
    if (status != REN_OK) {
        ren__runtime_lose(rt, "waiting for a batch failed", status);
        status = REN_ERR_DEVICE_LOST;
    }
    return status;
}

void ren__lane_main(void *arg)
{
    ren__lane *lane = arg;
    ren_runtime *rt = lane->rt;
    uint64_t seq = 1;
    atomic_store_explicit(&lane->thread_id, ren__thread_self(), memory_order_release);
    while ((seq = next_batch(rt, lane, seq)) != 0) {
        ren__batch *batch = &lane->batches[seq % REN__BATCHES];
        uint32_t expected = REN__BATCH_PUBLISHED;
        ren_status status = sync_batch(rt, batch);
        if (!atomic_compare_exchange_strong_explicit(&batch->claim, &expected, REN__BATCH_CLAIMED,
                                                     memory_order_acq_rel, memory_order_acquire)) {
            break; /* ren_runtime_abort has finished this lane's work */
        }
        if (status != REN_OK && atomic_load_explicit(&rt->timed_out, memory_order_acquire)) {
            status = REN_ERR_TIMEOUT;
        }
        ren__batch_finish(rt, lane, seq, lane->index, status);
        seq++;
    }
}
