#pragma once

#include <cstddef>
#include <vector>

#include "lowering/launch.h"

namespace graft {

// Who touches a buffer of a plan.
struct BufferUses {
  std::size_t reads = 0;               // inputs of launches and of what undoes them
  std::size_t writes = 0;              // outputs of launches
  std::size_t reader = 0, writer = 0;  // the last launch that does
};

// By buffer.
std::vector<BufferUses> uses_of(const LaunchSequence& sequence);

}  // namespace graft
