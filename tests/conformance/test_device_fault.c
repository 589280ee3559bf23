/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_device_fault.c - a device that is given up, a lane that never returns.
 *
 * Purpose   After abandon every call answers REN_ERR_DEVICE_LOST at once, sleepers wake, destroying
 *           works in the usual order, close ends although a lane is stuck, and a new device works
 *           in the same process.
 * Leaks     what a stuck lane may still touch is left behind on purpose; the CPU device's stuck
 *           thread stays to the end of the program, so that leak checkers see that it is reachable.
 *           A GPU is let go again, so that it is seen to come to nothing that was taken away, and
 *           since later streams may share a hardware queue with the stuck one.
 */
#include "../support/test.h"
#include "rig.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const ren__device_api *api;

typedef struct sleeper {
    ren__device *dev;
    ren__event *event;
    ren_status status;
    _Atomic int back;
    pthread_t thread;
} sleeper;

static void *sleep_main(void *arg)
{
    sleeper *s = arg;
    s->status = api->event_sync(s->dev, s->event);
    atomic_store(&s->back, 1);
    return NULL;
}

static void start_sleeper(sleeper *s, ren__device *dev, ren__event *event)
{
    s->dev = dev;
    s->event = event;
    atomic_store(&s->back, 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&s->thread, NULL, sleep_main, s), 0);
}

static void nap_ms(int ms)
{
    const struct timespec t = {0, 1000000};
    for (int i = 0; i < ms; i++) {
        (void)nanosleep(&t, NULL);
    }
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void every_call_is_lost(rig *r, ren__event *event, unsigned char *memory)
{
    void *more = NULL;
    ren__event *another = NULL;
    ren__op *op = NULL;
    ren__op_needs needs;
    ren_error err;
    ren_status unused = REN_OK;
    ren__op_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.kind = REN__OP_ADVANCE;
    memset(&err, 0, sizeof err);
    CU_ASSERT_EQUAL(api->status(r->dev, &err), REN_ERR_DEVICE_LOST);
    CU_ASSERT(err.text[0] != '\0');
    CU_ASSERT_EQUAL(api->mem_alloc(r->dev, 64, &more), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->host_alloc(r->dev, 64, &more), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->event_create(r->dev, 0, &another), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->event_record(r->dev, 1, event), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->event_wait(r->dev, 1, event), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->event_sync(r->dev, event), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->copy(r->dev, 1, memory, memory + 32, 16), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->fill(r->dev, 1, memory, 0, 16), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->call(r->dev, 1, NULL, NULL, &unused), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->op_create(r->dev, 1, &desc, &op, &needs, &err), REN_ERR_DEVICE_LOST);
    CU_ASSERT_EQUAL(api->graph_begin(r->dev, 1), REN_ERR_DEVICE_LOST);
}

/* One lane stuck, one that waits for it, one idle; a sleeper on each. Hangs if something of this
 * waits for the stuck lane. A GPU's sleepers that are inside the driver, where they go if waits
 * have been long, come back when the lane goes on. */
static void test_abandon_with_a_stuck_lane(void)
{
    static gate stuck = GATE;
    static sleeper s[3];
    rig r;
    rig_open(&r, api, 0, 0);
    const int is_cpu = r.caps.host_reads_device != 0;
    static unsigned char *memory; /* not freed for the stuck lane's sake */
    memory = rig_alloc(&r, 64);
    ren__event *event[3];
    for (uint32_t i = 0; i < 3; i++) {
        RIG_OK(api->event_create(r.dev, 1, &event[i]));
    }
    rig_put_gate(&r, 0, &stuck);
    RIG_OK(api->event_record(r.dev, 0, event[0]));
    RIG_OK(api->event_wait(r.dev, 1, event[0]));
    RIG_OK(api->event_record(r.dev, 1, event[1]));
    RIG_OK(api->event_record(r.dev, 2, event[2]));
    gate_wait_entered(&stuck);
    for (uint32_t i = 0; i < 3; i++) {
        start_sleeper(&s[i], r.dev, event[i]);
    }
    pthread_join(s[2].thread, NULL);
    CU_ASSERT_EQUAL(s[2].status, REN_OK);
    const double begin = seconds();
    api->abandon(r.dev);
    for (int i = 0; i < 1000 && !(atomic_load(&s[0].back) && atomic_load(&s[1].back)); i++) {
        nap_ms(1);
    }
    every_call_is_lost(&r, event[2], memory);
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT(atomic_load(&s[i].back) || !is_cpu);
        if (atomic_load(&s[i].back)) {
            api->event_destroy(r.dev, event[i]);
        }
    }
    api->mem_free(r.dev, memory, 64);
    rig_close(&r);
    /* Two bounded waits of a second each; the bound here only tells an end from a hang. */
    CU_ASSERT(seconds() - begin < 20.0);
    CU_ASSERT_EQUAL(rig_threads(), is_cpu); /* the stuck one */
    CU_ASSERT_EQUAL(gate_left(&stuck), 0);
    if (!is_cpu) {
        gate_open(&stuck);
        gate_wait_left(&stuck);
    }
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(s[i].thread, NULL);
        CU_ASSERT_EQUAL(s[i].status, REN_ERR_DEVICE_LOST);
    }
}

/* Lanes that are not stuck end, and nothing is left behind. */
static void test_abandon_with_idle_lanes(void)
{
    const long blocks = rig_blocks(), threads = rig_threads();
    for (uint64_t seed = 0; seed < 2; seed++) {
        rig r;
        rig_open(&r, api, 0, seed);
        unsigned char *memory = rig_alloc(&r, 64);
        ren__event *event = NULL;
        RIG_OK(api->event_create(r.dev, 1, &event));
        RIG_OK(api->fill(r.dev, 2, memory, 1, 64));
        RIG_OK(api->graph_begin(r.dev, 3)); /* and a capture that is never ended */
        api->abandon(r.dev);
        api->abandon(r.dev);
        CU_ASSERT_EQUAL(api->event_sync(r.dev, event), REN_ERR_DEVICE_LOST);
        CU_ASSERT_EQUAL(api->fill(r.dev, 3, memory, 1, 64), REN_ERR_DEVICE_LOST);
        api->event_destroy(r.dev, event);
        api->mem_free(r.dev, memory, 64);
        rig_close(&r);
    }
    if (api->kind == REN_DEVICE_CPU) { /* an abandoned GPU's record stays: its work may not end */
        CU_ASSERT_EQUAL(rig_blocks(), blocks);
    }
    CU_ASSERT_EQUAL(rig_threads(), threads);
}

static void count_up(void *user)
{
    atomic_fetch_add((atomic_int *)user, 1);
}

/* What is queued when the device is given up. The CPU device drops it, replays included. A GPU runs
 * it when it goes on, and destroy, free and close have left it all that it needs: fails by a hang
 * if they wait for the GPU, and by a fault if they take away its memory, graphs or streams. */
static void test_abandon_with_queued_commands(void)
{
    enum {
        ROUNDS = 10,
        BYTES = 1 << 20
    };
    static gate g = GATE;
    static atomic_int count;
    static on_lane counts = {count_up, &count};
    rig r;
    rig_open(&r, api, 0, 0);
    ren__graph *graph = NULL;
    unsigned char *memory = rig_alloc(&r, BYTES);
    RIG_OK(api->graph_begin(r.dev, 0));
    RIG_OK(api->fill(r.dev, 0, memory, 1, BYTES));
    rig_put(&r, 0, &counts);
    RIG_OK(api->graph_end(r.dev, 0, &graph, NULL));
    RIG_OK(api->graph_launch(r.dev, 0, graph));
    rig_put(&r, 0, &counts);
    rig_finish(&r, 0);
    CU_ASSERT_EQUAL(atomic_load(&count), 2);
    rig_put_gate(&r, 0, &g);
    for (int i = 0; i < ROUNDS; i++) {
        RIG_OK(api->fill(r.dev, 0, memory, 2, BYTES));
        rig_put(&r, 0, &counts);
        RIG_OK(api->graph_launch(r.dev, 0, graph));
    }
    gate_wait_entered(&g);
    api->abandon(r.dev);
    if (r.caps.host_reads_device) {
        gate_open(&g);
        api->graph_destroy(r.dev, graph); /* waits for the lane to leave the gate */
        api->mem_free(r.dev, memory, BYTES);
        rig_close(&r);
        CU_ASSERT_EQUAL(atomic_load(&count), 2);
        return;
    }
    api->graph_destroy(r.dev, graph);
    api->mem_free(r.dev, memory, BYTES);
    rig_close(&r);
    CU_ASSERT_EQUAL(atomic_load(&count), 2);
    gate_open(&g);
    for (int i = 0; i < 20000 && atomic_load(&count) < 2 + 2 * ROUNDS; i++) {
        nap_ms(1);
    }
    CU_ASSERT_EQUAL(atomic_load(&count), 2 + 2 * ROUNDS);
}

/* A waiter that sleeps inside the driver, as it does behind long work, cannot be woken: it comes
 * back when the GPU does, after the device is closed, and finds what it looks at. On the CPU device
 * it wakes at once. */
static void test_abandon_with_a_deep_sleeper(void)
{
    static gate last = GATE;
    static sleeper s;
    rig r;
    ren__event *event = NULL;
    rig_open(&r, api, 0, 0);
    RIG_OK(api->event_create(r.dev, 1, &event));
    for (int i = 0; i < 3; i++) { /* long waits: the device learns that those are usual here */
        gate g = GATE;
        rig_put_gate(&r, 0, &g);
        RIG_OK(api->event_record(r.dev, 0, event));
        start_sleeper(&s, r.dev, event);
        nap_ms(20);
        gate_open(&g);
        pthread_join(s.thread, NULL);
        CU_ASSERT_EQUAL(s.status, REN_OK);
    }
    rig_put_gate(&r, 0, &last);
    RIG_OK(api->event_record(r.dev, 0, event));
    gate_wait_entered(&last);
    start_sleeper(&s, r.dev, event);
    nap_ms(50); /* it is asleep by then; only makes the test sharper */
    const double begin = seconds();
    api->abandon(r.dev);
    CU_ASSERT_EQUAL(api->event_sync(r.dev, event), REN_ERR_DEVICE_LOST);
    if (r.caps.host_reads_device) {
        pthread_join(s.thread, NULL);
        gate_open(&last);
        api->event_destroy(r.dev, event);
        rig_close(&r);
    } else {
        rig_close(&r); /* its event stays: the sleeper looks at it */
        CU_ASSERT(seconds() - begin < 20.0);
        CU_ASSERT_EQUAL(gate_left(&last), 0);
        gate_open(&last);
        pthread_join(s.thread, NULL);
    }
    CU_ASSERT_EQUAL(s.status, REN_ERR_DEVICE_LOST);
}

/* After all that, a new device works. */
static void test_new_device_after_a_loss(void)
{
    rig r;
    unsigned char got[64] = {0};
    rig_open(&r, api, 0, 0);
    unsigned char *memory = rig_alloc(&r, 64);
    RIG_OK(api->fill(r.dev, 1, memory, 5, 64));
    rig_finish(&r, 1);
    rig_download(&r, got, memory, 64);
    CU_ASSERT_EQUAL(got[63], 5);
    api->mem_free(r.dev, memory, 64);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_abandon_with_idle_lanes", test_abandon_with_idle_lanes},
        {"test_abandon_with_queued_commands", test_abandon_with_queued_commands},
        {"test_abandon_with_a_deep_sleeper", test_abandon_with_a_deep_sleeper},
        {"test_abandon_with_a_stuck_lane", test_abandon_with_a_stuck_lane},
        {"test_new_device_after_a_loss", test_new_device_after_a_loss},
    };
    api = rig_table();
    return ren_test_main(argc, argv, "conformance/test_device_fault", cases, REN_TEST_COUNT(cases),
                         120);
}
