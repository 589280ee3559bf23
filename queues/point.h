/* SPDX-License-Identifier: MIT */
/* queues/point.h - named places in the code where a test may stop a thread.
 *
 * Purpose   A race has a window; a test that cannot hold a thread inside the window proves nothing.
 *           REN__POINT("name") marks such a place. In the production build it is no code at all; in
 *           the test build it calls ren__test_point, which the test support library implements.
 * Threads   any; a point may be inside a lock-free window, so the hook takes no lock of libren's.
 * Names     "producer.snapshot" and "producer.reserved" (mpsc.h), "doorbell.before_wait"
 *           (doorbell.c), "stack.before_cas" (index_stack.h); others belong to the modules that
 *           place them.
 * Tests     a test of one header alone may define REN__POINT before it includes the header, and so
 *           runs code of its own at the points of that header's inline functions.
 */
#ifndef REN_QUEUES_POINT_H
#define REN_QUEUES_POINT_H

#if defined(REN__POINT)
/* The including test's own. */
#elif defined(REN_TESTING) && REN_TESTING
void ren__test_point(const char *name);
#define REN__POINT(name) ren__test_point(name)
#else
#define REN__POINT(name) ((void)0)
#endif

#endif
