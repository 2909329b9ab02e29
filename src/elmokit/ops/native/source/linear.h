/* The product of many rows with one matrix. */

#ifndef ELMOKIT_LINEAR_H
#define ELMOKIT_LINEAR_H

#include "step.h"

#define LINEAR_ROWS 256 /* rows that are multiplied by one panel before the next panel */

struct linear {
    struct matrix weight;
    const float *bias, *x; /* [O] or NULL, [N][K] */
    float *y;              /* [N][O] */
    int64_t rows, int8, twice, threads; /* twice: each row as int8, and the rounding error of that as int8 too */
};

struct linear_buffers {
    const struct linear *job;
    struct barrier barrier;
    uint8_t *x_int8; /* [N][1 or 2][padded K] */
    float *scales;  /* [N][1 or 2] */
    float *rest;    /* [threads][padded K] */
    int32_t *sums;
};

static void quantise_row(struct linear_buffers *buffers, int64_t row, int rank) {
    const struct linear *job = buffers->job;
    int64_t count = job->weight.inputs, stride = padded(count);
    const float *from = job->x + row * count;
    if (job->twice)
        quantise_twice(
            from, count, buffers->x_int8 + 2 * row * stride, stride, buffers->scales + 2 * row, buffers->rest + rank * stride
        );
    else
        buffers->scales[row] = quantise(from, count, buffers->x_int8 + row * stride);
}

static void linear_work(void *given, int rank, int size) {
    struct linear_buffers *buffers = given;
    const struct linear *job = buffers->job;
    const struct matrix *m = &job->weight;
    int64_t start, stop, panels = panel_count(m);
    if (job->int8) {
        share(job->rows, rank, size, &start, &stop);
        for (int64_t row = start; row < stop; row++) quantise_row(buffers, row, rank);
        wait_at_barrier(&buffers->barrier, size);
    }
    /* Blocks of rows, and all panels for each block. Blocks have fewer rows if otherwise some threads had no work. */
    int64_t height = min_int(LINEAR_ROWS, ceil_div(job->rows, ceil_div(size, panels))), stride = padded(m->inputs);
    int32_t *sums = buffers->sums + rank * SUM_ROWS * WIDTH;
    int64_t most = job->twice ? SUM_ROWS / 2 : SUM_ROWS;
    share(ceil_div(job->rows, height) * panels, rank, size, &start, &stop);
    for (int64_t item = start; item < stop; item++) {
        int64_t begin = item / panels * height, end = min_int(begin + height, job->rows), panel = item % panels;
        int64_t output = panel * WIDTH, count = min_int(WIDTH, m->outputs - output);
        float bias[WIDTH] __attribute__((aligned(64))) = {0};
        if (job->bias) memcpy(bias, job->bias + output, count * sizeof(float));
        for (int64_t first = begin; first < end; first += most) {
            int64_t n = min_int(most, end - first), next = first == begin ? (panel + 1) % panels : panel;
            const char *after = panel_at(m, next);
            if (job->twice) {
                int8_product(m, 2 * n, buffers->x_int8 + 2 * first * stride, stride, panel, after, sums);
                add_both((float *)sums, bias, n, sums, m->scales + output, buffers->scales + 2 * first);
            } else if (job->int8) {
                int8_product(m, n, buffers->x_int8 + first * stride, stride, panel, after, sums);
                add_scaled((float *)sums, bias, n, sums, m->scales + output, buffers->scales + first);
            } else {
                for (int64_t row = 0; row < n; row++) memcpy(sums + row * WIDTH, bias, sizeof bias);
                float_product(m, n, job->x + first * m->inputs, m->inputs, panel, after, (float *)sums);
            }
            for (int64_t row = 0; row < n; row++)
                memcpy(job->y + (first + row) * m->outputs + output, sums + row * WIDTH, count * sizeof(float));
        }
    }
}

#endif
