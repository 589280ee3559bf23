/* SPDX-License-Identifier: MIT */
/* tests/unit/test_diff.c - the tasks that differentiation lists, and their streams.
 *
 * Looks at the task list and the STATIC plan of small models, without running anything: which tasks
 * there are, on which stream the table puts them, what is left out, and what is fused on a device
 * that can. Whether the device under test can does not matter here.
 */
#include "../golden/nets.h"
#include "../support/runtime.h"
#include "../support/test.h"

#include "../../libren/graph/internal.h"
#include "../../libren/train/diff.h"

#include <string.h>

typedef struct listing {
    ren__diff d;
    ren__task_graph *g;
    ren__plan *plan;
} listing;

static ren_runtime *rt;

#define EVERY_FUSION 0x1ffu

static ren_dtype mixed;  /* precision of the next listing */
static int64_t rows = 4; /* and its batch */

/* `frozen`, by parameter, may be NULL. */
static void list_fused(listing *l, ren_model *m, ren_tensor target, uint32_t training,
                       uint32_t fusions, const uint8_t *frozen)
{
    ren__plan_config config = {.policy = REN__POLICY_STATIC,
                               .lanes = 5,
                               .lane_of = {0, 1, 2, 3, 4},
                               .origin = REN_STREAM_UPDATE,
                               .reuse = 1};
    ren_error err;
    memset(l, 0, sizeof *l);
    CU_ASSERT_EQUAL_FATAL(ren_infer_prepare(m, target, NULL), REN_OK); /* lays parameters out */
    CU_ASSERT_EQUAL_FATAL(ren__diff_init(&l->d, m, ren__model_node_of(m, target), training, &err),
                          REN_OK);
    CU_ASSERT_EQUAL_FATAL(ren__task_graph_create(m->allocator, &l->g), REN_OK);
    l->d.fusions = fusions;
    l->d.precision = mixed;
    if (frozen) {
        ren__diff_freeze(&l->d, frozen);
    }
    ren__diff_emit(&l->d, l->g, rows);
    CU_ASSERT_EQUAL_FATAL(ren__plan_build(l->g, &config, m->allocator, &l->plan, &err), REN_OK);
}

static void list_tasks(listing *l, ren_model *m, ren_tensor target, uint32_t training)
{
    list_fused(l, m, target, training, 0, NULL);
}

static void drop_listing(listing *l)
{
    ren__plan_destroy(l->plan);
    ren__task_graph_destroy(l->g);
    ren__diff_deinit(&l->d);
}

static const ren__task *task_at(const listing *l, uint32_t i)
{
    return &((const ren__task *)l->g->tasks.items)[i];
}

/* Tasks of this kind (of the layer `name`, unless NULL) on this stream. */
static uint32_t count(const listing *l, ren__op_kind kind, const char *name, ren_stream stream)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->g->tasks.count; i++) {
        const ren__task *t = task_at(l, i);
        n += t->op.kind == kind && (!name || strcmp(t->name, name) == 0) &&
             ren__plan_task_stream(l->plan, i) == stream;
    }
    return n;
}

/* Tasks of a kind, wherever. */
static uint32_t total(const listing *l, ren__op_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        n += count(l, kind, NULL, (ren_stream)i);
    }
    return n;
}

static uint32_t find(const listing *l, ren__op_kind kind, const char *name)
{
    for (uint32_t i = 0; i < l->g->tasks.count; i++) {
        if (task_at(l, i)->op.kind == kind && strcmp(task_at(l, i)->name, name) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

static uint32_t edge_between(const listing *l, uint32_t a, uint32_t b)
{
    const ren__array *lists[2] = {&l->plan->data, &l->plan->order};
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < lists[k]->count; i++) {
            const ren__edge *e = &ren__plan_edges(lists[k])[i];
            if ((e->from == a && e->to == b) || (e->from == b && e->to == a)) {
                return 1;
            }
        }
    }
    return 0;
}

/* The backward pass of a linear layer forks: weight gradient on COMP_1, bias gradient on COMP_2,
 * data gradient on COMP_3, no edge between them; the first layer has no data gradient at all. */
static void test_linear_backward_forks(void)
{
    listing l;
    net n;
    net_build(&n, rt, NET_MLP, 4, 1);
    list_tasks(&l, n.model, n.loss, 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_LINEAR_FWD, NULL, REN_STREAM_COMP_1), 3);
    CU_ASSERT_EQUAL(count(&l, REN__OP_LINEAR_BWD_WEIGHT, NULL, REN_STREAM_COMP_1), 3);
    CU_ASSERT_EQUAL(count(&l, REN__OP_BIAS_GRAD, NULL, REN_STREAM_COMP_2), 3);
    CU_ASSERT_EQUAL(count(&l, REN__OP_LINEAR_BWD_DATA, NULL, REN_STREAM_COMP_3), 2);
    CU_ASSERT_EQUAL(count(&l, REN__OP_LINEAR_BWD_DATA, "l1", REN_STREAM_COMP_3), 0);
    CU_ASSERT_EQUAL(count(&l, REN__OP_ACT_FWD, NULL, REN_STREAM_COMP_3), 2);
    CU_ASSERT_EQUAL(count(&l, REN__OP_XENT_FWD, NULL, REN_STREAM_COMP_1), 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_XENT_BWD, NULL, REN_STREAM_COMP_1), 1);
    CU_ASSERT_EQUAL(l.g->tasks.count, 3 + 3 + 3 + 2 + 2 + 2 + 2);
    uint32_t dw = find(&l, REN__OP_LINEAR_BWD_WEIGHT, "l2");
    uint32_t db = find(&l, REN__OP_BIAS_GRAD, "l2");
    uint32_t dx = find(&l, REN__OP_LINEAR_BWD_DATA, "l2");
    CU_ASSERT_FATAL(dw != UINT32_MAX && db != UINT32_MAX && dx != UINT32_MAX);
    CU_ASSERT_FALSE(edge_between(&l, dw, db));
    CU_ASSERT_FALSE(edge_between(&l, dw, dx));
    CU_ASSERT_FALSE(edge_between(&l, db, dx));
    drop_listing(&l);
    ren_model_destroy(n.model);
}

/* Convolutions fork the same way; pooling and batch norm are on COMP_2. */
static void test_conv_backward_forks(void)
{
    listing l;
    net n;
    net_build(&n, rt, NET_LENET, 4, 1);
    list_tasks(&l, n.model, n.loss, 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_CONV_FWD, NULL, REN_STREAM_COMP_1), 2);
    CU_ASSERT_EQUAL(count(&l, REN__OP_CONV_BWD_WEIGHT, NULL, REN_STREAM_COMP_1), 2);
    CU_ASSERT_EQUAL(count(&l, REN__OP_CONV_BWD_DATA, NULL, REN_STREAM_COMP_3), 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_MAX_POOL_FWD, NULL, REN_STREAM_COMP_2), 2);
    CU_ASSERT_EQUAL(count(&l, REN__OP_MAX_POOL_BWD, NULL, REN_STREAM_COMP_2), 2);
    drop_listing(&l);
    ren_model_destroy(n.model);
    net_build(&n, rt, NET_TINYRES, 4, 1);
    list_tasks(&l, n.model, n.loss, 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_BATCH_NORM_TRAIN, NULL, REN_STREAM_COMP_2), 6);
    CU_ASSERT_EQUAL(count(&l, REN__OP_BATCH_NORM_BWD, NULL, REN_STREAM_COMP_2), 6);
    /* Two inputs of residual blocks have two readers each: one sum each. */
    CU_ASSERT_EQUAL(count(&l, REN__OP_ADD, NULL, REN_STREAM_COMP_3), 2 + 2);
    drop_listing(&l);
    /* Inference has none of the backward pass, and its batch norms are in the convolutions. */
    list_tasks(&l, n.model, n.logits, 0);
    CU_ASSERT_EQUAL(total(&l, REN__OP_BATCH_NORM_EVAL), 0);
    CU_ASSERT_EQUAL(count(&l, REN__OP_CONV_FWD, NULL, REN_STREAM_COMP_1), 6);
    CU_ASSERT_EQUAL(l.g->tasks.count, 6 + 5 + 2 + 1 + 1);
    drop_listing(&l);
    ren_model_destroy(n.model);
}

/* What the loss does not need is not computed: a second head, an input nobody reads; and a dropout
 * layer without parameters before it has no backward task. */
static void test_only_what_is_needed(void)
{
    int64_t dims[2] = {4, 20};
    ren_linear_options o = ren_linear_options_default();
    ren_model *m = NULL;
    listing l;
    o.units = 10;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    (void)ren_input(m, "spare", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor dropped = ren_dropout(m, "drop", ren_relu(m, "early", x), NULL);
    ren_tensor h = ren_linear(m, "used", dropped, &o);
    (void)ren_linear(m, "head", h, &o);
    ren_tensor loss = ren_softmax_cross_entropy(m, "loss", h, y, NULL);
    list_tasks(&l, m, loss, 1);
    CU_ASSERT_EQUAL(find(&l, REN__OP_LINEAR_FWD, "head"), UINT32_MAX);
    CU_ASSERT_EQUAL(count(&l, REN__OP_DROPOUT_FWD, NULL, REN_STREAM_COMP_2), 1);
    CU_ASSERT_EQUAL(find(&l, REN__OP_DROPOUT_BWD, "drop"), UINT32_MAX);
    CU_ASSERT_EQUAL(find(&l, REN__OP_ACT_BWD, "early"), UINT32_MAX);
    CU_ASSERT_EQUAL(find(&l, REN__OP_LINEAR_BWD_DATA, "used"), UINT32_MAX);
    CU_ASSERT_EQUAL(l.d.param_used[0], 1);
    CU_ASSERT_EQUAL(l.d.param_used[2], 0);
    drop_listing(&l);
    ren_model_destroy(m);
}

/* Sixteen tensors are more than one join or split takes: two levels, every input once. */
static void test_concat_of_sixteen(void)
{
    int64_t dims[2] = {4, 3};
    ren_linear_options o = ren_linear_options_default();
    ren_tensor parts[16];
    ren_model *m = NULL;
    listing l;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    for (uint32_t i = 0; i < 16; i++) {
        char name[8] = {'p', (char)('a' + i), '\0'};
        o.units = 1 + i;
        parts[i] = ren_linear(m, name, x, &o);
    }
    ren_tensor joined = ren_concat(m, "join", parts, 16);
    ren_tensor loss = ren_softmax_cross_entropy(m, "loss", joined, y, NULL);
    CU_ASSERT_EQUAL_FATAL(ren_model_status(m, NULL), REN_OK);
    list_tasks(&l, m, loss, 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_CONCAT, NULL, REN_STREAM_COMP_3), 2);
    CU_ASSERT_EQUAL(count(&l, REN__OP_SPLIT, NULL, REN_STREAM_COMP_3), 2);
    CU_ASSERT_EQUAL(count(&l, REN__OP_LINEAR_BWD_WEIGHT, NULL, REN_STREAM_COMP_1), 16);
    drop_listing(&l);
    /* And it runs: the joined values are those of the parts, in order. */
    float in[12], all[4 * 136], one[4 * 16];
    ren_job job;
    for (uint32_t i = 0; i < 12; i++) {
        in[i] = (float)i - 5.0f;
    }
    ren_binding binding = {"x", in, sizeof in};
    ren_infer_desc desc = ren_infer_desc_default();
    desc.bindings = &binding;
    desc.binding_count = 1;
    desc.deliver = REN_DELIVER_NONE;
    desc.output = joined;
    desc.out_data = all;
    desc.out_bytes = sizeof all;
    CU_ASSERT_EQUAL(ren_infer(m, &desc, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, job, UINT64_C(10000000000)), REN_OK);
    for (uint32_t i = 0, at = 0; i < 16; at += ++i) {
        desc.output = parts[i];
        desc.out_data = one;
        desc.out_bytes = 4 * (1 + i) * sizeof(float);
        CU_ASSERT_EQUAL(ren_infer(m, &desc, &job), REN_OK);
        CU_ASSERT_EQUAL(ren_wait(rt, job, UINT64_C(10000000000)), REN_OK);
        for (uint32_t r = 0; r < 4; r++) {
            CU_ASSERT_EQUAL(memcmp(all + r * 136 + at, one + r * (1 + i), (1 + i) * 4), 0);
        }
    }
    ren_model_destroy(m);
}

/* A target that depends on parameters is refused, and the text says which. */
static void test_regression_target(void)
{
    int64_t dims[2] = {4, 3};
    ren_linear_options o = ren_linear_options_default();
    ren_trainer *t = NULL;
    ren_model *m = NULL;
    ren_error err;
    o.units = 3;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor goal = ren_linear(m, "goal", x, &o);
    ren_tensor loss = ren_mse(m, "loss", ren_linear(m, "guess", x, &o), goal);
    CU_ASSERT_EQUAL(ren_trainer_create(m, loss, NULL, &t, &err), REN_ERR_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "goal"));
    ren_model_destroy(m);
}

/* A sum of losses has one backward task for each loss that a gradient comes from and none for
 * itself; a loss whose head and trunk are frozen has none. A loss that comes in twice is refused,
 * and the text says which. */
static void test_sum_of_losses(void)
{
    int64_t dims[2] = {4, 3};
    uint8_t frozen[8] = {1, 1, 0};
    ren_linear_options o = ren_linear_options_default();
    ren_trainer *t = NULL;
    ren_model *m = NULL;
    ren_error err;
    listing l;
    o.units = 3;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor goal = ren_input(m, "goal", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor a = ren_mse(m, "mse", ren_linear(m, "a", x, &o), goal);
    ren_tensor b = ren_huber(m, "huber", ren_linear(m, "b", x, &o), goal, NULL);
    ren_tensor c = ren_softmax_cross_entropy(m, "entropy", ren_linear(m, "c", x, &o), y, NULL);
    ren_tensor ab = ren_add(m, "ab", a, b);
    ren_tensor all = ren_add(m, "all", c, ab);
    ren_tensor twice = ren_add(m, "twice", all, ren_add(m, "bb", b, b));
    CU_ASSERT_EQUAL_FATAL(ren_model_status(m, NULL), REN_OK);
    list_tasks(&l, m, all, 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_ADD, NULL, REN_STREAM_COMP_3), 2);
    CU_ASSERT_EQUAL(count(&l, REN__OP_MSE_BWD, NULL, REN_STREAM_COMP_1), 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_HUBER_BWD, NULL, REN_STREAM_COMP_1), 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_XENT_BWD, NULL, REN_STREAM_COMP_1), 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_LINEAR_BWD_WEIGHT, NULL, REN_STREAM_COMP_1), 3);
    drop_listing(&l);
    list_fused(&l, m, all, 1, 0, frozen);
    CU_ASSERT_EQUAL(count(&l, REN__OP_MSE_FWD, NULL, REN_STREAM_COMP_1), 1);
    CU_ASSERT_EQUAL(count(&l, REN__OP_MSE_BWD, NULL, REN_STREAM_COMP_1), 0);
    CU_ASSERT_EQUAL(count(&l, REN__OP_HUBER_BWD, NULL, REN_STREAM_COMP_1), 1);
    drop_listing(&l);
    CU_ASSERT_EQUAL(ren_trainer_create(m, twice, NULL, &t, &err), REN_ERR_UNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "huber"));
    CU_ASSERT_EQUAL(ren_trainer_create(m, all, NULL, &t, &err), REN_OK);
    ren_trainer_destroy(t);
    ren_model_destroy(m);
}

/* ------------------------------------------------------------------ fusion */

/* Operands that the task of this kind and layer has, a bit each. */
static uint32_t operands(const listing *l, ren__op_kind kind, const char *name)
{
    uint32_t task = find(l, kind, name);
    uint32_t bits = 0;
    CU_ASSERT_NOT_EQUAL_FATAL(task, UINT32_MAX);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        uint32_t is_there = task_at(l, task)->op.operand[i].rank != 0;
        CU_ASSERT_EQUAL(is_there, task_at(l, task)->operand[i] != REN__NO_VALUE);
        bits |= is_there << i;
    }
    return bits;
}

static const ren__op_desc *op_at(const listing *l, ren__op_kind kind, const char *name)
{
    uint32_t task = find(l, kind, name);
    CU_ASSERT_NOT_EQUAL_FATAL(task, UINT32_MAX);
    return &task_at(l, task)->op;
}

static int is_fused(const listing *l, ren__op_kind kind, const char *name)
{
    return op_at(l, kind, name)->fused_activation == 1;
}

/* The value that an operand of the task reads or writes. */
static uint32_t value_at(const listing *l, ren__op_kind kind, const char *name, uint32_t operand)
{
    uint32_t task = find(l, kind, name);
    CU_ASSERT_NOT_EQUAL_FATAL(task, UINT32_MAX);
    return task_at(l, task)->operand[operand];
}

/* Linear layers take their ReLU. Bias gradients come out of the weight gradients of small layers
 * and out of the gates of large ones; a layer without a gate has its weight gradient alone. Each
 * bit by itself gives the parts that it is about and no others. */
static void test_linear_fuses(void)
{
    listing l;
    net n;
    net_build(&n, rt, NET_MLP, 4, 1);
    list_fused(&l, n.model, n.loss, 1, EVERY_FUSION, NULL);
    CU_ASSERT_EQUAL(l.g->tasks.count, 3 + 2 + 2 + (1 + 1 + 1) + (1 + 1));
    CU_ASSERT_EQUAL(total(&l, REN__OP_ACT_FWD), 0);
    CU_ASSERT_EQUAL(total(&l, REN__OP_BIAS_GRAD), 0);
    CU_ASSERT_TRUE(is_fused(&l, REN__OP_LINEAR_FWD, "l1"));
    CU_ASSERT_TRUE(is_fused(&l, REN__OP_LINEAR_FWD, "l2"));
    CU_ASSERT_FALSE(is_fused(&l, REN__OP_LINEAR_FWD, "l3"));
    CU_ASSERT_EQUAL(operands(&l, REN__OP_ACT_BWD, "r2"), 0xdu); /* dy, y > dx */
    CU_ASSERT_EQUAL(operands(&l, REN__OP_LINEAR_BWD_WEIGHT, "l2"), 0xfu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_LINEAR_BWD_WEIGHT, "l3"), 0xfu);
    /* The next layer reads what the fused one wrote, and both gradients come from the gate. */
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_LINEAR_FWD, "l1", 3),
                    value_at(&l, REN__OP_LINEAR_FWD, "l2", 0));
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_ACT_BWD, "r2", 2),
                    value_at(&l, REN__OP_LINEAR_FWD, "l2", 3));
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_ACT_BWD, "r2", 3),
                    value_at(&l, REN__OP_LINEAR_BWD_DATA, "l2", 0));
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_ACT_BWD, "r2", 3),
                    value_at(&l, REN__OP_LINEAR_BWD_WEIGHT, "l2", 0));
    drop_listing(&l);
    rows = 16384; /* times 32 units */
    list_fused(&l, n.model, n.loss, 1, EVERY_FUSION, NULL);
    rows = 4;
    CU_ASSERT_EQUAL(total(&l, REN__OP_BIAS_GRAD), 0);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_ACT_BWD, "r2"), 0x1du); /* and db */
    CU_ASSERT_EQUAL(operands(&l, REN__OP_LINEAR_BWD_WEIGHT, "l2"), 0x7u);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_LINEAR_BWD_WEIGHT, "l3"), 0xfu);
    drop_listing(&l);
    list_fused(&l, n.model, n.loss, 1, REN__FUSE_ACT_BIAS, NULL);
    CU_ASSERT_EQUAL(total(&l, REN__OP_ACT_FWD), 2);
    CU_ASSERT_EQUAL(total(&l, REN__OP_BIAS_GRAD), 1);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_ACT_BWD, "r1"), 0x1du);
    drop_listing(&l);
    list_fused(&l, n.model, n.loss, 1, REN__FUSE_LINEAR_ACT, NULL);
    CU_ASSERT_EQUAL(total(&l, REN__OP_ACT_FWD), 0);
    CU_ASSERT_EQUAL(total(&l, REN__OP_BIAS_GRAD), 3);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_ACT_BWD, "r1"), 0xdu);
    drop_listing(&l);
    list_fused(&l, n.model, n.loss, 1, REN__FUSE_WEIGHT_BIAS, NULL);
    CU_ASSERT_EQUAL(total(&l, REN__OP_BIAS_GRAD), 0);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_LINEAR_BWD_WEIGHT, "l1"), 0xfu);
    drop_listing(&l);
    ren_model_destroy(n.model);
    net_build(&n, rt, NET_LENET, 4, 1);
    list_fused(&l, n.model, n.loss, 1, EVERY_FUSION, NULL);
    CU_ASSERT_TRUE(is_fused(&l, REN__OP_CONV_FWD, "c1"));
    CU_ASSERT_TRUE(is_fused(&l, REN__OP_CONV_FWD, "c2"));
    CU_ASSERT_EQUAL(total(&l, REN__OP_ACT_FWD), 0);
    CU_ASSERT_EQUAL(total(&l, REN__OP_BIAS_GRAD), 0);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_ACT_BWD, "r1"), 0x1du); /* of a convolution */
    drop_listing(&l);
    ren_model_destroy(n.model);
}

/* Batch norms take ReLUs and sums; of two at one sum the later does, and the other one is added.
 * The gate is the bias without a sum and the output with one. */
static void test_batch_norm_fuses(void)
{
    listing l;
    net n;
    net_build(&n, rt, NET_TINYRES, 4, 1);
    list_fused(&l, n.model, n.loss, 1, EVERY_FUSION, NULL);
    CU_ASSERT_EQUAL(total(&l, REN__OP_BATCH_NORM_TRAIN), 6);
    CU_ASSERT_EQUAL(total(&l, REN__OP_BATCH_NORM_BWD), 6);
    CU_ASSERT_EQUAL(total(&l, REN__OP_ACT_FWD), 0);
    CU_ASSERT_EQUAL(total(&l, REN__OP_ACT_BWD), 0);
    CU_ASSERT_EQUAL(total(&l, REN__OP_ADD), 0);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_TRAIN, "sbn"), 0x3ffu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_BWD, "sbn"), 0xcffu);
    /* Two readers, two gradients: of the sum behind the block and of its first convolution. */
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_BATCH_NORM_BWD, "sbn", 0),
                    value_at(&l, REN__OP_BATCH_NORM_BWD, "b1.bn2", 9));
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_BATCH_NORM_BWD, "sbn", 11),
                    value_at(&l, REN__OP_CONV_BWD_DATA, "b1.conv1", 2));
    CU_ASSERT_TRUE(is_fused(&l, REN__OP_BATCH_NORM_BWD, "sbn"));
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_TRAIN, "b1.bn2"), 0x7ffu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_BWD, "b1.bn2"), 0xbffu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_BWD, "b1.bn1"), 0x4ffu);
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_BATCH_NORM_TRAIN, "b1.bn2", 10),
                    value_at(&l, REN__OP_BATCH_NORM_TRAIN, "sbn", 5));
    /* b2.sum adds b2.bn2 and, later in the model, b2.dbn. */
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_TRAIN, "b2.bn2"), 0x3ffu);
    CU_ASSERT_FALSE(is_fused(&l, REN__OP_BATCH_NORM_TRAIN, "b2.bn2"));
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_TRAIN, "b2.dbn"), 0x7ffu);
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_BATCH_NORM_TRAIN, "b2.dbn", 10),
                    value_at(&l, REN__OP_BATCH_NORM_TRAIN, "b2.bn2", 5));
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_BATCH_NORM_BWD, "b2.dbn", 9),
                    value_at(&l, REN__OP_BATCH_NORM_BWD, "b2.bn2", 0));
    CU_ASSERT_EQUAL(value_at(&l, REN__OP_BATCH_NORM_BWD, "b2.dbn", 8),
                    value_at(&l, REN__OP_BATCH_NORM_TRAIN, "b2.dbn", 5));
    drop_listing(&l);
    /* Sums without ReLUs behind other norms, and ReLUs without sums. */
    list_fused(&l, n.model, n.loss, 1, REN__FUSE_NORM_ACT, NULL);
    CU_ASSERT_EQUAL(total(&l, REN__OP_ACT_FWD), 2);
    CU_ASSERT_EQUAL(total(&l, REN__OP_ADD), 2 + 2);
    drop_listing(&l);
    list_fused(&l, n.model, n.loss, 1, REN__FUSE_NORM_ADD, NULL);
    CU_ASSERT_EQUAL(total(&l, REN__OP_ACT_FWD), 3);
    CU_ASSERT_EQUAL(total(&l, REN__OP_ADD), 2);
    drop_listing(&l);
    list_fused(&l, n.model, n.logits, 0, EVERY_FUSION, NULL);
    /* Without gradients only the two that take sums are left, the others are folded. */
    CU_ASSERT_EQUAL(l.g->tasks.count, 6 + 2 + 1 + 1);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_EVAL, "b1.bn2"), 0x43fu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_EVAL, "b2.dbn"), 0x43fu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_CONV_FWD, "stem"), 0xfu);
    CU_ASSERT_TRUE(is_fused(&l, REN__OP_CONV_FWD, "stem"));
    CU_ASSERT_EQUAL(operands(&l, REN__OP_CONV_FWD, "b1.conv2"), 0xbu);
    CU_ASSERT_NOT_EQUAL(value_at(&l, REN__OP_CONV_FWD, "stem", 1),
                        l.d.param_values[n.model->nodes[1 + 1]->params[0]]);
    drop_listing(&l);
    ren_model_destroy(n.model);
}

/* A sum at the end without a ReLU: both sides share the gradient as it is. */
static void test_sum_without_activation_fuses(void)
{
    int64_t dims[2] = {4, 8};
    ren_linear_options o = ren_linear_options_default();
    ren_model *m = NULL;
    listing l;
    o.units = 8;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor a = ren_linear(m, "a", x, &o);
    ren_tensor sum = ren_add(m, "sum", a, ren_batch_norm(m, "n", a, NULL));
    ren_tensor logits = ren_linear(m, "b", sum, &o);
    ren_tensor loss = ren_softmax_cross_entropy(m, "loss", logits, y, NULL);
    CU_ASSERT_EQUAL_FATAL(ren_model_status(m, NULL), REN_OK);
    list_fused(&l, m, loss, 1, EVERY_FUSION, NULL);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_TRAIN, "n"), 0x7ffu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_BWD, "n"), 0xffu);
    CU_ASSERT_FALSE(is_fused(&l, REN__OP_BATCH_NORM_BWD, "n"));
    CU_ASSERT_EQUAL(total(&l, REN__OP_ADD), 1); /* the gradient of a, from norm and sum */
    drop_listing(&l);
    ren_model_destroy(m);
}

/* What must exist is not fused away: a tensor with two readers, one that inference asks for, one
 * behind which something else comes first, and a sum of a tensor with itself. */
static void test_what_does_not_fuse(void)
{
    int64_t dims[2] = {4, 8};
    ren_linear_options o = ren_linear_options_default();
    ren_model *m = NULL;
    listing l;
    o.units = 8;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor twice = ren_linear(m, "twice", x, &o);
    ren_tensor h = ren_add(m, "sum", ren_relu(m, "r1", twice), twice);
    ren_tensor dropped = ren_dropout(m, "drop", ren_linear(m, "l2", h, &o), NULL);
    h = ren_linear(m, "l3", ren_relu(m, "r2", dropped), &o);
    h = ren_tanh(m, "tanh", h);
    ren_tensor norm = ren_batch_norm(m, "norm", ren_linear(m, "l4", h, &o), NULL);
    ren_tensor own = ren_relu(m, "r4", ren_add(m, "own", norm, norm));
    ren_tensor loss = ren_softmax_cross_entropy(m, "loss", own, y, NULL);
    CU_ASSERT_EQUAL_FATAL(ren_model_status(m, NULL), REN_OK);
    list_fused(&l, m, loss, 1, EVERY_FUSION & ~(uint32_t)REN__FUSE_WEIGHT_BIAS, NULL);
    CU_ASSERT_FALSE(is_fused(&l, REN__OP_LINEAR_FWD, "twice"));
    CU_ASSERT_FALSE(is_fused(&l, REN__OP_LINEAR_FWD, "l2"));
    CU_ASSERT_FALSE(is_fused(&l, REN__OP_LINEAR_FWD, "l3"));
    CU_ASSERT_EQUAL(total(&l, REN__OP_ACT_FWD), 4);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_TRAIN, "norm"), 0x3ffu);
    /* Its gradient comes from two tasks, so no gate can sum its bias; tanh is one for l3. */
    CU_ASSERT_EQUAL(operands(&l, REN__OP_ACT_BWD, "r1"), 0xdu);
    CU_ASSERT_NOT_EQUAL(find(&l, REN__OP_BIAS_GRAD, "twice"), UINT32_MAX);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_ACT_BWD, "tanh"), 0x1fu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_LINEAR_BWD_WEIGHT, "l3"), 0x7u);
    drop_listing(&l);
    ren_model_destroy(m);
    /* A fused layer's own output, asked for by itself. */
    net n;
    net_build(&n, rt, NET_TINYRES, 4, 1);
    ren_tensor inner = {n.logits.index};
    while (strcmp(n.model->nodes[ren__model_node_of(n.model, inner)]->name, "b1.bn2") != 0) {
        inner.index--;
    }
    list_fused(&l, n.model, inner, 0, EVERY_FUSION, NULL);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_CONV_FWD, "b1.conv2"), 0xfu);
    CU_ASSERT_FALSE(is_fused(&l, REN__OP_CONV_FWD, "b1.conv2"));
    CU_ASSERT_TRUE(is_fused(&l, REN__OP_CONV_FWD, "stem"));
    CU_ASSERT_EQUAL(total(&l, REN__OP_BATCH_NORM_EVAL), 0);
    drop_listing(&l);
    ren_model_destroy(n.model);
}

/* A GELU joins its layer in inference and not in training, and only the kind that libraries
 * compute. */
static void test_gelu_fuses(void)
{
    int64_t dims[2] = {4, 8};
    ren_linear_options o = ren_linear_options_default();
    ren_gelu_options g = ren_gelu_options_default();
    ren_model *m = NULL;
    listing l;
    o.units = 8;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor h = ren_gelu(m, "erf", ren_linear(m, "l1", x, &o), NULL);
    g.kind = REN_GELU_TANH;
    h = ren_gelu(m, "tanh", ren_linear(m, "l2", h, &o), &g);
    ren_tensor loss = ren_softmax_cross_entropy(m, "loss", h, y, NULL);
    list_fused(&l, m, h, 0, EVERY_FUSION, NULL);
    CU_ASSERT_FALSE(is_fused(&l, REN__OP_LINEAR_FWD, "l1"));
    CU_ASSERT_TRUE(is_fused(&l, REN__OP_LINEAR_FWD, "l2"));
    CU_ASSERT_EQUAL(l.g->tasks.count, 3);
    drop_listing(&l);
    list_fused(&l, m, loss, 1, EVERY_FUSION & ~(uint32_t)REN__FUSE_WEIGHT_BIAS, NULL);
    CU_ASSERT_FALSE(is_fused(&l, REN__OP_LINEAR_FWD, "l2"));
    CU_ASSERT_EQUAL(operands(&l, REN__OP_ACT_BWD, "tanh"), 0x1fu);
    drop_listing(&l);
    ren_model_destroy(m);
}

/* Frozen parameters: a bias gradient that nobody wants is not summed; layers that no gradient
 * passes fuse forward and have nothing backward; a norm that none passes leaves a sum alone whose
 * other side wants one. */
static void test_frozen_and_fused(void)
{
    int64_t dims[2] = {4, 8};
    ren_linear_options o = ren_linear_options_default();
    ren_model *m = NULL;
    uint8_t frozen[64] = {0};
    listing l;
    o.units = 8;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor a = ren_relu(m, "ra", ren_linear(m, "a", x, &o));
    ren_tensor n = ren_batch_norm(m, "n", a, NULL);
    ren_tensor b = ren_linear(m, "b", x, &o);
    ren_tensor h = ren_relu(m, "rs", ren_add(m, "sum", b, n));
    h = ren_relu(m, "rc", ren_linear(m, "c", h, &o));
    ren_tensor loss = ren_softmax_cross_entropy(m, "loss", h, y, NULL);
    CU_ASSERT_EQUAL_FATAL(ren_model_status(m, NULL), REN_OK);
    for (uint32_t i = 0; i < m->param_count; i++) {
        const char *name = m->params[i]->name;
        frozen[i] = name[0] == 'a' || name[0] == 'n' || strcmp(name, "c.bias") == 0;
    }
    list_fused(&l, m, loss, 1, EVERY_FUSION & ~(uint32_t)REN__FUSE_WEIGHT_BIAS, frozen);
    CU_ASSERT_TRUE(is_fused(&l, REN__OP_LINEAR_FWD, "a"));
    CU_ASSERT_EQUAL(find(&l, REN__OP_ACT_BWD, "ra"), UINT32_MAX);
    CU_ASSERT_EQUAL(find(&l, REN__OP_BATCH_NORM_BWD, "n"), UINT32_MAX);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_TRAIN, "n"), 0x3ffu);
    CU_ASSERT_NOT_EQUAL(find(&l, REN__OP_ADD, "sum"), UINT32_MAX);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_ACT_BWD, "rc"), 0xdu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_LINEAR_BWD_WEIGHT, "c"), 0x7u);
    CU_ASSERT_NOT_EQUAL(find(&l, REN__OP_BIAS_GRAD, "b"), UINT32_MAX);
    CU_ASSERT_EQUAL(find(&l, REN__OP_BIAS_GRAD, "c"), UINT32_MAX);
    drop_listing(&l);
    list_fused(&l, m, loss, 1, EVERY_FUSION, frozen);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_LINEAR_BWD_WEIGHT, "c"), 0x7u);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_LINEAR_BWD_WEIGHT, "b"), 0xfu);
    drop_listing(&l);
    /* With the norm alone frozen, gradients pass it: it takes the sum again. */
    for (uint32_t i = 0; i < m->param_count; i++) {
        frozen[i] = m->params[i]->name[0] == 'n';
    }
    list_fused(&l, m, loss, 1, EVERY_FUSION, frozen);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_TRAIN, "n"), 0x7ffu);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_BWD, "n"), 0x3ffu);
    drop_listing(&l);
    /* And with the other side frozen, no gradient is made for it. */
    for (uint32_t i = 0; i < m->param_count; i++) {
        frozen[i] = m->params[i]->name[0] == 'b';
    }
    list_fused(&l, m, loss, 1, EVERY_FUSION, frozen);
    CU_ASSERT_EQUAL(operands(&l, REN__OP_BATCH_NORM_BWD, "n"), 0x1ffu);
    drop_listing(&l);
    ren_model_destroy(m);
}

/* In mixed precision only what comes in as f32 is cast: the weights, once and together, and the
 * images; labels are integers and the target of a regression stays f32. Losses read and write 16
 * bits where the device can, and are cast around where it cannot. */
static void test_mixed_casts(void)
{
    int64_t dims[2] = {4, 8};
    ren_linear_options o = ren_linear_options_default();
    ren_model *m = NULL;
    o.units = 8;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, NULL, &m, NULL), REN_OK);
    ren_tensor x = ren_input(m, "x", REN_F32, dims, 2);
    ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
    ren_tensor goal = ren_input(m, "goal", REN_F32, dims, 2);
    ren_tensor h = ren_relu(m, "r", ren_linear(m, "l", x, &o));
    ren_tensor entropy =
        ren_softmax_cross_entropy(m, "entropy", ren_linear(m, "a", h, &o), y, NULL);
    ren_tensor mse = ren_mse(m, "mse", ren_linear(m, "b", h, &o), goal);
    ren_tensor loss = ren_add(m, "loss", entropy, mse);
    CU_ASSERT_EQUAL_FATAL(ren_model_status(m, NULL), REN_OK);
    for (uint32_t fused = 0; fused < 2; fused++) {
        listing l;
        mixed = REN_F16;
        list_fused(&l, m, loss, 1, fused ? EVERY_FUSION : 0, NULL);
        mixed = REN_F32;
        ren_dtype dtype = fused ? REN_F16 : REN_F32;
        CU_ASSERT_EQUAL(total(&l, REN__OP_CAST), fused ? 2u : 2u + 2u * 2u);
        CU_ASSERT_EQUAL(op_at(&l, REN__OP_XENT_FWD, "entropy")->operand[0].dtype, dtype);
        CU_ASSERT_EQUAL(op_at(&l, REN__OP_XENT_FWD, "entropy")->operand[3].dtype, REN_F32);
        CU_ASSERT_EQUAL(op_at(&l, REN__OP_XENT_BWD, "entropy")->operand[0].dtype, REN_F32);
        CU_ASSERT_EQUAL(op_at(&l, REN__OP_XENT_BWD, "entropy")->operand[3].dtype, dtype);
        CU_ASSERT_EQUAL(op_at(&l, REN__OP_MSE_FWD, "mse")->operand[0].dtype, dtype);
        CU_ASSERT_EQUAL(op_at(&l, REN__OP_MSE_FWD, "mse")->operand[1].dtype, REN_F32);
        CU_ASSERT_EQUAL(op_at(&l, REN__OP_MSE_BWD, "mse")->operand[3].dtype, dtype);
        CU_ASSERT_EQUAL(op_at(&l, REN__OP_ADD, "loss")->operand[2].dtype, REN_F32);
        drop_listing(&l);
    }
    ren_model_destroy(m);
}

/* What a model's config says of TF32 stands in each of its products and convolutions, in both
 * passes and in inference, and in nothing else. */
static void test_tf32_is_asked_for(void)
{
    ren_linear_options o = ren_linear_options_default();
    ren_conv2d_options c = ren_conv2d_options_default();
    int64_t dims[4] = {4, 6, 6, 2};
    o.units = 5;
    c.filters = 3;
    c.kernel[0] = c.kernel[1] = 3;
    for (uint32_t allow = 0; allow < 2; allow++) {
        ren_model_config config = ren_model_config_default();
        ren_model *m = NULL;
        listing l;
        config.allow_tf32 = allow;
        CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, &config, &m, NULL), REN_OK);
        ren_tensor x = ren_input(m, "x", REN_F32, dims, 4);
        ren_tensor y = ren_input(m, "labels", REN_I32, dims, 1);
        ren_tensor h = ren_conv2d(m, "c2", ren_conv2d(m, "c1", x, &c), &c);
        h = ren_linear(m, "l1", ren_flatten(m, "flat", h), &o);
        ren_tensor loss = ren_softmax_cross_entropy(m, "loss", h, y, NULL);
        for (uint32_t training = 0; training < 2; training++) {
            uint32_t products = 0;
            list_tasks(&l, m, training ? loss : h, training);
            for (uint32_t i = 0; i < l.g->tasks.count; i++) {
                const ren__op_desc *op = &task_at(&l, i)->op;
                uint32_t is_product =
                    (op->kind >= REN__OP_LINEAR_FWD && op->kind <= REN__OP_CONV_BWD_WEIGHT &&
                     op->kind != REN__OP_BIAS_GRAD);
                products += is_product;
                CU_ASSERT_EQUAL(op->allow_tf32, is_product && allow);
            }
            CU_ASSERT_EQUAL(products, training ? 3u + 3u + 2u : 3u);
            drop_listing(&l);
        }
        ren_model_destroy(m);
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_linear_backward_forks", test_linear_backward_forks},
        {"test_conv_backward_forks", test_conv_backward_forks},
        {"test_only_what_is_needed", test_only_what_is_needed},
        {"test_concat_of_sixteen", test_concat_of_sixteen},
        {"test_regression_target", test_regression_target},
        {"test_sum_of_losses", test_sum_of_losses},
        {"test_linear_fuses", test_linear_fuses},
        {"test_batch_norm_fuses", test_batch_norm_fuses},
        {"test_sum_without_activation_fuses", test_sum_without_activation_fuses},
        {"test_what_does_not_fuse", test_what_does_not_fuse},
        {"test_gelu_fuses", test_gelu_fuses},
        {"test_frozen_and_fused", test_frozen_and_fused},
        {"test_mixed_casts", test_mixed_casts},
        {"test_tf32_is_asked_for", test_tf32_is_asked_for},
    };
    ren_runtime_config config = ren_test_config();
    if (ren_runtime_create(&config, &rt, NULL) != REN_OK) {
        return 1;
    }
    int status = ren_test_main(argc, argv, "unit/test_diff", cases, REN_TEST_COUNT(cases), 60);
    return ren_runtime_shutdown(rt, UINT64_C(10000000000)) == REN_OK ? status : 1;
}
