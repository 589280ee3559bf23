/* SPDX-License-Identifier: MIT */
/* demos/01_digits/main.c - can a host train a network beside its frame loop without a hitch?
 *
 * Purpose   A host with two threads: one posts batches of handwritten digits, the other is the
 *           frame loop of a game at 60 Hz, which gives libren half a millisecond a frame to deliver
 *           what is done. The demo trains a small convolutional network that way and says how long
 *           libren held the frame, how regular the frames were, beside how regular they are on this
 *           machine when nothing trains, and how often the network is right about digits it has not
 *           seen; it saves the weights, loads them into a fresh network, and asks again.
 * Reading   main, then run_frames; poster.c for the other thread, network.c for the network.
 * Uses      ren.h and nothing else of libren.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../host_api/ren.h"
#include "digits.h"
#include "network.h"
#include "options.h"
#include "poster.h"
#include "series.h"

enum {
    FRAMES_PER_SECOND = 60,
    FRAME_NS = 1000000000 / FRAMES_PER_SECOND,
    BUDGET_NS = 500 * 1000,              /* of a frame, for libren's callbacks */
    IDLE_FRAMES = 2 * FRAMES_PER_SECOND, /* before training, to know the machine by */
    FRAMES_PER_BAR = 6,                  /* the bar moves ten times a second */
    LINES_PER_RUN = 10,                  /* of progress, where there is no terminal */
    BAR_WIDTH = 24,
    LEAST_PERCENT = 97
};

/* What the frame loop knows. Its thread only: callbacks run inside its own ren_pump. */
typedef struct host {
    ren_runtime *rt;
    poster post;
    uint32_t done;
    uint32_t lines;
    float loss; /* smoothed */
    ren_status status;
    char text[256]; /* why a step failed */
    series in_libren;
    series frames;
    series idle_frames; /* before training */
    double seconds;
} host;

static double milliseconds(uint64_t ns)
{
    return (double)ns * 1e-6;
}

/* Runs inside ren_pump, once for each step. */
static void on_step(const ren_completion *c, void *user)
{
    host *h = user;
    h->done++;
    if (c->status != REN_OK || !c->step) {
        if (h->status == REN_OK) {
            h->status = c->status != REN_OK ? c->status : REN_ERR_INTERNAL;
            (void)snprintf(h->text, sizeof h->text, "%s",
                           c->err ? c->err->text : ren_status_text(h->status));
        }
        return;
    }
    h->loss = h->done == 1 ? c->step->loss : 0.98f * h->loss + 0.02f * c->step->loss;
}

/* A bar that moves, or now and then a line. */
static void show_progress(host *h, uint32_t frame)
{
    uint32_t steps = h->post.steps;
    int terminal = isatty(STDOUT_FILENO);
    int early = terminal ? frame % FRAMES_PER_BAR != 0 && h->done < steps
                         : (uint64_t)h->done * LINES_PER_RUN < (uint64_t)(h->lines + 1) * steps;
    if (early || h->lines == LINES_PER_RUN) {
        return;
    }
    h->lines = (uint32_t)((uint64_t)h->done * LINES_PER_RUN / steps);
    if (terminal) {
        char bar[BAR_WIDTH + 1];
        uint32_t filled = (uint32_t)((uint64_t)h->done * BAR_WIDTH / steps);
        memset(bar, '.', BAR_WIDTH);
        memset(bar, '#', filled);
        bar[BAR_WIDTH] = '\0';
        (void)printf("\r[%s] ", bar);
    }
    (void)printf("%5" PRIu32 "/%" PRIu32 " steps  loss %.4f  frame p50 %.2f p99 %.2f ms  "
                 "in libren p50 %.3f p99 %.3f ms%s",
                 h->done, steps, (double)h->loss, milliseconds(series_quantile(&h->frames, 0.5)),
                 milliseconds(series_quantile(&h->frames, 0.99)),
                 milliseconds(series_quantile(&h->in_libren, 0.5)),
                 milliseconds(series_quantile(&h->in_libren, 0.99)),
                 terminal && h->done < steps ? "" : "\n");
    (void)fflush(stdout);
}

static void sleep_until(uint64_t at_ns)
{
    uint64_t now = ren_now_ns();
    if (now < at_ns) {
        struct timespec pause = {0, (long)(at_ns - now)}; /* at most a frame */
        (void)nanosleep(&pause, NULL);
    }
}

/* When the frame after the one that began at `begin` is due. A late frame is not caught up with. */
static uint64_t next_due(uint64_t due, uint64_t begin)
{
    return begin > due + 2 * (uint64_t)FRAME_NS ? begin + FRAME_NS : due + FRAME_NS;
}

/* The same loop with nothing to do: what is irregular here is the machine's. */
static void run_idle_frames(host *h)
{
    uint64_t due = ren_now_ns(), previous = 0;
    for (uint32_t frame = 0; frame <= IDLE_FRAMES; frame++) {
        uint64_t begin = ren_now_ns();
        if (previous) {
            series_add(&h->idle_frames, begin - previous);
        }
        previous = begin;
        (void)ren_pump(h->rt, 0, 0, BUDGET_NS, NULL);
        due = next_due(due, begin);
        sleep_until(due);
    }
    (void)printf("before    training: %d frames at %d Hz, from one to the next p50 %.2f ms, "
                 "p99 %.2f ms\n",
                 IDLE_FRAMES, FRAMES_PER_SECOND,
                 milliseconds(series_quantile(&h->idle_frames, 0.5)),
                 milliseconds(series_quantile(&h->idle_frames, 0.99)));
    (void)fflush(stdout);
}

/* The frame loop: until every step that was posted has been delivered, or one has failed. */
static void run_frames(host *h)
{
    uint64_t start = ren_now_ns(), due = start, previous = 0;
    for (uint32_t frame = 0;; frame++) {
        uint64_t begin = ren_now_ns();
        if (previous) {
            series_add(&h->frames, begin - previous);
        }
        previous = begin;
        ren_status status = ren_pump(h->rt, 0, 0, BUDGET_NS, NULL);
        series_add(&h->in_libren, ren_now_ns() - begin);
        if (status != REN_OK && h->status == REN_OK) {
            h->status = status;
            (void)snprintf(h->text, sizeof h->text, "%s", ren_status_text(status));
        }
        if (h->status != REN_OK) {
            atomic_store(&h->post.stop, true);
        }
        show_progress(h, frame);
        if (atomic_load(&h->post.finished) &&
            (h->done == atomic_load(&h->post.posted) || h->status != REN_OK)) {
            break;
        }
        due = next_due(due, begin);
        sleep_until(due);
    }
    h->seconds = (double)(ren_now_ns() - start) * 1e-9;
}

/* Train `net` for the steps asked for. 1, or 0 with the reason in err. */
static int train(host *h, network *net, const digits *d, const options *o, ren_error *err)
{
    ren_trainer_config config = ren_trainer_config_default();
    config.optimizer = REN_OPTIMIZER_ADAM;
    config.learning_rate = 0.001f;
    h->post =
        (poster){.set = &d->train, .steps = o->steps, .seed = o->seed, .done = on_step, .user = h};
    if (ren_trainer_create(net->model, net->loss, &config, &h->post.trainer, err) != REN_OK) {
        return 0;
    }
    int code = poster_start(&h->post);
    if (code == 0) {
        run_frames(h);
        poster_join(&h->post);
        if (h->status == REN_OK && atomic_load(&h->post.status) != REN_OK) {
            h->status = atomic_load(&h->post.status);
            (void)snprintf(h->text, sizeof h->text, "posting: %s", ren_status_text(h->status));
        }
        (void)snprintf(err->text, sizeof err->text, "%s", h->text);
    } else {
        (void)snprintf(err->text, sizeof err->text, "cannot start a thread: %s", strerror(code));
    }
    ren_trainer_destroy(h->post.trainer);
    return code == 0 && h->status == REN_OK;
}

static double percent(uint32_t right, const digit_set *set)
{
    return 100.0 * (double)right / (double)set->count;
}

static void print_times(host *h)
{
    (void)printf("trained   %" PRIu32 " steps of %d digits in %.1f s: %.0f steps/s, loss %.4f\n",
                 h->done, NETWORK_BATCH, h->seconds, (double)h->done / h->seconds, (double)h->loss);
    (void)printf("libren    held a frame for p50 %.3f ms, p99 %.3f ms, at most %.3f ms\n",
                 milliseconds(series_quantile(&h->in_libren, 0.5)),
                 milliseconds(series_quantile(&h->in_libren, 0.99)),
                 milliseconds(series_quantile(&h->in_libren, 1.0)));
    (void)printf("frames    %" PRIu32 " at %d Hz: from one to the next p50 %.2f ms, p99 %.2f ms\n",
                 h->frames.count, FRAMES_PER_SECOND, milliseconds(series_quantile(&h->frames, 0.5)),
                 milliseconds(series_quantile(&h->frames, 0.99)));
}

/* --out, or a file beside the program. */
static const char *out_path(const options *o, char room[PATH_MAX])
{
    static const char *const name = "digits.safetensors";
    ssize_t n = o->out ? -1 : readlink("/proc/self/exe", room, PATH_MAX - 32);
    if (o->out || n <= 0) {
        return o->out ? o->out : name;
    }
    room[n] = '\0';
    char *slash = strrchr(room, '/');
    (void)snprintf(slash ? slash + 1 : room, 32, "%s", name);
    return room;
}

/* A file that cannot be written is found before the training, not after it. */
static int check_out(const options *o, ren_error *err)
{
    char room[PATH_MAX];
    const char *path = out_path(o, room);
    int is_new = access(path, F_OK) != 0;
    FILE *file = fopen(path, "ab");
    if (!file) {
        (void)snprintf(err->text, sizeof err->text, "cannot write %.180s: %s", path,
                       strerror(errno));
        return 0;
    }
    (void)fclose(file);
    if (is_new) {
        (void)remove(path);
    }
    return 1;
}

/* Save, load into a fresh network, and see that it is as good. */
static int save_and_check(host *h, network *net, const digits *d, const options *o, uint32_t right,
                          ren_error *err)
{
    char room[PATH_MAX];
    const char *path = out_path(o, room);
    network fresh = {0};
    uint32_t again = 0;
    if (ren_model_save(net->model, path, err) != REN_OK) {
        return 0;
    }
    (void)printf("saved     %" PRIu64 " parameters to %s\n", network_parameters(), path);
    int good = network_create(&fresh, h->rt, err) == REN_OK &&
               ren_model_load(fresh.model, path, 0, err) == REN_OK &&
               network_count_right(&fresh, h->rt, &d->test, &again, err) == REN_OK;
    if (good && again != right) {
        (void)snprintf(err->text, sizeof err->text, "the loaded network is right %u times, not %u",
                       again, right);
        good = 0;
    } else if (good) {
        (void)printf("loaded    into a fresh network: %.1f%%, the same\n",
                     percent(again, &d->test));
    }
    network_destroy(&fresh);
    return good;
}

static int run(host *h, const digits *d, const options *o, ren_error *err)
{
    network net = {0};
    uint32_t right = 0;
    run_idle_frames(h);
    int good = network_create(&net, h->rt, err) == REN_OK && train(h, &net, d, o, err);
    if (good) {
        print_times(h);
        good = network_count_right(&net, h->rt, &d->test, &right, err) == REN_OK;
    }
    if (good) {
        (void)printf("accuracy  %.1f%% of %" PRIu32 " digits that were held out\n",
                     percent(right, &d->test), d->test.count);
        good = save_and_check(h, &net, d, o, right, err);
    }
    network_destroy(&net);
    if (good && o->judge && right * 100 < LEAST_PERCENT * d->test.count) {
        (void)snprintf(err->text, sizeof err->text, "less than %d%% right", LEAST_PERCENT);
        good = 0;
    }
    return good;
}

static void print_log(void *user, ren_log_level level, const char *text)
{
    (void)user;
    (void)fprintf(stderr, "libren: %s%s\n", level == REN_LOG_ERROR ? "error: " : "", text);
}

static int start(ren_runtime **out, const options *o, ren_error *err)
{
    ren_runtime_config config = ren_runtime_config_default();
    ren_log log = ren_log_default();
    log.fn = print_log;
    log.min_level = REN_LOG_WARNING;
    config.device = o->device;
    config.streams = o->streams;
    config.seed = o->seed;
    config.log = &log;
    if (ren_runtime_create(&config, out, err) != REN_OK) {
        return 0;
    }
    return !o->trace || ren_trace_begin(*out, o->trace, err) == REN_OK;
}

int main(int argc, char **argv)
{
    options o;
    digits d;
    host h = {0};
    ren_error err = {0};
    options_result parsed = options_parse(&o, argc, argv);
    if (parsed != OPTIONS_RUN) {
        return parsed == OPTIONS_HELP ? 0 : 2;
    }
    int good = digits_load(&d, o.data, err.text, sizeof err.text) && check_out(&o, &err) &&
               start(&h.rt, &o, &err);
    if (good) {
        (void)printf("device    %s, %" PRIu32 " %s\n", ren_runtime_device_name(h.rt),
                     o.streams ? o.streams : REN_STREAM_COUNT,
                     o.streams == 1 ? "stream" : "streams");
        (void)printf("data      %" PRIu32 " digits to learn from, %" PRIu32 " held out\n",
                     d.train.count, d.test.count);
        good = run(&h, &d, &o, &err);
    }
    if (h.rt && o.trace && ren_trace_end(h.rt) == REN_OK) {
        (void)printf("trace     %s\n", o.trace);
    }
    if (!good) {
        (void)fflush(stdout);
        (void)fprintf(stderr, "01_digits: %s\n", err.text);
    }
    if (ren_runtime_shutdown(h.rt, 5000000000u) != REN_OK) {
        (void)fprintf(stderr, "01_digits: the runtime did not shut down\n");
        good = 0;
    }
    series_free(&h.in_libren);
    series_free(&h.frames);
    series_free(&h.idle_frames);
    digits_free(&d);
    return good ? 0 : 1;
}
