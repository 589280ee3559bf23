/* SPDX-License-Identifier: MIT */
/* libren/train/step.c - one training step: posted, issued, finished.
 *
 * Purpose   The fast path. A post checks the bindings, takes one of REN__STEPS records, and posts
 *           one work on the model's chain; the submitter enqueues the transfer and the plan;
 *           finish reads the result.
 * Threads   post, acquire, set_scalar: one thread at a time. issue: the submitter. finish: UPDATE's
 *           completion thread (or the submitter, for a step never issued). transferred: TRANS'
 *           completion thread.
 * Progress  a post never waits, except that a batch size it has not seen is planned first.
 * Memory    none is taken after the trainer is made, but for such plans.
 *
 * A and B. Inputs and control have two places in device memory, used in turn, so the copies of step
 * N + 1 run while step N computes:
 *
 *   TRANS    wait end[p] . copy inputs to p . copy control to p . record copied[p]
 *   UPDATE   wait copied[p] . the plan: fork, forward, backward, update, join . record end[p] .
 *            copy the result to pinned memory
 *
 * The plan is issued task by task or launched as a graph, see replay.c; what is around it is the
 * same for both, so the copies of step N + 1 run beside step N on both paths. Above, p = N mod 2.
 * end[p] there is what step N - 2 recorded: the last reader of what is overwritten.
 * copied[p] is recorded again only by step N + 2, whose issue comes after this step's wait for it
 * was enqueued; the same holds for end[p]. The turn is counted when an issue is whole, not at post,
 * so neither a cancelled step nor one that broke off upsets it: the next one takes the same place,
 * behind what the broken one left in the lanes. Where steps accumulate, their sums have two places
 * and turn with the inputs: a step reads what the step before it wrote. Pinned memory is the step
 * record's own and is free with the record, after its copies: control and result need no further
 * rule.
 *
 * Applied once or not at all. Device calls may fail anywhere in an issue. Only the last commands
 * of the plan change what the next step reads (see update.c). An error before them leaves the
 * weights as they were, and the step is reported failed. ADVANCE may have counted a step that then
 * broke off, so the next step puts the state back (`repair`) to what it was behind the last whole
 * step: the host does not know how many steps the device skipped, but the result of that step is
 * the state, in pinned memory, once the lane has come there (`known`). The record may be in use
 * again by then, but its result is written behind the repair.
 *   Behind the first of those commands the step takes place, and is reported so. What could not be
 * enqueued is left to whatever the model does next, a step, an inference or a look at the weights:
 * it begins with that, or fails itself (ren__model_rejoin), so nobody meets a step in part. The
 * plan is held until then. Behind the plan nothing makes a step fail any more but the loss of the
 * device: an end[p] that could not be recorded is recorded by the next step (`end_missing`), and a
 * result that cannot be fetched, twice tried, is reported as not a number, and the state fetched
 * by the next step.
 *
 * A step that broke off completes when the lanes are past what it enqueued (the core sees to it):
 * those commands read the host's inputs and use the plan's operations and memory, which the host
 * may take back and drop upon the completion.
 *
 * Who tells. That the inputs are consumed is known on TRANS' thread, early, and to finish, at last;
 * the two come in any order, and the notification may come when the record is already about another
 * step. So `unconsumed` holds the step's index until one of them takes it out: that one gives the
 * slots back and calls the host. A notification has a notice of its own, which names record and
 * index, and holds the record while it looks. The core reads the outcome in the record after finish
 * has returned and before the job counts as done, so the record is free when nobody holds it and
 * its job is done: a host that waits for a step can post the next.
 */
#include <inttypes.h>
#include <math.h>

#include "../../queues/point.h"
#include "bindings.h"
#include "trainer_state.h"

#define MOST_COUNTS_COPIES 15u /* a copy doubles what is there: 2^14 parameters, 4 for each node */

/* ------------------------------------------------------------------ end of a step */

static void let_go(ren__step *step)
{
    /* acq_rel: pairs with the acquire of the poster and of destroy, and orders the holders. */
    atomic_fetch_sub_explicit(&step->holders, 1, memory_order_acq_rel);
}

/* The input memory of step `index` is free: staging slots go back, the host is told. Once a step,
 * and nothing when the record is about another step by now. */
static void consume(ren__step *step, uint64_t index)
{
    ren_trainer *t = step->trainer;
    /* acq_rel: one of the two callers wins; the record's fields are those of this step. */
    if (!atomic_compare_exchange_strong_explicit(&step->unconsumed, &index, 0, memory_order_acq_rel,
                                                 memory_order_relaxed)) {
        return;
    }
    for (uint32_t i = 0; i < t->input_count; i++) {
        if (step->staged[i] != REN__NO_SLOT) {
            ren__staging_release(&t->inputs[i].staging, step->staged[i]);
        }
    }
    if (step->inputs_consumed) {
        step->inputs_consumed(step->user);
    }
}

static void step_transferred(void *user, ren_status status)
{
    ren__step_notice *notice = user;
    ren__step *step = notice->step;
    (void)status; /* on a fault the memory is free as well: nothing will read it any more */
    /* Held before the look, so that finish does not free what this thread is about to use. */
    atomic_fetch_add_explicit(&step->holders, 1, memory_order_acq_rel);
    consume(step, notice->index);
    let_go(step);
    /* release: pairs with take_notice and destroy. */
    atomic_store_explicit(&notice->busy, 0, memory_order_release);
}

/* NULL when all are under way: finish then does the telling. */
static ren__step_notice *take_notice(ren__step *step)
{
    ren_trainer *t = step->trainer;
    ren__step_notice *notice = &t->notices[t->notice_next % REN__NOTICES];
    /* acquire: pairs with step_transferred. */
    if (atomic_load_explicit(&notice->busy, memory_order_acquire)) {
        return NULL;
    }
    t->notice_next++;
    notice->step = step;
    notice->index = step->index;
    atomic_store_explicit(&notice->busy, 1, memory_order_relaxed);
    return notice;
}

/* Inferences rather go to streams that no step uses. relaxed: a hint. */
static void load_streams(const ren__step *step, uint32_t add)
{
    ren_model *m = step->trainer->model;
    for (uint32_t i = 0; i < m->infer_lanes; i++) {
        if (step->plan->need[m->infer_stream[i]]) {
            atomic_fetch_add_explicit(&m->infer_load[i], add ? 1u : UINT32_MAX,
                                      memory_order_relaxed);
        }
    }
}

static void step_finish(void *self, ren_completion *c)
{
    ren__step *step = self;
    ren__chain *chain = &step->trainer->model->chain;
    ren_step_result *outcome = &step->outcome;
    memset(outcome, 0, sizeof *outcome);
    outcome->index = step->index;
    outcome->path = step->path;
    outcome->loss = NAN;
    if (c->status == REN_OK) {
        uint32_t checked = step->trainer->checks && step->updates;
        outcome->loss = step->unfetched ? NAN : step->result->loss;
        outcome->grad_norm = !checked ? 0.0f : step->unfetched ? NAN : step->result->grad_norm;
        outcome->loss_scale = step->unfetched ? 0.0f : step->result->loss_scale;
        outcome->skipped = checked && !step->unfetched ? step->result->found_inf : 0;
    }
    c->step = outcome;
    ren__step_clock_finish(step, c);
    if (step->uses_stage) {
        (void)ren__stage_void(&step->stage); /* cancelled: its memory is the host's again */
    }
    consume(step, step->index);
    load_streams(step, 0);
    /* release: pairs with ren__trainer_plan's acquire; the plan may be dropped. */
    atomic_fetch_sub_explicit(&step->plan->in_flight, 1, memory_order_release);
    let_go(step);
    ren__chain_finished(chain);
}

/* ------------------------------------------------------------------ issue */

typedef struct lanes {
    const ren__device_api *api;
    ren__device *dev;
    ren__submit *s;
    uint32_t trans, update;
} lanes;

/* Inputs and control into place p; the notification. */
static ren_status transfer(const lanes *l, ren__step *step, uint32_t p)
{
    ren_trainer *t = step->trainer;
    ren_status status = REN_OK;
    if (l->trans != l->update) {
        status = l->api->event_wait(l->dev, l->trans, t->end[p]);
    }
    ren__step_stamp(step, l->s, REN_STREAM_TRANS, REN__STAMP_TRANSFER);
    for (uint32_t i = 0; i < t->input_count && status == REN_OK; i++) {
        status = l->api->copy(l->dev, l->trans, t->inputs[i].device[p], step->source[i],
                              t->inputs[i].row_bytes * step->batch);
        ren__step_stamp(step, l->s, REN_STREAM_TRANS, REN__STAMP_INPUTS + i);
    }
    if (status == REN_OK) {
        status = l->api->copy(l->dev, l->trans, t->control_device[p], step->control,
                              sizeof(ren__control));
        ren__step_stamp(step, l->s, REN_STREAM_TRANS, REN__STAMP_INPUTS + t->input_count);
    }
    ren__step_notice *notice = take_notice(step);
    if (notice) {
        ren__submit_notify(l->s, REN_STREAM_TRANS, step_transferred, notice);
    }
    if (status == REN_OK && l->trans != l->update) {
        status = l->api->event_record(l->dev, l->trans, t->copied[p]);
        if (status == REN_OK) {
            status = l->api->event_wait(l->dev, l->update, t->copied[p]);
        }
        ren__submit_count_events(l->s, 1, 2);
    }
    return status;
}

/* So far every parameter was updated as often as the model: the count of the state for each. */
static ren_status make_counts(const lanes *l, ren_trainer *t)
{
    uint64_t one = sizeof(uint64_t);
    uint64_t all = t->param_count * one;
    ren_status status =
        l->api->copy(l->dev, l->update, t->counts, t->state + offsetof(ren__state, applied), one);
    for (uint64_t done = one; done < all && status == REN_OK; done *= 2) {
        uint64_t more = all - done < done ? all - done : done;
        status = l->api->copy(l->dev, l->update, t->counts + done, t->counts, more);
    }
    t->counts_made = status == REN_OK;
    return status;
}

/* Bring right what an issue that broke off left behind, and what a change of plans needs. */
static ren_status mend(const lanes *l, ren__step *step)
{
    ren_trainer *t = step->trainer;
    ren_status status = ren__model_rejoin(t->model, l->s);
    for (uint32_t p = 0; p < REN__INPUT_SLOTS && status == REN_OK; p++) {
        if (t->end_missing & (1u << p)) {
            status = l->api->event_record(l->dev, l->update, t->end[p]);
            t->end_missing &= status == REN_OK ? ~(1u << p) : ~0u;
        }
    }
    if (status == REN_OK && !t->known) {
        status = l->api->copy(l->dev, l->update, t->spare, t->state, sizeof *t->spare);
        t->known = status == REN_OK ? t->spare : NULL;
    }
    if (status == REN_OK && t->repair) {
        status = l->api->copy(l->dev, l->update, t->state, t->known, sizeof *t->known);
        t->repair = status != REN_OK;
    }
    if (status == REN_OK && step->plan->counted && !t->counts_made) {
        status = make_counts(l, t);
    }
    return status;
}

static ren__phase_plan *take_phase(ren__step *step)
{
    const ren_trainer *t = step->trainer;
    step->updates = t->window_at + 1 == t->window;
    return &step->plan->phase[step->updates ? 2 : t->window_at ? 1 : 0];
}

static void place(ren__phase_plan *pp, uint32_t value, void *address)
{
    if (value != REN__NO_VALUE) {
        pp->externals[value] = address;
    }
}

/* The plan, by the path that is due. */
static ren_status issue_plan(const lanes *l, ren__step *step, uint32_t p)
{
    ren_trainer *t = step->trainer;
    ren__step_plan *sp = step->plan;
    ren__phase_plan *pp = take_phase(step);
    for (uint32_t i = 0; i < t->input_count; i++) {
        pp->externals[pp->input_values[i]] = t->inputs[i].device[p];
    }
    pp->externals[pp->control_value] = t->control_device[p];
    place(pp, pp->sum_in, t->sum[!p]);
    place(pp, pp->sum_out, t->sum[p]);
    place(pp, pp->statistics_in, t->statistics[!p]);
    place(pp, pp->statistics_out, t->statistics[p]);
    for (uint32_t i = 0; i < REN__STEP_PHASES && t->issued_plan != sp; i++) {
        ren__replay_interrupt(&sp->phase[i].replay);
    }
    t->issued_plan = sp;
    step->clock.plan = pp->plan;
    ren_status status;
    if (t->sync) {
        ren__plan_set_stamps(pp->plan, step->clock.tasks);
        status = ren__plan_issue(pp->plan, l->s, pp->externals, 1, t->sync);
    } else {
        status =
            ren__replay_issue(&pp->replay, l->s, pp->externals, p, step->clock.tasks, &step->path);
    }
    if (step->launches && step->path == REN_PATH_QUEUED) {
        ren__submit_count_commands(l->s, sp->need); /* a trace ended since it was asked */
    }
    if (status == REN_PENDING) {
        /* relaxed: the step itself holds the plan until its finish. */
        atomic_fetch_add_explicit(&sp->in_flight, 1, memory_order_relaxed);
        t->model->unfinished = pp->plan;
        t->model->unfinished_hold = &sp->in_flight;
        return REN_OK;
    }
    return status;
}

/* Behind the plan, in a step that takes place: end[p], and what the host wants to know. Only the
 * loss of the device is an error. */
static ren_status report(const lanes *l, ren__step *step, uint32_t p)
{
    ren_trainer *t = step->trainer;
    ren_status status = REN_OK;
    if (l->trans != l->update) {
        /* An unfinished step has not come to its end. */
        if (t->model->unfinished || l->api->event_record(l->dev, l->update, t->end[p]) != REN_OK) {
            t->end_missing |= 1u << p;
        }
        ren__submit_count_events(l->s, 1, 0);
    }
    t->known = NULL;
    ren__step_stamp(step, l->s, REN_STREAM_UPDATE, REN__STAMP_RESULT);
    for (uint32_t attempt = 0; attempt < 2; attempt++) {
        status = l->api->copy(l->dev, l->update, step->result, t->state, sizeof(ren__state));
        ren__step_stamp(step, l->s, REN_STREAM_UPDATE, REN__STAMP_RESULT_END);
        if (status == REN_OK || status == REN_ERR_DEVICE_LOST) {
            t->known = step->result;
            return status;
        }
    }
    step->unfetched = 1;
    ren__runtime_log(t->rt, REN_LOG_ERROR, "the result of step %llu could not be fetched (%s)",
                     (unsigned long long)step->index, ren__status_name(status));
    return REN_OK;
}

static ren_status issue_all(const lanes *l, ren__step *step, uint32_t p)
{
    ren_trainer *t = step->trainer;
    ren_status status = transfer(l, step, p);
    if (status != REN_OK) {
        return status;
    }
    status = issue_plan(l, step, p);
    if (status != REN_OK) {
        t->repair = 1;
        return status;
    }
    t->issue_count++;
    t->window_at = (t->window_at + 1) % t->window;
    if (step->updates) {
        t->model->steps_issued++;
        ren__weights_changed(t->model, 0);
    }
    ren__submit_count_step(l->s, step->path);
    return report(l, step, p);
}

static ren_status step_issue(void *self, ren__submit *s)
{
    ren__step *step = self;
    ren_trainer *t = step->trainer;
    lanes l = {.api = ren__submit_api(s),
               .dev = ren__submit_device(s),
               .s = s,
               .trans = ren__submit_lane(s, REN_STREAM_TRANS),
               .update = ren__submit_lane(s, REN_STREAM_UPDATE)};
    uint32_t p = (uint32_t)(t->issue_count % REN__INPUT_SLOTS);
    ren_status status = REN_OK;
    ren__step_clock_begin(step, s);
    if (step->uses_stage && !ren__stage_is_done(&step->stage)) {
        status = REN_ERR_ABORTED; /* the job that copies its input was given up */
    }
    if (status == REN_OK) {
        status = mend(&l, step);
    }
    if (status == REN_OK) {
        status = issue_all(&l, step, p);
        t->model->torn |= status != REN_OK;
    }
    ren__step_clock_issued(step);
    ren__chain_issued(&t->model->chain, step->seq);
    return status;
}

/* ------------------------------------------------------------------ post */

static ren__step *free_step(ren_trainer *t)
{
    for (uint32_t i = 0; i < REN__STEPS; i++) {
        /* acquire: pairs with let_go; the last user of the record is done with it. */
        if (atomic_load_explicit(&t->steps[i].holders, memory_order_acquire) == 0 &&
            ren__job_status(t->rt, t->steps[i].job) != REN_PENDING &&
            ren__stage_is_idle(&t->steps[i].stage)) {
            return &t->steps[i];
        }
    }
    return NULL;
}

static uint32_t find_input(const ren_trainer *t, const char *name)
{
    for (uint32_t i = 0; i < t->input_count; i++) {
        if (strcmp(t->model->nodes[t->inputs[i].node]->name, name) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

/* One binding into the step record. Nothing but the record changes. */
static ren_status bind_one(ren_trainer *t, ren__step *step, uint32_t i, const ren_binding *b)
{
    ren__trainer_input *input = &t->inputs[i];
    uint64_t bytes = input->row_bytes * step->batch;
    if (b->bytes != bytes && (b->data || b->bytes)) {
        return ren__runtime_refuse(t->rt, REN_ERR_SHAPE,
                                   "step: input \"%s\" has %zu bytes, not %" PRIu64 " for %u rows",
                                   b->input, b->bytes, bytes, step->batch);
    }
    step->staged[i] = REN__NO_SLOT;
    step->stage.copies[i].bytes = 0;
    if (!b->data) {
        if (!input->lent) {
            return ren__runtime_refuse(t->rt, REN_ERR_BUSY,
                                       "step: input \"%s\" has no data, and ren_input_acquire lent "
                                       "it no slot",
                                       b->input);
        }
        step->staged[i] = input->lent_slot;
        step->source[i] = ren__staging_slot(&input->staging, input->lent_slot);
    } else if (t->stage_bytes) {
        step->stage.copies[i].from = b->data;
        step->stage.copies[i].bytes = bytes;
        step->uses_stage = 1;
    } else {
        step->source[i] = b->data;
    }
    return REN_OK;
}

static ren_status refuse_names(const ren_trainer *t, const ren_step_desc *desc)
{
    const char *names[REN__MAX_INPUTS];
    for (uint32_t i = 0; i < t->input_count; i++) {
        names[i] = t->model->nodes[t->inputs[i].node]->name;
    }
    return ren__bindings_refuse(t->rt, "step", desc->bindings, desc->binding_count, names,
                                t->input_count);
}

static ren_status bind(ren_trainer *t, ren__step *step, const ren_step_desc *desc)
{
    uint64_t seen = 0;
    step->uses_stage = 0;
    if (desc->binding_count != t->input_count) {
        return refuse_names(t, desc);
    }
    for (uint32_t k = 0; k < desc->binding_count; k++) {
        uint32_t i = find_input(t, desc->bindings[k].input);
        if (i == UINT32_MAX || (seen & (UINT64_C(1) << i))) {
            return refuse_names(t, desc);
        }
        seen |= UINT64_C(1) << i;
        ren_status status = bind_one(t, step, i, &desc->bindings[k]);
        if (status != REN_OK) {
            return status;
        }
    }
    unsigned char *at = step->stage_memory;
    for (uint32_t i = 0; i < t->input_count && step->uses_stage; i++) {
        if (step->stage.copies[i].bytes) {
            step->stage.copies[i].to = at;
            step->source[i] = at;
        }
        at += (t->inputs[i].bytes + REN__ALIGN - 1) / REN__ALIGN * REN__ALIGN;
    }
    return REN_OK;
}

/* Lent slots become posted ones, or, after a refusal, lent again. */
static void commit_slots(ren_trainer *t, ren__step *step, uint32_t commit)
{
    for (uint32_t i = 0; i < t->input_count; i++) {
        if (step->staged[i] == REN__NO_SLOT) {
            continue;
        }
        if (commit) {
            ren__staging_commit(&t->inputs[i].staging, step->staged[i]);
        } else {
            ren__staging_uncommit(&t->inputs[i].staging, step->staged[i]);
        }
        t->inputs[i].lent = !commit;
    }
}

/* Commands of the step, by stream; of the plan so many launches, or with 0 those of its tasks. */
static void set_need(const ren__step *step, uint32_t launches, uint32_t need[REN_STREAM_COUNT])
{
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        need[i] = (launches ? launches : step->plan->need[i]) + REN__REJOIN_NEED;
    }
    need[REN_STREAM_TRANS] += step->trainer->input_count + 3;
    need[REN_STREAM_UPDATE] += 8 + MOST_COUNTS_COPIES;
    for (uint32_t i = 0; step->timed && i < REN_STREAM_COUNT; i++) {
        need[i] *= 3; /* at most two stamps for each command */
    }
}

/* The steps before this one have been issued, so its place and phase are known, and whether it will
 * be a launch. That leaves the lanes room for the next one's transfer however large the plan is. */
static void renew_need(void *self, ren__submit *s, uint32_t need[REN_STREAM_COUNT])
{
    ren__step *step = self;
    const ren_trainer *t = step->trainer;
    uint32_t place = (uint32_t)(t->issue_count % REN__INPUT_SLOTS);
    (void)s;
    step->launches =
        t->sync ? 0 : ren__replay_launches(&take_phase(step)->replay, place, step->timed);
    set_need(step, step->launches, need);
}

static ren_status submit(ren_trainer *t, ren__step *step, const ren_step_desc *desc,
                         ren_job *out_job)
{
    ren__chain_post post = {.seq = &step->seq,
                            .done = desc->done,
                            .user = desc->user,
                            .deliver = desc->deliver,
                            .channel = desc->channel};
    post.work.issue = step_issue;
    post.work.finish = step_finish;
    post.work.self = step;
    post.work.stream = REN_STREAM_UPDATE;
    post.work.timed = 1;
    post.work.alone = 1;
    post.work.renew_need = renew_need;
    set_need(step, 0, post.work.need);
    if (step->uses_stage) {
        post.stage = ren__stage_run;
        post.stage_user = &step->stage;
        post.stage_job = &step->stage.job;
        ren__stage_arm(&step->stage);
    }
    ren_status status = ren__chain_submit(&t->model->chain, &post, &step->job);
    REN__POINT("step.posted");
    if (out_job) {
        *out_job = step->job;
    }
    if (status != REN_OK && step->uses_stage) {
        if (step->stage.job.id) {
            ren__stage_void(&step->stage);
        } else {
            ren__stage_disarm(&step->stage);
        }
    }
    return status;
}

ren_status ren__trainer_step(ren_trainer *t, const ren_step_desc *desc, ren_job *out_job)
{
    if (out_job) {
        out_job->id = 0;
    }
    /* Lost or forked: said before anything is looked at that another thread may have
     * left locked. */
    ren_status status = ren__runtime_status(t->rt, NULL);
    if (status != REN_OK) {
        return status;
    }
    uint32_t batch = desc->batch ? desc->batch : t->batch;
    if (batch > t->batch) {
        return ren__runtime_refuse(t->rt, REN_ERR_SHAPE, "step: batch is %u, more than %u", batch,
                                   t->batch);
    }
    ren__step *step = free_step(t);
    if (!step) {
        return REN_ERR_QUEUE_FULL;
    }
    step->batch = batch;
    status = bind(t, step, desc);
    if (status == REN_OK) {
        status = ren__trainer_plan(t, batch, &step->plan, NULL);
    }
    if (status != REN_OK) {
        return status;
    }
    step->index = t->next_index;
    step->inputs_consumed = desc->inputs_consumed;
    step->user = desc->user;
    step->path = REN_PATH_QUEUED;
    step->updates = 0;
    step->launches = 0;
    step->unfetched = 0;
    step->timed = ren__trace_on(ren__runtime_trace(t->rt));
    *step->control = t->scalars;
    step->control->step = step->index;
    step->plan->last_used = step->index;
    /* relaxed, all three: the post publishes them. Added, not set: a late notice of an earlier
     * step may be holding the record for a moment. Held twice, by the step and by this call, which
     * may return after the step's callback has posted the next one: all else is settled here. */
    atomic_store_explicit(&step->unconsumed, step->index, memory_order_relaxed);
    atomic_fetch_add_explicit(&step->holders, 2, memory_order_relaxed);
    atomic_fetch_add_explicit(&step->plan->in_flight, 1, memory_order_relaxed);
    commit_slots(t, step, 1);
    load_streams(step, 1);
    t->next_index++;
    status = submit(t, step, desc, out_job);
    if (status != REN_OK) {
        t->next_index--;
        load_streams(step, 0);
        commit_slots(t, step, 0);
        atomic_fetch_sub_explicit(&step->plan->in_flight, 1, memory_order_relaxed);
        atomic_store_explicit(&step->unconsumed, 0, memory_order_relaxed);
        let_go(step);
    }
    let_go(step);
    return status;
}

/* ------------------------------------------------------------------ between steps */

void ren__trainer_set_sync(ren_trainer *t, uint32_t sync)
{
    t->sync = sync;
}

ren_status ren__trainer_set_scalar(ren_trainer *t, ren_scalar scalar, float value)
{
    ren__control changed = t->scalars;
    ren_error err;
    if (ren__scalar_put(&changed, scalar, value, &err) != REN_OK) {
        return ren__runtime_refuse(t->rt, err.status, "ren_trainer_set_scalar: %s", err.text);
    }
    if (ren__runtime_status(t->rt, NULL) == REN_ERR_FORKED) {
        return REN_ERR_FORKED;
    }
    if ((scalar == REN_SCALAR_CLIP_NORM && !t->clips && value != 0.0f) ||
        (scalar == REN_SCALAR_EMA_DECAY && !t->averages)) {
        return ren__runtime_refuse(
            t->rt, REN_ERR_UNSUPPORTED, "ren_trainer_set_scalar: the trainer was made without %s",
            scalar == REN_SCALAR_EMA_DECAY ? "a moving average (config.ema_decay was 0)"
                                           : "clipping (config.clip_norm was 0)");
    }
    t->scalars = changed;
    return REN_OK;
}

ren_status ren__trainer_acquire(ren_trainer *t, const char *input, void **out_ptr,
                                size_t *out_bytes)
{
    ren_status status = ren__runtime_status(t->rt, NULL);
    uint32_t i = find_input(t, input);
    if (status != REN_OK) {
        return status;
    }
    if (i == UINT32_MAX) {
        return ren__runtime_refuse(t->rt, REN_ERR_NAME, "ren_input_acquire: no input \"%.63s\"",
                                   input);
    }
    ren__trainer_input *in = &t->inputs[i];
    uint32_t slot;
    void *ptr;
    status = ren__staging_acquire(&in->staging, &slot, &ptr);
    if (status != REN_OK) {
        return status;
    }
    in->lent = 1;
    in->lent_slot = slot;
    *out_ptr = ptr;
    if (out_bytes) {
        *out_bytes = (size_t)in->bytes;
    }
    return REN_OK;
}
