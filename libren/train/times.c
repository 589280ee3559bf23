/* SPDX-License-Identifier: MIT */
/* libren/train/times.c - see times.h. */
#include "trainer_state.h"

void ren__step_clock_begin(ren__step *step, ren__submit *s)
{
    ren__step_clock *clock = &step->clock;
    uint32_t rest = REN__STAMP_INPUTS + step->trainer->input_count + 1u;
    memset(clock, 0, sizeof *clock);
    if (!step->timed || !ren__trace_on(ren__runtime_trace(step->trainer->rt))) {
        return;
    }
    clock->issue_ns = ren__now_ns();
    clock->stamps = ren__submit_stamps(s, rest + 2u * step->plan->most_tasks);
    clock->tasks = clock->stamps ? clock->stamps + rest : NULL;
}

/* A stamp that is refused leaves its time unknown; a lost device is found by the next command. */
void ren__step_stamp(ren__step *step, ren__submit *s, ren_stream stream, uint32_t index)
{
    if (step->clock.stamps) {
        (void)ren__submit_api(s)->stamp(ren__submit_device(s), ren__submit_lane(s, stream),
                                        &step->clock.stamps[index]);
    }
}

void ren__step_clock_issued(ren__step *step)
{
    ren__step_clock *clock = &step->clock;
    if (clock->issue_ns) {
        clock->issued_ns = ren__now_ns();
        ren__trace_span(ren__runtime_trace(step->trainer->rt), REN__TRACK_SUBMITTER,
                        step->path == REN_PATH_GRAPH ? "issue step graph" : "issue step queued",
                        clock->issue_ns, clock->issued_ns, step->index);
    }
}

/* A copy on the device's clock, where both times are known; its length. */
static uint64_t trace_copy(const ren__step *step, ren_stream stream, const char *name,
                           uint64_t begin_ns, uint64_t end_ns)
{
    if (!begin_ns || end_ns < begin_ns) {
        return 0;
    }
    const ren__trace_event span = {.kind = REN__TRACE_SPAN,
                                   .track = REN__TRACK_STREAM + (uint32_t)stream,
                                   .device = REN__TRACE_DEVICE,
                                   .begin_ns = begin_ns,
                                   .end_ns = end_ns,
                                   .value = step->index,
                                   .name = name,
                                   .detail = "copy"};
    ren__trace_put(ren__runtime_trace(step->trainer->rt), &span);
    return end_ns - begin_ns;
}

/* A time inside the last copy that the plan waits for, and how long the copies took. */
static uint64_t trace_transfer(const ren__step *step, uint64_t *out_busy_ns)
{
    const ren_trainer *t = step->trainer;
    const uint64_t *behind = step->clock.stamps + REN__STAMP_INPUTS;
    uint64_t begin = step->clock.stamps[REN__STAMP_TRANSFER];
    for (uint32_t i = 0; i < t->input_count; i++) {
        *out_busy_ns += trace_copy(step, REN_STREAM_TRANS, t->model->nodes[t->inputs[i].node]->name,
                                   begin, behind[i]);
        begin = behind[i];
    }
    *out_busy_ns += trace_copy(step, REN_STREAM_TRANS, "control", begin, behind[t->input_count]);
    return begin && behind[t->input_count] ? ren__trace_inside(begin, behind[t->input_count]) : 0;
}

/* The step on the row of steps, and arrows to it and from it. */
static void trace_step(const ren__step *step, const ren_completion *c, const ren__plan_times *times)
{
    const ren__step_clock *clock = &step->clock;
    ren__trace_slot *trace = ren__runtime_trace(step->trainer->rt);
    uint64_t result = clock->stamps[REN__STAMP_RESULT];
    uint64_t result_end = clock->stamps[REN__STAMP_RESULT_END];
    const ren__trace_event span = {.kind = REN__TRACE_SPAN,
                                   .track = REN__TRACK_STEP,
                                   .device = REN__TRACE_DEVICE,
                                   .begin_ns = times->first_ns,
                                   .end_ns = times->last_ns,
                                   .value = step->index,
                                   .name = "step",
                                   .detail = step->path == REN_PATH_GRAPH ? "graph" : "queued"};
    ren__trace_put(trace, &span);
    /* From its beginning: the device may start before the submitter is through with the step. */
    ren__trace_flow(trace, "issue", REN__TRACK_SUBMITTER, clock->issue_ns, REN__TRACK_STEP,
                    times->first_ns, REN__TRACE_DEVICE_END);
    if (result && result_end) {
        (void)trace_copy(step, REN_STREAM_UPDATE, "result", result, result_end);
        ren__trace_flow(trace, "done", REN__TRACK_STREAM + REN_STREAM_UPDATE,
                        ren__trace_inside(result, result_end),
                        REN__TRACK_COMPLETION +
                            ren__runtime_lane(step->trainer->rt, REN_STREAM_UPDATE),
                        c->done_ns, REN__TRACE_DEVICE_BEGIN);
    }
}

void ren__step_clock_finish(ren__step *step, const ren_completion *c)
{
    const ren__step_clock *clock = &step->clock;
    ren__trace_slot *trace = ren__runtime_trace(step->trainer->rt);
    if (clock->stamps && c->status == REN_OK && ren__trace_on(trace)) {
        ren__plan_times times;
        uint64_t transfer_ns = 0;
        uint64_t before = trace_transfer(step, &transfer_ns);
        ren__plan_trace(clock->plan, trace, clock->tasks, step->index, before,
                        clock->stamps[REN__STAMP_RESULT], &times);
        if (times.first_ns) {
            trace_step(step, c, &times);
            times.sums.latency_ns = c->done_ns - c->posted_ns;
            times.sums.issue_ns = clock->issued_ns - clock->issue_ns;
            times.sums.busy_ns[REN_STREAM_TRANS] += transfer_ns;
            ren__runtime_count_times(step->trainer->rt, &times.sums);
        }
    }
    ren__stamps_give(clock->stamps);
    step->clock.stamps = NULL;
}
