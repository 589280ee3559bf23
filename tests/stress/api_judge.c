/* SPDX-License-Identifier: MIT */
/* tests/stress/api_judge.c - what must hold of a random program; see test_api_random.c. */
#include "api_program.h"

#include <stdio.h>
#include <string.h>

void api_fail(program *p, const char *what, const record *r)
{
    if (atomic_fetch_add(&p->failures, 1) < 20) {
        (void)fprintf(stderr, "seed %llu: %s", p->seed, what);
        if (r) {
            (void)fprintf(stderr,
                          " (record %d: thread %u kind %d stream %d priority %d deliver %d effect "
                          "%d status %s runs %d completions %d cancels %d timeline %llu)",
                          (int)(r - p->records), r->thread, (int)r->desc.kind, (int)r->desc.stream,
                          (int)r->desc.priority, (int)r->desc.deliver, (int)r->effect,
                          ren_status_name(r->status), r->runs, r->completions, r->cancels,
                          (unsigned long long)r->timeline);
        }
        (void)fprintf(stderr, "\n");
    }
}

bool api_is_uniform(const unsigned char *bytes)
{
    return memcmp(bytes, bytes + 1, BYTES - 1) == 0;
}

void api_check_looked(program *p, ren_status status, const record *r)
{
    CHECK(p,
          status == REN_OK || status == REN_TIMEOUT || status == REN_PENDING ||
              status == REN_ERR_STALE || (status == REN_CANCELLED && r->cancels) ||
              (status == REN_ERR_DEADLINE && r->desc.deadline_ns) ||
              (status == REN_ERR_CALLBACK && r->enqueue_fails) ||
              (status == REN_ERR_DEVICE && p->faulty) ||
              (p->aborting && (status == REN_ERR_ABORTED || status == REN_ERR_TIMEOUT ||
                               status == REN_ERR_DEVICE_LOST)),
          r);
}

static bool was_applied(const record *r)
{
    return r->status == REN_OK || r->status == REN_ERR_CALLBACK;
}

/* The device had the job when it was lost: it may have run. */
static bool may_be_applied(const record *r)
{
    return r->status == REN_ERR_DEVICE_LOST || r->status == REN_ERR_TIMEOUT;
}

/* One thread's jobs on its buffers, one after another: -1 = a byte that nobody has written. */
static void replay(const worker *w)
{
    static int16_t model[MODELS][CELLS];
    memset(model, 0xff, sizeof model);
    for (uint32_t i = 0; i < w->log_count; i++) {
        const record *r = &w->p->records[w->log[i]];
        int16_t *cells = model[r->model];
        if (may_be_applied(r)) {
            return;
        }
        for (uint32_t c = 0; c < CELLS && was_applied(r); c++) {
            const bool inside = c >= r->first && c < r->first + r->cells;
            if (r->effect == SET_CELLS && inside) {
                cells[c] = (int16_t)(r->value & 255u);
            } else if (r->effect == UPLOAD) {
                cells[c] = (int16_t)((r->value + c) & 255u);
            } else if (r->effect == DOWNLOAD) {
                CHECK(w->p, cells[c] < 0 || cells[c] == r->bytes[c * CELL], r);
                CHECK(w->p, cells[c] < 0 || cells[c] == r->bytes[c * CELL + CELL - 1], r);
            } else if (r->effect == COPY_CELLS && inside) {
                cells[c] = cells[r->first_from + c - r->first];
            } else if (r->effect == ADD_CELLS) {
                CHECK(w->p, cells[c] < 0 || cells[c] == r->seen[c], r);
                cells[c] = cells[c] < 0 ? (int16_t)-1 : (int16_t)((cells[c] + 1) & 255);
            }
        }
    }
}

/* What the job's record says by itself. */
static void judge_one(program *p, record *r)
{
    const bool has_function = r->desc.kind == REN_JOB_DEVICE || r->desc.kind == REN_JOB_HOST;
    if (!r->id) {
        CHECK(p, r->completions == 0 && r->runs == 0, r);
        return;
    }
    if (r->desc.deliver == REN_DELIVER_NONE) {
        CHECK(p, r->completions == 0, r);
        CHECK(p, r->runs <= (has_function ? 1 : 0), r);
        return;
    }
    CHECK(p, r->completions == 1, r);
    CHECK(p, r->status != REN_TIMEOUT && r->status != REN_PENDING, r);
    api_check_looked(p, r->status, r);
    CHECK(p, r->cancels == 0 || r->status == REN_CANCELLED, r);
    CHECK(p, may_be_applied(r) || r->runs == (has_function && was_applied(r) ? 1 : 0), r);
    CHECK(p, r->runs <= (has_function ? 1 : 0), r);
    CHECK(p, r->status != REN_OK || !r->enqueue_fails, r);
    CHECK(p, (r->timeline != 0) == (r->launched_ns != 0), r);
    CHECK(p, !was_applied(r) || r->timeline, r);
    CHECK(p, !r->launched_ns || r->posted_ns <= r->launched_ns, r);
    CHECK(p, !r->launched_ns || r->launched_ns <= r->done_ns, r);
    CHECK(p, !was_applied(r) || r->effect != SHARED_GET || api_is_uniform(r->bytes), r);
}

/* r has run, and so has other: other must have ended before r began. */
static void check_before(program *p, const record *other, const record *r)
{
    CHECK(p, other->end && other->end < r->begin, r);
}

/* What r's function must have found done. */
static void judge_order(program *p, const record *r, uint32_t used)
{
    for (uint32_t i = 0; i < r->desc.wait_count; i++) {
        const record *awaited = r->waits[i];
        if (awaited->runs) {
            check_before(p, awaited, r);
        }
        for (uint32_t k = 0; awaited->desc.kind == REN_JOB_BARRIER && k < used; k++) {
            const record *other = &p->records[k];
            if (other->runs && other->timeline && other->desc.stream == awaited->desc.stream &&
                other->timeline < awaited->timeline) {
                check_before(p, other, r);
            }
        }
    }
    for (uint32_t k = 0; r->timeline && k < used; k++) {
        const record *other = &p->records[k];
        if (other->runs && other->timeline && other->desc.stream == r->desc.stream &&
            other->timeline < r->timeline &&
            (r->desc.kind == REN_JOB_HOST || other->desc.kind == REN_JOB_DEVICE)) {
            check_before(p, other, r);
        }
    }
}

void api_judge(program *p)
{
    uint32_t used = p->records_used < RECORDS ? p->records_used : RECORDS;
    for (uint32_t i = 0; i < used; i++) {
        judge_one(p, &p->records[i]);
    }
    for (uint32_t i = 0; i < used; i++) {
        if (p->records[i].runs) {
            judge_order(p, &p->records[i], used);
        }
    }
    for (uint32_t t = 0; t < THREADS; t++) {
        replay(&p->workers[t]);
    }
}
