/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/dnnl_compat.c - the two dialects of oneDNN's C interface.
 *
 * Purpose   See dnnl_compat.h. Each primitive's function has the two forms side by side; nothing
 *           else in libren depends on oneDNN's version.
 * Memory    an attribute object is made and dropped inside each call.
 */
#include "dnnl_compat.h"

#include <stdio.h>
#include <string.h>

ren_status ren__dnnl_check(dnnl_status_t result, ren_error *err, const char *file, int32_t line,
                           const char *what)
{
    if (result == dnnl_success) {
        return REN_OK;
    }
    ren_status status = REN_ERR_DEVICE;
    const char *reason = "failed";
    if (result == dnnl_out_of_memory) {
        status = REN_ERR_NO_MEMORY;
        reason = "ran out of memory";
    } else if (result == dnnl_unimplemented) {
        status = REN_ERR_UNSUPPORTED;
        reason = "has no implementation for these shapes";
    } else if (result == dnnl_invalid_arguments) {
        status = REN_ERR_SHAPE;
        reason = "refused these shapes";
    }
    if (err) {
        err->status = status;
        err->backend_code = (int32_t)result;
        err->file = file;
        err->line = line;
        snprintf(err->text, sizeof err->text, "oneDNN %s: %s", reason, what);
    }
    return status;
}

#if DNNL_VERSION_MAJOR >= 3
#define MD(p)       ((p)->md)
#define MAYBE_MD(p) ((p) ? (p)->md : NULL)
#else
#define MD(p)       (&(p)->md)
#define MAYBE_MD(p) ((p) ? &(p)->md : NULL)
#endif

/* ------------------------------------------------------------------ descriptors */

dnnl_status_t ren__dnnl_md_make(ren__dnnl_md *out, int rank, const dnnl_dim_t *dims,
                                dnnl_format_tag_t tag)
{
    dnnl_dims_t all = {0};
    memset(out, 0, sizeof *out);
    for (int i = 0; i < rank; i++) {
        all[i] = dims[i];
    }
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_tag(&out->md, rank, all, dnnl_f32, tag);
#else
    return dnnl_memory_desc_init_by_tag(&out->md, rank, all, dnnl_f32, tag);
#endif
}

void ren__dnnl_md_drop(ren__dnnl_md *md)
{
#if DNNL_VERSION_MAJOR >= 3
    if (md->md) {
        dnnl_memory_desc_destroy(md->md);
    }
#endif
    memset(md, 0, sizeof *md);
}

dnnl_status_t ren__dnnl_md_query(ren__dnnl_md *out, const_dnnl_primitive_desc_t pd,
                                 dnnl_query_t what)
{
    memset(out, 0, sizeof *out);
#if DNNL_VERSION_MAJOR >= 3
    const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(pd, what, 0);
    return md ? dnnl_memory_desc_clone(&out->md, md) : dnnl_invalid_arguments;
#else
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(pd, what, 0);
    if (!md) {
        return dnnl_invalid_arguments;
    }
    out->md = *md;
    return dnnl_success;
#endif
}

bool ren__dnnl_md_equal(const ren__dnnl_md *a, const ren__dnnl_md *b)
{
    return dnnl_memory_desc_equal(MD(a), MD(b)) != 0;
}

size_t ren__dnnl_md_bytes(const ren__dnnl_md *md)
{
    return dnnl_memory_desc_get_size(MD(md));
}

dnnl_status_t ren__dnnl_memory_make(dnnl_memory_t *out, const ren__dnnl_md *md,
                                    dnnl_engine_t engine)
{
    return dnnl_memory_create(out, MD(md), engine, DNNL_MEMORY_NONE);
}

/* ------------------------------------------------------------------ primitives */

/* Apply an element-wise function to the result. The attribute copies the list. */
static dnnl_status_t append_eltwise(dnnl_primitive_attr_t attr, dnnl_alg_kind_t act)
{
    dnnl_post_ops_t list = NULL;
    dnnl_status_t result = dnnl_post_ops_create(&list);
    if (result == dnnl_success) {
#if DNNL_VERSION_MAJOR >= 3
        result = dnnl_post_ops_append_eltwise(list, act, 0.0f, 0.0f);
#else
        result = dnnl_post_ops_append_eltwise(list, 1.0f, act, 0.0f, 0.0f);
#endif
        if (result == dnnl_success) {
            result = dnnl_primitive_attr_set_post_ops(attr, list);
        }
        dnnl_post_ops_destroy(list);
    }
    return result;
}

static dnnl_status_t make_attr(dnnl_primitive_attr_t *out, dnnl_alg_kind_t act)
{
    dnnl_status_t result = dnnl_primitive_attr_create(out);
    if (result == dnnl_success) {
        result = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
        if (result == dnnl_success && act != dnnl_alg_kind_undef) {
            result = append_eltwise(*out, act);
        }
        if (result != dnnl_success) {
            dnnl_primitive_attr_destroy(*out);
        }
    }
    return result;
}

static dnnl_prop_kind_t prop_of(ren__dnnl_pass pass)
{
    return pass == REN__DNNL_INFERENCE ? dnnl_forward_inference : dnnl_forward_training;
}

#if DNNL_VERSION_MAJOR < 3
/* The second half of making a primitive descriptor in version 2. */
static dnnl_status_t finish_with(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                 dnnl_status_t result, const_dnnl_op_desc_t desc,
                                 dnnl_alg_kind_t act, const_dnnl_primitive_desc_t hint)
{
    dnnl_primitive_attr_t attr = NULL;
    if (result == dnnl_success) {
        result = make_attr(&attr, act);
    }
    if (result == dnnl_success) {
        result = dnnl_primitive_desc_create(out, desc, attr, engine, hint);
        dnnl_primitive_attr_destroy(attr);
    }
    return result;
}

static dnnl_status_t finish(dnnl_primitive_desc_t *out, dnnl_engine_t engine, dnnl_status_t result,
                            const_dnnl_op_desc_t desc, const_dnnl_primitive_desc_t hint)
{
    return finish_with(out, engine, result, desc, dnnl_alg_kind_undef, hint);
}
#endif

/* In version 3 every maker has the attribute as its last argument. */
#define WITH_ATTR(call) WITH_ACT(dnnl_alg_kind_undef, call)
#define WITH_ACT(act, call)                                                                        \
    dnnl_primitive_attr_t attr = NULL;                                                             \
    dnnl_status_t result = make_attr(&attr, act);                                                  \
    if (result == dnnl_success) {                                                                  \
        result = (call);                                                                           \
        dnnl_primitive_attr_destroy(attr);                                                         \
    }                                                                                              \
    return result

dnnl_status_t ren__dnnl_linear(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                               ren__dnnl_pass pass, const ren__dnnl_md *x, const ren__dnnl_md *w,
                               const ren__dnnl_md *b, const ren__dnnl_md *y, dnnl_alg_kind_t act,
                               const_dnnl_primitive_desc_t hint)
{
#if DNNL_VERSION_MAJOR >= 3
    WITH_ACT(act, pass == REN__DNNL_BACKWARD_DATA
                      ? dnnl_inner_product_backward_data_primitive_desc_create(
                            out, engine, MD(x), MD(w), MD(y), hint, attr)
                  : pass == REN__DNNL_BACKWARD_WEIGHTS
                      ? dnnl_inner_product_backward_weights_primitive_desc_create(
                            out, engine, MD(x), MD(w), MAYBE_MD(b), MD(y), hint, attr)
                      : dnnl_inner_product_forward_primitive_desc_create(
                            out, engine, prop_of(pass), MD(x), MD(w), MAYBE_MD(b), MD(y), attr));
#else
    dnnl_inner_product_desc_t desc;
    dnnl_status_t result =
        pass == REN__DNNL_BACKWARD_DATA
            ? dnnl_inner_product_backward_data_desc_init(&desc, MD(x), MD(w), MD(y))
        : pass == REN__DNNL_BACKWARD_WEIGHTS
            ? dnnl_inner_product_backward_weights_desc_init(&desc, MD(x), MD(w), MAYBE_MD(b), MD(y))
            : dnnl_inner_product_forward_desc_init(&desc, prop_of(pass), MD(x), MD(w), MAYBE_MD(b),
                                                   MD(y));
    return finish_with(out, engine, result, &desc, act, hint);
#endif
}

dnnl_status_t ren__dnnl_conv(dnnl_primitive_desc_t *out, dnnl_engine_t engine, ren__dnnl_pass pass,
                             const ren__dnnl_md *x, const ren__dnnl_md *w, const ren__dnnl_md *b,
                             const ren__dnnl_md *y, const ren__dnnl_window *window,
                             dnnl_alg_kind_t act, const_dnnl_primitive_desc_t hint)
{
    const dnnl_alg_kind_t alg = dnnl_convolution_direct;
    const dnnl_dim_t *s = window->stride;
    const dnnl_dim_t *p = window->padding;
    const dnnl_dims_t dilates = {window->dilation[0] - 1, window->dilation[1] - 1};
#if DNNL_VERSION_MAJOR >= 3
    WITH_ACT(act, pass == REN__DNNL_BACKWARD_DATA
                      ? dnnl_convolution_backward_data_primitive_desc_create(
                            out, engine, alg, MD(x), MD(w), MD(y), s, dilates, p, p, hint, attr)
                  : pass == REN__DNNL_BACKWARD_WEIGHTS
                      ? dnnl_convolution_backward_weights_primitive_desc_create(
                            out, engine, alg, MD(x), MD(w), MAYBE_MD(b), MD(y), s, dilates, p, p,
                            hint, attr)
                      : dnnl_convolution_forward_primitive_desc_create(
                            out, engine, prop_of(pass), alg, MD(x), MD(w), MAYBE_MD(b), MD(y), s,
                            dilates, p, p, attr));
#else
    dnnl_convolution_desc_t desc;
    dnnl_status_t result =
        pass == REN__DNNL_BACKWARD_DATA ? dnnl_dilated_convolution_backward_data_desc_init(
                                              &desc, alg, MD(x), MD(w), MD(y), s, dilates, p, p)
        : pass == REN__DNNL_BACKWARD_WEIGHTS
            ? dnnl_dilated_convolution_backward_weights_desc_init(
                  &desc, alg, MD(x), MD(w), MAYBE_MD(b), MD(y), s, dilates, p, p)
            : dnnl_dilated_convolution_forward_desc_init(&desc, prop_of(pass), alg, MD(x), MD(w),
                                                         MAYBE_MD(b), MD(y), s, dilates, p, p);
    return finish_with(out, engine, result, &desc, act, hint);
#endif
}

dnnl_status_t ren__dnnl_pool(dnnl_primitive_desc_t *out, dnnl_engine_t engine, ren__dnnl_pass pass,
                             dnnl_alg_kind_t alg, const ren__dnnl_md *x, const ren__dnnl_md *y,
                             const ren__dnnl_window *window, const_dnnl_primitive_desc_t hint)
{
    const dnnl_dim_t *s = window->stride;
    const dnnl_dim_t *k = window->kernel;
    const dnnl_dim_t *p = window->padding;
    const dnnl_dims_t dense = {0};
#if DNNL_VERSION_MAJOR >= 3
    WITH_ATTR(pass == REN__DNNL_BACKWARD_DATA
                  ? dnnl_pooling_backward_primitive_desc_create(out, engine, alg, MD(x), MD(y), s,
                                                                k, dense, p, p, hint, attr)
                  : dnnl_pooling_forward_primitive_desc_create(
                        out, engine, prop_of(pass), alg, MD(x), MD(y), s, k, dense, p, p, attr));
#else
    dnnl_pooling_v2_desc_t desc;
    dnnl_status_t result =
        pass == REN__DNNL_BACKWARD_DATA
            ? dnnl_pooling_v2_backward_desc_init(&desc, alg, MD(x), MD(y), s, k, dense, p, p)
            : dnnl_pooling_v2_forward_desc_init(&desc, prop_of(pass), alg, MD(x), MD(y), s, k,
                                                dense, p, p);
    return finish(out, engine, result, &desc, hint);
#endif
}

dnnl_status_t ren__dnnl_eltwise(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                ren__dnnl_pass pass, dnnl_alg_kind_t alg, const ren__dnnl_md *x,
                                float alpha, const_dnnl_primitive_desc_t hint)
{
#if DNNL_VERSION_MAJOR >= 3
    WITH_ATTR(pass == REN__DNNL_BACKWARD_DATA
                  ? dnnl_eltwise_backward_primitive_desc_create(out, engine, alg, MD(x), MD(x),
                                                                MD(x), alpha, 0.0f, hint, attr)
                  : dnnl_eltwise_forward_primitive_desc_create(out, engine, prop_of(pass), alg,
                                                               MD(x), MD(x), alpha, 0.0f, attr));
#else
    dnnl_eltwise_desc_t desc;
    dnnl_status_t result =
        pass == REN__DNNL_BACKWARD_DATA
            ? dnnl_eltwise_backward_desc_init(&desc, alg, MD(x), MD(x), alpha, 0.0f)
            : dnnl_eltwise_forward_desc_init(&desc, prop_of(pass), alg, MD(x), alpha, 0.0f);
    return finish(out, engine, result, &desc, hint);
#endif
}

dnnl_status_t ren__dnnl_batch_norm(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                   ren__dnnl_pass pass, const ren__dnnl_md *x, float eps,
                                   bool global_stats, const_dnnl_primitive_desc_t hint)
{
    const unsigned flags = (unsigned)dnnl_use_scale | (unsigned)dnnl_use_shift |
                           (global_stats ? (unsigned)dnnl_use_global_stats : 0u);
#if DNNL_VERSION_MAJOR >= 3
    WITH_ATTR(pass == REN__DNNL_BACKWARD_DATA
                  ? dnnl_batch_normalization_backward_primitive_desc_create(
                        out, engine, dnnl_backward, MD(x), MD(x), MD(x), eps, flags, hint, attr)
                  : dnnl_batch_normalization_forward_primitive_desc_create(
                        out, engine, prop_of(pass), MD(x), MD(x), eps, flags, attr));
#else
    dnnl_batch_normalization_desc_t desc;
    dnnl_status_t result =
        pass == REN__DNNL_BACKWARD_DATA
            ? dnnl_batch_normalization_backward_desc_init(&desc, dnnl_backward, MD(x), MD(x), eps,
                                                          flags)
            : dnnl_batch_normalization_forward_desc_init(&desc, prop_of(pass), MD(x), eps, flags);
    return finish(out, engine, result, &desc, hint);
#endif
}

dnnl_status_t ren__dnnl_softmax(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                const ren__dnnl_md *x)
{
#if DNNL_VERSION_MAJOR >= 3
    WITH_ATTR(dnnl_softmax_forward_primitive_desc_create(
        out, engine, dnnl_forward_inference, dnnl_softmax_accurate, MD(x), MD(x), 1, attr));
#else
    dnnl_softmax_v2_desc_t desc;
    dnnl_status_t result = dnnl_softmax_v2_forward_desc_init(
        &desc, dnnl_forward_inference, dnnl_softmax_accurate, MD(x), MD(x), 1);
    return finish(out, engine, result, &desc, NULL);
#endif
}

dnnl_status_t ren__dnnl_sum_of_two(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                   const ren__dnnl_md *x)
{
#if DNNL_VERSION_MAJOR >= 3
    WITH_ATTR(
        dnnl_binary_primitive_desc_create(out, engine, dnnl_binary_add, MD(x), MD(x), MD(x), attr));
#else
    dnnl_binary_desc_t desc;
    dnnl_status_t result = dnnl_binary_desc_init(&desc, dnnl_binary_add, MD(x), MD(x), MD(x));
    return finish(out, engine, result, &desc, NULL);
#endif
}

dnnl_status_t ren__dnnl_reorder(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                const ren__dnnl_md *from, const ren__dnnl_md *to)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t result = make_attr(&attr, dnnl_alg_kind_undef);
    if (result == dnnl_success) {
        result = dnnl_reorder_primitive_desc_create(out, MD(from), engine, MD(to), engine, attr);
        dnnl_primitive_attr_destroy(attr);
    }
    return result;
}
