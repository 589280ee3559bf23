/* SPDX-License-Identifier: MIT */
/* tests/fault/test_faults.c - every device call fails once, or for ever, while real work goes on.
 *
 * Proves    for each scenario, each kind of device call, each position of that call and each kind
 *           of failure: the program neither crashes nor hangs; every accepted job completes
 *           exactly once; the runtime can be shut down; no byte of the pool stays in use; and
 *           after every training step the weights are exactly those before it or those after it,
 * as its completion says.
 * Sweep     the nth call of a kind fails for n = 1, 2, ... until the scenario is through without
 *           reaching the nth call. Faults are counted and printed.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define SECOND UINT64_C(1000000000)

static unsigned long faults;

typedef struct tally {
    atomic_uint delivered;
    unsigned accepted;
} tally;

static void count(const ren_completion *c, void *user)
{
    tally *t = user;
    CU_ASSERT((c->status < 0) == (c->err != NULL));
    atomic_fetch_add(&t->delivered, 1);
}

static void host_work(void *user)
{
    (void)user;
}

static ren_status device_work(void *user, const ren_device_io *io)
{
    (void)user;
    (void)io;
    return REN_OK;
}

/* ------------------------------------------------------------------ scenarios */

static void post(ren_runtime *rt, ren_job_desc *d, tally *t, ren_job *out)
{
    d->done = count;
    d->user = t;
    t->accepted += ren_post(rt, d, out) == REN_OK;
}

/* Copies, fills, device and host work over all streams, ordered by buffers and waits. */
static void jobs_scenario(ren_runtime *rt, tally *t)
{
    static unsigned char memory[2][512];
    ren_job last = {0};
    for (int i = 0; i < 6; i++) {
        ren_stream s = (ren_stream)(i % REN_STREAM_COUNT);
        ren_buffer buffer = {0};
        ren_job_desc d = ren_job_desc_default();
        if (ren_buffer_alloc(rt, s, 512, &buffer) != REN_OK) {
            continue;
        }
        d.kind = REN_JOB_COPY;
        d.stream = REN_STREAM_TRANS;
        d.copy.dst.buffer = buffer;
        d.copy.src.host = memory[0];
        d.copy.bytes = 512;
        post(rt, &d, t, &last);
        d = ren_job_desc_default();
        d.kind = REN_JOB_FILL;
        d.stream = s;
        d.fill.dst.buffer = buffer;
        d.fill.bytes = 512;
        post(rt, &d, t, NULL);
        d = ren_job_desc_default();
        d.kind = i % 2 ? REN_JOB_DEVICE : REN_JOB_HOST;
        d.stream = REN_STREAM_COMP_3;
        d.enqueue = device_work;
        d.host_fn = host_work;
        d.wait = &last;
        d.wait_count = last.id ? 1 : 0;
        post(rt, &d, t, &last);
        d = ren_job_desc_default();
        d.kind = REN_JOB_COPY;
        d.stream = REN_STREAM_UPDATE;
        d.copy.dst.host = memory[1];
        d.copy.src.buffer = buffer;
        d.copy.bytes = 512;
        d.wait = &last;
        d.wait_count = last.id ? 1 : 0;
        post(rt, &d, t, NULL);
        (void)ren_buffer_free(rt, buffer);
    }
}

enum {
    STEPS = 4,
    IN = 6,
    HIDDEN = 5,
    CLASSES = 3,
    BATCH = 4,
    WEIGHTS = HIDDEN * IN + HIDDEN + CLASSES * HIDDEN + CLASSES
};

static const char *const names[] = {"l1.weight", "l1.bias", "l2.weight", "l2.bias"};
static const int sizes[] = {HIDDEN * IN, HIDDEN, CLASSES *HIDDEN, CLASSES};

typedef struct training {
    unsigned applied; /* bit s: step s completed with REN_OK */
    bool have_weights;
    float weights[WEIGHTS]; /* after all steps */
} training;

typedef struct step_note {
    training *run;
    unsigned step;
    unsigned completions;
} step_note;

static void note_step(const ren_completion *c, void *user)
{
    step_note *note = user;
    note->run->applied |= c->status == REN_OK ? 1u << note->step : 0;
    note->completions++;
}

static ren_status build(ren_runtime *rt, ren_model **m, ren_trainer **t)
{
    const int64_t in[2] = {BATCH, IN};
    const int64_t labels[1] = {BATCH};
    ren_linear_options o = ren_linear_options_default();
    ren_model_config mc = ren_model_config_default();
    ren_trainer_config tc = ren_trainer_config_default();
    ren_status status;
    mc.seed = 5;
    tc.optimizer = REN_OPTIMIZER_ADAM;
    status = ren_model_create(rt, &mc, m, NULL);
    if (status != REN_OK) {
        return status;
    }
    ren_tensor x = ren_input(*m, "x", REN_F32, in, 2);
    ren_tensor y = ren_input(*m, "y", REN_I32, labels, 1);
    o.units = HIDDEN;
    x = ren_relu(*m, "r", ren_linear(*m, "l1", x, &o));
    o.units = CLASSES;
    x = ren_softmax_cross_entropy(*m, "loss", ren_linear(*m, "l2", x, &o), y, NULL);
    return ren_trainer_create(*m, x, &tc, t, NULL);
}

/* Posts the steps of `mask`; each must complete exactly once. */
static void train(ren_runtime *rt, training *run, unsigned mask)
{
    step_note notes[STEPS];
    unsigned accepted = 0;
    static float x[STEPS][BATCH * IN];
    static int32_t y[STEPS][BATCH];
    ren_model *m = NULL;
    ren_trainer *t = NULL;
    ren_status status = build(rt, &m, &t);
    memset(run, 0, sizeof *run);
    for (int s = 0; s < STEPS && status == REN_OK; s++) {
        ren_step_desc d = ren_step_desc_default();
        ren_binding bindings[2] = {{"x", x[s], sizeof x[s]}, {"y", y[s], sizeof y[s]}};
        unsigned long long seed = (unsigned long long)s + 1;
        ren_job job;
        notes[s] = (step_note){run, (unsigned)s, 0};
        if (!(mask & (1u << s))) {
            continue;
        }
        for (int i = 0; i < BATCH * IN; i++) {
            x[s][i] = (float)(ren_test_random(&seed) % 1000) / 500.0f - 1.0f;
        }
        for (int i = 0; i < BATCH; i++) {
            y[s][i] = (int32_t)(ren_test_random(&seed) % CLASSES);
        }
        d.bindings = bindings;
        d.binding_count = 2;
        d.done = note_step;
        d.user = &notes[s];
        if (ren_trainer_step(t, &d, &job) == REN_OK) {
            accepted |= 1u << s;
            (void)ren_wait(rt, job, 20 * SECOND);
        }
    }
    CU_ASSERT(ren_runtime_drain(rt, 20 * SECOND) != REN_TIMEOUT);
    (void)ren_pump(rt, 0, 0, 0, NULL);
    for (int s = 0; s < STEPS && status == REN_OK; s++) {
        CU_ASSERT_EQUAL(notes[s].completions, (accepted >> s) & 1u);
    }
    ren_test_fault_clear(rt);
    run->have_weights = t != NULL;
    for (int p = 0, at = 0; p < 4 && t; at += sizes[p], p++) {
        status = ren_param_get(m, names[p], run->weights + at, (size_t)sizes[p] * sizeof(float));
        run->have_weights = run->have_weights && status == REN_OK;
    }
    ren_trainer_destroy(t);
    ren_model_destroy(m);
}

/* ------------------------------------------------------------------ the sweep */

/* Weights by the set of steps that were applied, from runs without faults. */
static float reference[1u << STEPS][WEIGHTS];

static void make_reference(void)
{
    for (unsigned mask = 0; mask < 1u << STEPS; mask++) {
        ren_runtime *rt = ren_test_runtime(NULL);
        training run;
        train(rt, &run, mask);
        CU_ASSERT(run.have_weights && run.applied == mask);
        memcpy(reference[mask], run.weights, sizeof run.weights);
        ren_test_shutdown(rt);
    }
}

static const char *const calls[] = {"copy",         "fill",       "call",         "op_launch",
                                    "op_create",    "event_wait", "event_record", "event_sync",
                                    "event_create", "mem_alloc",  "host_alloc"};
static const ren_status kinds[] = {REN_ERR_DEVICE, REN_ERR_NO_DEVICE_MEMORY, REN_ERR_DEVICE_LOST};

/* True when the scenario reached the nth call. */
static bool one_fault(const char *call, uint64_t nth, ren_status kind, int forever,
                      bool training_run)
{
    ren_runtime_config config = ren_test_config();
    ren_runtime *rt = NULL;
    ren_error err;
    ren_status status;
    ren_stats stats = ren_stats_default();
    tally t;
    uint64_t before;
    bool reached;
    memset(&t, 0, sizeof t);
    config.allow_growth = 1;
    config.ring_entries = 64;
    config.max_buffers = 64;
    status = ren_runtime_create(&config, &rt, &err);
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    before = ren_test_calls(rt, call);
    ren_test_fault(rt, call, nth, kind, forever);
    if (training_run) {
        training run;
        train(rt, &run, (1u << STEPS) - 1);
        if (run.have_weights) {
            CU_ASSERT(memcmp(run.weights, reference[run.applied], sizeof run.weights) == 0);
        }
    } else {
        jobs_scenario(rt, &t);
        CU_ASSERT(ren_runtime_drain(rt, 20 * SECOND) != REN_TIMEOUT);
        (void)ren_pump(rt, 0, 0, 0, NULL);
        CU_ASSERT_EQUAL(t.delivered, t.accepted);
    }
    reached = ren_test_calls(rt, call) - before >= nth;
    ren_test_fault_clear(rt);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.jobs_posted,
                    stats.jobs_completed + stats.jobs_failed + stats.jobs_cancelled);
    CU_ASSERT_EQUAL(stats.pool_bytes_in_use, 0);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(rt, 20 * SECOND), REN_OK);
    faults += reached;
    return reached;
}

static void sweep(bool training_run)
{
    /* A sanitizer is slow, and so is opening a GPU: there every seventh position must do. */
    unsigned stride = ren_test_slowdown() > 1 || ren_test_device() != REN_DEVICE_CPU ? 7 : 1;
    for (size_t c = 0; c < REN_TEST_COUNT(calls); c++) {
        for (size_t k = 0; k < REN_TEST_COUNT(kinds); k++) {
            for (int forever = 0; forever < 2; forever++) {
                for (uint64_t nth = 1; nth < 400; nth += stride) {
                    if (!one_fault(calls[c], nth, kinds[k], forever, training_run)) {
                        break;
                    }
                }
            }
        }
    }
    (void)printf("       %lu faults so far\n", faults);
}

static void test_every_device_call_fails_under_jobs(void)
{
    sweep(false);
    CU_ASSERT(faults > 50);
}

static void test_every_device_call_fails_under_training(void)
{
    make_reference();
    sweep(true);
    CU_ASSERT(faults > 200);
}

/* Promise 9: after a loss every call says so at once, and the process goes on with a new
 * runtime. */
static void test_lost_device_is_reported_everywhere(void)
{
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_job_desc d = ren_job_desc_default();
    ren_buffer buffer;
    ren_error err;
    tally t;
    ren_job job;
    memset(&t, 0, sizeof t);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COMP_1, 64, &buffer), REN_OK);
    ren_test_fault(rt, "fill", 1, REN_ERR_DEVICE_LOST, 0);
    d.kind = REN_JOB_FILL;
    d.stream = REN_STREAM_COMP_1;
    d.fill.dst.buffer = buffer;
    d.fill.bytes = 64;
    post(rt, &d, &t, &job);
    CU_ASSERT_EQUAL(ren_wait(rt, job, 20 * SECOND), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, 20 * SECOND), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(ren_runtime_status(rt, &err), REN_ERR_DEVICE_LOST);
    CU_ASSERT(strlen(err.text) > 0);
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COMP_1, 64, &buffer), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 4096), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(ren_timeline_wait(rt, REN_STREAM_COMP_1, 99, 20 * SECOND), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_wait_any(rt, 20 * SECOND), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(t.delivered, 1);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(rt, 20 * SECOND), REN_OK);
    rt = ren_test_runtime(NULL);
    memset(&t, 0, sizeof t);
    jobs_scenario(rt, &t);
    ren_test_shutdown(rt);
    CU_ASSERT_EQUAL(t.delivered, t.accepted);
}

/* The first call to be told of the loss is one that plans or asks for memory, on the host's thread:
 * from then on it is the runtime's, too, and who waits for work under way is told. */
static void test_loss_is_told_to_a_slow_call(void)
{
    static const char *const slow[] = {"op_create", "event_create", "host_alloc", "mem_alloc"};
    for (size_t c = 0; c < REN_TEST_COUNT(slow); c++) {
        ren_runtime *rt = ren_test_runtime(NULL);
        ren_job_desc d = ren_job_desc_default();
        ren_model *m = NULL;
        ren_trainer *t = NULL;
        ren_error err;
        ren_job job;
        d.kind = REN_JOB_BARRIER;
        d.stream = REN_STREAM_COMP_3;
        CU_ASSERT_EQUAL(build(rt, &m, &t), REN_OK);
        ren_trainer_destroy(t);
        ren_model_destroy(m);
        t = NULL;
        /* Long enough to be under way; a lane that never came back would keep its memory. */
        ren_test_delay(rt, REN_STREAM_COMP_3, 800);
        CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
        ren_test_fault(rt, slow[c], 1, REN_ERR_DEVICE_LOST, 0);
        CU_ASSERT_EQUAL(c == 3 ? ren_memory_reserve(rt, 256u << 20) : build(rt, &m, &t),
                        REN_ERR_DEVICE_LOST);
        CU_ASSERT_PTR_NULL(t);
        CU_ASSERT_EQUAL(ren_runtime_status(rt, &err), REN_ERR_DEVICE_LOST);
        CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_ERR_DEVICE_LOST);
        CU_ASSERT_EQUAL(ren_wait(rt, job, 20 * SECOND), REN_ERR_DEVICE_LOST);
        ren_model_destroy(c == 3 ? NULL : m);
        CU_ASSERT_EQUAL(ren_runtime_shutdown(rt, 20 * SECOND), REN_OK);
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_lost_device_is_reported_everywhere", test_lost_device_is_reported_everywhere},
        {"test_loss_is_told_to_a_slow_call", test_loss_is_told_to_a_slow_call},
        {"test_every_device_call_fails_under_jobs", test_every_device_call_fails_under_jobs},
        {"test_every_device_call_fails_under_training",
         test_every_device_call_fails_under_training},
    };
    return ren_test_main(argc, argv, "test_faults", cases, REN_TEST_COUNT(cases), 600);
}
