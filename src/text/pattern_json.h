#pragma once

#include "base/check.h"
#include "text/json.h"
#include "text/pattern.h"

namespace graft::text {

// The member "pattern" of a part of tokenizer.json: {"String": ...} or {"Regex": ...}.
inline Pattern pattern_at(const Json& description, const std::string& where) {
  const Json& pattern = member(description, "pattern");
  if (pattern.is_object() && pattern.contains("String")) return Pattern::literal(string_at(pattern, "String", where));
  if (pattern.is_object() && pattern.contains("Regex")) return Pattern::regex(string_at(pattern, "Regex", where));
  throw InvalidProgram(
      str(where, ".pattern should be {\"String\": ...} or {\"Regex\": ...}, found ", pattern.dump().substr(0, 80)));
}

}  // namespace graft::text
