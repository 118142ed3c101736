#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "kernel/conv/conv.h"

// Which inputs the outputs of a convolution see along one spatial dimension.
namespace graft {

// Outputs first + t * out_step for t in [0, count); tap j of [0, taps) is element tap_first + j * tap_step of the
// weight and multiplies input t * step + offset + j * offset_step, where that is in [0, in).
//
// A convolution has one axis per dimension. A transposed one of stride s has s of them, one per remainder of the output
// index: within one, a tap multiplies an input for every output or for none.
struct ConvAxis {
  std::int64_t in = 0;
  std::int64_t first = 0, out_step = 1, count = 0;
  std::int64_t taps = 0, tap_first = 0, tap_step = 1;
  std::int64_t step = 1, offset = 0, offset_step = 1;
};

// The axis of spatial dimension `dim` (0 .. 2); `remainder` is 0 unless transposed.
inline ConvAxis conv_axis(const TensorDesc& x, const TensorDesc& weight, const TensorDesc& out, const ConvAttrs& attrs,
                          int dim, std::int64_t remainder) {
  const std::int64_t stride = attrs.stride[dim], padding = attrs.padding[dim], dilation = attrs.dilation[dim];
  const std::int64_t kernel = weight.shape[2 + dim];
  ConvAxis axis;
  axis.in = x.shape[2 + dim];
  if (attrs.transposed == 0) {
    axis.count = out.shape[2 + dim];
    axis.taps = kernel;
    axis.step = stride;
    axis.offset = -padding;
    axis.offset_step = dilation;
    return axis;
  }
  axis.first = remainder;
  axis.out_step = stride;
  axis.count = std::max<std::int64_t>((out.shape[2 + dim] - remainder + stride - 1) / stride, 0);
  // Output o gets tap k of input i where o = i * stride - padding + k * dilation.
  axis.tap_step = stride / std::gcd(stride, dilation);
  const std::int64_t start = remainder + padding;
  const std::int64_t candidates = std::min(axis.tap_step, kernel);
  while (axis.tap_first < candidates && (start - axis.tap_first * dilation) % stride != 0) ++axis.tap_first;
  if (axis.tap_first == candidates) return axis;
  axis.taps = (kernel - axis.tap_first + axis.tap_step - 1) / axis.tap_step;
  axis.offset = (start - axis.tap_first * dilation) / stride;
  axis.offset_step = -(axis.tap_step * dilation / stride);
  return axis;
}

// The positions t in [0, count) whose input t * step + offset is in [0, in): [low, high).
struct ConvRange {
  std::int64_t low, high;
};
inline ConvRange conv_inside(std::int64_t offset, std::int64_t step, std::int64_t in, std::int64_t count) {
  const std::int64_t low = offset >= 0 ? 0 : (-offset + step - 1) / step;
  const std::int64_t high = offset >= in ? 0 : (in - 1 - offset) / step + 1;
  const std::int64_t end = std::min(high, count);
  return {std::min(low, end), end};
}

}  // namespace graft
