#include "audio/mel_filters.h"

#include <algorithm>
#include <cmath>

namespace graft {
namespace {

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

MelFilters::MelFilters(std::int64_t mels, std::int64_t n_fft, std::int64_t sampling_rate, double highest) {
  const auto bins = static_cast<std::size_t>(n_fft / 2 + 1), count = static_cast<std::size_t>(mels);
  std::vector<double> edges(count + 2);  // Hz
  for (std::size_t m = 0; m < edges.size(); ++m)
    edges[m] = hertz_of(mel_of(highest) * static_cast<double>(m) / static_cast<double>(count + 1));
  const double step = static_cast<double>(sampling_rate / 2) / static_cast<double>(bins - 1);
  for (std::size_t m = 0; m < count; ++m) {
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

double MelFilters::apply(std::size_t mel, std::span<const double> power) const {
  const Filter& filter = filters_[mel];
  double sum = 0;
  for (std::size_t k = 0; k < filter.weights.size(); ++k) sum += filter.weights[k] * power[filter.first + k];
  return sum;
}

}  // namespace graft
