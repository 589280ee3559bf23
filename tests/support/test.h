/* SPDX-License-Identifier: MIT */
/* tests/support/test.h - the main() that every test program shares.
 *
 * Purpose   Run a table of CUnit cases under a timeout and end with one line that the totals are
 *           made of: "<program>: N passed, N failed, N skipped".
 * Exit      0 all passed; 1 a case failed; 77 nothing ran, the reason is printed; a hang ends by
 *           SIGALRM.
 */
#ifndef REN_TEST_SUPPORT_TEST_H
#define REN_TEST_SUPPORT_TEST_H

#include <CUnit/CUnit.h>
#include <stddef.h>

typedef struct ren_test_case {
    const char *name; /* test_<function>_<situation> */
    void (*fn)(void);
} ren_test_case;

/* Runs all cases whose name contains argv[1] (all without it). timeout_s bounds the whole program;
 * it is multiplied by ren_test_slowdown(). */
int ren_test_main(int argc, char **argv, const char *program, const ren_test_case *cases,
                  size_t count, unsigned timeout_s);

/* In a case: leave it out, with a printed reason. The caller returns at once afterwards. */
void ren_test_skip(const char *reason);

/* A pseudo-random 64-bit value (splitmix64) that advances *state. */
unsigned long long ren_test_random(unsigned long long *state);

#define REN_TEST_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* How much slower a sanitizer makes things: stress counts are divided by it. 1, or 10 under ASan
 * and TSan. */
unsigned ren_test_slowdown(void);

#endif
