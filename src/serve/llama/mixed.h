#pragma once

#include <functional>
#include <string>
#include <vector>

#include "serve/json_fields.h"

namespace graft::serve {

// Texts in the forms that llama-server takes them, OpenAI's among these: a string, token ids, both in any order,
// {"prompt_string": a string}, {"content": parts with text}, or an array of such.
struct MixedTexts {
  std::function<std::vector<std::int64_t>(const std::string& text, bool add_special)> encode;
  std::int64_t vocabulary = 0;
  std::size_t most = 0;  // texts

  // `list`: whether it is an array of texts. Throws ApiError (400).
  std::vector<std::vector<std::int64_t>> all(const Json& given, const std::string& path, bool& list) const;
  std::vector<std::int64_t> one(const Json& given, const std::string& path) const;
};

}  // namespace graft::serve
