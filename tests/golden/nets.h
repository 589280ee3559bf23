/* SPDX-License-Identifier: MIT */
/* tests/golden/nets.h - the small networks that training tests use, and one training step.
 *
 * Purpose   The models of the golden training cases, built through ren.h alone, so that golden,
 *           conformance and stress tests train the same things. Failures of set-up are failed CUnit
 *           assertions.
 * Threads   one test thread per net.
 */
#ifndef REN_TEST_NETS_H
#define REN_TEST_NETS_H

#include "../../host_api/ren.h"
#include "reader.h"

typedef enum net_kind {
    NET_MLP = 0,     /* 20 - 32 - 32 - 10 */
    NET_LENET = 1,   /* two convolutions with pooling, two linear layers, on 16 x 16 x 1 */
    NET_TINYRES = 2, /* residual blocks with batch norm, on 8 x 8 x 4 */
    NET_BRANCH = 3   /* four branches joined, on 8 x 8 x 4 */
} net_kind;

typedef struct net {
    net_kind kind;
    ren_model *model;
    ren_tensor x, labels, logits, loss;
    uint32_t batch;
    size_t row; /* floats of one row of x */
} net;

/* What a step's completion said. */
typedef struct net_result {
    ren_status status;
    ren_step_result step;
    uint32_t calls;
    uint64_t version;
} net_result;

void net_build(net *n, ren_runtime *rt, net_kind kind, uint32_t batch, uint64_t seed);

/* Parameters "<prefix><name>" of a golden case into the model. */
void net_load(net *n, const golden_case *g, const char *prefix);

/* A trainer as the golden case describes it. */
ren_trainer *net_trainer(net *n, const golden_case *g);

/* Post a step; *result is filled by the completion, on a thread of libren's. */
ren_status net_post(net *n, ren_trainer *t, const float *x, const int32_t *labels, uint32_t rows,
                    net_result *result, ren_job *job);

/* Post a step, retrying while the queue is full, and wait for it. */
void net_step(net *n, ren_runtime *rt, ren_trainer *t, const float *x, const int32_t *labels,
              net_result *result);

/* Train a new net for some steps on one random batch, each waited for, and let it go again. Asserts
 * that all take place and the loss falls. */
void net_learn(ren_runtime *rt, net_kind kind, uint32_t steps);

/* A job's end, whatever happened to its slot meanwhile. */
void net_wait(ren_runtime *rt, ren_job job);

/* All parameters back to back, in index order; *out_count floats; free() it. */
float *net_params(net *n, size_t *out_count);

/* The same array back into the model. */
ren_status net_restore(net *n, const float *params, size_t count);

/* Bytes of parameter `index`. */
size_t net_param_bytes(net *n, uint32_t index);

#endif
