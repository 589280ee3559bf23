/* SPDX-License-Identifier: MIT */
/* libren/train/model.h - what a model offers to host_api/ and to the checkpoint.
 *
 * Purpose   host_api/model.c calls the builder and the parameter functions after it has checked the
 *           arguments that need no model; checkpoint.c moves all parameters at once.
 * Threads   builder calls: one thread at a time. Parameter calls: any thread; they lock the model.
 * Words     boundary layout: f32, row-major, convolution weights OIHW, linear weights [out, in].
 *           host values: before a model is put on the device (by the first trainer or inference)
 *           its parameters live in host memory; afterwards in one region of device memory.
 * Memory    only create, builder, trainer_create and infer_prepare calls allocate.
 * Not here  the structs, see model_state.h; steps, see trainer.h; inference, see infer.h.
 */
#ifndef REN_TRAIN_MODEL_H
#define REN_TRAIN_MODEL_H

#include "../core/core.h"

/* ------------------------------------------------------------------ life and state */

/* config's members are in their ranges. */
ren_status ren__model_create(ren_runtime *rt, const ren_model_config *config, ren_model **out,
                             ren_error *err);
void ren__model_destroy(ren_model *m); /* m is not NULL */
ren_status ren__model_status(ren_model *m, ren_error *err);
/* The same as far as it concerns the parameters: see ren__model_built. */
ren_status ren__model_weights_status(ren_model *m, ren_error *err);
ren_runtime *ren__model_runtime(ren_model *m);
const ren__host_allocator *ren__model_allocator(ren_model *m);

/* ------------------------------------------------------------------ builder */

/* Keep `status` and the text as the model's error unless it has one already. Returns {0}. */
ren_tensor ren__model_fail(ren_model *m, ren_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The public builders; options are complete copies with a known struct_size. */
ren_tensor ren__model_input(ren_model *m, const char *name, ren_dtype dtype, const int64_t *dims,
                            uint32_t rank);
ren_tensor ren__model_linear(ren_model *m, const char *name, ren_tensor x,
                             const ren_linear_options *options);
ren_tensor ren__model_conv2d(ren_model *m, const char *name, ren_tensor x,
                             const ren_conv2d_options *options);
ren_tensor ren__model_batch_norm(ren_model *m, const char *name, ren_tensor x,
                                 const ren_batch_norm_options *options);
ren_tensor ren__model_max_pool2d(ren_model *m, const char *name, ren_tensor x,
                                 const ren_pool2d_options *options);
ren_tensor ren__model_avg_pool2d(ren_model *m, const char *name, ren_tensor x,
                                 const ren_pool2d_options *options);
ren_tensor ren__model_global_avg_pool(ren_model *m, const char *name, ren_tensor x);
ren_tensor ren__model_activation(ren_model *m, const char *name, ren_tensor x,
                                 ren__activation activation, float alpha);
ren_tensor ren__model_dropout(ren_model *m, const char *name, ren_tensor x,
                              const ren_dropout_options *options);
ren_tensor ren__model_add(ren_model *m, const char *name, ren_tensor a, ren_tensor b);
ren_tensor ren__model_concat(ren_model *m, const char *name, const ren_tensor *xs, uint32_t count);
ren_tensor ren__model_flatten(ren_model *m, const char *name, ren_tensor x);
ren_tensor ren__model_softmax_cross_entropy(ren_model *m, const char *name, ren_tensor logits,
                                            ren_tensor labels,
                                            const ren_cross_entropy_options *options);
ren_tensor ren__model_mse(ren_model *m, const char *name, ren_tensor prediction, ren_tensor target);
ren_tensor ren__model_huber(ren_model *m, const char *name, ren_tensor prediction,
                            ren_tensor target, const ren_huber_options *options);

/* ------------------------------------------------------------------ parameters */

uint32_t ren__model_param_count(ren_model *m);

/* One parameter; index < count. `dims` are those of the boundary layout, `bytes` their product
 * times 4. Every out pointer may be NULL; the strings and dims live as long as the model. */
void ren__model_param_info(ren_model *m, uint32_t index, const char **out_name, uint32_t *out_rank,
                           const int64_t **out_dims, uint64_t *out_bytes);

/* A layer's parameters or one parameter, by name: no longer changed by steps posted from now on, or
 * changed again. REN_ERR_NAME. Never waits. */
ren_status ren__model_set_frozen(ren_model *m, const char *name, uint32_t frozen);

/* The index of a parameter, or UINT32_MAX. */
uint32_t ren__model_param_find(ren_model *m, const char *name);

/* Sum of the bytes of all parameters: the size of the buffers below. */
uint64_t ren__model_params_bytes(ren_model *m);

/* All parameters, in index order, back to back, in boundary layout; one consistent version: the one
 * after every step posted before the call. `bytes` is ren__model_params_bytes.
 * Returns   REN_OK; the builder's error; REN_ERR_REENTRANT; REN_ERR_FORKED; REN_ERR_DEVICE_LOST;
 *           REN_ERR_QUEUE_FULL; REN_ERR_NO_MEMORY (pinned memory)
 * Blocks    for steps under way. */
ren_status ren__model_params_read(ren_model *m, void *out, uint64_t bytes);

/* The other way: takes effect between two steps, all parameters together. present[i] == 0 leaves
 * parameter i as it is (its place in `data` is skipped, not read); present NULL = all. */
ren_status ren__model_params_write(ren_model *m, const void *data, uint64_t bytes,
                                   const uint8_t *present);

/* The public single-parameter calls. */
ren_status ren__model_param_get(ren_model *m, const char *name, void *out, size_t bytes);
ren_status ren__model_param_set(ren_model *m, const char *name, const void *data, size_t bytes);

#endif
