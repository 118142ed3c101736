#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace graft {

// The discrete Fourier transform of real signals of one length, in f64: mixed radix, by the prime factors of the
// length (Cooley and Tukey, 1965). 400 = 2^4 5^2 points take some 10,000 operations.
class FourierTransform {
 public:
  explicit FourierTransform(std::size_t length);

  // |X[k]|^2 for k = 0 ... length / 2. `power` has length / 2 + 1 entries.
  void power(std::span<const double> signal, std::span<double> power);

 private:
  struct Complex {
    double re = 0, im = 0;
  };
  // out[k] = sum over n of in[n * stride] exp(-2 pi i k n / count), from this factor of the length on.
  void transform(const double* in, std::size_t stride, std::size_t count, std::size_t factor, Complex* out);

  std::vector<std::size_t> factors_;
  std::vector<Complex> roots_;  // exp(-2 pi i k / length)
  std::vector<Complex> result_, scratch_;
};

}  // namespace graft
