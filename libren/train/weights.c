/* SPDX-License-Identifier: MIT */
/* libren/train/weights.c - see weights.h.
 *
 * The life of a set
 *
 *   UPDATE   ... step n . wait readers of B . make B from the parameters . step n + 1 ...
 *   COMP_1   wait B . inference . inference . ...
 *   COMP_3   wait B . inference . ...
 *
 * A set is made when an inference is issued that finds the newest one out of date, so at most once
 * for each change of the parameters, and not at all while nobody asks. Making it is one plan on
 * UPDATE. Only the submitter decides, when it issues, so the question of who comes first has one
 * answer: what is in the lanes.
 *
 * Why no inference reads a torn set.
 *   Made before read   A reader's lane waits for the point `made`, the batch of UPDATE's
 *                      lane that ends with the set's making.
 *   Read before made anew   A set's `readers` are the points of the lanes that read it. UPDATE
 *                      waits for them before the set is written again. They are noted also when an
 *                      issue broke off: what it had enqueued is in the lanes and reads.
 *   The parameters stand still meanwhile   Making reads them on UPDATE, and whatever writes them
 *                      begins behind UPDATE's end as it is then: a step's plan forks from there, a
 *                      graph is launched there, the host's values are copied there. A step ends
 *                      with all its lanes joined to UPDATE, so the making comes behind all of it.
 *                      A step that broke off has joined nothing, and an unfinished one has not
 *                      changed all: the lanes are joined, and the step is finished, first
 *                      (ren__model_rejoin), or no set is made.
 *   Half made           A making that broke off leaves a set that holds nothing (stamp 0), which
 *                      is the next to be made.
 * Lanes that are one, as with config.streams 1, need no points for the same order, and none are
 * waited for: ren__submit_wait sees to it. A point that is complete costs no command, so while the
 * parameters stay as they are an inference waits for nothing.
 *
 * Which version. `stamp` counts changes of the parameters in the order of UPDATE: a step that
 * updates, or values from the host. `version` counts the steps alone; it is what the completion
 * says. An inference in the model's order
 * (chain.h) takes a set with the present stamp. It is then behind every step posted before it, and
 * beside every step posted after it.
 *
 * An inference that takes any version wants what is there. It reads the newest set that is whole,
 * by what the completion thread has told of UPDATE's lane; the device is not asked. When that set
 * is out of date it makes the other one, for those that come later, behind the steps under way. It
 * waits only when no set is whole: at the very first, and after the host has set parameters, whose
 * old values would be a surprise then (`weights_floor`). While one set is being made it begins no
 * other making, so that the whole one stays. An inference in order, issued in between, may have the
 * whole one made anew: then the next that takes any version waits for the newest.
 *
 * What it costs. One copy of the parameters for a version that is used, and UPDATE's wait for the
 * last readers of the version before the one before; not a wait for the host, and none for a step
 * that nobody infers from.
 *
 * Frozen parameters are copied like all others. Averages are no part of a set. A trainer may be
 * destroyed at any time: sets are made from the model's own memory.
 */
#include "weights.h"

#include "model_state.h"

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + REN__ALIGN - 1) / REN__ALIGN * REN__ALIGN;
}

/* ------------------------------------------------------------------ memory and plan */

static void emit_copy(ren__task_graph *g, uint32_t set, uint32_t params, uint64_t bytes)
{
    ren__task t;
    memset(&t, 0, sizeof t);
    t.name = "weights";
    t.segment = "inference weights";
    t.kind = REN__TASK_COPY;
    t.stream = REN_STREAM_UPDATE;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        t.operand[i] = REN__NO_VALUE;
    }
    t.operand[0] = set;
    t.operand[1] = params;
    t.writes = 1u;
    t.reads = 2u;
    t.bytes = bytes;
    ren__task_graph_add(g, &t);
}

/* One parameter of the region, as an operand. */
static void read_param(const ren_model *m, ren__task_graph *g, ren__task *t, uint32_t operand,
                       uint32_t params, uint32_t index, const ren__tensor_desc *desc)
{
    const ren__param *p = m->params[index];
    ren__emit_read(t, operand, ren__task_graph_alias(g, p->name, params, p->offset, p->bytes),
                   desc);
}

static void emit_fold(const ren_model *m, ren__task_graph *g, uint32_t set, uint32_t params,
                      const ren__weight_fold *fold)
{
    const ren__node *layer = m->nodes[fold->layer];
    const ren__node *norm = m->nodes[fold->norm];
    ren__tensor_desc channel = m->params[norm->params[0]]->desc;
    ren__tensor_desc weight = m->params[layer->params[0]]->desc;
    for (; weight.rank < 4; weight.rank++) {
        weight.dims[weight.rank] = 1; /* a linear layer is a convolution of one pixel */
    }
    ren__task t;
    memset(&t, 0, sizeof t);
    t.name = norm->name;
    t.segment = "inference weights";
    t.stream = REN_STREAM_UPDATE;
    t.cost = 2 * fold->weight_bytes;
    t.op.struct_size = (uint32_t)sizeof t.op;
    t.op.kind = REN__OP_BATCH_NORM_FOLD;
    t.op.eps = norm->eps;
    t.op.groups = 1;
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        t.operand[i] = REN__NO_VALUE;
    }
    read_param(m, g, &t, 0, params, layer->params[0], &weight);
    for (uint32_t i = 0; i < 4; i++) {
        read_param(m, g, &t, 1 + i, params, norm->params[i], &channel);
    }
    if (layer->params[1] != REN__NO_PARAM) {
        read_param(m, g, &t, 5, params, layer->params[1], &channel);
    }
    ren__emit_write(&t, 6,
                    ren__task_graph_alias(g, norm->name, set, fold->weight, fold->weight_bytes),
                    &weight);
    ren__emit_write(&t, 7, ren__task_graph_alias(g, norm->name, set, fold->bias, fold->bias_bytes),
                    &channel);
    ren__task_graph_add(g, &t);
}

static ren_status build_plan(ren_model *m, ren__task_graph *g, ren_error *err)
{
    ren__weights *w = &m->weights;
    ren__plan_config config = {.policy = REN__POLICY_STATIC,
                               .lanes = ren__runtime_lanes(m->rt),
                               .origin = REN_STREAM_UPDATE};
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        config.lane_of[i] = ren__runtime_lane(m->rt, REN_STREAM_UPDATE);
    }
    uint32_t params = ren__task_graph_value(g, "params", REN__VALUE_FIXED, m->region_bytes);
    w->set_value = ren__task_graph_value(g, "set", REN__VALUE_EXTERNAL, w->bytes);
    emit_copy(g, w->set_value, params, m->region_bytes);
    for (uint32_t i = 0; i < w->fold_count; i++) {
        emit_fold(m, g, w->set_value, params, &w->folds[i]);
    }
    ren_status status = ren__plan_build(g, &config, m->allocator, &w->plan, err);
    if (status != REN_OK) {
        return status;
    }
    w->external_count = w->set_value + 1;
    w->externals = ren__host_calloc(m->allocator, w->external_count, sizeof w->externals[0]);
    if (!w->externals) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for a plan");
    }
    w->externals[params] = m->region.ptr; /* as fixed[], for the call below */
    return ren__plan_resolve(w->plan, m->rt, w->externals, err);
}

static ren_status make_plan(ren_model *m, ren_error *err)
{
    ren__task_graph *g = NULL;
    ren_status status = ren__task_graph_create(m->allocator, &g);
    if (status != REN_OK) {
        return REN__FAIL(err, status, "no host memory for a task graph");
    }
    status = build_plan(m, g, err);
    ren__task_graph_destroy(g);
    return status;
}

/* Every batch norm behind a layer, whoever else may read that. */
static ren_status find_folds(ren_model *m, ren_error *err)
{
    ren__weights *w = &m->weights;
    for (uint32_t i = 0; i < m->node_count; i++) {
        const ren__node *norm = m->nodes[i];
        if (norm->kind != REN__NODE_BATCH_NORM) {
            continue;
        }
        const ren__node *layer = m->nodes[norm->inputs[0]];
        if (layer->kind == REN__NODE_LINEAR || layer->kind == REN__NODE_CONV2D) {
            w->folds[w->fold_count++] =
                (ren__weight_fold){.layer = norm->inputs[0],
                                   .norm = i,
                                   .weight_bytes = m->params[layer->params[0]]->bytes,
                                   .bias_bytes = m->params[norm->params[0]]->bytes};
        }
    }
    for (uint32_t i = 0; i < w->fold_count; i++) {
        w->folds[i].weight = w->bytes;
        w->folds[i].bias = w->bytes + align_up(w->folds[i].weight_bytes);
        w->bytes = w->folds[i].bias + align_up(w->folds[i].bias_bytes);
    }
    ren_error why = {0};
    ren_status status = make_plan(m, &why);
    if (status == REN_ERR_UNSUPPORTED && w->fold_count) { /* without, then */
        ren__plan_destroy(w->plan);
        ren__host_free(m->allocator, w->externals, w->external_count, sizeof w->externals[0]);
        w->plan = NULL;
        w->externals = NULL;
        w->fold_count = 0;
        w->bytes = align_up(m->region_bytes);
        status = make_plan(m, &why);
    }
    if (status != REN_OK && err) {
        *err = why;
    }
    return status;
}

void ren__weights_free(ren_model *m)
{
    ren__weights *w = &m->weights;
    ren__plan_destroy(w->plan);
    ren__host_free(m->allocator, w->externals, w->external_count, sizeof w->externals[0]);
    ren__host_free(m->allocator, w->folds, w->fold_capacity, sizeof w->folds[0]);
    ren__region_free(m->rt, &w->region);
    memset(w, 0, sizeof *w);
}

ren_status ren__weights_prepare(ren_model *m, ren_error *err)
{
    ren__weights *w = &m->weights;
    uint32_t need[REN_STREAM_COUNT];
    if (w->prepared || m->region_bytes == 0) {
        return REN_OK;
    }
    w->bytes = align_up(m->region_bytes);
    w->fold_capacity = m->node_count;
    w->folds = ren__host_calloc(m->allocator, w->fold_capacity, sizeof w->folds[0]);
    ren_status status = w->folds ? find_folds(m, err)
                                 : REN__FAIL(err, REN_ERR_NO_MEMORY, "no host memory for folding");
    if (status == REN_OK) {
        status = ren__region_alloc(m->rt, REN__WEIGHT_SETS * w->bytes, &w->region);
        if (status != REN_OK) {
            (void)REN__FAIL(err, status, "two copies of %llu bytes of weights on the device: %s",
                            (unsigned long long)w->bytes, ren__status_text(status));
        }
    }
    if (status != REN_OK) {
        ren__weights_free(m);
        return status;
    }
    for (uint32_t i = 0; i < REN__WEIGHT_SETS; i++) {
        w->sets[i].at = (unsigned char *)w->region.ptr + i * w->bytes;
    }
    ren__plan_need(w->plan, need);
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        w->commands += need[i];
    }
    w->prepared = 1;
    return REN_OK;
}

/* ------------------------------------------------------------------ on the submitter */

void ren__weights_changed(ren_model *m, uint32_t by_host)
{
    m->weights_stamp++;
    m->weights_floor = by_host ? m->weights_stamp : m->weights_floor;
}

static uint32_t serves(const ren_model *m, const ren__weight_set *set)
{
    return set->stamp != 0 && set->stamp >= m->weights_floor;
}

/* The newest set that is whole and serves, or NULL. */
static ren__weight_set *whole_set(ren_model *m, ren__submit *s)
{
    ren__weight_set *best = NULL;
    for (uint32_t i = 0; i < REN__WEIGHT_SETS; i++) {
        ren__weight_set *set = &m->weights.sets[i];
        if (serves(m, set) && ren__submit_is_past(s, REN_STREAM_UPDATE, set->made) &&
            (!best || set->stamp > best->stamp)) {
            best = set;
        }
    }
    return best;
}

/* Is a set to be made for this inference? The issue asks right behind renew_need. A set that became
 * whole in between makes it "yes", and then has_room has said that there is room. */
static uint32_t is_due(ren_model *m, ren__submit *s, uint32_t any)
{
    const ren__weight_set *newest = &m->weights.sets[m->weights.newest];
    if (newest->stamp == m->weights_stamp) {
        return 0;
    }
    if (!any || !serves(m, newest)) {
        return 1;
    }
    return ren__submit_is_past(s, REN_STREAM_UPDATE, newest->made) &&
           ren__submit_has_room(s, REN_STREAM_UPDATE, m->weights.commands + REN_STREAM_COUNT);
}

void ren__weights_need(ren_model *m, ren__submit *s, uint32_t any, uint32_t need[REN_STREAM_COUNT])
{
    if (m->weights.bytes == 0 || !is_due(m, s, any)) {
        return;
    }
    need[REN_STREAM_UPDATE] += m->weights.commands + REN_STREAM_COUNT;
    for (uint32_t i = 0; (m->torn || m->unfinished) && i < REN_STREAM_COUNT; i++) {
        need[i] += REN__REJOIN_NEED;
    }
}

/* Make the older set anew, on UPDATE. */
static ren_status make_set(ren_model *m, ren__submit *s)
{
    ren__weights *w = &m->weights;
    ren__weight_set *set = &w->sets[!w->newest];
    ren_status status = ren__model_rejoin(m, s);
    set->stamp = 0;
    for (uint32_t i = 0; i < REN_STREAM_COUNT && status == REN_OK; i++) {
        status = ren__submit_wait(s, REN_STREAM_UPDATE, (ren_stream)i, set->readers[i]);
    }
    if (status == REN_OK) {
        w->externals[w->set_value] = set->at;
        status = ren__plan_issue(w->plan, s, w->externals, 1, 0);
    }
    if (status == REN_OK) {
        status = ren__submit_seal(s, REN_STREAM_UPDATE, &set->made);
    }
    if (status == REN_OK) {
        memset(set->readers, 0, sizeof set->readers);
        set->stamp = m->weights_stamp;
        set->version = m->steps_issued;
        w->newest = !w->newest;
    }
    return status;
}

ren_status ren__weights_take(ren_model *m, ren__submit *s, ren_stream stream, uint32_t any,
                             ren__weight_set **out)
{
    ren_status status = REN_OK;
    *out = NULL;
    if (m->weights.bytes == 0) {
        return REN_OK;
    }
    if (is_due(m, s, any)) {
        status = make_set(m, s);
    }
    if (status == REN_OK) {
        ren__weight_set *whole = any ? whole_set(m, s) : NULL;
        *out = whole ? whole : &m->weights.sets[m->weights.newest];
        status = ren__submit_wait(s, stream, REN_STREAM_UPDATE, (*out)->made);
    }
    return status;
}

void ren__weights_read(ren__weight_set *set, ren__submit *s, ren_stream stream)
{
    set->readers[stream] = ren__submit_point(s, stream);
}
