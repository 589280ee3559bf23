/* SPDX-License-Identifier: MIT */
/* libren/core/error.h - error records and the words for each status.
 *
 * Purpose   Fill a ren_error; name a status. Depends on nothing but ren.h, so every part may use
 * it.
 * Threads   any; nothing is shared.
 */
#ifndef REN_CORE_ERROR_H
#define REN_CORE_ERROR_H

#include "../../host_api/ren.h"

/* Static strings, never NULL. */
const char *ren__status_name(ren_status status);
const char *ren__status_text(ren_status status);

/* Fill *err (may be NULL) and return `status`. The text is printf-like and cut at the buffer. */
ren_status ren__error_set(ren_error *err, ren_status status, int32_t backend_code, const char *file,
                          int32_t line, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* For a call that failed with `code` of errno: REN_ERR_IO, with the text made of the format and
 * what the system says of the code, as "cannot open x: No such file or directory". */
ren_status ren__error_io(ren_error *err, int code, const char *file, int32_t line,
                         const char *format, ...) __attribute__((format(printf, 5, 6)));

#define REN__IO_FAIL(err, code, ...) ren__error_io((err), (code), __FILE__, __LINE__, __VA_ARGS__)

#define REN__FAIL(err, status, ...)                                                                \
    ren__error_set((err), (status), 0, __FILE__, __LINE__, __VA_ARGS__)

#endif
