/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_conv_lanes.c - convolutions on three lanes at once (failure row 41).
 *
 * Proves    three lanes that train one convolution each, of different shapes, for 1,000 steps with
 *           nothing between them end with the very bits that one lane ends with which trains all
 *           three in turn. Each lane has one workspace, as in a plan.
 * Fails if  lanes share a library handle, its workspace or scratch memory of an operation, a handle
 *           is bound to another lane's stream, or an algorithm depends on the lane.
 * Not here  streams as a plan uses them: test_streams.c.
 */
#include "../golden/ops_rig.h"
#include "../support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHAINS    3u
#define STEPS     1000u
#define LINKS     5u  /* operations of a chain's step */
#define AT_ONCE   40u /* steps between two waits: a lane holds fewer than 1,000 commands */
#define RATE      1e-5f
#define COMP_LANE 1u /* the first of three */

static const ren__device_api *api;

/* A step of a chain makes y of x and w, and moves both against the gradient of |y|^2 / 2. */
enum {
    X,
    W,
    Y,
    DX,
    DW,
    BUFFERS
};

typedef struct shape {
    int64_t x[4], w[4], y[4];
    uint32_t kernel, stride, padding;
} shape;

static const shape shapes[CHAINS] = {
    {{4, 12, 12, 8}, {16, 8, 3, 3}, {4, 12, 12, 16}, 3, 1, 1},
    {{4, 9, 9, 16}, {8, 16, 1, 1}, {4, 9, 9, 8}, 1, 1, 0},
    {{4, 16, 16, 3}, {12, 3, 5, 5}, {4, 8, 8, 12}, 5, 2, 2},
};

typedef struct chain {
    uint32_t lane;
    void *buffer[BUFFERS];
    uint64_t bytes[BUFFERS];
    ren__op *op[LINKS];
    void *address[LINKS][REN__OPERANDS];
} chain;

typedef struct lanes {
    rig r;
    chain chain[CHAINS];
    void *control, *state;
    void *workspace[REN__LANES];
    uint64_t workspace_bytes[REN__LANES];
} lanes;

static uint64_t bytes_of(const int64_t dims[4])
{
    return (uint64_t)(dims[0] * dims[1] * dims[2] * dims[3]) * sizeof(float);
}

static void link_up(lanes *l, chain *c, uint32_t at, const ren__op_desc *d)
{
    ren__op_needs needs;
    RIG_OK(api->op_create(l->r.dev, c->lane, d, &c->op[at], &needs, NULL));
    if (needs.workspace_bytes > l->workspace_bytes[c->lane]) {
        l->workspace_bytes[c->lane] = needs.workspace_bytes;
    }
}

static void link_conv(lanes *l, chain *c, uint32_t at, ren__op_kind kind, const shape *s)
{
    static const int operands[3][4] = {{X, W, -1, Y}, {Y, W, DX, -1}, {Y, X, DW, -1}};
    const int *which = operands[kind == REN__OP_CONV_FWD        ? 0
                                : kind == REN__OP_CONV_BWD_DATA ? 1
                                                                : 2];
    ren__op_desc d = ops_desc(kind);
    for (int i = 0; i < 2; i++) {
        d.kernel[i] = s->kernel;
        d.stride[i] = s->stride;
        d.padding[i] = s->padding;
    }
    for (uint32_t i = 0; i < 4; i++) {
        if (which[i] >= 0) {
            ops_shape(&d, i, 4,
                      which[i] == X || which[i] == DX   ? s->x
                      : which[i] == W || which[i] == DW ? s->w
                                                        : s->y);
            c->address[at][i] = c->buffer[which[i]];
        }
    }
    link_up(l, c, at, &d);
}

static void link_sgd(lanes *l, chain *c, uint32_t at, int gradient, int parameter)
{
    const int64_t count = (int64_t)(c->bytes[parameter] / sizeof(float));
    ren__op_desc d = ops_desc(REN__OP_SGD);
    ops_shape(&d, 0, 1, &count);
    ops_shape(&d, 3, 1, &count);
    c->address[at][0] = c->buffer[gradient];
    c->address[at][1] = l->control;
    c->address[at][2] = l->state;
    c->address[at][3] = c->buffer[parameter];
    link_up(l, c, at, &d);
}

static void make_chain(lanes *l, uint32_t index, uint32_t lane)
{
    const shape *s = &shapes[index];
    chain *c = &l->chain[index];
    unsigned long long seed = 100u + index;
    c->lane = lane;
    c->bytes[X] = c->bytes[DX] = bytes_of(s->x);
    c->bytes[W] = c->bytes[DW] = bytes_of(s->w);
    c->bytes[Y] = bytes_of(s->y);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        float *numbers = malloc(c->bytes[i]);
        CU_ASSERT_PTR_NOT_NULL_FATAL(numbers);
        for (uint64_t k = 0; k < c->bytes[i] / sizeof *numbers; k++) {
            numbers[k] = (float)((double)(ren_test_random(&seed) >> 40) / 8388608.0 - 1.0);
        }
        c->buffer[i] = rig_alloc(&l->r, c->bytes[i]);
        rig_upload(&l->r, c->buffer[i], numbers, c->bytes[i]);
        free(numbers);
    }
    link_conv(l, c, 0, REN__OP_CONV_FWD, s);
    link_conv(l, c, 1, REN__OP_CONV_BWD_WEIGHT, s);
    link_conv(l, c, 2, REN__OP_CONV_BWD_DATA, s);
    link_sgd(l, c, 3, DW, W);
    link_sgd(l, c, 4, DX, X);
}

static void begin(lanes *l, uint32_t count)
{
    ren__device_config config = {.struct_size = (uint32_t)sizeof config,
                                 .lanes = count == 1 ? 1 : REN__LANES,
                                 .cpu_threads = 1,
                                 .deterministic = 1};
    ren__control control = ops_control();
    ren__state state;
    memset(l, 0, sizeof *l);
    memset(&state, 0, sizeof state);
    control.learning_rate = RATE;
    state.loss_scale = state.step_scale = 1.0f;
    RIG_OK(rig_try_open(&l->r, api, &config, NULL));
    RIG_OK(api->event_create(l->r.dev, 1, &l->r.done));
    l->control = rig_alloc(&l->r, sizeof control);
    l->state = rig_alloc(&l->r, sizeof state);
    rig_upload(&l->r, l->control, &control, sizeof control);
    rig_upload(&l->r, l->state, &state, sizeof state);
    for (uint32_t i = 0; i < CHAINS; i++) {
        make_chain(l, i, count == 1 ? 0 : COMP_LANE + i);
    }
    for (uint32_t i = 0; i < REN__LANES; i++) {
        if (l->workspace_bytes[i]) {
            l->workspace[i] = rig_alloc(&l->r, l->workspace_bytes[i]);
        }
    }
}

static void end(lanes *l)
{
    for (uint32_t i = 0; i < CHAINS; i++) {
        chain *c = &l->chain[i];
        for (uint32_t k = 0; k < LINKS; k++) {
            api->op_destroy(l->r.dev, c->op[k]);
        }
        for (uint32_t k = 0; k < BUFFERS; k++) {
            api->mem_free(l->r.dev, c->buffer[k], c->bytes[k]);
        }
    }
    for (uint32_t i = 0; i < REN__LANES; i++) {
        if (l->workspace[i]) {
            api->mem_free(l->r.dev, l->workspace[i], l->workspace_bytes[i]);
        }
    }
    api->mem_free(l->r.dev, l->control, sizeof(ren__control));
    api->mem_free(l->r.dev, l->state, sizeof(ren__state));
    rig_close(&l->r);
}

static void train(lanes *l, uint32_t steps)
{
    for (uint32_t step = 0; step < steps; step++) {
        for (uint32_t k = 0; k < LINKS; k++) {
            for (uint32_t i = 0; i < CHAINS; i++) {
                chain *c = &l->chain[i];
                RIG_OK(api->op_launch(l->r.dev, c->lane, c->op[k], c->address[k],
                                      l->workspace[c->lane]));
            }
        }
        if (step % AT_ONCE == AT_ONCE - 1u || step + 1u == steps) {
            for (uint32_t i = 0; i < CHAINS; i++) {
                rig_finish(&l->r, l->chain[i].lane);
            }
        }
    }
}

static int all_finite(lanes *l, uint32_t index, uint32_t buffer)
{
    const uint64_t bytes = l->chain[index].bytes[buffer];
    float *numbers = malloc(bytes);
    int finite = 1;
    CU_ASSERT_PTR_NOT_NULL_FATAL(numbers);
    rig_download(&l->r, numbers, l->chain[index].buffer[buffer], bytes);
    for (uint64_t i = 0; i < bytes / sizeof *numbers; i++) {
        finite = finite && isfinite(numbers[i]);
    }
    free(numbers);
    return finite;
}

/* How many bytes of a buffer are another in the second. */
static uint64_t differences(lanes *a, lanes *b, uint32_t index, uint32_t buffer)
{
    const uint64_t bytes = a->chain[index].bytes[buffer];
    unsigned char *one = malloc(bytes);
    unsigned char *two = malloc(bytes);
    uint64_t different = 0;
    CU_ASSERT_FATAL(one && two);
    rig_download(&a->r, one, a->chain[index].buffer[buffer], bytes);
    rig_download(&b->r, two, b->chain[index].buffer[buffer], bytes);
    for (uint64_t i = 0; i < bytes; i++) {
        different += one[i] != two[i];
    }
    free(one);
    free(two);
    return different;
}

static void test_three_lanes_train_as_one_does(void)
{
    const uint32_t steps = STEPS / ren_test_slowdown();
    lanes *one = calloc(1, sizeof *one);
    lanes *three = calloc(1, sizeof *three);
    lanes *fresh = calloc(1, sizeof *fresh);
    CU_ASSERT_FATAL(one && three && fresh);
    begin(one, 1);
    train(one, steps);
    begin(three, CHAINS);
    train(three, steps);
    begin(fresh, 1);
    for (uint32_t i = 0; i < CHAINS; i++) {
        for (uint32_t k = 0; k < BUFFERS; k++) {
            CU_ASSERT_EQUAL(differences(one, three, i, k), 0);
            CU_ASSERT(all_finite(one, i, k));
        }
        /* They moved: nothing at all would be the same as well. */
        CU_ASSERT(differences(one, fresh, i, W) > 0);
        CU_ASSERT(differences(one, fresh, i, X) > 0);
    }
    end(one);
    end(three);
    end(fresh);
    free(one);
    free(three);
    free(fresh);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_three_lanes_train_as_one_does", test_three_lanes_train_as_one_does},
    };
    api = rig_table();
    return ren_test_main(argc, argv, "conformance/test_conv_lanes", cases, REN_TEST_COUNT(cases),
                         120);
}
