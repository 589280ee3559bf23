/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_device_ops.c - operations do not depend on where and when they run.
 *
 * Purpose   Bit-identical results from run to run, from lane to lane, alone or beside other lanes,
 *           and with any number of lanes. That the results are right is golden/'s business.
 */
#include "../golden/ops_rig.h"
#include "../support/test.h"

#include <stdlib.h>
#include <string.h>

static const ren__device_api *api;

enum {
    KINDS = 8
};

/* Operations with sums in them, large enough to be split when cpu_threads allows it. */
static ren__op_desc describe(int which)
{
    const int64_t x[4] = {8, 14, 14, 16}, y[4] = {8, 14, 14, 32}, w[4] = {32, 16, 3, 3};
    const int64_t channels = 32, in[2] = {128, 300}, out[2] = {128, 200}, weight[2] = {200, 300};
    static const ren__op_kind kinds[KINDS] = {REN__OP_CONV_FWD,          REN__OP_CONV_BWD_DATA,
                                              REN__OP_CONV_BWD_WEIGHT,   REN__OP_LINEAR_FWD,
                                              REN__OP_LINEAR_BWD_WEIGHT, REN__OP_BIAS_GRAD,
                                              REN__OP_BATCH_NORM_TRAIN,  REN__OP_CHECK};
    ren__op_desc d = ops_desc(kinds[which]);
    d.kernel[0] = d.kernel[1] = 3;
    d.padding[0] = d.padding[1] = 1;
    d.eps = 1e-5f;
    d.alpha = 0.1f;
    switch (kinds[which]) {
    case REN__OP_CONV_FWD:
        ops_shape(&d, 0, 4, x);
        ops_shape(&d, 1, 4, w);
        ops_shape(&d, 3, 4, y);
        break;
    case REN__OP_CONV_BWD_DATA:
        ops_shape(&d, 0, 4, y);
        ops_shape(&d, 1, 4, w);
        ops_shape(&d, 2, 4, x);
        break;
    case REN__OP_CONV_BWD_WEIGHT:
        ops_shape(&d, 0, 4, y);
        ops_shape(&d, 1, 4, x);
        ops_shape(&d, 2, 4, w);
        break;
    case REN__OP_LINEAR_FWD:
        ops_shape(&d, 0, 2, in);
        ops_shape(&d, 1, 2, weight);
        ops_shape(&d, 3, 2, out);
        break;
    case REN__OP_LINEAR_BWD_WEIGHT:
        ops_shape(&d, 0, 2, out);
        ops_shape(&d, 1, 2, in);
        ops_shape(&d, 2, 2, weight);
        break;
    case REN__OP_BIAS_GRAD:
        ops_shape(&d, 0, 4, y);
        ops_shape(&d, 1, 1, &channels);
        break;
    case REN__OP_BATCH_NORM_TRAIN:
        ops_shape(&d, 0, 4, y);
        ops_shape(&d, 5, 4, y);
        for (uint32_t i = 1; i <= 9; i++) {
            if (i != 5) {
                ops_shape(&d, i, 1, &channels);
            }
        }
        break;
    default:
        ops_shape(&d, 0, 4, y);
        break;
    }
    return d;
}

/* One operation with its memory, all operands filled with the same small random numbers. */
typedef struct instance {
    ren__op *op;
    void *address[REN__OPERANDS];
    uint64_t bytes[REN__OPERANDS];
    void *workspace;
    uint64_t workspace_bytes;
} instance;

static void fill_with_numbers(rig *r, void *dst, uint64_t bytes, unsigned long long seed)
{
    float *numbers = malloc(bytes);
    for (uint64_t i = 0; i < bytes / sizeof(float); i++) {
        numbers[i] = (float)((double)(ren_test_random(&seed) >> 40) / 8388608.0 - 1.0);
    }
    rig_upload(r, dst, numbers, bytes);
    free(numbers);
}

static void instance_make(rig *r, uint32_t lane, int which, instance *it)
{
    const ren__op_desc d = describe(which);
    const ren__control control = ops_control();
    ren__op_needs needs;
    memset(it, 0, sizeof *it);
    RIG_OK(api->op_create(r->dev, lane, &d, &it->op, &needs, NULL));
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        it->bytes[i] = ren__tensor_bytes(&d.operand[i]);
        if (d.kind == REN__OP_CHECK && i > 0 && i < 3) {
            it->bytes[i] =
                sizeof(ren__state) > sizeof control ? sizeof(ren__state) : sizeof control;
        }
        if (it->bytes[i]) {
            it->address[i] = rig_alloc(r, it->bytes[i]);
            fill_with_numbers(r, it->address[i], it->bytes[i], 17u + i);
        }
    }
    if (d.kind == REN__OP_CHECK) {
        rig_upload(r, it->address[1], &control, sizeof control);
    }
    it->workspace_bytes = needs.workspace_bytes;
    it->workspace = needs.workspace_bytes ? rig_alloc(r, needs.workspace_bytes) : NULL;
}

static void instance_free(rig *r, instance *it)
{
    api->op_destroy(r->dev, it->op);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (it->address[i]) {
            api->mem_free(r->dev, it->address[i], it->bytes[i]);
        }
    }
    if (it->workspace) {
        api->mem_free(r->dev, it->workspace, it->workspace_bytes);
    }
}

/* A number that stands for all bytes of all operands. */
static uint64_t digest(rig *r, const instance *it)
{
    uint64_t hash = UINT64_C(1469598103934665603);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        unsigned char *host = malloc(it->bytes[i] + 1u);
        if (it->bytes[i]) {
            rig_download(r, host, it->address[i], it->bytes[i]);
        }
        for (uint64_t k = 0; k < it->bytes[i]; k++) {
            hash = (hash ^ host[k]) * UINT64_C(1099511628211);
        }
        free(host);
    }
    return hash;
}

static uint64_t reference(int which, uint32_t cpu_threads)
{
    rig r;
    instance it;
    ren__device_config config = {.struct_size = (uint32_t)sizeof config,
                                 .lanes = 1,
                                 .cpu_threads = cpu_threads,
                                 .deterministic = 1};
    RIG_OK(rig_try_open(&r, api, &config, NULL));
    RIG_OK(api->event_create(r.dev, 1, &r.done));
    instance_make(&r, 0, which, &it);
    RIG_OK(api->op_launch(r.dev, 0, it.op, it.address, it.workspace));
    rig_finish(&r, 0);
    const uint64_t result = digest(&r, &it);
    instance_free(&r, &it);
    rig_close(&r);
    return result;
}

/* All operations on all lanes at once, each with memory of its own, several times over. Fails if
 * operations share scratch memory or oneDNN objects across lanes, or if the split over threads
 * depends on the lane or on how many there are. */
static void same_everywhere(uint32_t cpu_threads)
{
    enum {
        ROUNDS = 4
    };
    rig r;
    static instance it[REN__LANES][KINDS];
    uint64_t wanted[KINDS];
    int wrong = 0;
    ren__device_config config = {.struct_size = (uint32_t)sizeof config,
                                 .lanes = REN__LANES,
                                 .cpu_threads = cpu_threads,
                                 .deterministic = 1};
    for (int k = 0; k < KINDS; k++) {
        wanted[k] = reference(k, cpu_threads);
    }
    RIG_OK(rig_try_open(&r, api, &config, NULL));
    RIG_OK(api->event_create(r.dev, 1, &r.done));
    for (uint32_t lane = 0; lane < REN__LANES; lane++) {
        for (int k = 0; k < KINDS; k++) {
            instance_make(&r, lane, k, &it[lane][k]);
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int k = 0; k < KINDS; k++) {
            for (uint32_t lane = 0; lane < REN__LANES; lane++) {
                instance *one = &it[lane][(k + (int)lane) % KINDS];
                RIG_OK(api->op_launch(r.dev, lane, one->op, one->address, one->workspace));
            }
        }
    }
    for (uint32_t lane = 0; lane < REN__LANES; lane++) {
        rig_finish(&r, lane);
    }
    for (uint32_t lane = 0; lane < REN__LANES; lane++) {
        for (int k = 0; k < KINDS; k++) {
            wrong += digest(&r, &it[lane][k]) != wanted[k];
            instance_free(&r, &it[lane][k]);
        }
    }
    CU_ASSERT_EQUAL(wrong, 0);
    rig_close(&r);
}

static void test_ops_same_on_every_lane(void)
{
    same_everywhere(1);
}

static void test_ops_same_on_every_lane_with_threads(void)
{
    same_everywhere(2);
}

/* One operation, made again and again with the nth allocation failing; how often it failed. With
 * `blocks`, nothing may be left. */
static int create_until_made(rig *r, const ren__op_desc *d, const long *blocks)
{
    int failures = 0;
    for (long n = 1; n < 20; n++) {
        ren__op *op = NULL;
        ren__op_needs needs;
        ren_error err = {0};
        rig_fail_alloc(n);
        ren_status status = api->op_create(r->dev, 0, d, &op, &needs, &err);
        rig_fail_alloc(0);
        if (status == REN_OK) {
            api->op_destroy(r->dev, op);
            break;
        }
        failures++;
        CU_ASSERT_EQUAL(status, REN_ERR_NO_MEMORY);
        CU_ASSERT_PTR_NULL(op);
        CU_ASSERT(!blocks || rig_blocks() == *blocks);
    }
    CU_ASSERT(!blocks || rig_blocks() == *blocks);
    return failures;
}

/* Making an operation changes nothing for the thread that makes it, and one that cannot be made for
 * want of memory leaves nothing; but for what a device keeps from the first one, for later ones of
 * its kind, until it closes. */
static void test_op_create_out_of_memory(void)
{
    rig r;
    rig_open(&r, api, 1, 0);
    const ren__op_desc d = describe(0);
    int failures = create_until_made(&r, &d, NULL);
    const long blocks = rig_blocks();
    (void)create_until_made(&r, &d, &blocks);
    if (api->kind == REN_DEVICE_CPU) {
        CU_ASSERT(failures >= 1);
    }
    rig_close(&r);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_ops_same_on_every_lane", test_ops_same_on_every_lane},
        {"test_ops_same_on_every_lane_with_threads", test_ops_same_on_every_lane_with_threads},
        {"test_op_create_out_of_memory", test_op_create_out_of_memory},
    };
    api = rig_table();
    return ren_test_main(argc, argv, "conformance/test_device_ops", cases, REN_TEST_COUNT(cases),
                         120);
}
