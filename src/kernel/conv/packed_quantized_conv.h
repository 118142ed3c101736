#pragma once

#include <cstdint>

#include "kernel/conv/conv.h"
#include "kernel/conv/quantized_conv_vec.h"
#include "kernel/kernel.h"

// Convolutions of bytes, x = scale * (q - zero), with weights in 8 bits that are packed at load: not transposed, three
// spatial dimensions as in kernel/conv/conv.h. Their results lie channels last, as those of kernel/conv/packed_conv.h.
namespace graft {

// Weight [O, C / groups, KD, KH, KW] i8 without a zero, contiguous; with has_weight_scale its scale, f32 [O] or of one
// element; with conv.has_bias a bias f32 [O]. Output: u8 [packed_quantized_conv_bytes()]. The input's zero is already
// in the start of the sums, and its scale in the channels' scales.
struct PackQuantizedConvAttrs {
  ConvAttrs conv;
  float input_scale = 1;
  std::int32_t input_zero = 0;  // of the input as unsigned bytes, 0 .. 255
  std::int32_t has_weight_scale = 0;
  float weight_scale = 1;  // where no input holds it
};
extern const Kernel kPackQuantizedConv;
std::int64_t packed_quantized_conv_bytes(const Shape& weight, const ConvAttrs& conv);

// The longest sum that fits 32 bits, whatever the bytes are.
inline constexpr std::int64_t kLongestByteSum = 65536;

// Inputs: x [N, C, D, H, W] i8 or u8 of any strides (depthwise: channels beside each other); the packed weight; with
// has_residual a tensor of bytes [N, O, D', H', W'], channels beside each other and positions evenly apart. Output f32,
// or i8 or u8: quantized by first; with a residual, dequantized again, the residual added, and quantized by second.
// Zeros are those of the bytes as they are stored.
struct PackedQuantizedConvAttrs {
  ConvAttrs conv;
  std::int64_t kernel[3] = {1, 1, 1};
  std::int32_t input_zero = 0;  // what a padding holds
  simd::QuantizeTo first, second;
  std::int32_t zero = 0;  // of the output
  float scale = 1;        // of what `first` gives
  float residual_scale = 1;
  std::int32_t residual_zero = 0;
  std::int32_t has_residual = 0;
};
extern const Kernel kPackedQuantizedConv;
extern const Kernel kPackedQuantizedDepthwiseConv;

// Scratch that they need when they run on up to `threads` threads.
std::int64_t packed_quantized_conv_scratch_bytes(const TensorDesc& x, const PackedQuantizedConvAttrs& attrs,
                                                 int threads);
std::int64_t packed_quantized_depthwise_scratch_bytes(const TensorDesc& x, const TensorDesc& out,
                                                      const PackedQuantizedConvAttrs& attrs, int threads);

// The same with the loops of a given instruction set. The packed weight depends on it.
std::int64_t packed_quantized_conv_bytes(const Shape& weight, const ConvAttrs& conv,
                                         const simd::QuantizedConvTable& table);
void run_pack_quantized_conv(const KernelContext& ctx, const simd::QuantizedConvTable& table) noexcept;
void run_packed_quantized_conv(const KernelContext& ctx, const simd::QuantizedConvTable& table) noexcept;
void run_packed_quantized_depthwise_conv(const KernelContext& ctx, const simd::QuantizedConvTable& table) noexcept;

}  // namespace graft
