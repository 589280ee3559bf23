/* SPDX-License-Identifier: MIT */
/* tests/unit/test_checkpoint.c - models saved to and loaded from files.
 *
 * Purpose   Shows that what is saved is what is loaded, bit for bit, and that a load or save which
 *           fails changes neither the model nor the file, whatever made it fail.
 * How       A small model with a convolution and a linear layer, on the CPU device. Its values come
 *           from its seed, so two seeds give two models of one shape.
 */
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../host_api/ren.h"
#include "../../libren/train/safetensors.h"
#include "../support/test.h"

enum {
    BATCH = 4,
    SIDE = 4,
    CONV = 2 * 1 * 3 * 3,
    UNITS = 3,
    LINEAR = UNITS * SIDE * SIDE * 2,
    VALUES = CONV + 2 + LINEAR + UNITS, /* all parameters, in the order of their making */
    DATA_BYTES = VALUES * 4
};

/* ------------------------------------------------------------------ support */

typedef struct counter {
    long long live;
    long long fail_at; /* the Nth request from here fails; below 0 = none */
} counter;

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    counter *c = user;
    if (c->fail_at >= 0 && c->fail_at-- == 0) {
        return NULL;
    }
    c->live += (long long)bytes;
    return aligned_alloc(align, (bytes + align - 1) & ~(align - 1));
}

static void counted_free(void *user, void *ptr, size_t bytes)
{
    counter *c = user;
    c->live -= (long long)bytes;
    free(ptr);
}

/* A runtime with two models of one shape and different values, and a folder for files. */
typedef struct scene {
    counter count;
    ren_runtime *rt;
    ren_model *a;
    ren_model *b;
    ren_tensor loss_a;
    char folder[64];
    char path[96];
} scene;

static ren_model *make_model(ren_runtime *rt, uint64_t seed, const char *conv_name, uint32_t units,
                             ren_tensor *out_loss)
{
    const int64_t image_dims[] = {BATCH, SIDE, SIDE, 1}, label_dims[] = {BATCH};
    ren_model_config config = ren_model_config_default();
    ren_conv2d_options conv = ren_conv2d_options_default();
    ren_linear_options linear = ren_linear_options_default();
    ren_model *m = NULL;
    ren_error err = {0};
    config.seed = seed;
    CU_ASSERT_EQUAL_FATAL(ren_model_create(rt, &config, &m, &err), REN_OK);
    conv.filters = 2;
    conv.kernel[0] = conv.kernel[1] = 3;
    conv.padding[0] = conv.padding[1] = 1;
    linear.units = units;
    ren_tensor x = ren_input(m, "image", REN_F32, image_dims, 4);
    ren_tensor label = ren_input(m, "label", REN_I32, label_dims, 1);
    x = ren_conv2d(m, conv_name, x, &conv);
    x = ren_relu(m, "relu", x);
    x = ren_flatten(m, "flat", x);
    x = ren_linear(m, "linear", x, &linear);
    ren_tensor loss = ren_softmax_cross_entropy(m, "loss", x, label, NULL);
    CU_ASSERT_EQUAL_FATAL(ren_model_status(m, &err), REN_OK);
    if (out_loss) {
        *out_loss = loss;
    }
    return m;
}

static void scene_open(scene *s)
{
    ren_runtime_config config = ren_runtime_config_default();
    ren_allocator allocator = ren_allocator_default();
    memset(s, 0, sizeof *s);
    s->count.fail_at = -1;
    allocator.alloc = counted_alloc;
    allocator.free = counted_free;
    allocator.user = &s->count;
    config.device = REN_DEVICE_CPU;
    config.streams = 1;
    config.allocator = &allocator;
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&config, &s->rt, NULL), REN_OK);
    s->a = make_model(s->rt, 1, "conv", UNITS, &s->loss_a);
    s->b = make_model(s->rt, 2, "conv", UNITS, NULL);
    (void)snprintf(s->folder, sizeof s->folder, "/tmp/ren-test-checkpoint-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(s->folder));
    (void)snprintf(s->path, sizeof s->path, "%s/m.safetensors", s->folder);
}

/* Files in the scene's folder, hidden ones included. */
static size_t files_in(const scene *s)
{
    size_t count = 0;
    for (int hidden = 0; hidden < 2; hidden++) {
        char pattern[96];
        glob_t found = {0};
        (void)snprintf(pattern, sizeof pattern, "%s/%s", s->folder, hidden ? ".[!.]*" : "*");
        (void)glob(pattern, 0, NULL, &found);
        count += found.gl_pathc;
        globfree(&found);
    }
    return count;
}

static void scene_close(scene *s)
{
    ren_model_destroy(s->a);
    ren_model_destroy(s->b);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(s->rt, 5000000000u), REN_OK);
    CU_ASSERT_EQUAL(s->count.live, 0);
    (void)unlink(s->path);
    CU_ASSERT_EQUAL(files_in(s), 0);
    (void)rmdir(s->folder);
}

static void get_values(ren_model *m, float values[VALUES])
{
    static const size_t counts[] = {CONV, 2, LINEAR, UNITS};
    for (uint32_t i = 0; i < REN_TEST_COUNT(counts); i++) {
        CU_ASSERT_EQUAL(ren_param_get(m, ren_param_name(m, i), values, counts[i] * sizeof *values),
                        REN_OK);
        values += counts[i];
    }
}

static int same_values(ren_model *m, const float values[VALUES])
{
    float now[VALUES];
    get_values(m, now);
    return memcmp(now, values, sizeof now) == 0;
}

static unsigned char *read_file(const char *path, size_t *out_bytes)
{
    FILE *stream = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    (void)fseek(stream, 0, SEEK_END);
    *out_bytes = (size_t)ftell(stream);
    rewind(stream);
    unsigned char *bytes = malloc(*out_bytes + 1);
    CU_ASSERT_EQUAL(fread(bytes, 1, *out_bytes, stream), *out_bytes);
    (void)fclose(stream);
    return bytes;
}

static void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *stream = fopen(path, "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    CU_ASSERT_EQUAL(fwrite(bytes, 1, count, stream), count);
    CU_ASSERT_EQUAL(fclose(stream), 0);
}

/* A file of this header and so many bytes of data, byte i being i. */
static void write_header(const char *path, const char *header, size_t data_bytes)
{
    size_t length = strlen(header);
    unsigned char *bytes = malloc(8 + length + data_bytes);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    }
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) {
        bytes[8 + length + i] = (unsigned char)i;
    }
    write_file(path, bytes, 8 + length + data_bytes);
    free(bytes);
}

/* ------------------------------------------------------------------ round trips */

/* Proves: a saved model loaded into one of other values gives the first one's, bit for bit, and
 * both calls leave no file behind. Fails if an offset, a size or the order of parameters
 * is wrong. */
static void test_save_load_round_trip(void)
{
    scene s;
    float a[VALUES], b[VALUES];
    ren_error err = {0};
    scene_open(&s);
    get_values(s.a, a);
    get_values(s.b, b);
    CU_ASSERT_NOT_EQUAL(memcmp(a, b, sizeof a), 0);
    CU_ASSERT_EQUAL(ren_model_save(s.a, s.path, &err), REN_OK);
    CU_ASSERT_EQUAL(files_in(&s), 1);
    CU_ASSERT_EQUAL(ren_model_load(s.b, s.path, 0, &err), REN_OK);
    CU_ASSERT_TRUE(same_values(s.b, a));
    CU_ASSERT_TRUE(same_values(s.a, a));
    scene_close(&s);
}

/* Proves: the file is what others read: the length, a header whose data begin at a multiple of 8,
 * F32 tensors in the order of their making with boundary shapes, and the very bytes of
 * ren_param_get. */
static void test_save_writes_format(void)
{
    static const struct {
        const char *name;
        uint32_t rank;
        uint64_t dims[4];
    } expected[] = {{"conv.weight", 4, {2, 1, 3, 3}},
                    {"conv.bias", 1, {2}},
                    {"linear.weight", 2, {UNITS, SIDE * SIDE * 2}},
                    {"linear.bias", 1, {UNITS}}};
    scene s;
    float a[VALUES];
    size_t bytes;
    uint32_t header_bytes = 0;
    ren__safetensors t;
    ren__host_allocator allocator = ren__host_allocator_make(NULL);
    scene_open(&s);
    get_values(s.a, a);
    CU_ASSERT_EQUAL(ren_model_save(s.a, s.path, NULL), REN_OK);
    unsigned char *file = read_file(s.path, &bytes);
    CU_ASSERT_EQUAL_FATAL(ren__safetensors_header_bytes(file, bytes, bytes, &header_bytes, NULL),
                          REN_OK);
    CU_ASSERT_EQUAL(header_bytes % 8, 0);
    CU_ASSERT_EQUAL(bytes, 8 + header_bytes + DATA_BYTES);
    CU_ASSERT_EQUAL_FATAL(
        ren__safetensors_parse(&allocator, file + 8, header_bytes, bytes, &t, NULL), REN_OK);
    CU_ASSERT_EQUAL_FATAL(t.count, REN_TEST_COUNT(expected));
    uint64_t at = 0;
    for (uint32_t i = 0; i < t.count; i++) {
        const ren__safetensors_entry *e = &t.entries[i];
        CU_ASSERT_STRING_EQUAL(t.names + e->name, expected[i].name);
        CU_ASSERT_STRING_EQUAL(e->dtype, "F32");
        CU_ASSERT_EQUAL(e->rank, expected[i].rank);
        CU_ASSERT_EQUAL(memcmp(e->dims, expected[i].dims, 4 * sizeof *e->dims), 0);
        CU_ASSERT_EQUAL(e->begin, at);
        at = e->end;
    }
    CU_ASSERT_EQUAL(memcmp(file + t.data_start, a, DATA_BYTES), 0);
    ren__safetensors_free(&t);
    free(file);
    scene_close(&s);
}

/* Proves: it is the same with weights on the device: after steps the newest are saved, and a load
 * into a model in training is what the next step starts from. Fails if a save reads the host's old
 * copy, or a load does not reach the device. */
static void test_save_load_in_training(void)
{
    scene s;
    float before[VALUES], after[VALUES], images[BATCH * SIDE * SIDE];
    int32_t labels[BATCH] = {0, 1, 2, 0};
    ren_binding bindings[] = {{"image", images, sizeof images}, {"label", labels, sizeof labels}};
    ren_step_desc step = ren_step_desc_default();
    ren_trainer_config config = ren_trainer_config_default();
    ren_trainer *trainer = NULL;
    ren_job job;
    scene_open(&s);
    for (int i = 0; i < BATCH * SIDE * SIDE; i++) {
        images[i] = (float)(i % 7) / 7.0f;
    }
    step.bindings = bindings;
    step.binding_count = 2;
    step.deliver = REN_DELIVER_NONE;
    get_values(s.a, before);
    CU_ASSERT_EQUAL(ren_model_save(s.a, s.path, NULL), REN_OK);
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(s.a, s.loss_a, &config, &trainer, NULL), REN_OK);
    for (int round = 0; round < 2; round++) {
        CU_ASSERT_EQUAL_FATAL(ren_trainer_step(trainer, &step, &job), REN_OK);
        CU_ASSERT_EQUAL(ren_wait(s.rt, job, REN_TIMEOUT_INFINITE), REN_OK);
        if (round == 0) {
            get_values(s.a, after);
            CU_ASSERT_NOT_EQUAL(memcmp(before, after, sizeof after), 0);
            CU_ASSERT_EQUAL(ren_model_load(s.a, s.path, 0, NULL), REN_OK);
            CU_ASSERT_TRUE(same_values(s.a, before));
        }
    }
    /* Plain SGD has no memory: the same step from the same weights gives the same result. */
    CU_ASSERT_TRUE(same_values(s.a, after));
    CU_ASSERT_EQUAL(ren_model_save(s.a, s.path, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_model_load(s.b, s.path, 0, NULL), REN_OK);
    CU_ASSERT_TRUE(same_values(s.b, after));
    ren_trainer_destroy(trainer);
    scene_close(&s);
}

/* Proves: names with quotes, backslashes and characters beyond ASCII come back; a name that is no
 * UTF-8 is refused at save, so that no file is made which load would refuse. */
static void test_save_odd_names(void)
{
    scene s;
    float a[VALUES];
    ren_error err = {0};
    scene_open(&s);
    ren_model *odd = make_model(s.rt, 3, "a \"b\" \\c \xc3\xa9", UNITS, NULL);
    ren_model *other = make_model(s.rt, 4, "a \"b\" \\c \xc3\xa9", UNITS, NULL);
    ren_model *broken = make_model(s.rt, 5, "\xff", UNITS, NULL);
    get_values(odd, a);
    CU_ASSERT_EQUAL(ren_model_save(odd, s.path, &err), REN_OK);
    CU_ASSERT_EQUAL(ren_model_load(other, s.path, 0, &err), REN_OK);
    CU_ASSERT_TRUE(same_values(other, a));
    CU_ASSERT_EQUAL(ren_model_save(broken, s.path, &err), REN_ERR_NAME);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "UTF-8"));
    CU_ASSERT_EQUAL(ren_model_load(other, s.path, 0, &err), REN_OK);
    ren_model_destroy(odd);
    ren_model_destroy(other);
    ren_model_destroy(broken);
    scene_close(&s);
}

/* ------------------------------------------------------------------ files that do not fit */

#define T_(name, dtype, shape, begin, end)                                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin        \
    "," #end "]}"
#define CONV_W_   T_("conv.weight", "F32", "2,1,3,3", 0, 72)
#define CONV_B_   T_("conv.bias", "F32", "2", 72, 80)
#define LINEAR_W_ T_("linear.weight", "F32", "3,32", 80, 464)
#define LINEAR_B_ T_("linear.bias", "F32", "3", 464, 476)

/* Proves: a file that is sound but of another model is refused with the tensor's name, and no
 * parameter has changed, although the file has good data for some. */
static void test_load_mismatch(void)
{
    static const struct {
        const char *header;
        size_t bytes;
        ren_status status;
        const char *words;
    } rows[] = {
        {"{" CONV_W_ "," CONV_B_ "," LINEAR_W_ "}", 464, REN_ERR_NAME, "no tensor 'linear.bias'"},
        {"{" CONV_W_ "," CONV_B_ "," LINEAR_W_ "," LINEAR_B_ "," T_("x", "F32", "1", 476, 480) "}",
         480, REN_ERR_NAME, "no parameter 'x'"},
        {"{" CONV_W_ "," CONV_B_ "," LINEAR_W_ "," T_("linear.bias", "I32", "3", 464, 476) "}", 476,
         REN_ERR_SHAPE, "'linear.bias' has dtype I32, the model wants F32"},
        {"{" CONV_W_ "," CONV_B_ "," LINEAR_W_ "," T_("linear.bias", "F32", "3,1", 464, 476) "}",
         476, REN_ERR_SHAPE, "'linear.bias' has shape [3, 1], the model wants [3]"},
        {"{" CONV_W_ "," CONV_B_ "," T_("linear.weight", "F32", "32,3", 80, 464) "," LINEAR_B_ "}",
         476, REN_ERR_SHAPE, "has shape [32, 3], the model wants [3, 32]"},
        {"{" CONV_W_ "," CONV_B_ "," LINEAR_W_ "," T_("linear.bias", "F32", "", 464, 468) "}", 468,
         REN_ERR_SHAPE, "'linear.bias' has shape [], the model wants [3]"},
        {"{" CONV_W_ "," CONV_B_ "," LINEAR_W_ "," T_("linear.bias", "F32", "4", 464, 480) "}", 480,
         REN_ERR_SHAPE, "has shape [4], the model wants [3]"},
        {"{}", 0, REN_ERR_NAME, "no tensor 'conv.weight'"},
    };
    scene s;
    float a[VALUES];
    scene_open(&s);
    get_values(s.a, a);
    for (size_t i = 0; i < REN_TEST_COUNT(rows); i++) {
        ren_error err = {0};
        write_header(s.path, rows[i].header, rows[i].bytes);
        ren_status status = ren_model_load(s.a, s.path, 0, &err);
        if (status != rows[i].status || !strstr(err.text, rows[i].words)) {
            printf("       wanted '%s', got %d '%s'\n", rows[i].words, status, err.text);
        }
        CU_ASSERT_EQUAL(status, rows[i].status);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, rows[i].words));
        CU_ASSERT_TRUE(same_values(s.a, a));
    }
    scene_close(&s);
}

/* Proves: with the flags missing tensors keep the model's values and extra ones are skipped, each
 * flag only its own case; a flag that is none is refused. */
static void test_load_flags(void)
{
    static const char *const missing = "{" CONV_W_ "," CONV_B_ "," LINEAR_W_ "}";
    static const char *const extra =
        "{" T_("num", "I64", "", 0, 8) "," T_("conv.bias", "F32", "2", 8, 16) "}";
    scene s;
    float a[VALUES];
    unsigned char data[16], *values = (unsigned char *)a;
    ren_error err = {0};
    scene_open(&s);
    write_header(s.path, missing, 464);
    CU_ASSERT_EQUAL(ren_model_load(s.a, s.path, REN_LOAD_ALLOW_EXTRA, &err), REN_ERR_NAME);
    get_values(s.a, a);
    CU_ASSERT_EQUAL(ren_model_load(s.a, s.path, REN_LOAD_ALLOW_MISSING, &err), REN_OK);
    for (size_t i = 0; i < 464; i++) {
        values[i] = (unsigned char)i;
    }
    CU_ASSERT_TRUE(same_values(s.a, a));
    write_header(s.path, extra, sizeof data);
    CU_ASSERT_EQUAL(ren_model_load(s.a, s.path, REN_LOAD_ALLOW_MISSING, &err), REN_ERR_NAME);
    CU_ASSERT_EQUAL(ren_model_load(s.a, s.path, REN_LOAD_ALLOW_EXTRA, &err), REN_ERR_NAME);
    CU_ASSERT_TRUE(same_values(s.a, a));
    CU_ASSERT_EQUAL(
        ren_model_load(s.a, s.path, REN_LOAD_ALLOW_MISSING | REN_LOAD_ALLOW_EXTRA, &err), REN_OK);
    for (size_t i = 0; i < 8; i++) {
        values[CONV * 4 + i] = (unsigned char)(8 + i);
    }
    CU_ASSERT_TRUE(same_values(s.a, a));
    CU_ASSERT_EQUAL(ren_model_load(s.a, s.path, 4, &err), REN_ERR_INVALID_ARGUMENT);
    scene_close(&s);
}

/* Proves: a file cut short at every byte, and one with bytes to spare, is refused and changes
 * nothing. Fails if the file's own size is trusted less than its header. */
static void test_load_truncated(void)
{
    scene s;
    float a[VALUES];
    size_t bytes;
    unsigned refused = 0;
    scene_open(&s);
    get_values(s.a, a);
    CU_ASSERT_EQUAL(ren_model_save(s.b, s.path, NULL), REN_OK);
    unsigned char *file = read_file(s.path, &bytes);
    for (size_t cut = 0; cut < bytes; cut++) {
        CU_ASSERT_EQUAL_FATAL(truncate(s.path, (off_t)cut), 0);
        refused += ren_model_load(s.a, s.path, 0, NULL) == REN_ERR_FORMAT;
        write_file(s.path, file, bytes);
    }
    CU_ASSERT_EQUAL(refused, bytes);
    file[bytes] = 0;
    write_file(s.path, file, bytes + 1);
    CU_ASSERT_EQUAL(ren_model_load(s.a, s.path, 0, NULL), REN_ERR_FORMAT);
    CU_ASSERT_TRUE(same_values(s.a, a));
    free(file);
    scene_close(&s);
}

/* Proves: 2,000 damaged files, the same in every run, each load or are refused for a stated reason,
 * and a refused one changes nothing. */
static void test_load_mutated_files(void)
{
    enum {
        RUNS = 2000
    };
    scene s;
    float a[VALUES];
    size_t bytes;
    unsigned long long seed = 7;
    unsigned loaded = 0, silent = 0, changed = 0;
    scene_open(&s);
    CU_ASSERT_EQUAL(ren_model_save(s.b, s.path, NULL), REN_OK);
    unsigned char *file = read_file(s.path, &bytes), *copy = malloc(bytes);
    get_values(s.a, a);
    for (unsigned run = 0; run < RUNS; run++) {
        ren_error err = {0};
        memcpy(copy, file, bytes);
        for (unsigned long long edits = 1 + ren_test_random(&seed) % 3; edits > 0; edits--) {
            copy[ren_test_random(&seed) % (bytes - DATA_BYTES)] =
                (unsigned char)ren_test_random(&seed);
        }
        write_file(s.path, copy, bytes);
        if (ren_model_load(s.a, s.path, 0, &err) == REN_OK) {
            loaded++;
            get_values(s.a, a);
        } else {
            silent += err.text[0] == '\0';
            changed += !same_values(s.a, a);
        }
    }
    CU_ASSERT(loaded < RUNS / 2);
    CU_ASSERT_EQUAL(silent, 0);
    CU_ASSERT_EQUAL(changed, 0);
    free(copy);
    free(file);
    scene_close(&s);
}

/* ------------------------------------------------------------------ what the system refuses */

/* Proves: a path that is nothing, a folder, or a pipe without a writer is an I/O error and does not
 * hold the caller; so is a file that cannot be made. A save does not put a file in the place of a
 * pipe, as it would not in that of /dev/null. Bad arguments have their own error. */
static void test_paths_bad(void)
{
    scene s;
    char other[128];
    ren_error err = {0};
    scene_open(&s);
    CU_ASSERT_EQUAL(ren_model_load(s.a, s.path, 0, &err), REN_ERR_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, s.path));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "No such file"));
    CU_ASSERT_NOT_EQUAL(err.backend_code, 0);
    CU_ASSERT_EQUAL(ren_model_load(s.a, s.folder, 0, &err), REN_ERR_IO);
    (void)snprintf(other, sizeof other, "%s/pipe", s.folder);
    CU_ASSERT_EQUAL(mkfifo(other, 0600), 0);
    CU_ASSERT_EQUAL(ren_model_load(s.a, other, 0, &err), REN_ERR_IO);
    CU_ASSERT_EQUAL(ren_model_save(s.a, other, &err), REN_ERR_IO);
    struct stat about;
    CU_ASSERT(stat(other, &about) == 0 && S_ISFIFO(about.st_mode));
    CU_ASSERT_EQUAL(unlink(other), 0);
    (void)snprintf(other, sizeof other, "%s/none/x", s.folder);
    CU_ASSERT_EQUAL(ren_model_save(s.a, other, &err), REN_ERR_IO);
    (void)snprintf(other, sizeof other, "%s/sub", s.folder);
    CU_ASSERT_EQUAL(mkdir(other, 0700), 0);
    CU_ASSERT_EQUAL(ren_model_save(s.a, other, &err), REN_ERR_IO);
    CU_ASSERT_EQUAL(files_in(&s), 1);
    CU_ASSERT_EQUAL(rmdir(other), 0);
    CU_ASSERT_EQUAL(ren_model_save(s.a, "", &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_model_save(s.a, NULL, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_model_save(NULL, s.path, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_model_load(s.a, NULL, 0, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_model_load(NULL, s.path, 0, NULL), REN_ERR_INVALID_ARGUMENT);
    scene_close(&s);
}

/* Proves: a save that the disk cuts short is an error, leaves no temporary file, and the old file
 * is as it was; a save that works replaces the old file by a new one, so a reader of the old keeps
 * it. */
static void test_save_replaces_whole(void)
{
    scene s;
    size_t old_bytes, new_bytes;
    struct rlimit limit, small;
    ren_error err = {0};
    scene_open(&s);
    CU_ASSERT_EQUAL(ren_model_save(s.a, s.path, &err), REN_OK);
    unsigned char *old_file = read_file(s.path, &old_bytes);
    FILE *reader = fopen(s.path, "rb");
    /* A file may not grow past 100 bytes: write gives EFBIG. */
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CU_ASSERT_EQUAL(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 100;
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_FSIZE, &small), 0);
    ren_status status = ren_model_save(s.b, s.path, &err);
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_FSIZE, &limit), 0);
    (void)signal(SIGXFSZ, handler);
    CU_ASSERT_EQUAL(status, REN_ERR_IO);
    CU_ASSERT_EQUAL(files_in(&s), 1);
    unsigned char *new_file = read_file(s.path, &new_bytes);
    CU_ASSERT(new_bytes == old_bytes && memcmp(old_file, new_file, old_bytes) == 0);
    free(new_file);
    CU_ASSERT_EQUAL(ren_model_save(s.b, s.path, &err), REN_OK);
    new_file = malloc(old_bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(reader);
    CU_ASSERT_EQUAL(fread(new_file, 1, old_bytes, reader), old_bytes);
    CU_ASSERT_EQUAL(memcmp(old_file, new_file, old_bytes), 0);
    (void)fclose(reader);
    free(new_file);
    free(old_file);
    scene_close(&s);
}

/* Proves: when the host's allocator refuses the Nth request, for every N, save and load say so,
 * leave the file and the parameters as they were, and lose nothing. */
static void test_no_memory(void)
{
    scene s;
    float a[VALUES];
    scene_open(&s);
    CU_ASSERT_EQUAL(ren_model_save(s.b, s.path, NULL), REN_OK);
    get_values(s.a, a);
    long long live = s.count.live;
    for (int load = 0; load < 2; load++) {
        ren_status status = REN_ERR_NO_MEMORY;
        long long failures = 0;
        for (long long n = 0; n < 1000 && status == REN_ERR_NO_MEMORY; n++) {
            ren_error err = {0};
            s.count.fail_at = n;
            status =
                load ? ren_model_load(s.a, s.path, 0, &err) : ren_model_save(s.b, s.path, &err);
            s.count.fail_at = -1;
            failures += status == REN_ERR_NO_MEMORY;
            CU_ASSERT(status == REN_OK || err.status == REN_ERR_NO_MEMORY);
            CU_ASSERT_EQUAL(s.count.live, live);
            CU_ASSERT_EQUAL(files_in(&s), 1);
            CU_ASSERT(status == REN_OK || same_values(s.a, a));
        }
        CU_ASSERT_EQUAL(status, REN_OK);
        CU_ASSERT(failures >= 5);
    }
    scene_close(&s);
}

typedef struct callback_seen {
    scene *s;
    ren_status save;
    ren_status load;
} callback_seen;

static void save_in_callback(const ren_completion *c, void *user)
{
    callback_seen *seen = user;
    (void)c;
    seen->save = ren_model_save(seen->s->a, seen->s->path, NULL);
    seen->load = ren_model_load(seen->s->a, seen->s->path, 0, NULL);
}

/* Proves: from a callback both calls are refused at once, since they would wait for work that only
 * goes on when the callback returns; and a model with a builder's error gives that error. */
static void test_refused_calls(void)
{
    scene s;
    callback_seen seen = {&s, REN_OK, REN_OK};
    ren_job_desc desc = ren_job_desc_default();
    ren_error err = {0};
    ren_job job;
    scene_open(&s);
    desc.kind = REN_JOB_BARRIER;
    desc.done = save_in_callback;
    desc.user = &seen;
    CU_ASSERT_EQUAL_FATAL(ren_post(s.rt, &desc, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_wait_any(s.rt, REN_TIMEOUT_INFINITE), REN_OK);
    CU_ASSERT_EQUAL(ren_pump(s.rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(seen.save, REN_ERR_REENTRANT);
    CU_ASSERT_EQUAL(seen.load, REN_ERR_REENTRANT);
    (void)ren_relu(s.b, "relu", (ren_tensor){0}); /* the name is taken, the tensor is none */
    ren_status sticky = ren_model_status(s.b, NULL);
    CU_ASSERT(sticky < 0);
    CU_ASSERT_EQUAL(ren_model_save(s.b, s.path, &err), sticky);
    CU_ASSERT_NOT_EQUAL(err.text[0], '\0');
    CU_ASSERT_EQUAL(ren_model_load(s.b, s.path, 0, &err), sticky);
    CU_ASSERT_EQUAL(files_in(&s), 0);
    scene_close(&s);
}

static const ren_test_case cases[] = {
    {"test_save_load_round_trip", test_save_load_round_trip},
    {"test_save_writes_format", test_save_writes_format},
    {"test_save_load_in_training", test_save_load_in_training},
    {"test_save_odd_names", test_save_odd_names},
    {"test_load_mismatch", test_load_mismatch},
    {"test_load_flags", test_load_flags},
    {"test_load_truncated", test_load_truncated},
    {"test_load_mutated_files", test_load_mutated_files},
    {"test_paths_bad", test_paths_bad},
    {"test_save_replaces_whole", test_save_replaces_whole},
    {"test_no_memory", test_no_memory},
    {"test_refused_calls", test_refused_calls},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_checkpoint", cases, REN_TEST_COUNT(cases), 300);
}
