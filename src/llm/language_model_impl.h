#pragma once

#include <memory>

#include "graft/llm.h"
#include "stage/turns.h"

namespace graft {

struct LanguageModel::Impl {
  std::shared_ptr<const Program> program;
  LanguageModelInfo info;
  std::shared_ptr<const Tokenizer> tokenizer;
  // Of a model in stages: its decoders run the first stage one after the other, in one arena.
  mutable stage::Turns turns = {};
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
};

}  // namespace graft
