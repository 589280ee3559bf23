/* SPDX-License-Identifier: MIT */
/* tests/fault/test_graph.c - captures and launches that fail, at every point.
 *
 * Proves    failure rows 16 and 18, promise 3: a step whose capture breaks off anywhere is applied
 *           once, by the queued path; a step whose launch fails is reported and not applied; later
 *           steps are captured again; nothing leaks.
 * How       the nth call of a kind fails, n = 1, 2, ..., from just before the step that captures.
 *           After all steps the weights must be, bit for bit, those of a run without faults that
 *           leaves out exactly the steps that were reported as failed.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../conformance/runs.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define STEPS 24u
#define AFTER 2u /* steps 0 and 1 queued; 2 and 3 capture */
#define ROWS  3u /* graphs of a step in segments: forward, backward, optimizer */

static run_spec fault_spec(void)
{
    run_spec spec = run_default(NET_BRANCH);
    spec.steps = STEPS;
    spec.optimizer = REN_OPTIMIZER_ADAM; /* counts the steps that were applied */
    spec.after = AFTER;
    spec.one_by_one = 1;
    return spec;
}

/* The weights of the steps that `got` says were applied, made on the queued path. */
static void check_against_reference(const run_spec *spec, run_result *got)
{
    static run_result reference;
    run_spec clean = *spec;
    clean.queued = 1;
    for (uint32_t i = 0; i < spec->steps; i++) {
        if (got->results[i].status != REN_OK) {
            CU_ASSERT_FATAL(i < 64);
            clean.left_out |= UINT64_C(1) << i;
        }
    }
    run_alone(&clean, &reference);
    run_same(&reference, got);
    run_free(&reference);
}

typedef struct fault_case {
    const char *call;
    uint64_t nth;
    ren_status status;
    int forever; /* until step 12 is done */
} fault_case;

typedef struct fault_report {
    uint64_t reached; /* 1 = the nth call was made */
    uint64_t fallbacks;
    uint32_t failed;
} fault_report;

/* A run with the fault armed before its first capture. */
static fault_report run_with_fault(const run_spec *spec, const fault_case *fault)
{
    static run_result out;
    fault_report report;
    ren_runtime *rt = run_runtime(spec);
    ren_stats stats = ren_stats_default();
    run r;
    memset(&report, 0, sizeof report);
    run_begin(&r, rt, spec, &out);
    while (r.next < AFTER) {
        run_step(&r);
    }
    uint64_t calls = ren_test_calls(rt, fault->call);
    ren_test_fault(rt, fault->call, fault->nth, fault->status, fault->forever);
    while (r.next < 12) {
        run_step(&r);
    }
    report.reached = ren_test_calls(rt, fault->call) - calls >= fault->nth;
    ren_test_fault_clear(rt);
    while (r.next < spec->steps) {
        run_step(&r);
    }
    run_end(&r);
    for (uint32_t i = 0; i < spec->steps; i++) {
        report.failed += out.results[i].status != REN_OK;
    }
    /* In the end it replays again. */
    CU_ASSERT_EQUAL(out.results[spec->steps - 1].step.path, REN_PATH_GRAPH);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    report.fallbacks = stats.graph_fallbacks;
    CU_ASSERT_EQUAL(stats.steps_queued + stats.steps_graph + report.failed, spec->steps);
    CU_ASSERT_EQUAL(stats.graph_captures, 2 * (spec->segments ? ROWS : 1));
    CU_ASSERT_EQUAL(stats.pool_bytes_in_use, 0);
    ren_test_shutdown(rt);
    check_against_reference(spec, &out);
    return report;
}

/* Every call of a kind that a capture makes. What only a capture does, and commands inside it,
 * never cost a step; calls that the step makes around its plan may, but then it is not applied. */
static void test_capture_fails_anywhere(void)
{
    static const struct {
        const char *call;
        uint32_t only_in_captures;
    } kinds[] = {{"graph_begin", 1},  {"graph_end", 1},  {"op_launch", 1},
                 {"event_record", 0}, {"event_wait", 0}, {"copy", 0}};
    uint32_t slow = ren_test_slowdown() > 1 || ren_test_device() != REN_DEVICE_CPU;
    run_spec spec = fault_spec();
    for (size_t k = 0; k < REN_TEST_COUNT(kinds); k++) {
        uint32_t broken = 0;
        uint32_t failed = 0;
        for (uint64_t nth = 1; nth < 1000; nth += slow && nth >= 4 ? 11 : 1) {
            const fault_case fault = {kinds[k].call, nth, REN_ERR_DEVICE, 0};
            fault_report report = run_with_fault(&spec, &fault);
            if (!report.reached) {
                break;
            }
            CU_ASSERT(report.fallbacks + report.failed <= 1);
            broken += report.fallbacks != 0;
            failed += report.failed;
        }
        (void)printf("       %s: %u captures broken, %u steps failed\n", kinds[k].call, broken,
                     failed);
        CU_ASSERT(broken > 0);
        CU_ASSERT(!kinds[k].only_in_captures || failed == 0);
    }
}

/* The same with a graph for each segment: whichever breaks, the step goes task by task, once, and
 * the next attempt makes what is missing. */
static void test_segment_capture_fails_anywhere(void)
{
    static const char *const calls[] = {"graph_begin", "graph_end", "op_launch"};
    uint32_t slow = ren_test_slowdown() > 1 || ren_test_device() != REN_DEVICE_CPU;
    run_spec spec = fault_spec();
    spec.segments = 1;
    for (size_t k = 0; k < REN_TEST_COUNT(calls); k++) {
        uint32_t broken = 0;
        for (uint64_t nth = 1; nth < 1000; nth += slow && k == 2 ? 7 : 1) {
            const fault_case fault = {calls[k], nth, REN_ERR_DEVICE, 0};
            fault_report report = run_with_fault(&spec, &fault);
            if (!report.reached) {
                break;
            }
            CU_ASSERT_EQUAL(report.failed, 0);
            CU_ASSERT(report.fallbacks <= 1);
            broken += report.fallbacks != 0;
        }
        (void)printf("       %s: %u captures broken\n", calls[k], broken);
        CU_ASSERT(broken >= 2 * ROWS);
    }
}

/* A launch of any segment fails: its step, and no other, is reported and not applied, whatever of
 * it is in the lanes. */
static void test_segment_launch_fails(void)
{
    run_spec spec = fault_spec();
    spec.segments = 1;
    for (uint64_t nth = 1; nth <= 4 * ROWS; nth++) {
        const fault_case fault = {"graph_launch", nth, REN_ERR_DEVICE, 0};
        fault_report report = run_with_fault(&spec, &fault);
        CU_ASSERT_EQUAL(report.reached, 1);
        CU_ASSERT_EQUAL(report.failed, 1);
        CU_ASSERT_EQUAL(report.fallbacks, 1);
    }
    /* While it lasts, the second segment of two steps. */
    spec.steps = 40;
    const fault_case fault = {"graph_launch", 2, REN_ERR_NO_DEVICE_MEMORY, 1};
    fault_report report = run_with_fault(&spec, &fault);
    CU_ASSERT_EQUAL(report.failed, 2);
    CU_ASSERT_EQUAL(report.fallbacks, 2);
}

/* A capture that fails whenever it is tried: no step is lost, and it is tried less and less often.
 */
static void test_capture_keeps_failing(void)
{
    static run_result out;
    run_spec spec = fault_spec();
    ren_stats stats = ren_stats_default();
    spec.steps = 200;
    ren_runtime *rt = run_runtime(&spec);
    run r;
    run_begin(&r, rt, &spec, &out);
    ren_test_fault(rt, "graph_end", 1, REN_ERR_DEVICE, 1);
    while (r.next < spec.steps) {
        run_step(&r);
        CU_ASSERT_EQUAL(out.results[r.next - 1].status, REN_OK);
        CU_ASSERT_EQUAL(out.results[r.next - 1].step.path, REN_PATH_QUEUED);
    }
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.graph_captures, 0);
    /* At steps 2, 2 + 9, 2 + 9 + 17, 2 + 9 + 17 + 33, ... */
    CU_ASSERT_EQUAL(stats.graph_fallbacks, 5);
    ren_test_fault_clear(rt);
    run_end(&r);
    ren_test_shutdown(rt);
    check_against_reference(&spec, &out);
}

/* A thousand captures, of which about every third fails, at its begin, inside or at its end: each
 * is counted, no step is lost or applied twice. Batch sizes change every three steps and there are
 * more of them than plans are kept for, so the first step after a change goes task by task and the
 * next two capture. A failing end is one behind updates that failed as well. */
static void test_thousand_captures(void)
{
    static const char *const calls[] = {"graph_begin", "graph_end", "op_launch"};
    static run_result out;
    run_spec spec = run_default(NET_MLP);
    ren_stats stats = ren_stats_default();
    unsigned long long state = 7;
    uint32_t broken = 0;
    uint32_t paused = 0;
    uint32_t slow = ren_test_slowdown() > 1 ? 4 : 1;
    run r;
    spec.steps = 1500 / slow;
    spec.block = 3;
    spec.sizes = 9;
    spec.after = 1;
    spec.one_by_one = 1;
    ren_runtime *rt = run_runtime(&spec);
    run_begin(&r, rt, &spec, &out);
    while (r.next < spec.steps) {
        uint32_t at = r.next % spec.block;
        if (at == 0) {
            paused = 0;
        } else if (!paused && ren_test_random(&state) % 3u == 0) {
            uint32_t call = (uint32_t)(ren_test_random(&state) % REN_TEST_COUNT(calls));
            ren_test_fault(rt, calls[call], 1, REN_ERR_DEVICE, 0);
            if (strcmp(calls[call], "graph_end") == 0) {
                ren_test_fault(rt, "graph_update", 1, REN_ERR_DEVICE, 1);
            }
            broken++;
            paused = 1; /* the plan's next step is not captured */
        }
        run_step(&r);
        ren_test_fault_clear(rt);
        CU_ASSERT_EQUAL(out.results[r.next - 1].status, REN_OK);
        CU_ASSERT_EQUAL(out.results[r.next - 1].step.path,
                        at && !paused ? REN_PATH_GRAPH : REN_PATH_QUEUED);
    }
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.graph_fallbacks, broken);
    (void)printf("       %llu captures held, %u broken\n", (unsigned long long)stats.graph_captures,
                 broken);
    CU_ASSERT(stats.graph_captures + 2u * broken >= 1000u / slow);
    run_end(&r);
    ren_test_shutdown(rt);
    check_against_reference(&spec, &out);
}

/* Batch sizes as above, so that captures are offered executables of plans that went. */
static run_spec update_spec(void)
{
    run_spec spec = run_default(NET_MLP);
    spec.steps = 90;
    spec.block = 3;
    spec.sizes = 10;
    spec.after = 1;
    spec.one_by_one = 1;
    return spec;
}

/* Updates fail, each in turn and all of them: a graph is made instead, no step goes another way,
 * and what was offered is still there, to be used by a later capture or freed. */
static void test_update_fails(void)
{
    static run_result out;
    run_spec spec = update_spec();
    uint64_t undisturbed = 0;
    for (uint64_t nth = 0; nth <= 6; nth++) {
        ren_runtime *rt = run_runtime(&spec);
        ren_stats stats = ren_stats_default();
        run r;
        run_begin(&r, rt, &spec, &out);
        if (nth) {
            ren_test_fault(rt, "graph_update", nth, REN_ERR_DEVICE, nth == 6);
        }
        while (r.next < spec.steps) {
            uint32_t at = r.next % spec.block;
            run_step(&r);
            CU_ASSERT_EQUAL(out.results[r.next - 1].status, REN_OK);
            CU_ASSERT_EQUAL(out.results[r.next - 1].step.path,
                            at ? REN_PATH_GRAPH : REN_PATH_QUEUED);
        }
        CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
        CU_ASSERT_EQUAL(stats.graph_captures, 2u * spec.steps / spec.block);
        CU_ASSERT_EQUAL(stats.graph_fallbacks, 0);
        CU_ASSERT(ren_test_calls(rt, "graph_update") >= nth);
        if (nth == 0) {
            undisturbed = stats.graph_updates;
            CU_ASSERT(undisturbed >= 6);
        } else if (nth == 6) {
            /* Another device may refuse some of them by itself. */
            CU_ASSERT(stats.graph_updates <= 5);
            CU_ASSERT(stats.graph_updates == 5 || ren_test_device() != REN_DEVICE_CPU);
        } else {
            CU_ASSERT(stats.graph_updates + 1 >= undisturbed);
        }
        run_end(&r);
        CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
        CU_ASSERT_EQUAL(stats.pool_bytes_in_use, 0);
        ren_test_shutdown(rt);
        check_against_reference(&spec, &out);
    }
}

/* Each launch in turn fails: its step, and no other, is reported and not applied; the queued path
 * takes over, and later the same graphs are launched again. */
static void test_launch_fails(void)
{
    run_spec spec = fault_spec();
    for (uint64_t nth = 1; nth <= 10; nth++) {
        const fault_case fault = {"graph_launch", nth, REN_ERR_DEVICE, 0};
        fault_report report = run_with_fault(&spec, &fault);
        CU_ASSERT_EQUAL(report.reached, 1);
        CU_ASSERT_EQUAL(report.failed, 1);
        CU_ASSERT_EQUAL(report.fallbacks, 1);
    }
}

/* Two steps are lost while the fault lasts, not ten. */
static void test_launch_keeps_failing(void)
{
    run_spec spec = fault_spec();
    spec.steps = 40;
    const fault_case fault = {"graph_launch", 1, REN_ERR_NO_DEVICE_MEMORY, 1};
    fault_report report = run_with_fault(&spec, &fault);
    CU_ASSERT_EQUAL(report.failed, 2); /* steps 2 and 11 */
    CU_ASSERT_EQUAL(report.fallbacks, 2);
}

/* The result of a step cannot be fetched at once, or not at all: the step is applied and says so;
 * its loss is right or not a number, never another step's. */
static void test_result_copy_fails(void)
{
    static run_result base, out;
    run_spec spec = fault_spec();
    run_alone(&spec, &base);
    for (int forever = 0; forever < 2; forever++) {
        ren_runtime *rt = run_runtime(&spec);
        run r;
        run_begin(&r, rt, &spec, &out);
        while (r.next < 6) {
            run_step(&r);
        }
        /* A replayed step copies x, labels and control, then the result. */
        ren_test_fault(rt, "copy", 4, REN_ERR_DEVICE, forever);
        run_step(&r);
        ren_test_fault_clear(rt);
        CU_ASSERT_EQUAL(out.results[6].status, REN_OK);
        CU_ASSERT_EQUAL(out.results[6].step.path, REN_PATH_GRAPH);
        CU_ASSERT(forever ? out.results[6].step.loss != out.results[6].step.loss
                          : out.results[6].step.loss == base.results[6].step.loss);
        out.results[6].step.loss = base.results[6].step.loss;
        while (r.next < spec.steps) {
            run_step(&r);
        }
        run_end(&r);
        ren_test_shutdown(rt);
        run_same(&base, &out);
    }
    run_free(&base);
}

static void raise_counter(void *user)
{
    __atomic_fetch_add((uint32_t *)user, 1, __ATOMIC_RELEASE);
}

/* A step breaks off behind its copies, which TRANS has not done yet: the host keeps lending its
 * inputs until they are, by the completion as well as by inputs_consumed. A completion right at the
 * failure lets the device read memory that the host has back. */
static void test_broken_step_keeps_its_inputs(void)
{
    static run_result out;
    run_spec spec = fault_spec();
    spec.queued = 1;
    ren_runtime *rt = run_runtime(&spec);
    uint32_t consumed = 0;
    ren_job job;
    run r;
    run_begin(&r, rt, &spec, &out);
    run_step(&r);
    ren_binding bindings[2] = {{"x", r.x, r.n.row * r.n.batch * sizeof(float)},
                               {"labels", r.labels, r.n.batch * sizeof(int32_t)}};
    ren_step_desc desc = ren_step_desc_default();
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.inputs_consumed = raise_counter;
    desc.user = &consumed;
    desc.deliver = REN_DELIVER_NONE;
    ren_test_hold(rt, REN_STREAM_TRANS);
    ren_test_fault(rt, "op_launch", 3, REN_ERR_DEVICE, 0);
    CU_ASSERT_EQUAL(ren_trainer_step(r.t, &desc, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, job, UINT64_C(50000000)), REN_TIMEOUT);
    CU_ASSERT_EQUAL(__atomic_load_n(&consumed, __ATOMIC_ACQUIRE), 0);
    ren_test_release(rt, REN_STREAM_TRANS);
    CU_ASSERT_EQUAL(ren_wait(rt, job, UINT64_C(10000000000)), REN_ERR_DEVICE);
    while (__atomic_load_n(&consumed, __ATOMIC_ACQUIRE) == 0) {
        sched_yield();
    }
    run_step(&r);
    CU_ASSERT_EQUAL(out.results[1].status, REN_OK);
    out.results[1].step.index--; /* the broken step had one, too */
    run_end(&r);
    ren_test_shutdown(rt);
    spec.steps = 2;
    check_against_reference(&spec, &out);
    CU_ASSERT_EQUAL(__atomic_load_n(&consumed, __ATOMIC_ACQUIRE), 1);
}

/* The device is lost in a capture, or by a launch: every step completes, with that error from there
 * on, and everything can be taken down. */
static void check_loss(run *r, const char *call)
{
    run_result *out = r->out;
    uint32_t steps = r->next;
    uint64_t calls = ren_test_calls(r->rt, call);
    ren_test_fault(r->rt, call, 1, REN_ERR_DEVICE_LOST, 0);
    while (r->next < r->spec->steps && ren_test_calls(r->rt, call) == calls) {
        run_step(r);
    }
    CU_ASSERT(r->next > steps);
    CU_ASSERT_EQUAL(out->results[r->next - 1].status, REN_ERR_DEVICE_LOST);
    ren_trainer_destroy(r->t);
    run_end_model(r);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(r->rt, UINT64_C(10000000000)), REN_OK);
}

static void test_loss_on_the_graph_path(void)
{
    static const char *const calls[] = {"graph_begin", "op_launch", "graph_end", "graph_launch"};
    static run_result out;
    run_spec spec = fault_spec();
    for (size_t c = 0; c < REN_TEST_COUNT(calls); c++) {
        ren_runtime *rt = run_runtime(&spec);
        run r;
        run_begin(&r, rt, &spec, &out);
        while (r.next < AFTER) {
            run_step(&r);
        }
        check_loss(&r, calls[c]);
        CU_ASSERT_EQUAL(r.next, AFTER + 1);
    }
}

static void test_loss_in_an_update(void)
{
    static run_result out;
    run_spec spec = update_spec();
    run r;
    run_begin(&r, run_runtime(&spec), &spec, &out);
    check_loss(&r, "graph_update");
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_capture_fails_anywhere", test_capture_fails_anywhere},
        {"test_segment_capture_fails_anywhere", test_segment_capture_fails_anywhere},
        {"test_segment_launch_fails", test_segment_launch_fails},
        {"test_capture_keeps_failing", test_capture_keeps_failing},
        {"test_thousand_captures", test_thousand_captures},
        {"test_update_fails", test_update_fails},
        {"test_launch_fails", test_launch_fails},
        {"test_launch_keeps_failing", test_launch_keeps_failing},
        {"test_result_copy_fails", test_result_copy_fails},
        {"test_broken_step_keeps_its_inputs", test_broken_step_keeps_its_inputs},
        {"test_loss_on_the_graph_path", test_loss_on_the_graph_path},
        {"test_loss_in_an_update", test_loss_in_an_update},
    };
    return ren_test_main(argc, argv, "fault/test_graph", cases, REN_TEST_COUNT(cases), 300);
}
