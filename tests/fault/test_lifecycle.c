/* SPDX-License-Identifier: MIT */
/* tests/fault/test_lifecycle.c - beginning and ending, also when something is missing or stuck.
 *
 * Proves    a thousand runtimes come and go without leaving memory, threads or descriptors; the Nth
 *           failing allocation or thread start fails the create cleanly; several runtimes live
 *           side by side; a device that does not answer cannot hold abort or shutdown; a forked
 *           child is told.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../libren/core/core.h"
#include "../support/gate.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define SECOND UINT64_C(1000000000)

/* ------------------------------------------------------------------ hooks that count and fail */

typedef struct books {
    atomic_long live_bytes;
    atomic_long live_blocks;
    atomic_long calls;
    long fail_at; /* the call that returns NULL; 0 = none */
    atomic_long threads;
    atomic_long starts;
    long fail_start;
} books;

static void *count_alloc(void *user, size_t bytes, size_t align)
{
    books *b = user;
    void *ptr = NULL;
    if (atomic_fetch_add(&b->calls, 1) + 1 == b->fail_at) {
        return NULL;
    }
    if (posix_memalign(&ptr, align < sizeof(void *) ? sizeof(void *) : align, bytes) != 0) {
        return NULL;
    }
    memset(ptr, 0xA5, bytes); /* nobody may rely on zeroes */
    atomic_fetch_add(&b->live_bytes, (long)bytes);
    atomic_fetch_add(&b->live_blocks, 1);
    return ptr;
}

static void count_free(void *user, void *ptr, size_t bytes)
{
    books *b = user;
    CU_ASSERT_PTR_NOT_NULL(ptr);
    memset(ptr, 0x5A, bytes); /* a wrong size shows under the address sanitizer */
    free(ptr);
    atomic_fetch_sub(&b->live_bytes, (long)bytes);
    atomic_fetch_sub(&b->live_blocks, 1);
}

typedef struct start_record {
    pthread_t thread;
    void (*entry)(void *);
    void *arg;
} start_record;

static void *run_entry(void *arg)
{
    start_record *r = arg;
    r->entry(r->arg);
    return NULL;
}

static int count_start(void *user, const char *name, void (*entry)(void *), void *arg, void **out)
{
    books *b = user;
    start_record *r;
    CU_ASSERT(strlen(name) > 0 && strlen(name) <= 15);
    if (atomic_fetch_add(&b->starts, 1) + 1 == b->fail_start) {
        return -1;
    }
    r = malloc(sizeof *r);
    r->entry = entry;
    r->arg = arg;
    if (pthread_create(&r->thread, NULL, run_entry, r) != 0) {
        free(r);
        return -1;
    }
    atomic_fetch_add(&b->threads, 1);
    *out = r;
    return 0;
}

static void count_join(void *user, void *thread)
{
    books *b = user;
    start_record *r = thread;
    (void)pthread_join(r->thread, NULL);
    free(r);
    atomic_fetch_sub(&b->threads, 1);
}

typedef struct hooked {
    ren_runtime_config config;
    ren_allocator allocator;
    ren_threads threads;
    books books;
} hooked;

static void hook(hooked *h)
{
    memset(h, 0, sizeof *h);
    h->config = ren_test_config();
    h->config.ring_entries = 64;
    h->config.max_buffers = 64;
    h->allocator = ren_allocator_default();
    h->allocator.alloc = count_alloc;
    h->allocator.free = count_free;
    h->allocator.user = &h->books;
    h->threads = ren_threads_default();
    h->threads.start = count_start;
    h->threads.join = count_join;
    h->threads.user = &h->books;
    h->config.allocator = &h->allocator;
    h->config.threads = &h->threads;
}

static void use_a_little(ren_runtime *rt)
{
    ren_job_desc d = ren_job_desc_default();
    ren_producer *producer = NULL;
    ren_buffer buffer;
    ren_job job;
    d.kind = REN_JOB_BARRIER;
    CU_ASSERT_EQUAL(ren_memory_reserve(rt, 4096), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_alloc(rt, REN_STREAM_COMP_1, 1000, &buffer), REN_OK);
    CU_ASSERT_EQUAL(ren_producer_register(rt, &producer), REN_OK);
    for (int s = 0; s < REN_STREAM_COUNT; s++) {
        d.stream = (ren_stream)s;
        CU_ASSERT_EQUAL(ren_producer_post(producer, &d, &job), REN_OK);
        CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    }
    CU_ASSERT_EQUAL(ren_wait(rt, job, 20 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_producer_release(producer), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_OK);
}

/* Would fail if a create or destroy kept memory, a thread or a descriptor. */
static void test_create_destroy_many_times_leaks_nothing(void)
{
    int cycles = ren_test_device() == REN_DEVICE_CUDA ? 20 : 1000 / (int)ren_test_slowdown();
    int threads = 0;
    int fds = 0;
    hooked h;
    hook(&h);
    for (int i = 0; i < cycles; i++) {
        ren_runtime *rt = NULL;
        CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&h.config, &rt, NULL), REN_OK);
        use_a_little(rt);
        CU_ASSERT_EQUAL_FATAL(ren_runtime_shutdown(rt, 20 * SECOND), REN_OK);
        CU_ASSERT_EQUAL(h.books.live_blocks, 0);
        CU_ASSERT_EQUAL(h.books.live_bytes, 0);
        CU_ASSERT_EQUAL(h.books.threads, 0);
        if (i == 4) {
            threads = ren_test_thread_count();
            fds = ren_test_fd_count();
        }
    }
    CU_ASSERT_EQUAL(ren_test_thread_count(), threads);
    CU_ASSERT_EQUAL(ren_test_fd_count(), fds);
}

static void test_create_nth_allocation_fails(void)
{
    long n = 1;
    for (;; n++) {
        ren_runtime *rt = NULL;
        ren_error err;
        ren_status status;
        hooked h;
        hook(&h);
        h.books.fail_at = n;
        memset(&err, 0, sizeof err);
        status = ren_runtime_create(&h.config, &rt, &err);
        if (status == REN_OK) {
            CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_OK);
            CU_ASSERT_EQUAL(h.books.live_blocks, 0);
            break;
        }
        CU_ASSERT_EQUAL(status, REN_ERR_NO_MEMORY);
        CU_ASSERT_EQUAL(err.status, status);
        CU_ASSERT(err.text[0] != 0);
        CU_ASSERT_PTR_NULL(rt);
        CU_ASSERT_EQUAL(h.books.live_blocks, 0);
        CU_ASSERT_EQUAL(h.books.threads, 0);
    }
    CU_ASSERT(n > 10);
}

static void test_create_nth_thread_start_fails(void)
{
    long n = 1;
    for (;; n++) {
        ren_runtime *rt = NULL;
        ren_error err;
        ren_status status;
        hooked h;
        hook(&h);
        h.books.fail_start = n;
        status = ren_runtime_create(&h.config, &rt, &err);
        if (status == REN_OK) {
            CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_OK);
            break;
        }
        CU_ASSERT_EQUAL(status, REN_ERR_THREAD);
        CU_ASSERT_EQUAL(h.books.live_blocks, 0);
        CU_ASSERT_EQUAL(h.books.threads, 0);
    }
    CU_ASSERT(n > 6); /* five completion threads and the submitter at least */
}

static void test_create_bad_config_names_the_member(void)
{
    static const struct {
        size_t offset;
        uint32_t value;
        const char *word;
    } bad[] = {
        {offsetof(ren_runtime_config, struct_size), 3, "struct_size"},
        {offsetof(ren_runtime_config, device), 7, "device"},
        {offsetof(ren_runtime_config, streams), 6, "streams"},
        {offsetof(ren_runtime_config, ring_entries), 65537, "ring_entries"},
        {offsetof(ren_runtime_config, cpu_threads), 5000, "cpu_threads"},
        {offsetof(ren_runtime_config, max_buffers), 70000, "max_buffers"},
        {offsetof(ren_runtime_config, device_index), 99, "device"},
    };
    for (size_t i = 0; i < REN_TEST_COUNT(bad); i++) {
        ren_runtime_config config = ren_test_config();
        ren_runtime *rt = (ren_runtime *)&config;
        ren_error err;
        memcpy((char *)&config + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        CU_ASSERT(ren_runtime_create(&config, &rt, &err) < 0);
        CU_ASSERT_PTR_NULL(rt);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, bad[i].word));
    }
    CU_ASSERT_EQUAL(ren_runtime_create(NULL, NULL, NULL), REN_ERR_INVALID_ARGUMENT);
}

static void test_cuda_missing_says_why(void)
{
    ren_runtime_config config = ren_runtime_config_default();
    ren_runtime *rt = NULL;
    ren_error err;
    config.device = REN_DEVICE_CUDA;
    config.module_path = "/nonexistent/libren_cuda.so";
    CU_ASSERT_EQUAL(ren_runtime_create(&config, &rt, &err), REN_ERR_NO_DEVICE);
    CU_ASSERT_PTR_NULL(rt);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "nonexistent"));
    config.device = REN_DEVICE_AUTO;
    CU_ASSERT_EQUAL(ren_runtime_create(&config, &rt, &err), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_device_kind(rt), REN_DEVICE_CPU);
    CU_ASSERT(strlen(ren_runtime_device_name(rt)) > 0);
    CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_OK);
}

/* ------------------------------------------------------------------ side by side */

static void *work_a_runtime(void *arg)
{
    ren_runtime *rt = arg;
    for (int i = 0; i < 200; i++) {
        use_a_little(rt);
    }
    return NULL;
}

static void test_two_runtimes_at_once(void)
{
    ren_runtime *rt[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        ren_runtime_config config = ren_test_config();
        config.streams = (uint32_t)(i * 2 + 1);
        rt[i] = ren_test_runtime(&config);
        CU_ASSERT_EQUAL(pthread_create(&threads[i], NULL, work_a_runtime, rt[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        (void)pthread_join(threads[i], NULL);
        ren_test_shutdown(rt[i]);
    }
}

/* ------------------------------------------------------------------ no answer from the device */

static atomic_int let_go;

static ren_status stick(void *user, const ren_device_io *io)
{
    return gate_pass(user, io->native_stream);
}

typedef struct tally {
    atomic_int ok, timeout, aborted, other;
} tally;

static void count_status(const ren_completion *c, void *user)
{
    tally *t = user;
    atomic_fetch_add(c->status == REN_OK            ? &t->ok
                     : c->status == REN_ERR_TIMEOUT ? &t->timeout
                     : c->status == REN_ERR_ABORTED ? &t->aborted
                                                    : &t->other,
                     1);
}

/* `deep`: waits have been long, so that a GPU's waiter sleeps inside the driver when the abort
 * comes, and is left there. */
static void abort_while_stuck(int deep)
{
    /* What is left behind may look at it later. */
    static gate stuck[2];
    gate *g = &stuck[deep];
    ren_job_desc d = ren_job_desc_default();
    ren_stats stats = ren_stats_default();
    ren_job last;
    tally t;
    uint64_t start;
    ren_runtime *rt = ren_test_runtime(NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rt);
    memset(&t, 0, sizeof t);
    d.kind = REN_JOB_DEVICE;
    d.stream = REN_STREAM_COMP_1;
    d.enqueue = stick;
    for (int i = 0; deep && i < 3; i++) {
        gate once;
        gate_make(&once, ren__runtime_api(rt), ren__runtime_device(rt));
        d.enqueue_user = &once;
        CU_ASSERT_EQUAL(ren_post(rt, &d, &last), REN_OK);
        CU_ASSERT_EQUAL(ren_wait(rt, last, SECOND / 50), REN_TIMEOUT);
        gate_open(&once);
        CU_ASSERT_EQUAL(ren_wait(rt, last, 20 * SECOND), REN_OK);
        gate_free(&once, ren__runtime_api(rt), ren__runtime_device(rt));
    }
    gate_make(g, ren__runtime_api(rt), ren__runtime_device(rt));
    d.enqueue_user = g;
    d.done = count_status;
    d.user = &t;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &last), REN_OK);
    ren_job first = last;
    d.kind = REN_JOB_BARRIER;
    for (int i = 0; i < 100; i++) {
        CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    }
    d.stream = REN_STREAM_UPDATE; /* behind the stuck job by an event */
    d.wait = &first;
    d.wait_count = 1;
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    gate_wait_entered(g);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, SECOND / 20), REN_TIMEOUT);
    start = ren_now_ns();
    CU_ASSERT_EQUAL(ren_runtime_abort(rt), REN_OK);
    CU_ASSERT(ren_now_ns() - start < 10 * SECOND);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    /* What the device had is timed out; what still waited for credit was never issued. */
    CU_ASSERT_EQUAL(t.timeout + t.aborted, 102);
    CU_ASSERT(t.timeout >= 1 && t.ok == 0 && t.other == 0);
    CU_ASSERT_EQUAL(ren_wait(rt, first, 0), REN_ERR_TIMEOUT);
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL) < 0, 1);
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(gate_left(g), 0); /* all that without the device */
    if (ren_test_device() == REN_DEVICE_CPU) {
        gate_open(g); /* its lane's thread is to be joined */
        CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_OK);
    } else {
        (void)printf("       %llu threads left behind\n",
                     (unsigned long long)stats.abandoned_threads);
        CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_OK);
        CU_ASSERT_EQUAL(gate_left(g), 0);
        gate_open(g); /* the GPU goes on, and comes to nothing that was taken away */
        gate_wait_left(g);
    }
    rt = ren_test_runtime(NULL); /* and a new one works */
    use_a_little(rt);
    ren_test_shutdown(rt);
}

static void test_abort_returns_although_the_device_is_stuck(void)
{
    abort_while_stuck(0);
}

static void test_abort_leaves_a_deep_waiter_behind(void)
{
    abort_while_stuck(1);
}

static void stay_inside(void *user)
{
    (void)user;
    while (!atomic_load(&let_go)) {
        struct timespec t = {0, 1000000};
        (void)nanosleep(&t, NULL);
    }
}

/* A HOST job's function that hangs keeps only its own job: what is behind it on its stream, and
 * what waits for it, completes within the abort. */
static void test_abort_goes_past_a_host_job_that_hangs(void)
{
    ren_runtime *rt = ren_test_runtime(NULL);
    ren_job_desc d = ren_job_desc_default();
    ren_job stuck;
    tally t;
    memset(&t, 0, sizeof t);
    atomic_store(&let_go, 0);
    d.kind = REN_JOB_HOST;
    d.stream = REN_STREAM_COMP_2;
    d.host_fn = stay_inside;
    d.done = count_status;
    d.user = &t;
    CU_ASSERT_EQUAL(ren_post(rt, &d, &stuck), REN_OK);
    for (int i = 0; i < 5; i++) { /* behind it */
        CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    }
    d.stream = REN_STREAM_UPDATE; /* parked until it is done */
    d.wait = &stuck;
    d.wait_count = 1;
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, SECOND / 20), REN_TIMEOUT);
    CU_ASSERT_EQUAL(ren_runtime_abort(rt), REN_OK);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(t.timeout + t.aborted, 6);
    CU_ASSERT_EQUAL(ren_job_status(rt, stuck), REN_PENDING);
    CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_ERR_BUSY);
    atomic_store(&let_go, 1);
    CU_ASSERT(ren_runtime_drain(rt, 20 * SECOND) != REN_TIMEOUT);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(t.ok, 1);
    CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_OK);
}

/* ------------------------------------------------------------------ fork */

static int child_of_fork(ren_runtime *rt)
{
    ren_job_desc d = ren_job_desc_default();
    ren_job job = {1};
    int bad = 0;
    d.kind = REN_JOB_BARRIER;
    bad += ren_post(rt, &d, &job) != REN_ERR_FORKED;
    bad += job.id != 0;
    bad += ren_wait(rt, job, SECOND) != REN_ERR_FORKED;
    bad += ren_pump(rt, 0, 0, 0, NULL) != REN_ERR_FORKED;
    bad += ren_runtime_drain(rt, SECOND) != REN_ERR_FORKED;
    bad += ren_runtime_shutdown(rt, SECOND) != REN_OK;
    return bad;
}

/* Row 36. */
static void test_fork_child_is_told_and_parent_goes_on(void)
{
    ren_runtime *rt = ren_test_runtime(NULL);
    int cycles = ren_test_slowdown() > 1 ? 5 : 100;
    for (int i = 0; i < cycles; i++) {
        ren_job_desc d = ren_job_desc_default();
        ren_job job;
        int state = 0;
        pid_t pid;
        d.kind = REN_JOB_BARRIER;
        CU_ASSERT_EQUAL(ren_post(rt, &d, &job), REN_OK);
        pid = fork();
        if (pid == 0) {
            (void)alarm(10);
            _exit(child_of_fork(rt));
        }
        CU_ASSERT(pid > 0);
        (void)waitpid(pid, &state, 0);
        CU_ASSERT(WIFEXITED(state) && WEXITSTATUS(state) == 0);
        CU_ASSERT_EQUAL(ren_wait(rt, job, 20 * SECOND), REN_OK);
    }
    ren_test_shutdown(rt);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_create_destroy_many_times_leaks_nothing",
         test_create_destroy_many_times_leaks_nothing},
        {"test_create_nth_allocation_fails", test_create_nth_allocation_fails},
        {"test_create_nth_thread_start_fails", test_create_nth_thread_start_fails},
        {"test_create_bad_config_names_the_member", test_create_bad_config_names_the_member},
        {"test_cuda_missing_says_why", test_cuda_missing_says_why},
        {"test_two_runtimes_at_once", test_two_runtimes_at_once},
        {"test_abort_returns_although_the_device_is_stuck",
         test_abort_returns_although_the_device_is_stuck},
        {"test_abort_leaves_a_deep_waiter_behind", test_abort_leaves_a_deep_waiter_behind},
        {"test_abort_goes_past_a_host_job_that_hangs", test_abort_goes_past_a_host_job_that_hangs},
        {"test_fork_child_is_told_and_parent_goes_on", test_fork_child_is_told_and_parent_goes_on},
    };
    return ren_test_main(argc, argv, "test_lifecycle", cases, REN_TEST_COUNT(cases), 180);
}
