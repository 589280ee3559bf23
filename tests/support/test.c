/* SPDX-License-Identifier: MIT */
/* tests/support/test.c - the main() that every test program shares.
 *
 * Purpose   Registers a table of cases with CUnit, runs them one by one, says of each how it went
 *           and how long it took, and ends with the one line that the totals are made of.
 * Threads   the thread of main(). CUnit's assertions are for that thread only: other threads of a
 *           case write what they saw into variables of the case, and the case asserts on those.
 * Not here  the outer time limit and the totals over all programs, see tests/tools/run-tests.
 */
#include "test.h"

#include <CUnit/TestRun.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    EXIT_PASS = 0,
    EXIT_FAIL = 1,
    EXIT_SKIP = 77
};

typedef struct totals {
    unsigned passed;
    unsigned failed;
    unsigned skipped;
} totals;

/* The reason given by the running case, NULL when it did not ask to be left out. */
static const char *skip_reason;

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void ren_test_skip(const char *reason)
{
    skip_reason = reason ? reason : "no reason given";
}

unsigned long long ren_test_random(unsigned long long *state)
{
    unsigned long long z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

unsigned ren_test_slowdown(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 10;
#else
    return 1;
#endif
}

static void print_failures(void)
{
    const CU_FailureRecord *record = CU_get_failure_list();
    for (; record; record = record->pNext) {
        printf("       %s:%u: %s\n", record->strFileName ? record->strFileName : "?",
               record->uiLineNumber, record->strCondition ? record->strCondition : "?");
    }
}

static void run_case(CU_pSuite suite, const ren_test_case *test, totals *sum)
{
    skip_reason = NULL;
    CU_pTest handle = CU_add_test(suite, test->name, test->fn);
    if (!handle) {
        printf("  FAIL %s: CUnit: %s\n", test->name, CU_get_error_msg());
        sum->failed++;
        return;
    }
    printf("  run  %s\n", test->name);
    const double start = seconds_now();
    const CU_ErrorCode code = CU_run_test(suite, handle);
    const double took = seconds_now() - start;
    if (code != CUE_SUCCESS || CU_get_number_of_failure_records() > 0) {
        printf("  FAIL %s (%.2f s)\n", test->name, took);
        print_failures();
        sum->failed++;
    } else if (skip_reason) {
        printf("  skip %s: %s\n", test->name, skip_reason);
        sum->skipped++;
    } else {
        printf("  pass %s (%.2f s)\n", test->name, took);
        sum->passed++;
    }
}

int ren_test_main(int argc, char **argv, const char *program, const ren_test_case *cases,
                  size_t count, unsigned timeout_s)
{
    const char *filter = argc > 1 ? argv[1] : "";
    totals sum = {0, 0, 0};

    /* A program that dies must leave what it said in its log. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, SIG_DFL);
    alarm(timeout_s * ren_test_slowdown());

    if (CU_initialize_registry() != CUE_SUCCESS) {
        printf("%s: CUnit: %s\n", program, CU_get_error_msg());
        return EXIT_FAIL;
    }
    CU_pSuite suite = CU_add_suite(program, NULL, NULL);
    if (!suite) {
        printf("%s: CUnit: %s\n", program, CU_get_error_msg());
        CU_cleanup_registry();
        return EXIT_FAIL;
    }
    for (size_t i = 0; i < count; i++) {
        if (strstr(cases[i].name, filter)) {
            run_case(suite, &cases[i], &sum);
        }
    }
    CU_cleanup_registry();

    if (sum.passed + sum.failed + sum.skipped == 0) {
        printf("%s: no case matches \"%s\"\n", program, filter);
    }
    printf("%s: %u passed, %u failed, %u skipped\n", program, sum.passed, sum.failed, sum.skipped);
    if (sum.failed > 0) {
        return EXIT_FAIL;
    }
    return sum.passed > 0 ? EXIT_PASS : EXIT_SKIP;
}
