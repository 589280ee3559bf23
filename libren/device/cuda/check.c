/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/check.c - is an operation's description one that the device can compute?
 *
 * Purpose   Shapes that do not fit together are refused with words when the operation is made, so
 *           that no kernel reads past a tensor.
 * Threads   any; nothing here has state.
 * Returns   REN_ERR_INVALID_ARGUMENT for a kind, an activation or a number out of its range,
 *           REN_ERR_UNSUPPORTED for a dtype, REN_ERR_SHAPE for anything about shapes.
 */
#include "internal.h"

#define MOST_PLACES 65536u /* of a maximum's window: they are saved in two bytes */

#define FAIL(status, ...) ren__cuda_error(err, (status), 0, __FILE__, __LINE__, __VA_ARGS__)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        ren_status tried = (call);                                                                 \
        if (tried != REN_OK) {                                                                     \
            return tried;                                                                          \
        }                                                                                          \
    } while (0)

static int64_t last_dim(const ren__tensor_desc *t)
{
    return t->rank ? t->dims[t->rank - 1u] : 0;
}

/* Rank and dims; -1 = any size of at least 1. */
static ren_status shape(const ren__op_desc *d, uint32_t operand, uint32_t rank, const int64_t *dims,
                        ren_error *err)
{
    const ren__tensor_desc *t = &d->operand[operand];
    if (t->rank != rank) {
        return FAIL(REN_ERR_SHAPE, "operand %u has rank %u, expected %u", operand, t->rank, rank);
    }
    for (uint32_t i = 0; i < rank; i++) {
        if (t->dims[i] < 1 || (dims[i] >= 0 && t->dims[i] != dims[i])) {
            return FAIL(REN_ERR_SHAPE, "operand %u has %lld in dimension %u, expected %lld",
                        operand, (long long)t->dims[i], i, (long long)dims[i]);
        }
    }
    return REN_OK;
}

static ren_status shape1(const ren__op_desc *d, uint32_t operand, int64_t a, ren_error *err)
{
    return shape(d, operand, 1, &a, err);
}

static ren_status shape2(const ren__op_desc *d, uint32_t operand, int64_t a, int64_t b,
                         ren_error *err)
{
    const int64_t dims[2] = {a, b};
    return shape(d, operand, 2, dims, err);
}

static ren_status same(const ren__op_desc *d, uint32_t operand, uint32_t as, ren_error *err)
{
    return shape(d, operand, d->operand[as].rank, d->operand[as].dims, err);
}

static ren_status elements(const ren__op_desc *d, uint32_t operand, uint64_t count, ren_error *err)
{
    uint64_t has = ren__tensor_elements(&d->operand[operand]);
    if (has != count || has == 0) {
        return FAIL(REN_ERR_SHAPE, "operand %u has %llu elements, expected %llu", operand,
                    (unsigned long long)has, (unsigned long long)count);
    }
    return REN_OK;
}

/* Operands first..last are of one dtype. */
static ren_status dtypes(const ren__op_desc *d, uint32_t first, uint32_t last, ren_dtype dtype,
                         ren_error *err)
{
    for (uint32_t i = first; i <= last; i++) {
        if (d->operand[i].rank && d->operand[i].dtype != dtype) {
            return FAIL(REN_ERR_UNSUPPORTED,
                        "operand %u has dtype %d, this operation is computed with dtype %d", i,
                        (int)d->operand[i].dtype, (int)dtype);
        }
    }
    return REN_OK;
}

/* The tensors among the operands, whose bits are in `mask`, are of one dtype of floats. */
static ren_status one_dtype(const ren__op_desc *d, uint32_t mask, ren_error *err)
{
    ren_dtype dtype = d->operand[0].dtype;
    if (dtype != REN_F32 && dtype != REN_F16 && dtype != REN_BF16) {
        return FAIL(REN_ERR_UNSUPPORTED, "tensors are f32, f16 or bf16, not of dtype %d",
                    (int)dtype);
    }
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (mask >> i & 1u) {
            TRY(dtypes(d, i, i, dtype, err));
        }
    }
    return REN_OK;
}

static ren_status check_linear(const ren__op_desc *d, ren_error *err)
{
    ren_dtype dtype = d->operand[0].dtype;
    int64_t rows = d->operand[0].dims[0];
    if (dtype != REN_F32 && dtype != REN_F16 && dtype != REN_BF16) {
        return FAIL(REN_ERR_UNSUPPORTED, "linear layers take f32, f16 or bf16");
    }
    TRY(dtypes(d, 0, d->kind == REN__OP_LINEAR_FWD ? 3u : 1u, dtype, err));
    if (d->kind == REN__OP_LINEAR_BWD_DATA ||
        (d->kind == REN__OP_LINEAR_BWD_WEIGHT && d->operand[2].dtype != REN_F32)) {
        TRY(dtypes(d, 2, 2, dtype, err)); /* a weight's gradient may be f32 */
    }
    TRY(shape2(d, 0, -1, -1, err));
    if (d->fused_activation &&
        (d->kind != REN__OP_LINEAR_FWD ||
         (d->activation != REN__ACT_RELU && d->activation != REN__ACT_GELU_TANH))) {
        return FAIL(REN_ERR_UNSUPPORTED, "a linear layer's forward pass takes RELU or GELU_TANH");
    }
    if (d->kind == REN__OP_LINEAR_FWD) {
        TRY(shape2(d, 1, -1, d->operand[0].dims[1], err));
        if (d->operand[2].rank) {
            TRY(shape1(d, 2, d->operand[1].dims[0], err));
        }
        return shape2(d, 3, rows, d->operand[1].dims[0], err);
    }
    if (d->kind == REN__OP_LINEAR_BWD_DATA) {
        TRY(shape2(d, 1, d->operand[0].dims[1], -1, err));
        return shape2(d, 2, rows, d->operand[1].dims[1], err);
    }
    TRY(shape2(d, 1, rows, -1, err));
    if (d->operand[3].rank) {
        TRY(dtypes(d, 3, 3, REN_F32, err));
        TRY(shape1(d, 3, d->operand[0].dims[1], err));
    }
    return shape2(d, 2, d->operand[0].dims[1], d->operand[1].dims[1], err);
}

/* The size that a window of `reach` gives over `in`; 0 when it does not fit. */
static int64_t windows(const ren__op_desc *d, int axis, int64_t in, int64_t reach)
{
    int64_t room = in + 2 * (int64_t)d->padding[axis] - reach;
    return room < 0 || d->stride[axis] < 1 ? 0 : room / (int64_t)d->stride[axis] + 1;
}

static ren_status check_conv(const ren__op_desc *d, ren_error *err)
{
    const int64_t any[4] = {-1, -1, -1, -1};
    uint32_t x = d->kind == REN__OP_CONV_FWD ? 0u : d->kind == REN__OP_CONV_BWD_DATA ? 2u : 1u;
    uint32_t w = d->kind == REN__OP_CONV_BWD_WEIGHT ? 2u : 1u;
    uint32_t y = d->kind == REN__OP_CONV_FWD ? 3u : 0u;
    ren_dtype dtype = d->operand[0].dtype;
    if (dtype != REN_F32 && dtype != REN_F16 && dtype != REN_BF16) {
        return FAIL(REN_ERR_UNSUPPORTED, "convolutions take f32, f16 or bf16");
    }
    TRY(dtypes(d, 0, 1, dtype, err));
    if (d->kind == REN__OP_CONV_FWD) { /* a bias may be f32 */
        TRY(dtypes(d, 2, 2, d->operand[2].dtype == REN_F32 ? REN_F32 : dtype, err));
        TRY(dtypes(d, 3, 3, dtype, err));
        if (d->fused_activation && d->activation != REN__ACT_RELU) {
            return FAIL(REN_ERR_INVALID_ARGUMENT, "activation %d cannot be fused to a convolution",
                        (int)d->activation);
        }
    } else if (d->kind == REN__OP_CONV_BWD_DATA || d->operand[2].dtype != REN_F32) {
        TRY(dtypes(d, 2, 2, dtype, err)); /* a weight's gradient may be f32 */
    }
    TRY(shape(d, x, 4, any, err));
    TRY(shape(d, y, 4, any, err));
    {
        const int64_t *in = d->operand[x].dims;
        const int64_t *out = d->operand[y].dims;
        int64_t groups = (int64_t)d->groups;
        int64_t reach[2];
        for (int i = 0; i < 2; i++) {
            if (d->kernel[i] < 1 || d->dilation[i] < 1) {
                return FAIL(REN_ERR_SHAPE, "kernel and dilation must be at least 1");
            }
            reach[i] = (int64_t)d->dilation[i] * ((int64_t)d->kernel[i] - 1) + 1;
        }
        if (groups < 1 || in[3] % groups || out[3] % groups) {
            return FAIL(REN_ERR_SHAPE, "%lld groups do not divide %lld and %lld channels",
                        (long long)groups, (long long)in[3], (long long)out[3]);
        }
        {
            const int64_t of_w[4] = {out[3], in[3] / groups, (int64_t)d->kernel[0],
                                     (int64_t)d->kernel[1]};
            const int64_t of_y[4] = {in[0], windows(d, 0, in[1], reach[0]),
                                     windows(d, 1, in[2], reach[1]), out[3]};
            TRY(shape(d, w, 4, of_w, err));
            TRY(shape(d, y, 4, of_y, err));
        }
        if (d->kind == REN__OP_CONV_FWD && d->operand[2].rank) {
            return shape1(d, 2, out[3], err);
        }
    }
    return REN_OK;
}

static ren_status check_pool(const ren__op_desc *d, ren_error *err)
{
    const int64_t any[4] = {-1, -1, -1, -1};
    uint32_t x = d->kind == REN__OP_MAX_POOL_BWD ? 4u : d->kind == REN__OP_AVG_POOL_BWD ? 1u : 0u;
    uint32_t y = x == 0u ? 1u : 0u;
    TRY(one_dtype(d, 1u << x | 1u << y, err));
    TRY(shape(d, x, 4, any, err));
    for (int i = 0; i < 2; i++) {
        if (d->kernel[i] < 1 || d->stride[i] < 1 || d->padding[i] > d->kernel[i] / 2u) {
            return FAIL(REN_ERR_SHAPE, "kernel and stride must be at least 1, padding at most half "
                                       "the kernel");
        }
    }
    if ((d->kind == REN__OP_MAX_POOL_FWD || d->kind == REN__OP_MAX_POOL_BWD) &&
        (uint64_t)d->kernel[0] * d->kernel[1] > MOST_PLACES) {
        return FAIL(REN_ERR_UNSUPPORTED, "a window of %u x %u has more than %u places",
                    d->kernel[0], d->kernel[1], MOST_PLACES);
    }
    {
        const int64_t *in = d->operand[x].dims;
        const int64_t of_y[4] = {in[0], windows(d, 0, in[1], (int64_t)d->kernel[0]),
                                 windows(d, 1, in[2], (int64_t)d->kernel[1]), in[3]};
        return shape(d, y, 4, of_y, err);
    }
}

static ren_status check_global(const ren__op_desc *d, ren_error *err)
{
    const int64_t any[4] = {-1, -1, -1, -1};
    uint32_t x = d->kind == REN__OP_GLOBAL_AVG_FWD ? 0u : 1u;
    TRY(one_dtype(d, 1u << 0 | 1u << 1, err));
    TRY(shape(d, x, 4, any, err));
    return shape2(d, 1u - x, d->operand[x].dims[0], d->operand[x].dims[3], err);
}

/* What of a fused activation or sum a description asks for: only a RELU, and in the backward pass
 * one of the two ways to tell where the output was positive. */
static ren_status check_norm_fused(const ren__op_desc *d, ren_error *err)
{
    uint32_t from_y = d->operand[8].rank != 0;
    uint32_t from_bias = d->operand[10].rank != 0;
    if (d->fused_activation && d->activation != REN__ACT_RELU) {
        return FAIL(REN_ERR_UNSUPPORTED, "batch norm takes no activation %d", (int)d->activation);
    }
    if (d->kind != REN__OP_BATCH_NORM_BWD) {
        return from_bias ? same(d, 10, 0, err) : REN_OK; /* operand 10 is `other` here */
    }
    if (d->fused_activation ? from_y == from_bias
                            : from_y || from_bias || d->operand[9].rank || d->operand[11].rank) {
        return FAIL(REN_ERR_SHAPE, "with a fused activation one of the operands 8 and 10 is there, "
                                   "without it neither, nor operands 9 and 11");
    }
    if (from_y) {
        TRY(same(d, 8, 0, err));
    }
    for (uint32_t i = 9; i <= 11; i += 2) {
        if (d->operand[i].rank) {
            TRY(same(d, i, 0, err));
        }
    }
    return from_bias ? shape1(d, 10, last_dim(&d->operand[0]), err) : REN_OK;
}

static ren_status check_norm(const ren__op_desc *d, ren_error *err)
{
    uint32_t backward = d->kind == REN__OP_BATCH_NORM_BWD;
    uint32_t last = d->kind == REN__OP_BATCH_NORM_TRAIN ? 9u : backward ? 7u : 5u;
    uint32_t tensors = backward ? 1u << 0 | 1u << 1 | 1u << 5 | 1u << 8 | 1u << 9 | 1u << 11
                                : 1u << 0 | 1u << 5 | 1u << 10;
    int64_t channels = last_dim(&d->operand[0]);
    if (d->operand[0].rank != 2 && d->operand[0].rank != 4) {
        return FAIL(REN_ERR_SHAPE, "operand 0 must have rank 2 or 4");
    }
    TRY(one_dtype(d, tensors, err));
    TRY(same(d, 0, 0, err));
    for (uint32_t i = 1; i <= last; i++) {
        if (tensors >> i & 1u) {
            TRY(same(d, i, 0, err));
        } else {
            TRY(dtypes(d, i, i, REN_F32, err));
            TRY(shape1(d, i, channels, err));
        }
    }
    if (backward) {
        TRY(dtypes(d, 10, 10, REN_F32, err));
    }
    return check_norm_fused(d, err);
}

static ren_status check_fold(const ren__op_desc *d, ren_error *err)
{
    const int64_t any[4] = {-1, -1, -1, -1};
    TRY(dtypes(d, 0, 7, REN_F32, err));
    TRY(shape(d, 0, 4, any, err));
    for (uint32_t i = 1; i < 8; i++) {
        if (i != 6 && (i != 5 || d->operand[5].rank)) {
            TRY(shape1(d, i, d->operand[0].dims[0], err));
        }
    }
    return same(d, 6, 0, err);
}

static ren_status check_joined(const ren__op_desc *d, ren_error *err)
{
    uint32_t first = d->kind == REN__OP_SPLIT ? 1u : 0u;
    uint32_t whole = d->kind == REN__OP_SPLIT ? 0u : REN__OPERANDS - 1u;
    const ren__tensor_desc *joined = &d->operand[whole];
    int64_t sum = 0;
    int64_t dims[REN_MAX_RANK];
    if (d->count < 1 || d->count > REN__OPERANDS - 1u) {
        return FAIL(REN_ERR_UNSUPPORTED, "%u parts; one to %u can be joined", d->count,
                    REN__OPERANDS - 1u);
    }
    TRY(same(d, whole, whole, err));
    if (joined->rank < 1) {
        return FAIL(REN_ERR_SHAPE, "operand %u must have a rank", whole);
    }
    TRY(one_dtype(d, ((1u << d->count) - 1u) << first | 1u << whole, err));
    for (uint32_t i = 0; i < REN_MAX_RANK; i++) {
        dims[i] = i + 1u < joined->rank ? joined->dims[i] : -1;
    }
    for (uint32_t part = first; part < first + d->count; part++) {
        TRY(shape(d, part, joined->rank, dims, err));
        sum += last_dim(&d->operand[part]);
    }
    if (sum != last_dim(joined)) {
        return FAIL(REN_ERR_SHAPE, "the parts' last dimensions sum to %lld, not %lld",
                    (long long)sum, (long long)last_dim(joined));
    }
    return REN_OK;
}

/* An operand that may be of any dtype of floats. */
static ren_status is_float(const ren__op_desc *d, uint32_t operand, ren_error *err)
{
    ren_dtype dtype = d->operand[operand].dtype;
    if (dtype != REN_F32 && dtype != REN_F16 && dtype != REN_BF16) {
        return FAIL(REN_ERR_UNSUPPORTED, "operand %u has dtype %d; f32, f16 or bf16 is taken",
                    operand, (int)dtype);
    }
    return REN_OK;
}

static ren_status check_xent(const ren__op_desc *d, ren_error *err)
{
    if (!(d->alpha >= 0.0f && d->alpha < 1.0f)) {
        return FAIL(REN_ERR_INVALID_ARGUMENT, "label smoothing must be at least 0 and below 1");
    }
    /* Of logits and their gradient; probabilities are f32. */
    TRY(is_float(d, d->kind == REN__OP_XENT_FWD ? 0u : 3u, err));
    TRY(dtypes(d, d->kind == REN__OP_XENT_FWD ? 3u : 0u, d->kind == REN__OP_XENT_FWD ? 3u : 0u,
               REN_F32, err));
    TRY(dtypes(d, 1, 1, REN_I32, err));
    TRY(shape2(d, 0, -1, -1, err));
    TRY(shape1(d, 1, d->operand[0].dims[0], err));
    if (d->kind == REN__OP_XENT_FWD) {
        TRY(elements(d, 2, 1, err));
    }
    return same(d, 3, 0, err);
}

/* Operations whose operands are all tensors of one element count and one dtype of floats. */
static ren_status check_pointwise(const ren__op_desc *d, uint32_t mask, ren_error *err)
{
    uint64_t count = ren__tensor_elements(&d->operand[0]);
    TRY(one_dtype(d, mask, err));
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (mask >> i & 1u) {
            TRY(elements(d, i, count, err));
        }
    }
    return REN_OK;
}

/* The same in f32 alone. */
static ren_status check_flat(const ren__op_desc *d, uint32_t mask, ren_error *err)
{
    uint64_t count = ren__tensor_elements(&d->operand[0]);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (mask >> i & 1u) {
            TRY(dtypes(d, i, i, REN_F32, err));
            TRY(elements(d, i, count, err));
        }
    }
    return REN_OK;
}

static ren_status check_distance(const ren__op_desc *d, ren_error *err)
{
    int huber = d->kind == REN__OP_HUBER_FWD || d->kind == REN__OP_HUBER_BWD;
    if (huber && !(d->alpha > 0.0f)) {
        return FAIL(REN_ERR_INVALID_ARGUMENT, "huber's delta must be above 0");
    }
    TRY(is_float(d, 0, err));
    TRY(is_float(d, 1, err));
    TRY(elements(d, 1, ren__tensor_elements(&d->operand[0]), err));
    if (d->kind == REN__OP_MSE_BWD || d->kind == REN__OP_HUBER_BWD) {
        TRY(dtypes(d, 3, 3, d->operand[0].dtype, err));
        return elements(d, 3, ren__tensor_elements(&d->operand[0]), err);
    }
    TRY(dtypes(d, 2, 2, REN_F32, err));
    return elements(d, 2, 1, err);
}

static ren_status check_activation(const ren__op_desc *d, ren_error *err)
{
    int from_y = d->activation == REN__ACT_RELU || d->activation == REN__ACT_TANH ||
                 d->activation == REN__ACT_SIGMOID;
    if ((int)d->activation < 0 || d->activation > REN__ACT_GELU_TANH) {
        return FAIL(REN_ERR_INVALID_ARGUMENT, "activation %d is none", (int)d->activation);
    }
    if (d->kind == REN__OP_ACT_FWD) {
        return check_pointwise(d, 1u << 0 | 1u << 1, err);
    }
    if (d->operand[4].rank) {
        TRY(dtypes(d, 4, 4, REN_F32, err));
        TRY(shape1(d, 4, last_dim(&d->operand[3]), err));
    }
    return check_pointwise(d, 1u << 0 | 1u << (from_y ? 2 : 1) | 1u << 3, err);
}

static ren_status check_cast(const ren__op_desc *d, ren_error *err)
{
    ren_dtype from = d->operand[0].dtype;
    ren_dtype to = d->operand[1].dtype;
    if ((int)from < 0 || from > REN_U8 || (to != REN_F32 && to != REN_F16 && to != REN_BF16)) {
        return FAIL(REN_ERR_UNSUPPORTED, "no cast from dtype %d to dtype %d", (int)from, (int)to);
    }
    return elements(d, 1, ren__tensor_elements(&d->operand[0]), err);
}

ren_status ren__cuda_check_desc(const ren__op_desc *d, ren_error *err)
{
    switch (d->kind) {
    case REN__OP_LINEAR_FWD:
    case REN__OP_LINEAR_BWD_DATA:
    case REN__OP_LINEAR_BWD_WEIGHT:
        return check_linear(d, err);
    case REN__OP_BIAS_GRAD:
        TRY(one_dtype(d, 1u << 0, err));
        TRY(dtypes(d, 1, 1, REN_F32, err));
        TRY(same(d, 0, 0, err));
        return shape1(d, 1, last_dim(&d->operand[0]), err);
    case REN__OP_CONV_FWD:
    case REN__OP_CONV_BWD_DATA:
    case REN__OP_CONV_BWD_WEIGHT:
        return check_conv(d, err);
    case REN__OP_MAX_POOL_FWD:
    case REN__OP_MAX_POOL_BWD:
    case REN__OP_AVG_POOL_FWD:
    case REN__OP_AVG_POOL_BWD:
        return check_pool(d, err);
    case REN__OP_GLOBAL_AVG_FWD:
    case REN__OP_GLOBAL_AVG_BWD:
        return check_global(d, err);
    case REN__OP_BATCH_NORM_TRAIN:
    case REN__OP_BATCH_NORM_BWD:
    case REN__OP_BATCH_NORM_EVAL:
        return check_norm(d, err);
    case REN__OP_BATCH_NORM_FOLD:
        return check_fold(d, err);
    case REN__OP_ACT_FWD:
    case REN__OP_ACT_BWD:
        return check_activation(d, err);
    case REN__OP_DROPOUT_FWD:
    case REN__OP_DROPOUT_BWD:
        if (!(d->alpha >= 0.0f && d->alpha < 1.0f)) {
            return FAIL(REN_ERR_INVALID_ARGUMENT, "the probability must be at least 0 and below 1");
        }
        return check_pointwise(d, 1u << 0 | 1u << 2, err);
    case REN__OP_ADD:
        return check_pointwise(d, 1u << 0 | 1u << 1 | 1u << 2, err);
    case REN__OP_CONCAT:
    case REN__OP_SPLIT:
        return check_joined(d, err);
    case REN__OP_XENT_FWD:
    case REN__OP_XENT_BWD:
        return check_xent(d, err);
    case REN__OP_MSE_FWD:
    case REN__OP_MSE_BWD:
    case REN__OP_HUBER_FWD:
    case REN__OP_HUBER_BWD:
        return check_distance(d, err);
    case REN__OP_CHECK:
        return check_flat(d, 1u << 0, err);
    case REN__OP_ADVANCE:
        return REN_OK;
    case REN__OP_SGD:
        return check_flat(d, 1u << 0 | 1u << 3 | (d->operand[4].rank ? 1u << 4 : 0u), err);
    case REN__OP_LARS:
        return check_flat(d, 1u << 0 | 1u << 3 | 1u << 4, err);
    case REN__OP_ADAM:
    case REN__OP_ADAMW:
        return check_flat(d, 1u << 0 | 1u << 3 | 1u << 4 | 1u << 5, err);
    case REN__OP_EMA:
        return check_flat(d, 1u << 0 | 1u << 3, err);
    case REN__OP_COMMIT:
        return check_flat(d, 1u << 0 | 1u << 2, err);
    case REN__OP_CAST:
        return check_cast(d, err);
    case REN__OP_NONE:
    case REN__OP_KINDS:
    default:
        return FAIL(REN_ERR_INVALID_ARGUMENT, "operation kind %d is none", (int)d->kind);
    }
}
