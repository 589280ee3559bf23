/* SPDX-License-Identifier: MIT */
/* tests/gpu/bench_device.c - what jobs cost on a CUDA device.
 *
 * Question  How long after the GPU is done does the host know: by an event that a thread sleeps on,
 *           by a counter that the stream writes into mapped memory, by a host function? What does
 *           a posted job cost from post to callback; does copying reach the speed of a plain pinned
 *           copy; does a long job cost processor time; how late is a short job beside a long one;
 *           how many launches does a stream take before a launch waits?
 * Method    Latencies: an empty kernel is launched, and the time is taken from before the launch
 *           until a host thread sees it done; 2,000 times, median and p99. The runtime's rows use
 *           jobs with callbacks on its own completion thread.
 * Needs     a GPU; without one it prints the reason and exits 77.
 */
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../../host_api/ren.h"
#include "../bench/bench.h"
#include "spin.h"

#define WARM        50u
#define SAMPLES     2000u
#define COPY_BYTES  (UINT64_C(256) << 20)
#define LONG_NS     UINT64_C(50000000)
#define SHORT_NS    UINT64_C(100000)
#define SECOND      UINT64_C(1000000000)
#define QUEUE_PROBE 20000u

static const char *module_path;
static double samples[SAMPLES];

static void check(int code, const char *what)
{
    if (code) {
        (void)fprintf(stderr, "%s: error %d\n", what, code);
        exit(1);
    }
}

static const bench_flag flags[] = {{"--module", "FILE", .text = &module_path}};

static void keep(const bench *b, const char *name, const char *metric, const char *unit,
                 double value)
{
    bench_print(name, metric, unit, value);
    bench_row(b, name, metric, unit, value);
}

static void keep_latency(const bench *b, const char *name, unsigned n)
{
    keep(b, name, "p50", "us", bench_percentile(samples, n, 0.50));
    keep(b, name, "p99", "us", bench_percentile(samples, n, 0.99));
}

/* ------------------------------------------------------------------ mechanisms, on plain CUDA */

static cudaStream_t stream;

/* A thread that sleeps on an event of the blocking kind, as the runtime's waiters do. */
typedef struct waiter {
    cudaEvent_t event;
    sem_t go;
    _Atomic uint64_t seen_ns;
    atomic_int stop;
} waiter;

static void *wait_for_event(void *arg)
{
    waiter *w = arg;
    for (;;) {
        while (sem_wait(&w->go)) {
        }
        if (atomic_load(&w->stop)) {
            return NULL;
        }
        check((int)cudaEventSynchronize(w->event), "cudaEventSynchronize");
        atomic_store(&w->seen_ns, bench_now_ns());
    }
}

/* Behind a kernel that takes `ns`, which is not counted. */
static void bench_event(const bench *b, const char *name, unsigned n, uint64_t ns)
{
    waiter w;
    pthread_t thread;
    memset(&w, 0, sizeof w);
    check((int)cudaEventCreateWithFlags(&w.event, cudaEventDisableTiming | cudaEventBlockingSync),
          "cudaEventCreateWithFlags");
    (void)sem_init(&w.go, 0, 0);
    check(pthread_create(&thread, NULL, wait_for_event, &w), "pthread_create");
    for (unsigned i = 0; i < n + WARM; i++) {
        uint64_t start = bench_now_ns();
        uint64_t seen;
        atomic_store(&w.seen_ns, 0);
        check(ns ? spin_for(stream, ns) : spin_empty(stream), "launch");
        check((int)cudaEventRecord(w.event, stream), "cudaEventRecord");
        (void)sem_post(&w.go);
        while ((seen = atomic_load(&w.seen_ns)) == 0) {
        }
        if (i >= WARM) {
            samples[i - WARM] = (double)(int64_t)(seen - start - ns) / 1e3;
        }
    }
    atomic_store(&w.stop, 1);
    (void)sem_post(&w.go);
    (void)pthread_join(thread, NULL);
    (void)cudaEventDestroy(w.event);
    keep_latency(b, name, n);
}

static void bench_counter(const bench *b, unsigned n)
{
    uint64_t *host = NULL;
    check((int)cudaHostAlloc((void **)&host, 64, cudaHostAllocMapped), "cudaHostAlloc");
    *(volatile uint64_t *)host = 0;
    for (unsigned i = 0; i < n + WARM; i++) {
        uint64_t start = bench_now_ns();
        check(spin_empty(stream), "launch");
        check(spin_write_value(stream, host, i + 1u), "cuStreamWriteValue64");
        while (*(volatile uint64_t *)host != i + 1u) {
        }
        if (i >= WARM) {
            samples[i - WARM] = (double)(bench_now_ns() - start) / 1e3;
        }
    }
    (void)cudaFreeHost(host);
    keep_latency(b, "counter", n);
}

static _Atomic uint64_t host_fn_ns;

static void CUDART_CB note_time(void *user)
{
    (void)user;
    atomic_store(&host_fn_ns, bench_now_ns());
}

static void bench_host_function(const bench *b, unsigned n)
{
    for (unsigned i = 0; i < n + WARM; i++) {
        uint64_t start = bench_now_ns();
        uint64_t seen;
        atomic_store(&host_fn_ns, 0);
        check(spin_empty(stream), "launch");
        check((int)cudaLaunchHostFunc(stream, note_time, NULL), "cudaLaunchHostFunc");
        while ((seen = atomic_load(&host_fn_ns)) == 0) {
        }
        if (i >= WARM) {
            samples[i - WARM] = (double)(seen - start) / 1e3;
        }
    }
    keep_latency(b, "host_function", n);
}

/* Launches behind a long kernel until one takes more than 2 ms: it waited for room. */
static void bench_queue(const bench *b)
{
    unsigned count = 0;
    uint64_t longest = 0;
    check((int)cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    check(spin_for(stream, SECOND / 4u), "launch");
    for (; count < QUEUE_PROBE; count++) {
        uint64_t start = bench_now_ns();
        check(spin_empty(stream), "launch");
        longest = bench_now_ns() - start;
        if (longest > 2000000u) {
            break;
        }
    }
    check((int)cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    keep(b, "launch_queue", "launches", "count", (double)count);
}

static double copy_rate(void *device, void *host)
{
    uint64_t start = bench_now_ns();
    check((int)cudaMemcpyAsync(device, host, COPY_BYTES, cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
    check((int)cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return (double)COPY_BYTES / (double)(bench_now_ns() - start);
}

/* ------------------------------------------------------------------ the runtime */

static ren_runtime *rt;
static _Atomic uint64_t done_ns;
static _Atomic uint64_t launched_ns;

static void note_done(const ren_completion *completion, void *user)
{
    (void)user;
    if (completion->status != REN_OK) {
        (void)fprintf(stderr, "job: %s\n", ren_status_name(completion->status));
    }
    atomic_store(&launched_ns, completion->launched_ns);
    atomic_store(&done_ns, bench_now_ns());
}

static ren_status run_spin(void *user, const ren_device_io *io)
{
    uint64_t ns;
    memcpy(&ns, user, sizeof ns);
    return (ns ? spin_for(io->native_stream, ns) : spin_empty(io->native_stream)) ? REN_ERR_DEVICE
                                                                                  : REN_OK;
}

static ren_job post_spin(ren_stream on, const uint64_t *ns, ren_done_fn done)
{
    ren_job job = {0};
    ren_job_desc d = ren_job_desc_default();
    d.kind = REN_JOB_DEVICE;
    d.stream = on;
    d.enqueue = run_spin;
    d.enqueue_user = (void *)(uintptr_t)ns;
    d.done = done;
    d.deliver = done ? REN_DELIVER_ANY_THREAD : REN_DELIVER_NONE;
    check(ren_post(rt, &d, &job), "ren_post");
    return job;
}

static void wait_for(ren_job job)
{
    check(ren_wait(rt, job, 20 * SECOND), "ren_wait");
}

static void pause_for(uint64_t ns)
{
    uint64_t until = bench_now_ns() + ns;
    while (bench_now_ns() < until) {
    }
}

/* Launch to callback of such a job, which comes `pause_ns` after the last. */
static void bench_spaced_job(const bench *b, unsigned n, uint64_t pause_ns, const char *name)
{
    static const uint64_t nothing = 0;
    uint64_t offset = ren_now_ns() - bench_now_ns();
    for (unsigned i = 0; i < n; i++) {
        uint64_t seen;
        pause_for(pause_ns);
        atomic_store(&done_ns, 0);
        (void)post_spin(REN_STREAM_COMP_1, &nothing, note_done);
        while ((seen = atomic_load(&done_ns)) == 0) {
        }
        samples[i] = (double)(int64_t)(seen + offset - atomic_load(&launched_ns)) / 1e3;
    }
    keep_latency(b, name, n);
}

/* Launch to callback of such a job when a pump runs it: of a thread that pumps all the time, and of
 * one that sleeps in ren_wait_any. */
static void bench_pumped_job(const bench *b, unsigned n, int sleeps, const char *name)
{
    static const uint64_t nothing = 0;
    uint64_t offset = ren_now_ns() - bench_now_ns();
    for (unsigned i = 0; i < n; i++) {
        uint32_t delivered = 0;
        ren_job_desc d = ren_job_desc_default();
        d.kind = REN_JOB_DEVICE;
        d.stream = REN_STREAM_COMP_1;
        d.enqueue = run_spin;
        d.enqueue_user = (void *)(uintptr_t)&nothing;
        d.done = note_done;
        check(ren_post(rt, &d, NULL), "ren_post");
        while (!delivered) {
            if (sleeps) {
                (void)ren_wait_any(rt, SECOND);
            }
            check(ren_pump(rt, 0, 0, 0, &delivered), "ren_pump");
        }
        samples[i] =
            (double)(int64_t)(atomic_load(&done_ns) + offset - atomic_load(&launched_ns)) / 1e3;
    }
    keep_latency(b, name, n);
}

/* Post to callback, and launch to callback, of a job that does next to nothing. */
static void bench_job(const bench *b, unsigned n)
{
    static const uint64_t nothing = 0;
    static double from_launch[SAMPLES];
    static double post[SAMPLES];
    uint64_t offset = ren_now_ns() - bench_now_ns(); /* in case the clocks differ */
    for (unsigned i = 0; i < n + WARM; i++) {
        uint64_t start = bench_now_ns();
        uint64_t posted;
        uint64_t seen;
        atomic_store(&done_ns, 0);
        (void)post_spin(REN_STREAM_COMP_1, &nothing, note_done);
        posted = bench_now_ns();
        while ((seen = atomic_load(&done_ns)) == 0) {
        }
        if (i >= WARM) {
            samples[i - WARM] = (double)(seen - start) / 1e3;
            post[i - WARM] = (double)(posted - start) / 1e3;
            from_launch[i - WARM] =
                (double)(int64_t)(seen + offset - atomic_load(&launched_ns)) / 1e3;
        }
    }
    keep_latency(b, "job_post_to_callback", n);
    memcpy(samples, from_launch, n * sizeof *samples);
    keep_latency(b, "job_launch_to_callback", n);
    memcpy(samples, post, n * sizeof *samples);
    keep_latency(b, "job_post", n);
}

/* Many jobs under way: time for each. */
static void bench_throughput(const bench *b)
{
    static const uint64_t nothing = 0;
    enum {
        JOBS = 2000
    };
    double rates[9];
    for (unsigned r = 0; r < 9; r++) {
        uint64_t start = bench_now_ns();
        for (int i = 0; i < JOBS; i++) {
            (void)post_spin((ren_stream)(1 + i % 3), &nothing, NULL);
        }
        check(ren_runtime_drain(rt, 20 * SECOND), "ren_runtime_drain");
        rates[r] = (double)(bench_now_ns() - start) / 1e3 / JOBS;
    }
    keep(b, "job_of_many", "time", "us", bench_median(rates, 9));
}

static double cpu_seconds(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void bench_cpu_of_long_job(const bench *b)
{
    static const uint64_t second = SECOND;
    double used = cpu_seconds();
    uint64_t start = bench_now_ns();
    wait_for(post_spin(REN_STREAM_COMP_1, &second, NULL));
    keep(b, "long_job", "cpu", "%",
         (cpu_seconds() - used) * 1e9 / (double)(bench_now_ns() - start) * 100.0);
}

/* Processor time of libren's threads and the driver's, while the host awaits one job of `ns` after
 * the other. */
static void bench_cpu_of_jobs(const bench *b, uint64_t ns, unsigned n, const char *name)
{
    const uint64_t length = ns;
    double used = cpu_seconds();
    uint64_t start = bench_now_ns();
    for (unsigned i = 0; i < n; i++) {
        wait_for(post_spin(REN_STREAM_COMP_1, &length, NULL));
    }
    keep(b, name, "cpu", "%",
         (cpu_seconds() - used) * 1e9 / (double)(bench_now_ns() - start) * 100.0);
}

/* A 0.1 ms job beside a 50 ms one: from its launch to its callback, less its own time; and the same
 * with nothing beside it, which tells how much of that is the job's own. */
static void bench_short_beside(const bench *b, uint64_t beside_ns, const char *name)
{
    const uint64_t slow = beside_ns;
    static const uint64_t quick = SHORT_NS;
    unsigned n = b->quick ? 3 : 30;
    uint64_t offset = ren_now_ns() - bench_now_ns();
    for (unsigned i = 0; i < n; i++) {
        ren_job long_job = post_spin(REN_STREAM_COMP_1, &slow, NULL);
        uint64_t seen;
        pause_for(1000000u);
        atomic_store(&done_ns, 0);
        (void)post_spin(REN_STREAM_COMP_3, &quick, note_done);
        while ((seen = atomic_load(&done_ns)) == 0) {
        }
        samples[i] = (double)(int64_t)(seen + offset - atomic_load(&launched_ns)) / 1e3 -
                     (double)SHORT_NS / 1e3;
        wait_for(long_job);
    }
    keep_latency(b, name, n);
}

static void bench_copy(const bench *b)
{
    void *host = NULL;
    void *device = NULL;
    double plain[9];
    double through[9];
    unsigned n = b->quick ? 2 : 9;
    ren_buffer buffer;
    check((int)cudaHostAlloc(&host, COPY_BYTES, cudaHostAllocPortable), "cudaHostAlloc");
    memset(host, 1, COPY_BYTES);
    check((int)cudaMalloc(&device, COPY_BYTES), "cudaMalloc");
    check(ren_memory_reserve(rt, COPY_BYTES), "ren_memory_reserve");
    check(ren_buffer_alloc(rt, REN_STREAM_TRANS, COPY_BYTES, &buffer), "ren_buffer_alloc");
    (void)copy_rate(device, host);
    for (unsigned i = 0; i < n; i++) {
        ren_job job = {0};
        ren_job_desc d = ren_job_desc_default();
        uint64_t start;
        plain[i] = copy_rate(device, host);
        d.kind = REN_JOB_COPY;
        d.stream = REN_STREAM_TRANS;
        d.copy.dst.buffer = buffer;
        d.copy.src.host = host;
        d.copy.bytes = COPY_BYTES;
        start = bench_now_ns();
        check(ren_post(rt, &d, &job), "ren_post");
        wait_for(job);
        through[i] = (double)COPY_BYTES / (double)(bench_now_ns() - start);
    }
    keep(b, "copy_h2d_plain", "rate", "GB/s", bench_median(plain, n));
    keep(b, "copy_h2d_job", "rate", "GB/s", bench_median(through, n));
    check(ren_buffer_free(rt, buffer), "ren_buffer_free");
    (void)cudaFree(device);
    (void)cudaFreeHost(host);
}

int main(int argc, char **argv)
{
    bench b;
    ren_error err;
    ren_status status;
    ren_runtime_config config = ren_runtime_config_default();
    unsigned n;
    bench_init(&b, argc, argv, "completion", flags, 1);
    n = b.quick ? SAMPLES / 10u : SAMPLES;
    config.device = REN_DEVICE_CUDA;
    config.module_path = module_path;
    status = ren_runtime_create(&config, &rt, &err);
    if (status != REN_OK) {
        (void)printf("skipped: %s\n", err.text);
        return bench_is_no_gpu(status) ? 77 : 1;
    }
    check((int)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check(spin_load(), "spin_load");
    bench_event(&b, "event", n, 0);
    bench_event(&b, "event_after_100us", n / 2u, SHORT_NS);
    bench_counter(&b, n);
    bench_host_function(&b, n);
    bench_queue(&b);
    bench_job(&b, n);
    bench_spaced_job(&b, n / 4u, 200000u, "job_every_200us_launch_to_callback");
    bench_spaced_job(&b, n / 10u, 2000000u, "job_every_2ms_launch_to_callback");
    bench_pumped_job(&b, n / 2u, 0, "job_launch_to_busy_pump");
    bench_pumped_job(&b, n / 2u, 1, "job_launch_to_wait_any");
    bench_throughput(&b);
    bench_cpu_of_jobs(&b, 1000000u, n / 8u, "jobs_of_1ms");
    bench_cpu_of_jobs(&b, SHORT_NS, n / 2u, "jobs_of_100us");
    bench_cpu_of_long_job(&b);
    bench_short_beside(&b, 1000, "short_alone");
    bench_short_beside(&b, LONG_NS, "short_beside_long");
    bench_copy(&b);
    (void)cudaStreamDestroy(stream);
    return ren_runtime_shutdown(rt, 20 * SECOND) == REN_OK ? 0 : 1;
}
