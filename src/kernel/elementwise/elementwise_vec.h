#pragma once

#include <cstdint>

#include "kernel/simd/dispatch.h"

// Block functions of the strided elementwise engine (kernel/strided.h): a few hundred elements of one compute class at
// a time. Vector sources include this header, so it holds plain types only.
namespace graft::simd {

// What a block holds. f32 computes for f32, f16 and bf16; f64 for f64; i64 for all integers and bool; b8 (bytes of
// value 0 or 1) for logic and conditions.
enum class BlockClass : std::uint8_t { f32, f64, i64, b8 };
inline constexpr int kBlockClassCount = 4;

// A number in the form that both real and integer blocks can use.
struct Number {
  double f = 0;
  std::int64_t i = 0;
};

// The result of a block function: success or a failure.
enum BlockStatus : int { kBlockOk = 0, kBlockZeroDivision = 1, kBlockNegativeExponent = 2 };

// in[k] and out: blocks of the classes that the op states, at least n elements; out may be in[k] itself.
// `params` are the attributes of the op (alpha, bounds, slopes). Returns a BlockStatus.
using BlockFn = int (*)(const void* const* in, void* out, std::int64_t n, const Number* params);

// Reads n elements `stride` bytes apart into a block, converted as PyTorch converts.
using LoadFn = void (*)(const void* src, std::int64_t stride, std::int64_t n, void* block);
// Writes a block to n elements `stride` bytes apart: integers wrap, floats round to nearest even.
using StoreFn = void (*)(const void* block, std::int64_t stride, std::int64_t n, void* dst);

// X(name, operands, result): result `c` is the class of the operands, `b` is b8. Attributes in the comment.
#define GRAFT_ELEMENTWISE_OPS(X)                                       \
  X(identity, 1, c)                                                    \
  X(neg, 1, c)                                                         \
  X(abs, 1, c)                                                         \
  X(sign, 1, c)                                                        \
  X(exp, 1, c)                                                         \
  X(exp2, 1, c)                                                        \
  X(expm1, 1, c)                                                       \
  X(log, 1, c)                                                         \
  X(log1p, 1, c)                                                       \
  X(log2, 1, c)                                                        \
  X(log10, 1, c)                                                       \
  X(sqrt, 1, c)                                                        \
  X(rsqrt, 1, c)                                                       \
  X(reciprocal, 1, c)                                                  \
  X(square, 1, c)                                                      \
  X(sin, 1, c)                                                         \
  X(cos, 1, c)                                                         \
  X(tan, 1, c)                                                         \
  X(asin, 1, c)                                                        \
  X(acos, 1, c)                                                        \
  X(atan, 1, c)                                                        \
  X(sinh, 1, c)                                                        \
  X(cosh, 1, c)                                                        \
  X(tanh, 1, c)                                                        \
  X(asinh, 1, c)                                                       \
  X(acosh, 1, c)                                                       \
  X(atanh, 1, c)                                                       \
  X(erf, 1, c)                                                         \
  X(erfc, 1, c)                                                        \
  X(erfinv, 1, c)                                                      \
  X(floor, 1, c)                                                       \
  X(ceil, 1, c)                                                        \
  X(trunc, 1, c)                                                       \
  X(round, 1, c)          /* half to even */                           \
  X(round_decimals, 1, c) /* {10^|decimals|}, {1 when decimals < 0} */ \
  X(frac, 1, c)                                                        \
  X(sigmoid, 1, c)                                                     \
  X(relu, 1, c)                                                        \
  X(silu, 1, c)                                                        \
  X(gelu_erf, 1, c)                                                    \
  X(gelu_tanh, 1, c)                                                   \
  X(elu, 1, c)        /* {alpha}, {scale}, {input_scale} */            \
  X(leaky_relu, 1, c) /* {slope} */                                    \
  X(hardsigmoid, 1, c)                                                 \
  X(hardswish, 1, c)                                                   \
  X(mish, 1, c)                                                        \
  X(softplus, 1, c) /* {beta}, {threshold} */                          \
  X(bitwise_not, 1, c)                                                 \
  X(isnan, 1, b)                                                       \
  X(isinf, 1, b)                                                       \
  X(isfinite, 1, b)                                                    \
  X(logical_not, 1, c)                                                 \
  X(add, 2, c) /* {alpha} */                                           \
  X(sub, 2, c) /* {alpha} */                                           \
  X(mul, 2, c)                                                         \
  X(div, 2, c)                                                         \
  X(div_trunc, 2, c)                                                   \
  X(div_floor, 2, c)                                                   \
  X(remainder, 2, c)                                                   \
  X(fmod, 2, c)                                                        \
  X(pow, 2, c) /* {1: a negative integer exponent is an error} */      \
  X(maximum, 2, c)                                                     \
  X(minimum, 2, c)                                                     \
  X(fmax, 2, c)                                                        \
  X(fmin, 2, c)                                                        \
  X(atan2, 2, c)                                                       \
  X(hypot, 2, c)                                                       \
  X(copysign, 2, c)                                                    \
  X(bitwise_and, 2, c)                                                 \
  X(bitwise_or, 2, c)                                                  \
  X(bitwise_xor, 2, c)                                                 \
  X(shift_left, 2, c)                                                  \
  X(shift_right, 2, c)                                                 \
  X(logical_and, 2, c)                                                 \
  X(logical_or, 2, c)                                                  \
  X(logical_xor, 2, c)                                                 \
  X(eq, 2, b)                                                          \
  X(ne, 2, b)                                                          \
  X(lt, 2, b)                                                          \
  X(le, 2, b)                                                          \
  X(gt, 2, b)                                                          \
  X(ge, 2, b)                                                          \
  X(where, 3, c) /* operand 0 is b8 */                                 \
  X(clamp, 3, c)                                                       \
  X(addcmul, 3, c) /* {value} */                                       \
  X(addcdiv, 3, c) /* {value} */                                       \
  X(lerp, 3, c)

enum class ElementwiseOp : std::uint8_t {
#define GRAFT_X(name, operands, result) name,
  GRAFT_ELEMENTWISE_OPS(GRAFT_X)
#undef GRAFT_X
      count_
};
inline constexpr int kElementwiseOpCount = static_cast<int>(ElementwiseOp::count_);

// One instruction set's functions; a null entry means that the op has no meaning in that class.
struct BlockFns {
  BlockFn of[kElementwiseOpCount];
};
struct ConvertFns {
  LoadFn load[kBlockClassCount][10];  // [class][DType]; i64 reads integers and bool only
  StoreFn store[kBlockClassCount][10];
};
struct ElementwiseTable {
  const BlockFns* block[kBlockClassCount];
  const ConvertFns* convert;

  BlockFn function(BlockClass c, ElementwiseOp op) const {
    return block[static_cast<int>(c)]->of[static_cast<int>(op)];
  }
};

GRAFT_TABLE("vec", ElementwiseTable, kElementwise, elementwise)

// "add", "gelu_erf", ...; number of operands; whether the result is b8 whatever the operands are.
const char* name(ElementwiseOp op);
int operand_count(ElementwiseOp op);
bool gives_bool(ElementwiseOp op);

}  // namespace graft::simd
