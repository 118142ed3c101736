#pragma once

#include <cstdint>

#include "kernel/kernel.h"

// Changes of the spatial sizes of tensors [N, C, D, H, W]; contiguous, input and output of one dtype.
namespace graft {

// The values outside the input, per spatial dimension. Negative padding crops.
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
// f32 and f64: interpolates the four nearest elements.
extern const Kernel kBilinear;
// f32 and f64: interpolates the sixteen nearest elements; those outside are clamped to the border.
extern const Kernel kBicubic;

// inputs {columns [N, C * KH * KW, PH * PW]}, outputs {[N, C, H, W]}: every element of the output is the sum of the
// elements of all windows that cover it. f32 and f64.
struct Col2ImAttrs {
  std::int64_t kernel[2] = {1, 1};
  std::int64_t dilation[2] = {1, 1};
  std::int64_t padding[2] = {0, 0};
  std::int64_t stride[2] = {1, 1};
  std::int64_t windows[2] = {1, 1};  // PH, PW
};
extern const Kernel kCol2Im;

}  // namespace graft
