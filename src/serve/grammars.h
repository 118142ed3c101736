#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "graft/grammar.h"
#include "graft/llm.h"

namespace graft::serve {

// The grammars that requests of a model have asked for, the last ones kept: they hold what masks have learnt. From any
// thread.
class Grammars {
 public:
  explicit Grammars(std::shared_ptr<const LanguageModel> model) : model_(std::move(model)) {}

  using Make = std::function<std::shared_ptr<Grammar>(Grammar::Vocabulary)>;
  // `key`: of the grammar, whole. Throws what `make` throws.
  std::shared_ptr<const Grammar> get(const std::string& key, const Make& make);

 private:
  static constexpr std::size_t kMost = 32;

  const std::shared_ptr<const LanguageModel> model_;
  std::mutex mutex_;
  Grammar::Vocabulary vocabulary_;                                          // made by the first request that needs it
  std::list<std::pair<std::string, std::shared_ptr<const Grammar>>> kept_;  // the last used first
};

}  // namespace graft::serve
