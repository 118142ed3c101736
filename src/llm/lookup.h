#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace graft::llm {

// Drafts by prompt lookup: copies what followed the latest earlier occurrence of the last `ngram` tokens (or fewer,
// down to one) that has tokens after it, repeated up to `most` tokens. `draft` has `most` tokens, or none when there is
// no such occurrence.
void lookup_draft(std::span<const std::int64_t> tokens, std::int64_t ngram, std::int64_t most,
                  std::vector<std::int64_t>& draft);

}  // namespace graft::llm
