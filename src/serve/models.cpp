#include "serve/models.h"

#include <algorithm>
#include <fstream>

#include "base/clock.h"
#include "serve/api_error.h"

namespace graft::serve {
namespace {

constexpr std::int64_t kMostRows = 32;

// What Linux expects to be available without swapping, in bytes; 0 when it does not say.
std::uint64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  std::string name;
  std::uint64_t kibibytes = 0;
  for (std::string rest; info >> name >> kibibytes; std::getline(info, rest))
    if (name == "MemAvailable:") return kibibytes * 1024;
  return 0;
}

}  // namespace

void Models::add(std::shared_ptr<ServedModel> model) {
  const std::lock_guard lock(mutex_);
  models_.push_back(std::move(model));
}

std::vector<std::shared_ptr<ServedModel>> Models::all() const {
  const std::lock_guard lock(mutex_);
  return models_;
}

std::shared_ptr<ServedModel> Models::find(const std::optional<std::string>& name) const {
  const std::lock_guard lock(mutex_);
  for (const auto& model : models_)
    if (!name || model->name == *name) return model;
  throw ApiError(404, "there is no model '" + name.value_or("") + "'; GET /v1/models lists those that there are",
                 "model", "model_not_found");
}

void Models::clear() {
  const std::lock_guard lock(mutex_);
  models_.clear();
}

std::int64_t rows_for(const std::shared_ptr<const LanguageModel>& model, DecoderOptions options) {
  options.rows = 1;
  const std::uint64_t bytes = Decoder(model, options).session().counters().state_bytes;
  std::int64_t rows = std::min(kMostRows, model->program()->method("step").inputs[0].dims[0].max);
  const std::uint64_t available = available_memory();
  if (available > 0 && bytes > 0) rows = std::min(rows, static_cast<std::int64_t>(available / 2 / bytes));
  return std::max<std::int64_t>(rows, 1);
}

namespace {

void load_language(ServedModel& model, const ModelFile& file, const ServeOptions& options) {
  model.language = LanguageModel::load(file.path, options.load, file.tokenizer);
  model.language->tokenizer();  // throws where there is none
  GRAFT_CHECK(Unsupported, !model.language->info().encoder, "'", file.path,
              "': models with an encoder and a decoder cannot be served yet");
  DecoderOptions decoder = options.decoder;
  if (decoder.rows == 0) decoder.rows = rows_for(model.language, decoder);
  model.grammars = std::make_unique<Grammars>(model.language);
  model.engine = std::make_unique<Engine>(model.language, decoder, static_cast<std::size_t>(options.limits.queue));
}

void load_program(ServedModel& model, const ModelFile& file, const ServeOptions& options) {
  const auto program = Program::load(file.path, options.load);
  SessionOptions session;
  session.threads = options.decoder.threads;
  const auto queue = static_cast<std::size_t>(options.limits.queue);
  model.runner = std::make_unique<Runner>(program, session, queue);
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!file.tokenizer.empty()) {
    tokenizer = Tokenizer::load(file.tokenizer, options.load.text);
  } else {
    try {
      tokenizer = Tokenizer::load(file.path, options.load.text);
    } catch (const NotFound&) {
      return;  // a program without texts
    }
  }
  model.embedder = std::make_unique<Embedder>(program, tokenizer, session, queue);
}

}  // namespace

void ServedModel::check_language() const {
  if (!engine) throw ApiError(400, "model '" + name + "' is no language model", "model");
}

void ServedModel::check_embedder() const {
  if (!embedder) throw ApiError(400, "model '" + name + "' is no text encoder with a tokenizer", "model");
}

std::shared_ptr<ServedModel> load_model(const ModelFile& file, const ServeOptions& options) {
  auto model = std::make_shared<ServedModel>();
  model->name = file.name;
  model->created = unix_seconds();
  if (LanguageModel::is_package(file.path))
    load_language(*model, file, options);
  else
    load_program(*model, file, options);
  return model;
}

}  // namespace graft::serve
