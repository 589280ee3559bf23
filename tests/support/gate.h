/* SPDX-License-Identifier: MIT */
/* tests/support/gate.h - a lane that stands still until a test lets it go, on every device.
 *
 * Purpose   What stands on a lane: a gate, or a function that runs when the lane comes to it. Both
 *           are given to the table's `call`, or to the native stream of a DEVICE job.
 * How       Where host functions run on lanes (the CPU device) a gate is one that sleeps. On a CUDA
 *           stream it is three words of pinned memory: the stream writes the first, waits for the
 *           second and then writes the third. It is no host function there, because the driver runs
 *           those of a context one after another: one that sleeps would hold up all others, and so
 *           hide that a lane went ahead which a function was to tell.
 * Threads   any; what is put on a lane is put there by the submitter.
 * Memory    the words belong to whoever puts the gate, and stay until the lane has passed it.
 */
#ifndef REN_TEST_SUPPORT_GATE_H
#define REN_TEST_SUPPORT_GATE_H

#include <pthread.h>
#include <stdint.h>

#include "../../libren/device/device.h"

/* Pinned memory that a CUDA stream reads and writes; zero at first. */
typedef struct gate_words {
    uint32_t entered;
    uint32_t open;
    uint32_t left;
    uint32_t reserved;
} gate_words;

typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int open;
    int entered;
    int left;
    gate_words *words; /* NULL where host functions run on lanes */
} gate;

#define GATE                                                                                       \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, NULL                         \
    }

/* A closed gate for lanes of a device, with words where it needs any; while nothing is held, since
 * some drivers wait for the device then. free: when the lane has passed. */
void gate_make(gate *g, const ren__device_api *api, ren__device *dev);
void gate_free(gate *g, const ren__device_api *api, ren__device *dev);

/* A ren__call_fn whose user is a gate. */
ren_status gate_pass(void *user, void *native_stream);

void gate_wait_entered(gate *g);
void gate_wait_left(gate *g);
void gate_open(gate *g);
int gate_left(gate *g);

/* A function that runs when its lane comes to it; it must not sleep for another one. */
typedef struct on_lane {
    void (*fn)(void *user);
    void *user;
} on_lane;

/* A ren__call_fn whose user is an on_lane that outlives the command. */
ren_status on_lane_pass(void *user, void *native_stream);

#endif
