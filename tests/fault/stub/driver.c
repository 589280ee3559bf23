/* SPDX-License-Identifier: MIT */
/* tests/fault/stub/driver.c - a libcuda.so.1 that cannot serve, for tests/fault/test_no_gpu.c.
 *
 * Built     several times, into folders of their own, by what cannot be had (see the Makefile):
 *           EXPORTS=0   no function at all
 *           INIT=N      cuInit answers with the error N
 *           VERSION=N   what cuDriverGetVersion says
 *           and without any of these a driver that starts and sees no GPU.
 */
#ifndef EXPORTS
#define EXPORTS 1
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef VERSION
#define VERSION 999000 /* newer than any */
#endif

int cuInit(unsigned flags);
int cuDriverGetVersion(int *out);
int cuDeviceGetCount(int *out);
int cuGetErrorString(int code, const char **out);

#if EXPORTS
#define VISIBLE __attribute__((visibility("default")))
#else
#define VISIBLE __attribute__((visibility("hidden")))
#endif

VISIBLE int cuInit(unsigned flags)
{
    (void)flags;
    return INIT;
}

VISIBLE int cuDriverGetVersion(int *out)
{
    *out = VERSION;
    return 0;
}

VISIBLE int cuDeviceGetCount(int *out)
{
    *out = 0;
    return INIT;
}

VISIBLE int cuGetErrorString(int code, const char **out)
{
    (void)code;
    *out = "the stub's reason";
    return 0;
}
