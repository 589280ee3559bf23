/* SPDX-License-Identifier: MIT */
/* tests/bench/models/vgg.c - vgg11-cifar: eight 3x3 convolutions between five pools, one linear. */
#include <stdio.h>

#include "models.h"

ren_tensor bench_build_vgg11(ren_model *m, const bench_model *self, uint32_t batch)
{
    static const uint32_t layers[] = {64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0};
    ren_tensor in[BENCH_MODEL_INPUTS];
    bench_model_add_inputs(m, self, batch, in);
    ren_tensor h = in[0];
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%s%u", layers[i] ? "conv" : "pool", (unsigned)i);
        h = layers[i] ? bench_conv_bn_relu(m, name, h, (bench_conv){layers[i], 3, 1, 1})
                      : bench_max_pool(m, name, h, 2, 2, 0);
    }
    h = bench_linear(m, "fc", ren_flatten(m, "flat", h), self->classes);
    return ren_softmax_cross_entropy(m, "loss", h, in[1], NULL);
}
