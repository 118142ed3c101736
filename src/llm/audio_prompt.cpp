#include <algorithm>

#include "audio/log_mel.h"
#include "audio/samples.h"
#include "base/check.h"
#include "base/json.h"
#include "base/sha256.h"
#include "llm/images.h"

namespace graft::llm {
namespace {

constexpr std::int64_t kStride = 2, kPool = 2;  // of the tower: frames by position, positions by row of features

// Spectrograms of whole windows, as WhisperFeatureExtractor makes them of samples with silence behind.
void prepare(const AudioInfo& info, LogMel& log_mel, const Audio& audio, PreparedImages::One& one) {
  GRAFT_CHECK(InvalidArgument, !audio.samples.empty() && audio.sampling_rate >= 1, "a sound of ", audio.samples.size(),
              " samples at ", audio.sampling_rate, " per second: expected at least one");
  GRAFT_CHECK(InvalidArgument, graft::audio::all_finite(audio.samples), "a sound has samples that are not finite");
  std::vector<float> samples = resample(audio.samples, audio.sampling_rate, info.sampling_rate);
  const std::int64_t count = std::ssize(samples), window = info.frames * info.hop_length;
  const std::int64_t windows = (count + window - 1) / window;
  if (info.ends_with_sound) {
    GRAFT_CHECK(InvalidArgument, windows == 1, "a sound of ", audio.seconds(), " seconds: the model takes ",
                static_cast<double>(window) / static_cast<double>(info.sampling_rate));
    const std::int64_t heard_frames = (count + info.hop_length - 1) / info.hop_length;
    one.heard = (heard_frames + kStride - 1) / kStride;
    one.rows = one.heard / kPool;
    GRAFT_CHECK(InvalidArgument, one.rows > 0, "a sound of ", count, " samples is shorter than one row of features");
  } else {
    one.rows = windows * info.rows;
  }
  samples.resize(static_cast<std::size_t>(windows * window), 0);
  const std::vector<float> whole = log_mel(samples);  // [mels, windows * frames]
  one.spectrograms.resize(whole.size());
  float* to = one.spectrograms.data();
  for (std::int64_t w = 0; w < windows; ++w)
    for (std::int64_t m = 0; m < info.mels; ++m)
      to = std::copy_n(whole.begin() + (m * windows + w) * info.frames, info.frames, to);
}

std::array<std::uint8_t, 32> digest_of(const Audio& audio) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(&audio.sampling_rate, 1)));
  hash.add(std::as_bytes(std::span(audio.samples)));
  return hash.digest();
}

}  // namespace

AudioInfo parse_audio(const Json& json, std::int64_t vocabulary) {
  AudioInfo info;
  const auto size = [&](const char* name, std::int64_t least, std::int64_t most) {
    const auto value = json.at(name).get<std::int64_t>();
    GRAFT_CHECK(InvalidProgram, value >= least && value <= most, "'", kLanguageModelKey, "': '", name,
                "' of 'audio' must be from ", least, " to ", most, ", found ", value);
    return value;
  };
  info.token_id = size("token_id", 0, vocabulary - 1);
  info.rows = size("rows", 1, std::int64_t{1} << 20);
  info.width = size("width", 1, std::int64_t{1} << 24);
  info.sampling_rate = size("sampling_rate", 1, 768'000);
  info.n_fft = size("n_fft", 2, 1 << 16);
  info.hop_length = size("hop_length", 1, 1 << 16);
  info.mels = size("mels", 1, 1 << 12);
  info.frames = size("frames", 1, 1 << 20);
  info.ends_with_sound = json.at("ends_with_sound").get<bool>();
  info.token = json.at("token").get<std::string>();
  info.place = json.at("place").get<std::string>();
  GRAFT_CHECK(InvalidProgram, info.frames * info.hop_length > info.n_fft / 2, "'", kLanguageModelKey,
              "': a window of 'audio' has ", info.frames * info.hop_length, " samples, and n_fft is ", info.n_fft);
  return info;
}

void check_audio_methods(const Program& program, const AudioInfo& info) {
  const MethodInfo& encode = program.method(kEncodeAudio);
  const auto is = [](const ValueInfo& value, DType dtype, std::initializer_list<std::int64_t> sizes) {
    return value.kind == Value::Kind::tensor && value.dtype == dtype &&
           std::ranges::equal(value.dims, sizes,
                              [](const DimInfo& dim, std::int64_t size) { return dim.min == size && dim.max == size; });
  };
  const auto& in = encode.inputs;
  const bool good = in.size() == (info.ends_with_sound ? 2U : 1U) &&
                    is(in[0], DType::f32, {1, info.mels, info.frames}) &&
                    (!info.ends_with_sound || is(in[1], DType::b8, {1, info.frames / kStride})) &&
                    encode.outputs.size() == 1 && is(encode.outputs[0], DType::f32, {info.rows, info.width});
  GRAFT_CHECK(InvalidArgument, good, "method '", kEncodeAudio, "' is not what '", kLanguageModelKey,
              "' says of sound: expected a spectrogram [1, ", info.mels, ", ", info.frames,
              "] as input, and features [", info.rows, ", ", info.width, "] as output");
  // What the sound leaves of a window are the first rows.
  GRAFT_CHECK(InvalidArgument, !info.ends_with_sound || info.rows == info.frames / kStride / kPool, "method '",
              kEncodeAudio, "' gives ", info.rows, " rows for ", info.frames, " frames, expected ",
              info.frames / kStride / kPool);
}

ImagePrompt encoded(const LanguageModel& model, std::string_view prompt, std::span<const Audio> audio,
                    bool add_special) {
  const auto& info = model.info().audio;
  if (!info) {
    GRAFT_CHECK(InvalidArgument, audio.empty(), model.info().architecture,
                " takes no sound: the package is of other input");
    return {model.encode(prompt, add_special), {}};
  }
  LogMel log_mel({info->sampling_rate, info->n_fft, info->hop_length, info->mels});
  Placeholders placeholders{info->token, info->token_id, info->place, "sounds", {}, {}};
  placeholders.prepare = [&](std::size_t i, PreparedImages::One& one) {
    prepare(*info, log_mel, audio[i], one);
    return repeated(info->token, one.rows);
  };
  placeholders.digest = [&](std::size_t i) { return digest_of(audio[i]); };
  Filled filled = with_placeholders(model, prompt, audio.size(), placeholders, add_special);
  return {std::move(filled.tokens), std::move(filled.prepared)};
}

std::vector<float> encode_audio(Session& session, const AudioInfo& info, const PreparedImages& sounds,
                                const RunOptions& options) {
  std::vector<float> out(static_cast<std::size_t>(sounds.rows * info.width));
  std::vector<std::uint8_t> heard(static_cast<std::size_t>(info.frames / kStride));
  float* to = out.data();
  for (const PreparedImages::One& one : sounds.images) {
    std::ranges::fill(heard, std::uint8_t{0});
    std::fill_n(heard.begin(), one.heard, std::uint8_t{1});
    const std::int64_t window = info.mels * info.frames;
    for (std::int64_t at = 0, left = one.rows; at < std::ssize(one.spectrograms); at += window) {
      std::vector<Value> inputs = {Value::of(
          TensorView{const_cast<float*>(one.spectrograms.data() + at), DType::f32, Shape{1, info.mels, info.frames}})};
      if (info.ends_with_sound)
        inputs.push_back(Value::of(TensorView{heard.data(), DType::b8, Shape{1, std::ssize(heard)}}));
      const std::vector<Value> found = session.run(kEncodeAudio, inputs, options);
      const std::int64_t rows = std::min(left, info.rows);
      to = std::copy_n(static_cast<const float*>(found[0].tensor.data), rows * info.width, to);
      left -= rows;
    }
  }
  return out;
}

}  // namespace graft::llm
