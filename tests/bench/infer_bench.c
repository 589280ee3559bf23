/* SPDX-License-Identifier: MIT */
/* tests/bench/infer_bench.c - requests for inference per second, and how long one takes.
 *
 * Question  What do several host threads get from one model, alone and beside training, on one
 *           stream and on all; and what does it cost the training?
 * Threads   its own, as below; libren's threads run on_answer and on_step.
 * Method    A closed loop: each of --threads host threads keeps --in-flight requests under way, and
 *           sleeps when it has as many; a completion on libren's thread lets it post the next. A
 *           run is --ms long; requests completed in it count, and each one's time from post to
 *           completion. Training is a further thread with two steps under way. All modes of a model
 *           have their runtime open and take turns, as often as --repeats says; the medians of the
 *           runs are kept. The first run of each is not counted: plans, graphs, caches.
 * Cases     <model>/<batch>/<mode>-<streams>, mode: alone; train (requests in the model's order,
 *           beside training); any (the same, with any_version); steps (training, no requests)
 * Metrics   requests_per_s; p50_us, p99_us (post to completion); step_ms; lag (mean number of steps
 *           posted before a request whose updates its answer has not seen: 0 but for `any`)
 * Check     Every request and every step completes with REN_OK, and `train` never lags.
 * Flags     --device cpu|cuda   default cpu
 *           --model NAMES       default mlp-64x4,mlp-256x4,lenet28, on CUDA incep32, too
 *           --batch N           rows of a request; default 1
 *           --train-batch N     rows of a step; default 32
 *           --threads N         default 4
 *           --in-flight N       per thread; default 4
 *           --ms N              of a run; default 400
 *           --mode NAMES        default all
 *           --module FILE       libren_cuda.so
 *           and those of bench.h.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../libren/train/model_state.h"
#include "bench.h"
#include "cases.h"

#define REPEATS     32u
#define THREADS     32u
#define IN_FLIGHT   32u
#define MOST_TIMES  200000u /* of one thread and run */
#define STEPS_AHEAD 2u

static const char *const mode_names[] = {"alone", "train", "any", "steps"};
enum {
    ALONE = 0,
    TRAIN,
    ANY,
    STEPS,
    MODES
};
static const uint32_t stream_counts[] = {1, 5};
#define SESSIONS (sizeof stream_counts / sizeof stream_counts[0])

static struct {
    ren_device_kind device;
    const char *models, *modes, *module_path;
    uint32_t batch, train_batch, threads, in_flight, ms;
} opt = {.device = REN_DEVICE_CPU,
         .modes = "alone,train,any,steps",
         .batch = 1,
         .train_batch = 32,
         .threads = 4,
         .in_flight = 4,
         .ms = 400};

typedef struct figures {
    double rate[REPEATS], p50[REPEATS], p99[REPEATS], step_ms[REPEATS], lag[REPEATS];
    uint32_t count;
} figures;

typedef struct session {
    const bench_model *of;
    uint32_t streams;
    ren_runtime *rt;
    ren_model *model;
    ren_trainer *trainer;
    ren_tensor logits;
    size_t out_bytes; /* of a request */
    void *data[BENCH_MODEL_INPUTS];
    uint64_t steps_posted; /* written by the training thread, read by posters */
    figures modes[MODES];
} session;

static void must(ren_status status, const char *what)
{
    if (status != REN_OK) {
        (void)fprintf(stderr, "infer_bench: %s: %s\n", what, ren_status_name(status));
        exit(1);
    }
}

/* ------------------------------------------------------------------ sessions */

static void open_session(session *s, const bench_model *of, uint32_t streams)
{
    ren_runtime_config config = ren_runtime_config_default();
    ren_model_config how = ren_model_config_default();
    ren_trainer_config train = ren_trainer_config_default();
    ren_error err;
    memset(&err, 0, sizeof err);
    memset(s, 0, sizeof *s);
    s->of = of;
    s->streams = streams;
    config.device = opt.device;
    config.module_path = opt.module_path;
    config.streams = streams;
    ren_status status = ren_runtime_create(&config, &s->rt, &err);
    if (status != REN_OK) {
        printf("infer_bench: %s\n", err.text);
        exit(77);
    }
    how.infer_requests = opt.threads * opt.in_flight;
    must(ren_model_create(s->rt, &how, &s->model, NULL), "model");
    uint32_t rows = opt.train_batch > opt.batch ? opt.train_batch : opt.batch;
    ren_tensor loss = of->build(s->model, of, rows);
    train.learning_rate = of->learning_rate / 10.0f; /* the same batch for ever */
    must(ren_trainer_create(s->model, loss, &train, &s->trainer, &err), err.text);
    const ren__node *last = s->model->nodes[ren__model_node_of(s->model, loss)];
    const ren__node *logits = s->model->nodes[last->inputs[0]];
    s->logits.index = loss.index - ren__model_node_of(s->model, loss) + last->inputs[0];
    s->out_bytes = (size_t)ren__tensor_bytes(&logits->out) / rows * opt.batch;
    for (uint32_t i = 0; i < of->input_count; i++) {
        s->data[i] = malloc(bench_model_bytes(&of->inputs[i], rows));
        must(s->data[i] ? REN_OK : REN_ERR_NO_MEMORY, "data");
        bench_model_fill(of, i, rows, 0, s->data[i]);
    }
    must(ren_infer_prepare(s->model, s->logits, NULL), "prepare");
}

static void close_session(session *s)
{
    ren_trainer_destroy(s->trainer);
    ren_model_destroy(s->model);
    must(ren_runtime_shutdown(s->rt, UINT64_C(10000000000)), "shutdown");
    for (uint32_t i = 0; i < s->of->input_count; i++) {
        free(s->data[i]);
    }
}

/* ------------------------------------------------------------------ requests */

typedef struct asker asker;

typedef struct request {
    asker *of;
    float *out;
    uint64_t posted_ns;
    uint64_t steps; /* posted before it */
    uint32_t is_free;
} request;

struct asker {
    session *s;
    uint32_t any;
    uint64_t end_ns;
    sem_t room;
    request requests[IN_FLIGHT];
    pthread_mutex_t mutex; /* completions of two streams may come at once */
    float *times;          /* us */
    uint32_t count;
    uint64_t lag;
    pthread_t thread;
};

static void on_answer(const ren_completion *c, void *user)
{
    request *r = user;
    asker *a = r->of;
    uint64_t now = bench_now_ns();
    must(c->status, "a request");
    pthread_mutex_lock(&a->mutex);
    if (now <= a->end_ns && a->count < MOST_TIMES) {
        a->times[a->count++] = (float)(now - r->posted_ns) / 1000.0f;
        a->lag += r->steps > c->weight_version ? r->steps - c->weight_version : 0;
    }
    pthread_mutex_unlock(&a->mutex);
    __atomic_store_n(&r->is_free, 1, __ATOMIC_RELEASE);
    sem_post(&a->room);
}

static void post_request(asker *a, request *r)
{
    session *s = a->s;
    const bench_model_input *x = &s->of->inputs[0];
    ren_binding binding = {x->name, s->data[0], bench_model_bytes(x, opt.batch)};
    ren_infer_desc desc = ren_infer_desc_default();
    desc.bindings = &binding;
    desc.binding_count = 1;
    desc.batch = opt.batch;
    desc.output = s->logits;
    desc.out_data = r->out;
    desc.out_bytes = s->out_bytes;
    desc.any_version = a->any;
    desc.done = on_answer;
    desc.user = r;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    r->is_free = 0;
    r->steps = __atomic_load_n(&s->steps_posted, __ATOMIC_ACQUIRE);
    r->posted_ns = bench_now_ns();
    ren_status status;
    while ((status = ren_infer(s->model, &desc, NULL)) == REN_ERR_QUEUE_FULL) {
        sched_yield(); /* the record comes free right behind the completion */
    }
    must(status, "ren_infer");
}

static void *ask(void *arg)
{
    asker *a = arg;
    while (bench_now_ns() < a->end_ns) {
        while (sem_wait(&a->room) != 0) {
        }
        for (uint32_t i = 0; i < opt.in_flight; i++) {
            if (__atomic_load_n(&a->requests[i].is_free, __ATOMIC_ACQUIRE)) {
                post_request(a, &a->requests[i]);
                break;
            }
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------ steps */

typedef struct teacher {
    session *s;
    uint64_t end_ns;
    uint32_t done; /* steps in the time */
    sem_t room;
    pthread_t thread;
} teacher;

static void on_step(const ren_completion *c, void *user)
{
    teacher *t = user;
    must(c->status, "a step");
    __atomic_fetch_add(&t->done, bench_now_ns() <= t->end_ns, __ATOMIC_RELAXED);
    sem_post(&t->room);
}

static void *teach(void *arg)
{
    teacher *t = arg;
    session *s = t->s;
    ren_binding bindings[BENCH_MODEL_INPUTS];
    ren_step_desc desc = ren_step_desc_default();
    for (uint32_t i = 0; i < s->of->input_count; i++) {
        const bench_model_input *in = &s->of->inputs[i];
        bindings[i] = (ren_binding){in->name, s->data[i], bench_model_bytes(in, opt.train_batch)};
    }
    desc.bindings = bindings;
    desc.binding_count = s->of->input_count;
    desc.batch = opt.train_batch;
    desc.done = on_step;
    desc.user = t;
    desc.deliver = REN_DELIVER_ANY_THREAD;
    while (bench_now_ns() < t->end_ns) {
        while (sem_wait(&t->room) != 0) {
        }
        ren_status status;
        while ((status = ren_trainer_step(s->trainer, &desc, NULL)) == REN_ERR_QUEUE_FULL) {
            sched_yield();
        }
        must(status, "ren_trainer_step");
        __atomic_fetch_add(&s->steps_posted, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* ------------------------------------------------------------------ a run */

static void start_asker(asker *a, session *s, uint32_t any, uint64_t end_ns)
{
    memset(a, 0, sizeof *a);
    a->s = s;
    a->any = any;
    a->end_ns = end_ns;
    a->times = malloc(MOST_TIMES * sizeof *a->times);
    must(a->times ? REN_OK : REN_ERR_NO_MEMORY, "times");
    sem_init(&a->room, 0, opt.in_flight);
    pthread_mutex_init(&a->mutex, NULL);
    for (uint32_t i = 0; i < opt.in_flight; i++) {
        a->requests[i] = (request){.of = a, .out = malloc(s->out_bytes), .is_free = 1};
        must(a->requests[i].out ? REN_OK : REN_ERR_NO_MEMORY, "answers");
    }
    must(pthread_create(&a->thread, NULL, ask, a) == 0 ? REN_OK : REN_ERR_THREAD, "thread");
}

static void drop_asker(asker *a)
{
    for (uint32_t i = 0; i < opt.in_flight; i++) {
        free(a->requests[i].out);
    }
    free(a->times);
    pthread_mutex_destroy(&a->mutex);
    sem_destroy(&a->room);
}

/* Rate and times of all askers, into the mode's figures. */
static void sum_up(asker *askers, uint32_t count, figures *f)
{
    size_t total = 0;
    uint64_t lag = 0;
    for (uint32_t i = 0; i < count; i++) {
        total += askers[i].count;
        lag += askers[i].lag;
    }
    double *all = malloc((total + 1) * sizeof *all);
    must(all ? REN_OK : REN_ERR_NO_MEMORY, "times");
    size_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < askers[i].count; k++) {
            all[n++] = (double)askers[i].times[k];
        }
    }
    f->rate[f->count] = (double)total * 1000.0 / opt.ms;
    f->p50[f->count] = n ? bench_median(all, n) : 0.0;
    f->p99[f->count] = n ? bench_percentile(all, n, 0.99) : 0.0;
    f->lag[f->count] = n ? (double)lag / (double)n : 0.0;
    free(all);
}

static void run(session *s, uint32_t mode, uint32_t keep)
{
    static asker askers[THREADS];
    figures *f = &s->modes[mode];
    uint64_t end_ns = bench_now_ns() + (uint64_t)opt.ms * 1000000u;
    uint32_t count = mode == STEPS ? 0 : opt.threads;
    teacher t = {.s = s, .end_ns = end_ns};
    sem_init(&t.room, 0, STEPS_AHEAD);
    if (mode != ALONE) {
        must(pthread_create(&t.thread, NULL, teach, &t) == 0 ? REN_OK : REN_ERR_THREAD, "thread");
    }
    for (uint32_t i = 0; i < count; i++) {
        start_asker(&askers[i], s, mode == ANY, end_ns);
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(askers[i].thread, NULL);
    }
    if (mode != ALONE) {
        pthread_join(t.thread, NULL);
    }
    must(ren_runtime_drain(s->rt, UINT64_C(60000000000)), "drain");
    f->step_ms[f->count] = t.done ? opt.ms / (double)t.done : 0.0;
    sum_up(askers, count, f);
    if (mode == TRAIN && f->lag[f->count] != 0.0) {
        must(REN_ERR_INTERNAL, "an answer missed a step posted before it");
    }
    f->count += keep;
    for (uint32_t i = 0; i < count; i++) {
        drop_asker(&askers[i]);
    }
    sem_destroy(&t.room);
}

static void keep(const bench *b, const char *name, const char *metric, const char *unit,
                 double value)
{
    bench_print(name, metric, unit, value);
    bench_row(b, name, metric, unit, value);
}

static void report(const bench *b, session *s, uint32_t mode)
{
    char name[96];
    figures *f = &s->modes[mode];
    (void)snprintf(name, sizeof name, "%s/%u/%s-%u", s->of->name, opt.batch, mode_names[mode],
                   s->streams);
    if (!f->count || !bench_wants(b, name)) {
        return;
    }
    if (mode != STEPS) {
        keep(b, name, "requests_per_s", "1/s", bench_median(f->rate, f->count));
        keep(b, name, "p50_us", "us", bench_median(f->p50, f->count));
        keep(b, name, "p99_us", "us", bench_median(f->p99, f->count));
    }
    if (mode != ALONE) {
        keep(b, name, "step_ms", "ms", bench_median(f->step_ms, f->count));
    }
    if (mode == ANY) {
        keep(b, name, "lag", "steps", bench_median(f->lag, f->count));
    }
}

static void run_model(const bench *b, const bench_model *of)
{
    static session sessions[SESSIONS];
    uint32_t repeats = b->quick ? 1 : b->repeats < REPEATS ? b->repeats : REPEATS;
    for (size_t k = 0; k < SESSIONS; k++) {
        open_session(&sessions[k], of, stream_counts[k]);
    }
    for (uint32_t r = 0; r <= repeats; r++) {
        for (uint32_t mode = 0; mode < MODES; mode++) {
            for (size_t k = 0; k < SESSIONS && bench_lists(opt.modes, mode_names[mode]); k++) {
                run(&sessions[k], mode, r > 0);
            }
        }
    }
    for (uint32_t mode = 0; mode < MODES; mode++) {
        for (size_t k = 0; k < SESSIONS; k++) {
            report(b, &sessions[k], mode);
        }
    }
    for (size_t k = 0; k < SESSIONS; k++) {
        close_session(&sessions[k]);
    }
}

/* ------------------------------------------------------------------ flags */

static const bench_flag flags[] = {
    {"--device", "cpu|cuda", .device = &opt.device},
    {"--model", "NAMES", .text = &opt.models},
    {"--mode", "NAMES", .text = &opt.modes},
    {"--module", "FILE", .text = &opt.module_path},
    {"--batch", "N", .number = &opt.batch, .least = 1, .most = 65536},
    {"--train-batch", "N", .number = &opt.train_batch, .least = 1, .most = 65536},
    {"--threads", "N", .number = &opt.threads, .least = 1, .most = THREADS},
    {"--in-flight", "N", .number = &opt.in_flight, .least = 1, .most = IN_FLIGHT},
    {"--ms", "N", .number = &opt.ms, .least = 1, .most = 60000},
};

int main(int argc, char **argv)
{
    bench b;
    bench_init(&b, argc, argv, "infer", flags, sizeof flags / sizeof flags[0]);
    opt.ms = b.quick ? 20 : opt.ms;
    if (!opt.models) {
        opt.models = opt.device == REN_DEVICE_CUDA ? "mlp-64x4,mlp-256x4,lenet28,incep32"
                                                   : "mlp-64x4,mlp-256x4,lenet28";
    }
    uint32_t count = 0;
    for (size_t i = 0; i < bench_model_count; i++) {
        if (bench_lists(opt.models, bench_models[i].name)) {
            run_model(&b, &bench_models[i]);
            count++;
        }
    }
    if (count == 0) {
        (void)fprintf(stderr, "infer_bench: no such model: %s\n", opt.models);
        return 2;
    }
    return 0;
}
