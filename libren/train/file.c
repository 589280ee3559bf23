/* SPDX-License-Identifier: MIT */
/* libren/train/file.c - see file.h. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/error.h"

enum {
    TEMPORARY_TRIES = 1000,
    TEMPORARY_EXTRA = 64,    /* room for the temporary file's own part of its name */
    TRANSFER_BYTES = 1 << 30 /* most bytes of one write call */
};

int ren__file_open(const char *path, int flags)
{
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

static int write_all(int fd, const void *data, uint64_t bytes)
{
    const unsigned char *at = data;
    while (bytes > 0) {
        size_t part = bytes < TRANSFER_BYTES ? (size_t)bytes : TRANSFER_BYTES;
        ssize_t n = write(fd, at, part);
        if (n >= 0) {
            at += n;
            bytes -= (uint64_t)n;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* The length of the folder part of a path, its slash included; 0 for a bare name. */
static size_t folder_bytes(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1u : 0;
}

/* Make a file that did not exist. The process id keeps processes apart, the number threads. */
static int open_temporary(const char *path, char *temporary, size_t room)
{
    int fd = -1;
    for (int try = 0; try < TEMPORARY_TRIES && fd < 0; try++) {
        (void)snprintf(temporary, room, "%.*s.ren-%ld-%d.tmp", (int)folder_bytes(path), path,
                       (long)getpid(), try);
        fd = ren__file_open(temporary, O_WRONLY | O_CREAT | O_EXCL);
        if (fd < 0 && errno != EEXIST) {
            break;
        }
    }
    return fd;
}

/* Make the rename durable. Not every file system can; then the file is as durable as it gets. */
static void sync_folder(const char *path, char *scratch, size_t room)
{
    size_t bytes = folder_bytes(path);
    (void)snprintf(scratch, room, "%.*s", bytes ? (int)bytes : 1, bytes ? path : ".");
    int fd = ren__file_open(scratch, O_RDONLY | O_DIRECTORY);
    if (fd >= 0) {
        (void)fsync(fd);
        (void)close(fd);
    }
}

static int fill_file(int fd, const ren__file_part *parts, uint32_t count)
{
    int code = 0;
    for (uint32_t i = 0; i < count && !code; i++) {
        code = write_all(fd, parts[i].data, parts[i].bytes);
    }
    if (!code && fsync(fd) != 0) {
        code = errno;
    }
    if (close(fd) != 0 && !code && errno != EINTR) {
        code = errno;
    }
    return code;
}

/* A rename would put a file in the place of a device, a pipe or a socket, /dev/null for one. */
static int is_special(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && !S_ISREG(about.st_mode);
}

ren_status ren__file_replace(const char *path, const ren__host_allocator *a,
                             const ren__file_part *parts, uint32_t count, ren_error *err)
{
    size_t room = strlen(path) + TEMPORARY_EXTRA;
    ren_status status = REN_OK;
    if (is_special(path)) {
        return REN__FAIL(err, REN_ERR_IO, "%.160s is no regular file", path);
    }
    char *temporary = ren__host_calloc(a, room, 1);
    if (!temporary) {
        return REN__FAIL(err, REN_ERR_NO_MEMORY, "no memory for a file's name");
    }
    int fd = open_temporary(path, temporary, room);
    int code = fd < 0 ? errno : fill_file(fd, parts, count);
    if (fd < 0) {
        status = REN__IO_FAIL(err, code, "cannot make a file in the folder of %.160s", path);
    } else {
        if (!code && rename(temporary, path) != 0) {
            code = errno;
        }
        if (code) {
            (void)unlink(temporary);
            status = REN__IO_FAIL(err, code, "cannot write %.160s", path);
        } else {
            sync_folder(path, temporary, room);
        }
    }
    ren__host_free(a, temporary, room, 1);
    return status;
}
