/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_plan_cache.c - which plans a trainer keeps, and for how long.
 *
 * A plan that is kept has its graphs, so a step shows by its path whether its plan was: by a graph,
 * or queued as the first step of a new plan is.
 */
#include "../support/ren_test.h"
#include "../support/runtime.h"
#include "../support/test.h"
#include "runs.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct training {
    ren_runtime *rt;
    net n;
    ren_trainer *t;
    float *x;
    int32_t *labels;
    uint32_t ticks; /* 1 = this thread drives the submitter */
} training;

/* Graphs come with the second step of a plan, one for each of the two places. */
static void begin(training *r, uint32_t rows, uint32_t cache, uint32_t ticks)
{
    ren_runtime_config config = ren_test_config();
    ren_trainer_config how = ren_trainer_config_default();
    memset(r, 0, sizeof *r);
    config.graph_after_steps = 1;
    config.host_drives_submitter = ticks;
    r->ticks = ticks;
    r->rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->rt);
    net_build(&r->n, r->rt, NET_MLP, rows, 5);
    how.plan_cache = cache;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(r->n.model, r->n.loss, &how, &r->t, NULL), REN_OK);
    r->x = calloc(rows * r->n.row, sizeof *r->x);
    r->labels = calloc(rows, sizeof *r->labels);
    CU_ASSERT_FATAL(r->x && r->labels);
}

static void end(training *r)
{
    ren_trainer_destroy(r->t);
    ren_model_destroy(r->n.model);
    ren_test_shutdown(r->rt);
    free(r->x);
    free(r->labels);
}

static ren_status post(training *r, uint32_t rows, net_result *result, ren_job *job)
{
    return net_post(&r->n, r->t, r->x, r->labels, rows, result, job);
}

static void tick(const training *r)
{
    if (r->ticks) {
        CU_ASSERT_EQUAL(ren_runtime_tick(r->rt, 0, NULL), REN_OK);
    }
    sched_yield();
}

static void await(const training *r, const net_result *result)
{
    while (__atomic_load_n(&result->calls, __ATOMIC_ACQUIRE) == 0) {
        tick(r);
    }
}

/* One step; its path. */
static ren_path path_of(training *r, uint32_t rows)
{
    net_result result;
    ren_job job;
    CU_ASSERT_EQUAL_FATAL(post(r, rows, &result, &job), REN_OK);
    await(r, &result);
    CU_ASSERT_EQUAL(result.status, REN_OK);
    return result.step.path;
}

/* A new plan, up to its graphs. */
static void warm_up(training *r, uint32_t rows)
{
    CU_ASSERT_EQUAL(path_of(r, rows), REN_PATH_QUEUED);
    CU_ASSERT_EQUAL(path_of(r, rows), REN_PATH_GRAPH);
    CU_ASSERT_EQUAL(path_of(r, rows), REN_PATH_GRAPH);
}

/* As many batch sizes as fit, then the oldest once more, then one too many: the plan that goes is
 * the one unused for longest, which is the second, and no other. Fails if the oldest plan goes (as
 * in a FIFO), the newest, or more than one, or if the cache is smaller or larger than was asked. */
static void check_least_recently_used(uint32_t cache, uint32_t size)
{
    uint32_t victim = size > 1 ? 2 : 1;
    training r;
    begin(&r, size + 1, cache, 0);
    for (uint32_t rows = 1; rows <= size; rows++) {
        warm_up(&r, rows);
    }
    for (uint32_t rows = size; rows > 0; rows--) {
        CU_ASSERT_EQUAL(path_of(&r, rows), REN_PATH_GRAPH);
    }
    for (uint32_t rows = 2; rows <= size; rows++) {
        CU_ASSERT_EQUAL(path_of(&r, rows), REN_PATH_GRAPH);
    }
    CU_ASSERT_EQUAL(path_of(&r, 1), REN_PATH_GRAPH);
    warm_up(&r, size + 1);
    for (uint32_t rows = 1; rows <= size + 1; rows++) {
        if (rows != victim) {
            CU_ASSERT_EQUAL(path_of(&r, rows), REN_PATH_GRAPH);
        }
    }
    CU_ASSERT_EQUAL(path_of(&r, victim), REN_PATH_QUEUED);
    end(&r);
}

static void test_least_recently_used_goes(void)
{
    check_least_recently_used(1, 1);
    check_least_recently_used(2, 2);
    check_least_recently_used(3, 3);
    check_least_recently_used(0, 8);
    check_least_recently_used(64, 64);
}

/* What is frozen is part of a plan's signature: with room for one plan, freezing and back makes two
 * new ones; with room for two, the first is still there. */
static void test_frozen_sets_take_room(void)
{
    for (uint32_t cache = 1; cache <= 2; cache++) {
        training r;
        begin(&r, 4, cache, 0);
        warm_up(&r, 4);
        CU_ASSERT_EQUAL(ren_param_set_frozen(r.n.model, "l1", 1), REN_OK);
        warm_up(&r, 4);
        CU_ASSERT_EQUAL(ren_param_set_frozen(r.n.model, "l1", 0), REN_OK);
        CU_ASSERT_EQUAL(path_of(&r, 4), cache == 1 ? REN_PATH_QUEUED : REN_PATH_GRAPH);
        end(&r);
    }
}

/* With steps of both plans under way a third one is refused, keeping nothing, by a step as by a
 * picture, while steps of the two go on; then it is taken. Fails if a plan goes that the device
 * still runs, or if a refused step leaves anything behind. */
static void test_plans_under_way_stay(void)
{
    net_result under_way[3], refused;
    char path[64];
    ren_job job;
    training r;
    begin(&r, 4, 2, 0);
    warm_up(&r, 4);
    warm_up(&r, 3);
    (void)snprintf(path, sizeof path, "/tmp/ren-test-cache-%ld.dot", (long)getpid());
    ren_test_hold(r.rt, REN_STREAM_UPDATE);
    CU_ASSERT_EQUAL(post(&r, 3, &under_way[0], &job), REN_OK);
    CU_ASSERT_EQUAL(post(&r, 4, &under_way[1], &job), REN_OK);
    CU_ASSERT_EQUAL(post(&r, 2, &refused, &job), REN_ERR_QUEUE_FULL);
    CU_ASSERT_EQUAL(job.id, 0);
    CU_ASSERT_EQUAL(ren_plan_dump(r.t, 2, path, NULL), REN_ERR_QUEUE_FULL);
    CU_ASSERT_EQUAL(post(&r, 4, &under_way[2], &job), REN_OK);
    ren_test_release(r.rt, REN_STREAM_UPDATE);
    for (uint32_t i = 0; i < 3; i++) {
        await(&r, &under_way[i]);
        CU_ASSERT_EQUAL(under_way[i].status, REN_OK);
        CU_ASSERT_EQUAL(under_way[i].step.index, 6 + i + 1);
        CU_ASSERT_EQUAL(under_way[i].step.path, REN_PATH_GRAPH);
    }
    CU_ASSERT_EQUAL(refused.calls, 0);
    net_wait(r.rt, job); /* the last plan's step has let it go */
    warm_up(&r, 2);
    CU_ASSERT_EQUAL(path_of(&r, 4), REN_PATH_GRAPH);
    CU_ASSERT_EQUAL(path_of(&r, 3), REN_PATH_QUEUED);
    end(&r);
}

/* The plan unused for longest is under way, the other, used since by a step that was cancelled, is
 * not: the other goes. */
static void test_the_next_oldest_goes(void)
{
    net_result under_way, cancelled;
    ren_job job;
    training r;
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_skip("a driver may wait for a stream that is held when a plan is made");
        return;
    }
    begin(&r, 4, 2, 1);
    warm_up(&r, 4);
    warm_up(&r, 3);
    ren_test_hold(r.rt, REN_STREAM_UPDATE);
    CU_ASSERT_EQUAL(post(&r, 4, &under_way, &job), REN_OK);
    tick(&r);
    CU_ASSERT_EQUAL(post(&r, 3, &cancelled, &job), REN_OK);
    CU_ASSERT_EQUAL(ren_cancel(r.rt, job), REN_OK);
    await(&r, &cancelled);
    CU_ASSERT_EQUAL(cancelled.status, REN_CANCELLED);
    CU_ASSERT_EQUAL(__atomic_load_n(&under_way.calls, __ATOMIC_ACQUIRE), 0);
    CU_ASSERT_EQUAL(ren_plan_dump(r.t, 2, "/no/such/folder/plan.dot", NULL), REN_ERR_IO);
    ren_test_release(r.rt, REN_STREAM_UPDATE);
    await(&r, &under_way);
    CU_ASSERT_EQUAL(under_way.status, REN_OK);
    CU_ASSERT_EQUAL(path_of(&r, 4), REN_PATH_GRAPH);
    CU_ASSERT_EQUAL(path_of(&r, 3), REN_PATH_QUEUED);
    end(&r);
}

/* How many plans are kept changes no value: steps of four batch sizes, several under way, by both
 * paths, with plans coming and going all the time and with room for all. */
static void test_cache_changes_no_value(void)
{
    static const uint32_t caches[] = {1, 2, 3};
    static run_result base, other;
    run_spec spec = run_default(NET_TINYRES);
    spec.steps = 64 / (ren_test_slowdown() > 1 ? 2u : 1u);
    spec.block = 4;
    spec.sizes = 4;
    spec.after = 1;
    spec.plan_cache = 64;
    run_alone(&spec, &base);
    for (size_t i = 0; i < REN_TEST_COUNT(caches); i++) {
        spec.plan_cache = caches[i];
        run_alone(&spec, &other);
        CU_ASSERT(other.graph_steps < base.graph_steps);
        run_same(&base, &other);
    }
    run_free(&base);
}

/* More than 64 are refused with a text, and nothing is left of the trainer. */
static void test_plan_cache_is_checked(void)
{
    static const uint32_t bad[] = {65, UINT32_MAX};
    training r;
    begin(&r, 4, 64, 0);
    ren_trainer_destroy(r.t);
    for (size_t i = 0; i < REN_TEST_COUNT(bad); i++) {
        ren_trainer_config how = ren_trainer_config_default();
        ren_error err = {0};
        how.plan_cache = bad[i];
        r.t = (ren_trainer *)&r;
        CU_ASSERT_EQUAL(ren_trainer_create(r.n.model, r.n.loss, &how, &r.t, &err),
                        REN_ERR_INVALID_ARGUMENT);
        CU_ASSERT_PTR_NULL(r.t);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "plan_cache"));
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "64"));
    }
    CU_ASSERT_EQUAL(ren_trainer_create(r.n.model, r.n.loss, NULL, &r.t, NULL), REN_OK);
    warm_up(&r, 4);
    end(&r);
}

/* What a step's callback, on a thread of libren's, does and sees. */
typedef struct in_callback {
    training *of;
    uint32_t issued; /* the test's: 1 = all that it posted is with the device */
    uint32_t calls;
    ren_status status; /* of posting a step that needs a new plan */
    net_result result;
} in_callback;

static void post_in_callback(const ren_completion *c, void *user)
{
    in_callback *in = user;
    ren_job job;
    (void)c;
    while (__atomic_load_n(&in->issued, __ATOMIC_ACQUIRE) == 0) {
        sched_yield();
    }
    in->status = post(in->of, 3, &in->result, &job);
    __atomic_fetch_add(&in->calls, 1, __ATOMIC_RELEASE);
}

static void step_with_callback(training *r, in_callback *in)
{
    ren_binding bindings[2] = {{"x", r->x, r->n.row * 4 * sizeof(float)},
                               {"labels", r->labels, 4 * sizeof(int32_t)}};
    ren_step_desc desc = ren_step_desc_default();
    memset(in, 0, sizeof *in);
    in->of = r;
    desc.bindings = bindings;
    desc.binding_count = 2;
    desc.done = post_in_callback;
    desc.user = in;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    CU_ASSERT_EQUAL_FATAL(ren_trainer_step(r->t, &desc, NULL), REN_OK);
}

static void finish_callback(training *r, in_callback *in, ren_status wanted)
{
    CU_ASSERT_EQUAL(ren_runtime_tick(r->rt, 0, NULL), REN_OK);
    __atomic_store_n(&in->issued, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&in->calls, __ATOMIC_ACQUIRE) == 0) {
        sched_yield();
    }
    CU_ASSERT_EQUAL(in->status, wanted);
    CU_ASSERT_EQUAL(in->result.calls, 0);
    CU_ASSERT_EQUAL(ren_runtime_drain(r->rt, UINT64_C(10000000000)), REN_OK);
}

#define MOST_BUFFERS 64u

/* All that is left of the pool; the largest piece first. */
static uint32_t take_all_memory(const training *r, ren_buffer *buffers)
{
    uint32_t count = 0;
    for (uint64_t bytes = 64u << 20; bytes >= 256 && count < MOST_BUFFERS; bytes /= 2) {
        while (count < MOST_BUFFERS &&
               ren_buffer_alloc(r->rt, REN_STREAM_UPDATE, bytes, &buffers[count]) == REN_OK) {
            count++;
        }
    }
    CU_ASSERT_FATAL(count > 0 && count < MOST_BUFFERS);
    return count;
}

/* A callback on the thread that completes UPDATE posts a step that needs a plan, when all memory is
 * taken, and when what is free is still used by a job of UPDATE: it is refused at once, in the
 * second case only until the memory is quiet. Fails, by a hang, if the callback waits for its own
 * thread. */
static void test_callback_does_not_wait_for_memory(void)
{
    ren_buffer buffers[MOST_BUFFERS];
    ren_runtime_config config = ren_test_config();
    ren_trainer_config how = ren_trainer_config_default();
    ren_job_desc fill = ren_job_desc_default();
    static in_callback in;
    training r;
    if (ren_test_device() != REN_DEVICE_CPU) {
        ren_test_skip("what a driver's libraries take of the pool is not known");
        return;
    }
    memset(&r, 0, sizeof r);
    config.host_drives_submitter = 1;
    config.device_memory_limit_bytes = 64u << 20;
    r.ticks = 1;
    r.rt = ren_test_runtime(&config);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r.rt);
    net_build(&r.n, r.rt, NET_MLP, 4, 5);
    CU_ASSERT_EQUAL_FATAL(ren_trainer_create(r.n.model, r.n.loss, &how, &r.t, NULL), REN_OK);
    r.x = calloc(4 * r.n.row, sizeof *r.x);
    r.labels = calloc(4, sizeof *r.labels);
    CU_ASSERT_FATAL(r.x && r.labels);
    uint32_t count = take_all_memory(&r, buffers);

    step_with_callback(&r, &in);
    finish_callback(&r, &in, REN_ERR_NO_DEVICE_MEMORY);

    fill.kind = REN_JOB_FILL;
    fill.stream = REN_STREAM_UPDATE;
    fill.fill.dst.buffer = buffers[0];
    fill.fill.bytes = 256;
    step_with_callback(&r, &in);
    CU_ASSERT_EQUAL(ren_post(r.rt, &fill, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_buffer_free(r.rt, buffers[0]), REN_OK);
    finish_callback(&r, &in, REN_ERR_QUEUE_FULL);

    CU_ASSERT_EQUAL(path_of(&r, 3), REN_PATH_QUEUED);
    for (uint32_t i = 1; i < count; i++) {
        CU_ASSERT_EQUAL(ren_buffer_free(r.rt, buffers[i]), REN_OK);
    }
    end(&r);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_least_recently_used_goes", test_least_recently_used_goes},
        {"test_frozen_sets_take_room", test_frozen_sets_take_room},
        {"test_plans_under_way_stay", test_plans_under_way_stay},
        {"test_the_next_oldest_goes", test_the_next_oldest_goes},
        {"test_cache_changes_no_value", test_cache_changes_no_value},
        {"test_callback_does_not_wait_for_memory", test_callback_does_not_wait_for_memory},
        {"test_plan_cache_is_checked", test_plan_cache_is_checked},
    };
    return ren_test_main(argc, argv, "conformance/test_plan_cache", cases, REN_TEST_COUNT(cases),
                         120);
}
