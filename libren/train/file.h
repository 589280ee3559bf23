/* SPDX-License-Identifier: MIT */
/* libren/train/file.h - files that are there whole or not at all.
 *
 * Purpose   Checkpoints and pictures of plans replace a file of the host's. A crash or a full disk
 *           in the middle leaves the old one.
 * Threads   any; of two writers of one path the later rename wins.
 * Memory    the name of the temporary file, by the allocator given.
 */
#ifndef REN_TRAIN_FILE_H
#define REN_TRAIN_FILE_H

#include "../../memory/host.h"

typedef struct ren__file_part {
    const void *data;
    uint64_t bytes;
} ren__file_part;

/* open, again after a signal; close-on-exec. -1 and errno. */
int ren__file_open(const char *path, int flags);

/* Write the parts, one behind the other, to a temporary file in the folder of `path`, and rename
 * it: a rename replaces a file at once only within one file system. The file is on the disk before
 * the rename, and the folder after it. What lies at `path` and is no regular file stays.
 * Returns   REN_OK; REN_ERR_IO; REN_ERR_NO_MEMORY */
ren_status ren__file_replace(const char *path, const ren__host_allocator *a,
                             const ren__file_part *parts, uint32_t count, ren_error *err);

#endif
