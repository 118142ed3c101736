#pragma once

#include <optional>

#include "lowering/lowering.h"

namespace graft {

// rows [M, K] times the transposed weight [N, K], plus bias [N] where there is one, into out [M, N]. All of one dtype
// (the weight as it is stored); the plan's device runs it where it can.
void launch_linear(const Tensor& rows, const Tensor& weight, const std::optional<Tensor>& bias, const Tensor& out,
                   Lowering& lowering);

}  // namespace graft
