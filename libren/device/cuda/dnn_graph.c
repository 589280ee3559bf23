/* SPDX-License-Identifier: MIT */
/* libren/device/cuda/dnn_graph.c - a convolution as an operation graph of cuDNN; see dnn.h.
 *
 * Purpose   A graph has one convolution, and forward it may have a bias and a ReLU behind it,
 *           joined by virtual tensors of f32, which exist in registers only.
 * Layout    The library names dimensions N, C, H, W (weights O, I, H, W) whatever the order in
 *           memory is, which the strides tell: C is innermost, for weights too.
 * NaN       What a ReLU makes of a NaN is up to the engine: it may become 0, where the kernels of
 *           the module keep it. A step that must be skipped shows it all the same: with an input or
 *           a weight that is not finite a product in the gradients is not finite either, 0 times
 *           infinity included.
 * Memory    Descriptors are the library's; a graph frees those that it is made of, which the plans
 *           made from it do not need any more.
 */
#include <stdbool.h>
#include <string.h>

#include "dnn.h"

#define ALIGNMENT INT64_C(16) /* bytes; device addresses have REN__ALIGN, which is more */
#define VIRTUALS  INT64_C(16) /* first id of the tensors in between */

/* One attribute of a descriptor. */
typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;
} attribute;

static cudnnDataType_t data_type(ren_dtype dtype)
{
    return dtype == REN_F16    ? CUDNN_DATA_HALF
           : dtype == REN_BF16 ? CUDNN_DATA_BFLOAT16
                               : CUDNN_DATA_FLOAT;
}

/* Create a descriptor, set its attributes, finalise it. On failure nothing is left. */
static cudnnStatus_t describe(cudnnBackendDescriptorType_t type, const attribute *rows,
                              size_t count, cudnnBackendDescriptor_t *out)
{
    cudnnStatus_t code = cudnnBackendCreateDescriptor(type, out);
    if (code != CUDNN_STATUS_SUCCESS) {
        *out = NULL;
        return code;
    }
    for (size_t i = 0; i < count && code == CUDNN_STATUS_SUCCESS; i++) {
        code = cudnnBackendSetAttribute(*out, rows[i].name, rows[i].type, rows[i].count,
                                        rows[i].values);
    }
    if (code == CUDNN_STATUS_SUCCESS) {
        code = cudnnBackendFinalize(*out);
    }
    if (code != CUDNN_STATUS_SUCCESS) {
        (void)cudnnBackendDestroyDescriptor(*out);
        *out = NULL;
    }
    return code;
}

#define DESCRIBE(type, rows, out) describe((type), (rows), sizeof(rows) / sizeof((rows)[0]), (out))

/* The same, and the graph frees it. */
static cudnnStatus_t add(ren__cuda_dnn_graph *graph, cudnnBackendDescriptorType_t type,
                         const attribute *rows, size_t count, cudnnBackendDescriptor_t *out)
{
    cudnnStatus_t code = describe(type, rows, count, out);
    if (code == CUDNN_STATUS_SUCCESS) {
        graph->parts[graph->count++] = *out;
    }
    return code;
}

#define ADD(graph, type, rows, out)                                                                \
    add((graph), (type), (rows), sizeof(rows) / sizeof((rows)[0]), (out))

#define TRY(call)                                                                                  \
    do {                                                                                           \
        cudnnStatus_t tried = (call);                                                              \
        if (tried != CUDNN_STATUS_SUCCESS) {                                                       \
            return tried;                                                                          \
        }                                                                                          \
    } while (0)

/* dims in the library's order N, C, H, W; C is innermost in memory. */
static cudnnStatus_t tensor(ren__cuda_dnn_graph *graph, int64_t id, cudnnDataType_t type,
                            const int64_t dims[4], cudnnBackendDescriptor_t *out)
{
    const int64_t alignment = ALIGNMENT;
    const bool is_virtual = id >= VIRTUALS;
    const int64_t strides[4] = {dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]};
    const attribute rows[] = {
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual},
    };
    return ADD(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR, rows, out);
}

static cudnnStatus_t convolution(ren__cuda_dnn_graph *graph, const ren__cuda_dnn_signature *s,
                                 cudnnBackendDescriptor_t *out)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t axes = 2;
    const int64_t padding[2] = {(int64_t)s->padding[0], (int64_t)s->padding[1]};
    const int64_t stride[2] = {(int64_t)s->stride[0], (int64_t)s->stride[1]};
    const int64_t dilation[2] = {(int64_t)s->dilation[0], (int64_t)s->dilation[1]};
    const attribute rows[] = {
        {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
        {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride},
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation},
    };
    return ADD(graph, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, rows, out);
}

/* What the three kinds call their attributes. */
typedef struct names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, conv, x, w, y;
} names;

static const names of_forward = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
static const names of_data = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
static const names of_weight = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};

/* The convolution itself: x, w and y are its tensors, whichever of them it writes. */
static cudnnStatus_t operation(ren__cuda_dnn_graph *graph, const names *n,
                               cudnnBackendDescriptor_t conv, cudnnBackendDescriptor_t x,
                               cudnnBackendDescriptor_t w, cudnnBackendDescriptor_t y,
                               cudnnBackendDescriptor_t *out)
{
    const float one = 1.0f;
    const float zero = 0.0f;
    const attribute rows[] = {
        {n->alpha, CUDNN_TYPE_FLOAT, 1, &one},
        {n->beta, CUDNN_TYPE_FLOAT, 1, &zero},
        {n->conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &conv},
        {n->x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x},
        {n->w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w},
        {n->y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y},
    };
    return ADD(graph, n->type, rows, out);
}

/* to = from + bias, or with no bias to = max(from, 0); in f32. */
static cudnnStatus_t pointwise(ren__cuda_dnn_graph *graph, cudnnBackendDescriptor_t from,
                               cudnnBackendDescriptor_t bias, cudnnBackendDescriptor_t to,
                               cudnnBackendDescriptor_t *out)
{
    const cudnnPointwiseMode_t mode = bias ? CUDNN_POINTWISE_ADD : CUDNN_POINTWISE_RELU_FWD;
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const attribute of_mode[] = {
        {CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type},
    };
    cudnnBackendDescriptor_t what = NULL;
    TRY(ADD(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, of_mode, &what));
    {
        const attribute rows[] = {
            {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &what},
            {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &from},
            {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &to},
            {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &bias},
        };
        size_t count = sizeof rows / sizeof rows[0] - (bias ? 0u : 1u);
        return add(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, rows, count, out);
    }
}

/* The tensors and operations of a graph; *out_count operations. */
static cudnnStatus_t operations(ren__cuda_dnn_graph *graph, const ren__cuda_dnn_signature *s,
                                ren__cuda_dnn_form form, cudnnBackendDescriptor_t out[3],
                                int64_t *out_count)
{
    const int64_t of_x[4] = {s->x[0], s->x[3], s->x[1], s->x[2]};
    const int64_t of_y[4] = {s->y[0], s->y[3], s->y[1], s->y[2]};
    const int64_t of_bias[4] = {1, s->y[3], 1, 1};
    const names *n = s->kind == REN__OP_CONV_FWD        ? &of_forward
                     : s->kind == REN__OP_CONV_BWD_DATA ? &of_data
                                                        : &of_weight;
    cudnnDataType_t type = data_type(s->type);
    cudnnDataType_t written = data_type(form.out);
    int has_bias = form.fused && s->has_bias;
    int has_relu = form.fused && s->has_relu;
    int64_t next = VIRTUALS;
    cudnnBackendDescriptor_t conv = NULL;
    cudnnBackendDescriptor_t x = NULL;
    cudnnBackendDescriptor_t w = NULL;
    cudnnBackendDescriptor_t y = NULL;
    cudnnBackendDescriptor_t sum = NULL;
    *out_count = 0;
    TRY(convolution(graph, s, &conv));
    TRY(tensor(graph, REN__DNN_X, n == &of_data ? written : type, of_x, &x));
    TRY(tensor(graph, REN__DNN_W, n == &of_weight ? written : type, s->w, &w));
    if (has_bias || has_relu) {
        TRY(tensor(graph, next++, CUDNN_DATA_FLOAT, of_y, &sum));
    }
    TRY(tensor(graph, REN__DNN_Y, n == &of_forward ? written : type, of_y, &y));
    TRY(operation(graph, n, conv, x, w, sum ? sum : y, &out[(*out_count)++]));
    if (has_bias) {
        cudnnBackendDescriptor_t bias = NULL;
        cudnnBackendDescriptor_t to = y;
        TRY(tensor(graph, REN__DNN_BIAS, data_type(s->bias), of_bias, &bias));
        if (has_relu) {
            TRY(tensor(graph, next++, CUDNN_DATA_FLOAT, of_y, &to));
        }
        TRY(pointwise(graph, sum, bias, to, &out[(*out_count)++]));
        sum = to;
    }
    return has_relu ? pointwise(graph, sum, NULL, y, &out[(*out_count)++]) : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t ren__cuda_dnn_graph_make(cudnnHandle_t handle, const ren__cuda_dnn_signature *s,
                                       ren__cuda_dnn_form form, ren__cuda_dnn_graph *out)
{
    cudnnBackendDescriptor_t ops[3] = {NULL, NULL, NULL};
    int64_t count = 0;
    cudnnStatus_t code;
    memset(out, 0, sizeof *out);
    code = operations(out, s, form, ops, &count);
    if (code == CUDNN_STATUS_SUCCESS) {
        const attribute rows[] = {
            {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle},
            {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, ops},
        };
        code = ADD(out, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, rows, &out->graph);
    }
    if (code != CUDNN_STATUS_SUCCESS) {
        ren__cuda_dnn_graph_free(out);
    }
    return code;
}

void ren__cuda_dnn_graph_free(ren__cuda_dnn_graph *graph)
{
    while (graph->count) {
        (void)cudnnBackendDestroyDescriptor(graph->parts[--graph->count]);
    }
    graph->graph = NULL;
}

/* ------------------------------------------------------------------ packs */

cudnnStatus_t ren__cuda_dnn_pack_bind(ren__cuda_dnn_pack *pack, uint32_t has_bias,
                                      void *const operands[REN__DNN_OPERANDS], void *workspace)
{
    const int64_t ids[REN__DNN_OPERANDS] = {REN__DNN_X, REN__DNN_W, REN__DNN_Y, REN__DNN_BIAS};
    int64_t count = has_bias ? REN__DNN_OPERANDS : REN__DNN_BIAS;
    size_t bytes = (size_t)count * sizeof operands[0];
    const attribute rows[] = {
        {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, operands},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace},
    };
    if (pack->pack && memcmp(pack->operands, operands, bytes) == 0 &&
        pack->workspace == workspace) {
        return CUDNN_STATUS_SUCCESS;
    }
    ren__cuda_dnn_pack_free(pack);
    TRY(DESCRIBE(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, rows, &pack->pack));
    memcpy(pack->operands, operands, bytes);
    pack->workspace = workspace;
    return CUDNN_STATUS_SUCCESS;
}

void ren__cuda_dnn_pack_free(ren__cuda_dnn_pack *pack)
{
    if (pack->pack) {
        (void)cudnnBackendDestroyDescriptor(pack->pack);
        pack->pack = NULL;
    }
}
