/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_fault.c - a real, sticky fault of the GPU.
 *
 * Proves    a kernel that writes to an unmapped address completes every outstanding job with
 *           REN_ERR_DEVICE_LOST and its text, wakes who waits, refuses later posts at once, and
 *           lets the runtime be shut down; a new CUDA runtime works or is refused with a status and
 *           a text; the process is able to work on the CPU device.
 * Fails     when a waiter sleeps on, a job completes twice or as done, or shutting down hangs.
 * Alone     the fault makes the primary context unusable while anything of the process holds it, so
 *           it is the only case; test_cuda_renew.c has one in a context of the host's.
 */
#include <CUnit/CUnit.h>

#include "../support/runtime.h"
#include "../support/test.h"
#include "lost.h"

#define SECOND UINT64_C(1000000000)

static void test_illegal_address_loses_the_device(void)
{
    ren_runtime_config config = lost_config();
    ren_runtime *rt = NULL;
    static ren_error err;
    ren_status status = ren_runtime_create(&config, &rt, &err);
    if (ren_test_no_gpu(status)) {
        ren_test_skip(err.text);
        return;
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    lost_break(rt);
    (void)lost_again(&config, "in the primary context");
    config = ren_runtime_config_default();
    config.device = REN_DEVICE_CPU;
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&config, &rt, &err), REN_OK);
    lost_work(rt);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(rt, 20 * SECOND), REN_OK);
}

static const ren_test_case cases[] = {
    {"test_illegal_address_loses_the_device", test_illegal_address_loses_the_device},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "gpu/test_cuda_fault", cases, REN_TEST_COUNT(cases), 90);
}
