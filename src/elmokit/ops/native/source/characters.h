/* The character part of words: the largest product of each filter over a word's positions, highways, a projection.

   U words of M characters, each of which has c numbers; filters of one width are a matrix [count][width·c], all of them
   have F outputs. Words that are computed together have few distinct characters (symbols): a panel of filters is
   multiplied with each symbol once for each of its places in a window, and a window is then a sum of `width` rows. After
   a word's last character comes padding, whose windows are all the same: one of them is enough.

   Many words are divided among the threads; of few words, threads share the panels of every matrix. The threads are
   those that the context encoder uses next: others would stay awake on the cores that it needs. */

#ifndef ELMOKIT_CHARACTERS_H
#define ELMOKIT_CHARACTERS_H

#include "helpers.h"
#include "step.h"

#define WORDS SUM_ROWS /* words that go through all matrices together, at most */

struct product {
    struct matrix weight;
    const float *bias; /* [outputs] */
};

struct filters {
    struct product product;
    int64_t width;
};

struct highway {
    struct product transform, gate;
};

struct characters {
    const int64_t *ids; /* [U][M] */
    int64_t words, longest;
    const float *table; /* [symbols][c] */
    int64_t symbols, size, padding;
    const struct filters *filters; /* [widths] */
    int64_t widths, outputs;       /* F */
    int64_t tanh;                  /* instead of what is above 0 */
    const struct highway *highways;
    int64_t depth;             /* highways */
    struct product projection; /* its panels are NULL where there is none */
    int64_t int8;              /* of highways and projection */
    float *y;                  /* [U][P], or [U][F] */
    int64_t threads, shared; /* shared: whether all threads work on the same words */
    int64_t pool;            /* whether the threads are those of team.h, not of helpers.h */
};

struct characters_buffers {
    int64_t *lengths;       /* [WORDS]: characters up to the last that is no padding */
    int32_t *symbols;       /* [WORDS][M]: rows of `numbers` */
    int32_t *rows;          /* [symbols of the table]: where a symbol is in `numbers`, or −1 */
    float *numbers;         /* [S][c]: of the S distinct symbols of these words */
    int64_t distinct;       /* S */
    float *products;        /* [threads of these words][widest filter][S][WIDTH] */
    int64_t product_room;   /* numbers of `products` that one thread has */
    float *x, *next;        /* [WORDS][padded F] */
    uint8_t *small;         /* [WORDS][2][padded F] */
    float *scales;          /* [WORDS][2] */
    float *rest;            /* [threads of these words][padded F] */
    int32_t *sums;          /* [threads of these words][2][2 · WORDS][WIDTH] */
};

struct characters_office {
    const struct characters *job;
    struct characters_buffers *all_buffers; /* one, or [threads] */
    struct stages *stages;
    atomic_int unknown; /* whether an id is in no row of the table */
};

/* One thread at work on n words from `first`. */
struct member {
    const struct characters *job;
    struct characters_buffers *buffers;
    struct sharer everyone; /* this thread among all of the call */
    struct sharer alone;
    struct sharer *sharers; /* of the words: one of the two */
    int64_t first, n;
    float *rest, *products;
    float *x, *next;       /* what a highway reads and what it writes, in turns */
    int32_t *sums, *gates; /* [2 · WORDS][WIDTH] */
};

/* The larger one in each lane; what is not a number stays. */
INLINE floats larger(floats a, floats b) { return where((b > a) | (b != b), b, a); }

/* The biases of a panel's outputs. */
INLINE void take_bias(const struct product *p, int64_t panel, float *bias) {
    memset(bias, 0, WIDTH * sizeof(float));
    memcpy(bias, p->bias + panel * WIDTH, smaller(WIDTH, p->weight.outputs - panel * WIDTH) * sizeof(float));
}

/* products [width][S][WIDTH] = each symbol's numbers at each place of a window times a panel's weights for that place. */
static void symbol_products(const struct member *me, const struct filters *f, int64_t panel) {
    const struct characters_buffers *buffers = me->buffers;
    int64_t size = me->job->size, count = buffers->distinct;
    struct matrix place = f->product.weight; /* its inputs of one place */
    const char *weights = panel_at(&place, panel);
    place.inputs = size;
    memset(me->products, 0, f->width * count * WIDTH * sizeof(float));
    for (int64_t j = 0; j < f->width; j++) {
        place.panels = weights;
        weights = panel_at(&place, 1);
        float_product(&place, count, buffers->numbers, size, 0, weights, me->products + j * count * WIDTH);
    }
}

/* The filters of a panel at work on all words; the first of them is output `output`. */
static void convolve_panel(const struct member *me, const struct filters *f, int64_t panel, int64_t output) {
    const struct characters *job = me->job;
    int64_t wide = padded(job->outputs), count = smaller(WIDTH, f->product.weight.outputs - panel * WIDTH);
    int64_t step = me->buffers->distinct * WIDTH;
    float bias[WIDTH] __attribute__((aligned(64)));
    take_bias(&f->product, panel, bias);
    symbol_products(me, f, panel);
    for (int64_t word = 0; word < me->n; word++) {
        const int32_t *symbols = me->buffers->symbols + word * job->longest;
        int64_t windows = smaller(me->buffers->lengths[word], job->longest - f->width) + 1;
        floats largest[GATES], up, down;
        for (int v = 0; v < GATES; v++) largest[v] = all(-INFINITY);
        for (int64_t p = 0; p < windows; p++) {
            floats sums[GATES] = {0};
            for (int64_t j = 0; j < f->width; j++) {
                const floats *row = (const floats *)(me->products + j * step + symbols[p + j] * WIDTH);
#pragma GCC unroll 4
                for (int v = 0; v < GATES; v++) sums[v] += row[v];
            }
#pragma GCC unroll 4
            for (int v = 0; v < GATES; v++) largest[v] = larger(largest[v], sums[v]);
        }
        for (int v = 0; v < GATES; v++) {
            largest[v] += *(const floats *)(bias + v * LANES);
            if (job->tanh) {
                tanh_fraction(largest[v], &up, &down);
                largest[v] = up / down;
            } else {
                largest[v] = at_least(0.0f, largest[v]);
            }
        }
        memcpy(me->x + word * wide + output, largest, count * sizeof(float));
    }
}

/* The symbols of all words, and their numbers. Returns 0, or 1 where the table has none for one of them. */
static int take_symbols(const struct member *me) {
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
                memcpy(buffers->numbers + distinct * job->size, job->table + id * job->size, job->size * sizeof(float));
                buffers->rows[id] = distinct++;
            }
            buffers->symbols[word * job->longest + p] = buffers->rows[id];
        }
    }
    buffers->distinct = distinct;
    return unknown;
}

/* sums [n][WIDTH] = x · panel + bias, in float32. */
static void product_panel(const struct member *me, const struct product *p, int64_t panel, int32_t *sums) {
    struct characters_buffers *buffers = me->buffers;
    const struct matrix *m = &p->weight;
    int64_t wide = padded(me->job->outputs), next = smaller(panel + 1, panel_count(m) - 1);
    const char *after = panel_at(m, next);
    float bias[WIDTH] __attribute__((aligned(64)));
    take_bias(p, panel, bias);
    if (me->job->int8) {
        int8_product(m, 2 * me->n, buffers->small, wide, panel, after, sums);
        add_both((float *)sums, bias, me->n, sums, m->scales + panel * WIDTH, buffers->scales);
    } else {
        for (int64_t word = 0; word < me->n; word++) memcpy(sums + word * WIDTH, bias, sizeof bias);
        float_product(m, me->n, me->x, wide, panel, after, (float *)sums);
    }
}

/* next = g · what is above 0 of the transform + (1 − g) · x, with g the logistic function of the gate. */
static void highway_panel(const struct member *me, const struct highway *h, int64_t panel) {
    int64_t wide = padded(me->job->outputs), at = panel * WIDTH;
    product_panel(me, &h->transform, panel, me->sums);
    product_panel(me, &h->gate, panel, me->gates);
    for (int64_t word = 0; word < me->n; word++)
        for (int v = 0; v < WIDTH; v += LANES) {
            floats gate = all(1.0f) / one_over_sigmoid(*(const floats *)(me->gates + word * WIDTH + v));
            floats fresh = at_least(0.0f, *(const floats *)(me->sums + word * WIDTH + v));
            floats old = (all(1.0f) - gate) * *(const floats *)(me->x + word * wide + at + v);
            *(floats *)(me->next + word * wide + at + v) = times_plus(gate, fresh, old);
        }
}

/* Words as a product with m reads them in int8. They are multiplied by the factors of its columns for good: that
   product must be the last one. */
static void quantise_words(struct member *me, const struct matrix *m) {
    struct characters_buffers *buffers = me->buffers;
    int64_t count = me->job->outputs, wide = padded(count);
    for (int64_t word; (word = take_row(me->sharers, me->n)) >= 0;) {
        float *x = me->x + word * wide;
        for (int64_t k = 0; m->columns && k < count; k++) x[k] *= m->columns[k];
        quantise_twice(x, count, buffers->small + 2 * word * wide, wide, buffers->scales + 2 * word, me->rest);
    }
}

/* All filters at work on all words, panel by panel. */
static void convolve_words(struct member *me) {
    const struct characters *job = me->job;
    int64_t panels = 0;
    for (int64_t i = 0; i < job->widths; i++) panels += panel_count(&job->filters[i].product.weight);
    for (int64_t panel; (panel = take_item(me->sharers, panels)) >= 0;) {
        const struct filters *f = job->filters;
        int64_t output = 0;
        for (; panel >= panel_count(&f->product.weight); f++) {
            panel -= panel_count(&f->product.weight);
            output += f->product.weight.outputs;
        }
        convolve_panel(me, f, panel, output + panel * WIDTH);
    }
}

static void encode_words(struct member *me, struct characters_office *office) {
    const struct characters *job = me->job;
    int64_t wide = padded(job->outputs);
    while (take_item(me->sharers, 1) >= 0)
        if (take_symbols(me)) atomic_store(&office->unknown, 1);
    convolve_words(me);
    for (const struct highway *h = job->highways; h < job->highways + job->depth; h++) {
        if (job->int8) quantise_words(me, &h->gate.weight);
        for (int64_t panel; (panel = take_item(me->sharers, panel_count(&h->gate.weight))) >= 0;)
            highway_panel(me, h, panel);
        float *x = me->x;
        me->x = me->next;
        me->next = x;
    }
    const struct matrix *m = &job->projection.weight;
    if (m->panels) {
        if (job->int8) quantise_words(me, m);
        for (int64_t panel; (panel = take_item(me->sharers, panel_count(m))) >= 0;) {
            int64_t at = panel * WIDTH, count = smaller(WIDTH, m->outputs - at);
            product_panel(me, &job->projection, panel, me->sums);
            for (int64_t word = 0; word < me->n; word++)
                memcpy(
                    job->y + (me->first + word) * m->outputs + at, me->sums + word * WIDTH, count * sizeof(float)
                );
        }
    } else {
        for (int64_t word; (word = take_row(me->sharers, me->n)) >= 0;)
            memcpy(job->y + (me->first + word) * job->outputs, me->x + word * wide, job->outputs * sizeof(float));
    }
}

/* Words that go through all matrices together: all threads have about as many. */
static int64_t words_together(const struct characters *job) {
    int64_t threads = job->shared ? 1 : job->threads;
    return ceiling(job->words, threads * ceiling(job->words, threads * WORDS));
}

/* The words that come after part `number`, −1 after the last: all in turn where threads share them, else not taken. */
static int64_t next_words(struct member *me, int64_t number, int64_t count) {
    if (me->sharers == &me->everyone) return number + 1 < count ? number + 1 : -1;
    return take_item(&me->everyone, count);
}

static void characters_work(void *given, int rank, int size) {
    struct characters_office *office = given;
    const struct characters *job = office->job;
    int64_t together = words_together(job), parts = ceiling(job->words, together), at = job->shared ? rank : 0;
    struct member me = {
        .job = job,
        .buffers = office->all_buffers + (job->shared ? 0 : rank),
        .everyone = {.stages = office->stages, .rank = rank, .size = size},
        .alone = {.size = 1},
    };
    me.sharers = job->shared ? &me.everyone : &me.alone;
    me.sums = me.buffers->sums + at * 4 * WORDS * WIDTH;
    me.gates = me.sums + 2 * WORDS * WIDTH;
    me.rest = me.buffers->rest + at * padded(job->outputs);
    me.products = me.buffers->products + at * me.buffers->product_room;
    for (int64_t part = -1; (part = next_words(&me, part, parts)) >= 0;) {
        me.first = part * together;
        me.n = smaller(together, job->words - me.first);
        me.x = me.buffers->x;
        me.next = me.buffers->next;
        encode_words(&me, office);
    }
}

/* Sets out a buffers at `at`, or only measures it where `at` is NULL; returns its size in bytes. */
static int64_t set_out_characters(
    struct characters_buffers *buffers, const struct characters *job, int64_t members, char *at
) {
    int64_t used = 0, n = smaller(WORDS, job->words), wide = padded(job->outputs);
    int64_t most = smaller(job->symbols, n * job->longest), widest = 0; /* most: distinct symbols */
    for (int64_t i = 0; i < job->widths; i++) widest = larger_of(widest, job->filters[i].width);
    buffers->product_room = widest * most * WIDTH;
#define TAKE(WHAT, COUNT)                                      \
    buffers->WHAT = (void *)(at + used);                          \
    used += padded((int64_t)(COUNT) * sizeof(*buffers->WHAT));
    TAKE(lengths, n)
    TAKE(symbols, n * job->longest)
    TAKE(rows, job->symbols)
    TAKE(numbers, most * job->size)
    TAKE(products, members * buffers->product_room)
    TAKE(x, n * wide)
    TAKE(next, n * wide)
    TAKE(sums, members * 4 * WORDS * WIDTH)
    if (job->int8) {
        TAKE(small, 2 * n * wide)
        TAKE(scales, 2 * n)
        TAKE(rest, members * wide)
    }
#undef TAKE
    return used;
}

#endif
