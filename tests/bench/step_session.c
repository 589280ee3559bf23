/* SPDX-License-Identifier: MIT */
/* tests/bench/step_session.c - a host that trains: acquire, fill, post, pump. See step_session.h.
 *
 * The host thread does what a host does: it takes staging slots, posts the step, and sleeps until a
 * completion waits for its pump once two steps are under way. All of that is inside the time of a
 * step, and so is the copy from the slots to the device. Two batches take turns, as the slots do,
 * so a slot holds the batch that is due once it was filled. Making a batch is the host's own affair
 * and outside the time, unless the configuration asks for it: then each step fills its slots.
 *
 * Bubbles and the other device times come from a trace of some more steps, behind those that are
 * timed: stamps take time themselves.
 */
#include "step_session.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../../libren/graph/plan.h"
#include "../../libren/train/trainer_state.h"
#include "bench.h"

enum {
    BATCHES = 2, /* of data, used in turn, as many as slots */
    IN_FLIGHT = 2,
    FIRST_LOSSES = 32
};

struct step_session {
    step_config config;
    ren_runtime *rt;
    ren_model *model;
    ren_trainer *trainer;
    void *data[BATCHES][BENCH_MODEL_INPUTS];
    const void *slots[BATCHES][BENCH_MODEL_INPUTS]; /* which hold them; NULL = none does */
    uint32_t nodes;
    uint64_t posted;
    uint32_t in_flight;
    float first[FIRST_LOSSES];
    uint64_t done;
    float last;
    double sum; /* of the losses of `summed` steps */
    uint32_t summed;
};

static void must(const step_session *s, ren_status status, const char *what)
{
    if (status != REN_OK) {
        (void)fprintf(stderr, "step_bench: %s: %s: %s\n", s->config.of.model->name, what,
                      ren_status_name(status));
        exit(1);
    }
}

/* ------------------------------------------------------------------ life */

static bool is_missing(ren_status status)
{
    return status == REN_ERR_UNSUPPORTED || bench_is_no_gpu(status) ||
           status == REN_ERR_NO_DEVICE_MEMORY;
}

static ren_status open_runtime(step_session *s, ren_error *err)
{
    const step_config *c = &s->config;
    ren_runtime_config config = ren_runtime_config_default();
    ren_cuda_options cuda = ren_cuda_options_default();
    bool one_stream = c->path == STEP_SYNC || c->path == STEP_ASYNC || c->path == STEP_GRAPH1;
    config.device = c->device;
    config.module_path = c->module_path;
    config.cpu_threads = c->cpu_threads;
    config.streams = one_stream ? 1 : c->streams;
    config.disable_graphs = c->path < STEP_GRAPH1;
    config.seed = 1;
    cuda.autotune = c->autotune;
    config.cuda = &cuda;
    return ren_runtime_create(&config, &s->rt, err);
}

static ren_status open_trainer(step_session *s, ren_error *err)
{
    const step_config *c = &s->config;
    ren_trainer_config config = ren_trainer_config_default();
    ren_model_config how = ren_model_config_default();
    how.allow_tf32 = c->of.precision == BENCH_TF32;
    ren_status status = ren_model_create(s->rt, &how, &s->model, err);
    if (status != REN_OK) {
        return status;
    }
    ren_tensor loss = c->of.model->build(s->model, c->of.model, c->of.batch);
    config.learning_rate = c->of.model->learning_rate;
    config.momentum = 0.9f;
    config.graph_segments = c->path == STEP_GRAPHSEG;
    config.precision = bench_precision_of(c->of.precision);
    config.stream_policy = c->policy;
    status = ren_trainer_create(s->model, loss, &config, &s->trainer, err);
    if (status == REN_OK) {
        ren__step_plan *plan;
        ren__plan_counts counts;
        ren__trainer_set_sync(s->trainer, c->path == STEP_SYNC);
        must(s, ren__trainer_plan(s->trainer, c->of.batch, &plan, err), "plan");
        for (uint32_t i = 0; i < REN__STEP_PHASES; i++) {
            if (plan->phase[i].plan) { /* one, since no step accumulates */
                ren__plan_get_counts(plan->phase[i].plan, &counts);
                s->nodes = counts.tasks;
            }
        }
    }
    return status;
}

static void make_data(step_session *s)
{
    const bench_model *model = s->config.of.model;
    for (uint32_t b = 0; b < BATCHES; b++) {
        for (uint32_t i = 0; i < model->input_count; i++) {
            s->data[b][i] = malloc(bench_model_bytes(&model->inputs[i], s->config.of.batch));
            if (!s->data[b][i]) {
                must(s, REN_ERR_NO_MEMORY, "data");
            }
            bench_model_fill(model, i, s->config.of.batch, b, s->data[b][i]);
        }
    }
}

step_session *step_session_open(const step_config *config, char *why, size_t why_bytes)
{
    step_session *s = calloc(1, sizeof *s);
    ren_error err;
    memset(&err, 0, sizeof err);
    if (!s) {
        (void)fprintf(stderr, "step_bench: out of memory\n");
        exit(1);
    }
    s->config = *config;
    ren_status status = open_runtime(s, &err);
    if (status == REN_OK) {
        status = open_trainer(s, &err);
    }
    if (is_missing(status)) {
        (void)snprintf(why, why_bytes, "%s", err.text);
        step_session_close(s);
        return NULL;
    }
    must(s, status, err.text);
    make_data(s);
    return s;
}

void step_session_close(step_session *s)
{
    if (!s) {
        return;
    }
    for (uint32_t b = 0; b < BATCHES; b++) {
        for (uint32_t i = 0; i < BENCH_MODEL_INPUTS; i++) {
            free(s->data[b][i]);
        }
    }
    ren_trainer_destroy(s->trainer);
    ren_model_destroy(s->model);
    if (s->rt) {
        must(s, ren_runtime_shutdown(s->rt, REN_TIMEOUT_INFINITE), "shutdown");
    }
    free(s);
}

/* ------------------------------------------------------------------ steps */

static void step_done(const ren_completion *c, void *user)
{
    step_session *s = user;
    must(s, c->status, "a step");
    if (s->done < FIRST_LOSSES) {
        s->first[s->done] = c->step->loss;
    }
    s->last = c->step->loss;
    s->sum += (double)c->step->loss;
    s->summed++;
    s->done++;
    s->in_flight--;
}

static void wait_until(step_session *s, uint32_t in_flight)
{
    while (s->in_flight > in_flight) {
        must(s, ren_wait_any(s->rt, REN_TIMEOUT_INFINITE), "wait");
        must(s, ren_pump(s->rt, 0, 0, 0, NULL), "pump");
    }
}

/* Whether the slot holds the batch, from now on at the latest. */
static bool is_filled(step_session *s, uint32_t input, uint32_t batch, const void *slot)
{
    bool filled = s->slots[batch][input] == slot && !s->config.fill;
    for (uint32_t b = 0; b < BATCHES; b++) {
        s->slots[b][input] = b == batch                   ? slot
                             : s->slots[b][input] == slot ? NULL
                                                          : s->slots[b][input];
    }
    return filled;
}

static void post(step_session *s)
{
    const bench_model *model = s->config.of.model;
    ren_step_desc step = ren_step_desc_default();
    ren_binding bindings[BENCH_MODEL_INPUTS];
    uint32_t batch = (uint32_t)(s->posted % BATCHES);
    for (uint32_t i = 0; i < model->input_count; i++) {
        void *slot;
        size_t bytes;
        /* Never BUSY: a step that is done has given its slot back, and one at most is not. */
        must(s, ren_input_acquire(s->trainer, model->inputs[i].name, &slot, &bytes), "acquire");
        if (!is_filled(s, i, batch, slot)) {
            memcpy(slot, s->data[batch][i], bytes);
        }
        bindings[step.binding_count++] = (ren_binding){model->inputs[i].name, NULL, 0};
    }
    step.bindings = bindings;
    step.done = step_done;
    step.user = s;
    ren_status status = ren_trainer_step(s->trainer, &step, NULL);
    while (status == REN_ERR_QUEUE_FULL) { /* records whose copies are not reported yet */
        (void)sched_yield();
        status = ren_trainer_step(s->trainer, &step, NULL);
    }
    must(s, status, "post");
    s->posted++;
    s->in_flight++;
}

typedef struct sample {
    uint64_t wall_ns;
    double cpu_ns;
    double switches;
    double system_ns; /* of the whole system; 0 when unknown */
    ren_stats stats;
} sample;

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

/* Processor time that the system has spent, with what a hypervisor took away; 0 when unknown. */
static double system_ns(void)
{
    double ticks[8] = {0}; /* user, nice, system, idle, waiting, irq, softirq, stolen */
    FILE *f = fopen("/proc/stat", "r");
    int n = f ? fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &ticks[0], &ticks[1], &ticks[2],
                       &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7])
              : 0;
    if (f) {
        (void)fclose(f);
    }
    double busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
    return n == 8 ? busy * 1e9 / (double)sysconf(_SC_CLK_TCK) : 0;
}

static sample take_sample(const step_session *s)
{
    sample now = {.stats = ren_stats_default()};
    struct rusage used;
    (void)getrusage(RUSAGE_SELF, &used);
    now.cpu_ns = 1e9 * (seconds(used.ru_utime) + seconds(used.ru_stime));
    now.system_ns = system_ns();
    now.switches = (double)(used.ru_nvcsw + used.ru_nivcsw);
    must(s, ren_runtime_stats(s->rt, &now.stats), "stats");
    now.wall_ns = bench_now_ns();
    return now;
}

step_figures step_session_run(step_session *s, uint32_t steps)
{
    /* The first one, untimed, wakes threads that slept while other paths had their turn, and takes
     * that sleep out of the counters. */
    post(s);
    wait_until(s, 0);
    sample from = take_sample(s);
    for (uint32_t i = 0; i < steps; i++) {
        wait_until(s, IN_FLIGHT - 1);
        post(s);
    }
    wait_until(s, 0);
    sample to = take_sample(s);
    double wall_ns = (double)(to.wall_ns - from.wall_ns);
    return (step_figures){
        .step_ns = wall_ns / steps,
        .events = (double)(to.stats.events_recorded - from.stats.events_recorded) / steps,
        .cpu_ns = (to.cpu_ns - from.cpu_ns) / steps,
        .others = ((to.system_ns - from.system_ns) - (to.cpu_ns - from.cpu_ns)) / wall_ns,
        .switches = (to.switches - from.switches) / steps,
        .on_path = to.stats.steps_graph - from.stats.steps_graph ==
                   (s->config.path >= STEP_GRAPH1 ? steps : 0),
    };
}

step_times step_session_trace(step_session *s, uint32_t steps, const char *path)
{
    ren_stats from = ren_stats_default(), to = from;
    step_times t = {0};
    ren_error err = {0};
    ren_status status = ren_trace_begin(s->rt, path, &err);
    must(s, status, err.text);
    (void)step_session_run(s, 4); /* both slots' graphs with stamps are made */
    must(s, ren_runtime_stats(s->rt, &from), "stats");
    t.step_ns = step_session_run(s, steps).step_ns;
    must(s, ren_runtime_drain(s->rt, REN_TIMEOUT_INFINITE), "drain");
    must(s, ren_runtime_stats(s->rt, &to), "stats");
    must(s, ren_trace_end(s->rt), "the end of a trace");
    double busy = 0, idle = 0, n = (double)(to.timed_steps - from.timed_steps);
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        double bubble = (double)(to.bubble_ns[i] - from.bubble_ns[i]);
        /* Of a stream that only copies there is no bubble. */
        busy += bubble > 0 ? (double)(to.timed_busy_ns[i] - from.timed_busy_ns[i]) : 0;
        idle += bubble;
    }
    if (n > 0) {
        t.bubble = busy + idle > 0 ? idle / (busy + idle) : 0;
        t.latency_ns = (double)(to.timed_latency_ns - from.timed_latency_ns) / n;
        t.issue_ns = (double)(to.timed_issue_ns - from.timed_issue_ns) / n;
        t.device_ns = (double)(to.timed_device_ns - from.timed_device_ns) / n;
        t.events = (double)(to.timed_events - from.timed_events) / n;
    }
    return t;
}

uint32_t step_session_nodes(const step_session *s)
{
    return s->nodes;
}

uint32_t step_session_losses(const step_session *s, const float **out_first)
{
    *out_first = s->first;
    return s->done < FIRST_LOSSES ? (uint32_t)s->done : (uint32_t)FIRST_LOSSES;
}

float step_session_last_loss(const step_session *s)
{
    return s->last;
}

double step_session_mean_loss(step_session *s)
{
    double mean = s->summed ? s->sum / s->summed : 0.0;
    s->sum = 0.0;
    s->summed = 0;
    return mean;
}

uint64_t step_session_steps(const step_session *s)
{
    return s->done;
}
