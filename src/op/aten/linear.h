#pragma once

#include <optional>

#include "lowering/lowering.h"

namespace graft {

// rows [M, K] times the transposed weight [N, K], plus an optional bias [N], into out [M, N]. All of one dtype, except
// a weight stored in another type. Runs on the plan's device if possible.
void launch_linear(const Tensor& rows, const Tensor& weight, const std::optional<Tensor>& bias, const Tensor& out,
                   Lowering& lowering);

}  // namespace graft
