#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json_fwd.h"

namespace graft::text {

// One step of tokenizer.json's "decoder": turns the strings of tokens into parts of the text.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& pieces) const = 0;
};

// Null for null: tokens are joined by spaces. Throws InvalidProgram for a damaged description, Unsupported naming a
// type that is not known.
std::unique_ptr<const Decoder> make_decoder(const Json& description);

}  // namespace graft::text
