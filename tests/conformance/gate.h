/* SPDX-License-Identifier: MIT */
/* tests/conformance/gate.h - hold a stream until the test says go.
 *
 * Purpose   Prove orders without sleeping: a DEVICE job occupies the stream's own thread, so
 *           whatever is posted to that stream afterwards waits behind it.
 * Where     the CPU device, whose enqueue functions run on the stream's thread.
 */
#ifndef REN_TEST_GATE_H
#define REN_TEST_GATE_H

#include "../../host_api/ren.h"

typedef struct gate {
    int open;
    int entered;
    ren_job job;
} gate;

/* Returns when the stream's thread stands in the gate. */
void gate_close(gate *g, ren_runtime *rt, ren_stream stream);
void gate_open(gate *g);

#endif
