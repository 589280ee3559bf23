/* SPDX-License-Identifier: MIT */
/* tests/conformance/test_plan_dump.c - the picture of a trainer's plan.
 *
 * Purpose   The file is DOT that holds together (read here by a small parser, since Graphviz need
 *           not be there), shows what ren.h says, and replaces an old one whole or not at all.
 */
#include "../support/runtime.h"
#include "../support/test.h"
#include "runs.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST = 2048
};

/* What a picture says. Statements are a line each. */
typedef struct picture {
    char *text;
    char names[MOST][16]; /* of boxes */
    uint32_t boxes, clusters, frames, bold, dotted, grey;
    uint32_t unknown; /* arrows from or to what is no box */
    uint32_t wrong;   /* lines that are no statement */
    int depth;        /* of braces at the end */
} picture;

static const char *dump_path(void)
{
    static char path[64];
    (void)snprintf(path, sizeof path, "/tmp/ren-test-dump-%ld.dot", (long)getpid());
    return path;
}

static char *read_text(const char *path)
{
    FILE *stream = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(stream);
    char *text = calloc(1, 1 << 20);
    CU_ASSERT(fread(text, 1, (1 << 20) - 1, stream) > 0);
    (void)fclose(stream);
    return text;
}

static int is_box(const picture *p, const char *name)
{
    for (uint32_t i = 0; i < p->boxes; i++) {
        if (strcmp(p->names[i], name) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Attributes: [key=value ...] with values that are words or quoted strings, up to ";" and the end.
 */
static int are_attributes(const char *at)
{
    if (*at++ != '[') {
        return 0;
    }
    while (*at && *at != ']') {
        while (isalpha((unsigned char)*at)) {
            at++;
        }
        if (*at++ != '=') {
            return 0;
        }
        if (*at == '"') {
            for (at++; *at && *at != '"'; at++) {
                at += *at == '\\' && at[1];
            }
            at += *at == '"';
        } else {
            while (isalnum((unsigned char)*at)) {
                at++;
            }
        }
        at += *at == ' ';
    }
    return strcmp(at, "];") == 0;
}

static void read_line(picture *p, char *line)
{
    char from[16], to[16], name[32];
    int used = 0;
    uint32_t number, frame;
    if (sscanf(line, "subgraph cluster_%u_%u {%n", &number, &frame, &used) == 2 && !line[used]) {
        p->frames++;
        p->depth++;
    } else if (strcmp(line, "digraph plan {") == 0 ||
               (sscanf(line, "subgraph cluster_%u {%n", &number, &used) == 1 && !line[used])) {
        p->clusters += line[0] == 's';
        p->depth++;
    } else if (strcmp(line, "}") == 0) {
        p->depth--;
    } else if (strncmp(line, "label=\"", 7) == 0) {
        p->wrong += p->depth < 2 || p->depth > 3 || line[strlen(line) - 1] != ';';
    } else if (strncmp(line, "node ", 5) == 0) {
        p->wrong += !are_attributes(line + 5);
    } else if (sscanf(line, "%15s -> %15s %n", from, to, &used) == 2 && used) {
        p->wrong += !are_attributes(line + used);
        p->unknown += !is_box(p, from) || !is_box(p, to);
        p->bold += strstr(line + used, "style=bold") != NULL;
        p->dotted += strstr(line + used, "style=dotted") != NULL;
        p->grey += strstr(line + used, "color=grey") != NULL;
    } else if (sscanf(line, "%15s %n", name, &used) == 1 && p->boxes < MOST) {
        p->wrong += !are_attributes(line + used) || is_box(p, name);
        (void)snprintf(p->names[p->boxes++], sizeof p->names[0], "%.15s", name);
    } else {
        p->wrong++;
    }
}

/* NULL-terminated copies of the text are cut into lines; p->text stays whole. */
static void read_picture(picture *p)
{
    memset(p, 0, sizeof *p);
    p->text = read_text(dump_path());
    char *copy = strdup(p->text), *rest = copy;
    for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        read_line(p, line + strspn(line, " "));
    }
    free(copy);
    CU_ASSERT_EQUAL(p->depth, 0);
    CU_ASSERT_EQUAL(p->wrong, 0);
    CU_ASSERT_EQUAL(p->unknown, 0);
}

static uint32_t count_of(const char *text, const char *word)
{
    uint32_t n = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        n++;
    }
    return n;
}

/* Proves: the picture is DOT whose arrows join boxes that are there; it has a box for each task and
 * one for the end, and shows names, verbs, what is fused, segments, streams by colour, lanes and
 * events. Fails on an unclosed quote or brace, an arrow to a task of another numbering, or a
 * property left out. */
static void test_dump_shows_the_plan(void)
{
    static run_result out;
    static picture p;
    run_spec spec = run_default(NET_BRANCH);
    ren_runtime *rt = run_runtime(&spec);
    ren_error err = {0};
    run r;
    run_begin(&r, rt, &spec, &out);
    CU_ASSERT_EQUAL(ren_plan_dump(r.t, 0, dump_path(), &err), REN_OK);
    read_picture(&p);
    unsigned tasks = 0, lanes = 0, events = 0, waits = 0;
    const char *label = strstr(p.text, "label=\"step\\n");
    CU_ASSERT_PTR_NOT_NULL_FATAL(label);
    CU_ASSERT_EQUAL(sscanf(label + 13, "%u tasks on %u lanes, %u events, %u waits", &tasks, &lanes,
                           &events, &waits),
                    4);
    CU_ASSERT_EQUAL(p.clusters, 1);
    CU_ASSERT_EQUAL(p.boxes, tasks + 1);
    CU_ASSERT(p.bold >= waits && p.bold <= waits + lanes);
    CU_ASSERT(p.grey > 0 && p.dotted > 0);
    CU_ASSERT(lanes == 1 || strstr(p.text, "label=\"e0\"") != NULL);
    CU_ASSERT(count_of(p.text, "conv_fwd") > 3);
    CU_ASSERT(count_of(p.text, " + bias") > 0);
    CU_ASSERT_EQUAL(count_of(p.text, "forward, ") + count_of(p.text, "backward, ") +
                        count_of(p.text, "optimizer, "),
                    tasks);
    CU_ASSERT_EQUAL(count_of(p.text, ", lane "), tasks);
    CU_ASSERT_EQUAL(count_of(p.text, "fillcolor="), tasks);
    free(p.text);
    (void)unlink(dump_path());
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
}

/* Proves: where segments are graphs of their own each has a frame with its label, tasks and lanes,
 * around its boxes; else there is none. */
static void test_dump_frames_segments(void)
{
    static const char *const names[] = {"forward", "backward", "optimizer"};
    static run_result out;
    static picture p;
    for (uint32_t segments = 0; segments < 2; segments++) {
        run_spec spec = run_default(NET_BRANCH);
        spec.segments = segments;
        ren_runtime *rt = run_runtime(&spec);
        run r;
        run_begin(&r, rt, &spec, &out);
        CU_ASSERT_EQUAL(ren_plan_dump(r.t, 0, dump_path(), NULL), REN_OK);
        read_picture(&p);
        CU_ASSERT_EQUAL(p.clusters, 1);
        CU_ASSERT_EQUAL(p.frames, segments ? REN_TEST_COUNT(names) : 0);
        unsigned tasks = 0, all = 0, lanes = 0;
        for (size_t i = 0; i < REN_TEST_COUNT(names) && segments; i++) {
            char label[32], box[32];
            (void)snprintf(label, sizeof label, "label=\"%s: ", names[i]);
            (void)snprintf(box, sizeof box, "\\n%s, ", names[i]);
            const char *frame = strstr(p.text, label);
            CU_ASSERT_PTR_NOT_NULL_FATAL(frame);
            CU_ASSERT_EQUAL(sscanf(frame + strlen(label), "%u tasks on %u lanes", &tasks, &lanes),
                            2);
            CU_ASSERT_EQUAL(count_of(p.text, box), tasks);
            CU_ASSERT(lanes >= 1 && lanes <= REN_STREAM_COUNT);
            all += tasks;
        }
        CU_ASSERT_EQUAL(segments ? all + 1 : p.boxes, p.boxes);
        free(p.text);
        (void)unlink(dump_path());
        run_end(&r);
        run_free(&out);
        ren_test_shutdown(rt);
    }
}

/* The stream of the box that begins at `line`, as it says in words; the colour is that stream's. */
static uint32_t box_stream(const char *line)
{
    static const char *const names[] = {"TRANS", "COMP_1", "COMP_2", "COMP_3", "UPDATE"};
    static const char *const colours[] = {"lightgrey", "lightblue", "palegreen", "khaki",
                                          "lightsalmon"};
    char stream[8] = "", colour[16] = "";
    const char *comma = strstr(line, ", "), *fill = strstr(line, "fillcolor=");
    CU_ASSERT_FATAL(comma && fill && comma < strchr(line, '\n'));
    CU_ASSERT_EQUAL(sscanf(comma, ", %7[A-Z_1-3]", stream), 1);
    CU_ASSERT_EQUAL(sscanf(fill, "fillcolor=%15[a-z]", colour), 1);
    for (uint32_t i = 0; i < REN_TEST_COUNT(names); i++) {
        if (strcmp(names[i], stream) == 0) {
            CU_ASSERT_STRING_EQUAL(colours[i], colour);
            return i;
        }
    }
    return UINT32_MAX;
}

/* Boxes that do `verb`; each is on `stream`. */
static uint32_t boxes_on(const char *text, const char *verb, ren_stream stream)
{
    uint32_t count = 0;
    char what[40];
    (void)snprintf(what, sizeof what, "\\n%s", verb);
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what)) {
        const char *line = at;
        while (line > text && line[-1] != '\n') {
            line--;
        }
        CU_ASSERT_EQUAL(box_stream(line), (uint32_t)stream);
        count++;
    }
    return count;
}

/* Proves: under STATIC the picture shows each task on its stream of the table, in words and colour,
 * on four lanes. */
static void test_dump_of_the_table(void)
{
    static run_result out;
    static picture p;
    run_spec spec = run_default(NET_BRANCH);
    ren_runtime *rt = run_runtime(&spec);
    run r;
    spec.policy = REN_POLICY_STATIC;
    spec.optimizer = REN_OPTIMIZER_LARS;
    run_begin(&r, rt, &spec, &out);
    CU_ASSERT_EQUAL(ren_plan_dump(r.t, 0, dump_path(), NULL), REN_OK);
    read_picture(&p);
    CU_ASSERT_PTR_NOT_NULL(strstr(p.text, "tasks on 4 lanes"));
    CU_ASSERT_EQUAL(boxes_on(p.text, "conv_fwd", REN_STREAM_COMP_1), 5);
    CU_ASSERT_EQUAL(boxes_on(p.text, "conv_bwd_weight", REN_STREAM_COMP_1), 5);
    CU_ASSERT_EQUAL(boxes_on(p.text, "conv_bwd_data", REN_STREAM_COMP_3), 4);
    CU_ASSERT_EQUAL(boxes_on(p.text, "xent", REN_STREAM_COMP_1), 2);
    CU_ASSERT_EQUAL(boxes_on(p.text, "max_pool", REN_STREAM_COMP_2), 2);
    CU_ASSERT_EQUAL(boxes_on(p.text, "global_avg", REN_STREAM_COMP_2), 2);
    CU_ASSERT_EQUAL(boxes_on(p.text, "act_bwd", REN_STREAM_COMP_3), 2);
    CU_ASSERT_EQUAL(boxes_on(p.text, "concat", REN_STREAM_COMP_3), 1);
    CU_ASSERT_EQUAL(boxes_on(p.text, "split", REN_STREAM_COMP_3), 1);
    CU_ASSERT_EQUAL(boxes_on(p.text, "advance", REN_STREAM_UPDATE), 1);
    CU_ASSERT_EQUAL(count_of(p.text, "\\nlars"), 12);
    free(p.text);
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
    (void)unlink(dump_path());
}

/* Proves: a batch size not seen before is planned and shown, one that is too large refused; where
 * steps accumulate there is a cluster for each kind of step, with boxes of its own; and the picture
 * changes nothing: steps go on, with the bits of a run without. */
static void test_dump_of_other_plans(void)
{
    static run_result base, other;
    static picture p;
    run_spec spec = run_default(NET_MLP);
    ren_error err = {0};
    run r;
    spec.window = 3;
    spec.steps = 24;
    run_alone(&spec, &base);
    ren_runtime *rt = run_runtime(&spec);
    run_begin(&r, rt, &spec, &other);
    while (r.next < spec.steps) {
        run_step(&r);
        if (r.next == 9) {
            CU_ASSERT_EQUAL(ren_plan_dump(r.t, 5, dump_path(), &err), REN_OK);
        }
    }
    read_picture(&p);
    CU_ASSERT_EQUAL(p.clusters, 3);
    CU_ASSERT_PTR_NOT_NULL(strstr(p.text, "label=\"first step of a window"));
    CU_ASSERT_PTR_NOT_NULL(strstr(p.text, "label=\"last step of a window"));
    CU_ASSERT_PTR_NOT_NULL(strstr(p.text, "adam f32"));
    free(p.text);
    (void)unlink(dump_path());
    CU_ASSERT_EQUAL(ren_plan_dump(r.t, 1000000, dump_path(), &err), REN_ERR_SHAPE);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "1000000"));
    CU_ASSERT_NOT_EQUAL(access(dump_path(), F_OK), 0);
    run_end(&r);
    run_same(&base, &other);
    run_free(&base);
    ren_test_shutdown(rt);
}

static ren_trainer *inside_trainer;

static void dump_inside(const ren_completion *c, void *user)
{
    (void)c;
    *(ren_status *)user = ren_plan_dump(inside_trainer, 0, dump_path(), NULL);
}

/* Proves: arguments are checked, errors name the path, an old file stays when the new one cannot be
 * written, and a callback may not call. */
static void test_dump_refusals(void)
{
    static run_result out;
    run_spec spec = run_default(NET_MLP);
    ren_runtime *rt = run_runtime(&spec);
    ren_error err = {0};
    ren_status inside = REN_OK;
    run r;
    run_begin(&r, rt, &spec, &out);
    CU_ASSERT_EQUAL(ren_plan_dump(NULL, 0, dump_path(), &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_plan_dump(r.t, 0, NULL, &err), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_plan_dump(r.t, 0, "", NULL), REN_ERR_INVALID_ARGUMENT);
    CU_ASSERT_EQUAL(ren_plan_dump(r.t, 0, "/no/such/folder/plan.dot", &err), REN_ERR_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "/no/such/folder/plan.dot"));
    CU_ASSERT(err.backend_code != 0);
    CU_ASSERT_EQUAL(ren_plan_dump(r.t, 0, dump_path(), &err), REN_OK);
    ren_job_desc d = ren_job_desc_default();
    d.kind = REN_JOB_BARRIER;
    d.done = dump_inside;
    d.user = &inside;
    inside_trainer = r.t;
    CU_ASSERT_EQUAL(ren_post(rt, &d, NULL), REN_OK);
    CU_ASSERT_EQUAL(ren_wait_any(rt, REN_TIMEOUT_INFINITE), REN_OK);
    CU_ASSERT_EQUAL(ren_pump(rt, 0, 0, 0, NULL), REN_OK);
    CU_ASSERT_EQUAL(inside, REN_ERR_REENTRANT);
    (void)unlink(dump_path());
    run_end(&r);
    run_free(&out);
    ren_test_shutdown(rt);
}

int main(int argc, char **argv)
{
    static const ren_test_case cases[] = {
        {"test_dump_shows_the_plan", test_dump_shows_the_plan},
        {"test_dump_frames_segments", test_dump_frames_segments},
        {"test_dump_of_the_table", test_dump_of_the_table},
        {"test_dump_of_other_plans", test_dump_of_other_plans},
        {"test_dump_refusals", test_dump_refusals},
    };
    return ren_test_main(argc, argv, "conformance/test_plan_dump", cases, REN_TEST_COUNT(cases),
                         60);
}
