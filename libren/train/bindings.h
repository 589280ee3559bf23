/* SPDX-License-Identifier: MIT */
/* libren/train/bindings.h - what is wrong with the names that a post binds.
 *
 * Purpose   Steps and inferences look their bindings up by name, each in a table of its own, and
 *           answer REN_ERR_NAME where that fails. This finds out why, for the log.
 * Threads   any; nothing is kept.
 */
#ifndef REN_TRAIN_BINDINGS_H
#define REN_TRAIN_BINDINGS_H

#include "../core/core.h"

/* Tells the log, where config.validate asks for it, which binding is unknown or doubled, or which
 * of the inputs has none. `what` is posted: "step" or "inference". Returns REN_ERR_NAME. */
ren_status ren__bindings_refuse(ren_runtime *rt, const char *what, const ren_binding *bindings,
                                uint32_t binding_count, const char *const *inputs,
                                uint32_t input_count);

#endif
