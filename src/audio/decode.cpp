#include <miniaudio.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/rethrow.h"
#include "graft/audio.h"

namespace graft {
namespace {

constexpr std::size_t kSamplesAtOnce = 1 << 16;

// A file in memory as miniaudio reads it. Chunks that claim a size beyond the file's end, or one that is negative as an
// int, are seeks to outside of it, which miniaudio's own reader of memory clamps: its loop over a WAV's chunks need not
// end then.
struct Source {
  std::span<const std::byte> file;
  std::size_t position = 0;
};

Source& source_of(ma_decoder* decoder) { return *static_cast<Source*>(decoder->pUserData); }

ma_result read(ma_decoder* decoder, void* out, std::size_t count, std::size_t* copied) {
  Source& source = source_of(decoder);
  *copied = std::min(count, source.file.size() - source.position);
  if (*copied > 0) std::memcpy(out, source.file.data() + source.position, *copied);
  source.position += *copied;
  return *copied == 0 && count > 0 ? MA_AT_END : MA_SUCCESS;
}

ma_result seek(ma_decoder* decoder, ma_int64 offset, ma_seek_origin origin) {
  Source& source = source_of(decoder);
  // The end is sought to learn the file's size from a position that this way of reading cannot tell.
  if (origin == ma_seek_origin_end || offset < 0) return MA_BAD_SEEK;
  const std::size_t from = origin == ma_seek_origin_start ? 0 : source.position;
  if (static_cast<ma_uint64>(offset) > source.file.size() - from) return MA_BAD_SEEK;
  source.position = from + static_cast<std::size_t>(offset);
  return MA_SUCCESS;
}

struct Uninit {
  void operator()(ma_decoder* decoder) const { ma_decoder_uninit(decoder); }
};

Audio decoded(std::span<const std::byte> file, const std::string& label) {
  // Channels and rate 0: those of the file.
  const ma_decoder_config config = ma_decoder_config_init(ma_format_f32, 0, 0);
  Source source{file};
  ma_decoder memory;
  const ma_result opened = ma_decoder_init(read, seek, &source, &config, &memory);
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
  for (ma_uint64 count = 0;;) {
    const ma_result result = ma_decoder_read_pcm_frames(decoder.get(), frames.data(), at_once, &count);
    GRAFT_CHECK(InvalidArgument, result == MA_SUCCESS || result == MA_AT_END, label, " is damaged after ",
                audio.samples.size(), " samples: ", ma_result_description(result));
    GRAFT_CHECK(InvalidArgument, (audio.samples.size() + count) * channels <= std::size_t{kMaxAudioSamples}, label,
                " has more than ", kMaxAudioSamples, " samples");
    for (std::size_t f = 0; f < count; ++f) {
      double sum = 0;
      for (std::size_t c = 0; c < channels; ++c) sum += static_cast<double>(frames[f * channels + c]);
      GRAFT_CHECK(InvalidArgument, std::isfinite(sum), label, " has a sample that is no number, after ",
                  audio.samples.size());
      audio.samples.push_back(static_cast<float>(sum / static_cast<double>(channels)));
    }
    if (count < at_once) break;
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
