#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace graft::llm {

// What followed the last `ngram` tokens of a sequence (or fewer, down to one) where they stood before: its latest such
// place with tokens after it, repeated up to `most` tokens: `draft` has `most` of them, or none when there is no such
// place.
void lookup_draft(std::span<const std::int64_t> tokens, std::int64_t ngram, std::int64_t most,
                  std::vector<std::int64_t>& draft);

}  // namespace graft::llm
