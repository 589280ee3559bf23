/* SPDX-License-Identifier: MIT */
/* libren/train/infer.h - what inference offers to the model. */
#ifndef REN_TRAIN_INFER_H
#define REN_TRAIN_INFER_H

#include "model_state.h"

/* Free all plans and contexts; the chain has run empty. */
void ren__infer_free_all(ren_model *m);

#endif
