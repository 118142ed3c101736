#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "graft/llm.h"
#include "serve/embedder.h"
#include "serve/engine.h"
#include "serve/grammars.h"
#include "serve/options.h"
#include "serve/runner.h"

namespace graft::serve {

struct ServedModel {
  std::string name;
  std::int64_t created = 0;  // seconds since 1970
  // Of a language model:
  std::shared_ptr<const LanguageModel> language;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Grammars> grammars;
  // Of any other:
  std::unique_ptr<Runner> runner;
  std::unique_ptr<Embedder> embedder;  // of a text encoder with a tokenizer

  // Throws ApiError (400) for one that is no language model.
  void check_language() const;
  // Throws ApiError (400) for one that is no text encoder with a tokenizer.
  void check_embedder() const;
};

// The models that requests name. From any thread.
class Models {
 public:
  void add(std::shared_ptr<ServedModel> model);
  std::vector<std::shared_ptr<ServedModel>> all() const;
  // The first one for an absent name. Throws ApiError (404).
  std::shared_ptr<ServedModel> find(const std::optional<std::string>& name) const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<ServedModel>> models_;
};

// Loads a package; of a language model it makes the plans. Throws what the loads, Engine, Runner and Embedder throw.
std::shared_ptr<ServedModel> load_model(const ModelFile& file, const ServeOptions& options);

// How many rows a cache of this model gets where the caller does not say: as many as fit half of the memory that is
// free, the batches that its program allows, and 32.
std::int64_t rows_for(const std::shared_ptr<const LanguageModel>& model, DecoderOptions options);

}  // namespace graft::serve
