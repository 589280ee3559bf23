/* SPDX-License-Identifier: MIT */
/* libren/trace/stamps.c - see stamps.h.
 *
 * The ring. A block is a header and its stamps, all in a row. The header holds the block's length
 * and whether it was given back. Blocks are taken at the head by the submitter alone and given back
 * in any order; the submitter moves the tail over those that were, so the oldest block under way
 * holds up the rest. Who gives a block back has read it, so its release of the header, with the
 * submitter's acquire, keeps the next user's zeroes behind that reading.
 *
 * The clocks. A probe is a work of one stamp. The host's clock is read before the stamp is enqueued
 * and when the waiting thread sees it in pinned memory, so the stamp lies between; to wait for the
 * lane's completion thread instead would add its wake-up to one side, which is many times as long.
 * From several probes the offset between the clocks is known to lie in the intersection of their
 * intervals. Where that holds 0 the clocks are taken for the same one, which the CPU device's are,
 * exactly; else its middle is the estimate. Over the length of a trace the clocks may drift apart,
 * so they are read at its end as well. Times in between are put on the line through both readings,
 * unless what the offset has changed by can be their errors: then nothing is known of a drift, and
 * the line through two close readings would be the errors' own.
 */
#include "stamps.h"

#include <sched.h>
#include <string.h>

enum {
    PROBES = 8
};
#define PATIENCE_NS UINT64_C(1000000000)
#define SPIN_NS     UINT64_C(100000)
#define TICK_NS     1000u /* a device's clock may go in steps of a microsecond */
/* The ring, and a probe's stamp in a line of its own. */
#define MEMORY_BYTES (REN__STAMP_ENTRIES * sizeof(uint64_t) + 64u)

/* ------------------------------------------------------------------ the ring */

ren_status ren__stamps_open(ren__stamps *s, const ren__device_api *api, ren__device *dev)
{
    void *memory = NULL;
    if (atomic_load_explicit(&s->memory, memory_order_relaxed)) {
        return REN_OK;
    }
    ren_status status = api->host_alloc(dev, MEMORY_BYTES, &memory);
    if (status == REN_OK) {
        s->probe.stamp = (_Atomic uint64_t *)(void *)((uint64_t *)memory + REN__STAMP_ENTRIES);
        /* release: pairs with take's acquire. */
        atomic_store_explicit(&s->memory, (uint64_t *)memory, memory_order_release);
    }
    return status;
}

void ren__stamps_deinit(ren__stamps *s, const ren__device_api *api, ren__device *dev)
{
    uint64_t *memory = atomic_load_explicit(&s->memory, memory_order_relaxed);
    if (memory) {
        api->host_free(dev, memory, MEMORY_BYTES);
    }
    atomic_store_explicit(&s->memory, NULL, memory_order_relaxed);
}

/* (length << 1) | given back. */
static _Atomic uint64_t *header_of(uint64_t *block)
{
    return (_Atomic uint64_t *)(void *)block;
}

static void put_header(uint64_t *memory, uint64_t at, uint64_t entries, uint64_t given)
{
    atomic_store_explicit(header_of(&memory[at % REN__STAMP_ENTRIES]), entries << 1 | given,
                          memory_order_relaxed);
}

static void reclaim(ren__stamps *s, uint64_t *memory)
{
    while (s->tail != s->head) {
        /* acquire: pairs with give; the block has been read. */
        uint64_t header = atomic_load_explicit(header_of(&memory[s->tail % REN__STAMP_ENTRIES]),
                                               memory_order_acquire);
        if (!(header & 1u)) {
            break;
        }
        s->tail += header >> 1;
    }
}

uint64_t *ren__stamps_take(ren__stamps *s, uint32_t count)
{
    /* acquire: pairs with open. */
    uint64_t *memory = atomic_load_explicit(&s->memory, memory_order_acquire);
    if (!memory) {
        return NULL;
    }
    reclaim(s, memory);
    uint64_t entries = (uint64_t)count + 1u;
    uint64_t row = REN__STAMP_ENTRIES - s->head % REN__STAMP_ENTRIES;
    uint64_t skipped = entries > row ? row : 0; /* a block does not go round the end */
    if (entries + skipped > REN__STAMP_ENTRIES - (s->head - s->tail)) {
        return NULL;
    }
    if (skipped) {
        put_header(memory, s->head, skipped, 1);
        s->head += skipped;
    }
    put_header(memory, s->head, entries, 0);
    uint64_t *stamps = &memory[s->head % REN__STAMP_ENTRIES + 1u];
    s->head += entries;
    memset(stamps, 0, count * sizeof *stamps);
    return stamps;
}

void ren__stamps_give(uint64_t *stamps)
{
    if (stamps) {
        /* release: pairs with reclaim. */
        atomic_fetch_or_explicit(header_of(stamps - 1), 1u, memory_order_release);
    }
}

/* ------------------------------------------------------------------ the clocks */

static ren_status probe_issue(void *self, ren__submit *s)
{
    ren__clock_probe *p = self;
    p->before_ns = ren__now_ns();
    return ren__submit_api(s)->stamp(ren__submit_device(s), ren__submit_lane(s, REN_STREAM_TRANS),
                                     (uint64_t *)(void *)p->stamp);
}

static void probe_finish(void *self, ren_completion *c)
{
    ren__clock_probe *p = self;
    (void)c;
    /* release: pairs with read_one's acquire. */
    atomic_store_explicit(&p->busy, 0, memory_order_release);
}

static ren_status post_probe(ren__clock_probe *p, ren_runtime *rt, uint64_t deadline_ns,
                             ren_job *out_job)
{
    ren__work work = {.issue = probe_issue, .finish = probe_finish, .self = p, .timed = 1};
    ren_status status;
    work.stream = REN_STREAM_TRANS;
    work.need[REN_STREAM_TRANS] = 1;
    work.priority = REN_PRIORITY_REALTIME;
    atomic_store_explicit(p->stamp, 0, memory_order_relaxed);
    atomic_store_explicit(&p->busy, 1, memory_order_relaxed);
    do {
        status = ren__work_post(rt, &work, NULL, NULL, REN_DELIVER_NONE, 0, out_job);
        if (status == REN_ERR_QUEUE_FULL) {
            (void)sched_yield();
        }
    } while (status == REN_ERR_QUEUE_FULL && ren__now_ns() < deadline_ns);
    if (status != REN_OK) {
        atomic_store_explicit(&p->busy, 0, memory_order_relaxed);
    }
    return status;
}

/* 0: no answer in time, or the runtime takes no work. *out_after_ns: when the host saw it. */
static uint64_t read_one(ren__clock_probe *p, ren_runtime *rt, uint64_t deadline_ns,
                         uint64_t *out_after_ns)
{
    ren_job job = {0};
    uint64_t device_ns = 0;
    if (post_probe(p, rt, deadline_ns, &job) != REN_OK) {
        return 0;
    }
    *out_after_ns = 0;
    uint64_t impatient_ns = ren__now_ns() + SPIN_NS;
    /* acquire, both: the device's write, and probe_finish. A probe that failed is finished without
     * a stamp. */
    while (device_ns == 0 && atomic_load_explicit(&p->busy, memory_order_acquire) &&
           *out_after_ns < deadline_ns) {
        if (ren__runtime_config_of(rt)->host_drives_submitter) {
            (void)ren__runtime_tick(rt, 0, NULL);
        } else if (*out_after_ns > impatient_ns) {
            (void)sched_yield();
        }
        device_ns = atomic_load_explicit(p->stamp, memory_order_acquire);
        *out_after_ns = ren__now_ns();
    }
    while (atomic_load_explicit(&p->busy, memory_order_acquire)) {
        uint64_t now = ren__now_ns();
        if (now >= deadline_ns) {
            return 0;
        }
        (void)ren__wait(rt, job, deadline_ns - now);
    }
    if (device_ns == 0) { /* finished between the two looks */
        device_ns = atomic_load_explicit(p->stamp, memory_order_acquire);
        *out_after_ns = ren__now_ns();
    }
    return device_ns;
}

bool ren__stamps_read_clock(ren__stamps *s, ren_runtime *rt, ren__clock_pair *out)
{
    uint64_t deadline_ns = ren__now_ns() + PATIENCE_NS;
    int64_t least = INT64_MIN, most = INT64_MAX; /* host minus device */
    uint64_t device_ns = 1, after_ns;
    out->device_ns = 0;
    /* acquire: pairs with probe_finish; a probe of an earlier call may still be under way. */
    if (atomic_load_explicit(&s->probe.busy, memory_order_acquire)) {
        return false;
    }
    for (uint32_t i = 0; i < PROBES && device_ns; i++) {
        device_ns = read_one(&s->probe, rt, deadline_ns, &after_ns);
        if (device_ns) {
            int64_t from = (int64_t)(s->probe.before_ns - device_ns);
            int64_t to = (int64_t)(after_ns - device_ns);
            least = from > least ? from : least;
            most = to < most ? to : most;
            out->device_ns = device_ns;
        }
    }
    int64_t offset = least <= 0 && most >= 0 ? 0 : least + (most - least) / 2;
    out->host_ns = out->device_ns + (uint64_t)offset;
    out->error_ns = offset ? TICK_NS + (most > least ? (uint64_t)(most - least) / 2u : 0) : 0;
    return out->device_ns != 0;
}

void ren__clock_reconcile(ren__clock_pair *first, ren__clock_pair *last)
{
    int64_t a = (int64_t)(first->host_ns - first->device_ns);
    int64_t b = (int64_t)(last->host_ns - last->device_ns);
    int64_t ea = (int64_t)first->error_ns, eb = (int64_t)last->error_ns;
    int64_t least = a - ea > b - eb ? a - ea : b - eb;
    int64_t most = a + ea < b + eb ? a + ea : b + eb;
    if (least <= most) {
        uint64_t offset = (uint64_t)(least + (most - least) / 2);
        first->host_ns = first->device_ns + offset;
        last->host_ns = last->device_ns + offset;
    }
}
