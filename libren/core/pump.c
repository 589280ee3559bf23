/* SPDX-License-Identifier: MIT */
/* libren/core/pump.c - callbacks on the host's thread, inside a budget.
 *
 * Purpose   ren_pump, ren_wait_any, ren_wake and the timelines: the host's side of completion.
 * Threads   one pump at a time per channel, guarded by an exchange; the rest any.
 * Progress  a pump never blocks: it takes the channel's list in one exchange and walks it. An idle
 *           pump is a few loads.
 * Order     completers push in timeline order per stream; the list keeps each pusher's order, and
 *           what a budget left over is delivered before anything newer is taken.
 */
#include "runtime.h"

bool ren__runtime_on_callback_thread(ren_runtime *rt)
{
    uintptr_t self = ren__thread_self();
    if (atomic_load_explicit(&rt->submit_thread_id, memory_order_relaxed) == self) {
        return true;
    }
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        if (atomic_load_explicit(&rt->lanes[l].thread_id, memory_order_relaxed) == self) {
            return true;
        }
    }
    for (uint32_t c = 0; c < REN_CHANNELS; c++) {
        if (atomic_load_explicit(&rt->channels[c].pumper, memory_order_relaxed) == self) {
            return true;
        }
    }
    return false;
}

uint64_t ren__completions_waiting(ren_runtime *rt)
{
    uint64_t delivered = 0;
    uint64_t queued = 0;
    /* Delivered first: a completion is queued before it is delivered, so the difference is not
     * negative. */
    for (uint32_t c = 0; c < REN_CHANNELS; c++) {
        delivered += atomic_load_explicit(&rt->channels[c].delivered, memory_order_acquire);
    }
    for (uint32_t w = 0; w < REN__WORKERS; w++) {
        queued += atomic_load_explicit(&rt->workers[w].queued_to_channels, memory_order_acquire);
    }
    return queued - delivered;
}

static void release_slot(ren_runtime *rt, ren__slot *slot)
{
    ren__road *road = atomic_load_explicit(&rt->roads[slot->road], memory_order_acquire);
    ren__index_stack_push(&road->free, slot->index);
}

static void deliver_one(ren_runtime *rt, ren__channel *channel, ren__slot *slot)
{
    ren_completion completion;
    ren_error err;
    ren_status status = ren__word_status(atomic_load_explicit(&slot->word, memory_order_relaxed));
    uint64_t delivered = atomic_load_explicit(&channel->delivered, memory_order_relaxed);
    ren__completion_fill(slot, status, &completion, &err);
    if (ren__trace_on(&rt->trace)) {
        uint64_t start = ren__now_ns();
        slot->done(&completion, slot->user);
        ren__trace_span(&rt->trace, REN__TRACK_PUMP + slot->channel, "callback", start,
                        ren__now_ns(), completion.job.id);
    } else {
        slot->done(&completion, slot->user);
    }
    release_slot(rt, slot);
    /* release: pairs with ren__completions_waiting; the callback has returned. */
    atomic_store_explicit(&channel->delivered, delivered + 1, memory_order_release);
}

static void append_incoming(ren__channel *channel)
{
    ren__link *last;
    ren__link *taken = ren__list_take_chain(&channel->incoming, &last);
    if (!taken) {
        return;
    }
    if (channel->first) {
        channel->last->next = taken;
    } else {
        channel->first = taken;
    }
    channel->last = last;
}

static uint32_t deliver_all(ren_runtime *rt, ren__channel *channel, uint32_t max_callbacks,
                            uint64_t budget_ns)
{
    uint64_t start = budget_ns ? ren__now_ns() : 0;
    uint32_t n = 0;
    append_incoming(channel);
    while (channel->first && (!max_callbacks || n < max_callbacks)) {
        ren__slot *slot = (ren__slot *)(void *)channel->first;
        if (budget_ns && n && ren__now_ns() - start >= budget_ns) {
            break;
        }
        channel->first = channel->first->next;
        deliver_one(rt, channel, slot);
        n++;
    }
    return n;
}

ren_status ren__pump(ren_runtime *rt, uint32_t channel_index, uint32_t max_callbacks,
                     uint64_t budget_ns, uint32_t *out_delivered)
{
    ren__channel *channel = &rt->channels[channel_index];
    uint32_t n = 0;
    if (out_delivered) {
        *out_delivered = 0;
    }
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    if (ren__runtime_on_callback_thread(rt)) {
        return REN_ERR_REENTRANT;
    }
    /* acquire: pairs with the release below; the last pump's leftovers are visible. */
    if (atomic_exchange_explicit(&channel->busy, 1, memory_order_acquire)) {
        return REN_ERR_BUSY;
    }
    if (channel->first || !ren__list_is_empty(&channel->incoming)) {
        atomic_store_explicit(&channel->pumper, ren__thread_self(), memory_order_relaxed);
        n = deliver_all(rt, channel, max_callbacks, budget_ns);
        atomic_store_explicit(&channel->pumper, 0, memory_order_relaxed);
    }
    atomic_store_explicit(&channel->busy, 0, memory_order_release);
    if (out_delivered) {
        *out_delivered = n;
    }
    return REN_OK;
}

ren_status ren__wake(ren_runtime *rt)
{
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    /* The epoch is raised for those that sleep now, the request is left for the next one. */
    atomic_fetch_add_explicit(&rt->wake_epoch, 1, memory_order_release);
    atomic_store_explicit(&rt->wake_request, true, memory_order_release);
    ren__doorbell_ring_if_asleep(&rt->pump_bell);
    return REN_OK;
}

ren_status ren__wait_any(ren_runtime *rt, uint64_t timeout_ns)
{
    ren_status status = ren__runtime_check_blocking(rt);
    ren__deadline deadline = ren__deadline_in(timeout_ns);
    uint32_t epoch = atomic_load_explicit(&rt->wake_epoch, memory_order_acquire);
    if (status != REN_OK) {
        return status;
    }
    for (;;) {
        uint32_t key = ren__wait_begin(&rt->pump_bell);
        status = REN_PENDING;
        if (ren__completions_waiting(rt)) {
            status = REN_OK;
        } else if (atomic_exchange_explicit(&rt->wake_request, false, memory_order_acquire) ||
                   atomic_load_explicit(&rt->wake_epoch, memory_order_acquire) != epoch) {
            status = REN_WOKEN;
        } else if (atomic_load_explicit(&rt->lost, memory_order_acquire) &&
                   ren__runtime_is_idle(rt)) {
            status = REN_ERR_DEVICE_LOST;
        }
        if (status != REN_PENDING) {
            ren__wait_end(&rt->pump_bell);
            return status;
        }
        if (!ren__wait_sleep(rt, &rt->pump_bell, key, &deadline)) {
            return REN_TIMEOUT;
        }
    }
}

ren_status ren__timeline_value(ren_runtime *rt, ren_stream stream, uint64_t *out_value)
{
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    /* acquire: pairs with the completer's release; the work up to the value is visible. */
    *out_value = atomic_load_explicit(&rt->timeline[stream], memory_order_acquire);
    return REN_OK;
}

ren_status ren__timeline_wait(ren_runtime *rt, ren_stream stream, uint64_t value,
                              uint64_t timeout_ns)
{
    ren_status status = ren__runtime_check_blocking(rt);
    ren__deadline deadline = ren__deadline_in(timeout_ns);
    while (status == REN_OK) {
        uint32_t key = ren__wait_begin(&rt->done_bell);
        if (atomic_load_explicit(&rt->timeline[stream], memory_order_acquire) >= value) {
            ren__wait_end(&rt->done_bell);
            return REN_OK;
        }
        if (atomic_load_explicit(&rt->lost, memory_order_acquire) && ren__runtime_is_idle(rt)) {
            ren__wait_end(&rt->done_bell);
            return REN_ERR_DEVICE_LOST;
        }
        if (!ren__wait_sleep(rt, &rt->done_bell, key, &deadline)) {
            return REN_TIMEOUT;
        }
    }
    return status;
}
