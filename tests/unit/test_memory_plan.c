/* SPDX-License-Identifier: MIT */
/* tests/unit/test_memory_plan.c - static placement: no overlap where there is a conflict, and
 * tight.
 *
 * Purpose   memory/plan.h on random conflict graphs, judged pair by pair, and on random intervals,
 *           where the most that lives at one time is a lower bound to measure the packing by.
 */
#include "../../memory/plan.h"
#include "../support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 200
};

typedef struct graph {
    uint32_t count;
    uint64_t bytes[MOST];
    uint32_t begin[MOST], end[MOST]; /* intervals, when drawn as such */
    unsigned char conflict[MOST][MOST];
    uint64_t offsets[MOST];
    uint64_t total;
    unsigned self_asked; /* conflicts asked of an item with itself */
} graph;

static int graph_conflict(void *user, uint32_t a, uint32_t b)
{
    graph *g = user;
    g->self_asked += a == b;
    return g->conflict[a][b];
}

static ren_status graph_plan(graph *g)
{
    ren__host_allocator host = ren__host_allocator_make(NULL);
    return ren__memory_plan(g->bytes, g->count, graph_conflict, g, &host, g->offsets, &g->total);
}

/* The oracle: pairs of conflicting items that share a byte, items that are not aligned or reach
 * over the end, and a total that nothing reaches. */
static unsigned graph_errors(const graph *g)
{
    unsigned errors = 0;
    uint64_t reached = 0;
    for (uint32_t a = 0; a < g->count; a++) {
        uint64_t end = g->offsets[a] + g->bytes[a];
        errors += g->offsets[a] % 256 != 0;
        errors += end > g->total;
        reached = g->bytes[a] && end > reached ? end : reached;
        for (uint32_t b = 0; b < a; b++) {
            errors += g->conflict[a][b] && g->bytes[a] && g->bytes[b] &&
                      g->offsets[a] < g->offsets[b] + g->bytes[b] && g->offsets[b] < end;
        }
    }
    errors += g->total - reached >= 256;
    return errors;
}

static uint64_t draw_bytes(unsigned long long *random)
{
    uint64_t r = ren_test_random(random);
    return r % 16 == 0 ? 0 : (r >> 8) % (1ull << (6 + r % 15)) + 1;
}

static void draw_conflicts(graph *g, unsigned long long *random, uint64_t percent)
{
    for (uint32_t a = 0; a < g->count; a++) {
        g->bytes[a] = draw_bytes(random);
        for (uint32_t b = 0; b < a; b++) {
            g->conflict[a][b] = ren_test_random(random) % 100 < percent;
            g->conflict[b][a] = g->conflict[a][b];
        }
    }
}

/* Proves that on 400 random conflict graphs of every density no conflicting items overlap, and that
 * a second run gives the same offsets. Fails if a gap is measured wrong, or on any dependence on
 * addresses or chance. */
static void test_plan_random_graphs(void)
{
    static graph g, again;
    unsigned long long random = 1;
    unsigned errors = 0, differences = 0;
    for (unsigned round = 0; round < 400 / ren_test_slowdown(); round++) {
        memset(&g, 0, sizeof g);
        g.count = (uint32_t)(ren_test_random(&random) % (MOST + 1));
        draw_conflicts(&g, &random, round % 11 * 10);
        memcpy(&again, &g, sizeof g);
        CU_ASSERT_EQUAL(graph_plan(&g), REN_OK);
        CU_ASSERT_EQUAL(graph_plan(&again), REN_OK);
        errors += graph_errors(&g) + g.self_asked;
        differences += g.total != again.total ||
                       memcmp(g.offsets, again.offsets, g.count * sizeof g.offsets[0]) != 0;
    }
    CU_ASSERT_EQUAL(errors, 0);
    CU_ASSERT_EQUAL(differences, 0);
}

/* Proves the ends of the range: without conflicts all share offset 0, with all conflicts nothing is
 * shared and nothing wasted but the rounding, and items of 0 bytes take no room. */
static void test_plan_none_and_all(void)
{
    static graph g;
    unsigned long long random = 2;
    memset(&g, 0, sizeof g);
    g.count = MOST;
    draw_conflicts(&g, &random, 0);
    uint64_t largest = 0, sum = 0;
    for (uint32_t i = 0; i < g.count; i++) {
        uint64_t rounded = (g.bytes[i] + 255) / 256 * 256;
        largest = rounded > largest ? rounded : largest;
        sum += rounded;
    }
    CU_ASSERT_EQUAL(graph_plan(&g), REN_OK);
    CU_ASSERT_EQUAL(g.total, largest);
    memset(g.conflict, 1, sizeof g.conflict);
    CU_ASSERT_EQUAL(graph_plan(&g), REN_OK);
    CU_ASSERT_EQUAL(g.total, sum);
    g.count = 0;
    g.total = 7;
    CU_ASSERT_EQUAL(graph_plan(&g), REN_OK);
    CU_ASSERT_EQUAL(g.total, 0);
    g.count = 3;
    memset(g.bytes, 0, sizeof g.bytes);
    CU_ASSERT_EQUAL(graph_plan(&g), REN_OK);
    CU_ASSERT_EQUAL(g.total, 0);
}

/* Intervals: most live about `life` of `count` instants. Returns the most that lives at one time,
 * in rounded bytes, which no placement can beat. */
static uint64_t draw_intervals(graph *g, unsigned long long *random, uint32_t life)
{
    uint64_t bound = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        g->bytes[i] = draw_bytes(random);
        g->begin[i] = (uint32_t)(ren_test_random(random) % g->count);
        g->end[i] = g->begin[i] + 1 + (uint32_t)(ren_test_random(random) % life);
    }
    for (uint32_t i = 0; i < g->count; i++) {
        uint64_t live = 0; /* at the instant begin[i] */
        for (uint32_t k = 0; k < g->count; k++) {
            g->conflict[i][k] = g->begin[i] < g->end[k] && g->begin[k] < g->end[i];
            if (g->begin[k] <= g->begin[i] && g->begin[i] < g->end[k]) {
                live += (g->bytes[k] + 255) / 256 * 256;
            }
        }
        bound = live > bound ? live : bound;
    }
    return bound;
}

/* The forward values of a chain live until their backward task: nested intervals. */
static uint64_t draw_training(graph *g, unsigned long long *random)
{
    uint64_t bound = 0;
    uint32_t layers = g->count / 2;
    for (uint32_t i = 0; i < layers; i++) {
        g->bytes[i] = 4096 + draw_bytes(random);
        g->begin[i] = i;
        g->end[i] = 2 * layers - i;
        g->bytes[layers + i] = g->bytes[i]; /* its gradient: one task and the next */
        g->begin[layers + i] = 2 * layers - i - 1;
        g->end[layers + i] = 2 * layers - i + 1;
    }
    for (uint32_t i = 0; i < 2 * layers; i++) {
        uint64_t live = 0;
        for (uint32_t k = 0; k < 2 * layers; k++) {
            g->conflict[i][k] = g->begin[i] < g->end[k] && g->begin[k] < g->end[i];
            if (g->begin[k] <= g->begin[i] && g->begin[i] < g->end[k]) {
                live += (g->bytes[k] + 255) / 256 * 256;
            }
        }
        bound = live > bound ? live : bound;
    }
    return bound;
}

/* Proves the packing quality that plan.h states: against the heaviest clique, on average at most
 * 1.05 for random intervals and for the lifetimes of a training step, and never above 1.25. Prints
 * the figures. Fails if the order or the choice of the gap gets worse. */
static void test_plan_quality(void)
{
    static graph g;
    static const char *const kinds[] = {"short lives", "long lives", "training step"};
    for (unsigned kind = 0; kind < 3; kind++) {
        unsigned long long random = 3 + kind;
        unsigned rounds = 100 / ren_test_slowdown();
        double sum = 0, worst = 0;
        for (unsigned round = 0; round < rounds; round++) {
            memset(&g, 0, sizeof g);
            g.count = 20 + (uint32_t)(ren_test_random(&random) % (MOST - 20)) / 2 * 2;
            uint64_t bound = kind == 2 ? draw_training(&g, &random)
                                       : draw_intervals(&g, &random, kind == 0 ? 8 : g.count);
            CU_ASSERT_EQUAL(graph_plan(&g), REN_OK);
            CU_ASSERT_EQUAL(graph_errors(&g), 0);
            double ratio = (double)g.total / (double)bound;
            CU_ASSERT(ratio >= 1.0);
            sum += ratio;
            worst = ratio > worst ? ratio : worst;
        }
        printf("  %s: total / bound %.4f on average, %.4f at worst\n", kinds[kind], sum / rounds,
               worst);
        CU_ASSERT(sum / rounds <= 1.05);
        CU_ASSERT(worst <= 1.25);
    }
}

static void *no_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    (void)bytes;
    (void)align;
    return NULL;
}

/* Proves that sizes that do not fit 64 bits, alone or together, and a refused scratch are errors.
 * Fails if a rounding or a sum wraps. */
static void test_plan_errors(void)
{
    static graph g;
    memset(&g, 0, sizeof g);
    g.count = 1;
    g.bytes[0] = UINT64_MAX - 10;
    CU_ASSERT_EQUAL(graph_plan(&g), REN_ERR_NO_DEVICE_MEMORY);
    g.count = 3;
    memset(g.conflict, 1, sizeof g.conflict);
    g.bytes[0] = g.bytes[1] = g.bytes[2] = UINT64_MAX / 2 - 1000;
    CU_ASSERT_EQUAL(graph_plan(&g), REN_ERR_NO_DEVICE_MEMORY);
    g.count = 2;
    CU_ASSERT_EQUAL(graph_plan(&g), REN_OK);
    CU_ASSERT_EQUAL(graph_errors(&g), 0);
    ren__host_allocator broken = ren__host_allocator_make(NULL);
    broken.alloc = no_alloc;
    CU_ASSERT_EQUAL(
        ren__memory_plan(g.bytes, g.count, graph_conflict, &g, &broken, g.offsets, &g.total),
        REN_ERR_NO_MEMORY);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_plan_random_graphs", test_plan_random_graphs},
        {"test_plan_none_and_all", test_plan_none_and_all},
        {"test_plan_quality", test_plan_quality},
        {"test_plan_errors", test_plan_errors},
    };
    return ren_test_main(argc, argv, "test_memory_plan", cases, REN_TEST_COUNT(cases), 60);
}
