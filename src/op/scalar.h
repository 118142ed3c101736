#pragma once

#include <span>

#include "op/operator.h"

namespace graft {

// Sizes of tensors, and Python's arithmetic on numbers with Python's rounding and errors. Integers have 64 bits:
// a result beyond them is an InvalidArgument.
std::span<const ScalarOperator> scalar_operators();

}  // namespace graft
