#pragma once

#include <cstdint>

#include "graft/graft.h"
#include "ir/program.h"

namespace graft {

// What a plan for a device takes for granted of the caches of keys and values in a call, since addresses there do not
// depend on data. Part of the plan key.
struct KvExtent {
  std::int64_t first_row = 0;  // row b of the batch uses row first_row + b of the caches; -1: any row
  std::int64_t held = 0;       // no row holds more tokens before the run

  bool operator==(const KvExtent&) const = default;
};

// Slots of the ring buffer of a layer in which a token sees the last `window` positions; 0 when the layer holds all
// tokens.
std::int64_t ring_slots(std::int64_t window, const KvOptions& kv);

// The descriptor of a state's memory in a session; a cache of keys and values has the session's size and type. Throws
// InvalidArgument when the type cannot hold its rows.
TensorDesc state_desc(const ir::State& state, const KvOptions& kv);

}  // namespace graft
