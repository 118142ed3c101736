#include <algorithm>
#include <optional>

#include "audio/normalized.h"
#include "base/check.h"
#include "base/json.h"
#include "base/rethrow.h"
#include "base/trim.h"
#include "llm/recognizer.h"
#include "package/container.h"
#include "text/unicode.h"

namespace graft::llm {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::string_view kMethod = "encode";

// What a package says of its model.
struct CtcInfo {
  std::int64_t vocabulary = 0, blank_id = 0;
  bool normalize = false;                        // samples
  std::optional<NormalizedMelOptions> mel = {};  // none: it takes samples
  std::vector<std::string> pieces = {};          // of all tokens; none: the tokenizer has them
  bool lowercase = false, clean_up = false;      // of texts of pieces
};

std::int64_t size_of(const Json& json, const char* name, std::int64_t most) {
  const auto value = json.at(name).get<std::int64_t>();
  GRAFT_CHECK(InvalidProgram, value >= 1 && value <= most, "'", kCtcKey, "': '", name, "' must be from 1 to ", most,
              ", found ", value);
  return value;
}

NormalizedMelOptions mel_of(const Json& json, std::int64_t sampling_rate) {
  NormalizedMelOptions mel;
  mel.sampling_rate = sampling_rate;
  mel.n_fft = size_of(json, "n_fft", 1 << 16);
  mel.win_length = size_of(json, "win_length", mel.n_fft);
  mel.hop_length = size_of(json, "hop_length", 1 << 16);
  mel.mels = size_of(json, "mels", 1 << 12);
  mel.preemphasis = json.at("preemphasis").get<float>();
  GRAFT_CHECK(InvalidProgram, mel.n_fft >= 2 && mel.preemphasis >= 0 && mel.preemphasis <= 1, "'", kCtcKey,
              "': expected an n_fft of at least 2 and a preemphasis from 0 to 1, found ", mel.n_fft, " and ",
              mel.preemphasis);
  return mel;
}

CtcInfo parse(const Json& json, SpeechModelInfo& described) {
  CtcInfo info;
  described.architecture = json.at("architecture").get<std::string>();
  described.sampling_rate = size_of(json, "sampling_rate", 768'000);
  info.vocabulary = size_of(json, "vocab_size", std::int64_t{1} << 32);
  info.blank_id = json.at("blank_id").get<std::int64_t>();
  GRAFT_CHECK(InvalidProgram, info.blank_id >= 0 && info.blank_id < info.vocabulary, "'", kCtcKey, "': the blank ",
              info.blank_id, " is not in the vocabulary of ", info.vocabulary, " tokens");
  const Json& input = json.at("input");
  if (input.contains("n_fft")) {
    info.mel = mel_of(input, described.sampling_rate);
    described.mels = info.mel->mels;
  } else {
    info.normalize = input.at("normalize").get<bool>();
  }
  if (const auto text = json.find("text"); text != json.end()) {
    info.pieces = text->at("pieces").get<std::vector<std::string>>();
    info.lowercase = text->at("lowercase").get<bool>();
    info.clean_up = text->at("clean_up").get<bool>();
    GRAFT_CHECK(InvalidProgram, std::ssize(info.pieces) == info.vocabulary, "'", kCtcKey, "': expected pieces of ",
                info.vocabulary, " tokens, found ", info.pieces.size());
  }
  return info;
}

// Without spaces before English punctuation, as transformers' clean_up_tokenization.
std::string cleaned_up(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> rules[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : rules)
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  return text;
}

class Ctc : public Recognizer {
 public:
  Ctc(const std::string& path, const LoadOptions& options, const std::string& tokenizer, int threads) {
    try {
      info_ = parse(read_json<Json>(*named_text(path, kCtcKey)), described_);
    } catch (const Json::exception& error) {
      throw InvalidProgram(str("'", path, "': '", kCtcKey, "' cannot be read: ", error.what()));
    }
    if (info_.pieces.empty()) {
      tokenizer_ = Tokenizer::load(tokenizer.empty() ? path : tokenizer, options.text);
      GRAFT_CHECK(InvalidArgument, tokenizer_->size() <= info_.vocabulary, "the tokenizer has ", tokenizer_->size(),
                  " tokens, the model ", info_.vocabulary);
    } else {
      GRAFT_CHECK(InvalidArgument, tokenizer.empty(), "'", path, "' has the text of its tokens: expected no tokenizer");
    }
    LoadOptions own = options;
    if (own.methods.empty()) own.methods.emplace_back(kMethod);
    const auto program = call_back([&] { return Program::load(path, own); });
    check_method(path, *program);
    SessionOptions of_session;
    of_session.threads = threads;
    session_ = std::make_unique<Session>(program, of_session);
    if (info_.mel) mel_.emplace(*info_.mel);
  }

  const SpeechModelInfo& info() const override { return described_; }
  Session& session() override { return *session_; }
  Transcription transcribe(const Audio& audio, const TranscriptionOptions& options,
                           const Transcriber::OnSegment& on_segment, const RunOptions& run_options) override;
  std::vector<float> features(std::span<const float> samples) override {
    check_samples(described_, samples);
    if (mel_) return (*mel_)(samples);
    return info_.normalize ? normalized_samples(samples) : std::vector<float>(samples.begin(), samples.end());
  }

 private:
  void check_method(const std::string& path, const Program& program);
  std::string text_of(const Ids& tokens) const;

  SpeechModelInfo described_;
  CtcInfo info_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Session> session_;
  std::optional<NormalizedMel> mel_;
};

// Takes how much sound there may be from the sizes that it was exported with.
void Ctc::check_method(const std::string& path, const Program& program) {
  const MethodInfo& method = program.method(kMethod);
  const std::size_t rank = info_.mel ? 3 : 2;
  const auto is = [](const ValueInfo& value, std::size_t dims) {
    return value.kind == Value::Kind::tensor && value.dtype == DType::f32 && value.dims.size() == dims;
  };
  const auto fixed = [](const DimInfo& dim, std::int64_t size) { return dim.min == size && dim.max == size; };
  bool good = method.inputs.size() == 1 && is(method.inputs[0], rank) && fixed(method.inputs[0].dims[0], 1) &&
              method.outputs.size() == 1 && is(method.outputs[0], 3) && fixed(method.outputs[0].dims[0], 1) &&
              fixed(method.outputs[0].dims[2], info_.vocabulary);
  if (good && info_.mel) good = fixed(method.inputs[0].dims[2], info_.mel->mels);
  GRAFT_CHECK(InvalidProgram, good, "'", path, "': the method '", kMethod, "' is not the one that '", kCtcKey,
              "' describes");
  const DimInfo& length = method.inputs[0].dims[1];
  const std::int64_t hop = info_.mel ? info_.mel->hop_length : 1;
  described_.min_samples = std::max<std::int64_t>(length.min, info_.mel ? 2 : 1) * hop;
  described_.max_samples = std::min(length.max, kMaxAudioSamples / hop) * hop + hop - 1;
}

std::string Ctc::text_of(const Ids& tokens) const {
  if (info_.pieces.empty()) return tokenizer_->decode(tokens, true);
  std::string text;
  for (const std::int64_t id : tokens) text += info_.pieces[static_cast<std::size_t>(id)];
  text = std::string(trimmed(text));
  if (info_.lowercase) text = text::lowercase(text);
  return info_.clean_up ? cleaned_up(std::move(text)) : text;
}

Transcription Ctc::transcribe(const Audio& audio, const TranscriptionOptions& options,
                              const Transcriber::OnSegment& on_segment, const RunOptions& run_options) {
  check_plain_options(described_, options);
  std::vector<float> values = features(samples_for(described_, audio));
  const Shape shape =
      info_.mel ? Shape{1, std::ssize(values) / info_.mel->mels, info_.mel->mels} : Shape{1, std::ssize(values)};
  const Value input = Value::of(TensorView{values.data(), DType::f32, shape});
  const std::vector<Value> outputs = session_->run(kMethod, {&input, 1}, run_options);
  const TensorView& logits = outputs[0].tensor;
  const auto width = static_cast<std::size_t>(info_.vocabulary);
  const auto frames = static_cast<std::size_t>(logits.shape[1]);
  const std::span all(static_cast<const float*>(logits.data), frames * width);
  Ids tokens;
  double sum = 0;
  std::int64_t before = -1;
  for (std::size_t f = 0; f < frames; ++f) {
    const std::span<const float> frame = all.subspan(f * width, width);
    const std::int64_t best = std::ranges::max_element(frame) - frame.begin();
    sum += logprob_of(frame, best);
    if (best != before && best != info_.blank_id) tokens.push_back(best);
    before = best;
  }
  const std::string text = text_of(tokens);
  Transcription out = whole_transcription(audio, std::move(tokens), text,
                                          frames > 0 ? sum / static_cast<double>(frames) : 0, info_.vocabulary);
  if (on_segment) call_back([&] { on_segment(out.segments.front()); });
  return out;
}

}  // namespace

std::unique_ptr<Recognizer> make_ctc(const std::string& path, const LoadOptions& options, const std::string& tokenizer,
                                     int threads) {
  return std::make_unique<Ctc>(path, options, tokenizer, threads);
}

}  // namespace graft::llm
