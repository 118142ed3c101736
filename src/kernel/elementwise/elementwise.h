#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kernel/elementwise/elementwise_vec.h"
#include "kernel/kernel.h"

// The kernels of the strided elementwise engine and their attributes. All take operands of any strides up to rank 8.
namespace graft {

// inputs {from}, outputs {to}: `from` has the shape of `to` or broadcasts to it; dtypes may differ and are converted as
// by PyTorch's `to`. No attributes.
extern const Kernel kCopy;

// outputs {to}: every element becomes the number. Integers and bool take `i`, floats take `f`.
struct FillAttrs {
  std::int64_t i = 0;
  double f = 0;
};
extern const Kernel kFill;

// outputs {to}, rank 1: element k is start + k * step, computed in int64 when the output is an integer, else in double.
struct ArangeAttrs {
  simd::Number start;
  simd::Number step;
};
extern const Kernel kArange;

// outputs {to}; inputs: the operands of `op` in order, each of the shape of `to` or broadcast to it, except those whose
// bit is set in `immediate_mask`: these are the numbers immediates[operand]. Operands are converted to `compute`
// before, the result to the output's dtype after. Fails the run on an integer division by zero.
struct ElementwiseAttrs {
  simd::ElementwiseOp op{};
  simd::BlockClass compute = simd::BlockClass::f32;
  std::uint32_t immediate_mask = 0;
  simd::Number immediates[3];
  simd::Number params[3];
};
extern const Kernel kElementwise;

// outputs {to}; inputs: at most kMaxChainInputs tensors, each of the shape of `to` or broadcast to it. Computes the
// same numbers as a launch of kElementwise per step, each into a tensor of the shape and dtype `result`, the last one
// into `to`, but in blocks that stay in the first-level cache. `to` may be one of the inputs.
inline constexpr int kMaxChainSteps = 10;
inline constexpr int kMaxChainInputs = 7;
inline constexpr int kMaxChainImmediates = 8;  // in all steps together
struct ChainStep {
  ElementwiseAttrs what;
  // For each operand that is not an immediate: the input, or kMaxChainInputs + the earlier step whose result it is.
  std::array<std::int32_t, 3> from{};
  DType result = DType::f32;
};
struct ElementwiseChainAttrs {
  std::int32_t inputs = 0;
  std::int32_t steps = 0;
  std::array<ChainStep, kMaxChainSteps> step{};
};
extern const Kernel kElementwiseChain;

// The operators of a chain: "mul, add, tanh".
std::string chain_text(const ElementwiseChainAttrs& chain);

}  // namespace graft
