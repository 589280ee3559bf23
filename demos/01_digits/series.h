/* SPDX-License-Identifier: MIT */
/* demos/01_digits/series.h - times measured once a frame, and their quantiles.
 *
 * Purpose   Keep every measurement; frames are few enough.
 * Units     Nanoseconds.
 */
#ifndef DEMO_SERIES_H
#define DEMO_SERIES_H

#include <stdint.h>

/* Zeroed is empty. */
typedef struct series {
    uint64_t *values;
    uint32_t count;
    uint32_t capacity;
} series;

void series_add(series *s, uint64_t ns);

/* The value that the share 0..1 of all values does not exceed; 0 when empty. Reorders them. */
uint64_t series_quantile(series *s, double share);
void series_free(series *s);

#endif
