/* SPDX-License-Identifier: MIT */
/* tests/conformance/runs.c - see runs.h. */
#include "runs.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "../bench/models/models.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define BATCHES 5u
#define SECOND  UINT64_C(1000000000)

run_spec run_default(net_kind kind)
{
    run_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.kind = kind;
    spec.optimizer = kind == NET_MLP ? REN_OPTIMIZER_ADAM : REN_OPTIMIZER_SGD;
    spec.steps = 200u / (ren_test_slowdown() > 1 ? 4u : 1u);
    spec.sizes = 2;
    spec.after = 3;
    spec.streams = 5;
    spec.batch = 12;
    return spec;
}

static void make_data(run *r)
{
    unsigned long long state = 42;
    size_t floats = BATCHES * r->n.batch * r->n.row;
    r->x = malloc(floats * sizeof *r->x);
    r->labels = malloc(BATCHES * r->n.batch * sizeof *r->labels);
    CU_ASSERT_FATAL(r->x && r->labels);
    for (size_t i = 0; i < floats; i++) {
        r->x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (size_t i = 0; i < BATCHES * r->n.batch; i++) {
        r->labels[i] = (int32_t)(ren_test_random(&state) % 10u);
    }
}

/* Names and types of the standard models' first two inputs are those of the nets. */
static void build_model(net *n, ren_runtime *rt, const run_spec *spec)
{
    const bench_model *model = bench_model_find(spec->model);
    ren_model_config config = ren_model_config_default();
    CU_ASSERT_FATAL(model != NULL && model->input_count == 2);
    memset(n, 0, sizeof *n);
    config.seed = 5;
    n->batch = spec->batch;
    n->row = bench_model_row(&model->inputs[0]);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, &config, &n->model, NULL), REN_OK);
    n->loss = model->build(n->model, model, spec->batch);
    CU_ASSERT_EQUAL_FATAL(ren_model_status(n->model, NULL), REN_OK);
}

void run_begin(run *r, ren_runtime *rt, const run_spec *spec, run_result *out)
{
    ren_trainer_config how = ren_trainer_config_default();
    memset(r, 0, sizeof *r);
    memset(out, 0, sizeof *out);
    CU_ASSERT_FATAL(spec->steps <= RUN_MOST_STEPS);
    r->spec = spec;
    r->rt = rt;
    r->out = out;
    if (spec->model) {
        build_model(&r->n, rt, spec);
    } else {
        net_build(&r->n, rt, spec->kind, spec->batch, 5);
    }
    how.optimizer = spec->optimizer;
    how.learning_rate = spec->optimizer == REN_OPTIMIZER_SGD ? 0.02f : 0.002f;
    how.momentum = 0.9f;
    how.precision = spec->precision;
    how.graph_segments = spec->segments;
    how.plan_cache = spec->plan_cache;
    how.stream_policy = spec->policy;
    if (spec->window) {
        how.accumulate_steps = spec->window;
        how.clip_norm = 1.0f;
        how.ema_decay = 0.9f;
    }
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(r->n.model, r->n.loss, &how, &r->t, NULL), REN_OK);
    make_data(r);
}

static void await_step(run *r, uint32_t i)
{
    while (__atomic_load_n(&r->out->results[i].calls, __ATOMIC_ACQUIRE) == 0) {
        sched_yield();
    }
}

void run_step(run *r)
{
    const run_spec *spec = r->spec;
    uint32_t i = r->next++;
    uint32_t rows = r->n.batch - (spec->block ? i / spec->block % spec->sizes : 0u);
    size_t b = i % BATCHES;
    ren_job job;
    ren_status status;
    if (i < 64 && (spec->left_out >> i & 1u)) {
        return;
    }
    if (spec->vary) {
        float rate = 0.001f * (float)(1u + i * 7u % 11u);
        CU_ASSERT_EQUAL(ren_trainer_set_scalar(r->t, REN_SCALAR_LEARNING_RATE, rate), REN_OK);
    }
    do {
        status = net_post(&r->n, r->t, r->x + b * r->n.batch * r->n.row, r->labels + b * r->n.batch,
                          rows, &r->out->results[i], &job);
        if (status == REN_ERR_QUEUE_FULL) {
            sched_yield();
        }
    } while (status == REN_ERR_QUEUE_FULL);
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    r->out->steps++;
    if (spec->one_by_one) {
        await_step(r, i);
    }
}

void run_end(run *r)
{
    run_result *out = r->out;
    uint32_t index = 0;
    for (uint32_t i = 0; i < r->next; i++) {
        if (i < 64 && (r->spec->left_out >> i & 1u)) {
            continue;
        }
        await_step(r, i);
        CU_ASSERT_EQUAL(out->results[i].calls, 1);
        CU_ASSERT_EQUAL(out->results[i].step.index, ++index);
        out->graph_steps +=
            out->results[i].status == REN_OK && out->results[i].step.path == REN_PATH_GRAPH;
    }
    out->params = net_params(&r->n, &out->count);
    ren_trainer_destroy(r->t);
    run_end_model(r);
}

void run_end_model(run *r)
{
    ren_model_destroy(r->n.model);
    free(r->x);
    free(r->labels);
}

ren_runtime *run_runtime(const run_spec *spec)
{
    ren_runtime_config config = ren_test_config();
    config.streams = spec->streams;
    config.graph_after_steps = spec->after;
    config.disable_graphs = spec->queued;
    config.deterministic = 1;
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    return rt;
}

void run_in(ren_runtime *rt, const run_spec *spec, run_result *out)
{
    run r;
    run_begin(&r, rt, spec, out);
    while (r.next < spec->steps) {
        run_step(&r);
    }
    run_end(&r);
}

void run_alone(const run_spec *spec, run_result *out)
{
    ren_runtime *rt = run_runtime(spec);
    run_in(rt, spec, out);
    out->stats = ren_stats_default();
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &out->stats), REN_OK);
    CU_ASSERT_EQUAL(out->stats.pool_bytes_in_use, 0);
    ren_test_shutdown(rt);
}

void run_same(const run_result *base, run_result *other)
{
    CU_ASSERT_EQUAL_FATAL(base->count, other->count);
    CU_ASSERT_EQUAL(memcmp(base->params, other->params, base->count * sizeof(float)), 0);
    uint32_t unlike = 0;
    for (uint32_t i = 0; i < RUN_MOST_STEPS; i++) {
        const net_result *a = &base->results[i];
        const net_result *b = &other->results[i];
        if (a->calls && b->calls && a->status == REN_OK && b->status == REN_OK) {
            unlike += memcmp(&a->step.loss, &b->step.loss, sizeof a->step.loss) != 0;
        }
    }
    CU_ASSERT_EQUAL(unlike, 0);
    run_free(other);
}

void run_free(run_result *r)
{
    free(r->params);
    r->params = NULL;
}
