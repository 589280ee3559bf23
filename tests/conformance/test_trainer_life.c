/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_trainer_life.c - cancelled steps, ends, failing calls, reads under
 * training.
 *
 * What may go wrong around a step, and that each accepted step then still completes once and is
 * applied whole or not at all.
 */
#include "../support/gate.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "world.h"

#include "../../libren/train/model.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------ cancel and destroy */

typedef struct seen {
    uint32_t calls;
    uint32_t consumed;
    ren_status status;
    uint64_t index;
    uint64_t version;
    float loss;
} seen;

static void on_seen(const ren_completion *c, void *user)
{
    seen *s = user;
    s->status = c->status;
    s->index = c->step ? c->step->index : 0;
    s->version = c->weight_version;
    s->loss = c->step ? c->step->loss : 0.0f;
    __atomic_fetch_add(&s->calls, 1, __ATOMIC_RELEASE);
}

static void on_consumed(void *user)
{
    __atomic_fetch_add(&((seen *)user)->consumed, 1, __ATOMIC_RELEASE);
}

/* x NULL: the lent slots. */
static ren_status post(world *w, const float *x, const int32_t *labels, seen *s, ren_job *job)
{
    ren_binding bindings[2] = {{"x", x, x ? BATCH * ROW * sizeof(float) : 0},
                               {"labels", labels, labels ? BATCH * sizeof(int32_t) : 0}};
    ren_step_desc desc = ren_step_desc_default();
    memset(s, 0, sizeof *s);
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.done = on_seen;
    desc.user = s;
    desc.inputs_consumed = on_consumed;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    return ren_trainer_step(w->t, &desc, job);
}

/* What a run ends with that never had the second of three steps; free() it. */
static float *without_the_second(const ren_trainer_config *how, float losses[2], size_t *out_count)
{
    world w;
    open_world(&w, NULL, how, 0);
    losses[0] = loss_of(&w, 1);
    losses[1] = loss_of(&w, 3);
    float *want = net_params(&w.n, out_count);
    close_world(&w);
    return want;
}

/* A cancelled step is not applied, gives back its slot and completes once; the steps around it run
 * as if it had never been. The host drives the submitter, so the cancel surely comes in time. */
static void check_cancel(uint32_t lent)
{
    static float x[3][BATCH * ROW];
    static int32_t labels[3][BATCH];
    static seen seens[3];
    ren_job jobs[3];
    ren_runtime_config config = ren_test_config();
    ren_trainer_config how = sgd(0.05f);
    float losses[2];
    size_t count;
    world w;
    float *want = without_the_second(&how, losses, &count);

    config.host_drives_submitter = 1;
    open_world(&w, &config, &how, 0);
    for (uint32_t i = 0; i < 3; i++) {
        const float *from = x[i];
        const int32_t *from_labels = labels[i];
        fill_batch(i + 1, x[i], labels[i]);
        if (lent && i == 1) {
            void *px;
            void *pl;
            CU_ASSERT_EQUAL(ren_input_acquire(w.t, "x", &px, NULL), REN_OK);
            CU_ASSERT_EQUAL(ren_input_acquire(w.t, "labels", &pl, NULL), REN_OK);
            memcpy(px, x[i], sizeof x[i]);
            memcpy(pl, labels[i], sizeof labels[i]);
            from = NULL;
            from_labels = NULL;
        }
        CU_ASSERT_EQUAL(post(&w, from, from_labels, &seens[i], &jobs[i]), REN_OK);
    }
    CU_ASSERT_EQUAL(ren_cancel(w.rt, jobs[1]), REN_OK);
    float *got = net_params(&w.n, &count); /* ticks until all is done */
    for (uint32_t i = 0; i < 3; i++) {
        await_calls(&seens[i].calls, 1);
        await_calls(&seens[i].consumed, 1);
        CU_ASSERT_EQUAL(seens[i].status, i == 1 ? REN_CANCELLED : REN_OK);
        CU_ASSERT_EQUAL(seens[i].index, i + 1);
    }
    CU_ASSERT_EQUAL(seens[0].loss, losses[0]);
    CU_ASSERT_EQUAL(seens[2].loss, losses[1]);
    CU_ASSERT_EQUAL(memcmp(got, want, count * sizeof(float)), 0);
    void *px;
    CU_ASSERT_EQUAL(ren_input_acquire(w.t, "x", &px, NULL), REN_OK);
    free(got);
    free(want);
    close_world(&w);
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(seens[i].calls, 1);
        CU_ASSERT_EQUAL(seens[i].consumed, 1);
    }
}

static void test_step_cancelled(void)
{
    check_cancel(0);
}

static void test_step_cancelled_lent(void)
{
    check_cancel(1);
}

/* A step that was cancelled before its inputs were copied into pinned memory reads them no more:
 * the host frees them at once, which a sanitizer would see. Steps behind it are not disturbed. */
static void test_step_cancelled_staged(void)
{
    ren_trainer_config how = sgd(0.05f);
    ren_runtime_config config = ren_test_config();
    world w;
    config.host_drives_submitter = 1;
    open_world(&w, &config, &how, 1);
    for (uint32_t round = 0; round < 10; round++) {
        float *x = malloc(BATCH * ROW * sizeof *x);
        int32_t *labels = malloc(BATCH * sizeof *labels);
        net_result gone;
        ren_job job;
        CU_ASSERT_FATAL(x && labels);
        fill_batch(round, x, labels);
        CU_ASSERT_EQUAL(net_post(&w.n, w.t, x, labels, BATCH, &gone, &job), REN_OK);
        CU_ASSERT_EQUAL(ren_cancel(w.rt, job), REN_OK);
        CU_ASSERT_EQUAL(ren_wait(w.rt, job, 10 * SECOND), REN_CANCELLED);
        free(x);
        free(labels);
        CU_ASSERT(loss_of(&w, round) > 0.0f);
        CU_ASSERT_EQUAL(gone.calls, 1);
    }
    close_world(&w);
}

static void wait_at_door(void *door)
{
    while (sem_wait(door) != 0) {
    }
}

/* A request for the logits of batch 1, issued before jobs of the other classes. */
static void post_infer(world *w, const float *x, float *out, seen *s)
{
    ren_binding binding = {"x", x, BATCH * ROW * sizeof *x};
    ren_infer_desc desc = ren_infer_desc_default();
    memset(s, 0, sizeof *s);
    desc.bindings = &binding;
    desc.binding_count = 1;
    desc.output = w->n.logits;
    desc.out_data = out;
    desc.out_bytes = BATCH * 10 * sizeof *out;
    desc.priority = REN_PRIORITY_REALTIME;
    desc.done = on_seen;
    desc.user = s;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    CU_ASSERT_EQUAL(ren_infer(w->n.model, &desc, NULL), REN_OK);
}

/* The first step waits for its inputs to be copied, the second is cancelled, the third and an
 * inference could go at once. They still go after the first: the third begins with its weights, and
 * the inference has seen two updates. Fails if what goes after the cancelled step goes when that is
 * done, rather than when all before it have gone. */
static void test_steps_stay_in_order_over_a_cancelled_one(void)
{
    static float x[3][BATCH * ROW], out[BATCH * 10];
    static int32_t labels[3][BATCH];
    static seen seens[3], inferred;
    ren_runtime_config config = ren_test_config();
    ren_trainer_config how = sgd(0.05f);
    ren_job_desc at_door = ren_job_desc_default();
    ren_job cancelled;
    size_t count;
    void *px, *pl;
    float losses[2];
    sem_t door;
    world w;
    float *want = without_the_second(&how, losses, &count);

    CU_ASSERT_EQUAL_FATAL(sem_init(&door, 0, 0), 0);
    config.host_drives_submitter = 1;
    open_world(&w, &config, &how, 1);
    CU_ASSERT_EQUAL(ren_infer_prepare(w.n.model, w.n.logits, NULL), REN_OK);
    for (uint32_t i = 0; i < 3; i++) {
        fill_batch(i + 1, x[i], labels[i]);
    }
    at_door.kind = REN_JOB_HOST;
    at_door.stream = REN_STREAM_TRANS;
    at_door.host_fn = wait_at_door;
    at_door.host_user = &door;
    CU_ASSERT_EQUAL(ren_post(w.rt, &at_door, NULL), REN_OK);
    CU_ASSERT_EQUAL(post(&w, x[0], labels[0], &seens[0], NULL), REN_OK);
    CU_ASSERT_EQUAL(post(&w, x[1], labels[1], &seens[1], &cancelled), REN_OK);
    CU_ASSERT_EQUAL(ren_cancel(w.rt, cancelled), REN_OK);
    CU_ASSERT_EQUAL_FATAL(ren_input_acquire(w.t, "x", &px, NULL), REN_OK);
    CU_ASSERT_EQUAL_FATAL(ren_input_acquire(w.t, "labels", &pl, NULL), REN_OK);
    memcpy(px, x[2], sizeof x[2]);
    memcpy(pl, labels[2], sizeof labels[2]);
    CU_ASSERT_EQUAL(post(&w, NULL, NULL, &seens[2], NULL), REN_OK);
    post_infer(&w, x[0], out, &inferred);
    CU_ASSERT_EQUAL(ren_runtime_tick(w.rt, 0, NULL), REN_OK);
    (void)sem_post(&door);
    float *got = net_params(&w.n, &count); /* ticks until all is done */
    await_calls(&seens[0].calls, 1);
    await_calls(&seens[1].calls, 1);
    await_calls(&seens[2].calls, 1);
    await_calls(&inferred.calls, 1);
    CU_ASSERT_EQUAL(seens[1].status, REN_CANCELLED);
    CU_ASSERT_EQUAL(seens[0].loss, losses[0]);
    CU_ASSERT_EQUAL(seens[2].loss, losses[1]);
    CU_ASSERT_EQUAL(inferred.version, 2);
    CU_ASSERT_EQUAL(memcmp(got, want, count * sizeof(float)), 0);
    free(got);
    free(want);
    close_world(&w);
    (void)sem_destroy(&door);
}

typedef struct next_step {
    world *w;
    seen first, second;
    ren_job second_job;
    ren_status posted; /* the second step, by the first one's callback */
} next_step;

static float next_x[BATCH * ROW];
static int32_t next_labels[BATCH];

static void post_next(const ren_completion *c, void *user)
{
    next_step *n = user;
    n->posted = post(n->w, next_x, next_labels, &n->second, &n->second_job);
    on_seen(c, &n->first);
}

static void *post_first(void *user)
{
    next_step *n = user;
    ren_binding bindings[2] = {{"x", next_x, sizeof next_x},
                               {"labels", next_labels, sizeof next_labels}};
    ren_step_desc desc = ren_step_desc_default();
    static ren_job job;
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.done = post_next;
    desc.user = n;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    job.id = 0;
    CU_ASSERT_EQUAL(ren_trainer_step(n->w->t, &desc, &job), REN_OK);
    return &job;
}

/* A step's callback posts the next step before the post of the first has returned. Both are
 * numbered and completed as ever, and each post gives its own step's job. Fails if a post still
 * changes what the next one goes by when its step may be done. */
static void test_callback_posts_before_the_post_returns(void)
{
    static next_step n;
    ren_trainer_config how = sgd(0.05f);
    ren_stats stats = ren_stats_default();
    pthread_t poster;
    void *first_job;
    uint64_t before;
    world w;
    memset(&n, 0, sizeof n);
    n.w = &w;
    open_world(&w, NULL, &how, 0);
    fill_batch(1, next_x, next_labels);
    CU_ASSERT_EQUAL(ren_runtime_stats(w.rt, &stats), REN_OK);
    before = stats.jobs_posted;
    ren_test_pause(w.rt, "step.posted");
    CU_ASSERT_EQUAL_FATAL(pthread_create(&poster, NULL, post_first, &n), 0);
    while (stats.jobs_posted < before + 2) {
        (void)sched_yield();
        CU_ASSERT_EQUAL_FATAL(ren_runtime_stats(w.rt, &stats), REN_OK);
    }
    ren_test_resume(w.rt, "step.posted");
    CU_ASSERT_EQUAL(pthread_join(poster, &first_job), 0);
    await_calls(&n.first.calls, 1);
    CU_ASSERT_EQUAL(n.posted, REN_OK);
    await_calls(&n.second.calls, 1);
    CU_ASSERT_EQUAL(n.first.index, 1);
    CU_ASSERT_EQUAL(n.second.index, 2);
    CU_ASSERT(((ren_job *)first_job)->id != n.second_job.id);
    CU_ASSERT(loss_of(&w, 2) > 0.0f);
    close_world(&w);
}

/* Destroying a trainer waits for its steps; none is lost. Models and trainers may come and go, and
 * a second trainer begins anew (index 1, moments zero) on the weights as they are. */
static void test_trainer_destroy_waits(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    static seen seens[64];
    uint32_t accepted = 0;
    ren_trainer_config how = sgd(0.01f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(9, x, labels);
    for (uint32_t round = 0; round < 5; round++) {
        uint32_t first = accepted;
        while (accepted < 60 && accepted - first < 6 &&
               post(&w, x, labels, &seens[accepted], NULL) == REN_OK) {
            accepted++;
        }
        ren_trainer_destroy(w.t);
        w.t = NULL;
        CU_ASSERT_EQUAL(ren_runtime_drain(w.rt, 10 * SECOND), REN_OK);
        for (uint32_t i = first; i < accepted; i++) {
            await_calls(&seens[i].calls, 1);
            CU_ASSERT_EQUAL(seens[i].status, REN_OK);
            CU_ASSERT_EQUAL(seens[i].index, i - first + 1);
            CU_ASSERT_EQUAL(__atomic_load_n(&seens[i].consumed, __ATOMIC_ACQUIRE), 1);
        }
        CU_ASSERT_EQUAL_FATAL(ren_trainer_create(w.n.model, w.n.loss, &how, &w.t, NULL), REN_OK);
    }
    CU_ASSERT(accepted >= 10);
    close_world(&w);
}

/* A closed runtime refuses steps with nothing kept; what was accepted before completes. */
static void test_step_after_close(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    static seen seens[2];
    void *px;
    ren_trainer_config how = sgd(0.01f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(9, x, labels);
    CU_ASSERT_EQUAL(ren_input_acquire(w.t, "x", &px, NULL), REN_OK);
    CU_ASSERT_EQUAL(post(&w, x, labels, &seens[0], NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_close(w.rt), REN_OK);
    CU_ASSERT_EQUAL(post(&w, x, labels, &seens[1], NULL), REN_ERR_CLOSED);
    CU_ASSERT_EQUAL(post(&w, NULL, labels, &seens[1], NULL), REN_ERR_CLOSED);
    close_world(&w);
    CU_ASSERT_EQUAL(seens[0].calls, 1);
    CU_ASSERT_EQUAL(seens[0].status, REN_OK);
    CU_ASSERT_EQUAL(seens[1].calls, 0);
    CU_ASSERT_EQUAL(seens[1].consumed, 0);
}

/* ------------------------------------------------------------------ failing device calls */

/* One step fails by the nth call of a kind; the next succeeds. The weights then are those of one
 * step or of two, and the completions say which: a step reported failed is not applied, one
 * reported done is. An optimizer that ran in a failed step, or Adam counting it, gives a third
 * value. */
static void sweep_failures(const char *call, ren_optimizer optimizer)
{
    static float x[2][BATCH * ROW];
    static int32_t labels[2][BATCH];
    float *want[2];
    size_t count;
    uint32_t failed = 0;
    ren_trainer_config how = sgd(0.01f);
    how.optimizer = optimizer;
    fill_batch(21, x[0], labels[0]);
    fill_batch(22, x[1], labels[1]);
    for (uint32_t both = 0; both < 2; both++) {
        world w;
        open_world(&w, NULL, &how, 0);
        if (both) {
            (void)loss_of(&w, 21);
        }
        (void)loss_of(&w, 22);
        want[both] = net_params(&w.n, &count);
        close_world(&w);
    }
    for (uint64_t nth = 1; nth < 200; nth++) {
        seen first, second;
        ren_job job;
        world w;
        open_world(&w, NULL, &how, 0);
        uint64_t before = ren_test_calls(w.rt, call);
        ren_test_fault(w.rt, call, nth, REN_ERR_DEVICE, 0);
        CU_ASSERT_EQUAL(post(&w, x[0], labels[0], &first, &job), REN_OK);
        await_calls(&first.calls, 1);
        uint64_t made = ren_test_calls(w.rt, call) - before;
        ren_test_fault_clear(w.rt);
        CU_ASSERT_EQUAL(post(&w, x[1], labels[1], &second, &job), REN_OK);
        await_calls(&second.calls, 1);
        CU_ASSERT_EQUAL(second.status, REN_OK);
        float *got = net_params(&w.n, &count);
        uint32_t applied = first.status == REN_OK;
        if (memcmp(got, want[applied], count * sizeof(float)) != 0) {
            (void)fprintf(stderr, "%s %llu: status %s, weights of neither\n", call,
                          (unsigned long long)nth, ren_status_name(first.status));
            CU_FAIL("a failed step was applied in part");
        }
        await_calls(&first.consumed, 1);
        failed += !applied;
        free(got);
        close_world(&w);
        if (made < nth) {
            break;
        }
    }
    CU_ASSERT(failed >= 1);
    free(want[0]);
    free(want[1]);
}

static void test_failing_launches(void)
{
    sweep_failures("op_launch", REN_OPTIMIZER_SGD);
    sweep_failures("op_launch", REN_OPTIMIZER_ADAM);
}

static void test_failing_copies(void)
{
    sweep_failures("copy", REN_OPTIMIZER_ADAM);
}

static void test_failing_events(void)
{
    sweep_failures("event_wait", REN_OPTIMIZER_ADAM);
    sweep_failures("event_record", REN_OPTIMIZER_ADAM);
}

/* The device is lost under steps: each completes once with that, later posts are refused with it,
 * and trainer, model and runtime go away without a hang. */
static void test_device_lost(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    static seen seens[6];
    ren_trainer_config how = sgd(0.01f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(9, x, labels);
    ren_test_fault(w.rt, "op_launch", 25, REN_ERR_DEVICE_LOST, 1);
    uint32_t accepted = 0;
    for (uint32_t i = 0; i < 6; i++) {
        accepted += post(&w, x, labels, &seens[accepted], NULL) == REN_OK;
    }
    for (uint32_t i = 0; i < accepted; i++) {
        await_calls(&seens[i].calls, 1);
    }
    CU_ASSERT_EQUAL(seens[accepted - 1].status, REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(post(&w, x, labels, &seens[0], NULL), REN_ERR_DEVICE_LOST);
    float value[10];
    CU_ASSERT_EQUAL(ren_param_get(w.n.model, "l3.bias", value, sizeof value), REN_ERR_DEVICE_LOST);
    ren_trainer_destroy(w.t);
    ren_model_destroy(w.n.model);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(w.rt, 5 * SECOND), REN_OK);
}

/* The host aborts while the device is stuck under steps: each accepted one completes once, with an
 * error, and everything can be destroyed. */
static void test_abort_under_steps(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    static seen seens[8];
    seen late;
    ren_trainer_config how = sgd(0.01f);
    uint32_t accepted = 0;
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(9, x, labels);
    ren_test_hold(w.rt, REN_STREAM_UPDATE);
    while (accepted < 8 && post(&w, x, labels, &seens[accepted], NULL) == REN_OK) {
        accepted++;
    }
    CU_ASSERT_EQUAL(ren_runtime_abort(w.rt), REN_OK);
    for (uint32_t i = 0; i < accepted; i++) {
        await_calls(&seens[i].calls, 1);
        CU_ASSERT(seens[i].status < 0);
    }
    CU_ASSERT(post(&w, x, labels, &late, NULL) < 0);
    ren_test_release(w.rt, REN_STREAM_UPDATE);
    ren_trainer_destroy(w.t);
    ren_model_destroy(w.n.model);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(w.rt, 5 * SECOND), REN_OK);
    for (uint32_t i = 0; i < accepted; i++) {
        CU_ASSERT_EQUAL(seens[i].calls, 1);
        CU_ASSERT_EQUAL(seens[i].consumed, 1);
    }
}

static int child_of_fork(world *w, float *x, int32_t *labels)
{
    seen s;
    void *ptr;
    float bias[10];
    ren_infer_desc desc = ren_infer_desc_default();
    desc.output = w->n.logits;
    desc.out_data = bias;
    int wrong = post(w, x, labels, &s, NULL) != REN_ERR_FORKED;
    wrong += ren_infer(w->n.model, &desc, NULL) != REN_ERR_FORKED;
    wrong += ren_input_acquire(w->t, "x", &ptr, NULL) != REN_ERR_FORKED;
    wrong += ren_trainer_set_scalar(w->t, REN_SCALAR_MOMENTUM, 0.0f) != REN_ERR_FORKED;
    wrong += ren_param_get(w->n.model, "l3.bias", bias, sizeof bias) != REN_ERR_FORKED;
    wrong += ren_param_set(w->n.model, "l3.bias", bias, sizeof bias) != REN_ERR_FORKED;
    ren_trainer_destroy(w->t);
    ren_model_destroy(w->n.model);
    wrong += ren_runtime_destroy(w->rt) != REN_OK;
    return wrong;
}

/* Failure row 36: a child forked under steps gets REN_ERR_FORKED from every call, can destroy all
 * it sees, and ends; the parent's steps go on. */
static void test_fork_under_steps(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    static seen seens[4];
    ren_trainer_config how = sgd(0.01f);
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(9, x, labels);
    for (uint32_t i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL(post(&w, x, labels, &seens[i], NULL), REN_OK);
    }
    pid_t child = fork();
    CU_ASSERT_FATAL(child >= 0);
    if (child == 0) {
        (void)alarm(5);
        _exit(child_of_fork(&w, x, labels));
    }
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    CU_ASSERT(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
    for (uint32_t i = 0; i < 4; i++) {
        await_calls(&seens[i].calls, 1);
        CU_ASSERT_EQUAL(seens[i].status, REN_OK);
    }
    close_world(&w);
}

/* ------------------------------------------------------------------ weights beside steps */

typedef struct reader {
    net *n;
    uint32_t stop;
    uint32_t reads;
    uint32_t torn;
} reader;

/* Two layers that start equal and get equal inputs and gradients stay equal at every step
 * boundary. */
static ren_model *twin_model(ren_runtime *rt, ren_tensor *loss)
{
    int64_t dims[2] = {BATCH, ROW};
    ren_model *m = NULL;
    ren_linear_options o = ren_linear_options_default();
    o.units = 10;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor a = ren_linear(m, "a", x, &o);
    ren_tensor b = ren_linear(m, "b", x, &o);
    *loss = ren_softmax_cross_entropy(m, "loss", ren_add(m, "sum", a, b), y, NULL);
    float weight[10 * ROW], bias[10];
    CU_ASSERT_EQUAL(ren_param_get(m, "a.weight", weight, sizeof weight), REN_OK);
    CU_ASSERT_EQUAL(ren_param_set(m, "b.weight", weight, sizeof weight), REN_OK);
    CU_ASSERT_EQUAL(ren_param_get(m, "a.bias", bias, sizeof bias), REN_OK);
    CU_ASSERT_EQUAL(ren_param_set(m, "b.bias", bias, sizeof bias), REN_OK);
    return m;
}

static void *read_weights(void *arg)
{
    reader *r = arg;
    while (!__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE) || r->reads < 20) {
        size_t count;
        float *all = net_params(r->n, &count);
        r->torn += memcmp(all, all + count / 2, count / 2 * sizeof(float)) != 0;
        r->reads++;
        free(all);
    }
    return NULL;
}

/* Reads beside training see one version: the twin layers are equal in each. A read split over two
 * works, or a copy not ordered against the update, tears. */
static void test_read_under_training(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.05f);
    ren_tensor loss;
    pthread_t thread;
    world w;
    memset(&w, 0, sizeof w);
    w.rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(w.rt);
    w.n.model = twin_model(w.rt, &loss);
    w.n.row = ROW;
    w.n.batch = BATCH;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(w.n.model, loss, &how, &w.t, NULL), REN_OK);
    reader r = {.n = &w.n};
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, read_weights, &r), 0);
    for (uint32_t i = 0; i < 300 / ren_test_slowdown(); i++) {
        net_result result;
        fill_batch(i, x, labels);
        net_step(&w.n, w.rt, w.t, x, labels, &result);
        CU_ASSERT_EQUAL(result.status, REN_OK);
    }
    __atomic_store_n(&r.stop, 1, __ATOMIC_RELEASE);
    CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    CU_ASSERT(r.reads >= 20);
    CU_ASSERT_EQUAL(r.torn, 0);
    close_world(&w);
}

/* A write between two posts is seen by the second step and not by the first, also with both under
 * way: the loss after setting the first weights again is the first loss. */
static void test_write_under_training(void)
{
    static float x[BATCH * ROW];
    static int32_t labels[BATCH];
    ren_trainer_config how = sgd(0.05f);
    how.momentum = 0.0f;
    size_t count;
    world w;
    open_world(&w, NULL, &how, 0);
    fill_batch(33, x, labels);
    float *first = net_params(&w.n, &count);
    float loss = loss_of(&w, 33);
    CU_ASSERT_NOT_EQUAL(loss_of(&w, 33), loss);
    for (uint32_t i = 0; i < 10; i++) {
        net_result r, s;
        ren_job job;
        CU_ASSERT_EQUAL(net_post(&w.n, w.t, x, labels, BATCH, &r, &job), REN_OK);
        CU_ASSERT_EQUAL(ren__model_params_write(w.n.model, first, count * sizeof(float), NULL),
                        REN_OK);
        CU_ASSERT_EQUAL(net_post(&w.n, w.t, x, labels, BATCH, &s, &job), REN_OK);
        await_calls(&s.calls, 1);
        CU_ASSERT_EQUAL(s.step.loss, loss);
    }
    free(first);
    close_world(&w);
}

/* Part of the parameters written, the others as they were. */
static void test_write_some(void)
{
    ren_trainer_config how = sgd(0.05f);
    uint8_t present[6] = {0, 1, 0, 0, 1, 1};
    size_t count;
    world w;
    open_world(&w, NULL, &how, 0);
    float *before = net_params(&w.n, &count);
    float *data = malloc(count * sizeof(float));
    CU_ASSERT_PTR_NOT_NULL_FATAL(data);
    for (size_t i = 0; i < count; i++) {
        data[i] = (float)i;
    }
    CU_ASSERT_EQUAL(ren__model_params_write(w.n.model, data, count * sizeof(float), present),
                    REN_OK);
    float *after = net_params(&w.n, &count);
    size_t at = 0;
    for (uint32_t p = 0; p < 6; p++) {
        uint64_t bytes;
        ren__model_param_info(w.n.model, p, NULL, NULL, NULL, &bytes);
        CU_ASSERT_EQUAL(memcmp(after + at, (present[p] ? data : before) + at, (size_t)bytes), 0);
        at += (size_t)bytes / sizeof(float);
    }
    CU_ASSERT_EQUAL(ren__model_params_write(w.n.model, data, count, NULL), REN_ERR_SHAPE);
    CU_ASSERT_EQUAL(ren__model_params_read(w.n.model, data, count), REN_ERR_SHAPE);
    free(before);
    free(data);
    free(after);
    close_world(&w);
}

/* A part of the model that the loss does not need is left alone, by weight decay as well. */
static void test_unused_parameters_stay(void)
{
    float before[2 * ROW], after[2 * ROW];
    ren_trainer_config how = sgd(0.1f);
    ren_linear_options o = ren_linear_options_default();
    int64_t dims[2] = {BATCH, ROW};
    world w;
    memset(&w, 0, sizeof w);
    how.weight_decay = 0.5f;
    w.rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(w.rt);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(w.rt, NULL, &w.n.model, NULL), REN_OK);
    ren_tensor x = ren_input(w.n.model, "x", REN_F32, dims, 2);
    ren_tensor y = ren_input(w.n.model, "labels", REN_I32, dims, 1);
    o.units = 2;
    (void)ren_linear(w.n.model, "head0", x, &o);
    o.units = 10;
    ren_tensor h = ren_linear(w.n.model, "used", x, &o);
    o.units = 2;
    (void)ren_linear(w.n.model, "head1", h, &o);
    ren_tensor loss = ren_softmax_cross_entropy(w.n.model, "loss", h, y, NULL);
    w.n.row = ROW;
    w.n.batch = BATCH;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(w.n.model, loss, &how, &w.t, NULL), REN_OK);
    float head1[2 * 10], head1_after[2 * 10], used[10 * ROW], used_after[10 * ROW];
    ren_param_get(w.n.model, "head0.weight", before, sizeof before);
    ren_param_get(w.n.model, "head1.weight", head1, sizeof head1);
    ren_param_get(w.n.model, "used.weight", used, sizeof used);
    (void)loss_of(&w, 1);
    CU_ASSERT_EQUAL(ren_param_get(w.n.model, "head0.weight", after, sizeof after), REN_OK);
    CU_ASSERT_EQUAL(memcmp(before, after, sizeof before), 0);
    CU_ASSERT_EQUAL(ren_param_get(w.n.model, "head1.weight", head1_after, sizeof head1), REN_OK);
    CU_ASSERT_EQUAL(memcmp(head1, head1_after, sizeof head1), 0);
    CU_ASSERT_EQUAL(ren_param_get(w.n.model, "used.weight", used_after, sizeof used), REN_OK);
    CU_ASSERT_NOT_EQUAL(memcmp(used, used_after, sizeof used), 0);
    close_world(&w);
}

/* clip_norm: the norm is reported, and a tiny bound holds the weights almost still. */
static void test_clip_norm(void)
{
    ren_trainer_config how = sgd(1.0f);
    how.momentum = 0.0f;
    how.clip_norm = 1e-3f;
    size_t count;
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    net_result r;
    world w;
    open_world(&w, NULL, &how, 0);
    float *before = net_params(&w.n, &count);
    fill_batch(5, x, labels);
    net_step(&w.n, w.rt, w.t, x, labels, &r);
    float *after = net_params(&w.n, &count);
    double squares = 0.0;
    for (size_t i = 0; i < count; i++) {
        squares += pow((double)after[i] - (double)before[i], 2.0);
    }
    CU_ASSERT(r.step.grad_norm > 0.01f);
    CU_ASSERT_DOUBLE_EQUAL(sqrt(squares), 1e-3, 2e-5);
    free(before);
    free(after);
    close_world(&w);
}

/* ------------------------------------------------------------------ memory */

static long live, calls;

static void *count_alloc(void *user, size_t bytes, size_t align)
{
    void *p = NULL;
    (void)user;
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    if (posix_memalign(&p, align < 16 ? 16 : align, bytes)) {
        return NULL;
    }
    __atomic_fetch_add(&live, 1, __ATOMIC_RELAXED);
    return p;
}

static void count_free(void *user, void *ptr, size_t bytes)
{
    (void)user;
    (void)bytes;
    __atomic_fetch_sub(&live, 1, __ATOMIC_RELAXED);
    free(ptr);
}

/* Steps take no host memory and ask the device for none. */
static void test_steps_do_not_allocate(void)
{
    ren_allocator allocator = ren_allocator_default();
    ren_runtime_config config = ren_test_config();
    ren_trainer_config how = sgd(0.01f);
    world w;
    allocator.alloc = count_alloc;
    allocator.free = count_free;
    config.allocator = &allocator;
    open_world(&w, &config, &how, 0);
    (void)loss_of(&w, 1);
    long before = __atomic_load_n(&calls, __ATOMIC_RELAXED);
    uint64_t device = ren_test_calls(w.rt, "mem_alloc") + ren_test_calls(w.rt, "host_alloc") +
                      ren_test_calls(w.rt, "event_create") + ren_test_calls(w.rt, "op_create");
    for (uint32_t i = 0; i < 40; i++) {
        (void)loss_of(&w, i);
    }
    CU_ASSERT_EQUAL(__atomic_load_n(&calls, __ATOMIC_RELAXED), before);
    CU_ASSERT_EQUAL(ren_test_calls(w.rt, "mem_alloc") + ren_test_calls(w.rt, "host_alloc") +
                        ren_test_calls(w.rt, "event_create") + ren_test_calls(w.rt, "op_create"),
                    device);
    close_world(&w);
    CU_ASSERT_EQUAL(__atomic_load_n(&live, __ATOMIC_RELAXED), 0);
}

/* Every device call that making a trainer needs fails in turn: the error comes back, nothing is
 * left, and the next try works. */
static void test_trainer_create_failures(void)
{
    static const char *const kinds[] = {"mem_alloc", "host_alloc", "event_create",
                                        "op_create", "copy",       "fill"};
    ren_trainer_config how = sgd(0.01f);
    for (size_t k = 0; k < REN_TEST_COUNT(kinds); k++) {
        uint32_t failures = 0;
        for (uint64_t nth = 1; nth < 100; nth++) {
            ren_stats stats = ren_stats_default();
            ren_error err;
            world w;
            memset(&w, 0, sizeof w);
            w.rt = ren_test_runtime(NULL);
            CU_ASSERT_PTR_NOT_NULL_FATAL(w.rt);
            net_build(&w.n, w.rt, NET_MLP, BATCH, 11);
            ren_test_fault(w.rt, kinds[k], nth, REN_ERR_DEVICE, 0);
            ren_status status = ren_trainer_create(w.n.model, w.n.loss, &how, &w.t, &err);
            ren_test_fault_clear(w.rt);
            if (status == REN_OK) {
                close_world(&w);
                break;
            }
            failures++;
            CU_ASSERT_PTR_NULL(w.t);
            CU_ASSERT(err.text[0] != '\0');
            CU_ASSERT_EQUAL_FATAL(ren_trainer_create(w.n.model, w.n.loss, &how, &w.t, &err),
                                  REN_OK);
            (void)loss_of(&w, 1);
            CU_ASSERT_EQUAL(ren_runtime_stats(w.rt, &stats), REN_OK);
            close_world(&w);
        }
        CU_ASSERT(failures >= 1 || k == 0);
    }
}

/* ------------------------------------------------------------------ jobs in the same round */

static ren_status enqueue_at_once(void *user, const ren_device_io *io)
{
    (void)user;
    (void)io;
    return REN_OK;
}

static ren_status enqueue_gate(void *user, const ren_device_io *io)
{
    return gate_pass(user, io->native_stream);
}

static void post_to_update(world *w, ren_status (*enqueue)(void *, const ren_device_io *),
                           void *user, seen *s)
{
    ren_job_desc d = ren_job_desc_default();
    memset(s, 0, sizeof *s);
    d.kind = REN_JOB_DEVICE;
    d.stream = REN_STREAM_UPDATE;
    d.enqueue = enqueue;
    d.enqueue_user = user;
    d.done = on_seen;
    d.user = s;
    d.deliver = REN_DELIVER_ANY_THREAD;
    CU_ASSERT_EQUAL(ren_post(w->rt, &d, NULL), REN_OK);
}

/* A step and the jobs around it, all submitted in one round: the one before it is reported while
 * the step is held up, and the step while the one behind it is. */
static void test_step_completes_alone(void)
{
    static seen before, step, behind;
    ren_runtime_config config = ren_test_config();
    ren_trainer_config how = sgd(0.05f);
    uint32_t issued = 0;
    static gate told;
    world w;
    void *x, *labels;
    config.host_drives_submitter = 1;
    open_world(&w, &config, &how, 0);
    gate_make(&told, ren__runtime_api(w.rt), ren__runtime_device(w.rt));
    CU_ASSERT_EQUAL_FATAL(ren_input_acquire(w.t, "x", &x, NULL), REN_OK);
    CU_ASSERT_EQUAL_FATAL(ren_input_acquire(w.t, "labels", &labels, NULL), REN_OK);
    fill_batch(1, x, labels);
    ren_test_hold(w.rt, REN_STREAM_TRANS);
    post_to_update(&w, enqueue_at_once, NULL, &before);
    CU_ASSERT_EQUAL_FATAL(post(&w, NULL, NULL, &step, NULL), REN_OK);
    post_to_update(&w, enqueue_gate, &told, &behind);
    CU_ASSERT_EQUAL(ren_runtime_tick(w.rt, 0, &issued), REN_OK);
    CU_ASSERT_EQUAL(issued, 3);
    await_calls(&before.calls, 1);
    CU_ASSERT_EQUAL(__atomic_load_n(&step.calls, __ATOMIC_ACQUIRE), 0);
    ren_test_release(w.rt, REN_STREAM_TRANS);
    await_calls(&step.calls, 1);
    CU_ASSERT_EQUAL(step.status, REN_OK);
    CU_ASSERT_EQUAL(__atomic_load_n(&behind.calls, __ATOMIC_ACQUIRE), 0);
    gate_open(&told);
    await_calls(&behind.calls, 1);
    gate_free(&told, ren__runtime_api(w.rt), ren__runtime_device(w.rt));
    close_world(&w);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_step_cancelled", test_step_cancelled},
        {"test_step_cancelled_lent", test_step_cancelled_lent},
        {"test_step_cancelled_staged", test_step_cancelled_staged},
        {"test_steps_stay_in_order_over_a_cancelled_one",
         test_steps_stay_in_order_over_a_cancelled_one},
        {"test_callback_posts_before_the_post_returns",
         test_callback_posts_before_the_post_returns},
        {"test_trainer_destroy_waits", test_trainer_destroy_waits},
        {"test_step_after_close", test_step_after_close},
        {"test_failing_launches", test_failing_launches},
        {"test_failing_copies", test_failing_copies},
        {"test_failing_events", test_failing_events},
        {"test_device_lost", test_device_lost},
        {"test_abort_under_steps", test_abort_under_steps},
        {"test_fork_under_steps", test_fork_under_steps},
        {"test_read_under_training", test_read_under_training},
        {"test_write_under_training", test_write_under_training},
        {"test_write_some", test_write_some},
        {"test_unused_parameters_stay", test_unused_parameters_stay},
        {"test_clip_norm", test_clip_norm},
        {"test_steps_do_not_allocate", test_steps_do_not_allocate},
        {"test_trainer_create_failures", test_trainer_create_failures},
        {"test_step_completes_alone", test_step_completes_alone},
    };
    return ren_test_main(argc, argv, "conformance/test_trainer_life", cases, REN_TEST_COUNT(cases),
                         200);
}
