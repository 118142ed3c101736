#pragma once

#include <cstdint>

#include "kernel/kernel.h"

// Tensors [N, C, D, H, W] with other sizes of their spatial dimensions; contiguous, input and output of one dtype.
namespace graft {

// What lies outside the input, per spatial dimension. Negative padding cuts off.
enum class PadMode : std::int32_t { reflect, replicate };
struct MappedPadAttrs {
  std::int64_t before[3] = {0, 0, 0};
  PadMode mode = PadMode::reflect;
};
// Any dtype. Reflected padding is less than the size.
extern const Kernel kMappedPad;

// Along each of H and W, input = (output + 0.5) * scale - 0.5, or output * scale when corners are aligned; as PyTorch
// for floats, in f32 (f64 for f64). D is 1.
struct ResampleAttrs {
  double scale[2] = {1, 1};
  std::int32_t align_corners = 0;
};
// Any dtype: the element at floor(output * scale).
extern const Kernel kNearest;
// f32 and f64: between the four nearest.
extern const Kernel kBilinear;

}  // namespace graft
