/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_device.c - what only a CUDA device can get wrong, below the runtime.
 *
 * Proves    lanes are independent of each other and of the legacy stream; events order lanes while
 *           one is held; the calling thread's context is as it was after every call; a capture that
 *           the host breaks leaves the lanes usable; a failed allocation blames no later call; the
 *           memory limit holds; stamps are written, in order, on every lane and from a graph.
 * Fails     when a stream is made that waits for the legacy one, a context is set and not put back,
 *           EndCapture is left out after a failure, or the last error survives a handled one.
 */
#include <CUnit/CUnit.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../support/test.h"
#include "spin.h"
#include "table.h"

/* A lane held by a host function until released. */
typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t opened;
    int open;
} gate;

static void CUDART_CB wait_at_gate(void *user)
{
    gate *g = user;
    (void)pthread_mutex_lock(&g->mutex);
    while (!g->open) {
        (void)pthread_cond_wait(&g->opened, &g->mutex);
    }
    (void)pthread_mutex_unlock(&g->mutex);
}

static void gate_init(gate *g)
{
    (void)pthread_mutex_init(&g->mutex, NULL);
    (void)pthread_cond_init(&g->opened, NULL);
    g->open = 0;
}

static void gate_open(gate *g)
{
    (void)pthread_mutex_lock(&g->mutex);
    g->open = 1;
    (void)pthread_cond_broadcast(&g->opened);
    (void)pthread_mutex_unlock(&g->mutex);
}

static ren_status put_gate(void *user, void *native_stream)
{
    return cudaLaunchHostFunc((cudaStream_t)native_stream, wait_at_gate, user) == cudaSuccess
               ? REN_OK
               : REN_ERR_DEVICE;
}

static void hold(test_table *t, uint32_t lane, gate *g)
{
    ren_status out = REN_OK;
    gate_init(g);
    CU_ASSERT_EQUAL(t->api->call(t->dev, lane, put_gate, g, &out), REN_OK);
    CU_ASSERT_EQUAL(out, REN_OK);
}

static void finish(test_table *t, uint32_t lane)
{
    ren__event *event = NULL;
    CU_ASSERT_EQUAL(t->api->event_create(t->dev, 1, &event), REN_OK);
    CU_ASSERT_EQUAL(t->api->event_record(t->dev, lane, event), REN_OK);
    CU_ASSERT_EQUAL(t->api->event_sync(t->dev, event), REN_OK);
    t->api->event_destroy(t->dev, event);
}

static unsigned char *pinned(test_table *t, uint64_t bytes)
{
    void *out = NULL;
    CU_ASSERT_EQUAL_FATAL(t->api->host_alloc(t->dev, bytes, &out), REN_OK);
    memset(out, 0, bytes);
    return out;
}

static unsigned char *device(test_table *t, uint64_t bytes)
{
    void *out = NULL;
    CU_ASSERT_EQUAL_FATAL(t->api->mem_alloc(t->dev, bytes, &out), REN_OK);
    return out;
}

/* The end of a sync shows all that the lane wrote before the record, copies to the host included,
 * short and long waits, and says nothing of a later record of another event. Fails if the counter
 * that a waiter looks at can be ahead of the work. */
static void test_sync_shows_what_the_lane_wrote(void)
{
    enum {
        BYTES = 1 << 20
    };
    test_table *t = test_cuda();
    ren__event *event[2];
    unsigned char *host;
    unsigned char *dev;
    gate g;
    if (!t) {
        return;
    }
    host = pinned(t, 2 * BYTES);
    dev = device(t, 2 * BYTES);
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(t->api->event_create(t->dev, 1, &event[i]), REN_OK);
    }
    for (uint32_t round = 0; round < 3000; round++) {
        uint32_t lane = round % REN__LANES;
        uint64_t bytes = round % 7 ? (round % 2 ? 4096 : 64) : BYTES;
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t value = (round + i) % 251;
            CU_ASSERT_EQUAL(t->api->fill(t->dev, lane, dev + i * BYTES, value, bytes), REN_OK);
            CU_ASSERT_EQUAL(t->api->copy(t->dev, lane, host + i * BYTES, dev + i * BYTES, bytes),
                            REN_OK);
            CU_ASSERT_EQUAL(t->api->event_record(t->dev, lane, event[i]), REN_OK);
        }
        for (uint32_t i = 0; i < 2; i++) {
            CU_ASSERT_EQUAL(t->api->event_sync(t->dev, event[i]), REN_OK);
            CU_ASSERT_EQUAL(host[i * BYTES], (round + i) % 251);
            CU_ASSERT_EQUAL(host[i * BYTES + bytes - 1], (round + i) % 251);
        }
    }
    /* The first event is reached, the second is held: its sync comes back only when it is open. */
    CU_ASSERT_EQUAL(t->api->event_record(t->dev, 0, event[0]), REN_OK);
    hold(t, 0, &g);
    CU_ASSERT_EQUAL(t->api->fill(t->dev, 0, dev, 252, BYTES), REN_OK);
    CU_ASSERT_EQUAL(t->api->copy(t->dev, 0, host, dev, BYTES), REN_OK);
    CU_ASSERT_EQUAL(t->api->event_record(t->dev, 0, event[1]), REN_OK);
    CU_ASSERT_EQUAL(t->api->event_sync(t->dev, event[0]), REN_OK);
    CU_ASSERT_NOT_EQUAL(host[BYTES - 1], 252);
    gate_open(&g);
    CU_ASSERT_EQUAL(t->api->event_sync(t->dev, event[1]), REN_OK);
    CU_ASSERT_EQUAL(host[BYTES - 1], 252);
    for (int i = 0; i < 2; i++) {
        t->api->event_destroy(t->dev, event[i]);
    }
    t->api->mem_free(t->dev, dev, 2 * BYTES);
    t->api->host_free(t->dev, host, 2 * BYTES);
}

/* Copies of every small size, at every alignment, in every direction: a kernel makes them on some
 * lanes and a copy engine on the first. Fails if one takes a byte too many or too few. */
static void test_small_copies_take_their_bytes(void)
{
    enum {
        BYTES = 2048
    };
    test_table *t = test_cuda();
    unsigned char *host;
    unsigned char *dev;
    if (!t) {
        return;
    }
    host = pinned(t, 2 * BYTES);
    dev = device(t, 2 * BYTES);
    for (uint32_t round = 0; round < 600; round++) {
        uint32_t lane = round % REN__LANES;
        uint64_t bytes = round < 300 ? 1 + round % 70 : 1000 + round % 50;
        uint64_t from = round % 5;
        uint64_t to = round % 3 * 4 + round % 2;
        int wrong = 0;
        for (uint64_t i = 0; i < BYTES; i++) {
            host[i] = (unsigned char)(i * 7 + round);
        }
        memset(host + BYTES, 0xee, BYTES);
        CU_ASSERT_EQUAL(t->api->fill(t->dev, lane, dev, 0xee, 2 * BYTES), REN_OK);
        CU_ASSERT_EQUAL(t->api->copy(t->dev, lane, dev + from, host + from, bytes), REN_OK);
        CU_ASSERT_EQUAL(t->api->copy(t->dev, lane, dev + BYTES + to, dev + from, bytes), REN_OK);
        CU_ASSERT_EQUAL(t->api->copy(t->dev, lane, host + BYTES + from, dev + BYTES + to, bytes),
                        REN_OK);
        finish(t, lane);
        for (uint64_t i = 0; i < BYTES; i++) {
            int inside = i >= from && i < from + bytes;
            wrong += host[BYTES + i] != (inside ? host[i] : 0xee);
        }
        CU_ASSERT_EQUAL(wrong, 0);
        CU_ASSERT_EQUAL(t->api->copy(t->dev, lane, host + BYTES, dev + BYTES, BYTES), REN_OK);
        finish(t, lane);
        for (uint64_t i = 0; i < BYTES; i++) {
            int inside = i >= to && i < to + bytes;
            wrong += host[BYTES + i] != (inside ? host[from + i - to] : 0xee);
        }
        CU_ASSERT_EQUAL(wrong, 0);
    }
    t->api->host_free(t->dev, host, 2 * BYTES);
    t->api->mem_free(t->dev, dev, 2 * BYTES);
}

static void test_open_refusals_say_why(void)
{
    test_table *t = test_cuda();
    ren__device_config config;
    ren__device *dev = NULL;
    ren_error err;
    if (!t) {
        return;
    }
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    config.lanes = 1;
    config.device_index = 999;
    memset(&err, 0, sizeof err);
    CU_ASSERT_EQUAL(t->api->open(&config, test_host_services(), &dev, &err),
                    REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "999; the CUDA devices here are numbered 0 to "));
    CU_ASSERT_PTR_NULL(dev);
}

static void test_lanes_run_beside_a_held_lane(void)
{
    test_table *t = test_cuda();
    gate g;
    unsigned char *host;
    unsigned char *dev;
    if (!t) {
        return;
    }
    host = pinned(t, 256);
    dev = device(t, 256);
    hold(t, 1, &g);
    for (uint32_t lane = 0; lane < REN__LANES; lane++) {
        if (lane != 1) {
            CU_ASSERT_EQUAL(t->api->fill(t->dev, lane, dev, lane + 1u, 256), REN_OK);
            CU_ASSERT_EQUAL(t->api->copy(t->dev, lane, host, dev, 256), REN_OK);
            finish(t, lane); /* hangs, and so fails by the alarm, if lane 1 were in its way */
            CU_ASSERT_EQUAL(host[255], lane + 1u);
        }
    }
    gate_open(&g);
    finish(t, 1);
    t->api->mem_free(t->dev, dev, 256);
    t->api->host_free(t->dev, host, 256);
}

static void test_event_orders_lanes_under_delay(void)
{
    test_table *t = test_cuda();
    enum {
        BYTES = 1 << 20
    };
    if (!t) {
        return;
    }
    for (uint32_t from = 0; from < REN__LANES; from++) {
        for (uint32_t to = 0; to < REN__LANES; to++) {
            unsigned char *host = pinned(t, BYTES);
            unsigned char *dev = device(t, BYTES);
            ren__event *event = NULL;
            gate g;
            CU_ASSERT_EQUAL(t->api->fill(t->dev, from, dev, 1, BYTES), REN_OK);
            finish(t, from);
            hold(t, from, &g);
            CU_ASSERT_EQUAL(t->api->fill(t->dev, from, dev, 2, BYTES), REN_OK);
            CU_ASSERT_EQUAL(t->api->event_create(t->dev, 0, &event), REN_OK);
            CU_ASSERT_EQUAL(t->api->event_record(t->dev, from, event), REN_OK);
            CU_ASSERT_EQUAL(t->api->event_wait(t->dev, to, event), REN_OK);
            CU_ASSERT_EQUAL(t->api->copy(t->dev, to, host, dev, BYTES), REN_OK);
            gate_open(&g);
            finish(t, to);
            CU_ASSERT_EQUAL(host[0], 2);
            CU_ASSERT_EQUAL(host[BYTES - 1], 2);
            t->api->event_destroy(t->dev, event);
            t->api->mem_free(t->dev, dev, BYTES);
            t->api->host_free(t->dev, host, BYTES);
        }
    }
}

static void test_legacy_stream_is_no_barrier(void)
{
    test_table *t = test_cuda();
    gate g;
    unsigned char *dev;
    if (!t) {
        return;
    }
    dev = device(t, 64);
    hold(t, 2, &g);
    /* The host's own legacy-stream work neither waits for the held lane nor holds others up. */
    CU_ASSERT_EQUAL(cudaSetDevice(0), cudaSuccess);
    CU_ASSERT_EQUAL(cudaMemsetAsync(dev, 7, 64, cudaStreamLegacy), cudaSuccess);
    CU_ASSERT_EQUAL(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
    CU_ASSERT_EQUAL(t->api->fill(t->dev, 3, dev, 1, 64), REN_OK);
    finish(t, 3);
    gate_open(&g);
    finish(t, 2);
    t->api->mem_free(t->dev, dev, 64);
}

/* ------------------------------------------------------------------ context */

/* Every entry that a host thread may reach, with `expected` current before and after. */
static void use_all(test_table *t, CUcontext expected)
{
    unsigned char *host;
    unsigned char *dev;
    ren__event *event = NULL;
    ren__op *op = NULL;
    ren__op_needs needs;
    ren__graph *graph = NULL;
    ren_error err;
    ren__op_desc desc = test_desc(REN__OP_LINEAR_FWD);
    desc.operand[0] = test_tensor(REN_F32, 2, 4, 8, 0, 0);
    desc.operand[1] = test_tensor(REN_F32, 2, 3, 8, 0, 0);
    desc.operand[3] = test_tensor(REN_F32, 2, 4, 3, 0, 0);
#define STAYS(call)                                                                                \
    do {                                                                                           \
        CU_ASSERT_EQUAL((call), REN_OK);                                                           \
        CU_ASSERT_PTR_EQUAL(spin_current(), expected);                                             \
    } while (0)
    host = pinned(t, 64);
    dev = device(t, 64);
    STAYS(t->api->event_create(t->dev, 1, &event));
    STAYS(t->api->fill(t->dev, 0, dev, 3, 64));
    STAYS(t->api->copy(t->dev, 0, host, dev, 64));
    STAYS(t->api->event_record(t->dev, 0, event));
    STAYS(t->api->event_wait(t->dev, 1, event));
    STAYS(t->api->event_sync(t->dev, event));
    CU_ASSERT_EQUAL(host[63], 3);
    STAYS(t->api->op_create(t->dev, 0, &desc, &op, &needs, &err));
    t->api->op_destroy(t->dev, op);
    STAYS(t->api->graph_begin(t->dev, 0));
    STAYS(t->api->fill(t->dev, 0, dev, 4, 64));
    STAYS(t->api->graph_end(t->dev, 0, &graph, &err));
    STAYS(t->api->graph_launch(t->dev, 0, graph));
    finish(t, 0);
    STAYS(t->api->graph_begin(t->dev, 0));
    STAYS(t->api->fill(t->dev, 0, dev, 5, 64));
    STAYS(t->api->graph_update(t->dev, 0, graph, &err));
    t->api->graph_destroy(t->dev, graph);
    t->api->event_destroy(t->dev, event);
    t->api->mem_free(t->dev, dev, 64);
    t->api->host_free(t->dev, host, 64);
    CU_ASSERT_PTR_EQUAL(spin_current(), expected);
#undef STAYS
}

static void test_context_of_the_thread_is_kept(void)
{
    test_table *t = test_cuda();
    CUcontext before = spin_current();
    CUcontext own = NULL;
    if (!t) {
        return;
    }
    CU_ASSERT_EQUAL(spin_context_set(NULL), 0);
    use_all(t, NULL);
    CU_ASSERT_EQUAL(spin_context_create(&own, 0), 0); /* becomes current */
    use_all(t, own);
    CU_ASSERT_EQUAL(spin_context_set(before), 0);
    CU_ASSERT_EQUAL(spin_context_destroy(own), 0);
}

static void test_context_of_the_host_is_used(void)
{
    test_table *t = test_cuda();
    CUcontext before = spin_current();
    CUcontext own = NULL;
    ren__device_config config;
    test_table mine;
    ren_error err;
    if (!t) {
        return;
    }
    memset(&config, 0, sizeof config);
    memset(&mine, 0, sizeof mine);
    memset(&err, 0, sizeof err);
    config.struct_size = (uint32_t)sizeof config;
    config.lanes = 2;
    CU_ASSERT_EQUAL(spin_context_create(&own, 0), 0);
    CU_ASSERT_EQUAL(spin_context_set(before), 0);
    config.cuda_context = own;
    mine.api = t->api;
    CU_ASSERT_EQUAL_FATAL(mine.api->open(&config, test_host_services(), &mine.dev, &err), REN_OK);
    CU_ASSERT_PTR_EQUAL(spin_current(), before);
    use_all(&mine, before);
    test_table_close(&mine);
    CU_ASSERT_PTR_EQUAL(spin_current(), before);
    CU_ASSERT_EQUAL(spin_context_destroy(own), 0); /* it still is ours to destroy */
}

/* ------------------------------------------------------------------ capture and errors */

static ren_status break_capture(void *user, void *native_stream)
{
    (void)user;
    /* Waiting for a captured stream breaks its capture, whatever the mode. */
    (void)cudaStreamSynchronize((cudaStream_t)native_stream);
    (void)cudaGetLastError();
    return REN_OK;
}

static void test_broken_capture_leaves_lanes_usable(void)
{
    test_table *t = test_cuda();
    unsigned char *host;
    unsigned char *dev;
    if (!t) {
        return;
    }
    host = pinned(t, 64);
    dev = device(t, 64);
    for (int round = 0; round < 20; round++) {
        ren__graph *graph = NULL;
        ren__event *fork = NULL;
        ren__event *join = NULL;
        ren_status out = REN_OK;
        ren_error err;
        CU_ASSERT_EQUAL(t->api->event_create(t->dev, 0, &fork), REN_OK);
        CU_ASSERT_EQUAL(t->api->event_create(t->dev, 0, &join), REN_OK);
        CU_ASSERT_EQUAL(t->api->graph_begin(t->dev, 0), REN_OK);
        CU_ASSERT_EQUAL(t->api->event_record(t->dev, 0, fork), REN_OK);
        CU_ASSERT_EQUAL(t->api->event_wait(t->dev, 3, fork), REN_OK);
        CU_ASSERT_EQUAL(t->api->fill(t->dev, 3, dev, 9, 64), REN_OK);
        if (round % 2) {
            (void)t->api->call(t->dev, 0, break_capture, NULL, &out);
        } /* else lane 3 is left unjoined, which is as bad */
        CU_ASSERT_NOT_EQUAL(t->api->graph_end(t->dev, 0, &graph, &err), REN_OK);
        CU_ASSERT_PTR_NULL(graph);
        CU_ASSERT_EQUAL(t->api->status(t->dev, &err), REN_OK);
        for (uint32_t lane = 0; lane < REN__LANES; lane++) {
            CU_ASSERT_EQUAL(t->api->fill(t->dev, lane, dev, lane, 64), REN_OK);
            CU_ASSERT_EQUAL(t->api->copy(t->dev, lane, host, dev, 64), REN_OK);
            finish(t, lane);
            CU_ASSERT_EQUAL(host[0], lane);
        }
        t->api->event_destroy(t->dev, fork);
        t->api->event_destroy(t->dev, join);
    }
    t->api->mem_free(t->dev, dev, 64);
    t->api->host_free(t->dev, host, 64);
}

static atomic_int stop_hosts;

static void *allocate_and_wait(void *arg)
{
    long rounds = 0;
    (void)arg;
    while (!atomic_load(&stop_hosts)) {
        void *memory = NULL;
        cudaEvent_t event;
        if (cudaMalloc(&memory, 1 << 16) != cudaSuccess ||
            cudaMemset(memory, 0, 1 << 16) != cudaSuccess ||
            cudaEventCreate(&event) != cudaSuccess || cudaEventRecord(event, 0) != cudaSuccess ||
            cudaEventSynchronize(event) != cudaSuccess || cudaEventDestroy(event) != cudaSuccess ||
            cudaFree(memory) != cudaSuccess) {
            return (void *)-1L;
        }
        rounds++;
    }
    return (void *)rounds;
}

/* Other threads allocate, use the legacy stream and wait all the while; captures must neither fail
 * because of them nor break them. */
static void test_captures_beside_host_work(void)
{
    test_table *t = test_cuda();
    pthread_t threads[2];
    unsigned char *host;
    unsigned char *dev;
    int made = 0;
    if (!t) {
        return;
    }
    host = pinned(t, 64);
    dev = device(t, 64);
    atomic_store(&stop_hosts, 0);
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(pthread_create(&threads[i], NULL, allocate_and_wait, NULL), 0);
    }
    for (int round = 0; round < 200; round++) {
        ren__graph *graph = NULL;
        ren_error err;
        CU_ASSERT_EQUAL(t->api->graph_begin(t->dev, 0), REN_OK);
        CU_ASSERT_EQUAL(t->api->fill(t->dev, 0, dev, (uint32_t)round & 0xffu, 64), REN_OK);
        CU_ASSERT_EQUAL(t->api->copy(t->dev, 0, host, dev, 64), REN_OK);
        if (t->api->graph_end(t->dev, 0, &graph, &err) != REN_OK) {
            continue; /* allowed: then the step runs without a graph */
        }
        made++;
        CU_ASSERT_EQUAL(t->api->graph_launch(t->dev, 0, graph), REN_OK);
        finish(t, 0);
        CU_ASSERT_EQUAL(host[63], round & 0xff);
        t->api->graph_destroy(t->dev, graph);
    }
    atomic_store(&stop_hosts, 1);
    for (int i = 0; i < 2; i++) {
        void *result = NULL;
        CU_ASSERT_EQUAL(pthread_join(threads[i], &result), 0);
        CU_ASSERT_TRUE((long)result > 0);
    }
    (void)printf("       %d of 200 captures held beside the host's own calls\n", made);
    CU_ASSERT_TRUE(made > 0);
    t->api->mem_free(t->dev, dev, 64);
    t->api->host_free(t->dev, host, 64);
}

static void test_failed_allocation_blames_nobody(void)
{
    test_table *t = test_cuda();
    void *out = NULL;
    ren_error err;
    if (!t) {
        return;
    }
    for (int i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(t->api->mem_alloc(t->dev, UINT64_C(1) << 46, &out),
                        REN_ERR_NO_DEVICE_MEMORY);
        CU_ASSERT_PTR_NULL(out);
        CU_ASSERT_EQUAL(cudaPeekAtLastError(), cudaSuccess); /* the host's own copy */
        finish(t, 0);
        CU_ASSERT_EQUAL(t->api->status(t->dev, &err), REN_OK);
    }
}

static void test_memory_limit_holds(void)
{
    const char *why = NULL;
    test_table *t = test_cuda();
    ren__device_config config;
    test_table mine;
    void *a = NULL;
    void *b = NULL;
    ren_error err;
    if (!t) {
        return;
    }
    memset(&config, 0, sizeof config);
    memset(&mine, 0, sizeof mine);
    config.struct_size = (uint32_t)sizeof config;
    config.lanes = 1;
    config.memory_limit_bytes = 1u << 20;
    mine.api = test_cuda_api(&why);
    CU_ASSERT_EQUAL_FATAL(mine.api->open(&config, test_host_services(), &mine.dev, &err), REN_OK);
    CU_ASSERT_EQUAL(mine.api->mem_alloc(mine.dev, 700000, &a), REN_OK);
    CU_ASSERT_EQUAL(mine.api->mem_alloc(mine.dev, 700000, &b), REN_ERR_NO_DEVICE_MEMORY);
    mine.api->mem_free(mine.dev, a, 700000);
    CU_ASSERT_EQUAL(mine.api->mem_alloc(mine.dev, 700000, &b), REN_OK);
    mine.api->mem_free(mine.dev, b, 700000);
    test_table_close(&mine);
}

/* Stamps on a lane, on a lane behind it, and from a graph launched twice: each is written, and none
 * is earlier than one that the order of commands puts before it. A clock of the multiprocessor's
 * own would fail across lanes; one read on the host at capture, at the second launch. */
static void test_stamps_are_in_order(void)
{
    test_table *t = test_cuda();
    uint64_t *at;
    uint64_t first;
    ren__event *event = NULL;
    ren__graph *graph = NULL;
    ren_error err;
    if (!t) {
        return;
    }
    at = (uint64_t *)(void *)pinned(t, 5 * sizeof *at);
    CU_ASSERT_EQUAL(t->api->event_create(t->dev, 0, &event), REN_OK);
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(t->api->stamp(t->dev, i, &at[i]), REN_OK);
        CU_ASSERT_EQUAL(t->api->event_record(t->dev, i, event), REN_OK);
        CU_ASSERT_EQUAL(t->api->event_wait(t->dev, i + 1u, event), REN_OK);
    }
    finish(t, 3);
    CU_ASSERT_TRUE(at[0] != 0 && at[0] <= at[1] && at[1] <= at[2]);
    CU_ASSERT_EQUAL(t->api->graph_begin(t->dev, 0), REN_OK);
    CU_ASSERT_EQUAL(t->api->stamp(t->dev, 0, &at[3]), REN_OK);
    CU_ASSERT_EQUAL(t->api->stamp(t->dev, 0, &at[4]), REN_OK);
    CU_ASSERT_EQUAL_FATAL(t->api->graph_end(t->dev, 0, &graph, &err), REN_OK);
    CU_ASSERT_EQUAL(t->api->graph_launch(t->dev, 0, graph), REN_OK);
    finish(t, 0);
    first = at[3];
    CU_ASSERT_TRUE(at[2] <= at[3] && at[3] <= at[4]);
    CU_ASSERT_EQUAL(t->api->graph_launch(t->dev, 0, graph), REN_OK);
    finish(t, 0);
    CU_ASSERT_TRUE(first < at[3] && at[3] <= at[4]);
    t->api->graph_destroy(t->dev, graph);
    t->api->event_destroy(t->dev, event);
    t->api->host_free(t->dev, at, 5 * sizeof *at);
}

static const ren_test_case cases[] = {
    {"test_small_copies_take_their_bytes", test_small_copies_take_their_bytes},
    {"test_open_refusals_say_why", test_open_refusals_say_why},
    {"test_sync_shows_what_the_lane_wrote", test_sync_shows_what_the_lane_wrote},
    {"test_lanes_run_beside_a_held_lane", test_lanes_run_beside_a_held_lane},
    {"test_event_orders_lanes_under_delay", test_event_orders_lanes_under_delay},
    {"test_legacy_stream_is_no_barrier", test_legacy_stream_is_no_barrier},
    {"test_context_of_the_thread_is_kept", test_context_of_the_thread_is_kept},
    {"test_context_of_the_host_is_used", test_context_of_the_host_is_used},
    {"test_broken_capture_leaves_lanes_usable", test_broken_capture_leaves_lanes_usable},
    {"test_captures_beside_host_work", test_captures_beside_host_work},
    {"test_failed_allocation_blames_nobody", test_failed_allocation_blames_nobody},
    {"test_memory_limit_holds", test_memory_limit_holds},
    {"test_stamps_are_in_order", test_stamps_are_in_order},
};

int main(int argc, char **argv)
{
    int code = ren_test_main(argc, argv, "gpu/test_cuda_device", cases, REN_TEST_COUNT(cases), 120);
    test_tables_close();
    return code;
}
