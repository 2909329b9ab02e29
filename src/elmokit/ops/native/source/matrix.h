/* Weight matrices in panels of WIDTH outputs, and the products of rows with a panel.

   A panel of floats is [K][GATES][LANES]; an int8 panel is [K/4][GATES][LANES][4]. For a matrix with 4 gates, the four
   vectors of a panel are the four gates of the same LANES cells. With 2 gates, they are the first gate of 2 · LANES
   cells, and then the second gate of the same cells. With 1 gate, they are WIDTH consecutive outputs.

   Weights that float16 represents exactly are stored in float16 and converted to float32 in the product: that halves
   the memory to read, and gives the same result, bit for bit.

   Every sum runs over K in the same order for any number of rows, so the result of a row does not depend on the
   others. */

#ifndef ELMOKIT_MATRIX_H
#define ELMOKIT_MATRIX_H

#include <math.h>

#include "vector.h"

struct matrix {
    const void *panels;
    const float *scales;    /* int8: [panels][WIDTH], the scale of each output */
    const int32_t *offsets; /* int8: [parts][panels][WIDTH], the initial values of the sums */
    const float *columns;   /* int8: [inputs], factors that inputs are multiplied by before rounding, or NULL */
    const int32_t *repeated; /* int8: [repeats], the inputs whose rounding errors are inputs too */
    int64_t outputs, inputs; /* inputs: includes the rounding errors */
    int64_t gates;   /* 1, 2 or GATES */
    int64_t float16; /* whether the floats are stored in float16 */
    int64_t parts;   /* int8: the number of parts of the inputs, each with its own sum */
    int64_t repeats; /* int8: the number of rounding errors at the end of the inputs; they are one part */
};

#define MOST_REPEATS 256

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t min_int(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max_int(int64_t a, int64_t b) { return a > b ? a : b; }

INLINE int64_t panel_count(const struct matrix *m) {
    return ceil_div(m->outputs / m->gates, WIDTH / m->gates);
}

/* The number of inputs in a part; the last part may have fewer. */
INLINE int64_t part_size(const struct matrix *m) {
    int64_t parts = m->parts - (m->repeats > 0);
    return m->parts == 1 ? m->inputs : 4 * ceil_div(m->inputs - m->repeats, 4 * parts);
}

/* The length of a row of int8 activations is a multiple of 4. */
INLINE int64_t groups_of_4(int64_t inputs) { return ceil_div(inputs, 4); }
INLINE int64_t padded(int64_t n) { return ceil_div(n, 64) * 64; }

/* The output that lane `lane` of vector `v` of a panel computes, or −1 for padding. */
INLINE int64_t output_of(const struct matrix *m, int64_t panel, int v, int lane) {
    int vectors = GATES / (int)m->gates; /* per gate */
    int64_t cells = m->outputs / m->gates, cell = (panel * vectors + v % vectors) * LANES + lane;
    return cell < cells ? v / vectors * cells + cell : -1;
}

/* The address of a panel. */
INLINE const char *panel_at(const struct matrix *m, int64_t panel) {
    int64_t bytes = m->scales ? groups_of_4(m->inputs) * 4 : m->inputs * (m->float16 ? 2 : 4); /* per output */
    return (const char *)m->panels + panel * WIDTH * bytes;
}

/* Inputs whose products are added up first: a sum of partial sums is more precise than one long sum. The weights of so
   many inputs in a panel fit into the level 1 cache. */
#define K_BLOCK 64

/* The vector at index `at` of a panel of floats. */
INLINE floats weights_at(const int float16, const void *panel, int64_t at) {
    return float16 ? from_float16((const uint16_t *)panel + at) : *(const floats *)((const float *)panel + at);
}

/* The first V vectors of sums [R][WIDTH] += rows [R][count] · panel. Meanwhile, `count` cache lines from `next` on,
   `step` bytes apart, are prefetched. */
INLINE void float_tile(
    const int R, const int V, const int float16, int64_t count, const float *rows, int64_t stride, const void *panel,
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
        for (int v = 0; v < V; v++) w[v] = weights_at(float16, panel, k * WIDTH + v * LANES);
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

/* 128 is added to int8 activations, because Intel's products take unsigned ones. ARM's take signed ones: for them,
   dot_4 subtracts 128 again. */
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define SUM_OFFSET 0
#else
#define SUM_OFFSET 128
#endif

/* In each lane, sum + the products of 4 activations (0 to 255) and 4 weights (−127 to 127). It cannot saturate. */
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

/* The scales that convert sums of int8 products to float32. */
struct units {
    const float *outputs; /* [WIDTH]: the scale of each output */
    const float *rows;    /* [n]: the scale of each row */
    int add;              /* whether to add to the destination instead of overwriting it */
};

/* sums [R][WIDTH] = rows [R][groups · 4] · panel, as integers (`whole`) or converted to float32 with `units`. */
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

/* CALL(R) with R = `high`, a compile-time constant: each height of a tile has its own code. */
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
    int rows_here, const int float16, int64_t count, const float *rows, int64_t stride, const void *panel, float *sums,
    const char *next, int64_t step
) {
#define CALL(R) float_tile(R, GATES, float16, count, rows, stride, panel, sums, next, step)
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

#define WIDE_ROWS (3 * ROWS) /* from this number of rows on, a float32 copy of float16 weights saves time */

/* sums [n][WIDTH] += rows [n][K] · panel; `after` is the address of the panel that is needed next. */
static void float_product(
    const struct matrix *m, int64_t n, const float *rows, int64_t stride, int64_t panel, const char *after, float *sums
) {
    const int64_t bytes = WIDTH * (m->float16 ? 2 : 4); /* per input of a panel */
    float copy[K_BLOCK * WIDTH] __attribute__((aligned(64)));
    int64_t tiles = ceil_div(n, ROWS);
    const char *here = panel_at(m, panel);
    for (int64_t k = 0; k < m->inputs; k += K_BLOCK) {
        int64_t count = min_int(K_BLOCK, m->inputs - k);
        const char *slice = here + k * bytes, *coming = k + count < m->inputs ? slice + count * bytes : after;
        const void *weights = slice;
        int float16 = m->float16;
        if (float16 && n >= WIDE_ROWS) {
            for (int64_t at = 0; at < count * WIDTH; at += LANES) *(floats *)(copy + at) = weights_at(1, slice, at);
            weights = copy;
            float16 = 0;
        }
        for (int64_t tile = 0, row = 0; tile < tiles; tile++) {
            int high = (int)(n / tiles + (tile < n % tiles));
            /* One cache line per input: the first tiles prefetch the next slice. */
            int64_t lines = tile * count, needed = count * bytes / 64;
            const char *fetch = lines < needed ? coming + 64 * lines : slice;
            int64_t step = lines < needed ? 64 : 0;
            if (float16)
                float_tile_of(high, 1, count, rows + row * stride + k, stride, weights, sums + row * WIDTH, fetch, step);
            else
                float_tile_of(high, 0, count, rows + row * stride + k, stride, weights, sums + row * WIDTH, fetch, step);
            row += high;
        }
    }
}

/* sums [n][WIDTH] = rows [n][K] · panel over one part of the inputs, for int8 rows and weights: as integers if `units`
   is NULL, otherwise converted to float32. */
static void int8_part_product(
    const struct matrix *m, int64_t part, int64_t n, const uint8_t *rows, int64_t stride, int64_t panel,
    const char *after, void *sums, const struct units *units
) {
    int64_t first = part * part_size(m), last = min_int(first + part_size(m), m->inputs);
    int64_t tiles = ceil_div(n, ROWS), groups = groups_of_4(last - first);
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

/* int8_part_product for a matrix with one part, as integers. */
static void int8_product(
    const struct matrix *m, int64_t n, const uint8_t *rows, int64_t stride, int64_t panel, const char *after,
    int32_t *sums
) {
    int8_part_product(m, 0, n, rows, stride, panel, after, sums, NULL);
}

/* Quantises (row − mean) · factors [count]: to = int8 values + 128. `factors` may be NULL. Returns the scale, which is
   NaN if the row contains NaN or an infinity. */
INLINE float quantise_around(const float mean, const float *factors, const float *row, int64_t count, uint8_t *to) {
#define LANES_AT(K) (factors ? (load(row + (K)) - all(mean)) * load(factors + (K)) : load(row + (K)) - all(mean))
#define NUMBER_AT(K) (factors ? (row[K] - mean) * factors[K] : row[K] - mean)
    int64_t k = 0;
    int32_t most = 0; /* the largest |x| as bits: these are in the order of the numbers, and NaN is the largest */
    ints mosts = (ints)all(0.0f);
    for (; k + LANES <= count; k += LANES) {
        ints x = (ints)magnitude(LANES_AT(k));
        mosts = max_ints(x, mosts);
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
    int nothing = largest < 1e-30f; /* 127 / largest could be infinite */
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

/* Quantises a row, and its rounding error, which is stored in `rest`; the two int8 rows are `stride` apart. */
static void quantise_twice(const float *row, int64_t count, uint8_t *to, int64_t stride, float *scales, float *rest) {
    scales[0] = quantise(row, count, to);
    for (int64_t k = 0; k < count; k++) rest[k] = row[k] - (float)(to[k] - 128) * scales[0];
    scales[1] = quantise(rest, count, to + stride);
}

#define PACK_BLOCK 16 /* inputs that are packed together for all outputs of a panel, so that they stay in the cache */

/* Packs weights [outputs][inputs] into the panels from start to stop. */
static void pack_floats(const struct matrix *m, const float *weights, void *panels, int64_t start, int64_t stop) {
    for (int64_t p = start; p < stop; p++)
        for (int64_t first = 0; first < m->inputs; first += PACK_BLOCK)
            for (int v = 0; v < GATES; v++)
                for (int lane = 0; lane < LANES; lane++) {
                    int64_t output = output_of(m, p, v, lane), last = min_int(m->inputs, first + PACK_BLOCK);
                    int64_t at = p * m->inputs * WIDTH + v * LANES + lane;
                    const float *from = weights + (output < 0 ? 0 : output) * m->inputs;
                    for (int64_t k = first; k < last; k++) {
                        float value = output < 0 ? 0.0f : from[k], back;
                        if (m->float16)
                            ((uint16_t *)panels)[at + k * WIDTH] = to_float16(value, &back);
                        else
                            ((float *)panels)[at + k * WIDTH] = value;
                    }
                }
}

/* Packs int8 weights, the scale of each output, and the offsets that cancel the 128 in the activations. */
static void pack_int8(
    const struct matrix *m, const int8_t *weights, const float *scales, int8_t *panels, float *panel_scales,
    int32_t *offsets, int64_t start, int64_t stop
) {
    int64_t groups = groups_of_4(m->inputs);
    for (int64_t p = start; p < stop; p++)
        for (int v = 0; v < GATES; v++)
            for (int lane = 0; lane < LANES; lane++) {
                int64_t output = output_of(m, p, v, lane), index = p * WIDTH + v * LANES + lane;
                int8_t *to = panels + 4 * (p * groups * WIDTH + v * LANES + lane);
                const int8_t *from = weights + (output < 0 ? 0 : output) * m->inputs;
                int64_t size = part_size(m), part_step = panel_count(m) * WIDTH;
                for (int64_t part = 0; part < m->parts; part++) offsets[part * part_step + index] = 0;
                for (int64_t group = 0; group < groups; group++) {
                    int8_t four[4] = {0, 0, 0, 0};
                    int64_t here = output < 0 ? 0 : min_int(4, m->inputs - 4 * group);
                    int32_t *offset = offsets + 4 * group / size * part_step + index;
                    for (int64_t k = 0; k < here; k++) *offset -= SUM_OFFSET * (four[k] = from[4 * group + k]);
                    memcpy(to + group * 4 * WIDTH, four, 4);
                }
                panel_scales[index] = output < 0 ? 0.0f : scales[output];
            }
}

#endif
