/* SPDX-License-Identifier: MIT */
/* libren/graph/resolve.c - from a plan to one that a device can run.
 *
 * Purpose   Make each op for the lane it was given, make the events, learn the sizes that only ops
 *           know, take one region of device memory, and work out every address once, so that issue
 *           only enqueues.
 * Threads   one; a slow call. Undone by ren__plan_destroy when nothing is in flight.
 * Memory    one region: LOCAL values first, then one workspace a lane, then room for stamps, each
 *           at REN__ALIGN.
 * Units     bytes.
 * Not here  packing of LOCAL values, see place.c.
 *
 * One workspace a lane is enough, and needs no edges: two launches of one lane never overlap, and
 * no op reads what another left in its workspace. It is as large as the hungriest op of the lane
 * asks.
 *
 * On an error everything made so far is released and the plan is as it was after build.
 */
#include "internal.h"

#include <string.h>

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
}

static void *advance(void *base, uint64_t offset)
{
    return base ? (unsigned char *)base + offset : NULL;
}

/* ------------------------------------------------------------------ device objects */

static ren_status make_ops(ren__plan *plan, ren_error *err)
{
    for (uint32_t t = 0; t < plan->task_count; t++) {
        ren__plan_node *node = &plan->nodes[t];
        if (plan->tasks[t].kind != REN__TASK_OP) {
            node->needs.commands = 1;
            continue;
        }
        ren_status status = plan->api->op_create(plan->dev, node->lane, &plan->tasks[t].op,
                                                 &node->op, &node->needs, err);
        if (status != REN_OK) {
            node->op = NULL;
            return ren__runtime_seen(plan->rt, status);
        }
        ren__lane_state *lane = &plan->lanes[node->lane];
        if (node->needs.workspace_bytes > lane->workspace) {
            lane->workspace = node->needs.workspace_bytes;
        }
    }
    return REN_OK;
}

static ren_status make_event(ren__plan *plan, uint32_t for_host_wait, ren__event **out,
                             ren_error *err)
{
    ren_status status =
        ren__runtime_seen(plan->rt, plan->api->event_create(plan->dev, for_host_wait, out));
    if (status != REN_OK) {
        *out = NULL;
        return REN__FAIL(err, status, "an event of a plan could not be made");
    }
    return REN_OK;
}

static ren_status make_events(ren__plan *plan, ren_error *err)
{
    plan->events =
        ren__host_calloc(&plan->allocator, (size_t)plan->event_count + 1u, sizeof *plan->events);
    if (!plan->events) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan's events");
    }
    ren_status status = make_event(plan, 0, &plan->start_event, err);
    if (status == REN_OK) {
        status = make_event(plan, 1, &plan->host_event, err);
    }
    for (uint32_t i = 0; i < plan->event_count && status == REN_OK; i++) {
        status = make_event(plan, 0, &plan->events[i], err);
    }
    return status;
}

/* ------------------------------------------------------------------ memory and addresses */

static ren_status place_saved(ren__plan *plan, ren_error *err)
{
    if (plan->saved_count == 0) {
        return REN_OK; /* build has placed everything already */
    }
    for (uint32_t v = 0; v < plan->value_count; v++) {
        ren__graph_value *value = &plan->values[v];
        if (value->saved_task != REN__NO_TASK) {
            value->bytes = plan->nodes[value->saved_task].needs.saved_bytes;
        }
    }
    return ren__plan_place(plan, err);
}

uint64_t ren__plan_stamps_bytes(const ren__plan *plan)
{
    return 2u * sizeof(uint64_t) * plan->task_count;
}

static uint64_t stamp_block_bytes(const ren__plan *plan)
{
    return align_up(ren__plan_stamps_bytes(plan));
}

uint64_t *ren__plan_stamp_block(const ren__plan *plan, uint32_t index)
{
    return (uint64_t *)(void *)(plan->stamp_blocks + index * stamp_block_bytes(plan));
}

static ren_status take_memory(ren__plan *plan, ren_error *err)
{
    uint64_t bytes = align_up(plan->packed_bytes);
    uint64_t at[REN__LANES];
    for (uint32_t l = 0; l < REN__LANES; l++) {
        at[l] = bytes;
        bytes += align_up(plan->lanes[l].workspace);
    }
    uint64_t stamps_at = bytes;
    bytes += plan->config.stamp_blocks * stamp_block_bytes(plan);
    if (bytes == 0) {
        return REN_OK;
    }
    ren_status status = ren__region_alloc(plan->rt, bytes, &plan->region);
    if (status != REN_OK) {
        memset(&plan->region, 0, sizeof plan->region);
        return REN__FAIL(err, status, "a plan's %llu bytes of device memory: %s",
                         (unsigned long long)bytes, ren__status_text(status));
    }
    for (uint32_t l = 0; l < REN__LANES; l++) {
        plan->lanes[l].workspace_ptr =
            plan->lanes[l].workspace ? advance(plan->region.ptr, at[l]) : NULL;
    }
    plan->stamp_blocks = advance(plan->region.ptr, stamps_at);
    return REN_OK;
}

static ren_status set_addresses(ren__plan *plan, void *const *fixed, ren_error *err)
{
    plan->addresses =
        ren__host_calloc(&plan->allocator, (size_t)plan->value_count + 1u, sizeof(void *));
    if (!plan->addresses) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan's addresses");
    }
    plan->left_external =
        ren__host_calloc(&plan->allocator, (size_t)plan->value_count + 1u, sizeof(void *));
    if (!plan->left_external) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan's addresses");
    }
    for (uint32_t v = 0; v < plan->value_count; v++) {
        const ren__graph_value *value = &plan->values[v];
        if (value->kind == REN__VALUE_FIXED) {
            plan->addresses[v] = advance(fixed ? fixed[value->root] : NULL, value->offset);
        } else if (value->kind == REN__VALUE_LOCAL &&
                   plan->offsets[value->root] != REN__NO_OFFSET) {
            plan->addresses[v] =
                advance(plan->region.ptr, plan->offsets[value->root] + value->offset);
        }
    }
    return REN_OK;
}

/* The roots whose addresses come with each issue, once each. */
static ren_status note_external(ren__plan *plan, uint32_t root)
{
    const uint32_t *known = plan->externals.items;
    for (uint32_t i = 0; i < plan->externals.count; i++) {
        if (known[i] == root) {
            return REN_OK;
        }
    }
    uint32_t *slot = ren__array_push(&plan->externals, sizeof *slot, &plan->allocator);
    if (!slot) {
        return REN_ERR_NO_MEMORY;
    }
    *slot = root;
    return REN_OK;
}

static ren_status set_operand(ren__plan *plan, uint32_t t, uint32_t i, ren_error *err)
{
    const ren__task *task = &plan->tasks[t];
    ren__plan_node *node = &plan->nodes[t];
    uint32_t v = task->operand[i];
    const ren__graph_value *value = &plan->values[v];
    if (value->kind == REN__VALUE_EXTERNAL) {
        node->externals |= 1u << i;
        node->args[i] = (void *)(uintptr_t)(value->offset + task->operand_offset[i]);
        if (note_external(plan, value->root) != REN_OK) {
            return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan's inputs");
        }
        return REN_OK;
    }
    node->args[i] = advance(plan->addresses[v], task->operand_offset[i]);
    if (!node->args[i] && value->kind == REN__VALUE_FIXED) {
        return REN__FAIL(err, REN_ERR_INTERNAL, "task %s: the fixed value %s has no address",
                         task->name, value->name);
    }
    return REN_OK;
}

static ren_status set_operands(ren__plan *plan, ren_error *err)
{
    for (uint32_t t = 0; t < plan->task_count; t++) {
        for (uint32_t i = 0; i < REN__OPERANDS; i++) {
            if (plan->tasks[t].operand[i] == REN__NO_VALUE) {
                continue;
            }
            ren_status status = set_operand(plan, t, i, err);
            if (status != REN_OK) {
                return status;
            }
        }
    }
    return REN_OK;
}

/* ------------------------------------------------------------------ needs */

ren_stream ren__plan_spokesman(const ren__plan *plan, uint32_t lane)
{
    uint32_t s = 0;
    while (plan->config.lane_of[s] != lane) {
        s++;
    }
    return (ren_stream)s;
}

static void set_need(ren__plan *plan)
{
    uint32_t need[REN__LANES] = {0};
    uint32_t origin = plan->origin_lane;
    for (uint32_t t = 0; t <= plan->task_count; t++) {
        const ren__plan_node *node = &plan->nodes[t];
        need[node->lane] +=
            node->needs.commands + node->wait_count + (node->event != REN__NO_EVENT ? 1u : 0u);
    }
    need[origin] += plan->forks ? 1u : 0u;
    for (uint32_t l = 0; l < REN__LANES; l++) {
        need[l] += plan->lanes[l].fork;
        if (plan->lanes[l].used && l != origin) {
            need[l] += 1u;      /* room for the rejoin after a failed issue: a record here */
            need[origin] += 1u; /* and its wait */
        }
    }
    memset(plan->need, 0, sizeof plan->need);
    for (uint32_t l = 0; l < REN__LANES; l++) {
        if (need[l]) {
            plan->need[ren__plan_spokesman(plan, l)] = need[l];
        }
    }
}

void ren__plan_need(const ren__plan *plan, uint32_t out_need[REN_STREAM_COUNT])
{
    memcpy(out_need, plan->need, sizeof plan->need);
}

/* ------------------------------------------------------------------ all of it */

static void destroy_events(ren__plan *plan)
{
    for (uint32_t i = 0; plan->events && i < plan->event_count; i++) {
        if (plan->events[i]) {
            plan->api->event_destroy(plan->dev, plan->events[i]);
        }
    }
    if (plan->start_event) {
        plan->api->event_destroy(plan->dev, plan->start_event);
    }
    if (plan->host_event) {
        plan->api->event_destroy(plan->dev, plan->host_event);
    }
    ren__host_free(&plan->allocator, plan->events, (size_t)plan->event_count + 1u,
                   sizeof *plan->events);
    plan->events = NULL;
    plan->start_event = NULL;
    plan->host_event = NULL;
}

void ren__plan_unresolve(ren__plan *plan)
{
    if (!plan->rt) {
        return;
    }
    for (uint32_t t = 0; t < plan->task_count; t++) {
        ren__plan_node *node = &plan->nodes[t];
        if (node->op) {
            plan->api->op_destroy(plan->dev, node->op);
        }
        node->op = NULL;
        node->externals = 0;
        memset(&node->needs, 0, sizeof node->needs);
        memset(node->args, 0, sizeof node->args);
    }
    destroy_events(plan);
    for (uint32_t l = 0; l < REN__LANES; l++) {
        plan->lanes[l].workspace = 0;
        plan->lanes[l].workspace_ptr = NULL;
    }
    ren__region_free(plan->rt, &plan->region);
    memset(&plan->region, 0, sizeof plan->region);
    ren__array_free(&plan->externals, sizeof(uint32_t), &plan->allocator);
    ren__host_free(&plan->allocator, plan->addresses, (size_t)plan->value_count + 1u,
                   sizeof(void *));
    plan->addresses = NULL;
    ren__host_free(&plan->allocator, plan->left_external, (size_t)plan->value_count + 1u,
                   sizeof(void *));
    plan->left_external = NULL;
    plan->unfinished = 0;
    memset(plan->need, 0, sizeof plan->need);
    plan->stamp_blocks = NULL;
    plan->stamps = NULL;
    plan->torn = 0;
    plan->rt = NULL;
}

static ren_status run_steps(ren__plan *plan, void *const *fixed, ren_error *err)
{
    ren_status status = make_ops(plan, err);
    if (status == REN_OK) {
        status = make_events(plan, err);
    }
    if (status == REN_OK) {
        status = place_saved(plan, err);
    }
    if (status == REN_OK) {
        status = take_memory(plan, err);
    }
    if (status == REN_OK) {
        status = set_addresses(plan, fixed, err);
    }
    if (status == REN_OK) {
        status = set_operands(plan, err);
    }
    return status;
}

ren_status ren__plan_resolve(ren__plan *plan, ren_runtime *rt, void *const *fixed, ren_error *err)
{
    if (plan->rt) {
        return REN__FAIL(err, REN_ERR_INTERNAL, "the plan is resolved already");
    }
    if (plan->config.lanes > ren__runtime_lanes(rt)) {
        return REN__FAIL(err, REN_ERR_INTERNAL, "the plan has more lanes than the runtime");
    }
    plan->rt = rt;
    plan->api = ren__runtime_api(rt);
    plan->dev = ren__runtime_device(rt);
    ren_status status = run_steps(plan, fixed, err);
    if (status != REN_OK) {
        ren__plan_unresolve(plan);
        return status;
    }
    set_need(plan);
    return REN_OK;
}
