/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_infer_beside.c - inference from many threads while the weights change.
 *
 * Proves    Every answer is that of one version of all weights, the version that its completion
 *           names: whether the weights change by training, on both paths, or by the host, and
 *           whether requests are in the model's order or take any version; that a request which
 *           takes any version waits for no step; and that destroying a model waits for all.
 * How       Training is deterministic, so the answer of each version is known from a run in which
 *           nothing else happens; answers must agree with it bit for bit. For weights that the host
 *           sets the test takes one linear layer with all weights equal: its outputs are then equal
 *           to one another, and a torn read gives some that are not.
 * Fails     when an inference reads weights while they are made or changed, when a set is made anew
 *           under its readers, or when a version is named that is not the one read.
 */
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "world.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLASSES  10u
#define VERSIONS 24u
#define THREADS  8u

typedef struct answer {
    float out[BATCH * CLASSES];
    uint32_t calls;
    ren_status status;
    uint64_t version;
} answer;

static void on_answer(const ren_completion *c, void *user)
{
    answer *a = user;
    a->status = c->status;
    a->version = c->weight_version;
    __atomic_fetch_add(&a->calls, 1, __ATOMIC_RELEASE);
}

static ren_status ask_on_stream(world *w, const float *x, ren_stream stream, uint32_t any,
                                answer *a)
{
    ren_binding binding = {"x", x, BATCH * ROW * sizeof(float)};
    ren_infer_desc desc = ren_infer_desc_default();
    memset(a, 0, sizeof *a);
    desc.bindings = &binding;
    desc.binding_count = 1;
    desc.output = w->n.logits;
    desc.out_data = a->out;
    desc.out_bytes = sizeof a->out;
    desc.stream = stream;
    desc.any_version = any;
    desc.priority = any ? REN_PRIORITY_REALTIME : REN_PRIORITY_NORMAL;
    desc.done = on_answer;
    desc.user = a;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    return ren_infer(w->n.model, &desc, NULL);
}

static ren_status ask(world *w, const float *x, uint32_t any, answer *a)
{
    return ask_on_stream(w, x, REN_STREAM_TRANS, any, a);
}

static void ask_and_wait(world *w, const float *x, uint32_t any, answer *a)
{
    ren_status status;
    while ((status = ask(w, x, any, a)) == REN_ERR_QUEUE_FULL) {
        sched_yield();
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    await_calls(&a->calls, 1);
    CU_ASSERT_EQUAL(a->status, REN_OK);
}

static ren_runtime_config config_of(uint32_t streams)
{
    ren_runtime_config config = ren_test_config();
    config.streams = streams;
    config.deterministic = 1;
    return config;
}

/* ------------------------------------------------------------------ beside training */

static float by_version[VERSIONS + 1][BATCH * CLASSES];

/* What the probe gives after each number of steps. */
static void answers_by_version(void)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.05f);
    ren_runtime_config config = config_of(5);
    world w;
    open_world(&w, &config, &how, 0);
    fill_batch(77, x, labels);
    for (uint32_t v = 0; v <= VERSIONS; v++) {
        answer a;
        ask_and_wait(&w, x, 0, &a);
        CU_ASSERT_EQUAL(a.version, v);
        memcpy(by_version[v], a.out, sizeof a.out);
        CU_ASSERT(v == 0 || memcmp(by_version[v], by_version[v - 1], sizeof a.out) != 0);
        if (v < VERSIONS) {
            (void)loss_of(&w, v);
        }
    }
    close_world(&w);
}

typedef struct asker {
    world *w;
    uint32_t any;
    uint32_t stop;
    uint32_t asked;
    uint32_t wrong;
    uint32_t back; /* times that a request in order saw an older version than the one before */
} asker;

static void *ask_on(void *arg)
{
    asker *k = arg;
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    uint64_t last = 0;
    fill_batch(77, x, labels);
    while (!__atomic_load_n(&k->stop, __ATOMIC_ACQUIRE) || k->asked < 5) {
        answer a;
        ask_and_wait(k->w, x, k->any, &a);
        k->wrong += a.version > VERSIONS || memcmp(a.out, by_version[a.version], sizeof a.out) != 0;
        k->back += !k->any && a.version < last;
        last = a.version;
        k->asked++;
    }
    return NULL;
}

/* Steps posted as fast as they are taken: several are under way at any time. */
static void train_all(world *w)
{
    static float x[VERSIONS][BATCH * ROW];
    static int32_t labels[VERSIONS][BATCH];
    static net_result results[VERSIONS];
    ren_job job;
    for (uint32_t v = 0; v < VERSIONS; v++) {
        ren_status status;
        fill_batch(v, x[v], labels[v]);
        while ((status = net_post(&w->n, w->t, x[v], labels[v], BATCH, &results[v], &job)) ==
               REN_ERR_QUEUE_FULL) {
            sched_yield();
        }
        CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    }
    for (uint32_t v = 0; v < VERSIONS; v++) {
        await_calls(&results[v].calls, 1);
        CU_ASSERT_EQUAL(results[v].status, REN_OK);
    }
}

static void check_beside(uint32_t streams, uint32_t graphs, uint32_t staged)
{
    ren_trainer_config how = sgd(0.05f);
    ren_runtime_config config = config_of(streams);
    pthread_t threads[THREADS];
    asker askers[THREADS];
    world w;
    config.disable_graphs = !graphs;
    open_world(&w, &config, &how, staged);
    for (uint32_t i = 0; i < THREADS; i++) {
        askers[i] = (asker){.w = &w, .any = i % 2};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, ask_on, &askers[i]), 0);
    }
    train_all(&w);
    for (uint32_t i = 0; i < THREADS; i++) {
        __atomic_store_n(&askers[i].stop, 1, __ATOMIC_RELEASE);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        CU_ASSERT_EQUAL(pthread_join(threads[i], NULL), 0);
        CU_ASSERT(askers[i].asked >= 5);
        CU_ASSERT_EQUAL(askers[i].wrong, 0);
        CU_ASSERT_EQUAL(askers[i].back, 0);
    }
    answer last;
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    fill_batch(77, x, labels);
    ask_and_wait(&w, x, 0, &last);
    CU_ASSERT_EQUAL(last.version, VERSIONS);
    close_world(&w);
}

/* Eight threads ask, half of them for any version, while a ninth trains: every answer is that of
 * the version it names. With one lane, with few, with all. */
static void test_beside_training(void)
{
    answers_by_version();
    for (uint32_t streams = 1; streams <= 5; streams++) {
        check_beside(streams, 0, 0);
    }
}

/* The same with steps and inferences replayed as graphs. */
static void test_beside_training_graphs(void)
{
    answers_by_version();
    check_beside(5, 1, 0);
    check_beside(3, 1, 0);
    check_beside(1, 1, 0);
}

/* The same with inputs and outputs by way of pinned memory. */
static void test_beside_training_staged(void)
{
    answers_by_version();
    check_beside(5, 1, 1);
}

/* ------------------------------------------------------------------ a slow reader */

static void nap(uint32_t ms)
{
    struct timespec pause = {0, (long)ms * 1000000};
    nanosleep(&pause, NULL);
}

/* COMP_3 is stuck with an inference on it, and meanwhile the weights change twice and are asked for
 * each time on other streams, so that its set is due to be made anew. It still gives the answer of
 * the version that it was issued with. */
static void test_slow_reader_keeps_its_weights(void)
{
    static float x[BATCH * ROW], batch[2][BATCH * ROW];
    static int32_t labels[BATCH], batch_labels[2][BATCH];
    ren_trainer_config how = sgd(0.05f);
    ren_runtime_config config = config_of(5);
    world w;
    answers_by_version();
    config.disable_graphs = 1;
    open_world(&w, &config, &how, 0);
    fill_batch(77, x, labels);
    CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, w.n.logits, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_drain(w.rt, 10 * SECOND), REN_OK);
    answer answers[3];
    net_result results[2];
    ren_job job;
    ren_test_hold(w.rt, REN_STREAM_COMP_3);
    CU_ASSERT_EQUAL(ask_on_stream(&w, x, REN_STREAM_COMP_3, 0, &answers[0]), REN_OK);
    for (uint32_t v = 0; v < 2; v++) {
        fill_batch(v, batch[v], batch_labels[v]);
        CU_ASSERT_EQUAL(net_post(&w.n, w.t, batch[v], batch_labels[v], BATCH, &results[v], &job),
                        REN_OK);
        CU_ASSERT_EQUAL(ask_on_stream(&w, x, REN_STREAM_COMP_1, 0, &answers[1 + v]), REN_OK);
    }
    nap(50);
    ren_test_release(w.rt, REN_STREAM_COMP_3);
    for (uint32_t v = 0; v < 3; v++) {
        await_calls(&answers[v].calls, 1);
        CU_ASSERT_EQUAL(answers[v].version, v);
        CU_ASSERT_EQUAL(memcmp(answers[v].out, by_version[v], sizeof answers[v].out), 0);
    }
    close_world(&w);
}

/* ------------------------------------------------------------------ schedules */

/* Steps and requests of both kinds in an order drawn by the seed, on streams drawn by it, under a
 * schedule of the device that is a function of it. */
static void run_schedule(uint64_t seed)
{
    enum {
        STEPS = 8,
        REQUESTS = 24
    };
    static float x[BATCH * ROW], batch[STEPS][BATCH * ROW];
    static int32_t labels[BATCH], batch_labels[STEPS][BATCH];
    static net_result results[STEPS];
    static answer answers[REQUESTS];
    uint32_t posted_before[REQUESTS], any[REQUESTS], steps = 0, requests = 0, wrong = 0;
    unsigned long long state = seed;
    ren_trainer_config how = sgd(0.05f);
    ren_runtime_config config = config_of(1u + (uint32_t)(seed % 5u));
    world w;
    config.disable_graphs = (seed / 5) % 2;
    ren_test_seed(NULL, seed);
    open_world(&w, &config, &how, 0);
    fill_batch(77, x, labels);
    CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, w.n.logits, NULL), REN_OK);
    while (requests < REQUESTS) {
        ren_job job;
        if (steps < STEPS && ren_test_random(&state) % 4u == 0) {
            fill_batch(steps, batch[steps], batch_labels[steps]);
            CU_ASSERT_EQUAL(net_post(&w.n, w.t, batch[steps], batch_labels[steps], BATCH,
                                     &results[steps], &job),
                            REN_OK);
            steps++;
            continue;
        }
        ren_stream stream = (ren_stream)(ren_test_random(&state) % 4u);
        any[requests] = ren_test_random(&state) % 2u;
        posted_before[requests] = steps;
        CU_ASSERT_EQUAL(ask_on_stream(&w, x, stream, any[requests], &answers[requests]), REN_OK);
        requests++;
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        await_calls(&answers[i].calls, 1);
        wrong += answers[i].status != REN_OK || answers[i].version > STEPS ||
                 (!any[i] && answers[i].version != posted_before[i]) ||
                 memcmp(answers[i].out, by_version[answers[i].version], sizeof answers[i].out);
    }
    if (wrong) {
        (void)fprintf(stderr, "seed %llu: %u wrong\n", (unsigned long long)seed, wrong);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    close_world(&w);
}

static void test_beside_training_schedules(void)
{
    const uint64_t count = 150u / ren_test_slowdown();
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_skip("only the CPU device has a seeded scheduler");
        return;
    }
    answers_by_version();
    for (uint64_t seed = 1; seed <= count; seed++) {
        run_schedule(seed);
    }
}

/* ------------------------------------------------------------------ any version */

/* A model whose step is a chain, so that GREEDY leaves compute streams to others. */
static void open_chain(world *w)
{
    ren_runtime_config config = config_of(5);
    ren_trainer_config how = sgd(0.05f);
    ren_linear_options options = ren_linear_options_default();
    const int64_t dims[2] = {BATCH, ROW};
    config.disable_graphs = 1;
    memset(w, 0, sizeof *w);
    w->rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(w->rt);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(w->rt, NULL, &w->n.model, NULL), REN_OK);
    options.units = CLASSES;
    options.disable_bias = 1;
    w->n.row = ROW;
    w->n.batch = BATCH;
    w->n.x = ren_input(w->n.model, "x", REN_F32, dims, 2);
    w->n.labels = ren_input(w->n.model, "labels", REN_I32, dims, 1);
    w->n.logits = ren_linear(w->n.model, "l", w->n.x, &options);
    w->n.loss = ren_softmax_cross_entropy(w->n.model, "loss", w->n.logits, w->n.labels, NULL);
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(w->n.model, w->n.loss, &how, &w->t, NULL), REN_OK);
}

/* UPDATE is stuck with a step on it. A request that takes any version is answered all the same, on
 * a stream that the step does not use, with the weights of before; one in order is not, until the
 * step is done. */
static void test_any_version_waits_for_no_step(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    answer any, ordered, before;
    world w;
    open_chain(&w);
    fill_batch(77, x, labels);
    (void)loss_of(&w, 0);
    ask_and_wait(&w, x, 0, &before);
    CU_ASSERT_EQUAL(before.version, 1);
    for (uint32_t round = 0; round < 3; round++) {
        net_result r;
        ren_job job;
        ren_test_hold(w.rt, REN_STREAM_UPDATE);
        CU_ASSERT_EQUAL(net_post(&w.n, w.t, x, labels, BATCH, &r, &job), REN_OK);
        CU_ASSERT_EQUAL(ask(&w, x, 0, &ordered), REN_OK);
        for (uint32_t i = 0; i < 20; i++) {
            ask_and_wait(&w, x, 1, &any);
            CU_ASSERT_EQUAL(any.version, 1 + round);
            CU_ASSERT_EQUAL(memcmp(any.out, before.out, sizeof any.out), 0);
        }
        CU_ASSERT_EQUAL(__atomic_load_n(&ordered.calls, __ATOMIC_ACQUIRE), 0);
        CU_ASSERT_EQUAL(__atomic_load_n(&r.calls, __ATOMIC_ACQUIRE), 0);
        ren_test_release(w.rt, REN_STREAM_UPDATE);
        await_calls(&ordered.calls, 1);
        await_calls(&r.calls, 1);
        CU_ASSERT_EQUAL(ordered.version, 2 + round);
        CU_ASSERT_NOT_EQUAL(memcmp(ordered.out, before.out, sizeof ordered.out), 0);
        before = ordered;
    }
    close_world(&w);
}

/* Steps of which nobody asks the weights in order: any version follows them by itself, though each
 * answer is of a set that was whole before. */
static void test_any_version_follows(void)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.05f);
    ren_runtime_config config = config_of(5);
    uint64_t last = 0;
    world w;
    answers_by_version();
    open_world(&w, &config, &how, 0);
    fill_batch(77, x, labels);
    for (uint32_t v = 0; v < VERSIONS; v++) {
        answer a;
        ask_and_wait(&w, x, 1, &a);
        CU_ASSERT(a.version >= last && a.version <= v);
        CU_ASSERT_EQUAL(memcmp(a.out, by_version[a.version], sizeof a.out), 0);
        last = a.version;
        (void)loss_of(&w, v);
    }
    for (answer a = {.version = 0}; a.version != VERSIONS;) { /* a hang where it does not follow */
        ask_and_wait(&w, x, 1, &a);
    }
    close_world(&w);
}

/* What the host has set before is never overlooked. */
static void test_any_version_sees_the_host(void)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.0f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(77, x, labels);
    for (uint32_t i = 0; i < 50; i++) {
        float bias[CLASSES];
        answer a;
        for (uint32_t k = 0; k < CLASSES; k++) {
            bias[k] = (float)(i * 100 + k);
        }
        CU_ASSERT_EQUAL(ren_param_set(w.n.model, "l3.bias", bias, sizeof bias), REN_OK);
        ask_and_wait(&w, x, 1, &a);
        CU_ASSERT_DOUBLE_EQUAL((double)a.out[1], (double)(i * 100), 20.0);
    }
    close_world(&w);
}

/* ------------------------------------------------------------------ the host changes weights */

#define WIDE 512u

typedef struct wide {
    ren_runtime *rt;
    ren_model *m;
    ren_tensor y;
    float *weights; /* WIDE x WIDE */
    uint32_t set;   /* the constant that was set last; stored before the next is begun */
    uint32_t begun; /* the constant whose setting has begun */
    uint32_t stop;
    uint32_t torn, old, early, answers;
} wide;

static void *ask_wide(void *arg)
{
    wide *w = arg;
    float x[WIDE], y[WIDE];
    uint32_t any = 0;
    for (uint32_t i = 0; i < WIDE; i++) {
        x[i] = 1.0f;
    }
    for (uint32_t n = 0; !__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE) || n < 4; n++) {
        ren_binding binding = {"x", x, sizeof x};
        ren_infer_desc desc = ren_infer_desc_default();
        ren_job job;
        ren_status status;
        desc.bindings = &binding;
        desc.binding_count = 1;
        desc.output = w->y;
        desc.out_data = y;
        desc.out_bytes = sizeof y;
        desc.deliver = REN_DELIVER_NONE;
        desc.any_version = any = !any;
        uint32_t least = __atomic_load_n(&w->set, __ATOMIC_ACQUIRE);
        while ((status = ren_infer(w->m, &desc, &job)) == REN_ERR_QUEUE_FULL) {
            sched_yield();
        }
        CU_ASSERT_EQUAL_FATAL(status, REN_OK);
        while (ren_job_status(w->rt, job) == REN_PENDING) {
            (void)ren_wait(w->rt, job, SECOND);
        }
        uint32_t most = __atomic_load_n(&w->begun, __ATOMIC_ACQUIRE);
        uint32_t torn = 0;
        for (uint32_t i = 1; i < WIDE; i++) {
            torn |= y[i] != y[0];
        }
        __atomic_fetch_add(&w->torn, torn, __ATOMIC_RELAXED);
        __atomic_fetch_add(&w->old, y[0] < (float)(least * WIDE), __ATOMIC_RELAXED);
        __atomic_fetch_add(&w->early, y[0] > (float)(most * WIDE), __ATOMIC_RELAXED);
        __atomic_fetch_add(&w->answers, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void set_wide(wide *w, uint32_t value)
{
    for (uint32_t i = 0; i < WIDE * WIDE; i++) {
        w->weights[i] = (float)value;
    }
    __atomic_store_n(&w->begun, value, __ATOMIC_RELEASE);
    CU_ASSERT_EQUAL(ren_param_set(w->m, "l.weight", w->weights, WIDE * WIDE * sizeof(float)),
                    REN_OK);
    __atomic_store_n(&w->set, value, __ATOMIC_RELEASE);
}

/* A megabyte of equal weights, set again and again while threads ask: the outputs of one answer are
 * equal to one another, not older than what was set before the post, and not newer than what was
 * being set at the completion. */
static void test_host_changes_weights(void)
{
    const uint32_t changes = 200u / ren_test_slowdown();
    pthread_t threads[4];
    int64_t dims[2] = {1, WIDE};
    wide w = {.weights = malloc(WIDE * WIDE * sizeof(float))};
    ren_linear_options options = ren_linear_options_default();
    w.rt = ren_test_runtime(NULL);
    CU_ASSERT_FATAL(w.rt && w.weights);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(w.rt, NULL, &w.m, NULL), REN_OK);
    options.units = WIDE;
    options.disable_bias = 1;
    w.y = ren_linear(w.m, "l", ren_input(w.m, "x", REN_F32, dims, 2), &options);
    CU_ASSERT_EQUAL_FATAL(ren_infer_prepare(w.m, w.y, NULL), REN_OK);
    set_wide(&w, 1);
    for (uint32_t i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, ask_wide, &w), 0);
    }
    for (uint32_t i = 2; i < 2 + changes; i++) {
        set_wide(&w, i);
    }
    __atomic_store_n(&w.stop, 1, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL(pthread_join(threads[i], NULL), 0);
    }
    CU_ASSERT(w.answers >= 16);
    CU_ASSERT_EQUAL(w.torn, 0);
    CU_ASSERT_EQUAL(w.old, 0);
    CU_ASSERT_EQUAL(w.early, 0);
    printf("    %u answers over %u changes\n", w.answers, changes);
    ren_model_destroy(w.m);
    ren_test_shutdown(w.rt);
    free(w.weights);
}

/* ------------------------------------------------------------------ planning */

static void *prepare_logits(void *arg)
{
    world *w = arg;
    CU_ASSERT_EQUAL(ren_infer_prepare(w->n.model, w->n.logits, NULL), REN_OK);
    return NULL;
}

/* The first inference, which gives the model its sets of weights, and the first step of a number of
 * rows are planned by two threads at once. What the one writes the other does not look at, which
 * ThreadSanitizer says; and both give what they give alone. */
static void test_planned_beside_a_step(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.05f);
    float first[BATCH * CLASSES];
    for (uint32_t round = 0; round < 8; round++) {
        pthread_t thread;
        net_result r;
        ren_job job;
        answer a;
        world w;
        open_world(&w, NULL, &how, 0);
        fill_batch(77, x, labels);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, prepare_logits, &w), 0);
        CU_ASSERT_EQUAL(net_post(&w.n, w.t, x, labels, BATCH - 1, &r, &job), REN_OK);
        CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
        ask_and_wait(&w, x, 0, &a);
        await_calls(&r.calls, 1);
        CU_ASSERT_EQUAL(r.status, REN_OK);
        CU_ASSERT_EQUAL(a.version, 1);
        CU_ASSERT(round == 0 || memcmp(first, a.out, sizeof first) == 0);
        memcpy(first, a.out, sizeof first);
        close_world(&w);
    }
}

/* ------------------------------------------------------------------ faults, ends */

/* Any device call fails, the nth for many n, while steps and inferences of both kinds are under
 * way: each completes once; an answer that is given is a version's, and once the fault is gone the
 * answer is what the weights of then say. */
static void test_failing_calls_beside_training(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.05f);
    const uint64_t stride = ren_test_slowdown() > 1 ? 2 : 1; /* most early calls are a step's */
    for (uint32_t graphs = 0; graphs < 2; graphs++) {
        ren_runtime_config config = config_of(5);
        uint32_t failed = 0;
        world w;
        config.disable_graphs = !graphs;
        open_world(&w, &config, &how, 0);
        fill_batch(77, x, labels);
        CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, w.n.logits, NULL), REN_OK);
        for (uint64_t nth = 1; nth <= 90; nth += stride) {
            net_result results[2];
            answer answers[4], want, again;
            ren_job job;
            ren_test_fault(w.rt, "any", nth, REN_ERR_DEVICE, 0);
            for (uint32_t i = 0; i < 2; i++) {
                CU_ASSERT_EQUAL(net_post(&w.n, w.t, x, labels, BATCH, &results[i], &job), REN_OK);
                CU_ASSERT_EQUAL(ask(&w, x, 0, &answers[2 * i]), REN_OK);
                CU_ASSERT_EQUAL(ask(&w, x, 1, &answers[2 * i + 1]), REN_OK);
            }
            for (uint32_t i = 0; i < 4; i++) {
                await_calls(&answers[i].calls, 1);
                failed += answers[i].status != REN_OK;
                await_calls(&results[i / 2].calls, 1);
            }
            ren_test_fault_clear(w.rt);
            CU_ASSERT_EQUAL(ren_runtime_drain(w.rt, 10 * SECOND), REN_OK);
            ask_and_wait(&w, x, 0, &want);
            CU_ASSERT_EQUAL(answers[0].calls, 1);
            CU_ASSERT_EQUAL(answers[3].calls, 1);
            /* Twice the same, and the last of them in order before it if nothing failed there. */
            ask_and_wait(&w, x, 0, &again);
            CU_ASSERT_EQUAL(memcmp(want.out, again.out, sizeof want.out), 0);
            CU_ASSERT_EQUAL(want.version, again.version);
            if (answers[2].status == REN_OK && results[0].status == REN_OK &&
                results[1].status == REN_OK) {
                CU_ASSERT_EQUAL(answers[2].version, want.version);
                CU_ASSERT_EQUAL(memcmp(want.out, answers[2].out, sizeof want.out), 0);
            }
        }
        CU_ASSERT(failed >= (stride > 1 ? 1u : 5u));
        close_world(&w);
    }
}

/* The trainer and the model are destroyed with requests of both kinds under way, none of which has
 * begun: each is answered once, before the model is gone. */
static void test_destroy_waits(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    static answer answers[24];
    ren_trainer_config how = sgd(0.05f);
    for (uint32_t round = 0; round < 5; round++) {
        net_result r;
        ren_job job;
        world w;
        open_world(&w, NULL, &how, 0);
        fill_batch(77, x, labels);
        CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, w.n.logits, NULL), REN_OK);
        ren_test_delay(w.rt, REN_STREAM_UPDATE, 20);
        CU_ASSERT_EQUAL(net_post(&w.n, w.t, x, labels, BATCH, &r, &job), REN_OK);
        for (uint32_t i = 0; i < REN_TEST_COUNT(answers); i++) {
            CU_ASSERT_EQUAL(ask(&w, x, i % 2, &answers[i]), REN_OK);
        }
        close_world(&w);
        for (uint32_t i = 0; i < REN_TEST_COUNT(answers); i++) {
            CU_ASSERT_EQUAL(answers[i].calls, 1);
            CU_ASSERT_EQUAL(answers[i].status, REN_OK);
            CU_ASSERT(i % 2 || answers[i].version == 1);
        }
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_beside_training", test_beside_training},
        {"test_beside_training_graphs", test_beside_training_graphs},
        {"test_beside_training_staged", test_beside_training_staged},
        {"test_beside_training_schedules", test_beside_training_schedules},
        {"test_slow_reader_keeps_its_weights", test_slow_reader_keeps_its_weights},
        {"test_any_version_waits_for_no_step", test_any_version_waits_for_no_step},
        {"test_any_version_follows", test_any_version_follows},
        {"test_any_version_sees_the_host", test_any_version_sees_the_host},
        {"test_host_changes_weights", test_host_changes_weights},
        {"test_planned_beside_a_step", test_planned_beside_a_step},
        {"test_failing_calls_beside_training", test_failing_calls_beside_training},
        {"test_destroy_waits", test_destroy_waits},
    };
    return ren_test_main(argc, argv, "conformance/test_infer_beside", cases, REN_TEST_COUNT(cases),
                         180);
}
