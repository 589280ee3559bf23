/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/module.c - the one symbol that libren_cuda.so exports.
 *
 * Purpose   The core opens the module with dlopen, looks this function up, and gets the device
 *           table or NULL when the two were built for different tables.
 * Threads   any; nothing here has state.
 */
#include "internal.h"

static const ren__device_api table = {
    .struct_size = (uint32_t)sizeof(ren__device_api),
    .abi = REN__DEVICE_ABI,
    .kind = REN_DEVICE_CUDA,
    .open = ren__cuda_open,
    .close = ren__cuda_close,
    .caps = ren__cuda_caps,
    .status = ren__cuda_status,
    .abandon = ren__cuda_abandon,
    .mem_alloc = ren__cuda_mem_alloc,
    .mem_free = ren__cuda_mem_free,
    .host_alloc = ren__cuda_host_alloc,
    .host_free = ren__cuda_host_free,
    .event_create = ren__cuda_event_create,
    .event_destroy = ren__cuda_event_destroy,
    .event_record = ren__cuda_event_record,
    .event_wait = ren__cuda_event_wait,
    .event_sync = ren__cuda_event_sync,
    .copy = ren__cuda_copy,
    .fill = ren__cuda_fill,
    .call = ren__cuda_call,
    .op_create = ren__cuda_op_create,
    .op_destroy = ren__cuda_op_destroy,
    .op_launch = ren__cuda_op_launch,
    .graph_begin = ren__cuda_graph_begin,
    .graph_update = ren__cuda_graph_update,
    .graph_end = ren__cuda_graph_end,
    .graph_launch = ren__cuda_graph_launch,
    .graph_destroy = ren__cuda_graph_destroy,
    .host_is_pinned = ren__cuda_host_is_pinned,
    .copy_now = ren__cuda_copy_now,
    .stamp = ren__cuda_stamp,
};

__attribute__((visibility("default"))) const ren__device_api *ren__device_module_open(uint32_t abi);

const ren__device_api *ren__device_module_open(uint32_t abi)
{
    return abi == REN__DEVICE_ABI ? &table : NULL;
}
