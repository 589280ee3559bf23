/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_streams.c - the number of streams changes speed, never values.
 *
 * Each case trains one network for 50 steps, several steps in flight, on 1, 2, 3 and 5 streams, and
 * proves that weights and losses agree bit for bit; one goes on for 1,000 steps (failure row 41). A
 * missing edge between two streams, memory shared by values that live at the same time, or a sum
 * whose order depends on timing makes it fail.
 */
#include "../golden/nets.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define STEPS      50u
#define MOST_STEPS 1000u
#define SEEDS      8u
#define BATCHES    4u

typedef struct outcome {
    float *params;
    size_t count;
    float losses[MOST_STEPS];
} outcome;

static void make_data(const net *n, float **x, int32_t **labels)
{
    unsigned long long state = 42;
    size_t floats = BATCHES * n->batch * n->row;
    *x = malloc(floats * sizeof **x);
    *labels = malloc(BATCHES * n->batch * sizeof **labels);
    CU_ASSERT_FATAL(*x && *labels);
    for (size_t i = 0; i < floats; i++) {
        (*x)[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (size_t i = 0; i < BATCHES * n->batch; i++) {
        (*labels)[i] = (int32_t)(ren_test_random(&state) % 10u);
    }
}

/* In a runtime that is there already. */
static void train_in(ren_runtime *rt, net_kind kind, ren_optimizer optimizer, uint32_t steps,
                     outcome *out)
{
    ren_trainer_config how = ren_trainer_config_default();
    ren_trainer *t = NULL;
    net_result results[MOST_STEPS];
    ren_job job = {0};
    float *x;
    int32_t *labels;
    net n;
    net_build(&n, rt, kind, 8, 5);
    how.optimizer = optimizer;
    how.learning_rate = optimizer == REN_OPTIMIZER_SGD ? 0.05f : 0.002f;
    how.momentum = 0.9f;
    how.weight_decay = 1e-4f;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(n.model, n.loss, &how, &t, NULL), REN_OK);
    make_data(&n, &x, &labels);
    for (uint32_t i = 0; i < steps; i++) {
        size_t b = i % BATCHES;
        ren_status status;
        do {
            status = net_post(&n, t, x + b * n.batch * n.row, labels + b * n.batch, n.batch,
                              &results[i], &job);
            sched_yield();
        } while (status == REN_ERR_QUEUE_FULL);
        CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    }
    out->params = net_params(&n, &out->count);
    for (uint32_t i = 0; i < steps; i++) {
        while (__atomic_load_n(&results[i].calls, __ATOMIC_ACQUIRE) == 0) {
            sched_yield();
        }
        CU_ASSERT_EQUAL(results[i].calls, 1);
        CU_ASSERT_EQUAL(results[i].status, REN_OK);
        CU_ASSERT_EQUAL(results[i].step.index, i + 1);
        out->losses[i] = results[i].step.loss;
    }
    ren_trainer_destroy(t);
    ren_model_destroy(n.model);
    free(x);
    free(labels);
}

static void train(net_kind kind, uint32_t streams, ren_optimizer optimizer, uint32_t steps,
                  outcome *out)
{
    ren_runtime_config config = ren_test_config();
    config.streams = streams;
    config.deterministic = 1;
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    train_in(rt, kind, optimizer, steps, out);
    ren_test_shutdown(rt);
}

static void compare_long(net_kind kind, ren_optimizer optimizer, uint32_t steps)
{
    static const uint32_t counts[] = {1, 2, 3, 5};
    outcome base;
    train(kind, counts[0], optimizer, steps, &base);
    /* It learns: identical nonsense would pass the comparison as well. */
    CU_ASSERT(base.losses[steps - 1] < base.losses[0]);
    for (size_t i = 1; i < REN_TEST_COUNT(counts); i++) {
        outcome other;
        train(kind, counts[i], optimizer, steps, &other);
        CU_ASSERT_EQUAL_FATAL(other.count, base.count);
        CU_ASSERT_EQUAL(memcmp(other.params, base.params, base.count * sizeof(float)), 0);
        CU_ASSERT_EQUAL(memcmp(other.losses, base.losses, steps * sizeof(float)), 0);
        free(other.params);
    }
    free(base.params);
}

static void compare(net_kind kind, ren_optimizer optimizer)
{
    compare_long(kind, optimizer, STEPS);
}

static void test_streams_mlp_sgd(void)
{
    compare(NET_MLP, REN_OPTIMIZER_SGD);
}

static void test_streams_mlp_adam(void)
{
    compare(NET_MLP, REN_OPTIMIZER_ADAM);
}

static void test_streams_lenet_sgd(void)
{
    compare(NET_LENET, REN_OPTIMIZER_SGD);
}

static void test_streams_branch_adamw(void)
{
    compare(NET_BRANCH, REN_OPTIMIZER_ADAMW);
}

static void test_streams_tinyres_sgd(void)
{
    compare(NET_TINYRES, REN_OPTIMIZER_SGD);
}

/* Four branches of convolutions of different shapes. */
static void test_streams_branch_long(void)
{
    compare_long(NET_BRANCH, REN_OPTIMIZER_SGD, MOST_STEPS / ren_test_slowdown());
}

/* The order in which the lanes run is made by seeds, and memory is filled with NaN when it is
 * taken: a task that may run before its input, or that reads what nobody wrote, changes the
 * weights. */
static void test_streams_seeded(void)
{
    static const net_kind kinds[] = {NET_LENET, NET_TINYRES, NET_BRANCH};
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_skip("seeds order the CPU device's commands");
        return;
    }
    for (size_t k = 0; k < REN_TEST_COUNT(kinds); k++) {
        outcome base;
        train(kinds[k], 1, REN_OPTIMIZER_SGD, 4, &base);
        for (uint32_t seed = 1; seed <= SEEDS / ren_test_slowdown() + 1; seed++) {
            outcome other;
            ren_test_seed(NULL, seed);
            ren_test_poison(NULL, 1);
            train(kinds[k], 5, REN_OPTIMIZER_SGD, 4, &other);
            CU_ASSERT_EQUAL(memcmp(other.params, base.params, base.count * sizeof(float)), 0);
            CU_ASSERT_EQUAL(memcmp(other.losses, base.losses, 4 * sizeof(float)), 0);
            free(other.params);
        }
        free(base.params);
    }
}

typedef struct tenant {
    ren_runtime *rt;
    net_kind kind;
    outcome out;
} tenant;

static void *train_beside(void *arg)
{
    tenant *t = arg;
    train_in(t->rt, t->kind, REN_OPTIMIZER_SGD, STEPS, &t->out);
    return NULL;
}

/* Two models trained by two threads in one runtime end as each does alone. Memory, events or order
 * shared between plans by mistake would show. */
static void test_streams_two_models(void)
{
    tenant tenants[2] = {{.kind = NET_LENET}, {.kind = NET_TINYRES}};
    pthread_t threads[2];
    ren_runtime_config config = ren_test_config();
    config.deterministic = 1; /* as train() does */
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    for (uint32_t i = 0; i < 2; i++) {
        tenants[i].rt = rt;
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, train_beside, &tenants[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        outcome alone;
        CU_ASSERT_EQUAL(pthread_join(threads[i], NULL), 0);
        train(tenants[i].kind, 5, REN_OPTIMIZER_SGD, STEPS, &alone);
        CU_ASSERT_EQUAL(memcmp(alone.params, tenants[i].out.params, alone.count * sizeof(float)),
                        0);
        CU_ASSERT_EQUAL(memcmp(alone.losses, tenants[i].out.losses, STEPS * sizeof(float)), 0);
        free(alone.params);
        free(tenants[i].out.params);
    }
    ren_test_shutdown(rt);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_streams_mlp_sgd", test_streams_mlp_sgd},
        {"test_streams_mlp_adam", test_streams_mlp_adam},
        {"test_streams_lenet_sgd", test_streams_lenet_sgd},
        {"test_streams_branch_adamw", test_streams_branch_adamw},
        {"test_streams_tinyres_sgd", test_streams_tinyres_sgd},
        {"test_streams_branch_long", test_streams_branch_long},
        {"test_streams_seeded", test_streams_seeded},
        {"test_streams_two_models", test_streams_two_models},
    };
    return ren_test_main(argc, argv, "conformance/test_streams", cases, REN_TEST_COUNT(cases), 120);
}
