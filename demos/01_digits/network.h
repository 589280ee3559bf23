/* SPDX-License-Identifier: MIT */
/* demos/01_digits/network.h - the small convolutional network, and how often it is right.
 *
 * Purpose   Build the same network as often as needed, and measure it on a set of digits.
 */
#ifndef DEMO_NETWORK_H
#define DEMO_NETWORK_H

#include "../../host_api/ren.h"
#include "digits.h"

enum {
    NETWORK_BATCH = 32 /* digits of a training step, and the most of an inference */
};

typedef struct network {
    ren_model *model;
    ren_tensor logits;
    ren_tensor loss;
} network;

ren_status network_create(network *n, ren_runtime *rt, ren_error *err);
void network_destroy(network *n);

/* How many digits of the set get their label. Blocks until the device has told. */
ren_status network_count_right(network *n, ren_runtime *rt, const digit_set *set,
                               uint32_t *out_right, ren_error *err);

/* The number of parameters, all tensors together. */
uint64_t network_parameters(void);

#endif
