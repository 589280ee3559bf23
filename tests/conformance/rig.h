/* SPDX-License-Identifier: MIT */
/* tests/conformance/rig.h - a device without a runtime around it, for tests of the device table.
 *
 * Purpose   Open any ren__device_api with counted host services, and keep the calls that tests make
 *           again and again short. Failures of set-up end the program with a message.
 * Threads   the rig's calls are the submitter's; rig_sync may be called by any thread.
 */
#ifndef REN_TEST_RIG_H
#define REN_TEST_RIG_H

#include "../../libren/device/device.h"
#include "../support/gate.h"

#define RIG_GATES 64u

typedef struct rig {
    const ren__device_api *api;
    ren__device *dev;
    ren__device_caps caps;
    ren__host_services host;
    ren__device_config config;
    ren__event *done;  /* for rig_finish */
    gate_words *words; /* of the gates, where they need any; made by the first one */
    uint32_t gates;    /* put so far */
} rig;

/* The table under test: the CPU device's, or with REN_TEST_DEVICE=cuda that of REN_TEST_MODULE (the
 * module's path). Ends the program with 77 when there is none or it has no device. */
const ren__device_api *rig_table(void);

/* lanes 0 = REN__LANES, seed 0 = free running. */
void rig_open(rig *r, const ren__device_api *api, uint32_t lanes, uint64_t seed);
/* As rig_open with a whole configuration. Returns the open's status instead of ending. */
ren_status rig_try_open(rig *r, const ren__device_api *api, const ren__device_config *config,
                        ren_error *err);
void rig_close(rig *r);

/* Host blocks alive and threads started and not joined, over all rigs. */
long rig_blocks(void);
long rig_threads(void);
/* Make the nth host allocation or thread start from now on fail, once; 0 = none. */
void rig_fail_alloc(long nth);
void rig_fail_thread(long nth);

/* Device memory; rig_upload copies through lane 0 and waits, rig_download too. */
void *rig_alloc(rig *r, uint64_t bytes);
void rig_upload(rig *r, void *dst, const void *src, uint64_t bytes);
void rig_download(rig *r, void *dst, const void *src, uint64_t bytes);

/* Wait until a lane has run everything that is on it. */
void rig_finish(rig *r, uint32_t lane);

/* Abort with a message unless `status` is REN_OK. */
#define RIG_OK(status) rig_check((status), __FILE__, __LINE__, #status)
void rig_check(ren_status status, const char *file, int line, const char *what);

/* Put a gate on a lane; g stays until the lane has passed it. At most RIG_GATES gates of a rig are
 * on lanes at a time. */
void rig_put_gate(rig *r, uint32_t lane, gate *g);

/* Put a function on a lane; `what` stays until the lane has come to it. May be captured. */
void rig_put(rig *r, uint32_t lane, on_lane *what);

#endif
