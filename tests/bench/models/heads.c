/* SPDX-License-Identifier: MIT */
/* tests/bench/models/heads.c - heads32: one trunk, three heads.
 *
 * The heads give a class (cross entropy), four numbers (Huber) and a mask of half the size (mean
 * squared error of a sigmoid). A step trains trunk and heads for the sum of the three losses.
 */
#include "models.h"

ren_tensor bench_build_heads(ren_model *m, const bench_model *self, uint32_t batch)
{
    ren_tensor in[BENCH_MODEL_INPUTS];
    bench_model_add_inputs(m, self, batch, in);
    ren_tensor trunk = bench_conv_bn_relu(m, "trunk1", in[0], (bench_conv){32, 3, 1, 1});
    trunk = bench_conv_bn_relu(m, "trunk2", trunk, (bench_conv){64, 3, 2, 1});
    trunk = bench_conv_bn_relu(m, "trunk3", trunk, (bench_conv){64, 3, 1, 1});

    ren_tensor class =
        bench_linear(m, "class", ren_global_avg_pool(m, "gap", trunk), self->classes);
    ren_tensor loss = ren_softmax_cross_entropy(m, "loss", class, in[1], NULL);

    ren_tensor pose = ren_global_avg_pool(m, "pose.gap", trunk);
    pose = bench_linear(m, "pose2", bench_linear_relu(m, "pose1", pose, 64), 4);
    loss = ren_add(m, "loss.pose", loss, ren_huber(m, "pose.loss", pose, in[2], NULL));

    ren_tensor mask = bench_conv_relu(m, "mask1", trunk, (bench_conv){32, 3, 1, 1});
    mask = bench_conv_relu(m, "mask2", mask, (bench_conv){16, 3, 1, 1});
    ren_conv2d_options point = ren_conv2d_options_default();
    point.filters = 1;
    point.kernel[0] = point.kernel[1] = 1;
    mask = ren_sigmoid(m, "mask.sigmoid", ren_conv2d(m, "mask3", mask, &point));
    return ren_add(m, "loss.mask", loss, ren_mse(m, "mask.loss", mask, in[3]));
}
