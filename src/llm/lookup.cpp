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
      const auto after = tokens.subspan(at + last.size());
      draft.assign(after.begin(), after.begin() + std::min<std::ptrdiff_t>(most, std::ssize(after)));
      return;
    }
  }
}

}  // namespace graft::llm
