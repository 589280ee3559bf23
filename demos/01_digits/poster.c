/* SPDX-License-Identifier: MIT */
/* demos/01_digits/poster.c - the thread that posts training steps.
 *
 * Purpose   See poster.h.
 * How       Each input has two staging slots, A and B: while the device copies from one, the next
 *           batch is written into the other. Both calls that can be early say so (REN_ERR_BUSY,
 *           REN_ERR_QUEUE_FULL) and keep nothing; the thread sleeps a little and asks again.
 */
#include "poster.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "network.h"

enum {
    RETRY_NS = 100 * 1000
};

typedef struct order {
    uint32_t *rows; /* a permutation of the set */
    uint32_t count;
    uint32_t next;
    uint64_t random;
} order;

/* splitmix64 */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The next digit; every digit once before any comes again, each time in a new order. */
static uint32_t order_next(order *o)
{
    if (o->next == o->count) {
        for (uint32_t i = o->count - 1; i > 0; i--) {
            uint32_t j = (uint32_t)(random_next(&o->random) % (i + 1));
            uint32_t row = o->rows[i];
            o->rows[i] = o->rows[j];
            o->rows[j] = row;
        }
        o->next = 0;
    }
    return o->rows[o->next++];
}

static void pause_briefly(poster *p)
{
    struct timespec pause = {0, RETRY_NS};
    atomic_fetch_add(&p->retries, 1);
    (void)nanosleep(&pause, NULL);
}

/* A slot of an input, once one is free. */
static ren_status acquire(poster *p, const char *input, void **out)
{
    size_t bytes;
    ren_status status;
    while ((status = ren_input_acquire(p->trainer, input, out, &bytes)) == REN_ERR_BUSY &&
           !atomic_load(&p->stop)) {
        pause_briefly(p);
    }
    return status;
}

static ren_status post_step(poster *p, order *o)
{
    /* data = NULL takes the slot that was lent. */
    static const ren_binding bindings[] = {{"image", NULL, 0}, {"label", NULL, 0}};
    void *images, *labels;
    ren_status status = acquire(p, "image", &images);
    if (status == REN_OK) {
        status = acquire(p, "label", &labels);
    }
    if (status != REN_OK) {
        return status;
    }
    for (uint32_t i = 0; i < NETWORK_BATCH; i++) {
        uint32_t row = order_next(o);
        memcpy((float *)images + (size_t)i * DIGIT_PIXELS, p->set->images[row],
               sizeof p->set->images[row]);
        ((int32_t *)labels)[i] = p->set->labels[row];
    }
    ren_step_desc desc = ren_step_desc_default();
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.done = p->done;
    desc.user = p->user;
    while ((status = ren_trainer_step(p->trainer, &desc, NULL)) == REN_ERR_QUEUE_FULL &&
           !atomic_load(&p->stop)) {
        pause_briefly(p);
    }
    return status;
}

static void *run(void *arg)
{
    poster *p = arg;
    order o = {.count = p->set->count, .next = p->set->count, .random = p->seed};
    ren_status status = REN_OK;
    o.rows = malloc(o.count * sizeof *o.rows);
    for (uint32_t i = 0; o.rows && i < o.count; i++) {
        o.rows[i] = i;
    }
    for (uint32_t i = 0; o.rows && i < p->steps && !atomic_load(&p->stop); i++) {
        status = post_step(p, &o);
        if (status != REN_OK) {
            break;
        }
        atomic_fetch_add(&p->posted, 1);
    }
    atomic_store(&p->status, o.rows ? status : REN_ERR_NO_MEMORY);
    atomic_store(&p->finished, true);
    free(o.rows);
    return NULL;
}

int poster_start(poster *p)
{
    atomic_store(&p->posted, 0);
    atomic_store(&p->retries, 0);
    atomic_store(&p->stop, false);
    atomic_store(&p->finished, false);
    atomic_store(&p->status, REN_OK);
    return pthread_create(&p->thread, NULL, run, p);
}

void poster_join(poster *p)
{
    (void)pthread_join(p->thread, NULL);
}
