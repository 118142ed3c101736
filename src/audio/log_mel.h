#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "audio/fourier.h"
#include "audio/mel_filters.h"

namespace graft {

struct LogMelOptions {
  std::int64_t sampling_rate = 16000, n_fft = 400, hop_length = 160, mels = 80;
};

// Log-mel spectrograms as Whisper's feature extractor computes them (transformers' WhisperFeatureExtractor): Hann
// window, frames centred with reflected ends, power, the mel filters of Slaney's Auditory Toolbox from 0 to 8,000 Hz,
// log10 cut off at 8 below the largest value, (x + 4) / 4. Sums are in f64.
class LogMel {
 public:
  explicit LogMel(const LogMelOptions& options);

  std::int64_t frames(std::size_t samples) const { return static_cast<std::int64_t>(samples) / options_.hop_length; }
  // [mels, frames(samples)]. Throws InvalidArgument for less than n_fft / 2 + 1 samples, which have no reflection.
  std::vector<float> operator()(std::span<const float> samples);

 private:
  LogMelOptions options_;
  std::vector<double> window_;  // [n_fft]
  MelFilters filters_;
  FourierTransform fourier_;
};

}  // namespace graft
