/* SPDX-License-Identifier: MIT */
/* libren/core/threads.c - starting and joining threads, by the host's hooks or by POSIX.
 *
 * Purpose   Every thread of libren's, the device's included, is started here, so that a host can
 *           place them and a test can make the Nth start fail.
 * Threads   start and join: create and destroy calls.
 * Memory    one small record per thread from the runtime's allocator, freed by join.
 */
#include <pthread.h>
#include <string.h>

#include "runtime.h"

typedef struct thread_record {
    pthread_t pthread;
    void *hook_thread;
    void (*entry)(void *);
    void *arg;
    char name[16];
} thread_record;

static void *posix_entry(void *arg)
{
    thread_record *record = arg;
    (void)pthread_setname_np(pthread_self(), record->name);
    record->entry(record->arg);
    return NULL;
}

ren_status ren__thread_start(ren_runtime *rt, const char *name, void (*entry)(void *), void *arg,
                             void **out)
{
    thread_record *record = ren__host_calloc(&rt->allocator, 1, sizeof *record);
    int failed;
    *out = NULL;
    if (!record) {
        return REN_ERR_NO_MEMORY;
    }
    record->entry = entry;
    record->arg = arg;
    strncpy(record->name, name, sizeof record->name - 1);
    if (rt->threads.start) {
        failed =
            rt->threads.start(rt->threads.user, record->name, entry, arg, &record->hook_thread);
    } else {
        failed = pthread_create(&record->pthread, NULL, posix_entry, record);
    }
    if (failed) {
        ren__host_free(&rt->allocator, record, 1, sizeof *record);
        return REN_ERR_THREAD;
    }
    *out = record;
    return REN_OK;
}

void ren__thread_join(ren_runtime *rt, void *thread)
{
    thread_record *record = thread;
    if (!record) {
        return;
    }
    if (rt->threads.start) {
        rt->threads.join(rt->threads.user, record->hook_thread);
    } else {
        (void)pthread_join(record->pthread, NULL);
    }
    ren__host_free(&rt->allocator, record, 1, sizeof *record);
}

uintptr_t ren__thread_self(void)
{
    return (uintptr_t)pthread_self();
}
