#pragma once

#include "graft/graft.h"
#include "ir/program.h"

namespace graft {

// Slots of the ring buffer of a layer in which a token sees the last `window` positions; 0 when the layer holds all
// tokens.
std::int64_t ring_slots(std::int64_t window, const KvOptions& kv);

// The descriptor of a state's memory in a session; a cache of keys and values has the session's size and type. Throws
// InvalidArgument when the type cannot hold its rows.
TensorDesc state_desc(const ir::State& state, const KvOptions& kv);

}  // namespace graft
