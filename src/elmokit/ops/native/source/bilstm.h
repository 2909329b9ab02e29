/* All layers of both directions, step by step. All threads compute one direction after the other, or half of them
   compute each direction. */

#ifndef ELMOKIT_BILSTM_H
#define ELMOKIT_BILSTM_H

#include "step.h"

/* Copies the first states, puts biases in the order of the panels, and writes zeros past the ends of the sentences. */
static void begin_layer(const struct layer_worker *me) {
    const struct bilstm *job = me->job;
    struct buffers *buffers = me->buffers;
    const struct matrix *m = &me->layer->recurrent;
    int64_t state = (me->direction * job->layers + me->number) * job->batch, stride = job->directions * job->outputs;
    int64_t own = me->direction * job->outputs; /* this direction's part of an output row */
    for (int64_t panel = me->first_panel; panel < me->last_panel; panel++) {
        for (int v = 0; v < GATES; v++)
            for (int lane = 0; lane < LANES; lane++) {
                int64_t output = output_of(m, panel, v, lane);
                float bias = output < 0 ? 0.0f : me->layer->bias[output];
                buffers->bias[panel * WIDTH + v * LANES + lane] = v == 1 ? bias + me->layer->forget_bias : bias;
            }
        int64_t cell = panel * LANES, count = min_int(LANES, job->cells - cell);
        for (int64_t row = 0; row < job->batch; row++) {
            float *to = buffers->c + (panel * job->batch + row) * LANES;
            memset(to, 0, LANES * sizeof(float));
            memcpy(to, job->c + (state + job->order[row]) * job->cells + cell, count * sizeof(float));
        }
    }
    for (int64_t row = me->rank; row < job->batch; row += me->size) {
        float *h = buffers->h + row * padded(job->outputs);
        memcpy(h, job->h + (state + job->order[row]) * job->outputs, job->outputs * sizeof(float));
        if (job->int8) buffers->h_scales[row] = quantise(h, job->outputs, buffers->h_int8 + row * padded(job->outputs));
        float *out = job->layer_outputs[me->number] + job->order[row] * job->time * stride + own;
        for (int64_t token = job->lengths[row]; token < job->time; token++)
            memset(out + token * stride, 0, job->outputs * sizeof(float));
    }
    wait_at_barrier(&buffers->barrier, me->size);
}

/* Copies the last states to the results. */
static void end_layer(const struct layer_worker *me) {
    const struct bilstm *job = me->job;
    int64_t state = (me->direction * job->layers + me->number) * job->batch;
    for (int64_t panel = me->first_panel; panel < me->last_panel; panel++) {
        int64_t cell = panel * LANES, count = min_int(LANES, job->cells - cell);
        for (int64_t row = 0; row < job->batch; row++)
            memcpy(
                job->last_c + (state + job->order[row]) * job->cells + cell,
                me->buffers->c + (panel * job->batch + row) * LANES, count * sizeof(float)
            );
    }
    for (int64_t row = me->rank; row < job->batch; row += me->size)
        memcpy(
            job->last_h + (state + job->order[row]) * job->outputs, me->buffers->h + row * padded(job->outputs),
            job->outputs * sizeof(float)
        );
    wait_at_barrier(&me->buffers->barrier, me->size);
}

static void run_direction(const struct bilstm *job, struct buffers *buffers, int64_t direction, int rank, int size) {
    int64_t steps = job->batch ? job->lengths[0] : 0;
    for (int64_t number = 0; number < job->layers; number++) {
        const struct layer *layer = job->stack + direction * job->layers + number;
        int32_t *sums = buffers->sums + rank * SUM_ROWS * WIDTH;
        struct layer_worker me = {job, layer, buffers, direction, number, rank, size, 0, 0, sums};
        share(panel_count(&layer->recurrent), rank, size, &me.first_panel, &me.last_panel);
        begin_layer(&me);
        for (int64_t start = 0, stop; start < steps; start = stop) {
            int64_t rows = buffers->running[start], tokens = rows;
            for (stop = start + 1; stop < steps && tokens + buffers->running[stop] <= BLOCK_TOKENS; stop++)
                tokens += buffers->running[stop];
            /* Either several steps with all their rows, or one step in blocks of rows. */
            for (int64_t first = 0; first < rows; first += BLOCK_TOKENS) {
                int64_t last = min_int(rows, first + BLOCK_TOKENS), token = 0;
                gather_inputs(&me, start, stop, first, last);
                wait_at_barrier(&buffers->barrier, size);
                input_products(&me, stop - start == 1 ? last - first : tokens);
                for (int64_t step = start; step < stop; step++) {
                    int64_t n = min_int(last, buffers->running[step]) - first;
                    step_cells(&me, step, first, n, token);
                    token += n;
                    wait_at_barrier(&buffers->barrier, size);
                    if (last == rows) finish_step(&me, step);
                }
            }
        }
        end_layer(&me);
    }
}

/* What the threads of one call share. */
struct bilstm_call {
    const struct bilstm *job;
    struct buffers all_buffers[2];
};

static void bilstm_work(void *given, int rank, int size) {
    struct bilstm_call *call = given;
    const struct bilstm *job = call->job;
    int first = (size + 1) / 2;
    if (!job->separate_directions || size == 1) {
        for (int64_t d = 0; d < job->directions; d++) run_direction(job, &call->all_buffers[0], d, rank, size);
    } else if (rank < first) {
        run_direction(job, &call->all_buffers[0], 0, rank, first);
    } else {
        run_direction(job, &call->all_buffers[1], 1, rank - first, size - first);
    }
}

/* Divides the memory at `at` into buffers, or only measures them if `at` is NULL; returns their size in bytes. */
static int64_t lay_out_bilstm(struct buffers *buffers, const struct bilstm *job, char *at) {
    int64_t used = 0, B = job->batch, inputs = job->outputs;
    for (int64_t i = 0; i < job->directions * job->layers; i++)
        if (job->stack[i].input.inputs > inputs) inputs = job->stack[i].input.inputs;
    int64_t panels = panel_count(&job->stack[0].recurrent), steps = B ? job->lengths[0] : 0;
    int64_t tokens = 0;
    for (int64_t row = 0; row < B; row++) tokens += job->lengths[row];
    buffers->block = min_int(BLOCK_TOKENS, tokens) | 1; /* odd, so that panels do not share cache lines */
#define RESERVE(WHAT, COUNT)                                      \
    buffers->WHAT = (void *)(at + used);                          \
    used += padded((int64_t)(COUNT) * sizeof(*buffers->WHAT));
    RESERVE(running, steps)
    RESERVE(bias, panels * WIDTH)
    RESERVE(gates, panels * buffers->block * WIDTH)
    RESERVE(c, panels * B * LANES)
    RESERVE(hidden, B * padded(job->cells))
    RESERVE(h, B * padded(job->outputs))
    RESERVE(sums, job->threads * SUM_ROWS * WIDTH)
    if (job->int8) {
        RESERVE(inputs_int8, buffers->block * padded(inputs))
        RESERVE(hidden_int8, 2 * B * padded(job->cells))
        RESERVE(h_int8, B * padded(job->outputs))
        RESERVE(input_scales, buffers->block)
        RESERVE(hidden_scales, 2 * B)
        RESERVE(h_scales, B)
    } else {
        RESERVE(inputs, buffers->block * inputs)
    }
#undef RESERVE
    if (at)
        for (int64_t step = 0, n = B; step < steps; step++) {
            while (n && job->lengths[n - 1] <= step) n--;
            buffers->running[step] = n;
        }
    return used;
}

#endif
