#include <algorithm>
#include <cmath>
#include <span>

#include "audio/samples.h"
#include "base/file.h"
#include "base/rethrow.h"
#include "graft/audio.h"

namespace graft {
namespace {

constexpr std::size_t kHeader = 44;

template <typename Number>
void put(std::string& out, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i) out += static_cast<char>(number >> (8 * i) & 0xff);
}

}  // namespace

// RIFF, WAVE, a chunk "fmt " of PCM and a chunk "data" (Multimedia Programming Interface and Data Specifications 1.0).
std::string encode_wav(const Audio& sound) try {
  audio::check_rate(sound.sampling_rate);
  GRAFT_CHECK(InvalidArgument, sound.samples.size() <= (0xffffffff - kHeader) / 2, sound.samples.size(),
              " samples are more than a WAV file has room for");
  const auto bytes = static_cast<std::uint32_t>(sound.samples.size() * 2);
  const auto rate = static_cast<std::uint32_t>(sound.sampling_rate);
  std::string out;
  out.reserve(kHeader + bytes);
  out += "RIFF";
  put(out, static_cast<std::uint32_t>(kHeader - 8 + bytes));
  out += "WAVEfmt ";
  put(out, std::uint32_t{16});
  put(out, std::uint16_t{1});  // PCM
  put(out, std::uint16_t{1});  // one channel
  put(out, rate);
  put(out, rate * 2);  // bytes per second
  put(out, std::uint16_t{2});
  put(out, std::uint16_t{16});
  out += "data";
  put(out, bytes);
  for (const float sample : sound.samples) {
    const float cut = std::isnan(sample) ? 0.F : std::clamp(sample, -1.F, 1.F);
    put(out, static_cast<std::uint16_t>(static_cast<std::int16_t>(std::lround(cut * 32767.F))));
  }
  return out;
} catch (...) {
  rethrow_typed();
}

void save_audio(const Audio& audio, const std::string& path) try {
  const std::string bytes = encode_wav(audio);
  NewFile file(path);
  file.write(std::as_bytes(std::span(bytes)), 0);
  file.commit();
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
