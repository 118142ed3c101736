#include "audio/fourier.h"

#include <cmath>
#include <numbers>

namespace graft {

FourierTransform::FourierTransform(std::size_t length) : result_(length), scratch_(length) {
  std::size_t rest = length;
  for (std::size_t prime = 2; rest > 1; ++prime)
    for (; rest % prime == 0; rest /= prime) factors_.push_back(prime);
  for (std::size_t k = 0; k < length; ++k) {
    const double angle = -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(length);
    roots_.push_back({std::cos(angle), std::sin(angle)});
  }
}

void FourierTransform::transform(const double* in, std::size_t stride, std::size_t count, std::size_t factor,
                                 Complex* out) {
  if (count == 1) {
    *out = {*in, 0};
    return;
  }
  const std::size_t radix = factors_[factor], part = count / radix;
  for (std::size_t r = 0; r < radix; ++r) transform(in + r * stride, stride * radix, part, factor + 1, out + r * part);
  // roots_ steps by `stride` for a transform of count = length / stride points.
  Complex* const sums = scratch_.data();
  for (std::size_t k = 0; k < part; ++k) {
    for (std::size_t q = 0; q < radix; ++q) {
      Complex sum = out[k];
      for (std::size_t r = 1; r < radix; ++r) {
        const Complex root = roots_[(k + q * part) * r % count * stride], x = out[r * part + k];
        sum.re += x.re * root.re - x.im * root.im;
        sum.im += x.re * root.im + x.im * root.re;
      }
      sums[q] = sum;
    }
    for (std::size_t q = 0; q < radix; ++q) out[q * part + k] = sums[q];
  }
}

void FourierTransform::power(std::span<const double> signal, std::span<double> power) {
  transform(signal.data(), 1, signal.size(), 0, result_.data());
  for (std::size_t k = 0; k < power.size(); ++k)
    power[k] = result_[k].re * result_[k].re + result_[k].im * result_[k].im;
}

}  // namespace graft
