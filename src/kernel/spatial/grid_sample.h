#pragma once

#include <cstdint>

#include "kernel/kernel.h"

namespace graft {

// PyTorch's numbers.
enum class Interpolation : std::int32_t { linear, nearest, cubic };
enum class Outside : std::int32_t { zeros, border, reflection };
struct GridSampleAttrs {
  Interpolation interpolation = Interpolation::linear;
  Outside outside = Outside::zeros;
  std::int32_t align_corners = 0;
};
// inputs {image [N, C, H, W], grid [N, H', W', 2] of x and y in [-1, 1]}, outputs {[N, C, H', W']}: contiguous, all f32
// or all f64; H and W at least 1. A NaN position is outside the image.
extern const Kernel kGridSample;

}  // namespace graft
