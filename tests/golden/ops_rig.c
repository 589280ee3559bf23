/* SPDX-License-Identifier: MIT */
/* tests/golden/ops_rig.c - see ops_rig.h. */
#include "ops_rig.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

double ops_tolerance(const rig *r)
{
    return r->api->kind == REN_DEVICE_CPU ? 1e-5 : 2e-5;
}

ren__op_desc ops_desc(ren__op_kind kind)
{
    ren__op_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = (uint32_t)sizeof desc;
    desc.kind = kind;
    for (int i = 0; i < 2; i++) {
        desc.kernel[i] = 1;
        desc.stride[i] = 1;
        desc.dilation[i] = 1;
    }
    desc.groups = 1;
    return desc;
}

void ops_shape(ren__op_desc *desc, uint32_t operand, uint32_t rank, const int64_t *dims)
{
    desc->operand[operand].dtype = REN_F32;
    desc->operand[operand].rank = rank;
    for (uint32_t i = 0; i < rank; i++) {
        desc->operand[operand].dims[i] = dims[i];
    }
}

ren__control ops_control(void)
{
    ren__control control;
    memset(&control, 0, sizeof control);
    control.step = 1;
    control.grad_divisor = 1.0f;
    return control;
}

/* NaN, then the values if there are any. */
static void put(rig *r, void *dst, const void *src, uint64_t bytes)
{
    RIG_OK(r->api->fill(r->dev, 0, dst, 0xffu, bytes));
    if (src) {
        rig_upload(r, dst, src, bytes);
    }
    rig_finish(r, 0);
}

ren_status ops_run(rig *r, const ren__op_desc *desc, const op_io io[REN__OPERANDS], void **saved)
{
    ren__op *op = NULL;
    ren__op_needs needs = {0};
    ren_error err = {0};
    const uint32_t lane = (uint32_t)desc->kind % r->config.lanes;
    ren_status status = r->api->op_create(r->dev, lane, desc, &op, &needs, &err);
    if (status != REN_OK) {
        return status;
    }
    const bool forward_pool = desc->kind == REN__OP_MAX_POOL_FWD;
    const uint32_t saved_at = forward_pool ? 2u : 3u;
    void *address[REN__OPERANDS] = {0};
    uint64_t bytes[REN__OPERANDS];
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        bool is_saved = saved && needs.saved_bytes && i == saved_at;
        bytes[i] = is_saved      ? needs.saved_bytes
                   : io[i].bytes ? io[i].bytes
                                 : ren__tensor_bytes(&desc->operand[i]);
        if (bytes[i]) {
            address[i] = rig_alloc(r, bytes[i]);
            put(r, address[i], is_saved && !forward_pool ? *saved : io[i].in, bytes[i]);
        }
    }
    void *workspace = needs.workspace_bytes ? rig_alloc(r, needs.workspace_bytes) : NULL;
    if (workspace) {
        put(r, workspace, NULL, needs.workspace_bytes);
    }
    RIG_OK(r->api->op_launch(r->dev, lane, op, address, workspace));
    rig_finish(r, lane);
    if (saved && forward_pool && needs.saved_bytes) {
        *saved = malloc(needs.saved_bytes);
        rig_download(r, *saved, address[saved_at], needs.saved_bytes);
    }
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (address[i] && io[i].out) {
            rig_download(r, io[i].out, address[i], bytes[i]);
        }
    }
    r->api->op_destroy(r->dev, op);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (address[i]) {
            r->api->mem_free(r->dev, address[i], bytes[i]);
        }
    }
    if (workspace) {
        r->api->mem_free(r->dev, workspace, needs.workspace_bytes);
    }
    return REN_OK;
}
