// Comparisons, logic, bits and selection.
#include "lowering/lowering.h"
#include "op/common.h"

namespace graft {
namespace {

using simd::ElementwiseOp;

constexpr ElementwiseSpec compare(ElementwiseOp op) { return {op, {"self", "other"}, ComputeRule::promoted}; }
constexpr ElementwiseSpec logical(ElementwiseOp op) { return {op, {"self", "other"}, ComputeRule::logical}; }
constexpr ElementwiseSpec bits(ElementwiseOp op) { return {op, {"self", "other"}}; }

constexpr ElementwiseSpec kEq = compare(ElementwiseOp::eq);
constexpr ElementwiseSpec kNe = compare(ElementwiseOp::ne);
constexpr ElementwiseSpec kLt = compare(ElementwiseOp::lt);
constexpr ElementwiseSpec kLe = compare(ElementwiseOp::le);
constexpr ElementwiseSpec kGt = compare(ElementwiseOp::gt);
constexpr ElementwiseSpec kGe = compare(ElementwiseOp::ge);
constexpr ElementwiseSpec kIsnan{ElementwiseOp::isnan, {"self"}, ComputeRule::promoted};
constexpr ElementwiseSpec kIsinf{ElementwiseOp::isinf, {"self"}, ComputeRule::promoted};
constexpr ElementwiseSpec kIsfinite{ElementwiseOp::isfinite, {"self"}, ComputeRule::promoted};
constexpr ElementwiseSpec kLogicalNot{ElementwiseOp::logical_not, {"self"}, ComputeRule::logical};
constexpr ElementwiseSpec kLogicalAnd = logical(ElementwiseOp::logical_and);
constexpr ElementwiseSpec kLogicalOr = logical(ElementwiseOp::logical_or);
constexpr ElementwiseSpec kLogicalXor = logical(ElementwiseOp::logical_xor);
constexpr ElementwiseSpec kBitwiseNot{ElementwiseOp::bitwise_not, {"self"}};
constexpr ElementwiseSpec kBitwiseAnd = bits(ElementwiseOp::bitwise_and);
constexpr ElementwiseSpec kBitwiseOr = bits(ElementwiseOp::bitwise_or);
constexpr ElementwiseSpec kBitwiseXor = bits(ElementwiseOp::bitwise_xor);
constexpr ElementwiseSpec kShiftLeft = bits(ElementwiseOp::shift_left);
constexpr ElementwiseSpec kShiftRight = bits(ElementwiseOp::shift_right);
constexpr ElementwiseSpec kWhere{ElementwiseOp::where, {"condition", "self", "other"}};
constexpr ElementwiseSpec kMaskedFill{ElementwiseOp::where, {"mask", "value", "self"}};

const Operator kOperators[] = {
    elementwise_operator<kEq>("aten.eq.Tensor"),
    elementwise_operator<kEq>("aten.eq.Scalar"),
    elementwise_operator<kNe>("aten.ne.Tensor"),
    elementwise_operator<kNe>("aten.ne.Scalar"),
    elementwise_operator<kLt>("aten.lt.Tensor"),
    elementwise_operator<kLt>("aten.lt.Scalar"),
    elementwise_operator<kLe>("aten.le.Tensor"),
    elementwise_operator<kLe>("aten.le.Scalar"),
    elementwise_operator<kGt>("aten.gt.Tensor"),
    elementwise_operator<kGt>("aten.gt.Scalar"),
    elementwise_operator<kGe>("aten.ge.Tensor"),
    elementwise_operator<kGe>("aten.ge.Scalar"),
    elementwise_operator<kIsnan>("aten.isnan.default"),
    elementwise_operator<kIsinf>("aten.isinf.default"),
    elementwise_operator<kIsfinite>("aten.isfinite.default"),
    elementwise_operator<kLogicalNot>("aten.logical_not.default"),
    elementwise_operator<kLogicalAnd>("aten.logical_and.default"),
    elementwise_operator<kLogicalOr>("aten.logical_or.default"),
    elementwise_operator<kLogicalXor>("aten.logical_xor.default"),
    elementwise_operator<kBitwiseNot>("aten.bitwise_not.default"),
    elementwise_operator<kBitwiseAnd>("aten.bitwise_and.Tensor"),
    elementwise_operator<kBitwiseAnd>("aten.bitwise_and.Scalar"),
    elementwise_operator<kBitwiseAnd>("aten.bitwise_and.Scalar_Tensor"),
    elementwise_operator<kBitwiseOr>("aten.bitwise_or.Tensor"),
    elementwise_operator<kBitwiseOr>("aten.bitwise_or.Scalar"),
    elementwise_operator<kBitwiseOr>("aten.bitwise_or.Scalar_Tensor"),
    elementwise_operator<kBitwiseXor>("aten.bitwise_xor.Tensor"),
    elementwise_operator<kBitwiseXor>("aten.bitwise_xor.Scalar"),
    elementwise_operator<kBitwiseXor>("aten.bitwise_xor.Scalar_Tensor"),
    elementwise_operator<kShiftLeft>("aten.bitwise_left_shift.Tensor"),
    elementwise_operator<kShiftLeft>("aten.bitwise_left_shift.Tensor_Scalar"),
    elementwise_operator<kShiftLeft>("aten.bitwise_left_shift.Scalar_Tensor"),
    elementwise_operator<kShiftLeft>("aten.__lshift__.Tensor"),
    elementwise_operator<kShiftLeft>("aten.__lshift__.Scalar"),
    elementwise_operator<kShiftRight>("aten.bitwise_right_shift.Tensor"),
    elementwise_operator<kShiftRight>("aten.bitwise_right_shift.Tensor_Scalar"),
    elementwise_operator<kShiftRight>("aten.bitwise_right_shift.Scalar_Tensor"),
    elementwise_operator<kShiftRight>("aten.__rshift__.Tensor"),
    elementwise_operator<kShiftRight>("aten.__rshift__.Scalar"),
    elementwise_operator<kWhere>("aten.where.self"),
    elementwise_operator<kWhere>("aten.where.ScalarOther"),
    elementwise_operator<kWhere>("aten.where.ScalarSelf"),
    elementwise_operator<kWhere>("aten.where.Scalar"),
    elementwise_operator<kMaskedFill>("aten.masked_fill.Scalar", true),
    elementwise_operator<kMaskedFill>("aten.masked_fill.Tensor", true),
};

}  // namespace

std::span<const Operator> logic_operators() { return kOperators; }

}  // namespace graft
