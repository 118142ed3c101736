#pragma once

#include <span>

#include "plan/make_plan.h"

namespace graft {

// Binds the inputs of a method to buffers, lowers its nodes in order and binds its outputs: fills the launch sequence
// and the outputs of the plan. Throws as make_plan does.
void lower_method(const ir::Program& program, const ir::Method& method, std::span<const InputDesc> inputs,
                  const PlanOptions& options, Plan& plan);

}  // namespace graft
