/* SPDX-License-Identifier: MIT */
/* tests/bench/models/lenet.c - lenet28: two convolutions, one pool, two linear layers. */
#include "models.h"

ren_tensor bench_build_lenet(ren_model *m, const bench_model *self, uint32_t batch)
{
    ren_tensor in[BENCH_MODEL_INPUTS];
    bench_model_add_inputs(m, self, batch, in);
    ren_tensor h = bench_conv_relu(m, "conv1", in[0], (bench_conv){32, 3, 1, 0});
    h = bench_conv_relu(m, "conv2", h, (bench_conv){64, 3, 1, 0});
    h = bench_max_pool(m, "pool", h, 2, 2, 0);
    h = bench_linear_relu(m, "fc1", ren_flatten(m, "flat", h), 128);
    h = bench_linear(m, "fc2", h, self->classes);
    return ren_softmax_cross_entropy(m, "loss", h, in[1], NULL);
}
