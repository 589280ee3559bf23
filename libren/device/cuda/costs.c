/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/costs.c - what the planner may reckon with on a GPU.
 *
 * Purpose   Fill ren__device_costs: times that were measured once, rates that follow from what the
 *           driver says of the device.
 * Threads   any.
 * Units     ns; flops and bytes a ns.
 *
 * Times are of tests/gpu/bench_costs on an H200 (driver 580). Device time between two kernels of a
 * stream: 1.4 to 1.6 us, in a graph 0.5 to 0.7; with the least time of operations of a step itself
 * 6 and 5 us (mlp-64x4 in f16 by a graph of one stream: 28 tasks in 0.15 ms). A fork to one more
 * stream and the join: 0.5 us, to two or three more 4 to 5 us, so up to 2.5 us a crossing; in a
 * graph 0.2 to 1.4 us, so 0.4 a crossing; but 10 us where a graph begins with two operations in
 * place of one. Host: 4.6 us a kernel and 0.4 us a record and a wait by themselves; in a step, with
 * libren's and a library's part, 8 us (incep32 on one stream: 1.6 ms for 200 kernels) and, as going
 * to another stream makes the next launch dearer, 3 us (0.1 to 0.4 ms more with 59 waits). Other
 * devices differ less in these than in their rates.
 *
 * Rates. What a multiprocessor multiplies and adds in a cycle, counted twice, by the table of
 * arithmetic throughput in the CUDA C++ Programming Guide, and for tensor cores the dense rate by
 * the architectures' white papers. Convolutions of ResNet-50 reach half of it (H200, cuDNN 9.14:
 * 497 Tflop/s in f16), those of few channels what they would with 64; of the memory's rate 0.7 is
 * reached.
 */
#include <string.h>

#include "internal.h"

#define FLOPS_REACHED 0.5f
#define BYTES_REACHED 0.7f

static float attribute(enum cudaDeviceAttr which, int ordinal, int otherwise)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, ordinal) != cudaSuccess || value <= 0) {
        (void)cudaGetLastError();
        value = otherwise;
    }
    return (float)value;
}

ren__device_costs ren__cuda_costs(const struct cudaDeviceProp *p, int ordinal)
{
    uint32_t is_datacentre = p->major == 8 && p->minor == 0;
    float f32 = p->major == 7 || is_datacentre ? 128.0f : 256.0f;
    float half = p->major >= 9 ? 4096.0f : is_datacentre ? 2048.0f : 1024.0f;
    float clock_ghz = attribute(cudaDevAttrClockRate, ordinal, 1500000) * 1e-6f;
    float memory_ghz = attribute(cudaDevAttrMemoryClockRate, ordinal, 5000000) * 1e-6f;
    float bus_bytes = attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal, 256) / 8.0f;
    float cycles = FLOPS_REACHED * (float)p->multiProcessorCount * clock_ghz;
    ren__device_costs c;
    memset(&c, 0, sizeof c);
    c.launch_ns = 6000;
    c.event_ns = 2500;
    c.graph_launch_ns = 5000;
    c.graph_event_ns = 400;
    c.graph_root_ns = 10000;
    c.host_launch_ns = 8000;
    c.host_event_ns = 3000;
    c.channels_full = 64;
    c.flops_per_ns = f32 * cycles;
    c.half_flops_per_ns = half * cycles;
    c.tf32_flops_per_ns = p->major >= 8 ? half / 2.0f * cycles : c.flops_per_ns;
    c.bytes_per_ns = BYTES_REACHED * 2.0f * memory_ghz * bus_bytes; /* two transfers a cycle */
    return c;
}
