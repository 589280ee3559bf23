/* SPDX-License-Identifier: MIT */
/* libren/train/fuse.c - see fuse.h.
 *
 * Two sweeps in model order. The first gives sums to batch norms, since a batch norm that takes a
 * sum is not folded. In the second, when a node's turn comes, the groups of its inputs are as they
 * will be but for this node itself: a norm has its sum, or is in its layer, before the ReLU behind
 * it is looked at.
 */
#include "fuse.h"

/* The head of the group that ends with `tail`, if that may be computed without keeping its tensor;
 * REN__NO_NODE if not. */
static uint32_t open_group(const ren__fuse *f, const ren__fused *out, uint32_t tail)
{
    return f->readers[tail] == 1 ? out[tail].head : REN__NO_NODE;
}

static void join(ren__fused *out, uint32_t head, uint32_t node)
{
    out[node].head = head;
    out[head].tail = node;
}

/* A batch norm, by itself so far, that can take the sum `add` of it and `other`. */
static uint32_t takes_sum(const ren__fuse *f, const ren__fused *out, uint32_t norm, uint32_t other)
{
    uint32_t is_free = f->nodes[norm]->kind == REN__NODE_BATCH_NORM && f->readers[norm] == 1 &&
                       out[norm].tail == norm;
    return is_free && (f->wants_grad[norm] || !f->wants_grad[other]);
}

static void decide_sum(const ren__fuse *f, ren__fused *out, uint32_t add)
{
    const uint32_t *inputs = f->nodes[add]->inputs;
    uint32_t later = inputs[1] > inputs[0] ? 1 : 0;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t norm = inputs[i == 0 ? later : 1 - later];
        uint32_t other = inputs[i == 0 ? 1 - later : later];
        if (f->fusions & REN__FUSE_NORM_ADD && takes_sum(f, out, norm, other)) {
            join(out, norm, add);
            out[norm].other = other;
            return;
        }
    }
}

/* The bit that lets the group of `head` end with this activation; 0 = none does. */
static uint32_t bit_for(const ren__fuse *f, const ren__fused *out, uint32_t head, uint32_t act)
{
    ren__activation activation = f->nodes[act]->activation;
    ren__node_kind kind = f->nodes[head]->kind;
    if (activation == REN__ACT_GELU_TANH && kind == REN__NODE_LINEAR && !f->training) {
        return REN__FUSE_GELU;
    }
    if (activation != REN__ACT_RELU) {
        return 0;
    }
    switch (kind) {
    case REN__NODE_LINEAR:
        return REN__FUSE_LINEAR_ACT;
    case REN__NODE_CONV2D:
        return REN__FUSE_CONV_ACT;
    case REN__NODE_BATCH_NORM:
        return out[head].other == REN__NO_NODE ? REN__FUSE_NORM_ACT : REN__FUSE_NORM_ADD;
    default:
        return 0;
    }
}

/* The activation is the only one to read the layer. */
static uint32_t sums_bias(const ren__fuse *f, const ren__node *layer)
{
    uint32_t is_linear = layer->kind == REN__NODE_LINEAR;
    if ((!is_linear && layer->kind != REN__NODE_CONV2D) || layer->params[1] == REN__NO_PARAM ||
        !(f->fusions & REN__FUSE_ACT_BIAS)) {
        return 0;
    }
    ren__tensor_desc y = layer->out;
    y.dims[0] = f->batch;
    return !is_linear || !(f->fusions & REN__FUSE_WEIGHT_BIAS) ||
           ren__tensor_elements(&y) >= REN__FUSE_LARGE;
}

static void decide_activation(const ren__fuse *f, ren__fused *out, uint32_t act)
{
    uint32_t head = open_group(f, out, f->nodes[act]->inputs[0]);
    if (head == REN__NO_NODE || out[head].act != REN__NO_NODE) {
        return;
    }
    out[head].bias_by_act = sums_bias(f, f->nodes[head]);
    if (f->fusions & bit_for(f, out, head, act)) {
        join(out, head, act);
        out[head].act = act;
    }
}

static void decide_folding(const ren__fuse *f, ren__fused *out, uint32_t norm)
{
    uint32_t head = open_group(f, out, f->nodes[norm]->inputs[0]);
    if (f->foldable[norm] && out[norm].tail == norm && head != REN__NO_NODE &&
        out[head].tail == head) {
        join(out, head, norm);
        out[head].fold = norm;
    }
}

static void count_readers(const ren__fuse *f)
{
    for (uint32_t i = 0; i <= f->target; i++) {
        f->readers[i] = i == f->target;
    }
    for (uint32_t i = 0; i <= f->target; i++) {
        const ren__node *n = f->nodes[i];
        for (uint32_t k = 0; f->needed[i] && k < n->input_count; k++) {
            f->readers[n->inputs[k]]++;
        }
    }
}

void ren__fuse_decide(const ren__fuse *f, ren__fused *out)
{
    count_readers(f);
    for (uint32_t i = 0; i <= f->target; i++) {
        out[i] = (ren__fused){i, i, REN__NO_NODE, REN__NO_NODE, 0, REN__NO_NODE};
        if (f->needed[i] && f->nodes[i]->kind == REN__NODE_ADD) {
            decide_sum(f, out, i);
        }
    }
    for (uint32_t i = 0; i <= f->target; i++) {
        if (f->needed[i] && f->nodes[i]->kind == REN__NODE_BATCH_NORM && !f->training) {
            decide_folding(f, out, i);
        } else if (f->needed[i] && f->nodes[i]->kind == REN__NODE_ACTIVATION) {
            decide_activation(f, out, i);
        }
    }
}
