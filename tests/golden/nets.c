/* SPDX-License-Identifier: MIT */
/* tests/golden/nets.c - see nets.h. */
#include "nets.h"

#include <CUnit/CUnit.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libren/train/model.h"
#include "../support/test.h"

#define LEARN_BATCH 16u

/* ------------------------------------------------------------------ layers */

static ren_tensor linear(ren_model *m, const char *name, ren_tensor x, uint32_t units)
{
    ren_linear_options o = ren_linear_options_default();
    o.units = units;
    return ren_linear(m, name, x, &o);
}

static ren_tensor conv(ren_model *m, const char *name, ren_tensor x, uint32_t filters,
                       uint32_t kernel, uint32_t stride, uint32_t padding, uint32_t disable_bias)
{
    ren_conv2d_options o = ren_conv2d_options_default();
    o.filters = filters;
    o.kernel[0] = o.kernel[1] = kernel;
    o.stride[0] = o.stride[1] = stride;
    o.padding[0] = o.padding[1] = padding;
    o.disable_bias = disable_bias;
    return ren_conv2d(m, name, x, &o);
}

static ren_tensor max_pool(ren_model *m, const char *name, ren_tensor x, uint32_t kernel,
                           uint32_t stride, uint32_t padding)
{
    ren_pool2d_options o = ren_pool2d_options_default();
    o.kernel[0] = o.kernel[1] = kernel;
    o.stride[0] = o.stride[1] = stride;
    o.padding[0] = o.padding[1] = padding;
    return ren_max_pool2d(m, name, x, &o);
}

/* ------------------------------------------------------------------ networks */

static ren_tensor mlp(ren_model *m, ren_tensor x)
{
    ren_tensor h = ren_relu(m, "r1", linear(m, "l1", x, 32));
    h = ren_relu(m, "r2", linear(m, "l2", h, 32));
    return linear(m, "l3", h, 10);
}

static ren_tensor lenet(ren_model *m, ren_tensor x)
{
    ren_tensor h = ren_relu(m, "r1", conv(m, "c1", x, 4, 3, 1, 1, 0));
    h = max_pool(m, "p1", h, 2, 2, 0);
    h = ren_relu(m, "r2", conv(m, "c2", h, 8, 3, 1, 1, 0));
    h = max_pool(m, "p2", h, 2, 2, 0);
    h = ren_relu(m, "r3", linear(m, "f1", ren_flatten(m, "flat", h), 32));
    return linear(m, "f2", h, 10);
}

static ren_tensor residual(ren_model *m, const char *block, ren_tensor x, uint32_t filters,
                           uint32_t stride)
{
    char n[8][64];
    static const char *const parts[8] = {"conv1", "bn1",  "relu1", "conv2",
                                         "bn2",   "down", "dbn",   "relu2"};
    for (int i = 0; i < 8; i++) {
        (void)snprintf(n[i], sizeof n[i], "%s.%s", block, parts[i]);
    }
    ren_tensor h = ren_batch_norm(m, n[1], conv(m, n[0], x, filters, 3, stride, 1, 1), NULL);
    h = ren_relu(m, n[2], h);
    h = ren_batch_norm(m, n[4], conv(m, n[3], h, filters, 3, 1, 1, 1), NULL);
    if (stride != 1) {
        x = ren_batch_norm(m, n[6], conv(m, n[5], x, filters, 1, stride, 0, 1), NULL);
    }
    char sum[64];
    (void)snprintf(sum, sizeof sum, "%s.sum", block);
    return ren_relu(m, n[7], ren_add(m, sum, h, x));
}

static ren_tensor tinyres(ren_model *m, ren_tensor x)
{
    ren_tensor h = ren_batch_norm(m, "sbn", conv(m, "stem", x, 8, 3, 1, 1, 1), NULL);
    h = ren_relu(m, "srelu", h);
    h = residual(m, "b1", h, 8, 1);
    h = residual(m, "b2", h, 16, 2);
    return linear(m, "fc", ren_global_avg_pool(m, "gap", h), 10);
}

static ren_tensor branch(ren_model *m, ren_tensor x)
{
    ren_tensor h = ren_relu(m, "srelu", conv(m, "stem", x, 16, 3, 1, 1, 0));
    ren_tensor parts[4];
    parts[0] = conv(m, "p1", h, 8, 1, 1, 0, 0);
    parts[1] = conv(m, "p3", h, 8, 3, 1, 1, 0);
    parts[2] = conv(m, "p5", h, 8, 5, 1, 2, 0);
    parts[3] = conv(m, "pp", max_pool(m, "pool", h, 3, 1, 1), 8, 1, 1, 0, 0);
    h = ren_relu(m, "jrelu", ren_concat(m, "join", parts, 4));
    return linear(m, "fc", ren_global_avg_pool(m, "gap", h), 10);
}

void net_build(net *n, ren_runtime *rt, net_kind kind, uint32_t batch, uint64_t seed)
{
    static const int64_t shapes[4][4] = {{0, 20, 0, 0}, {0, 16, 16, 1}, {0, 8, 8, 4}, {0, 8, 8, 4}};
    static ren_tensor (*const bodies[4])(ren_model *, ren_tensor) = {mlp, lenet, tinyres, branch};
    ren_model_config config = ren_model_config_default();
    ren_error err;
    int64_t dims[4];
    uint32_t rank = kind == NET_MLP ? 2 : 4;
    memset(n, 0, sizeof *n);
    memset(&err, 0, sizeof err);
    memcpy(dims, shapes[kind], sizeof dims);
    dims[0] = batch;
    n->kind = kind;
    n->batch = batch;
    n->row = (size_t)dims[1] * (rank == 4 ? (size_t)(dims[2] * dims[3]) : 1u);
    config.seed = seed;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, &config, &n->model, &err), REN_OK);
    n->x = ren_input(n->model, "x", REN_F32, dims, rank);
    n->labels = ren_input(n->model, "labels", REN_I32, dims, 1);
    n->logits = bodies[kind](n->model, n->x);
    n->loss = ren_softmax_cross_entropy(n->model, "loss", n->logits, n->labels, NULL);
    if (ren_model_status(n->model, &err) != REN_OK) {
        (void)fprintf(stderr, "net_build: %s\n", err.text);
        CU_FAIL_FATAL("the model could not be built");
    }
}

void net_load(net *n, const golden_case *g, const char *prefix)
{
    for (uint32_t i = 0; i < ren_param_count(n->model); i++) {
        char name[128];
        size_t count;
        (void)snprintf(name, sizeof name, "%s%s", prefix, ren_param_name(n->model, i));
        const float *values = golden_tensor(g, name, NULL, NULL, &count);
        CU_ASSERT_EQUAL(
            ren_param_set(n->model, ren_param_name(n->model, i), values, count * sizeof(float)),
            REN_OK);
    }
}

ren_trainer *net_trainer(net *n, const golden_case *g)
{
    ren_trainer_config config = ren_trainer_config_default();
    ren_trainer *t = NULL;
    ren_error err;
    memset(&err, 0, sizeof err);
    config.learning_rate = (float)golden_number(g, "lr", 0.0);
    config.momentum = (float)golden_number(g, "momentum", 0.0);
    config.weight_decay = (float)golden_number(g, "weight_decay", 0.0);
    if (golden_number(g, "momentum", -1.0) < 0.0) {
        config.optimizer = REN_OPTIMIZER_ADAM;
    }
    ren_status status = ren_trainer_create(n->model, n->loss, &config, &t, &err);
    if (status != REN_OK) {
        (void)fprintf(stderr, "ren_trainer_create: %s: %s\n", ren_status_name(status), err.text);
        CU_FAIL_FATAL("the trainer could not be made");
    }
    return t;
}

/* ------------------------------------------------------------------ steps */

static void on_done(const ren_completion *c, void *user)
{
    net_result *r = user;
    r->status = c->status;
    r->version = c->weight_version;
    if (c->err) {
        (void)fprintf(stderr, "step: %s: %s\n", ren_status_name(c->status), c->err->text);
    }
    if (c->step) {
        r->step = *c->step;
    }
    /* release: pairs with net_step's acquire. */
    __atomic_fetch_add(&r->calls, 1, __ATOMIC_RELEASE);
}

ren_status net_post(net *n, ren_trainer *t, const float *x, const int32_t *labels, uint32_t rows,
                    net_result *result, ren_job *job)
{
    ren_binding bindings[2] = {{"x", x, n->row * rows * sizeof(float)},
                               {"labels", labels, rows * sizeof(int32_t)}};
    ren_step_desc desc = ren_step_desc_default();
    memset(result, 0, sizeof *result);
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.batch = rows;
    desc.done = on_done;
    desc.user = result;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    return ren_trainer_step(t, &desc, job);
}

void net_wait(ren_runtime *rt, ren_job job)
{
    while (ren_job_status(rt, job) == REN_PENDING) {
        (void)ren_wait(rt, job, UINT64_C(1000000000));
    }
}

void net_step(net *n, ren_runtime *rt, ren_trainer *t, const float *x, const int32_t *labels,
              net_result *result)
{
    ren_job job;
    ren_status status = net_post(n, t, x, labels, n->batch, result, &job);
    while (status == REN_ERR_QUEUE_FULL) {
        sched_yield();
        status = net_post(n, t, x, labels, n->batch, result, &job);
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    net_wait(rt, job);
    /* The callback runs on the completion thread right behind the job's end. */
    while (__atomic_load_n(&result->calls, __ATOMIC_ACQUIRE) == 0) {
        sched_yield();
    }
}

float *net_params(net *n, size_t *out_count)
{
    size_t count = (size_t)ren__model_params_bytes(n->model) / sizeof(float);
    float *all = malloc(count * sizeof(float));
    CU_ASSERT_PTR_NOT_NULL_FATAL(all);
    CU_ASSERT_EQUAL(ren__model_params_read(n->model, all, count * sizeof(float)), REN_OK);
    *out_count = count;
    return all;
}

ren_status net_restore(net *n, const float *params, size_t count)
{
    return ren__model_params_write(n->model, params, count * sizeof(float), NULL);
}

size_t net_param_bytes(net *n, uint32_t index)
{
    uint64_t bytes;
    ren__model_param_info(n->model, index, NULL, NULL, NULL, &bytes);
    return (size_t)bytes;
}

/* ------------------------------------------------------------------ a whole training */

void net_learn(ren_runtime *rt, net_kind kind, uint32_t steps)
{
    static float x[LEARN_BATCH * 256];
    static int32_t labels[LEARN_BATCH];
    ren_trainer_config how = ren_trainer_config_default();
    unsigned long long state = 3;
    ren_trainer *t = NULL;
    float first = 0.0f;
    float last = 0.0f;
    net n;
    net_build(&n, rt, kind, LEARN_BATCH, 11);
    CU_ASSERT_FATAL(n.row <= 256);
    for (size_t i = 0; i < LEARN_BATCH * n.row; i++) {
        x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (size_t i = 0; i < LEARN_BATCH; i++) {
        labels[i] = (int32_t)(i % 10u);
    }
    how.learning_rate = 0.1f;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(n.model, n.loss, &how, &t, NULL), REN_OK);
    for (uint32_t i = 0; i < steps; i++) {
        net_result result;
        memset(&result, 0, sizeof result);
        net_step(&n, rt, t, x, labels, &result);
        CU_ASSERT_EQUAL(result.status, REN_OK);
        first = i == 0 ? result.step.loss : first;
        last = result.step.loss;
    }
    CU_ASSERT(last < first);
    ren_trainer_destroy(t);
    ren_model_destroy(n.model);
}
