/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_device_fault.c - a device that is given up, a lane that never returns.
 *
 * Purpose   After abandon every call answers REN_ERR_DEVICE_LOST at once, sleepers wake, destroying
 *           works in the usual order, close ends although a lane is stuck in a host function, and a
 *           new device works in the same process.
 * Leaks     what a stuck lane may still touch is left behind on purpose; the stuck thread stays to
 *           the end of the program, so that leak checkers see that it is reachable.
 */
#include "../support/test.h"
#include "rig.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const ren__device_api *api;

typedef struct sleeper {
    rig *r;
    ren__event *event;
    ren_status status;
    pthread_t thread;
} sleeper;

static void *sleep_main(void *arg)
{
    sleeper *s = arg;
    s->status = s->r->api->event_sync(s->r->dev, s->event);
    return NULL;
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

/* One lane stuck in a host function, one that waits for it, one idle; a sleeper on each. */
static void test_abandon_with_a_stuck_lane(void)
{
    static gate stuck = GATE; /* never opened */
    rig r;
    sleeper s[3];
    rig_open(&r, api, 0, 0);
    if (!r.caps.host_reads_device) {
        ren_test_skip("host functions do not run on this device's lanes");
        rig_close(&r);
        return;
    }
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
    RIG_OK(api->event_record(r.dev, 1, event[2]));
    gate_wait_entered(&stuck);
    for (uint32_t i = 0; i < 3; i++) {
        s[i] = (sleeper){.r = &r, .event = event[i]};
        pthread_create(&s[i].thread, NULL, sleep_main, &s[i]);
    }
    const double begin = seconds();
    api->abandon(r.dev);
    for (uint32_t i = 0; i < 3; i++) {
        pthread_join(s[i].thread, NULL);
        CU_ASSERT_EQUAL(s[i].status, REN_ERR_DEVICE_LOST);
    }
    every_call_is_lost(&r, event[2], memory);
    for (uint32_t i = 0; i < 3; i++) {
        api->event_destroy(r.dev, event[i]);
    }
    api->mem_free(r.dev, memory, 64);
    rig_close(&r);
    /* Two bounded waits of a second each; the bound here only tells an end from a hang. */
    CU_ASSERT(seconds() - begin < 20.0);
    CU_ASSERT_EQUAL(rig_threads(), 1); /* the stuck one */
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

/* Commands that are queued when the device is lost do not run, those of a replay included. */
static ren_status count_up(void *user, void *native_stream)
{
    (void)native_stream;
    atomic_int *count = user;
    atomic_fetch_add(count, 1);
    return REN_OK;
}

static void test_abandon_drops_what_is_queued(void)
{
    rig r;
    gate g = GATE;
    atomic_int count = 0;
    ren_status unused = REN_OK;
    rig_open(&r, api, 0, 0);
    if (!r.caps.host_reads_device) {
        ren_test_skip("host functions do not run on this device's lanes");
        rig_close(&r);
        return;
    }
    ren__graph *graph = NULL;
    RIG_OK(api->graph_begin(r.dev, 0));
    RIG_OK(api->call(r.dev, 0, count_up, &count, &unused));
    RIG_OK(api->graph_end(r.dev, 0, &graph, NULL));
    rig_put_gate(&r, 0, &g);
    for (int i = 0; i < 10; i++) {
        RIG_OK(api->call(r.dev, 0, count_up, &count, &unused));
        RIG_OK(api->graph_launch(r.dev, 0, graph));
    }
    gate_wait_entered(&g);
    api->abandon(r.dev);
    gate_open(&g);
    api->graph_destroy(r.dev, graph); /* waits for the lane to leave the gate */
    CU_ASSERT_EQUAL(atomic_load(&count), 0);
    rig_close(&r);
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
        {"test_abandon_drops_what_is_queued", test_abandon_drops_what_is_queued},
        {"test_abandon_with_a_stuck_lane", test_abandon_with_a_stuck_lane},
        {"test_new_device_after_a_loss", test_new_device_after_a_loss},
    };
    api = rig_table();
    return ren_test_main(argc, argv, "conformance/test_device_fault", cases, REN_TEST_COUNT(cases),
                         120);
}
