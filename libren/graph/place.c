/* SPDX-License-Identifier: MIT */
/* libren/graph/place.c - where LOCAL values live inside the plan's region.
 *
 * Purpose   Give every LOCAL root that a task touches an offset, sharing memory where the plan's
 *           order already keeps the users apart.
 * Threads   one.
 * Memory    scratch for the call; the offsets stay in the plan.
 * Units     bytes.
 * Not here  the packing itself, see memory/plan.h; workspaces and addresses, see resolve.c.
 *
 * Two values may share memory if every task that touches the one is complete before any task that
 * touches the other starts. By the clocks (events.c) a task knows exactly the tasks that are
 * complete before it. So for each value two clocks are enough: `last`, the last task of each lane
 * that touches it, and `floor`, what all tasks that touch it know, which is the smallest of their
 * clocks, lane by lane. Value a is dead before b lives when a's last is at most b's floor on every
 * lane: five comparisons, and no table of who reaches whom. Sharing adds no edge, hence no event:
 * where order would have to be added, the values lie side by side instead.
 *
 * Across issues nothing is promised: a LOCAL value holds its contents from its first task to its
 * last, and every issue starts behind the join of the one before.
 */
#include "internal.h"
#include "../../memory/plan.h"

typedef struct lifetime {
    ren__clock last;
    ren__clock floor;
    uint32_t used;
} lifetime;

typedef struct placer {
    lifetime *lives; /* by value; roots only */
    uint64_t *bytes; /* by value; 0 unless a LOCAL root in use */
    uint32_t reuse;
} placer;

static void touch(const ren__plan *plan, uint32_t task, lifetime *life)
{
    const ren__clock *known = &plan->known[task];
    for (uint32_t l = 0; l < REN__LANES; l++) {
        if (!life->used || known->after[l] < life->floor.after[l]) {
            life->floor.after[l] = known->after[l];
        }
    }
    life->last.after[plan->nodes[task].lane] = task + 1u;
    life->used = 1;
}

static int dead_before(const lifetime *a, const lifetime *b)
{
    for (uint32_t l = 0; l < REN__LANES; l++) {
        if (a->last.after[l] > b->floor.after[l]) {
            return 0;
        }
    }
    return 1;
}

static int conflict(void *user, uint32_t a, uint32_t b)
{
    const placer *p = user;
    return !p->reuse ||
           !(dead_before(&p->lives[a], &p->lives[b]) || dead_before(&p->lives[b], &p->lives[a]));
}

static void find_lifetimes(const ren__plan *plan, placer *p)
{
    for (uint32_t t = 0; t < plan->task_count; t++) {
        for (uint32_t i = 0; i < REN__OPERANDS; i++) {
            uint32_t value = plan->tasks[t].operand[i];
            if (value != REN__NO_VALUE) {
                uint32_t root = plan->values[value].root;
                touch(plan, t, &p->lives[root]);
                p->bytes[root] = plan->values[root].bytes;
            }
        }
    }
}

static uint64_t keep_local(const ren__plan *plan, placer *p)
{
    uint64_t flat = 0;
    for (uint32_t v = 0; v < plan->value_count; v++) {
        if (plan->values[v].kind != REN__VALUE_LOCAL) {
            p->bytes[v] = 0;
        }
        flat += (p->bytes[v] + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
    }
    return flat;
}

ren_status ren__plan_place(ren__plan *plan, ren_error *err)
{
    const ren__host_allocator *a = &plan->allocator;
    if (plan->value_count == 0) {
        return REN_OK;
    }
    placer p = {.reuse = plan->config.reuse};
    p.lives = ren__host_calloc(a, plan->value_count, sizeof *p.lives);
    p.bytes = ren__host_calloc(a, plan->value_count, sizeof *p.bytes);
    ren_status status = p.lives && p.bytes ? REN_OK : REN_ERR_NO_MEMORY;
    if (status == REN_OK) {
        find_lifetimes(plan, &p);
        plan->counts.local_bytes_flat = keep_local(plan, &p);
        status = ren__memory_plan(p.bytes, plan->value_count, conflict, &p, a, plan->offsets,
                                  &plan->packed_bytes);
        plan->counts.local_bytes = plan->packed_bytes;
    }
    for (uint32_t v = 0; v < plan->value_count && status == REN_OK; v++) {
        if (p.bytes[v] == 0) {
            plan->offsets[v] = REN__NO_OFFSET;
        }
    }
    ren__host_free(a, p.bytes, plan->value_count, sizeof *p.bytes);
    ren__host_free(a, p.lives, plan->value_count, sizeof *p.lives);
    return status == REN_OK ? REN_OK : REN__FAIL(err, status, "local values could not be placed");
}
