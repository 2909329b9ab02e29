/* All blocks of a Transformer over the tokens of a flat batch, in which one segment (sentence) follows the other.

   N tokens of P numbers, H heads of E = P / H numbers, I numbers inside the feed-forward part.

   Tokens are worked on in tiles. Few tokens are one tile: all threads share the panels of every matrix, so that each
   weight is read once. Many tokens are many tiles, each of whole segments, which go through all blocks while their
   numbers stay in the cache, and every thread has tiles of its own. A segment that is too long for a tile is cut: its
   tiles go through one block together, and each also computes the keys and values of the tokens around it that its own
   tokens see.

   A token's numbers are sums in an order that depends only on its place in its segment: they are the same to the last
   bit in any batch, in any tile and with any number of threads. */

#ifndef ELMOKIT_TRANSFORMER_H
#define ELMOKIT_TRANSFORMER_H

#include "helpers.h"
#include "linear.h"

#define TILE_TOKENS 256 /* tokens of a tile, about */
#define OWN_TOKENS 128  /* the same where each thread has tiles of its own, which shall all be done at the same time */
#define TILE_UNIT 48    /* tiles of a long segment begin at multiples of this: of LANES and ROWS */
#define BOTH 0
#define FORWARD 1
#define BACKWARD 2

struct block {
    struct matrix qkv, out, up, down; /* up has 2 gates: the numbers, and what goes through gelu */
    const float *gate_weight, *gate_bias; /* [H][P], [H] */
};

struct transformer {
    int64_t size, inner, heads, window, int8, most_parts; /* most_parts: of any matrix */
    const struct block *blocks;
    int64_t n_blocks;
    const float *x;                /* [N][P] */
    const int64_t *starts, *ways;  /* [S + 1], [S]: BOTH, FORWARD or BACKWARD, what tokens see besides themselves */
    int64_t segments;
    const float *cos, *sin;        /* [longest segment][E / 2] */
    const int64_t *places;         /* [blocks + 1]: which output is the state after so many blocks, or −1 */
    float *y;                      /* [outputs][N][P] */
    const struct matrix *head;     /* [S][P], what the softmax reads, or NULL */
    const float *head_bias;        /* [padded S] */
    float *prediction;             /* [N][P] */
    int64_t threads, shared; /* shared: whether all threads work on the same tile */
};

/* Tokens begin to end, and from..to around them whose keys and values they need; segments first to last. */
struct tile {
    int64_t begin, end, from, to, first, last;
};

/* What the numbers of one tile are in. */
struct workspace {
    float *x;       /* [n][padded P] */
    float *rows;    /* [n][padded P]: what a product reads, then what attention found */
    float *wide;    /* [n][padded 3P or I]: queries, keys and values, then the inner numbers */
    float *gates;   /* [n][padded H] */
    uint8_t *small; /* [n][padded P or I, and repeats]: what a product reads in int8, and what a unit of it is worth */
    float *units;   /* [parts][n] */
    int64_t most;   /* tokens that there is memory for */
};

/* What one thread works in. */
struct scratch {
    float *sums;   /* [SUM_ROWS][WIDTH] */
    float *query;  /* [ROWS][E] */
    float *turned; /* [LANES][E]: keys before they go into panels */
    float *keys;   /* [panels of keys][E][WIDTH] */
    float *values; /* [panels of E][n][WIDTH] */
    float *shares; /* [ROWS][n + WIDTH]: of each key in a query's result */
};

struct tiling {
    const struct transformer *job;
    struct tile *tiles; /* of whole segments */
    int64_t count, most; /* tiles, and tokens of the largest, those around it included */
    int64_t longest;     /* tokens of the longest segment that has to be cut */
    struct workspace *workspaces; /* one, or [threads] */
    char *scratches;              /* [threads], each of so many bytes */
    int64_t scratch_bytes;
    float *states[2]; /* [longest][P]: before and after a block */
    struct stages *stages;
};

/* One thread at work on a tile. */
struct tiler {
    const struct transformer *job;
    struct workspace *space;
    struct scratch scratch;
    struct tile tile;
    struct sharer everyone; /* this thread among all of the call */
    struct sharer alone;
    struct sharer *sharers; /* of the tile: one of the two */
};

/* ---- rows ---- */

#define CHAINS 4 /* sums side by side, so that they need not wait for each other */

/* Σ (x − mean)², or Σ x. */
INLINE float row_sum(const int squares, const float *x, int64_t count, float mean) {
    floats sums[CHAINS] = {0};
    int64_t k = 0;
    for (; k + CHAINS * LANES <= count; k += CHAINS * LANES)
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; chain++) {
            floats value = load(x + k + chain * LANES) - all(mean);
            sums[chain] = times_plus(value, squares ? value : all(1.0f), sums[chain]);
        }
    for (; k + LANES <= count; k += LANES) {
        floats value = load(x + k) - all(mean);
        sums[0] = times_plus(value, squares ? value : all(1.0f), sums[0]);
    }
    float sum = total((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; k < count; k++) sum += squares ? (x[k] - mean) * (x[k] - mean) : x[k] - mean;
    return sum;
}

INLINE float row_product(const float *a, const float *b, int64_t count) {
    floats sums[CHAINS] = {0};
    int64_t k = 0;
    for (; k + CHAINS * LANES <= count; k += CHAINS * LANES)
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; chain++)
            sums[chain] = times_plus(load(a + k + chain * LANES), load(b + k + chain * LANES), sums[chain]);
    for (; k + LANES <= count; k += LANES) sums[0] = times_plus(load(a + k), load(b + k), sums[0]);
    float sum = total((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; k < count; k++) sum += a[k] * b[k];
    return sum;
}

/* What makes a row's mean 0 and its variance 1. */
INLINE float row_mean(const float *row, int64_t count) { return row_sum(0, row, count, 0.0f) / (float)count; }
INLINE float row_scale(const float *row, int64_t count, float mean) {
    return 1.0f / sqrtf(row_sum(1, row, count, mean) / (float)count + 1e-5f);
}

/* The normed row; `to` may be the row itself. */
static void norm_row(const float *row, int64_t count, float *to) {
    float mean = row_mean(row, count), scale = row_scale(row, count, mean);
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES) store(to + k, (load(row + k) - all(mean)) * all(scale));
    for (; k < count; k++) to[k] = (row[k] - mean) * scale;
}

/* `count` numbers of a row from `first` on, less its mean, as a product with m reads them in int8. */
static float quantise_inputs(
    const struct matrix *m, float mean, const float *row, int64_t first, int64_t count, uint8_t *to
) {
    if (m->columns) return quantise_around(mean, m->columns + first, row + first, count, to);
    return quantise_around(mean, NULL, row + first, count, to);
}

/* The normed row in int8 as row number `number` of what a product with m reads, each part with a unit of its own. */
static void norm_small_row(const struct tiler *me, const float *row, const struct matrix *m, int64_t number) {
    struct workspace *space = me->space;
    int64_t size = part_size(m), count = m->inputs - m->repeats;
    float mean = row_mean(row, count), scale = row_scale(row, count, mean);
    float *units = space->units + number, rest[MOST_REPEATS];
    uint8_t *to = space->small + number * padded(m->inputs);
    int64_t part = 0, done = 0; /* done: inputs of which remainders have been taken */
    for (int64_t k = 0; k < count; k += size, part++) {
        float unit = quantise_inputs(m, mean, row, k, smaller(size, count - k), to + k);
        units[part * space->most] = scale * unit;
        for (; done < m->repeats && m->repeated[done] < k + size; done++) {
            int64_t i = m->repeated[done];
            float value = m->columns ? (row[i] - mean) * m->columns[i] : row[i] - mean;
            rest[done] = value - (float)(to[i] - 128) * unit;
        }
    }
    if (m->repeats) units[part * space->most] = scale * quantise(rest, m->repeats, to + count);
}

/* Rows first to last normed for a product with m: in `to`, or in int8. */
static void norm_rows(
    const struct tiler *me, const float *from, float *to, const struct matrix *m, int64_t first, int64_t last
) {
    int64_t stride = padded(m->inputs - m->repeats);
    for (int64_t item; (item = take_row(me->sharers, last - first)) >= 0;) {
        int64_t row = first + item;
        if (me->job->int8)
            norm_small_row(me, from + row * stride, m, row);
        else
            norm_row(from + row * stride, m->inputs, to + row * stride);
    }
}

/* ---- products ---- */

/* Rows from `row` on, n of them at most SUM_ROWS, and a panel of a matrix. */
struct piece {
    const struct matrix *m;
    int64_t row, n, panel;
};

/* The sums of all parts in float32. */
static void small_product(const struct tiler *me, const struct piece *piece, const char *after) {
    const struct matrix *m = piece->m;
    const uint8_t *rows = me->space->small + piece->row * padded(m->inputs);
    for (int64_t part = 0; part < m->parts; part++) {
        const float *units = me->space->units + part * me->space->most + piece->row;
        int8_part_product(
            m, part, piece->n, rows, padded(m->inputs), piece->panel, after, me->scratch.sums,
            &(struct units){m->scales + piece->panel * WIDTH, units, part > 0}
        );
    }
}

/* What becomes of a product: it is stored, added, or the first half of a panel is multiplied by gelu of the second. */
enum ending { STORE, ADD, GATED };

INLINE void end_piece(const enum ending ending, const float *sums, int64_t n, float *to, int64_t stride) {
    for (int64_t r = 0; r < n; r++, sums += WIDTH, to += stride)
#pragma GCC unroll 4
        for (int v = 0; v < (ending == GATED ? WIDTH / 2 : WIDTH); v += LANES) {
            floats sum = *(const floats *)(sums + v), *at = (floats *)(to + v);
            if (ending == GATED)
                *at = sum * gelu(*(const floats *)(sums + v + WIDTH / 2));
            else
                *at = sum + (ending == ADD ? *at : all(0.0f));
        }
}

/* m times rows first to last, of `rows` or in int8 of `small`. The matrix `then` comes next. */
INLINE void multiply(
    const struct tiler *me, const enum ending ending, const struct matrix *m, const struct matrix *then,
    const float *rows, int64_t first, int64_t last, float *to, int64_t stride
) {
    int64_t start, stop, wide = padded(m->inputs), panels = panel_count(m);
    share(panel_count(then), me->sharers->rank, me->sharers->size, &start, &stop);
    const char *coming = panel_at(then, start);
    share(panels, me->sharers->rank, me->sharers->size, &start, &stop);
    for (int64_t panel; (panel = take_item(me->sharers, panels)) >= 0;)
        for (int64_t row = first; row < last; row += SUM_ROWS) {
            struct piece piece = {m, row, smaller(SUM_ROWS, last - row), panel};
            const char *after = panel + 1 == stop || panel + 1 == panels ? coming : panel_at(m, panel + 1);
            if (row > first) after = panel_at(m, panel); /* it has come already */
            float *end = to + row * stride + panel * (WIDTH / m->gates);
            if (me->job->int8) {
                small_product(me, &piece, after);
            } else {
                memset(me->scratch.sums, 0, piece.n * WIDTH * sizeof(float));
                float_product(m, piece.n, rows + row * wide, wide, panel, after, me->scratch.sums);
            }
            end_piece(ending, me->scratch.sums, piece.n, end, stride);
        }
}

/* ---- attention ---- */

/* A head's numbers of a token, made as long as √E times `scale` and turned by its place. */
static void turn(const struct transformer *job, const float *from, int64_t place, float scale, float *restrict to) {
    int64_t half = job->size / job->heads / 2;
    const float *cos = job->cos + place * half, *sin = job->sin + place * half;
    float mean = row_sum(1, from, 2 * half, 0.0f) / (float)(2 * half);
    scale /= sqrtf(mean + 1.1920929e-07f);
    int64_t e = 0;
    for (; e + LANES <= half; e += LANES) {
        floats a = load(from + e) * all(scale), b = load(from + half + e) * all(scale);
        floats c = load(cos + e), s = load(sin + e);
        store(to + e, a * c - b * s);
        store(to + half + e, b * c + a * s);
    }
    for (; e < half; e++) {
        float a = from[e] * scale, b = from[half + e] * scale;
        to[e] = a * cos[e] - b * sin[e];
        to[half + e] = b * cos[e] + a * sin[e];
    }
}

/* Tokens of one segment that a tile has keys and values of, and that it has queries of. */
struct span {
    int64_t start;      /* of the segment */
    int64_t from, to;   /* keys */
    int64_t begin, end; /* queries */
    int64_t left, right; /* tokens that one sees to either side */
};

static struct span span_of(const struct transformer *job, const struct tile *tile, int64_t segment) {
    int64_t start = job->starts[segment], stop = job->starts[segment + 1], way = job->ways[segment];
    return (struct span){
        .start = start,
        .from = larger_of(start, tile->from),
        .to = smaller(stop, tile->to),
        .begin = larger_of(start, tile->begin),
        .end = smaller(stop, tile->end),
        .left = way == BACKWARD ? 0 : job->window,
        .right = way == FORWARD ? 0 : job->window,
    };
}

/* to [count][WIDTH], LANES columns of it, = rows [LANES][count] with rows as columns. */
static void transpose(const float *rows, int64_t count, float *to) {
    int64_t e = 0;
#if LANES == 16
    for (; e + 4 <= count; e += 4) {
        __m512 four[4]; /* numbers e to e + 3 of rows i, 4 + i, 8 + i, 12 + i */
        for (int i = 0; i < 4; i++) {
            const float *from = rows + i * count + e;
            four[i] = _mm512_castps128_ps512(_mm_loadu_ps(from));
            four[i] = _mm512_insertf32x4(four[i], _mm_loadu_ps(from + 4 * count), 1);
            four[i] = _mm512_insertf32x4(four[i], _mm_loadu_ps(from + 8 * count), 2);
            four[i] = _mm512_insertf32x4(four[i], _mm_loadu_ps(from + 12 * count), 3);
        }
        __m512d low01 = (__m512d)_mm512_unpacklo_ps(four[0], four[1]);
        __m512d low23 = (__m512d)_mm512_unpacklo_ps(four[2], four[3]);
        __m512d high01 = (__m512d)_mm512_unpackhi_ps(four[0], four[1]);
        __m512d high23 = (__m512d)_mm512_unpackhi_ps(four[2], four[3]);
        _mm512_store_ps(to + e * WIDTH, (__m512)_mm512_unpacklo_pd(low01, low23));
        _mm512_store_ps(to + (e + 1) * WIDTH, (__m512)_mm512_unpackhi_pd(low01, low23));
        _mm512_store_ps(to + (e + 2) * WIDTH, (__m512)_mm512_unpacklo_pd(high01, high23));
        _mm512_store_ps(to + (e + 3) * WIDTH, (__m512)_mm512_unpackhi_pd(high01, high23));
    }
#endif
    for (; e < count; e++)
        for (int lane = 0; lane < LANES; lane++) to[e * WIDTH + lane] = rows[lane * count + e];
}

/* The keys of a head in panels of WIDTH tokens, and its values in panels of WIDTH numbers. */
static void take_keys(const struct tiler *me, const struct span *span, int64_t head) {
    const struct transformer *job = me->job;
    int64_t size = job->size / job->heads, stride = padded(3 * job->size), n = span->to - span->from;
    const float *wide = me->space->wide + (span->from - me->tile.from) * stride + head * size;
    for (int64_t token = 0; token < n; token++, wide += stride) {
        int64_t lane = token % LANES;
        turn(job, wide + job->size, span->from + token - span->start, 1.0f, me->scratch.turned + lane * size);
        if (lane == LANES - 1 || token == n - 1) /* lanes after the last token are never seen */
            transpose(
                me->scratch.turned, size,
                me->scratch.keys + token / WIDTH * WIDTH * size + token % WIDTH / LANES * LANES
            );
        for (int64_t e = 0; e < size; e += WIDTH)
            memcpy(
                me->scratch.values + (e * n + token * WIDTH), wide + 2 * job->size + e,
                smaller(WIDTH, size - e) * sizeof(float)
            );
    }
}

/* e^score of the keys lo to hi of a panel that begins at key `base`, 0 for others; they are added to `sum`. */
INLINE floats exp_between(
    const int V, const float *scores, int64_t base, int64_t lo, int64_t hi, floats sum, float *to
) {
    static const int32_t lanes[] __attribute__((aligned(64))) = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#pragma GCC unroll 4
    for (int v = 0; v < V * LANES; v += LANES) {
        ints key = *(const ints *)lanes + (int32_t)(base + v);
        ints seen = (key >= (int32_t)lo) & (key < (int32_t)hi);
        floats power, rest;
        exponential(*(const floats *)(scores + v), &power, &rest);
        power = where(seen, times_plus(power, rest, power), all(0.0f));
        *(floats *)(to + v) = power;
        sum = sum + power;
    }
    return sum;
}

/* e^score of R queries and the first V vectors of the panel of keys at `base`, and their sums. */
INLINE void score_panel(
    const int R, const int V, const struct tiler *me, const struct span *span, int64_t query, int64_t base,
    floats *weight
) {
    int64_t size = me->job->size / me->job->heads, n = span->to - span->from;
    float sums[ROWS * WIDTH] __attribute__((aligned(64)));
    memset(sums, 0, R * WIDTH * sizeof(float));
    float_tile(R, V, 0, size, me->scratch.query, size, me->scratch.keys + base * size, sums, (const char *)sums, 0);
    for (int r = 0; r < R; r++) {
        int64_t place = query + r - span->from;
        int64_t lo = larger_of(place - span->left, 0), hi = smaller(place + span->right + 1, n);
        float *shares = me->scratch.shares + r * padded(n) + base;
        weight[r] = exp_between(V, sums + r * WIDTH, base, lo, hi, weight[r], shares);
    }
}

/* R queries of a head from token `query` on. Vectors have length √E, so scores are at most √E: no need of a maximum. */
INLINE void attend_tile(const int R, const struct tiler *me, const struct span *span, int64_t head, int64_t query) {
    const struct transformer *job = me->job;
    const struct scratch *scratch = &me->scratch;
    int64_t size = job->size / job->heads, n = span->to - span->from, stride = padded(n);
    int64_t tile_from = me->tile.from, wide = padded(3 * job->size);
    /* Keys count from span->from. All rows of the tile take those that any of them sees. */
    int64_t first = larger_of(0, query - span->left - span->from);
    int64_t last = smaller(n, query + R + span->right - span->from);
    float sums[ROWS * WIDTH] __attribute__((aligned(64)));
    floats weight[ROWS];
    for (int r = 0; r < R; r++) {
        const float *from = me->space->wide + (query + r - tile_from) * wide + head * size;
        turn(job, from, query + r - span->start, 1.0f / sqrtf((float)size), scratch->query + r * size);
        weight[r] = all(0.0f);
    }
    for (int64_t base = first / WIDTH * WIDTH; base < last; base += WIDTH) {
        if (last - base > WIDTH / 2)
            score_panel(R, GATES, me, span, query, base, weight);
        else
            score_panel(R, GATES / 2, me, span, query, base, weight);
    }
    for (int64_t e = 0; e < size; e += WIDTH) {
        const float *values = scratch->values + e * n + first * WIDTH;
        memset(sums, 0, R * WIDTH * sizeof(float));
        float_tile(R, GATES, 0, last - first, scratch->shares + first, stride, values, sums, (const char *)sums, 0);
        for (int r = 0; r < R; r++) {
            int64_t row = query + r - tile_from, count = smaller(WIDTH, size - e);
            float scale = me->space->gates[row * padded(job->heads) + head] / total(weight[r]);
            float *to = me->space->rows + row * padded(job->size) + head * size + e;
            for (int64_t i = 0; i < count; i++) to[i] = sums[r * WIDTH + i] * scale;
        }
    }
}

/* What all tokens of the tile see, times their gates, into `rows`; heads of segments are divided among threads. */
static void attend(const struct tiler *me) {
    const struct transformer *job = me->job;
    const struct tile *tile = &me->tile;
    for (int64_t item; (item = take_item(me->sharers, (tile->last - tile->first) * job->heads)) >= 0;) {
        int64_t head = item % job->heads;
        struct span span = span_of(job, tile, tile->first + item / job->heads);
        take_keys(me, &span, head);
        for (int64_t query = span.begin; query < span.end; query += ROWS) {
            int64_t high = smaller(ROWS, span.end - query);
#define CALL(R) attend_tile(R, me, &span, head, query)
            TILE_CASES(high)
#undef CALL
        }
    }
}

/* ---- blocks ---- */

/* A row of the tile's states before block `number`: a normed input, or what the block before it left in `from`. */
static void take_state(const struct tiler *me, int64_t number, int64_t row, const float *from, int64_t origin) {
    const struct transformer *job = me->job;
    int64_t token = me->tile.from + row;
    float *x = me->space->x + row * padded(job->size);
    memset(x + job->size, 0, (padded(job->size) - job->size) * sizeof(float));
    if (number)
        memcpy(x, from + (token - origin) * job->size, job->size * sizeof(float));
    else
        norm_row(job->x + token * job->size, job->size, x);
}

/* A token's state after `number` blocks, where it is wanted. */
static void give_out(const struct tiler *me, int64_t number, int64_t token, const float *normed) {
    const struct transformer *job = me->job;
    if (job->places[number] < 0 || token < me->tile.begin || token >= me->tile.end) return;
    int64_t tokens = job->starts[job->segments];
    memcpy(job->y + (job->places[number] * tokens + token) * job->size, normed, job->size * sizeof(float));
}

/* Where a tile's states before a block come from: they are in its workspace already, or in rows after `origin`. */
struct origin {
    int taken;
    const float *states;
    int64_t first;
};

/* Normed states, and from them the gates of the heads. */
static void begin_block(const struct tiler *me, int64_t number, const struct origin *origin) {
    const struct transformer *job = me->job;
    const struct block *block = job->blocks + number;
    struct workspace *space = me->space;
    for (int64_t row; (row = take_row(me->sharers, me->tile.to - me->tile.from)) >= 0;) {
        if (!origin->taken) take_state(me, number, row, origin->states, origin->first);
        float *x = space->x + row * padded(job->size), *normed = space->rows + row * padded(job->size);
        norm_row(x, job->size, normed);
        uint8_t *small = space->small + row * padded(job->size);
        if (job->int8) space->units[row] = quantise_inputs(&block->qkv, 0.0f, normed, 0, job->size, small);
        give_out(me, number, me->tile.from + row, number ? normed : x);
        float *gates = space->gates + row * padded(job->heads);
        for (int64_t head = 0; head < job->heads; head++)
            gates[head] = block->gate_bias[head] + row_product(normed, block->gate_weight + head * job->size, job->size);
        for (int64_t head = 0; head < job->heads; head += LANES)
            *(floats *)(gates + head) = all(1.0f) / one_over_sigmoid(*(const floats *)(gates + head));
    }
}

static void run_block(const struct tiler *me, int64_t number, const struct origin *origin) {
    const struct transformer *job = me->job;
    const struct block *block = job->blocks + number, *coming = number + 1 < job->n_blocks ? block + 1 : block;
    struct workspace *space = me->space;
    int64_t wide = padded(job->size), inner = padded(job->inner);
    int64_t all_rows = me->tile.to - me->tile.from;
    int64_t first = me->tile.begin - me->tile.from, last = me->tile.end - me->tile.from;
    begin_block(me, number, origin);
    multiply(me, STORE, &block->qkv, &block->out, space->rows, 0, all_rows, space->wide, padded(3 * job->size));
    attend(me);
    norm_rows(me, space->rows, space->rows, &block->out, first, last);
    multiply(me, ADD, &block->out, &block->up, space->rows, first, last, space->x, wide);
    norm_rows(me, space->x, space->rows, &block->up, first, last);
    multiply(me, GATED, &block->up, &block->down, space->rows, first, last, space->wide, inner);
    norm_rows(me, space->wide, space->wide, &block->down, first, last);
    multiply(me, ADD, &block->down, &coming->qkv, space->wide, first, last, space->x, wide);
}

/* What the head makes of a token: gelu of the product and its bias, normed, as long as a layer, with zeros after it. */
static void predict_row(const struct transformer *job, float *row, int64_t token) {
    int64_t count = job->head->outputs;
    float *to = job->prediction + token * job->size, longer = sqrtf((float)job->size / (float)count);
    for (int64_t k = 0; k < count; k += LANES)
        *(floats *)(row + k) = gelu(*(const floats *)(row + k) + load(job->head_bias + k));
    norm_row(row, count, row);
    for (int64_t k = 0; k < count; k++) to[k] = row[k] * longer;
    memset(to + count, 0, (job->size - count) * sizeof(float));
}

/* The states of the tile after the last block, and what the head makes of them. */
static void end_blocks(const struct tiler *me) {
    const struct transformer *job = me->job;
    const struct matrix *head = job->head;
    struct workspace *space = me->space;
    int64_t first = me->tile.begin - me->tile.from, tokens = me->tile.end - me->tile.begin;
    if (job->places[job->n_blocks] < 0 && !head) return;
    for (int64_t item; (item = take_row(me->sharers, tokens)) >= 0;) {
        int64_t row = first + item;
        float *x = space->x + row * padded(job->size);
        if (job->n_blocks)
            norm_row(x, job->size, x);
        else
            take_state(me, 0, row, NULL, 0);
        give_out(me, job->n_blocks, me->tile.begin + item, x);
        uint8_t *small = space->small + row * padded(job->size);
        if (head && job->int8) space->units[row] = quantise_inputs(head, 0.0f, x, 0, job->size, small);
    }
    if (!head) return;
    int64_t stride = padded(head->outputs);
    multiply(me, STORE, head, head, space->x, first, first + tokens, space->wide, stride);
    for (int64_t item; (item = take_row(me->sharers, tokens)) >= 0;)
        predict_row(job, space->wide + (first + item) * stride, me->tile.begin + item);
}

/* ---- tiles ---- */

/* The tile that comes after `number`, −1 after the last: all in turn where threads share them, else one not taken. */
static int64_t next_tile(struct tiler *me, int64_t number, int64_t count) {
    if (me->sharers == &me->everyone) return number + 1 < count ? number + 1 : -1;
    return take_item(&me->everyone, count);
}

static void run_whole_segments(struct tiling *tiling, struct tiler *me) {
    for (int64_t number = -1; (number = next_tile(me, number, tiling->count)) >= 0;) {
        me->tile = tiling->tiles[number];
        for (int64_t block = 0; block < me->job->n_blocks; block++)
            run_block(me, block, &(struct origin){.taken = block > 0});
        end_blocks(me);
    }
}

static int64_t most_whole(const struct transformer *job) { return TILE_TOKENS + 2 * job->window; }

static int64_t workspace_count(const struct transformer *job) { return job->shared ? 1 : job->threads; }

/* Tiles of about so many tokens that `tokens` are divided into: every workspace has as many. */
static int64_t tile_count(const struct transformer *job, int64_t tokens, int64_t of_a_tile) {
    int64_t spaces = workspace_count(job);
    return larger_of(1, spaces * ceiling(tokens, spaces * of_a_tile));
}

/* Tile `number` of a long segment, with the tokens around it that it sees. */
static struct tile cut(const struct transformer *job, int64_t segment, int64_t height, int64_t number) {
    int64_t start = job->starts[segment], stop = job->starts[segment + 1];
    struct tile tile = {.begin = start + number * height, .first = segment, .last = segment + 1};
    tile.end = smaller(stop, tile.begin + height);
    tile.from = job->ways[segment] == BACKWARD ? tile.begin : larger_of(start, tile.begin - job->window);
    tile.from -= (tile.from - start) % TILE_UNIT; /* so that a key is in the same lane in every tile */
    tile.to = job->ways[segment] == FORWARD ? tile.end : smaller(stop, tile.end + job->window);
    return tile;
}

/* Block by block, because tiles need the states of those around them. */
static void run_long_segment(struct tiling *tiling, struct tiler *me, int64_t segment) {
    const struct transformer *job = me->job;
    int64_t start = job->starts[segment], tokens = job->starts[segment + 1] - start;
    int64_t height = ceiling(ceiling(tokens, tile_count(job, tokens, TILE_TOKENS)), TILE_UNIT) * TILE_UNIT;
    int64_t tiles = ceiling(tokens, height);
    for (int64_t block = 0; block < job->n_blocks; block++)
        for (int64_t number = -1; (number = next_tile(me, number, tiles)) >= 0;) {
            me->tile = cut(job, segment, height, number);
            run_block(me, block, &(struct origin){.states = tiling->states[block % 2], .first = start});
            if (block + 1 == job->n_blocks) {
                end_blocks(me);
                continue;
            }
            for (int64_t item; (item = take_row(me->sharers, me->tile.end - me->tile.begin)) >= 0;) {
                int64_t token = me->tile.begin + item;
                memcpy(
                    tiling->states[(block + 1) % 2] + (token - start) * job->size,
                    me->space->x + (token - me->tile.from) * padded(job->size), job->size * sizeof(float)
                );
            }
        }
}

static int is_long(const struct transformer *job, int64_t segment) {
    return job->n_blocks && job->starts[segment + 1] - job->starts[segment] > most_whole(job);
}

static struct scratch scratch_at(const struct transformer *job, int64_t most, char *at, int64_t *bytes);

static void transformer_work(void *given, int rank, int size) {
    struct tiling *tiling = given;
    const struct transformer *job = tiling->job;
    struct tiler me = {
        .job = job,
        .space = tiling->workspaces + (job->shared ? 0 : rank),
        .everyone = {.stages = tiling->stages, .rank = rank, .size = size},
        .alone = {.size = 1},
    };
    me.sharers = job->shared ? &me.everyone : &me.alone;
    me.scratch = scratch_at(job, tiling->most, tiling->scratches + rank * tiling->scratch_bytes, NULL);
    run_whole_segments(tiling, &me);
    for (int64_t segment = 0; tiling->longest && segment < job->segments; segment++)
        if (is_long(job, segment)) run_long_segment(tiling, &me, segment);
}

/* ---- memory ---- */

#define TAKE(OWNER, WHAT, COUNT)                               \
    (OWNER)->WHAT = (void *)(at + used);                       \
    used += padded((int64_t)(COUNT) * sizeof(*(OWNER)->WHAT));

/* A thread's memory at `at`; sets its size where that is asked for. */
static struct scratch scratch_at(const struct transformer *job, int64_t most, char *at, int64_t *bytes) {
    struct scratch scratch;
    int64_t used = 0, size = job->size / job->heads;
    TAKE(&scratch, sums, SUM_ROWS * WIDTH)
    TAKE(&scratch, query, ROWS * size)
    TAKE(&scratch, turned, LANES * size)
    TAKE(&scratch, keys, ceiling(most, WIDTH) * WIDTH * size)
    TAKE(&scratch, values, ceiling(size, WIDTH) * most * WIDTH)
    TAKE(&scratch, shares, ROWS * padded(most))
    if (bytes) *bytes = used;
    return scratch;
}

/* A workspace's memory at `at`; returns its size. */
static int64_t workspace_at(struct workspace *space, const struct transformer *job, int64_t most, char *at) {
    int64_t used = 0, wide = padded(larger_of(3 * job->size, job->inner));
    TAKE(space, x, most * padded(job->size))
    TAKE(space, rows, most * padded(job->size))
    TAKE(space, wide, most * wide)
    TAKE(space, gates, most * padded(job->heads))
    if (job->int8) {
        TAKE(space, small, most * padded(larger_of(job->size, job->inner) + MOST_REPEATS))
        TAKE(space, units, job->most_parts * most)
        space->most = most;
    }
    return used;
}
#undef TAKE

/* Divides segments that are not too long into tiles of about the same size, and finds what the others need. */
static void plan_tiles(struct tiling *tiling) {
    const struct transformer *job = tiling->job;
    int64_t tokens = 0, before = 0, last = -1; /* tokens of whole segments; those before this one; the tile before it */
    for (int64_t segment = 0; segment < job->segments; segment++)
        if (!is_long(job, segment)) tokens += job->starts[segment + 1] - job->starts[segment];
    int64_t count = tile_count(job, tokens, job->shared ? TILE_TOKENS : OWN_TOKENS);
    for (int64_t segment = 0; segment < job->segments; segment++) {
        int64_t start = job->starts[segment], stop = job->starts[segment + 1];
        if (is_long(job, segment)) {
            tiling->longest = larger_of(tiling->longest, stop - start);
            last = -1; /* tiles do not go across it */
            continue;
        }
        /* The tile that the middle of the segment falls into. */
        int64_t number = (2 * before + stop - start) * count / (2 * tokens + 1);
        if (last < 0 || number > last)
            tiling->tiles[tiling->count++] = (struct tile){.begin = start, .from = start, .first = segment};
        struct tile *tile = tiling->tiles + tiling->count - 1;
        tile->last = segment + 1;
        tile->end = tile->to = stop;
        tiling->most = larger_of(tiling->most, stop - tile->begin);
        before += stop - start;
        last = number;
    }
    if (tiling->longest) {
        int64_t around = 2 * job->window + TILE_UNIT;
        tiling->most = larger_of(tiling->most, TILE_TOKENS + TILE_UNIT + around);
    }
}

#endif
