#pragma once

#include "graft/graft.h"
#include "ir/program.h"

namespace graft {

// Slots of a layer of which a token sees the last `reach` positions, when that is a ring; 0 when it holds all tokens.
std::int64_t ring_slots(std::int64_t reach, const KvOptions& kv);

// A state's memory in a session: that of a cache of keys and values is as large as the session chose.
// Throws InvalidArgument when the type cannot hold its rows.
TensorDesc state_desc(const ir::State& state, const KvOptions& kv);

}  // namespace graft
