/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/dnn_plan.c - the plans that a device keeps; see dnn.h.
 *
 * Choice    Where there are few channels, kernels of ours go first (conv_thin.cu, conv_rows.cu).
 *           The forms of a signature are tried in order, and the first engine of the library's
 *           ranking that may serve is taken; on a device opened with `autotune` the engines of all
 *           forms are timed and the fastest is taken.
 * Widening  A weight's gradient is wanted in f32. From halves the library has one engine for that,
 *           up to 40 times slower than those that write halves (64x56x56x64 by 1x1, H200: 1,013 us
 *           against 26 with the cast), so halves are written, and widened behind it.
 * Memory    Plans come from the host's allocator, in a list with the latest used in front.
 */
#include <stdio.h>
#include <string.h>

#include "dnn.h"

#define PLANS_KEPT 256u /* plans; more only while operations hold them */
#define FORMS      4u   /* with engines of the library */
#define TIMED      8u   /* engines of one form */

/* Forward, the library wins with many outputs to a pixel. */
#define THIN_OUTPUTS 128

/* ------------------------------------------------------------------ open, close */

static void free_plan(ren__device *dev, ren__cuda_dnn_plan *plan)
{
    ren__cuda_dnn_choice_free(&plan->choice);
    dev->host.free(dev->host.user, plan, sizeof *plan);
}

void ren__cuda_dnn_close(ren__device *dev)
{
    struct ren__cuda_dnn *dnn = dev->dnn;
    if (!dnn) {
        return;
    }
    while (dnn->first) {
        ren__cuda_dnn_plan *plan = dnn->first;
        dnn->first = plan->next;
        free_plan(dev, plan);
    }
    if (dnn->handle) {
        (void)cudnnDestroy(dnn->handle);
    }
    dev->dnn = NULL;
    dev->host.free(dev->host.user, dnn, sizeof *dnn);
}

static ren_status open_once(ren__device *dev, ren_error *err)
{
    struct ren__cuda_dnn *dnn;
    ren_status status;
    if (dev->dnn) {
        return REN_OK;
    }
    dnn = dev->host.alloc(dev->host.user, sizeof *dnn, _Alignof(struct ren__cuda_dnn));
    if (!dnn) {
        return ren__cuda_error(err, REN_ERR_NO_MEMORY, 0, __FILE__, __LINE__,
                               "no host memory for convolutions");
    }
    memset(dnn, 0, sizeof *dnn);
    dev->dnn = dnn;
    status = REN__DNN(dev, err, cudnnCreate(&dnn->handle));
    if (status != REN_OK) {
        ren__cuda_dnn_close(dev);
    }
    return status;
}

/* ------------------------------------------------------------------ the cache */

/* The forms that serve a signature, the likely best first. */
static uint32_t forms_of(const ren__cuda_dnn_signature *s, ren__cuda_dnn_form out[FORMS])
{
    ren__conv_shape shape = ren__cuda_dnn_shape(s);
    int takes_rows =
        s->type != REN_F32 && ((s->kind == REN__OP_CONV_FWD && !ren__cuda_k_thin_takes(&shape)) ||
                               (s->kind == REN__OP_CONV_BWD_WEIGHT && s->out == REN_F32));
    uint32_t rows = takes_rows ? ren__cuda_k_rows_channels(&shape) : 0u;
    int widens = s->kind == REN__OP_CONV_BWD_WEIGHT && s->out != s->type;
    uint32_t count = 0;
    for (int plain = rows ? 0 : 1; plain < 2; plain++) {
        if (s->has_bias || s->has_relu) {
            out[count++] = (ren__cuda_dnn_form){0, plain ? 0u : rows, 1, s->out};
        }
        if (widens) {
            out[count++] = (ren__cuda_dnn_form){0, plain ? 0u : rows, 0, s->type};
        }
        if (plain || !widens) {
            out[count++] = (ren__cuda_dnn_form){0, plain ? 0u : rows, 0, s->out};
        }
    }
    return count;
}

static void say(ren__device *dev, const ren__cuda_dnn_signature *s, const ren__cuda_dnn_choice *c,
                uint32_t of)
{
    static const char *const names[] = {"forward", "data gradient", "weight gradient"};
    char text[256];
    if (!dev->host.log) {
        return;
    }
    if (!ren__cuda_dnn_is_served(c)) {
        dev->host.log(dev->host.user, REN_LOG_INFO,
                      "cuDNN has no engine for a convolution: it is computed in another way");
        return;
    }
    (void)snprintf(text, sizeof text,
                   "convolution %s, %lldx%lldx%lldx%lld by %lldx%lldx%lldx%lld: engine %lld of %u "
                   "choices%s%s, %.1f us, workspace %llu bytes",
                   names[s->kind - REN__OP_CONV_FWD], (long long)s->x[0], (long long)s->x[1],
                   (long long)s->x[2], (long long)s->x[3], (long long)s->w[0], (long long)s->w[1],
                   (long long)s->w[2], (long long)s->w[3], (long long)c->engine, of,
                   c->form.thin    ? ", few channels"
                   : c->form.fused ? ", fused"
                                   : "",
                   c->form.out != s->out ? ", cast" : "", (double)c->us,
                   (unsigned long long)c->workspace_bytes);
    dev->host.log(dev->host.user, REN_LOG_DEBUG, text);
}

int ren__cuda_dnn_is_served(const ren__cuda_dnn_choice *choice)
{
    return choice->plan || choice->form.thin;
}

/* The kernels for few channels; 1 when they take the signature, and are likely the fastest. */
static int thin_choice(const ren__cuda_dnn_signature *s, ren__cuda_dnn_choice *out)
{
    ren__conv_shape shape = ren__cuda_dnn_shape(s);
    int forward = s->kind == REN__OP_CONV_FWD;
    if (s->kind == REN__OP_CONV_BWD_DATA || s->out != REN_F32 || (forward && s->type != REN_F32) ||
        (forward && shape.o > THIN_OUTPUTS) || !ren__cuda_k_thin_takes(&shape)) {
        return 0;
    }
    out->form = (ren__cuda_dnn_form){1, 0, 1, s->out};
    out->engine = -1;
    out->workspace_bytes = forward ? 0u : ren__cuda_k_thin_scratch(&shape);
    return 1;
}

static uint32_t engines_of(ren__device *dev, const ren__cuda_dnn_signature *s,
                           ren__cuda_dnn_form form, ren__cuda_dnn_choice *out, uint32_t most)
{
    ren__cuda_dnn_signature inner;
    uint64_t own;
    uint32_t count;
    if (!form.rows) {
        return ren__cuda_dnn_engines(dev, s, form, out, most);
    }
    inner = ren__cuda_dnn_over_rows(s, form.rows);
    own = ren__cuda_dnn_bytes(inner.x, s->type) + ren__cuda_dnn_bytes(inner.w, s->type);
    if (own > ren__cuda_dnn_workspace_limit(dev)) {
        return 0;
    }
    count = ren__cuda_dnn_engines(dev, &inner, form, out, most);
    for (uint32_t i = 0; i < count; i++) {
        out[i].workspace_bytes = out[i].library_bytes + own;
    }
    return count;
}

static void choose(ren__device *dev, const ren__cuda_dnn_signature *s, ren__cuda_dnn_choice *out)
{
    ren__cuda_dnn_choice choices[1u + FORMS * TIMED];
    ren__cuda_dnn_form forms[FORMS];
    int tuned = dev->autotune != 0;
    uint32_t of_forms = forms_of(s, forms);
    uint32_t count = 0;
    uint32_t best = 0;
    memset(choices, 0, sizeof choices);
    count += (uint32_t)thin_choice(s, &choices[0]);
    for (uint32_t i = 0; i < of_forms && (tuned || !count); i++) {
        count += engines_of(dev, s, forms[i], choices + count, tuned ? TIMED : 1u);
    }
    if (tuned && count > 1) {
        best = ren__cuda_dnn_tune(dev, s, choices, count);
    }
    *out = choices[best];
    memset(&choices[best], 0, sizeof choices[best]);
    for (uint32_t i = 0; i < count; i++) {
        ren__cuda_dnn_choice_free(&choices[i]);
    }
    say(dev, s, out, count);
}

/* Drop the plan used least lately that nobody holds. */
static void drop_one(ren__device *dev)
{
    ren__cuda_dnn_plan **last = NULL;
    for (ren__cuda_dnn_plan **at = &dev->dnn->first; *at; at = &(*at)->next) {
        /* Acquire: partner of the release in give. */
        if (atomic_load_explicit(&(*at)->references, memory_order_acquire) == 0) {
            last = at;
        }
    }
    if (last) {
        ren__cuda_dnn_plan *plan = *last;
        *last = plan->next;
        dev->dnn->count--;
        free_plan(dev, plan);
    }
}

static ren__cuda_dnn_plan *find(struct ren__cuda_dnn *dnn, const ren__cuda_dnn_signature *s)
{
    for (ren__cuda_dnn_plan **at = &dnn->first; *at; at = &(*at)->next) {
        ren__cuda_dnn_plan *plan = *at;
        if (memcmp(&plan->signature, s, sizeof *s) == 0) {
            *at = plan->next;
            plan->next = dnn->first;
            dnn->first = plan;
            return plan;
        }
    }
    return NULL;
}

ren_status ren__cuda_dnn_take(ren__device *dev, const ren__cuda_dnn_signature *s,
                              ren__cuda_dnn_plan **out, ren_error *err)
{
    ren__cuda_dnn_plan *plan;
    ren_status status = open_once(dev, err);
    *out = NULL;
    if (status != REN_OK) {
        return status;
    }
    plan = find(dev->dnn, s);
    if (!plan) {
        plan = dev->host.alloc(dev->host.user, sizeof *plan, _Alignof(ren__cuda_dnn_plan));
        if (!plan) {
            return ren__cuda_error(err, REN_ERR_NO_MEMORY, 0, __FILE__, __LINE__,
                                   "no host memory for a convolution's plan");
        }
        memset(plan, 0, sizeof *plan);
        plan->signature = *s;
        atomic_init(&plan->references, 0);
        choose(dev, s, &plan->choice);
        while (dev->dnn->count >= PLANS_KEPT) {
            uint32_t before = dev->dnn->count;
            drop_one(dev);
            if (dev->dnn->count == before) {
                break; /* all are held */
            }
        }
        plan->next = dev->dnn->first;
        dev->dnn->first = plan;
        dev->dnn->count++;
    }
    /* Relaxed: op_lock orders this with the dropping. */
    (void)atomic_fetch_add_explicit(&plan->references, 1, memory_order_relaxed);
    *out = plan;
    return REN_OK;
}

void ren__cuda_dnn_hold(ren__cuda_dnn_plan *plan)
{
    /* Relaxed: it is held, so it is not dropped meanwhile. */
    (void)atomic_fetch_add_explicit(&plan->references, 1, memory_order_relaxed);
}

void ren__cuda_dnn_give(ren__cuda_dnn_plan *plan)
{
    if (plan) {
        /* Release: partner of the acquire in drop_one. */
        (void)atomic_fetch_sub_explicit(&plan->references, 1, memory_order_release);
    }
}
