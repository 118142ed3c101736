#pragma once

// The f32 vector that kernels in this folder are written with. Included only by isa/*.cpp, once per instruction set:
// everything is static and inside graft::simd::GRAFT_ISA, and nothing of the standard library is instantiated (see
// kernel/simd/dispatch.h).

#include <cstdint>

#include "graft/dtype.h"
#include "kernel/simd/half.h"

#if defined(__AVX512F__) || defined(__AVX2__)
// GCC 12 warns about the undefined values that its own intrinsics start from.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define GRAFT_VEC static inline __attribute__((always_inline, unused))

namespace graft::simd::GRAFT_ISA {

using i64 = std::int64_t;

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef float vf_unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef std::uint16_t vh __attribute__((vector_size(kLanes * 2)));
typedef std::uint16_t vh_unaligned __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
typedef float v4 __attribute__((vector_size(16)));
typedef float v4_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

GRAFT_VEC vf splat(float x) {
#if defined(__AVX512F__)
  return (vf)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (vf)_mm256_set1_ps(x);
#else
  return vf{x, x, x, x};
#endif
}

GRAFT_VEC vf zero() { return vf{}; }
GRAFT_VEC vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
GRAFT_VEC void store(float* p, vf v) { *reinterpret_cast<vf_unaligned*>(p) = v; }

// a * b + c, fused where the instruction set has it.
GRAFT_VEC vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// The first n lanes (0 < n <= kLanes); the others are zero.
GRAFT_VEC vf load_n(const float* p, int n) {
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
  vf v{};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

GRAFT_VEC void store_n(float* p, vf v, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
#else
  for (int i = 0; i < n; ++i) p[i] = v[i];
#endif
}

GRAFT_VEC vi as_int(vf v) { return (vi)v; }
// Bit patterns, for arithmetic that wraps on NaN and on lanes whose result is not used.
GRAFT_VEC vu as_bits(vf v) { return (vu)v; }
GRAFT_VEC vf as_float(vi v) { return (vf)v; }
// Lane-wise condition ? a : b; the condition's lanes are 0 or -1.
GRAFT_VEC vf select(vi condition, vf a, vf b) { return condition ? a : b; }
GRAFT_VEC vf absolute(vf x) { return as_float(as_int(x) & 0x7fffffff); }
// NaN wins, as in PyTorch.
GRAFT_VEC vf max_nan(vf a, vf b) { return select((a > b) | (a != a), a, b); }

// The larger of x and low, the smaller of x and high; a NaN in x stays, and so does -0 beside 0.
GRAFT_VEC vf at_least(vf x, vf low) {
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)low, (__m512)x);
#elif defined(__AVX2__)
  return (vf)_mm256_max_ps((__m256)low, (__m256)x);
#else
  return select(x < low, low, x);
#endif
}
GRAFT_VEC vf at_most(vf x, vf high) {
#if defined(__AVX512F__)
  return (vf)_mm512_min_ps((__m512)high, (__m512)x);
#elif defined(__AVX2__)
  return (vf)_mm256_min_ps((__m256)high, (__m256)x);
#else
  return select(x > high, high, x);
#endif
}

// --- kLanes elements in memory, any alignment ---

GRAFT_VEC vf load_bf16(const std::uint16_t* p) {
  const vh h = *reinterpret_cast<const vh_unaligned*>(p);
  return as_float(__builtin_convertvector(h, vi) << 16);
}

// Round to nearest even; every NaN becomes 0x7fc0, as PyTorch does.
GRAFT_VEC void store_bf16(std::uint16_t* p, vf v) {
  const vu u = as_bits(v);
  const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const vu nan = vu{} + 0x7fc0u;
  *reinterpret_cast<vh_unaligned*>(p) = __builtin_convertvector((v != v) ? nan : rounded, vh);
}

GRAFT_VEC vf load_f16(const std::uint16_t* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  vf v{};
  for (int i = 0; i < kLanes; ++i) v[i] = f16_to_float(p[i]);
  return v;
#endif
}

GRAFT_VEC void store_f16(std::uint16_t* p, vf v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_f16(v[i]);
#endif
}

// Element types as tags, so that one template serves f32, f16 and bf16 memory with f32 arithmetic.
struct F32 {
  using Stored = float;
  GRAFT_VEC vf load(const Stored* p) { return GRAFT_ISA::load(p); }
  GRAFT_VEC vf load_tail(const Stored* p, int n) { return load_n(p, n); }
  GRAFT_VEC void store(Stored* p, vf v) { GRAFT_ISA::store(p, v); }
  GRAFT_VEC void store_tail(Stored* p, vf v, int n) { store_n(p, v, n); }
  GRAFT_VEC float get(const Stored* p) { return *p; }
  GRAFT_VEC void put(Stored* p, float x) { *p = x; }
};
// A type of 16 bits: vectors from and to memory, single elements.
template <vf (*kLoad)(const std::uint16_t*), void (*kStore)(std::uint16_t*, vf), float (*kToFloat)(std::uint16_t),
          std::uint16_t (*kFromFloat)(float)>
struct Half {
  using Stored = std::uint16_t;
  GRAFT_VEC vf load(const Stored* p) { return kLoad(p); }
  GRAFT_VEC vf load_tail(const Stored* p, int n) {
    vf v{};
    for (int i = 0; i < n; ++i) v[i] = get(p + i);
    return v;
  }
  GRAFT_VEC void store(Stored* p, vf v) { kStore(p, v); }
  GRAFT_VEC void store_tail(Stored* p, vf v, int n) {
    for (int i = 0; i < n; ++i) put(p + i, v[i]);
  }
  GRAFT_VEC float get(const Stored* p) { return kToFloat(*p); }
  GRAFT_VEC void put(Stored* p, float x) { *p = kFromFloat(x); }
};
using F16 = Half<load_f16, store_f16, f16_to_float, float_to_f16>;
using BF16 = Half<load_bf16, store_bf16, bf16_to_float, float_to_bf16>;

// The first n lanes of any element type; the others are zero.
template <typename T>
GRAFT_VEC vf load_some(const typename T::Stored* p, i64 n) {
  return n >= kLanes ? T::load(p) : T::load_tail(p, static_cast<int>(n));
}
template <typename T>
GRAFT_VEC void store_some(typename T::Stored* p, vf v, i64 n) {
  if (n >= kLanes) {
    T::store(p, v);
  } else {
    T::store_tail(p, v, static_cast<int>(n));
  }
}

// Lanes at and beyond n become `fill`.
GRAFT_VEC vf keep_n(vf v, i64 n, float fill) {
#if defined(__AVX512F__)
  const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
  const vi lane = {0, 1, 2, 3, 4, 5, 6, 7};
#else
  const vi lane = {0, 1, 2, 3};
#endif
  return n >= kLanes ? v : select(lane < static_cast<std::int32_t>(n), v, splat(fill));
}

// --- reductions over lanes ---

GRAFT_VEC float sum_lanes(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float s[kLanes];
  store(s, v);
  for (int w = kLanes / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) s[i] += s[i + w];
  }
  return s[0];
#endif
}

// Lanes i, i + 2, i + 4, ... of a and then of b.
template <int i>
GRAFT_VEC vf every_second_lane(vf a, vf b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, i, i + 2, i + 4, i + 6, i + 8, i + 10, i + 12, i + 14, i + 16, i + 18, i + 20,
                                 i + 22, i + 24, i + 26, i + 28, i + 30);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, i, i + 2, i + 4, i + 6, i + 8, i + 10, i + 12, i + 14);
#else
  return __builtin_shufflevector(a, b, i, i + 2, i + 4, i + 6);
#endif
}
// The way back: a and b become lanes 0 of a, 0 of b, 1 of a, 1 of b, ...
GRAFT_VEC void interleave_lanes(vf& a, vf& b) {
  const vf x = a, y = b;
#if defined(__AVX512F__)
  a = __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  b = __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
  a = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
  b = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  a = __builtin_shufflevector(x, y, 0, 4, 1, 5);
  b = __builtin_shufflevector(x, y, 2, 6, 3, 7);
#endif
}

// {sum of a, sum of b, sum of c, sum of d} in fewer steps than four sums.
GRAFT_VEC v4 sum_lanes4(vf a, vf b, vf c, vf d) {
#if defined(__AVX512F__)
#define GRAFT_LOW 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define GRAFT_HIGH 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define GRAFT_LOW2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define GRAFT_HIGH2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#elif defined(__AVX2__)
#define GRAFT_LOW 0, 8, 1, 9, 4, 12, 5, 13
#define GRAFT_HIGH 2, 10, 3, 11, 6, 14, 7, 15
#define GRAFT_LOW2 0, 1, 8, 9, 4, 5, 12, 13
#define GRAFT_HIGH2 2, 3, 10, 11, 6, 7, 14, 15
#else
#define GRAFT_LOW 0, 4, 1, 5
#define GRAFT_HIGH 2, 6, 3, 7
#define GRAFT_LOW2 0, 1, 4, 5
#define GRAFT_HIGH2 2, 3, 6, 7
#endif
  const vf ab = __builtin_shufflevector(a, b, GRAFT_LOW) + __builtin_shufflevector(a, b, GRAFT_HIGH);
  const vf cd = __builtin_shufflevector(c, d, GRAFT_LOW) + __builtin_shufflevector(c, d, GRAFT_HIGH);
  // Each group of four lanes: a, b, c, d.
  const vf abcd = __builtin_shufflevector(ab, cd, GRAFT_LOW2) + __builtin_shufflevector(ab, cd, GRAFT_HIGH2);
#undef GRAFT_LOW
#undef GRAFT_HIGH
#undef GRAFT_LOW2
#undef GRAFT_HIGH2
#if defined(__AVX512F__)
  const v4 x = __builtin_shufflevector(abcd, abcd, 0, 1, 2, 3) + __builtin_shufflevector(abcd, abcd, 4, 5, 6, 7);
  const v4 y = __builtin_shufflevector(abcd, abcd, 8, 9, 10, 11) + __builtin_shufflevector(abcd, abcd, 12, 13, 14, 15);
  return x + y;
#elif defined(__AVX2__)
  return __builtin_shufflevector(abcd, abcd, 0, 1, 2, 3) + __builtin_shufflevector(abcd, abcd, 4, 5, 6, 7);
#else
  return abcd;
#endif
}

GRAFT_VEC float max_lanes_nan(vf v) {
#if defined(__AVX512F__)
  if (_mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q) != 0) return __builtin_nanf("");
  return _mm512_reduce_max_ps((__m512)v);
#else
  float s[kLanes];
  store(s, v);
  for (int w = kLanes / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) s[i] = s[i] > s[i + w] || s[i] != s[i] ? s[i] : s[i + w];
  }
  return s[0];
#endif
}

// --- functions, about 1 ulp ---

// Below -104 it is 0 without a multiplication that says so: one that underflows takes the CPU some 180 cycles, and
// masked scores of a softmax all lie there.
GRAFT_VEC vf exp(vf x) {
  constexpr float kLow = -104.f;
  const vf high = splat(89.f);
#if defined(__AVX512F__)
  const __mmask16 some = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(kLow), _CMP_NLT_UQ);
  x = (vf)_mm512_min_ps((__m512)high, (__m512)x);  // NaN, the second operand, stays
  const __m512 whole =
      _mm512_roundscale_ps((__m512)(x * 1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const vf n = (vf)whole;
#else
  const vi none = x < kLow;  // false for NaN, which stays
  x = select(none, splat(kLow), x);
  x = select(x > high, high, x);
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const vf shifted = fma(x, splat(1.44269504088896341f), magic);
  const vf n = shifted - magic;
#endif
  vf r = fma(n, splat(-0.693145751953125f), x);
  r = fma(n, splat(-1.428606765330187045e-06f), r);
  vf p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.f;
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_scalef_ps(some, (__m512)p, whole);
#else
  // 2^n in two factors: n reaches below the normal exponents.
  const vi e = (vi)(as_bits(shifted) - 0x4b400000u);
  const vi half = e >> 1;
  const vf scale_a = as_float((half + 127) << 23);
  const vf scale_b = as_float(((e - half + 127) << 23) & ~none);
  return p * scale_a * scale_b;
#endif
}

GRAFT_VEC vf sigmoid(vf x) { return 1.f / (1.f + exp(-x)); }

GRAFT_VEC vf erf(vf a) {
  const vf t = absolute(a);
  const vf s = a * a;
  vf r = fma(splat(-1.72853470e-5f), t, splat(3.83197126e-4f));
  const vf u = fma(splat(-3.88396438e-3f), t, splat(2.42546219e-2f));
  r = fma(r, s, u);
  r = fma(r, t, splat(-1.06777877e-1f));
  r = fma(r, t, splat(-6.34846687e-1f));
  r = fma(r, t, splat(-1.28717512e-1f));
  r = fma(r, t, -t);
  // Beyond 4 the result is 1 to the last bit, and the polynomial would overflow.
  r = select(t > 4.f, splat(-30.f), r);
  const vf far = as_float(as_int(1.f - exp(r)) | (as_int(a) & static_cast<std::int32_t>(0x80000000)));
  vf q = splat(-5.96761703e-4f);
  q = fma(q, s, splat(4.99119423e-3f));
  q = fma(q, s, splat(-2.67681349e-2f));
  q = fma(q, s, splat(1.12819925e-1f));
  q = fma(q, s, splat(-3.76125336e-1f));
  q = fma(q, s, splat(1.28379166e-1f));
  q = fma(q, a, a);
  return select(t > 0.927734375f, far, q);  // NaN compares false and comes through q
}

#if defined(__AVX512F__)
// erf((i + r) / 4) / 2 by powers of r in [0, 1): kHalfErfPowers[n][i] of r^n, fitted in double precision interval by
// interval, the coefficients rounded one after the other and the rest fitted again. At 4 it comes to 1 / 2.
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

// (x + |x| erf(|x| / sqrt 2)) / 2: as near as by erf() above (1.1 ulp of what comes out where x > 0) in less than half
// the instructions; the last one is exact where the sum vanishes.
GRAFT_VEC vf gelu_erf(vf x) {
  constexpr int kSmallerMagnitude = 0xA;  // without its sign
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512 scale = _mm512_set1_ps(2.8284271247461901f), whole = _mm512_set1_ps(8388608.f);  // 2^23
  const __m512 a = _mm512_range_ps((__m512)x, _mm512_set1_ps(kLastErf), kSmallerMagnitude);
  // The place is in the last bits of 2^23 + i.
  const __m512 at = _mm512_fmadd_round_ps(a, scale, whole, kDown);
  const vf r = (vf)_mm512_fmsub_ps(a, scale, at - whole);
  const __m512i i = _mm512_castps_si512(at);
  const auto power = [i](int n) { return (vf)_mm512_permutexvar_ps(i, _mm512_load_ps(kHalfErfPowers[n])); };
  vf p = fma(power(5), r, power(4));
  p = fma(p, r, power(3));
  p = fma(p, r, power(2));
  p = fma(p, r, power(1));
  p = fma(p, r, power(0));
  return fma(absolute(x), p, 0.5f * x);  // here a NaN stays
}
#else
GRAFT_VEC vf gelu_erf(vf x) { return 0.5f * x * (1.f + erf(x * 0.70710678118654752f)); }
#endif

// 0.5 x (1 + tanh(u)) = x * sigmoid(2u), without tanh's cancellation.
GRAFT_VEC vf gelu_tanh(vf x) {
  const vf u = 0.79788456080286536f * fma(0.044715f * x * x, x, x);
  return x * sigmoid(2.f * u);
}

GRAFT_VEC vf silu(vf x) { return x * sigmoid(x); }
GRAFT_VEC vf relu(vf x) { return select(x < 0.f, zero(), x); }

}  // namespace graft::simd::GRAFT_ISA
