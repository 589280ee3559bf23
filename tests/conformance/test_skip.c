/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_skip.c - what comes behind a skipped step is as if it had not been.
 *
 * Two runs train the same network with dropout on the same batches. In the one, steps 3 and 7 have
 * NaN gradients, and the device skips them. In the other something else keeps those steps from
 * taking place, so that it has the same step indices, hence the same dropout masks, and the same
 * loss scales, but never saw a NaN. All weights, averages and losses must be equal, bit for bit,
 * and those before a skipped step equal those behind it. What the trainer keeps for itself, moments
 * and the count of updates, is read from the device's memory.
 */
#include "../golden/nets.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#include "../../libren/core/core.h"
#include "../../libren/train/trainer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS  6u
#define ROW   24u
#define STEPS 12u

typedef struct training {
    ren_runtime *rt;
    net n;
    ren_trainer *t;
} training;

/* 24 - 40 - 10 with dropout between, and a batch norm with `norm`. */
static void begin(training *r, const ren_trainer_config *how, uint32_t graphs, uint32_t norm)
{
    const int64_t x[2] = {ROWS, ROW};
    const int64_t labels[1] = {ROWS};
    ren_runtime_config config = ren_test_config();
    ren_model_config mc = ren_model_config_default();
    ren_linear_options linear = ren_linear_options_default();
    ren_dropout_options dropout = ren_dropout_options_default();
    memset(r, 0, sizeof *r);
    config.disable_graphs = !graphs;
    config.graph_after_steps = 2;
    config.deterministic = 1;
    r->rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->rt);
    mc.seed = 11;
    r->n.batch = ROWS;
    r->n.row = ROW;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(r->rt, &mc, &r->n.model, NULL), REN_OK);
    r->n.x = ren_input(r->n.model, "x", REN_F32, x, 2);
    r->n.labels = ren_input(r->n.model, "labels", REN_I32, labels, 1);
    linear.units = 40;
    dropout.probability = 0.5f;
    ren_tensor h = ren_linear(r->n.model, "l1", r->n.x, &linear);
    h = ren_relu(r->n.model, "relu", norm ? ren_batch_norm(r->n.model, "bn", h, NULL) : h);
    h = ren_dropout(r->n.model, "drop", h, &dropout);
    linear.units = 10;
    h = ren_linear(r->n.model, "l2", h, &linear);
    r->n.loss = ren_softmax_cross_entropy(r->n.model, "loss", h, r->n.labels, NULL);
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(r->n.model, r->n.loss, how, &r->t, NULL), REN_OK);
}

static void end(training *r)
{
    ren_trainer_destroy(r->t);
    ren_model_destroy(r->n.model);
    ren_test_shutdown(r->rt);
}

/* Batch number `s`; with `bad`, one element is that value. */
static net_result step(training *r, uint32_t s, float bad)
{
    float x[ROWS * ROW];
    int32_t labels[ROWS];
    unsigned long long seed = s;
    net_result result;
    for (uint32_t i = 0; i < ROWS * ROW; i++) {
        x[i] = (float)(ren_test_random(&seed) % 2001u) / 1000.0f - 1.0f;
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        labels[i] = (int32_t)(ren_test_random(&seed) % 10u);
    }
    if (bad != 0.0f) {
        x[s * 5u] = bad;
    }
    net_step(&r->n, r->rt, r->t, x, labels, &result);
    return result;
}

static int same_params(training *r, const float *as, size_t count)
{
    size_t now_count;
    float *now = net_params(&r->n, &now_count);
    int same = now_count == count && memcmp(now, as, count * sizeof(float)) == 0;
    free(now);
    return same;
}

/* A step with NaN gradients: skipped, and all that outlives a step is as before. */
static void skipped_step(training *r, uint32_t s)
{
    size_t count;
    float *before = net_params(&r->n, &count);
    net_result result = step(r, s, NAN);
    CU_ASSERT_EQUAL(result.status, REN_OK);
    CU_ASSERT_EQUAL(result.step.skipped, 1);
    CU_ASSERT(same_params(r, before, count));
    free(before);
}

static void equal_step(training *with, training *without, uint32_t s)
{
    size_t count;
    net_result a = step(with, s, 0.0f);
    net_result b = step(without, s, 0.0f);
    CU_ASSERT_EQUAL(a.status, REN_OK);
    CU_ASSERT_EQUAL(b.status, REN_OK);
    CU_ASSERT_EQUAL(a.step.skipped + b.step.skipped, 0);
    CU_ASSERT_EQUAL(memcmp(&a.step.loss, &b.step.loss, sizeof(float)), 0);
    CU_ASSERT_EQUAL(memcmp(&a.step.grad_norm, &b.step.grad_norm, sizeof(float)), 0);
    CU_ASSERT_EQUAL(a.step.loss_scale, b.step.loss_scale);
    float *params = net_params(&with->n, &count);
    CU_ASSERT(same_params(without, params, count));
    free(params);
}

/* The other run's steps 3 and 7 break off at a device call that fails: reported, not applied. */
static void check_against_broken(ren_optimizer optimizer, uint32_t graphs)
{
    ren_trainer_config how = ren_trainer_config_default();
    training with, without;
    how.optimizer = optimizer;
    how.learning_rate = 0.05f;
    how.momentum = 0.9f;
    how.clip_norm = 0.5f;
    how.ema_decay = 0.9f;
    begin(&with, &how, graphs, 0);
    begin(&without, &how, graphs, 0);
    for (uint32_t s = 1; s <= STEPS; s++) {
        if (s != 3 && s != 7) {
            equal_step(&with, &without, s);
            continue;
        }
        skipped_step(&with, s);
        ren_test_fault(without.rt, "op_launch", 1, REN_ERR_DEVICE, 1);
        ren_test_fault(without.rt, "graph_launch", 1, REN_ERR_DEVICE, 1);
        CU_ASSERT_EQUAL(step(&without, s, 0.0f).status, REN_ERR_DEVICE);
        ren_test_fault_clear(without.rt);
    }
    end(&without);
    end(&with);
}

static void test_behind_a_skip_sgd(void)
{
    check_against_broken(REN_OPTIMIZER_SGD, 0);
    check_against_broken(REN_OPTIMIZER_SGD, 1);
}

static void test_behind_a_skip_adam(void)
{
    check_against_broken(REN_OPTIMIZER_ADAM, 0);
    check_against_broken(REN_OPTIMIZER_ADAM, 1);
}

static void test_behind_a_skip_lars(void)
{
    check_against_broken(REN_OPTIMIZER_LARS, 0);
}

/* A trainer with this scale, with `steps` steps behind it that changed no weight. */
static void next_trainer(training *r, ren_trainer_config *how, float scale, uint32_t steps)
{
    float rate = how->learning_rate;
    ren_trainer_destroy(r->t);
    how->loss_scale = scale;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(r->n.model, r->n.loss, how, &r->t, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_trainer_set_scalar(r->t, REN_SCALAR_LEARNING_RATE, 0.0f), REN_OK);
    for (uint32_t s = 1; s <= steps; s++) {
        CU_ASSERT_EQUAL(step(r, s, 0.0f).step.skipped, 0);
    }
    CU_ASSERT_EQUAL(ren_trainer_set_scalar(r->t, REN_SCALAR_LEARNING_RATE, rate), REN_OK);
}

/* f16: each skip halves the scale. The other run gets there by a new trainer with that scale, whose
 * first steps have rate 0. Without momentum a trainer has no other memory. */
static void check_against_scales(uint32_t graphs)
{
    ren_trainer_config how = ren_trainer_config_default();
    training with, without;
    how.learning_rate = 0.05f;
    how.precision = REN_PRECISION_MIXED_F16;
    how.loss_scale = 4096.0f;
    begin(&with, &how, graphs, 0);
    begin(&without, &how, graphs, 0);
    for (uint32_t s = 1; s <= STEPS; s++) {
        if (s != 3 && s != 7) {
            equal_step(&with, &without, s);
            continue;
        }
        skipped_step(&with, s);
        next_trainer(&without, &how, s == 3 ? 2048.0f : 1024.0f, s);
    }
    end(&without);
    end(&with);
}

static void test_behind_a_skip_f16(void)
{
    check_against_scales(0);
    check_against_scales(1);
}

/* ------------------------------------------------------------------ all at once */

typedef struct look {
    ren_runtime *rt;
    void *to;
    const void *from;
    uint64_t bytes;
} look;

static ren_status look_on_stream(void *user, const ren_device_io *io)
{
    const look *l = user;
    if (io->device == REN_DEVICE_CPU) {
        memcpy(l->to, l->from, l->bytes);
        return REN_OK;
    }
    return ren__runtime_api(l->rt)->copy(
        ren__runtime_device(l->rt), ren__runtime_lane(l->rt, io->stream), l->to, l->from, l->bytes);
}

/* What lies at a device address behind all steps; free() it. */
static void *device_bytes(training *r, const void *from, uint64_t bytes)
{
    const ren__device_api *api = ren__runtime_api(r->rt);
    ren__device *dev = ren__runtime_device(r->rt);
    look l = {.rt = r->rt, .from = from, .bytes = bytes};
    ren_job_desc d = ren_job_desc_default();
    ren_job job;
    d.kind = REN_JOB_DEVICE;
    d.stream = REN_STREAM_UPDATE;
    d.enqueue = look_on_stream;
    d.enqueue_user = &l;
    d.deliver = REN_DELIVER_NONE;
    CU_ASSERT_EQUAL_FATAL(api->host_alloc(dev, bytes, &l.to), REN_OK);
    CU_ASSERT_EQUAL_FATAL(ren_post(r->rt, &d, &job), REN_OK);
    net_wait(r->rt, job);
    void *copy = malloc(bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    memcpy(copy, l.to, bytes);
    api->host_free(dev, l.to, bytes);
    return copy;
}

/* All that a step may change: parameters with running statistics and averages, both moments, and
 * the device's own state. */
typedef struct kept {
    float *params;
    size_t count;
    void *moment[2];
    uint64_t bytes; /* of a moment; the second is Adam's */
    ren__state state;
} kept;

static kept keep(training *r)
{
    kept k = {.bytes = r->n.model->trained_bytes};
    k.params = net_params(&r->n, &k.count);
    for (uint32_t i = 0; i < 2 && r->t->moment[i]; i++) {
        k.moment[i] = device_bytes(r, r->t->moment[i], k.bytes);
    }
    ren__state *state = device_bytes(r, r->t->state, sizeof *state);
    k.state = *state;
    free(state);
    return k;
}

/* Frees both. */
static int are_same(kept a, kept b)
{
    int same = a.count == b.count && memcmp(a.params, b.params, a.count * sizeof(float)) == 0 &&
               a.state.applied == b.state.applied;
    for (uint32_t i = 0; i < 2; i++) {
        same &= (a.moment[i] != NULL) == (b.moment[i] != NULL) &&
                (!a.moment[i] || memcmp(a.moment[i], b.moment[i], a.bytes) == 0);
        free(a.moment[i]);
        free(b.moment[i]);
    }
    free(a.params);
    free(b.params);
    return same;
}

/* The step breaks off at a device call that fails, so its index is used up and nothing else
 * happens; the next one puts the state back to that of the last whole step, in which the scale is
 * what a skip would have made of it. */
static void broken_step(training *r, uint32_t s)
{
    ren_test_fault(r->rt, "op_launch", 1, REN_ERR_DEVICE, 1);
    ren_test_fault(r->rt, "graph_launch", 1, REN_ERR_DEVICE, 1);
    CU_ASSERT_EQUAL(step(r, s, 0.0f).status, REN_ERR_DEVICE);
    ren_test_fault_clear(r->rt);
    ren__state *known = (ren__state *)(uintptr_t)r->t->known;
    CU_ASSERT_FATAL(known != NULL && r->t->repair == 1);
    known->loss_scale *= 0.5f;
    known->good_steps = 0;
}

/* f16 with batch norm, dropout, momentum (or both of Adam's) and an average. */
static void check_all(ren_optimizer optimizer, uint32_t graphs)
{
    ren_trainer_config how = ren_trainer_config_default();
    training with, without;
    float scale = 4096.0f;
    how.optimizer = optimizer;
    how.learning_rate = 0.05f;
    how.momentum = 0.9f;
    how.weight_decay = 0.01f;
    how.ema_decay = 0.9f;
    how.precision = REN_PRECISION_MIXED_F16;
    how.loss_scale = scale;
    begin(&with, &how, graphs, 1);
    begin(&without, &how, graphs, 1);
    for (uint32_t s = 1; s <= STEPS; s++) {
        if (s != 3 && s != 7) {
            equal_step(&with, &without, s);
            kept a = keep(&with), b = keep(&without);
            CU_ASSERT_EQUAL(a.state.loss_scale, scale);
            CU_ASSERT_EQUAL(b.state.loss_scale, scale);
            CU_ASSERT_EQUAL(a.state.applied, s - (s > 3) - (s > 7));
            CU_ASSERT(are_same(a, b));
            continue;
        }
        kept before = keep(&with);
        skipped_step(&with, s);
        kept behind = keep(&with);
        CU_ASSERT_EQUAL(behind.state.loss_scale, scale * 0.5f);
        CU_ASSERT(are_same(before, behind));
        broken_step(&without, s);
        scale *= 0.5f;
    }
    end(&without);
    end(&with);
}

static void test_behind_a_skip_f16_all_sgd(void)
{
    check_all(REN_OPTIMIZER_SGD, 0);
    check_all(REN_OPTIMIZER_SGD, 1);
}

static void test_behind_a_skip_f16_all_adam(void)
{
    check_all(REN_OPTIMIZER_ADAM, 0);
    check_all(REN_OPTIMIZER_ADAM, 1);
}

static void test_behind_a_skip_f16_all_lars(void)
{
    check_all(REN_OPTIMIZER_LARS, 1);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_behind_a_skip_sgd", test_behind_a_skip_sgd},
        {"test_behind_a_skip_adam", test_behind_a_skip_adam},
        {"test_behind_a_skip_lars", test_behind_a_skip_lars},
        {"test_behind_a_skip_f16", test_behind_a_skip_f16},
        {"test_behind_a_skip_f16_all_sgd", test_behind_a_skip_f16_all_sgd},
        {"test_behind_a_skip_f16_all_adam", test_behind_a_skip_f16_all_adam},
        {"test_behind_a_skip_f16_all_lars", test_behind_a_skip_f16_all_lars},
    };
    return ren_test_main(argc, argv, "conformance/test_skip", cases, REN_TEST_COUNT(cases), 120);
}
