/* SPDX-License-Identifier: MIT */
/* tests/unit/test_model.c - the builder: what it accepts, what it says otherwise, first values.
 *
 * Every refusal is checked for its status, for a text that names the tensor, and for leaving the
 * model as it was; values are compared bit for bit.
 */
#include "../support/runtime.h"
#include "../support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ren_runtime *rt;

static ren_model *new_model(uint64_t seed)
{
    ren_model_config config = ren_model_config_default();
    ren_model *m = NULL;
    config.seed = seed;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, &config, &m, NULL), REN_OK);
    return m;
}

static ren_tensor input2(ren_model *m, const char *name, int64_t batch, int64_t features)
{
    int64_t dims[2] = {batch, features};
    return ren_input(m, name, REN_F32, dims, 2);
}

static ren_tensor input4(ren_model *m, const char *name, int64_t n, int64_t h, int64_t w, int64_t c)
{
    int64_t dims[4] = {n, h, w, c};
    return ren_input(m, name, REN_F32, dims, 4);
}

static ren_tensor labels(ren_model *m, const char *name, int64_t batch)
{
    return ren_input(m, name, REN_I32, &batch, 1);
}

static ren_tensor linear(ren_model *m, const char *name, ren_tensor x, uint32_t units)
{
    ren_linear_options o = ren_linear_options_default();
    o.units = units;
    return ren_linear(m, name, x, &o);
}

static ren_conv2d_options conv_options(uint32_t filters, uint32_t kernel)
{
    ren_conv2d_options o = ren_conv2d_options_default();
    o.filters = filters;
    o.kernel[0] = o.kernel[1] = kernel;
    return o;
}

/* The call before it made `t`, and must have failed with `status` and a text that holds `word`. The
 * model is used up. */
static void expect_failure(ren_model *m, ren_tensor t, ren_status status, const char *word)
{
    ren_error err;
    memset(&err, 0, sizeof err);
    CU_ASSERT_EQUAL(t.index, 0);
    ren_status got = ren_model_status(m, &err);
    CU_ASSERT_EQUAL(got, status);
    CU_ASSERT_EQUAL(err.status, status);
    if (got != status || !strstr(err.text, word)) {
        (void)fprintf(stderr, "got %s: \"%s\", wanted %s with \"%s\"\n", ren_status_name(got),
                      err.text, ren_status_name(status), word);
    }
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
    ren_model_destroy(m);
}

/* ------------------------------------------------------------------ names and handles */

/* Names are 1..63 characters, without control characters, each used once. */
static void test_builder_names(void)
{
    char longest[65];
    memset(longest, 'a', sizeof longest);
    longest[64] = '\0';
    ren_model *m = new_model(1);
    expect_failure(m, input2(m, longest, 2, 3), REN_ERR_NAME, "63");
    m = new_model(1);
    expect_failure(m, input2(m, "", 2, 3), REN_ERR_NAME, "63");
    m = new_model(1);
    expect_failure(m, input2(m, NULL, 2, 3), REN_ERR_NAME, "63");
    m = new_model(1);
    expect_failure(m, input2(m, "a\nb", 2, 3), REN_ERR_NAME, "control");
    m = new_model(1);
    (void)input2(m, "x", 2, 3);
    expect_failure(m, input2(m, "x", 2, 3), REN_ERR_NAME, "\"x\" is taken");
    m = new_model(1);
    longest[63] = '\0';
    ren_tensor x = input2(m, longest, 2, 3);
    CU_ASSERT_NOT_EQUAL(x.index, 0);
    CU_ASSERT_NOT_EQUAL(linear(m, "l", x, 4).index, 0);
    CU_ASSERT_EQUAL(ren_model_status(m, NULL), REN_OK);
    ren_model_destroy(m);
}

/* Handles: zero, made up, and another model's. */
static void test_builder_foreign_tensors(void)
{
    ren_tensor zero = {0};
    ren_tensor made_up = {12345};
    ren_model *m = new_model(1);
    expect_failure(m, ren_relu(m, "r", zero), REN_ERR_INVALID_ARGUMENT, "r: input 0");
    m = new_model(1);
    expect_failure(m, ren_relu(m, "r", made_up), REN_ERR_INVALID_ARGUMENT, "no tensor");
    ren_model *other = new_model(1);
    ren_tensor theirs = input2(other, "x", 2, 3);
    m = new_model(1);
    (void)input2(m, "x", 2, 3);
    expect_failure(m, ren_relu(m, "r", theirs), REN_ERR_INVALID_ARGUMENT, "no tensor");
    ren_model_destroy(other);
}

/* The first error stays, later calls do nothing, and no call crashes on a broken model. */
static void test_builder_error_sticks(void)
{
    ren_model *m = new_model(1);
    ren_tensor x = input2(m, "x", 2, 3);
    (void)linear(m, "bad", x, 0);
    CU_ASSERT_EQUAL(linear(m, "good", x, 4).index, 0);
    CU_ASSERT_EQUAL(input2(m, "x", 2, 3).index, 0);
    CU_ASSERT_EQUAL(ren_param_count(m), 0);
    float value;
    CU_ASSERT_EQUAL(ren_param_get(m, "good.weight", &value, 4), REN_ERR_INVALID_ARGUMENT);
    ren_trainer *t = NULL;
    ren_error err;
    CU_ASSERT_EQUAL(ren_trainer_create(m, x, NULL, &t, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_PTR_NULL(t);
    expect_failure(m, (ren_tensor){0}, REN_ERR_INVALID_ARGUMENT, "bad: units");
}

/* NULL arguments and options of another version. */
static void test_builder_bad_options(void)
{
    ren_tensor none = {0};
    ren_linear_options o = ren_linear_options_default();
    CU_ASSERT_EQUAL(ren_relu(NULL, "r", none).index, 0);
    CU_ASSERT_EQUAL(ren_linear(NULL, "l", none, &o).index, 0);
    ren_model *m = new_model(1);
    ren_tensor x = input2(m, "x", 2, 3);
    expect_failure(m, ren_linear(m, "l", x, NULL), REN_ERR_INVALID_ARGUMENT, "l: options");
    m = new_model(1);
    x = input2(m, "x", 2, 3);
    o.units = 4;
    o.struct_size = 3;
    expect_failure(m, ren_linear(m, "l", x, &o), REN_ERR_BAD_STRUCT, "struct_size");
    m = new_model(1);
    expect_failure(m, ren_input(m, "x", REN_F32, NULL, 2), REN_ERR_INVALID_ARGUMENT, "dims");
    m = new_model(1);
    int64_t dims[4] = {1, 1, 1, 1};
    expect_failure(m, ren_input(m, "x", REN_F32, dims, 5), REN_ERR_INVALID_ARGUMENT, "rank 5");
    m = new_model(1);
    expect_failure(m, ren_input(m, "x", REN_F32, dims, 3), REN_ERR_SHAPE, "f32 [1, 1, 1]");
    m = new_model(1);
    expect_failure(m, ren_input(m, "x", REN_U8, dims, 2), REN_ERR_SHAPE, "u8 [1, 1]");
    m = new_model(1);
    expect_failure(m, ren_concat(m, "c", NULL, 2), REN_ERR_INVALID_ARGUMENT, "xs");
    CU_ASSERT_EQUAL(ren_model_status(NULL, NULL), REN_ERR_INVALID_ARGUMENT);
    ren_model_destroy(NULL);
}

/* ------------------------------------------------------------------ shapes */

/* Dimensions below 1, beyond 32 bits, and products that overflow 64 bits. */
static void test_builder_sizes(void)
{
    ren_model *m = new_model(1);
    expect_failure(m, input2(m, "x", 0, 3), REN_ERR_SHAPE, "x: dimension 0 is 0");
    m = new_model(1);
    expect_failure(m, input2(m, "x", 2, -1), REN_ERR_SHAPE, "x: dimension 1 is -1");
    m = new_model(1);
    expect_failure(m, input2(m, "x", 1, INT64_MAX), REN_ERR_SHAPE, "dimension 1");
    m = new_model(1);
    expect_failure(m, input4(m, "x", INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX), REN_ERR_SHAPE,
                   "2^40");
    m = new_model(1);
    ren_tensor x = input2(m, "x", 1, 1 << 30);
    expect_failure(m, linear(m, "wide", x, UINT32_MAX), REN_ERR_SHAPE, "wide");
    m = new_model(1);
    x = input2(m, "x", 1, 1 << 30);
    expect_failure(m, linear(m, "wide", x, 1u << 30), REN_ERR_SHAPE, "wide.weight");
}

static void test_conv2d_shapes(void)
{
    ren_model *m = new_model(1);
    ren_tensor x = input4(m, "img", 2, 8, 6, 3);
    ren_conv2d_options o = conv_options(4, 9);
    expect_failure(m, ren_conv2d(m, "c", x, &o), REN_ERR_SHAPE, "img");
    m = new_model(1);
    x = input4(m, "img", 2, 8, 8, 4);
    o = conv_options(4, 3);
    o.groups = 3;
    expect_failure(m, ren_conv2d(m, "c", x, &o), REN_ERR_SHAPE, "groups");
    m = new_model(1);
    x = input4(m, "img", 2, 8, 8, 4);
    o = conv_options(6, 3);
    o.groups = 4;
    expect_failure(m, ren_conv2d(m, "c", x, &o), REN_ERR_SHAPE, "6 filters");
    m = new_model(1);
    x = input4(m, "img", 2, 8, 8, 4);
    o = conv_options(0, 3);
    expect_failure(m, ren_conv2d(m, "c", x, &o), REN_ERR_INVALID_ARGUMENT, "filters");
    m = new_model(1);
    x = input4(m, "img", 2, 8, 8, 4);
    o = conv_options(4, 0);
    expect_failure(m, ren_conv2d(m, "c", x, &o), REN_ERR_INVALID_ARGUMENT, "kernel");
    m = new_model(1);
    x = input4(m, "img", 2, 8, 8, 4);
    o = conv_options(4, 3);
    o.dilation[0] = UINT32_MAX;
    expect_failure(m, ren_conv2d(m, "c", x, &o), REN_ERR_INVALID_ARGUMENT, "dilation");
    m = new_model(1);
    x = input2(m, "flat", 2, 8);
    o = conv_options(4, 3);
    expect_failure(m, ren_conv2d(m, "c", x, &o), REN_ERR_SHAPE, "flat is f32 [2, 8]");
    /* Stride, padding, dilation: (9 + 2 - 2 * 2 - 1) / 2 + 1 = 4; flattened 4 * 4 * 5 = 80. */
    m = new_model(1);
    x = input4(m, "img", 2, 9, 9, 4);
    o = conv_options(5, 3);
    for (int i = 0; i < 2; i++) {
        o.stride[i] = 2;
        o.padding[i] = 1;
        o.dilation[i] = 2;
    }
    ren_tensor f = ren_flatten(m, "f", ren_conv2d(m, "c", x, &o));
    (void)linear(m, "l", f, 7);
    CU_ASSERT_EQUAL(ren_model_status(m, NULL), REN_OK);
    float weight[7 * 80];
    CU_ASSERT_EQUAL(ren_param_get(m, "l.weight", weight, sizeof weight), REN_OK);
    ren_model_destroy(m);
}

static void test_other_shapes(void)
{
    ren_pool2d_options pool = ren_pool2d_options_default();
    ren_model *m = new_model(1);
    pool.kernel[0] = pool.kernel[1] = 9;
    expect_failure(m, ren_max_pool2d(m, "p", input4(m, "x", 1, 8, 8, 2), &pool), REN_ERR_SHAPE,
                   "p: the kernel");
    m = new_model(1);
    pool.kernel[0] = pool.kernel[1] = 3;
    pool.padding[0] = 2;
    expect_failure(m, ren_avg_pool2d(m, "p", input4(m, "x", 1, 8, 8, 2), &pool),
                   REN_ERR_INVALID_ARGUMENT, "padding");
    m = new_model(1);
    expect_failure(m, ren_add(m, "s", input2(m, "a", 2, 3), input2(m, "b", 2, 4)), REN_ERR_SHAPE,
                   "a is f32 [2, 3] but b is f32 [2, 4]");
    m = new_model(1);
    ren_tensor joined[2] = {input4(m, "a", 2, 4, 4, 3), input4(m, "b", 2, 4, 5, 3)};
    expect_failure(m, ren_concat(m, "j", joined, 2), REN_ERR_SHAPE, "b is f32 [2, 4, 5, 3]");
    m = new_model(1);
    expect_failure(m, linear(m, "l", input4(m, "x", 2, 4, 4, 3), 5), REN_ERR_SHAPE, "rank 2");
    m = new_model(1);
    ren_tensor x = input2(m, "x", 4, 3);
    expect_failure(m, ren_softmax_cross_entropy(m, "loss", x, labels(m, "y", 5), NULL),
                   REN_ERR_SHAPE, "y are i32 [5]");
    m = new_model(1);
    x = input2(m, "x", 4, 3);
    expect_failure(m, ren_softmax_cross_entropy(m, "loss", x, input2(m, "y", 4, 1), NULL),
                   REN_ERR_SHAPE, "y are f32");
    m = new_model(1);
    expect_failure(m, ren_relu(m, "r", labels(m, "y", 4)), REN_ERR_SHAPE, "not f32");
    m = new_model(1);
    x = ren_mse(m, "loss", input2(m, "a", 2, 3), input2(m, "b", 2, 3));
    expect_failure(m, ren_relu(m, "r", x), REN_ERR_SHAPE, "loss is a loss");
    m = new_model(1);
    x = ren_mse(m, "loss", input2(m, "a", 2, 3), input2(m, "b", 2, 3));
    expect_failure(m, ren_add(m, "s", input2(m, "c", 1, 1), x), REN_ERR_SHAPE, "loss is a loss");
    m = new_model(1);
    ren_dropout_options drop = ren_dropout_options_default();
    drop.probability = 1.0f;
    expect_failure(m, ren_dropout(m, "d", input2(m, "x", 2, 3), &drop), REN_ERR_INVALID_ARGUMENT,
                   "probability");
    m = new_model(1);
    ren_cross_entropy_options ce = ren_cross_entropy_options_default();
    ce.label_smoothing = NAN;
    x = input2(m, "x", 4, 3);
    expect_failure(m, ren_softmax_cross_entropy(m, "loss", x, labels(m, "y", 4), &ce),
                   REN_ERR_INVALID_ARGUMENT, "label_smoothing");
}

/* ------------------------------------------------------------------ parameters */

/* Names and order are those of creation; sizes those of the boundary layout. */
static void test_params_names(void)
{
    static const char *const want[] = {"c.weight",        "c.bias",         "bn.weight", "bn.bias",
                                       "bn.running_mean", "bn.running_var", "l.weight"};
    ren_model *m = new_model(1);
    ren_conv2d_options o = conv_options(5, 3);
    ren_tensor h = ren_conv2d(m, "c", input4(m, "x", 2, 6, 6, 4), &o);
    h = ren_global_avg_pool(m, "g", ren_batch_norm(m, "bn", h, NULL));
    ren_linear_options l = ren_linear_options_default();
    l.units = 2;
    l.disable_bias = 1;
    (void)ren_linear(m, "l", h, &l);
    CU_ASSERT_EQUAL(ren_model_status(m, NULL), REN_OK);
    CU_ASSERT_EQUAL_FATAL(ren_param_count(m), 7);
    for (uint32_t i = 0; i < 7; i++) {
        CU_ASSERT_STRING_EQUAL(ren_param_name(m, i), want[i]);
    }
    CU_ASSERT_PTR_NULL(ren_param_name(m, 7));
    CU_ASSERT_PTR_NULL(ren_param_name(NULL, 0));
    float buffer[5 * 4 * 9];
    CU_ASSERT_EQUAL(ren_param_get(m, "c.weight", buffer, sizeof buffer), REN_OK);
    CU_ASSERT_EQUAL(ren_param_get(m, "c.weight", buffer, sizeof buffer - 4), REN_ERR_SHAPE);
    CU_ASSERT_EQUAL(ren_param_get(m, "c.wait", buffer, sizeof buffer), REN_ERR_NAME);
    CU_ASSERT_EQUAL(ren_param_get(m, NULL, buffer, sizeof buffer), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_param_set(m, "c.weight", NULL, sizeof buffer), REN_ERR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < 4; i++) {
        /* Batch norm starts as the identity: weight and variance 1, bias and mean 0. */
        float want_value = i == 0 || i == 3 ? 1.0f : 0.0f;
        CU_ASSERT_EQUAL(ren_param_get(m, want[2 + i], buffer, 5 * sizeof(float)), REN_OK);
        CU_ASSERT_EQUAL(buffer[0], want_value);
        CU_ASSERT_EQUAL(buffer[4], want_value);
    }
    ren_model_destroy(m);
}

static void build_two_layers(ren_model *m)
{
    ren_tensor h = linear(m, "a", input2(m, "x", 2, 64), 48);
    (void)linear(m, "b", ren_tanh(m, "t", h), 3);
}

/* First values: within the bound of the fan-in and filling it, equal for equal seeds, different for
 * different seeds and layers. A generator that ignored the parameter or the element would fail. */
static void test_params_first_values(void)
{
    float one[48 * 64], two[48 * 64], three[48 * 64], bias[48];
    ren_model *m1 = new_model(7);
    ren_model *m2 = new_model(7);
    ren_model *m3 = new_model(8);
    build_two_layers(m1);
    build_two_layers(m2);
    build_two_layers(m3);
    CU_ASSERT_EQUAL(ren_param_get(m1, "a.weight", one, sizeof one), REN_OK);
    CU_ASSERT_EQUAL(ren_param_get(m2, "a.weight", two, sizeof two), REN_OK);
    CU_ASSERT_EQUAL(ren_param_get(m3, "a.weight", three, sizeof three), REN_OK);
    CU_ASSERT_EQUAL(ren_param_get(m1, "a.bias", bias, sizeof bias), REN_OK);
    CU_ASSERT_EQUAL(memcmp(one, two, sizeof one), 0);
    double sum = 0.0, squares = 0.0, largest = 0.0;
    uint32_t equal = 0;
    for (uint32_t i = 0; i < 48 * 64; i++) {
        sum += (double)one[i];
        squares += (double)one[i] * (double)one[i];
        largest = fabs((double)one[i]) > largest ? fabs((double)one[i]) : largest;
        equal += one[i] == three[i];
    }
    /* Uniform in +-1/8: variance 1/192; 3,072 draws. */
    CU_ASSERT(largest <= 0.125 && largest > 0.12);
    CU_ASSERT(fabs(sum / 3072.0) < 0.005);
    CU_ASSERT(fabs(squares / 3072.0 - 1.0 / 192.0) < 0.0004);
    CU_ASSERT(equal < 3);
    CU_ASSERT_NOT_EQUAL(memcmp(bias, one, sizeof bias), 0);
    ren_model_destroy(m1);
    ren_model_destroy(m2);
    ren_model_destroy(m3);
}

/* Of "free"'s two. */
static ren_status infer_one_row(ren_model *m, ren_tensor output)
{
    float x[2] = {3.0f, -4.0f}, y[2] = {0};
    const ren_binding input = {"free", x, sizeof x};
    ren_infer_desc desc = ren_infer_desc_default();
    ren_job job;
    desc.bindings = &input;
    desc.binding_count = desc.batch = 1;
    desc.output = output;
    desc.out_data = y;
    desc.out_bytes = sizeof y;
    desc.deliver = REN_DELIVER_NONE;
    ren_status status = ren_infer(m, &desc, &job);
    status = status == REN_OK ? ren_wait(rt, job, REN_TIMEOUT_INFINITE) : status;
    CU_ASSERT(status != REN_OK || (y[0] == 3.0f && y[1] == 0.0f));
    return status;
}

/* A set value comes back bit for bit, before the model is on the device and after, and its
 * neighbours keep theirs. */
static void test_params_set_and_get(void)
{
    float weight[3 * 48], got[3 * 48], other[48 * 64], other_now[48 * 64], bias[3] = {1, 2, 3};
    ren_tensor out = {0};
    ren_model *m = new_model(3);
    build_two_layers(m);
    for (uint32_t i = 0; i < 3 * 48; i++) {
        weight[i] = (float)i * 0.25f;
    }
    CU_ASSERT_EQUAL(ren_param_get(m, "a.weight", other, sizeof other), REN_OK);
    for (uint32_t placed = 0; placed < 2; placed++) {
        CU_ASSERT_EQUAL(ren_param_set(m, "b.weight", weight, sizeof weight), REN_OK);
        CU_ASSERT_EQUAL(ren_param_set(m, "b.bias", bias, sizeof bias), REN_OK);
        CU_ASSERT_EQUAL(ren_param_get(m, "b.weight", got, sizeof got), REN_OK);
        CU_ASSERT_EQUAL(memcmp(got, weight, sizeof got), 0);
        CU_ASSERT_EQUAL(ren_param_get(m, "b.bias", got, sizeof bias), REN_OK);
        CU_ASSERT_EQUAL(memcmp(got, bias, sizeof bias), 0);
        CU_ASSERT_EQUAL(ren_param_get(m, "a.weight", other_now, sizeof other_now), REN_OK);
        CU_ASSERT_EQUAL(memcmp(other, other_now, sizeof other), 0);
        bias[0] = weight[5] = -7.5f;
        if (!placed) {
            out = ren_relu(m, "out", ren_relu(m, "in", input2(m, "free", 2, 2)));
            CU_ASSERT_EQUAL(ren_infer_prepare(m, out, NULL), REN_OK);
        }
    }
    /* In use: no more parameters, and the model says so; those that it has are read and written as
     * before, and what was there computes, also for numbers of rows not seen yet. */
    ren_tensor late = linear(m, "late", input2(m, "late_in", 2, 2), 2);
    CU_ASSERT_EQUAL(ren_model_status(m, NULL), REN_ERR_BUSY);
    CU_ASSERT_EQUAL(ren_param_set(m, "b.weight", other, sizeof weight), REN_OK);
    CU_ASSERT_EQUAL(ren_param_get(m, "b.weight", got, sizeof got), REN_OK);
    CU_ASSERT_EQUAL(memcmp(got, other, sizeof got), 0);
    char path[] = "/tmp/ren-test-model-XXXXXX";
    CU_ASSERT_NOT_EQUAL_FATAL(close(mkstemp(path)), -1);
    CU_ASSERT_EQUAL(ren_model_save(m, path, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_model_load(m, path, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(remove(path), 0);
    CU_ASSERT_EQUAL(infer_one_row(m, out), REN_OK);
    expect_failure(m, late, REN_ERR_BUSY, "late");
}

/* ------------------------------------------------------------------ memory */

typedef struct counter {
    long live, calls, fail_at;
} counter;

static void *count_alloc(void *user, size_t bytes, size_t align)
{
    counter *c = user;
    void *p = NULL;
    if (++c->calls == c->fail_at || posix_memalign(&p, align < 16 ? 16 : align, bytes)) {
        return NULL;
    }
    c->live++;
    return p;
}

static void count_free(void *user, void *ptr, size_t bytes)
{
    counter *c = user;
    (void)bytes;
    c->live--;
    free(ptr);
}

/* Every allocation of building a model fails in turn: the model says REN_ERR_NO_MEMORY, and nothing
 * leaks. */
static void test_builder_out_of_memory(void)
{
    counter c = {0, 0, 0};
    ren_allocator allocator = ren_allocator_default();
    ren_runtime_config config = ren_test_config();
    allocator.alloc = count_alloc;
    allocator.free = count_free;
    allocator.user = &c;
    config.allocator = &allocator;
    ren_runtime *counted = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(counted);
    ren_model *m = NULL;
    long before = c.live;
    uint32_t failures = 0;
    for (long nth = 1;; nth++) {
        ren_error err;
        c.calls = 0;
        c.fail_at = nth;
        ren_status status = ren_model_create(counted, NULL, &m, &err);
        if (status == REN_OK) {
            build_two_layers(m);
            status = ren_model_status(m, &err);
        }
        long reached = c.calls;
        c.fail_at = 0;
        ren_model_destroy(m);
        CU_ASSERT_EQUAL(c.live, before);
        if (reached < nth) {
            CU_ASSERT_EQUAL(status, REN_OK);
            break;
        }
        CU_ASSERT_EQUAL(status, REN_ERR_NO_MEMORY);
        failures++;
    }
    CU_ASSERT(failures >= 10);
    ren_test_shutdown(counted);
    CU_ASSERT_EQUAL(c.live, 0);
}

/* A living model keeps its runtime; a closed runtime takes no new model. */
static void test_model_and_runtime(void)
{
    ren_runtime *own = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(own);
    ren_model *m = NULL;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(own, NULL, &m, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_destroy(own), REN_ERR_BUSY);
    ren_model_destroy(m);
    ren_error err;
    ren_model_config config = ren_model_config_default();
    config.struct_size = 1;
    CU_ASSERT_EQUAL(ren_model_create(own, &config, &m, &err), REN_ERR_BAD_STRUCT);
    CU_ASSERT_EQUAL(ren_model_create(own, NULL, NULL, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_model_create(NULL, NULL, &m, &err), REN_ERR_INVALID_ARGUMENT);
    ren_model *placed = NULL;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(own, NULL, &placed, NULL), REN_OK);
    ren_tensor out = linear(placed, "l", input2(placed, "x", 2, 2), 2);
    CU_ASSERT_EQUAL(ren_infer_prepare(placed, out, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_close(own), REN_OK);
    CU_ASSERT_EQUAL(ren_model_create(own, NULL, &m, &err), REN_ERR_CLOSED);
    CU_ASSERT_PTR_NULL(m);
    /* The texts of these say what the status does, not that memory is short. */
    out = ren_relu(placed, "r", out);
    CU_ASSERT_EQUAL(ren_infer_prepare(placed, out, &err), REN_ERR_CLOSED);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, ren_status_text(REN_ERR_CLOSED)));
    CU_ASSERT_EQUAL(ren_model_save(placed, "/tmp/ren-test-closed", &err), REN_ERR_CLOSED);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, ren_status_text(REN_ERR_CLOSED)));
    ren_model_destroy(placed);
    ren_test_shutdown(own);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_builder_names", test_builder_names},
        {"test_builder_foreign_tensors", test_builder_foreign_tensors},
        {"test_builder_error_sticks", test_builder_error_sticks},
        {"test_builder_bad_options", test_builder_bad_options},
        {"test_builder_sizes", test_builder_sizes},
        {"test_conv2d_shapes", test_conv2d_shapes},
        {"test_other_shapes", test_other_shapes},
        {"test_params_names", test_params_names},
        {"test_params_first_values", test_params_first_values},
        {"test_params_set_and_get", test_params_set_and_get},
        {"test_builder_out_of_memory", test_builder_out_of_memory},
        {"test_model_and_runtime", test_model_and_runtime},
    };
    ren_runtime_config config = ren_test_config();
    if (ren_runtime_create(&config, &rt, NULL) != REN_OK) {
        return 1;
    }
    int status = ren_test_main(argc, argv, "unit/test_model", cases, REN_TEST_COUNT(cases), 60);
    return ren_runtime_shutdown(rt, UINT64_C(10000000000)) == REN_OK ? status : 1;
}
