/* SPDX-License-Identifier: MIT */
/* tests/golden/test_optimizers.c - what a trainer does with gradients, against reference values.
 *
 * The gradients of the golden files reach the trainer as inputs: a layer y = W x with one unit
 * under a Huber loss whose target is far below has dL/dW = x, exactly. So whole steps, from the
 * post to the parameter that is read back, are held to the values that PyTorch (LARS, EMA: their
 * formulas in float64) gives for the same gradients.
 */
#include "../../libren/graph/internal.h"
#include "../../libren/train/trainer_state.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "nets.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH    40u
#define MOST      12u
#define TOLERANCE 2e-5

/* Heads side by side: their outputs are added. Parameters "h<i>.weight", inputs "x<i>". */
typedef struct heads {
    ren_runtime *rt;
    ren_model *model;
    ren_tensor loss;
    ren_trainer *trainer;
    uint32_t count;
    char inputs[MOST][8], layers[MOST][8], params[MOST][24];
} heads;

static void build(heads *h, uint32_t count)
{
    const int64_t row[] = {1, LENGTH};
    const int64_t one[] = {1, 1};
    ren_linear_options o = ren_linear_options_default();
    ren_tensor sum = {0};
    memset(h, 0, sizeof *h);
    h->count = count;
    h->rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(h->rt);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(h->rt, NULL, &h->model, NULL), REN_OK);
    o.units = 1;
    o.disable_bias = 1;
    for (uint32_t i = 0; i < count; i++) {
        char name[16];
        (void)snprintf(h->inputs[i], sizeof h->inputs[i], "x%u", i % MOST);
        (void)snprintf(h->layers[i], sizeof h->layers[i], "h%u", i % MOST);
        (void)snprintf(h->params[i], sizeof h->params[i], "h%u.weight", i % MOST);
        (void)snprintf(name, sizeof name, "sum%u", i);
        ren_tensor x = ren_input(h->model, h->inputs[i], REN_F32, row, 2);
        ren_tensor y = ren_linear(h->model, h->layers[i], x, &o);
        sum = i == 0 ? y : ren_add(h->model, name, sum, y);
    }
    ren_tensor target = ren_input(h->model, "target", REN_F32, one, 2);
    h->loss = ren_huber(h->model, "loss", sum, target, NULL);
}

static void make_trainer(heads *h, const ren_trainer_config *config)
{
    ren_error err;
    memset(&err, 0, sizeof err);
    if (ren_trainer_create(h->model, h->loss, config, &h->trainer, &err) != REN_OK) {
        (void)fprintf(stderr, "ren_trainer_create: %s\n", err.text);
        CU_FAIL_FATAL("the trainer could not be made");
    }
}

static void drop(heads *h)
{
    ren_trainer_destroy(h->trainer);
    ren_model_destroy(h->model);
    ren_test_shutdown(h->rt);
}

static void set(heads *h, uint32_t head, const float *values)
{
    CU_ASSERT_EQUAL(ren_param_set(h->model, h->params[head], values, LENGTH * sizeof(float)),
                    REN_OK);
}

static void get(heads *h, const char *name, float *out)
{
    CU_ASSERT_EQUAL(ren_param_get(h->model, name, out, LENGTH * sizeof(float)), REN_OK);
}

static void on_done(const ren_completion *c, void *user)
{
    net_result *r = user;
    r->status = c->status;
    if (c->step) {
        r->step = *c->step;
    }
    __atomic_fetch_add(&r->calls, 1, __ATOMIC_RELEASE);
}

/* One step; grads[i] is the gradient of head i. */
static net_result step(heads *h, const float *const *grads)
{
    static const float far_below = -1e6f;
    ren_binding bindings[MOST + 1];
    ren_step_desc desc = ren_step_desc_default();
    net_result r;
    memset(&r, 0, sizeof r);
    for (uint32_t i = 0; i < h->count; i++) {
        bindings[i] = (ren_binding){h->inputs[i], grads[i], LENGTH * sizeof(float)};
    }
    bindings[h->count] = (ren_binding){"target", &far_below, sizeof far_below};
    desc.bindings = bindings;
    desc.binding_count = h->count + 1;
    desc.done = on_done;
    desc.user = &r;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_step(h->trainer, &desc, NULL), REN_OK);
    while (__atomic_load_n(&r.calls, __ATOMIC_ACQUIRE) == 0) {
        sched_yield();
    }
    return r;
}

static net_result step_one(heads *h, const float *grads)
{
    return step(h, &grads);
}

static int close_to(const char *what, const float *got, const float *want)
{
    double distance = golden_distance(got, want, LENGTH);
    if (!(distance <= TOLERANCE)) {
        (void)fprintf(stderr, "%s: distance %g\n", what, distance);
    }
    return distance <= TOLERANCE;
}

static ren_trainer_config config_of(const golden_case *g, ren_optimizer optimizer)
{
    ren_trainer_config c = ren_trainer_config_default();
    c.optimizer = optimizer;
    c.learning_rate = (float)golden_number(g, "lr", 0.0);
    c.momentum = (float)golden_number(g, "momentum", 0.0);
    c.weight_decay = (float)golden_number(g, "weight_decay", 0.0);
    c.eps = (float)golden_number(g, "eps", 1e-8);
    c.lars_eta = (float)golden_number(g, "eta", 0.001);
    c.nesterov = (uint32_t)golden_number(g, "nesterov", 0.0);
    c.beta2 = optimizer == REN_OPTIMIZER_ADAMW ? 0.99f : 0.999f; /* the files' second betas */
    return c;
}

/* ------------------------------------------------------------------ optimizers */

/* Every optimizer, step for step. Fails when a trainer hands on the wrong scalar, takes the wrong
 * operation, or counts steps wrongly (Adam's bias correction). */
static void test_optimizers(void)
{
    static const struct {
        const char *name;
        ren_optimizer optimizer;
    } cases[] = {{"opt_sgd", REN_OPTIMIZER_SGD},          {"opt_sgd_momentum", REN_OPTIMIZER_SGD},
                 {"opt_sgd_nesterov", REN_OPTIMIZER_SGD}, {"opt_adam", REN_OPTIMIZER_ADAM},
                 {"opt_adamw", REN_OPTIMIZER_ADAMW},      {"opt_lars", REN_OPTIMIZER_LARS}};
    for (size_t i = 0; i < REN_TEST_COUNT(cases); i++) {
        golden_case *g = golden_open(cases[i].name);
        ren_trainer_config c = config_of(g, cases[i].optimizer);
        int64_t dims[GOLDEN_MAX_RANK];
        float p[LENGTH];
        heads h;
        const float *grads = golden_tensor(g, "grads", dims, NULL, NULL);
        build(&h, 1);
        set(&h, 0, golden_tensor(g, "p0", NULL, NULL, NULL));
        make_trainer(&h, &c);
        for (int64_t s = 0; s < dims[0]; s++) {
            CU_ASSERT_EQUAL(step_one(&h, grads + s * LENGTH).status, REN_OK);
        }
        get(&h, "h0.weight", p);
        CU_ASSERT(close_to(cases[i].name, p, golden_tensor(g, "p", NULL, NULL, NULL)));
        drop(&h);
        golden_close(g);
    }
}

/* The norm over all tensors, and each tensor's share after clipping: with a rate of 1 from 0 the
 * weights are the negative clipped gradients. Fails when a norm is taken tensor by tensor. */
static void test_clip_over_all_tensors(void)
{
    golden_case *g = golden_open("clip_global_norm");
    ren_trainer_config c = ren_trainer_config_default();
    const float *grads = golden_tensor(g, "grads", NULL, NULL, NULL);
    const float *clipped = golden_tensor(g, "clipped", NULL, NULL, NULL);
    const float *norm = golden_tensor(g, "norm", NULL, NULL, NULL);
    const float zero[LENGTH] = {0.0f};
    const float *rows[MOST];
    float p[LENGTH];
    heads h;
    c.learning_rate = 1.0f;
    c.clip_norm = (float)golden_number(g, "max_norm", 0.0);
    build(&h, MOST);
    for (uint32_t i = 0; i < MOST; i++) {
        set(&h, i, zero);
        rows[i] = grads + i * LENGTH;
    }
    make_trainer(&h, &c);
    net_result r = step(&h, rows);
    CU_ASSERT_EQUAL(r.step.skipped, 0);
    CU_ASSERT(fabs((double)r.step.grad_norm - (double)*norm) <= 1e-5 * (double)*norm);
    for (uint32_t i = 0; i < MOST; i++) {
        get(&h, h.params[i], p);
        for (uint32_t k = 0; k < LENGTH; k++) {
            p[k] = -p[k];
        }
        CU_ASSERT(close_to("clipped", p, clipped + i * LENGTH));
    }
    drop(&h);
    golden_close(g);
}

/* LARS takes the norms of each tensor by itself: three heads trained together move as each would
 * alone, bit for bit. Fails with norms over a run of several. */
static void test_lars_by_tensor(void)
{
    golden_case *g = golden_open("opt_lars");
    ren_trainer_config c = config_of(g, REN_OPTIMIZER_LARS);
    const float *grads = golden_tensor(g, "grads", NULL, NULL, NULL);
    const float *p0 = golden_tensor(g, "p0", NULL, NULL, NULL);
    float first[3][LENGTH], want[LENGTH], got[LENGTH];
    heads all;
    build(&all, 3);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t k = 0; k < LENGTH; k++) {
            first[i][k] = p0[k] * (i == 0 ? 1.0f : i == 1 ? 30.0f : 0.0f);
        }
        set(&all, i, first[i]);
    }
    make_trainer(&all, &c);
    for (uint32_t s = 0; s < 4; s++) {
        const float *rows[3] = {grads + s * LENGTH, grads + (s + 1) * LENGTH, grads + s * LENGTH};
        (void)step(&all, rows);
    }
    for (uint32_t i = 0; i < 3; i++) {
        heads alone;
        build(&alone, 1);
        set(&alone, 0, first[i]);
        make_trainer(&alone, &c);
        for (uint32_t s = 0; s < 4; s++) {
            (void)step_one(&alone, grads + (s + (i == 1)) * LENGTH);
        }
        get(&alone, "h0.weight", want);
        get(&all, all.params[i], got);
        CU_ASSERT_EQUAL(memcmp(got, want, sizeof want), 0);
        drop(&alone);
    }
    drop(&all);
    golden_close(g);
}

/* LARS on its three streams: linear layers on COMP_1, the first convolution on COMP_2, the rest on
 * COMP_3, and one launch for each tensor. */
static void test_lars_streams(void)
{
    ren_trainer_config c = ren_trainer_config_default();
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_trainer *t = NULL;
    net n;
    uint32_t seen = 0;
    c.optimizer = REN_OPTIMIZER_LARS;
    net_build(&n, rt, NET_LENET, 4, 1);
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(n.model, n.loss, &c, &t, NULL), REN_OK);
    const ren__plan *plan = t->plans[0].phase[2].plan;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const ren__task *task = &plan->tasks[i];
        if (task->op.kind == REN__OP_LARS) {
            ren_stream want = task->name[0] == 'f'                ? REN_STREAM_COMP_1
                              : strncmp(task->name, "c1", 2) == 0 ? REN_STREAM_COMP_2
                                                                  : REN_STREAM_COMP_3;
            CU_ASSERT_EQUAL(ren__plan_task_stream(plan, i), want);
            seen++;
        }
    }
    CU_ASSERT_EQUAL(seen, 8);
    ren_trainer_destroy(t);
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
}

/* ------------------------------------------------------------------ averages */

/* Weights that follow a given sequence have its moving average, which is a parameter of its own:
 * read, written, and saved with the others. Fails when the average starts from 0, lags a step, or
 * sees the weights before the update. */
static void test_average(void)
{
    golden_case *g = golden_open("ema");
    ren_trainer_config c = ren_trainer_config_default();
    int64_t dims[GOLDEN_MAX_RANK];
    float p[LENGTH], grads[LENGTH];
    heads h;
    const float *xs = golden_tensor(g, "xs", dims, NULL, NULL);
    c.learning_rate = 1.0f;
    c.ema_decay = (float)golden_number(g, "decay", 0.0);
    build(&h, 1);
    set(&h, 0, golden_tensor(g, "e0", NULL, NULL, NULL));
    CU_ASSERT_EQUAL(ren_param_get(h.model, "h0.weight.ema", p, sizeof p), REN_ERR_NAME);
    make_trainer(&h, &c);
    CU_ASSERT_EQUAL(ren_param_count(h.model), 2);
    CU_ASSERT_STRING_EQUAL(ren_param_name(h.model, 1), "h0.weight.ema");
    for (int64_t s = 0; s < dims[0]; s++) {
        get(&h, "h0.weight", p);
        for (uint32_t k = 0; k < LENGTH; k++) {
            grads[k] = p[k] - xs[s * LENGTH + k];
        }
        (void)step_one(&h, grads);
    }
    get(&h, "h0.weight.ema", p);
    CU_ASSERT(close_to("average", p, golden_tensor(g, "e", NULL, NULL, NULL)));
    /* A decay of 0 from the next step on: the average is the weights. */
    CU_ASSERT_EQUAL(ren_trainer_set_scalar(h.trainer, REN_SCALAR_EMA_DECAY, 0.0f), REN_OK);
    (void)step_one(&h, grads);
    get(&h, "h0.weight.ema", p);
    get(&h, "h0.weight", grads);
    CU_ASSERT_EQUAL(memcmp(p, grads, sizeof p), 0);
    CU_ASSERT_EQUAL(ren_param_set(h.model, "h0.weight.ema", xs, sizeof p), REN_OK);
    get(&h, "h0.weight.ema", p);
    CU_ASSERT_EQUAL(memcmp(p, xs, sizeof p), 0);
    get(&h, "h0.weight", p);
    CU_ASSERT_EQUAL(memcmp(p, grads, sizeof p), 0);
    drop(&h);
    golden_close(g);
}

/* A checkpoint holds the averages; a model without them takes the file only when told to. A model
 * keeps its averages when its trainer goes. */
static void test_average_checkpoint(void)
{
    static const char path[] = "build/test_optimizers.safetensors";
    ren_trainer_config c = ren_trainer_config_default();
    float grads[LENGTH], want[LENGTH], got[LENGTH];
    heads a, b;
    c.ema_decay = 0.5f;
    build(&a, 1);
    make_trainer(&a, &c);
    for (uint32_t k = 0; k < LENGTH; k++) {
        grads[k] = (float)k;
    }
    (void)step_one(&a, grads);
    ren_trainer_destroy(a.trainer);
    a.trainer = NULL;
    get(&a, "h0.weight.ema", want);
    if (ren_model_save(a.model, path, NULL) != REN_OK) {
        drop(&a);
        ren_test_skip("no folder build/ here");
        return;
    }
    build(&b, 1);
    CU_ASSERT_EQUAL(ren_model_load(b.model, path, 0, NULL), REN_ERR_NAME);
    CU_ASSERT_EQUAL(ren_model_load(b.model, path, REN_LOAD_ALLOW_EXTRA, NULL), REN_OK);
    make_trainer(&b, &c);
    CU_ASSERT_EQUAL(ren_model_load(b.model, path, 0, NULL), REN_OK);
    get(&b, "h0.weight.ema", got);
    CU_ASSERT_EQUAL(memcmp(got, want, sizeof got), 0);
    get(&a, "h0.weight", want);
    get(&b, "h0.weight", got);
    CU_ASSERT_EQUAL(memcmp(got, want, sizeof got), 0);
    (void)remove(path);
    drop(&a);
    drop(&b);
}

/* ------------------------------------------------------------------ accumulation */

/* Gradients that are small whole numbers add exactly, so windows of k steps move the weights as
 * single steps with the sums do, bit for bit; in between nothing moves. Fails when a window begins
 * with an older sum, or updates a step early or late. */
static void check_accumulation(uint32_t window, ren_optimizer optimizer)
{
    ren_trainer_config c = ren_trainer_config_default();
    float before[LENGTH], now[LENGTH], want[LENGTH], grads[LENGTH], sum[LENGTH];
    unsigned long long seed = window;
    heads h, whole;
    c.optimizer = optimizer;
    c.momentum = 0.9f;
    c.clip_norm = 30.0f;
    build(&whole, 1);
    build(&h, 1);
    make_trainer(&whole, &c);
    c.accumulate_steps = window;
    make_trainer(&h, &c);
    get(&h, "h0.weight", before);
    set(&whole, 0, before);
    for (uint32_t round = 0; round < 7; round++) {
        memset(sum, 0, sizeof sum);
        for (uint32_t s = 0; s < window; s++) {
            for (uint32_t k = 0; k < LENGTH; k++) {
                grads[k] = (float)(ren_test_random(&seed) % 17u) - 8.0f;
                sum[k] += grads[k];
            }
            net_result r = step_one(&h, grads);
            CU_ASSERT_EQUAL(r.status, REN_OK);
            CU_ASSERT(r.step.loss > 0.0f);
            CU_ASSERT((r.step.grad_norm > 0.0f) == (s + 1 == window));
            get(&h, "h0.weight", now);
            CU_ASSERT_EQUAL(memcmp(now, before, sizeof now) == 0, s + 1 < window);
        }
        net_result r = step_one(&whole, sum);
        CU_ASSERT_EQUAL(r.status, REN_OK);
        get(&whole, "h0.weight", want);
        CU_ASSERT_EQUAL(memcmp(now, want, sizeof now), 0);
        memcpy(before, now, sizeof before);
    }
    drop(&h);
    drop(&whole);
}

static void test_accumulation(void)
{
    check_accumulation(2, REN_OPTIMIZER_SGD);
    check_accumulation(3, REN_OPTIMIZER_ADAM);
    check_accumulation(4, REN_OPTIMIZER_LARS);
}

/* Failures of the device inside windows: a step is in the sum once, or reported failed and not in
 * it. Fails when a step that broke off leaves its gradient in the sum or takes a place in the
 * window. */
static void test_accumulation_with_failures(void)
{
    ren_trainer_config c = ren_trainer_config_default();
    float grads[LENGTH], sum[LENGTH], now[LENGTH], want[LENGTH];
    unsigned long long seed = 5;
    uint32_t done = 0;
    uint32_t failed = 0;
    heads h, whole;
    c.optimizer = REN_OPTIMIZER_ADAM;
    build(&whole, 1);
    build(&h, 1);
    make_trainer(&whole, &c);
    c.accumulate_steps = 3;
    make_trainer(&h, &c);
    get(&h, "h0.weight", now);
    set(&whole, 0, now);
    memset(sum, 0, sizeof sum);
    for (uint32_t s = 0; s < 60 || done % 3 != 0; s++) {
        for (uint32_t k = 0; k < LENGTH; k++) {
            grads[k] = (float)(ren_test_random(&seed) % 17u) - 8.0f;
        }
        if (s % 4 == 1 && s < 60) {
            ren_test_fault(h.rt, "any", 1 + ren_test_random(&seed) % 30u, REN_ERR_DEVICE, 0);
        }
        net_result r = step_one(&h, grads);
        ren_test_fault_clear(h.rt);
        failed += r.status != REN_OK;
        if (r.status != REN_OK) {
            continue;
        }
        for (uint32_t k = 0; k < LENGTH; k++) {
            sum[k] += grads[k];
        }
        if (++done % 3 == 0) {
            (void)step_one(&whole, sum);
            memset(sum, 0, sizeof sum);
        }
    }
    CU_ASSERT(failed > 0);
    get(&h, "h0.weight", now);
    get(&whole, "h0.weight", want);
    CU_ASSERT_EQUAL(memcmp(now, want, sizeof now), 0);
    drop(&h);
    drop(&whole);
}

/* Steps that the device skips among steps that break off: Adam's count stays the number of steps
 * that were applied. Fails when a broken step's count is put right from the steps posted. */
static void test_count_with_failures_and_skips(void)
{
    ren_trainer_config c = ren_trainer_config_default();
    float grads[LENGTH], now[LENGTH], want[LENGTH];
    unsigned long long seed = 9;
    uint32_t failed = 0;
    heads h, good;
    c.optimizer = REN_OPTIMIZER_ADAM;
    c.clip_norm = 1e6f;
    build(&good, 1);
    build(&h, 1);
    make_trainer(&good, &c);
    make_trainer(&h, &c);
    get(&h, "h0.weight", now);
    set(&good, 0, now);
    for (uint32_t s = 0; s < 60; s++) {
        for (uint32_t k = 0; k < LENGTH; k++) {
            grads[k] = (float)(ren_test_random(&seed) % 17u) - 8.0f;
        }
        if (s % 5 == 2) {
            grads[s % LENGTH] = NAN;
        }
        if (s % 4 == 1) {
            ren_test_fault(h.rt, "any", 1 + ren_test_random(&seed) % 24u, REN_ERR_DEVICE, 0);
        }
        net_result r = step_one(&h, grads);
        ren_test_fault_clear(h.rt);
        failed += r.status != REN_OK;
        if (r.status == REN_OK) {
            /* A result that could not be fetched says NaN for a good step as well. */
            if (s % 5 != 2) {
                CU_ASSERT_EQUAL(r.step.skipped, 0);
                CU_ASSERT_EQUAL(step_one(&good, grads).step.skipped, 0);
            }
        }
    }
    CU_ASSERT(failed > 0);
    get(&h, "h0.weight", now);
    get(&good, "h0.weight", want);
    CU_ASSERT_EQUAL(memcmp(now, want, sizeof now), 0);
    drop(&h);
    drop(&good);
}

/* Running statistics take in every batch of a window, in order, and appear with the update: as with
 * single steps at a rate of 0, bit for bit. */
static void test_accumulation_statistics(void)
{
    ren_trainer_config c = ren_trainer_config_default();
    float x[2][3][4 * 256];
    const int32_t labels[4] = {1, 7, 3, 0};
    float *params[2];
    size_t count = 0;
    unsigned long long seed = 3;
    for (uint32_t i = 0; i < 2 * 3 * 4 * 256; i++) {
        ((float *)x)[i] = (float)(ren_test_random(&seed) % 2001u) / 1000.0f - 1.0f;
    }
    c.learning_rate = 0.0f;
    for (uint32_t k = 0; k < 2; k++) {
        ren_runtime *rt = ren_test_runtime(NULL);
        ren_trainer *t = NULL;
        net n;
        net_result r;
        net_build(&n, rt, NET_TINYRES, 4, 1);
        c.accumulate_steps = k ? 3 : 1;
        CU_ASSERT_EQUAL_FATAL(ren_trainer_create(n.model, n.loss, &c, &t, NULL), REN_OK);
        for (uint32_t s = 0; s < 6; s++) {
            float *before = net_params(&n, &count);
            net_step(&n, rt, t, x[s / 3][s % 3], labels, &r);
            float *after = net_params(&n, &count);
            uint32_t moved = memcmp(before, after, count * sizeof(float)) != 0;
            CU_ASSERT_EQUAL(moved, k == 0 || s % 3 == 2);
            free(before);
            free(after);
        }
        params[k] = net_params(&n, &count);
        ren_trainer_destroy(t);
        ren_model_destroy(n.model);
        ren_test_shutdown(rt);
    }
    CU_ASSERT_EQUAL(memcmp(params[0], params[1], count * sizeof(float)), 0);
    free(params[0]);
    free(params[1]);
}

/* ------------------------------------------------------------------ frozen */

/* One tensor under Adam, in double. */
typedef struct adam {
    double p[LENGTH], m[LENGTH], v[LENGTH];
    uint32_t t;
} adam;

static void adam_step(adam *a, const float *g, const ren_trainer_config *c)
{
    a->t++;
    for (uint32_t k = 0; k < LENGTH; k++) {
        a->m[k] = (double)c->beta1 * a->m[k] + (1.0 - (double)c->beta1) * (double)g[k];
        a->v[k] =
            (double)c->beta2 * a->v[k] + (1.0 - (double)c->beta2) * (double)g[k] * (double)g[k];
        double m = a->m[k] / (1.0 - pow((double)c->beta1, a->t));
        double v = a->v[k] / (1.0 - pow((double)c->beta2, a->t));
        a->p[k] -= (double)c->learning_rate * m / (sqrt(v) + (double)c->eps);
    }
}

/* Failure row 44b: three tensors, one frozen on even steps, one for a while, equal a reference that
 * counts the updates of each by itself. One count for all fails in the bias correction. */
static void test_frozen_adam(void)
{
    golden_case *g = golden_open("opt_adam");
    ren_trainer_config c = config_of(g, REN_OPTIMIZER_ADAM);
    const float *grads = golden_tensor(g, "grads", NULL, NULL, NULL);
    static adam want[3];
    float p[LENGTH];
    heads h;
    memset(want, 0, sizeof want);
    build(&h, 3);
    for (uint32_t i = 0; i < 3; i++) {
        get(&h, h.params[i], p);
        for (uint32_t k = 0; k < LENGTH; k++) {
            want[i].p[k] = (double)p[k];
        }
    }
    make_trainer(&h, &c);
    for (uint32_t s = 0; s < 12; s++) {
        const float *rows[3] = {grads + s * LENGTH, grads + (s + 5) % 12 * LENGTH,
                                grads + (s + 9) % 12 * LENGTH};
        uint32_t frozen[3] = {s >= 3 && s % 2 == 0, s == 6 || s == 7, 0};
        for (uint32_t i = 0; i < 2; i++) {
            CU_ASSERT_EQUAL(ren_param_set_frozen(h.model, i ? h.params[i] : h.layers[i], frozen[i]),
                            REN_OK);
        }
        CU_ASSERT_EQUAL(step(&h, rows).status, REN_OK);
        for (uint32_t i = 0; i < 3; i++) {
            if (!frozen[i]) {
                adam_step(&want[i], rows[i], &c);
            }
            float wanted[LENGTH];
            for (uint32_t k = 0; k < LENGTH; k++) {
                wanted[k] = (float)want[i].p[k];
            }
            get(&h, h.params[i], p);
            CU_ASSERT(close_to(h.params[i], p, wanted));
        }
    }
    drop(&h);
    golden_close(g);
}

/* A frozen tensor has no part in the norm, takes effect at the next post, and names that are none
 * are refused. */
static void test_frozen_norm_and_names(void)
{
    ren_trainer_config c = ren_trainer_config_default();
    float a[LENGTH] = {3.0f};
    float b[LENGTH] = {0.0f, 4.0f};
    const float *rows[2] = {a, b};
    float before[LENGTH], after[LENGTH];
    heads h;
    c.clip_norm = 1e6f;
    build(&h, 2);
    make_trainer(&h, &c);
    CU_ASSERT_EQUAL(step(&h, rows).step.grad_norm, 5.0f);
    get(&h, "h1.weight", before);
    CU_ASSERT_EQUAL(ren_param_set_frozen(h.model, "h1", 1), REN_OK);
    CU_ASSERT_EQUAL(step(&h, rows).step.grad_norm, 3.0f);
    get(&h, "h1.weight", after);
    CU_ASSERT_EQUAL(memcmp(before, after, sizeof after), 0);
    CU_ASSERT_EQUAL(ren_param_set_frozen(h.model, "h1.weight", 0), REN_OK);
    CU_ASSERT_EQUAL(step(&h, rows).step.grad_norm, 5.0f);
    CU_ASSERT_EQUAL(ren_param_set_frozen(h.model, "h0", 1), REN_OK);
    CU_ASSERT_EQUAL(ren_param_set_frozen(h.model, "h1", 1), REN_OK);
    CU_ASSERT_EQUAL(step(&h, rows).step.grad_norm, 0.0f);
    static const char *const bad[] = {"h", "h0.", "h0.weigh", "h0.weight.x", "", "x0", "sum1"};
    for (size_t i = 0; i < REN_TEST_COUNT(bad); i++) {
        CU_ASSERT_EQUAL(ren_param_set_frozen(h.model, bad[i], 1), REN_ERR_NAME);
    }
    CU_ASSERT_EQUAL(ren_param_set_frozen(h.model, NULL, 1), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_param_set_frozen(NULL, "h0", 1), REN_ERR_INVALID_ARGUMENT);
    drop(&h);
}

/* All of a residual network but its last layer: nothing else moves, running statistics included,
 * and the plan computes no gradient of a convolution. */
static void test_frozen_trunk(void)
{
    ren_trainer_config c = ren_trainer_config_default();
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_trainer *t = NULL;
    float x[4 * 256];
    const int32_t labels[4] = {1, 7, 3, 0};
    size_t count;
    net n;
    net_result r;
    unsigned long long seed = 3;
    for (uint32_t i = 0; i < 4 * 256; i++) {
        x[i] = (float)(ren_test_random(&seed) % 2001u) / 1000.0f - 1.0f;
    }
    net_build(&n, rt, NET_TINYRES, 4, 1);
    for (uint32_t i = 0; i < ren_param_count(n.model); i++) {
        const char *name = ren_param_name(n.model, i);
        if (strncmp(name, "fc.", 3) != 0) {
            CU_ASSERT_EQUAL(ren_param_set_frozen(n.model, name, 1), REN_OK);
        }
    }
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(n.model, n.loss, &c, &t, NULL), REN_OK);
    const ren__plan *plan = t->plans[0].phase[2].plan;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        CU_ASSERT_NOT_EQUAL(plan->tasks[i].op.kind, REN__OP_CONV_BWD_WEIGHT);
        CU_ASSERT_NOT_EQUAL(plan->tasks[i].op.kind, REN__OP_BATCH_NORM_BWD);
    }
    float *before = net_params(&n, &count);
    net_step(&n, rt, t, x, labels, &r);
    float *after = net_params(&n, &count);
    size_t at = 0;
    for (uint32_t i = 0; i < ren_param_count(n.model); i++) {
        size_t bytes = net_param_bytes(&n, i);
        uint32_t moved = memcmp(before + at, after + at, bytes) != 0;
        CU_ASSERT_EQUAL(moved, strncmp(ren_param_name(n.model, i), "fc.", 3) == 0);
        at += bytes / sizeof(float);
    }
    free(before);
    free(after);
    ren_trainer_destroy(t);
    ren_model_destroy(n.model);
    ren_test_shutdown(rt);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_optimizers", test_optimizers},
        {"test_clip_over_all_tensors", test_clip_over_all_tensors},
        {"test_lars_by_tensor", test_lars_by_tensor},
        {"test_lars_streams", test_lars_streams},
        {"test_average", test_average},
        {"test_average_checkpoint", test_average_checkpoint},
        {"test_accumulation", test_accumulation},
        {"test_accumulation_with_failures", test_accumulation_with_failures},
        {"test_count_with_failures_and_skips", test_count_with_failures_and_skips},
        {"test_accumulation_statistics", test_accumulation_statistics},
        {"test_frozen_adam", test_frozen_adam},
        {"test_frozen_norm_and_names", test_frozen_norm_and_names},
        {"test_frozen_trunk", test_frozen_trunk},
    };
    return ren_test_main(argc, argv, "golden/test_optimizers", cases, REN_TEST_COUNT(cases), 120);
}
