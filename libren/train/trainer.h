/* SPDX-License-Identifier: MIT */
/* libren/train/trainer.h - what training and inference offer to host_api/.
 *
 * Purpose   host_api/trainer.c calls these after it has checked what needs no model: pointers,
 *           struct sizes, enums, channels.
 * Threads   as the public calls say.
 */
#ifndef REN_TRAIN_TRAINER_H
#define REN_TRAIN_TRAINER_H

#include "model.h"

#define REN__STEP_PLANS     8u  /* plan_cache unless the host says otherwise */
#define REN__MAX_STEP_PLANS 64u /* and the most that it may say */

ren_status ren__trainer_create(ren_model *m, ren_tensor loss, const ren_trainer_config *config,
                               ren_trainer **out, ren_error *err);
void ren__trainer_destroy(ren_trainer *t);
ren_runtime *ren__trainer_runtime(ren_trainer *t);
ren_status ren__trainer_step(ren_trainer *t, const ren_step_desc *desc, ren_job *out_job);
ren_status ren__trainer_set_scalar(ren_trainer *t, ren_scalar scalar, float value);
ren_status ren__trainer_acquire(ren_trainer *t, const char *input, void **out_ptr,
                                size_t *out_bytes);
/* 1 = the submitter waits on the host after each task of a step: what a step without overlap costs.
 * For benchmarks; before the first step. */
void ren__trainer_set_sync(ren_trainer *t, uint32_t sync);
/* picture.c */
ren_status ren__trainer_dump(ren_trainer *t, uint32_t batch, const char *path, ren_error *err);

ren_status ren__infer(ren_model *m, const ren_infer_desc *desc, ren_job *out_job);
ren_status ren__infer_prepare(ren_model *m, ren_tensor output, ren_error *err);

#endif
