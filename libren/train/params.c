/* SPDX-License-Identifier: MIT */
/* libren/train/params.c - the values of parameters: first values, their place, reads and writes.
 *
 * Purpose   Before a model is placed, parameters are host arrays. Placing takes one region of
 *           device memory, trained parameters first and each at a 256-byte boundary, and one
 *           pinned block of the same layout, the bounce block. Every later read or write is one
 *           work on the model's chain that copies between the two, so it falls between two steps:
 *           all parameters of one read belong to one version, and a write is never seen in part by
 *           a step.
 *           Averages, where a trainer asked for them, are a second region behind the first: one
 *           address space for runs and the bounce block.
 * Threads   any; the model's lock is held for the whole call, so the bounce block has one user.
 * Progress  reads and writes wait for the works posted before them.
 * Memory    placing allocates; reads and writes do not.
 * Units     bytes.
 *
 * First values come from a counter-based generator: element e of parameter p under seed s is a
 * function of (s, p, e) alone, whatever the device, the streams or the order of calls.
 */
#include "model_state.h"

#define SETTLE_SLICE_NS UINT64_C(1000000)
#define MAX_RUNS        128u /* copies of one move: far below what a lane may hold */

/* ------------------------------------------------------------------ first values */

/* The finaliser of splitmix64 (Steele, Lea and Flood 2014): a bijection that mixes all bits. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* In [-1, 1), 24 bits. */
static float uniform(uint64_t seed, uint64_t param, uint64_t element)
{
    uint64_t stream = mix(seed + UINT64_C(0x9e3779b97f4a7c15) * (param + 1));
    uint64_t bits = mix(stream + UINT64_C(0x9e3779b97f4a7c15) * (element + 1)) >> 40;
    return (float)((int64_t)bits - ((int64_t)1 << 23)) / (float)(1 << 23);
}

ren_status ren__model_param_init(ren_model *m, ren__param *p, const ren__param_spec *spec)
{
    uint64_t count = p->bytes / sizeof(float);
    p->host = ren__host_calloc(m->allocator, 1, (size_t)p->bytes);
    if (!p->host) {
        return REN_ERR_NO_MEMORY;
    }
    for (uint64_t i = 0; spec->init != REN__INIT_ZERO && i < count; i++) {
        p->host[i] =
            spec->init == REN__INIT_ONE ? 1.0f : spec->bound * uniform(m->seed, m->param_count, i);
    }
    return REN_OK;
}

/* ------------------------------------------------------------------ layouts */

/* Between boundary layout and the device's. Convolution weights on a device that keeps them OHWI
 * change the order of their dimensions; all else is the same. */
static void permute(const ren__param *p, float *out, const float *in, uint32_t to_device)
{
    int64_t spatial = p->desc.dims[2] * p->desc.dims[3];
    int64_t channels = p->desc.dims[1];
    for (int64_t o = 0; o < p->desc.dims[0]; o++) {
        for (int64_t i = 0; i < channels; i++) {
            for (int64_t s = 0; s < spatial; s++) {
                int64_t oihw = (o * channels + i) * spatial + s;
                int64_t ohwi = (o * spatial + s) * channels + i;
                out[to_device ? ohwi : oihw] = in[to_device ? oihw : ohwi];
            }
        }
    }
}

static void to_bounce(ren_model *m, const ren__param *p, const void *data)
{
    if (p->is_conv && m->caps.conv_weights_ohwi) {
        permute(p, (float *)(void *)(m->bounce + p->offset), data, 1);
    } else {
        memcpy(m->bounce + p->offset, data, (size_t)p->bytes);
    }
}

static void from_bounce(ren_model *m, const ren__param *p, void *out)
{
    if (p->is_conv && m->caps.conv_weights_ohwi) {
        permute(p, out, (const float *)(const void *)(m->bounce + p->offset), 0);
    } else {
        memcpy(out, m->bounce + p->offset, (size_t)p->bytes);
    }
}

/* ------------------------------------------------------------------ moves */

typedef struct run {
    uint64_t offset;
    uint64_t bytes;
} run;

/* A copy of some runs of the region from or to the bounce block; lives on the caller's stack, which
 * waits until finish has said so. */
typedef struct move {
    ren_model *m;
    uint64_t seq;
    uint32_t to_device;
    uint32_t averages; /* 1 = no runs: the averages become the weights */
    uint32_t last;     /* 1 = an unfinished step that cannot be finished now never will be */
    uint32_t run_count;
    run runs[MAX_RUNS];
    ren_status status;
    _Atomic uint32_t done;
} move;

static void *device_address(const ren_model *m, uint64_t offset)
{
    unsigned char *base = offset < m->region_bytes ? m->region.ptr : m->averages.ptr;
    return base + (offset < m->region_bytes ? offset : offset - m->region_bytes);
}

static ren_status move_issue(void *self, ren__submit *s)
{
    move *v = self;
    const ren__device_api *api = ren__submit_api(s);
    uint32_t lane = ren__submit_lane(s, REN_STREAM_UPDATE);
    ren_status status = ren__model_rejoin(v->m, s);
    if (v->last) {
        ren__model_give_up(v->m);
    }
    if (status == REN_OK && v->averages) {
        status = api->copy(ren__submit_device(s), lane, v->m->averages.ptr, v->m->region.ptr,
                           v->m->trained_bytes);
    }
    for (uint32_t i = 0; i < v->run_count && status == REN_OK; i++) {
        void *a = device_address(v->m, v->runs[i].offset);
        void *b = v->m->bounce + v->runs[i].offset;
        status = api->copy(ren__submit_device(s), lane, v->to_device ? a : b, v->to_device ? b : a,
                           v->runs[i].bytes);
    }
    if (v->to_device) {
        ren__weights_changed(v->m, 1); /* also by a part */
    }
    ren__chain_issued(&v->m->chain, v->seq);
    return status;
}

static void move_finish(void *self, ren_completion *c)
{
    move *v = self;
    ren__chain *chain = &v->m->chain;
    v->status = c->status;
    /* release: pairs with move_run's acquire; after it *v may be gone. */
    atomic_store_explicit(&v->done, 1, memory_order_release);
    ren__chain_finished(chain);
}

static ren_status move_run(move *v)
{
    ren_job job;
    ren__chain_post post = {.seq = &v->seq, .deliver = REN_DELIVER_NONE};
    post.work.issue = move_issue;
    post.work.name = "parameters";
    post.work.finish = move_finish;
    post.work.self = v;
    post.work.stream = REN_STREAM_UPDATE;
    for (uint32_t i = 0; i < REN_STREAM_COUNT; i++) {
        post.work.need[i] = REN__REJOIN_NEED;
    }
    post.work.need[REN_STREAM_UPDATE] += v->run_count + v->averages;
    ren_status status = ren__chain_submit(&v->m->chain, &post, &job);
    if (status != REN_OK) {
        return status;
    }
    /* acquire: pairs with move_finish; status and the copied bytes are visible. */
    while (!atomic_load_explicit(&v->done, memory_order_acquire)) {
        ren__chain_await(&v->m->chain, job);
    }
    return v->status;
}

/* Add a run, joined to the one before when only padding lies between, and not the regions' seam. */
static void add_run(move *v, uint64_t offset, uint64_t bytes)
{
    run *last = v->run_count ? &v->runs[v->run_count - 1] : NULL;
    if (last && offset != v->m->region_bytes && offset >= last->offset &&
        offset - (last->offset + last->bytes) < REN__ALIGN) {
        last->bytes = offset + bytes - last->offset;
    } else {
        v->runs[v->run_count++] = (run){offset, bytes};
    }
}

/* ------------------------------------------------------------------ after a broken issue */

static ren_status finish_step(ren_model *m, ren__submit *s)
{
    ren_status status = m->spoilt ? REN_ERR_DEVICE : REN_OK;
    if (status == REN_OK && m->unfinished) {
        status = ren__plan_finish(m->unfinished, s);
        if (status == REN_OK) {
            m->unfinished = NULL;
            /* release: pairs with the acquire before the plan is dropped. */
            atomic_fetch_sub_explicit(m->unfinished_hold, 1, memory_order_release);
        }
    }
    return status;
}

void ren__model_give_up(ren_model *m)
{
    if (m->unfinished) {
        m->spoilt = 1;
        m->unfinished = NULL;
        atomic_fetch_sub_explicit(m->unfinished_hold, 1, memory_order_release);
        ren__runtime_log(m->rt, REN_LOG_ERROR,
                         "a step was applied in part and cannot be finished: the model's weights "
                         "are lost");
    }
}

void ren__model_settle(ren_model *m)
{
    move v = {.m = m, .last = 1};
    ren_status status = move_run(&v);
    /* A full road is no reason to lose weights: room comes with the jobs that are done, or never
     * where callbacks wait for a pump that this thread keeps from running. */
    for (uint32_t last_try = 0; status == REN_ERR_QUEUE_FULL && !last_try;) {
        last_try = ren__runtime_drain(m->rt, SETTLE_SLICE_NS) != REN_TIMEOUT;
        status = move_run(&v);
    }
    if (status != REN_OK) {
        /* Perhaps not issued, and then the runtime takes no more works: when the last one is done
         * nobody else looks. */
        ren__chain_drain(&m->chain);
        ren__model_give_up(m);
    }
}

/* One event serves all lanes in turn: its wait is enqueued before it is recorded again. */
ren_status ren__model_rejoin(ren_model *m, ren__submit *s)
{
    const ren__device_api *api = ren__submit_api(s);
    ren__device *dev = ren__submit_device(s);
    uint32_t update = ren__submit_lane(s, REN_STREAM_UPDATE);
    uint32_t trans = ren__submit_lane(s, REN_STREAM_TRANS);
    ren_status status = finish_step(m, s);
    for (uint32_t i = 0; m->torn && i <= REN_STREAM_COUNT && status == REN_OK; i++) {
        /* The last round goes the other way: TRANS behind UPDATE. */
        uint32_t back = i == REN_STREAM_COUNT;
        uint32_t from = back ? update : ren__submit_lane(s, (ren_stream)i);
        uint32_t to = back ? trans : update;
        if (from == to) {
            continue;
        }
        status = api->event_record(dev, from, m->join_event);
        if (status == REN_OK) {
            status = api->event_wait(dev, to, m->join_event);
        }
    }
    if (status == REN_OK) {
        m->torn = 0;
    }
    return status;
}

/* ------------------------------------------------------------------ place */

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + REN__ALIGN - 1) / REN__ALIGN * REN__ALIGN;
}

static void lay_out(ren_model *m)
{
    uint64_t at = 0;
    for (uint32_t statistics = 0; statistics < 2; statistics++) {
        for (uint32_t i = 0; i < m->param_count; i++) {
            if (m->params[i]->role == (statistics ? REN__PARAM_STATISTIC : REN__PARAM_TRAINED)) {
                m->params[i]->offset = at;
                at += align_up(m->params[i]->bytes);
            }
        }
        if (!statistics) {
            m->trained_bytes = at;
        }
    }
    m->region_bytes = at;
}

void ren__model_unplace(ren_model *m)
{
    ren__region_free(m->rt, &m->region);
    ren__region_free(m->rt, &m->averages);
    if (m->bounce) {
        ren__runtime_api(m->rt)->host_free(ren__runtime_device(m->rt), m->bounce, m->bounce_bytes);
        m->bounce = NULL;
    }
    if (m->join_event) {
        ren__runtime_api(m->rt)->event_destroy(ren__runtime_device(m->rt), m->join_event);
        m->join_event = NULL;
    }
    m->placed = 0;
}

ren_status ren__model_place(ren_model *m, ren_error *err)
{
    void *bounce = NULL;
    if (m->placed) {
        return REN_OK;
    }
    lay_out(m);
    const ren__device_api *api = ren__runtime_api(m->rt);
    ren__device *dev = ren__runtime_device(m->rt);
    ren_status status = ren__runtime_seen(m->rt, api->event_create(dev, 0, &m->join_event));
    if (status == REN_OK && m->region_bytes == 0) {
        m->placed = 1;
        return REN_OK;
    }
    if (status == REN_OK) {
        status = ren__region_alloc(m->rt, m->region_bytes, &m->region);
    }
    if (status == REN_OK) {
        status = ren__runtime_seen(m->rt, api->host_alloc(dev, m->region_bytes, &bounce));
        m->bounce = bounce;
        m->bounce_bytes = m->region_bytes;
    }
    if (status == REN_OK) {
        /* The padding is part of what optimizers see, and must be finite: zero. */
        memset(m->bounce, 0, (size_t)m->region_bytes);
        for (uint32_t i = 0; i < m->param_count; i++) {
            to_bounce(m, m->params[i], m->params[i]->host);
        }
        move v = {.m = m, .to_device = 1};
        add_run(&v, 0, m->region_bytes);
        status = move_run(&v);
    }
    if (status != REN_OK) {
        ren__model_unplace(m);
        return REN__FAIL(err, status, "%llu bytes of parameters on the device: %s",
                         (unsigned long long)m->region_bytes, ren__status_text(status));
    }
    for (uint32_t i = 0; i < m->param_count; i++) {
        ren__host_free(m->allocator, m->params[i]->host, 1, (size_t)m->params[i]->bytes);
        m->params[i]->host = NULL;
    }
    m->placed = 1;
    return REN_OK;
}

/* Room for the averages in the bounce block, whose contents are no one's between two calls. */
static ren_status widen_bounce(ren_model *m, uint64_t bytes)
{
    const ren__device_api *api = ren__runtime_api(m->rt);
    ren__device *dev = ren__runtime_device(m->rt);
    void *bounce = NULL;
    ren_status status = ren__runtime_seen(m->rt, api->host_alloc(dev, bytes, &bounce));
    if (status == REN_OK) {
        api->host_free(dev, m->bounce, m->bounce_bytes);
        m->bounce = bounce;
        m->bounce_bytes = bytes;
    }
    return status;
}

ren_status ren__model_average(ren_model *m, ren_error *err)
{
    if (m->averages.ptr || m->trained_bytes == 0) {
        return REN_OK;
    }
    ren_status status = ren__region_alloc(m->rt, m->trained_bytes, &m->averages);
    if (status == REN_OK) {
        status = widen_bounce(m, m->region_bytes + m->trained_bytes);
    }
    if (status == REN_OK) {
        move v = {.m = m, .averages = 1};
        status = move_run(&v);
    }
    if (status == REN_OK) {
        status = ren__model_list_averages(m);
    }
    if (status != REN_OK) {
        ren__region_free(m->rt, &m->averages);
        return REN__FAIL(err, status, "averages of %llu bytes of parameters: %s",
                         (unsigned long long)m->trained_bytes, ren__status_text(status));
    }
    return REN_OK;
}

/* ------------------------------------------------------------------ reads and writes */

static ren_status read_param(ren_model *m, uint32_t first, uint32_t count, unsigned char *out)
{
    if (m->placed) {
        move v = {.m = m};
        if (count == 1) {
            add_run(&v, m->params[first]->offset, m->params[first]->bytes);
        } else if (m->region_bytes) {
            add_run(&v, 0, m->region_bytes);
            if (m->averages.ptr) {
                add_run(&v, m->region_bytes, m->trained_bytes);
            }
        }
        ren_status status = v.run_count ? move_run(&v) : REN_OK;
        if (status != REN_OK) {
            return status;
        }
    }
    uint64_t base = count ? m->params[first]->host_offset : 0;
    for (uint32_t i = first; i < first + count; i++) {
        const ren__param *p = m->params[i];
        unsigned char *to = out + (p->host_offset - base);
        if (m->placed) {
            from_bounce(m, p, to);
        } else {
            memcpy(to, p->host, (size_t)p->bytes);
        }
    }
    return REN_OK;
}

/* Region order differs from index order (statistics come behind the trained, averages last), so
 * runs are collected in three passes. One move must hold them all, or a step could fall in between:
 * a file that leaves out more than MAX_RUNS parameters in separate places is refused. */
static ren_status write_placed(ren_model *m, const uint8_t *present, move *v)
{
    uint32_t overflow = 0;
    for (uint32_t pass = 0; pass <= REN__PARAM_AVERAGE; pass++) {
        for (uint32_t i = 0; i < m->param_count && !overflow; i++) {
            const ren__param *p = m->params[i];
            if (p->role == (ren__param_role)pass && (!present || present[i])) {
                overflow = v->run_count == MAX_RUNS;
                if (!overflow) {
                    add_run(v, p->offset, p->bytes);
                }
            }
        }
    }
    return overflow ? REN_ERR_UNSUPPORTED : v->run_count ? move_run(v) : REN_OK;
}

static ren_status write_params(ren_model *m, const unsigned char *data, const uint8_t *present)
{
    for (uint32_t i = 0; i < m->param_count; i++) {
        ren__param *p = m->params[i];
        if (present && !present[i]) {
            continue;
        }
        if (m->placed) {
            to_bounce(m, p, data + p->host_offset);
        } else {
            memcpy(p->host, data + p->host_offset, (size_t)p->bytes);
        }
    }
    move v = {.m = m, .to_device = 1};
    return m->placed ? write_placed(m, present, &v) : REN_OK;
}

static ren_status begin(ren_model *m)
{
    ren_status status = ren__runtime_check_blocking(m->rt);
    if (status == REN_OK) {
        pthread_mutex_lock(&m->lock);
        status = ren__model_built(m);
        if (status != REN_OK) {
            pthread_mutex_unlock(&m->lock);
        }
    }
    return status;
}

ren_status ren__model_params_read(ren_model *m, void *out, uint64_t bytes)
{
    ren_status status = begin(m);
    if (status != REN_OK) {
        return status;
    }
    status = bytes == m->params_bytes ? read_param(m, 0, m->param_count, out) : REN_ERR_SHAPE;
    pthread_mutex_unlock(&m->lock);
    return status;
}

ren_status ren__model_params_write(ren_model *m, const void *data, uint64_t bytes,
                                   const uint8_t *present)
{
    ren_status status = begin(m);
    if (status != REN_OK) {
        return status;
    }
    status = bytes == m->params_bytes ? write_params(m, data, present) : REN_ERR_SHAPE;
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* ------------------------------------------------------------------ one parameter */

uint32_t ren__model_param_count(ren_model *m)
{
    pthread_mutex_lock(&m->lock);
    uint32_t count = m->param_count;
    pthread_mutex_unlock(&m->lock);
    return count;
}

uint64_t ren__model_params_bytes(ren_model *m)
{
    pthread_mutex_lock(&m->lock);
    uint64_t bytes = m->params_bytes;
    pthread_mutex_unlock(&m->lock);
    return bytes;
}

void ren__model_param_info(ren_model *m, uint32_t index, const char **out_name, uint32_t *out_rank,
                           const int64_t **out_dims, uint64_t *out_bytes)
{
    pthread_mutex_lock(&m->lock);
    const ren__param *p = m->params[index];
    pthread_mutex_unlock(&m->lock);
    if (out_name) {
        *out_name = p->name;
    }
    if (out_rank) {
        *out_rank = p->desc.rank;
    }
    if (out_dims) {
        *out_dims = p->desc.dims;
    }
    if (out_bytes) {
        *out_bytes = p->bytes;
    }
}

static uint32_t find_locked(const ren_model *m, const char *name)
{
    for (uint32_t i = 0; i < m->param_count; i++) {
        if (strcmp(m->params[i]->name, name) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

uint32_t ren__model_param_find(ren_model *m, const char *name)
{
    pthread_mutex_lock(&m->lock);
    uint32_t index = find_locked(m, name);
    pthread_mutex_unlock(&m->lock);
    return index;
}

/* The parameter's index, with its size checked. `lock` is held. */
static ren_status find_sized(ren_model *m, const char *name, size_t bytes, uint32_t *out_index)
{
    *out_index = find_locked(m, name);
    if (*out_index == UINT32_MAX) {
        ren__runtime_log(m->rt, REN_LOG_ERROR, "no parameter \"%.80s\"", name);
        return REN_ERR_NAME;
    }
    if (m->params[*out_index]->bytes != bytes) {
        ren__runtime_log(m->rt, REN_LOG_ERROR, "parameter %s has %llu bytes, not %llu", name,
                         (unsigned long long)m->params[*out_index]->bytes,
                         (unsigned long long)bytes);
        return REN_ERR_SHAPE;
    }
    return REN_OK;
}

ren_status ren__model_param_get(ren_model *m, const char *name, void *out, size_t bytes)
{
    uint32_t index;
    ren_status status = begin(m);
    if (status != REN_OK) {
        return status;
    }
    status = find_sized(m, name, bytes, &index);
    if (status == REN_OK) {
        status = read_param(m, index, 1, out);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

ren_status ren__model_param_set(ren_model *m, const char *name, const void *data, size_t bytes)
{
    uint32_t index;
    ren_status status = begin(m);
    if (status != REN_OK) {
        return status;
    }
    status = find_sized(m, name, bytes, &index);
    if (status == REN_OK && m->placed) {
        move v = {.m = m, .to_device = 1};
        to_bounce(m, m->params[index], data);
        add_run(&v, m->params[index]->offset, m->params[index]->bytes);
        status = move_run(&v);
    } else if (status == REN_OK) {
        memcpy(m->params[index]->host, data, bytes);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* ------------------------------------------------------------------ frozen */

/* Is it `layer` itself, or `layer` and a parameter's suffix? */
static uint32_t belongs(const ren__param *p, const char *layer)
{
    size_t length = strlen(layer);
    if (p->role == REN__PARAM_AVERAGE || strncmp(p->name, layer, length) != 0) {
        return 0;
    }
    const char *rest = p->name + length;
    return *rest == '\0' || (*rest == '.' && !strchr(rest + 1, '.'));
}

/* The model's lock is not taken: its holder may be waiting for steps, and this call does not. */
ren_status ren__model_set_frozen(ren_model *m, const char *name, uint32_t frozen)
{
    uint32_t found = 0;
    uint32_t changed = 0;
    ren_status status = ren__runtime_status(m->rt, NULL);
    if (status != REN_OK) {
        return status;
    }
    ren__chain_lock(&m->chain);
    for (uint32_t i = 0; i < m->param_count; i++) {
        ren__param *p = m->params[i];
        if (belongs(p, name)) {
            found = 1;
            changed |= p->frozen != (frozen != 0);
            p->frozen = frozen != 0;
        }
    }
    if (changed) {
        /* release: pairs with ren__trainer_plan's acquire; it then takes the chain's lock. */
        atomic_fetch_add_explicit(&m->frozen_version, 1, memory_order_release);
    }
    ren__chain_unlock(&m->chain);
    if (!found) {
        ren__runtime_log(m->rt, REN_LOG_ERROR, "no layer and no parameter \"%.80s\" to freeze",
                         name);
    }
    return found ? REN_OK : REN_ERR_NAME;
}
