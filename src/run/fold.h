#pragma once

#include "run/program_impl.h"

namespace graft {

// Constant folding: nodes that depend on weights alone run once, here, and their results become constants of the
// method. Views stay views; results much larger than what they are made of are left to be computed, so that folding
// never costs more memory than it saves work. `graph` has one method, that of `method`, whose weights are placed.
void fold_constants(ir::Program& graph, LoadedMethod& method, const PlanLimits& limits);

// The same to a graph that was read again: which nodes are folded depends on the graph alone, and their results are
// there. Throws InvalidProgram when they are not those of this graph.
void fold_again(ir::Program& graph, const LoadedMethod& method);

}  // namespace graft
