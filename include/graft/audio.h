#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graft/export.h"

// Sound as models of speech take it: one channel of samples at a fixed rate.
namespace graft {

struct Audio {
  std::vector<float> samples;      // one channel, from -1 to 1
  std::int64_t sampling_rate = 0;  // samples per second
  double seconds() const { return static_cast<double>(samples.size()) / static_cast<double>(sampling_rate); }
};

// The most samples, of all channels together, that decode_audio reads: 4.6 hours of one channel at 16 kHz.
inline constexpr std::int64_t kMaxAudioSamples = std::int64_t{1} << 28;

// A file of WAV, FLAC or MP3, known by its content. Of several channels the mean is taken. `label` names it in
// messages. Throws InvalidArgument for another format, a damaged file, one without samples, and one of more than
// kMaxAudioSamples.
GRAFT_API Audio decode_audio(std::span<const std::byte> file, const std::string& label = "the audio");
// The same of a path. Throws NotFound and SystemError besides.
GRAFT_API Audio load_audio(const std::string& path);

// A WAV file of one channel in 16 bits, of samples cut to -1 to 1. save_audio replaces a file. Both throw
// InvalidArgument for a rate below 1 or above 768,000, and for more samples than such a file has room for; save_audio
// SystemError.
GRAFT_API std::string encode_wav(const Audio& audio);
GRAFT_API void save_audio(const Audio& audio, const std::string& path);

// At another rate, by windowed sinc interpolation (Hann window, 6 zero crossings, 0.99 of the lower Nyquist
// frequency): what torchaudio.functional.resample computes by default, which transformers' pipelines use. There are
// ceil(samples * to / from) of them. Throws InvalidArgument for a rate below 1 or above 768,000.
GRAFT_API std::vector<float> resample(std::span<const float> samples, std::int64_t from, std::int64_t to);

}  // namespace graft
