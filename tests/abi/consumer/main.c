/* SPDX-License-Identifier: MIT */
/* tests/abi/consumer/main.c - the smallest host: built against an installed libren, not the tree.
 *
 * Exit      0 when the library's version is the header's and a CPU runtime starts and ends.
 */
#include <ren.h>
#include <stdio.h>

int main(void)
{
    const uint32_t header =
        (REN_VERSION_MAJOR << 16) | (REN_VERSION_MINOR << 8) | REN_VERSION_PATCH;
    ren_runtime_config config = ren_runtime_config_default();
    ren_runtime *rt = NULL;
    ren_error err = {0};
    config.device = REN_DEVICE_CPU;

    if (ren_version() != header) {
        fprintf(stderr, "version %#x, header %#x\n", (unsigned)ren_version(), (unsigned)header);
        return 1;
    }
    ren_status status = ren_runtime_create(&config, &rt, &err);
    if (status != REN_OK) {
        fprintf(stderr, "create: %s: %s\n", ren_status_name(status), err.text);
        return 1;
    }
    printf("%s\n", ren_runtime_device_name(rt));
    status = ren_runtime_destroy(rt);
    if (status != REN_OK) {
        fprintf(stderr, "destroy: %s\n", ren_status_name(status));
        return 1;
    }
    return 0;
}
