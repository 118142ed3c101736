#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/rethrow.h"
#include "base/utf8.h"
#include "graft/llm.h"
#include "llm/images.h"
#include "llm/sampler.h"
#include "load/program_impl.h"
#include "package/container.h"
#include "stage/stage_info.h"

namespace graft {
namespace {

constexpr std::string_view kMethod = "step", kEncodeMethod = "encode";

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Ids of the vocabulary; throws InvalidProgram for another.
std::int64_t checked_id(const Json& id, std::int64_t vocabulary) {
  const auto value = id.get<std::int64_t>();
  GRAFT_CHECK(InvalidProgram, value >= 0 && value < vocabulary, "'", kLanguageModelKey, "': token ", value,
              " is not in the vocabulary of ", vocabulary, " tokens");
  return value;
}

std::vector<std::int64_t> checked_ids(const Json& ids, std::int64_t vocabulary) {
  std::vector<std::int64_t> out;
  for (const Json& id : ids) out.push_back(checked_id(id, vocabulary));
  return out;
}

// Sizes that memory is taken for, by what models of speech have.
std::int64_t checked_size(const Json& json, const char* name, std::int64_t most) {
  const auto value = json.at(name).get<std::int64_t>();
  GRAFT_CHECK(InvalidProgram, value >= 1 && value <= most, "'", kLanguageModelKey, "': '", name, "' must be from 1 to ",
              most, ", found ", value);
  return value;
}

SpokenInfo parse_spoken(const Json& json) {
  SpokenInfo info;
  info.sampling_rate = checked_size(json, "sampling_rate", 768'000);
  info.normalize = json.at("normalize").get<bool>();
  info.tokens_per_second = json.at("tokens_per_second").get<double>();
  GRAFT_CHECK(InvalidProgram, info.tokens_per_second > 0 && info.tokens_per_second <= 1e6, "'", kLanguageModelKey,
              "': 'tokens_per_second' must be above 0 and at most 1,000,000, found ", info.tokens_per_second);
  info.max_samples = checked_size(json, "max_samples", std::int64_t{1} << 32);
  info.min_samples = checked_size(json, "min_samples", info.max_samples);
  return info;
}

SpeechInfo parse_speech(const Json& json, std::int64_t vocabulary) {
  SpeechInfo info;
  info.sampling_rate = checked_size(json, "sampling_rate", 768'000);
  info.n_fft = checked_size(json, "n_fft", 1 << 16);
  info.hop_length = checked_size(json, "hop_length", 1 << 16);
  info.mels = checked_size(json, "mels", 1 << 12);
  info.frames = checked_size(json, "frames", 1 << 20);
  GRAFT_CHECK(InvalidProgram, info.frames * info.hop_length > info.n_fft / 2, "'", kLanguageModelKey, "': a window of ",
              info.frames * info.hop_length, " samples is shorter than half a transform of ", info.n_fft);
  info.max_length = checked_size(json, "max_length", std::int64_t{1} << 32);
  info.no_timestamps_id = checked_id(json.at("no_timestamps_id"), vocabulary);
  GRAFT_CHECK(InvalidProgram, info.no_timestamps_id >= 1, "'", kLanguageModelKey,
              "': the token before 'no_timestamps_id' says that there is no speech, found 0");
  if (json.contains("previous_text_id")) info.previous_text_id = checked_id(json.at("previous_text_id"), vocabulary);
  if (json.contains("max_initial_timestamp_index"))
    info.max_initial_timestamp_index = checked_size(json, "max_initial_timestamp_index", vocabulary);
  for (const auto& [name, id] : json.at("languages").items())
    info.languages.emplace_back(name, checked_id(id, vocabulary));
  std::ranges::sort(info.languages, {}, [](const auto& language) { return language.second; });
  for (const auto& [name, id] : json.at("tasks").items()) info.tasks.emplace_back(name, checked_id(id, vocabulary));
  info.suppressed_tokens = checked_ids(json.at("suppressed_tokens"), vocabulary);
  info.suppressed_first_tokens = checked_ids(json.at("suppressed_first_tokens"), vocabulary);
  return info;
}

LanguageModelInfo parse_info(const std::string& path, std::string_view text) {
  LanguageModelInfo info;
  try {
    const Json json = read_json<Json>(text);
    info.architecture = json.at("architecture").get<std::string>();
    info.source = json.value("source", "");
    info.vocab_size = json.at("vocab_size").get<std::int64_t>();
    info.context_length = json.at("context_length").get<std::int64_t>();
    info.bos_token_ids = json.at("bos_token_ids").get<std::vector<std::int64_t>>();
    info.eos_token_ids = json.at("eos_token_ids").get<std::vector<std::int64_t>>();
    if (const auto found = json.find("encoder"); found != json.end()) {
      info.encoder = {is_text(found->at("input"), "features"), found->at("context_length").get<std::int64_t>(),
                      found->at("decoder_start_token_ids").get<std::vector<std::int64_t>>()};
      if (const auto speech = found->find("speech"); speech != found->end())
        info.encoder->speech = parse_speech(*speech, info.vocab_size);
      if (const auto spoken = found->find("spoken"); spoken != found->end())
        info.encoder->spoken = parse_spoken(*spoken);
    }
    if (const auto found = json.find("images"); found != json.end())
      info.images = llm::parse_images(*found, info.vocab_size);
    if (const auto found = json.find("audio"); found != json.end()) {
      info.audio = llm::parse_audio(*found, info.vocab_size);
      // One step takes the features of both.
      GRAFT_CHECK(InvalidProgram,
                  !info.images || (info.images->width == info.audio->width && !llm::on_grid(*info.images) &&
                                   info.images->blocks == ImagesInfo::Blocks::none),
                  "'", path, "': '", kLanguageModelKey, "' has 'images' and 'audio' of different steps");
    }
    if (const auto found = json.find("generation"); found != json.end()) {
      GenerationOptions& options = info.generation;
      options.max_new_tokens = found->value("max_new_tokens", options.max_new_tokens);
      options.top_k = found->value("top_k", options.top_k);
      options.top_p = found->value("top_p", options.top_p);
      options.min_p = found->value("min_p", options.min_p);
      options.repetition_penalty = found->value("repetition_penalty", options.repetition_penalty);
      info.sampling_temperature = found->value("temperature", info.sampling_temperature);
      if (found->value("do_sample", false)) options.temperature = info.sampling_temperature;
      llm::check(options);
    }
  } catch (const Json::exception& error) {
    throw InvalidProgram(str("'", path, "': '", kLanguageModelKey, "' cannot be read: ", error.what()));
  }
  return info;
}

bool is_ids(const ValueInfo& value, std::size_t rank) {
  return value.kind == Value::Kind::tensor && value.dtype == DType::i64 && value.dims.size() == rank;
}

// What Decoder relies on.
void check_method(const Program& program, const LanguageModelInfo& info) {
  const MethodInfo& method = program.method(kMethod);
  const bool inputs = method.inputs.size() == 4 && is_ids(method.inputs[0], 2) && is_ids(method.inputs[1], 2) &&
                      is_ids(method.inputs[2], 2) && is_ids(method.inputs[3], 1);
  GRAFT_CHECK(InvalidArgument, inputs, "method '", kMethod,
              "' is no language model: expected the inputs input_ids, position_ids, cache_position [B, T] and "
              "logits_to_keep [K] in i64");
  if (info.stage) return;  // it gives what the next stage takes
  const bool outputs = method.outputs.size() == 1 && method.outputs[0].kind == Value::Kind::tensor &&
                       method.outputs[0].dtype == DType::f32 && method.outputs[0].dims.size() == 3;
  GRAFT_CHECK(InvalidArgument, outputs, "method '", kMethod,
              "' is no language model: expected one output, logits [B, K, vocabulary] in f32");
  const DimInfo& vocabulary = method.outputs[0].dims[2];
  GRAFT_CHECK(InvalidArgument, vocabulary.min == info.vocab_size && vocabulary.max == info.vocab_size,
              "the program gives ", vocabulary.max, " logits, its description says that the vocabulary has ",
              info.vocab_size, " tokens");
  GRAFT_CHECK(InvalidArgument, info.context_length >= 1, "the context of a language model is at least 1, got ",
              info.context_length);
  if (info.images) llm::check_image_methods(program, *info.images);
  if (info.audio) llm::check_audio_methods(program, *info.audio);
  if (const auto features = llm::features_of(info)) llm::check_step_with_features(program, *features);
}

}  // namespace

struct LanguageModel::Impl {
  std::shared_ptr<const Program> program;
  LanguageModelInfo info;
  std::shared_ptr<const Tokenizer> tokenizer;
};

bool LanguageModel::is_package(const std::string& path) try {
  const PteFile package(MappedFile::open(path));
  return std::ranges::any_of(package.named_data(),
                             [](const NamedBytes& named) { return named.key == kLanguageModelKey; });
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<const LanguageModel> LanguageModel::load(const std::string& path, const LoadOptions& options,
                                                         const std::string& tokenizer) try {
  std::string description;
  bool carries_tokenizer = false;
  std::optional<StageInfo> in_stages;
  {
    const auto mapped = MappedFile::open(path);
    const PteFile package(mapped);
    for (const NamedBytes& named : package.named_data()) {
      if (named.key == kLanguageModelKey) description = text_of(mapped->read(named.bytes));
      if (named.key == stage::kStageKey) in_stages = stage::stage_info_of(path, text_of(mapped->read(named.bytes)));
      carries_tokenizer |= named.key == kTokenizerKey || named.key == kTokenizerGgufKey;
    }
  }
  if (in_stages)
    GRAFT_CHECK(InvalidArgument, in_stages->stage == 0, "'", path, "' is stage ", in_stages->stage, " of ",
                in_stages->stages, ", which `graft stage` runs; the first one was expected");
  GRAFT_CHECK(InvalidArgument, !description.empty(), "'", path, "' is not the package of a language model: it has no '",
              kLanguageModelKey, "'; graft.export_llm writes such packages");
  LanguageModelInfo info = parse_info(path, description);
  info.stage = std::move(in_stages);
  std::shared_ptr<const Tokenizer> own, given;
  if (carries_tokenizer) own = Tokenizer::load(path, options.text);
  if (!tokenizer.empty()) {
    given = Tokenizer::load(tokenizer, options.text);
    GRAFT_CHECK(InvalidArgument, !own || own->identity() == given->identity(), "the tokenizer '", tokenizer,
                "' has another vocabulary (", given->size(), " tokens) than the one that '", path,
                "' was exported with (", own->size(), " tokens)");
  }
  LoadOptions own_methods = options;  // not the one for ExecuTorch's runners, which is a second graph
  if (own_methods.methods.empty()) {
    own_methods.methods.emplace_back(kMethod);
    if (info.encoder) own_methods.methods.emplace_back(kEncodeMethod);
    if (const auto features = llm::features_of(info)) {
      for (const std::string_view method : features->encoders) own_methods.methods.emplace_back(method);
      own_methods.methods.emplace_back(features->step);
      if (features->attended) own_methods.methods.emplace_back(llm::kStoreImage);
    }
  }
  // What leaves load() and is no Error is of on_phase.
  std::shared_ptr<const Program> program = call_back([&] { return Program::load(path, own_methods); });
  return std::make_shared<const LanguageModel>(std::move(program), std::move(info),
                                               given ? std::move(given) : std::move(own));
} catch (...) {
  rethrow_typed();
}

namespace {

LanguageModelInfo completed(LanguageModelInfo info, const Program* program) {
  info.recurrent = program != nullptr && Internal::of(*program).has_recurrent_states();
  return info;
}

}  // namespace

LanguageModel::LanguageModel(std::shared_ptr<const Program> program, LanguageModelInfo info,
                             std::shared_ptr<const Tokenizer> tokenizer) try
    : impl_(new Impl{program, completed(std::move(info), program.get()), std::move(tokenizer)}) {
  GRAFT_CHECK(InvalidArgument, impl_->program, "a language model needs a program");
  check_method(*impl_->program, impl_->info);
  // A model may have more rows than its tokenizer has tokens: vocabularies are padded to round sizes.
  const std::int64_t most = llm::input_ids(impl_->info);
  GRAFT_CHECK(InvalidArgument, !impl_->tokenizer || impl_->tokenizer->size() <= most,
              "the tokenizer has another vocabulary than the model: ", impl_->tokenizer->size(),
              " tokens, the model has ", most);
} catch (...) {
  rethrow_typed();
}

LanguageModel::~LanguageModel() = default;

const LanguageModelInfo& LanguageModel::info() const { return impl_->info; }
const std::shared_ptr<const Program>& LanguageModel::program() const { return impl_->program; }
bool LanguageModel::has_tokenizer() const { return impl_->tokenizer != nullptr; }

const std::shared_ptr<const Tokenizer>& LanguageModel::tokenizer() const try {
  GRAFT_CHECK(NotFound, impl_->tokenizer, "the package carries no tokenizer; give one");
  return impl_->tokenizer;
} catch (...) {
  rethrow_typed();
}

std::vector<std::int64_t> LanguageModel::encode(std::string_view prompt, bool add_special) const try {
  GRAFT_CHECK(InvalidArgument, is_utf8(prompt), "the prompt is not UTF-8");
  if (prompt.empty()) {
    GRAFT_CHECK(InvalidArgument, !impl_->info.bos_token_ids.empty(),
                "an empty prompt means the token that begins a text (BOS), which this model does not have");
    return {impl_->info.bos_token_ids.front()};
  }
  return tokenizer()->encode(prompt, {.add_special = add_special});
} catch (...) {
  rethrow_typed();
}

ImagePrompt LanguageModel::encode_with_images(std::string_view prompt, std::span<const Image> images,
                                              bool add_special) const try {
  return llm::encoded(*this, prompt, images, add_special);
} catch (...) {
  rethrow_typed();
}

ImagePrompt LanguageModel::encode_with_audio(std::string_view prompt, std::span<const Audio> audio,
                                             bool add_special) const try {
  return llm::encoded(*this, prompt, audio, add_special);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
