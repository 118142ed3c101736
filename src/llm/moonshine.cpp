#include <algorithm>

#include "audio/normalized.h"
#include "base/check.h"
#include "base/rethrow.h"
#include "llm/recognizer.h"

namespace graft::llm {
namespace {

using Ids = std::vector<std::int64_t>;

const SpokenInfo& spoken_of(const LanguageModel& model) {
  GRAFT_CHECK(InvalidArgument, model.has_tokenizer(), "a transcriber needs a model with a tokenizer");
  GRAFT_CHECK(InvalidArgument,
              !model.info().eos_token_ids.empty() && !model.info().encoder->decoder_start_token_ids.empty(),
              "the model names no token that begins or ends a text");
  return *model.info().encoder->spoken;
}

DecoderOptions one_sequence(int threads) {
  DecoderOptions options;
  options.threads = threads;
  return options;
}

// The most likely tokens, as many as the length of the sound allows.
class Moonshine : public Recognizer {
 public:
  Moonshine(std::shared_ptr<const LanguageModel> model, int threads)
      : model_(std::move(model)), spoken_(spoken_of(*model_)), decoder_(model_, one_sequence(threads)) {
    described_ = {.architecture = model_->info().architecture,
                  .sampling_rate = spoken_.sampling_rate,
                  .min_samples = spoken_.min_samples,
                  .max_samples = spoken_.max_samples};
  }

  const SpeechModelInfo& info() const override { return described_; }
  Session& session() override { return decoder_.session(); }
  Transcription transcribe(const Audio& audio, const TranscriptionOptions& options,
                           const Transcriber::OnSegment& on_segment, const RunOptions& run_options) override;
  std::vector<float> features(std::span<const float> samples) override {
    check_samples(described_, samples);
    return spoken_.normalize ? normalized_samples(samples) : std::vector<float>(samples.begin(), samples.end());
  }
  const LanguageModel* model() const override { return model_.get(); }
  Decoder* decoder() override { return &decoder_; }

 private:
  std::shared_ptr<const LanguageModel> model_;
  const SpokenInfo& spoken_;
  SpeechModelInfo described_;
  Decoder decoder_;
};

Transcription Moonshine::transcribe(const Audio& audio, const TranscriptionOptions& options,
                                    const Transcriber::OnSegment& on_segment, const RunOptions& run_options) {
  check_plain_options(described_, options);
  std::vector<float> values = features(samples_for(described_, audio));
  decoder_.encode(TensorView{values.data(), DType::f32, Shape{1, std::ssize(values)}}, run_options);
  const double seconds = static_cast<double>(values.size()) / static_cast<double>(spoken_.sampling_rate);
  // With the token that begins it; one that is not there could never say anything.
  const auto most = std::max<std::int64_t>(static_cast<std::int64_t>(seconds * spoken_.tokens_per_second), 2);
  const Ids& ends = model_->info().eos_token_ids;
  Ids last = model_->info().encoder->decoder_start_token_ids, tokens;
  double sum = 0;
  for (std::int64_t length = std::ssize(last); length < most; ++length) {
    const Decoder::Tokens row = last;
    const std::span<const float> all = decoder_.run({&row, 1}, std::ssize(last), 1, run_options);
    const auto logits = all.last(static_cast<std::size_t>(model_->info().vocab_size));
    last.assign(1, std::ranges::max_element(logits) - logits.begin());
    sum += logprob_of(logits, last[0]);
    tokens.push_back(last[0]);
    if (std::ranges::find(ends, last[0]) != ends.end()) break;
  }
  std::string text = model_->tokenizer()->decode(tokens, true);
  const double mean = sum / static_cast<double>(tokens.size());
  Transcription out = whole_transcription(audio, std::move(tokens), std::move(text), mean, model_->info().vocab_size);
  if (on_segment) call_back([&] { on_segment(out.segments.front()); });
  return out;
}

}  // namespace

std::unique_ptr<Recognizer> make_moonshine(std::shared_ptr<const LanguageModel> model, int threads) {
  return std::make_unique<Moonshine>(std::move(model), threads);
}

}  // namespace graft::llm
