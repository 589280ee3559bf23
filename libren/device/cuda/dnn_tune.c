/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/dnn_tune.c - timing the engines of a convolution; see dnn.h and tune.h.
 *
 * Purpose   On a device opened with `autotune` every choice is run on scratch memory, with the
 *           kernels of ours that follow it, and the fastest is kept.
 * Failure   What cannot be run is left out. With no scratch memory (the device's limit counts) the
 *           library's ranking stands.
 */
#include "dnn.h"
#include "tune.h"

/* An execution on scratch memory. */
typedef struct trial {
    ren__device *dev;
    const ren__cuda_dnn_signature *s;
    const ren__cuda_dnn_choice *c;
    ren__cuda_dnn_pack pack;
    void *operands[REN__DNN_OPERANDS];
    void *workspace;
} trial;

static ren_status execute(void *user, cudaStream_t stream)
{
    trial *t = user;
    return ren__cuda_dnn_execute(t->dev, t->dev->dnn->handle, stream, t->s, t->c, &t->pack,
                                 t->operands, t->workspace);
}

uint32_t ren__cuda_dnn_tune(ren__device *dev, const ren__cuda_dnn_signature *s,
                            ren__cuda_dnn_choice *choices, uint32_t count)
{
    const int64_t of_bias[4] = {1, 1, 1, s->y[3]};
    /* The weights' gradient may be wider than the others. */
    const uint64_t sizes[REN__DNN_OPERANDS] = {
        ren__cuda_dnn_bytes(s->x, s->type), ren__cuda_dnn_bytes(s->w, s->out),
        ren__cuda_dnn_bytes(s->y, s->type), ren__cuda_dnn_bytes(of_bias, REN_F32)};
    ren__cuda_tuning tuning;
    uint64_t operands = 0;
    uint64_t workspace = 0;
    uint32_t best = 0;
    for (uint32_t i = 0; i < REN__DNN_OPERANDS; i++) {
        operands += sizes[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        workspace = choices[i].workspace_bytes > workspace ? choices[i].workspace_bytes : workspace;
    }
    if (ren__cuda_tune_begin(dev, operands + workspace, &tuning) == REN_OK &&
        REN__DNN(dev, NULL, cudnnSetStream(dev->dnn->handle, tuning.stream)) == REN_OK) {
        for (uint32_t i = 0; i < count; i++) {
            trial t = {.dev = dev, .s = s, .c = &choices[i]};
            unsigned char *at = tuning.scratch;
            for (uint32_t k = 0; k < REN__DNN_OPERANDS; k++) {
                t.operands[k] = at;
                at += sizes[k];
            }
            t.workspace = at;
            if (ren__cuda_tune_time(&tuning, execute, &t, &choices[i].us) == REN_OK &&
                (choices[best].us <= 0.0f || choices[i].us < choices[best].us)) {
                best = i;
            }
            ren__cuda_dnn_pack_free(&t.pack);
        }
    }
    ren__cuda_tune_end(&tuning);
    return best;
}
