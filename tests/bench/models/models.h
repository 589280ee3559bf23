/* SPDX-License-Identifier: MIT */
/* tests/bench/models/models.h - the standard models, as a user of ren.h would write them.
 *
 * Purpose   One table that the step benchmark, its tests and its PyTorch peer agree on: what goes
 *           in, how many parameters come out, and which learning rate trains.
 * Models    mlp-64x4        32 in, four hidden of 64, 10 out
 *           mlp-256x4       64 in, four hidden of 256, 16 out
 *           lenet28         28x28x1, 3x3 convolutions of 32 and 64, pool, 128, 10 out
 *           incep32         32x32x3, a stem of 64, five blocks of four branches of 16, 10 out
 *           resnet18-cifar  32x32x3, He and others 2015 with a 3x3 stem and no stem pool, 10 out
 *           vgg11-cifar     32x32x3, configuration A of Simonyan and Zisserman 2014 with batch norm
 *                           and one linear layer, 10 out
 *           resnet50-224    224x224x3, He and others 2015, stride in the 3x3 convolution, 1000 out
 *           heads32         32x32x3, a shared trunk with three heads: a class, four numbers, a mask
 *           A convolution in front of a batch norm has no bias.
 * Threads   the builder's.
 * Not here  steps and time, see step_bench.c. These files use only ren.h.
 */
#ifndef REN_TESTS_BENCH_MODELS_H
#define REN_TESTS_BENCH_MODELS_H

#include <stddef.h>

#include "../../../host_api/ren.h"

#define BENCH_MODEL_INPUTS 4u

typedef struct bench_model_input {
    const char *name;
    ren_dtype dtype;
    uint32_t rank;
    int64_t dims[REN_MAX_RANK]; /* dims[0] is 0: the batch */
} bench_model_input;

typedef struct bench_model {
    const char *name;
    uint32_t batch;   /* default */
    uint32_t classes; /* labels are 0..classes-1 */
    float learning_rate;
    uint64_t parameters; /* trained scalars, running statistics not counted */
    bench_model_input inputs[BENCH_MODEL_INPUTS];
    uint32_t input_count;
    /* Adds inputs, layers and loss to an empty model. {0} after an error: see ren_model_status. */
    ren_tensor (*build)(ren_model *m, const struct bench_model *self, uint32_t batch);
} bench_model;

extern const bench_model bench_models[];
extern const size_t bench_model_count;

const bench_model *bench_model_find(const char *name); /* NULL when there is none */

/* Elements of one row of an input, and bytes of `batch` rows. */
size_t bench_model_row(const bench_model_input *input);
size_t bench_model_bytes(const bench_model_input *input, uint32_t batch);

/* Fill one input with batch number `index`: the same values for the same model, input and number.
 * f32 values lie in [-1, 1), labels in 0..classes-1. */
void bench_model_fill(const bench_model *model, uint32_t input, uint32_t batch, uint32_t index,
                      void *out);

/* ------------------------------------------------------------------ between the builders */

/* The model's inputs, by index of its table. */
void bench_model_add_inputs(ren_model *m, const bench_model *self, uint32_t batch,
                            ren_tensor out[BENCH_MODEL_INPUTS]);

ren_tensor bench_linear(ren_model *m, const char *name, ren_tensor x, uint32_t units);
ren_tensor bench_linear_relu(ren_model *m, const char *name, ren_tensor x, uint32_t units);

typedef struct bench_conv {
    uint32_t filters, kernel, stride, padding;
} bench_conv;

ren_tensor bench_conv_relu(ren_model *m, const char *name, ren_tensor x, bench_conv c);
/* Without bias, then batch norm: "<name>" and "<name>.bn". */
ren_tensor bench_conv_bn(ren_model *m, const char *name, ren_tensor x, bench_conv c);
/* And ReLU: "<name>.relu". */
ren_tensor bench_conv_bn_relu(ren_model *m, const char *name, ren_tensor x, bench_conv c);
ren_tensor bench_max_pool(ren_model *m, const char *name, ren_tensor x, uint32_t kernel,
                          uint32_t stride, uint32_t padding);

ren_tensor bench_build_mlp(ren_model *m, const bench_model *self, uint32_t batch);
ren_tensor bench_build_lenet(ren_model *m, const bench_model *self, uint32_t batch);
ren_tensor bench_build_incep(ren_model *m, const bench_model *self, uint32_t batch);
ren_tensor bench_build_resnet18(ren_model *m, const bench_model *self, uint32_t batch);
ren_tensor bench_build_resnet50(ren_model *m, const bench_model *self, uint32_t batch);
ren_tensor bench_build_vgg11(ren_model *m, const bench_model *self, uint32_t batch);
ren_tensor bench_build_heads(ren_model *m, const bench_model *self, uint32_t batch);

#endif
