#include "audio/frame_mel.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace graft {
namespace {

constexpr float kFullScale = 32768;  // of samples of 16 bits

}  // namespace

FrameMel::FrameMel(const FrameMelOptions& options)
    : options_(options),
      filters_(MelFilters::of_kaldi(options.mels, options.n_fft, options.sampling_rate, options.highest)),
      fourier_(static_cast<std::size_t>(options.n_fft)) {
  const auto last = static_cast<double>(std::max<std::int64_t>(options_.win_length - 1, 1));
  for (std::int64_t n = 0; n < options_.win_length; ++n)
    window_.push_back(0.54 - 0.46 * std::cos(2 * std::numbers::pi * static_cast<double>(n) / last));
}

std::int64_t FrameMel::frames(std::size_t samples) const {
  const std::int64_t rest = static_cast<std::int64_t>(samples) - options_.win_length;
  return rest < 0 ? 0 : rest / options_.hop_length + 1;
}

std::vector<float> FrameMel::operator()(std::span<const float> samples, std::size_t length) {
  const std::int64_t count = frames(length), whole = frames(samples.size());
  // At most one: its extractor has the frames from there on, of which it means to be rid, as they are.
  const std::int64_t silent_end = static_cast<std::int64_t>(samples.size()) / options_.hop_length - 1;
  const auto size = window_.size();
  std::vector<float> out(static_cast<std::size_t>(count) * filters_.size(), 0.F);
  std::vector<double> frame(static_cast<std::size_t>(options_.n_fft), 0.), power(frame.size() / 2 + 1);
  const auto sample = [&](std::size_t at) { return at < samples.size() ? samples[at] : 0.F; };
  for (std::int64_t f = 0; f < count; ++f) {
    const auto first = static_cast<std::size_t>(f * options_.hop_length);
    if (first >= samples.size() || (f >= whole && f < silent_end)) continue;  // ln(max(0, 1))
    for (std::size_t n = 0; n < size; ++n) {
      // The first sample stands before itself; in f32 as the extractor.
      const float before = sample(n == 0 ? first : first + n - 1);
      frame[n] = static_cast<double>((sample(first + n) - options_.preemphasis * before) * kFullScale) * window_[n];
    }
    fourier_.power(frame, power);
    for (std::size_t m = 0; m < filters_.size(); ++m)
      out[static_cast<std::size_t>(f) * filters_.size() + m] =
          static_cast<float>(std::log(std::max(filters_.apply(m, power), 1.)));
  }
  return out;
}

}  // namespace graft
