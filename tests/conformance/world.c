/* SPDX-License-Identifier: MIT */
/* tests/conformance/world.c - see world.h. */
#include "world.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "../../libren/train/model_state.h"
#include "../support/runtime.h"
#include "../support/test.h"

ren_trainer_config sgd(float learning_rate)
{
    ren_trainer_config config = ren_trainer_config_default();
    config.learning_rate = learning_rate;
    config.momentum = 0.9f;
    return config;
}

void open_world(world *w, const ren_runtime_config *config, const ren_trainer_config *how,
                uint32_t staged)
{
    ren_error err;
    memset(&err, 0, sizeof err);
    memset(w, 0, sizeof *w);
    w->rt = ren_test_runtime(config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(w->rt);
    net_build(&w->n, w->rt, NET_MLP, BATCH, 11);
    w->n.model->caps.pageable_copies &= !staged;
    if (ren_trainer_create(w->n.model, w->n.loss, how, &w->t, &err) != REN_OK) {
        (void)fprintf(stderr, "ren_trainer_create: %s\n", err.text);
        CU_FAIL_FATAL("the trainer could not be made");
    }
}

void close_world(world *w)
{
    ren_stats stats = ren_stats_default();
    ren_trainer_destroy(w->t);
    ren_model_destroy(w->n.model);
    CU_ASSERT_EQUAL(ren_runtime_drain(w->rt, 10 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_stats(w->rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.jobs_posted,
                    stats.jobs_completed + stats.jobs_failed + stats.jobs_cancelled);
    CU_ASSERT_EQUAL(stats.pool_bytes_in_use, 0);
    ren_test_shutdown(w->rt);
}

void fill_batch(uint64_t stamp, float *x, int32_t *labels)
{
    unsigned long long state = stamp * 977u + 1u;
    for (uint32_t i = 0; i < BATCH * ROW; i++) {
        x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (uint32_t i = 0; i < BATCH; i++) {
        labels[i] = (int32_t)(ren_test_random(&state) % 10u);
    }
}

float loss_of(world *w, uint64_t stamp)
{
    float x[BATCH * ROW];
    int32_t labels[BATCH];
    net_result r;
    fill_batch(stamp, x, labels);
    net_step(&w->n, w->rt, w->t, x, labels, &r);
    CU_ASSERT_EQUAL(r.status, REN_OK);
    return r.step.loss;
}

void await_calls(const uint32_t *calls, uint32_t wanted)
{
    while (__atomic_load_n(calls, __ATOMIC_ACQUIRE) < wanted) {
        sched_yield();
    }
}
