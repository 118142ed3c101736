#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "audio/fourier.h"
#include "audio/mel_filters.h"

// Features of zero mean and unit variance over the sound that they are of.
namespace graft {

// (x - mean) / sqrt(variance + 1e-7), as transformers' Wav2Vec2FeatureExtractor. Sums are in f64.
std::vector<float> normalized_samples(std::span<const float> samples);

struct NormalizedMelOptions {
  std::int64_t sampling_rate = 16000, n_fft = 512, win_length = 400, hop_length = 160, mels = 80;
  float preemphasis = 0.97F;  // of the sample before, taken off each
};

// Log-mel spectrograms as transformers' ParakeetFeatureExtractor: preemphasis, symmetric Hann window, frames centred
// with zeros at both ends, power, the mel filters of Slaney's Auditory Toolbox from 0 Hz to half the rate,
// ln(x + 2^-24), and for each mel (x - mean) / (deviation + 1e-5). Sums are in f64.
class NormalizedMel {
 public:
  explicit NormalizedMel(const NormalizedMelOptions& options);

  // Those that the extractor's attention mask has, one less than it computes.
  std::int64_t frames(std::size_t samples) const { return static_cast<std::int64_t>(samples) / options_.hop_length; }
  // [frames(samples), mels]. Throws InvalidArgument for less than two frames, which have no deviation.
  std::vector<float> operator()(std::span<const float> samples);

 private:
  NormalizedMelOptions options_;
  std::vector<double> window_;  // [n_fft], zeros around the window itself
  MelFilters filters_;
  FourierTransform fourier_;
};

}  // namespace graft
