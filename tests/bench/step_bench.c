/* SPDX-License-Identifier: MIT */
/* tests/bench/step_bench.c - what a training step costs, path by path.
 *
 * Question  How long is a step of each standard model when the host waits after each task (sync),
 *           on one stream (async), planned over the streams (planned), and replayed as a graph of
 *           one stream (graph1) or of several (graph)?
 * Method    All paths of one model are open at the same time and take turns, a run of steps each,
 *           as often as --repeats says; the medians of the runs are kept. Two steps are under way
 *           at a time. The input slots hold their batches before the time begins; their copies to
 *           the device are inside. A run takes about a third of a second; big models get fewer
 *           steps and fewer repeats.
 * Check     Every path must train, and train alike: the losses of the first steps agree within a
 *           tolerance, the last is finite and below the first. Otherwise the program fails.
 * Flags     --device cpu|cuda   default cpu
 *           --cases NAMES       "<model>/<batch>/<precision>", separated by commas; default the
 *                               device's standard list, which --list 1 prints
 *           --model NAMES, --batch N, --precision NAMES   in place of --cases: all pairs of models
 *                               and precisions (f32, tf32, f16, bf16); see cases.h
 *           --path NAMES        sync, async, planned, graph1, graph, graphseg (as graph, with a
 *                               graph for each segment of the plan); default all but graphseg
 *           --steps N           of a run; default by time
 *           --streams N         of planned, graph and graphseg, which are then called planned-N and
 *                               so on
 *           --static 1          the same by the table of streams (REN_POLICY_STATIC); they are then
 *                               called planned-static and so on
 *           --cpu-threads N     of a large operation on the CPU device; default libren's
 *           --module FILE       libren_cuda.so
 *           --autotune 1        the CUDA device times what its libraries offer
 *           --fill 1            every step copies a batch into its slots, inside the time
 *           --trace FILE        keep the trace of the last case
 *           --train N           no times: train each case by the graph path for N steps and tell
 *                               the mean loss of every ten (rows of bench "train": <case>/<step>)
 *           --quiet SECONDS     for as long, per model, repeat runs during which other processes
 *                               used more than a tenth of a processor
 *           and those of bench.h. sync, async and planned are printed as a ratio, too.
 * Metrics   step_ms, events_per_step (recorded), nodes (tasks of the plan); and, from up to 50
 *           traced steps behind the others: bubble_share (see step_session.h), traced_ms (a
 *           step's wall time), latency_ms (from post to completion, two steps under way), issue_us
 *           (the submitter's share), waits_per_step (of one stream for another's event).
 *           Printed only: processor time and context switches of all threads, per step; and the
 *           processors that other processes kept busy.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "step_session.h"

#define RUN_NS     3e8 /* aimed at, of one run */
#define CASE_NS    3e9 /* aimed at, of all runs of one path */
#define SLOW_NS    4e8 /* a step this long is warm after two */
#define MOST_STEPS 2000
#define TELL_STEPS 10  /* --train tells the loss of so many */
#define REPEATS    64u /* most */
#define DISTURBED  0.1 /* processors that others use in a run that does not count */

static const char *const path_names[STEP_PATHS] = {"sync",   "async", "planned",
                                                   "graph1", "graph", "graphseg"};
#define USUAL "sync,async,planned,graph1,graph" /* in the rows that are kept */

typedef struct options {
    ren_device_kind device;
    bench_choice choice;
    const char *paths; /* comma-separated */
    const char *module_path;
    const char *trace;
    uint32_t steps, streams, cpu_threads, quiet_s, autotune, fill, by_table, list, train;
} options;

typedef struct path_case {
    char name[96];
    step_session *session;
    uint32_t steps, repeats;
    step_figures runs[REPEATS];
    uint32_t run_count;
} path_case;

/* ------------------------------------------------------------------ flags */

static options opt = {.device = REN_DEVICE_CPU, .paths = USUAL};

static const bench_flag flags[] = {
    {"--device", "cpu|cuda", .device = &opt.device},
    {"--cases", "NAMES", .text = &opt.choice.cases},
    {"--model", "NAMES", .text = &opt.choice.models},
    {"--precision", "NAMES", .text = &opt.choice.precisions},
    {"--path", "NAMES", .text = &opt.paths},
    {"--module", "FILE", .text = &opt.module_path},
    {"--trace", "FILE", .text = &opt.trace},
    {"--batch", "N", .number = &opt.choice.batch, .least = 0, .most = 1 << 20},
    {"--steps", "N", .number = &opt.steps, .least = 0, .most = 1000000},
    {"--streams", "N", .number = &opt.streams, .least = 0, .most = REN_STREAM_COUNT},
    {"--cpu-threads", "N", .number = &opt.cpu_threads, .least = 0, .most = 1024},
    {"--quiet", "N", .number = &opt.quiet_s, .least = 0, .most = 86400},
    {"--autotune", "N", .number = &opt.autotune, .least = 0, .most = 1},
    {"--fill", "N", .number = &opt.fill, .least = 0, .most = 1},
    {"--static", "N", .number = &opt.by_table, .least = 0, .most = 1},
    {"--list", "N", .number = &opt.list, .least = 0, .most = 1},
    {"--train", "N", .number = &opt.train, .least = 0, .most = 1000000},
};

/* ------------------------------------------------------------------ check */

/* Ends the program unless all paths trained, and alike. */
static void check_training(const path_case *cases, uint32_t count, bench_precision precision)
{
    const double tolerance = precision == BENCH_F32 ? 1e-3 : 5e-2;
    const path_case *model = NULL; /* the path that the others are compared with */
    for (uint32_t i = 0; i < count; i++) {
        const path_case *c = &cases[i];
        if (!c->session) {
            continue;
        }
        const float *first, *wanted;
        uint32_t n = step_session_losses(c->session, &first);
        model = model ? model : c;
        uint32_t m = step_session_losses(model->session, &wanted);
        for (uint32_t k = 0; k < n && k < m && k < 8; k++) {
            if (!(fabs((double)(first[k] - wanted[k])) <= tolerance * (double)wanted[k])) {
                (void)fprintf(stderr, "%s: the loss of step %u is %g, that of %s is %g\n", c->name,
                              (unsigned)(k + 1), (double)first[k], model->name, (double)wanted[k]);
                exit(1);
            }
        }
        float last = step_session_last_loss(c->session);
        if (!isfinite(last) || (step_session_steps(c->session) > 30 && last >= first[0])) {
            (void)fprintf(stderr, "%s: does not train: the loss went from %g to %g\n", c->name,
                          (double)first[0], (double)last);
            exit(1);
        }
    }
}

/* ------------------------------------------------------------------ one model */

static void open_case(path_case *c, const bench *b, const step_config *config)
{
    char why[256];
    c->session = NULL;
    c->run_count = 0;
    const char *path = path_names[config->path];
    bool many = config->path == STEP_PLANNED || config->path >= STEP_GRAPH;
    char streams[16] = "";
    if (many && opt.streams) {
        (void)snprintf(streams, sizeof streams, "-%u", (unsigned)opt.streams);
    }
    const char *policy = many && opt.by_table ? "-static" : "";
    char model[64];
    bench_model_case_name(&config->of, model, sizeof model);
    (void)snprintf(c->name, sizeof c->name, "%s/%s%s%s", model, path, streams, policy);
    if (!bench_lists(opt.paths, path) || !bench_wants(b, c->name)) {
        return;
    }
    c->session = step_session_open(config, why, sizeof why);
    if (!c->session) {
        printf("%-36s %10s  %s\n", c->name, "n/a", why);
    }
}

/* Warm, find out how long a step takes, and how many to run how often. */
static void warm_up(path_case *c, const bench *b, bool graph)
{
    (void)step_session_run(c->session, 1);
    step_figures f = step_session_run(c->session, 1);
    if (f.step_ns < SLOW_NS || graph) {
        uint32_t more = f.step_ns < SLOW_NS ? 4 : 1;
        (void)step_session_run(c->session, 4 + more);
        f = step_session_run(c->session, more);
    }
    if (!f.on_path) {
        printf("%-36s %10s  its steps stay on the queued path\n", c->name, "n/a");
        step_session_close(c->session);
        c->session = NULL;
        return;
    }
    double steps = RUN_NS / (b->quick ? 10.0 : 1.0) / f.step_ns;
    c->steps = opt.steps ? opt.steps : (uint32_t)fmin(fmax(steps, 2.0), MOST_STEPS);
    double repeats = fmax(3.0, CASE_NS / (f.step_ns * c->steps));
    repeats = fmin(repeats, (double)(b->repeats < REPEATS ? b->repeats : REPEATS));
    c->repeats = (uint32_t)repeats;
}

static step_figures run_undisturbed(path_case *c, uint64_t until_ns)
{
    step_figures f = step_session_run(c->session, c->steps);
    while (f.others > DISTURBED && bench_now_ns() < until_ns) {
        f = step_session_run(c->session, c->steps);
    }
    return f;
}

static double median_of(const path_case *c, size_t offset, double *out_low, double *out_high)
{
    double values[REPEATS];
    for (uint32_t r = 0; r < c->run_count; r++) {
        memcpy(&values[r], (const char *)&c->runs[r] + offset, sizeof values[r]);
    }
    double median = bench_median(values, c->run_count);
    *out_low = values[0];
    *out_high = values[c->run_count - 1];
    return median;
}

static double report(const path_case *c, const bench *b)
{
    double low, high, ignored;
    double step = median_of(c, offsetof(step_figures, step_ns), &low, &high) / 1e6;
    double events = median_of(c, offsetof(step_figures, events), &ignored, &ignored);
    step_times times = step_session_trace(c->session, c->steps < 50 ? c->steps : 50,
                                          opt.trace ? opt.trace : "/dev/null");
    double bubble = times.bubble;
    double cpu = median_of(c, offsetof(step_figures, cpu_ns), &ignored, &ignored) / 1e6;
    double switches = median_of(c, offsetof(step_figures, switches), &ignored, &ignored);
    uint32_t nodes = step_session_nodes(c->session);
    printf("%-36s %10.4f %10.4f %10.4f %8.1f %8.3f %6u %9.4f %8.1f %6u\n", c->name, step, low / 1e6,
           high / 1e6, events, bubble, (unsigned)nodes, cpu, switches,
           (unsigned)(c->steps * c->run_count));
    bench_row(b, c->name, "step_ms", "ms", step);
    bench_row(b, c->name, "events_per_step", "events", events);
    bench_row(b, c->name, "bubble_share", "share", bubble);
    bench_row(b, c->name, "nodes", "tasks", nodes);
    bench_row(b, c->name, "traced_ms", "ms", times.step_ns / 1e6);
    bench_row(b, c->name, "latency_ms", "ms", times.latency_ns / 1e6);
    bench_row(b, c->name, "issue_us", "us", times.issue_ns / 1e3);
    bench_row(b, c->name, "waits_per_step", "waits", times.events);
    return step;
}

static step_config config_of(const bench_model_case *of, step_path path)
{
    step_config config = {.of = *of,
                          .path = path,
                          .device = opt.device,
                          .streams = opt.streams,
                          .cpu_threads = opt.cpu_threads,
                          .autotune = opt.autotune,
                          .fill = opt.fill,
                          .policy = opt.by_table ? REN_POLICY_STATIC : REN_POLICY_GREEDY,
                          .module_path = opt.module_path};
    return config;
}

static void run_model(const bench *b, const bench_model_case *of)
{
    static path_case cases[STEP_PATHS];
    double step[STEP_PATHS] = {0};
    uint32_t most = 0;
    for (uint32_t p = 0; p < STEP_PATHS; p++) {
        step_config config = config_of(of, (step_path)p);
        open_case(&cases[p], b, &config);
        if (cases[p].session) {
            warm_up(&cases[p], b, p >= STEP_GRAPH1);
        }
        if (cases[p].session) {
            most = cases[p].repeats > most ? cases[p].repeats : most;
        }
    }
    uint64_t until_ns = bench_now_ns() + opt.quiet_s * UINT64_C(1000000000);
    for (uint32_t r = 0; r < most; r++) {
        for (uint32_t p = 0; p < STEP_PATHS; p++) {
            path_case *c = &cases[p];
            if (c->session && r < c->repeats) {
                c->runs[c->run_count++] = run_undisturbed(c, until_ns);
            }
        }
    }
    check_training(cases, STEP_PATHS, of->precision);
    for (uint32_t p = 0; p < STEP_PATHS; p++) {
        if (cases[p].session) {
            step[p] = report(&cases[p], b);
        }
        step_session_close(cases[p].session);
    }
    if (step[STEP_ASYNC] > 0 && step[STEP_PLANNED] > 0) {
        printf("%-36s sync:async %.3f  async:planned %.3f\n", "",
               step[STEP_SYNC] / step[STEP_ASYNC], step[STEP_ASYNC] / step[STEP_PLANNED]);
    }
    (void)fflush(stdout);
}

/* ------------------------------------------------------------------ training */

/* The mean loss of every ten steps must be finite, and the last must be below the first. */
static void train(const bench *b, const bench_model_case *of)
{
    char why[256];
    char name[96];
    step_config config = config_of(of, STEP_GRAPH);
    step_session *s = step_session_open(&config, why, sizeof why);
    double first = 0, mean = 0;
    bench_model_case_name(of, name, sizeof name);
    if (!s) {
        printf("%-36s %10s  %s\n", name, "n/a", why);
        return;
    }
    for (uint32_t at = TELL_STEPS; at <= opt.train; at += TELL_STEPS) {
        char row[112];
        step_figures f = step_session_run(s, TELL_STEPS - 1); /* and the one that goes before */
        mean = step_session_mean_loss(s);
        first = at == TELL_STEPS ? mean : first;
        printf("%-36s step %5u  loss %9.5f  %9.4f ms a step, %s path\n", name, (unsigned)at, mean,
               f.step_ns / 1e6, f.on_path ? "graph" : "queued");
        (void)snprintf(row, sizeof row, "%s/%u", name, (unsigned)at);
        bench_row(b, row, "loss", "nats", mean);
    }
    if (!isfinite(mean) || mean >= first) {
        (void)fprintf(stderr, "%s: does not train: the loss went from %g to %g\n", name, first,
                      mean);
        exit(1);
    }
    step_session_close(s);
}

int main(int argc, char **argv)
{
    bench_model_case cases[BENCH_MOST_CASES];
    bench b;
    bench_init(&b, argc, argv, "step", flags, sizeof flags / sizeof flags[0]);
    uint32_t count = bench_choose(&opt.choice, opt.device, cases);
    if (opt.train) {
        b.name = "train";
    } else if (!opt.list) {
        printf("%-36s %10s %10s %10s %8s %8s %6s %9s %8s %6s %6s\n", "case", "step ms", "lowest",
               "highest", "events", "bubble", "nodes", "cpu ms", "switches", "others", "steps");
    }
    for (uint32_t i = 0; i < count; i++) {
        if (opt.list) {
            char name[96];
            bench_model_case_name(&cases[i], name, sizeof name);
            printf("%s%s", i ? "," : "", name);
        } else if (opt.train) {
            train(&b, &cases[i]);
        } else {
            run_model(&b, &cases[i]);
        }
    }
    if (opt.list) {
        puts("");
    }
    return 0;
}
