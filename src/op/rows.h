#pragma once

#include <string_view>

#include "ir/program.h"

namespace graft {

// Whether a call computes each row on its own, so that several calls may be one on their rows one after the other: all
// tensors that it takes and gives have the same dynamic size as their first dimension, that size occurs as another
// dimension nowhere, and every operator in between is known to keep rows apart. Without states. False where that is not
// known.
bool rows_are_independent(const ir::Program& program, const ir::Method& method);

// Whether a size's expression (ir::Dim::expr) has the symbol in it.
bool names_symbol(std::string_view expr, std::string_view symbol);

}  // namespace graft
