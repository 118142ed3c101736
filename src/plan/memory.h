#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace graft {

struct StoredPlan;

// Gives every arena buffer its place, from the stored plan where that fits (it may be null). Needs the lifetimes of the
// buffers; `alignment` is a power of two. Throws InvalidProgram when the layout of a stored plan that fits is wrong.
void place_arena(Plan& plan, const StoredPlan* stored, std::int64_t alignment);

// Fills Plan::allocations, the table of memory, and state_bytes_written. Needs the arena's size.
void list_allocations(Plan& plan);

// Finds outputs that may share memory with an input (Plan::aliases) and the inputs that a run writes.
void list_aliases(Plan& plan);

}  // namespace graft
