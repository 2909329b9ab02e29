/* All blocks of a Transformer over the tokens of a flat batch: its segments (sentences) follow each other.

   N tokens of P numbers, H heads of E = P / H numbers, I numbers inside the feed-forward part.

   Tokens are computed in tiles. Few tokens are a single tile: all threads share the panels of every matrix, so that
   each weight is read once. Many tokens are divided into tiles of whole segments, and each thread computes its own
   tiles. A tile goes through all blocks while its numbers stay in the cache. A segment that is too long for a tile is
   cut: all its tiles go through one block before the next block, and each tile also computes the keys and values of
   the neighbouring tokens that its own tokens see.

   The order of every sum depends only on the token's position in its segment: so a token's vectors are the same, bit
   for bit, in any batch, in any tile and with any number of threads. */

#ifndef ELMOKIT_TRANSFORMER_H
#define ELMOKIT_TRANSFORMER_H

#include "helpers.h"
#include "linear.h"

#define TILE_TOKENS 256 /* about the number of tokens in a tile that all threads share, or of a long segment */
#define OWN_TOKENS 128  /* the same if each thread has its own tiles; fewer, so that all threads end together */
#define TILE_UNIT 48    /* tiles of a long segment begin at multiples of this, which is a multiple of LANES and ROWS */
#define BOTH 0
#define FORWARD 1
#define BACKWARD 2

struct block {
    struct matrix qkv, out, up, down; /* up has 2 gates: the values, and the inputs of gelu */
    const float *gate_weight, *gate_bias; /* [H][P], [H] */
};

struct transformer {
    int64_t size, inner, heads, window, int8, max_parts; /* max_parts: the most parts of a matrix */
    const struct block *blocks;
    int64_t n_blocks;
    const float *x;                /* [N][P] */
    const int64_t *starts;         /* [S + 1]: the first token of each segment, then N */
    const int64_t *directions;     /* [S]: what the tokens of a segment see, BOTH, FORWARD or BACKWARD */
    int64_t segments;
    const float *cos, *sin;        /* [longest segment][E / 2] */
    const int64_t *output_index;   /* [blocks + 1]: after each number of blocks, the index of the output, or −1 */
    float *y;                      /* [outputs][N][P] */
    const struct matrix *head;     /* [S][P]: the layer before the softmax, or NULL */
    const float *head_bias;        /* [padded S] */
    float *prediction;             /* [N][P] */
    int64_t threads, shared; /* shared: whether all threads work on the same tile */
};

/* The tokens begin to end of the segments first to last; it also has the keys and values of the tokens from..to. */
struct tile {
    int64_t begin, end, from, to, first, last;
};

/* The memory of one tile. */
struct workspace {
    float *x;           /* [n][padded P]: the states */
    float *rows;        /* [n][padded P]: the inputs of a product, then the results of attention */
    float *wide;        /* [n][padded 3P or I]: queries, keys and values, then the inner numbers */
    float *gates;       /* [n][padded H] */
    uint8_t *rows_int8; /* [n][padded P or I, and repeats]: the inputs of an int8 product */
    float *units;       /* [parts][n]: the scales of rows_int8 */
    int64_t most;       /* the number of tokens that fit */
};

/* The memory of one thread. */
struct scratch {
    float *sums;   /* [SUM_ROWS][WIDTH] */
    float *query;  /* [ROWS][E] */
    float *rotated; /* [LANES][E]: keys before they are packed into panels */
    float *keys;    /* [panels of keys][E][WIDTH] */
    float *values;  /* [panels of E][n][WIDTH] */
    float *weights; /* [ROWS][n + WIDTH]: e^score of each key for each query */
};

/* What the threads of one call share. */
struct tiling {
    const struct transformer *job;
    struct tile *tiles;  /* the tiles of whole segments */
    int64_t count, most; /* the number of tiles; the tokens of the largest tile, including its neighbours */
    int64_t longest;     /* the tokens of the longest segment that is cut, or 0 */
    struct workspace *workspaces; /* one, or [threads] */
    char *scratches;              /* [threads] of scratch_bytes each */
    int64_t scratch_bytes;
    float *states[2]; /* [longest][P]: before and after a block */
    struct stages *stages;
};

/* One thread that works on a tile. */
struct tile_worker {
    const struct transformer *job;
    struct workspace *space;
    struct scratch scratch;
    struct tile tile;
    struct participant in_call;   /* this thread as one of all threads of the call */
    struct participant alone;     /* this thread by itself */
    struct participant *in_group; /* this thread as one of those that share the tile: one of the two above */
};

/* ---- rows ---- */

#define CHAINS 4 /* independent partial sums, so that additions need not wait for each other */

/* Σ (x − mean)² if `squares`, otherwise Σ (x − mean). */
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
    float sum = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
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
    float sum = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; k < count; k++) sum += a[k] * b[k];
    return sum;
}

/* (row − mean) · scale has mean 0 and variance 1. */
INLINE float row_mean(const float *row, int64_t count) { return row_sum(0, row, count, 0.0f) / (float)count; }
INLINE float row_scale(const float *row, int64_t count, float mean) {
    return 1.0f / sqrtf(row_sum(1, row, count, mean) / (float)count + 1e-5f);
}

/* Normalises a row; `to` may be the row itself. */
static void norm_row(const float *row, int64_t count, float *to) {
    float mean = row_mean(row, count), scale = row_scale(row, count, mean);
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES) store(to + k, (load(row + k) - all(mean)) * all(scale));
    for (; k < count; k++) to[k] = (row[k] - mean) * scale;
}

/* Quantises `count` numbers of a row from `first` on, minus the row's mean, for a product with m; returns the scale. */
static float quantise_inputs(
    const struct matrix *m, float mean, const float *row, int64_t first, int64_t count, uint8_t *to
) {
    if (m->columns) return quantise_around(mean, m->columns + first, row + first, count, to);
    return quantise_around(mean, NULL, row + first, count, to);
}

/* Normalises and quantises a row as input `number` of a product with m; each part has its own scale. */
static void norm_row_int8(const struct tile_worker *me, const float *row, const struct matrix *m, int64_t number) {
    struct workspace *space = me->space;
    int64_t size = part_size(m), count = m->inputs - m->repeats;
    float mean = row_mean(row, count), scale = row_scale(row, count, mean);
    float *units = space->units + number, rest[MOST_REPEATS];
    uint8_t *to = space->rows_int8 + number * padded(m->inputs);
    int64_t part = 0, done = 0; /* done: the number of rounding errors computed so far */
    for (int64_t k = 0; k < count; k += size, part++) {
        float unit = quantise_inputs(m, mean, row, k, min_int(size, count - k), to + k);
        units[part * space->most] = scale * unit;
        for (; done < m->repeats && m->repeated[done] < k + size; done++) {
            int64_t i = m->repeated[done];
            float value = m->columns ? (row[i] - mean) * m->columns[i] : row[i] - mean;
            rest[done] = value - (float)(to[i] - 128) * unit;
        }
    }
    if (m->repeats) units[part * space->most] = scale * quantise(rest, m->repeats, to + count);
}

/* Normalises the rows first to last for a product with m, into `to`, or into rows_int8 for int8. */
static void norm_rows(
    const struct tile_worker *me, const float *from, float *to, const struct matrix *m, int64_t first, int64_t last
) {
    int64_t stride = padded(m->inputs - m->repeats);
    for (int64_t item; (item = take_row(me->in_group, last - first)) >= 0;) {
        int64_t row = first + item;
        if (me->job->int8)
            norm_row_int8(me, from + row * stride, m, row);
        else
            norm_row(from + row * stride, m->inputs, to + row * stride);
    }
}

/* ---- products ---- */

/* One step of a product: n rows (at most SUM_ROWS) from `row` on, and one panel of a matrix. */
struct piece {
    const struct matrix *m;
    int64_t row, n, panel;
};

/* The int8 product of a piece over all parts of the inputs, in float32, into scratch.sums. */
static void int8_parts_product(const struct tile_worker *me, const struct piece *piece, const char *after) {
    const struct matrix *m = piece->m;
    const uint8_t *rows = me->space->rows_int8 + piece->row * padded(m->inputs);
    for (int64_t part = 0; part < m->parts; part++) {
        const float *units = me->space->units + part * me->space->most + piece->row;
        int8_part_product(
            m, part, piece->n, rows, padded(m->inputs), piece->panel, after, me->scratch.sums,
            &(struct units){m->scales + piece->panel * WIDTH, units, part > 0}
        );
    }
}

/* The result of a product is stored, or added to the destination, or the first half of each panel is multiplied by gelu
   of the second half and stored. */
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

/* Multiplies the rows first to last of `rows`, or of rows_int8, by m. The next product uses the matrix `then`, which is
   prefetched. */
INLINE void multiply(
    const struct tile_worker *me, const enum ending ending, const struct matrix *m, const struct matrix *then,
    const float *rows, int64_t first, int64_t last, float *to, int64_t stride
) {
    int64_t start, stop, wide = padded(m->inputs), panels = panel_count(m);
    share(panel_count(then), me->in_group->rank, me->in_group->size, &start, &stop);
    const char *coming = panel_at(then, start);
    share(panels, me->in_group->rank, me->in_group->size, &start, &stop);
    for (int64_t panel; (panel = take_item(me->in_group, panels)) >= 0;)
        for (int64_t row = first; row < last; row += SUM_ROWS) {
            struct piece piece = {m, row, min_int(SUM_ROWS, last - row), panel};
            const char *after = panel + 1 == stop || panel + 1 == panels ? coming : panel_at(m, panel + 1);
            if (row > first) after = panel_at(m, panel); /* the next panel has been prefetched already */
            float *end = to + row * stride + panel * (WIDTH / m->gates);
            if (me->job->int8) {
                int8_parts_product(me, &piece, after);
            } else {
                memset(me->scratch.sums, 0, piece.n * WIDTH * sizeof(float));
                float_product(m, piece.n, rows + row * wide, wide, panel, after, me->scratch.sums);
            }
            end_piece(ending, me->scratch.sums, piece.n, end, stride);
        }
}

/* ---- attention ---- */

/* Normalises a query or key of one head to the length √E · scale, and rotates it by its position in the segment. */
static void rotate(
    const struct transformer *job, const float *from, int64_t position, float scale, float *restrict to
) {
    int64_t half = job->size / job->heads / 2;
    const float *cos = job->cos + position * half, *sin = job->sin + position * half;
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

/* The tokens of one segment in a tile. */
struct span {
    int64_t start;       /* the segment's first token */
    int64_t from, to;    /* the tokens with keys and values */
    int64_t begin, end;  /* the tokens with queries */
    int64_t left, right; /* the number of tokens that a token sees before and after itself */
};

static struct span span_of(const struct transformer *job, const struct tile *tile, int64_t segment) {
    int64_t start = job->starts[segment], stop = job->starts[segment + 1], direction = job->directions[segment];
    return (struct span){
        .start = start,
        .from = max_int(start, tile->from),
        .to = min_int(stop, tile->to),
        .begin = max_int(start, tile->begin),
        .end = min_int(stop, tile->end),
        .left = direction == BACKWARD ? 0 : job->window,
        .right = direction == FORWARD ? 0 : job->window,
    };
}

/* Transposes rows [LANES][count] into LANES columns of to [count][WIDTH]. */
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

/* Packs the keys of a head into panels of WIDTH tokens, and its values into panels of WIDTH numbers. */
static void pack_keys(const struct tile_worker *me, const struct span *span, int64_t head) {
    const struct transformer *job = me->job;
    int64_t size = job->size / job->heads, stride = padded(3 * job->size), n = span->to - span->from;
    const float *wide = me->space->wide + (span->from - me->tile.from) * stride + head * size;
    for (int64_t token = 0; token < n; token++, wide += stride) {
        int64_t lane = token % LANES;
        rotate(job, wide + job->size, span->from + token - span->start, 1.0f, me->scratch.rotated + lane * size);
        if (lane == LANES - 1 || token == n - 1) /* lanes after the last token are masked later */
            transpose(
                me->scratch.rotated, size,
                me->scratch.keys + token / WIDTH * WIDTH * size + token % WIDTH / LANES * LANES
            );
        for (int64_t e = 0; e < size; e += WIDTH)
            memcpy(
                me->scratch.values + (e * n + token * WIDTH), wide + 2 * job->size + e,
                min_int(WIDTH, size - e) * sizeof(float)
            );
    }
}

/* to = e^score for the keys lo to hi of a panel that begins at key `base`, and 0 for other keys; returns sum + to. */
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

/* e^score of R queries and the first V vectors of the panel of keys at `base`, also added to the queries' totals. */
INLINE void score_panel(
    const int R, const int V, const struct tile_worker *me, const struct span *span, int64_t query, int64_t base,
    floats *totals
) {
    int64_t size = me->job->size / me->job->heads, n = span->to - span->from;
    float sums[ROWS * WIDTH] __attribute__((aligned(64)));
    memset(sums, 0, R * WIDTH * sizeof(float));
    float_tile(R, V, 0, size, me->scratch.query, size, me->scratch.keys + base * size, sums, (const char *)sums, 0);
    for (int r = 0; r < R; r++) {
        int64_t own = query + r - span->from; /* the index of the query's own token */
        int64_t lo = max_int(own - span->left, 0), hi = min_int(own + span->right + 1, n);
        float *weights = me->scratch.weights + r * padded(n) + base;
        totals[r] = exp_between(V, sums + r * WIDTH, base, lo, hi, totals[r], weights);
    }
}

/* The attention of R queries of a head, from token `query` on. Vectors have length √E, so scores are at most √E, and
   e^score cannot overflow: no maximum is subtracted. */
INLINE void attend_tile(const int R, const struct tile_worker *me, const struct span *span, int64_t head, int64_t query) {
    const struct transformer *job = me->job;
    const struct scratch *scratch = &me->scratch;
    int64_t size = job->size / job->heads, n = span->to - span->from, stride = padded(n);
    int64_t tile_from = me->tile.from, wide = padded(3 * job->size);
    /* The index of a key counts from span->from. All R queries use all keys that any of them sees; others weigh 0. */
    int64_t first = max_int(0, query - span->left - span->from);
    int64_t last = min_int(n, query + R + span->right - span->from);
    float sums[ROWS * WIDTH] __attribute__((aligned(64)));
    floats totals[ROWS];
    for (int r = 0; r < R; r++) {
        const float *from = me->space->wide + (query + r - tile_from) * wide + head * size;
        rotate(job, from, query + r - span->start, 1.0f / sqrtf((float)size), scratch->query + r * size);
        totals[r] = all(0.0f);
    }
    for (int64_t base = first / WIDTH * WIDTH; base < last; base += WIDTH) {
        if (last - base > WIDTH / 2)
            score_panel(R, GATES, me, span, query, base, totals);
        else
            score_panel(R, GATES / 2, me, span, query, base, totals);
    }
    for (int64_t e = 0; e < size; e += WIDTH) {
        const float *values = scratch->values + e * n + first * WIDTH;
        memset(sums, 0, R * WIDTH * sizeof(float));
        float_tile(R, GATES, 0, last - first, scratch->weights + first, stride, values, sums, (const char *)sums, 0);
        for (int r = 0; r < R; r++) {
            int64_t row = query + r - tile_from, count = min_int(WIDTH, size - e);
            float scale = me->space->gates[row * padded(job->heads) + head] / sum_lanes(totals[r]);
            float *to = me->space->rows + row * padded(job->size) + head * size + e;
            for (int64_t i = 0; i < count; i++) to[i] = sums[r * WIDTH + i] * scale;
        }
    }
}

/* Stores the attention of all tokens of the tile, times their gates, in `rows`. Threads share the heads of segments. */
static void attend(const struct tile_worker *me) {
    const struct transformer *job = me->job;
    const struct tile *tile = &me->tile;
    for (int64_t item; (item = take_item(me->in_group, (tile->last - tile->first) * job->heads)) >= 0;) {
        int64_t head = item % job->heads;
        struct span span = span_of(job, tile, tile->first + item / job->heads);
        pack_keys(me, &span, head);
        for (int64_t query = span.begin; query < span.end; query += ROWS) {
            int64_t high = min_int(ROWS, span.end - query);
#define CALL(R) attend_tile(R, me, &span, head, query)
            TILE_CASES(high)
#undef CALL
        }
    }
}

/* ---- blocks ---- */

/* Loads a row of the tile's states before block `number`: the normalised input, or the result of the block before. */
static void load_state(const struct tile_worker *me, int64_t number, int64_t row, const float *from, int64_t origin) {
    const struct transformer *job = me->job;
    int64_t token = me->tile.from + row;
    float *x = me->space->x + row * padded(job->size);
    memset(x + job->size, 0, (padded(job->size) - job->size) * sizeof(float));
    if (number)
        memcpy(x, from + (token - origin) * job->size, job->size * sizeof(float));
    else
        norm_row(job->x + token * job->size, job->size, x);
}

/* Stores a token's state after `number` blocks if it is one of the outputs. */
static void store_layer(const struct tile_worker *me, int64_t number, int64_t token, const float *normed) {
    const struct transformer *job = me->job;
    if (job->output_index[number] < 0 || token < me->tile.begin || token >= me->tile.end) return;
    int64_t tokens = job->starts[job->segments];
    memcpy(job->y + (job->output_index[number] * tokens + token) * job->size, normed, job->size * sizeof(float));
}

/* The source of a tile's states before a block: its workspace, if they are `loaded`, otherwise `states`. */
struct origin {
    int loaded;
    const float *states; /* NULL for the encoder's input */
    int64_t first;       /* the token of the first row of `states` */
};

/* Computes the normalised states, and from them the gates of the heads. */
static void begin_block(const struct tile_worker *me, int64_t number, const struct origin *origin) {
    const struct transformer *job = me->job;
    const struct block *block = job->blocks + number;
    struct workspace *space = me->space;
    for (int64_t row; (row = take_row(me->in_group, me->tile.to - me->tile.from)) >= 0;) {
        if (!origin->loaded) load_state(me, number, row, origin->states, origin->first);
        float *x = space->x + row * padded(job->size), *normed = space->rows + row * padded(job->size);
        norm_row(x, job->size, normed);
        uint8_t *rows_int8 = space->rows_int8 + row * padded(job->size);
        if (job->int8) space->units[row] = quantise_inputs(&block->qkv, 0.0f, normed, 0, job->size, rows_int8);
        store_layer(me, number, me->tile.from + row, number ? normed : x);
        float *gates = space->gates + row * padded(job->heads);
        for (int64_t head = 0; head < job->heads; head++)
            gates[head] = block->gate_bias[head] + row_product(normed, block->gate_weight + head * job->size, job->size);
        for (int64_t head = 0; head < job->heads; head += LANES)
            *(floats *)(gates + head) = all(1.0f) / one_over_sigmoid(*(const floats *)(gates + head));
    }
}

static void run_block(const struct tile_worker *me, int64_t number, const struct origin *origin) {
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

/* The head's prediction for a token: gelu(product + bias), normalised, scaled to the length of a layer, then zeros. */
static void predict_row(const struct transformer *job, float *row, int64_t token) {
    int64_t count = job->head->outputs;
    float *to = job->prediction + token * job->size, longer = sqrtf((float)job->size / (float)count);
    for (int64_t k = 0; k < count; k += LANES)
        *(floats *)(row + k) = gelu(*(const floats *)(row + k) + load(job->head_bias + k));
    norm_row(row, count, row);
    for (int64_t k = 0; k < count; k++) to[k] = row[k] * longer;
    memset(to + count, 0, (job->size - count) * sizeof(float));
}

/* Stores the states of the tile after the last block, and computes the head's predictions. */
static void end_blocks(const struct tile_worker *me) {
    const struct transformer *job = me->job;
    const struct matrix *head = job->head;
    struct workspace *space = me->space;
    int64_t first = me->tile.begin - me->tile.from, tokens = me->tile.end - me->tile.begin;
    if (job->output_index[job->n_blocks] < 0 && !head) return;
    for (int64_t item; (item = take_row(me->in_group, tokens)) >= 0;) {
        int64_t row = first + item;
        float *x = space->x + row * padded(job->size);
        if (job->n_blocks)
            norm_row(x, job->size, x);
        else
            load_state(me, 0, row, NULL, 0);
        store_layer(me, job->n_blocks, me->tile.begin + item, x);
        uint8_t *rows_int8 = space->rows_int8 + row * padded(job->size);
        if (head && job->int8) space->units[row] = quantise_inputs(head, 0.0f, x, 0, job->size, rows_int8);
    }
    if (!head) return;
    int64_t stride = padded(head->outputs);
    multiply(me, STORE, head, head, space->x, first, first + tokens, space->wide, stride);
    for (int64_t item; (item = take_row(me->in_group, tokens)) >= 0;)
        predict_row(job, space->wide + (first + item) * stride, me->tile.begin + item);
}

/* ---- tiles ---- */

/* The number of the next tile, −1 after the last. If threads share tiles, every thread goes through all of them;
   otherwise a thread takes one that is free. */
static int64_t next_tile(struct tile_worker *me, int64_t number, int64_t count) {
    if (me->in_group == &me->in_call) return number + 1 < count ? number + 1 : -1;
    return take_item(&me->in_call, count);
}

static void run_whole_segments(struct tiling *tiling, struct tile_worker *me) {
    for (int64_t number = -1; (number = next_tile(me, number, tiling->count)) >= 0;) {
        me->tile = tiling->tiles[number];
        for (int64_t block = 0; block < me->job->n_blocks; block++)
            run_block(me, block, &(struct origin){.loaded = block > 0});
        end_blocks(me);
    }
}

/* The most tokens of a segment that is not cut. */
static int64_t most_whole(const struct transformer *job) { return TILE_TOKENS + 2 * job->window; }

static int64_t workspace_count(const struct transformer *job) { return job->shared ? 1 : job->threads; }

/* The number of tiles of about `of_a_tile` tokens that `tokens` are divided into, the same for every workspace. */
static int64_t tile_count(const struct transformer *job, int64_t tokens, int64_t of_a_tile) {
    int64_t spaces = workspace_count(job);
    return max_int(1, spaces * ceil_div(tokens, spaces * of_a_tile));
}

/* Tile `number` of a long segment, with the neighbouring tokens that it sees. */
static struct tile cut(const struct transformer *job, int64_t segment, int64_t height, int64_t number) {
    int64_t start = job->starts[segment], stop = job->starts[segment + 1];
    struct tile tile = {.begin = start + number * height, .first = segment, .last = segment + 1};
    tile.end = min_int(stop, tile.begin + height);
    tile.from = job->directions[segment] == BACKWARD ? tile.begin : max_int(start, tile.begin - job->window);
    tile.from -= (tile.from - start) % TILE_UNIT; /* so that a key is in the same lane in every tile */
    tile.to = job->directions[segment] == FORWARD ? tile.end : min_int(stop, tile.end + job->window);
    return tile;
}

/* Computes a long segment block by block, because a tile needs the states of its neighbours. */
static void run_long_segment(struct tiling *tiling, struct tile_worker *me, int64_t segment) {
    const struct transformer *job = me->job;
    int64_t start = job->starts[segment], tokens = job->starts[segment + 1] - start;
    int64_t height = ceil_div(ceil_div(tokens, tile_count(job, tokens, TILE_TOKENS)), TILE_UNIT) * TILE_UNIT;
    int64_t tiles = ceil_div(tokens, height);
    for (int64_t block = 0; block < job->n_blocks; block++)
        for (int64_t number = -1; (number = next_tile(me, number, tiles)) >= 0;) {
            me->tile = cut(job, segment, height, number);
            run_block(me, block, &(struct origin){.states = tiling->states[block % 2], .first = start});
            if (block + 1 == job->n_blocks) {
                end_blocks(me);
                continue;
            }
            for (int64_t item; (item = take_row(me->in_group, me->tile.end - me->tile.begin)) >= 0;) {
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
    struct tile_worker me = {
        .job = job,
        .space = tiling->workspaces + (job->shared ? 0 : rank),
        .in_call = {.stages = tiling->stages, .rank = rank, .size = size},
        .alone = {.size = 1},
    };
    me.in_group = job->shared ? &me.in_call : &me.alone;
    me.scratch = scratch_at(job, tiling->most, tiling->scratches + rank * tiling->scratch_bytes, NULL);
    run_whole_segments(tiling, &me);
    for (int64_t segment = 0; tiling->longest && segment < job->segments; segment++)
        if (is_long(job, segment)) run_long_segment(tiling, &me, segment);
}

/* ---- memory ---- */

#define RESERVE(OWNER, WHAT, COUNT)                               \
    (OWNER)->WHAT = (void *)(at + used);                       \
    used += padded((int64_t)(COUNT) * sizeof(*(OWNER)->WHAT));

/* A thread's memory at `at`; stores its size in `bytes` unless that is NULL. */
static struct scratch scratch_at(const struct transformer *job, int64_t most, char *at, int64_t *bytes) {
    struct scratch scratch;
    int64_t used = 0, size = job->size / job->heads;
    RESERVE(&scratch, sums, SUM_ROWS * WIDTH)
    RESERVE(&scratch, query, ROWS * size)
    RESERVE(&scratch, rotated, LANES * size)
    RESERVE(&scratch, keys, ceil_div(most, WIDTH) * WIDTH * size)
    RESERVE(&scratch, values, ceil_div(size, WIDTH) * most * WIDTH)
    RESERVE(&scratch, weights, ROWS * padded(most))
    if (bytes) *bytes = used;
    return scratch;
}

/* Divides the memory at `at` for a workspace; returns its size. */
static int64_t workspace_at(struct workspace *space, const struct transformer *job, int64_t most, char *at) {
    int64_t used = 0, wide = padded(max_int(3 * job->size, job->inner));
    RESERVE(space, x, most * padded(job->size))
    RESERVE(space, rows, most * padded(job->size))
    RESERVE(space, wide, most * wide)
    RESERVE(space, gates, most * padded(job->heads))
    if (job->int8) {
        RESERVE(space, rows_int8, most * padded(max_int(job->size, job->inner) + MOST_REPEATS))
        RESERVE(space, units, job->max_parts * most)
        space->most = most;
    }
    return used;
}
#undef RESERVE

/* Divides the segments that are not long into tiles of similar size, and computes the memory that all tiles need. */
static void plan_tiles(struct tiling *tiling) {
    const struct transformer *job = tiling->job;
    int64_t tokens = 0, before = 0, last = -1; /* tokens of whole segments; those before this segment; the last tile */
    for (int64_t segment = 0; segment < job->segments; segment++)
        if (!is_long(job, segment)) tokens += job->starts[segment + 1] - job->starts[segment];
    int64_t count = tile_count(job, tokens, job->shared ? TILE_TOKENS : OWN_TOKENS);
    for (int64_t segment = 0; segment < job->segments; segment++) {
        int64_t start = job->starts[segment], stop = job->starts[segment + 1];
        if (is_long(job, segment)) {
            tiling->longest = max_int(tiling->longest, stop - start);
            last = -1; /* a tile must not contain segments before and after it */
            continue;
        }
        /* The tile that contains the middle of the segment. */
        int64_t number = (2 * before + stop - start) * count / (2 * tokens + 1);
        if (last < 0 || number > last)
            tiling->tiles[tiling->count++] = (struct tile){.begin = start, .from = start, .first = segment};
        struct tile *tile = tiling->tiles + tiling->count - 1;
        tile->last = segment + 1;
        tile->end = tile->to = stop;
        tiling->most = max_int(tiling->most, stop - tile->begin);
        before += stop - start;
        last = number;
    }
    if (tiling->longest) {
        int64_t around = 2 * job->window + TILE_UNIT;
        tiling->most = max_int(tiling->most, TILE_TOKENS + TILE_UNIT + around);
    }
}

#endif
