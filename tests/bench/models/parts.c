/* SPDX-License-Identifier: MIT */
/* tests/bench/models/parts.c - layers with their usual neighbours. See models.h. */
#include <stdio.h>

#include "models.h"

/* The builder copies names, so one on the stack does. */
typedef struct part_name {
    char text[64];
} part_name;

static part_name part(const char *layer, const char *suffix)
{
    part_name n;
    (void)snprintf(n.text, sizeof n.text, "%s.%s", layer, suffix);
    return n;
}

static ren_tensor conv(ren_model *m, const char *name, ren_tensor x, bench_conv c,
                       uint32_t disable_bias)
{
    ren_conv2d_options o = ren_conv2d_options_default();
    o.filters = c.filters;
    o.kernel[0] = o.kernel[1] = c.kernel;
    o.stride[0] = o.stride[1] = c.stride;
    o.padding[0] = o.padding[1] = c.padding;
    o.disable_bias = disable_bias;
    return ren_conv2d(m, name, x, &o);
}

ren_tensor bench_linear(ren_model *m, const char *name, ren_tensor x, uint32_t units)
{
    ren_linear_options o = ren_linear_options_default();
    o.units = units;
    return ren_linear(m, name, x, &o);
}

ren_tensor bench_linear_relu(ren_model *m, const char *name, ren_tensor x, uint32_t units)
{
    return ren_relu(m, part(name, "relu").text, bench_linear(m, name, x, units));
}

ren_tensor bench_conv_relu(ren_model *m, const char *name, ren_tensor x, bench_conv c)
{
    return ren_relu(m, part(name, "relu").text, conv(m, name, x, c, 0));
}

ren_tensor bench_conv_bn(ren_model *m, const char *name, ren_tensor x, bench_conv c)
{
    return ren_batch_norm(m, part(name, "bn").text, conv(m, name, x, c, 1), NULL);
}

ren_tensor bench_conv_bn_relu(ren_model *m, const char *name, ren_tensor x, bench_conv c)
{
    return ren_relu(m, part(name, "relu").text, bench_conv_bn(m, name, x, c));
}

ren_tensor bench_max_pool(ren_model *m, const char *name, ren_tensor x, uint32_t kernel,
                          uint32_t stride, uint32_t padding)
{
    ren_pool2d_options o = ren_pool2d_options_default();
    o.kernel[0] = o.kernel[1] = kernel;
    o.stride[0] = o.stride[1] = stride;
    o.padding[0] = o.padding[1] = padding;
    return ren_max_pool2d(m, name, x, &o);
}
