/* SPDX-License-Identifier: MIT */
/* libren/train/builder.h - between the public builders and the model's list of nodes. */
#ifndef REN_TRAIN_BUILDER_H
#define REN_TRAIN_BUILDER_H

#include "model_state.h"

/* Append *n, whose kind, options and input_count are set. {0} after an error, which sticks. */
ren_tensor ren__model_add_node(ren_model *m, ren__node *n, const char *name,
                               const ren_tensor *inputs);

#endif
