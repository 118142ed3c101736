#include "llm/lookup.h"

#include <algorithm>

namespace graft::llm {

void lookup_draft(std::span<const std::int64_t> tokens, std::int64_t ngram, std::int64_t most,
                  std::vector<std::int64_t>& draft) {
  draft.clear();
  if (most <= 0) return;
  const std::int64_t count = std::ssize(tokens);
  for (std::int64_t n = std::min(ngram, count - 1); n >= 1; --n) {
    const auto last = tokens.last(static_cast<std::size_t>(n));
    for (std::int64_t begin = count - n - 1; begin >= 0; --begin) {
      const auto at = static_cast<std::size_t>(begin);
      if (!std::ranges::equal(tokens.subspan(at, last.size()), last)) continue;
      // Copies what followed; where that ends, the draft continues with itself, since a repetition tends to go on.
      const auto after = tokens.subspan(at + last.size());
      for (std::size_t i = 0; i < static_cast<std::size_t>(most); ++i)
        draft.push_back(i < after.size() ? after[i] : draft[i - after.size()]);
      return;
    }
  }
}

}  // namespace graft::llm
