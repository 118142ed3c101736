#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "package/container.h"
#include "package/package.h"

namespace graft {

// Data that an execution plan refers to outside itself.
struct PlanSurroundings {
  const PteFile& pte;
  // The blob of a delegate. Throws InvalidProgram.
  std::function<std::span<const std::byte>(const et::BackendDelegate& delegate)> processed;
  // Adds bytes of the .pte to the named data.
  std::function<void(std::string_view key, std::span<const std::byte> bytes)> add;
};

// One method of a package: decides whether graft alone can run it and, if so, makes the graph with the inputs and
// outputs of the execution plan. Throws InvalidProgram naming the method. The graph is not verified yet.
PackageMethod compose(const et::ExecutionPlan& plan, const PlanSurroundings& around);

}  // namespace graft
