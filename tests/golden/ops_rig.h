/* SPDX-License-Identifier: MIT */
/* tests/golden/ops_rig.h - run one operation on a device with host data in and out.
 *
 * Purpose   Tests of operations write the operands and read the results; this does the rest.
 *           Memory that is not given a value is filled with NaN first, workspace and outputs
 *           included, so an operation that reads or leaves what it should not is seen.
 */
#ifndef REN_TEST_OPS_RIG_H
#define REN_TEST_OPS_RIG_H

#include "../conformance/rig.h"

/* One operand: values to put in (NULL: NaN) and where to put the results (NULL: dropped). */
typedef struct op_io {
    const void *in;
    void *out;
    uint64_t bytes; /* 0: by the operand's shape */
} op_io;

/* The tolerance of the relative 2-norm for this device. */
double ops_tolerance(const rig *r);

/* Make the operation, launch it once, wait, free all. REN_OK, or what op_create returned. Operands
 * that are neither described nor have bytes are NULL. saved: REN__OP_MAX_POOL_FWD allocates the
 * operand and leaves its contents in *saved (malloc), REN__OP_MAX_POOL_BWD takes it from there. */
ren_status ops_run(rig *r, const ren__op_desc *desc, const op_io io[REN__OPERANDS], void **saved);

ren__op_desc ops_desc(ren__op_kind kind);
void ops_shape(ren__op_desc *desc, uint32_t operand, uint32_t rank, const int64_t *dims);
/* A control block with neutral values: divisor 1, no clipping. */
ren__control ops_control(void);

#endif
