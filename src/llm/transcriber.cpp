#include "graft/transcriber.h"

#include "base/check.h"
#include "base/rethrow.h"
#include "llm/in_use.h"
#include "llm/recognizer.h"
#include "package/container.h"

namespace graft {
namespace {

constexpr const char* kWhat = "Transcriber";

std::unique_ptr<llm::Recognizer> recognizer_of(std::shared_ptr<const LanguageModel> model, int threads) {
  const bool spoken = model && model->info().encoder && model->info().encoder->spoken;
  return spoken ? llm::make_moonshine(std::move(model), threads) : llm::make_whisper(std::move(model), threads);
}

std::unique_ptr<llm::Recognizer> open(const std::string& path, const LoadOptions& options, const std::string& tokenizer,
                                      int threads) {
  if (Transcriber::is_ctc_package(path)) return llm::make_ctc(path, options, tokenizer, threads);
  return recognizer_of(LanguageModel::load(path, options, tokenizer), threads);
}

}  // namespace

class Transcriber::Impl {
 public:
  explicit Impl(std::unique_ptr<llm::Recognizer> of) : recognizer(std::move(of)) {}

  llm::InUse in_use;
  std::unique_ptr<llm::Recognizer> recognizer;
};

Transcriber::Transcriber(std::shared_ptr<const LanguageModel> model, int threads) try
    : impl_(std::make_unique<Impl>(recognizer_of(std::move(model), threads))) {
} catch (...) {
  rethrow_typed();
}
Transcriber::Transcriber(const std::string& path, const LoadOptions& options, const std::string& tokenizer,
                         int threads) try
    : impl_(std::make_unique<Impl>(open(path, options, tokenizer, threads))) {
} catch (...) {
  rethrow_typed();
}
Transcriber::Transcriber(Transcriber&&) noexcept = default;
Transcriber& Transcriber::operator=(Transcriber&&) noexcept = default;
Transcriber::~Transcriber() = default;

bool Transcriber::is_ctc_package(const std::string& path) try {
  return named_text(path, kCtcKey).has_value();
} catch (...) {
  rethrow_typed();
}

Transcription Transcriber::transcribe(const Audio& audio, const TranscriptionOptions& options,
                                      const OnSegment& on_segment, const RunOptions& run_options) try {
  const llm::Use use(impl_->in_use, kWhat, "transcribe()");
  return impl_->recognizer->transcribe(audio, options, on_segment, run_options);
} catch (...) {
  rethrow_typed();
}

std::vector<float> Transcriber::features(std::span<const float> samples) try {
  const llm::Use use(impl_->in_use, kWhat, "features()");
  return impl_->recognizer->features(samples);
} catch (...) {
  rethrow_typed();
}

std::vector<std::string> Transcriber::languages() const try { return impl_->recognizer->languages(); } catch (...) {
  rethrow_typed();
}

const SpeechModelInfo& Transcriber::info() const { return impl_->recognizer->info(); }
Session& Transcriber::session() { return impl_->recognizer->session(); }

const LanguageModel& Transcriber::model() const try {
  const LanguageModel* model = impl_->recognizer->model();
  GRAFT_CHECK(Unsupported, model, info().architecture, " is no language model");
  return *model;
} catch (...) {
  rethrow_typed();
}

Decoder& Transcriber::decoder() try {
  Decoder* decoder = impl_->recognizer->decoder();
  GRAFT_CHECK(Unsupported, decoder, info().architecture, " has no decoder");
  return *decoder;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
