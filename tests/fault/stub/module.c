/* SPDX-License-Identifier: MIT */
/* tests/fault/stub/module.c - shared objects that are no CUDA module of this libren.
 *
 * Built     several times, for tests/fault/test_no_gpu.c (see the Makefile):
 *           ENTRY=0     without the entry point
 *           REFUSE=1    with one that refuses this libren, as a real module does
 *           ABI=N       with one that hands out a table of another number
 *           SIZE=N      with one that hands out a table of another size
 * Fails     A call of any other entry ends the process: the tables hold no functions.
 */
#include "libren/device/device.h"

#ifndef ENTRY
#define ENTRY 1
#endif
#ifndef REFUSE
#define REFUSE 0
#endif
#ifndef ABI
#define ABI REN__DEVICE_ABI
#endif
#ifndef SIZE
#define SIZE sizeof(ren__device_api)
#endif

const ren__device_api *ren__device_module_open(uint32_t abi);

#if ENTRY
__attribute__((visibility("default")))
#endif
const ren__device_api *
ren__device_module_open(uint32_t abi)
{
    static const ren__device_api table = {
        .struct_size = (uint32_t)SIZE, .abi = ABI, .kind = REN_DEVICE_CUDA};
    (void)abi;
    return REFUSE ? 0 : &table;
}
