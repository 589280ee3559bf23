/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/tune.h - timing what a library offers, while an operation is made.
 *
 * Purpose   A library's heuristic ranks its algorithms without running them. With `autotune`,
 *           op_create runs the first few on a private stream and keeps the fastest. What was found
 *           is kept by signature, so the same operation on another lane or in another plan neither
 *           pays again nor gets another algorithm.
 * Usage     recall by description; if that misses: begin, time each candidate, end, remember.
 * Not here  deterministic devices: they are never tuned (dev->autotune is 0), since a time is not a
 *           function of the signature.
 * Threads   op_create's: everything here happens under the device's op_lock, inside
 *           ren__cuda_enter.
 * Memory    scratch is counted against the device's memory limit while it is held.
 */
#ifndef REN_DEVICE_CUDA_TUNE_H
#define REN_DEVICE_CUDA_TUNE_H

#include "internal.h"

#define REN__TUNE_CHOICE 96u /* bytes of what is remembered for a signature, at most */

typedef struct ren__cuda_tuning {
    ren__device *dev;
    cudaStream_t stream; /* where candidates run */
    void *scratch;       /* 256-byte aligned; small finite numbers in each dtype */
    uint64_t bytes;
    cudaEvent_t from, to;
    float best_us; /* the least time so far; 0 = none */
} ren__cuda_tuning;

/* Enqueue the candidate once on `stream`. What it enqueues may be captured. */
typedef ren_status (*ren__cuda_tune_fn)(void *user, cudaStream_t stream);

/* Get ready, with `bytes` of scratch for operands and workspace. An error means that nothing can be
 * tuned now (no memory, a lost device): the caller keeps the library's first choice. */
ren_status ren__cuda_tune_begin(ren__device *dev, uint64_t bytes, ren__cuda_tuning *out);
/* The median time of one run on the device. An error is the candidate's own; others may still run
 * unless it is REN_ERR_DEVICE_LOST. */
ren_status ren__cuda_tune_time(ren__cuda_tuning *tuning, ren__cuda_tune_fn fn, void *user,
                               float *out_us);
/* Takes a begun tuning, or one whose begin failed. */
void ren__cuda_tune_end(ren__cuda_tuning *tuning);

/* What was remembered for an operation that differs from `desc` in nothing but `layer`: 1 and the
 * choice, else 0. */
int ren__cuda_tune_recall(ren__device *dev, const ren__op_desc *desc, void *choice, size_t bytes);
/* No memory for it is no error: the next one is timed anew. */
void ren__cuda_tune_remember(ren__device *dev, const ren__op_desc *desc, const void *choice,
                             size_t bytes);
/* At close. */
void ren__cuda_tune_forget(ren__device *dev);

#endif
