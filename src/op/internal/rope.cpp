// Rotary position embedding, matched by src/pass/graph/rope.cpp.
#include <array>

#include "base/check.h"
#include "kernel/attention/rope.h"
#include "lowering/lowering.h"
#include "op/ggml_ops.h"
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

// The heads of a token are adjacent, as projections write them and attention reads them.
constexpr std::array<int, 4> kTokensFirst = {0, 2, 1, 3};

Tensor tokens_first(Lowering& lowering, const Shape& shape) {
  return permuted(lowering.allocate(DType::f32, {shape[0], shape[2], shape[1], shape[3]}), kTokensFirst);
}

void launch_rope(Lowering& lowering, const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& out) {
  lowering.launch(kRope,
                  {lowering.with_contiguous_rows(x), expanded(lowering.with_contiguous_rows(cos), out.shape()),
                   expanded(lowering.with_contiguous_rows(sin), out.shape())},
                  {out});
}

std::vector<Tensor> lower_rope(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = tokens_first(lowering, shapes[0]);
  if (out.numel() > 0) launch_rope(lowering, call.tensor("self"), call.tensor("cos"), call.tensor("sin"), out);
  return {out};
}

// Of a graph for a device: src/pass/graph/rope.cpp has checked the operands.
Refusal refuse_rope_at(const NodeView& node) {
  const ir::Value &x = node.tensor("self"), &frequency = node.tensor("frequency");
  if (x.dtype != DType::f32 || x.rank() != 4 || !x.dims[3].is_static() || frequency.rank() != 1 ||
      !frequency.dims[0].is_static() || x.dims[3].min != 2 * frequency.dims[0].min)
    return str("self is ", x.str(), " and frequency ", frequency.str(), ", expected f32 [B, H, T, D] and f32 [D / 2]");
  return {};
}

std::vector<Shape> rope_at_shape(const Call& call) { return {call.tensor("self").shape()}; }

std::vector<Tensor> lower_rope_at(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Shape& shape = shapes[0];
  const Tensor out = tokens_first(lowering, shape);
  if (out.numel() == 0) return {out};
  const Tensor& x = call.tensor("self");
  const Tensor position = lowering.contiguous(expanded(call.tensor("position"), Shape{shape[0], shape[2]}));
  const double scale = call.real("scale");
  if (device::rope(lowering, x, position, call.tensor("period"), scale, out)) return {out};
  const Tensor frequency = lowering.contiguous(call.tensor("frequency"));
  const Shape angles{shape[0], 1, shape[2], shape[3]};
  const Tensor cos = lowering.allocate(DType::f32, angles), sin = lowering.allocate(DType::f32, angles);
  lowering.launch(kRopeAngles, {position, frequency}, {cos, sin}, RopeAnglesAttrs{scale});
  launch_rope(lowering, x, cos, sin, out);
  return {out};
}

}  // namespace

std::span<const Operator> rope_operators() {
  static constexpr Operator kOperators[] = {{"graft.rope", refuse_rope, rope_shape, lower_rope},
                                            {"graft.rope_at", refuse_rope_at, rope_at_shape, lower_rope_at}};
  return kOperators;
}

}  // namespace graft
