/* SPDX-License-Identifier: MIT */
/* tests/gpu/test_cuda_renew.c - going on with CUDA after a fault in a context of the host's.
 *
 * Proves    a host that gave libren a context of its own can destroy it after a sticky fault and
 *           give libren a new one: the runtime in it works where CUDA makes such a context, and is
 *           refused with a status and a text where it does not. So is one in the primary context,
 *           which the fault never touched.
 * Fails     when what is left of the lost runtime reaches into the next one, a refusal has no
 *           reason, or a call hangs.
 * Alone     where CUDA forgives no fault the process cannot use it afterwards.
 */
#include <CUnit/CUnit.h>
#include <stdio.h>

#include "../support/runtime.h"
#include "../support/test.h"
#include "lost.h"
#include "spin.h"

#define SECOND UINT64_C(1000000000)

/* A context that is nobody's current one. */
static int make_context(CUcontext *out)
{
    CUcontext before = spin_current();
    int code = spin_context_create(out, 0);
    if (!code) {
        code = spin_context_set(before);
    }
    return code;
}

static void test_new_context_after_a_fault(void)
{
    ren_runtime_config config = lost_config();
    ren_cuda_options cuda = ren_cuda_options_default();
    CUcontext first = NULL;
    CUcontext second = NULL;
    ren_runtime *rt = NULL;
    static ren_error err;
    ren_status status = ren_runtime_create(&config, &rt, &err);
    if (ren_test_no_gpu(status)) {
        ren_test_skip(err.text);
        return;
    }
    CU_ASSERT_EQUAL_FATAL(status, REN_OK);
    CU_ASSERT_EQUAL(ren_runtime_shutdown(rt, 20 * SECOND), REN_OK);

    CU_ASSERT_EQUAL_FATAL(make_context(&first), 0);
    cuda.context = first;
    config.cuda = &cuda;
    CU_ASSERT_EQUAL_FATAL(ren_runtime_create(&config, &rt, &err), REN_OK);
    lost_work(rt);
    lost_break(rt);
    /* With the context still there the answer is a status as well. */
    CU_ASSERT_EQUAL(lost_again(&config, "in the lost context"), REN_ERR_DEVICE_LOST);
    int code = spin_context_destroy(first);
    (void)printf("       cuCtxDestroy of the lost context: %d\n", code);

    code = make_context(&second);
    (void)printf("       cuCtxCreate after it: %d\n", code);
    if (!code) {
        cuda.context = second;
        (void)lost_again(&config, "in a new context");
        (void)spin_context_destroy(second);
    }
    config.cuda = NULL;
    (void)lost_again(&config, "in the primary context");
}

static const ren_test_case cases[] = {
    {"test_new_context_after_a_fault", test_new_context_after_a_fault},
};

int main(int argc, char **argv)
{
    return ren_test_main(argc, argv, "gpu/test_cuda_renew", cases, REN_TEST_COUNT(cases), 90);
}
