/* SPDX-License-Identifier: MIT */
/* tests/stress/api_program.h - a random program's records, and what must hold of them.
 *
 * Purpose   Shared by test_api_random.c, which makes programs, and api_judge.c, which judges them.
 * Threads   a record belongs to the thread that posts it until the post, then to its job; other
 *           threads read only what is atomic or was written before `id`.
 */
#ifndef REN_TEST_STRESS_API_PROGRAM_H
#define REN_TEST_STRESS_API_PROGRAM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "../../host_api/ren.h"

enum {
    THREADS = 4,
    RECORDS = 1024,
    CELLS = 8,
    CELL = 32,
    BYTES = CELLS * CELL,
    SHARED = 2,
    PRIVATE = 3,
    MODELS = 256, /* buffers that one thread may take in a program */
    HANG_S = 60
};

typedef enum effect {
    NO_EFFECT = 0,
    SET_CELLS,  /* FILL */
    UPLOAD,     /* COPY from the record's bytes */
    DOWNLOAD,   /* COPY to the record's bytes */
    COPY_CELLS, /* COPY between private buffers */
    ADD_CELLS,  /* DEVICE: notes what it finds, adds 1 to each cell */
    SHARED_SET,
    SHARED_GET,
    SHARED_READ, /* DEVICE or HOST inside a shared buffer */
    SHARED_WRITE
} effect;

typedef struct record record;

struct record {
    struct program *p;
    _Atomic uint64_t id; /* after the post; 0 = refused or not yet posted */
    ren_job_desc desc;
    ren_use use;
    record *waits[REN_MAX_WAITS];
    uint32_t thread;
    bool strict; /* always found in its ring, and so are all that it waits for */
    bool enqueue_fails;
    atomic_int refused;
    atomic_int runs;
    atomic_int completions;
    atomic_int cancels; /* calls that said it will not run */
    ren_status status;
    uint64_t timeline, posted_ns, launched_ns, done_ns;
    uint64_t begin, end; /* on the program's clock, when its function ran */
    effect effect;
    uint32_t model, from, first, first_from, cells; /* private buffers by number */
    uint32_t value, shared;
    unsigned char seen[CELLS];
    unsigned char bytes[BYTES];
};

typedef struct private_buffer {
    ren_buffer buffer;
    uint32_t model;
} private_buffer;

typedef struct worker {
    struct program *p;
    uint32_t number;
    unsigned long long random;
    ren_producer *producer; /* NULL: the shared road */
    private_buffer buffers[PRIVATE];
    uint32_t models;
    uint32_t log[RECORDS]; /* records with an effect on private buffers, in the order of posts */
    uint32_t log_count;
} worker;

typedef struct program {
    unsigned long long seed;
    ren_runtime *rt;
    ren_runtime_config config;
    uint32_t ops;
    uint32_t ending;
    _Atomic uint32_t records_used;
    _Atomic uint64_t clock;
    atomic_int closing;  /* a close or an abort may have begun */
    atomic_int aborting; /* an abort or the loss of the device may have begun */
    bool faulty;         /* some device call is made to fail, once */
    atomic_int working;  /* threads that still post */
    atomic_int failures; /* of this program and those before */
    ren_buffer shared[SHARED];
    atomic_int inside[SHARED];                            /* readers, or -1 for a writer */
    uint64_t last_pumped[REN_CHANNELS][REN_STREAM_COUNT]; /* one pump per channel */
    uint64_t last_any[REN_STREAM_COUNT];                  /* one thread per stream */
    worker workers[THREADS];
    record records[RECORDS];
} program;

/* Report a failed check, with the seed. */
void api_fail(program *p, const char *what, const record *r);

#define CHECK(p, condition, r)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            api_fail((p), #condition, (r));                                                        \
        }                                                                                          \
    } while (0)

bool api_is_uniform(const unsigned char *bytes);

/* The status is one that a look at the job may give. */
void api_check_looked(program *p, ren_status status, const record *r);

/* After the end: every record by itself, the order of functions, the contents of buffers. */
void api_judge(program *p);

#endif
