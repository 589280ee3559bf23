/* SPDX-License-Identifier: MIT */
/* tests/fault/test_no_gpu.c - a host that asks for the best device, where CUDA cannot be used.
 *
 * Proves    a program linked to libren starts on a machine without the CUDA module, with a file in
 *           its place that is none or is of another version, and with the module but without a
 *           driver that can serve: none, a file that is no library, a library without functions,
 *           the toolkit's stub, a driver that is too old, one that does not start, one that sees no
 *           GPU. It trains on the CPU device; the log, and the status and text of a host that
 *           insists on CUDA, say which of these it was.
 * How       drivers that cannot serve are small libraries of the name libcuda.so.1, built beside
 *           this program, and put before the real one, if any, by LD_LIBRARY_PATH: which the
 *           loader reads at a program's start, so this program starts itself once for each.
 * Fails if  libren or the module need the driver's library to be loaded, call a function that it
 *           does not have, or lose the reason.
 */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../golden/nets.h"
#include "../support/runtime.h"
#include "../support/test.h"

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

static void test_trains_without_the_module(void)
{
    ren_runtime_config config = auto_config("/nonexistent/libren_cuda.so");
    ren_runtime *rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    CU_ASSERT_EQUAL(ren_runtime_device_kind(rt), REN_DEVICE_CPU);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, "/nonexistent/libren_cuda.so"));
    net_learn(rt, NET_MLP, 60);
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
    net_learn(rt, NET_MLP, 60);
    ren_test_shutdown(rt);
    config.device = REN_DEVICE_CUDA;
    CU_ASSERT(ren_test_no_gpu(ren_runtime_create(&config, &rt, &err)));
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, err.text)); /* the same reason */
}

/* ------------------------------------------------------------------ refusals, one by one */

/* The folder of this program, with what was built beside it. */
static const char *stub_folder(void)
{
    static char path[1024];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 16u);
    CU_ASSERT_FATAL(length > 0);
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    CU_ASSERT_PTR_NOT_NULL_FATAL(slash);
    memcpy(slash, "/stub", sizeof "/stub");
    return path;
}

/* A module that does not serve: AUTO goes on with the CPU and says why, CUDA says the same. */
static void refused(const char *module, ren_status status, const char *text)
{
    ren_runtime_config config = auto_config(module);
    ren_runtime *rt = ren_test_runtime(&config);
    ren_error err;
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    CU_ASSERT_EQUAL(ren_runtime_device_kind(rt), REN_DEVICE_CPU);
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, text));
    net_learn(rt, NET_MLP, 60);
    ren_test_shutdown(rt);
    config.device = REN_DEVICE_CUDA;
    memset(&err, 0, sizeof err);
    rt = (ren_runtime *)&config;
    CU_ASSERT_EQUAL(ren_runtime_create(&config, &rt, &err), status);
    CU_ASSERT_PTR_NULL(rt);
    CU_ASSERT_EQUAL(err.status, status);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, text));
    CU_ASSERT_PTR_NOT_NULL(strstr(logged, err.text));
    (void)printf("       %s: %s\n", ren_status_name(err.status), err.text);
    /* The CPU is taken whatever the index of the GPU that was asked for. */
    config.device = REN_DEVICE_AUTO;
    config.device_index = 7;
    rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    CU_ASSERT_EQUAL(ren_runtime_device_kind(rt), REN_DEVICE_CPU);
    ren_test_shutdown(rt);
}

static void test_foreign_modules(void)
{
    static const struct {
        const char *name;
        const char *text;
    } modules[] = {
        {"text/libcuda.so.1", "cannot be loaded ("}, /* no library */
        {"module-no-entry.so", "is not a device module: it has no function ren__device"},
        {"module-refuses.so", "is a device module of another version of libren"},
        {"module-other-number.so", "is a device module of another version of libren"},
        {"module-other-size.so", "is a device module of another version of libren"},
    };
    for (size_t i = 0; i < REN_TEST_COUNT(modules); i++) {
        char path[1100];
        (void)snprintf(path, sizeof path, "%s/%s", stub_folder(), modules[i].name);
        refused(path, REN_ERR_NO_DEVICE, modules[i].text);
    }
}

/* ------------------------------------------------------------------ drivers that cannot serve */

#define UNDER_STUB "--under-stub" /* then module, status, text */

static struct {
    const char *module;
    ren_status status;
    const char *text;
} under;

static void test_under_a_stub(void)
{
    refused(under.module, under.status, under.text);
}

/* This environment with `folder` before the loader's others; free() it and its first string. */
static char **environment(const char *folder)
{
    extern char **environ;
    static const char name[] = "LD_LIBRARY_PATH=";
    const char *old = getenv("LD_LIBRARY_PATH");
    size_t bytes = sizeof name + strlen(folder) + 1u + (old ? strlen(old) : 0u);
    size_t count = 0;
    size_t kept = 1;
    while (environ[count]) {
        count++;
    }
    char **out = calloc(count + 2u, sizeof *out);
    CU_ASSERT_PTR_NOT_NULL_FATAL(out);
    out[0] = malloc(bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(out[0]);
    (void)snprintf(out[0], bytes, "%s%s%s%s", name, folder, old ? ":" : "", old ? old : "");
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], name, sizeof name - 1u) != 0) {
            out[kept++] = environ[i];
        }
    }
    return out;
}

/* Start this program anew under a driver, and print what it says. */
static void run_under(const char *driver, const char *module, ren_status status, const char *text)
{
    char folder[1100];
    char number[16];
    char said[4096];
    char *args[] = {(char *)(uintptr_t) "/proc/self/exe",
                    (char *)(uintptr_t)UNDER_STUB,
                    (char *)(uintptr_t)module,
                    number,
                    (char *)(uintptr_t)text,
                    NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];
    int code = -1;
    pid_t child = 0;
    ssize_t got;
    (void)snprintf(folder, sizeof folder, "%s/%s", stub_folder(), driver);
    (void)snprintf(number, sizeof number, "%d", (int)status);
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    CU_ASSERT_EQUAL_FATAL(posix_spawn_file_actions_init(&actions), 0);
    CU_ASSERT_EQUAL(posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO), 0);
    CU_ASSERT_EQUAL(posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO), 0);
    CU_ASSERT_EQUAL(posix_spawn_file_actions_addclose(&actions, ends[0]), 0);
    char **with = environment(folder);
    CU_ASSERT_EQUAL_FATAL(posix_spawn(&child, args[0], &actions, NULL, args, with), 0);
    free(with[0]);
    free(with);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    (void)printf("       under %s\n", driver);
    while ((got = read(ends[0], said, sizeof said)) > 0) {
        (void)fwrite(said, 1, (size_t)got, stdout);
    }
    (void)close(ends[0]);
    CU_ASSERT_EQUAL(waitpid(child, &code, 0), child);
    CU_ASSERT(WIFEXITED(code));
    CU_ASSERT_EQUAL(WEXITSTATUS(code), 0);
}

static void test_drivers_that_cannot_serve(void)
{
    static const struct {
        const char *driver;
        ren_status status;
        const char *text;
    } drivers[] = {
        {"text", REN_ERR_NO_DEVICE, "libcuda.so.1 is not installed or does not load ("},
        {"empty", REN_ERR_NO_DEVICE, "is none, it has no function cuInit"},
        {"stub", REN_ERR_NO_DEVICE, "the CUDA toolkit's stub for linking"},
        {"refuses-999", REN_ERR_NO_DEVICE, "does not start: the stub's reason (CUDA error 999)"},
        {"refuses-35", REN_ERR_DRIVER_TOO_OLD, "the NVIDIA driver is too old (CUDA error 35)"},
        {"old", REN_ERR_DRIVER_TOO_OLD, "it supports CUDA 11.4, this module needs"},
        {"refuses-100", REN_ERR_NO_GPU, "sees no GPU"},
        {"no-gpu", REN_ERR_NO_GPU, "sees no GPU"},
    };
    const char *module = built_module();
    if (!module) {
        ren_test_skip("no libren_cuda.so was built");
        return;
    }
    for (size_t i = 0; i < REN_TEST_COUNT(drivers); i++) {
        run_under(drivers[i].driver, module, drivers[i].status, drivers[i].text);
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_trains_without_the_module", test_trains_without_the_module},
        {"test_trains_without_a_driver", test_trains_without_a_driver},
        {"test_foreign_modules", test_foreign_modules},
        {"test_drivers_that_cannot_serve", test_drivers_that_cannot_serve},
    };
    static const ren_test_case under_stub[] = {{"test_under_a_stub", test_under_a_stub}};
    if (argc == 5 && strcmp(argv[1], UNDER_STUB) == 0) {
        under.module = argv[2];
        under.status = (ren_status)atoi(argv[3]);
        under.text = argv[4];
        return ren_test_main(1, argv, "fault/test_no_gpu under a stub", under_stub, 1, 60);
    }
    return ren_test_main(argc, argv, "fault/test_no_gpu", cases, REN_TEST_COUNT(cases), 120);
}
