/* SPDX-License-Identifier: MIT */
/* libren/train/checkpoint.c - a model's parameters to and from a safetensors file.
 *
 * Purpose   See checkpoint.h.
 * Threads   See checkpoint.h.
 * Save      The parameters are read as one version, then written as file.h says. Data begin at a
 * multiple of 8 bytes, and lie in the order of the
 *           model's making.
 * Load      Every check is made before the model is touched: the header against the format, the
 *           model against the header, and the data read to the end. Then all parameters change
 *           together.
 */
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/error.h"
#include "file.h"
#include "safetensors.h"

enum {
    DATA_ALIGN = 8,
    TRANSFER_BYTES = 1 << 30 /* most bytes of one read call */
};

/* ------------------------------------------------------------------ whole reads */

/* 0, or an errno; EIO for a file that ended early. */
static int read_all(int fd, void *data, uint64_t bytes, uint64_t offset)
{
    unsigned char *at = data;
    while (bytes > 0) {
        size_t part = bytes < TRANSFER_BYTES ? (size_t)bytes : TRANSFER_BYTES;
        ssize_t n = pread(fd, at, part, (off_t)offset);
        if (n > 0) {
            at += n;
            offset += (uint64_t)n;
            bytes -= (uint64_t)n;
        } else if (n == 0) {
            return EIO;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* ------------------------------------------------------------------ save: the header */

/* Text of a size found by writing it once without a buffer. */
typedef struct writer {
    char *text; /* NULL: only count */
    size_t room;
    size_t used;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(writer *w, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(w->text ? w->text + w->used : NULL, w->text ? w->room - w->used : 0, format,
                      arguments);
    va_end(arguments);
    w->used += n > 0 ? (size_t)n : 0;
}

static void put_string(writer *w, const char *text)
{
    put(w, "\"");
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') {
            put(w, "\\%c", *c);
        } else if ((unsigned char)*c < 0x20u) {
            put(w, "\\u%04x", (unsigned)(unsigned char)*c);
        } else {
            put(w, "%c", *c);
        }
    }
    put(w, "\"");
}

static void put_header(writer *w, ren_model *m)
{
    uint64_t begin = 0;
    put(w, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = 0; i < ren__model_param_count(m); i++) {
        const char *name;
        const int64_t *dims;
        uint32_t rank;
        uint64_t bytes;
        ren__model_param_info(m, i, &name, &rank, &dims, &bytes);
        put(w, ",");
        put_string(w, name);
        put(w, ":{\"dtype\":\"F32\",\"shape\":[");
        for (uint32_t d = 0; d < rank; d++) {
            put(w, "%s%" PRId64, d ? "," : "", dims[d]);
        }
        put(w, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + bytes);
        begin += bytes;
    }
    put(w, "}");
}

/* The 8 bytes of length, the header and blanks up to the data. The text is read back before it is
 * used: a file that load would refuse (a name that is not UTF-8, more names than the format's
 * header can hold) must not replace a good one. */
static ren_status make_header(ren_model *m, const ren__host_allocator *a, char **out,
                              size_t *out_bytes, ren_error *err)
{
    writer count = {NULL, 0, REN__SAFETENSORS_PREFIX};
    put_header(&count, m);
    size_t bytes = (count.used + DATA_ALIGN - 1u) & ~(size_t)(DATA_ALIGN - 1u);
    uint64_t length = bytes - REN__SAFETENSORS_PREFIX;
    if (length > REN__SAFETENSORS_HEADER_MAX) {
        return REN__FAIL(err, REN_ERR_NAME, "the names take %zu bytes, more than a header holds",
                         bytes);
    }
    char *header = ren__host_calloc(a, bytes + 1u, 1);
    if (!header) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory for a header of %zu bytes", bytes);
    }
    writer w = {header, bytes + 1u, REN__SAFETENSORS_PREFIX};
    put_header(&w, m);
    memset(header + w.used, ' ', bytes - w.used);
    for (uint32_t i = 0; i < REN__SAFETENSORS_PREFIX; i++) {
        header[i] = (char)(unsigned char)(length >> (8u * i));
    }
    ren__safetensors table;
    ren_status status =
        ren__safetensors_parse(a, header + REN__SAFETENSORS_PREFIX, (uint32_t)length,
                               bytes + ren__model_params_bytes(m), &table, err);
    ren__safetensors_free(&table);
    if (status != REN_OK) {
        ren__host_free(a, header, bytes + 1u, 1);
        return status == REN_ERR_FORMAT
                   ? REN__FAIL(err, REN_ERR_NAME, "a parameter's name is not valid UTF-8")
                   : status;
    }
    *out = header;
    *out_bytes = bytes;
    return REN_OK;
}

/* ------------------------------------------------------------------ save: the file */

static ren_status save(ren_model *m, const char *path, const char *header, size_t header_bytes,
                       ren_error *err)
{
    const ren__host_allocator *a = ren__model_allocator(m);
    uint64_t bytes = ren__model_params_bytes(m);
    void *data = ren__host_calloc(a, bytes ? (size_t)bytes : 1u, 1);
    ren_status status;
    if (!data) {
        status = REN__FAIL(err, REN_ERR_NO_MEMORY,
                           "no memory for a copy of the parameters, %" PRIu64 " bytes", bytes);
    } else {
        status = bytes ? ren__model_params_read(m, data, bytes) : REN_OK;
        const ren__file_part parts[] = {{header, header_bytes}, {data, bytes}};
        status = status == REN_OK ? ren__file_replace(path, a, parts, 2, err)
                                  : REN__FAIL(err, status, "the parameters cannot be read: %s",
                                              ren__status_text(status));
    }
    ren__host_free(a, data, bytes ? (size_t)bytes : 1u, 1);
    return status;
}

/* What both calls check first. */
static ren_status check_model(ren_model *m, ren_error *err)
{
    ren_status status = ren__runtime_check_blocking(ren__model_runtime(m));
    if (status != REN_OK) {
        return REN__FAIL(err, status, "a checkpoint cannot be saved or loaded here: %s",
                         ren__status_text(status));
    }
    return ren__model_weights_status(m, err);
}

ren_status ren__checkpoint_save(ren_model *m, const char *path, ren_error *err)
{
    char *header = NULL;
    size_t header_bytes = 0;
    ren_status status = check_model(m, err);
    if (status == REN_OK) {
        status = make_header(m, ren__model_allocator(m), &header, &header_bytes, err);
    }
    if (status == REN_OK) {
        status = save(m, path, header, header_bytes, err);
        ren__host_free(ren__model_allocator(m), header, header_bytes + 1u, 1);
    }
    return status;
}

/* ------------------------------------------------------------------ load */

typedef struct loading {
    ren_model *model;
    const ren__host_allocator *allocator;
    uint32_t flags;
    int fd;
    uint64_t file_bytes;
    ren__safetensors table;
    unsigned char *data; /* all parameters, back to back */
    uint64_t data_bytes;
    uint8_t *present;
    uint32_t count;
} loading;

static ren_status open_checkpoint(loading *l, const char *path, ren_error *err)
{
    struct stat about;
    /* O_NONBLOCK: a pipe without a writer must not hold the caller; for a file it means nothing. */
    l->fd = ren__file_open(path, O_RDONLY | O_NONBLOCK);
    if (l->fd < 0 || fstat(l->fd, &about) != 0) {
        int code = errno;
        return REN__IO_FAIL(err, code, "cannot open %.160s", path);
    }
    if (!S_ISREG(about.st_mode)) {
        return REN__FAIL(err, REN_ERR_IO, "%.160s is no regular file", path);
    }
    l->file_bytes = (uint64_t)about.st_size;
    return REN_OK;
}

static ren_status read_table(loading *l, const char *path, ren_error *err)
{
    unsigned char prefix[REN__SAFETENSORS_PREFIX] = {0};
    uint32_t bytes = 0;
    size_t available = l->file_bytes < sizeof prefix ? (size_t)l->file_bytes : sizeof prefix;
    int code = read_all(l->fd, prefix, available, 0);
    if (code) {
        return REN__IO_FAIL(err, code, "cannot read %.160s", path);
    }
    ren_status status =
        ren__safetensors_header_bytes(prefix, available, l->file_bytes, &bytes, err);
    if (status != REN_OK) {
        return status;
    }
    char *header = ren__host_calloc(l->allocator, bytes + 1u, 1);
    if (!header) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory for a header of %u bytes", bytes);
    }
    code = read_all(l->fd, header, bytes, REN__SAFETENSORS_PREFIX);
    status =
        code ? REN__IO_FAIL(err, code, "cannot read the header of %.160s", path)
             : ren__safetensors_parse(l->allocator, header, bytes, l->file_bytes, &l->table, err);
    ren__host_free(l->allocator, header, bytes + 1u, 1);
    return status;
}

/* "[2, 3]" */
static const char *show_dims(const uint64_t *dims, uint32_t rank, char out[64])
{
    int used = snprintf(out, 64, "[");
    for (uint32_t i = 0; i < rank && used < 64; i++) {
        used += snprintf(out + used, 64u - (size_t)used, "%s%" PRIu64, i ? ", " : "", dims[i]);
    }
    if (used < 63) {
        (void)snprintf(out + used, 64u - (size_t)used, "]");
    }
    return out;
}

/* One parameter against the file's tensor of its name. */
static ren_status check_tensor(const ren__safetensors_entry *e, const char *name, uint32_t rank,
                               const int64_t *dims, ren_error *err)
{
    uint64_t wanted[REN_MAX_RANK] = {0};
    char have[64], want[64];
    for (uint32_t i = 0; i < rank; i++) {
        wanted[i] = (uint64_t)dims[i];
    }
    if (strcmp(e->dtype, "F32") != 0) {
        return REN__FAIL(err, REN_ERR_SHAPE, "tensor '%s' has dtype %s, the model wants F32", name,
                         e->dtype);
    }
    if (e->rank != rank || memcmp(e->dims, wanted, rank * sizeof *wanted) != 0) {
        return REN__FAIL(err, REN_ERR_SHAPE, "tensor '%s' has shape %s, the model wants %s", name,
                         show_dims(e->dims, e->rank, have), show_dims(wanted, rank, want));
    }
    return REN_OK;
}

/* Every parameter has its tensor, of its dtype and shape; every tensor its parameter. */
static ren_status match_model(loading *l, ren_error *err)
{
    for (uint32_t i = 0; i < l->count; i++) {
        const char *name;
        const int64_t *dims;
        uint32_t rank;
        ren__model_param_info(l->model, i, &name, &rank, &dims, NULL);
        const ren__safetensors_entry *e = ren__safetensors_find(&l->table, name);
        if (e) {
            ren_status status = check_tensor(e, name, rank, dims, err);
            if (status != REN_OK) {
                return status;
            }
            l->present[i] = 1;
        } else if (!(l->flags & REN_LOAD_ALLOW_MISSING)) {
            return REN__FAIL(
                err, REN_ERR_NAME,
                "the file has no tensor '%s'; REN_LOAD_ALLOW_MISSING keeps the model's", name);
        }
    }
    for (uint32_t i = 0; i < l->table.count && !(l->flags & REN_LOAD_ALLOW_EXTRA); i++) {
        const ren__safetensors_entry *e = &l->table.entries[i];
        const char *name = l->table.names + e->name;
        char shown[48];
        if (ren__model_param_find(l->model, name) == UINT32_MAX) {
            return REN__FAIL(err, REN_ERR_NAME,
                             "the model has no parameter '%s'; REN_LOAD_ALLOW_EXTRA skips it",
                             ren__safetensors_show(name, e->name_bytes, shown));
        }
    }
    return REN_OK;
}

/* Each parameter's tensor to its place in `data`. */
static ren_status read_data(loading *l, ren_error *err)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        const char *name;
        uint64_t bytes;
        ren__model_param_info(l->model, i, &name, NULL, NULL, &bytes);
        if (l->present[i]) {
            const ren__safetensors_entry *e = ren__safetensors_find(&l->table, name);
            int code = read_all(l->fd, l->data + at, bytes, l->table.data_start + e->begin);
            if (code) {
                return REN__IO_FAIL(err, code, "cannot read the data of tensor '%s'", name);
            }
        }
        at += bytes;
    }
    return REN_OK;
}

static ren_status load(loading *l, const char *path, ren_error *err)
{
    ren_status status = open_checkpoint(l, path, err);
    if (status == REN_OK) {
        status = read_table(l, path, err);
    }
    if (status != REN_OK || l->count == 0) {
        return status != REN_OK ? status : match_model(l, err);
    }
    l->present = ren__host_calloc(l->allocator, l->count, 1);
    if (!l->present) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory to load a checkpoint");
    }
    status = match_model(l, err);
    if (status != REN_OK) {
        return status;
    }
    l->data = ren__host_calloc(l->allocator, (size_t)l->data_bytes, 1);
    if (!l->data) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY,
                         "no memory for a copy of the parameters, %" PRIu64 " bytes",
                         l->data_bytes);
    }
    status = read_data(l, err);
    if (status != REN_OK) {
        return status;
    }
    status = ren__model_params_write(l->model, l->data, l->data_bytes, l->present);
    return status == REN_OK ? REN_OK
                            : REN__FAIL(err, status, "the parameters cannot be written: %s",
                                        ren__status_text(status));
}

ren_status ren__checkpoint_load(ren_model *m, const char *path, uint32_t flags, ren_error *err)
{
    ren_status status = check_model(m, err);
    if (status != REN_OK) {
        return status;
    }
    loading l = {.model = m,
                 .allocator = ren__model_allocator(m),
                 .flags = flags,
                 .fd = -1,
                 .data_bytes = ren__model_params_bytes(m),
                 .count = ren__model_param_count(m)};
    status = load(&l, path, err);
    ren__host_free(l.allocator, l.data, (size_t)l.data_bytes, 1);
    ren__host_free(l.allocator, l.present, l.count, 1);
    ren__safetensors_free(&l.table);
    if (l.fd >= 0) {
        (void)close(l.fd);
    }
    return status;
}
