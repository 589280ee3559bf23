/* SPDX-License-Identifier: MIT */
/* libren/train/json.c - JSON text as a stream of events, by YAJL.
 *
 * Purpose   See json.h.
 * Threads   See json.h.
 * Memory    YAJL takes allocation functions, but uses what they return unchecked. So a refused
 *           request must not return to it: the allocation function jumps back to ren__json_parse,
 *           past YAJL's frames, which own nothing but blocks from here. Every block is on a list,
 *           and the list is freed at the end of every parse, whatever happened. The list's header
 *           also keeps the size that the host's free wants and YAJL does not give.
 */
#include "json.h"

#include <setjmp.h>
#include <stdalign.h>
#include <yajl/yajl_parse.h>

typedef struct block {
    struct block *previous;
    struct block *next;
    size_t bytes;
    alignas(max_align_t) unsigned char data[];
} block;

typedef struct parse {
    const ren__host_allocator *allocator;
    block *blocks;
    jmp_buf out_of_memory;
    ren__json_events events;
    void *user;
    const unsigned char *text;
    size_t bytes;
    size_t position;
} parse;

/* ------------------------------------------------------------------ memory for YAJL */

static block *block_of(void *ptr)
{
    return (block *)(void *)((unsigned char *)ptr - offsetof(block, data));
}

static void *parse_malloc(void *context, size_t bytes)
{
    parse *p = context;
    block *b = NULL;
    if (bytes <= SIZE_MAX - sizeof *b) {
        b = ren__host_calloc(p->allocator, 1, sizeof *b + bytes);
    }
    if (!b) {
        longjmp(p->out_of_memory, 1);
    }
    b->bytes = bytes;
    b->next = p->blocks;
    if (b->next) {
        b->next->previous = b;
    }
    p->blocks = b;
    return b->data;
}

static void parse_free(void *context, void *ptr)
{
    parse *p = context;
    if (!ptr) {
        return;
    }
    block *b = block_of(ptr);
    if (b->next) {
        b->next->previous = b->previous;
    }
    if (b->previous) {
        b->previous->next = b->next;
    } else {
        p->blocks = b->next;
    }
    ren__host_free(p->allocator, b, 1, sizeof *b + b->bytes);
}

static void *parse_realloc(void *context, void *ptr, size_t bytes)
{
    void *moved = parse_malloc(context, bytes);
    if (ptr) {
        size_t kept = block_of(ptr)->bytes;
        memcpy(moved, ptr, kept < bytes ? kept : bytes);
        parse_free(context, ptr);
    }
    return moved;
}

/* ------------------------------------------------------------------ events */

static int say(void *context, ren__json_event event, const void *text, size_t bytes)
{
    parse *p = context;
    return p->events(p->user, event, text, bytes);
}

static int on_null(void *context)
{
    return say(context, REN__JSON_LITERAL, NULL, 0);
}

static int on_boolean(void *context, int value)
{
    (void)value;
    return say(context, REN__JSON_LITERAL, NULL, 0);
}

static int on_number(void *context, const char *text, size_t bytes)
{
    return say(context, REN__JSON_NUMBER, text, bytes);
}

static int on_string(void *context, const unsigned char *text, size_t bytes)
{
    return say(context, REN__JSON_STRING, text, bytes);
}

static int on_key(void *context, const unsigned char *text, size_t bytes)
{
    return say(context, REN__JSON_KEY, text, bytes);
}

static int on_object_begin(void *context)
{
    return say(context, REN__JSON_OBJECT_BEGIN, NULL, 0);
}

static int on_object_end(void *context)
{
    return say(context, REN__JSON_OBJECT_END, NULL, 0);
}

static int on_array_begin(void *context)
{
    return say(context, REN__JSON_ARRAY_BEGIN, NULL, 0);
}

static int on_array_end(void *context)
{
    return say(context, REN__JSON_ARRAY_END, NULL, 0);
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_map_key = on_key,
    .yajl_start_map = on_object_begin,
    .yajl_end_map = on_object_end,
    .yajl_start_array = on_array_begin,
    .yajl_end_array = on_array_end,
};

/* ------------------------------------------------------------------ parse */

static ren__json_result run(parse *p)
{
    yajl_alloc_funcs memory = {parse_malloc, parse_realloc, parse_free, p};
    yajl_handle handle = yajl_alloc(&callbacks, &memory, p);
    yajl_status status = yajl_parse(handle, p->text, p->bytes);
    p->position = yajl_get_bytes_consumed(handle);
    if (status == yajl_status_ok) {
        /* An unfinished value shows only now; its place is the end. */
        p->position = p->bytes;
        status = yajl_complete_parse(handle);
    }
    return status == yajl_status_ok                ? REN__JSON_OK
           : status == yajl_status_client_canceled ? REN__JSON_STOPPED
                                                   : REN__JSON_SYNTAX;
}

ren__json_result ren__json_parse(const ren__host_allocator *a, const void *text, size_t bytes,
                                 ren__json_events events, void *user, size_t *out_position)
{
    parse p = {.allocator = a, .events = events, .user = user, .text = text, .bytes = bytes};
    ren__json_result result = REN__JSON_NO_MEMORY;
    if (setjmp(p.out_of_memory) == 0) {
        result = run(&p);
    } else {
        result = REN__JSON_NO_MEMORY;
    }
    while (p.blocks) {
        parse_free(&p, p.blocks->data);
    }
    *out_position = p.position < bytes ? p.position : bytes;
    return result;
}
