#include "llm/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace graft::llm {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// A NaN counts as a token that cannot come.
float known(float logit) { return std::isnan(logit) ? kNone : logit; }

// Of equal ones the token with the smaller id comes first.
bool before(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
}

}  // namespace

Logprobs::Logprobs(std::int64_t top, std::size_t positions) : top_(static_cast<std::size_t>(top)) {
  of_tokens_.reserve(positions);
  of_top_.reserve(positions * *top_);
}

void Logprobs::add(std::span<const float> logits, std::int64_t id) {
  float most = kNone;
  for (const float logit : logits) most = std::max(most, known(logit));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(known(logit)) - static_cast<double>(most));
  const double log_sum = static_cast<double>(most) + std::log(sum);
  const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_sum); };
  of_tokens_.push_back(logprob(known(logits[static_cast<std::size_t>(id)])));
  if (*top_ == 0) return;
  // A heap of the best so far, the worst of them first.
  const auto begin = static_cast<std::ptrdiff_t>(of_top_.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const TokenLogprob candidate{static_cast<std::int64_t>(i), known(logits[i])};
    const auto first = of_top_.begin() + begin;
    if (of_top_.end() - first < static_cast<std::ptrdiff_t>(*top_)) {
      of_top_.push_back(candidate);
      std::push_heap(of_top_.begin() + begin, of_top_.end(), before);
    } else if (before(candidate, *first)) {
      std::pop_heap(first, of_top_.end(), before);
      of_top_.back() = candidate;
      std::push_heap(first, of_top_.end(), before);
    }
  }
  std::sort_heap(of_top_.begin() + begin, of_top_.end(), before);
  for (auto entry = of_top_.begin() + begin; entry != of_top_.end(); ++entry) entry->logprob = logprob(entry->logprob);
}

}  // namespace graft::llm
