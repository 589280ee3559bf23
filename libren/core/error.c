/* SPDX-License-Identifier: MIT */
/* libren/core/error.c - error records and the words for each status.
 *
 * Purpose   One table of status names and sentences; one function that fills a ren_error.
 * Threads   any; nothing is shared.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"

typedef struct status_row {
    ren_status status;
    const char *name;
    const char *text;
} status_row;

#define ROW(status, text)                                                                          \
    {                                                                                              \
        status, #status, text                                                                      \
    }

static const status_row rows[] = {
    ROW(REN_OK, "done"),
    ROW(REN_TIMEOUT, "the time given ran out; nothing changed"),
    ROW(REN_CANCELLED, "the job was cancelled before it was issued to the device"),
    ROW(REN_TOO_LATE, "the job was issued already and will complete by itself"),
    ROW(REN_WOKEN, "ren_wake was called"),
    ROW(REN_PENDING, "the job was accepted and is not done yet"),
    ROW(REN_ERR_INVALID_ARGUMENT, "a pointer, count, name, enum or flag is out of its range"),
    ROW(REN_ERR_BAD_STRUCT, "struct_size is not one that this version knows; use *_default()"),
    ROW(REN_ERR_UNSUPPORTED, "this version or this device cannot do it yet"),
    ROW(REN_ERR_NO_MEMORY, "the host allocator returned no memory"),
    ROW(REN_ERR_NO_DEVICE_MEMORY, "the device has no memory left, even after all pending releases"),
    ROW(REN_ERR_WOULD_GROW,
        "the pool would have to ask the driver; call ren_memory_reserve first or "
        "set config.allow_growth"),
    ROW(REN_ERR_QUEUE_FULL, "the road is full and nothing was kept; retry after ren_pump"),
    ROW(REN_ERR_BUSY,
        "work or an undelivered callback is outstanding, or another thread is inside"),
    ROW(REN_ERR_CLOSED, "the runtime accepts no more work"),
    ROW(REN_ERR_STALE, "the handle's object is gone and its slot was reused"),
    ROW(REN_ERR_UNKNOWN_JOB, "there is no such job in this runtime"),
    ROW(REN_ERR_REENTRANT, "not allowed from a callback of libren's"),
    ROW(REN_ERR_DEADLINE, "the deadline passed before the job was issued; it did not run"),
    ROW(REN_ERR_TIMEOUT, "aborted before the device answered"),
    ROW(REN_ERR_ABORTED, "aborted before the job was issued; it did not run"),
    ROW(REN_ERR_NO_DEVICE, "the device's module or driver is missing or cannot be used"),
    ROW(REN_ERR_DEVICE, "a device call failed; the device still works"),
    ROW(REN_ERR_DEVICE_LOST, "the device will not work again in this runtime; make a new one"),
    ROW(REN_ERR_THREAD, "a thread could not be started"),
    ROW(REN_ERR_FORKED, "the runtime belongs to the parent of this process"),
    ROW(REN_ERR_SHAPE, "tensor shapes, sizes or dtypes do not fit"),
    ROW(REN_ERR_NAME, "there is no such name, or it is taken"),
    ROW(REN_ERR_IO, "the file could not be opened, read or written"),
    ROW(REN_ERR_FORMAT, "the file is damaged or not of this format"),
    ROW(REN_ERR_CALLBACK, "the host's enqueue function returned an error"),
    ROW(REN_ERR_INTERNAL, "a fault of libren's own; please report it"),
    ROW(REN_ERR_DRIVER_TOO_OLD, "the driver is older than the CUDA module needs"),
    ROW(REN_ERR_NO_GPU, "the driver works, but there is no GPU that can be used"),
};

static const status_row *find(ren_status status)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].status == status) {
            return &rows[i];
        }
    }
    return NULL;
}

const char *ren__status_name(ren_status status)
{
    const status_row *row = find(status);
    return row ? row->name : "REN_STATUS_?";
}

const char *ren__status_text(ren_status status)
{
    const status_row *row = find(status);
    return row ? row->text : "not a status of this version";
}

ren_status ren__error_set(ren_error *err, ren_status status, int32_t backend_code, const char *file,
                          int32_t line, const char *format, ...)
{
    if (err) {
        va_list args;
        err->status = status;
        err->backend_code = backend_code;
        err->file = file;
        err->line = line;
        va_start(args, format);
        (void)vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return status;
}

ren_status ren__error_io(ren_error *err, int code, const char *file, int32_t line,
                         const char *format, ...)
{
    char what[sizeof err->text];
    char reason[128]; /* strerror_r's, where it has no static words for a code */
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return ren__error_set(err, REN_ERR_IO, code, file, line, "%s: %s", what,
                          strerror_r(code, reason, sizeof reason));
}
