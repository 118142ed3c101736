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

std::vector<double> edges_of(std::int64_t mels, double most, double (*hertz)(double)) {
  std::vector<double> edges(static_cast<std::size_t>(mels) + 2);
  for (std::size_t m = 0; m < edges.size(); ++m)
    edges[m] = hertz(most * static_cast<double>(m) / static_cast<double>(mels + 1));
  return edges;
}

std::vector<double> areas_of(std::span<const double> edges) {
  std::vector<double> out;
  for (std::size_t m = 0; m + 2 < edges.size(); ++m) out.push_back(2 / (edges[m + 2] - edges[m]));
  return out;
}

std::vector<double> bins_of(std::int64_t n_fft, double step, double (*unit)(double)) {
  std::vector<double> out;
  for (std::int64_t k = 0; k <= n_fft / 2; ++k) out.push_back(unit(step * static_cast<double>(k)));
  return out;
}

double same(double x) { return x; }
double kaldi_mel_of(double hertz) { return 1127 * std::log(1 + hertz / 700); }

}  // namespace

MelFilters::MelFilters(std::span<const double> edges, std::span<const double> frequencies,
                       std::span<const double> scales) {
  for (std::size_t m = 0; m < scales.size(); ++m) {
    Filter filter;
    for (std::size_t k = 0; k < frequencies.size(); ++k) {
      const double up = (frequencies[k] - edges[m]) / (edges[m + 1] - edges[m]);
      const double down = (edges[m + 2] - frequencies[k]) / (edges[m + 2] - edges[m + 1]);
      const double weight = std::max(0., std::min(up, down)) * scales[m];
      if (weight == 0 && filter.weights.empty()) continue;
      if (filter.weights.empty()) filter.first = k;
      filter.weights.push_back(weight);
    }
    filters_.push_back(std::move(filter));
  }
}

MelFilters::MelFilters(std::int64_t mels, std::int64_t n_fft, std::int64_t sampling_rate, double highest) {
  const std::vector<double> edges = edges_of(mels, mel_of(highest), hertz_of);
  const double step = static_cast<double>(sampling_rate / 2) / static_cast<double>(n_fft / 2);
  *this = MelFilters(edges, bins_of(n_fft, step, same), areas_of(edges));
}

MelFilters MelFilters::of_kaldi(std::int64_t mels, std::int64_t n_fft, std::int64_t sampling_rate, double highest) {
  const std::vector<double> edges = edges_of(mels, kaldi_mel_of(highest), same);
  const double step = static_cast<double>(sampling_rate) / static_cast<double>(n_fft / 2 * 2);
  return {edges, bins_of(n_fft, step, kaldi_mel_of), std::vector<double>(static_cast<std::size_t>(mels), 1)};
}

double MelFilters::apply(std::size_t mel, std::span<const double> power) const {
  const Filter& filter = filters_[mel];
  double sum = 0;
  for (std::size_t k = 0; k < filter.weights.size(); ++k) sum += filter.weights[k] * power[filter.first + k];
  return sum;
}

}  // namespace graft
