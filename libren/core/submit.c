/* SPDX-License-Identifier: MIT */
/* libren/core/submit.c - the submitter: from rings to lanes, without ever waiting for the device.
 *
 * Purpose   Drain the rings by class, put each job where its stream's lane runs it, close batches.
 * Threads   one: the submitter thread, or whoever ticks.
 * Progress  a round never blocks. The submitter sleeps only when the inbox, the ready list and the
 *           rings are empty and every open batch is closed; a post, a completion that someone
 *           awaits, a credit that someone lacks, a stop and an abort ring its bell after they have
 *           made their change.
 *
 * Waits     A job names up to 16 others. For each, in order:
 *             done, or its slot reused   nothing to wait for;
 *             issued, to a lane          a point: the lanes are ordered by an event at issue time;
 *             issued, but no event tells when it is done (HOST, a BARRIER behind HOST), or the job
 *             itself is HOST             the job is parked on the awaited slot's dependants. The
 *                                        completer takes that list and sends it to the inbox;
 *             not issued                 the job is parked on the awaited slot's issue_dependants,
 *                                        a list of the submitter's own;
 *             still in its ring          the ring is emptied up to it to the front of the ready
 *                                        list, and the job stands behind it. So it inherits the
 *                                        class of its waiter, the order inside its ring is kept,
 *                                        and what was drained after the waiter stays behind it.
 *                                        Where another poster stands in front of it, it cannot be
 *                                        had, and the job is parked on it where it is.
 *           A work may name one job that it only goes after: it waits until that job is issued, and
 *           no lane waits. A cancelled work waits for it too, so that a row of works, each after
 *           the one before it, stays in order whichever are cancelled.
 *           A job can name only ids that exist when it is posted, so waits form no cycle, and a
 *           parked job's chain always ends in one that can proceed.
 *
 * Dependants   The head of a slot's list is {generation, kind}: the submitter adds itself by an
 *           exchange that expects the generation, the completer closes the list by one exchange. A
 *           slot that was completed and reused in between has another generation, so the exchange
 *           fails and the wait is met. The list runs through link.next of the parked slots.
 *
 * Credit    A lane takes a job only when its next batch number has a free place (REN__BATCHES) and
 *           its commands leave room in the device's own queue. Else the job joins the lane's
 *           blocked list, and so does every later job of the lane, which keeps the stream's order.
 *           Room that a work lacks is left to it, on whatever lane.
 *
 * Buffers   Jobs that name the same buffer go in the order in which they were drained, also when
 *           one of them must wait while the next could go. A job that has to wait draws a ticket of
 *           each of its buffers, all at once, and a job goes only when its tickets are next.
 *   No deadlock   A job draws after all jobs that it names have drawn or been issued. So there is
 *           one order of draws (line_seq), in which a job stands behind all that it waits for, at a
 *           buffer or by name; a lane's blocked list has that order, too; and the first job of all
 *           waits for nothing but issued jobs and credit, which come by themselves.
 *   Overtaken   Only a job that waits for one which is hidden in its ring has not drawn, since the
 *           hidden one may name the same buffer: a job drained later may then go before it.
 *   HOST    A HOST job does not hold its stream, so no event tells when it is done. It is noted in
 *           the buffers that it names, and the next job that names one is parked on it at its turn.
 */
#include "runtime.h"

/* Dependants: the low 32 bits are 0 (empty), REN__DEP_CLOSED, or 1 + (road << 16 | index) of the
 * newest. */
static uint32_t dep_of(const ren__slot *slot)
{
    return 1u + ((slot->road << 16) | slot->index);
}

static ren__slot *slot_of_dep(ren_runtime *rt, uint32_t dep)
{
    uint32_t number = (dep - 1u) >> 16;
    ren__road *road = atomic_load_explicit(&rt->roads[number], memory_order_acquire);
    return &road->slots[(dep - 1u) & 0xffffu];
}

static ren__slot *slot_of_link(ren__link *link)
{
    return (ren__slot *)(void *)link; /* link is the first member */
}

static uint32_t generation_of(const ren__slot *slot)
{
    return ren__word_generation(atomic_load_explicit(&slot->word, memory_order_relaxed));
}

/* ------------------------------------------------------------------ the submitter's own lists */

static void ready_push(ren_runtime *rt, ren__slot *slot)
{
    slot->link.next = NULL;
    if (rt->ready_last) {
        rt->ready_last->link.next = &slot->link;
    } else {
        rt->ready_first = slot;
    }
    rt->ready_last = slot;
}

static ren__slot *ready_pop(ren_runtime *rt)
{
    ren__slot *slot = rt->ready_first;
    if (slot) {
        rt->ready_first = slot->link.next ? slot_of_link(slot->link.next) : NULL;
        if (!rt->ready_first) {
            rt->ready_last = NULL;
        }
    }
    return slot;
}

/* By line_seq: a job that was parked while others of its lane got blocked has its turn before
 * them. */
static void blocked_push(ren_runtime *rt, ren__lane *lane, ren__slot *slot)
{
    ren__slot *before = lane->blocked_last;
    if (before && before->line_seq > slot->line_seq) {
        before = NULL;
        for (ren__slot *s = lane->blocked_first; s->line_seq < slot->line_seq;
             s = slot_of_link(s->link.next)) {
            before = s;
        }
    }
    if (before) {
        slot->link.next = before->link.next;
        before->link.next = &slot->link;
    } else {
        slot->link.next = lane->blocked_first ? &lane->blocked_first->link : NULL;
        lane->blocked_first = slot;
    }
    if (!slot->link.next) {
        lane->blocked_last = slot;
    }
    /* seq_cst: pairs with the completion thread's load after it has raised `completed`; either it
     * sees the want, or the re-check of the credit before sleeping sees the completion. */
    atomic_store_explicit(&rt->wants_credit, true, memory_order_seq_cst);
}

/* A list that grew at its head, oldest first. */
static ren__link *turn_round(ren__link *link, ren__link **out_last)
{
    ren__link *turned = NULL;
    *out_last = link;
    while (link) {
        ren__link *next = link->next;
        link->next = turned;
        turned = link;
        link = next;
    }
    return turned;
}

ren__link *ren__dependants_chain(ren_runtime *rt, uint64_t head, ren__link **out_last)
{
    uint32_t dep = (uint32_t)head;
    ren__link *link = dep && dep != REN__DEP_CLOSED ? &slot_of_dep(rt, dep)->link : NULL;
    return turn_round(link, out_last);
}

/* The awaited slot was issued, or will never be: its own dependants go on. */
static void wake_issue_dependants(ren_runtime *rt, ren__slot *slot)
{
    ren__link *last;
    ren__link *link = slot->issue_dependants ? &slot->issue_dependants->link : NULL;
    slot->issue_dependants = NULL;
    link = turn_round(link, &last);
    while (link) {
        ren__link *next = link->next;
        ready_push(rt, slot_of_link(link));
        link = next;
    }
}

/* ------------------------------------------------------------------ lines at buffers */

/* Draw a ticket of each buffer, once per job. */
static void enter_lines(ren_runtime *rt, ren__slot *slot)
{
    if (slot->in_line) {
        return;
    }
    slot->in_line = true;
    slot->line_seq = ++rt->line_seq;
    for (uint32_t i = 0; i < slot->use_count; i++) {
        ren__use_entry *use = &slot->uses[i];
        use->in_line = true;
        for (uint32_t k = 0; k < i; k++) {
            use->in_line = use->in_line && slot->uses[k].buffer != use->buffer;
        }
        if (use->in_line) {
            use->ticket = rt->buffers[use->buffer].tickets++;
        }
    }
}

static void leave_lines(ren_runtime *rt, ren__slot *slot)
{
    for (uint32_t i = 0; slot->in_line && i < slot->use_count; i++) {
        rt->buffers[slot->uses[i].buffer].served += slot->uses[i].in_line;
    }
    slot->in_line = false;
}

static bool is_next_in_lines(const ren_runtime *rt, const ren__slot *slot)
{
    for (uint32_t i = 0; i < slot->use_count; i++) {
        const ren__use_entry *use = &slot->uses[i];
        const ren__buffer_entry *entry = &rt->buffers[use->buffer];
        uint32_t next = slot->in_line ? use->ticket : entry->tickets;
        if ((use->in_line || !slot->in_line) && entry->served != next) {
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ one job */

/* Finish a job that is not issued. ren_cancel may have won, which the caller does not
 * care about. */
static void finish_unissued(ren_runtime *rt, ren__slot *slot, ren_status status)
{
    uint32_t generation = generation_of(slot);
    uint64_t expected = ren__word_make(generation, REN__SLOT_QUEUED, REN_OK);
    if (!atomic_compare_exchange_strong_explicit(
            &slot->word, &expected, ren__word_make(generation, REN__SLOT_ISSUED, REN_OK),
            memory_order_acq_rel, memory_order_acquire)) {
        status = REN_CANCELLED;
    }
    leave_lines(rt, slot);
    for (uint32_t i = 0; i < slot->use_count; i++) {
        ren__buffer_unpin(rt, slot->uses[i].buffer);
    }
    wake_issue_dependants(rt, slot);
    ren__job_finish(rt, REN__WORKER_SUBMITTER, slot, status);
}

/* A copy that the device can only take by making its caller wait: the host's side is not pinned. */
static bool copy_would_wait(ren_runtime *rt, const ren__slot *slot)
{
    const void *host = slot->kind != REN_JOB_COPY         ? NULL
                       : slot->as.copy.dst.buffer.id == 0 ? slot->as.copy.dst.host
                                                          : slot->as.copy.src.host;
    const void *other = slot->kind == REN_JOB_COPY ? slot->as.copy.src.host : NULL;
    if (rt->caps.pageable_copies || !host) {
        return false;
    }
    return !rt->api->host_is_pinned(rt->dev, host) ||
           (other && other != host && !rt->api->host_is_pinned(rt->dev, other));
}

/* A job has left its ring. Jobs may wait for it already: those that could not find it there. */
static void drained(ren_runtime *rt, ren__slot *slot)
{
    slot->drained_generation = generation_of(slot);
    slot->in_line = false;
    slot->on_host = slot->kind == REN_JOB_HOST || copy_would_wait(rt, slot);
    slot->by_completion = slot->on_host;
    slot->lane = (uint8_t)rt->lane_of[slot->stream];
}

/* Empty the ring of an awaited job, up to that job and no further, to the front of the ready list,
 * with the job that waits behind. So all that stands before another in the ready list was posted
 * before it, and no job is taken up before one that it names and that has left its ring. False when
 * the awaited job is not to be had: another poster stands in front of it. */
static bool boost(ren_runtime *rt, ren__slot *awaited, ren__slot *waiter)
{
    ren__slot *rest = rt->ready_first;
    ren__slot *rest_last = rt->ready_last;
    void *item = NULL;
    rt->ready_first = NULL;
    rt->ready_last = NULL;
    while (item != (void *)awaited &&
           ren__drain_pop_source(&rt->drain, awaited->class, awaited->road, &item, 1)) {
        drained(rt, item);
        ready_push(rt, item);
    }
    if (item == (void *)awaited) {
        ready_push(rt, waiter);
    }
    if (rest) {
        if (rt->ready_last) {
            rt->ready_last->link.next = &rest->link;
        } else {
            rt->ready_first = rest;
        }
        rt->ready_last = rest_last;
    }
    return item == (void *)awaited;
}

/* Add slot to the awaited job's dependants. False: the awaited job is done. */
static bool park_until_done(ren__slot *slot, ren__slot *awaited, uint32_t generation)
{
    uint64_t head = atomic_load_explicit(&awaited->dependants, memory_order_acquire);
    for (;;) {
        if ((uint32_t)(head >> 32) != generation || (uint32_t)head == REN__DEP_CLOSED) {
            return false;
        }
        slot->link.next = (uint32_t)head ? &slot_of_dep(slot->rt, (uint32_t)head)->link : NULL;
        /* release: pairs with the completer's acquire; the link is written. */
        if (atomic_compare_exchange_weak_explicit(&awaited->dependants, &head,
                                                  ((uint64_t)generation << 32) | dep_of(slot),
                                                  memory_order_release, memory_order_acquire)) {
            return true;
        }
    }
}

/* The job that a wait names, if it is not done; NULL when the wait is met. */
static ren__slot *awaited_by(ren_runtime *rt, ren_job job, uint32_t *out_state)
{
    ren_status status;
    ren__slot *awaited = job.id ? ren__job_slot(rt, job, &status) : NULL;
    uint64_t word;
    if (!awaited) {
        return NULL;
    }
    word = atomic_load_explicit(&awaited->word, memory_order_acquire);
    *out_state = ren__word_state(word);
    if (ren__word_generation(word) != (uint32_t)(job.id >> 32) || *out_state == REN__SLOT_DONE) {
        return NULL;
    }
    return awaited;
}

/* True: every job that the slot names has been issued. False: the slot is parked, or in the ready
 * list behind one that it names. */
static bool waits_are_issued(ren_runtime *rt, ren__slot *slot)
{
    ren__slot *first = NULL;
    bool all_in_line = true;
    for (uint32_t i = slot->wait_next; i < slot->wait_count; i++) {
        ren_job job = slot->u.waits[i];
        uint32_t state;
        ren__slot *awaited = awaited_by(rt, job, &state);
        if (!awaited || state == REN__SLOT_ISSUED) {
            slot->wait_next = first ? slot->wait_next : (uint8_t)(i + 1u);
            continue;
        }
        if (awaited->drained_generation != (uint32_t)(job.id >> 32)) {
            if (boost(rt, awaited, slot)) {
                return false;
            }
            all_in_line = false;
        }
        all_in_line = all_in_line && awaited->in_line;
        first = first ? first : awaited;
    }
    if (!first) {
        return true;
    }
    if (all_in_line) {
        enter_lines(rt, slot);
    }
    slot->link.next = first->issue_dependants ? &first->issue_dependants->link : NULL;
    first->issue_dependants = slot;
    return false;
}

/* True: the waits that need a completion have it; the others become points. False: parked. */
static bool waits_are_done(ren_runtime *rt, ren__slot *slot)
{
    for (uint32_t i = 0; i + slot->after_count < slot->wait_count; i++) {
        ren_job job = slot->u.waits[i];
        uint32_t state;
        ren__slot *awaited = awaited_by(rt, job, &state);
        if (!awaited) {
            continue;
        }
        if (awaited->by_completion || (slot->on_host && slot->lane != awaited->lane)) {
            enter_lines(rt, slot);
            if (park_until_done(slot, awaited, (uint32_t)(job.id >> 32))) {
                return false;
            }
        }
    }
    return true;
}

/* True: no HOST job that named one of the slot's buffers before is under way. False: parked.
 * Asked at the slot's turn, when all jobs before it have been issued. */
static bool hosts_are_done(ren_runtime *rt, ren__slot *slot)
{
    for (uint32_t i = 0; i < slot->use_count; i++) {
        ren__buffer_entry *entry = &rt->buffers[slot->uses[i].buffer];
        uint32_t state;
        ren__slot *host = awaited_by(rt, entry->host, &state);
        if (host && !(slot->on_host && slot->lane == host->lane)) {
            enter_lines(rt, slot);
            if (park_until_done(slot, host, (uint32_t)(entry->host.id >> 32))) {
                return false;
            }
        }
    }
    return true;
}

/* Room on every lane that the job touches? A work that needs nothing of a lane does not ask. */
static bool job_has_credit(ren_runtime *rt, ren__slot *slot)
{
    if (slot->kind != REN__JOB_WORK) {
        return ren__lane_has_credit(rt, &rt->lanes[slot->lane], REN__JOB_COMMANDS);
    }
    ren__issue_renew_need(rt, slot);
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        uint32_t commands = 0;
        for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
            commands += rt->lane_of[s] == l ? slot->as.work.need[s] : 0;
        }
        if ((commands || l == slot->lane) &&
            !ren__lane_has_credit(rt, &rt->lanes[l], REN__JOB_COMMANDS + commands)) {
            return false;
        }
    }
    return true;
}

/* A point is an event of the lane, and tells nothing of what the lane's completion thread does
 * itself. So a buffer whose fence names a batch at or behind such work waits for the completion:
 * that of its own earlier jobs, or of jobs that used its memory before it was this buffer. */
static bool host_work_is_past(ren_runtime *rt, const ren__slot *slot)
{
    for (uint32_t l = 0; slot->use_count && l < rt->lanes_count; l++) {
        const ren__lane *lane = &rt->lanes[l];
        uint64_t completed = atomic_load_explicit(&lane->completed, memory_order_acquire);
        if (lane->host_seq <= completed || (slot->on_host && l == slot->lane)) {
            continue;
        }
        for (uint32_t i = 0; i < slot->use_count; i++) {
            const ren__buffer_entry *entry = &rt->buffers[slot->uses[i].buffer];
            bool writes = slot->uses[i].access & REN_ACCESS_WRITE;
            if (entry->writes.seq[l] > completed || (writes && entry->reads.seq[l] > completed)) {
                return false;
            }
        }
    }
    return true;
}

/* A work needs room on several lanes at the same moment. While the oldest of a lane's blocked
 * jobs is one, younger jobs leave the room that comes free to it, or it might wait for ever;
 * REALTIME jobs do not, since a step is nothing that they should wait for. */
static bool is_behind_work(const ren_runtime *rt, const ren__slot *slot)
{
    for (uint32_t l = 0; slot->class != REN__CLASS_REALTIME && l < rt->lanes_count; l++) {
        const ren__slot *head = rt->lanes[l].blocked_first;
        if (head && head != slot && head->kind == REN__JOB_WORK &&
            !(slot->in_line && slot->line_seq < head->line_seq)) {
            return true;
        }
    }
    return false;
}

static bool job_can_go(ren_runtime *rt, ren__slot *slot)
{
    return !is_behind_work(rt, slot) && is_next_in_lines(rt, slot) && job_has_credit(rt, slot) &&
           host_work_is_past(rt, slot);
}

static void link_into_batch(ren_runtime *rt, ren__lane *lane, ren__slot *slot, uint64_t now)
{
    ren__batch *batch = &lane->batches[lane->open_seq % REN__BATCHES];
    slot->batch_seq = lane->open_seq;
    /* The clock is read once a round, and the job may have been posted since. */
    slot->launched_ns = now > slot->posted_ns ? now : slot->posted_ns;
    if (slot->on_host) {
        lane->host_seq = lane->open_seq;
        lane->hold_seq = slot->kind == REN_JOB_COPY ? lane->open_seq : lane->hold_seq;
    } else if (slot->kind == REN_JOB_BARRIER) {
        slot->by_completion =
            lane->host_seq > atomic_load_explicit(&lane->completed, memory_order_relaxed);
    }
    slot->timeline_value = ++rt->stream_issued[slot->stream];
    slot->link.next = NULL;
    if (batch->last) {
        batch->last->next = &slot->link;
    } else {
        batch->first = &slot->link;
    }
    batch->last = &slot->link;
    /* What the completion thread does itself may take long: nothing stands behind it in a batch. */
    if (++batch->jobs >= REN__BATCH_JOBS || slot->on_host) {
        (void)ren__lane_close_batch(rt, lane);
    }
}

/* Close what somebody waits for. A batch that holds only commands (a step's share of a lane that
 * the step does not end on) stays open: nobody need wake for it. */
static void close_all(ren_runtime *rt)
{
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        ren__lane *lane = &rt->lanes[l];
        ren__batch *batch = &lane->batches[lane->open_seq % REN__BATCHES];
        if (batch->first || batch->notify_count) {
            (void)ren__lane_close_batch(rt, lane);
        }
    }
}

/* ------------------------------------------------------------------ issues that broke off */

/* An issue failed after it had enqueued commands. What they use may be freed or used again once the
 * job is done (by a work's owner; a plain job's stamps), so the job is finished only when every
 * lane is past them. */
static void set_aside_broken(ren_runtime *rt, ren__slot *slot, ren_status status)
{
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        (void)ren__lane_close_batch(rt, &rt->lanes[l]);
        slot->u.drain[l] = rt->lanes[l].open_seq - 1u;
    }
    slot->call_status = status;
    slot->by_completion = true; /* it is in no batch */
    slot->link.next = rt->broken ? &rt->broken->link : NULL;
    rt->broken = slot;
    /* seq_cst: as in blocked_push, the completion threads ring from now on. */
    atomic_store_explicit(&rt->wants_credit, true, memory_order_seq_cst);
}

static bool lanes_are_past(ren_runtime *rt, const ren__slot *slot)
{
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        if (atomic_load_explicit(&rt->lanes[l].completed, memory_order_acquire) <
            slot->u.drain[l]) {
            return false;
        }
    }
    return true;
}

static void finish_broken(ren_runtime *rt, bool *left)
{
    ren__slot *slot = rt->broken;
    rt->broken = NULL;
    while (slot) {
        ren__slot *next = slot->link.next ? slot_of_link(slot->link.next) : NULL;
        if (lanes_are_past(rt, slot)) {
            ren_status status = slot->call_status;
            slot->call_status = REN_OK;
            ren__job_finish(rt, REN__WORKER_SUBMITTER, slot, status);
        } else {
            slot->link.next = rt->broken ? &rt->broken->link : NULL;
            rt->broken = slot;
            *left = true;
        }
        slot = next;
    }
}

static void issue(ren_runtime *rt, ren__slot *slot)
{
    ren__lane *lane = &rt->lanes[slot->lane];
    uint32_t generation = generation_of(slot);
    uint64_t expected = ren__word_make(generation, REN__SLOT_QUEUED, REN_OK);
    bool alone = slot->kind == REN__JOB_WORK && slot->as.work.alone;
    ren_status status;
    if (slot->deadline_ns && rt->now_ns > slot->deadline_ns) {
        finish_unissued(rt, slot, REN_ERR_DEADLINE);
        return;
    }
    /* The race with ren_cancel: exactly one of the two exchanges wins. */
    if (!atomic_compare_exchange_strong_explicit(
            &slot->word, &expected, ren__word_make(generation, REN__SLOT_ISSUED, REN_OK),
            memory_order_acq_rel, memory_order_acquire)) {
        finish_unissued(rt, slot, REN_CANCELLED);
        return;
    }
    leave_lines(rt, slot);
    if (slot->kind <= REN_JOB_DEVICE || (slot->kind == REN__JOB_WORK && slot->as.work.brief)) {
        ren__lane_announce(rt, lane);
    }
    if (alone) {
        close_all(rt);
    }
    status = ren__issue_commands(rt, lane, slot);
    wake_issue_dependants(rt, slot);
    if (status != REN_OK) {
        if (status == REN_ERR_DEVICE_LOST) {
            ren__runtime_lose(rt, "the device was lost while a job was issued", status);
        }
        if (slot->kind == REN__JOB_WORK || slot->stamps) {
            set_aside_broken(rt, slot, status);
        } else {
            ren__job_finish(rt, REN__WORKER_SUBMITTER, slot, status);
        }
        return;
    }
    link_into_batch(rt, lane, slot, rt->now_ns);
    if (alone) {
        close_all(rt);
    }
}

static void go(ren_runtime *rt, ren__slot *slot)
{
    if (hosts_are_done(rt, slot)) {
        issue(rt, slot);
    }
}

static bool is_behind_blocked(const ren__lane *lane, const ren__slot *slot)
{
    return lane->blocked_first &&
           !(slot->in_line && slot->line_seq < lane->blocked_first->line_seq);
}

static bool is_cancelled(const ren__slot *slot)
{
    return ren__word_state(atomic_load_explicit(&slot->word, memory_order_relaxed)) ==
           REN__SLOT_CANCELLED;
}

static void take_up(ren_runtime *rt, ren__slot *slot)
{
    ren__lane *lane = &rt->lanes[slot->lane];
    bool cancelled;
    if (atomic_load_explicit(&rt->lost, memory_order_acquire)) {
        bool timed_out = atomic_load_explicit(&rt->timed_out, memory_order_relaxed);
        finish_unissued(rt, slot, timed_out ? REN_ERR_ABORTED : REN_ERR_DEVICE_LOST);
        return;
    }
    if (atomic_load_explicit(&rt->aborting, memory_order_acquire)) {
        finish_unissued(rt, slot, REN_ERR_ABORTED);
        return;
    }
    /* A cancelled job that is in line leaves it at its turn, not before; and a work that goes after
     * another not before that one is issued, since what goes after it counts on both. */
    cancelled = !slot->in_line && is_cancelled(slot);
    if (cancelled && !slot->after_count) {
        finish_unissued(rt, slot, REN_CANCELLED);
        return;
    }
    if (!waits_are_issued(rt, slot)) {
        return;
    }
    if (cancelled) {
        finish_unissued(rt, slot, REN_CANCELLED);
        return;
    }
    if (!waits_are_done(rt, slot)) {
        return;
    }
    if (is_behind_blocked(lane, slot) || !job_can_go(rt, slot)) {
        enter_lines(rt, slot);
        blocked_push(rt, lane, slot);
        return;
    }
    go(rt, slot);
}

/* ------------------------------------------------------------------ rounds */

static void take_inbox(ren_runtime *rt)
{
    ren__link *link = ren__list_is_empty(&rt->inbox) ? NULL : ren__list_take_all(&rt->inbox);
    while (link) {
        ren__link *next = link->next;
        ready_push(rt, slot_of_link(link));
        link = next;
    }
}

static uint32_t retry_lane(ren_runtime *rt, ren__lane *lane, uint32_t limit, bool *left)
{
    uint32_t n = 0;
    for (; lane->blocked_first; n++) {
        ren__slot *slot = lane->blocked_first;
        bool give_up = atomic_load_explicit(&rt->lost, memory_order_relaxed) ||
                       atomic_load_explicit(&rt->aborting, memory_order_relaxed);
        if (n == limit || (!give_up && !job_can_go(rt, slot))) {
            *left = true;
            break;
        }
        lane->blocked_first = slot->link.next ? slot_of_link(slot->link.next) : NULL;
        if (!lane->blocked_first) {
            lane->blocked_last = NULL;
        }
        if (give_up) {
            take_up(rt, slot);
        } else {
            go(rt, slot);
        }
    }
    return n;
}

static uint32_t retry_blocked(ren_runtime *rt, uint32_t limit)
{
    uint32_t n = 0;
    uint32_t before;
    bool left = false;
    if (!atomic_load_explicit(&rt->wants_credit, memory_order_relaxed)) {
        return 0;
    }
    /* A job that goes may be what another lane's head stood behind: again until none goes. */
    do {
        before = n;
        left = false;
        finish_broken(rt, &left); /* not counted: they were when they were issued */
        for (uint32_t l = 0; l < rt->lanes_count; l++) {
            n += retry_lane(rt, &rt->lanes[l], limit - n, &left);
        }
    } while (n != before && left);
    if (!left && !rt->broken) { /* a job that went just now may have broken off */
        atomic_store_explicit(&rt->wants_credit, false, memory_order_relaxed);
    }
    return n;
}

static uint32_t drain_ready(ren_runtime *rt, uint32_t limit)
{
    uint32_t n = 0;
    ren__slot *slot;
    while (n < limit && (slot = ready_pop(rt)) != NULL) {
        take_up(rt, slot);
        n++;
    }
    return n;
}

uint32_t ren__submitter_round(ren_runtime *rt, uint32_t max_jobs)
{
    void *items[REN__DRAIN_BATCH];
    uint32_t class;
    uint32_t source;
    uint32_t total = 0;
    uint32_t limit = max_jobs ? max_jobs : UINT32_MAX;
    rt->now_ns = ren__now_ns();
    for (;;) {
        uint32_t n;
        take_inbox(rt);
        total += retry_blocked(rt, limit - total);
        total += drain_ready(rt, limit - total);
        n = limit - total < REN__DRAIN_BATCH ? limit - total : REN__DRAIN_BATCH;
        if (total >= 4096u && !max_jobs) {
            break; /* the clock and the open batches need a look */
        }
        n = ren__drain_pop(&rt->drain, items, n, &class, &source);
        for (uint32_t i = 0; i < n; i++) {
            drained(rt, items[i]);
            ready_push(rt, items[i]);
        }
        if (!n) {
            break;
        }
    }
    close_all(rt);
    if (total && ren__trace_on(&rt->trace)) {
        ren__trace_span(&rt->trace, REN__TRACK_SUBMITTER, "submit", rt->now_ns, ren__now_ns(),
                        total);
    }
    return total;
}

static bool has_work(void *arg)
{
    ren_runtime *rt = arg;
    if (rt->ready_first || !ren__list_is_empty(&rt->inbox) || !ren__drain_is_empty(&rt->drain)) {
        return true;
    }
    if (!atomic_load_explicit(&rt->wants_credit, memory_order_relaxed)) {
        return false;
    }
    for (ren__slot *slot = rt->broken; slot;
         slot = slot->link.next ? slot_of_link(slot->link.next) : NULL) {
        if (lanes_are_past(rt, slot)) {
            return true;
        }
    }
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        ren__lane *lane = &rt->lanes[l];
        if (lane->blocked_first && (job_can_go(rt, lane->blocked_first) ||
                                    atomic_load_explicit(&rt->lost, memory_order_relaxed) ||
                                    atomic_load_explicit(&rt->aborting, memory_order_relaxed))) {
            return true;
        }
    }
    return false;
}

static void sleep_until_rung(ren_runtime *rt)
{
    uint32_t key;
    ren__doorbell_sleep_begin(&rt->submit_bell);
    key = ren__doorbell_prepare(&rt->submit_bell);
    REN__POINT("submitter.before_sleep");
    if (!has_work(rt) && !atomic_load_explicit(&rt->stop_submitter, memory_order_acquire)) {
        uint64_t now = ren__now_ns();
        atomic_fetch_add_explicit(&rt->submit_ns, now - rt->awake_since_ns, memory_order_relaxed);
        (void)ren__doorbell_wait(&rt->submit_bell, key, REN_TIMEOUT_INFINITE);
        rt->awake_since_ns = ren__now_ns();
    }
    ren__doorbell_sleep_end(&rt->submit_bell);
}

void ren__submitter_main(void *arg)
{
    ren_runtime *rt = arg;
    atomic_store_explicit(&rt->submit_thread_id, ren__thread_self(), memory_order_release);
    rt->awake_since_ns = ren__now_ns();
    for (;;) {
        if (ren__submitter_round(rt, 0)) {
            continue;
        }
        /* acquire: pairs with destroy's release; nothing is outstanding any more. */
        if (atomic_load_explicit(&rt->stop_submitter, memory_order_acquire)) {
            return;
        }
        if (!ren__yield_for(has_work, rt, 0)) {
            sleep_until_rung(rt);
        }
    }
}
