/* SPDX-License-Identifier: MIT */
/* libren/device/cpu/op_pointwise.c - element by element: activations, sum, dropout, casts.
 *
 * Purpose   Activations and the sum are oneDNN's; dropout and casts are plain loops.
 * Order     each element depends on its own inputs only, so in-place use is fine where the contract
 *           allows it.
 */
#include "op.h"

#include <string.h>

/* ------------------------------------------------------------------ activations */

/* What oneDNN calls an activation. The backward passes of relu, tanh and sigmoid use the output. */
static dnnl_alg_kind_t algorithm(ren__activation activation, bool from_output)
{
    switch (activation) {
    case REN__ACT_RELU:
        return from_output ? dnnl_eltwise_relu_use_dst_for_bwd : dnnl_eltwise_relu;
    case REN__ACT_LEAKY_RELU:
        return dnnl_eltwise_relu;
    case REN__ACT_TANH:
        return from_output ? dnnl_eltwise_tanh_use_dst_for_bwd : dnnl_eltwise_tanh;
    case REN__ACT_SIGMOID:
        return from_output ? dnnl_eltwise_logistic_use_dst_for_bwd : dnnl_eltwise_logistic;
    case REN__ACT_SILU:
        return dnnl_eltwise_swish;
    case REN__ACT_GELU_TANH:
        return dnnl_eltwise_gelu_tanh;
    default:
        return dnnl_eltwise_gelu_erf;
    }
}

ren_status ren__cpu_fused_algorithm(ren__cpu_build *b, dnnl_alg_kind_t *out)
{
    const ren__op_desc *d = b->desc;
    *out = dnnl_alg_kind_undef;
    if (!d->fused_activation) {
        return REN_OK;
    }
    bool is_gelu = d->kind == REN__OP_LINEAR_FWD && d->activation == REN__ACT_GELU_TANH;
    if (d->activation != REN__ACT_RELU && !is_gelu) {
        return REN__CPU_FAIL(b->err, REN_ERR_UNSUPPORTED, "activation %d cannot be fused",
                             (int)d->activation);
    }
    *out = algorithm(d->activation, false);
    return REN_OK;
}

/* The bias gradient of the layer before: the sum of dx. */
static void sum_of_gate(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    ren__cpu_sum_rows(operands[3], &op->desc.operand[3], operands[4], (double *)(void *)workspace);
}

static ren_status add_bias_gradient(ren__cpu_build *b)
{
    const ren__tensor_desc *dx = &b->desc->operand[3];
    if (ren__cpu_has(b->desc, 4)) {
        REN__TRY(ren__cpu_expect(b, 4, REN_F32, 1, &dx->dims[dx->rank - 1u]));
        ren__cpu_own_workspace(b, (uint64_t)dx->dims[dx->rank - 1u] * sizeof(double));
        b->op->after = sum_of_gate;
    }
    return REN_OK;
}

ren_status ren__cpu_build_activation(ren__cpu_build *b)
{
    const ren__op_desc *d = b->desc;
    const bool backward = d->kind == REN__OP_ACT_BWD;
    if ((int)d->activation < 0 || d->activation > REN__ACT_GELU_TANH) {
        return REN__CPU_FAIL(b->err, REN_ERR_INVALID_ARGUMENT, "activation %d is none",
                             (int)d->activation);
    }
    const bool from_output = d->activation == REN__ACT_RELU || d->activation == REN__ACT_TANH ||
                             d->activation == REN__ACT_SIGMOID;
    const uint32_t data = !backward ? 0u : from_output ? 2u : 1u;
    const uint32_t out = backward ? 3u : 1u;
    const ren__dnnl_md *md = NULL;
    const uint64_t elements = ren__tensor_elements(&d->operand[0]);
    REN__TRY(ren__cpu_expect_elements(b, 0, elements));
    REN__TRY(ren__cpu_expect_elements(b, data, elements));
    REN__TRY(ren__cpu_expect_elements(b, out, elements));
    REN__TRY(ren__cpu_md_flat(b, 0, &md));
    const float alpha = d->activation == REN__ACT_LEAKY_RELU ? d->alpha
                        : d->activation == REN__ACT_SILU     ? 1.0f
                                                             : 0.0f;
    const dnnl_alg_kind_t alg = algorithm(d->activation, backward && from_output);
    ren__cpu_set_work(b, 4.0 * (double)elements);
    dnnl_primitive_desc_t *forward = ren__cpu_pd_slot(b);
    REN__DNNL(b->err,
              ren__dnnl_eltwise(forward, b->dev->engine, REN__DNNL_FORWARD, alg, md, alpha, NULL));
    uint32_t x = 0;
    uint32_t y = 0;
    REN__TRY(ren__cpu_memory(b, md, (int)data, &x));
    REN__TRY(ren__cpu_memory(b, md, (int)out, &y));
    if (!backward) {
        const int args[][2] = {{DNNL_ARG_SRC, (int)x}, {DNNL_ARG_DST, (int)y}};
        return ren__cpu_step(b, *forward, args, 2);
    }
    REN__TRY(add_bias_gradient(b));
    dnnl_primitive_desc_t *pd = ren__cpu_pd_slot(b);
    REN__DNNL(b->err, ren__dnnl_eltwise(pd, b->dev->engine, REN__DNNL_BACKWARD_DATA, alg, md, alpha,
                                        *forward));
    uint32_t dy = 0;
    REN__TRY(ren__cpu_memory(b, md, 0, &dy));
    const int args[][2] = {{from_output ? DNNL_ARG_DST : DNNL_ARG_SRC, (int)x},
                           {DNNL_ARG_DIFF_DST, (int)dy},
                           {DNNL_ARG_DIFF_SRC, (int)y}};
    return ren__cpu_step(b, *pd, args, 3);
}

/* ------------------------------------------------------------------ sum */

/* y may be a or b: the element is read before it is written. */
static void add(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t n = (size_t)ren__tensor_elements(&op->desc.operand[0]);
    const float *a = operands[0];
    const float *b = operands[1];
    float *y = operands[2];
    (void)workspace;
    for (size_t i = 0; i < n; i++) {
        y[i] = a[i] + b[i];
    }
}

ren_status ren__cpu_build_add(ren__cpu_build *b)
{
    const uint64_t elements = ren__tensor_elements(&b->desc->operand[0]);
    for (uint32_t i = 0; i < 3; i++) {
        REN__TRY(ren__cpu_expect_elements(b, i, elements));
    }
    b->op->after = add;
    return REN_OK;
}

/* ------------------------------------------------------------------ dropout */

/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): ten rounds over a counter, keyed. Every
 * element's random word can be computed by itself, so the mask needs no memory and no order. Here
 * for BATCH counters side by side, word w of counter k in word[w][k]: loops of a constant count,
 * which compilers turn into vectors. */
#define BATCH 8u

static void philox(uint32_t word[4][BATCH], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        for (size_t k = 0; k < BATCH; k++) {
            uint64_t a = (uint64_t)word[0][k] * UINT32_C(0xD2511F53);
            uint64_t b = (uint64_t)word[2][k] * UINT32_C(0xCD9E8D57);
            word[0][k] = (uint32_t)(b >> 32) ^ word[1][k] ^ key0;
            word[1][k] = (uint32_t)b;
            word[2][k] = (uint32_t)(a >> 32) ^ word[3][k] ^ key1;
            word[3][k] = (uint32_t)a;
        }
        key0 += UINT32_C(0x9E3779B9);
        key1 += UINT32_C(0xBB67AE85);
    }
}

/* Element i uses word i % 4 of the block with counter (i / 4, layer, step) under the key `seed`. It
 * is kept when that word's upper 24 bits, as a fraction, are at least the probability. Every device
 * computes the same mask. */
static void dropout(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const size_t n = (size_t)ren__tensor_elements(&op->desc.operand[0]);
    const float *x = operands[0];
    const ren__control *control = operands[1];
    float *y = operands[2];
    const uint64_t step = control->step;
    const float probability = op->desc.alpha;
    const float scale = 1.0f / (1.0f - probability);
    (void)workspace;
    for (size_t first = 0; first < n; first += 4u * BATCH) {
        uint32_t word[4][BATCH];
        for (size_t k = 0; k < BATCH; k++) {
            const uint64_t block = (uint64_t)first / 4u + k;
            word[0][k] = (uint32_t)block;
            word[1][k] = (uint32_t)(block >> 32) ^ ((uint32_t)(step >> 32) << 16);
            word[2][k] = op->desc.layer;
            word[3][k] = (uint32_t)step;
        }
        philox(word, (uint32_t)control->seed, (uint32_t)(control->seed >> 32));
        const size_t count = n - first < 4u * BATCH ? n - first : 4u * BATCH;
        for (size_t i = 0; i < count; i++) {
            float uniform = (float)(word[i % 4u][i / 4u] >> 8) * (1.0f / 16777216.0f);
            y[first + i] = uniform >= probability ? x[first + i] * scale : 0.0f;
        }
    }
}

ren_status ren__cpu_build_dropout(ren__cpu_build *b)
{
    const uint64_t elements = ren__tensor_elements(&b->desc->operand[0]);
    if (!(b->desc->alpha >= 0.0f && b->desc->alpha < 1.0f)) {
        return REN__CPU_FAIL(b->err, REN_ERR_INVALID_ARGUMENT,
                             "the probability must be at least 0 and below 1");
    }
    REN__TRY(ren__cpu_expect_elements(b, 0, elements));
    REN__TRY(ren__cpu_expect_elements(b, 2, elements));
    b->op->after = dropout;
    return REN_OK;
}

/* ------------------------------------------------------------------ casts */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest even; a NaN stays one. */
static uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Round to nearest even, through subnormals and to infinity. */
static uint16_t to_f16(float value)
{
    const uint32_t bits = bits_of(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) {
        return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    }
    if (magnitude < 0x38800000u) {
        /* Below 2^-14: adding 2^-1 aligns the last kept bit, 2^-24, with a float's last bit, so the
         * addition itself rounds to nearest even. */
        uint32_t shifted = bits_of(float_of(magnitude) + 0.5f);
        return (uint16_t)(sign | (shifted - bits_of(0.5f)));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

static float from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1fu) {
        return float_of(sign | 0x7f800000u | (mantissa << 13));
    }
    if (exponent == 0) {
        float magnitude = (float)mantissa * (1.0f / 16777216.0f); /* 2^-24 */
        return float_of(sign | bits_of(magnitude));
    }
    return float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

static float load(const void *data, ren_dtype dtype, size_t i)
{
    switch (dtype) {
    case REN_F16:
        return from_f16(((const uint16_t *)data)[i]);
    case REN_BF16:
        return float_of((uint32_t)((const uint16_t *)data)[i] << 16);
    case REN_U8:
        return (float)((const unsigned char *)data)[i];
    default:
        return ((const float *)data)[i];
    }
}

void ren__cpu_cast(void *to, ren_dtype to_dtype, const void *from, ren_dtype from_dtype, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float value = load(from, from_dtype, i);
        switch (to_dtype) {
        case REN_F16:
            ((uint16_t *)to)[i] = to_f16(value);
            break;
        case REN_BF16:
            ((uint16_t *)to)[i] = to_bf16(value);
            break;
        default:
            ((float *)to)[i] = value;
            break;
        }
    }
}

static void cast(const ren__op *op, void *const *operands, unsigned char *workspace)
{
    const ren__tensor_desc *from = &op->desc.operand[0];
    (void)workspace;
    ren__cpu_cast(operands[1], op->desc.operand[1].dtype, operands[0], from->dtype,
                  (size_t)ren__tensor_elements(from));
}

ren_status ren__cpu_build_cast(ren__cpu_build *b)
{
    const ren__tensor_desc *from = &b->desc->operand[0];
    const ren__tensor_desc *to = &b->desc->operand[1];
    const uint64_t elements = ren__tensor_elements(from);
    bool known_from = from->dtype != REN_I32;
    bool known_to = to->dtype == REN_F32 || to->dtype == REN_F16 || to->dtype == REN_BF16;
    if (!known_from || !known_to) {
        return REN__CPU_FAIL(b->err, REN_ERR_UNSUPPORTED, "no cast from dtype %d to dtype %d",
                             (int)from->dtype, (int)to->dtype);
    }
    if (elements == 0 || ren__tensor_elements(to) != elements) {
        return REN__CPU_FAIL(b->err, REN_ERR_SHAPE, "the two sides of a cast differ in size");
    }
    b->op->after = cast;
    return REN_OK;
}
