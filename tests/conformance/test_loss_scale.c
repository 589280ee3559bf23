/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_loss_scale.c - the loss scale over very many steps (failure row 44).
 *
 * Proves    on every device the scale doubles after every 2,000 good steps in a row up to its
 *           ceiling of 2^24 and stays there for as long as the steps are good; it halves at each
 *           overflow down to its floor of 1 and stays there; a bad step starts the count anew; and
 *           it is never anything between.
 * Fails if  the scale passes its ceiling or its floor, jumps back from it, or counts good steps
 *           that are not in a row.
 * How       ADVANCE, which does this on the device, by itself: test_mixed.c trains with it.
 */
#include "../golden/ops_rig.h"
#include "../support/test.h"

#include <math.h>
#include <string.h>

#define GROWTH  2000u
#define CEILING 16777216.0f
#define BATCH   500u /* commands at once: less than a lane holds on any device */

static const ren__device_api *api;

typedef struct scaled {
    rig r;
    ren__op *op;
    void *address[REN__OPERANDS];
} scaled;

static void begin(scaled *s, uint32_t dynamic)
{
    ren__op_desc d = ops_desc(REN__OP_ADVANCE);
    ren__op_needs needs;
    const ren__control control = ops_control();
    memset(s, 0, sizeof *s);
    d.dynamic_scale = dynamic;
    rig_open(&s->r, api, 1, 0);
    RIG_OK(api->op_create(s->r.dev, 0, &d, &s->op, &needs, NULL));
    CU_ASSERT_EQUAL_FATAL(needs.workspace_bytes, 0);
    s->address[0] = rig_alloc(&s->r, sizeof control);
    s->address[1] = rig_alloc(&s->r, sizeof(ren__state));
    rig_upload(&s->r, s->address[0], &control, sizeof control);
}

static void end(scaled *s)
{
    api->op_destroy(s->r.dev, s->op);
    api->mem_free(s->r.dev, s->address[0], sizeof(ren__control));
    api->mem_free(s->r.dev, s->address[1], sizeof(ren__state));
    rig_close(&s->r);
}

static void put(scaled *s, const ren__state *state)
{
    rig_upload(&s->r, s->address[1], state, sizeof *state);
}

/* So many steps that all end as found_inf says; the state behind the last one. */
static ren__state advance(scaled *s, uint32_t steps)
{
    ren__state state;
    for (uint32_t i = 0; i < steps; i++) {
        RIG_OK(api->op_launch(s->r.dev, 0, s->op, s->address, NULL));
        if (i % BATCH == BATCH - 1u) {
            rig_finish(&s->r, 0);
        }
    }
    rig_finish(&s->r, 0);
    rig_download(&s->r, &state, s->address[1], sizeof state);
    return state;
}

static ren__state start(float scale, uint32_t found_inf)
{
    ren__state state;
    memset(&state, 0, sizeof state);
    state.loss_scale = scale;
    state.found_inf = found_inf;
    return state;
}

/* A million good steps; 24 times 2,000 of them lead to the ceiling. */
static void test_scale_grows_to_its_ceiling(void)
{
    const uint32_t rounds = 450u / ren_test_slowdown() + 50u;
    scaled s;
    begin(&s, 1);
    ren__state state = start(1.0f, 0);
    put(&s, &state);
    for (uint32_t k = 0; k < rounds; k++) {
        state = advance(&s, GROWTH - 1u);
        CU_ASSERT_EQUAL(state.loss_scale, k < 24 ? ldexpf(1.0f, (int)k) : CEILING);
        CU_ASSERT_EQUAL(state.good_steps, GROWTH - 1u);
        state = advance(&s, 1);
        CU_ASSERT_EQUAL(state.loss_scale, k < 23 ? ldexpf(1.0f, (int)k + 1) : CEILING);
        CU_ASSERT_EQUAL(state.good_steps, 0);
        CU_ASSERT_EQUAL(state.applied, (uint64_t)(k + 1u) * GROWTH);
    }
    CU_ASSERT_EQUAL(state.skipped_total, 0);
    /* It leaves the ceiling at an overflow, and comes back. */
    state.found_inf = 1;
    put(&s, &state);
    state = advance(&s, 1);
    CU_ASSERT_EQUAL(state.loss_scale, CEILING * 0.5f);
    state.found_inf = 0;
    put(&s, &state);
    CU_ASSERT_EQUAL(advance(&s, GROWTH).loss_scale, CEILING);
    end(&s);
}

/* Scales that are no powers of two end at the very bounds, too. */
static void test_scale_between_powers_of_two(void)
{
    scaled s;
    begin(&s, 1);
    ren__state state = start(12582912.0f, 0); /* 3/4 of the ceiling */
    put(&s, &state);
    CU_ASSERT_EQUAL(advance(&s, GROWTH).loss_scale, CEILING);
    CU_ASSERT_EQUAL(advance(&s, GROWTH).loss_scale, CEILING);
    state = start(3.0f, 1);
    put(&s, &state);
    CU_ASSERT_EQUAL(advance(&s, 1).loss_scale, 1.5f);
    CU_ASSERT_EQUAL(advance(&s, 1).loss_scale, 1.0f);
    CU_ASSERT_EQUAL(advance(&s, 1).loss_scale, 1.0f);
    end(&s);
}

static void test_scale_falls_to_its_floor(void)
{
    scaled s;
    begin(&s, 1);
    ren__state state = start(CEILING, 1);
    put(&s, &state);
    for (uint32_t k = 1; k <= 300; k++) {
        state = advance(&s, 1);
        CU_ASSERT_EQUAL(state.loss_scale, k < 24 ? ldexpf(1.0f, 24 - (int)k) : 1.0f);
        CU_ASSERT_EQUAL(state.skipped_total, k);
        CU_ASSERT_EQUAL(state.good_steps, 0);
    }
    CU_ASSERT_EQUAL(state.applied, 0);
    state.found_inf = 0;
    put(&s, &state);
    CU_ASSERT_EQUAL(advance(&s, GROWTH - 1u).loss_scale, 1.0f);
    CU_ASSERT_EQUAL(advance(&s, 1).loss_scale, 2.0f);
    end(&s);
}

/* 1,999 good steps, a bad one, 1,999 good ones: no growth until the next. */
static void test_scale_counts_steps_in_a_row(void)
{
    scaled s;
    begin(&s, 1);
    ren__state state = start(1024.0f, 0);
    put(&s, &state);
    state = advance(&s, GROWTH - 1u);
    state.found_inf = 1;
    put(&s, &state);
    state = advance(&s, 1);
    CU_ASSERT_EQUAL(state.loss_scale, 512.0f);
    state.found_inf = 0;
    put(&s, &state);
    CU_ASSERT_EQUAL(advance(&s, GROWTH - 1u).loss_scale, 512.0f);
    CU_ASSERT_EQUAL(advance(&s, 1).loss_scale, 1024.0f);
    end(&s);
}

static void test_scale_that_is_not_dynamic_stays(void)
{
    scaled s;
    begin(&s, 0);
    ren__state state = start(8.0f, 0);
    put(&s, &state);
    CU_ASSERT_EQUAL(advance(&s, GROWTH + 1u).loss_scale, 8.0f);
    state = start(8.0f, 1);
    put(&s, &state);
    CU_ASSERT_EQUAL(advance(&s, 3).loss_scale, 8.0f);
    end(&s);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_scale_grows_to_its_ceiling", test_scale_grows_to_its_ceiling},
        {"test_scale_between_powers_of_two", test_scale_between_powers_of_two},
        {"test_scale_falls_to_its_floor", test_scale_falls_to_its_floor},
        {"test_scale_counts_steps_in_a_row", test_scale_counts_steps_in_a_row},
        {"test_scale_that_is_not_dynamic_stays", test_scale_that_is_not_dynamic_stays},
    };
    api = rig_table();
    return ren_test_main(argc, argv, "conformance/test_loss_scale", cases, REN_TEST_COUNT(cases),
                         120);
}
