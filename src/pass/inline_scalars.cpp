#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "pass/passes.h"

namespace graft {
namespace {

// Here a second operand without dimensions and a number mean the same to PyTorch when they are of one kind.
constexpr std::array<std::string_view, 4> kTargets = {"aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor",
                                                      "aten.div.Tensor"};

}  // namespace

void inline_scalars(ir::Program& program, const ScalarWeight& scalar) {
  for (ir::Method& method : program.methods) {
    std::map<ir::ValueId, double> known;
    for (const ir::Input& input : method.inputs) {
      if (input.kind != ir::InputKind::weight || method.values[input.value].rank() != 0) continue;
      if (method.values[input.value].dtype != DType::f32) continue;
      if (const auto value = scalar(input.index)) known[input.value] = *value;
    }
    for (ir::Node& node : method.nodes) {
      const ir::Op& op = program.op_of(node);
      if (std::ranges::find(kTargets, op.target) == kTargets.end()) continue;
      if (op.arg_names.size() < 2 || op.arg_names[0] != "self" || op.arg_names[1] != "other") continue;
      // The other operand must be a float tensor with dimensions: else the number would not give the same dtype.
      const ir::Arg& self = node.args[0];
      if (!self.is_value() || !node.args[1].is_value() || !known.contains(node.args[1].value())) continue;
      const ir::Value& value = method.values[self.value()];
      if (value.kind != ir::ValueKind::tensor || value.rank() == 0 || !is_float(value.dtype)) continue;
      node.args[1] = {ir::Arg::Kind::real, 0, known.at(node.args[1].value()), {}, {}};
    }
  }
}

}  // namespace graft
