#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/json_fwd.h"

namespace graft::text {

// One step of tokenizer.json's "decoder": from the pieces of tokens to pieces of text.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& pieces) const = 0;
};

// Null for null: pieces are joined by spaces. Throws InvalidProgram for a damaged description, Unsupported naming a
// type that is not known.
std::unique_ptr<const Decoder> make_decoder(const Json& description);

}  // namespace graft::text
