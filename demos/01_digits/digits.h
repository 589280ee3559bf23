/* SPDX-License-Identifier: MIT */
/* demos/01_digits/digits.h - the handwritten digits of demos/data, split for learning and for a
 * test.
 *
 * Purpose   Read the two IDX files, check them, and hold out every fifth digit.
 * Units     Pixels from 0 (paper) to 1 (ink).
 */
#ifndef DEMO_DIGITS_H
#define DEMO_DIGITS_H

#include <stdint.h>

enum {
    DIGIT_SIDE = 8,
    DIGIT_PIXELS = DIGIT_SIDE * DIGIT_SIDE,
    DIGIT_CLASSES = 10,
    DIGIT_HOLD_OUT = 5 /* one of this many is held out */
};

typedef struct digit_set {
    uint32_t count;
    float (*images)[DIGIT_PIXELS];
    int32_t *labels;
} digit_set;

typedef struct digits {
    digit_set train;
    digit_set test;
} digits;

/* 1, or 0 with a message in `text`. folder NULL: the usual places are tried. */
int digits_load(digits *d, const char *folder, char *text, uint32_t text_bytes);
void digits_free(digits *d);

#endif
