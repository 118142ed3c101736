#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "text/grammar/expr.h"

namespace graft::text::grammar {

// Rules as automata over bytes that call each other. Every state can reach the end of its rule, so a text that is not
// refused yet can always be completed.
struct Automaton {
  using Id = std::uint32_t;
  struct ByteEdge {
    std::uint8_t first = 0, last = 0;  // both included
    Id to = 0;
  };
  struct Call {
    Id rule_start = 0, back = 0;  // where it begins, and the state after it
  };
  struct State {
    std::vector<ByteEdge> bytes;
    std::vector<Id> empty;  // edges that read nothing
    std::vector<Call> calls;
    bool final = false;
    bool returns = false;  // all that can follow is the end of the rule
  };
  std::vector<State> states;
  Id start = 0;
  // Bytes of one class have the same edges everywhere.
  std::array<std::uint8_t, 256> class_of{};
  std::size_t classes = 0;
};

// Throws InvalidArgument for rules that no text has, Unsupported for left recursion and for more states than
// kMostStates.
inline constexpr std::size_t kMostStates = 400'000;
Automaton compile(const Rules& rules);

}  // namespace graft::text::grammar
