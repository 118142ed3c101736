#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "audio/samples.h"
#include "base/check.h"
#include "base/rethrow.h"
#include "graft/audio.h"

namespace graft {
namespace {

constexpr double kZeroCrossings = 6, kRolloff = 0.99;  // torchaudio's lowpass_filter_width and rolloff

// The filter of one phase: weights of the samples from `first` on, seen from the sample before the output.
struct Phase {
  std::int64_t first = 0;
  std::vector<double> weights;
};

// Of `to` outputs for `from` inputs, which have no common divisor.
std::vector<Phase> phases_of(std::int64_t from, std::int64_t to) {
  const double in = static_cast<double>(from), out = static_cast<double>(to);
  const double cutoff = std::min(in, out) * kRolloff;
  const auto reach = static_cast<std::int64_t>(std::ceil(kZeroCrossings * in / cutoff));
  std::vector<Phase> phases(static_cast<std::size_t>(to));
  for (std::int64_t p = 0; p < to; ++p) {
    Phase& phase = phases[static_cast<std::size_t>(p)];
    const std::int64_t center = p * from / to;
    phase.first = center - reach;
    for (std::int64_t i = phase.first; i <= center + reach + 1; ++i) {
      const double t = (static_cast<double>(i) / in - static_cast<double>(p) / out) * cutoff;
      if (std::abs(t) >= kZeroCrossings) {
        phase.weights.push_back(0);
        continue;
      }
      const double angle = t * std::numbers::pi, window = std::cos(angle / kZeroCrossings / 2);
      phase.weights.push_back((t == 0 ? 1 : std::sin(angle) / angle) * window * window * cutoff / in);
    }
  }
  return phases;
}

}  // namespace

std::vector<float> resample(std::span<const float> samples, std::int64_t from, std::int64_t to) try {
  for (const std::int64_t rate : {from, to}) audio::check_rate(rate);
  if (from == to) return {samples.begin(), samples.end()};
  const std::int64_t divisor = std::gcd(from, to), in = from / divisor, out = to / divisor;
  const std::vector<Phase> phases = phases_of(in, out);
  const std::int64_t count = std::ssize(samples), length = (count * out + in - 1) / in;
  std::vector<float> result(static_cast<std::size_t>(length));
  for (std::int64_t i = 0; i < length; ++i) {
    const Phase& phase = phases[static_cast<std::size_t>(i % out)];
    const std::int64_t first = i / out * in + phase.first;
    const std::int64_t begin = std::max<std::int64_t>(-first, 0);
    const std::int64_t end = std::min(std::ssize(phase.weights), count - first);
    double sum = 0;
    for (std::int64_t k = begin; k < end; ++k)
      sum += phase.weights[static_cast<std::size_t>(k)] *
             static_cast<double>(samples[static_cast<std::size_t>(first + k)]);
    result[static_cast<std::size_t>(i)] = static_cast<float>(sum);
  }
  return result;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
