/* SPDX-License-Identifier: MIT */
/* tests/fault/test_no_gpu.c - a host that asks for the best device, where CUDA cannot be used.
 *
 * Proves    a program linked to libren starts on a machine without the CUDA module, and on one with
 *           the module but without a driver; it trains on the CPU device; the log, and the error of
 *           a host that insists on CUDA, say why.
 * Fails if  libren or the module need the driver's library to be loaded, or the reason is lost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../golden/nets.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define BATCH 16u
#define STEPS 60u

static char logged[1024];

static void keep_log(void *user, ren_log_level level, const char *text)
{
    (void)user;
    (void)level;
    if (strstr(text, "using the CPU")) {
        (void)snprintf(logged, sizeof logged, "%s", text);
    }
}

static ren_runtime_config auto_config(const char *module)
{
    static ren_log log;
    ren_runtime_config config = ren_runtime_config_default();
    log = ren_log_default();
    log.fn = keep_log;
    log.min_level = REN_LOG_INFO;
    config.device = REN_DEVICE_AUTO;
    config.module_path = module;
    config.log = &log;
    logged[0] = '\0';
    return config;
}

static void train(ren_runtime *rt)
{
    static float x[BATCH * 64];
    static int32_t labels[BATCH];
    ren_trainer_config how = ren_trainer_config_default();
    unsigned long long state = 3;
    ren_trainer *t = NULL;
    float first = 0.0f;
    float last = 0.0f;
    net n;
    net_build(&n, rt, NET_MLP, BATCH, 11);
    CU_ASSERT_FATAL(n.row <= 64);
    for (size_t i = 0; i < BATCH * n.row; i++) {
        x[i] = (float)(ren_test_random(&state) % 2001u) / 1000.0f - 1.0f;
    }
    for (size_t i = 0; i < BATCH; i++) {
        labels[i] = (int32_t)(i % 10u);
    }
    how.learning_rate = 0.1f;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(n.model, n.loss, &how, &t, NULL), REN_OK);
    for (uint32_t i = 0; i < STEPS; i++) {
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

static void test_trains_without_the_module(void)
{
    ren_runtime_config config = auto_config("/nonexistent/libren_cuda.so");
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    CU_ASSERT_EQUAL(ren_runtime_device_kind(rt), REN_DEVICE_CPU);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, "/nonexistent/libren_cuda.so"));
    train(rt);
    ren_test_shutdown(rt);
}

/* The module that this build made, or NULL. */
static const char *built_module(void)
{
    static const char *const places[] = {"build/test/libren_cuda.so",
                                         "build/release/libren_cuda.so"};
    const char *named = getenv("REN_TEST_MODULE");
    for (size_t i = 0; !named && i < REN_TEST_COUNT(places); i++) {
        named = access(places[i], R_OK) == 0 ? places[i] : NULL;
    }
    return named;
}

static void test_trains_without_a_driver(void)
{
    const char *module = built_module();
    ren_runtime_config config = auto_config(module);
    ren_runtime *rt;
    ren_error err;
    if (!module) {
        ren_test_skip("no libren_cuda.so was built");
        return;
    }
    rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    if (ren_runtime_device_kind(rt) == REN_DEVICE_CUDA) {
        ren_test_skip("this machine has a driver and a GPU");
        ren_test_shutdown(rt);
        return;
    }
    (void)printf("       %s\n", logged);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, "driver"));
    train(rt);
    ren_test_shutdown(rt);
    config.device = REN_DEVICE_CUDA;
    CU_ASSERT_EQUAL(ren_runtime_create(&config, &rt, &err), REN_ERR_NO_DEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, err.text)); /* the same reason */
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_trains_without_the_module", test_trains_without_the_module},
        {"test_trains_without_a_driver", test_trains_without_a_driver},
    };
    return ren_test_main(argc, argv, "fault/test_no_gpu", cases, REN_TEST_COUNT(cases), 120);
}
