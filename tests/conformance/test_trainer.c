/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_trainer.c - the contract of training steps.
 *
 * Order and timing are made by holding a stream, never by sleeping. With a learning rate of 0 the
 * loss of a step is a function of its input alone, so a loss tells which input a step used.
 */
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "world.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ refusals */

static void on_any(const ren_completion *c, void *user)
{
    (void)c;
    __atomic_fetch_add((uint32_t *)user, 1, __ATOMIC_RELEASE);
}

/* Every bad step returns its error, runs no callback and uses up no index; then a good one works.
 * */
static void test_step_refusals(void)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    uint32_t calls = 0;
    ren_trainer_config how = sgd(0.0f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(1, x, labels);
    const ren_binding good[2] = {{"x", x, sizeof x}, {"labels", labels, sizeof labels}};
    const struct {
        ren_binding b[3];
        uint32_t count;
        uint32_t batch;
        ren_status want;
    } bad[] = {
        {{good[0]}, 1, 0, REN_ERR_NAME},
        {{good[0], good[0]}, 2, 0, REN_ERR_NAME},
        {{good[0], good[1], good[1]}, 3, 0, REN_ERR_NAME},
        {{good[0], {"y", labels, sizeof labels}}, 2, 0, REN_ERR_NAME},
        {{good[0], {"loss", labels, sizeof labels}}, 2, 0, REN_ERR_NAME},
        {{good[0], {NULL, labels, sizeof labels}}, 2, 0, REN_ERR_INVALID_ARGUMENT},
        {{good[0], {"labels", labels, sizeof labels - 4}}, 2, 0, REN_ERR_SHAPE},
        {{good[0], {"labels", labels, 0}}, 2, 0, REN_ERR_SHAPE},
        {{good[0], good[1]}, 2, BATCH - 1, REN_ERR_SHAPE},
        {{good[0], good[1]}, 2, BATCH + 1, REN_ERR_SHAPE},
        {{good[0], good[1]}, 2, UINT32_MAX, REN_ERR_SHAPE},
        {{good[0], {"labels", NULL, 0}}, 2, 0, REN_ERR_BUSY},
        {{good[0], {"labels", NULL, 4}}, 2, 0, REN_ERR_SHAPE},
    };
    for (size_t i = 0; i < REN_TEST_COUNT(bad); i++) {
        ren_job job = {77};
        ren_step_desc desc = ren_step_desc_default();
        desc.bindings = bad[i].b;
        desc.binding_count = bad[i].count;
        desc.batch = bad[i].batch;
        desc.done = on_any;
        desc.user = &calls;
        desc.deliver = REN_DELIVER_ANY_THREAD;
        ren_status got = ren_trainer_step(w.t, &desc, &job);
        if (got != bad[i].want) {
            (void)fprintf(stderr, "refusal %zu: %s\n", i, ren_status_name(got));
        }
        CU_ASSERT_EQUAL(got, bad[i].want);
        CU_ASSERT_EQUAL(job.id, 0);
    }
    ren_step_desc desc = ren_step_desc_default();
    CU_ASSERT_EQUAL(ren_trainer_step(NULL, &desc, NULL), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_trainer_step(w.t, NULL, NULL), REN_ERR_INVALID_ARGUMENT);
    desc.binding_count = 2;
    CU_ASSERT_EQUAL(ren_trainer_step(w.t, &desc, NULL), REN_ERR_INVALID_ARGUMENT);
    desc.bindings = good;
    desc.channel = REN_CHANNELS;
    CU_ASSERT_EQUAL(ren_trainer_step(w.t, &desc, NULL), REN_ERR_INVALID_ARGUMENT);
    desc.channel = 0;
    desc.deliver = (ren_deliver)3;
    CU_ASSERT_EQUAL(ren_trainer_step(w.t, &desc, NULL), REN_ERR_INVALID_ARGUMENT);
    desc.deliver = REN_DELIVER_NONE;
    desc.struct_size--;
    CU_ASSERT_EQUAL(ren_trainer_step(w.t, &desc, NULL), REN_ERR_BAD_STRUCT);
    void *ptr = &w;
    size_t bytes;
    CU_ASSERT_EQUAL(ren_input_acquire(w.t, "loss", &ptr, &bytes), REN_ERR_NAME);
    CU_ASSERT_PTR_NULL(ptr);
    CU_ASSERT_EQUAL(ren_input_acquire(w.t, NULL, &ptr, &bytes), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_input_acquire(w.t, "x", NULL, &bytes), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_trainer_set_scalar(w.t, (ren_scalar)9, 1.0f), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_trainer_set_scalar(w.t, REN_SCALAR_MOMENTUM, NAN),
                    REN_ERR_INVALID_ARGUMENT);
    net_result r;
    net_step(&w.n, w.rt, w.t, x, labels, &r);
    CU_ASSERT_EQUAL(r.step.index, 1);
    CU_ASSERT_EQUAL(__atomic_load_n(&calls, __ATOMIC_ACQUIRE), 0);
    close_world(&w);
}

static char last_line[256];

static void keep_line(void *user, ren_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)snprintf(last_line, sizeof last_line, "%s", text);
}

/* config.validate makes a refused step or inference tell which input or member was wrong, and what
 * it should be; without it there is no line. */
static void test_validate_explains(void)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    const ren_binding good[2] = {{"x", x, sizeof x}, {"labels", labels, sizeof labels}};
    const struct {
        ren_binding b[2];
        uint32_t count, batch, channel;
        const char *step, *infer; /* what the lines hold */
    } bad[] = {
        {{good[0]}, 1, 0, 0, "\"labels\" is not bound", "out_bytes is 4, not"},
        {{good[1], good[1]}, 2, 0, 0, "\"x\" is not bound", "out_bytes is 4, not"},
        {{good[0], {"y", x, 4}}, 2, 0, 0, "\"labels\" is not bound", "out_bytes is 4, not"},
        {{{"x", x, 12}, good[1]}, 2, 0, 0, "has 12 bytes, not 640", "out_bytes is 4, not"},
        {{{"x", NULL, 0}, good[1]}, 2, 0, 0, "no data", "out_bytes is 4, not"},
        {{good[0], good[1]}, 2, BATCH + 1, 0, "batch is 9, more than 8", "batch is 9, more than 8"},
        {{good[0], good[1]}, 2, 0, 16, "look at channel", "look at channel"},
        {{good[0], {NULL, x, 4}}, 2, 0, 0, "bindings[].input", "bindings[].input"},
    };
    fill_batch(1, x, labels);
    for (uint32_t validate = 0; validate < 2; validate++) {
        ren_runtime_config config = ren_test_config();
        ren_trainer_config how = sgd(0.0f);
        ren_log log = ren_log_default();
        world w;
        float answer;
        log.fn = keep_line;
        log.min_level = REN_LOG_WARNING;
        config.log = &log;
        config.validate = validate;
        open_world(&w, &config, &how, 0);
        for (size_t i = 0; i < REN_TEST_COUNT(bad); i++) {
            ren_step_desc step = ren_step_desc_default();
            ren_infer_desc infer = ren_infer_desc_default();
            step.bindings = infer.bindings = bad[i].b;
            step.binding_count = infer.binding_count = bad[i].count;
            step.batch = infer.batch = bad[i].batch;
            step.channel = infer.channel = bad[i].channel;
            infer.output = w.n.logits;
            infer.out_data = &answer;
            infer.out_bytes = sizeof answer;
            last_line[0] = 0;
            CU_ASSERT_NOT_EQUAL(ren_trainer_step(w.t, &step, NULL), REN_OK);
            CU_ASSERT_EQUAL(strstr(last_line, bad[i].step) != NULL, validate == 1);
            last_line[0] = 0;
            CU_ASSERT_NOT_EQUAL(ren_infer(w.n.model, &infer, NULL), REN_OK);
            CU_ASSERT_EQUAL(strstr(last_line, bad[i].infer) != NULL, validate == 1);
        }
        ren_infer_desc infer = ren_infer_desc_default();
        void *slot;
        infer.bindings = good;
        infer.binding_count = 1;
        infer.output = w.n.logits;
        infer.out_bytes = BATCH * 10 * sizeof(float);
        infer.out_buffer.id = 5;
        last_line[0] = 0;
        CU_ASSERT_EQUAL(ren_infer(w.n.model, &infer, NULL), REN_ERR_INVALID_ARGUMENT);
        CU_ASSERT_EQUAL(strstr(last_line, "out_buffer is none") != NULL, validate == 1);
        last_line[0] = 0;
        CU_ASSERT_EQUAL(ren_input_acquire(w.t, "y", &slot, NULL), REN_ERR_NAME);
        CU_ASSERT_EQUAL(strstr(last_line, "no input \"y\"") != NULL, validate == 1);
        close_world(&w);
    }
}

/* What a trainer cannot be made of. */
static void test_trainer_create_refusals(void)
{
    ren_trainer_config how = sgd(0.1f);
    ren_trainer *t;
    ren_error err;
    ren_tensor none = {0};
    world w;
    open_world(&w, NULL, &how, 0);
    CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, w.n.loss, &how, &t, &err), REN_ERR_BUSY);
    CU_ASSERT_PTR_NULL(t);
    ren_model_destroy(w.n.model); /* refused: its trainer lives */
    CU_ASSERT_EQUAL(ren_model_status(w.n.model, NULL), REN_OK);
    ren_trainer_destroy(w.t);
    CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, w.n.logits, &how, &t, &err), REN_ERR_SHAPE);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "l3"));
    CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, none, &how, &t, &err), REN_ERR_SHAPE);
    CU_ASSERT_EQUAL(ren_trainer_create(NULL, none, &how, &t, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, w.n.loss, &how, NULL, &err),
                    REN_ERR_INVALID_ARGUMENT);
    how.struct_size = 4;
    CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, w.n.loss, &how, &t, &err), REN_ERR_BAD_STRUCT);
    how = sgd(INFINITY);
    CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, w.n.loss, &how, &t, &err),
                    REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "learning_rate"));
    how = sgd(0.1f);
    how.optimizer = (ren_optimizer)9;
    CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, w.n.loss, &how, &t, &err),
                    REN_ERR_INVALID_ARGUMENT);
    how = sgd(0.1f);
    how.ema_decay = 1.0f;
    CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, w.n.loss, &how, &t, &err),
                    REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "ema_decay"));
    how = sgd(0.1f);
    CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, w.n.loss, &how, &w.t, &err), REN_OK);
    ren_trainer_destroy(NULL);
    close_world(&w);
}

/* Back-pressure: with the device held, posts are accepted up to a bound and then refused; each
 * accepted one completes once, in order, and no refused one ever does. */
static void test_step_queue_full(void)
{
    enum {
        MOST = 64
    };
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    static net_result results[MOST];
    ren_job jobs[MOST];
    uint32_t accepted = 0;
    ren_trainer_config how = sgd(0.01f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(3, x, labels);
    ren_test_hold(w.rt, REN_STREAM_TRANS);
    while (accepted < MOST &&
           net_post(&w.n, w.t, x, labels, BATCH, &results[accepted], &jobs[accepted]) == REN_OK) {
        accepted++;
    }
    CU_ASSERT_FATAL(accepted >= 2 && accepted <= 16);
    CU_ASSERT_EQUAL(net_post(&w.n, w.t, x, labels, BATCH, &results[accepted], &jobs[accepted]),
                    REN_ERR_QUEUE_FULL);
    ren_test_release(w.rt, REN_STREAM_TRANS);
    for (uint32_t i = 0; i < accepted; i++) {
        await_calls(&results[i].calls, 1);
        CU_ASSERT_EQUAL(results[i].step.index, i + 1);
        CU_ASSERT_EQUAL(results[i].calls, 1);
    }
    CU_ASSERT_EQUAL(results[accepted].calls, 0);
    net_step(&w.n, w.rt, w.t, x, labels, &results[0]);
    CU_ASSERT_EQUAL(results[0].step.index, accepted + 1);
    close_world(&w);
}

/* ------------------------------------------------------------------ inputs */

static ren_status post_lent(world *w)
{
    ren_binding bindings[2] = {{"x", NULL, 0}, {"labels", NULL, 0}};
    ren_step_desc desc = ren_step_desc_default();
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.deliver = REN_DELIVER_NONE;
    return ren_trainer_step(w->t, &desc, NULL);
}

static void on_loss(const ren_completion *c, void *user)
{
    float *loss = user;
    float value = c->status == REN_OK ? c->step->loss : NAN;
    __atomic_store(loss, &value, __ATOMIC_RELEASE);
}

/* Failure row 37, promise 4: with TRANS held, slots A and B are filled, a third acquire is refused;
 * afterwards each step has used its own stamp, in order. Copying late out of a slot that was lent
 * again, or lending a posted slot, fails. */
static void test_input_slots(void)
{
    float losses[3] = {-1.0f, -1.0f, -1.0f};
    float want[3];
    ren_trainer_config how = sgd(0.0f);
    world w;
    open_world(&w, NULL, &how, 0);
    for (uint32_t i = 0; i < 3; i++) {
        want[i] = loss_of(&w, 100 + i);
    }
    CU_ASSERT(want[0] != want[1] && want[1] != want[2] && want[0] != want[2]);
    ren_test_hold(w.rt, REN_STREAM_TRANS);
    for (uint32_t i = 0; i < 3; i++) {
        void *x;
        void *labels;
        size_t bytes;
        ren_status status = ren_input_acquire(w.t, "x", &x, &bytes);
        if (i == 2) {
            CU_ASSERT_EQUAL(status, REN_ERR_BUSY);
            CU_ASSERT_EQUAL(post_lent(&w), REN_ERR_BUSY);
            ren_test_release(w.rt, REN_STREAM_TRANS);
            while ((status = ren_input_acquire(w.t, "x", &x, &bytes)) == REN_ERR_BUSY) {
                sched_yield();
            }
        }
        CU_ASSERT_EQUAL_FATAL(status, REN_OK);
        CU_ASSERT_EQUAL(bytes, BATCH * ROW * sizeof(float));
        while ((status = ren_input_acquire(w.t, "labels", &labels, &bytes)) == REN_ERR_BUSY) {
            sched_yield();
        }
        CU_ASSERT_EQUAL_FATAL(status, REN_OK);
        CU_ASSERT_EQUAL(bytes, BATCH * sizeof(int32_t));
        fill_batch(100 + i, x, labels);
        ren_binding bindings[2] = {{"labels", NULL, 0}, {"x", NULL, 0}};
        ren_step_desc desc = ren_step_desc_default();
        desc.bindings = bindings;
        desc.binding_count = 2;
        desc.deliver = REN_DELIVER_ANY_THREAD;
        desc.done = on_loss;
        desc.user = &losses[i];
        CU_ASSERT_EQUAL(ren_trainer_step(w.t, &desc, NULL), REN_OK);
    }
    ren_trainer_destroy(w.t);
    w.t = NULL;
    CU_ASSERT_EQUAL(ren_runtime_drain(w.rt, 10 * SECOND), REN_OK);
    for (uint32_t i = 0; i < 3; i++) {
        float got;
        do {
            __atomic_load(&losses[i], &got, __ATOMIC_ACQUIRE);
        } while (got == -1.0f);
        CU_ASSERT_EQUAL(got, want[i]);
    }
    close_world(&w);
}

/* An acquired slot stays lent until a step consumes it: asking again gives the same memory, and a
 * step that was refused leaves it lent. */
static void test_input_acquire_again(void)
{
    void *first;
    void *again;
    int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.0f);
    world w;
    open_world(&w, NULL, &how, 0);
    float want = loss_of(&w, 7);
    CU_ASSERT_EQUAL(ren_input_acquire(w.t, "x", &first, NULL), REN_OK);
    fill_batch(7, first, labels);
    CU_ASSERT_EQUAL(ren_input_acquire(w.t, "x", &again, NULL), REN_OK);
    CU_ASSERT_PTR_EQUAL(first, again);
    CU_ASSERT_EQUAL(post_lent(&w), REN_ERR_BUSY); /* labels are not lent */
    CU_ASSERT_EQUAL(ren_input_acquire(w.t, "x", &again, NULL), REN_OK);
    CU_ASSERT_PTR_EQUAL(first, again);
    float loss = -1.0f;
    ren_binding bindings[2] = {{"x", NULL, BATCH * ROW * sizeof(float)},
                               {"labels", labels, sizeof labels}};
    ren_step_desc desc = ren_step_desc_default();
    ren_job job;
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    desc.done = on_loss;
    desc.user = &loss;
    CU_ASSERT_EQUAL(ren_trainer_step(w.t, &desc, &job), REN_OK);
    close_world(&w);
    CU_ASSERT_EQUAL(loss, want);
}

typedef struct borrowed {
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    uint32_t consumed;
    float loss;
} borrowed;

static void on_consumed(void *user)
{
    borrowed *b = user;
    memset(b->x, 0xff, sizeof b->x);
    memset(b->labels, 0xff, sizeof b->labels);
    __atomic_fetch_add(&b->consumed, 1, __ATOMIC_RELEASE);
}

static void on_borrowed(const ren_completion *c, void *user)
{
    borrowed *b = user;
    float value = c->status == REN_OK ? c->step->loss : NAN;
    __atomic_store(&b->loss, &value, __ATOMIC_RELEASE);
}

/* inputs_consumed comes once a step, not before the copy, and from then on the host may write:
 * here it writes NaN. Called too early, the losses are NaN. */
static void check_inputs_consumed(uint32_t staged)
{
    static borrowed lent[12];
    ren_trainer_config how = sgd(0.0f);
    world w;
    open_world(&w, NULL, &how, staged);
    float want[REN_TEST_COUNT(lent)];
    for (uint32_t i = 0; i < REN_TEST_COUNT(lent); i++) {
        want[i] = loss_of(&w, 200 + i);
    }
    for (uint32_t i = 0; i < REN_TEST_COUNT(lent); i++) {
        borrowed *b = &lent[i];
        memset(b, 0, sizeof *b);
        b->loss = -1.0f;
        fill_batch(200 + i, b->x, b->labels);
        ren_binding bindings[2] = {{"x", b->x, sizeof b->x},
                                   {"labels", b->labels, sizeof b->labels}};
        ren_step_desc desc = ren_step_desc_default();
        desc.bindings = bindings;
        desc.binding_count = 2;
        desc.deliver = REN_DELIVER_ANY_THREAD;
        desc.done = on_borrowed;
        desc.user = b;
        desc.inputs_consumed = on_consumed;
        ren_status status;
        while ((status = ren_trainer_step(w.t, &desc, NULL)) == REN_ERR_QUEUE_FULL) {
            sched_yield();
        }
        CU_ASSERT_EQUAL(status, REN_OK);
    }
    close_world(&w);
    for (uint32_t i = 0; i < REN_TEST_COUNT(lent); i++) {
        CU_ASSERT_EQUAL(lent[i].consumed, 1);
        CU_ASSERT_EQUAL(lent[i].loss, want[i]);
    }
}

static void test_inputs_consumed(void)
{
    check_inputs_consumed(0);
}

/* The same on a device that cannot copy from pageable memory: a job stages the input. */
static void test_inputs_consumed_staged(void)
{
    check_inputs_consumed(1);
}

/* A staged step takes several job slots, and the last may be the one that is refused. The host then
 * frees its memory at once: a staging job that still read it would be seen by AddressSanitizer.
 * Every number of free slots from none to enough is tried. */
static void test_step_refused_staged(void)
{
    for (uint32_t entries = 1; entries <= 7; entries++) {
        ren_runtime_config config = ren_test_config();
        ren_trainer_config how = sgd(0.0f);
        borrowed *kept[4];
        uint32_t accepted = 0;
        uint32_t refused = 0;
        world w;
        config.ring_entries = entries;
        open_world(&w, &config, &how, 1);
        ren_test_hold(w.rt, REN_STREAM_TRANS);
        for (uint32_t i = 0; i < 4; i++) {
            borrowed *b = calloc(1, sizeof *b);
            CU_ASSERT_PTR_NOT_NULL_FATAL(b);
            fill_batch(600 + i, b->x, b->labels);
            ren_binding bindings[2] = {{"x", b->x, sizeof b->x},
                                       {"labels", b->labels, sizeof b->labels}};
            ren_step_desc desc = ren_step_desc_default();
            desc.bindings = bindings;
            desc.binding_count = 2;
            desc.deliver = REN_DELIVER_NONE;
            if (ren_trainer_step(w.t, &desc, NULL) == REN_OK) {
                kept[accepted++] = b;
            } else {
                refused++;
                free(b);
            }
        }
        CU_ASSERT(refused >= 1 || entries > 4);
        CU_ASSERT(accepted >= 1 || entries < 3);
        ren_test_release(w.rt, REN_STREAM_TRANS);
        close_world(&w);
        while (accepted > 0) {
            free(kept[--accepted]);
        }
    }
}

/* Three steps, the middle one staged, while nothing moves on TRANS: the staged one is parked, and
 * the one behind it, whose input is ready, must not overtake it. Trained in another order, the
 * losses are others. */
static void test_step_order_staged(void)
{
    static borrowed lent[3];
    ren_trainer_config how = sgd(0.1f);
    float want[3];
    world w;
    open_world(&w, NULL, &how, 0);
    for (uint32_t i = 0; i < 3; i++) {
        want[i] = loss_of(&w, 700 + i);
    }
    close_world(&w);
    open_world(&w, NULL, &how, 1);
    ren_test_hold(w.rt, REN_STREAM_TRANS);
    for (uint32_t i = 0; i < 3; i++) {
        borrowed *b = &lent[i];
        void *x;
        void *labels;
        memset(b, 0, sizeof *b);
        fill_batch(700 + i, b->x, b->labels);
        ren_binding bindings[2] = {{"x", b->x, sizeof b->x},
                                   {"labels", b->labels, sizeof b->labels}};
        if (i != 1) {
            CU_ASSERT_EQUAL_FATAL(ren_input_acquire(w.t, "x", &x, NULL), REN_OK);
            CU_ASSERT_EQUAL_FATAL(ren_input_acquire(w.t, "labels", &labels, NULL), REN_OK);
            memcpy(x, b->x, sizeof b->x);
            memcpy(labels, b->labels, sizeof b->labels);
            bindings[0].data = bindings[1].data = NULL;
        }
        ren_step_desc desc = ren_step_desc_default();
        desc.bindings = bindings;
        desc.binding_count = 2;
        desc.deliver = REN_DELIVER_ANY_THREAD;
        desc.done = on_borrowed;
        desc.user = b;
        CU_ASSERT_EQUAL(ren_trainer_step(w.t, &desc, NULL), REN_OK);
    }
    ren_test_release(w.rt, REN_STREAM_TRANS);
    close_world(&w);
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(lent[i].loss, want[i]);
    }
}

/* The copies of a step overlap the step before: with UPDATE held, which no step can end without,
 * the next step's input is taken all the same. A copy that waited for the step before would hang
 * here. */
static void test_input_copy_overlaps(void)
{
    static borrowed lent[2];
    ren_runtime_config config = ren_test_config();
    ren_trainer_config how = sgd(0.0f);
    world w;
    config.streams = 5;
    open_world(&w, &config, &how, 0);
    ren_test_hold(w.rt, REN_STREAM_UPDATE);
    for (uint32_t i = 0; i < 2; i++) {
        borrowed *b = &lent[i];
        memset(b, 0, sizeof *b);
        fill_batch(300 + i, b->x, b->labels);
        ren_binding bindings[2] = {{"x", b->x, sizeof b->x},
                                   {"labels", b->labels, sizeof b->labels}};
        ren_step_desc desc = ren_step_desc_default();
        desc.bindings = bindings;
        desc.binding_count = 2;
        desc.deliver = REN_DELIVER_NONE;
        desc.user = b;
        desc.inputs_consumed = on_consumed;
        CU_ASSERT_EQUAL(ren_trainer_step(w.t, &desc, NULL), REN_OK);
    }
    await_calls(&lent[0].consumed, 1);
    await_calls(&lent[1].consumed, 1);
    ren_test_release(w.rt, REN_STREAM_UPDATE);
    close_world(&w);
}

/* Promise 4 from the other end: with the steps' computing held (by UPDATE, behind which all of it
 * starts on both paths), four steps are posted through two slots; the third must not overwrite what
 * the first has not read. Without the wait for the end of the slot's last step the first loss is
 * that of another input. */
static void test_input_slot_reuse(void)
{
    static float x[4][BATCH * ROW];
    static int32_t labels[4][BATCH];
    static net_result results[4];
    float want[4];
    ren_job job;
    ren_trainer_config how = sgd(0.0f);
    world w;
    open_world(&w, NULL, &how, 0);
    for (uint32_t i = 0; i < 4; i++) {
        want[i] = loss_of(&w, 500 + i);
    }
    ren_test_hold(w.rt, REN_STREAM_UPDATE);
    for (uint32_t i = 0; i < 4; i++) {
        fill_batch(500 + i, x[i], labels[i]);
        CU_ASSERT_EQUAL(net_post(&w.n, w.t, x[i], labels[i], BATCH, &results[i], &job), REN_OK);
    }
    /* Steps 0 and 1 are copied, and the copies that may not happen yet have had their chance. */
    CU_ASSERT_EQUAL(ren_wait(w.rt, job, SECOND / 20), REN_TIMEOUT);
    ren_test_release(w.rt, REN_STREAM_UPDATE);
    for (uint32_t i = 0; i < 4; i++) {
        await_calls(&results[i].calls, 1);
        CU_ASSERT_EQUAL(results[i].step.loss, want[i]);
    }
    close_world(&w);
}

/* ------------------------------------------------------------------ batches and scalars */

/* A short batch gives what a model of that batch gives, whatever was there before; more batch sizes
 * than plans are kept come and go. */
static void test_step_short_batches(void)
{
    float x[12 * ROW];
    int32_t labels[12];
    unsigned long long state = 5;
    ren_trainer_config how = sgd(0.0f);
    ren_runtime *rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    for (uint32_t i = 0; i < 12 * ROW; i++) {
        x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (uint32_t i = 0; i < 12; i++) {
        labels[i] = (int32_t)(ren_test_random(&state) % 10u);
    }
    net whole;
    ren_trainer *t;
    net_build(&whole, rt, NET_MLP, 12, 11);
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(whole.model, whole.loss, &how, &t, NULL), REN_OK);
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t rows = 1; rows <= 12; rows++) {
            net part;
            ren_trainer *pt;
            net_result want, got;
            ren_job job;
            net_build(&part, rt, NET_MLP, rows, 11);
            CU_ASSERT_EQUAL_FATAL(ren_trainer_create(part.model, part.loss, &how, &pt, NULL),
                                  REN_OK);
            net_step(&part, rt, pt, x, labels, &want);
            CU_ASSERT_EQUAL(net_post(&whole, t, x, labels, rows, &got, &job), REN_OK);
            await_calls(&got.calls, 1);
            CU_ASSERT_EQUAL(got.status, REN_OK);
            CU_ASSERT_DOUBLE_EQUAL((double)got.step.loss, (double)want.step.loss,
                                   1e-6 * fabs((double)want.step.loss));
            ren_trainer_destroy(pt);
            ren_model_destroy(part.model);
        }
    }
    ren_trainer_destroy(t);
    ren_model_destroy(whole.model);
    ren_test_shutdown(rt);
}

/* The parameters after one step at rate 0.1 and, if asked, a second one posted at rate 0 while the
 * first has not begun. */
static float *params_after(uint32_t steps, size_t *count)
{
    static float x[2][BATCH * ROW];
    static int32_t labels[2][BATCH];
    net_result results[2];
    ren_job job;
    ren_trainer_config how = sgd(0.1f);
    world w;
    how.momentum = 0.0f;
    open_world(&w, NULL, &how, 0);
    ren_test_hold(w.rt, REN_STREAM_TRANS);
    for (uint32_t i = 0; i < steps; i++) {
        fill_batch(400 + i, x[i], labels[i]);
        CU_ASSERT_EQUAL(net_post(&w.n, w.t, x[i], labels[i], BATCH, &results[i], &job), REN_OK);
        CU_ASSERT_EQUAL(ren_trainer_set_scalar(w.t, REN_SCALAR_LEARNING_RATE, 0.0f), REN_OK);
    }
    ren_test_release(w.rt, REN_STREAM_TRANS);
    float *params = net_params(&w.n, count);
    close_world(&w);
    return params;
}

/* A value outside its scalar's range is refused, whichever way it comes in, and changes nothing. */
static void test_scalar_ranges(void)
{
    static const struct {
        ren_scalar scalar;
        size_t at; /* in the configuration */
        float wrong;
        const char *text;
    } cases[] = {
        {REN_SCALAR_LEARNING_RATE, offsetof(ren_trainer_config, learning_rate), -0.1f,
         "learning_rate -0.1 is negative"},
        {REN_SCALAR_MOMENTUM, offsetof(ren_trainer_config, momentum), -1.0f,
         "momentum -1 is negative"},
        {REN_SCALAR_BETA1, offsetof(ren_trainer_config, beta1), 1.0f, "beta1 1 is not in [0, 1)"},
        {REN_SCALAR_BETA2, offsetof(ren_trainer_config, beta2), 2.0f, "beta2 2 is not in [0, 1)"},
        {REN_SCALAR_EPS, offsetof(ren_trainer_config, eps), -1e-8f, "eps -1e-08 is negative"},
        {REN_SCALAR_WEIGHT_DECAY, offsetof(ren_trainer_config, weight_decay), -1.0f,
         "weight_decay -1 is negative"},
        {REN_SCALAR_LARS_ETA, offsetof(ren_trainer_config, lars_eta), INFINITY,
         "lars_eta is not finite"},
        {REN_SCALAR_CLIP_NORM, offsetof(ren_trainer_config, clip_norm), -2.0f,
         "clip_norm -2 is negative"},
        {REN_SCALAR_EMA_DECAY, offsetof(ren_trainer_config, ema_decay), 1.0f,
         "ema_decay 1 is not in [0, 1)"},
    };
    ren_trainer_config how = sgd(0.05f);
    how.clip_norm = 1000.0f;
    how.ema_decay = 0.5f;
    for (size_t i = 0; i < REN_TEST_COUNT(cases); i++) {
        ren_trainer_config wrong = how;
        float losses[2];
        ren_error err;
        world w;
        memcpy((unsigned char *)&wrong + cases[i].at, &cases[i].wrong, sizeof(float));
        memset(&w, 0, sizeof w);
        w.rt = ren_test_runtime(NULL);
        CU_ASSERT_PTR_NOT_NULL_FATAL(w.rt);
        net_build(&w.n, w.rt, NET_MLP, BATCH, 11);
        CU_ASSERT_EQUAL(ren_trainer_create(w.n.model, w.n.loss, &wrong, &w.t, &err),
                        REN_ERR_INVALID_ARGUMENT);
        CU_ASSERT_STRING_EQUAL(err.text, cases[i].text);
        CU_ASSERT_EQUAL_FATAL(ren_trainer_create(w.n.model, w.n.loss, &how, &w.t, &err), REN_OK);
        for (uint32_t run = 0; run < 2; run++) {
            (void)loss_of(&w, 1);
            CU_ASSERT_EQUAL(ren_trainer_set_scalar(w.t, cases[i].scalar, cases[i].wrong),
                            REN_ERR_INVALID_ARGUMENT);
            losses[run] = loss_of(&w, 1);
        }
        CU_ASSERT(losses[1] < losses[0]);
        close_world(&w);
    }
}

/* Promise 5: a scalar takes effect at the next posted step, also while the one before has not
 * begun. With rate 0 from the second step on, two steps leave the weights of one. Taking scalars
 * at issue or on the device would give the first step the new rate. */
static void test_scalar_next_step(void)
{
    size_t count;
    float *none = params_after(0, &count);
    float *one = params_after(1, &count);
    float *two = params_after(2, &count);
    CU_ASSERT_NOT_EQUAL(memcmp(one, none, count * sizeof(float)), 0);
    CU_ASSERT_EQUAL(memcmp(one, two, count * sizeof(float)), 0);
    free(none);
    free(one);
    free(two);
    world w;
    ren_trainer_config how = sgd(0.1f);
    open_world(&w, NULL, &how, 0);
    CU_ASSERT_EQUAL(ren_trainer_set_scalar(w.t, REN_SCALAR_EMA_DECAY, 0.5f), REN_ERR_UNSUPPORTED);
    CU_ASSERT_EQUAL(ren_trainer_set_scalar(w.t, REN_SCALAR_CLIP_NORM, 0.5f), REN_ERR_UNSUPPORTED);
    close_world(&w);
}

/* ------------------------------------------------------------------ dropout */

#define DROPS 5u

/* Losses of the same batch at rate 0: only the masks differ from step to step. */
static void dropout_losses(uint64_t seed, uint32_t streams, float *losses)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    int64_t dims[2] = {BATCH, ROW};
    ren_linear_options o = ren_linear_options_default();
    ren_model_config how_model = ren_model_config_default();
    ren_runtime_config config = ren_test_config();
    ren_trainer_config how = sgd(0.0f);
    world w;
    memset(&w, 0, sizeof w);
    config.streams = streams;
    how_model.seed = seed;
    w.rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(w.rt);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(w.rt, &how_model, &w.n.model, NULL), REN_OK);
    ren_model *m = w.n.model;
    ren_tensor in = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    o.units = 10;
    ren_tensor a = ren_linear(m, "a", ren_dropout(m, "drop_a", in, NULL), &o);
    ren_tensor b = ren_linear(m, "b", ren_dropout(m, "drop_b", in, NULL), &o);
    ren_tensor loss = ren_softmax_cross_entropy(m, "loss", ren_add(m, "sum", a, b), y, NULL);
    /* The same weights under every seed: what differs is the masks. */
    float weight[10 * ROW];
    for (uint32_t i = 0; i < 10 * ROW; i++) {
        weight[i] = (float)(i % 7u) * 0.1f - 0.3f;
    }
    CU_ASSERT_EQUAL(ren_param_set(m, "a.weight", weight, sizeof weight), REN_OK);
    CU_ASSERT_EQUAL(ren_param_set(m, "b.weight", weight, sizeof weight), REN_OK);
    CU_ASSERT_EQUAL(ren_param_set(m, "a.bias", weight, 10 * sizeof(float)), REN_OK);
    CU_ASSERT_EQUAL(ren_param_set(m, "b.bias", weight, 10 * sizeof(float)), REN_OK);
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(m, loss, &how, &w.t, NULL), REN_OK);
    w.n.batch = BATCH;
    w.n.row = ROW;
    fill_batch(1, x, labels);
    for (uint32_t i = 0; i < DROPS; i++) {
        net_result r;
        net_step(&w.n, w.rt, w.t, x, labels, &r);
        losses[i] = r.step.loss;
    }
    close_world(&w);
}

/* Failure row 22: each step draws a new mask, the same one for the same seed on any number of
 * streams, and another one for another seed. */
static void test_dropout_masks(void)
{
    float first[DROPS], again[DROPS], other[DROPS];
    dropout_losses(5, 5, first);
    dropout_losses(5, 1, again);
    dropout_losses(6, 5, other);
    CU_ASSERT_EQUAL(memcmp(first, again, sizeof first), 0);
    for (uint32_t i = 0; i < DROPS; i++) {
        CU_ASSERT_NOT_EQUAL(first[i], other[i]);
        for (uint32_t k = 0; k < i; k++) {
            CU_ASSERT_NOT_EQUAL(first[i], first[k]);
        }
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_step_refusals", test_step_refusals},
        {"test_validate_explains", test_validate_explains},
        {"test_trainer_create_refusals", test_trainer_create_refusals},
        {"test_step_queue_full", test_step_queue_full},
        {"test_input_slots", test_input_slots},
        {"test_input_acquire_again", test_input_acquire_again},
        {"test_inputs_consumed", test_inputs_consumed},
        {"test_inputs_consumed_staged", test_inputs_consumed_staged},
        {"test_step_refused_staged", test_step_refused_staged},
        {"test_step_order_staged", test_step_order_staged},
        {"test_input_copy_overlaps", test_input_copy_overlaps},
        {"test_input_slot_reuse", test_input_slot_reuse},
        {"test_step_short_batches", test_step_short_batches},
        {"test_scalar_next_step", test_scalar_next_step},
        {"test_scalar_ranges", test_scalar_ranges},
        {"test_dropout_masks", test_dropout_masks},
    };
    return ren_test_main(argc, argv, "conformance/test_trainer", cases, REN_TEST_COUNT(cases), 120);
}
