#pragma once

// AVX-512 F, BW, CD, DQ, VL.

#include "kernel/simd/intrinsics.h"

namespace graft::simd::GRAFT_ISA {
constexpr int kLanes = 16;
constexpr bool kReducesSin = true;  // fma() is fused, which sin_reduced() needs
constexpr int kVectorRegisters = 32;
}  // namespace graft::simd::GRAFT_ISA

#include "kernel/simd/vec_types.h"

namespace graft::simd::GRAFT_ISA {

constexpr vi kLaneIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

GRAFT_VEC vf splat(float x) { return (vf)_mm512_set1_ps(x); }

// a * b + c
GRAFT_VEC vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

// The first n lanes (0 < n <= kLanes); the others are zero.
GRAFT_VEC vf load_n(const float* p, int n) { return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p); }
GRAFT_VEC void store_n(float* p, vf v, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v); }

// The larger of x and low, the smaller of x and high; keeps a NaN in x, and -0 against a bound of 0.
GRAFT_VEC vf at_least(vf x, vf low) { return (vf)_mm512_max_ps((__m512)low, (__m512)x); }
GRAFT_VEC vf at_most(vf x, vf high) { return (vf)_mm512_min_ps((__m512)high, (__m512)x); }

GRAFT_VEC vf square_root(vf x) { return (vf)_mm512_sqrt_ps((__m512)x); }

GRAFT_VEC vf load_f16(const std::uint16_t* p) {
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
GRAFT_VEC void store_f16(std::uint16_t* p, vf v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}
GRAFT_VEC vf load_i8(const signed char* p) {
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

GRAFT_VEC float sum_lanes(vf v) { return _mm512_reduce_add_ps((__m512)v); }

// Lanes i, i + 2, i + 4, ... of a and then of b.
template <int i>
GRAFT_VEC vf every_second_lane(vf a, vf b) {
  return __builtin_shufflevector(a, b, i, i + 2, i + 4, i + 6, i + 8, i + 10, i + 12, i + 14, i + 16, i + 18, i + 20,
                                 i + 22, i + 24, i + 26, i + 28, i + 30);
}
// The inverse: a and b become lanes 0 of a, 0 of b, 1 of a, 1 of b, ...
GRAFT_VEC void interleave_lanes(vf& a, vf& b) {
  const vf x = a, y = b;
  a = __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  b = __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// In each group of four lanes: {x0 + x2, y0 + y2, x1 + x3, y1 + y3}.
GRAFT_VEC vf add_halves(vf x, vf y) {
  return __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
         __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
// In each group of four lanes: {x0 + x2, x1 + x3, y0 + y2, y1 + y3}.
GRAFT_VEC vf add_pairs(vf x, vf y) {
  return __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
// The sum of the groups of four lanes.
GRAFT_VEC v4 sum_fours(vf v) {
  const v4 x = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  const v4 y = __builtin_shufflevector(v, v, 8, 9, 10, 11) + __builtin_shufflevector(v, v, 12, 13, 14, 15);
  return x + y;
}

GRAFT_VEC float max_lanes_nan(vf v) {
  if (_mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q) != 0) return __builtin_nanf("");
  return _mm512_reduce_max_ps((__m512)v);
}

struct ExpRange {
  vf x, n;
  __mmask16 some;
};
GRAFT_VEC ExpRange exp_range(vf x) {
  const __mmask16 some = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(kLeastExp), _CMP_NLT_UQ);
  x = (vf)_mm512_min_ps(_mm512_set1_ps(89.f), (__m512)x);  // keeps NaN, the second operand
  const vf n = (vf)_mm512_roundscale_ps((__m512)(x * kLog2E), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return {x, n, some};
}
GRAFT_VEC vf exp_scale(vf p, const ExpRange& range) {
  return (vf)_mm512_maskz_scalef_ps(range.some, (__m512)p, (__m512)range.n);
}

// erf((i + r) / 4) / 2 as a polynomial in r in [0, 1): kHalfErfPowers[n][i] is the coefficient of r^n, fitted in double
// precision for each interval, the coefficients rounded one by one and the rest fitted again. At 4 the value is 1 / 2.
constexpr float kLastErf = 5.65685367584228515625f;  // the last number that is less than 4 sqrt 2
alignas(64) constexpr float kHalfErfPowers[6][kLanes] = {
    {0.0e+00f, 1.381632e-01f, 2.6024994e-01f, 3.5557783e-01f, 4.213504e-01f, 4.6145007e-01f, 4.8305258e-01f,
     4.9333584e-01f, 4.9766114e-01f, 4.9926865e-01f, 4.997965e-01f, 4.999497e-01f, 4.9998894e-01f, 4.9999785e-01f,
     4.9999964e-01f, 4.9999994e-01f},
    {1.4104731e-01f, 1.3250163e-01f, 1.0984762e-01f, 8.036615e-02f, 5.188862e-02f, 2.9565088e-02f, 1.4866167e-02f,
     6.5967394e-03f, 2.5831475e-03f, 8.925942e-04f, 2.7256334e-04f, 7.318814e-05f, 1.76334e-05f, 3.5356873e-06f,
     3.9636774e-07f, 1.649683e-07f},
    {9.3891396e-07f, -8.279334e-03f, -1.3728729e-02f, -1.5067036e-02f, -1.297349e-02f, -9.239392e-03f, -5.5745873e-03f,
     -2.8855037e-03f, -1.290384e-03f, -5.010179e-04f, -1.7167316e-04f, -4.9810846e-05f, -1.431194e-05f, -2.3277673e-06f,
     9.705535e-07f, -4.0983926e-07f},
    {-2.9423123e-03f, -2.4248126e-03f, -1.1537352e-03f, 2.0404212e-04f, 1.0854641e-03f, 1.3117252e-03f, 1.0849419e-03f,
     7.034397e-04f, 3.736336e-04f, 1.6672698e-04f, 6.841435e-05f, 2.0131885e-05f, 8.986494e-06f, 5.7217843e-08f,
     -3.2425833e-06f, 7.618272e-07f},
    {6.6543294e-06f, 2.6678198e-04f, 3.7601127e-04f, 3.028506e-04f, 1.2833346e-04f, -1.9273777e-05f, -9.129209e-05f,
     -9.4198425e-05f, -6.395726e-05f, -3.3664484e-05f, -1.9531395e-05f, -4.6665946e-06f, -4.7519743e-06f, 9.497882e-07f,
     3.4511213e-06f, -7.241446e-07f},
    {5.060055e-05f, 2.2480675e-05f, -1.32901405e-05f, -3.343632e-05f, -2.9252033e-05f, -1.5646438e-05f, -1.9769043e-06f,
     4.8115085e-06f, 5.057425e-06f, 3.2335165e-06f, 3.4076033e-06f, 4.1814008e-07f, 1.350358e-06f, -4.412098e-07f,
     -1.2759581e-06f, 2.5933414e-07f},
};

// (x + |x| erf(|x| / sqrt 2)) / 2: as accurate as with erf() of vec.h (1.1 ulp of the result where x > 0) in less than
// half the instructions; the last addition is exact where the sum vanishes.
GRAFT_VEC vf gelu_erf(vf x) {
  constexpr int kSmallerMagnitude = 0xA;  // clears the sign
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512 scale = _mm512_set1_ps(2.8284271247461901f), whole = _mm512_set1_ps(8388608.f);  // 2^23
  const __m512 a = _mm512_range_ps((__m512)x, _mm512_set1_ps(kLastErf), kSmallerMagnitude);
  // The low bits of 2^23 + i hold the interval i.
  const __m512 at = _mm512_fmadd_round_ps(a, scale, whole, kDown);
  const vf r = (vf)_mm512_fmsub_ps(a, scale, at - whole);
  const __m512i i = _mm512_castps_si512(at);
  const auto power = [i](int n) { return (vf)_mm512_permutexvar_ps(i, _mm512_load_ps(kHalfErfPowers[n])); };
  vf p = fma(power(5), r, power(4));
  p = fma(p, r, power(3));
  p = fma(p, r, power(2));
  p = fma(p, r, power(1));
  p = fma(p, r, power(0));
  return fma(absolute(x), p, 0.5f * x);  // NaN is kept here
}

// The larger of two numbers; b where either is NaN.
GRAFT_VEC vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }

GRAFT_VEC bool all_ones(vf x) { return _mm512_cmpneq_ps_mask((__m512)x, _mm512_set1_ps(1.f)) == 0; }

// e^x as 2^n times a polynomial of the remainder of x / ln 2: the rounding error of the division grows with x, which is
// harmless in softmax weights. -inf (remainder 0) gives 0; NaN stays NaN.
template <int N>
GRAFT_VEC vf exp_by_powers_of_two(vf x, const float (&coefficients)[N]) {
  const __m512 y = (__m512)(x * 1.44269504f);
  const vf r = (vf)_mm512_reduce_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 n = _mm512_sub_ps(y, (__m512)r);
  vf p = splat(coefficients[N - 1]);
#pragma GCC unroll 8
  for (int i = N - 2; i >= 0; --i) p = fma(p, r, splat(coefficients[i]));
  return (vf)_mm512_scalef_ps((__m512)p, n);
}

// 2^x on [-1/2, 1/2]: least relative error, 1.6e-7, exact at 0.
constexpr float kExp2OfWeights[] = {1.f, 0.693147004f, 0.240222424f, 0.0555073358f, 0.00967151299f, 0.00132647261f};
// e^x for weights of a softmax.
GRAFT_VEC vf exp_of_weight(vf x) { return exp_by_powers_of_two(x, kExp2OfWeights); }

// Up to 32 bools as bits: whether each is not 0. Bits from n on are set.
GRAFT_VEC std::uint32_t bits_of_bools(const std::uint8_t* from, i64 n) {
  const auto some = static_cast<__mmask32>(n >= 32 ? ~0u : (1u << n) - 1u);
  const __m256i bytes = _mm256_maskz_loadu_epi8(some, from);
  return _mm256_test_epi8_mask(bytes, bytes) | ~some;
}

// Repeats the two floats at p.
GRAFT_VEC vf splat_pair(const float* p) {
  double pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return (vf)_mm512_set1_pd(pair);
}

// Keeps a value that several products use in a register; the compiler would load it again for each.
GRAFT_VEC void keep(vf& x) { asm("" : "+v"(x)); }

// Interleaves three vectors: output element i is column i / 3 of channel i % 3. Permutes two vectors at a time: first
// channels 0 and 1, then the result and channel 2.
struct Interleave3 {
  alignas(64) std::int32_t two[48], three[48];
};
constexpr Interleave3 interleave3() {
  Interleave3 lanes{};
  for (int i = 0; i < 48; ++i) {
    lanes.two[i] = i % 3 == 1 ? 16 + i / 3 : i / 3;
    lanes.three[i] = i % 3 == 2 ? 16 + i / 3 : i % 16;
  }
  return lanes;
}
constexpr Interleave3 kInterleave3 = interleave3();
// to[3 * i + c] = lane i of channel c.
GRAFT_VEC void store_interleaved(vf x, vf y, vf z, float* to) {
#pragma GCC unroll 3
  for (int k = 0; k < 48; k += 16) {
    const __m512 both = _mm512_permutex2var_ps((__m512)x, _mm512_load_si512(kInterleave3.two + k), (__m512)y);
    _mm512_storeu_ps(to + k, _mm512_permutex2var_ps(both, _mm512_load_si512(kInterleave3.three + k), (__m512)z));
  }
}

}  // namespace graft::simd::GRAFT_ISA
