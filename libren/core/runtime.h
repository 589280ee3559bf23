/* SPDX-License-Identifier: MIT */
/* libren/core/runtime.h - the runtime's own structures, seen by libren/core/ only.
 *
 * Purpose   One place for the shared state and for who may touch it. Every member says its owner:
 *             [set]   written at creation, then only read
 *             [sub]   the submitter only
 *             [wait]  the lane's completion thread only
 *             [atom]  atomic, any thread; the pairing is said where it is used
 *
 * The life of a job
 *   1. A host thread takes a slot from its road's free list, fills it, makes the slot's word
 *      QUEUED and pushes the slot into the road's ring of the job's class. The word carries
 *      generation, state and final status in 64 bits, so one load tells all three and a stale
 *      handle never matches.
 *   2. The submitter pops the slot. If something it names must happen first,
 *      it is parked (on the awaited slot, or on a lane without credit); else the submitter moves
 *      the word to ISSUED, which races only with ren_cancel's move to CANCELLED, enqueues the
 *      commands on the job's lane and links the slot into the lane's open batch.
 *   3. When the rings are empty, or the batch is long, the submitter closes the batch: one event
 *      record, and one publication to the lane's completion thread. A training step, which takes
 *      as long as thousands of small jobs, has a batch of its own: else the host would hear of a
 *      step only with the next one, if both were posted in the same round, and could post the
 *      third only when the device has nothing left to do.
 *   4. The completion thread sleeps on the batch's event, then walks the batch: runs HOST
 *      functions, makes the word DONE, hands dependants back to the submitter, and pushes the slot
 *      to its channel (or frees it). A pumped slot is freed after its callback.
 *
 * Points    A pair (lane, batch number) says "when that lane has completed that batch". A job's
 *           place, a buffer's last use and a block's release are all points, so one rule serves
 *           all: wait_point. A lane's event slots are reused round robin; batch s uses slot s %
 *           REN__BATCHES, and at most REN__BATCHES batches of a lane are unfinished, so the event
 *           of an unfinished batch is always its own. A finished batch needs no wait.
 *
 * Why no completion is lost   The list of finished jobs is made of the slots themselves, so it
 *           cannot be full. Back-pressure comes from the free slots alone: a road has ring_entries
 *           of them.
 */
#ifndef REN_CORE_RUNTIME_H
#define REN_CORE_RUNTIME_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core.h"
#include "../../memory/pool.h"
#include "../../queues/doorbell.h"
#include "../../queues/drain.h"
#include "../../queues/index_stack.h"
#include "../../queues/list.h"
#include "../../queues/mpsc.h"
#include "../../queues/spsc.h"
#include "../../queues/point.h"
#include "../trace/trace.h"

#define REN__CACHE_LINE     64
#define REN__ROADS          64u /* 0 = shared, 1 + i = producer i */
#define REN__CLASSES        3u
#define REN__BATCHES        64u  /* unfinished batches of one lane */
#define REN__BATCH_JOBS     256u /* jobs after which a batch is closed */
#define REN__BATCH_NOTIFIES 8u
#define REN__JOB_COMMANDS   192u /* no plain job takes more: waits and fences, itself, a record */
#define REN__DRAIN_BATCH    32u
#define REN__DEP_CLOSED     0xffffffffu /* dependants: the job is done */

/* Who completes jobs: the lanes' threads, the submitter, an abort. Each has its own row of
 * counters. */
#define REN__WORKER_SUBMITTER REN__LANES
#define REN__WORKER_ABORT     (REN__LANES + 1u)
#define REN__WORKERS          (REN__LANES + 2u)

#define REN__TIMES (sizeof(ren__step_times) / sizeof(uint64_t))

/* ------------------------------------------------------------------ the slot's word */

enum {
    REN__SLOT_FREE = 0,
    REN__SLOT_QUEUED,
    REN__SLOT_ISSUED,
    REN__SLOT_CANCELLED,
    REN__SLOT_DONE
};

static inline uint64_t ren__word_make(uint32_t generation, uint32_t state, ren_status status)
{
    return ((uint64_t)generation << 32) | ((uint64_t)(uint8_t)(int8_t)status << 8) | state;
}

static inline uint32_t ren__word_generation(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static inline uint32_t ren__word_state(uint64_t word)
{
    return (uint32_t)(word & 0xffu);
}

static inline ren_status ren__word_status(uint64_t word)
{
    return (ren_status)(int8_t)(uint8_t)(word >> 8);
}

/* A job's id: generation 32 | runtime tag 10 | road 6 | slot 16. Generations of a runtime start at
 * a random number, so an id of another runtime fails by tag or generation. */
static inline uint64_t ren__job_id(uint32_t generation, uint32_t tag, uint32_t road, uint32_t index)
{
    return ((uint64_t)generation << 32) | ((uint64_t)(tag & 0x3ffu) << 22) |
           ((uint64_t)road << 16) | index;
}

/* ------------------------------------------------------------------ slots and roads */

typedef struct ren__use_entry {
    uint32_t buffer; /* index in the buffer table; pinned from post to issue */
    uint32_t access;
    uint32_t ticket; /* [sub] the job's turn at the buffer, once the job has a place in line */
    bool in_line;    /* [sub] false for a buffer that the job names a second time */
} ren__use_entry;

typedef struct ren__slot ren__slot;

struct ren__slot {
    /* Written by the poster, read by whoever completes. */
    ren__link link; /* the batch, then the channel; before that the submitter's lists */
    _Atomic uint64_t word;
    /* Jobs that wait for this one to be done: generation 32 | head 32, see submit.c. [atom] */
    _Atomic uint64_t dependants;
    uint32_t road;
    uint32_t index;
    uint8_t kind; /* ren_job_kind, or REN__JOB_WORK */
    uint8_t stream;
    uint8_t class;
    uint8_t deliver;
    uint8_t channel;
    uint8_t wait_count;
    uint8_t after_count; /* of the waits, the last so many are met once the job is issued */
    uint8_t use_count;
    uint8_t wait_next;  /* [sub] waits before this one are met */
    bool in_line;       /* [sub] the job holds a ticket of each of its buffers */
    bool on_host;       /* [sub] its work is done by the completion thread */
    bool by_completion; /* [sub] only its completion tells that it is done, no event does */
    uint8_t lane;       /* [sub] of the incarnation that has left its ring */
    ren_done_fn done;

    void *user;
    uint64_t posted_ns;
    uint64_t launched_ns;
    uint64_t done_ns;
    uint64_t timeline_value;
    uint64_t deadline_ns;
    uint64_t line_seq;           /* [sub] when it drew its tickets, among all jobs */
    uint64_t batch_seq;          /* [sub] the job's point, together with its lane */
    uint32_t drained_generation; /* [sub] the incarnation that has left its ring */
    ren_status call_status;      /* written by the device's lane before the batch completes */
    uint64_t *stamps; /* [sub] device times of its own command; NULL = none. Until it is finished */

    ren__slot *issue_dependants; /* [sub] jobs that wait for this one to be issued */
    union {
        ren_copy copy;
        ren_fill fill;
        struct {
            ren_enqueue_fn fn;
            void *user;
            ren_device_io io;
        } device;
        struct {
            ren_host_fn fn;
            void *user;
        } host;
        ren__work work;
    } as;
    ren_runtime *rt; /* [set] */
    ren__use_entry uses[REN_MAX_USES + 2u];
    union {
        ren_job waits[REN_MAX_WAITS];
        void *pointers[REN_MAX_USES]; /* once issued: DEVICE's addresses */
        uint64_t drain[REN__LANES];   /* an issue that broke off: what it left on the lanes */
        struct {                      /* once done: what a work's completion carries */
            ren_step_result step;
            uint64_t weight_version;
            bool has_step;
        } result;
    } u;
};

#define REN__JOB_WORK 5u

typedef struct ren__road {
    ren__slot *slots;               /* [set] ring_entries of them */
    uint32_t *next;                 /* [set] the free list's links */
    ren__index_stack free;          /* pushed by completers and the pump, taken whole by posters */
    uint32_t chain;                 /* a producer's private chain of free slots; its thread only */
    ren__index_stack turned;        /* the shared road's: taken from `free`, oldest on top */
    _Atomic uint32_t turns_begun;   /* moves from `free` to `turned`, */
    _Atomic uint32_t turns_done;    /* and those of them that are over */
    _Atomic uint64_t posted;        /* accepted; the poster (shared road: any) */
    ren__spsc rings[REN__CLASSES];  /* producers */
    ren__mpsc shared[REN__CLASSES]; /* the shared road */
    uint32_t slot_count;
} ren__road;

struct ren_producer {
    ren_runtime *rt;
    uint32_t road; /* 1 + producer index */
    bool registered;
    ren__road storage;
};

/* ------------------------------------------------------------------ lanes and batches */

typedef struct ren__notify {
    void (*fn)(void *user, ren_status status);
    void *user;
} ren__notify;

enum {
    REN__BATCH_OPEN = 0,
    REN__BATCH_PUBLISHED,
    REN__BATCH_CLAIMED
};

typedef struct ren__batch {
    ren__event *event;     /* [set] */
    uint64_t event_seq;    /* newest batch up to this one that recorded an event */
    uint64_t commands_end; /* the lane's command count at the close */
    ren__link *first;      /* jobs, oldest first */
    ren__link *last;
    uint32_t jobs;
    uint32_t notify_count;
    bool has_event;
    ren__notify notify[REN__BATCH_NOTIFIES];
    _Atomic uint32_t claim; /* completion thread or abort: who completes it */
} ren__batch;

/* Counters of one completer, so that no line is shared in the common case. Written by
 * one thread. */
typedef struct ren__worker_counters {
    _Alignas(REN__CACHE_LINE) _Atomic uint64_t done; /* all jobs completed by this worker */
    _Atomic uint64_t failed;
    _Atomic uint64_t cancelled;
    _Atomic uint64_t queued_to_channels;
} ren__worker_counters;

typedef struct ren__lane {
    /* [sub] */
    _Alignas(REN__CACHE_LINE) uint32_t index;
    bool open_has_commands;
    uint64_t open_seq;          /* the batch being filled, from 1 */
    uint64_t event_seq;         /* newest closed batch with an event */
    uint64_t commands;          /* enqueued so far */
    uint64_t batch_commands;    /* at the last close */
    uint64_t known[REN__LANES]; /* newest batch of each lane that this lane is ordered behind */
    uint64_t host_seq;          /* newest batch with a HOST job */
    uint64_t hold_seq; /* nothing goes before this batch is complete: a copy made by the host */
    ren__slot *blocked_first; /* jobs that wait for credit or a turn, by line_seq */
    ren__slot *blocked_last;

    /* submitter -> completion thread */
    _Alignas(REN__CACHE_LINE) _Atomic uint64_t published; /* newest closed batch */
    ren__doorbell bell;

    /* completion thread -> everyone */
    _Alignas(REN__CACHE_LINE) _Atomic uint64_t completed; /* newest completed batch */
    _Atomic uint64_t completed_commands;

    ren__batch batches[REN__BATCHES];
    ren_runtime *rt;
    void *thread;
    _Atomic uintptr_t thread_id;
    _Atomic bool abandoned; /* its thread was left behind by an abort */
} ren__lane;

/* ------------------------------------------------------------------ buffers */

/* Handle word: generation 32 | live 1 | freed 1 | pins 30. Pins are uses by jobs not yet issued. */
#define REN__BUFFER_LIVE  0x80000000u
#define REN__BUFFER_FREED 0x40000000u
#define REN__BUFFER_PINS  0x3fffffffu

typedef struct ren__buffer_entry {
    _Atomic uint64_t word;
    ren__block block; /* written by alloc, before the word says LIVE */
    uint64_t bytes;
    uint32_t lane;     /* whose free list it returns to */
    ren__fence writes; /* [sub] must be complete before a read; at first the block's own fence */
    ren__fence reads;  /* [sub] must, besides, be complete before a write */
    ren_job host;      /* [sub] newest HOST job that named it; id 0 = none that may be under way */
    uint32_t tickets;  /* [sub] given to jobs that wait for their turn at the buffer */
    uint32_t served;   /* [sub] of those, gone on */
} ren__buffer_entry;

/* ------------------------------------------------------------------ channels and the runtime */

typedef struct ren__channel {
    _Alignas(REN__CACHE_LINE) ren__list incoming;
    _Alignas(REN__CACHE_LINE) _Atomic uint32_t busy; /* one pump at a time */
    _Atomic uintptr_t pumper;                        /* the thread inside, for REN_ERR_REENTRANT */
    ren__link *first;                                /* taken, not yet delivered; the pump only */
    ren__link *last;                                 /* of those, when there are any */
    _Atomic uint64_t delivered;
} ren__channel;

struct ren_runtime {
    /* [set] */
    ren_runtime_config config;
    ren__host_allocator allocator;
    ren_log log;
    ren_threads threads;
    ren__host_services services;
    const ren__device_api *api;
    ren__device *dev;
    ren__device_caps caps;
    void *module; /* of dlopen; never unloaded */
    uint32_t lanes_count;
    uint32_t lane_of[REN_STREAM_COUNT];
    uint32_t tag;
    uint32_t first_generation;
    volatile uint32_t *fork_guard; /* 0 in a forked child */

    /* Roads. */
    ren__road shared;
    ren_producer *producers[REN_MAX_PRODUCERS]; /* made once, reused; under register_lock */
    _Atomic(ren__road *) roads[REN__ROADS];     /* by road number */
    pthread_mutex_t register_lock;
    ren__drain drain;

    /* Submitter. */
    ren__doorbell submit_bell;
    ren__list inbox;        /* slots whose awaited job is done */
    ren__slot *ready_first; /* [sub] to be processed before the rings */
    ren__slot *ready_last;
    uint64_t line_seq; /* [sub] jobs that have drawn tickets */
    ren__slot *broken; /* [sub] jobs whose issue broke off, until the lanes are past them */
    uint64_t stream_issued[REN_STREAM_COUNT]; /* [sub] timeline values given out */
    void *submit_thread;
    _Atomic uintptr_t submit_thread_id; /* also while a host thread ticks */
    _Atomic uint32_t tick_busy;
    _Atomic bool wants_credit; /* some lane has blocked jobs */
    _Atomic bool closed;
    _Atomic bool aborting;
    _Atomic bool stop_submitter;
    _Atomic bool stop_lanes;
    _Atomic bool lost;
    _Atomic bool timed_out;   /* abort gave the device up: TIMEOUT instead of DEVICE_LOST */
    _Atomic bool taking_over; /* a thread is inside abort's last resort */
    pthread_mutex_t fault_lock;
    ren_error fault;
    uint64_t awake_since_ns; /* [sub] */
    uint64_t now_ns;         /* [sub] the clock at the start of the round */

    /* Completion. */
    ren__lane lanes[REN__LANES];
    ren__worker_counters workers[REN__WORKERS];
    _Atomic uint64_t timeline[REN_STREAM_COUNT];
    bool wakes_early;        /* [set] completion threads are awake before a job needs them */
    ren__doorbell done_bell; /* ren_wait, ren_timeline_wait, ren_runtime_drain */
    ren__doorbell pump_bell; /* ren_wait_any */
    _Atomic uint32_t wake_epoch;
    _Atomic bool wake_request;
    ren__channel channels[REN_CHANNELS];

    /* Memory. */
    ren__pool *pool;
    ren__buffer_entry *buffers;
    uint32_t *buffer_next;
    ren__index_stack buffer_free;
    uint32_t buffer_count;
    _Atomic uint32_t deferred_frees; /* freed buffers that a job not yet issued still pins */

    _Atomic uint32_t children;
    _Atomic uint64_t events_recorded;
    _Atomic uint64_t events_waited;
    _Atomic uint64_t batches_closed;
    _Atomic uint64_t steps[2];
    _Atomic uint64_t graph_captures;
    _Atomic uint64_t graph_updates;
    _Atomic uint64_t graph_fallbacks;
    _Atomic uint64_t submit_ns;
    _Atomic uint64_t abandoned_threads;
    _Atomic uint64_t times[REN__TIMES]; /* sums of ren__step_times, member by member */
    _Atomic uint64_t timed_steps;
    ren__trace_slot trace;
    ren__stamps stamps;
    pthread_mutex_t trace_lock; /* who begins or ends a trace */
};

/* The handle of the job that the slot holds now. */
static inline ren_job ren__slot_job(const ren__slot *slot)
{
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_relaxed);
    ren_job job = {ren__job_id(ren__word_generation(word), slot->rt->tag, slot->road, slot->index)};
    return job;
}

/* ------------------------------------------------------------------ between core's files */

/* wait.c: sleeping until a condition of this runtime holds, as
 *     key = ren__wait_begin(bell); if (condition) { ren__wait_end(bell); return; }
 * ren__wait_sleep(...) in a loop. Whoever makes the condition true rings the bell afterwards. */
typedef struct ren__deadline {
    uint64_t at_ns; /* UINT64_MAX = never */
} ren__deadline;
ren__deadline ren__deadline_in(uint64_t timeout_ns);
/* Before a thread of libren's sleeps: give the processor away a few times, and at least for `ns`,
 * since the next work is often about to come, and a sleep and its wake-up cost as much as a hundred
 * jobs. True when the condition holds. */
bool ren__yield_for(bool (*condition)(void *arg), void *arg, uint64_t ns);
uint32_t ren__wait_begin(ren__doorbell *bell);
void ren__wait_end(ren__doorbell *bell);
/* Ends the wait itself. False when the deadline has passed. Where the host drives the submitter,
 * the waiting thread drives it instead of sleeping. */
bool ren__wait_sleep(ren_runtime *rt, ren__doorbell *bell, uint32_t key,
                     const ren__deadline *deadline);

static inline bool ren__runtime_is_forked(const ren_runtime *rt)
{
    return *rt->fork_guard == 0u;
}
bool ren__runtime_on_callback_thread(ren_runtime *rt);
/* REN_OK, or why nothing new is accepted: FORKED, DEVICE_LOST or CLOSED. */
ren_status ren__runtime_check_open(const ren_runtime *rt);

/* jobs.c */
ren_status ren__road_init(ren_runtime *rt, ren__road *road, uint32_t number, bool shared);
void ren__road_deinit(ren_runtime *rt, ren__road *road);
ren__slot *ren__job_slot(ren_runtime *rt, ren_job job, ren_status *out_status);
uint64_t ren__jobs_posted(ren_runtime *rt);
uint64_t ren__jobs_done(ren_runtime *rt);
bool ren__runtime_is_idle(ren_runtime *rt); /* every accepted job is done */

/* buffers.c */
ren_status ren__buffers_init(ren_runtime *rt);
void ren__buffers_deinit(ren_runtime *rt);
ren_status ren__buffer_pin(ren_runtime *rt, ren_buffer buffer, uint32_t *out_index);
void ren__buffer_unpin(ren_runtime *rt, uint32_t index);
void *ren__buffer_address(ren_runtime *rt, uint32_t index);

/* submit.c */
/* The parked jobs of a closed list, oldest first. */
ren__link *ren__dependants_chain(ren_runtime *rt, uint64_t head, ren__link **out_last);
void ren__submitter_main(void *rt);
uint32_t ren__submitter_round(ren_runtime *rt, uint32_t max_jobs); /* jobs taken up */

/* lane.c */
ren_status ren__lane_wait_point(ren_runtime *rt, ren__lane *lane, uint32_t other, uint64_t seq);
ren_status ren__lane_close_batch(ren_runtime *rt, ren__lane *lane);
/* Commands are about to be enqueued: wake the lane's thread beside that, see complete.c. */
void ren__lane_announce(ren_runtime *rt, ren__lane *lane);
/* Room for this many commands? Where there is none, what gives room back later is closed. */
bool ren__lane_has_credit(ren_runtime *rt, ren__lane *lane, uint32_t commands);

/* issue.c: enqueue one job whose waits are met */
ren_status ren__issue_commands(ren_runtime *rt, ren__lane *lane, ren__slot *slot);
/* Bring a work's needs up to date. */
void ren__issue_renew_need(ren_runtime *rt, ren__slot *slot);

/* complete.c */
void ren__lane_main(void *lane);
void ren__batch_finish(ren_runtime *rt, ren__lane *lane, uint64_t seq, uint32_t worker,
                       ren_status status);
/* Finish one job: final status, dependants, counters, delivery. `worker` is the caller's row. */
void ren__job_finish(ren_runtime *rt, uint32_t worker, ren__slot *slot, ren_status status);
/* Abort: whoever waits for a job that is not done goes back to the submitter. */
void ren__release_parked(ren_runtime *rt);
/* Fill a completion from a finished slot; `err` is the caller's memory for completion->err. */
void ren__completion_fill(ren__slot *slot, ren_status status, ren_completion *out, ren_error *err);
void ren__runtime_set_lost(ren_runtime *rt, const ren_error *cause);
/* The same, for the device's own reason; `what` failed with `status` where it gives none. */
void ren__runtime_lose(ren_runtime *rt, const char *what, ren_status status);

/* pump.c */
uint64_t ren__completions_waiting(ren_runtime *rt);

/* threads.c */
ren_status ren__thread_start(ren_runtime *rt, const char *name, void (*entry)(void *), void *arg,
                             void **out);
void ren__thread_join(ren_runtime *rt, void *thread);
uintptr_t ren__thread_self(void);

/* open_device.c */
ren_status ren__device_select(ren_runtime *rt, ren_error *err);

#endif
