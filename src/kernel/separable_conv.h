#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/packed_conv.h"

// A depthwise convolution with the convolution before it and the pointwise one after it, in one launch by bands of
// lines: what lies between them never is in memory as a whole. With a pointwise one before it is the inverted residual
// of MobileNetV2 (Sandler et al., 2018), with none the depthwise separable convolution. The sums are those of the three
// launches, up to the order in which tiles of few positions add.
namespace graft {

// Planar: the depth of kernels and input is 1. `expand`: any convolution of one group. Of `project` only what happens
// to a sum is read: has_bias, has_residual, activation and clamps. The others have no residual.
//
// Inputs: x [N, C, 1, H, W] of any strides (without expand: channels beside each other), then of each of expand,
// depthwise and project that is there its packed weight, its bias [O] where it has one, its residual where it has one.
// Output [N, O, 1, H', W'], channels last.
struct SeparableConvAttrs {
  PackedConvAttrs expand, depthwise, project;
  std::int32_t has_expand = 0, has_project = 0;
  std::int64_t channels = 0, height = 0, width = 0;  // of what the depthwise convolution reads
};
extern const Kernel kSeparableConv;

std::int64_t separable_conv_scratch_bytes(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs,
                                          int threads);

// The same with the loops of a given level.
void run_separable_conv(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;

}  // namespace graft
