#pragma once

// Vectors of floats for the vector sources, which alone include this, once per target: everything is static and inside
// graft::simd::GRAFT_ISA, and nothing of the standard library is instantiated (see kernel/simd/dispatch.h). Differences
// between instruction sets are in vec_<isa>.h only.

#include <cstdint>

#include "graft/dtype.h"
#if defined(__AVX512F__)
#include "kernel/simd/vec_avx512.h"
#elif defined(__AVX2__)
#include "kernel/simd/vec_avx2.h"
#else
#include "kernel/simd/vec_baseline.h"
#endif

namespace graft::simd::GRAFT_ISA {

// NaN wins, as in PyTorch.
GRAFT_VEC vf max_nan(vf a, vf b) { return select((a > b) | (a != a), a, b); }

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

// Sets lanes n and up to `fill`.
GRAFT_VEC vf keep_n(vf v, i64 n, float fill) {
  return n >= kLanes ? v : select(kLaneIndex < static_cast<std::int32_t>(n), v, splat(fill));
}

// {sum of a, sum of b, sum of c, sum of d} in fewer steps than four sums.
GRAFT_VEC v4 sum_lanes4(vf a, vf b, vf c, vf d) {
  return sum_fours(add_pairs(add_halves(a, b), add_halves(c, d)));  // each group of four lanes: a, b, c, d
}

// --- functions, about 1 ulp ---

// Below -104 the result is 0 without a multiplication: one that underflows takes the CPU some 180 cycles, and masked
// scores of a softmax are all that small.
GRAFT_VEC vf exp(vf x) {
  const ExpRange range = exp_range(x);
  const vf n = range.n;
  vf r = fma(n, splat(-0.693145751953125f), range.x);
  r = fma(n, splat(-1.428606765330187045e-06f), r);
  vf p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.f;
  return exp_scale(p, range);
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

// 0.5 x (1 + tanh(u)) = x * sigmoid(2u), without tanh's cancellation.
GRAFT_VEC vf gelu_tanh(vf x) {
  const vf u = 0.79788456080286536f * fma(0.044715f * x * x, x, x);
  return x * sigmoid(2.f * u);
}

GRAFT_VEC vf silu(vf x) { return x * sigmoid(x); }
GRAFT_VEC vf relu(vf x) { return select(x < 0.f, zero(), x); }

}  // namespace graft::simd::GRAFT_ISA
