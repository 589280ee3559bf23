/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_infer.c - inference: values, versions of the weights, order, refusals.
 *
 * What an inference must give is known either from a computation in double by the test itself, or
 * from the same inference made alone after the same number of steps; the latter must agree bit for
 * bit.
 */
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "world.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLASSES 10u

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

static ren_status ask(ren_model *m, ren_tensor output, const float *x, uint32_t rows, answer *a,
                      ren_job *job)
{
    ren_binding binding = {"x", x, rows * ROW * sizeof(float)};
    ren_infer_desc desc = ren_infer_desc_default();
    memset(a, 0, sizeof *a);
    desc.bindings = &binding;
    desc.binding_count = 1;
    desc.batch = rows;
    desc.output = output;
    desc.out_data = a->out;
    desc.out_bytes = rows * CLASSES * sizeof(float);
    desc.done = on_answer;
    desc.user = a;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    return ren_infer(m, &desc, job);
}

static void ask_and_wait(ren_model *m, ren_tensor output, const float *x, uint32_t rows, answer *a)
{
    ren_status status;
    while ((status = ask(m, output, x, rows, a, NULL)) == REN_ERR_QUEUE_FULL) {
        sched_yield();
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    await_calls(&a->calls, 1);
    CU_ASSERT_EQUAL(a->status, REN_OK);
}

/* ------------------------------------------------------------------ values */

static void layer(const float *w, const float *b, const double *x, uint32_t in, uint32_t out,
                  uint32_t rectify, double *y)
{
    for (uint32_t o = 0; o < out; o++) {
        double sum = (double)b[o];
        for (uint32_t i = 0; i < in; i++) {
            sum += (double)w[o * in + i] * x[i];
        }
        y[o] = rectify && sum < 0.0 ? 0.0 : sum;
    }
}

/* The MLP's logits in double from its parameters. */
static void reference(net *n, const float *x, uint32_t rows, double *logits)
{
    size_t count;
    float *p = net_params(n, &count);
    const float *l1 = p;
    const float *l2 = l1 + 32 * 20 + 32;
    const float *l3 = l2 + 32 * 32 + 32;
    for (uint32_t r = 0; r < rows; r++) {
        double a[32], b[32];
        for (uint32_t i = 0; i < ROW; i++) {
            a[i] = (double)x[r * ROW + i];
        }
        layer(l1, l1 + 32 * 20, a, 20, 32, 1, b);
        layer(l2, l2 + 32 * 32, b, 32, 32, 1, a);
        layer(l3, l3 + 10 * 32, a, 32, 10, 0, logits + r * CLASSES);
    }
    free(p);
}

static void check_values(uint32_t staged)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    double want[BATCH * CLASSES];
    ren_trainer_config how = sgd(0.05f);
    world w;
    open_world(&w, NULL, &how, staged);
    fill_batch(1, x, labels);
    for (uint32_t steps = 0; steps < 3; steps++) {
        reference(&w.n, x, BATCH, want);
        for (uint32_t rows = 1; rows <= BATCH; rows++) {
            answer a;
            double error = 0.0, norm = 0.0;
            ask_and_wait(w.n.model, w.n.logits, x, rows, &a);
            CU_ASSERT_EQUAL(a.version, steps);
            for (uint32_t i = 0; i < rows * CLASSES; i++) {
                error += pow((double)a.out[i] - want[i], 2.0);
                norm += want[i] * want[i];
            }
            CU_ASSERT(sqrt(error) <= 2e-5 * sqrt(norm));
        }
        (void)loss_of(&w, steps);
    }
    close_world(&w);
}

/* Logits equal a computation in double, for every number of rows, before and between steps. */
static void test_infer_values(void)
{
    check_values(0);
}

/* The same with input and output staged through pinned memory. */
static void test_infer_values_staged(void)
{
    check_values(1);
}

/* Dropout is the identity, batch norm uses the running statistics (at first: the identity but for
 * eps), an input may itself be the output, and a loss gives one number. */
static void test_infer_modes(void)
{
    enum {
        ROWS = 4,
        FEATURES = 6
    };
    float x[ROWS * FEATURES], y[ROWS * FEATURES], loss;
    int32_t labels[ROWS] = {0, 1, 2, 5};
    int64_t dims[2] = {ROWS, FEATURES};
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_model *m = NULL;
    ren_job job;
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor in = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor lab = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor drop = ren_dropout(m, "drop", in, NULL);
    ren_tensor norm = ren_batch_norm(m, "norm", drop, NULL);
    ren_tensor cost = ren_softmax_cross_entropy(m, "loss", drop, lab, NULL);
    CU_ASSERT_EQUAL_FATAL(ren_model_status(m, NULL), REN_OK);
    for (uint32_t i = 0; i < ROWS * FEATURES; i++) {
        x[i] = (float)i * 0.5f - 3.0f;
    }
    ren_binding bindings[2] = {{"x", x, sizeof x}, {"labels", labels, sizeof labels}};
    ren_infer_desc desc = ren_infer_desc_default();
    desc.bindings = bindings;
    desc.binding_count = 1;
    desc.deliver = REN_DELIVER_NONE;
    desc.out_data = y;
    desc.out_bytes = sizeof y;
    const ren_tensor outputs[3] = {in, drop, norm};
    for (uint32_t k = 0; k < 3; k++) {
        memset(y, 0xff, sizeof y);
        desc.output = outputs[k];
        CU_ASSERT_EQUAL(ren_infer(m, &desc, &job), REN_OK);
        CU_ASSERT_EQUAL(ren_wait(rt, job, 10 * SECOND), REN_OK);
        for (uint32_t i = 0; i < ROWS * FEATURES; i++) {
            double want = (double)x[i] / (k == 2 ? sqrt(1.0 + 1e-5) : 1.0);
            CU_ASSERT_DOUBLE_EQUAL((double)y[i], want, 1e-6);
        }
    }
    desc.binding_count = 2;
    desc.output = cost;
    desc.out_data = &loss;
    desc.out_bytes = sizeof loss;
    CU_ASSERT_EQUAL(ren_infer(m, &desc, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, job, 10 * SECOND), REN_OK);
    double want = 0.0;
    for (uint32_t r = 0; r < ROWS; r++) {
        double sum = 0.0;
        for (uint32_t i = 0; i < FEATURES; i++) {
            sum += exp((double)x[r * FEATURES + i]);
        }
        want += log(sum) - (double)x[r * FEATURES + (uint32_t)labels[r]];
    }
    CU_ASSERT_DOUBLE_EQUAL((double)loss, want / ROWS, 1e-5);
    ren_model_destroy(m);
    ren_test_shutdown(rt);
}

/* More numbers of rows than plans are kept, twice round: plans are dropped and made again, and
 * every row comes out as in the whole batch. */
static void test_infer_many_batches(void)
{
    enum {
        MOST = 12
    };
    static float x[MOST * ROW];
    static float whole[MOST * CLASSES], part[MOST * CLASSES];
    unsigned long long state = 3;
    ren_runtime *rt = ren_test_runtime(NULL);
    net n;
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    net_build(&n, rt, NET_MLP, MOST, 11);
    for (uint32_t i = 0; i < MOST * ROW; i++) {
        x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (uint32_t k = 0; k <= 2 * MOST; k++) {
        uint32_t rows = k == 0 ? MOST : (k - 1) % MOST + 1;
        ren_binding binding = {"x", x, rows * ROW * sizeof(float)};
        ren_infer_desc desc = ren_infer_desc_default();
        ren_job job;
        desc.bindings = &binding;
        desc.binding_count = 1;
        desc.batch = rows;
        desc.output = n.logits;
        desc.out_data = k == 0 ? whole : part;
        desc.out_bytes = rows * CLASSES * sizeof(float);
        desc.deliver = REN_DELIVER_NONE;
        CU_ASSERT_EQUAL_FATAL(ren_infer(n.model, &desc, &job), REN_OK);
        CU_ASSERT_EQUAL(ren_wait(rt, job, 10 * SECOND), REN_OK);
        CU_ASSERT(golden_distance(k == 0 ? whole : part, whole, rows * CLASSES) <= 1e-5);
    }
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
}

/* ------------------------------------------------------------------ versions */

enum {
    VERSIONS = 20
};

/* What the inference of batch 77 gives after each number of steps. */
static void answers_by_version(float (*out)[BATCH * CLASSES])
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.05f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(77, x, labels);
    for (uint32_t v = 0; v <= VERSIONS; v++) {
        answer a;
        ask_and_wait(w.n.model, w.n.logits, x, BATCH, &a);
        CU_ASSERT_EQUAL(a.version, v);
        memcpy(out[v], a.out, sizeof a.out);
        if (v < VERSIONS) {
            (void)loss_of(&w, v);
        }
    }
    close_world(&w);
}

static float by_version[VERSIONS + 1][BATCH * CLASSES];

/* Posted between steps, with nothing started: each inference sees exactly the steps posted before
 * it. An inference that overtakes a step or is overtaken gives another version's values. */
static void test_infer_between_steps(void)
{
    static float x[3][BATCH * ROW];
    static int32_t labels[3][BATCH];
    static float probe[BATCH * ROW];
    int32_t unused[BATCH];
    answer answers[4];
    net_result results[3];
    ren_job job;
    ren_trainer_config how = sgd(0.05f);
    world w;
    answers_by_version(by_version);
    CU_ASSERT_NOT_EQUAL(memcmp(by_version[0], by_version[1], sizeof by_version[0]), 0);
    open_world(&w, NULL, &how, 0);
    fill_batch(77, probe, unused);
    CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, w.n.logits, NULL), REN_OK);
    ren_test_hold(w.rt, REN_STREAM_TRANS);
    for (uint32_t i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL(ask(w.n.model, w.n.logits, probe, BATCH, &answers[i], NULL), REN_OK);
        if (i < 3) {
            fill_batch(i, x[i], labels[i]);
            CU_ASSERT_EQUAL(net_post(&w.n, w.t, x[i], labels[i], BATCH, &results[i], &job), REN_OK);
        }
    }
    answer fifth;
    CU_ASSERT_EQUAL(ask(w.n.model, w.n.logits, probe, BATCH, &fifth, NULL), REN_ERR_QUEUE_FULL);
    ren_test_release(w.rt, REN_STREAM_TRANS);
    for (uint32_t i = 0; i < 4; i++) {
        await_calls(&answers[i].calls, 1);
        CU_ASSERT_EQUAL(answers[i].status, REN_OK);
        CU_ASSERT_EQUAL(answers[i].version, i);
        CU_ASSERT_EQUAL(memcmp(answers[i].out, by_version[i], sizeof answers[i].out), 0);
    }
    CU_ASSERT_EQUAL(fifth.calls, 0);
    close_world(&w);
}

typedef struct asker {
    world *w;
    uint32_t stop;
    uint32_t asked;
    uint32_t wrong;
} asker;

static void *ask_on(void *arg)
{
    asker *k = arg;
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    fill_batch(77, x, labels);
    while (!__atomic_load_n(&k->stop, __ATOMIC_ACQUIRE) || k->asked < 5) {
        answer a;
        ask_and_wait(k->w->n.model, k->w->n.logits, x, BATCH, &a);
        k->wrong += a.version > VERSIONS || memcmp(a.out, by_version[a.version], sizeof a.out) != 0;
        k->asked++;
    }
    return NULL;
}

/* Two threads ask while a third trains: every answer is that of the version it names. */
static void test_infer_beside_training(void)
{
    ren_trainer_config how = sgd(0.05f);
    pthread_t threads[2];
    asker askers[2];
    world w;
    answers_by_version(by_version);
    open_world(&w, NULL, &how, 0);
    for (uint32_t i = 0; i < 2; i++) {
        askers[i] = (asker){.w = &w};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, ask_on, &askers[i]), 0);
    }
    for (uint32_t v = 0; v < VERSIONS; v++) {
        (void)loss_of(&w, v);
    }
    for (uint32_t i = 0; i < 2; i++) {
        __atomic_store_n(&askers[i].stop, 1, __ATOMIC_RELEASE);
    }
    for (uint32_t i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(pthread_join(threads[i], NULL), 0);
        CU_ASSERT(askers[i].asked >= 5);
        CU_ASSERT_EQUAL(askers[i].wrong, 0);
    }
    close_world(&w);
}

/* ------------------------------------------------------------------ refusals and ends */

static void test_infer_refusals(void)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    answer a;
    ren_job job = {5};
    ren_error err;
    ren_tensor none = {0};
    ren_trainer_config how = sgd(0.0f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(1, x, labels);
    ren_infer_desc good = ren_infer_desc_default();
    ren_binding bindings[2] = {{"x", x, sizeof x}, {"labels", labels, sizeof labels}};
    good.bindings = bindings;
    good.binding_count = 1;
    good.output = w.n.logits;
    good.out_data = a.out;
    good.out_bytes = sizeof a.out;
    good.deliver = REN_DELIVER_NONE;
    ren_infer_desc d = good;
    CU_ASSERT_EQUAL(ren_infer(NULL, &d, &job), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(job.id, 0);
    CU_ASSERT_EQUAL(ren_infer(w.n.model, NULL, NULL), REN_ERR_INVALID_ARGUMENT);
    d.struct_size = 1;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_BAD_STRUCT);
    d = good;
    d.output = none;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_SHAPE);
    d = good;
    d.out_bytes--;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_SHAPE);
    d = good;
    d.batch = BATCH + 1;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_SHAPE);
    d = good;
    d.binding_count = 2;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_NAME);
    d = good;
    d.binding_count = 0;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_NAME);
    d = good;
    d.bindings = &bindings[1];
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_NAME);
    ren_binding unbound = {"x", NULL, 0};
    d = good;
    d.bindings = &unbound;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_INVALID_ARGUMENT);
    ren_binding half = {"x", x, sizeof x / 2};
    d = good;
    d.bindings = &half;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_SHAPE);
    d = good;
    d.out_data = NULL;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_INVALID_ARGUMENT);
    d.out_buffer.id = 1;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_UNSUPPORTED);
    d = good;
    d.priority = (ren_priority)3;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, none, &err), REN_ERR_SHAPE);
    CU_ASSERT_EQUAL(ren_infer_prepare(NULL, none, &err), REN_ERR_INVALID_ARGUMENT);
    /* None of them holds a context. */
    for (uint32_t i = 0; i < 8; i++) {
        ask_and_wait(w.n.model, w.n.logits, x, BATCH, &a);
    }
    CU_ASSERT_EQUAL(ren_runtime_close(w.rt), REN_OK);
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &good, NULL), REN_ERR_CLOSED);
    close_world(&w);
}

/* A device call fails: that inference reports it, the next gives the right values. */
static void test_infer_failing_calls(void)
{
    static const char *const kinds[] = {"op_launch", "copy", "event_wait", "event_record"};
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    answer want;
    ren_trainer_config how = sgd(0.0f);
    fill_batch(1, x, labels);
    for (size_t k = 0; k < REN_TEST_COUNT(kinds); k++) {
        uint32_t failed = 0;
        world w;
        open_world(&w, NULL, &how, 0);
        ask_and_wait(w.n.model, w.n.logits, x, BATCH, &want);
        for (uint64_t nth = 1; nth <= 12; nth++) {
            answer a;
            ren_test_fault(w.rt, kinds[k], nth, REN_ERR_DEVICE, 0);
            CU_ASSERT_EQUAL(ask(w.n.model, w.n.logits, x, BATCH, &a, NULL), REN_OK);
            await_calls(&a.calls, 1);
            failed += a.status != REN_OK;
            ren_test_fault_clear(w.rt);
            ask_and_wait(w.n.model, w.n.logits, x, BATCH, &a);
            CU_ASSERT_EQUAL(memcmp(a.out, want.out, sizeof a.out), 0);
        }
        CU_ASSERT(failed >= 1);
        close_world(&w);
    }
}

/* Destroying a model waits for its inferences. */
static void test_infer_destroy_waits(void)
{
    static float x[BATCH * ROW];
    int32_t labels[BATCH];
    static answer answers[3];
    ren_trainer_config how = sgd(0.0f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(1, x, labels);
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(ask(w.n.model, w.n.logits, x, BATCH, &answers[i], NULL), REN_OK);
    }
    close_world(&w);
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(answers[i].calls, 1);
        CU_ASSERT_EQUAL(answers[i].status, REN_OK);
        CU_ASSERT_EQUAL(memcmp(answers[i].out, answers[0].out, sizeof answers[0].out), 0);
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_infer_values", test_infer_values},
        {"test_infer_values_staged", test_infer_values_staged},
        {"test_infer_modes", test_infer_modes},
        {"test_infer_many_batches", test_infer_many_batches},
        {"test_infer_between_steps", test_infer_between_steps},
        {"test_infer_beside_training", test_infer_beside_training},
        {"test_infer_refusals", test_infer_refusals},
        {"test_infer_failing_calls", test_infer_failing_calls},
        {"test_infer_destroy_waits", test_infer_destroy_waits},
    };
    return ren_test_main(argc, argv, "conformance/test_infer", cases, REN_TEST_COUNT(cases), 120);
}
