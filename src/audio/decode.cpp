#include <miniaudio.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/rethrow.h"
#include "graft/audio.h"

namespace graft {
namespace {

constexpr std::size_t kSamplesAtOnce = 1 << 16;

struct Uninit {
  void operator()(ma_decoder* decoder) const { ma_decoder_uninit(decoder); }
};

Audio decoded(std::span<const std::byte> file, const std::string& label) {
  // Channels and rate 0: those of the file.
  const ma_decoder_config config = ma_decoder_config_init(ma_format_f32, 0, 0);
  ma_decoder memory;
  const ma_result opened = ma_decoder_init_memory(file.data(), file.size(), &config, &memory);
  if (opened == MA_OUT_OF_MEMORY) throw std::bad_alloc();
  GRAFT_CHECK(InvalidArgument, opened == MA_SUCCESS, label, " cannot be read: expected WAV, FLAC or MP3, found ",
              file.size(), " bytes of something else");
  const std::unique_ptr<ma_decoder, Uninit> decoder(&memory);
  const auto channels = static_cast<std::size_t>(memory.outputChannels);
  Audio audio;
  audio.sampling_rate = memory.outputSampleRate;
  GRAFT_CHECK(InvalidArgument, channels > 0 && audio.sampling_rate > 0, label, " has ", channels,
              " channels and a rate of ", audio.sampling_rate);
  const std::size_t at_once = std::max<std::size_t>(kSamplesAtOnce / channels, 1);
  std::vector<float> frames(at_once * channels);
  for (ma_uint64 read = 0;;) {
    const ma_result result = ma_decoder_read_pcm_frames(decoder.get(), frames.data(), at_once, &read);
    GRAFT_CHECK(InvalidArgument, result == MA_SUCCESS || result == MA_AT_END, label, " is damaged after ",
                audio.samples.size(), " samples: ", ma_result_description(result));
    GRAFT_CHECK(InvalidArgument, (audio.samples.size() + read) * channels <= std::size_t{kMaxAudioSamples}, label,
                " has more than ", kMaxAudioSamples, " samples");
    for (std::size_t f = 0; f < read; ++f) {
      double sum = 0;
      for (std::size_t c = 0; c < channels; ++c) sum += static_cast<double>(frames[f * channels + c]);
      GRAFT_CHECK(InvalidArgument, std::isfinite(sum), label, " has a sample that is no number, after ",
                  audio.samples.size());
      audio.samples.push_back(static_cast<float>(sum / static_cast<double>(channels)));
    }
    if (read < at_once) break;
  }
  GRAFT_CHECK(InvalidArgument, !audio.samples.empty(), label, " has no samples");
  return audio;
}

}  // namespace

Audio decode_audio(std::span<const std::byte> file, const std::string& label) try {
  return decoded(file, label);
} catch (...) {
  rethrow_typed();
}

Audio load_audio(const std::string& path) try {
  return decoded(MappedFile::read_whole(path), "'" + path + "'");
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
