#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "serve/tools/answer_part.h"

namespace graft::serve {

// How much of the end of the text may be the beginning of the tag.
inline std::size_t begun_at_end(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size)
    if (text.ends_with(tag.substr(0, size))) return size;
  return 0;
}

// Adds text to the last part where that is of the same kind.
inline void append_part(AnswerPart::Kind kind, std::string_view text, std::vector<AnswerPart>& parts) {
  if (text.empty()) return;
  if (!parts.empty() && parts.back().kind == kind && kind != AnswerPart::Kind::call)
    parts.back().text += text;
  else
    parts.push_back({kind, std::string(text)});
}

}  // namespace graft::serve
