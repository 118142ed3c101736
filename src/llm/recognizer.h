#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graft/transcriber.h"

// The kinds of models of speech behind Transcriber.
namespace graft::llm {

class Recognizer {
 public:
  virtual ~Recognizer() = default;
  virtual const SpeechModelInfo& info() const = 0;
  virtual Session& session() = 0;
  // Of sound as it is given.
  virtual Transcription transcribe(const Audio& audio, const TranscriptionOptions& options,
                                   const Transcriber::OnSegment& on_segment, const RunOptions& run_options) = 0;
  virtual std::vector<float> features(std::span<const float> samples) = 0;
  virtual std::vector<std::string> languages() const { return {}; }
  // Null: it has none.
  virtual const LanguageModel* model() const { return nullptr; }
  virtual Decoder* decoder() { return nullptr; }
};

// Of a language model with EncoderInfo::spoken.
std::unique_ptr<Recognizer> make_moonshine(std::shared_ptr<const LanguageModel> model, int threads);
// Of any other; throws InvalidArgument unless it has EncoderInfo::speech.
std::unique_ptr<Recognizer> make_whisper(std::shared_ptr<const LanguageModel> model, int threads);
// Of a package that has kCtcKey. Throws InvalidProgram for a damaged one.
std::unique_ptr<Recognizer> make_ctc(const std::string& path, const LoadOptions& options, const std::string& tokenizer,
                                     int threads);

// Throws InvalidArgument for options that models without time stamps do not take.
void check_plain_options(const SpeechModelInfo& info, const TranscriptionOptions& options);
// The samples at the model's rate; throws InvalidArgument where there are none.
std::vector<float> samples_for(const SpeechModelInfo& info, const Audio& audio);
// Throws InvalidArgument for fewer or more samples than the model takes, and for such that are not finite.
void check_samples(const SpeechModelInfo& info, std::span<const float> samples);
// The transcription of one segment: the whole sound.
Transcription whole_transcription(const Audio& audio, std::vector<std::int64_t> tokens, std::string text,
                                  double avg_logprob, std::int64_t vocabulary);

// log(softmax(logits))[id]
double logprob_of(std::span<const float> logits, std::int64_t id);

}  // namespace graft::llm
