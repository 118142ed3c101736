#pragma once

#include <memory>
#include <string>

#include "base/json_fwd.h"

namespace graft::text {

// A string between normalizer and pre-tokenizer. Always well-formed UTF-8.
struct Normalized {
  std::string text;
  // Whether it begins where the user's text begins: Metaspace needs it for prepend_scheme "first".
  bool at_start = false;
};

// One step of tokenizer.json's "normalizer".
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(Normalized& text) const = 0;
};

// Null for null. Throws InvalidProgram for a damaged description, Unsupported naming a type that is not known.
std::unique_ptr<const Normalizer> make_normalizer(const Json& description);

}  // namespace graft::text
