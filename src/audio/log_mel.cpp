#include "audio/log_mel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/check.h"

namespace graft {
namespace {

constexpr double kHighest = 8000;  // Hz
constexpr double kLeastPower = 1e-10;
constexpr float kRange = 8;  // of values, in powers of ten

}  // namespace

LogMel::LogMel(const LogMelOptions& options)
    : options_(options),
      filters_(options.mels, options.n_fft, options.sampling_rate, kHighest),
      fourier_(static_cast<std::size_t>(options.n_fft)) {
  for (std::int64_t n = 0; n < options_.n_fft; ++n)
    window_.push_back(
        0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(n) / static_cast<double>(options_.n_fft)));
}

std::vector<float> LogMel::operator()(std::span<const float> samples) {
  const auto n_fft = static_cast<std::size_t>(options_.n_fft), half = n_fft / 2;
  GRAFT_CHECK(InvalidArgument, samples.size() > half, "a spectrogram needs ", half + 1, " samples, got ",
              samples.size());
  const auto count = static_cast<std::size_t>(frames(samples.size())),
             hop = static_cast<std::size_t>(options_.hop_length);
  std::vector<float> values(filters_.size() * count);
  std::vector<double> frame(n_fft), power(half + 1);
  float most = -std::numeric_limits<float>::infinity();
  for (std::size_t f = 0; f < count; ++f) {
    for (std::size_t n = 0; n < n_fft; ++n) {
      std::size_t at = f * hop + n;  // counted from half a window before the first sample
      at = at < half ? half - at : at - half;
      if (at >= samples.size()) at = 2 * (samples.size() - 1) - at;
      frame[n] = static_cast<double>(samples[at]) * window_[n];
    }
    fourier_.power(frame, power);
    for (std::size_t m = 0; m < filters_.size(); ++m) {
      float& value = values[m * count + f];
      value = static_cast<float>(std::log10(std::max(filters_.apply(m, power), kLeastPower)));
      most = std::max(most, value);
    }
  }
  for (float& value : values) value = (std::max(value, most - kRange) + 4) / 4;
  return values;
}

}  // namespace graft
