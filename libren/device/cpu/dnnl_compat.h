/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/dnnl_compat.h - oneDNN's C interface, as libren uses it, for versions 2 and 3.
 *
 * Purpose   Between the two major versions memory descriptors became opaque and the step over an
 *           operation descriptor went away. Here both look the same: a descriptor is a
 *           `ren__dnnl_md`, and each primitive has one call that makes its primitive descriptor.
 * Threads   as oneDNN: objects may be used by one thread at a time, engines by many.
 * Memory    a ren__dnnl_md must be dropped; a zeroed one may be dropped too.
 * Errors    REN__DNNL(err, call) returns from the calling function with a ren_status on failure.
 */
#ifndef REN_DEVICE_CPU_DNNL_COMPAT_H
#define REN_DEVICE_CPU_DNNL_COMPAT_H

#include <dnnl.h>
#include <stdbool.h>

#include "../../../host_api/ren.h"

typedef struct ren__dnnl_md {
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t md; /* NULL when not set */
#else
    dnnl_memory_desc_t md;
#endif
} ren__dnnl_md;

/* REN_OK, or the status that stands for a oneDNN failure, with `what` in the text. */
ren_status ren__dnnl_check(dnnl_status_t result, ren_error *err, const char *file, int32_t line,
                           const char *what);

#define REN__DNNL(err, call)                                                                       \
    do {                                                                                           \
        ren_status dnnl_checked_ = ren__dnnl_check((call), (err), __FILE__, __LINE__, #call);      \
        if (dnnl_checked_ != REN_OK) {                                                             \
            return dnnl_checked_;                                                                  \
        }                                                                                          \
    } while (0)

/* f32 of the given dims and layout. */
dnnl_status_t ren__dnnl_md_make(ren__dnnl_md *out, int rank, const dnnl_dim_t *dims,
                                dnnl_format_tag_t tag);
void ren__dnnl_md_drop(ren__dnnl_md *md);
/* A copy of what a primitive descriptor expects for one of its arguments. */
dnnl_status_t ren__dnnl_md_query(ren__dnnl_md *out, const_dnnl_primitive_desc_t pd,
                                 dnnl_query_t what);
bool ren__dnnl_md_equal(const ren__dnnl_md *a, const ren__dnnl_md *b);
size_t ren__dnnl_md_bytes(const ren__dnnl_md *md);
dnnl_status_t ren__dnnl_memory_make(dnnl_memory_t *out, const ren__dnnl_md *md,
                                    dnnl_engine_t engine);

typedef enum ren__dnnl_pass {
    REN__DNNL_INFERENCE = 0,
    REN__DNNL_FORWARD, /* for training */
    REN__DNNL_BACKWARD_DATA,
    REN__DNNL_BACKWARD_WEIGHTS
} ren__dnnl_pass;

/* All below: x, y stand for the source and destination and, in backward passes, for their
 * gradients. `hint` is the forward pass' descriptor, needed by backward passes. Scratch memory is
 * the caller's (user mode). */

/* w and b: weights and bias, or their gradients; b may be NULL. act: what is applied to y, in a
 * forward pass; dnnl_alg_kind_undef = nothing. */
dnnl_status_t ren__dnnl_linear(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                               ren__dnnl_pass pass, const ren__dnnl_md *x, const ren__dnnl_md *w,
                               const ren__dnnl_md *b, const ren__dnnl_md *y, dnnl_alg_kind_t act,
                               const_dnnl_primitive_desc_t hint);

/* Height and width, in the first two entries of each. dilation: 1 = dense. */
typedef struct ren__dnnl_window {
    dnnl_dims_t kernel, stride, padding, dilation;
} ren__dnnl_window;

dnnl_status_t ren__dnnl_conv(dnnl_primitive_desc_t *out, dnnl_engine_t engine, ren__dnnl_pass pass,
                             const ren__dnnl_md *x, const ren__dnnl_md *w, const ren__dnnl_md *b,
                             const ren__dnnl_md *y, const ren__dnnl_window *window,
                             dnnl_alg_kind_t act, const_dnnl_primitive_desc_t hint);

dnnl_status_t ren__dnnl_pool(dnnl_primitive_desc_t *out, dnnl_engine_t engine, ren__dnnl_pass pass,
                             dnnl_alg_kind_t alg, const ren__dnnl_md *x, const ren__dnnl_md *y,
                             const ren__dnnl_window *window, const_dnnl_primitive_desc_t hint);

dnnl_status_t ren__dnnl_eltwise(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                ren__dnnl_pass pass, dnnl_alg_kind_t alg, const ren__dnnl_md *x,
                                float alpha, const_dnnl_primitive_desc_t hint);

/* Scale and shift are separate arguments. global_stats: mean and variance are inputs. */
dnnl_status_t ren__dnnl_batch_norm(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                   ren__dnnl_pass pass, const ren__dnnl_md *x, float eps,
                                   bool global_stats, const_dnnl_primitive_desc_t hint);

/* Version 2 counts the shift among the inputs of the backward pass, though it cannot matter there;
 * version 3 refuses it. */
#if DNNL_VERSION_MAJOR >= 3
#define REN__DNNL_BATCH_NORM_BACKWARD_SHIFTS 0u
#else
#define REN__DNNL_BATCH_NORM_BACKWARD_SHIFTS 1u
#endif

/* Over the last axis of a matrix. */
dnnl_status_t ren__dnnl_softmax(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                const ren__dnnl_md *x);

dnnl_status_t ren__dnnl_sum_of_two(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                   const ren__dnnl_md *x);

dnnl_status_t ren__dnnl_reorder(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                const ren__dnnl_md *from, const ren__dnnl_md *to);

#endif
