/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_fused.c - the module's own kernels, in every dtype and fused.
 *
 * Proves    each kernel gives what float64 gives to within the rounding of its dtype, for f32, f16
 *           and bf16, for channel counts that packs of 16 bytes fit and do not fit, for one row and
 *           for odd numbers of rows, at aligned and at moved addresses, plain and with a fused
 *           activation, sum or bias gradient; outputs are written whole, nothing beside them is;
 *           two runs and a captured run give the same bits (table.h).
 * Fails     when a tail is dropped, a pack goes past a row, a sum is kept in 16 bits, a gate looks
 *           at the wrong tensor, a fused part is left out, or the order of a sum changes.
 */
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../support/test.h"
#include "reference.h"
#include "values.h"

static const ren_dtype dtypes[] = {REN_F32, REN_F16, REN_BF16};
static const int64_t channel_counts[] = {1, 3, 5, 16, 17, 64, 72, 130};
static const int64_t row_counts[] = {1, 7, 31, 127, 1009};

#define DTYPES   REN_TEST_COUNT(dtypes)
#define CHANNELS REN_TEST_COUNT(channel_counts)
#define ROWS     REN_TEST_COUNT(row_counts)

/* Of a result that is rounded once to the dtype: half a unit in the last place. */
static double tolerance_of(ren_dtype dtype)
{
    return dtype == REN_F32 ? TEST_TOLERANCE : dtype == REN_F16 ? 5e-4 : 4e-3;
}

/* ------------------------------------------------------------------ 16-bit floats on the host */

/* v at the nearest multiple of a unit in the dtype's last place, ties to even. */
static double nearest(double v, ren_dtype dtype)
{
    int digits = dtype == REN_F16 ? 11 : 8;
    int least = dtype == REN_F16 ? -24 : -133;
    int exponent;
    double unit;
    if (dtype == REN_F32 || v == 0.0 || !isfinite(v)) {
        return (double)(float)v;
    }
    (void)frexp(v, &exponent);
    unit = ldexp(1.0, exponent - digits < least ? least : exponent - digits);
    return nearbyint(v / unit) * unit;
}

static uint16_t to_bits(float v, ren_dtype dtype)
{
    uint32_t word;
    int exponent;
    double m;
    memcpy(&word, &v, sizeof word);
    if (dtype == REN_BF16) {
        return (uint16_t)(word >> 16);
    }
    m = frexp(fabs((double)v), &exponent); /* |v| = m 2^exponent, m in [0.5, 1) */
    word = word >> 16 & 0x8000u;
    if (v != 0.0f && exponent >= -13) {
        return (uint16_t)(word | (uint32_t)(exponent + 14) << 10 |
                          ((uint32_t)(m * 2048.0) & 0x3ffu));
    }
    return (uint16_t)(word | (uint32_t)(fabs((double)v) * 16777216.0));
}

static float from_bits(uint16_t bits, ren_dtype dtype)
{
    uint32_t word = (uint32_t)bits << 16;
    uint32_t exponent = bits >> 10 & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    float v;
    if (dtype == REN_BF16) {
        memcpy(&v, &word, sizeof v);
        return v;
    }
    if (exponent == 31u) {
        v = mantissa ? NAN : INFINITY;
    } else {
        v = exponent ? (float)ldexp(1024.0 + mantissa, (int)exponent - 25)
                     : (float)ldexp((double)mantissa, -24);
    }
    return bits & 0x8000u ? -v : v;
}

/* n random values that the dtype holds exactly, as f32. */
static float *random_in(ren_dtype dtype, int64_t n)
{
    float *v = values_random((uint64_t)n);
    for (int64_t i = 0; i < n; i++) {
        v[i] = (float)nearest((double)v[i], dtype);
    }
    return v;
}

static double *doubles(int64_t n)
{
    return values_take((uint64_t)n * sizeof(double));
}

/* An operand that holds v, whose values the dtype holds exactly. */
static test_operand stored(const float *v, int64_t n, ren_dtype dtype)
{
    test_operand o = {TEST_IN, 0, 0, v, NULL};
    if (dtype != REN_F32) {
        uint16_t *bits = values_take((uint64_t)n * sizeof *bits);
        for (int64_t i = 0; i < n; i++) {
            bits[i] = to_bits(v[i], dtype);
        }
        o.in = bits;
    }
    return o;
}

static test_operand in(const float *v)
{
    test_operand o = {TEST_IN, 0, 0, v, NULL};
    return o;
}

static float *floats_of(const void *data, ren_dtype dtype, uint64_t n)
{
    float *out = values_take(n * sizeof *out);
    for (uint64_t i = 0; i < n; i++) {
        if (dtype == REN_F32) {
            memcpy(&out[i], (const float *)data + i, sizeof out[i]);
        } else {
            out[i] = from_bits(((const uint16_t *)data)[i], dtype);
        }
    }
    return out;
}

/* Run desc on the CUDA device and hold its outputs, in whatever dtype, to the expected values: to
 * within `slack` times what the dtype's rounding allows. */
static void check_within(const char *what, const ren__op_desc *desc, test_operand *operands,
                         const expected *outputs, uint32_t misalign, double slack)
{
    for (uint32_t k = 0; outputs[k].values; k++) {
        test_operand *o = &operands[outputs[k].operand];
        if (o->role == TEST_ABSENT) {
            o->role = TEST_OUT;
        }
        o->out = values_take(ren__tensor_bytes(&desc->operand[outputs[k].operand]));
    }
    CU_ASSERT_EQUAL_FATAL(test_run(test_cuda(), desc, operands, misalign), REN_OK);
    for (uint32_t k = 0; outputs[k].values; k++) {
        const ren__tensor_desc *t = &desc->operand[outputs[k].operand];
        uint64_t n = ren__tensor_elements(t);
        double off = test_distance(floats_of(operands[outputs[k].operand].out, t->dtype, n),
                                   outputs[k].values, n);
        CU_ASSERT_TRUE(off <= slack * tolerance_of(t->dtype));
        if (!(off <= slack * tolerance_of(t->dtype))) {
            (void)fprintf(stderr, "%s, dtype %d, [%lld, %lld], moved %u: output %u off by %.3g\n",
                          what, (int)desc->operand[0].dtype, (long long)desc->operand[0].dims[0],
                          (long long)desc->operand[0].dims[1], misalign, outputs[k].operand, off);
        }
    }
}

static void check(const char *what, const ren__op_desc *desc, test_operand *operands,
                  const expected *outputs, uint32_t misalign)
{
    check_within(what, desc, operands, outputs, misalign, 1.0);
}

static uint32_t element_bytes(ren_dtype dtype)
{
    return (uint32_t)ren__dtype_bytes(dtype);
}

static ren__tensor_desc matrix(ren_dtype dtype, int64_t rows, int64_t channels)
{
    return test_tensor(dtype, 2, rows, channels, 0, 0);
}

static ren__tensor_desc image(ren_dtype dtype, int64_t n, int64_t h, int64_t w, int64_t c)
{
    return test_tensor(dtype, 4, n, h, w, c);
}

static ren__tensor_desc flat(ren_dtype dtype, int64_t n)
{
    return test_tensor(dtype, 1, n, 0, 0, 0);
}

/* ------------------------------------------------------------------ element by element */

static void activation_case(ren_dtype dtype, ren__activation activation, int64_t rows,
                            int64_t channels, int with_db, uint32_t misalign)
{
    int64_t n = rows * channels;
    int from_y = activation == REN__ACT_RELU || activation == REN__ACT_TANH ||
                 activation == REN__ACT_SIGMOID;
    float *x = random_in(dtype, n);
    float *dy = random_in(dtype, n);
    float *y = values_take((uint64_t)n * sizeof *y);
    double *of_y = doubles(n);
    double *dx = doubles(n);
    double *db = doubles(channels);
    ren__op_desc forward = test_desc(REN__OP_ACT_FWD);
    ren__op_desc backward = test_desc(REN__OP_ACT_BWD);
    test_operand f[REN__OPERANDS] = {stored(x, n, dtype)};
    test_operand b[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    forward.activation = backward.activation = activation;
    forward.alpha = backward.alpha = 0.03125f;
    for (int64_t i = 0; i < n; i++) {
        double slope;
        of_y[i] = ref_act(activation, 0.03125, (double)x[i]);
        y[i] = (float)nearest(of_y[i], dtype);
        dy[i] = (float)nearest((double)dy[i] + 0.5, dtype); /* no sum is near 0 */
        slope = ref_act_slope(activation, 0.03125, (double)x[i]);
        if (activation == REN__ACT_TANH) { /* of the stored output, as the contract has it */
            slope = 1.0 - (double)y[i] * (double)y[i];
        } else if (activation == REN__ACT_SIGMOID) {
            slope = (double)y[i] * (1.0 - (double)y[i]);
        }
        dx[i] = (double)dy[i] * slope;
        db[i % channels] += dx[i];
    }
    forward.operand[0] = forward.operand[1] = matrix(dtype, rows, channels);
    check("activation", &forward, f, (expected[]){{1, of_y}, {0, NULL}}, misalign);
    backward.operand[0] = backward.operand[3] = matrix(dtype, rows, channels);
    backward.operand[from_y ? 2 : 1] = backward.operand[0];
    b[0] = stored(dy, n, dtype);
    b[from_y ? 2 : 1] = stored(from_y ? y : x, n, dtype);
    if (with_db) {
        backward.operand[4] = flat(REN_F32, channels);
    }
    check("activation's gradient", &backward, b,
          with_db ? (expected[]){{3, dx}, {4, db}, {0, NULL}} : (expected[]){{3, dx}, {0, NULL}},
          with_db ? misalign * 4u / element_bytes(dtype) : misalign);
    values_free();
}

static void test_activations_every_dtype(void)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 4099}, {61, 67}};
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t activation = 0; activation <= REN__ACT_GELU_TANH; activation++) {
            for (uint32_t k = 0; k < REN_TEST_COUNT(sizes); k++) {
                if (!test_left_out(d + activation + k, 3)) {
                    activation_case(dtypes[d], (ren__activation)activation, sizes[k][0],
                                    sizes[k][1], 0, k == 2 ? element_bytes(dtypes[d]) : 0u);
                }
            }
        }
    }
}

static void test_activation_with_bias_gradient(void)
{
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t c = 0; c < CHANNELS; c++) {
            for (uint32_t r = 0; r < ROWS; r++) {
                if (test_left_out(d + 2u * c + r, 5)) {
                    continue;
                }
                activation_case(dtypes[d], (c + r) % 2u ? REN__ACT_RELU : REN__ACT_SILU,
                                row_counts[r], channel_counts[c], 1,
                                r % 2u ? element_bytes(dtypes[d]) : 0u);
            }
        }
        activation_case(dtypes[d], REN__ACT_RELU, 20011, 64, 1, 0);
    }
}

static void test_bias_gradient_every_dtype(void)
{
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t c = 0; c < CHANNELS; c++) {
            for (uint32_t r = 0; r < ROWS; r++) {
                if (test_left_out(d + 2u * c + r, 5)) {
                    continue;
                }
                int64_t rows = row_counts[r] * (c == 3 ? 17 : 1);
                int64_t channels = channel_counts[c];
                float *dy = random_in(dtypes[d], rows * channels);
                double *db = doubles(channels);
                ren__op_desc desc = test_desc(REN__OP_BIAS_GRAD);
                test_operand o[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
                for (int64_t i = 0; i < rows * channels; i++) { /* no sum is near 0 */
                    dy[i] = (float)nearest((double)dy[i] + 0.5, dtypes[d]);
                }
                o[0] = stored(dy, rows * channels, dtypes[d]);
                o[0] = stored(dy, rows * channels, dtypes[d]);
                ref_column_sum(dy, db, rows, channels);
                desc.operand[0] = matrix(dtypes[d], rows, channels);
                desc.operand[1] = flat(REN_F32, channels);
                check("bias gradient", &desc, o, (expected[]){{1, db}, {0, NULL}},
                      r % 2u ? 4u : 0u);
                values_free();
            }
        }
    }
}

static void test_add_every_dtype(void)
{
    static const int64_t counts[] = {1, 7, 8, 4099};
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t k = 0; k < REN_TEST_COUNT(counts); k++) {
            int64_t n = counts[k];
            float *a = random_in(dtypes[d], n);
            float *b = random_in(dtypes[d], n);
            double *y = doubles(n);
            ren__op_desc desc = test_desc(REN__OP_ADD);
            for (int64_t i = 0; i < n; i++) {
                y[i] = (double)a[i] + (double)b[i];
            }
            desc.operand[0] = desc.operand[1] = desc.operand[2] = flat(dtypes[d], n);
            for (uint32_t moved = 0; moved < 2; moved++) {
                test_operand o[REN__OPERANDS] = {stored(a, n, dtypes[d]), stored(b, n, dtypes[d])};
                check("add", &desc, o, (expected[]){{2, y}, {0, NULL}},
                      moved * element_bytes(dtypes[d]));
            }
            values_free();
        }
    }
}

/* The mask does not depend on the dtype: a half is what the f32 kernel gives, rounded. */
static void test_dropout_every_dtype(void)
{
    ren__control control;
    memset(&control, 0, sizeof control);
    control.seed = 77;
    control.step = 5;
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t moved = 0; moved < 2; moved++) {
            const int64_t n = 4099;
            float *x = random_in(dtypes[d], n);
            float *ones = values_filled((uint64_t)n, 1.0f);
            float *mask = values_take((uint64_t)n * sizeof *mask);
            double *y = doubles(n);
            ren__op_desc desc = test_desc(REN__OP_DROPOUT_FWD);
            test_operand control_in = {TEST_IN, 0, 0, &control, NULL};
            test_operand m[REN__OPERANDS] = {in(ones), control_in, {TEST_OUT, 0, 0, NULL, mask}};
            test_operand o[REN__OPERANDS] = {stored(x, n, dtypes[d]), control_in};
            desc.alpha = 0.4f;
            desc.layer = 3;
            desc.operand[1] = flat(REN_U8, (int64_t)sizeof control);
            desc.operand[0] = desc.operand[2] = flat(REN_F32, n);
            CU_ASSERT_EQUAL(test_run(test_cuda(), &desc, m, 0), REN_OK);
            for (int64_t i = 0; i < n; i++) {
                y[i] = (double)x[i] * (double)mask[i];
            }
            desc.kind = moved ? REN__OP_DROPOUT_BWD : REN__OP_DROPOUT_FWD;
            desc.operand[0] = desc.operand[2] = flat(dtypes[d], n);
            check("dropout", &desc, o, (expected[]){{2, y}, {0, NULL}},
                  moved * element_bytes(dtypes[d]));
            values_free();
        }
    }
}

static void joined_case(ren_dtype dtype, const int64_t *widths, uint32_t count, int64_t rows,
                        uint32_t misalign)
{
    ren__op_desc concat = test_desc(REN__OP_CONCAT);
    ren__op_desc split = test_desc(REN__OP_SPLIT);
    test_operand c[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    test_operand s[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    expected parts[REN__OPERANDS + 1] = {{0, NULL}};
    int64_t sum = 0;
    int64_t begin = 0;
    float *joined;
    double *same;
    for (uint32_t k = 0; k < count; k++) {
        sum += widths[k];
    }
    joined = values_take((uint64_t)(rows * sum) * sizeof *joined);
    same = doubles(rows * sum);
    concat.count = split.count = count;
    concat.operand[11] = split.operand[0] = matrix(dtype, rows, sum);
    for (uint32_t k = 0; k < count; k++) {
        int64_t n = rows * widths[k];
        float *part = random_in(dtype, n);
        double *of_part = doubles(n);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = i / widths[k] * sum + begin + i % widths[k];
            of_part[i] = same[at] = (double)part[i];
            joined[at] = part[i];
        }
        begin += widths[k];
        concat.operand[k] = split.operand[k + 1u] = matrix(dtype, rows, widths[k]);
        c[k] = stored(part, n, dtype);
        parts[k] = (expected){k + 1u, of_part};
    }
    s[0] = stored(joined, rows * sum, dtype);
    check("concat", &concat, c, (expected[]){{11, same}, {0, NULL}}, misalign);
    check("split", &split, s, parts, misalign);
    values_free();
}

static void test_concat_every_dtype(void)
{
    static const int64_t packed[] = {16, 64, 8, 24};
    static const int64_t pairs[] = {2, 6, 4};
    static const int64_t odd[] = {1, 3, 5, 17};
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t moved = 0; moved < 2; moved++) {
            joined_case(dtypes[d], packed, 4, 127, moved * element_bytes(dtypes[d]));
            joined_case(dtypes[d], pairs, 3, 7, moved * element_bytes(dtypes[d]));
            joined_case(dtypes[d], odd, 4, 31, moved * element_bytes(dtypes[d]));
        }
        joined_case(dtypes[d], odd, 1, 1, 0);
    }
}

/* ------------------------------------------------------------------ pooling */

static void window_of(ren__op_desc *desc, const ref_window *s)
{
    desc->kernel[0] = (uint32_t)s->kh;
    desc->kernel[1] = (uint32_t)s->kw;
    desc->stride[0] = (uint32_t)s->sh;
    desc->stride[1] = (uint32_t)s->sw;
    desc->padding[0] = (uint32_t)s->ph;
    desc->padding[1] = (uint32_t)s->pw;
}

/* Values of few kinds, so that maxima tie: the first in row order must win in every dtype. */
static void make_ties(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = nearbyintf(x[i] * 2.0f) * 0.5f;
    }
}

/* What a forward pass saves for the backward pass. */
static void *saved_by(const ren__op_desc *forward, const test_operand *operands)
{
    ren__op *op = NULL;
    ren__op_needs needs;
    ren_error err;
    test_operand o[REN__OPERANDS];
    memcpy(o, operands, sizeof o);
    CU_ASSERT_EQUAL_FATAL(
        test_cuda()->api->op_create(test_cuda()->dev, 0, forward, &op, &needs, &err), REN_OK);
    test_cuda()->api->op_destroy(test_cuda()->dev, op);
    o[2].role = TEST_SAVED;
    o[2].in = NULL;
    o[2].out = values_take(needs.saved_bytes);
    CU_ASSERT_EQUAL_FATAL(test_run(test_cuda(), forward, o, 0), REN_OK);
    return o[2].out;
}

static void pool_case(ren_dtype dtype, ref_window s, uint32_t misalign)
{
    ren__op_desc forward = test_desc(REN__OP_MAX_POOL_FWD);
    ren__op_desc backward = test_desc(REN__OP_MAX_POOL_BWD);
    ren__op_desc avg = test_desc(REN__OP_AVG_POOL_FWD);
    ren__op_desc avg_backward = test_desc(REN__OP_AVG_POOL_BWD);
    int64_t inputs = s.n * s.h * s.w * s.c;
    int64_t outputs;
    float *x = random_in(dtype, inputs);
    float *dy;
    double *y, *dx;
    s.o = s.c;
    s.dh = s.dw = s.groups = 1;
    s.ho = (s.h + 2 * s.ph - s.kh) / s.sh + 1;
    s.wo = (s.w + 2 * s.pw - s.kw) / s.sw + 1;
    outputs = s.n * s.ho * s.wo * s.c;
    dy = random_in(dtype, outputs);
    y = doubles(outputs);
    dx = doubles(inputs);
    make_ties(x, inputs);
    window_of(&forward, &s);
    window_of(&backward, &s);
    window_of(&avg, &s);
    window_of(&avg_backward, &s);
    forward.operand[0] = backward.operand[1] = backward.operand[4] = avg.operand[0] =
        avg_backward.operand[1] = image(dtype, s.n, s.h, s.w, s.c);
    forward.operand[1] = backward.operand[0] = backward.operand[2] = avg.operand[1] =
        avg_backward.operand[0] = image(dtype, s.n, s.ho, s.wo, s.c);
    ref_max_pool(&s, x, y);
    {
        test_operand o[REN__OPERANDS] = {stored(x, inputs, dtype)};
        test_operand b[REN__OPERANDS] = {stored(dy, outputs, dtype)};
        check("max pool", &forward, o, (expected[]){{1, y}, {0, NULL}}, misalign);
        forward.training = backward.training = 1;
        b[3] = (test_operand){TEST_SAVED, 0, 0, saved_by(&forward, o), NULL};
        ref_max_pool_backward(&s, dy, x, dx);
        check("max pool's gradient", &backward, b, (expected[]){{4, dx}, {0, NULL}}, misalign);
    }
    {
        test_operand o[REN__OPERANDS] = {stored(x, inputs, dtype)};
        ref_avg_pool(&s, x, y);
        check("average pool", &avg, o, (expected[]){{1, y}, {0, NULL}}, misalign);
    }
    {
        test_operand o[REN__OPERANDS] = {stored(dy, outputs, dtype)};
        ref_avg_pool_backward(&s, dy, dx);
        check("average pool's gradient", &avg_backward, o, (expected[]){{1, dx}, {0, NULL}},
              misalign);
    }
    values_free();
}

static void test_pool_every_dtype(void)
{
    static const ref_window windows[] = {
        {.n = 2, .h = 9, .w = 7, .kh = 3, .kw = 3, .sh = 2, .sw = 2, .ph = 1, .pw = 1},
        {.n = 3, .h = 8, .w = 8, .kh = 2, .kw = 2, .sh = 2, .sw = 2},
        {.n = 1, .h = 5, .w = 11, .kh = 4, .kw = 3, .sh = 1, .sw = 3, .ph = 2, .pw = 1},
        {.n = 1, .h = 19, .w = 20, .kh = 17, .kw = 18, .sh = 1, .sw = 2},
    };
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t w = 0; w < REN_TEST_COUNT(windows); w++) {
            for (uint32_t c = 0; c < CHANNELS; c += w == 3 ? 3u : 1u) {
                ref_window s = windows[w];
                s.c = channel_counts[c];
                if (test_left_out(d + c + w, 3)) {
                    continue;
                }
                pool_case(dtypes[d], s, (c + w) % 2u ? element_bytes(dtypes[d]) : 0u);
            }
        }
    }
}

static void test_global_average_every_dtype(void)
{
    static const int64_t sizes[] = {1, 3, 7, 20};
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t c = 0; c < CHANNELS; c++) {
            for (uint32_t k = 0; k < REN_TEST_COUNT(sizes); k++) {
                if (test_left_out(d + c + k, 4)) {
                    continue;
                }
                ren_dtype dtype = dtypes[d];
                ref_window s = {.n = 3, .h = sizes[k], .w = sizes[k], .c = channel_counts[c]};
                int64_t inputs = s.n * s.h * s.w * s.c;
                int64_t outputs = s.n * s.c;
                float *x = random_in(dtype, inputs);
                float *dy = random_in(dtype, outputs);
                double *y = doubles(outputs);
                double *dx = doubles(inputs);
                ren__op_desc forward = test_desc(REN__OP_GLOBAL_AVG_FWD);
                ren__op_desc backward = test_desc(REN__OP_GLOBAL_AVG_BWD);
                test_operand f[REN__OPERANDS] = {stored(x, inputs, dtype)};
                test_operand b[REN__OPERANDS] = {stored(dy, outputs, dtype)};
                uint32_t misalign = k % 2u * element_bytes(dtype);
                s.o = s.c;
                s.kh = s.h;
                s.kw = s.w;
                s.ho = s.wo = s.sh = s.sw = s.dh = s.dw = s.groups = 1;
                ref_avg_pool(&s, x, y);
                ref_avg_pool_backward(&s, dy, dx);
                forward.operand[0] = backward.operand[1] = image(dtype, s.n, s.h, s.w, s.c);
                forward.operand[1] = backward.operand[0] = matrix(dtype, s.n, s.c);
                check("global average", &forward, f, (expected[]){{1, y}, {0, NULL}}, misalign);
                check("global average's gradient", &backward, b, (expected[]){{1, dx}, {0, NULL}},
                      misalign);
                values_free();
            }
        }
    }
}

/* ------------------------------------------------------------------ batch norm */

typedef struct norm_case {
    ren_dtype dtype;
    int64_t rows, channels;
    int relu, other;
    double offset;
    uint32_t misalign;
} norm_case;

/* Inputs of one case and what float64 makes of them. */
typedef struct norm_data {
    ref_norm p;
    float *x, *other;
    double *out; /* act(norm(x) + other) */
    ren__tensor_desc tensor, vector;
} norm_data;

static norm_data norm_inputs(const norm_case *c)
{
    norm_data d;
    int64_t n = c->rows * c->channels;
    float *var = values_random((uint64_t)c->channels);
    memset(&d, 0, sizeof d);
    d.x = random_in(c->dtype, n);
    d.other = random_in(c->dtype, n);
    d.out = doubles(n);
    d.tensor = matrix(c->dtype, c->rows, c->channels);
    d.vector = flat(REN_F32, c->channels);
    for (int64_t i = 0; i < n; i++) {
        d.x[i] = (float)nearest((double)d.x[i] + c->offset, c->dtype);
    }
    for (int64_t i = 0; i < c->channels; i++) {
        var[i] = fabsf(var[i]) + 0.1f;
    }
    d.p.rows = c->rows;
    d.p.channels = c->channels;
    d.p.momentum = (double)0.1f;
    d.p.eps = (double)1e-5f;
    d.p.x = d.x;
    d.p.weight = values_random((uint64_t)c->channels);
    d.p.bias = values_random((uint64_t)c->channels);
    d.p.running_mean = values_random((uint64_t)c->channels);
    d.p.running_var = var;
    d.p.y = doubles(n);
    d.p.mean = doubles(c->channels);
    d.p.rstd = doubles(c->channels);
    d.p.new_mean = doubles(c->channels);
    d.p.new_var = doubles(c->channels);
    return d;
}

static void finish_outputs(const norm_case *c, norm_data *d)
{
    for (int64_t i = 0; i < c->rows * c->channels; i++) {
        double v = d->p.y[i] + (c->other ? (double)d->other[i] : 0.0);
        d->out[i] = c->relu && v < 0.0 ? 0.0 : v;
    }
}

static void describe(const norm_case *c, const norm_data *d, ren__op_desc *desc)
{
    desc->alpha = 0.1f;
    desc->eps = 1e-5f;
    desc->fused_activation = (uint32_t)c->relu;
    desc->activation = REN__ACT_RELU;
    for (uint32_t i = 0; i < 8; i++) {
        desc->operand[i] = d->vector;
    }
    desc->operand[0] = desc->operand[5] = d->tensor;
}

static void forward_case(const norm_case *c)
{
    norm_data d = norm_inputs(c);
    int64_t n = c->rows * c->channels;
    ren__op_desc train = test_desc(REN__OP_BATCH_NORM_TRAIN);
    ren__op_desc eval = test_desc(REN__OP_BATCH_NORM_EVAL);
    test_operand o[REN__OPERANDS] = {stored(d.x, n, c->dtype), in(d.p.weight), in(d.p.bias),
                                     in(d.p.running_mean), in(d.p.running_var)};
    /* Without a spread the scale is 1 / sqrt(eps), 316, and x times it has to cancel. */
    double slack = c->rows == 1 ? 30.0 : 1.0;
    describe(c, &d, &train);
    describe(c, &d, &eval);
    train.operand[8] = train.operand[9] = d.vector;
    memset(&eval.operand[6], 0, 2 * sizeof eval.operand[6]);
    if (c->other) {
        train.operand[10] = eval.operand[10] = d.tensor;
        o[10] = stored(d.other, n, c->dtype);
    }
    ref_norm_eval(&d.p);
    finish_outputs(c, &d);
    check("batch norm, inference", &eval, o, (expected[]){{5, d.out}, {0, NULL}}, c->misalign);
    o[5].role = TEST_ABSENT;
    ref_norm_train(&d.p);
    finish_outputs(c, &d);
    check_within("batch norm", &train, o,
                 (expected[]){{5, d.out},
                              {6, d.p.mean},
                              {7, d.p.rstd},
                              {8, d.p.new_mean},
                              {9, d.p.new_var},
                              {0, NULL}},
                 c->misalign, slack);
    values_free();
}

static float *rounded(const double *from, int64_t n)
{
    float *out = values_take((uint64_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        out[i] = (float)from[i];
    }
    return out;
}

/* How the backward pass learns where the output was positive. */
typedef enum gate_by {
    GATE_NONE,
    GATE_Y,
    GATE_BIAS
} gate_by;

static void backward_case(const norm_case *c, gate_by by, int dother)
{
    norm_data d = norm_inputs(c);
    int64_t n = c->rows * c->channels;
    float *dy = random_in(c->dtype, n);
    float *y = random_in(c->dtype, n); /* only its signs count */
    float *counted = values_take((uint64_t)n * sizeof *counted);
    double *dx = doubles(n);
    double *kept = doubles(n);
    double *dweight = doubles(c->channels);
    double *dbias = doubles(c->channels);
    float *mean, *rstd;
    ren__op_desc desc = test_desc(REN__OP_BATCH_NORM_BWD);
    expected out[] = {{5, dx}, {6, dweight}, {7, dbias}, {9, kept}, {0, NULL}};
    test_operand o[REN__OPERANDS] = {{TEST_ABSENT, 0, 0, NULL, NULL}};
    ref_norm_train(&d.p);
    mean = rounded(d.p.mean, c->channels);
    rstd = rounded(d.p.rstd, c->channels);
    for (int64_t i = 0; i < n; i++) {
        int open;
        dy[i] = (float)nearest((double)dy[i] + 0.5, c->dtype); /* no sum is near 0 */
        open = by == GATE_NONE || (by == GATE_Y ? y[i] > 0.0f : d.p.y[i] > 0.0);
        if (by == GATE_BIAS && fabs(d.p.y[i]) < 1e-3) {
            dy[i] = 0.0f; /* too close to the kink for f32 to tell */
        }
        counted[i] = open ? dy[i] : 0.0f;
        kept[i] = (double)counted[i];
    }
    ref_norm_backward(&d.p, counted, mean, rstd, dx, dweight, dbias);
    describe(c, &d, &desc);
    desc.fused_activation = by != GATE_NONE;
    desc.operand[1] = d.tensor;
    o[0] = stored(dy, n, c->dtype);
    o[1] = stored(d.x, n, c->dtype);
    o[2] = in(d.p.weight);
    o[3] = in(mean);
    o[4] = in(rstd);
    if (by == GATE_Y) {
        desc.operand[8] = d.tensor;
        o[8] = stored(y, n, c->dtype);
    } else if (by == GATE_BIAS) {
        desc.operand[10] = d.vector;
        o[10] = in(d.p.bias);
    }
    if (dother) {
        desc.operand[9] = d.tensor;
    } else {
        out[3].values = NULL;
    }
    check("batch norm's gradient", &desc, o, out, c->misalign);
    values_free();
}

static void test_batch_norm_every_dtype(void)
{
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t k = 0; k < CHANNELS; k++) {
            for (uint32_t r = 1; r < ROWS; r++) {
                if (test_left_out(d + k + r, 4)) {
                    continue;
                }
                norm_case c = {
                    dtypes[d],     row_counts[r],      channel_counts[k],     (int)(k & 1u),
                    (int)(r & 1u), r == 3 ? 4.0 : 0.0, k % 3u == 1u ? 4u : 0u};
                forward_case(&c);
                c.relu = !c.relu;
                c.misalign = 4u - c.misalign;
                forward_case(&c);
            }
        }
        forward_case(&(norm_case){dtypes[d], 20011, 64, 1, 1, 0.5, 0});
        forward_case(&(norm_case){dtypes[d], 40000, 16, 1, 0, -0.5, 0});
    }
}

/* One row has no spread: whatever x is, the output is the bias. */
static void test_batch_norm_of_one_row(void)
{
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t k = test_light() ? d : 0u; k < CHANNELS; k += test_light() ? 3u : 1u) {
            forward_case(&(norm_case){dtypes[d], 1, channel_counts[k], 1, 1, 0.0, 0});
        }
    }
}

static void test_batch_norm_gradient_every_dtype(void)
{
    for (uint32_t d = 0; d < DTYPES && test_cuda(); d++) {
        for (uint32_t k = 0; k < CHANNELS; k++) {
            for (uint32_t r = 2; r < ROWS; r++) {
                if (test_left_out(k + r + 2u, 4)) {
                    continue;
                }
                norm_case c = {dtypes[d], row_counts[r], channel_counts[k], 0,
                               0,         0.25,          r % 2u ? 4u : 0u};
                backward_case(&c, GATE_NONE, 0);
                backward_case(&c, GATE_Y, (int)(k % 2u));
                backward_case(&c, GATE_BIAS, (int)(r % 2u));
                c.misalign = 4u - c.misalign;
                backward_case(&c, GATE_Y, 1);
            }
        }
        backward_case(&(norm_case){dtypes[d], 20011, 64, 0, 0, 0.5, 0}, GATE_Y, 1);
        backward_case(&(norm_case){dtypes[d], 40000, 16, 0, 0, 0.5, 0}, GATE_BIAS, 0);
    }
}

/* Gating by the stored output and by computing it again must open the very same elements, so
 * both give the same bits; a formula that is contracted differently in one of them does not. */
static void test_gates_agree(void)
{
    static const int64_t rows_of[] = {24, 997, 5003};
    for (uint32_t k = 0; k < 9 && test_cuda(); k += test_light() ? 2u : 1u) {
        norm_case c = {dtypes[k % 3u], rows_of[k / 3u], 40, 1, 0, 1.0, 0};
        norm_data d = norm_inputs(&c);
        int64_t n = c.rows * c.channels;
        uint64_t bytes = (uint64_t)n * element_bytes(c.dtype);
        ren__op_desc train = test_desc(REN__OP_BATCH_NORM_TRAIN);
        ren__op_desc desc = test_desc(REN__OP_BATCH_NORM_BWD);
        float *mean = values_take((uint64_t)c.channels * sizeof *mean);
        float *rstd = values_take((uint64_t)c.channels * sizeof *rstd);
        void *y = values_take(bytes);
        test_operand x = stored(d.x, n, c.dtype);
        test_operand dy = stored(random_in(c.dtype, n), n, c.dtype);
        test_operand of_train[REN__OPERANDS] = {x, in(d.p.weight), in(d.p.bias),
                                                in(d.p.running_mean), in(d.p.running_var)};
        void *out[2][2];
        describe(&c, &d, &train);
        train.operand[8] = train.operand[9] = d.vector;
        of_train[5] = (test_operand){TEST_OUT, 0, 0, NULL, y};
        of_train[6] = (test_operand){TEST_OUT, 0, 0, NULL, mean};
        of_train[7] = (test_operand){TEST_OUT, 0, 0, NULL, rstd};
        of_train[8].role = of_train[9].role = TEST_OUT;
        CU_ASSERT_EQUAL_FATAL(test_run(test_cuda(), &train, of_train, 0), REN_OK);
        for (int by_y = 0; by_y < 2; by_y++) {
            test_operand o[REN__OPERANDS] = {dy, x, in(d.p.weight), in(mean), in(rstd)};
            out[by_y][0] = values_take(bytes);
            out[by_y][1] = values_take(bytes);
            describe(&c, &d, &desc);
            desc.operand[1] = desc.operand[9] = d.tensor;
            desc.operand[8] = by_y ? d.tensor : (ren__tensor_desc){0};
            desc.operand[10] = by_y ? (ren__tensor_desc){0} : d.vector;
            o[5] = (test_operand){TEST_OUT, 0, 0, NULL, out[by_y][0]};
            o[6].role = o[7].role = TEST_OUT;
            o[9] = (test_operand){TEST_OUT, 0, 0, NULL, out[by_y][1]};
            if (by_y) {
                o[8] = (test_operand){TEST_IN, 0, 0, y, NULL};
            } else {
                o[10] = in(d.p.bias);
            }
            CU_ASSERT_EQUAL_FATAL(test_run(test_cuda(), &desc, o, 0), REN_OK);
        }
        CU_ASSERT_EQUAL(memcmp(out[0][0], out[1][0], bytes), 0);
        CU_ASSERT_EQUAL(memcmp(out[0][1], out[1][1], bytes), 0);
        values_free();
    }
}

static void test_batch_norm_fold(void)
{
    for (int i = 0; i < 6 && test_cuda(); i++) {
        int64_t outputs = i == 0 ? 1 : values_between(1, 70);
        int64_t inner = i == 1 ? 1 : values_between(1, 20);
        int64_t side = i % 3 + 1;
        int64_t each = inner * side * side;
        float *w = values_random((uint64_t)(outputs * each));
        float *b = values_random((uint64_t)outputs);
        norm_case c = {REN_F32, 2, outputs, 0, 0, 0.0, 0};
        norm_data d = norm_inputs(&c);
        double *to_w = doubles(outputs * each);
        double *to_b = doubles(outputs);
        ren__op_desc desc = test_desc(REN__OP_BATCH_NORM_FOLD);
        test_operand o[REN__OPERANDS] = {{TEST_IN, 1, 0, w, NULL},
                                         in(d.p.weight),
                                         in(d.p.bias),
                                         in(d.p.running_mean),
                                         in(d.p.running_var)};
        desc.eps = 1e-5f;
        desc.operand[0] = desc.operand[6] = image(REN_F32, outputs, inner, side, side);
        for (uint32_t k = 1; k < 8; k++) {
            desc.operand[k] = k == 6 ? desc.operand[6] : d.vector;
        }
        if (i % 2) {
            o[5] = in(b);
        } else {
            memset(&desc.operand[5], 0, sizeof desc.operand[5]);
        }
        for (int64_t k = 0; k < outputs * each; k++) {
            int64_t at = k / each;
            double scale = (double)d.p.weight[at] / sqrt((double)d.p.running_var[at] + d.p.eps);
            to_w[k] = (double)w[k] * scale;
            to_b[at] = ((i % 2 ? (double)b[at] : 0.0) - (double)d.p.running_mean[at]) * scale +
                       (double)d.p.bias[at];
        }
        o[6] = (test_operand){TEST_OUT, 1, 0, NULL, NULL};
        check("batch norm, folded", &desc, o, (expected[]){{6, to_w}, {7, to_b}, {0, NULL}}, 0);
        values_free();
    }
}

/* ------------------------------------------------------------------ refusals */

static ren_status status_of(const ren__op_desc *desc)
{
    ren__op *op = NULL;
    ren__op_needs needs;
    ren_error err;
    ren_status status = test_cuda()->api->op_create(test_cuda()->dev, 0, desc, &op, &needs, &err);
    test_cuda()->api->op_destroy(test_cuda()->dev, op);
    return status;
}

/* Tensors of different dtypes go through casts around the f32 kernel. */
static void test_dtypes_may_differ(void)
{
    const int64_t n = 1003;
    float *a = random_in(REN_BF16, n);
    float *b = values_random((uint64_t)n);
    double *y = doubles(n);
    ren__op_desc desc = test_desc(REN__OP_ADD);
    test_operand o[REN__OPERANDS] = {stored(a, n, REN_BF16), in(b)};
    if (!test_cuda()) {
        return;
    }
    desc.operand[0] = flat(REN_BF16, n);
    desc.operand[1] = flat(REN_F32, n);
    desc.operand[2] = flat(REN_F16, n);
    for (int64_t i = 0; i < n; i++) {
        y[i] = (double)a[i] + (double)b[i];
    }
    check("add of two dtypes", &desc, o, (expected[]){{2, y}, {0, NULL}}, 0);
    values_free();
}

/* A fused operand of another shape, or a gate without its tensor, is refused when the operation is
 * made and not read past by a kernel. */
static void test_fused_operands_are_checked(void)
{
    norm_case c = {REN_F16, 40, 24, 1, 1, 0.0, 0};
    norm_data d;
    ren__op_desc desc = test_desc(REN__OP_BATCH_NORM_EVAL);
    if (!test_cuda()) {
        return;
    }
    d = norm_inputs(&c);
    describe(&c, &d, &desc);
    memset(&desc.operand[6], 0, 2 * sizeof desc.operand[6]);
    desc.operand[10] = d.tensor;
    CU_ASSERT_EQUAL(status_of(&desc), REN_OK);
    desc.operand[10].dims[0] = 39;
    CU_ASSERT_EQUAL(status_of(&desc), REN_ERR_SHAPE);
    desc.operand[10] = d.tensor;
    desc.activation = REN__ACT_TANH;
    CU_ASSERT_EQUAL(status_of(&desc), REN_ERR_UNSUPPORTED);
    desc = test_desc(REN__OP_BATCH_NORM_BWD);
    describe(&c, &d, &desc);
    desc.operand[1] = d.tensor;
    CU_ASSERT_EQUAL(status_of(&desc), REN_ERR_SHAPE); /* a gate, but by what? */
    desc.operand[8] = d.tensor;
    CU_ASSERT_EQUAL(status_of(&desc), REN_OK);
    desc.operand[10] = d.vector;
    CU_ASSERT_EQUAL(status_of(&desc), REN_ERR_SHAPE); /* by two */
    memset(&desc.operand[10], 0, sizeof desc.operand[10]);
    desc.operand[9] = matrix(REN_F16, 24, 40);
    CU_ASSERT_EQUAL(status_of(&desc), REN_ERR_SHAPE);
    desc = test_desc(REN__OP_ACT_BWD);
    desc.operand[0] = desc.operand[2] = desc.operand[3] = d.tensor;
    desc.operand[4] = flat(REN_F32, 23);
    CU_ASSERT_EQUAL(status_of(&desc), REN_ERR_SHAPE);
    desc.operand[4] = flat(REN_F32, 24);
    CU_ASSERT_EQUAL(status_of(&desc), REN_OK);
    values_free();
}

static const ren_test_case cases[] = {
    {"test_activations_every_dtype", test_activations_every_dtype},
    {"test_activation_with_bias_gradient", test_activation_with_bias_gradient},
    {"test_bias_gradient_every_dtype", test_bias_gradient_every_dtype},
    {"test_add_every_dtype", test_add_every_dtype},
    {"test_dropout_every_dtype", test_dropout_every_dtype},
    {"test_concat_every_dtype", test_concat_every_dtype},
    {"test_pool_every_dtype", test_pool_every_dtype},
    {"test_global_average_every_dtype", test_global_average_every_dtype},
    {"test_batch_norm_every_dtype", test_batch_norm_every_dtype},
    {"test_batch_norm_of_one_row", test_batch_norm_of_one_row},
    {"test_batch_norm_gradient_every_dtype", test_batch_norm_gradient_every_dtype},
    {"test_gates_agree", test_gates_agree},
    {"test_batch_norm_fold", test_batch_norm_fold},
    {"test_dtypes_may_differ", test_dtypes_may_differ},
    {"test_fused_operands_are_checked", test_fused_operands_are_checked},
};

int main(int argc, char **argv)
{
    int code = ren_test_main(argc, argv, "gpu/test_cuda_fused", cases, REN_TEST_COUNT(cases), 240);
    test_tables_close();
    return code;
}
