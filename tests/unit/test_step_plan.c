/* SPDX-License-Identifier: MIT */
/* tests/unit/test_step_plan.c - whole training steps as they are planned: streams and order.
 *
 * Builds trainers and looks at the plans that they made, without running a step. Streams: the plan
 * of a network with a layer of each kind is written down here task by task, with the stream that
 * ren_stream_policy's table gives it. Order: what a step promises of its schedule, held against the
 * plan's edges, and against what each task knows to be done when it starts by its lane and by the
 * events that it waits for.
 */
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#include "../../libren/graph/internal.h"
#include "../../libren/train/trainer_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 4

typedef struct made {
    ren_runtime *rt;
    ren_model *m;
    ren_trainer *t;
    const ren__plan *plan; /* that ends with the update */
} made;

static ren_tensor conv(ren_model *m, const char *name, ren_tensor x, uint32_t filters,
                       uint32_t kernel, uint32_t disable_bias)
{
    ren_conv2d_options o = ren_conv2d_options_default();
    o.filters = filters;
    o.kernel[0] = o.kernel[1] = kernel;
    o.padding[0] = o.padding[1] = kernel / 2;
    o.disable_bias = disable_bias;
    return ren_conv2d(m, name, x, &o);
}

static ren_tensor linear(ren_model *m, const char *name, ren_tensor x, uint32_t units)
{
    ren_linear_options o = ren_linear_options_default();
    o.units = units;
    return ren_linear(m, name, x, &o);
}

/* A layer of each kind: a convolution with batch norm, ReLU and max pool, two branches (one behind
 * an average pool) that are joined and added to what they came from, dropout, the global average,
 * two linear layers, and the sum of a classification's and a regression's loss. */
static ren_tensor build(ren_model *m)
{
    const int64_t image[4] = {ROWS, 8, 8, 3};
    const int64_t goal[2] = {ROWS, 5};
    ren_pool2d_options pool = ren_pool2d_options_default();
    ren_dropout_options dropout = ren_dropout_options_default();
    ren_tensor parts[2];
    ren_tensor x = ren_input(m, "x", REN_F32, image, 4);
    ren_tensor labels = ren_input(m, "labels", REN_I32, image, 1);
    ren_tensor h = ren_relu(m, "r1", ren_batch_norm(m, "n1", conv(m, "c1", x, 8, 3, 1), NULL));
    pool.kernel[0] = pool.kernel[1] = 2;
    pool.stride[0] = pool.stride[1] = 2;
    h = ren_max_pool2d(m, "max", h, &pool);
    pool.kernel[0] = pool.kernel[1] = 3;
    pool.stride[0] = pool.stride[1] = 1;
    pool.padding[0] = pool.padding[1] = 1;
    parts[0] = conv(m, "c2", h, 4, 3, 0);
    parts[1] = conv(m, "c3", ren_avg_pool2d(m, "avg", h, &pool), 4, 1, 0);
    h = ren_add(m, "sum", ren_concat(m, "join", parts, 2), h);
    dropout.probability = 0.5f;
    h = ren_global_avg_pool(m, "gap", ren_dropout(m, "drop", h, &dropout));
    h = ren_tanh(m, "tanh", linear(m, "f1", h, 5));
    ren_tensor mse = ren_mse(m, "mse", h, ren_input(m, "goal", REN_F32, goal, 2));
    ren_tensor entropy =
        ren_softmax_cross_entropy(m, "entropy", linear(m, "f2", h, 10), labels, NULL);
    return ren_add(m, "loss", entropy, mse);
}

/* A device so slow that branches pay, whatever machine the test runs on. */
static void slow_down(ren_runtime *rt)
{
    ren__device_caps *caps = (ren__device_caps *)(uintptr_t)ren__runtime_caps(rt);
    caps->costs = (ren__device_costs){.launch_ns = 1000,
                                      .event_ns = 10,
                                      .graph_launch_ns = 1000,
                                      .graph_event_ns = 10,
                                      .processors = REN__LANES,
                                      .flops_per_ns = 0.01f,
                                      .tf32_flops_per_ns = 0.01f,
                                      .half_flops_per_ns = 0.01f,
                                      .bytes_per_ns = 0.01f};
}

static void make(made *w, const ren_trainer_config *how, const char *frozen)
{
    ren_runtime_config config = ren_test_config();
    ren_error err = {0};
    memset(w, 0, sizeof *w);
    ren_test_unfused_next(); /* so that each part is a task by itself, on any device */
    config.streams = 5;
    w->rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(w->rt);
    slow_down(w->rt);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(w->rt, NULL, &w->m, NULL), REN_OK);
    ren_tensor loss = build(w->m);
    if (frozen) {
        CU_ASSERT_EQUAL(ren_param_set_frozen(w->m, frozen, 1), REN_OK);
    }
    ren_status status = ren_trainer_create(w->m, loss, how, &w->t, &err);
    if (status != REN_OK) {
        (void)fprintf(stderr, "ren_trainer_create: %s\n", err.text);
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    w->plan = w->t->plans[0].phase[REN__STEP_PHASES - 1].plan;
    CU_ASSERT_PTR_NOT_NULL_FATAL(w->plan);
    ren__plan_counts counts;
    ren__plan_get_counts(w->plan, &counts);
    /* What TRANS does is outside the plan. */
    CU_ASSERT(counts.lanes_used == 4 ||
              (counts.lanes_used > 1 && how->stream_policy == REN_POLICY_GREEDY));
}

static void drop(made *w)
{
    ren_trainer_destroy(w->t);
    ren_model_destroy(w->m);
    ren_test_shutdown(w->rt);
}

/* ------------------------------------------------------------------ streams */

static const char *stream_name(ren_stream stream)
{
    static const char *const names[REN_STREAM_COUNT] = {"TRANS", "COMP_1", "COMP_2", "COMP_3",
                                                        "UPDATE"};
    return names[stream];
}

static void task_text(const ren__plan *plan, uint32_t t, char out[96])
{
    (void)snprintf(out, 96, "%s %s %s", plan->tasks[t].name, ren__task_verb(&plan->tasks[t]),
                   stream_name(plan->nodes[t].stream));
}

/* The plan's tasks from `first` on are these, in this order, on these streams; and a task's lane is
 * its stream's. */
static void check_tasks(const ren__plan *plan, uint32_t first, const char *const *want,
                        uint32_t count)
{
    uint32_t unlike = plan->task_count < first + count;
    for (uint32_t i = 0; i < count && first + i < plan->task_count; i++) {
        char text[96];
        task_text(plan, first + i, text);
        if (strcmp(text, want[i]) != 0) {
            (void)fprintf(stderr, "task %u is \"%s\", not \"%s\"\n", first + i, text, want[i]);
            unlike++;
        }
        CU_ASSERT_EQUAL(plan->nodes[first + i].lane,
                        plan->config.lane_of[plan->nodes[first + i].stream]);
    }
    CU_ASSERT_EQUAL(unlike, 0);
}

static ren_trainer_config all_of_it(ren_stream_policy policy, ren_optimizer optimizer)
{
    ren_trainer_config how = ren_trainer_config_default();
    how.stream_policy = policy;
    how.optimizer = optimizer;
    how.momentum = 0.9f;
    how.clip_norm = 1.0f;
    how.ema_decay = 0.99f;
    how.precision = REN_PRECISION_MIXED_F16;
    return how;
}

/* STATIC, every task of a step: fails when any family, cast or update names another stream, or when
 * the trainer plans by the other policy. */
static void test_static_follows_the_table(void)
{
    static const char *const want[] = {
        "weights cast UPDATE",
        "x cast COMP_3",
        "c1 conv_fwd COMP_1",
        "n1 batch_norm_train COMP_2",
        "r1 act_fwd COMP_3",
        "max max_pool_fwd COMP_2",
        "c2 conv_fwd COMP_1",
        "avg avg_pool_fwd COMP_2",
        "c3 conv_fwd COMP_1",
        "join concat COMP_3",
        "sum add COMP_3",
        "drop dropout_fwd COMP_2",
        "gap global_avg_fwd COMP_2",
        "f1 linear_fwd COMP_1",
        "tanh act_fwd COMP_3",
        "tanh cast COMP_3",
        "mse mse_fwd COMP_1",
        "f2 linear_fwd COMP_1",
        "f2 cast COMP_3",
        "entropy xent_fwd COMP_1",
        "loss add COMP_3",
        "entropy xent_bwd COMP_1",
        "entropy cast COMP_3",
        "f2 bias_grad COMP_2",
        "f2 linear_bwd_weight COMP_1",
        "f2 linear_bwd_data COMP_3",
        "mse mse_bwd COMP_1",
        "mse cast COMP_3",
        "mse add COMP_3",
        "tanh act_bwd COMP_3",
        "f1 bias_grad COMP_2",
        "f1 linear_bwd_weight COMP_1",
        "f1 linear_bwd_data COMP_3",
        "gap global_avg_bwd COMP_2",
        "drop dropout_bwd COMP_2",
        "join split COMP_3",
        "c3 bias_grad COMP_2",
        "c3 conv_bwd_weight COMP_1",
        "c3 conv_bwd_data COMP_3",
        "avg avg_pool_bwd COMP_2",
        "avg add COMP_3",
        "c2 bias_grad COMP_2",
        "c2 conv_bwd_weight COMP_1",
        "c2 conv_bwd_data COMP_3",
        "c2 add COMP_3",
        "max max_pool_bwd COMP_2",
        "r1 act_bwd COMP_3",
        "n1 batch_norm_bwd COMP_2",
        "c1 conv_bwd_weight COMP_1",
        "loss copy UPDATE",
        "check check UPDATE",
        "advance advance UPDATE",
        "update sgd UPDATE",
        "average ema UPDATE",
        "statistics commit UPDATE",
    };
    ren_trainer_config how = all_of_it(REN_POLICY_STATIC, REN_OPTIMIZER_SGD);
    made w;
    make(&w, &how, NULL);
    check_tasks(w.plan, 0, want, REN_TEST_COUNT(want));
    CU_ASSERT_EQUAL(w.plan->task_count, REN_TEST_COUNT(want));
    drop(&w);
}

/* The task of this name and verb; its place. */
static uint32_t find(const ren__plan *plan, const char *name, const char *verb)
{
    for (uint32_t t = 0; t < plan->task_count; t++) {
        if (strcmp(plan->tasks[t].name, name) == 0 &&
            strcmp(ren__task_verb(&plan->tasks[t]), verb) == 0) {
            return t;
        }
    }
    (void)fprintf(stderr, "there is no %s %s\n", name, verb);
    CU_FAIL_FATAL("a task is missing");
    return UINT32_MAX;
}

/* LARS by groups: linear layers on COMP_1, the first convolution on COMP_2, all else on COMP_3,
 * under both policies, and the groups side by side: none waits for another. */
static void test_lars_on_three_streams(void)
{
    static const char *const want[] = {
        "c1.weight lars COMP_2", "n1.weight lars COMP_3", "n1.bias lars COMP_3",
        "c2.weight lars COMP_3", "c2.bias lars COMP_3",   "c3.weight lars COMP_3",
        "c3.bias lars COMP_3",   "f1.weight lars COMP_1", "f1.bias lars COMP_1",
        "f2.weight lars COMP_1", "f2.bias lars COMP_1",
    };
    for (uint32_t policy = REN_POLICY_GREEDY; policy <= REN_POLICY_STATIC; policy++) {
        ren_trainer_config how = all_of_it((ren_stream_policy)policy, REN_OPTIMIZER_LARS);
        made w;
        make(&w, &how, NULL);
        uint32_t first = find(w.plan, "c1.weight", "lars");
        check_tasks(w.plan, first, want, REN_TEST_COUNT(want));
        for (uint32_t i = 0; i < REN_TEST_COUNT(want); i++) {
            for (uint32_t k = 0; k < i; k++) {
                uint32_t lane = w.plan->nodes[first + k].lane;
                CU_ASSERT(lane == w.plan->nodes[first + i].lane ||
                          w.plan->known[first + i].after[lane] <= first);
            }
        }
        drop(&w);
    }
}

/* What only some trainers have is on UPDATE: sums over steps, gradients of frozen parameters that
 * are cleared, Adam that counts by parameter. */
static void test_update_has_the_rest(void)
{
    static const char *const clears[] = {
        "c2.weight fill UPDATE", "c2.bias fill UPDATE",    "loss copy UPDATE",     "sum add UPDATE",
        "check check UPDATE",    "advance advance UPDATE", "c1.weight adam UPDATE"};
    static const char *const first[] = {"sum copy UPDATE"};
    static const char *const middle[] = {"sum add UPDATE"};
    for (uint32_t policy = REN_POLICY_GREEDY; policy <= REN_POLICY_STATIC; policy++) {
        ren_trainer_config how = all_of_it((ren_stream_policy)policy, REN_OPTIMIZER_ADAM);
        made w;
        how.accumulate_steps = 3;
        make(&w, &how, "c2");
        const ren__plan *plans[2] = {w.t->plans[0].phase[0].plan, w.t->plans[0].phase[1].plan};
        check_tasks(w.plan, find(w.plan, "c2.weight", "fill"), clears, REN_TEST_COUNT(clears));
        check_tasks(plans[0], plans[0]->task_count - 1, first, 1);
        check_tasks(plans[1], plans[1]->task_count - 1, middle, 1);
        drop(&w);
    }
}

/* ------------------------------------------------------------------ order */

enum {
    MOST = 128
};

/* reached[t] = 1 where an edge, or a chain of them, leads from task `from` to t. */
static void reach(const ren__plan *plan, uint32_t from, uint8_t reached[MOST])
{
    const ren__array *lists[2] = {&plan->data, &plan->order};
    CU_ASSERT_FATAL(plan->task_count <= MOST);
    memset(reached, 0, MOST);
    reached[from] = 1;
    for (uint32_t t = from + 1; t < plan->task_count; t++) {
        for (uint32_t k = 0; k < 2; k++) {
            for (uint32_t i = 0; i < lists[k]->count; i++) {
                const ren__edge *e = &ren__plan_edges(lists[k])[i];
                reached[t] |= e->to == t && reached[e->from];
            }
        }
    }
    reached[from] = 0;
}

/* Task a is done when task b starts, whatever the lanes' speeds: by the lane they share, or by the
 * events that b's lane has waited for. */
static int is_done_before(const ren__plan *plan, uint32_t a, uint32_t b)
{
    uint32_t lane = plan->nodes[a].lane;
    return lane == plan->nodes[b].lane ? a < b : plan->known[b].after[lane] > a;
}

/* An edge says so, and the lanes keep to it. */
static int is_ordered(const ren__plan *plan, uint32_t a, uint32_t b)
{
    uint8_t reached[MOST];
    reach(plan, a, reached);
    return reached[b] && is_done_before(plan, a, b);
}

static int are_independent(const ren__plan *plan, uint32_t a, uint32_t b)
{
    uint8_t of_a[MOST], of_b[MOST];
    reach(plan, a, of_a);
    reach(plan, b, of_b);
    return !of_a[b] && !of_b[a];
}

/* Tasks that touch bytes [begin, end) of the root of this name, by `mask`: reads or writes. The
 * last one found goes to *out. */
static uint32_t touch(const ren__plan *plan, const char *root, uint64_t begin, uint64_t end,
                      int writes, uint32_t *out)
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < plan->task_count; t++) {
        const ren__task *task = &plan->tasks[t];
        uint32_t mask = writes ? task->writes : task->reads;
        for (uint32_t i = 0; i < REN__OPERANDS; i++) {
            uint64_t from, to;
            if (!(mask >> i & 1u) ||
                strcmp(plan->values[plan->values[task->operand[i]].root].name, root) != 0) {
                continue;
            }
            ren__plan_access(plan->values, task, i, &from, &to);
            if (from < end && begin < to) {
                *out = t;
                count++;
            }
        }
    }
    return count;
}

static int is_segment(const ren__plan *plan, uint32_t t, const char *segment)
{
    return strcmp(plan->tasks[t].segment, segment) == 0;
}

/* Each gradient is written once, by the layer's backward pass, or by a fill where the parameter is
 * frozen: so nothing has to zero it before. What is done with it, up to the check, touches nothing
 * that the backward pass of any layer waits for; no gradient of a parameter is cast. */
static void check_gradients(const made *w, uint32_t check)
{
    const ren__plan *plan = w->plan;
    uint32_t fills = 0, frozen = 0;
    for (uint32_t i = 0; i < w->t->param_count; i++) {
        const ren__param *p = w->m->params[i];
        uint32_t task = UINT32_MAX;
        uint8_t reached[MOST];
        if (p->role != REN__PARAM_TRAINED) {
            continue;
        }
        frozen += p->frozen;
        CU_ASSERT_EQUAL(touch(plan, "gradients", p->offset, p->offset + p->bytes, 1, &task), 1);
        CU_ASSERT_FATAL(task < plan->task_count);
        CU_ASSERT_EQUAL(plan->tasks[task].kind == REN__TASK_FILL, p->frozen);
        CU_ASSERT_EQUAL(is_segment(plan, task, "backward"), !p->frozen);
        CU_ASSERT(is_ordered(plan, task, check));
        reach(plan, task, reached);
        /* A batch norm's is the one that also gives the gradient of its input. */
        for (uint32_t t = 0; plan->tasks[task].op.kind != REN__OP_BATCH_NORM_BWD && t < MOST; t++) {
            CU_ASSERT(!reached[t] || !is_segment(plan, t, "backward"));
        }
    }
    for (uint32_t t = 0; t < plan->task_count; t++) {
        fills += plan->tasks[t].kind == REN__TASK_FILL;
        for (uint32_t i = 0; plan->tasks[t].op.kind == REN__OP_CAST && i < 2; i++) {
            uint32_t value = plan->tasks[t].operand[i];
            CU_ASSERT_STRING_NOT_EQUAL(plan->values[plan->values[value].root].name, "gradients");
        }
    }
    CU_ASSERT_EQUAL(fills, frozen);
}

/* The first layer's backward pass and the clearing of other layers' gradients have nothing to do
 * with one another, nor has that with any forward pass; under STATIC it waits for nothing but its
 * own stream, so that it runs beside the first layer's forward pass. */
static void check_clearing(const made *w)
{
    static const char *const firsts[][2] = {
        {"c1", "conv_fwd"}, {"c1", "conv_bwd_weight"}, {"n1", "batch_norm_bwd"}, {"r1", "act_bwd"}};
    const ren__plan *plan = w->plan;
    uint32_t clear = find(plan, "c2.weight", "fill"), waited = 0;
    for (uint32_t i = 0; i < REN_TEST_COUNT(firsts); i++) {
        CU_ASSERT(are_independent(plan, clear, find(plan, firsts[i][0], firsts[i][1])));
    }
    for (uint32_t t = 0; plan->config.policy == REN__POLICY_STATIC && t < plan->task_count; t++) {
        waited += plan->nodes[t].stream != REN_STREAM_UPDATE && is_done_before(plan, t, clear);
    }
    CU_ASSERT_EQUAL(waited, 0);
    CU_ASSERT_EQUAL(plan->nodes[clear].stream, REN_STREAM_UPDATE);
}

/* Behind the check comes all that outlives the step: optimizer, then average; new running
 * statistics by their side. Weights in 16 bits are made on UPDATE before anything reads them, and
 * before the optimizer changes what they are made of; the next step's are made behind this one's
 * end, where all lanes meet. */
static void check_update(const made *w, uint32_t check)
{
    const ren__plan *plan = w->plan;
    uint32_t cast = w->t->precision == REN_F32 ? UINT32_MAX : find(plan, "weights", "cast");
    uint32_t commit = find(plan, "statistics", "commit"), updates = 0;
    for (uint32_t t = 0; t < plan->task_count; t++) {
        ren__op_kind kind = plan->tasks[t].op.kind;
        CU_ASSERT_NOT_EQUAL(plan->nodes[t].stream, REN_STREAM_TRANS);
        if (plan->tasks[t].lasting) {
            CU_ASSERT(is_ordered(plan, check, t));
            updates++;
        }
        if (kind == REN__OP_SGD || kind == REN__OP_LARS) {
            CU_ASSERT(is_ordered(plan, t, find(plan, "average", "ema")));
            CU_ASSERT(are_independent(plan, t, commit));
            CU_ASSERT(cast == UINT32_MAX || is_ordered(plan, cast, t));
        }
        if (cast != UINT32_MAX && (kind == REN__OP_CONV_FWD || kind == REN__OP_LINEAR_FWD)) {
            CU_ASSERT(is_ordered(plan, cast, t));
        }
        CU_ASSERT(is_done_before(plan, t, plan->task_count)); /* the join */
    }
    CU_ASSERT(updates >= 3);
    CU_ASSERT(is_ordered(plan, find(plan, "n1", "batch_norm_train"), commit));
    if (cast != UINT32_MAX) {
        CU_ASSERT_EQUAL(plan->nodes[cast].stream, REN_STREAM_UPDATE);
        CU_ASSERT_EQUAL(plan->nodes[cast].wait_count, 0);
    }
}

/* The order that every step keeps, by either policy, in both precisions, with a layer frozen and
 * without. */
static void test_order_of_a_step(void)
{
    for (uint32_t i = 0; i < 16; i++) {
        ren_trainer_config how = all_of_it(i & 1u ? REN_POLICY_STATIC : REN_POLICY_GREEDY,
                                           i & 2u ? REN_OPTIMIZER_LARS : REN_OPTIMIZER_SGD);
        made w;
        how.precision = i & 4u ? REN_PRECISION_MIXED_F16 : REN_PRECISION_F32;
        make(&w, &how, i & 8u ? "c2" : NULL);
        uint32_t check = find(w.plan, "check", "check");
        check_gradients(&w, check);
        check_update(&w, check);
        if (i & 8u) {
            check_clearing(&w);
        }
        drop(&w);
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_static_follows_the_table", test_static_follows_the_table},
        {"test_lars_on_three_streams", test_lars_on_three_streams},
        {"test_update_has_the_rest", test_update_has_the_rest},
        {"test_order_of_a_step", test_order_of_a_step},
    };
    return ren_test_main(argc, argv, "unit/test_step_plan", cases, REN_TEST_COUNT(cases), 60);
}
