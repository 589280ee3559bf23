/* SPDX-License-Identifier: MIT */
/* tests/bench/cases.c - see cases.h. */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bench_precision_names[BENCH_PRECISIONS] = {"f32", "tf32", "f16", "bf16"};

/* Those of a GPU are of sizes and precisions that people train in; the CPU device computes in f32,
 * and gets smaller batches of what would take it seconds. */
static const char gpu_cases[] =
    "mlp-64x4/256/f16,mlp-64x4/16384/f16,mlp-256x4/1024/f16,lenet28/128/tf32,incep32/32/f16,"
    "incep32/32/tf32,resnet18-cifar/128/f16,vgg11-cifar/128/f16,resnet50-224/64/f16,"
    "heads32/32/f16";
static const char cpu_cases[] = "mlp-64x4/256/f32,mlp-256x4/1024/f32,lenet28/128/f32,"
                                "incep32/32/f32,resnet18-cifar/32/f32,vgg11-cifar/32/f32,"
                                "resnet50-224/4/f32,heads32/32/f32";

ren_precision bench_precision_of(bench_precision p)
{
    static const ren_precision precisions[BENCH_PRECISIONS] = {
        [BENCH_F32] = REN_PRECISION_F32,
        [BENCH_TF32] = REN_PRECISION_F32,
        [BENCH_F16] = REN_PRECISION_MIXED_F16,
        [BENCH_BF16] = REN_PRECISION_MIXED_BF16,
    };
    return precisions[p];
}

void bench_model_case_name(const bench_model_case *c, char *out, size_t bytes)
{
    (void)snprintf(out, bytes, "%s/%u/%s", c->model->name, (unsigned)c->batch,
                   bench_precision_names[c->precision]);
}

int bench_lists(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return 1;
        }
    }
    return 0;
}

static void unknown(const char *what)
{
    (void)fprintf(stderr, "no such case: %s; it is <model>/<batch>/<precision>\n", what);
    exit(2);
}

static bench_model_case read_case(const char *text, size_t length)
{
    char name[96];
    bench_model_case c = {NULL, 0, BENCH_PRECISIONS};
    (void)snprintf(name, sizeof name, "%.*s", (int)length, text);
    char *batch = strchr(name, '/');
    char *precision = batch ? strchr(batch + 1, '/') : NULL;
    if (precision) {
        *batch++ = '\0';
        *precision++ = '\0';
        c.model = bench_model_find(name);
        c.batch = (uint32_t)strtoul(batch, NULL, 10);
        for (uint32_t p = 0; p < BENCH_PRECISIONS; p++) {
            c.precision =
                strcmp(precision, bench_precision_names[p]) == 0 ? (bench_precision)p : c.precision;
        }
    }
    if (!c.model || c.batch == 0 || c.precision == BENCH_PRECISIONS) {
        unknown(name);
    }
    return c;
}

static uint32_t read_cases(const char *list, bench_model_case out[BENCH_MOST_CASES])
{
    uint32_t count = 0;
    while (*list && count < BENCH_MOST_CASES) {
        size_t length = strcspn(list, ",");
        out[count++] = read_case(list, length);
        list += length + (list[length] == ',');
    }
    return count;
}

static uint32_t make_pairs(const bench_choice *choice, ren_device_kind device,
                           bench_model_case out[BENCH_MOST_CASES])
{
    const char *by_default = device == REN_DEVICE_CUDA ? "f32,f16" : "f32";
    const char *precisions = choice->precisions ? choice->precisions : by_default;
    uint32_t count = 0;
    for (size_t i = 0; i < bench_model_count; i++) {
        const bench_model *model = &bench_models[i];
        uint32_t wanted =
            choice->models ? (uint32_t)bench_lists(choice->models, model->name)
                           : device == REN_DEVICE_CUDA || strcmp(model->name, "resnet50-224") != 0;
        for (uint32_t p = 0; wanted && p < BENCH_PRECISIONS && count < BENCH_MOST_CASES; p++) {
            if (bench_lists(precisions, bench_precision_names[p])) {
                out[count++] = (bench_model_case){
                    model, choice->batch ? choice->batch : model->batch, (bench_precision)p};
            }
        }
    }
    if (count == 0) {
        unknown(choice->models ? choice->models : precisions);
    }
    return count;
}

uint32_t bench_choose(const bench_choice *choice, ren_device_kind device,
                      bench_model_case out[BENCH_MOST_CASES])
{
    if (choice->cases) {
        return read_cases(choice->cases, out);
    }
    if (choice->models || choice->precisions || choice->batch) {
        return make_pairs(choice, device, out);
    }
    return read_cases(device == REN_DEVICE_CUDA ? gpu_cases : cpu_cases, out);
}
