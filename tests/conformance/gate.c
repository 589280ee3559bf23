/* SPDX-License-Identifier: MIT */
/* tests/conformance/gate.c - see gate.h. */
#include "gate.h"

#include <CUnit/CUnit.h>
#include <sched.h>
#include <string.h>

static ren_status stand(void *user, const ren_device_io *io)
{
    gate *g = user;
    (void)io;
    /* release and acquire: pair with gate_close and gate_open. */
    __atomic_store_n(&g->entered, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&g->open, __ATOMIC_ACQUIRE)) {
        sched_yield();
    }
    return REN_OK;
}

void gate_close(gate *g, ren_runtime *rt, ren_stream stream)
{
    ren_job_desc desc = ren_job_desc_default();
    memset(g, 0, sizeof *g);
    desc.kind = REN_JOB_DEVICE;
    desc.stream = stream;
    desc.enqueue = stand;
    desc.enqueue_user = g;
    desc.deliver = REN_DELIVER_NONE;
    CU_ASSERT_EQUAL_FATAL(ren_post(rt, &desc, &g->job), REN_OK);
    while (!__atomic_load_n(&g->entered, __ATOMIC_ACQUIRE)) {
        sched_yield();
    }
}

void gate_open(gate *g)
{
    __atomic_store_n(&g->open, 1, __ATOMIC_RELEASE);
}
