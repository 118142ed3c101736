#pragma once

#include "graft/graft.h"
#include "ir/program.h"

namespace graft {

// A state's memory in a session: that of a cache of keys and values is as large as the session chose.
// Throws InvalidArgument when the type cannot hold its rows.
TensorDesc state_desc(const ir::State& state, const KvOptions& kv);

}  // namespace graft
