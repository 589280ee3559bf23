/* SPDX-License-Identifier: MIT */
/* host_api/trainer.c - training and inference: check the arguments, call train/.
 *
 * Threads   as ren.h says for each call; nothing is kept here.
 */
#include "ren.h"
#include "../libren/train/trainer.h"

/* ------------------------------------------------------------------ trainer */

ren_status ren_trainer_create(ren_model *m, ren_tensor loss, const ren_trainer_config *config,
                              ren_trainer **out, ren_error *err)
{
    ren_trainer_config c = ren_trainer_config_default();
    if (!out) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "out is NULL");
    }
    *out = NULL;
    if (!m) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "m is NULL");
    }
    if (config) {
        if (config->struct_size != sizeof c) {
            return REN__FAIL(err, REN_ERR_BAD_STRUCT,
                             "config->struct_size is %u; use ren_trainer_config_default()",
                             config->struct_size);
        }
        c = *config;
    }
    if ((uint32_t)c.optimizer > REN_OPTIMIZER_LARS) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT,
                         "optimizer %d is none of REN_OPTIMIZER_SGD, ADAM, ADAMW, LARS",
                         (int)c.optimizer);
    }
    if ((uint32_t)c.precision > REN_PRECISION_MIXED_BF16) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT,
                         "precision %d is none of REN_PRECISION_F32, MIXED_F16, MIXED_BF16",
                         (int)c.precision);
    }
    if ((uint32_t)c.stream_policy > REN_POLICY_STATIC) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT,
                         "stream_policy %d is none of REN_POLICY_GREEDY, STATIC",
                         (int)c.stream_policy);
    }
    if (c.plan_cache > REN__MAX_STEP_PLANS) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "plan_cache is %u, not 0 (= 8) or 1..%u",
                         c.plan_cache, REN__MAX_STEP_PLANS);
    }
    if (c.graph_segments > 1) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "graph_segments is %u, not 0 or 1",
                         c.graph_segments);
    }
    return ren__trainer_create(m, loss, &c, out, err);
}

void ren_trainer_destroy(ren_trainer *t)
{
    if (t) {
        ren__trainer_destroy(t);
    }
}

/* The member that is wrong, or NULL. */
static const char *wrong_binding(const ren_binding *bindings, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!bindings || !bindings[i].input) {
            return bindings ? "bindings[].input (it is NULL)" : "bindings (it is NULL)";
        }
    }
    return NULL;
}

static const char *wrong_delivery(ren_deliver deliver, uint32_t channel)
{
    return (uint32_t)deliver > REN_DELIVER_NONE ? "deliver (it is no ren_deliver)"
           : channel >= REN_CHANNELS            ? "channel (it is not below REN_CHANNELS)"
                                                : NULL;
}

static ren_status check_step(ren_trainer *t, const ren_step_desc *d)
{
    if (!t || !d) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    ren_runtime *rt = ren__trainer_runtime(t);
    if (d->struct_size != sizeof *d) {
        return ren__runtime_refuse(rt, REN_ERR_BAD_STRUCT,
                                   "step: look at struct_size (start from "
                                   "ren_step_desc_default())");
    }
    const char *wrong = wrong_delivery(d->deliver, d->channel);
    wrong = wrong ? wrong : wrong_binding(d->bindings, d->binding_count);
    return wrong ? ren__runtime_refuse(rt, REN_ERR_INVALID_ARGUMENT, "step: look at %s", wrong)
                 : REN_OK;
}

ren_status ren_trainer_step(ren_trainer *t, const ren_step_desc *desc, ren_job *out_job)
{
    ren_status status = check_step(t, desc);
    if (status != REN_OK) {
        if (out_job) {
            out_job->id = 0;
        }
        return status;
    }
    return ren__trainer_step(t, desc, out_job);
}

ren_status ren_trainer_set_scalar(ren_trainer *t, ren_scalar scalar, float value)
{
    return t ? ren__trainer_set_scalar(t, scalar, value) : REN_ERR_INVALID_ARGUMENT;
}

ren_status ren_input_acquire(ren_trainer *t, const char *input, void **out_ptr, size_t *out_bytes)
{
    if (!t || !input || !out_ptr) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    *out_ptr = NULL;
    return ren__trainer_acquire(t, input, out_ptr, out_bytes);
}

ren_status ren_plan_dump(ren_trainer *t, uint32_t batch, const char *path, ren_error *err)
{
    if (!t || !path || !*path) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "%s is %s", t ? "path" : "t",
                         t && path ? "empty" : "NULL");
    }
    return ren__trainer_dump(t, batch, path, err);
}

/* ------------------------------------------------------------------ inference */

static const char *wrong_infer(const ren_infer_desc *d)
{
    if ((uint32_t)d->stream >= REN_STREAM_UPDATE) {
        return "stream (must be COMP_1 to COMP_3, or TRANS for any of them)";
    }
    if ((uint32_t)d->priority > REN_PRIORITY_BACKGROUND) {
        return "priority (it is no ren_priority)";
    }
    if (!d->out_data && !d->out_buffer.id) {
        return "out_data or out_buffer (neither is set)";
    }
    const char *wrong = wrong_delivery(d->deliver, d->channel);
    return wrong ? wrong : wrong_binding(d->bindings, d->binding_count);
}

static ren_status check_infer(ren_model *m, const ren_infer_desc *d)
{
    if (!m || !d) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    ren_runtime *rt = ren__model_runtime(m);
    if (d->struct_size != sizeof *d) {
        return ren__runtime_refuse(rt, REN_ERR_BAD_STRUCT,
                                   "inference: look at struct_size (start from "
                                   "ren_infer_desc_default())");
    }
    const char *wrong = wrong_infer(d);
    return wrong ? ren__runtime_refuse(rt, REN_ERR_INVALID_ARGUMENT, "inference: look at %s", wrong)
                 : REN_OK;
}

ren_status ren_infer(ren_model *m, const ren_infer_desc *desc, ren_job *out_job)
{
    ren_status status = check_infer(m, desc);
    if (status != REN_OK) {
        if (out_job) {
            out_job->id = 0;
        }
        return status;
    }
    return ren__infer(m, desc, out_job);
}

ren_status ren_infer_prepare(ren_model *m, ren_tensor output, ren_error *err)
{
    return m ? ren__infer_prepare(m, output, err)
             : REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "m is NULL");
}
