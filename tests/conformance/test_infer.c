/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_infer.c - inference: values, order, where the answer goes, refusals.
 *
 * What an inference must give is known either from a computation in double by the test itself, or
 * from the same inference made alone after the same number of steps; the latter must agree bit for
 * bit. What many threads see beside training is in test_infer_beside.c.
 */
#include "../../libren/train/model_state.h"
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
    ren_stream stream;
    uint64_t version;
} answer;

static void on_answer(const ren_completion *c, void *user)
{
    answer *a = user;
    a->status = c->status;
    a->version = c->weight_version;
    a->stream = c->stream;
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
    ren_test_release(w.rt, REN_STREAM_TRANS);
    for (uint32_t i = 0; i < 4; i++) {
        await_calls(&answers[i].calls, 1);
        CU_ASSERT_EQUAL(answers[i].status, REN_OK);
        CU_ASSERT_EQUAL(answers[i].version, i);
        CU_ASSERT_EQUAL(memcmp(answers[i].out, by_version[i], sizeof answers[i].out), 0);
    }
    close_world(&w);
}

/* ------------------------------------------------------------------ streams */

/* With 1 to 5 streams, and on each that a request can name, the answer is the same, bit for bit; it
 * completes on the stream that was named. */
static void test_infer_streams_agree(void)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    answer first;
    fill_batch(5, x, labels);
    for (uint32_t streams = 1; streams <= 5; streams++) {
        ren_runtime_config config = ren_test_config();
        ren_trainer_config how = sgd(0.0f);
        world w;
        config.streams = streams;
        config.deterministic = 1;
        open_world(&w, &config, &how, 0);
        for (uint32_t stream = REN_STREAM_TRANS; stream <= REN_STREAM_COMP_3; stream++) {
            ren_binding binding = {"x", x, sizeof x};
            ren_infer_desc desc = ren_infer_desc_default();
            answer a;
            memset(&a, 0, sizeof a);
            desc.bindings = &binding;
            desc.binding_count = 1;
            desc.output = w.n.logits;
            desc.out_data = a.out;
            desc.out_bytes = sizeof a.out;
            desc.stream = (ren_stream)stream;
            desc.done = on_answer;
            desc.user = &a;
            desc.deliver = REN_DELIVER_ANY_THREAD;
            CU_ASSERT_EQUAL(ren_infer(w.n.model, &desc, NULL), REN_OK);
            await_calls(&a.calls, 1);
            CU_ASSERT_EQUAL(a.status, REN_OK);
            if (stream != REN_STREAM_TRANS) {
                CU_ASSERT_EQUAL(a.stream, (ren_stream)stream);
            }
            if (streams == 1 && stream == REN_STREAM_TRANS) {
                first = a;
            }
            CU_ASSERT_EQUAL(memcmp(a.out, first.out, sizeof a.out), 0);
        }
        close_world(&w);
    }
}

/* ------------------------------------------------------------------ inputs and outputs */

/* Inputs too large for the post to copy go by a job of their own, where the device cannot take them
 * from any memory: many at once, each with its own answer. */
static void test_infer_large_inputs(void)
{
    enum {
        ROWS = 1024,
        AT_ONCE = 6
    };
    const size_t in = ROWS * ROW, out = ROWS * CLASSES;
    float *x = malloc(in * AT_ONCE * sizeof *x);
    float *y = malloc(out * (AT_ONCE + 1u) * sizeof *y);
    unsigned long long state = 8;
    ren_job jobs[AT_ONCE];
    net n;
    ren_runtime *rt = ren_test_runtime(NULL);
    CU_ASSERT_FATAL(rt && x && y);
    net_build(&n, rt, NET_MLP, ROWS, 11);
    n.model->caps.pageable_copies = 0;
    for (size_t i = 0; i < in * AT_ONCE; i++) {
        x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            ren_binding binding = {"x", x + i * in, in * sizeof *x};
            ren_infer_desc desc = ren_infer_desc_default();
            desc.bindings = &binding;
            desc.binding_count = 1;
            desc.output = n.logits;
            desc.out_data = round ? y + out * AT_ONCE : y + out * i;
            desc.out_bytes = out * sizeof *y;
            desc.deliver = REN_DELIVER_NONE;
            CU_ASSERT_EQUAL_FATAL(ren_infer(n.model, &desc, &jobs[i]), REN_OK);
            if (round) { /* alone */
                CU_ASSERT_EQUAL(ren_wait(rt, jobs[i], 10 * SECOND), REN_OK);
                CU_ASSERT(golden_distance(y + out * i, y + out * AT_ONCE, out) <= 1e-6);
            }
        }
        for (uint32_t i = 0; i < AT_ONCE && !round; i++) {
            CU_ASSERT_EQUAL(ren_wait(rt, jobs[i], 10 * SECOND), REN_OK);
        }
    }
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
    free(x);
    free(y);
}

/* The desc of an inference whose answer goes to floats from `at` on in a buffer. */
static ren_infer_desc into(world *w, const ren_binding *binding, ren_buffer buffer, uint64_t at)
{
    ren_infer_desc desc = ren_infer_desc_default();
    desc.bindings = binding;
    desc.binding_count = 1;
    desc.output = w->n.logits;
    desc.out_buffer = buffer;
    desc.out_offset = at * sizeof(float);
    desc.out_bytes = BATCH * CLASSES * sizeof(float);
    desc.deliver = REN_DELIVER_NONE;
    return desc;
}

/* Answers of several inferences side by side in one buffer, between a fill before and a copy
 * behind, with nothing waited for: the buffer's uses alone keep the order, on whatever streams. The
 * buffer is freed while all of it is under way. */
static void test_infer_to_buffer(void)
{
    enum {
        PARTS = 6,
        PART = BATCH * CLASSES + 3
    };
    static float x[PARTS][BATCH * ROW];
    static float back[PARTS * PART];
    int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.05f);
    ren_buffer buffer;
    ren_job job;
    world w;
    open_world(&w, NULL, &how, 0);
    CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, w.n.logits, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_memory_reserve(w.rt, 1u << 20), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_alloc(w.rt, REN_STREAM_COMP_1, sizeof back, &buffer), REN_OK);
    ren_test_hold(w.rt, REN_STREAM_COMP_2);
    ren_job_desc fill = ren_job_desc_default();
    fill.kind = REN_JOB_FILL;
    fill.stream = REN_STREAM_COMP_2;
    fill.fill = (ren_fill){.dst.buffer = buffer, .value = 0, .bytes = sizeof back};
    CU_ASSERT_EQUAL(ren_post(w.rt, &fill, NULL), REN_OK);
    for (uint32_t i = 0; i < PARTS; i++) {
        fill_batch(i, x[i], labels);
        ren_binding binding = {"x", x[i], sizeof x[i]};
        ren_infer_desc desc = into(&w, &binding, buffer, (uint64_t)i * PART);
        CU_ASSERT_EQUAL(ren_infer(w.n.model, &desc, NULL), REN_OK);
    }
    ren_job_desc copy = ren_job_desc_default();
    copy.kind = REN_JOB_COPY;
    copy.copy = (ren_copy){.dst.host = back, .src.buffer = buffer, .bytes = sizeof back};
    CU_ASSERT_EQUAL(ren_post(w.rt, &copy, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_free(w.rt, buffer), REN_OK);
    ren_test_release(w.rt, REN_STREAM_COMP_2);
    CU_ASSERT_EQUAL(ren_wait(w.rt, job, 10 * SECOND), REN_OK);
    for (uint32_t i = 0; i < PARTS; i++) {
        answer want;
        ask_and_wait(w.n.model, w.n.logits, x[i], BATCH, &want);
        CU_ASSERT_EQUAL(memcmp(back + i * PART, want.out, sizeof want.out), 0);
        for (uint32_t k = BATCH * CLASSES; k < PART; k++) {
            CU_ASSERT_EQUAL(back[i * PART + k], 0.0f);
        }
    }
    close_world(&w);
}

/* What does not fit, and what is gone, is refused and keeps nothing: the buffer can be freed, and
 * its memory comes back. */
static void test_infer_to_buffer_refusals(void)
{
    static float x[BATCH * ROW];
    int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.05f);
    ren_buffer buffer;
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(1, x, labels);
    ren_binding binding = {"x", x, sizeof x};
    CU_ASSERT_EQUAL(ren_memory_reserve(w.rt, 1u << 20), REN_OK);
    CU_ASSERT_EQUAL(
        ren_buffer_alloc(w.rt, REN_STREAM_COMP_1, BATCH * CLASSES * sizeof(float), &buffer),
        REN_OK);
    ren_infer_desc desc = into(&w, &binding, buffer, 1);
    for (uint32_t i = 0; i < 40; i++) { /* more than there are records */
        CU_ASSERT_EQUAL(ren_infer(w.n.model, &desc, NULL), REN_ERR_INVALID_ARGUMENT);
    }
    desc.out_offset = UINT64_MAX - 8;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &desc, NULL), REN_ERR_INVALID_ARGUMENT);
    desc.out_offset = 0;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &desc, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_free(w.rt, buffer), REN_OK);
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &desc, NULL), REN_ERR_STALE);
    close_world(&w);
}

/* ------------------------------------------------------------------ room, cancel */

/* As many requests as the model was made for; the next is refused and never completes, and there is
 * room again afterwards. */
static void test_infer_queue_full(void)
{
    enum {
        MOST = 5
    };
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    answer answers[MOST + 1];
    world w;
    ren_trainer_config how = sgd(0.05f);
    open_world(&w, NULL, &how, 0);
    w.n.model->infer_requests = MOST;
    fill_batch(1, x, labels);
    CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, w.n.logits, NULL), REN_OK);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
            ren_test_hold(w.rt, s);
        }
        for (uint32_t i = 0; i <= MOST; i++) {
            CU_ASSERT_EQUAL(ask(w.n.model, w.n.logits, x, BATCH, &answers[i], NULL),
                            i < MOST ? REN_OK : REN_ERR_QUEUE_FULL);
        }
        for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
            ren_test_release(w.rt, s);
        }
        for (uint32_t i = 0; i < MOST; i++) {
            await_calls(&answers[i].calls, 1);
            CU_ASSERT_EQUAL(answers[i].status, REN_OK);
        }
        CU_ASSERT_EQUAL(answers[MOST].calls, 0);
        CU_ASSERT_EQUAL(ren_runtime_drain(w.rt, 10 * SECOND), REN_OK);
    }
    close_world(&w);
}

/* What a model's config says of inference: bounds of both members, one stream and no other, two
 * requests and no third. */
static void test_infer_config(void)
{
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_model_config config = ren_model_config_default();
    const int64_t dims[2] = {1, 4};
    float x[4] = {1, 2, 3, 4}, y[3][4];
    ren_binding binding = {"x", x, sizeof x};
    ren_infer_desc desc = ren_infer_desc_default();
    ren_model *m = NULL;
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    config.infer_streams = 4;
    CU_ASSERT_EQUAL(ren_model_create(rt, &config, &m, NULL), REN_ERR_INVALID_ARGUMENT);
    config.infer_streams = 1;
    config.infer_requests = 65537;
    CU_ASSERT_EQUAL(ren_model_create(rt, &config, &m, NULL), REN_ERR_INVALID_ARGUMENT);
    config.infer_requests = 2;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, &config, &m, NULL), REN_OK);
    ren_tensor in = ren_input(m, "x", REN_F32, dims, 2);
    desc.bindings = &binding;
    desc.binding_count = 1;
    desc.output = ren_relu(m, "y", in);
    desc.out_bytes = sizeof y[0];
    desc.deliver = REN_DELIVER_NONE;
    CU_ASSERT_EQUAL(ren_infer_prepare(m, desc.output, NULL), REN_OK);
    ren_test_hold(rt, REN_STREAM_COMP_1);
    for (uint32_t i = 0; i < 3; i++) {
        desc.out_data = y[i];
        desc.stream = i == 0 ? REN_STREAM_COMP_1 : REN_STREAM_TRANS;
        CU_ASSERT_EQUAL(ren_infer(m, &desc, NULL), i < 2 ? REN_OK : REN_ERR_QUEUE_FULL);
    }
    desc.stream = REN_STREAM_COMP_2;
    CU_ASSERT_EQUAL(ren_infer(m, &desc, NULL), REN_ERR_UNSUPPORTED);
    ren_test_release(rt, REN_STREAM_COMP_1);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(memcmp(y[0], x, sizeof x), 0);
    CU_ASSERT_EQUAL(memcmp(y[1], x, sizeof x), 0);
    ren_model_destroy(m);
    ren_test_shutdown(rt);
}

/* Cancelled before it was issued: one completion, the host's input is not read any more, those
 * behind it are right, and its record is free again. By way of the job that copies inputs, too. */
static void check_cancel(uint32_t staged)
{
    enum {
        ROWS = 1024
    };
    float *x = calloc(ROWS * ROW, sizeof *x);
    float *y = calloc(3 * ROWS * CLASSES, sizeof *y);
    net n;
    ren_runtime_config config = ren_test_config();
    config.host_drives_submitter = 1;
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_FATAL(rt && x && y);
    net_build(&n, rt, NET_MLP, ROWS, 11);
    n.model->caps.pageable_copies &= !staged;
    n.model->infer_requests = 4;
    CU_ASSERT_EQUAL(ren_infer_prepare(n.model, n.logits, NULL), REN_OK);
    for (uint32_t round = 0; round < 10; round++) {
        float *gone = malloc(ROWS * ROW * sizeof *gone);
        CU_ASSERT_PTR_NOT_NULL_FATAL(gone);
        memset(gone, 0, ROWS * ROW * sizeof *gone);
        ren_binding bindings[3] = {{"x", x, ROWS * ROW * sizeof *x},
                                   {"x", gone, ROWS * ROW * sizeof *x},
                                   {"x", x, ROWS * ROW * sizeof *x}};
        ren_job jobs[3];
        for (uint32_t i = 0; i < 3; i++) {
            ren_infer_desc desc = ren_infer_desc_default();
            desc.bindings = &bindings[i];
            desc.binding_count = 1;
            desc.output = n.logits;
            desc.out_data = y + i * ROWS * CLASSES;
            desc.out_bytes = ROWS * CLASSES * sizeof *y;
            desc.deliver = REN_DELIVER_NONE;
            desc.any_version = round % 2;
            CU_ASSERT_EQUAL_FATAL(ren_infer(n.model, &desc, &jobs[i]), REN_OK);
        }
        CU_ASSERT_EQUAL(ren_cancel(rt, jobs[1]), REN_OK);
        CU_ASSERT_EQUAL(ren_wait(rt, jobs[1], 10 * SECOND), REN_CANCELLED);
        free(gone); /* a sanitizer sees who still reads it */
        CU_ASSERT_EQUAL(ren_wait(rt, jobs[0], 10 * SECOND), REN_OK);
        CU_ASSERT_EQUAL(ren_wait(rt, jobs[2], 10 * SECOND), REN_OK);
        CU_ASSERT(golden_distance(y, y + 2 * ROWS * CLASSES, ROWS * CLASSES) <= 1e-6);
        CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    }
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
    free(x);
    free(y);
}

static void test_infer_cancel(void)
{
    check_cancel(0);
    check_cancel(1);
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
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_INVALID_ARGUMENT);
    d = good;
    d.stream = REN_STREAM_UPDATE;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_INVALID_ARGUMENT);
    d = good;
    d.priority = (ren_priority)3;
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &d, NULL), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, none, &err), REN_ERR_SHAPE);
    CU_ASSERT_EQUAL(ren_infer_prepare(NULL, none, &err), REN_ERR_INVALID_ARGUMENT);
    /* None of them holds a record. */
    for (uint32_t i = 0; i < 40; i++) {
        ask_and_wait(w.n.model, w.n.logits, x, BATCH, &a);
    }
    CU_ASSERT_EQUAL(ren_runtime_close(w.rt), REN_OK);
    CU_ASSERT_EQUAL(ren_infer(w.n.model, &good, NULL), REN_ERR_CLOSED);
    close_world(&w);
}

/* The nth device call of a kind fails, for every n that matters, while a parameter was just set, so
 * that weights are made anew: the inference reports it or gives the right values, and so does the
 * next one. */
static void test_infer_failing_calls(void)
{
    static const char *const kinds[] = {"op_launch", "copy", "event_wait", "event_record", "any"};
    float x[BATCH * ROW], bias[2][CLASSES];
    int32_t labels[BATCH];
    answer want[2];
    ren_trainer_config how = sgd(0.0f);
    fill_batch(1, x, labels);
    for (uint32_t i = 0; i < 2 * CLASSES; i++) {
        bias[i / CLASSES][i % CLASSES] = (float)i;
    }
    for (size_t k = 0; k < REN_TEST_COUNT(kinds); k++) {
        uint32_t failed = 0;
        world w;
        open_world(&w, NULL, &how, 0);
        for (uint32_t i = 0; i < 2; i++) {
            CU_ASSERT_EQUAL(ren_param_set(w.n.model, "l3.bias", bias[i], sizeof bias[i]), REN_OK);
            ask_and_wait(w.n.model, w.n.logits, x, BATCH, &want[i]);
        }
        CU_ASSERT_NOT_EQUAL(memcmp(want[0].out, want[1].out, sizeof want[0].out), 0);
        for (uint64_t nth = 1; nth <= 16; nth++) {
            answer a;
            const float *now = bias[nth % 2];
            CU_ASSERT_EQUAL(ren_param_set(w.n.model, "l3.bias", now, sizeof bias[0]), REN_OK);
            ren_test_fault(w.rt, kinds[k], nth, REN_ERR_DEVICE, 0);
            CU_ASSERT_EQUAL(ask(w.n.model, w.n.logits, x, BATCH, &a, NULL), REN_OK);
            await_calls(&a.calls, 1);
            failed += a.status != REN_OK;
            CU_ASSERT(a.status != REN_OK || memcmp(a.out, want[nth % 2].out, sizeof a.out) == 0);
            ren_test_fault_clear(w.rt);
            ask_and_wait(w.n.model, w.n.logits, x, BATCH, &a);
            CU_ASSERT_EQUAL(memcmp(a.out, want[nth % 2].out, sizeof a.out), 0);
        }
        /* A record that fails is tried again, so it alone hurts nobody. */
        CU_ASSERT(failed >= 1 || strcmp(kinds[k], "event_record") == 0);
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
        {"test_infer_streams_agree", test_infer_streams_agree},
        {"test_infer_large_inputs", test_infer_large_inputs},
        {"test_infer_to_buffer", test_infer_to_buffer},
        {"test_infer_to_buffer_refusals", test_infer_to_buffer_refusals},
        {"test_infer_queue_full", test_infer_queue_full},
        {"test_infer_config", test_infer_config},
        {"test_infer_cancel", test_infer_cancel},
        {"test_infer_refusals", test_infer_refusals},
        {"test_infer_failing_calls", test_infer_failing_calls},
        {"test_infer_destroy_waits", test_infer_destroy_waits},
    };
    return ren_test_main(argc, argv, "conformance/test_infer", cases, REN_TEST_COUNT(cases), 120);
}
