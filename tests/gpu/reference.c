/* SPDX-License-Identifier: MIT */
/* tests/gpu/reference.c - every operation computed the plain way in float64; see reference.h. */
#include "reference.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ products */

void ref_linear(const float *x, const float *w, const float *b, double *y, int64_t n, int64_t in,
                int64_t out)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = b ? (double)b[o] : 0.0;
            for (int64_t i = 0; i < in; i++) {
                sum += (double)x[r * in + i] * (double)w[o * in + i];
            }
            y[r * out + o] = sum;
        }
    }
}

void ref_linear_data(const float *dy, const float *w, double *dx, int64_t n, int64_t in,
                     int64_t out)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t i = 0; i < in; i++) {
            double sum = 0.0;
            for (int64_t o = 0; o < out; o++) {
                sum += (double)dy[r * out + o] * (double)w[o * in + i];
            }
            dx[r * in + i] = sum;
        }
    }
}

void ref_linear_weight(const float *dy, const float *x, double *dw, int64_t n, int64_t in,
                       int64_t out)
{
    for (int64_t o = 0; o < out; o++) {
        for (int64_t i = 0; i < in; i++) {
            double sum = 0.0;
            for (int64_t r = 0; r < n; r++) {
                sum += (double)dy[r * out + o] * (double)x[r * in + i];
            }
            dw[o * in + i] = sum;
        }
    }
}

void ref_column_sum(const float *x, double *sums, int64_t rows, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++) {
        sums[c] = 0.0;
        for (int64_t r = 0; r < rows; r++) {
            sums[c] += (double)x[r * channels + c];
        }
    }
}

/* ------------------------------------------------------------------ windows */

/* Calls fn for every pair of input and output pixel that a kernel position joins. */
typedef void (*pixel_fn)(void *user, const ref_window *s, int64_t n, int64_t h, int64_t w,
                         int64_t ho, int64_t wo, int64_t kh, int64_t kw);

static void each_pixel(const ref_window *s, pixel_fn fn, void *user)
{
    for (int64_t n = 0; n < s->n; n++) {
        for (int64_t ho = 0; ho < s->ho; ho++) {
            for (int64_t wo = 0; wo < s->wo; wo++) {
                for (int64_t k = 0; k < s->kh * s->kw; k++) {
                    int64_t kh = k / s->kw;
                    int64_t kw = k % s->kw;
                    int64_t h = ho * s->sh - s->ph + kh * s->dh;
                    int64_t w = wo * s->sw - s->pw + kw * s->dw;
                    if (h >= 0 && h < s->h && w >= 0 && w < s->w) {
                        fn(user, s, n, h, w, ho, wo, kh, kw);
                    }
                }
            }
        }
    }
}

typedef struct conv_data {
    const float *a, *b;
    double *out;
    int which; /* 0 forward, 1 data, 2 weight */
} conv_data;

static void conv_pixel(void *user, const ref_window *s, int64_t n, int64_t h, int64_t w, int64_t ho,
                       int64_t wo, int64_t kh, int64_t kw)
{
    conv_data *d = user;
    int64_t inner = s->c / s->groups;
    int64_t outer = s->o / s->groups;
    for (int64_t o = 0; o < s->o; o++) {
        for (int64_t i = 0; i < inner; i++) {
            int64_t x = ((n * s->h + h) * s->w + w) * s->c + o / outer * inner + i;
            int64_t y = ((n * s->ho + ho) * s->wo + wo) * s->o + o;
            int64_t k = ((o * inner + i) * s->kh + kh) * s->kw + kw;
            if (d->which == 0) {
                d->out[y] += (double)d->a[x] * (double)d->b[k];
            } else if (d->which == 1) {
                d->out[x] += (double)d->a[y] * (double)d->b[k];
            } else {
                d->out[k] += (double)d->a[y] * (double)d->b[x];
            }
        }
    }
}

void ref_conv(const ref_window *s, const float *x, const float *w, const float *b, double *y)
{
    conv_data d = {x, w, y, 0};
    for (int64_t i = 0; i < s->n * s->ho * s->wo * s->o; i++) {
        y[i] = b ? (double)b[i % s->o] : 0.0;
    }
    each_pixel(s, conv_pixel, &d);
}

void ref_conv_data(const ref_window *s, const float *dy, const float *w, double *dx)
{
    conv_data d = {dy, w, dx, 1};
    memset(dx, 0, (size_t)(s->n * s->h * s->w * s->c) * sizeof *dx);
    each_pixel(s, conv_pixel, &d);
}

void ref_conv_weight(const ref_window *s, const float *dy, const float *x, double *dw)
{
    conv_data d = {dy, x, dw, 2};
    memset(dw, 0, (size_t)(s->o * (s->c / s->groups) * s->kh * s->kw) * sizeof *dw);
    each_pixel(s, conv_pixel, &d);
}

#define MOST_PLACES 512 /* of a window */

/* The pixels of one window: calls visit with the index of the input element. */
static int64_t window(const ref_window *s, int64_t n, int64_t ho, int64_t wo, int64_t c,
                      int64_t out[MOST_PLACES])
{
    int64_t count = 0;
    for (int64_t kh = 0; kh < s->kh; kh++) {
        for (int64_t kw = 0; kw < s->kw; kw++) {
            int64_t h = ho * s->sh - s->ph + kh;
            int64_t w = wo * s->sw - s->pw + kw;
            if (h >= 0 && h < s->h && w >= 0 && w < s->w && count < MOST_PLACES) {
                out[count++] = ((n * s->h + h) * s->w + w) * s->c + c;
            }
        }
    }
    return count;
}

static void pool(const ref_window *s, const float *x, const float *dy, double *out, int maximum)
{
    int64_t at[MOST_PLACES];
    if (dy) {
        memset(out, 0, (size_t)(s->n * s->h * s->w * s->c) * sizeof *out);
    }
    for (int64_t y = 0; y < s->n * s->ho * s->wo * s->c; y++) {
        int64_t c = y % s->c;
        int64_t wo = y / s->c % s->wo;
        int64_t ho = y / s->c / s->wo % s->ho;
        int64_t n = y / s->c / s->wo / s->ho;
        int64_t count = window(s, n, ho, wo, c, at);
        int64_t best = at[0];
        double sum = 0.0;
        for (int64_t k = 0; k < count; k++) {
            if (x && x[at[k]] > x[best]) {
                best = at[k];
            }
            sum += x ? (double)x[at[k]] : 0.0;
        }
        if (!dy) {
            out[y] = maximum ? (double)x[best] : sum / (double)count;
        } else if (maximum) {
            out[best] += (double)dy[y];
        } else {
            for (int64_t k = 0; k < count; k++) {
                out[at[k]] += (double)dy[y] / (double)count;
            }
        }
    }
}

void ref_max_pool(const ref_window *s, const float *x, double *y)
{
    pool(s, x, NULL, y, 1);
}

void ref_max_pool_backward(const ref_window *s, const float *dy, const float *x, double *dx)
{
    pool(s, x, dy, dx, 1);
}

void ref_avg_pool(const ref_window *s, const float *x, double *y)
{
    pool(s, x, NULL, y, 0);
}

void ref_avg_pool_backward(const ref_window *s, const float *dy, double *dx)
{
    pool(s, NULL, dy, dx, 0);
}

/* ------------------------------------------------------------------ batch norm */

void ref_norm_train(const ref_norm *p)
{
    for (int64_t c = 0; c < p->channels; c++) {
        double mean = 0.0;
        double squares = 0.0;
        double rows = (double)p->rows;
        for (int64_t r = 0; r < p->rows; r++) {
            mean += (double)p->x[r * p->channels + c] / rows;
        }
        for (int64_t r = 0; r < p->rows; r++) {
            double d = (double)p->x[r * p->channels + c] - mean;
            squares += d * d;
        }
        p->mean[c] = mean;
        p->rstd[c] = 1.0 / sqrt(squares / rows + p->eps);
        p->new_mean[c] = (1.0 - p->momentum) * (double)p->running_mean[c] + p->momentum * mean;
        p->new_var[c] = (1.0 - p->momentum) * (double)p->running_var[c] +
                        p->momentum * squares / (rows > 1.0 ? rows - 1.0 : 1.0);
        for (int64_t r = 0; r < p->rows; r++) {
            double normal = ((double)p->x[r * p->channels + c] - mean) * p->rstd[c];
            p->y[r * p->channels + c] = normal * (double)p->weight[c] + (double)p->bias[c];
        }
    }
}

void ref_norm_eval(const ref_norm *p)
{
    for (int64_t i = 0; i < p->rows * p->channels; i++) {
        int64_t c = i % p->channels;
        double rstd = 1.0 / sqrt((double)p->running_var[c] + p->eps);
        p->y[i] = ((double)p->x[i] - (double)p->running_mean[c]) * rstd * (double)p->weight[c] +
                  (double)p->bias[c];
    }
}

void ref_norm_backward(const ref_norm *p, const float *dy, const float *mean, const float *rstd,
                       double *dx, double *dweight, double *dbias)
{
    double rows = (double)p->rows;
    for (int64_t c = 0; c < p->channels; c++) {
        dweight[c] = 0.0;
        dbias[c] = 0.0;
        for (int64_t r = 0; r < p->rows; r++) {
            int64_t i = r * p->channels + c;
            dbias[c] += (double)dy[i];
            dweight[c] += (double)dy[i] * ((double)p->x[i] - (double)mean[c]) * (double)rstd[c];
        }
        for (int64_t r = 0; r < p->rows; r++) {
            int64_t i = r * p->channels + c;
            double normal = ((double)p->x[i] - (double)mean[c]) * (double)rstd[c];
            dx[i] = (double)p->weight[c] * (double)rstd[c] *
                    ((double)dy[i] - dbias[c] / rows - normal * dweight[c] / rows);
        }
    }
}

/* ------------------------------------------------------------------ activations */

double ref_act(ren__activation activation, double alpha, double x)
{
    switch (activation) {
    case REN__ACT_RELU:
        return x > 0.0 ? x : 0.0;
    case REN__ACT_LEAKY_RELU:
        return x > 0.0 ? x : alpha * x;
    case REN__ACT_TANH:
        return tanh(x);
    case REN__ACT_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case REN__ACT_SILU:
        return x / (1.0 + exp(-x));
    case REN__ACT_GELU_ERF:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    default:
        return 0.5 * x *
               (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
}

/* By central difference, except where there is a kink. */
double ref_act_slope(ren__activation activation, double alpha, double x)
{
    const double h = 1e-5;
    if (activation == REN__ACT_RELU) {
        return x > 0.0 ? 1.0 : 0.0;
    }
    if (activation == REN__ACT_LEAKY_RELU) {
        return x > 0.0 ? 1.0 : alpha;
    }
    return (ref_act(activation, alpha, x + h) - ref_act(activation, alpha, x - h)) / (2.0 * h);
}

/* ------------------------------------------------------------------ losses */

double ref_xent(const float *logits, const int32_t *labels, double smoothing, double *prob,
                int64_t rows, int64_t classes)
{
    double loss = 0.0;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * classes;
        double most = (double)x[0];
        double sum = 0.0;
        for (int64_t j = 0; j < classes; j++) {
            most = (double)x[j] > most ? (double)x[j] : most;
        }
        for (int64_t j = 0; j < classes; j++) {
            sum += exp((double)x[j] - most);
        }
        for (int64_t j = 0; j < classes; j++) {
            double log_p = (double)x[j] - most - log(sum);
            prob[r * classes + j] = exp(log_p);
            if (labels[r] >= 0 && labels[r] < classes) {
                loss -= smoothing / (double)classes * log_p;
                loss -= j == labels[r] ? (1.0 - smoothing) * log_p : 0.0;
            }
        }
    }
    return loss / (double)rows;
}

void ref_xent_backward(const float *prob, const int32_t *labels, double smoothing, double *dx,
                       int64_t rows, int64_t classes)
{
    for (int64_t i = 0; i < rows * classes; i++) {
        int32_t label = labels[i / classes];
        double target = smoothing / (double)classes;
        target += i % classes == label ? 1.0 - smoothing : 0.0;
        dx[i] = label >= 0 && label < classes ? ((double)prob[i] - target) / (double)rows : 0.0;
    }
}

double ref_distance(int huber, double delta, const float *x, const float *t, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)x[i] - (double)t[i]);
        if (!huber) {
            sum += d * d;
        } else {
            sum += d <= delta ? 0.5 * d * d : delta * (d - 0.5 * delta);
        }
    }
    return sum / (double)n;
}

void ref_distance_backward(int huber, double delta, const float *x, const float *t, double *dx,
                           int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)t[i];
        if (!huber) {
            dx[i] = 2.0 * d / (double)n;
        } else {
            dx[i] = (d > delta ? delta : d < -delta ? -delta : d) / (double)n;
        }
    }
}

/* ------------------------------------------------------------------ optimizers */

static double norm_of(const double *v, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += v[i] * v[i];
    }
    return sqrt(sum);
}

static double gradient(const ren__control *c, double grad_norm, float g)
{
    double clip = (double)c->clip_norm;
    double factor = 1.0 / (double)c->grad_divisor;
    if (clip > 0.0 && grad_norm > clip) {
        factor *= clip / (grad_norm + 1e-6);
    }
    return (double)g * factor;
}

void ref_update(ren__op_kind kind, const ren__control *c, double grad_norm, uint64_t t,
                const float *g, double *p, double *first, double *second, int64_t n)
{
    double lr = (double)c->learning_rate;
    double wd = (double)c->weight_decay;
    double m = (double)c->momentum;
    double b1 = (double)c->beta1;
    double b2 = (double)c->beta2;
    double rate = 1.0;
    if (kind == REN__OP_LARS) {
        double of_p = norm_of(p, n);
        double of_g = 0.0;
        for (int64_t i = 0; i < n; i++) {
            double d = gradient(c, grad_norm, g[i]);
            of_g += d * d;
        }
        of_g = sqrt(of_g);
        if (of_p > 0.0 && of_g > 0.0) {
            rate = (double)c->lars_eta * of_p / (of_g + wd * of_p + (double)c->eps);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        double d = gradient(c, grad_norm, g[i]);
        switch (kind) {
        case REN__OP_SGD:
            d += wd * p[i];
            first[i] = m * first[i] + d;
            p[i] -= lr * (c->nesterov ? d + m * first[i] : first[i]);
            break;
        case REN__OP_LARS:
            first[i] = m * first[i] + lr * rate * (d + wd * p[i]);
            p[i] -= first[i];
            break;
        default:
            if (kind == REN__OP_ADAMW) {
                p[i] -= lr * wd * p[i];
            } else {
                d += wd * p[i];
            }
            first[i] = b1 * first[i] + (1.0 - b1) * d;
            second[i] = b2 * second[i] + (1.0 - b2) * d * d;
            p[i] -= lr * (first[i] / (1.0 - pow(b1, (double)t))) /
                    (sqrt(second[i] / (1.0 - pow(b2, (double)t))) + (double)c->eps);
            break;
        }
    }
}
