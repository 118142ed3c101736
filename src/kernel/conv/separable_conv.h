#pragma once

#include <cstdint>

#include "kernel/conv/packed_conv.h"
#include "kernel/conv/separable.h"
#include "kernel/fusion.h"
#include "kernel/kernel.h"

// A depthwise convolution with the convolution before it and the pointwise one after it, in one launch by bands of
// lines: what lies between them never is in memory as a whole. With a pointwise one before it is the inverted residual
// of MobileNetV2 (Sandler et al., 2018), with none the depthwise separable convolution. The sums are those of the three
// launches, up to the order in which tiles of few positions add.
namespace graft {

// Of `project` has_bias, has_residual, activation and clamps are read.
using SeparableConvAttrs = SeparableAttrs<PackedConvAttrs>;
extern const Kernel kSeparableConv;
// Of kPackedConv and kPackedDepthwiseConv.
extern const SeparableRule kSeparableRule;

// The same of small pictures and many channels, with a convolution before the depthwise one, whose input need not be
// laid out, and none after it: each share makes whole panels of channels. The sums are those of the two launches.
extern const Kernel kSeparableConvByPanels;
// Whether the convolution before the depthwise one can be part of such a launch.
bool expands_by_panels(const TensorDesc& x, const PackedConvAttrs& expand);

std::int64_t separable_conv_scratch_bytes(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs,
                                          int threads);

std::int64_t separable_panels_scratch_bytes(const TensorDesc& x, const TensorDesc& out, const SeparableConvAttrs& attrs,
                                            int threads);

// The same with the loops of a given level.
void run_separable_conv(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;
void run_separable_panels(const KernelContext& ctx, const simd::PackedConvTable& table) noexcept;

}  // namespace graft
