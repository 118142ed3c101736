#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace graft {

// A buffer of arena memory: its size, and the launches during which no other buffer may use its bytes.
struct Lifetime {
  std::int64_t bytes = 0;  // at least 0; a buffer of 0 bytes takes no memory and gets offset 0
  std::int32_t first = 0;  // first launch that writes it
  std::int32_t last = 0;   // last launch that touches it, inclusive; at least `first`
};

struct ArenaLayout {
  std::vector<std::int64_t> offsets;  // bytes, one per lifetime in the same order, multiples of the alignment
  std::int64_t bytes = 0;             // end of the highest buffer, rounded up to the alignment
  std::string_view strategy;          // which strategy won; static storage
};

// Offsets at which no two buffers alive at the same launch share a byte. A pure function: the same lifetimes give the
// same layout on every machine. Several strategies run, cheapest first, and the smallest arena wins; the first one that
// meets the lower bound (the largest sum of live bytes) ends the search. Quadratic strategies are skipped when
// their steps, known before they start, exceed a fixed budget. `alignment` is a power of two.
// Throws Unsupported when the sizes add up to more than 2^63 - 1 bytes.
ArenaLayout plan_arena(std::span<const Lifetime> lifetimes, std::int64_t alignment);

}  // namespace graft
