// Arithmetic on two or three operands, with tensors or numbers on either side.
#include <cmath>

#include "base/check.h"
#include "lowering/lowering.h"
#include "op/common.h"

namespace graft {
namespace {

using simd::ElementwiseOp;
using simd::Number;

Number number(const Scalar& s) { return {s.to_double(), s.to_integer()}; }

template <std::size_t kSlot>
void take(const Call& call, std::string_view name, Number* params) {
  if (call.has(name)) params[kSlot] = number(call.scalar(name));
}
void take_alpha(const Call& call, Number* params) { take<0>(call, "alpha", params); }
void take_value(const Call& call, Number* params) { take<0>(call, "value", params); }

constexpr ElementwiseSpec two(ElementwiseOp op, bool opmath = false) {
  return {op, {"self", "other"}, ComputeRule::output, nullptr, opmath};
}

constexpr ElementwiseSpec kAdd{ElementwiseOp::add, {"self", "other"}, ComputeRule::output, take_alpha, true};
constexpr ElementwiseSpec kSub{ElementwiseOp::sub, {"self", "other"}, ComputeRule::output, take_alpha, true};
constexpr ElementwiseSpec kRsub{ElementwiseOp::sub, {"other", "self"}, ComputeRule::output, take_alpha, true};
constexpr ElementwiseSpec kMul = two(ElementwiseOp::mul, true);
constexpr ElementwiseSpec kDiv = two(ElementwiseOp::div, true);
constexpr ElementwiseSpec kFloorDivide = two(ElementwiseOp::div_floor, true);
constexpr ElementwiseSpec kRemainder = two(ElementwiseOp::remainder);
constexpr ElementwiseSpec kFmod = two(ElementwiseOp::fmod);
constexpr ElementwiseSpec kMaximum = two(ElementwiseOp::maximum);
constexpr ElementwiseSpec kMinimum = two(ElementwiseOp::minimum);
constexpr ElementwiseSpec kFmax = two(ElementwiseOp::fmax);
constexpr ElementwiseSpec kFmin = two(ElementwiseOp::fmin);
constexpr ElementwiseSpec kAtan2 = two(ElementwiseOp::atan2);
constexpr ElementwiseSpec kHypot = two(ElementwiseOp::hypot);
constexpr ElementwiseSpec kCopysign = two(ElementwiseOp::copysign);
constexpr ElementwiseSpec kAddcmul{
    ElementwiseOp::addcmul, {"self", "tensor1", "tensor2"}, ComputeRule::output, take_value};
constexpr ElementwiseSpec kAddcdiv{
    ElementwiseOp::addcdiv, {"self", "tensor1", "tensor2"}, ComputeRule::output, take_value};
constexpr ElementwiseSpec kLerp{ElementwiseOp::lerp, {"self", "end", "weight"}, ComputeRule::output, nullptr, true};
// A negative exponent in a tensor of integers gives 0, 1 or -1; as a number it is refused before.
void allow_negative(const Call&, Number* params) { params[0] = {}; }
constexpr ElementwiseSpec kPow{ElementwiseOp::pow, {"self", "exponent"}, ComputeRule::output, allow_negative};

// A function of one tensor computed in the dtype of its result.
Tensor emit_one(Lowering& lowering, ElementwiseOp op, DType dtype, const Tensor& x) {
  return emit(lowering, {op, dtype, dtype, {}, false}, std::array{Binding{x, {}}}, x.shape());
}

// --- div with a rounding mode ---

constexpr ElementwiseSpec kDivTrunc = two(ElementwiseOp::div_trunc, true);

Refusal refuse_div_mode(const NodeView& node) {
  if (!node.has("rounding_mode")) return refuse_spec(kDiv, node);
  const std::string_view mode = node.arg("rounding_mode").s;
  if (mode == "floor") return refuse_spec(kFloorDivide, node);
  if (mode == "trunc") return refuse_spec(kDivTrunc, node);
  return str("rounding_mode: expected None, 'trunc' or 'floor', got '", mode, "'");
}

std::vector<Tensor> lower_div_mode(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  if (!call.has("rounding_mode")) return lower_spec(kDiv, call, shapes, lowering);
  if (call.text("rounding_mode") == "floor") return lower_spec(kFloorDivide, call, shapes, lowering);
  const DType dtype = call.output_dtype();
  const std::array operands{operand(call, "self"), operand(call, "other")};
  const bool by_number = !operands[1].tensor || operands[1].tensor->numel() == 1;
  if ((dtype != DType::f16 && dtype != DType::bf16) || by_number) return lower_spec(kDivTrunc, call, shapes, lowering);
  // PyTorch rounds the quotient of two tensors to half precision before it truncates.
  const Tensor quotient = emit(lowering, {ElementwiseOp::div, dtype, dtype, {}, false}, operands, shapes[0]);
  return {emit_one(lowering, ElementwiseOp::trunc, dtype, quotient)};
}

std::vector<Shape> shape_two(const Call& call) { return shape_of_spec(kDiv, call); }

// --- pow with a number as exponent: PyTorch computes the common ones without pow ---

std::vector<Tensor> lower_pow_scalar(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& self = call.tensor("self");
  const Scalar exponent = call.scalar("exponent");
  const DType dtype = call.output_dtype();
  const double e = exponent.to_double();
  if (e == 1 && self.dtype() == dtype) return {self};
  if (!is_float(dtype)) {
    GRAFT_CHECK(InvalidArgument, e >= 0, "Integers to negative integer powers are not allowed.");
    return lower_spec(kPow, call, shapes, lowering);
  }
  if (e == 2) return {emit_one(lowering, ElementwiseOp::square, dtype, self)};
  if (e == 0.5) return {emit_one(lowering, ElementwiseOp::sqrt, dtype, self)};
  if (e == -0.5) return {emit_one(lowering, ElementwiseOp::rsqrt, dtype, self)};
  if (e == -1) return {emit_one(lowering, ElementwiseOp::reciprocal, dtype, self)};
  // Only where the square is not rounded to half precision before use.
  if (e == 3 && (dtype == DType::f32 || dtype == DType::f64) && self.dtype() == dtype) {
    const Tensor squared = emit_one(lowering, ElementwiseOp::square, dtype, self);
    return {emit(lowering, {ElementwiseOp::mul, dtype, dtype, {}, false},
                 std::array{Binding{squared, {}}, Binding{self, {}}}, self.shape())};
  }
  return lower_spec(kPow, call, shapes, lowering);
}

Refusal refuse_pow(const NodeView& node) { return refuse_spec(kPow, node); }
std::vector<Shape> shape_pow(const Call& call) { return shape_of_spec(kPow, call); }

const Operator kOperators[] = {
    elementwise_operator<kAdd>("aten.add.Tensor"),
    elementwise_operator<kAdd>("aten.add.Scalar"),
    elementwise_operator<kSub>("aten.sub.Tensor"),
    elementwise_operator<kSub>("aten.sub.Scalar"),
    elementwise_operator<kRsub>("aten.rsub.Tensor", true),
    elementwise_operator<kRsub>("aten.rsub.Scalar", true),
    elementwise_operator<kMul>("aten.mul.Tensor"),
    elementwise_operator<kMul>("aten.mul.Scalar"),
    elementwise_operator<kDiv>("aten.div.Tensor"),
    elementwise_operator<kDiv>("aten.div.Scalar"),
    {"aten.div.Tensor_mode", refuse_div_mode, shape_two, lower_div_mode},
    {"aten.div.Scalar_mode", refuse_div_mode, shape_two, lower_div_mode},
    elementwise_operator<kFloorDivide>("aten.floor_divide.default", true),
    elementwise_operator<kFloorDivide>("aten.floor_divide.Scalar", true),
    elementwise_operator<kRemainder>("aten.remainder.Tensor"),
    elementwise_operator<kRemainder>("aten.remainder.Scalar"),
    elementwise_operator<kRemainder>("aten.remainder.Scalar_Tensor"),
    elementwise_operator<kFmod>("aten.fmod.Tensor"),
    elementwise_operator<kFmod>("aten.fmod.Scalar"),
    elementwise_operator<kPow>("aten.pow.Tensor_Tensor"),
    {"aten.pow.Tensor_Scalar", refuse_pow, shape_pow, lower_pow_scalar},
    elementwise_operator<kPow>("aten.pow.Scalar"),
    elementwise_operator<kMaximum>("aten.maximum.default"),
    elementwise_operator<kMinimum>("aten.minimum.default"),
    elementwise_operator<kFmax>("aten.fmax.default"),
    elementwise_operator<kFmin>("aten.fmin.default"),
    elementwise_operator<kAtan2>("aten.atan2.default"),
    elementwise_operator<kHypot>("aten.hypot.default"),
    elementwise_operator<kCopysign>("aten.copysign.Tensor"),
    elementwise_operator<kCopysign>("aten.copysign.Scalar"),
    elementwise_operator<kAddcmul>("aten.addcmul.default", true),
    elementwise_operator<kAddcdiv>("aten.addcdiv.default", true),
    elementwise_operator<kLerp>("aten.lerp.Tensor", true),
    elementwise_operator<kLerp>("aten.lerp.Scalar", true),
};

}  // namespace

std::span<const Operator> arithmetic_operators() { return kOperators; }

}  // namespace graft
