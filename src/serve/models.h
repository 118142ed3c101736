#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "graft/llm.h"
#include "serve/embedder.h"
#include "serve/grammars.h"
#include "serve/json_fields.h"
#include "serve/lanes.h"
#include "serve/options.h"
#include "serve/runner.h"
#include "serve/speech.h"

namespace graft::serve {

struct ServedModel {
  std::string name;
  std::int64_t created = 0;  // seconds since 1970
  std::uint64_t bytes = 0;   // of weights, constants, states and caches
  // Of a language model:
  std::shared_ptr<const LanguageModel> language;
  std::shared_ptr<Lanes> engine;
  std::shared_ptr<Grammars> grammars;
  Json template_variables = Json::object();  // of the chat template, for requests that give no such
  std::optional<std::uint64_t> seed;         // of requests that name none; none: random
  std::int64_t prompt_lookup = 0;            // GenerationOptions::prompt_lookup_num_tokens of all requests
  // Of one that is an adapter of another: what requests to it use of that one is above.
  std::shared_ptr<const Adapter> adapter;
  std::shared_ptr<const ServedModel> parent;
  std::unique_ptr<Speech> speech;  // of one of speech, instead of these two
  // Of any other:
  std::unique_ptr<Runner> runner;
  std::unique_ptr<Embedder> embedder;  // of a text encoder with a tokenizer

  // Ends what runs, and the threads. Not from one of these.
  void end();
  // Throws ApiError (400) for one that is no language model.
  void check_language() const;
  // Throws ApiError (400) for one that is no model of speech.
  void check_speech() const;
  // Throws ApiError (400) for one that is no text encoder with a tokenizer.
  void check_embedder() const;
};

// The models that requests name: those of the command line, whether they are loaded or not. From any thread.
class Models {
 public:
  enum class State { unloaded, loading, loaded };
  struct Known {
    ModelFile file;
    State state = State::unloaded;
    std::shared_ptr<ServedModel> model;  // null unless it is loaded
    std::vector<std::shared_ptr<ServedModel>> adapters = {};
  };

  explicit Models(const std::vector<ModelFile>& files);

  std::vector<Known> known() const;
  std::vector<std::shared_ptr<ServedModel>> loaded() const;
  // The first that is loaded for an absent name. Throws ApiError: 404 for one that is not known or not loaded, 503 for
  // one that is being loaded.
  std::shared_ptr<ServedModel> find(const std::optional<std::string>& name) const;
  bool knows(const std::string& name) const;
  // Of a name that is known: throws ApiError (404) for another.
  Known known(const std::string& name) const;
  // Of those that are loaded, and of those that were unloaded while requests use them.
  std::uint64_t bytes() const;

  // Of one that is not known its file has the name alone. `adapters`: with it.
  void add(std::shared_ptr<ServedModel> model, std::vector<std::shared_ptr<ServedModel>> adapters = {});
  // Of a model that is loaded. `replaces`: it may take the place of one of its name. Throws ApiError: 400 for a name
  // that is taken, 404 where the model was unloaded meanwhile.
  void add_adapter(std::shared_ptr<ServedModel> adapter, bool replaces);
  // Requests that run keep it until they end. Throws ApiError (404).
  void remove_adapter(const std::string& name);
  // From unloaded to loading; the caller ends it by add() or stop_loading(). Throws ApiError (404, and 409 for one that
  // is not unloaded).
  ModelFile begin_loading(const std::string& name);
  void stop_loading(const std::string& name) noexcept;
  // Requests that run keep it until they end. Throws ApiError (404, and 409 while it is being loaded).
  void unload(const std::string& name);
  // Frees what was unloaded and is not in use any more. Not from a callback of a model: its threads end here.
  void free_unused();
  // Ends what they run: requests hold their model, whose threads must not be ended by one of them. No request comes any
  // more.
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<Known> known_;
  std::vector<std::shared_ptr<ServedModel>> unloaded_;
};

// Loads a package; of a language model it makes the plans. Throws what the loads, Engine, Runner and Embedder throw.
std::shared_ptr<ServedModel> load_model(const ModelFile& file, const ServeOptions& options);

// An adapter of a model, as requests name it. Throws what Adapter::load throws, and Unsupported for a model that takes
// none.
std::shared_ptr<ServedModel> load_adapter(const std::shared_ptr<ServedModel>& model, const std::string& name,
                                          const std::string& path);

// How many rows a cache of this model gets where the caller does not say: as many as fit half of the memory that is
// free, the batches that its program allows, and 32.
std::int64_t rows_for(const std::shared_ptr<const LanguageModel>& model, DecoderOptions options);

}  // namespace graft::serve
