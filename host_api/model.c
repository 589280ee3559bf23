/* SPDX-License-Identifier: MIT */
/* host_api/model.c - building models and moving parameters: check the arguments, call train/.
 *
 * Threads   as ren.h says for each call; nothing is kept here.
 *
 * A builder call's bad argument becomes the model's sticky error, like everything else that goes
 * wrong in it; without a model there is nowhere to keep it and the call returns {0}.
 */
#include "ren.h"
#include "../libren/train/model.h"

static const ren_tensor none = {0};

/* ------------------------------------------------------------------ life */

ren_status ren_model_create(ren_runtime *rt, const ren_model_config *config, ren_model **out_model,
                            ren_error *err)
{
    ren_model_config c = ren_model_config_default();
    if (!out_model) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "out_model is NULL");
    }
    *out_model = NULL;
    if (!rt) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "rt is NULL");
    }
    if (config) {
        if (config->struct_size != sizeof c) {
            return REN__FAIL(err, REN_ERR_BAD_STRUCT,
                             "config->struct_size is %u; use ren_model_config_default()",
                             config->struct_size);
        }
        c = *config;
    }
    if (c.infer_streams > 3) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT,
                         "config.infer_streams is %u, not 0 (= all) or 1..3", c.infer_streams);
    }
    if (c.infer_requests > 65536) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT,
                         "config.infer_requests is %u, not 0 (= the default) or 1..65536",
                         c.infer_requests);
    }
    return ren__model_create(rt, &c, out_model, err);
}

void ren_model_destroy(ren_model *m)
{
    if (m) {
        ren__model_destroy(m);
    }
}

ren_status ren_model_status(ren_model *m, ren_error *err)
{
    return m ? ren__model_status(m, err)
             : REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "the model is NULL");
}

/* ------------------------------------------------------------------ builders */

static ren_tensor bad_options(ren_model *m, const char *name, const void *options)
{
    return ren__model_fail(m, options ? REN_ERR_BAD_STRUCT : REN_ERR_INVALID_ARGUMENT,
                           options ? "%.63s: options->struct_size is not one this version knows; "
                                     "start from its *_default()"
                                   : "%.63s: options is NULL, but its sizes have no defaults",
                           name ? name : "");
}

/* A copy of the caller's options into `copy`, which holds the defaults; `required` ones must be
 * given. On failure the calling function returns. */
#define TAKE_OPTIONS(copy, required)                                                               \
    do {                                                                                           \
        if (!m) {                                                                                  \
            return none;                                                                           \
        }                                                                                          \
        if (options ? options->struct_size != sizeof(copy) : (required)) {                         \
            return bad_options(m, name, options);                                                  \
        }                                                                                          \
        if (options) {                                                                             \
            (copy) = *options;                                                                     \
        }                                                                                          \
    } while (0)

ren_tensor ren_input(ren_model *m, const char *name, ren_dtype dtype, const int64_t *dims,
                     uint32_t rank)
{
    if (!m) {
        return none;
    }
    const char *shown = name ? name : "";
    if (!dims) {
        return ren__model_fail(m, REN_ERR_INVALID_ARGUMENT, "input %.63s: dims is NULL", shown);
    }
    if ((uint32_t)dtype > REN_U8) {
        return ren__model_fail(m, REN_ERR_INVALID_ARGUMENT,
                               "input %.63s: dtype %d is none; an input is REN_F32 or REN_I32",
                               shown, (int)dtype);
    }
    if (rank < 1 || rank > REN_MAX_RANK) {
        return ren__model_fail(m, REN_ERR_INVALID_ARGUMENT, "input %.63s: rank %u is not 1 to %u",
                               shown, rank, REN_MAX_RANK);
    }
    return ren__model_input(m, name, dtype, dims, rank);
}

ren_tensor ren_linear(ren_model *m, const char *name, ren_tensor x,
                      const ren_linear_options *options)
{
    ren_linear_options o = ren_linear_options_default();
    TAKE_OPTIONS(o, 1);
    return ren__model_linear(m, name, x, &o);
}

ren_tensor ren_conv2d(ren_model *m, const char *name, ren_tensor x,
                      const ren_conv2d_options *options)
{
    ren_conv2d_options o;
    memset(&o, 0, sizeof o);
    TAKE_OPTIONS(o, 1);
    return ren__model_conv2d(m, name, x, &o);
}

ren_tensor ren_batch_norm(ren_model *m, const char *name, ren_tensor x,
                          const ren_batch_norm_options *options)
{
    ren_batch_norm_options o = ren_batch_norm_options_default();
    TAKE_OPTIONS(o, 0);
    return ren__model_batch_norm(m, name, x, &o);
}

ren_tensor ren_max_pool2d(ren_model *m, const char *name, ren_tensor x,
                          const ren_pool2d_options *options)
{
    ren_pool2d_options o = ren_pool2d_options_default();
    TAKE_OPTIONS(o, 1);
    return ren__model_max_pool2d(m, name, x, &o);
}

ren_tensor ren_avg_pool2d(ren_model *m, const char *name, ren_tensor x,
                          const ren_pool2d_options *options)
{
    ren_pool2d_options o = ren_pool2d_options_default();
    TAKE_OPTIONS(o, 1);
    return ren__model_avg_pool2d(m, name, x, &o);
}

ren_tensor ren_global_avg_pool(ren_model *m, const char *name, ren_tensor x)
{
    return m ? ren__model_global_avg_pool(m, name, x) : none;
}

ren_tensor ren_relu(ren_model *m, const char *name, ren_tensor x)
{
    return m ? ren__model_activation(m, name, x, REN__ACT_RELU, 0.0f) : none;
}

ren_tensor ren_leaky_relu(ren_model *m, const char *name, ren_tensor x,
                          const ren_leaky_relu_options *options)
{
    ren_leaky_relu_options o = ren_leaky_relu_options_default();
    TAKE_OPTIONS(o, 0);
    return ren__model_activation(m, name, x, REN__ACT_LEAKY_RELU, o.negative_slope);
}

ren_tensor ren_tanh(ren_model *m, const char *name, ren_tensor x)
{
    return m ? ren__model_activation(m, name, x, REN__ACT_TANH, 0.0f) : none;
}

ren_tensor ren_sigmoid(ren_model *m, const char *name, ren_tensor x)
{
    return m ? ren__model_activation(m, name, x, REN__ACT_SIGMOID, 0.0f) : none;
}

ren_tensor ren_silu(ren_model *m, const char *name, ren_tensor x)
{
    return m ? ren__model_activation(m, name, x, REN__ACT_SILU, 0.0f) : none;
}

ren_tensor ren_gelu(ren_model *m, const char *name, ren_tensor x, const ren_gelu_options *options)
{
    ren_gelu_options o = ren_gelu_options_default();
    TAKE_OPTIONS(o, 0);
    if ((uint32_t)o.kind > REN_GELU_TANH) {
        return ren__model_fail(m, REN_ERR_INVALID_ARGUMENT, "%.63s: no such kind of GELU: %d",
                               name ? name : "", (int)o.kind);
    }
    return ren__model_activation(
        m, name, x, o.kind == REN_GELU_TANH ? REN__ACT_GELU_TANH : REN__ACT_GELU_ERF, 0.0f);
}

ren_tensor ren_dropout(ren_model *m, const char *name, ren_tensor x,
                       const ren_dropout_options *options)
{
    ren_dropout_options o = ren_dropout_options_default();
    TAKE_OPTIONS(o, 0);
    return ren__model_dropout(m, name, x, &o);
}

ren_tensor ren_add(ren_model *m, const char *name, ren_tensor a, ren_tensor b)
{
    return m ? ren__model_add(m, name, a, b) : none;
}

ren_tensor ren_concat(ren_model *m, const char *name, const ren_tensor *xs, uint32_t count)
{
    if (!m) {
        return none;
    }
    if (!xs || count < 1 || count > 16) {
        return ren__model_fail(m, REN_ERR_INVALID_ARGUMENT,
                               "%.63s: xs is NULL, or count %u is not 1 to 16", name ? name : "",
                               count);
    }
    return ren__model_concat(m, name, xs, count);
}

ren_tensor ren_flatten(ren_model *m, const char *name, ren_tensor x)
{
    return m ? ren__model_flatten(m, name, x) : none;
}

ren_tensor ren_softmax_cross_entropy(ren_model *m, const char *name, ren_tensor logits,
                                     ren_tensor labels, const ren_cross_entropy_options *options)
{
    ren_cross_entropy_options o = ren_cross_entropy_options_default();
    TAKE_OPTIONS(o, 0);
    return ren__model_softmax_cross_entropy(m, name, logits, labels, &o);
}

ren_tensor ren_mse(ren_model *m, const char *name, ren_tensor prediction, ren_tensor target)
{
    return m ? ren__model_mse(m, name, prediction, target) : none;
}

ren_tensor ren_huber(ren_model *m, const char *name, ren_tensor prediction, ren_tensor target,
                     const ren_huber_options *options)
{
    ren_huber_options o = ren_huber_options_default();
    TAKE_OPTIONS(o, 0);
    return ren__model_huber(m, name, prediction, target, &o);
}

/* ------------------------------------------------------------------ parameters */

ren_status ren_param_set(ren_model *m, const char *name, const void *data, size_t bytes)
{
    return m && name && data ? ren__model_param_set(m, name, data, bytes)
                             : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_param_get(ren_model *m, const char *name, void *out_data, size_t bytes)
{
    return m && name && out_data ? ren__model_param_get(m, name, out_data, bytes)
                                 : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_param_set_frozen(ren_model *m, const char *name, uint32_t frozen)
{
    return m && name ? ren__model_set_frozen(m, name, frozen) : REN_ERR_INVALID_ARGUMENT;
}

uint32_t ren_param_count(ren_model *m)
{
    return m ? ren__model_param_count(m) : 0;
}

const char *ren_param_name(ren_model *m, uint32_t index)
{
    const char *name = NULL;
    if (m && index < ren__model_param_count(m)) {
        ren__model_param_info(m, index, &name, NULL, NULL, NULL);
    }
    return name;
}
