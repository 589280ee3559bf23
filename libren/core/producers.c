/* SPDX-License-Identifier: MIT */
/* libren/core/producers.c - registering a host thread's own ring.
 *
 * Purpose   Hand out and take back the roads of registered producers.
 * Threads   any, serialised by a short lock that no post takes.
 * Memory    a producer's road is made at the first registration of its number and lives until the
 *           runtime ends: jobs posted through it may outlive the registration, and their handles
 *           stay good. A later registration gets the same road with whatever is still in it.
 */
#include "runtime.h"

static ren_status make_producer(ren_runtime *rt, uint32_t index, ren_producer **out)
{
    ren_producer *producer = ren__host_calloc(&rt->allocator, 1, sizeof *producer);
    ren_status status;
    if (!producer) {
        return REN_ERR_NO_MEMORY;
    }
    producer->rt = rt;
    producer->road = index + 1;
    status = ren__road_init(rt, &producer->storage, producer->road, false);
    if (status != REN_OK) {
        ren__road_deinit(rt, &producer->storage);
        ren__host_free(&rt->allocator, producer, 1, sizeof *producer);
        return status;
    }
    *out = producer;
    return REN_OK;
}

static ren_status register_locked(ren_runtime *rt, ren_producer **out)
{
    for (uint32_t i = 0; i < REN_MAX_PRODUCERS; i++) {
        ren_producer *producer = rt->producers[i];
        if (producer && producer->registered) {
            continue;
        }
        if (!producer) {
            ren__spsc *rings[REN__CLASSES];
            ren_status status = make_producer(rt, i, &producer);
            if (status != REN_OK) {
                return status;
            }
            rt->producers[i] = producer;
            for (uint32_t c = 0; c < REN__CLASSES; c++) {
                rings[c] = &producer->storage.rings[c];
            }
            /* release: pairs with the acquire of ren__job_slot; the road is initialised. */
            atomic_store_explicit(&rt->roads[producer->road], &producer->storage,
                                  memory_order_release);
            ren__drain_attach(&rt->drain, i, rings);
        }
        producer->registered = true;
        *out = producer;
        return REN_OK;
    }
    return REN_ERR_QUEUE_FULL;
}

ren_status ren__producer_register(ren_runtime *rt, ren_producer **out)
{
    ren_status status = ren__runtime_retain(rt);
    *out = NULL;
    if (status != REN_OK) {
        return status;
    }
    (void)pthread_mutex_lock(&rt->register_lock);
    status = register_locked(rt, out);
    (void)pthread_mutex_unlock(&rt->register_lock);
    if (status != REN_OK) {
        ren__runtime_release(rt);
    }
    return status;
}

ren_status ren__producer_release(ren_producer *producer)
{
    ren_runtime *rt = producer->rt;
    bool was_registered;
    if (ren__runtime_is_forked(rt)) {
        return REN_ERR_FORKED;
    }
    (void)pthread_mutex_lock(&rt->register_lock);
    was_registered = producer->registered;
    producer->registered = false;
    (void)pthread_mutex_unlock(&rt->register_lock);
    if (!was_registered) {
        return REN_ERR_STALE;
    }
    ren__runtime_release(rt);
    return REN_OK;
}

ren_runtime *ren__producer_runtime(ren_producer *producer)
{
    return producer->rt;
}
