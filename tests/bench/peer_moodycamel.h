/* SPDX-License-Identifier: MIT */
/* tests/bench/peer_moodycamel.h - the C++ queue that ring_bench compares with, as C functions.
 *
 * Threads   push_many: one thread per producer number.  pop: one thread.
 * Memory    the queue grows when it needs to; it has no FULL.
 */
#ifndef REN_TESTS_BENCH_PEER_MOODYCAMEL_H
#define REN_TESTS_BENCH_PEER_MOODYCAMEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void *peer_moodycamel_make(unsigned producers, uint32_t capacity);
void peer_moodycamel_drop(void *q);

/* `count` items by producer `producer`, through its own token. */
void peer_moodycamel_push_many(void *q, unsigned producer, uint64_t count);

/* A bulk dequeue through the consumer's token. */
uint32_t peer_moodycamel_pop(void *q, void **items, uint32_t max);

#ifdef __cplusplus
}
#endif

#endif
