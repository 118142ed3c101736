#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "audio/fourier.h"
#include "audio/mel_filters.h"

namespace graft {

struct FrameMelOptions {
  std::int64_t sampling_rate = 16000, n_fft = 512, win_length = 400, hop_length = 160, mels = 80;
  float preemphasis = 0.97F;  // of the sample before within a frame, taken off each
  double highest = 7690;      // Hz
};

// Log-mel spectrograms as transformers' Phi4MultimodalFeatureExtractor: whole frames alone, preemphasis within each,
// samples of 16 bits, symmetric Hamming window, power, the mel filters of Kaldi, ln(max(x, 1)). Sums are in f64.
class FrameMel {
 public:
  explicit FrameMel(const FrameMelOptions& options);

  // Those that lie within so many samples.
  std::int64_t frames(std::size_t samples) const;
  // [frames(length), mels] of these samples with silence behind, as the extractor pads the shorter ones of a batch:
  // where the first frame behind the whole ones is not the last but one that begins within the sound, it is silent.
  std::vector<float> operator()(std::span<const float> samples, std::size_t length);

 private:
  FrameMelOptions options_;
  std::vector<double> window_;  // [win_length]
  MelFilters filters_;
  FourierTransform fourier_;
};

}  // namespace graft
