#pragma once

#include <string_view>
#include <vector>

#include "op/operator.h"

// Operators that were registered at run time (graft/op.h).
namespace graft {

const Operator* find_user_operator(std::string_view target);  // nullptr if there is no such operator
std::vector<const Operator*> user_operators();

}  // namespace graft
