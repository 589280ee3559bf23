/* SPDX-License-Identifier: MIT */
/* tests/gpu/values.c - random inputs and comparisons; see values.h. */
#include "values.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>

#include "../support/test.h"

static struct block {
    struct block *next;
} * blocks;

static unsigned long long seed = 20240229;

void *values_take(uint64_t bytes)
{
    struct block *b = calloc(1, sizeof *b + 64u + bytes);
    if (!b) {
        (void)fprintf(stderr, "out of memory\n");
        exit(1);
    }
    b->next = blocks;
    blocks = b;
    return (unsigned char *)b + 64u;
}

void values_free(void)
{
    while (blocks) {
        struct block *next = blocks->next;
        free(blocks);
        blocks = next;
    }
}

float *values_random(uint64_t n)
{
    float *out = values_take(n * sizeof *out);
    for (uint64_t i = 0; i < n; i++) {
        double sum = -6.0;
        for (int k = 0; k < 12; k++) {
            sum += (double)(ren_test_random(&seed) >> 11) * (1.0 / 9007199254740992.0);
        }
        out[i] = (float)sum;
    }
    return out;
}

float *values_filled(uint64_t n, float value)
{
    float *out = values_take(n * sizeof *out);
    for (uint64_t i = 0; i < n; i++) {
        out[i] = value;
    }
    return out;
}

int64_t values_between(int64_t least, int64_t most)
{
    return least + (int64_t)(ren_test_random(&seed) % (unsigned long long)(most - least + 1));
}

static void point_outputs(const ren__op_desc *desc, test_operand *operands, const expected *outputs,
                          float **memory)
{
    for (uint32_t k = 0; outputs[k].values; k++) {
        uint32_t i = outputs[k].operand;
        memory[k] = values_take(ren__tensor_bytes(&desc->operand[i]));
        operands[i].out = memory[k];
        if (operands[i].role == TEST_ABSENT) {
            operands[i].role = TEST_OUT;
        }
    }
}

void values_check(const char *what, const ren__op_desc *desc, test_operand *operands,
                  const expected *outputs, uint32_t misalign, double tolerance)
{
    test_table *cuda = test_cuda();
    test_table *cpu = test_cpu();
    float *on_cuda[REN__OPERANDS] = {0};
    float *on_cpu[REN__OPERANDS] = {0};
    int both = 0;
    if (!cuda) {
        return;
    }
    point_outputs(desc, operands, outputs, on_cuda);
    CU_ASSERT_EQUAL(test_run(cuda, desc, operands, misalign), REN_OK);
    if (cpu) {
        point_outputs(desc, operands, outputs, on_cpu);
        both = test_run(cpu, desc, operands, 0) == REN_OK;
    }
    for (uint32_t k = 0; outputs[k].values; k++) {
        uint64_t n = ren__tensor_elements(&desc->operand[outputs[k].operand]);
        double of_cuda = test_distance(on_cuda[k], outputs[k].values, n);
        CU_ASSERT_TRUE(of_cuda <= tolerance);
        if (!(of_cuda <= tolerance)) {
            (void)fprintf(stderr, "%s: output %u is off by %.3g on the CUDA device\n", what,
                          outputs[k].operand, of_cuda);
        }
        if (both) {
            double *copy = values_take(n * sizeof *copy);
            double apart;
            for (uint64_t i = 0; i < n; i++) {
                copy[i] = (double)on_cpu[k][i];
            }
            apart = test_distance(on_cuda[k], copy, n);
            CU_ASSERT_TRUE(apart <= tolerance);
            if (!(apart <= tolerance)) {
                (void)fprintf(stderr, "%s: output %u differs by %.3g between CUDA and CPU\n", what,
                              outputs[k].operand, apart);
            }
        }
    }
}
