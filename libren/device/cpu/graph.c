/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/graph.c - capture of a list of commands, and its replay.
 *
 * Purpose   The same table entries as on a GPU, so that the state machine above them (capture,
 *           replay, failed capture, fall back) is exercised on every machine. A replay is also
 *           cheaper than its commands: one command a lane.
 * Threads   all calls: the submitter.  segments: the lanes' threads, which only read them.
 * Memory    a graph is a few arrays taken at graph_end; a launch takes none. Growing lists of an
 *           open capture go through the C library, as captures happen between steps where the
 *           host's allocator must not be called.
 *
 * What is captured. graph_begin puts the origin lane into the capture. A record on a captured lane
 * becomes node n of the capture, and the event remembers (capture, n). A wait for such an event
 * puts the waiting lane into the capture, if it is not yet. From then on the lane's commands go
 * into its segment, a list per lane, instead of onto its ring. A wait for an event from outside is
 * no wait when that event is complete (or was never recorded); else it would be a dependency that a
 * replay cannot keep, so it makes the capture invalid. An invalid capture swallows nothing: every
 * further call on its lanes returns an error, and graph_end frees it and leaves all lanes as they
 * were.
 *
 * Joined. Each captured lane carries a clock: how many commands of each lane's segment its present
 * end is ordered behind. A record stores its lane's clock, a wait merges the stored one. At
 * graph_end the origin's clock must cover every lane up to its last command that does something.
 * What comes after that, a record or a wait that leads nowhere, is cut off: so when the origin has
 * completed a launch, no lane looks at the graph again, and it may be destroyed.
 *
 * Replay. Inside a segment, records are numbered from 1 by lane. A launch reserves that many of the
 * lane's record counts, puts one SEGMENT command on each lane of the graph, and the lane adds the
 * reserved base to the numbers as it runs. So the waits inside a replay are ordinary waits for
 * points, two replays of one graph cannot be confused, and the origin's segment begins behind
 * everything that is on the launching lane, while the others begin with a wait for one of its
 * records.
 *
 * Update. A graph takes the lists of a capture in place of its own when both have, lane by lane,
 * the same kinds of commands in the same places and the same waits for the same records: what a
 * GPU's driver asks for, so that what is refused here would be refused there. The old lists go at
 * once; no lane looks at them, since no launch of the graph is under way.
 */
#include "cpu.h"

#include <stdlib.h>
#include <string.h>

typedef struct lane_segment {
    ren__cpu_command *commands;
    uint32_t count;
    uint32_t capacity;
    uint32_t records; /* RECORD commands among them */
    uint32_t work;    /* commands up to the last one that does something */
    bool member;      /* the lane is in the capture */
} lane_segment;

typedef struct node {
    uint32_t lane;
    uint32_t record; /* number among the lane's records, from 1 */
    uint32_t clock[REN__LANES];
} node;

struct ren__cpu_capture {
    uint32_t origin;
    bool invalid;
    ren_status status; /* why it is invalid */
    const char *reason;
    node *nodes;
    uint32_t node_count;
    uint32_t node_capacity;
    lane_segment segment[REN__LANES];
    uint32_t clock[REN__LANES][REN__LANES]; /* [lane][of] */
};

struct ren__graph {
    uint32_t origin;
    uint32_t lanes;
    lane_segment segment[REN__LANES];
};

static void free_segments(lane_segment segment[REN__LANES])
{
    for (uint32_t i = 0; i < REN__LANES; i++) {
        free(segment[i].commands);
    }
}

void ren__cpu_capture_drop(ren__device *dev)
{
    if (dev->capture) {
        free_segments(dev->capture->segment);
        free(dev->capture->nodes);
        free(dev->capture);
        dev->capture = NULL;
    }
}

static ren__cpu_captured invalidate(ren__cpu_capture *capture, ren_status status,
                                    const char *reason)
{
    if (!capture->invalid) {
        capture->invalid = true;
        capture->status = status;
        capture->reason = reason;
    }
    return REN__CPU_CAPTURE_FAILED;
}

/* Room for one more element; the array's address may change. */
static bool reserve(void **array, uint32_t count, uint32_t *capacity, size_t element)
{
    if (count < *capacity) {
        return true;
    }
    uint32_t wanted = *capacity ? *capacity * 2u : 64u;
    void *grown = realloc(*array, wanted * element);
    if (!grown) {
        return false;
    }
    *array = grown;
    *capacity = wanted;
    return true;
}

static ren__cpu_captured append(ren__cpu_capture *capture, uint32_t lane,
                                const ren__cpu_command *command)
{
    lane_segment *segment = &capture->segment[lane];
    void *commands = segment->commands;
    if (!reserve(&commands, segment->count, &segment->capacity, sizeof *command)) {
        return invalidate(capture, REN_ERR_NO_MEMORY, "out of memory during capture");
    }
    segment->commands = commands;
    segment->commands[segment->count++] = *command;
    return REN__CPU_CAPTURED;
}

ren__cpu_captured ren__cpu_capture_command(ren__device *dev, uint32_t lane,
                                           const ren__cpu_command *command)
{
    ren__cpu_capture *capture = dev->capture;
    if (!capture || !capture->segment[lane].member) {
        return REN__CPU_NOT_CAPTURED;
    }
    if (capture->invalid) {
        return REN__CPU_CAPTURE_FAILED;
    }
    ren__cpu_captured result = append(capture, lane, command);
    if (result == REN__CPU_CAPTURED) {
        capture->segment[lane].work = capture->segment[lane].count;
        capture->clock[lane][lane] = capture->segment[lane].count;
    }
    return result;
}

ren__cpu_captured ren__cpu_capture_record(ren__device *dev, uint32_t lane, ren__event *event)
{
    ren__cpu_capture *capture = dev->capture;
    if (!capture || !capture->segment[lane].member) {
        return REN__CPU_NOT_CAPTURED;
    }
    if (capture->invalid) {
        return REN__CPU_CAPTURE_FAILED;
    }
    void *nodes = capture->nodes;
    if (!reserve(&nodes, capture->node_count, &capture->node_capacity, sizeof(node))) {
        return invalidate(capture, REN_ERR_NO_MEMORY, "out of memory during capture");
    }
    capture->nodes = nodes;
    lane_segment *segment = &capture->segment[lane];
    ren__cpu_command command = {.kind = REN__CPU_RECORD};
    command.as.point.lane = lane;
    command.as.point.seq = segment->records + 1u;
    if (append(capture, lane, &command) != REN__CPU_CAPTURED) {
        return REN__CPU_CAPTURE_FAILED;
    }
    segment->records++;
    capture->clock[lane][lane] = segment->count;
    node *n = &capture->nodes[capture->node_count];
    n->lane = lane;
    n->record = segment->records;
    memcpy(n->clock, capture->clock[lane], sizeof n->clock);
    event->capture = dev->captures;
    event->capture_node = capture->node_count++;
    return REN__CPU_CAPTURED;
}

ren__cpu_captured ren__cpu_capture_wait(ren__device *dev, uint32_t lane, ren__event *event)
{
    ren__cpu_capture *capture = dev->capture;
    if (!capture) {
        return REN__CPU_NOT_CAPTURED;
    }
    lane_segment *segment = &capture->segment[lane];
    if (event->capture != dev->captures) {
        if (!segment->member) {
            return REN__CPU_NOT_CAPTURED;
        }
        uint64_t point = atomic_load_explicit(&event->point, memory_order_relaxed);
        if (!capture->invalid && ren__cpu_point_is_reached(&dev->lane[REN__CPU_POINT_LANE(point)],
                                                           REN__CPU_POINT_SEQ(point))) {
            return REN__CPU_CAPTURED;
        }
        return invalidate(capture, REN_ERR_INVALID_ARGUMENT,
                          "a captured lane waits for unfinished work from outside the capture");
    }
    if (capture->invalid) {
        return REN__CPU_CAPTURE_FAILED;
    }
    const node *n = &capture->nodes[event->capture_node];
    segment->member = true;
    for (uint32_t i = 0; i < dev->lanes; i++) {
        if (n->clock[i] > capture->clock[lane][i]) {
            capture->clock[lane][i] = n->clock[i];
        }
    }
    if (n->lane == lane) {
        return REN__CPU_CAPTURED;
    }
    ren__cpu_command command = {.kind = REN__CPU_WAIT};
    command.as.point.lane = n->lane;
    command.as.point.seq = n->record;
    return append(capture, lane, &command);
}

/* ------------------------------------------------------------------ begin, end */

ren_status ren__cpu_graph_begin(ren__device *dev, uint32_t origin)
{
    if (ren__cpu_is_lost(dev)) {
        return REN_ERR_DEVICE_LOST;
    }
    if (dev->capture) {
        return REN_ERR_BUSY;
    }
    dev->capture = calloc(1, sizeof *dev->capture);
    if (!dev->capture) {
        return REN_ERR_NO_MEMORY;
    }
    dev->captures++;
    dev->capture->origin = origin;
    dev->capture->segment[origin].member = true;
    return REN_OK;
}

/* Cut off what the origin does not wait for; see the head of this file. */
static void trim(lane_segment segments[REN__LANES], uint32_t origin,
                 const uint32_t covered[REN__LANES])
{
    for (uint32_t i = 0; i < REN__LANES; i++) {
        lane_segment *segment = &segments[i];
        while (i != origin && segment->count > covered[i]) {
            segment->count--;
            segment->records -= segment->commands[segment->count].kind == REN__CPU_RECORD ? 1u : 0u;
        }
    }
}

static void check_joined(const ren__device *dev, ren__cpu_capture *capture)
{
    for (uint32_t i = 0; i < dev->lanes; i++) {
        if (capture->clock[capture->origin][i] < capture->segment[i].work) {
            invalidate(capture, REN_ERR_INVALID_ARGUMENT,
                       "a lane of the capture is not joined to its origin");
        }
    }
}

/* REN_OK when the open capture on `origin` is closed in itself; its lists are then trimmed. */
static ren_status close_capture(ren__device *dev, uint32_t origin, ren_error *err)
{
    ren__cpu_capture *capture = dev->capture;
    if (!capture || capture->origin != origin) {
        return REN__CPU_FAIL(err, REN_ERR_INVALID_ARGUMENT, "no capture is open on lane %u",
                             (unsigned)origin);
    }
    if (ren__cpu_is_lost(dev)) {
        return REN__CPU_FAIL(err, REN_ERR_DEVICE_LOST, "the device is lost");
    }
    check_joined(dev, capture);
    if (capture->invalid) {
        return REN__CPU_FAIL(err, capture->status, "%s", capture->reason);
    }
    trim(capture->segment, origin, capture->clock[origin]);
    return REN_OK;
}

static bool is_alike(const ren__graph *graph, const ren__cpu_capture *capture)
{
    bool alike = graph->origin == capture->origin;
    for (uint32_t i = 0; i < graph->lanes && alike; i++) {
        const lane_segment *a = &graph->segment[i];
        const lane_segment *b = &capture->segment[i];
        alike = a->count == b->count;
        for (uint32_t k = 0; k < a->count && alike; k++) {
            const ren__cpu_command *x = &a->commands[k];
            const ren__cpu_command *y = &b->commands[k];
            alike = x->kind == y->kind;
            if (alike && (x->kind == REN__CPU_RECORD || x->kind == REN__CPU_WAIT)) {
                alike = x->as.point.lane == y->as.point.lane && x->as.point.seq == y->as.point.seq;
            }
        }
    }
    return alike;
}

/* The lists change hands. */
static void take_segments(ren__graph *graph, ren__cpu_capture *capture)
{
    memcpy(graph->segment, capture->segment, sizeof graph->segment);
    memset(capture->segment, 0, sizeof capture->segment);
}

ren_status ren__cpu_graph_update(ren__device *dev, uint32_t origin, ren__graph *graph,
                                 ren_error *err)
{
    ren_status status = close_capture(dev, origin, err);
    if (status != REN_OK) {
        return status;
    }
    if (!is_alike(graph, dev->capture)) {
        return REN__CPU_FAIL(err, REN_ERR_UNSUPPORTED, "the graph has other commands");
    }
    free_segments(graph->segment);
    take_segments(graph, dev->capture);
    ren__cpu_capture_drop(dev);
    return REN_OK;
}

ren_status ren__cpu_graph_end(ren__device *dev, uint32_t origin, ren__graph **out, ren_error *err)
{
    *out = NULL;
    ren_status status = close_capture(dev, origin, err);
    if (!dev->capture || dev->capture->origin != origin) {
        return status; /* another lane's capture stays open */
    }
    ren__graph *graph = status == REN_OK ? calloc(1, sizeof *graph) : NULL;
    if (graph) {
        graph->origin = origin;
        graph->lanes = dev->lanes;
        take_segments(graph, dev->capture);
        *out = graph;
    } else if (status == REN_OK) {
        status = REN__CPU_FAIL(err, REN_ERR_NO_MEMORY, "out of memory for a graph");
    }
    ren__cpu_capture_drop(dev);
    return status;
}

/* ------------------------------------------------------------------ launch */

/* The captured origin is played by `lane`, and the lane that this displaces by the origin. */
static uint8_t stand_in(const ren__graph *graph, uint32_t lane, uint32_t captured)
{
    if (captured == graph->origin) {
        return (uint8_t)lane;
    }
    return (uint8_t)(captured == lane ? graph->origin : captured);
}

static bool has_room(ren__device *dev, uint32_t lane)
{
    ren__cpu_lane *l = &dev->lane[lane];
    uint64_t head = atomic_load_explicit(&l->head, memory_order_relaxed);
    /* Acquire: as in ren__cpu_enqueue. */
    return head - atomic_load_explicit(&l->tail, memory_order_acquire) < REN__CPU_RING;
}

ren_status ren__cpu_graph_launch(ren__device *dev, uint32_t lane, ren__graph *graph)
{
    if (ren__cpu_is_lost(dev)) {
        return REN_ERR_DEVICE_LOST;
    }
    ren__cpu_command command = {.kind = REN__CPU_SEGMENT};
    for (uint32_t i = 0; i < graph->lanes; i++) {
        uint8_t on = stand_in(graph, lane, i);
        command.as.segment.lane_of[i] = on;
        command.as.segment.base[i] = dev->lane[on].records;
        if (dev->capture && dev->capture->segment[on].member && graph->segment[i].count != 0) {
            invalidate(dev->capture, REN_ERR_UNSUPPORTED, "a graph launch inside a capture");
            return REN_ERR_UNSUPPORTED;
        }
        if (graph->segment[i].count != 0 && !has_room(dev, on)) {
            return REN_ERR_QUEUE_FULL; /* before anything is enqueued: all lanes or none */
        }
    }
    for (uint32_t i = 0; i < graph->lanes; i++) {
        if (graph->segment[i].count == 0) {
            continue;
        }
        uint32_t on = command.as.segment.lane_of[i];
        command.as.segment.commands = graph->segment[i].commands;
        command.as.segment.count = graph->segment[i].count;
        ren_status status = ren__cpu_enqueue(dev, on, &command);
        if (status != REN_OK) {
            return status; /* only a loss is left, and then nothing runs any more */
        }
        dev->lane[on].records += graph->segment[i].records;
    }
    return REN_OK;
}

bool ren__cpu_segment_command(const ren__cpu_command *launch, uint32_t index, ren__cpu_command *out)
{
    if (index >= launch->as.segment.count) {
        return false;
    }
    *out = launch->as.segment.commands[index];
    if (out->kind == REN__CPU_RECORD || out->kind == REN__CPU_WAIT) {
        uint32_t captured = out->as.point.lane;
        out->as.point.lane = launch->as.segment.lane_of[captured];
        out->as.point.seq += launch->as.segment.base[captured];
    }
    return true;
}

void ren__cpu_graph_destroy(ren__device *dev, ren__graph *graph)
{
    if (!graph) {
        return;
    }
    if (ren__cpu_is_lost(dev) && !ren__cpu_settle(dev)) {
        return; /* a lane is still inside one of its commands */
    }
    free_segments(graph->segment);
    free(graph);
}
