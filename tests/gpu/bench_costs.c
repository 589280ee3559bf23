/* SPDX-License-Identifier: MIT */
/* tests/gpu/bench_costs.c - what the planner's cost model wants to know of a CUDA device.
 *
 * Question  How far apart do kernels of one stream start; what does it cost to go from one stream
 *           to another and back, by events and inside a graph; what does the host pay for each?
 * Method    Three patterns of kernels, each of a known time, issued stream by stream with events
 *           and captured into a graph. Device time from before the first to behind the last kernel,
 *           over the repeats of the pattern; the streams are held while the commands are enqueued.
 *             chain    one kernel behind the other on one stream
 *             diamond  a kernel, then one on each of w streams, then all joined by the next
 *             ladder   a chain; beside each of its kernels one on another stream, joined at the end
 *           What is over the kernels' own time is the cost: of a launch for the chain, of a launch,
 *           a fork and a join for a diamond of two kernels in a row, of a launch for the ladder.
 * Rows      bench "cost": <queued|graph>/<pattern>/<kernel us>, metric repeat_us; the host's part
 *           of a launch, record, wait and graph launch, metric host_ns.
 * Needs     a GPU; without one it prints the reason and exits 77.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../bench/bench.h"
#include "spin.h"

#define STREAMS 4u
#define REPEATS 60u      /* of a pattern */
#define HOLD_NS 4000000u /* longer than enqueueing takes */
#define RUNS    9u
#define HOST    200u /* commands for the host's figures: fewer than a queue holds */

static cudaStream_t streams[STREAMS];
static cudaEvent_t fork_event, join_event[STREAMS], begin_event, end_event;

static void check(int code, const char *what)
{
    if (code) {
        (void)fprintf(stderr, "%s: error %d\n", what, code);
        exit(1);
    }
}

static void record(cudaEvent_t event, uint32_t s)
{
    check((int)cudaEventRecord(event, streams[s]), "record");
}

static void wait_for(uint32_t s, cudaEvent_t event)
{
    check((int)cudaStreamWaitEvent(streams[s], event, cudaEventWaitDefault), "wait");
}

static void kernel(uint32_t s, uint32_t ns)
{
    check(ns ? spin_for(streams[s], ns) : spin_empty(streams[s]), "launch");
}

/* ------------------------------------------------------------------ patterns */

typedef struct pattern {
    const char *name;
    void (*issue)(const struct pattern *p, uint32_t ns);
    uint32_t width;
} pattern;

static void issue_chain(const pattern *p, uint32_t ns)
{
    (void)p;
    for (uint32_t i = 0; i < REPEATS; i++) {
        kernel(0, ns);
    }
}

static void issue_diamonds(const pattern *p, uint32_t ns)
{
    for (uint32_t i = 0; i < REPEATS; i++) {
        kernel(0, ns);
        record(fork_event, 0);
        kernel(0, ns);
        for (uint32_t s = 1; s < p->width; s++) {
            wait_for(s, fork_event);
            kernel(s, ns);
            record(join_event[s], s);
        }
        for (uint32_t s = 1; s < p->width; s++) {
            wait_for(0, join_event[s]);
        }
    }
}

static void issue_ladder(const pattern *p, uint32_t ns)
{
    for (uint32_t i = 0; i < REPEATS; i++) {
        kernel(0, ns);
        record(fork_event, 0);
        for (uint32_t s = 1; s < p->width; s++) {
            wait_for(s, fork_event);
            kernel(s, ns);
        }
    }
    for (uint32_t s = 1; s < p->width; s++) {
        record(join_event[s], s);
        wait_for(0, join_event[s]);
    }
}

static const pattern patterns[] = {
    {"chain", issue_chain, 1},        {"diamond-2", issue_diamonds, 2},
    {"diamond-3", issue_diamonds, 3}, {"diamond-4", issue_diamonds, 4},
    {"ladder-2", issue_ladder, 2},    {"ladder-3", issue_ladder, 3},
};

/* ------------------------------------------------------------------ device time */

static double elapsed_us(void)
{
    float ms = 0.0f;
    check((int)cudaEventSynchronize(end_event), "synchronise");
    check((int)cudaEventElapsedTime(&ms, begin_event, end_event), "elapsed");
    return (double)ms * 1e3;
}

static double run_queued(const pattern *p, uint32_t ns)
{
    check(spin_for(streams[0], HOLD_NS), "hold");
    record(begin_event, 0);
    record(fork_event, 0);
    for (uint32_t s = 1; s < STREAMS; s++) {
        wait_for(s, fork_event);
    }
    p->issue(p, ns);
    record(end_event, 0);
    return elapsed_us() / REPEATS;
}

static double run_graph(cudaGraphExec_t graph)
{
    check(spin_for(streams[0], HOLD_NS / 10u), "hold");
    record(begin_event, 0);
    for (uint32_t i = 0; i < 4; i++) {
        check((int)cudaGraphLaunch(graph, streams[0]), "graph launch");
    }
    record(end_event, 0);
    return elapsed_us() / (4 * REPEATS);
}

static cudaGraphExec_t capture(const pattern *p, uint32_t ns)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    check((int)cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeRelaxed), "begin");
    p->issue(p, ns);
    check((int)cudaStreamEndCapture(streams[0], &graph), "end");
    check((int)cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    check((int)cudaGraphDestroy(graph), "destroy");
    return executable;
}

static void keep(const bench *b, const char *way, const char *name, uint32_t ns, const char *metric,
                 const char *unit, double value)
{
    char text[96];
    (void)snprintf(text, sizeof text, "%s/%s/%u", way, name, (unsigned)(ns / 1000u));
    bench_print(text, metric, unit, value);
    bench_row(b, text, metric, unit, value);
}

static double host_ns_of(cudaGraphExec_t graph)
{
    uint64_t start = bench_now_ns();
    check((int)cudaGraphLaunch(graph, streams[0]), "graph launch");
    double ns = (double)(bench_now_ns() - start);
    check((int)cudaStreamSynchronize(streams[0]), "synchronise");
    return ns;
}

static void bench_pattern(const bench *b, const pattern *p, uint32_t ns)
{
    double queued[RUNS], graphs[RUNS], host[RUNS];
    cudaGraphExec_t graph = capture(p, ns);
    for (uint32_t r = 0; r < RUNS; r++) {
        queued[r] = run_queued(p, ns);
        graphs[r] = run_graph(graph);
        host[r] = host_ns_of(graph);
    }
    check((int)cudaGraphExecDestroy(graph), "destroy");
    keep(b, "queued", p->name, ns, "repeat_us", "us", bench_median(queued, RUNS));
    keep(b, "graph", p->name, ns, "repeat_us", "us", bench_median(graphs, RUNS));
    keep(b, "graph", p->name, ns, "host_ns", "ns", bench_median(host, RUNS));
}

/* ------------------------------------------------------------------ host time */

typedef enum command {
    LAUNCH,
    RECORD,
    WAIT,
    COMMANDS
} command;

static void bench_host(const bench *b)
{
    static const char *const names[COMMANDS] = {"launch", "record", "wait"};
    for (uint32_t c = 0; c < COMMANDS; c++) {
        double ns[RUNS];
        for (uint32_t r = 0; r < RUNS; r++) {
            check(spin_for(streams[0], HOLD_NS), "hold");
            uint64_t start = bench_now_ns();
            for (uint32_t i = 0; i < HOST; i++) {
                if (c == LAUNCH) {
                    kernel(0, 0);
                } else if (c == RECORD) {
                    record(join_event[i % STREAMS], 0);
                } else {
                    wait_for(1, join_event[i % STREAMS]);
                }
            }
            ns[r] = (double)(bench_now_ns() - start) / HOST;
            check((int)cudaDeviceSynchronize(), "synchronise");
        }
        keep(b, "host", names[c], 0, "host_ns", "ns", bench_median(ns, RUNS));
    }
}

static void open_device(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        puts("bench_costs: skipped: no CUDA device");
        exit(77);
    }
    check((int)cudaSetDevice(0), "device");
    check((int)cudaFree(NULL), "context");
    check(spin_load(), "kernels");
    for (uint32_t s = 0; s < STREAMS; s++) {
        check((int)cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking), "stream");
        check((int)cudaEventCreateWithFlags(&join_event[s], cudaEventDisableTiming), "event");
    }
    check((int)cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming), "event");
    check((int)cudaEventCreate(&begin_event), "event");
    check((int)cudaEventCreate(&end_event), "event");
}

int main(int argc, char **argv)
{
    static const uint32_t times_ns[] = {0, 3000, 10000};
    bench b;
    bench_init(&b, argc, argv, "cost", NULL, 0);
    open_device();
    bench_host(&b);
    for (size_t t = 0; t < sizeof times_ns / sizeof times_ns[0]; t++) {
        for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++) {
            bench_pattern(&b, &patterns[p], times_ns[t]);
        }
    }
    return 0;
}
