/* SPDX-License-Identifier: MIT */
/* tests/support/gate.c - see gate.h. */
#include "gate.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_UNTIL_GREATER_OR_EQUAL 0u /* CU_STREAM_WAIT_VALUE_GEQ */

/* The driver's calls take the stream, an address or a function, a value or its user, and flags. */
typedef int (*memory_fn)(void *stream, uint64_t address, uint32_t value, unsigned flags);
typedef int (*launch_fn)(void *stream, void (*fn)(void *user), void *user);

static void *driver_call(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? dlsym(driver, name) : NULL;
}

/* ------------------------------------------------------------------ gates */

static ren_status stand_on_stream(gate *g, void *stream)
{
    union {
        void *ptr;
        memory_fn fn;
    } write = {driver_call("cuStreamWriteValue32_v2")},
      wait = {driver_call("cuStreamWaitValue32_v2")};
    if (!g->words || !write.ptr || !wait.ptr) {
        return REN_ERR_UNSUPPORTED;
    }
    if (write.fn(stream, (uint64_t)(uintptr_t)&g->words->entered, 1, 0) != 0 ||
        wait.fn(stream, (uint64_t)(uintptr_t)&g->words->open, 1, WAIT_UNTIL_GREATER_OR_EQUAL) !=
            0 ||
        write.fn(stream, (uint64_t)(uintptr_t)&g->words->left, 1, 0) != 0) {
        return REN_ERR_DEVICE;
    }
    return REN_OK;
}

void gate_make(gate *g, const ren__device_api *api, ren__device *dev)
{
    ren__device_caps caps;
    void *words = NULL;
    *g = (gate)GATE;
    api->caps(dev, &caps);
    if (caps.host_reads_device) {
        return;
    }
    if (api->host_alloc(dev, sizeof *g->words, &words) != REN_OK) {
        (void)fprintf(stderr, "gate_make: no pinned memory\n");
        exit(1);
    }
    memset(words, 0, sizeof *g->words);
    g->words = words;
}

void gate_free(gate *g, const ren__device_api *api, ren__device *dev)
{
    if (g->words) {
        api->host_free(dev, g->words, sizeof *g->words);
        g->words = NULL;
    }
}

ren_status gate_pass(void *user, void *native_stream)
{
    gate *g = user;
    if (native_stream) {
        return stand_on_stream(g, native_stream);
    }
    pthread_mutex_lock(&g->mutex);
    g->entered = 1;
    pthread_cond_broadcast(&g->changed);
    while (!g->open) {
        pthread_cond_wait(&g->changed, &g->mutex);
    }
    g->left = 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
    return REN_OK;
}

/* Until *state, or *word where there are words, is set. */
static void await(gate *g, const int *state, const uint32_t *word)
{
    const struct timespec nap = {0, 100000};
    if (g->words) {
        /* Acquire: pairs with the fence before the stream's write. */
        while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) {
            (void)nanosleep(&nap, NULL);
        }
        return;
    }
    pthread_mutex_lock(&g->mutex);
    while (!*state) {
        pthread_cond_wait(&g->changed, &g->mutex);
    }
    pthread_mutex_unlock(&g->mutex);
}

void gate_wait_entered(gate *g)
{
    await(g, &g->entered, g->words ? &g->words->entered : NULL);
}

void gate_wait_left(gate *g)
{
    await(g, &g->left, g->words ? &g->words->left : NULL);
}

void gate_open(gate *g)
{
    pthread_mutex_lock(&g->mutex);
    g->open = 1;
    if (g->words) {
        __atomic_store_n(&g->words->open, 1, __ATOMIC_RELEASE);
    }
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
}

int gate_left(gate *g)
{
    if (g->words) {
        return __atomic_load_n(&g->words->left, __ATOMIC_ACQUIRE) != 0;
    }
    pthread_mutex_lock(&g->mutex);
    int left = g->left;
    pthread_mutex_unlock(&g->mutex);
    return left;
}

/* ------------------------------------------------------------------ functions */

ren_status on_lane_pass(void *user, void *native_stream)
{
    const on_lane *o = user;
    if (!native_stream) {
        o->fn(o->user);
        return REN_OK;
    }
    union {
        void *ptr;
        launch_fn fn;
    } launch = {driver_call("cuLaunchHostFunc")};
    if (!launch.ptr || launch.fn(native_stream, o->fn, o->user) != 0) {
        return REN_ERR_DEVICE;
    }
    return REN_OK;
}
