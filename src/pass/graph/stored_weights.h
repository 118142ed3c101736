#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace graft {

// A weight of a graph that holds the values of `source`, which is stored in another type, as plain elements of their
// own dtype.
struct ConvertedWeight {
  std::uint32_t weight = 0;  // `source` itself if nothing reads it as it is stored
  std::uint32_t source = 0;
};

// Ensures that a weight whose stored type differs from the dtype of its values is read only by operators that take it
// as stored (Operator::stored_use). All other uses read one converted weight: a new one at the end of the graph's
// weights, or the same one. With `only_blocks` those that are not in ggml's blocks are all converted, as devices
// other than the CPU need them. The graph has one method; the same graph always gives the same result.
std::vector<ConvertedWeight> convert_stored_weights(ir::Program& graph, bool only_blocks);

}  // namespace graft
