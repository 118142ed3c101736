// Activation functions and clamps.
#include <limits>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/common.h"

namespace graft {
namespace {

using simd::ElementwiseOp;
using simd::Number;

constexpr ElementwiseSpec one(ElementwiseOp op, void (*params)(const Call&, Number*) = nullptr) {
  return {op, {"self"}, ComputeRule::output, params};
}

void take_elu(const Call& call, Number* params) {
  params[0].f = call.real("alpha");
  params[1].f = call.real("scale");
  params[2].f = call.real("input_scale");
}
void take_slope(const Call& call, Number* params) { params[0].f = call.real("negative_slope"); }
void take_softplus(const Call& call, Number* params) {
  params[0].f = call.real("beta");
  params[1].f = call.real("threshold");
}

constexpr ElementwiseSpec kSigmoid = one(ElementwiseOp::sigmoid);
constexpr ElementwiseSpec kRelu = one(ElementwiseOp::relu);
constexpr ElementwiseSpec kSilu = one(ElementwiseOp::silu);
constexpr ElementwiseSpec kGeluErf = one(ElementwiseOp::gelu_erf);
constexpr ElementwiseSpec kGeluTanh = one(ElementwiseOp::gelu_tanh);
constexpr ElementwiseSpec kElu = one(ElementwiseOp::elu, take_elu);
constexpr ElementwiseSpec kLeakyRelu = one(ElementwiseOp::leaky_relu, take_slope);
constexpr ElementwiseSpec kHardsigmoid = one(ElementwiseOp::hardsigmoid);
constexpr ElementwiseSpec kHardswish = one(ElementwiseOp::hardswish);
constexpr ElementwiseSpec kMish = one(ElementwiseOp::mish);
constexpr ElementwiseSpec kSoftplus = one(ElementwiseOp::softplus, take_softplus);

Refusal refuse_gelu(const NodeView& node) {
  const std::string& kind = node.arg("approximate").s;
  if (kind != "none" && kind != "tanh") return str("approximate: expected 'none' or 'tanh', got '", kind, "'");
  return refuse_spec(kGeluErf, node);
}
std::vector<Tensor> lower_gelu(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const bool by_tanh = call.text("approximate") == "tanh";
  return lower_spec(by_tanh ? kGeluTanh : kGeluErf, call, shapes, lowering);
}

// --- clamps: each bound a tensor, a number or absent ---

constexpr std::string_view kClampOperands[] = {"self", "min", "max"};

Refusal refuse_clamp(const NodeView& node) {
  for (const std::string_view name : kClampOperands) {
    if (!node.is_tensor(name)) continue;
    if (Refusal r = refuse_rank_of(node.tensor(name)); !r.empty()) return r;
  }
  return refuse_elementwise(ElementwiseOp::clamp, node.output().dtype);
}

std::vector<Shape> shape_clamp(const Call& call) {
  Shape shape;
  for (const std::string_view name : kClampOperands)
    if (call.is_tensor(name)) shape = broadcast_shapes(shape, call.tensor(name).shape());
  return {shape};
}

Tensor emit_clamp(Lowering& lowering, const Call& call, const Binding& low, const Binding& high, bool has_low,
                  bool has_high, const Shape& shape) {
  const Binding self{call.tensor("self"), {}};
  Elementwise what;
  what.compute = what.output = call.output_dtype();
  if (has_low && has_high) {
    what.op = ElementwiseOp::clamp;
    return emit(lowering, what, std::array{self, low, high}, shape);
  }
  what.op = has_low ? ElementwiseOp::maximum : ElementwiseOp::minimum;
  return emit(lowering, what, std::array{self, has_low ? low : high}, shape);
}

std::vector<Tensor> lower_clamp(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const bool has_low = call.has("min");
  const bool has_high = call.has("max");
  GRAFT_CHECK(InvalidArgument, has_low || has_high, "at least one of 'min' or 'max' must not be None");
  return {emit_clamp(lowering, call, has_low ? operand(call, "min") : Binding{},
                     has_high ? operand(call, "max") : Binding{}, has_low, has_high, shapes[0])};
}

std::vector<Tensor> lower_hardtanh(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  return {emit_clamp(lowering, call, operand(call, "min_val"), operand(call, "max_val"), true, true, shapes[0])};
}

std::vector<Tensor> lower_relu6(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Binding low{{}, Scalar::of(std::int64_t{0})};
  const Binding high{{}, Scalar::of(std::int64_t{6})};
  return {emit_clamp(lowering, call, low, high, true, true, shapes[0])};
}

// --- dropout of an exported model: the identity ---

Refusal refuse_dropout(const NodeView& node) {
  const bool off = node.constant("train") == 0 || node.arg("p").f == 0;
  if (!off && node.has("train")) return "dropout in training mode";
  return refuse_rank_of(node.tensor("input"));
}
std::vector<Shape> shape_dropout(const Call& call) {
  return std::vector<Shape>(call.output_count(), call.tensor("input").shape());
}
std::vector<Tensor> lower_dropout(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  std::vector<Tensor> results{call.tensor("input")};
  if (shapes.size() > 1) results.push_back(lowering.full(call.output_dtype(1), shapes[1], Scalar::of(true)));
  return results;
}

const Operator kOperators[] = {
    elementwise_operator<kSigmoid>("aten.sigmoid.default"),
    elementwise_operator<kRelu>("aten.relu.default"),
    elementwise_operator<kSilu>("aten.silu.default", true),
    {"aten.gelu.default", refuse_gelu, shape_of_self, lower_gelu, true},
    elementwise_operator<kElu>("aten.elu.default", true),
    elementwise_operator<kLeakyRelu>("aten.leaky_relu.default", true),
    elementwise_operator<kHardsigmoid>("aten.hardsigmoid.default", true),
    elementwise_operator<kHardswish>("aten.hardswish.default", true),
    elementwise_operator<kMish>("aten.mish.default", true),
    elementwise_operator<kSoftplus>("aten.softplus.default", true),
    {"aten.hardtanh.default", refuse_clamp, shape_of_self, lower_hardtanh, true},
    {"aten.relu6.default", refuse_clamp, shape_of_self, lower_relu6},
    {"aten.clamp.default", refuse_clamp, shape_clamp, lower_clamp},
    {"aten.clamp.Tensor", refuse_clamp, shape_clamp, lower_clamp},
    {"aten.clamp_min.default", refuse_clamp, shape_clamp, lower_clamp, true},
    {"aten.clamp_min.Tensor", refuse_clamp, shape_clamp, lower_clamp, true},
    {"aten.clamp_max.default", refuse_clamp, shape_clamp, lower_clamp, true},
    {"aten.clamp_max.Tensor", refuse_clamp, shape_clamp, lower_clamp, true},
    {"aten.dropout.default", refuse_dropout, shape_dropout, lower_dropout},
    {"aten.native_dropout.default", refuse_dropout, shape_dropout, lower_dropout},
};

}  // namespace

std::span<const Operator> activation_operators() { return kOperators; }

}  // namespace graft
