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
constexpr float kRange = 8;                                 // of values, in powers of ten
constexpr double kLinearHertz = 200. / 3, kLogFrom = 1000;  // Slaney's scale: linear up to 1,000 Hz, 15 mels
constexpr double kLogFromMel = kLogFrom / kLinearHertz, kMelsPerOctave = 27;  // per factor of 6.4

double mel_of(double hertz) {
  if (hertz < kLogFrom) return hertz / kLinearHertz;
  return kLogFromMel + std::log(hertz / kLogFrom) * kMelsPerOctave / std::log(6.4);
}

double hertz_of(double mel) {
  if (mel < kLogFromMel) return mel * kLinearHertz;
  return kLogFrom * std::exp(std::log(6.4) / kMelsPerOctave * (mel - kLogFromMel));
}

}  // namespace

LogMel::LogMel(const LogMelOptions& options) : options_(options), fourier_(static_cast<std::size_t>(options.n_fft)) {
  const auto bins = static_cast<std::size_t>(options_.n_fft / 2 + 1), mels = static_cast<std::size_t>(options_.mels);
  for (std::int64_t n = 0; n < options_.n_fft; ++n)
    window_.push_back(
        0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(n) / static_cast<double>(options_.n_fft)));
  std::vector<double> edges(mels + 2);  // Hz
  for (std::size_t m = 0; m < edges.size(); ++m)
    edges[m] = hertz_of(mel_of(kHighest) * static_cast<double>(m) / static_cast<double>(mels + 1));
  const double step = static_cast<double>(options_.sampling_rate / 2) / static_cast<double>(bins - 1);
  for (std::size_t m = 0; m < mels; ++m) {
    Filter filter;
    const double area = 2 / (edges[m + 2] - edges[m]);
    for (std::size_t k = 0; k < bins; ++k) {
      const double hertz = step * static_cast<double>(k);
      const double up = (hertz - edges[m]) / (edges[m + 1] - edges[m]);
      const double down = (edges[m + 2] - hertz) / (edges[m + 2] - edges[m + 1]);
      const double weight = std::max(0., std::min(up, down)) * area;
      if (weight == 0 && filter.weights.empty()) continue;
      if (filter.weights.empty()) filter.first = k;
      filter.weights.push_back(weight);
    }
    filters_.push_back(std::move(filter));
  }
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
      const Filter& filter = filters_[m];
      double sum = 0;
      for (std::size_t k = 0; k < filter.weights.size(); ++k) sum += filter.weights[k] * power[filter.first + k];
      float& value = values[m * count + f];
      value = static_cast<float>(std::log10(std::max(sum, kLeastPower)));
      most = std::max(most, value);
    }
  }
  for (float& value : values) value = (std::max(value, most - kRange) + 4) / 4;
  return values;
}

}  // namespace graft
