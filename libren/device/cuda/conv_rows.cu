/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/conv_rows.cu - the taps of a kernel's row as channels.
 *
 * Purpose   Tensor cores take channels by eights, and a first layer has three: padded, five of
 *           eight products are with zero. Here the taps of one kernel row are laid out side by side
 *           as the channels of an image that is as wide as the output,
 *             x'[n, h, wo, kw * C + c] = x[n, h, wo * stride - padding + kw, c]
 *           with zeros up to a power of two. A kernel of KH by KW over C channels is then one of KH
 *           by 1 over these, with no padding or stride along the row: 7 by 7 over 3 channels is 7
 *           by 1 over 21 of 32. The library is several times faster at that, which pays for writing
 *           the image.
 * Layout    NHWC and OHWI, in 16 bits. The weights of a row lie side by side already; they are
 *           copied with the zeros between, and a gradient of them is copied back into f32.
 * Bits      Values are moved, not computed with, but for the widening.
 */
#include "pack.cuh"

#define ROW_THREADS  128u
#define ROW_ELEMENTS 8192 /* of a padded row of x in shared memory */
#define EIGHT        8    /* halves in 16 bytes */

typedef struct rows_params {
    ren__conv_shape s;
    const uint16_t *x, *w;
    uint16_t *to_x, *to_w;
    int channels; /* of x' */
    int taps;     /* of a kernel row, times channels */
    int width;    /* elements of a padded row */
    int w_rows;   /* kernel rows of all weights; 0 = none to copy */
} rows_params;

/* A block to each row of x, then ones for the weights. */
static __global__ void pack_kernel(rows_params p)
{
    __shared__ uint16_t row[ROW_ELEMENTS];
    int rows = p.s.n * p.s.h;
    int eights = p.channels / EIGHT;
    if ((int)blockIdx.x < rows) {
        const uint16_t *from = p.x + (size_t)blockIdx.x * (size_t)(p.s.w * p.s.c);
        uint4 *to = (uint4 *)p.to_x + (size_t)blockIdx.x * (size_t)(p.s.wo * eights);
        int left = p.s.pw * p.s.c;
        for (int i = (int)threadIdx.x; i < p.width; i += (int)blockDim.x) {
            int at = i - left;
            row[i] = at >= 0 && at < p.s.w * p.s.c ? from[at] : (uint16_t)0;
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < p.s.wo * eights; i += (int)blockDim.x) {
            int wo = i / eights;
            int first = (i - wo * eights) * EIGHT;
            const uint16_t *taps = row + wo * p.s.sw * p.s.c + first;
            union {
                uint4 whole;
                uint16_t half[EIGHT];
            } out;
#pragma unroll
            for (int k = 0; k < EIGHT; k++) {
                out.half[k] = first + k < p.taps ? taps[k] : (uint16_t)0;
            }
            to[i] = out.whole;
        }
        return;
    }
    for (int i = ((int)blockIdx.x - rows) * (int)blockDim.x + (int)threadIdx.x;
         i < p.w_rows * p.channels; i += ((int)gridDim.x - rows) * (int)blockDim.x) {
        int of = i / p.channels;
        int k = i - of * p.channels;
        p.to_w[i] = k < p.taps ? p.w[of * p.taps + k] : (uint16_t)0;
    }
}

typedef struct unpack_params {
    const void *from;
    float *to;
    int n, taps, channels;
} unpack_params;

template <typename T> static __global__ void unpack_kernel(unpack_params p)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < p.n;
         i += (int)(gridDim.x * blockDim.x)) {
        int of = i / p.taps;
        p.to[i] = ren__widen(((const T *)p.from)[of * p.channels + i - of * p.taps]);
    }
}

uint32_t ren__cuda_k_rows_channels(const ren__conv_shape *s)
{
    int64_t taps = (int64_t)s->kw * s->c;
    int64_t width = ((int64_t)s->wo - 1) * s->sw * s->c + 32;
    uint32_t channels = EIGHT;
    while (channels < taps) {
        channels *= 2u;
    }
    if (s->groups != 1 || s->dw != 1 || s->kw < 2 || s->c > 4 || channels > 32u ||
        width > ROW_ELEMENTS || (int64_t)s->n * s->h > INT32_MAX / 2 ||
        (int64_t)s->o * s->kh * channels > INT32_MAX / 2) {
        return 0;
    }
    return channels;
}

cudaError_t ren__cuda_k_rows_pack(cudaStream_t stream, const ren__conv_shape *s, uint32_t channels,
                                  const void *x, void *to_x, const void *w, void *to_w)
{
    rows_params p = {};
    uint32_t of_w;
    p.s = *s;
    p.x = (const uint16_t *)x;
    p.w = (const uint16_t *)w;
    p.to_x = (uint16_t *)to_x;
    p.to_w = (uint16_t *)to_w;
    p.channels = (int)channels;
    p.taps = s->kw * s->c;
    p.width = (s->wo - 1) * s->sw * s->c + p.channels;
    p.w_rows = w ? s->o * s->kh : 0;
    of_w = w ? ren__blocks((uint64_t)p.w_rows * channels, ROW_THREADS, 64u) : 0u;
    return REN_LAUNCH(pack_kernel, (uint32_t)(s->n * s->h) + of_w, ROW_THREADS, stream, p);
}

template <typename T> static cudaError_t launch_unpack(cudaStream_t stream, const unpack_params &p)
{
    return REN_LAUNCH(unpack_kernel<T>, ren__blocks((uint64_t)p.n, REN_THREADS, REN_MAX_BLOCKS),
                      REN_THREADS, stream, p);
}

cudaError_t ren__cuda_k_rows_unpack(cudaStream_t stream, const ren__conv_shape *s,
                                    uint32_t channels, ren_dtype type, const void *from, float *dw)
{
    int taps = s->kw * s->c;
    unpack_params p = {from, dw, s->o * s->kh * taps, taps, (int)channels};
    return REN_DISPATCH(type, launch_unpack, stream, p);
}
