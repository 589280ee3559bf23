/* SPDX-License-Identifier: MIT */
/* libren/core/core.h - what the rest of libren may ask of a runtime.
 *
 * Purpose   host_api/ calls the first half after it has checked its arguments; train/ posts its
 * steps and inferences through the second half, as "work": a job whose commands are issued by a
 *           function of ours on the submitter.
 * Threads   as the public calls say; `issue` runs on the submitter, `finish` and notifications on a
 *           completion thread.
 * Lifetime  a ren__work is borrowed from its post until `finish` has returned.
 */
#ifndef REN_CORE_H
#define REN_CORE_H

#include <stdbool.h>

#include "../../host_api/ren.h"
#include "../../memory/host.h"
#include "../device/device.h"
#include "error.h"

void ren__runtime_log(ren_runtime *rt, ren_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The answer to a post that cannot be accepted: returns `status`, and tells the log why where
 * config.validate asks for it. */
ren_status ren__runtime_refuse(ren_runtime *rt, ren_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ------------------------------------------------------------------ what train/ needs to know */

const ren__host_allocator *ren__runtime_allocator(ren_runtime *rt);
const ren__device_api *ren__runtime_api(ren_runtime *rt);
ren__device *ren__runtime_device(ren_runtime *rt);
const ren__device_caps *ren__runtime_caps(ren_runtime *rt);
const ren_runtime_config *ren__runtime_config_of(ren_runtime *rt); /* defaults filled in */
uint32_t ren__runtime_lane(ren_runtime *rt, ren_stream stream);    /* the lane that runs a stream */
uint32_t ren__runtime_lanes(ren_runtime *rt);

/* Passes on what a device call made outside a work has returned. Such a call, too, may be the first
 * to be told that the device is lost; then the runtime is. The pool's lock and the chain's are not
 * held. */
ren_status ren__runtime_seen(ren_runtime *rt, ren_status status);

/* Models and producers count as children: destroy answers REN_ERR_BUSY while one lives. Retain
 * fails with REN_ERR_CLOSED, REN_ERR_FORKED or REN_ERR_DEVICE_LOST. */
ren_status ren__runtime_retain(ren_runtime *rt);
void ren__runtime_release(ren_runtime *rt);

/* REN_OK, or REN_ERR_FORKED / REN_ERR_REENTRANT: the first check of calls that block. */
ren_status ren__runtime_check_blocking(ren_runtime *rt);

/* Long-lived device memory (parameters, activations), from the pool, growing it as needed. Zeroed
 * is NOT promised. Free: the caller knows that no command uses it any more. Slow calls; in a
 * callback alloc does not wait, and answers REN_ERR_QUEUE_FULL where memory is still in use. */
typedef struct ren__region {
    void *ptr;
    uint64_t bytes;
    uint32_t index; /* the pool's */
} ren__region;
ren_status ren__region_alloc(ren_runtime *rt, uint64_t bytes, ren__region *out);
void ren__region_free(ren_runtime *rt, ren__region *region); /* zeroed is fine */

/* One training step that a trace has the device times of, for the stats. By stream; streams that
 * share a lane count as the first of them. */
typedef struct ren__step_times {
    uint64_t tasks, events;
    uint64_t latency_ns, issue_ns, device_ns;
    uint64_t busy_ns[REN_STREAM_COUNT];
    uint64_t bubble_ns[REN_STREAM_COUNT];
} ren__step_times;
void ren__runtime_count_times(ren_runtime *rt, const ren__step_times *times);

/* ------------------------------------------------------------------ work */

typedef struct ren__submit ren__submit; /* the submitter's view during one `issue` */

typedef struct ren__work {
    /* Enqueue everything. The job completes when its stream's lane reaches the point where issue
     * returned. An error means a device call failed: the job completes with it when every lane is
     * past what was enqueued. */
    ren_status (*issue)(void *self, ren__submit *s);
    /* The work is done (or was never issued, or failed: c->status says so). May fill c->step,
     * c->err's text and c->weight_version. Runs once, before the host's callback, also for jobs
     * never issued. */
    void (*finish)(void *self, ren_completion *c);
    void *self;
    ren_stream stream;               /* on whose timeline it completes */
    uint32_t need[REN_STREAM_COUNT]; /* commands that issue enqueues, by stream: the submitter holds
                                        the work back until the lanes have room for all */
    /* NULL, or to be asked for `need` anew each time the submitter looks at the lanes' room for the
     * work, so also right before issue: by then it may be known to take more or less. */
    void (*renew_need)(void *self, ren__submit *s, uint32_t need[REN_STREAM_COUNT]);
    ren_priority priority;
    ren_job wait;  /* {0}, or a job that must be done first */
    ren_job after; /* {0}, or a job that must be issued first, or be finished without */
    /* {0}, or a buffer of which issue writes `buffer_bytes` at `buffer_offset`. `stream`'s lane is
     * behind its earlier uses, and later uses are behind this work. */
    ren_buffer buffer;
    uint64_t buffer_offset, buffer_bytes;
    const char *name; /* static: what the trace calls it; NULL = "work" */
    uint32_t timed;   /* 1 = it tells the trace itself when its commands ran */
    uint32_t brief;   /* 1 = done soon behind its issue: who completes it is woken beside that */
    uint32_t alone;   /* 1 = takes long: a batch ends before it and behind it, so it holds up no
                         job before it, and nothing behind it holds up its own completion */
} ren__work;

/* As ren_post, with `work` in place of a descriptor's payload. */
ren_status ren__work_post(ren_runtime *rt, const ren__work *work, ren_done_fn done, void *user,
                          ren_deliver deliver, uint32_t channel, ren_job *out_job);

/* Inside issue. */
const ren__device_api *ren__submit_api(ren__submit *s);
ren__device *ren__submit_device(ren__submit *s);
uint32_t ren__submit_lane(ren__submit *s, ren_stream stream);
void ren__submit_count_events(ren__submit *s, uint32_t recorded,
                              uint32_t waited); /* for the stats */
/* Commands beyond `need`, by stream: what renew_need did not foresee. */
void ren__submit_count_commands(ren__submit *s, const uint32_t more[REN_STREAM_COUNT]);
void ren__submit_count_step(ren__submit *s, ren_path path);
void ren__submit_count_graph(ren__submit *s, uint32_t captures, uint32_t updates,
                             uint32_t fallbacks);
/* Memory for device times, all 0; NULL when no trace was ever open, or all of it is in use. To be
 * given back by ren__stamps_give when the work is done. */
uint64_t *ren__submit_stamps(ren__submit *s, uint32_t count);
/* Where the work's buffer is to be written. */
void *ren__submit_buffer(ren__submit *s);
/* Points, see runtime.h, for memory that several works share across streams. `point` names the
 * batch that holds what was enqueued last on the stream's lane by this work; `seal` closes that
 * batch first, so that it completes even if nothing follows. `wait` orders a stream behind a point
 * of another: no command when that point is complete, 0 is always complete. */
uint64_t ren__submit_point(ren__submit *s, ren_stream stream);
ren_status ren__submit_seal(ren__submit *s, ren_stream stream, uint64_t *out_point);
ren_status ren__submit_wait(ren__submit *s, ren_stream stream, ren_stream other, uint64_t point);
bool ren__submit_is_past(ren__submit *s, ren_stream stream, uint64_t point);
/* Room for a work of so many commands on the stream's lane? */
bool ren__submit_has_room(ren__submit *s, ren_stream stream, uint32_t commands);
/* Call fn(user) once on `stream`'s completion thread when the lane has completed everything
 * enqueued on it so far (status REN_OK), or on a fault or abort (the error). At most 4 a work. */
void ren__submit_notify(ren__submit *s, ren_stream stream,
                        void (*fn)(void *user, ren_status status), void *user);

/* ------------------------------------------------------------------ the public calls, arguments
 * checked */

ren_status ren__runtime_create(const ren_runtime_config *config, ren_runtime **out, ren_error *err);
ren_status ren__runtime_close(ren_runtime *rt);
ren_status ren__runtime_drain(ren_runtime *rt, uint64_t timeout_ns);
ren_status ren__runtime_abort(ren_runtime *rt);
ren_status ren__runtime_destroy(ren_runtime *rt);
ren_status ren__runtime_shutdown(ren_runtime *rt, uint64_t timeout_ns);
ren_status ren__runtime_status(ren_runtime *rt, ren_error *err);
const char *ren__runtime_device_name(ren_runtime *rt);
ren_device_kind ren__runtime_device_kind(ren_runtime *rt);
void ren__runtime_stats(ren_runtime *rt, ren_stats *out);
ren_status ren__runtime_tick(ren_runtime *rt, uint32_t max_jobs, uint32_t *out_issued);
uint64_t ren__now_ns(void);

/* desc has passed the checks that need no runtime (enums, counts, NULL pointers). */
ren_status ren__post(ren_runtime *rt, const ren_job_desc *desc, ren_job *out_job);
ren_status ren__producer_register(ren_runtime *rt, ren_producer **out);
ren_status ren__producer_post(ren_producer *producer, const ren_job_desc *desc, ren_job *out_job);
ren_status ren__producer_release(ren_producer *producer);
ren_runtime *ren__producer_runtime(ren_producer *producer);
ren_status ren__wait(ren_runtime *rt, ren_job job, uint64_t timeout_ns);
ren_status ren__cancel(ren_runtime *rt, ren_job job);
ren_status ren__job_status(ren_runtime *rt, ren_job job);
ren_status ren__pump(ren_runtime *rt, uint32_t channel, uint32_t max_callbacks, uint64_t budget_ns,
                     uint32_t *out_delivered);
ren_status ren__wait_any(ren_runtime *rt, uint64_t timeout_ns);
ren_status ren__wake(ren_runtime *rt);
ren_status ren__timeline_value(ren_runtime *rt, ren_stream stream, uint64_t *out_value);
ren_status ren__timeline_wait(ren_runtime *rt, ren_stream stream, uint64_t value,
                              uint64_t timeout_ns);
ren_status ren__buffer_alloc(ren_runtime *rt, ren_stream stream, uint64_t bytes, ren_buffer *out);
ren_status ren__buffer_free(ren_runtime *rt, ren_buffer buffer);
ren_status ren__memory_reserve(ren_runtime *rt, uint64_t bytes);

#endif
