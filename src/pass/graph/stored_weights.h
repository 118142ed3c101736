#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace graft {

// A weight of a graph that is to hold the values of `source`, which is stored in another type, as plain elements of
// their own dtype.
struct ConvertedWeight {
  std::uint32_t weight = 0;  // `source` itself when nothing reads it as it is stored
  std::uint32_t source = 0;
};

// Sees to it that every weight whose stored type is not the dtype of its values is read only by operators that take it
// as it is stored (Operator::stored_use). All other uses read a weight that is to be converted: one for all of them,
// new at the end of the graph's weights or the same one. With `none_as_stored` every such weight is converted. The
// graph has one method; the same graph always gives the same result.
std::vector<ConvertedWeight> convert_stored_weights(ir::Program& graph, bool none_as_stored);

}  // namespace graft
