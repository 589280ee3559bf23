/* SPDX-License-Identifier: MIT */
/* tests/gpu/lost.h - a real, sticky fault of the GPU, and what a process can do after it.
 *
 * Purpose   A fault makes a context of CUDA unusable, and the primary one with it for the rest of
 *           the process; so each test program makes one, and they share what they check.
 * Threads   one test thread.
 */
#ifndef REN_TEST_GPU_LOST_H
#define REN_TEST_GPU_LOST_H

#include "../../host_api/ren.h"

/* The CUDA device, from REN_TEST_MODULE or the module of the test build. */
ren_runtime_config lost_config(void);

/* Break the device of `rt` under 64 jobs that wait, assert that each ends as it must, and shut the
 * runtime down. */
void lost_break(ren_runtime *rt);

/* Buffers and a training run: right values, or failed assertions. */
void lost_work(ren_runtime *rt);

/* A new runtime of this configuration after a fault: it works, or it is refused with a status that
 * says so, a text, and nothing left behind; REN_DEVICE_AUTO works either way. Prints which of the
 * two it was; returns the status. */
ren_status lost_again(const ren_runtime_config *config, const char *what);

#endif
