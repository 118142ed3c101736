#include "graft/speaker.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "audio/samples.h"
#include "base/check.h"
#include "base/json.h"
#include "base/rethrow.h"
#include "base/utf8.h"
#include "llm/in_use.h"
#include "llm/speech_text.h"
#include "package/container.h"

namespace graft {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::string_view kStep = "step", kDecode = "decode_audio", kEncode = "encode_voice";
// Frames of a text: as many as PocketTTS takes for a text that never ends, (tokens / 3 + 2) seconds.
constexpr double kTokensPerSecond = 3, kMoreSeconds = 2;

SpeakerInfo info_of(const Json& json) {
  SpeakerInfo info;
  const auto size = [&](const char* name, std::int64_t least) {
    const auto value = json.at(name).get<std::int64_t>();
    GRAFT_CHECK(InvalidProgram, value >= least && value <= std::int64_t{1} << 32, "'", kSpeakerKey, "': '", name,
                "' must be from ", least, " to 2^32, found ", value);
    return value;
  };
  const auto number = [&](const char* name) {
    const auto value = json.at(name).get<double>();
    GRAFT_CHECK(InvalidProgram, value >= 0 && value <= 1e6, "'", kSpeakerKey, "': '", name,
                "' must be from 0 to 1,000,000, found ", value);
    return value;
  };
  info.architecture = json.at("architecture").get<std::string>();
  info.sampling_rate = size("sampling_rate", 1);
  info.frame_size = size("frame_size", 1);
  info.frame_rate = number("frame_rate");
  info.latent_size = size("latent_size", 1);
  info.context_length = size("context_length", 1);
  info.voice_id = size("voice_id", 0);
  info.latent_id = size("latent_id", 0);
  info.begin_id = size("begin_id", 0);
  info.placeholder_ids = json.at("placeholder_ids").get<Ids>();
  info.short_text_words = size("short_text_words", 0);
  info.tail_frames_short = size("tail_frames_short", 0);
  info.tail_frames = size("tail_frames", 0);
  info.fade_in_seconds = number("fade_in_seconds");
  info.end_on_pause = json.at("end_on_pause").get<bool>();
  info.pause_seconds = number("pause_seconds");
  info.fade_out_seconds = number("fade_out_seconds");
  info.silence_floor_db = number("silence_floor_db");
  info.analysis_seconds = number("analysis_seconds");
  return info;
}

SpeakingOptions defaults_of(const Json& json) {
  const Json& given = json.at("defaults");
  SpeakingOptions options;
  options.temperature = given.at("temperature").get<double>();
  options.eos_threshold = given.at("eos_threshold").get<double>();
  options.min_frames_before_eos = given.at("min_frames_before_eos").get<std::int64_t>();
  return options;
}

void check(const SpeakingOptions& options) {
  GRAFT_CHECK(InvalidArgument, options.temperature >= 0 && std::isfinite(options.temperature),
              "temperature is at least 0, got ", options.temperature);
  GRAFT_CHECK(InvalidArgument, !std::isnan(options.eos_threshold), "eos_threshold is not a number");
  GRAFT_CHECK(InvalidArgument, options.min_frames_before_eos >= 0, "min_frames_before_eos is at least 0, got ",
              options.min_frames_before_eos);
  GRAFT_CHECK(InvalidArgument, options.max_frames >= 0, "max_frames is at least 0, got ", options.max_frames);
  GRAFT_CHECK(InvalidArgument, options.max_tokens >= 1, "max_tokens is at least 1, got ", options.max_tokens);
}

template <typename Number>
Value view(std::vector<Number>& data, DType dtype, const Shape& shape) {
  return Value::of(TensorView{data.data(), dtype, shape});
}

}  // namespace

class Speaker::Impl {
 public:
  Impl(const std::string& path, const LoadOptions& options, int threads) {
    const auto text = named_text(path, kSpeakerKey);
    GRAFT_CHECK(InvalidArgument, text, "'", path, "' is no model that speaks: it has no '", kSpeakerKey,
                "'; graft.export_speaker writes such packages");
    try {
      const Json json = read_json<Json>(*text);
      info = info_of(json);
      defaults = defaults_of(json);
    } catch (const Json::exception& error) {
      throw InvalidProgram(str("'", path, "': '", kSpeakerKey, "' cannot be read: ", error.what()));
    }
    tokenizer = Tokenizer::load(path);
    for (const std::int64_t id : info.placeholder_ids)
      GRAFT_CHECK(InvalidProgram, id >= 0 && id < tokenizer->size() && tokenizer->is_special(id), "'", path, "': '",
                  kSpeakerKey, "': expected special tokens as placeholders, found ", id);
    const auto program = Program::load(path, options);
    SessionOptions of_session;
    of_session.threads = threads;
    of_session.kv = {1, info.context_length, KvType::computed, info.context_length};
    session = std::make_unique<Session>(program, of_session);
    info.takes_voice = std::ranges::count(program->method_names(), kEncode) > 0;
    check_methods(*program);
    ids_.resize(1);
    positions_.resize(1);
    latents_.resize(static_cast<std::size_t>(info.latent_size));
    noise_.resize(static_cast<std::size_t>(info.latent_size));
    next_.resize(static_cast<std::size_t>(info.latent_size));
  }

  Voice voice(const Audio& audio, const RunOptions& run_options);
  Audio speak(std::string_view text, const Voice* voice, const SpeakingOptions& options, const OnAudio& on_audio,
              const RunOptions& run_options);

  llm::InUse in_use;
  SpeakerInfo info;
  SpeakingOptions defaults;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Session> session;

 private:
  void check_methods(const Program& program) const;
  std::vector<float> frames_of(const std::string& chunk, const Voice* voice, const SpeakingOptions& options,
                               std::mt19937_64& random, const RunOptions& run_options);
  void step(std::int64_t width, std::int64_t first, const RunOptions& run_options);

  Ids ids_, positions_;                        // of a step
  std::vector<float> latents_, noise_, next_;  // [T, D], [D], [D]
  float end_ = 0;                              // the logit of the end of the speech
};

void Speaker::Impl::check_methods(const Program& program) const {
  const auto is = [](const ValueInfo& value, DType dtype, std::initializer_list<std::int64_t> sizes) {
    return value.kind == Value::Kind::tensor && value.dtype == dtype &&
           std::ranges::equal(value.dims, sizes, [](const DimInfo& dim, std::int64_t size) {
             return size < 0 || (dim.min == size && dim.max == size);  // -1: any
           });
  };
  const std::int64_t d = info.latent_size;
  const MethodInfo &step = program.method(kStep), &decode = program.method(kDecode);
  bool good = step.inputs.size() == 5 && step.outputs.size() == 2 && is(step.inputs[3], DType::f32, {1, -1, d}) &&
              is(step.inputs[4], DType::f32, {1, d}) && is(step.outputs[0], DType::f32, {1, d}) &&
              is(step.outputs[1], DType::f32, {1}) && step.inputs[0].dims.size() == 2 &&
              step.inputs[0].dims[1].max >= info.context_length;
  for (std::size_t i = 0; good && i < 3; ++i) good = is(step.inputs[i], DType::i64, {1, -1});
  good = good && decode.inputs.size() == 1 && is(decode.inputs[0], DType::f32, {1, -1, d}) &&
         decode.outputs.size() == 1 && is(decode.outputs[0], DType::f32, {1, -1});
  if (good && info.takes_voice) {
    const MethodInfo& encode = program.method(kEncode);
    good = encode.inputs.size() == 1 && is(encode.inputs[0], DType::f32, {1, 1, -1}) && encode.outputs.size() == 1 &&
           is(encode.outputs[0], DType::f32, {1, -1, d});
  }
  GRAFT_CHECK(InvalidProgram, good, "the methods of the package are not those that '", kSpeakerKey, "' describes");
}

Voice Speaker::Impl::voice(const Audio& audio, const RunOptions& run_options) {
  GRAFT_CHECK(InvalidArgument, info.takes_voice, info.architecture,
              " takes no voice: the package was exported without the encoder of its codec");
  GRAFT_CHECK(InvalidArgument, !audio.samples.empty(), "a voice needs samples, got none");
  GRAFT_CHECK(InvalidArgument, graft::audio::all_finite(audio.samples), "a voice has samples that are not finite");
  std::vector<float> samples =
      llm::voice_samples(resample(audio.samples, audio.sampling_rate, info.sampling_rate), info);
  const std::int64_t frames = std::ssize(samples) / info.frame_size;
  GRAFT_CHECK(InvalidArgument, frames < info.context_length, "a voice of ", frames, " frames does not fit into ",
              info.context_length, " with a text");
  const Value input = view(samples, DType::f32, Shape{1, 1, std::ssize(samples)});
  const std::vector<Value> found = session->run(kEncode, {&input, 1}, run_options);
  const TensorView& latents = found[0].tensor;
  GRAFT_CHECK(InvalidProgram, latents.shape == Shape({1, frames, info.latent_size}), "method '", kEncode, "' gave ",
              latents.shape.str(), " for ", frames, " frames");
  const auto* const from = static_cast<const float*>(latents.data);
  return {{from, from + latents.shape.numel()}, frames};
}

void Speaker::Impl::step(std::int64_t width, std::int64_t first, const RunOptions& run_options) {
  for (std::int64_t i = 0; i < width; ++i) positions_[static_cast<std::size_t>(i)] = first + i;
  const Shape ids{1, width}, frame{1, info.latent_size};
  const Value inputs[] = {
      view(ids_, DType::i64, ids), view(positions_, DType::i64, ids), view(positions_, DType::i64, ids),
      view(latents_, DType::f32, Shape{1, width, info.latent_size}), view(noise_, DType::f32, frame)};
  Value outputs[] = {view(next_, DType::f32, frame), Value::of(TensorView{&end_, DType::f32, Shape{1}})};
  session->run_into(kStep, inputs, outputs, run_options);
}

std::vector<float> Speaker::Impl::frames_of(const std::string& chunk, const Voice* voice,
                                            const SpeakingOptions& options, std::mt19937_64& random,
                                            const RunOptions& run_options) {
  const Ids given = tokenizer->encode(llm::speech_prompt(*tokenizer, chunk, voice != nullptr));
  const std::int64_t places = std::ranges::count(given, info.voice_id);
  GRAFT_CHECK(InvalidArgument, places == (voice ? 1 : 0), "the chat template has ", places,
              " places of a voice, expected ", voice ? 1 : 0);
  GRAFT_CHECK(InvalidArgument, !given.empty() && given.back() == info.begin_id,
              "the chat template must end with the token where speech begins, ", info.begin_id);
  const auto is_placeholder = [&](std::int64_t id) {
    return std::ranges::find(info.placeholder_ids, id) != info.placeholder_ids.end();
  };
  const auto d = static_cast<std::size_t>(info.latent_size);
  ids_.clear();
  latents_.clear();
  std::int64_t text_tokens = 0;
  for (const std::int64_t id : given) {
    text_tokens += is_placeholder(id) ? 0 : 1;
    const std::size_t count = id == info.voice_id ? static_cast<std::size_t>(voice->frames) : 1;
    ids_.insert(ids_.end(), count, id);
    if (id == info.voice_id) {
      latents_.insert(latents_.end(), voice->latents.begin(), voice->latents.end());
    } else {
      latents_.resize(latents_.size() + d, 0);
    }
  }
  const double seconds = static_cast<double>(text_tokens) / kTokensPerSecond + kMoreSeconds;
  const std::int64_t most =
      options.max_frames > 0 ? options.max_frames : static_cast<std::int64_t>(std::ceil(seconds * info.frame_rate));
  const std::int64_t prompt = std::ssize(ids_);
  GRAFT_CHECK(InvalidArgument, prompt + most - 1 <= info.context_length, "a chunk of ", prompt,
              " tokens with its voice, and up to ", most, " frames of speech do not fit into ", info.context_length);
  const std::int64_t words = llm::word_count(tokenizer->decode(given, true));
  const std::int64_t tail = words <= info.short_text_words ? info.tail_frames_short : info.tail_frames;

  session->kv_truncate(0);
  std::normal_distribution<float> normal(0, static_cast<float>(std::sqrt(options.temperature)));
  std::vector<float> frames;
  std::int64_t left = -1;  // frames behind the end of the speech; -1: it has not ended
  positions_.resize(ids_.size());
  for (std::int64_t frame = 0, length = 0; frame < most; ++frame) {
    for (float& value : noise_) value = options.temperature > 0 ? normal(random) : 0;
    const std::int64_t width = frame == 0 ? prompt : 1;
    step(width, length, run_options);
    length += width;
    frames.insert(frames.end(), next_.begin(), next_.end());
    if (left < 0 && static_cast<double>(end_) > options.eos_threshold && frame >= options.min_frames_before_eos)
      left = tail;
    if (left == 0) break;
    if (left > 0) --left;
    ids_.assign(1, info.latent_id);
    latents_ = next_;
  }
  return frames;
}

Audio Speaker::Impl::speak(std::string_view text, const Voice* voice, const SpeakingOptions& options,
                           const OnAudio& on_audio, const RunOptions& run_options) {
  check(options);
  GRAFT_CHECK(InvalidArgument, is_utf8(text), "the text is not UTF-8");
  GRAFT_CHECK(InvalidArgument, llm::word_count(text) > 0, "the text has no words");
  if (voice)
    GRAFT_CHECK(InvalidArgument, voice->frames >= 1 && std::ssize(voice->latents) == voice->frames * info.latent_size,
                "a voice of ", voice->frames, " frames with ", voice->latents.size(), " numbers: the model has ",
                info.latent_size, " per frame");
  std::mt19937_64 random(options.seed);
  Audio out{{}, info.sampling_rate};
  for (const std::string& chunk : llm::speech_chunks(*tokenizer, info, text, options.max_tokens)) {
    std::vector<float> frames = frames_of(chunk, voice, options, random, run_options);
    const std::int64_t count = std::ssize(frames) / info.latent_size;
    const Value input = view(frames, DType::f32, Shape{1, count, info.latent_size});
    const std::vector<Value> found = session->run(kDecode, {&input, 1}, run_options);
    const TensorView& sound = found[0].tensor;
    GRAFT_CHECK(InvalidProgram, sound.shape == Shape({1, count * info.frame_size}), "method '", kDecode, "' gave ",
                sound.shape.str(), " for ", count, " frames");
    const auto* const from = static_cast<const float*>(sound.data);
    Audio spoken{{from, from + sound.shape.numel()}, info.sampling_rate};
    // A decoder that begins anew starts with a click.
    const auto fade = std::min(static_cast<std::size_t>(info.fade_in_seconds * static_cast<double>(info.sampling_rate)),
                               spoken.samples.size());
    for (std::size_t i = 0; i < fade; ++i)  // torch.linspace(0, 1, fade)
      spoken.samples[i] *= fade > 1 ? static_cast<float>(i) / static_cast<float>(fade - 1) : 0;
    if (on_audio) call_back([&] { on_audio(spoken); });
    out.samples.insert(out.samples.end(), spoken.samples.begin(), spoken.samples.end());
  }
  return out;
}

namespace {

constexpr const char* kWhat = "Speaker";

}  // namespace

Speaker::Speaker(const std::string& path, const LoadOptions& options, int threads) try
    : impl_(std::make_unique<Impl>(path, options, threads)) {
} catch (...) {
  rethrow_typed();
}
Speaker::Speaker(Speaker&&) noexcept = default;
Speaker& Speaker::operator=(Speaker&&) noexcept = default;
Speaker::~Speaker() = default;

Voice Speaker::voice(const Audio& audio, const RunOptions& run_options) try {
  const llm::Use use(impl_->in_use, kWhat, "voice()");
  return impl_->voice(audio, run_options);
} catch (...) {
  rethrow_typed();
}

Audio Speaker::speak(std::string_view text, const Voice* voice, const std::optional<SpeakingOptions>& options,
                     const OnAudio& on_audio, const RunOptions& run_options) try {
  const llm::Use use(impl_->in_use, kWhat, "speak()");
  return impl_->speak(text, voice, options.value_or(impl_->defaults), on_audio, run_options);
} catch (...) {
  rethrow_typed();
}

std::vector<std::string> Speaker::chunks(std::string_view text, std::int64_t max_tokens) const try {
  GRAFT_CHECK(InvalidArgument, is_utf8(text), "the text is not UTF-8");
  GRAFT_CHECK(InvalidArgument, max_tokens >= 1, "max_tokens is at least 1, got ", max_tokens);
  return llm::speech_chunks(*impl_->tokenizer, impl_->info, text, max_tokens);
} catch (...) {
  rethrow_typed();
}

const SpeakingOptions& Speaker::defaults() const { return impl_->defaults; }
const SpeakerInfo& Speaker::info() const { return impl_->info; }
Session& Speaker::session() { return *impl_->session; }

}  // namespace graft
