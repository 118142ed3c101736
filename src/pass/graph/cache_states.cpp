#include "pass/graph/cache_states.h"

#include <algorithm>

#include "base/check.h"

namespace graft {

ir::ValueId CacheStates::add_value(std::string name, DType dtype, std::vector<ir::Dim> dims) {
  method_.values.push_back({std::move(name), ir::ValueKind::tensor, dtype, std::move(dims)});
  return static_cast<ir::ValueId>(method_.values.size() - 1);
}

std::uint32_t CacheStates::add_op(std::string target, std::vector<std::string> arg_names) {
  program_.ops.push_back({std::move(target), std::move(arg_names)});
  return static_cast<std::uint32_t>(program_.ops.size() - 1);
}

ir::ValueId CacheStates::add_state(const std::string& fqn, ir::StateKind kind, DType dtype,
                                   const std::vector<ir::Dim>& dims, const std::vector<std::int64_t>& windows) {
  ir::State state;
  state.fqn = fqn;
  state.kind = kind;
  state.dtype = dtype;
  state.windows = windows;
  for (const ir::Dim& dim : dims) state.shape.push_back(dim.min);
  auto it = std::ranges::find(program_.states, fqn, &ir::State::fqn);
  if (it == program_.states.end()) it = program_.states.insert(it, state);
  GRAFT_CHECK(InvalidProgram, it->kind == kind && it->dtype == dtype && it->shape == state.shape, "state '", fqn,
              "' is ", name(it->dtype), it->shape.str(), " in one place and ", name(dtype), state.shape.str(),
              " in another");
  const auto index = static_cast<std::uint32_t>(it - program_.states.begin());
  for (const ir::Input& input : method_.inputs)
    if (input.kind == ir::InputKind::state && input.index == index) return input.value;
  const ir::ValueId value = add_value(fqn, dtype, dims);
  method_.inputs.push_back({value, ir::InputKind::state, index});
  return value;
}

void CacheStates::write_state(std::string_view fqn, ir::ValueId value) {
  const auto state = std::ranges::find(program_.states, fqn, &ir::State::fqn);
  GRAFT_ASSERT(state != program_.states.end());
  method_.outputs.push_back({ir::OutputKind::state_mutation, ir::Arg::of_value(value),
                             static_cast<std::uint32_t>(state - program_.states.begin())});
}

}  // namespace graft
