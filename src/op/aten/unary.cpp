// Functions of one operand.
#include <cmath>
#include <cstdlib>

#include "op/common.h"

namespace graft {
namespace {

using simd::ElementwiseOp;
using simd::Number;

constexpr ElementwiseSpec one(ElementwiseOp op) { return {op, {"self"}}; }

constexpr ElementwiseSpec kNeg = one(ElementwiseOp::neg);
constexpr ElementwiseSpec kAbs = one(ElementwiseOp::abs);
constexpr ElementwiseSpec kSign = one(ElementwiseOp::sign);
constexpr ElementwiseSpec kExp = one(ElementwiseOp::exp);
constexpr ElementwiseSpec kExp2 = one(ElementwiseOp::exp2);
constexpr ElementwiseSpec kExpm1 = one(ElementwiseOp::expm1);
constexpr ElementwiseSpec kLog = one(ElementwiseOp::log);
constexpr ElementwiseSpec kLog1p = one(ElementwiseOp::log1p);
constexpr ElementwiseSpec kLog2 = one(ElementwiseOp::log2);
constexpr ElementwiseSpec kLog10 = one(ElementwiseOp::log10);
constexpr ElementwiseSpec kSqrt = one(ElementwiseOp::sqrt);
constexpr ElementwiseSpec kRsqrt = one(ElementwiseOp::rsqrt);
constexpr ElementwiseSpec kReciprocal = one(ElementwiseOp::reciprocal);
constexpr ElementwiseSpec kSquare = one(ElementwiseOp::square);
constexpr ElementwiseSpec kSin = one(ElementwiseOp::sin);
constexpr ElementwiseSpec kCos = one(ElementwiseOp::cos);
constexpr ElementwiseSpec kTan = one(ElementwiseOp::tan);
constexpr ElementwiseSpec kAsin = one(ElementwiseOp::asin);
constexpr ElementwiseSpec kAcos = one(ElementwiseOp::acos);
constexpr ElementwiseSpec kAtan = one(ElementwiseOp::atan);
constexpr ElementwiseSpec kSinh = one(ElementwiseOp::sinh);
constexpr ElementwiseSpec kCosh = one(ElementwiseOp::cosh);
constexpr ElementwiseSpec kTanh = one(ElementwiseOp::tanh);
constexpr ElementwiseSpec kAsinh = one(ElementwiseOp::asinh);
constexpr ElementwiseSpec kAcosh = one(ElementwiseOp::acosh);
constexpr ElementwiseSpec kAtanh = one(ElementwiseOp::atanh);
constexpr ElementwiseSpec kErf = one(ElementwiseOp::erf);
constexpr ElementwiseSpec kErfc = one(ElementwiseOp::erfc);
constexpr ElementwiseSpec kErfinv = one(ElementwiseOp::erfinv);
constexpr ElementwiseSpec kFloor = one(ElementwiseOp::floor);
constexpr ElementwiseSpec kCeil = one(ElementwiseOp::ceil);
constexpr ElementwiseSpec kTrunc = one(ElementwiseOp::trunc);
constexpr ElementwiseSpec kRound = one(ElementwiseOp::round);
constexpr ElementwiseSpec kFrac = one(ElementwiseOp::frac);

void take_decimals(const Call& call, Number* params) {
  const std::int64_t decimals = call.integer("decimals");
  params[0].f = std::pow(10.0, static_cast<double>(std::abs(decimals)));
  params[1].f = decimals < 0 ? 1 : 0;
}
constexpr ElementwiseSpec kRoundDecimals{ElementwiseOp::round_decimals, {"self"}, ComputeRule::output, take_decimals};

const Operator kOperators[] = {
    elementwise_operator<kNeg>("aten.neg.default"),
    elementwise_operator<kAbs>("aten.abs.default"),
    elementwise_operator<kSign>("aten.sign.default"),
    elementwise_operator<kSign>("aten.sgn.default"),
    elementwise_operator<kExp>("aten.exp.default"),
    elementwise_operator<kExp2>("aten.exp2.default"),
    elementwise_operator<kExpm1>("aten.expm1.default"),
    elementwise_operator<kLog>("aten.log.default"),
    elementwise_operator<kLog1p>("aten.log1p.default"),
    elementwise_operator<kLog2>("aten.log2.default"),
    elementwise_operator<kLog10>("aten.log10.default"),
    elementwise_operator<kSqrt>("aten.sqrt.default"),
    elementwise_operator<kRsqrt>("aten.rsqrt.default"),
    elementwise_operator<kReciprocal>("aten.reciprocal.default"),
    elementwise_operator<kSquare>("aten.square.default"),
    elementwise_operator<kSin>("aten.sin.default"),
    elementwise_operator<kCos>("aten.cos.default"),
    elementwise_operator<kTan>("aten.tan.default"),
    elementwise_operator<kAsin>("aten.asin.default"),
    elementwise_operator<kAcos>("aten.acos.default"),
    elementwise_operator<kAtan>("aten.atan.default"),
    elementwise_operator<kSinh>("aten.sinh.default"),
    elementwise_operator<kCosh>("aten.cosh.default"),
    elementwise_operator<kTanh>("aten.tanh.default"),
    elementwise_operator<kAsinh>("aten.asinh.default"),
    elementwise_operator<kAcosh>("aten.acosh.default"),
    elementwise_operator<kAtanh>("aten.atanh.default"),
    elementwise_operator<kErf>("aten.erf.default"),
    elementwise_operator<kErfc>("aten.erfc.default"),
    elementwise_operator<kErfinv>("aten.erfinv.default"),
    elementwise_operator<kFloor>("aten.floor.default"),
    elementwise_operator<kCeil>("aten.ceil.default"),
    elementwise_operator<kTrunc>("aten.trunc.default"),
    elementwise_operator<kRound>("aten.round.default"),
    elementwise_operator<kRoundDecimals>("aten.round.decimals"),
    elementwise_operator<kFrac>("aten.frac.default", true),
};

}  // namespace

std::span<const Operator> unary_operators() { return kOperators; }

}  // namespace graft
