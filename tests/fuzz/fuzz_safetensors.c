/* SPDX-License-Identifier: MIT */
/* tests/fuzz/fuzz_safetensors.c - libFuzzer target: any bytes as a safetensors file.
 *
 * Purpose   Search for files that crash the parser, cost more than they are worth, or yield a table
 *           that does not hold together. The deterministic part of this search runs in every test
 *           run, see tests/unit/test_safetensors.c.
 * Build     clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined
 *               tests/fuzz/fuzz_safetensors.c libren/train/safetensors.c libren/train/json.c
 *               libren/core/error.c memory/host.c -lyajl -o build/fuzz_safetensors
 * Run       build/fuzz_safetensors -max_len=4096 -timeout=1 build/corpus tests/golden
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../libren/train/safetensors.h"

enum {
    PEAK_MAX = 16 << 20 /* bytes that a file of at most 4 KiB may cost */
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct counter {
    size_t live;
    size_t peak;
} counter;

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    counter *c = user;
    c->live += bytes;
    c->peak = c->live > c->peak ? c->live : c->peak;
    return aligned_alloc(align, (bytes + align - 1) & ~(align - 1));
}

static void counted_free(void *user, void *ptr, size_t bytes)
{
    counter *c = user;
    c->live -= bytes;
    free(ptr);
}

static void check_table(const ren__safetensors *t, uint64_t file_bytes)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const ren__safetensors_entry *e = &t->entries[i];
        if (e->begin >= e->end || ren__safetensors_find(t, t->names + e->name) != e) {
            abort();
        }
        sum += e->end - e->begin;
    }
    if (sum != file_bytes - t->data_start) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    counter c = {0, 0};
    ren__host_allocator a = {counted_alloc, counted_free, &c};
    ren__safetensors table;
    ren_error err = {0};
    uint32_t header_bytes;
    if (ren__safetensors_header_bytes(data, size, size, &header_bytes, &err) != REN_OK) {
        return 0;
    }
    if (ren__safetensors_parse(&a, data + 8, header_bytes, size, &table, &err) == REN_OK) {
        check_table(&table, size);
    }
    ren__safetensors_free(&table);
    if (c.live != 0 || (size <= 4096 && c.peak >= PEAK_MAX)) {
        abort();
    }
    return 0;
}
