#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace graft::llm {

// How many tokens each caller has had, so that those who have had the fewest come next. One that comes back after a
// pause is counted as having had as many as the least of those that are there: it has no credit for the time that it
// was away. (Virtual token counters: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024.)
class FairShare {
 public:
  // A request of the caller begins to wait; leave() when it has ended.
  void join(std::uint64_t caller) {
    State& state = callers_[caller];
    if (state.requests++ > 0) return;
    std::int64_t least = -1;
    for (const auto& [name, other] : callers_)
      if (name != caller && other.requests > 0 && (least < 0 || other.tokens < least)) least = other.tokens;
    state.tokens = std::max(state.tokens, least);
    if (callers_.size() > kMost) std::erase_if(callers_, [](const auto& entry) { return entry.second.requests == 0; });
  }
  void leave(std::uint64_t caller) { --callers_.at(caller).requests; }
  void charge(std::uint64_t caller, std::int64_t tokens) { callers_.at(caller).tokens += tokens; }
  std::int64_t tokens(std::uint64_t caller) const { return callers_.at(caller).tokens; }

 private:
  static constexpr std::size_t kMost = 10'000;  // callers: those that are away are forgotten then
  struct State {
    std::int64_t tokens = 0, requests = 0;
  };
  std::unordered_map<std::uint64_t, State> callers_;
};

}  // namespace graft::llm
