#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace graft {

inline ir::Dim any_size() { return {1, ir::kUnbounded, {}}; }
inline ir::Dim fixed_size(std::int64_t n) { return {n, n, {}}; }

// How the KV cache passes extend a method: they add values, operators and states of the session.
class CacheStates {
 public:
  CacheStates(ir::Program& program, ir::Method& method) : program_(program), method_(method) {}

  ir::ValueId add_value(std::string name, DType dtype, std::vector<ir::Dim> dims);
  std::uint32_t add_op(std::string target, std::vector<std::string> arg_names);
  // The method's value of the state; creates state and input if they are missing. Throws InvalidProgram if another
  // method has the state with another kind, dtype or sizes.
  ir::ValueId add_state(const std::string& fqn, ir::StateKind kind, DType dtype, const std::vector<ir::Dim>& dims,
                        const std::vector<std::int64_t>& windows = {});
  // Makes the value the state's new content. The state must exist.
  void write_state(std::string_view fqn, ir::ValueId value);

 private:
  ir::Program& program_;
  ir::Method& method_;
};

}  // namespace graft
