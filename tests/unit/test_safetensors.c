/* SPDX-License-Identifier: MIT */
/* tests/unit/test_safetensors.c - the safetensors parser against good, hostile and mutated files.
 *
 * Purpose   Shows that good files give the right table, that each kind of bad file is refused with
 *           its own words, and that no file, however made, costs more memory than its header is
 *           worth.
 * How       A counting allocator sees every byte: the peak is checked, and that nothing is left.
 */
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libren/core/error.h"
#include "../../libren/train/safetensors.h"
#include "../support/test.h"

enum {
    PEAK_MAX = 16 << 20, /* bytes that a file below 4 KiB may cost */
    FILE_MAX = 1 << 16
};

/* ------------------------------------------------------------------ support */

typedef struct counter {
    size_t live;
    size_t peak;
    long long fail_at; /* the Nth request from here fails; below 0 = none */
} counter;

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    counter *c = user;
    if (c->fail_at >= 0 && c->fail_at-- == 0) {
        return NULL;
    }
    void *ptr = aligned_alloc(align, (bytes + align - 1) & ~(align - 1));
    if (ptr) {
        /* Dirt, so that whoever counts on zeroed memory from a host's allocator fails. */
        memset(ptr, 0xa5, bytes);
        c->live += bytes;
        c->peak = c->live > c->peak ? c->live : c->peak;
    }
    return ptr;
}

static void counted_free(void *user, void *ptr, size_t bytes)
{
    counter *c = user;
    c->live -= bytes;
    free(ptr);
}

static const ren__host_allocator *counted(counter *c)
{
    static ren__host_allocator a = {counted_alloc, counted_free, NULL};
    a.user = c;
    return &a;
}

static void put_length(unsigned char *file, uint64_t length)
{
    for (int i = 0; i < 8; i++) {
        file[i] = (unsigned char)(length >> (8 * i));
    }
}

/* A file of this header and so many zero bytes of data; returns its size. */
static size_t make_file(unsigned char *file, const char *header, size_t data_bytes)
{
    size_t length = strlen(header);
    put_length(file, length);
    memcpy(file + 8, header, length);
    memset(file + 8 + length, 0, data_bytes);
    return 8 + length + data_bytes;
}

/* As a reader of files does it: the length, then the header. */
static ren_status parse_bytes(const ren__host_allocator *a, const unsigned char *file, size_t bytes,
                              ren__safetensors *table, ren_error *err)
{
    uint32_t header_bytes = 0;
    memset(table, 0, sizeof *table);
    ren_status status =
        ren__safetensors_header_bytes(file, bytes < 8 ? bytes : 8, bytes, &header_bytes, err);
    if (status != REN_OK) {
        return status;
    }
    /* A copy of exactly the header, so that a sanitizer sees a read past its end. */
    unsigned char *header = malloc(header_bytes ? header_bytes : 1);
    memcpy(header, file + 8, header_bytes);
    status = ren__safetensors_parse(a, header, header_bytes, bytes, table, err);
    free(header);
    return status;
}

/* The file is refused as damaged, in these words, cheaply, and nothing is left behind. */
static void check_refused(const unsigned char *file, size_t bytes, const char *words)
{
    counter c = {0, 0, -1};
    ren_error err = {0};
    ren__safetensors table;
    ren_status status = parse_bytes(counted(&c), file, bytes, &table, &err);
    if (status != REN_ERR_FORMAT || !strstr(err.text, words)) {
        printf("       wanted '%s', got %d '%s'\n", words, status, err.text);
    }
    CU_ASSERT_EQUAL(status, REN_ERR_FORMAT);
    CU_ASSERT_EQUAL(err.status, REN_ERR_FORMAT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, words));
    CU_ASSERT_EQUAL(c.live, 0);
    CU_ASSERT(c.peak < PEAK_MAX);
    CU_ASSERT_EQUAL(table.count, 0);
    CU_ASSERT_PTR_NULL(table.entries);
}

static void check_header_refused(const char *header, size_t data_bytes, const char *words)
{
    static unsigned char file[FILE_MAX];
    check_refused(file, make_file(file, header, data_bytes), words);
}

static const char *const good_header =
    "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\\u00e9\\n\"},"
    "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
    "\"a\":{\"data_offsets\":[0,8],\"shape\":[],\"dtype\":\"I64\"},"
    "\"quote\\\"d\":{\"dtype\":\"U8\",\"shape\":[1,1,3],\"data_offsets\":[32,35]}}  ";

/* ------------------------------------------------------------------ good files */

/* Proves: names, dtypes, shapes and ranges are those of the text, in its order, and found by name.
 * Fails if a member is mixed up, escapes are not resolved, or the search order is wrong. */
static void test_parse_good_file(void)
{
    static unsigned char file[FILE_MAX];
    counter c = {0, 0, -1};
    ren_error err = {0};
    ren__safetensors t;
    size_t bytes = make_file(file, good_header, 35);
    CU_ASSERT_EQUAL_FATAL(parse_bytes(counted(&c), file, bytes, &t, &err), REN_OK);
    CU_ASSERT_EQUAL_FATAL(t.count, 3);
    CU_ASSERT_EQUAL(t.data_start, 8 + strlen(good_header));
    const ren__safetensors_entry *e = ren__safetensors_find(&t, "b.weight");
    CU_ASSERT_PTR_EQUAL_FATAL(e, &t.entries[0]);
    CU_ASSERT_STRING_EQUAL(e->dtype, "F32");
    CU_ASSERT(e->rank == 2 && e->dims[0] == 2 && e->dims[1] == 3);
    CU_ASSERT(e->begin == 8 && e->end == 32);
    e = ren__safetensors_find(&t, "a");
    CU_ASSERT_PTR_EQUAL_FATAL(e, &t.entries[1]);
    CU_ASSERT(e->rank == 0 && e->begin == 0 && e->end == 8);
    CU_ASSERT_STRING_EQUAL(e->dtype, "I64");
    e = ren__safetensors_find(&t, "quote\"d");
    CU_ASSERT_PTR_EQUAL_FATAL(e, &t.entries[2]);
    CU_ASSERT(e->rank == 3 && e->dims[2] == 3 && e->end == 35);
    CU_ASSERT_PTR_NULL(ren__safetensors_find(&t, "b"));
    CU_ASSERT_PTR_NULL(ren__safetensors_find(&t, ""));
    CU_ASSERT_PTR_NULL(ren__safetensors_find(&t, "__metadata__"));
    ren__safetensors_free(&t);
    CU_ASSERT_EQUAL(c.live, 0);
}

/* Proves: a file with no tensor is good, and has nothing to find. */
static void test_parse_empty_table(void)
{
    static unsigned char file[FILE_MAX];
    counter c = {0, 0, -1};
    ren__safetensors t;
    CU_ASSERT_EQUAL(parse_bytes(counted(&c), file, make_file(file, "{}", 0), &t, NULL), REN_OK);
    CU_ASSERT_EQUAL(t.count, 0);
    CU_ASSERT_PTR_NULL(ren__safetensors_find(&t, "a"));
    ren__safetensors_free(&t);
    CU_ASSERT_EQUAL(c.live, 0);
}

/* Proves: the table grows and sorts: 1,000 tensors are each found by their name, whatever the order
 * of their making. Fails if growing loses entries or the sort or search is wrong. */
static void test_parse_many_tensors(void)
{
    enum {
        MANY = 1000
    };
    size_t room = 128u * MANY;
    unsigned char *file = malloc(8 + room + MANY * 4);
    char *header = malloc(room);
    size_t used = 0;
    counter c = {0, 0, -1};
    ren__safetensors t;
    char name[32];
    for (int i = 0; i < MANY; i++) {
        int place = (i * 619) % MANY; /* 619 and 1,000 share no factor: a permutation */
        used +=
            (size_t)snprintf(header + used, room - used,
                             "%s\"t%d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                             i ? "," : "{", place, 4 * place, 4 * place + 4);
    }
    (void)snprintf(header + used, room - used, "}");
    size_t bytes = make_file(file, header, MANY * 4);
    CU_ASSERT_EQUAL_FATAL(parse_bytes(counted(&c), file, bytes, &t, NULL), REN_OK);
    CU_ASSERT_EQUAL(t.count, MANY);
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        const ren__safetensors_entry *e = ren__safetensors_find(&t, name);
        CU_ASSERT_FATAL(e && e->begin == 4u * (unsigned)i);
    }
    ren__safetensors_free(&t);
    CU_ASSERT_EQUAL(c.live, 0);
    free(header);
    free(file);
}

/* Proves: files of another writer, the golden ones, are accepted whole. */
static void test_parse_golden_files(void)
{
    glob_t found = {0};
    const char *const places[] = {"tests/golden", "../tests/golden", "../../tests/golden",
                                  "../../../tests/golden"};
    char pattern[128];
    for (size_t i = 0; i < REN_TEST_COUNT(places) && found.gl_pathc == 0; i++) {
        (void)snprintf(pattern, sizeof pattern, "%s/*.safetensors", places[i]);
        (void)glob(pattern, 0, NULL, &found);
    }
    if (found.gl_pathc == 0) {
        ren_test_skip("tests/golden is not below the working directory");
        return;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        FILE *stream = fopen(found.gl_pathv[i], "rb");
        CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
        (void)fseek(stream, 0, SEEK_END);
        size_t bytes = (size_t)ftell(stream);
        rewind(stream);
        unsigned char *file = malloc(bytes);
        CU_ASSERT_EQUAL(fread(file, 1, bytes, stream), bytes);
        (void)fclose(stream);
        counter c = {0, 0, -1};
        ren_error err = {0};
        ren__safetensors t;
        ren_status status = parse_bytes(counted(&c), file, bytes, &t, &err);
        if (status != REN_OK) {
            printf("       %s: %s\n", found.gl_pathv[i], err.text);
        }
        CU_ASSERT_EQUAL(status, REN_OK);
        CU_ASSERT(t.count > 0);
        ren__safetensors_free(&t);
        free(file);
    }
    globfree(&found);
}

/* ------------------------------------------------------------------ hostile files */

/* Proves failures.md row 62, file by file: a dimension product that wraps to the right size, a zero
 * dimension, a count of 2^60, offsets past the end, an unknown dtype. Each is refused by its own
 * check and for next to no memory. Fails if a product is not checked for overflow, or a stated
 * number is used to reserve memory. */
static void test_parse_hostile_five(void)
{
    /* 2^32 * 2^32 * 4 wraps to 0, 2^62 * 4 too. */
    check_header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                         "\"data_offsets\":[0,0]}}",
                         0, "overflow 63 bits");
    check_header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[0,0]}}", 0,
                         "is '0', not 1 to");
    check_header_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1152921504606846976],"
                         "\"data_offsets\":[0,1152921504606846976]}}",
                         16, "but the file holds 16 bytes of data");
    check_header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[8,24]}}", 16,
                         "but the file holds 16 bytes of data");
    check_header_refused("{\"a\":{\"dtype\":\"F31\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16,
                         "unknown dtype 'F31'");
}

/* Proves: a length that lies is refused before anything is allocated. */
static void test_header_length_bad(void)
{
    static unsigned char file[FILE_MAX];
    size_t bytes = make_file(file, "{}", 0);
    for (size_t cut = 0; cut < 8; cut++) {
        check_refused(file, cut, "too few for a safetensors file");
    }
    put_length(file, 3);
    check_refused(file, bytes, "the header should have 3 bytes");
    put_length(file, UINT64_MAX);
    check_refused(file, bytes,
                  "no safetensors file: by its first 8 bytes its header would have "
                  "18446744073709551615 bytes");
    put_length(file, 1ull << 60);
    check_refused(file, bytes, "would have 1152921504606846976 bytes");
    put_length(file, 0);
    check_refused(file, bytes, "does not begin with '{'");
    /* A file that is large enough, by its size, but above the cap. */
    uint32_t unused;
    ren_error err = {0};
    put_length(file, REN__SAFETENSORS_HEADER_MAX + 1ull);
    CU_ASSERT_EQUAL(ren__safetensors_header_bytes(file, 8, 1ull << 40, &unused, &err),
                    REN_ERR_FORMAT);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "more than 16777216"));
    put_length(file, REN__SAFETENSORS_HEADER_MAX);
    CU_ASSERT_EQUAL(ren__safetensors_header_bytes(file, 8, 1ull << 40, &unused, &err), REN_OK);
    CU_ASSERT_EQUAL(unused, REN__SAFETENSORS_HEADER_MAX);
}

/* Proves: text that is no JSON, or not this JSON, is refused and the place is named. */
static void test_header_grammar_bad(void)
{
    static const struct {
        const char *header;
        const char *words;
    } rows[] = {
        {"{", "no valid JSON at byte 9"},
        {"{\"a\"", "no valid JSON at byte"},
        {"{\"a\":", "no valid JSON at byte"},
        {"{} x", "no valid JSON at byte"},
        {"{}{}", "no valid JSON at byte"},
        {"{\"\xff\":1}", "no valid JSON at byte"},
        {"{/**/}", "no valid JSON at byte 9"},
        {"{'a':1}", "no valid JSON at byte 10"},
        {"[]", "does not begin with '{'"},
        {" {}", "does not begin with '{'"},
        {"{\"a\":1}", "tensor 'a' is no JSON object"},
        {"{\"a\":[]}", "tensor 'a' is no JSON object"},
        {"{\"a\":null}", "tensor 'a' is no JSON object (before byte 17 of the file)"},
        {"{\"a\":{}}", "tensor 'a' lacks"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", "tensor 'a' lacks"},
        {"{\"a\":{\"dtype\":7}}", "dtype of tensor 'a' is no string"},
        {"{\"a\":{\"dtype\":\"\"}}", "unknown dtype ''"},
        {"{\"a\":{\"dtype\":\"f32\"}}", "unknown dtype 'f32'"},
        {"{\"a\":{\"dtype\":\"F32\\u0000\"}}", "unknown dtype 'F32?'"},
        {"{\"a\":{\"shape\":1}}", "shape of tensor 'a' is no array"},
        {"{\"a\":{\"shape\":[\"1\"]}}", "a dim of tensor 'a'"},
        {"{\"a\":{\"shape\":[[1]]}}", "a dim of tensor 'a'"},
        {"{\"a\":{\"shape\":[null]}}", "a dim of tensor 'a'"},
        {"{\"a\":{\"shape\":[-1]}}", "is '-1', not 1 to"},
        {"{\"a\":{\"shape\":[1.0]}}", "is '1.0', not 1 to"},
        {"{\"a\":{\"shape\":[1e3]}}", "is '1e3', not 1 to"},
        {"{\"a\":{\"shape\":[9223372036854775808]}}", "is '9223372036854775808', not 1 to"},
        {"{\"a\":{\"shape\":[99999999999999999999999]}}", "not 1 to"},
        {"{\"a\":{\"shape\":[1,1,1,1,1,1,1,1,1]}}", "more than 8 dims"},
        {"{\"a\":{\"data_offsets\":{}}}", "data_offsets of tensor 'a' is no array"},
        {"{\"a\":{\"data_offsets\":[]}}", "0 data_offsets, not 2"},
        {"{\"a\":{\"data_offsets\":[0]}}", "1 data_offsets, not 2"},
        {"{\"a\":{\"data_offsets\":[0,1,2]}}", "more than 2 data_offsets"},
        {"{\"a\":{\"data_offsets\":[-1,1]}}", "is '-1', not 0 to"},
        {"{\"a\":{\"data_offsets\":[0,1.5]}}", "is '1.5', not 0 to"},
        {"{\"a\":{\"data_offsets\":[true,1]}}", "a data offset of tensor 'a'"},
        {"{\"a\":{\"stride\":[1]}}", "unknown member 'stride'"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", "two members 'dtype'"},
        {"{\"a\":{\"shape\":[1],\"shape\":[2]}}", "two members 'shape'"},
        {"{\"\":{}}", "is empty or holds a NUL"},
        {"{\"a\\u0000b\":{}}", "the tensor name 'a?b' is empty or holds a NUL"},
        {"{\"__metadata__\":1}", "'__metadata__' is no JSON object"},
        {"{\"__metadata__\":{\"a\":1}}", "a value of '__metadata__' is no string"},
        {"{\"__metadata__\":{\"a\":{}}}", "a value of '__metadata__' is no string"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", "two '__metadata__'"},
    };
    for (size_t i = 0; i < REN_TEST_COUNT(rows); i++) {
        check_header_refused(rows[i].header, 4, rows[i].words);
    }
}

/* Proves: ranges that are reversed, of the wrong length, overlapping, or that leave holes, and data
 * that belongs to nobody, are refused. Fails if any one of the range checks is left out. */
static void test_ranges_bad(void)
{
#define U8_(name, begin, end)                                                                      \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #begin "," #end "]}"
    check_header_refused("{" U8_("a", 4, 0) "}", 4, "data_offsets [4, 0]");
    check_header_refused("{" U8_("a", 0, 3) "}", 3, "needs 4 bytes by its shape");
    check_header_refused("{" U8_("a", 0, 5) "}", 5, "needs 4 bytes by its shape");
    check_header_refused("{" U8_("a", 0, 4) "}", 3, "but the file holds 3 bytes");
    check_header_refused("{" U8_("a", 0, 4) "}", 5, "1 bytes at byte 65 of the file belong to no");
    check_header_refused("{" U8_("a", 0, 4) "," U8_("b", 3, 7) "}", 7,
                         "'b' begins at byte 3 of the data and overlaps");
    check_header_refused("{" U8_("b", 2, 6) "," U8_("a", 0, 4) "}", 6, "overlaps");
    check_header_refused("{" U8_("a", 0, 4) "," U8_("b", 0, 4) "}", 4, "overlaps");
    check_header_refused("{" U8_("a", 0, 4) "," U8_("b", 5, 9) "}", 9, "leaves a hole");
    check_header_refused("{" U8_("a", 1, 5) "}", 5, "leaves a hole");
    check_header_refused("{" U8_("a", 0, 4) "," U8_("a", 4, 8) "}", 8, "two tensors 'a'");
    check_header_refused("{" U8_("a", 0, 4) "," U8_("b", 4, 8) "," U8_("\\u0061", 8, 12) "}", 12,
                         "two tensors 'a'");
    check_header_refused("{" U8_("a", 0, 4) "," U8_("a", 0, 4) "}", 4, "overlaps");
#undef U8_
}

/* Proves: nesting without end stops at the grammar's depth, so it costs neither time nor memory. */
static void test_header_deep_nesting(void)
{
    static unsigned char file[FILE_MAX];
    enum {
        DEEP = 4000
    };
    static const char *const starts[] = {"{\"a\":", "{\"a\":{\"shape\":[", "{\"__metadata__\":"};
    for (size_t i = 0; i < REN_TEST_COUNT(starts); i++) {
        for (int kind = 0; kind < 2; kind++) {
            char header[DEEP + 1];
            size_t used = strlen(starts[i]);
            memcpy(header, starts[i], used);
            while (used + 5 < DEEP) {
                memcpy(header + used, kind ? "{\"a\":" : "[[[[[", 5);
                used += 5;
            }
            header[used] = '\0';
            counter c = {0, 0, -1};
            ren__safetensors t;
            size_t bytes = make_file(file, header, 0);
            CU_ASSERT_EQUAL(parse_bytes(counted(&c), file, bytes, &t, NULL), REN_ERR_FORMAT);
            CU_ASSERT(c.peak < 64 << 10);
            CU_ASSERT_EQUAL(c.live, 0);
        }
    }
}

/* Proves: when the host's allocator refuses the Nth request, for every N, the answer is NO_MEMORY
 * and nothing is left, also when the refusal comes inside the JSON library. Fails, by a crash, if a
 * refused request returns into it. */
static void test_parse_no_memory(void)
{
    static unsigned char file[FILE_MAX];
    char header[8192];
    size_t used = 0;
    ren__safetensors t;
    ren_status status = REN_ERR_NO_MEMORY;
    long long failures = 0;
    for (int i = 0; i < 40; i++) {
        /* The escape makes the library decode into a buffer of its own. */
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"\\u0041_tensor_with_a_long_name_%d\":{\"dtype\":\"U8\","
                                 "\"shape\":[1],\"data_offsets\":[%d,%d]}",
                                 i ? "," : "{", i, i, i + 1);
    }
    (void)snprintf(header + used, sizeof header - used, "}");
    size_t bytes = make_file(file, header, 40);
    for (long long n = 0; n < 1000 && status == REN_ERR_NO_MEMORY; n++) {
        counter c = {0, 0, n};
        ren_error err = {0};
        status = parse_bytes(counted(&c), file, bytes, &t, &err);
        if (status == REN_ERR_NO_MEMORY) {
            failures++;
            CU_ASSERT_EQUAL(err.status, REN_ERR_NO_MEMORY);
            CU_ASSERT_EQUAL(c.live, 0);
        } else {
            CU_ASSERT_EQUAL(status, REN_OK);
            ren__safetensors_free(&t);
            CU_ASSERT_EQUAL(c.live, 0);
        }
    }
    CU_ASSERT_EQUAL(status, REN_OK);
    CU_ASSERT(failures >= 5);
}

/* ------------------------------------------------------------------ mutation */

static size_t pick(unsigned long long *seed, size_t below)
{
    return below ? (size_t)(ren_test_random(seed) % below) : 0;
}

/* One edit of the header's text in place; returns its new length. */
static size_t mutate(char *text, size_t length, size_t room, unsigned long long *seed)
{
    static const char *const words[] = {"0",
                                        "-1",
                                        "4294967296",
                                        "9223372036854775807",
                                        "1e999",
                                        "\"F64\"",
                                        "18446744073709551616",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "\"",
                                        ",",
                                        ":",
                                        "\\u0000",
                                        "\\ud800",
                                        "null",
                                        "\"dtype\"",
                                        "\"shape\"",
                                        "\"data_offsets\"",
                                        "\"__metadata__\":{}",
                                        "1152921504606846976"};
    size_t at = pick(seed, length), span = pick(seed, 24);
    if (length == 0 || at + span > length) {
        span = length - at;
    }
    const char *word = words[pick(seed, REN_TEST_COUNT(words))];
    size_t word_bytes = strlen(word);
    switch (pick(seed, 5)) {
    case 0: /* a byte */
        if (length > 0) {
            text[at] = (char)(unsigned char)pick(seed, 256);
        }
        return length;
    case 1: /* a word over as much text */
        if (at + word_bytes <= length) {
            memcpy(text + at, word, word_bytes);
        }
        return length;
    case 2: /* a word between */
        if (length + word_bytes < room) {
            memmove(text + at + word_bytes, text + at, length - at);
            memcpy(text + at, word, word_bytes);
            return length + word_bytes;
        }
        return length;
    case 3: /* without a piece */
        memmove(text + at, text + at + span, length - at - span);
        return length - span;
    default: /* a piece twice */
        if (length + span < room) {
            memmove(text + at + span, text + at, length - at);
            return length + span;
        }
        return length;
    }
}

/* What must hold of every table that is given out. */
static bool table_is_sound(const ren__safetensors *t, uint64_t file_bytes)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const ren__safetensors_entry *e = &t->entries[i];
        const char *name = t->names + e->name;
        if (e->begin >= e->end || e->end > file_bytes - t->data_start ||
            strlen(name) != e->name_bytes || ren__safetensors_find(t, name) != e) {
            return false;
        }
        sum += e->end - e->begin;
    }
    return sum == file_bytes - t->data_start;
}

/* Proves: 100,000 mutated headers, the same in every run, end in a sound table or a clear refusal,
 * below 16 MiB, with nothing left; under a sanitizer, without a bad access. Fails if some sequence
 * of events reaches an entry that is not there, or any check is missing that soundness needs. */
static void test_parse_mutated_headers(void)
{
    enum {
        RUNS = 100000,
        ROOM = 3000
    };
    static const char *const seeds[] = {
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[24,32]}}",
        "{\"__metadata__\":{\"format\":\"pt\"},\"\\u00e9\":{\"dtype\":\"F16\",\"shape\":[16],"
        "\"data_offsets\":[0,32]}}   ",
        "{\"x\":{\"shape\":[],\"data_offsets\":[0,8],\"dtype\":\"I64\"},"
        "\"y\":{\"dtype\":\"I32\",\"shape\":[1,1,6],\"data_offsets\":[8,32]}}",
    };
    static unsigned char file[FILE_MAX];
    unsigned long long seed = 62;
    unsigned accepted = 0, unsound = 0, silent = 0, leaked = 0, costly = 0, other = 0;
    for (unsigned run = 0; run < RUNS; run++) {
        char *text = (char *)file + 8;
        size_t length = strlen(seeds[run % REN_TEST_COUNT(seeds)]);
        memcpy(text, seeds[run % REN_TEST_COUNT(seeds)], length);
        for (size_t edits = 1 + pick(&seed, 4); edits > 0; edits--) {
            length = mutate(text, length, ROOM, &seed);
        }
        size_t bytes = 8 + length + 32;
        put_length(file, length);
        if (run % 50 == 0) {
            put_length(file, ren_test_random(&seed) >> pick(&seed, 64));
        }
        counter c = {0, 0, -1};
        ren_error err = {0};
        ren__safetensors t;
        ren_status status = parse_bytes(counted(&c), file, bytes, &t, &err);
        accepted += status == REN_OK;
        other += status != REN_OK && status != REN_ERR_FORMAT;
        silent += status != REN_OK && err.text[0] == '\0';
        unsound += status == REN_OK && !table_is_sound(&t, bytes);
        costly += c.peak >= PEAK_MAX;
        ren__safetensors_free(&t);
        leaked += c.live != 0;
    }
    printf("       %u of %u mutated headers are still good\n", accepted, (unsigned)RUNS);
    CU_ASSERT(accepted > RUNS / 1000 && accepted < RUNS / 2);
    CU_ASSERT_EQUAL(other, 0);
    CU_ASSERT_EQUAL(silent, 0);
    CU_ASSERT_EQUAL(unsound, 0);
    CU_ASSERT_EQUAL(costly, 0);
    CU_ASSERT_EQUAL(leaked, 0);
}

static const ren_test_case cases[] = {
    {"test_parse_good_file", test_parse_good_file},
    {"test_parse_empty_table", test_parse_empty_table},
    {"test_parse_many_tensors", test_parse_many_tensors},
    {"test_parse_golden_files", test_parse_golden_files},
    {"test_parse_hostile_five", test_parse_hostile_five},
    {"test_header_length_bad", test_header_length_bad},
    {"test_header_grammar_bad", test_header_grammar_bad},
    {"test_ranges_bad", test_ranges_bad},
    {"test_header_deep_nesting", test_header_deep_nesting},
    {"test_parse_no_memory", test_parse_no_memory},
    {"test_parse_mutated_headers", test_parse_mutated_headers},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "test_safetensors", cases, REN_TEST_COUNT(cases), 300);
}
