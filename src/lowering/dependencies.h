#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lowering/launch.h"

namespace graft {

// The dependency graph of the first `count` launches: a launch comes after those that wrote bytes that it reads or
// writes, and after those that read bytes that it overwrites. Windows of a buffer that share no byte are independent.
struct Dependencies {
  Dependencies(const LaunchSequence& sequence, std::size_t count);

  std::vector<std::vector<std::uint32_t>> after;  // by launch: the launches that wait for it, each once
  std::vector<std::uint32_t> waits;               // by launch: how many launches it waits for
};

// Puts the first `order.size()` launches into this order, which must respect their dependencies, and moves the marks of
// the sequence with them. Returns how many launches moved.
std::size_t reorder(LaunchSequence& sequence, const std::vector<std::uint32_t>& order);

}  // namespace graft
