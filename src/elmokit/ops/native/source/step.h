/* One step of one LSTM layer over the sentences that have a token there.

   B sentences in order of falling length, T tokens, D directions, H cells, P outputs. At each step the sentences still
   running are the first rows, and only they are computed. A team of threads shares a direction: each member has panels
   of cells, whose gates and states nobody else touches, and panels of outputs of the projection. */

#ifndef ELMOKIT_STEP_H
#define ELMOKIT_STEP_H

#include "matrix.h"
#include "team.h"

#define BLOCK_TOKENS 256 /* tokens whose input products are held at once, at most */
#define SUM_ROWS 48      /* rows whose sums with one panel are held at once, in the level 1 cache */

struct layer {
    struct matrix input, recurrent, projection; /* projection.panels is NULL where there is none */
    const float *bias;                          /* [4H] */
    float forget_bias, cell_clip, projection_clip; /* a clip of infinity clips nothing */
};

struct bilstm {
    int64_t batch, time, directions, layers, cells, outputs;
    int64_t int8, skip_connections, threads, apart;
    const struct layer *stack;        /* [D][L] */
    const float *x;                   /* [B][T][P_in], its strides below */
    int64_t x_row, x_token;
    const int64_t *order, *lengths;   /* [B]: place in x of each sentence, and its length, which falls */
    const float *h, *c;               /* [D][L][B][P], [D][L][B][H] */
    float *last_h, *last_c;           /* the same */
    float *const *layer_outputs;      /* L times [B][T][D·P] */
};

/* What one team works in. */
struct buffers {
    struct team team;
    int64_t block;        /* tokens whose input products there is room for */
    int64_t *running;     /* [steps]: sentences with a token at each step */
    float *inputs;        /* [block][P_in] */
    float *bias;          /* [panels][WIDTH] */
    float *gates;         /* [panels][block][WIDTH] */
    float *c;             /* [panels][B][LANES] */
    float *hidden;        /* [B][padded H], before the projection */
    float *h;             /* [B][padded P] */
    int32_t *sums;        /* [threads][SUM_ROWS][WIDTH] */
    uint8_t *small_inputs, *small_hidden, *small_h;    /* the same as int8 */
    float *input_scales, *hidden_scales, *h_scales;
};

/* One member of a team at work on one layer. */
struct place {
    const struct bilstm *job;
    const struct layer *layer;
    struct buffers *buffers;
    int64_t direction, number;
    int rank, size;
    int64_t first_panel, last_panel; /* this member's cells */
    int32_t *sums;
};

static const float *layer_input(const struct place *p, int64_t row, int64_t token) {
    const struct bilstm *job = p->job;
    int64_t sentence = job->order[row];
    if (!p->number) return job->x + sentence * job->x_row + token * job->x_token;
    int64_t wide = job->directions * job->outputs;
    return job->layer_outputs[p->number - 1] + (sentence * job->time + token) * wide + p->direction * job->outputs;
}

static int64_t token_of(const struct place *p, int64_t row, int64_t step) {
    return p->direction ? p->job->lengths[row] - 1 - step : step;
}

/* The inputs of rows from `first` to `last` at steps start to stop, close together. */
static void take_inputs(const struct place *p, int64_t start, int64_t stop, int64_t first, int64_t last) {
    struct buffers *buffers = p->buffers;
    int64_t count = p->layer->input.inputs, token = 0;
    for (int64_t step = start; step < stop; step++)
        for (int64_t row = first; row < smaller(last, buffers->running[step]); row++, token++) {
            if (token % p->size != p->rank) continue;
            const float *from = layer_input(p, row, token_of(p, row, step));
            if (p->job->int8)
                buffers->input_scales[token] = quantise(from, count, buffers->small_inputs + token * padded(count));
            else
                memcpy(buffers->inputs + token * count, from, count * sizeof(float));
        }
}

/* Vector v of a row's 8-bit sums with a panel, in float32, on top of `start`. */
INLINE floats scaled(const int32_t *sums, const float *scales, float row_scale, int v, floats start) {
    floats unit = *(const floats *)(scales + v * LANES) * all(row_scale);
    return times_plus(__builtin_convertvector(*(const ints *)(sums + v * LANES), floats), unit, start);
}

/* to [n][WIDTH] = bias + sums in float32; `to` may be where the sums are. */
static void add_scaled(
    float *to, const float *bias, int64_t n, const int32_t *sums, const float *scales, const float *row_scales
) {
    for (int64_t row = 0; row < n; row++)
        for (int v = 0; v < GATES; v++)
            *(floats *)(to + row * WIDTH + v * LANES) =
                scaled(sums + row * WIDTH, scales, row_scales[row], v, *(const floats *)(bias + v * LANES));
}

/* The input products and biases of `tokens` tokens, for this member's cells. */
static void input_products(const struct place *p, int64_t tokens) {
    struct buffers *buffers = p->buffers;
    const struct matrix *m = &p->layer->input;
    for (int64_t panel = p->first_panel; panel < p->last_panel; panel++) {
        float *gates = buffers->gates + panel * buffers->block * WIDTH, *bias = buffers->bias + panel * WIDTH;
        int64_t next = smaller(panel + 1, p->last_panel - 1);
        if (p->job->int8) {
            for (int64_t first = 0; first < tokens; first += SUM_ROWS) {
                int64_t n = smaller(SUM_ROWS, tokens - first);
                const uint8_t *rows = buffers->small_inputs + first * padded(m->inputs);
                int8_product(m, n, rows, padded(m->inputs), panel, panel_at(m, first ? panel : next), p->sums);
                const float *scales = m->scales + panel * WIDTH;
                add_scaled(gates + first * WIDTH, bias, n, p->sums, scales, buffers->input_scales + first);
            }
        } else {
            for (int64_t token = 0; token < tokens; token++) memcpy(gates + token * WIDTH, bias, WIDTH * sizeof(float));
            float_product(m, tokens, buffers->inputs, m->inputs, panel, panel_at(m, next), gates);
        }
    }
}

/* n rows' new cells and hidden values from their gates, to which 8-bit sums are still to be added. */
INLINE void update_cells(
    const struct place *p, const int int8, int64_t panel, int64_t first, int64_t n, const float *gates
) {
    struct buffers *buffers = p->buffers;
    float *c = buffers->c + (panel * p->job->batch + first) * LANES;
    float *hidden = buffers->hidden + first * padded(p->job->cells) + panel * LANES;
    const float *scales = p->layer->recurrent.scales + panel * WIDTH, bound = p->layer->cell_clip;
    for (int64_t row = 0; row < n; row++, gates += WIDTH, c += LANES, hidden += padded(p->job->cells)) {
        floats z[GATES], up, down;
        for (int v = 0; v < GATES; v++) {
            z[v] = *(const floats *)(gates + v * LANES);
            if (int8) z[v] = scaled(p->sums + row * WIDTH, scales, buffers->h_scales[first + row], v, z[v]);
        }
        tanh_fraction(z[2], &up, &down);
        floats fresh = up / (down * one_over_sigmoid(z[0]));
        floats cell = clip(*(floats *)c / one_over_sigmoid(z[1]) + fresh, bound);
        *(floats *)c = cell;
        tanh_fraction(cell, &up, &down);
        store(hidden, up / (down * one_over_sigmoid(z[3])));
    }
}

/* The recurrent products and the cells of `count` rows from `start`, whose input products are at `token`. */
static void step_cells(const struct place *p, int64_t step, int64_t start, int64_t count, int64_t token) {
    struct buffers *buffers = p->buffers;
    const struct matrix *m = &p->layer->recurrent;
    int64_t wide = padded(m->inputs);
    for (int64_t i = p->first_panel; i < p->last_panel; i++) {
        /* There and back again: what is still in the cache of the last step comes first. */
        int back = step & 1;
        int64_t panel = back ? p->first_panel + p->last_panel - 1 - i : i;
        int64_t next = back ? panel - (panel > p->first_panel) : smaller(panel + 1, p->last_panel - 1);
        float *gates = buffers->gates + (panel * buffers->block + token) * WIDTH;
        for (int64_t first = start; first < start + count; first += SUM_ROWS, gates += SUM_ROWS * WIDTH) {
            int64_t n = smaller(SUM_ROWS, start + count - first), coming = first == start ? next : panel;
            const char *after = panel_at(m, coming);
            if (p->job->int8) {
                int8_product(m, n, buffers->small_h + first * wide, wide, panel, after, p->sums);
                update_cells(p, 1, panel, first, n, gates);
            } else {
                float_product(m, n, buffers->h + first * wide, wide, panel, after, gates);
                update_cells(p, 0, panel, first, n, gates);
            }
        }
    }
}

/* A part of a row's new output: to the state, and to the layer's outputs with its input added where that is wanted. */
INLINE void put_output(
    const struct place *p, int64_t row, int64_t token, int64_t first, int64_t count, const float *from
) {
    const struct bilstm *job = p->job;
    int64_t place = job->order[row] * job->time + token;
    float *out = job->layer_outputs[p->number] + (place * job->directions + p->direction) * job->outputs + first;
    memcpy(p->buffers->h + row * padded(job->outputs) + first, from, count * sizeof(float));
    if (p->number && job->skip_connections) {
        const float *input = layer_input(p, row, token) + first;
        for (int64_t i = 0; i < count; i++) out[i] = from[i] + input[i];
    } else {
        memcpy(out, from, count * sizeof(float));
    }
}

/* to [n][WIDTH] = bias + the sums of both parts of each row, in float32; `to` may be where the sums are. */
static void add_both(
    float *to, const float *bias, int64_t n, const int32_t *sums, const float *scales, const float *row_scales
) {
    for (int64_t row = 0; row < n; row++, sums += 2 * WIDTH, row_scales += 2)
        for (int v = 0; v < GATES; v++) {
            floats rest = scaled(sums + WIDTH, scales, row_scales[1], v, *(const floats *)(bias + v * LANES));
            *(floats *)(to + row * WIDTH + v * LANES) = scaled(sums, scales, row_scales[0], v, rest);
        }
}

static void project(const struct place *p, int64_t step, int64_t n) {
    struct buffers *buffers = p->buffers;
    const struct matrix *m = &p->layer->projection;
    float *values = (float *)p->sums;
    int64_t start, stop, wide = padded(m->inputs);
    share(panel_count(m), p->rank, p->size, &start, &stop);
    int64_t most = p->job->int8 ? SUM_ROWS / 2 : SUM_ROWS;
    static const float none[WIDTH] __attribute__((aligned(64)));
    for (int64_t panel = start; panel < stop; panel++)
        for (int64_t first = 0; first < n; first += most) {
            int64_t rows = smaller(most, n - first), next = first ? panel : smaller(panel + 1, stop - 1);
            const char *after = panel_at(m, next);
            int64_t output = panel * WIDTH, count = smaller(WIDTH, p->job->outputs - output);
            if (p->job->int8) {
                int8_product(m, 2 * rows, buffers->small_hidden + 2 * first * wide, wide, panel, after, p->sums);
                add_both(values, none, rows, p->sums, m->scales + output, buffers->hidden_scales + 2 * first);
            } else {
                memset(values, 0, rows * WIDTH * sizeof(float));
                float_product(m, rows, buffers->hidden + first * wide, wide, panel, after, values);
            }
            for (int64_t row = first; row < first + rows; row++, values += WIDTH) {
                for (int v = 0; v < WIDTH; v += LANES)
                    *(floats *)(values + v) = clip(*(floats *)(values + v), p->layer->projection_clip);
                put_output(p, row, token_of(p, row, step), output, count, values);
            }
            values = (float *)p->sums;
        }
}

static void quantise_rows(
    const struct place *p, int64_t n, const float *from, int64_t count, uint8_t *to, float *scales
) {
    for (int64_t row = p->rank; row < n; row += p->size)
        scales[row] = quantise(from + row * padded(count), count, to + row * padded(count));
}

/* Hidden values in two parts: a row's largest is some 25 times its typical value, so that one part alone would leave
   most of it a few units: the cosine to float32 falls to 0.997. */
static void quantise_hidden(const struct place *p, int64_t n) {
    int64_t count = p->job->cells, wide = padded(count);
    for (int64_t row = p->rank; row < n; row += p->size) {
        float *from = p->buffers->hidden + row * wide;
        quantise_twice(from, count, p->buffers->small_hidden + 2 * row * wide, wide, p->buffers->hidden_scales + 2 * row, from);
    }
}

/* The outputs of a step from its hidden values. */
static void finish_step(const struct place *p, int64_t step) {
    struct buffers *buffers = p->buffers;
    const struct bilstm *job = p->job;
    int64_t n = buffers->running[step];
    if (p->layer->projection.panels) {
        if (job->int8) {
            quantise_hidden(p, n);
            meet(&buffers->team, p->size);
        }
        project(p, step, n);
    } else {
        for (int64_t row = p->rank; row < n; row += p->size)
            put_output(p, row, token_of(p, row, step), 0, job->outputs, buffers->hidden + row * padded(job->cells));
    }
    meet(&buffers->team, p->size);
    if (job->int8) {
        quantise_rows(p, n, buffers->h, job->outputs, buffers->small_h, buffers->h_scales);
        meet(&buffers->team, p->size);
    }
}

#endif
