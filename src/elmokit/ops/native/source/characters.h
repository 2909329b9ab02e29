/* The character part of words: the largest product of each filter over a word's positions, highways, a projection.

   U words of M characters, and c numbers per character. The filters of one width are a matrix [count][width·c]; all
   filters together have F outputs. Words that are computed together have few distinct characters (symbols). So a panel
   of filters is multiplied with each symbol once per position in a window, and the result of a window is the sum of
   `width` rows. After a word's last character comes padding, whose windows are all equal: one of them is enough.

   Many words are divided among the threads. For few words, the threads share the panels of every matrix. The threads
   are those that the context encoder uses next: other threads would stay awake on the cores that it needs. */

#ifndef ELMOKIT_CHARACTERS_H
#define ELMOKIT_CHARACTERS_H

#include "helpers.h"
#include "step.h"

#define WORDS SUM_ROWS /* the most words that go through all matrices together */

struct affine {
    struct matrix weight;
    const float *bias; /* [outputs] */
};

struct filters {
    struct affine affine;
    int64_t width;
};

struct highway {
    struct affine transform, gate;
};

struct characters {
    const int64_t *ids; /* [U][M] */
    int64_t words, longest; /* U, M */
    const float *table;     /* [symbols][c] */
    int64_t symbols, size, padding; /* size: c; padding: the id of padding */
    const struct filters *filters; /* [widths] */
    int64_t widths, outputs;       /* F */
    int64_t tanh;                  /* whether the activation is tanh instead of relu */
    const struct highway *highways;
    int64_t depth;            /* the number of highways */
    struct affine projection; /* its panels are NULL if there is none */
    int64_t int8;             /* whether highways and projection are int8 */
    float *y;                 /* [U][P], or [U][F] without a projection */
    int64_t threads, shared;  /* shared: whether all threads work on the same words */
    int64_t pool;             /* whether the threads are those of threads.h instead of helpers.h */
};

struct characters_buffers {
    int64_t *lengths;       /* [WORDS]: the number of characters up to the last one that is not padding */
    int32_t *symbols;       /* [WORDS][M]: for each character, its row of `vectors` */
    int32_t *rows;          /* [symbols of the table]: the row of each symbol in `vectors`, or −1 */
    float *vectors;         /* [S][c]: the vectors of the S distinct symbols of these words */
    int64_t distinct;       /* S */
    float *products;        /* [threads of these words][widest filter][S][WIDTH] */
    int64_t product_size;   /* the size of one thread's part of `products` */
    float *x, *next;        /* [WORDS][padded F] */
    uint8_t *x_int8;         /* [WORDS][2][padded F] */
    float *scales;          /* [WORDS][2] */
    float *rest;            /* [threads of these words][padded F] */
    int32_t *sums;          /* [threads of these words][2][2 · WORDS][WIDTH] */
};

/* What the threads of one call share. */
struct characters_call {
    const struct characters *job;
    struct characters_buffers *all_buffers; /* one, or [threads] */
    struct stages *stages;
    atomic_int unknown; /* whether an id is not a row of the table */
};

/* One thread that works on n words, from word `first` on. */
struct characters_worker {
    const struct characters *job;
    struct characters_buffers *buffers;
    struct participant in_call;   /* this thread as one of all threads of the call */
    struct participant alone;     /* this thread by itself */
    struct participant *in_group; /* this thread as one of those that share the words: one of the two above */
    int64_t first, n;
    float *rest, *products;
    float *x, *next;       /* the input and the output of a highway, which are swapped after it */
    int32_t *sums, *gates; /* [2 · WORDS][WIDTH] */
};

/* The larger number in each lane, or NaN if one of them is NaN. */
INLINE floats max_or_nan(floats a, floats b) { return where((b > a) | (b != b), b, a); }

/* The biases of a panel's outputs. */
INLINE void load_bias(const struct affine *p, int64_t panel, float *bias) {
    memset(bias, 0, WIDTH * sizeof(float));
    memcpy(bias, p->bias + panel * WIDTH, min_int(WIDTH, p->weight.outputs - panel * WIDTH) * sizeof(float));
}

/* products [width][S][WIDTH] = each symbol's vector times a panel's weights for each position in a window. */
static void symbol_products(const struct characters_worker *me, const struct filters *f, int64_t panel) {
    const struct characters_buffers *buffers = me->buffers;
    int64_t size = me->job->size, count = buffers->distinct;
    struct matrix slice = f->affine.weight; /* the weights of one position */
    const char *weights = panel_at(&slice, panel);
    slice.inputs = size;
    memset(me->products, 0, f->width * count * WIDTH * sizeof(float));
    for (int64_t j = 0; j < f->width; j++) {
        slice.panels = weights;
        weights = panel_at(&slice, 1);
        float_product(&slice, count, buffers->vectors, size, 0, weights, me->products + j * count * WIDTH);
    }
}

/* Computes the filters of a panel for all words; the first filter is output `output`. */
static void convolve_panel(const struct characters_worker *me, const struct filters *f, int64_t panel, int64_t output) {
    const struct characters *job = me->job;
    int64_t stride = padded(job->outputs), count = min_int(WIDTH, f->affine.weight.outputs - panel * WIDTH);
    int64_t step = me->buffers->distinct * WIDTH;
    float bias[WIDTH] __attribute__((aligned(64)));
    load_bias(&f->affine, panel, bias);
    symbol_products(me, f, panel);
    for (int64_t word = 0; word < me->n; word++) {
        const int32_t *symbols = me->buffers->symbols + word * job->longest;
        int64_t windows = min_int(me->buffers->lengths[word], job->longest - f->width) + 1;
        floats largest[GATES], numerator, denominator;
        for (int v = 0; v < GATES; v++) largest[v] = all(-INFINITY);
        for (int64_t p = 0; p < windows; p++) {
            floats sums[GATES] = {0};
            for (int64_t j = 0; j < f->width; j++) {
                const floats *row = (const floats *)(me->products + j * step + symbols[p + j] * WIDTH);
#pragma GCC unroll 4
                for (int v = 0; v < GATES; v++) sums[v] += row[v];
            }
#pragma GCC unroll 4
            for (int v = 0; v < GATES; v++) largest[v] = max_or_nan(largest[v], sums[v]);
        }
        for (int v = 0; v < GATES; v++) {
            largest[v] += *(const floats *)(bias + v * LANES);
            if (job->tanh) {
                tanh_fraction(largest[v], &numerator, &denominator);
                largest[v] = numerator / denominator;
            } else {
                largest[v] = at_least(0.0f, largest[v]);
            }
        }
        memcpy(me->x + word * stride + output, largest, count * sizeof(float));
    }
}

/* Finds the distinct symbols of the words and copies their vectors. Returns 0, or 1 if the table lacks one of them. */
static int index_symbols(const struct characters_worker *me) {
    const struct characters *job = me->job;
    struct characters_buffers *buffers = me->buffers;
    int unknown = 0;
    int32_t distinct = 0;
    memset(buffers->rows, -1, job->symbols * sizeof(int32_t));
    for (int64_t word = 0; word < me->n; word++) {
        const int64_t *ids = job->ids + (me->first + word) * job->longest;
        int64_t length = job->longest;
        while (length && ids[length - 1] == job->padding) length--;
        buffers->lengths[word] = length;
        for (int64_t p = 0; p < job->longest; p++) {
            int64_t id = ids[p];
            if (id < 0 || id >= job->symbols) unknown = 1, id = 0;
            if (buffers->rows[id] < 0) {
                memcpy(buffers->vectors + distinct * job->size, job->table + id * job->size, job->size * sizeof(float));
                buffers->rows[id] = distinct++;
            }
            buffers->symbols[word * job->longest + p] = buffers->rows[id];
        }
    }
    buffers->distinct = distinct;
    return unknown;
}

/* sums [n][WIDTH] = x · panel + bias, in float32. */
static void product_panel(const struct characters_worker *me, const struct affine *p, int64_t panel, int32_t *sums) {
    struct characters_buffers *buffers = me->buffers;
    const struct matrix *m = &p->weight;
    int64_t stride = padded(me->job->outputs), next = min_int(panel + 1, panel_count(m) - 1);
    const char *after = panel_at(m, next);
    float bias[WIDTH] __attribute__((aligned(64)));
    load_bias(p, panel, bias);
    if (me->job->int8) {
        int8_product(m, 2 * me->n, buffers->x_int8, stride, panel, after, sums);
        add_both((float *)sums, bias, me->n, sums, m->scales + panel * WIDTH, buffers->scales);
    } else {
        for (int64_t word = 0; word < me->n; word++) memcpy(sums + word * WIDTH, bias, sizeof bias);
        float_product(m, me->n, me->x, stride, panel, after, (float *)sums);
    }
}

/* next = g · relu(transform) + (1 − g) · x with g = σ(gate). */
static void highway_panel(const struct characters_worker *me, const struct highway *h, int64_t panel) {
    int64_t stride = padded(me->job->outputs), at = panel * WIDTH;
    product_panel(me, &h->transform, panel, me->sums);
    product_panel(me, &h->gate, panel, me->gates);
    for (int64_t word = 0; word < me->n; word++)
        for (int v = 0; v < WIDTH; v += LANES) {
            floats gate = all(1.0f) / one_over_sigmoid(*(const floats *)(me->gates + word * WIDTH + v));
            floats fresh = at_least(0.0f, *(const floats *)(me->sums + word * WIDTH + v));
            floats old = (all(1.0f) - gate) * *(const floats *)(me->x + word * stride + at + v);
            *(floats *)(me->next + word * stride + at + v) = times_plus(gate, fresh, old);
        }
}

/* Quantises the words for a product with m. If m has factors of columns, x is multiplied by them in place: then that
   product must be the last one. */
static void quantise_words(struct characters_worker *me, const struct matrix *m) {
    struct characters_buffers *buffers = me->buffers;
    int64_t count = me->job->outputs, stride = padded(count);
    for (int64_t word; (word = take_row(me->in_group, me->n)) >= 0;) {
        float *x = me->x + word * stride;
        for (int64_t k = 0; m->columns && k < count; k++) x[k] *= m->columns[k];
        quantise_twice(x, count, buffers->x_int8 + 2 * word * stride, stride, buffers->scales + 2 * word, me->rest);
    }
}

/* Computes all filters for all words, panel by panel. */
static void convolve_words(struct characters_worker *me) {
    const struct characters *job = me->job;
    int64_t panels = 0;
    for (int64_t i = 0; i < job->widths; i++) panels += panel_count(&job->filters[i].affine.weight);
    for (int64_t panel; (panel = take_item(me->in_group, panels)) >= 0;) {
        const struct filters *f = job->filters;
        int64_t output = 0;
        for (; panel >= panel_count(&f->affine.weight); f++) {
            panel -= panel_count(&f->affine.weight);
            output += f->affine.weight.outputs;
        }
        convolve_panel(me, f, panel, output + panel * WIDTH);
    }
}

static void encode_words(struct characters_worker *me, struct characters_call *call) {
    const struct characters *job = me->job;
    int64_t stride = padded(job->outputs);
    while (take_item(me->in_group, 1) >= 0)
        if (index_symbols(me)) atomic_store(&call->unknown, 1);
    convolve_words(me);
    for (const struct highway *h = job->highways; h < job->highways + job->depth; h++) {
        if (job->int8) quantise_words(me, &h->gate.weight);
        for (int64_t panel; (panel = take_item(me->in_group, panel_count(&h->gate.weight))) >= 0;)
            highway_panel(me, h, panel);
        float *x = me->x;
        me->x = me->next;
        me->next = x;
    }
    const struct matrix *m = &job->projection.weight;
    if (m->panels) {
        if (job->int8) quantise_words(me, m);
        for (int64_t panel; (panel = take_item(me->in_group, panel_count(m))) >= 0;) {
            int64_t at = panel * WIDTH, count = min_int(WIDTH, m->outputs - at);
            product_panel(me, &job->projection, panel, me->sums);
            for (int64_t word = 0; word < me->n; word++)
                memcpy(
                    job->y + (me->first + word) * m->outputs + at, me->sums + word * WIDTH, count * sizeof(float)
                );
        }
    } else {
        for (int64_t word; (word = take_row(me->in_group, me->n)) >= 0;)
            memcpy(job->y + (me->first + word) * job->outputs, me->x + word * stride, job->outputs * sizeof(float));
    }
}

/* The number of words that go through all matrices together, about the same for all threads. */
static int64_t words_together(const struct characters *job) {
    int64_t threads = job->shared ? 1 : job->threads;
    return ceil_div(job->words, threads * ceil_div(job->words, threads * WORDS));
}

/* The next part of the words, −1 after the last. If threads share the words, every thread goes through all parts;
   otherwise a thread takes one that is free. */
static int64_t next_words(struct characters_worker *me, int64_t number, int64_t count) {
    if (me->in_group == &me->in_call) return number + 1 < count ? number + 1 : -1;
    return take_item(&me->in_call, count);
}

static void characters_work(void *given, int rank, int size) {
    struct characters_call *call = given;
    const struct characters *job = call->job;
    int64_t together = words_together(job), parts = ceil_div(job->words, together), at = job->shared ? rank : 0;
    struct characters_worker me = {
        .job = job,
        .buffers = call->all_buffers + (job->shared ? 0 : rank),
        .in_call = {.stages = call->stages, .rank = rank, .size = size},
        .alone = {.size = 1},
    };
    me.in_group = job->shared ? &me.in_call : &me.alone;
    me.sums = me.buffers->sums + at * 4 * WORDS * WIDTH;
    me.gates = me.sums + 2 * WORDS * WIDTH;
    me.rest = me.buffers->rest + at * padded(job->outputs);
    me.products = me.buffers->products + at * me.buffers->product_size;
    for (int64_t part = -1; (part = next_words(&me, part, parts)) >= 0;) {
        me.first = part * together;
        me.n = min_int(together, job->words - me.first);
        me.x = me.buffers->x;
        me.next = me.buffers->next;
        encode_words(&me, call);
    }
}

/* Divides the memory at `at` into buffers, or only measures them if `at` is NULL; returns their size in bytes. */
static int64_t lay_out_characters(
    struct characters_buffers *buffers, const struct characters *job, int64_t members, char *at
) {
    int64_t used = 0, n = min_int(WORDS, job->words), stride = padded(job->outputs);
    int64_t most = min_int(job->symbols, n * job->longest), widest = 0; /* most: the most distinct symbols */
    for (int64_t i = 0; i < job->widths; i++) widest = max_int(widest, job->filters[i].width);
    buffers->product_size = widest * most * WIDTH;
#define RESERVE(WHAT, COUNT)                                      \
    buffers->WHAT = (void *)(at + used);                          \
    used += padded((int64_t)(COUNT) * sizeof(*buffers->WHAT));
    RESERVE(lengths, n)
    RESERVE(symbols, n * job->longest)
    RESERVE(rows, job->symbols)
    RESERVE(vectors, most * job->size)
    RESERVE(products, members * buffers->product_size)
    RESERVE(x, n * stride)
    RESERVE(next, n * stride)
    RESERVE(sums, members * 4 * WORDS * WIDTH)
    if (job->int8) {
        RESERVE(x_int8, 2 * n * stride)
        RESERVE(scales, 2 * n)
        RESERVE(rest, members * stride)
    }
#undef RESERVE
    return used;
}

#endif
