/* Vectors as wide as the CPU's registers, and the activation functions on them. */

#ifndef ELMOKIT_VECTOR_H
#define ELMOKIT_VECTOR_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* A vector has LANES numbers. A tile is up to ROWS rows times GATES vectors: the most that fit into the registers. */
#define GATES 4
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define LANES 16
#define ROWS 6
#define INSTRUCTIONS "AVX-512"
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#define ROWS 3
#define INSTRUCTIONS "AVX2"
#elif defined(__aarch64__)
#define LANES 4
#define ROWS 6
#define INSTRUCTIONS "NEON"
#else
#define LANES 4
#define ROWS 2
#define INSTRUCTIONS "128-bit vectors"
#endif
#define WIDTH (GATES * LANES) /* outputs of a panel */

typedef float floats __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), may_alias));
typedef float loose_floats __attribute__((vector_size(4 * LANES), may_alias, aligned(4)));

#define INLINE static inline __attribute__((always_inline))

/* A vector with this value in all lanes. */
INLINE floats all(float value) {
#if LANES == 16
    return _mm512_set1_ps(value);
#elif LANES == 8
    return _mm256_set1_ps(value);
#else
    return (floats){value, value, value, value};
#endif
}

/* Whether the CPU has instructions that convert float16 to float32; float32 represents every float16 exactly. */
#if LANES > 4 && defined(__F16C__) || defined(__aarch64__)
#define HAS_FLOAT16 1
#else
#define HAS_FLOAT16 0
#endif

INLINE floats from_float16(const uint16_t *from) {
#if LANES == 16 && HAS_FLOAT16
    return _mm512_cvtph_ps(*(const __m256i *)from);
#elif LANES == 8 && HAS_FLOAT16
    return _mm256_cvtph_ps(*(const __m128i *)from);
#elif HAS_FLOAT16
    return (floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    return all((float)*from); /* never called */
#endif
}

/* The nearest float16, and its value in float32. */
INLINE uint16_t to_float16(float value, float *back) {
    uint16_t half = 0;
#if LANES > 4 && HAS_FLOAT16
    half = (uint16_t)_cvtss_sh(value, 0);
    *back = _cvtsh_ss(half);
#elif HAS_FLOAT16
    __fp16 nearest = (__fp16)value;
    memcpy(&half, &nearest, 2);
    *back = (float)nearest;
#else
    *back = value;
#endif
    return half;
}

INLINE floats load(const float *from) { return *(const loose_floats *)from; }
INLINE void store(float *to, floats value) { *(loose_floats *)to = value; }

INLINE ints max_ints(ints a, ints b) {
#if LANES == 16
    return (ints)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif LANES == 8
    return (ints)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    ints more = a > b;
    return (a & more) | (b & ~more);
#endif
}

/* Stores the low byte of each number. */
INLINE void store_bytes(uint8_t *to, ints numbers) {
#if LANES == 16
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)numbers));
#else
    for (int lane = 0; lane < LANES; lane++) to[lane] = (uint8_t)numbers[lane];
#endif
}

/* a·b + c. Explicit, so that tiles of every height round in the same way. */
INLINE floats times_plus(floats a, floats b, floats c) {
#if LANES == 16
    return _mm512_fmadd_ps(a, b, c);
#elif LANES == 8
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

INLINE floats where(ints condition, floats yes, floats no) {
    return (floats)((condition & (ints)yes) | (~condition & (ints)no));
}

/* at_least and at_most return NaN for NaN. */
INLINE floats at_least(float bound, floats x) {
#if LANES == 16
    return _mm512_max_ps(all(bound), x);
#elif LANES == 8
    return _mm256_max_ps(all(bound), x);
#elif defined(__SSE2__)
    return _mm_max_ps(all(bound), x);
#else
    return where(x < all(bound), all(bound), x);
#endif
}

INLINE floats at_most(float bound, floats x) {
#if LANES == 16
    return _mm512_min_ps(all(bound), x);
#elif LANES == 8
    return _mm256_min_ps(all(bound), x);
#elif defined(__SSE2__)
    return _mm_min_ps(all(bound), x);
#else
    return where(x > all(bound), all(bound), x);
#endif
}

INLINE floats clip(floats x, float bound) { return at_most(bound, at_least(-bound, x)); }

INLINE floats bits(floats x, uint32_t mask) {
    ints masks = (ints)all(0.0f) + (int32_t)mask;
    return (floats)((ints)x & masks);
}

INLINE floats magnitude(floats x) { return bits(x, 0x7fffffffu); }
INLINE floats with_sign_of(floats positive, floats x) { return (floats)((ints)positive | (ints)bits(x, 0x80000000u)); }

#define FAR 87.0f /* e^87 is still a float */

/* e^x = power · (1 + rest) for |x| ≤ FAR. The rest is small, so that e^x − 1 is precise near 0. */
INLINE void exponential(floats x, floats *power, floats *rest) {
    const float shift = 12582912.0f; /* 1.5 · 2^23: adding it leaves a whole number in the low bits */
    floats shifted = times_plus(x, all(1.44269504f), all(shift));
    floats whole = shifted - all(shift);
#if LANES > 4 || defined(__aarch64__)
    floats r = times_plus(whole, all(-0.693147181f), x); /* |r| ≤ ln 2 / 2 */
#else /* without a fused product: ln 2 in two parts, and the product with the first one is exact */
    floats r = times_plus(whole, all(2.12194440e-4f), times_plus(whole, all(-0.693359375f), x));
#endif
    *power = (floats)(((ints)shifted << 23) + 0x3f800000);
    /* A polynomial fitted so that the largest relative error of e^r is 3.5e-9. */
    floats q = times_plus(all(0.0013811663f), r, all(0.0083701350f));
    q = times_plus(q, r, all(0.0416685268f));
    q = times_plus(q, r, all(0.1666650921f));
    q = times_plus(q, r, all(0.4999999404f));
    *rest = times_plus(q * r, r, r);
}

/* 1 + e^−x, the reciprocal of the logistic function. */
INLINE floats one_over_sigmoid(floats x) {
    floats power, rest;
    exponential(clip(all(0.0f) - x, FAR), &power, &rest);
    return times_plus(power, rest, power) + all(1.0f);
}

/* tanh x = numerator / down. */
INLINE void tanh_fraction(floats x, floats *numerator, floats *denominator) {
    floats power, rest;
    exponential(at_least(-FAR, magnitude(x) * all(-2.0f)), &power, &rest);
    floats below = times_plus(power, rest, power - all(1.0f)); /* e^−2|x| − 1 */
    *numerator = with_sign_of(magnitude(below), x);
    *denominator = below + all(2.0f);
}

/* x Φ(x), where Φ is the cumulative normal distribution. Φ(−|x|) = 2^p(|x|), with a polynomial p fitted so that the
   largest error of Φ is 8e-9. For |x| > 9, Φ(−9) is used, which is below 1e-18. */
INLINE floats gelu(floats x) {
    const float shift = 12582912.0f; /* as in `exponential` */
    floats t = at_most(9.0f, magnitude(x));
    floats p = times_plus(all(-2.83491727e-06f), t, all(3.93777300e-05f));
    p = times_plus(p, t, all(-1.86180361e-04f));
    p = times_plus(p, t, all(-1.36936214e-04f));
    p = times_plus(p, t, all(7.06342002e-03f));
    p = times_plus(p, t, all(-5.24961799e-02f));
    p = times_plus(p, t, all(-4.59208190e-01f));
    p = times_plus(p, t, all(-1.15110517f));
    p = times_plus(p, t, all(-1.0f));
    floats shifted = p + all(shift), r = p - (shifted - all(shift));
    /* 2^r for |r| ≤ 1/2 with a largest relative error of 9e-8; the whole part of p goes to the exponent. */
    floats q = times_plus(all(1.32647273e-03f), r, all(9.67151299e-03f));
    q = times_plus(q, r, all(5.55073358e-02f));
    q = times_plus(q, r, all(2.40222424e-01f));
    q = times_plus(q, r, all(6.93147004e-01f));
    q = times_plus(q, r, all(1.0f));
    floats tail = (floats)((ints)q + ((ints)shifted << 23));
    return times_plus(all(0.0f) - magnitude(x), tail, at_least(0.0f, x));
}

/* The sum of all lanes, always in the same order. */
INLINE float sum_lanes(floats x) {
#if LANES == 16
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#elif LANES == 8
    __m256 eight = x;
#endif
#if LANES > 4
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
    return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

#endif
