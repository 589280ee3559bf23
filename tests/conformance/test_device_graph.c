/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_device_graph.c - capture and replay, and what they must refuse.
 *
 * Purpose   A captured program replays to what it does when run directly, on any subset of lanes
 *           and as often as it is launched; a capture that is not closed in itself is refused with
 *           words, leaves nothing behind and leaves the lanes usable.
 */
#include "../support/test.h"
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CELL = 256
};

static const ren__device_api *api;

typedef struct bench {
    rig r;
    ren__event *fork;
    ren__event *join[REN__LANES];
    unsigned char *cells; /* one a lane */
} bench;

static void bench_open(bench *b, uint64_t seed)
{
    rig_open(&b->r, api, 0, seed);
    RIG_OK(api->event_create(b->r.dev, 0, &b->fork));
    for (uint32_t i = 0; i < REN__LANES; i++) {
        RIG_OK(api->event_create(b->r.dev, 0, &b->join[i]));
    }
    b->cells = rig_alloc(&b->r, CELL * REN__LANES);
    unsigned char zero[CELL * REN__LANES] = {0};
    rig_upload(&b->r, b->cells, zero, sizeof zero);
}

static void bench_close(bench *b)
{
    api->mem_free(b->r.dev, b->cells, CELL * REN__LANES);
    api->event_destroy(b->r.dev, b->fork);
    for (uint32_t i = 0; i < REN__LANES; i++) {
        api->event_destroy(b->r.dev, b->join[i]);
    }
    rig_close(&b->r);
}

static unsigned char *cell(bench *b, uint32_t lane)
{
    return b->cells + CELL * lane;
}

/* Every lane of the subset copies the origin's cell to its own, then they pass it round: cell of
 * lane i + 1 from lane i. Ends joined to the origin. */
static ren_status fork_and_join(bench *b, uint32_t origin, uint32_t subset)
{
    ren_status status = api->event_record(b->r.dev, origin, b->fork);
    for (uint32_t i = 0; status == REN_OK && i < REN__LANES; i++) {
        if (i == origin || !(subset & (1u << i))) {
            continue;
        }
        status = api->event_wait(b->r.dev, i, b->fork);
        if (status == REN_OK) {
            status = api->copy(b->r.dev, i, cell(b, i), cell(b, origin), CELL);
        }
        if (status == REN_OK) {
            status = api->event_record(b->r.dev, i, b->join[i]);
        }
        if (status == REN_OK) {
            status = api->event_wait(b->r.dev, origin, b->join[i]);
        }
    }
    return status;
}

static int cell_is(bench *b, uint32_t lane, unsigned char value)
{
    unsigned char got[CELL];
    rig_download(&b->r, got, cell(b, lane), CELL);
    return got[0] == value && got[CELL - 1] == value;
}

static void capture_subset(bench *b, uint32_t origin, uint32_t subset, ren__graph **graph)
{
    ren_error err = {0};
    RIG_OK(api->graph_begin(b->r.dev, origin));
    RIG_OK(fork_and_join(b, origin, subset));
    ren_status status = api->graph_end(b->r.dev, origin, graph, &err);
    if (status != REN_OK) {
        printf("    graph_end: %d %s\n", (int)status, err.text);
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
}

/* Each of the 31 subsets that hold the origin or not, twice replayed with new values before each.
 * Capturing runs nothing. Fails if a lane is not forked or joined, if a captured command ran at
 * capture, or if a replay uses the first one's events. */
static void replay_subsets(uint64_t seed)
{
    bench b;
    bench_open(&b, seed);
    for (uint32_t subset = 1; subset < (1u << REN__LANES); subset++) {
        const uint32_t origin = subset % REN__LANES;
        ren__graph *graph = NULL;
        unsigned char zero[CELL * REN__LANES] = {0};
        rig_upload(&b.r, b.cells, zero, sizeof zero);
        RIG_OK(api->fill(b.r.dev, origin, cell(&b, origin), 9, CELL));
        rig_finish(&b.r, origin);
        capture_subset(&b, origin, subset, &graph);
        rig_finish(&b.r, origin);
        for (uint32_t i = 0; i < REN__LANES; i++) {
            CU_ASSERT(i == origin || cell_is(&b, i, 0));
        }
        for (unsigned char round = 1; round <= 2; round++) {
            RIG_OK(api->fill(b.r.dev, origin, cell(&b, origin), round, CELL));
            RIG_OK(api->graph_launch(b.r.dev, origin, graph));
            rig_finish(&b.r, origin);
            for (uint32_t i = 0; i < REN__LANES; i++) {
                const int takes_part = i == origin || (subset & (1u << i));
                CU_ASSERT(cell_is(&b, i, takes_part ? round : 0));
            }
        }
        api->graph_destroy(b.r.dev, graph);
    }
    bench_close(&b);
}

static void test_graph_every_subset_of_lanes(void)
{
    replay_subsets(0);
}

static void test_graph_every_subset_of_lanes_seeded(void)
{
    if (api->kind != REN_DEVICE_CPU) {
        ren_test_skip("only the CPU device has a seeded schedule");
        return;
    }
    replay_subsets(77);
}

/* Many launches without a wait between them: each sees what the one before left, on all lanes, and
 * commands after a launch on its lane run after all of the graph. */
static void test_graph_launches_follow_each_other(void)
{
    enum {
        LAUNCHES = 200
    };
    bench b;
    ren__graph *graph = NULL;
    bench_open(&b, 0);
    capture_subset(&b, 4, 0x1f, &graph);
    unsigned char *log = rig_alloc(&b.r, LAUNCHES * CELL);
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        RIG_OK(api->fill(b.r.dev, 4, cell(&b, 4), i & 0xffu, CELL));
        RIG_OK(api->graph_launch(b.r.dev, 4, graph));
        RIG_OK(api->copy(b.r.dev, 4, log + i * CELL, cell(&b, i % 4u), CELL));
    }
    rig_finish(&b.r, 4);
    int wrong = 0;
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        unsigned char got[CELL];
        rig_download(&b.r, got, log + i * CELL, CELL);
        wrong += got[0] != (i & 0xffu) || got[CELL - 1] != (i & 0xffu);
    }
    CU_ASSERT_EQUAL(wrong, 0);
    api->graph_destroy(b.r.dev, graph);
    api->mem_free(b.r.dev, log, LAUNCHES * CELL);
    bench_close(&b);
}

/* Stamps that a graph holds are taken anew by each launch, in the order of its commands, on all
 * lanes of the graph, into device memory, from where a copy behind the launch takes them. Fails if
 * a stamp is a constant of the capture, or is not ordered with the lanes' events. */
static void test_graph_stamps(void)
{
    enum {
        LAUNCHES = 50
    };
    bench b;
    ren__graph *graph = NULL;
    ren_error err = {0};
    bench_open(&b, 0);
    uint64_t *stamps = rig_alloc(&b.r, CELL);
    void *pinned = NULL;
    RIG_OK(api->host_alloc(b.r.dev, LAUNCHES * 3 * sizeof(uint64_t), &pinned));
    uint64_t *at = pinned;
    RIG_OK(api->graph_begin(b.r.dev, 4));
    RIG_OK(api->stamp(b.r.dev, 4, &stamps[0]));
    RIG_OK(api->event_record(b.r.dev, 4, b.fork));
    RIG_OK(api->event_wait(b.r.dev, 1, b.fork));
    RIG_OK(api->stamp(b.r.dev, 1, &stamps[1]));
    RIG_OK(api->event_record(b.r.dev, 1, b.join[1]));
    RIG_OK(api->event_wait(b.r.dev, 4, b.join[1]));
    RIG_OK(api->stamp(b.r.dev, 4, &stamps[2]));
    RIG_OK(api->graph_end(b.r.dev, 4, &graph, &err));
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        RIG_OK(api->graph_launch(b.r.dev, 4, graph));
        RIG_OK(api->copy(b.r.dev, 4, &at[3 * i], stamps, 3 * sizeof(uint64_t)));
    }
    rig_finish(&b.r, 4);
    uint32_t back = 0;
    for (uint32_t i = 1; i < 3 * LAUNCHES; i++) {
        back += at[i] < at[i - 1u];
    }
    CU_ASSERT_EQUAL(back, 0);
    CU_ASSERT(at[0] != 0);
    CU_ASSERT(at[3 * LAUNCHES - 1] > at[0]);
    api->graph_destroy(b.r.dev, graph);
    api->host_free(b.r.dev, pinned, LAUNCHES * 3 * sizeof(uint64_t));
    api->mem_free(b.r.dev, stamps, CELL);
    bench_close(&b);
}

/* A graph may be launched on another lane than the one it was captured on; it is ordered there. */
static void test_graph_launch_on_another_lane(void)
{
    bench b;
    ren__graph *graph = NULL;
    bench_open(&b, 0);
    capture_subset(&b, 0, 0x7, &graph);
    RIG_OK(api->fill(b.r.dev, 2, cell(&b, 0), 42, CELL));
    RIG_OK(api->graph_launch(b.r.dev, 2, graph));
    RIG_OK(api->copy(b.r.dev, 2, cell(&b, 4), cell(&b, 1), CELL));
    rig_finish(&b.r, 2);
    CU_ASSERT(cell_is(&b, 1, 42));
    CU_ASSERT(cell_is(&b, 2, 42));
    CU_ASSERT(cell_is(&b, 4, 42));
    api->graph_destroy(b.r.dev, graph);
    bench_close(&b);
}

/* The lanes work as ever: a value goes round them by events. */
static int lanes_work(bench *b, unsigned char value)
{
    RIG_OK(api->fill(b->r.dev, 0, cell(b, 0), value, CELL));
    RIG_OK(fork_and_join(b, 0, 0x1f));
    rig_finish(&b->r, 0);
    int good = 1;
    for (uint32_t i = 0; i < REN__LANES; i++) {
        good = good && cell_is(b, i, value);
    }
    return good;
}

static void end_badly(bench *b, uint32_t origin)
{
    ren_error err = {0};
    ren__graph *graph = NULL;
    CU_ASSERT_NOT_EQUAL(api->graph_end(b->r.dev, origin, &graph, &err), REN_OK);
    CU_ASSERT_PTR_NULL(graph);
    CU_ASSERT(err.text[0] != '\0');
}

/* A lane with work that the origin does not wait for. Fails if graph_end accepts it, or if the lane
 * stays in the capture afterwards. */
static void test_graph_unjoined_lane(void)
{
    bench b;
    bench_open(&b, 0);
    RIG_OK(api->graph_begin(b.r.dev, 0));
    RIG_OK(api->event_record(b.r.dev, 0, b.fork));
    RIG_OK(api->event_wait(b.r.dev, 3, b.fork));
    RIG_OK(api->fill(b.r.dev, 3, cell(&b, 3), 5, CELL));
    end_badly(&b, 0);
    CU_ASSERT(lanes_work(&b, 11));
    /* Joined, and then more work on it: the join does not cover that. */
    RIG_OK(api->graph_begin(b.r.dev, 0));
    RIG_OK(fork_and_join(&b, 0, 0x2));
    RIG_OK(api->fill(b.r.dev, 1, cell(&b, 1), 5, CELL));
    end_badly(&b, 0);
    CU_ASSERT(lanes_work(&b, 12));
    bench_close(&b);
}

/* A captured lane must not wait for unfinished work from outside. Finished work is no wait on the
 * CPU device; another one may refuse it, too, but then with the capture. Fails if such a wait is
 * taken, so that a replay would come before what it waits for. */
static void test_graph_outside_dependency(void)
{
    bench b;
    gate g = GATE;
    ren__graph *graph = NULL;
    ren_error err = {0};
    bench_open(&b, 0);
    const int is_cpu = b.r.caps.host_reads_device != 0;
    rig_put_gate(&b.r, 2, &g);
    RIG_OK(api->event_record(b.r.dev, 2, b.join[2]));
    RIG_OK(api->graph_begin(b.r.dev, 0));
    const ren_status refused = api->event_wait(b.r.dev, 0, b.join[2]);
    CU_ASSERT(is_cpu ? refused == REN_ERR_INVALID_ARGUMENT : refused < 0);
    CU_ASSERT_NOT_EQUAL(api->fill(b.r.dev, 0, cell(&b, 0), 3, CELL), REN_OK);
    end_badly(&b, 0);
    gate_open(&g);
    rig_finish(&b.r, 2);
    CU_ASSERT(lanes_work(&b, 13));
    RIG_OK(api->event_record(b.r.dev, 2, b.join[2]));
    rig_finish(&b.r, 2);
    RIG_OK(api->graph_begin(b.r.dev, 0));
    const ren_status finished = api->event_wait(b.r.dev, 0, b.join[2]);
    if (finished != REN_OK) {
        CU_ASSERT(!is_cpu);
        end_badly(&b, 0);
        CU_ASSERT(lanes_work(&b, 14));
        bench_close(&b);
        return;
    }
    RIG_OK(api->fill(b.r.dev, 0, cell(&b, 0), 4, CELL));
    CU_ASSERT_EQUAL(api->graph_end(b.r.dev, 0, &graph, &err), REN_OK);
    RIG_OK(api->graph_launch(b.r.dev, 0, graph));
    rig_finish(&b.r, 0);
    CU_ASSERT(cell_is(&b, 0, 4));
    api->graph_destroy(b.r.dev, graph);
    bench_close(&b);
}

/* ------------------------------------------------------------------ failure row 14 */

/* Long enough for a lane that does not wait to be ahead. */
static void be_slow(void *user)
{
    const struct timespec t = {0, 5000000};
    (void)user;
    (void)nanosleep(&t, NULL);
}

static on_lane slowly = {be_slow, NULL};

static ren__graph *end_well(bench *b, uint32_t origin)
{
    ren_error err = {0};
    ren__graph *graph = NULL;
    ren_status status = api->graph_end(b->r.dev, origin, &graph, &err);
    if (status != REN_OK) {
        printf("       graph_end: %d %s\n", (int)status, err.text);
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    return graph;
}

/* Replay with new values of the first cell; afterwards all cells of `same` hold the value. */
static void replay_values(bench *b, ren__graph *graph, uint32_t same)
{
    for (unsigned char round = 1; round <= 3; round++) {
        RIG_OK(api->fill(b->r.dev, 0, b->cells, 0, CELL * REN__LANES));
        RIG_OK(api->fill(b->r.dev, 0, cell(b, 0), round, CELL));
        RIG_OK(api->graph_launch(b->r.dev, 0, graph));
        rig_finish(&b->r, 0);
        for (uint32_t i = 0; i < REN__LANES; i++) {
            CU_ASSERT(!(same & (1u << i)) || cell_is(b, i, round));
        }
    }
    api->graph_destroy(b->r.dev, graph);
}

/* A lane that waits for its own event inside a capture goes on as if it had not. */
static void test_graph_own_event(void)
{
    bench b;
    bench_open(&b, 0);
    ren__event *own = b.join[4];
    RIG_OK(api->graph_begin(b.r.dev, 0));
    RIG_OK(api->event_record(b.r.dev, 0, own));
    RIG_OK(api->event_wait(b.r.dev, 0, own));
    RIG_OK(api->copy(b.r.dev, 0, cell(&b, 1), cell(&b, 0), CELL));
    RIG_OK(api->event_record(b.r.dev, 0, own));
    RIG_OK(api->event_wait(b.r.dev, 1, own));
    RIG_OK(api->event_record(b.r.dev, 1, own));
    RIG_OK(api->event_wait(b.r.dev, 1, own));
    RIG_OK(api->copy(b.r.dev, 1, cell(&b, 2), cell(&b, 1), CELL));
    RIG_OK(api->event_record(b.r.dev, 1, own));
    RIG_OK(api->event_wait(b.r.dev, 1, own));
    RIG_OK(api->event_wait(b.r.dev, 0, own));
    replay_values(&b, end_well(&b, 0), 0x7);
    bench_close(&b);
}

/* One event is recorded on one captured lane and then on another. A wait names the record that was
 * the latest when it was enqueued: lane 3 that of lane 0; lane 2 that of lane 1, which nothing else
 * joins to the origin, so that graph_end refuses the capture if the wait names the older record. */
static void test_graph_event_recorded_on_two_lanes(void)
{
    bench b;
    bench_open(&b, 0);
    ren__event *twice = b.join[4];
    RIG_OK(api->graph_begin(b.r.dev, 0));
    RIG_OK(api->event_record(b.r.dev, 0, b.fork));
    RIG_OK(api->event_wait(b.r.dev, 1, b.fork));
    RIG_OK(api->event_record(b.r.dev, 0, twice));
    RIG_OK(api->event_wait(b.r.dev, 3, twice));
    rig_put(&b.r, 1, &slowly);
    RIG_OK(api->copy(b.r.dev, 1, cell(&b, 1), cell(&b, 0), CELL));
    RIG_OK(api->event_record(b.r.dev, 1, twice));
    RIG_OK(api->event_wait(b.r.dev, 2, twice));
    RIG_OK(api->copy(b.r.dev, 2, cell(&b, 2), cell(&b, 1), CELL));
    RIG_OK(api->copy(b.r.dev, 3, cell(&b, 3), cell(&b, 0), CELL));
    for (uint32_t i = 2; i < 4; i++) {
        RIG_OK(api->event_record(b.r.dev, i, b.join[i]));
        RIG_OK(api->event_wait(b.r.dev, 0, b.join[i]));
    }
    replay_values(&b, end_well(&b, 0), 0xf);

    /* The other way round: lane 2 waits before the second record, so nothing joins lane 1. */
    RIG_OK(api->graph_begin(b.r.dev, 0));
    RIG_OK(api->event_record(b.r.dev, 0, b.fork));
    RIG_OK(api->event_wait(b.r.dev, 1, b.fork));
    RIG_OK(api->event_record(b.r.dev, 0, twice));
    RIG_OK(api->event_wait(b.r.dev, 2, twice));
    RIG_OK(api->copy(b.r.dev, 1, cell(&b, 1), cell(&b, 0), CELL));
    RIG_OK(api->event_record(b.r.dev, 1, twice));
    RIG_OK(api->copy(b.r.dev, 2, cell(&b, 2), cell(&b, 0), CELL));
    RIG_OK(api->event_record(b.r.dev, 2, b.join[2]));
    RIG_OK(api->event_wait(b.r.dev, 0, b.join[2]));
    end_badly(&b, 0);
    CU_ASSERT(lanes_work(&b, 15));
    bench_close(&b);
}

/* Two captured lanes wait for each other. Records name what is past, so this is no cycle: each goes
 * on when both have come to their records. Hangs at replay, or is refused, if it is taken for one;
 * the lane that is not slowed down reads too early if a wait is dropped to break it. */
static void test_graph_lanes_wait_for_each_other(void)
{
    bench b;
    bench_open(&b, 0);
    for (uint32_t slow = 0; slow < 2; slow++) {
        RIG_OK(api->graph_begin(b.r.dev, 0));
        RIG_OK(api->event_record(b.r.dev, 0, b.fork));
        RIG_OK(api->event_wait(b.r.dev, 1, b.fork));
        rig_put(&b.r, slow, &slowly);
        for (uint32_t i = 0; i < 2; i++) {
            RIG_OK(api->copy(b.r.dev, i, cell(&b, 1 + i), cell(&b, 0), CELL));
            RIG_OK(api->event_record(b.r.dev, i, b.join[i]));
        }
        for (uint32_t i = 0; i < 2; i++) {
            RIG_OK(api->event_wait(b.r.dev, i, b.join[1 - i]));
            RIG_OK(api->copy(b.r.dev, i, cell(&b, 3 + i), cell(&b, 2 - i), CELL));
        }
        RIG_OK(api->event_record(b.r.dev, 1, b.join[1]));
        RIG_OK(api->event_wait(b.r.dev, 0, b.join[1]));
        replay_values(&b, end_well(&b, 0), 0x1f);
    }
    bench_close(&b);
}

/* Captures given up after each of their commands, a thousand times: nothing piles up, and the lanes
 * work. */
static void test_graph_given_up_anywhere(void)
{
    bench b;
    bench_open(&b, 0);
    const long blocks = rig_blocks();
    for (unsigned i = 0; i < 1000u / ren_test_slowdown(); i++) {
        ren__graph *graph = NULL;
        RIG_OK(api->graph_begin(b.r.dev, 1));
        RIG_OK(api->event_record(b.r.dev, 1, b.fork));
        RIG_OK(api->event_wait(b.r.dev, 2, b.fork));
        for (unsigned k = 0; k < i % 7u; k++) {
            RIG_OK(api->fill(b.r.dev, 2, cell(&b, 2), k, CELL));
        }
        ren_status status = api->graph_end(b.r.dev, 1, &graph, NULL);
        CU_ASSERT_EQUAL(status == REN_OK, graph != NULL);
        if (i % 7u != 0) {
            CU_ASSERT_NOT_EQUAL(status, REN_OK);
        }
        api->graph_destroy(b.r.dev, graph);
    }
    CU_ASSERT_EQUAL(rig_blocks(), blocks);
    CU_ASSERT(lanes_work(&b, 14));
    bench_close(&b);
}

/* Calls in the wrong order are refused. An open capture does not disturb lanes outside it, and one
 * that is never ended goes away with the device. */
static void test_graph_misuse(void)
{
    bench b;
    ren__graph *graph = NULL;
    ren_error err = {0};
    bench_open(&b, 0);
    CU_ASSERT_NOT_EQUAL(api->graph_end(b.r.dev, 0, &graph, &err), REN_OK);
    CU_ASSERT_PTR_NULL(graph);
    RIG_OK(api->graph_begin(b.r.dev, 0));
    CU_ASSERT_NOT_EQUAL(api->graph_begin(b.r.dev, 0), REN_OK);
    RIG_OK(api->fill(b.r.dev, 3, cell(&b, 3), 21, CELL));
    RIG_OK(api->event_record(b.r.dev, 3, b.join[3]));
    RIG_OK(api->event_sync(b.r.dev, b.join[3]));
    api->graph_destroy(b.r.dev, NULL);
    bench_close(&b);
    CU_ASSERT_EQUAL(rig_blocks(), 0);
}

/* Two graphs over the same events and cells: destroying one leaves the other as it was. */
static void test_graph_outlives_another(void)
{
    bench b;
    ren__graph *one = NULL, *two = NULL;
    bench_open(&b, 0);
    capture_subset(&b, 0, 0x3, &one);
    capture_subset(&b, 0, 0x1f, &two);
    api->graph_destroy(b.r.dev, one);
    for (unsigned char i = 1; i < 100; i++) {
        RIG_OK(api->fill(b.r.dev, 0, cell(&b, 0), i, CELL));
        RIG_OK(api->graph_launch(b.r.dev, 0, two));
    }
    rig_finish(&b.r, 0);
    for (uint32_t i = 0; i < REN__LANES; i++) {
        CU_ASSERT(cell_is(&b, i, 99));
    }
    api->graph_destroy(b.r.dev, two);
    bench_close(&b);
}

/* ------------------------------------------------------------------ update */

/* Capture the subset over other cells and offer it to `graph`; graph_end follows where it must. */
static ren_status update_subset(bench *b, uint32_t origin, uint32_t subset, ren__graph *graph,
                                ren__graph **out)
{
    ren_error err = {0};
    RIG_OK(api->graph_begin(b->r.dev, origin));
    RIG_OK(fork_and_join(b, origin, subset));
    ren_status status = api->graph_update(b->r.dev, origin, graph, &err);
    *out = graph;
    if (status != REN_OK) {
        CU_ASSERT(err.text[0] != '\0');
        RIG_OK(api->graph_end(b->r.dev, origin, out, &err));
        CU_ASSERT_PTR_NOT_EQUAL(*out, graph);
    }
    return status;
}

/* A graph over cells of its own is made to do the same over others, while launches of another graph
 * are under way. Its own launches of before keep what they wrote, those behind it write the new
 * cells and nothing else, and the other graph's are what they would have been. Twenty times back
 * and forth: nothing piles up. Fails if an update takes effect by halves, leaks, or reaches what is
 * in a lane already. */
static void test_graph_update(void)
{
    enum {
        LAUNCHES = 40,
        SUBSET = 0x1f
    };
    bench b;
    ren__graph *graph = NULL, *beside = NULL, *out = NULL;
    bench_open(&b, 0);
    unsigned char *first = b.cells;
    unsigned char *cells[2] = {first, rig_alloc(&b.r, CELL * REN__LANES)};
    unsigned char *own = rig_alloc(&b.r, CELL * REN__LANES);
    unsigned char *log = rig_alloc(&b.r, LAUNCHES * CELL);
    b.cells = own;
    capture_subset(&b, 4, SUBSET, &beside);
    b.cells = cells[0];
    capture_subset(&b, 0, SUBSET, &graph);
    const long blocks = rig_blocks();
    for (unsigned char round = 1; round <= 20; round++) {
        unsigned char *now = cells[round % 2u], *before = cells[(round + 1u) % 2u];
        for (uint32_t i = 0; i < LAUNCHES; i++) { /* in lane 4, and not waited for */
            RIG_OK(api->fill(b.r.dev, 4, own + 4 * CELL, (round + i) & 0xffu, CELL));
            RIG_OK(api->graph_launch(b.r.dev, 4, beside));
            RIG_OK(api->copy(b.r.dev, 4, log + i * CELL, own + i % 5u * CELL, CELL));
        }
        b.cells = now;
        CU_ASSERT_EQUAL(update_subset(&b, 0, SUBSET, graph, &out), REN_OK);
        CU_ASSERT_PTR_EQUAL(out, graph);
        RIG_OK(api->fill(b.r.dev, 0, now, round, CELL));
        RIG_OK(api->fill(b.r.dev, 0, before, 0xee, CELL));
        RIG_OK(api->graph_launch(b.r.dev, 0, graph));
        rig_finish(&b.r, 0);
        rig_finish(&b.r, 4);
        for (uint32_t i = 0; i < REN__LANES; i++) {
            CU_ASSERT(cell_is(&b, i, round));
        }
        b.cells = before;
        for (uint32_t i = 1; i < REN__LANES && round > 1; i++) {
            CU_ASSERT(cell_is(&b, i, (unsigned char)(round - 1)));
        }
        int wrong = 0;
        for (uint32_t i = 0; i < LAUNCHES; i++) {
            unsigned char got[CELL];
            rig_download(&b.r, got, log + i * CELL, CELL);
            wrong += got[0] != ((round + i) & 0xffu) || got[CELL - 1] != ((round + i) & 0xffu);
        }
        CU_ASSERT_EQUAL(wrong, 0);
    }
    CU_ASSERT_EQUAL(rig_blocks(), blocks);
    api->graph_destroy(b.r.dev, graph);
    api->graph_destroy(b.r.dev, beside);
    api->mem_free(b.r.dev, log, LAUNCHES * CELL);
    api->mem_free(b.r.dev, own, CELL * REN__LANES);
    api->mem_free(b.r.dev, cells[1], CELL * REN__LANES);
    b.cells = first;
    bench_close(&b);
}

/* Fewer lanes, more, and the same number with other commands: refused, and the capture ends as a
 * graph of its own. The refused graph may be offered again, and is taken by its like. */
static void test_graph_update_of_another_shape(void)
{
    bench b;
    ren__graph *graph = NULL, *other = NULL;
    ren_error err = {0};
    bench_open(&b, 0);
    capture_subset(&b, 0, 0x7, &graph);
    static const uint32_t subsets[] = {0x3, 0xf, 0x1f};
    for (size_t i = 0; i < REN_TEST_COUNT(subsets); i++) {
        CU_ASSERT_EQUAL(update_subset(&b, 0, subsets[i], graph, &other), REN_ERR_UNSUPPORTED);
        RIG_OK(api->fill(b.r.dev, 0, cell(&b, 0), 31u + (uint32_t)i, CELL));
        RIG_OK(api->graph_launch(b.r.dev, 0, other));
        rig_finish(&b.r, 0);
        for (uint32_t k = 0; k < REN__LANES; k++) {
            CU_ASSERT(!(subsets[i] & (1u << k)) || cell_is(&b, k, (unsigned char)(31 + i)));
        }
        api->graph_destroy(b.r.dev, other);
    }
    /* As many commands, a fill in place of a copy. */
    RIG_OK(api->graph_begin(b.r.dev, 0));
    RIG_OK(fork_and_join(&b, 0, 0x3));
    RIG_OK(api->fill(b.r.dev, 0, cell(&b, 2), 77, CELL));
    CU_ASSERT_EQUAL(api->graph_update(b.r.dev, 0, graph, &err), REN_ERR_UNSUPPORTED);
    RIG_OK(api->graph_end(b.r.dev, 0, &other, &err));
    api->graph_destroy(b.r.dev, other);

    CU_ASSERT_EQUAL(update_subset(&b, 0, 0x7, graph, &other), REN_OK);
    RIG_OK(api->fill(b.r.dev, 0, cell(&b, 0), 55, CELL));
    RIG_OK(api->graph_launch(b.r.dev, 0, graph));
    rig_finish(&b.r, 0);
    CU_ASSERT(cell_is(&b, 1, 55));
    CU_ASSERT(cell_is(&b, 2, 55));
    api->graph_destroy(b.r.dev, graph);
    CU_ASSERT(lanes_work(&b, 15));
    bench_close(&b);
}

/* A capture that is not closed in itself updates nothing and ends with words as ever; without a
 * capture there is nothing to update from. */
static void test_graph_update_misuse(void)
{
    bench b;
    ren__graph *graph = NULL, *other = NULL;
    ren_error err = {0};
    bench_open(&b, 0);
    capture_subset(&b, 0, 0x7, &graph);
    CU_ASSERT_NOT_EQUAL(api->graph_update(b.r.dev, 0, graph, &err), REN_OK);
    CU_ASSERT(err.text[0] != '\0');
    for (int i = 0; i < 20; i++) {
        memset(&err, 0, sizeof err);
        RIG_OK(api->graph_begin(b.r.dev, 0));
        RIG_OK(api->event_record(b.r.dev, 0, b.fork));
        RIG_OK(api->event_wait(b.r.dev, 3, b.fork));
        RIG_OK(api->fill(b.r.dev, 3, cell(&b, 3), 5, CELL));
        CU_ASSERT_NOT_EQUAL(api->graph_update(b.r.dev, 0, graph, &err), REN_OK);
        CU_ASSERT(err.text[0] != '\0');
        end_badly(&b, 0);
        CU_ASSERT(lanes_work(&b, 16));
    }
    CU_ASSERT_EQUAL(update_subset(&b, 0, 0x7, graph, &other), REN_OK);
    api->graph_destroy(b.r.dev, graph);
    bench_close(&b);
    CU_ASSERT_EQUAL(rig_blocks(), 0);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_graph_every_subset_of_lanes", test_graph_every_subset_of_lanes},
        {"test_graph_every_subset_of_lanes_seeded", test_graph_every_subset_of_lanes_seeded},
        {"test_graph_launches_follow_each_other", test_graph_launches_follow_each_other},
        {"test_graph_stamps", test_graph_stamps},
        {"test_graph_launch_on_another_lane", test_graph_launch_on_another_lane},
        {"test_graph_unjoined_lane", test_graph_unjoined_lane},
        {"test_graph_outside_dependency", test_graph_outside_dependency},
        {"test_graph_own_event", test_graph_own_event},
        {"test_graph_event_recorded_on_two_lanes", test_graph_event_recorded_on_two_lanes},
        {"test_graph_lanes_wait_for_each_other", test_graph_lanes_wait_for_each_other},
        {"test_graph_given_up_anywhere", test_graph_given_up_anywhere},
        {"test_graph_misuse", test_graph_misuse},
        {"test_graph_outlives_another", test_graph_outlives_another},
        {"test_graph_update", test_graph_update},
        {"test_graph_update_of_another_shape", test_graph_update_of_another_shape},
        {"test_graph_update_misuse", test_graph_update_misuse},
    };
    api = rig_table();
    return ren_test_main(argc, argv, "conformance/test_device_graph", cases, REN_TEST_COUNT(cases),
                         120);
}
