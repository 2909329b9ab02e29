/* Weight matrices cut into panels of WIDTH outputs, and the products of rows with a panel.

   A panel of floats is [K][GATES][LANES]; one of int8 [K/4][GATES][LANES][4]. In a matrix of 4 gates the four vectors
   of a panel are the four gates of the same LANES cells; with 2 gates they are first the one, then the other gate of
   2 · LANES cells; in a plain one they are WIDTH outputs that follow each other.
   Weights that float16 stores exactly are stored in float16 and converted to float32 in the product: half the memory to
   read, and the same result to the last bit.
   Every sum runs over K in the same order whatever the number of rows, so a row's result does not depend on others. */

#ifndef ELMOKIT_MATRIX_H
#define ELMOKIT_MATRIX_H

#include <math.h>

#include "vector.h"

struct matrix {
    const void *panels;
    const float *scales;    /* int8: [panels][WIDTH], the scale of each output */
    const int32_t *offsets; /* int8: [parts][panels][WIDTH], what the sums start from */
    const float *columns;   /* int8: [inputs], what inputs are multiplied by before they are rounded, or NULL */
    const int32_t *repeated; /* int8: [repeats], the inputs whose remainders are inputs too */
    int64_t outputs, inputs; /* inputs: remainders included */
    int64_t gates; /* 1, 2 or GATES */
    int64_t half;  /* whether its floats are stored in float16 */
    int64_t parts; /* int8: number of parts of the inputs, each with its own sum */
    int64_t repeats; /* int8: number of inputs at the end that are remainders; they are one part */
};

#define MOST_REPEATS 256

INLINE int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }

INLINE int64_t panel_count(const struct matrix *m) {
    return ceiling(m->outputs / m->gates, WIDTH / m->gates);
}

/* The inputs of a part; the last one may have fewer. */
INLINE int64_t part_size(const struct matrix *m) {
    int64_t parts = m->parts - (m->repeats > 0);
    return m->parts == 1 ? m->inputs : 4 * ceiling(m->inputs - m->repeats, 4 * parts);
}

/* int8 activations come in rows of a multiple of 4. */
INLINE int64_t groups_of_4(int64_t inputs) { return ceiling(inputs, 4); }
INLINE int64_t padded(int64_t n) { return ceiling(n, 64) * 64; }

/* The output that lane `lane` of vector `v` of a panel computes, or -1 for filling. */
INLINE int64_t output_of(const struct matrix *m, int64_t panel, int v, int lane) {
    int vectors = GATES / (int)m->gates; /* of each gate */
    int64_t cells = m->outputs / m->gates, cell = (panel * vectors + v % vectors) * LANES + lane;
    return cell < cells ? v / vectors * cells + cell : -1;
}

/* Where a panel begins. */
INLINE const char *panel_at(const struct matrix *m, int64_t panel) {
    int64_t bytes = m->scales ? groups_of_4(m->inputs) * 4 : m->inputs * (m->half ? 2 : 4); /* of an output */
    return (const char *)m->panels + panel * WIDTH * bytes;
}

/* Inputs whose products have a sum of their own: sums of sums lose fewer digits than one long sum. A panel's part for
   them stays in the level 1 cache. */
#define K_BLOCK 64

/* The vector at place `at` of a panel of floats. */
INLINE floats weights_at(const int half, const void *panel, int64_t at) {
    return half ? widened((const uint16_t *)panel + at) : *(const floats *)((const float *)panel + at);
}

/* The first V vectors of sums [R][WIDTH] += rows [R][count] · panel. Lines at `next` are fetched meanwhile, `step`
   bytes apart. */
INLINE void float_tile(
    const int R, const int V, const int half, int64_t count, const float *rows, int64_t stride, const void *panel,
    float *sums, const char *next, int64_t step
) {
    floats s[ROWS][GATES];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) s[r][v] = all(0.0f);
    for (int64_t k = 0; k < count; k++) {
        floats w[GATES];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) w[v] = weights_at(half, panel, k * WIDTH + v * LANES);
        __builtin_prefetch(next + k * step, 0, 2);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            floats x = all(rows[r * stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) s[r][v] = times_plus(x, w[v], s[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) *(floats *)(sums + r * WIDTH + v * LANES) += s[r][v];
}

/* Activations lie around 128, as Intel's products want them; products of signed numbers take it away themselves. */
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define SUM_OFFSET 0
#else
#define SUM_OFFSET 128
#endif

/* sum + Σ over 4 of activations (0 to 255) times weights (−127 to 127), in each lane. Exact: nothing saturates. */
INLINE ints dot_4(ints sum, int32_t activations, ints weights) {
#if LANES == 16 && defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(activations), (__m512i)weights);
#elif LANES == 16
    const __m512i low = _mm512_set1_epi32(0x00ff00ff);
    __m512i a = _mm512_set1_epi32(activations), w = (__m512i)weights;
    __m512i even = _mm512_madd_epi16(_mm512_and_si512(a, low), _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8));
    __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(w, 8));
    return sum + (ints)even + (ints)odd;
#elif LANES == 8 && defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return (ints)_mm256_dpbusd_epi32((__m256i)sum, _mm256_set1_epi32(activations), (__m256i)weights);
#elif LANES == 8 && defined(__AVXVNNI__)
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32(activations), (__m256i)weights);
#elif LANES == 8
    const __m256i low = _mm256_set1_epi32(0x00ff00ff);
    __m256i a = _mm256_set1_epi32(activations), w = (__m256i)weights;
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, low), _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(w, 8));
    return sum + (ints)even + (ints)odd;
#elif defined(__SSE2__)
    const __m128i low = _mm_set1_epi32(0x00ff00ff);
    __m128i a = _mm_set1_epi32(activations), w = (__m128i)weights;
    __m128i even = _mm_madd_epi16(_mm_and_si128(a, low), _mm_srai_epi16(_mm_slli_epi16(w, 8), 8));
    __m128i odd = _mm_madd_epi16(_mm_srli_epi16(a, 8), _mm_srai_epi16(w, 8));
    return sum + (ints)even + (ints)odd;
#elif !SUM_OFFSET
    int8x16_t a = vreinterpretq_s8_u32(vdupq_n_u32((uint32_t)activations ^ 0x80808080u));
    return (ints)vdotq_s32((int32x4_t)sum, (int8x16_t)weights, a);
#else
    uint8_t a[4];
    int8_t w[4 * LANES];
    memcpy(a, &activations, 4);
    memcpy(w, &weights, 4 * LANES);
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < 4; i++) sum[lane] += (int32_t)a[i] * w[4 * lane + i];
    return sum;
#endif
}

/* What turns sums of int8 products into float32. */
struct units {
    const float *outputs; /* [WIDTH]: what one unit of each output is worth */
    const float *rows;    /* [n]: and of each row */
    int add;              /* to what is there, or in its place */
};

/* sums [R][WIDTH] = rows [R][groups · 4] · panel in whole numbers, or in float32 where there are units. */
INLINE void int8_tile(
    const int R, const int whole, int64_t groups, const uint8_t *rows, int64_t stride, const int8_t *panel,
    const int32_t *offsets, void *sums, const char *next, int64_t step, const struct units *units, int64_t row
) {
    ints s[ROWS][GATES];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < GATES; v++) s[r][v] = *(const ints *)(offsets + v * LANES);
    for (int64_t k = 0; k < groups; k++) {
        ints w[GATES];
#pragma GCC unroll 4
        for (int v = 0; v < GATES; v++) w[v] = *(const ints *)(panel + 4 * (k * WIDTH + v * LANES));
        __builtin_prefetch(next + k * step, 0, 2);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            int32_t x;
            memcpy(&x, rows + r * stride + 4 * k, 4);
#pragma GCC unroll 4
            for (int v = 0; v < GATES; v++) s[r][v] = dot_4(s[r][v], x, w[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < GATES; v++) {
            int64_t at = r * WIDTH + v * LANES;
            if (whole) {
                *(ints *)((int32_t *)sums + at) = s[r][v];
                continue;
            }
            floats *to = (floats *)((float *)sums + at);
            floats unit = *(const floats *)(units->outputs + v * LANES) * all(units->rows[row + r]);
            *to = times_plus(__builtin_convertvector(s[r][v], floats), unit, units->add ? *to : all(0.0f));
        }
}

/* CALL(R) for a tile of `high` rows, each with code of its own. */
#if ROWS == 2
#define TILE_CASES(high) \
    if (high == 2) CALL(2); \
    else CALL(1);
#elif ROWS == 3
#define TILE_CASES(high) \
    switch (high) { \
        case 1: CALL(1); break; \
        case 2: CALL(2); break; \
        default: CALL(3); \
    }
#else
#define TILE_CASES(high) \
    switch (high) { \
        case 1: CALL(1); break; \
        case 2: CALL(2); break; \
        case 3: CALL(3); break; \
        case 4: CALL(4); break; \
        case 5: CALL(5); break; \
        default: CALL(6); \
    }
#endif

INLINE void float_tile_of(
    int rows_here, const int half, int64_t count, const float *rows, int64_t stride, const void *panel, float *sums,
    const char *next, int64_t step
) {
#define CALL(R) float_tile(R, GATES, half, count, rows, stride, panel, sums, next, step)
    TILE_CASES(rows_here)
#undef CALL
}

static void int8_tile_of(
    int rows_here, int64_t groups, const uint8_t *rows, int64_t stride, const int8_t *panel, const int32_t *offsets,
    void *sums, const char *next, int64_t step, const struct units *units, int64_t row
) {
    if (units) {
#define CALL(R) int8_tile(R, 0, groups, rows, stride, panel, offsets, sums, next, step, units, row)
        TILE_CASES(rows_here)
#undef CALL
    } else {
#define CALL(R) int8_tile(R, 1, groups, rows, stride, panel, offsets, sums, next, step, NULL, 0)
        TILE_CASES(rows_here)
#undef CALL
    }
}

#define WIDE_ROWS (3 * ROWS) /* rows that are worth a copy of the weights in float32 */

/* sums [n][WIDTH] += rows [n][K] · panel; `after` is the place of the panel that is needed next. */
static void float_product(
    const struct matrix *m, int64_t n, const float *rows, int64_t stride, int64_t panel, const char *after, float *sums
) {
    const int64_t bytes = WIDTH * (m->half ? 2 : 4); /* of one input of a panel */
    float copy[K_BLOCK * WIDTH] __attribute__((aligned(64)));
    int64_t tiles = ceiling(n, ROWS);
    const char *here = panel_at(m, panel);
    for (int64_t k = 0; k < m->inputs; k += K_BLOCK) {
        int64_t count = smaller(K_BLOCK, m->inputs - k);
        const char *slice = here + k * bytes, *coming = k + count < m->inputs ? slice + count * bytes : after;
        const void *weights = slice;
        int half = m->half;
        if (half && n >= WIDE_ROWS) {
            for (int64_t at = 0; at < count * WIDTH; at += LANES) *(floats *)(copy + at) = weights_at(1, slice, at);
            weights = copy;
            half = 0;
        }
        for (int64_t tile = 0, row = 0; tile < tiles; tile++) {
            int high = (int)(n / tiles + (tile < n % tiles));
            /* One line a round: the first tiles bring what the next slice needs. */
            int64_t lines = tile * count, needed = count * bytes / 64;
            const char *fetch = lines < needed ? coming + 64 * lines : slice;
            int64_t step = lines < needed ? 64 : 0;
            if (half)
                float_tile_of(high, 1, count, rows + row * stride + k, stride, weights, sums + row * WIDTH, fetch, step);
            else
                float_tile_of(high, 0, count, rows + row * stride + k, stride, weights, sums + row * WIDTH, fetch, step);
            row += high;
        }
    }
}

/* sums [n][WIDTH] = rows [n][K] · panel, int8 rows and weights: of one part of the inputs; in whole numbers, or in
   float32 where there are units. */
static void int8_part_product(
    const struct matrix *m, int64_t part, int64_t n, const uint8_t *rows, int64_t stride, int64_t panel,
    const char *after, void *sums, const struct units *units
) {
    int64_t first = part * part_size(m), last = smaller(first + part_size(m), m->inputs);
    int64_t tiles = ceiling(n, ROWS), groups = groups_of_4(last - first);
    const char *here = panel_at(m, panel) + first * WIDTH;
    if (last < m->inputs) after = here + groups * 4 * WIDTH;
    for (int64_t tile = 0, row = 0; tile < tiles; tile++) {
        int high = (int)(n / tiles + (tile < n % tiles));
        int64_t lines = tile * groups, needed = groups * 4 * WIDTH / 64;
        const char *fetch = lines < needed ? after + 64 * lines : here;
        int8_tile_of(
            high, groups, rows + row * stride + first, stride, (const int8_t *)here,
            m->offsets + (part * panel_count(m) + panel) * WIDTH, (float *)sums + row * WIDTH, fetch,
            lines < needed ? 64 : 0, units, row
        );
        row += high;
    }
}

/* The same for a matrix whose inputs are all one part. */
static void int8_product(
    const struct matrix *m, int64_t n, const uint8_t *rows, int64_t stride, int64_t panel, const char *after,
    int32_t *sums
) {
    int8_part_product(m, 0, n, rows, stride, panel, after, sums, NULL);
}

/* A row less its mean, times factors [count] unless they are NULL, as int8 around 128, and what one unit of it is worth:
   NaN where the row has a NaN or something infinite. */
INLINE float quantise_around(const float mean, const float *factors, const float *row, int64_t count, uint8_t *to) {
#define LANES_AT(K) (factors ? (load(row + (K)) - all(mean)) * load(factors + (K)) : load(row + (K)) - all(mean))
#define NUMBER_AT(K) (factors ? (row[K] - mean) * factors[K] : row[K] - mean)
    int64_t k = 0;
    int32_t most = 0; /* of the bits of |x|, which order as the numbers do, NaN above all */
    ints mosts = (ints)all(0.0f);
    for (; k + LANES <= count; k += LANES) {
        ints x = (ints)magnitude(LANES_AT(k));
        mosts = larger_ints(x, mosts);
    }
#if LANES == 16
    most = _mm512_reduce_max_epi32((__m512i)mosts);
#else
    for (int lane = 0; lane < LANES; lane++) most = mosts[lane] > most ? mosts[lane] : most;
#endif
    for (; k < count; k++) {
        float value = NUMBER_AT(k);
        int32_t x;
        memcpy(&x, &value, 4);
        x &= 0x7fffffff;
        most = x > most ? x : most;
    }
    float largest;
    memcpy(&largest, &most, 4);
    int nothing = largest < 1e-30f; /* whose reciprocal would not be a float */
    float inverse = nothing ? 0.0f : 127.0f / largest;
    const float shift = 12583040.0f; /* 1.5 · 2^23 + 128: the low byte is the rounded number + 128 */
    for (k = 0; k + LANES <= count; k += LANES)
        store_bytes(to + k, (ints)times_plus(LANES_AT(k), all(inverse), all(shift)));
    for (; k < count; k++) {
        float shifted = NUMBER_AT(k) * inverse + shift;
        uint32_t whole;
        memcpy(&whole, &shifted, 4);
        to[k] = (uint8_t)whole;
    }
    for (k = count; k < 4 * groups_of_4(count); k++) to[k] = 128;
    return nothing ? 0.0f : largest < INFINITY ? largest / 127.0f : NAN;
#undef LANES_AT
#undef NUMBER_AT
}

static float quantise(const float *row, int64_t count, uint8_t *to) {
    return quantise_around(0.0f, NULL, row, count, to);
}

/* The same in two parts `wide` apart, the second for what the first leaves over, which is put into `rest`. */
static void quantise_twice(const float *row, int64_t count, uint8_t *to, int64_t wide, float *scales, float *rest) {
    scales[0] = quantise(row, count, to);
    for (int64_t k = 0; k < count; k++) rest[k] = row[k] - (float)(to[k] - 128) * scales[0];
    scales[1] = quantise(rest, count, to + wide);
}

#define PACK_BLOCK 16 /* inputs of all outputs of a panel that are moved together, near enough for the cache */

/* Weights [outputs][inputs] into panels start to stop. */
static void pack_floats(const struct matrix *m, const float *weights, void *panels, int64_t start, int64_t stop) {
    for (int64_t p = start; p < stop; p++)
        for (int64_t first = 0; first < m->inputs; first += PACK_BLOCK)
            for (int v = 0; v < GATES; v++)
                for (int lane = 0; lane < LANES; lane++) {
                    int64_t output = output_of(m, p, v, lane), last = smaller(m->inputs, first + PACK_BLOCK);
                    int64_t at = p * m->inputs * WIDTH + v * LANES + lane;
                    const float *from = weights + (output < 0 ? 0 : output) * m->inputs;
                    for (int64_t k = first; k < last; k++) {
                        float value = output < 0 ? 0.0f : from[k], back;
                        if (m->half)
                            ((uint16_t *)panels)[at + k * WIDTH] = narrowed(value, &back);
                        else
                            ((float *)panels)[at + k * WIDTH] = value;
                    }
                }
}

/* The same as int8, with each output's scale and the sums that take the activations' 128 away again. */
static void pack_int8(
    const struct matrix *m, const int8_t *weights, const float *scales, int8_t *panels, float *panel_scales,
    int32_t *offsets, int64_t start, int64_t stop
) {
    int64_t groups = groups_of_4(m->inputs);
    for (int64_t p = start; p < stop; p++)
        for (int v = 0; v < GATES; v++)
            for (int lane = 0; lane < LANES; lane++) {
                int64_t output = output_of(m, p, v, lane), place = p * WIDTH + v * LANES + lane;
                int8_t *to = panels + 4 * (p * groups * WIDTH + v * LANES + lane);
                const int8_t *from = weights + (output < 0 ? 0 : output) * m->inputs;
                int64_t size = part_size(m), part_step = panel_count(m) * WIDTH;
                for (int64_t part = 0; part < m->parts; part++) offsets[part * part_step + place] = 0;
                for (int64_t group = 0; group < groups; group++) {
                    int8_t four[4] = {0, 0, 0, 0};
                    int64_t here = output < 0 ? 0 : smaller(4, m->inputs - 4 * group);
                    int32_t *offset = offsets + 4 * group / size * part_step + place;
                    for (int64_t k = 0; k < here; k++) *offset -= SUM_OFFSET * (four[k] = from[4 * group + k]);
                    memcpy(to + group * 4 * WIDTH, four, 4);
                }
                panel_scales[place] = output < 0 ? 0.0f : scales[output];
            }
}

#endif
