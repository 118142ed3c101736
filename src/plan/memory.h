#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace graft {

struct StoredPlan;

// Assigns offsets to the arena's buffers, from the stored plan if it fits (may be null). Needs the buffers' lifetimes;
// `alignment` is a power of two. Throws InvalidProgram if a stored plan that fits has an invalid layout.
void place_arena(Plan& plan, const StoredPlan* stored, std::int64_t alignment);

// Fills Plan::allocations and state_bytes_written. Needs the arena's size.
void list_allocations(Plan& plan);

// Finds outputs that may share memory with an input (Plan::aliases), and the inputs that a run writes.
void list_aliases(Plan& plan);

}  // namespace graft
