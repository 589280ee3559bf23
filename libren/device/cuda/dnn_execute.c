/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/dnn_execute.c - a choice at work: the library's plan, and our kernels around
 * it; see dnn.h.
 *
 * Purpose   A launch lays out kernel rows (conv_rows.cu) where the form asks for it, executes the
 *           plan, and adds what the library left: a widened gradient, a bias, a ReLU.
 * Threads   the submitter, or the tuner before an operation holds the plan.
 * Memory    what stands in between lies in the workspace, behind the library's part.
 */
#include <string.h>

#include "dnn.h"

ren__conv_shape ren__cuda_dnn_shape(const ren__cuda_dnn_signature *s)
{
    ren__conv_shape shape;
    shape.n = (int)s->x[0];
    shape.h = (int)s->x[1];
    shape.w = (int)s->x[2];
    shape.c = (int)s->x[3];
    shape.ho = (int)s->y[1];
    shape.wo = (int)s->y[2];
    shape.o = (int)s->y[3];
    shape.kh = (int)s->w[2];
    shape.kw = (int)s->w[3];
    shape.sh = (int)s->stride[0];
    shape.sw = (int)s->stride[1];
    shape.ph = (int)s->padding[0];
    shape.pw = (int)s->padding[1];
    shape.dh = (int)s->dilation[0];
    shape.dw = (int)s->dilation[1];
    shape.groups = (int)(s->x[3] / s->w[1]);
    return shape;
}

ren__cuda_dnn_signature ren__cuda_dnn_over_rows(const ren__cuda_dnn_signature *s, uint32_t rows)
{
    ren__cuda_dnn_signature inner = *s;
    inner.x[2] = s->y[2];
    inner.x[3] = inner.w[1] = (int64_t)rows;
    inner.w[3] = 1;
    inner.stride[1] = 1;
    inner.padding[1] = 0;
    return inner;
}

uint64_t ren__cuda_dnn_bytes(const int64_t dims[4], ren_dtype dtype)
{
    uint64_t n = (uint64_t)(dims[0] * dims[1] * dims[2] * dims[3]);
    return (n * ren__dtype_bytes(dtype) + REN__ALIGN - 1u) / REN__ALIGN * REN__ALIGN;
}

static ren_status execute_thin(ren__device *dev, cudaStream_t stream,
                               const ren__cuda_dnn_signature *s,
                               void *const operands[REN__DNN_OPERANDS], void *workspace)
{
    ren__conv_shape shape = ren__cuda_dnn_shape(s);
    if (s->kind == REN__OP_CONV_FWD) {
        return REN__CUDA(dev, NULL,
                         ren__cuda_k_thin_forward(stream, &shape, operands[REN__DNN_X],
                                                  operands[REN__DNN_W],
                                                  s->has_bias ? operands[REN__DNN_BIAS] : NULL,
                                                  (int)s->has_relu, operands[REN__DNN_Y]));
    }
    return REN__CUDA(dev, NULL,
                     ren__cuda_k_thin_weight(stream, &shape, s->type, operands[REN__DNN_Y],
                                             operands[REN__DNN_X], operands[REN__DNN_W],
                                             workspace));
}

/* What the library reads and writes, and what happens before: bound holds the operands. */
static ren_status prepare(ren__device *dev, cudaStream_t stream, const ren__cuda_dnn_signature *s,
                          const ren__cuda_dnn_choice *c, void *bound[REN__DNN_OPERANDS],
                          void *workspace)
{
    unsigned char *own = (unsigned char *)workspace + c->library_bytes;
    if (c->form.rows) {
        ren__conv_shape shape = ren__cuda_dnn_shape(s);
        ren__cuda_dnn_signature inner = ren__cuda_dnn_over_rows(s, c->form.rows);
        const void *x = bound[REN__DNN_X];
        const void *w = s->kind == REN__OP_CONV_FWD ? bound[REN__DNN_W] : NULL;
        bound[REN__DNN_X] = own;
        bound[REN__DNN_W] = own + ren__cuda_dnn_bytes(inner.x, s->type);
        return REN__CUDA(dev, NULL,
                         ren__cuda_k_rows_pack(stream, &shape, c->form.rows, x, bound[REN__DNN_X],
                                               w, bound[REN__DNN_W]));
    }
    if (c->form.out != s->out) {
        bound[REN__DNN_W] = own;
    }
    return REN_OK;
}

/* What the library left to do. */
static ren_status finish(ren__device *dev, cudaStream_t stream, const ren__cuda_dnn_signature *s,
                         const ren__cuda_dnn_choice *c, void *const bound[REN__DNN_OPERANDS],
                         void *const operands[REN__DNN_OPERANDS])
{
    if (s->kind == REN__OP_CONV_BWD_WEIGHT && c->form.rows) {
        ren__conv_shape shape = ren__cuda_dnn_shape(s);
        return REN__CUDA(dev, NULL,
                         ren__cuda_k_rows_unpack(stream, &shape, c->form.rows, c->form.out,
                                                 bound[REN__DNN_W], operands[REN__DNN_W]));
    }
    if (c->form.out != s->out) {
        uint64_t n = (uint64_t)(s->w[0] * s->w[1] * s->w[2] * s->w[3]);
        return REN__CUDA(dev, NULL,
                         ren__cuda_k_cast(stream, c->form.out, bound[REN__DNN_W], s->out,
                                          operands[REN__DNN_W], n));
    }
    if (!c->form.fused && (s->has_bias || s->has_relu)) {
        uint64_t n = (uint64_t)(s->y[0] * s->y[1] * s->y[2] * s->y[3]);
        return REN__CUDA(dev, NULL,
                         ren__cuda_k_bias_act(stream, s->out, operands[REN__DNN_Y], s->bias,
                                              s->has_bias ? operands[REN__DNN_BIAS] : NULL,
                                              (int)s->has_relu, n, (uint64_t)s->y[3]));
    }
    return REN_OK;
}

ren_status ren__cuda_dnn_execute(ren__device *dev, cudnnHandle_t handle, cudaStream_t stream,
                                 const ren__cuda_dnn_signature *s, const ren__cuda_dnn_choice *c,
                                 ren__cuda_dnn_pack *pack, void *const operands[REN__DNN_OPERANDS],
                                 void *workspace)
{
    void *bound[REN__DNN_OPERANDS];
    ren_status status;
    if (c->form.thin) {
        return execute_thin(dev, stream, s, operands, workspace);
    }
    memcpy(bound, operands, sizeof bound);
    status = prepare(dev, stream, s, c, bound, workspace);
    if (status == REN_OK) {
        status =
            REN__DNN(dev, NULL,
                     ren__cuda_dnn_pack_bind(pack, c->form.fused && s->has_bias, bound, workspace));
    }
    if (status == REN_OK) {
        status = REN__DNN(dev, NULL, cudnnBackendExecute(handle, c->plan, pack->pack));
    }
    return status == REN_OK ? finish(dev, stream, s, c, bound, operands) : status;
}
