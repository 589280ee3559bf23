/* SPDX-License-Identifier: MIT */
/* libren/graph/schedule.c - play a plan through on given lanes, and say how long it would take.
 *
 * Purpose   For one set of lanes: which lane runs each task, in which order the tasks are issued,
 *           and when the last is done. assign.c tries several sets and keeps the best.
 * Threads   one.
 * Memory    scratch for the call, by the plan's allocator.
 * Units     ns; places count in the order of issue.
 *
 * A list schedule. Time is played forward: of all tasks whose predecessors have a place, and of all
 * lanes, the pair that can start first gets the next place. Of several that could start then, the
 * task with the longest way to the end of the plan goes first (its own time and that of the longest
 * chain behind it), then the pair with the fewest new waits, then the table's stream, then the
 * earlier task of the list. So the chain of data gradients is never behind a weight gradient that
 * only the optimizer waits for, and the lanes beside it are filled in the order in which things get
 * ready.
 *
 * When a task can start on a lane:
 *   the lane    is done with what it was given;
 *   the data    is there: a predecessor of another lane costs an event on top, and so does the
 *               origin's start for a task without predecessors;
 *   the host    has come to it. Task by task the submitter is one more resource: it needs its time
 *               for each launch and each event, in the order of issue. With launches dearer than
 *               operations every pair starts when the host gets there, and fewest waits decides.
 *
 * Tasks that may not move keep their place in the list, too: what is before one of them in the list
 * is issued before it, and what is behind it, behind. They are the update, whose order makes a step
 * take place whole or not at all (train/update.c), and whoever lists such tasks relies on it.
 *
 * Where segments become graphs of their own, those that may move keep to their label's run in the
 * list as well, since a segment is a run in the order of issue.
 *
 * The order of issue follows all edges, so it is as good as the list's: edges were found from the
 * list, and any order that keeps them all gives every task the same bytes to read.
 */
#include "internal.h"

typedef struct task_state {
    uint32_t host_ns;              /* to enqueue it */
    uint64_t ns;                   /* on its lane */
    uint64_t rank;                 /* from its start to the end of the plan, at best */
    uint64_t ready_ns[REN__LANES]; /* its data is there, by lane */
    uint64_t done_ns;
    ren__clock needed; /* places */
    uint32_t pending;  /* predecessors without a place */
    uint32_t place;
    uint32_t lane;
} task_state;

typedef struct player {
    const ren__plan *plan;
    const ren__cost_model *model;
    const ren__lane_set *set;
    ren__schedule *out;
    task_state *tasks;
    ren__clock *known;   /* by place */
    uint32_t *successor; /* grouped by predecessor */
    uint32_t *first;     /* into successor, task_count + 1 */
    uint32_t *ready;     /* tasks that may move and whose predecessors have places */
    uint32_t ready_count;
    uint32_t placed;
    uint64_t host_ns;
    struct {
        uint64_t free_ns;
        ren__clock known;
        uint32_t used;
    } lane[REN__LANES];
} player;

typedef struct candidate {
    uint32_t index; /* in ready */
    uint32_t task, lane;
    uint64_t start_ns;
    uint32_t waits;
    uint32_t by_table; /* 1 = the lane of the table's stream */
    ren__clock known;
} candidate;

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ------------------------------------------------------------------ edges, both ways */

static const ren__edge *edge_of(const ren__plan *plan, uint32_t i)
{
    return i < plan->data.count ? &ren__plan_edges(&plan->data)[i]
                                : &ren__plan_edges(&plan->order)[i - plan->data.count];
}

static void find_successors(player *p)
{
    const ren__plan *plan = p->plan;
    uint32_t edges = plan->data.count + plan->order.count;
    for (uint32_t i = 0; i < edges; i++) {
        p->first[edge_of(plan, i)->from + 1u]++;
        p->tasks[edge_of(plan, i)->to].pending++;
    }
    for (uint32_t t = 0; t < plan->task_count; t++) {
        p->first[t + 1u] += p->first[t];
    }
    for (uint32_t i = edges; i-- > 0;) { /* from the end: first[] comes back to where it was */
        p->successor[--p->first[edge_of(plan, i)->from + 1u]] = edge_of(plan, i)->to;
    }
    for (uint32_t t = 0; t < plan->task_count; t++) {
        p->first[t] = p->first[t + 1u];
    }
    p->first[plan->task_count] = edges;
}

/* Edges run forward in the list, so one pass from its end sees every successor first. */
static void find_times(player *p)
{
    const ren__plan *plan = p->plan;
    uint64_t flops_ns = 0, bytes_ns = 0, work_ns = 0;
    for (uint32_t t = plan->task_count; t-- > 0;) {
        task_state *s = &p->tasks[t];
        ren__task_work w = ren__cost_of(p->model, &plan->tasks[t]);
        uint64_t longest = 0;
        for (uint32_t i = p->first[t]; i < p->first[t + 1u]; i++) {
            longest = later(longest, p->tasks[p->successor[i]].rank);
        }
        s->ns = (uint64_t)w.passes * p->model->launch_ns + later(w.flops_ns, w.bytes_ns);
        s->host_ns = w.passes * p->model->costs.host_launch_ns;
        s->rank = s->ns + longest;
        flops_ns += w.full_ns;
        bytes_ns += w.bytes_ns;
        work_ns += s->ns;
    }
    /* However it is spread, the device has this much to do. */
    uint32_t processors = p->model->costs.processors;
    p->out->expected_ns = processors ? work_ns / processors : later(flops_ns, bytes_ns);
}

/* ------------------------------------------------------------------ choice */

/* All predecessors have places: when the data is there, and which places it needs. */
static void make_ready(player *p, uint32_t task)
{
    const ren__plan *plan = p->plan;
    const ren__plan_node *node = &plan->nodes[task];
    task_state *s = &p->tasks[task];
    for (uint32_t l = 0; l < REN__LANES; l++) {
        s->ready_ns[l] = l == plan->origin_lane ? 0 : p->model->root_ns;
    }
    for (uint32_t i = 0; i < node->data_count + node->order_count; i++) {
        const ren__edge *e =
            i < node->data_count
                ? &ren__plan_edges(&plan->data)[node->data_first + i]
                : &ren__plan_edges(&plan->order)[node->order_first + i - node->data_count];
        const task_state *from = &p->tasks[e->from];
        s->needed.after[from->lane] =
            (uint32_t)later(s->needed.after[from->lane], from->place + 1u);
        for (uint32_t l = 0; l < REN__LANES; l++) {
            uint64_t crossing = from->lane == l ? 0 : p->model->event_ns;
            s->ready_ns[l] = later(s->ready_ns[l], from->done_ns + crossing);
        }
    }
}

static candidate weigh(const player *p, uint32_t task, uint32_t lane)
{
    const ren__plan *plan = p->plan;
    const ren__device_costs *c = &p->model->costs;
    uint32_t producers[REN__LANES];
    candidate x = {.task = task, .lane = lane};
    x.by_table = plan->config.lane_of[plan->tasks[task].stream] == lane;
    x.waits = ren__clock_waits(&p->lane[lane].known, p->known, &p->tasks[task].needed, producers,
                               &x.known);
    uint64_t host_ns = p->host_ns + x.waits * c->host_event_ns + p->tasks[task].host_ns;
    x.start_ns = later(host_ns, later(p->lane[lane].free_ns, p->tasks[task].ready_ns[lane]));
    return x;
}

static int better(const player *p, const candidate *a, const candidate *b)
{
    uint64_t rank_a = p->tasks[a->task].rank;
    uint64_t rank_b = p->tasks[b->task].rank;
    if (a->start_ns != b->start_ns) {
        return a->start_ns < b->start_ns;
    }
    if (rank_a != rank_b) {
        return rank_a > rank_b;
    }
    if (a->task != b->task) {
        return a->task < b->task;
    }
    if (a->waits != b->waits) {
        return a->waits < b->waits;
    }
    return a->by_table > b->by_table;
}

static void put(player *p, const candidate *x)
{
    const ren__device_costs *c = &p->model->costs;
    task_state *s = &p->tasks[x->task];
    s->place = p->placed++;
    s->lane = x->lane;
    s->done_ns = x->start_ns + s->ns;
    p->host_ns += x->waits * c->host_event_ns + s->host_ns;
    p->known[s->place] = x->known;
    p->lane[x->lane].known = x->known;
    p->lane[x->lane].known.after[x->lane] = s->place + 1u;
    p->lane[x->lane].free_ns = s->done_ns;
    p->lane[x->lane].used = 1;
    p->out->waits += x->waits;
    p->out->order[s->place] = x->task;
    p->out->lane[x->task] = x->lane;
}

/* ------------------------------------------------------------------ all tasks */

/* Successors of a task that has a place; those in [.., end) of the list may be ready now. */
static void release(player *p, uint32_t task, uint32_t end)
{
    for (uint32_t i = p->first[task]; i < p->first[task + 1u]; i++) {
        uint32_t next = p->successor[i];
        if (--p->tasks[next].pending == 0 && next < end) {
            make_ready(p, next);
            p->ready[p->ready_count++] = next;
        }
    }
}

/* The tasks of [begin, end), all of which may move. */
static void play_movable(player *p, uint32_t begin, uint32_t end)
{
    p->ready_count = 0;
    for (uint32_t t = begin; t < end; t++) {
        if (p->tasks[t].pending == 0) {
            make_ready(p, t);
            p->ready[p->ready_count++] = t;
        }
    }
    while (p->ready_count) {
        candidate best = {.index = REN__NO_TASK};
        for (uint32_t i = 0; i < p->ready_count; i++) {
            for (uint32_t k = 0; k < p->set->count; k++) {
                candidate x = weigh(p, p->ready[i], p->set->lanes[k]);
                x.index = i;
                if (best.index == REN__NO_TASK || better(p, &x, &best)) {
                    best = x;
                }
            }
        }
        put(p, &best);
        p->ready[best.index] = p->ready[--p->ready_count];
        release(p, best.task, end);
    }
}

/* A segment that is a graph of its own starts behind all lanes, at the origin. */
static void start_segment(player *p)
{
    uint32_t origin = p->plan->origin_lane;
    uint64_t start_ns = 0;
    for (uint32_t l = 0; l < REN__LANES; l++) {
        uint64_t join_ns = p->lane[l].used && l != origin ? p->model->event_ns : 0;
        start_ns = later(start_ns, p->lane[l].free_ns + join_ns);
    }
    for (uint32_t l = 0; l < REN__LANES; l++) {
        p->lane[l].free_ns = start_ns + (l == origin ? 0 : p->model->root_ns);
    }
}

static void play(player *p)
{
    const ren__plan *plan = p->plan;
    for (uint32_t t = 0; t < plan->task_count;) {
        uint32_t end = t;
        if (ren__task_is_cut(plan, t)) {
            start_segment(p);
        }
        while (end < plan->task_count && ren__task_moves(&plan->tasks[end]) &&
               (end == t || !ren__task_is_cut(plan, end))) {
            end++;
        }
        play_movable(p, t, end);
        if (end < plan->task_count && end == t) {
            make_ready(p, end);
            candidate x = weigh(p, end, plan->config.lane_of[plan->tasks[end].stream]);
            put(p, &x);
            release(p, end, 0);
            end++;
        }
        t = end;
    }
    uint64_t done_ns = 0;
    for (uint32_t l = 0; l < REN__LANES; l++) {
        uint32_t joins = p->lane[l].used && l != plan->origin_lane;
        done_ns = later(done_ns, p->lane[l].free_ns + (joins ? p->model->event_ns : 0));
        p->out->waits += 2u * joins; /* fork and join */
    }
    p->out->expected_ns = later(p->out->expected_ns, done_ns);
    p->out->expected_ns += (uint64_t)p->out->waits * p->model->costs.wait_ns;
}

ren_status ren__schedule_play(const ren__plan *plan, const ren__cost_model *model,
                              const ren__lane_set *set, ren__schedule *out)
{
    const ren__host_allocator *a = &plan->allocator;
    size_t tasks = (size_t)plan->task_count + 1u;
    size_t edges = (size_t)plan->data.count + plan->order.count + 1u;
    player p = {.plan = plan, .model = model, .set = set, .out = out};
    out->waits = 0;
    p.tasks = ren__host_calloc(a, tasks, sizeof *p.tasks);
    p.known = ren__host_calloc(a, tasks, sizeof *p.known);
    p.first = ren__host_calloc(a, tasks, sizeof *p.first);
    p.ready = ren__host_calloc(a, tasks, sizeof *p.ready);
    p.successor = ren__host_calloc(a, edges, sizeof *p.successor);
    ren_status status =
        p.tasks && p.known && p.first && p.ready && p.successor ? REN_OK : REN_ERR_NO_MEMORY;
    if (status == REN_OK) {
        find_successors(&p);
        find_times(&p);
        play(&p);
    }
    ren__host_free(a, p.successor, edges, sizeof *p.successor);
    ren__host_free(a, p.ready, tasks, sizeof *p.ready);
    ren__host_free(a, p.first, tasks, sizeof *p.first);
    ren__host_free(a, p.known, tasks, sizeof *p.known);
    ren__host_free(a, p.tasks, tasks, sizeof *p.tasks);
    return status;
}
