#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "plan/arena.h"

namespace graft {

// Verifies what plan_arena made. Shares no code with it, so that a bug there is seen here. Both take O(n log n).

// The largest sum of sizes, each rounded up to the alignment, alive at one launch: no arena can be smaller.
std::int64_t live_lower_bound(std::span<const Lifetime> lifetimes, std::int64_t alignment);

// What is wrong with the offsets, in words that name the buffers, their bytes and their launches: a missing, negative
// or misaligned offset, or two buffers that share a byte while both are alive. nullopt when nothing is.
std::optional<std::string> find_overlap(std::span<const Lifetime> lifetimes, std::span<const std::int64_t> offsets,
                                        std::int64_t alignment);

}  // namespace graft
