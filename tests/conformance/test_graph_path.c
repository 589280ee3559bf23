/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_graph_path.c - a training step by either path is the same step.
 *
 * What is compared is bits: weights and losses of a run on the queued path, of one that replays
 * graphs, and of one that goes back and forth. Faults on the graph path are in fault/test_graph.c.
 */
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "runs.h"

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND UINT64_C(1000000000)

/* ------------------------------------------------------------------ values */

/* One run of 200 steps as a base: queued, on five streams. Others: graphs after one step and after
 * three, and one stream, queued and by graphs; each must end with the base's bits.
 * Steady: one batch size. Switching: ten batch sizes in turn, each of which begins on the queued
 * path and goes over to graphs. An address, scalar or event that a graph holds from the step it was
 * captured in, an edge that the plan or the capture lost, an operation that depends on its stream,
 * or a step that is lost or doubled at a switch makes weights differ. */
static void compare_paths(net_kind kind)
{
    static const struct {
        uint32_t after, streams, queued;
    } others[] = {{1, 5, 0}, {3, 5, 0}, {3, 1, 1}, {3, 1, 0}};
    static run_result base, other;
    for (uint32_t switching = 0; switching < 2; switching++) {
        run_spec spec = run_default(kind);
        uint32_t sizes = switching ? 10 : 1;
        spec.block = switching ? spec.steps / sizes : 0;
        spec.sizes = sizes;
        spec.queued = 1;
        run_alone(&spec, &base);
        CU_ASSERT_EQUAL(base.graph_steps, 0);
        /* It learns: identical nonsense would pass the comparison as well. */
        CU_ASSERT(base.results[spec.steps - 1].step.loss < base.results[0].step.loss);
        for (size_t i = 0; i < REN_TEST_COUNT(others); i++) {
            spec.after = others[i].after;
            spec.streams = others[i].streams;
            spec.queued = others[i].queued;
            run_alone(&spec, &other);
            run_same(&base, &other);
            if (!spec.queued) {
                /* Queued steps: `after` of each batch size, until it has its first graph. */
                CU_ASSERT_EQUAL(other.graph_steps, spec.steps - spec.after * sizes);
                CU_ASSERT_EQUAL(other.stats.graph_captures, 2 * sizes);
            }
        }
        run_free(&base);
    }
}

static void test_paths_agree_mlp(void)
{
    compare_paths(NET_MLP);
}

static void test_paths_agree_lenet(void)
{
    compare_paths(NET_LENET);
}

static void test_paths_agree_batch_norm(void)
{
    compare_paths(NET_TINYRES);
}

static void test_paths_agree_branches(void)
{
    compare_paths(NET_BRANCH);
}

/* Failure row 21: a learning rate that a graph holds as a constant is that of the captured step. */
static void test_scalar_every_step(void)
{
    static run_result base, other;
    run_spec spec = run_default(NET_MLP);
    spec.vary = 1;
    spec.queued = 1;
    run_alone(&spec, &base);
    spec.queued = 0;
    run_alone(&spec, &other);
    run_same(&base, &other);
    CU_ASSERT_EQUAL(other.graph_steps, spec.steps - spec.after);
    /* The rates matter: with one rate for all the weights are others. */
    spec.vary = 0;
    run_alone(&spec, &other);
    CU_ASSERT_NOT_EQUAL(memcmp(base.params, other.params, base.count * sizeof(float)), 0);
    run_free(&other);
    run_free(&base);
}

/* The number of streams changes neither path's values. */
static void test_streams_agree(void)
{
    static run_result base, other;
    run_spec spec = run_default(NET_BRANCH);
    spec.steps = 40;
    spec.block = 10;
    spec.queued = 1;
    spec.streams = 1;
    run_alone(&spec, &base);
    spec.queued = 0;
    for (spec.streams = 1; spec.streams <= 5; spec.streams++) {
        run_alone(&spec, &other);
        run_same(&base, &other);
        CU_ASSERT_EQUAL(other.graph_steps, spec.steps - 2 * spec.after);
    }
    run_free(&base);
}

/* Steps that are summed up take turns with steps that update: each kind has its plan, and each plan
 * its graphs, also where the sum of one step is read by the graph of the next (an odd window, so
 * that each kind comes to both places). Clipping and the average come with the update. */
static void test_windows_agree(void)
{
    static run_result base, other;
    for (uint32_t window = 1; window <= 3; window++) {
        run_spec spec = run_default(NET_TINYRES);
        spec.optimizer = window == 2 ? REN_OPTIMIZER_LARS : REN_OPTIMIZER_ADAM;
        spec.window = window;
        spec.steps = 60;
        spec.block = 30;
        spec.queued = 1;
        run_alone(&spec, &base);
        CU_ASSERT_EQUAL(base.graph_steps, 0);
        spec.queued = 0;
        run_alone(&spec, &other);
        run_same(&base, &other);
        CU_ASSERT_EQUAL(other.graph_steps, spec.steps - 2 * window * spec.after);
        run_free(&base);
    }
}

static void on_loss(const ren_completion *c, void *user)
{
    ren_step_result r;
    memset(&r, 0, sizeof r);
    r.loss = NAN;
    if (c->status == REN_OK) {
        r = *c->step;
    }
    *(ren_step_result *)user = r;
}

enum {
    MASKS = 12
};

/* Losses of steps that change nothing (learning rate 0) on one input, with dropout. */
static void dropout_losses(uint32_t queued, ren_step_result results[MASKS])
{
    const int64_t in[2] = {4, 32};
    float x[4 * 32], y[4 * 32];
    run_spec how = run_default(NET_MLP);
    how.queued = queued;
    ren_runtime *rt = run_runtime(&how);
    ren_model_config mc = ren_model_config_default();
    ren_trainer_config config = ren_trainer_config_default();
    ren_dropout_options dropout = ren_dropout_options_default();
    ren_linear_options linear = ren_linear_options_default();
    ren_binding bindings[2] = {{"x", x, sizeof x}, {"y", y, sizeof y}};
    ren_step_desc desc = ren_step_desc_default();
    ren_model *m = NULL;
    ren_trainer *t = NULL;
    for (uint32_t i = 0; i < 4 * 32; i++) {
        x[i] = 1.0f + (float)i / 16.0f;
        y[i] = 0.0f;
    }
    mc.seed = 3;
    config.learning_rate = 0.0f;
    dropout.probability = 0.5f;
    linear.units = 32;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, &mc, &m, NULL), REN_OK);
    ren_tensor h = ren_linear(m, "l", ren_input(m, "x", REN_F32, in, 2), &linear);
    h = ren_mse(m, "loss", ren_dropout(m, "d", h, &dropout), ren_input(m, "y", REN_F32, in, 2));
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(m, h, &config, &t, NULL), REN_OK);
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.done = on_loss;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    for (uint32_t i = 0; i < MASKS; i++) {
        ren_job job;
        desc.user = &results[i];
        CU_ASSERT_EQUAL_FATAL(ren_trainer_step(t, &desc, &job), REN_OK);
        net_wait(rt, job);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    ren_trainer_destroy(t);
    ren_model_destroy(m);
    ren_test_shutdown(rt);
}

/* Failure row 22: each replay draws its own mask, and it is the one of the queued path. */
static void test_dropout_draws_anew(void)
{
    ren_step_result queued[MASKS], graph[MASKS];
    dropout_losses(1, queued);
    dropout_losses(0, graph);
    for (uint32_t i = 0; i < MASKS; i++) {
        CU_ASSERT_EQUAL(graph[i].path, i < 3 ? REN_PATH_QUEUED : REN_PATH_GRAPH);
        CU_ASSERT_EQUAL(queued[i].loss, graph[i].loss);
        for (uint32_t k = 0; k < i; k++) {
            CU_ASSERT_NOT_EQUAL(graph[i].loss, graph[k].loss);
        }
    }
}

/* Steps in a row are what counts: batch sizes that alternate are never captured, and three in a
 * row of each are, when two are enough. */
static void test_only_steady_steps_are_captured(void)
{
    static run_result base, other;
    run_spec spec = run_default(NET_MLP);
    spec.steps = 40;
    spec.block = 3;
    spec.queued = 1;
    run_alone(&spec, &base);
    spec.queued = 0;
    run_alone(&spec, &other);
    CU_ASSERT_EQUAL(other.stats.graph_captures, 0);
    CU_ASSERT_EQUAL(other.graph_steps, 0);
    run_same(&base, &other);
    spec.after = 2;
    run_alone(&spec, &other);
    CU_ASSERT(other.stats.graph_captures > 0);
    run_same(&base, &other);
    run_free(&base);
}

/* More batch sizes in turn than plans are kept, so each comes to a plan that is made anew and
 * captured, and takes over executables of those that went: same bits as the queued path, with one
 * stream and with five, and where steps accumulate, with up to three kinds of graphs a plan. Fails
 * if an update leaves an address or an order of the old graph, or takes a graph that still runs. */
static void test_updates_agree(void)
{
    static run_result base, other;
    static const struct {
        net_kind kind;
        uint32_t window, streams;
    } runs[] = {{NET_MLP, 0, 5},    {NET_MLP, 0, 1},     {NET_LENET, 0, 5},
                {NET_BRANCH, 0, 5}, {NET_TINYRES, 1, 5}, {NET_TINYRES, 3, 5}};
    uint64_t updates = 0;
    for (size_t i = 0; i < REN_TEST_COUNT(runs); i++) {
        run_spec spec = run_default(runs[i].kind);
        uint32_t window = runs[i].window ? runs[i].window : 1;
        spec.window = runs[i].window;
        spec.streams = runs[i].streams;
        spec.block = 3 * window;
        spec.sizes = 10;
        spec.steps = 3 * spec.sizes * spec.block;
        spec.after = 1;
        spec.queued = 1;
        run_alone(&spec, &base);
        spec.queued = 0;
        run_alone(&spec, &other);
        /* A visit of a batch size issues each phase of its plan task by task once, then captures
         * it for both places. */
        CU_ASSERT_EQUAL(other.stats.graph_captures, 3 * spec.sizes * window * 2);
        CU_ASSERT_EQUAL(other.stats.graph_fallbacks, 0);
        /* Another device's libraries may compute another size by other commands. */
        CU_ASSERT(other.stats.graph_updates > 0 || ren_test_device() != REN_DEVICE_CPU);
        updates += other.stats.graph_updates;
        CU_ASSERT(other.stats.graph_updates <= other.stats.graph_captures);
        (void)printf("       %llu of %llu captures were updates\n",
                     (unsigned long long)other.stats.graph_updates,
                     (unsigned long long)other.stats.graph_captures);
        run_same(&base, &other);
        run_free(&base);
    }
    CU_ASSERT(updates > 0);
}

/* ------------------------------------------------------------------ what the host is told */

/* Each completion carries its step's path, the stats add up, and a replayed step orders nothing by
 * events inside. */
static void test_path_is_reported(void)
{
    static run_result out;
    run_spec spec = run_default(NET_BRANCH);
    ren_runtime *rt = run_runtime(&spec);
    ren_stats before = ren_stats_default(), between = before, after = before;
    run r;
    spec.one_by_one = 1;
    run_begin(&r, rt, &spec, &out);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &before), REN_OK);
    while (r.next < 3) {
        run_step(&r);
    }
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &between), REN_OK);
    while (r.next < 6) {
        run_step(&r);
    }
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &after), REN_OK);
    for (uint32_t i = 0; i < 6; i++) {
        CU_ASSERT_EQUAL(out.results[i].step.path, i < 3 ? REN_PATH_QUEUED : REN_PATH_GRAPH);
    }
    CU_ASSERT_EQUAL(between.steps_queued - before.steps_queued, 3);
    CU_ASSERT_EQUAL(between.steps_graph - before.steps_graph, 0);
    CU_ASSERT_EQUAL(between.graph_captures, 0);
    CU_ASSERT_EQUAL(after.steps_queued, between.steps_queued);
    CU_ASSERT_EQUAL(after.steps_graph - between.steps_graph, 3);
    CU_ASSERT_EQUAL(after.graph_captures, 2);
    CU_ASSERT_EQUAL(after.graph_updates, 0);
    CU_ASSERT_EQUAL(after.graph_fallbacks, 0);
    /* copied and end; the events by which the core follows TRANS and UPDATE, and on a device that
     * has its inputs staged those by which it follows the two jobs that do it. */
    CU_ASSERT(after.events_recorded - between.events_recorded <=
              (ren_test_device() == REN_DEVICE_CPU ? 3 * 4 : 3 * 8));
    CU_ASSERT(after.events_waited - between.events_waited <= 3 * 2);
    CU_ASSERT(between.events_waited - before.events_waited > 3 * 4);
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
}

static void raise_counter(void *user)
{
    __atomic_fetch_add((uint32_t *)user, 1, __ATOMIC_RELEASE);
}

/* The copies of step N + 1 run while step N does not, on the graph path as well: with UPDATE held,
 * where a replay begins, the inputs of two steps are consumed, and no step is done. Copies inside
 * the graph would wait for it. */
static void test_copies_run_beside_a_replay(void)
{
    static run_result out;
    run_spec spec = run_default(NET_MLP);
    ren_runtime *rt = run_runtime(&spec);
    uint32_t consumed = 0;
    ren_job jobs[2];
    run r;
    spec.one_by_one = 1;
    run_begin(&r, rt, &spec, &out);
    while (r.next < 6) {
        run_step(&r);
    }
    ren_test_hold(rt, REN_STREAM_UPDATE);
    for (uint32_t i = 0; i < 2; i++) {
        ren_binding bindings[2] = {{"x", r.x, r.n.row * r.n.batch * sizeof(float)},
                                   {"labels", r.labels, r.n.batch * sizeof(int32_t)}};
        ren_step_desc desc = ren_step_desc_default();
        desc.bindings = bindings;
        desc.binding_count = 2;
        desc.inputs_consumed = raise_counter;
        desc.user = &consumed;
        desc.deliver = REN_DELIVER_NONE;
        CU_ASSERT_EQUAL(ren_trainer_step(r.t, &desc, &jobs[i]), REN_OK);
    }
    while (__atomic_load_n(&consumed, __ATOMIC_ACQUIRE) < 2) {
        sched_yield();
    }
    CU_ASSERT_EQUAL(ren_job_status(rt, jobs[0]), REN_PENDING);
    CU_ASSERT_EQUAL(ren_job_status(rt, jobs[1]), REN_PENDING);
    ren_test_release(rt, REN_STREAM_UPDATE);
    run_end(&r);
    CU_ASSERT_EQUAL(out.graph_steps, 3);
    run_free(&out);
    ren_stats stats = ren_stats_default();
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.steps_graph, 5);
    ren_test_shutdown(rt);
}

/* The same for a plan that would fill the lanes' queues task by task: a launch takes next to
 * nothing of them, so the next step's transfer is let in. Fails if a replay is charged with the
 * commands of its tasks: then the second step waits for the end of the first, which waits for the
 * test. */
static void test_copies_run_beside_a_large_replay(void)
{
    enum {
        LAYERS = 120
    };
    const int64_t dims[2] = {4, 8};
    float x[4 * 8] = {0.5f};
    ren_runtime_config config = ren_test_config();
    ren_model *m = NULL;
    ren_trainer *t = NULL;
    ren_linear_options linear = ren_linear_options_default();
    ren_trainer_config how = ren_trainer_config_default();
    const ren_binding bindings[2] = {{"x", x, sizeof x}, {"y", x, sizeof x}};
    ren_step_desc desc = ren_step_desc_default();
    uint32_t consumed = 0;
    ren_job job[2];
    config.streams = 2; /* so one lane has most of the tasks */
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor h = ren_input(m, "x", REN_F32, dims, 2);
    linear.units = 8;
    for (uint32_t i = 0; i < LAYERS; i++) {
        char name[2][16];
        (void)snprintf(name[0], sizeof name[0], "l%u", (unsigned)i);
        (void)snprintf(name[1], sizeof name[1], "a%u", (unsigned)i);
        h = ren_tanh(m, name[1], ren_linear(m, name[0], h, &linear));
    }
    h = ren_mse(m, "loss", h, ren_input(m, "y", REN_F32, dims, 2));
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(m, h, &how, &t, NULL), REN_OK);
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.deliver = REN_DELIVER_NONE;
    for (uint32_t i = 0; i < 6; i++) {
        CU_ASSERT_EQUAL_FATAL(ren_trainer_step(t, &desc, &job[0]), REN_OK);
        net_wait(rt, job[0]);
    }
    ren_test_hold(rt, REN_STREAM_UPDATE);
    desc.inputs_consumed = raise_counter;
    desc.user = &consumed;
    for (uint32_t i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(ren_trainer_step(t, &desc, &job[i]), REN_OK);
    }
    for (uint32_t i = 0; i < 5000 && __atomic_load_n(&consumed, __ATOMIC_ACQUIRE) < 2; i++) {
        const struct timespec ms = {0, 1000000};
        (void)nanosleep(&ms, NULL);
    }
    CU_ASSERT_EQUAL(__atomic_load_n(&consumed, __ATOMIC_ACQUIRE), 2);
    CU_ASSERT_EQUAL(ren_job_status(rt, job[0]), REN_PENDING);
    ren_test_release(rt, REN_STREAM_UPDATE);
    net_wait(rt, job[1]);
    ren_stats stats = ren_stats_default();
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.steps_graph, 5);
    ren_trainer_destroy(t);
    ren_model_destroy(m);
    ren_test_shutdown(rt);
}

/* ------------------------------------------------------------------ life */

/* Host heap in use. A sanitizer's allocator does not answer; it looks for leaks itself. */
static size_t heap_bytes(void)
{
    return ren_test_slowdown() > 1 ? 0 : mallinfo2().uordblks;
}

/* Failure row 24: the batch size flips 1,000 times between two sizes. After the first flips no
 * graph is made any more and no memory is taken. */
static void test_flips_stay_flat(void)
{
    static run_result out;
    run_spec spec = run_default(NET_MLP);
    ren_runtime *rt = run_runtime(&spec);
    ren_stats warm = ren_stats_default(), end = warm;
    size_t heap = 0;
    uint32_t flips = 1000u / ren_test_slowdown();
    run r;
    spec.one_by_one = 1;
    spec.block = 6;
    spec.steps = 12;
    run_begin(&r, rt, &spec, &out);
    for (uint32_t i = 0; i < flips + 10; i++) {
        r.next = i % 2 * spec.block;
        for (uint32_t k = 0; k < (i < 10 ? spec.block : 1u + i % 2); k++) {
            run_step(&r);
            CU_ASSERT_EQUAL(out.results[r.next - 1].status, REN_OK);
            CU_ASSERT(i < 2 || out.results[r.next - 1].step.path == REN_PATH_GRAPH);
        }
        if (i == 9) {
            CU_ASSERT_EQUAL(ren_runtime_stats(rt, &warm), REN_OK);
            heap = heap_bytes();
        }
    }
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &end), REN_OK);
    CU_ASSERT_EQUAL(warm.graph_captures, 4);
    CU_ASSERT_EQUAL(end.graph_captures, 4);
    CU_ASSERT_EQUAL(end.steps_queued, 2 * spec.after);
    CU_ASSERT_EQUAL(end.pool_bytes_in_use, warm.pool_bytes_in_use);
    CU_ASSERT_EQUAL(end.pool_bytes_reserved, warm.pool_bytes_reserved);
    CU_ASSERT_EQUAL(end.pool_driver_allocs, warm.pool_driver_allocs);
    /* A driver keeps books of its own on the same heap. */
    CU_ASSERT(heap_bytes() <= heap + (ren_test_device() == REN_DEVICE_CPU ? 16384 : 1 << 20));
    r.next = 0;
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
}

/* Round after round through more batch sizes than plans are kept: spares are used up and made anew,
 * and neither the host's nor the device's memory grows. */
static void test_updates_stay_flat(void)
{
    static run_result out;
    run_spec spec = run_default(NET_MLP);
    ren_stats warm = ren_stats_default(), end = warm;
    size_t heap = 0;
    uint32_t rounds = 40u / ren_test_slowdown() + 6u;
    run r;
    spec.one_by_one = 1;
    spec.block = 3;
    spec.sizes = 10;
    spec.after = 1;
    spec.steps = 30;
    ren_runtime *rt = run_runtime(&spec);
    run_begin(&r, rt, &spec, &out);
    for (uint32_t i = 0; i < rounds; i++) {
        for (r.next = 0; r.next < spec.steps;) {
            run_step(&r);
            CU_ASSERT_EQUAL(out.results[r.next - 1].status, REN_OK);
        }
        if (i == 4) {
            CU_ASSERT_EQUAL(ren_runtime_stats(rt, &warm), REN_OK);
            heap = heap_bytes();
        }
    }
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &end), REN_OK);
    CU_ASSERT_EQUAL(end.graph_captures, rounds * spec.sizes * 2);
    CU_ASSERT(end.graph_updates > warm.graph_updates);
    CU_ASSERT_EQUAL(end.pool_bytes_in_use, warm.pool_bytes_in_use);
    CU_ASSERT_EQUAL(end.pool_bytes_reserved, warm.pool_bytes_reserved);
    CU_ASSERT(heap_bytes() <= heap + (ren_test_device() == REN_DEVICE_CPU ? 65536 : 1 << 20));
    r.next = 0;
    run_end(&r);
    run_free(&out);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &end), REN_OK);
    CU_ASSERT_EQUAL(end.pool_bytes_in_use, 0);
    ren_test_shutdown(rt);
}

typedef struct meddler {
    ren_runtime *rt;
    _Atomic uint32_t stop;
    uint32_t rounds;
    uint32_t refused;
} meddler;

/* What a host does meanwhile: takes and frees buffers, posts jobs onto the streams that are being
 * captured, waits for them, asks. */
static void *meddle(void *arg)
{
    meddler *m = arg;
    while (!m->stop) {
        ren_buffer buffer;
        ren_stats stats = ren_stats_default();
        if (ren_buffer_alloc(m->rt, REN_STREAM_COMP_1, 4096, &buffer) == REN_OK) {
            ren_job_desc d = ren_job_desc_default();
            ren_job job;
            d.kind = REN_JOB_FILL;
            d.stream = (ren_stream)(REN_STREAM_COMP_1 + m->rounds % 3);
            d.fill.dst.buffer = buffer;
            d.fill.bytes = 4096;
            d.deliver = REN_DELIVER_NONE;
            if (ren_post(m->rt, &d, &job) == REN_OK) {
                (void)ren_wait(m->rt, job, SECOND);
            }
            m->refused += ren_buffer_free(m->rt, buffer) != REN_OK;
        }
        (void)ren_runtime_stats(m->rt, &stats);
        m->rounds++;
        sched_yield();
    }
    return NULL;
}

/* Nine batch sizes in turn, one more than plans are kept, so that each visit plans, captures and
 * destroys; with a host that uses the runtime meanwhile. About 1,000 captures in all; the values
 * are those of the queued path, and no plan goes while its graphs are in flight. */
static void test_captures_while_the_host_works(void)
{
    static run_result base, other;
    uint32_t rounds = ren_test_slowdown() > 1 ? 1 : 6;
    uint64_t captures = 0;
    run_spec spec = run_default(NET_MLP);
    spec.steps = 252;
    spec.block = 3;
    spec.sizes = 9;
    spec.after = 1;
    spec.queued = 1;
    run_alone(&spec, &base);
    spec.queued = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        pthread_t thread;
        meddler m = {.rt = run_runtime(&spec)};
        ren_stats stats = ren_stats_default();
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, meddle, &m), 0);
        run_in(m.rt, &spec, &other);
        m.stop = 1;
        CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
        CU_ASSERT(m.rounds > 0);
        CU_ASSERT_EQUAL(m.refused, 0);
        run_same(&base, &other);
        CU_ASSERT_EQUAL(ren_runtime_stats(m.rt, &stats), REN_OK);
        CU_ASSERT_EQUAL(stats.steps_graph + stats.steps_queued, spec.steps);
        captures += stats.graph_captures;
        ren_test_shutdown(m.rt);
    }
    CU_ASSERT(captures > 160 * rounds);
    run_free(&base);
}

/* Destroyed at once behind a burst of replays: every step completes once, before destroy returns,
 * and no lane touches a graph afterwards. */
static void test_destroy_with_replays_in_flight(void)
{
    static run_result out;
    for (uint32_t round = 0; round < 40 / ren_test_slowdown() + 2; round++) {
        run_spec spec = run_default(NET_BRANCH);
        ren_runtime *rt = run_runtime(&spec);
        uint32_t posted;
        run r;
        run_begin(&r, rt, &spec, &out);
        while (r.next < 6 + round % 8) {
            run_step(&r);
        }
        posted = r.next;
        ren_trainer_destroy(r.t);
        CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
        for (uint32_t i = 0; i < posted; i++) {
            CU_ASSERT_EQUAL(__atomic_load_n(&out.results[i].calls, __ATOMIC_ACQUIRE), 1);
            CU_ASSERT_EQUAL(out.results[i].status, REN_OK);
        }
        run_end_model(&r);
        ren_test_shutdown(rt);
    }
}

/* Two models train at once in one runtime, their graphs mixed in the lanes; each as if alone. */
static void test_two_trainers_at_once(void)
{
    static const net_kind kinds[2] = {NET_MLP, NET_BRANCH};
    static run_result alone[2], together[2];
    run_spec specs[2];
    run runs[2];
    for (uint32_t i = 0; i < 2; i++) {
        specs[i] = run_default(kinds[i]);
        specs[i].block = 20;
        run_alone(&specs[i], &alone[i]);
    }
    ren_runtime *rt = run_runtime(&specs[0]);
    for (uint32_t i = 0; i < 2; i++) {
        run_begin(&runs[i], rt, &specs[i], &together[i]);
    }
    while (runs[0].next < specs[0].steps) {
        run_step(&runs[0]);
        run_step(&runs[1]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        run_end(&runs[i]);
        CU_ASSERT_EQUAL(together[i].graph_steps, alone[i].graph_steps);
        run_same(&alone[i], &together[i]);
        run_free(&alone[i]);
    }
    ren_test_shutdown(rt);
}

/* NaNs into all memory that the pool has to give. */
static void overwrite_free_memory(ren_runtime *rt)
{
    enum {
        MOST = 2048
    };
    static ren_buffer taken[MOST];
    uint32_t count = 0;
    for (uint64_t bytes = 1u << 20; bytes >= 4096; bytes /= 4) {
        ren_status status = REN_OK;
        while (count < MOST && status == REN_OK) {
            ren_job_desc d = ren_job_desc_default();
            status = ren_buffer_alloc(rt, REN_STREAM_COMP_1, bytes, &taken[count]);
            if (status != REN_OK) {
                break;
            }
            d.kind = REN_JOB_FILL;
            d.stream = REN_STREAM_COMP_1;
            d.fill.dst.buffer = taken[count++];
            d.fill.value = 0xffu;
            d.fill.bytes = bytes;
            while ((status = ren_post(rt, &d, NULL)) == REN_ERR_QUEUE_FULL) {
                sched_yield();
            }
            CU_ASSERT_EQUAL(status, REN_OK);
        }
        CU_ASSERT(status == REN_OK || status == REN_ERR_WOULD_GROW);
    }
    CU_ASSERT(count > 16);
    for (uint32_t i = 0; i < count; i++) {
        CU_ASSERT_EQUAL(ren_buffer_free(rt, taken[i]), REN_OK);
    }
}

/* Row 20: two trainers replay graphs with products and convolutions in one runtime; one is
 * destroyed in mid-run, its memory overwritten, and a new one made. The other's bits stay those of
 * a run alone. Workspaces are poisoned before each launch. Fails if a graph uses a workspace,
 * ticket or handle that went with another trainer's. */
static void outlive(net_kind kind, net_kind other_kind)
{
    static run_result alone, out, gone, anew;
    run_spec spec = run_default(kind);
    run_spec other = run_default(other_kind);
    run r, o;
    const uint32_t third = spec.steps / 3;
    run_alone(&spec, &alone);
    ren_test_poison(NULL, 1);
    ren_runtime *rt = run_runtime(&spec);
    run_begin(&r, rt, &spec, &out);
    run_begin(&o, rt, &other, &gone);
    while (r.next < third) {
        run_step(&r);
        run_step(&o);
    }
    for (uint32_t i = 0; i < 5; i++) {
        run_step(&r); /* under way while the other one goes */
    }
    run_end(&o);
    CU_ASSERT(gone.graph_steps > 0);
    run_free(&gone);
    overwrite_free_memory(rt);
    while (r.next < 2 * third) {
        run_step(&r);
    }
    run_begin(&o, rt, &other, &anew);
    while (r.next < spec.steps) {
        run_step(&r);
        run_step(&o);
    }
    run_end(&r);
    CU_ASSERT_EQUAL(out.graph_steps, alone.graph_steps);
    run_same(&alone, &out);
    run_end(&o);
    CU_ASSERT(anew.graph_steps > 0);
    run_free(&anew);
    run_free(&alone);
    ren_test_shutdown(rt);
}

static void test_trainer_outlives_another(void)
{
    outlive(NET_MLP, NET_LENET);
    outlive(NET_LENET, NET_MLP);
    outlive(NET_BRANCH, NET_BRANCH);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_paths_agree_mlp", test_paths_agree_mlp},
        {"test_paths_agree_lenet", test_paths_agree_lenet},
        {"test_paths_agree_batch_norm", test_paths_agree_batch_norm},
        {"test_paths_agree_branches", test_paths_agree_branches},
        {"test_scalar_every_step", test_scalar_every_step},
        {"test_streams_agree", test_streams_agree},
        {"test_windows_agree", test_windows_agree},
        {"test_dropout_draws_anew", test_dropout_draws_anew},
        {"test_only_steady_steps_are_captured", test_only_steady_steps_are_captured},
        {"test_updates_agree", test_updates_agree},
        {"test_path_is_reported", test_path_is_reported},
        {"test_copies_run_beside_a_replay", test_copies_run_beside_a_replay},
        {"test_copies_run_beside_a_large_replay", test_copies_run_beside_a_large_replay},
        {"test_flips_stay_flat", test_flips_stay_flat},
        {"test_updates_stay_flat", test_updates_stay_flat},
        {"test_captures_while_the_host_works", test_captures_while_the_host_works},
        {"test_destroy_with_replays_in_flight", test_destroy_with_replays_in_flight},
        {"test_two_trainers_at_once", test_two_trainers_at_once},
        {"test_trainer_outlives_another", test_trainer_outlives_another},
    };
    return ren_test_main(argc, argv, "conformance/test_graph_path", cases, REN_TEST_COUNT(cases),
                         240);
}
