#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "package/container.h"
#include "package/package.h"

namespace graft {

// What an execution plan refers to outside itself.
struct PlanSurroundings {
  const PteFile& pte;
  // The blob of a delegate. Throws InvalidProgram.
  std::function<std::span<const std::byte>(const et::BackendDelegate& delegate)> processed;
  // Makes bytes of the .pte available under a key.
  std::function<void(std::string_view key, std::span<const std::byte> bytes)> add;
};

// One method of a package: decides whether graft alone can run it and, if so, makes the graph whose inputs and outputs
// are those of the execution plan. Throws InvalidProgram naming the method. The graph is yet to be verified.
PackageMethod compose(const et::ExecutionPlan& plan, const PlanSurroundings& around);

}  // namespace graft
