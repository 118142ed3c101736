#pragma once

// For vector sources, which are compiled once per GRAFT_ISA.
namespace graft::simd::GRAFT_ISA {
namespace {

// The inverse of erf: Giles, "Approximating the erfinv function" (2010), for single precision, and two steps of
// Halley's method. Beyond 1 NaN.
inline double erfinv(double x) {
  const double size = x < 0 ? -x : x;
  if (!(size < 1)) return size == 1 ? __builtin_copysign(__builtin_inf(), x) : __builtin_nan("");
  constexpr double kMiddle[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                                -0.00125372503, -0.00417768164, 0.246640727,    1.50140941};
  constexpr double kTail[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                              -0.0076224613,   0.00943887047,  1.00167406,    2.83297682};
  const double w = -__builtin_log1p(-size * size);
  const bool middle = w < 5;
  const double at = middle ? w - 2.5 : __builtin_sqrt(w) - 3;
  double y = 0;
  for (const double c : middle ? kMiddle : kTail) y = y * at + c;
  y *= size;
  constexpr double kTwoOverRootPi = 1.12837916709551257390;
  for (int step = 0; step < 2; ++step) {
    // erf(y) - size, by erfc where both are near 1.
    const double error = size < 0.5 ? __builtin_erf(y) - size : (1 - size) - __builtin_erfc(y);
    const double newton = error / (kTwoOverRootPi * __builtin_exp(-y * y));
    y -= newton / (1 + y * newton);
  }
  return __builtin_copysign(y, x);
}

}  // namespace
}  // namespace graft::simd::GRAFT_ISA
