/* SPDX-License-Identifier: MIT */
/* tests/bench/plan_bench.c - what a plan costs the host once, and what each use of it costs.
 *
 * Question  How long does planning a training step take (task graph, streams, events, memory, the
 *           device's operations), and how long does the host take to submit a step of a plan that
 *           is there, task by task and as a graph?
 * Method    The program drives the submitter itself, so a tick of one posted step is all that the
 *           host does for it: copies of inputs, tasks and events or one graph, the result's copy.
 *           Each step is done before the next is posted. Plans are made for batch sizes that were
 *           not seen yet, with everything that libraries set up once already there. Medians.
 * Flags     --device, --cases, --model, --precision, --batch, --module: as step_bench; and those
 *           of bench.h.
 * Rows      bench "plan": plan_us, capture_us (of both graphs, beside launching them), queued_us,
 *           graph_us; queued_ratio and graph_ratio: how many times dearer it is to make what the
 *           path uses, the plan, on the graph path with its graphs.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libren/train/trainer_state.h"
#include "bench.h"
#include "cases.h"

enum {
    PLANS = 5,  /* fewer than a trainer keeps */
    STEPS = 60, /* measured, of each path */
    WARM = 8    /* captures are behind these */
};

static struct {
    ren_device_kind device;
    bench_choice choice;
    const char *module_path;
} opt;

static void must(ren_status status, const char *what, const ren_error *err)
{
    if (status != REN_OK) {
        (void)fprintf(stderr, "plan_bench: %s: %s %s\n", what, ren_status_name(status),
                      err ? err->text : "");
        exit(1);
    }
}

static const bench_flag flags[] = {
    {"--device", "cpu|cuda", .device = &opt.device},
    {"--cases", "NAMES", .text = &opt.choice.cases},
    {"--model", "NAMES", .text = &opt.choice.models},
    {"--precision", "NAMES", .text = &opt.choice.precisions},
    {"--module", "FILE", .text = &opt.module_path},
    {"--batch", "N", .number = &opt.choice.batch, .least = 1, .most = 1 << 20},
};

/* ------------------------------------------------------------------ one trainer */

typedef struct training {
    const bench_model *model;
    ren_runtime *rt;
    ren_model *m;
    ren_trainer *t;
    void *data[BENCH_MODEL_INPUTS];
    uint32_t batch;
    uint32_t done;
} training;

static bool open_training(training *x, const bench_model_case *of, uint32_t graphs)
{
    const bench_model *model = of->model;
    ren_model_config mc = ren_model_config_default();
    ren_runtime_config config = ren_runtime_config_default();
    ren_trainer_config how = ren_trainer_config_default();
    ren_error err;
    memset(&err, 0, sizeof err);
    memset(x, 0, sizeof *x);
    x->model = model;
    x->batch = of->batch;
    mc.allow_tf32 = of->precision == BENCH_TF32;
    config.device = opt.device;
    config.module_path = opt.module_path;
    config.host_drives_submitter = 1;
    config.disable_graphs = !graphs;
    config.seed = 1;
    ren_status status = ren_runtime_create(&config, &x->rt, &err);
    if (bench_is_no_gpu(status)) {
        printf("plan_bench: skipped: %s\n", err.text);
        return false;
    }
    must(status, "runtime", &err);
    must(ren_model_create(x->rt, &mc, &x->m, &err), "model", &err);
    ren_tensor loss = model->build(x->m, model, x->batch);
    how.learning_rate = model->learning_rate;
    how.momentum = 0.9f;
    how.precision = bench_precision_of(of->precision);
    must(ren_trainer_create(x->m, loss, &how, &x->t, &err), "trainer", &err);
    for (uint32_t i = 0; i < model->input_count; i++) {
        x->data[i] = malloc(bench_model_bytes(&model->inputs[i], x->batch));
        must(x->data[i] ? REN_OK : REN_ERR_NO_MEMORY, "data", NULL);
        bench_model_fill(model, i, x->batch, 0, x->data[i]);
    }
    return true;
}

static void close_training(training *x)
{
    ren_trainer_destroy(x->t);
    ren_model_destroy(x->m);
    if (x->rt) {
        must(ren_runtime_shutdown(x->rt, REN_TIMEOUT_INFINITE), "shutdown", NULL);
    }
    for (uint32_t i = 0; i < BENCH_MODEL_INPUTS; i++) {
        free(x->data[i]);
    }
}

static void step_done(const ren_completion *c, void *user)
{
    must(c->status, "a step", NULL);
    ((training *)user)->done++;
}

/* The time of a round of the submitter, if it issued something. */
static uint64_t tick(training *x, uint32_t *out_issued)
{
    uint64_t start = bench_now_ns();
    must(ren_runtime_tick(x->rt, 0, out_issued), "tick", NULL);
    return *out_issued ? bench_now_ns() - start : 0;
}

/* The host's time to submit one step. */
static double step(training *x)
{
    ren_step_desc desc = ren_step_desc_default();
    ren_binding bindings[BENCH_MODEL_INPUTS];
    uint32_t before = x->done;
    for (uint32_t i = 0; i < x->model->input_count; i++) {
        const bench_model_input *input = &x->model->inputs[i];
        void *slot;
        size_t bytes;
        while (ren_input_acquire(x->t, input->name, &slot, &bytes) == REN_ERR_BUSY) {
            (void)sched_yield();
        }
        memcpy(slot, x->data[i], bytes);
        bindings[desc.binding_count++] = (ren_binding){input->name, NULL, 0};
    }
    desc.bindings = bindings;
    desc.done = step_done;
    desc.user = x;
    must(ren_trainer_step(x->t, &desc, NULL), "post", NULL);
    uint32_t issued;
    uint64_t ns = 0;
    while (x->done == before) {
        ns += tick(x, &issued);
        must(ren_pump(x->rt, 0, 0, 0, NULL), "pump", NULL);
        (void)sched_yield();
    }
    return (double)ns;
}

/* ------------------------------------------------------------------ one model */

static double plan_us(training *x)
{
    double ns[PLANS];
    for (uint32_t i = 0; i < PLANS; i++) {
        ren__step_plan *plan;
        ren_error err;
        uint64_t start = bench_now_ns();
        must(ren__trainer_plan(x->t, x->batch - 1u - i, &plan, &err), "plan", &err);
        ns[i] = (double)(bench_now_ns() - start);
    }
    return bench_median(ns, PLANS) / 1e3;
}

static uint64_t captures(training *x)
{
    ren_stats stats = ren_stats_default();
    must(ren_runtime_stats(x->rt, &stats), "stats", NULL);
    return stats.graph_captures;
}

/* Of one step; *out_capture_us of the captures behind the first steps. */
static double submit_us(training *x, double *out_capture_us)
{
    double ns[STEPS];
    double captured_ns = 0.0;
    uint64_t before = captures(x);
    for (uint32_t i = 0; i < WARM; i++) {
        uint64_t made = captures(x);
        double took = step(x);
        captured_ns += captures(x) != made ? took : 0.0;
    }
    uint64_t count = captures(x) - before;
    for (uint32_t i = 0; i < STEPS; i++) {
        ns[i] = step(x);
    }
    double submit_ns = bench_median(ns, STEPS);
    *out_capture_us = (captured_ns - (double)count * submit_ns) / 1e3;
    return submit_ns / 1e3;
}

static void keep(const bench *b, const bench_model_case *of, const char *metric, const char *unit,
                 double value)
{
    char name[96];
    bench_model_case_name(of, name, sizeof name);
    bench_print(name, metric, unit, value);
    bench_row(b, name, metric, unit, value);
}

static bool run_case(const bench *b, const bench_model_case *of)
{
    training queued, graph;
    if (!open_training(&queued, of, 0) || !open_training(&graph, of, 1)) {
        return false;
    }
    double plan = plan_us(&queued);
    double none, capture;
    double task_by_task = submit_us(&queued, &none);
    double replayed = submit_us(&graph, &capture);
    keep(b, of, "plan_us", "us", plan);
    keep(b, of, "capture_us", "us", capture);
    keep(b, of, "queued_us", "us", task_by_task);
    keep(b, of, "graph_us", "us", replayed);
    keep(b, of, "queued_ratio", "times", plan / task_by_task);
    keep(b, of, "graph_ratio", "times", (plan + capture) / replayed);
    close_training(&graph);
    close_training(&queued);
    return true;
}

int main(int argc, char **argv)
{
    bench_model_case cases[BENCH_MOST_CASES];
    bench b;
    bench_init(&b, argc, argv, "plan", flags, sizeof flags / sizeof flags[0]);
    uint32_t count = bench_choose(&opt.choice, opt.device, cases);
    for (uint32_t i = 0; i < count; i++) {
        if (!run_case(&b, &cases[i])) {
            return 77;
        }
    }
    return 0;
}
