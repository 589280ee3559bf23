/* SPDX-License-Identifier: MIT */
/* libren/train/bindings.c - see bindings.h. */
#include "bindings.h"

static uint32_t times_bound(const ren_binding *bindings, uint32_t count, const char *name)
{
    uint32_t times = 0;
    for (uint32_t i = 0; i < count; i++) {
        times += strcmp(bindings[i].input, name) == 0;
    }
    return times;
}

ren_status ren__bindings_refuse(ren_runtime *rt, const char *what, const ren_binding *bindings,
                                uint32_t binding_count, const char *const *inputs,
                                uint32_t input_count)
{
    for (uint32_t i = 0; i < input_count; i++) {
        uint32_t times = times_bound(bindings, binding_count, inputs[i]);
        if (times != 1) {
            return ren__runtime_refuse(rt, REN_ERR_NAME, "%s: input \"%s\" is %s", what, inputs[i],
                                       times ? "bound more than once" : "not bound");
        }
    }
    for (uint32_t i = 0; i < binding_count; i++) {
        uint32_t known = 0;
        for (uint32_t k = 0; k < input_count; k++) {
            known |= strcmp(bindings[i].input, inputs[k]) == 0;
        }
        if (!known) {
            return ren__runtime_refuse(rt, REN_ERR_NAME, "%s: \"%.63s\" is none of its %u inputs",
                                       what, bindings[i].input, input_count);
        }
    }
    return REN_ERR_NAME;
}
