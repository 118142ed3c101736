#include "llm/recognizer.h"

#include <algorithm>
#include <cmath>

#include "audio/samples.h"
#include "base/check.h"
#include "llm/speech_rules.h"

namespace graft::llm {

void check_plain_options(const SpeechModelInfo& info, const TranscriptionOptions& options) {
  const auto refuse = [&](bool given, const char* name) {
    GRAFT_CHECK(InvalidArgument, !given, "'", name, "' is not supported by ", info.architecture,
                ": models with time stamps such as Whisper take it");
  };
  refuse(!options.language.empty(), "language");
  refuse(options.task != "transcribe", "task");
  refuse(!options.prompt.empty(), "prompt");
  refuse(options.return_timestamps.value_or(false), "return_timestamps");
  refuse(options.temperatures != std::vector<double>{0}, "temperatures");
  refuse(options.compression_ratio_threshold.has_value(), "compression_ratio_threshold");
  refuse(options.logprob_threshold.has_value(), "logprob_threshold");
  refuse(options.no_speech_threshold.has_value(), "no_speech_threshold");
  refuse(options.condition_on_prev_tokens, "condition_on_prev_tokens");
}

std::vector<float> samples_for(const SpeechModelInfo& info, const Audio& audio) {
  GRAFT_CHECK(InvalidArgument, audio.sampling_rate > 0 && !audio.samples.empty(), "there are no samples");
  return audio.sampling_rate == info.sampling_rate ? audio.samples
                                                   : resample(audio.samples, audio.sampling_rate, info.sampling_rate);
}

void check_samples(const SpeechModelInfo& info, std::span<const float> samples) {
  GRAFT_CHECK(InvalidArgument, !samples.empty(), "there are no samples");
  const auto count = std::ssize(samples);
  GRAFT_CHECK(InvalidArgument, count >= info.min_samples && (info.max_samples == 0 || count <= info.max_samples),
              info.architecture, " takes from ", info.min_samples, " to ", info.max_samples, " samples at ",
              info.sampling_rate, " per second, the sound has ", count);
  GRAFT_CHECK(InvalidArgument, graft::audio::all_finite(samples), "the sound has samples that are not finite");
}

Transcription whole_transcription(const Audio& audio, std::vector<std::int64_t> tokens, std::string text,
                                  double avg_logprob, std::int64_t vocabulary) {
  Transcription out;
  out.task = "transcribe";
  out.seconds = audio.seconds();
  out.text = std::move(text);
  out.new_tokens = std::ssize(tokens);
  TranscriptionSegment segment;
  segment.end = out.seconds;
  segment.text = out.text;
  segment.avg_logprob = avg_logprob;
  segment.compression_ratio = tokens.empty() ? 0 : compression_ratio(tokens, vocabulary);
  segment.tokens = std::move(tokens);
  out.segments.push_back(std::move(segment));
  return out;
}

double logprob_of(std::span<const float> logits, std::int64_t id) {
  const float most = std::ranges::max(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - most));
  return static_cast<double>(logits[static_cast<std::size_t>(id)] - most) - std::log(sum);
}

}  // namespace graft::llm
