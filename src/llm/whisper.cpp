#include <algorithm>
#include <bit>
#include <cmath>

#include "audio/log_mel.h"
#include "base/check.h"
#include "base/rethrow.h"
#include "base/trim.h"
#include "base/utf8.h"
#include "llm/recognizer.h"
#include "llm/sampler.h"
#include "llm/speech_rules.h"

namespace graft::llm {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr double kHighTemperature = 0.5;  // from here on the text of a window is no beginning for the next one

const SpeechInfo& speech_of(const std::shared_ptr<const LanguageModel>& model) {
  GRAFT_CHECK(InvalidArgument, model, "a transcriber needs a model");
  const auto& encoder = model->info().encoder;
  GRAFT_CHECK(InvalidArgument, encoder && encoder->speech, "'", model->info().architecture,
              "' is no model of speech: its package does not say how sound becomes its input");
  GRAFT_CHECK(InvalidArgument, model->has_tokenizer(), "a transcriber needs a model with a tokenizer");
  GRAFT_CHECK(InvalidArgument, !model->info().eos_token_ids.empty() && !encoder->decoder_start_token_ids.empty(),
              "the model names no token that begins or ends a text");
  return *encoder->speech;
}

DecoderOptions decoder_options(const LanguageModelInfo& info, int threads) {
  DecoderOptions options;
  options.threads = threads;
  options.prefill_chunk_size = info.context_length;  // a prompt is one run
  return options;
}

void check_options(const TranscriptionOptions& options) {
  GRAFT_CHECK(InvalidArgument, !options.temperatures.empty(), "a transcription needs a temperature");
  for (const double temperature : options.temperatures)
    GRAFT_CHECK(InvalidArgument, temperature >= 0 && std::isfinite(temperature), "a temperature is at least 0, got ",
                temperature);
  GRAFT_CHECK(InvalidArgument, !options.no_speech_threshold || options.logprob_threshold,
              "no_speech_threshold needs logprob_threshold");
  GRAFT_CHECK(InvalidArgument, is_utf8(options.prompt), "the prompt is not UTF-8");
}

class Whisper : public Recognizer {
 public:
  Whisper(std::shared_ptr<const LanguageModel> model, int threads)
      : model_(std::move(model)),
        info_(speech_of(model_)),
        decoder_(model_, decoder_options(model_->info(), threads)),
        log_mel_({info_.sampling_rate, info_.n_fft, info_.hop_length, info_.mels}) {
    described_ = {.architecture = model_->info().architecture,
                  .sampling_rate = info_.sampling_rate,
                  .mels = info_.mels,
                  .mels_first = true,
                  .timestamps = true};
  }

  const SpeechModelInfo& info() const override { return described_; }
  Session& session() override { return decoder_.session(); }
  Transcription transcribe(const Audio& audio, const TranscriptionOptions& options,
                           const Transcriber::OnSegment& on_segment, const RunOptions& run_options) override;
  std::vector<float> features(std::span<const float> samples) override;
  std::vector<std::string> languages() const override {
    std::vector<std::string> names;
    for (const auto& [name, id] : info_.languages) names.push_back(name);
    return names;
  }
  const LanguageModel* model() const override { return model_.get(); }
  Decoder* decoder() override { return &decoder_; }

 private:
  struct Heard {  // of a window
    Ids tokens;   // with the one that ends them, where there is one
    double temperature = 0, avg_logprob = 0, compression_ratio = 0, no_speech_prob = 0;
    bool skip = false;
  };

  std::int64_t first_timestamp() const { return info_.no_timestamps_id + 1; }
  std::int64_t eos() const { return model_->info().eos_token_ids.front(); }
  bool is_eos(std::int64_t id) const {
    const Ids& ids = model_->info().eos_token_ids;
    return std::ranges::find(ids, id) != ids.end();
  }
  void encode_window(std::span<const float> features, std::int64_t frames, std::int64_t seek, std::int64_t count,
                     const RunOptions& run_options);
  std::int64_t detect_language(const RunOptions& run_options);
  // What tells the decoder what to do: start, language, task. `language` is filled where the model says it.
  Ids initial_tokens(const TranscriptionOptions& options, bool timestamps, std::string& language,
                     const RunOptions& run_options);
  Ids prompt_tokens(const TranscriptionOptions& options) const;
  Ids previous_tokens(std::span<const TranscriptionSegment> segments, const Ids& prompt) const;
  std::span<float> run(const Ids& tokens, std::int64_t keep, const RunOptions& run_options);
  Heard hear(const Ids& prompt, std::size_t initial, bool timestamps, double temperature, std::uint64_t seed,
             const RunOptions& run_options);
  bool fails(Heard& heard, const TranscriptionOptions& options) const;
  std::string text_of(std::span<const std::int64_t> tokens) const;

  std::shared_ptr<const LanguageModel> model_;
  const SpeechInfo& info_;
  SpeechModelInfo described_;
  Decoder decoder_;
  LogMel log_mel_;
  std::vector<float> window_;  // [mels, frames], the encoder's input
};

std::vector<float> Whisper::features(std::span<const float> samples) {
  GRAFT_CHECK(InvalidArgument, !samples.empty(), "there are no samples");
  const auto window = static_cast<std::size_t>(info_.frames * info_.hop_length);
  if (samples.size() >= window) return log_mel_(samples);
  std::vector<float> padded(samples.begin(), samples.end());
  padded.resize(window, 0);
  return log_mel_(padded);
}

void Whisper::encode_window(std::span<const float> features, std::int64_t frames, std::int64_t seek, std::int64_t count,
                            const RunOptions& run_options) {
  window_.assign(static_cast<std::size_t>(info_.mels * info_.frames), 0);
  for (std::int64_t m = 0; m < info_.mels; ++m)
    std::ranges::copy(features.subspan(static_cast<std::size_t>(m * frames + seek), static_cast<std::size_t>(count)),
                      window_.begin() + static_cast<std::ptrdiff_t>(m * info_.frames));
  decoder_.encode(TensorView{window_.data(), DType::f32, Shape{1, info_.mels, info_.frames}}, run_options);
}

std::span<float> Whisper::run(const Ids& tokens, std::int64_t keep, const RunOptions& run_options) {
  // Powers of two, so that prompts of all lengths share few plans.
  const auto width = static_cast<std::int64_t>(std::bit_ceil(tokens.size()));
  const Decoder::Tokens row = tokens;
  return decoder_.run({&row, 1}, std::min(width, decoder_.capacity()), keep, run_options);
}

std::int64_t Whisper::detect_language(const RunOptions& run_options) {
  decoder_.truncate(0, 0);
  const std::span<float> logits = run({model_->info().encoder->decoder_start_token_ids.front()}, 1, run_options);
  const auto logit = [&](const auto& language) { return logits[static_cast<std::size_t>(language.second)]; };
  // The lowest id of those with the largest logit.
  auto best = info_.languages.begin();
  for (auto it = best; it != info_.languages.end(); ++it)
    if (logit(*it) > logit(*best) || (logit(*it) == logit(*best) && it->second < best->second)) best = it;
  return best->second;
}

Ids Whisper::initial_tokens(const TranscriptionOptions& options, bool timestamps, std::string& language,
                            const RunOptions& run_options) {
  Ids tokens{model_->info().encoder->decoder_start_token_ids.front()};
  if (info_.languages.empty()) {
    GRAFT_CHECK(InvalidArgument, options.language.empty() && options.task == "transcribe",
                "the model knows one language: it takes no language and no task but transcribe, got '",
                options.language.empty() ? options.task : options.language, "'");
  } else {
    std::string_view wanted = options.language;
    if (wanted.starts_with("<|") && wanted.ends_with("|>")) wanted = wanted.substr(2, wanted.size() - 4);
    const auto named = std::ranges::find_if(info_.languages, [&](const auto& l) { return l.first == wanted; });
    GRAFT_CHECK(InvalidArgument, wanted.empty() || named != info_.languages.end(), "the model knows no language '",
                options.language, "'; it knows ", info_.languages.size(), ", such as '", info_.languages.front().first,
                "'");
    const std::int64_t id = wanted.empty() ? detect_language(run_options) : named->second;
    language = std::ranges::find_if(info_.languages, [&](const auto& l) { return l.second == id; })->first;
    tokens.push_back(id);
    const auto task = std::ranges::find_if(info_.tasks, [&](const auto& t) { return t.first == options.task; });
    GRAFT_CHECK(InvalidArgument, task != info_.tasks.end(), "the model knows no task '", options.task, "'");
    tokens.push_back(task->second);
  }
  if (!timestamps) tokens.push_back(info_.no_timestamps_id);
  return tokens;
}

Ids Whisper::prompt_tokens(const TranscriptionOptions& options) const {
  const std::string_view prompt = trimmed(options.prompt);
  if (prompt.empty()) return {};
  GRAFT_CHECK(InvalidArgument, info_.previous_text_id, "the model has no token for a prompt");
  Ids tokens = model_->tokenizer()->encode(str(" ", prompt), {.add_special = false});
  const std::int64_t most = model_->info().context_length / 2 - 1;
  GRAFT_CHECK(InvalidArgument, std::ssize(tokens) <= most, "the prompt has ", tokens.size(),
              " tokens, the model takes ", most);
  return tokens;
}

// The last tokens of what was said before, of the prompt first.
Ids Whisper::previous_tokens(std::span<const TranscriptionSegment> segments, const Ids& prompt) const {
  Ids tokens = prompt;
  for (const TranscriptionSegment& segment : segments) {
    const Ids& own = segment.tokens;
    const bool pair = own.size() > 2 && own[own.size() - 2] >= first_timestamp();  // the second one is dropped
    tokens.insert(tokens.end(), own.begin(), own.end() - (pair ? 1 : 0));
  }
  const auto most = static_cast<std::size_t>(model_->info().context_length / 2 - 1);
  if (tokens.size() > most) tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(most));
  tokens.insert(tokens.begin(), *info_.previous_text_id);
  return tokens;
}

Whisper::Heard Whisper::hear(const Ids& prompt, std::size_t initial, bool timestamps, double temperature,
                             std::uint64_t seed, const RunOptions& run_options) {
  const std::int64_t vocabulary = model_->info().vocab_size;
  const std::int64_t most = std::min(info_.max_length + std::ssize(prompt), decoder_.capacity());
  const SpeechRules rules(info_, eos(), timestamps);
  GenerationOptions generation = model_->info().generation;
  generation.temperature = temperature;
  generation.repetition_penalty = 1;
  Sampler sampler(generation, vocabulary, seed);
  decoder_.truncate(0, 0);
  std::span<float> logits = run(prompt, static_cast<std::int64_t>(initial), run_options);
  Heard heard;
  heard.temperature = temperature;
  // Where the text was to begin, the model says whether there is speech: the token before <|notimestamps|>.
  heard.no_speech_prob =
      std::exp(logprob_of(logits.first(static_cast<std::size_t>(vocabulary)), info_.no_timestamps_id - 1));
  double sum = 0;
  Ids last(1);
  for (std::int64_t length = std::ssize(prompt);; ++length) {
    logits = logits.last(static_cast<std::size_t>(vocabulary));
    rules.apply(logits, heard.tokens);
    last[0] = sampler.next(logits);
    sum += logprob_of(logits, last[0]);
    heard.tokens.push_back(last[0]);
    if (is_eos(last[0]) || length + 1 >= most) break;
    logits = run(last, 1, run_options);
  }
  heard.avg_logprob = sum / static_cast<double>(heard.tokens.size());
  heard.compression_ratio = compression_ratio(heard.tokens, vocabulary);
  return heard;
}

bool Whisper::fails(Heard& heard, const TranscriptionOptions& options) const {
  const bool repeats =
      options.compression_ratio_threshold && heard.compression_ratio > *options.compression_ratio_threshold;
  const bool unlikely = options.logprob_threshold && heard.avg_logprob < *options.logprob_threshold;
  heard.skip = unlikely && options.no_speech_threshold && heard.no_speech_prob > *options.no_speech_threshold;
  return !heard.skip && (repeats || unlikely);
}

std::string Whisper::text_of(std::span<const std::int64_t> tokens) const {
  Ids text;
  for (const std::int64_t id : tokens)
    if (id < first_timestamp()) text.push_back(id);
  return model_->tokenizer()->decode(text, true);
}

Transcription Whisper::transcribe(const Audio& audio, const TranscriptionOptions& options,
                                  const Transcriber::OnSegment& on_segment, const RunOptions& run_options) {
  check_options(options);
  GRAFT_CHECK(InvalidArgument, audio.sampling_rate > 0 && !audio.samples.empty(), "there are no samples");
  Transcription result;
  result.task = options.task;
  result.seconds = audio.seconds();
  const Ids given = prompt_tokens(options);
  std::vector<float> resampled;
  std::span<const float> samples = audio.samples;
  if (audio.sampling_rate != info_.sampling_rate)
    samples = resampled = resample(samples, audio.sampling_rate, info_.sampling_rate);
  const std::vector<float> all = features(samples);
  const std::int64_t frames = std::ssize(all) / info_.mels;
  const bool timestamps = options.return_timestamps.value_or(true) || frames > info_.frames;
  Ids initial;
  bool condition = options.condition_on_prev_tokens;
  Ids said;
  for (std::int64_t seek = 0; seek < frames;) {
    const std::int64_t count = std::min(frames - seek, info_.frames);
    encode_window(all, frames, seek, count, run_options);
    if (initial.empty()) initial = initial_tokens(options, timestamps, result.language, run_options);
    Ids prompt;
    if (condition && info_.previous_text_id && (!given.empty() || !result.segments.empty())) {
      prompt = previous_tokens(result.segments, given);
    } else if (!given.empty()) {
      prompt = given;
      prompt.insert(prompt.begin(), *info_.previous_text_id);
    }
    prompt.insert(prompt.end(), initial.begin(), initial.end());
    GRAFT_CHECK(InvalidArgument, std::ssize(prompt) < decoder_.capacity(), "a window's prompt has ", prompt.size(),
                " tokens, the model's context is ", decoder_.capacity());
    Heard heard;
    for (std::size_t i = 0; i < options.temperatures.size(); ++i) {
      heard = hear(prompt, initial.size(), timestamps, options.temperatures[i], options.seed + i, run_options);
      result.new_tokens += std::ssize(heard.tokens);
      result.prompt_tokens += std::ssize(prompt);
      if (!fails(heard, options)) break;
    }
    condition = options.condition_on_prev_tokens && heard.temperature < kHighTemperature;
    if (heard.skip) {
      seek += count;
      continue;
    }
    if (is_eos(heard.tokens.back())) heard.tokens.pop_back();
    const SpeechWindow window = split_window(heard.tokens, first_timestamp(), seek, count);
    for (const SpeechPart& part : window.parts) {
      said.insert(said.end(), part.tokens.begin(), part.tokens.end());
      result.segments.push_back({part.start, part.end, Ids(part.tokens.begin(), part.tokens.end()),
                                 text_of(part.tokens), static_cast<double>(seek) * kSecondsPerFrame, heard.temperature,
                                 heard.avg_logprob, heard.compression_ratio, heard.no_speech_prob});
      if (on_segment) call_back([&] { on_segment(result.segments.back()); });
    }
    // A window that ends where it began would be heard for ever.
    seek += window.frames > 0 ? window.frames : count;
  }
  result.text = text_of(said);
  return result;
}

}  // namespace

std::unique_ptr<Recognizer> make_whisper(std::shared_ptr<const LanguageModel> model, int threads) {
  return std::make_unique<Whisper>(std::move(model), threads);
}

}  // namespace graft::llm
