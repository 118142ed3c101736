#pragma once

// More functions on f32 vectors; special values as in the C library. Included only by vector sources: see vec.h.

#include "kernel/simd/vec.h"

namespace graft::simd::GRAFT_ISA {

constexpr float kInfinity = __builtin_inff();

// The magnitude of `x` with the sign of `sign`.
GRAFT_VEC vf copy_sign(vf x, vf sign) {
  const std::int32_t bit = static_cast<std::int32_t>(0x80000000);
  return as_float((as_int(x) & ~bit) | (as_int(sign) & bit));
}

GRAFT_VEC vf min_nan(vf a, vf b) { return select((a < b) | (a != a), a, b); }

// Half to even. Numbers from 2^23 on are integers already.
GRAFT_VEC vf round_even(vf x) {
  const vf big = copy_sign(splat(0x1p23f), x);
  const vf r = (x + big) - big;
  return select(absolute(x) < 0x1p23f, copy_sign(r, x), x);
}
GRAFT_VEC vf floor(vf x) {
  const vf r = round_even(x);
  return copy_sign(select(r > x, r - 1.f, r), x);
}
GRAFT_VEC vf ceil(vf x) {
  const vf r = round_even(x);
  return copy_sign(select(r < x, r + 1.f, r), x);
}
GRAFT_VEC vf truncate(vf x) {
  const vf a = absolute(x);
  const vf r = round_even(a);
  return copy_sign(select(r > a, r - 1.f, r), x);
}

// Cephes' polynomial on [sqrt(1/2), sqrt(2)).
GRAFT_VEC vf log(vf x) {
  const vi tiny = x < 0x1p-126f;
  const vf scaled = select(tiny, x * 0x1p23f, x);
  const vu bits = as_bits(scaled);
  const vi exponent = (vi)(bits - 0x3f3504f3u) >> 23;
  const vf f = as_float((vi)(bits - ((vu)exponent << 23))) - 1.f;
  const vf e = __builtin_convertvector(exponent, vf) - select(tiny, splat(23.f), zero());
  const vf z = f * f;
  vf p = splat(7.0376836292e-2f);
  p = fma(p, f, splat(-1.1514610310e-1f));
  p = fma(p, f, splat(1.1676998740e-1f));
  p = fma(p, f, splat(-1.2420140846e-1f));
  p = fma(p, f, splat(1.4249322787e-1f));
  p = fma(p, f, splat(-1.6668057665e-1f));
  p = fma(p, f, splat(2.0000714765e-1f));
  p = fma(p, f, splat(-2.4999993993e-1f));
  p = fma(p, f, splat(3.3333331174e-1f));
  vf y = p * f * z;
  y = fma(e, splat(-2.12194440e-4f), y);
  y = fma(z, splat(-0.5f), y);
  const vf r = fma(e, splat(0.693359375f), f + y);
  vf special = select(x == 0.f, splat(-kInfinity), splat(__builtin_nanf("")));
  special = select(x == kInfinity, x, special);
  return select((x > 0.f) & (x < kInfinity), r, special);
}

// log(1 + x), corrected by what the rounding of 1 + x lost.
GRAFT_VEC vf log1p(vf x) {
  const vf u = 1.f + x;
  const vf lost = x - (u - 1.f);
  const vf r = log(u) + lost / u;
  return select((u > 0.f) & (u < kInfinity), select(x == 0.f, x, r), log(u));
}

// 2^n (e^r - 1) + (2^n - 1): the second term is exact, so small results keep their precision.
GRAFT_VEC vf expm1(vf x) {
  const vf clamped = select(x < -30.f, splat(-30.f), x);
  const vf magic = splat(12582912.f);
  const vf shifted = fma(clamped, splat(1.44269504088896341f), magic);
  const vf n = shifted - magic;
  vf r = fma(n, splat(-0.693145751953125f), clamped);
  r = fma(n, splat(-1.428606765330187045e-06f), r);
  vf p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r);
  const vf scale = as_float((as_int(shifted) - 0x4b400000 + 127) << 23);
  const vf near = fma(scale, p, scale - 1.f);
  return select(x > 30.f, exp(x), select(x == 0.f, x, near));
}

GRAFT_VEC vf tanh(vf x) {
  const vf a = absolute(x);
  const vf s = x * x;
  vf p = splat(-5.70498872745e-3f);
  p = fma(p, s, splat(2.06390887954e-2f));
  p = fma(p, s, splat(-5.37397155531e-2f));
  p = fma(p, s, splat(1.33314422036e-1f));
  p = fma(p, s, splat(-3.33332819422e-1f));
  const vf near = select(x == 0.f, x, fma(p * s, x, x));
  const vf far = copy_sign(1.f - 2.f / (exp(a + a) + 1.f), x);
  return select(a < 0.625f, near, select(x == x, far, x));
}

// torch divides instead of multiplying by the sigmoid; near -inf the two differ.
GRAFT_VEC vf silu_div(vf x) { return x / (1.f + exp(-x)); }

GRAFT_VEC vf softplus(vf x, vf beta, vf threshold) {
  const vf scaled = x * beta;
  return select(scaled > threshold, x, log1p(exp(scaled)) / beta);
}

// sin or cos, |x| below 71476, where the three-part reduction keeps its precision, if fma() is fused. `quarter` is 0
// for sin, 1 for cos.
GRAFT_VEC vf sin_reduced(vf x, int quarter) {
  const vf magic = splat(12582912.f);
  const vf shifted = fma(x, splat(0.636619747f), magic);
  const vf n = shifted - magic;
  vf r = fma(n, splat(-1.57079601e+00f), x);
  r = fma(n, splat(-3.13916473e-07f), r);
  r = fma(n, splat(-5.39030253e-15f), r);
  const vi q = (vi)(as_bits(shifted) + static_cast<std::uint32_t>(quarter));
  const vf s = r * r;
  vf c = splat(2.44677067e-5f);
  c = fma(c, s, splat(-1.38877297e-3f));
  c = fma(c, s, splat(4.16666567e-2f));
  c = fma(c, s, splat(-0.5f));
  c = fma(c, s, splat(1.f));
  vf p = splat(2.86567956e-6f);
  p = fma(p, s, splat(-1.98559923e-4f));
  p = fma(p, s, splat(8.33338592e-3f));
  p = fma(p, s, splat(-1.66666672e-1f));
  p = select(r == 0.f, r, fma(p, r * s, r));
  const vf v = select((q & 1) != 0, c, p);
  return as_float(as_int(v) ^ ((q & 2) << 30));
}

}  // namespace graft::simd::GRAFT_ISA
