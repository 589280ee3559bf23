/* SPDX-License-Identifier: MIT */
/* libren/core/jobs.c - roads, posting, handles.
 *
 * Purpose   The host's side of a job: take a slot, fill it, publish it; look it up, cancel it,
 * wait.
 * Threads   a producer's road: its one thread. The shared road: any. Handles: any.
 * Progress  a producer's post takes a bounded number of steps: its free slots come from a private
 *           chain that is refilled by one exchange, and its ring has one producer. The shared road
 *           pops a lock-free stack and pushes a lock-free ring; once per refill of that stack its
 *           posters may yield behind the one that refills it.
 * Handles   slots are reused in the order in which they were freed, so a finished job's id stays
 *           good for about as many later posts of its road as the road has free slots.
 * Order     FIFO per road and class.
 * Memory    a road is fixed at creation; posting never allocates.
 *
 * Why a push cannot fail   A road has as many slots as each of its rings has entries, and a slot
 *           is in at most one ring. So FULL is decided by the free list alone, before anything is
 *           written, and a refused post leaves no hole. The count of accepted jobs is raised
 *           before the push, so that a thread which sums "done" first and "posted" second never
 *           sees a job done but not posted.
 */
#include <sched.h>

#include "runtime.h"

/* ------------------------------------------------------------------ roads */

ren_status ren__road_init(ren_runtime *rt, ren__road *road, uint32_t number, bool shared)
{
    uint32_t count = rt->config.ring_entries;
    ren_status status = REN_OK;
    road->slot_count = count;
    road->slots = ren__host_calloc(&rt->allocator, count, sizeof *road->slots);
    road->next = ren__host_calloc(&rt->allocator, count, sizeof *road->next);
    if (!road->slots || !road->next) {
        return REN_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        ren__slot *slot = &road->slots[i];
        slot->road = number;
        slot->index = i;
        slot->rt = rt;
        atomic_init(&slot->word, ren__word_make(rt->first_generation, REN__SLOT_FREE, REN_OK));
        atomic_init(&slot->dependants, 0);
        slot->drained_generation = rt->first_generation;
    }
    /* The full one last: both initialise the links. */
    ren__index_stack_init(shared ? &road->free : &road->turned, road->next, count, false);
    ren__index_stack_init(shared ? &road->turned : &road->free, road->next, count, true);
    road->chain = REN__INDEX_NONE;
    for (uint32_t c = 0; c < REN__CLASSES && status == REN_OK; c++) {
        status = shared ? ren__mpsc_init(&road->shared[c], count, 0, &rt->allocator)
                        : ren__spsc_init(&road->rings[c], count, 0, &rt->allocator);
    }
    return status;
}

void ren__road_deinit(ren_runtime *rt, ren__road *road)
{
    for (uint32_t c = 0; c < REN__CLASSES; c++) {
        ren__mpsc_deinit(&road->shared[c], &rt->allocator);
        ren__spsc_deinit(&road->rings[c], &rt->allocator);
    }
    ren__host_free(&rt->allocator, road->slots, road->slot_count, sizeof *road->slots);
    ren__host_free(&rt->allocator, road->next, road->slot_count, sizeof *road->next);
    road->slots = NULL;
    road->next = NULL;
}

/* Take all that was freed, oldest first. */
static uint32_t take_freed(ren__road *road)
{
    uint32_t index = ren__index_stack_take_all(&road->free);
    uint32_t turned = REN__INDEX_NONE;
    while (index != REN__INDEX_NONE) {
        uint32_t next = road->next[index];
        ren__index_stack_link(&road->free, index, turned);
        turned = index;
        index = next;
    }
    return turned;
}

/* The last index of a chain. */
static uint32_t chain_end(const ren__road *road, uint32_t index)
{
    while (road->next[index] != REN__INDEX_NONE) {
        index = road->next[index];
    }
    return index;
}

/* The shared road: from `turned`; when that is empty one poster moves there what was freed. FULL is
 * the answer only when `free` was found empty after `turned` was, with no move in between: then no
 * slot was free at that moment. A poster that meets another's move yields until it is over. */
static uint32_t take_shared(ren__road *road)
{
    for (;;) {
        /* acquire: pairs with the release below; a move that is over has filled `turned`. */
        uint32_t done = atomic_load_explicit(&road->turns_done, memory_order_acquire);
        uint32_t begun = atomic_load_explicit(&road->turns_begun, memory_order_acquire);
        uint32_t index = ren__index_stack_pop(&road->turned);
        if (index != REN__INDEX_NONE) {
            return index;
        }
        if (begun != done ||
            !atomic_compare_exchange_strong_explicit(&road->turns_begun, &begun, begun + 1u,
                                                     memory_order_acq_rel, memory_order_acquire)) {
            (void)sched_yield();
            continue;
        }
        index = take_freed(road);
        if (index != REN__INDEX_NONE && road->next[index] != REN__INDEX_NONE) {
            uint32_t rest = road->next[index];
            ren__index_stack_push_chain(&road->turned, rest, chain_end(road, rest));
        }
        atomic_store_explicit(&road->turns_done, begun + 1u, memory_order_release);
        return index;
    }
}

static ren__slot *road_take(ren__road *road, bool shared)
{
    uint32_t index;
    if (shared) {
        index = take_shared(road);
    } else {
        if (road->chain == REN__INDEX_NONE) {
            road->chain = take_freed(road);
        }
        index = road->chain;
        if (index != REN__INDEX_NONE) {
            road->chain = road->next[index];
        }
    }
    return index == REN__INDEX_NONE ? NULL : &road->slots[index];
}

static void road_untake(ren__road *road, ren__slot *slot, bool shared)
{
    if (shared) {
        ren__index_stack_push(&road->turned, slot->index);
    } else {
        road->next[slot->index] = road->chain;
        road->chain = slot->index;
    }
}

/* ------------------------------------------------------------------ handles */

ren__slot *ren__job_slot(ren_runtime *rt, ren_job job, ren_status *out_status)
{
    uint32_t generation = (uint32_t)(job.id >> 32);
    uint32_t tag = (uint32_t)(job.id >> 22) & 0x3ffu;
    uint32_t number = (uint32_t)(job.id >> 16) & 0x3fu;
    uint32_t index = (uint32_t)job.id & 0xffffu;
    /* acquire: pairs with register's release; the road's arrays are initialised. */
    ren__road *road = atomic_load_explicit(&rt->roads[number], memory_order_acquire);
    uint32_t now;
    *out_status = REN_ERR_UNKNOWN_JOB;
    if (tag != rt->tag || !road || index >= road->slot_count ||
        generation == rt->first_generation) {
        return NULL;
    }
    /* acquire: pairs with the release of whoever moved the word; the state's data are visible. */
    now =
        ren__word_generation(atomic_load_explicit(&road->slots[index].word, memory_order_acquire));
    if (now == generation) {
        *out_status = REN_OK;
        return &road->slots[index];
    }
    /* Stale: one of the generations from the first to now, which may have come round. */
    if (now - generation < now - rt->first_generation) {
        *out_status = REN_ERR_STALE;
    }
    return NULL;
}

uint64_t ren__jobs_posted(ren_runtime *rt)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < REN__ROADS; i++) {
        ren__road *road = atomic_load_explicit(&rt->roads[i], memory_order_acquire);
        if (road) {
            sum += atomic_load_explicit(&road->posted, memory_order_acquire);
        }
    }
    return sum;
}

uint64_t ren__jobs_done(ren_runtime *rt)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < REN__WORKERS; i++) {
        /* acquire: pairs with the completer's release; what the job did is visible. */
        sum += atomic_load_explicit(&rt->workers[i].done, memory_order_acquire);
    }
    return sum;
}

bool ren__runtime_is_idle(ren_runtime *rt)
{
    /* Done first: see the file header. */
    uint64_t done = ren__jobs_done(rt);
    return done == ren__jobs_posted(rt);
}

/* ------------------------------------------------------------------ posting */

/* What the shared road and a producer's road have in common about one post. */
typedef struct post_target {
    ren_runtime *rt;
    ren__road *road;
    uint32_t number;
} post_target;

static ren_status check_waits(ren_runtime *rt, const ren_job *waits, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ren_status status;
        if (waits[i].id && !ren__job_slot(rt, waits[i], &status)) {
            return status;
        }
    }
    return REN_OK;
}

static void unpin_uses(ren_runtime *rt, const ren__use_entry *uses, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ren__buffer_unpin(rt, uses[i].buffer);
    }
}

static ren_status pin_location(ren_runtime *rt, const ren_location *location, uint64_t bytes,
                               ren_access access, ren__use_entry *entry)
{
    ren_status status = ren__buffer_pin(rt, location->buffer, &entry->buffer);
    if (status != REN_OK) {
        return status;
    }
    entry->access = (uint32_t)access;
    if (bytes > rt->buffers[entry->buffer].bytes ||
        location->offset > rt->buffers[entry->buffer].bytes - bytes) {
        ren__buffer_unpin(rt, entry->buffer);
        return REN_ERR_INVALID_ARGUMENT;
    }
    return REN_OK;
}

/* Pin every buffer that the job names, its own sides last. On an error nothing stays pinned. */
static ren_status pin_uses(ren_runtime *rt, const ren_job_desc *desc, ren__use_entry *uses,
                           uint8_t *out_count)
{
    uint32_t n = 0;
    ren_status status = REN_OK;
    for (; n < desc->use_count && status == REN_OK; n++) {
        status = ren__buffer_pin(rt, desc->uses[n].buffer, &uses[n].buffer);
        uses[n].access = (uint32_t)desc->uses[n].access;
    }
    if (status != REN_OK) {
        unpin_uses(rt, uses, n - 1);
        return status;
    }
    if (desc->kind == REN_JOB_COPY && desc->copy.dst.buffer.id) {
        status = pin_location(rt, &desc->copy.dst, desc->copy.bytes, REN_ACCESS_WRITE, &uses[n]);
        n += status == REN_OK;
    }
    if (desc->kind == REN_JOB_COPY && desc->copy.src.buffer.id && status == REN_OK) {
        status = pin_location(rt, &desc->copy.src, desc->copy.bytes, REN_ACCESS_READ, &uses[n]);
        n += status == REN_OK;
    }
    if (desc->kind == REN_JOB_FILL) {
        status = pin_location(rt, &desc->fill.dst, desc->fill.bytes, REN_ACCESS_WRITE, &uses[n]);
        n += status == REN_OK;
    }
    if (status != REN_OK) {
        unpin_uses(rt, uses, n);
        return status;
    }
    *out_count = (uint8_t)n;
    return REN_OK;
}

static void fill_payload(ren__slot *slot, const ren_job_desc *desc)
{
    switch (desc->kind) {
    case REN_JOB_COPY:
        slot->as.copy = desc->copy;
        break;
    case REN_JOB_FILL:
        slot->as.fill = desc->fill;
        break;
    case REN_JOB_DEVICE:
        slot->as.device.fn = desc->enqueue;
        slot->as.device.user = desc->enqueue_user;
        break;
    case REN_JOB_HOST:
        slot->as.host.fn = desc->host_fn;
        slot->as.host.user = desc->host_user;
        break;
    case REN_JOB_BARRIER:
        break;
    }
}

static uint8_t class_of(ren_priority priority)
{
    return (uint8_t)(priority == REN_PRIORITY_REALTIME     ? REN__CLASS_REALTIME
                     : priority == REN_PRIORITY_BACKGROUND ? REN__CLASS_BACKGROUND
                                                           : REN__CLASS_NORMAL);
}

static void fill_delivery(ren__slot *slot, ren_done_fn done, void *user, ren_deliver deliver,
                          uint32_t channel)
{
    slot->done = done;
    slot->user = user;
    slot->deliver = (uint8_t)(done ? deliver : REN_DELIVER_NONE);
    slot->channel = (uint8_t)channel;
    /* The clock is a third of a post: it is read only where somebody will see the time. */
    slot->posted_ns =
        slot->deliver != REN_DELIVER_NONE || ren__trace_on(&slot->rt->trace) ? ren__now_ns() : 0;
    slot->launched_ns = 0;
    slot->timeline_value = 0;
    slot->call_status = REN_OK;
    slot->wait_next = 0;
}

/* Make the filled slot visible: a new generation, then the ring, then the doorbell. */
static void publish(const post_target *to, ren__slot *slot, ren_job *out_job)
{
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    uint32_t generation = ren__word_generation(word) + 1u;
    uint32_t class = slot->class;
    if (generation == to->rt->first_generation) {
        generation++;
    }
    atomic_store_explicit(&slot->dependants, (uint64_t)generation << 32, memory_order_relaxed);
    /* release: pairs with the acquire of ren__job_slot; the slot is filled for this generation. */
    atomic_store_explicit(&slot->word, ren__word_make(generation, REN__SLOT_QUEUED, REN_OK),
                          memory_order_release);
    if (out_job) {
        out_job->id = ren__job_id(generation, to->rt->tag, to->number, slot->index);
    }
    if (ren__trace_on(&to->rt->trace)) {
        ren__trace_instant(&to->rt->trace, REN__TRACK_POST, "post", slot->posted_ns,
                           ren__job_id(generation, to->rt->tag, to->number, slot->index));
    }
    if (to->number == 0) {
        atomic_fetch_add_explicit(&to->road->posted, 1, memory_order_relaxed);
        (void)ren__mpsc_push(&to->road->shared[class], slot);
    } else {
        uint64_t posted = atomic_load_explicit(&to->road->posted, memory_order_relaxed);
        atomic_store_explicit(&to->road->posted, posted + 1, memory_order_relaxed);
        (void)ren__spsc_push(&to->road->rings[class], slot);
    }
    ren__doorbell_ring_if_asleep(&to->rt->submit_bell);
}

static ren_status post_desc(const post_target *to, const ren_job_desc *desc, ren_job *out_job)
{
    ren__slot *slot;
    ren_status status = ren__runtime_check_open(to->rt);
    if (out_job) {
        out_job->id = 0;
    }
    if (status == REN_OK && desc->wait_count) {
        status = check_waits(to->rt, desc->wait, desc->wait_count);
    }
    if (status != REN_OK) {
        return status;
    }
    slot = road_take(to->road, to->number == 0);
    if (!slot) {
        return REN_ERR_QUEUE_FULL;
    }
    status = pin_uses(to->rt, desc, slot->uses, &slot->use_count);
    if (status != REN_OK) {
        road_untake(to->road, slot, to->number == 0);
        return status;
    }
    slot->kind = (uint8_t)desc->kind;
    slot->stream = (uint8_t)desc->stream;
    slot->class = class_of(desc->priority);
    slot->deadline_ns = desc->deadline_ns;
    slot->wait_count = (uint8_t)desc->wait_count;
    slot->after_count = 0;
    if (desc->wait_count) {
        memcpy(slot->u.waits, desc->wait, desc->wait_count * sizeof desc->wait[0]);
    }
    fill_payload(slot, desc);
    fill_delivery(slot, desc->done, desc->user, desc->deliver, desc->channel);
    publish(to, slot, out_job);
    return REN_OK;
}

ren_status ren__post(ren_runtime *rt, const ren_job_desc *desc, ren_job *out_job)
{
    post_target to = {rt, &rt->shared, 0};
    return post_desc(&to, desc, out_job);
}

ren_status ren__producer_post(ren_producer *producer, const ren_job_desc *desc, ren_job *out_job)
{
    post_target to = {producer->rt, &producer->storage, producer->road};
    return post_desc(&to, desc, out_job);
}

ren_status ren__work_post(ren_runtime *rt, const ren__work *work, ren_done_fn done, void *user,
                          ren_deliver deliver, uint32_t channel, ren_job *out_job)
{
    post_target to = {rt, &rt->shared, 0};
    const ren_job waits[2] = {work->wait, work->after};
    ren_status status = ren__runtime_check_open(rt);
    ren__slot *slot;
    if (out_job) {
        out_job->id = 0;
    }
    if (status == REN_OK) {
        status = check_waits(rt, waits, 2);
    }
    if (status != REN_OK) {
        return status;
    }
    slot = road_take(to.road, true);
    if (!slot) {
        return REN_ERR_QUEUE_FULL;
    }
    slot->use_count = work->buffer.id ? 1 : 0;
    if (slot->use_count) {
        ren_location to_buffer = {.buffer = work->buffer, .offset = work->buffer_offset};
        status = pin_location(rt, &to_buffer, work->buffer_bytes, REN_ACCESS_WRITE, slot->uses);
    }
    if (status != REN_OK) {
        road_untake(to.road, slot, true);
        return status;
    }
    slot->kind = REN__JOB_WORK;
    slot->stream = (uint8_t)work->stream;
    slot->class = class_of(work->priority);
    slot->deadline_ns = 0;
    slot->wait_count = 2; /* a wait for no job is met */
    slot->after_count = 1;
    memcpy(slot->u.waits, waits, sizeof waits);
    slot->as.work = *work;
    fill_delivery(slot, done, user, deliver, channel);
    publish(&to, slot, out_job);
    return REN_OK;
}

/* ------------------------------------------------------------------ look, cancel, wait */

/* REN_PENDING, or the final status; REN_ERR_STALE when the slot was reused meanwhile. */
static ren_status look(ren__slot *slot, uint32_t generation)
{
    /* acquire: pairs with the completer's release; the job's effects are visible. */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if (ren__word_generation(word) != generation) {
        return REN_ERR_STALE;
    }
    return ren__word_state(word) == REN__SLOT_DONE ? ren__word_status(word) : REN_PENDING;
}

ren_status ren__job_status(ren_runtime *rt, ren_job job)
{
    ren_status status;
    ren__slot *slot;
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    slot = ren__job_slot(rt, job, &status);
    return slot ? look(slot, (uint32_t)(job.id >> 32)) : status;
}

ren_status ren__cancel(ren_runtime *rt, ren_job job)
{
    uint32_t generation = (uint32_t)(job.id >> 32);
    uint64_t expected = ren__word_make(generation, REN__SLOT_QUEUED, REN_OK);
    ren_status status;
    ren__slot *slot;
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    slot = ren__job_slot(rt, job, &status);
    if (!slot) {
        return status;
    }
    /* The race with the submitter's QUEUED -> ISSUED: exactly one of the two exchanges wins. */
    if (atomic_compare_exchange_strong_explicit(
            &slot->word, &expected, ren__word_make(generation, REN__SLOT_CANCELLED, REN_OK),
            memory_order_acq_rel, memory_order_acquire)) {
        return REN_OK;
    }
    if (ren__word_generation(expected) != generation) {
        return REN_ERR_STALE;
    }
    return ren__word_state(expected) == REN__SLOT_CANCELLED ? REN_OK : REN_TOO_LATE;
}

ren_status ren__wait(ren_runtime *rt, ren_job job, uint64_t timeout_ns)
{
    ren_status status = ren__runtime_check_blocking(rt);
    ren__deadline deadline = ren__deadline_in(timeout_ns);
    ren__slot *slot;
    if (status != REN_OK) {
        return status;
    }
    slot = ren__job_slot(rt, job, &status);
    if (!slot) {
        return status;
    }
    for (;;) {
        uint32_t key = ren__wait_begin(&rt->done_bell);
        status = look(slot, (uint32_t)(job.id >> 32));
        if (status != REN_PENDING) {
            ren__wait_end(&rt->done_bell);
            return status;
        }
        if (!ren__wait_sleep(rt, &rt->done_bell, key, &deadline)) {
            return REN_TIMEOUT;
        }
    }
}
