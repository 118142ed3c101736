#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "text/normalizer.h"

namespace graft::text {

// The words of a text, in order.
using Words = std::vector<Normalized>;

// One step of tokenizer.json's "pre_tokenizer": splits and rewrites the words. Empty words are left out.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Words& words) const = 0;
};

// Null for null. Throws InvalidProgram for a damaged description, Unsupported naming a type that is not known.
std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const Json& description);

// GPT-2's pre-tokenizer with these expressions: splits at their matches, keeps all parts, then maps bytes to
// characters.
std::unique_ptr<const PreTokenizer> make_byte_level_split(const std::vector<std::string>& expressions);

}  // namespace graft::text
