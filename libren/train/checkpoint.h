/* SPDX-License-Identifier: MIT */
/* libren/train/checkpoint.h - a model's parameters to and from a safetensors file.
 *
 * Purpose   What ren_model_save and ren_model_load do once host_api/ has checked their arguments.
 * Threads   any; a model is locked only while its parameters are copied.
 * Progress  Blocks for steps under way and for the file.
 * Memory    One buffer of all parameters, and what safetensors.h takes, for the time of the call.
 * Not here  the header's grammar and its checks, see safetensors.h.
 */
#ifndef REN_TRAIN_CHECKPOINT_H
#define REN_TRAIN_CHECKPOINT_H

#include "model.h"

/* Write all parameters to a temporary file beside `path`, make it durable, then rename it over
 * `path`: whoever opens `path` finds the old file or the new one, whole. */
ren_status ren__checkpoint_save(ren_model *m, const char *path, ren_error *err);

/* Check the whole file against the format and the model, read it, then change all parameters
 * together. After an error none has changed. flags: REN_LOAD_ALLOW_MISSING,
 * REN_LOAD_ALLOW_EXTRA. */
ren_status ren__checkpoint_load(ren_model *m, const char *path, uint32_t flags, ren_error *err);

#endif
