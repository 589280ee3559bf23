/* SPDX-License-Identifier: MIT */
/* tests/conformance/world.h - a runtime, a small model and its trainer, for tests of training.
 *
 * Purpose   Open and close all three, with the checks that every such test ends with: what was
 *           posted was completed, and no pool memory is left.
 * Threads   the test's.
 */
#ifndef REN_TEST_WORLD_H
#define REN_TEST_WORLD_H

#include "../golden/nets.h"

#define BATCH  8u
#define ROW    20u
#define SECOND UINT64_C(1000000000)

typedef struct world {
    ren_runtime *rt;
    net n; /* NET_MLP, BATCH rows of ROW */
    ren_trainer *t;
} world;

ren_trainer_config sgd(float learning_rate);

/* config NULL = the default. staged 1: as on a device that copies from pinned memory alone. */
void open_world(world *w, const ren_runtime_config *config, const ren_trainer_config *how,
                uint32_t staged);
void close_world(world *w);

/* Batch number `stamp`: BATCH rows, the same for the same number. */
void fill_batch(uint64_t stamp, float *x, int32_t *labels);

/* One step with that batch; its loss. */
float loss_of(world *w, uint64_t stamp);

/* Until a counter that callbacks raise has reached `wanted`. */
void await_calls(const uint32_t *calls, uint32_t wanted);

#endif
