#pragma once

// Vectors of kLanes floats as the compiler knows them, the same for every instruction set. Included by vec_<isa>.h,
// which states kLanes.

#include <cstdint>
#include <utility>

#include "kernel/simd/half.h"

#define GRAFT_VEC static inline __attribute__((always_inline, unused))

namespace graft::simd::GRAFT_ISA {

using i64 = std::int64_t;

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t vu __attribute__((vector_size(kLanes * 4)));
typedef float vf_unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef std::uint16_t vh __attribute__((vector_size(kLanes * 2)));
typedef std::uint16_t vh_unaligned __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
typedef float v4 __attribute__((vector_size(16)));
typedef float v4_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

GRAFT_VEC vf zero() { return vf{}; }
GRAFT_VEC vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
GRAFT_VEC void store(float* p, vf v) { *reinterpret_cast<vf_unaligned*>(p) = v; }

GRAFT_VEC vi as_int(vf v) { return (vi)v; }
// Bit patterns, for arithmetic that wraps even on NaN and on unused lanes.
GRAFT_VEC vu as_bits(vf v) { return (vu)v; }
GRAFT_VEC vf as_float(vi v) { return (vf)v; }
// Lane-wise condition ? a : b; the condition's lanes are 0 or -1.
GRAFT_VEC vf select(vi condition, vf a, vf b) { return condition ? a : b; }
GRAFT_VEC vf absolute(vf x) { return as_float(as_int(x) & 0x7fffffff); }

// Functions for 1 .. N rows: [n - 1] is the one for n.
template <typename Fn, int N>
struct ByRows {
  Fn of[N];
  __attribute__((always_inline)) constexpr Fn operator[](i64 i) const { return of[i]; }
};
template <typename Fn, typename Of, int... r>
consteval ByRows<Fn, sizeof...(r)> by_rows(Of of, std::integer_sequence<int, r...>) {
  return {{of.template operator()<r + 1>()...}};
}
// `of` is a lambda with the number of rows as its template parameter.
template <typename Fn, int N, typename Of>
consteval ByRows<Fn, N> by_rows(Of of) {
  return by_rows<Fn>(of, std::make_integer_sequence<int, N>());
}

// The split of exp()'s operand: x = n log 2 + r, with a whole n. vec_<isa>.h has exp_range(), which clamps x, and
// exp_scale(), which multiplies by 2^n and gives 0 where x was below kLeastExp.
constexpr float kLeastExp = -104.f;
constexpr float kLog2E = 1.44269504088896341f;

}  // namespace graft::simd::GRAFT_ISA
