/* All layers of both directions, one step after the other, by one team of threads or by one for each direction. */

#ifndef ELMOKIT_BILSTM_H
#define ELMOKIT_BILSTM_H

#include "step.h"

/* First states, biases in the order of the panels, and zeros past the sentences' ends. */
static void begin_layer(const struct place *p) {
    const struct bilstm *job = p->job;
    struct buffers *buffers = p->buffers;
    const struct matrix *m = &p->layer->recurrent;
    int64_t state = (p->direction * job->layers + p->number) * job->batch, wide = job->directions * job->outputs;
    for (int64_t panel = p->first_panel; panel < p->last_panel; panel++) {
        for (int v = 0; v < GATES; v++)
            for (int lane = 0; lane < LANES; lane++) {
                int64_t output = output_of(m, panel, v, lane);
                float bias = output < 0 ? 0.0f : p->layer->bias[output];
                buffers->bias[panel * WIDTH + v * LANES + lane] = v == 1 ? bias + p->layer->forget_bias : bias;
            }
        int64_t cell = panel * LANES, count = smaller(LANES, job->cells - cell);
        for (int64_t row = 0; row < job->batch; row++) {
            float *to = buffers->c + (panel * job->batch + row) * LANES;
            memset(to, 0, LANES * sizeof(float));
            memcpy(to, job->c + (state + job->order[row]) * job->cells + cell, count * sizeof(float));
        }
    }
    for (int64_t row = p->rank; row < job->batch; row += p->size) {
        float *h = buffers->h + row * padded(job->outputs);
        memcpy(h, job->h + (state + job->order[row]) * job->outputs, job->outputs * sizeof(float));
        if (job->int8) buffers->h_scales[row] = quantise(h, job->outputs, buffers->small_h + row * padded(job->outputs));
        float *out = job->layer_outputs[p->number] + job->order[row] * job->time * wide + p->direction * job->outputs;
        for (int64_t token = job->lengths[row]; token < job->time; token++)
            memset(out + token * wide, 0, job->outputs * sizeof(float));
    }
    meet(&buffers->team, p->size);
}

static void end_layer(const struct place *p) {
    const struct bilstm *job = p->job;
    int64_t state = (p->direction * job->layers + p->number) * job->batch;
    for (int64_t panel = p->first_panel; panel < p->last_panel; panel++) {
        int64_t cell = panel * LANES, count = smaller(LANES, job->cells - cell);
        for (int64_t row = 0; row < job->batch; row++)
            memcpy(
                job->last_c + (state + job->order[row]) * job->cells + cell,
                p->buffers->c + (panel * job->batch + row) * LANES, count * sizeof(float)
            );
    }
    for (int64_t row = p->rank; row < job->batch; row += p->size)
        memcpy(
            job->last_h + (state + job->order[row]) * job->outputs, p->buffers->h + row * padded(job->outputs),
            job->outputs * sizeof(float)
        );
    meet(&p->buffers->team, p->size);
}

static void run_direction(const struct bilstm *job, struct buffers *buffers, int64_t direction, int rank, int size) {
    int64_t steps = job->batch ? job->lengths[0] : 0;
    for (int64_t number = 0; number < job->layers; number++) {
        const struct layer *layer = job->stack + direction * job->layers + number;
        struct place p = {job, layer, buffers, direction, number, rank, size, 0, 0, buffers->sums + rank * SUM_ROWS * WIDTH};
        share(panel_count(&layer->recurrent), rank, size, &p.first_panel, &p.last_panel);
        begin_layer(&p);
        for (int64_t start = 0, stop; start < steps; start = stop) {
            int64_t rows = buffers->running[start], tokens = rows;
            for (stop = start + 1; stop < steps && tokens + buffers->running[stop] <= BLOCK_TOKENS; stop++)
                tokens += buffers->running[stop];
            /* Either several steps of all their rows, or one step in blocks of rows. */
            for (int64_t first = 0; first < rows; first += BLOCK_TOKENS) {
                int64_t last = smaller(rows, first + BLOCK_TOKENS), token = 0;
                take_inputs(&p, start, stop, first, last);
                meet(&buffers->team, size);
                input_products(&p, stop - start == 1 ? last - first : tokens);
                for (int64_t step = start; step < stop; step++) {
                    int64_t n = smaller(last, buffers->running[step]) - first;
                    step_cells(&p, step, first, n, token);
                    token += n;
                    meet(&buffers->team, size);
                    if (last == rows) finish_step(&p, step);
                }
            }
        }
        end_layer(&p);
    }
}

struct office {
    const struct bilstm *job;
    struct buffers all_buffers[2];
};

static void bilstm_work(void *given, int rank, int size) {
    struct office *office = given;
    const struct bilstm *job = office->job;
    int first = (size + 1) / 2;
    if (!job->apart || size == 1) {
        for (int64_t d = 0; d < job->directions; d++) run_direction(job, &office->all_buffers[0], d, rank, size);
    } else if (rank < first) {
        run_direction(job, &office->all_buffers[0], 0, rank, first);
    } else {
        run_direction(job, &office->all_buffers[1], 1, rank - first, size - first);
    }
}

/* Sets out a buffers at `at`, or only measures it where `at` is NULL; returns its size in bytes. */
static int64_t set_out(struct buffers *buffers, const struct bilstm *job, char *at) {
    int64_t used = 0, B = job->batch, inputs = job->outputs;
    for (int64_t i = 0; i < job->directions * job->layers; i++)
        if (job->stack[i].input.inputs > inputs) inputs = job->stack[i].input.inputs;
    int64_t panels = panel_count(&job->stack[0].recurrent), steps = B ? job->lengths[0] : 0;
    int64_t tokens = 0;
    for (int64_t row = 0; row < B; row++) tokens += job->lengths[row];
    buffers->block = smaller(BLOCK_TOKENS, tokens) | 1; /* odd, so that panels do not fall on the same lines of a cache */
#define TAKE(WHAT, COUNT)                                      \
    buffers->WHAT = (void *)(at + used);                          \
    used += padded((int64_t)(COUNT) * sizeof(*buffers->WHAT));
    TAKE(running, steps)
    TAKE(bias, panels * WIDTH)
    TAKE(gates, panels * buffers->block * WIDTH)
    TAKE(c, panels * B * LANES)
    TAKE(hidden, B * padded(job->cells))
    TAKE(h, B * padded(job->outputs))
    TAKE(sums, job->threads * SUM_ROWS * WIDTH)
    if (job->int8) {
        TAKE(small_inputs, buffers->block * padded(inputs))
        TAKE(small_hidden, 2 * B * padded(job->cells))
        TAKE(small_h, B * padded(job->outputs))
        TAKE(input_scales, buffers->block)
        TAKE(hidden_scales, 2 * B)
        TAKE(h_scales, B)
    } else {
        TAKE(inputs, buffers->block * inputs)
    }
#undef TAKE
    if (at)
        for (int64_t step = 0, n = B; step < steps; step++) {
            while (n && job->lengths[n - 1] <= step) n--;
            buffers->running[step] = n;
        }
    return used;
}

#endif
