/* SPDX-License-Identifier: MIT */
/* tests/golden/reader.c - a small safetensors reader for files that we trust.
 *
 * Purpose   See reader.h. A safetensors file is: 8 bytes little-endian header length, a JSON object
 *           that maps names to {"dtype", "shape", "data_offsets"}, then the data. The header is
 *           searched as text: names are plain and unique, which our generator guarantees.
 * Not here  The library's own reader, which trusts nothing, is in libren/train.
 */
#include "reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct golden_case {
    char name[64];
    char *header; /* NUL-terminated */
    unsigned char *file;
    size_t bytes;
    const unsigned char *data;
};

static void die(const char *what, const char *name, const char *tensor)
{
    fprintf(stderr, "golden: %s: %s %s\n", name, what, tensor);
    exit(1);
}

static FILE *open_file(const char *name)
{
    static const char *const parents[] = {"", "../", "../../", "../../../", "../../../../"};
    char path[512];
    FILE *f = NULL;
#ifdef GOLDEN_DIR
    snprintf(path, sizeof path, "%s/%s.safetensors", GOLDEN_DIR, name);
    f = fopen(path, "rb");
#endif
    for (size_t i = 0; !f && i < sizeof parents / sizeof parents[0]; i++) {
        snprintf(path, sizeof path, "%stests/golden/%s.safetensors", parents[i], name);
        f = fopen(path, "rb");
    }
    return f;
}

golden_case *golden_open(const char *name)
{
    FILE *f = open_file(name);
    if (!f) {
        die("no such file", name, "");
    }
    golden_case *g = calloc(1, sizeof *g);
    if (!g || fseek(f, 0, SEEK_END) != 0) {
        die("cannot read", name, "");
    }
    long end = ftell(f);
    rewind(f);
    g->bytes = end > 0 ? (size_t)end : 0u;
    /* One spare double keeps the data's alignment for any header length that is a multiple of 8. */
    g->file = malloc(g->bytes + 8u);
    if (!g->file || fread(g->file, 1, g->bytes, f) != g->bytes || g->bytes < 8u) {
        die("cannot read", name, "");
    }
    fclose(f);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = (length << 8) | g->file[i];
    }
    if (length > g->bytes - 8u) {
        die("header too long", name, "");
    }
    snprintf(g->name, sizeof g->name, "%s", name);
    g->header = malloc((size_t)length + 1u);
    if (!g->header) {
        die("out of memory", name, "");
    }
    memcpy(g->header, g->file + 8, (size_t)length);
    g->header[length] = '\0';
    g->data = g->file + 8 + length;
    if ((length & 3u) != 0u) {
        /* Data that is not aligned to 4 bytes is moved down to where it is. */
        memmove(g->file, g->data, g->bytes - 8u - (size_t)length);
        g->data = g->file;
    }
    return g;
}

void golden_close(golden_case *g)
{
    if (g) {
        free(g->header);
        free(g->file);
        free(g);
    }
}

/* The text after `"key":`, or NULL. */
static const char *find(const char *text, const char *key)
{
    char quoted[96];
    size_t n = (size_t)snprintf(quoted, sizeof quoted, "\"%s\"", key);
    for (const char *p = strstr(text, quoted); p; p = strstr(p + 1, quoted)) {
        const char *q = p + n;
        q += strspn(q, " ");
        if (*q == ':') {
            return q + 1 + strspn(q + 1, " ");
        }
    }
    return NULL;
}

int golden_has(const golden_case *g, const char *tensor)
{
    const char *entry = find(g->header, tensor);
    return entry && *entry == '{';
}

static const void *tensor_data(const golden_case *g, const char *tensor, const char *dtype,
                               int64_t *out_dims, uint32_t *out_rank, size_t *out_count)
{
    const char *entry = find(g->header, tensor);
    if (!entry || *entry != '{') {
        die("no tensor", g->name, tensor);
    }
    const char *type = find(entry, "dtype");
    const char *shape = find(entry, "shape");
    const char *offsets = find(entry, "data_offsets");
    if (!type || !shape || !offsets || strncmp(type + 1, dtype, strlen(dtype)) != 0) {
        die("unexpected dtype or entry of", g->name, tensor);
    }
    uint32_t rank = 0;
    size_t count = 1;
    const char *p = shape + 1;
    while (*p && *p != ']' && rank < GOLDEN_MAX_RANK) {
        char *next;
        int64_t dim = strtoll(p, &next, 10);
        if (out_dims) {
            out_dims[rank] = dim;
        }
        count *= (size_t)dim;
        rank++;
        p = next + strspn(next, ", ");
    }
    char *comma;
    size_t begin = (size_t)strtoull(offsets + 1, &comma, 10);
    size_t end = (size_t)strtoull(comma + 1, NULL, 10);
    if (end - begin != count * 4u || g->data + end > g->file + g->bytes) {
        die("bad offsets of", g->name, tensor);
    }
    if (out_rank) {
        *out_rank = rank;
    }
    if (out_count) {
        *out_count = count;
    }
    return g->data + begin;
}

const float *golden_tensor(const golden_case *g, const char *tensor, int64_t *out_dims,
                           uint32_t *out_rank, size_t *out_count)
{
    return tensor_data(g, tensor, "F32", out_dims, out_rank, out_count);
}

const int32_t *golden_tensor_i32(const golden_case *g, const char *tensor, int64_t *out_dims,
                                 uint32_t *out_rank, size_t *out_count)
{
    return tensor_data(g, tensor, "I32", out_dims, out_rank, out_count);
}

double golden_number(const golden_case *g, const char *key, double absent)
{
    /* The description is a JSON string inside the header's __metadata__, its quotes escaped. */
    char quoted[96];
    snprintf(quoted, sizeof quoted, "\\\"%s\\\"", key);
    const char *p = strstr(g->header, quoted);
    if (!p) {
        return absent;
    }
    p += strlen(quoted);
    p += strspn(p, " :[");
    if (strncmp(p, "true", 4) == 0) {
        return 1.0;
    }
    char *end;
    double value = strtod(p, &end);
    return end == p ? absent : value;
}

double golden_distance(const float *a, const float *b, size_t count)
{
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)a[i] - (double)b[i];
        difference += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    if (isnan(difference)) {
        return INFINITY;
    }
    return norm > 0.0 ? sqrt(difference / norm) : sqrt(difference);
}
