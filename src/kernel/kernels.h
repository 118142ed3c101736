#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/simd/elementwise.h"

// The kernels of the strided elementwise engine and their attributes. All take operands of any strides up to rank 8.
namespace graft {

// inputs {from}, outputs {to}: `from` has the shape of `to` or broadcasts to it; dtypes may differ and are converted as
// PyTorch's `to` converts. No attributes.
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

// outputs {to}; inputs: the operands of `op` in order, each of the shape of `to` or broadcast to it, but for those
// whose bit is set in `immediate_mask`: these are the numbers immediates[operand]. Operands are converted to `compute`
// before, and the result to the output's dtype after. Fails the run on an integer division by zero.
struct ElementwiseAttrs {
  simd::ElementwiseOp op{};
  simd::BlockClass compute = simd::BlockClass::f32;
  std::uint32_t immediate_mask = 0;
  simd::Number immediates[3];
  simd::Number params[3];
};
extern const Kernel kElementwise;

}  // namespace graft
