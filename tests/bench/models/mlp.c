/* SPDX-License-Identifier: MIT */
/* tests/bench/models/mlp.c - mlp-64x4 and mlp-256x4: four hidden layers of one width. */
#include <stdio.h>

#include "models.h"

ren_tensor bench_build_mlp(ren_model *m, const bench_model *self, uint32_t batch)
{
    uint32_t width = strcmp(self->name, "mlp-64x4") == 0 ? 64 : 256;
    ren_tensor in[BENCH_MODEL_INPUTS];
    bench_model_add_inputs(m, self, batch, in);
    ren_tensor h = in[0];
    for (int i = 1; i <= 4; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "fc%d", i);
        h = bench_linear_relu(m, name, h, width);
    }
    h = bench_linear(m, "fc5", h, self->classes);
    return ren_softmax_cross_entropy(m, "loss", h, in[1], NULL);
}
