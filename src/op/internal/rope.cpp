// Rotary position embedding, matched by src/pass/graph/rope.cpp.
#include <array>

#include "base/check.h"
#include "kernel/attention/rope.h"
#include "lowering/lowering.h"
#include "op/operator.h"

namespace graft {
namespace {

Refusal refuse_rope(const NodeView& node) {
  for (const std::string_view argument : {"self", "cos", "sin"}) {
    const ir::Value& value = node.tensor(argument);
    if (value.dtype != DType::f32 || value.rank() != 4)
      return str(argument, " is ", value.str(), ", expected f32 of rank 4");
    if (!value.dims[3].is_static() || value.dims[3].min != node.tensor("self").dims[3].min ||
        value.dims[3].min % 2 != 0)
      return str(argument, " is ", value.str(), ", expected the same even last size in all");
  }
  return {};
}

std::vector<Shape> rope_shape(const Call& call) {
  const Shape& shape = call.tensor("self").shape();
  for (const std::string_view argument : {"cos", "sin"}) expanded(call.tensor(argument), shape);  // throws
  return {shape};
}

std::vector<Tensor> lower_rope(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Shape& shape = shapes[0];
  // The heads of a token are adjacent, as projections write them and attention reads them.
  constexpr std::array<int, 4> kTokensFirst = {0, 2, 1, 3};
  const Tensor out = permuted(lowering.allocate(DType::f32, {shape[0], shape[2], shape[1], shape[3]}), kTokensFirst);
  if (out.numel() == 0) return {out};
  lowering.launch(kRope,
                  {lowering.with_contiguous_rows(call.tensor("self")),
                   expanded(lowering.with_contiguous_rows(call.tensor("cos")), shape),
                   expanded(lowering.with_contiguous_rows(call.tensor("sin")), shape)},
                  {out});
  return {out};
}

}  // namespace

std::span<const Operator> rope_operators() {
  static constexpr Operator kOperators[] = {{"graft.rope", refuse_rope, rope_shape, lower_rope}};
  return kOperators;
}

}  // namespace graft
