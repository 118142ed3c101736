#include "audio/normalized.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace graft {
namespace {

constexpr double kLeastVariance = 1e-7, kLeastDeviation = 1e-5;
constexpr double kLeastPower = 1. / (1 << 24);

}  // namespace

std::vector<float> normalized_samples(std::span<const float> samples) {
  const auto count = static_cast<double>(samples.size());
  double sum = 0, squares = 0;
  for (const float sample : samples) sum += sample;
  const double mean = sum / count;
  for (const float sample : samples) squares += (sample - mean) * (sample - mean);
  const double deviation = std::sqrt(squares / count + kLeastVariance);
  std::vector<float> out;
  out.reserve(samples.size());
  for (const float sample : samples) out.push_back(static_cast<float>((sample - mean) / deviation));
  return out;
}

NormalizedMel::NormalizedMel(const NormalizedMelOptions& options)
    : options_(options),
      window_(static_cast<std::size_t>(options.n_fft), 0),
      filters_(options.mels, options.n_fft, options.sampling_rate, static_cast<double>(options.sampling_rate) / 2),
      fourier_(static_cast<std::size_t>(options.n_fft)) {
  const std::int64_t first = (options_.n_fft - options_.win_length) / 2;
  for (std::int64_t n = 0; n < options_.win_length; ++n)
    window_[static_cast<std::size_t>(first + n)] =
        0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(n) /
                             static_cast<double>(std::max<std::int64_t>(options_.win_length - 1, 1)));
}

std::vector<float> NormalizedMel::operator()(std::span<const float> samples) {
  const auto count = static_cast<std::size_t>(frames(samples.size()));
  GRAFT_CHECK(InvalidArgument, count >= 2, "a spectrogram needs ", 2 * options_.hop_length, " samples, got ",
              samples.size());
  const auto n_fft = static_cast<std::size_t>(options_.n_fft), half = n_fft / 2, mels = filters_.size(),
             hop = static_cast<std::size_t>(options_.hop_length);
  const auto emphasized = [&](std::size_t at) {
    const float before = at == 0 ? 0 : options_.preemphasis * samples[at - 1];  // in f32, as the extractor
    return static_cast<double>(samples[at] - before);
  };
  std::vector<double> values(count * mels), frame(n_fft), power(half + 1);
  for (std::size_t f = 0; f < count; ++f) {
    for (std::size_t n = 0; n < n_fft; ++n) {
      const std::size_t at = f * hop + n;  // counted from half a transform before the first sample
      const bool within = at >= half && at - half < samples.size() && window_[n] != 0;
      frame[n] = within ? emphasized(at - half) * window_[n] : 0;
    }
    fourier_.power(frame, power);
    for (std::size_t m = 0; m < mels; ++m) values[f * mels + m] = std::log(filters_.apply(m, power) + kLeastPower);
  }
  std::vector<float> out(values.size());
  for (std::size_t m = 0; m < mels; ++m) {
    double sum = 0, squares = 0;
    for (std::size_t f = 0; f < count; ++f) sum += values[f * mels + m];
    const double mean = sum / static_cast<double>(count);
    for (std::size_t f = 0; f < count; ++f) {
      const double distance = values[f * mels + m] - mean;
      squares += distance * distance;
    }
    const double deviation = std::sqrt(squares / static_cast<double>(count - 1)) + kLeastDeviation;
    for (std::size_t f = 0; f < count; ++f)
      out[f * mels + m] = static_cast<float>((values[f * mels + m] - mean) / deviation);
  }
  return out;
}

}  // namespace graft
