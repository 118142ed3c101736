#pragma once

#include <vector>

#include "ir/program.h"

namespace graft {

// By node of the method: true when the node overwrites part of its "self" (Operator::updates), self holds a state's
// value, the result becomes the value of that state, and nothing reads the value from before any more once the node has
// run. Such a node may write into the state's own memory: the order of the nodes then is the order of memory accesses.
std::vector<bool> find_state_updates(const ir::Program& program, const ir::Method& method);

}  // namespace graft
