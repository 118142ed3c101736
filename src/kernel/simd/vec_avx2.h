#pragma once

// AVX2, FMA, F16C.

#include "kernel/simd/intrinsics.h"

namespace graft::simd::GRAFT_ISA {
constexpr int kLanes = 8;
constexpr bool kReducesSin = true;  // fma() is fused, which sin_reduced() needs
constexpr int kVectorRegisters = 16;
}  // namespace graft::simd::GRAFT_ISA

#include "kernel/simd/vec_types.h"

namespace graft::simd::GRAFT_ISA {

constexpr vi kLaneIndex = {0, 1, 2, 3, 4, 5, 6, 7};

GRAFT_VEC vf splat(float x) { return (vf)_mm256_set1_ps(x); }

// a * b + c
GRAFT_VEC vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

// The larger of x and low, the smaller of x and high; keeps a NaN in x, and -0 against a bound of 0.
GRAFT_VEC vf at_least(vf x, vf low) { return (vf)_mm256_max_ps((__m256)low, (__m256)x); }
GRAFT_VEC vf at_most(vf x, vf high) { return (vf)_mm256_min_ps((__m256)high, (__m256)x); }

GRAFT_VEC vf square_root(vf x) { return (vf)_mm256_sqrt_ps((__m256)x); }

GRAFT_VEC vf load_f16(const std::uint16_t* p) {
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
GRAFT_VEC void store_f16(std::uint16_t* p, vf v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}
GRAFT_VEC vf load_i8(const signed char* p) {
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// Lanes i, i + 2, i + 4, ... of a and then of b.
template <int i>
GRAFT_VEC vf every_second_lane(vf a, vf b) {
  return __builtin_shufflevector(a, b, i, i + 2, i + 4, i + 6, i + 8, i + 10, i + 12, i + 14);
}
// The inverse: a and b become lanes 0 of a, 0 of b, 1 of a, 1 of b, ...
GRAFT_VEC void interleave_lanes(vf& a, vf& b) {
  const vf x = a, y = b;
  a = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
  b = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
}

// In each group of four lanes: {x0 + x2, y0 + y2, x1 + x3, y1 + y3}.
GRAFT_VEC vf add_halves(vf x, vf y) {
  return __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13) +
         __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15);
}
// In each group of four lanes: {x0 + x2, x1 + x3, y0 + y2, y1 + y3}.
GRAFT_VEC vf add_pairs(vf x, vf y) {
  return __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13) +
         __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
}
// The sum of the groups of four lanes.
GRAFT_VEC v4 sum_fours(vf v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}

// Whether each of 32 bools is not 0.
GRAFT_VEC std::uint32_t bits_of_32_bools(const std::uint8_t* from) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return ~static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
}

// Repeats the two floats at p.
GRAFT_VEC vf splat_pair(const float* p) {
  double pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return (vf)_mm256_set1_pd(pair);
}

// Keeps a value that several products use in a register; the compiler would load it again for each.
GRAFT_VEC void keep(vf& x) { asm("" : "+x"(x)); }

}  // namespace graft::simd::GRAFT_ISA

#include "kernel/simd/vec_unmasked.h"
