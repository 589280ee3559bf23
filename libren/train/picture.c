/* SPDX-License-Identifier: MIT */
/* libren/train/picture.c - how a trainer's steps are planned, as a file.
 *
 * Purpose   ren_plan_dump: the plans of one batch size, as text for Graphviz.
 * Threads   the one that posts steps: it alone makes and drops plans.
 * Memory    the text, by the host's allocator.
 */
#include "file.h"
#include "trainer_state.h"

typedef struct pictures {
    const ren__plan *plans[REN__STEP_PHASES];
    const char *titles[REN__STEP_PHASES];
    uint32_t count;
} pictures;

static void collect(const ren_trainer *t, const ren__step_plan *sp, pictures *p)
{
    static const char *const titles[REN__STEP_PHASES] = {
        "first step of a window", "middle step of a window", "last step of a window"};
    p->count = 0;
    for (uint32_t i = 0; i < REN__STEP_PHASES; i++) {
        if (sp->phase[i].plan) {
            p->plans[p->count] = sp->phase[i].plan;
            p->titles[p->count] = t->window > 1 ? titles[i] : "step";
            p->count++;
        }
    }
}

ren_status ren__trainer_dump(ren_trainer *t, uint32_t batch, const char *path, ren_error *err)
{
    const ren__host_allocator *a = t->model->allocator;
    ren__step_plan *sp = NULL;
    pictures p;
    ren_status status = ren__runtime_check_blocking(t->rt);
    if (status == REN_OK) {
        status = ren__runtime_status(t->rt, NULL);
    }
    if (status != REN_OK) {
        return REN__FAIL(err, status, "a plan cannot be written here: %s",
                         ren__status_text(status));
    }
    if (batch > t->batch) {
        return REN__FAIL(err, REN_ERR_SHAPE, "a batch of %u rows is more than the model's %u",
                         batch, t->batch);
    }
    status = ren__trainer_plan(t, batch ? batch : t->batch, &sp, err);
    if (status != REN_OK) {
        return status == REN_ERR_QUEUE_FULL
                   ? REN__FAIL(err, status,
                               "each plan kept (plan_cache) has a step under way: pump, then again")
                   : status;
    }
    collect(t, sp, &p);
    size_t bytes = ren__plan_dump(p.plans, p.titles, p.count, NULL, 0) + 1u;
    char *text = ren__host_calloc(a, bytes, 1);
    if (!text) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory for a picture of %zu bytes", bytes);
    }
    (void)ren__plan_dump(p.plans, p.titles, p.count, text, bytes);
    const ren__file_part part = {text, bytes - 1u};
    status = ren__file_replace(path, a, &part, 1, err);
    ren__host_free(a, text, bytes, 1);
    return status;
}
