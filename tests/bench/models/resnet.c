/* SPDX-License-Identifier: MIT */
/* tests/bench/models/resnet.c - resnet18-cifar and resnet50-224, after He and others 2015. */
#include <stdio.h>

#include "models.h"

typedef struct block_names {
    char conv1[32], conv2[32], conv3[32], down[32], sum[32], relu[32];
} block_names;

static block_names names_of(uint32_t stage, uint32_t index)
{
    block_names n;
    char head[16];
    (void)snprintf(head, sizeof head, "s%u.%u", (unsigned)(stage + 1), (unsigned)index);
    (void)snprintf(n.conv1, sizeof n.conv1, "%s.conv1", head);
    (void)snprintf(n.conv2, sizeof n.conv2, "%s.conv2", head);
    (void)snprintf(n.conv3, sizeof n.conv3, "%s.conv3", head);
    (void)snprintf(n.down, sizeof n.down, "%s.down", head);
    (void)snprintf(n.sum, sizeof n.sum, "%s.sum", head);
    (void)snprintf(n.relu, sizeof n.relu, "%s.relu", head);
    return n;
}

/* Two 3x3 convolutions beside the identity, or beside a 1x1 where the shape changes. */
static ren_tensor basic(ren_model *m, const block_names *n, ren_tensor x, uint32_t filters,
                        uint32_t stride, uint32_t project)
{
    ren_tensor h = bench_conv_bn_relu(m, n->conv1, x, (bench_conv){filters, 3, stride, 1});
    h = bench_conv_bn(m, n->conv2, h, (bench_conv){filters, 3, 1, 1});
    if (project) {
        x = bench_conv_bn(m, n->down, x, (bench_conv){filters, 1, stride, 0});
    }
    return ren_relu(m, n->relu, ren_add(m, n->sum, h, x));
}

/* 1x1, 3x3 with the stride, 1x1 to four times the filters. */
static ren_tensor bottleneck(ren_model *m, const block_names *n, ren_tensor x, uint32_t filters,
                             uint32_t stride, uint32_t project)
{
    ren_tensor h = bench_conv_bn_relu(m, n->conv1, x, (bench_conv){filters, 1, 1, 0});
    h = bench_conv_bn_relu(m, n->conv2, h, (bench_conv){filters, 3, stride, 1});
    h = bench_conv_bn(m, n->conv3, h, (bench_conv){4 * filters, 1, 1, 0});
    if (project) {
        x = bench_conv_bn(m, n->down, x, (bench_conv){4 * filters, 1, stride, 0});
    }
    return ren_relu(m, n->relu, ren_add(m, n->sum, h, x));
}

typedef ren_tensor (*block_fn)(ren_model *m, const block_names *n, ren_tensor x, uint32_t filters,
                               uint32_t stride, uint32_t project);

static ren_tensor stages(ren_model *m, ren_tensor x, const uint32_t depths[4], block_fn block)
{
    for (uint32_t s = 0; s < 4; s++) {
        for (uint32_t i = 0; i < depths[s]; i++) {
            block_names n = names_of(s, i);
            uint32_t stride = s > 0 && i == 0 ? 2 : 1;
            uint32_t project = i == 0 && (stride != 1 || block == bottleneck);
            x = block(m, &n, x, 64u << s, stride, project);
        }
    }
    return x;
}

static ren_tensor classify(ren_model *m, const bench_model *self, ren_tensor x, ren_tensor labels)
{
    ren_tensor h = bench_linear(m, "fc", ren_global_avg_pool(m, "gap", x), self->classes);
    return ren_softmax_cross_entropy(m, "loss", h, labels, NULL);
}

ren_tensor bench_build_resnet18(ren_model *m, const bench_model *self, uint32_t batch)
{
    static const uint32_t depths[4] = {2, 2, 2, 2};
    ren_tensor in[BENCH_MODEL_INPUTS];
    bench_model_add_inputs(m, self, batch, in);
    ren_tensor h = bench_conv_bn_relu(m, "stem", in[0], (bench_conv){64, 3, 1, 1});
    return classify(m, self, stages(m, h, depths, basic), in[1]);
}

ren_tensor bench_build_resnet50(ren_model *m, const bench_model *self, uint32_t batch)
{
    static const uint32_t depths[4] = {3, 4, 6, 3};
    ren_tensor in[BENCH_MODEL_INPUTS];
    bench_model_add_inputs(m, self, batch, in);
    ren_tensor h = bench_conv_bn_relu(m, "stem", in[0], (bench_conv){64, 7, 2, 3});
    h = bench_max_pool(m, "pool", h, 3, 2, 1);
    return classify(m, self, stages(m, h, depths, bottleneck), in[1]);
}
