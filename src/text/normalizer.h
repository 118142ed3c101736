#pragma once

#include <memory>
#include <string>

#include "text/json_fwd.h"

namespace graft::text {

// A text on its way to the pre-tokenizer. Always well-formed UTF-8.
struct Normalized {
  std::string text;
  // Whether it still begins with what the user's text began with: Metaspace needs it for prepend_scheme "first".
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
