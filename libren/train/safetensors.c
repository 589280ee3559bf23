/* SPDX-License-Identifier: MIT */
/* libren/train/safetensors.c - the header of a safetensors file, as a table of tensors.
 *
 * Purpose   See safetensors.h.
 * Threads   See safetensors.h.
 * How       One pass over the header's JSON: `place` says where in the grammar the parser is, and
 *           each place has a function that takes the events which may come there and refuses the
 *           others; so nesting deeper than the grammar's three levels ends at once. Then the table
 *           is sorted twice: by name, to find doubles, and by range, to see that the ranges tile
 *           the data exactly.
 * Hostile   Nothing is allocated by a number that the file states, only by what the header holds in
 *           text; every product and sum is checked before it is used; time is n log n of its
 *           length.
 */
#include "safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "../core/error.h"
#include "json.h"

typedef enum place {
    AT_START = 0,
    AT_TENSOR_NAME,
    AT_TENSOR,
    AT_MEMBER,
    AT_DTYPE,
    AT_SHAPE,
    IN_SHAPE,
    AT_OFFSETS,
    IN_OFFSETS,
    AT_METADATA,
    AT_METADATA_KEY,
    AT_METADATA_VALUE,
    AT_END,
    PLACES
} place;

enum {
    SEEN_DTYPE = 1,
    SEEN_SHAPE = 2,
    SEEN_OFFSETS = 4,
    SEEN_ALL = 7
};

typedef struct parser {
    ren__safetensors *table;
    place at;
    uint32_t seen;    /* members of the tensor being read */
    uint32_t offsets; /* numbers of its data_offsets so far */
    bool metadata;    /* there was one */
    ren_status status;
    char text[160]; /* what was wrong */
} parser;

/* ------------------------------------------------------------------ small helpers */

const char *ren__safetensors_show(const char *name, size_t bytes, char out[48])
{
    size_t n = bytes < 44 ? bytes : 44;
    for (size_t i = 0; i < n; i++) {
        out[i] = name[i] >= ' ' && name[i] < 127 ? name[i] : '?';
    }
    (void)snprintf(out + n, 4, "%s", bytes > n ? "..." : "");
    return out;
}

static bool refuse(parser *p, ren_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool refuse(parser *p, ren_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(p->text, sizeof p->text, format, arguments);
    va_end(arguments);
    p->status = status;
    return false;
}

static ren__safetensors_entry *current(parser *p)
{
    return &p->table->entries[p->table->count - 1u];
}

static const char *current_name(parser *p, char out[48])
{
    return ren__safetensors_show(p->table->names + current(p)->name, current(p)->name_bytes, out);
}

static bool is(const char *text, size_t bytes, const char *word)
{
    return bytes == strlen(word) && memcmp(text, word, bytes) == 0;
}

/* Bytes of one element; 0 for a dtype that is none. */
static uint32_t dtype_bytes(const char *text, size_t bytes)
{
    static const struct {
        const char *name;
        uint32_t bytes;
    } dtypes[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2},    {"F64", 8},    {"I64", 8}, {"I32", 4},
                  {"I16", 2}, {"I8", 1},  {"U8", 1},      {"BOOL", 1},   {"U16", 2}, {"U32", 4},
                  {"U64", 8}, {"C64", 8}, {"F8_E5M2", 1}, {"F8_E4M3", 1}};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (is(text, bytes, dtypes[i].name)) {
            return dtypes[i].bytes;
        }
    }
    return 0;
}

/* A plain decimal integer below 2^63: no sign, fraction, exponent or leading zero. */
static bool plain_integer(const char *text, size_t bytes, uint64_t *out)
{
    uint64_t value = 0;
    if (bytes == 0 || (bytes > 1 && text[0] == '0')) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        uint64_t digit = (uint64_t)text[i] - '0'; /* above 9 for anything but a digit */
        if (digit > 9u || value > ((uint64_t)INT64_MAX - digit) / 10u) {
            return false;
        }
        value = value * 10u + digit;
    }
    *out = value;
    return true;
}

/* Room for `need` elements: *array is replaced by one twice as large. */
static bool grow(parser *p, void **array, uint32_t *capacity, uint32_t need, size_t size)
{
    const ren__host_allocator *a = &p->table->allocator;
    uint32_t room = *capacity ? *capacity : 16u;
    while (room < need) {
        room *= 2u; /* need is below 2^25: both arrays hold less than the header */
    }
    if (room == *capacity) {
        return true;
    }
    void *moved = ren__host_calloc(a, room, size);
    if (!moved) {
        return refuse(p, REN_ERR_NO_MEMORY, "no memory for the table of tensors");
    }
    if (*array) {
        memcpy(moved, *array, *capacity * size);
        ren__host_free(a, *array, *capacity, size);
    }
    *array = moved;
    *capacity = room;
    return true;
}

/* ------------------------------------------------------------------ the grammar */

static bool add_entry(parser *p, const char *name, size_t bytes)
{
    ren__safetensors *t = p->table;
    char shown[48];
    void *entries = t->entries, *names = t->names;
    if (bytes == 0 || memchr(name, '\0', bytes)) {
        return refuse(p, REN_ERR_FORMAT, "the tensor name '%s' is empty or holds a NUL",
                      ren__safetensors_show(name, bytes, shown));
    }
    bool grown = grow(p, &entries, &t->capacity, t->count + 1u, sizeof *t->entries);
    t->entries = entries;
    grown = grown && grow(p, &names, &t->names_capacity, t->names_bytes + (uint32_t)bytes + 1u, 1);
    t->names = names;
    if (!grown) {
        return false;
    }
    ren__safetensors_entry *e = &t->entries[t->count++];
    e->name = t->names_bytes;
    e->name_bytes = (uint32_t)bytes;
    memcpy(t->names + t->names_bytes, name, bytes); /* the byte after it is zero already */
    t->names_bytes += (uint32_t)bytes + 1u;
    return true;
}

static bool at_start(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    (void)text;
    (void)bytes;
    if (event != REN__JSON_OBJECT_BEGIN) {
        return refuse(p, REN_ERR_FORMAT, "the header is no JSON object");
    }
    p->at = AT_TENSOR_NAME;
    return true;
}

static bool at_tensor_name(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    if (event == REN__JSON_OBJECT_END) {
        p->at = AT_END;
        return true;
    }
    /* Inside an object JSON admits keys only. */
    if (!is(text, bytes, "__metadata__")) {
        p->at = AT_TENSOR;
        p->seen = 0;
        p->offsets = 0;
        return add_entry(p, text, bytes);
    }
    if (p->metadata) {
        return refuse(p, REN_ERR_FORMAT, "there are two '__metadata__'");
    }
    p->metadata = true;
    p->at = AT_METADATA;
    return true;
}

static bool at_tensor(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    char shown[48];
    (void)text;
    (void)bytes;
    if (event != REN__JSON_OBJECT_BEGIN) {
        return refuse(p, REN_ERR_FORMAT, "tensor '%s' is no JSON object", current_name(p, shown));
    }
    p->at = AT_MEMBER;
    return true;
}

static bool at_member(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    static const struct {
        const char *name;
        uint32_t seen;
        place at;
    } members[] = {{"dtype", SEEN_DTYPE, AT_DTYPE},
                   {"shape", SEEN_SHAPE, AT_SHAPE},
                   {"data_offsets", SEEN_OFFSETS, AT_OFFSETS}};
    char shown[48], member[48];
    if (event == REN__JSON_OBJECT_END) {
        p->at = AT_TENSOR_NAME;
        return p->seen == SEEN_ALL ||
               refuse(p, REN_ERR_FORMAT, "tensor '%s' lacks a dtype, a shape or data_offsets",
                      current_name(p, shown));
    }
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (is(text, bytes, members[i].name)) {
            bool twice = (p->seen & members[i].seen) != 0;
            p->seen |= members[i].seen;
            p->at = members[i].at;
            return !twice || refuse(p, REN_ERR_FORMAT, "tensor '%s' has two members '%s'",
                                    current_name(p, shown), members[i].name);
        }
    }
    return refuse(p, REN_ERR_FORMAT, "tensor '%s' has an unknown member '%s'",
                  current_name(p, shown), ren__safetensors_show(text, bytes, member));
}

static bool at_dtype(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    char shown[48], dtype[48];
    if (event != REN__JSON_STRING) {
        return refuse(p, REN_ERR_FORMAT, "the dtype of tensor '%s' is no string",
                      current_name(p, shown));
    }
    if (dtype_bytes(text, bytes) == 0) {
        return refuse(p, REN_ERR_FORMAT, "tensor '%s' has the unknown dtype '%s'",
                      current_name(p, shown), ren__safetensors_show(text, bytes, dtype));
    }
    memcpy(current(p)->dtype, text, bytes);
    p->at = AT_MEMBER;
    return true;
}

/* The "[" of shape and of data_offsets. */
static bool at_array(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    char shown[48];
    (void)text;
    (void)bytes;
    if (event != REN__JSON_ARRAY_BEGIN) {
        return refuse(p, REN_ERR_FORMAT, "the %s of tensor '%s' is no array",
                      p->at == AT_SHAPE ? "shape" : "data_offsets", current_name(p, shown));
    }
    p->at = p->at == AT_SHAPE ? IN_SHAPE : IN_OFFSETS;
    return true;
}

static bool in_shape(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    ren__safetensors_entry *e = current(p);
    char shown[48], number[48];
    uint64_t dim;
    if (event == REN__JSON_ARRAY_END) {
        p->at = AT_MEMBER;
        return true;
    }
    if (event != REN__JSON_NUMBER || !plain_integer(text, bytes, &dim) || dim == 0) {
        return refuse(p, REN_ERR_FORMAT, "a dim of tensor '%s' is '%s', not 1 to 2^63 - 1",
                      current_name(p, shown), ren__safetensors_show(text, bytes, number));
    }
    if (e->rank == REN__SAFETENSORS_RANK) {
        return refuse(p, REN_ERR_FORMAT, "tensor '%s' has more than %u dims",
                      current_name(p, shown), REN__SAFETENSORS_RANK);
    }
    e->dims[e->rank++] = dim;
    return true;
}

static bool in_offsets(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    ren__safetensors_entry *e = current(p);
    char shown[48], number[48];
    uint64_t offset;
    if (event == REN__JSON_ARRAY_END) {
        p->at = AT_MEMBER;
        return p->offsets == 2 ||
               refuse(p, REN_ERR_FORMAT, "tensor '%s' has %u data_offsets, not 2",
                      current_name(p, shown), p->offsets);
    }
    if (event != REN__JSON_NUMBER || !plain_integer(text, bytes, &offset)) {
        return refuse(p, REN_ERR_FORMAT, "a data offset of tensor '%s' is '%s', not 0 to 2^63 - 1",
                      current_name(p, shown), ren__safetensors_show(text, bytes, number));
    }
    if (p->offsets == 2) {
        return refuse(p, REN_ERR_FORMAT, "tensor '%s' has more than 2 data_offsets",
                      current_name(p, shown));
    }
    *(p->offsets == 0 ? &e->begin : &e->end) = offset;
    p->offsets++;
    return true;
}

static bool at_metadata(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    (void)text;
    (void)bytes;
    if (event != REN__JSON_OBJECT_BEGIN) {
        return refuse(p, REN_ERR_FORMAT, "'__metadata__' is no JSON object");
    }
    p->at = AT_METADATA_KEY;
    return true;
}

static bool at_metadata_key(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    (void)text;
    (void)bytes;
    p->at = event == REN__JSON_OBJECT_END ? AT_TENSOR_NAME : AT_METADATA_VALUE;
    return true;
}

static bool at_metadata_value(parser *p, ren__json_event event, const char *text, size_t bytes)
{
    (void)text;
    (void)bytes;
    if (event != REN__JSON_STRING) {
        return refuse(p, REN_ERR_FORMAT, "a value of '__metadata__' is no string");
    }
    p->at = AT_METADATA_KEY;
    return true;
}

static bool on_event(void *user, ren__json_event event, const char *text, size_t bytes)
{
    static bool (*const rules[PLACES])(parser *, ren__json_event, const char *, size_t) = {
        [AT_START] = at_start,
        [AT_TENSOR_NAME] = at_tensor_name,
        [AT_TENSOR] = at_tensor,
        [AT_MEMBER] = at_member,
        [AT_DTYPE] = at_dtype,
        [AT_SHAPE] = at_array,
        [IN_SHAPE] = in_shape,
        [AT_OFFSETS] = at_array,
        [IN_OFFSETS] = in_offsets,
        [AT_METADATA] = at_metadata,
        [AT_METADATA_KEY] = at_metadata_key,
        [AT_METADATA_VALUE] = at_metadata_value,
    };
    parser *p = user;
    /* After the object ends JSON admits no more events, so AT_END needs no rule. */
    return rules[p->at] && rules[p->at](p, event, text, bytes);
}

/* ------------------------------------------------------------------ checks of the whole table */

typedef int (*compare_fn)(const ren__safetensors *t, uint32_t a, uint32_t b);

static int compare_names(const ren__safetensors *t, uint32_t a, uint32_t b)
{
    return strcmp(t->names + t->entries[a].name, t->names + t->entries[b].name);
}

static int compare_ranges(const ren__safetensors *t, uint32_t a, uint32_t b)
{
    uint64_t x = t->entries[a].begin, y = t->entries[b].begin;
    return (x > y) - (x < y);
}

static void sift_down(const ren__safetensors *t, uint32_t *order, uint32_t root, uint32_t count,
                      compare_fn compare)
{
    uint32_t moved = order[root];
    for (;;) {
        uint32_t child = 2u * root + 1u;
        if (child >= count) {
            break;
        }
        if (child + 1u < count && compare(t, order[child], order[child + 1u]) < 0) {
            child++;
        }
        if (compare(t, moved, order[child]) >= 0) {
            break;
        }
        order[root] = order[child];
        root = child;
    }
    order[root] = moved;
}

/* Heap sort: in place and n log n for every input, since the input may be an adversary's. */
static void sort(const ren__safetensors *t, uint32_t *order, compare_fn compare)
{
    for (uint32_t i = 0; i < t->count; i++) {
        order[i] = i;
    }
    for (uint32_t i = t->count / 2u; i > 0; i--) {
        sift_down(t, order, i - 1u, t->count, compare);
    }
    for (uint32_t end = t->count; end > 1; end--) {
        uint32_t largest = order[0];
        order[0] = order[end - 1u];
        order[end - 1u] = largest;
        sift_down(t, order, 0, end - 1u, compare);
    }
}

static ren_status check_size(const ren__safetensors *t, const ren__safetensors_entry *e,
                             uint64_t data_bytes, ren_error *err)
{
    char shown[48];
    const char *name = ren__safetensors_show(t->names + e->name, e->name_bytes, shown);
    uint64_t bytes = dtype_bytes(e->dtype, strlen(e->dtype));
    for (uint32_t i = 0; i < e->rank; i++) {
        if (e->dims[i] > (uint64_t)INT64_MAX / bytes) {
            return REN__FAIL(err, REN_ERR_FORMAT, "the dims of tensor '%s' overflow 63 bits", name);
        }
        bytes *= e->dims[i];
    }
    if (e->begin > e->end || e->end > data_bytes) {
        return REN__FAIL(err, REN_ERR_FORMAT,
                         "tensor '%s' has data_offsets [%" PRIu64 ", %" PRIu64
                         "], but the file holds %" PRIu64 " bytes of data from byte %" PRIu64,
                         name, e->begin, e->end, data_bytes, t->data_start);
    }
    if (e->end - e->begin != bytes) {
        return REN__FAIL(err, REN_ERR_FORMAT,
                         "tensor '%s' needs %" PRIu64 " bytes by its shape and dtype, but its "
                         "data_offsets [%" PRIu64 ", %" PRIu64 "] give %" PRIu64,
                         name, bytes, e->begin, e->end, e->end - e->begin);
    }
    return REN_OK;
}

/* The ranges follow one another from 0 to the end. */
static ren_status check_tiling(const ren__safetensors *t, const uint32_t *order,
                               uint64_t data_bytes, ren_error *err)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const ren__safetensors_entry *e = &t->entries[order[i]];
        char shown[48];
        if (e->begin != at) {
            return REN__FAIL(err, REN_ERR_FORMAT,
                             "the data of tensor '%s' begins at byte %" PRIu64
                             " of the data and %s "
                             "the tensor before it, which ends at %" PRIu64,
                             ren__safetensors_show(t->names + e->name, e->name_bytes, shown),
                             e->begin, e->begin < at ? "overlaps" : "leaves a hole after", at);
        }
        at = e->end;
    }
    if (at != data_bytes) {
        return REN__FAIL(err, REN_ERR_FORMAT,
                         "%" PRIu64 " bytes at byte %" PRIu64 " of the file belong to no tensor",
                         data_bytes - at, t->data_start + at);
    }
    return REN_OK;
}

static ren_status check_table(ren__safetensors *t, uint64_t data_bytes, ren_error *err)
{
    ren_status status = REN_OK;
    char shown[48];
    if (t->count == 0) {
        return check_tiling(t, NULL, data_bytes, err);
    }
    t->by_name = ren__host_calloc(&t->allocator, t->count, sizeof *t->by_name);
    if (!t->by_name) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory for the table of tensors");
    }
    for (uint32_t i = 0; i < t->count && status == REN_OK; i++) {
        status = check_size(t, &t->entries[i], data_bytes, err);
    }
    if (status != REN_OK) {
        return status;
    }
    sort(t, t->by_name, compare_ranges);
    status = check_tiling(t, t->by_name, data_bytes, err);
    if (status != REN_OK) {
        return status;
    }
    sort(t, t->by_name, compare_names);
    for (uint32_t i = 1; i < t->count; i++) {
        if (compare_names(t, t->by_name[i - 1u], t->by_name[i]) == 0) {
            const ren__safetensors_entry *e = &t->entries[t->by_name[i]];
            return REN__FAIL(err, REN_ERR_FORMAT, "there are two tensors '%s'",
                             ren__safetensors_show(t->names + e->name, e->name_bytes, shown));
        }
    }
    return REN_OK;
}

/* ------------------------------------------------------------------ entry points */

ren_status ren__safetensors_header_bytes(const void *prefix, size_t available, uint64_t file_bytes,
                                         uint32_t *out_bytes, ren_error *err)
{
    const unsigned char *bytes = prefix;
    uint64_t length = 0;
    if (available < REN__SAFETENSORS_PREFIX || file_bytes < REN__SAFETENSORS_PREFIX) {
        return REN__FAIL(err, REN_ERR_FORMAT,
                         "the file has %" PRIu64 " bytes, too few for a safetensors file",
                         file_bytes);
    }
    for (uint32_t i = 0; i < REN__SAFETENSORS_PREFIX; i++) {
        length |= (uint64_t)bytes[i] << (8u * i);
    }
    if (length > REN__SAFETENSORS_HEADER_MAX) {
        return REN__FAIL(err, REN_ERR_FORMAT,
                         "this is no safetensors file: by its first 8 bytes its header would have "
                         "%" PRIu64 " bytes, more than %u",
                         length, REN__SAFETENSORS_HEADER_MAX);
    }
    if (length > file_bytes - REN__SAFETENSORS_PREFIX) {
        return REN__FAIL(err, REN_ERR_FORMAT,
                         "the file is cut short: the header should have %" PRIu64
                         " bytes (at byte 0), but the file has %" PRIu64,
                         length, file_bytes);
    }
    *out_bytes = (uint32_t)length;
    return REN_OK;
}

static ren_status explain(const parser *p, ren__json_result result, size_t position, ren_error *err)
{
    size_t at = position + REN__SAFETENSORS_PREFIX;
    if (result == REN__JSON_NO_MEMORY || p->status == REN_ERR_NO_MEMORY) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory to read the header");
    }
    if (result == REN__JSON_STOPPED) {
        return REN__FAIL(err, REN_ERR_FORMAT, "%s (before byte %zu of the file)", p->text, at);
    }
    return REN__FAIL(err, REN_ERR_FORMAT, "the header is no valid JSON at byte %zu of the file",
                     at);
}

ren_status ren__safetensors_parse(const ren__host_allocator *a, const void *header,
                                  uint32_t header_bytes, uint64_t file_bytes, ren__safetensors *out,
                                  ren_error *err)
{
    parser p = {.table = out, .at = AT_START};
    size_t position = 0;
    ren_status status;
    memset(out, 0, sizeof *out);
    out->allocator = *a;
    out->data_start = REN__SAFETENSORS_PREFIX + (uint64_t)header_bytes;
    if (header_bytes == 0 || *(const char *)header != '{') {
        status = REN__FAIL(err, REN_ERR_FORMAT, "the header does not begin with '{' at byte 8");
    } else {
        ren__json_result result = ren__json_parse(a, header, header_bytes, on_event, &p, &position);
        status = result == REN__JSON_OK ? check_table(out, file_bytes - out->data_start, err)
                                        : explain(&p, result, position, err);
    }
    if (status != REN_OK) {
        ren__safetensors_free(out);
    }
    return status;
}

void ren__safetensors_free(ren__safetensors *t)
{
    ren__host_free(&t->allocator, t->entries, t->capacity, sizeof *t->entries);
    ren__host_free(&t->allocator, t->by_name, t->count, sizeof *t->by_name);
    ren__host_free(&t->allocator, t->names, t->names_capacity, 1);
    memset(t, 0, sizeof *t);
}

const ren__safetensors_entry *ren__safetensors_find(const ren__safetensors *t, const char *name)
{
    uint32_t low = 0, high = t->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2u;
        const ren__safetensors_entry *e = &t->entries[t->by_name[middle]];
        int order = strcmp(name, t->names + e->name);
        if (order == 0) {
            return e;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return NULL;
}
