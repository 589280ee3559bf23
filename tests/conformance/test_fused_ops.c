/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_fused_ops.c - fused operations against their parts.
 *
 * Purpose   For every form that caps.fusions announces: the same random operands through the fused
 *           operation and through the operations that it stands for, in f32, f16 and bf16. A part
 *           left out, an operand of the wrong index, a gate that looks at the wrong side or a sum
 *           over the wrong axis makes a case fail. Outputs, workspace and unused memory are NaN
 *           before each launch. That the parts are right is golden/'s business.
 */
#include "../golden/ops_rig.h"
#include "../support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TENSORS 64u

static rig r;
static const ren_dtype dtypes[] = {REN_F32, REN_F16, REN_BF16};

/* ------------------------------------------------------------------ tensors */

/* What the tensor holds, and the same rounded to its dtype as the device has it. */
typedef struct tensor {
    ren__tensor_desc desc;
    float *values;
    void *stored;
} tensor;

static tensor *all[MOST_TENSORS];
static uint32_t all_count;

static void *take(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        abort();
    }
    return p;
}

static void drop_tensors(void)
{
    while (all_count) {
        tensor *t = all[--all_count];
        free(t->values);
        if (t->stored != t->values) {
            free(t->stored);
        }
        free(t);
    }
}

static tensor *new_tensor(ren_dtype dtype, uint32_t rank, const int64_t *dims)
{
    tensor *t = take(sizeof *t);
    if (all_count == MOST_TENSORS) {
        abort();
    }
    all[all_count++] = t;
    t->desc.dtype = dtype;
    t->desc.rank = rank;
    memcpy(t->desc.dims, dims, rank * sizeof dims[0]);
    t->values = take((size_t)ren__tensor_elements(&t->desc) * sizeof(float));
    t->stored = dtype == REN_F32 ? t->values : take((size_t)ren__tensor_bytes(&t->desc));
    return t;
}

/* From `from` into `to`, by the device's own CAST. */
static void convert(const ren__tensor_desc *shape, ren_dtype from, const void *in, ren_dtype to,
                    void *out)
{
    ren__op_desc d = ops_desc(REN__OP_CAST);
    op_io io[REN__OPERANDS] = {{in, NULL, 0}, {NULL, out, 0}};
    d.operand[0] = *shape;
    d.operand[0].dtype = from;
    d.operand[1] = *shape;
    d.operand[1].dtype = to;
    RIG_OK(ops_run(&r, &d, io, NULL));
}

static tensor *noise(ren_dtype dtype, uint32_t rank, const int64_t *dims, float scale, float shift)
{
    static unsigned long long seed = 11;
    tensor *t = new_tensor(dtype, rank, dims);
    for (uint64_t i = 0; i < ren__tensor_elements(&t->desc); i++) {
        double uniform = (double)(ren_test_random(&seed) >> 40) / 8388608.0 - 1.0;
        t->values[i] = (float)uniform * scale + shift;
    }
    if (dtype != REN_F32) {
        convert(&t->desc, REN_F32, t->values, dtype, t->stored);
        convert(&t->desc, dtype, t->stored, REN_F32, t->values);
    }
    return t;
}

/* A tensor to be written. */
static tensor *like(const tensor *t)
{
    return new_tensor(t->desc.dtype, t->desc.rank, t->desc.dims);
}

/* ------------------------------------------------------------------ running */

static void run(ren__op_desc d, tensor *const at[REN__OPERANDS], uint32_t writes)
{
    op_io io[REN__OPERANDS];
    memset(io, 0, sizeof io);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (at[i]) {
            d.operand[i] = at[i]->desc;
            io[i].in = writes >> i & 1u ? NULL : at[i]->stored;
            io[i].out = writes >> i & 1u ? at[i]->stored : NULL;
        }
    }
    ren_status status = ops_run(&r, &d, io, NULL);
    if (status != REN_OK) {
        printf("    kind %d, dtype %d: op_create gave %d\n", (int)d.kind,
               (int)(at[0] ? at[0]->desc.dtype : REN_F32), (int)status);
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    for (uint32_t i = 0; i < REN__OPERANDS; i++) {
        if (at[i] && writes >> i & 1u && at[i]->desc.dtype != REN_F32) {
            convert(&at[i]->desc, at[i]->desc.dtype, at[i]->stored, REN_F32, at[i]->values);
        }
    }
}

/* Intermediate results of the parts are rounded to 16 bits, those of the whole are not. */
static double tolerance_of(ren_dtype dtype)
{
    return dtype == REN_F32 ? ops_tolerance(&r) : dtype == REN_F16 ? 3e-3 : 2e-2;
}

static void check(const char *what, ren_dtype dtype, const tensor *whole, const tensor *parts)
{
    uint64_t n = ren__tensor_elements(&whole->desc);
    double apart = 0.0;
    double size = 0.0;
    for (uint64_t i = 0; i < n; i++) {
        double d = (double)whole->values[i] - (double)parts->values[i];
        apart += d * d;
        size += (double)parts->values[i] * (double)parts->values[i];
    }
    double distance = sqrt(apart / (size > 0.0 ? size : 1.0));
    if (!(distance <= tolerance_of(dtype))) {
        printf("    %s, dtype %d: relative distance %.3g\n", what, (int)dtype, distance);
    }
    CU_ASSERT(distance <= tolerance_of(dtype));
}

/* 1 if the device announces it; else the case is left out. */
static int announces(uint32_t fusion)
{
    if (!(r.caps.fusions & fusion)) {
        ren_test_skip("the device does not announce this fusion");
        return 0;
    }
    return 1;
}

static ren__op_desc fused_with(ren__op_kind kind, ren__activation act)
{
    ren__op_desc d = ops_desc(kind);
    d.activation = act;
    d.fused_activation = 1;
    return d;
}

static tensor *act_forward(ren__activation act, tensor *x)
{
    ren__op_desc d = ops_desc(REN__OP_ACT_FWD);
    tensor *y = like(x);
    d.activation = act;
    d.alpha = 0.1f;
    run(d, (tensor *[REN__OPERANDS]){x, y}, 1u << 1);
    return y;
}

/* ------------------------------------------------------------------ linear */

static void check_linear(ren__activation act)
{
    static const int64_t sizes[][3] = {{128, 96, 64}, {4, 20, 10}, {37, 33, 17}, {1, 8, 3}};
    for (size_t s = 0; s < REN_TEST_COUNT(sizes); s++) {
        for (size_t k = 0; k < REN_TEST_COUNT(dtypes); k++) {
            for (int with_bias = 0; with_bias < 2; with_bias++) {
                const int64_t in[2] = {sizes[s][0], sizes[s][1]};
                const int64_t wt[2] = {sizes[s][2], sizes[s][1]};
                const int64_t out[2] = {sizes[s][0], sizes[s][2]};
                tensor *x = noise(dtypes[k], 2, in, 1.0f, 0.0f);
                tensor *w = noise(dtypes[k], 2, wt, 0.3f, 0.0f);
                tensor *b = with_bias ? noise(dtypes[k], 1, wt, 0.5f, 0.1f) : NULL;
                tensor *pre = new_tensor(dtypes[k], 2, out);
                tensor *y = like(pre);
                run(ops_desc(REN__OP_LINEAR_FWD), (tensor *[REN__OPERANDS]){x, w, b, pre}, 1u << 3);
                run(fused_with(REN__OP_LINEAR_FWD, act), (tensor *[REN__OPERANDS]){x, w, b, y},
                    1u << 3);
                check("linear", dtypes[k], y, act_forward(act, pre));
                drop_tensors();
            }
        }
    }
}

static void test_linear_with_relu(void)
{
    if (announces(REN__FUSE_LINEAR_ACT)) {
        check_linear(REN__ACT_RELU);
    }
}

static void test_linear_with_gelu(void)
{
    if (announces(REN__FUSE_GELU)) {
        check_linear(REN__ACT_GELU_TANH);
    }
}

static void test_weight_gradient_with_bias(void)
{
    static const int64_t sizes[][3] = {{128, 96, 64}, {4, 20, 10}, {37, 33, 17}, {1000, 8, 3}};
    if (!announces(REN__FUSE_WEIGHT_BIAS)) {
        return;
    }
    for (size_t s = 0; s < REN_TEST_COUNT(sizes); s++) {
        for (size_t k = 0; k < REN_TEST_COUNT(dtypes); k++) {
            const int64_t in[2] = {sizes[s][0], sizes[s][1]};
            const int64_t wt[2] = {sizes[s][2], sizes[s][1]};
            const int64_t out[2] = {sizes[s][0], sizes[s][2]};
            tensor *dy = noise(dtypes[k], 2, out, 1.0f, 0.2f);
            tensor *x = noise(dtypes[k], 2, in, 1.0f, 0.0f);
            tensor *dw = new_tensor(REN_F32, 2, wt), *db = new_tensor(REN_F32, 1, wt);
            tensor *dw2 = like(dw), *db2 = like(db);
            run(ops_desc(REN__OP_LINEAR_BWD_WEIGHT), (tensor *[REN__OPERANDS]){dy, x, dw, db},
                1u << 2 | 1u << 3);
            run(ops_desc(REN__OP_LINEAR_BWD_WEIGHT), (tensor *[REN__OPERANDS]){dy, x, dw2},
                1u << 2);
            run(ops_desc(REN__OP_BIAS_GRAD), (tensor *[REN__OPERANDS]){dy, db2}, 1u << 1);
            check("weight gradient", REN_F32, dw, dw2);
            check("bias gradient", REN_F32, db, db2);
            drop_tensors();
        }
    }
}

/* ------------------------------------------------------------------ convolution */

static void test_conv_with_relu(void)
{
    static const struct {
        int64_t x[4], w[4], y[4];
        uint32_t stride, padding, groups;
    } shapes[] = {
        {{8, 14, 14, 16}, {32, 16, 3, 3}, {8, 14, 14, 32}, 1, 1, 1},
        {{4, 9, 7, 5}, {6, 5, 3, 3}, {4, 5, 4, 6}, 2, 1, 1},
        {{2, 8, 8, 8}, {12, 4, 1, 1}, {2, 8, 8, 12}, 1, 0, 2},
        {{3, 6, 6, 1}, {4, 1, 5, 5}, {3, 6, 6, 4}, 1, 2, 1},
    };
    if (!announces(REN__FUSE_CONV_ACT)) {
        return;
    }
    for (size_t s = 0; s < REN_TEST_COUNT(shapes); s++) {
        for (size_t k = 0; k < REN_TEST_COUNT(dtypes); k++) {
            for (int with_bias = 0; with_bias < 2; with_bias++) {
                ren__op_desc plain = ops_desc(REN__OP_CONV_FWD);
                for (uint32_t i = 0; i < 2; i++) {
                    plain.kernel[i] = (uint32_t)shapes[s].w[2 + i];
                    plain.stride[i] = shapes[s].stride;
                    plain.padding[i] = shapes[s].padding;
                }
                plain.groups = shapes[s].groups;
                ren__op_desc whole = plain;
                whole.fused_activation = 1;
                whole.activation = REN__ACT_RELU;
                tensor *x = noise(dtypes[k], 4, shapes[s].x, 1.0f, 0.0f);
                tensor *w = noise(dtypes[k], 4, shapes[s].w, 0.3f, 0.0f);
                tensor *b = with_bias ? noise(dtypes[k], 1, shapes[s].w, 0.5f, 0.1f) : NULL;
                tensor *pre = new_tensor(dtypes[k], 4, shapes[s].y);
                tensor *y = like(pre);
                run(plain, (tensor *[REN__OPERANDS]){x, w, b, pre}, 1u << 3);
                run(whole, (tensor *[REN__OPERANDS]){x, w, b, y}, 1u << 3);
                check("convolution", dtypes[k], y, act_forward(REN__ACT_RELU, pre));
                drop_tensors();
            }
        }
    }
}

/* ------------------------------------------------------------------ activations */

static void check_gate(ren__activation act, ren_dtype dtype, uint32_t rank, const int64_t *dims)
{
    ren__op_desc d = ops_desc(REN__OP_ACT_BWD);
    d.activation = act;
    d.alpha = 0.1f;
    tensor *dy = noise(dtype, rank, dims, 1.0f, 0.2f);
    tensor *x = noise(dtype, rank, dims, 2.0f, 0.1f);
    tensor *y = act_forward(act, x);
    tensor *dx = like(x), *dx2 = like(x);
    tensor *db = new_tensor(REN_F32, 1, &dims[rank - 1]), *db2 = like(db);
    if (act == REN__ACT_RELU) {
        x = NULL; /* it reads y only */
    }
    run(d, (tensor *[REN__OPERANDS]){dy, x, y, dx, db}, 1u << 3 | 1u << 4);
    run(d, (tensor *[REN__OPERANDS]){dy, x, y, dx2}, 1u << 3);
    run(ops_desc(REN__OP_BIAS_GRAD), (tensor *[REN__OPERANDS]){dx2, db2}, 1u << 1);
    check("gate", dtype, dx, dx2);
    check("bias gradient of a gate", dtype, db, db2);
    drop_tensors();
}

static void test_gate_with_bias(void)
{
    static const int64_t shapes[][4] = {
        {16, 7, 7, 32}, {3, 5, 5, 3}, {200, 64, 0, 0}, {1, 5, 0, 0}, {2, 3, 3, 513}};
    if (!announces(REN__FUSE_ACT_BIAS)) {
        return;
    }
    for (size_t s = 0; s < REN_TEST_COUNT(shapes); s++) {
        for (size_t k = 0; k < REN_TEST_COUNT(dtypes); k++) {
            for (int act = REN__ACT_RELU; act <= REN__ACT_GELU_TANH; act++) {
                check_gate((ren__activation)act, dtypes[k], shapes[s][2] ? 4 : 2, shapes[s]);
            }
        }
    }
}

/* ------------------------------------------------------------------ batch norm */

enum {
    WITH_SUM = 1,
    WITH_RELU = 2
};

typedef struct norm {
    ren__op_desc desc; /* without a kind */
    int forms;
    ren_dtype dtype;
    tensor *x, *weight, *bias, *rmean, *rvar, *other, *dy;
    tensor *plain, *y, *mean, *rstd; /* of the parts: before and behind sum and ReLU */
} norm;

static ren__op_desc norm_desc(const norm *n, ren__op_kind kind, int forms)
{
    ren__op_desc d = n->desc;
    d.kind = kind;
    d.activation = REN__ACT_RELU;
    d.fused_activation = forms & WITH_RELU ? 1 : 0;
    return d;
}

/* The outputs of one forward pass: y, mean, rstd, running mean and variance. */
static void norm_train(const norm *n, int forms, tensor *out[5])
{
    out[0] = like(n->x);
    for (int i = 1; i < 5; i++) {
        out[i] = like(n->weight);
    }
    run(norm_desc(n, REN__OP_BATCH_NORM_TRAIN, forms),
        (tensor *[REN__OPERANDS]){n->x, n->weight, n->bias, n->rmean, n->rvar, out[0], out[1],
                                  out[2], out[3], out[4], forms & WITH_SUM ? n->other : NULL},
        0x1fu << 5);
}

static tensor *norm_eval(const norm *n, int forms)
{
    tensor *y = like(n->x);
    run(norm_desc(n, REN__OP_BATCH_NORM_EVAL, forms),
        (tensor *[REN__OPERANDS]){n->x, n->weight, n->bias, n->rmean, n->rvar, y, NULL, NULL, NULL,
                                  NULL, forms & WITH_SUM ? n->other : NULL},
        1u << 5);
    return y;
}

/* Sum and ReLU as tasks of their own. */
static tensor *norm_rest(const norm *n, tensor *y)
{
    if (n->forms & WITH_SUM) {
        tensor *sum = like(y);
        run(ops_desc(REN__OP_ADD), (tensor *[REN__OPERANDS]){y, n->other, sum}, 1u << 2);
        y = sum;
    }
    return n->forms & WITH_RELU ? act_forward(REN__ACT_RELU, y) : y;
}

static void norm_begin(norm *n, int forms, ren_dtype dtype, uint32_t rank, const int64_t *dims)
{
    tensor *out[5];
    memset(n, 0, sizeof *n);
    n->desc = ops_desc(REN__OP_NONE);
    n->desc.eps = 1e-5f;
    n->desc.alpha = 0.1f;
    n->forms = forms;
    n->dtype = dtype;
    n->x = noise(dtype, rank, dims, 1.5f, 0.7f);
    n->other = noise(dtype, rank, dims, 1.0f, -0.2f);
    n->dy = noise(dtype, rank, dims, 1.0f, 0.1f);
    n->weight = noise(REN_F32, 1, &dims[rank - 1], 1.0f, 0.2f); /* some are negative */
    n->bias = noise(REN_F32, 1, &dims[rank - 1], 0.5f, 0.1f);
    n->rmean = noise(REN_F32, 1, &dims[rank - 1], 0.5f, 0.0f);
    n->rvar = noise(REN_F32, 1, &dims[rank - 1], 0.5f, 1.0f);
    norm_train(n, 0, out);
    n->plain = out[0];
    n->mean = out[1];
    n->rstd = out[2];
    n->y = norm_rest(n, n->plain);
}

static void check_norm_forward(int forms, ren_dtype dtype, uint32_t rank, const int64_t *dims)
{
    norm n;
    tensor *whole[5], *parts[5];
    norm_begin(&n, forms, dtype, rank, dims);
    norm_train(&n, forms, whole);
    norm_train(&n, 0, parts);
    check("norm", dtype, whole[0], n.y);
    for (int i = 1; i < 5; i++) {
        check("what the norm keeps", REN_F32, whole[i], parts[i]);
    }
    check("evaluated norm", dtype, norm_eval(&n, forms), norm_rest(&n, norm_eval(&n, 0)));
    drop_tensors();
}

/* `keeps` = 0: nobody wants the gradient of what was added. `more`: the gradient comes in two. */
static void check_norm_backward(int forms, ren_dtype dtype, uint32_t rank, const int64_t *dims,
                                int keeps, int more)
{
    norm n;
    norm_begin(&n, forms, dtype, rank, dims);
    tensor *second = more ? noise(dtype, rank, dims, 0.7f, -0.3f) : NULL;
    tensor *dy = n.dy;
    if (more) {
        dy = like(n.dy);
        run(ops_desc(REN__OP_ADD), (tensor *[REN__OPERANDS]){n.dy, second, dy}, 1u << 2);
    }
    tensor *dx[2] = {like(n.x), like(n.x)};
    tensor *dw[2] = {like(n.weight), like(n.weight)}, *db[2] = {like(n.weight), like(n.weight)};
    tensor *dother = forms & WITH_SUM && keeps ? like(n.x) : NULL;
    tensor *counts = like(n.x);
    ren__op_desc relu = ops_desc(REN__OP_ACT_BWD);
    relu.activation = REN__ACT_RELU;
    run(relu, (tensor *[REN__OPERANDS]){dy, NULL, n.y, counts}, 1u << 3);
    run(norm_desc(&n, REN__OP_BATCH_NORM_BWD, 0),
        (tensor *[REN__OPERANDS]){counts, n.x, n.weight, n.mean, n.rstd, dx[1], dw[1], db[1]},
        7u << 5);
    run(norm_desc(&n, REN__OP_BATCH_NORM_BWD, WITH_RELU),
        (tensor *[REN__OPERANDS]){n.dy, n.x, n.weight, n.mean, n.rstd, dx[0], dw[0], db[0],
                                  forms & WITH_SUM ? n.y : NULL, dother,
                                  forms & WITH_SUM ? NULL : n.bias, second},
        7u << 5 | (dother ? 1u << 9 : 0u));
    check("gradient of a norm's input", dtype, dx[0], dx[1]);
    check("gradient of a norm's weight", dtype, dw[0], dw[1]);
    check("gradient of a norm's bias", dtype, db[0], db[1]);
    if (dother) {
        check("gradient of what was added", dtype, dother, counts);
    }
    drop_tensors();
}

/* Of few rows too, which a device may treat apart. */
static const int64_t norm_shapes[][4] = {
    {8, 14, 14, 32}, {4, 5, 5, 5}, {300, 64, 0, 0}, {16, 10, 0, 0}, {8, 3, 3, 129}};

static void test_norm_with_relu(void)
{
    if (!announces(REN__FUSE_NORM_ACT)) {
        return;
    }
    for (size_t s = 0; s < REN_TEST_COUNT(norm_shapes); s++) {
        for (size_t k = 0; k < REN_TEST_COUNT(dtypes); k++) {
            uint32_t rank = norm_shapes[s][2] ? 4 : 2;
            check_norm_forward(WITH_RELU, dtypes[k], rank, norm_shapes[s]);
            check_norm_backward(WITH_RELU, dtypes[k], rank, norm_shapes[s], 0, 0);
        }
    }
}

static void test_norm_with_sum(void)
{
    if (!announces(REN__FUSE_NORM_ADD)) {
        return;
    }
    for (size_t s = 0; s < REN_TEST_COUNT(norm_shapes); s++) {
        for (size_t k = 0; k < REN_TEST_COUNT(dtypes); k++) {
            uint32_t rank = norm_shapes[s][2] ? 4 : 2;
            check_norm_forward(WITH_SUM, dtypes[k], rank, norm_shapes[s]);
            check_norm_forward(WITH_SUM | WITH_RELU, dtypes[k], rank, norm_shapes[s]);
            check_norm_backward(WITH_SUM | WITH_RELU, dtypes[k], rank, norm_shapes[s], 0, 0);
            check_norm_backward(WITH_SUM | WITH_RELU, dtypes[k], rank, norm_shapes[s], 1, 0);
        }
    }
}

/* The gate is open for both gradients or for none. */
static void test_norm_with_two_gradients(void)
{
    if (!announces(REN__FUSE_NORM_GRADS)) {
        return;
    }
    for (size_t s = 0; s < REN_TEST_COUNT(norm_shapes); s++) {
        for (size_t k = 0; k < REN_TEST_COUNT(dtypes); k++) {
            uint32_t rank = norm_shapes[s][2] ? 4 : 2;
            check_norm_backward(WITH_RELU, dtypes[k], rank, norm_shapes[s], 0, 1);
            check_norm_backward(WITH_SUM | WITH_RELU, dtypes[k], rank, norm_shapes[s], 0, 1);
            check_norm_backward(WITH_SUM | WITH_RELU, dtypes[k], rank, norm_shapes[s], 1, 1);
        }
    }
}

/* A convolution with folded weights does what it and the norm behind it do. */
static void test_norm_folds(void)
{
    const int64_t in[4] = {2, 7, 7, 6}, wt[4] = {8, 3, 3, 3}, out[4] = {2, 7, 7, 8};
    for (size_t k = 0; k < REN_TEST_COUNT(dtypes); k++) {
        for (int with_bias = 0; with_bias < 2; with_bias++) {
            ren__op_desc conv = ops_desc(REN__OP_CONV_FWD);
            ren__op_desc fold = ops_desc(REN__OP_BATCH_NORM_FOLD);
            for (uint32_t i = 0; i < 2; i++) {
                conv.kernel[i] = 3;
                conv.padding[i] = 1;
            }
            conv.groups = 2;
            fold.groups = 2;
            fold.eps = 1e-5f;
            norm n;
            memset(&n, 0, sizeof n);
            n.desc = fold;
            n.weight = noise(REN_F32, 1, wt, 1.0f, 0.2f);
            n.bias = noise(REN_F32, 1, wt, 0.5f, 0.1f);
            n.rmean = noise(REN_F32, 1, wt, 0.5f, 0.0f);
            n.rvar = noise(REN_F32, 1, wt, 0.5f, 1.0f);
            tensor *x = noise(dtypes[k], 4, in, 1.0f, 0.0f);
            tensor *w = noise(dtypes[k], 4, wt, 0.5f, 0.0f);
            tensor *b = with_bias ? noise(dtypes[k], 1, wt, 0.5f, 0.0f) : NULL;
            tensor *w2 = like(w), *b2 = new_tensor(dtypes[k], 1, wt);
            n.x = new_tensor(dtypes[k], 4, out);
            tensor *y = like(n.x);
            run(conv, (tensor *[REN__OPERANDS]){x, w, b, n.x}, 1u << 3);
            run(fold, (tensor *[REN__OPERANDS]){w, n.weight, n.bias, n.rmean, n.rvar, b, w2, b2},
                3u << 6);
            run(conv, (tensor *[REN__OPERANDS]){x, w2, b2, y}, 1u << 3);
            check("folded convolution", dtypes[k], y, norm_eval(&n, 0));
            drop_tensors();
        }
    }
}

/* ------------------------------------------------------------------ losses */

/* The control block and the state, as operands of bytes. */
static tensor *block(const void *bytes, size_t count)
{
    const int64_t dims[1] = {(int64_t)count};
    tensor *t = new_tensor(REN_F32, 1, (const int64_t[]){(int64_t)(count / sizeof(float))});
    memcpy(t->values, bytes, count);
    t->desc.dtype = REN_U8;
    t->desc.dims[0] = dims[0];
    return t;
}

/* The same in f32, with the values as they were rounded. */
static tensor *widened(const tensor *t)
{
    tensor *full = new_tensor(REN_F32, t->desc.rank, t->desc.dims);
    memcpy(full->values, t->values, (size_t)ren__tensor_elements(&t->desc) * sizeof(float));
    return full;
}

static void check_loss(ren_dtype dtype, ren__op_kind forward, ren_dtype target_dtype)
{
    const int64_t dims[2] = {37, 10}, one[1] = {1};
    const ren__control control = ops_control();
    ren__state state;
    memset(&state, 0, sizeof state);
    state.loss_scale = 256.0f;
    uint32_t is_entropy = forward == REN__OP_XENT_FWD;
    ren__op_desc d = ops_desc(forward);
    d.alpha = is_entropy ? 0.1f : 0.7f;
    tensor *x = noise(dtype, 2, dims, 3.0f, 0.0f);
    tensor *target = noise(target_dtype, 2, dims, 1.0f, 0.0f);
    tensor *control_block = block(&control, sizeof control);
    tensor *state_block = block(&state, sizeof state);
    int32_t labels[37];
    for (int32_t i = 0; i < 37; i++) {
        labels[i] = i * 7 % 10;
    }
    if (is_entropy) {
        target = new_tensor(REN_F32, 1, dims);
        memcpy(target->values, labels, sizeof labels);
        target->desc.dtype = REN_I32;
    }
    tensor *loss[2], *prob[2], *dx[2];
    for (int full = 0; full < 2; full++) {
        tensor *from = full ? widened(x) : x;
        tensor *goal = full && !is_entropy ? widened(target) : target;
        loss[full] = new_tensor(REN_F32, 1, one);
        prob[full] = is_entropy ? new_tensor(REN_F32, 2, dims) : NULL;
        dx[full] = like(from);
        d.kind = forward;
        d.dynamic_scale = 0;
        run(d, (tensor *[REN__OPERANDS]){from, goal, loss[full], prob[full]},
            is_entropy ? 3u << 2 : 1u << 2);
        d.kind = (ren__op_kind)(forward + 1);
        d.dynamic_scale = 1;
        run(d,
            (tensor *[REN__OPERANDS]){is_entropy ? prob[full] : from, goal, control_block, dx[full],
                                      state_block},
            1u << 3);
    }
    check("loss of 16-bit values", REN_F32, loss[0], loss[1]);
    check("gradient of a loss in 16 bits", dtype, dx[0], dx[1]);
    if (is_entropy) {
        check("probabilities", REN_F32, prob[0], prob[1]);
    }
    drop_tensors();
}

static void test_losses_of_halves(void)
{
    if (!announces(REN__FUSE_HALF_LOSS)) {
        return;
    }
    for (size_t k = 1; k < REN_TEST_COUNT(dtypes); k++) {
        check_loss(dtypes[k], REN__OP_XENT_FWD, REN_F32);
        check_loss(dtypes[k], REN__OP_MSE_FWD, REN_F32); /* a target is an input, and stays f32 */
        check_loss(dtypes[k], REN__OP_MSE_FWD, dtypes[k]);
        check_loss(dtypes[k], REN__OP_HUBER_FWD, REN_F32);
        check_loss(dtypes[k], REN__OP_HUBER_FWD, dtypes[k]);
    }
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_linear_with_relu", test_linear_with_relu},
        {"test_linear_with_gelu", test_linear_with_gelu},
        {"test_weight_gradient_with_bias", test_weight_gradient_with_bias},
        {"test_conv_with_relu", test_conv_with_relu},
        {"test_gate_with_bias", test_gate_with_bias},
        {"test_norm_with_relu", test_norm_with_relu},
        {"test_norm_with_sum", test_norm_with_sum},
        {"test_norm_with_two_gradients", test_norm_with_two_gradients},
        {"test_norm_folds", test_norm_folds},
        {"test_losses_of_halves", test_losses_of_halves},
    };
    rig_open(&r, rig_table(), 0, 0);
    int status =
        ren_test_main(argc, argv, "conformance/test_fused_ops", cases, REN_TEST_COUNT(cases), 120);
    rig_close(&r);
    return status;
}
