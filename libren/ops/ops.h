/* SPDX-License-Identifier: MIT */
/* libren/ops/ops.h - operation families: shape rule, parameters, and the tasks of both passes.
 *
 * Purpose   A model is a list of nodes; each node belongs to one family. A family knows what shape
 *           comes out, which parameters the node owns, and which tasks compute its output and its
 *           gradients. train/ builds nodes and walks them; nothing here knows trainers or runtimes.
 * Streams   A task names the stream of the STATIC table: linear and convolution forward, losses and
 *           weight gradients on COMP_1; batch norm, pooling, dropout and bias gradients on COMP_2;
 *           activations, sums, joins and data gradients on COMP_3. The backward pass of a linear or
 *           convolution node thus forks three ways. The policy GREEDY may move compute tasks.
 * Fusion    Nodes whose work is one operation form a group, see train/fuse.h: its first node, the
 *           head, is the one whose family emits the group's tasks, at the turn of its last one, the
 *           tail. Only the tail's output is in memory, and only it has a gradient.
 * Gradients The gradient of a tensor is complete when all nodes that read it have run backward,
 *           which reverse node order guarantees. A second contribution is added out of place, so a
 *           contribution may be shared (the sum's backward pass hands on its own gradient). A
 *           batch norm with a ReLU may take two and add them itself.
 * Threads   one thread per emitter; families are constant.
 * Precision In mixed precision tensors and their gradients are f16 or bf16 (`precision`), and so
 *           are the weights and biases that linear layers and convolutions read; weights'
 *           gradients, all that batch norm keeps, and losses from their inputs on are f32.
 * Units     cost in floating point operations, or bytes moved for tasks that mostly move.
 */
#ifndef REN_OPS_OPS_H
#define REN_OPS_OPS_H

#include "../graph/plan.h"

#define REN__NODE_INPUTS 16u
#define REN__NODE_PARAMS 4u
#define REN__NODE_SAVED  3u  /* values that a node's forward pass keeps for its backward pass */
#define REN__NAME_BYTES  64u /* 63 characters */
#define REN__NO_PARAM    UINT32_MAX
#define REN__NO_NODE     UINT32_MAX

typedef enum ren__node_kind {
    REN__NODE_INPUT = 0,
    REN__NODE_LINEAR,
    REN__NODE_CONV2D,
    REN__NODE_BATCH_NORM,
    REN__NODE_MAX_POOL,
    REN__NODE_AVG_POOL,
    REN__NODE_GLOBAL_AVG_POOL,
    REN__NODE_ACTIVATION,
    REN__NODE_DROPOUT,
    REN__NODE_ADD,
    REN__NODE_CONCAT,
    REN__NODE_FLATTEN,
    REN__NODE_CROSS_ENTROPY,
    REN__NODE_MSE,
    REN__NODE_HUBER,
    REN__NODE_KINDS
} ren__node_kind;

/* One operation and the one tensor that it makes: a tensor's index is its node's. */
typedef struct ren__node {
    ren__node_kind kind;
    char name[REN__NAME_BYTES];
    ren__tensor_desc out; /* with the model's full batch in dims[0] */
    uint32_t inputs[REN__NODE_INPUTS];
    uint32_t input_count;
    uint32_t params[REN__NODE_PARAMS]; /* index or REN__NO_PARAM */
    uint32_t units;                    /* linear, convolution: output features */
    uint32_t kernel[2], stride[2], padding[2], dilation[2], groups;
    uint32_t disable_bias;
    ren__activation activation;
    float alpha; /* slope, probability, delta, label smoothing, momentum */
    float eps;
    uint32_t layer;   /* dropout: distinguishes the masks of two layers */
    uint32_t is_loss; /* one f32: of a loss family, or a sum of two losses */
} ren__node;

typedef enum ren__param_init {
    REN__INIT_UNIFORM = 0, /* in +-bound */
    REN__INIT_ZERO,
    REN__INIT_ONE
} ren__param_init;

typedef struct ren__param_spec {
    const char *suffix; /* ".weight"; static */
    uint32_t slot;      /* index in node.params */
    uint32_t rank;
    int64_t dims[REN_MAX_RANK]; /* boundary layout */
    ren__param_init init;
    float bound;
    uint32_t is_statistic; /* 1 = not trained: running mean and variance */
    uint32_t is_conv;      /* 1 = the device may keep it as OHWI */
} ren__param_spec;

/* ------------------------------------------------------------------ emission */

/* What is fused with a node. One that stands alone is head and tail of its own group. */
typedef struct ren__fused {
    uint32_t head;
    uint32_t tail;
    /* Of a head; REN__NO_NODE = none. */
    uint32_t act;         /* the activation at its end */
    uint32_t other;       /* what is added to a batch norm's output */
    uint32_t bias_by_act; /* linear, convolution: 1 = the gate of the activation behind it, in the
                             group or not, gives the bias gradient */
    uint32_t fold;        /* linear, convolution: the batch norm that is in its weights already */
} ren__fused;

typedef struct ren__emitter {
    ren__task_graph *graph;
    ren__node *const *nodes;
    uint32_t node_count;
    int64_t batch;
    uint32_t training;
    ren_dtype precision;                /* of tensors that are f32 in the model */
    uint32_t dynamic_scale;             /* losses scale their gradients by the state's */
    uint32_t allow_tf32;                /* of products and convolutions */
    uint32_t fusions;                   /* bits of ren__fusion */
    const ren__fused *fused;            /* by node */
    uint32_t (*folded)[2];              /* by node, of a folded batch norm: weights, bias */
    const char *segment;                /* of the tasks emitted now */
    uint32_t *values;                   /* by node: the value of its output; an input's as given */
    uint32_t *casts;                    /* by node: the same in the other dtype, or REN__NO_VALUE */
    uint32_t *grads;                    /* by node: the gradient so far, or REN__NO_VALUE */
    uint32_t *more;                     /* by node: to be added to it by its reader; likewise */
    const uint8_t *wants_grad;          /* by node */
    uint32_t (*saved)[REN__NODE_SAVED]; /* by node */
    const uint32_t *param_values;       /* by parameter */
    const uint32_t *param_casts;        /* by parameter: in `precision`; the values where f32 */
    const uint32_t *param_grads;        /* by parameter; REN__NO_VALUE = keep it as it is */
    const ren__tensor_desc *param_descs;
    uint32_t control; /* value of ren__control, or REN__NO_VALUE in inference */
    uint32_t state;   /* value of ren__state, likewise */
} ren__emitter;

/* The output of node `index` as layers see it, with the emitter's batch. Losses keep their single
 * element. And as losses see it, in f32. */
ren__tensor_desc ren__emit_desc(const ren__emitter *e, uint32_t index);
ren__tensor_desc ren__emit_full_desc(const ren__emitter *e, uint32_t index);

/* The value that goes with each; emits a cast when the tensor is asked for in its other dtype for
 * the first time. */
uint32_t ren__emit_value(ren__emitter *e, uint32_t index);
uint32_t ren__emit_full_value(ren__emitter *e, uint32_t index);

/* A task of node n; operands are added by the calls below, then it goes to ren__emit_task. */
ren__task ren__emit_op(const ren__emitter *e, const ren__node *n, ren__op_kind kind,
                       ren_stream stream, uint64_t cost);
void ren__emit_read(ren__task *t, uint32_t operand, uint32_t value, const ren__tensor_desc *desc);
void ren__emit_write(ren__task *t, uint32_t operand, uint32_t value, const ren__tensor_desc *desc);
void ren__emit_read_param(const ren__emitter *e, ren__task *t, uint32_t operand, uint32_t param);
/* The same in the emitter's precision. */
void ren__emit_read_weight(const ren__emitter *e, ren__task *t, uint32_t operand, uint32_t param);
uint32_t ren__emit_task(ren__emitter *e, const ren__task *t);

/* A new LOCAL value; for a node's output it also becomes the tensor's value. */
uint32_t ren__emit_local(ren__emitter *e, const ren__node *n, uint64_t bytes);
uint32_t ren__emit_output(ren__emitter *e, uint32_t index);

/* Node `index`'s tensor has one more gradient contribution, complete in `value`. Nothing happens
 * when the tensor needs none: callers ask wants_grad first to save the work. */
void ren__emit_grad(ren__emitter *e, const ren__node *n, uint32_t index, uint32_t value);
/* The same for a contribution of a loss, which may be in f32 where the tensor is not. */
void ren__emit_loss_grad(ren__emitter *e, const ren__node *n, uint32_t index, uint32_t value,
                         const ren__tensor_desc *value_desc);

/* A loss's input, in the dtype that the device takes: as it is stored, or in f32. */
uint32_t ren__emit_loss_input(ren__emitter *e, uint32_t index, ren__tensor_desc *out_desc);

/* activation.c: from the gradient `dy` of activation node `act` to the one of its input, on COMP_3;
 * with it the bias gradient of the layer before, where that was decided. */
uint32_t ren__emit_gate(ren__emitter *e, uint32_t act, uint32_t dy);

/* The parameter of n has a gradient to be computed. */
uint32_t ren__emit_trains(const ren__emitter *e, uint32_t param);

/* One value into another dtype, on COMP_3. */
void ren__emit_cast(ren__emitter *e, const ren__node *n, uint32_t from,
                    const ren__tensor_desc *from_desc, uint32_t to,
                    const ren__tensor_desc *to_desc);

/* Convolution and pooling: copy the window of n into the task's op. */
void ren__emit_window(ren__task *t, const ren__node *n);

/* affine.c: what linear and convolution have in common, with the kinds of operation that differ. */
typedef struct ren__affine_kinds {
    ren__op_kind forward, backward_weight, backward_data;
    uint32_t has_window;
} ren__affine_kinds;
void ren__affine_forward(ren__emitter *e, uint32_t index, const ren__affine_kinds *kinds,
                         uint64_t cost);
void ren__affine_backward(ren__emitter *e, uint32_t index, const ren__affine_kinds *kinds,
                          uint64_t cost);

/* The control block as an operand's desc: bytes. */
ren__tensor_desc ren__emit_bytes_desc(uint64_t bytes);
ren__tensor_desc ren__emit_vector_desc(uint64_t elements);

/* ------------------------------------------------------------------ families */

typedef struct ren__shape_in {
    const char *name;
    ren__tensor_desc desc;
    uint32_t is_loss;
} ren__shape_in;

typedef struct ren__shape_error {
    char text[224];
} ren__shape_error;

typedef struct ren__op_family {
    const char *name;
    /* Check the node's inputs and options and give the output. REN_ERR_SHAPE or
     * REN_ERR_INVALID_ARGUMENT with a text that names tensors and shapes. */
    ren_status (*shape)(const ren__node *n, const ren__shape_in *in, ren__tensor_desc *out,
                        ren__shape_error *err);
    /* How many parameters, at most REN__NODE_PARAMS; NULL = none. Shapes have been checked. */
    uint32_t (*params)(const ren__node *n, const ren__shape_in *in, ren__param_spec *out);
    void (*forward)(ren__emitter *e, uint32_t index);
    /* Runs when the node's output has its gradient in e->grads (losses: their own). */
    void (*backward)(ren__emitter *e, uint32_t index);
    uint32_t is_loss;
} ren__op_family;

const ren__op_family *ren__op_family_of(ren__node_kind kind);

/* For shape rules. */
ren_status ren__shape_fail(ren__shape_error *err, ren_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void ren__shape_text(const ren__tensor_desc *desc, char out[80]); /* "f32 [32, 8, 8, 1]" */
/* f32, of this rank, no loss. */
ren_status ren__shape_expect(const ren__node *n, const ren__shape_in *in, uint32_t rank,
                             ren__shape_error *err);
/* Every dimension 1..INT32_MAX, and the bytes below 2^40. */
ren_status ren__shape_check_size(const char *name, const ren__tensor_desc *desc,
                                 ren__shape_error *err);

extern const ren__op_family ren__family_linear, ren__family_conv2d, ren__family_batch_norm,
    ren__family_max_pool, ren__family_avg_pool, ren__family_global_avg_pool, ren__family_activation,
    ren__family_dropout, ren__family_add, ren__family_concat, ren__family_flatten,
    ren__family_cross_entropy, ren__family_mse, ren__family_huber;

#endif
