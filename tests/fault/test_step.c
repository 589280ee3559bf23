/* SPDX-License-Identifier: MIT */
/* tests/fault/test_step.c - a step on the queued path that breaks off, at every point.
 *
 * Proves    promise 3: whatever device call of a step fails, once or for a while, the step is
 *           applied whole and says so, or not at all and says so; never in part. A step that
 *           stopped between its optimizer and its average or statistics is finished before anyone
 *           sees the weights.
 * How       the nth call of a kind fails, n = 1, 2, ..., until the step makes fewer. The weights,
 *           averages and running statistics must be, bit for bit, those of a run without faults
 *           that leaves out the steps that were reported as failed: right behind the step, and some
 *           steps later, when moments and counts have had their effect.
 * Fails if  an error behind the optimizer ends the step: then averages and statistics are a step
 *           behind, or the optimizer's work is done twice.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../libren/train/model.h"
#include "../conformance/runs.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define AT   3u /* the step that breaks off */
#define MORE 3u /* steps behind it */

/* Not for ever the first: a lane whose events cannot be recorded is a lost device. */
static const char *const kinds[] = {"event_record", "op_launch", "event_wait", "copy"};

/* Clean runs, by which of the steps are left out. */
typedef struct references {
    run_spec spec;
    run_result by_mask[4]; /* bit 0: step AT, bit 1: the one behind it */
    uint32_t made;
} references;

static run_result *reference(references *refs, uint32_t mask)
{
    if (!(refs->made & (1u << mask))) {
        run_spec clean = refs->spec;
        clean.left_out = (uint64_t)mask << AT;
        run_alone(&clean, &refs->by_mask[mask]);
        refs->made |= 1u << mask;
    }
    return &refs->by_mask[mask];
}

static void free_references(references *refs)
{
    for (uint32_t mask = 0; mask < 4; mask++) {
        run_free(&refs->by_mask[mask]);
    }
}

static run_spec step_spec(ren_optimizer optimizer, uint32_t window, uint32_t steps)
{
    run_spec spec = run_default(NET_TINYRES);
    spec.optimizer = optimizer;
    spec.window = window;
    spec.steps = steps;
    spec.queued = 1;
    spec.one_by_one = 1;
    return spec;
}

typedef struct tally {
    uint32_t failed, applied, finished_later;
} tally;

/* Calls of a kind that step AT makes when nothing fails. */
static uint64_t calls_of_step(const run_spec *spec, const char *call)
{
    static run_result out;
    ren_runtime *rt = run_runtime(spec);
    uint64_t calls = 0;
    run r;
    run_begin(&r, rt, spec, &out);
    while (r.next <= AT) {
        calls = ren_test_calls(rt, call);
        run_step(&r);
    }
    calls = ren_test_calls(rt, call) - calls;
    run_end(&r);
    ren_test_shutdown(rt);
    run_free(&out);
    return calls;
}

/* One run. False: the step makes fewer than `nth` calls of the kind. */
static bool run_with_fault(references *refs, const char *call, uint64_t nth, int forever,
                           tally *seen)
{
    static run_result out;
    const run_spec *spec = &refs->spec;
    ren_runtime *rt = run_runtime(spec);
    float first[4096];
    uint32_t mask = 0;
    run r;
    run_begin(&r, rt, spec, &out);
    CU_ASSERT_FATAL(net_param_bytes(&r.n, 0) <= sizeof first);
    while (r.next < AT) {
        run_step(&r);
    }
    uint64_t calls = ren_test_calls(rt, call);
    ren_test_fault(rt, call, nth, REN_ERR_DEVICE, forever);
    run_step(&r);
    bool reached = ren_test_calls(rt, call) - calls >= nth;
    bool failed = out.results[AT].status != REN_OK;
    if (forever && reached && r.next < spec->steps) {
        /* A step that was reported is not seen in part even while it cannot be finished. */
        const char *name = NULL;
        ren_status status;
        ren__model_param_info(r.n.model, 0, &name, NULL, NULL, NULL);
        status = ren_param_get(r.n.model, name, first, net_param_bytes(&r.n, 0));
        if (strcmp(call, "op_launch") == 0) {
            CU_ASSERT_EQUAL(status, failed ? REN_OK : REN_ERR_DEVICE);
            seen->finished_later += status != REN_OK;
        }
        run_step(&r);
    }
    ren_test_fault_clear(rt);
    while (r.next < spec->steps) {
        run_step(&r);
    }
    run_end(&r);
    ren_test_shutdown(rt);
    for (uint32_t i = 0; i < spec->steps; i++) {
        if (out.results[i].status != REN_OK) {
            CU_ASSERT_FATAL(i == AT || (forever && i == AT + 1u));
            mask |= 1u << (i - AT);
        }
    }
    seen->failed += reached && failed;
    seen->applied += reached && !failed;
    /* A result that could not be fetched is no loss to compare. */
    for (uint32_t i = 0; i < spec->steps; i++) {
        out.results[i].calls = out.results[i].step.loss == out.results[i].step.loss;
    }
    run_same(reference(refs, mask), &out);
    return reached;
}

static void sweep(const run_spec *spec, int forever)
{
    static references refs;
    uint32_t slow = ren_test_slowdown() > 1 || ren_test_device() != REN_DEVICE_CPU;
    memset(&refs, 0, sizeof refs);
    refs.spec = *spec;
    for (size_t k = forever ? 1 : 0; k < REN_TEST_COUNT(kinds); k++) {
        tally seen = {0, 0, 0};
        uint64_t calls = calls_of_step(spec, kinds[k]);
        uint64_t nth = 1;
        while (run_with_fault(&refs, kinds[k], nth, forever, &seen)) {
            /* The last are those behind the optimizer. */
            nth += slow && nth >= 4 && nth + 13 < calls ? 7 : 1;
        }
        (void)printf("       %s%s: %u steps failed, %u applied\n", kinds[k],
                     forever ? " from then on" : "", seen.failed, seen.applied);
        CU_ASSERT(seen.failed > 0);
        /* Optimizer, average and statistics are several launches. */
        CU_ASSERT(strcmp(kinds[k], "op_launch") != 0 || seen.applied > 0);
        CU_ASSERT(strcmp(kinds[k], "op_launch") != 0 || !forever || seen.finished_later > 0);
    }
    free_references(&refs);
}

static void test_step_fails_anywhere_once(void)
{
    run_spec spec = step_spec(REN_OPTIMIZER_ADAM, 1, AT + 1u);
    sweep(&spec, 0);
    spec.steps = AT + 1u + MORE;
    sweep(&spec, 0);
}

static void test_step_fails_anywhere_for_a_while(void)
{
    run_spec spec = step_spec(REN_OPTIMIZER_ADAM, 1, AT + 2u + MORE);
    sweep(&spec, 1);
}

/* One launch for each parameter, spread over streams that are joined by events. */
static void test_step_of_many_launches_fails_anywhere(void)
{
    run_spec spec = step_spec(REN_OPTIMIZER_LARS, 1, AT + 2u + MORE);
    sweep(&spec, 1);
}

/* The update ends a window of two steps: step AT is the second of its window. */
static void test_step_of_a_window_fails_anywhere(void)
{
    run_spec spec = step_spec(REN_OPTIMIZER_SGD, 2, AT + 2u + MORE);
    sweep(&spec, 0);
}

/* Up to step AT, which stays unfinished: its last launch fails, from then on. */
static void run_to_unfinished_step(run *r, ren_runtime *rt, const run_result *out)
{
    while (r->next + 1u < AT) {
        run_step(r);
    }
    uint64_t calls = ren_test_calls(rt, "op_launch");
    run_step(r);
    calls = ren_test_calls(rt, "op_launch") - calls;
    ren_test_fault(rt, "op_launch", calls, REN_ERR_DEVICE, 1); /* the step's last */
    run_step(r);
    CU_ASSERT_EQUAL(out->results[AT].status, REN_OK);
}

/* The trainer goes while its last step is unfinished: the step is finished then, or the weights are
 * not to be had any more. */
static void test_trainer_destroyed_with_an_unfinished_step(void)
{
    static references refs;
    static run_result out;
    memset(&refs, 0, sizeof refs);
    refs.spec = step_spec(REN_OPTIMIZER_ADAM, 1, AT + 1u);
    for (int lasts = 0; lasts < 2; lasts++) {
        ren_runtime *rt = run_runtime(&refs.spec);
        run r;
        run_begin(&r, rt, &refs.spec, &out);
        run_to_unfinished_step(&r, rt, &out);
        if (!lasts) {
            ren_test_fault_clear(rt);
        }
        ren_trainer_destroy(r.t);
        ren_test_fault_clear(rt);
        if (lasts) {
            size_t bytes = (size_t)ren__model_params_bytes(r.n.model);
            float *all = malloc(bytes);
            CU_ASSERT_EQUAL(ren__model_params_read(r.n.model, all, bytes), REN_ERR_DEVICE);
            free(all);
        } else {
            out.params = net_params(&r.n, &out.count);
            run_same(reference(&refs, 0), &out);
        }
        run_end_model(&r);
        ren_test_shutdown(rt);
    }
    free_references(&refs);
}

static void *release_soon(void *arg)
{
    const struct timespec pause = {0, 50000000};
    nanosleep(&pause, NULL);
    ren_test_release(arg, REN_STREAM_COMP_3);
    return NULL;
}

/* The trainer goes while its last step is unfinished and the shared road is full of jobs that take
 * their time: it waits for room and finishes the step. */
static void test_trainer_destroyed_behind_a_full_road(void)
{
    static references refs;
    static run_result out;
    memset(&refs, 0, sizeof refs);
    refs.spec = step_spec(REN_OPTIMIZER_ADAM, 1, AT + 1u);
    ren_runtime *rt = run_runtime(&refs.spec);
    ren_job_desc d = ren_job_desc_default();
    pthread_t thread;
    run r;
    run_begin(&r, rt, &refs.spec, &out);
    run_to_unfinished_step(&r, rt, &out);
    ren_test_fault_clear(rt);
    d.kind = REN_JOB_BARRIER;
    d.stream = REN_STREAM_COMP_3;
    d.deliver = REN_DELIVER_NONE;
    ren_test_hold(rt, REN_STREAM_COMP_3);
    while (ren_post(rt, &d, NULL) == REN_OK) {
    }
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_ERR_QUEUE_FULL);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, release_soon, rt), 0);
    ren_trainer_destroy(r.t);
    CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, REN_TIMEOUT_INFINITE), REN_OK);
    out.params = net_params(&r.n, &out.count);
    run_same(reference(&refs, 0), &out);
    run_end_model(&r);
    ren_test_shutdown(rt);
    free_references(&refs);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_step_fails_anywhere_once", test_step_fails_anywhere_once},
        {"test_step_fails_anywhere_for_a_while", test_step_fails_anywhere_for_a_while},
        {"test_step_of_many_launches_fails_anywhere", test_step_of_many_launches_fails_anywhere},
        {"test_step_of_a_window_fails_anywhere", test_step_of_a_window_fails_anywhere},
        {"test_trainer_destroyed_with_an_unfinished_step",
         test_trainer_destroyed_with_an_unfinished_step},
        {"test_trainer_destroyed_behind_a_full_road", test_trainer_destroyed_behind_a_full_road},
    };
    return ren_test_main(argc, argv, "fault/test_step", cases, REN_TEST_COUNT(cases), 300);
}
