/* SPDX-License-Identifier: MIT */
/* demos/01_digits/digits.c - the handwritten digits of demos/data, split for learning and for a
 * test.
 *
 * Purpose   See digits.h.
 */
#include "digits.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IMAGES_FILE "digits-images-idx3-ubyte"
#define LABELS_FILE "digits-labels-idx1-ubyte"

enum {
    FILE_MAX = 64 << 20 /* bytes */
};

typedef struct bytes {
    unsigned char *data;
    size_t count;
} bytes;

static int read_file(const char *folder, const char *name, bytes *out)
{
    char path[PATH_MAX + 64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) {
        return 0;
    }
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size > 0 && size <= FILE_MAX && fseek(file, 0, SEEK_SET) == 0) {
        out->data = malloc((size_t)size);
        out->count = out->data ? fread(out->data, 1, (size_t)size, file) : 0;
    }
    (void)fclose(file);
    return out->count > 0 && out->count == (size_t)size;
}

/* IDX numbers are big-endian. */
static uint32_t number_at(const bytes *b, size_t offset)
{
    const unsigned char *p = b->data + offset;
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The number of digits; 0 when the files are not what they should be. */
static uint32_t check_files(const bytes *images, const bytes *labels)
{
    if (images->count < 16 || labels->count < 8 || number_at(images, 0) != 0x803 ||
        number_at(labels, 0) != 0x801) {
        return 0;
    }
    uint32_t count = number_at(images, 4);
    if (number_at(labels, 4) != count || number_at(images, 8) != DIGIT_SIDE ||
        number_at(images, 12) != DIGIT_SIDE || count < DIGIT_HOLD_OUT ||
        images->count - 16 != (size_t)count * DIGIT_PIXELS || labels->count - 8 != count) {
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (labels->data[8 + i] >= DIGIT_CLASSES) {
            return 0;
        }
    }
    return count;
}

static void add_digit(digit_set *set, const unsigned char *pixels, unsigned char label)
{
    for (int i = 0; i < DIGIT_PIXELS; i++) {
        set->images[set->count][i] = (float)pixels[i] / 255.0f;
    }
    set->labels[set->count] = label;
    set->count++;
}

static int make_set(digit_set *set, uint32_t count)
{
    set->images = malloc(count * sizeof *set->images);
    set->labels = malloc(count * sizeof *set->labels);
    return set->images && set->labels;
}

/* The folder given, or the first usual place that holds the files: below the working directory,
 * then where the build puts the program, seen from the program. */
static const char *find_folder(const char *folder, char *room, size_t room_bytes)
{
    static const char *const usual[] = {"demos/data", "../data", "../demos/data"};
    char path[PATH_MAX + 64];
    if (folder) {
        return folder;
    }
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", usual[i], IMAGES_FILE);
        if (access(path, R_OK) == 0) {
            return usual[i];
        }
    }
    ssize_t n = readlink("/proc/self/exe", room, room_bytes - 32);
    if (n > 0) {
        room[n] = '\0';
        char *slash = strrchr(room, '/');
        (void)snprintf(slash ? slash : room, 32, "/../../../../demos/data");
        return room;
    }
    return usual[0];
}

int digits_load(digits *d, const char *folder, char *text, uint32_t text_bytes)
{
    char room[PATH_MAX];
    bytes images = {NULL, 0}, labels = {NULL, 0};
    uint32_t count = 0;
    memset(d, 0, sizeof *d);
    folder = find_folder(folder, room, sizeof room);
    if (!read_file(folder, IMAGES_FILE, &images) || !read_file(folder, LABELS_FILE, &labels)) {
        (void)snprintf(
            text, text_bytes,
            "cannot read %s and %s in %.200s; say --data with the folder that holds them",
            IMAGES_FILE, LABELS_FILE, folder);
    } else if ((count = check_files(&images, &labels)) == 0) {
        (void)snprintf(text, text_bytes, "the files in %.200s are not 8 x 8 digits in IDX format",
                       folder);
    } else if (!make_set(&d->train, count) || !make_set(&d->test, count)) {
        (void)snprintf(text, text_bytes, "no memory for %u digits", count);
        count = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        add_digit(i % DIGIT_HOLD_OUT == 0 ? &d->test : &d->train,
                  images.data + 16 + (size_t)i * DIGIT_PIXELS, labels.data[8 + i]);
    }
    free(images.data);
    free(labels.data);
    if (count == 0) {
        digits_free(d);
    }
    return count > 0;
}

void digits_free(digits *d)
{
    free(d->train.images);
    free(d->train.labels);
    free(d->test.images);
    free(d->test.labels);
    memset(d, 0, sizeof *d);
}
