/* SPDX-License-Identifier: MIT */
/* host_api/trace.c - ren_trace_begin and ren_trace_end: argument checks.
 *
 * Purpose   See ren.h.
 * Not here  the recorder, see libren/trace/trace.h.
 */
#include "ren.h"

#include "../libren/trace/trace.h"

ren_status ren_trace_begin(ren_runtime *rt, const char *path, ren_error *err)
{
    if (!rt || !path || !*path) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "%s is %s", rt ? "path" : "rt",
                         rt && path ? "empty" : "NULL");
    }
    ren_status status = ren__runtime_check_blocking(rt);
    if (status != REN_OK) {
        return REN__FAIL(err, status, "a trace cannot be begun here: %s", ren__status_text(status));
    }
    return ren__trace_session_begin(rt, path, err);
}

ren_status ren_trace_end(ren_runtime *rt)
{
    if (!rt) {
        return REN_ERR_INVALID_ARGUMENT;
    }
    ren_status status = ren__runtime_check_blocking(rt);
    return status == REN_OK ? ren__trace_session_end(rt) : status;
}
