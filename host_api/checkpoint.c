/* SPDX-License-Identifier: MIT */
/* host_api/checkpoint.c - saving and loading a model: check the arguments, call train/.
 *
 * Threads   as ren.h says for each call; nothing is kept here.
 */
#include "ren.h"
#include "../libren/train/checkpoint.h"

ren_status ren_model_save(ren_model *m, const char *path, ren_error *err)
{
    if (!m || !path || !path[0]) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "%s", m ? "path is empty" : "m is NULL");
    }
    return ren__checkpoint_save(m, path, err);
}

ren_status ren_model_load(ren_model *m, const char *path, uint32_t flags, ren_error *err)
{
    if (!m || !path || !path[0]) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "%s", m ? "path is empty" : "m is NULL");
    }
    if (flags & ~(uint32_t)(REN_LOAD_ALLOW_MISSING | REN_LOAD_ALLOW_EXTRA)) {
        return REN__FAIL(err, REN_ERR_INVALID_ARGUMENT, "flags 0x%x are unknown", flags);
    }
    return ren__checkpoint_load(m, path, flags, err);
}
