/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_happens_before.c - every conflicting pair of device commands is ordered.
 *
 * Proves    Training steps and inferences are posted while all lanes are held, so nothing completes
 *           before all of it is enqueued and only device events can order it. The trace then says
 *           which memory each command reads and writes. From the order within lanes and from record
 *           and wait alone, vector clocks tell what happens before what; two commands on different
 *           lanes that touch the same bytes, one of them writing, must be ordered. This finds a
 *           missing edge even when the run was lucky.
 *           Inferences name the compute streams in turn, and every other takes any version.
 * Fails     when the planner leaves out an event, packs two values that live at the same time into
 *           the same memory, a step does not wait for what the one before still uses, or a set of
 *           weights is made while an inference reads it.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../golden/nets.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define MOST_COMMANDS   20000u
#define MOST_EVENTS     4096u
#define ENOUGH_COMMANDS 100u
#define MOST_STEPS      6u
#define BATCH           8u

/* ------------------------------------------------------------------ the trace */

typedef struct trace {
    ren_test_command *commands; /* the begin reports */
    uint32_t count;
    uint32_t lost;
} trace;

static void collect(void *user, const ren_test_command *command)
{
    trace *t = user;
    if (!command->begin) {
        return;
    }
    if (t->count == MOST_COMMANDS) {
        t->lost++;
        return;
    }
    t->commands[t->count++] = *command;
}

static int by_number(const void *a, const void *b)
{
    const ren_test_command *x = a, *y = b;
    return x->command < y->command ? -1 : x->command > y->command;
}

/* ------------------------------------------------------------------ the analysis */

typedef struct clock_of {
    const ren__event *event;
    uint64_t time[REN__LANES];
} clock_of;

typedef struct analysis {
    uint64_t time[REN__LANES][REN__LANES]; /* [lane][of]: newest command of `of` before its end */
    clock_of *events;
    uint32_t event_count;
    uint32_t pairs; /* conflicting pairs on different lanes */
    uint32_t races;
} analysis;

static clock_of *clock_for(analysis *a, const ren__event *event, int make)
{
    for (uint32_t i = 0; i < a->event_count; i++) {
        if (a->events[i].event == event) {
            return &a->events[i];
        }
    }
    if (!make || a->event_count == MOST_EVENTS) {
        return NULL;
    }
    a->events[a->event_count].event = event;
    return &a->events[a->event_count++];
}

static int overlap(const ren_test_access *x, const ren_test_access *y)
{
    const char *xp = x->ptr, *yp = y->ptr;
    return xp < yp + y->bytes && yp < xp + x->bytes;
}

static int any_overlap(const ren_test_access *x, uint32_t xs, const ren_test_access *y, uint32_t ys)
{
    for (uint32_t i = 0; i < xs; i++) {
        for (uint32_t k = 0; k < ys; k++) {
            if (overlap(&x[i], &y[k])) {
                return 1;
            }
        }
    }
    return 0;
}

static int conflict(const ren_test_command *x, const ren_test_command *y)
{
    return any_overlap(x->writes, x->write_count, y->writes, y->write_count) ||
           any_overlap(x->writes, x->write_count, y->reads, y->read_count) ||
           any_overlap(x->reads, x->read_count, y->writes, y->write_count);
}

/* Commands in the order of enqueueing: a wait means the latest record before it. */
static void analyse(analysis *a, const trace *t, int with_events)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const ren_test_command *c = &t->commands[i];
        uint64_t *now = a->time[c->lane];
        now[c->lane] = c->command;
        if (c->event && with_events) {
            const int record = strcmp(c->call, "event_record") == 0;
            clock_of *at = clock_for(a, c->event, record);
            for (uint32_t k = 0; at && k < REN__LANES; k++) {
                if (record) {
                    at->time[k] = now[k];
                } else if (at->time[k] > now[k]) {
                    now[k] = at->time[k];
                }
            }
        }
        for (uint32_t k = 0; k < i; k++) {
            const ren_test_command *before = &t->commands[k];
            if (before->lane == c->lane || !conflict(before, c)) {
                continue;
            }
            a->pairs++;
            if (now[before->lane] < before->command) {
                if (with_events && a->races++ < 3) {
                    printf("    not ordered: %s (op %d) on lane %u, %s (op %d) on lane %u\n",
                           before->call, (int)before->op, before->lane, c->call, (int)c->op,
                           c->lane);
                }
                a->races += !with_events;
            }
        }
    }
}

static uint32_t races_of(const trace *t, int with_events, uint32_t *out_pairs)
{
    analysis a;
    memset(&a, 0, sizeof a);
    a.events = calloc(MOST_EVENTS, sizeof *a.events);
    CU_ASSERT_PTR_NOT_NULL_FATAL(a.events);
    analyse(&a, t, with_events);
    CU_ASSERT(a.event_count < MOST_EVENTS);
    free(a.events);
    *out_pairs = a.pairs;
    return a.races;
}

/* ------------------------------------------------------------------ the work */

typedef struct work {
    net n;
    ren_trainer *t;
    float *x;
    int32_t labels[BATCH];
    float *logits; /* a part for each inference */
    net_result results[MOST_STEPS];
    ren_job jobs[2u * MOST_STEPS];
    uint32_t job_count;
} work;

static void post_all(ren_runtime *rt, work *w, int infer)
{
    for (uint32_t step = 0; step < MOST_STEPS; step++) {
        ren_status status = net_post(&w->n, w->t, w->x, w->labels, BATCH, &w->results[step],
                                     &w->jobs[w->job_count]);
        if (status == REN_ERR_QUEUE_FULL) {
            break;
        }
        CU_ASSERT_EQUAL_FATAL(status, REN_OK);
        w->job_count++;
        if (infer) {
            ren_infer_desc d = ren_infer_desc_default();
            const ren_binding x = {"x", w->x, BATCH * w->n.row * sizeof(float)};
            d.bindings = &x;
            d.binding_count = 1;
            d.output = w->n.logits;
            d.out_data = w->logits + step * BATCH * 10u;
            d.out_bytes = BATCH * 10u * sizeof(float);
            d.deliver = REN_DELIVER_NONE;
            d.stream = (ren_stream)(REN_STREAM_COMP_1 + step % 3u);
            d.any_version = step % 2u;
            status = ren_infer(w->n.model, &d, &w->jobs[w->job_count]);
            CU_ASSERT(status == REN_OK || status == REN_ERR_QUEUE_FULL || status == REN_ERR_BUSY);
            w->job_count += status == REN_OK;
        }
    }
    (void)rt;
}

static uint64_t commands_so_far(ren_runtime *rt)
{
    static const char *const calls[] = {"op_launch", "copy", "fill", "event_record", "event_wait"};
    uint64_t sum = 0;
    for (size_t i = 0; i < REN_TEST_COUNT(calls); i++) {
        sum += ren_test_calls(rt, calls[i]);
    }
    return sum;
}

/* Until the submitter has enqueued what was posted: the count of device calls stands still. Gives
 * that count. */
static uint64_t await_enqueued(ren_runtime *rt)
{
    uint64_t last = 0;
    for (int still = 0; still < 50;) {
        uint64_t now = commands_so_far(rt);
        still = now == last ? still + 1 : 0;
        last = now;
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    return last;
}

static void work_make(ren_runtime *rt, work *w, net_kind kind, ren_optimizer optimizer)
{
    unsigned long long state = 9;
    ren_trainer_config how = ren_trainer_config_default();
    how.optimizer = optimizer;
    how.momentum = 0.9f;
    how.clip_norm = optimizer == REN_OPTIMIZER_ADAM ? 1.0f : 0.0f;
    memset(w, 0, sizeof *w);
    net_build(&w->n, rt, kind, BATCH, 5);
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(w->n.model, w->n.loss, &how, &w->t, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_infer_prepare(w->n.model, w->n.logits, NULL), REN_OK);
    w->x = malloc(BATCH * w->n.row * sizeof(float));
    w->logits = malloc(MOST_STEPS * BATCH * 10u * sizeof(float));
    CU_ASSERT_FATAL(w->x && w->logits);
    for (size_t i = 0; i < BATCH * w->n.row; i++) {
        w->x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (uint32_t i = 0; i < BATCH; i++) {
        w->labels[i] = (int32_t)(ren_test_random(&state) % 10u);
    }
}

/* Everything once, so that nothing is set up while the lanes are held: a driver that loads a kernel
 * at its first launch waits for the whole device there. */
static void warm_up(ren_runtime *rt, work *w, int infer)
{
    post_all(rt, w, infer);
    for (uint32_t i = 0; i < w->job_count; i++) {
        net_wait(rt, w->jobs[i]);
    }
    w->job_count = 0;
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, REN_TIMEOUT_INFINITE), REN_OK);
}

static void check_net(net_kind kind, ren_optimizer optimizer, int infer)
{
    ren_runtime_config config = ren_test_config();
    trace t = {.commands = calloc(MOST_COMMANDS, sizeof *t.commands)};
    work w;
    config.disable_graphs = 1;
    config.deterministic = 1;
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_FATAL(rt && t.commands);
    work_make(rt, &w, kind, optimizer);
    warm_up(rt, &w, infer);
    uint64_t before = commands_so_far(rt);
    ren_test_trace(rt, collect, &t);
    for (uint32_t stream = 0; stream < REN_STREAM_COUNT; stream++) {
        ren_test_hold(rt, stream);
    }
    post_all(rt, &w, infer);
    uint64_t enqueued = await_enqueued(rt) - before;
    for (uint32_t stream = 0; stream < REN_STREAM_COUNT; stream++) {
        ren_test_release(rt, stream);
    }
    for (uint32_t i = 0; i < w.job_count; i++) {
        net_wait(rt, w.jobs[i]);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, REN_TIMEOUT_INFINITE), REN_OK);
    ren_test_trace(rt, NULL, NULL);
    CU_ASSERT_EQUAL(t.lost, 0);
    CU_ASSERT(w.job_count >= 2);
    qsort(t.commands, t.count, sizeof *t.commands, by_number);
    /* What a lane had no room for came after the release: by then jobs were complete, and what is
     * known to be complete needs no event. */
    t.count = t.count < enqueued ? t.count : (uint32_t)enqueued;
    uint32_t pairs = 0, unordered = 0;
    CU_ASSERT_EQUAL(races_of(&t, 1, &pairs), 0);
    /* The check can see: without the events the same trace is full of races. The CPU device has
     * room for all of it, another one perhaps for a part. */
    CU_ASSERT(t.count >= ENOUGH_COMMANDS || ren_test_device() != REN_DEVICE_CPU);
    CU_ASSERT(races_of(&t, 0, &unordered) > 20 || t.count < ENOUGH_COMMANDS);
    printf("    %u commands, %u conflicting pairs across lanes, %u jobs\n", t.count, pairs,
           w.job_count);
    ren_trainer_destroy(w.t);
    ren_model_destroy(w.n.model);
    ren_test_shutdown(rt);
    free(w.x);
    free(w.logits);
    free(t.commands);
}

static void test_happens_before_mlp(void)
{
    check_net(NET_MLP, REN_OPTIMIZER_SGD, 0);
}

static void test_happens_before_mlp_with_inference(void)
{
    check_net(NET_MLP, REN_OPTIMIZER_ADAM, 1);
}

static void test_happens_before_lenet(void)
{
    check_net(NET_LENET, REN_OPTIMIZER_ADAM, 0);
}

static void test_happens_before_tinyres(void)
{
    check_net(NET_TINYRES, REN_OPTIMIZER_ADAMW, 1);
}

static void test_happens_before_branch(void)
{
    check_net(NET_BRANCH, REN_OPTIMIZER_SGD, 1);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_happens_before_mlp", test_happens_before_mlp},
        {"test_happens_before_mlp_with_inference", test_happens_before_mlp_with_inference},
        {"test_happens_before_lenet", test_happens_before_lenet},
        {"test_happens_before_tinyres", test_happens_before_tinyres},
        {"test_happens_before_branch", test_happens_before_branch},
    };
    return ren_test_main(argc, argv, "conformance/test_happens_before", cases,
                         REN_TEST_COUNT(cases), 120);
}
