/* SPDX-License-Identifier: MIT */
/* libren/train/safetensors.h - the header of a safetensors file, as a table of tensors.
 *
 * Purpose   A safetensors file is 8 bytes of header length (little-endian), a JSON object of that
 *           length, then the data. The object maps each tensor's name to its dtype, shape and range
 *           of data bytes. Files come from strangers, so everything is checked before it is used.
 * Threads   Any; nothing is shared.
 * Memory    The table, from the allocator given: at most about four times the header's length.
 *           While parsing also the JSON library's buffers: at most a small multiple of the longest
 *           string.
 * Units     Bytes. Ranges are relative to the start of the data.
 * Not here  Reading the data and matching it with a model, see checkpoint.h.
 *
 * Refused, with REN_ERR_FORMAT and a text that says where: a length past the file's end or above
 * REN__SAFETENSORS_HEADER_MAX; text that is no JSON object of the form above; unknown members; a
 * name twice, or empty, or with a NUL; an unknown dtype; dims that are 0, negative, no integer,
 * more than REN__SAFETENSORS_RANK, or whose product does not fit 63 bits; ranges that are reversed,
 * leave the file, overlap, leave a hole, or differ from dtype times dims in length.
 */
#ifndef REN_TRAIN_SAFETENSORS_H
#define REN_TRAIN_SAFETENSORS_H

#include "../../host_api/ren.h"
#include "../../memory/host.h"

#define REN__SAFETENSORS_PREFIX     8u
#define REN__SAFETENSORS_HEADER_MAX (16u << 20)
#define REN__SAFETENSORS_RANK       8u

typedef struct ren__safetensors_entry {
    uint32_t name; /* offset into `names`; NUL-terminated there */
    uint32_t name_bytes;
    char dtype[8]; /* as the file writes it: "F32" */
    uint32_t rank; /* 0 = a scalar */
    uint64_t dims[REN__SAFETENSORS_RANK];
    uint64_t begin;
    uint64_t end;
} ren__safetensors_entry;

/* Zeroed is empty. */
typedef struct ren__safetensors {
    ren__safetensors_entry *entries; /* in the order of the header */
    uint32_t *by_name;               /* indices of entries, sorted */
    uint32_t count;
    uint32_t capacity;
    char *names;
    uint32_t names_bytes;
    uint32_t names_capacity;
    uint64_t data_start; /* in the file */
    ren__host_allocator allocator;
} ren__safetensors;

/* The header's length, from a file's first bytes. `available` of them are at `prefix`. */
ren_status ren__safetensors_header_bytes(const void *prefix, size_t available, uint64_t file_bytes,
                                         uint32_t *out_bytes, ren_error *err);

/* Parse and check the header (without the 8 bytes before it) of a file of `file_bytes`.
 * Returns   REN_OK; REN_ERR_FORMAT; REN_ERR_NO_MEMORY. After an error *out is empty. */
ren_status ren__safetensors_parse(const ren__host_allocator *a, const void *header,
                                  uint32_t header_bytes, uint64_t file_bytes, ren__safetensors *out,
                                  ren_error *err);

void ren__safetensors_free(ren__safetensors *table);

/* The tensor of that name, or NULL. */
const ren__safetensors_entry *ren__safetensors_find(const ren__safetensors *table,
                                                    const char *name);

/* A name that is safe to show: printable ASCII, cut. */
const char *ren__safetensors_show(const char *name, size_t bytes, char out[48]);

#endif
