/* SPDX-License-Identifier: MIT */
/* libren/train/scalars.c - what the optimizer's scalars may be.
 *
 * Purpose   One table for a trainer's configuration and for ren_trainer_set_scalar, so that a value
 *           that one refuses does not come in by the other.
 * Ranges    those outside which an update is not what the optimizer's paper defines: a beta of 1
 *           makes Adam's correction divide by zero, a negative rate climbs.
 */
#include <math.h>
#include <stddef.h>

#include "trainer_state.h"

typedef struct scalar_rule {
    const char *name;
    size_t at; /* in ren__control */
    float end; /* values are from 0 and below this */
} scalar_rule;

static const scalar_rule rules[] = {
    [REN_SCALAR_LEARNING_RATE] = {"learning_rate", offsetof(ren__control, learning_rate), INFINITY},
    [REN_SCALAR_MOMENTUM] = {"momentum", offsetof(ren__control, momentum), INFINITY},
    [REN_SCALAR_BETA1] = {"beta1", offsetof(ren__control, beta1), 1.0f},
    [REN_SCALAR_BETA2] = {"beta2", offsetof(ren__control, beta2), 1.0f},
    [REN_SCALAR_EPS] = {"eps", offsetof(ren__control, eps), INFINITY},
    [REN_SCALAR_WEIGHT_DECAY] = {"weight_decay", offsetof(ren__control, weight_decay), INFINITY},
    [REN_SCALAR_LARS_ETA] = {"lars_eta", offsetof(ren__control, lars_eta), INFINITY},
    [REN_SCALAR_CLIP_NORM] = {"clip_norm", offsetof(ren__control, clip_norm), INFINITY},
    [REN_SCALAR_EMA_DECAY] = {"ema_decay", offsetof(ren__control, ema_decay), 1.0f},
};

ren_status ren__scalar_put(ren__control *control, ren_scalar scalar, float value, ren_error *err)
{
    if ((uint32_t)scalar >= sizeof rules / sizeof rules[0]) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "there is no scalar %d", (int)scalar);
    }
    const scalar_rule *rule = &rules[scalar];
    if (!isfinite(value)) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "%s is not finite", rule->name);
    }
    if (value < 0.0f) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "%s %g is negative", rule->name,
                         (double)value);
    }
    if (value >= rule->end) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "%s %g is not in [0, 1)", rule->name,
                         (double)value);
    }
    *(float *)((unsigned char *)control + rule->at) = value;
    return REN_OK;
}

ren_status ren__scalars_take(ren__control *control, const ren_trainer_config *c, ren_error *err)
{
    const float values[] = {
        [REN_SCALAR_LEARNING_RATE] = c->learning_rate,
        [REN_SCALAR_MOMENTUM] = c->momentum,
        [REN_SCALAR_BETA1] = c->beta1,
        [REN_SCALAR_BETA2] = c->beta2,
        [REN_SCALAR_EPS] = c->eps,
        [REN_SCALAR_WEIGHT_DECAY] = c->weight_decay,
        [REN_SCALAR_LARS_ETA] = c->lars_eta,
        [REN_SCALAR_CLIP_NORM] = c->clip_norm,
        [REN_SCALAR_EMA_DECAY] = c->ema_decay,
    };
    ren_status status = REN_OK;
    for (size_t i = 0; i < sizeof values / sizeof values[0] && status == REN_OK; i++) {
        status = ren__scalar_put(control, (ren_scalar)i, values[i], err);
    }
    if (status == REN_OK && c->precision == REN_PRECISION_MIXED_F16 &&
        !(c->loss_scale >= 1.0f && c->loss_scale <= 16777216.0f)) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "loss_scale %g is not in [1, 2^24]",
                         (double)c->loss_scale);
    }
    control->grad_divisor = 1.0f;
    control->nesterov = c->nesterov ? 1 : 0;
    return status;
}
