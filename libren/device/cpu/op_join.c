/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/op_join.c - concat and split along the last axis.
 *
 * Purpose   Rows of the parts lie side by side in rows of the whole; both directions are copies of
 *           row pieces.
 * Layout    concat: operands 0..n-1 are the parts, 11 is the whole.  split: operand 0 is the whole,
 *           1..n are the parts.
 */
#include "op.h"

#include <string.h>

#define WHOLE_OF_CONCAT 11u
#define MOST_PARTS      11u

static void join(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const ren__op_desc *d = &op->desc;
    const bool concat = d->kind == REN__OP_CONCAT;
    const uint32_t whole_at = concat ? WHOLE_OF_CONCAT : 0u;
    const uint32_t first = concat ? 0u : 1u;
    const ren__tensor_desc *whole = &d->operand[whole_at];
    const size_t width = (size_t)whole->dims[whole->rank - 1u];
    const size_t rows = (size_t)ren__tensor_elements(whole) / width;
    size_t at = 0;
    (void)workspace;
    for (uint32_t part = first; part < first + d->count; part++) {
        const ren__tensor_desc *t = &d->operand[part];
        const size_t piece = (size_t)t->dims[t->rank - 1u];
        float *side = operands[part];
        float *all = operands[whole_at];
        for (size_t r = 0; r < rows; r++) {
            float *inner = all + r * width + at;
            float *outer = side + r * piece;
            memcpy(concat ? inner : outer, concat ? outer : inner, piece * sizeof(float));
        }
        at += piece;
    }
}

ren_status ren__cpu_build_join(ren__cpu_build *b)
{
    const ren__op_desc *d = b->desc;
    const bool concat = d->kind == REN__OP_CONCAT;
    const ren__tensor_desc *whole = &d->operand[concat ? WHOLE_OF_CONCAT : 0u];
    const uint32_t first = concat ? 0u : 1u;
    if (d->count < 1 || d->count > MOST_PARTS || whole->rank < 1) {
        return REN__CPU_FAIL(b->err, REN_ERR_UNSUPPORTED, "%u parts; one to %u can be joined",
                             (unsigned)d->count, MOST_PARTS);
    }
    REN__TRY(ren__cpu_expect(b, concat ? WHOLE_OF_CONCAT : 0u, REN_F32, whole->rank, whole->dims));
    int64_t dims[REN_MAX_RANK];
    memcpy(dims, whole->dims, sizeof dims);
    dims[whole->rank - 1u] = -1;
    int64_t sum = 0;
    for (uint32_t part = first; part < first + d->count; part++) {
        REN__TRY(ren__cpu_expect(b, part, REN_F32, whole->rank, dims));
        sum += d->operand[part].dims[whole->rank - 1u];
    }
    if (sum != whole->dims[whole->rank - 1u]) {
        return REN__CPU_FAIL(b->err, REN_ERR_SHAPE,
                             "the parts' last dimensions sum to %lld, not %lld", (long long)sum,
                             (long long)whole->dims[whole->rank - 1u]);
    }
    b->op->after = join;
    return REN_OK;
}
