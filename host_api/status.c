/* SPDX-License-Identifier: MIT */
/* host_api/status.c - the words for a status, the version, the clock. */
#include "ren.h"
#include "../libren/core/core.h"

const char *ren_status_name(ren_status status)
{
    return ren__status_name(status);
}

const char *ren_status_text(ren_status status)
{
    return ren__status_text(status);
}

uint32_t ren_version(void)
{
    return (REN_VERSION_MAJOR << 16) | (REN_VERSION_MINOR << 8) | REN_VERSION_PATCH;
}

uint64_t ren_now_ns(void)
{
    return ren__now_ns();
}
