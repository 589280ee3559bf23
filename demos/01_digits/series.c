/* SPDX-License-Identifier: MIT */
/* demos/01_digits/series.c - times measured once a frame, and their quantiles.
 *
 * Purpose   See series.h.
 */
#include "series.h"

#include <stdlib.h>

void series_add(series *s, uint64_t ns)
{
    if (s->count == s->capacity) {
        uint32_t room = s->capacity ? 2 * s->capacity : 4096;
        uint64_t *values = realloc(s->values, room * sizeof *values);
        if (!values) {
            return; /* a measurement less */
        }
        s->values = values;
        s->capacity = room;
    }
    s->values[s->count++] = ns;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t series_quantile(series *s, double share)
{
    if (s->count == 0) {
        return 0;
    }
    qsort(s->values, s->count, sizeof *s->values, compare);
    return s->values[(uint32_t)(share * (double)(s->count - 1) + 0.5)];
}

void series_free(series *s)
{
    free(s->values);
    *s = (series){0};
}
