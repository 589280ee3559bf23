/* SPDX-License-Identifier: MIT */
/* tests/fault/test_order.c - the order that ren.h promises, at the moments when it is hard to keep.
 *
 * Proves    no job is lost or passed over when the job that it waits for is hidden in a ring,
 *           when its stream is held back by another job's turn at a buffer, when the job before
 *           it at a buffer waits itself, is a HOST job, or could not be issued; handles stay good
 *           after 2^31 uses of a slot; and nobody who sleeps for a lost device sleeps on.
 * Hooks     host functions that stay until they are let go, points of the submission path,
 *           faults.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../libren/core/runtime.h"
#include "../support/gate.h"
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"

#define SECOND UINT64_C(1000000000)
#define LONG   (10 * SECOND)
#define BYTES  4096u

static ren_runtime *rt;

static void open_rt(void)
{
    rt = ren_test_runtime(NULL);
}

static void close_rt(void)
{
    ren_test_shutdown(rt);
    rt = NULL;
}

static ren_buffer make_buffer(ren_stream stream)
{
    ren_buffer buffer;
    CU_ASSERT_EQUAL_FATAL(ren_buffer_alloc(rt, stream, BYTES, &buffer), REN_OK);
    return buffer;
}

static ren_job post(const ren_job_desc *desc)
{
    ren_job job = {0};
    CU_ASSERT_EQUAL(ren_post(rt, desc, &job), REN_OK);
    return job;
}

static ren_job_desc make_fill(ren_stream stream, ren_buffer buffer, uint32_t value)
{
    ren_job_desc d = ren_job_desc_default();
    d.kind = REN_JOB_FILL;
    d.stream = stream;
    d.fill.dst.buffer = buffer;
    d.fill.value = value;
    d.fill.bytes = BYTES;
    return d;
}

static ren_job_desc make_download(ren_stream stream, ren_buffer buffer, void *to)
{
    ren_job_desc d = ren_job_desc_default();
    d.kind = REN_JOB_COPY;
    d.stream = stream;
    d.copy.src.buffer = buffer;
    d.copy.dst.host = to;
    d.copy.bytes = BYTES;
    return d;
}

static ren_job_desc make_host(ren_stream stream, ren_host_fn fn, void *user)
{
    ren_job_desc d = ren_job_desc_default();
    d.kind = REN_JOB_HOST;
    d.stream = stream;
    d.host_fn = fn;
    d.host_user = user;
    return d;
}

static unsigned char read_first(ren_buffer buffer)
{
    unsigned char bytes[BYTES];
    ren_job_desc d = make_download(REN_STREAM_TRANS, buffer, bytes);
    CU_ASSERT_EQUAL(ren_wait(rt, post(&d), LONG), REN_OK);
    return bytes[0];
}

static void wait_for_door(void *user)
{
    while (sem_wait(user) != 0) {
    }
}

/* The submitter has taken up everything that was posted before: a job of the last class is
 * issued. */
static void settle(ren_stream stream)
{
    ren_job_desc d = ren_job_desc_default();
    d.kind = REN_JOB_BARRIER;
    d.stream = stream;
    d.priority = REN_PRIORITY_BACKGROUND;
    CU_ASSERT_EQUAL(ren_wait(rt, post(&d), LONG), REN_OK);
}

/* ------------------------------------------------------------------ waits */

/* A poster stands between taking its place in the shared ring and filling it, so that the next
 * job of that ring is accepted but hidden; here the place is taken by hand, and given back by
 * moving the hidden job into it. A job of another class waits for the hidden one. Fails when the
 * hidden job, once it comes out, forgets who waits for it. */
static void test_wait_for_a_job_hidden_behind_another_poster(void)
{
    ren_job_desc d = ren_job_desc_default();
    ren__ring *ring;
    uint32_t place = 0;
    void *entry;
    ren_job hidden;
    ren_job waiter;
    open_rt();
    ring = &rt->shared.shared[REN__CLASS_NORMAL].ring;
    CU_ASSERT_FATAL(ren__mpsc_reserve_pvt(ring, &place));
    d.kind = REN_JOB_BARRIER;
    hidden = post(&d);
    d.priority = REN_PRIORITY_REALTIME;
    d.wait = &hidden;
    d.wait_count = 1;
    waiter = post(&d);
    settle(REN_STREAM_COMP_1);
    CU_ASSERT_EQUAL(ren_job_status(rt, waiter), REN_PENDING);
    entry = ck_pr_load_ptr(&ring->slots[(place + 1) & ring->ck.mask].value);
    ck_pr_store_ptr(&ring->slots[(place + 1) & ring->ck.mask].value, NULL);
    ck_pr_store_uint(&ring->ck.p_head, place + 1);
    ck_pr_fence_release(); /* pairs with the acquire in ren__mpsc_pop */
    ck_pr_store_ptr(&ring->slots[place & ring->ck.mask].value, entry);
    ren__doorbell_ring(&rt->submit_bell);
    CU_ASSERT_EQUAL(ren_wait(rt, hidden, LONG), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, waiter, SECOND), REN_OK);
    close_rt();
}

/* ------------------------------------------------------------------ turns at a buffer */

/* The first fill waits for a HOST job; the second, on the same stream, stands behind it at the
 * buffer and so at the head of the stream's queue. Fails by a hang when the first one, once free
 * to go, is put behind the second. */
static void test_turn_at_a_buffer_before_place_on_a_stream(void)
{
    ren_buffer buffer;
    ren_job_desc d;
    ren_job host;
    ren_job first;
    ren_job second;
    sem_t door;
    open_rt();
    (void)sem_init(&door, 0, 0);
    buffer = make_buffer(REN_STREAM_COMP_1);
    d = make_host(REN_STREAM_COMP_3, wait_for_door, &door);
    host = post(&d);
    d = make_fill(REN_STREAM_COMP_1, buffer, 1);
    d.wait = &host;
    d.wait_count = 1;
    first = post(&d);
    d = make_fill(REN_STREAM_COMP_1, buffer, 2);
    second = post(&d);
    settle(REN_STREAM_COMP_2);
    CU_ASSERT_EQUAL(ren_job_status(rt, second), REN_PENDING);
    (void)sem_post(&door);
    CU_ASSERT_EQUAL(ren_wait(rt, first, 2 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(ren_wait(rt, second, 2 * SECOND), REN_OK);
    CU_ASSERT_EQUAL(read_first(buffer), 2);
    close_rt();
    (void)sem_destroy(&door);
}

/* HOST h; x waits for h; the first fill waits for x, which is not issued yet; the second fill
 * waits for nothing. One thread, one class: the fills go in the order of their posts. Fails when
 * the second one overtakes, so that the buffer ends with the first one's value. */
static void test_buffer_order_behind_an_unissued_job(void)
{
    ren_buffer buffer;
    ren_job_desc d;
    ren_job host;
    ren_job x;
    sem_t door;
    open_rt();
    (void)sem_init(&door, 0, 0);
    buffer = make_buffer(REN_STREAM_COMP_1);
    d = make_host(REN_STREAM_COMP_3, wait_for_door, &door);
    host = post(&d);
    d = ren_job_desc_default();
    d.kind = REN_JOB_BARRIER;
    d.stream = REN_STREAM_COMP_2;
    d.wait = &host;
    d.wait_count = 1;
    x = post(&d);
    d = make_fill(REN_STREAM_COMP_1, buffer, 1);
    d.wait = &x;
    d.wait_count = 1;
    (void)post(&d);
    d = make_fill(REN_STREAM_COMP_1, buffer, 2);
    (void)post(&d);
    settle(REN_STREAM_UPDATE);
    (void)sem_post(&door);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
    CU_ASSERT_EQUAL(read_first(buffer), 2);
    close_rt();
    (void)sem_destroy(&door);
}

/* As above, but the awaited job is of another class and still in its ring when its waiter is
 * taken up. A first job keeps the submitter inside a callback while the three are posted. */
static void block_submitter(const ren_completion *completion, void *user)
{
    (void)completion;
    wait_for_door(user);
}

/* Keep the submitter busy until the door is opened: a cancelled job's callback runs on it. */
static void hold_submitter(sem_t *door)
{
    ren_job_desc d = ren_job_desc_default();
    d.kind = REN_JOB_BARRIER;
    d.deadline_ns = 1;
    d.deliver = REN_DELIVER_ANY_THREAD;
    d.done = block_submitter;
    d.user = door;
    (void)post(&d);
    while (ck_pr_load_uint(&rt->shared.shared[REN__CLASS_NORMAL].ring.ck.c_head) !=
           ck_pr_load_uint(&rt->shared.shared[REN__CLASS_NORMAL].ring.ck.p_head)) {
        (void)sched_yield();
    }
}

static void test_buffer_order_behind_a_job_of_another_class(void)
{
    ren_buffer buffer;
    ren_job_desc d;
    ren_job x;
    sem_t door;
    open_rt();
    (void)sem_init(&door, 0, 0);
    buffer = make_buffer(REN_STREAM_COMP_1);
    hold_submitter(&door);
    d = ren_job_desc_default();
    d.kind = REN_JOB_BARRIER;
    d.stream = REN_STREAM_COMP_2;
    d.priority = REN_PRIORITY_BACKGROUND;
    x = post(&d);
    d = make_fill(REN_STREAM_COMP_1, buffer, 1);
    d.priority = REN_PRIORITY_REALTIME;
    d.wait = &x;
    d.wait_count = 1;
    (void)post(&d);
    d = make_fill(REN_STREAM_COMP_1, buffer, 2);
    d.priority = REN_PRIORITY_REALTIME;
    (void)post(&d);
    (void)sem_post(&door);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
    CU_ASSERT_EQUAL(read_first(buffer), 2);
    close_rt();
    (void)sem_destroy(&door);
}

/* ------------------------------------------------------------------ HOST jobs */

typedef struct slow_flag {
    sem_t door;
    atomic_int done;
    atomic_int seen;
} slow_flag;

static void set_flag_slowly(void *user)
{
    slow_flag *f = user;
    wait_for_door(&f->door);
    atomic_store(&f->done, 1);
}

static ren_status look_at_flag(void *user, const ren_device_io *io)
{
    slow_flag *f = user;
    (void)io;
    atomic_store(&f->seen, 1 + atomic_load(&f->done));
    return REN_OK;
}

static void look_at_flag_on_host(void *user)
{
    (void)look_at_flag(user, NULL);
}

/* A job that names a buffer comes after the HOST job that named it before. Fails when it is ordered
 * only behind the HOST job's stream, which a HOST job does not hold. */
static void test_buffer_order_behind_a_host_job(void)
{
    static const ren_stream second[] = {REN_STREAM_COMP_1, REN_STREAM_COMP_2};
    for (size_t i = 0; i < 4; i++) {
        ren_use use = {{0}, REN_ACCESS_WRITE};
        slow_flag flag;
        ren_job_desc d;
        memset(&flag, 0, sizeof flag);
        (void)sem_init(&flag.door, 0, 0);
        open_rt();
        use.buffer = make_buffer(REN_STREAM_COMP_1);
        d = make_host(REN_STREAM_COMP_1, set_flag_slowly, &flag);
        d.uses = &use;
        d.use_count = 1;
        (void)post(&d);
        if (i < 2) {
            d = ren_job_desc_default();
            d.kind = REN_JOB_DEVICE;
            d.enqueue = look_at_flag;
            d.enqueue_user = &flag;
        } else {
            d = make_host(REN_STREAM_COMP_1, look_at_flag_on_host, &flag);
        }
        d.stream = second[i % 2];
        use.access = REN_ACCESS_READ;
        d.uses = &use;
        d.use_count = 1;
        (void)post(&d);
        settle(REN_STREAM_TRANS);
        (void)sem_post(&flag.door);
        CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
        CU_ASSERT_EQUAL(flag.seen, 2);
        close_rt();
        (void)sem_destroy(&flag.door);
    }
}

/* A BARRIER is done when all earlier work of its stream is, HOST functions included, and a job that
 * waits for it starts after that. */
static void test_wait_for_a_barrier_behind_a_host_job(void)
{
    slow_flag flag;
    ren_job_desc d;
    ren_job barrier;
    memset(&flag, 0, sizeof flag);
    (void)sem_init(&flag.door, 0, 0);
    open_rt();
    d = make_host(REN_STREAM_COMP_1, set_flag_slowly, &flag);
    (void)post(&d);
    d = ren_job_desc_default();
    d.kind = REN_JOB_BARRIER;
    d.stream = REN_STREAM_COMP_1;
    barrier = post(&d);
    d = ren_job_desc_default();
    d.kind = REN_JOB_DEVICE;
    d.stream = REN_STREAM_COMP_2;
    d.enqueue = look_at_flag;
    d.enqueue_user = &flag;
    d.wait = &barrier;
    d.wait_count = 1;
    (void)post(&d);
    settle(REN_STREAM_TRANS);
    (void)sem_post(&flag.door);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
    CU_ASSERT_EQUAL(flag.seen, 2);
    close_rt();
    (void)sem_destroy(&flag.door);
}

/* A copy that a completion thread makes, after its buffer was freed and the buffer's entry given to
 * another: it goes to the memory that was the buffer's when it was issued. Fails when the address
 * is looked up when the copy is made. */
static void test_host_copy_into_a_buffer_freed_meanwhile(void)
{
    static unsigned char bytes[BYTES];
    ren_buffer first;
    ren_buffer second;
    ren_job_desc d;
    memset(bytes, 5, sizeof bytes);
    if (ren_test_device() == REN_DEVICE_CPU) {
        ren_test_unpinned_next(); /* as it is for a GPU */
    }
    open_rt();
    first = make_buffer(REN_STREAM_TRANS);
    ren_test_hold(rt, REN_STREAM_TRANS);
    d = make_fill(REN_STREAM_TRANS, first, 1);
    (void)post(&d);
    d = ren_job_desc_default();
    d.kind = REN_JOB_COPY;
    d.copy.dst.buffer = first;
    d.copy.src.host = bytes;
    d.copy.bytes = BYTES;
    (void)post(&d);
    settle(REN_STREAM_COMP_2);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, first), REN_OK);
    second = make_buffer(REN_STREAM_COMP_1);
    d = make_fill(REN_STREAM_COMP_1, second, 9);
    (void)post(&d);
    settle(REN_STREAM_COMP_2);
    ren_test_release(rt, REN_STREAM_TRANS);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
    CU_ASSERT_EQUAL(read_first(second), 9);
    close_rt();
}

/* ------------------------------------------------------------------ jobs that cannot be issued */

/* A slow job reads a buffer; a fill of it on another stream is refused by the device; the buffer
 * is freed and its memory taken again on that stream and overwritten. Fails when the refused
 * fill took the reader's place in the buffer's history, so that the memory is overwritten under
 * the reader. */
static void test_refused_command_keeps_the_buffers_history(void)
{
    unsigned char *out;
    void *pinned = NULL; /* so that the lane reads the buffer, and an event says when it has */
    ren_buffer buffer;
    ren_buffer again;
    ren_job_desc d;
    ren_job failed;
    open_rt();
    CU_ASSERT_EQUAL_FATAL(rt->api->host_alloc(rt->dev, BYTES, &pinned), REN_OK);
    out = pinned;
    buffer = make_buffer(REN_STREAM_COMP_1);
    d = make_fill(REN_STREAM_COMP_1, buffer, 7);
    CU_ASSERT_EQUAL(ren_wait(rt, post(&d), LONG), REN_OK);
    ren_test_hold(rt, REN_STREAM_TRANS);
    d = make_download(REN_STREAM_TRANS, buffer, out);
    (void)post(&d);
    settle(REN_STREAM_COMP_2);
    ren_test_fault(rt, "event_wait", 1, REN_ERR_DEVICE, 0);
    d = make_fill(REN_STREAM_COMP_1, buffer, 8);
    failed = post(&d);
    CU_ASSERT_EQUAL(ren_wait(rt, failed, LONG), REN_ERR_DEVICE);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_OK);
    again = make_buffer(REN_STREAM_COMP_1);
    d = make_fill(REN_STREAM_COMP_1, again, 9);
    (void)post(&d);
    CU_ASSERT_EQUAL(ren_timeline_wait(rt, REN_STREAM_COMP_1, 3, SECOND / 5), REN_TIMEOUT);
    ren_test_release(rt, REN_STREAM_TRANS);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
    CU_ASSERT_EQUAL(out[0], 7);
    CU_ASSERT_EQUAL(out[BYTES - 1], 7);
    rt->api->host_free(rt->dev, pinned, BYTES);
    close_rt();
}

/* With a trace open a fill is refused by the device between its two stamps. It is done when its
 * lane is past them, not before: then their memory goes to another job. Fails when the refused job
 * is done while the lane still has a stamp to write. */
static void test_refused_command_keeps_its_stamps(void)
{
    char path[64];
    ren_buffer buffer;
    ren_job_desc d;
    ren_job failed;
    (void)snprintf(path, sizeof path, "/tmp/ren-test-order-%ld.json", (long)getpid());
    open_rt();
    buffer = make_buffer(REN_STREAM_COMP_1);
    CU_ASSERT_EQUAL_FATAL(ren_trace_begin(rt, path, NULL), REN_OK);
    ren_test_hold(rt, REN_STREAM_COMP_1);
    ren_test_fault(rt, "fill", 1, REN_ERR_DEVICE, 0);
    d = make_fill(REN_STREAM_COMP_1, buffer, 8);
    failed = post(&d);
    settle(REN_STREAM_COMP_2);
    CU_ASSERT_EQUAL(ren_wait(rt, failed, SECOND / 5), REN_TIMEOUT);
    ren_test_release(rt, REN_STREAM_COMP_1);
    CU_ASSERT_EQUAL(ren_wait(rt, failed, LONG), REN_ERR_DEVICE);
    CU_ASSERT_EQUAL(ren_trace_end(rt), REN_OK);
    (void)unlink(path);
    close_rt();
}

static void *make_a_region(void *user)
{
    ren__region region;
    ren_status status = ren__region_alloc(rt, (64u << 20) - 4096u, &region);
    if (status == REN_OK) {
        ren__region_free(rt, &region);
    }
    atomic_store((atomic_int *)user, 1);
    return (void *)(intptr_t)status;
}

/* A fill is refused by the device and its buffer freed; then memory for a model is taken, which
 * waits until the memory is quiet. Fails by a wait for a batch that is never closed. */
static void test_memory_of_a_refused_job_becomes_quiet(void)
{
    atomic_int got = 0;
    ren_buffer buffer;
    ren_job_desc d;
    pthread_t thread;
    open_rt();
    CU_ASSERT_EQUAL_FATAL(ren_buffer_alloc(rt, REN_STREAM_COMP_1, (64u << 20) - 4096u, &buffer),
                          REN_OK);
    ren_test_fault(rt, "fill", 1, REN_ERR_DEVICE, 0);
    d = make_fill(REN_STREAM_COMP_1, buffer, 8);
    CU_ASSERT_EQUAL(ren_wait(rt, post(&d), LONG), REN_ERR_DEVICE);
    CU_ASSERT_EQUAL(ren_buffer_free(rt, buffer), REN_OK);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, make_a_region, &got), 0);
    for (int i = 0; i < 2000 && !atomic_load(&got); i++) {
        (void)usleep(1000);
    }
    CU_ASSERT_EQUAL(atomic_load(&got), 1);
    if (!atomic_load(&got)) {
        settle(REN_STREAM_COMP_1); /* lets the thread go */
    }
    CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    close_rt();
}

typedef struct slow_work {
    gate held;
    atomic_int done;
    atomic_int seen;
    on_lane sets, looks;
} slow_work;

static void set_done(void *user)
{
    atomic_store(&((slow_work *)user)->done, 1);
}

static void look_whether_done(void *user)
{
    slow_work *w = user;
    atomic_store(&w->seen, 1 + atomic_load(&w->done));
}

static ren_status look_on_lane(void *user, const ren_device_io *io)
{
    return on_lane_pass(user, io->native_stream);
}

static ren_status break_off(void *self, ren__submit *s)
{
    static ren_status got;
    slow_work *w = self;
    const ren__device_api *api = ren__submit_api(s);
    uint32_t lane = ren__submit_lane(s, REN_STREAM_COMP_1);
    CU_ASSERT_EQUAL(api->call(ren__submit_device(s), lane, gate_pass, &w->held, &got), REN_OK);
    CU_ASSERT_EQUAL(api->call(ren__submit_device(s), lane, on_lane_pass, &w->sets, &got), REN_OK);
    return REN_ERR_DEVICE;
}

static void finish_nothing(void *self, ren_completion *completion)
{
    (void)self;
    (void)completion;
}

/* A work's issue fails after it has enqueued a command. Who waits for the work comes after that
 * command, too. Fails when a work without a batch of its own is not waited for. */
static void test_wait_for_a_work_that_broke_off(void)
{
    slow_work slow;
    ren__work work;
    ren_job_desc d = ren_job_desc_default();
    ren_job job;
    memset(&slow, 0, sizeof slow);
    memset(&work, 0, sizeof work);
    slow.sets = (on_lane){set_done, &slow};
    slow.looks = (on_lane){look_whether_done, &slow};
    open_rt();
    gate_make(&slow.held, rt->api, rt->dev);
    work.issue = break_off;
    work.finish = finish_nothing;
    work.self = &slow;
    work.stream = REN_STREAM_COMP_1;
    work.need[REN_STREAM_COMP_1] = 4;
    CU_ASSERT_EQUAL(ren__work_post(rt, &work, NULL, NULL, REN_DELIVER_NONE, 0, &job), REN_OK);
    d.kind = REN_JOB_DEVICE;
    d.stream = REN_STREAM_COMP_2;
    d.enqueue = look_on_lane;
    d.enqueue_user = &slow.looks;
    d.wait = &job;
    d.wait_count = 1;
    (void)post(&d);
    settle(REN_STREAM_TRANS);
    settle(REN_STREAM_COMP_3);
    CU_ASSERT_EQUAL(ren_job_status(rt, job), REN_PENDING);
    gate_open(&slow.held);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
    CU_ASSERT_EQUAL(ren_job_status(rt, job), REN_ERR_DEVICE);
    CU_ASSERT_EQUAL(slow.seen, 2);
    gate_free(&slow.held, rt->api, rt->dev);
    close_rt();
}

static ren_status note_issued(void *self, ren__submit *s)
{
    (void)s;
    *(uint64_t *)self = rt->stream_issued[REN_STREAM_TRANS];
    return REN_OK;
}

/* A lane is held until it has no room; a work that needs room on every lane comes, then more
 * jobs of the full lane. Fails when the room that comes free goes to those younger jobs, so that
 * a steady flood on one stream would keep a training step for ever. */
static void test_work_gets_room_beside_a_flood(void)
{
    enum {
        BEFORE = 9000, /* more than the lane takes */
        BEHIND = 4000
    };
    ren_runtime_config config = ren_test_config();
    uint64_t issued = 0;
    ren_buffer buffer;
    ren_job_desc d;
    ren__work work;
    config.ring_entries = 16384;
    rt = ren_test_runtime(&config);
    if (rt->caps.lane_commands > BEFORE) {
        ren_test_skip("this device's queues are longer than the test's flood");
        close_rt();
        return;
    }
    buffer = make_buffer(REN_STREAM_TRANS);
    ren_test_hold(rt, REN_STREAM_TRANS);
    d = make_fill(REN_STREAM_TRANS, buffer, 1);
    for (int i = 0; i < BEFORE; i++) {
        (void)post(&d);
    }
    settle(REN_STREAM_COMP_1);
    memset(&work, 0, sizeof work);
    work.issue = note_issued;
    work.finish = finish_nothing;
    work.self = &issued;
    work.stream = REN_STREAM_UPDATE;
    CU_ASSERT_EQUAL(ren__work_post(rt, &work, NULL, NULL, REN_DELIVER_NONE, 0, NULL), REN_OK);
    for (int i = 0; i < BEHIND; i++) {
        (void)post(&d);
    }
    d = ren_job_desc_default();
    d.kind = REN_JOB_BARRIER;
    d.stream = REN_STREAM_COMP_1;
    d.priority = REN_PRIORITY_REALTIME; /* which does not stand behind the work */
    CU_ASSERT_EQUAL(ren_wait(rt, post(&d), LONG), REN_OK);
    ren_test_release(rt, REN_STREAM_TRANS);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
    CU_ASSERT(issued > 0 && issued <= BEFORE);
    close_rt();
}

/* ------------------------------------------------------------------ handles, clocks, limits */

/* A slot that has been used 2^31 times: its jobs can still be waited for, named and cancelled. */
static void test_handles_after_two_thousand_million_uses(void)
{
    static const uint32_t uses[] = {0x7ffffffe, 0xfffffffd};
    ren_runtime_config config = ren_test_config();
    config.ring_entries = 1;
    rt = ren_test_runtime(&config);
    for (size_t i = 0; i < REN_TEST_COUNT(uses); i++) {
        ren__slot *slot = &rt->shared.slots[0];
        atomic_store(&slot->word,
                     ren__word_make(rt->first_generation + uses[i], REN__SLOT_DONE, 0));
        for (int k = 0; k < 6; k++) {
            ren_job_desc d = ren_job_desc_default();
            ren_job job = {0};
            ren_status status;
            d.kind = REN_JOB_BARRIER;
            while ((status = ren_post(rt, &d, &job)) == REN_ERR_QUEUE_FULL) {
                (void)sched_yield();
            }
            CU_ASSERT_EQUAL(status, REN_OK);
            CU_ASSERT_NOT_EQUAL(job.id, 0);
            CU_ASSERT_EQUAL(ren_wait(rt, job, LONG), REN_OK);
        }
    }
    close_rt();
}

typedef struct times {
    uint64_t posted, launched, done;
} times;

static void note_times(const ren_completion *c, void *user)
{
    times *t = user;
    t->posted = c->posted_ns;
    t->launched = c->launched_ns;
    t->done = c->done_ns;
}

/* Times of a job that is posted while the submitter is inside a round: posted <= launched <=
 * done. */
static void test_times_of_a_job_go_forward(void)
{
    ren_job_desc d = ren_job_desc_default();
    times t = {0, 0, 0};
    sem_t door;
    open_rt();
    (void)sem_init(&door, 0, 0);
    hold_submitter(&door);
    d.kind = REN_JOB_BARRIER;
    d.deliver = REN_DELIVER_ANY_THREAD;
    d.done = note_times;
    d.user = &t;
    (void)post(&d);
    (void)sem_post(&door);
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
    CU_ASSERT(t.posted <= t.launched);
    CU_ASSERT(t.launched <= t.done);
    close_rt();
    (void)sem_destroy(&door);
}

/* A tick stops after max_jobs, also when the jobs come from where a wait had put them. */
static void test_tick_stops_after_max_jobs(void)
{
    ren_runtime_config config = ren_test_config();
    ren_job_desc d = ren_job_desc_default();
    uint32_t issued = 0;
    ren_job last = {0};
    config.host_drives_submitter = 1;
    rt = ren_test_runtime(&config);
    d.kind = REN_JOB_BARRIER;
    d.priority = REN_PRIORITY_BACKGROUND;
    for (int i = 0; i < 20; i++) {
        last = post(&d);
    }
    d.priority = REN_PRIORITY_REALTIME;
    d.wait = &last;
    d.wait_count = 1;
    (void)post(&d);
    for (int i = 0; i < 40; i++) {
        CU_ASSERT_EQUAL(ren_runtime_tick(rt, 1, &issued), REN_OK);
        CU_ASSERT(issued <= 1);
    }
    CU_ASSERT_EQUAL(ren_runtime_drain(rt, LONG), REN_OK);
    close_rt();
}

/* ------------------------------------------------------------------ lost devices, aborts,
 * children */

static void *sleep_for_any(void *user)
{
    ren_status status = ren_wait_any(rt, REN_TIMEOUT_INFINITE);
    atomic_store((atomic_int *)user, 1);
    return (void *)(intptr_t)status;
}

/* The last job of a lost device has no callback for the pump: whoever sleeps in ren_wait_any is
 * told all the same. */
static void test_wait_any_ends_when_a_lost_device_has_nothing_left(void)
{
    ren_job_desc d = ren_job_desc_default();
    atomic_int ended = 0;
    pthread_t thread;
    void *result = NULL;
    ren_error err;
    sem_t door;
    open_rt();
    (void)sem_init(&door, 0, 0);
    d.kind = REN_JOB_BARRIER;
    d.deadline_ns = 1;
    d.deliver = REN_DELIVER_ANY_THREAD;
    d.done = block_submitter;
    d.user = &door;
    (void)post(&d); /* outstanding until the door opens */
    (void)REN__FAIL(&err, REN_ERR_DEVICE_LOST, "by a test");
    ren__runtime_set_lost(rt, &err);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, sleep_for_any, &ended), 0);
    while (ck_pr_load_32(&rt->pump_bell.sleepers) == 0) {
        (void)sched_yield();
    }
    (void)usleep(20000); /* it has looked, and sleeps: only makes the test sharper */
    (void)sem_post(&door);
    for (int i = 0; i < 3000 && !atomic_load(&ended); i++) {
        (void)usleep(1000);
    }
    CU_ASSERT_EQUAL(atomic_load(&ended), 1);
    ren__doorbell_ring(&rt->pump_bell); /* lets it go, should it sleep */
    CU_ASSERT_EQUAL(pthread_join(thread, &result), 0);
    CU_ASSERT_EQUAL((ren_status)(intptr_t)result, REN_ERR_DEVICE_LOST);
    close_rt();
    (void)sem_destroy(&door);
}

/* A device whose events never answer, not even when it is given up. */
static sem_t never;

static ren_status sync_never(ren__device *dev, ren__event *event)
{
    (void)dev;
    (void)event;
    wait_for_door(&never);
    return REN_ERR_DEVICE_LOST;
}

static void *abort_rt(void *user)
{
    (void)user;
    return (void *)(intptr_t)ren_runtime_abort(rt);
}

static void count_done(const ren_completion *completion, void *user)
{
    atomic_uint *done = user;
    atomic_fetch_add(&done[0], 1);
    atomic_fetch_add(&done[1], completion->status == REN_ERR_TIMEOUT);
}

/* Two threads abort a runtime whose device does not answer, so that both come to finish its
 * batches: every job completes once, and the counters say so. The runtime is left behind, with
 * its threads. */
static void test_two_aborts_at_once(void)
{
    pthread_t threads[2];
    ren_stats stats = ren_stats_default();
    ren_buffer buffers[REN_STREAM_COUNT];
    static ren__device_api deaf;
    static atomic_uint done[2];
    (void)sem_init(&never, 0, 0);
    open_rt();
    deaf = *rt->api;
    deaf.event_sync = sync_never;
    rt->api = &deaf;
    for (uint32_t s = 0; s < REN_STREAM_COUNT; s++) {
        buffers[s] = make_buffer((ren_stream)s);
        for (uint32_t i = 0; i < 800; i++) {
            ren_job_desc d = make_fill((ren_stream)s, buffers[s], i & 255u);
            d.done = count_done;
            d.user = done;
            (void)post(&d);
        }
    }
    for (uint32_t l = 0; l < rt->lanes_count; l++) {
        while (atomic_load(&rt->lanes[l].published) == 0) {
            (void)sched_yield(); /* until the device has some of them */
        }
    }
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, abort_rt, NULL), 0);
    }
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(pthread_join(threads[i], NULL), 0);
    }
    CU_ASSERT_EQUAL(ren_runtime_stats(rt, &stats), REN_OK);
    CU_ASSERT_EQUAL(stats.jobs_posted,
                    stats.jobs_completed + stats.jobs_failed + stats.jobs_cancelled);
    CU_ASSERT_EQUAL(stats.completions_waiting, 800u * REN_STREAM_COUNT);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(done[0], 800u * REN_STREAM_COUNT);
    CU_ASSERT(done[1] > 0);
    CU_ASSERT_EQUAL(ren_runtime_destroy(rt), REN_OK);
    rt = NULL;
}

/* In a child every call that looks at the runtime says so, the counters too: another thread may
 * have held the pool's lock when the child was made. */
static void test_child_gets_no_counters(void)
{
    ren_stats stats = ren_stats_default();
    int result = 0;
    pid_t child;
    open_rt();
    child = fork();
    if (child == 0) {
        _exit(ren_runtime_stats(rt, &stats) == REN_ERR_FORKED ? 7 : 8);
    }
    CU_ASSERT_EQUAL(waitpid(child, &result, 0), child);
    CU_ASSERT(WIFEXITED(result) && WEXITSTATUS(result) == 7);
    close_rt();
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_wait_for_a_job_hidden_behind_another_poster",
         test_wait_for_a_job_hidden_behind_another_poster},
        {"test_turn_at_a_buffer_before_place_on_a_stream",
         test_turn_at_a_buffer_before_place_on_a_stream},
        {"test_buffer_order_behind_an_unissued_job", test_buffer_order_behind_an_unissued_job},
        {"test_buffer_order_behind_a_job_of_another_class",
         test_buffer_order_behind_a_job_of_another_class},
        {"test_buffer_order_behind_a_host_job", test_buffer_order_behind_a_host_job},
        {"test_wait_for_a_barrier_behind_a_host_job", test_wait_for_a_barrier_behind_a_host_job},
        {"test_host_copy_into_a_buffer_freed_meanwhile",
         test_host_copy_into_a_buffer_freed_meanwhile},
        {"test_refused_command_keeps_the_buffers_history",
         test_refused_command_keeps_the_buffers_history},
        {"test_refused_command_keeps_its_stamps", test_refused_command_keeps_its_stamps},
        {"test_memory_of_a_refused_job_becomes_quiet", test_memory_of_a_refused_job_becomes_quiet},
        {"test_wait_for_a_work_that_broke_off", test_wait_for_a_work_that_broke_off},
        {"test_work_gets_room_beside_a_flood", test_work_gets_room_beside_a_flood},
        {"test_handles_after_two_thousand_million_uses",
         test_handles_after_two_thousand_million_uses},
        {"test_times_of_a_job_go_forward", test_times_of_a_job_go_forward},
        {"test_tick_stops_after_max_jobs", test_tick_stops_after_max_jobs},
        {"test_wait_any_ends_when_a_lost_device_has_nothing_left",
         test_wait_any_ends_when_a_lost_device_has_nothing_left},
        {"test_two_aborts_at_once", test_two_aborts_at_once},
        {"test_child_gets_no_counters", test_child_gets_no_counters},
    };
    return ren_test_main(argc, argv, "fault/test_order", cases, REN_TEST_COUNT(cases), 120);
}
