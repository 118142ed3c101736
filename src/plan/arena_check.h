#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "plan/arena.h"

namespace graft {

// Verifies the layouts of plan_arena. Shares no code with it, so that it catches its bugs. Both take O(n log n).

// The largest sum of sizes, each rounded up to the alignment, alive at one launch: no arena can be smaller.
std::int64_t live_lower_bound(std::span<const Lifetime> lifetimes, std::int64_t alignment);

// Explains an invalid layout, naming buffers, bytes and launches: a missing, negative or misaligned offset, or two live
// buffers that share a byte. nullopt if the layout is valid.
std::optional<std::string> find_overlap(std::span<const Lifetime> lifetimes, std::span<const std::int64_t> offsets,
                                        std::int64_t alignment);

}  // namespace graft
