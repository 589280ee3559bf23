/* SPDX-License-Identifier: MIT */
/* libren/train/chain.c - see chain.h. */
#include "chain.h"

#include <sched.h>

#define AWAIT_SLICE_NS UINT64_C(1000000)

void ren__chain_init(ren__chain *c, ren_runtime *rt)
{
    c->rt = rt;
    atomic_flag_clear(&c->lock);
}

void ren__chain_lock(ren__chain *c)
{
    /* acquire: pairs with unlock's release; the tail and the tables are those of the
     * last holder. */
    while (atomic_flag_test_and_set_explicit(&c->lock, memory_order_acquire)) {
        sched_yield();
    }
}

void ren__chain_unlock(ren__chain *c)
{
    /* release: pairs with lock's acquire. */
    atomic_flag_clear_explicit(&c->lock, memory_order_release);
}

/* The predecessor to go after, or {0}. */
static ren_job predecessor(ren__chain *c)
{
    ren_job none = {0};
    /* acquire: pairs with ren__chain_issued. */
    return c->tail_seq > atomic_load_explicit(&c->issued, memory_order_acquire) ? c->tail : none;
}

/* A wait that names a job which is done, and whose slot was reused, is met. */
static uint32_t forget_done(ren__chain *c, ren_job *job)
{
    if (job->id && ren__job_status(c->rt, *job) != REN_PENDING) {
        job->id = 0;
        return 1;
    }
    return 0;
}

static ren_status post_work(ren__chain *c, ren__chain_post *p, ren_job *out_job)
{
    uint32_t forgot;
    ren_status status;
    atomic_fetch_add_explicit(&c->outstanding, 1, memory_order_relaxed);
    do {
        status = ren__work_post(c->rt, &p->work, p->done, p->user, p->deliver, p->channel, out_job);
        forgot = status == REN_ERR_STALE &&
                 (forget_done(c, &p->work.wait) | forget_done(c, &p->work.after)) != 0;
    } while (forgot);
    if (status != REN_OK) {
        atomic_fetch_sub_explicit(&c->outstanding, 1, memory_order_relaxed);
    }
    return status;
}

static ren_status post_stage(ren__chain *c, ren__chain_post *p)
{
    ren_job_desc desc = ren_job_desc_default();
    p->stage_job->id = 0;
    desc.kind = REN_JOB_HOST;
    desc.stream = REN_STREAM_TRANS;
    desc.host_fn = p->stage;
    desc.host_user = p->stage_user;
    desc.deliver = REN_DELIVER_NONE;
    ren_status status = ren__post(c->rt, &desc, &p->work.wait);
    if (status == REN_OK) {
        *p->stage_job = p->work.wait;
    }
    return status;
}

static ren_status post_in_order(ren__chain *c, ren__chain_post *p, ren_job *out_job)
{
    ren__chain_lock(c);
    p->work.after = predecessor(c);
    *p->seq = c->tail_seq + 1;
    ren_status status = post_work(c, p, out_job);
    if (status == REN_OK) {
        c->tail = *out_job;
        c->tail_seq++;
    }
    ren__chain_unlock(c);
    return status;
}

ren_status ren__chain_submit(ren__chain *c, ren__chain_post *p, ren_job *out_job)
{
    ren_job job = {0};
    ren_status status = p->stage ? post_stage(c, p) : REN_OK;
    if (status == REN_OK && p->loose) {
        *p->seq = 0;
        status = post_work(c, p, &job);
    } else if (status == REN_OK) {
        status = post_in_order(c, p, &job);
    }
    if (out_job) {
        *out_job = job;
    }
    return status;
}

void ren__chain_issued(ren__chain *c, uint64_t seq)
{
    if (seq) {
        /* release: pairs with predecessor's acquire. */
        atomic_store_explicit(&c->issued, seq, memory_order_release);
    }
}

void ren__chain_finished(ren__chain *c)
{
    /* release: pairs with drain's acquire; everything finish touched is free afterwards. */
    atomic_fetch_sub_explicit(&c->outstanding, 1, memory_order_release);
}

/* One round of a wait: let the work go on, sleep a little or until `job` is done. */
void ren__chain_help(ren__chain *c, ren_job job)
{
    if (ren__runtime_config_of(c->rt)->host_drives_submitter) {
        (void)ren__runtime_tick(c->rt, 0, NULL);
    }
    if (!job.id || ren__wait(c->rt, job, AWAIT_SLICE_NS) != REN_TIMEOUT) {
        sched_yield();
    }
}

void ren__chain_await(ren__chain *c, ren_job job)
{
    while (ren__job_status(c->rt, job) == REN_PENDING) {
        ren__chain_help(c, job);
    }
}

void ren__chain_drain(ren__chain *c)
{
    /* acquire: pairs with ren__chain_finished. */
    while (atomic_load_explicit(&c->outstanding, memory_order_acquire) != 0) {
        ren__chain_lock(c);
        ren_job tail = c->tail;
        ren__chain_unlock(c);
        ren__chain_help(c, tail);
    }
}
