/* A product of many rows with one matrix. */

#ifndef ELMOKIT_LINEAR_H
#define ELMOKIT_LINEAR_H

#include "step.h"

#define LINEAR_ROWS 256 /* rows that a panel is multiplied with before the next */

struct linear {
    struct matrix weight;
    const float *bias, *x; /* [O] or NULL, [N][K] */
    float *y;              /* [N][O] */
    int64_t rows, int8, twice, threads; /* twice: rows as int8, and once more as int8 what that leaves over */
};

struct linear_buffers {
    const struct linear *job;
    struct team team;
    uint8_t *small; /* [N][1 or 2][padded K] */
    float *scales;  /* [N][1 or 2] */
    float *rest;    /* [threads][padded K] */
    int32_t *sums;
};

static void quantise_row(struct linear_buffers *buffers, int64_t row, int rank) {
    const struct linear *job = buffers->job;
    int64_t count = job->weight.inputs, wide = padded(count);
    const float *from = job->x + row * count;
    if (job->twice)
        quantise_twice(
            from, count, buffers->small + 2 * row * wide, wide, buffers->scales + 2 * row, buffers->rest + rank * wide
        );
    else
        buffers->scales[row] = quantise(from, count, buffers->small + row * wide);
}

static void linear_work(void *given, int rank, int size) {
    struct linear_buffers *buffers = given;
    const struct linear *job = buffers->job;
    const struct matrix *m = &job->weight;
    int64_t start, stop, panels = panel_count(m);
    if (job->int8) {
        share(job->rows, rank, size, &start, &stop);
        for (int64_t row = start; row < stop; row++) quantise_row(buffers, row, rank);
        meet(&buffers->team, size);
    }
    /* Blocks of rows, of each block all panels; lower blocks where that gives every thread something to do. */
    int64_t height = smaller(LINEAR_ROWS, ceiling(job->rows, ceiling(size, panels))), wide = padded(m->inputs);
    int32_t *sums = buffers->sums + rank * SUM_ROWS * WIDTH;
    int64_t most = job->twice ? SUM_ROWS / 2 : SUM_ROWS;
    share(ceiling(job->rows, height) * panels, rank, size, &start, &stop);
    for (int64_t item = start; item < stop; item++) {
        int64_t begin = item / panels * height, end = smaller(begin + height, job->rows), panel = item % panels;
        int64_t output = panel * WIDTH, count = smaller(WIDTH, m->outputs - output);
        float bias[WIDTH] __attribute__((aligned(64))) = {0};
        if (job->bias) memcpy(bias, job->bias + output, count * sizeof(float));
        for (int64_t first = begin; first < end; first += most) {
            int64_t n = smaller(most, end - first), next = first == begin ? (panel + 1) % panels : panel;
            const char *after = panel_at(m, next);
            if (job->twice) {
                int8_product(m, 2 * n, buffers->small + 2 * first * wide, wide, panel, after, sums);
                add_both((float *)sums, bias, n, sums, m->scales + output, buffers->scales + 2 * first);
            } else if (job->int8) {
                int8_product(m, n, buffers->small + first * wide, wide, panel, after, sums);
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
