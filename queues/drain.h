/* SPDX-License-Identifier: MIT */
/* queues/drain.h - which ring the submitter takes the next jobs from.
 *
 * Purpose   A runtime has three classes of work, each with one shared ring and one ring per
 *           registered producer. This chooses among them: REALTIME first, but never so that the
 *           others starve; and within a class, every source in turn.
 * Threads   pop, pop_source, is_empty: the submitter.  attach, detach: any thread, one at a time
 *           (the caller's lock).  init, set_shared: no concurrent use.
 * Progress  all wait-free; a pop looks at no more rings than are attached.
 * Order     FIFO per source. Between sources there is none but the shares below.
 * Memory    none of its own; rings belong to the caller.
 * Units     shares in jobs.
 * Not here  sleeping (doorbell.h), parking, and deadlines (the core's).
 *
 * Shares
 *   The choice goes round a wheel of 16 places:  R R R R N  R R R R N  R R R R N B.  A job is taken
 *   for the place at hand and the wheel moves on by one; a place whose class has no work is
 *   skipped. A batch covers as many places as its class has in a row there; when no other class has
 *   work it may be as long as the caller likes, and ends at the end of that row.
 *   Bound     While all three classes have work no place is skipped, and 32 jobs in a row cover the
 *             wheel twice, wherever they begin: exactly 24 REALTIME, 6 NORMAL and 2 BACKGROUND. A
 *             longer batch is taken only at a moment when no other class had work, so it is not in
 *             such a stretch. When some class has no work, skipping can only bring the others'
 *             places nearer.
 *   REALTIME  A REALTIME job at the head of its ring waits, after the batch being taken when it
 *             came, for at most two jobs of other classes: no more places of theirs lie in a row.
 *   Sources   Each batch ends the turn of its source, and the next search in that class begins
 *             after it. With S sources in a class (at most 64), a source with work gets every S-th
 *             turn of the class at least, and at least one job a turn.
 *   Together  A job of any class with k jobs before it in its own ring is taken within
 *             16 * S * (k + 1) jobs, not counting longer batches that began when no other class had
 *             work: each class has a place on each turn of the wheel, and places in a row are one
 *             turn of a source.
 *
 * Attaching
 *   A ring's pointer is release-stored before its bit in the mask and acquire-loaded after it, so
 *   the submitter sees an initialised ring. A push into a ring that was attached before it is found
 *   by the submitter that the push's doorbell wakes, since the doorbell orders all that came before
 *   it.
 *   After detach the submitter may still be inside a pop that read the pointer before. The ring's
 *   memory must live until the submitter has passed from one pop to the next after the detach in an
 *   order that the caller sees (a message through the submitter, or its end). A ring is detached
 *   empty: jobs left inside are no longer found.
 */
#ifndef REN_QUEUES_DRAIN_H
#define REN_QUEUES_DRAIN_H

#include "mpsc.h"
#include "spsc.h"

typedef enum ren__class {
    REN__CLASS_REALTIME = 0,
    REN__CLASS_NORMAL = 1,
    REN__CLASS_BACKGROUND = 2,
    REN__CLASS_COUNT = 3
} ren__class;

#define REN__DRAIN_PRODUCERS 63u
#define REN__DRAIN_SOURCES   64u /* of one class: 0 is the shared ring, 1 + i is producer i */
#define REN__DRAIN_WHEEL     16u

typedef struct ren__drain {
    uint64_t mask[REN__CLASS_COUNT]; /* atomic; bit s set: source s is attached */
    ren__mpsc *shared[REN__CLASS_COUNT];
    ren__spsc *rings[REN__CLASS_COUNT][REN__DRAIN_PRODUCERS]; /* atomic */
    uint32_t cursor[REN__CLASS_COUNT]; /* submitter only: the source to look at first */
    uint32_t place;                    /* submitter only: on the wheel */
} ren__drain;

void ren__drain_init(ren__drain *d);
void ren__drain_set_shared(ren__drain *d, uint32_t job_class, ren__mpsc *ring);

/* rings[c] may be NULL: the producer has no ring of that class. */
void ren__drain_attach(ren__drain *d, uint32_t producer, ren__spsc *const rings[REN__CLASS_COUNT]);
void ren__drain_detach(ren__drain *d, uint32_t producer);

/* One batch from one source, at most `max` jobs; 0 when there is no work or max is 0. */
uint32_t ren__drain_pop(ren__drain *d, void **items, uint32_t max, uint32_t *out_class,
                        uint32_t *out_source);

/* A batch from the source named, out of turn: the wheel and the turns stay as they are. */
uint32_t ren__drain_pop_source(ren__drain *d, uint32_t job_class, uint32_t source, void **items,
                               uint32_t max);

/* No attached ring has a published job. */
bool ren__drain_is_empty(ren__drain *d);

#endif
