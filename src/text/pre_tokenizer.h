#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/json_fwd.h"
#include "text/normalizer.h"

namespace graft::text {

// The words of a text, in order.
using Words = std::vector<Normalized>;

// One step of tokenizer.json's "pre_tokenizer": cuts and rewrites the words. What is empty afterwards is left out.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Words& words) const = 0;
};

// Null for null. Throws InvalidProgram for a damaged description, Unsupported naming a type that is not known.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& description);

// Cuts at the matches of an expression and keeps all pieces; then bytes as characters: GPT-2's way, for any
// expressions.
std::unique_ptr<const PreTokenizer> make_byte_level_split(const std::vector<std::string>& expressions);

}  // namespace graft::text
