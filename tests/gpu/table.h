/* SPDX-License-Identifier: MIT */
/* tests/gpu/table.h - a device table under test, and running one operation on it.
 *
 * Purpose   The tests of this folder talk to the table of device.h below the runtime. The CUDA
 *           table comes from the module that REN_TEST_MODULE names (build/test/libren_cuda.so
 *           without it), the CPU table from libren itself.
 * Checks    Every run of an operation poisons outputs, workspace and the bytes behind each operand
 *           first, runs twice and once more as a captured graph, and asserts that all three gave
 *           the same bits and that nothing behind an operand or the workspace was written.
 * Light     With REN_TEST_LIGHT the programs run a part of their cases, and each operation once:
 *           for tools that make a kernel a hundred times slower and look closer themselves
 *           (sanitize.sh runs compute-sanitizer so). Together the programs launch every kernel that
 *           they launch without it, with odd sizes and moved addresses, and compare the values.
 *             1     nothing lies behind an operand, so that a tool sees an access past its end
 *             init  likewise, and outputs and workspace are left as allocated unless a library may
 *                   take part: a tool sees what a kernel reads before it is written
 *             bare  likewise, and so are the inputs: cases fail, and a tool that then finds nothing
 *                   does not look
 */
#ifndef REN_TEST_GPU_TABLE_H
#define REN_TEST_GPU_TABLE_H

#include "../../libren/device/device.h"

typedef struct test_table {
    const ren__device_api *api;
    ren__device *dev;
    ren__device_caps caps;
    uint32_t repeats;     /* opened as deterministic: one run is like another, bit for bit */
    unsigned char *arena; /* pinned, of light runs; NULL before the first */
    uint64_t arena_used;
} test_table;

const ren__host_services *test_host_services(void);
/* NULL with the reason in *why (static storage) when there is no module. */
const ren__device_api *test_cuda_api(const char **why);

/* 0 when the device cannot be opened; the reason is in err. */
int test_table_open(test_table *t, const ren__device_api *api, uint32_t lanes,
                    uint32_t deterministic, ren_error *err);
int test_table_open_as(test_table *t, const ren__device_api *api, const ren__device_config *config,
                       const ren__host_services *host, ren_error *err);
void test_table_close(test_table *t);

/* The CUDA table, opened once per program with five lanes; NULL where there is no GPU: the case has
 * then been skipped with the reason and returns at once. */
test_table *test_cuda(void);
/* The CPU table, likewise. */
test_table *test_cpu(void);
/* Says how many operations ran on CUDA tables, too. */
void test_tables_close(void);

/* 1 when REN_TEST_LIGHT asks for light runs. */
int test_light(void);
/* 1 when light runs leave a turn of a loop out: they take one in `of`, the first one included. */
int test_left_out(uint32_t turn, uint32_t of);

typedef enum test_role {
    TEST_ABSENT = 0,
    TEST_IN,
    TEST_OUT,
    TEST_INOUT,
    TEST_SAVED, /* made by a forward pass on the device: size from the operation's needs */
} test_role;

typedef struct test_operand {
    test_role role;
    int weights; /* 1 = convolution weights, OIHW here, in the device's layout there */
    int alias;   /* 1 + the operand whose memory this one shares; 0 = its own */
    const void *in;
    void *out;
} test_operand;

/* Run desc. misalign = bytes by which every operand is moved off its alignment. Returns the status
 * of op_create, so a table may decline. Asserts on everything else. */
ren_status test_run(test_table *t, const ren__op_desc *desc, const test_operand *operands,
                    uint32_t misalign);

ren__op_desc test_desc(ren__op_kind kind);
ren__tensor_desc test_tensor(ren_dtype dtype, uint32_t rank, int64_t a, int64_t b, int64_t c,
                             int64_t d);

/* |a - b| / |b| in the 2-norm, |a| when b is zero; infinity when a holds a NaN. */
double test_distance(const float *a, const double *b, uint64_t n);

#endif
