#include "serve/models.h"

#include <algorithm>
#include <fstream>

#include "base/check.h"
#include "base/clock.h"
#include "serve/api_error.h"

namespace graft::serve {
namespace {

constexpr std::int64_t kMostRows = 32;
constexpr std::int64_t kStageRows = 8;  // where the memory of other hosts is not known
constexpr std::uint64_t kMostPrefixBytes = std::uint64_t{4} << 30;

// What Linux expects to be available without swapping, in bytes; 0 when it does not say.
std::uint64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  std::string name;
  std::uint64_t kibibytes = 0;
  for (std::string rest; info >> name >> kibibytes; std::getline(info, rest))
    if (name == "MemAvailable:") return kibibytes * 1024;
  return 0;
}

template <typename List>
auto& named(List& known, const std::string& name) {
  const auto found = std::ranges::find_if(known, [&](const auto& one) { return one.file.name == name; });
  if (found == known.end())
    throw ApiError(404, "there is no model '" + name + "'; GET /v1/models lists those that there are", "model",
                   "model_not_found");
  return *found;
}

// The adapter of any of these; null: none has the name.
std::shared_ptr<ServedModel> adapter_named(const std::vector<Models::Known>& known, const std::string& name) {
  for (const Models::Known& one : known)
    for (const auto& adapter : one.adapters)
      if (adapter->name == name) return adapter;
  return nullptr;
}

}  // namespace

bool is_model_name(std::string_view name) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-._:").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= 128 && std::ranges::all_of(name, good);
}

Models::Models(const std::vector<ModelFile>& files) {
  for (const ModelFile& file : files) known_.push_back({file, State::unloaded, nullptr});
}

std::vector<Models::Known> Models::known() const {
  const std::lock_guard lock(mutex_);
  return known_;
}

std::vector<std::shared_ptr<ServedModel>> Models::loaded() const {
  std::vector<std::shared_ptr<ServedModel>> out;
  for (const Known& known : this->known())
    if (known.model) out.push_back(known.model);
  return out;
}

Models::Known Models::known(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  if (auto adapter = adapter_named(known_, name)) return {{.name = name}, State::loaded, std::move(adapter)};
  return named(known_, name);
}

bool Models::knows(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return adapter_named(known_, name) != nullptr ||
         std::ranges::any_of(known_, [&](const Known& one) { return one.file.name == name; });
}

std::shared_ptr<ServedModel> Models::find(const std::optional<std::string>& name) const {
  if (!name) {
    const auto all = loaded();
    if (all.empty()) throw ApiError(404, "no model is loaded", "model", "model_not_loaded");
    return all.front();
  }
  const Known found = known(*name);
  if (found.model) return found.model;
  if (found.state == State::unloaded)
    throw ApiError(404, "the model '" + *name + "' is not loaded", "model", "model_not_loaded");
  ApiError error(503, "the model '" + *name + "' is being loaded", "model", "model_not_loaded");
  error.headers.emplace_back("Retry-After", "1");
  throw error;
}

std::uint64_t Models::bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const Known& known : known_) bytes += known.model ? known.model->bytes : 0;
  for (const auto& model : unloaded_) bytes += model->bytes;
  return bytes;
}

void Models::add(std::shared_ptr<ServedModel> model, std::vector<std::shared_ptr<ServedModel>> adapters) {
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find_if(known_, [&](const Known& known) { return known.file.name == model->name; });
  if (found == known_.end()) found = known_.insert(known_.end(), {{.name = model->name}, State::unloaded, nullptr});
  found->state = State::loaded;
  found->model = std::move(model);
  found->adapters = std::move(adapters);
}

void Models::add_adapter(std::shared_ptr<ServedModel> adapter, bool replaces) {
  std::shared_ptr<ServedModel> replaced;  // freed after the lock
  const std::lock_guard lock(mutex_);
  const std::string& name = adapter->name;
  Known& known = named(known_, adapter->parent->name);
  if (known.model != adapter->parent)
    throw ApiError(404, "the model '" + adapter->parent->name + "' is not loaded", "model", "model_not_loaded");
  const auto held = std::ranges::find(known.adapters, name, [](const auto& one) { return one->name; });
  const bool is_model = std::ranges::any_of(known_, [&](const Known& one) { return one.file.name == name; });
  const bool taken = held == known.adapters.end() ? is_model || adapter_named(known_, name) != nullptr : !replaces;
  if (taken) throw ApiError(400, "there is a model or an adapter '" + name + "' already", "lora_name");
  if (held == known.adapters.end()) {
    known.adapters.push_back(std::move(adapter));
  } else {
    replaced = std::exchange(*held, std::move(adapter));
  }
}

void Models::remove_adapter(const std::string& name) {
  std::shared_ptr<ServedModel> removed;  // freed after the lock
  const std::lock_guard lock(mutex_);
  for (Known& known : known_)
    for (auto at = known.adapters.begin(); at != known.adapters.end(); ++at)
      if ((*at)->name == name) {
        removed = std::move(*at);
        known.adapters.erase(at);
        return;
      }
  throw ApiError(404, "there is no adapter '" + name + "'", "lora_name", "model_not_found");
}

ModelFile Models::begin_loading(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Known& known = named(known_, name);
  if (known.state != State::unloaded)
    throw ApiError(409, "the model '" + name + (known.model ? "' is loaded" : "' is being loaded"), "model");
  known.state = State::loading;
  return known.file;
}

void Models::stop_loading(const std::string& name) noexcept {
  const std::lock_guard lock(mutex_);
  for (Known& known : known_)
    if (known.file.name == name && known.state == State::loading) known.state = State::unloaded;
}

void Models::unload(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Known& known = named(known_, name);
  if (known.state == State::loading) throw ApiError(409, "the model '" + name + "' is being loaded", "model");
  if (!known.model) return;
  unloaded_.push_back(known.model);
  known.model = nullptr;
  known.adapters.clear();
  known.state = State::unloaded;
}

void Models::free_unused() {
  std::vector<std::shared_ptr<ServedModel>> free;
  const std::lock_guard lock(mutex_);
  for (auto& model : unloaded_)
    if (model.use_count() == 1) free.push_back(std::move(model));
  std::erase(unloaded_, nullptr);
}

void Models::clear() {
  std::vector<Known> known;
  std::vector<std::shared_ptr<ServedModel>> unloaded;
  {
    const std::lock_guard lock(mutex_);
    std::swap(known, known_);
    std::swap(unloaded, unloaded_);
  }
  for (const Known& one : known)
    if (one.model) unloaded.push_back(one.model);
  for (const auto& model : unloaded) model->end();
}

std::int64_t rows_for(const std::shared_ptr<const LanguageModel>& model, DecoderOptions options) {
  if (const auto& first = model->info().stage) return std::max<std::int64_t>(first->stages, kStageRows);
  options.rows = 1;
  const std::uint64_t bytes = Decoder(model, options).session().counters().state_bytes;
  std::int64_t rows = std::min(kMostRows, model->program()->method("step").inputs[0].dims[0].max);
  const std::uint64_t available = available_memory();
  if (available > 0 && bytes > 0) rows = std::min(rows, static_cast<std::int64_t>(available / 2 / bytes));
  return std::max<std::int64_t>(rows, 1);
}

namespace {

PrefixCacheOptions prefix_cache_for(const std::shared_ptr<const LanguageModel>& model, const DecoderOptions& decoder,
                                    const ModelFile& file, const ServeOptions& options) {
  const bool asked = options.prefix_cache_bytes || !file.prefix_cache_file.empty();
  if (!asked && (model->info().stage || model->info().recurrent)) return {};
  std::uint64_t most = kMostPrefixBytes;  // in a file always: one of another size would be emptied
  if (file.prefix_cache_file.empty()) most = std::min({most, available_memory() / 8, options.max_model_bytes / 8});
  PrefixCacheOptions out{options.prefix_cache_bytes.value_or(most), file.prefix_cache_file};
  // One that nobody asked for need not be.
  if (!options.prefix_cache_bytes && out.file.empty() &&
      out.max_bytes < PrefixCacheOptions::block_bytes(model, decoder))
    out.max_bytes = 0;
  return out;
}

void load_language(ServedModel& model, const ModelFile& file, const ServeOptions& options) {
  LoadOptions load = options.load;
  const bool adapters = !file.adapters.empty() || !options.adapter_folder.empty();
  if (!adapters) load.max_adapter_rank = 0;
  model.language = LanguageModel::load(file.path, load, file.tokenizer);
  model.language->tokenizer();  // throws where there is none
  const auto& encoder = model.language->info().encoder;
  if (encoder && (encoder->speech || encoder->spoken)) {
    model.speech = std::make_unique<Speech>(Transcriber(model.language, options.decoder.threads),
                                            static_cast<std::size_t>(options.limits.queue));
    return;
  }
  GRAFT_CHECK(Unsupported, !encoder, "'", file.path,
              "': of models with an encoder and a decoder those of speech alone can be served");
  DecoderOptions decoder = options.decoder;
  if (decoder.rows == 0) decoder.rows = rows_for(model.language, decoder);
  model.grammars = std::make_unique<Grammars>(model.language);
  model.engine =
      std::make_unique<Lanes>(model.language, decoder, static_cast<std::size_t>(options.limits.queue),
                              prefix_cache_for(model.language, decoder, file, options), options.prompt_lookup);
  model.template_variables = options.template_variables;
  model.seed = options.seed;
  model.prompt_lookup = options.prompt_lookup;
}

void load_ctc(ServedModel& model, const ModelFile& file, const ServeOptions& options) {
  LoadOptions load = options.load;
  load.max_adapter_rank = 0;
  model.speech = std::make_unique<Speech>(Transcriber(file.path, load, file.tokenizer, options.decoder.threads),
                                          static_cast<std::size_t>(options.limits.queue));
}

void load_program(ServedModel& model, const ModelFile& file, const ServeOptions& options) {
  LoadOptions load = options.load;
  load.max_adapter_rank = 0;
  const auto program = Program::load(file.path, load);
  SessionOptions session;
  session.threads = options.decoder.threads;
  const auto queue = static_cast<std::size_t>(options.limits.queue);
  model.runner = std::make_unique<Runner>(program, session, queue, options.batch);
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

void ServedModel::end() {
  if (engine) engine->end();
  if (speech) speech->end();
  if (embedder) embedder->end();
  if (runner) runner->end();
}

void ServedModel::check_language() const {
  if (!engine) throw ApiError(400, "model '" + name + "' is no language model", "model");
}

void ServedModel::check_speech() const {
  if (!speech) throw ApiError(400, "model '" + name + "' is no model of speech", "model");
}

void ServedModel::check_embedder() const {
  if (!embedder) throw ApiError(400, "model '" + name + "' is no text encoder with a tokenizer", "model");
}

std::shared_ptr<ServedModel> load_adapter(const std::shared_ptr<ServedModel>& model, const std::string& name,
                                          const std::string& path) {
  GRAFT_CHECK(Unsupported, model->engine && !model->language->info().stage, "model '", model->name,
              "' takes no adapters: language models in one piece do");
  auto adapter = std::make_shared<ServedModel>();
  adapter->name = name;
  adapter->created = unix_seconds();
  adapter->language = model->language;
  adapter->engine = model->engine;
  adapter->grammars = model->grammars;
  adapter->template_variables = model->template_variables;
  adapter->seed = model->seed;
  adapter->prompt_lookup = model->prompt_lookup;
  adapter->adapter = Adapter::load(model->language->program(), path);
  adapter->bytes = adapter->adapter->bytes();
  adapter->parent = model;
  return adapter;
}

std::shared_ptr<ServedModel> load_model(const ModelFile& file, const ServeOptions& options) {
  auto model = std::make_shared<ServedModel>();
  model->name = file.name;
  model->created = unix_seconds();
  if (LanguageModel::is_package(file.path))
    load_language(*model, file, options);
  else if (Transcriber::is_ctc_package(file.path))
    load_ctc(*model, file, options);
  else
    load_program(*model, file, options);
  const Program& program = model->language ? *model->language->program()
                           : model->speech ? model->speech->program()
                                           : *model->runner->program();
  const ProgramStats stats = program.stats();
  model->bytes = stats.weight_bytes + stats.constant_bytes +
                 (model->engine   ? model->engine->state_bytes()
                  : model->speech ? model->speech->state_bytes()
                                  : model->runner->state_bytes());
  return model;
}

}  // namespace graft::serve
