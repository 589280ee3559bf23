/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/op_pool.c - maximum, average and global average pooling.
 *
 * Purpose   Pooling over height and width of NHWC activations by oneDNN. Output sizes round down;
 *           padding is never counted in an average; a tie of the maximum goes to the first in
 *           row-major order.
 * Memory    the maximum's backward pass needs to know which element won: oneDNN's own record of it,
 *           kept by the caller in the operand `saved`, whose size is saved_bytes.
 */
#include "op.h"

typedef struct pooling {
    dnnl_alg_kind_t alg;
    ren__dnnl_window window;
    const ren__dnnl_md *x;
    const ren__dnnl_md *y;
    int x_at; /* operand numbers; of the gradients in the backward pass */
    int y_at;
    int saved_at; /* -1: none */
    bool backward;
} pooling;

static ren_status make_pd(ren__cpu_build *b, const pooling *p, ren__dnnl_pass pass,
                          dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_desc_t *slot = ren__cpu_pd_slot(b);
    REN__DNNL(b->err,
              ren__dnnl_pool(slot, b->dev->engine, pass, p->alg, p->x, p->y, &p->window, hint));
    *out = *slot;
    return REN_OK;
}

static ren_status build(ren__cpu_build *b, const pooling *p)
{
    bool keeps = p->saved_at >= 0;
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_desc_t pd = NULL;
    bool trains = keeps || p->backward;
    REN__TRY(make_pd(b, p, trains ? REN__DNNL_FORWARD : REN__DNNL_INFERENCE, NULL, &hint));
    pd = hint;
    if (p->backward) {
        REN__TRY(make_pd(b, p, REN__DNNL_BACKWARD_DATA, hint, &pd));
    }
    uint32_t x = 0;
    uint32_t y = 0;
    uint32_t saved = 0;
    REN__TRY(ren__cpu_memory(b, p->x, p->x_at, &x));
    REN__TRY(ren__cpu_memory(b, p->y, p->y_at, &y));
    if (keeps) {
        const ren__dnnl_md *record = NULL;
        REN__TRY(ren__cpu_md_query(b, hint, dnnl_query_workspace_md, &record));
        REN__TRY(ren__cpu_memory(b, record, p->saved_at, &saved));
        b->op->saved_bytes = ren__dnnl_md_bytes(record);
    }
    const int args[][2] = {{p->backward ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, (int)x},
                           {p->backward ? DNNL_ARG_DIFF_DST : DNNL_ARG_DST, (int)y},
                           {DNNL_ARG_WORKSPACE, (int)saved}};
    return ren__cpu_step(b, pd, args, keeps ? 3 : 2);
}

/* The output's shape must be what the window gives. */
static ren_status check_window(ren__cpu_build *b, pooling *p)
{
    const ren__op_desc *d = b->desc;
    const int64_t any[4] = {-1, -1, -1, -1};
    REN__TRY(ren__cpu_expect(b, (uint32_t)p->x_at, REN_F32, 4, any));
    const int64_t *x = d->operand[p->x_at].dims;
    int64_t y[4] = {x[0], 0, 0, x[3]};
    for (int i = 0; i < 2; i++) {
        if (d->kernel[i] < 1 || d->stride[i] < 1 || d->padding[i] > d->kernel[i] / 2u) {
            return REN__CPU_FAIL(b->err, REN_ERR_SHAPE,
                                 "kernel and stride must be at least 1, padding at most half the "
                                 "kernel");
        }
        int64_t room = x[1 + i] + 2 * (int64_t)d->padding[i] - (int64_t)d->kernel[i];
        if (room < 0) {
            return REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "the window is larger than its input");
        }
        y[1 + i] = room / d->stride[i] + 1;
        p->window.kernel[i] = d->kernel[i];
        p->window.stride[i] = d->stride[i];
        p->window.padding[i] = d->padding[i];
    }
    return ren__cpu_expect(b, (uint32_t)p->y_at, REN_F32, 4, y);
}

ren_status ren__cpu_build_pool(ren__cpu_build *b)
{
    pooling p = {.saved_at = -1};
    switch (b->desc->kind) {
    case REN__OP_MAX_POOL_FWD:
        p = (pooling){.alg = dnnl_pooling_max, .x_at = 0, .y_at = 1};
        p.saved_at = b->desc->training ? 2 : -1;
        break;
    case REN__OP_MAX_POOL_BWD:
        p = (pooling){.alg = dnnl_pooling_max, .x_at = 4, .y_at = 0, .saved_at = 3};
        p.backward = true;
        break;
    case REN__OP_AVG_POOL_FWD:
        p.alg = dnnl_pooling_avg_exclude_padding;
        p.y_at = 1;
        break;
    default:
        p.alg = dnnl_pooling_avg_exclude_padding;
        p.x_at = 1;
        p.backward = true;
        break;
    }
    REN__TRY(check_window(b, &p));
    REN__TRY(ren__cpu_md_nhwc(b, (uint32_t)p.x_at, &p.x));
    REN__TRY(ren__cpu_md_nhwc(b, (uint32_t)p.y_at, &p.y));
    return build(b, &p);
}

ren_status ren__cpu_build_global_avg(ren__cpu_build *b)
{
    bool backward = b->desc->kind == REN__OP_GLOBAL_AVG_BWD;
    pooling p = {.alg = dnnl_pooling_avg_exclude_padding, .saved_at = -1, .backward = backward};
    p.x_at = backward ? 1 : 0;
    p.y_at = backward ? 0 : 1;
    const int64_t any[4] = {-1, -1, -1, -1};
    REN__TRY(ren__cpu_expect(b, (uint32_t)p.x_at, REN_F32, 4, any));
    const int64_t *x = b->desc->operand[p.x_at].dims;
    REN__TRY(ren__cpu_expect(b, (uint32_t)p.y_at, REN_F32, 2, (const int64_t[]){x[0], x[3]}));
    for (int i = 0; i < 2; i++) {
        p.window.kernel[i] = x[1 + i];
        p.window.stride[i] = 1;
    }
    REN__TRY(ren__cpu_md_nhwc(b, (uint32_t)p.x_at, &p.x));
    REN__TRY(ren__cpu_md_nhwc(b, (uint32_t)p.y_at, &p.y));
    return build(b, &p);
}
