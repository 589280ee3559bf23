/* SPDX-License-Identifier: MIT */
/* libren/train/replay.c - see replay.h.
 *
 * The states of one plan, with two places A and B:
 *
 *            `after` steps in a row             captured, a place at a time
 *   queued ------------------------> capturing ---------------------------> graph
 *      ^                                 |                                    |
 *      |  another plan, an error         | capture failed                     | launch failed
 *      |                                 v                                    |
 *      +----- (run = 0)                pause <--------------------------------+
 *                                        |  8, 16, 32, ... 1,024 steps task by task, then again
 *                                        +--> capturing, or graph when there is one
 *
 * A step goes into the lanes once, whatever happens:
 *   capture   records and runs nothing. When it fails the same step goes task by task; when it
 *             succeeds the new graph is launched for this very step.
 *   launch    is one call, all or nothing. When it fails the step is reported as failed. It is not
 *             tried task by task, since no device promises that a launch that failed left nothing
 *             behind. The graph is kept: what can fail for a moment (memory, room in a queue) says
 *             nothing against it.
 *
 * Segments. A plan that is cut (graph/segments.c) has a row for each segment: label, tasks, lanes,
 * and here an executable for A and one for B. They are captured one after the other for the same
 * step; when one fails, those before it are kept, and the next attempt goes on with the one that is
 * missing. They are launched in the origin's lane one behind the other. All tasks that change what
 * later steps read are in the last one, so a launch that fails leaves a step that did not take
 * place, whichever it is; what the ones before it wrote is written anew by the next step.
 *
 * Why nothing in a graph goes stale. A graph holds addresses and operations. Those of a resolved
 * plan never change: parameters, gradients, moments and state are allocated once with the trainer,
 * LOCAL values and workspaces once with the plan, operations are made once at resolve. The
 * addresses given at issue (input slots, control block, sums that go from step to step) depend on
 * the place alone, hence one graph for each place. What differs from step to step (learning rate
 * and the other scalars, step index, dropout's counter) is read by kernels from the control block,
 * the rest from the device's own state; the copies into the control block and out of the state
 * differ in their host side and stay outside. So while a plan lives its executables stay as they
 * are: another batch size, phase or set of frozen parameters is another plan with graphs of its
 * own. Those of a plan that went are what the next captures try to update before the device makes
 * new ones (graph_updates); see Spares in replay.h.
 *
 * Why two launches of one graph never overlap. A launch sits in the lane of the plan's origin
 * (UPDATE for a step, its own stream for an inference) and the plan ends there behind all its
 * lanes; the next launch, of either graph, comes behind it. The two graphs share LOCAL memory and
 * workspaces for the same reason.
 *
 * Warm. Captures begin only after `after` steps of the plan went task by task, so every operation
 * has run and whatever a library sets up at first use is there: a capture must not allocate or
 * load.
 *
 * Traced steps. While a trace is open a step's commands come with stamps of the device's clock.
 * Task by task they go into the step's own pinned memory. A graph holds their addresses, so it puts
 * them into the place's block of the plan, and a copy behind the launch takes them to the step's
 * memory: the next launch for the place, which comes behind the copy, may write the block again. A
 * graph with stamps is another capture, kept beside the one without; which of the two a step takes
 * is all that a trace changes, and the steps in a row count for both. What is computed is the same,
 * command for command.
 *
 * Destroying. A graph leaves with its plan, and a plan goes only when no step that was accepted
 * with it is unfinished. Nothing is destroyed by the submitter, which could not know whether a
 * launch still runs without asking the device; what it updates are spares, whose launches are known
 * to be done. A spare refers to operations and memory that are gone; it is updated or destroyed,
 * and never launched as it is. One that a capture could not make use of stays where it was.
 */
#include "replay.h"

#include <string.h>

uint32_t ren__replay_is_on(ren_runtime *rt)
{
    return !ren__runtime_config_of(rt)->disable_graphs && ren__runtime_caps(rt)->graphs;
}

/* ------------------------------------------------------------------ spares */

enum {
    SPARE_EMPTY = 0,
    SPARE_KEPT,
    SPARE_CLAIMED
};

void ren__spares_init(ren__spares *s, ren_runtime *rt)
{
    memset(s, 0, sizeof *s);
    s->rt = rt;
}

void ren__spares_deinit(ren__spares *s)
{
    for (uint32_t i = 0; i < REN__REPLAY_SPARES; i++) {
        if (s->spare[i].graph) {
            ren__runtime_api(s->rt)->graph_destroy(ren__runtime_device(s->rt), s->spare[i].graph);
        }
    }
    memset(s, 0, sizeof *s);
}

/* Acquire: pairs with the release of who had it before. */
static uint32_t claim(ren__spare *spare, uint32_t from)
{
    return atomic_compare_exchange_strong_explicit(&spare->state, &from, SPARE_CLAIMED,
                                                   memory_order_acquire, memory_order_relaxed);
}

/* Release: pairs with the next one's claim. */
static void leave(ren__spare *spare)
{
    atomic_store_explicit(&spare->state, spare->graph ? SPARE_KEPT : SPARE_EMPTY,
                          memory_order_release);
}

/* In place of the oldest, but for one that the submitter looks at. */
static void keep(ren__spares *s, uint64_t shape, ren__graph *graph)
{
    for (uint32_t i = 0; i < REN__REPLAY_SPARES && graph; i++) {
        ren__spare *spare = &s->spare[s->next];
        s->next = (s->next + 1) % REN__REPLAY_SPARES;
        if (claim(spare, SPARE_EMPTY) || claim(spare, SPARE_KEPT)) {
            ren__graph *oldest = spare->graph;
            spare->shape = shape;
            spare->graph = graph;
            graph = oldest;
            leave(spare);
            break;
        }
    }
    if (graph) {
        ren__runtime_api(s->rt)->graph_destroy(ren__runtime_device(s->rt), graph);
    }
}

/* What a capture is offered; all are claimed. */
typedef struct offers {
    uint32_t count;
    ren__spare *spares[REN__REPLAY_OFFERS];
    ren__graph *graphs[REN__REPLAY_OFFERS];
} offers;

static void find_offers(ren__spares *s, uint64_t shape, offers *out)
{
    out->count = 0;
    for (uint32_t i = 0; s && i < REN__REPLAY_SPARES && out->count < REN__REPLAY_OFFERS; i++) {
        ren__spare *spare = &s->spare[(s->look + i) % REN__REPLAY_SPARES];
        if (!claim(spare, SPARE_KEPT)) {
            continue;
        }
        if (spare->shape == shape) {
            out->spares[out->count] = spare;
            out->graphs[out->count++] = spare->graph;
        } else {
            leave(spare);
        }
    }
}

/* All but `taken`, which may be none of them, stay. Returns 1 when it is one of them. */
static uint32_t settle_offers(ren__spares *s, const offers *o, const ren__graph *taken)
{
    uint32_t updated = 0;
    for (uint32_t i = 0; i < o->count; i++) {
        if (o->graphs[i] == taken) {
            o->spares[i]->graph = NULL;
            updated = 1;
        }
        leave(o->spares[i]);
    }
    if (o->count && !updated) {
        s->look = (uint32_t)(o->spares[o->count - 1u] - s->spare) + 1u;
    }
    return updated;
}

/* ------------------------------------------------------------------ life */

void ren__replay_init(ren__replay *r, ren_runtime *rt, ren__plan *plan, ren_stream origin,
                      ren__spares *spares)
{
    memset(r, 0, sizeof *r);
    r->rt = rt;
    r->plan = plan;
    r->spares = spares;
    r->segments = ren__plan_segment_count(plan);
    for (uint32_t i = 0; i < r->segments; i++) {
        r->shape[i] = ren__plan_shape(plan, i);
    }
    r->origin = origin;
    r->after = ren__replay_is_on(rt) ? ren__runtime_config_of(rt)->graph_after_steps : UINT32_MAX;
    r->next_pause = REN__REPLAY_PAUSE;
}

/* A graph with stamps has commands that the one without has not. */
static uint64_t shape_of(const ren__replay *r, uint32_t segment, uint32_t timed)
{
    return r->shape[segment] + timed;
}

void ren__replay_deinit(ren__replay *r)
{
    for (uint32_t i = 0; i < 2 * REN__REPLAY_PLACES * r->segments; i++) {
        uint32_t segment = i % r->segments;
        uint32_t place = i / r->segments % REN__REPLAY_PLACES;
        uint32_t timed = i / r->segments / REN__REPLAY_PLACES;
        ren__graph *graph = r->graph[timed][place][segment];
        if (graph && r->spares) {
            keep(r->spares, shape_of(r, segment, timed), graph);
        } else if (graph) {
            ren__runtime_api(r->rt)->graph_destroy(ren__runtime_device(r->rt), graph);
        }
    }
    memset(r, 0, sizeof *r);
}

/* ------------------------------------------------------------------ issue */

void ren__replay_interrupt(ren__replay *r)
{
    r->run = 0;
}

/* Task by task for a while. */
static void fall_back(ren__replay *r, ren__submit *s, const char *what, const char *why)
{
    r->pause = r->next_pause;
    r->next_pause =
        2 * r->next_pause < REN__REPLAY_PAUSE_MAX ? 2 * r->next_pause : REN__REPLAY_PAUSE_MAX;
    ren__submit_count_graph(s, 0, 0, 1);
    ren__runtime_log(r->rt, REN_LOG_WARNING,
                     "a plan's graph could not be %s (%s): the queued path for %u steps", what, why,
                     (unsigned)r->pause);
}

static ren_status capture_segment(ren__replay *r, ren__submit *s, void *const *external,
                                  uint32_t segment, uint32_t timed, ren__graph **graph,
                                  ren_error *err)
{
    offers found;
    find_offers(r->spares, shape_of(r, segment, timed), &found);
    const ren__plan_spares spares = {found.graphs, found.count};
    ren_status status = ren__plan_capture(r->plan, s, external, segment, &spares, graph, err);
    uint32_t updated = settle_offers(r->spares, &found, *graph);
    if (status == REN_OK) {
        ren__submit_count_graph(s, 1, updated, 0);
    }
    return status;
}

/* What is missing for the place. REN_OK also when a capture failed and the step is to go task by
 * task. */
static ren_status capture(ren__replay *r, ren__submit *s, void *const *external, uint32_t place,
                          uint32_t timed)
{
    ren_status status = REN_OK;
    ren_error err;
    memset(&err, 0, sizeof err);
    ren__plan_set_stamps(r->plan, timed ? ren__plan_stamp_block(r->plan, place) : NULL);
    for (uint32_t i = 0; i < r->segments && status == REN_OK; i++) {
        ren__graph **graph = &r->graph[timed][place][i];
        if (!*graph) {
            status = capture_segment(r, s, external, i, timed, graph, &err);
        }
    }
    if (status == REN_OK || status == REN_ERR_DEVICE_LOST) {
        return status;
    }
    fall_back(r, s, "captured", err.text);
    return REN_OK;
}

static ren_status launch(ren__replay *r, ren__submit *s, uint32_t place, uint64_t *stamps)
{
    const ren__device_api *api = ren__submit_api(s);
    ren__device *dev = ren__submit_device(s);
    uint32_t lane = ren__submit_lane(s, r->origin);
    ren_status status = REN_OK;
    for (uint32_t i = 0; i < r->segments && status == REN_OK; i++) {
        status = api->graph_launch(dev, lane, r->graph[stamps != NULL][place][i]);
    }
    if (status == REN_OK) {
        r->next_pause = REN__REPLAY_PAUSE;
    } else if (status != REN_ERR_DEVICE_LOST) {
        fall_back(r, s, "launched", ren__status_name(status));
    }
    if (status == REN_OK && stamps) {
        /* A copy that is refused leaves the times unknown: no reason for a step to fail. */
        (void)api->copy(dev, lane, stamps, ren__plan_stamp_block(r->plan, place),
                        ren__plan_stamps_bytes(r->plan));
    }
    return status;
}

ren_status ren__replay_issue(ren__replay *r, ren__submit *s, void *const *external, uint32_t place,
                             uint64_t *stamps, ren_path *out_path)
{
    ren_status status = REN_OK;
    uint32_t paused = r->pause > 0, timed = stamps != NULL;
    *out_path = REN_PATH_QUEUED;
    r->pause -= paused;
    if (!paused && !ren__replay_is_captured(r, place, timed) && r->run >= r->after) {
        status = capture(r, s, external, place, timed);
        paused = r->pause > 0;
    }
    if (status == REN_OK && !paused && ren__replay_is_captured(r, place, timed)) {
        *out_path = REN_PATH_GRAPH;
        status = launch(r, s, place, stamps);
    } else if (status == REN_OK) {
        ren__plan_set_stamps(r->plan, stamps);
        status = ren__plan_issue(r->plan, s, external, 1, 0);
    }
    if (status != REN_OK) {
        r->run = 0;
    } else if (r->run + 1 < UINT32_MAX) {
        r->run++;
    }
    return status;
}
