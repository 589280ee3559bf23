/* SPDX-License-Identifier: MIT */
/* tests/bench/models/models.c - the table of standard models, and data for them. See models.h. */
#include "models.h"

/* clang-format off */
#define IMAGE(size, channels) {"x", REN_F32, 4, {0, (size), (size), (channels)}}
#define LABELS                {"labels", REN_I32, 1, {0}}
/* clang-format on */

const bench_model bench_models[] = {
    {.name = "mlp-64x4",
     .batch = 256,
     .classes = 10,
     .learning_rate = 0.02f,
     .parameters = 15242,
     .inputs = {{"x", REN_F32, 2, {0, 32}}, LABELS},
     .input_count = 2,
     .build = bench_build_mlp},
    {.name = "mlp-256x4",
     .batch = 1024,
     .classes = 16,
     .learning_rate = 0.02f,
     .parameters = 218128,
     .inputs = {{"x", REN_F32, 2, {0, 64}}, LABELS},
     .input_count = 2,
     .build = bench_build_mlp},
    {.name = "lenet28",
     .batch = 128,
     .classes = 10,
     .learning_rate = 0.01f,
     .parameters = 1199882,
     .inputs = {IMAGE(28, 1), LABELS},
     .input_count = 2,
     .build = bench_build_lenet},
    {.name = "incep32",
     .batch = 32,
     .classes = 10,
     .learning_rate = 0.01f,
     .parameters = 187466,
     .inputs = {IMAGE(32, 3), LABELS},
     .input_count = 2,
     .build = bench_build_incep},
    {.name = "resnet18-cifar",
     .batch = 128,
     .classes = 10,
     .learning_rate = 0.01f,
     .parameters = 11173962,
     .inputs = {IMAGE(32, 3), LABELS},
     .input_count = 2,
     .build = bench_build_resnet18},
    {.name = "vgg11-cifar",
     .batch = 128,
     .classes = 10,
     .learning_rate = 0.01f,
     .parameters = 9228362,
     .inputs = {IMAGE(32, 3), LABELS},
     .input_count = 2,
     .build = bench_build_vgg11},
    {.name = "resnet50-224",
     .batch = 64,
     .classes = 1000,
     .learning_rate = 0.01f,
     .parameters = 25557032,
     .inputs = {IMAGE(224, 3), LABELS},
     .input_count = 2,
     .build = bench_build_resnet50},
    {.name = "heads32",
     .batch = 32,
     .classes = 10,
     .learning_rate = 0.01f,
     .parameters = 84655,
     .inputs =
         {IMAGE(32, 3), LABELS, {"pose", REN_F32, 2, {0, 4}}, {"mask", REN_F32, 4, {0, 16, 16, 1}}},
     .input_count = 4,
     .build = bench_build_heads},
};

const size_t bench_model_count = sizeof bench_models / sizeof bench_models[0];

const bench_model *bench_model_find(const char *name)
{
    for (size_t i = 0; i < bench_model_count; i++) {
        if (strcmp(bench_models[i].name, name) == 0) {
            return &bench_models[i];
        }
    }
    return NULL;
}

size_t bench_model_row(const bench_model_input *input)
{
    size_t n = 1;
    for (uint32_t i = 1; i < input->rank; i++) {
        n *= (size_t)input->dims[i];
    }
    return n;
}

size_t bench_model_bytes(const bench_model_input *input, uint32_t batch)
{
    return batch * bench_model_row(input) * sizeof(float); /* f32 and i32 alike */
}

void bench_model_add_inputs(ren_model *m, const bench_model *self, uint32_t batch,
                            ren_tensor out[BENCH_MODEL_INPUTS])
{
    for (uint32_t i = 0; i < self->input_count; i++) {
        const bench_model_input *input = &self->inputs[i];
        int64_t dims[REN_MAX_RANK];
        memcpy(dims, input->dims, sizeof dims);
        dims[0] = batch;
        out[i] = ren_input(m, input->name, input->dtype, dims, input->rank);
    }
}

/* splitmix64 (Steele, Lea and Flood 2014): a value of a counter. */
static uint64_t hash(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void bench_model_fill(const bench_model *model, uint32_t input, uint32_t batch, uint32_t index,
                      void *out)
{
    const bench_model_input *in = &model->inputs[input];
    size_t n = batch * bench_model_row(in);
    uint64_t key = hash((uint64_t)index << 32 | input);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = hash(key + i);
        if (in->dtype == REN_I32) {
            ((int32_t *)out)[i] = (int32_t)(bits % model->classes);
        } else {
            ((float *)out)[i] = (float)(bits >> 40) * 0x1p-23f - 1.0f;
        }
    }
}
