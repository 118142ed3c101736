#pragma once

#include <optional>
#include <span>
#include <vector>

#include "graft/llm.h"

namespace graft::llm {

// The log-probabilities of tokens, and of the most likely ones at their positions.
class Logprobs {
 public:
  Logprobs() = default;  // not wanted
  // `top`: how many most likely ones. Room for this many positions is reserved.
  Logprobs(std::int64_t top, std::size_t positions);

  bool wanted() const { return top_.has_value(); }
  // Appends a position: its logits [vocabulary], and the token that stands there.
  void add(std::span<const float> logits, std::int64_t id);
  std::span<const float> of_tokens() const { return of_tokens_; }
  std::span<const TokenLogprob> of_top() const { return of_top_; }  // [positions, top]

 private:
  std::optional<std::size_t> top_;
  std::vector<float> of_tokens_;
  std::vector<TokenLogprob> of_top_;
};

}  // namespace graft::llm
