/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/ticket.c - words by which the blocks of one launch tell who is last.
 *
 * Purpose   A sum over many blocks ends with one block adding the parts. That block is the one that
 *           finishes last, which a counter in device memory tells; without a counter a second
 *           launch does it. A launch leaves its word at 0, as it found it. An operation has a word
 *           of its own: its launches follow one another on its lane, so that no two of them count
 *           with it at the same time.
 * Limits    one page for a device; without a free word, or without the page, the operation takes
 *           two launches and gives the same bits.
 * Threads   take: op_create's, under op_lock; give: any.
 */
#include "internal.h"

#define WORDS 1024u /* of a page; a multiple of 64 */

/* A page of zeros; NULL when the device has no memory for it. */
static uint32_t *make_page(ren__device *dev)
{
    void *page = NULL;
    ren_status status = ren__cuda_account(dev, WORDS * sizeof(uint32_t));
    if (status != REN_OK) {
        return NULL;
    }
    status = REN__CUDA(dev, NULL, cudaMalloc(&page, WORDS * sizeof(uint32_t)));
    if (status == REN_OK) {
        status =
            REN__CUDA(dev, NULL, cudaMemsetAsync(page, 0, WORDS * sizeof(uint32_t), dev->aside));
        if (status == REN_OK) {
            status = REN__CUDA(dev, NULL, cudaStreamSynchronize(dev->aside));
        }
        if (status != REN_OK) {
            (void)cudaFree(page);
        }
    }
    if (status != REN_OK) {
        ren__cuda_unaccount(dev, WORDS * sizeof(uint32_t));
        return NULL;
    }
    return page;
}

uint32_t *ren__cuda_ticket_take(ren__device *dev)
{
    uint32_t *ticket = NULL;
    if (!dev->tickets) {
        dev->tickets = make_page(dev);
    }
    if (!dev->tickets) {
        return NULL;
    }
    (void)pthread_mutex_lock(&dev->lock);
    for (uint32_t i = 0; i < WORDS && !ticket; i++) {
        uint64_t bit = (uint64_t)1 << (i % 64u);
        if (!(dev->tickets_taken[i / 64u] & bit)) {
            dev->tickets_taken[i / 64u] |= bit;
            ticket = dev->tickets + i;
        }
    }
    (void)pthread_mutex_unlock(&dev->lock);
    return ticket;
}

void ren__cuda_ticket_give(ren__device *dev, uint32_t *ticket)
{
    if (ticket) {
        uint64_t i = (uint64_t)(ticket - dev->tickets);
        (void)pthread_mutex_lock(&dev->lock);
        dev->tickets_taken[i / 64u] &= ~((uint64_t)1 << (i % 64u));
        (void)pthread_mutex_unlock(&dev->lock);
    }
}

void ren__cuda_tickets_free(ren__device *dev)
{
    if (dev->tickets) {
        (void)cudaFree(dev->tickets);
        dev->tickets = NULL;
    }
}
