/* SPDX-License-Identifier: MIT */
/* libren/train/json.h - JSON text as a stream of events.
 *
 * Purpose   The one place that knows the JSON library. Numbers arrive as text, so nothing is
 *           rounded.
 * Threads   Any; nothing is shared.
 * Memory    The library's buffers come from the allocator given and are all freed before return,
 *           also when it runs out in the middle.
 * Units     Positions in bytes from the start of the text.
 * Not here  What the text should say: the caller's events function decides.
 */
#ifndef REN_TRAIN_JSON_H
#define REN_TRAIN_JSON_H

#include <stdbool.h>

#include "../../memory/host.h"

typedef enum ren__json_event {
    REN__JSON_OBJECT_BEGIN = 0,
    REN__JSON_OBJECT_END,
    REN__JSON_ARRAY_BEGIN,
    REN__JSON_ARRAY_END,
    REN__JSON_KEY,
    REN__JSON_STRING,
    REN__JSON_NUMBER,
    REN__JSON_LITERAL /* null, true or false */
} ren__json_event;

typedef enum ren__json_result {
    REN__JSON_OK = 0,
    REN__JSON_SYNTAX,
    REN__JSON_STOPPED, /* the events function returned false */
    REN__JSON_NO_MEMORY
} ren__json_result;

/* `text` holds `bytes` of KEY, STRING (valid UTF-8, escapes resolved, may hold NUL) and NUMBER. */
typedef bool (*ren__json_events)(void *user, ren__json_event event, const char *text, size_t bytes);

/* Exactly one JSON value, white space around it. out_position: the end of what was understood. */
ren__json_result ren__json_parse(const ren__host_allocator *a, const void *text, size_t bytes,
                                 ren__json_events events, void *user, size_t *out_position);

#endif
