#pragma once

#include "run/program_impl.h"

namespace graft {

// Constant folding: nodes that depend on weights alone run once, here, and their results become constants of the
// method. Views stay views; results much larger than what they are made of are left to be computed, so that folding
// never costs more memory than it saves work.
void fold_constants(LoadedMethod& method);

}  // namespace graft
