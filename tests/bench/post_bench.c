/* SPDX-License-Identifier: MIT */
/* tests/bench/post_bench.c - what a post, a job and an idle frame cost.
 *
 * Question  How long does a host thread spend in ren_post; how many nanoseconds does a job take
 *           from its post to its completion when many are under way; what does a frame pay for a
 *           pump that finds nothing, and for a buffer taken and given back?
 * Method    post  Each producer times runs of 16 posts and divides; the median and the p99 of all
 *                 runs are kept. Descriptor copy, slot and doorbell are inside. "asleep" times
 *                 single posts to a sleeping submitter: the wake is inside.
 *           job   Bursts of 65,536 jobs per producer, whose threads wait at a gate; from the
 *                 opening of the gate to the completion of the last job; wall time over jobs. A
 *                 road holds 4,096 jobs, so a producer that is ahead yields. "none": nobody is told
 *                 but by ren_runtime_drain; "pump": each job has a callback, and another thread
 *                 pumps.
 *           The jobs are barriers: queue, submission and completion, with no device work between.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../host_api/ren.h"
#include "bench.h"

enum {
    RUN = 16,
    BURST = 65536,
    MAX_PRODUCERS = 4
};

typedef enum mode {
    POST_MEDIAN,
    POST_P99,
    JOB_NONE,
    JOB_PUMP
} mode;

typedef struct setup {
    mode mode;
    bool shared; /* ren_post instead of a producer's own ring */
} setup;

typedef struct poster {
    pthread_barrier_t *gate; /* NULL: start at once */
    const setup *setup;
    ren_runtime *rt;
    size_t jobs;
    double *samples; /* ns per post, one per run */
    size_t sample_count;
} poster;

static void count(const ren_completion *completion, void *user)
{
    (void)completion;
    ++*(size_t *)user;
}

static size_t delivered;

static ren_runtime *make_runtime(void)
{
    ren_runtime_config config = ren_runtime_config_default();
    ren_runtime *rt = NULL;
    ren_error err;
    config.device = REN_DEVICE_CPU;
    if (ren_runtime_create(&config, &rt, &err) != REN_OK) {
        (void)fprintf(stderr, "post_bench: %s\n", err.text);
        exit(1);
    }
    return rt;
}

static void post_one(const poster *p, ren_producer *producer, const ren_job_desc *desc)
{
    while ((producer ? ren_producer_post(producer, desc, NULL) : ren_post(p->rt, desc, NULL)) ==
           REN_ERR_QUEUE_FULL) {
        (void)sched_yield();
    }
}

static void *poster_main(void *arg)
{
    poster *p = arg;
    ren_producer *producer = NULL;
    ren_job_desc desc = ren_job_desc_default();
    desc.kind = REN_JOB_BARRIER;
    desc.deliver = REN_DELIVER_NONE;
    if (p->setup->mode == JOB_PUMP) {
        desc.deliver = REN_DELIVER_PUMP;
        desc.done = count;
        desc.user = &delivered;
    }
    if (!p->setup->shared && ren_producer_register(p->rt, &producer) != REN_OK) {
        return NULL;
    }
    if (p->gate) {
        (void)pthread_barrier_wait(p->gate);
    }
    for (size_t i = 0; i < p->jobs; i += RUN) {
        uint64_t start = p->samples ? bench_now_ns() : 0;
        for (size_t k = 0; k < RUN; k++) {
            post_one(p, producer, &desc);
        }
        if (p->samples) {
            p->samples[p->sample_count++] = (double)(bench_now_ns() - start) / RUN;
            if (i % (RUN * 64) == 0) {
                (void)ren_runtime_drain(p->rt, REN_TIMEOUT_INFINITE); /* never FULL */
            }
        }
    }
    (void)ren_producer_release(producer);
    return NULL;
}

static void start_posters(poster *posters, pthread_t *threads, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (pthread_create(&threads[i], NULL, poster_main, &posters[i]) != 0) {
            exit(1);
        }
    }
}

static void join_posters(pthread_t *threads, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

static double time_posts(const bench_case *c, const bench *b)
{
    const setup *s = c->arg;
    size_t jobs = b->quick ? 16384 : 262144;
    size_t total = 0;
    double value;
    double *all = malloc(jobs / RUN * c->number * sizeof *all);
    poster posters[MAX_PRODUCERS];
    pthread_t threads[MAX_PRODUCERS];
    ren_runtime *rt = make_runtime();
    for (unsigned i = 0; i < c->number; i++) {
        posters[i] = (poster){NULL, s, rt, jobs, malloc(jobs / RUN * sizeof(double)), 0};
    }
    start_posters(posters, threads, c->number);
    join_posters(threads, c->number);
    for (unsigned i = 0; i < c->number; i++) {
        memcpy(all + total, posters[i].samples, posters[i].sample_count * sizeof *all);
        total += posters[i].sample_count;
        free(posters[i].samples);
    }
    value = s->mode == POST_MEDIAN ? bench_median(all, total) : bench_percentile(all, total, 0.99);
    free(all);
    (void)ren_runtime_shutdown(rt, REN_TIMEOUT_INFINITE);
    return value;
}

static double time_jobs(const bench_case *c, const bench *b)
{
    const setup *s = c->arg;
    unsigned bursts = b->quick ? 1 : 8;
    uint64_t spent = 0;
    ren_runtime *rt = make_runtime();
    for (unsigned burst = 0; burst < bursts; burst++) {
        poster posters[MAX_PRODUCERS];
        pthread_t threads[MAX_PRODUCERS];
        pthread_barrier_t gate;
        uint64_t start;
        (void)pthread_barrier_init(&gate, NULL, c->number + 1);
        for (unsigned i = 0; i < c->number; i++) {
            posters[i] = (poster){&gate, s, rt, BURST, NULL, 0};
        }
        delivered = 0;
        start_posters(posters, threads, c->number);
        (void)pthread_barrier_wait(&gate);
        start = bench_now_ns();
        while (s->mode == JOB_PUMP && delivered < (size_t)BURST * c->number) {
            (void)ren_wait_any(rt, REN_TIMEOUT_INFINITE);
            (void)ren_pump(rt, 0, 0, 0, NULL);
        }
        join_posters(threads, c->number);
        (void)ren_runtime_drain(rt, REN_TIMEOUT_INFINITE);
        spent += bench_now_ns() - start;
        (void)pthread_barrier_destroy(&gate);
    }
    (void)ren_runtime_shutdown(rt, REN_TIMEOUT_INFINITE);
    return (double)spent / ((double)bursts * BURST * c->number);
}

static double time_post_to_sleeper(const bench_case *c, const bench *b)
{
    size_t posts = b->quick ? 50 : 1000;
    double *samples = malloc(posts * sizeof *samples);
    ren_producer *producer = NULL;
    ren_job_desc desc = ren_job_desc_default();
    ren_runtime *rt = make_runtime();
    double value;
    desc.kind = REN_JOB_BARRIER;
    desc.deliver = REN_DELIVER_NONE;
    (void)ren_producer_register(rt, &producer);
    for (size_t i = 0; i < posts; i++) {
        struct timespec pause = {0, 300000};
        uint64_t start;
        (void)nanosleep(&pause, NULL);
        start = bench_now_ns();
        (void)ren_producer_post(producer, &desc, NULL);
        samples[i] = (double)(bench_now_ns() - start);
    }
    value = c->number ? bench_percentile(samples, posts, 0.99) : bench_median(samples, posts);
    free(samples);
    (void)ren_producer_release(producer);
    (void)ren_runtime_shutdown(rt, REN_TIMEOUT_INFINITE);
    return value;
}

static double time_idle_pump(const bench_case *c, const bench *b)
{
    unsigned n = b->quick ? 10000 : 1000000;
    ren_runtime *rt = make_runtime();
    uint64_t start = bench_now_ns();
    for (unsigned i = 0; i < n; i++) {
        (void)ren_pump(rt, 0, 0, c->number, NULL);
    }
    start = bench_now_ns() - start;
    (void)ren_runtime_shutdown(rt, REN_TIMEOUT_INFINITE);
    return (double)start / n;
}

static double time_buffer(const bench_case *c, const bench *b)
{
    unsigned n = b->quick ? 10000 : 1000000;
    ren_runtime *rt = make_runtime();
    uint64_t start;
    ren_buffer buffer;
    (void)c;
    (void)ren_memory_reserve(rt, 1 << 20);
    start = bench_now_ns();
    for (unsigned i = 0; i < n; i++) {
        (void)ren_buffer_alloc(rt, REN_STREAM_COMP_1, 4096, &buffer);
        (void)ren_buffer_free(rt, buffer);
    }
    start = bench_now_ns() - start;
    (void)ren_runtime_shutdown(rt, REN_TIMEOUT_INFINITE);
    return (double)start / n;
}

int main(int argc, char **argv)
{
    static const setup own_median = {POST_MEDIAN, false};
    static const setup own_p99 = {POST_P99, false};
    static const setup shared_median = {POST_MEDIAN, true};
    static const setup shared_p99 = {POST_P99, true};
    static const setup own_none = {JOB_NONE, false};
    static const setup own_pump = {JOB_PUMP, false};
    static const setup shared_none = {JOB_NONE, true};
    static const bench_case cases[] = {
        {"post/spsc/1", "post_median", "ns", time_posts, &own_median, 1},
        {"post/spsc/1", "post_p99", "ns", time_posts, &own_p99, 1},
        {"post/spsc/2", "post_median", "ns", time_posts, &own_median, 2},
        {"post/spsc/2", "post_p99", "ns", time_posts, &own_p99, 2},
        {"post/spsc/4", "post_median", "ns", time_posts, &own_median, 4},
        {"post/spsc/4", "post_p99", "ns", time_posts, &own_p99, 4},
        {"post/mpsc/1", "post_median", "ns", time_posts, &shared_median, 1},
        {"post/mpsc/1", "post_p99", "ns", time_posts, &shared_p99, 1},
        {"post/mpsc/2", "post_median", "ns", time_posts, &shared_median, 2},
        {"post/mpsc/2", "post_p99", "ns", time_posts, &shared_p99, 2},
        {"post/mpsc/4", "post_median", "ns", time_posts, &shared_median, 4},
        {"post/mpsc/4", "post_p99", "ns", time_posts, &shared_p99, 4},
        {"post/asleep", "post_median", "ns", time_post_to_sleeper, NULL, 0},
        {"post/asleep", "post_p99", "ns", time_post_to_sleeper, NULL, 1},
        {"job/spsc/1/none", "end_to_end", "ns/job", time_jobs, &own_none, 1},
        {"job/spsc/2/none", "end_to_end", "ns/job", time_jobs, &own_none, 2},
        {"job/spsc/4/none", "end_to_end", "ns/job", time_jobs, &own_none, 4},
        {"job/spsc/1/pump", "end_to_end", "ns/job", time_jobs, &own_pump, 1},
        {"job/spsc/2/pump", "end_to_end", "ns/job", time_jobs, &own_pump, 2},
        {"job/mpsc/1/none", "end_to_end", "ns/job", time_jobs, &shared_none, 1},
        {"job/mpsc/2/none", "end_to_end", "ns/job", time_jobs, &shared_none, 2},
        {"job/mpsc/4/none", "end_to_end", "ns/job", time_jobs, &shared_none, 4},
        {"pump/idle", "pump", "ns", time_idle_pump, NULL, 0},
        {"pump/idle/budget", "pump", "ns", time_idle_pump, NULL, 500000},
        {"buffer/alloc-free", "alloc_free", "ns", time_buffer, NULL, 0},
    };
    bench b;
    bench_init(&b, argc, argv, "post", NULL, 0);
    bench_run(&b, cases, sizeof cases / sizeof cases[0]);
    return 0;
}
