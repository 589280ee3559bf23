/* SPDX-License-Identifier: MIT */
/* tests/bench/models/incep.c - incep32: branches that may run side by side.
 *
 * The four branches of a block (1x1, 3x3, 5x5, and a pool that keeps the size before a 1x1) read
 * one tensor and are joined along the channels, after Szegedy and others 2014.
 */
#include <stdio.h>

#include "models.h"

enum {
    BLOCKS = 5,
    WIDTH = 16
};

static ren_tensor block(ren_model *m, int index, ren_tensor x)
{
    char n[6][24];
    static const char *const parts[6] = {"b1", "b3", "b5", "bp", "pool", "join"};
    for (int i = 0; i < 6; i++) {
        (void)snprintf(n[i], sizeof n[i], "block%d.%s", index, parts[i]);
    }
    ren_tensor pooled = bench_max_pool(m, n[4], x, 3, 1, 1);
    ren_tensor branches[4] = {
        bench_conv_bn_relu(m, n[0], x, (bench_conv){WIDTH, 1, 1, 0}),
        bench_conv_bn_relu(m, n[1], x, (bench_conv){WIDTH, 3, 1, 1}),
        bench_conv_bn_relu(m, n[2], x, (bench_conv){WIDTH, 5, 1, 2}),
        bench_conv_bn_relu(m, n[3], pooled, (bench_conv){WIDTH, 1, 1, 0}),
    };
    return ren_concat(m, n[5], branches, 4);
}

ren_tensor bench_build_incep(ren_model *m, const bench_model *self, uint32_t batch)
{
    ren_tensor in[BENCH_MODEL_INPUTS];
    bench_model_add_inputs(m, self, batch, in);
    ren_tensor h = bench_conv_bn_relu(m, "stem", in[0], (bench_conv){64, 3, 1, 1});
    for (int i = 1; i <= BLOCKS; i++) {
        h = block(m, i, h);
    }
    h = bench_linear(m, "fc", ren_global_avg_pool(m, "gap", h), self->classes);
    return ren_softmax_cross_entropy(m, "loss", h, in[1], NULL);
}
