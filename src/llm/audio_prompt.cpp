#include <algorithm>

#include "audio/frame_mel.h"
#include "audio/log_mel.h"
#include "audio/samples.h"
#include "base/check.h"
#include "base/json.h"
#include "base/sha256.h"
#include "llm/images.h"

namespace graft::llm {
namespace {

constexpr std::int64_t kStride = 2, kPool = 2;  // of the tower: frames by position, positions by row of features

std::vector<float> samples_of(const AudioInfo& info, const Audio& audio) {
  GRAFT_CHECK(InvalidArgument, !audio.samples.empty() && audio.sampling_rate >= 1, "a sound of ", audio.samples.size(),
              " samples at ", audio.sampling_rate, " per second: expected at least one");
  GRAFT_CHECK(InvalidArgument, graft::audio::all_finite(audio.samples), "a sound has samples that are not finite");
  return resample(audio.samples, audio.sampling_rate, info.sampling_rate);
}

// Spectrograms of whole windows, as WhisperFeatureExtractor makes them of samples with silence behind.
void prepare(const AudioInfo& info, LogMel& log_mel, const Audio& audio, PreparedImages::One& one) {
  std::vector<float> samples = samples_of(info, audio);
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

// Of a prompt's sounds, which the extractor makes as long as the longest one.
class WholeSounds {
 public:
  WholeSounds(const AudioInfo& info, std::span<const Audio> audio)
      : info_(info),
        mel_({info.sampling_rate, info.n_fft, info.whole->win_length, info.hop_length, info.mels,
              info.whole->preemphasis, info.whole->highest}) {
    for (const Audio& one : audio) {
      const std::vector<float>& samples = samples_.emplace_back(samples_of(info, one));
      longest_ = std::max(longest_, samples.size());
      const std::int64_t frames = mel_.frames(samples.size());
      GRAFT_CHECK(InvalidArgument, frames >= 1, "a sound of ", samples.size(), " samples is shorter than one frame of ",
                  info.whole->win_length);
      GRAFT_CHECK(InvalidArgument, frames <= info.frames, "a sound of ", one.seconds(), " seconds: the model takes ",
                  static_cast<double>((info.frames - 1) * info.hop_length + info.whole->win_length) /
                      static_cast<double>(info.sampling_rate));
    }
  }

  void prepare(std::size_t i, PreparedImages::One& one) {
    GRAFT_CHECK(InvalidArgument, mel_.frames(longest_) > info_.whole->reduction, "a sound of ", longest_,
                " samples is shorter than two positions of the tower, ",
                info_.whole->reduction * info_.hop_length + info_.whole->win_length, " samples");
    one.spectrograms = mel_(samples_[i], longest_);
    const std::int64_t frames = mel_.frames(samples_[i].size()), reduction = info_.whole->reduction;
    one.rows = one.heard = (frames + reduction - 1) / reduction;
  }
  // Silence behind it, and whether it is told from the sound, change what becomes of a sound.
  std::array<std::int64_t, 2> about() const {
    return {static_cast<std::int64_t>(longest_), static_cast<std::int64_t>(samples_.size() > 1)};
  }

 private:
  const AudioInfo& info_;
  FrameMel mel_;
  std::vector<std::vector<float>> samples_;
  std::size_t longest_ = 0;
};

std::array<std::uint8_t, 32> digest_of(const Audio& audio, std::span<const std::int64_t> about = {}) {
  Sha256 hash;
  hash.add(std::as_bytes(about));
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
  if (const auto found = json.find("whole"); found != json.end()) {
    const auto of_whole = [&](const char* name, std::int64_t most) {
      const auto value = found->at(name).get<std::int64_t>();
      GRAFT_CHECK(InvalidProgram, value >= 1 && value <= most, "'", kLanguageModelKey, "': '", name,
                  "' of 'whole' must be from 1 to ", most, ", found ", value);
      return value;
    };
    WholeSoundInfo& whole = info.whole.emplace();
    whole.win_length = of_whole("win_length", 1 << 16);
    whole.preemphasis = found->at("preemphasis").get<float>();
    whole.highest = found->at("highest").get<double>();
    whole.reduction = of_whole("reduction", 1 << 10);
    whole.chunk = of_whole("chunk", 1 << 16);
    whole.states = of_whole("states", std::int64_t{1} << 24);
  }
  info.rows = size("rows", info.whole ? 0 : 1, info.whole ? 0 : std::int64_t{1} << 20);
  info.width = size("width", 1, std::int64_t{1} << 24);
  info.sampling_rate = size("sampling_rate", 1, 768'000);
  info.n_fft = size("n_fft", 2, 1 << 16);
  info.hop_length = size("hop_length", 1, 1 << 16);
  info.mels = size("mels", 1, 1 << 12);
  info.frames = size("frames", 1, 1 << 20);
  info.ends_with_sound = json.at("ends_with_sound").get<bool>();
  info.token = json.at("token").get<std::string>();
  info.place = json.at("place").get<std::string>();
  if (info.whole) {
    GRAFT_CHECK(InvalidProgram, info.whole->win_length <= info.n_fft, "'", kLanguageModelKey, "': frames of ",
                info.whole->win_length, " samples, and n_fft is ", info.n_fft);
    GRAFT_CHECK(InvalidProgram, info.whole->highest > 0 && 2 * info.whole->highest <= double(info.sampling_rate), "'",
                kLanguageModelKey, "': 'highest' of 'whole' is ", info.whole->highest, " Hz of ", info.sampling_rate);
    return info;
  }
  GRAFT_CHECK(InvalidProgram, info.frames * info.hop_length > info.n_fft / 2, "'", kLanguageModelKey,
              "': a window of 'audio' has ", info.frames * info.hop_length, " samples, and n_fft is ", info.n_fft);
  return info;
}

namespace {

// Methods of any number of frames and positions.
void check_whole(const Program& program, const AudioInfo& info) {
  const MethodInfo &embed = program.method(kEmbedAudio), &encode = program.method(kEncodeAudio);
  const auto is = [](const ValueInfo& value, DType dtype, std::initializer_list<std::int64_t> sizes) {
    return value.kind == Value::Kind::tensor && value.dtype == dtype && value.dims.size() == sizes.size() &&
           std::ranges::equal(value.dims, sizes, [](const DimInfo& dim, std::int64_t size) {
             return size < 0 ? dim.max >= -size : dim.min == size && dim.max == size;  // -n: n are possible
           });
  };
  const WholeSoundInfo& whole = *info.whole;
  const bool good = embed.inputs.size() == 1 && is(embed.inputs[0], DType::f32, {1, -info.frames, info.mels}) &&
                    embed.outputs.size() == 1 && embed.outputs[0].dims.size() == 3 && encode.inputs.size() == 2 &&
                    is(encode.inputs[0], DType::f32, {1, -whole.chunk, whole.states}) &&
                    is(encode.inputs[1], DType::b8, {1, -whole.chunk}) && encode.outputs.size() == 1 &&
                    encode.outputs[0].dims.size() == 2;
  GRAFT_CHECK(InvalidArgument, good, "methods '", kEmbedAudio, "' and '", kEncodeAudio, "' are not what '",
              kLanguageModelKey, "' says of sound: expected frames [1, ", info.frames, ", ", info.mels,
              "] that become positions [1, ", whole.chunk, ", ", whole.states, "], and of these features [",
              whole.chunk, ", ", info.width, "]");
}

}  // namespace

void check_audio_methods(const Program& program, const AudioInfo& info) {
  const MethodInfo& encode = program.method(kEncodeAudio);
  if (info.whole) {
    check_whole(program, info);
    return;
  }
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

namespace {

ImagePrompt with_sounds(const LanguageModel& model, std::string_view prompt, std::size_t count,
                        const Placeholders& placeholders, bool add_special) {
  Filled filled = with_placeholders(model, prompt, count, placeholders, add_special);
  if (filled.prepared) filled.prepared->sounds = true;
  return {std::move(filled.tokens), std::move(filled.prepared)};
}

}  // namespace

ImagePrompt encoded(const LanguageModel& model, std::string_view prompt, std::span<const Audio> audio,
                    bool add_special) {
  const auto& info = model.info().audio;
  if (!info) {
    GRAFT_CHECK(InvalidArgument, audio.empty(), model.info().architecture,
                " takes no sound: the package is of other input");
    return {model.encode(prompt, add_special), {}};
  }
  Placeholders placeholders{info->token, info->token_id, info->place, "sounds", {}, {}};
  if (info->whole) {
    WholeSounds sounds(*info, audio);
    placeholders.prepare = [&](std::size_t i, PreparedImages::One& one) {
      sounds.prepare(i, one);
      return repeated(info->token, one.rows);
    };
    placeholders.digest = [&](std::size_t i) { return digest_of(audio[i], sounds.about()); };
    return with_sounds(model, prompt, audio.size(), placeholders, add_special);
  }
  LogMel log_mel({info->sampling_rate, info->n_fft, info->hop_length, info->mels});
  placeholders.prepare = [&](std::size_t i, PreparedImages::One& one) {
    prepare(*info, log_mel, audio[i], one);
    return repeated(info->token, one.rows);
  };
  placeholders.digest = [&](std::size_t i) { return digest_of(audio[i]); };
  return with_sounds(model, prompt, audio.size(), placeholders, add_special);
}

namespace {

// The rows of features of a sound: positions of all its frames, then of these chunk by chunk.
std::vector<float> encode_whole(Session& session, const AudioInfo& info, const PreparedImages::One& one, bool several,
                                const RunOptions& options) {
  const WholeSoundInfo& whole = *info.whole;
  const std::int64_t frames = std::ssize(one.spectrograms) / info.mels;
  const std::int64_t positions = (frames + whole.reduction - 1) / whole.reduction;
  const Value spectrogram =
      Value::of(TensorView{const_cast<float*>(one.spectrograms.data()), DType::f32, Shape{1, frames, info.mels}});
  const std::vector<Value> embedded = session.run(kEmbedAudio, {&spectrogram, 1}, options);
  GRAFT_CHECK(InvalidProgram, embedded[0].tensor.shape == Shape({1, positions, whole.states}), "method '", kEmbedAudio,
              "' gave positions ", embedded[0].tensor.shape.str(), ", [1, ", positions, ", ", whole.states,
              "] were expected");
  const std::int64_t chunk = std::min(positions, whole.chunk), chunks = (positions + chunk - 1) / chunk;
  const auto* const from = static_cast<const float*>(embedded[0].tensor.data);
  std::vector<float> states(from, from + positions * whole.states);
  states.resize(static_cast<std::size_t>(chunks * chunk * whole.states), 0.F);
  // A mask is there for several sounds alone; without it what fills the last chunk is seen too.
  std::vector<std::uint8_t> heard(static_cast<std::size_t>(chunks * chunk), several ? 0 : 1);
  std::fill_n(heard.begin(), several ? one.heard : 0, std::uint8_t{1});
  std::vector<float> out;
  for (std::int64_t at = 0; at < one.rows; at += chunk) {
    const Value inputs[] = {
        Value::of(TensorView{states.data() + at * whole.states, DType::f32, Shape{1, chunk, whole.states}}),
        Value::of(TensorView{heard.data() + at, DType::b8, Shape{1, chunk}})};
    const std::vector<Value> found = session.run(kEncodeAudio, inputs, options);
    GRAFT_CHECK(InvalidProgram, found[0].tensor.shape == Shape({chunk, info.width}), "method '", kEncodeAudio,
                "' gave features ", found[0].tensor.shape.str(), ", [", chunk, ", ", info.width, "] were expected");
    const auto* const features = static_cast<const float*>(found[0].tensor.data);
    out.insert(out.end(), features, features + std::min(chunk, one.rows - at) * info.width);
  }
  return out;
}

}  // namespace

std::vector<float> encode_audio(Session& session, const AudioInfo& info, const PreparedImages& sounds,
                                const RunOptions& options) {
  std::vector<float> out(static_cast<std::size_t>(sounds.rows * info.width));
  std::vector<std::uint8_t> heard(static_cast<std::size_t>(info.frames / kStride));
  float* to = out.data();
  for (const PreparedImages::One& one : sounds.images) {
    if (info.whole) {
      to = std::ranges::copy(encode_whole(session, info, one, sounds.images.size() > 1, options), to).out;
      continue;
    }
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
