#pragma once

// What instruction sets without masks have in common. Included by vec_avx2.h and vec_baseline.h, after fma() and
// splat().

namespace graft::simd::GRAFT_ISA {

// The first n lanes (0 < n <= kLanes); the others are zero.
GRAFT_VEC vf load_n(const float* p, int n) {
  vf v{};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
}
GRAFT_VEC void store_n(float* p, vf v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

GRAFT_VEC float sum_lanes(vf v) {
  float s[kLanes];
  store(s, v);
  for (int w = kLanes / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) s[i] += s[i + w];
  }
  return s[0];
}

GRAFT_VEC float max_lanes_nan(vf v) {
  float s[kLanes];
  store(s, v);
  for (int w = kLanes / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) s[i] = s[i] > s[i + w] || s[i] != s[i] ? s[i] : s[i + w];
  }
  return s[0];
}

struct ExpRange {
  vf x, n, shifted;
  vi none;
};
GRAFT_VEC ExpRange exp_range(vf x) {
  const vi none = x < kLeastExp;  // false for NaN, which stays
  x = select(none, splat(kLeastExp), x);
  const vf high = splat(89.f);
  x = select(x > high, high, x);
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const vf shifted = fma(x, splat(kLog2E), magic);
  return {x, shifted - magic, shifted, none};
}
// 2^n in two factors, as n goes below the normal exponents.
GRAFT_VEC vf exp_scale(vf p, const ExpRange& range) {
  const vi e = (vi)(as_bits(range.shifted) - 0x4b400000u);
  const vi half = e >> 1;
  const vf scale_a = as_float((half + 127) << 23);
  const vf scale_b = as_float(((e - half + 127) << 23) & ~range.none);
  return p * scale_a * scale_b;
}

GRAFT_VEC vf erf(vf a);  // vec.h
GRAFT_VEC vf gelu_erf(vf x) { return 0.5f * x * (1.f + erf(x * 0.70710678118654752f)); }

// The larger of two numbers; b where either is NaN.
GRAFT_VEC vf larger(vf a, vf b) { return select(a > b, a, b); }

GRAFT_VEC bool all_ones(vf x) {
  bool all = true;
  for (int i = 0; i < kLanes; ++i) all &= x[i] == 1.f;
  return all;
}

GRAFT_VEC vf exp(vf x);  // vec.h
// e^x for weights of a softmax.
GRAFT_VEC vf exp_of_weight(vf x) { return exp(x); }

GRAFT_VEC std::uint32_t bits_of_32_bools(const std::uint8_t* from);  // vec_avx2.h, vec_baseline.h
// Up to 32 bools as bits: whether each is not 0. Bits from n on are set.
GRAFT_VEC std::uint32_t bits_of_bools(const std::uint8_t* from, i64 n) {
  std::uint8_t all[32];
  if (n < 32) {
    __builtin_memset(all, 1, sizeof(all));
    for (i64 i = 0; i < n; ++i) all[i] = from[i];
    from = all;
  }
  return bits_of_32_bools(from);
}

// to[3 * i + c] = lane i of channel c.
GRAFT_VEC void store_interleaved(vf x, vf y, vf z, float* to) {
  for (int i = 0; i < kLanes; ++i) {
    to[3 * i] = x[i];
    to[3 * i + 1] = y[i];
    to[3 * i + 2] = z[i];
  }
}

}  // namespace graft::simd::GRAFT_ISA
