#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>

#include "pass/graph/passes.h"

namespace graft {
namespace {

// In these, PyTorch treats a 0-d second operand like a number of the same kind.
constexpr std::array<std::string_view, 4> kTargets = {"aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor",
                                                      "aten.div.Tensor"};

// Tracks a known integer through a conversion to a type that holds it.
void take_converted(const ir::Method& method, const ir::Node& node, std::map<ir::ValueId, double>& known) {
  const ir::Arg& self = node.args[0];
  if (!self.is_value() || !known.contains(self.value())) return;
  const DType to = method.values[node.outputs[0]].dtype;
  const double number = known.at(self.value());
  if (!is_integer(method.values[self.value()].dtype) || (to != DType::i32 && to != DType::i64)) return;
  if (to == DType::i64 || std::abs(number) < 2147483648.0) known[node.outputs[0]] = number;
}

}  // namespace

std::size_t inline_scalars(ir::Program& program, const UniformWeight& uniform) {
  std::size_t count = 0;
  for (ir::Method& method : program.methods) {
    std::map<ir::ValueId, double> known;
    for (const ir::Input& input : method.inputs) {
      if (input.kind != ir::InputKind::weight || method.values[input.value].rank() != 0) continue;
      const DType dtype = method.values[input.value].dtype;
      if (dtype != DType::f32 && dtype != DType::i64) continue;
      if (const auto value = uniform(input.index)) known[input.value] = *value;
    }
    for (ir::Node& node : method.nodes) {
      const ir::Op& op = program.op_of(node);
      if (op.target == "aten._to_copy.default") take_converted(method, node, known);
      if (std::ranges::find(kTargets, op.target) == kTargets.end()) continue;
      if (op.arg_names.size() < 2 || op.arg_names[0] != "self" || op.arg_names[1] != "other") continue;
      // The other operand must have dimensions and be of floats or, for an integer, of integers: else the number would
      // give another dtype.
      const ir::Arg& self = node.args[0];
      if (!self.is_value() || !node.args[1].is_value() || !known.contains(node.args[1].value())) continue;
      const ir::Value& value = method.values[self.value()];
      if (value.kind != ir::ValueKind::tensor || value.rank() == 0) continue;
      const double number = known.at(node.args[1].value());
      const bool whole = is_integer(method.values[node.args[1].value()].dtype);
      if (whole ? !is_integer(value.dtype) : !is_float(value.dtype)) continue;
      if (whole)
        node.args[1] = ir::Arg::of_integer(static_cast<std::int64_t>(number));
      else
        node.args[1] = {ir::Arg::Kind::real, 0, number, {}, {}};
      ++count;
    }
  }
  return count;
}

}  // namespace graft
