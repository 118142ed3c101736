#pragma once

#include <cstdint>

#include "kernel/conv/packed_quantized_conv.h"
#include "kernel/conv/separable.h"
#include "kernel/fusion.h"
#include "kernel/kernel.h"

// kernel/conv/separable_conv.h in 8 bits: the output bytes are those of the separate launches.
namespace graft {

// `expanded` and `between` are i8 or u8.
using SeparableQuantizedConvAttrs = SeparableAttrs<PackedQuantizedConvAttrs>;
extern const Kernel kSeparableQuantizedConv;
// The rule of kPackedQuantizedConv and kPackedQuantizedDepthwiseConv.
extern const SeparableRule kSeparableQuantizedRule;

std::int64_t separable_quantized_conv_scratch_bytes(const TensorDesc& x, const TensorDesc& out,
                                                    const SeparableQuantizedConvAttrs& attrs, int threads);

// With the inner loops of a given instruction set.
void run_separable_quantized_conv(const KernelContext& ctx, const simd::QuantizedConvTable& table) noexcept;

}  // namespace graft
