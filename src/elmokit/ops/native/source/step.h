/* One step of one LSTM layer over the sentences that have a token at this step.

   B sentences sorted by falling length, T tokens, D directions, H cells, P outputs. At each step, only the sentences
   that have not ended are computed: they are the first rows. Several threads share a direction. Each thread has some
   panels of cells, whose gates and states no other thread uses, and some panels of the projection's outputs. */

#ifndef ELMOKIT_STEP_H
#define ELMOKIT_STEP_H

#include "matrix.h"
#include "threads.h"

#define BLOCK_TOKENS 256 /* the most tokens whose input products are in memory at once */
#define SUM_ROWS 48      /* rows whose sums with one panel are computed together: they fit into the level 1 cache */

struct layer {
    struct matrix input, recurrent, projection; /* projection.panels is NULL if there is none */
    const float *bias;                          /* [4H] */
    float forget_bias, cell_clip, projection_clip; /* a clip may be infinity */
};

struct bilstm {
    int64_t batch, time, directions, layers, cells, outputs;
    int64_t int8, skip_connections, threads, separate_directions; /* the last: whether each direction has own threads */
    const struct layer *stack;        /* [D][L] */
    const float *x;                   /* [B][T][P_in]; its strides are the next two fields */
    int64_t x_row, x_token;
    const int64_t *order, *lengths;   /* [B]: the index in x of each row, and its length; lengths fall */
    const float *h, *c;               /* [D][L][B][P], [D][L][B][H] */
    float *last_h, *last_c;           /* like h and c */
    float *const *layer_outputs;      /* L times [B][T][D·P] */
};

/* The memory of the threads that share a direction. */
struct buffers {
    struct barrier barrier;
    int64_t block;        /* the number of tokens whose input products fit */
    int64_t *running;     /* [steps]: the number of sentences with a token at each step */
    float *inputs;        /* [block][P_in] */
    float *bias;          /* [panels][WIDTH] */
    float *gates;         /* [panels][block][WIDTH] */
    float *c;             /* [panels][B][LANES] */
    float *hidden;        /* [B][padded H], before the projection */
    float *h;             /* [B][padded P] */
    int32_t *sums;        /* [threads][SUM_ROWS][WIDTH] */
    uint8_t *inputs_int8, *hidden_int8, *h_int8; /* inputs, hidden and h as int8 */
    float *input_scales, *hidden_scales, *h_scales;
};

/* One thread that computes a part of one layer. */
struct layer_worker {
    const struct bilstm *job;
    const struct layer *layer;
    struct buffers *buffers;
    int64_t direction, number; /* number: of the layer */
    int rank, size;
    int64_t first_panel, last_panel; /* this thread's cells */
    int32_t *sums;
};

static const float *layer_input(const struct layer_worker *me, int64_t row, int64_t token) {
    const struct bilstm *job = me->job;
    int64_t sentence = job->order[row];
    if (!me->number) return job->x + sentence * job->x_row + token * job->x_token;
    int64_t stride = job->directions * job->outputs;
    return job->layer_outputs[me->number - 1] + (sentence * job->time + token) * stride + me->direction * job->outputs;
}

static int64_t token_of(const struct layer_worker *me, int64_t row, int64_t step) {
    return me->direction ? me->job->lengths[row] - 1 - step : step;
}

/* Copies the inputs of the rows `first` to `last` at the steps start to stop to consecutive rows. */
static void gather_inputs(const struct layer_worker *me, int64_t start, int64_t stop, int64_t first, int64_t last) {
    struct buffers *buffers = me->buffers;
    int64_t count = me->layer->input.inputs, token = 0;
    for (int64_t step = start; step < stop; step++)
        for (int64_t row = first; row < min_int(last, buffers->running[step]); row++, token++) {
            if (token % me->size != me->rank) continue;
            const float *from = layer_input(me, row, token_of(me, row, step));
            if (me->job->int8)
                buffers->input_scales[token] = quantise(from, count, buffers->inputs_int8 + token * padded(count));
            else
                memcpy(buffers->inputs + token * count, from, count * sizeof(float));
        }
}

/* start + vector v of a row's int8 sums with a panel, in float32. */
INLINE floats scaled(const int32_t *sums, const float *scales, float row_scale, int v, floats start) {
    floats unit = *(const floats *)(scales + v * LANES) * all(row_scale);
    return times_plus(__builtin_convertvector(*(const ints *)(sums + v * LANES), floats), unit, start);
}

/* to [n][WIDTH] = bias + sums in float32; `to` and `sums` may be the same memory. */
static void add_scaled(
    float *to, const float *bias, int64_t n, const int32_t *sums, const float *scales, const float *row_scales
) {
    for (int64_t row = 0; row < n; row++)
        for (int v = 0; v < GATES; v++)
            *(floats *)(to + row * WIDTH + v * LANES) =
                scaled(sums + row * WIDTH, scales, row_scales[row], v, *(const floats *)(bias + v * LANES));
}

/* The input products and biases of `tokens` tokens, for this thread's cells. */
static void input_products(const struct layer_worker *me, int64_t tokens) {
    struct buffers *buffers = me->buffers;
    const struct matrix *m = &me->layer->input;
    for (int64_t panel = me->first_panel; panel < me->last_panel; panel++) {
        float *gates = buffers->gates + panel * buffers->block * WIDTH, *bias = buffers->bias + panel * WIDTH;
        int64_t next = min_int(panel + 1, me->last_panel - 1);
        if (me->job->int8) {
            for (int64_t first = 0; first < tokens; first += SUM_ROWS) {
                int64_t n = min_int(SUM_ROWS, tokens - first);
                const uint8_t *rows = buffers->inputs_int8 + first * padded(m->inputs);
                int8_product(m, n, rows, padded(m->inputs), panel, panel_at(m, first ? panel : next), me->sums);
                const float *scales = m->scales + panel * WIDTH;
                add_scaled(gates + first * WIDTH, bias, n, me->sums, scales, buffers->input_scales + first);
            }
        } else {
            for (int64_t token = 0; token < tokens; token++) memcpy(gates + token * WIDTH, bias, WIDTH * sizeof(float));
            float_product(m, tokens, buffers->inputs, m->inputs, panel, panel_at(m, next), gates);
        }
    }
}

/* The new cells and hidden values of n rows from their gates; int8 recurrent sums are first added to the gates. */
INLINE void update_cells(
    const struct layer_worker *me, const int int8, int64_t panel, int64_t first, int64_t n, const float *gates
) {
    struct buffers *buffers = me->buffers;
    float *c = buffers->c + (panel * me->job->batch + first) * LANES;
    float *hidden = buffers->hidden + first * padded(me->job->cells) + panel * LANES;
    const float *scales = me->layer->recurrent.scales + panel * WIDTH, bound = me->layer->cell_clip;
    for (int64_t row = 0; row < n; row++, gates += WIDTH, c += LANES, hidden += padded(me->job->cells)) {
        floats z[GATES], numerator, denominator;
        for (int v = 0; v < GATES; v++) {
            z[v] = *(const floats *)(gates + v * LANES);
            if (int8) z[v] = scaled(me->sums + row * WIDTH, scales, buffers->h_scales[first + row], v, z[v]);
        }
        tanh_fraction(z[2], &numerator, &denominator);
        floats fresh = numerator / (denominator * one_over_sigmoid(z[0]));
        floats cell = clip(*(floats *)c / one_over_sigmoid(z[1]) + fresh, bound);
        *(floats *)c = cell;
        tanh_fraction(cell, &numerator, &denominator);
        store(hidden, numerator / (denominator * one_over_sigmoid(z[3])));
    }
}

/* The recurrent products and the cells of `count` rows from row `start` on; their input products start at `token`. */
static void step_cells(const struct layer_worker *me, int64_t step, int64_t start, int64_t count, int64_t token) {
    struct buffers *buffers = me->buffers;
    const struct matrix *m = &me->layer->recurrent;
    int64_t stride = padded(m->inputs);
    for (int64_t i = me->first_panel; i < me->last_panel; i++) {
        /* Forwards and backwards in turn: the panels of the last step that are still in the cache come first. */
        int back = step & 1;
        int64_t panel = back ? me->first_panel + me->last_panel - 1 - i : i;
        int64_t next = back ? panel - (panel > me->first_panel) : min_int(panel + 1, me->last_panel - 1);
        float *gates = buffers->gates + (panel * buffers->block + token) * WIDTH;
        for (int64_t first = start; first < start + count; first += SUM_ROWS, gates += SUM_ROWS * WIDTH) {
            int64_t n = min_int(SUM_ROWS, start + count - first), coming = first == start ? next : panel;
            const char *after = panel_at(m, coming);
            if (me->job->int8) {
                int8_product(m, n, buffers->h_int8 + first * stride, stride, panel, after, me->sums);
                update_cells(me, 1, panel, first, n, gates);
            } else {
                float_product(m, n, buffers->h + first * stride, stride, panel, after, gates);
                update_cells(me, 0, panel, first, n, gates);
            }
        }
    }
}

/* Stores a part of a row's output in the state h, and in the layer's outputs, with skip connections plus its input. */
INLINE void store_output(
    const struct layer_worker *me, int64_t row, int64_t token, int64_t first, int64_t count, const float *from
) {
    const struct bilstm *job = me->job;
    int64_t index = job->order[row] * job->time + token;
    float *out = job->layer_outputs[me->number] + (index * job->directions + me->direction) * job->outputs + first;
    memcpy(me->buffers->h + row * padded(job->outputs) + first, from, count * sizeof(float));
    if (me->number && job->skip_connections) {
        const float *input = layer_input(me, row, token) + first;
        for (int64_t i = 0; i < count; i++) out[i] = from[i] + input[i];
    } else {
        memcpy(out, from, count * sizeof(float));
    }
}

/* to [n][WIDTH] = bias + the sums of each row and of its rounding error, in float32; `to` and `sums` may be the same
   memory. */
static void add_both(
    float *to, const float *bias, int64_t n, const int32_t *sums, const float *scales, const float *row_scales
) {
    for (int64_t row = 0; row < n; row++, sums += 2 * WIDTH, row_scales += 2)
        for (int v = 0; v < GATES; v++) {
            floats rest = scaled(sums + WIDTH, scales, row_scales[1], v, *(const floats *)(bias + v * LANES));
            *(floats *)(to + row * WIDTH + v * LANES) = scaled(sums, scales, row_scales[0], v, rest);
        }
}

static void project(const struct layer_worker *me, int64_t step, int64_t n) {
    struct buffers *buffers = me->buffers;
    const struct matrix *m = &me->layer->projection;
    float *values = (float *)me->sums;
    int64_t start, stop, stride = padded(m->inputs);
    share(panel_count(m), me->rank, me->size, &start, &stop);
    int64_t most = me->job->int8 ? SUM_ROWS / 2 : SUM_ROWS;
    static const float none[WIDTH] __attribute__((aligned(64)));
    for (int64_t panel = start; panel < stop; panel++)
        for (int64_t first = 0; first < n; first += most) {
            int64_t rows = min_int(most, n - first), next = first ? panel : min_int(panel + 1, stop - 1);
            const char *after = panel_at(m, next);
            int64_t output = panel * WIDTH, count = min_int(WIDTH, me->job->outputs - output);
            if (me->job->int8) {
                int8_product(m, 2 * rows, buffers->hidden_int8 + 2 * first * stride, stride, panel, after, me->sums);
                add_both(values, none, rows, me->sums, m->scales + output, buffers->hidden_scales + 2 * first);
            } else {
                memset(values, 0, rows * WIDTH * sizeof(float));
                float_product(m, rows, buffers->hidden + first * stride, stride, panel, after, values);
            }
            for (int64_t row = first; row < first + rows; row++, values += WIDTH) {
                for (int v = 0; v < WIDTH; v += LANES)
                    *(floats *)(values + v) = clip(*(floats *)(values + v), me->layer->projection_clip);
                store_output(me, row, token_of(me, row, step), output, count, values);
            }
            values = (float *)me->sums;
        }
}

static void quantise_rows(
    const struct layer_worker *me, int64_t n, const float *from, int64_t count, uint8_t *to, float *scales
) {
    for (int64_t row = me->rank; row < n; row += me->size)
        scales[row] = quantise(from + row * padded(count), count, to + row * padded(count));
}

/* Quantises hidden values twice: the largest value of a row is about 25 times a typical one, so most values would be
   only a few units of int8. Without the second part, the cosine to float32 falls to 0.997. */
static void quantise_hidden(const struct layer_worker *me, int64_t n) {
    int64_t count = me->job->cells, stride = padded(count);
    for (int64_t row = me->rank; row < n; row += me->size) {
        float *from = me->buffers->hidden + row * stride;
        uint8_t *to = me->buffers->hidden_int8 + 2 * row * stride;
        quantise_twice(from, count, to, stride, me->buffers->hidden_scales + 2 * row, from);
    }
}

/* Computes the outputs of a step from its hidden values. */
static void finish_step(const struct layer_worker *me, int64_t step) {
    struct buffers *buffers = me->buffers;
    const struct bilstm *job = me->job;
    int64_t n = buffers->running[step];
    if (me->layer->projection.panels) {
        if (job->int8) {
            quantise_hidden(me, n);
            wait_at_barrier(&buffers->barrier, me->size);
        }
        project(me, step, n);
    } else {
        for (int64_t row = me->rank; row < n; row += me->size)
            store_output(me, row, token_of(me, row, step), 0, job->outputs, buffers->hidden + row * padded(job->cells));
    }
    wait_at_barrier(&buffers->barrier, me->size);
    if (job->int8) {
        quantise_rows(me, n, buffers->h, job->outputs, buffers->h_int8, buffers->h_scales);
        wait_at_barrier(&buffers->barrier, me->size);
    }
}

#endif
