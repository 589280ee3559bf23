/* SPDX-License-Identifier: MIT */
/* tests/unit/test_bench_models.c - the benchmark's models are the networks they are named after.
 *
 * The parameter counts of the two ResNets, of VGG11 (less its convolutions' biases) and of the
 * LeNet are those of the well-known PyTorch versions, so that figures can stand side by side.
 */
#include "../bench/models/models.h"
#include "../../libren/train/model.h"
#include "../support/runtime.h"
#include "../support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    STEPS = 3
};

typedef struct built {
    ren_runtime *rt;
    ren_model *m;
    ren_tensor loss;
} built;

static built build(const bench_model *model, uint32_t batch)
{
    built b = {ren_test_runtime(NULL), NULL, {0}};
    ren_error err;
    CU_ASSERT_PTR_NOT_NULL_FATAL(b.rt);
    CU_ASSERT_EQUAL_FATAL(ren_model_create(b.rt, NULL, &b.m, &err), REN_OK);
    b.loss = model->build(b.m, model, batch);
    ren_status status = ren_model_status(b.m, &err);
    CU_ASSERT_EQUAL(status, REN_OK);
    if (status != REN_OK) {
        (void)fprintf(stderr, "%s: %s\n", model->name, err.text);
    }
    CU_ASSERT_NOT_EQUAL(b.loss.index, 0);
    return b;
}

static void destroy(built *b)
{
    ren_model_destroy(b->m);
    ren_test_shutdown(b->rt);
}

/* The shape of a parameter, "" if there is none. */
static void shape_of(ren_model *m, const char *name, char *out, size_t bytes)
{
    uint32_t index = ren__model_param_find(m, name);
    uint32_t rank = 0;
    const int64_t *dims = NULL;
    size_t at = 0;
    out[0] = '\0';
    if (index != UINT32_MAX) {
        ren__model_param_info(m, index, NULL, &rank, &dims, NULL);
    }
    for (uint32_t i = 0; i < rank; i++) {
        at += (size_t)snprintf(out + at, bytes - at, "%s%lld", i ? "x" : "", (long long)dims[i]);
    }
}

/* Every model builds, and holds exactly the trained scalars that its table says. Fails when a layer
 * is missing, doubled, of a wrong width, or has a bias too many. */
static void test_build_parameters(void)
{
    for (size_t i = 0; i < bench_model_count; i++) {
        const bench_model *model = &bench_models[i];
        built b = build(model, 2);
        uint64_t trained = 0;
        for (uint32_t p = 0; p < ren__model_param_count(b.m); p++) {
            const char *name;
            uint64_t bytes;
            ren__model_param_info(b.m, p, &name, NULL, NULL, &bytes);
            trained += strstr(name, ".running_") ? 0 : bytes / sizeof(float);
        }
        CU_ASSERT_EQUAL(trained, model->parameters);
        if (trained != model->parameters) {
            (void)fprintf(stderr, "%s: %llu parameters, not %llu\n", model->name,
                          (unsigned long long)trained, (unsigned long long)model->parameters);
        }
        destroy(&b);
    }
}

/* The last linear layer of each model sees as many features as the network's geometry gives, and
 * chosen layers inside have their shapes. Fails when a stride, padding or pool is not as it should
 * be although the number of parameters is right. */
static void test_build_shapes(void)
{
    static const struct {
        const char *model, *parameter, *shape;
    } rows[] = {
        {"mlp-64x4", "fc1.weight", "64x32"},
        {"mlp-64x4", "fc5.weight", "10x64"},
        {"mlp-256x4", "fc1.weight", "256x64"},
        {"mlp-256x4", "fc5.weight", "16x256"},
        {"lenet28", "conv2.weight", "64x32x3x3"},
        {"lenet28", "fc1.weight", "128x9216"},
        {"incep32", "block5.b5.weight", "16x64x5x5"},
        {"incep32", "fc.weight", "10x64"},
        {"resnet18-cifar", "s4.0.down.weight", "512x256x1x1"},
        {"resnet18-cifar", "fc.weight", "10x512"},
        {"vgg11-cifar", "fc.weight", "10x512"},
        {"resnet50-224", "s1.0.down.weight", "256x64x1x1"},
        {"resnet50-224", "fc.weight", "1000x2048"},
        {"heads32", "class.weight", "10x64"},
        {"heads32", "pose2.weight", "4x64"},
        {"heads32", "mask3.weight", "1x16x1x1"},
    };
    for (size_t i = 0; i < REN_TEST_COUNT(rows); i++) {
        const bench_model *model = bench_model_find(rows[i].model);
        CU_ASSERT_PTR_NOT_NULL_FATAL(model);
        built b = build(model, 2);
        char shape[64];
        shape_of(b.m, rows[i].parameter, shape, sizeof shape);
        CU_ASSERT_STRING_EQUAL(shape, rows[i].shape);
        destroy(&b);
    }
    CU_ASSERT_PTR_NULL(bench_model_find("mlp"));
}

/* Data are the same whoever makes them, differ between batches, and stay in their range: the paths
 * of one model are compared by loss, and labels outside the classes would train nothing. */
static void test_fill_data(void)
{
    const bench_model *model = bench_model_find("mlp-64x4");
    float x[2][64];
    int32_t labels[256];
    uint32_t seen = 0;
    bench_model_fill(model, 0, 2, 0, x[0]);
    bench_model_fill(model, 0, 2, 0, x[1]);
    CU_ASSERT_EQUAL(memcmp(x[0], x[1], sizeof x[0]), 0);
    bench_model_fill(model, 0, 2, 1, x[1]);
    CU_ASSERT_NOT_EQUAL(memcmp(x[0], x[1], sizeof x[0]), 0);
    for (int i = 0; i < 64; i++) {
        CU_ASSERT(x[0][i] >= -1.0f && x[0][i] < 1.0f);
    }
    bench_model_fill(model, 1, 256, 0, labels);
    for (int i = 0; i < 256; i++) {
        CU_ASSERT_FATAL(labels[i] >= 0 && labels[i] < 10);
        seen |= 1u << labels[i];
    }
    CU_ASSERT_EQUAL(seen, 0x3ffu);
}

static void note_loss(const ren_completion *c, void *user)
{
    *(float *)user = c->status == REN_OK && c->step ? c->step->loss : NAN;
}

/* Steps on one batch, again and again. */
static void train(const bench_model *model, uint32_t batch, float losses[STEPS])
{
    built b = build(model, batch);
    ren_trainer_config config = ren_trainer_config_default();
    ren_step_desc step = ren_step_desc_default();
    ren_binding bindings[BENCH_MODEL_INPUTS];
    void *data[BENCH_MODEL_INPUTS] = {NULL};
    ren_trainer *t = NULL;
    config.learning_rate = model->learning_rate;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(b.m, b.loss, &config, &t, NULL), REN_OK);
    for (uint32_t i = 0; i < model->input_count; i++) {
        size_t bytes = bench_model_bytes(&model->inputs[i], batch);
        data[i] = malloc(bytes);
        CU_ASSERT_PTR_NOT_NULL_FATAL(data[i]);
        bench_model_fill(model, i, batch, 0, data[i]);
        bindings[step.binding_count++] = (ren_binding){model->inputs[i].name, data[i], bytes};
    }
    step.bindings = bindings;
    step.done = note_loss;
    for (int s = 0; s < STEPS; s++) {
        losses[s] = NAN;
        step.user = &losses[s];
        CU_ASSERT_EQUAL(ren_trainer_step(t, &step, NULL), REN_OK);
        CU_ASSERT_EQUAL(ren_runtime_drain(b.rt, REN_TIMEOUT_INFINITE), REN_OK);
        CU_ASSERT_EQUAL(ren_pump(b.rt, 0, 0, 0, NULL), REN_OK);
    }
    ren_trainer_destroy(t);
    for (uint32_t i = 0; i < model->input_count; i++) {
        free(data[i]);
    }
    destroy(&b);
}

/* The small models learn a batch that they see three times: the first loss is near that of a guess,
 * all are finite, the last is the smallest. Fails when a loss does not depend on the layers before
 * it, when a learning rate diverges, or when labels do not reach the loss. */
static void test_train_three_steps(void)
{
    static const struct {
        const char *model;
        uint32_t batch;
    } rows[] = {
        {"mlp-64x4", 256}, {"mlp-256x4", 64}, {"lenet28", 8}, {"incep32", 4}, {"heads32", 4},
    };
    for (size_t i = 0; i < REN_TEST_COUNT(rows); i++) {
        const bench_model *model = bench_model_find(rows[i].model);
        float losses[STEPS];
        float guess;
        CU_ASSERT_PTR_NOT_NULL_FATAL(model);
        guess = logf((float)model->classes);
        train(model, rows[i].batch, losses);
        CU_ASSERT(isfinite(losses[0]) && isfinite(losses[1]) && isfinite(losses[2]));
        CU_ASSERT(losses[0] > 0.5f * guess && losses[0] < 2.0f * guess);
        CU_ASSERT(losses[2] < losses[0]);
        if (!(losses[2] < losses[0])) {
            (void)fprintf(stderr, "%s: %g %g %g\n", model->name, (double)losses[0],
                          (double)losses[1], (double)losses[2]);
        }
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_build_parameters", test_build_parameters},
        {"test_build_shapes", test_build_shapes},
        {"test_fill_data", test_fill_data},
        {"test_train_three_steps", test_train_three_steps},
    };
    return ren_test_main(argc, argv, "unit/test_bench_models", cases, REN_TEST_COUNT(cases), 60);
}
