/* SPDX-License-Identifier: MIT */
/* libren/core/lane.c - batches and points: what a lane has done, and who must wait for it.
 *
 * Purpose   Close a lane's open batch, order one lane behind a batch of another, and say whether
 *           a lane has room. runtime.h says what batches and points are.
 * Threads   the submitter.
 * Progress  nothing here waits.
 */
#include "runtime.h"

ren_status ren__lane_close_batch(ren_runtime *rt, ren__lane *lane)
{
    ren__batch *batch = &lane->batches[lane->open_seq % REN__BATCHES];
    ren_status status = REN_OK;
    if (!batch->first && !batch->notify_count && !lane->open_has_commands) {
        return REN_OK;
    }
    batch->has_event = lane->open_has_commands;
    if (batch->has_event) {
        for (int attempt = 0; attempt < 3; attempt++) {
            status = rt->api->event_record(rt->dev, lane->index, batch->event);
            if (status == REN_OK || status == REN_ERR_DEVICE_LOST) {
                break;
            }
        }
        lane->event_seq = lane->open_seq;
        lane->commands++;
        atomic_fetch_add_explicit(&rt->events_recorded, 1, memory_order_relaxed);
        if (status != REN_OK) {
            ren_error err;
            (void)REN__FAIL(&err, REN_ERR_DEVICE_LOST,
                            "an event could not be recorded on lane %u (%s): its work cannot be "
                            "followed any more",
                            lane->index, ren__status_name(status));
            ren__runtime_set_lost(rt, &err);
        }
    }
    batch->event_seq = lane->event_seq;
    batch->commands_end = lane->commands;
    lane->open_has_commands = false;
    atomic_store_explicit(&batch->claim, REN__BATCH_PUBLISHED, memory_order_relaxed);
    atomic_fetch_add_explicit(&rt->batches_closed, 1, memory_order_relaxed);
    /* release: pairs with the completion thread's acquire; the batch is complete as written. */
    atomic_store_explicit(&lane->published, lane->open_seq, memory_order_release);
    lane->open_seq++;
    ren__doorbell_ring_if_asleep(&lane->bell);
    return status;
}

void ren__lane_announce(ren_runtime *rt, ren__lane *lane)
{
    if (rt->wakes_early) {
        ren__doorbell_ring_if_asleep(&lane->bell);
    }
}

ren_status ren__lane_wait_point(ren_runtime *rt, ren__lane *lane, uint32_t other, uint64_t seq)
{
    ren__lane *from = &rt->lanes[other];
    uint64_t completed;
    ren_status status;
    if (other == lane->index || seq == 0 || lane->known[other] >= seq) {
        return REN_OK;
    }
    /* acquire: pairs with the completion thread's release; what the batch wrote is visible. */
    completed = atomic_load_explicit(&from->completed, memory_order_acquire);
    if (completed >= seq) {
        lane->known[other] = completed;
        return REN_OK;
    }
    if (seq == from->open_seq) {
        status = ren__lane_close_batch(rt, from);
        if (status != REN_OK) {
            return status;
        }
    }
    /* The event of the newest batch up to seq that recorded one; a batch without commands is
     * complete when that one is. */
    seq = from->batches[seq % REN__BATCHES].event_seq;
    if (seq <= completed || lane->known[other] >= seq) {
        return REN_OK;
    }
    status = rt->api->event_wait(rt->dev, lane->index, from->batches[seq % REN__BATCHES].event);
    if (status == REN_OK) {
        lane->known[other] = seq;
        lane->open_has_commands = true;
        lane->commands++;
        atomic_fetch_add_explicit(&rt->events_waited, 1, memory_order_relaxed);
    }
    return status;
}

bool ren__lane_has_credit(ren_runtime *rt, ren__lane *lane, uint32_t commands)
{
    uint64_t completed = atomic_load_explicit(&lane->completed, memory_order_acquire);
    uint64_t done = atomic_load_explicit(&lane->completed_commands, memory_order_relaxed);
    if (lane->hold_seq > completed) {
        return false;
    }
    /* A lane that has finished everything takes any job, however small its queue: so whatever is
     * blocked goes on in the end. A job ends one batch, a work that stands alone two. */
    if (lane->open_seq - completed < REN__BATCHES - 2u &&
        (lane->commands == done || lane->commands - done + commands <= rt->caps.lane_commands)) {
        return true;
    }
    /* Commands of an open batch give no credit back until it is closed. */
    if (lane->open_has_commands) {
        (void)ren__lane_close_batch(rt, lane);
    }
    return false;
}
