#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "graft/export.h"

// What exporters query to decide which nodes to delegate.
namespace graft {

struct RefusedNode {
  std::size_t method = 0;  // index into the program's methods
  std::string node;        // torch.fx name
  std::string target;      // "aten.add.Tensor"
  std::string refusal;     // what was expected and what was found
};

// The nodes of a program (bytes of schema/graft.fbs) that graft does not run. Throws InvalidProgram.
GRAFT_API std::vector<RefusedNode> refused_nodes(std::span<const std::byte> program);

// Operators to keep whole at export although ATen could decompose them.
GRAFT_API std::vector<std::string> preserved_targets();

// All operators, on tensors and on numbers.
GRAFT_API std::vector<std::string> operator_targets();

// Operators that run on the host between plans, because a plan cannot hold their results: data-dependent sizes and
// numbers, and calls of sub-graphs.
GRAFT_API std::vector<std::string> host_operator_targets();

}  // namespace graft
