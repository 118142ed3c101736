#pragma once

// What every CPU of the architecture has, through the compiler's vector types: SSE2 on x86-64, NEON on aarch64.

#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace graft::simd::GRAFT_ISA {
constexpr int kLanes = 4;
constexpr bool kReducesSin = false;   // sin_reduced() needs a fused fma()
constexpr int kVectorRegisters = 16;  // of SSE2; NEON has 32
}  // namespace graft::simd::GRAFT_ISA

#include "kernel/simd/vec_types.h"

namespace graft::simd::GRAFT_ISA {

constexpr vi kLaneIndex = {0, 1, 2, 3};

GRAFT_VEC vf splat(float x) { return vf{x, x, x, x}; }

// a * b + c, fused on aarch64.
GRAFT_VEC vf fma(vf a, vf b, vf c) {
#ifdef __aarch64__
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// The larger of x and low, the smaller of x and high; keeps a NaN in x, and -0 against a bound of 0.
GRAFT_VEC vf at_least(vf x, vf low) { return select(x < low, low, x); }
GRAFT_VEC vf at_most(vf x, vf high) { return select(x > high, high, x); }

GRAFT_VEC vf square_root(vf x) {
  vf r{};
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_sqrtf(x[i]);
  return r;
}

GRAFT_VEC vf load_f16(const std::uint16_t* p) {
  vf v{};
  for (int i = 0; i < kLanes; ++i) v[i] = f16_to_float(p[i]);
  return v;
}
GRAFT_VEC void store_f16(std::uint16_t* p, vf v) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_f16(v[i]);
}
GRAFT_VEC vf load_i8(const signed char* p) {
  vf v{};
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}

// Lanes i, i + 2, i + 4, ... of a and then of b.
template <int i>
GRAFT_VEC vf every_second_lane(vf a, vf b) {
  return __builtin_shufflevector(a, b, i, i + 2, i + 4, i + 6);
}
// The inverse: a and b become lanes 0 of a, 0 of b, 1 of a, 1 of b, ...
GRAFT_VEC void interleave_lanes(vf& a, vf& b) {
  const vf x = a, y = b;
  a = __builtin_shufflevector(x, y, 0, 4, 1, 5);
  b = __builtin_shufflevector(x, y, 2, 6, 3, 7);
}

// {x0 + x2, y0 + y2, x1 + x3, y1 + y3}
GRAFT_VEC vf add_halves(vf x, vf y) {
  return __builtin_shufflevector(x, y, 0, 4, 1, 5) + __builtin_shufflevector(x, y, 2, 6, 3, 7);
}
// {x0 + x2, x1 + x3, y0 + y2, y1 + y3}
GRAFT_VEC vf add_pairs(vf x, vf y) {
  return __builtin_shufflevector(x, y, 0, 1, 4, 5) + __builtin_shufflevector(x, y, 2, 3, 6, 7);
}
// The sum of the groups of four lanes.
GRAFT_VEC v4 sum_fours(vf v) { return v; }

// Whether each of 32 bools is not 0.
GRAFT_VEC std::uint32_t bits_of_32_bools(const std::uint8_t* from) {
  std::uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) {
    std::uint64_t bytes;
    __builtin_memcpy(&bytes, from + 8 * i, sizeof(bytes));
    bytes |= bytes >> 4;
    bytes |= bytes >> 2;
    bytes |= bytes >> 1;
    // Byte k, now 0 or 1, times 2^(56 - 7 k) ends as bit k of the top byte; no sums carry into it.
    bits |= static_cast<std::uint32_t>((bytes & 0x0101010101010101u) * 0x0102040810204080u >> 56) << (8 * i);
  }
  return bits;
}

// Repeats the two floats at p.
GRAFT_VEC vf splat_pair(const float* p) {
  double pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  typedef double vd __attribute__((vector_size(16)));
  return (vf)vd{pair, pair};
}

// Keeps a value that several products use in a register; the compiler would load it again for each.
GRAFT_VEC void keep([[maybe_unused]] vf& x) {
#ifdef __x86_64__
  asm("" : "+x"(x));
#endif
}

}  // namespace graft::simd::GRAFT_ISA

#include "kernel/simd/vec_unmasked.h"
