/* SPDX-License-Identifier: MIT */
/* ren.h - libren's one public header: a job-queue runtime for neural networks inside a host's
 * frame.
 *
 * Purpose   A host (a game or robotics engine) trains and runs small neural networks on the device
 *           it ships on. Host threads post jobs; one submitter thread issues them onto five ordered
 *           device streams and never waits; completions come back as callbacks which the host runs,
 *           inside a time budget, on a thread of its choice.
 * Reading   Status and errors; runtime; jobs and completions; buffers; models; trainer and
 *           inference; trace.
 * Structs   A descriptor begins with `struct_size`, which its inline `*_default()` fills in. Zero
 *           means the default for enums, counts and pointers; floats are taken as given. Every
 *           descriptor is copied before the call returns. Members may be added at the end of a
 *           struct in later versions; none is ever moved or removed inside one soname.
 * Errors    Functions return `ren_status`: REN_OK (0), a negative error, or a positive outcome that
 *           is no error (REN_TIMEOUT, ...). Slow calls also fill an optional `ren_error`. There is
 *           no global or thread-local error state, and libren reads no environment variable.
 * Promise   A post that returns an error kept nothing, and its callback never runs. A post that
 *           returns REN_OK is followed by exactly one completion, also on cancel, on a device fault
 *           and on shutdown. Completions of one channel and stream arrive in timeline order.
 * Threads   Unless a function says otherwise it may be called from any thread, at the same time as
 *           any other, except that an object must not be destroyed under a running call.
 * Language  C99 to C17 and C++11 to C++20, no dependency but libc.
 *
 * What is said of a function ends with a block of these lines:
 *   Returns / Threads / In callbacks (may it be called from a callback of libren's) / Blocks /
 *   Allocates (host memory, through the runtime's allocator) / Lifetime (of what it makes).
 * Functions declared together share one block, and a line that would say nothing is left out. A
 * function that returns a status answers NULL for an object or a result with
 * REN_ERR_INVALID_ARGUMENT, also where its block does not say so, unless it says that NULL is fine.
 */
#ifndef REN_H
#define REN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define REN_API __attribute__((visibility("default")))
#else
#define REN_API
#endif

#define REN_VERSION_MAJOR 0
#define REN_VERSION_MINOR 1
#define REN_VERSION_PATCH 0

#define REN_MAX_WAITS        16u /* jobs one job may wait for */
#define REN_MAX_USES         16u /* buffers one job may name */
#define REN_CHANNELS         16u /* completion channels of a runtime */
#define REN_MAX_PRODUCERS    63u /* producers registered with one runtime at a time */
#define REN_MAX_RANK         4u  /* dimensions of a tensor */
#define REN_TIMEOUT_INFINITE UINT64_MAX

/* ------------------------------------------------------------------ status and errors */

typedef int32_t ren_status;

enum {
    REN_OK = 0,

    /* Outcomes that are no errors. */
    REN_TIMEOUT = 1,   /* the time given ran out; nothing changed */
    REN_CANCELLED = 2, /* the job was cancelled before it was issued to the device */
    REN_TOO_LATE = 3,  /* ren_cancel: the job was issued already and will complete by itself */
    REN_WOKEN = 4,     /* ren_wait_any: ren_wake was called */
    REN_PENDING = 5,   /* ren_job_status: accepted, not done */

    REN_ERR_INVALID_ARGUMENT = -1, /* a pointer, count, name, enum or flag is out of its range */
    REN_ERR_BAD_STRUCT = -2,       /* struct_size is not one that this version knows */
    REN_ERR_UNSUPPORTED = -3,      /* declared, but this version or this device cannot do it yet */
    REN_ERR_NO_MEMORY = -4,        /* the host allocator returned NULL */
    REN_ERR_NO_DEVICE_MEMORY = -5, /* would fail even after all pending releases complete */
    REN_ERR_WOULD_GROW = -6,   /* the pool would have to ask the driver; see ren_memory_reserve */
    REN_ERR_QUEUE_FULL = -7,   /* nothing kept; retry after ren_pump */
    REN_ERR_BUSY = -8,         /* work or an undelivered callback is outstanding, or another
                                  thread is inside a call that admits one */
    REN_ERR_CLOSED = -9,       /* the runtime accepts no more work */
    REN_ERR_STALE = -10,       /* the handle's object is gone and its slot was reused */
    REN_ERR_UNKNOWN_JOB = -11, /* no such job: zero, of another runtime, or made up */
    REN_ERR_REENTRANT = -12,   /* not allowed from a callback of libren's */
    REN_ERR_DEADLINE = -13,    /* completion: deadline_ns passed before the job was issued */
    REN_ERR_TIMEOUT = -14,     /* completion: aborted before the device answered */
    REN_ERR_ABORTED = -15,     /* completion: ren_runtime_abort before the job was issued */
    REN_ERR_NO_DEVICE = -16,   /* the device's module or driver is missing or cannot be used */
    REN_ERR_DEVICE = -17,      /* a device call failed; the device still works */
    REN_ERR_DEVICE_LOST = -18, /* sticky: the device will not work again in this runtime */
    REN_ERR_THREAD = -19,      /* a thread could not be started */
    REN_ERR_FORKED = -20,      /* the runtime belongs to the parent of this process */
    REN_ERR_SHAPE = -21,       /* tensor shapes or dtypes do not fit the operation */
    REN_ERR_NAME = -22,        /* no such name, or the name is taken */
    REN_ERR_IO = -23,          /* the file could not be opened, read or written */
    REN_ERR_FORMAT = -24,      /* the file is not what it should be; the text says where */
    REN_ERR_CALLBACK = -25,    /* completion: the host's enqueue function returned an error */
    REN_ERR_INTERNAL = -26,    /* a fault of libren's own; please report it */
    REN_ERR_DRIVER_TOO_OLD = -27, /* the driver is older than the CUDA module needs */
    REN_ERR_NO_GPU = -28          /* the driver works, but there is no GPU that can be used */
};

/* What went wrong, in words. Filled by slow calls when `err` is not NULL; untouched on REN_OK. */
typedef struct ren_error {
    ren_status status;
    int32_t backend_code; /* code of the device library that failed (errno, dnnl, CUDA), or 0 */
    const char *file;     /* source file inside libren; static storage */
    int32_t line;
    char text[256]; /* NUL-terminated; says what was wrong and what to do */
} ren_error;

/* The status' identifier, as "REN_ERR_BUSY"; "REN_STATUS_?" for a value that is none.
 * Returns   a static string, never NULL
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API const char *ren_status_name(ren_status status);

/* One sentence that says what the status means.
 * Returns   a static string, never NULL
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API const char *ren_status_text(ren_status status);

/* The version of the library in use.
 * Returns   (major << 16) | (minor << 8) | patch
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API uint32_t ren_version(void);

/* ------------------------------------------------------------------ runtime */

typedef struct ren_runtime ren_runtime;
typedef struct ren_producer ren_producer;
typedef struct ren_model ren_model;
typedef struct ren_trainer ren_trainer;

typedef struct ren_job {
    uint64_t id; /* 0 = none; a generation is inside, so a stale id is an error */
} ren_job;

typedef struct ren_buffer {
    uint64_t id; /* 0 = none; a generation is inside, so a freed buffer is an error */
} ren_buffer;

typedef struct ren_tensor {
    uint32_t index; /* handle into one model; 0 = none or failed, see ren_model_status */
} ren_tensor;

typedef enum ren_device_kind {
    REN_DEVICE_AUTO = 0, /* CUDA where it can be used, else the CPU; the log says why */
    REN_DEVICE_CPU = 1,
    REN_DEVICE_CUDA = 2
} ren_device_kind;

/* The five ordered device queues. `config.streams` < 5 maps several of them to one. Training steps
 * move the layers' work to where it is done soonest, UPDATE included, unless their trainer's
 * stream_policy keeps it where it is said here. */
typedef enum ren_stream {
    REN_STREAM_TRANS = 0,  /* host-to-device and device-to-host copies */
    REN_STREAM_COMP_1 = 1, /* convolution, linear forward, loss, weight gradients */
    REN_STREAM_COMP_2 = 2, /* batch norm, pooling, dropout, bias gradients */
    REN_STREAM_COMP_3 = 3, /* activations, data gradients */
    REN_STREAM_UPDATE = 4, /* casts of weights, checks, optimizer, averages */
    REN_STREAM_COUNT = 5
} ren_stream;

typedef enum ren_log_level {
    REN_LOG_ERROR = 0,
    REN_LOG_WARNING = 1,
    REN_LOG_INFO = 2,
    REN_LOG_DEBUG = 3
} ren_log_level;

/* Host memory. Called only inside create, register, load, save and destroy calls, and steps,
 * inferences and ren_plan_dump that plan first, on the thread that calls them; never by another
 * post, while completing or pumping. `align` is a power of two, at most 4096. */
typedef struct ren_allocator {
    uint32_t struct_size;
    void *(*alloc)(void *user, size_t bytes, size_t align); /* NULL when out of memory */
    void (*free)(void *user, void *ptr, size_t bytes);      /* ptr is never NULL */
    void *user;
} ren_allocator;

/* Log lines. Called from any thread of libren's, and from those inside its calls, one line without
 * a newline a call. */
typedef struct ren_log {
    uint32_t struct_size;
    void (*fn)(void *user, ren_log_level level, const char *text); /* NULL = silent */
    void *user;
    ren_log_level min_level; /* items less urgent than this are not made; 0 = errors only */
} ren_log;

/* Threads. libren names each thread (at most 15 characters): "ren-submit", "ren-complete-0" to
 * "ren-complete-4", and on the CPU device "ren-cpu-0" to "ren-cpu-4". */
typedef struct ren_threads {
    uint32_t struct_size;
    /* Start a thread that calls entry(arg) once. 0 on success; any other value fails the create. */
    int (*start)(void *user, const char *name, void (*entry)(void *arg), void *arg,
                 void **out_thread);
    void (*join)(void *user, void *thread);
    void *user;
} ren_threads;

/* Options of the CUDA device. */
typedef struct ren_cuda_options {
    uint32_t struct_size;
    void *context;           /* a CUcontext of the host's, kept current as it was; NULL = primary */
    int32_t stream_priority; /* of the five streams; 0 = lowest, so that graphics go first */
    /* 1 = a plan's convolutions and products are timed on the device when it is made, and the
     * fastest algorithms kept; 0 = the libraries' first choices. Never with `deterministic`. */
    uint32_t autotune;
} ren_cuda_options;

typedef struct ren_runtime_config {
    uint32_t struct_size;
    ren_device_kind device;
    uint32_t device_index;      /* among the devices of that kind */
    uint32_t streams;           /* device queues in use, 1..5; 0 = 5; results do not depend on it
                                   (on CUDA: with `deterministic`) */
    uint32_t ring_entries;      /* jobs that one road (the shared one, or one producer) may have
                                   accepted and not yet delivered; 1..65536; 0 = 4096 */
    uint32_t graph_after_steps; /* steps of one signature before a graph is made; 0 = 3. On CUDA a
                                   cudaDeviceSynchronize of the host's in the same context is
                                   refused meanwhile (cudaErrorStreamCaptureUnsupported); wait for
                                   your own streams and events instead */
    uint32_t disable_graphs;    /* 1 = always the queued path */
    uint32_t deterministic;     /* 1 = bit-identical results on every path and stream count. 0 lets
                                   CUDA's libraries take faster algorithms, whose last bits may
                                   differ from run to run and between stream counts; the CPU device
                                   is deterministic always */
    uint64_t seed;              /* of weight initialisation and dropout */
    uint64_t device_memory_limit_bytes; /* 0 = what the device has */
    const ren_allocator *allocator;     /* NULL = the C library's */
    const ren_log *log;                 /* NULL = silent */
    const ren_threads *threads;         /* NULL = POSIX threads */
    uint32_t cpu_threads;               /* CPU device: threads per large operation; 0 = 1, since the
                                           streams already run side by side */
    uint32_t host_drives_submitter; /* 1 = no submitter thread; the host calls ren_runtime_tick, and
                                       calls that wait (ren_wait, ren_wait_any, ren_timeline_wait,
                                       ren_runtime_drain, ...) tick by themselves */
    uint32_t allow_growth;          /* 1 = ren_buffer_alloc may ask the driver for more memory */
    uint32_t max_buffers;           /* live ren_buffers; 0 = 4096, at most 65536 */
    const char *module_path;        /* of libren_cuda.so; NULL = beside libren */
    uint32_t validate;              /* 1 = log, at REN_LOG_WARNING (log->min_level must let it by),
                                       why a job, step or inference was refused, with the name of
                                       the member or the input; what is refused stays the same */
    const ren_cuda_options *cuda;
} ren_runtime_config;

static inline ren_runtime_config ren_runtime_config_default(void)
{
    ren_runtime_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    return config;
}

/* Counters since the runtime was made. Taken one by one while work goes on, so they need not belong
 * to the same instant; after ren_runtime_drain they do: posted = completed + failed + cancelled. */
typedef struct ren_stats {
    uint32_t struct_size;
    uint64_t jobs_posted;         /* accepted posts, of every kind */
    uint64_t jobs_completed;      /* done with REN_OK */
    uint64_t jobs_failed;         /* done with an error */
    uint64_t jobs_cancelled;      /* done with REN_CANCELLED */
    uint64_t completions_waiting; /* callbacks that wait for a pump, all channels */
    uint64_t steps_queued;        /* training steps done on the queued path */
    uint64_t steps_graph;         /* training steps done on the graph path */
    uint64_t graph_captures;      /* graphs recorded, of steps and inferences */
    uint64_t graph_updates;       /* of them, those that brought the executable of a plan that is no
                                     longer kept up to date, so that none had to be made */
    uint64_t graph_fallbacks;     /* captures and launches that failed: back to the queued path */
    uint64_t events_recorded;     /* by the submitter, between streams and for completion */
    uint64_t events_waited;       /* waits of one stream for another's event */
    uint64_t batches;             /* groups of jobs that share one completion event; a training
                                     step has one of its own */
    uint64_t pool_bytes_in_use;   /* live buffers and model memory */
    uint64_t pool_bytes_reserved; /* taken from the device */
    uint64_t pool_bytes_peak;     /* the most that was ever in use */
    uint64_t pool_driver_allocs;  /* allocations that the pool asked of the driver */
    uint64_t pool_driver_frees;
    uint64_t submit_ns;                   /* time the submitter spent awake */
    uint64_t bubble_ns[REN_STREAM_COUNT]; /* see below */
    uint64_t abandoned_threads;           /* waiters given up by ren_runtime_abort */
    /* Sums over the training steps that a trace timed: see ren_trace_begin. Device times, so they
     * mean the same on both paths and on every device. Per step: latency, timed_latency_ns /
     * timed_steps; events, timed_events / timed_steps; submission throughput, timed_tasks /
     * timed_issue_ns. Bubbles: in each step a stream's share begins with the first of its tasks and
     * ends with the last; in between it is busy or, with nothing of the step to run, a bubble, so
     * bubble_ns / (bubble_ns + timed_busy_ns) is in [0, 1]. Streams that share a queue count as the
     * first of them; a TRANS of its own has copies only, and no bubble. */
    uint64_t timed_steps;
    uint64_t timed_tasks;
    uint64_t timed_events;     /* waits of one stream for another's event, inside the steps */
    uint64_t timed_latency_ns; /* from post to completion */
    uint64_t timed_issue_ns;   /* the submitter's time */
    uint64_t timed_device_ns;  /* from a step's first task to its last */
    uint64_t timed_busy_ns[REN_STREAM_COUNT];
} ren_stats;

static inline ren_stats ren_stats_default(void)
{
    ren_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = (uint32_t)sizeof stats;
    return stats;
}

/* Make a runtime: open the device, reserve all host memory, start the threads.
 * config       in, NULL = ren_runtime_config_default()
 * out_runtime  out, NULL after an error
 * err          out, may be NULL
 * Returns   REN_OK; REN_ERR_BAD_STRUCT; REN_ERR_INVALID_ARGUMENT (the text names the member);
 *           REN_ERR_NO_DEVICE, REN_ERR_DRIVER_TOO_OLD, REN_ERR_NO_GPU (the text says why; not
 *           for REN_DEVICE_AUTO, which then takes the CPU and logs it); REN_ERR_NO_MEMORY;
 *           REN_ERR_NO_DEVICE_MEMORY; REN_ERR_THREAD; REN_ERR_DEVICE; REN_ERR_DEVICE_LOST after
 *           a fault that CUDA does not forgive this process
 * Threads   any.   In callbacks  yes.   Blocks  for the device's start-up.   Allocates  yes.
 * Lifetime  until ren_runtime_destroy or ren_runtime_shutdown returns REN_OK. */
REN_API ren_status ren_runtime_create(const ren_runtime_config *config, ren_runtime **out_runtime,
                                      ren_error *err);

/* Accept no more work. Later posts return REN_ERR_CLOSED, and so do calls for models that need the
 * device: making one or its trainer, planning, reading, writing, saving and loading parameters. So
 * save before. What was accepted goes on; ren_pump works.
 * Returns   REN_OK, also when closed already; REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_runtime_close(ren_runtime *rt);

/* Wait until the work of every accepted job is done. Callbacks may still wait for a pump.
 * Returns   REN_OK; REN_TIMEOUT; REN_ERR_DEVICE_LOST once all jobs have completed with it;
 *           REN_ERR_REENTRANT; REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  no.   Blocks  up to timeout_ns.   Allocates  no. */
REN_API ren_status ren_runtime_drain(ren_runtime *rt, uint64_t timeout_ns);

/* Close, and complete everything that is outstanding now: jobs not issued with REN_ERR_ABORTED,
 * jobs the device has and does not finish within about a second with REN_ERR_TIMEOUT. A HOST job
 * whose function is running is not taken from it: that job completes when the function returns.
 * Returns   REN_OK; REN_ERR_REENTRANT; REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  no.   Blocks  at most about two seconds.   Allocates  no. */
REN_API ren_status ren_runtime_abort(ren_runtime *rt);

/* Join all threads and free everything. Buffers still alive are freed; models and trainers must be
 * destroyed first. In a forked child this releases the memory and touches neither device nor
 * threads.
 * Returns   REN_OK (also for NULL); REN_ERR_BUSY while work or an undelivered callback is
 *           outstanding, or a model or producer is alive (nothing was changed); REN_ERR_REENTRANT
 * Threads   one, with no other call on this runtime running.   In callbacks  no.
 * Blocks    for the threads to join.   Allocates  frees. */
REN_API ren_status ren_runtime_destroy(ren_runtime *rt);

/* Close, drain, abort at the timeout, run what is left of the callbacks on this thread, destroy.
 * Returns   as ren_runtime_destroy; REN_OK means that the runtime is gone
 * Threads   one, with no other call on this runtime running.   In callbacks  no.
 * Blocks    up to timeout_ns and about two seconds.   Allocates  frees. */
REN_API ren_status ren_runtime_shutdown(ren_runtime *rt, uint64_t timeout_ns);

/* The sticky fault of the runtime.
 * Returns   REN_OK while the device works; REN_ERR_DEVICE_LOST and the first cause in err;
 *           REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_runtime_status(ren_runtime *rt, ren_error *err);

/* The device's name, as "CPU (oneDNN 2.6.3, 2 cores)".
 * Returns   a string that lives as long as the runtime; "" for NULL
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API const char *ren_runtime_device_name(ren_runtime *rt);

/* The kind of device in use; never REN_DEVICE_AUTO, except for NULL.
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_device_kind ren_runtime_device_kind(ren_runtime *rt);

/* Copy the counters out. out_stats->struct_size says how much of the struct the caller knows.
 * Returns   REN_OK; REN_ERR_INVALID_ARGUMENT; REN_ERR_BAD_STRUCT; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_runtime_stats(ren_runtime *rt, ren_stats *out_stats);

/* Run one round of the submitter on this thread: only with config.host_drives_submitter.
 * max_jobs    in, stop after issuing this many; 0 = all that is there
 * out_issued  out, may be NULL
 * Returns   REN_OK; REN_ERR_INVALID_ARGUMENT (the runtime has a submitter thread); REN_ERR_BUSY
 *           (another thread ticks); REN_ERR_REENTRANT; REN_ERR_DEVICE_LOST; REN_ERR_FORKED
 * Threads   one at a time.   In callbacks  no.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_runtime_tick(ren_runtime *rt, uint32_t max_jobs, uint32_t *out_issued);

/* The clock of every time in this header: nanoseconds, monotonic, from an unspecified start.
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API uint64_t ren_now_ns(void);

/* ------------------------------------------------------------------ jobs and completions */

typedef enum ren_job_kind {
    REN_JOB_COPY = 0,   /* bytes between buffers and host memory, on any stream */
    REN_JOB_FILL = 1,   /* a byte value into a buffer, as memset */
    REN_JOB_DEVICE = 2, /* the host's own device work, enqueued by its function */
    REN_JOB_HOST = 3,   /* a short function of the host's, on the stream's completion thread */
    REN_JOB_BARRIER = 4 /* done when its waits and all earlier work of its stream are */
} ren_job_kind;

typedef enum ren_priority {
    REN_PRIORITY_NORMAL = 0,
    REN_PRIORITY_REALTIME = 1,  /* drained first */
    REN_PRIORITY_BACKGROUND = 2 /* drained last, but never starved: see ren_post */
} ren_priority;

typedef enum ren_deliver {
    REN_DELIVER_PUMP = 0,       /* `done` runs inside ren_pump on the host's thread */
    REN_DELIVER_ANY_THREAD = 1, /* `done` runs on a thread of libren's at once; keep it short */
    REN_DELIVER_NONE = 2        /* `done` is never called; ren_wait and ren_job_status tell */
} ren_deliver;

typedef enum ren_access {
    REN_ACCESS_READ = 1,
    REN_ACCESS_WRITE = 2,
    REN_ACCESS_READ_WRITE = 3
} ren_access;

/* A buffer that a job reads or writes. Jobs that name the same buffer are ordered by the runtime,
 * whatever their streams: a read after the last write, a write after all reads and writes, in the
 * order in which the submitter drains them (for one producer and priority: the order of its posts).
 */
typedef struct ren_use {
    ren_buffer buffer;
    ren_access access;
} ren_use;

/* One side of a copy: a buffer and an offset in bytes, or host memory. */
typedef struct ren_location {
    ren_buffer buffer; /* id 0: host memory */
    uint64_t offset;   /* bytes into the buffer */
    void *host;        /* NULL with a buffer. Borrowed until the job completes; only read when it
                          is a source */
} ren_location;

typedef struct ren_copy {
    ren_location dst;
    ren_location src;
    uint64_t bytes; /* at least 1; the two sides do not overlap */
} ren_copy;

typedef struct ren_fill {
    ren_location dst; /* must be a buffer */
    uint32_t value;   /* 0..255, written to every byte */
    uint64_t bytes;   /* at least 1 */
} ren_fill;

/* What a DEVICE job's enqueue function gets. */
typedef struct ren_device_io {
    uint32_t struct_size;
    ren_device_kind device;
    ren_stream stream;
    void *native_stream;   /* CUstream on CUDA; NULL on the CPU device */
    void *const *pointers; /* device address of each of the job's uses[], in order */
    uint32_t pointer_count;
} ren_device_io;

/* May only enqueue on io->native_stream and must not synchronise. On CUDA it runs on the submitter;
 * on the CPU device it runs on the stream's own thread and does the work itself. A result other
 * than REN_OK completes the job with REN_ERR_CALLBACK. */
typedef ren_status (*ren_enqueue_fn)(void *user, const ren_device_io *io);
typedef void (*ren_host_fn)(void *user);

typedef enum ren_path {
    REN_PATH_QUEUED = 0,
    REN_PATH_GRAPH = 1
} ren_path;

typedef struct ren_step_result {
    uint64_t index;   /* from 1, in the order posted */
    float loss;       /* of this step's batch, before the update; NaN when it did not run */
    float grad_norm;  /* global 2-norm before clipping; 0 without clip_norm and mixed precision, and
                         of a step that accumulates only */
    float loss_scale; /* of the step after this one; 1 unless MIXED_F16 */
    uint32_t skipped; /* 1 = with clip_norm or mixed precision: gradients held inf or NaN, nothing
                         was changed */
    ren_path path;
} ren_step_result;

typedef struct ren_completion {
    uint32_t struct_size;
    ren_job job;
    ren_status status; /* REN_OK, REN_CANCELLED or an error */
    ren_stream stream;
    uint64_t timeline_value; /* position on the stream's timeline; 0 = the job was never issued */
    uint64_t posted_ns;
    uint64_t launched_ns; /* when the submitter issued it; 0 = never */
    uint64_t done_ns;
    const ren_step_result *step; /* NULL unless the job is a training step. Of one that failed or
                                    was cancelled only index says something: loss is NaN */
    const ren_error *err;        /* NULL unless status is an error */
    uint64_t weight_version;     /* ren_infer: updates that the weights used had seen */
} ren_completion;                /* valid only inside the callback */

typedef void (*ren_done_fn)(const ren_completion *completion, void *user);

typedef struct ren_job_desc {
    uint32_t struct_size;
    ren_job_kind kind;
    ren_stream stream;
    ren_priority priority;
    uint64_t deadline_ns; /* on ren_now_ns' clock; 0 = none. Not issued by then: REN_ERR_DEADLINE */
    const ren_job *wait;  /* jobs whose work must be done before this one starts. Order only: it
                             runs whatever their status. Jobs with id 0 are ignored; a stale or
                             unknown one is an error */
    uint32_t wait_count;  /* <= REN_MAX_WAITS */
    const ren_use *uses;  /* a COPY's and FILL's own buffers need not be named */
    uint32_t use_count;   /* <= REN_MAX_USES */
    ren_copy copy;        /* COPY */
    ren_fill fill;        /* FILL */
    ren_enqueue_fn enqueue; /* DEVICE */
    void *enqueue_user;
    ren_host_fn host_fn; /* HOST: runs on the stream's completion thread once its waits are done
                            and everything issued earlier on its stream is; short */
    void *host_user;
    ren_done_fn done; /* NULL: no callback */
    void *user;
    ren_deliver deliver;
    uint32_t channel; /* 0..REN_CHANNELS-1, for REN_DELIVER_PUMP */
} ren_job_desc;

static inline ren_job_desc ren_job_desc_default(void)
{
    ren_job_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    return desc;
}

/* Post one job by the shared road, which any thread may take without registering.
 * desc      in, copied before return; host memory it points to is borrowed until the job completes
 * out_job   out, may be NULL; {0} after an error
 * Returns   REN_OK; REN_ERR_QUEUE_FULL (nothing kept, retry after ren_pump); REN_ERR_CLOSED;
 *           REN_ERR_BAD_STRUCT; REN_ERR_INVALID_ARGUMENT (a member is out of its range, or a
 *           buffer's id is none of this runtime, or bytes beyond its end); REN_ERR_UNKNOWN_JOB (an
 *           entry of wait[] was never a job of this runtime); REN_ERR_STALE (a buffer was freed,
 *           or the slot of an entry of wait[] was reused: that job is done, leave it out);
 *           REN_ERR_DEVICE_LOST; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no.
 * Progress  bounded by REN_ERR_QUEUE_FULL. The hand-over never waits for another thread, but the
 *           job may stay hidden behind that of a thread which was descheduled inside its own post,
 *           until that thread goes on; and now and then, while one post gathers the road's free
 *           slots, others that need one yield the processor. A frame or control thread should
 *           register a producer: its posts are wait-free, and its jobs behind nobody else's.
 * Order     jobs of one thread, stream and priority are issued in the order of their posts, except
 *           that a job whose waits are not met yet may be overtaken.
 * Share     of every 32 jobs that the submitter drains while all three classes have work, at least
 *           6 are NORMAL and 2 are BACKGROUND; the others are REALTIME. */
REN_API ren_status ren_post(ren_runtime *rt, const ren_job_desc *desc, ren_job *out_job);

/* Give the calling thread (or any one thread at a time) a ring of its own.
 * Returns   REN_OK; REN_ERR_QUEUE_FULL (REN_MAX_PRODUCERS are registered); REN_ERR_CLOSED;
 *           REN_ERR_NO_MEMORY; REN_ERR_DEVICE_LOST; REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  for a short lock.   Allocates  yes.
 * Lifetime  until ren_producer_release, which must come before ren_runtime_destroy. */
REN_API ren_status ren_producer_register(ren_runtime *rt, ren_producer **out_producer);

/* Post one job by a producer's own ring. Wait-free: a bounded number of steps whatever other
 * threads do.
 * Returns   as ren_post
 * Threads   one at a time per producer.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_producer_post(ren_producer *producer, const ren_job_desc *desc,
                                     ren_job *out_job);

/* Give the ring back. Jobs posted through it go on and complete as ever. NULL is fine.
 * Returns   REN_OK; REN_ERR_STALE (it was given back before); REN_ERR_FORKED
 * Threads   one, with no post of this producer running.   In callbacks  yes.
 * Blocks    for a short lock.   Allocates  no. */
REN_API ren_status ren_producer_release(ren_producer *producer);

/* Wait until the job's work is done. Runs no callback.
 * Returns   the job's own status (REN_OK, REN_CANCELLED or an error); REN_TIMEOUT; REN_ERR_STALE
 *           (done, and its slot was reused); REN_ERR_UNKNOWN_JOB; REN_ERR_REENTRANT;
 *           REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  no.   Blocks  up to timeout_ns; 0 = only look.   Allocates  no.
 * Lifetime  a finished job's id stays good until its slot is reused by a later post of its road,
 *           oldest slot first. */
REN_API ren_status ren_wait(ren_runtime *rt, ren_job job, uint64_t timeout_ns);

/* Ask that a job not be run. It completes with REN_CANCELLED, by its usual way, if this call won.
 * Returns   REN_OK (it will not run); REN_TOO_LATE (issued or done); REN_ERR_STALE;
 *           REN_ERR_UNKNOWN_JOB; REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_cancel(ren_runtime *rt, ren_job job);

/* Look at a job without waiting.
 * Returns   REN_PENDING; the job's own status when done (REN_OK, REN_CANCELLED or an error);
 *           REN_ERR_STALE; REN_ERR_UNKNOWN_JOB; REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_job_status(ren_runtime *rt, ren_job job);

/* Run the callbacks that wait on a channel, on this thread.
 * channel         0..REN_CHANNELS-1
 * max_callbacks   stop after this many; 0 = no limit
 * budget_ns       start no callback once this much time has passed; 0 = no limit
 * out_delivered   out, may be NULL
 * Returns   REN_OK, also when nothing waits; REN_ERR_BUSY (another thread pumps this channel);
 *           REN_ERR_REENTRANT (from a callback); REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   one at a time per channel.   In callbacks  no.   Blocks  no.   Allocates  no.
 * Without a limit it delivers what waited when it was called, so that callbacks which post cannot
 * keep it busy for ever. */
REN_API ren_status ren_pump(ren_runtime *rt, uint32_t channel, uint32_t max_callbacks,
                            uint64_t budget_ns, uint32_t *out_delivered);

/* Sleep until a completion of any channel waits for a pump.
 * Returns   REN_OK (one waits); REN_TIMEOUT; REN_WOKEN; REN_ERR_DEVICE_LOST (nothing waits and
 *           nothing is outstanding); REN_ERR_REENTRANT; REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  no.   Blocks  up to timeout_ns.   Allocates  no. */
REN_API ren_status ren_wait_any(ren_runtime *rt, uint64_t timeout_ns);

/* Make every ren_wait_any that sleeps now, or the next one, return REN_WOKEN.
 * Returns   REN_OK; REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_wake(ren_runtime *rt);

/* The number of submissions that a stream has completed; it only grows.
 * Returns   REN_OK; REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_timeline_value(ren_runtime *rt, ren_stream stream, uint64_t *out_value);

/* Wait until a stream's timeline has reached `value`.
 * Returns   REN_OK; REN_TIMEOUT; REN_ERR_DEVICE_LOST; REN_ERR_REENTRANT;
 *           REN_ERR_INVALID_ARGUMENT; REN_ERR_FORKED
 * Threads   any.   In callbacks  no.   Blocks  up to timeout_ns.   Allocates  no. */
REN_API ren_status ren_timeline_wait(ren_runtime *rt, ren_stream stream, uint64_t value,
                                     uint64_t timeout_ns);

/* ------------------------------------------------------------------ buffers */

/* Take device memory from the pool, in stream order: memory freed by jobs that are still under way
 * may be handed out again, and the runtime orders the new buffer's jobs behind them.
 * stream      where the buffer is used first; a good guess saves event waits, a bad one is still
 *             right
 * bytes       at least 1; the address is aligned to 256 bytes; contents are undefined
 * out_buffer  out; {0} after an error
 * Returns   REN_OK; REN_ERR_WOULD_GROW (call ren_memory_reserve, or set config.allow_growth: a
 *           runtime starts with an empty pool, so by default the first call comes after a
 *           ren_memory_reserve); REN_ERR_NO_DEVICE_MEMORY; REN_ERR_QUEUE_FULL (config.max_buffers
 *           are alive); REN_ERR_BUSY (memory is missing, but freed buffers wait for the submitter
 *           to issue accepted jobs that use them: retry soon); REN_ERR_INVALID_ARGUMENT;
 *           REN_ERR_CLOSED; REN_ERR_DEVICE_LOST; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.
 * Blocks    for a short lock; with allow_growth for the driver.   Allocates  no.
 * Lifetime  until ren_buffer_free, or the runtime's end. */
REN_API ren_status ren_buffer_alloc(ren_runtime *rt, ren_stream stream, uint64_t bytes,
                                    ren_buffer *out_buffer);

/* Give a buffer back. Jobs accepted before that still use it; later posts with it are refused.
 * Returns   REN_OK (also for id 0); REN_ERR_STALE (freed already); REN_ERR_INVALID_ARGUMENT (an id
 *           that is none of this runtime); REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  for a short lock.   Allocates  no. */
REN_API ren_status ren_buffer_free(ren_runtime *rt, ren_buffer buffer);

/* Make sure that the pool holds at least `bytes` (1 or more) in one piece that no buffer uses.
 * Returns   REN_OK; REN_ERR_NO_DEVICE_MEMORY; REN_ERR_INVALID_ARGUMENT; REN_ERR_DEVICE_LOST;
 *           REN_ERR_REENTRANT; REN_ERR_FORKED
 * Threads   any.   In callbacks  no.   Blocks  for the driver: a slow call.
 * Allocates device memory. */
REN_API ren_status ren_memory_reserve(ren_runtime *rt, uint64_t bytes);

/* ------------------------------------------------------------------ models
 *
 * A model is a graph of operations made by the builder calls below, on one thread. The first error
 * sticks: later builder calls return {0} and ren_model_status tells what was wrong. Calls that say
 * "the builder's error" answer with it too; those that read, write, save or load parameters only
 * until the model's first trainer or inference. From there on the model is in use: it has all its
 * parameters, and a new layer with some is REN_ERR_BUSY.
 * Activations are NHWC, dims[0] is the batch. Parameters are f32 at the boundary: convolution
 * weights OIHW, linear weights [out, in], as PyTorch writes them; their names are "<layer>.weight",
 * "<layer>.bias", "<layer>.running_mean" and "<layer>.running_var". Every input, layer and loss of
 * a model has a name of its own, 1..63 characters without control characters. */

typedef enum ren_dtype {
    REN_F32 = 0,
    REN_F16 = 1,
    REN_BF16 = 2,
    REN_I32 = 3,
    REN_U8 = 4
} ren_dtype;

typedef struct ren_model_config {
    uint32_t struct_size;
    uint64_t seed; /* of weight initialisation; 0 = the runtime's */
    /* 1 = matrix products and convolutions of f32 tensors, in training and inference, may round
     * their operands to TF32 (10 bits of mantissa; sums stay f32) on devices that have it; ignored
     * elsewhere. */
    uint32_t allow_tf32;
    /* Inference, see ren_infer. Requests of one output that may be under way, at most 65536; 0 = 32
     * or, on a device that copies from pinned memory alone, as many as 64 MiB hold, but at
     * least 4. */
    uint32_t infer_requests;
    /* Compute streams that requests are spread over, 1 to 3; 0 = all. Each has activations of its
     * own. */
    uint32_t infer_streams;
} ren_model_config;

static inline ren_model_config ren_model_config_default(void)
{
    ren_model_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    return config;
}

/* Start a model. Builder calls on one model: one thread at a time. config NULL = the defaults.
 * Returns   REN_OK; REN_ERR_BAD_STRUCT; REN_ERR_INVALID_ARGUMENT; REN_ERR_NO_MEMORY;
 *           REN_ERR_CLOSED; REN_ERR_DEVICE_LOST; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  yes.
 * Lifetime  until ren_model_destroy, which must come before ren_runtime_destroy. */
REN_API ren_status ren_model_create(ren_runtime *rt, const ren_model_config *config,
                                    ren_model **out_model, ren_error *err);

/* Free a model. NULL is fine. Its trainer must be destroyed first (else nothing happens and an
 * error is logged); waits for work of its own that is under way.
 * Threads   one.   In callbacks  no.   Blocks  for its own work.   Allocates  frees. */
REN_API void ren_model_destroy(ren_model *m);

/* The builder's first error.
 * Returns   REN_OK, or the first error with its text in err.
 * Threads   the builder's.   In callbacks  no.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_model_status(ren_model *m, ren_error *err);

/* An input. REN_F32 inputs have rank 1 [batch], 2 [batch, features] or 4 [batch, height, width,
 * channels], regression targets included; labels are REN_I32 of rank 1 [batch]. Any other rank or
 * dtype, so REN_F16, REN_BF16 and REN_U8, makes the model's error REN_ERR_SHAPE: inputs stay f32
 * whatever the trainer's precision.
 * The block below holds for every builder call down to ren_huber. Options that are NULL are the
 * defaults, but linear, conv2d and the two pools have sizes to be told and need theirs.
 * Returns   the tensor, or {0}: see ren_model_status
 * Threads   the builder's, while no other thread is inside a call for this model or its trainer;
 *           work under way does not matter.
 * In callbacks  no.   Blocks  no.   Allocates  yes.
 * Lifetime  of the handle: until ren_model_destroy. */
REN_API ren_tensor ren_input(ren_model *m, const char *name, ren_dtype dtype, const int64_t *dims,
                             uint32_t rank);

typedef struct ren_linear_options {
    uint32_t struct_size;
    uint32_t units; /* output features, at least 1 */
    uint32_t disable_bias;
} ren_linear_options;

typedef struct ren_conv2d_options {
    uint32_t struct_size;
    uint32_t filters;   /* output channels, at least 1 */
    uint32_t kernel[2]; /* height, width; at least 1 */
    uint32_t stride[2]; /* 0 = 1 */
    uint32_t padding[2];
    uint32_t dilation[2]; /* 0 = 1 */
    uint32_t groups;      /* 0 = 1; must divide channels and filters */
    uint32_t disable_bias;
} ren_conv2d_options;

typedef struct ren_batch_norm_options {
    uint32_t struct_size;
    float momentum; /* of the running statistics: r = (1 - momentum) r + momentum x */
    float eps;
} ren_batch_norm_options;

typedef struct ren_pool2d_options {
    uint32_t struct_size;
    uint32_t kernel[2];  /* at least 1 */
    uint32_t stride[2];  /* 0 = the kernel */
    uint32_t padding[2]; /* at most half the kernel; never counted in an average */
} ren_pool2d_options;

typedef struct ren_leaky_relu_options {
    uint32_t struct_size;
    float negative_slope; /* default 0.01 */
} ren_leaky_relu_options;

typedef enum ren_gelu_kind {
    REN_GELU_ERF = 0,
    REN_GELU_TANH = 1
} ren_gelu_kind;

typedef struct ren_gelu_options {
    uint32_t struct_size;
    ren_gelu_kind kind;
} ren_gelu_options;

typedef struct ren_dropout_options {
    uint32_t struct_size;
    float probability; /* that an element is dropped, 0 <= p < 1; default 0.5 */
} ren_dropout_options;

typedef struct ren_cross_entropy_options {
    uint32_t struct_size;
    float label_smoothing; /* 0 <= s < 1; default 0 */
} ren_cross_entropy_options;

typedef struct ren_huber_options {
    uint32_t struct_size;
    float delta; /* default 1 */
} ren_huber_options;

#define REN_DEFINE_DEFAULT_(type)                                                                  \
    static inline type type##_default(void)                                                        \
    {                                                                                              \
        type options;                                                                              \
        memset(&options, 0, sizeof options);                                                       \
        options.struct_size = (uint32_t)sizeof options;                                            \
        return options;                                                                            \
    }

REN_DEFINE_DEFAULT_(ren_linear_options)
REN_DEFINE_DEFAULT_(ren_conv2d_options)
REN_DEFINE_DEFAULT_(ren_pool2d_options)
REN_DEFINE_DEFAULT_(ren_gelu_options)
REN_DEFINE_DEFAULT_(ren_cross_entropy_options)
REN_DEFINE_DEFAULT_(ren_allocator)
REN_DEFINE_DEFAULT_(ren_log)
REN_DEFINE_DEFAULT_(ren_threads)
REN_DEFINE_DEFAULT_(ren_cuda_options)

static inline ren_batch_norm_options ren_batch_norm_options_default(void)
{
    ren_batch_norm_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    options.momentum = 0.1f;
    options.eps = 1e-5f;
    return options;
}

static inline ren_leaky_relu_options ren_leaky_relu_options_default(void)
{
    ren_leaky_relu_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    options.negative_slope = 0.01f;
    return options;
}

static inline ren_dropout_options ren_dropout_options_default(void)
{
    ren_dropout_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    options.probability = 0.5f;
    return options;
}

static inline ren_huber_options ren_huber_options_default(void)
{
    ren_huber_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    options.delta = 1.0f;
    return options;
}

/* y[n, o] = sum_i x[n, i] W[o, i] + b[o].
 * x [batch, in], W [units, in], b [units], y [batch, units]. W and b start uniform in +-1/sqrt(in),
 * as PyTorch's Linear. */
REN_API ren_tensor ren_linear(ren_model *m, const char *name, ren_tensor x,
                              const ren_linear_options *options);

/* Cross-correlation, as PyTorch's Conv2d.
 * x [N, H, W, C], W [filters, C / groups, kh, kw] (OIHW), b [filters], y [N, H', W', filters],
 * H' = (H + 2 ph - dh (kh - 1) - 1) / sh + 1 rounded down. W and b start uniform in
 * +-1/sqrt(C / groups kh kw). */
REN_API ren_tensor ren_conv2d(ren_model *m, const char *name, ren_tensor x,
                              const ren_conv2d_options *options);

/* Normalises each channel of x [N, H, W, C] over batch, height and width, each feature of x [N, C]
 * over the batch (Ioffe and Szegedy 2015), then scales by "<name>.weight" (starts 1) and shifts by
 * "<name>.bias" (starts 0). The running variance is the unbiased one, but 0 of a single value. */
REN_API ren_tensor ren_batch_norm(ren_model *m, const char *name, ren_tensor x,
                                  const ren_batch_norm_options *options);

/* Pools over [N, H, W, C]; output sizes round down; ties of the maximum go to the first. */
REN_API ren_tensor ren_max_pool2d(ren_model *m, const char *name, ren_tensor x,
                                  const ren_pool2d_options *options);
REN_API ren_tensor ren_avg_pool2d(ren_model *m, const char *name, ren_tensor x,
                                  const ren_pool2d_options *options);
/* [N, H, W, C] to [N, C]: the mean over height and width. */
REN_API ren_tensor ren_global_avg_pool(ren_model *m, const char *name, ren_tensor x);

/* Activations, element by element: max(x, 0); x or slope x; tanh x; 1 / (1 + e^-x); x sigmoid(x);
 * x Phi(x) (Hendrycks and Gimpel 2016). */
REN_API ren_tensor ren_relu(ren_model *m, const char *name, ren_tensor x);
REN_API ren_tensor ren_leaky_relu(ren_model *m, const char *name, ren_tensor x,
                                  const ren_leaky_relu_options *options);
REN_API ren_tensor ren_tanh(ren_model *m, const char *name, ren_tensor x);
REN_API ren_tensor ren_sigmoid(ren_model *m, const char *name, ren_tensor x);
REN_API ren_tensor ren_silu(ren_model *m, const char *name, ren_tensor x);
REN_API ren_tensor ren_gelu(ren_model *m, const char *name, ren_tensor x,
                            const ren_gelu_options *options);

/* In training each element is 0 with the given probability, else x / (1 - p); identity in
 * inference. */
REN_API ren_tensor ren_dropout(ren_model *m, const char *name, ren_tensor x,
                               const ren_dropout_options *options);
/* a + b, of equal shape. The sum of two losses is a loss again: a trainer of it trains for both,
 * and its gradient is the sum of theirs. In one such sum, sums of sums included, each loss counts
 * once. */
REN_API ren_tensor ren_add(ren_model *m, const char *name, ren_tensor a, ren_tensor b);
/* Joins `count` (1..16) tensors of one rank, 2 or 4, along the last axis; the other dims are equal.
 */
REN_API ren_tensor ren_concat(ren_model *m, const char *name, const ren_tensor *xs, uint32_t count);
/* [N, H, W, C] to [N, H W C], in NHWC order; [N] to [N, 1]. No copy. */
REN_API ren_tensor ren_flatten(ren_model *m, const char *name, ren_tensor x);

/* Losses; each gives one f32: the mean over the batch (cross entropy) or over all elements.
 * Cross entropy: -log softmax(logits)[label], logits [batch, classes], labels REN_I32 [batch] in
 * 0..classes-1. A label outside that range adds no loss and no gradient to its row. */
REN_API ren_tensor ren_softmax_cross_entropy(ren_model *m, const char *name, ren_tensor logits,
                                             ren_tensor labels,
                                             const ren_cross_entropy_options *options);
REN_API ren_tensor ren_mse(ren_model *m, const char *name, ren_tensor prediction,
                           ren_tensor target);
REN_API ren_tensor ren_huber(ren_model *m, const char *name, ren_tensor prediction,
                             ren_tensor target, const ren_huber_options *options);

/* Write or read one parameter, f32 in boundary layout. `bytes` must be its exact size. A write
 * takes effect between steps; a read waits for the newest complete version.
 * Returns   REN_OK; REN_ERR_NAME; REN_ERR_SHAPE (the text in the log says the right size);
 *           REN_ERR_QUEUE_FULL (the shared road is full; nothing done);
 *           REN_ERR_INVALID_ARGUMENT; REN_ERR_REENTRANT; REN_ERR_DEVICE_LOST; the builder's error
 * Threads   any.   In callbacks  no.   Blocks  for steps under way.   Allocates  no. */
REN_API ren_status ren_param_set(ren_model *m, const char *name, const void *data, size_t bytes);
REN_API ren_status ren_param_get(ren_model *m, const char *name, void *out_data, size_t bytes);

/* Keep a layer's parameters ("<layer>") or one parameter ("<layer>.weight") as they are in
 * training, from the next posted step on; 0 lets them move again. A frozen parameter gets no
 * gradient and has no part in grad_norm; its optimizer state stays, and Adam's bias correction
 * counts its own updates. Frozen running statistics stay as well; training still normalises by the
 * batch's. The first step behind a set of frozen parameters not seen before is planned, as a new
 * batch size is.
 * Returns   REN_OK; REN_ERR_NAME; REN_ERR_DEVICE_LOST; REN_ERR_FORKED
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_param_set_frozen(ren_model *m, const char *name, uint32_t frozen);

/* The number of parameters and the name of one, in the order of their creation. Averages
 * ("<layer>.weight.ema") come last, once a trainer with ema_decay has been made.
 * Returns   the count; NULL past the end. Strings live as long as the model.
 * Threads   any.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API uint32_t ren_param_count(ren_model *m);
REN_API const char *ren_param_name(ren_model *m, uint32_t index);

/* Write all parameters as safetensors, through a temporary file that replaces `path` when complete.
 * Averages ("<p>.ema") are among them. What a trainer has of its own, moments, step count and loss
 * scale, is not.
 * A folder, device or pipe at `path` is left alone, and REN_ERR_IO.
 * Returns   REN_OK; REN_ERR_IO; REN_ERR_NO_MEMORY; REN_ERR_QUEUE_FULL (the shared road is full);
 *           REN_ERR_INVALID_ARGUMENT; the builder's error
 * Threads   any.   In callbacks  no.
 * Blocks    for steps under way and the file.   Allocates  yes. */
REN_API ren_status ren_model_save(ren_model *m, const char *path, ren_error *err);

enum {
    REN_LOAD_ALLOW_MISSING = 1u, /* parameters that the file lacks keep their values */
    REN_LOAD_ALLOW_EXTRA = 2u    /* tensors that the model lacks are skipped */
};

/* Read all parameters from a safetensors file. The file is checked whole first: after an error no
 * parameter has changed. A file with averages takes a model that has them, so load it behind the
 * trainer's create or with ALLOW_EXTRA; ALLOW_MISSING loads one without them into such a model.
 * Returns   REN_OK; REN_ERR_IO; REN_ERR_FORMAT (hostile or damaged; the text says where);
 *           REN_ERR_NAME (missing or extra tensor); REN_ERR_SHAPE (wrong shape or dtype);
 *           REN_ERR_UNSUPPORTED (ALLOW_MISSING into a model in use: what the file leaves out
 *           splits the rest into more than 128 pieces);
 *           REN_ERR_NO_MEMORY; REN_ERR_QUEUE_FULL (the shared road is full);
 *           REN_ERR_INVALID_ARGUMENT; the builder's error
 * Threads   any.   In callbacks  no.
 * Blocks    for steps under way and the file.   Allocates  yes. */
REN_API ren_status ren_model_load(ren_model *m, const char *path, uint32_t flags, ren_error *err);

/* ------------------------------------------------------------------ trainer and inference */

typedef enum ren_optimizer {
    REN_OPTIMIZER_SGD = 0,
    REN_OPTIMIZER_ADAM = 1,
    REN_OPTIMIZER_ADAMW = 2,
    REN_OPTIMIZER_LARS = 3
} ren_optimizer;

typedef enum ren_precision {
    REN_PRECISION_F32 = 0,
    REN_PRECISION_MIXED_F16 = 1,
    REN_PRECISION_MIXED_BF16 = 2
} ren_precision;

/* How the tasks of a training step come to their streams. What a step computes is the same under
 * both: to the bit where it is on any number of streams, see ren_runtime_config.deterministic.
 * GREEDY   as many streams as pay by the device's expected times, UPDATE among them; one that would
 *          save less than it costs in events stays empty
 * STATIC   each task on the stream of this table, whatever it costs:
 *          COMP_1   linear layers and convolutions, losses, gradients of weights; LARS of linear
 *                   layers
 *          COMP_2   batch norms, pools, dropout, gradients of biases; LARS of the first convolution
 *          COMP_3   activations, sums, joins, gradients of layers' inputs, casts of tensors; LARS
 *                   of all else
 *          UPDATE   casts of weights, sums over steps, check, optimizer, average, running
 *                   statistics
 *          A task that computes several of these at once is where the first of them is. */
typedef enum ren_stream_policy {
    REN_POLICY_GREEDY = 0,
    REN_POLICY_STATIC = 1
} ren_stream_policy;

/* The update rules are PyTorch's.
 * SGD    g += wd p; v = momentum v + g (v = g at first); p -= lr (nesterov ? g + momentum v : v)
 * Adam   g += wd p; m, v moments; p -= lr mhat / (sqrt(vhat) + eps)   (Kingma and Ba 2015)
 * AdamW  p -= lr wd p, then Adam without decay                        (Loshchilov and Hutter 2019)
 * LARS   t = eta |p| / (|g| + wd |p| + eps), 1 where |p| or |g| is 0;
 *        v = momentum v + lr t (g + wd p); p -= v                     (You, Gitman, Ginsburg 2017)
 *        with the norms of each parameter by itself
 *
 * Clipping: g times min(1, clip_norm / (norm + 1e-6)), norm being that of all gradients together.
 * Average: after each update a = ema_decay a + (1 - ema_decay) p. It begins as the weights are when
 * the trainer is made, belongs to the model and outlives the trainer: each trained parameter p gets
 * a parameter "<p>.ema" beside it, to get, set, save and load as any other.
 * Accumulation: the gradients of accumulate_steps posted steps are summed (not averaged: as k
 * backward passes in PyTorch) and the last of them updates; clipping sees the sum, and skipping
 * too: one infinity among them skips the update of all. Running statistics are moved by each step,
 * which shows once the last has updated. A step that fails or is cancelled is not one of them.
 * Mixed precision: tensors and their gradients are f16 or bf16, as are the copies of weights that
 * layers compute with; the weights themselves, their gradients, all that batch norm keeps, losses
 * and the optimizer are f32. A step whose gradients hold an infinity or a NaN is skipped whole, and
 * so it is with clip_norm: weights, moments, averages, running statistics and step count stay as
 * they are. MIXED_F16 multiplies the loss's gradient by a scale, which the optimizer takes out
 * again: halved by each skipped step, but not below 1; doubled after 2,000 good steps in a row, but
 * not above 2^24.
 * Plans: a step is planned once for its batch size and what is frozen, and plan_cache plans are
 * kept with their graphs. A further one takes the place of the plan unused for longest of those
 * that no step under way uses; when steps of all are under way, its step is refused with
 * REN_ERR_QUEUE_FULL.
 * Segments: a step that is replayed is one executable graph, or with graph_segments = 1 one for
 * each segment of its plan: the casts of weights in mixed precision, forward, backward, and check
 * and optimizer, as ren_plan_dump frames them. Values, completions and counters of steps are the
 * same; graph_captures counts each. It makes captures smaller, for drivers to which one large graph
 * costs more, in memory or when it is made and launched, than several that add up to it. It costs a
 * join of all streams behind each segment, a launch for each, and what could have overlapped across
 * their borders.
 */
typedef struct ren_trainer_config {
    uint32_t struct_size;
    ren_optimizer optimizer;
    float learning_rate; /* no scalar may be negative */
    float momentum;
    uint32_t nesterov;
    float beta1; /* below 1 */
    float beta2; /* below 1 */
    float eps;
    float weight_decay;
    float lars_eta;
    ren_precision precision;
    float loss_scale;          /* first value, MIXED_F16: 1 to 2^24 */
    float clip_norm;           /* 0 = no clipping */
    float ema_decay;           /* 0 = no moving average; below 1 */
    uint32_t accumulate_steps; /* steps to an update; 0 = 1 */
    uint32_t plan_cache;       /* plans kept; 0 = 8, at most 64 */
    ren_stream_policy stream_policy;
    uint32_t graph_segments; /* 0 = a step is one graph, 1 = one for each segment of its plan */
} ren_trainer_config;

static inline ren_trainer_config ren_trainer_config_default(void)
{
    ren_trainer_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    config.learning_rate = 0.01f;
    config.beta1 = 0.9f;
    config.beta2 = 0.999f;
    config.eps = 1e-8f;
    config.lars_eta = 0.001f;
    config.loss_scale = 65536.0f;
    return config;
}

/* Plan the training of a model for a scalar loss, and take all memory that it needs. config NULL =
 * the defaults: SGD with a learning rate of 0.01.
 * Returns   REN_OK; REN_ERR_SHAPE (loss is not a loss of this model); REN_ERR_UNSUPPORTED (a
 *           regression's target depends on parameters; a loss is added twice; over 64 inputs);
 *           REN_ERR_BUSY (the model has a trainer); REN_ERR_NO_MEMORY; REN_ERR_NO_DEVICE_MEMORY;
 *           REN_ERR_QUEUE_FULL (the shared road is full: pump, then again); REN_ERR_BAD_STRUCT;
 *           REN_ERR_INVALID_ARGUMENT; the builder's error
 * Threads   the builder's.   In callbacks  no.
 * Blocks    for planning: a slow call.   Allocates  yes.
 * Lifetime  until ren_trainer_destroy, which must come before ren_model_destroy. */
REN_API ren_status ren_trainer_create(ren_model *m, ren_tensor loss,
                                      const ren_trainer_config *config, ren_trainer **out,
                                      ren_error *err);

/* Wait for the trainer's own steps, then free it. NULL is fine. The model keeps its weights, unless
 * a device call broke the newest step off behind its optimizer and the shared road, which finishing
 * the step takes, is full of completions that nobody pumps: then the model has none any more, and
 * its calls say so. Pump before.
 * Threads   one.   In callbacks  no.   Blocks  for its steps.   Allocates  frees. */
REN_API void ren_trainer_destroy(ren_trainer *t);

/* One input of a step or inference. */
typedef struct ren_binding {
    const char *input;
    const void *data; /* host memory, borrowed until inputs_consumed or the completion; NULL takes
                         the slot that ren_input_acquire lent */
    size_t bytes;     /* batch * bytes per row; may be 0 with data = NULL */
} ren_binding;

typedef struct ren_step_desc {
    uint32_t struct_size;
    const ren_binding *bindings; /* every input that the loss needs, once */
    uint32_t binding_count;
    uint32_t batch; /* rows of this batch; 0 = the input's dims[0], which is the most */
    /* Host memory may be reused from here on. On a thread of libren's; may be NULL. */
    void (*inputs_consumed)(void *user);
    ren_done_fn done;
    void *user;
    ren_deliver deliver;
    uint32_t channel;
} ren_step_desc;

static inline ren_step_desc ren_step_desc_default(void)
{
    ren_step_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    return desc;
}

/* Post one training step: copy the inputs, forward, backward, update. Steps run in the order
 * posted.
 * Returns   REN_OK; REN_ERR_QUEUE_FULL (8 steps are under way, or the shared road is full, or there
 *           is no room for another plan, see plan_cache, or, in a callback, memory for one is in
 *           use by work under way; nothing kept, retry after ren_pump);
 *           REN_ERR_NAME (unknown, missing or doubled input);
 *           REN_ERR_SHAPE (bytes or batch wrong); REN_ERR_BUSY (data = NULL without an acquired
 *           slot); REN_ERR_NO_MEMORY, REN_ERR_NO_DEVICE_MEMORY (for a plan; nothing posted); and as
 *           ren_post
 * Threads   one at a time per trainer.   In callbacks  yes, also in that of the step posted last,
 *           whose post may not have returned yet.
 * Blocks    no, but that a step without a plan (a batch size or set of frozen parameters that is
 *           new, or whose plan gave way, see plan_cache) is planned first and slow.
 * Allocates such calls do. */
REN_API ren_status ren_trainer_step(ren_trainer *t, const ren_step_desc *desc, ren_job *out_job);

typedef enum ren_scalar {
    REN_SCALAR_LEARNING_RATE = 0,
    REN_SCALAR_MOMENTUM = 1,
    REN_SCALAR_BETA1 = 2,
    REN_SCALAR_BETA2 = 3,
    REN_SCALAR_EPS = 4,
    REN_SCALAR_WEIGHT_DECAY = 5,
    REN_SCALAR_LARS_ETA = 6,
    REN_SCALAR_CLIP_NORM = 7,
    REN_SCALAR_EMA_DECAY = 8
} ren_scalar;

/* Change an optimizer scalar from the next posted step on.
 * Returns   REN_OK; REN_ERR_INVALID_ARGUMENT (no such scalar; value not finite, negative, or not
 *           below 1 where it is a beta or EMA_DECAY); REN_ERR_UNSUPPORTED (what the trainer was
 *           made without: CLIP_NORM other than 0 when config.clip_norm was 0, EMA_DECAY when
 *           config.ema_decay was 0); REN_ERR_FORKED
 * Threads   the one that posts steps.   In callbacks  yes.   Blocks  no.   Allocates  no. */
REN_API ren_status ren_trainer_set_scalar(ren_trainer *t, ren_scalar scalar, float value);

/* Borrow a pinned staging slot for an input; the next ren_trainer_step whose binding has data =
 * NULL consumes it. Two slots (A and B) per input. Until then further calls give the same slot,
 * with what was written there.
 * Returns   REN_OK; REN_ERR_BUSY (both slots are filled or being copied: retry after ren_pump);
 *           REN_ERR_NAME; REN_ERR_INVALID_ARGUMENT; REN_ERR_DEVICE_LOST; REN_ERR_FORKED
 * Threads   the one that posts steps.   In callbacks  yes.   Blocks  no.   Allocates  no.
 * Lifetime  the pointer is good until the step that consumes it is posted. */
REN_API ren_status ren_input_acquire(ren_trainer *t, const char *input, void **out_ptr,
                                     size_t *out_bytes);

/* Write how a trainer's step is planned, for `batch` rows (0 = the input's dims[0]) and what is
 * frozen now, as a picture for Graphviz (`dot -Tsvg`). Boxes are tasks: their name, what they do
 * with what is fused into it, their segment, stream (the colour) and lane. Bold arrows are events,
 * by number; dotted ones a lane's own order; grey ones data. Where steps accumulate there is a part
 * for each kind of step, and with graph_segments a frame around each segment. The file is written
 * aside and renamed, as ren_model_save does it. A batch size not seen before is planned first.
 * Returns   REN_OK; REN_ERR_SHAPE (batch too large); REN_ERR_IO; REN_ERR_NO_MEMORY;
 *           REN_ERR_NO_DEVICE_MEMORY; REN_ERR_QUEUE_FULL (no room for another plan while steps of
 *           all are under way); REN_ERR_INVALID_ARGUMENT; REN_ERR_REENTRANT; REN_ERR_DEVICE_LOST;
 *           REN_ERR_FORKED
 * Threads   the one that posts steps.   In callbacks  no.
 * Blocks    for the file, and for planning.   Allocates  yes. */
REN_API ren_status ren_plan_dump(ren_trainer *t, uint32_t batch, const char *path, ren_error *err);

typedef struct ren_infer_desc {
    uint32_t struct_size;
    const ren_binding *bindings; /* every input that `output` needs, once */
    uint32_t binding_count;
    uint32_t batch; /* 0 = the input's dims[0] */
    ren_tensor output;
    void *out_data; /* host memory, borrowed until the completion */
    ren_buffer
        out_buffer;    /* used when out_data is NULL: a device memory copy, named as by uses[] */
    size_t out_bytes;  /* exactly: batch * the output's elements a row, in f32 */
    ren_stream stream; /* COMP_1 to COMP_3, or TRANS = 0: let libren choose one of them */
    ren_priority priority;
    ren_done_fn done;
    void *user;
    ren_deliver deliver;
    uint32_t channel;
    uint64_t out_offset; /* bytes into out_buffer */
    /* 1 = do not wait for training steps under way: take the newest weights that are whole already,
     * in no order with other calls. See below. */
    uint32_t any_version;
} ren_infer_desc;

static inline ren_infer_desc ren_infer_desc_default(void)
{
    ren_infer_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    return desc;
}

/* Compute one output of a model for a batch of inputs, with one version of all weights, which
 * completion->weight_version names: the number of updates that they had seen.
 *   Version   Those after the last training step, ren_param_set or ren_model_load posted before it.
 *             With `any_version` the newest ones that are whole on the device when the submitter
 *             comes to it: those of a step that was under way shortly before, never older than what
 *             ren_param_set or ren_model_load set before the call. It waits for steps only where
 *             there are no such ones, as at the first call.
 *   Streams   Requests are spread over the compute streams, those with the fewest first, and run
 *             beside each other and beside training steps; they complete on the stream that they
 *             ran on. Those on one stream run in the order in which they were issued. A step waits
 *             for an inference only while weights that the inference reads are to be replaced: the
 *             model keeps two versions beside the ones in training.
 *   Priority  REALTIME goes first in the rings. With any_version it also overtakes steps and
 *             inferences of its model that are not issued yet.
 *   Values    Dropout is the identity and batch norm uses the running statistics; behind a linear
 *             layer or a convolution it is multiplied into that one's weights.
 *   Inputs    On a device that copies from pinned memory alone (CUDA) this call copies inputs of up
 *             to 64 KiB together; larger ones are copied by a thread of libren's.
 * Returns   REN_OK; REN_ERR_QUEUE_FULL (config.infer_requests are under way, or the shared road is
 *           full; nothing kept); REN_ERR_NAME (unknown, missing or doubled input); REN_ERR_SHAPE
 *           (output, batch, bytes or out_bytes wrong); REN_ERR_UNSUPPORTED (a stream beyond
 *           config.infer_streams); REN_ERR_STALE (out_buffer was freed); REN_ERR_NO_MEMORY,
 *           REN_ERR_NO_DEVICE_MEMORY (for a plan; nothing posted); and as ren_post
 * Threads   any, also many at once.   In callbacks  yes.
 * Blocks    no, but that the first call for an output, or for a number of rows not used lately,
 *           plans it and is slow: see ren_infer_prepare.
 * Allocates such calls do. */
REN_API ren_status ren_infer(ren_model *m, const ren_infer_desc *desc, ren_job *out_job);

/* Do the planning of ren_infer for one output and its full batch now, so that no later call of that
 * many rows has to. For other numbers of rows a first ren_infer does it; plans of the last 8 are
 * kept.
 * Returns   REN_OK; REN_ERR_SHAPE; REN_ERR_NO_MEMORY; REN_ERR_NO_DEVICE_MEMORY; REN_ERR_QUEUE_FULL
 *           (the shared road is full: pump, then again); the builder's error
 * Threads   the builder's.   In callbacks  no.   Blocks  yes: a slow call.   Allocates  yes. */
REN_API ren_status ren_infer_prepare(ren_model *m, ren_tensor output, ren_error *err);

/* ------------------------------------------------------------------ trace */

/* Write what happens from now on to a trace file, for Perfetto or chrome://tracing: rows for the
 * posts, the submitter, the training steps, what each stream ran of steps and of other jobs, each
 * completion thread and each channel. Tasks of steps, transfers, inferences and jobs have the times
 * that the device's own clock gave, on either path; arrows show which task waits for another
 * stream's.
 * A step that is posted while a trace is open goes with stamps of the device's clock around each of
 * its tasks, on the graph path in graphs of their own, made when first needed and kept beside the
 * others. What it computes is the same; on a GPU each stamp takes a microsecond or two. Without an
 * open trace nothing of this is enqueued. ren_stats sums up the steps timed (`timed_steps`).
 * The file is bounded (131,072 records, the oldest; it says how many were lost), and written when
 * the trace ends. A device that does not answer within a second leaves it without device times.
 * Returns   REN_OK; REN_ERR_IO; REN_ERR_BUSY (a trace is open); REN_ERR_NO_MEMORY;
 *           REN_ERR_INVALID_ARGUMENT; REN_ERR_REENTRANT; REN_ERR_FORKED
 * Threads   any.   In callbacks  no.   Blocks  for the file and the device.   Allocates  yes. */
REN_API ren_status ren_trace_begin(ren_runtime *rt, const char *path, ren_error *err);

/* Write and close the trace file. What is under way is not in it: drain first to have it all.
 * Returns   REN_OK; REN_ERR_IO; REN_ERR_INVALID_ARGUMENT (none is open); REN_ERR_REENTRANT;
 *           REN_ERR_FORKED
 * Threads   any.   In callbacks  no.   Blocks  for the file and the device.   Allocates  frees. */
REN_API ren_status ren_trace_end(ren_runtime *rt);

#ifdef __cplusplus
}
#endif

#endif
