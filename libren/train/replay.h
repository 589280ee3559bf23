/* SPDX-License-Identifier: MIT */
/* libren/train/replay.h - a plan issued task by task at first, and as one captured graph later.
 *
 * Purpose   Decides, step by step, by which of its two paths a plan reaches the device, and makes
 *           the graphs. step.c asks for an issue and learns which path it took.
 * Threads   init, deinit: whoever owns the plan, with no issue under way. issue: the submitter.
 * Progress  issue never waits for the device.
 * Memory    none of the host's; a capture takes what the device needs for a graph.
 * Units     steps of this plan.
 *
 * Spares. To make an executable graph costs a device more than to bring one of the same shape up to
 * date, and a trainer that goes through more batch sizes than it keeps plans for has such ones: the
 * graphs of the plan that just went. They are kept, up to REN__REPLAY_SPARES, and offered to the
 * next captures, up to REN__REPLAY_OFFERS at a time. Whoever owns the plans puts them there, the
 * submitter takes them; neither waits for the other. A plan goes only when every step that was
 * accepted with it has completed, so of a spare's launches none is under way.
 */
#ifndef REN_TRAIN_REPLAY_H
#define REN_TRAIN_REPLAY_H

#include "../graph/plan.h"

#define REN__REPLAY_PLACES    2u    /* A and B: one executable for each */
#define REN__REPLAY_PAUSE     8u    /* after the first failure; doubles with each further one */
#define REN__REPLAY_PAUSE_MAX 1024u /* and stays here */

#define REN__REPLAY_SPARES 12u /* two plans of three phases, for A and B */
#define REN__REPLAY_OFFERS 4u

typedef struct ren__spare {
    _Atomic uint32_t state; /* empty, kept, or somebody's who looks at the rest; see replay.c */
    uint64_t shape;
    ren__graph *graph;
} ren__spare;

typedef struct ren__spares {
    ren_runtime *rt;
    ren__spare spare[REN__REPLAY_SPARES];
    uint32_t next; /* whoever owns the plans: the oldest */
    uint32_t look; /* [sub] where the next search begins: behind what was refused last */
} ren__spares;

typedef struct ren__replay {
    ren_runtime *rt;
    ren__plan *plan;
    ren__spares *spares; /* NULL = none: graphs are always made anew */
    uint32_t segments;   /* of the plan: an executable each */
    uint64_t shape[REN__PLAN_SEGMENTS];
    ren_stream origin; /* the plan's: where its graphs are launched */
    uint32_t after;    /* steps in a row before a capture; UINT32_MAX = no graphs */
    /* Without stamps and with; by place, then by segment. Made in this order, launched in it. */
    ren__graph *graph[2][REN__REPLAY_PLACES][REN__PLAN_SEGMENTS];
    uint32_t run;   /* steps in a row issued without an error */
    uint32_t pause; /* steps that still go task by task after a failure */
    uint32_t next_pause;
} ren__replay;

uint32_t ren__replay_is_on(ren_runtime *rt); /* 1 = steady steps become graphs */
/* `spares`: NULL, or where its captures look for graphs, and where its own go. */
void ren__replay_init(ren__replay *r, ren_runtime *rt, ren__plan *plan, ren_stream origin,
                      ren__spares *spares);
/* The device must be past every launch, or lost. Zeroed is fine. */
void ren__replay_deinit(ren__replay *r);

void ren__spares_init(ren__spares *s, ren_runtime *rt);
void ren__spares_deinit(ren__spares *s); /* behind its replays; zeroed is fine */

/* Another plan was issued in between: the steps in a row start again. Graphs are kept. */
void ren__replay_interrupt(ren__replay *r);

/* A graph for each segment? */
static inline uint32_t ren__replay_is_captured(const ren__replay *r, uint32_t place, uint32_t timed)
{
    return r->segments && r->graph[timed][place][r->segments - 1u];
}

/* What the next issue for `place` takes of each lane when it launches graphs; 0 = it does not. */
static inline uint32_t ren__replay_launches(const ren__replay *r, uint32_t place, uint32_t timed)
{
    return r->pause == 0 && ren__replay_is_captured(r, place, timed) ? r->segments : 0;
}

/* Put the plan into the lanes, once. `external` are the addresses that belong to `place`, the same
 * ones each time. `stamps`: pinned memory for those of the plan, or NULL. An error means that the
 * step did not take place; the lanes are then as after a broken ren__plan_issue. REN_PENDING as
 * ren__plan_issue says it. */
ren_status ren__replay_issue(ren__replay *r, ren__submit *s, void *const *external, uint32_t place,
                             uint64_t *stamps, ren_path *out_path);

#endif
