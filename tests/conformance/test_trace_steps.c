/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_trace_steps.c - what a trace says of training, and what it leaves alone.
 *
 * Purpose   The file is read back: rows, order, arrows, the copy of the next batch beside a step.
 *           Weights are compared with those of a run without a trace, bit by bit.
 */
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "../support/trace_file.h"
#include "runs.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)
#define DRIFT  1000u /* clocks drift apart by less than a part in so many */

static const char *const stream_rows[REN_STREAM_COUNT] = {
    "stream TRANS", "stream COMP_1", "stream COMP_2", "stream COMP_3", "stream UPDATE"};

static const char *trace_path(void)
{
    static char path[64];
    (void)snprintf(path, sizeof path, "/tmp/ren-test-steps-%ld.json", (long)getpid());
    return path;
}

static void begin_trace(ren_runtime *rt)
{
    ren_error err = {0};
    ren_status status = ren_trace_begin(rt, trace_path(), &err);
    if (status != REN_OK) {
        printf("    ren_trace_begin: %s\n", err.text);
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
}

static void read_trace(ren_runtime *rt, trace_file *f)
{
    CU_ASSERT_EQUAL_FATAL(ren_trace_end(rt), REN_OK);
    CU_ASSERT_FATAL(trace_file_read(trace_path(), f));
    CU_ASSERT_EQUAL(f->lost, 0);
    (void)unlink(trace_path());
}

static size_t count_spans(const trace_file *f, const char *row, const char *part)
{
    uint32_t track = trace_file_track(f, row);
    size_t n = 0;
    for (size_t i = 0; i < f->span_count; i++) {
        n += f->spans[i].track == track && strstr(f->spans[i].name, part) != NULL;
    }
    return n;
}

static const trace_span *find_span(const trace_file *f, const char *row, const char *name,
                                   uint64_t value)
{
    uint32_t track = trace_file_track(f, row);
    for (size_t i = 0; i < f->span_count; i++) {
        const trace_span *s = &f->spans[i];
        if (s->track == track && s->value == value && strcmp(s->name, name) == 0) {
            return s;
        }
    }
    return NULL;
}

static run_spec small_run(net_kind kind)
{
    run_spec spec = run_default(kind);
    spec.one_by_one = 1;
    spec.steps = 12;
    return spec;
}

/* ------------------------------------------------------------------ the file */

/* No stream runs two tasks at once; rows of host threads nest at most. */
static void check_rows(const trace_file *f)
{
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        char jobs[32];
        (void)snprintf(jobs, sizeof jobs, "jobs %s", stream_rows[s] + strlen("stream "));
        CU_ASSERT_EQUAL(trace_file_overlaps(f, trace_file_track(f, stream_rows[s])), 0);
        CU_ASSERT_EQUAL(trace_file_overlaps(f, trace_file_track(f, jobs)), 0);
    }
    CU_ASSERT_EQUAL(trace_file_overlaps(f, trace_file_track(f, "steps")), 0);
    for (uint32_t track = 0; track < 64; track++) {
        CU_ASSERT_EQUAL(trace_file_crossings(f, track), 0);
    }
}

/* Each arrow has two ends, in this order, each inside a span of its row; those for events go from
 * one row to another and begin where a task, or the copy that a plan waits for, is over by the time
 * the arrow ends. */
static void check_arrows(const trace_file *f, int one_clock)
{
    size_t wrong = 0, events = 0;
    for (size_t i = 0; i < f->arrow_count; i++) {
        const trace_arrow *a = &f->arrows[i];
        const trace_span *from = trace_file_at(f, a->from_track, a->from_ns);
        wrong += a->begins != 1 || a->ends != 1 || a->to_ns < a->from_ns || !from;
        if (strcmp(a->name, "event") == 0) {
            const trace_span *to = trace_file_at(f, a->to_track, a->to_ns);
            wrong += !to || !from || a->from_track == a->to_track || from->end_ns > to->begin_ns;
            events++;
        } else if (one_clock && from) {
            /* One clock: what the device did lies between its issue and its completion. (Where the
             * clocks are two, an end that their error puts too early is moved.) */
            const trace_span *to = trace_file_at(f, a->to_track, a->to_ns);
            wrong += strcmp(a->name, "issue") == 0 && (!to || to->begin_ns != a->to_ns);
            wrong += strcmp(a->name, "done") == 0 && from->end_ns > a->to_ns;
        }
    }
    CU_ASSERT_EQUAL(wrong, 0);
    CU_ASSERT(events > 0);
}

/* Proves: on both paths each step is on the row of steps once, with its path and index; its
 * transfers, tasks and result are on their streams' rows, inside the times that they must be in;
 * arrows follow the events; posts, submitter, completions and callbacks have their rows. Fails when
 * a traced graph is not used (a graph step without tasks), when stamps are read before they are
 * written or after they were overwritten (order), and when a row shows two things at once. */
static void show_steps(uint32_t streams)
{
    static run_result out;
    run_spec spec = small_run(NET_BRANCH);
    spec.streams = streams;
    ren_runtime *rt = run_runtime(&spec);
    trace_file f;
    run r;
    begin_trace(rt);
    run_begin(&r, rt, &spec, &out);
    while (r.next < spec.steps) {
        run_step(&r);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    read_trace(rt, &f);
    check_rows(&f);
    check_arrows(&f, ren_test_device() == REN_DEVICE_CPU);
    size_t tasks = 0;
    for (uint32_t i = 1; i <= spec.steps; i++) {
        const char *path =
            out.results[i - 1].step.path == REN_PATH_GRAPH ? "step graph" : "step queued";
        const trace_span *step = find_span(&f, "steps", path, i);
        const trace_span *x = find_span(&f, "stream TRANS", "x copy", i);
        const trace_span *control = find_span(&f, "stream TRANS", "control copy", i);
        const trace_span *result = find_span(&f, "stream UPDATE", "result copy", i);
        CU_ASSERT_FATAL(step && x && control && result);
        CU_ASSERT(x->end_ns <= control->begin_ns && control->end_ns <= step->begin_ns);
        CU_ASSERT(result->begin_ns >= step->end_ns);
        size_t here = 0;
        for (size_t k = 0; k < f.span_count; k++) {
            const trace_span *s = &f.spans[k];
            int inside = s->begin_ns >= step->begin_ns && s->end_ns <= step->end_ns;
            int of_plan = strncmp(f.tracks[s->track], "stream", 6) == 0 && !s->instant &&
                          s->value == i && s != x && s != control && s != result &&
                          strcmp(s->name, "labels copy") != 0;
            CU_ASSERT(!of_plan || inside);
            here += of_plan && inside;
        }
        CU_ASSERT(here > 10);
        CU_ASSERT(tasks == 0 || tasks == here);
        tasks = here;
    }
    CU_ASSERT_EQUAL(count_spans(&f, "steps", "graph"), spec.steps - spec.after);
    CU_ASSERT_EQUAL(count_spans(&f, "submitter", "issue step"), spec.steps);
    CU_ASSERT(count_spans(&f, "host posts", "post") >= spec.steps);
    size_t convolutions = 0, updates = 0;
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        convolutions += count_spans(&f, stream_rows[s], "conv_fwd");
        updates += count_spans(&f, stream_rows[s], "sgd");
    }
    CU_ASSERT(convolutions >= spec.steps && convolutions % spec.steps == 0);
    CU_ASSERT(updates >= spec.steps && updates % spec.steps == 0);
    trace_file_free(&f);
    run_end(&r);
    CU_ASSERT_EQUAL(out.graph_steps, spec.steps - spec.after);
    run_free(&out);
    ren_test_shutdown(rt);
}

static void test_trace_shows_steps(void)
{
    show_steps(5);
}

/* The same where streams share a queue: rows are those of streams all the same. */
static void test_trace_shows_steps_of_fewer_queues(void)
{
    show_steps(1);
    show_steps(3);
}

static void count_ops(void *user, const ren_test_command *c)
{
    if (c->begin && strcmp(c->call, "op_launch") == 0) {
        __atomic_fetch_add((uint32_t *)user, 1, __ATOMIC_RELEASE);
    }
}

static void await_more(const uint32_t *counter, uint32_t than)
{
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) <= than) {
        sched_yield();
    }
}

static ren_status enqueue_nothing(void *user, const ren_device_io *io)
{
    (void)user;
    (void)io;
    return REN_OK;
}

/* Layers that take the CPU device a tenth of a second or so. */
enum {
    WIDE = 1024,
    ROWS = 128,
    WARM = 6,
    TRIES = 10
};

static ren_trainer *wide_trainer(ren_runtime *rt, ren_model **out_model)
{
    const int64_t dims[2] = {ROWS, WIDE};
    ren_linear_options linear = ren_linear_options_default();
    ren_trainer_config config = ren_trainer_config_default();
    ren_trainer *t = NULL;
    linear.units = WIDE;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, out_model, NULL), REN_OK);
    ren_tensor x = ren_input(*out_model, "x", REN_F32, dims, 2);
    ren_tensor h = ren_linear(*out_model, "b", ren_linear(*out_model, "a", x, &linear), &linear);
    h = ren_mse(*out_model, "loss", h, ren_input(*out_model, "y", REN_F32, dims, 2));
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(*out_model, h, &config, &t, NULL), REN_OK);
    return t;
}

static ren_job post_step(ren_trainer *t, const float *x)
{
    const size_t bytes = sizeof(float) * ROWS * WIDE;
    const ren_binding bindings[2] = {{"x", x, bytes}, {"y", x, bytes}};
    ren_step_desc desc = ren_step_desc_default();
    ren_job job;
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.deliver = REN_DELIVER_NONE;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_step(t, &desc, &job), REN_OK);
    return job;
}

/* Pairs of steps of which the second's transfer lies inside the first's span. */
static uint32_t count_beside(const trace_file *f)
{
    uint32_t beside = 0;
    for (uint32_t i = 0; i < TRIES; i++) {
        uint64_t n = WARM + 1 + 2 * i;
        const trace_span *step = find_span(f, "steps", "step graph", n);
        const trace_span *x = find_span(f, "stream TRANS", "x copy", n + 1);
        const trace_span *control = find_span(f, "stream TRANS", "control copy", n + 1);
        CU_ASSERT_FATAL(step && x && control);
        beside += x->begin_ns >= step->begin_ns && control->end_ns <= step->end_ns;
    }
    return beside;
}

/* Proves: on the graph path the copy of batch N + 1 runs while step N does, and the trace shows it
 * there. Step N + 1 is posted when the replay of step N has begun, which then takes a while. (The
 * posting thread may be put aside for so long that the step is over, hence several tries.) Fails if
 * copies are part of the graph, wait for the step before, or are shown at another time. */
static void test_trace_shows_copies_beside_a_step(void)
{
    uint32_t ops = 0;
    trace_file f;
    ren_model *m = NULL;
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_skip("waits for a command inside a graph, which only the CPU device tells of");
        return;
    }
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_trainer *t = wide_trainer(rt, &m);
    float *x = calloc(ROWS * WIDE, sizeof *x);
    ren_test_trace(rt, count_ops, &ops); /* the graphs captured from here on tell, too */
    begin_trace(rt);
    for (uint32_t i = 0; i < WARM; i++) {
        net_wait(rt, post_step(t, x));
    }
    for (uint32_t i = 0; i < TRIES; i++) {
        uint32_t before = __atomic_load_n(&ops, __ATOMIC_ACQUIRE);
        ren_job first = post_step(t, x);
        await_more(&ops, before);
        net_wait(rt, post_step(t, x));
        net_wait(rt, first);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    ren_test_trace(rt, NULL, NULL);
    read_trace(rt, &f);
    check_rows(&f);
    CU_ASSERT(count_beside(&f) > 0);
    trace_file_free(&f);
    ren_trainer_destroy(t);
    ren_model_destroy(m);
    free(x);
    ren_test_shutdown(rt);
}

/* ------------------------------------------------------------------ that it changes nothing */

/* Proves: a run that begins and ends traces as it goes has the weights and losses of a run without,
 * bit for bit; each step took place once; the graphs with stamps are made once and kept, and those
 * without are used again after the end. With steps posted ahead a trace begins and ends while some
 * are under way. Fails if a switch loses or doubles a step, takes a wrong place's graph, or
 * captures anew each time. */
static void compare_switching(net_kind kind, uint32_t window, uint32_t one_by_one)
{
    static run_result base, other;
    run_spec spec = run_default(kind);
    spec.steps = 60;
    spec.window = window;
    spec.one_by_one = one_by_one;
    run_alone(&spec, &base);
    ren_runtime *rt = run_runtime(&spec);
    ren_stats stats = ren_stats_default();
    run r;
    run_begin(&r, rt, &spec, &other);
    while (r.next < spec.steps) {
        if (r.next % 10 == 4) {
            begin_trace(rt);
        } else if (r.next % 10 == 9) {
            CU_ASSERT_EQUAL(ren_trace_end(rt), REN_OK);
        }
        run_step(&r);
    }
    run_end(&r);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.steps_queued + stats.steps_graph, spec.steps);
    CU_ASSERT_EQUAL(other.graph_steps, base.graph_steps);
    if (one_by_one) {
        CU_ASSERT_EQUAL(stats.graph_captures, 2 * base.stats.graph_captures);
        CU_ASSERT_EQUAL(stats.timed_steps, spec.steps / 2);
    }
    CU_ASSERT_EQUAL(stats.graph_fallbacks, 0);
    run_same(&base, &other);
    run_free(&base);
    (void)unlink(trace_path());
    ren_test_shutdown(rt);
}

static void test_trace_changes_nothing_mlp(void)
{
    compare_switching(NET_MLP, 0, 1);
    compare_switching(NET_MLP, 0, 0);
}

static void test_trace_changes_nothing_branches(void)
{
    compare_switching(NET_BRANCH, 0, 1);
    compare_switching(NET_BRANCH, 0, 0);
}

static void test_trace_changes_nothing_in_windows(void)
{
    compare_switching(NET_TINYRES, 2, 1);
    compare_switching(NET_TINYRES, 3, 0);
}

static void count_stamps(void *user, const ren_test_command *c)
{
    if (c->begin && strcmp(c->call, "stamp") == 0) {
        __atomic_fetch_add((uint32_t *)user, 1, __ATOMIC_RELEASE);
    }
}

/* Proves: without a trace not one stamp is enqueued or replayed, before the first and after the
 * last alike. Fails if the graphs with stamps stay in use. */
static void test_no_stamps_without_a_trace(void)
{
    static run_result out;
    run_spec spec = small_run(NET_MLP);
    ren_runtime *rt = run_runtime(&spec);
    run r;
    uint32_t stamps = 0;
    ren_test_trace(rt, count_stamps, &stamps);
    run_begin(&r, rt, &spec, &out);
    while (r.next < 6) {
        run_step(&r);
    }
    CU_ASSERT_EQUAL(ren_test_calls(rt, "stamp"), 0);
    begin_trace(rt);
    uint64_t clock = ren_test_calls(rt, "stamp");
    CU_ASSERT(clock > 0);
    run_step(&r);
    uint64_t first = ren_test_calls(rt, "stamp");
    CU_ASSERT(first > clock + 10); /* a capture: the tasks' too */
    run_step(&r);
    run_step(&r);
    /* Outside the graph: before and behind x, labels and control; around the result. */
    uint64_t before = ren_test_calls(rt, "stamp");
    run_step(&r);
    CU_ASSERT_EQUAL(ren_test_calls(rt, "stamp"), before + 6);
    CU_ASSERT_EQUAL(ren_trace_end(rt), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    uint64_t ended = ren_test_calls(rt, "stamp");
    uint32_t replayed = __atomic_load_n(&stamps, __ATOMIC_ACQUIRE);
    CU_ASSERT(replayed > 4 * 10);
    run_step(&r);
    run_step(&r);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_test_calls(rt, "stamp"), ended);
    CU_ASSERT_EQUAL(__atomic_load_n(&stamps, __ATOMIC_ACQUIRE), replayed);
    ren_test_trace(rt, NULL, NULL);
    (void)unlink(trace_path());
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
}

/* Proves: stamps and the copy that fetches them may fail without a step failing: every step is
 * done, weights are those of an undisturbed run, and what is not known is not in the file. */
static void test_refused_stamps_fail_no_step(void)
{
    static run_result base, other;
    run_spec spec = small_run(NET_MLP);
    trace_file f;
    spec.queued = 1;
    run_alone(&spec, &base);
    ren_runtime *rt = run_runtime(&spec);
    run r;
    run_begin(&r, rt, &spec, &other);
    begin_trace(rt);
    ren_test_fault(rt, "stamp", 8, REN_ERR_DEVICE, 1);
    while (r.next < spec.steps) {
        run_step(&r);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    ren_test_fault_clear(rt);
    read_trace(rt, &f);
    check_rows(&f);
    CU_ASSERT(count_spans(&f, "steps", "step") <= 1);
    trace_file_free(&f);
    run_end(&r);
    run_same(&base, &other);
    run_free(&base);
    ren_test_shutdown(rt);
}

/* ------------------------------------------------------------------ sums and jobs */

/* Proves: the stats hold the same as the file: tasks, busy time and bubbles by stream, and shares
 * are shares. Fails if a bubble counts idle time outside a step, or time under work. */
static void test_stats_agree_with_the_file(void)
{
    static run_result out;
    run_spec spec = small_run(NET_BRANCH);
    ren_runtime *rt = run_runtime(&spec);
    ren_stats stats = ren_stats_default();
    trace_file f;
    run r;
    run_begin(&r, rt, &spec, &out);
    begin_trace(rt);
    while (r.next < spec.steps) {
        run_step(&r);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    read_trace(rt, &f);
    CU_ASSERT_EQUAL(stats.timed_steps, spec.steps);
    uint64_t tasks = 0, device_ns = 0;
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        uint32_t track = trace_file_track(&f, stream_rows[s]);
        uint64_t busy = 0;
        for (size_t i = 0; i < f.span_count; i++) {
            int is_copy = strcmp(f.spans[i].name, "result copy") == 0;
            if (f.spans[i].track == track && !f.spans[i].instant && !is_copy) {
                busy += f.spans[i].end_ns - f.spans[i].begin_ns;
                tasks += s != REN_STREAM_TRANS;
            }
        }
        /* The file's times are fractions of a microsecond: a rounding for each task at most; and
         * where a drift between the clocks was seen, they are the host's. */
        uint64_t off = busy > stats.timed_busy_ns[s] ? busy - stats.timed_busy_ns[s]
                                                     : stats.timed_busy_ns[s] - busy;
        CU_ASSERT(off <= stats.timed_tasks + spec.steps * 4 + busy / DRIFT);
        CU_ASSERT(stats.bubble_ns[s] + stats.timed_busy_ns[s] <= stats.timed_device_ns ||
                  s == REN_STREAM_TRANS);
    }
    for (size_t i = 0; i < f.span_count; i++) {
        int is_step = f.spans[i].track == trace_file_track(&f, "steps");
        device_ns += is_step ? f.spans[i].end_ns - f.spans[i].begin_ns : 0;
    }
    CU_ASSERT_EQUAL(tasks, stats.timed_tasks);
    uint64_t off = device_ns > stats.timed_device_ns ? device_ns - stats.timed_device_ns
                                                     : stats.timed_device_ns - device_ns;
    CU_ASSERT(off <= spec.steps + device_ns / DRIFT);
    CU_ASSERT(stats.timed_latency_ns > stats.timed_device_ns ||
              ren_test_device() != REN_DEVICE_CPU);
    CU_ASSERT(stats.timed_issue_ns > 0);
    CU_ASSERT_EQUAL(stats.timed_events % spec.steps, 0);
    trace_file_free(&f);
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
}

static void host_nothing(void *user)
{
    (void)user;
}

/* Proves: a copy, a fill and a DEVICE job are spans on their streams' rows of jobs by the device's
 * clock, a HOST job one on its completion thread, a barrier an instant. */
static void test_trace_shows_jobs(void)
{
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_job_desc d = ren_job_desc_default();
    ren_buffer buffer;
    char host[4096] = {0};
    trace_file f;
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 1 << 20), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COMP_1, sizeof host, &buffer), REN_OK);
    begin_trace(rt);
    d.deliver = REN_DELIVER_NONE;
    for (uint32_t i = 0; i < 20; i++) {
        static const ren_job_kind kinds[] = {REN_JOB_COPY, REN_JOB_FILL, REN_JOB_DEVICE,
                                             REN_JOB_HOST, REN_JOB_BARRIER};
        ren_use use = {.buffer = buffer, .access = REN_ACCESS_WRITE};
        d.kind = kinds[i % 5];
        d.stream = (ren_stream)(i % 5);
        d.copy = (ren_copy){.dst.buffer = buffer, .src.host = host, .bytes = sizeof host};
        if (d.kind == REN_JOB_FILL) {
            d.fill = (ren_fill){.dst.buffer = buffer, .value = 1, .bytes = sizeof host};
        }
        d.enqueue = enqueue_nothing;
        d.host_fn = host_nothing;
        d.uses = &use;
        d.use_count = d.kind == REN_JOB_DEVICE;
        CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_OK);
    read_trace(rt, &f);
    check_rows(&f);
    /* A device that copies from pinned memory alone has the thread make the copy. */
    CU_ASSERT_EQUAL(
        count_spans(&f, "jobs TRANS", "copy") + count_spans(&f, "completion TRANS", "copy"), 4);
    CU_ASSERT_EQUAL(count_spans(&f, "jobs COMP_1", "fill"), 4);
    CU_ASSERT_EQUAL(count_spans(&f, "jobs COMP_2", "device"), 4);
    CU_ASSERT_EQUAL(count_spans(&f, "completion COMP_3", "host"), 4);
    CU_ASSERT_EQUAL(count_spans(&f, "jobs UPDATE", "barrier"), 4);
    CU_ASSERT_EQUAL(count_spans(&f, "host posts", "post"), 20);
    trace_file_free(&f);
    ren_test_shutdown(rt);
}

/* Proves: where the host drives the submitter, begin and end drive it while they read the clock,
 * and the job has its device times. Fails if they wait for a thread that is not there. */
static void test_trace_of_a_driven_runtime(void)
{
    ren_runtime_config config = ren_test_config();
    ren_job_desc d = ren_job_desc_default();
    trace_file f;
    ren_job job;
    config.host_drives_submitter = 1;
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    begin_trace(rt);
    d.kind = REN_JOB_DEVICE;
    d.stream = REN_STREAM_COMP_3;
    d.enqueue = enqueue_nothing;
    d.deliver = REN_DELIVER_NONE;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, job, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    read_trace(rt, &f);
    CU_ASSERT_EQUAL(count_spans(&f, "jobs COMP_3", "device"), 1);
    trace_file_free(&f);
    ren_test_shutdown(rt);
}

/* Steps under a trace by a device clock of its own; the trace lasts `wait_ms` at least. */
static void trace_by_another_clock(uint32_t ppm, uint32_t wait_ms)
{
    static run_result out;
    const struct timespec wait = {wait_ms / 1000, (long)(wait_ms % 1000) * 1000000};
    run_spec spec = small_run(NET_BRANCH);
    ren_runtime *rt = run_runtime(&spec);
    ren_stats stats = ren_stats_default();
    uint64_t device_ns = 0, astray = 0;
    trace_file f;
    run r;
    ren_test_clock(rt, UINT64_C(1700000000000000000), ppm);
    run_begin(&r, rt, &spec, &out);
    begin_trace(rt);
    while (r.next < spec.steps) {
        run_step(&r);
    }
    (void)nanosleep(&wait, NULL);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    read_trace(rt, &f);
    check_rows(&f);
    check_arrows(&f, 0);
    for (uint64_t i = 1; i <= spec.steps; i++) {
        const char *path = i > spec.after ? "step graph" : "step queued";
        const trace_span *step = find_span(&f, "steps", path, i);
        const trace_span *issue = find_span(
            &f, "submitter", i > spec.after ? "issue step graph" : "issue step queued", i);
        const trace_span *next = find_span(
            &f, "submitter", i >= spec.after ? "issue step graph" : "issue step queued", i + 1);
        CU_ASSERT_FATAL(step && issue);
        device_ns += step->end_ns - step->begin_ns;
        /* Each was waited for before the next was posted. */
        astray += step->end_ns < issue->begin_ns || (next && step->begin_ns > next->end_ns);
    }
    CU_ASSERT_EQUAL(astray, 0);
    uint64_t off = device_ns > stats.timed_device_ns ? device_ns - stats.timed_device_ns
                                                     : stats.timed_device_ns - device_ns;
    CU_ASSERT(off <= spec.steps + device_ns / DRIFT);
    trace_file_free(&f);
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
}

/* Proves: device times of a clock that is years from the host's, and goes a little faster, are at
 * their places among the host's, over a short trace and over one long enough to see the drift; rows
 * and arrows are in order. Fails if the clocks' readings are not used, or used the wrong way. */
static void test_trace_by_another_clock(void)
{
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_skip("sets the CPU device's clock; others have one of their own");
        return;
    }
    trace_by_another_clock(0, 0);
    trace_by_another_clock(200, 0);
    trace_by_another_clock(200, 500);
}

/* Proves: inferences have their spans, by the device's clock, beside the tasks of training. */
static void test_trace_shows_inferences(void)
{
    static run_result out;
    static float logits[12 * 10];
    run_spec spec = small_run(NET_MLP);
    ren_runtime *rt = run_runtime(&spec);
    ren_infer_desc d = ren_infer_desc_default();
    trace_file f;
    size_t seen = 0;
    run r;
    run_begin(&r, rt, &spec, &out);
    const ren_binding x = {"x", r.x, r.n.row * r.n.batch * sizeof(float)};
    CU_ASSERT_EQUAL(ren_infer_prepare(r.n.model, r.n.logits, NULL), REN_OK);
    begin_trace(rt);
    d.bindings = &x;
    d.binding_count = 1;
    d.output = r.n.logits;
    d.out_data = logits;
    d.out_bytes = sizeof logits;
    d.deliver = REN_DELIVER_NONE;
    for (uint32_t i = 0; i < 6; i++) {
        ren_job job;
        CU_ASSERT_EQUAL_FATAL(ren_infer(r.n.model, &d, &job), REN_OK);
        run_step(&r);
        net_wait(rt, job);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    read_trace(rt, &f);
    check_rows(&f);
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        char jobs[32];
        (void)snprintf(jobs, sizeof jobs, "jobs %s", stream_rows[s] + strlen("stream "));
        seen += count_spans(&f, jobs, "infer");
    }
    CU_ASSERT_EQUAL(seen, 6);
    CU_ASSERT_EQUAL(count_spans(&f, "steps", "step"), 6);
    trace_file_free(&f);
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
}

/* Proves: a device that does not answer holds begin up for a bounded time, the file then has all
 * but device times, and what was under way at the end of a trace does no harm to the next. */
static void test_trace_of_a_held_device(void)
{
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_job_desc d = ren_job_desc_default();
    trace_file f;
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_shutdown(rt);
        ren_test_skip("holds a lane, which the CPU device alone can");
        return;
    }
    d.kind = REN_JOB_BARRIER;
    d.stream = REN_STREAM_TRANS;
    d.deliver = REN_DELIVER_NONE;
    ren_test_hold(rt, REN_STREAM_TRANS);
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    begin_trace(rt);
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_trace_end(rt), REN_OK);
    CU_ASSERT(trace_file_read(trace_path(), &f));
    CU_ASSERT_EQUAL(count_spans(&f, "host posts", "post"), 1);
    trace_file_free(&f);
    ren_test_release(rt, REN_STREAM_TRANS);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    begin_trace(rt);
    d.kind = REN_JOB_DEVICE;
    d.enqueue = enqueue_nothing;
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 10 * SECOND), REN_OK);
    read_trace(rt, &f);
    CU_ASSERT_EQUAL(count_spans(&f, "jobs TRANS", "device"), 1);
    trace_file_free(&f);
    ren_test_shutdown(rt);
}

static void count_calls(const ren_completion *c, void *user)
{
    (void)c;
    __atomic_fetch_add((uint32_t *)user, 1, __ATOMIC_RELEASE);
}

/* Six steps, each waited for, with the nth device call from the trace's begin on failing. */
static void traced_steps_with_fault(uint64_t nth, ren_status fault)
{
    run_spec spec = run_default(NET_MLP);
    spec.after = 2;
    ren_runtime *rt = run_runtime(&spec);
    static run_result out;
    uint32_t calls = 0, accepted = 0;
    run r;
    run_begin(&r, rt, &spec, &out);
    ren_test_fault(rt, "any", nth, fault, 0);
    (void)ren_trace_begin(rt, trace_path(), NULL);
    for (uint32_t i = 0; i < 6; i++) {
        ren_binding bindings[2] = {{"x", r.x, r.n.row * r.n.batch * sizeof(float)},
                                   {"labels", r.labels, r.n.batch * sizeof(int32_t)}};
        ren_step_desc desc = ren_step_desc_default();
        desc.bindings = bindings;
        desc.binding_count = 2;
        desc.done = count_calls;
        desc.user = &calls;
        desc.deliver = REN_DELIVER_ANY_THREAD;
        ren_job job;
        if (ren_trainer_step(r.t, &desc, &job) == REN_OK) {
            accepted++;
            while (__atomic_load_n(&calls, __ATOMIC_ACQUIRE) < accepted) {
                (void)ren_wait(rt, job, SECOND / 100);
            }
        }
    }
    ren_test_fault_clear(rt);
    (void)ren_trace_end(rt);
    CU_ASSERT_EQUAL(calls, accepted);
    CU_ASSERT(accepted == 6 || fault == REN_ERR_DEVICE_LOST);
    ren_trainer_destroy(r.t);
    run_end_model(&r);
    (void)unlink(trace_path());
    ren_test_shutdown(rt);
}

/* Proves: whatever device call fails in a traced run, with the clock's reading, the stamps and the
 * captures with them, each step that was accepted completes once, the trace ends and all is given
 * back. Fails if a probe or a step waits for a stamp that never comes. */
static void test_trace_survives_faults(void)
{
    for (uint64_t nth = 1; nth < 400; nth += nth < 60 && ren_test_slowdown() == 1 ? 3 : 37) {
        traced_steps_with_fault(nth, REN_ERR_DEVICE);
        traced_steps_with_fault(nth, REN_ERR_DEVICE_LOST);
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_trace_shows_steps", test_trace_shows_steps},
        {"test_trace_shows_steps_of_fewer_queues", test_trace_shows_steps_of_fewer_queues},
        {"test_trace_shows_copies_beside_a_step", test_trace_shows_copies_beside_a_step},
        {"test_trace_changes_nothing_mlp", test_trace_changes_nothing_mlp},
        {"test_trace_changes_nothing_branches", test_trace_changes_nothing_branches},
        {"test_trace_changes_nothing_in_windows", test_trace_changes_nothing_in_windows},
        {"test_no_stamps_without_a_trace", test_no_stamps_without_a_trace},
        {"test_refused_stamps_fail_no_step", test_refused_stamps_fail_no_step},
        {"test_stats_agree_with_the_file", test_stats_agree_with_the_file},
        {"test_trace_shows_jobs", test_trace_shows_jobs},
        {"test_trace_of_a_driven_runtime", test_trace_of_a_driven_runtime},
        {"test_trace_by_another_clock", test_trace_by_another_clock},
        {"test_trace_shows_inferences", test_trace_shows_inferences},
        {"test_trace_survives_faults", test_trace_survives_faults},
        {"test_trace_of_a_held_device", test_trace_of_a_held_device},
    };
    return ren_test_main(argc, argv, "conformance/test_trace_steps", cases, REN_TEST_COUNT(cases),
                         120);
}
