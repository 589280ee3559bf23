/* SPDX-License-Identifier: MIT */
/* libren/core/runtime.c - a runtime's beginning and end.
 *
 * Purpose   Create, close, drain, abort, destroy; faults; counters; what other parts ask of a
 * runtime.
 * Threads   create and destroy: one. The rest: any.
 *
 * The end of a runtime   close stops posts. drain waits until every accepted job is done. abort
 *           gives up: the submitter finishes what it has not issued; what the device has gets a
 *           grace of a second; then the device is abandoned, which makes its waits return; and a
 *           batch whose thread still does not come back is claimed and finished here, its thread
 *           left behind and counted. destroy refuses while anything is outstanding, so it only has
 *           to join threads that have nothing to do. With a thread left behind, the memory that it
 *           may still touch is left behind, too.
 *
 * Fork      A page that the kernel wipes in a child holds a non-zero word. One load tells a child
 *           from the process that made the runtime; nothing is registered and no system call is
 *           made.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

#define ABORT_GRACE_NS  1000000000u
#define ABORT_SETTLE_NS 500000000u

/* ------------------------------------------------------------------ what others ask */

void ren__runtime_log(ren_runtime *rt, ren_log_level level, const char *format, ...)
{
    char text[512];
    va_list args;
    if (!rt->log.fn || level > rt->log.min_level) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    rt->log.fn(rt->log.user, level, text);
}

ren_status ren__runtime_refuse(ren_runtime *rt, ren_status status, const char *format, ...)
{
    char text[256];
    va_list args;
    if (rt->config.validate) {
        va_start(args, format);
        (void)vsnprintf(text, sizeof text, format, args);
        va_end(args);
        ren__runtime_log(rt, REN_LOG_WARNING, "a post was refused (%s): %s",
                         ren__status_name(status), text);
    }
    return status;
}

const ren__host_allocator *ren__runtime_allocator(ren_runtime *rt)
{
    return &rt->allocator;
}

const ren__device_api *ren__runtime_api(ren_runtime *rt)
{
    return rt->api;
}

ren__device *ren__runtime_device(ren_runtime *rt)
{
    return rt->dev;
}

const ren__device_caps *ren__runtime_caps(ren_runtime *rt)
{
    return &rt->caps;
}

const ren_runtime_config *ren__runtime_config_of(ren_runtime *rt)
{
    return &rt->config;
}

uint32_t ren__runtime_lane(ren_runtime *rt, ren_stream stream)
{
    return rt->lane_of[stream];
}

uint32_t ren__runtime_lanes(ren_runtime *rt)
{
    return rt->lanes_count;
}

ren__trace_slot *ren__runtime_trace(ren_runtime *rt)
{
    return &rt->trace;
}

ren__stamps *ren__runtime_stamps(ren_runtime *rt)
{
    return &rt->stamps;
}

pthread_mutex_t *ren__runtime_trace_lock(ren_runtime *rt)
{
    return &rt->trace_lock;
}

ren_status ren__runtime_check_open(const ren_runtime *rt)
{
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    /* relaxed: a call that races with the fault or the close may still be accepted; what it made
     * completes or is freed as ever. */
    if (atomic_load_explicit(&rt->lost, memory_order_relaxed)) {
        return REN_ERR_DEVICE_LOST;
    }
    return atomic_load_explicit(&rt->closed, memory_order_relaxed) ? REN_ERR_CLOSED : REN_OK;
}

ren_status ren__runtime_retain(ren_runtime *rt)
{
    ren_status status = ren__runtime_check_open(rt);
    if (status != REN_OK) {
        return status;
    }
    atomic_fetch_add_explicit(&rt->children, 1, memory_order_relaxed);
    return REN_OK;
}

void ren__runtime_release(ren_runtime *rt)
{
    /* release: pairs with destroy's acquire; the child's last use of the runtime is over. */
    atomic_fetch_sub_explicit(&rt->children, 1, memory_order_release);
}

const char *ren__runtime_device_name(ren_runtime *rt)
{
    return rt->caps.name;
}

ren_device_kind ren__runtime_device_kind(ren_runtime *rt)
{
    return rt->api->kind;
}

/* ------------------------------------------------------------------ faults */

void ren__runtime_set_lost(ren_runtime *rt, const ren_error *cause)
{
    bool first = false;
    (void)pthread_mutex_lock(&rt->fault_lock);
    if (!atomic_load_explicit(&rt->lost, memory_order_relaxed)) {
        first = true;
        rt->fault = *cause;
        rt->fault.status = REN_ERR_DEVICE_LOST;
        /* The device is told before anyone can learn of the loss from libren, and whoever finishes
         * a job with it has come through this lock: so what the host then destroys, the device
         * knows not to free under a command that still runs. No thread sleeps on an event after. */
        rt->api->abandon(rt->dev);
        /* release: pairs with the acquire of whoever acts on `lost`; the cause is written. */
        atomic_store_explicit(&rt->lost, true, memory_order_release);
    }
    (void)pthread_mutex_unlock(&rt->fault_lock);
    if (first) {
        ren__runtime_log(rt, REN_LOG_ERROR, "device lost: %s", cause->text);
        ren__doorbell_ring(&rt->submit_bell);
        ren__doorbell_ring(&rt->done_bell);
        ren__doorbell_ring(&rt->pump_bell);
    }
}

void ren__runtime_lose(ren_runtime *rt, const char *what, ren_status status)
{
    ren_error err;
    memset(&err, 0, sizeof err);
    if (rt->api->status(rt->dev, &err) == REN_OK || err.status == REN_OK) {
        (void)REN__FAIL(&err, REN_ERR_DEVICE_LOST, "%s (%s)", what, ren__status_name(status));
    }
    ren__runtime_set_lost(rt, &err);
}

ren_status ren__runtime_seen(ren_runtime *rt, ren_status status)
{
    if (status == REN_ERR_DEVICE_LOST) {
        ren__runtime_lose(rt, "the device was lost during a call for memory or a plan", status);
    }
    return status;
}

ren_status ren__runtime_status(ren_runtime *rt, ren_error *err)
{
    if (ren__runtime_is_forked(rt)) {
        return REN__FAIL(err, REN_ERR_FORKED, "%s", ren__status_text(REN_ERR_FORKED));
    }
    if (!atomic_load_explicit(&rt->lost, memory_order_acquire)) {
        return REN_OK;
    }
    if (err) {
        *err = rt->fault; /* written once, before `lost` */
    }
    return REN_ERR_DEVICE_LOST;
}

/* ------------------------------------------------------------------ creation */

static void *service_alloc(void *user, size_t bytes, size_t align)
{
    ren_runtime *rt = user;
    return rt->allocator.alloc(rt->allocator.user, bytes, align);
}

static void service_free(void *user, void *ptr, size_t bytes)
{
    ren_runtime *rt = user;
    rt->allocator.free(rt->allocator.user, ptr, bytes);
}

static void service_log(void *user, ren_log_level level, const char *text)
{
    ren__runtime_log(user, level, "%s", text);
}

static ren_status service_thread_start(void *user, const char *name, void (*entry)(void *),
                                       void *arg, void **out)
{
    return ren__thread_start(user, name, entry, arg, out);
}

static void service_thread_join(void *user, void *thread)
{
    ren__thread_join(user, thread);
}

static void map_streams(ren_runtime *rt)
{
    /* TRANS, COMP_1, COMP_2, COMP_3, UPDATE by number of lanes: copies part first, then the
     * update. */
    static const uint32_t maps[REN__LANES][REN_STREAM_COUNT] = {
        {0, 0, 0, 0, 0}, {0, 1, 1, 1, 1}, {0, 1, 1, 1, 2}, {0, 1, 2, 2, 3}, {0, 1, 2, 3, 4}};
    rt->lanes_count = rt->config.streams;
    memcpy(rt->lane_of, maps[rt->lanes_count - 1], sizeof rt->lane_of);
}

static void mix_identity(ren_runtime *rt)
{
    struct timespec now;
    uint64_t x;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    x = (uint64_t)(uintptr_t)rt ^ ((uint64_t)now.tv_sec << 32) ^
        (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u;
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 31;
    rt->tag = 1u + (uint32_t)x % 0x3ffu; /* not 0, so that no handle's id is 0 */
    rt->first_generation = (uint32_t)(x >> 32);
}

static ren_status make_fork_guard(ren_runtime *rt)
{
    long page = sysconf(_SC_PAGESIZE);
    void *guard =
        mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (guard == MAP_FAILED) {
        return REN_ERR_NO_MEMORY;
    }
#ifdef MADV_WIPEONFORK
    (void)madvise(guard, (size_t)page, MADV_WIPEONFORK); /* without it a child is not noticed */
#endif
    rt->fork_guard = guard;
    *rt->fork_guard = 1;
    return REN_OK;
}

static void copy_config(ren_runtime *rt, const ren_runtime_config *config)
{
    rt->config = *config;
    rt->config.streams = config->streams ? config->streams : 5;
    rt->config.ring_entries = config->ring_entries ? config->ring_entries : 4096;
    rt->config.graph_after_steps = config->graph_after_steps ? config->graph_after_steps : 3;
    rt->config.cpu_threads = config->cpu_threads ? config->cpu_threads : 1;
    rt->config.max_buffers = config->max_buffers ? config->max_buffers : 4096;
    rt->allocator = ren__host_allocator_make(config->allocator);
    if (config->log) {
        rt->log = *config->log;
    }
    if (config->threads) {
        rt->threads = *config->threads;
    }
    /* The pointers were read; what they point to is the caller's. */
    rt->config.allocator = NULL;
    rt->config.log = NULL;
    rt->config.threads = NULL;
}

static void init_shared_state(ren_runtime *rt)
{
    (void)pthread_mutex_init(&rt->register_lock, NULL);
    (void)pthread_mutex_init(&rt->fault_lock, NULL);
    (void)pthread_mutex_init(&rt->trace_lock, NULL);
    ren__doorbell_init(&rt->submit_bell);
    ren__doorbell_init(&rt->done_bell);
    ren__doorbell_init(&rt->pump_bell);
    ren__list_init(&rt->inbox);
    ren__drain_init(&rt->drain);
    ren__trace_slot_init(&rt->trace);
    for (uint32_t c = 0; c < REN_CHANNELS; c++) {
        ren__list_init(&rt->channels[c].incoming);
    }
    for (uint32_t l = 0; l < REN__LANES; l++) {
        ren__lane *lane = &rt->lanes[l];
        lane->index = l;
        lane->rt = rt;
        lane->open_seq = 1;
        ren__doorbell_init(&lane->bell);
    }
    rt->services.struct_size = (uint32_t)sizeof rt->services;
    rt->services.abi = REN__DEVICE_ABI;
    rt->services.user = rt;
    rt->services.alloc = service_alloc;
    rt->services.free = service_free;
    rt->services.log = service_log;
    rt->services.thread_start = service_thread_start;
    rt->services.thread_join = service_thread_join;
}

static ren_status make_events(ren_runtime *rt)
{
    ren_status status = REN_OK;
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        for (uint32_t b = 0; b < REN__BATCHES && status == REN_OK; b++) {
            status = rt->api->event_create(rt->dev, 1, &rt->lanes[l].batches[b].event);
        }
    }
    return status;
}

static ren_status make_roads(ren_runtime *rt)
{
    ren_status status = ren__road_init(rt, &rt->shared, 0, true);
    if (status != REN_OK) {
        return status;
    }
    for (uint32_t c = 0; c < REN__CLASSES; c++) {
        ren__drain_set_shared(&rt->drain, c, &rt->shared.shared[c]);
    }
    atomic_store_explicit(&rt->roads[0], &rt->shared, memory_order_release);
    return REN_OK;
}

static ren_status start_threads(ren_runtime *rt)
{
    ren_status status = REN_OK;
    char name[16];
    for (uint32_t l = 0; l < rt->lanes_count && status == REN_OK; l++) {
        (void)snprintf(name, sizeof name, "ren-complete-%c", (char)('0' + l));
        status = ren__thread_start(rt, name, ren__lane_main, &rt->lanes[l], &rt->lanes[l].thread);
    }
    if (status == REN_OK && !rt->config.host_drives_submitter) {
        status = ren__thread_start(rt, "ren-submit", ren__submitter_main, rt, &rt->submit_thread);
    }
    return status;
}

/* ------------------------------------------------------------------ destruction */

static void stop_threads(ren_runtime *rt)
{
    /* release: pairs with the acquire in the threads' loops; nothing is outstanding. */
    atomic_store_explicit(&rt->stop_submitter, true, memory_order_release);
    ren__doorbell_ring(&rt->submit_bell);
    ren__thread_join(rt, rt->submit_thread);
    rt->submit_thread = NULL;
    atomic_store_explicit(&rt->stop_lanes, true, memory_order_release);
    for (uint32_t l = 0; l < REN__LANES; l++) {
        ren__lane *lane = &rt->lanes[l];
        ren__doorbell_ring(&lane->bell);
        if (!atomic_load_explicit(&lane->abandoned, memory_order_acquire)) {
            ren__thread_join(rt, lane->thread);
            lane->thread = NULL;
        }
    }
}

static void free_memory(ren_runtime *rt)
{
    ren__host_allocator allocator = rt->allocator;
    for (uint32_t i = 0; i < REN_MAX_PRODUCERS; i++) {
        if (rt->producers[i]) {
            ren__road_deinit(rt, &rt->producers[i]->storage);
            ren__host_free(&allocator, rt->producers[i], 1, sizeof *rt->producers[i]);
        }
    }
    ren__road_deinit(rt, &rt->shared);
    ren__trace_slot_deinit(&rt->trace);
    (void)pthread_mutex_destroy(&rt->register_lock);
    (void)pthread_mutex_destroy(&rt->fault_lock);
    (void)pthread_mutex_destroy(&rt->trace_lock);
    if (rt->fork_guard) {
        (void)munmap((void *)(uintptr_t)rt->fork_guard, (size_t)sysconf(_SC_PAGESIZE));
    }
    ren__host_free(&allocator, rt, 1, sizeof *rt);
}

/* Also of a half-made runtime. */
static void tear_down(ren_runtime *rt)
{
    uint64_t abandoned = atomic_load_explicit(&rt->abandoned_threads, memory_order_relaxed);
    stop_threads(rt);
    if (abandoned) {
        ren__runtime_log(
            rt, REN_LOG_WARNING,
            "%llu threads never came back from the device; they and the memory that they "
            "may touch are left behind",
            (unsigned long long)abandoned);
        return;
    }
    if (rt->dev) {
        for (uint32_t l = 0; l < REN__LANES; l++) {
            for (uint32_t b = 0; b < REN__BATCHES; b++) {
                if (rt->lanes[l].batches[b].event) {
                    rt->api->event_destroy(rt->dev, rt->lanes[l].batches[b].event);
                }
            }
        }
    }
    ren__buffers_deinit(rt);
    if (rt->dev) {
        ren__stamps_deinit(&rt->stamps, rt->api, rt->dev);
        rt->api->close(rt->dev);
    }
    free_memory(rt);
}

ren_status ren__runtime_create(const ren_runtime_config *config, ren_runtime **out, ren_error *err)
{
    ren__host_allocator allocator = ren__host_allocator_make(config->allocator);
    ren_runtime *rt = ren__host_calloc(&allocator, 1, sizeof *rt);
    ren_status status;
    *out = NULL;
    if (!rt) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for the runtime (%zu bytes)",
                         sizeof *rt);
    }
    copy_config(rt, config);
    mix_identity(rt);
    map_streams(rt);
    init_shared_state(rt);
    status = make_fork_guard(rt);
    if (status == REN_OK) {
        status = ren__device_select(rt, err);
        if (status != REN_OK) {
            goto fail; /* err is filled */
        }
        status = make_events(rt);
    }
    if (status == REN_OK) {
        status = make_roads(rt);
    }
    if (status == REN_OK) {
        status = ren__buffers_init(rt);
    }
    if (status == REN_OK) {
        status = start_threads(rt);
    }
    if (status == REN_OK) {
        *out = rt;
        return REN_OK;
    }
    (void)REN__FAIL(err, status, "%s", ren__status_text(status));
fail:
    tear_down(rt);
    return status;
}

ren_status ren__runtime_close(ren_runtime *rt)
{
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    atomic_store_explicit(&rt->closed, true, memory_order_release);
    return REN_OK;
}

ren_status ren__runtime_drain(ren_runtime *rt, uint64_t timeout_ns)
{
    ren_status status = ren__runtime_check_blocking(rt);
    ren__deadline deadline = ren__deadline_in(timeout_ns);
    while (status == REN_OK) {
        uint32_t key = ren__wait_begin(&rt->done_bell);
        if (ren__runtime_is_idle(rt)) {
            ren__wait_end(&rt->done_bell);
            return ren__runtime_status(rt, NULL);
        }
        if (!ren__wait_sleep(rt, &rt->done_bell, key, &deadline)) {
            return REN_TIMEOUT;
        }
    }
    return status;
}

/* Finish what the threads of the lanes will not: they sleep in a device that does not answer, or
 * are inside the function of a HOST job. Such a job's batch ends with it and is its thread's to
 * finish when the function returns; what is behind it need not wait. */
static void take_over_lanes(ren_runtime *rt)
{
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        ren__lane *lane = &rt->lanes[l];
        uint64_t first = atomic_load_explicit(&lane->completed, memory_order_acquire) + 1;
        for (uint64_t seq = first;
             seq <= atomic_load_explicit(&lane->published, memory_order_acquire); seq++) {
            uint32_t expected = REN__BATCH_PUBLISHED;
            if (!atomic_compare_exchange_strong_explicit(
                    &lane->batches[seq % REN__BATCHES].claim, &expected, REN__BATCH_CLAIMED,
                    memory_order_acq_rel, memory_order_acquire)) {
                continue; /* its thread is at work on it */
            }
            if (seq == first &&
                !atomic_exchange_explicit(&lane->abandoned, true, memory_order_acq_rel)) {
                atomic_fetch_add_explicit(&rt->abandoned_threads, 1, memory_order_relaxed);
            }
            ren__batch_finish(rt, lane, seq, REN__WORKER_ABORT, REN_ERR_TIMEOUT);
        }
    }
    ren__release_parked(rt);
}

ren_status ren__runtime_abort(ren_runtime *rt)
{
    ren_status status = ren__runtime_check_blocking(rt);
    ren_error err;
    if (status != REN_OK) {
        return status;
    }
    atomic_store_explicit(&rt->closed, true, memory_order_release);
    atomic_store_explicit(&rt->aborting, true, memory_order_release);
    ren__doorbell_ring(&rt->submit_bell);
    if (ren__runtime_drain(rt, ABORT_GRACE_NS) != REN_TIMEOUT) {
        return REN_OK;
    }
    /* release: before `lost`, so that whoever sees the loss knows its kind. */
    atomic_store_explicit(&rt->timed_out, true, memory_order_release);
    (void)REN__FAIL(&err, REN_ERR_DEVICE_LOST,
                    "aborted: the device, or a HOST job's function, did not come back");
    ren__runtime_set_lost(rt, &err);
    if (ren__runtime_drain(rt, ABORT_SETTLE_NS) == REN_TIMEOUT) {
        /* acquire: pairs with the release below. One thread at a time finishes batches here: it is
         * one row of counters, and a lane's batches are finished in order. */
        if (!atomic_exchange_explicit(&rt->taking_over, true, memory_order_acquire)) {
            take_over_lanes(rt);
            atomic_store_explicit(&rt->taking_over, false, memory_order_release);
        }
        (void)ren__runtime_drain(rt, ABORT_SETTLE_NS);
    }
    return REN_OK;
}

ren_status ren__runtime_destroy(ren_runtime *rt)
{
    uint32_t children;
    uint64_t outstanding;
    uint64_t waiting;
    if (ren__runtime_is_forked(rt)) {
        return REN_OK; /* the child's copy of the memory is left to its exit */
    }
    if (ren__runtime_on_callback_thread(rt)) {
        return REN_ERR_REENTRANT;
    }
    children = atomic_load_explicit(&rt->children, memory_order_acquire);
    outstanding = ren__jobs_posted(rt);
    outstanding -= ren__jobs_done(rt);
    waiting = ren__completions_waiting(rt);
    if (children || !ren__runtime_is_idle(rt) || waiting) {
        ren__runtime_log(rt, REN_LOG_WARNING,
                         "not destroyed: %u models and producers alive, %llu jobs not done, %llu "
                         "callbacks not pumped",
                         children, (unsigned long long)outstanding, (unsigned long long)waiting);
        return REN_ERR_BUSY;
    }
    (void)ren__runtime_close(rt);
    tear_down(rt);
    return REN_OK;
}

ren_status ren__runtime_shutdown(ren_runtime *rt, uint64_t timeout_ns)
{
    ren_status status = ren__runtime_check_blocking(rt);
    if (status == REN_ERR_FORKED) {
        return ren__runtime_destroy(rt);
    }
    if (status != REN_OK) {
        return status;
    }
    (void)ren__runtime_close(rt);
    if (ren__runtime_drain(rt, timeout_ns) == REN_TIMEOUT) {
        (void)ren__runtime_abort(rt);
    }
    for (uint32_t c = 0; c < REN_CHANNELS; c++) {
        (void)ren__pump(rt, c, 0, 0, NULL);
    }
    return ren__runtime_destroy(rt);
}

/* ------------------------------------------------------------------ ticking, counters */

ren_status ren__runtime_tick(ren_runtime *rt, uint32_t max_jobs, uint32_t *out_issued)
{
    uint64_t start;
    uint32_t issued;
    if (out_issued) {
        *out_issued = 0;
    }
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    if (!rt->config.host_drives_submitter) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    if (ren__runtime_on_callback_thread(rt)) {
        return REN_ERR_REENTRANT;
    }
    /* acquire: pairs with the release below; the last tick's state is visible. */
    if (atomic_exchange_explicit(&rt->tick_busy, 1, memory_order_acquire)) {
        return REN_ERR_BUSY;
    }
    atomic_store_explicit(&rt->submit_thread_id, ren__thread_self(), memory_order_relaxed);
    start = ren__now_ns();
    issued = ren__submitter_round(rt, max_jobs);
    atomic_fetch_add_explicit(&rt->submit_ns, ren__now_ns() - start, memory_order_relaxed);
    atomic_store_explicit(&rt->submit_thread_id, 0, memory_order_relaxed);
    atomic_store_explicit(&rt->tick_busy, 0, memory_order_release);
    if (out_issued) {
        *out_issued = issued;
    }
    return atomic_load_explicit(&rt->lost, memory_order_acquire) ? REN_ERR_DEVICE_LOST : REN_OK;
}

void ren__runtime_count_times(ren_runtime *rt, const ren__step_times *times)
{
    uint64_t sums[REN__TIMES];
    memcpy(sums, times, sizeof sums);
    for (size_t i = 0; i < REN__TIMES; i++) {
        atomic_fetch_add_explicit(&rt->times[i], sums[i], memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&rt->timed_steps, 1, memory_order_relaxed);
}

static void get_times(ren_runtime *rt, ren_stats *out)
{
    uint64_t sums[REN__TIMES];
    ren__step_times times;
    out->timed_steps = atomic_load_explicit(&rt->timed_steps, memory_order_relaxed);
    for (size_t i = 0; i < REN__TIMES; i++) {
        sums[i] = atomic_load_explicit(&rt->times[i], memory_order_relaxed);
    }
    memcpy(&times, sums, sizeof times);
    out->timed_tasks = times.tasks;
    out->timed_events = times.events;
    out->timed_latency_ns = times.latency_ns;
    out->timed_issue_ns = times.issue_ns;
    out->timed_device_ns = times.device_ns;
    memcpy(out->timed_busy_ns, times.busy_ns, sizeof times.busy_ns);
    memcpy(out->bubble_ns, times.bubble_ns, sizeof times.bubble_ns);
}

void ren__runtime_stats(ren_runtime *rt, ren_stats *out)
{
    ren__pool_stats pool;
    for (uint32_t w = 0; w < REN__WORKERS; w++) {
        out->jobs_failed += atomic_load_explicit(&rt->workers[w].failed, memory_order_acquire);
        out->jobs_cancelled +=
            atomic_load_explicit(&rt->workers[w].cancelled, memory_order_acquire);
    }
    /* Each job is counted as failed or cancelled before it is counted as done. */
    out->jobs_completed = ren__jobs_done(rt) - out->jobs_failed - out->jobs_cancelled;
    out->jobs_posted = ren__jobs_posted(rt);
    out->completions_waiting = ren__completions_waiting(rt);
    out->steps_queued = atomic_load_explicit(&rt->steps[REN_PATH_QUEUED], memory_order_relaxed);
    out->steps_graph = atomic_load_explicit(&rt->steps[REN_PATH_GRAPH], memory_order_relaxed);
    out->graph_captures = atomic_load_explicit(&rt->graph_captures, memory_order_relaxed);
    out->graph_updates = atomic_load_explicit(&rt->graph_updates, memory_order_relaxed);
    out->graph_fallbacks = atomic_load_explicit(&rt->graph_fallbacks, memory_order_relaxed);
    out->events_recorded = atomic_load_explicit(&rt->events_recorded, memory_order_relaxed);
    out->events_waited = atomic_load_explicit(&rt->events_waited, memory_order_relaxed);
    out->batches = atomic_load_explicit(&rt->batches_closed, memory_order_relaxed);
    ren__pool_get_stats(rt->pool, &pool);
    out->pool_bytes_in_use = pool.in_use_bytes;
    out->pool_bytes_reserved = pool.reserved_bytes;
    out->pool_bytes_peak = pool.peak_bytes;
    out->pool_driver_allocs = pool.driver_allocs;
    out->pool_driver_frees = pool.driver_frees;
    out->submit_ns = atomic_load_explicit(&rt->submit_ns, memory_order_relaxed);
    get_times(rt, out);
    out->abandoned_threads = atomic_load_explicit(&rt->abandoned_threads, memory_order_relaxed);
}
