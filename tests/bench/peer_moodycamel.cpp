// SPDX-License-Identifier: MIT
// tests/bench/peer_moodycamel.cpp - see peer_moodycamel.h.
//
// The queue is used as its author advises for speed: a producer token per thread, a consumer token,
// and bulk dequeue. Room for `capacity` items a producer is taken in advance. It has no bound that
// can be used here: a block belongs for good to the producer that first took it, so an enqueue
// without allocation may fail for ever in a thread that comes late. It may grow, and never waits.
#include "peer_moodycamel.h"

#include <memory>
#include <vector>

#if __has_include(<concurrentqueue/moodycamel/concurrentqueue.h>)
#include <concurrentqueue/moodycamel/concurrentqueue.h>
#elif __has_include(<concurrentqueue/concurrentqueue.h>)
#include <concurrentqueue/concurrentqueue.h>
#else
#include <concurrentqueue.h>
#endif

namespace
{

using queue = moodycamel::ConcurrentQueue<void *>;

struct peer {
    queue q;
    std::vector<std::unique_ptr<moodycamel::ProducerToken>> producers;
    moodycamel::ConsumerToken consumer;

    peer(unsigned count, uint32_t capacity)
        : q(static_cast<size_t>(capacity) * count, count, 0), consumer(q)
    {
        for (unsigned i = 0; i < count; i++) {
            producers.push_back(std::make_unique<moodycamel::ProducerToken>(q));
        }
    }
};

} // namespace

void *peer_moodycamel_make(unsigned producers, uint32_t capacity)
{
    return new peer(producers, capacity);
}

void peer_moodycamel_drop(void *q)
{
    delete static_cast<peer *>(q);
}

void peer_moodycamel_push_many(void *q, unsigned producer, uint64_t count)
{
    peer *p = static_cast<peer *>(q);
    const moodycamel::ProducerToken &token = *p->producers[producer];
    for (uint64_t i = 1; i <= count; i++) {
        void *item = reinterpret_cast<void *>(static_cast<uintptr_t>(i));
        p->q.enqueue(token, item);
    }
}

uint32_t peer_moodycamel_pop(void *q, void **items, uint32_t max)
{
    peer *p = static_cast<peer *>(q);
    return static_cast<uint32_t>(p->q.try_dequeue_bulk(p->consumer, items, max));
}
