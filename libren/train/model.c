/* SPDX-License-Identifier: MIT */
/* libren/train/model.c - a model's life, its sticky error, and its list of nodes.
 *
 * Purpose   Every builder call comes down to "add a node": check the name and the inputs, let the
 *           family's shape rule speak, make the parameters, append. Nothing is appended unless all
 *           of it worked, so a model is complete up to its first error.
 * Threads   builder calls: one at a time; the lock keeps them apart from parameter calls.
 * Memory    nodes and parameters are separate blocks, so names and dims keep their addresses.
 * Not here  the public builders, see builder.c; values, see params.c.
 */
#include "model_state.h"
#include "builder.h"
#include "infer.h"

#include <stdarg.h>
#include <stdio.h>

#define HANDLE_NODE_BITS 12u
#define HANDLE_TAG_MASK  0xfffffu

/* ------------------------------------------------------------------ life */

/* The compute streams that have a lane of their own, `most` or all of them. */
static void choose_streams(ren_model *m, uint32_t most)
{
    most = most ? most : REN__INFER_LANES;
    for (uint32_t s = REN_STREAM_COMP_1; s <= REN_STREAM_COMP_3; s++) {
        uint32_t found = UINT32_MAX;
        for (uint32_t i = 0; i < m->infer_lanes; i++) {
            if (ren__runtime_lane(m->rt, m->infer_stream[i]) ==
                ren__runtime_lane(m->rt, (ren_stream)s)) {
                found = i;
            }
        }
        if (found == UINT32_MAX && m->infer_lanes < most) {
            found = m->infer_lanes++;
            m->infer_stream[found] = (ren_stream)s;
        }
        m->infer_lane_of[s] = found;
    }
}

ren_status ren__model_create(ren_runtime *rt, const ren_model_config *config, ren_model **out,
                             ren_error *err)
{
    const ren__host_allocator *a = ren__runtime_allocator(rt);
    *out = NULL;
    ren_status status = ren__runtime_retain(rt);
    if (status != REN_OK) {
        return REN__FAIL(err, status, "the runtime takes no new model: %s",
                         ren__status_text(status));
    }
    ren_model *m = ren__host_calloc(a, 1, sizeof *m);
    if (!m || pthread_mutex_init(&m->lock, NULL) != 0) {
        ren__host_free(a, m, 1, sizeof *m);
        ren__runtime_release(rt);
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory for a model");
    }
    m->rt = rt;
    m->allocator = a;
    m->caps = *ren__runtime_caps(rt);
    m->seed = config->seed ? config->seed : ren__runtime_config_of(rt)->seed;
    m->allow_tf32 = config->allow_tf32 ? 1 : 0;
    m->infer_requests = config->infer_requests;
    m->weights_stamp = 1;
    m->tag = (uint32_t)(((uintptr_t)m >> 6) ^ (ren__now_ns() << 4)) & HANDLE_TAG_MASK;
    choose_streams(m, config->infer_streams);
    ren__chain_init(&m->chain, rt);
    *out = m;
    return REN_OK;
}

static void free_lists(ren_model *m)
{
    for (uint32_t i = 0; i < m->param_count; i++) {
        ren__host_free(m->allocator, m->params[i]->host, 1, (size_t)m->params[i]->bytes);
        ren__host_free(m->allocator, m->params[i], 1, sizeof *m->params[i]);
    }
    for (uint32_t i = 0; i < m->node_count; i++) {
        ren__host_free(m->allocator, m->nodes[i], 1, sizeof *m->nodes[i]);
    }
    ren__host_free(m->allocator, m->params, m->param_capacity, sizeof *m->params);
    ren__host_free(m->allocator, m->nodes, m->node_capacity, sizeof *m->nodes);
}

void ren__model_destroy(ren_model *m)
{
    ren_runtime *rt = m->rt;
    ren_status status = ren__runtime_check_blocking(rt);
    if (status == REN_ERR_REENTRANT || m->trainer) {
        ren__runtime_log(rt, REN_LOG_ERROR,
                         "ren_model_destroy: refused %s; the model is still alive",
                         m->trainer ? "while its trainer lives" : "inside a callback");
        return;
    }
    if (status != REN_ERR_FORKED) {
        /* In a forked child there is no device to wait for or to give memory back to. */
        ren__chain_drain(&m->chain);
        ren__infer_free_all(m);
        ren__weights_free(m);
        ren__model_unplace(m);
    }
    free_lists(m);
    pthread_mutex_destroy(&m->lock);
    ren__host_free(m->allocator, m, 1, sizeof *m);
    ren__runtime_release(rt);
}

ren_runtime *ren__model_runtime(ren_model *m)
{
    return m->rt;
}

const ren__host_allocator *ren__model_allocator(ren_model *m)
{
    return m->allocator;
}

/* ------------------------------------------------------------------ the sticky error */

static void keep_error(ren_model *m, ren_status status, const char *text)
{
    if (m->status == REN_OK) {
        m->status = status;
        (void)REN__FAIL(&m->error, status, "%s", text);
        ren__runtime_log(m->rt, REN_LOG_ERROR, "model: %s", text);
    }
}

ren_tensor ren__model_fail(ren_model *m, ren_status status, const char *format, ...)
{
    ren_tensor none = {0};
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&m->lock);
    keep_error(m, status, text);
    pthread_mutex_unlock(&m->lock);
    return none;
}

ren_status ren__model_built(const ren_model *m)
{
    return m->placed ? REN_OK : m->status;
}

ren_status ren__model_status(ren_model *m, ren_error *err)
{
    pthread_mutex_lock(&m->lock);
    ren_status status = m->status;
    if (status != REN_OK && err) {
        *err = m->error;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

ren_status ren__model_weights_status(ren_model *m, ren_error *err)
{
    pthread_mutex_lock(&m->lock);
    ren_status status = ren__model_built(m);
    if (status != REN_OK && err) {
        *err = m->error;
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* ------------------------------------------------------------------ nodes */

uint32_t ren__model_node_of(const ren_model *m, ren_tensor tensor)
{
    uint32_t node = tensor.index & ((1u << HANDLE_NODE_BITS) - 1u);
    if (node == 0 || node > m->node_count || tensor.index >> HANDLE_NODE_BITS != m->tag) {
        return UINT32_MAX;
    }
    return node - 1;
}

/* Room for one more pointer. */
static ren_status reserve(ren_model *m, void **array, uint32_t count, uint32_t more,
                          uint32_t *capacity)
{
    if (count + more <= *capacity) {
        return REN_OK;
    }
    uint32_t grown = *capacity ? *capacity * 2 : 32;
    grown = grown < count + more ? count + more : grown;
    void *bigger = ren__host_calloc(m->allocator, grown, sizeof(void *));
    if (!bigger) {
        return REN_ERR_NO_MEMORY;
    }
    if (count) {
        memcpy(bigger, *array, count * sizeof(void *));
    }
    ren__host_free(m->allocator, *array, *capacity, sizeof(void *));
    *array = bigger;
    *capacity = grown;
    return REN_OK;
}

static ren_status check_name(const ren_model *m, const char *name, ren__shape_error *err)
{
    size_t length = name ? strnlen(name, REN__NAME_BYTES) : 0;
    if (length == 0 || length >= REN__NAME_BYTES) {
        return ren__shape_fail(err, REN_ERR_NAME, "a name is 1 to %u characters long: \"%.70s\"",
                               REN__NAME_BYTES - 1, name ? name : "");
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) {
            return ren__shape_fail(err, REN_ERR_NAME, "a name holds the control character %u",
                                   (unsigned)(unsigned char)name[i]);
        }
    }
    for (uint32_t i = 0; i < m->node_count; i++) {
        if (strcmp(m->nodes[i]->name, name) == 0) {
            return ren__shape_fail(err, REN_ERR_NAME, "the name \"%s\" is taken", name);
        }
    }
    return REN_OK;
}

/* Fill the node's inputs from handles, and their descriptions for the shape rule. */
static ren_status look_up_inputs(const ren_model *m, ren__node *n, const ren_tensor *inputs,
                                 ren__shape_in *in, ren__shape_error *err)
{
    for (uint32_t i = 0; i < n->input_count; i++) {
        uint32_t node = ren__model_node_of(m, inputs[i]);
        if (node == UINT32_MAX) {
            return ren__shape_fail(err, REN_ERR_INVALID_ARGUMENT,
                                   "%s: input %u is no tensor of this model", n->name, i);
        }
        n->inputs[i] = node;
        in[i].name = m->nodes[node]->name;
        in[i].desc = m->nodes[node]->out;
        in[i].is_loss = m->nodes[node]->is_loss;
    }
    return REN_OK;
}

/* Whoever sets a parameter frozen reads the list under the chain's lock alone. */
static ren_status reserve_params(ren_model *m, uint32_t more)
{
    ren__chain_lock(&m->chain);
    ren_status status = reserve(m, (void **)&m->params, m->param_count, more, &m->param_capacity);
    ren__chain_unlock(&m->chain);
    return status;
}

static void append_param(ren_model *m, ren__param *p)
{
    p->host_offset = m->params_bytes;
    m->params_bytes += p->bytes;
    ren__chain_lock(&m->chain);
    m->params[m->param_count++] = p;
    ren__chain_unlock(&m->chain);
}

/* Make and append one parameter of n. */
static ren_status add_param(ren_model *m, ren__node *n, const ren__param_spec *spec,
                            ren__shape_error *err)
{
    ren_status status = reserve_params(m, 1);
    ren__param *p = status == REN_OK ? ren__host_calloc(m->allocator, 1, sizeof *p) : NULL;
    if (!p) {
        return ren__shape_fail(err, REN_ERR_NO_MEMORY, "%s: no memory", n->name);
    }
    snprintf(p->name, sizeof p->name, "%s%s", n->name, spec->suffix);
    p->desc.dtype = REN_F32;
    p->desc.rank = spec->rank;
    memcpy(p->desc.dims, spec->dims, sizeof p->desc.dims);
    p->role = spec->is_statistic ? REN__PARAM_STATISTIC : REN__PARAM_TRAINED;
    p->is_conv = spec->is_conv;
    status = ren__shape_check_size(p->name, &p->desc, err);
    if (status == REN_OK) {
        p->bytes = ren__tensor_bytes(&p->desc);
        status = ren__model_param_init(m, p, spec);
        if (status != REN_OK) {
            ren__shape_fail(err, status, "%s: no memory for %llu bytes", p->name,
                            (unsigned long long)p->bytes);
        }
    }
    if (status != REN_OK) {
        ren__host_free(m->allocator, p, 1, sizeof *p);
        return status;
    }
    n->params[spec->slot] = m->param_count;
    append_param(m, p);
    return REN_OK;
}

static void drop_params_from(ren_model *m, uint32_t first)
{
    while (m->param_count > first) {
        ren__chain_lock(&m->chain);
        ren__param *p = m->params[--m->param_count];
        ren__chain_unlock(&m->chain);
        m->params_bytes -= p->bytes;
        ren__host_free(m->allocator, p->host, 1, (size_t)p->bytes);
        ren__host_free(m->allocator, p, 1, sizeof *p);
    }
}

static ren_status add_params(ren_model *m, ren__node *n, const ren__shape_in *in,
                             ren__shape_error *err)
{
    const ren__op_family *family = ren__op_family_of(n->kind);
    ren__param_spec specs[REN__NODE_PARAMS];
    uint32_t first = m->param_count;
    if (!family || !family->params) {
        return REN_OK;
    }
    if (m->placed) {
        return ren__shape_fail(err, REN_ERR_BUSY,
                               "%s: the model is in use; layers with parameters come before the "
                               "first trainer and inference",
                               n->name);
    }
    uint32_t count = family->params(n, in, specs);
    for (uint32_t i = 0; i < count; i++) {
        ren_status status = add_param(m, n, &specs[i], err);
        if (status != REN_OK) {
            drop_params_from(m, first);
            return status;
        }
    }
    return REN_OK;
}

ren_status ren__model_list_averages(ren_model *m)
{
    uint32_t first = m->param_count;
    ren_status status = reserve_params(m, first);
    for (uint32_t i = 0; i < first && status == REN_OK; i++) {
        if (m->params[i]->role != REN__PARAM_TRAINED) {
            continue;
        }
        ren__param *p = ren__host_calloc(m->allocator, 1, sizeof *p);
        if (!p) {
            status = REN_ERR_NO_MEMORY;
            break;
        }
        *p = *m->params[i];
        snprintf(p->name, sizeof p->name, "%.*s.ema", (int)sizeof p->name - 5, m->params[i]->name);
        p->role = REN__PARAM_AVERAGE;
        p->offset += m->region_bytes;
        p->frozen = 0;
        append_param(m, p);
    }
    if (status != REN_OK) {
        drop_params_from(m, first);
    }
    return status;
}

static ren_status add_node(ren_model *m, ren__node *n, const char *name, const ren_tensor *inputs,
                           ren__shape_error *err)
{
    ren__shape_in in[REN__NODE_INPUTS];
    const ren__op_family *family = ren__op_family_of(n->kind);
    ren_status status = check_name(m, name, err);
    if (status != REN_OK) {
        return status;
    }
    memcpy(n->name, name, strlen(name) + 1);
    memset(n->params, 0xff, sizeof n->params);
    if (m->node_count == REN__MAX_NODES) {
        return ren__shape_fail(err, REN_ERR_UNSUPPORTED, "%s: a model has at most %u tensors", name,
                               REN__MAX_NODES);
    }
    status = look_up_inputs(m, n, inputs, in, err);
    if (status == REN_OK && family) {
        status = family->shape(n, in, &n->out, err);
    }
    if (status == REN_OK) {
        status = ren__shape_check_size(name, &n->out, err);
    }
    if (status != REN_OK) {
        return status;
    }
    if (reserve(m, (void **)&m->nodes, m->node_count, 1, &m->node_capacity) != REN_OK) {
        return ren__shape_fail(err, REN_ERR_NO_MEMORY, "%s: no memory", name);
    }
    ren__node *kept = ren__host_calloc(m->allocator, 1, sizeof *kept);
    if (!kept) {
        return ren__shape_fail(err, REN_ERR_NO_MEMORY, "%s: no memory", name);
    }
    status = add_params(m, n, in, err);
    if (status != REN_OK) {
        ren__host_free(m->allocator, kept, 1, sizeof *kept);
        return status;
    }
    /* Of the families that are none, only the sum takes losses. */
    n->is_loss = family && (family->is_loss || in[0].is_loss);
    n->layer = n->kind == REN__NODE_DROPOUT ? m->dropout_count++ : 0;
    *kept = *n;
    m->nodes[m->node_count++] = kept;
    return REN_OK;
}

ren_tensor ren__model_add_node(ren_model *m, ren__node *n, const char *name,
                               const ren_tensor *inputs)
{
    ren_tensor tensor = {0};
    ren__shape_error err;
    pthread_mutex_lock(&m->lock);
    if (m->status == REN_OK) {
        ren_status status = add_node(m, n, name, inputs, &err);
        if (status == REN_OK) {
            tensor.index = m->tag << HANDLE_NODE_BITS | m->node_count;
        } else {
            keep_error(m, status, err.text);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return tensor;
}
