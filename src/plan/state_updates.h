#pragma once

#include <vector>

#include "ir/program.h"

namespace graft {

// By node of the method: true if the node overwrites part of its "self" (Operator::updates), self holds a state's
// value, the result becomes the state's value, and nothing reads the old value once the node has run. Such a node may
// write into the state's own memory, which makes the order of the nodes the order of memory accesses.
std::vector<bool> find_state_updates(const ir::Program& program, const ir::Method& method);

}  // namespace graft
