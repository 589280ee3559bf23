/* SPDX-License-Identifier: MIT */
/* demos/01_digits/network.c - the small convolutional network, and how often it is right.
 *
 * Purpose   See network.h.
 */
#include "network.h"

#include <stdio.h>

enum {
    FILTERS_1 = 16,
    FILTERS_2 = 32,
    UNITS = 64,
    FLAT = FILTERS_2 * (DIGIT_SIDE / 4) * (DIGIT_SIDE / 4)
};

/* 3 x 3 filters that keep the size, then half of it: x [N, S, S, C] to [N, S/2, S/2, filters]. */
static ren_tensor stage(ren_model *m, const char *const names[3], ren_tensor x, uint32_t filters)
{
    ren_conv2d_options conv = ren_conv2d_options_default();
    conv.filters = filters;
    conv.kernel[0] = conv.kernel[1] = 3;
    conv.padding[0] = conv.padding[1] = 1;
    ren_pool2d_options pool = ren_pool2d_options_default();
    pool.kernel[0] = pool.kernel[1] = 2;
    x = ren_conv2d(m, names[0], x, &conv);
    x = ren_relu(m, names[1], x);
    return ren_max_pool2d(m, names[2], x, &pool);
}

ren_status network_create(network *n, ren_runtime *rt, ren_error *err)
{
    static const char *const first[] = {"conv1", "relu1", "pool1"};
    static const char *const second[] = {"conv2", "relu2", "pool2"};
    const int64_t image_dims[] = {NETWORK_BATCH, DIGIT_SIDE, DIGIT_SIDE, 1};
    const int64_t label_dims[] = {NETWORK_BATCH};
    ren_linear_options linear = ren_linear_options_default();
    ren_status status = ren_model_create(rt, NULL, &n->model, err);
    if (status != REN_OK) {
        return status;
    }
    ren_model *m = n->model;
    ren_tensor image = ren_input(m, "image", REN_F32, image_dims, 4);
    ren_tensor label = ren_input(m, "label", REN_I32, label_dims, 1);
    ren_tensor x = stage(m, first, image, FILTERS_1);
    x = stage(m, second, x, FILTERS_2);
    x = ren_flatten(m, "flatten", x);
    linear.units = UNITS;
    x = ren_linear(m, "linear1", x, &linear);
    x = ren_relu(m, "relu3", x);
    linear.units = DIGIT_CLASSES;
    n->logits = ren_linear(m, "linear2", x, &linear);
    n->loss = ren_softmax_cross_entropy(m, "loss", n->logits, label, NULL);
    /* The first error of any of these calls, if there was one. */
    return ren_model_status(m, err);
}

void network_destroy(network *n)
{
    ren_model_destroy(n->model);
    n->model = NULL;
}

uint64_t network_parameters(void)
{
    return (9 + 1) * FILTERS_1 + (9 * FILTERS_1 + 1) * FILTERS_2 + (FLAT + 1) * UNITS +
           (UNITS + 1) * DIGIT_CLASSES;
}

static int32_t largest(const float *values)
{
    int32_t best = 0;
    for (int32_t i = 1; i < DIGIT_CLASSES; i++) {
        best = values[i] > values[best] ? i : best;
    }
    return best;
}

ren_status network_count_right(network *n, ren_runtime *rt, const digit_set *set,
                               uint32_t *out_right, ren_error *err)
{
    float logits[NETWORK_BATCH][DIGIT_CLASSES];
    *out_right = 0;
    ren_status status = ren_infer_prepare(n->model, n->logits, err);
    for (uint32_t first = 0; status == REN_OK && first < set->count; first += NETWORK_BATCH) {
        uint32_t rows = set->count - first < NETWORK_BATCH ? set->count - first : NETWORK_BATCH;
        ren_binding image = {"image", set->images[first], rows * sizeof *set->images};
        ren_infer_desc desc = ren_infer_desc_default();
        ren_job job;
        desc.bindings = &image;
        desc.binding_count = 1;
        desc.batch = rows;
        desc.output = n->logits;
        desc.out_data = logits;
        desc.out_bytes = rows * sizeof logits[0];
        desc.deliver = REN_DELIVER_NONE;
        status = ren_infer(n->model, &desc, &job);
        if (status == REN_OK) {
            status = ren_wait(rt, job, REN_TIMEOUT_INFINITE);
        }
        if (status != REN_OK) {
            (void)snprintf(err->text, sizeof err->text, "inference: %s", ren_status_text(status));
            return status;
        }
        for (uint32_t i = 0; i < rows; i++) {
            *out_right += largest(logits[i]) == set->labels[first + i];
        }
    }
    return status;
}
