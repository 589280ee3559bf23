/* SPDX-License-Identifier: MIT */
/* libren/train/builder.c - the public builders: options into nodes.
 *
 * Purpose   Zero means the default in options; here the defaults are filled in, so that shape rules
 *           and devices see every number. What the numbers must be is the shape rules' matter.
 * Threads   one at a time per model.
 */
#include "builder.h"

static ren__node node_of(ren__node_kind kind, uint32_t input_count)
{
    ren__node n;
    memset(&n, 0, sizeof n);
    n.kind = kind;
    n.input_count = input_count;
    n.groups = 1;
    for (uint32_t i = 0; i < 2; i++) {
        n.kernel[i] = 1;
        n.stride[i] = 1;
        n.dilation[i] = 1;
    }
    return n;
}

ren_tensor ren__model_input(ren_model *m, const char *name, ren_dtype dtype, const int64_t *dims,
                            uint32_t rank)
{
    ren__node n = node_of(REN__NODE_INPUT, 0);
    uint32_t is_f32 = dtype == REN_F32 && (rank == 1 || rank == 2 || rank == 4);
    uint32_t is_labels = dtype == REN_I32 && rank == 1;
    char shape[80];
    n.out.dtype = dtype;
    n.out.rank = rank;
    memcpy(n.out.dims, dims, rank * sizeof dims[0]);
    if (!is_f32 && !is_labels) {
        ren__shape_text(&n.out, shape);
        return ren__model_fail(
            m, REN_ERR_SHAPE,
            "input %.63s is %s; an input is f32 of rank 1, 2 or 4, or i32 of rank 1",
            name ? name : "", shape);
    }
    return ren__model_add_node(m, &n, name, NULL);
}

ren_tensor ren__model_linear(ren_model *m, const char *name, ren_tensor x,
                             const ren_linear_options *options)
{
    ren__node n = node_of(REN__NODE_LINEAR, 1);
    n.units = options->units;
    n.disable_bias = options->disable_bias;
    return ren__model_add_node(m, &n, name, &x);
}

ren_tensor ren__model_conv2d(ren_model *m, const char *name, ren_tensor x,
                             const ren_conv2d_options *options)
{
    ren__node n = node_of(REN__NODE_CONV2D, 1);
    n.units = options->filters;
    n.disable_bias = options->disable_bias;
    n.groups = options->groups ? options->groups : 1;
    for (uint32_t i = 0; i < 2; i++) {
        n.kernel[i] = options->kernel[i];
        n.stride[i] = options->stride[i] ? options->stride[i] : 1;
        n.padding[i] = options->padding[i];
        n.dilation[i] = options->dilation[i] ? options->dilation[i] : 1;
    }
    return ren__model_add_node(m, &n, name, &x);
}

ren_tensor ren__model_batch_norm(ren_model *m, const char *name, ren_tensor x,
                                 const ren_batch_norm_options *options)
{
    ren__node n = node_of(REN__NODE_BATCH_NORM, 1);
    n.alpha = options->momentum;
    n.eps = options->eps;
    return ren__model_add_node(m, &n, name, &x);
}

static ren_tensor pool(ren_model *m, ren__node_kind kind, const char *name, ren_tensor x,
                       const ren_pool2d_options *options)
{
    ren__node n = node_of(kind, 1);
    for (uint32_t i = 0; i < 2; i++) {
        n.kernel[i] = options->kernel[i];
        n.stride[i] = options->stride[i] ? options->stride[i] : options->kernel[i];
        n.padding[i] = options->padding[i];
    }
    return ren__model_add_node(m, &n, name, &x);
}

ren_tensor ren__model_max_pool2d(ren_model *m, const char *name, ren_tensor x,
                                 const ren_pool2d_options *options)
{
    return pool(m, REN__NODE_MAX_POOL, name, x, options);
}

ren_tensor ren__model_avg_pool2d(ren_model *m, const char *name, ren_tensor x,
                                 const ren_pool2d_options *options)
{
    return pool(m, REN__NODE_AVG_POOL, name, x, options);
}

ren_tensor ren__model_global_avg_pool(ren_model *m, const char *name, ren_tensor x)
{
    ren__node n = node_of(REN__NODE_GLOBAL_AVG_POOL, 1);
    return ren__model_add_node(m, &n, name, &x);
}

ren_tensor ren__model_activation(ren_model *m, const char *name, ren_tensor x,
                                 ren__activation activation, float alpha)
{
    ren__node n = node_of(REN__NODE_ACTIVATION, 1);
    n.activation = activation;
    n.alpha = alpha;
    return ren__model_add_node(m, &n, name, &x);
}

ren_tensor ren__model_dropout(ren_model *m, const char *name, ren_tensor x,
                              const ren_dropout_options *options)
{
    ren__node n = node_of(REN__NODE_DROPOUT, 1);
    n.alpha = options->probability;
    return ren__model_add_node(m, &n, name, &x);
}

ren_tensor ren__model_add(ren_model *m, const char *name, ren_tensor a, ren_tensor b)
{
    ren__node n = node_of(REN__NODE_ADD, 2);
    ren_tensor inputs[2] = {a, b};
    return ren__model_add_node(m, &n, name, inputs);
}

ren_tensor ren__model_concat(ren_model *m, const char *name, const ren_tensor *xs, uint32_t count)
{
    ren__node n = node_of(REN__NODE_CONCAT, count);
    return ren__model_add_node(m, &n, name, xs);
}

ren_tensor ren__model_flatten(ren_model *m, const char *name, ren_tensor x)
{
    ren__node n = node_of(REN__NODE_FLATTEN, 1);
    return ren__model_add_node(m, &n, name, &x);
}

ren_tensor ren__model_softmax_cross_entropy(ren_model *m, const char *name, ren_tensor logits,
                                            ren_tensor labels,
                                            const ren_cross_entropy_options *options)
{
    ren__node n = node_of(REN__NODE_CROSS_ENTROPY, 2);
    ren_tensor inputs[2] = {logits, labels};
    n.alpha = options->label_smoothing;
    return ren__model_add_node(m, &n, name, inputs);
}

ren_tensor ren__model_mse(ren_model *m, const char *name, ren_tensor prediction, ren_tensor target)
{
    ren__node n = node_of(REN__NODE_MSE, 2);
    ren_tensor inputs[2] = {prediction, target};
    return ren__model_add_node(m, &n, name, inputs);
}

ren_tensor ren__model_huber(ren_model *m, const char *name, ren_tensor prediction,
                            ren_tensor target, const ren_huber_options *options)
{
    ren__node n = node_of(REN__NODE_HUBER, 2);
    ren_tensor inputs[2] = {prediction, target};
    n.alpha = options->delta;
    return ren__model_add_node(m, &n, name, inputs);
}
