#pragma once

#include <cstdint>

#include "kernel/conv/packed_conv.h"
#include "kernel/conv/separable.h"
#include "kernel/fusion.h"
#include "kernel/kernel.h"

// A depthwise convolution with the convolution before it and the pointwise one after it, in one launch by bands of
// rows, so that the intermediates are never in memory as a whole. With a pointwise one before it this is the inverted
// residual of MobileNetV2 (Sandler et al., 2018), with none the depthwise separable convolution. Sums are those of the
// three launches, up to the order in which tiles with few positions add.
namespace graft {

// From `project`, has_bias, has_residual, activation and clamps are used.
using SeparableConvAttrs = SeparableAttrs<PackedConvAttrs>;
extern const Kernel kSeparableConv;
// The rule of kPackedConv and kPackedDepthwiseConv.
extern const SeparableRule kSeparableRule;

// For small images with many channels: the depthwise convolution with a convolution before it, whose input need not be
// copied, and none after it. Each task computes whole panels of channels. Sums are those of the two launches.
extern const Kernel kSeparableConvByPanels;
// Whether the convolution before the depthwise one fits such a launch.
bool expands_by_panels(const TensorDesc& x, const PackedConvAttrs& expand);

std::int64_t separable_conv_scratch_bytes(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs,
                                          int threads);

std::int64_t separable_panels_scratch_bytes(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs,
                                            int threads);

// With the inner loops of a given instruction set.
void run_separable_conv(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;
void run_separable_panels(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;

}  // namespace graft
